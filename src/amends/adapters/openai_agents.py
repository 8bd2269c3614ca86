"""OpenAI Agents SDK: calls of its function tools are recorded in the ledger, and its pauses wait for approvals there.

``amends_tools`` wraps the tools of an agent. ``AmendsRunner`` is ``Runner`` with a run of amends around each turn; it
also guards what the agent, and every agent it can hand over to, has besides: other function tools and MCP servers.
Nothing that the SDK keeps (a ``RunState``, an approval in it) can start a call: the ledger decides.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field, fields, replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal
from uuid import UUID

from agents import (
    Agent,
    AgentHookContext,
    FunctionTool,
    FunctionToolResult,
    Handoff,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    Tool,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    ToolsToFinalOutputResult,
    UserError,
)
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.function_schema import function_schema
from agents.items import ToolApprovalItem, TResponseInputItem
from agents.mcp import MCPServer
from agents.result import RunResultBase
from agents.tool import with_function_tool_failure_error_handler
from agents.tool_context import ToolContext
from pydantic_core import to_json, to_jsonable_python

import amends
from amends.errors import ApprovalVoid, KeyConflict, NoRun, RunNotFound, Suspended, some_in_words
from amends.idempotency import KEY_META, call_meta, check_result

log = logging.getLogger("amends")

Input = str | list[TResponseInputItem] | RunState[Any]

REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
APPROVALS_READ_MAX: Final = 1000
"""How many requests for approval are read to find the run of a state; with ``run_id=`` none is."""
CALLS_READ_MAX: Final = 10_000
"""How many calls are read, newest first, to find the run of a state that was stopped."""
SHOWN_MAX: Final = 10
"""How many runs an error names."""
DEPTH_MAX: Final = 32
"""How deep a request is bound by its schema; what is below is taken as it was sent."""
HARMLESS: Final = frozenset(
    {
        *("WebSearchTool", "FileSearchTool", "CodeInterpreterTool", "ImageGenerationTool", "ToolSearchTool"),
        *("Compaction", "Memory"),
    }
)
"""Hosted tools, and capabilities of sandboxes, that change nothing outside of OpenAI or the agent: nobody is warned."""


def amends_tools(tools: Iterable[Any], *, repeats: bool = False) -> list[Tool]:
    """Return the same tools, whose calls are recorded first, run at most once, and wait for approval where it is needed.

    ``tools`` are the SDK's function tools and functions declared with ``amends.tool``. Other kinds (hosted tools,
    computers, shells) run elsewhere and cannot be recorded: they are refused. With ``repeats``, a model may repeat a
    call on purpose; without, no model is told that it may.
    """
    made = [
        _guarded(one, repeats=repeats) if isinstance(one, FunctionTool) else _own(one, repeats=repeats) for one in tools
    ]
    return [_repeatable(one) for one in made] if repeats else [*made]


class AmendsHooks(RunHooks[Any]):
    """Records the agent's final output as the run's output. For programs that open the run: ``async with rt.run()``."""

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Any, output: Any) -> None:
        """Record the output."""
        _current().output = to_jsonable_python(output, fallback=str)


class AmendsRunner:
    """``Runner`` with one run of amends around each turn: it commits when the agent ends, and is rolled back if it fails.

    ``options`` are those of ``rt.run``: ``tags``, ``budgets``, ``recover``, ``principal``, ``requires``, … If a run of this
    runtime is already open, the turn joins it, and the end of that run's own block decides.

    When a turn begins, the agent and every agent that it can hand over to or use as a tool are looked at: function tools
    beside ``amends_tools`` and tools of MCP servers are guarded, in place. What cannot be (computers, shells, hosted MCP
    servers, the code of ``on_handoff``) is named in a warning; with ``strict`` the turn raises ``UsageError`` instead.

    A call with an effect that failed, and was not made good when the agent ends, takes the run back: ``RolledBack`` is
    raised, after the pivot ``RunBlocked``; not so with ``on_open_failure="commit"``. A model that is about to stop with
    something missing is told once what that is, and what stopping does.
    """

    def __init__(self, rt: amends.AsyncRuntime, *, strict: bool = False, **options: Any) -> None:
        self._rt, self._strict, self._options = rt, strict, options
        self._warned: set[str] = set()

    async def run(self, agent: Agent[Any], input: Input, *, run_id: str | None = None, **options: Any) -> RunResult:
        """Do the same as ``Runner.run``. If the result has ``interruptions``, pass its state here when they are decided.

        Cancelling it stops the agent: the run is suspended, and the same input with the same ``run_id`` goes on with it.
        """
        result: RunResult | None = None
        left: BaseException | None = None
        async with self._turn(agent, input, run_id, options) as turn:
            try:
                result = await Runner.run(agent, input, **options)
                if text := await turn.before_end(result):
                    more, again = _told(result, text, options)
                    result = await Runner.run(result.last_agent, more, **again)
            except asyncio.CancelledError as error:
                if turn.is_joined:
                    raise  # the block of that run decides
                left = error
            turn.end(result, is_stopped=left is not None)
        if left is not None:
            raise left
        assert result is not None, "it was neither stopped nor failed"
        return result

    def run_sync(self, agent: Agent[Any], input: Input, *, run_id: str | None = None, **options: Any) -> RunResult:
        """Do the same as ``Runner.run_sync``: the turn, where no event loop runs."""
        return asyncio.run(self.run(agent, input, run_id=run_id, **options))

    @asynccontextmanager
    async def run_streamed(
        self, agent: Agent[Any], input: Input, *, run_id: str | None = None, **options: Any
    ) -> AsyncIterator[RunResultStreaming]:
        """Do the same as ``Runner.run_streamed``, as a context manager: the turn ends with the block.

        Stop the agent with ``result.cancel()``, or leave the loop over its events early: the run is suspended. Nothing
        staged starts, nothing is taken back, and ``result.to_state()`` or the same ``run_id`` goes on with it.
        """
        left: BaseException | None = None
        async with self._turn(agent, input, run_id, options) as turn:
            result = Runner.run_streamed(agent, input, **options)
            reading = _Reading(result, turn, options)
            try:
                try:
                    yield result
                except (asyncio.CancelledError, GeneratorExit) as error:
                    if turn.is_joined:
                        raise  # the block of that run decides
                    left = error  # whoever reads is gone: that is a stop, too
                    reading.stop()
                await reading.finish()
            finally:
                reading.close()
            if result.run_loop_exception is not None:
                raise result.run_loop_exception
            turn.end(result, is_stopped=reading.is_stopped)
        if left is not None:
            raise left

    @asynccontextmanager
    async def _turn(
        self, agent: Agent[Any], input: Input, run_id: str | None, options: dict[str, Any]
    ) -> AsyncIterator[_Turn]:
        """Open the run of this turn; yield what must see the result before the block ends."""
        self._look_at(agent)
        kept = input._context.context if isinstance(input, RunState) and input._context is not None else None
        before = _here.get()
        _here.set(_Here(self._rt, self._look_at, options.get("context", kept), agent))
        try:
            async with self._run(input, run_id, options) as turn:
                yield turn
        finally:
            _here.set(before)  # the turn around this one may be of another runtime

    @asynccontextmanager
    async def _run(self, input: Input, run_id: str | None, options: dict[str, Any]) -> AsyncIterator[_Turn]:
        if _is_inside(self._rt, run_id):
            run = _current()
            if isinstance(input, RunState):
                await _as_decided(input, await run.report(), self._rt)
            if run.on_open_failure is None:
                run.on_open_failure = self._options.get("on_open_failure", "rollback")
            yield _Turn(run, None)
            return
        is_back = isinstance(input, RunState) or _has_results(input)
        if run_id is None and isinstance(input, RunState):
            run_id = await self._run_of(input)
        tags = (*self._options.get("tags", ()), *_thread_of(options))
        run_options = {"on_open_failure": "rollback", **self._options, "tags": tags}
        async with AsyncExitStack() as stack:
            paused = stack.enter_context(_Pausing())
            run = await stack.enter_async_context(self._rt.run(run_id, history=is_back, **run_options))
            if isinstance(input, RunState):
                await _as_decided(input, await run.report(), self._rt)
            yield _Turn(run, paused)

    def _look_at(self, agent: Agent[Any]) -> None:
        """Guard what the agent and those behind it have; warn of what cannot be guarded, or raise with ``strict``."""
        agents = _agents_from(agent)
        for text in _same_names(agents):
            if self._strict:
                raise amends.UsageError(text, hint="function_tool(name_override=...)")
            self._warn(text)
        for one in agents:
            unguarded = _guard_agent(one, self._rt)
            if unguarded and self._strict:
                raise amends.UsageError(
                    f"agent {one.name} has what cannot be recorded: {', '.join(unguarded)}",
                    hint="remove it, give the agent a function tool instead, declare the handoff by its name, or leave"
                    " strict=True away",
                )
            for name in unguarded:
                self._warn(
                    f"agent {one.name} has what amends cannot record: {name}. What it does is not in the ledger, may be"
                    " done twice and is never taken back. AmendsRunner(rt, strict=True) refuses it"
                )
        for tool in [tool for one in agents for tool in one.tools]:  # an agent is guarded if all that it has is
            if not isinstance(tool, FunctionTool) or not tool._is_agent_tool or _is_guarded(tool):
                continue
            if self._rt.kind_of(tool.name) is not None or _is_guarded_agent(tool, self._rt):
                _guard_in_place(tool)

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    async def _run_of(self, state: RunState[Any]) -> str | None:
        """Return the id of the run that waits for the same calls as this state; None: it was stopped before any call."""
        wanted = {item.call_id: item.tool_name for item in state.get_interruptions()}
        if not wanted:
            return await self._stopped_run_of(state)
        found: set[str] = set()
        seen = 0
        async for asked in self._rt.approvals(""):
            seen += 1
            if wanted.get(asked.call.tool_call_id) == asked.call.tool:
                found.add(await self._root_of(asked.call))
            if seen == APPROVALS_READ_MAX:
                break
        # A pause that only the SDK knows is that of a run that has made calls before.
        return _only(found) if found else await self._stopped_run_of(state)

    async def _stopped_run_of(self, state: RunState[Any]) -> str | None:
        """Return the id of the run that has made the calls of this state; None: it has made none."""
        made = {call_id for item in state._generated_items if (call_id := _call_id(item.raw_item))}
        if not made:
            return None
        count: Counter[str] = Counter()
        seen = 0
        async for call in self._rt.calls():
            seen += 1
            if call.tool_call_id in made:
                count[await self._root_of(call)] += 1
            if seen == CALLS_READ_MAX or count.total() == len(made):
                break
        if not count:
            raise await self._unknown(state)
        most = max(count.values())
        return _only({run_id for run_id, number in count.items() if number == most})

    async def _unknown(self, state: RunState[Any]) -> amends.UsageError:
        """Return the error for a state of which the ledger has no call: it has only asked agents, which are no calls."""
        names = {getattr(item.raw_item, "name", None) for item in state._generated_items}
        asked = some_in_words(sorted(name for name in names if isinstance(name, str)))
        stopped = [one.run_id for one in await self._rt.inbox() if one.what == "suspended" and one.run_id is not None]
        shown = ", ".join([*stopped[:SHOWN_MAX], *(["…"] if len(stopped) > SHOWN_MAX else [])])
        return amends.UsageError(
            f"nothing says which run this state belongs to: none of its calls ({asked}) is in this ledger. An agent that is a"
            " tool, or is handed over to, is no call. Nothing was done",
            hint=f"name the run: run(agent, state, run_id=...), with the id of the turn that was stopped. Runs that were"
            f" stopped here: {shown or 'none'}",
        )

    async def _root_of(self, call: amends.Call) -> str:
        """Return the id of the outermost run of a call: a sub-agent has a run inside, and an undeclared tool has one too."""
        names = call.run_id.split("/")
        for count in range(1, len(names)):
            above = "/".join(names[:count])
            with suppress(RunNotFound):
                if call.tool_call_id in _states_of(await self._rt.report(above)):
                    return above
        return call.run_id


def _only(found: set[str]) -> str:
    if len(found) != 1:
        raise amends.UsageError(
            f"{len(found)} runs wait for what this state waits for: {some_in_words(sorted(found)) or 'none known'}",
            hint="name the run: run(agent, state, run_id=...)",
        )
    return found.pop()


# ---- One tool


def _guarded(tool: FunctionTool, *, repeats: bool = False, passes: bool = False) -> FunctionTool:
    """Return the tool as calls of the current run.

    ``repeats``: the model is shown ``again_because``. ``passes``: outside of a run the tool is called as it is.
    """
    if tool._is_agent_tool and _is_guarded(tool):
        return tool  # a second child run around its own would be none that anybody asked for
    # The SDK turns a tool's error into a text for the model; the ledger needs the error itself.
    bare = replace(tool, _use_default_failure_error_function=False, _failure_error_function=None)
    bind, returns = _binder(tool)
    server = _server_of(tool)
    if server is not None:
        _listen_to(server)

    async def invoke(ctx: ToolContext[Any], arguments: str) -> Any:
        if _is_body_of(tool.name, ctx.tool_call_id):
            return await bare.on_invoke_tool(ctx, arguments)  # wrapped twice: record it once
        if passes and not _is_in_run():
            return await bare.on_invoke_tool(ctx, arguments)
        returned: list[Any] = []
        asked = bind(arguments)

        async def body(**args: Any) -> Any:
            made, value = await _invoke(bare, server, ctx, _as_json(arguments, args, asked))
            returned.append(made)
            is_call = _is_body_of(tool.name, ctx.tool_call_id)
            if _pauses(ctx) and is_call:
                raise amends.NoEffect("this tool is an agent, and has paused; it continues when it is called again")
            if _pauses(ctx):
                raise amends.Waiting(f"{tool.name} waits for a decision", run_id=_current().id)
            if not is_call:
                return to_jsonable_python(returned[-1], fallback=str)
            return value

        run = _current()
        run.for_agent()
        answer = await run.answer(
            tool.name,
            asked,
            handler=body,
            tool_call_id=ctx.tool_call_id,
            schema=_schema_for(tool, asked),
            agent=_is_guarded_agent(tool),
        )
        if returned and _pauses(ctx):
            return returned[-1]
        if (here := _here.get()) is not None:
            here.answers[ctx.tool_call_id] = answer
        raises = not tool._use_default_failure_error_function or not wraps
        return _result_for_sdk(answer, returned, raises=raises, repeats=repeats or _shows_repeat(tool))

    async def alone(**args: Any) -> Any:
        """Do a recorded call that nobody asks for again: it was staged before a pause, or lost with its process."""
        call, text, here = amends.current_call(), to_json(args).decode(), _here.get()
        context = None if here is None else here.context
        ctx: ToolContext[Any] = ToolContext(
            context, tool_name=tool.name, tool_call_id=call.tool_call_id or call.id, tool_arguments=text
        )
        await _pass_guardrails((*(tool.tool_input_guardrails or ()), *(made.tool_input_guardrails or ())), ctx)
        _, value = await _invoke(bare, server, ctx, text)
        return value

    alone.__annotations__ = {"return": returns}  # so that a compensation gets what the tool returned
    invoke.__amends__ = alone  # type: ignore[attr-defined]
    setattr(invoke, _SERVER, server)
    setattr(invoke, _FUNCTION, _function_of(tool))
    # Wrapped as the SDK does it: the program's own `failure_error_function` is kept, and None still ends the run.
    wraps = hasattr(tool.on_invoke_tool, "__agents_bind_function_tool__")
    on_invoke = with_function_tool_failure_error_handler(invoke, _no_message) if wraps else invoke
    gate = _gate(tool, tool.needs_approval, bind, passes=passes)
    made = replace(tool, on_invoke_tool=on_invoke, needs_approval=gate)
    _watch_guardrails(made)
    return made


def _watch_guardrails(tool: FunctionTool) -> None:
    """Make the guardrails of the tool's input withdraw the request for a call that they reject: nobody needs to decide."""
    if tool.tool_input_guardrails:
        tool.tool_input_guardrails = [
            one if hasattr(one.guardrail_function, "__amends__") else _watched(one)
            for one in tool.tool_input_guardrails
        ]


