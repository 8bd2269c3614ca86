"""The ledger's own chain: what has changed since its end, one more link at a time, whoever is first."""

from __future__ import annotations

import json

from amends.encoding.chain import GENESIS, read_heads
from amends.encoding.dataclass import changed
from amends.ledger.operations import DraftCheckpoint, ReadCheckpoints, ReadHashes, WriteCheckpoint
from amends.ledger.rows import CheckpointRow
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.scenarios import drafted
from tests.ledger.rules.registry import check


def _written(ledger: Ledger, limit: int = 100) -> CheckpointRow:
    row = drafted(ledger, limit=limit)
    assert ledger(WriteCheckpoint(row))
    return row


@check
def a_ledger_in_which_nothing_happened_has_no_checkpoint(ledger: Ledger) -> None:
    assert ledger(DraftCheckpoint("ldg_1", "")) is None
    assert ledger(DraftCheckpoint("ldg_1", "some key")) is None
    assert ledger(ReadCheckpoints(-1)) == ledger(ReadCheckpoints(0)) == []


@check
def a_draft_names_the_newest_event_of_each_tree_and_writes_nothing(ledger: Ledger) -> None:
    one, two = ledger.run(), ledger.run("other")
    ledger.do(one, "charge")
    ledger.do(two, "charge")
    ledger.do(one, "ship")
    row = drafted(ledger)
    ends = [ledger.events(run)[-1] for run in (one, two)]
    assert sorted(read_heads(row.heads)) == sorted((end.root, end.n, end.hash) for end in ends)
    assert (row.n, row.ledger, row.prev, row.hash) == (1, "ldg_1", GENESIS, row.true_hash)
    assert ledger(ReadCheckpoints(-1)) == []


@check
def a_checkpoint_goes_on_where_the_last_one_ended(ledger: Ledger) -> None:
    run, still = ledger.run(), ledger.run("still")
    first = _written(ledger)
    assert ledger(DraftCheckpoint("another", "")) is None, "nothing has happened since"
    ledger.do(run, "charge")
    second = _written(ledger)
    end = ledger.events(run)[-1]
    assert read_heads(second.heads) == [(end.root, end.n, end.hash)], f"nothing happened to {still.id}"
    assert (second.n, second.ledger, second.prev) == (2, "ldg_1", first.hash)
    assert ledger(ReadCheckpoints(0)) == [first, second]
    assert ledger(ReadCheckpoints(1, 1)) == ledger(ReadCheckpoints(-1)) == [second]
    assert ledger(ReadCheckpoints(0, 1)) == [first]


@check
def what_is_too_much_for_one_is_behind_the_next(ledger: Ledger) -> None:
    runs = [ledger.run(f"run {number}") for number in range(5)]
    rows = []
    while ledger(DraftCheckpoint("ldg_1", "", 3)) is not None:
        rows.append(_written(ledger, limit=3))
    covered = {root: n for row in rows for root, n, _ in read_heads(row.heads)}
    assert covered == {run.root: ledger.events(run)[-1].n for run in runs}
    assert all(len(read_heads(row.heads)) <= 3 for row in rows)


@check
def another_key_is_told_at_once(ledger: Ledger) -> None:
    ledger.run()
    _written(ledger)
    row = drafted(ledger, "new key")
    assert (row.n, row.key, row.heads) == (2, "new key", "[]")


@check
def a_checkpoint_stands_only_at_the_end_of_the_chain(ledger: Ledger) -> None:
    ledger.run()
    first = drafted(ledger)
    assert not ledger(WriteCheckpoint(changed(first, {"n": 2})))
    assert not ledger(WriteCheckpoint(changed(first, {"prev": "1" * 64})))
    assert ledger(WriteCheckpoint(first))
    assert not ledger(WriteCheckpoint(first)), "it is there"
    assert ledger(WriteCheckpoint(first, repeated=True)), "who asks again is told what was done"
    ledger.run("another")
    stale = changed(drafted(ledger), {"prev": "1" * 64})
    assert not ledger(WriteCheckpoint(stale)), "its end of the chain is not the chain's"
    assert ledger(ReadCheckpoints(0)) == [first]


@check
def hashes_are_found_by_tree_and_number(ledger: Ledger) -> None:
    run, other = ledger.run(), ledger.run("other")
    for number in range(30):
        ledger.do(run, f"tool{number}")
    events = ledger.events(run)
    assert len(events) > 60
    wanted = [(run.root, one.n) for one in events]
    found = ledger(ReadHashes((*wanted, (other.root, 1), (run.root, 10_000), ("nobody", 1))))
    [first, *_] = ledger.events(other)
    assert sorted(found) == sorted([*((one.root, one.n, one.hash) for one in events), (other.root, 1, first.hash)])
    assert ledger(ReadHashes(())) == []


@check
def every_word_of_a_checkpoint_comes_back(ledger: Ledger) -> None:
    ledger.run()
    row = drafted(ledger)
    heads = json.dumps([["r" * 200, 2**40, "f" * 64]] * 1_000)
    full = changed(row, {"heads": heads, "key": "ed25519-pub:é", "signature": "s" * 88})
    full = changed(full, {"hash": full.true_hash})
    assert ledger(WriteCheckpoint(full))
    assert ledger(ReadCheckpoints(-1)) == [full]
