"""The authorisation matrix: every route of the table, with every scope, in the own tenant and in another one.

``MAY`` says it a second time, by hand: a new route, or a changed rule, is red until somebody has said here who may use it.
"""

from typing import Any

import pytest

from amends.serve.access import SCOPES
from amends.serve.console import PAGES, Page
from amends.serve.routes import ROUTES, Route
from tests.serve.shop import as_, served

READERS = "viewer approver operator"
RULES = {
    "": "openapi health ready login login_start login_callback login_link login_session logout",
    f"{READERS} agent": "schemas kind_of runs run report approval calls call told events newest_event check",
    READERS: """compare test_rules inbox approvals precedents preview doubts plan_rollback budgets costs locks halts
                permits metrics workers overview spending tool_use describe_tools unfinished recent_events oncall
                check_oncall""",
    "worker operator": "register take leave",
    "agent operator": """fork answer_all execute before_end open open_child start approval_for answer commit rollback renew
                         suspend begin""",
    "agent worker operator": "succeed fail renew_claim",
    "approver operator": "redeem approve reject edit withdraw ask_again delegate permit revoke",
    "operator": """bypass probe resolve retry accept decide abandon finish halt unhalt verify long_work export load
                   settings schema gc erase reencrypt recover replay_each checkpoints
                   tokens create_token revoke_token reconcile checkpoint""",
}
MAY = {name: set(scopes.split()) for scopes, names in RULES.items() for name in names.split()}
"""Who may use a route; nobody is named: it is public."""
SAID = {"events": {"run": "r"}, "newest_event": {"run": "r"}, "compare": {"left": "r", "right": "r"}}
"""What an address says about which run, if not in its path."""
NAMES = {"kind_of": "charge", "start": "shopper", "replay_each": "shopper"}
"""What is named that belongs to nobody."""
NAMED = ("run", "call", "approval", "claim", "worker")
"""What an address can name that belongs to somebody."""


ASKS = ("answer", "answer_all", "execute", "begin", "open_child", "approval_for")
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
        self.replay = self.ask("POST", "/v1/agents/shopper/replay", {"runs": ["r"]}, "operator")["id"]
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
        id = ids.get(route.of) or (self.others() | NAMES).get(route.name, "")
        path = route.path.replace("{id}", id).replace("{call}", self.call)
        assert "{" not in path, f"{route.name}: say here what its address names"
        return path

    def others(self) -> dict[str, str]:
        return {"revoke": self.permit["id"], "long_work": self.job, "revoke_token": self.made["id"]}

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
                elif route.of == "ledger":  # it concerns every tenant, so one of a tenant may not
                    for token in (scope, f"other-{scope}"):
                        found = things.send(route, token).status_code
                        wrong += [] if found == 403 else [f"{route.name} as {token}: {found}"]
                elif route.method == "GET" and "limit" in route.query.model_fields:
                    answer = things.send(route, f"other-{scope}")
                    said = answer.json()
                    items = said.get("runs" if route.name == "overview" else "items")
                    if route.name == "describe_tools":  # the server's own are for everybody, a worker's are not
                        items = [one for one in items if one["name"] == "book"]
                    is_empty = answer.status_code == 404 or items == []
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
                answer = things.send(route, "everywhere" if route.of == "ledger" else scope)
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


# ---- The console: the same matrix for its pages and acts

