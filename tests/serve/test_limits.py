"""Limits, health and metrics."""

import asyncio
from typing import Any

import pytest

from amends import AsyncRuntime
from amends.errors import LedgerUnavailable
from amends.serve import Limits, app
from tests.serve.shop import SECRET, access, as_, served

BOT, VERA, EVE = as_("agent"), as_("viewer"), as_("everywhere")


async def asked(service: Any, messages: list[dict[str, Any]], *, method: str = "POST", path: str = "/v1/runs") -> int:
    """Send one request as these ASGI messages; after them, nothing comes."""
    headers = [(name.lower().encode(), value.encode()) for name, value in BOT.items()]
    headers.append((b"content-type", b"application/json"))
    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "headers": headers}
    scope |= {"query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http", "server": ("x", 80)}
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await service(scope, receive, send)
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    "messages, status",
    [
        ([{"type": "http.request", "body": b'{"id": ', "more_body": True}], 408),
        ([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}], 400),
        ([{"type": "http.request", "body": b"x" * 700, "more_body": True} for _ in range(2)], 413),
    ],
)
def test_half_and_slow_and_endless_bodies_are_4xx_and_nothing_is_opened(messages: Any, status: int) -> None:
    async def main() -> None:
        rt = AsyncRuntime("memory:")
        service = app(
            rt, access=access, secrets=SECRET, limits=Limits(body_s_max=0.05, body_bytes_max=1_000), worker=False
        )
        assert await asked(service, messages) == status
        assert [one async for one in rt.runs()] == []
        await service.close()
        await rt.close()

    asyncio.run(main())


def test_a_token_that_asks_too_fast_is_told_when_to_try_again() -> None:
    with served(worker=False, limits=Limits(requests_per_s=1.0)) as (client, _, _world):
        found = [client.get("/v1/tools", headers=VERA) for _ in range(4)]
        assert [one.status_code for one in found] == [200, 200, 429, 429]
        assert (found[-1].json()["code"], found[-1].headers["retry-after"]) == ("TooMany", "1")
        assert client.get("/v1/tools", headers=BOT).status_code == 200


def test_no_more_runs_are_opened_than_the_limit_says() -> None:
    with served(worker=False, limits=Limits(runs_max=1)) as (client, _, _world):
        assert client.post("/v1/runs", json={"id": "a"}, headers=BOT).status_code == 201
        assert client.post("/v1/runs", json={"id": "b"}, headers=BOT).json()["code"] == "TooMany"
        client.post("/v1/runs/a/commit", headers=BOT)
        assert client.post("/v1/runs", json={"id": "b"}, headers=BOT).status_code == 201


def test_a_page_and_a_client_lease_are_as_long_as_the_limits_say() -> None:
    with served(worker=False, limits=Limits(page_max=2, client_lease_s_max=10.0)) as (client, _, _world):
        for number in range(3):
            assert (
                client.post("/v1/runs", json={"id": f"r{number}", "client_lease": 10}, headers=BOT).status_code == 201
            )
        page = client.get("/v1/runs", headers=BOT).json()
        assert [one["id"] for one in page["items"]] == ["r2", "r1"]
        more = client.get("/v1/runs", params={"limit": 2, "after": page["next"]}, headers=BOT).json()
        assert ([one["id"] for one in more["items"]], more["next"]) == (["r0"], None)
        for found in (
            client.get("/v1/runs", params={"limit": 3}, headers=BOT),
            client.post("/v1/runs", json={"id": "long", "client_lease": 11}, headers=BOT),
        ):
            assert (found.status_code, found.json()["code"]) == (422, "Invalid")
        assert client.get("/v1/runs/long", headers=BOT).status_code == 404


def test_a_call_that_takes_long_is_409_and_its_repeat_gets_the_result() -> None:
    import threading

    from starlette.testclient import TestClient

    from amends import Runtime, tool

    go = threading.Event()

    @tool(kind="pivot")
    def slow() -> str:
        go.wait(10)
        return "done"

    service = app(
        Runtime("memory:", tools=[slow]), access=access, secrets=SECRET, limits=Limits(answer_s_max=0.1), worker=False
    )
    with TestClient(service) as client:
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        first = client.post("/v1/runs/r/calls", json={"tool": "slow"}, headers=BOT)
        assert (first.status_code, first.json()["code"], first.headers["retry-after"]) == (409, "Busy", "1")
        go.set()
        while (found := client.post("/v1/runs/r/calls", json={"tool": "slow"}, headers=BOT)).status_code == 409:
            pass
        assert (found.json()["value"], found.json()["call"]["attempt"]) == ("done", 1)


def test_a_ledger_that_does_not_answer_is_503_and_the_process_is_still_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise LedgerUnavailable("the ledger does not answer")

    with served(worker=False) as (client, _, _world):
        monkeypatch.setattr(AsyncRuntime, "info", fails)
        monkeypatch.setattr(AsyncRuntime, "newest_event", fails)
        found = client.get("/v1/runs/r", headers=BOT)
        assert (found.status_code, found.json()["code"], found.headers["retry-after"]) == (
            503,
            "LedgerUnavailable",
            "1",
        )
        ready = client.get("/ready")
        assert (ready.status_code, ready.json()["ledger"]) == (503, "LedgerUnavailable")
        assert client.get("/health").status_code == 200


def test_an_error_of_the_service_itself_is_500_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    with served(worker=False) as (client, _, _world):
        monkeypatch.setattr(AsyncRuntime, "info", fails)
        found = client.get("/v1/runs/r", headers=BOT)
        assert (found.status_code, found.json()["code"], "secret" in found.text) == (500, "Internal", False)


def test_a_read_only_service_changes_nothing() -> None:
    with served(read_only=True) as (client, _, _world):
        assert client.post("/v1/runs", json={"id": "r"}, headers=BOT).status_code == 403
        assert client.get("/v1/runs", headers=BOT).status_code == 200


def test_metrics_are_those_of_the_runtime_and_of_the_service() -> None:
    with served(worker=False, metrics=True) as (client, _, _world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        client.post("/v1/runs/r/calls", json={"tool": "charge", "args": {"order": "1", "cents": 5}}, headers=BOT)
        found = client.get("/metrics", headers=VERA)
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = found.text.splitlines()
        assert "amends_serve_runs 1" in lines
        assert any(one.startswith('amends_calls_total{amends_tool="charge"') and one.endswith(" 1") for one in lines)
        assert 'amends_serve_duration_seconds_count{route="/v1/runs",status="201"} 1' in lines
        assert client.get("/metrics").status_code == 401
        # They count what every tenant does, by the names of its tools.
        theirs = client.get("/metrics", headers=as_("other-viewer"))
        assert (theirs.status_code, theirs.json()["code"], "charge" in theirs.text) == (403, "Forbidden", False)
        assert client.get("/metrics", headers=EVE).status_code == 200
    with served(worker=False) as (client, _, _world):
        text = client.get("/metrics", headers=VERA).text
        assert ("amends_serve_runs 0" in text, "amends_calls" in text) == (True, False)
