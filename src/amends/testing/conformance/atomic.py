"""Atomicity: an operation happens wholly or not at all, and once, however often it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final

from amends.ledger import dispatch, rows, tables
from amends.ledger import operations as ops
from amends.ledger.flow import Flow, Op
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import Clock, Ledger
from amends.testing.conformance.prove import Skipped, check_each
from amends.testing.conformance.scenarios import SCENARIOS, Scenario

ROWS_MAX: Final = 100
"""More than the row operations of any scenario."""

# These carry nothing that tells a repetition from a second request. A repetition goes one step further: to the next
# recorded generation, the next count of probes, the next trees for gc. It starts no body and changes no state.
ONE_FURTHER: Final = ("admit_recorded_failure", "probe", "collect", "collect_failed")


READS: Final = (
    rows.Now,
    tables.Find,
    tables.List,
    rows.PageUnsealed,
    rows.CountStates,
    rows.CountCalls,
    rows.UnusualCalls,
    rows.FindWaiting,
    ops.Misfits,
)
"""Row operations that change nothing. One that is missing here costs time, no more."""


class Broken(Exception):
    """A row could not be written."""


@dataclass
class Break:
    """Where an operation was broken."""

    is_broken: bool = False
    at_end: bool = False
    """Whether every row operation was carried out, and the transaction failed before its commit."""
    after: Op[Any] | None = None
    """The row operation before the one that failed, if there is one."""


@check_each(SCENARIOS)
def an_operation_that_fails_in_the_middle_leaves_nothing_behind(ledger: Ledger, scenario: Scenario) -> None:
    op = scenario(ledger)
    asked = _said(op)
    before = (ledger.everything(), ledger.approvals())
    for after in range(ROWS_MAX):
        with breaking(type(op), after) as broken:
            try:
                ledger(op)
            except Broken:
                # After a read there is no more to leave behind than before it. Should a store write late, during a
                # read, then what it left is still there at the next comparison; there is one at the end.
                if broken.at_end or not isinstance(broken.after, READS):
                    assert (ledger.everything(), ledger.approvals()) == before, (
                        f"broken at row operation {after}, something was left behind"
                    )
                assert _said(op) == asked, "the request was changed"
            else:
                assert not broken.is_broken, "the failure of a row was swallowed"
                assert after == 0, "the operation ends as it began"
                raise Skipped(f"this store carries {type(op).__name__} out without the shared flows: nothing to break")
        if broken.at_end:
            assert after > 1, "the scenario has something to break"
            ledger(op)
            return
    raise AssertionError(f"{type(op).__name__} did not end within {ROWS_MAX} row operations")


@check_each(SCENARIOS)
def a_repeated_operation_gives_the_first_answer(ledger: Ledger, scenario: Scenario) -> None:
    op = scenario(ledger)
    first = ledger(op)
    after, asked = ledger.everything(), ledger.approvals()
    op.repeated = True
    second = ledger(op)
    if scenario.__name__ in ONE_FURTHER:
        assert type(second) is type(first)
        assert {call.id: call.state for call in ledger.calls()} == {call.id: call.state for call in after[1]}
    else:
        assert second == first
        assert (ledger.everything(), ledger.approvals()) == (after, asked)


@check_each(SCENARIOS)
def repeating_what_never_happened_makes_it_happen(ledger: Ledger, scenario: Scenario) -> None:
    """Repeat a first request that never arrived: its sender does not know that, so it is marked as repeated."""
    clock = Clock()
    reference = Ledger(MemoryStore(clock), clock=clock)
    expected = reference(scenario(reference))
    op = scenario(ledger)
    op.repeated = True
    assert ledger(op) == expected
    assert ledger.everything() == reference.everything()
    assert ledger.approvals() == reference.approvals()
    assert ledger.slices() == reference.slices()
    for reading in (ops.ListLocks("acme"), ops.ListHalts(), ops.ListPermits("acme"), ops.ListTokens(None)):
        assert ledger(reading) == reference(reading)


@contextmanager
def breaking(kind: type[ops.StoreOp[Any]], after: int) -> Iterator[Break]:
    """Make the flow of this operation fail at its row operation number ``after``; show whether it did.

    With exactly that many, it fails at its end, before the commit.

    A store that performs operations through ``amends.ledger.dispatch`` cannot avoid it.
    """
    true = dispatch.INTENTS[kind]
    broken = Break()
    dispatch.INTENTS[kind] = _breaking(true, after, broken)
    try:
        yield broken
    finally:
        dispatch.INTENTS[kind] = true


def _breaking(true: Callable[[Any], Flow[Any]], after: int, broken: Break) -> Callable[[Any], Flow[Any]]:
    async def flow(op: Any) -> Any:
        inner, count, answer = true(op), 0, None
        try:
            while True:
                row_op = inner.send(answer)
                if count == after:
                    broken.is_broken = True
                    raise Broken
                count += 1
                broken.after = row_op
                answer = await row_op
        except StopIteration as stop:
            if count < after:
                return stop.value
            broken.is_broken = broken.at_end = True
            raise Broken from None
        finally:
            inner.close()

    return flow


def _said(op: ops.StoreOp[Any]) -> dict[str, Any]:
    return {field.name: getattr(op, field.name) for field in fields(op)}
