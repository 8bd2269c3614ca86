"""How a direct call finds its run: the scopes of blocks, bound functions and bodies."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

from amends.encoding.dataclass import dataclass
from amends.errors import NoRun
from amends.tools.spec import (
    Declaration,
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options that ``with_options`` sets for one call."""

    again: str | None = None
    timeout: float | None = None
    connection: object | None = None


class Caller(Protocol):
    """What performs the tools that are called inside a run."""

    is_async: bool
    _is_nowhere: bool
    """Whether this is not a run but the inside of a probe, a compensation or a hook, where nothing may start."""
    _is_replay: bool

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Perform this call; an async run returns an awaitable."""


# ---- Scopes


class Scope:
    """Code that belongs to a run: a block, a bound function, or a body. Linked to the scope around it.

    Leaving a scope marks it instead of resetting a context variable: a block may be left in another context, thread or
    task than it was entered in, and a token works only in the context that made it.
    """

    __slots__ = ("call", "caller", "is_left", "is_over", "outer", "place", "use")

    def __init__(
        self, caller: Any, outer: Scope | None, place: _Place | None, call: Any = None, use: BareUse | None = None
    ) -> None:
        self.caller, self.outer, self.place = caller, outer, place
        self.call = call
        """The call whose body this code is part of, if any."""
        self.use = use
        self.is_left = self.is_over = False
        """Left: nothing starts in it any more. Over: its run has also been committed, rolled back or released."""


_Place: TypeAlias = tuple[int, weakref.ref[Any] | None]
"""A thread and a task in it."""
_scope: ContextVar[Scope | None] = ContextVar("amends.scope", default=None)


def enter_scope(caller: Any) -> Scope:
    """Enter a scope that the same function leaves: a function bound to a run."""
    outer = scope_here()
    scope = Scope(caller, outer, None) if outer is None else Scope(caller, outer, None, outer.call, outer.use)
    _scope.set(scope)
    return scope


def enter_scope_of(call: Any, caller: Any) -> Scope:
    """Enter the scope of the body of a call; the same function leaves it."""
    scope = Scope(caller, scope_here(), None, call)
    _scope.set(scope)
    return scope


@contextmanager
def outside() -> Iterator[None]:
    """Leave the scopes around this code: what it does belongs to no run of its caller."""
    token = _scope.set(None)
    try:
        yield
    finally:
        _scope.reset(token)


def enter_block(caller: Any) -> Scope:
    """Enter the scope of a block, which may be left in any context."""
    outer = scope_here()
    scope = Scope(caller, outer, _place())
    # If the body around it is that of another runtime, this one does not know its calls.
    if outer is not None and _runtime_of(outer.caller) is _runtime_of(caller):
        scope.call, scope.use = outer.call, outer.use
    _scope.set(scope)
    return scope


def _runtime_of(caller: Any) -> object:
    return getattr(caller, "_host", None)


def leave_scope(scope: Scope, *, is_over: bool = True) -> None:
    """Leave a scope, in any context. Never raise; leaving twice has no further effect."""
    scope.is_left, scope.is_over = True, is_over
    here = _scope.get()
    if scope.place is None:
        while here is not scope and here is not None:
            here = here.outer  # a block that a body entered but did not leave ends with the body
    else:
        while here is not scope and here is not None and here.place is None and here.call is not scope.call:
            here = here.outer  # a body that was interrupted as it began has left its scope behind
    if here is scope:
        _scope.set(scope.outer)


def scope_here() -> Scope | None:
    """Return the innermost scope of this code, or None.

    When a block is left in another task or thread, the one that entered it is in the scope around it again. Work that
    was started inside the block and outlives it still belongs to its run, which refuses it: it must not slip into the
    run around. If all scopes around it are over as well, it is in no scope.
    """
    scope = _scope.get()
    if scope is None or not scope.is_left or scope.place is None:
        return scope
    here = _place()
    while scope is not None and scope.is_left and scope.place == here:
        scope = scope.outer
    if _is_all_over(scope):
        scope = None
    _scope.set(scope)  # so that tasks and threads started from now on inherit the right scope
    return scope


def _is_all_over(scope: Scope | None) -> bool:
    while scope is not None and scope.is_over:
        scope = scope.outer
    return scope is None


def caller_here() -> Caller | None:
    """Return what performs a tool that is called here: a run, or an object that refuses; None outside of runs."""
    scope = scope_here()
    return None if scope is None else scope.caller


def run_around(host: object) -> Caller | None:
    """Return the innermost open run of the runtime with this host around this code; None: none is open.

    Inside a probe, a compensation, a hook or a replay that is the caller: nothing of another runtime starts there either.
    """
    scope = scope_here()
    while scope is not None:
        caller = scope.caller
        if caller._is_nowhere or (not scope.is_left and (caller._is_replay or _runtime_of(caller) is host)):
            found: Caller = caller
            return found
        scope = scope.outer
    return None


def is_of(caller: Any, rt: object) -> bool:
    """Return whether this run belongs to this runtime: was opened by it, or by another view of it. A replay is of any."""
    return bool(caller._is_replay) or _runtime_of(caller) is _runtime_of(rt)


def _place() -> _Place:
    asyncio = sys.modules.get("asyncio")  # a program that never imported it has no tasks
    loop = None if asyncio is None else asyncio._get_running_loop()  # raises no error if there is none
    task = None if asyncio is None or loop is None else asyncio.current_task(loop)
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
        """Return whether the handler of a call of this tool still runs."""
        return declared is self.declared and not self._is_over

    def take(self, declared: Declaration, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Use the right for this call; return False if it is not for this call, which is then guarded as usual.

        Raise ``NoRun`` for the same call a second time: as a guarded call it would wait for itself.
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
                    hint="call it once in the handler, and use retry= of the tool to repeat it",
                )
            self._is_used = True
        return True

    def end(self) -> None:
        """End the right with the handler: work that it left running calls the guarded tool."""
        with self._lock:
            self._is_over = True


# ---- Calls of an async run that are not awaited yet


Begun: TypeAlias = Callable[[], object]
"""What a coroutine calls first: from then on it counts as awaited."""


class Pending:
    """The guarded calls of one async run that have not been awaited yet.

    It holds their coroutines, because a dropped coroutine could not be asked whether it was closed.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, Coroutine[Any, Any, Any]]] = {}

    def add(self, tool: str, make: Callable[..., Any], *args: Any) -> Any:
        """Return the coroutine that ``make`` creates from a ``Begun`` and the arguments; it calls that as soon as it is awaited."""
        number, made = next(_numbers), self._made
        coroutine = make(partial(made.pop, number, None), *args)
        made[number] = tool, coroutine
        return coroutine

    def __bool__(self) -> bool:
        return bool(self._made)

    def names(self) -> list[str]:
        """Return the tools of the calls that were never awaited, without those that were closed or cancelled."""
        created = inspect.CORO_CREATED
        return [tool for tool, made in list(self._made.values()) if inspect.getcoroutinestate(made) == created]

    def clear(self) -> None:
        """Forget all calls, when the run has been left."""
        self._made.clear()


_numbers: Final = count(1)
