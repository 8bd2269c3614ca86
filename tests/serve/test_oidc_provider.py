"""The company's login against a real provider (npm ``oidc-provider``) on loopback, with a browser that fills in its forms."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
from joserfc.jwk import ECKey, RSAKey

from amends import AsyncRuntime
from amends.host.login_settings import checked_login
from amends.serve.login import Logins
from amends.serve.oidc import Provider
from tests.serve.browser import played
from tests.servers.fixtures import unavailable

pytestmark = pytest.mark.rest

ROOT = Path(__file__).parents[2]
SOURCE = Path(__file__).with_name("provider")
FOLDER = ROOT / "build" / "oidc-provider"
OWN = "http://127.0.0.1:8000"
CALLBACK = f"{OWN}/login/callback"
SECRET = "a secret of the client: +&=%"
PATIENCE_S = 60
INSTALL_S = 300
STEPS_MAX = 12
PEOPLE = {
    "ada": {"email": "ada@example.com", "email_verified": True, "groups": ["finance", "all"], "org": "acme"},
    "root": {"email": "root@example.com", "email_verified": True, "groups": ["sre"], "org": "acme"},
    "eve": {"email": "ada@example.com", "email_verified": False, "groups": ["sre"], "org": "acme"},
    "guest": {"email": "guest@example.com", "email_verified": True, "groups": ["all"], "org": "acme"},
}


@pytest.fixture(scope="session")
def installed() -> Path:
    """Install the provider once; skip if node or npm is missing, or the registry cannot be reached. In CI that fails."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            unavailable(f"no OpenID Connect provider: {program} is not installed")
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = (SOURCE / "package-lock.json").read_text(encoding="utf-8")
        done = FOLDER / "installed.json"
        if not done.exists() or done.read_text(encoding="utf-8") != wanted:
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCE / name, FOLDER / name)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            try:
                said = subprocess.run(
                    command, cwd=FOLDER, capture_output=True, text=True, timeout=INSTALL_S, check=False
                )
                problem = "" if said.returncode == 0 else said.stderr[-300:]
            except subprocess.TimeoutExpired:
                problem = "npm takes too long"
            if problem:
                unavailable(f"no OpenID Connect provider: npm ci failed: {problem}")
            done.write_text(wanted, encoding="utf-8")
        shutil.copy(SOURCE / "provider.mjs", FOLDER / "provider.mjs")
    return FOLDER


class Running:
    """A provider that runs, and what it was told."""

    def __init__(self, folder: Path, keys: list[Any], **more: Any) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = more.pop("port", None) or free.getsockname()[1]
        self.port, self.issuer = port, f"http://127.0.0.1:{port}"
        client = {
            "client_id": "amends", "client_secret": SECRET, "redirect_uris": [CALLBACK], "response_types": ["code"],
            "grant_types": ["authorization_code"], "token_endpoint_auth_method": "client_secret_basic",
            "id_token_signed_response_alg": keys[0].as_dict()["alg"], **more.pop("client", {}),
        }  # fmt: skip
        jwks = {"keys": [key.as_dict(private=True) for key in keys]}
        said = {"issuer": self.issuer, "clients": [client], "jwks": jwks, "people": PEOPLE, "conform": True, **more}
        self._process = subprocess.Popen(
            ["node", "provider.mjs"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )  # fmt: skip
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{json.dumps(said)}\n")
        self._process.stdin.flush()
        for _ in range(100):
            line = self._process.stdout.readline()
            if line == "ready\n":
                return
            assert line, "the provider ended"
        raise AssertionError("the provider does not start")

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)

    def provider(self, *, secret: str = SECRET, **table: Any) -> Provider:
        said = {
            "issuer": self.issuer, "client_id": "amends", "redirect_url": CALLBACK,
            "scopes": {"finance": "approver", "sre": "operator"}, **table,
        }  # fmt: skip
        return Provider(checked_login(said, "test"), secret=secret)


def rsa(kid: str = "r1", alg: str = "RS256") -> Any:
    return RSAKey.generate_key(2048, {"kid": kid, "alg": alg, "use": "sig"})


@contextmanager
def running(folder: Path, *keys: Any, **more: Any) -> Iterator[Running]:
    one = Running(folder, list(keys) or [rsa()], **more)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(scope="module")
def there(installed: Path) -> Iterator[Running]:
    with running(installed) as one:
        yield one


async def at_provider(place: str, person: str, *, denies: bool = False) -> str:
    """Log in at the provider as this person would; return the address to which it sends the browser back."""
    async with httpx.AsyncClient(follow_redirects=False, timeout=PATIENCE_S) as web:
        answer = await web.get(place)
        for _ in range(STEPS_MAX):
            while answer.status_code in (302, 303):
                place = urljoin(str(answer.url), answer.headers["location"])
                if place.startswith(CALLBACK):
                    return place
                answer = await web.get(place)
            assert answer.status_code == 200, answer.text
            if denies:
                [href] = re.findall(r'href="([^"]*abort[^"]*)"', answer.text)
                answer = await web.get(urljoin(str(answer.url), href))
                continue
            [prompt] = re.findall(r'name="prompt" value="(\w+)"', answer.text)
            [action] = re.findall(r'action="([^"]+)"', answer.text)
            form = {"prompt": prompt, "login": person, "password": "any"}
            answer = await web.post(urljoin(str(answer.url), action), data=form)
    raise AssertionError("the provider does not send the browser back")


