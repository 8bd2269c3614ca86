"""LangChain and LangGraph: tool calls of an agent are calls of a run, and a held call pauses the graph by an interrupt.

Pass ``AmendsMiddleware(rt)`` to ``create_agent(middleware=[...])``; its two wrappers also fit a bare ``ToolNode``.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import threading
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import is_dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from types import FunctionType, MethodType
from typing import Annotated, Any, Final, Literal, NotRequired, Self, TypeAlias, get_type_hints
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary, WeakSet

from langchain.agents.middleware import ToolRetryMiddleware
from langchain.agents.middleware.types import AgentMiddleware, AgentState, ModelRequest, PrivateStateAttr, hook_config
from langchain.agents.structured_output import AutoStrategy, ToolStrategy
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langchain_core.tracers.context import register_configure_hook
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest, msg_content_output
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt
from pydantic import BaseModel, PlainValidator, TypeAdapter, ValidationError
from pydantic.v1 import BaseModel as BaseModelV1
from pydantic.v1 import ValidationError as ValidationErrorV1

from amends import (
    Answer,
    AsyncRun,
    AsyncRuntime,
    Call,
    NoEffect,
    Report,
    RolledBack,
    Run,
    RunBlocked,
    RunInfo,
    Runtime,
    UsageError,
    Waiting,
    current_call,
    current_run,
)
from amends.adapters import agents_run_by, in_order
from amends.errors import NAMED_MAX, NOT_FINISHED, ApprovalVoid, Busy, NoRun, RunEnded, Suspended, UnknownTool
from amends.idempotency import by_schema
from amends.notify import exact
from amends.visible import visible_log

__all__ = ["AmendsMiddleware", "Turn", "TurnState"]

log = visible_log("amends")

RunId: TypeAlias = str | Callable[[RunnableConfig], str]
Recover: TypeAlias = Literal["rollback", "resume", "wait"]
OnError: TypeAlias = Literal["tell", "raise"]
OnOpenFailure: TypeAlias = Literal["rollback", "commit"]

WAKES_MAX: Final = 1_000
"""How often a graph may be resumed without a decision about one call; more is a loop."""
OURS: Final = "amends"
"""The name of the messages that amends adds in the user's place."""
USER: Final = "user"
"""Who takes back a turn that was given up: the user, by the next message."""
DOUBT: Final = "amends_doubt"
"""Marks a result that says that a call is in doubt, in its ``response_metadata``, which models are not sent."""
UNFINISHED: Final = ("open", "pivoted", "rolling_back", "blocked")
TAKEN_BACK: Final = ("rolled_back", "abandoned")
REPEAT: Final = "again_because"
WHY_AGAIN: Final = "Only if this very call was made before and is meant a second time: why."
RUNS_READ_MAX: Final = 100
"""How many runs of a thread are read, newest first, to find an unfinished one and the next number."""
HANDOFF: Final = "__handoff_destination"
"""The mark in the metadata of a tool that only hands over to another agent (langgraph-supervisor, langgraph-swarm)."""
STOPS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
"""Somebody has stopped the agent: its run is suspended, and can be resumed."""


class TurnState(AgentState[Any]):
    """What the middleware keeps in the graph's state: the run of the current turn, and the number of turns."""

    amends_run: NotRequired[Annotated[str, PrivateStateAttr]]
    amends_turn: NotRequired[Annotated[int, PrivateStateAttr]]


class GivenUp(Exception):
    """A new turn began before the last one had ended."""


