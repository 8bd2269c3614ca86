"""Waiters in other processes are rung when there is something to look at, and only then."""

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from amends.ledger import operations as ops
from amends.stores.postgres.store import PostgresStore
from amends.stores.postgres.wakeup import ANYTHING
from amends.testing.conformance.ledger import Ledger
from tests.servers.databases import execute
from tests.servers.postgres import PostgresServer

WAIT_S = 20


class Wakeup:
    """What was rung, in order."""

    def __init__(self, url: str) -> None:
        self.rung: queue.Queue[str] = queue.Queue()
        self.store = PostgresStore(url)
        assert self.store.watch(self.rung.put)
        assert self.next() == ANYTHING, "what happened before it listened is not known"

    def next(self) -> str:
        return self.rung.get(timeout=WAIT_S)


def made_at(url: str) -> None:
    store = PostgresStore(url)
    store.open(create=True)
    store.close()


@pytest.fixture
def wakeup(postgres_url: str) -> Iterator[Wakeup]:
    made_at(postgres_url)
    made = Wakeup(postgres_url)
    yield made
    made.store.close()


@pytest.fixture
def ledger(wakeup: Wakeup, postgres_url: str) -> Iterator[Ledger]:
    store = PostgresStore(postgres_url)
    yield Ledger(store)
    store.close()


def after(ledger: Ledger, wakeup: Wakeup, *operations: ops.StoreOp[Any]) -> list[str]:
    """What is rung because of these; the last bell is one that we ring ourselves."""
    for op in operations:
        ledger(op)
    other = ledger.run(ledger.new("other"))
    ledger(ops.ReleaseLease(other.uid, "a", 1, None))
    rung = []
    while (topic := wakeup.next()) != other.uid:
        rung.append(topic)
    return rung


def test_an_ordinary_call_rings_nobody(ledger: Ledger, wakeup: Wakeup) -> None:
    run = ledger.run()
    call = ledger.start(run)
    assert after(ledger, wakeup, ledger.settle_op(call), ledger.admit_op(run)) == []


def test_the_end_of_a_run_rings_its_root(ledger: Ledger, wakeup: Wakeup) -> None:
    run = ledger.run()
    ledger.do(run)
    assert after(ledger, wakeup, ops.DecideCommit(run.uid, "a", 1)) == [run.uid]


def test_a_child_rings_the_root_s_bell(ledger: Ledger, wakeup: Wakeup) -> None:
    run = ledger.run()
    child = ledger.child(run)
    assert after(ledger, wakeup, ops.DecideCommit(child.uid, "a", 1)) == [run.uid]


def test_a_rollback_rings_when_it_begins_and_when_it_ends(ledger: Ledger, wakeup: Wakeup) -> None:
    run = ledger.run()
    begin = ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=1)
    close = ops.CloseRun(run.uid, "a", 1, "rolled_back")
    assert after(ledger, wakeup, begin, close) == [run.uid] * 2


def test_what_all_runs_wait_for_rings(ledger: Ledger, wakeup: Wakeup) -> None:
    call = ledger.start(ledger.run(), scope="ledger")
    assert after(ledger, wakeup, ledger.settle_op(call)) == [call.root]


def test_a_persons_word_rings(ledger: Ledger, wakeup: Wakeup) -> None:
    call = ledger.start(ledger.run())
    ledger.settle(call, "in_doubt")
    assert after(ledger, wakeup, ops.ResolveCall(call.id, "succeeded", "ann", "I looked", result="1")) == [call.root]


def test_what_was_not_committed_rings_nobody(ledger: Ledger, wakeup: Wakeup) -> None:
    with pytest.raises(LookupError):
        ledger(ops.DecideCall("nothing", "run", "ann", "why"))
    assert after(ledger, wakeup) == []


def test_ledgers_of_one_database_do_not_ring_each_other(ledger: Ledger, wakeup: Wakeup, postgres_url: str) -> None:
    mark = "&" if "?" in postgres_url else "?"
    other = PostgresStore(f"{postgres_url}{mark}schema=other")
    elsewhere = Ledger(other, made=500)
    elsewhere(ops.ReleaseLease(elsewhere.run().uid, "a", 1, None))
    other.close()
    assert after(ledger, wakeup) == []


def test_a_lost_connection_is_made_again_and_rings_for_anything(
    ledger: Ledger, wakeup: Wakeup, postgres_url: str
) -> None:
    ended = execute(
        postgres_url,
        [
            "select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen%' and datname = current_database()"
        ],
    )
    assert ended == [(True,)]
    assert wakeup.next() == ANYTHING
    assert after(ledger, wakeup) == []


def test_a_server_that_is_gone_raises_nothing_and_is_heard_again(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database()
    made_at(url)
    wakeup = Wakeup(url)
    postgres_server.kill()
    postgres_server.start()
    assert wakeup.next() == ANYTHING
    wakeup.store.close()


def test_closing_ends_the_thread(postgres_url: str) -> None:
    wakeup = Wakeup(postgres_url)
    watching = wakeup.store._watching
    assert watching is not None
    assert watching.is_alive
    wakeup.store.close()
    assert not watching._thread.is_alive()


def test_behind_a_pooler_nobody_listens() -> None:
    store = PostgresStore("postgresql://host/shop?pooler=transaction")
    assert store.watch(print) is False
