"""Ways around a person, each of which is closed."""

from __future__ import annotations

from typing import Any

import pytest

from amends import Approval, Budget, Held, Rule, tool
from amends.errors import ApprovalVoid, BudgetExceeded, Rejected, RuleRefused, RunConflict
from amends.testing.runtime import TestRuntime
from tests.people.conftest import Shop, yes


def _held_twin(rt: TestRuntime, run_id: str) -> Any:
    return next(call for call in rt.report(run_id).calls if call.state == "held" and call.reason == "duplicate")


def test_a_lifted_suspicion_is_no_approval_of_what_is_staged(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": lambda call: call.args["to"] == "eve"})
    run = rt.open("r", recover="wait")
    assert run.answer("mail", {"to": "ann"}).status == "staged"
    rt.crash()
    rt.clock.advance(100)
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        assert run.answer("mail", {"to": "eve"}).status == "held"
    rt.decide(_held_twin(rt, "r").id, "run", by="anna", why="another one")
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        run.answer("mail", {"to": "ann"})
        run.answer("mail", {"to": "eve"})
    assert shop.sent == []
    yes(rt)
    rt.recover()
    assert sorted(shop.sent) == ["mail ann", "mail eve"]


def test_a_lifted_suspicion_is_no_approval_of_the_pivot_at_commit(shop: Shop) -> None:
    rt = shop.runtime(asks={"pay": lambda call: call.args["to"] == "eve"})
    run = rt.open("r", recover="wait")
    with run.child("inner") as inner:
        inner.answer("pay", {"to": "ann"})
    rt.crash()
    rt.clock.advance(100)
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        assert run.answer("pay", {"to": "eve"}).status == "held"
    rt.decide(_held_twin(rt, "r").id, "run", by="anna", why="another one")
    rt.recover()
    assert shop.sent == ["pay ann"]
    yes(rt)
    rt.recover()
    assert (rt.report("r").state, shop.sent) == ("committed", ["pay ann", "pay eve"])


def test_a_rule_that_refuses_is_heard_before_anybody_is_asked_about_a_repeat(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("mail", args={"to": "eve"}, decision="refuse")])
    run = rt.open("r", recover="wait")
    assert run.answer("mail", {"to": "ann"}).status == "staged"
    rt.crash()
    rt.clock.advance(100)
    with rt.run("r", recover="wait") as run:
        assert isinstance(run.answer("mail", {"to": "eve"}).error, RuleRefused)
    assert shop.sent == ["mail ann"]


def test_a_lifted_suspicion_is_no_approval_of_what_nobody_declared(shop: Shop) -> None:
    done: list[str] = []

    def zap(where: str) -> str:
        done.append(where)
        return where

    rt = shop.runtime()
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        run.answer("zap", {"where": "here"}, handler=zap)
    yes(rt)
    run = rt.open("r", recover="wait")
    assert run.answer("zap", {"where": "here"}, handler=zap).status == "done"
    rt.crash()
    rt.clock.advance(100)
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        assert run.answer("zap", {"where": "there"}, handler=zap).status == "held"
    twin = next(c for child in rt.report("r").children for c in child.calls if c.state == "held")
    assert twin.reason == "duplicate"
    rt.decide(twin.id, "run", by="anna", why="another one")
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        run.answer("zap", {"where": "here"}, handler=zap)
        run.answer("zap", {"where": "there"}, handler=zap)
    assert done == ["here"]


def test_a_stranger_cannot_call_itself_the_programmers_word(shop: Shop) -> None:
    done: list[str] = []
    rt = shop.runtime()
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("once:zap", {"where": "here"}, handler=done.append)
    assert done == []


