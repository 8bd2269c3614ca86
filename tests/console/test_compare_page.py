"""Two runs side by side: the first difference is marked, what is alike is folded."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from amends.serve.console import compare
from tests.console.shop import HOSTILE, Shop, Site, served


def compared(browser: TestClient, a: str, b: str) -> Any:
    answer = browser.get("/compare.json", params={"a": a, "b": b})
    assert answer.status_code == 200, answer.text
    return answer.json()["compared"]


def test_without_two_runs_there_is_a_form_with_the_newest(browser: TestClient) -> None:
    found = browser.get("/compare.json").json()
    assert (found["compared"], len(found["known"]) > 3) == (None, True)
    assert 'name="a"' in browser.get("/compare").text
    assert "/compare?a=order-1001&amp;b=" in browser.get("/compare?a=order-1001").text


def test_the_first_difference_is_marked(browser: TestClient) -> None:
    found = compared(browser, "order-1001", "order-1002")
    first = next(one["pair"] for one in found["groups"] if one["pair"] and one["pair"]["is_first"])
    assert (found["alike"], found["first"], first["how"], first["tool"]) == (False, 1, "left", "stock")
    page = browser.get("/compare?a=order-1001&b=order-1002").text
    assert page.count('id="first"') == 1
    assert "Call 1 is the first that differs" in page


def test_a_run_is_like_itself(browser: TestClient) -> None:
    found = compared(browser, "order-1001", "order-1001")
    assert (found["alike"], found["first"], found["differ"]) == (True, None, 0)
    assert "Every call is alike" in browser.get("/compare?a=order-1001&b=order-1001").text


def test_a_fork_shares_what_came_before_and_is_proposed() -> None:
    with served() as site:
        charge = next(one for one in site.shop.rt.report("order-1001").calls if one.tool == "charge")
        site.shop.rt.fork("order-1001", at=charge.id, id="other")
        run = site.shop.rt.scoped(principal="ana").open("other", input={"order": "1001"})
        run.answer("stock", {"item": "kettle"})
        run.answer("charge", {"order": "1001", "cents": 4200})
        run.answer("reserve", {"order": "1001", "item": "lamp"})
        site.shop.left.append(run)
        olga = site.browse()
        assert {"id": "other", "how": "a fork"} in olga.get("/compare.json?a=order-1001").json()["related"]
        assert {"id": "order-1001", "how": "the original"} in olga.get("/compare.json?a=other").json()["related"]
        found = compared(olga, "order-1001", "other")
        assert (found["shared"], found["first"]) == (2, 3)
        first = next(one["pair"] for one in found["groups"] if one["pair"] and one["pair"]["is_first"])
        assert [(one["path"], one["left"], one["right"]) for one in first["args"]] == [
            ("item", '"flaky kettle"', '"lamp"')
        ]


def test_long_stretches_that_are_alike_are_folded_and_the_page_is_bounded() -> None:
    shop = Shop(fill=False, budgets=[])
    for id, odd in (("a", 40), ("b", 41)):
        with shop.rt.run(id) as run:
            for number in range(60):
                run.answer("stock", {"item": str(odd if number == 30 else number)})
    with served(shop) as site:
        olga = site.browse()
        found = compared(olga, "a", "b")
        assert [one["folded"] for one in found["groups"]] == [30, 0, 29]
        assert (found["total"], found["differ"], found["first"]) == (60, 1, 31)
        assert "Calls 1–30 are alike" in olga.get("/compare?a=a&b=b").text
        assert compare.PAIRS_MAX <= 500


def test_an_unknown_run_is_not_found_and_hostile_names_are_inert(browser: TestClient, site: Site) -> None:
    assert browser.get("/compare?a=nobody&b=order-1001").status_code == 404
    text = browser.get("/compare", params={"a": f"a/{HOSTILE}", "b": "order-1001"}).text
    assert "<img src=x" not in text
    assert "&lt;img" in text
