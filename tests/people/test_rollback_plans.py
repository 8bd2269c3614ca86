"""A rollback that was planned: what it shows is what is then done, and it binds to where the ledger stood."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, InDoubt, Retry, RunBlocked, Runtime, Unknown, UsageError, tool
from amends.errors import RunEnded, StalePlan
from amends.ledger import ending
from amends.ledger.operations import NoteEvidence
from amends.ledger.rows import CallRow
from amends.people import rollback
from amends.stores.memory import MemoryStore
from tests.world import ONCE, World, die, runtime, twin_of, until


def _undone(world: World) -> list[str]:
    return [line for line in world.log if line.startswith("undo")]


def test_a_plan_names_what_is_taken_back_in_order_with_what_it_is_given() -> None:
    world = World()
    one, two = world.compensatable("one"), world.compensatable("two")
    rt = runtime(one, two)
    run = rt.open("r")
    run.call(one, x="a")
    run.call(two, x="b")
    run.call(one, x="c")
    plan = rt.plan_rollback("r")
    assert [(p.what, p.call.tool, p.by, dict(p.args)) for p in plan.compensations] == [
        ("compensate", "one", "undo", {"x": "c"}),
        ("compensate", "two", "undo", {"x": "b"}),
        ("compensate", "one", "undo", {"x": "a"}),
    ]
    assert plan.complete
    assert world.log == ["one:a", "two:b", "one:c"], "planning does nothing"
    with pytest.raises(Exception, match="rolled back"):
        run.rollback("enough")
    assert _undone(world) == ["undo one:c", "undo two:b", "undo one:a"]


def test_planning_writes_nothing() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    rt.open("r").call(one)
    before = list(rt.events())
    assert rt.plan_rollback("r").hash == rt.plan_rollback("r").hash
    assert list(rt.events()) == before


def test_a_plan_is_carried_out_by_its_hash() -> None:
    world = World()
    store = MemoryStore()
    one, two = world.compensatable("one"), world.compensatable("two")
    rt = twin_of(store, one, two)
    run = rt.open("r", recover="wait")
    run.call(one)
    run.call(two)
    die(run)
    plan = rt.plan_rollback("r")
    report = rt.rollback("r", plan=plan.hash, by="anna", why="wrong customer")
    if report.state != "rolled_back":  # its lease had to end first
        (report,) = [one for one in rt.recover() if one.run_id == "r"]
    assert report.state == "rolled_back"
    assert _undone(world) == [f"undo {p.call.tool}:1" for p in plan.compensations]
    (planned,) = [event for event in rt.events("r") if event.what == "rollback planned"]
    assert (planned.by, planned.facts["plan"], planned.facts["why"]) == ("anna", plan.hash, "wrong customer")


def test_a_plan_is_stale_once_the_run_has_moved() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    run = rt.open("r")
    run.call(one, x="a")
    plan = rt.plan_rollback("r")
    run.call(one, x="b")
    with pytest.raises(StalePlan) as no:
        rt.rollback("r", plan=plan.hash, by="anna", why="stop")
    assert (no.value.plan, no.value.run_id, no.value.code) == (plan.hash, "r", "stale_plan")
    assert no.value.now == rt.plan_rollback("r").hash != plan.hash
    assert rt.report("r").run.goal is None
    assert _undone(world) == []
    run.call(one, x="c")  # admission is not closed either


def test_a_read_and_a_heartbeat_do_not_make_a_plan_stale() -> None:
    world = World()
    one, look = world.compensatable("one"), world.read("look")
    rt = runtime(one, look)
    run = rt.open("r")
    run.call(one)
    plan = rt.plan_rollback("r")
    run.call(look)
    assert rt.plan_rollback("r").hash == plan.hash


def test_a_move_between_the_look_and_the_word_is_seen_in_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is right when it is looked at, and no longer when the ledger decides."""
    from amends.ledger.operations import BeginRollback

    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    run = rt.open("r")
    run.call(one, x="a")
    plan = rt.plan_rollback("r")
    store = rt._host.store
    perform = store.perform

    def meanwhile(op: Any) -> Any:
        if isinstance(op, BeginRollback) and op.mark:
            store.perform = perform
            run.call(one, x="b")
        return perform(op)

    store.perform = meanwhile
    with pytest.raises(StalePlan):
        rt.rollback("r", plan=plan.hash, by="anna", why="stop")
    assert rt.report("r").run.goal is None
    assert _undone(world) == []


