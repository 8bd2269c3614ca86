"""A tool that nobody declared: a run of its own, a pivot in it, and a person's yes unless a rule says otherwise."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends import AsyncRuntime, Held, RolledBack, Rule, Runtime
from amends.errors import Rejected
from tests.people.conftest import Shop, yes

SENT: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


def zap(where: str) -> str:
    SENT.append(where)
    return f"zapped {where}"


def _reserve(rt: Any) -> Any:
    return next(one for one in rt._host.tools if one.__name__ == "reserve")


def test_it_is_held_approved_and_done_when_its_caller_comes_back(shop: Shop) -> None:
    rt = shop.runtime()
    with pytest.raises(Held) as held, rt.run("r") as run:
        _reserve(rt)(item="x")
        answer = run.answer("zap", {"where": "here"}, handler=zap)
        assert answer.status == "held"
        assert "needs a person's approval (apr_" in answer.text
    assert held.value.approval.rule == "nobody has declared this tool"
    yes(rt)
    assert rt.recover() == []
    with rt.run("r") as run:
        _reserve(rt)(item="x")
        assert run.answer("zap", {"where": "here"}, handler=zap).value == "zapped here"
        assert run.answer("zap", {"where": "here"}, handler=zap).status == "replayed"
    assert (run.state, SENT, shop.sent) == ("committed", ["here"], ["reserve x"])


def test_a_no_is_told_every_time(shop: Shop) -> None:
    rt = shop.runtime()
    with pytest.raises(Held), rt.run("r") as run:
        run.answer("zap", {"where": "here"}, handler=zap)
    [waits] = rt.approvals()
    rt.reject(waits.id, by="anna", reason="no zapping")
    with rt.run("r") as run:
        for _ in range(2):
            answer = run.answer("zap", {"where": "here"}, handler=zap)
            assert isinstance(answer.error, Rejected)
    assert (run.state, SENT) == ("committed", [])


def test_a_rule_allows_it_only_where_it_says_undeclared(shop: Shop) -> None:
    rt = shop.runtime(rules=[Rule("*", decision="allow"), Rule("zap", decision="allow", undeclared=True)])
    with rt.run("r") as run:
        assert run.answer("zap", {"where": "here"}, handler=zap).status == "done"
    with pytest.raises(Held), shop.runtime(rules=[Rule("*", decision="allow")]).run("s") as run:
        assert run.answer("zap", {"where": "here"}, handler=zap).status == "held"


@pytest.mark.parametrize("residue", ["", "accept"])
def test_what_it_leaves_behind_is_a_persons_matter_unless_a_rule_took_it(shop: Shop, residue: Any) -> None:
    rule = Rule("zap", decision="allow", undeclared=True, residue=residue, why="zaps are fine")
    rt = shop.runtime(rules=[rule])
    with pytest.raises(Exception) as end, rt.run("r") as run:
        _reserve(rt)(item="x")
        run.answer("zap", {"where": "here"}, handler=zap)
        run.rollback("changed my mind")
    report = rt.report("r")
    assert shop.undone == ["reserve x"]
    assert [left.call.tool for left in report.residue] == ["zap"]
    if residue:
        assert isinstance(end.value, RolledBack)
        assert report.state == "abandoned"
        assert "zap stands: zaps are fine" in str(end.value)
    else:
        assert report.state == "blocked"


def test_on_an_event_loop_too(shop: Shop) -> None:
    async def main() -> None:
        rt = AsyncRuntime(store=shop.store, tools=[])
        with pytest.raises(Held):
            async with rt.run("r") as run:
                assert (await run.answer("zap", {"where": "here"}, handler=zap)).status == "held"
        [waits] = [one async for one in rt.approvals()]
        await rt.approve(waits.id, digest=waits.digest, by="anna")
        async with rt.run("r") as run:
            assert (await run.answer("zap", {"where": "here"}, handler=zap)).status == "done"
        await rt.close()

    asyncio.run(main())
    assert SENT == ["here"]


def test_the_error_of_a_run_that_waits_cannot_be_forged_by_its_name() -> None:
    rt = Runtime("memory:")
    with pytest.raises(Held) as waits, rt.run("r\n\x1b[2J") as run:
        run.answer("pay\r", {}, handler=lambda: None)
    assert str(waits.value) == r'run "r\n\x1b[2J" waits for a person: "pay\r" is held (approval)'
