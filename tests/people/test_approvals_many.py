"""Many at once: one yes starts one call however many want it; what waits costs nothing to hold."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from amends.ledger import operations
from amends.ledger import operations as ops
from amends.ledger.rows import APPROVALS, CallRow
from amends.stores import store_for
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import Ledger, audit
from amends.testing.conformance.scenarios import held, need, request_of, start_op, yes
from tests.scenarios.stores import fresh

CONSUMERS = 1_000
THREADS = 32
PENDING = 10_000


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_thousand_who_want_one_yes_start_one_call(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    store = store_for(fresh(kind, tmp_path, request))
    store.open(create=True)
    ledger = Ledger(store)
    call = yes(ledger, held(ledger, ledger.run()))
    gate = threading.Barrier(THREADS)
    waiting = threading.local()

    def consume(number: int) -> object:
        if not getattr(waiting, "began", False):
            waiting.began = True
            if number < THREADS:
                gate.wait(60)
        return store.perform(start_op(call))

    with ThreadPoolExecutor(THREADS) as pool:
        answers = list(pool.map(consume, range(CONSUMERS)))
    assert len(answers) == CONSUMERS
    assert sum(isinstance(answer, CallRow) for answer in answers) == 1
    assert request_of(ledger, call).state == "used"
    assert ledger.look(call).attempt == 1
    audit(ledger)
    store.close()


def test_ten_thousand_that_wait_are_paged_and_wake_nobody() -> None:
    ledger = Ledger(MemoryStore(lambda: 1_000_000.0))
    run = ledger.run()
    first = held(ledger, run)
    ledger(ops.ReleaseLease(run.uid, "a", 1, None, suspended=True))
    approvals, pattern = ledger.store.approvals, request_of(ledger, first)  # type: ignore[attr-defined]
    for number in range(1, PENDING):
        approvals[f"apr-x{number}"] = replace(pattern, id=f"apr-x{number}", seq=pattern.seq + number)
    assert ledger(ops.DueRuns(None, 100)) == [], "nobody polls for what waits for people"
    seen, before = 0, None
    while page := ledger(operations.SearchApprovals(None, ("pending",), before, 500)):
        assert len(page) <= 500
        seen, before = seen + len(page), page[-1].approval.id
    assert seen == PENDING


def test_a_page_of_ten_thousand_is_found_by_its_index(tmp_path: Path) -> None:
    import sqlite3
    import time

    path = tmp_path / "ledger.db"
    store = store_for(f"sqlite:///{path}")
    store.open(create=True)
    ledger = Ledger(store)
    held(ledger, ledger.run(), asks=need(ledger))
    names = ", ".join(f'"{name}"' for name in APPROVALS.columns if name not in ("id", "seq"))
    with sqlite3.connect(path) as raw:
        raw.execute(
            f"with recursive n(i) as (select 100 union all select i + 1 from n where i < {PENDING + 98})"
            f" insert into amends_approval (id, seq, {names}) select 'x' || i, i, {names} from n, amends_approval"
        )
    raw.close()
    begun = time.process_time()
    page = ledger(operations.SearchApprovals("acme", ("pending",), None, 100))
    assert len(page) == 100
    assert time.process_time() - begun < 5.0
    store.close()
