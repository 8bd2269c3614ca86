"""Pydantic AI: each agent run is a run of amends, and its tool calls are recorded in the ledger.

``AmendsCapability`` is all that an agent needs. ``AmendsToolset`` wraps one toolset, inside a run that the program
opens. A call that waits for a person raises the framework's own ``ApprovalRequired``; an approval in the framework only
makes amends check again: the ledger decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Generic, Literal

from pydantic_ai import AgentRunResult, RunContext
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability, WrapModelRequestHandler
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed, ToolRetryError, UserError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.output import OutputContext
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool, WrapperToolset
from pydantic_core import to_jsonable_python

import amends
from amends.adapters import agents_run_by
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
            sub_agent = _sub_agent_here()
            return await handler() if sub_agent is None else await sub_agent.work(handler)
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
        is_agent = self.rt.kind_of(tool_def.name) is None and self._is_agent(ctx, tool_def.name)
        return await _guarded(tool_def.name, args, ctx.tool_call_id, handler, again=again, agent=is_agent)

    async def wrap_model_request(
        self, ctx: RunContext[AgentDepsT], *, request_context: ModelRequestContext, handler: WrapModelRequestHandler
    ) -> ModelResponse:
        """Let the model of a sub-agent that begins again say what it said before, word for word."""
        sub_agent = _sub_agent_here()
        if sub_agent is None:
            return await handler(request_context)
        return await sub_agent.say(ctx.run_id, lambda: handler(request_context))

    def _is_agent(self, ctx: RunContext[AgentDepsT], tool: str) -> bool:
        """Return whether this tool does nothing but run agents that have this capability, too."""
        functions: list[Any] = []

        def look(toolset: AbstractToolset[Any]) -> None:
            if isinstance(toolset, FunctionToolset) and tool in toolset.tools:
                functions.append(toolset.tools[tool].function)

        for toolset in () if ctx.agent is None else ctx.agent.toolsets:
            toolset.apply(look)
        return len(functions) == 1 and bool(agents_run_by(functions[0], self._guards))

    def _guards(self, value: object) -> bool:
        if not isinstance(value, AbstractAgent):
            return False
        return any(
            isinstance(one, AmendsCapability) and one.rt is self.rt for one in value.root_capability.capabilities
        )

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
    name: str,
    args: dict[str, Any],
    call_id: str | None,
    execute: Execute,
    *,
    again: str | None = None,
    agent: bool = False,
) -> Any:
    if _is_body_of(name, call_id) or _is_agent_of(name, call_id):
        return await execute(args)  # a wrapped toolset of a wrapped agent: record it once
    returned: list[Any] = []
    deferred: list[Exception] = []

    async def body(**given: Any) -> Any:
        if not _is_body_of(name, call_id):  # it is an agent, in a child run of its own
            returned.append(await _as_sub_agent(name, call_id, lambda: execute(given)))
            return to_jsonable_python(returned[-1], fallback=str)
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
    answer = await run.answer(name, args, handler=body, tool_call_id=call_id, again=again, agent=agent)
    around = _sub_agent_here()
    if around is not None and isinstance(answer.error, amends.Waiting):
        around.waits = answer.error
    if deferred:
        if around is not None:
            around.waits = amends.Waiting(f"{name} asked to be called later", run_id=run.id)
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
    if type(answer.error) is amends.Waiting:  # the sub-agent waits for something that the ledger does not know
        raise ApprovalRequired({"why": str(answer.error), "run": run.id})
    raise ToolFailed(answer.text)


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
                await attempt.succeed(_recorded(response))
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
    before = _sub_agent.get()
    _sub_agent.set(found)
    try:
        return await work()
    finally:
        _sub_agent.set(before)


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


def _recorded(response: ModelResponse) -> dict[str, str]:
    text = ModelMessagesTypeAdapter.dump_json([response]).decode()
    return {"response": text, "sha256": sha256(text.encode()).hexdigest()}


def _response_of(recorded: Any) -> ModelResponse | None:
    """Return a recorded response; None if there is none, or if it was not kept as it was (redacted, or too long)."""
    text = recorded.get("response") if isinstance(recorded, dict) else None
    if not isinstance(text, str) or sha256(text.encode()).hexdigest() != recorded.get("sha256"):
        return None
    [found] = ModelMessagesTypeAdapter.validate_json(text)
    return found if isinstance(found, ModelResponse) else None


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