def test_a_person_and_who_decides_for_them_are_one(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", approvers=2, roles=("finance",))], approvers={"finance": ["anna", "cleo"]})
    with pytest.raises(Held) as held, rt.run("r") as run:
        raise run.answer("charge", {"order": "1"}).error  # type: ignore[misc]
    asked = held.value.approval
    rt.delegate(by="anna", to="bob", until=3600, why="lunch")
    yes(rt, asked, by="anna")
    assert yes(rt, asked, by="bob", behalf="anna").state == "pending"
    assert yes(rt, asked, by="cleo").state == "approved"


def test_a_no_stays_a_no_after_other_arguments_were_asked_for(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True}, wait_approval=0)
    run = rt.open("r", recover="wait")
    run.answer("charge", {"order": "1", "cents": 500})
    [asked] = rt.approvals()
    rt.reject(asked.id, by="anna", reason="too much")
    assert isinstance(run.answer("charge", {"order": "1", "cents": 500}).error, Rejected)
    assert isinstance(run.answer("charge", {"order": "1", "cents": 400}).error, Held)
    answer = run.answer("charge", {"order": "1", "cents": 500})
    assert isinstance(answer.error, Rejected), answer
    [asked] = rt.approvals()
    assert asked.call.args["cents"] == 400
    rt.reject(asked.id, by="anna", reason="too much")
    assert isinstance(run.answer("charge", {"order": "1", "cents": 500}).error, Rejected)
    assert isinstance(run.answer("charge", {"order": "1", "cents": 400}).error, Rejected)


def test_after_the_parents_pivot_a_childs_outbox_starts_when_somebody_said_yes(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": True})
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("wire", {"to": "x"})
        with run.child("inner") as inner:
            assert inner.answer("mail", {"to": "ann"}).status == "staged"
    assert shop.sent == ["wire x 100"]
    yes(rt)
    rt.clock.advance(100)
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", ["wire x 100", "mail ann"])


def test_a_lifted_suspicion_does_not_start_a_pivot_over_what_nobody_decided(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": True})
    run = rt.open("r", recover="wait")
    assert run.answer("mail", {"to": "ann"}).status == "staged"
    with run.child("inner") as inner:
        inner.answer("wire", {"to": "x"})
    rt.crash()
    rt.clock.advance(100)
    with pytest.raises(Held), rt.run("r", recover="wait") as run:
        assert run.answer("wire", {"to": "y"}).status == "held"
    rt.decide(_held_twin(rt, "r").id, "run", by="anna", why="another one")
    rt.clock.advance(100_000)
    rt.recover()
    assert shop.sent == ["wire x 100"]
    assert rt.report("r").state == "blocked"
    assert "nobody decided in time" in rt.report("r").run.causes[0]
    [asked] = rt.approvals("state:expired")
    rt.ask_again(asked.id, by="anna", why="late")
    yes(rt)
    rt.clock.advance(100)
    rt.recover()
    assert (rt.report("r").state, shop.sent) == ("committed", ["wire x 100", "wire y 100", "mail ann"])


@pytest.mark.parametrize("kind", ["pivot", "retriable"])
def test_what_a_rule_refuses_is_not_made_by_an_edit(shop: Shop, kind: str) -> None:
    rt = shop.runtime(
        rules=[
            Rule("mail", args={"to": "eve"}, decision="refuse", why="never eve"),
            Rule("mail"),
            Rule("wire", args={"to": "eve"}, decision="refuse"),
            Rule("wire"),
        ]
    )
    name = "wire" if kind == "pivot" else "mail"
    with pytest.raises(Held), rt.run("r") as run:
        run.answer(name, {"to": "ann"})
    [asked] = rt.approvals()
    with pytest.raises(RuleRefused):
        rt.edit(asked.id, {"to": "eve"}, by="anna", why="rather eve")
    yes(rt)
    rt.recover()
    assert len(shop.sent) == 1
    assert "ann" in shop.sent[0]


def test_an_edit_asks_for_what_the_rules_say_of_the_new_arguments(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("mail", args={"to": "eve"}, approvers=2), Rule("mail")])
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("mail", {"to": "ann"})
    [asked] = rt.approvals()
    edited = rt.edit(asked.id, {"to": "eve"}, by="anna", why="rather eve")
    assert edited.needed == 2


@pytest.mark.parametrize("owner", ["ledger", "run"])
def test_an_edit_gets_past_no_budget_and_no_lock(owner: str) -> None:
    held: list[list[str]] = []

    @tool(
        kind="pivot", key="to", needs_approval=True, cost=lambda call: call.args["cents"], locks=lambda call: ["till"]
    )
    def pay_out(to: str, cents: int) -> None:
        held.append([one.name for one in rt.locks()])

    cap = Budget(100, per="ledger" if owner == "ledger" else "run")
    rt = TestRuntime(tools=[pay_out], budgets=[cap] if owner == "ledger" else [])
    given: dict[str, Any] = {} if owner == "ledger" else {"budgets": [cap]}
    for run, cents in (("most", 101), ("less", 40)):
        with pytest.raises(Held) as asked, rt.run(run, **given):
            pay_out(to="ann", cents=7)
        yes(rt, rt.edit(asked.value.approval.id, {"to": "ann", "cents": cents}, by="eve", why="rather so"))
    with pytest.raises(BudgetExceeded), rt.run("most", **given):
        pay_out(to="ann", cents=101)
    with rt.run("less", **given):
        pay_out(to="ann", cents=40)
    assert held == [["till"]]
    assert [call.costs for call in rt.report("less").calls if call.state == "succeeded"] == [{"usd": 40}]


def test_whoever_may_not_decide_may_not_edit(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("charge", roles=("finance",))], approvers={"finance": ["anna"]})
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    [asked] = rt.approvals()
    with pytest.raises(ApprovalVoid):
        rt.edit(asked.id, {"order": "2"}, by="bob", why="rather 2")
    assert rt.approval(asked.id).state == "pending"
    assert rt.edit(asked.id, {"order": "2"}, by="bob", why="rather 2", roles=("finance",)).state == "pending"