async def log_in(browser: httpx.AsyncClient, person: str, **given: Any) -> httpx.Response:
    begun = await browser.get("/login/start", params={"next": "/inbox"})
    assert begun.status_code == 303, begun.text
    back = await at_provider(begun.headers["location"], person, **given)
    return await browser.get(back.removeprefix(OWN))


def test_people_log_in_act_and_log_out(there: Running) -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await log_in(browser, "ada")
        assert (answer.status_code, answer.headers["location"]) == (303, "/inbox"), answer.text
        who = (await browser.get("/v1/x")).json()
        assert (who["name"], who["scopes"], who["tenant"]) == ("ada@example.com", ["approver"], "acme")
        session = (await browser.get("/login/session")).json()
        out = await browser.post("/login/logout", headers={"X-CSRF-Token": session["csrf"]})
        assert out.json()["provider"].startswith(f"{there.issuer}/session/end?client_id=amends")
        assert (await browser.get("/v1/x")).status_code == 401
        said = [event.what async for event in rt.scoped(tenant="acme").events()]
        assert said == ["token made", "token revoked"]
        assert (await rt.verify()).ok

    played(flow, provider=there.provider(tenant_claim="org"), base=OWN)


def test_a_code_counts_once_and_with_its_verifier_only(there: Running) -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        begun = await browser.get("/login/start")
        cookie = {"cookie": f"amends_login={browser.cookies['amends_login']}"}
        back = (await at_provider(begun.headers["location"], "root")).removeprefix(OWN)
        assert (await browser.get(back)).status_code == 303
        assert (await browser.get("/v1/x")).json()["tenant"] is None
        again = await browser.get(back, headers=cookie)
        assert (again.status_code, again.json()["code"]) == (403, "LoginRefused")
        # Another login's answer, with the state of this one: the verifier does not fit.
        browser.cookies.clear()
        first = await browser.get("/login/start")
        stolen = parse_qs(urlsplit(await at_provider(first.headers["location"], "root")).query)["code"][0]
        second = await browser.get("/login/start")
        state = parse_qs(urlsplit(second.headers["location"]).query)["state"][0]
        answer = await browser.get("/login/callback", params={"code": stolen, "state": state})
        assert answer.status_code == 403
        assert len(await rt.tokens(kind="all")) == 1

    played(flow, provider=there.provider(), base=OWN)


@pytest.mark.parametrize("person, told", [("eve", "not verified"), ("guest", "groups"), ("ada", "refused")])
def test_whom_the_settings_do_not_let_in_stays_out(there: Running, person: str, told: str) -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await log_in(browser, person, denies=told == "refused")
        assert (answer.status_code, told in answer.json()["detail"]) == (403, True), answer.text
        assert await rt.tokens(kind="all") == []

    played(flow, provider=there.provider(), base=OWN)


def test_a_wrong_client_secret_is_refused(there: Running) -> None:
    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        answer = await log_in(browser, "ada")
        assert (answer.status_code, answer.json()["code"]) == (403, "LoginRefused")

    played(flow, provider=there.provider(secret="another one"), base=OWN)


def test_the_claims_may_be_in_the_id_token(installed: Path) -> None:
    with running(installed, conform=False) as one:

        async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
            assert (await log_in(browser, "ada")).status_code == 303
            assert (await browser.get("/v1/x")).json()["scopes"] == ["approver"]

        played(flow, provider=one.provider(), base=OWN)


@pytest.mark.parametrize(
    "key, algorithms, status",
    [
        (lambda: ECKey.generate_key("P-256", {"kid": "e1", "alg": "ES256", "use": "sig"}), ["ES256"], 303),
        (lambda: rsa(alg="PS256"), ["PS256", "RS256"], 303),
        (rsa, ["ES256"], 403),
    ],
)
def test_only_signatures_of_the_setting_are_accepted(
    installed: Path, key: Any, algorithms: list[str], status: int
) -> None:
    with running(installed, key()) as one:

        async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
            assert (await log_in(browser, "ada")).status_code == status

        played(flow, provider=one.provider(algorithms=algorithms), base=OWN)


def test_a_client_may_show_its_secret_in_the_form(installed: Path) -> None:
    with running(installed, client={"token_endpoint_auth_method": "client_secret_post"}) as one:

        async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
            assert (await log_in(browser, "ada")).status_code == 303

        played(flow, provider=one.provider(client_auth="post"), base=OWN)


def test_a_public_client_has_no_secret(installed: Path) -> None:
    with running(installed, client={"token_endpoint_auth_method": "none"}) as one:

        async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
            assert (await log_in(browser, "ada")).status_code == 303

        played(flow, provider=one.provider(secret=""), base=OWN)


def test_a_provider_may_change_its_keys_and_be_away(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.serve.oidc.KEYS_AGAIN_S", 0.0)
    first = Running(installed, [rsa("one")])

    async def flow(rt: AsyncRuntime, logins: Logins, browser: httpx.AsyncClient) -> None:
        assert (await log_in(browser, "ada")).status_code == 303
        begun = await browser.get("/login/start")
        back = await at_provider(begun.headers["location"], "ada")
        first.close()
        away = await browser.get(back.removeprefix(OWN))
        assert (away.status_code, "cannot be reached" in away.json()["detail"]) == (403, True), away.text
        assert (await browser.get("/v1/x")).status_code == 200, "whoever is in stays in"
        with running(installed, rsa("two"), port=first.port):
            assert (await log_in(browser, "ada")).status_code == 303

    try:
        played(flow, provider=first.provider(), base=OWN)
    finally:
        if first._process.poll() is None:
            first.close()
