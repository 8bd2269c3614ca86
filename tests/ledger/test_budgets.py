"""What may be spent: reserved before a call starts, settled to what it cost, and never passed."""

from __future__ import annotations

import asyncio
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Budget, BudgetState, Cost, CostLine, Staged, spent, tool
from amends.errors import (
    BadConfig,
    BadCost,
    BadDeclaration,
    BudgetExceeded,
    Held,
    InDoubt,
    NoRun,
    Rejected,
    RolledBack,
    RunEnded,
)
from amends.stores.memory import MemoryStore
from tests.world import FAST, World, die, runtime, states, twin_of


@pytest.fixture
def world() -> World:
    return World()


def books(rt: Any, filter: str = "") -> tuple[Any, Any]:
    """Reserved and spent."""
    [state] = rt.budgets(filter)
    return state.reserved, state.spent


def buyer(world: World, **options: Any) -> Any:
    return world.compensatable("buy", **{"cost": lambda call: call.args["n"], **options})


# ---- reserving ----------------------------------------------------------------------------


def test_the_first_call_too_much_is_refused_before_it_starts(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(100)])
    with rt.run("r"):
        buy(x="1", n=60)
        with pytest.raises(BudgetExceeded) as refused:
            buy(x="2", n=41)
        buy(x="3", n=40)
    no: Any = refused.value
    assert world.log == ["buy:1", "buy:3"]
    assert (no.tool, no.budget, no.period) == ("buy", Budget(Decimal(100)), None)
    assert (no.spent, no.reserved, no.asked, no.left) == (60, 0, 41, 40)
    assert books(rt) == (0, 100)


@pytest.mark.parametrize(
    "budget, asked, text",
    [
        (Budget(50), 60, "buy needs 60.00 usd and 50.00 of 50.00 is left for this task."),
        (Budget(50.5, per="agent", every="day"), 60, "buy needs 60.00 usd and 50.50 of 50.50 is left for this agent today."),
        (Budget(9, unit="tokens", per="ledger"), 10, "buy needs 10 tokens and 9 of 9 is left for everybody together."),
        (Budget(50, per="call"), 60, "buy needs 60.00 usd and one call may cost 50.00."),
        (Budget(0, unit="calls", tool="bu*"), 0, "buy may not be called: 0 of 0 calls of bu* are left for this task."),
    ],
)  # fmt: skip
def test_what_a_model_is_told(world: World, budget: Budget, asked: int, text: str) -> None:
    buy = buyer(world, cost=lambda call: {"usd": call.args["n"], "tokens": call.args["n"]})
    rt = runtime(buy, budgets=[budget])
    with rt.run("r", agent="bob") as run:
        answer = run.answer("buy", {"x": "1", "n": asked})
    then = "Stop" if budget.unit == "calls" else "Ask for less, or stop"
    assert (answer.status, answer.is_error) == ("refused", True)
    assert answer.text == f"Not run: {text} {then} and tell the user."
    assert world.log == []


def test_a_budget_is_for_the_tools_that_it_names(world: World) -> None:
    pay, get = world.compensatable("pay_bill", cost=60), world.compensatable("get", cost=60)
    rt = runtime(pay, get, budgets=[Budget(100, tool="pay_*")])
    with rt.run("r"):
        for x in ("1", "2", "3"):
            get(x=x)
        pay(x="1")
        with pytest.raises(BudgetExceeded):
            pay(x="2")


def test_runs_share_what_is_per_agent_tenant_or_ledger(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(100, per="agent"), Budget(150, per="tenant"), Budget(200, per="ledger")])
    acme, other = rt.scoped(tenant="acme"), rt.scoped(tenant="other")
    with acme.run("1", agent="bob"):
        buy(x="1", n=80)
    with acme.run("2", agent="bob"), pytest.raises(BudgetExceeded, match="this agent"):
        buy(x="2", n=30)
    with acme.run("3", agent="eve"):
        buy(x="3", n=60)
        with pytest.raises(BudgetExceeded, match="this customer"):
            buy(x="4", n=20)
    with other.run("1", agent="bob"):
        buy(x="5", n=60)
        with pytest.raises(BudgetExceeded, match="everybody"):
            buy(x="6", n=5)


