"""Workers: processes with leases, remote workers and what they hold, what is stuck and why; and tokens."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends.serve.console import workers
from tests.console.shop import HOSTILE, Shop, Site, served, tags, words


@pytest.fixture
def own() -> Iterator[Site]:
    """An empty shop that a test changes."""
    with served(Shop(fill=False)) as made:
        yield made


def test_what_is_stuck_says_why_and_links_to_its_run(browser: TestClient) -> None:
    data = browser.get("/workers.json").json()
    stuck = {one["id"]: one for one in data["stuck"]}
    assert stuck["order-1006"]["state"] == "blocked"
    assert "its compensation failed" in stuck["order-1006"]["why"]
    assert "rt." not in stuck["order-1006"]["why"], "a page has buttons for that"
    assert stuck["order-1010"]["who"] == "its program"
    assert stuck["order-1016"]["who"] == "a retry"
    assert "order-1001" not in stuck
    assert [one["order"] for one in data["stuck"]] == sorted(one["order"] for one in data["stuck"])
    page = browser.get("/workers").text
    links = {attrs["href"] for tag, attrs in tags(page) if tag == "a"}
    assert {f"/runs/{id}" for id in stuck} <= links


def test_what_waits_for_a_person_names_the_call_and_leads_to_where_it_is_decided(browser: TestClient) -> None:
    stuck = {one["id"]: one for one in browser.get("/workers.json").json()["stuck"]}
    assert stuck["order-1003"]["why"] == "wire waits for approval"
    assert stuck["order-1003"]["to"].startswith("/approvals/")
    assert stuck["order-1005"]["why"] == "book may have happened, and nobody knows"
    assert stuck["order-1005"]["to"].startswith("/doubts/")
    page = browser.get("/workers").text
    links = {attrs["href"] for tag, attrs in tags(page) if tag == "a"}
    assert {stuck["order-1003"]["to"], stuck["order-1005"]["to"]} <= links


def test_processes_that_hold_a_lease_are_named_with_their_runs(browser: TestClient) -> None:
    [process] = browser.get("/workers.json").json()["processes"]
    assert process["runs"] == 5
    assert not process["lost"]
    assert process["name"] in words(browser.get("/workers").text)


def test_a_process_that_gave_no_sign_is_told(own: Site) -> None:
    with_lease = own.shop.rt.open("left")
    with_lease.answer("charge", {"order": "1", "cents": 1})
    store: Any = own.shop.rt._host.store
    for uid, row in list(store.runs.items()):
        store.runs[uid] = dataclasses.replace(row, owner="gone|x|1|2", lease_until=1.0, lease_mono=None, lease_boot="")
    data = own.browse().get("/workers.json").json()
    assert [(one["lost"], one["name"]) for one in data["processes"]] == [(True, "gone (1)")]
    assert data["stuck"][0]["now"] == "orphaned"


def test_nothing_is_stuck_in_an_empty_ledger(own: Site) -> None:
    text = words(own.browse().get("/workers").text)
    assert "Nothing is stuck" in text
    assert "No process has a run" in text
    assert "No remote worker" in text


def test_remote_workers_are_shown_with_what_they_hold(own: Site) -> None:
    rt = own.shop.rt
    token = rt.create_token("bank", scopes=["worker"], by="olga", why="payments", principal="wim").text
    bot = rt.create_token("bot", scopes=["agent"], agent="shopper", by="olga", why="x").text
    headers = {"Authorization": f"Bearer {token}"}
    tool = {"name": "transfer", "kind": "read", "lease": 20, "parameters": {"type": "object", "properties": {}}}
    made = own.client.post("/v1/workers", json={"name": HOSTILE, "tools": [tool]}, headers=headers).json()
    browser = own.browse()
    [worker] = browser.get("/workers.json").json()["workers"]
    assert (worker["name"], worker["by"], worker["tools"], worker["holds"]) == (HOSTILE, "wim", ["transfer"], [])
    agent = {"Authorization": f"Bearer {bot}"}
    assert own.client.post("/v1/runs", json={"id": "r-1"}, headers=agent).status_code == 201
    asks = threading.Thread(
        target=lambda: own.client.post("/v1/runs/r-1/calls", json={"tool": "transfer", "args": {}}, headers=agent)
    )
    asks.start()
    try:
        for _ in range(200):
            waiting = browser.get("/workers.json").json()["waiting"]
            if waiting:
                break
            time.sleep(0.01)
        assert (waiting[0]["tool"], waiting[0]["run"], waiting[0]["worker"]) == ("transfer", "r-1", None)
        work = own.client.post(f"/v1/workers/{made['id']}/take", json={"wait": 5}, headers=headers).json()["work"]
        [worker] = browser.get("/workers.json").json()["workers"]
        [held] = worker["holds"]
        assert (held["call"], held["phase"], held["attempt"]) == (work["call"], "execute", 1)
        assert 0 < held["lease_left_s"] <= 22
        page = browser.get("/workers")
        assert "<img" not in page.text
        assert "transfer" in words(page.text)
        assert browser.get("/tools/transfer.json").json()["served"]["held"] == 1
        done = {"token": work["token"], "result": 1}
        assert own.client.post(f"/v1/claims/{work['call']}/succeed", json=done, headers=headers).status_code == 200
    finally:
        asks.join(20)
    own.client.delete(f"/v1/workers/{made['id']}", headers=headers)
    data = browser.get("/workers.json").json()
    assert data["unserved"] == [{"tool": "transfer", "waiting": 0}]
    assert browser.get("/tools/transfer.json").json()["item"]["performed"]["word"] == "no worker is there"
    other = own.browse("operator", name="otto", tenant="other")
    assert other.get("/workers.json").json()["unserved"] == []
    assert other.get("/tools/transfer").status_code == 404, "a tool of another tenant's workers is not there"


@pytest.mark.parametrize(
    "cause, shown",
    [
        ("pay (c): failed: no: rt.retry('c', by=...)", "pay (c): failed: no"),
        ("it ended early: open run 'x' again, or close it with rt.finish('x')", "it ended early"),
        ("rt.finish('x')", "rt.finish('x')"),
        ("nothing to call", "nothing to call"),
    ],
)
def test_a_cause_is_shown_without_the_methods_that_settle_it(cause: str, shown: str) -> None:
    assert workers._cause(cause) == shown


# ---- Tokens


def test_a_token_is_created_shown_once_and_revoked(own: Site) -> None:
    browser = own.browse()
    made = own.send(browser, "/tokens", name="shop bot", scope="agent", agent="shopper", why="the shop", expires="7d")
    assert made.status_code == 200
    [token] = own.shop.rt.tokens()
    text = next(attrs["data-copy"] for _, attrs in tags(made.text) if attrs.get("data-copy", "").startswith("amt_"))
    assert own.shop.rt.check_token(text).id == token.id
    assert made.headers["cache-control"] == "no-store"
    again = browser.get("/tokens")
    assert text not in again.text
    assert "shop bot" in words(again.text)
    asked = own.send(browser, "/tokens/revoke", id=token.id, why="over")
    assert "Revoke shop bot?" in words(asked.text)
    assert own.send(browser, "/tokens/revoke", id=token.id, why="over", confirmed="yes").status_code == 303
    assert own.shop.rt.tokens() == []


@pytest.mark.parametrize(
    "fields, status",
    [
        ({"name": "", "scope": "viewer", "why": "x"}, 422),
        ({"name": "a", "scope": "viewer", "why": ""}, 422),
        ({"name": "a", "scope": "everything", "why": "x"}, 400),
        ({"name": "a", "scope": "agent", "why": "x"}, 400),
        ({"name": "a", "scope": "viewer", "why": "x", "expires": "900y"}, 422),
    ],
)
def test_what_cannot_be_a_token_is_refused_and_stays_typed(own: Site, fields: dict[str, str], status: int) -> None:
    answer = own.send(own.browse(), "/tokens", **fields)
    assert answer.status_code == status, answer.text
    assert own.shop.rt.tokens() == []
    assert "alert" in answer.text


def test_tokens_are_for_operators_of_the_same_tenant(own: Site) -> None:
    own.shop.rt.create_token("mine", scopes=["viewer"], by="olga", why="x")
    assert own.browse("viewer", name="vera").get("/tokens").status_code == 403
    other = own.browse("operator", name="otto", tenant="other")
    assert [one["name"] for one in other.get("/tokens.json").json()["items"]] == []
    own.send(other, "/tokens", name="theirs", scope="operator", why="x")
    [theirs] = own.shop.rt.scoped(tenant="other").tokens()
    assert theirs.tenant == "other", "nobody gives more than they have"
    mine = next(one for one in own.shop.rt.tokens() if one.name == "mine")
    assert own.send(other, "/tokens/revoke", id=mine.id, why="x", confirmed="yes").status_code == 404
