"""Ways around a cap that were tried, and are none."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from decimal import Decimal
from typing import Any

import pytest

from amends import Budget, Retry, Rule, spent, tool
from amends.budgets import billionths
from amends.errors import ApprovalVoid, BadCost, BudgetExceeded, Held
from amends.stores.memory import MemoryStore
from tests.ledger.test_budgets import books
from tests.world import World, runtime, twin_of


@pytest.mark.parametrize(
    "amount, told",
    [("1E-999999999", 1), ("0E+999999999", 0), ("0E-999999999", 0), ("1E-9", 1), ("1.1E-9", 2), ("9E-10", 1)],
)
def test_an_amount_of_many_places_is_never_multiplied_out(amount: str, told: int) -> None:
    assert billionths(Decimal(amount)) == told


@pytest.mark.parametrize("amount", [10**400, -(10**400), Decimal("1E+999999"), Decimal("sNaN"), float("inf")])
def test_an_amount_that_no_float_can_hold_is_refused_as_any_other(amount: Any) -> None:
    with pytest.raises(ValueError):
        billionths(amount)


def unused() -> None:
    """Takes nothing back."""


class Shop:
    """Uses something, and says what that cost."""

    def __init__(self) -> None:
        self.gates: dict[str, tuple[threading.Event, threading.Event]] = {}
        self.threads: list[threading.Thread] = []

        @tool(key="name", cost=lambda call: call.args["asks"])
        def use(name: str, asks: int, says: int) -> str:
            entered, may_go = self.gates.get(name, (threading.Event(), threading.Event()))
            entered.set()
            assert name not in self.gates or may_go.wait(10)
            spent(says)
            return name

        use.compensate(unused)
        self.use = use

    def begin(self, rt: Any, name: str, *, asks: int, says: int) -> None:
        """A run of its own is inside this call."""
        entered, _ = self.gates[name] = threading.Event(), threading.Event()

        def go() -> None:
            with rt.run(name):
                self.use(name=name, asks=asks, says=says)

        self.threads.append(threading.Thread(target=go))
        self.threads[-1].start()
        assert entered.wait(10)

    def end(self) -> None:
        for _, may_go in self.gates.values():
            may_go.set()
        for thread in self.threads:
            thread.join()
        self.gates.clear()


def test_what_one_slice_gives_back_is_not_free_while_the_cap_is_passed() -> None:
    shop = Shop()
    rt = runtime(shop.use, budgets=[Budget(100, per="tenant")])
    for number in range(5):
        shop.begin(rt, f"small {number}", asks=10, says=0)
    with rt.run("large"):
        shop.use(name="large", asks=50, says=100)
    shop.end()
    assert books(rt) == (0, 100)
    for number in range(20):
        with rt.run(f"late {number}"), pytest.raises(BudgetExceeded):
            shop.use(name=f"late {number}", asks=1, says=1)
    assert books(rt) == (0, 100)


def test_what_a_person_let_pass_is_made_up_for_before_others_start() -> None:
    shop = Shop()
    rt = runtime(shop.use, budgets=[Budget(100, per="tenant", then="hold")])
    for number in range(5):
        shop.begin(rt, f"small {number}", asks=10, says=0)
    with pytest.raises(Exception, match="waits for a person"), rt.run("large"):
        shop.use(name="large", asks=100, says=100)
    [asked] = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="anna", why="a large customer")
    with rt.run("large"):
        shop.use(name="large", asks=100, says=100)
    shop.end()
    assert books(rt) == (0, 100)
    for number in range(20):
        with pytest.raises(Exception, match="waits for a person"), rt.run(f"late {number}"):
            shop.use(name=f"late {number}", asks=1, says=1)


class Full(Exception):
    pass


def test_what_nobody_foresaw_is_counted_once_however_many_attempts_say_it() -> None:
    tries = iter([Full("full"), None])

    @tool(retry=Retry(attempts=2, on=Full, delay=0.001))
    def book() -> None:
        spent(3, "eur")
        if error := next(tries):
            raise error

    book.compensate(unused)
    rt = runtime(book, budgets=[Budget(100, unit="eur", per="tenant")])
    with rt.run("r"):
        book()
    assert books(rt) == (0, 6)


def test_an_attempt_that_says_nothing_costs_what_was_asked_for_whatever_the_one_before_said() -> None:
    tries = iter([Full("full"), None])

    @tool(cost=10, retry=Retry(attempts=2, on=Full, delay=0.001))
    def book() -> None:
        if error := next(tries):
            spent(3)
            raise error

    book.compensate(unused)
    rt = runtime(book, budgets=[Budget(100, per="tenant")])
    with rt.run("r"):
        book()
    assert books(rt) == (0, 13)


def test_a_cost_that_fails_over_a_hidden_value_does_not_tell_it() -> None:
    card = "4242-4242-4242-4242"

    @tool(kind="read", redact="card", cost=lambda call: int(call.args["card"]))
    def look(card: str) -> None: ...

    rt = runtime(look)
    with rt.run("r"), pytest.raises(BadCost) as bad:
        look(card=card)
    assert card not in f"{bad.value} {bad.value.why} {bad.value.__cause__!r}"
    assert "•••" in bad.value.why


# ---- asking a person ----------------------------------------------------------------------


def say_yes(rt: Any, by: str = "anna", **options: Any) -> str:
    [asked] = [one for one in rt.approvals() if one.state == "pending"]
    rt.approve(asked.id, digest=asked.digest, by=by, why="a large customer", **options)
    return str(asked.rule)


def outbox() -> tuple[Any, Any, list[str]]:
    sent: list[str] = []

    @tool(kind="pivot", key="order")
    def wire(order: str) -> str:
        return order

    @tool(kind="retriable", key="to", idempotent=True, cost=5)
    def mail(to: str) -> None:
        sent.append(to)

    return wire, mail, sent


def test_a_yes_to_a_pivot_is_for_the_outbox_that_was_asked_about() -> None:
    wire, mail, sent = outbox()
    rt = runtime(wire, mail, budgets=[Budget(3, then="hold")])
    with pytest.raises(Held), rt.run("r"):
        mail(to="a")
        wire(order="1")
    say_yes(rt)
    with pytest.raises(Held), rt.run("r"):
        for to in ("a", "b", "c"):
            mail(to=to)
        wire(order="1")
    assert (sent, books(rt)) == ([], (0, 0))
    say_yes(rt)
    with rt.run("r"):
        for to in ("a", "b", "c"):
            mail(to=to)
        wire(order="1")
    assert (sorted(sent), books(rt)) == (["a", "b", "c"], (0, 15))


def test_who_says_yes_is_told_of_every_limit_that_is_passed() -> None:
    pay = World().pivot("pay", cost=50)
    limits = [Budget(40, per="call", then="hold"), Budget(10, per="tenant", every="day", then="hold")]
    rt = runtime(pay, budgets=limits)
    with pytest.raises(Held), rt.run("r"):
        pay()
    told = say_yes(rt)
    assert told == "it would pass the limit of 40.00 usd for one call and of 10.00 usd for this customer today"
    with rt.run("r"):
        pay()


def test_a_limit_that_came_after_the_yes_is_asked_about_too() -> None:
    store, pay = MemoryStore(), World().pivot("pay", cost=50)
    rt = runtime(pay, store=store, budgets=[Budget(40, per="call", then="hold")])
    with pytest.raises(Held), rt.run("r"):
        pay()
    say_yes(rt)
    later = twin_of(store, pay, budgets=[Budget(40, per="call", then="hold"), Budget(45, then="hold")])
    with pytest.raises(Held), later.run("r"):
        pay()
    assert "40.00 usd for one call and of 45.00 usd for this task" in say_yes(later)
    with later.run("r"):
        pay()


def test_a_staged_call_over_a_limit_is_asked_about_by_those_who_a_rule_names() -> None:
    _, mail, sent = outbox()
    rt = runtime(mail, budgets=[Budget(3, then="hold")], rules=[Rule(tool="mail", roles=["finance"])])
    with pytest.raises(Held), rt.run("r"):
        mail(to="a")
    assert say_yes(rt, roles=["finance"]) == "approve mail"
    rt.recover()
    with pytest.raises(ApprovalVoid, match="roles"):
        say_yes(rt, by="bob")
    assert "3.00 usd" in say_yes(rt, roles=["finance"])
    rt.recover()
    assert (sent, rt.report("r").state) == (["a"], "committed")


@pytest.mark.parametrize("cap, started", [(10, False), (60, True)])
def test_what_is_asked_for_again_is_judged_by_the_cap_of_today(cap: int, started: bool) -> None:
    store, world = MemoryStore(), World()
    pay = world.pivot("pay", cost=50, needs_approval=True)
    with pytest.raises(Held), runtime(pay, store=store, budgets=[Budget(55, per="tenant")]).run("r"):
        pay()
    rt = twin_of(store, pay, budgets=[Budget(cap, per="tenant")])
    say_yes(rt)
    with nullcontext() if started else pytest.raises(BudgetExceeded, match=r"of 10\.00"), rt.run("r"):
        pay()
    assert bool(world.log) is started


def test_nobody_is_asked_any_more_about_a_read_of_a_run_that_was_abandoned() -> None:
    @tool(kind="read", cost=5)
    def look() -> None: ...

    rt = runtime(look, budgets=[Budget(3, then="hold")])
    with pytest.raises(Held), rt.run("r"):
        look()
    rt.abandon("r", by="anna", why="not needed")
    assert list(rt.approvals()) == []
    assert [call.state for call in rt.report("r").calls] == ["dropped"]


@pytest.mark.parametrize("cap, left", [(10, 0), (80, 40)])
def test_what_is_left_is_told_by_the_cap_of_today(cap: int, left: int) -> None:
    store, buy = MemoryStore(), World().compensatable("buy", cost=40)
    with runtime(buy, store=store, budgets=[Budget(50, per="tenant")]).run("r"):
        buy()
    [state] = twin_of(store, buy, budgets=[Budget(cap, per="tenant")]).budgets()
    assert (state.budget.cap, state.spent, state.left) == (cap, 40, left)
