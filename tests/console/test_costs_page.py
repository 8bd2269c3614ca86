"""Budgets and cost: the line to the cap, what is reserved and spent, what the cap refused, units kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from starlette.testclient import TestClient

from amends import Budget, BudgetState, Charged, Runtime, Spending, tool
from amends.errors import BudgetExceeded
from amends.serve.console import costs
from tests.console.desk import at_desk
from tests.console.shop import HOSTILE, Shop, Site, served, tags, words

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def spending(cap: int, *amounts: int, before: int = 0, reserved: int = 0) -> Spending:
    """A budget with this cap, of which each amount was taken one minute after the other, the last a minute ago."""
    spent = Decimal(before + sum(amounts) - reserved)
    state = BudgetState(Budget(cap), "o-1", None, spent, Decimal(reserved), Decimal(cap) - spent - reserved)
    made = [
        Charged(f"call_{n}", "o-1", "pay", None, NOW - timedelta(minutes=len(amounts) - n), Decimal(amount), Decimal(0))
        for n, amount in enumerate(amounts)
    ]
    return Spending(state, tuple(made))


def test_the_page_shows_each_budget_with_its_line_and_its_cap(browser: TestClient) -> None:
    page = browser.get("/costs")
    assert page.status_code == 200
    text = words(page.text)
    assert "Each agent clerk" in text
    assert "of $500.00" in text
    lines = [attrs for tag, attrs in tags(page.text) if tag == "path" and attrs.get("class") == "line-used"]
    assert lines
    assert all(attrs["d"].startswith("M0 ") for attrs in lines)
    assert not [attrs for _, attrs in tags(page.text) if "style" in attrs]


def test_a_cap_of_each_call_has_no_line_because_nothing_adds_up() -> None:
    @tool(key="order", cost=2)
    def pay(order: str) -> None: ...

    @pay.compensate
    def unpay(order: str) -> None: ...

    with at_desk(pay, budgets=[Budget(5, per="call")]) as (_, site):
        olga = site.browse()
        [one] = olga.get("/costs.json").json()["budgets"]
        assert (one["per"], one["line"], one["word"]) == ("call", None, "per call")
        text = words(olga.get("/costs").text)
        assert "$5.00 at most for each call" in text
        assert "of $5.00" not in text


def test_budgets_of_single_runs_are_a_table_nearest_to_the_cap_first(browser: TestClient) -> None:
    data = browser.get("/costs.json").json()
    assert {one["per"] for one in data["budgets"]} == {"agent", "tenant"}
    shares = [one["share"] for one in data["of_runs"]]
    assert shares == sorted(shares, reverse=True)
    assert data["of_runs"][0]["who"] == "order-1008"
    assert data["of_runs"][0]["tone"] == "wait"


def test_what_a_cap_refused_is_listed_with_links_to_run_and_event(browser: TestClient) -> None:
    [refused] = browser.get("/costs.json").json()["refused"]
    assert (refused["run"], refused["tool"], refused["asked"], refused["cap"]) == ("order-1008", "charge", "59", "60")
    page = browser.get("/costs").text
    links = [attrs["href"] for tag, attrs in tags(page) if tag == "a"]
    assert "/runs/order-1008" in links
    [evidence] = [href for href in links if href.startswith("/audit?run=order-1008")]
    place = evidence.partition("#")[2]
    assert place in [attrs.get("id") for _, attrs in tags(browser.get(evidence).text)], (
        "the link leads to the event itself"
    )


@pytest.mark.parametrize("by", ["run", "agent", "tool", "day"])
def test_costs_are_summed_up(browser: TestClient, site: Site, by: str) -> None:
    [usd] = browser.get(f"/costs.json?by={by}").json()["units"]
    known = [line for line in site.shop.rt.costs(by) if line.spent or line.reserved]  # type: ignore[arg-type]
    assert {one["what"]: one["spent"] for one in usd["lines"]} == {line.what: str(line.spent) for line in known}
    assert Decimal(usd["spent"]) == sum(line.spent for line in known)
    assert max(one["bar"]["spent"] + one["bar"]["reserved"] for one in usd["lines"]) == 100
    assert browser.get(f"/costs?by={by}").status_code == 200


def test_a_filter_and_a_number_of_calls_narrow_it(browser: TestClient) -> None:
    assert browser.get("/costs.json?filter=tool:nothing").json()["units"] == []
    assert "Nothing matches" in words(browser.get("/costs?filter=tool:nothing").text)
    few = browser.get("/costs.json?newest=3").json()
    assert sum(unit["calls"] for unit in few["units"]) <= 3
    wrong = browser.get("/costs?filter=nonsense")
    assert wrong.status_code == 200
    assert "The filter 'nonsense' is invalid." in words(wrong.text), (
        "it is told beside the box, which keeps what was typed"
    )
    assert 'value="nonsense"' in wrong.text
    for odd in ("newest=0", "newest=99999999", "newest=x", "by=moon"):
        assert browser.get(f"/costs?{odd}").status_code == 422, odd


@pytest.fixture
def mixed() -> Iterator[Site]:
    """A shop whose calls cost dollars, tokens and a unit with an odd name; one budget is used up, one exceeded twice."""

    @tool(kind="read", cost={"usd": 1, "tokens": 700, HOSTILE: 2})
    def ask(question: str) -> str:
        return question

    rt = Runtime(
        "memory:", tools=[ask], budgets=[Budget(700, "tokens", per="agent"), Budget(3, per="tenant", every="month")]
    )
    shop = Shop(fill=False)
    shop.rt.close()
    shop.rt = rt
    mine = rt.scoped(agent="a b")
    with mine.run("one"):
        ask(question="first")
        for again in ("second", "third"):
            with pytest.raises(BudgetExceeded):
                ask(question=again)
    with served(shop) as site:
        yield site


def test_units_are_kept_apart(mixed: Site) -> None:
    browser = mixed.browse()
    data = browser.get("/costs.json").json()
    assert {unit["unit"]: unit["spent"] for unit in data["units"]} == {"usd": "1", "tokens": "700", HOSTILE: "2"}
    by_unit = {one["unit"]: one for one in data["budgets"]}
    assert (by_unit["tokens"]["tone"], by_unit["tokens"]["word"], by_unit["tokens"]["left"]) == ("fail", "used up", "0")
    assert (by_unit["usd"]["tone"], by_unit["usd"]["spent"]) == ("ok", "1")
    assert len(data["refused"]) == 2
    assert {one["unit"] for one in data["refused"]} == {"tokens"}
    page = browser.get("/costs")
    assert "<img" not in page.text
    assert "700 tokens" in words(page.text)
    assert 'agent:"a b"' in page.text.replace("&#34;", '"') or "agent%3A%22a+b%22" in page.text


def test_an_empty_ledger_says_how_to_begin() -> None:
    shop = Shop(fill=False, budgets=[])
    with served(shop) as site:
        text = words(site.browse().get("/costs").text)
    assert "No budgets yet" in text
    assert "Nothing has cost anything" in text
    assert "Nothing was refused" in text


# ---- The line


def test_the_line_ends_at_what_is_used_now() -> None:
    drawn = costs.line(spending(10, 2, 3), Decimal(10), NOW)
    top, bottom = costs.TOP, costs.HEIGHT
    assert drawn["cap"] == top
    assert drawn["path"].startswith(f"M0 {bottom}H0V")
    half = bottom - (bottom - top) * 5 / 10
    assert drawn["path"].endswith(f"V{half:g}H{costs.WIDTH}")
    assert drawn["steps"] == 2


def test_what_was_spent_before_the_known_calls_lifts_the_line() -> None:
    first = costs.line(spending(10, 1, before=4), Decimal(10), NOW)["path"]
    level = costs.HEIGHT - (costs.HEIGHT - costs.TOP) * 4 / 10
    assert first.startswith(f"M0 {level:g}")


def test_a_budget_that_is_exceeded_stays_inside_the_drawing() -> None:
    drawn = costs.line(spending(10, 30), Decimal(10), NOW)
    assert drawn["path"].endswith(f"V{costs.TOP}H{costs.WIDTH}")
    assert costs.TOP < drawn["cap"] < costs.HEIGHT


def test_a_budget_without_charges_is_a_flat_line() -> None:
    drawn = costs.line(spending(10), Decimal(10), NOW)
    assert (drawn["path"], drawn["since"]) == (f"M0 {costs.HEIGHT}H{costs.WIDTH}", None)
    assert costs.line(spending(0), Decimal(0), NOW)["path"], "a cap of nothing is drawn, too"
