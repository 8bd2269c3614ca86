"""The context of running code: its run, the call whose body it is, and what it may not do from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from amends.budgets import Number, billionths, unit_of
from amends.errors import NoRun, UsageError
from amends.ledger.flow import Flow
from amends.ledger.world import Invoked, LazyCall
from amends.model import Call
from amends.tools.scope import Options, Scope, caller_here, enter_scope, enter_scope_of, is_of, leave_scope, scope_here
from amends.tools.spec import Declaration


def current_call() -> Call:
    """Return the call whose body is running; its key is the idempotency key for the provider.

    Inside a compensation this is the compensation, which has a key of its own.
    """
    call = _call_here()
    if call is None:
        raise NoRun("there is no current call: this code does not run inside a tool's body")
    return call.whole() if isinstance(call, LazyCall) else call


def spent(amount: Number, unit: str = "usd") -> None:
    """Report what the call whose body is running really cost; several reports add up.

    Without a report a call costs what its tool's ``cost=`` says. In a probe or a compensation it has no effect: those
    are charged to no budget.
    """
    call = _call_here()
    if call is None:
        raise NoRun("spent() was called outside a tool's body: there is no call to charge")
    try:
        more, unit = billionths(amount), unit_of(unit)
    except ValueError as error:
        raise UsageError(f"spent() of {call.tool}: {error}") from error
    if isinstance(call, LazyCall):
        said = call.spent = {} if call.spent is None else call.spent
        said[unit] = said.get(unit, 0) + more


def current_run(rt: object = None) -> Any:
    """Return the run that this code is in; raise ``NoRun`` outside of one.

    ``rt``: the runtime that must have opened it. A call belongs to the runtime of its run: in a run of another one, code
    that has its own runtime opens a run of that.
    """
    scope = scope_here()
    if scope is None or scope.caller._is_nowhere:
        raise NoRun("there is no current run here")
    if scope.is_left and scope.place is not None:
        raise NoRun(f"there is no current run here: the block of run {scope.caller.id} has been left")
    if rt is not None and not is_of(scope.caller, rt):
        raise NoRun(
            f"there is no current run of this runtime here: run {scope.caller.id} was opened by another one",
            hint="open a run of this runtime: its tools and rules are not those of the other one",
        )
    return scope.caller


def _call_here() -> Call | LazyCall | None:
    scope = scope_here()
    return None if scope is None else scope.call


def parent_call() -> str:
    """Return the id of the call whose body makes another call; empty if there is none."""
    call = _call_here()
    return "" if call is None else call.id


def reader() -> tuple[str, int]:
    """Return the id of the call in whose body this code runs, with its attempt; outside a body "" and 0."""
    call = _call_here()
    return ("", 0) if call is None else (call.id, call.attempt)


guards: Final[list[Callable[[str], None]]] = []
"""Called before a program uses the ledger; a replay adds one that raises."""


def refuse_ledger_use(what: str, flow: Flow[Any] | None = None) -> None:
    """Raise inside a replay, where code may not use the ledger; close ``flow`` unused in that case."""
    try:
        for guard in guards:
            guard(what)
    except Exception:
        if flow is not None:
            flow.close()
        raise


def body_here() -> Call | LazyCall | None:
    """Return the call whose body this code runs in, for work that continues in another thread or task."""
    return _call_here()


@contextmanager
def within(run: Any, body: Call | LazyCall | None) -> Iterator[None]:
    """Run this block in the context of a run, and of the body that started it elsewhere."""
    scope = enter_scope(run)
    if body is not None:
        scope.call = body
    try:
        yield
    finally:
        leave_scope(scope)


def calling_run() -> str:
    """Return the id of the run whose call's body this is; empty if there is none."""
    call = _call_here()
    return "" if call is None else call.run_id


class _Nowhere:
    """The caller inside a probe, a compensation or a hook: nothing may be started from there."""

    _is_nowhere = True
    _is_replay = False

    def __init__(self, phase: Invoked, call: Call | LazyCall, is_async: bool) -> None:
        self.is_async = is_async
        self._phase, self._call = phase, call

    def direct(self, declared: Declaration, options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Refuse: a call that a compensation starts could not be compensated itself."""
        raise self.refusal(declared.name)

    def refusal(self, tool: str) -> NoRun:
        """Return the error for a tool that is called here."""
        where = {"compensate": "compensation", "execute": "body"}.get(self._phase, self._phase)
        return NoRun(
            f"{tool} was called inside the {where} of {self._call.tool}; nothing was started",
            tool=tool,
            hint="use the bare function, tool.fn, for what belongs to the same effect",
        )


def refuse_without_run(tool: str) -> None:
    """Raise inside a probe, a compensation or a hook: a run used by hand starts nothing there either."""
    caller = caller_here()
    if isinstance(caller, _Nowhere):
        raise caller.refusal(tool)


def refuse_own(key: str, ident: str, tool: str) -> None:
    """Raise if a body requests the call that it is the body of: it would wait for its own end."""
    scope = scope_here()
    while scope is not None:
        row = getattr(scope.call, "row", None)
        if row is not None and (row.key, row.ident) == (key, ident) and not scope.is_left:
            raise UsageError(
                f"{tool} was called inside its own body with the same key: it would wait for itself; nothing was started",
                hint="use the bare function, tool.fn, for what belongs to the same call",
            )
        scope = scope.outer


def enter_body(run: Any, call: Call | LazyCall, phase: Invoked, *, is_async: bool) -> Scope:
    """Enter the context of a body: the run for nested calls, the call for its key. ``leave_scope`` leaves it."""
    is_in_run = phase == "execute" and run is not None  # a worker performs bodies of runs that it does not have
    return enter_scope_of(call, run if is_in_run else _Nowhere(phase, call, is_async))


def inside(run: Any, call: Call | LazyCall, phase: Invoked, *, is_async: bool) -> _Inside:
    """Return the context of a body: the run for nested calls, the call for its key."""
    is_in_run = phase == "execute" and run is not None
    return _Inside(run if is_in_run else _Nowhere(phase, call, is_async), call)


class _Inside:
    """A context manager by hand: every body enters it, and as a generator it would cost three times as much."""

    __slots__ = ("_call", "_caller", "_scope")

    def __init__(self, caller: Any, call: Call | LazyCall) -> None:
        self._caller, self._call = caller, call

    def __enter__(self) -> None:
        self._scope = enter_scope_of(self._call, self._caller)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        leave_scope(self._scope)