async def _pass_guardrails(guardrails: Iterable[ToolInputGuardrail[Any]], ctx: ToolContext[Any]) -> None:
    """Raise if a guardrail rejects a call that the SDK does not make itself."""
    here = _here.get()
    agent: Agent[Any] = Agent(name=ctx.tool_name) if here is None else here.agent
    for one in {id(one): one for one in guardrails}.values():
        output = await one.run(ToolInputGuardrailData(context=ctx, agent=agent))
        if output.behavior["type"] != "allow":
            raise amends.NoEffect(f"the guardrail {one.get_name()} rejected it")


def _watched(guardrail: ToolInputGuardrail[Any]) -> ToolInputGuardrail[Any]:
    async def check(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
        output = await guardrail.run(data)
        here = _here.get()
        if output.behavior["type"] != "allow" and here is not None and _is_in_run():
            why = f"the guardrail {guardrail.get_name()} rejected it"
            await _withdraw(
                here.rt, await _current().report(), {data.context.tool_call_id: data.context.tool_name}, why
            )
        return output

    check.__amends__ = True  # type: ignore[attr-defined]
    return ToolInputGuardrail(check, name=guardrail.get_name())


# ---- An agent as a tool: a child run


def _is_guarded_agent(tool: Any, rt: amends.AsyncRuntime | None = None) -> bool:
    """Return whether the tool is an agent, and all that it can reach is guarded: then it needs no approval itself."""
    if not isinstance(tool, FunctionTool) or not tool._is_agent_tool or not isinstance(tool._agent_instance, Agent):
        return False
    if rt is None and (here := _here.get()) is not None:
        rt = here.rt
    return all(_is_wholly_guarded(one, rt) for one in _agents_from(tool._agent_instance))


def _is_wholly_guarded(agent: Agent[Any], rt: amends.AsyncRuntime | None) -> bool:
    """Return whether everything that this agent itself can call is recorded; agents behind it are looked at apart."""
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            is_agent = tool._is_agent_tool and isinstance(tool._agent_instance, Agent)
            if not is_agent and not _is_guarded(tool):
                return False
        elif type(tool).__name__ not in HARMLESS:
            return False
    if agent.mcp_servers and not hasattr(agent.get_mcp_tools, "__amends__"):
        return False
    if _in_sandbox(agent):
        return False
    for handoff in agent.handoffs:
        if not isinstance(handoff, Handoff):
            continue
        if handoff._agent_ref is None or handoff._agent_ref() is None:
            return False  # who it hands over to is not known before the model asks for it
        if _runs_code(handoff) and (rt is None or rt.kind_of(handoff.tool_name) is None):
            return False
    return True


def _pauses(ctx: ToolContext[Any]) -> bool:
    """Return whether the tool is an agent that waits for a decision, so that what it returned is not a result.

    The SDK itself checks it in this way.
    """
    if ctx.tool_call is None:
        return False
    nested = peek_agent_tool_run_result(ctx.tool_call, scope_id=get_agent_tool_state_scope(ctx))
    return bool(getattr(nested, "interruptions", None))


def _own(tool: Any, *, repeats: bool) -> FunctionTool:
    """Return a tool of amends as a tool of the SDK; the runtime has its body."""
    if not hasattr(tool, "__amends__"):
        raise amends.UsageError(
            f"{getattr(tool, 'name', tool)!r} is neither a FunctionTool nor declared with amends.tool: its calls "
            "cannot be recorded",
            hint="to use it unrecorded, pass it to the agent beside the result of amends_tools; AmendsRunner warns of it",
        )

    async def invoke(ctx: ToolContext[Any], arguments: str) -> Any:
        run = _current()
        run.for_agent()
        answer = await run.answer(tool.name, arguments, tool_call_id=ctx.tool_call_id)
        return _result_for_sdk(answer, [], raises=False, repeats=repeats)

    invoke.__amends__ = None  # type: ignore[attr-defined]
    return FunctionTool(
        name=tool.name,
        description=(tool.__doc__ or "").strip(),
        params_json_schema=dict(tool.schema),
        on_invoke_tool=invoke,
        strict_json_schema=False,
        needs_approval=_gate(tool, False, _as_sent),
    )


def _repeatable(tool: FunctionTool) -> FunctionTool:
    """Return the tool with the argument ``again_because``, which never reaches its body."""
    schema = tool.params_json_schema
    kind: Any = ["string", "null"] if tool.strict_json_schema else "string"
    shown = {**schema.get("properties", {}), REPEAT: {"type": kind, "description": WHY_AGAIN}}
    required = [*schema.get("required", []), *([REPEAT] if tool.strict_json_schema else [])]
    return replace(tool, params_json_schema={**schema, "properties": shown, "required": required})


def _shows_repeat(tool: FunctionTool) -> bool:
    return REPEAT in tool.params_json_schema.get("properties", ())


def _is_guarded(tool: FunctionTool) -> bool:
    return hasattr(getattr(tool.on_invoke_tool, "_invoke_tool_impl", tool.on_invoke_tool), "__amends__")


_FUNCTION: Final = "__amends_function__"


def _function_of(tool: FunctionTool) -> str | None:
    """Return the name of the function that the tool was made of; None if that is not known."""
    call = getattr(tool.on_invoke_tool, "_invoke_tool_impl", tool.on_invoke_tool)
    if hasattr(call, _FUNCTION):
        return getattr(call, _FUNCTION)  # type: ignore[no-any-return]
    found = getattr(tool, "__wrapped__", None)
    return None if found is None else f"{found.__module__}.{getattr(found, '__qualname__', found)}"


def _same_names(agents: Iterable[Agent[Any]]) -> list[str]:
    """Return a text for each name that tools of different functions share: the record of one would answer for the other."""
    found: dict[str, set[str]] = {}
    for tool in [tool for one in agents for tool in one.tools if isinstance(tool, FunctionTool)]:
        if (function := _function_of(tool)) is not None:
            found.setdefault(tool.name, set()).add(function)
    return [
        f"two tools are called {name} ({', '.join(sorted(functions))}). A record is found by the name of its tool, so that"
        " what one has done would be the answer to the other: give one of them another name"
        for name, functions in sorted(found.items())
        if len(functions) > 1
    ]


def _bodies(tools: Iterable[Tool]) -> dict[str, Callable[..., Any]]:
    """Return what does a recorded call of these tools when no request of the model is at hand, by name."""
    found = [(one.name, getattr(one, "on_invoke_tool", None)) for one in tools]
    bodies = {name: getattr(getattr(call, "_invoke_tool_impl", call), "__amends__", None) for name, call in found}
    return {name: body for name, body in bodies.items() if body is not None}


Approves = bool | Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]
Bind = Callable[[str], Mapping[str, Any] | str]
"""Returns the arguments that a model sent as the tool takes them; the text itself if they are invalid."""