class AmendsMiddleware(AgentMiddleware[TurnState, Any, Any]):
    """Makes each turn of a conversation one run: each call runs at most once, and the run commits when the agent ends.

    - ``rt``: a ``Runtime`` for ``invoke`` and ``stream``, an ``AsyncRuntime`` for ``ainvoke`` and ``astream``.
    - ``tools``: the agent's tools, if one compensates another by name, or is staged and may outlive the process.
    - ``run_id``: the id of the run, or a function of the config. Default: the thread and the number of the turn.
    - ``recover``: what a worker does with a turn whose process died. Default: ``wait`` if the graph has a checkpointer,
      because whoever resumes the thread continues it, else ``rollback``.
    - ``on_error``: whether the model is told a tool's own error (``tell``), or ``invoke`` raises it (``raise``).
    - ``requires``: what must have succeeded when the agent ends; see ``rt.run``.
    - ``on_open_failure``: what a call with an effect means that failed and was not made good when the agent ends.
      Default: the run is rolled back and ``invoke`` raises ``RolledBack``; after its pivot it is blocked and raises
      ``RunBlocked``. ``"commit"``: it is committed as it is.
    - ``deadline``: seconds after which a turn that has not ended is rolled back; see ``rt.run``.
    - ``strict``: refuse a tool that is started past the middleware (by a sub-agent without it, or by ``tool.invoke``
      in a node) with ``UsageError``. Default: it is logged as a warning, once for each tool.

    A model that is about to stop with something missing is told once what that is, and what stopping does.
    """

    state_schema = TurnState

    def __init__(
        self,
        rt: Runtime | AsyncRuntime,
        *,
        tools: Iterable[BaseTool] = (),
        run_id: RunId | None = None,
        recover: Recover | None = None,
        on_error: OnError = "tell",
        requires: Any = None,
        on_open_failure: OnOpenFailure = "rollback",
        deadline: float | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self._is_strict = strict
        self._warned: set[str] = set()
        self._outputs: set[str] = set()
        """The tools by which models gave a structured answer (``response_format``): they are no tools of the program."""
        watch(self)
        self._ends: dict[str, Any] = {"requires": requires, "on_open_failure": on_open_failure, "deadline": deadline}
        self._rt, self._given_id, self._recover, self._on_error = rt, run_id, recover, on_error
        self._open_runs, self._lock = open_runs_of(rt)
        self._reached: set[str] = set()
        self._is_compared = False
        self._fit: set[str] = set()
        """The tools whose declarations were compared with them."""
        self._reach(tools)

    def turn(self, config: RunnableConfig | None = None, *, run_id: str | None = None) -> Turn:
        """Return a block for ``with`` or ``async with`` around ``invoke``: an exception rolls the turn's run back.

        All agents and tool nodes inside it share that run, and it ends with the block. ``config`` is that of ``invoke``;
        its thread names the run, unless ``run_id`` does. Who stops (leaves a stream, cancels) suspends the run: nothing
        staged starts, nothing is taken back, and ``invoke(None, config)`` continues it.
        """
        if run_id is None and isinstance(self._given_id, str):
            run_id = self._given_id
        return Turn(self._rt, config or {}, self._forget, run_id=run_id)

    def _reach(self, tools: Iterable[BaseTool]) -> None:
        """Give the runtime bodies for what may run outside a graph: staged calls, and compensations that are tools."""
        new = {tool.name: tool for tool in tools if tool.name not in self._reached}
        if new:
            self._check(new.values())
            self._reached |= new.keys()
            is_async = isinstance(self._rt, AsyncRuntime)
            bodies = {name: as_function(tool, is_async=is_async) for name, tool in new.items()}
            self._rt.reach(bodies, described=False)

    def _check(self, tools: Iterable[BaseTool]) -> None:
        """Raise ``BadDeclaration`` if a declaration does not fit these tools of an agent."""
        names = {tool.name: tool for tool in tools}
        if not names.keys() <= self._fit:
            self._rt._host.check_arguments({name: with_parameters(tool) for name, tool in names.items()})
            self._fit |= names.keys()

    def _compare(self, tools: Sequence[BaseTool]) -> None:
        """Check these tools, which are all of an agent; the first time, say what was declared and is none of them."""
        self._check(tools)
        if not self._is_compared:
            self._is_compared = True
            self._rt._host.warn_of_unused([tool.name for tool in tools])

    def before_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """Choose the run of the turn; roll back an earlier turn that was given up, and tell the model."""
        config, rt = get_config(), self._rt
        if not isinstance(rt, Runtime):
            return self._start_turn(state, config, ()).made  # the first call says that it is the wrong colour
        thread = self._thread_to_list(config, None)
        start = self._start_turn(state, config, self._listed(thread) if thread else ())
        if (left := self._to_release(start)) is not None:
            as_blocking(left).leave(Waiting("the graph tries it again"))
        before = start.before
        if before is None:
            return start.made
        report = self._report(before)
        if report is not None and report.run.state in UNFINISHED:
            try:
                open_run = self._forget(OpenRun(before, {}))
                run = open_run.run if open_run is not None and open_run.run is not None else rt.open(before, wait=0)
                as_blocking(run).leave(GivenUp(given_up(before)))
            except (Busy, RunBlocked) as left_open:
                log.warning("%s", left_open)
                if stopped_in_doubt(report, left_open):
                    rt.rollback(before, by=USER, why=given_up(before))
            report = self._report(before)
        return self._with_notice(start.made, report, told_of_doubts(state, self._settled(state)))

    async def abefore_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """Do the same as ``before_agent`` on an event loop."""
        config, rt = get_config(), self._rt
        if not isinstance(rt, AsyncRuntime):
            return self._start_turn(state, config, ()).made
        thread = self._thread_to_list(config, None)
        start = self._start_turn(state, config, await self._alisted(thread) if thread else ())
        if (left := self._to_release(start)) is not None:
            await as_async(left).leave(Waiting("the graph tries it again"))
        before = start.before
        if before is None:
            return start.made
        report = await self._areport(before)
        if report is not None and report.run.state in UNFINISHED:
            try:
                open_run = self._forget(OpenRun(before, {}))
                run = (
                    open_run.run if open_run is not None and open_run.run is not None else await rt.open(before, wait=0)
                )
                await as_async(run).leave(GivenUp(given_up(before)))
            except (Busy, RunBlocked) as left_open:
                log.warning("%s", left_open)
                if stopped_in_doubt(report, left_open):
                    await rt.rollback(before, by=USER, why=given_up(before))
            report = await self._areport(before)
        return self._with_notice(start.made, report, told_of_doubts(state, await self._asettled(state)))

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: TurnState, runtime: Any) -> dict[str, Any] | None:
        """Tell a model that is about to stop what became of its doubts, and what is missing, once.

        Raise ``RunBlocked`` if a person must settle a doubt first: the graph stops here, and goes on here when it is resumed.
        """
        if run_id := self._to_check(state):
            self._stands(run_id, self._report(run_id))
        open_run = self._ending(state)
        if open_run is None:
            return None
        try:
            run = self._open(open_run, state)
            if open_run.outlives_invoke:
                if run._stop_in_doubt():
                    open_run.run = None
                    run = self._open(open_run, state)
                if told := told_of_doubts(state, self._settled(state)):
                    return told
            return None if was_told(state) else told_before_end(run.before_end())
        except RunBlocked:
            self._stopped_in_doubt(open_run)
            raise
        except RunEnded:  # a person has rolled it back
            return None

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: TurnState, runtime: Any) -> dict[str, Any] | None:
        """Do the same as ``after_model`` on an event loop."""
        if run_id := self._to_check(state):
            self._stands(run_id, await self._areport(run_id))
        open_run = self._ending(state)
        if open_run is None:
            return None
        try:
            run = await self._aopen(open_run, state)
            if open_run.outlives_invoke:
                if await run._stop_in_doubt():
                    open_run.run = None
                    run = await self._aopen(open_run, state)
                if told := told_of_doubts(state, await self._asettled(state)):
                    return told
            return None if was_told(state) else told_before_end(await run.before_end())
        except RunBlocked:
            self._stopped_in_doubt(open_run)
            raise
        except RunEnded:
            return None

    def after_agent(self, state: TurnState, runtime: Any) -> None:
        """Commit the run when the agent has ended, unless a block around it does that."""
        if run_id := self._to_check(state):
            self._stands(run_id, self._report(run_id))
        open_run = self._end_turn(state, get_config())
        if open_run is not None:
            try:
                self._open(open_run, state).leave()
            except RunEnded as over:  # a person has rolled it back; the model was told in the results of its calls
                log.warning("%s", over)
            finally:
                self._forget(open_run)

    async def aafter_agent(self, state: TurnState, runtime: Any) -> None:
        """Do the same as ``after_agent`` on an event loop."""
        if run_id := self._to_check(state):
            self._stands(run_id, await self._areport(run_id))
        open_run = self._end_turn(state, get_config())
        if open_run is not None:
            try:
                await (await self._aopen(open_run, state)).leave()
            except RunEnded as over:
                log.warning("%s", over)
            finally:
                self._forget(open_run)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Show the model the argument ``again_because`` where the runtime honours it, since amends speaks of it.

        Raise ``RolledBack`` if the graph was resumed, and its turn was rolled back before: no model can finish it.
        """
        if run_id := self._to_check(request.state):
            self._stands(run_id, self._report(run_id))
        return handler(self._offered(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """Do the same as ``wrap_model_call`` on an event loop."""
        if run_id := self._to_check(request.state):
            self._stands(run_id, await self._areport(run_id))
        return await handler(self._offered(request))

    def _offered(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        self._outputs |= output_tools(request.response_format)
        self._compare([one for one in request.tools if isinstance(one, BaseTool)])
        names = {one.name for one in request.tools if isinstance(one, BaseTool) and self._rt.may_repeat(one.name)}
        if not names:
            return request
        return request.override(
            tools=[repeatable(one) if isinstance(one, BaseTool) and one.name in names else one for one in request.tools]
        )

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Handled]) -> Handled:
        """Run the tool at most once, or answer from the record, or pause the graph for a person."""
        refuse_retries_behind(handler)
        body, call = Body(request, handler), request.tool_call
        if request.tool is None:
            return body.message(unknown_tool(request).for_model(), is_error=True)
        if self._only_hands_over(request.tool):
            return self._hand_over(body, request)
        bound = bound_args(request.tool, call["args"])
        if bound is None:
            return body.invalid().unrecorded()
        self._compare(request.runtime.tools)
        self._reach(tool for tool in request.runtime.tools if not needs_graph(tool))
        thread = self._thread_to_list(request.runtime.config, request.state)
        open_run = self._open_run_for(request, self._listed(thread) if thread else ())
        try:
            with open_run.lock:
                run = self._open(open_run, request.state)
            self._refuse_crossing(open_run, request)
            is_agent = self._is_agent(request.tool)
            for _ in range(WAKES_MAX):
                answer = run.answer(
                    call["name"], bound, handler=body.handler(), tool_call_id=call["id"], agent=is_agent
                )
                if body.paused_before(answer):
                    continue
                if not self._is_pause(answer, body, open_run, request):
                    result = self._result_of(answer, body)
                    if (
                        hands_over(result)
                        and self._handing_over(open_run, request.state)
                        and (text := run.before_end())
                    ):
                        return body.message(text, is_error=True)
                    return self._handed_over(result, open_run, request)
                interrupt(_interrupt_value(answer))
        except RunEnded as over:
            return body.unrecorded() if self._may_read(over, call) else body.message(over.for_model(), is_error=True)
        finally:
            if (why := self._is_last(open_run, request)) is not None:
                as_blocking(open_run.run).leave(why.error)
        raise _never_decided(call["name"])

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Handled]]
    ) -> Handled:
        """Do the same as ``wrap_tool_call`` on an event loop."""
        refuse_retries_behind(handler)
        body, call = Body(request, handler), request.tool_call
        if request.tool is None:
            return body.message(unknown_tool(request).for_model(), is_error=True)
        if self._only_hands_over(request.tool):
            return await self._ahand_over(body, request)
        bound = bound_args(request.tool, call["args"])
        if bound is None:
            return await body.invalid().aunrecorded()
        self._compare(request.runtime.tools)
        self._reach(tool for tool in request.runtime.tools if not needs_graph(tool))
        thread = self._thread_to_list(request.runtime.config, request.state)
        open_run = self._open_run_for(request, await self._alisted(thread) if thread else ())
        try:
            async with open_run.alock:
                run = await self._aopen(open_run, request.state)
            self._refuse_crossing(open_run, request)
            is_agent = self._is_agent(request.tool)
            for _ in range(WAKES_MAX):
                answer = await run.answer(
                    call["name"], bound, handler=body.ahandler(), tool_call_id=call["id"], agent=is_agent
                )
                if body.paused_before(answer):
                    continue
                if not self._is_pause(answer, body, open_run, request):
                    result = self._result_of(answer, body)
                    if (
                        hands_over(result)
                        and self._handing_over(open_run, request.state)
                        and (text := await run.before_end())
                    ):
                        return body.message(text, is_error=True)
                    return self._handed_over(result, open_run, request)
                interrupt(_interrupt_value(answer))
        except RunEnded as over:
            if self._may_read(over, call):
                return await body.aunrecorded()
            return body.message(over.for_model(), is_error=True)
        finally:
            if (why := self._is_last(open_run, request)) is not None:
                await as_async(open_run.run).leave(why.error)
        raise _never_decided(call["name"])

    def _is_agent(self, tool: BaseTool) -> bool:
        """Return whether nobody declared this tool, and it does nothing but run agents that are guarded here, too."""
        if self._rt.kind_of(tool.name) is not None:
            return False
        functions = [getattr(tool, name, None) for name in ("func", "coroutine")]
        found = [agents_run_by(function, self._guards) for function in functions if function is not None]
        return bool(found) and all(found)

    def _guards(self, value: object) -> bool:
        nodes = getattr(value, "nodes", None) if isinstance(value, Pregel) else None
        hooks = [getattr(getattr(node, "bound", None), "func", None) for node in (nodes or {}).values()]
        owners = [getattr(hook, "__self__", None) for hook in hooks]
        return any(isinstance(one, AmendsMiddleware) and one._rt is self._rt for one in owners)

    def _is_pause(self, answer: Answer, body: Body, open_run: OpenRun, request: ToolCallRequest) -> bool:
        """Return whether the graph must pause for this answer; raise the interrupt of the tool itself, if there is one."""
        waits = answer.status == "held" and getattr(answer.error, "reason", "") in ("approval", "budget")
        requested_again = isinstance(answer.error, ApprovalVoid) and answer.error.asked
        if body.bubble is None and (not (waits or requested_again) or not open_run.is_resumable):
            return False
        call_id = request.tool_call["id"]
        others = calls_in_node(request.runtime.config, request.state, call_id)
        with self._lock:
            crosses = others & (open_run.by_itself if body.bubble is None else open_run.paused)
            open_run.pausing = True
            open_run.paused.add(call_id)
            if body.bubble is not None:
                open_run.by_itself.add(call_id)
        if crosses:
            raise _would_cross(request.tool_call["name"])
        if body.bubble is not None:
            raise body.bubble
        return True

    def _refuse_crossing(self, open_run: OpenRun, request: ToolCallRequest) -> None:
        """Raise before two calls that paused in one node run again: the graph saw only the first pause."""
        call_id = request.tool_call["id"]
        others = calls_in_node(request.runtime.config, request.state, call_id) & open_run.paused
        if others and ({call_id} | others) & open_run.by_itself and call_id in open_run.paused:
            raise _would_cross(request.tool_call["name"])

    def _result_of(self, answer: Answer, body: Body) -> Handled:
        if body.started_twice is not None:
            raise body.started_twice
        if answer.status == "failed" and self._on_error == "raise" and answer.error is not None:
            raise answer.error
        return body.result_for(answer)

    def _only_hands_over(self, tool: BaseTool) -> bool:
        """Return whether this tool has no effect but to hand over to another agent, and nobody declared it otherwise."""
        return HANDOFF in (tool.metadata or {}) and self._rt.kind_of(tool.name) is None

    def _hand_over(self, body: Body, request: ToolCallRequest) -> Handled:
        """Hand over by a tool that does nothing else; the agent's run ends here, since no hook will see its end."""
        result = body.unrecorded()
        state = request.state
        open_run = self._end_turn(state, request.runtime.config) if hands_over(result) else None
        if open_run is None:
            return result
        run = self._open(open_run, state)
        if not was_told(state) and (text := run.before_end()):
            return body.message(text, is_error=True)
        self._forget(open_run)
        run.leave()
        return result

    async def _ahand_over(self, body: Body, request: ToolCallRequest) -> Handled:
        result = await body.aunrecorded()
        state = request.state
        open_run = self._end_turn(state, request.runtime.config) if hands_over(result) else None
        if open_run is None:
            return result
        run = await self._aopen(open_run, state)
        if not was_told(state) and (text := await run.before_end()):
            return body.message(text, is_error=True)
        self._forget(open_run)
        await run.leave()
        return result

    def _handing_over(self, open_run: OpenRun, state: Any) -> bool:
        """Return whether this run ends when its agent hands over, and the model was not told yet what is missing."""
        return open_run.is_agents and not was_told(state)

    def _handed_over(self, result: Handled, open_run: OpenRun, request: ToolCallRequest) -> Handled:
        """Note that the agent of this run has ended, if the result leaves its graph: no hook will see its end.

        The other calls of the same message belong to it: the run ends with the last of them.
        """
        if hands_over(result):
            open_run.is_over = open_run.is_agents
            tools = {tool.name: tool for tool in request.runtime.tools}
            open_run.awaited = {
                call["id"]
                for call in calls_beside(request.state, request.tool_call["id"])
                if (tool := tools.get(call["name"])) is not None
                and not self._only_hands_over(tool)
                and bound_args(tool, call["args"]) is not None
            }
            if (block := self._block()) is not None:
                block.reached_end = None
        return result

    def _may_read(self, over: RunEnded, call: Mapping[str, Any]) -> bool:
        """Return whether a call may run although its run has committed: a read, which the graph asks for again.

        So the result of a handover that was lost with its process is made again.
        """
        return over.state == "committed" and self._rt.kind_of(call["name"]) == "read"

    def _block(self) -> Turn | None:
        """Return the block of this runtime that this code is in, if any.

        None inside an open run: a sub-agent works in the run of its tool, and its end is not that of the block's agent.
        """
        return None if is_in_run(self._rt) else current_turn(self._rt)

    def _go_on(self) -> None:
        """Note in the block that an agent is at work that began elsewhere, and has not ended."""
        if (block := self._block()) is not None and block.reached_end is None:
            block.reached_end = False

    def _thread_to_list(self, config: RunnableConfig, state: Any) -> str:
        """Return the thread whose runs must be read before the run of this turn has a name; empty: it has one.

        ``state``: None when an agent begins. Where one agent is the whole graph, its own state has the number of the
        turn. A block around several needs the ledger: after a kill, whichever goes on first must find the same run.
        """
        block = self._block()
        if block is None or block.run_id is not None or self._given_id is not None or kept_run(state) is not None:
            return ""
        own = thread_of(config)
        thread = block.thread or own
        if thread is None or own is None or not is_resumable(config) or '"' in thread:
            return ""
        return "" if thread == own and not graph_path(config) else thread

    def _start_turn(self, state: TurnState, config: RunnableConfig, listed: Sequence[RunInfo]) -> Start:
        """Name the run of a turn that begins. ``listed``: the runs of its thread, if they were read."""
        number, before = state.get("amends_turn", 0) + 1, state.get("amends_run")
        made: dict[str, Any] = {"amends_turn": number}
        block, graph = self._block(), WATCH.graph_of(config)
        is_again = graph is not None and graph.place in graph.root.runs
        run_id: str | None
        if block is not None:
            block.reached_end, block.agent_failed = False, False
            if block.run_id is None and self._given_id is None:
                block.run_id, given_up = self._turn_of(block, config, number, listed)
                before = given_up or before
            run_id = block.run_id
        elif graph is not None and is_again:
            run_id = graph.root.runs[graph.place]
        else:
            run_id = self._own_id(config, number)
        if self._given_id is not None:
            run_id = None
        if graph is not None:
            graph.root.runs[graph.place] = run_id or ""
        own = run_id or ""
        if run_id is not None and surrounding_run(self._rt, lambda: own) is None:
            if run_id.startswith(NAMELESS):
                self._warn_nameless(config)
            made["amends_run"] = run_id
        return Start(made, None if before in (None, run_id) else before, run_id if is_again else None)

    def _own_id(self, config: RunnableConfig, number: int) -> str:
        """Return the id of the run of one agent: the thread and the number of the turn, or its place in the graph.

        Without a checkpointer there is no number: each turn would be the first.
        """
        thread = thread_of(config)
        is_kept = thread is not None and is_resumable(config)
        return f"{thread}/{graph_path(config) or number}" if is_kept else f"{NAMELESS}{uuid4().hex}"

    def _turn_of(
        self, block: Turn, config: RunnableConfig, number: int, listed: Sequence[RunInfo]
    ) -> tuple[str, str | None]:
        """Return the id of a block's run, and of a run that was given up for it."""
        thread = block.thread or thread_of(config)
        if not self._thread_to_list(config, None):
            return self._own_id(config, number), None
        unfinished = next((run.id for run in listed if run.parent is None and run.state in UNFINISHED), None)
        # A thread of the block's own names a job, and an agent that begins in it does not begin the job again.
        if unfinished is not None and (WATCH.is_resumed(config) or thread != thread_of(config)):
            return unfinished, None
        tails = [run.id.removeprefix(f"{thread}/") for run in listed if run.id.startswith(f"{thread}/")]
        return f"{thread}/{1 + max([int(one) for one in tails if one.isdecimal()], default=0)}", unfinished

    def _to_release(self, start: Start) -> Run | AsyncRun | None:
        """Return the run that an earlier attempt at this invocation has left open here, if no call is using it.

        Opened again it is a resumed run: the model has not seen what it did, and may say the same in other words.
        """
        if start.again is None:
            return None
        with self._lock:
            open_run = self._open_runs.get(start.again)
            if open_run is None or open_run.users or open_run.run is None:
                return None
            left, open_run.run = open_run.run, None
        return left

    def _warn_nameless(self, config: RunnableConfig) -> None:
        if "" in self._warned:
            return
        self._warned.add("")
        has = "has a thread_id but no checkpointer" if thread_of(config) is not None else "has no thread_id"
        log.warning(
            "this agent %s, so its runs have random ids: killed and started again, it does everything a second time. "
            "Pass a checkpointer and a thread_id, or run_id= to AmendsMiddleware or to turn()",
            has,
        )

    def _with_notice(
        self, made: dict[str, Any], before: Report | None, doubts: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Tell a model that has the results of an earlier turn that they were rolled back, or what became of its doubts.

        ``doubts``: what ``told_of_doubts`` says.
        """
        *corrected, notice = (None,) if doubts is None else doubts["messages"]
        text = "" if notice is None else notice.content
        if before is not None and before.run.state == "rolled_back" and before.calls:
            text = RolledBack("", report=before, run_id=before.run.id).for_model()
        if not text:
            return made
        return {**made, "messages": [*corrected, HumanMessage(f"Of the turn before: {text}", name=OURS)]}

    def _ending(self, state: TurnState) -> OpenRun | None:
        """Return the run of a turn whose model asks for nothing more, if any."""
        self._go_on()
        messages = messages_of(state)
        last = next(iter(reversed(messages)), None)
        has_output = isinstance(last, ToolMessage) and last.name in self._outputs and is_answered(messages)
        is_output = has_output and state.get("structured_response") is not None
        asks_nothing = isinstance(last, AIMessage) and not last.tool_calls
        if not (asks_nothing or is_output):
            return None
        config, block = get_config(), self._block()
        run = surrounding_run(self._rt, lambda: self._id_of(config, state))
        if run is not None:
            return OpenRun(run.id, config, run=run) if has_answers(state, self._outputs) else None
        if block is not None:
            if block.open_run is None and doubts_in(state):  # the turn began in another block, and stopped in doubt
                with self._lock:
                    block.run_id = self._id_of(config, state)
                    block.open_run = self._open_run(block.run_id, config)
            return block.open_run
        with self._lock:
            run_id = self._id_of(config, state)
            is_open = self._given_id is None and run_id in self._open_runs
            return self._open_run(run_id, config) if is_open or has_answers(state, self._outputs) else None

    def _stopped_in_doubt(self, open_run: OpenRun) -> None:
        """Forget a run that was left in doubt: whoever resumes the graph opens it again."""
        self._forget(open_run)
        if (block := self._block()) is not None:
            block.open_run, block.is_blocked = None, True

    def _to_check(self, state: Any) -> str:
        """Return the run of a turn that was resumed, unless it is known to stand; empty: there is nothing to check.

        A model that has seen no result can begin again: the run that it opens is the next generation.
        """
        config = get_config()
        chain = WATCH.chain_of(config)
        if chain is None or not chain.is_resumed or thread_of(config) is None:
            return ""
        if not has_answers(state, self._outputs) or surrounding_run(self._rt, lambda: self._id_of(config, state)):
            return ""
        run_id = self._id_of(config, state)
        return "" if (id(self._rt), run_id) in chain.root.standing else run_id

    def _stands(self, run_id: str, report: Report | None) -> None:
        """Raise ``RolledBack`` if this run was rolled back; else do not look again while the graph runs."""
        refuse_taken_back(report)
        if (chain := WATCH.chain_of(get_config())) is not None:
            chain.root.standing.add((id(self._rt), run_id))

    def _settled(self, state: Any) -> dict[str, Settled]:
        """Return what became of the calls that the model was told to be in doubt, as far as it is known now."""
        assert isinstance(self._rt, Runtime), "_asettled is for the other"
        found: dict[str, Settled] = {}
        for id in doubts_in(state):
            with suppress(UsageError):  # another ledger has it
                call, told = self._rt.call(id), self._rt.told(id)
                if told is not None and call.state != "in_doubt":
                    found[id] = Settled(call, told)
        return found

    async def _asettled(self, state: Any) -> dict[str, Settled]:
        assert isinstance(self._rt, AsyncRuntime), "_settled is for the other"
        found: dict[str, Settled] = {}
        for id in doubts_in(state):
            with suppress(UsageError):
                call, told = await self._rt.call(id), await self._rt.told(id)
                if told is not None and call.state != "in_doubt":
                    found[id] = Settled(call, told)
        return found

    def _end_turn(self, state: TurnState, config: RunnableConfig) -> OpenRun | None:
        if surrounding_run(self._rt, lambda: self._id_of(config, state)) is not None:
            return None  # the program ends it; or this is a sub-agent, and the one who asked goes on
        if (block := self._block()) is not None:
            block.reached_end = True
            block.is_done = block.is_done or not graph_path(config)
            return None
        with self._lock:
            run_id = self._id_of(config, state)
            # An open run has called a tool, even if a middleware has added messages after its result.
            is_open = self._given_id is None and run_id in self._open_runs
            return self._open_run(run_id, config) if is_open or has_answers(state, self._outputs) else None

    def _open_run_for(self, request: ToolCallRequest, listed: Sequence[RunInfo]) -> OpenRun:
        config, block = request.runtime.config, self._block()
        run = surrounding_run(self._rt, lambda: self._id_of(config, request.state))
        if run is not None:
            if run.on_open_failure is None:
                run.on_open_failure = self._ends["on_open_failure"]
            return OpenRun(run.id, config, run=run)
        is_agents = is_of_agent(config, request.state)
        if is_agents:
            self._go_on()
        is_agents = is_agents and block is None
        if block is None and not is_agents:
            block = self._turn_of_graph(config)
        with self._lock:
            open_run = None if block is None else block.open_run
            if block is not None and block.run_id is None:
                if listed:
                    block.run_id, _ = self._turn_of(block, config, 1, listed)
                else:
                    block.run_id = self._id_of(config, request.state)
            if open_run is None:
                run_id = self._id_of(config, request.state) if block is None else str(block.run_id)
                open_run = self._open_run(run_id, config)
                open_run.thread = open_run.thread if block is None else block.thread or open_run.thread
                open_run.is_agents = is_agents
                if is_agents:
                    self._watch_stop(config, open_run)
            if block is not None:
                block.open_run = open_run
            open_run.users += 1
            return open_run

    def _turn_of_graph(self, config: RunnableConfig) -> Turn | None:
        """Return the turn of a bare tool node without a block: it ends with the invocation of the whole graph."""
        chain = WATCH.chain_of(config)
        if chain is None or (thread_of(config) is None and self._given_id is None):
            return None
        with self._lock:
            turns = chain.root.graph_turns
            found = next((turn for turn in turns if turn.rt is self._rt), None)
            if found is None:
                found = Turn(self._rt, config, self._forget, run_id=None)
                turns.append(found)
            return found

    def _watch_stop(self, config: RunnableConfig, open_run: OpenRun) -> None:
        """Let the run of an agent without a block be left when what was invoked is left before the agent has ended."""
        chain = WATCH.chain_of(config)
        if chain is None:
            return
        turn = next((one for one in chain.root.agent_turns if one.open_run is open_run), None)
        if turn is None:
            turn = Turn(self._rt, config, self._forget)
            turn.open_run = open_run
            turn.is_nameless = self._given_id is None and (open_run.thread is None or not open_run.is_resumable)
            chain.root.agent_turns.append(turn)
        turn.agent = WATCH.graph_of(config)

    def _open_run(self, run_id: str, config: RunnableConfig) -> OpenRun:
        if run_id not in self._open_runs:
            self._open_runs[run_id] = OpenRun(run_id, config)
        return self._open_runs[run_id]

    def _id_of(self, config: RunnableConfig, state: Any) -> str:
        block = self._block()
        if block is not None and block.run_id is not None:
            return block.run_id
        if self._given_id is not None:
            return self._given_id if isinstance(self._given_id, str) else self._given_id(config)
        if (kept := kept_run(state)) is not None:
            return kept
        if (thread := thread_of(config)) is not None:
            return f"{thread}/{graph_path(config) or turns_in(state)}"
        if block is not None:
            self._warn_nameless(config)
            return f"{NAMELESS}{uuid4().hex}"
        raise UsageError(
            "this tool node has no thread, so it is not known which run its calls belong to",
            hint="put a thread_id into the config, pass run_id=, or put `with middleware.turn():` around invoke",
        )

    def _open(self, open_run: OpenRun, state: Any) -> Run:
        if open_run.run is None:
            if not isinstance(self._rt, Runtime):
                raise UsageError("this middleware has an AsyncRuntime", hint="use ainvoke, or pass it a Runtime")
            open_run.run = self._rt.open(
                open_run.run_id, **self._options(open_run, state, self._report(open_run.run_id))
            )
        return as_blocking(open_run.run)

    async def _aopen(self, open_run: OpenRun, state: Any) -> AsyncRun:
        if open_run.run is None:
            if not isinstance(self._rt, AsyncRuntime):
                raise UsageError(
                    "this middleware has a blocking Runtime", hint="use invoke, or pass it an AsyncRuntime"
                )
            open_run.run = await self._rt.open(
                open_run.run_id, **self._options(open_run, state, await self._areport(open_run.run_id))
            )
        return as_async(open_run.run)

    def _listed(self, thread: str) -> list[RunInfo]:
        """Return the newest runs of this thread."""
        assert isinstance(self._rt, Runtime), "_alisted is for the other"
        return [run for _, run in zip(range(RUNS_READ_MAX), self._rt.runs(f'tag:"thread:{thread}"'), strict=False)]

    async def _alisted(self, thread: str) -> list[RunInfo]:
        assert isinstance(self._rt, AsyncRuntime), "_listed is for the other"
        found: list[RunInfo] = []
        async for run in self._rt.runs(f'tag:"thread:{thread}"'):
            found.append(run)
            if len(found) == RUNS_READ_MAX:
                break
        return found

    def _report(self, run_id: str) -> Report | None:
        assert isinstance(self._rt, Runtime), "_areport is for the other"
        self._rt._host.ready(run_id=named(run_id))
        try:
            return self._rt.report(run_id)
        except UsageError:  # it is not in the ledger yet
            return None

    async def _areport(self, run_id: str) -> Report | None:
        assert isinstance(self._rt, AsyncRuntime), "_report is for the other"
        await self._rt._ready(named(run_id))
        try:
            return await self._rt.report(run_id)
        except UsageError:
            return None

    def _options(self, open_run: OpenRun, state: Any, known: Report | None) -> dict[str, Any]:
        """Return the options that open the run; ``known`` is its report, if the ledger has it.

        The model knows what the messages have. If it has seen results, a run that was rolled back meanwhile must not
        start again.
        """
        calls = [] if known is None else calls_in(known)
        # What a sub-agent has done is in its own conversation, not in this one.
        done = [call.tool_call_id for call in calls if call.state == "succeeded" and call.run_id in own_runs(known)]
        waiting = [call for call in calls if call.state in ("held", "ready") and not call.staged]
        open_run.pausing = any(call.state == "held" for call in waiting)  # another call has already paused the graph
        open_run.by_itself = {call.tool_call_id for call in calls if PAUSED in (call.error or "")}
        open_run.paused = open_run.by_itself | {call.tool_call_id for call in waiting}
        return {
            "tags": () if open_run.thread is None else (f"thread:{open_run.thread}",),
            "recover": self._recover
            or ("wait" if open_run.is_resumable and open_run.thread is not None else "rollback"),
            "history": call_ids(state).issuperset(done),
            "if_rolled_back": "raise" if has_answers(state, self._outputs) else "again",
            **self._ends,
        }

    def _is_last(self, open_run: OpenRun, request: ToolCallRequest) -> Leaving | None:
        """Count a call that has ended; return how to leave the run, if it was the last one before a pause or the end."""
        with self._lock:
            open_run.users -= 1
            open_run.ended.add(request.tool_call["id"])
            is_over = open_run.is_over and open_run.awaited <= open_run.ended
            if (
                open_run.run_id not in self._open_runs
                or open_run.users > 0
                or not (open_run.pausing or is_over)
                or open_run.run is None
            ):
                return None
            del self._open_runs[open_run.run_id]
        if (block := self._block()) is not None:
            block.open_run = None
        for turn in WATCH.turns_of(open_run):
            turn.open_run = None
        return Leaving(Waiting("the graph pauses") if open_run.pausing else None)

    def _unguarded(self, tool: str, where: str) -> None:
        """Refuse or report a tool that was started without this middleware, inside one of its turns."""
        text = f"{tool} was started {where}, past AmendsMiddleware: it is not recorded, and can happen twice"
        hint = (
            "give the agent that calls it middleware=[AmendsMiddleware(rt)], or call it through a ToolNode with "
            "wrap_tool_call, or declare it with kind='read' if it has no effect"
        )
        if self._is_strict:
            raise UsageError(text, hint=hint)
        if tool not in self._warned:
            self._warned.add(tool)
            log.warning("%s; %s", text, hint)

    def _forget(self, open_run: OpenRun) -> OpenRun | None:
        with self._lock:
            return self._open_runs.pop(open_run.run_id, None)


def _interrupt_value(answer: Answer) -> dict[str, Any]:
    """Return the value of the interrupt, which the graph's caller sees; the decision is made in the ledger."""
    approval, call = getattr(answer.error, "approval", None), answer.call
    shown: dict[str, Any] = {"amends": "approval", "text": answer.text}
    if call is not None:
        shown |= {"run": call.run_id, "tool": call.tool, "args": exact(dict(call.args))}
    return shown if approval is None else {**shown, "approval": approval.id, "digest": approval.digest}


def _would_cross(tool: str) -> UsageError:
    """Return the error for two pauses in one node.

    The graph assigns resume values by their order in a node, and a call that is answered from the record takes none.
    """
    return UsageError(
        f"{tool} itself pauses, in one node with another call that waits: one would get the other's answer",
        hint="use needs_approval= instead of interrupt(), or give each call a node of its own, as create_agent does",
    )


def _never_decided(tool: str) -> UsageError:
    return UsageError(f"the graph was resumed {WAKES_MAX} times, and {tool} has not been decided")


# ---- One turn of a conversation: its open run, and the block that ends it


class OpenRun:
    """One open run of this process, and how many calls are using it."""

    def __init__(self, run_id: str, config: Mapping[str, Any], *, run: Run | AsyncRun | None = None) -> None:
        self.run_id, self.run, self.thread = run_id, run, thread_of(config)
        self.is_resumable = is_resumable(config)
        self.outlives_invoke = run is None and self.is_resumable and self.thread is not None
        """Whether ``invoke(None, config)`` can go on with it: no run of the program or of a tool, and a graph that is kept."""
        self.users, self.pausing = 0, False
        self.is_agents = False
        """Whether it is the run of one agent, and no block or graph ends it."""
        self.is_over = False
        """Whether its agent has handed over to another one, and so has ended."""
        self.awaited: set[str | None] = set()
        """The ids of the other calls of the message that handed over."""
        self.ended: set[str | None] = set()
        """The ids of calls that have ended here."""
        self.paused: set[str | None] = set()
        """The ids of calls that have paused the graph."""
        self.by_itself: set[str | None] = set()
        """Those of them whose tool itself has paused the graph."""
        self.lock, self.alock = threading.Lock(), asyncio.Lock()


_open: WeakKeyDictionary[Runtime | AsyncRuntime, tuple[dict[str, OpenRun], threading.Lock]] = WeakKeyDictionary()
_opening = threading.Lock()


def open_runs_of(rt: Runtime | AsyncRuntime) -> tuple[dict[str, OpenRun], threading.Lock]:
    """Return the open runs and their lock, shared by all agents of one runtime.

    So a program that makes a new agent for each request finds the turn of an earlier agent.
    """
    with _opening:
        return _open.setdefault(rt, ({}, threading.Lock()))


class Turn:
    """One run for everything inside the block; the end of the block commits it or rolls it back."""

    def __init__(
        self,
        rt: Runtime | AsyncRuntime,
        config: Mapping[str, Any],
        forget: Callable[[OpenRun], object],
        *,
        run_id: str | None = None,
    ) -> None:
        self.rt, self._config, self._forget = rt, config, forget
        self._outer: Turn | None = None
        self._is_left = False
        self.run_id = run_id
        """The id of its run, from the first agent or tool node on."""
        self.open_run: OpenRun | None = None
        self.reached_end: bool | None = None
        """Whether the last agent inside has ended; None if there were only tool nodes."""
        self.is_done = False
        """Whether an agent has ended that is a whole graph, and not a part of one."""
        self.agent_failed = False
        """Whether a part of what was invoked has failed since the last agent began."""
        self.is_blocked = False
        """Whether its run was left because a person must settle a doubt."""
        self.only_says = False
        """Whether it does nothing but say that the newest run of its thread is blocked, or was rolled back."""
        self.last: Chain | None = None
        """The last invocation inside it."""
        self.is_nameless = False
        """Whether nobody can go on with its run: no checkpointer has the agent, or the run has no name."""
        self.agent: Chain | None = None
        """The invocation of its agent, if there is no block."""
        self.failure: BaseException | None = None
        """Why it is rolled back, if no block says so."""

    @property
    def thread(self) -> str | None:
        """The thread that was given for it."""
        return thread_of(self._config)

    def __enter__(self) -> Self:
        self._outer, self._is_left, self.is_blocked = current_turn(), False, False
        _turn.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run, why = self._left(), self._why(error)
        if run is None and isinstance(self.rt, Runtime) and (wanted := self._filter(why)):
            listed = [*islice(self.rt.runs(wanted), RUNS_READ_MAX)]
            found = self._left_open(listed, why)
            if found is None and (back := self._taken_back(listed, why)):
                self._refuse(self.rt.report(back))
            run = None if found is None else self.rt.open(found)
        if run is not None:
            as_blocking(run).leave(why)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run, why = self._left(), self._why(error)
        if run is None and isinstance(self.rt, AsyncRuntime):
            listed = (
                [one async for one in self.rt.runs(wanted)][:RUNS_READ_MAX] if (wanted := self._filter(why)) else []
            )
            found = self._left_open(listed, why)
            if found is None and (back := self._taken_back(listed, why)):
                self._refuse(await self.rt.report(back))
            run = None if found is None else await self.rt.open(found)
        if run is not None:
            await as_async(run).leave(why)

    def say_how_it_ended(self) -> None:
        """Raise ``RunBlocked`` or ``RolledBack`` if the newest run of the thread is; no other error of the ledger comes out."""
        try:
            self.__exit__(None, None, None)
        except (RunBlocked, RolledBack):
            raise
        except Exception as left:
            log.debug("%s", left)

    async def asay_how_it_ended(self) -> None:
        """Do the same as ``say_how_it_ended`` on an event loop."""
        try:
            await self.__aexit__(None, None, None)
        except (RunBlocked, RolledBack):
            raise
        except Exception as left:
            log.debug("%s", left)

    def _left(self) -> Run | AsyncRun | None:
        self._is_left = True  # no ContextVar token: the block may end in another context than it began in
        if _turn.get() is self:
            _turn.set(self._outer)
        if self.open_run is None:
            return None
        self._forget(self.open_run)
        return self.open_run.run

    def is_unended(self) -> bool:
        """Return whether its run is still open here, and take it: it has neither ended nor paused."""
        return self.open_run is not None and self._forget(self.open_run) is self.open_run

    def _filter(self, why: BaseException | None) -> str:
        """Return a filter for the run of a turn that began elsewhere, and ended here before its next tool call."""
        has_ended = why is None and self.last is not None and self.last.is_resumed and self.last.state == "ended"
        if self.thread is None or '"' in self.thread or not (has_ended or isinstance(why, Exception)):
            return ""
        return "" if isinstance(why, Waiting) else f'tag:"thread:{self.thread}"'

    def _left_open(self, listed: Sequence[RunInfo], why: BaseException | None) -> str | None:
        """Return the newest run of the thread that is open, else the newest one if it is blocked: opening it says why."""
        roots = [one for one in listed if one.parent is None]
        found = next((one.id for one in roots if one.state in ("open", "pivoted") and not self.only_says), None)
        if found is None and why is None and roots and roots[0].state == "blocked":
            return roots[0].id
        return found

    def _taken_back(self, listed: Sequence[RunInfo], why: BaseException | None) -> str | None:
        """Return the newest run of the thread if it was rolled back, and a turn with results has ended here."""
        roots = [one for one in listed if one.parent is None]
        is_back = why is None and bool(roots) and roots[0].state in TAKEN_BACK
        return roots[0].id if is_back and self.last is not None and self.last.answers else None

    def _refuse(self, report: Report) -> None:
        """Raise ``RolledBack`` if these are the calls of the turn that has ended here, and not those of an earlier one."""
        answers: Mapping[str, str] = {} if self.last is None else self.last.answers
        if any(call.tool_call_id in answers for call in calls_in(report)):
            refuse_taken_back(report)

    def _why(self, error: BaseException | None) -> BaseException | None:
        if isinstance(error, GraphBubbleUp) or self.is_blocked or (error is None and self._is_paused()):
            return Waiting("the graph pauses")
        if isinstance(error, STOPS) or (error is None and not self._has_ended()):
            return Suspended("the agent was stopped")
        return error

    def _is_paused(self) -> bool:
        """Return whether the graph waits for somebody, and was not only stopped."""
        return self.reached_end is False if self.last is None else self.last.state == "paused"

    def _has_ended(self) -> bool:
        """Return whether what was invoked in the block has ended, and was neither paused nor left in the middle."""
        if self.is_done or self.last is None:
            return self.reached_end is not False
        if self.last.state == "failed":  # and the program has caught the error
            return self.reached_end is None
        # An agent that has not ended, although its graph has, is at a breakpoint; or a node has caught its error.
        return self.last.state == "ended" and (self.reached_end is not False or self.agent_failed)

    @property
    def around(self) -> Turn | None:
        """Return this turn while its block is open, else the one around it."""
        turn: Turn | None = self
        while turn is not None and turn._is_left:
            turn = turn._outer
        return turn

    @property
    def outer(self) -> Turn | None:
        """The turn around this one."""
        return None if self._outer is None else self._outer.around


class Start:
    """How a turn begins: what is put into the state, the run that was given up, and a run that is tried again."""

    def __init__(self, made: dict[str, Any], before: str | None, again: str | None) -> None:
        self.made, self.before, self.again = made, before, again


class Leaving:
    """How a run is left: over this error, or as one that has ended."""

    def __init__(self, error: Waiting | None) -> None:
        self.error = error


_turn: ContextVar[Turn | None] = ContextVar("amends.langchain.turn", default=None)

NAMELESS: Final = "run-"
"""How the id of a run begins that has no name of its own."""


def named(run_id: str) -> str | None:
    """Return the id of a run if somebody can find it again by it: then a new ledger may be a mistake, and is a warning."""
    return None if run_id.startswith(NAMELESS) else run_id


def current_turn(rt: Runtime | AsyncRuntime | None = None) -> Turn | None:
    """Return the turn whose block this code is in, if any; with ``rt`` only one of this runtime."""
    turn = _turn.get()
    turn = None if turn is None else turn.around
    while turn is not None and rt is not None and turn.rt is not rt:
        turn = turn.outer
    return turn


def is_in_run(rt: Runtime | AsyncRuntime) -> bool:
    """Return whether this code is inside an open run of this runtime: the program's, or that of a tool."""
    try:
        return not current_run(rt).awaits_opening
    except NoRun:
        return False


def surrounding_run(rt: Runtime | AsyncRuntime, own: Callable[[], str]) -> Run | AsyncRun | None:
    """Return the run that the program has opened around the graph, or the run of the tool in which this agent runs.

    ``own`` returns the id of the turn's own run; a replay opens that run again as it was recorded. A run of another
    runtime does not count: its declarations are not those of this agent's tools.
    """
    try:
        found: Run | AsyncRun = current_run(rt)
    except NoRun:
        return None
    if found.awaits_opening:
        with suppress(UsageError):  # the turn has no id of its own
            return None if found.id == own() else found
    return found


def as_blocking(run: Run | AsyncRun | None) -> Run:
    """Return this run; raise ``UsageError`` if it is async."""
    if not isinstance(run, Run):
        raise UsageError("the run around this graph is async", hint="use ainvoke inside it")
    return run


def as_async(run: Run | AsyncRun | None) -> AsyncRun:
    """Return this run; raise ``UsageError`` if it is blocking."""
    if not isinstance(run, AsyncRun):
        raise UsageError("the run around this graph is blocking", hint="use invoke inside it")
    return run


# ---- One tool call as a body of amends, and its answer as a result of the framework


Handled: TypeAlias = ToolMessage | Command[Any]

PAUSED: Final = "the tool has paused by itself; when the graph goes on it runs from its beginning"
"""Recorded as the error of such a call, and recognized by this text when the run is opened again."""
_NOTHING: Final = object()
_PACKED: Final = "langgraph"
"""Marks a result that is not a message: a ``Command``, serialized as in the graph's own checkpoints."""
_SERDE: Final = JsonPlusSerializer()


class Body:
    """One call, which the framework runs when amends starts it."""

    def __init__(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> None:
        self._request, self._handler = request, handler
        self._outcome = _ToolOutcome()
        self._handled: Handled | None = None
        self.bubble: GraphBubbleUp | None = None
        """The interrupt or the jump out of the graph that the tool itself raised."""
        self.started_twice: UsageError | None = None

    def handler(self) -> Callable[..., Any]:
        """Return the body for a blocking run."""

        def run(**args: Any) -> Any:
            return self.run(**args)

        run.__annotations__["return"] = self._returns()
        return run

    def ahandler(self) -> Callable[..., Awaitable[Any]]:
        """Return the body for an async run."""

        async def run(**args: Any) -> Any:
            return await self.arun(**args)

        run.__annotations__["return"] = self._returns()
        return run

    def run(self, /, **args: Any) -> Any:
        """Return the result as it is recorded; raise the tool's own error, even if the framework has swallowed it."""
        try:
            with expecting(self._request):
                handled = self._handler(self._watched(args))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise self._pause() from bubble
        except UsageError:
            if self._outcome.refused is None:
                raise
            handled = None
        return self._result(handled)

    async def arun(self, /, **args: Any) -> Any:
        """Do the same as ``run`` on an event loop."""
        try:
            with expecting(self._request):
                handled = await self._handler(self._watched(args))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise self._pause() from bubble
        except UsageError:
            if self._outcome.refused is None:
                raise
            handled = None
        return self._result(handled)

    def _pause(self) -> Exception:
        """Return what the ledger is told of a pause: a call had no effect yet, an agent's child run waits."""
        try:
            is_call = current_call().tool_call_id == self._request.tool_call["id"]
        except NoRun:
            is_call = False
        return NoEffect(PAUSED) if is_call else Waiting("the agent pauses", run_id=current_run().id)

    def unrecorded(self) -> Handled:
        """Let the framework run the tool as without amends."""
        with expecting(self._request):
            handled: Handled = self._handler(self._request)
            return handled

    async def aunrecorded(self) -> Handled:
        """Do the same on an event loop."""
        with expecting(self._request):
            handled: Handled = await self._handler(self._request)
            return handled

    def invalid(self) -> Body:
        """Return a call by which the framework says what is wrong with the arguments; the tool itself cannot start."""
        asked = self._request
        assert asked.tool is not None, "only the arguments of a known tool are bound"
        return Body(asked.override(tool=_without_body(asked.tool)), self._handler)

    def paused_before(self, answer: Answer) -> bool:
        """Return whether this is only the record of a read that paused by itself: it is to run now."""
        return answer.status == "failed" and not self._outcome.has_run and PAUSED in str(answer.error)

    def result_for(self, answer: Answer) -> Handled:
        """Return the answer as a result of the framework."""
        failed = isinstance(self._handled, ToolMessage) and self._handled.status == "error"
        if self._handled is not None and answer.status == ("failed" if failed else "done"):
            return self._handled
        if answer.status not in ("done", "replayed"):
            told = self.message(answer.text, is_error=answer.is_error)
            if answer.status == "in_doubt" and answer.call is not None and answer.call.state == "in_doubt":
                told.response_metadata = {DOUBT: answer.call.id}
            return told
        call_id, value = self._request.tool_call["id"], answer.value
        was_id = getattr(answer.call, "tool_call_id", "")
        if answer.status == "replayed" and was_id != call_id:
            return renamed(value, was_id, call_id) if steers(value) else self.message(answer.text)
        # The same call of the model again: the graph has lost its result. Return it as it would have been.
        if is_handled(value):
            handled: Handled = value
            return handled
        tool = self._request.tool
        if tool is not None and tool.response_format == "content_and_artifact" and _is_pair(value):
            return self.message(msg_content_output(value[0]), artifact=value[1])
        return self.message(msg_content_output(value))

    def message(self, content: Any, *, is_error: bool = False, artifact: Any = None) -> ToolMessage:
        """Return a message to the model about this call."""
        call = self._request.tool_call
        status = "error" if is_error else "success"
        return ToolMessage(content, name=call["name"], tool_call_id=call["id"], status=status, artifact=artifact)

    def _returns(self) -> Any:
        """Return the annotation of the result, by which amends makes the recorded value what the tool returned."""
        tool = self._request.tool
        return Any if tool is None else returned_by(tool)

    def _watched(self, args: dict[str, Any]) -> ToolCallRequest:
        self._handled, self._outcome = None, _ToolOutcome()
        asked = self._request.override(tool_call={**self._request.tool_call, "args": args})
        return asked if asked.tool is None else asked.override(tool=self._outcome.through(asked.tool))

    def _result(self, handled: Any) -> Any:
        outcome = self._outcome
        self.started_twice = outcome.refused
        self._handled = handled if outcome.refused is None else None
        if outcome.error is not None:  # the framework has swallowed it, but amends must judge it
            raise outcome.error
        if is_handled(outcome.value) or (handled is not None and not isinstance(handled, ToolMessage)):
            return packed(outcome.value if handled is None else handled)
        if handled is not None and handled.status == "error":
            raise (ToolException if outcome.has_run else NoEffect)(str(handled.content))
        if outcome.value is _NOTHING:  # another middleware has answered in the tool's place
            return None if handled is None else handled.content
        tool = self._request.tool
        if tool is not None and tool.response_format == "content_and_artifact" and _is_pair(outcome.value):
            return outcome.value if _is_recordable(outcome.value[1]) else outcome.value[0]
        return outcome.value


class _ToolOutcome:
    """Keeps what a tool itself returned or raised, before the framework changes it; refuses a second start."""

    def __init__(self) -> None:
        self.has_run = False
        self.value: Any = _NOTHING
        self.error: Exception | None = None
        self.refused: UsageError | None = None

    def through(self, tool: BaseTool) -> BaseTool:
        """Return a copy of the tool that keeps its result or error here."""

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._start(tool)
            try:
                self.value = tool._run(*args, **kwargs)
            except Exception as error:
                self.error = error
                raise
            return self.value

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self._start(tool)
            try:
                self.value = await tool._arun(*args, **kwargs)
            except Exception as error:
                self.error = error
                raise
            return self.value

        return _with_bodies(tool, run, arun)

    def _start(self, tool: BaseTool) -> None:
        if self.has_run:
            self.refused = UsageError(
                f"{tool.name} was started a second time in one call, by a middleware after AmendsMiddleware",
                hint="put AmendsMiddleware last in the list, and retries into the declaration: retry=",
            )
            raise self.refused
        self.has_run = True


def _with_bodies(tool: BaseTool, run: Callable[..., Any], arun: Callable[..., Any]) -> BaseTool:
    copy = tool.model_copy()
    # A tool is a pydantic model, and these two are not fields of it.
    object.__setattr__(copy, "_run", run)
    object.__setattr__(copy, "_arun", arun)
    return copy


def _without_body(tool: BaseTool) -> BaseTool:
    @functools.wraps(tool._run)
    def run(*_: Any, **__: Any) -> Any:
        raise UsageError(f"the arguments of {tool.name} are invalid for amends, but not for LangChain")

    @functools.wraps(tool._arun)
    async def arun(*_: Any, **__: Any) -> Any:
        run()

    return _with_bodies(tool, run, arun)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2


RECORDED: Final = (str, int, float, bool, bytes, Decimal, date, datetime, time, timedelta, UUID, Enum, type(None))


def _is_recordable(value: Any) -> bool:
    """Return whether the ledger can keep a value."""
    if isinstance(value, Mapping):
        return all(_is_recordable(one) for pair in value.items() for one in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_recordable, value))
    if isinstance(value, BaseModel):
        return all(map(_is_recordable, dict(value).values()))
    if is_dataclass(value) and not isinstance(value, type):
        return all(map(_is_recordable, vars(value).values())) if hasattr(value, "__dict__") else True
    return isinstance(value, RECORDED)


# ---- What a tool returned, as it is recorded and read again


def is_handled(value: Any) -> bool:
    """Return whether a tool's result is the framework's own: a message, or a command to the graph, or several."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, ToolMessage | Command) for one in value)
    return isinstance(value, ToolMessage | Command)


def packed(value: Any) -> Any:
    """Return a result of the framework's own as JSON data, serialized as in the graph's own checkpoints."""
    try:
        kind, data = _SERDE.dumps_typed(value)
        _SERDE.loads_typed((kind, data))
    except Exception:  # the tool has run: what cannot be recorded is a loss that amends states, not a failure
        return value
    return {_PACKED: kind, "data": b64encode(data).decode()}


@functools.lru_cache(maxsize=1000)
def _as_returned(hint: Any) -> Any:
    adapter: list[TypeAdapter[Any]] = []
    if hint is not Any:
        with suppress(Exception):  # pydantic has no schema for every annotation
            adapter.append(TypeAdapter(hint))

    def read(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {_PACKED, "data"}:
            return _SERDE.loads_typed((value[_PACKED], b64decode(value["data"])))
        for one in adapter:
            with suppress(Exception):  # a tool may return something else than it says
                return one.validate_python(value, by_alias=True, by_name=True)
        return value

    return Annotated[Any, PlainValidator(read)]


def returned_by(tool: BaseTool) -> Any:
    """Return an annotation that reads a recorded result as what this tool returns."""
    fn = getattr(tool, "coroutine", None) or getattr(tool, "func", None) or tool._run
    try:
        hint = get_type_hints(fn).get("return", Any)
        return _as_returned(Any if hint in (None, type(None)) or "Command" in str(hint) else hint)
    except Exception:  # an annotation that names something unknown here, or is not hashable
        return _as_returned(Any)


def commands_in(value: Any) -> list[Command[Any]]:
    """Return the commands to the graph in a result."""
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Command)]


def hands_over(result: Any) -> bool:
    """Return whether a result leaves the graph of its agent, so that none of its hooks sees the end."""
    return any(one.graph == Command.PARENT for one in commands_in(result))


def steers(result: Any) -> bool:
    """Return whether a result says where the graph goes, which must be said each time that the tool is asked for."""
    return any(one.graph is not None or one.goto for one in commands_in(result))


def renamed(value: Any, was: Any, call_id: Any) -> Any:
    """Return a result of the framework's own as the answer to another request of the model."""
    if isinstance(value, list):
        return [renamed(one, was, call_id) for one in value]
    if isinstance(value, ToolMessage):
        return value.model_copy(update={"tool_call_id": call_id}) if value.tool_call_id == was else value
    if isinstance(value, Command) and isinstance(value.update, dict):
        messages = value.update.get("messages")
        update = {**value.update, "messages": renamed(messages, was, call_id)} if messages else value.update
        return replace(value, update=update)
    return value


# ---- The arguments of a request, as the tool's schema understands them


def bound_args(tool: BaseTool, args: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments as the tool gets them: defaults filled in, types converted, unknown ones left out.

    The same request in other words is then the same call. None: the framework will refuse them.
    """
    given = {name: value for name, value in args.items() if name != REPEAT}
    again = {REPEAT: args[REPEAT]} if REPEAT in args else {}
    schema = tool.args_schema
    try:
        if isinstance(schema, dict):
            return {**by_schema(schema, given), **again}
        if schema is None:
            return {**_defaults_of(tool, given), **again}
        model: Any = tool.tool_call_schema if needs_graph(tool) else schema
        return {**_bound_model(model, given), **again}
    except (ValidationError, ValidationErrorV1):
        return None


def _bound_model(model: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a model as JSON data; one that JSON would change (a secret, a random default) as it was given."""
    made, twin = _parsed(model, given), _parsed(model, given)
    best: tuple[int, dict[str, Any]] | None = None
    for by_alias, inside in ((False, False), (False, True), (True, True)):  # the models inside may know only aliases
        names = _names_of(model, by_alias=by_alias)
        plain, again = (_shown(_dumped(one, by_alias=inside), names, model, inside=inside) for one in (made, twin))
        with suppress(ValidationError, ValidationErrorV1):
            back = _parsed(model, plain)
            odd = {
                names[name]
                for name in names
                if plain.get(names[name]) != again.get(names[name]) or _field(made, name) != _field(back, name)
            }
            kept = {name: value for name, value in given.items() if names.get(name) in odd}
            if best is None or len(odd) < best[0]:
                best = len(odd), {**{name: value for name, value in plain.items() if name not in odd}, **kept}
    return given if best is None else best[1]


def _shown(dumped: dict[str, Any], names: Mapping[str, str], model: Any, *, inside: bool) -> dict[str, Any]:
    """Return the fields of a dumped model under these names."""
    shown = {own: names[name] for name, own in _names_of(model, by_alias=inside).items()}
    return {shown.get(name, name): value for name, value in dumped.items()}


def _parsed(model: Any, given: dict[str, Any]) -> Any:
    return model.parse_obj(given) if issubclass(model, BaseModelV1) else model.model_validate(given)


def _dumped(made: Any, *, by_alias: bool) -> dict[str, Any]:
    """Return a model as JSON data; nothing of it, if there is a class in it that JSON cannot say."""
    try:
        if isinstance(made, BaseModelV1):
            dumped = json.loads(made.json(by_alias=by_alias))
        else:
            dumped = made.model_dump(mode="json", by_alias=by_alias, warnings=False)
        found: dict[str, Any] = in_order(dumped, made)
        return found
    except Exception:
        return {}


def _names_of(model: Any, *, by_alias: bool) -> dict[str, str]:
    """Return the names that a request can give, with the names under which they are dumped."""
    fields = model.__fields__ if issubclass(model, BaseModelV1) else model.model_fields
    found: dict[str, str] = {}
    for name, field in fields.items():
        alias = field.alias or name
        shown = (getattr(field, "serialization_alias", None) or alias) if by_alias else name
        given = getattr(field, "validation_alias", None)
        found |= {name: shown, alias: shown, given if isinstance(given, str) else name: shown}
    return found


def _field(made: Any, name: str) -> Any:
    return getattr(made, name, None)


def _defaults_of(tool: BaseTool, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a tool without a schema with the defaults of its body."""
    try:
        found = inspect.signature(tool._run).parameters.values()
    except (TypeError, ValueError):
        return given
    injected = {"run_manager", "callbacks", "config", *tool._injected_args_keys}
    plain = (str, int, float, bool, type(None))
    missing = {
        one.name: one.default
        for one in found
        if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)
        and one.name not in {*given, *injected}
        and isinstance(one.default, plain)
    }
    return {**given, **missing}


def unknown_tool(request: ToolCallRequest) -> UnknownTool:
    """Return the error for a name that this agent does not have: made up by the model, or known only to the runtime."""
    return UnknownTool(request.tool_call["name"], known=sorted(tool.name for tool in request.runtime.tools))


def repeatable(tool: BaseTool) -> dict[str, Any]:
    """Return a tool as the model sees it, with the argument by which it asks for a deliberate repeat."""
    made = convert_to_openai_tool(tool)
    asked = made["function"]["parameters"]
    asked["properties"] = {**asked.get("properties", {}), REPEAT: {"type": "string", "description": WHY_AGAIN}}
    return made


def needs_graph(tool: BaseTool) -> bool:
    """Return whether a tool takes something that only a graph can give it: its state, its store, the id of the call."""
    schema = tool.args_schema
    if isinstance(schema, dict):
        return False
    fields = getattr(schema, "model_fields", None) or getattr(schema, "__fields__", {})
    return bool(tool._injected_args_keys) or bool(set(fields) - set(tool.args))


def with_parameters(tool: BaseTool) -> Callable[..., Any]:
    """Return a function with the parameters of a tool, to check its declaration; it is never called."""

    def described(**_: Any) -> None:
        raise AssertionError(f"this only describes {tool.name}")

    schema, names, is_open = tool.args_schema, {*tool.args}, False
    if isinstance(schema, dict):
        is_open = not schema.get("properties") or bool(schema.get("additionalProperties"))
    elif schema is None:
        is_open = True
    else:
        config: Any = getattr(schema, "model_config", None) or getattr(schema, "__config__", None)
        extra = config.get("extra") if isinstance(config, dict) else getattr(config, "extra", None)
        is_open = str(getattr(extra, "value", extra)) == "allow"
        names |= {*_names_of(schema, by_alias=False)} & {*_names_of(schema, by_alias=False).values()}
    ordered = [*tool.args, *sorted(names - {*tool.args})]
    found = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ordered if name.isidentifier()]
    if is_open or len(found) < len(ordered):
        found.append(inspect.Parameter("rest", inspect.Parameter.VAR_KEYWORD))
    described.__name__ = tool.name
    described.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
    return described


def as_function(tool: BaseTool, *, is_async: bool) -> Callable[..., Any]:
    """Return a tool as a plain function, to compensate another call or to run a staged one outside any graph."""

    def call(**args: Any) -> Any:
        with expecting(tool):
            return tool.invoke(args)

    async def call_async(**args: Any) -> Any:
        with expecting(tool):
            return await tool.ainvoke(args)

    made: Callable[..., Any] | Callable[..., Awaitable[Any]] = call_async if is_async else call
    names = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in tool.args if name.isidentifier()]
    made.__name__ = tool.name
    made.__signature__ = inspect.Signature(names)  # type: ignore[union-attr]
    return made


# ---- What the ledger tells


def calls_in(report: Report) -> list[Call]:
    """Return the calls of a run and of the runs inside it."""
    return [*report.calls, *(call for child in report.children for call in calls_in(child))]


def own_runs(report: Report | None) -> set[str]:
    """Return the ids of a run, and of the child runs that are one call of an undeclared tool each."""
    if report is None:
        return set()
    single = [
        child.run.id
        for child in report.children
        if any(child.run.id.startswith(f"{report.run.id}/{call.tool}:") for call in child.calls if call.kind == "pivot")
    ]
    return {report.run.id, *single}


# ---- What the config and the state of a graph tell


def thread_of(config: Mapping[str, Any]) -> str | None:
    """Return the id of the conversation, or None."""
    thread = config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def graph_path(config: Mapping[str, Any]) -> str:
    """Return the path of this graph inside other graphs; empty for the outermost."""
    return str(config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[0]


def kept_run(state: Any) -> str | None:
    """Return the id of the run that an agent has put into its state."""
    kept = state.get("amends_run") if isinstance(state, dict) else None
    return str(kept) if kept else None


def is_of_agent(config: Mapping[str, Any], state: Any) -> bool:
    """Return whether a tool node is part of an agent made by ``create_agent``, whose hooks see its end."""
    if isinstance(state, dict) and "amends_turn" in state:
        return True
    return bool(config.get("metadata", {}).get("ls_integration") == "langchain_create_agent")


def is_resumable(config: Mapping[str, Any]) -> bool:
    """Return whether a paused graph can be resumed: whether it has a checkpointer."""
    return config.get("configurable", {}).get("__pregel_checkpointer", True) is not None


def messages_of(state: Any) -> Sequence[BaseMessage]:
    """Return the messages of a state of any type."""
    if isinstance(state, list):
        return state
    found: Sequence[BaseMessage]
    found = state.get("messages", ()) if isinstance(state, Mapping) else getattr(state, "messages", ())
    return found


def turns_in(state: Any) -> int:
    """Count the messages of the user."""
    return sum(is_users(message) for message in messages_of(state))


def has_answers(state: Any, outputs: Collection[str] = ()) -> bool:
    """Return whether there is a tool result since the last message of the user; ``outputs``: of which it is none."""
    for message in reversed(messages_of(state)):
        if is_users(message):
            return False
        if isinstance(message, ToolMessage) and message.name not in outputs:
            return True
    return False


def answers_in(state: Any) -> dict[str, str]:
    """Return the tools of the results since the last message of the user, by the ids of their calls."""
    messages: object = messages_of(state)  # of any graph of this process: it may have a field of that name
    found: dict[str, str] = {}
    for message in reversed(messages) if isinstance(messages, list) else ():
        if is_users(message):
            break
        if isinstance(message, ToolMessage):
            found[message.tool_call_id] = message.name or ""
    return found


def output_tools(response_format: Any) -> set[str]:
    """Return the names of the tools by which a model gives its structured answer: they are no tools, and end its turn."""
    if isinstance(response_format, AutoStrategy):
        response_format = ToolStrategy(response_format.schema)
    return {one.name for one in response_format.schema_specs} if isinstance(response_format, ToolStrategy) else set()


def is_answered(messages: Sequence[BaseMessage]) -> bool:
    """Return whether every call of the last message of the model has its result."""
    done: set[str | None] = set()
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            return done.issuperset(call["id"] for call in message.tool_calls)
        done.add(getattr(message, "tool_call_id", None))
    return False


def is_users(message: BaseMessage) -> bool:
    """Return whether the user said this, and not amends in the user's place."""
    return isinstance(message, HumanMessage) and message.name != OURS


def was_told(state: Any) -> bool:
    """Return whether the model was told what is missing, since the last message of the user."""
    for message in reversed(messages_of(state)):
        if is_users(message):
            return False
        if isinstance(message, HumanMessage) and str(message.content).startswith(NOT_FINISHED):
            return True
    return False


def told_before_end(text: str) -> dict[str, Any] | None:
    """Return what sends the model back with this text; None if there is nothing to tell."""
    return {"messages": [HumanMessage(text, name=OURS)], "jump_to": "model"} if text else None


class Settled:
    """A call that the model was told to be in doubt, and what is known of it now."""

    def __init__(self, call: Call, told: Answer) -> None:
        self.tool, self.state, self.told = call.tool, call.state, told
        self.stands = call.state in ("succeeded", "failed", "residue")
        """Whether the answer still says how things are: nothing was taken back since."""

    @property
    def text(self) -> str:
        """What the model is told of it."""
        if self.state == "succeeded":
            result = f"its result is {self.told.text}" if self.told.status == "done" else "its result is not known"
            return f"It is now known that {self.tool} was done; {result}. Do not call it again; go on with the task."
        if self.state == "failed":
            return f"It is now known that {self.tool} was not done and changed nothing. You may call it again."
        if self.state == "residue":
            return f"Nobody could find out whether {self.tool} was done. Do not call it again; tell the user."
        return f"{self.tool} was taken back, or is being taken back. Tell the user."


def doubts_in(state: Any) -> dict[str, ToolMessage]:
    """Return the results that say that a call is in doubt, by the id of the call."""
    found = [one for one in messages_of(state) if isinstance(one, ToolMessage) and DOUBT in one.response_metadata]
    return {str(one.response_metadata[DOUBT]): one for one in found}


def told_of_doubts(state: Any, settled: Mapping[str, Settled]) -> dict[str, Any] | None:
    """Return what corrects the results of calls that are no longer in doubt and sends the model back; None: none are."""
    if not settled:
        return None
    corrected: list[BaseMessage] = []
    for message in messages_of(state):
        known = settled.get(message.response_metadata.get(DOUBT, "")) if isinstance(message, ToolMessage) else None
        if known is not None and isinstance(message, ToolMessage):
            content, is_error = (known.told.text, known.told.is_error) if known.stands else (known.text, True)
            status = "error" if is_error else "success"
            corrected.append(message.model_copy(update={"content": content, "status": status, "response_metadata": {}}))
    known_now = [one.text for one in settled.values()]
    if len(known_now) > NAMED_MAX:
        others = f"The results of {len(known_now) - NAMED_MAX:,} more calls were corrected above."
        known_now = [*known_now[:NAMED_MAX], others]
    notice = HumanMessage(" ".join(known_now), name=OURS)
    return {"messages": [*corrected, notice], "jump_to": "model"}


def refuse_taken_back(report: Report | None) -> None:
    """Raise ``RolledBack``, as when it happened, if this run was rolled back."""
    if report is None or report.run.state not in TAKEN_BACK:
        return
    run, undone = report.run, sum(call.state == "compensated" for call in calls_in(report))
    calls = f"{undone} call{'' if undone == 1 else 's'}"
    words = f"run {run.id} was rolled back ({run.goal_why}): {calls} compensated"
    if run.state == "abandoned":
        words = f"run {run.id} was abandoned ({run.goal_why}): {calls} compensated"
    raise RolledBack(words, report=report, run_id=run.id)


def given_up(run_id: str) -> str:
    """Return why a turn is rolled back that had not ended when the user sent the next message."""
    return f"turn {run_id} had not ended when the next one began"


def stopped_in_doubt(report: Report, why: Exception) -> bool:
    """Return whether a run waits for a person and then for its agent, which will not come back."""
    return isinstance(why, RunBlocked) and report.run.state == "blocked" and report.run.goal is None


def call_ids(state: Any) -> set[str | None]:
    """Return the ids of all calls in the conversation."""
    return {call["id"] for one in messages_of(state) if isinstance(one, AIMessage) for call in one.tool_calls}


def calls_in_node(config: Mapping[str, Any], state: Any, call_id: str | None) -> set[str | None]:
    """Return the ids of the other calls that run in the same node; none if each call has a node of its own."""
    path = config.get("metadata", {}).get("langgraph_path", ())
    if not path or path[0] != "__pregel_pull":
        return set()
    return {call["id"] for call in calls_beside(state, call_id)}


def calls_beside(state: Any, call_id: str | None) -> list[Any]:
    """Return the other calls of the model's last message."""
    for message in reversed(messages_of(state)):
        if isinstance(message, AIMessage):
            return [call for call in message.tool_calls if call["id"] != call_id]
    return []


# ---- What LangChain's callbacks tell: which invocation this is, how it ended, and tools that amends does not see


CHAINS_MAX: Final = 100_000
"""How many running invocations are kept in mind; more have been left without an end, and the oldest are forgotten."""
BEHIND_MAX: Final = 200
"""How many functions are searched for a middleware that repeats calls."""


class Chain:
    """One invocation of a graph, a node or another runnable.

    ``place`` says where it is in the whole: attempts at the same (by a retry policy, ``with_retry``, a fallback) have
    the same place.
    """

    def __init__(
        self,
        name: str,
        parent: Chain | None,
        *,
        ns: str,
        thread: str | None,
        run_id: UUID,
        is_retry: bool,
        is_resumed: bool,
    ) -> None:
        self.name, self.parent, self.ns, self.thread, self.run_id = name, parent, ns, thread, run_id
        self.is_idle = True
        """Whether nothing was invoked in it: its graph had ended before."""
        if parent is not None:
            parent.is_idle = False
        self.root: Chain = self if parent is None else parent.root
        self.is_resumed: bool = is_resumed or (parent is not None and parent.is_resumed)
        self.state: Literal["running", "ended", "paused", "stopped", "failed"] = "running"
        self.error: BaseException | None = None
        self.turns: tuple[Turn, ...] = ()
        """The blocks that it began in, the innermost first."""
        self.graph_turns: list[Turn] = []
        """Of a root: the turns of bare tool nodes, which end with it."""
        self.agent_turns: list[Turn] = []
        """Of a root: those of agents without a block, which are left with it if they have not ended."""
        self.runs: dict[tuple[str, ...], str] = {}
        """Of a root: the runs of agents, by their places."""
        self.standing: set[tuple[int, str]] = set()
        """Of a root that was resumed: the runs that were not rolled back when it went on, each with its runtime."""
        self.answers: Mapping[str, str] = {}
        """The results of the turn that it ended with, if it was resumed: see ``answers_in``."""
        self._slots: dict[str, dict[Any, int]] = {}
        self.place: tuple[str, ...] = (
            (str(run_id),) if parent is None else (*parent.place, parent._slot(self, is_retry=is_retry))
        )

    def _slot(self, child: Chain, *, is_retry: bool) -> str:
        """Return which of the invocations of one name this one is; a repeated node has the same namespace again."""
        slots = self._slots.setdefault(child.name, {})
        if (is_retry and slots) or self.name == "RunnableWithFallbacks":
            return f"{child.name if is_retry else ''}:{max(slots.values(), default=0)}"
        is_node = bool(child.ns) and child.ns != self.ns
        return f"{child.name}:{slots.setdefault(child.ns if is_node else child.run_id, len(slots))}"


TO_END: Final[dict[UUID, list[Turn]]] = {}
"""Turns of async tool nodes, by the root that has ended."""
IGNORED: Final[Any] = property(lambda _: True)
NOTHING_TO_END: Final[Any] = property(lambda _: not TO_END)


class _Watch(BaseCallbackHandler):
    """Sees every invocation of this process that LangChain reports; it only reads, and refuses tools if told so."""

    raise_error = True
    run_inline = True

    def __init__(self) -> None:
        self._chains: dict[UUID, Chain] = {}
        self._lock = threading.Lock()
        self._guards: WeakSet[AmendsMiddleware] = WeakSet()

    ignore_llm = IGNORED
    ignore_chat_model = IGNORED
    ignore_retriever = IGNORED
    ignore_retry = IGNORED
    ignore_custom_event = IGNORED

    def add(self, guard: AmendsMiddleware) -> None:
        """Look for tools past this middleware too."""
        with self._lock:
            self._guards.add(guard)

    def chain_of(self, config: Mapping[str, Any]) -> Chain | None:
        """Return the invocation that this config belongs to."""
        run_id = getattr(config.get("callbacks"), "parent_run_id", None)
        return None if run_id is None else self._chains.get(run_id)

    def graph_of(self, config: Mapping[str, Any]) -> Chain | None:
        """Return the invocation of the graph that this config's node belongs to."""
        found = node = self.chain_of(config)
        while found is not None and node is not None and found.ns == node.ns:
            found = found.parent
        return found

    def is_resumed(self, config: Mapping[str, Any]) -> bool:
        """Return whether the graph was resumed, and not started with a new input."""
        found = self.chain_of(config)
        return found is not None and found.is_resumed

    def turns_of(self, open_run: OpenRun) -> list[Turn]:
        """Return the turns of tool nodes that use this run."""
        with self._lock:
            roots = [chain for chain in self._chains.values() if chain.graph_turns]
        return [turn for root in roots for turn in root.graph_turns if turn.open_run is open_run]

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep in mind where this invocation is."""
        with self._lock:
            parent = None if parent_run_id is None else self._chains.get(parent_run_id)
            chain = Chain(
                str(kwargs.get("name")),
                parent,
                ns=str((metadata or {}).get("langgraph_checkpoint_ns", "")),
                thread=(metadata or {}).get("thread_id"),
                run_id=run_id,
                is_retry=any(tag.startswith("retry:attempt:") for tag in tags or ()),
                is_resumed=inputs is None or isinstance(inputs, Command),
            )
            self._chains[run_id] = chain
            if len(self._chains) > CHAINS_MAX:
                del self._chains[next(iter(self._chains))]
        turn = current_turn()
        while turn is not None:
            if not is_in_run(turn.rt):  # a sub-agent is a part of the one who asked
                chain.turns = (*chain.turns, turn)
                if parent is None or turn not in parent.turns:
                    turn.last, turn.is_done = chain, False
            turn = turn.outer

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Note how it ended, and end the turns of tool nodes that nothing else ends."""
        chain = self._ended(run_id, "ended")
        if chain is not None:
            if chain.is_resumed and (chain.parent is None or any(turn.last is chain for turn in chain.turns)):
                chain.answers = answers_in(outputs)
            self._leave_agents(chain)
            self._end_turns(chain)
            if chain.parent is None and chain.is_resumed and chain.is_idle and not chain.turns:
                self._say_how_it_ended(chain)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note how it ended; suspend the turns of tool nodes and agents: they can be resumed, also in another process."""
        if isinstance(error, GraphInterrupt):
            chain = self._chains.get(run_id)
            while chain is not None:
                chain.state, chain = "paused", chain.parent
        state: Literal["stopped", "failed"] = "stopped" if isinstance(error, STOPS) else "failed"
        chain = self._ended(run_id, state)
        if chain is not None:
            chain.error = error
            for turn in chain.turns:
                turn.agent_failed = turn.agent_failed or chain.state == "failed"
            for turn in chain.graph_turns:
                turn.reached_end = False
            self._leave_agents(chain)
            try:
                self._end_turns(chain)
            except Exception as left:  # the error of the graph itself comes out
                log.warning("%s", left)

    def _ended(self, run_id: UUID, state: Literal["ended", "stopped", "failed"]) -> Chain | None:
        with self._lock:
            chain = self._chains.pop(run_id, None)
        if chain is not None and chain.state == "running":
            chain.state = state
        return chain

    def _leave_agents(self, chain: Chain) -> None:
        """Leave the runs of agents that have not ended; roll one back that failed and that nobody can go on with."""
        left = [turn for turn in chain.agent_turns if turn.is_unended()]
        for turn in left:
            turn.reached_end = False
            if chain.state == "failed" and turn.is_nameless:
                turn.failure = chain.error
            elif chain.state == "ended" and turn.agent is not None and turn.agent.state == "failed":
                turn.failure = turn.agent.error  # somebody has caught it, and the whole went on without the agent
        chain.graph_turns = [*left, *chain.graph_turns]

    def _say_how_it_ended(self, chain: Chain) -> None:
        """Raise if a graph that had ended is resumed, and its run waits for a person, or was rolled back.

        A ledger that was never open is opened only for a graph that has results of tools which its runtime declares.
        """
        with self._lock:
            runtimes = {
                id(guard._rt): guard._rt
                for guard in self._guards
                if (host := guard._rt._host)._opened
                or (not host.was_opened and any(host.find(tool) for tool in chain.answers.values()))
            }
        for rt in runtimes.values():
            turn = Turn(rt, {"configurable": {"thread_id": chain.thread}}, lambda _: None)
            turn.last, turn.only_says = chain, True
            if isinstance(rt, Runtime):
                turn.say_how_it_ended()
            elif is_on_loop():
                TO_END.setdefault(chain.run_id, []).append(turn)

    def _end_turns(self, chain: Chain) -> None:
        for turn in chain.graph_turns:
            turn.last = chain
            if isinstance(turn.rt, AsyncRuntime):
                TO_END.setdefault(chain.run_id, []).append(turn)
            else:
                turn.__exit__(None, turn.failure, None)
        chain.graph_turns = []

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Report a tool that is started without amends where amends should see it."""
        tool, expected, told = str((serialized or {}).get("name", "")), _expected.get(), metadata or {}
        if expected is not None and expected.tool == tool:
            return
        turn, run, node = current_turn(), run_here(), str(told.get("langgraph_node", ""))
        ns = str(told.get("langgraph_checkpoint_ns", ""))
        with self._lock:
            guards = sorted(self._guards, key=lambda one: not one._is_strict)  # a set: in no order of its own
        for guard in guards:
            host = guard._rt._host
            is_inside = (turn is not None and turn.rt is guard._rt) or (run is not None and run._host is host)
            spec = host.find(tool)
            if spec is not None and (spec.kind == "read" or spec.signature is not None):
                continue  # it has no effect, or records itself
            if spec is None and (not is_inside or not node or (expected is not None and expected.ns == ns)):
                continue  # nobody's business, or a part of the tool that is running
            if spec is not None and not is_inside and (not node or not host._opened):
                continue
            guard._unguarded(tool, f"in node {node}" if node else "by the program")
            return


class _AsyncEnds(AsyncCallbackHandler):
    """Ends the turns of async tool nodes that the other handler has seen end."""

    raise_error = True
    run_inline = True
    ignore_llm = IGNORED
    ignore_chat_model = IGNORED
    ignore_retriever = IGNORED
    ignore_retry = IGNORED
    ignore_custom_event = IGNORED
    ignore_agent = IGNORED
    ignore_chain = NOTHING_TO_END

    async def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """End them."""
        for turn in TO_END.pop(run_id, ()):
            if turn.only_says:
                await turn.asay_how_it_ended()
            else:
                await turn.__aexit__(None, turn.failure, None)

    async def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Suspend them."""
        for turn in TO_END.pop(run_id, ()):
            try:
                await turn.__aexit__(None, turn.failure, None)
            except Exception as left:
                log.warning("%s", left)


WATCH: Final = _Watch()
_watching: ContextVar[Any] = ContextVar("amends.langchain.watch", default=WATCH)
ENDS: Final = _AsyncEnds()
_ending: ContextVar[Any] = ContextVar("amends.langchain.ends", default=ENDS)
_hooks: list[ContextVar[Any]] = []


def watch(guard: AmendsMiddleware) -> None:
    """Let LangChain report to amends from now on."""
    WATCH.add(guard)
    with _opening:
        if not _hooks:
            _hooks.extend((_watching, _ending))
            for one in _hooks:
                register_configure_hook(one, inheritable=True)


class Expected:
    """A tool that amends has started, or that it lets start."""

    def __init__(self, tool: str, ns: str) -> None:
        self.tool, self.ns = tool, ns


_expected: ContextVar[Expected | None] = ContextVar("amends.langchain.expected", default=None)


@contextmanager
def expecting(what: ToolCallRequest | BaseTool) -> Iterator[None]:
    """Say that this tool is started by amends, or with its knowledge."""
    if isinstance(what, BaseTool):
        expected = Expected(what.name, "")
    else:
        ns = what.runtime.config.get("configurable", {}).get("checkpoint_ns", "")
        expected = Expected(what.tool_call["name"], str(ns))
    token = _expected.set(expected)
    try:
        yield
    finally:
        _expected.reset(token)


def is_on_loop() -> bool:
    """Return whether this code runs on an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def run_here() -> Run | AsyncRun | None:
    """Return the run that this code is in, if any."""
    try:
        found: Run | AsyncRun = current_run()
    except NoRun:
        return None
    return found


def refuse_retries_behind(handler: Any) -> None:
    """Raise ``UsageError`` if a middleware after this one starts tools again: amends would not see it."""
    waiting, seen = [handler], 0
    while waiting and seen < BEHIND_MAX:
        one, seen = waiting.pop(), seen + 1
        if isinstance(one, MethodType):
            if isinstance(one.__self__, ToolRetryMiddleware):
                raise UsageError(
                    "ToolRetryMiddleware is after AmendsMiddleware: it would start a tool again, unseen by amends",
                    hint="remove it, and put retries into the declaration: amends.declare(..., retry=...)",
                )
            one = one.__func__
        if isinstance(one, FunctionType):
            waiting += [cell.cell_contents for cell in one.__closure__ or () if is_filled(cell)]
            waiting += [one.__wrapped__] if hasattr(one, "__wrapped__") else []


def is_filled(cell: Any) -> bool:
    """Return whether a variable of a function's surroundings has a value."""
    try:
        return bool(cell.cell_contents) or True
    except ValueError:
        return False
