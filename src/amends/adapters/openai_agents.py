"""OpenAI Agents SDK: calls of its function tools are recorded in the ledger, and its pauses wait for approvals there.

``amends_tools`` wraps the tools of an agent. ``AmendsRunner`` is ``Runner`` with a run of amends around each turn.
Nothing that the SDK keeps (a ``RunState``, an approval in it) can start a call: the ledger decides.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import fields, replace
from typing import Any, Final

from agents import (
    Agent,
    AgentHookContext,
    FunctionTool,
    RunContextWrapper,
    RunHooks,
    Runner,
    RunResult,
    RunResultStreaming,
    RunState,
    Tool,
)
from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
from agents.items import ToolApprovalItem, TResponseInputItem
from agents.result import RunResultBase
from agents.tool import with_function_tool_failure_error_handler
from agents.tool_context import ToolContext
from pydantic_core import to_json, to_jsonable_python

import amends
from amends.errors import NoRun, RunNotFound

Input = str | list[TResponseInputItem] | RunState[Any]

REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
APPROVALS_READ_MAX: Final = 1000
"""How many requests for approval are read to find the run of a state; with ``run_id=`` none is."""
DEPTH_MAX: Final = 100
"""How deep agents may ask agents."""
GUARDED: Final = "__amends_guarded__"
"""Marks a tool whose calls are recorded, on its ``needs_approval``."""


def amends_tools(tools: Iterable[Any], *, repeats: bool = False) -> list[Tool]:
    """Return the same tools, whose calls are recorded first, run at most once, and wait for approval where it is needed.

    ``tools`` are the SDK's function tools and functions declared with ``amends.tool``. Other kinds (hosted tools,
    computers, shells) run elsewhere and cannot be recorded: they are refused. With ``repeats``, a model may repeat a
    call on purpose.
    """
    made = [_guarded(one) if isinstance(one, FunctionTool) else _own(one) for one in tools]
    return [_repeatable(one) for one in made] if repeats else [*made]


class AmendsHooks(RunHooks[Any]):
    """Records the agent's final output as the run's output. For programs that open the run: ``async with rt.run()``."""

    async def on_agent_end(self, context: AgentHookContext[Any], agent: Any, output: Any) -> None:
        """Record the output."""
        _current().output = to_jsonable_python(output, fallback=str)


class AmendsRunner:
    """``Runner`` with one run of amends around each turn: it commits when the agent ends, and is rolled back if it fails.

    ``options`` are those of ``rt.run``: ``tags``, ``budgets``, ``recover``, ``principal``, ``requires``, … If a run is
    already open, the turn joins it, and the end of that run's own block decides.

    A call with an effect that failed, and was not made good when the agent ends, takes the run back: ``RolledBack`` is
    raised, after the pivot ``RunBlocked``; not so with ``on_open_failure="commit"``. A model that is about to stop with
    something missing is told once what that is, and what stopping does.
    """

    def __init__(self, rt: amends.AsyncRuntime, **options: Any) -> None:
        self._rt, self._options = rt, options

    async def run(self, agent: Agent[Any], input: Input, *, run_id: str | None = None, **options: Any) -> RunResult:
        """Do the same as ``Runner.run``. If the result has ``interruptions``, pass its state here when they are decided."""
        _guard_agents(agent)
        async with self._turn(input, run_id, options) as turn:
            result = await Runner.run(agent, input, **options)
            if text := await turn.before_end(result):
                more, again = _told(result, text, options)
                result = await Runner.run(result.last_agent, more, **again)
            turn.end(result)
        return result

    @asynccontextmanager
    async def run_streamed(
        self, agent: Agent[Any], input: Input, *, run_id: str | None = None, **options: Any
    ) -> AsyncIterator[RunResultStreaming]:
        """Do the same as ``Runner.run_streamed``, as a context manager: the turn ends with the block."""
        _guard_agents(agent)
        async with self._turn(input, run_id, options) as turn:
            result = Runner.run_streamed(agent, input, **options)
            streams = _continued(result, turn, options)
            try:
                yield result
                async for _ in result.stream_events():
                    pass  # read the rest: the turn is not over before
            finally:
                for one in streams:
                    if not one.is_complete:
                        one.cancel()
            if result.run_loop_exception is not None:
                raise result.run_loop_exception
            turn.end(result)

    @asynccontextmanager
    async def _turn(self, input: Input, run_id: str | None, options: dict[str, Any]) -> AsyncIterator[_Turn]:
        """Open the run of this turn; yield what must see the result before the block ends."""
        if _is_inside(run_id):
            run = _current()
            if isinstance(input, RunState):
                _as_decided(input, await run.report())
            if run.on_open_failure is None:
                run.on_open_failure = self._options.get("on_open_failure", "rollback")
            yield _Turn(run, None)
            return
        is_back = isinstance(input, RunState)
        if run_id is None and isinstance(input, RunState):
            run_id = await self._run_of(input)
        tags = (*self._options.get("tags", ()), *_thread_of(options))
        run_options = {"on_open_failure": "rollback", **self._options, "tags": tags}
        async with AsyncExitStack() as stack:
            paused = stack.enter_context(_Pausing())
            run = await stack.enter_async_context(self._rt.run(run_id, history=is_back, **run_options))
            if isinstance(input, RunState):
                _as_decided(input, await run.report())
            yield _Turn(run, paused)

    async def _run_of(self, state: RunState[Any]) -> str:
        """Return the id of the run that waits for the same calls as this state."""
        wanted = {item.call_id: item.tool_name for item in state.get_interruptions()}
        found: set[str] = set()
        seen = 0
        async for asked in self._rt.approvals(""):
            seen += 1
            if wanted.get(asked.call.tool_call_id) == asked.call.tool:
                found.add(await self._root_of(asked.call))
            if seen == APPROVALS_READ_MAX:
                break
        if len(found) != 1:
            raise amends.UsageError(
                f"{len(found)} runs wait for what this state waits for: {', '.join(sorted(found)) or 'none known'}",
                hint="name the run: run(agent, state, run_id=...)",
            )
        return found.pop()

    async def _root_of(self, call: amends.Call) -> str:
        """Return the id of the outermost run of a call: a sub-agent has a run inside, and an undeclared tool has one too."""
        names = call.run_id.split("/")
        for count in range(1, len(names)):
            above = "/".join(names[:count])
            with suppress(RunNotFound):
                if call.tool_call_id in _states_of(await self._rt.report(above)):
                    return above
        return call.run_id


# ---- One tool


def _guarded(tool: FunctionTool) -> FunctionTool:
    if tool._is_agent_tool and _is_guarded(tool):
        return tool  # a second child run around its own would be none that anybody asked for
    # The SDK turns a tool's error into a text for the model; the ledger needs the error itself.
    bare = replace(tool, _use_default_failure_error_function=False, _failure_error_function=None)

    async def invoke(ctx: ToolContext[Any], arguments: str) -> Any:
        if _is_body_of(tool.name, ctx.tool_call_id):
            return await bare.on_invoke_tool(ctx, arguments)  # wrapped twice: record it once
        returned: list[Any] = []

        async def body(**args: Any) -> Any:
            returned.append(await bare.on_invoke_tool(ctx, _as_json(arguments, args)))
            is_call = _is_body_of(tool.name, ctx.tool_call_id)
            if _pauses(ctx) and is_call:
                raise amends.NoEffect("this tool is an agent, and has paused; it continues when it is called again")
            if _pauses(ctx):
                raise amends.Waiting(f"{tool.name} waits for a decision", run_id=_current().id)
            return returned[-1] if is_call else to_jsonable_python(returned[-1], fallback=str)

        run = _current()
        run.for_agent()
        answer = await run.answer(
            tool.name, arguments, handler=body, tool_call_id=ctx.tool_call_id, agent=_is_guarded_agent(tool)
        )
        if returned and _pauses(ctx):
            return returned[-1]
        return _result_for_sdk(answer, returned, raises=not tool._use_default_failure_error_function or not wraps)

    # Wrapped as the SDK does it: the program's own `failure_error_function` is kept, and None still ends the run.
    wraps = hasattr(tool.on_invoke_tool, "__agents_bind_function_tool__")
    on_invoke = with_function_tool_failure_error_handler(invoke, _no_message) if wraps else invoke
    return replace(tool, on_invoke_tool=on_invoke, needs_approval=_gate(tool.name, tool.needs_approval, tool))


# ---- An agent as a tool: a child run


def _is_guarded(tool: Tool) -> bool:
    return isinstance(tool, FunctionTool) and hasattr(tool.needs_approval, GUARDED)


def _is_guarded_agent(tool: Tool) -> bool:
    """Return whether the tool is an agent, and everything that it can call is guarded: then it needs no approval itself."""
    return isinstance(tool, FunctionTool) and tool._is_agent_tool and _has_guarded_tools(tool._agent_instance, set())


def _has_guarded_tools(agent: Any, seen: set[int]) -> bool:
    if not isinstance(agent, Agent) or len(seen) > DEPTH_MAX:
        return False
    if id(agent) in seen:
        return True
    seen.add(id(agent))
    if agent.mcp_servers:
        return False
    nested = [tool for tool in agent.tools if isinstance(tool, FunctionTool) and tool._is_agent_tool]
    plain = all(_is_guarded(tool) for tool in agent.tools if not any(tool is one for one in nested))
    targets = [*(tool._agent_instance for tool in nested), *map(_target_of, agent.handoffs)]
    return plain and all(_has_guarded_tools(target, seen) for target in targets)


def _target_of(handoff: Any) -> Any:
    """Return the agent of a handoff; None: it is not known before the model asks for it."""
    if isinstance(handoff, Agent):
        return handoff
    known = getattr(handoff, "_agent_ref", None)
    return known() if callable(known) else None


def _guard_agents(agent: Any) -> None:
    """Guard the agents that this one, and each that it reaches, has as tools and did not pass to ``amends_tools``."""
    found, seen = [agent], set[int]()
    while found and len(seen) <= DEPTH_MAX:
        one = found.pop()
        if not isinstance(one, Agent) or id(one) in seen:
            continue
        seen.add(id(one))
        nested = [tool for tool in one.tools if isinstance(tool, FunctionTool) and tool._is_agent_tool]
        found += [*(tool._agent_instance for tool in nested), *map(_target_of, one.handoffs)]
        if any(_is_guarded_agent(tool) and not _is_guarded(tool) for tool in nested):
            one.tools = [
                _guarded(tool) if isinstance(tool, FunctionTool) and _is_guarded_agent(tool) else tool
                for tool in one.tools
            ]


def _pauses(ctx: ToolContext[Any]) -> bool:
    """Return whether the tool is an agent that waits for a decision, so that what it returned is not a result.

    The SDK itself checks it in this way.
    """
    if ctx.tool_call is None:
        return False
    nested = peek_agent_tool_run_result(ctx.tool_call, scope_id=get_agent_tool_state_scope(ctx))
    return bool(getattr(nested, "interruptions", None))


def _own(tool: Any) -> FunctionTool:
    """Return a tool of amends as a tool of the SDK; the runtime has its body."""
    if not hasattr(tool, "__amends__"):
        raise amends.UsageError(
            f"{getattr(tool, 'name', tool)!r} is neither a FunctionTool nor declared with amends.tool: its calls "
            "cannot be recorded",
            hint="to use it unrecorded, pass it to the agent beside the result of amends_tools",
        )

    async def invoke(ctx: ToolContext[Any], arguments: str) -> Any:
        run = _current()
        run.for_agent()
        return _result_for_sdk(await run.answer(tool.name, arguments, tool_call_id=ctx.tool_call_id), [], raises=False)

    return FunctionTool(
        name=tool.name,
        description=(tool.__doc__ or "").strip(),
        params_json_schema=dict(tool.schema),
        on_invoke_tool=invoke,
        strict_json_schema=False,
        needs_approval=_gate(tool.name, False),
    )


def _repeatable(tool: FunctionTool) -> FunctionTool:
    """Return the tool with the argument ``again_because``, which never reaches its body."""
    schema = tool.params_json_schema
    kind: Any = ["string", "null"] if tool.strict_json_schema else "string"
    shown = {**schema.get("properties", {}), REPEAT: {"type": kind, "description": WHY_AGAIN}}
    required = [*schema.get("required", []), *([REPEAT] if tool.strict_json_schema else [])]
    return replace(tool, params_json_schema={**schema, "properties": shown, "required": required})


Approves = bool | Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]


def _gate(
    name: str, own: Approves, tool: FunctionTool | None = None
) -> Callable[[RunContextWrapper[Any], dict[str, Any], str], Awaitable[bool]]:
    """Return a function that tells whether the SDK pauses before a call: if the ledger or the tool itself requires it."""

    async def needs_approval(ctx: RunContextWrapper[Any], args: dict[str, Any], call_id: str) -> bool:
        run, is_agent = _current(), tool is not None and _is_guarded_agent(tool)
        try:
            if await run.approval_for(name, args, tool_call_id=call_id, agent=is_agent) is not None:
                return True
        except amends.Error:
            pass  # the call itself gets the same error, as text for the model
        return await own(ctx, args, call_id) if callable(own) else own

    setattr(needs_approval, GUARDED, True)  # the SDK copies `on_invoke_tool` when it copies a tool, but not this
    return needs_approval


def _result_for_sdk(answer: amends.Answer, returned: list[Any], *, raises: bool) -> Any:
    """Return the tool's own value, or the text for the model; raise the tool's error if the program wants to see it."""
    if answer.status == "done":
        return returned[-1] if returned else answer.value
    if raises and answer.error is not None and not isinstance(answer.error, amends.Error):
        raise answer.error
    return answer.text


def _as_json(arguments: str, args: dict[str, Any]) -> str:
    """Return the arguments for the SDK: the original text, unless a person has approved edited ones."""
    try:
        is_same = json.loads(arguments or "{}") == args
    except ValueError:
        is_same = False
    return arguments if is_same else to_json(args).decode()


def _no_message(tool: FunctionTool, error: Exception, arguments: str) -> None:
    """Return no message for the model: the ledger already has the error."""


# ---- The run around a turn


class _Turn:
    """The run of one turn, and its end. ``paused``: what releases the run if the agent pauses; None: it was joined."""

    def __init__(self, run: amends.AsyncRun, paused: _Pausing | None) -> None:
        self._run, self._paused = run, paused

    async def before_end(self, result: RunResultBase) -> str:
        """Return what the model must be told before it may stop; empty: it may, or it only pauses."""
        return "" if getattr(result, "interruptions", None) else await self._run.before_end()

    def end(self, result: RunResultBase) -> None:
        """Record the output; raise if the agent only pauses."""
        if self._paused is None:
            return
        if interruptions := getattr(result, "interruptions", None):
            raise self._paused.because(self._run.id, interruptions)
        self._run.output = to_jsonable_python(result.final_output, fallback=str)


def _told(result: RunResultBase, text: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the input and the options with which the agent goes on, told what is missing."""
    if options.get("session") is not None or options.get("conversation_id"):
        return text, options  # the conversation is kept elsewhere
    if options.get("previous_response_id") or options.get("auto_previous_response_id"):
        return text, {**options, "previous_response_id": result.last_response_id}
    return [*result.to_input_list(), {"role": "user", "content": text}], options


