"""Pydantic AI: each agent run is a run of amends, and its tool calls are recorded in the ledger.

``AmendsCapability`` is all that an agent needs. ``AmendsToolset`` wraps one toolset, inside a run that the program
opens. A call that waits for a person raises the framework's own ``ApprovalRequired``; an approval in the framework only
makes amends check again: the ledger decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any, Final, Generic, Literal, get_args, get_origin, get_type_hints
from uuid import UUID
from weakref import WeakKeyDictionary

from pydantic import BaseModel, TypeAdapter
from pydantic_ai import AgentRunResult, RunContext, ToolReturn
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, WrapModelRequestHandler
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, ToolRetryError, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.output import NativeOutput, OutputContext, PromptedOutput, TextOutput, ToolOutput
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_json, to_jsonable_python

import amends
from amends.adapters import agents_run_by
from amends.errors import ApprovalVoid, NoRun, RunNotFound, Suspended, some_in_words

log = logging.getLogger("amends")

REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
CAUSES_MAX: Final = 20
"""How many causes of an error are searched for a timeout."""
DEPTH_MAX: Final = 32
"""How deep an argument, or a result's metadata, is read."""
CALLS_READ_MAX: Final = 10_000
"""How many calls are read, newest first, to find the run of a history whose messages do not name it."""
ENDED: Final = ("committed", "rolled_back", "abandoned")
HARMLESS: Final = frozenset(
    {
        "WebSearchTool", "XSearchTool", "CodeExecutionTool", "WebFetchTool", "ImageGenerationTool", "FileSearchTool",
        "AdvisorTool", "ToolSearchTool",
    }
)  # fmt: skip
"""Tools of a provider that change nothing outside of it: nobody is warned of them."""
NO_NAME: Final = (
    "an agent run has no run_id: if its process is killed and it is begun again, everything in it is done a second time. "
    "Give each user turn a name of its own: agent.run(prompt, run_id=...)"
)