def test_every_call_counts_where_calls_are_counted_reads_too(world: World) -> None:
    buy, look = world.compensatable("buy"), world.read()
    rt = runtime(buy, look, budgets=[Budget(2, unit="calls")])
    with pytest.raises(RolledBack), rt.run("r") as run:
        buy(x="1")
        buy(x="1")  # from the record: it costs nothing
        look()
        with pytest.raises(BudgetExceeded):
            look()
        run.rollback("enough")
    assert books(rt) == (0, 2), "what was done was done, taken back or not"


def test_a_call_that_costs_nothing_of_any_budget_is_as_it_was(world: World) -> None:
    buy, free = buyer(world), world.compensatable("free")
    rt = runtime(buy, free, budgets=[Budget(1)])
    with rt.run("r"):
        free()
    [call] = rt.calls()
    assert (call.costs, rt._host.store.slices) == ({}, {})


def test_what_a_call_costs_is_told_without_any_budget(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy)
    with rt.run("r"):
        buy(x="1", n=3)
    [call] = rt.calls()
    assert call.costs == {"usd": 3}
    assert rt.costs() == [CostLine("r", "usd", 1, Decimal(3), Decimal(0))]
    assert rt.budgets() == []


def test_budgets_of_a_run_hold_beside_those_of_the_runtime_and_the_lower_one_wins(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(100)])
    with rt.run("strict", budgets=[Budget(10)]), pytest.raises(BudgetExceeded, match=r"10\.00 of 10\.00"):
        buy(x="1", n=11)
    with rt.run("lax", budgets=[Budget(1000)]), pytest.raises(BudgetExceeded, match=r"of 100\.00"):
        buy(x="2", n=101)


def test_a_resumed_run_has_the_budgets_that_it_was_opened_with(world: World) -> None:
    store = MemoryStore()
    buy = buyer(world)
    rt = twin_of(store, buy)
    run = rt.open("r", budgets=[Budget(10, per="run")], recover="wait")
    run.call(buy, x="1", n=6)
    die(run)
    with twin_of(store, buy).run("r"):
        assert buy(x="1", n=6) == "buy:1"
        with pytest.raises(BudgetExceeded):
            buy(x="2", n=6)


def test_children_spend_what_their_root_has(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(10)])
    with rt.run("r") as run:
        with run.child("inner") as inner:
            inner.call(buy, x="1", n=6)
        with pytest.raises(BudgetExceeded):
            buy(x="2", n=6)


# ---- what a cost is -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "cost", ["10", math.nan, math.inf, -1, None, True, {"usd": "3"}, [3], {3: 3}, Cost(-1), Cost(1, refundable=2)]
)
def test_a_cost_that_is_none_starts_nothing(world: World, cost: Any) -> None:
    buy = buyer(world, cost=lambda call: cost)
    with runtime(buy, budgets=[Budget(100)]).run("r") as run:
        with pytest.raises(BadCost) as bad:
            buy()
        assert run.answer("buy", {}).text.startswith("Not run: the program around you has a fault")
    assert (bad.value.tool, world.log) == ("buy", [])


def test_a_cost_function_that_raises_starts_nothing(world: World) -> None:
    def unknown(call: Any) -> float:
        raise KeyError("price")

    buy = buyer(world, cost=unknown)
    with runtime(buy).run("r"), pytest.raises(BadCost, match="KeyError: 'price'"):
        buy()
    assert world.log == []


@pytest.mark.parametrize("cost", ["10", math.nan, -1, True, {"usd": -1}])
def test_a_declared_cost_that_is_none_is_refused_where_it_is_declared(world: World, cost: Any) -> None:
    with pytest.raises(BadDeclaration, match="cost"):
        runtime(buyer(world, cost=cost))