def _continued(result: RunResultStreaming, turn: _Turn, options: dict[str, Any]) -> list[RunResultStreaming]:
    """Let the stream go on if the model must be told something before it may stop; return the streams that there are."""
    streams, first = [result], result.stream_events

    async def stream_events() -> AsyncIterator[Any]:
        async for event in first():
            yield event
        if len(streams) == 1 and result.run_loop_exception is None and (text := await turn.before_end(result)):
            more, again = _told(result, text, options)
            streams.append(Runner.run_streamed(result.last_agent, more, **again))
        for second in streams[1:]:
            async for event in second.stream_events():
                yield event
            for one in fields(second):  # the caller has the first result, and reads the output there
                setattr(result, one.name, getattr(second, one.name))

    result.stream_events = stream_events  # type: ignore[method-assign]
    return streams


class _Pausing:
    """Swallows the exception that releases the run when the agent pauses, so that the caller gets the result."""

    def __init__(self) -> None:
        self._because: amends.Waiting | None = None

    def because(self, run_id: str, interruptions: list[ToolApprovalItem]) -> amends.Waiting:
        """Return the exception to raise inside the run's block: a pause is not an end."""
        names = ", ".join(sorted({item.tool_name or "a tool" for item in interruptions}))
        self._because = amends.Waiting(f"the agent waits for a decision about {names}", run_id=run_id)
        return self._because

    def __enter__(self) -> _Pausing:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return error is not None and error is self._because