def test_what_changes_while_somebody_thinks_is_not_what_is_done() -> None:
    sent: list[Any] = []

    @tool(needs_approval=True)
    def send(payee: dict[str, str], lines: list[str]) -> str:
        sent.append((dict(payee), list(lines)))
        return "ok"

    @send.compensate
    def unsend() -> None: ...

    def anna(asked: Approval) -> None:
        rt.approve(asked.id, digest=asked.digest, by="anna")
        payee["iban"] = "DE9"
        lines.append("two")

    payee, lines = {"iban": "DE1"}, ["one"]
    rt = TestRuntime(tools=[send], principal="bot", wait_approval=5.0, on_approval_needed=anna)
    with rt.run("r"):
        send(payee=payee, lines=lines)
    assert sent == [({"iban": "DE1"}, ["one"])]


def test_a_run_is_not_gone_on_with_for_somebody_else(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    alice, bob = rt.scoped(principal="alice"), rt.scoped(principal="bob")
    with pytest.raises(Held), alice.run("r") as run:
        raise run.answer("charge", {"order": "1"}).error  # type: ignore[misc]
    with pytest.raises(RunConflict, match="alice"), bob.run("r") as run:
        raise run.answer("charge", {"order": "2"}).error  # type: ignore[misc]
    [asked] = rt.approvals()
    yes(rt, asked, by="bob")
    with alice.run("r") as run:
        run.answer("charge", {"order": "1"})
    assert shop.sent == ["charge 1 100"]


def test_a_yes_to_pass_a_budget_is_no_yes_for_those_whom_a_rule_names() -> None:
    sent: list[str] = []

    @tool(kind="retriable", idempotent=True, cost={"usd": 10})
    def mail(to: str) -> None:
        sent.append(to)

    rules = [Rule("mail", roles=("finance",), why="mails")]
    rt = TestRuntime(
        tools=[mail], rules=rules, approvers={"finance": ["anna"]}, budgets=[Budget(5, then="hold")], principal="bot"
    )
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("mail", {"to": "ann"})
    yes(rt)
    rt.recover()
    [money] = rt.approvals()
    with pytest.raises(ApprovalVoid, match="roles"):
        yes(rt, money, by="zed")
    yes(rt, money)
    [report] = rt.recover()
    assert (report.state, sent) == ("committed", ["ann"])
    assert [one.state for one in rt.approvals("")] == ["used", "cancelled"]
