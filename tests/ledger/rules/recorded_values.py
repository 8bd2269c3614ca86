"""The clock as a program reads it through its run: written down with its time, under the lease."""

from __future__ import annotations

from amends.errors import LeaseLost
from amends.ledger import operations as ops
from amends.ledger.operations import NoteValue
from amends.ledger.rows import EventRow, RunRow
from amends.testing.conformance.ledger import Ledger, raises
from tests.ledger.rules.registry import check


def reading(run: RunRow, nonce: str = "val_1", *, call: str = "", epoch: int = 1) -> NoteValue:
    """The clock, read by the run's owner."""
    return NoteValue(run.uid, run.root, "a", epoch, call, nonce)


def values(ledger: Ledger, run: RunRow) -> list[EventRow]:
    return [event for event in ledger.events(run) if event.what == "value"]


@check
def the_clock_is_an_event_whose_time_was_read(ledger: Ledger) -> None:
    run = ledger.run()
    child = ledger.child(run)
    ledger.clock.now += 5
    first = ledger(reading(run))
    second = ledger(reading(child, "val_2", call="call_x"))
    read = [(event.run, event.call, event.at) for event in values(ledger, run)]
    assert read == [(run.uid, "", first), (child.uid, "call_x", second)]
    assert first is not None
    assert abs(first - ledger.clock.now) < 1.0


@check
def a_reading_asked_for_again_is_the_first_one(ledger: Ledger) -> None:
    run = ledger.run()
    first = ledger(reading(run))
    ledger.clock.now += 5
    again = reading(run)
    again.repeated = True
    assert ledger(again) == first
    other = reading(run, "val_2")
    other.repeated = True
    later = ledger(other)
    assert first is not None
    assert later is not None
    assert later > first
    assert len(values(ledger, run)) == 2


@check
def who_does_not_own_the_run_reads_nothing_through_it(ledger: Ledger) -> None:
    run = ledger.run()
    with raises(LeaseLost):
        ledger(reading(run, epoch=0))
    assert values(ledger, run) == []


@check
def the_clock_of_a_run_that_has_ended_is_read_no_more(ledger: Ledger) -> None:
    run = ledger.run()
    ledger(ops.DecideCommit(run.uid, "a", 1))
    assert ledger(reading(run)) is None
    assert values(ledger, run) == []
