"""Stand-ins of HTTP APIs that need an account: what the real MCP servers are made to talk to.

One server on this machine answers for every host; ``loopback.cjs`` names the host that was meant. What is made, found,
changed and removed is in the books, which the test compares. A request for which there is no route is answered with 404
and is in ``unknown``: a test that needs such a route fails.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Thing = dict[str, Any]
Answer = tuple[int, Any]
Route = Callable[["Api", list[str], Thing], Answer]
NOT_FOUND: Answer = (
    404,
    {"message": "Not Found", "error": {"code": 404, "type": "invalid_request_error", "message": "Not Found"}},
)


class Api:
    """The books of one API, and what it was asked."""

    def __init__(self, host: str, books: dict[str, dict[str, Thing]]) -> None:
        self.host = host
        self.books = json.loads(json.dumps(books))
        self.asked: list[str] = []
        self.unknown: list[str] = []
        self.failing: dict[str, Answer] = {}
        """What is answered to a method and path instead."""
        self._lock = threading.Lock()
        self._made = 100

    def answer(self, host: str, method: str, path: str, body: Thing) -> Answer:
        """Answer one request."""
        with self._lock:
            self.asked.append(f"{method} {path}")
            if f"{method} {path}" in self.failing:
                return self.failing[f"{method} {path}"]
            for wanted, pattern, route in ROUTES[self.host] if host == self.host else ():
                found = re.fullmatch(pattern, path)
                if wanted == method and found is not None:
                    return route(self, list(found.groups()), body)
            self.unknown.append(f"{method} {host} {path}")
            return NOT_FOUND

    def number(self) -> int:
        self._made += 1
        return self._made

    def made(self, kind: str, name: Any, thing: Thing) -> Thing:
        self.books.setdefault(kind, {})[str(name)] = thing
        return thing


@contextmanager
def serving(host: str, books: dict[str, dict[str, Thing]]) -> Iterator[tuple[str, Api]]:
    """Serve an API on this machine; return its address and its books."""
    api = Api(host, books)

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length).decode()
            where = urlsplit(self.path)
            body = dict(parse_qsl(where.query))
            if "json" in self.headers.get("Content-Type", ""):
                body |= json.loads(sent or "{}")
            else:
                body |= dict(parse_qsl(sent))
            status, said = api.answer(str(self.headers.get("x-meant-host")), self.command, where.path, body)
            text = b"" if said is None else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", api
        finally:
            server.shutdown()
            thread.join(timeout=10)


def gets(kind: str, missing: Answer = NOT_FOUND) -> Route:
    def route(api: Api, names: list[str], _body: Thing) -> Answer:
        found = api.books.get(kind, {}).get(names[-1])
        return missing if found is None else (200, found)

    return route


def removes(kind: str, missing: Answer = NOT_FOUND) -> Route:
    """Remove a thing for good, and answer with nothing."""

    def route(api: Api, names: list[str], _body: Thing) -> Answer:
        return missing if api.books.get(kind, {}).pop(names[-1], None) is None else (204, None)

    return route


# ---- GitHub


def _user(login: str) -> Thing:
    return {"login": login, "id": 1, "avatar_url": "", "url": "", "html_url": ""}


def issue(number: int, **words: Any) -> Thing:
    """Return an issue as this API tells of it."""
    made: Thing = {"number": number, "title": "", "body": None, "state": "open", "labels": [], "assignees": []}
    for word, value in words.items():
        if word == "labels":
            made[word] = [{"name": one} for one in value]
        elif word == "assignees":
            made[word] = [_user(one) for one in value]
        elif word in made:
            made[word] = value or None  # to this API an empty text is none
    return made


def _new_issue(api: Api, _names: list[str], body: Thing) -> Answer:
    number = api.number()
    return 201, api.made("issue", number, issue(number, **body))


def _new_pull(api: Api, _names: list[str], body: Thing) -> Answer:
    number = api.number()
    api.made("issue", number, issue(number, **body))
    return 201, {
        "url": "", "id": number, "node_id": "n", "html_url": "", "diff_url": "", "patch_url": "", "issue_url": "",
        "number": number, "state": "open", "locked": False, "title": body["title"], "user": _user("ann"), "body": None,
        "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "closed_at": None, "merged_at": None,
        "merge_commit_sha": None, "assignee": None, "assignees": [], "requested_reviewers": [], "labels": [],
        "head": _branch(body["head"]), "base": _branch(body["base"]),
    }  # fmt: skip


def _branch(name: str) -> Thing:
    owner = {
        "login": "o", "id": 1, "node_id": "n", "avatar_url": "", "url": "", "html_url": "", "type": "User",
    }  # fmt: skip
    repo = {
        "id": 1, "node_id": "n", "name": "r", "full_name": "o/r", "private": False, "owner": owner, "html_url": "",
        "description": None, "fork": False, "url": "", "created_at": "", "updated_at": "", "pushed_at": "", "git_url": "",
        "ssh_url": "", "clone_url": "", "default_branch": "main",
    }  # fmt: skip
    return {"label": f"o:{name}", "ref": name, "sha": "0", "user": _user("ann"), "repo": repo}


def _change_issue(api: Api, names: list[str], body: Thing) -> Answer:
    old = api.books["issue"].get(names[-1])
    if old is None:
        return NOT_FOUND
    words = {word: old[word] for word in ("title", "body", "state")}
    words |= {"labels": [one["name"] for one in old["labels"]], "assignees": [one["login"] for one in old["assignees"]]}
    return 200, api.made("issue", names[-1], issue(old["number"], **{**words, **body}))


# ---- Notion

ABSENT = (404, {"object": "error", "status": 404, "code": "object_not_found", "message": "Could not find it."})


def _new_page(api: Api, _names: list[str], body: Thing) -> Answer:
    name = f"page-{api.number()}"
    return 200, api.made("page", name, {"object": "page", "id": name, "in_trash": False, **body})


def _changes(kind: str) -> Route:
    def route(api: Api, names: list[str], body: Thing) -> Answer:
        if names[-1] not in api.books.get(kind, {}):
            return ABSENT
        api.books[kind][names[-1]] |= body
        return 200, api.books[kind][names[-1]]

    return route


def _new_blocks(api: Api, names: list[str], body: Thing) -> Answer:
    made = []
    for one in body["children"]:
        name = f"block-{api.number()}"
        made.append(api.made("block", name, {"object": "block", "id": name, "in": names[-1], "archived": False, **one}))
    return 200, {"object": "list", "results": made}


def _trash_block(api: Api, names: list[str], _body: Thing) -> Answer:
    return _changes("block")(api, names, {"archived": True})


# ---- Slack, Stripe, Google


def _new_message(api: Api, _names: list[str], body: Thing) -> Answer:
    if body["channel"] == "C-archived":  # this API says no with status 200
        return 200, {"ok": False, "error": "is_archived"}
    name = f"{api.number()}.0001"
    return 200, {"ok": True, "channel": body["channel"], "ts": name, "message": api.made("message", name, body)}


def makes(kind: str, **words: Any) -> Route:
    """Make a thing of what was sent, under a new id."""

    def route(api: Api, _names: list[str], body: Thing) -> Answer:
        name = f"{kind}-{api.number()}"
        return 200, api.made(kind, name, {**words, **body, "id": name})

    return route


def _calendars(_api: Api, _names: list[str], _body: Thing) -> Answer:
    return 200, {"items": [{"id": "ann@example.com", "summary": "Ann", "primary": True, "accessRole": "owner"}]}


def _calendar(_api: Api, _names: list[str], _body: Thing) -> Answer:
    return 200, {"id": "ann@example.com", "summary": "Ann", "timeZone": "UTC", "accessRole": "owner"}


def _events(api: Api, _names: list[str], _body: Thing) -> Answer:
    return 200, {"items": list(api.books.get("event", {}).values())}


MAIL = "/gmail/v1/users/me"
CALENDAR = "/calendar/v3"
ROUTES: dict[str, list[tuple[str, str, Route]]] = {
    "api.github.com": [
        ("POST", "/repos/o/r/issues", _new_issue),
        ("POST", "/repos/o/r/pulls", _new_pull),
        ("GET", r"/repos/o/r/issues/(\d+)", gets("issue")),
        ("PATCH", r"/repos/o/r/issues/(\d+)", _change_issue),
    ],
    "api.notion.com": [
        ("POST", "/v1/pages", _new_page),
        ("GET", "/v1/pages/([^/]+)", gets("page", ABSENT)),
        ("PATCH", "/v1/pages/([^/]+)", _changes("page")),
        ("POST", "/v1/pages/([^/]+)/move", _changes("page")),
        ("PATCH", "/v1/blocks/([^/]+)/children", _new_blocks),
        ("DELETE", "/v1/blocks/([^/]+)", _trash_block),
        ("PATCH", "/v1/blocks/([^/]+)", _changes("block")),
    ],
    "slack.com": [("POST", "/api/chat.postMessage", _new_message)],
    "api.stripe.com": [
        ("POST", "/v1/customers", makes("customer", object="customer")),
        ("POST", "/v1/refunds", makes("refund", object="refund")),
    ],
    "gmail.googleapis.com": [
        ("POST", f"{MAIL}/labels", makes("label", type="user")),
        ("GET", f"{MAIL}/labels/([^/]+)", gets("label")),
        ("DELETE", f"{MAIL}/labels/([^/]+)", removes("label")),
        ("POST", f"{MAIL}/settings/filters", makes("filter")),
        ("DELETE", f"{MAIL}/settings/filters/([^/]+)", removes("filter")),
    ],
    "www.googleapis.com": [
        ("GET", f"{CALENDAR}/users/me/calendarList", _calendars),
        ("GET", f"{CALENDAR}/users/me/calendarList/([^/]+)", _calendar),
        ("GET", f"{CALENDAR}/calendars/([^/]+)", _calendar),
        ("GET", f"{CALENDAR}/calendars/([^/]+)/events", _events),
        ("POST", f"{CALENDAR}/calendars/([^/]+)/events", makes("event", status="confirmed")),
        ("DELETE", f"{CALENDAR}/calendars/([^/]+)/events/([^/]+)", removes("event")),
    ],
}
