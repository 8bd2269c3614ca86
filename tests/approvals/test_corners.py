"""Corners: a child's outbox, a caller's own transaction, a button pressed twice, words that mean nothing to the key."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from amends import Held, NoEffect, Retry, Rule, Runtime, tool
from amends.errors import ApprovalVoid
from amends.testing.runtime import TestRuntime
from amends.testing.simulation import Crash
from tests.approvals.conftest import Shop, yes


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
