"""The runs that a server has for its clients: none is kept for ever, none is lost, and nothing grows without end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRun, Runtime
from amends.errors import LedgerUnavailable
from amends.serve import Limits
from tests.serve.shop import as_, served

BOT = as_("agent")
CHARGE = {"tool": "charge", "args": {"order": "1", "cents": 5}}


def until(is_so: Callable[[], object], *, s_max: float = 10.0) -> None:
    """Wait for what another task does."""
    end = time.monotonic() + s_max
    while not is_so():
        assert time.monotonic() < end, "it did not come to this in time"


class Unreachable:
    """A ledger that takes no release of a run while ``is_away``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away, self.refused = True, 0
        release = AsyncRun.release

        async def or_not(run: AsyncRun, **given: Any) -> None:
            if self.is_away:
                self.refused += 1
                raise LedgerUnavailable("the ledger does not answer")
            await release(run, **given)

        monkeypatch.setattr(AsyncRun, "release", or_not)


def test_a_run_that_could_not_be_let_go_is_let_go_when_the_ledger_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Unreachable(monkeypatch)
    with served() as (client, service, world):
        client.post("/v1/runs", json={"id": "r", "client_lease": 0.3}, headers=BOT)
        client.post("/v1/runs/r/calls", json=CHARGE, headers=BOT)
        until(lambda: ledger.refused > 1)  # it is tried again
        assert (len(service.sessions), world.charges) == (0, {"1": 5})
        ledger.is_away = False
        until(lambda: client.get("/v1/runs/r", headers=BOT).json()["state"] == "rolled_back")
        assert world.charges == {}


def test_a_client_goes_on_with_a_run_that_could_not_be_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Unreachable(monkeypatch)
    with served(worker=False, wait=0.1) as (client, _, _world):
        client.post("/v1/runs", json={"id": "r", "client_lease": 0.3}, headers=BOT)
        client.post("/v1/runs/r/calls", json=CHARGE, headers=BOT)
        until(lambda: ledger.refused)
        found = client.post("/v1/runs/r/commit", headers=BOT)
        assert (found.status_code, found.json()["code"], found.headers["retry-after"]) == (
            503,
            "LedgerUnavailable",
            "1",
        )
        ledger.is_away = False
        assert client.post("/v1/runs/r/commit", headers=BOT).json()["run"]["state"] == "committed"


def test_a_client_that_begins_again_while_the_ledger_is_away_does_not_lose_its_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = Unreachable(monkeypatch)
    with served(worker=False, wait=0.1) as (client, service, _world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        client.post("/v1/runs/r/calls", json=CHARGE, headers=BOT)
        assert client.post("/v1/runs", json={"id": "r"}, headers=BOT).status_code == 503
        ledger.is_away = False
        again = client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        assert (again.status_code, again.json()["resumed"], len(service.sessions)) == (200, True, 1)
        assert client.post("/v1/runs/r/commit", headers=BOT).json()["run"]["state"] == "committed"


def test_children_that_have_ended_are_forgotten() -> None:
    with served(worker=False) as (client, service, _world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        for name in ("a", "b", "c"):
            assert client.post("/v1/runs/r/children", json={"id": name}, headers=BOT).status_code == 201
        client.post("/v1/runs/r%2Fa/commit", headers=BOT)
        client.post("/v1/runs/r%2Fb/rollback", json={"why": "x"}, headers=BOT)
        session = service.sessions.found("", "r")
        assert session is not None
        assert list(session.children) == ["r/c"]


def test_a_run_has_no_more_claims_under_way_than_the_limit_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.serve.claims.CLAIMS_MAX", 2)
    with served(worker=False) as (client, service, _world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)

        def claimed(number: int) -> Any:
            return client.post(
                "/v1/runs/r/claims", json={"tool": "look", "kind": "read", "args": {"n": number}}, headers=BOT
            )

        claims = [claimed(number).json() for number in range(2)]
        refused = claimed(2)
        assert (refused.status_code, refused.json()["code"], refused.headers["retry-after"]) == (429, "TooMany", "1")
        assert len(client.get("/v1/runs/r/report", headers=BOT).json()["calls"]) == 2
        client.post(f"/v1/claims/{claims[0]['call']}/succeed", json={"token": claims[0]["token"]}, headers=BOT)
        assert claimed(2).status_code == 201
        session = service.sessions.found("", "r")
        assert session is not None
        assert len(session.claims) == 2


def test_no_client_waits_longer_for_a_run_of_another_owner_than_the_limit_says(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, lease=5.0) as program, served(url, worker=False, limits=Limits(answer_s_max=0.3)) as (client, *_):
        with program.run("p", principal="bot", agent="shopper"):
            begun = time.monotonic()
            found = client.post("/v1/runs", json={"id": "p", "wait": 30}, headers=BOT)
            assert (found.status_code, found.json()["code"], found.headers["retry-after"]) == (409, "Busy", "1")
            assert time.monotonic() - begun < 10
        until(lambda: client.post("/v1/runs", json={"id": "p"}, headers=BOT).status_code == 200)
