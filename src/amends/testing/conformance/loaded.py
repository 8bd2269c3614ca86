"""Records of another ledger, to be loaded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from amends.ledger.operations import LoadRecords, ReadRecord, Record
from amends.ledger.rows import Need, RunRow
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import Ledger

ELSEWHERE: Final = "ldg-elsewhere"


def elsewhere(now: float = 5_000.0, *, made: int = 1_000) -> Ledger:
    """Another ledger, with another clock and other ids."""
    other = Ledger(MemoryStore(), made=made)
    other.clock.now = now
    other.store._clock = other.clock  # type: ignore[attr-defined]
    return other


def taken_out(other: Ledger, run: RunRow, origin: str = ELSEWHERE) -> Record:
    record: Record | None = other(ReadRecord(run.root))
    assert record is not None
    return replace(record, runs=tuple(replace(one, origin=origin) for one in record.runs))


def a_record(other: Ledger, id: str = "theirs") -> Record:
    """A tree with a child, a call that succeeded, one in doubt, one that waits for a person; it is open."""
    run = other.run(id, input='"in"')
    other.do(run, key=f"key of {id}", args='{"card": "4111"}')
    child = other.child(run, f"{id}/child")
    other.settle(other.start(child, key=f"other key of {id}"), "in_doubt", why="timeout")
    other.admit(run, key=f"asked of {id}", need=Need(other.new("appr"), "nonce"))
    return taken_out(other, run)


def load_op(ledger: Ledger, *records: Record) -> LoadRecords:
    uid = ledger.new("run")
    return LoadRecords(uid, f"load {uid}", "acme", "loader", records)