@pytest.mark.parametrize(
    "cost, told",
    [
        (2, {"usd": 2}),
        (0.1, {"usd": Decimal("0.1")}),
        (Decimal("0.000000001"), {"usd": Decimal("0.000000001")}),
        ({"usd": 1, "tokens": 500}, {"usd": 1, "tokens": 500}),
        (Cost(3, "eur"), {"eur": 3}),
        ((Cost(3), Cost(4), Cost(1, "eur")), {"usd": 7, "eur": 1}),
        (0, {"usd": 0}),
    ],
)
def test_a_cost_may_be_said_in_many_ways(world: World, cost: Any, told: dict[str, Any]) -> None:
    for said in (cost, lambda call: cost):
        rt = runtime(buyer(world, cost=said))
        with rt.run("r") as run:
            run.call(rt._host.tools[0], x="1")
        [call] = rt.calls()
        assert call.costs == told


def test_what_nobody_rounds_away_adds_up(world: World) -> None:
    buy = buyer(world, cost=0.1)
    rt = runtime(buy, budgets=[Budget(0.3)])
    with rt.run("r"):
        for x in ("1", "2", "3"):
            buy(x=x)
        with pytest.raises(BudgetExceeded):
            buy(x="4")


@pytest.mark.parametrize(
    "options",
    [
        *({"cap": cap} for cap in (-1, "5", math.nan, True, None)),
        *(
            {"cap": 1, **more}
            for more in ({"per": "day"}, {"every": "week"}, {"then": "stop"}, {"unit": ""}, {"tool": 3})
        ),
        {"cap": 1, "per": "call", "every": "day"},
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(world: World, options: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match="budgets") as bad:
        runtime(budgets=[Budget(**options)])
    assert bad.value.setting == "budgets"
    with pytest.raises(BadConfig), runtime().run("r", budgets=[Budget(**options)]):
        pass


def test_a_budget_is_one_in_a_list(world: World) -> None:
    for given in (Budget(1), 5, ["x"], "x"):
        with pytest.raises(BadConfig):
            runtime(budgets=given)


# ---- settling -----------------------------------------------------------------------------


def test_what_a_body_says_is_what_it_cost(world: World) -> None:
    @tool(kind="read", cost=50)
    def ask(n: int) -> int:
        spent(n)
        spent(0.5)
        spent(1000, "tokens")
        return n

    rt = runtime(ask, budgets=[Budget(100), Budget(1500, unit="tokens")])
    with rt.run("r"):
        ask(10)
        assert books(rt, "unit:usd") == (0, Decimal("10.5"))
        assert books(rt, "unit:tokens") == (0, 1000)
        ask(11)
    [second, _] = rt.calls()
    assert second.costs == {"usd": Decimal("11.5"), "tokens": 1000}
    assert books(rt, "unit:tokens") == (0, 2000), "it is gone, foreseen or not"


def test_what_was_spent_before_it_failed_stays_spent(world: World) -> None:
    @tool(cost=50)
    def ask() -> None:
        spent(2)
        raise ValueError("no")

    @ask.compensate
    def undo() -> None: ...

    rt = runtime(ask, budgets=[Budget(100)])
    with rt.run("r"), pytest.raises(ValueError, match="no"):
        ask()
    assert books(rt) == (0, 2)


def test_spent_is_about_a_body(world: World) -> None:
    with pytest.raises(NoRun):
        spent(1)
    said: list[str] = []

    @tool(cost=5)
    def buy() -> None:
        with pytest.raises(Exception, match="an amount"):
            spent(-1)

    @buy.compensate
    def undo() -> None:
        spent(100)
        said.append("undone")

    rt = runtime(buy, budgets=[Budget(10)])
    with pytest.raises(RolledBack), rt.run("r") as run:
        buy()
        run.rollback("enough")
    assert (said, books(rt)) == (["undone"], (0, 0))


def test_a_failure_gives_back_and_retries_cost_nothing_more(world: World) -> None:
    buy = buyer(world, retry=FAST)
    rt = runtime(buy, budgets=[Budget(10)])
    world.script["buy"] = [ValueError("1"), ValueError("2"), None]
    with rt.run("r"):
        buy(x="1", n=10)
    assert books(rt) == (0, 10)
    world.script["buy"] = [ValueError("1"), ValueError("2"), ValueError("3")]
    with rt.run("s"):
        with pytest.raises(ValueError, match="3"):
            buy(x="1", n=10)
        assert books(rt, "who:s") == (0, 0)
        buy(x="2", n=10)


def test_a_doubt_keeps_its_money_until_it_is_settled(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(10, per="tenant")])
    world.script["buy"] = [TimeoutError("lost")]
    run = rt.open("r")
    with pytest.raises(InDoubt):
        run.call(buy, x="1", n=6)
    assert books(rt) == (6, 0)
    with pytest.raises(BudgetExceeded), rt.run("s"):
        buy(x="2", n=6)
    [doubt] = rt.doubts()
    rt.resolve(doubt.id, Absent(), by="anna", why="looked")
    assert books(rt) == (0, 0)


@pytest.mark.parametrize("refundable, kept", [(True, 0), (False, 10), (0.25, Decimal("7.5"))])
def test_a_compensation_gives_back_what_is_refundable(world: World, refundable: Any, kept: Any) -> None:
    buy = buyer(world, cost=lambda call: Cost(10, refundable=refundable))
    rt = runtime(buy, budgets=[Budget(10)])
    with pytest.raises(RolledBack), rt.run("r") as run:
        buy()
        run.rollback("enough")
    assert (states(rt, "r"), books(rt)) == ({"buy": "compensated"}, (0, kept))


# ---- what then ----------------------------------------------------------------------------


def test_rollback_takes_the_run_back_whatever_is_caught(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(10, then="rollback")])
    with pytest.raises(RolledBack), rt.run("r"):
        buy(x="1", n=6)
        with pytest.raises(BudgetExceeded):
            buy(x="2", n=6)
        with pytest.raises(RunEnded):
            buy(x="3", n=1)
    assert (world.standing, states(rt, "r"), books(rt)) == ([], {"buy": "compensated"}, (0, 0))
    with rt.run("r"):
        buy(x="1", n=6)  # its own failure: it may be tried again


