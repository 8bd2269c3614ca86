"""Whoever edits a request asks for what they wrote: their yes to it counts for nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends import Approval, AsyncRuntime, Held, Rule, tool
from amends.errors import ApprovalVoid
from tests.people.conftest import Shop, yes


def _asked(shop: Shop, **options: Any) -> tuple[Any, Approval]:
    rt = shop.runtime(**(options or {"asks": {"charge": True}}))
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1", "cents": 5000})
    [asked] = rt.approvals()
    return rt, asked


def _edit(rt: Any, asked: Approval, cents: int, by: str, **more: Any) -> Approval:
    edited: Approval = rt.edit(asked.id, {"order": "1", "cents": cents}, by=by, why="rather so", **more)
    return edited


def _no(rt: Any, asked: Approval, by: str, **more: Any) -> None:
    with pytest.raises(ApprovalVoid) as void:
        rt.approve(asked.id, digest=asked.digest, by=by, **more)
    assert void.value.why == "self"


def test_who_edited_it_cannot_approve_it_however_they_spell_their_name(shop: Shop) -> None:
    rt, asked = _asked(shop)
    edited = _edit(rt, asked, 9_000_000, "mallory")
    assert edited.editors == ("mallory",)
    for name in ("mallory", "Mallory ", "MALLORY"):
        _no(rt, edited, name)
    with pytest.raises(ApprovalVoid):
        rt.bypass(edited.id, digest=edited.digest, by="mallory", why="it is urgent")
    rt.recover()
    assert shop.sent == []
    assert yes(rt, edited, by="anna").state == "approved"


def test_everybody_who_edited_any_part_of_it_is_an_asker(shop: Shop) -> None:
    rt, asked = _asked(shop)
    last = _edit(rt, _edit(rt, _edit(rt, asked, 100, "eve"), 200, "bob"), 5000, "carol")
    assert last.editors == ("eve", "bob", "carol")
    for name in last.editors:
        _no(rt, last, name)
    assert yes(rt, last, by="anna").state == "approved"


def test_an_editor_is_none_of_the_two_who_must_say_yes(shop: Shop) -> None:
    rt, asked = _asked(shop, rules=[Rule("charge", approvers=2)])
    edited = _edit(rt, asked, 100, "eve")
    assert yes(rt, edited, by="anna").state == "pending"
    _no(rt, edited, "eve")
    assert rt.approval(edited.id).state == "pending"
    assert yes(rt, edited, by="bob").state == "approved"


def test_an_editor_decides_neither_for_another_nor_through_another(shop: Shop) -> None:
    rt, asked = _asked(shop)
    rt.delegate(by="anna", to="eve", until=3600, why="away")
    rt.delegate(by="eve", to="bob", until=3600, why="away")
    edited = _edit(rt, asked, 100, "eve")
    _no(rt, edited, "eve", behalf="anna")
    _no(rt, edited, "bob", behalf="eve")
    assert yes(rt, edited, by="bob").state == "approved"


def test_a_role_does_not_help_an_editor(shop: Shop) -> None:
    rt, asked = _asked(shop, rules=[Rule("charge", roles=("finance",))], approvers={"finance": ["eve", "anna"]})
    edited = _edit(rt, asked, 100, "eve")
    _no(rt, edited, "eve", roles=("finance",))
    assert yes(rt, edited, by="anna").state == "approved"


def test_asked_again_it_is_still_what_the_editor_wrote(shop: Shop) -> None:
    rt, asked = _asked(shop)
    edited = _edit(rt, asked, 100, "eve")
    rt.clock.advance(100_000)
    again = rt.ask_again(edited.id, by="bob", why="late")
    assert again.editors == ("eve",)
    _no(rt, again, "eve")
    assert yes(rt, again, by="bob").state == "approved"


def test_withdrawn_and_asked_for_anew_by_the_model_it_is_still_what_the_editor_wrote(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    run = rt.open("r", recover="wait")
    run.answer("charge", {"order": "1", "cents": 5000})
    [asked] = rt.approvals()
    edited = _edit(rt, asked, 100, "eve")
    rt.withdraw(edited.id, by="eve", why="never mind")
    assert run.answer("charge", {"order": "1", "cents": 100}).status == "held"
    [again] = rt.approvals()
    assert (again.id != edited.id, again.editors) == (True, ("eve",))
    _no(rt, again, "eve")


def test_the_one_who_asked_stays_an_asker_and_others_may_decide(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True}, principal="carol")
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("charge", {"order": "1", "cents": 5000})
    [asked] = rt.approvals()
    edited = _edit(rt, asked, 100, "eve")
    _no(rt, edited, "carol")
    _no(rt, edited, "eve")
    assert yes(rt, edited, by="anna").state == "approved"


def test_an_editor_may_still_say_no(shop: Shop) -> None:
    rt, asked = _asked(shop)
    edited = _edit(rt, asked, 100, "eve")
    assert rt.reject(edited.id, by="eve", reason="on second thoughts").state == "rejected"


def test_the_same_holds_for_the_async_runtime() -> None:
    @tool(needs_approval=True)
    def wire(cents: int) -> str:
        return f"sent {cents}"

    @wire.compensate
    def back() -> None: ...

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[wire]) as rt:
            with pytest.raises(Held):
                async with rt.run("r") as run:
                    await run.call(wire, cents=1)
            [asked] = [one async for one in rt.approvals()]
            edited = await rt.edit(asked.id, {"cents": 900}, by="eve", why="more")
            with pytest.raises(ApprovalVoid) as void:
                await rt.approve(edited.id, digest=edited.digest, by="eve")
            assert void.value.why == "self"
            assert (await rt.approve(edited.id, digest=edited.digest, by="anna")).state == "approved"

    asyncio.run(main())
