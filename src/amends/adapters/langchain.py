"""LangChain and LangGraph: every tool call of an agent goes through a run, and a pause is the graph's own interrupt.

``AmendsMiddleware(rt)`` goes into ``create_agent(middleware=[...])``; its two wrappers also fit a bare ``ToolNode``.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import threading
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal, NotRequired, Self, TypeAlias
from uuid import uuid4

from langchain.agents.middleware.types import AgentMiddleware, AgentState, PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from amends import (
    Answer,
    AsyncRun,
    AsyncRuntime,
    NoEffect,
    Report,
    RolledBack,
    Run,
    RunBlocked,
    Runtime,
    UsageError,
    Waiting,
    current_run,
)
from amends.errors import ApprovalVoid, NoRun, RunEnded

__all__ = ["AmendsMiddleware", "Turn", "TurnState"]

log = logging.getLogger("amends")

Handled: TypeAlias = ToolMessage | Command[Any]
RunId: TypeAlias = str | Callable[[RunnableConfig], str]
Recover: TypeAlias = Literal["rollback", "resume", "wait"]
OnError: TypeAlias = Literal["tell", "raise"]

WAKES_MAX: Final = 1_000
"""How often one call may be woken without a decision before it gives up: a graph that is resumed in a loop."""


class TurnState(AgentState[Any]):
    """What the middleware keeps in the graph's state: which run the current turn is, and how many there were."""

    amends_run: NotRequired[Annotated[str, PrivateStateAttr]]
    amends_turn: NotRequired[Annotated[int, PrivateStateAttr]]


