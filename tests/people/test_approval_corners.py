"""Corners: a child's outbox, a caller's own transaction, a button pressed twice, words that mean nothing to the key."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from amends import Held, NoEffect, Retry, Rule, Runtime, tool
from amends.errors import ApprovalVoid, OutOfOrder
from amends.testing.runtime import TestRuntime
from amends.testing.simulation import Crash
from tests.people.conftest import Shop, yes


def test_what_a_child_staged_is_approved_for_its_parent(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": True})
    with pytest.raises(Held), rt.run("r") as run:
        with run.child("inner") as inner:
            assert inner.answer("mail", {"to": "ann"}).status == "staged"
        assert inner.state == "committed"
    yes(rt)
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", ["mail ann"])


def test_a_button_pressed_twice_is_one_yes(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    first = yes(rt, held.value.approval)
    assert yes(rt, held.value.approval, why="once more") == first


def test_a_yes_can_be_taken_back_until_it_is_used(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r") as run:
        raise run.answer("charge", {"order": "1"}).error  # type: ignore[misc]
    yes(rt, held.value.approval)
    rt.reject(held.value.approval.id, by="bob", reason="wait")
    with rt.run("r") as run:
        assert run.answer("charge", {"order": "1"}).status == "refused"
    assert shop.sent == []


def test_later_attempts_do_what_was_approved_however_they_are_worded() -> None:
    said: list[str] = []

    @tool(kind="pivot", key="order", ignore=["note"], needs_approval=True, retry=Retry(attempts=5, delay=5.0))
    def wire(order: str, note: str) -> str:
        said.append(note)
        if len(said) == 1:
            raise NoEffect("not now")
        return note

    def begun(fault: dict[int, str]) -> TestRuntime:
        """Held, approved, and started once, without an effect; then whatever happens."""
        said.clear()
        rt = TestRuntime(tools=[wire])
        with pytest.raises(Held), rt.run("r", recover="wait"):
            wire(order="1", note="first")
        rt.approve_all()
        rt._test_driver.faults = fault
        run = rt.open("r", recover="wait")
        with suppress(Crash):
            run.call(wire, order="1", note="first")
        return rt

    trace = begun({})._test_driver.trace
    again = [place for place, what in enumerate(trace) if what == "StartCall"][1]
    rt = begun({again: "before"})
    assert said == ["first"]
    rt.crash()
    rt.clock.advance(100)
    with rt.run("r") as run:
        run.answer("wire", {"order": "1", "note": "reworded"})
    assert said == ["first", "first"]


def test_everything_is_approved_in_a_test(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", approvers=3)])
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1"})
        run.answer("charge", {"order": "2"})
    rt.approve_all()
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", ["charge 1 100", "charge 2 100"])


def test_in_the_callers_own_transaction_it_is_held_and_started_there(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    Runtime(f"sqlite:///{path}").migrate()
    conn = sqlite3.connect(path)
    conn.execute("create table stock (item text)")
    conn.commit()

    @tool(needs_approval=True)
    def take(item: str) -> str:
        conn.execute("insert into stock values (?)", (item,))
        return item

    @take.compensate
    def give(item: str) -> None: ...

    rt = Runtime(f"sqlite:///{path}", tools=[take])
    with pytest.raises(Held), rt.run("r") as run:
        conn.execute("begin immediate")
        try:
            run.call(take.with_options(connection=conn), item="x")
        finally:
            conn.commit()
    [waits] = rt.approvals()
    rt.approve(waits.id, digest=waits.digest, by="anna")
    with rt.run("r") as run:
        conn.execute("begin immediate")
        assert run.call(take.with_options(connection=conn), item="x") == "x"
        conn.commit()
    assert rt.approval(waits.id).state == "used"
    assert conn.execute("select item from stock").fetchall() == [("x",)]
    rt.close()
    conn.close()


def test_a_rule_that_became_stricter_asks_for_more(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", why="one")])
    with pytest.raises(Held) as held, rt.run("r") as run:
        raise run.answer("charge", {"order": "1"}).error  # type: ignore[misc]
    yes(rt, held.value.approval)
    stricter = shop.runtime(rules=[Rule("charge", approvers=2, why="two")])
    with pytest.raises(Held), stricter.run("r") as run:
        answer = run.answer("charge", {"order": "1"})
        assert isinstance(answer.error, ApprovalVoid)
        assert (answer.error.why, answer.error.approval.needed) == ("changed", 2)
    assert shop.sent == []


def test_a_decided_conflict_still_needs_its_yes(shop: Shop) -> None:
    sent: list[int] = []

    @tool(key="order", on_conflict="hold", needs_approval=True)
    def pay(order: str, cents: int) -> int:
        sent.append(cents)
        return cents

    @pay.compensate
    def back(order: str) -> None: ...

    rt = TestRuntime(tools=[pay], store=shop.store, clock=shop.clock)

    def ask(cents: int) -> Held | None:
        try:
            with rt.run("r") as run:
                run.call(pay, order="1", cents=cents)
                raise Held("stay open", call=None, reason="")
        except Held as held:
            return held if held.reason else None

    assert ask(100) is not None
    yes(rt)
    assert ask(100) is None
    conflict = ask(200)
    assert conflict is not None
    assert conflict.reason == "conflict"
    rt.decide(conflict.call.id, "run", by="anna", why="a second one is meant")
    asked = ask(200)
    assert asked is not None
    assert asked.reason == "approval", "a word on a conflict is no yes to the payment"
    assert sent == [100]
    yes(rt)
    assert ask(200) is None
    assert sent == [100, 200]


def test_a_reworded_request_does_not_pass_beside_the_one_that_waits(shop: Shop) -> None:
    rt = shop.runtime(asks={"reserve": True})
    with pytest.raises(Held), rt.run("r") as run:
        raise run.answer("reserve", {"item": "lamp"}).error  # type: ignore[misc]
    yes(rt)
    with pytest.raises(Held), rt.run("r") as run:
        answer = run.answer("reserve", {"item": "a lamp"})
        assert answer.call is not None
        assert answer.call.reason == "duplicate"
        raise answer.error  # type: ignore[misc]
    assert shop.sent == []


@pytest.mark.parametrize("ends", ["raises", "commits"])
def test_past_the_pivot_what_was_approved_goes_out_whatever_became_of_the_block(shop: Shop, ends: str) -> None:
    rt = shop.runtime(asks={"mail": True})
    with pytest.raises((Held, ValueError)), rt.run("r") as run:
        run.answer("wire", {"to": "bob"})
        assert run.answer("mail", {"to": "ann"}).status == "held"
        if ends == "raises":
            raise ValueError("after the pivot")
    assert rt.report("r").state == ("blocked" if ends == "raises" else "pivoted")
    yes(rt)
    [report] = rt.recover()
    assert shop.sent == ["wire bob 100", "mail ann"]
    assert report.state == ("blocked" if ends == "raises" else "committed")
    if ends == "raises":
        assert rt.finish("r", by="anna", why="all there").state == "committed"


def test_past_the_pivot_nobodys_answer_blocks_and_is_asked_for_again(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": True})
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("wire", {"to": "bob"})
        run.answer("mail", {"to": "ann"})
    shop.clock.advance(86_401)
    [report] = rt.recover()
    assert report.state == "blocked"
    assert "rt.ask_again" in report.run.causes[0]
    [lapsed] = rt.approvals("state:expired")
    yes(rt, rt.ask_again(lapsed.id, by="anna", why="late"))
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", ["wire bob 100", "mail ann"])


def test_past_the_pivot_one_may_go_on_without_it(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": True})
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("wire", {"to": "bob"})
        run.answer("mail", {"to": "ann"})
    shop.clock.advance(86_401)
    [report] = rt.recover()
    assert "rt.withdraw" in report.run.causes[0]
    [lapsed] = rt.approvals("state:expired")
    rt.withdraw(lapsed.id, by="anna", why="no longer needed")
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", ["wire bob 100"])


def test_a_later_attempt_in_the_callers_transaction_does_what_was_approved(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    said: list[str] = []

    @tool(key="order", ignore=["note"], needs_approval=True, retry=Retry(attempts=5, delay=5.0))
    def take(order: str, note: str) -> str:
        said.append(note)
        if len(said) == 1:
            raise NoEffect("not now")
        return note

    @take.compensate
    def give(order: str) -> None: ...

    rt = Runtime(f"sqlite:///{path}", tools=[take])
    with pytest.raises(Held), rt.run("r", recover="wait"):
        take(order="1", note="first")
    [waits] = rt.approvals()
    rt.approve(waits.id, digest=waits.digest, by="anna")

    class Tired(BaseException): ...

    def tired(_: float) -> None:
        raise Tired

    with pytest.raises(Tired), rt.run("r", recover="wait"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.sleep", tired)
        take(order="1", note="first")
    [call] = rt.report("r").calls
    assert (call.state, said) == ("backing_off", ["first"])
    rt.retry(call.id, by="anna", why="now")
    conn = sqlite3.connect(path)
    with rt.run("r", recover="wait") as run:
        conn.execute("begin immediate")
        assert run.call(take.with_options(connection=conn), order="1", note="reworded") == "first"
        conn.commit()
    assert said == ["first", "first"]
    rt.close()
    conn.close()


def test_the_ordering_law_that_refuses_an_approved_call_is_recorded() -> None:
    @tool(kind="pivot")
    def wire(n: int) -> str:
        return f"wire {n}"

    @tool(needs_approval=True)
    def pay(n: int) -> str:
        return f"pay {n}"

    @pay.compensate
    def refund() -> None:
        pass

    rt = TestRuntime(tools=[wire, pay])

    def agent() -> None:
        with rt.run("r", recover="wait") as run:
            wire(1)
            with pytest.raises(OutOfOrder):
                pay(1)
            with run.child("inner"):
                assert pay(1) == "pay 1"

    with pytest.raises(Held):
        agent()
    rt.approve_all()
    agent()
    refused = [event for event in rt._memory.events if event.what == "refused"]
    assert [event.epoch for event in refused] == [1, 2]
    assert all('"after_pivot"' in event.facts for event in refused)
    rt.replay("r", agent)
