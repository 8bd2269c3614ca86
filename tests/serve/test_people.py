"""What people do over HTTP: approvals, doubts, plans, halts, permits, audits, events."""

import json
import sqlite3
import time
from typing import Any

import pytest

from tests.serve.shop import SECRET, as_, served

BOT, ANA, OLGA, VERA = as_("agent"), as_("approver"), as_("operator"), as_("viewer")
WIRE = {"tool": "wire", "args": {"order": "1", "cents": 5}}


def post(client: Any, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    return client.post(path, json=body, headers=headers)


def asked(client: Any) -> Any:
    post(client, "/v1/runs", {"id": "r"}, BOT)
    made = post(client, "/v1/runs/r/calls", WIRE, BOT)
    return client.get(made.headers["location"], headers=BOT).json()


def test_what_a_person_approves_is_done_under_the_tokens_name() -> None:
    with served() as (client, _, world):
        request = asked(client)
        at = f"/v1/approvals/{request['id']}"
        [item] = client.get("/v1/inbox", headers=VERA).json()["items"]
        assert (item["what"], item["id"]) == ("approval", request["id"])
        changed = post(client, f"{at}/approve", {"digest": "other"}, ANA)
        assert (changed.status_code, changed.json()["code"]) == (409, "ApprovalVoid")
        assert post(client, f"{at}/approve", {"digest": request["digest"], "by": "me"}, ANA).status_code == 422
        assert post(client, f"{at}/approve", {"digest": request["digest"]}, BOT).status_code == 403
        done = post(client, f"{at}/approve", {"digest": request["digest"], "why": "fine"}, ANA)
        assert (done.status_code, done.json()["state"], done.json()["given"][0]["by"]) == (200, "approved", "ana")
        again = post(client, "/v1/runs/r/calls", WIRE, BOT)
        assert (again.status_code, again.json()["value"]) == (200, "w_1")
        assert post(client, "/v1/runs/r/commit", {}, BOT).json()["run"]["state"] == "committed"
        assert world.wires == ["1"]


def test_what_a_person_rejects_is_told_to_the_model() -> None:
    with served() as (client, _, world):
        request = asked(client)
        told = post(client, f"/v1/approvals/{request['id']}/reject", {"reason": "too much"}, ANA)
        assert told.json()["state"] == "rejected"
        answer = post(client, "/v1/runs/r/calls", WIRE, BOT).json()
        assert (answer["status"], "too much" in answer["text"]) == ("refused", True)
        assert world.wires == []


def test_a_doubt_is_seen_previewed_probed_and_resolved() -> None:
    with served() as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"}, BOT)
        claim = post(client, "/v1/runs/r/claims", {"tool": "ship", "kind": "pivot"}, BOT).json()
        post(client, f"/v1/claims/{claim['call']}/fail", {"token": claim["token"], "error": "?", "doubt": True}, BOT)
        [doubt] = client.get("/v1/doubts", headers=VERA).json()["items"]
        at = f"/v1/calls/{doubt['call']}"
        assert client.get(f"{at}/preview", headers=VERA).json()["happened"]["call_state"] == "succeeded"
        assert post(client, f"{at}/probe", {}, OLGA).json()["answer"] == "unknown"
        said = {"answer": "happened", "result": "sent", "why": "the carrier has it"}
        assert post(client, f"{at}/resolve", said, ANA).status_code == 403
        done = post(client, f"{at}/resolve", said, OLGA)
        assert (done.status_code, done.json()["calls"][0]["state"]) == (200, "succeeded")
        event = client.get("/v1/events", params={"run": "r"}, headers=VERA).json()["items"][-1]
        assert "olga" in json.dumps(event)


def test_a_plan_binds_the_rollback_of_an_operator() -> None:
    with served() as (client, service, world):
        post(client, "/v1/runs", {"id": "r"}, BOT)
        post(client, "/v1/runs/r/calls", {"tool": "charge", "args": {"order": "1", "cents": 5}}, BOT)
        old = client.get("/v1/runs/r/plan", headers=VERA).json()
        post(client, "/v1/runs/r/calls", {"tool": "charge", "args": {"order": "2", "cents": 5}}, BOT)
        stale = post(client, "/v1/runs/r/rollback", {"why": "stop", "plan": old["hash"]}, OLGA)
        assert (stale.status_code, stale.json()["code"]) == (409, "StalePlan")
        plan = client.get("/v1/runs/r/plan", headers=VERA).json()
        assert post(client, "/v1/runs/r/rollback", {"why": "stop", "plan": plan["hash"]}, BOT).status_code == 403
        done = post(client, "/v1/runs/r/rollback", {"why": "stop", "plan": plan["hash"]}, OLGA)
        assert (done.status_code, done.json()["run"]["state"]) == (200, "rolled_back")
        assert (world.charges, len(service.sessions)) == ({}, 0)


def test_a_halt_of_one_tenant_is_no_halt_of_another() -> None:
    with served() as (client, _, _world):
        other = as_("other-operator")
        assert post(client, "/v1/halts", {"why": "stop"}, other).json()["tenant"] == "other"
        made = post(client, "/v1/halts", {"why": "stop", "tool": "wire"}, OLGA).json()
        assert (made["tenant"], made["tool"]) == ("", "wire")
        assert [one["id"] for one in client.get("/v1/halts", headers=VERA).json()["items"]] == [made["id"]]
        post(client, "/v1/runs", {"id": "r"}, BOT)
        charge = {"tool": "charge", "args": {"order": "1", "cents": 5}}
        assert post(client, "/v1/runs/r/calls", charge, BOT).json()["status"] == "done"
        assert "stopped" in post(client, "/v1/runs/r/calls", WIRE, BOT).json()["text"]
        lifted = client.delete("/v1/halts", params={"why": "over", "tool": "wire"}, headers=OLGA)
        assert (lifted.status_code, len(lifted.json()["items"])) == (200, 1)
        everywhere = post(client, "/v1/halts", {"why": "all"}, as_("everywhere"))
        assert everywhere.json()["tenant"] is None


def test_a_permit_covers_a_call_until_it_is_revoked() -> None:
    with served() as (client, _, world):
        made = post(client, "/v1/permits", {"tool": "wire", "args": WIRE["args"]}, ANA)
        assert (made.status_code, made.json()["by"]) == (201, "ana")
        post(client, "/v1/runs", {"id": "r"}, BOT)
        assert post(client, "/v1/runs/r/calls", WIRE, BOT).json()["status"] == "done"
        assert world.wires == ["1"]
        other = post(client, "/v1/permits", {"tool": "wire", "rule": {"args": {"cents": "<=5"}}}, ANA).json()
        ended = client.delete(f"/v1/permits/{other['id']}", params={"why": "no"}, headers=ANA)
        assert ended.json()["ended_at"]
        for wrong in ({"tool": "wire"}, {"tool": "wire", "rule": {"nonsense": 1}}, {"tool": "wire", "args": {}}):
            assert 400 <= post(client, "/v1/permits", wrong, ANA).status_code < 500


def test_the_record_is_verified_in_the_background_exported_and_loaded() -> None:
    with served() as (client, _, _world), served() as (client2, _, _):
        post(client, "/v1/runs", {"id": "r"}, BOT)
        post(client, "/v1/runs/r/commit", {}, BOT)
        begun = post(client, "/v1/audit/verify", {}, OLGA)
        assert begun.status_code == 202
        until = time.monotonic() + 10
        while (found := client.get(begun.headers["location"], headers=OLGA).json())["state"] == "running":
            assert time.monotonic() < until
        assert (found["verified"]["ok"], found["runs"]) == (True, 1)
        bundle = post(client, "/v1/export", {"runs": ["r"]}, OLGA)
        assert bundle.headers["content-type"] == "application/zip"
        zipped = OLGA | {"Content-Type": "application/zip"}
        loaded = client2.post("/v1/load", params={"why": "for the audit"}, content=bundle.content, headers=zipped)
        assert loaded.json() == {"runs": ["r"]}
        again = client2.post("/v1/load", content=bundle.content, headers=zipped)
        assert again.json() == {"runs": ["r"]}
        [event] = client2.get("/v1/events", params={"filter": 'what:"runs loaded"'}, headers=OLGA).json()["items"]
        assert (event["by"], event["facts"]["why"]) == ("olga", "for the audit")
        assert [head[1] for head in event["facts"]["heads"]] == ["r"]
        assert client2.post("/v1/load", params={"by": "eve"}, content=bundle.content, headers=zipped).status_code == 422
        wrong = client2.post("/v1/load", content=b"x", headers=OLGA | {"Content-Type": "application/zip"})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "BadBundle")


