"""The heartbeat's own life: it begins with the first lease and ends when it is told to."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from amends import Runtime, tool
from amends.errors import LedgerCorrupt
from amends.host.heartbeat import Heartbeat
from amends.ledger.leases import Lease
from amends.ledger.operations import (
    Renewed,
    RenewLeases,
)
from amends.stores.memory import MemoryStore
from tests.servers.databases import connect
from tests.world import until


def test_closing_does_not_wait_for_a_heartbeat_that_has_not_begun() -> None:
    never: Any = None  # it is closed before it renews
    heartbeat: Any = Heartbeat(never, 30.0)
    beat = heartbeat._beat

    def late() -> None:
        while not heartbeat._closed:
            time.sleep(0.001)
        beat()

    heartbeat._beat = late

    heartbeat.keep(Lease("run_1", "me", 1, 30.0, 0.0))
    began = time.monotonic()
    heartbeat.close()
    assert time.monotonic() - began < 4.5  # it would wait for 5 s
    assert heartbeat._thread is None


LEASE_S = 30.0


def test_a_lease_that_was_given_back_and_taken_again_is_still_renewed() -> None:
    asked: list[str] = []
    old = Lease("u1", "w1", 1, LEASE_S, 1e9)
    new = Lease("u1", "w1", 2, LEASE_S, 1e9)

    def renew(op: RenewLeases) -> Renewed:
        if not asked:
            asked.append("once")
            heartbeat.forget(old)
            heartbeat.keep(new)
            return Renewed({})
        return Renewed(dict.fromkeys(op.epochs, ""))

    heartbeat = Heartbeat(renew, LEASE_S, beats=False)
    heartbeat.keep(old)
    heartbeat.renew(heartbeat.kept())
    assert heartbeat.kept() == [new]


def test_a_heartbeat_survives_what_nobody_expected() -> None:
    beats: list[int] = []

    def renew(op: RenewLeases) -> Renewed:
        beats.append(1)
        raise RuntimeError("disk on fire")

    heartbeat = Heartbeat(renew, 0.06)
    heartbeat.keep(Lease("u1", "w1", 1, 0.06, 1e12))
    until = time.monotonic() + 30
    while len(beats) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    heartbeat.close()
    assert len(beats) >= 3


def test_a_run_that_ended_during_a_renewal_was_not_taken_over(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    with Runtime(store=store, tools=[]) as rt:
        run = rt.open("r")
        lease = run._session.lease
        heartbeat = Heartbeat(store.perform, 30.0, beats=False)
        heartbeat.keep(lease)
        run.commit()
        with caplog.at_level(logging.INFO, "amends"):
            assert heartbeat.renew([lease]) == []
    assert heartbeat.kept() == []
    assert caplog.records == []


def test_a_run_that_was_taken_over_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    told: list[str] = []
    heartbeat = Heartbeat(lambda op: Renewed({}), 30.0, beats=False)
    lease = Lease("u1", "w1", 1, 30.0, 1e9)
    heartbeat.keep(lease, lambda: told.append("lost"))
    heartbeat.renew([lease])
    assert (lease.lost, told) == (True, ["lost"])
    assert "lost run tree" in caplog.text


def test_one_run_that_cannot_be_read_does_not_cost_the_others_their_leases() -> None:
    def renew(op: RenewLeases) -> Renewed:
        if "bad" in op.epochs:
            raise LedgerCorrupt("a row cannot be read")
        return Renewed(dict.fromkeys(op.epochs, ""))

    heartbeat = Heartbeat(renew, 30.0, mono=lambda: 100.0, beats=False)
    leases = [Lease(root, "w1", 1, 30.0, 1.0) for root in ("a", "bad", "c")]
    left = heartbeat.renew(leases)
    assert [lease.root for lease in left] == ["bad"]
    assert [lease.until for lease in leases] == [130.0, 1.0, 130.0]


def test_a_lease_of_which_nothing_was_learned_is_asked_for_again_before_the_next_beat() -> None:
    asked: list[frozenset[str]] = []

    def renew(op: RenewLeases) -> Renewed:
        asked.append(frozenset(op.epochs))
        busy = frozenset({"stuck"} if len(asked) < 3 else ())
        return Renewed(dict.fromkeys(op.epochs.keys() - busy, ""), busy=busy)

    heartbeat = Heartbeat(renew, 1.5)
    for root in ("free", "stuck"):
        heartbeat.keep(Lease(root, "w1", 1, 1.5, 1e12))
    until(lambda: len(asked) >= 4)
    heartbeat.close()
    both, one = frozenset({"free", "stuck"}), frozenset({"stuck"})
    assert asked[:4] == [both, one, one, both]


@contextlib.contextmanager
def _held(url: str, uid: str) -> Iterator[None]:
    """Somebody else's transaction has the row of this run."""
    theirs = connect(url, autocommit=False)
    theirs.cursor().execute("select uid from amends_run where uid = %s for update", (uid,))
    try:
        yield
    finally:
        theirs.rollback()
        theirs.close()