def _schema_for(tool: Any, asked: Mapping[str, Any] | str) -> dict[str, Any] | None:
    """Return the schema by which the run binds a request; None: it is already bound, or the run has the function."""
    return tool.params_json_schema if isinstance(tool, FunctionTool) and isinstance(asked, str) else None


def _gate(
    tool: Any, own: Approves, bind: Bind, *, passes: bool = False
) -> Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]:
    """Return a function that tells whether the SDK pauses before a call: if the ledger or the tool itself requires it."""

    async def needs_approval(ctx: RunContextWrapper[Any], args: dict[str, Any], call_id: str) -> bool:
        if _is_rejected(ctx, tool.name, call_id):
            return True  # by the program, which tells the model so: nobody else needs to decide
        if not passes or _is_in_run():
            try:
                asked = bind(to_json(args).decode())
                run, schema, is_agent = _current(), _schema_for(tool, asked), _is_guarded_agent(tool)
                found = await run.approval_for(tool.name, asked, tool_call_id=call_id, schema=schema, agent=is_agent)
                if found is not None:
                    return True
            except NoRun:
                raise
            except amends.Error:
                pass  # the call itself gets the same error, as text for the model
        return await own(ctx, args, call_id) if callable(own) else own

    return needs_approval


def _result_for_sdk(answer: amends.Answer, returned: list[Any], *, raises: bool, repeats: bool) -> Any:
    """Return the tool's own value, or the text for the model; raise the tool's error if the program wants to see it."""
    if answer.status == "done":
        return returned[-1] if returned else answer.value
    if raises and answer.error is not None and not isinstance(answer.error, amends.Error):
        raise answer.error
    return answer.text if repeats else _text_without_repeat(answer)


