"""What a second pair of eyes tried on the service, and what did not hold at first."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from amends.serve import Limits
from tests.serve.shop import TOKENS, as_, served
from tests.serve.test_workers import BOOK, WORKER, Later, call, desk, ok, open_run, register, report, take


def probe_of(client: Any, call_id: str) -> tuple[threading.Thread, list[Any]]:
    """Let a person ask the outside world about a call, in a thread of its own."""
    got: list[Any] = []

    def ask() -> None:
        got.append(client.post(f"/v1/calls/{call_id}/probe", headers=as_("operator"), json={}))

    asking = threading.Thread(target=ask)
    asking.start()
    return asking, got


def test_the_answer_of_an_older_probe_is_not_taken_for_that_of_a_newer_one() -> None:
    """What a probe saw before nothing more could be sent says nothing about what is there after that."""
    with desk() as client:
        worker = register(client, BOOK | {"lease": 0.5})["id"]
        open_run(client)
        asked = call(client)
        take(client, worker)  # and it is never heard of again
        old = take(client, worker)
        new = take(client, worker, 10.0)  # the first probe was silent past its lease, too
        assert (old["phase"], new["phase"]) == ("probe", "probe")
        report(client, old, result={"answer": "absent"})  # it has seen the world of then
        report(client, new, result={"answer": "happened", "result": {"room": 3}})
        assert asked.done()["value"] == {"room": 3}
        assert take(client, worker, 0.0) is None


def test_two_probes_of_one_call_at_once_each_get_their_own_answer() -> None:
    with desk() as client:
        worker = register(client, BOOK | {"lease": 2.0, "probe": True})["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)
        report(client, work, result="r")
        asked.done()
        (first, one), (second, two) = probe_of(client, work["call"]), probe_of(client, work["call"])
        for answer in ("happened", "unknown"):
            report(client, take(client, worker), result={"answer": answer})
        first.join(10)
        second.join(10)
        assert {ok(one[0])["answer"], ok(two[0])["answer"]} == {"happened", "unknown"}


def test_work_that_waits_longest_is_handed_out_first() -> None:
    """A worker of several tools does not starve one of them while another is asked for all the time."""
    names = [f"t{number}" for number in range(12)]
    with desk() as client:
        worker = register(client, *(BOOK | {"name": name} for name in names))["id"]
        asked = []
        for name in names:
            open_run(client, name)
            asked.append(call(client, name, name))
            waited = time.monotonic()
            while not client.app.desk._waiting.get(name):  # type: ignore[attr-defined]
                assert time.monotonic() - waited < 10
                time.sleep(0.005)
        order = []
        for _ in names:
            order.append(work := take(client, worker))
            report(client, work, result=1)
        assert [one["tool"] for one in order] == names
        for one in asked:
            one.done()


def test_work_that_has_ended_is_remembered_without_what_was_sent() -> None:
    with desk() as client:
        worker = register(client, BOOK)["id"]
        open_run(client)
        asked = call(client, order="7" * 100_000)
        work = take(client, worker)
        report(client, work, result="r" * 100_000)
        asked.done()
        [kept] = client.app.desk._ended.values()  # type: ignore[attr-defined]
        assert kept.sent == {}
        assert not kept.done.done()
        assert report(client, work, result="r" * 100_000)["state"] == "succeeded"


def test_workers_cannot_declare_tools_without_end() -> None:
    with served(limits=Limits(worker_tools_max=3)) as (client, _, _):
        for number in range(3):
            made = register(client, BOOK | {"name": f"t{number}"})
            ok(client.delete(f"/v1/workers/{made['id']}", headers=WORKER))
        refused = register(client, BOOK | {"name": "t3"}, status=429)
        assert (refused["code"], "worker_tools_max" in refused["detail"]) == ("TooMany", True)
        register(client, BOOK | {"name": "t1"})  # one that is known


def test_a_busy_stream_ends_when_its_token_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that always has something to tell must look at its token, too."""
    monkeypatch.setattr("amends.serve.events.POLL_S", 0.01)
    monkeypatch.setattr("amends.serve.events.ALIVE_S", 0.1)
    monkeypatch.setitem(TOKENS, "leaver", TOKENS["viewer"])
    with served() as (client, service, _):
        post = client.post
        stop = threading.Event()

        def busy() -> None:
            for number in range(400):
                if stop.wait(0.01):
                    return
                post("/v1/runs", headers=as_("agent"), json={"id": f"r{number}"})

        making = threading.Thread(target=busy)
        making.start()
        seen, problem = 0, ""
        heads = as_("leaver") | {"Accept": "text/event-stream"}
        with client.stream("GET", "/v1/events", headers=heads) as stream:
            for line in stream.iter_lines():
                seen += line.startswith("id: ")
                if seen == 3 and "leaver" in TOKENS:
                    monkeypatch.delitem(TOKENS, "leaver")
                if line == "event: problem":
                    problem = line
                if seen == 150:
                    service.is_closing = True
        stop.set()
        making.join(10)
        assert problem
        assert seen < 150