PAGE_RULES = {
    "": "static",
    READERS: """home live logout runs run call rollback compare approvals approval approval_edit doubts doubt stuck costs
                tools tool workers audit""",
    "approver operator": "act_approve act_reject act_edit act_withdraw act_ask_again act_revoke",
    "operator": """act_bypass act_probe act_resolve act_retry act_accept act_decide act_finish act_abandon apply_rollback
                abandon_run finish_run retry_call accept_call decide_call fork_run halt unhalt tokens create_token
                revoke_token verification verify checkpoint export load replay_run replay""",
}
PAGE_MAY = {name: set(scopes.split()) for scopes, names in PAGE_RULES.items() for name in names.split()}
"""Who may see a page, or send its form."""
PAGE_SAID: dict[str, dict[str, str]] = {"compare": {"a": "r", "b": "w"}}
"""What the address of a page says, if its path alone is not enough."""
SAID_ALL = {"confirmed": "yes", "why": "x", "digest": "d", "reason": "x", "answer": "absent", "decision": "run"}
WHY = {"confirmed": "yes", "why": "x"}
FORMS: dict[str, dict[str, str]] = {
    **{page.name: SAID_ALL for page in PAGES if page.name.startswith("act_")},
    **dict.fromkeys(("abandon_run", "finish_run", "retry_call", "accept_call"), WHY),
    "apply_rollback": WHY | {"plan": "x"},
    "decide_call": WHY | {"decision": "run"},
    "halt": {"tool": "charge", "why": "x", "confirmed": "yes"},
    "unhalt": {"tool": "charge", "why": "x", "confirmed": "yes"},
    "create_token": {"name": "x", "scope": "viewer", "why": "x"},
    "revoke_token": {"id": "tok_x", "why": "x", "confirmed": "yes"},
    "export": {"runs": "r"},
}
"""What a form sends, if an empty one is not understood."""


def page_path(things: Things, page: Page, run: str = "r") -> str:
    ids = {"run": run, "call": things.call, "approval": things.approval["id"], "worker": things.worker}
    path = page.path.replace("{name}", "console.css" if page.name == "static" else "charge")
    ids |= {"tenant": things.permit["id"]} if page.name == "act_revoke" else {}
    job = things.replay if page.name == "replay" else things.job
    return path.replace("{id}", ids.get(page.of, "")).replace("{job}", job)


def sent(things: Things, page: Page, token: str | None) -> Any:
    headers = {} if token is None else as_(token)
    given: dict[str, Any] = {"headers": headers, "params": PAGE_SAID.get(page.name, {}), "follow_redirects": False}
    if page.method == "POST":
        given["data"] = FORMS.get(page.name, {"confirmed": "yes"})
    return things.client.request(page.method, page_path(things, page), **given)


def test_every_page_has_a_rule_here_and_every_rule_a_page() -> None:
    known = {page.name for page in PAGES}
    assert known <= set(PAGE_MAY), f"say who may see {sorted(known - set(PAGE_MAY))}"
    assert set(PAGE_MAY) <= known
    for page in PAGES:
        assert (page.scopes is None) == (not PAGE_MAY[page.name])


def test_no_page_is_shown_and_no_form_taken_without_the_scope_or_for_another_tenant() -> None:
    with served(worker=False) as (client, _, _world):
        things = Things(client)
        before, wrong = things.events(), []
        for page in PAGES:
            may = PAGE_MAY[page.name]
            if not may:
                continue
            found = sent(things, page, None).status_code
            wrong += [] if found == 401 else [f"{page.name} without a token: {found}"]
            for scope in SCOPES:
                if scope not in may:
                    for token in (scope, f"other-{scope}"):
                        answer = sent(things, page, token)
                        is_right = (answer.status_code, answer.json()["code"]) == (403, "Forbidden")
                        wrong += [] if is_right else [f"{page.name} as {token}: {answer.status_code}"]
                elif page.of in NAMED:
                    found = sent(things, page, f"other-{scope}").status_code
                    wrong += [] if found == 404 else [f"{page.name} as other-{scope}: {found}"]
        assert wrong == []
        assert things.events() == before


def test_whoever_may_see_a_page_sees_it() -> None:
    with served(worker=False) as (client, _, _world):
        things, wrong = Things(client), []
        for page in PAGES:
            if page.method == "POST" or page.name == "live":  # a stream has no end
                continue
            for scope in sorted(PAGE_MAY[page.name]) or SCOPES:
                answer = sent(things, page, scope)
                if answer.status_code not in (200, 303):
                    wrong.append(f"{page.name} as {scope}: {answer.status_code} {answer.text[:200]}")
        assert wrong == []
