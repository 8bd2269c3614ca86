"""Calls that the client makes itself: claims, with a work lease and a signed token."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from amends import Budget
from amends.serve import Limits
from tests.serve.shop import as_, served

BOT = as_("agent")
CHARGE = {"tool": "charge", "args": {"order": "1", "cents": 5}}


def post(client: Any, path: str, body: dict[str, Any], token: str = "agent") -> Any:
    return client.post(path, json=body, headers=as_(token))


def test_a_claim_gives_key_and_token_and_its_report_ends_it() -> None:
    with served() as (client, _, world):
        post(client, "/v1/runs", {"id": "r"})
        claimed = post(client, "/v1/runs/r/claims", CHARGE)
        claim = claimed.json()
        assert (claimed.status_code, claim["attempt"], claim["replayed"], claim["lease"]) == (201, 1, False, 60.0)
        at = f"/v1/claims/{claim['call']}"
        assert post(client, f"{at}/renew", {"token": claim["token"]}).json()["lease"] == 60.0
        for replayed in (None, "true"):
            done = post(client, f"{at}/succeed", {"token": claim["token"], "result": "ch_9"})
            assert (done.status_code, done.json()["state"]) == (200, "succeeded")
            assert done.headers.get("idempotent-replayed") == replayed
        other = post(client, f"{at}/succeed", {"token": claim["token"], "result": "ch_8"})
        assert (other.status_code, other.json()["code"]) == (409, "ReportConflict")
        again = post(client, "/v1/runs/r/claims", CHARGE)
        assert (again.status_code, again.json()["result"], again.json()["token"]) == (200, "ch_9", None)
        assert again.headers["idempotent-replayed"] == "true"
        assert post(client, "/v1/runs/r/commit", {}).json()["run"]["state"] == "committed"
        assert world.charges == {}  # the client made it, not the server


def test_a_report_tells_what_the_call_really_cost() -> None:
    with served(budgets=[Budget(1), Budget(9_000, unit="tokens")]) as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"})
        claim = post(client, "/v1/runs/r/claims", CHARGE | {"cost": 0.5}).json()
        at, said = f"/v1/claims/{claim['call']}", {"token": claim["token"], "result": "ch_9"}
        for wrong in ({"usd": -1}, {"": 1}, {" ": 1}, {"x" * 65: 1}, {"usd": "1"}, {str(n): 1 for n in range(21)}, 3):
            refused = post(client, f"{at}/succeed", said | {"spent": wrong})
            assert (refused.status_code, refused.json()["code"]) == (422, "Invalid")
        for replayed in (None, "true"):
            done = post(client, f"{at}/succeed", said | {"spent": {"USD": 0.02, "tokens": 1_300}})
            assert (done.status_code, done.headers.get("idempotent-replayed")) == (200, replayed)
        other = post(client, f"{at}/succeed", said | {"spent": {"usd": 0.03}})
        assert (other.status_code, other.json()["code"]) == (409, "ReportConflict")
        costs = client.get("/v1/costs", headers=as_("viewer")).json()["items"]
        assert {one["unit"]: one["spent"] for one in costs} == {"usd": "0.02", "tokens": "1300"}
        failed = post(client, "/v1/runs/r/claims", {"tool": "charge", "args": {"order": "7", "cents": 5}}).json()
        body = {"token": failed["token"], "error": "no", "no_effect": True, "spent": {"tokens": 200}}
        assert post(client, f"/v1/claims/{failed['call']}/fail", body).json()["state"] == "failed"
        costs = client.get("/v1/costs", headers=as_("viewer")).json()["items"]
        assert {one["unit"]: one["spent"] for one in costs} == {"usd": "0.02", "tokens": "1500"}


@pytest.mark.parametrize(
    "report, state",
    [({"no_effect": True}, "failed"), ({"doubt": True}, "in_doubt"), ({}, "failed")],
)
def test_a_failed_claim_is_judged_as_a_body_is(report: dict[str, bool], state: str) -> None:
    with served() as (client, _, _world):
        post(client, "/v1/runs", {"id": "r", "wait": 0.2})
        claim = post(client, "/v1/runs/r/claims", {"tool": "ship", "kind": "pivot", "args": {"x": 1}}).json()
        said = {"token": claim["token"], "error": "it broke"} | report
        done = post(client, f"/v1/claims/{claim['call']}/fail", said)
        assert (done.status_code, done.json()["state"]) == (200, state)


def test_silence_is_doubt_and_a_late_report_settles_it() -> None:
    with served() as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"})
        claim = post(client, "/v1/runs/r/claims", {"tool": "ship", "kind": "pivot", "lease": 0.05}).json()
        at = f"/v1/claims/{claim['call']}"
        until = time.monotonic() + 10
        while client.get("/v1/runs/r/report", headers=BOT).json()["calls"][0]["state"] != "in_doubt":
            assert time.monotonic() < until
        late = post(client, f"{at}/renew", {"token": claim["token"]})
        assert (late.status_code, late.json()["code"]) == (409, "LeaseLost")
        done = post(client, f"{at}/succeed", {"token": claim["token"], "result": "sent"})
        assert (done.status_code, done.json()["state"]) == (200, "succeeded")


def test_a_token_is_good_for_its_own_call_only() -> None:
    with served() as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"})
        one = post(client, "/v1/runs/r/claims", CHARGE).json()
        two = post(client, "/v1/runs/r/claims", {"tool": "charge", "args": {"order": "2", "cents": 5}}).json()
        for call, token, who in (
            (two["call"], one["token"], "agent"),
            (one["call"], one["token"], "other-agent"),
            (one["call"], one["token"][:-2] + "AA", "agent"),
            (one["call"], "x", "agent"),
            (one["call"], "ü.ü", "agent"),
        ):
            found = post(client, f"/v1/claims/{call}/succeed", {"token": token}, who)
            assert (found.status_code, found.json()["code"]) == (404, "CallNotFound")
        assert post(client, f"/v1/claims/{one['call']}/succeed", {"token": one["token"]}, "viewer").status_code == 403


def test_a_claim_that_needs_a_person_is_202() -> None:
    with served() as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"})
        asked = post(client, "/v1/runs/r/claims", {"tool": "wire", "args": {"order": "1", "cents": 5}})
        assert (asked.status_code, asked.json()["waits"]) == (202, True)
        assert asked.headers["location"].startswith("/v1/approvals/")


def test_the_same_claim_in_progress_is_409_with_retry_after() -> None:
    with served(wait=0.05) as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"})
        post(client, "/v1/runs/r/claims", CHARGE)
        second = post(client, "/v1/runs/r/claims", CHARGE)
        assert (second.status_code, second.json()["code"]) == (409, "Busy")
        assert int(second.headers["retry-after"]) >= 1


def test_a_run_whose_client_is_silent_is_taken_back() -> None:
    with served(lease=0.3, limits=Limits(client_lease_s=0.2)) as (client, _, world):
        post(client, "/v1/runs", {"id": "r"})
        post(client, "/v1/runs/r/calls", CHARGE)
        until = time.monotonic() + 15
        while client.get("/v1/runs/r", headers=BOT).json()["state"] != "rolled_back":
            assert time.monotonic() < until
            time.sleep(0.05)
        assert world.charges == {}
        ended = post(client, "/v1/runs/r/calls", CHARGE)
        assert (ended.status_code, ended.json()["code"]) == (409, "RunEnded")


def test_a_report_to_a_server_that_started_later_settles_the_doubt(tmp_path: Any) -> None:
    url, old, new = f"sqlite:///{tmp_path}/l.db", "o" * 40, "n" * 40
    with served(url, secrets=[old], lease=0.3) as (client, _, _world):
        post(client, "/v1/runs", {"id": "r", "client_lease": 60, "recover": "wait"})
        claim = post(client, "/v1/runs/r/claims", {"tool": "ship", "kind": "pivot", "lease": 60}).json()
    with served(url, secrets=[new, old], lease=0.3) as (client, _, _world):
        at = f"/v1/claims/{claim['call']}"
        for _ in range(2):
            done = post(client, f"{at}/succeed", {"token": claim["token"], "result": "sent"})
            assert (done.status_code, done.json()["state"]) == (200, "succeeded"), done.text
        other = post(client, f"{at}/fail", {"token": claim["token"], "error": "no", "no_effect": True})
        assert (other.status_code, other.json()["code"]) == (409, "ReportConflict")
        assert post(client, f"{at}/renew", {"token": claim["token"]}).json()["code"] == "LeaseLost"


CLAIM_AND_DIE = """
import json, os, signal, sys
from tests.serve.shop import as_, served

with served(sys.argv[1], lease=30.0) as (client, _, _world):
    client.post("/v1/runs", json={"id": "r"}, headers=as_("agent"))
    claim = client.post(
        "/v1/runs/r/claims", json={"tool": "charge", "args": {"order": "1", "cents": 5}}, headers=as_("agent")
    )
    print(json.dumps(claim.json()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_report_after_kill_9_of_the_server_settles_the_call_before_the_client_goes_on(tmp_path: Path) -> None:
    """Else its next call that cannot be undone is refused: nobody would settle a call that the client has reported."""
    url, root = f"sqlite:///{tmp_path}/l.db", Path(__file__).resolve().parents[2]
    died = subprocess.run(
        [sys.executable, "-c", CLAIM_AND_DIE, url], cwd=root, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    claim = json.loads(died.stdout)
    with served(url) as (client, _, _world):
        for _ in range(2):
            said = {"token": claim["token"], "result": "ch_1"}
            done = post(client, f"/v1/claims/{claim['call']}/succeed", said)
            assert (done.status_code, done.json()["state"]) == (200, "succeeded")
        last = post(client, "/v1/runs/r/claims", {"tool": "ship", "kind": "pivot", "args": {"x": 1}})
        assert last.status_code == 201, last.text
