"""The OpenAPI document is true: every answer of every route is one that it describes, whatever was sent.

One tour visits every route with a request that succeeds; schemathesis then sends what nobody would think of, with the
token of each scope, route by route and along the links of the document.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from schemathesis import GenerationMode
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from amends import Held, NoEffect, Retry, Rule, RunBlocked, Runtime, tool
from amends.links import links_for
from amends.serve import Limits, Service, app, openapi
from amends.serve.routes import ROUTES, Route
from tests.serve.shop import SECRET, TOKENS, World, access, as_, shopper, tools_of
from tests.serve.test_authorisation import Things

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
NEEDS_A_PROVIDER = {"login_start", "login_callback"}
"""Routes that succeed with a provider of logins only: tests/serve/test_oidc.py visits them."""
UNUSUAL = {"load"}
"""What schemathesis leaves out: a body that is no JSON."""


# ---- One request to every route


LINK_SECRET = "l" * 40


@dataclass
class ApprovalShown:
    id: str
    digest: str
    expires_at: datetime


class Tour:
    """A client that checks every answer against the document, and remembers which routes succeeded."""

    def __init__(self, client: TestClient, tokens: dict[str, str]) -> None:
        self.client, self.tokens, self.succeeded = client, tokens, set[str]()
        self.answers: dict[tuple[str, int], Any] = {}
        """The longest answer of each route and status."""
        self.schema = schemathesis.openapi.from_dict(client.get("/v1/openapi.json").json())
        self.schema.validate()

    def __call__(self, name: str, token: str, *ids: str, status: int = 200, **sent: Any) -> Any:
        [route] = [one for one in ROUTES if one.name == name]
        path = route.path
        for place, id in zip([part for part in path.split("/") if part.startswith("{")], ids, strict=True):
            path = path.replace(place, id)
        sent.setdefault("headers", {})["Authorization"] = f"Bearer {self.tokens[token]}"
        if route.scopes is None:
            del sent["headers"]["Authorization"]
        answer = self.client.request(route.method, path, **sent)
        assert answer.status_code == status, f"{name}: {answer.status_code} {answer.text}"
        self.schema[route.path][route.method].validate_response(answer)
        self.succeeded.add(name)
        found = answer.json() if answer.headers.get("content-type") == "application/json" else answer
        if found is not answer and len(str(found)) > len(str(self.answers.get((name, status), ""))):
            self.answers[name, status] = found
        return found


def stuck_runs(rt: Runtime) -> dict[str, str]:
    """Make what only a person can go on with; return what to decide about, by the verb."""

    @tool(key="order", on_conflict="hold")
    def book(order: str, room: str) -> None: ...

    @book.compensate
    def unbook() -> None: ...

    @tool
    def lend(item: str) -> None: ...

    @lend.compensate(retry=Retry(attempts=1))
    def take_back(item: str) -> None:
        raise NoEffect("it is gone")

    @tool(kind="pivot")
    def hold(what: str) -> None: ...

    @tool(kind="pivot")
    def send(what: str) -> None: ...

    rt.add(book, lend, hold, send)
    found: dict[str, str] = {}
    with pytest.raises(Held) as held, rt.run("conflict"):
        book(order="1", room="blue")
        book(order="1", room="red")
    found["decide"] = held.value.call.id
    with pytest.raises(Held) as held, rt.run("expired", recover="wait"):
        hold(what="x")
    found["ask_again"] = held.value.approval.id
    with pytest.raises(KeyError), rt.run("finish"):
        send(what="x")
        raise KeyError("after the pivot")
    with pytest.raises(RunBlocked) as blocked, rt.run("retry"):
        lend(item="x")
        raise KeyError("take it back")
    [call] = rt.report("retry").calls
    assert blocked.value.run_id == "retry"
    found["retry"] = call.id
    until = time.monotonic() + 10
    while rt.approval(found["ask_again"]).state != "expired":
        assert time.monotonic() < until
    rt.recover()
    return found


def toured(folder: Path) -> Tour:
    """Visit every route once with a request that succeeds."""
    rules = [Rule(tool="hold", expires=0.1)]
    given: dict[str, Any] = {"agents": {"shopper": shopper}, "encrypt": secrets.token_urlsafe(32)}
    url = f"sqlite:///{folder}/l.db"
    with Runtime(url, tools=tools_of(World()), lease=5.0, rules=rules, link_secret=LINK_SECRET, **given) as rt:
        tokens = {}
        for scope in ("viewer", "approver", "operator", "agent", "worker"):
            agent = "shopper" if scope == "agent" else ""
            tokens[scope] = rt.create_token(scope, scopes=scope, agent=agent, by="me", why="x").text or ""
        stuck = stuck_runs(rt)
        service = app(rt, secrets=SECRET)
        with TestClient(service, base_url="http://testserver", follow_redirects=False) as client:
            ask = Tour(client, tokens)
            _for_agents(ask)
            _for_workers(ask)
            _for_people(ask, stuck)
            _for_auditors(ask)
            assert service.logins is not None
            _for_browsers(ask, service.logins.new_link("http://testserver", name="ada"))
    return ask


def test_every_route_succeeds_once_and_answers_as_the_document_says(tmp_path: Path) -> None:
    assert {route.name for route in ROUTES} - toured(tmp_path).succeeded == NEEDS_A_PROVIDER


def operations(document: Any) -> Iterator[tuple[str, Any]]:
    for path in document["paths"].values():
        for operation in path.values():
            yield operation["operationId"], operation


def test_every_answer_and_every_body_that_is_json_has_an_example_that_is_as_the_document_says() -> None:
    document = openapi.document(ROUTES)
    wrong: list[str] = []
    seen = 0
    for name, operation in operations(document):
        parts = [("body", operation["requestBody"])] if "requestBody" in operation else []
        for what, part in [*parts, *operation["responses"].items()]:
            for media_type, content in part.get("content", {}).items():
                if not media_type.endswith("json"):
                    continue
                seen += 1
                example = content.get("example")
                for one in content.get("examples", {}).values():
                    example = document["components"]["examples"][one["$ref"].rpartition("/")[2]]["value"]
                    assert example["status"] == int(what)
                if example is None:
                    wrong.append(f"{name} {what}: none; run scripts/examples.py")
                    continue
                schema = {**content["schema"], "components": document["components"]}
                found = Draft202012Validator(schema).iter_errors(example)
                wrong += [f"{name} {what}: {error.json_path} {error.message[:200]}" for error in found]
    assert wrong == []
    assert seen > 1_000


def test_every_parameter_says_what_it_is() -> None:
    document = openapi.document(ROUTES)
    named = [(name, one) for name, operation in operations(document) for one in operation["parameters"]]
    assert [f"{name}: {one['name']}" for name, one in named if not one.get("description")] == []


def test_no_example_has_a_secret_or_the_name_of_a_machine() -> None:
    text = openapi.EXAMPLES.read_text(encoding="utf-8")
    assert re.findall(r"amt_[0-9A-Za-z]+_[0-9A-Za-z]+", text) == []
    assert str(Path.home()) not in text
    assert "/tmp/" not in text


def _for_agents(ask: Tour) -> None:
    charge = {"tool": "charge", "args": {"order": "1", "cents": 5}}
    ask("schemas", "agent")
    ask("kind_of", "agent", "charge")
    ask("start", "agent", "shopper", json={"id": "started", "wait": 10})
    ask("open", "agent", status=201, json={"id": "order-1042"})
    ask("open", "agent", json={"id": "order-1042"})
    ask("answer", "agent", "order-1042", json=charge)
    ask("renew", "agent", "order-1042")
    ask("approval_for", "agent", "order-1042", json={"tool": "stock", "args": {"item": "x"}})
    ask(
        "answer_all",
        "agent",
        "order-1042",
        json={"calls": [{"tool": "stock", "args": {"item": "x"}}, {"tool": "nothing"}]},
    )
    ask("execute", "agent", "order-1042", json={"plan": [[{"tool": "stock", "args": {"item": "y"}}]]})
    ask("check", "agent", json={"plan": [{"tool": "wire", "args": {"order": "1", "cents": 1}}]})
    ask("before_end", "agent", "order-1042")
    claim = ask("begin", "agent", "order-1042", status=201, json={"tool": "charge", "args": {"order": "2", "cents": 5}})
    ask("renew_claim", "agent", claim["call"], json={"token": claim["token"]})
    ask("succeed", "agent", claim["call"], json={"token": claim["token"], "result": "ch_2"})
    ask("begin", "agent", "order-1042", json={"tool": "charge", "args": {"order": "2", "cents": 5}})
    claim = ask("begin", "agent", "order-1042", status=201, json={"tool": "charge", "args": {"order": "3", "cents": 5}})
    ask("fail", "agent", claim["call"], json={"token": claim["token"], "error": "no", "no_effect": True})
    ask("runs", "agent")
    ask("run", "agent", "order-1042")
    ask("report", "agent", "order-1042")
    ask("calls", "agent")
    ask("call", "agent", claim["call"])
    ask("plan_rollback", "viewer", "order-1042")
    ask("open_child", "agent", "order-1042", status=201, json={"id": "leg-1"})
    ask("open_child", "agent", "order-1042", json={"id": "leg-1"})
    ask("commit", "agent", "order-1042%2Fleg-1", json={})
    ask("suspend", "agent", "order-1042")
    ask("commit", "agent", "order-1042", json={"output": {"paid": True}})
    ask("compare", "viewer", params={"left": "order-1042", "right": "order-1042"})
    [first, *_] = ask("report", "agent", "order-1042")["calls"]
    ask("fork", "agent", "order-1042", status=201, json={"at": first["id"], "id": "forked"})
    ask("open", "agent", status=201, json={"id": "back"})
    ask("rollback", "agent", "back", json={"why": "the customer has changed their mind"})


def _for_workers(ask: Tour) -> None:
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}}
    declared = {"name": "pack", "kind": "pivot", "parameters": shape}
    worker = ask("register", "worker", status=201, json={"name": "p", "tools": [declared]})["id"]
    ask("workers", "viewer")
    assert ask("take", "worker", worker, json={"wait": 0})["work"] is None
    ask("open", "agent", status=201, json={"id": "packed"})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, "answer", "agent", "packed", json={"tool": "pack", "args": {"n": 1}})
        work = ask("take", "worker", worker, json={"wait": 10})["work"]
        ask("renew_claim", "worker", work["call"], json={"token": work["token"]})
        ask("succeed", "worker", work["call"], json={"token": work["token"], "result": "packed"})
        assert asked.result(10)["value"] == "packed"
    ask("leave", "worker", worker)


def _for_people(ask: Tour, stuck: dict[str, str]) -> None:
    why = {"why": "checked with the customer"}
    ask("retry", "operator", stuck["retry"], json=why)
    ask("decide", "operator", stuck["decide"], json={"decision": "refuse"} | why)
    ask("finish", "operator", "finish", json=why)
    ask("ask_again", "approver", stuck["ask_again"], json=why)

    def asked(run: str) -> Any:
        ask("open", "agent", status=201, json={"id": run})
        held = ask("answer", "agent", run, status=202, json={"tool": "wire", "args": {"order": run, "cents": 5}})
        ask("approvals", "viewer")
        ask("inbox", "viewer")
        return held["error"]["approval"]

    for name in ("approve", "bypass"):
        request = asked(name)
        token = "approver" if name == "approve" else "operator"
        ask("approval", "viewer", request["id"])
        ask("precedents", "viewer", request["id"])
        ask(name, token, request["id"], json={"digest": request["digest"]} | why)
    ask("approvals", "viewer")
    ask("inbox", "viewer")
    ask("reject", "approver", asked("reject")["id"], json={"reason": "too expensive"})
    ask("withdraw", "approver", asked("withdraw")["id"], json=why)
    ask("edit", "approver", asked("edit")["id"], json={"args": {"order": "e", "cents": 4}} | why)
    ask("delegate", "approver", status=201, json={"to": "ben", "until": 60} | why)
    permit = ask("permit", "approver", status=201, json={"tool": "wire", "args": {"order": "p", "cents": 5}})
    ask("permits", "viewer")
    ask("revoke", "approver", permit["id"], params=why)
    _for_doubts(ask)
    ask("test_rules", "viewer", json={"tool": "wire", "args": {"order": "1", "cents": 1}})
    ask("reconcile", "operator", json={"tool": "charge"})
    request = asked("redeem")
    shown = ApprovalShown(request["id"], request["digest"], datetime.fromisoformat(request["expires_at"]))
    links = links_for(shown, secret=LINK_SECRET)
    ask("redeem", "approver", json={"token": links["approve"]})
    for name in ("overview", "budgets", "costs", "locks", "spending", "tool_use", "describe_tools", "unfinished"):
        ask(name, "viewer")
    ask("halt", "operator", status=201, json={"tool": "wire"} | why)
    ask("halts", "viewer")
    ask("oncall", "viewer")
    ask("check_oncall", "viewer")
    ask("unhalt", "operator", params={"tool": "wire"} | why)
    made = ask("create_token", "operator", status=201, json={"name": "t", "scopes": ["viewer"]} | why)
    ask("tokens", "operator")
    ask("revoke_token", "operator", made["id"], params=why)


def _for_doubts(ask: Tour) -> None:
    why = {"why": "checked with the customer"}

    def doubt(run: str, tool: str = "ship") -> str:
        ask("open", "agent", status=201, json={"id": run, "recover": "wait"})
        claim = ask("begin", "agent", run, status=201, json={"tool": tool, "kind": "pivot", "args": {"n": run}})
        ask("fail", "agent", claim["call"], json={"token": claim["token"], "error": "?", "doubt": True})
        return str(claim["call"])

    ask("doubts", "viewer")
    call = doubt("doubt")
    ask("doubts", "viewer")
    ask("told", "viewer", call)
    ask("preview", "viewer", call)
    ask("probe", "operator", call)
    ask("resolve", "operator", call, json={"answer": "happened", "result": 1} | why)
    ask("accept", "operator", doubt("accept"), json=why)
    abandoned = doubt("abandon")
    ask("suspend", "agent", "abandon")
    ask("abandon", "operator", "abandon", json=why)
    ask("call", "viewer", abandoned)


def _for_auditors(ask: Tour) -> None:
    ask("events", "viewer")
    ask("newest_event", "viewer")
    ask("settings", "operator")
    ask("schema", "operator")
    someone = {"runs": ["order-1042"], "why": "request 4711", "dry_run": True}
    for name, body in (
        ("verify", {}), ("gc", {"older_than": "1d"}), ("erase", someone), ("reencrypt", {}), ("recover", {}),
        ("replay_each", {"runs": ["started"]}),
    ):  # fmt: skip
        named = ["shopper"] if name == "replay_each" else []
        made = ask(name, "operator", *named, status=202, json=body)
        until = time.monotonic() + 10
        while (found := ask("long_work", "operator", made["id"]))["state"] == "running":
            assert time.monotonic() < until
        assert (found["what"], found["state"]) == (name, "done"), found
    ask("checkpoint", "operator", status=201)
    assert ask("checkpoints", "operator")["items"]
    assert ask("recent_events", "viewer", params={"limit": 1})["next"]
    bundle = ask("export", "operator", json={"runs": ["order-1042"]})
    ask("load", "operator", content=bundle.content, headers={"Content-Type": "application/zip"})
    for name in ("openapi", "health", "ready"):
        ask(name, "viewer")
    ask("metrics", "viewer")


def _for_browsers(ask: Tour, link: str) -> None:
    ask("login", "viewer")
    ask("login_link", "viewer", status=303, params={"once": link.partition("once=")[2]})
    said = ask("login_session", "viewer")
    ask("logout", "viewer", headers={"X-CSRF-Token": said["csrf"]})


# ---- What nobody would think of


class Via:
    """Requests to the application on the event loop that schemathesis uses."""

    def __init__(self, service: Any) -> None:
        self.session = asgi.get_client(service)

    def request(self, method: str, path: str, *, content: bytes | None = None, **sent: Any) -> requests.Response:
        given = {} if content is None else {"data": content}
        return self.session.request(method, f"http://{asgi.HOST}{path}", **given, **sent)

    def get(self, path: str, **sent: Any) -> requests.Response:
        return self.request("GET", path, **sent)


def new_service() -> Service:
    rt = Runtime("memory:", tools=tools_of(World()), agents={"shopper": shopper}, lease=5.0, wait=0.05)
    limits = Limits(answer_s_max=2.0, streams_max=0, take_s_max=0.01)
    return app(rt, access=access, secrets=SECRET, limits=limits, worker=False)


def served_by_schemathesis(routes: Iterable[Route] = ROUTES) -> tuple[Any, Things]:
    service = new_service()
    things = Things(Via(service))
    document = openapi.document(routes)
    for operation in (one for path in document["paths"].values() for one in path.values()):
        # Most tokens belong to one tenant, and whatever names another one is refused before anything else is tried.
        operation["parameters"] = [one for one in operation["parameters"] if one["name"] != "tenant"]
    schema = schemathesis.openapi.from_dict(document)
    schema.app = service
    return schema, things


def tried(schema: Any, things: Things, token: str, examples: int) -> Counter[tuple[str, int]]:
    """Send this many requests to every route; return how often each was answered with which status."""
    seen: Counter[tuple[str, int]] = Counter()
    routes = {(route.method, route.path): route for route in ROUTES}

    def one(route: Route, operation: Any) -> None:
        @settings(max_examples=examples, deadline=None, database=None, phases=[Phase.generate], derandomize=True,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(case=operation.as_strategy(), known=st.booleans())
        def sent(case: Any, known: bool) -> None:
            if known and case.path_parameters:
                case.path_parameters = dict(zip(case.path_parameters, [things.path(route).split("/")[3]], strict=True))
            answer = case.call(headers=as_(token))
            seen[route.name, answer.status_code] += 1
            case.validate_response(answer, checks=CHECKS)

        sent()

    for found in schema.get_all_operations():
        route = routes[found.ok().method.upper(), found.ok().path]
        if route.name not in UNUSUAL:
            one(route, found.ok())
    return seen


def test_whatever_is_sent_the_answer_is_in_the_document() -> None:
    schema, things = served_by_schemathesis()
    seen = tried(schema, things, "operator", 1)
    assert {route.name for route in ROUTES} - {name for name, _ in seen} == UNUSUAL


@pytest.mark.rest
@pytest.mark.parametrize("token", ["viewer", "agent", "worker", "approver", "operator", "everywhere"])
def test_whatever_is_sent_with_any_token_the_answer_is_in_the_document(token: str) -> None:
    assert token in TOKENS
    schema, things = served_by_schemathesis()
    seen = tried(schema, things, token, 8)
    assert sum(seen.values()) >= 200


@pytest.mark.rest
@pytest.mark.parametrize("token", ["viewer", "agent", "worker", "approver", "operator", "everywhere"])
def test_whatever_follows_whatever_the_answer_is_in_the_document(token: str) -> None:
    linked = {name for route in ROUTES for name in (route.links and [route.name, *route.links])}
    schema, _ = served_by_schemathesis(route for route in ROUTES if route.name in linked)
    schema.config.generation.update(modes=[GenerationMode.POSITIVE])
    seen: Counter[tuple[str, int]] = Counter()
    drives = token == "agent"  # nobody else makes calls in its runs
    routes = {(route.method, route.path): route for route in ROUTES}

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            self.service = new_service()  # what one example left behind must not lead the next one elsewhere
            self.things, self.calls = Things(Via(self.service)), 0

        def before_call(self, case: Any) -> None:
            """Let most requests be about something that exists: what was made up at random is not found."""
            self.calls += 1
            route = routes[case.operation.method.upper(), case.operation.path]
            if self.calls % 4 and case.path_parameters:
                case.path_parameters = dict.fromkeys(case.path_parameters, self.things.path(route).split("/")[3])
            if self.calls % 4 and isinstance(case.body, dict):
                case.body |= {name: value for name, value in self.things.body(route).items() if name != "id"}

        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": as_(token), "app": self.service}

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            seen[case.operation.definition.raw["operationId"], response.status_code] += 1
            case.validate_response(response, checks=CHECKS)

    Machine.run(
        settings=settings(max_examples=100 if drives else 40, stateful_step_count=8, deadline=None, database=None, derandomize=True,
                          suppress_health_check=list(HealthCheck))
    )  # fmt: skip
    assert sum(seen.values()) >= 200
    assert not drives or seen["answer", 200] + seen["begin", 201] + seen["commit", 200] > 20
