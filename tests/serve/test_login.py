"""People with a browser: a link that is good once, cookies that other sites cannot use, and nothing secret in a log."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import time
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from amends import AsyncRuntime
from amends.secrets import Secrets
from amends.serve.login import Logins, RedactSecrets, keep_out_of_logs, redacted
from amends.stores.memory import MemoryStore
from tests.serve.browser import SECRET, played, service, visit

BASE = "http://127.0.0.1:8000"


class Clock:
    now = 1_794_842_543.0

    def __call__(self) -> float:
        return self.now


def cookie_of(answer: httpx.Response, name: str = "amends_session") -> Any:
    jar = SimpleCookie(answer.headers["set-cookie"])
    return jar[name]


async def enter(logins: Logins, browser: httpx.AsyncClient, **given: Any) -> httpx.Response:
    answer = await browser.get(logins.new_link(BASE, name="ada", **given).removeprefix(BASE))
    assert answer.status_code == 303, answer.text
    return answer


def test_a_link_lets_one_browser_in_once() -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        link = logins.new_link(BASE, name="ada", scopes=("approver",), tenant="acme")
        answer = await browser.get(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        cookie = cookie_of(answer)
        assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "lax", "/")
        assert 0 < int(cookie["max-age"]) <= 28_800
        assert not cookie["secure"]
        who = (await browser.get("/v1/anything")).json()
        assert (who["name"], who["scopes"], who["tenant"]) == ("ada", ["approver"], "acme")
        async with visit(service(rt, logins)) as other:
            again = await other.get(link)
            assert (again.status_code, again.json()["code"]) == (403, "LinkVoid")
            assert "amends serve APP:RT --open" in again.json()["hint"]
            assert "set-cookie" not in again.headers
            assert (await other.get("/v1/anything")).status_code == 401
        [token] = await rt.tokens(kind="link")
        assert (token.id, token.by, token.principal) == (who["token"], "ada", "ada")
        assert (await rt.verify()).ok

    played(flow)


def test_a_link_is_valid_for_five_minutes() -> None:
    clock = Clock()

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        early, late = (logins.new_link(BASE, name="ada") for _ in range(2))
        clock.now += 299
        assert (await browser.get(early)).status_code == 303
        clock.now += 2
        answer = await browser.get(late)
        assert (answer.status_code, answer.json()["detail"]) == (403, "this link has expired")
        assert "amends serve APP:RT --open" in answer.json()["hint"]
        assert len(await rt.tokens(kind="link")) == 1

    played(flow, secrets=Secrets(SECRET, clock=clock))


def test_a_link_ends_although_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, mono = Clock(), Clock()
    monkeypatch.setattr("amends.serve.login.time.monotonic", mono)

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        early, late = (logins.new_link(BASE, name="ada") for _ in range(2))
        mono.now += 299
        assert (await browser.get(early)).status_code == 303
        mono.now += 2
        clock.now -= 3_600
        logins.new_link(BASE, name="ben")  # others do not make it forgotten
        answer = await browser.get(late)
        assert (answer.status_code, answer.json()["detail"]) == (403, "this link has expired")

    played(flow, secrets=Secrets(SECRET, clock=clock))


def test_after_a_restart_a_link_ends_by_ledger_time_although_the_clock_is_set_back() -> None:
    wall = Clock()
    wall.now = time.time()

    async def flow(rt: AsyncRuntime, before: Logins, browser: httpx.AsyncClient) -> None:
        early, late = (before.new_link(BASE, name="ada") for _ in range(2))
        assert (await browser.get(early)).status_code == 303
        wall.now += 3_600
        await rt.create_token("bot", scopes="viewer", by="olga", why="it moves the ledger's time on")
        wall.now -= 3_600
        answer = await browser.get(late)
        assert (answer.status_code, answer.json()["detail"]) == (403, "this link has expired")

    async def play() -> None:
        async with AsyncRuntime("memory:", store=MemoryStore(clock=wall)) as rt:
            before, after = (Logins(rt, Secrets(SECRET, clock=wall)) for _ in range(2))
            async with visit(service(rt, after)) as browser:
                await flow(rt, before, browser)

    asyncio.run(play())


@pytest.mark.parametrize(
    "spoil", [lambda link: link[:-1], lambda link: link + "A", lambda link: link.partition("?")[0]]
)
def test_a_changed_link_lets_nobody_in(spoil: Any) -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await browser.get(spoil(logins.new_link(BASE, name="ada")))
        assert answer.status_code == 403
        assert await rt.tokens(kind="all") == []
        session = logins._secrets.sign("session", {"once": "x", "name": "eve", "scopes": ["operator"], "tenant": ""})
        assert (await browser.get(f"/login/link?once={session}")).status_code == 403, "signed for something else"

    played(flow)


def test_whoever_only_looks_uses_up_no_link() -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        link = logins.new_link(BASE, name="ada")
        assert (await browser.head(link)).status_code == 405
        assert (await browser.post(link)).status_code == 405
        assert (await browser.get(link, headers={"sec-purpose": "prefetch;prerender"})).status_code == 403
        assert await rt.tokens(kind="all") == []
        assert (await browser.get(link)).status_code == 303

    played(flow)


def test_a_request_with_a_cookie_that_changes_something_needs_the_header() -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        await enter(logins, browser)
        session = (await browser.get("/login/session")).json()
        assert (session["name"], session["scopes"], session["tenant"]) == ("ada", ["operator"], None)
        good = {"X-CSRF-Token": session["csrf"]}
        for method in ("POST", "DELETE", "PUT", "PATCH"):
            for headers, why in (({}, 403), ({"X-CSRF-Token": "x"}, 403), (good, 200)):
                answer = await browser.request(method, "/v1/halts", headers=headers)
                assert answer.status_code == why, (method, headers)
        for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
            answer = await browser.post("/v1/halts", headers={**good, "sec-fetch-site": site})
            assert answer.status_code == status, site
        assert (await browser.get("/v1/halts", headers={"sec-fetch-site": "cross-site"})).status_code == 200
        async with visit(service(rt, logins)) as other:
            await enter(logins, other)
            assert (await other.post("/v1/halts", headers=good)).status_code == 403, "of another login"

    played(flow)


def test_a_login_ends_in_every_server_and_its_cookie_counts_no_more() -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        await enter(logins, browser)
        cookie = browser.cookies["amends_session"]
        assert (await browser.post("/login/logout")).status_code == 403, "another site could log people out"
        csrf = (await browser.get("/login/session")).json()["csrf"]
        answer = await browser.post("/login/logout", headers={"X-CSRF-Token": csrf})
        assert (answer.status_code, answer.json()) == (200, {"provider": None})
        assert int(cookie_of(answer)["max-age"]) == 0
        assert (await browser.get("/v1/anything")).status_code == 401
        stolen = await browser.get("/v1/anything", headers={"cookie": f"amends_session={cookie}"})
        assert (stolen.status_code, "revoked" in stolen.json()["detail"]) == (401, True)
        assert (await browser.post("/login/logout")).status_code == 401
        [last] = [event async for event in rt.events() if event.what == "token revoked"]
        assert (last.by, last.facts["token"]) == ("ada", last.run_id)

    played(flow)


def test_a_new_secret_logs_nobody_out() -> None:
    old, new = "o" * 32, "n" * 32

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        await enter(logins, browser)
        cookie = {"cookie": f"amends_session={browser.cookies['amends_session']}"}
        for known, status in (([old, new], 200), ([new, old], 200), ([new], 401)):
            async with visit(service(rt, Logins(rt, Secrets(known)))) as later:
                assert (await later.get("/v1/anything", headers=cookie)).status_code == status, known

    played(flow, secrets=Secrets(old))


def test_with_https_cookies_are_secure_and_below_a_path_they_belong_to_it() -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await browser.get(logins.new_link("https://a.example/amends", name="ada"))
        assert (answer.status_code, answer.headers["location"]) == (303, "/amends/")
        cookie = cookie_of(answer)
        assert (bool(cookie["secure"]), cookie["path"]) == (True, "/amends")
        assert (await browser.get("/amends/v1/anything")).json()["name"] == "ada"
        assert (await browser.get("/amends/login")).status_code == 200

    played(flow, base="https://a.example", root="/amends")


def test_without_a_provider_the_page_says_how_to_log_in() -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await browser.get("/login")
        assert (answer.status_code, "amends serve APP:RT --open" in answer.text) == (200, True)
        for path in ("/login/start", "/login/callback"):
            answer = await browser.get(path)
            assert (answer.status_code, answer.json()["code"]) == (403, "LoginRefused")
        assert (await browser.get("/login/session")).status_code == 401
        assert (await browser.get("/loginx")).status_code == 401, "another address is the application's"

    played(flow)


# ---- Nothing secret in a log or an error


def test_nothing_secret_is_in_a_log_or_a_problem() -> None:
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(logging.Formatter("%(name)s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    access = logging.getLogger("uvicorn.access")
    # Uvicorn sets its own loggers up in whatever process it has served: this one may be such a process.
    was = (access.propagate, access.level, access.disabled)
    access.propagate, access.disabled = True, False
    access.setLevel(logging.NOTSET)
    keep_out_of_logs("uvicorn.access")
    keep_out_of_logs("uvicorn.access")
    assert sum(isinstance(one, RedactSecrets) for one in access.filters) == 1
    secrets: list[str] = []
    answers: list[str] = []
    try:

        async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
            made = await rt.create_token("ci", scopes="viewer", by="ann", why="x")
            assert made.text
            link = logins.new_link(BASE, name="ada")
            bad = {"authorization": f"Bearer {made.text}x"}
            for method, url, headers in (
                ("GET", link, {}), ("GET", link, {}), ("GET", f"{link}x", {}), ("GET", "/v1/x", bad), ("POST", "/v1/x", {}),
                ("GET", f"/login/callback?code=SECRETCODE&state=SECRETSTATE&next={made.text}", {}),
            ):  # fmt: skip
                answer = await browser.request(method, url, headers=headers)
                # As uvicorn writes it.
                path = urlsplit(url).path + "?" + urlsplit(url).query
                access.info('%s - "%s %s HTTP/%s" %d', "127.0.0.1:5", method, path, "1.1", answer.status_code)
                access.info("headers %(authorization)s", {"authorization": headers.get("authorization", "")})
                answers.append(answer.text)
            secrets.extend([made.text.split("_")[2], link.split("once=")[1], "SECRETCODE", "SECRETSTATE"])
            secrets.append(browser.cookies["amends_session"])

        played(flow)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        access.filters.clear()
        access.propagate, access.disabled = was[0], was[2]
        access.setLevel(was[1])
    written = "\n".join(line for line in said.getvalue().splitlines() if not line.startswith("httpx"))
    assert "/login/link?once=•••" in written
    assert len(secrets) == 5
    for secret in secrets:
        assert secret not in written
        assert secret[:20] not in "".join(answers)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("GET /login/link?once=abc.def HTTP/1.1", "GET /login/link?once=••• HTTP/1.1"),
        ("/login/callback?code=abc&state=x-y&session_state=q", "/login/callback?code=•••&state=•••&session_state=q"),
        ("authorization: Bearer amt_1_secret", "authorization: Bearer •••"),
        ("see amt_0a1b_SECRETsecret0 there", "see amt_0a1b_••• there"),
        ("cookie: amends_session=a.b; other=1", "cookie: amends_session=•••; other=1"),
        ("nothing to hide", "nothing to hide"),
    ],
)
def test_what_is_redacted(text: str, expected: str) -> None:
    assert redacted(text) == expected
    assert re.sub("•••", "", redacted(redacted(text))) == re.sub("•••", "", expected)


def test_where_a_login_leads_is_a_path_of_the_service_only() -> None:
    from starlette.requests import Request

    from amends.serve.login import _next

    def leads(said: str) -> str:
        query = httpx.QueryParams({"next": said})
        return _next(Request({"type": "http", "query_string": str(query).encode(), "headers": [], "root_path": "/a"}))

    assert leads("/a/runs?state=open#top") == "/a/runs?state=open#top"
    for elsewhere in (
        "//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "",
        "runs", "/" + "x" * 1000, "/a\r\nset-cookie: x=1", "/a\x00", "///evil.example", "/\t/evil.example",
    ):  # fmt: skip
        assert leads(elsewhere) == "/a/", elsewhere
