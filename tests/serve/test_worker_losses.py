"""Workers and servers that come and go: nothing is handed to nobody, and a run from before finds its tools again."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from amends import AsyncRuntime, Rule, Runtime
from amends.serve import Limits, app
from tests.serve.shop import SECRET, as_, served
from tests.serve.test_server import process
from tests.serve.test_workers import BOOK, WORKER, Later, call, desk, ok, open_run, register, report, take


def test_leaving_ends_the_requests_for_work() -> None:
    with served() as (client, service, _):
        worker = register(client)["id"]
        got: list[Any] = []
        asking = threading.Thread(target=lambda: got.append(take(client, worker, wait=30)))
        began = time.monotonic()
        asking.start()
        while time.monotonic() < began + 20 and not service.desk.workers(None)[0].asks:
            time.sleep(0.01)
        ok(client.delete(f"/v1/workers/{worker}", headers=WORKER))
        asking.join(30)
        assert got == [None]
        assert time.monotonic() - began < 20


def test_two_probes_of_one_attempt_are_two_pieces_of_work() -> None:
    with desk() as client:
        worker = register(client, {**BOOK, "lease": 30.0})["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)
        report(client, work, result=1)
        asked.done()
        probes = [Later(client, f"/v1/calls/{work['call']}/probe", {}, token="operator") for _ in range(2)]
        first, second = take(client, worker), take(client, worker)
        assert first["token"] != second["token"]
        report(client, first, result={"answer": "happened", "result": 1})
        report(client, second, result={"answer": "unknown", "why": "the bank is closed"})
        answers = sorted(one.done()["answer"] for one in probes)
        assert answers == ["happened", "unknown"]


def test_a_run_from_before_the_restart_waits_for_the_worker_of_its_tools(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with served(url, lease=0.5) as (client, _, _):
        worker = register(client)["id"]
        open_run(client)
        asked = call(client)
        report(client, take(client, worker), result={"room": 12})
        asked.done()
    with served(url, lease=0.5) as (client, _, _):
        back = Later(client, "/v1/runs/r1/rollback", {"why": "changed their mind"})
        time.sleep(0.3)  # a worker notices a restart a little later
        undo = take(client, register(client)["id"])
        assert (undo["phase"], undo["result"]) == ("compensate", {"room": 12})
        report(client, undo)
        assert back.done()["run"]["state"] == "rolled_back"


def test_a_tool_that_nobody_has_is_refused_when_the_time_for_workers_is_over(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    limits = Limits(workers_back_s_max=0.3)
    with served(url, lease=0.5, limits=limits) as (client, _, _):
        open_run(client)
        began = time.monotonic()
        assert call(client, tool="nothing").done()["status"] == "refused"  # a new run: at once
        assert time.monotonic() - began < 5
    with served(url, lease=0.5, limits=limits) as (client, _, _):
        assert call(client, tool="nothing").done()["status"] == "refused"


@pytest.mark.rest
def test_work_is_not_handed_to_a_connection_that_is_gone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    (tmp_path / "app.py").write_text(f"from amends import Runtime\nrt = Runtime({url!r})\n")
    with Runtime(url) as rt:
        made = {
            scope: rt.create_token(
                scope, scopes=scope, agent="shopper" if scope == "agent" else "", by="me", why="test"
            ).text
            for scope in ("agent", "worker")
        }
    agent, worker = ({"Authorization": f"Bearer {made[scope]}"} for scope in ("agent", "worker"))
    with process(tmp_path) as (_, said), httpx.Client(base_url=said["url"], timeout=60) as client:
        id = client.post("/v1/workers", headers=worker, json={"tools": [BOOK]}).json()["id"]
        body = json.dumps({"wait": 30}).encode()
        head = f"POST /v1/workers/{id}/take HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += f"Authorization: {worker['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
        gone = socket.create_connection((httpx.URL(said["url"]).host, httpx.URL(said["url"]).port or 0))
        gone.sendall(head.encode() + body)
        time.sleep(0.5)  # until the server waits for work
        gone.close()
        client.post("/v1/runs", headers=agent, json={"id": "r"})
        got: list[Any] = []

        def ask() -> None:
            said = {"tool": "book", "args": {"order": "7"}}
            got.append(httpx.post(f"{client.base_url}/v1/runs/r/calls", headers=agent, json=said, timeout=60).json())

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.5)  # until the work waits for a worker
        work = client.post(f"/v1/workers/{id}/take", headers=worker, json={"wait": 10}).json()["work"]
        assert work is not None
        assert work["phase"] == "execute"
        client.post(f"/v1/claims/{work['call']}/succeed", headers=worker, json={"token": work["token"], "result": 1})
        asking.join(60)
        assert got[0]["status"] == "done"


def test_a_new_run_on_a_server_that_has_just_started_waits_for_workers_if_there_are_any() -> None:
    """Its client may have come back before the workers: what they perform is known only from them."""
    with Runtime("memory:", lease=5.0) as rt:
        names = {"agent": "shopper", "worker": ""}
        texts = {
            scope: rt.create_token(scope, scopes=scope, agent=agent, by="me", why="x").text
            for scope, agent in names.items()
        }
        heads = {scope: {"Authorization": f"Bearer {text}"} for scope, text in texts.items()}
        with TestClient(app(rt, secrets=SECRET)) as client, ThreadPoolExecutor(1) as pool:
            assert client.post("/v1/runs", headers=heads["agent"], json={"id": "r"}).status_code == 201
            body = {"tool": "pack", "args": {}}
            asked = pool.submit(client.post, "/v1/runs/r/calls", headers=heads["agent"], json=body)
            time.sleep(0.2)
            assert not asked.done()
            declared = {"name": "pack", "kind": "read", "parameters": {"type": "object"}}
            made = client.post("/v1/workers", headers=heads["worker"], json={"tools": [declared]}).json()
            place = f"/v1/workers/{made['id']}/take"
            work = client.post(place, headers=heads["worker"], json={"wait": 10}).json()["work"]
            done = {"token": work["token"], "result": 1}
            client.post(f"/v1/claims/{work['call']}/succeed", headers=heads["worker"], json=done)
            assert asked.result(20).json()["value"] == 1


# ---- What only a worker's declaration says, and names that are free again

PAY: dict[str, Any] = {"name": "pay", "kind": "pivot", "parameters": {"type": "object"}, "needs_approval": True}
CLAIM = {"tool": "pay", "args": {}, "kind": "pivot"}
PLAN = {"plan": [{"tool": "pay", "args": {}}]}


def test_a_workers_tool_is_not_undeclared_before_its_worker_is_back(tmp_path: Path) -> None:
    """Else a restart of the server would let a claim start that needs approval."""
    url, agent = f"sqlite:///{tmp_path}/l.db", as_("agent")
    with served(url) as (client, _, _):
        register(client, PAY)
        open_run(client)
        assert client.post("/v1/runs/r1/claims", headers=agent, json=CLAIM).status_code == 202
    limits = Limits(workers_back_s_max=0.0)
    with served(url, limits=limits) as (client, service, _), served(url, limits=limits) as (beside, _, _):
        open_run(client)
        for run in ("r1", "r2"):  # also in a new run, and at another server
            open_run(client, run)
            refused = ok(client.post(f"/v1/runs/{run}/claims", headers=agent, json=CLAIM), 409)
            assert (refused["code"], refused["retry_after"]) == ("Busy", 5)
        assert ok(client.post("/v1/check", headers=agent, json=PLAN), 409)["code"] == "Busy"
        assert ok(beside.post("/v1/check", headers=agent, json=PLAN), 409)["code"] == "Busy"
        other = ok(client.post("/v1/check", headers=as_("other-agent"), json=PLAN))
        assert other["problems"]  # to another tenant it is unknown
        assert [call["state"] for call in ok(client.get("/v1/runs/r1/report", headers=agent))["calls"]] == ["held"]
        register(client, PAY)
        assert client.post("/v1/runs/r2/claims", headers=agent, json=CLAIM).status_code == 202
        assert ok(client.post("/v1/check", headers=agent, json=PLAN))["problems"] == []
        undeclared = {"tool": "wave", "args": {}, "kind": "pivot"}
        open_run(client, "r3")
        assert client.post("/v1/runs/r3/claims", headers=agent, json=undeclared).status_code == 201
        assert service.desk.workers(None)


def test_a_rule_asks_about_a_workers_tool_before_its_worker_has_ever_come() -> None:
    """Until then its name is one like any other, and a client that claims it says itself what it is."""
    agent = as_("agent")
    with served(rules=[Rule(tool="pay")]) as (client, _, _):
        open_run(client)
        held = ok(client.post("/v1/runs/r1/claims", headers=agent, json=CLAIM), 202)
        assert held["error"]["reason"] == "approval"
        open_run(client, "r2")
        assert client.post("/v1/runs/r2/claims", headers=agent, json=CLAIM | {"tool": "wave"}).status_code == 201


def test_a_claim_waits_for_a_worker_that_comes_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/l.db"
    with served(url) as (client, _, _):
        register(client, PAY)
    with served(url) as (client, _, _):
        open_run(client)
        asked = Later(client, "/v1/runs/r1/claims", CLAIM)
        time.sleep(0.2)
        register(client, PAY)
        assert asked.done(202)["waits"] is True


def test_a_registration_that_is_refused_reserves_nothing() -> None:
    with served() as (client, service, _):
        assert register(client, PAY, BOOK | {"name": "charge"}, status=409)["code"] == "Taken"
        open_run(client)
        assert client.post("/v1/runs/r1/claims", headers=as_("agent"), json=CLAIM).status_code == 201
        assert service.rt.kind_of("pay") is None


def test_a_name_is_free_again_when_its_workers_have_left_and_no_open_run_needs_it() -> None:
    there = {"name": "w2", "tools": [BOOK]}
    with desk() as client:
        worker = register(client)["id"]
        open_run(client)
        asked = call(client)
        report(client, take(client, worker), result=1)
        asked.done()

        def theirs(status: int) -> Any:
            return ok(client.post("/v1/workers", headers=as_("other-worker"), json=there), status)

        assert theirs(409)["code"] == "Taken"  # it is there
        ok(client.delete(f"/v1/workers/{worker}", headers=WORKER))
        assert theirs(409)["code"] == "Taken"  # its run may have to be taken back
        assert register(client)["id"] != worker
        ok(client.post("/v1/runs/r1/commit", headers=as_("agent"), json={}))
        assert theirs(409)["code"] == "Taken"
        for one in ok(client.get("/v1/workers", headers=as_("operator")))["items"]:
            ok(client.delete(f"/v1/workers/{one['id']}", headers=WORKER))
        mine = theirs(201)["id"]
        assert register(client, status=409)["code"] == "Taken"
        open_other = client.post("/v1/runs", headers=as_("other-agent"), json={"id": "r1"})
        assert open_other.status_code == 201
        asked = Later(client, "/v1/runs/r1/calls", {"tool": "book", "args": {"order": "7"}}, token="other-agent")
        work = ok(client.post(f"/v1/workers/{mine}/take", headers=as_("other-worker"), json={"wait": 5}))["work"]
        said = {"token": work["token"], "result": 2}
        ok(client.post(f"/v1/claims/{work['call']}/succeed", headers=as_("other-worker"), json=said))
        assert asked.done()["value"] == 2


def test_a_name_is_not_free_if_its_worker_asks_again_while_another_tenant_registers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be given the other tenant's work, with its arguments."""
    with served() as (client, service, _):
        mine = register(client, BOOK)["id"]
        worker, reserve = service.desk._workers[mine], AsyncRuntime.reserve_tools
        worker.seen -= 2 * service.limits.worker_lease_s  # silent past its lease, and nobody has looked since
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(service.desk, "look_at_workers", lambda: None)

            async def asks(rt: AsyncRuntime, tools: Any) -> None:
                worker.seen = time.monotonic()
                await reserve(rt, tools)

            meanwhile.setattr(AsyncRuntime, "reserve_tools", asks)
            there = client.post("/v1/workers", headers=as_("other-worker"), json={"tools": [BOOK]})
        assert ok(there, 409)["code"] == "Taken"


def test_a_claim_that_nobody_reported_is_forgotten_and_its_report_still_counts() -> None:
    with served() as (client, service, _):
        open_run(client)
        said = {"tool": "ship", "kind": "pivot", "lease": 0.05}
        claim = ok(client.post("/v1/runs/r1/claims", headers=as_("agent"), json=said), 201)
        session = service.sessions.found("", "r1")
        assert session is not None
        assert list(session.claims) == [claim["call"]]
        end = time.monotonic() + 10
        while session.claims and time.monotonic() < end:
            time.sleep(0.02)
        assert not session.claims
        at, token = f"/v1/claims/{claim['call']}", {"token": claim["token"]}
        assert ok(client.post(f"{at}/renew", headers=as_("agent"), json=token), 409)["code"] == "LeaseLost"
        done = ok(client.post(f"{at}/succeed", headers=as_("agent"), json={**token, "result": 1}))
        assert done["state"] == "succeeded"