def _text_without_repeat(answer: amends.Answer) -> str:
    """Return the text for a model that has no ``again_because`` in its schema: it must not be told to use it."""
    error = answer.error
    if not isinstance(error, amends.Held | KeyConflict) or not error.may_repeat:
        return answer.text
    error.may_repeat = False
    return error.for_model()


def _as_json(arguments: str, args: dict[str, Any], asked: Mapping[str, Any] | str) -> str:
    """Return the arguments for the SDK: the original text if it means just what is recorded, else what is recorded."""
    if isinstance(asked, Mapping):
        bound = {name: value for name, value in asked.items() if name != REPEAT}
        sent = json.loads(arguments or "{}")
        return arguments if bound == args and REPEAT not in sent else to_json(args).decode()
    return to_json(args).decode()


def _no_message(tool: FunctionTool, error: Exception, arguments: str) -> None:
    """Return no message for the model: the ledger already has the error."""


# ---- A request in other words is the same request


def _as_sent(arguments: str) -> str:
    return arguments


def _binder(tool: FunctionTool) -> tuple[Bind, Any]:
    """Return a function that binds a model's arguments by the tool's function, else by its schema; and what it returns.

    So a default that is left out and then said, ``5`` and ``"5"``, and an argument that the tool does not have are one
    request, with one key.
    """
    try:
        schema = function_schema(tool.__wrapped__, strict_json_schema=False)
    except Exception:  # not made by function_tool, or of a callable that the SDK had to prepare first
        return _as_sent, Any  # the run binds it by its schema
    model, returns = schema.params_pydantic_model, schema.return_annotation

    def by_model(given: dict[str, Any]) -> dict[str, Any]:
        # Twice: a default that is new each time (an id, the time) is no part of what was asked for.
        first, second = (model(**given).model_dump(by_alias=True) for _ in range(2))
        bound: dict[str, Any] = {}
        for name, value in first.items():
            plain = _plain(value)
            if plain is not _NONE and plain == _plain(second[name]):
                bound[name] = plain
            elif name in given:
                bound[name] = given[name]
        return bound

    return functools.partial(_bound_by, by_model), Any if returns is inspect.Signature.empty else returns