Execute = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass
class AmendsCapability(AbstractCapability[AgentDepsT], Generic[AgentDepsT]):
    """One run of amends around each agent run: it commits when the agent ends, and is rolled back if it fails.

    The run has the id of the agent run (``agent.run(run_id=...)``), so a turn that was killed is resumed when it is
    started again with the same id. An agent run that continues a history (after a pause, or after it was stopped)
    continues the run of its last turn. If a run of this runtime is already open, its calls join that run.

    An agent that is stopped (its task is cancelled, its stream or its iteration is left early) suspends its run: nothing
    staged starts, nothing is rolled back, and it can be continued.

    A call with an effect that failed, and was not made good when the agent ends, takes the run back: ``RolledBack`` is
    raised, after the pivot ``RunBlocked``; not so with ``options={"on_open_failure": "commit"}``. A model that is about
    to stop with something missing is told once what that is, and what stopping does, if its output may be retried.

    What cannot be recorded (undeclared output functions, tools that the provider or the program executes) is named in a
    warning; with ``strict`` it raises ``UsageError`` instead.
    """

    rt: amends.AsyncRuntime
    run_id: str | None = None
    """The id of the run, instead of that of the agent run."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``rt.run``: ``tags``, ``budgets``, ``recover``, ``principal``, ``requires``, ``on_open_failure``, …"""
    repeats: bool | None = None
    """Whether a model gets ``again_because``, to repeat a call on purpose. Default: the runtime's setting."""
    strict: bool = False
    """Whether to refuse what cannot be recorded instead of warning of it."""

    def __post_init__(self) -> None:
        if not isinstance(self.rt, amends.AsyncRuntime):
            raise amends.UsageError(
                f"AmendsCapability needs an AsyncRuntime, not {type(self.rt).__name__}: the framework is async inside",
                hint="make an amends.AsyncRuntime with the same url and tools; agent.run_sync works with it, too",
            )
        _ = self.rt.schemas(repeats=self.repeats)  # raises if the runtime does not allow it
        self._warned: set[str] = set()

    def get_default_run_id(self) -> str | None:
        """Return None: the framework makes an id. It asks only if the program gave none."""
        _unnamed.set(_Unnamed())
        return None

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Run the agent inside its run of amends."""
        for name in _output_functions(getattr(ctx.agent, "output_type", None)):
            self._look_at_output(name)
        is_unnamed = _is_unnamed(ctx.run_id)
        if _is_inside(self.rt, self.run_id or ctx.run_id):
            _join(self.options.get("on_open_failure"))
            sub_agent = _sub_agent_here()
            if sub_agent is not None:
                return await sub_agent.work(handler)
            joined = await handler()
            await self._drop_denied(_current(), joined)
            return joined
        thread = f"thread:{ctx.conversation_id}"
        named, is_back = await self._named(ctx, thread, is_unnamed=is_unnamed)
        # If the model has seen results, a run that was rolled back meanwhile must not start again.
        again = "raise" if is_back and _has_answers(ctx.messages) else "again"
        tags = (*self.options.get("tags", ()), thread)
        options = {"if_rolled_back": again, "on_open_failure": "rollback", **self.options, "tags": tags}
        paused = Suspended("the agent waits for a decision, or was stopped", run_id=named)
        left: BaseException | None = None
        result: AgentRunResult[Any] | None = None
        _turn.set(turn := _Turn())
        try:
            async with self.rt.run(named, history=is_back, **options) as run:
                try:
                    result = await handler()
                except asyncio.CancelledError as stop:
                    left = stop
                    await turn.end_calls()
                    raise paused from None  # stopped, which is not a failure: release the run as it is
                except Exception as error:
                    if not is_back or turn.has_begun:
                        raise
                    left = error
                    raise paused from None  # the framework refuses this history: nobody has touched what waits
                await self._drop_denied(run, result)
                if isinstance(result.output, DeferredToolRequests):
                    waiting = [*result.output.calls, *result.output.approvals]
                    await _note_requests(run, [(one.tool_call_id, one.tool_name) for one in waiting])
                    raise paused  # a pause is not an end: release the run as it is
                if run.resumed and turn.ctx is not None:
                    await _reach_staged(run, turn.ctx)
                run.output = to_jsonable_python(result.output, fallback=str)
        except amends.Waiting as waits:
            if waits is not paused:
                raise
        if left is not None:
            raise left
        assert result is not None, "an agent that returned has a result"
        return result

    async def before_model_request(
        self, ctx: RunContext[AgentDepsT], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Look at what the provider itself would execute."""
        for tool in request_context.model_request_parameters.native_tools:
            if (name := type(tool).__name__) not in HARMLESS:
                self._unguarded(f"{tool.unique_id} ({name})", "the provider executes it")
        for name in _output_functions_in(ctx):
            self._look_at_output(name)
        _turn.get().has_begun = True
        return request_context

    async def wrap_output_process(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        output_context: OutputContext,
        output: Any,
        handler: Callable[[Any], Awaitable[Any]],
    ) -> Any:
        """Run a declared output function at most once."""
        if not output_context.has_function:
            return await handler(output)
        name = output_context.function_name or "an output function"
        if not self._look_at_output(name):
            return await handler(output)
        if ctx.partial_output:  # of a stream: the function is called once, with all of it
            return await handler(output) if self.rt.kind_of(name) == "read" else output
        answer, returned = await _record_output(name, output, output_context, handler)
        if returned:
            return returned[-1]
        if answer.status in ("done", "replayed"):
            return _as_returned(ctx, name, answer.value)
        if answer.error is not None and (answer.waits or not isinstance(answer.error, amends.Error)):
            raise answer.error
        raise ModelRetry(answer.text)

    async def on_run_error(self, ctx: RunContext[AgentDepsT], *, error: BaseException) -> AgentRunResult[Any]:
        """Raise what a sub-agent waits for, if it has no ``DeferredToolRequests`` among its outputs: the one who asked has."""
        sub_agent = _sub_agent_here()
        if sub_agent is not None and sub_agent.waits is not None and isinstance(error, UserError):
            raise sub_agent.waits from error
        raise error

    async def after_output_process(
        self, ctx: RunContext[AgentDepsT], *, output_context: OutputContext, output: Any
    ) -> Any:
        """Tell a model that is about to stop what is missing, once."""
        _turn.get().ctx = ctx
        if ctx.partial_output or ctx.last_attempt:
            return output
        if text := await _current().before_end():
            raise ModelRetry(text)
        return output

    async def wrap_tool_execute(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: dict[str, Any],
        handler: Execute,
    ) -> Any:
        """Run the call at most once."""
        _turn.get().has_begun = True
        _as_woken(ctx, tool_def)
        again = call.args_as_dict().get(REPEAT) if self._offers(tool_def.name) else None
        tool = None if ctx.tool_manager is None else (ctx.tool_manager.tools or {}).get(tool_def.name)
        is_agent = self.rt.kind_of(tool_def.name) is None and self._is_agent(tool)
        bound = _Bound(args, tool, tool_def, ctx)
        with _turn.get().calling():
            return await _guarded(
                tool_def.name, bound, ctx.tool_call_id, handler, again=again, agent=is_agent, rt=self.rt
            )

    def get_wrapper_toolset(self, toolset: AbstractToolset[AgentDepsT]) -> AbstractToolset[AgentDepsT]:
        """Return the tools, which are told what ``wake`` means."""
        return _NotApproved(toolset)

    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Let the model of a sub-agent that begins again say what it said before, word for word."""
        sub_agent = _sub_agent_here()
        if sub_agent is None:
            return await handler(request_context)
        return await sub_agent.say(ctx.run_id, lambda: handler(request_context))

    def _is_agent(self, tool: ToolsetTool[Any] | None) -> bool:
        """Return whether this tool does nothing but run agents that have this capability, too."""
        return bool(agents_run_by(_function_of(tool), self._guards))

    def _guards(self, value: object) -> bool:
        if not isinstance(value, AbstractAgent):
            return False
        return any(
            isinstance(one, AmendsCapability) and one.rt is self.rt for one in value.root_capability.capabilities
        )

    async def prepare_tools(self, ctx: RunContext[AgentDepsT], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Return the tools as the model sees them."""
        for one in tool_defs:
            if one.kind == "external":
                self._unguarded(one.name, "the program executes it outside of the agent")
        return [_repeatable(one) if self._offers(one.name) else one for one in tool_defs]

    def _offers(self, tool: str) -> bool:
        return self.repeats is not False and self.rt.may_repeat(tool)

    async def before_tool_validate(
        self,
        ctx: RunContext[AgentDepsT],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: str | dict[str, Any],
    ) -> str | dict[str, Any]:
        """Return the arguments without ``again_because``, which the tool does not know."""
        if not self._offers(tool_def.name) or REPEAT not in (given := call.args_as_dict()):
            return args
        return {name: value for name, value in given.items() if name != REPEAT}

    # ---- What it holds

    def _look_at_output(self, name: str) -> bool:
        """Return whether an output function can be recorded; warn of it, or refuse it, if not."""
        if self.rt.kind_of(name) is not None:
            return True
        self._unguarded(
            name, 'it is an output function, and not declared; declare it (kind="read" if it has no effect)'
        )
        return False

    def _unguarded(self, name: str, why: str) -> None:
        words = f"amends cannot record {name}: {why}"
        if self.strict:
            raise amends.UsageError(words, hint="give the agent a function tool instead, or leave strict=True away")
        self._warn(f"{words}. What it does is not in the ledger, may be done twice and is never taken back")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)

    # ---- Its run

    async def _drop_denied(self, run: amends.AsyncRun, result: AgentRunResult[Any]) -> None:
        """Withdraw what was asked of a person about calls that were denied in the framework: the model was told so.

        Nobody will ask for them again, and a run never commits while a call of it waits.
        """
        denied = _denied_in(result.all_messages())
        if not denied:
            return
        report = await run.report()
        by, why = report.run.principal or "the program", "denied in the framework"
        rt = self.rt if run.tenant is None else self.rt.scoped(tenant=run.tenant)
        waiting = {call.id for call in _calls_of(report, denied) if call.state in ("held", "ready") and not call.staged}
        if not waiting:
            return
        async for asked in rt.approvals("state:pending"):
            if asked.call.id in waiting:
                waiting.discard(asked.call.id)
                with suppress(ApprovalVoid):  # its deadline has passed: it is rejected
                    await rt.withdraw(asked.id, by=by, why=why)
        for call_id in waiting:  # it waits for a decision about a repeat or a budget
            await rt.decide(call_id, "refuse", by=by, why=why)

    async def _named(self, ctx: RunContext[AgentDepsT], thread: str, *, is_unnamed: bool) -> tuple[str | None, bool]:
        """Return the id of the run, and whether the agent goes on with it, knowing what happened before."""
        turn = _last_turn(ctx.messages)
        goes_on = bool(turn) and (ctx.prompt is None or bool(_open_calls(ctx.messages)))
        if self.run_id is not None:
            return self.run_id, goes_on
        if goes_on:
            found = await self._run_of(turn, thread)
            if found is not None:
                return found, True
            if is_unnamed and _calls_in(turn) and not any(one.run_id for one in turn):
                raise amends.UsageError(
                    "no run has the calls of this history, and its messages have no ids: a new run would do again what "
                    "they did",
                    hint="keep the framework's messages as they are, or name the run: agent.run(run_id=...)",
                )
        elif turn and is_unnamed:
            # After a stop the user says something new: the run goes on. One that has ended does not.
            info = await self._known(turn)
            if info is not None and info.state not in ENDED:
                return info.id, True
        if is_unnamed:
            self._warn(NO_NAME)
        return ctx.run_id, goes_on

    async def _known(self, turn: Sequence[ModelMessage]) -> amends.RunInfo | None:
        """Return the run that has the id of an agent run of this turn: the first, since later ones continued its run."""
        for run_id in dict.fromkeys(one.run_id for one in turn if one.run_id):
            with suppress(RunNotFound):
                return (await self.rt.report(run_id)).run
        return None

    async def _run_of(self, turn: Sequence[ModelMessage], thread: str) -> str | None:
        """Return the id of the run that this turn was in; None: none is known.

        By the ids in its messages. Where those were lost (a UI keeps its own form of them), by its calls.
        """
        known = await self._known(turn)
        if known is not None:
            return known.id
        wanted = _calls_in(turn)
        if not wanted:
            return None
        found: Counter[str] = Counter()
        others: set[str] = set()
        seen = 0
        async for call in self.rt.calls():
            seen += 1
            asked, tool = _request_of(call)
            if asked and asked in wanted and wanted[asked].tool_name == tool:
                above, _, _ = call.run_id.rpartition(f"/{tool}:")  # an undeclared tool, or an agent, has its own run
                found[above or call.run_id] += 1
                if call.tool != ASKED and not _fits(call.args, wanted[asked].args_as_dict()):
                    others.add(above or call.run_id)
            if seen == CALLS_READ_MAX:
                break
        most = {run_id for run_id, count in found.items() if count == max(found.values())}
        if len(most) > 1:  # a model that numbers its calls
            most = most - others or most
            infos = [(await self.rt.report(run_id)).run for run_id in sorted(most)]
            here = [info for info in infos if thread in info.tags] or infos
            open_ = [info for info in here if info.state not in ENDED] or here
            most = {info.id for info in open_}
        if len(most) > 1:
            raise amends.UsageError(
                f"{len(most)} runs have the calls of this history: {some_in_words(sorted(most))}",
                hint="name the run: AmendsCapability(rt, run_id=...)",
            )
        return most.pop() if most else None


