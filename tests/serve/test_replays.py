"""Replaying recorded runs against an agent of the server, over HTTP: no tool runs, and the first difference is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends import AsyncRuntime, Runtime
from amends.client import Client
from amends.serve import app, replays
from tests.serve.shop import SECRET, World, access, as_, tools_of

COLOURS = [Runtime, AsyncRuntime]


class Shop:
    """A service whose agent charges for as much as it is told to."""

    def __init__(self, client: TestClient, world: World) -> None:
        self.client, self.world, self.cents = client, world, 5
        self.release = threading.Event()

    def start(self, id: str, token: str = "agent") -> None:
        answer = self.client.post("/v1/agents/shopper/start", json={"id": id, "wait": 10}, headers=as_(token))
        assert answer.status_code == 200, answer.text

    def replay(self, *runs: str, token: str = "operator", **said: Any) -> Any:
        sent = {"runs": list(runs), **said}
        answer = self.client.post("/v1/agents/shopper/replay", json=sent, headers=as_(token))
        assert answer.status_code == 202, answer.text
        until = time.monotonic() + 10
        while (found := self.client.get(answer.headers["location"], headers=as_(token)).json())["state"] == "running":
            assert time.monotonic() < until
        return found

    def events(self) -> int:
        return len(self.client.get("/v1/events", params={"limit": 200}, headers=as_("operator")).json()["items"])


@contextmanager
def served(colour: type = Runtime) -> Iterator[Shop]:
    world = World()
    made: list[Shop] = []

    def clerk(run: Any) -> Any:
        if run.input == "hangs" and made[0].cents == 0:
            made[0].release.wait(10)
        return run.answer("charge", {"order": run.id, "cents": made[0].cents}).value

    async def clerk_async(run: Any) -> Any:
        return (await run.answer("charge", {"order": run.id, "cents": made[0].cents})).value

    agents = {"shopper": clerk if colour is Runtime else clerk_async}
    rt = colour("memory:", tools=tools_of(world), agents=agents, lease=5.0, wait=2.0)
    with TestClient(app(rt, access=access, secrets=SECRET, worker=False)) as client:
        made.append(Shop(client, world))
        yield made[0]
        made[0].release.set()


@pytest.mark.parametrize("colour", COLOURS)
def test_an_agent_that_does_the_same_today_is_told_so_and_nothing_runs_or_is_written(colour: type) -> None:
    with served(colour) as shop:
        shop.start("order-1")
        charged, events = dict(shop.world.charges), shop.events()
        found = shop.replay("order-1")
        assert (found["what"], found["state"], found["runs"]) == ("replay_each", "done", 1)
        [one] = found["result"]["replayed"]
        assert (one["run_id"], one["same"], one["how"], one["calls"], one["of"]) == ("order-1", True, "same", 1, 1)
        assert (dict(shop.world.charges), shop.events()) == (charged, events)


@pytest.mark.parametrize("colour", COLOURS)
def test_the_first_difference_names_the_recorded_call_and_both_values(colour: type) -> None:
    with served(colour) as shop:
        shop.start("order-1")
        charged = dict(shop.world.charges)
        shop.cents = 7
        [one] = shop.replay("order-1")["result"]["replayed"]
        [call] = shop.client.get("/v1/runs/order-1/report", headers=as_("operator")).json()["calls"]
        assert (one["same"], one["how"], one["call_id"]) == (False, "arguments", call["id"])
        assert one["diff"] == {"cents": ["5", "7"]}
        assert dict(shop.world.charges) == charged


def test_a_run_that_is_not_there_is_unreadable_and_the_others_are_replayed() -> None:
    with served() as shop:
        shop.start("order-1")
        found = shop.replay("order-0", "order-1")["result"]["replayed"]
        assert [(one["run_id"], one["how"]) for one in found] == [("order-0", "unreadable"), ("order-1", "same")]


def test_a_run_of_another_tenant_is_not_there() -> None:
    with served() as shop:
        shop.start("order-1")
        [one] = shop.replay("order-1", token="other-operator")["result"]["replayed"]
        assert (one["how"], one["of"]) == ("unreadable", 0)


def test_an_agent_that_is_not_there_is_404_and_names_those_that_are() -> None:
    with served() as shop:
        answer = shop.client.post("/v1/agents/shoper/replay", json={"runs": ["x"]}, headers=as_("operator"))
        assert (answer.status_code, answer.json()["code"]) == (404, "AgentNotFound")
        assert "shopper" in answer.json()["detail"]


def test_a_program_that_waits_forever_ends_the_work_with_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "REPLAY_S_MAX", 0.05)
    with served() as shop:
        sent = {"id": "order-1", "input": "hangs", "wait": 10}
        assert shop.client.post("/v1/agents/shopper/start", json=sent, headers=as_("agent")).status_code == 200
        shop.cents = 0
        found = shop.replay("order-1")
        assert (found["state"], found["problem"]["code"]) == ("failed", "TooSlow")


def test_the_client_has_the_name_and_the_record_of_the_runtime() -> None:
    with served() as shop:
        shop.start("order-1")
        shop.cents = 7
        client = Client("http://testserver", token="operator", http=shop.client)
        [one] = client.replay_each(["order-1"], "shopper")
        assert (one.run_id, one.same, one.how, one.diff) == ("order-1", False, "arguments", {"cents": ("5", "7")})
