"""``prove_store`` and the registry of checks: each check runs on a new ledger, in both colours."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypeVar

from amends.ledger.store import Store
from amends.testing.conformance.ledger import Clock, Ledger, audit

S = TypeVar("S", bound=Store)

LedgerTime: TypeAlias = Callable[[], float]
"""Returns the ledger's time, in seconds since the epoch."""
Colour: TypeAlias = Literal["blocking", "async"]
COLOURS: Final[tuple[Colour, ...]] = ("blocking", "async")
Check: TypeAlias = Callable[[Ledger], None]
"""A function of a new, empty ledger; its name is the property that it checks."""
FRAMES_MAX: Final = 6
"""How many of the innermost frames of a failure's traceback are shown."""


class Skipped(Exception):
    """A check could not be made: this store does not have what it looks at, or it was not given."""


# ---- Registering checks


class Suite(dict[str, Check]):
    """Checks by name, in the order in which they are registered and run."""

    def check(self, prove: Callable[..., None]) -> Callable[..., None]:
        """Register a check under the names of its module and its function (a decorator)."""
        return self._add(prove, "", prove)

    def check_each(
        self, each: Mapping[str, Any] | Iterable[str]
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a check once for each of these values, which is its second argument (a decorator)."""
        values = dict(each) if isinstance(each, Mapping) else {name: name for name in each}

        def add(prove: Callable[..., None]) -> Callable[..., None]:
            for name, value in values.items():
                self._add(prove, f"[{name}]", partial(_with_value, prove, value))
            return prove

        return add

    def _add(self, prove: Callable[..., None], which: str, bound: Check) -> Callable[..., None]:
        name = f"{prove.__module__.rpartition('.')[2]}.{prove.__name__}{which}"
        assert name not in self, f"two checks are named {name}"
        self[name] = bound
        return prove


def _with_value(prove: Callable[..., None], value: object, ledger: Ledger) -> None:
    prove(ledger, value)


CHECKS: Final = Suite()
"""What every store must pass, in the order in which a new store best proves itself: races last."""
check = CHECKS.check
check_each = CHECKS.check_each


# ---- Running checks


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of each check; names end in the colour, as in ``opening.a_closed_run_is_not_claimed-async``."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    """The text of each failure."""
    skipped: Mapping[str, str]
    """The reason why each of these proved nothing."""

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed."""
        return bool(self.passed) and not self.failed

    def raise_for_failures(self) -> None:
        """Raise an ``AssertionError`` with every failure unless ``ok``."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        """Return the counts, then each reason for skipping and each failure."""
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        failures = [f"FAILED {name}\n{text.rstrip()}" for name, text in self.failed.items()]
        reasons = [f"skipped {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join([counts, *reasons, *failures])


def prove_store(
    make: Callable[[LedgerTime], S],
    *,
    second: Callable[[S, LedgerTime], Store] | None = None,
    colours: Collection[Colour] = COLOURS,
    only: Collection[str] | None = None,
) -> Proof:
    """Run every check of ``STORE_CHECKS`` on this kind of store and return how each ended.

    Do not call it from inside an event loop.

    ``make(clock)`` returns a store over a new, empty ledger; ``prove_store`` opens it with ``create=True`` and closes
    it. The store must take its time from ``clock()``, in seconds, and from nowhere else: checks move it by hand. Where
    making a ledger is expensive, ``make`` may empty an old one; then leave out
    ``opening.a_new_ledger_says_that_it_is_new_and_is_empty``.
    ``second(store, clock)`` returns another handle on the ledger of ``store``, as another process would have it; races
    go over both.
    ``only`` names the checks to run, if not all.
    """
    names = _names(only)
    passed: list[str] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for colour in colours:
        for name in names:
            shown = f"{name}-{colour}"
            try:
                check_store(name, make, second=second, colour=colour)
            except Skipped as skip:
                skipped[shown] = str(skip)
            except Exception as error:
                failed[shown] = _failure_text(error)
            else:
                passed.append(shown)
    return Proof(tuple(passed), MappingProxyType(failed), MappingProxyType(skipped))


def check_store(
    name: str,
    make: Callable[[LedgerTime], S],
    *,
    second: Callable[[S, LedgerTime], Store] | None = None,
    colour: Colour = "blocking",
) -> None:
    """Run one check: for a test of its own per check. Raise what went wrong, ``Skipped`` if it cannot be made.

    ``make`` and ``second`` are those of ``prove_store``.
    """
    [known] = _names((name,))
    run_check(CHECKS[known], make, second=second, colour=colour)


def run_check(
    prove: Check,
    make: Callable[[LedgerTime], S],
    *,
    second: Callable[[S, LedgerTime], Store] | None = None,
    colour: Colour = "blocking",
) -> None:
    """Run this check on a new ledger, then audit the ledger's record; parameters as for ``prove_store``."""
    with _under_test(make, second, colour) as ledger:
        prove(ledger)
        audit(ledger)


def _names(only: Collection[str] | None) -> tuple[str, ...]:
    if not __debug__:
        raise RuntimeError("the checks are assertions: run Python without -O, or they prove nothing")
    unknown = sorted(set(only or ()) - CHECKS.keys())
    if unknown:
        raise ValueError(f"there is no check {', '.join(unknown)}; STORE_CHECKS has their names")
    return tuple(name for name in CHECKS if only is None or name in only)


@contextmanager
def _under_test(
    make: Callable[[LedgerTime], S], second: Callable[[S, LedgerTime], Store] | None, colour: Colour
) -> Iterator[Ledger]:
    clock = Clock()
    with ExitStack() as after:

        def handle(store: Store, *, create: bool) -> Ledger:
            after.callback(store.close)
            after.callback(store.close)  # closing twice is allowed
            is_new = store.open(create=create)
            runner = after.enter_context(asyncio.Runner()) if colour == "async" else None
            return Ledger(store, colour, clock, is_new=is_new, runner=runner)

        store = make(clock)
        ledger = handle(store, create=True)
        if second is not None:
            ledger.second = lambda: handle(second(store, clock), create=False)
        yield ledger


def _failure_text(error: Exception) -> str:
    """Return the error with its innermost frames: a bare assertion says nothing but its place."""
    return "".join(traceback.format_exception(error, limit=-FRAMES_MAX))
