"""Tools: what is declared, how each did, who performs it, what was met undeclared, and stopping one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends import Rule
from tests.console.shop import HOSTILE, Shop, Site, served, tags, words

WORKER = {"Authorization": "Bearer {}"}


@pytest.fixture
def own() -> Iterator[Site]:
    """A shop that a test changes, with a rule and tools that nobody declared."""
    rules = [Rule(tool="stock", why="look twice"), Rule(undeclared=True, decision="allow", residue="accept")]
    shop = Shop(fill=False, rules=rules)
    with shop.rt.run("order-1") as run:
        run.answer("charge", {"order": "1", "cents": 100})
        for name in (HOSTILE, 'say "hi"'):
            run.answer(name, {}, handler=lambda: "done")
    with served(shop) as made:
        yield made


def by_name(browser: TestClient) -> dict[str, Any]:
    return {one["name"]: one for one in browser.get("/tools.json").json()["items"]}


def test_the_list_has_kinds_rates_and_who_performs_each(browser: TestClient, site: Site) -> None:
    found = by_name(browser)
    assert set(found) >= {"charge", "reserve", "book", "wire", "ship", "mail", "stock"}
    assert (found["charge"]["compensation"], found["charge"]["probe"]) == ("refund", "find_charge")
    assert found["wire"]["approval"] == "always"
    assert found["ship"]["kind"] == "pivot"
    calls = list(site.shop.rt.calls("tool:book"))
    assert found["book"]["use"]["calls"] == len(calls)
    assert found["book"]["use"]["in_doubt"] == sum(call.state == "in_doubt" for call in calls)
    assert found["reserve"]["use"]["retried"] >= 1
    assert found["charge"]["performed"]["by"] == "server"
    text = words(browser.get("/tools").text)
    assert "Performed by" in text
    assert "refund" in text


def test_the_page_of_a_tool_shows_declaration_use_and_newest_calls(browser: TestClient, site: Site) -> None:
    data = browser.get("/tools/charge.json").json()
    known = list(site.shop.rt.calls("tool:charge"))
    assert [one["id"] for one in data["calls"]] == [call.id for call in known]
    assert data["declared"]["key"] == ["order"]
    assert [one["call"] for one in data["chart"]["columns"]] == [call.id for call in known[::-1]]
    assert max(one["height"] for one in data["chart"]["columns"]) == data["chart"]["height"]
    page = browser.get("/tools/charge").text
    assert "Charge a card." in words(page)
    assert [attrs for tag, attrs in tags(page) if tag == "rect" and "tone-" in attrs.get("class", "")]
    assert browser.get("/tools/nobody").status_code == 404


def test_tools_that_nobody_declared_are_shown_as_such(own: Site) -> None:
    browser = own.browse()
    found = by_name(browser)
    for name in (HOSTILE, 'say "hi"'):
        assert not found[name]["declared"]
        assert found[name]["performed"]["word"] == "undeclared"
    page = browser.get("/tools")
    assert "<img" not in page.text
    links = [attrs["href"] for tag, attrs in tags(page.text) if tag == "a" and attrs["href"].startswith("/tools/")]
    for href in links:
        one = browser.get(href)
        assert one.status_code == 200, href
        assert "<img" not in one.text
    quoted = browser.get("/tools/say%20%22hi%22.json").json()
    assert [one["run"].partition("/")[0] for one in quoted["calls"]] == ["order-1"], (
        "it has a run of its own, below that one"
    )


def test_rules_that_may_decide_are_named(own: Site) -> None:
    assert by_name(own.browse())["stock"]["rules"] == ["look twice"]


# ---- Stopping


def test_an_operator_stops_a_tool_and_lets_it_start_again(own: Site) -> None:
    browser = own.browse()
    asked = own.send(browser, "/halts", tool="charge", why="doubles")
    assert asked.status_code == 200
    assert "Stop the tool charge?" in words(asked.text), "it is asked once more before it is done"
    assert own.shop.rt.halts() == []
    done = own.send(browser, "/halts", tool="charge", why="doubles", confirmed="yes")
    assert done.headers["location"] == "/tools/charge"
    [halt] = own.shop.rt.halts()
    assert (halt.tool, halt.by, halt.why) == ("charge", "olga", "doubles")
    assert by_name(browser)["charge"]["halted"]
    assert "charge is stopped" in words(browser.get("/tools/charge").text)
    lifted = own.send(browser, "/halts/lift", tool="charge", why="mended", confirmed="yes")
    assert lifted.status_code == 303
    assert own.shop.rt.halts() == []
    assert "Lifted 1 halt" in words(browser.get("/tools").text)


def test_everything_can_be_stopped_at_once(own: Site) -> None:
    browser = own.browse()
    own.send(browser, "/halts", why="an incident", confirmed="yes")
    [halt] = own.shop.rt.halts()
    assert (halt.tool, halt.agent, halt.tenant) == (None, None, None)
    assert all(one["halted"] for one in by_name(browser).values())


def test_who_may_for_every_tenant_lifts_the_halt_of_one(own: Site) -> None:
    own.shop.rt.halt(by="otto", why="ours", tenant="other", tool="charge")
    wide, third = own.browse(name="eve"), own.browse("operator", name="tina", tenant="third")
    forged = {"tool": "charge", "of": "tenant", "of_tenant": "other", "why": "x", "confirmed": "yes"}
    assert own.send(third, "/halts/lift", **forged).status_code == 400, "a field of the form is no right"
    assert third.get("/tools.json").json()["halts"] == []
    done = own.send(wide, "/halts/lift", tool="charge", of="tenant", of_tenant="other", why="over", confirmed="yes")
    assert done.status_code == 303, done.text
    assert own.shop.rt.halts() == []


def test_a_reason_is_needed_and_nothing_typed_is_lost(own: Site) -> None:
    browser = own.browse()
    answer = own.send(browser, "/halts", tool="charge", why="  ", confirmed="yes")
    assert answer.status_code == 422
    assert own.shop.rt.halts() == []
    missing = own.send(browser, "/halts/lift", tool="charge", why="there is none", confirmed="yes")
    assert missing.status_code == 400
    assert "there is no such halt" in words(missing.text).lower()


@pytest.mark.parametrize("scope", ["viewer", "approver"])
def test_others_cannot_stop_anything(own: Site, scope: str) -> None:
    browser = own.browse(scope, name="vera")
    assert own.send(browser, "/halts", tool="charge", why="x", confirmed="yes").status_code == 403
    assert "Stop everything" not in words(browser.get("/tools").text)
    assert "Stop the tool" not in words(browser.get("/tools/charge").text)
