"""The authorisation matrix: every route of the table, with every scope, in the own tenant and in another one.

``MAY`` says it a second time, by hand: a new route, or a changed rule, is red until somebody has said here who may use it.
"""

from typing import Any

import pytest

from amends.serve.access import SCOPES
from amends.serve.routes import ROUTES, Route
from tests.serve.shop import as_, served

READERS = "viewer approver operator"
RULES = {
    "": "openapi health ready login login_start login_callback login_link login_session logout",
    f"{READERS} agent": "schemas runs run report approval calls call events check",
    READERS: "compare test_rules inbox approvals preview doubts plan_rollback budgets costs locks halts permits metrics workers",
    "worker operator": "register take leave",
    "agent operator": "fork answer_all execute before_end open answer commit rollback renew suspend begin",
    "agent worker operator": "succeed fail renew_claim",
    "approver operator": "redeem approve reject edit withdraw ask_again delegate permit revoke",
    "operator": """bypass probe resolve retry accept decide abandon finish halt unhalt verify verification export load
                   tokens create_token revoke_token reconcile checkpoint""",
}
MAY = {name: set(scopes.split()) for scopes, names in RULES.items() for name in names.split()}
"""Who may use a route; nobody is named: it is public."""
SAID = {"events": {"run": "r"}, "compare": {"left": "r", "right": "r"}}
"""What an address says about which run, if not in its path."""
NAMED = ("run", "call", "approval", "claim", "worker")
"""What an address can name that belongs to somebody."""


ASKS = ("answer", "answer_all", "execute", "begin")
"""Routes that make calls: only in runs of one's own, or else one could approve what one has asked for."""


