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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal, NotRequired, Self, TypeAlias
from uuid import uuid4
from weakref import WeakKeyDictionary

from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr, hook_config
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.pregel import Pregel
from langgraph.types import Command, interrupt

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
    Runtime,
    UsageError,
    Waiting,
    current_call,
    current_run,
)
from amends.adapters import agents_run_by
from amends.errors import NOT_FINISHED, ApprovalVoid, Busy, NoRun, RunEnded, UnknownTool
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
UNFINISHED: Final = ("open", "pivoted", "rolling_back", "blocked")


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
    ) -> None:
        super().__init__()
        self._ends: dict[str, Any] = {"requires": requires, "on_open_failure": on_open_failure}
        self._rt, self._given_id, self._recover, self._on_error = rt, run_id, recover, on_error
        self._open_runs, self._lock = open_runs_of(rt)
        is_async = isinstance(rt, AsyncRuntime)
        rt.reach({tool.name: as_function(tool, is_async=is_async) for tool in tools})

    def turn(self, config: RunnableConfig | None = None) -> Turn:
        """Return a block for ``with`` or ``async with`` around ``invoke``: an exception rolls the turn's run back.

        All agents and tool nodes inside it share that run, and it ends with the block. ``config`` is that of ``invoke``.
        """
        return Turn(self._rt, config or {}, self._forget)

    def before_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """Choose the run of the turn; roll back an earlier turn that was given up, and tell the model."""
        made, rt = self._start_turn(state), self._rt
        before = state.get("amends_run")
        if before is None or before == made.get("amends_run") or not isinstance(rt, Runtime):
            return made
        report = self._report(before)
        if report is not None and report.run.state in UNFINISHED:
            try:
                open_run = self._forget(OpenRun(before, {}))
                run = open_run.run if open_run is not None and open_run.run is not None else rt.open(before, wait=0)
                as_blocking(run).leave(GivenUp(f"turn {before} had not ended when the next one began"))
            except (Busy, RunBlocked) as left:
                log.warning("%s", left)
            report = self._report(before)
        return self._with_notice(made, report)

    async def abefore_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """Do the same as ``before_agent`` on an event loop."""
        made, rt = self._start_turn(state), self._rt
        before = state.get("amends_run")
        if before is None or before == made.get("amends_run") or not isinstance(rt, AsyncRuntime):
            return made
        report = await self._areport(before)
        if report is not None and report.run.state in UNFINISHED:
            try:
                open_run = self._forget(OpenRun(before, {}))
                run = (
                    open_run.run if open_run is not None and open_run.run is not None else await rt.open(before, wait=0)
                )
                await as_async(run).leave(GivenUp(f"turn {before} had not ended when the next one began"))
            except (Busy, RunBlocked) as left:
                log.warning("%s", left)
            report = await self._areport(before)
        return self._with_notice(made, report)

    @hook_config(can_jump_to=["model"])
    def after_model(self, state: TurnState, runtime: Any) -> dict[str, Any] | None:
        """Tell a model that is about to stop what is missing, once."""
        open_run = self._ending(state)
        try:
            return None if open_run is None else told_before_end(self._open(open_run, state).before_end())
        except RunEnded:  # a person has rolled it back
            return None

    @hook_config(can_jump_to=["model"])
    async def aafter_model(self, state: TurnState, runtime: Any) -> dict[str, Any] | None:
        """Do the same as ``after_model`` on an event loop."""
        open_run = self._ending(state)
        try:
            return (
                None if open_run is None else told_before_end(await (await self._aopen(open_run, state)).before_end())
            )
        except RunEnded:
            return None

    def after_agent(self, state: TurnState, runtime: Any) -> None:
        """Commit the run when the agent has ended, unless a block around it does that."""
        open_run = self._end_turn(state)
        if open_run is not None:
            try:
                self._open(open_run, state).leave()
            except RunEnded as over:  # a person has rolled it back; the model was told in the results of its calls
                log.warning("%s", over)
            finally:
                self._forget(open_run)

    async def aafter_agent(self, state: TurnState, runtime: Any) -> None:
        """Do the same as ``after_agent`` on an event loop."""
        open_run = self._end_turn(state)
        if open_run is not None:
            try:
                await (await self._aopen(open_run, state)).leave()
            except RunEnded as over:
                log.warning("%s", over)
            finally:
                self._forget(open_run)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Handled]) -> Handled:
        """Run the tool at most once, or answer from the record, or pause the graph for a person."""
        body, call = Body(request, handler), request.tool_call
        if request.tool is None:
            return body.message(unknown_tool(request).for_model(), is_error=True)
        open_run = self._open_run_for(request)
        try:
            with open_run.lock:
                run = self._open(open_run, request.state)
            self._refuse_crossing(open_run, request)
            is_agent = self._is_agent(request.tool)
            for _ in range(WAKES_MAX):
                answer = run.answer(
                    call["name"], call["args"], handler=body.run, tool_call_id=call["id"], agent=is_agent
                )
                if not self._is_pause(answer, body, open_run, request):
                    return self._result_of(answer, body)
                interrupt(_interrupt_value(answer))
        except RunEnded as over:
            return body.message(over.for_model(), is_error=True)
        finally:
            if self._is_last(open_run):
                as_blocking(open_run.run).leave(Waiting("the graph pauses"))
        raise _never_decided(call["name"])

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Handled]]
    ) -> Handled:
        """Do the same as ``wrap_tool_call`` on an event loop."""
        body, call = Body(request, handler), request.tool_call
        if request.tool is None:
            return body.message(unknown_tool(request).for_model(), is_error=True)
        open_run = self._open_run_for(request)
        try:
            async with open_run.alock:
                run = await self._aopen(open_run, request.state)
            self._refuse_crossing(open_run, request)
            is_agent = self._is_agent(request.tool)
            for _ in range(WAKES_MAX):
                answer = await run.answer(
                    call["name"], call["args"], handler=body.arun, tool_call_id=call["id"], agent=is_agent
                )
                if not self._is_pause(answer, body, open_run, request):
                    return self._result_of(answer, body)
                interrupt(_interrupt_value(answer))
        except RunEnded as over:
            return body.message(over.for_model(), is_error=True)
        finally:
            if self._is_last(open_run):
                await as_async(open_run.run).leave(Waiting("the graph pauses"))
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
        if answer.status == "failed" and self._on_error == "raise" and answer.error is not None:
            raise answer.error
        return body.result_for(answer)

    def _start_turn(self, state: TurnState) -> dict[str, Any]:
        config, number = get_config(), state.get("amends_turn", 0) + 1
        thread = thread_of(config)
        # Without a checkpointer there is no number: each turn would be the first.
        is_kept = thread is not None and is_resumable(config)
        run_id = f"{thread}/{graph_path(config) or number}" if is_kept else f"run-{uuid4().hex}"
        around = surrounding_run(lambda: run_id)
        if around is None and (block := current_turn()) is not None:
            block.reached_end = False
        if self._given_id is not None or around is not None:
            return {"amends_turn": number}
        return {"amends_turn": number, "amends_run": run_id}

    def _with_notice(self, made: dict[str, Any], before: Report | None) -> dict[str, Any]:
        """Tell a model that has the results of an earlier turn that they were rolled back."""
        if before is None or before.run.state != "rolled_back" or not before.calls:
            return made
        text = RolledBack("", report=before, run_id=before.run.id).for_model()
        return {**made, "messages": [HumanMessage(f"Of the turn before: {text}", name=OURS)]}

    def _ending(self, state: TurnState) -> OpenRun | None:
        """Return the run of a turn whose model asks for nothing more and was not told yet what is missing, if any."""
        last = next(iter(reversed(messages_of(state))), None)
        if not isinstance(last, AIMessage) or last.tool_calls or was_told(state):
            return None
        config, block = get_config(), current_turn()
        run = surrounding_run(lambda: self._id_of(config, state))
        if run is not None:
            return OpenRun(run.id, config, run=run) if has_answers(state) else None
        if block is not None:
            return block.open_run
        with self._lock:
            run_id = self._id_of(config, state)
            is_open = self._given_id is None and run_id in self._open_runs
            return self._open_run(run_id, config) if is_open or has_answers(state) else None

    def _end_turn(self, state: TurnState) -> OpenRun | None:
        config = get_config()
        if surrounding_run(lambda: self._id_of(config, state)) is not None:
            return None  # the program ends it; or this is a sub-agent, and the one who asked goes on
        if (block := current_turn()) is not None:
            block.reached_end = True
            return None
        with self._lock:
            run_id = self._id_of(config, state)
            # An open run has called a tool, even if a middleware has added messages after its result.
            is_open = self._given_id is None and run_id in self._open_runs
            return self._open_run(run_id, config) if is_open or has_answers(state) else None

    def _open_run_for(self, request: ToolCallRequest) -> OpenRun:
        config, block = request.runtime.config, current_turn()
        run = surrounding_run(lambda: self._id_of(config, request.state))
        if run is not None:
            if run.on_open_failure is None:
                run.on_open_failure = self._ends["on_open_failure"]
            return OpenRun(run.id, config, run=run)
        with self._lock:
            open_run = None if block is None else block.open_run
            if open_run is None:
                open_run = self._open_run(self._id_of(config, request.state), config)
            if block is not None:
                block.open_run = open_run
            open_run.users += 1
            return open_run

    def _open_run(self, run_id: str, config: RunnableConfig) -> OpenRun:
        if run_id not in self._open_runs:
            self._open_runs[run_id] = OpenRun(run_id, config)
        return self._open_runs[run_id]

    def _id_of(self, config: RunnableConfig, state: Any) -> str:
        if self._given_id is not None:
            return self._given_id if isinstance(self._given_id, str) else self._given_id(config)
        kept = state.get("amends_run") if isinstance(state, dict) else None
        if kept:
            return str(kept)
        if (thread := thread_of(config)) is not None:
            return f"{thread}/{graph_path(config) or turns_in(state)}"
        if current_turn() is not None:
            return f"run-{uuid4().hex}"
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

    def _report(self, run_id: str) -> Report | None:
        assert isinstance(self._rt, Runtime), "_areport is for the other"
        try:
            return self._rt.report(run_id)
        except UsageError:  # it is not in the ledger yet
            return None

    async def _areport(self, run_id: str) -> Report | None:
        assert isinstance(self._rt, AsyncRuntime), "_report is for the other"
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
        open_run.pausing = any(call.state == "held" for call in calls)  # another call has already paused the graph
        open_run.by_itself = {call.tool_call_id for call in calls if PAUSED in (call.error or "")}
        open_run.paused = open_run.by_itself | {call.tool_call_id for call in calls if call.state in ("held", "ready")}
        return {
            "tags": () if open_run.thread is None else (f"thread:{open_run.thread}",),
            "recover": self._recover
            or ("wait" if open_run.is_resumable and open_run.thread is not None else "rollback"),
            "history": call_ids(state).issuperset(done),
            "if_rolled_back": "raise" if has_answers(state) else "again",
            **self._ends,
        }

    def _is_last(self, open_run: OpenRun) -> bool:
        """Count a call that has ended; return whether it was the last one of a turn that pauses."""
        with self._lock:
            open_run.users -= 1
            if (
                open_run.run_id not in self._open_runs
                or open_run.users > 0
                or not open_run.pausing
                or open_run.run is None
            ):
                return False
            del self._open_runs[open_run.run_id]
        if (block := current_turn()) is not None:
            block.open_run = None
        return True

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
        self.users, self.pausing = 0, False
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
        self, rt: Runtime | AsyncRuntime, config: Mapping[str, Any], forget: Callable[[OpenRun], object]
    ) -> None:
        self._rt, self._config, self._forget = rt, config, forget
        self._outer: Turn | None = None
        self._is_left = False
        self.open_run: OpenRun | None = None
        self.reached_end: bool | None = None
        """Whether the last agent inside has ended; None if there were only tool nodes."""

    def __enter__(self) -> Self:
        self._outer, self._is_left = current_turn(), False
        _turn.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run = self._left()
        if (
            run is None
            and isinstance(error, Exception)
            and isinstance(self._rt, Runtime)
            and (wanted := self._filter())
        ):
            found = next(self._rt.runs(wanted), None)
            run = None if found is None else self._rt.open(found.id)
        if run is not None:
            as_blocking(run).leave(self._why(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run = self._left()
        if run is None and isinstance(error, Exception) and isinstance(self._rt, AsyncRuntime):
            found = [one async for one in self._rt.runs(wanted)][:1] if (wanted := self._filter()) else []
            run = await self._rt.open(found[0].id) if found else None
        if run is not None:
            await as_async(run).leave(self._why(error))

    def _left(self) -> Run | AsyncRun | None:
        self._is_left = True  # no ContextVar token: the block may end in another context than it began in
        if _turn.get() is self:
            _turn.set(self._outer)
        if self.open_run is None:
            return None
        self._forget(self.open_run)
        return self.open_run.run

    def _filter(self) -> str:
        """Return a filter for the run of a turn that began elsewhere, and failed here before its first tool call."""
        thread = thread_of(self._config)
        return "" if thread is None or '"' in thread else f'tag:"thread:{thread}" state:open,pivoted'

    def _why(self, error: BaseException | None) -> BaseException | None:
        is_pause = isinstance(error, GraphBubbleUp) or (error is None and self.reached_end is False)
        return Waiting("the graph pauses") if is_pause else error

    @property
    def around(self) -> Turn | None:
        """Return this turn while its block is open, else the one around it."""
        turn: Turn | None = self
        while turn is not None and turn._is_left:
            turn = turn._outer
        return turn


_turn: ContextVar[Turn | None] = ContextVar("amends.langchain.turn", default=None)


def current_turn() -> Turn | None:
    """Return the turn whose block this code is in, if any."""
    turn = _turn.get()
    return None if turn is None else turn.around


def surrounding_run(own: Callable[[], str]) -> Run | AsyncRun | None:
    """Return the run that the program has opened around the graph, or the run of the tool in which this agent runs.

    ``own`` returns the id of the turn's own run; a replay opens that run again as it was recorded.
    """
    try:
        found: Run | AsyncRun = current_run()
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

    def run(self, /, **args: Any) -> Any:
        """Return the result as it is recorded; raise the tool's own error, even if the framework has swallowed it."""
        try:
            return self._result(self._handler(self._watched(args)))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise self._pause() from bubble

    async def arun(self, /, **args: Any) -> Any:
        """Do the same as ``run`` on an event loop."""
        try:
            return self._result(await self._handler(self._watched(args)))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise self._pause() from bubble

    def _pause(self) -> Exception:
        """Return what the ledger is told of a pause: a call had no effect yet, an agent's child run waits."""
        try:
            is_call = current_call().tool_call_id == self._request.tool_call["id"]
        except NoRun:
            is_call = False
        return NoEffect(PAUSED) if is_call else Waiting("the agent pauses", run_id=current_run().id)

    def result_for(self, answer: Answer) -> Handled:
        """Return the answer as a result of the framework."""
        failed = isinstance(self._handled, ToolMessage) and self._handled.status == "error"
        if self._handled is not None and answer.status == ("failed" if failed else "done"):
            return self._handled
        if answer.status not in ("done", "replayed"):
            return self.message(answer.text, is_error=answer.is_error)
        if answer.status == "replayed" and getattr(answer.call, "tool_call_id", "") != self._request.tool_call["id"]:
            return self.message(answer.text)
        # The same call of the model again: the graph has lost its result. Return it as it would have been.
        if isinstance(answer.value, dict) and _PACKED in answer.value:
            unpacked: Handled = _SERDE.loads_typed((answer.value[_PACKED], b64decode(answer.value["data"])))
            return unpacked
        value = answer.value
        return self.message(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))

    def message(self, text: str, *, is_error: bool = False) -> ToolMessage:
        """Return a message to the model about this call."""
        call = self._request.tool_call
        return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error" if is_error else "success")

    def _watched(self, args: dict[str, Any]) -> ToolCallRequest:
        self._handled, self._outcome = None, _ToolOutcome()
        asked = self._request.override(tool_call={**self._request.tool_call, "args": args})
        return asked if asked.tool is None else asked.override(tool=self._outcome.through(asked.tool))

    def _result(self, handled: Any) -> Any:
        self._handled = handled
        if self._outcome.error is not None:  # the framework has swallowed it, but amends must judge it
            raise self._outcome.error
        if not isinstance(handled, ToolMessage):
            kind, data = _SERDE.dumps_typed(handled)
            return {_PACKED: kind, "data": b64encode(data).decode()}
        if handled.status == "error":
            raise (ToolException if self._outcome.has_run else NoEffect)(str(handled.content))
        return self._outcome.value if _is_plain(self._outcome.value) else handled.content


class _ToolOutcome:
    """Keeps what a tool itself returned or raised, before the framework changes it."""

    def __init__(self) -> None:
        self.has_run = False
        self.value: Any = _NOTHING
        self.error: Exception | None = None

    def through(self, tool: BaseTool) -> BaseTool:
        """Return a copy of the tool that keeps its result or error here."""

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.has_run = True
            try:
                return self._keep(tool, tool._run(*args, **kwargs))
            except Exception as error:
                self.error = error
                raise

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self.has_run = True
            try:
                return self._keep(tool, await tool._arun(*args, **kwargs))
            except Exception as error:
                self.error = error
                raise

        copy = tool.model_copy()
        # A tool is a pydantic model, and these two are not fields of it.
        object.__setattr__(copy, "_run", run)
        object.__setattr__(copy, "_arun", arun)
        return copy

    def _keep(self, tool: BaseTool, value: Any) -> Any:
        is_pair = tool.response_format == "content_and_artifact" and isinstance(value, tuple) and len(value) == 2
        self.value = value[0] if is_pair else value
        return value


def _is_plain(value: Any) -> bool:
    """Return whether a value can be recorded as it is, for a compensation to use."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def unknown_tool(request: ToolCallRequest) -> UnknownTool:
    """Return the error for a name that this agent does not have: made up by the model, or known only to the runtime."""
    return UnknownTool(request.tool_call["name"], known=sorted(tool.name for tool in request.runtime.tools))


def as_function(tool: BaseTool, *, is_async: bool) -> Callable[..., Any]:
    """Return a tool as a plain function, to compensate another call or to run a staged one outside any graph."""

    def call(**args: Any) -> Any:
        return tool.invoke(args)

    async def call_async(**args: Any) -> Any:
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


def has_answers(state: Any) -> bool:
    """Return whether there is a tool result since the last message of the user."""
    for message in reversed(messages_of(state)):
        if is_users(message):
            return False
        if isinstance(message, ToolMessage):
            return True
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


def call_ids(state: Any) -> set[str | None]:
    """Return the ids of all calls in the conversation."""
    return {call["id"] for one in messages_of(state) if isinstance(one, AIMessage) for call in one.tool_calls}


def calls_in_node(config: Mapping[str, Any], state: Any, call_id: str | None) -> set[str | None]:
    """Return the ids of the other calls that run in the same node; none if each call has a node of its own."""
    path = config.get("metadata", {}).get("langgraph_path", ())
    if not path or path[0] != "__pregel_pull":
        return set()
    for message in reversed(messages_of(state)):
        if isinstance(message, AIMessage):
            return {call["id"] for call in message.tool_calls} - {call_id}
    return set()