def test_after_the_pivot_nothing_goes_back_for_a_budget(world: World) -> None:
    wire, mail = world.pivot(), world.retriable(cost=20)
    rt = runtime(wire, mail, budgets=[Budget(10, then="rollback")])
    with rt.run("r"):
        wire()
        with pytest.raises(BudgetExceeded):
            mail()
    assert (world.standing, rt.report("r").state) == (["wire:1"], "committed")


def test_hold_asks_a_person_who_may_let_it_pass(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(50, then="hold")])
    with pytest.raises(Held) as held, rt.run("r") as run:
        buy(x="1", n=40)
        answer = run.answer("buy", {"x": "2", "n": 20})
        buy(x="2", n=20)
    text = (
        "Not run yet: it would pass the limit of 50.00 usd for this task; a person must approve it. "
        "Go on with other work, or stop."
    )
    assert (answer.status, answer.text) == ("held", text)
    assert (held.value.reason, held.value.call.reason, held.value.approval.rule) == (
        "budget",
        "budget",
        "it would pass the limit of 50.00 usd for this task",
    )
    assert (world.log, books(rt)) == (["buy:1"], (0, 40))
    [asked] = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="anna", why="it is worth it")
    with rt.run("r"):
        buy(x="1", n=40)
        buy(x="2", n=20)
        with pytest.raises(Held):
            buy(x="3", n=1)
        [other] = rt.approvals()
        rt.reject(other.id, by="anna", reason="enough")
        with pytest.raises(Rejected):
            buy(x="3", n=1)
    assert (world.log, books(rt)) == (["buy:1", "buy:2"], (0, 60))


