"""Two processes that load the same bundle at once, with the second one's whole load between any two looks of the first."""

from __future__ import annotations

from typing import Any

import pytest

from amends.errors import RunTaken
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import LoadRecords
from amends.ledger.rows import Now
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.scenarios import a_record, elsewhere

LOOKS_MAX = 40


class Interleaved:
    """Carries out a load row by row, as a server would, and lets a rival in before one of its looks."""

    def __init__(self, store: MemoryStore, rival: LoadRecords, at: int) -> None:
        self._store, self._rival, self._at = store, rival, at
        self.looks = 0
        self.wrote = False

    def __call__(self, op: Any) -> Any:
        self.wrote = self.wrote or isinstance(op, Now)  # the last before it writes
        if self.looks == self._at and not self.wrote:
            self._store.perform(self._rival)
        self.looks += 1
        return self._store._row(op)


def test_a_load_that_another_one_overtakes_at_any_moment_adds_nothing_and_raises_nothing() -> None:
    record = a_record(elsewhere())
    for at in range(1, LOOKS_MAX):
        store = MemoryStore()
        mine, rival = (LoadRecords(f"run-{n}", f"load-{n}", "acme", "a", (record,)) for n in "12")
        between = Interleaved(store, rival, at)
        added = run_flow(intent(mine), between)
        if between.wrote:  # nobody came between: from here on a server lets the rival wait
            assert (added, at > 3) == ([record.root.uid], True)
            return
        assert added == [], f"overtaken before look {at}"
    pytest.fail("a load does not look that often")


def test_what_is_taken_by_another_run_is_still_refused() -> None:
    ledger = Ledger(MemoryStore())
    ledger.do(ledger.run("theirs"))
    with pytest.raises(RunTaken):
        ledger(LoadRecords("run-1000", "load-1", "acme", "a", (a_record(elsewhere()),)))
