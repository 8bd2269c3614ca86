"""Atomicity: an operation happens wholly or not at all, and once, however often it is repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from amends.ledger import dispatch
from amends.ledger import operations as ops
from amends.ledger.flow import Flow
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import Clock, Ledger
from amends.testing.conformance.prove import Skipped, check_each
from amends.testing.conformance.scenarios import SCENARIOS, Scenario

ROWS_MAX: Final = 100
"""More than the row operations of any scenario."""

# These carry nothing that tells a repetition from a second request. A repetition goes one step further: to the next
# recorded generation, the next count of probes, the next trees for gc. It starts no body and changes no state.
ONE_FURTHER: Final = ("admit_recorded_failure", "probe", "collect")


class Broken(Exception):
    """A row could not be written."""


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
                assert (ledger.everything(), ledger.approvals()) == before, (
                    f"broken at row operation {after}, something was left behind"
                )
                assert _said(op) == asked, "the request was changed"
                continue
        if not broken and after == 0:
            raise Skipped(f"this store carries {type(op).__name__} out without the shared flows: nothing to break")
        assert not broken, "the failure of a row was swallowed"
        assert after > 1, "the scenario has something to break"
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
    assert ledger(ops.ListLocks("acme")) == reference(ops.ListLocks("acme"))


@contextmanager
def breaking(kind: type[ops.StoreOp[Any]], after: int) -> Iterator[list[int]]:
    """Make the flow of this operation fail at its row operation number ``after``; the list shows whether it did.

    A store that performs operations through ``amends.ledger.dispatch`` cannot avoid it.
    """
    true = dispatch.INTENTS[kind]
    broken: list[int] = []
    dispatch.INTENTS[kind] = _breaking(true, after, broken)
    try:
        yield broken
    finally:
        dispatch.INTENTS[kind] = true


def _breaking(true: Callable[[Any], Flow[Any]], after: int, broken: list[int]) -> Callable[[Any], Flow[Any]]:
    async def flow(op: Any) -> Any:
        inner, count, answer = true(op), 0, None
        try:
            while True:
                row_op = inner.send(answer)
                if count == after:
                    broken.append(count)
                    raise Broken
                count += 1
                answer = await row_op
        except StopIteration as stop:
            return stop.value
        finally:
            inner.close()

    return flow


def _said(op: ops.StoreOp[Any]) -> dict[str, Any]:
    return {field.name: getattr(op, field.name) for field in fields(op)}
