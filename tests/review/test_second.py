"""What a second reading found: each of these failed before it was mended."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime, tool
from amends.drivers import process
from amends.errors import LedgerCorrupt, RunBlocked
from amends.host.heartbeat import Heartbeat
from amends.ledger.operations import Renewed, RenewLeases
from amends.ledger.world import Lease
from amends.stores.memory import MemoryStore
from tests.behaviour.world import World, die, until
from tests.servers.databases import connect, database_of, execute

# ---- going back without what came later ---------------------------------------------------


def _pair(world: World) -> tuple[Any, Any]:
    return world.compensatable("first"), world.compensatable("second")


def _crashed(store: MemoryStore, *tools: Any) -> None:
    run = Runtime(store=store, tools=tools, lease=0.1).open("r")
    for one in tools:
        run.call(one, x="1")
    die(run)


@pytest.mark.parametrize("how", ["unknown", "a pivot now"])
def test_what_came_before_a_call_that_cannot_be_taken_back_here_is_named_and_waits(how: str) -> None:
    """It was tried a thousand times, and ended in an assertion; a worker's whole round with it."""
    world, store = World(), MemoryStore()
    first, second = _pair(world)
    _crashed(store, first, second)
    tools = [first] if how == "unknown" else [first, world.pivot("second")]
    fewer = Runtime(store=store, tools=tools, wait=0.2)
    with pytest.raises(RunBlocked), fewer.run("r"):
        raise ValueError
    report = fewer.report("r")
    assert report.state == "blocked"
    assert [left.call.tool for left in report.residue] == ["first", "second"]
    assert all("rt.rollback('r'" in cause for cause in report.run.causes)
    assert world.standing == ["first:1", "second:1"], "never out of order"
    fewer.close()
    whole = Runtime(store=store, tools=[first, second])
    assert whole.rollback("r", by="ann", why="the old deploy is back").state == "rolled_back"
    assert world.log[-2:] == ["undo second:1", "undo first:1"]


# ---- the heartbeat ------------------------------------------------------------------------


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
    theirs.cursor().execute("select uid from runs where uid = %s for update", (uid,))
    try:
        yield
    finally:
        theirs.rollback()
        theirs.close()


def _all_grew(leases: list[Lease], seen: list[float]) -> bool:
    return all(lease.until > was for lease, was in zip(leases, seen, strict=True))


@pytest.mark.parametrize("kind", ["postgres_url", "mysql_url"])
def test_a_root_that_another_transaction_has_does_not_cost_the_other_runs_their_leases(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(kind)

    @tool
    def put(x: str) -> str:
        return x

    @put.compensate
    def take(x: str) -> None: ...

    with Runtime(url, tools=[put], lease=1.0, wait=5.0) as rt:
        runs = [rt.open(f"r{number}") for number in range(3)]
        leases = [run._session.lease for run in runs]
        for stuck in leases:  # whichever place it has in the order of a batch
            with _held(url, stuck.root):
                free = [lease for lease in leases if lease is not stuck]
                until(partial(_all_grew, free, [lease.until for lease in free]))  # a beat was answered meanwhile
                assert not any(lease.lost for lease in leases)
            until(partial(_all_grew, [stuck], [process.mono() + 0.7]))
        for number, run in enumerate(runs):
            run.call(put, x=str(number))
            run.commit()


# ---- what the pages say -------------------------------------------------------------------


def test_the_rights_that_the_page_names_are_enough_for_runs_with_locks(mysql_url: str) -> None:
    """It named no right to delete: the first run that took a lock could neither commit nor be taken back."""
    page = Path("docs/reference/mysql.md").read_text()
    said = page[page.index("```sql") + 6 : page.index("```", page.index("```sql") + 6)]
    statements = [line.rstrip(";") for line in said.strip().splitlines() if line.startswith(("create user", "grant"))]
    database, user = database_of(mysql_url), f"u{uuid.uuid4().hex[:12]}"
    mine = [one.replace("shop.", f"{database}.").replace("amends@", f"{user}@") for one in statements]
    at = [one for one in mine if "delete" not in one]
    execute(mysql_url, at)
    url = re.sub(r"//[^@]*@", f"//{user}:...@", mysql_url)
    reserve = World().compensatable(locks=lambda call: ["a"])
    try:
        with Runtime(url, tools=[reserve], create=True) as rt:
            rt.migrate()
            execute(mysql_url, [one for one in mine if one not in at])
            with rt.run("kept"):
                reserve(x="1")
            with pytest.raises(ValueError, match="no"), rt.run("taken back"):
                reserve(x="2")
                raise ValueError("no")
            assert [run.state for run in rt.runs()] == ["rolled_back", "committed"]
            assert list(rt.locks()) == []
    finally:
        execute(mysql_url, [f"drop user {user}@'%'"])
