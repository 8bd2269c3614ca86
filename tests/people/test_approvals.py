"""A call that needs a yes: held, decided, started once."""

from __future__ import annotations

from datetime import timedelta

import pytest

from amends import Held, Runtime, UsageError
from amends.errors import ApprovalVoid, Rejected, RunEnded
from tests.people.conftest import Shop, yes


def _of(rt: Runtime, name: str):  # type: ignore[no-untyped-def]
    return next(one for one in rt._host.tools if one.__name__ == name)  # type: ignore[attr-defined]


def test_held_approved_and_gone_on_with(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "reserve")(item="x")
        _of(rt, "charge")(order="1", cents=5)
    assert (held.value.reason, held.value.approval.state) == ("approval", "pending")
    assert held.value.approval.call.args == {"order": "1", "cents": 5}
    [waits] = rt.approvals()
    assert waits == held.value.approval
    assert rt.recover() == [], "nobody takes back what waits for a person"
    shop.clock.advance(3600)
    assert yes(rt, waits).state == "approved"
    assert rt.recover() == []
    shop.clock.advance(3600)
    with rt.run("r") as run:
        assert _of(rt, "reserve")(item="x") == "rs-x"
        assert _of(rt, "charge")(order="1", cents=5) == "ch-1"
    assert run.state == "committed"
    assert shop.sent == ["reserve x", "charge 1 5"]
    assert rt.approval(waits.id).state == "used"