@dataclass
class AmendsToolset(WrapperToolset[AgentDepsT], Generic[AgentDepsT]):
    """A toolset whose calls each run at most once in the current run: open one around it with ``rt.run``."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Run the call at most once."""
        _join(None)
        ctx = _as_woken(ctx, tool.tool_def)

        async def execute(args: dict[str, Any]) -> Any:
            return await self.wrapped.call_tool(name, args, ctx, tool)

        return await _guarded(name, _Bound(tool_args, tool, tool.tool_def, ctx), ctx.tool_call_id, execute)


def wake(messages: Sequence[ModelMessage]) -> DeferredToolResults:
    """Return what resumes a paused conversation: every call without an answer is requested again.

    This approves nothing. The ledger has the decisions; a call that is still undecided pauses again. So does one for which
    the framework or the tool itself asks: say that it is approved with ``DeferredToolResults`` of your own.
    """
    waiting = _open_calls(messages)
    return DeferredToolResults(
        approvals=dict.fromkeys(waiting, True), metadata={call_id: dict(WOKEN) for call_id in waiting}
    )


WOKEN: Final = {"amends": "woken"}
"""The metadata of a call that is requested again, and that nobody has approved in the framework."""


class _NotApproved(WrapperToolset[AgentDepsT]):
    """The tools, which are told of a call that was only woken that nobody has approved it."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        return await self.wrapped.call_tool(name, tool_args, _as_woken(ctx, tool.tool_def), tool)


def _as_woken(ctx: RunContext[AgentDepsT], tool: ToolDefinition) -> RunContext[AgentDepsT]:
    """Return the context of a call as its tool may see it; raise ``ApprovalRequired`` for one that the framework guards."""
    if ctx.tool_call_metadata != WOKEN:
        return ctx
    if tool.kind == "unapproved":
        raise ApprovalRequired
    return replace(ctx, tool_call_approved=False, tool_call_metadata=None)


class _Unnamed:
    """An agent run to which the program gave no id; ``has_begun``: it has begun, and the next one may have an id."""

    has_begun = False


_unnamed: ContextVar[_Unnamed | None] = ContextVar("amends.adapters.pydantic_ai.unnamed", default=None)
"""The agent run without an id that begins. Its task has a copy of the context, and the same object."""


class _Turn:
    """What has happened in one agent run."""

    has_begun = False
    """Whether the model was asked, or a tool was called."""
    ctx: RunContext[Any] | None = None
    """The context of its last step, which has the tools."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Know the task of a call while it runs."""
        task = asyncio.current_task()
        assert task is not None, "a tool is called on an event loop"
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def end_calls(self) -> None:
        """Cancel the calls that still run: the framework does so only when the run has been left, which waits for them."""
        waiting = list(self._tasks)
        for task in waiting:
            task.cancel()
        with suppress(asyncio.CancelledError):
            if waiting:
                await asyncio.wait(waiting)


