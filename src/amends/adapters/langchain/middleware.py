"""The middleware: which run a tool call belongs to, when that run begins and ends, and when the graph pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any, Final, Literal, NotRequired, TypeAlias
from uuid import uuid4

from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import interrupt

from amends import Answer, AsyncRun, AsyncRuntime, Report, RolledBack, Run, RunBlocked, Runtime, UsageError, Waiting
from amends.adapters.langchain.body import PAUSED, Body, Handled, no_such_tool, reached
from amends.adapters.langchain.graph import (
    asked_ids,
    has_answers,
    inside,
    is_resumable,
    neighbours,
    thread_of,
    turns_in,
)
from amends.adapters.langchain.turn import Seat, Turn, awaited, blocking, seats_of, surrounding, turn_here
from amends.errors import ApprovalVoid, Busy, RunEnded
from amends.notify import exact
from amends.visible import visible_log

log = visible_log("amends")

RunId: TypeAlias = str | Callable[[RunnableConfig], str]
Recover: TypeAlias = Literal["rollback", "resume", "wait"]
OnError: TypeAlias = Literal["tell", "raise"]

WAKES_MAX: Final = 1_000
"""How often one call may be woken without a decision before it gives up: a graph that is resumed in a loop."""
UNFINISHED: Final = ("open", "pivoted", "rolling_back", "blocked")


class TurnState(AgentState[Any]):
    """What the middleware keeps in the graph's state: which run the current turn is, and how many there were."""

    amends_run: NotRequired[Annotated[str, PrivateStateAttr]]
    amends_turn: NotRequired[Annotated[int, PrivateStateAttr]]


class GivenUp(Exception):
    """A new turn began while the one before had not ended."""