class AmendsMiddleware(AgentMiddleware[TurnState, Any, Any]):
    """Each turn of a conversation is one run: a tool runs at most once in it, and it commits when the agent has ended.

    ``rt``: a ``Runtime`` for ``invoke`` and ``stream``, an ``AsyncRuntime`` for ``ainvoke`` and ``astream``.
    ``run_id``: the id of the run, or a function of the config; without it thread and number of the turn.
    ``recover``: what a worker does with a turn that died; without it ``wait`` where the graph has a checkpointer, since
    whoever resumes the thread goes on, else ``rollback``.
    ``on_error``: a tool's own error is told to the model (``tell``), or comes out of ``invoke`` as ever (``raise``).
    """

    state_schema = TurnState

    def __init__(
        self,
        rt: Runtime | AsyncRuntime,
        *,
        run_id: RunId | None = None,
        recover: Recover | None = None,
        on_error: OnError = "tell",
    ) -> None:
        super().__init__()
        self._rt, self._said_id, self._recover, self._on_error = rt, run_id, recover, on_error
        self._seats: dict[str, _Seat] = {}
        self._lock = threading.Lock()

    def turn(self, config: RunnableConfig | None = None) -> Turn:
        """A block around ``invoke``, ``with`` or ``async with``: what comes out of it takes the turn's run back.

        All agents and tool nodes inside it share that run, and it ends with the block. ``config``: that of ``invoke``.
        """
        return Turn(self, config or {})

    # ---- a turn begins and ends -------------------------------------------------------------------

    def before_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """The turn has its run's id, kept in the graph; an earlier turn that was given up is taken back."""
        made = self._begun(state)
        seat = self._given_up(state, made)
        if seat is not None and seat.run is not None:
            try:
                _blocking(seat.run).rollback("its turn was given up")
            except (RolledBack, RunBlocked) as told:
                log.warning("%s", told)
        return made

    async def abefore_agent(self, state: TurnState, runtime: Any) -> dict[str, Any]:
        """The same, awaited."""
        made = self._begun(state)
        seat = self._given_up(state, made)
        if seat is not None and seat.run is not None:
            try:
                await _awaited(seat.run).rollback("its turn was given up")
            except (RolledBack, RunBlocked) as told:
                log.warning("%s", told)
        return made

    def after_agent(self, state: TurnState, runtime: Any) -> None:
        """The agent has ended: its run commits, unless a block around it is to do that."""
        seat = self._ended(state)
        if seat is not None:
            try:
                self._open(seat, state).leave()
            finally:
                self._forget(seat)

    async def aafter_agent(self, state: TurnState, runtime: Any) -> None:
        """The same, awaited."""
        seat = self._ended(state)
        if seat is not None:
            try:
                await (await self._aopen(seat, state)).leave()
            finally:
                self._forget(seat)

    # ---- a tool call ------------------------------------------------------------------------------

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Handled]) -> Handled:
        """The tool is run at most once, or the record answers, or the graph pauses for a person."""
        seat, body, call = self._seat_of(request), _Body(request, handler), request.tool_call
        try:
            with seat.lock:
                run = self._open(seat, request.state)
            for _ in range(WAKES_MAX):
                answer = run.answer(call["name"], call["args"], handler=body.run, tool_call_id=call["id"])
                if not self._is_pause(answer, body, seat):
                    return self._told(answer, body)
                interrupt(_asked(answer))
        except RunEnded as over:
            return body.message(over.for_model(), is_error=True)
        finally:
            if self._is_last(seat):
                _blocking(seat.run).leave(Waiting("the graph pauses"))
        raise _never_decided(call["name"])

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Handled]]
    ) -> Handled:
        """The same, awaited."""
        seat, body, call = self._seat_of(request), _Body(request, handler), request.tool_call
        try:
            async with seat.alock:
                run = await self._aopen(seat, request.state)
            for _ in range(WAKES_MAX):
                answer = await run.answer(call["name"], call["args"], handler=body.arun, tool_call_id=call["id"])
                if not self._is_pause(answer, body, seat):
                    return self._told(answer, body)
                interrupt(_asked(answer))
        except RunEnded as over:
            return body.message(over.for_model(), is_error=True)
        finally:
            if self._is_last(seat):
                await _awaited(seat.run).leave(Waiting("the graph pauses"))
        raise _never_decided(call["name"])

    def _is_pause(self, answer: Answer, body: _Body, seat: _Seat) -> bool:
        """Whether the graph pauses for what was answered; a pause of the tool's own comes out here."""
        if body.bubble is not None:
            seat.pausing = True
            raise body.bubble
        waits = answer.status == "held" and getattr(answer.error, "reason", "") in ("approval", "budget")
        asked_anew = isinstance(answer.error, ApprovalVoid) and answer.error.asked
        if not (waits or asked_anew) or not seat.is_resumable:
            return False
        seat.pausing = True
        return True

    def _told(self, answer: Answer, body: _Body) -> Handled:
        if answer.status == "failed" and self._on_error == "raise" and answer.error is not None:
            raise answer.error
        return body.told(answer)

    # ---- which run --------------------------------------------------------------------------------

    def _begun(self, state: TurnState) -> dict[str, Any]:
        config, number = get_config(), state.get("amends_turn", 0) + 1
        if (scope := _scope.get()) is not None:
            scope.reached_end = False
        if self._said_id is not None:
            return {"amends_turn": number}
        thread = _thread(config)
        run_id = f"run-{uuid4().hex}" if thread is None else f"{thread}/{_inside(config) or number}"
        return {"amends_turn": number, "amends_run": run_id}

    def _given_up(self, state: TurnState, made: dict[str, Any]) -> _Seat | None:
        """The turn before, where it is still open here: it failed, or the user went on without it."""
        before = state.get("amends_run")
        if before is None or before == made.get("amends_run") or _scope.get() is not None:
            return None
        with self._lock:
            return self._seats.pop(before, None)

    def _ended(self, state: TurnState) -> _Seat | None:
        if (scope := _scope.get()) is not None:
            scope.reached_end = True
            return None
        if _surrounding() is not None or not _has_answers(state):
            return None
        config = get_config()
        with self._lock:
            return self._seat(self._id_of(config, state), config)

    def _seat_of(self, request: ToolCallRequest) -> _Seat:
        run, config, scope = _surrounding(), request.runtime.config, _scope.get()
        if run is not None:
            return _Seat(run.id, config, run=run)
        with self._lock:
            seat = None if scope is None else scope.seat
            if seat is None:
                seat = self._seat(self._id_of(config, request.state), config)
            if scope is not None:
                scope.seat = seat
            seat.users += 1
            return seat

    def _seat(self, run_id: str, config: RunnableConfig) -> _Seat:
        if run_id not in self._seats:
            self._seats[run_id] = _Seat(run_id, config)
        return self._seats[run_id]

    def _id_of(self, config: RunnableConfig, state: Any) -> str:
        if self._said_id is not None:
            return self._said_id if isinstance(self._said_id, str) else self._said_id(config)
        kept = state.get("amends_run") if isinstance(state, dict) else None
        if kept:
            return str(kept)
        if (thread := _thread(config)) is not None:
            return f"{thread}/{_inside(config) or sum(isinstance(one, HumanMessage) for one in _messages(state))}"
        if _scope.get() is not None:
            return f"run-{uuid4().hex}"
        raise UsageError(
            "a tool node without a thread does not say which run its calls belong to",
            hint="give the config a thread_id, say run_id=, or put `with middleware.turn():` around invoke",
        )

    # ---- opening and leaving ----------------------------------------------------------------------

    def _open(self, seat: _Seat, state: Any) -> Run:
        if seat.run is None:
            if not isinstance(self._rt, Runtime):
                raise UsageError("this middleware has an AsyncRuntime", hint="use ainvoke, or give it a Runtime")
            try:
                known: Report | None = self._rt.report(seat.run_id)
            except UsageError:  # there is none yet
                known = None
            seat.run = self._rt.open(seat.run_id, **self._options(seat, state, known))
        return _blocking(seat.run)

    async def _aopen(self, seat: _Seat, state: Any) -> AsyncRun:
        if seat.run is None:
            if not isinstance(self._rt, AsyncRuntime):
                raise UsageError(
                    "this middleware has a blocking Runtime", hint="use invoke, or give it an AsyncRuntime"
                )
            try:
                known: Report | None = await self._rt.report(seat.run_id)
            except UsageError:  # there is none yet
                known = None
            seat.run = await self._rt.open(seat.run_id, **self._options(seat, state, known))
        return _awaited(seat.run)

    def _options(self, seat: _Seat, state: Any, known: Report | None) -> dict[str, Any]:
        """How the run is opened; ``known``: what the ledger has of it.

        The model remembers what stands in the messages. Under a model that has seen results, a run that was taken back
        meanwhile is not begun anew.
        """
        done = [call.tool_call_id for call in known.calls if call.state == "succeeded"] if known is not None else []
        remembered = {call["id"] for one in _messages(state) if isinstance(one, AIMessage) for call in one.tool_calls}
        return {
            "tags": () if seat.thread is None else (f"thread:{seat.thread}",),
            "recover": self._recover or ("wait" if seat.is_resumable and seat.thread is not None else "rollback"),
            "history": remembered.issuperset(done),
            "if_rolled_back": "raise" if _has_answers(state) else "again",
        }

    def _is_last(self, seat: _Seat) -> bool:
        """One call less; True: it was the last one of a turn that pauses, and the run is to be given back."""
        with self._lock:
            seat.users -= 1
            if seat.run_id not in self._seats or seat.users > 0 or not seat.pausing or seat.run is None:
                return False
            del self._seats[seat.run_id]
        if (scope := _scope.get()) is not None:
            scope.seat = None
        return True

    def _forget(self, seat: _Seat) -> None:
        with self._lock:
            self._seats.pop(seat.run_id, None)