def _bound_by(bind: Callable[[dict[str, Any]], dict[str, Any]], arguments: str) -> Mapping[str, Any] | str:
    try:
        given = json.loads(arguments or "{}")
        again = {REPEAT: given.pop(REPEAT)} if REPEAT in given else {}
        return {**bind(given), **again}
    except Exception:  # the tool itself says what is wrong with its arguments
        return arguments


_NONE: Final = object()


def _plain(value: Any) -> Any:
    """Return a bound value as it is recorded: as JSON, with exact decimals; ``_NONE`` if there is no such form."""
    try:
        return _as_plain(value, 0)
    except TypeError:
        return _NONE


def _as_plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, Decimal) or type(value) in (bool, int, float, str):
        return value
    if depth == DEPTH_MAX:
        raise TypeError("nested too deeply")
    if isinstance(value, Enum):
        return _as_plain(value.value, depth + 1)
    if isinstance(value, date | time | timedelta | UUID):
        return to_jsonable_python(value)
    if isinstance(value, list | tuple):
        return [_as_plain(one, depth + 1) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_as_plain(one, depth + 1) for one in value), key=to_json)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _as_plain(one, depth + 1) for name, one in value.items()}
    raise TypeError(f"{type(value).__name__} has no plain form")


# ---- What an agent has besides


def _agents_from(agent: Agent[Any]) -> list[Agent[Any]]:
    """Return the agent and those that it can hand over to or use as a tool, and so on."""
    found: list[Agent[Any]] = []
    waiting = [agent]
    while waiting:
        one = waiting.pop()
        if any(one is known for known in found):
            continue
        found.append(one)
        behind = [getattr(tool, "_agent_instance", None) for tool in one.tools]
        for handoff in one.handoffs:
            ref = handoff._agent_ref if isinstance(handoff, Handoff) else None
            behind.append(handoff if isinstance(handoff, Agent) else ref() if ref is not None else None)
        waiting += [target for target in behind if isinstance(target, Agent)]
    return found


def _in_sandbox(agent: Agent[Any]) -> list[str]:
    """Return what an agent with a sandbox has there. The SDK gives its model a copy of the agent, which nobody can guard."""
    found = [type(one).__name__ for one in getattr(agent, "capabilities", ())]
    if not found:
        return []
    servers = ["mcp_servers"] if agent.mcp_servers else []
    return [f"{name} (sandbox)" for name in (*(one for one in found if one not in HARMLESS), *servers)]


def _guard_agent(agent: Agent[Any], rt: amends.AsyncRuntime) -> list[str]:
    """Guard what this agent has, in place; return the names of what cannot be guarded.

    In place, because the SDK finds tools again by identity, and results name the program's own agents. Outside of a run
    all of it does what it did before.
    """
    unguarded = _in_sandbox(agent)
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            if _shows_repeat(tool):
                _ = rt.schemas(repeats=True)  # raises if the runtime does not honour what the model is shown
            if not _is_guarded(tool) and not tool._is_agent_tool:
                _guard_in_place(tool)
            _watch_guardrails(tool)
        elif type(tool).__name__ not in HARMLESS:
            unguarded.append(f"{tool.name} ({type(tool).__name__})")
    rt.reach(_bodies(tool for tool in agent.tools if not getattr(tool, "_is_agent_tool", False)))
    if agent.mcp_servers and not hasattr(agent.get_mcp_tools, "__amends__"):
        agent.get_mcp_tools = _guarding_servers(agent.get_mcp_tools)  # type: ignore[method-assign]
    for handoff in agent.handoffs:
        if not isinstance(handoff, Handoff):
            continue
        if rt.kind_of(handoff.tool_name) is None and _runs_code(handoff):
            unguarded.append(f"on_handoff of {handoff.tool_name}")
        if not hasattr(handoff.on_invoke_handoff, "__amends__"):
            handoff.on_invoke_handoff = _guarded_handoff(handoff)
    if not hasattr(agent.get_all_tools, "__amends__"):
        agent.get_all_tools = _looking(agent, agent.get_all_tools)  # type: ignore[method-assign]
    if agent.tool_use_behavior == "stop_on_first_tool" or isinstance(agent.tool_use_behavior, dict):
        agent.tool_use_behavior = _stopping(agent.tool_use_behavior)
    return unguarded


