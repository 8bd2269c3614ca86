"""What a person sees of a doubt, what is kept of every question about it, and the words that settle it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, InDoubt, RunBlocked, Runtime, Unknown, UsageError, tool
from amends.errors import RunEnded
from amends.stores.memory import MemoryStore
from amends.testing import TestRuntime
from amends.testing.simulation import Crash
from tests.world import ONCE, World, runtime, states


def _lost(rt: Any, *calls: Any, id: str = "r", back: bool = False) -> None:
    with pytest.raises(RunBlocked), rt.run(id) as run:
        for call in calls:
            with pytest.raises(InDoubt):
                run.call(call)
        if back:
            raise KeyError


def test_a_doubt_says_what_was_sent_when_it_was_lost_its_key_and_its_probe() -> None:
    world = World()
    keys: list[str] = []
    pay = world.compensatable("pay")

    def find_payment(x: str, call: Any) -> Any:
        keys.append(call.key)
        return Unknown("the bank sleeps")

    pay.probe(find_payment)
    world.script["pay"] = [TimeoutError("no answer")]
    rt = runtime(pay, wait=0.0)
    _lost(rt, pay)
    (doubt,) = rt.doubts()
    assert (doubt.about, dict(doubt.sent), doubt.tool, doubt.run_id) == ("call", {"x": "1", "n": 0}, "pay", "r")
    assert doubt.probe == "find_payment"
    assert {doubt.key} == set(keys)
    assert doubt.sent_at is not None
    assert doubt.lost_at is not None
    assert doubt.sent_at <= doubt.lost_at
    assert doubt.error is not None
    assert "no answer" in doubt.error
    assert [(one.by, one.answer, one.why) for one in doubt.evidence] == [("probe", "unknown", "the bank sleeps")] * len(
        doubt.evidence
    )
    assert len(doubt.evidence) >= 1
    assert doubt.evidence[0].at >= doubt.sent_at
    assert doubt.to_dict()["evidence"][0]["answer"] == "unknown"


def test_a_process_that_died_leaves_a_doubt_with_the_time_it_was_found() -> None:
    @tool
    def pay(x: str) -> str:
        rt.crash()
        return x

    pay.compensate(lambda x: None)
    rt = TestRuntime(tools=[pay])
    with pytest.raises(Crash), rt.run("r"):
        pay(x="1")
    sent = rt.clock.wall
    rt.clock.advance(1_000.0)
    rt.recover()
    (doubt,) = rt.doubts()
    assert doubt.sent_at is not None
    assert doubt.lost_at is not None
    assert (doubt.sent_at.timestamp(), doubt.lost_at.timestamp() - sent) == (sent, 1_000.0)
    assert (doubt.why, doubt.probe, dict(doubt.sent)) == ("lost", None, {"x": "1"})


def test_a_persons_question_is_kept_and_decides_nothing() -> None:
    world = World()
    said: list[Any] = [Unknown("later")]
    pay = world.compensatable("pay")
    pay.probe(lambda x: said[-1])
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay, wait=0.0)
    _lost(rt, pay)
    (doubt,) = rt.doubts()
    before = len(doubt.evidence)
    said.append(Happened("p1"))
    assert rt.probe(doubt.id) == Happened("p1")
    said.append(Absent())
    assert rt.probe(doubt.id) == Absent()
    (doubt,) = rt.doubts()
    assert [(one.by, one.answer, one.why) for one in doubt.evidence[before:]] == [
        ("person", "happened", "p1"),
        ("person", "absent", ""),
    ]
    assert [event.by for event in rt.events() if event.what == "probed"][-2:] == ["person", "person"]
    assert rt.report("r").state == "blocked"


def test_a_persons_question_leaves_the_pace_of_amends_own_alone() -> None:
    world = World()
    pay = world.compensatable("pay")
    pay.probe(lambda x: Unknown())
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay, wait=0.0)
    _lost(rt, pay)
    (doubt,) = rt.doubts()
    rt.probe(doubt.id)
    (again,) = rt.doubts()
    assert again.next_probe_at == doubt.next_probe_at


def test_only_the_newest_answers_are_kept_with_the_call_and_all_in_the_record() -> None:
    world = World()
    pay = world.compensatable("pay")
    pay.probe(lambda x: Unknown())
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay, wait=0.0)
    _lost(rt, pay)
    (doubt,) = rt.doubts()
    for _ in range(30):
        rt.probe(doubt.id)
    (doubt,) = rt.doubts()
    assert len(doubt.evidence) == 20
    assert sum(event.what == "probed" for event in rt.events()) > 30


def test_a_compensations_doubt_is_asked_by_its_own_probe_and_key() -> None:
    world = World()
    asked: list[str] = []

    @tool
    def pay(x: str = "1") -> str:
        return world.happen(f"pay:{x}")

    def find_refund(call: Any) -> Any:
        asked.append(call.compensation.key)
        return Unknown("not yet")

    @pay.compensate(retry=ONCE, probe=find_refund)
    def refund(result: str) -> None:
        raise TimeoutError

    rt = runtime(pay, wait=0.0)
    with pytest.raises(KeyError), rt.run("r"):
        pay()
        raise KeyError
    (doubt,) = rt.doubts()
    assert (doubt.about, dict(doubt.sent), doubt.probe) == ("compensation", {"result": "pay:1"}, "find_refund")
    assert set(asked) == {doubt.key}
    assert rt.probe(doubt.id) == Unknown("not yet")
    assert len(asked) >= 2
    assert doubt.lost_at is not None


def test_a_filter_narrows_doubts_and_cannot_widen_them() -> None:
    world = World()
    pay, buy = world.compensatable("pay"), world.compensatable("buy")
    world.script["pay"] = world.script["buy"] = [(TimeoutError(),), (TimeoutError(),)]
    rt = runtime(pay, buy, wait=0.0)
    _lost(rt, pay, buy)
    assert [doubt.tool for doubt in rt.doubts("tool:buy")] == ["buy"]
    assert list(rt.doubts("status:compensation_in_doubt")) == []
    with pytest.raises(UsageError):
        list(rt.doubts("status:succeeded"))
    assert list(rt.scoped(tenant="b").doubts()) == []


# ---- accept -------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["in_doubt", "compensation_in_doubt", "compensation_failed", "succeeded"])
def test_what_stands_is_accepted_as_residue_and_the_run_is_closed_over_it(left: str) -> None:
    world = World()
    one = world.compensatable("one", twin={"retry": ONCE})
    script: dict[str, dict[str, list[Any]]] = {
        "in_doubt": {"one": [(TimeoutError(),)]},
        "compensation_in_doubt": {"undo one": [(TimeoutError(),)]},
        "compensation_failed": {"undo one": [ValueError("no")]},
        "succeeded": {},
    }
    world.script |= script[left]
    if left == "succeeded":
        one = world.pivot("one", after=["look"], order="advise")  # it came too early, and cannot be taken back
    rt = runtime(one, world.read("look"), wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r"):
        one()
        raise KeyError
    (call,) = rt.calls()
    assert call.state == left
    report = rt.accept(call.id, by="anna", why="the customer keeps it")
    assert (report.state, states(rt, "r")) == ("blocked", {"one": "residue"})
    assert [(one.call.tool, one.why) for one in report.residue] == [("one", "the customer keeps it")]
    done = rt.abandon("r", by="anna", why="settled by phone")
    assert (done.state, [one.call.tool for one in done.residue]) == ("abandoned", ["one"])


def test_what_is_certain_is_accepted_in_a_run_that_goes_back_only() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one)
    rt.open("r").call(one)
    (call,) = rt.calls()
    with pytest.raises(UsageError):
        rt.accept(call.id, by="anna", why="stays")
    assert states(rt, "r") == {"one": "succeeded"}


def test_accepting_needs_a_name_a_reason_a_call_and_its_tenant() -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay, wait=0.0)
    _lost(rt, pay)
    (doubt,) = rt.doubts()
    given: list[tuple[Any, str, Any, Any]] = [
        (rt, doubt.id, "", "why"),
        (rt, doubt.id, "anna", ""),
        (rt, doubt.id, 5, "why"),
        (rt, "nobody", "anna", "why"),
        (rt.scoped(tenant="b"), doubt.id, "anna", "why"),
    ]
    for view, id, by, why in given:
        with pytest.raises(UsageError):
            view.accept(id, by=by, why=why)
    assert [one.id for one in rt.doubts()] == [doubt.id]


# ---- two words ----------------------------------------------------------------------------


def test_cancel_compensates_and_abandon_leaves_residue_named() -> None:
    world = World()
    one = world.compensatable("one")
    rt = runtime(one, wait=0.0)
    for id in ("cancelled", "left"):
        with pytest.raises(SystemExit), rt.run(id, recover="wait") as run:
            run.call(one, x=id)
            raise SystemExit
    assert rt.rollback("cancelled", by="anna", why="wrong customer").state == "rolled_back"
    left = rt.abandon("left", by="anna", why="they keep it")
    assert (left.state, [one.call.args["x"] for one in left.residue]) == ("abandoned", ["left"])
    assert world.standing == ["one:left"]
    for verb in (rt.rollback, rt.abandon):
        with pytest.raises((UsageError, RunEnded)):
            verb("left", by="bob", why="again")


def test_the_async_colour_has_the_whole_desk() -> None:
    @tool
    async def pay(x: str) -> str:
        raise TimeoutError

    @pay.compensate
    async def refund(x: str) -> None: ...

    @pay.probe
    async def find(x: str) -> Any:
        return Unknown("asked")

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay], wait=0.0)
        with pytest.raises(RunBlocked):
            async with rt.run("r") as run:
                with pytest.raises(InDoubt):
                    await run.call(pay, x="1")
        (doubt,) = [one async for one in rt.doubts()]
        assert await rt.probe(doubt.id) == Unknown("asked")
        (doubt,) = [one async for one in rt.doubts()]
        assert [one.by for one in doubt.evidence][-1] == "person"
        report = await rt.accept(doubt.id, by="anna", why="nobody will know")
        assert [left.why for left in report.residue] == ["nobody will know"]
        await rt.close()

    asyncio.run(main())


def test_a_preview_of_an_open_run_works_where_the_ledgers_clock_is_behind() -> None:
    @tool
    def pay(x: str) -> str:
        raise TimeoutError

    @pay.compensate
    def refund(x: str) -> None: ...

    rt = Runtime(store=MemoryStore(clock=lambda: time.time() - 3_600), tools=[pay], wait=0.0)
    run = rt.open("r")
    run.answer("pay", {"x": "1"})
    (doubt,) = rt.doubts()
    found = rt.preview(doubt.id)
    assert (found.absent.who, found.absent.call_state) == ("owner", "failed")
    run.release()
    rt.close()


# ---- The result that a person gives


@pytest.fixture
def untyped() -> Iterator[tuple[TestRuntime, list[Any]]]:
    """Return a runtime with a doubt about a tool of which only the compensation says what its result is."""
    refunded: list[Any] = []

    def refund(result: dict[str, str]) -> None:
        refunded.append(result["id"])

    @tool(key="order", compensate=refund)
    def charge(order: str):  # type: ignore[no-untyped-def]
        raise TimeoutError("the answer was lost")

    rt = TestRuntime(tools=[charge])
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt):
            charge(order="1")
        raise KeyError
    yield rt, refunded
    rt.close()


def test_a_result_of_another_type_is_refused_before_anything_is_recorded(
    untyped: tuple[TestRuntime, list[Any]],
) -> None:
    rt, refunded = untyped
    (doubt,) = rt.doubts()
    before = list(rt.events())
    with pytest.raises(UsageError, match="dict"):
        rt.resolve(doubt.id, Happened("ch_1"), by="ada", why="seen")
    assert list(rt.events()) == before
    rt.resolve(doubt.id, Happened({"id": "ch_1"}), by="ada", why="seen")
    assert refunded == ["ch_1"]


def test_a_compensation_that_lacks_the_result_gets_only_one_that_it_can_use(
    untyped: tuple[TestRuntime, list[Any]],
) -> None:
    rt, refunded = untyped
    (doubt,) = rt.doubts()
    assert "needs the result" in rt.preview(doubt.id).happened.note
    assert rt.preview(doubt.id).absent.note == ""
    rt.resolve(doubt.id, Happened(), by="ada", why="seen")
    assert rt.call(doubt.id).state == "compensation_failed"
    with pytest.raises(UsageError, match="dict"):
        rt.retry(doubt.id, by="ada", why="found it", result="ch_1")
    assert refunded == []
    rt.retry(doubt.id, by="ada", why="found it", result={"id": "ch_1"})
    assert (refunded, rt.report("r").state) == (["ch_1"], "rolled_back")


def test_a_wrong_result_that_was_recorded_without_the_tools_can_be_replaced() -> None:
    refunded: list[str] = []

    @tool(key="order")
    def charge(order: str):  # type: ignore[no-untyped-def]
        raise TimeoutError("the answer was lost")

    @charge.compensate(retry=1)
    def refund(result: dict[str, str]) -> None:
        refunded.append(result["id"])

    store = MemoryStore()
    rt, bare = Runtime(store=store, tools=[charge], wait=0.0), Runtime(store=store, wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt):
            charge(order="1")
        raise KeyError
    (doubt,) = bare.doubts()
    bare.resolve(doubt.id, Happened("ch_1"), by="ada", why="seen")
    rt.recover()
    assert rt.call(doubt.id).state == "compensation_failed"
    rt.retry(doubt.id, by="ada", why="it was mistyped", result={"id": "ch_1"})
    assert (refunded, rt.report("r").state) == (["ch_1"], "rolled_back")