_turn: ContextVar[_Turn] = ContextVar("amends.adapters.pydantic_ai.turn", default=_Turn())  # noqa: B039 (of nobody)


# ---- One call


async def _guarded(
    name: str,
    bound: _Bound,
    call_id: str | None,
    execute: Execute,
    *,
    again: str | None = None,
    agent: bool = False,
    rt: amends.AsyncRuntime | None = None,
) -> Any:
    if _is_body_of(name, call_id) or _is_agent_of(name, call_id):
        return await execute(bound.args)  # a wrapped toolset of a wrapped agent: record it once
    returned: list[Any] = []
    deferred: list[Exception] = []

    async def body(**given: Any) -> Any:
        if not _is_body_of(name, call_id):  # it is an agent, in a child run of its own
            returned.append(await _as_sub_agent(name, call_id, lambda: execute(bound.rebuilt(given))))
            await _keep_content(run, {"agent": name}, returned[-1])
            return to_jsonable_python(_returned(returned[-1]), fallback=str)
        try:
            returned.append(await execute(bound.rebuilt(given)))
        except (ApprovalRequired, CallDeferred) as pause:  # raised by the tool itself, which has done nothing yet
            deferred.append(pause)
            raise amends.NoEffect("the tool itself asked to be called later") from pause
        except (ModelRetry, ToolRetryError) as error:
            if _timed_out(error):  # the framework says "try again", but the call may have happened
                raise TimeoutError(str(error)) from error
            raise
        await _keep_content(run, {"call": amends.current_call().id}, returned[-1])
        return _returned(returned[-1])

    body.__annotations__["return"] = bound.returns
    run = _current()
    answer = await run.answer(
        name, bound.asked, handler=body, tool_call_id=call_id, again=again, schema=bound.schema, agent=agent
    )
    around = _sub_agent_here()
    if around is not None and isinstance(answer.error, amends.Waiting):
        around.waits = answer.error
    if deferred:
        if around is not None:
            around.waits = amends.Waiting(f"{name} asked to be called later", run_id=run.id)
        raise deferred[-1]
    if answer.status in ("done", "replayed"):
        return returned[-1] if returned else await _as_recorded(run, answer, (name, bound.asked, call_id), rt)
    if answer.status == "staged":
        return answer.text
    if answer.error is not None and not isinstance(answer.error, amends.Error):
        raise answer.error
    if isinstance(answer.error, amends.Held) and answer.error.approval is not None:
        asked: amends.Approval = answer.error.approval
        raise ApprovalRequired({"approval": asked.id, "digest": asked.digest, "why": asked.rule, "run": run.id})
    if type(answer.error) is amends.Waiting:  # the sub-agent waits for something that the ledger does not know
        raise ApprovalRequired({"why": str(answer.error), "run": run.id})
    raise ToolFailed(answer.text)


def _returned(value: Any) -> Any:
    """Return a tool's own result: a ``ToolReturn`` has content for the model besides."""
    return value.return_value if isinstance(value, ToolReturn) else value


# ---- What a tool returned besides its result


CONTENT: Final = "content:pydantic_ai"
"""The name under which is recorded what a tool returned besides its result: content, files and metadata."""
NOT_KEPT: Final = "What it returned besides is not in the record."
_contents: WeakKeyDictionary[amends.AsyncRun, dict[str, Any]] = WeakKeyDictionary()
"""Of each open run: what is recorded, by call or child run. Read once: nobody else adds to a run that is open here."""


async def _keep_content(run: amends.AsyncRun, of: dict[str, str], value: Any) -> None:
    """Record what a tool returned besides its result, before that: a process that is lost then must not lose it.

    Who stops the agent meanwhile stops it afterwards: the tool has run, and its call would become a doubt.
    """
    task, is_stopped = asyncio.ensure_future(_record_content(run, of, value)), False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_stopped = True
    if is_stopped and (mine := asyncio.current_task()) is not None:
        mine.cancel()