def test_what_cannot_be_taken_back_is_named_and_is_what_then_stands() -> None:
    world = World()
    one, stuck = world.compensatable("one"), world.compensatable("stuck", twin={"retry": ONCE})
    wire = world.pivot("wire")
    rt = runtime(one, stuck, wire)
    world.script["undo stuck"] = [ValueError("no"), ValueError("no")]
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.call(one)
        with run.child("c") as child:
            child.call(wire)
        run.call(stuck)
        raise KeyError
    plan = rt.plan_rollback("r")
    assert {(left.call.tool, left.why.partition(":")[0]) for left in plan.cannot} == {
        ("wire", "the pivot of a child run stands"),
        ("stuck", "its compensation failed"),
    }
    assert plan.compensations == ()
    report = rt.rollback("r", plan=plan.hash, by="anna", why="once more")
    assert report.state == "blocked"
    assert {left.call.tool for left in report.residue} == {left.call.tool for left in plan.cannot}


def test_a_pivot_that_passed_refuses_the_plan_and_the_rollback() -> None:
    world = World()
    one, wire = world.compensatable("one"), world.pivot("wire")
    rt = runtime(one, wire)
    run = rt.open("r")
    run.call(one)
    run.call(wire)
    plan = rt.plan_rollback("r")
    assert plan.refused is not None
    assert [left.call.tool for left in plan.cannot] == ["one", "wire"]
    with pytest.raises(RunEnded):
        rt.rollback("r", plan=plan.hash, by="anna", why="stop")


