"""An audit reads the whole ledger in pages of any size: every event once, in order, with the rows of its tree."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from amends import Runtime
from amends.ledger.folded import FoldedEvent
from amends.ledger.operations import Place, ReadChains
from amends.ledger.rows import EventRow
from amends.stores import store_for
from bench.sides.ours import pay
from bench.sides.timing import args_of

SIZES = (0, 1, 9, 30, 2, 0, 5, 1)
"""Calls of the runs: some trees are longer than a page, and some pages hold many trees."""


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def run_id_of(event: EventRow | FoldedEvent) -> str:
    return event.run_id if isinstance(event, EventRow) else event.folded.run_id


def test_pages_of_every_size_have_every_event_once_with_its_tree(url: str) -> None:
    with Runtime(url, tools=[pay]) as rt:
        for place, calls in enumerate(SIZES):
            with rt.run(f"run-{place}"):
                for number in range(calls):
                    pay(**args_of(f"o-{number}"))
        whole = [(event.run_id, event.seq) for run in rt.runs() for event in rt.events(run.id)]
    with contextlib.closing(store_for(url)) as store:
        store.open(create=False)
        for limit in (1, 2, 7, 23, 2_000):
            at: Place | None = Place()
            events, runs, calls_read = [], [], []
            for _ in range(2 * len(whole) + 2):
                if at is None:
                    break
                page = store.perform(ReadChains(at, limit=limit))
                assert len(page.events) <= limit
                events += [(run_id_of(event), event.n) for event in page.events]
                runs += [run.id for run in page.runs]
                calls_read += [call.id for call in page.calls]
                at = page.next
            assert at is None, "the pages come to an end"
            assert sorted(events) == sorted(whole)
            assert sorted(runs) == sorted(f"run-{place}" for place in range(len(SIZES)))
            assert len(set(calls_read)) == len(calls_read) == sum(SIZES)
            for run in set(runs):
                numbers = [n for id, n in events if id == run]
                assert numbers == list(range(1, len(numbers) + 1))


def test_a_tree_that_has_folded_events_only_is_not_passed_over(tmp_path: Path) -> None:
    """Somebody has deleted its event rows and moved its run; the tree after it alone has more events than a page."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, tools=[pay], checkpoint="off") as rt:
        for place in range(3):
            with rt.run(f"run-{place}"):
                for number in range(4):
                    pay(**args_of(f"o-{number}"))
    path = tmp_path / "ledger.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        first = database.execute("select min(uid) from amends_run").fetchone()[0]
        database.execute("delete from amends_event where root = ?", (first,))
        database.execute("update amends_run set root = 'elsewhere' where uid = ?", (first,))
    with contextlib.closing(store_for(url)) as store:
        store.open(create=False)
        for limit in (1, 2, 3):
            assert {event.root for event in store.perform(ReadChains(Place(), limit=limit)).events} == {first}
