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

from amends import Runtime
from amends.serve import Limits, app
from tests.serve.shop import SECRET, served
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