@pytest.mark.parametrize("probed", [True, False])
def test_a_doubt_is_named_with_what_is_done_about_it_first(probed: bool) -> None:
    world = World()
    one, pay = world.compensatable("one"), world.compensatable("pay")
    if probed:
        pay.probe(lambda x: Unknown("later"))
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(one, pay, wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.call(one)
        with pytest.raises(InDoubt):
            run.call(pay)
    plan = rt.plan_rollback("r")
    (doubt,) = plan.doubts
    assert (doubt.what, doubt.call.tool) == ("probe" if probed else "ask", "pay")
    assert [p.call.tool for p in plan.compensations] == ["one"]
    assert not plan.complete


def test_a_call_whose_result_is_learned_first_is_taken_back_first() -> None:
    """It is settled last, whenever it was sent: by another start, since its destination deduplicates."""
    world = World()
    one, two = world.compensatable("one"), world.compensatable("two")
    pay = world.compensatable("pay", idempotent=True, retry=Retry(attempts=9, delay=0.001, max_delay=0.001))
    world.script["pay"] = [TimeoutError()] * 2
    rt = runtime(one, two, pay, wait=0.0)
    with pytest.raises(SystemExit), rt.run("r", recover="wait") as run:
        run.call(one)
        with pytest.raises(InDoubt):
            run.call(pay)
        run.call(two)
        raise SystemExit
    plan = rt.plan_rollback("r")
    assert [(p.what, p.call.tool) for p in plan.doubts] == [("start", "pay")]
    assert [p.call.tool for p in plan.compensations] == ["pay", "two", "one"]
    until(lambda: rt.rollback("r", by="anna", why="stop").state == "rolled_back")
    assert _undone(world) == ["undo pay:1", "undo two:1", "undo one:1"]


def test_staged_calls_are_dropped_and_the_plan_says_so() -> None:
    world = World()
    one, mail = world.compensatable("one"), world.retriable("mail")
    rt = runtime(one, mail)
    run = rt.open("r")
    run.call(one)
    run.call(mail)
    plan = rt.plan_rollback("r")
    assert [call.tool for call in plan.dropped] == ["mail"]


def test_a_plan_prints_and_is_json() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    rt.open("r").call(one, x="a")
    plan = rt.plan_rollback("r")
    assert str(plan).splitlines()[1].startswith("   1. compensate one (")
    facts = json.loads(plan.to_json())
    assert (facts["hash"], facts["compensations"][0]["args"]) == (plan.hash, {"x": "a"})


@pytest.mark.parametrize("plan", ["", "abc", 5, b"x"])
def test_what_is_no_plan_is_refused_typed(plan: Any) -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    rt.open("r").call(one)
    with pytest.raises((UsageError, StalePlan)):
        rt.rollback("r", plan=plan, by="anna", why="stop")
    assert rt.report("r").run.goal is None


def test_an_unknown_run_a_child_and_another_tenant_are_refused() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    run = rt.scoped(tenant="a").open("r")
    run.call(one)
    with run.child("c"):
        pass
    for view, id in ((rt, "r"), (rt, "nobody"), (rt.scoped(tenant="b"), "r"), (rt.scoped(tenant="a"), run.id + "/c")):
        with pytest.raises(UsageError):
            view.plan_rollback(id)
    plan = rt.scoped(tenant="a").plan_rollback("r")
    with pytest.raises(UsageError):
        rt.scoped(tenant="b").rollback("r", plan=plan.hash, by="anna", why="stop")
    assert rt.scoped(tenant="a").rollback("r", plan=plan.hash, by="anna", why="stop").run.goal == "rollback"


def test_the_async_colour_plans_and_rolls_back() -> None:
    @tool
    async def one(x: str) -> str:
        return x

    @one.compensate
    async def undo(x: str) -> None:
        log.append(x)

    log: list[str] = []

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[one])
        run = await rt.open("r")
        await run.call(one, x="a")
        plan = await rt.plan_rollback("r")
        await run.call(one, x="b")
        with pytest.raises(StalePlan):
            await rt.rollback("r", plan=plan.hash, by="anna", why="stop")
        plan = await rt.plan_rollback("r")
        assert [p.args["x"] for p in plan.compensations] == ["b", "a"]
        asked = await rt.rollback("r", plan=plan.hash, by="anna", why="stop")
        assert asked.run.goal == "rollback"
        with pytest.raises(Exception):  # noqa: B017 (its owner learns of it)
            await run.commit()
        await rt.close()

    asyncio.run(main())
    assert log == ["b", "a"]


