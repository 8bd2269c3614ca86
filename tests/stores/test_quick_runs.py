"""A plain run is opened, rolled back, closed and committed by plain statements; whatever is unusual is left to the flows."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from amends.errors import LeaseLost
from amends.ledger import operations as ops
from amends.ledger.plain import PlainRun, SettlePlain
from amends.ledger.rows import RunRow
from amends.testing.conformance.ledger import Clock, Ledger, audit

STORES = {
    "sqlite": ("amends.stores.sqlite.store", ("PLAIN", "INSIDE")),
    "postgres": ("amends.stores.postgres.quick", ("QUICK",)),
    "mysql": ("amends.stores.mysql.quick", ("QUICK",)),
}
WATCHED = (ops.OpenRun, ops.SettleCall, ops.BeginRollback, ops.CloseRun, ops.DecideCommit)
Made = tuple[Ledger, Counter[type]]


@pytest.fixture(params=STORES)
def made(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """A ledger, and how many operations of each kind were carried out by plain statements."""
    module, names = STORES[request.param]
    clock, counts = Clock(), Counter[type]()
    for name in names:
        plain: dict[type, Callable[..., Any]] = getattr(import_module(module), name)
        for kind in set(WATCHED) & plain.keys():
            monkeypatch.setitem(plain, kind, counted(plain[kind], kind, counts, is_async=request.param == "postgres"))
    if request.param == "sqlite":
        store: Any = import_module(module).SqliteStore(tmp_path / "ledger.db", "NORMAL", clock)
    else:
        stores = import_module(module.replace("quick", "store"))
        make = getattr(stores, f"{request.param.title()}Store")
        store = make(request.getfixturevalue(f"{request.param}_url"), clock)
    with closing(store):
        store.open(create=True)
        yield Ledger(store, clock=clock), counts


def counted(carry_out: Callable[..., Any], kind: type, counts: Counter[type], *, is_async: bool) -> Callable[..., Any]:
    def count(answer: Any) -> Any:
        counts[kind] += answer is not None
        return answer

    async def awaited(*given: Any) -> Any:
        return count(await carry_out(*given))

    return awaited if is_async else lambda *given: count(carry_out(*given))


def plainly(run: RunRow, owner: str = "a") -> PlainRun:
    return PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, owner, run.epoch)


def back(run: RunRow, owner: str = "a", epoch: int = 1) -> ops.BeginRollback:
    return ops.BeginRollback(run.uid, owner, "it failed", False, owner=owner, epoch=epoch, plain=plainly(run, owner))


def closed(run: RunRow) -> ops.CloseRun:
    return ops.CloseRun(run.uid, "a", 1, "rolled_back", plain=plainly(run))


def committed(run: RunRow, **given: Any) -> ops.DecideCommit:
    return ops.DecideCommit(run.uid, "a", 1, plain=plainly(run), **given)


def test_an_ordinary_life_needs_no_flow(made: Made) -> None:
    ledger, counts = made
    run = ledger.run()
    done = ledger(SettlePlain(ledger.start_plain(run, args="[1]"), '"ok"')).call
    ledger(ledger.settle_op(ledger.start_plain(run, args="[2]").row, "failed", error="broken"))
    tree = ledger(back(run)).tree
    assert [call.state for call in tree.calls] == ["succeeded", "failed"]
    assert ledger.compensate(done).state == "compensated"
    assert ledger(closed(run)).state == "rolled_back"
    other = ledger.run("other")
    ledger(SettlePlain(ledger.start_plain(other), '"ok"'))
    assert ledger(committed(other, output='"out"')).how == "committed"
    assert counts == {ops.OpenRun: 2, ops.SettleCall: 1, ops.BeginRollback: 1, ops.CloseRun: 1, ops.DecideCommit: 1}
    audit(ledger)


def with_child(ledger: Ledger, run: RunRow) -> None:
    ledger(ledger.child_op(run, "child"))


def with_staged(ledger: Ledger, run: RunRow) -> None:
    ledger.admit(run, "mail", kind="retriable", key="mail")


def with_goal(ledger: Ledger, run: RunRow) -> None:
    ledger(ops.BeginRollback(run.uid, "ann", "no", True))


def with_doubt(ledger: Ledger, run: RunRow) -> None:
    ledger(ledger.settle_op(ledger.start_plain(run).row, "in_doubt"))


@pytest.mark.parametrize("unusual", [with_child, with_staged, with_goal])
def test_an_unusual_rollback_is_left_to_the_flow(made: Made, unusual: Callable[[Ledger, RunRow], None]) -> None:
    ledger, counts = made
    run = ledger.run()
    unusual(ledger, run)
    assert ledger(back(run)).how == "rolling"
    assert counts[ops.BeginRollback] == 0
    audit(ledger)


@pytest.mark.parametrize("unusual", [with_child, with_staged, with_goal, with_doubt])
def test_an_unusual_commit_is_left_to_the_flow(made: Made, unusual: Callable[[Ledger, RunRow], None]) -> None:
    ledger, counts = made
    run = ledger.run()
    unusual(ledger, run)
    ledger(committed(run))
    assert counts[ops.DecideCommit] == 0
    audit(ledger)


def test_a_run_whose_calls_still_stand_is_not_closed(made: Made) -> None:
    ledger, counts = made
    run = ledger.run()
    ledger(SettlePlain(ledger.start_plain(run), '"ok"'))
    ledger(back(run))
    with pytest.raises(Exception, match="is not rolled back"):
        ledger(closed(run))
    assert counts[ops.CloseRun] == 0


def test_only_the_owner_rolls_back_and_commits(made: Made) -> None:
    ledger, counts = made
    run = ledger.run()
    for op in (back(run, owner="b"), back(run, epoch=2), ops.DecideCommit(run.uid, "b", 1, plain=plainly(run, "b"))):
        with pytest.raises(LeaseLost):
            ledger(op)
    assert not counts[ops.BeginRollback] + counts[ops.DecideCommit]
    assert [event.what for event in ledger.events()] == ["run"]


def test_a_run_that_exists_is_not_opened_again(made: Made) -> None:
    ledger, counts = made
    run = ledger.run()
    assert ledger.open("order", owner="b").how == "busy"
    ledger(back(run))
    ledger(closed(run))
    assert ledger.open("order").run.generation == 2
    assert counts[ops.OpenRun] == 1
    audit(ledger)
