"""Agents that live in the server, and the jobs of operators."""

import json
import threading
import time
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime
from tests.serve.shop import as_, served

BOT, EVE = as_("agent"), as_("everywhere")


def start(client: Any, body: dict[str, Any], agent: str = "shopper", headers: dict[str, str] = BOT) -> Any:
    return client.post(f"/v1/agents/{agent}/start", json=body, headers=headers)


@pytest.mark.parametrize("colour", [Runtime, AsyncRuntime])
def test_an_agent_of_the_server_does_a_piece_of_work_once(colour: type) -> None:
    with served(colour=colour) as (client, _, world):
        done = start(client, {"id": "o", "wait": 10})
        assert (done.status_code, done.json(), done.headers["location"]) == (200, {"id": "o"}, "/v1/runs/o")
        again = start(client, {"id": "o", "wait": 10})
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        report = client.get("/v1/runs/o/report", headers=BOT).json()
        assert (report["run"]["output"], report["run"]["agent"], report["run"]["principal"]) == (
            "ch_o",
            "shopper",
            "bot",
        )
        assert world.charges == {"o": 5}
        other = start(client, {"id": "o", "input": "other"})
        assert (other.status_code, other.json()["code"]) == (422, "RunConflict")


def test_an_agent_that_takes_longer_goes_on_and_is_not_started_twice() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(run: Any) -> Any:
        begun.set()
        assert go_on.wait(10)
        return run.answer("charge", {"order": run.id, "cents": 5}).value

    with served() as (client, service, world):
        service.rt._host.add_agents({"slow": slow})
        plain = as_("agent-plain")
        for _ in range(2):
            waits = start(client, {"id": "o", "wait": 0.05}, "slow", plain)
            assert (waits.status_code, waits.headers["retry-after"]) == (202, "1")
        assert begun.is_set()
        go_on.set()
        assert start(client, {"id": "o", "wait": 10}, "slow", plain).status_code == 200
        assert world.charges == {"o": 5}


def test_other_work_for_an_agent_that_still_works_on_this_run_is_a_conflict() -> None:
    go_on = threading.Event()

    def slow(run: Any) -> Any:
        assert go_on.wait(10)
        return run.input

    with served() as (client, service, _world):
        service.rt._host.add_agents({"slow": slow, "other": slow})
        plain = as_("agent-plain")
        assert start(client, {"id": "o", "input": "a", "wait": 0.05}, "slow", plain).status_code == 202
        assert start(client, {"id": "o", "wait": 0.05}, "slow", plain).status_code == 202
        for body, agent in (({"input": "b"}, "slow"), ({"input": "a"}, "other")):
            found = start(client, {"id": "o", "wait": 0.05} | body, agent, plain)
            assert (found.status_code, found.json()["code"]) == (422, "RunConflict")
        go_on.set()
        assert start(client, {"id": "o", "input": "a", "wait": 10}, "slow", plain).status_code == 200
        assert client.get("/v1/runs/o", headers=plain).json()["output"] == "a"


def test_what_is_wrong_with_a_start_is_said() -> None:
    with served() as (client, _, world):
        assert start(client, {}).json()["code"] == "KeyMissing"
        unknown = start(client, {"id": "o"}, "nobody", as_("agent-plain"))
        assert (unknown.status_code, unknown.json()["code"]) == (404, "AgentNotFound")
        assert start(client, {"id": "o"}, "shopper", as_("agent2")).json()["code"] == "Forbidden"
        client.post("/v1/runs", json={"id": "theirs"}, headers=as_("agent2"))
        assert start(client, {"id": "theirs"}).status_code == 404
        failed = start(client, {"id": "bad", "input": "fails", "wait": 10})
        assert (failed.status_code, failed.json()["code"], failed.json()["state"]) == (409, "RunEnded", "rolled_back")
        assert world.charges == {}


def test_long_work_that_fails_is_in_the_log_and_its_words_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("row 7 is broken")

    monkeypatch.setattr(AsyncRuntime, "gc", fails)
    with served(worker=False) as (client, _, _world):
        at = client.post("/v1/gc", json={"older_than": 0}, headers=EVE).headers["location"]
        until = time.monotonic() + 10
        while (job := client.get(at, headers=EVE).json())["state"] == "running":
            assert time.monotonic() < until
        assert (job["state"], job["problem"]["code"], "row 7" in str(job)) == ("failed", "Internal", False)
    assert "row 7 is broken" in caplog.text


def test_settings_show_no_secret_and_jobs_tell_their_end() -> None:
    with served(worker=False) as (client, service, _):
        found = client.get("/v1/settings", headers=EVE).json()
        assert set(found["settings"]) == set(service.rt.settings)
        assert client.get("/v1/settings", headers=as_("operator")).status_code == 403
        for path, body, state, what in (
            ("gc", {"older_than": 0, "dry_run": True}, "done", "dry_run"),
            ("recover", {}, "done", "runs"),
            ("reencrypt", {}, "failed", ""),
        ):
            at = client.post(f"/v1/{path}", json=body, headers=EVE).headers["location"]
            until = time.monotonic() + 10
            while (job := client.get(at, headers=EVE).json())["state"] == "running":
                assert time.monotonic() < until
            assert (job["what"], job["state"], what in (job["result"] or {"": 0})) == (path, state, True)
        assert job["problem"]["code"] == "UsageError"
        assert client.post("/v1/audit/checkpoint", json={"why": "a copy"}, headers=EVE).status_code == 201
        events = client.get("/v1/events", headers=EVE).json()["items"]
        ordered = [(one["by"], one["facts"].get("why"), json.loads(one["facts"]["words"])) for one in events]
        assert ordered == [
            ("eve", None, {"what": "gc", "older_than": 0.0, "dry_run": True}),
            ("eve", None, {"what": "recover"}),
            ("eve", None, {"what": "reencrypt"}),
            ("eve", "a copy", {"what": "checkpoint"}),
        ]
        assert client.post("/v1/recover", json={"by": "ann"}, headers=EVE).status_code == 422
        for wrong in ({"older_than": "soon"}, {"older_than": -1}, {}, {"older_than": 1, "limit": 0}):
            assert client.post("/v1/gc", json=wrong, headers=EVE).status_code == 422
        assert client.get(at, headers=as_("operator")).status_code == 404