def test_a_stream_of_events_continues_after_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.serve.events.POLL_S", 0.01)
    with served() as (client, service, _world):
        post(client, "/v1/runs", {"id": "r"}, BOT)
        post(client, "/v1/runs/r/calls", {"tool": "charge", "args": {"order": "1", "cents": 5}}, BOT)
        post(client, "/v1/runs/r/commit", {}, BOT)
        page = client.get("/v1/events", params={"run": "r"}, headers=BOT).json()
        places = [one["place"] for one in page["items"]]
        assert client.get("/v1/events", headers=BOT).status_code == 403
        assert client.get("/v1/events", params={"run": "r"}, headers=as_("agent2")).status_code == 404
        service.is_closing = False
        for after, expected in (("", places), (places[0], places[1:])):
            got = []
            heads = BOT | {"Accept": "text/event-stream"} | ({"Last-Event-ID": after} if after else {})
            with client.stream("GET", "/v1/events", params={"run": "r"}, headers=heads) as stream:
                for line in stream.iter_lines():
                    if line.startswith("id: "):
                        got.append(line[4:])
                    if len(got) == len(expected):
                        service.is_closing = True
            assert got == expected
            service.is_closing = False
        assert service.streams == 0
        wrong = client.get("/v1/events", headers=VERA | {"Accept": "text/event-stream", "Last-Event-ID": "x"})
        assert (wrong.status_code, wrong.json()["code"]) == (400, "UsageError")


