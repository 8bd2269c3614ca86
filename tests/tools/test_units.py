"""Units, budgets, probes and guards: what would silently count or say nothing is one thing, refused, or told."""

from __future__ import annotations

import logging
from contextlib import suppress
from decimal import Decimal
from typing import Any, Optional  # noqa: F401 (named in a text)
from unicodedata import normalize

import pytest

from amends import Budget, Cost, Happened, InDoubt, RunBlocked, Runtime, UsageError, spent, tool
from amends.errors import BadConfig, BadCost, BadDeclaration, BudgetExceeded


def _pay(cost: Any) -> Any:
    @tool(cost=cost)
    def pay(n: int) -> int:
        return n

    pay.compensate(lambda: None)
    return pay


@pytest.mark.parametrize("unit", ["USD", "usd", "Usd", " usd ", "ＵＳＤ"])
@pytest.mark.parametrize("cost", [60, {"USD": 60}, {"usd": 30, "USD": 30}, Cost(60, "uSd"), lambda call: {"Usd": 60}])
def test_a_unit_has_one_spelling(unit: str, cost: Any) -> None:
    pay = _pay(cost)
    for rt, run in (
        (Runtime("memory:", tools=[pay], budgets=[Budget(100, unit)]), {}),
        (Runtime("memory:", tools=[pay]), {"budgets": [Budget(100, unit)]}),
    ):
        with rt.run(**run) as opened:  # type: ignore[arg-type]
            pay(n=1)
            with pytest.raises(BudgetExceeded) as over:
                pay(n=2)
        assert over.value.left == 40
        assert opened.state == "committed"
        [line] = rt.costs("tool")
        assert (line.unit, line.spent) == ("usd", Decimal(60))
        assert len(rt.budgets("unit:USD")) == 1


def test_what_a_body_says_that_it_spent_has_the_same_spelling() -> None:
    @tool
    def pay(n: int) -> None:
        spent(60, "USD")

    pay.compensate(lambda: None)
    rt = Runtime("memory:", tools=[pay], budgets=[Budget(50)])
    with rt.run():
        pay(n=1)
    [state] = rt.budgets()
    assert (state.budget.unit, state.spent) == ("usd", Decimal(60))

    @tool
    def odd(n: int) -> None:
        spent(1, "")

    odd.compensate(lambda: None)
    with pytest.raises(UsageError), Runtime("memory:", tools=[odd]).run():
        odd(n=1)


@pytest.mark.parametrize(
    "cost", [{"usd": -1}, {"usd": float("nan")}, {"usd": "5"}, {"": 5}, {"usd": True}, {5: 5}, "5"]
)
def test_an_amount_that_is_none_is_refused(cost: Any) -> None:
    with pytest.raises(BadDeclaration):
        Runtime("memory:", tools=[_pay(cost)])
    pay = _pay(lambda call: cost)
    with Runtime("memory:", tools=[pay]).run(), pytest.raises(BadCost):
        pay(n=1)


@pytest.mark.parametrize(
    "budget, meant",
    [(Budget(5, tool="pya"), ""), (Budget(5, tool="Pay"), "pay"), (Budget(5, tool="send-wire"), "send_wire"),
     (Budget(5, tool="send_wier"), "send_wire"), (Budget(5, "call"), "calls"), (Budget(5, "tokenz"), "tokens")],
    ids=str,
)  # fmt: skip
def test_a_budget_that_is_probably_mistyped_is_refused(budget: Budget, meant: str) -> None:
    @tool(kind="pivot", cost={"tokens": 5})
    def send_wire() -> None: ...

    tools = [_pay(5), send_wire]
    if not meant:
        [warning] = Runtime("memory:", tools=tools, budgets=[budget]).warnings
        assert "pya" in warning
        return
    with pytest.raises(BadConfig, match=f"did you mean '{meant}'"):
        Runtime("memory:", tools=tools, budgets=[budget])
    rt = Runtime("memory:", tools=tools)
    with pytest.raises(BadConfig), rt.run(budgets=[budget]):
        pass


