"""Runs that a client drives over HTTP, call by call."""

import pytest

from amends import AsyncRuntime, NoEffect, Retry, Runtime, tool
from tests.serve.shop import as_, served

pytest_plugins: list[str] = []
BOT = as_("agent")


@pytest.mark.parametrize("colour", [Runtime, AsyncRuntime])
def test_a_run_is_opened_driven_and_committed(colour: type) -> None:
    with served(colour=colour) as (client, _, world):
        opened = client.post("/v1/runs", json={"id": "o/1 ä", "input": {"order": "1"}}, headers=BOT)
        assert (opened.status_code, opened.headers["location"]) == (201, "/v1/runs/o%2F1%20%C3%A4")
        at = opened.headers["location"]
        first = client.post(f"{at}/calls", json={"tool": "charge", "args": {"order": "1", "cents": 5}}, headers=BOT)
        assert (first.status_code, first.json()["status"], first.json()["value"]) == (200, "done", "ch_1")
        again = client.post(f"{at}/calls", json={"tool": "charge", "args": {"order": "1", "cents": 5}}, headers=BOT)
        assert (again.json()["status"], again.headers["idempotent-replayed"]) == ("replayed", "true")
        ended = client.post(f"{at}/commit", headers=BOT)
        assert (ended.status_code, ended.json()["run"]["state"]) == (200, "committed")
        repeated = client.post(f"{at}/commit", headers=BOT)
        assert (repeated.status_code, repeated.json()["run"]["state"]) == (200, "committed")
        assert world.charges == {"1": 5}
        found = client.get(f"{at}/report", headers=BOT).json()
        assert [call["tool"] for call in found["calls"]] == ["charge"]
        assert (found["run"]["agent"], found["run"]["principal"]) == ("shopper", "bot")