async def _record_content(run: amends.AsyncRun, of: dict[str, str], value: Any) -> None:
    try:
        here = _current()
        packed = _packed(value, here.holds_secret)
        if packed is None:
            return
        async with await here.begin(CONTENT, of, kind="read") as attempt:
            if not attempt.replayed:
                await attempt.succeed(packed)
    except Exception as error:  # the tool has run: this is a loss, not its failure
        log.warning("what %s returned besides its result is not recorded: %s", next(iter(of.values())), error)
        return
    if run in _contents:
        _contents[run][of.get("call") or here.id] = packed


def _packed(value: Any, tells_secret: Callable[[str], bool]) -> dict[str, Any] | None:
    """Return the content, files and metadata of a result as they are recorded; None: it has none."""
    whole = value if isinstance(value, ToolReturn) else ToolReturn(return_value=value)
    shown = ToolReturnPart("", whole.return_value, "")
    if not (shown.files or whole.content or whole.metadata is not None or whole.tools):
        return None
    packed: dict[str, Any] = {"tools": whole.tools}
    with suppress(Exception):  # an object of the program's own
        kept = _plain(whole.metadata)
        if not tells_secret(to_json(kept, fallback=str, bytes_mode="base64").decode()):
            packed["metadata"] = kept
    with suppress(Exception):  # as the framework itself keeps messages
        parts: list[ModelRequestPart] = [
            shown if shown.files else ToolReturnPart("", None, ""),
            UserPromptPart(whole.content or ""),
        ]
        text = ModelMessagesTypeAdapter.dump_json([ModelRequest(parts=parts)]).decode()
        if not tells_secret(text):
            packed |= {"parts": text, "sha256": sha256(text.encode()).hexdigest()}
    return packed


async def _as_recorded(
    run: amends.AsyncRun,
    answer: amends.Answer,
    request: tuple[str, Any, str | None],
    rt: amends.AsyncRuntime | None,
) -> Any:
    """Return what the framework gets of a call that the record answers.

    If this very request was made before a crash, or in a replay, it is what the tool returned; else the model is told
    that it was done. Content and metadata are given each time: nobody else may have them.
    """
    call, (tool, asked, call_id) = answer.call, request
    is_first = answer.status == "done" or (run.resumed and call is not None and call.tool_call_id == call_id)
    is_open = answer.status == "done" or (call is not None and call.loss is None and answer.value == call.result)
    said = answer.value if is_first and is_open else answer.text
    recorded = await _content_of(run, answer, tool, asked)
    is_elsewhere = call is not None and call.run_id != run.id and not call.run_id.startswith(f"{run.id}/")
    if call is not None and is_elsewhere and rt is not None and not run._is_replay:  # of a tool with scope="ledger"
        with suppress(RunNotFound):
            recorded = dict(_contents_in(await rt.report(call.run_id))).get(call.id)
    if recorded is None:
        return said
    parts = _parts_of(recorded)
    if parts is None:
        return ToolReturn(return_value=f"{answer.text} {NOT_KEPT}", metadata=recorded.get("metadata"))
    whole, besides = parts
    if whole is not None:
        files = whole if isinstance(whole, list) else [whole]
        said = whole if is_first else ["Already done in this task; the same result:", *files]
    return ToolReturn(
        return_value=said, content=besides or None, metadata=recorded.get("metadata"), tools=recorded.get("tools")
    )


