"""What a reviewer compares a request with: the last approved call of its tool, first uses, and what is usual."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amends import Approval, AsyncRuntime, Held, Precedents, Runtime, tool
from amends.errors import ApprovalNotFound
from amends.people import precedents as verb
from tests.people.conftest import Shop, yes


@tool(kind="pivot", needs_approval=lambda call: call.args["cents"] > 1_000)
def wire(to: str, cents: int, lines: list[dict[str, Any]] | None = None) -> str:
    return f"wr-{to}"


def ask(rt: Runtime, cents: int, *, agent: str = "bot", run: str = "", **more: Any) -> Approval:
    """Ask for a wire that needs approval; return the request."""
    with suppress(Held), rt.run(run or f"{agent}-{cents}", agent=agent, wait_approval=0):
        wire(to="ada", cents=cents, **more)
    return next(one for one in rt.approvals() if one.call.args["cents"] == cents)


def pay(rt: Runtime, cents: int, *, times: int = 1, agent: str = "bot", **more: Any) -> None:
    for number in range(times):
        with rt.run(f"paid-{agent}-{cents}-{number}", agent=agent):
            wire(to="ada", cents=cents, **more)


def test_the_last_approved_call_of_the_tool_is_found_and_that_of_the_same_agent_first() -> None:
    rt = Runtime("memory:", tools=[wire])
    assert rt.precedents(ask(rt, 1_001).id).before is None
    for agent, cents in (("bot", 2_000), ("other", 3_000)):
        asked = ask(rt, cents, agent=agent, run=agent)
        yes(rt, asked)
        with rt.run(agent, agent=agent):
            wire(to="ada", cents=cents)
    mine, theirs = rt.precedents(ask(rt, 4_000).id), rt.precedents(ask(rt, 5_000, agent="third").id)
    assert mine.before is not None
    assert theirs.before is not None
    assert (mine.before.call.args["cents"], theirs.before.call.args["cents"]) == (2_000, 3_000)
    assert (mine.first_use, theirs.first_use) == (False, True)


def test_a_first_use_is_that_of_this_agent() -> None:
    rt = Runtime("memory:", tools=[wire])
    pay(rt, 5, agent="other")
    assert rt.precedents(ask(rt, 2_000, agent="bot").id).first_use
    pay(rt, 5, agent="bot")
    found = rt.precedents(ask(rt, 3_000, agent="bot").id)
    assert (found.first_use, found.times, found.is_all) == (False, 2, True)


def test_numbers_are_compared_with_the_median_of_earlier_calls_wherever_they_stand() -> None:
    rt = Runtime("memory:", tools=[wire])
    pay(rt, 5, times=4, lines=[{"price": 1.5, "ok": True}])
    assert rt.precedents(ask(rt, 2_000).id).usual == ()  # four are too few to say what is usual
    pay(rt, 6, times=2, lines=[{"price": 1.5, "ok": True}])
    asked = ask(rt, 4_000, lines=[{"price": 3.0, "ok": True}, {"price": 9.0}])
    cents, price = rt.precedents(asked.id).usual
    assert (cents.path, int(cents.value), int(cents.median), int(cents.most), cents.times) == ("cents", 4_000, 5, 6, 6)
    assert (cents.factor, price.path, price.factor, price.median) == (800.0, "lines[0].price", 2.0, Decimal("1.5"))
    assert rt.precedents(asked.id).to_dict()["usual"][0]["factor"] == 800.0


def test_the_request_that_was_edited_is_found_whatever_else_the_run_asked() -> None:
    rt = Runtime("memory:", tools=[wire])
    asked = ask(rt, 2_000)
    made = rt.edit(asked.id, {"to": "ada", "cents": 1_500}, by="ben", why="cheaper")
    again = rt.edit(made.id, {"to": "ada", "cents": 1_400}, by="ben", why="cheaper still")
    found = [rt.precedents(one.id).edited for one in (asked, made, again)]
    assert [one and one.id for one in found] == [None, asked.id, made.id]


def test_a_request_is_compared_with_what_came_before_it_only() -> None:
    rt = Runtime("memory:", tools=[wire])
    asked = ask(rt, 2_000)
    pay(rt, 5, times=6)
    assert (rt.precedents(asked.id).seen, rt.precedents(asked.id).first_use) == (0, True)


def test_a_large_ledger_costs_no_more_than_what_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "PAGE", 2)
    monkeypatch.setattr(verb, "CALLS_MAX", 4)
    rt = Runtime("memory:", tools=[wire])
    pay(rt, 5, times=9)
    found = rt.precedents(ask(rt, 2_000).id)
    assert (found.seen, found.is_all, found.times) == (4, False, 4)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_both_colours_on_each_store(kind: str, tmp_path: Path) -> None:
    async def main() -> tuple[Precedents, str]:
        @tool(kind="pivot", needs_approval=True)
        async def send(to: str, cents: int) -> None: ...

        async with AsyncRuntime("memory:" if kind == "memory" else f"sqlite:///{tmp_path}/a.db", tools=[send]) as rt:
            for number in (1, 2):
                with suppress(Held):
                    async with rt.run(f"r{number}", agent="bot", wait_approval=0):
                        await send(to="ada", cents=number)
                [asked] = [one async for one in rt.approvals()]
                if number == 1:
                    await rt.approve(asked.id, digest=asked.digest, by="anna")
                    async with rt.run("r1", agent="bot"):
                        await send(to="ada", cents=1)
            return await rt.precedents(asked.id), asked.id

    found, asked = asyncio.run(main())
    assert found.before is not None
    assert (found.approval_id, found.first_use, found.times, found.before.call.args["cents"]) == (asked, False, 1, 1)


def test_another_tenants_requests_are_neither_found_nor_compared(shop: Shop) -> None:
    rt = shop.runtime(asks={"wire": True}, tenant="acme")
    with suppress(Held), rt.run("r", wait_approval=0) as run:
        run.answer("wire", {"to": "ada"})
    [asked] = rt.approvals()
    with pytest.raises(ApprovalNotFound):
        shop.runtime(tenant="other").precedents(asked.id)