def _as_decided(state: RunState[Any], report: amends.Report) -> None:
    """Make the state agree with the ledger: an approval that only the state has does not count.

    A call that a person rejected counts as approved here, so that it runs and is answered with the reason. A rejection
    by the program itself stays.
    """
    known = _states_of(report)
    undecided = {call_id for call_id, call_state in known.items() if call_state == "held"}
    # There is no public way to revoke an approval. Those of an agent that is a tool are in the state inside this one.
    owners = [state._find_nested_approval_state(item) for item in state.get_interruptions()]
    contexts = [one._context for one in (state, *(owner[0] for owner in owners if owner is not None))]
    records = [record for one in contexts if one is not None for record in one._approvals.values()]
    for record in records:
        if isinstance(record.approved, list):
            record.approved = [one for one in record.approved if one not in undecided]
    refused = {one for record in records if isinstance(record.rejected, list) for one in record.rejected}
    for item in state.get_interruptions():
        if item.call_id in known and item.call_id not in undecided | refused:
            state.approve(item)


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


def _is_body_of(name: str, call_id: str) -> bool:
    try:
        call = amends.current_call()
    except NoRun:
        return False
    return (call.tool, call.tool_call_id) == (name, call_id)


def _is_inside(run_id: str | None) -> bool:
    """Return whether a run is already open. In a replay, the run with this id is opened again as it was recorded."""
    try:
        run = amends.current_run()
    except NoRun:
        return False
    return not (run.awaits_opening and run.id == run_id)


def _thread_of(options: dict[str, Any]) -> tuple[str, ...]:
    """Return a tag for the conversation of the turn."""
    session = options.get("session")
    thread = options.get("conversation_id") if session is None else getattr(session, "session_id", None)
    return () if thread is None else (f"thread:{thread}",)