def test_a_client_that_asks_as_its_lease_ends_is_not_let_go() -> None:
    """Between finding the run and beginning the call nobody may find it silent."""
    with served() as (client, service, _):
        open_run(client)
        session = service.sessions.found("", "r1")
        assert session is not None
        session._seen -= 1_000.0
        seen: list[bool] = []
        made = service.sessions.within

        def within(*args: Any, **more: Any) -> Any:
            seen.append(session.is_silent)
            return made(*args, **more)

        service.sessions.within = within  # type: ignore[method-assign]
        body = {"tool": "stock", "args": {"item": "cup"}}
        ok(client.post("/v1/runs/r1/calls", headers=as_("agent"), json=body))
        assert seen == [False]


def test_a_report_between_the_end_of_the_lease_and_the_record_of_it_counts() -> None:
    """The desk knows a moment before the engine that the lease is over: such a report is evidence, and settles the doubt."""
    with desk() as client:
        worker = register(client, BOOK | {"lease": 1.0, "probe": False})["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)
        [piece] = client.app.desk._pieces.values()  # type: ignore[attr-defined]
        piece.until -= 100.0
        report(client, work, result="late")
        told = asked.done()
        assert (told["status"], told["value"]) == ("done", "late")
        assert report(client, work, result="late")["state"] == "succeeded"


def test_a_compensation_reported_as_its_lease_ends_is_not_done_twice() -> None:
    with desk() as client:
        worker = register(client, BOOK | {"lease": 1.0, "probe": False, "compensate": {}})["id"]
        open_run(client)
        asked = call(client)
        report(client, take(client, worker), result="r")
        asked.done()
        client.post("/v1/runs/r1/renew", headers=as_("agent"), json={})
        back = Later(client, "/v1/runs/r1/rollback", {"why": "changed their mind"})
        undo = take(client, worker)
        [piece] = client.app.desk._pieces.values()  # type: ignore[attr-defined]
        piece.until -= 100.0
        report(client, undo)
        time.sleep(2.0)
        assert take(client, worker, 0.0) is None
        assert back.done()["run"]["state"] == "rolled_back"


def test_two_agents_that_open_one_id_at_once_do_not_share_a_run() -> None:
    with served() as (client, service, _):
        made = service.sessions.open

        async def slow(*args: Any, **more: Any) -> Any:
            await asyncio.sleep(0.2)  # both have looked, and found nothing
            return await made(*args, **more)

        service.sessions.open = slow  # type: ignore[method-assign]
        got: dict[str, Any] = {}

        def open_as(token: str) -> None:
            got[token] = client.post("/v1/runs", headers=as_(token), json={"id": "r"})

        threads = [threading.Thread(target=open_as, args=(token,)) for token in ("agent", "agent2")]
        for one in threads:
            one.start()
        for one in threads:
            one.join(10)
        assert sorted(one.status_code for one in got.values()) == [201, 404]


def test_whoever_asks_for_a_call_in_a_strangers_run_cannot_approve_it() -> None:
    """An operator may do everything, but not ask in the name of another and then approve it."""
    with served() as (client, _, world):
        open_run(client)
        olga, wire = as_("operator"), {"tool": "wire", "args": {"order": "1", "cents": 5}}
        plan = {"plan": [wire]}
        for path, body in (("calls", wire), ("claims", wire), ("turns", {"calls": [wire]}), ("execute", plan)):
            refused = ok(client.post(f"/v1/runs/r1/{path}", headers=olga, json=body), 403)
            assert (refused["code"], "bot" in refused["detail"]) == ("Forbidden", True)
        assert ok(client.get("/v1/approvals", headers=olga))["items"] == []
        assert world.wires == []
        ok(client.post("/v1/runs/r1/commit", headers=olga, json={}))


def test_a_rollback_waits_for_a_worker_to_come_back() -> None:
    """That nobody was there to compensate is no attempt at it: no person is needed when a worker is started again."""
    booked = BOOK | {"compensate": {"attempts": 1}}
    with desk(pickup_s_max=0.1) as client:
        worker = register(client, booked)["id"]
        open_run(client)
        asked = call(client)
        report(client, take(client, worker), result="r")
        asked.done()
        ok(client.delete(f"/v1/workers/{worker}", headers=WORKER))
        back = Later(client, "/v1/runs/r1/rollback", {"why": "changed their mind"})
        back._thread.join(0.5)
        undo = take(client, register(client, booked)["id"])
        assert undo["phase"] == "compensate"
        report(client, undo)
        assert back.done()["run"]["state"] == "rolled_back"


def test_a_report_to_a_server_that_lost_the_run_is_evidence_and_not_an_error(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with served(url, worker=False) as (old, service, _):
        open_run(old)
        body = {"tool": "charge", "args": {"order": "7", "cents": 5}, "lease": 30}
        claim = ok(old.post("/v1/runs/r1/claims", headers=as_("agent"), json=body), 201)
        with served(url, worker=False) as (new, _, _):
            monkeypatch.setattr("amends.drivers.process.is_dead", lambda _owner: True)
            ok(new.post("/v1/runs/r1/renew", headers=as_("agent"), json={}))
            said = {"token": claim["token"], "result": "ch_7"}
            told = ok(old.post(f"/v1/claims/{claim['call']}/succeed", headers=as_("agent"), json=said))
            assert told["state"] == "succeeded"
            assert service.sessions.found("", "r1") is None
            told = ok(old.post(f"/v1/claims/{claim['call']}/succeed", headers=as_("agent"), json=said))
            assert told["state"] == "succeeded"


def test_the_record_says_by_which_token_a_run_is_driven(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOKENS, "agent-b", replace(TOKENS["agent"], token="tok-b"))
    url, body = f"sqlite:///{tmp_path / 'ledger.db'}", {"tool": "charge", "args": {"order": "7", "cents": 5}}

    def facts(client: Any) -> list[tuple[str, Any]]:
        found = ok(client.get("/v1/events", params={"run": "r1"}, headers=as_("viewer")))["items"]
        return [(one["what"], one["facts"].get("token")) for one in found]

    with served(url) as (client, _, _):
        open_run(client)
        for _ in range(2):
            ok(client.post("/v1/runs/r1/calls", headers=as_("agent-b"), json=body))
        assert [one for one in facts(client) if one[0] == "driven"] == [("driven", "tok-b")]
        before = len(facts(client))
        client.post("/v1/runs/r1/calls", headers=as_("operator"), json=body)
        assert len(facts(client)) == before  # it was refused
    with served(url) as (client, _, _):  # another server takes the run up
        ok(client.post("/v1/runs/r1/calls", headers=as_("agent-b"), json=body | {"args": {"order": "8", "cents": 5}}))
        assert [one for one in facts(client)[before:] if one[1]] == [("taken over", "tok-b")]