def _looking(agent: Agent[Any], listed: Callable[..., Awaitable[list[Tool]]]) -> Any:
    """Return the method that lists the agent's tools before each request to the model, and looks at what is new."""

    def had() -> list[int]:
        return [id(one) for one in (*agent.tools, *agent.handoffs, *agent.mcp_servers)]

    seen = had()

    async def get_all_tools(run_context: RunContextWrapper[Any]) -> list[Tool]:
        nonlocal seen
        here = _here.get()
        if here is not None and _is_in_run() and seen != had():
            here.look_at(agent)
            seen = had()
        return await listed(run_context)

    get_all_tools.__amends__ = True  # type: ignore[attr-defined]
    return get_all_tools


def _guard_in_place(tool: FunctionTool) -> None:
    made = _guarded(tool, passes=True)
    bound = getattr(made.on_invoke_tool, "__agents_bind_function_tool__", None)
    tool.on_invoke_tool = made.on_invoke_tool if bound is None else bound(tool)
    tool.needs_approval = made.needs_approval


def _guarding_servers(listed: Callable[..., Awaitable[list[Tool]]]) -> Any:
    """Return the method that lists the tools of the agent's MCP servers, guarded."""
    reached: set[tuple[int, str]] = set()  # the SDK lists them before each request to the model

    async def get_mcp_tools(run_context: RunContextWrapper[Any]) -> list[Tool]:
        found = await listed(run_context)
        tools = [_guarded(one, passes=True) if isinstance(one, FunctionTool) else one for one in found]
        if (here := _here.get()) is not None:
            new = {name: body for name, body in _bodies(tools).items() if (id(here.rt), name) not in reached}
            reached.update((id(here.rt), name) for name in new)
            here.rt.reach(new)
        return tools

    get_mcp_tools.__amends__ = True  # type: ignore[attr-defined]
    return get_mcp_tools


# ---- Tools of MCP servers

_LOST: Final = re.compile(r"(Connection timeout\.|Request failed\.|HTTP error (5\d\d|408|499))$")
"""The end of a message by which the SDK hides an error of the transport whose address has a password."""

_results: ContextVar[list[Any] | None] = ContextVar("amends.adapters.openai_agents.results", default=None)
"""The results of the MCP server during the body of one of its tools: the SDK keeps only their texts."""


def _server_of(tool: FunctionTool) -> MCPServer | None:
    """Return the MCP server that the tool is one of; None: it is none, or something else calls it."""
    call = getattr(tool.on_invoke_tool, "_invoke_tool_impl", tool.on_invoke_tool)
    found = getattr(call, _SERVER, None)
    if found is None and isinstance(call, functools.partial) and call.args:
        found = call.args[0]
    return found if isinstance(found, MCPServer) else None


_SERVER: Final = "__amends_server__"


async def _invoke(
    tool: FunctionTool, server: MCPServer | None, ctx: ToolContext[Any], arguments: str
) -> tuple[Any, Any]:
    """Do a call; return what the SDK makes of it, and what the tool returned. Raise what a server's result stands for."""
    if server is None:
        made = await tool.on_invoke_tool(ctx, arguments)
        return made, made
    heard: list[Any] = []
    token = _results.set(heard)  # a list: the SDK asks the server in another asyncio task
    try:
        made = await tool.on_invoke_tool(ctx, arguments)
    finally:
        _results.reset(token)
    return made, _content(check_result(heard[-1])) if heard else made


def _listen_to(server: MCPServer) -> None:
    """Make the server tell the body what it really answered; outside of a body it does what it did.

    It is given the key of the call, and is asked once, whatever its ``max_retry_attempts`` is: a request that was lost
    may have been executed.
    """
    call_tool = server.call_tool
    if hasattr(call_tool, "__amends__"):
        return
    try:
        takes_meta = "meta" in inspect.signature(call_tool).parameters
    except (TypeError, ValueError):  # a callable that says nothing of its parameters
        takes_meta = False

    async def call(*args: Any, **kwargs: Any) -> Any:
        said = call_meta()
        if not said:
            return await call_tool(*args, **kwargs)
        heard = _results.get()
        if heard is not None and takes_meta and len(args) < 3:
            kwargs["meta"] = {KEY_META: said[KEY_META], **(kwargs.get("meta") or {})}
        here = amends.current_call()
        may_repeat = here.kind == "read" or here.phase == "compensate"
        ask = call_tool if may_repeat else _once(server, call_tool)
        try:
            result = await ask(*args, **kwargs)
        except UserError as error:
            if error.__cause__ is None and _LOST.search(str(error)):
                raise ConnectionError(str(error)) from error
            raise
        if heard is not None:
            heard.append(result)
        return result

    call.__amends__ = True  # type: ignore[attr-defined]
    server.call_tool = call  # type: ignore[method-assign]


