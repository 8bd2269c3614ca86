"""Everything that waits for a person, in one list; and what happens to a run at this moment."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Rule, RunBlocked, RunInfo, Runtime, UsageError, tool
from amends.testing.runtime import TestRuntime
from tests.people.conftest import Shop, yes


def of(rt: Runtime, name: str) -> Any:
    return next(one for one in rt._host.tools if one.__name__ == name)  # type: ignore[attr-defined]


def ask(rt: TestRuntime, run: str, *, order: str = "1") -> None:
    with pytest.raises(Held), rt.run(run):
        of(rt, "charge")(order=order)


def lose(rt: Runtime, run: str) -> None:
    with pytest.raises(RunBlocked), rt.run(run):
        of(rt, "send")(to=run)


def lost_tool() -> Any:
    @tool(key="to")
    def send(to: str) -> str:
        raise TimeoutError("the answer was lost")

    @send.compensate
    def take_back(to: str) -> None:
        pass

    return send


def test_the_soonest_to_expire_is_first_then_the_oldest(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    send = lost_tool()
    rt.add(send)
    with pytest.raises(RunBlocked), rt.run("lost-1"):
        send(to="a")
    shop.clock.advance(60)
    ask(rt, "asked-1")
    shop.clock.advance(60)
    with pytest.raises(RunBlocked), rt.run("lost-2"):
        send(to="b")
    ask(rt, "asked-2", order="2")
    found = rt.inbox()
    assert [(one.what, one.run_id) for one in found] == [
        ("approval", "asked-1"),
        ("approval", "asked-2"),
        ("doubt", "lost-1"),
        ("doubt", "lost-2"),
    ]
    first = found[0]
    assert first.call is not None
    assert (first.id, first.call.tool, dict(first.call.args)) == (
        next(one.id for one in rt.approvals("run:asked-1")),
        "charge",
        {"order": "1", "cents": 100},
    )
    assert (first.verbs, found[2].verbs) == (("approve", "reject"), ("probe", "resolve"))
    assert found[2].id == next(iter(rt.doubts("run:lost-1"))).id


def test_a_decided_one_is_gone_and_one_past_its_time_asks_to_be_asked_again(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    ask(rt, "r")
    [item] = rt.inbox()
    assert item.expires_at is not None
    yes(rt)
    assert rt.inbox() == [], "an approved call waits for its program, not for a person"
    ask(rt.scoped(principal="other"), "r2", order="9")  # type: ignore[arg-type]
    [item] = rt.inbox()
    assert item.expires_at is not None
    shop.clock.advance(item.expires_at.timestamp() - shop.clock.wall + 1)
    found = rt.inbox()
    assert ("expired", "r2") in [(one.what, one.run_id) for one in found]
    late = next(one for one in found if one.run_id == "r2")
    assert (late.id, late.verbs, late.expires_at) == (item.id, ("ask_again", "withdraw"), None)
    rt.ask_again(late.id, by="anna", why="still wanted")
    assert [(one.what, one.run_id) for one in rt.inbox("run:r2")] == [("approval", "r2")]


def test_a_held_call_waits_for_a_decision(shop: Shop) -> None:
    @tool(key="order", on_conflict="hold")
    def book(order: str, room: str) -> str:
        return room

    @book.compensate
    def cancel(order: str) -> None:
        pass

    rt = shop.runtime()
    rt.add(book)
    with pytest.raises(Held), rt.run("r"):
        book(order="1", room="blue")
        book(order="1", room="red")
    [item] = rt.inbox()
    assert item.call is not None
    assert (item.what, item.verbs, item.id, dict(item.call.args)) == (
        "decision",
        ("decide",),
        item.call.id,
        {"order": "1", "room": "red"},
    )
    rt.decide(item.id, "refuse", by="anna", why="the blue one")
    assert rt.inbox() == []


def test_a_blocked_run_is_listed_for_each_cause_that_nothing_else_names(shop: Shop) -> None:
    rt = shop.runtime()
    with pytest.raises(KeyError), rt.run("interrupted"):
        of(rt, "wire")(to="x")
        raise KeyError("after the pivot")
    began = shop.clock.wall
    shop.clock.advance(30)
    [item] = rt.inbox()
    assert (item.what, item.id, item.call) == ("blocked", "interrupted", None)
    assert "finish" in item.verbs
    assert item.since.timestamp() == pytest.approx(began, abs=5)
    rt.finish("interrupted", by="anna", why="it is done")
    assert rt.inbox() == []


def test_what_waits_in_a_child_is_listed_once_under_the_child(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    send = lost_tool()
    rt.add(send)
    with pytest.raises(Held), rt.run("parent") as run, run.child("asks"):
        of(rt, "charge")(order="1")
    with pytest.raises(RunBlocked), rt.run("other") as run, run.child("loses"):
        send(to="a")
    assert [(one.what, one.run_id) for one in rt.inbox()] == [("approval", "parent/asks"), ("doubt", "other/loses")]
    assert now_of(rt, "parent") == now_of(rt, "parent/asks") == now_of(rt, "other") == "waits for a person"


def test_a_run_that_waits_for_a_lock_is_not_in_the_inbox(shop: Shop) -> None:
    @tool(locks=lambda call: ["seat-1"])
    def sit(who: str) -> str:
        return who

    @sit.compensate
    def stand(who: str) -> None:
        pass

    rt = shop.runtime(wait=0.0)
    rt.add(sit)
    first = rt.open("first")
    first.call(sit, "ann")
    with pytest.raises(Exception, match="seat-1"), rt.run("second"):
        sit(who="bob")
    assert rt.inbox() == []
    first.commit()


def test_a_filter_chooses_and_one_that_makes_no_sense_is_refused(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    send = lost_tool()
    rt.add(send)
    ask(rt, "asked")
    with pytest.raises(RunBlocked), rt.run("lost"):
        send(to="a")
    assert [one.run_id for one in rt.inbox("what:doubt")] == ["lost"]
    assert [one.run_id for one in rt.inbox("tool:charge run:as*")] == ["asked"]
    assert rt.inbox("age:>1h") == []
    for wrong in ("what:nonsense", "colour:red", "state:open"):
        with pytest.raises(UsageError):
            rt.inbox(wrong)


def test_another_tenants_are_not_shown(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True}, tenant="acme")
    ask(rt, "r")
    assert [one.tenant for one in rt.inbox()] == ["acme"]
    assert shop.runtime(tenant="other").inbox() == []
    assert shop.runtime().inbox() == []


def test_an_event_loop_has_the_same_inbox(tmp_path: Path) -> None:
    @tool(kind="pivot", needs_approval=True)
    async def wire(to: str) -> str:
        return to

    async def main() -> list[Any]:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'l.db'}", tools=[wire]) as rt:
            with pytest.raises(Held):
                async with rt.run("r"):
                    await wire(to="a")
            runs = [one async for one in rt.runs(now=True)]
            return [*(await rt.inbox()), *runs]

    item, run = asyncio.run(main())
    assert (item.what, item.run_id, str(run.now)) == ("approval", "r", "waits for a person")
    assert item.to_dict()["id"] == item.id


# ---- now ------------------------------------------------------------------------------------


def now_of(rt: Runtime, run: str) -> str:
    [info] = [one for one in rt.runs(f"run:{run}", now=True) if one.id == run]
    return str(info.now)


def test_a_run_says_where_it_runs_whom_it_waits_for_and_since_when_nobody_has_it(shop: Shop) -> None:
    rules, approvers = [Rule("charge", roles=("treasurer",))], {"treasurer": ["anna"]}
    rt = shop.runtime(rules=rules, approvers=approvers, lease=30)
    with rt.run("done"):
        pass
    infos: list[RunInfo] = list(rt.runs(now=True))
    assert infos[0].now is None
    assert next(iter(rt.runs())).now is None
    ask(rt, "asked")
    assert now_of(rt, "asked") == "waits for treasurer"
    yes(rt)
    assert now_of(rt, "asked") == "waits for its program"
    run = rt.open("open")
    assert now_of(rt, "open").startswith("runs on ")
    [info] = rt.runs("run:open", now=True)
    assert info.now is not None
    assert (info.now.what, info.now.where is not None) == ("running", True)
    run.commit()
    with pytest.raises(KeyError), rt.run("blocked"):
        of(rt, "wire")(to="x")
        raise KeyError("after the pivot")
    assert now_of(rt, "blocked") == "waits for a person"


def test_a_doubt_whose_probe_keeps_failing_is_listed_with_the_error() -> None:
    def look() -> object:
        raise KeyError("id")

    @tool(kind="pivot", key="to", probe=look)
    def send(to: str) -> str:
        raise TimeoutError("the answer was lost")

    rt = TestRuntime(tools=[send])
    with pytest.raises(RunBlocked), rt.run("r"):
        send(to="a")
    (item,) = rt.inbox()
    assert item.why == "it may have happened, and its probe keeps failing (KeyError: 'id')"


@pytest.mark.parametrize("order", ["staged", "after"])
def test_a_run_whose_staged_call_cannot_read_what_is_there_is_listed_and_goes_on_when_it_can(order: str) -> None:
    broken, done = [True], []

    @tool(kind="pivot")
    def ship(to: str) -> None: ...

    @tool(kind="retriable", idempotent=True)
    def put(what: str) -> None:
        done.append(what)

    @put.before
    def shelf(what: str) -> int:
        if broken:
            raise ConnectionError("the shelf does not answer")
        return 1

    rt = TestRuntime(tools=[ship, put])
    with rt.run("r") as run:
        for name, arg in (("put", "what"), ("ship", "to"))[:: 1 if order == "staged" else -1]:
            run.answer(name, {arg: "1"})
    assert (rt.report("r").run.state, rt.inbox()) == ("pivoted", [])  # once may be chance: a worker tries again
    for _ in range(2):
        rt.clock.advance(100)
        rt.recover()
        [item] = rt.inbox()
        assert (item.what, item.id) == ("blocked", "r")
        assert "what is there before it cannot be read (ConnectionError: the shelf does not answer)" in item.why
        assert item.verbs == ("abandon",)
    broken.clear()
    rt.clock.advance(100)
    rt.recover()
    assert (rt.report("r").run.state, rt.inbox(), done) == ("committed", [], ["1"])


def test_a_bounded_inbox_looks_at_the_newest_runs_only() -> None:
    @tool(kind="pivot")
    def ship(to: str) -> None: ...

    rt = Runtime("memory:", tools=[ship])
    for name in ("old", "new"):
        with pytest.raises(KeyError), rt.run(name) as run:
            run.answer("ship", {"to": name})
            raise KeyError
    assert {item.id for item in rt.inbox()} == {"old", "new"} == {item.id for item in rt.inbox(newest=2)}
    assert {item.id for item in rt.inbox(newest=1)} == {"new"}
    with pytest.raises(UsageError):
        rt.inbox(newest=0)