def test_an_operator_of_every_tenant_names_one() -> None:
    with served() as (client, _, _world):
        post(client, "/v1/runs", {"id": "r"}, as_("other-agent"))
        eve = as_("everywhere")
        assert client.get("/v1/runs/r", headers=eve).status_code == 404
        assert client.get("/v1/runs/r", params={"tenant": "other"}, headers=eve).json()["tenant"] == "other"
        assert client.get("/v1/runs/r", params={"tenant": "other"}, headers=OLGA).status_code == 403


def test_a_token_is_shown_once_used_and_revoked() -> None:
    from starlette.testclient import TestClient

    from amends import Runtime
    from amends.serve import app

    rt = Runtime("memory:")
    first = rt.create_token("root", scopes="operator", by="me", why="first").text
    with TestClient(app(rt, worker=False, secrets=SECRET)) as client:
        root = {"Authorization": f"Bearer {first}"}
        said = {"name": "bot", "scopes": ["agent"], "agent": "shopper", "why": "new"}
        made = post(client, "/v1/tokens", said, root)
        assert (made.status_code, made.json()["by"]) == (201, "root")
        bot = {"Authorization": f"Bearer {made.json()['text']}"}
        assert post(client, "/v1/runs", {"id": "r"}, bot).status_code == 201
        assert "text" not in client.get("/v1/tokens", headers=root).json()["items"][0]
        assert client.get("/v1/tokens", headers=bot).status_code == 403
        at = f"/v1/tokens/{made.json()['id']}"
        assert client.delete(at, params={"why": "lost"}, headers=root).json()["ended_at"]
        gone = client.get("/v1/runs/r", headers=bot)
        assert (gone.status_code, gone.json()["code"]) == (401, "Unauthorized")
        assert made.json()["text"] not in gone.text
        text = client.get("/v1/events", headers=root).text
        assert made.json()["id"] in text
        assert made.json()["text"] not in text
    rt.close()


def test_an_operator_of_the_tenant_without_a_name_has_no_say_in_the_others() -> None:
    with served() as (client, _, _world):
        theirs, eve = as_("other-agent"), as_("everywhere")
        post(client, "/v1/runs", {"id": "t"}, theirs)
        post(client, "/v1/runs/t/commit", {}, theirs)
        post(client, "/v1/runs", {"id": "mine"}, BOT)
        post(client, "/v1/runs/mine/commit", {}, BOT)

        def bundle(run: str, params: dict[str, str]) -> bytes:
            made = client.post("/v1/export", json={"runs": [run]}, params=params, headers=eve)
            assert made.status_code == 200
            return bytes(made.content)

        def load(data: bytes, headers: dict[str, str]) -> Any:
            with served() as (elsewhere, _, _other):
                return elsewhere.post("/v1/load", content=data, headers=headers | {"Content-Type": "application/zip"})

        foreign, own = bundle("t", {"tenant": "other"}), bundle("mine", {})
        refused = load(foreign, OLGA)
        assert (refused.status_code, "of tenant 'other'" in refused.json()["detail"]) == (400, True)
        assert load(own, OLGA).json() == {"runs": ["mine"]}
        assert load(foreign, eve).json() == {"runs": ["t"]}
        for path, body in (("/v1/audit/checkpoint", {}), ("/v1/reconcile", {"tool": "charge"})):
            assert post(client, path, body, OLGA).json()["code"] == "Forbidden"
            assert post(client, path, body, eve).status_code < 300
        post(client, "/v1/halts", {"why": "stop"}, as_("other-operator"))
        none = client.delete("/v1/halts", params={"why": "x", "tool": "wire"}, headers=OLGA)
        assert (none.status_code, "other" in none.text) == (400, False)


def test_an_audit_of_the_tenant_without_a_name_counts_its_own_runs(tmp_path: Any) -> None:
    with served(f"sqlite:///{tmp_path}/l.db") as (client, _, _world):
        for headers, run in ((BOT, "mine"), (as_("other-agent"), "t")):
            post(client, "/v1/runs", {"id": run}, headers)
            post(client, f"/v1/runs/{run}/calls", {"tool": "stock", "args": {"item": "x"}}, headers)
            post(client, f"/v1/runs/{run}/commit", {}, headers)
        with sqlite3.connect(tmp_path / "l.db") as db:
            db.execute(
                'UPDATE amends_call SET args = \'{"item":"y"}\' WHERE rowid = (SELECT max(rowid) FROM amends_call)'
            )

        def verified(headers: dict[str, str]) -> Any:
            at = post(client, "/v1/audit/verify", {}, headers).headers["location"]
            until = time.monotonic() + 10
            while (found := client.get(at, headers=headers).json())["state"] == "running":
                assert time.monotonic() < until
            return found["verified"]

        assert [verified(OLGA)["ok"], verified(as_("everywhere"))["ok"]] == [True, False]