def test_a_rollback_compensates_and_its_repeat_gets_the_same_answer() -> None:
    with served() as (client, _, world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        client.post("/v1/runs/r/calls", json={"tool": "charge", "args": {"order": "1", "cents": 5}}, headers=BOT)
        for _ in range(2):
            back = client.post("/v1/runs/r/rollback", json={"why": "changed my mind"}, headers=BOT)
            assert (back.status_code, back.json()["run"]["state"]) == (200, "rolled_back")
        assert world.charges == {}
        assert client.get("/v1/runs/r", headers=BOT).json()["generation"] == 1


def test_a_known_run_is_200_and_other_input_is_422() -> None:
    with served() as (client, _, _world):
        said = {"id": "r", "input": {"a": [1, "x"]}}
        assert client.post("/v1/runs", json=said, headers=BOT).status_code == 201
        assert client.post("/v1/runs", json=said, headers=BOT).status_code == 200
        other = client.post("/v1/runs", json={"id": "r", "input": {"a": 2}}, headers=BOT)
        assert (other.status_code, other.json()["code"]) == (422, "RunConflict")
        client.post("/v1/runs/r/commit", headers=BOT)
        ended = client.post("/v1/runs", json=said, headers=BOT)
        assert (ended.status_code, ended.json()["over"], ended.json()["state"]) == (200, True, "committed")


def test_a_key_names_the_call_and_other_content_under_it_is_422() -> None:
    with served() as (client, _, world):
        client.post("/v1/runs", json={}, headers=BOT | {"Idempotency-Key": '"r"'})
        key = BOT | {"Idempotency-Key": "k-1"}
        call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
        assert client.post("/v1/runs/r/calls", json=call, headers=key).json()["status"] == "done"
        again = client.post("/v1/runs/r/calls", json=call, headers=key)
        assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
        other = {"tool": "charge", "args": {"order": "2", "cents": 5}}
        refused = client.post("/v1/runs/r/calls", json=other, headers=key)
        assert (refused.status_code, refused.json()["code"]) == (422, "KeyConflict")
        assert refused.headers["content-type"] == "application/problem+json"
        assert world.charges == {"1": 5}


def test_a_run_without_an_id_and_without_a_key_is_400() -> None:
    with served() as (client, _, _world):
        refused = client.post("/v1/runs", json={}, headers=BOT)
        assert (refused.status_code, refused.json()["code"]) == (400, "KeyMissing")
        for key in ("", '""', "x" * 256):
            refused = client.post("/v1/runs", json={}, headers=BOT | {"Idempotency-Key": key})
            assert (refused.status_code, refused.json()["code"]) == (400, "BadRequest")


def test_refusals_are_answers_for_the_model() -> None:
    with served() as (client, _, _world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        for call in (
            {"tool": "nothing"},
            {"tool": "charge", "args": {"order": 1}},
            {"tool": "charge", "args": {"order": "1", "cents": -1}},
        ):
            found = client.post("/v1/runs/r/calls", json=call, headers=BOT)
            assert (found.status_code, found.json()["is_error"]) == (200, True)
            assert found.json()["text"]


def test_a_call_that_needs_a_person_is_202_with_the_place_of_the_request() -> None:
    with served() as (client, _, world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        call = {"tool": "wire", "args": {"order": "1", "cents": 5}}
        asked = client.post("/v1/runs/r/calls", json=call, headers=BOT)
        assert (asked.status_code, asked.json()["waits"]) == (202, True)
        assert asked.headers["location"].startswith("/v1/approvals/apr_")
        assert world.wires == []


def test_no_token_is_401_and_the_wrong_scope_403() -> None:
    with served() as (client, _, _world):
        nobody = client.get("/v1/runs")
        assert (nobody.status_code, nobody.json()["code"]) == (401, "Unauthorized")
        assert nobody.headers["www-authenticate"].startswith("Bearer")
        viewer = client.post("/v1/runs", json={"id": "r"}, headers=as_("viewer"))
        assert (viewer.status_code, viewer.json()["code"]) == (403, "Forbidden")


def test_another_agents_and_another_tenants_runs_do_not_exist() -> None:
    with served() as (client, _, _world):
        client.post("/v1/runs", json={"id": "r"}, headers=BOT)
        for token in ("agent2", "agent-plain", "other-agent"):
            for method, path in (("GET", "/v1/runs/r"), ("GET", "/v1/runs/r/report"), ("POST", "/v1/runs/r/commit")):
                found = client.request(method, path, headers=as_(token))
                assert (found.status_code, found.json()["code"]) == (404, "RunNotFound"), (token, path)
            assert client.get("/v1/runs", headers=as_(token)).json()["items"] == []
        taken = client.post("/v1/runs", json={"id": "r"}, headers=as_("agent2"))
        assert taken.status_code == 404
        own = client.post("/v1/runs", json={"id": "r"}, headers=as_("other-agent"))
        assert own.status_code == 201


def test_runs_are_paged_by_a_cursor() -> None:
    with served() as (client, _, _world):
        for n in range(5):
            client.post("/v1/runs", json={"id": f"r{n}"}, headers=BOT)
        seen, after = [], ""
        for _ in range(5):
            page = client.get("/v1/runs", params={"limit": 2, "after": after}, headers=BOT).json()
            seen += [one["id"] for one in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert seen == ["r4", "r3", "r2", "r1", "r0"]
        wrong = client.get("/v1/runs", params={"after": "x"}, headers=BOT)
        assert (wrong.status_code, wrong.json()["code"]) == (400, "UsageError")


@pytest.mark.parametrize(
    "body, headers, status",
    [
        (b"{", {}, 400),
        (b'{"id": "\\ud800"}', {}, 400),
        (b'{"id": NaN}', {}, 400),
        (b"[" * 10_000, {}, 400),
        (b"[]", {}, 422),
        (b'{"id": 5}', {}, 422),
        (b'{"id": "r", "by": "me"}', {}, 422),
        (b'{"id": "r", "deadline": -1}', {}, 422),
        (b'{"id": "r"}', {"Content-Type": "text/plain"}, 415),
        (b" " * ((1 << 20) + 1), {}, 413),
    ],
)
def test_a_wrong_body_is_4xx_and_nothing_was_opened(body: bytes, headers: dict[str, str], status: int) -> None:
    with served() as (client, _, _world):
        sent = {"Content-Type": "application/json"} | headers
        found = client.post("/v1/runs", content=body, headers=BOT | sent)
        assert (found.status_code, found.json()["status"]) == (status, status)
        assert client.get("/v1/runs", headers=BOT).json() == {"items": [], "next": None}


def test_unknown_places_and_methods_are_problems() -> None:
    with served() as (client, _, _world):
        assert client.get("/v2").json()["code"] == "NoSuchRoute"
        wrong = client.put("/v1/runs", headers=BOT)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")
        assert client.get("/v1/runs?nonsense=1", headers=BOT).status_code == 422


def test_it_works_below_a_path_and_without_a_lifespan() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    with served() as (_, service, _world):
        outer = TestClient(Starlette(routes=[Mount("/tools/amends", app=service)]))
        opened = outer.post("/tools/amends/v1/runs", json={"id": "a/b"}, headers=BOT)
        assert (opened.status_code, opened.headers["location"]) == (201, "/tools/amends/v1/runs/a%2Fb")
        assert outer.get(opened.headers["location"], headers=BOT).json()["id"] == "a/b"


def test_health_and_readiness_answer_head_and_nothing_else_does() -> None:
    with served() as (client, _, _world):
        for path in ("/health", "/ready"):
            answer = client.head(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
            assert client.post(path).status_code == 405
        assert client.head("/v1/openapi.json").status_code == 405
        assert client.head("/login/link").status_code == 405


def test_the_document_health_and_readiness_are_public() -> None:
    with served() as (client, _, _world):
        assert client.get("/v1/openapi.json").json()["openapi"] == "3.1.0"
        assert client.get("/health").json()["status"] == "ok"
        assert client.get("/ready").json()["ledger"] == "ok"


def test_a_run_that_somebody_else_has_ended_is_not_open_here_any_more() -> None:
    with served() as (client, service, world):
        said = {"id": "r", "input": 1}
        client.post("/v1/runs", json=said, headers=BOT)
        call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
        client.post("/v1/runs/r/calls", json=call, headers=BOT)
        outside = {"why": "stop"}
        client.post("/v1/runs/r/rollback", json=outside, headers=as_("operator"))
        ended = client.post("/v1/runs/r/calls", json=call, headers=BOT)
        assert (ended.status_code, ended.json()["code"], len(service.sessions)) == (409, "RunEnded", 0)
        assert world.charges == {}
        taken = client.post("/v1/runs", json=said, headers=BOT)
        assert (taken.status_code, taken.json()["code"]) == (409, "RunEnded")  # a person has rolled it back


def test_an_agent_goes_on_with_its_run_under_another_token() -> None:
    from amends.serve import Who
    from tests.serve.shop import TOKENS

    TOKENS["agent-new"] = Who("bot-new", frozenset({"agent"}), agent="shopper", token="tok-new")
    try:
        with served() as (client, service, _world):
            client.post("/v1/runs", json={"id": "r"}, headers=BOT)
            assert client.post("/v1/runs", json={"id": "r"}, headers=as_("agent-new")).status_code == 200
            client.post("/v1/runs/r/suspend", headers=BOT)
            assert len(service.sessions) == 0
            assert client.post("/v1/runs", json={"id": "r"}, headers=as_("agent-new")).status_code == 200
            done = client.post("/v1/runs/r/commit", headers=as_("agent-new")).json()
            assert (done["run"]["state"], done["run"]["principal"]) == ("committed", "bot")
    finally:
        del TOKENS["agent-new"]


def test_many_at_once_open_one_run() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with served() as (client, service, world):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: client.post("/v1/runs", json={"id": "r"}, headers=BOT), range(8)))
            assert sorted(one.status_code for one in found) == [200] * 7 + [201]
            call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
            done = list(pool.map(lambda _: client.post("/v1/runs/r/calls", json=call, headers=BOT), range(8)))
        assert sorted(one.json()["status"] for one in done) == ["done"] + ["replayed"] * 7
        assert (world.charges, len(service.sessions)) == ({"1": 5}, 1)


def test_a_rollback_that_is_not_finished_is_202_for_its_client_and_for_a_person() -> None:
    @tool(key="n")
    def lend(n: int) -> None: ...

    @lend.compensate(retry=Retry(attempts=5, delay=60, jitter=0))
    def take_back(n: int) -> None:
        raise NoEffect("it is not here yet")

    with served(worker=False, wait=0.05) as (client, service, _):
        service.rt.add(lend)
        for n, headers in enumerate((BOT, as_("operator"))):
            run = f"r{n}"
            client.post("/v1/runs", json={"id": run}, headers=BOT)
            client.post(f"/v1/runs/{run}/calls", json={"tool": "lend", "args": {"n": n}}, headers=BOT)
            for _ in range(2):  # sent again it is the same
                back = client.post(f"/v1/runs/{run}/rollback", json={"why": "x"}, headers=headers)
                assert (back.status_code, back.json().get("run", {}).get("state")) == (202, "rolling_back"), back.text
                assert (back.headers["retry-after"], back.headers["location"]) == ("5", f"/v1/runs/{run}")