class AmendsMiddleware(AgentMiddleware[TurnState, Any, Any]):
    """Each turn of a conversation is one run: a tool runs at most once in it, and it commits when the agent has ended.

    ``rt``: a ``Runtime`` for ``invoke`` and ``stream``, an ``AsyncRuntime`` for ``ainvoke`` and ``astream``.
    ``tools``: the agent's tools, where one of them takes another one back by name, or is staged and may outlive the
    process. ``run_id``: the id of the run, or a function of the config; without it thread and number of the turn.
    ``recover``: what a worker does with a turn that died; without it ``wait`` where the graph has a checkpointer, since
    whoever resumes the thread goes on, else ``rollback``. ``on_error``: a tool's own error is told to the model
    (``tell``), or comes out of ``invoke`` as ever (``raise``).
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
    ) -> None:
        super().__init__()
        self._rt, self._said_id, self._recover, self._on_error = rt, run_id, recover, on_error
        self._seats, self._lock = seats_of(rt)
        is_async = isinstance(rt, AsyncRuntime)
        rt.reach({tool.name: reached(tool, is_async=is_async) for tool in tools})

    def turn(self, config: RunnableConfig | None = None) -> Turn:
        """A block around ``invoke``, ``with`` or ``async with``: what comes out of it takes the turn's run back.

        All agents and tool nodes inside it share that run, and it ends with the block. ``config``: that of ``invoke``.
        """
        return Turn(self._rt, config or {}, self._forget)

    # ---- a turn begins and ends -------------------------------------------------------------------

    def before_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """The turn has its run's id, kept in the graph; an earlier one that was given up is taken back and told."""
        made, rt = self._begun(state), self._rt
        before = state.get("amends_run")
        if before is None or before == made.get("amends_run") or not isinstance(rt, Runtime):
            return made
        report = self._report(before)
        if report is not None and report.run.state in UNFINISHED:
            try:
                seat = self._forget(Seat(before, {}))
                run = seat.run if seat is not None and seat.run is not None else rt.open(before, wait=0)
                blocking(run).leave(GivenUp(f"turn {before} had not ended when the next one began"))
            except (Busy, RunBlocked) as left:
                log.warning("%s", left)
            report = self._report(before)
        return self._telling(made, report)

    async def abefore_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """The same, awaited."""
        made, rt = self._begun(state), self._rt
        before = state.get("amends_run")
        if before is None or before == made.get("amends_run") or not isinstance(rt, AsyncRuntime):
            return made
        report = await self._areport(before)
        if report is not None and report.run.state in UNFINISHED:
            try:
                seat = self._forget(Seat(before, {}))
                run = seat.run if seat is not None and seat.run is not None else await rt.open(before, wait=0)
                await awaited(run).leave(GivenUp(f"turn {before} had not ended when the next one began"))
            except (Busy, RunBlocked) as left:
                log.warning("%s", left)
            report = await self._areport(before)
        return self._telling(made, report)

    def after_agent(self, state: TurnState, runtime: Any) -> None:
        """The agent has ended: its run commits, unless a block around it is to do that."""
        seat = self._ended(state)
        if seat is not None:
            try:
                self._open(seat, state).leave()
            except RunEnded as over:  # taken back by a person meanwhile; the model was told with its calls
                log.warning("%s", over)
            finally:
                self._forget(seat)

    async def aafter_agent(self, state: TurnState, runtime: Any) -> None:
        """The same, awaited."""
        seat = self._ended(state)
        if seat is not None:
            try:
                await (await self._aopen(seat, state)).leave()
            except RunEnded as over:
                log.warning("%s", over)
            finally:
                self._forget(seat)

    # ---- a tool call ------------------------------------------------------------------------------

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Handled]) -> Handled:
        """The tool is run at most once, or the record answers, or the graph pauses for a person."""
        body, call = Body(request, handler), request.tool_call
        if request.tool is None:
            return body.message(no_such_tool(request).for_model(), is_error=True)
        seat = self._seat_of(request)
        try:
            with seat.lock:
                run = self._open(seat, request.state)
            self._refuse_crossing(seat, request)
            for _ in range(WAKES_MAX):
                answer = run.answer(call["name"], call["args"], handler=body.run, tool_call_id=call["id"])
                if not self._is_pause(answer, body, seat, request):
                    return self._told(answer, body)
                interrupt(_asked(answer))
        except RunEnded as over:
            return body.message(over.for_model(), is_error=True)
        finally:
            if self._is_last(seat):
                blocking(seat.run).leave(Waiting("the graph pauses"))
        raise _never_decided(call["name"])

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Handled]]
    ) -> Handled:
        """The same, awaited."""
        body, call = Body(request, handler), request.tool_call
        if request.tool is None:
            return body.message(no_such_tool(request).for_model(), is_error=True)
        seat = self._seat_of(request)
        try:
            async with seat.alock:
                run = await self._aopen(seat, request.state)
            self._refuse_crossing(seat, request)
            for _ in range(WAKES_MAX):
                answer = await run.answer(call["name"], call["args"], handler=body.arun, tool_call_id=call["id"])
                if not self._is_pause(answer, body, seat, request):
                    return self._told(answer, body)
                interrupt(_asked(answer))
        except RunEnded as over:
            return body.message(over.for_model(), is_error=True)
        finally:
            if self._is_last(seat):
                await awaited(seat.run).leave(Waiting("the graph pauses"))
        raise _never_decided(call["name"])

    def _is_pause(self, answer: Answer, body: Body, seat: Seat, request: ToolCallRequest) -> bool:
        """Whether the graph pauses for what was answered; a pause of the tool's own comes out here."""
        waits = answer.status == "held" and getattr(answer.error, "reason", "") in ("approval", "budget")
        asked_anew = isinstance(answer.error, ApprovalVoid) and answer.error.asked
        if body.bubble is None and (not (waits or asked_anew) or not seat.is_resumable):
            return False
        call_id = request.tool_call["id"]
        others = neighbours(request.runtime.config, request.state, call_id)
        with self._lock:
            crosses = others & (seat.by_itself if body.bubble is None else seat.paused)
            seat.pausing = True
            seat.paused.add(call_id)
            if body.bubble is not None:
                seat.by_itself.add(call_id)
        if crosses:
            raise _would_cross(request.tool_call["name"])
        if body.bubble is not None:
            raise body.bubble
        return True

    def _refuse_crossing(self, seat: Seat, request: ToolCallRequest) -> None:
        """Of two that paused in one node only the first pause was seen: before either runs again it is said."""
        call_id = request.tool_call["id"]
        others = neighbours(request.runtime.config, request.state, call_id) & seat.paused
        if others and ({call_id} | others) & seat.by_itself and call_id in seat.paused:
            raise _would_cross(request.tool_call["name"])

    def _told(self, answer: Answer, body: Body) -> Handled:
        if answer.status == "failed" and self._on_error == "raise" and answer.error is not None:
            raise answer.error
        return body.told(answer)

    # ---- which run --------------------------------------------------------------------------------

    def _begun(self, state: TurnState) -> dict[str, Any]:
        config, number = get_config(), state.get("amends_turn", 0) + 1
        if (block := turn_here()) is not None:
            block.reached_end = False
        thread = thread_of(config)
        # What nothing keeps has no number: each of its turns would be the first.
        is_kept = thread is not None and is_resumable(config)
        run_id = f"{thread}/{inside(config) or number}" if is_kept else f"run-{uuid4().hex}"
        if self._said_id is not None or surrounding(lambda: run_id) is not None:
            return {"amends_turn": number}
        return {"amends_turn": number, "amends_run": run_id}

    def _telling(self, made: dict[str, Any], before: Report | None) -> dict[str, Any]:
        """A model that has the results of a turn must know that they were taken back."""
        if before is None or before.run.state != "rolled_back" or not before.calls:
            return made
        words = RolledBack("", report=before, run_id=before.run.id).for_model()
        return {**made, "messages": [HumanMessage(f"Of the turn before: {words}", name="amends")]}

    def _ended(self, state: TurnState) -> Seat | None:
        if (block := turn_here()) is not None:
            block.reached_end = True
            return None
        config = get_config()
        if surrounding(lambda: self._id_of(config, state)) is not None:
            return None
        with self._lock:
            run_id = self._id_of(config, state)
            # What is open here has called a tool, whatever a middleware has put between its answer and the end.
            is_open = self._said_id is None and run_id in self._seats
            return self._seat(run_id, config) if is_open or has_answers(state) else None

    def _seat_of(self, request: ToolCallRequest) -> Seat:
        config, block = request.runtime.config, turn_here()
        run = surrounding(lambda: self._id_of(config, request.state))
        if run is not None:
            return Seat(run.id, config, run=run)
        with self._lock:
            seat = None if block is None else block.seat
            if seat is None:
                seat = self._seat(self._id_of(config, request.state), config)
            if block is not None:
                block.seat = seat
            seat.users += 1
            return seat

    def _seat(self, run_id: str, config: RunnableConfig) -> Seat:
        if run_id not in self._seats:
            self._seats[run_id] = Seat(run_id, config)
        return self._seats[run_id]

    def _id_of(self, config: RunnableConfig, state: Any) -> str:
        if self._said_id is not None:
            return self._said_id if isinstance(self._said_id, str) else self._said_id(config)
        kept = state.get("amends_run") if isinstance(state, dict) else None
        if kept:
            return str(kept)
        if (thread := thread_of(config)) is not None:
            return f"{thread}/{inside(config) or turns_in(state)}"
        if turn_here() is not None:
            return f"run-{uuid4().hex}"
        raise UsageError(
            "a tool node without a thread does not say which run its calls belong to",
            hint="give the config a thread_id, say run_id=, or put `with middleware.turn():` around invoke",
        )

    # ---- opening and leaving ----------------------------------------------------------------------

    def _open(self, seat: Seat, state: Any) -> Run:
        if seat.run is None:
            if not isinstance(self._rt, Runtime):
                raise UsageError("this middleware has an AsyncRuntime", hint="use ainvoke, or give it a Runtime")
            seat.run = self._rt.open(seat.run_id, **self._options(seat, state, self._report(seat.run_id)))
        return blocking(seat.run)

    async def _aopen(self, seat: Seat, state: Any) -> AsyncRun:
        if seat.run is None:
            if not isinstance(self._rt, AsyncRuntime):
                raise UsageError(
                    "this middleware has a blocking Runtime", hint="use invoke, or give it an AsyncRuntime"
                )
            seat.run = await self._rt.open(seat.run_id, **self._options(seat, state, await self._areport(seat.run_id)))
        return awaited(seat.run)

    def _report(self, run_id: str) -> Report | None:
        assert isinstance(self._rt, Runtime), "the async twin has its own"
        try:
            return self._rt.report(run_id)
        except UsageError:  # the ledger has none yet
            return None

    async def _areport(self, run_id: str) -> Report | None:
        assert isinstance(self._rt, AsyncRuntime), "the blocking twin has its own"
        try:
            return await self._rt.report(run_id)
        except UsageError:
            return None

    def _options(self, seat: Seat, state: Any, known: Report | None) -> dict[str, Any]:
        """How the run is opened; ``known``: what the ledger has of it.

        The model remembers what stands in the messages. Under a model that has seen results, a run that was taken back
        meanwhile is not begun anew.
        """
        calls = [] if known is None else [*known.calls, *(call for child in known.children for call in child.calls)]
        done = [call.tool_call_id for call in calls if call.state == "succeeded"]
        seat.pausing = any(call.state == "held" for call in calls)  # another call has paused the graph before this one
        seat.by_itself = {call.tool_call_id for call in calls if PAUSED in (call.error or "")}
        seat.paused = seat.by_itself | {call.tool_call_id for call in calls if call.state in ("held", "ready")}
        return {
            "tags": () if seat.thread is None else (f"thread:{seat.thread}",),
            "recover": self._recover or ("wait" if seat.is_resumable and seat.thread is not None else "rollback"),
            "history": asked_ids(state).issuperset(done),
            "if_rolled_back": "raise" if has_answers(state) else "again",
        }

    def _is_last(self, seat: Seat) -> bool:
        """One call less; True: it was the last one of a turn that pauses, and the run is to be given back."""
        with self._lock:
            seat.users -= 1
            if seat.run_id not in self._seats or seat.users > 0 or not seat.pausing or seat.run is None:
                return False
            del self._seats[seat.run_id]
        if (block := turn_here()) is not None:
            block.seat = None
        return True

    def _forget(self, seat: Seat) -> Seat | None:
        with self._lock:
            return self._seats.pop(seat.run_id, None)


def _asked(answer: Answer) -> dict[str, Any]:
    """What whoever runs the graph is shown while it pauses; deciding is done in the ledger."""
    approval, call = getattr(answer.error, "approval", None), answer.call
    shown: dict[str, Any] = {"amends": "approval", "text": answer.text}
    if call is not None:
        shown |= {"run": call.run_id, "tool": call.tool, "args": exact(dict(call.args))}
    return shown if approval is None else {**shown, "approval": approval.id, "digest": approval.digest}


def _would_cross(tool: str) -> UsageError:
    """The graph hands out answers by their order in a node, and a call that is answered from the record asks no more."""
    return UsageError(
        f"{tool} pauses by itself, in one node with another call that waits: one would get the other's answer",
        hint="say needs_approval= instead of interrupt(), or give each call a node of its own, as create_agent does",
    )


def _never_decided(tool: str) -> UsageError:
    return UsageError(f"{tool} was woken {WAKES_MAX} times in one go, and nobody has decided about it")