class Things:
    """One of everything, of the tenant without a name and of the agent ``shopper``."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.ask("POST", "/v1/runs", {"id": "r"}, "agent")
        claim = self.ask("POST", "/v1/runs/r/claims", {"tool": "charge", "args": {"order": "1", "cents": 5}}, "agent")
        self.call, self.token = claim["call"], claim["token"]
        self.ask("POST", "/v1/runs", {"id": "w"}, "agent")
        self.ask("POST", "/v1/runs", {"id": "o"}, "operator")
        held = self.ask("POST", "/v1/runs/w/calls", {"tool": "wire", "args": {"order": "1", "cents": 5}}, "agent")
        self.approval = held["error"]["approval"]
        self.permit = self.ask("POST", "/v1/permits", {"tool": "wire", "args": {"order": "9", "cents": 5}}, "approver")
        said = {"name": "t", "scopes": ["viewer"], "why": "x"}
        self.made = self.ask("POST", "/v1/tokens", said, "operator")
        self.job = self.ask("POST", "/v1/audit/verify", {}, "operator")["id"]
        self.worker = self.new_worker()

    def ask(self, method: str, path: str, body: dict[str, Any], token: str) -> Any:
        return self.client.request(method, path, json=body, headers=as_(token)).json()

    def new_worker(self) -> Any:
        tools = [{"name": "book", "kind": "read", "parameters": {"type": "object"}}]
        return self.ask("POST", "/v1/workers", {"tools": tools}, "worker")["id"]

    def path(self, route: Route, run: str = "r") -> str:
        if route.name == "leave":
            self.worker = self.new_worker()  # the last one has left
        ids = {
            "run": run,
            "call": self.call,
            "claim": self.call,
            "approval": self.approval["id"],
            "worker": self.worker,
        }
        id = ids.get(route.of) or self.others().get(route.name, "")
        path = route.path.replace("{id}", id).replace("{call}", self.call)
        assert "{" not in path, f"{route.name}: say here what its address names"
        return path

    def others(self) -> dict[str, str]:
        return {"revoke": self.permit["id"], "verification": self.job, "revoke_token": self.made["id"]}

    def body(self, route: Route) -> dict[str, Any]:
        said = dict(route.example or {})
        said |= {"digest": self.approval["digest"]} if "digest" in said else {}
        return said | ({"token": self.token} if "token" in said else {})

    def send(self, route: Route, token: str | None, run: str = "r") -> Any:
        sent: dict[str, Any] = {"headers": {} if token is None else as_(token)}
        if route.body is not None:
            sent["json"] = self.body(route)
        elif route.method == "POST":
            sent |= {"content": b"x", "headers": sent["headers"] | {"Content-Type": route.body_type}}
        needed = [name for name, one in route.query.model_fields.items() if one.is_required()]
        sent["params"] = dict.fromkeys(needed, "x") | SAID.get(route.name, {})
        return self.client.request(route.method, self.path(route, run), **sent)

    def events(self) -> int:
        found = self.client.get("/v1/events", params={"limit": 200}, headers=as_("operator")).json()
        assert found["next"] is None
        return len(found["items"])


def test_every_route_has_a_rule_here_and_every_rule_a_route() -> None:
    known = {route.name for route in ROUTES}
    assert known <= set(MAY), f"say who may use {sorted(known - set(MAY))}"
    assert set(MAY) <= known
    assert len(known) == len(ROUTES), "each route has a name of its own"


def test_nobody_without_the_scope_and_nobody_of_another_tenant_gets_in_and_nothing_is_written() -> None:
    with served(worker=False) as (client, _, _world):
        things = Things(client)
        before, wrong = things.events(), []
        for route in ROUTES:
            may = MAY[route.name]
            if not may:
                continue
            found = things.send(route, None).status_code
            wrong += [] if found == 401 else [f"{route.name} without a token: {found}"]
            for scope in SCOPES:
                if scope not in may:
                    for token in (scope, f"other-{scope}"):
                        answer = things.send(route, token)
                        is_right = (answer.status_code, answer.json()["code"]) == (403, "Forbidden")
                        wrong += [] if is_right else [f"{route.name} as {token}: {answer.status_code}"]
                elif route.of in NAMED or route.name in things.others():
                    found = things.send(route, f"other-{scope}").status_code
                    wrong += [] if found == 404 else [f"{route.name} as other-{scope}: {found}"]
                elif route.method == "GET" and "limit" in route.query.model_fields:
                    answer = things.send(route, f"other-{scope}")
                    is_empty = answer.status_code == 404 or answer.json().get("items") == []
                    wrong += [] if is_empty else [f"{route.name} shows something to other-{scope}"]
            if "agent" in may and route.of in NAMED:
                for token in ("agent2", "agent-plain"):
                    found = things.send(route, token).status_code
                    wrong += [] if found == 404 else [f"{route.name} as {token}: {found}"]
        assert wrong == []
        assert things.events() == before


def test_whoever_has_the_scope_gets_in() -> None:
    with served(worker=False) as (client, _, _world):
        things, wrong = Things(client), []
        for route in ROUTES:
            assert (route.scopes is None) == (not MAY[route.name])
            for scope in sorted(MAY[route.name]) or SCOPES:
                answer = things.send(route, scope)
                if scope == "operator" and route.name in ASKS:
                    assert answer.status_code in (403, 409), answer.text  # it is the agent's, or has ended by now
                    answer = things.send(route, scope, run="o")  # a run of their own
                if route.name.startswith("login") or route.name == "logout":
                    assert answer.json()["code"] == "NoSuchRoute"  # the program has its own way to say who asks
                elif answer.status_code in (401, 403, 404, 405) or answer.status_code >= 500:
                    wrong.append(f"{route.name} as {scope}: {answer.status_code} {answer.text[:200]}")
        assert wrong == []


@pytest.mark.parametrize("route", [route for route in ROUTES if route.scopes is not None], ids=lambda one: one.name)
def test_no_body_says_who_decides(route: Route) -> None:
    fields = set() if route.body is None else set(route.body.model_fields)
    assert not fields & {"by", "principal", "tenant", "roles", "who"}