def _once(server: MCPServer, call_tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the method of the server without the SDK's own retries."""
    if not getattr(server, "max_retry_attempts", 0) or not inspect.ismethod(call_tool):
        return call_tool
    made: Any = copy(server)  # others may use the server meanwhile
    made.max_retry_attempts = 0
    return functools.partial(call_tool.__func__, made)


def _content(result: Any) -> Any:
    """Return what the tool of an MCP server returned: its structured content, else its text."""
    told = to_jsonable_python(result, by_alias=True, exclude_none=True)
    if "structuredContent" in told:
        return told["structuredContent"]
    texts = [one["text"] for one in told.get("content", ()) if one.get("type") == "text"]
    if len(texts) != len(told.get("content", ())):
        return told["content"]
    text = "\n".join(texts)
    try:
        return json.loads(text)
    except ValueError:
        return text


def _runs_code(handoff: Handoff[Any, Any]) -> bool:
    """Return whether a handoff may do something besides handing over."""
    call = handoff.on_invoke_handoff
    if hasattr(call, "__amends__"):
        return bool(call.__amends__)
    inner = call.args[0] if isinstance(call, functools.partial) and call.args else None
    cells = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    return "on_handoff" not in cells or cells["on_handoff"] is not None


def _guarded_handoff(handoff: Handoff[Any, Any]) -> Callable[[RunContextWrapper[Any], str], Awaitable[Any]]:
    """Return the handoff as a call of the run, if it is declared by its name; what it hands over to is looked at."""
    inner, name = handoff.on_invoke_handoff, handoff.tool_name

    async def invoke(ctx: RunContextWrapper[Any], arguments: str) -> Any:
        here = _here.get()
        if here is None or not _is_in_run():
            return await inner(ctx, arguments)
        if here.rt.kind_of(name) is None:
            chosen = await inner(ctx, arguments)
            here.look_at(chosen)
            return chosen
        targets: list[Any] = []

        async def body(**args: Any) -> Any:
            targets.append(await inner(ctx, to_json(args).decode() if args else arguments))
            return targets[-1].name

        run = _current()
        run.for_agent()
        answer = await run.answer(name, arguments or "{}", handler=body)
        if answer.error is not None:
            raise answer.error
        ref = handoff._agent_ref
        target: Any = targets[-1] if targets else ref() if ref is not None else None
        if target is None:
            raise amends.UsageError(
                f"{name} was already done in this run, and only its own code knows the agent that it hands over to",
                hint="make it with agents.handoff(agent, on_handoff=...), which names the agent",
            )
        here.look_at(target)
        return target

    invoke.__amends__ = _runs_code(handoff)  # type: ignore[attr-defined]
    return invoke


def _stopping(stop: Any) -> Callable[[RunContextWrapper[Any], list[FunctionToolResult]], ToolsToFinalOutputResult]:
    """Return the same ``tool_use_behavior``, for which only a result ends the agent: a refusal is told to the model."""
    names = None if stop == "stop_on_first_tool" else stop.get("stop_at_tool_names", [])

    def behave(_: RunContextWrapper[Any], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
        for one in results[:1] if names is None else results:
            if names is not None and one.tool.name not in names and one.tool.qualified_name not in names:
                continue
            here = _here.get()
            call_id = None if one.run_item is None else _call_id(one.run_item.raw_item)
            answer = None if here is None or call_id is None else here.answers.get(call_id)
            if answer is None or answer.status in ("done", "staged"):
                return ToolsToFinalOutputResult(is_final_output=True, final_output=one.output)
            if answer.status == "replayed":  # the same output as the first time
                return ToolsToFinalOutputResult(is_final_output=True, final_output=answer.value)
        return ToolsToFinalOutputResult(is_final_output=False, final_output=None)

    return behave


# ---- The run around a turn


@dataclass(frozen=True)
class _Here:
    """The turn that this context is in: its runtime, and the program's own context object."""

    rt: amends.AsyncRuntime
    look_at: Callable[[Agent[Any]], None]
    context: Any
    agent: Agent[Any]
    """The one that the turn began with."""
    answers: dict[str, amends.Answer] = field(default_factory=dict)
    """By the SDK's ids of the calls."""


_here: ContextVar[_Here | None] = ContextVar("amends.adapters.openai_agents.here", default=None)


class _Turn:
    """The run of one turn, and its end. ``paused``: what releases the run if the agent pauses; None: it was joined."""

    def __init__(self, run: amends.AsyncRun, paused: _Pausing | None) -> None:
        self._run, self._paused = run, paused
        self.is_joined = paused is None

    async def before_end(self, result: RunResultBase) -> str:
        """Return what the model must be told before it may stop; empty: it may, or it only pauses."""
        return "" if getattr(result, "interruptions", None) else await self._run.before_end()

    def end(self, result: RunResultBase | None, *, is_stopped: bool = False) -> None:
        """Record the output; raise if the agent only pauses, or was stopped."""
        if is_stopped:
            stop = Suspended("the agent was stopped", run_id=self._run.id)
            raise stop if self._paused is None else self._paused.over(stop)
        if self._paused is None or result is None:
            return
        if interruptions := getattr(result, "interruptions", None):
            raise self._paused.because(self._run.id, interruptions)
        self._run.output = to_jsonable_python(result.final_output, fallback=str)


def _told(result: RunResultBase, text: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the input and the options with which the agent goes on, told what is missing.

    Its context is that of the result: the program's own object, which may be that of a state, and what it always rejects.
    """
    options = {**options, "context": result.context_wrapper}
    if options.get("session") is not None or options.get("conversation_id"):
        return text, options  # the conversation is kept elsewhere
    if options.get("previous_response_id") or options.get("auto_previous_response_id"):
        return text, {**options, "previous_response_id": result.last_response_id}
    return [*result.to_input_list(), {"role": "user", "content": text}], options


class _Reading:
    """The events of a streamed turn: read by the program, and to their end when its block ends.

    The stream goes on if the model must be told something before it may stop. Whoever cancels it, or leaves the loop
    over its events early, has stopped the agent.
    """

    def __init__(self, result: RunResultStreaming, turn: _Turn, options: dict[str, Any]) -> None:
        self._result, self._turn, self._options = result, turn, options
        self._streams, self._first, self._cancel = [result], result.stream_events, result.cancel
        self._is_begun = self._is_over = self._is_left = self.is_stopped = False
        result.stream_events, result.cancel = self._events, self.stop  # type: ignore[method-assign]

    def stop(self, mode: Literal["immediate", "after_turn"] = "immediate") -> None:
        """Cancel the agent, as ``result.cancel`` does, and remember that: the run is suspended."""
        if not self._is_over:
            self.is_stopped = True
            self._cancel_all(mode)

    async def finish(self) -> None:
        """Read what the program has not read: the turn is not over before."""
        self._is_left = self._is_begun and not self._is_over and not self.is_stopped
        if self._is_left:  # what the model has already asked for is done, and nothing more
            self._cancel_all("after_turn")
        async for _ in self._events():
            pass
        self.is_stopped |= self._is_cut()

    def close(self) -> None:
        """Cancel whatever still runs."""
        for one in self._streams:
            if not one.is_complete:
                (self._cancel if one is self._result else one.cancel)()

    def _is_cut(self) -> bool:
        """Return whether the program left its loop before the agent had answered."""
        result = self._result
        return self._is_left and result.final_output is None and not result.interruptions

    def _cancel_all(self, mode: Literal["immediate", "after_turn"]) -> None:
        for one in self._streams:
            (self._cancel if one is self._result else one.cancel)(mode)

    async def _events(self) -> AsyncIterator[Any]:
        self._is_begun = True
        async for event in self._first():
            yield event
        result, is_last = self._result, len(self._streams) == 1
        may_end = not is_last or self.is_stopped or self._is_cut() or result.run_loop_exception is not None
        if not may_end and (text := await self._turn.before_end(result)):
            more, again = _told(result, text, self._options)
            self._streams.append(Runner.run_streamed(result.last_agent, more, **again))
        for second in self._streams[1:]:
            async for event in second.stream_events():
                yield event
            for one in fields(second):  # the caller has the first result, and reads the output there
                setattr(result, one.name, getattr(second, one.name))
        self._is_over = True


class _Pausing:
    """Swallows the exception that releases the run when the agent pauses, so that the caller gets the result."""

    def __init__(self) -> None:
        self._because: amends.Waiting | None = None

    def because(self, run_id: str, interruptions: list[ToolApprovalItem]) -> amends.Waiting:
        """Return the exception to raise inside the run's block: a pause is not an end."""
        names = some_in_words(sorted({item.tool_name or "a tool" for item in interruptions}))
        self._because = amends.Waiting(f"the agent waits for a decision about {names}", run_id=run_id)
        return self._because

    def over(self, stop: Suspended) -> Suspended:
        """Return the exception itself, which does not leave the turn."""
        self._because = stop
        return stop

    def __enter__(self) -> _Pausing:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and error is self._because


async def _as_decided(state: RunState[Any], report: amends.Report, rt: amends.AsyncRuntime) -> None:
    """Make the state agree with the ledger: an approval that only the state has does not count.

    A call that a person rejected counts as approved here, so that it runs and is answered with the reason. A rejection
    by the program itself stays, and withdraws the request: nobody decides about it any more, and a yes that was given
    starts nothing.
    """
    known = _states_of(report)
    undecided = {call_id for call_id, call_state in known.items() if call_state == "held"}
    # There is no public way to revoke an approval. Those of an agent that is a tool are in the state inside this one.
    owners = [state._find_nested_approval_state(item) for item in state.get_interruptions()]
    contexts = [one._context for one in (state, *(owner[0] for owner in owners if owner is not None))]
    for record in [record for one in contexts if one is not None for record in one._approvals.values()]:
        if isinstance(record.approved, list):
            record.approved = [one for one in record.approved if one not in undecided]
    refused = {
        item.call_id: item.tool_name
        for item in state.get_interruptions()
        if item.call_id and any(one is not None and _is_rejected(one, item.tool_name, item.call_id) for one in contexts)
    }
    await _withdraw(rt, report, refused, "the program rejected it in the state of the agent")
    for item in state.get_interruptions():
        if item.call_id in known and item.call_id not in undecided | refused.keys():
            state.approve(item)


def _is_rejected(context: RunContextWrapper[Any], tool: str | None, call_id: str) -> bool:
    """Return whether the program has rejected this call, or every call of this tool."""
    if any(isinstance(one.rejected, list) and call_id in one.rejected for one in context._approvals.values()):
        return True
    return tool is not None and context.is_tool_approved(tool, call_id) is False


async def _withdraw(
    rt: amends.AsyncRuntime, report: amends.Report, refused: Mapping[str, str | None], why: str
) -> None:
    """Withdraw the requests for approval of these calls, which the SDK does not make: their tools by the SDK's ids."""
    if not refused:
        return
    for call in report.calls:
        call_id = call.tool_call_id
        if call_id is None or call_id not in refused or call.state not in ("held", "ready") or call.staged:
            continue
        if (refused[call_id] or call.tool).rpartition(".")[2] != call.tool.rpartition(".")[2]:
            continue  # not every model makes ids that are unique
        async for asked in rt.approvals(f"call:{call.id}"):
            if asked.state in ("pending", "approved"):
                with suppress(ApprovalVoid):  # decided otherwise at this moment
                    await rt.withdraw(asked.id, by="Agents SDK", why=why)
    for child in report.children:
        await _withdraw(rt, child, refused, why)


def _states_of(report: amends.Report) -> dict[str, str]:
    """Return the states of the calls by the SDK's own ids."""
    found = {call.tool_call_id: str(call.state) for call in report.calls if call.tool_call_id}
    for child in report.children:
        found |= _states_of(child)
    return found


def _current() -> amends.AsyncRun:
    run = amends.current_run()
    if not isinstance(run, amends.AsyncRun):
        raise NoRun("the Agents SDK needs an AsyncRuntime: the current run is a blocking one")
    return run


def _is_in_run() -> bool:
    try:
        amends.current_run()
    except NoRun:
        return False
    return True


def _call_id(item: Any) -> str | None:
    """Return the SDK's id of a call, of an item that is the call or its output."""
    found = item.get("call_id") if isinstance(item, Mapping) else getattr(item, "call_id", None)
    return found if isinstance(found, str) else None


def _has_results(input: Input) -> bool:
    """Return whether the model still has results of earlier calls before it."""
    return isinstance(input, list) and any("output" in one for one in input)


def _is_body_of(name: str, call_id: str) -> bool:
    try:
        call = amends.current_call()
    except NoRun:
        return False
    return (call.tool, call.tool_call_id) == (name, call_id)


def _is_inside(rt: amends.AsyncRuntime, run_id: str | None) -> bool:
    """Return whether a run of this runtime is open. In a replay, the run with this id is opened as it was recorded."""
    try:
        run = amends.current_run(rt)
    except NoRun:
        return False
    return not (run.awaits_opening and run.id == run_id)


def _thread_of(options: dict[str, Any]) -> tuple[str, ...]:
    """Return a tag for the conversation of the turn."""
    session = options.get("session")
    thread = options.get("conversation_id") if session is None else getattr(session, "session_id", None)
    return () if thread is None else (f"thread:{thread}",)