def test_a_no_reaches_who_asked(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1")
    rt.reject(held.value.approval.id, by="anna", reason="wrong payee")
    with rt.run("r") as run:
        answer = run.answer("charge", {"order": "1"})
        assert answer.text == "A person rejected charge: wrong payee. Do not ask again with these arguments."
        with pytest.raises(Rejected) as no:
            _of(rt, "charge")(order="1")
        assert (no.value.by, no.value.reason) == ("anna", "wrong payee")
    assert shop.sent == []
    assert run.state == "committed"


@pytest.mark.parametrize("wrong", ["digest", "self", "agent"])
def test_a_yes_that_counts_for_nothing(shop: Shop, wrong: str) -> None:
    rt = shop.runtime(asks={"charge": True}, agent="Planner")
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1")
    approval = held.value.approval
    digest = "0" * 64 if wrong == "digest" else approval.digest
    by = {"self": "BOT ", "agent": "planner"}.get(wrong, "anna")
    with pytest.raises(ApprovalVoid) as void:
        rt.approve(approval.id, digest=digest, by=by)
    assert void.value.why == {"digest": "changed"}.get(wrong, "self")
    assert rt.approval(approval.id).state == "pending"


def test_a_yes_to_a_run_that_has_ended_says_so(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(KeyError), rt.run("r"):
        with pytest.raises(Held) as held:
            _of(rt, "charge")(order="1", cents=5)
        raise KeyError
    with pytest.raises(ApprovalVoid, match="its run has ended") as void:
        yes(rt, held.value.approval)
    assert (void.value.why, void.value.approval.state) == ("changed", "cancelled")
    assert shop.sent == []


def test_other_arguments_under_the_same_key_are_asked_for_anew(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1", cents=5)
    yes(rt, held.value.approval)
    with pytest.raises(Held), rt.run("r") as run:
        answer = run.answer("charge", {"order": "1", "cents": 5000})
        assert isinstance(answer.error, ApprovalVoid)
        assert answer.error.why == "changed"
        assert answer.text == (
            "Not run: the approval was for cents=5, you asked for cents=5000. "
            "Approval for the new arguments was requested; do not call it again."
        )
    assert rt.approval(held.value.approval.id).state == "cancelled"
    with pytest.raises(ApprovalVoid) as used:
        yes(rt, held.value.approval)
    assert used.value.why == "changed"
    [new] = rt.approvals()
    assert new.call.args["cents"] == 5000
    yes(rt)
    with rt.run("r"):
        pass
    assert shop.sent == ["charge 1 5000"]


def test_what_expired_starts_nothing_and_is_asked_for_anew(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1")
    yes(rt, held.value.approval)
    shop.clock.advance(86_401)
    with pytest.raises(Held) as again, rt.run("r") as run:
        answer = run.answer("charge", {"order": "1"})
        assert isinstance(answer.error, ApprovalVoid)
        assert answer.error.why == "expired"
    assert shop.sent == []
    assert again.value.approval.id != held.value.approval.id
    assert rt.approval(held.value.approval.id).state == "expired"
    with pytest.raises(ApprovalVoid, match="void"):
        yes(rt, held.value.approval)
    yes(rt)
    with rt.run("r") as run:
        assert run.answer("charge", {"order": "1"}).status in ("done", "replayed")
    assert shop.sent == ["charge 1 100"]


def test_when_nobody_can_say_yes_any_more_the_policy_applies(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held), rt.run("r"):
        _of(rt, "reserve")(item="x")
        _of(rt, "charge")(order="1")
    shop.clock.advance(86_401)
    [report] = rt.recover()
    assert (report.state, shop.undone) == ("rolled_back", ["reserve x"])


def test_a_pivot_waits_for_a_yes_to_what_is_staged(shop: Shop) -> None:
    rt = shop.runtime(asks={"mail": True})
    with pytest.raises(Held) as held, rt.run("r") as run:
        _of(rt, "mail")(to="ann")
        early = run.answer("wire", {"to": "bob"})
        assert "mail has no result yet" in early.text
    assert held.value.approval.call.tool == "mail"
    yes(rt)
    [report] = rt.recover()
    assert report.state == "committed"
    assert shop.sent == ["mail ann"]


def test_a_no_to_the_pivot_at_commit_takes_the_run_back(shop: Shop) -> None:
    rt = shop.runtime(asks={"pay": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "reserve")(item="x")
        _of(rt, "pay")(to="bob")
    rt.reject(held.value.approval.id, by="anna", reason="no")
    [report] = rt.recover()
    assert report.state == "rolled_back"
    assert (shop.sent, shop.undone) == (["reserve x"], ["reserve x"])
    with pytest.raises(RunEnded), rt.run("r"):
        pass


def test_a_no_while_the_block_is_open_comes_out_of_it(shop: Shop) -> None:
    rt = shop.runtime(asks={"pay": True})
    with pytest.raises(Rejected), rt.run("r"):
        _of(rt, "pay")(to="bob")
        [waits] = rt.approvals()
        rt.reject(waits.id, by="anna", reason="no")
    assert shop.sent == []


def test_a_pivot_at_commit_starts_with_its_yes(shop: Shop) -> None:
    rt = shop.runtime(asks={"pay": True, "mail": True})
    with rt.run("r") as run:
        _of(rt, "pay")(to="bob")
        _of(rt, "mail")(to="bob")
        for waits in rt.approvals():
            yes(rt, waits)
    assert run.state == "committed"
    assert shop.sent == ["pay bob", "mail bob"]
    assert {one.state for one in rt.approvals("state:used")} == {"used"}


def test_a_read_may_need_a_yes(shop: Shop) -> None:
    rt = shop.runtime(asks={"look": True})
    with pytest.raises(Held), rt.run("r"):
        _of(rt, "look")(what="a")
    yes(rt)
    with rt.run("r"):
        assert _of(rt, "look")(what="a") == "A"
    assert shop.sent == ["look a"]


def test_it_waits_in_place_for_so_long(shop: Shop) -> None:
    import threading

    rt = Runtime("memory:", tools=shop.tools(charge=True))
    with rt.run("r", wait_approval=30.0) as run:
        asked = threading.Thread(target=_say_yes_when_asked, args=(rt,))
        asked.start()
        assert run.answer("charge", {"order": "1"}).status == "done"
        asked.join()
    assert shop.sent == ["charge 1 100"]


def _say_yes_when_asked(rt: Runtime) -> None:
    while not (waits := list(rt.approvals())):
        pass
    yes(rt, waits[0])


def test_two_of_finance(shop: Shop) -> None:
    from amends import Rule

    rule = Rule("charge", approvers=2, roles=("finance",), reasons=("too much", "wrong payee"), why="large")
    rt = shop.runtime(rules=[rule], approvers={"finance": ("Anna", "bob"), "it": ("carl",)})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1")
    id, digest = held.value.approval.id, held.value.approval.digest
    with pytest.raises(ApprovalVoid) as role:
        rt.approve(id, digest=digest, by="carl")
    assert role.value.why == "role"
    assert rt.approve(id, digest=digest, by="anna").state == "pending"
    assert rt.approve(id, digest=digest, by="ANNA").state == "pending", "twice the same person is one"
    with pytest.raises(UsageError, match="too much"):
        rt.reject(id, by="bob", reason="because")
    rt.delegate(by="bob", to="carl", until=timedelta(hours=1), why="on leave")
    assert rt.approve(id, digest=digest, by="carl", behalf="bob").state == "approved"
    with rt.run("r"):
        _of(rt, "charge")(order="1")
    assert shop.sent == ["charge 1 100"]


def test_passing_over_the_rule_is_on_the_record_and_never_oneself(shop: Shop) -> None:
    from amends import Rule

    rt = shop.runtime(rules=[Rule("charge", approvers=2, roles=("finance",))])
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1")
    id, digest = held.value.approval.id, held.value.approval.digest
    with pytest.raises(ApprovalVoid) as self:
        rt.bypass(id, digest=digest, by="bot", why="I must")
    assert self.value.why == "self"
    done = rt.bypass(id, digest=digest, by="root", why="the office burns")
    assert done.state == "approved"
    assert done.given[0].bypass
    assert any(event.facts.get("why") == "bypass: the office burns" for event in rt.events("r"))


def test_withdrawn_it_may_be_asked_for_anew(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1")
    assert rt.withdraw(held.value.approval.id, by="anna", why="never mind").state == "cancelled"
    with pytest.raises(Held) as again, rt.run("r"):
        _of(rt, "charge")(order="1")
    assert again.value.approval.id != held.value.approval.id


def test_asked_for_again_after_it_expired(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r") as run:
        run.answer("charge", {"order": "1"})
    with pytest.raises(UsageError):
        rt.ask_again(held.value.approval.id, by="anna", why="early")
    shop.clock.advance(86_401)
    [report] = rt.recover()
    assert report.state == "blocked"
    assert "rt.ask_again" in report.run.causes[0]
    new = rt.ask_again(held.value.approval.id, by="anna", why="I was away")
    assert rt.report("r").state == "open"
    yes(rt, new)
    [report] = rt.recover()
    assert (report.state, shop.sent) == ("committed", ["charge 1 100"])


def test_the_model_is_told_what_was_edited_on_an_encrypted_ledger_too(shop: Shop) -> None:
    old, new = ("k" * 42 + end for end in "AE")
    rt = shop.runtime(asks={"charge": True}, encrypt=old)
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1", cents=5000)
    edited = rt.edit(held.value.approval.id, {"order": "1", "cents": 4711}, by="anna", why="too much")
    yes(rt, edited, by="bob")
    assert "4711" not in repr((shop.store.calls, shop.store.events, shop.store.approvals))
    reason = rt.approval(held.value.approval.id).reason
    assert reason == 'too much; ask for it with {"order":"1","cents":4711} instead'
    with rt.run("r") as run:
        assert "4711" in run.answer("charge", {"order": "1", "cents": 5000}).text
        assert run.answer("charge", {"order": "1", "cents": 4711}).status == "done"
    said = [event.facts["why"] for event in rt.events("r") if "ask for it" in str(event.facts.get("why"))]
    assert said == [reason] * 2
    assert rt.verify().ok
    assert shop.runtime(encrypt=[new, old]).reencrypt()
    [refused] = [call for call in shop.runtime(encrypt=new).report("r").calls if call.state == "refused"]
    assert refused.error is not None
    assert "4711" not in refused.error, "its key is gone"


def test_an_edit_is_a_new_request(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    with pytest.raises(Held) as held, rt.run("r"):
        _of(rt, "charge")(order="1", cents=5000)
    new = rt.edit(held.value.approval.id, {"order": "1", "cents": 50}, by="anna", why="too much")
    assert (new.state, new.call.args["cents"]) == ("pending", 50)
    assert rt.approval(held.value.approval.id).state == "rejected"
    assert new.editors == ("anna",)
    yes(rt, new, by="bob")
    with rt.run("r") as run:
        assert "50" in run.answer("charge", {"order": "1", "cents": 5000}).text
        assert run.answer("charge", {"order": "1", "cents": 50}).status == "done"
    assert shop.sent == ["charge 1 50"]