def _all_grew(leases: list[Lease], seen: list[float]) -> bool:
    return all(lease.until > was for lease, was in zip(leases, seen, strict=True))


@pytest.mark.parametrize("kind", ["postgres_url", "mysql_url"])
def test_a_root_that_another_transaction_has_does_not_cost_the_other_runs_their_leases(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amends.host.heartbeat.BEATS_PER_LEASE", 90)
    monkeypatch.setattr("amends.host.heartbeat.LOOKS_PER_LEASE", 900)
    url = request.getfixturevalue(kind)

    @tool
    def put(x: str) -> str:
        return x

    @put.compensate
    def take(x: str) -> None: ...

    with Runtime(url, tools=[put], wait=30.0) as rt:
        runs = [rt.open(f"r{number}") for number in range(3)]
        leases = [run._session.lease for run in runs]
        for stuck in leases:  # whichever place it has in the order of a batch
            with _held(url, stuck.root):
                free = [lease for lease in leases if lease is not stuck]
                until(partial(_all_grew, free, [lease.until for lease in free]))  # a beat was answered meanwhile
                assert not any(lease.lost for lease in leases)
            until(partial(_all_grew, [stuck], [stuck.until]))
        for number, run in enumerate(runs):
            run.call(put, x=str(number))
            run.commit()


def test_a_forked_child_does_not_wait_for_a_lock_that_a_thread_of_its_parent_held() -> None:
    never: Any = None
    heartbeat = Heartbeat(never, LEASE_S, beats=False)
    lease = Lease("u1", "w1", 1, LEASE_S, 1e9)
    heartbeat.keep(lease)
    held, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with heartbeat._changed:
            held.set()
            enough.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        heartbeat.forget(lease)
        heartbeat.close()
        os._exit(7 if heartbeat.kept() else 0)
    try:
        until(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0))
    finally:
        enough.set()
        thread.join()
    assert heartbeat.kept() == [lease]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_heartbeat_whose_thread_has_died_begins_again_with_the_next_lease() -> None:
    never: Any = None
    heartbeat: Any = Heartbeat(never, 30.0)
    dead: list[threading.Thread] = []

    def dies() -> None:
        dead.append(threading.current_thread())
        raise SystemExit

    heartbeat._beat = dies
    heartbeat.keep(Lease("run_1", "me", 1, 30.0, 0.0))
    until(lambda: bool(dead))
    until(lambda: heartbeat._thread is None)
    dead[0].join(5)  # or pytest learns of its end in a later test
    del heartbeat._beat
    heartbeat.keep(Lease("run_2", "me", 1, 30.0, 0.0))
    assert heartbeat._thread.is_alive()
    heartbeat.close()
    assert heartbeat._thread is None