def _parts_of(recorded: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return recorded files and content; None if they were not kept as they were (redacted, or too long)."""
    text = recorded.get("parts")
    if not isinstance(text, str) or sha256(text.encode()).hexdigest() != recorded.get("sha256"):
        return None
    [request] = ModelMessagesTypeAdapter.validate_json(text)
    shown, besides = request.parts
    return getattr(shown, "content", None), getattr(besides, "content", None)


async def _content_of(run: amends.AsyncRun, answer: amends.Answer, tool: str, asked: Any) -> Mapping[str, Any] | None:
    """Return what was recorded besides the result of a call, or of an agent that was asked for this."""
    if run not in _contents:
        _contents[run] = dict(_contents_in(await run.report()))
    found = _contents[run]
    if answer.call is not None:
        return found.get(answer.call.id)
    for child in (await run.report()).children:
        if child.run.id in found and child.run.id.startswith(f"{run.id}/{tool}:") and child.run.input == asked:
            of_agent: Mapping[str, Any] = found[child.run.id]
            return of_agent
    return None


def _contents_in(report: amends.Report) -> Iterator[tuple[str, Any]]:
    for call in report.calls:
        if call.tool == CONTENT and call.state == "succeeded":
            yield call.args.get("call") or report.run.id, call.result if isinstance(call.result, Mapping) else {}
    for child in report.children:
        yield from _contents_in(child)


# ---- An agent as a tool: a child run


class _SubAgent:
    """An agent that works in the child run of a tool call: what its models said, and what it waits for."""

    def __init__(self, run: amends.AsyncRun, tool: str, call_id: str | None, said: Mapping[Place, Any]) -> None:
        self.run, self.tool, self.call_id = run, tool, call_id
        self._said = said
        self._places: dict[str | None, list[int]] = {}
        self.waits: amends.Waiting | None = None
        """What a call inside waits for, if one does."""

    async def work(self, handler: Callable[[], Awaitable[AgentRunResult[Any]]]) -> AgentRunResult[Any]:
        """Run the agent; raise what it waits for, so that its child run stays open and the one who asked waits too."""
        result = await handler()
        if isinstance(result.output, DeferredToolRequests):
            raise self.waits or amends.Waiting("the agent waits for a decision", run_id=self.run.id)
        return result

    async def say(self, agent_run: str | None, ask: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        """Return the response of the model: as it is recorded, if the agent was here before, else a new one.

        A model that is asked again says it in other words, and other words are another call that needs approval anew.
        """
        place = self._places.setdefault(agent_run, [len(self._places), 0])
        at = (place[0], place[1])
        place[1] += 1
        known = _response_of(self._said.get(at))
        if known is not None:
            return known
        attempt = await self.run.begin(SAID, {"agent": at[0], "request": at[1]}, kind="read")
        async with attempt:
            known = _response_of(attempt.result) if attempt.replayed else None
            if known is not None:
                return known
            response = await ask()
            if not attempt.replayed:
                await attempt.succeed(_recorded(self.run, response))
        return response


Place = tuple[int, int]
"""Which of the agents that a tool runs, and which of its requests to a model."""
SAID: Final = "model:pydantic_ai"
"""The name under which the responses of a sub-agent's model are recorded in its child run."""
_sub_agent: ContextVar[_SubAgent | None] = ContextVar("amends.pydantic_ai.sub_agent", default=None)


def _sub_agent_here() -> _SubAgent | None:
    """Return the sub-agent that this code is a part of: the one whose child run is the current run."""
    found = _sub_agent.get()
    try:
        return found if found is not None and found.run is amends.current_run() else None
    except NoRun:
        return None


async def _as_sub_agent(tool: str, call_id: str | None, work: Callable[[], Awaitable[Any]]) -> Any:
    """Run a tool that is an agent, inside its child run, which is the current one."""
    run = _current()
    found = _SubAgent(run, tool, call_id, _said_in(await run.report()))
    if call_id is not None:
        await _note_requests(run, [(call_id, tool)])
    before = _sub_agent.get()
    _sub_agent.set(found)
    try:
        return await work()
    finally:
        _sub_agent.set(before)


ASKED: Final = "asked:pydantic_ai"
"""The name under which is recorded which request of a model no call stands for: to an agent, or to the program."""


async def _note_requests(run: amends.AsyncRun, asked: Sequence[tuple[str, str]]) -> None:
    """Record the ids of requests that are no calls, so that a history with nothing but such requests names its run."""
    report = await run.report()
    known, number = set(_requests_in(report)), sum(call.tool == ASKED for call in report.calls)
    for call_id, tool in asked:
        if (call_id, tool) in known:
            continue
        async with await run.begin(ASKED, {"tool": tool, "number": number}, kind="read") as attempt:
            if not attempt.replayed:
                await attempt.succeed(call_id)
        number += 1


def _requests_in(report: amends.Report) -> Iterator[tuple[str | None, str]]:
    yield from map(_request_of, report.calls)
    for child in report.children:
        yield from _requests_in(child)


def _request_of(call: amends.Call) -> tuple[str | None, str]:
    """Return the id and the tool of the model's request that a call, or such a record, stands for."""
    return (call.result, call.args["tool"]) if call.tool == ASKED else (call.tool_call_id, call.tool)


def _is_agent_of(tool: str, call_id: str | None) -> bool:
    found = _sub_agent_here()
    return found is not None and (found.tool, found.call_id) == (tool, call_id)


def _said_in(report: amends.Report) -> dict[Place, Any]:
    """Return what the models of this child run have said, each as it is recorded."""
    return {
        (call.args["agent"], call.args["request"]): call.result
        for call in report.calls
        if call.tool == SAID and call.state == "succeeded"
    }


def _recorded(run: amends.AsyncRun, response: ModelResponse) -> dict[str, str] | None:
    """Return a response as it is recorded; None if a tool that it calls redacts what it says."""
    text = ModelMessagesTypeAdapter.dump_json([response]).decode()
    asked = [amends.ToolCall(call.tool_name, call.args or {}) for call in response.tool_calls]
    if run.holds_secret(text, asked):
        return None
    return {"response": text, "sha256": sha256(text.encode()).hexdigest()}


def _response_of(recorded: Any) -> ModelResponse | None:
    """Return a recorded response; None if there is none, or if it was not kept as it was (redacted, or too long)."""
    text = recorded.get("response") if isinstance(recorded, dict) else None
    if not isinstance(text, str) or sha256(text.encode()).hexdigest() != recorded.get("sha256"):
        return None
    [found] = ModelMessagesTypeAdapter.validate_json(text)
    return found if isinstance(found, ModelResponse) else None


# ---- A request in other words is the same request


class _Bound:
    """The arguments of one request: as the tool's validator returned them, and as they are recorded.

    They are recorded as plain data, with every default, and the body gets what the validator makes of the record: so a
    default that is left out and then said, ``5`` and ``"5"`` are one request, and a body that another process starts
    gets the classes that the tool expects. ``asked``: what is recorded.
    """

    def __init__(
        self, args: dict[str, Any], tool: ToolsetTool[Any] | None, tool_def: ToolDefinition, ctx: RunContext[Any]
    ) -> None:
        self.args = self.asked = args
        self.schema: Mapping[str, Any] | None = None
        """What amends reads them by, if the tool has no more than that."""
        self.returns = _returned_by(tool)
        """What the tool is annotated to return."""
        self._validate: Callable[[dict[str, Any]], dict[str, Any]] | None = None
        if tool is None:
            return

        def validate(given: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = tool.args_validator.validate_python(given, context=ctx.validation_context)
            return found

        with suppress(Exception):  # what cannot be written plainly is recorded as it is
            if _takes_anything(validate):  # a tool that has only a schema, as those of MCP servers
                self.schema = tool_def.parameters_json_schema
            elif (found := validate(plain := _plain(args))) == args or plain == args:
                self.args, self.asked, self._validate = found, plain, validate

    def rebuilt(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return recorded arguments as the tool takes them."""
        if self._validate is None:
            return given
        try:
            return self._validate(given)
        except Exception as error:  # a person has approved others than the tool takes
            raise amends.NoEffect(f"the tool does not take these arguments: {error}") from error


def _function_of(tool: ToolsetTool[Any] | None) -> Callable[..., Any] | None:
    """Return the function of a function tool, whatever its toolset calls it; None for any other tool."""
    found: Any = tool
    while found is not None and not hasattr(found, "call_func"):
        found = getattr(found, "source_tool", None)  # of toolsets that were combined
    schema = getattr(getattr(found, "call_func", None), "__self__", None)
    function: Callable[..., Any] | None = getattr(schema, "function", None)
    return function


def _returned_by(tool: ToolsetTool[Any] | None) -> Any:
    """Return the class that the record of a tool's result is read as, if its function says one."""
    try:
        hint = get_type_hints(_function_of(tool), include_extras=True).get("return", Any)
    except Exception:  # it has no function, or an annotation that names something unknown here
        return Any
    if isinstance(hint, type) and issubclass(hint, ToolReturn):
        return Any
    if get_origin(hint) is ToolReturn:
        [hint] = get_args(hint)
    return Any if "ToolReturn" in str(hint) else hint


def _takes_anything(validate: Callable[[dict[str, Any]], dict[str, Any]]) -> bool:
    try:
        return "amends:" in validate({"amends:": None})
    except Exception:
        return False


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a value as plain data, with exact decimals and bytes; raise ``TypeError`` if it has no such form."""
    if value is None or isinstance(value, Decimal | bytes) or type(value) in (bool, int, float, str):
        return value
    if depth == DEPTH_MAX:
        raise TypeError("nested too deeply")
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if isinstance(value, date | time | timedelta | UUID):
        return to_jsonable_python(value)
    if isinstance(value, BaseModel):
        return _plain(value.model_dump(by_alias=True), depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(TypeAdapter(type(value)).dump_python(value, by_alias=True), depth + 1)
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(one, depth + 1) for one in value), key=to_json)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(one, depth + 1) for name, one in value.items()}
    raise TypeError(f"{type(value).__name__} has no plain form")


# ---- Output functions


async def _record_output(
    name: str, output: Any, about: OutputContext, handler: Callable[[Any], Awaitable[Any]]
) -> tuple[amends.Answer, list[Any]]:
    """Call an output function as a call of the run; return the answer, and what the function returned if it ran."""
    returned: list[Any] = []
    asked, back = _as_arguments(output, about)

    async def body(**given: Any) -> Any:
        returned.append(await handler(output if given == asked else back(given)))
        return returned[-1]

    call_id = None if about.tool_call is None else about.tool_call.tool_call_id
    return await _current().answer(name, asked, handler=body, tool_call_id=call_id), returned


def _as_arguments(output: Any, about: OutputContext) -> tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]:
    """Return what an output function is given, by name, and how to make it of the record again."""
    if isinstance(output, BaseModel) or (is_dataclass(output) and not isinstance(output, type)):
        made = TypeAdapter(type(output))
        return _plain(output), made.validate_python
    schema = {} if about.object_def is None else about.object_def.json_schema
    names = list(schema.get("properties", ()))
    if isinstance(output, dict) and (len(names) != 1 or set(output) == set(names)):
        return {str(one): _plain_or_same(value) for one, value in output.items()}, lambda given: given
    [name] = names if len(names) == 1 else ["output"]
    return {name: _plain_or_same(output)}, lambda given: given[name]


def _plain_or_same(value: Any) -> Any:
    try:
        return _plain(value)
    except TypeError:
        return value


def _as_returned(ctx: RunContext[Any], name: str, value: Any) -> Any:
    """Return a recorded output in the class that its function returns, if that is said."""
    fn = {**_output_functions(getattr(ctx.agent, "output_type", None)), **_output_functions_in(ctx)}.get(name)
    with suppress(Exception):
        return TypeAdapter(get_type_hints(fn)["return"]).validate_python(value)
    return value


def _output_functions_in(ctx: RunContext[Any]) -> dict[str, Callable[..., Any]]:
    """Return the functions among the outputs of one agent run, which need not be those of its agent, by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name, tool in ((ctx.tool_manager and ctx.tool_manager.tools) or {}).items():
        if tool.tool_def.kind != "output":
            continue
        inner: Any = tool
        while hasattr(inner, "source_tool"):  # of toolsets that were combined
            inner = inner.source_tool
        schema = getattr(getattr(inner.toolset, "processors", {}).get(name), "_function_schema", None)
        fn = getattr(schema, "function", None)
        if fn is not None and hasattr(fn, "__name__"):
            found[fn.__name__] = fn
    return found


def _output_functions(spec: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions among the outputs of an agent, by name."""
    found: dict[str, Callable[..., Any]] = {}
    waiting = [spec]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list | tuple):
            waiting += one
        elif isinstance(one, ToolOutput):
            waiting.append(one.output)
        elif isinstance(one, NativeOutput | PromptedOutput):
            waiting.append(one.outputs)
        elif isinstance(one, TextOutput):
            waiting.append(one.output_function)
        elif callable(one) and not isinstance(one, type) and hasattr(one, "__name__"):
            found[one.__name__] = one
    return found


# ---- Messages


def _is_unnamed(run_id: str | None) -> bool:
    """Return whether the framework itself has made the id of the agent run that begins; ask once for each."""
    found = _unnamed.get()
    if found is None or found.has_begun:
        return False
    found.has_begun = True
    with suppress(ValueError):
        return UUID(run_id or "").version == 7
    return False


def _denied_in(messages: Sequence[ModelMessage]) -> set[str]:
    """Return the ids of the calls that were denied since the user last said something."""
    parts = [part for one in _last_turn(messages) if isinstance(one, ModelRequest) for part in one.parts]
    return {part.tool_call_id for part in parts if isinstance(part, ToolReturnPart) and part.outcome == "denied"}


def _calls_of(report: amends.Report, requests: set[str], *, is_inside: bool = False) -> Iterator[amends.Call]:
    """Return the calls of these requests of a model, and those of the agents that were asked by one of them."""
    inside = is_inside or any(
        call.tool == ASKED and call.result in requests for call in report.calls if report.run.parent
    )
    yield from (call for call in report.calls if inside or call.tool_call_id in requests)
    for child in report.children:
        yield from _calls_of(child, requests, is_inside=inside)


def _calls_in(turn: Sequence[ModelMessage]) -> dict[str, ToolCallPart]:
    """Return the requests of a model in these messages, by their ids."""
    responses = [one for one in turn if isinstance(one, ModelResponse)]
    return {call.tool_call_id: call for one in responses for call in one.tool_calls}


def _fits(recorded: Any, given: Any) -> bool:
    """Return whether a recorded argument can be what was given: it has more defaults, and other forms of numbers."""
    if isinstance(recorded, amends.Secret):
        return True
    if isinstance(recorded, Mapping) and isinstance(given, Mapping):
        return all(_fits(recorded[name], value) for name, value in given.items() if name in recorded)
    if isinstance(recorded, list | tuple) and isinstance(given, list | tuple):
        return len(recorded) == len(given) and all(map(_fits, recorded, given))
    texts = str(recorded).strip().lower(), str(given).strip().lower()
    with suppress(ArithmeticError):
        return Decimal(texts[0]) == Decimal(texts[1])
    return texts[0] == texts[1]


def _last_turn(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages since the user last said something."""
    for place in range(len(messages) - 1, -1, -1):
        one = messages[place]
        if isinstance(one, ModelRequest) and _is_prompt(one):
            return list(messages[place:])
    return list(messages)


def _is_prompt(request: ModelRequest) -> bool:
    """Return whether this is the user's word, and not the content of a tool's result."""
    return any(isinstance(part, UserPromptPart) for part in request.parts) and not any(
        isinstance(part, ToolReturnPart) for part in request.parts
    )


async def _reach_staged(run: amends.AsyncRun, ctx: RunContext[Any]) -> None:
    """Request again what was staged before this process had the run: the bodies come with a request."""
    manager = ctx.tool_manager
    if manager is None or manager.tools is None:
        return
    for call in (await run.report()).calls:
        tool = manager.tools.get(call.tool)
        if call.staged and tool is not None:
            again = replace(ctx, tool_name=call.tool, tool_call_id=call.tool_call_id, retry=0)
            body = _body_of(manager.toolset, tool, again, dict(call.args))
            await run.answer(call.tool, call.args, handler=body, tool_call_id=call.tool_call_id, again=call.again)


def _body_of(
    toolset: AbstractToolset[Any], tool: ToolsetTool[Any], ctx: RunContext[Any], args: dict[str, Any]
) -> Callable[..., Awaitable[Any]]:
    bound = _Bound(args, tool, tool.tool_def, ctx)

    async def body(**given: Any) -> Any:
        value = await toolset.call_tool(tool.tool_def.name, bound.rebuilt(given), ctx, tool)
        return _returned(value)

    return body


def _repeatable(tool: ToolDefinition) -> ToolDefinition:
    schema = tool.parameters_json_schema
    shown = {**schema.get("properties", {}), REPEAT: {"type": "string", "description": WHY_AGAIN}}
    return replace(tool, parameters_json_schema={**schema, "properties": shown})


def _timed_out(error: BaseException) -> bool:
    found: BaseException | None = error
    for _ in range(CAUSES_MAX):
        if found is None or isinstance(found, TimeoutError):
            break
        found = found.__cause__ or found.__context__
    return isinstance(found, TimeoutError)


def _open_calls(messages: Sequence[ModelMessage]) -> list[str]:
    """Return the ids of the calls in the last response that have no answer."""
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            return [call.tool_call_id for call in message.tool_calls if call.tool_call_id not in answered]
        if isinstance(message, ModelRequest):
            answered |= {getattr(part, "tool_call_id", "") for part in message.parts}
    return []


def _has_answers(messages: Sequence[ModelMessage]) -> bool:
    """Return whether there is a tool result since the last user prompt."""
    for message in reversed(messages):
        parts = message.parts if isinstance(message, ModelRequest) else ()
        if any(isinstance(part, ToolReturnPart) for part in parts):
            return True
        if any(isinstance(part, UserPromptPart) for part in parts):
            return False
    return False


def _join(on_open_failure: Literal["rollback", "commit"] | None) -> None:
    """Note in a run that the program has opened that an agent works in it, unless the program said what that means."""
    run = _current()
    if run.on_open_failure is None:
        run.on_open_failure = on_open_failure or "rollback"


def _current() -> amends.AsyncRun:
    run = amends.current_run()
    if not isinstance(run, amends.AsyncRun):
        raise NoRun("Pydantic AI needs an AsyncRuntime: the current run is a blocking one")
    return run


def _is_body_of(name: str, call_id: str | None) -> bool:
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
