"""How a direct call finds its run: the scopes of blocks, bound functions and bodies, and the calls still to be awaited."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from itertools import count
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from amends.encoding.dataclass import dataclass
from amends.errors import NoRun
from amends.tools.spec import (
    Declaration,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """What ``with_options`` says of one call."""

    again: str | None = None
    timeout: float | None = None
    connection: object | None = None


class Caller(Protocol):
    """What a run gives to the tools that are called inside it."""

    is_async: bool
    _is_nowhere: bool
    """Whether this is no run: the inside of a probe, a compensation or a hook, where nothing may be started."""
    _is_replay: bool

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do this call; an async run returns an awaitable."""


# ---- Scopes


class Scope:
    """A stretch of code that belongs to a run: a block, a bound function, or a body. Linked to the one around it.

    Leaving a scope marks it instead of resetting a context variable: a block may be left in another context, thread
    or task than it was entered in, and a token works only in the context that made it.
    """

    __slots__ = ("call", "caller", "is_left", "is_over", "outer", "place", "use")

    def __init__(self, caller: Any, outer: Scope | None, place: _Place | None = None) -> None:
        self.caller, self.outer, self.place = caller, outer, place
        self.call: Any = None if outer is None else outer.call
        """The call whose body this code is part of, if any."""
        self.use: BareUse | None = None if outer is None else outer.use
        self.is_left = self.is_over = False
        """Left: nothing begins in it any more. Over: its run has been committed, taken back or let go, too."""


_Place: TypeAlias = tuple[int, weakref.ref[Any] | None]
"""A thread and a task in it."""
_scope: ContextVar[Scope | None] = ContextVar("amends.scope", default=None)


def enter_scope(caller: Any) -> Scope:
    """Begin a scope that the same function leaves: a body, or a function that carries its run."""
    scope = Scope(caller, scope_here())
    _scope.set(scope)
    return scope


def enter_block(caller: Any) -> Scope:
    """Begin the scope of a block, which may be left anywhere."""
    scope = Scope(caller, scope_here(), _place())
    _scope.set(scope)
    return scope


def leave_scope(scope: Scope, *, is_over: bool = True) -> None:
    """End a scope, in any context. Raises nothing; leaving twice is leaving once."""
    scope.is_left, scope.is_over = True, is_over
    here = _scope.get()
    if here is not scope and scope.place is None:
        while here is not None and here is not scope:
            here = here.outer  # a block that a body has entered and not left ends for its caller with the body
    if here is scope:
        _scope.set(scope.outer)


def scope_here() -> Scope | None:
    """Return the innermost scope that this code is in.

    A block that was left elsewhere is over for the task or thread that entered it: that one is in the scope around it
    again. Work that was started inside the block, and outlives it, still belongs to its run, which refuses it: it must
    not slip into the run around. Where everything around is over as well, it is in no scope.
    """
    scope = _scope.get()
    if scope is None or not scope.is_left or scope.place is None:
        return scope
    here = _place()
    while scope is not None and scope.is_left and scope.place == here:
        scope = scope.outer
    if _is_all_over(scope):
        scope = None
    _scope.set(scope)  # tasks and threads that are started from now on begin with the right one
    return scope


def _is_all_over(scope: Scope | None) -> bool:
    while scope is not None and scope.is_over:
        scope = scope.outer
    return scope is None


def caller_here() -> Caller | None:
    """Return what carries out a tool that is called here: a run, or what refuses; None outside of runs."""
    scope = scope_here()
    return None if scope is None else scope.caller


def open_caller_here() -> Caller | None:
    """Return the same without runs that have been left: code that only outlives a run is not inside it any more."""
    scope = scope_here()
    while scope is not None and scope.is_left and not scope.caller._is_nowhere:
        scope = scope.outer
    return None if scope is None else scope.caller


def _place() -> _Place:
    task = None
    asyncio = sys.modules.get("asyncio")  # a program that never imported it has no tasks
    if asyncio is not None:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            task = None
    return threading.get_ident(), None if task is None else weakref.ref(task)


# ---- Bodies that a handler calls


class BareUse:
    """The right of a handler to call the tool's own function as the body of its call.

    It holds for one call, with exactly the arguments of the request, until the handler ends.
    """

    __slots__ = ("_is_over", "_is_same", "_is_used", "_lock", "declared")

    def __init__(self, declared: Declaration, is_same: Callable[[tuple[Any, ...], dict[str, Any]], bool]) -> None:
        self.declared, self._is_same = declared, is_same
        self._is_over = self._is_used = False
        self._lock = threading.Lock()

    def may_be_of(self, declared: Declaration) -> bool:
        """Whether the handler of a call of this tool still runs."""
        return declared is self.declared and not self._is_over

    def take(self, declared: Declaration, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Use it up for this call; False: it is not for this call, which is then guarded like any other.

        Raises ``NoRun`` for the same call a second time: guarded, it would wait for itself.
        """
        if not self.may_be_of(declared) or not self._is_same(args, kwargs):
            return False
        with self._lock:
            if self._is_over:
                return False
            if self._is_used:
                raise NoRun(
                    f"{declared.name} was called a second time inside its handler; nothing was started",
                    tool=declared.name,
                    hint="call it once in the handler, and let retry= of the tool make it again",
                )
            self._is_used = True
        return True

    def end(self) -> None:
        """The handler has ended: whatever it left running calls a guarded tool."""
        with self._lock:
            self._is_over = True


# ---- Calls of an async run that are not awaited yet


class Pending:
    """The guarded calls of one async run that were made and not awaited yet.

    It holds their coroutines: one that is dropped would leave nothing behind that says whether it was closed before.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, Coroutine[Any, Any, Any]]] = {}

    def add(self, tool: str, make: Callable[[Callable[[], None]], T]) -> T:
        """Return the coroutine that ``make`` makes; it calls what it is given as soon as it is awaited."""
        number = next(_numbers)

        def begun() -> None:
            self._made.pop(number, None)

        coroutine: Any = make(begun)
        self._made[number] = (tool, coroutine)
        made: T = coroutine
        return made

    def __bool__(self) -> bool:
        return bool(self._made)

    def names(self) -> list[str]:
        """The tools of the calls that nobody has awaited; without those that were closed or cancelled before."""
        created = inspect.CORO_CREATED
        return [tool for tool, made in list(self._made.values()) if inspect.getcoroutinestate(made) == created]

    def clear(self) -> None:
        """Let go of them: the run has been left."""
        self._made.clear()


_numbers: Final = count(1)
