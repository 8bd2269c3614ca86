"""Connections that break, and services that are busy: what is safe to repeat is repeated, and nothing else is."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from amends.client import AsyncClient, Client, ServiceError, Unreachable
from amends.errors import Busy, LedgerUnavailable, UsageError
from tests.client.shop import Both

Answers = list[Callable[[httpx.Request], httpx.Response]]
HEALTHY = {"status": "ok", "version": "1"}
HALT = {"id": "h", "tenant": None, "agent": None, "tool": None, "by": "me", "why": "w", "at": "2026-01-01T00:00:00Z"}


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.client.exchange.PAUSE_S", 0.005)


def ok(data: Any = HEALTHY, status: int = 200) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, json=data)


def broken(kind: type[httpx.TransportError]) -> Callable[[httpx.Request], httpx.Response]:
    def fail(request: httpx.Request) -> httpx.Response:
        raise kind("broken", request=request)

    return fail


def refused(code: str, status: int, **headers: str) -> Callable[[httpx.Request], httpx.Response]:
    problem = {"code": code, "status": status, "detail": "not now", "hint": "later"}
    return lambda _: httpx.Response(status, json=problem, headers=headers)


def scripted(both: Both, answers: Answers, *, patience: float = 5.0, **given: Any) -> tuple[Any, list[httpx.Request]]:
    """Return a client whose requests are answered one by one, and the requests that it made."""
    made: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        made.append(request)
        return answers[len(made) - 1](request)

    transport = httpx.MockTransport(answer)
    http = (httpx.AsyncClient if both.is_async else httpx.Client)(transport=transport, verify=False)
    return both.client("http://service/base/", "token-1", http=http, patience=patience, **given), made


@pytest.mark.parametrize("kind", [httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.WriteError])
def test_a_broken_connection_is_tried_again(both: Both, kind: type[httpx.TransportError]) -> None:
    client, made = scripted(both, [broken(kind), broken(kind), ok()])
    assert both.do(client.health()) == HEALTHY
    assert [str(one.url) for one in made] == ["http://service/base/health"] * 3
    assert {one.headers["authorization"] for one in made} == {"Bearer token-1"}


def test_what_would_be_done_twice_is_sent_again_only_if_it_was_not_seen(both: Both) -> None:
    client, made = scripted(both, [broken(httpx.ConnectError), refused("TooMany", 429), ok(HALT, 201)])
    assert both.do(client.halt(why="w")).id == "h"
    assert len(made) == 3
    client, made = scripted(both, [broken(httpx.ReadTimeout), ok(HALT, 201)])
    with pytest.raises(Unreachable, match="may have been done"):
        both.do(client.halt(why="w"))
    assert len(made) == 1
    client, made = scripted(both, [refused("LedgerUnavailable", 503, **{"Retry-After": "0"}), ok(HALT, 201)])
    with pytest.raises(LedgerUnavailable):
        both.do(client.halt(why="w"))


def test_retry_after_is_honoured_as_long_as_patience_lasts(both: Both) -> None:
    client, made = scripted(both, [refused("Busy", 409, **{"Retry-After": "0"}), ok()])
    assert both.do(client.health()) == HEALTHY
    client, made = scripted(both, [refused("Busy", 409, **{"Retry-After": "30"}), ok()], patience=1.0)
    with pytest.raises(Busy):
        both.do(client.health())
    assert len(made) == 1
    client, made = scripted(both, [refused("RunTaken", 409), ok()])
    with pytest.raises(Exception, match="not now"):  # a conflict that does not pass
        both.do(client.health())
    assert len(made) == 1


def test_an_answer_of_something_else_is_an_error_that_shows_it(both: Both) -> None:
    client, _ = scripted(both, [lambda _: httpx.Response(404, text="<html>nginx</html>")])
    with pytest.raises(ServiceError, match="nginx") as found:
        both.do(client.health())
    assert found.value.status == 404
    client, _ = scripted(both, [lambda _: httpx.Response(502, text="")] * 9, patience=0.05)
    with pytest.raises(ServiceError, match="empty"):
        both.do(client.health())


def test_a_deliberate_repeat_is_never_sent_twice(both: Both) -> None:
    opened = {"id": "r", "state": "open", "generation": 1, "input": None, "over": False, "client_lease": 60.0}
    client, made = scripted(both, [ok(opened, 201), broken(httpx.ReadTimeout), ok({})])
    run = both.do(client.open("r"))
    with pytest.raises(Unreachable):
        both.do(run.answer("charge", {"order": "1"}, again="ordered twice"))
    assert len(made) == 2
    assert json.loads(made[1].content)["again"] == "ordered twice"


@pytest.mark.rest
def test_import_amends_imports_no_http() -> None:
    import subprocess
    import sys

    code = "import sys, amends, amends.runtime, amends.client; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_client_says_which_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "httpx", None)
    for colour in (Client, AsyncClient):
        with pytest.raises(ImportError, match=r"amends\[client\]"):
            colour("http://x", token="t")


def test_a_client_of_httpx2_is_as_good() -> None:
    httpx2 = pytest.importorskip("httpx2")
    made: list[Any] = []

    def answer(request: Any) -> Any:
        made.append(request)
        if len(made) == 1:
            raise httpx2.ConnectError("broken", request=request)
        return httpx2.Response(200, json=HEALTHY)

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        assert Client("http://service", token="t", http=http).health() == HEALTHY
    assert len(made) == 2
    with pytest.raises(UsageError, match="not dict"):
        Client("http://service", token="t", http={"a": 1})


# ---- What a proxy with several servers routes by

OPENED = {
    "id": "a/ä!",
    "state": "open",
    "generation": 1,
    "resumed": False,
    "input": None,
    "over": False,
    "client_lease": 60,
}
CLAIM = {
    "call": "c",
    "key": "k",
    "attempt": 1,
    "state": "started",
    "replayed": False,
    "token": "t",
    "lease": 9,
    "result": None,
}
DONE = {"call": "c", "attempt": 1, "state": "succeeded", "lease": 9}


@pytest.mark.parametrize("route", [None, "ours"])
def test_every_request_about_a_run_names_it_for_a_proxy(both: Both, route: str | None) -> None:
    renewed = {"id": "a/ä!", "state": "open", "client_lease": 60}
    client, made = scripted(both, [ok(OPENED, 201), ok(renewed), ok(CLAIM, 201), ok(DONE), ok(DONE), ok()], route=route)
    run = both.do(client.open("a/ä!"))
    both.do(run.renew())
    attempt = both.do(run.begin("ship", {}, kind="pivot"))
    both.do(attempt.renew())
    both.do(attempt.succeed("s"))
    assert [one.headers.get("x-amends-route") for one in made] == [route or "a%2F%C3%A4%21"] * 5
    both.do(client.health())
    assert made[-1].headers.get("x-amends-route") == route


@pytest.mark.parametrize("route", ["", "a\nb", "ä"])
def test_a_route_that_is_no_header_is_refused(route: str) -> None:
    with pytest.raises(UsageError, match="header"):
        Client("http://service", token="t", route=route)


def test_a_worker_is_always_sent_to_one_server() -> None:
    from amends import tool

    @tool(kind="read")
    def look() -> int:
        return 1

    made: list[httpx.Request] = []
    piece = {
        "run": "r",
        "call": "c",
        "tool": "look",
        "phase": "execute",
        "attempt": 1,
        "key": "k",
        "args": {},
        "token": "t",
    }

    def answer(request: httpx.Request) -> httpx.Response:
        made.append(request)
        path = request.url.path
        if path.endswith("/succeed"):
            worker.stop()
            return httpx.Response(200, json=DONE)
        data = {"id": "w"} if not path.endswith("/take") else {"work": {**piece, "lease": 30.0}}
        return httpx.Response(200, json=data)

    with Client("http://service", token="t", http=httpx.Client(transport=httpx.MockTransport(answer))) as client:
        worker = client.worker([look])
        worker.run()
    assert {one.url.path.rpartition("/")[2] for one in made} >= {"workers", "take", "succeed", "w"}
    [said] = {one.headers.get("x-amends-route") for one in made}
    assert said.startswith("worker-")
