"""A company's login: whatever is wrong with the provider's answer lets nobody in. ``test_oidc_provider`` has a real one."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

from amends import AsyncRuntime, Runtime
from amends.errors import BadConfig
from amends.host.login_settings import checked_login
from amends.secrets import Secrets
from amends.serve.login import Logins
from amends.serve.oidc import LoginRefused, Person, Provider, person_of
from tests.serve.browser import SECRET, played

ISSUER = "https://id.example.com"
TABLE: Mapping[str, Any] = {
    "issuer": ISSUER,
    "client_id": "amends",
    "redirect_url": "https://a.example.com/login/callback",
    "scopes": {"finance": "approver", "sre": "operator"},
}
RSA = RSAKey.generate_key(2048, {"kid": "k1", "alg": "RS256", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "k2", "alg": "ES256", "use": "sig"})


class Fake:
    """A provider in this process, whose answers can be spoiled."""

    def __init__(self, **table: Any) -> None:
        self.said = checked_login({**TABLE, **table}, "test")
        self.keys: list[Any] = [RSA]
        self.key: Any = RSA
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "k1"}
        self.claims: dict[str, Any] = {"email": "ada@example.com", "email_verified": True, "groups": ["finance"]}
        self.discovered: dict[str, Any] = {}
        self.spoil: Any = lambda path, answer: answer
        self.token: Any = None
        self.userinfo: dict[str, Any] = {}
        self.nonce = ""
        self.forms: list[dict[str, Any]] = []
        self.heads: list[httpx.Headers] = []
        self.paths: list[str] = []
        self.provider = Provider(self.said, secret="shh", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.paths.append(path)
        places = {
            "issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth", "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/jwks", "userinfo_endpoint": f"{ISSUER}/me", "end_session_endpoint": f"{ISSUER}/end",
        }  # fmt: skip
        if path == "/.well-known/openid-configuration":
            answer = httpx.Response(200, json={**places, **self.discovered})
        elif path == "/jwks":
            answer = httpx.Response(200, json={"keys": [key.as_dict(private=False) for key in self.keys]})
        elif path == "/token":
            self.forms.append({name: value[0] for name, value in parse_qs(request.content.decode()).items()})
            self.heads.append(request.headers)
            answer = httpx.Response(200, json={"id_token": self.token or self.signed(), "access_token": "at"})
        elif path == "/me":
            answer = httpx.Response(200, json={"sub": "u1", **self.userinfo})
        else:
            answer = httpx.Response(404)
        spoilt: httpx.Response = self.spoil(path, answer)
        return spoilt

    def signed(self, **claims: Any) -> str:
        now = int(time.time())
        whole = {"iss": ISSUER, "aud": "amends", "sub": "u1", "iat": now, "exp": now + 300, "nonce": self.nonce}
        whole = {**whole, **self.claims, **claims}
        return jwt.encode(self.header, {k: v for k, v in whole.items() if v is not ...}, self.key)

    async def log_in(self, browser: httpx.AsyncClient, **changed: Any) -> httpx.Response:
        """Begin a login, and return with what the provider sends the browser back with."""
        answer = await browser.get("/login/start", params={"next": "/runs"})
        assert answer.status_code == 303, answer.text
        asked = {k: v[0] for k, v in parse_qs(urlsplit(answer.headers["location"]).query).items()}
        assert asked["redirect_uri"] == TABLE["redirect_url"]
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        self.asked, self.nonce = asked, asked["nonce"]
        back = {"code": "c0de", "state": asked["state"], **changed}
        return await browser.get("/login/callback", params={k: v for k, v in back.items() if v is not ...})


def in_https(flow: Any, fake: Fake, **given: Any) -> None:
    played(flow, provider=fake.provider, base="https://a.example.com", **given)


def refused(fake: Fake, **changed: Any) -> dict[str, Any]:
    """Return the problem of a login that must be refused, after which nobody is in."""
    problems: list[dict[str, Any]] = []

    async def flow(rt: AsyncRuntime, _logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await fake.log_in(browser, **changed)
        problems.append(answer.json())
        assert answer.status_code == 403, answer.text
        assert "amends_session" not in browser.cookies
        assert await rt.tokens(kind="all") == []

    in_https(flow, fake)
    assert problems[0]["code"] == "LoginRefused"
    return problems[0]


def test_a_login_gives_the_scopes_of_the_groups_and_names_the_person() -> None:
    fake = Fake()

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        page = await browser.get("/login")
        assert page.headers["location"].startswith("/login/start?")
        answer = await fake.log_in(browser)
        assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
        cookies = answer.headers.get_list("set-cookie")
        assert all("Secure" in one and "HttpOnly" in one and "samesite=lax" in one.lower() for one in cookies)
        assert "amends_login" not in browser.cookies
        who = (await browser.get("/v1/x")).json()
        assert (who["name"], who["scopes"], who["tenant"]) == ("ada@example.com", ["approver"], "")
        [form] = fake.forms
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == fake.asked["code_challenge"]
        assert fake.heads[0]["authorization"] == "Basic " + base64.b64encode(b"amends:shh").decode()
        [token] = await rt.tokens(kind="login")
        assert (token.by, token.why, token.id) == ("ada@example.com", f"logged in at {ISSUER}", who["token"])
        csrf = (await browser.get("/login/session")).json()["csrf"]
        out = await browser.post("/login/logout", headers={"X-CSRF-Token": csrf})
        assert out.json() == {"provider": f"{ISSUER}/end?client_id=amends"}
        assert await rt.tokens(kind="all") == []
        # A second login is another session, and the addresses and keys are known by now.
        assert (await fake.log_in(browser)).status_code == 303
        assert fake.paths.count("/jwks") == 1
        assert fake.paths.count("/.well-known/openid-configuration") == 1
        assert (await rt.verify()).ok

    in_https(flow, fake)


def test_a_client_may_show_its_secret_in_the_form() -> None:
    fake = Fake(client_auth="post")

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        assert (await fake.log_in(browser)).status_code == 303
        assert fake.forms[0]["client_secret"] == "shh"
        assert "authorization" not in fake.heads[0]

    in_https(flow, fake)


# ---- Wrong answers


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example.com"},
        {"iss": ...},
        {"aud": "other"},
        {"aud": ["other"]},
        {"aud": ["amends", "other"]},
        {"aud": ["amends", "other"], "azp": "other"},
        {"azp": "other"},
        {"aud": ...},
        {"exp": 1},
        {"exp": ...},
        {"exp": "soon"},
        {"iat": ...},
        {"iat": 9_999_999_999},
        {"nbf": 9_999_999_999},
        {"nonce": "other"},
        {"nonce": ...},
        {"nonce": ""},
        {"sub": ...},
        {"sub": ""},
        {"sub": 7},
    ],
    ids=str,
)
def test_an_id_token_with_a_wrong_claim_is_refused(claims: dict[str, Any]) -> None:
    fake = Fake()
    fake.claims |= claims
    problem = refused(fake)
    assert "could not be verified" in problem["detail"] or "provider's answer" in problem["detail"]


def test_an_audience_of_several_is_right_if_it_was_made_for_this_program() -> None:
    fake = Fake()
    fake.claims |= {"aud": ["amends", "other"], "azp": "amends"}

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        assert (await fake.log_in(browser)).status_code == 303

    in_https(flow, fake)


def _unsigned(fake: Fake) -> str:
    head, body, _ = fake.signed().split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "none"}).encode()).decode().rstrip("=")
    return f"{head}.{body}."


def _confused(fake: Fake) -> str:
    """Return a token that is signed with the public key, as if that were a shared secret."""
    body = fake.signed().split(".")[1]
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "k1"}).encode()).decode().rstrip("=")
    mark = hmac.digest(RSA.as_pem(private=False), f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(mark).decode().rstrip('=')}"


def test_a_signature_that_only_the_provider_can_make_is_needed() -> None:
    unsigned = Fake()
    unsigned.spoil = lambda path, answer: (
        answer if path != "/token" else httpx.Response(200, json={"id_token": _unsigned(unsigned)})
    )
    refused(unsigned)
    shared = Fake()
    shared.header, shared.key = {"alg": "HS256", "kid": "k1"}, OctKey.import_key("shh" * 12)
    shared.keys = [RSA, OctKey.import_key({"kty": "oct", "k": "c2hoc2hoc2hoc2hoc2hoc2hoc2hoc2hoc2hoc2ho", "kid": "k1"})]
    refused(shared)
    public = Fake()
    public.spoil = lambda path, answer: (
        answer if path != "/token" else httpx.Response(200, json={"id_token": _confused(public)})
    )
    refused(public)
    other = Fake()
    other.key = RSAKey.generate_key(2048, {"kid": "k1"})
    refused(other)
    unlisted = Fake(algorithms=["ES256"])
    refused(unlisted)
    for token in ("", "a.b.c", "x", 7, {"a": 1}):
        fake = Fake()
        fake.spoil = lambda path, answer, token=token: (
            answer if path != "/token" else httpx.Response(200, json={"id_token": token})
        )
        refused(fake)


def test_keys_that_the_provider_has_changed_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.serve.oidc.KEYS_AGAIN_S", 0.0)
    fake = Fake()

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        assert (await fake.log_in(browser)).status_code == 303
        fake.keys, fake.key, fake.header = [RSA, EC], EC, {"alg": "ES256", "kid": "k2"}
        assert (await fake.log_in(browser)).status_code == 303
        assert fake.paths.count("/jwks") == 2

    in_https(flow, fake)


def test_a_key_that_is_not_understood_hides_no_other() -> None:
    fake = Fake()
    strange = [{"kty": "LMS", "kid": "x"}, {"kty": "EC", "crv": "P-0", "x": "a", "y": "b"}, 7]
    fake.spoil = lambda path, answer: (
        answer if path != "/jwks" else httpx.Response(200, json={"keys": [*strange, RSA.as_dict(private=False)]})
    )

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        assert (await fake.log_in(browser)).status_code == 303

    in_https(flow, fake)


@pytest.mark.parametrize(
    "changed, told",
    [
        ({"state": "other"}, "another login"),
        ({"state": ...}, "another login"),
        ({"code": ...}, "refused the login"),
        ({"error": "access_denied", "error_description": "<script>"}, "refused the login"),
        ({"iss": "https://evil.example.com"}, "another provider"),
    ],
)
def test_an_answer_that_was_not_asked_for_is_refused(changed: dict[str, Any], told: str) -> None:
    fake = Fake()
    problem = refused(fake, **changed)
    assert told in problem["detail"]
    assert "/token" not in fake.paths
    assert "<script>" not in json.dumps(problem)


def test_an_answer_in_another_browser_or_too_late_is_refused() -> None:
    fake = Fake()
    now = [1_794_842_543.0]

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        begun = await browser.get("/login/start")
        state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
        cookie = browser.cookies["amends_login"]
        browser.cookies.clear()
        back = {"code": "c0de", "state": state}
        assert (await browser.get("/login/callback", params=back)).status_code == 403
        # A cookie that was signed for something else.
        wrong = logins._secrets.sign("session", {"state": state, "nonce": "n", "verifier": "v", "next": "/"})
        answer = await browser.get("/login/callback", params=back, headers={"cookie": f"amends_login={wrong}"})
        assert answer.status_code == 403
        now[0] += 601
        answer = await browser.get("/login/callback", params=back, headers={"cookie": f"amends_login={cookie}"})
        assert answer.status_code == 403
        assert "/token" not in fake.paths

    in_https(flow, fake, secrets=Secrets(SECRET, clock=lambda: now[0]))


@pytest.mark.parametrize(
    "discovered",
    [
        {"issuer": "https://evil.example.com"},
        {"issuer": f"{ISSUER}/"},
        {"token_endpoint": "http://id.example.com/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"authorization_endpoint": None},
        {"authorization_endpoint": "javascript:alert(1)"},
    ],
)
def test_a_provider_that_is_not_the_one_of_the_settings_is_refused(discovered: dict[str, Any]) -> None:
    fake = Fake()
    fake.discovered = discovered

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await browser.get("/login/start")
        assert (answer.status_code, answer.json()["code"]) == (403, "LoginRefused")

    in_https(flow, fake)


def _down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500),
        httpx.Response(302, headers={"location": "https://evil.example.com"}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, content=b" " * ((1 << 20) + 1)),
        httpx.Response(200, content=b"\xff\xfe"),
        None,
    ],
    ids=["500", "redirect", "html", "list", "large", "bytes", "down"],
)
@pytest.mark.parametrize("place", ["/.well-known/openid-configuration", "/token", "/jwks"])
def test_a_provider_that_answers_badly_lets_nobody_in(place: str, answer: httpx.Response | None) -> None:
    fake = Fake()

    def spoil(path: str, right: httpx.Response) -> httpx.Response:
        if path != place:
            return right
        if answer is None:
            raise httpx.ConnectError("refused")
        return answer

    fake.spoil = spoil

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        if place == "/.well-known/openid-configuration":
            said = await browser.get("/login/start")
        else:
            said = await fake.log_in(browser)
        assert (said.status_code, said.json()["code"]) == (403, "LoginRefused"), said.text
        assert await rt.tokens(kind="all") == []

    in_https(flow, fake)


# ---- Who somebody is, and what they may do


def test_claims_that_the_id_token_lacks_are_asked_for() -> None:
    fake = Fake()
    fake.claims = {}
    fake.userinfo = {"email": "ada@example.com", "email_verified": True, "groups": ["sre"], "iss": "x"}

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        assert (await fake.log_in(browser)).status_code == 303
        who = (await browser.get("/v1/x")).json()
        assert (who["name"], who["scopes"], who["tenant"]) == ("ada@example.com", ["operator"], None)

    in_https(flow, fake)
    fake = Fake()
    fake.claims, fake.userinfo = {}, {**fake.claims, "sub": "u2"}
    refused(fake)


def table(**given: Any) -> Mapping[str, Any]:
    return checked_login({**TABLE, **given}, "test")


ADA: Mapping[str, Any] = {"email": "ada@example.com", "email_verified": True, "sub": "u1", "org": "acme"}


@pytest.mark.parametrize(
    "given, claims, expected",
    [
        ({}, {"groups": ["finance"]}, Person("ada@example.com", ("approver",), None)),
        ({}, {"groups": "finance"}, Person("ada@example.com", ("approver",), None)),
        ({}, {"groups": ["finance", "sre", "x"]}, Person("ada@example.com", ("approver", "operator"), None)),
        ({"everyone": "viewer"}, {}, Person("ada@example.com", ("viewer",), None)),
        ({"everyone": "viewer"}, {"groups": {"finance": 1}}, Person("ada@example.com", ("viewer",), None)),
        ({"tenant": "acme"}, {"groups": ["sre"]}, Person("ada@example.com", ("operator",), "acme")),
        ({"tenant_claim": "org"}, {"groups": ["sre"]}, Person("ada@example.com", ("operator",), "acme")),
        ({"name": "sub"}, {"groups": ["sre"]}, Person("u1", ("operator",), None)),
        (
            {"groups": "roles"},
            {"groups": ["sre"], "roles": ["finance"]},
            Person("ada@example.com", ("approver",), None),
        ),
    ],
)
def test_claims_become_a_person(given: dict[str, Any], claims: dict[str, Any], expected: Person) -> None:
    assert person_of({**ADA, **claims}, table(**given)) == expected


@pytest.mark.parametrize(
    "given, claims, why",
    [
        ({}, {}, "groups"),
        ({}, {"groups": ["others", "Finance"]}, "groups"),
        ({}, {"groups": ["sre"], "email_verified": False}, "name"),
        ({}, {"groups": ["sre"], "email_verified": "true"}, "name"),
        ({}, {"groups": ["sre"], "email": " "}, "name"),
        ({}, {"groups": ["sre"], "email": ["a"]}, "name"),
        ({"name": "nick"}, {"groups": ["sre"]}, "name"),
        ({"tenant_claim": "company"}, {"groups": ["sre"]}, "tenant"),
        ({"tenant_claim": "org"}, {"groups": ["sre"], "org": ""}, "tenant"),
        ({"tenant_claim": "org"}, {"groups": ["sre"], "org": ["acme"]}, "tenant"),
    ],
)
def test_somebody_without_a_name_a_group_or_a_tenant_is_refused(
    given: dict[str, Any], claims: dict[str, Any], why: str
) -> None:
    with pytest.raises(LoginRefused) as caught:
        person_of({**ADA, **claims}, table(**given))
    assert caught.value.why == why


def test_a_name_that_cannot_be_recorded_is_refused() -> None:
    fake = Fake()
    fake.claims["email"] = "x" * 300
    assert refused(fake)["code"] == "LoginRefused"


# ---- The setting


@pytest.mark.parametrize(
    "given",
    [
        {"issuer": "http://id.example.com"},
        {"issuer": "ftp://x"},
        {"issuer": "https://u:p@id.example.com"},
        {"issuer": "https://id.example.com?x=1"},
        {"issuer": ""},
        {"issuer": 7},
        {"client_id": ""},
        {"redirect_url": "http://a.example.com/login/callback"},
        {"redirect_url": "https://[bad"},
        {"scopes": {"sre": "agent"}},
        {"scopes": {"sre": "root"}},
        {"scopes": {"": "viewer"}},
        {"scopes": ["sre"]},
        {"scopes": {}},
        {"everyone": "worker"},
        {"tenant": "a", "tenant_claim": "b"},
        {"client_auth": "none"},
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"algorithms": []},
        {"algorithms": 7},
        {"request": ["email"]},
        {"session": 0},
        {"session": "31d"},
        {"session": True},
        {"session": "soon"},
        {"client_secret": "shh-very-secret"},
        {"isuer": "https://x"},
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_when_the_runtime_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(BadConfig) as caught:
        Runtime("memory:", login={**TABLE, **given})
    assert caught.value.setting == "login"
    assert "shh-very-secret" not in f"{caught.value} {caught.value.to_dict()}"


def test_the_settings_make_the_logins() -> None:
    async def flow() -> None:
        async with AsyncRuntime("memory:", login={**TABLE, "session": "1h"}, login_secret="shh") as rt:
            assert "shh" not in str(rt.settings)
            logins = Logins.of(rt, Secrets(SECRET))
            assert logins._session_s == 3600.0
            assert logins._provider is not None
            assert (logins._provider.issuer, logins._provider._secret) == (ISSUER, "shh")
        async with AsyncRuntime("memory:") as rt:
            assert Logins.of(rt, Secrets(SECRET))._provider is None

    import asyncio

    asyncio.run(flow())


def test_on_this_machine_a_provider_may_be_without_tls() -> None:
    said = table(issuer="http://127.0.0.1:4000", redirect_url="http://localhost:8000/login/callback")
    assert said["session"] == 28_800.0
    assert not Provider(said).is_secure


@pytest.mark.parametrize("place, joined", [("https://p.example/end", "?"), ("https://p.example/end?p=policy", "&")])
def test_the_address_to_log_out_at_keeps_its_own_parameters(
    place: str, joined: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def places(_self: Provider) -> dict[str, str]:
        return {"end_session_endpoint": place}

    monkeypatch.setattr(Provider, "_places", places)
    provider = Provider.__new__(Provider)
    provider._said = {"client_id": "amends"}
    assert asyncio.run(provider.end_address()) == f"{place}{joined}client_id=amends"