class Turn:
    """One run for all that happens inside the block; it is ended by how the block ends."""

    def __init__(self, middleware: AmendsMiddleware, config: RunnableConfig) -> None:
        self._middleware, self._config = middleware, config
        self._token: Any = None
        self.seat: _Seat | None = None
        self.reached_end: bool | None = None
        """Whether the last agent inside has ended; None: there was none, only tool nodes."""

    def __enter__(self) -> Self:
        self._token = _scope.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _scope.reset(self._token)
        run = self._run()
        if run is None and isinstance(error, Exception) and isinstance(rt := self._middleware._rt, Runtime):
            left = next(rt.runs(filter), None) if (filter := self._filter()) else None
            run = None if left is None else rt.open(left.id)
        if run is not None:
            _blocking(run).leave(self._why(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _scope.reset(self._token)
        run = self._run()
        if run is None and isinstance(error, Exception) and isinstance(rt := self._middleware._rt, AsyncRuntime):
            left = [one async for one in rt.runs(filter)] if (filter := self._filter()) else []
            run = await rt.open(left[0].id) if left else None
        if run is not None:
            await _awaited(run).leave(self._why(error))

    def _run(self) -> Run | AsyncRun | None:
        if self.seat is None:
            return None
        self._middleware._forget(self.seat)
        return self.seat.run

    def _filter(self) -> str:
        """What finds the run of a turn that was begun elsewhere, and failed here before it asked for a tool."""
        thread = _thread(self._config)
        return "" if thread is None or '"' in thread else f'tag:"thread:{thread}" status:open,pivoted'

    def _why(self, error: BaseException | None) -> BaseException | None:
        is_pause = isinstance(error, GraphBubbleUp) or (error is None and self.reached_end is False)
        return Waiting("the graph pauses") if is_pause else error


_scope: ContextVar[Turn | None] = ContextVar("amends.langchain.turn", default=None)


class _Seat:
    """One run that is open here, and how many calls are in it."""

    def __init__(self, run_id: str, config: RunnableConfig, *, run: Run | AsyncRun | None = None) -> None:
        self.run_id, self.run, self.thread = run_id, run, _thread(config)
        # Every graph says what keeps it; None: nothing does, so nothing could be resumed.
        self.is_resumable = config.get("configurable", {}).get("__pregel_checkpointer", True) is not None
        self.users, self.pausing = 0, False
        self.lock, self.alock = threading.Lock(), asyncio.Lock()


class _Body:
    """The framework's own execution of one call, and what it said."""

    def __init__(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> None:
        self._request, self._handler = request, handler
        self._seen = _Seen()
        self._said: Handled | None = None
        self.bubble: GraphBubbleUp | None = None

    def run(self, **args: Any) -> Any:
        """The result as it is written down; raises what the tool raised, whatever the framework made of it."""
        try:
            return self._result(self._handler(self._watched(args)))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise NoEffect(_PAUSED) from bubble

    async def arun(self, **args: Any) -> Any:
        """The same, awaited."""
        try:
            return self._result(await self._handler(self._watched(args)))
        except GraphBubbleUp as bubble:
            self.bubble = bubble
            raise NoEffect(_PAUSED) from bubble

    def told(self, answer: Answer) -> Handled:
        """The answer as the framework's own result."""
        failed = isinstance(self._said, ToolMessage) and self._said.status == "error"
        if self._said is not None and answer.status == ("failed" if failed else "done"):
            return self._said
        if answer.status not in ("done", "replayed"):
            return self.message(answer.text, is_error=answer.is_error)
        if answer.status == "replayed" and getattr(answer.call, "tool_call_id", "") != self._request.tool_call["id"]:
            return self.message(answer.text)
        if isinstance(answer.value, dict) and _PACKED in answer.value:  # the same call, delivered again after a crash
            unpacked: Handled = _SERDE.loads_typed((answer.value[_PACKED], b64decode(answer.value["data"])))
            return unpacked
        return self.message(answer.value if isinstance(answer.value, str) else json.dumps(answer.value, default=str))

    def message(self, text: str, *, is_error: bool = False) -> ToolMessage:
        """What the model is told of this call."""
        call = self._request.tool_call
        return ToolMessage(text, name=call["name"], tool_call_id=call["id"], status="error" if is_error else "success")

    def _watched(self, args: dict[str, Any]) -> ToolCallRequest:
        self._said, self._seen = None, _Seen()
        asked = self._request.override(tool_call={**self._request.tool_call, "args": args})
        return asked if asked.tool is None else asked.override(tool=self._seen.through(asked.tool))

    def _result(self, said: Any) -> Any:
        self._said = said
        if self._seen.error is not None:  # swallowed on its way up: what it means is not the framework's to say
            raise self._seen.error
        if not isinstance(said, ToolMessage):
            kind, data = _SERDE.dumps_typed(said)
            return {_PACKED: kind, "data": b64encode(data).decode()}
        if said.status == "error":
            raise (ToolException if self._seen.has_run else NoEffect)(str(said.content))
        return self._seen.value if _is_plain(self._seen.value) else said.content


class _Seen:
    """What a tool itself returned or raised, below all that the framework makes of it."""

    def __init__(self) -> None:
        self.has_run = False
        self.value: Any = _NOTHING
        self.error: Exception | None = None

    def through(self, tool: BaseTool) -> BaseTool:
        """The same tool, seen."""

        @functools.wraps(tool._run)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.has_run = True
            try:
                return self._took(tool, tool._run(*args, **kwargs))
            except Exception as error:
                self.error = error
                raise

        @functools.wraps(tool._arun)
        async def arun(*args: Any, **kwargs: Any) -> Any:
            self.has_run = True
            try:
                return self._took(tool, await tool._arun(*args, **kwargs))
            except Exception as error:
                self.error = error
                raise

        copy = tool.model_copy()
        # A tool is a pydantic model, and these two are no fields of it.
        object.__setattr__(copy, "_run", run)
        object.__setattr__(copy, "_arun", arun)
        return copy

    def _took(self, tool: BaseTool, value: Any) -> Any:
        is_pair = tool.response_format == "content_and_artifact" and isinstance(value, tuple) and len(value) == 2
        self.value = value[0] if is_pair else value
        return value


_NOTHING: Final = object()
_PACKED: Final = "langgraph"
"""Marks a result that is no message: a ``Command``, as the graph's own checkpoints keep it."""
_PAUSED: Final = "the tool has paused by itself; when the graph goes on it runs from its beginning"
_SERDE: Final = JsonPlusSerializer()


def _is_plain(value: Any) -> bool:
    """Whether it can be written down as it is: what the compensation is handed."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _asked(answer: Answer) -> dict[str, Any]:
    """What whoever runs the graph is shown while it pauses; deciding is done in the ledger."""
    approval, call = getattr(answer.error, "approval", None), answer.call
    shown: dict[str, Any] = {"amends": "approval", "text": answer.text}
    if call is not None:
        shown |= {"run": call.run_id, "tool": call.tool, "args": json.loads(json.dumps(dict(call.args), default=str))}
    return shown if approval is None else {**shown, "approval": approval.id, "digest": approval.digest}


def _surrounding() -> Run | AsyncRun | None:
    """The run that the program has opened around the graph, or whose tool's body this agent is."""
    try:
        found: Run | AsyncRun = current_run()
    except NoRun:
        return None
    return found


def _blocking(run: Run | AsyncRun | None) -> Run:
    if not isinstance(run, Run):
        raise UsageError("the run around this graph is async", hint="use ainvoke inside it")
    return run


def _awaited(run: Run | AsyncRun | None) -> AsyncRun:
    if not isinstance(run, AsyncRun):
        raise UsageError("the run around this graph is blocking", hint="use invoke inside it")
    return run


def _never_decided(tool: str) -> UsageError:
    return UsageError(f"{tool} was woken {WAKES_MAX} times in one go, and nobody has decided about it")


def _thread(config: RunnableConfig) -> str | None:
    thread = config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def _inside(config: RunnableConfig) -> str:
    """Which graph inside another one this is; empty: the outermost."""
    return str(config.get("configurable", {}).get("checkpoint_ns", "")).rpartition("|")[0]


def _messages(state: Any) -> Sequence[BaseMessage]:
    if isinstance(state, list):
        return state
    found: Sequence[BaseMessage] = (
        state.get("messages", ()) if isinstance(state, dict) else getattr(state, "messages", ())
    )
    return found


def _has_answers(state: Any) -> bool:
    """Whether a tool has answered in this turn."""
    for message in reversed(_messages(state)):
        if isinstance(message, HumanMessage):
            return False
        if isinstance(message, ToolMessage):
            return True
    return False