def test_a_commit_that_costs_too_much_waits_for_a_person(world: World) -> None:
    buy, mail = buyer(world), world.retriable(cost=20)
    rt = runtime(buy, mail, budgets=[Budget(50, then="hold")])
    with pytest.raises(Held) as held, rt.run("r"):
        buy(x="1", n=40)
        mail()
    assert (held.value.reason, held.value.call.tool, world.log) == ("budget", "mail", ["buy:1"])
    [asked] = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="anna", why="send it")
    rt.recover()
    assert (world.log, rt.report("r").state, books(rt)) == (["buy:1", "mail:1"], "committed", (0, 60))


def test_a_held_call_that_is_refused_by_another_budget_asks_nobody(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(50, then="hold"), Budget(55)])
    with rt.run("r"), pytest.raises(BudgetExceeded, match=r"of 55\.00"):
        buy(x="1", n=60)
    assert list(rt.approvals()) == []


# ---- staged -------------------------------------------------------------------------------


def test_staged_calls_are_paid_with_the_commit(world: World) -> None:
    buy, mail = buyer(world), world.retriable(cost=5)
    rt = runtime(buy, mail, budgets=[Budget(10)])
    with rt.run("r"):
        buy(x="1", n=4)
        assert isinstance(mail(), Staged)
        assert books(rt) == (0, 4)
    assert (world.log, books(rt)) == (["buy:1", "mail:1"], (0, 9))


def test_a_commit_that_cannot_be_paid_takes_the_run_back(world: World) -> None:
    buy, mail = buyer(world), world.retriable(cost=5)
    rt = runtime(buy, mail, budgets=[Budget(10)])
    with pytest.raises(BudgetExceeded) as refused, rt.run("r"):
        buy(x="1", n=6)
        mail()
    no: Any = refused.value
    assert (no.tool, no.asked, no.left) == ("mail", 5, 4)
    assert (world.standing, rt.report("r").state, books(rt)) == ([], "rolled_back", (0, 0))


@pytest.mark.parametrize("at", ["call", "commit"])
def test_a_pivot_pays_for_what_it_lets_go(world: World, at: str) -> None:
    wire, mail = world.pivot(cost=6, at=at), world.retriable(cost=5)
    rt = runtime(wire, mail, budgets=[Budget(10)])
    with pytest.raises(BudgetExceeded) as refused, rt.run("r"):
        mail()
        wire()
    no: Any = refused.value
    assert (no.asked, no.left) == (11, 10)
    assert (world.log, rt.report("r").state) == ([], "rolled_back")


def test_what_a_worker_goes_on_with_is_paid_already(world: World) -> None:
    store = MemoryStore()
    wire, mail = world.pivot(), world.retriable(cost=5)
    rt = twin_of(store, wire, mail, budgets=[Budget(10)])
    run = rt.open("r")
    run.call(mail)
    run.call(wire)
    assert books(rt) == (5, 0)
    die(run)
    with twin_of(store, wire, mail) as other:  # it has no budgets at all
        other.recover()
        assert (world.log, books(other)) == (["wire:1", "mail:1"], (0, 5))


# ---- telling ------------------------------------------------------------------------------


def test_budgets_tell_how_they_stand(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(10), Budget(50, per="agent", every="day"), Budget(9, unit="eur", per="ledger")])
    with rt.run("r", agent="bob"):
        buy(x="1", n=4)
    agent, ledger, run = rt.budgets()
    assert agent == BudgetState(
        Budget(Decimal(50), per="agent", every="day"), "bob", agent.period, Decimal(4), Decimal(0), Decimal(46)
    )
    assert (ledger.budget.unit, ledger.spent, ledger.left) == ("eur", 0, 9)
    assert (run.who, run.period, run.left) == ("r", None, 6)
    assert [state.who for state in rt.budgets("per:run,agent who:b*")] == ["bob"]
    assert agent.to_dict()["budget"]["cap"] == "50"
    assert str(agent.budget) == "50.00 usd per agent and day"


