"""A store proves itself: every check, each on a new ledger, in both colours."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, TypeVar

from amends.ledger.operations import Store
from amends.testing.conformance.ledger import Clock, Ledger, audit
from amends.testing.conformance.registry import CHECKS, Skipped

S = TypeVar("S", bound=Store)

LedgerTime: TypeAlias = Callable[[], float]
"""Seconds since the epoch, as the ledger shall see them."""
Colour: TypeAlias = Literal["blocking", "async"]
COLOURS: Final[tuple[Colour, ...]] = ("blocking", "async")
FRAMES_MAX: Final = 6
"""Of a failure's traceback, the innermost ones."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What each check said; names end in the colour, as in ``opening.a_closed_run_is_not_claimed-async``."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    """With the text of the failure."""
    skipped: Mapping[str, str]
    """With the reason: nothing was proved here."""

    @property
    def ok(self) -> bool:
        """Something was checked, and nothing failed."""
        return bool(self.passed) and not self.failed

    def raise_for_failures(self) -> None:
        """Nothing, or an ``AssertionError`` that tells every failure."""
        if not self.ok:
            raise AssertionError(f"\n{self}")

    def __str__(self) -> str:
        """The counts, then each failure and each reason for skipping."""
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
    """Every check of ``STORE_CHECKS`` (or ``only`` these) was made on this kind of store; the proof says how each ended.

    ``make(clock)`` gives a store over a new, empty ledger; it is opened with ``create=True`` and closed here. The
    store must take its time from ``clock()``, in seconds, and from nowhere else: checks move it by hand. Where making
    a ledger is expensive, ``make`` may empty an old one; leave ``opening.a_new_ledger_says_that_it_is_new_and_is_empty``
    out then. ``second(store, clock)`` gives another handle on the ledger of ``store``, as another process would have
    it; races go over both. Not to be called from inside an event loop.
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
                failed[shown] = _told(error)
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
    """This one check holds: for a test of its own per check. Raises what went wrong, ``Skipped`` when it cannot be made.

    ``make`` and ``second`` as for ``prove_store``.
    """
    [known] = _names((name,))
    with _under_test(make, second, colour) as ledger:
        CHECKS[known](ledger)
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
            after.callback(store.close)  # may be called twice
            is_new = store.open(create=create)
            runner = after.enter_context(asyncio.Runner()) if colour == "async" else None
            return Ledger(store, colour, clock, is_new=is_new, runner=runner)

        store = make(clock)
        ledger = handle(store, create=True)
        if second is not None:
            ledger.second = lambda: handle(second(store, clock), create=False)
        yield ledger


def _told(error: Exception) -> str:
    """The error with where it was raised; a bare assertion says nothing but its place."""
    return "".join(traceback.format_exception(error, limit=-FRAMES_MAX))