def test_a_budget_that_nothing_reaches_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "amends"):
        rt = Runtime("memory:", tools=[_pay(5)], budgets=[Budget(5, "eur"), Budget(5, tool="elsewhere"), Budget(5)])
    assert len(rt.warnings) == len(caplog.records) == 2
    assert "eur" in rt.warnings[0]
    assert "elsewhere" in rt.warnings[1]
    assert Runtime("memory:", tools=[_pay(lambda call: {})], budgets=[Budget(5, "eur")]).warnings == ()
    assert Runtime("memory:", tools=[_pay(None)], budgets=[Budget(5, "calls")]).warnings == ()
    assert Runtime("memory:", budgets=[Budget(5, "eur")]).warnings == ()


def test_a_dimension_that_no_budget_has_is_refused() -> None:
    rt = Runtime("memory:", tools=[_pay(5)], budgets=[Budget(5)])
    with pytest.raises(UsageError, match="nope"):
        rt.budgets("per:nope")
    assert len(rt.budgets("per:run")) == len(rt.budgets("per:r*")) == 1


@pytest.mark.parametrize("name, pattern", [("NFC", "NFD"), ("NFD", "NFC"), ("NFD", "NFD")])
@pytest.mark.parametrize("of_run", [True, False])
def test_a_budget_is_for_a_tool_in_any_unicode_form(name: Any, pattern: Any, of_run: bool) -> None:
    done: list[int] = []

    @tool(name=normalize(name, "zahle_für"), cost=1, kind="pivot")
    def pay(n: int) -> None:
        done.append(n)

    budgets = [Budget(2, per="tenant", tool=normalize(pattern, "*_für"))]
    rt = Runtime("memory:", tools=[pay], budgets=() if of_run else budgets)
    for number in range(4):
        with suppress(BudgetExceeded), rt.run(budgets=budgets if of_run else ()) as run:
            run.call(pay, n=number)
    assert done == [0, 1]


@pytest.mark.parametrize("unit", ["token", "tokns", "TOKENZ"])
def test_a_unit_that_a_function_mistypes_spends_nothing(unit: str) -> None:
    rt = Runtime("memory:", tools=[pay := _pay(lambda call: {unit: 60})], budgets=[Budget(100, "tokens")])
    with rt.run(), pytest.raises(BadCost, match="did you mean 'tokens'"):
        pay(n=1)
    other = Runtime(
        "memory:", tools=[pay := _pay(lambda call: {"mails": 60, "tokens": 1})], budgets=[Budget(9, "tokens")]
    )
    with other.run():
        pay(n=1)


@pytest.mark.parametrize("answer", [True, None, "yes", {"id": 1}, Happened])
def test_a_probe_that_gives_none_of_the_three_answers_is_told(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    @tool
    def pay(n: int) -> int:
        raise TimeoutError

    pay.compensate(lambda: None)
    pay.probe(lambda: answer)
    rt = Runtime("memory:", tools=[pay], wait=0.1)
    with caplog.at_level(logging.WARNING, "amends"), pytest.raises(ValueError), rt.run():
        with pytest.raises(InDoubt) as doubt:
            pay(n=1)
        assert f"the probe returned {answer!r}" in doubt.value.hint
        raise ValueError
    assert any(f"returned {type(answer).__name__}" in one.getMessage() for one in caplog.records)
    [found] = rt.doubts()
    assert any("the probe returned" in one.why for one in found.evidence)


@pytest.mark.parametrize("returned", [bool, "bool", str, None, bool | None, dict[str, Any], "Optional[int]"])
def test_a_probe_that_says_it_gives_none_of_the_three_answers_is_refused(returned: Any) -> None:
    @tool
    def pay(n: int) -> int:
        return n

    pay.compensate(lambda: None)

    def look(n):  # type: ignore[no-untyped-def]
        return True

    look.__annotations__["return"] = returned
    pay.probe(look)
    with pytest.raises(BadDeclaration, match="Happened"):
        Runtime("memory:", tools=[pay])


@pytest.mark.parametrize("answer, undone", [(True, 1), (False, 0), (None, 0), ("changed by bob", 0), (1, 0)])
def test_only_true_lets_a_compensation_overwrite(answer: Any, undone: int) -> None:
    log: list[int] = []

    @tool
    def put(n: int) -> int:
        return n

    put.compensate(lambda n: log.append(n), retry=1)
    put.guard(lambda: answer)
    rt = Runtime("memory:", tools=[put], wait=0.1)
    with pytest.raises((RunBlocked, UsageError, Exception)), rt.run("r"):
        put(n=1)
        raise ValueError
    assert len(log) == undone
    assert (rt.report("r").state == "rolled_back") is bool(undone)
