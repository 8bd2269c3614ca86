"""What happened lately is read from the newest on, and no further than the caller says."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amends import Budget, Runtime, tool
from amends.errors import BudgetExceeded, UsageError

DOLLARS = Budget(10, "usd", per="tenant")


@tool(key="order", cost=2)
def charge(order: str) -> str:
    if order.startswith("bad"):
        raise RuntimeError("declined")
    return f"ch_{order}"


@charge.compensate
def refund(order: str) -> None:
    pass


@tool(kind="read", cost={"tokens": 30})
def look(item: str) -> int:
    return len(item)


@tool(kind="pivot", needs_approval=True, version="2")
def wire(order: str) -> None:
    pass


@pytest.fixture(params=["memory", "sqlite"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'ledger.db'}"
    budgets = [DOLLARS, Budget(1000, "tokens", per="agent", every="day")]
    with Runtime(url, tools=[charge, look, wire], budgets=budgets, checkpoint="off") as made:
        yield made


def fill(rt: Runtime, runs: int = 3) -> None:
    for number in range(runs):
        with rt.run(f"order-{number}", agent="shopper"):
            look(item="kettle")
            charge(order=f"o-{number}")


# ---- Events


def test_events_come_newest_first_and_go_on_where_the_answer_said(rt: Runtime) -> None:
    fill(rt)
    whole = [event.place for event in rt.events()]
    assert len(whole) > 10
    found: list[str] = []
    after, answers = "", 0
    while True:
        answer = rt.recent_events(after=after, limit=4)
        found += [event.place for event in answer.items]
        answers += 1
        if answer.next is None:
            break
        after = answer.next
    assert found == whole[::-1]
    assert answers == -(-len(whole) // 4) + (len(whole) % 4 == 0)


def test_a_search_that_finds_nothing_stops_and_says_where(rt: Runtime) -> None:
    fill(rt, 4)
    count = len(list(rt.events()))
    first = rt.recent_events("what:nothing", looks=10)
    assert (first.items, first.looked) == ((), 10)
    assert first.next is not None
    second = rt.recent_events("what:nothing", after=first.next, looks=1_000)
    assert (second.next, second.looked) == (None, count - 10)


@pytest.mark.parametrize(
    "filter", ["run:order-1", "tool:charge", "state:committed", "at:<2020-01-01", "age:<1h", "agent:nobody"]
)
def test_the_filter_is_that_of_events(rt: Runtime, filter: str) -> None:
    fill(rt)
    assert list(rt.recent_events(filter, limit=100).items) == list(rt.events(filter=filter))[::-1]


def test_a_search_before_a_time_begins_there(rt: Runtime) -> None:
    fill(rt)
    assert rt.recent_events("at:<2020-01-01").looked == 0
    assert rt.recent_events("age:<1h", limit=1_000).looked == len(list(rt.events()))


@pytest.mark.parametrize(
    "given",
    [{"limit": 0}, {"limit": True}, {"looks": 0}, {"looks": 10**9}, {"limit": "5"}, {"after": "nowhere"}, {"after": 3}],
)
def test_odd_bounds_are_refused(rt: Runtime, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        rt.recent_events(**given)


# ---- Calls and tools


def test_calls_come_newest_first(rt: Runtime) -> None:
    fill(rt)
    assert [call.id for call in rt.recent_calls(limit=100).items] == [call.id for call in rt.calls()]
    assert [call.id for call in rt.recent_calls("tool:charge").items] == [call.id for call in rt.calls("tool:charge")]
    assert rt.recent_calls("state:in_doubt").looked == 0, "the index of open calls is asked, not each call"
    first = rt.recent_calls("tool:charge", limit=1)
    assert first.next is not None
    assert rt.recent_calls("tool:charge", after=first.next).items[0].run_id == "order-1"


def test_how_tools_did(rt: Runtime) -> None:
    fill(rt)
    with pytest.raises(RuntimeError), rt.run("bad"):
        charge(order="o-9")
        charge(order="bad-1")
    charged, looked = rt.tool_use()
    assert (charged.tool, charged.calls, charged.failed, charged.undone) == ("charge", 5, 1, 1)
    assert (looked.tool, looked.calls, looked.failed, looked.kinds) == ("look", 3, 0, ("read",))
    assert charged.declared
    assert charged.seconds_median is not None
    assert charged.seconds_95 is not None
    assert charged.seconds_max is not None
    assert charged.seconds_median <= charged.seconds_95 <= charged.seconds_max
    assert sum(charged.versions.values()) == 5
    assert [use.tool for use in rt.tool_use("look")] == ["look"]
    assert sum(use.calls for use in rt.tool_use(newest=2)) == 2


def test_declared_tools_are_described(rt: Runtime) -> None:
    found = {one.name: one for one in rt.describe_tools()}
    assert list(found) == ["charge", "look", "wire"]
    assert (found["charge"].key, found["charge"].compensation, found["charge"].costs) == (
        ("order",),
        "refund",
        {"usd": Decimal(2)},
    )
    assert (found["wire"].kind, found["wire"].approval, found["wire"].version) == ("pivot", "always", "2")
    assert found["look"].costs == {"tokens": Decimal(30)}
    assert found["look"].probe is None
    assert found["charge"].to_dict()["parameters"]["properties"]["order"]["type"] == "string"


# ---- Runs that have not ended, and checkpoints


def test_runs_that_have_not_ended_say_why(rt: Runtime) -> None:
    fill(rt)
    run = rt.open("going")
    found = rt.unfinished()
    assert [(one.id, one.now.what if one.now else "") for one in found] == [("going", "running")]
    assert rt.unfinished(after=found[0].place) == []
    run.commit()
    assert rt.unfinished() == []


def test_checkpoints_come_newest_first(rt: Runtime) -> None:
    assert rt.checkpoints() == []
    for number in range(3):
        with rt.run(f"run-{number}"):
            look(item="x")
        rt.checkpoint()
    found = rt.checkpoints()
    assert [one.n for one in found] == [3, 2, 1]
    assert found[0].prev == found[1].hash
    assert [one.heads for one in found] == [1, 1, 1], "one run has changed since the one before"
    assert [one.n for one in rt.checkpoints(limit=2)] == [3, 2]


# ---- Budgets


def test_spending_tells_what_each_call_took(rt: Runtime) -> None:
    fill(rt)
    by_unit = {one.state.budget.unit: one for one in rt.spending()}
    dollars = by_unit["usd"]
    assert dollars.state == rt.budgets("unit:usd")[0]
    assert [(one.tool, one.run_id, one.spent) for one in dollars.charged] == [
        ("charge", f"order-{number}", Decimal(2)) for number in range(3)
    ]
    assert by_unit["tokens"].state.who == "shopper"
    assert [one.state.budget.unit for one in rt.spending("unit:tokens")] == ["tokens"]


def test_a_budget_that_the_newest_calls_do_not_name_is_known_if_it_is_declared(rt: Runtime) -> None:
    fill(rt)
    with rt.run(agent="shopper"):
        look(item="later")
    found = {one.state.budget.unit: one for one in rt.spending(newest=1)}
    assert (found["usd"].state.spent, list(found["usd"].charged)) == (Decimal(6), [])
    assert found["tokens"].state.spent == 120
    assert [one.spent for one in found["tokens"].charged] == [30]


def test_a_budget_of_a_run_is_found_by_its_calls(rt: Runtime) -> None:
    with rt.run("capped", budgets=[Budget(3, "usd", per="run")]):
        charge(order="o-1")
        with pytest.raises(BudgetExceeded):
            charge(order="o-2")
    [capped] = rt.spending("per:run")
    assert (capped.state.who, capped.state.spent, capped.state.left) == ("capped", Decimal(2), Decimal(1))
    refused = [event for event in rt.recent_events("what:refused").items if event.facts["law"] == "budget"]
    assert [(event.facts["tool"], event.facts["cap"]) for event in refused] == [("charge", "3")]


def test_costs_of_the_newest_calls_only(rt: Runtime) -> None:
    fill(rt)
    assert rt.costs("tool", newest=100) == rt.costs("tool")
    assert sum(line.calls for line in rt.costs("tool", newest=2)) == 2
    assert [line.what for line in rt.costs("tool", "tool:charge", newest=100)] == ["charge"]
    with pytest.raises(UsageError):
        rt.costs("tool", newest=0)


def test_the_other_colour_says_the_same(rt: Runtime) -> None:
    fill(rt)

    async def ask() -> list[Any]:
        other = rt.as_async()
        return [
            (await other.recent_events()).to_dict(), (await other.recent_calls()).to_dict(), await other.tool_use(),
            await other.unfinished(), await other.checkpoints(), await other.spending(), other.describe_tools(),
        ]  # fmt: skip

    assert asyncio.run(ask()) == [
        rt.recent_events().to_dict(), rt.recent_calls().to_dict(), rt.tool_use(), rt.unfinished(), rt.checkpoints(),
        rt.spending(), rt.describe_tools(),
    ]  # fmt: skip


def test_a_tenant_sees_its_own(rt: Runtime) -> None:
    fill(rt)
    mine = rt.scoped(tenant="acme")
    with mine.run("theirs", agent="packer"):
        look(item="x")
    assert {event.run_id for event in mine.recent_events().items} == {"theirs"}
    assert [call.run_id for call in mine.recent_calls().items] == ["theirs"]
    assert [use.calls for use in mine.tool_use()] == [1]
    assert [one.state.who for one in mine.spending("unit:tokens")] == ["packer"]
    assert mine.unfinished() == []
