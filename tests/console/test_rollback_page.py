"""The plan of a rollback as a page: what it says is what is done, or nothing is."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, Unknown, tool
from amends.serve import Limits, app
from amends.serve.console import rollback as rollback_page
from amends.serve.console import run as run_page
from tests.console.desk import at_desk
from tests.console.shop import SECRET, Shop, Site, served, words


def plan_of(browser: Any, run: str) -> Any:
    found = browser.get(f"/runs/{run}/rollback.json").json()
    return found["plan"]


def test_the_plan_says_order_arguments_and_what_stays() -> None:
    with served() as site:
        olga = site.browse()
        found = olga.get("/runs/order-1001/rollback.json").json()
        plan = found["plan"]
        assert [one["said"] for one in plan["compensations"]] == ['put_back(order="1001")', 'refund(order="1001")']
        assert sorted(one["tool"] for one in plan["cannot"]) == ["mail", "ship"]
        assert found["sentence"] == "2 compensations will run, 2 effects stay."
        page = olga.get("/runs/order-1001/rollback").text
        assert page.index("put_back(") < page.index("refund(")
        assert f'value="{plan["hash"]}"' in page
        assert page.count('type="checkbox"') == 2
        doubtful = olga.get("/runs/order-1014/rollback.json").json()
        assert [one["what"] for one in doubtful["plan"]["doubts"]] == ["ask"]
        assert "1 doubt will wait for a person" in doubtful["sentence"]


def test_a_plan_says_what_follows_a_doubt_that_a_probe_settles() -> None:
    @tool(key="order")
    def charge(order: str) -> str:
        raise TimeoutError("the bank did not answer in time")

    @charge.compensate
    def refund(order: str) -> None: ...

    @charge.probe(settle=3_600)
    def find_charge(order: str) -> Any:
        return Unknown("the list is an hour old")

    with at_desk(charge) as (desk, site):
        desk.open("r").answer("charge", {"order": "1"})
        olga = site.browse()
        found = olga.get("/runs/r/rollback.json").json()
        assert [one["what"] for one in found["plan"]["doubts"]] == ["probe"]
        assert found["sentence"] == (
            "0 compensations will run, 1 doubt will be settled first and taken back if it happened, nothing else stays."
        )
        text = words(olga.get("/runs/r/rollback").text)
        assert "If it happened, it is taken back, too. If the probe does not know, a person is asked." in text


def test_exactly_the_plan_that_was_shown_is_carried_out() -> None:
    with served() as site:
        olga = site.browse()
        hash = plan_of(olga, "order-1010")["hash"]
        assert site.send(olga, "/runs/order-1010/rollback", plan=hash, why="").status_code == 422
        asked = site.send(olga, "/runs/order-1010/rollback", plan=hash, why="changed their mind")
        assert (asked.status_code, "1 compensation will run, nothing stays." in asked.text) == (200, True)
        assert "1010" in site.shop.world.charges
        done = site.send(olga, "/runs/order-1010/rollback", plan=hash, why="changed their mind", confirmed="yes")
        assert (done.status_code, done.headers["location"]) == (303, "/runs/order-1010")
        assert site.shop.rt.info("order-1010").state == "rolled_back"
        assert "1010" not in site.shop.world.charges
        assert "nothing is left standing" in olga.get("/runs/order-1010").text
        planned = next(one for one in site.shop.rt.events("order-1010") if one.what == "rollback planned")
        assert (planned.by, planned.facts["why"], planned.facts["plan"]) == ("olga", "changed their mind", hash)


def test_a_stale_plan_does_nothing_and_the_new_one_is_shown() -> None:
    with served() as site:
        olga = site.browse()
        old = plan_of(olga, "order-1009")["hash"]
        site.shop.left[-1].answer("reserve", {"order": "1009", "item": "lamp"})
        for more in ({}, {"confirmed": "yes"}):
            stale = site.send(olga, "/runs/order-1009/rollback", plan=old, why="keep this text", **more)
            assert stale.status_code == 409
            assert "The run has changed since that plan" in stale.text
            assert "put_back(" in stale.text
            assert "keep this text" in stale.text
            assert f'value="{plan_of(olga, "order-1009")["hash"]}"' in stale.text
            assert f'value="{old}"' not in stale.text
        assert site.shop.rt.info("order-1009").goal is None


def test_a_committed_run_is_taken_back_only_if_what_stays_is_accepted() -> None:
    with served() as site:
        olga = site.browse()
        plan = plan_of(olga, "order-1001")
        refused = site.send(olga, "/runs/order-1001/rollback", plan=plan["hash"], why="fraud", confirmed="yes")
        assert (refused.status_code, "would stay" in refused.text) == (400, True)
        accepts = {f"accept.{one['call']}": "yes" for one in plan["must_accept"]}
        done = site.send(olga, "/runs/order-1001/rollback", plan=plan["hash"], why="fraud", confirmed="yes", **accepts)
        assert done.status_code == 303
        assert site.shop.rt.info("order-1001").state == "abandoned"
        assert "2 effects left standing, as accepted" in olga.get("/runs/order-1001").text


def test_who_may_only_look_sees_the_plan_and_cannot_carry_it_out() -> None:
    with served() as site:
        for scope in ("viewer", "approver"):
            vera = site.browse(scope, name="vera")
            page = vera.get("/runs/order-1010/rollback")
            assert (page.status_code, 'name="plan"' in page.text) == (200, False)
            hash = plan_of(vera, "order-1010")["hash"]
            refused = site.send(vera, "/runs/order-1010/rollback", plan=hash, why="x", confirmed="yes")
            assert refused.status_code == 403
        assert site.shop.rt.info("order-1010").goal is None


@pytest.mark.parametrize(
    "run, why",
    [
        ("order-1013", "its pivot has passed"),
        ("order-1002", "The run is rolled back"),
        ("order-1011", "The run is abandoned"),
        ("trip-7%2Fout", "This is a child run"),
    ],
)
def test_a_run_that_cannot_be_taken_back_says_why(site: Site, run: str, why: str) -> None:
    olga = site.browse()
    answer = olga.get(f"/runs/{run}/rollback")
    assert (answer.status_code, why in answer.text, 'name="plan"' in answer.text) == (200, True, False)


def test_a_run_with_very_many_calls_is_planned_elsewhere(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    monkeypatch.setattr(rollback_page, "PLAN_CALLS_MAX", 1)
    found = site.browse().get("/runs/order-1001/rollback.json").json()
    assert (found["plan"], found["command"]) == (None, "amends rollback order-1001 --plan")


def test_an_encrypted_ledger_is_planned_and_rolled_back_too() -> None:
    pytest.importorskip("cryptography")
    with served(Shop(encrypt="k" * 43)) as site:
        olga = site.browse()
        hash = plan_of(olga, "order-1010")["hash"]
        done = site.send(olga, "/runs/order-1010/rollback", plan=hash, why="changed their mind", confirmed="yes")
        assert (done.status_code, site.shop.rt.info("order-1010").state) == (303, "rolled_back")


def test_a_slow_rollback_is_answered_while_it_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "UNDER_WAY_S", 0.05)
    go, seen = threading.Event(), threading.Event()
    shop = Shop(fill=False, budgets=[])

    @tool
    def rent(n: int) -> int:
        return n

    @rent.compensate
    def give_back(n: int) -> None:
        seen.set()
        assert go.wait(10)

    rt = Runtime("memory:", tools=[rent])
    run = rt.open("slow")
    run.call(rent, n=1)
    run.release()
    shop.rt.close()
    shop.rt = rt
    with served(shop) as site:
        olga = site.browse()
        done = site.send(olga, "/runs/slow/rollback", plan=plan_of(olga, "slow")["hash"], why="x", confirmed="yes")
        assert done.status_code == 303
        assert seen.wait(10)
        page = olga.get("/runs/slow")
        assert "The rollback of slow is under way." in page.text
        assert olga.get("/runs/slow.json").json()["run"]["state"] == "rolling_back"
        assert olga.get("/runs/slow/rollback").status_code == 200
        go.set()
        until = time.monotonic() + 10
        while rt.info("slow").state != "rolled_back":
            assert time.monotonic() < until
            time.sleep(0.01)


def test_an_async_runtime_is_served_too() -> None:
    async def made() -> AsyncRuntime:
        @tool
        async def one(x: str) -> str:
            return x

        @one.compensate
        async def undo(x: str) -> None: ...

        rt = AsyncRuntime("memory:", tools=[one])
        run = await rt.open("r", recover="wait")
        await run.call(one, x="a")
        await run.release()
        return rt

    from starlette.testclient import TestClient

    rt = asyncio.run(made())
    service = app(rt, secrets=SECRET, worker=False, limits=Limits(requests_per_s=10_000))
    with TestClient(service) as client:
        site = Site(Shop(fill=False), service, client)
        olga = site.browse()
        assert olga.get("/runs/r").status_code == 200
        hash = plan_of(olga, "r")["hash"]
        assert site.send(olga, "/runs/r/rollback", plan=hash, why="x", confirmed="yes").status_code == 303
        assert olga.get("/runs/r.json").json()["run"]["state"] == "rolled_back"
        site.shop.close()