def test_costs_are_told_by_run_tool_agent_and_day(world: World) -> None:
    buy, pay = buyer(world), world.compensatable("pay", cost=7)
    rt = runtime(buy, pay)
    for id, agent in (("r1", "bob"), ("r2", "eve")):
        with rt.run(id, agent=agent):
            buy(x=id, n=3)
            pay(x=id)
    assert {line.what: line.spent for line in rt.costs("run")} == {"r1": 10, "r2": 10}
    assert {line.what: (line.calls, line.spent) for line in rt.costs("tool")} == {"pay": (2, 14), "buy": (2, 6)}
    assert {line.what: line.spent for line in rt.costs("agent", "tool:buy")} == {"bob": 3, "eve": 3}
    assert [line.spent for line in rt.costs("day")] == [20]
    with pytest.raises(Exception, match="by run, tool, agent or day"):
        rt.costs("week")


def test_budgets_from_a_file(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "amends.toml").write_text(
        '[[budgets]]\ncap = 5_000\nper = "tenant"\nevery = "day"\n'
        '[[budgets]]\ncap = 2\nunit = "calls"\ntool = "pay_*"\n'
    )
    monkeypatch.chdir(tmp_path)
    rt = runtime(buyer(world))
    expected = (Budget(5000, per="tenant", every="day"), Budget(2, unit="calls", tool="pay_*"))
    assert rt.settings["budgets"].value == expected
    assert rt.settings["budgets"].origin.endswith("amends.toml")
    (tmp_path / "amends.toml").write_text("[[budgets]]\nunit = 'usd'\n")
    with pytest.raises(BadConfig, match="no cap"):
        runtime()
    (tmp_path / "amends.toml").write_text("[[budgets]]\ncap = 1\nlimit = 2\n")
    with pytest.raises(BadConfig, match="'limit' is not a field"):
        runtime()


def test_an_async_run_has_the_same_budgets() -> None:
    bought: list[int] = []

    @tool(cost=lambda call: call.args["n"])
    async def buy(n: int) -> int:
        await asyncio.sleep(0)
        bought.append(n)
        spent(n)
        return n

    @buy.compensate
    async def undo(n: int) -> None:
        bought.remove(n)

    async def program() -> list[Any]:
        rt = AsyncRuntime("memory:", tools=[buy], budgets=[Budget(100, per="tenant")])

        async def one(number: int) -> None:
            async with rt.run(f"r{number}"):
                await buy(n=7)

        ends = await asyncio.gather(*(one(number) for number in range(32)), return_exceptions=True)
        assert [state.spent for state in await rt.budgets()] == [98]
        assert sum(line.spent for line in await rt.costs("run")) == 98
        await rt.close()
        return [type(end) for end in ends]

    ends = asyncio.run(program())
    assert (ends.count(type(None)), ends.count(BudgetExceeded), len(bought)) == (14, 18, 14)


def test_members_of_a_plan_share_what_is_left(world: World) -> None:
    buy = buyer(world, on_failure="continue")
    rt = runtime(buy, budgets=[Budget(10)])
    with rt.run("r") as run:
        answers = run.execute([[{"tool": "buy", "args": {"x": str(n), "n": 4}} for n in range(4)]])
    assert sorted(answer.status for answer in answers) == ["done", "done", "refused", "refused"]
    assert len(world.log) == 2


def test_gc_leaves_what_is_spent(world: World) -> None:
    buy = buyer(world)
    rt = runtime(buy, budgets=[Budget(10), Budget(20, per="tenant")])
    with rt.run("r"):
        buy(x="1", n=4)
    rt.gc(older_than=0.0)
    assert [(state.budget.per, state.spent) for state in rt.budgets()] == [("run", 0), ("tenant", 4)]
    assert rt.costs()[0].spent == 4
