"""One turn of a conversation: the run that is open for it, and the block that ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Self
from weakref import WeakKeyDictionary

from langgraph.errors import GraphBubbleUp

from amends import AsyncRun, AsyncRuntime, Run, Runtime, UsageError, Waiting, current_run
from amends.adapters.langchain.graph import is_resumable, thread_of
from amends.errors import NoRun


class Seat:
    """One run that is open here, and how many calls are in it."""

    def __init__(self, run_id: str, config: Mapping[str, Any], *, run: Run | AsyncRun | None = None) -> None:
        self.run_id, self.run, self.thread = run_id, run, thread_of(config)
        self.is_resumable = is_resumable(config)
        self.users, self.pausing = 0, False
        self.paused: set[str | None] = set()
        """The ids of calls that have paused the graph, and of those the ones whose tool did so by itself."""
        self.by_itself: set[str | None] = set()
        self.lock, self.alock = threading.Lock(), asyncio.Lock()


_open: WeakKeyDictionary[Runtime | AsyncRuntime, tuple[dict[str, Seat], threading.Lock]] = WeakKeyDictionary()
_opening = threading.Lock()


def seats_of(rt: Runtime | AsyncRuntime) -> tuple[dict[str, Seat], threading.Lock]:
    """The runs that are open here and what guards them, shared by all agents of one runtime.

    A program that makes its agent anew for each request finds the turn that an earlier one left.
    """
    with _opening:
        return _open.setdefault(rt, ({}, threading.Lock()))


class Turn:
    """One run for all that happens inside the block; it is ended by how the block ends."""

    def __init__(self, rt: Runtime | AsyncRuntime, config: Mapping[str, Any], forget: Callable[[Seat], object]) -> None:
        self._rt, self._config, self._forget = rt, config, forget
        self._outer: Turn | None = None
        self._is_left = False
        self.seat: Seat | None = None
        self.reached_end: bool | None = None
        """Whether the last agent inside has ended; None: there was none, only tool nodes."""

    def __enter__(self) -> Self:
        self._outer, self._is_left = turn_here(), False
        _turn.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run = self._left()
        if run is None and isinstance(error, Exception) and isinstance(self._rt, Runtime) and (words := self._words()):
            found = next(self._rt.runs(words), None)
            run = None if found is None else self._rt.open(found.id)
        if run is not None:
            blocking(run).leave(self._why(error))

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        run = self._left()
        if run is None and isinstance(error, Exception) and isinstance(self._rt, AsyncRuntime):
            found = [one async for one in self._rt.runs(words)][:1] if (words := self._words()) else []
            run = await self._rt.open(found[0].id) if found else None
        if run is not None:
            await awaited(run).leave(self._why(error))

    def _left(self) -> Run | AsyncRun | None:
        self._is_left = True  # no token is put back: the block may be left in another context than it was entered in
        if _turn.get() is self:
            _turn.set(self._outer)
        if self.seat is None:
            return None
        self._forget(self.seat)
        return self.seat.run

    def _words(self) -> str:
        """What finds the run of a turn that was begun elsewhere, and failed here before it asked for a tool."""
        thread = thread_of(self._config)
        return "" if thread is None or '"' in thread else f'tag:"thread:{thread}" status:open,pivoted'

    def _why(self, error: BaseException | None) -> BaseException | None:
        is_pause = isinstance(error, GraphBubbleUp) or (error is None and self.reached_end is False)
        return Waiting("the graph pauses") if is_pause else error

    @property
    def around(self) -> Turn | None:
        """This turn while its block lasts, else the one around it."""
        turn: Turn | None = self
        while turn is not None and turn._is_left:
            turn = turn._outer
        return turn


_turn: ContextVar[Turn | None] = ContextVar("amends.langchain.turn", default=None)


def turn_here() -> Turn | None:
    """Return the turn whose block this code is in, if any."""
    turn = _turn.get()
    return None if turn is None else turn.around


def surrounding(own: Callable[[], str]) -> Run | AsyncRun | None:
    """The run that the program has opened around the graph, or in a tool of which this agent runs.

    ``own``: says the id of the turn's own run. In a replay of that one it is to be opened as it was then.
    """
    try:
        found: Run | AsyncRun = current_run()
    except NoRun:
        return None
    if found.awaits_opening:
        with suppress(UsageError):  # it has no id of its own
            return None if found.id == own() else found
    return found


def blocking(run: Run | AsyncRun | None) -> Run:
    """This run, which must be a blocking one."""
    if not isinstance(run, Run):
        raise UsageError("the run around this graph is async", hint="use ainvoke inside it")
    return run


def awaited(run: Run | AsyncRun | None) -> AsyncRun:
    """This run, which must be an async one."""
    if not isinstance(run, AsyncRun):
        raise UsageError("the run around this graph is blocking", hint="use invoke inside it")
    return run
