"""Tools that live in another process: handed out once, settled by their report, in doubt after silence."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.testclient import TestClient

from amends.serve import Limits
from tests.serve.shop import as_, served

OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {"order": {"type": "string", "minLength": 1}, "cents": {"type": "integer", "default": 100}},
    "required": ["order"],
    "additionalProperties": False,
}
BOOK: dict[str, Any] = {
    "name": "book",
    "kind": "compensatable",
    "description": "Book a room.",
    "parameters": OBJECT,
    "key": ["order"],
    "lease": 5.0,
    "compensate": {"idempotent": True},
    "probe": True,
}
WORKER = as_("worker")


def ok(answer: Any, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def register(client: TestClient, *tools: dict[str, Any], status: int = 201) -> Any:
    return ok(client.post("/v1/workers", headers=WORKER, json={"name": "w", "tools": list(tools or (BOOK,))}), status)


def take(client: TestClient, worker: str, wait: float = 5.0) -> Any:
    return ok(client.post(f"/v1/workers/{worker}/take", headers=WORKER, json={"wait": wait}))["work"]


def report(client: TestClient, work: Any, verb: str = "succeed", status: int = 200, **said: Any) -> Any:
    body = {"token": work["token"], **said}
    return ok(client.post(f"/v1/claims/{work['call']}/{verb}", headers=WORKER, json=body), status)


def open_run(client: TestClient, id: str = "r1") -> None:
    assert client.post("/v1/runs", headers=as_("agent"), json={"id": id}).status_code in (200, 201)


class Later:
    """A request that is answered when somebody else has done something."""

    def __init__(self, client: TestClient, path: str, body: dict[str, Any], *, token: str = "agent") -> None:
        self._client, self._path, self._body, self._token = client, path, body, token
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        self.answer = self._client.post(self._path, headers=as_(self._token), json=self._body)

    def done(self, status: int = 200) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return ok(self.answer, status)


@contextmanager
def desk(**limits: Any) -> Iterator[TestClient]:
    with served(limits=Limits(**limits)) as (client, _, _):
        yield client


def call(client: TestClient, tool: str = "book", run: str = "r1", **args: Any) -> Later:
    return Later(client, f"/v1/runs/{run}/calls", {"tool": tool, "args": args or {"order": "7"}})


def test_a_worker_performs_a_call_and_takes_it_back() -> None:
    with desk() as client:
        worker = register(client)["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)
        assert (work["phase"], work["tool"], work["attempt"]) == ("execute", "book", 1)
        assert work["args"] == {"order": "7", "cents": 100}
        assert work["key"]
        assert work["lease"] == 5.0
        said: dict[str, Any] = {"result": {"room": 12}, "spent": {"usd": 0.02, "tokens": 1_300}}
        assert report(client, work, **said)["state"] == "succeeded"
        assert report(client, work, **said)["state"] == "succeeded"
        assert asked.done()["value"] == {"room": 12}
        assert asked.done()["call"]["costs"] == {"usd": "0.02", "tokens": "1300"}
        again = ok(
            client.post("/v1/runs/r1/calls", headers=as_("agent"), json={"tool": "book", "args": {"order": "7"}})
        )
        assert again["status"] == "replayed"  # nobody had to perform it
        back = Later(client, "/v1/runs/r1/rollback", {"why": "changed their mind"})
        undo = take(client, worker)
        assert (undo["phase"], undo["result"]) == ("compensate", {"room": 12})
        assert undo["key"] != work["key"]
        assert report(client, undo)["state"] == "compensated"
        assert back.done()["run"]["state"] == "rolled_back"


def test_the_tool_is_described_to_models_and_its_arguments_are_checked() -> None:
    with desk() as client:
        register(client)
        shown = ok(client.get("/v1/tools?style=anthropic", headers=as_("agent")))
        found = next(one for one in shown["tools"] if one["name"] == "book")
        assert found["description"] == "Book a room."
        assert found["input_schema"]["properties"]["order"] == {"type": "string", "minLength": 1}
        open_run(client)
        refused = call(client, order="").done()
        assert refused["status"] == "refused"
        assert "at least 1 character" in refused["text"]
        assert "no argument" in call(client, order="7", colour="red").done()["text"]


def test_a_worker_that_vanishes_leaves_a_doubt_and_the_probe_settles_it() -> None:
    with desk() as client:
        worker = register(client, BOOK | {"lease": 0.3})["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)  # and it is never heard of again
        probe = take(client, worker)
        assert (probe["phase"], probe["call"]) == ("probe", work["call"])
        report(client, probe, result={"answer": "happened", "result": {"room": 3}})
        assert asked.done()["value"] == {"room": 3}
        assert take(client, worker, 0.0) is None  # nobody else was given the same start


def test_a_probe_that_found_nothing_lets_it_be_tried_again() -> None:
    with desk() as client:
        worker = register(client, BOOK | {"lease": 0.3, "attempts": 2})["id"]
        open_run(client)
        asked = call(client)
        first = take(client, worker)
        report(client, take(client, worker), result={"answer": "absent"})
        second = take(client, worker)
        assert (second["phase"], second["attempt"], second["key"]) == ("execute", 2, first["key"])
        report(client, second, result="ok")
        assert asked.done()["value"] == "ok"


def test_silence_without_a_probe_is_a_doubt_and_a_late_report_settles_it() -> None:
    with desk() as client:
        worker = register(client, BOOK | {"lease": 0.3, "probe": False})["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)
        assert asked.done()["status"] == "in_doubt"
        assert report(client, work, result="late")["state"] == "succeeded"
        assert report(client, work, result="late")["state"] == "succeeded"
        conflict = report(client, work, result="other", status=409)
        assert conflict["code"] == "ReportConflict"


@pytest.mark.parametrize(
    "said, status, state",
    [
        ({"error": "sold out", "no_effect": True}, "failed", "failed"),
        ({"error": "sold out"}, "failed", "failed"),
        ({"error": "the connection broke", "doubt": True}, "in_doubt", "in_doubt"),
    ],
)
def test_what_a_worker_reports_is_judged_as_what_a_body_raises(said: Any, status: str, state: str) -> None:
    with desk() as client:
        worker = register(client, BOOK | {"probe": False})["id"]
        open_run(client)
        asked = call(client)
        assert report(client, take(client, worker), "fail", **said)["state"] == state
        assert asked.done()["status"] == status


def test_a_renewed_lease_lasts_longer() -> None:
    with desk() as client:
        worker = register(client, BOOK | {"lease": 0.4})["id"]
        open_run(client)
        asked = call(client)
        work = take(client, worker)
        for _ in range(5):
            time.sleep(0.2)
            assert report(client, work, "renew")["lease"] == 0.4
        report(client, work, result="slow")
        assert asked.done()["value"] == "slow"
        assert report(client, work, "renew", status=409)["code"] == "LeaseLost"


def test_what_no_worker_takes_has_certainly_had_no_effect() -> None:
    with desk(pickup_s_max=0.2) as client:
        register(client, BOOK | {"attempts": 1, "probe": False})
        open_run(client)
        told = call(client).done()
        assert told["status"] == "failed"
        assert "no worker took book" in told["text"]


def test_of_two_workers_only_one_gets_a_piece() -> None:
    with desk() as client:
        first, second = register(client)["id"], register(client)["id"]
        open_run(client)
        got: list[Any] = []

        def take_it(worker: str) -> None:
            got.append(take(client, worker, 1.0))

        threads = [threading.Thread(target=take_it, args=(one,)) for one in (first, second)]
        for one in threads:
            one.start()
        asked = call(client)
        for one in threads:
            one.join(10)
        work = [one for one in got if one is not None]
        assert len(work) == 1
        report(client, work[0], result=1)
        assert asked.done()["value"] == 1


def test_a_server_that_was_restarted_asks_workers_to_register_again(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with served(url) as (client, _, _):
        worker = register(client)["id"]
        open_run(client)
        asked = Later(client, "/v1/runs/r1/calls", {"tool": "book", "args": {"order": "7"}})
        work = take(client, worker)
        report(client, work, result="r")
        asked.done()
    with served(url) as (client, service, _):
        lost = client.post(f"/v1/workers/{worker}/take", headers=WORKER, json={"wait": 0})
        assert ok(lost, 404)["code"] == "WorkerNotFound"
        assert service.rt.kind_of("book") is None
        worker = register(client)["id"]
        open_run(client)
        back = Later(client, "/v1/runs/r1/rollback", {"why": "restarted"})
        undo = take(client, worker)
        assert (undo["phase"], undo["result"]) == ("compensate", "r")
        assert report(client, undo)["state"] == "compensated"
        back.done()


def test_declarations_that_clash_are_refused() -> None:
    with desk(worker_lease_s=0.3) as client:
        register(client)
        register(client)  # the same again: another worker of the same tools
        assert register(client, BOOK | {"settle": 1.0}, status=409)["code"] == "Taken"
        assert register(client, BOOK | {"name": "charge"}, status=409)["code"] == "Taken"  # the server's own
        twice = register(client, BOOK, BOOK, status=422)
        assert "two tools are called book" in twice["detail"]
        bad = register(
            client,
            BOOK | {"name": "b2", "parameters": {"type": "object", "properties": {"x": {"not": {}}}}},
            status=422,
        )
        assert (bad["code"], "'not' is not supported" in bad["detail"]) == ("BadDeclaration", True)
        alone = register(client, {"name": "b3"}, status=422)
        assert "compensatable and has no compensation" in alone["detail"]
        time.sleep(0.6)
        register(client, BOOK | {"description": "Book a better room."})  # the old workers are gone


def test_another_tenants_worker_gets_nothing() -> None:
    with desk() as client:
        worker = register(client)["id"]
        other = client.post(f"/v1/workers/{worker}/take", headers=as_("other-worker"), json={"wait": 0})
        assert other.status_code == 404
        mine = {"name": "x", "tools": [BOOK]}
        assert ok(client.post("/v1/workers", headers=as_("other-worker"), json=mine), 409)["code"] == "Taken"
        shown = ok(client.get("/v1/tools?style=anthropic", headers=as_("other-agent")))["tools"]
        assert "book" not in [one["name"] for one in shown]
        client.post("/v1/runs", headers=as_("other-agent"), json={"id": "o1"})
        body = {"tool": "book", "args": {"order": "7"}}
        told = ok(client.post("/v1/runs/o1/calls", headers=as_("other-agent"), json=body))
        assert told["status"] == "failed"
        assert "no worker of this tenant" in told["text"]
        assert take(client, worker, 0.0) is None


def test_workers_are_listed_and_leave() -> None:
    with desk() as client:
        made = register(client)
        listed = ok(client.get("/v1/workers", headers=as_("viewer")))["items"]
        assert [(one["id"], one["tools"]) for one in listed] == [(made["id"], ["book"])]
        ok(client.delete(f"/v1/workers/{made['id']}", headers=WORKER))
        assert ok(client.get("/v1/workers", headers=as_("viewer")))["items"] == []


def test_a_worker_that_has_hung_up_is_given_nothing() -> None:
    """Its request may still be waiting in the server: work that it gets would be in doubt for a whole lease."""
    with desk() as client:
        worker = register(client)["id"]
        desk_ = client.app.desk  # type: ignore[attr-defined]
        gone, asked = threading.Event(), threading.Event()

        async def hung_up() -> bool:
            asked.set()
            return gone.is_set()

        async def wait() -> Any:
            return await desk_.take(desk_.worker("", worker), 10.0, is_gone=hung_up)

        assert client.portal is not None
        waiting = client.portal.start_task_soon(wait)
        assert asked.wait(10)
        gone.set()
        open_run(client)
        made = call(client)
        assert waiting.result(10) is None
        work = take(client, worker)
        report(client, work, result=1)
        assert made.done()["call"]["attempt"] == 1


def test_a_run_that_goes_on_in_a_new_server_waits_for_its_workers_to_register_again(tmp_path: Any) -> None:
    """The tools of workers are not in the ledger: until a worker comes, their absence says nothing."""
    url, said = f"sqlite:///{tmp_path / 'ledger.db'}", {"tool": "book", "args": {"order": "7"}}
    with served(url) as (client, _, _):
        register(client)
        open_run(client)
    with served(url) as (client, _, _):
        early = Later(client, "/v1/runs/r1/calls", said)
        both = Later(client, "/v1/runs/r1/turns", {"calls": [said]})
        worker = register(client)["id"]
        report(client, take(client, worker), result=1)
        assert early.done()["value"] == 1
        assert both.done()["answers"][0]["value"] == 1
        open_run(client, "r2")  # a run that began here knows all there is
        unknown = Later(client, "/v1/runs/r2/calls", {"tool": "nothing"})
        assert unknown.done()["status"] == "refused"
    with served(url, limits=Limits(workers_back_s_max=0.0)) as (client, _, _):
        told = ok(client.post("/v1/runs/r1/calls", headers=as_("agent"), json={"tool": "other"}))
        assert told["status"] == "refused"  # long enough after its start


SAID: dict[str, Any] = {"tool": "book", "args": {"order": "7"}}


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("calls", SAID, 200),
        ("turns", {"calls": [{"tool": "stock", "args": {"item": "cup"}}, SAID]}, 200),
        ("execute", {"plan": [{"tool": "stock", "args": {"item": "cup"}}, SAID]}, 200),
        ("execute", {"plan": [[SAID]]}, 200),
        ("claims", SAID, 201),
    ],
    ids=["call", "turn", "plan", "parallel plan", "claim"],
)
def test_every_request_that_names_a_tool_waits_for_the_worker_that_brings_it(
    tmp_path: Any, path: str, body: dict[str, Any], status: int
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with served(url) as (client, _, _):
        register(client)
        open_run(client)
    with served(url) as (client, service, _):
        waits, silent = threading.Event(), []
        awaited = service.desk.await_tools

        async def await_tools(tools: Any) -> None:
            if "book" in (wanted := set(tools)):
                session = service.sessions.found("", "r1")
                assert session is not None
                session._seen -= 1_000.0
                silent.append(session.is_silent)  # its client waits for an answer
                waits.set()
            await awaited(wanted)

        service.desk.await_tools = await_tools  # type: ignore[method-assign]
        asked = Later(client, f"/v1/runs/r1/{path}", body)
        assert waits.wait(10), "it was answered without the worker"
        worker = register(client)["id"]
        if path != "claims":
            report(client, take(client, worker), result="booked")
        told = asked.done(status)
        if path == "claims":
            assert (told["state"], told["replayed"]) == ("started", False)
        else:
            answers = told.get("answers", [told])
            assert (answers[-1]["status"], answers[-1]["value"]) == ("done", "booked")
        assert silent == [False]


@pytest.mark.parametrize(
    "path, body, status",
    [
        ("execute", {"plan": [{"args": {}}, {"tool": 7}, [{"tool": None}]]}, 422),
        ("claims", {"tool": "ship", "kind": "pivot"}, 201),
        ("execute", {"plan": []}, 200),
    ],
    ids=["no tools", "a tool of the client's own", "nothing"],
)
def test_what_names_no_tool_of_a_worker_is_answered_at_once(
    tmp_path: Any, path: str, body: dict[str, Any], status: int
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with served(url) as (client, _, _):
        open_run(client)
    with served(url, limits=Limits(workers_back_s_max=3_600.0)) as (client, _, _):
        Later(client, f"/v1/runs/r1/{path}", body).done(status)


def test_a_worker_that_leaves_is_told_at_once_that_there_is_no_work() -> None:
    with desk() as client:
        worker = register(client)["id"]
        began, given = time.monotonic(), []
        asking = threading.Thread(target=lambda: given.append(take(client, worker, 20.0)))
        asking.start()
        time.sleep(0.1)
        assert client.delete(f"/v1/workers/{worker}", headers=WORKER).status_code == 200
        asking.join(15)
        assert (given, time.monotonic() - began < 10) == ([None], True)