def test_a_doubt_resolved_after_the_plan_makes_it_stale() -> None:
    world = World()
    one, pay = world.compensatable("one"), world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(one, pay, wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.call(one)
        with pytest.raises(InDoubt):
            run.call(pay)
    plan = rt.plan_rollback("r")
    (doubt,) = rt.doubts()
    rt.resolve(doubt.id, Absent(), by="anna", why="looked")
    with pytest.raises((StalePlan, RunEnded)):
        rt.rollback("r", plan=plan.hash, by="bob", why="stop")


def test_a_plan_is_made_on_a_ledger_that_has_an_anchor(tmp_path: Path) -> None:
    reserve = World().compensatable()
    with Runtime(f"sqlite:///{tmp_path}/l.db", tools=[reserve]) as rt:
        run = rt.open("r")
        run.call(reserve, x="a")
        assert [one.call.tool for one in rt.plan_rollback("r").compensations] == ["reserve"]
        run.commit()


def test_a_run_that_waits_for_its_client_can_be_planned(tmp_path: Path) -> None:
    """Recovery leaves it to its client; a plan looks at it all the same, and changes nothing."""
    with Runtime(f"sqlite:///{tmp_path}/l.db", lease=0.2) as rt:
        run = rt.open("r", client_lease=600)
        run.release()
        plan = rt.plan_rollback("r")
        assert (plan.refused, plan.complete, rt.report("r").state) == (None, True, "open")
        assert rt.rollback("r", plan=plan, by="olga", why="not needed").state == "rolled_back"


@pytest.mark.parametrize("url", ["memory:", "sqlite"])
def test_a_plan_binds_on_an_encrypted_ledger(url: str, tmp_path: Path) -> None:
    """The ledger compares what it stores, which is encrypted; whoever plans sees it decrypted."""
    world = World()
    one = world.compensatable("one")
    where = "memory:" if url == "memory:" else f"sqlite:///{tmp_path}/l.db"
    with Runtime(where, tools=[one], encrypt="k" * 43) as rt:
        run = rt.open("r", recover="wait")
        run.call(one, x="a")
        early = rt.plan_rollback("r")
        assert rt.plan_rollback("r").hash == early.hash
        run.call(one, x="b")
        with pytest.raises(StalePlan) as stale:
            rt.rollback("r", plan=early.hash, by="anna", why="stop")
        plan = rt.plan_rollback("r")
        assert (stale.value.now, [dict(p.args) for p in plan.compensations]) == (plan.hash, [{"x": "b"}, {"x": "a"}])
        assert rt.rollback("r", plan=plan, by="anna", why="stop").run.goal == "rollback"
        with pytest.raises(Exception, match="rolled back"):
            run.commit()
        assert _undone(world) == ["undo one:b", "undo one:a"]
        with rt.run("done") as run:
            run.call(one, x="c")
        rt.rollback("done", plan=rt.plan_rollback("done"), by="anna", why="stop")
        until(lambda: rt.report("done").state == "rolled_back")


@pytest.mark.parametrize("happened", [True, False])
def test_a_doubt_that_evidence_settles_asks_nobody(happened: bool) -> None:
    world, store = World(), MemoryStore()
    one, pay = world.compensatable("one"), world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),) if happened else TimeoutError()]
    rt = twin_of(store, one, pay, wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.call(one)
        with pytest.raises(InDoubt):
            run.call(pay)
    (doubt,) = rt.doubts()
    result = '"pay:1"' if happened else None
    store.perform(NoteEvidence(doubt.id, 1, happened, result, "", "boot", 1.0, source="late", certain=not happened))
    plan = rt.plan_rollback("r")
    assert [(p.what, p.note) for p in plan.doubts] == [("settle", "it happened" if happened else "it had no effect")]
    assert [p.call.tool for p in plan.compensations] == (["pay", "one"] if happened else ["one"])
    assert plan.complete
    assert "a person is asked" not in str(plan)
    rt.rollback("r", plan=plan, by="anna", why="stop")
    until(lambda: rt.report("r").state == "rolled_back")
    assert _undone(world) == (["undo pay:1", "undo one:1"] if happened else ["undo one:1"])


@pytest.mark.parametrize("calls", [50, 200])
def test_the_work_of_a_plan_grows_with_the_number_of_calls_and_not_with_its_square(
    calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    one, look = world.compensatable("one"), tool(name="look", kind="read")(_look)
    rt = runtime(one, look)
    run = rt.open("r")
    for number in range(calls // 2):
        run.call(one, x=str(number))
        run.call(look, x=str(number))
    compared, left_out = [0], [0]
    comes_first, in_the_way = ending._comes_first, rollback.Stage._in_the_way

    def counted(other: CallRow, call: CallRow) -> bool:
        compared[0] += 1
        return comes_first(other, call)

    def checked(stage: rollback.Stage, root: str) -> list[CallRow]:
        found = in_the_way(stage, root)
        call = stage.calls[stage._begins]
        for other in stage.calls.values():
            if other.root == root and other.state in ending.IN_THE_WAY and other not in found:
                left_out[0] += 1
                assert not comes_first(other, call), "what is left out changes nothing"
                assert not other.comp_guarded
        return found

    monkeypatch.setattr(ending, "_comes_first", counted)
    monkeypatch.setattr(rollback.Stage, "_in_the_way", checked)
    plan = rt.plan_rollback("r")
    assert [dict(one.args) for one in plan.compensations] == [{"x": str(n)} for n in reversed(range(calls // 2))]
    assert compared[0] <= 2 * calls
    assert left_out[0] > calls


def _look(x: str) -> str:
    return x
