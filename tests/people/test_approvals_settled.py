"""A no stays a no, and nobody waits for ever: for who is asked, for who asks, and for runs in between."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from amends import Held, NoEffect, Rule, tool
from amends.errors import ApprovalVoid, OutOfOrder, Rejected, UsageError
from amends.people.rollback import rollback
from amends.testing.runtime import TestRuntime
from tests.people.conftest import Shop, yes


def test_a_no_is_not_got_around_by_calling_it_another_one(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True}, repeats=True)
    run = rt.open("r", recover="wait")
    run.answer("reserve", {"item": "a"})
    run.answer("charge", {"order": "1"})
    [asked] = rt.approvals()
    rt.reject(asked.id, by="anna", reason="no")
    assert isinstance(run.answer("charge", {"order": "1", "again_because": "please"}).error, Rejected)
    rt.crash()
    rt.clock.advance(100)
    run = rt.open("r", recover="wait")
    suspected = run.answer("reserve", {"item": "b"})
    assert suspected.call is not None
    rt.decide(suspected.call.id, "refuse", by="anna", why="one is enough")
    assert isinstance(run.answer("reserve", {"item": "b", "again_because": "another"}).error, Rejected)
    assert run.answer("reserve", {"item": "a", "again_because": "another"}).status == "done"
    assert shop.sent == ["reserve a", "reserve a"]
    run.commit()


def test_a_no_to_a_read_holds_in_every_run_inside(shop: Shop) -> None:
    rt = shop.runtime(asks={"look": True})
    with rt.run("r", recover="wait") as run:
        run.answer("look", {"what": "x"})
        [asked] = rt.approvals()
        rt.reject(asked.id, by="anna", reason="private")
        with run.child("inner") as inner:
            assert isinstance(inner.answer("look", {"what": "x"}).error, Rejected)
    assert (run.state, shop.sent) == ("committed", [])


def test_a_read_of_another_version_is_asked_for_in_place_of_the_old_one(shop: Shop) -> None:
    def runtime(version: str) -> TestRuntime:
        @tool(kind="read", version=version, needs_approval=True)
        def peek(what: str) -> str:
            shop.sent.append(f"{version} {what}")
            return what

        return TestRuntime(store=shop.store, clock=shop.clock, tools=[peek], principal="bot")

    for version in ("1", "2"):
        rt = runtime(version)
        with pytest.raises(Held), rt.run("r", recover="wait") as run:
            raise run.answer("peek", {"what": "x"}).error  # type: ignore[misc]
        yes(rt)
    with rt.run("r", recover="wait") as run:
        assert run.answer("peek", {"what": "x"}).status == "done"
    assert (run.state, shop.sent) == ("committed", ["2 x"])


def test_a_run_is_not_taken_back_while_somebody_is_asked_anew(shop: Shop) -> None:
    charge, reserve, *_ = shop.tools(charge=True)
    rt = TestRuntime(store=shop.store, clock=shop.clock, tools=[charge, reserve], principal="bot")

    def book() -> None:
        with rt.run("r"):
            reserve(item="x")
            charge(order="1")

    with pytest.raises(Held):
        book()
    rt.clock.advance(90_000)
    with pytest.raises(ApprovalVoid) as void:
        book()
    assert (void.value.why, void.value.asked, shop.undone) == ("expired", True, [])
    yes(rt)
    book()
    assert (rt.report("r").state, shop.sent) == ("committed", ["reserve x", "charge 1 100"])


def test_what_is_done_by_hand_waits_for_its_caller(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("xfer"), Rule("charge")])

    def moved(name: str, args: dict[str, Any], kind: Any) -> None:
        with rt.run(name) as run, suppress(Held), run.begin(name, args, kind=kind) as attempt:
            attempt.succeed("done")

    for name, args, kind in (("xfer", {"to": "x"}, "pivot"), ("charge", {"order": "1"}, None)):
        with pytest.raises(Held):
            moved(name, args, kind)
        yes(rt)
        assert rt.recover() == []
        moved(name, args, kind)
        assert rt.report(name).state == "committed"
    assert shop.sent == []


def test_a_yes_that_a_rule_forbids_by_now_blocks_and_says_what_to_do(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    asked = yes(rt)
    rt = shop.runtime(asks={"charge": True}, rules=[Rule("charge", decision="refuse")])
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("blocked", [])
    assert "a rule refuses it now: rt.withdraw('apr_" in report.run.causes[0]
    rt.withdraw(asked.id, by="anna", why="the rule is right")
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", [])


def test_a_yes_used_with_a_pivot_that_failed_still_runs_out() -> None:
    sent: list[str] = []

    @tool(kind="pivot")
    def wire(to: str) -> None:
        if to == "nobody":
            raise NoEffect("no such account")
        sent.append(f"wire {to}")

    @tool(kind="retriable", idempotent=True, needs_approval=True)
    def mail(to: str) -> None:
        sent.append(f"mail {to}")

    rt = TestRuntime(tools=[wire, mail], principal="bot")
    run = rt.open("r", recover="wait")
    run.answer("mail", {"to": "ann"})
    asked = yes(rt)
    assert run.answer("wire", {"to": "nobody"}).status == "failed"
    assert rt.approval(asked.id).state == "used"
    assert run.answer("mail", {"to": "ann"}).status == "staged"
    rt.crash()
    rt.clock.advance(200_000)
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        assert isinstance(run.answer("wire", {"to": "bob"}).error, OutOfOrder)
    assert sent == []
    yes(rt)
    rt.recover()
    assert sent == ["mail ann"]


def test_who_is_asked_is_not_another_for_being_spelled_so(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", approvers=2)])
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    [asked] = rt.approvals()
    for spelled in ("bo\u200bt", "\uff42\uff4f\uff54", " BOT "):
        with pytest.raises(ApprovalVoid, match="the person who asked"):
            yes(rt, asked, by=spelled)
    yes(rt, asked, by="anna")
    assert yes(rt, asked, by="ann\u200ba").state == "pending"


def test_nobody_is_asked_anew_for_a_run_that_goes_back(shop: Shop) -> None:
    told: list[str] = []
    rt = shop.runtime(asks={"charge": True}, on_approval_needed=lambda asked: told.append(asked.id))
    run = rt.open("r", recover="wait")
    run.answer("charge", {"order": "1"})
    [asked] = rt.approvals()
    rt.crash()
    rt._drive(rollback(rt._host, rt._view, "r", by="anna", why="enough"))
    with pytest.raises(UsageError, match="rolled back"):
        rt.edit(asked.id, {"order": "2"}, by="anna", why="rather 2")
    rt.clock.advance(100_000)
    with pytest.raises(UsageError, match="rolled back"):
        rt.ask_again(asked.id, by="anna", why="late")
    assert told == [asked.id]


def test_a_tenant_does_not_void_what_is_another_tenants(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    mine, other = rt.scoped(tenant="a"), rt.scoped(tenant="b")
    with pytest.raises(Held), mine.run("r") as run:
        run.answer("charge", {"order": "1"})
    with pytest.raises(UsageError, match="whole ledger"):
        other.reconcile_restore(by="eve", why="mine now")
    assert [asked.state for asked in mine.approvals()] == ["pending"]
