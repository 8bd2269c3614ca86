"""Pydantic AI: each agent run is a run of amends, and its tool calls are recorded in the ledger.

``AmendsCapability`` is all that an agent needs. ``AmendsToolset`` wraps one toolset, inside a run that the program
opens. A call that waits for a person raises the framework's own ``ApprovalRequired``; an approval in the framework only
makes amends check again: the ledger decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Literal

from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, ToolRetryError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

import amends
from amends.errors import NoRun

REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
CAUSES_MAX: Final = 20
"""How many causes of an error are searched for a timeout."""

ENDED: Final = ("committed", "rolled_back", "abandoned")

Execute = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass
class AmendsCapability(AbstractCapability[AgentDepsT], Generic[AgentDepsT]):
    """One run of amends around each agent run: it commits when the agent ends, and is rolled back if it fails.

    The run has the id of the agent run (``agent.run(run_id=...)``), so a turn that was killed is resumed when it is
    started again with the same id; a turn that was paused is resumed with the id it had. If a run is already open, its
    calls join that run.

    A call with an effect that failed, and was not made good when the agent ends, takes the run back: ``RolledBack`` is
    raised, after the pivot ``RunBlocked``; not so with ``options={"on_open_failure": "commit"}``. A model that is about
    to stop with something missing is told once what that is, and what stopping does, if its output may be retried.
    """

    rt: amends.AsyncRuntime
    run_id: str | None = None
    """The id of the run, instead of that of the agent run."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``rt.run``: ``tags``, ``budgets``, ``recover``, ``principal``, ``requires``, ``on_open_failure``, …"""
    repeats: bool | None = None
    """Whether a model gets ``again_because``, to repeat a call on purpose. Default: the runtime's setting."""

    def __post_init__(self) -> None:
        _ = self.rt.schemas(repeats=self.repeats)  # raises if the runtime does not allow it

    async def wrap_run(
        self, ctx: RunContext[AgentDepsT], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Run the agent inside its run of amends."""
        if _is_inside(self.run_id or ctx.run_id):
            _join(self.options.get("on_open_failure"))
            return await handler()
        thread, is_back = f"thread:{ctx.conversation_id}", bool(_open_calls(ctx.messages))
        run_id = self.run_id or (await self._paused(thread) if is_back else None) or ctx.run_id
        # If the model has seen results, a run that was rolled back meanwhile must not start again.
        again = "raise" if is_back and _has_answers(ctx.messages) else "again"
        tags = (*self.options.get("tags", ()), thread)
        options = {"if_rolled_back": again, "on_open_failure": "rollback", **self.options, "tags": tags}
        paused, result = amends.Waiting("the agent waits for a decision", run_id=run_id), None
        try:
            async with self.rt.run(run_id, history=is_back, **options) as run:
                result = await handler()
                if isinstance(result.output, DeferredToolRequests):
                    raise paused  # a pause is not an end: release the run as it is
                run.output = to_jsonable_python(result.output, fallback=str)
        except amends.Waiting as waits:
            if waits is not paused or result is None:
                raise
        return result

    async def after_output_process(
        self, ctx: RunContext[AgentDepsT], *, output_context: OutputContext, output: Any
    ) -> Any:
        """Tell a model that is about to stop what is missing, once."""
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
        again = call.args_as_dict().get(REPEAT) if self._offers(tool_def.name) else None
        return await _guarded(tool_def.name, args, ctx.tool_call_id, handler, again=again)

    async def prepare_tools(self, ctx: RunContext[AgentDepsT], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Return the tools as the model sees them."""
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

    async def _paused(self, thread: str) -> str | None:
        """Return the newest run of this conversation that has not ended, or else the newest.

        If all have ended, the conversation was already resumed or rolled back before. An older run would be wrong:
        its record is of another turn.
        """
        newest = None
        async for info in self.rt.runs(f'tag:"{thread}"'):
            if info.state not in ENDED:
                return info.id
            newest = newest or info.id
        return newest


@dataclass
class AmendsToolset(WrapperToolset[AgentDepsT], Generic[AgentDepsT]):
    """A toolset whose calls each run at most once in the current run: open one around it with ``rt.run``."""

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AgentDepsT], tool: ToolsetTool[AgentDepsT]
    ) -> Any:
        """Run the call at most once."""
        _join(None)

        async def execute(args: dict[str, Any]) -> Any:
            return await self.wrapped.call_tool(name, args, ctx, tool)

        return await _guarded(name, tool_args, ctx.tool_call_id, execute)


def wake(messages: Sequence[ModelMessage]) -> DeferredToolResults:
    """Return what resumes a paused conversation: every call without an answer is requested again.

    This approves nothing. The ledger has the decisions; a call that is still undecided pauses again.
    """
    return DeferredToolResults(approvals=dict.fromkeys(_open_calls(messages), True))


# ---- One call


async def _guarded(
    name: str, args: dict[str, Any], call_id: str | None, execute: Execute, *, again: str | None = None
) -> Any:
    if _is_body_of(name, call_id):
        return await execute(args)  # a wrapped toolset of a wrapped agent: record it once
    returned: list[Any] = []
    deferred: list[Exception] = []

    async def body(**given: Any) -> Any:
        try:
            returned.append(await execute(given))
        except (ApprovalRequired, CallDeferred) as pause:  # raised by the tool itself, which has done nothing yet
            deferred.append(pause)
            raise amends.NoEffect("the tool itself asked to be called later") from pause
        except (ModelRetry, ToolRetryError) as error:
            if _timed_out(error):  # the framework says "try again", but the call may have happened
                raise TimeoutError(str(error)) from error
            raise
        return returned[-1]

    run = _current()
    answer = await run.answer(name, args, handler=body, tool_call_id=call_id, again=again)
    if deferred:
        raise deferred[-1]
    if answer.status == "done":
        return returned[-1] if returned else answer.value
    if answer.status in ("replayed", "staged"):
        return answer.text
    if answer.error is not None and not isinstance(answer.error, amends.Error):
        raise answer.error
    if isinstance(answer.error, amends.Held) and answer.error.approval is not None:
        asked: amends.Approval = answer.error.approval
        raise ApprovalRequired({"approval": asked.id, "digest": asked.digest, "why": asked.rule, "run": run.id})
    raise ToolFailed(answer.text)


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


def _is_inside(run_id: str | None) -> bool:
    """Return whether a run is already open. In a replay, the run with this id is opened again as it was recorded."""
    try:
        run = amends.current_run()
    except NoRun:
        return False
    return not (run.awaits_opening and run.id == run_id)
