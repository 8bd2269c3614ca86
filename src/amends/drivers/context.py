"""What code inside a run can ask about itself: its run, and the call whose body it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from amends.errors import NoRun, UsageError
from amends.ledger.flow import Flow
from amends.ledger.world import Invoked, Later
from amends.model import Call, Number, billionths, unit_of
from amends.tools.spec import Declaration
from amends.tools.tool import Options, Scope, caller_here, enter_scope, leave_scope, scope_here


def current_call() -> Call:
    """The call whose body is running: its key is the provider's idempotency key. In a compensation: the compensation."""
    call = _call_here()
    if call is None:
        raise NoRun("there is no current call: this code does not run inside a tool's body")
    return call.whole() if isinstance(call, Later) else call


def spent(amount: Number, unit: str = "usd") -> None:
    """The call whose body is running has really cost this much; said more than once, it adds up.

    Without it a call costs what its tool's ``cost=`` says. In a probe or a compensation it says nothing: those come
    out of no budget.
    """
    call = _call_here()
    if call is None:
        raise NoRun("spent() was called outside a tool's body: nobody knows which call it is about")
    try:
        more, unit = billionths(amount), unit_of(unit)
    except ValueError as error:
        raise UsageError(f"spent() of {call.tool}: {error}") from error
    if isinstance(call, Later):
        said = call.spent = {} if call.spent is None else call.spent
        said[unit] = said.get(unit, 0) + more


def current_run() -> Any:
    """The run this code is in; raises ``NoRun`` outside."""
    scope = scope_here()
    if scope is None or scope.caller._is_nowhere:
        raise NoRun("there is no current run here")
    if scope.is_left and scope.place is not None:
        raise NoRun(f"there is no current run here: the block of run {scope.caller.id} has been left")
    return scope.caller


def _call_here() -> Call | Later | None:
    scope = scope_here()
    return None if scope is None else scope.call


def parent_call() -> str:
    """The id of the call whose body asks for another one, if any."""
    call = _call_here()
    return "" if call is None else call.id


def reader() -> tuple[str, int]:
    """The call in whose body this code runs, with its attempt; outside a body no call, and 0."""
    call = _call_here()
    return ("", 0) if call is None else (call.id, call.attempt)


guards: Final[list[Callable[[str], None]]] = []
"""Asked before a program reaches for the ledger: replays add one, and it refuses."""


def refuse_reaching(what: str, flow: Flow[Any] | None = None) -> None:
    """Raise where this code may not ask the ledger: inside a replay. ``flow``: what it was about to ask."""
    try:
        for guard in guards:
            guard(what)
    except Exception:
        if flow is not None:
            flow.close()
        raise


def body_here() -> Call | Later | None:
    """Return the call whose body this code runs in, for work that is handed to another thread or task."""
    return _call_here()


@contextmanager
def within(run: Any, body: Call | Later | None) -> Iterator[None]:
    """Let this code belong to a run, and to the body that handed it on."""
    scope = enter_scope(run)
    if body is not None:
        scope.call = body
    try:
        yield
    finally:
        leave_scope(scope)


def calling_run() -> str:
    """The id of the run whose call's body this is, if any."""
    call = _call_here()
    return "" if call is None else call.run_id


class _Nowhere:
    """The caller inside a probe, a compensation or a hook: nothing may be started from there."""

    _is_nowhere = True
    _is_replay = False

    def __init__(self, phase: Invoked, call: Call | Later, is_async: bool) -> None:
        self.is_async = is_async
        self._phase, self._call = phase, call

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Refuse: a way back that starts new calls would have no way back."""
        raise self.refusal(declared.name)

    def refusal(self, tool: str) -> NoRun:
        """What is said to whoever asks for a tool here."""
        where = "compensation" if self._phase == "compensate" else self._phase
        return NoRun(
            f"{tool} was called inside the {where} of {self._call.tool}; nothing was started",
            tool=tool,
            hint="use the bare function, tool.fn, for what belongs to the same act",
        )


def refuse_nowhere(tool: str) -> None:
    """A run that is held by hand starts nothing inside a probe or compensation either."""
    caller = caller_here()
    if isinstance(caller, _Nowhere):
        raise caller.refusal(tool)


def refuse_own(key: str, ident: str, tool: str) -> None:
    """Raise where a body asks for the very call that it is the body of: it would wait for its own end."""
    scope = scope_here()
    while scope is not None:
        row = getattr(scope.call, "row", None)
        if row is not None and (row.key, row.ident) == (key, ident) and not scope.is_left:
            raise UsageError(
                f"{tool} was called inside its own body with the same key: it would wait for itself; nothing was started",
                hint="use the bare function, tool.fn, for what belongs to the same call",
            )
        scope = scope.outer


def inside(run: Any, call: Call | Later, phase: Invoked, *, is_async: bool) -> _Inside:
    """Give a body its context: the run for nested calls, the call for its key."""
    return _Inside(run if phase == "execute" else _Nowhere(phase, call, is_async), call)


class _Inside:
    """Not a generator: every body passes here, and two thirds of its price would be the generator's."""

    __slots__ = ("_call", "_caller", "_scope")

    def __init__(self, caller: Any, call: Call | Later) -> None:
        self._caller, self._call = caller, call

    def __enter__(self) -> None:
        scope: Scope = enter_scope(self._caller)
        scope.call, scope.use = self._call, None
        self._scope = scope

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        leave_scope(self._scope)
