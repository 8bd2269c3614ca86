"""Let people in with a browser: by a one-time link on this machine, or by their company's login (OpenID Connect).

Either way the browser gets a cookie, and the ledger a token that the cookie carries: a login is an event, counts in every
server, and can be revoked like any token. The cookie is signed, cannot be read by scripts and is not sent by other sites. A
request that changes something also needs the header ``X-CSRF-Token``, whose value ``GET /login/session`` tells.

``Logins`` has a method for each address below ``/login``.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from amends import AsyncRuntime, Token
from amends.errors import Forbidden, LinkVoid, Unauthorized, UsageError
from amends.secrets import BadSignature, Secrets
from amends.serve.access import Who, who_of
from amends.serve.oidc import LoginRefused, Provider

SESSION: Final = "amends_session"
"""The cookie of somebody who is logged in."""
BEGUN: Final = "amends_login"
"""The cookie of a login at the provider that has begun: it ties the answer to the browser that asked."""
CSRF: Final = "x-csrf-token"
SAFE: Final = ("GET", "HEAD", "OPTIONS")
LINK_S: Final = 300.0
"""How long a one-time link is valid."""
LINK_KEPT_S: Final = 86_400.0
"""How long after its end it is remembered that a link has ended: the clock on the wall may be set back meanwhile."""
NEW_LINK: Final = "amends serve APP:RT --open prints a new one; beside a service that runs, with --port 0"
BEGUN_S: Final = 600.0
"""How long a login at the provider may take."""
SESSION_S: Final = 28_800.0
"""How long somebody stays logged in, unless the setting ``login`` says otherwise."""
NEXT_CHARS_MAX: Final = 1_000
"""The longest address to lead to after a login."""
NO_STORE: Final = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}


class Logins:
    """Who is logged in with a browser, and how they come to be.

    ``rt``: whose ledger has the logins. ``secrets``: sign the cookies and links. ``provider``: the company's login; None:
    only one-time links let somebody in. ``session_s``: how long a login lasts.
    """

    def __init__(
        self, rt: AsyncRuntime, secrets: Secrets, *, provider: Provider | None = None, session_s: float | None = None
    ) -> None:
        self._rt, self._secrets, self._provider = rt, secrets, provider
        self._session_s = session_s or (provider.session_s if provider else SESSION_S)
        self._links: dict[str, float] = {}
        """When the links that were made here end, on a clock that nobody sets."""

    @classmethod
    def of(cls, rt: AsyncRuntime, secrets: Secrets) -> Logins:
        """Return the logins of the settings ``login`` and ``login_secret``."""
        said, secret = rt.settings["login"].value, rt.settings["login_secret"].value
        provider = Provider(said, secret=secret.reveal() if secret is not None else "") if said else None
        return cls(rt, secrets, provider=provider)

    @property
    def has_provider(self) -> bool:
        """Whether people log in at another site."""
        return self._provider is not None

    # ---- Who asks

    async def who(self, headers: Mapping[str, str], cookies: Mapping[str, str], *, method: str = "GET") -> Who | None:
        """Return who is logged in; None: no cookie says. Raise ``Unauthorized``, and ``Forbidden`` for a forged request."""
        cookie = cookies.get(SESSION)
        if cookie is None:
            return None
        token = await self._token(cookie)
        if method.upper() not in SAFE:
            self._check_own(token, headers)
        return who_of(token)

    async def _token(self, cookie: str) -> Token:
        try:
            text = str(self._secrets.read("session", cookie).get("token"))
        except BadSignature as bad:
            over = bad.why == "expired"
            message = "this login has expired" if over else "the cookie of this login is not valid here"
            raise Unauthorized(message, why="expired" if over else "unknown", hint="log in again") from None
        token = await self._rt.check_token(text)
        if token.kind == "token":
            raise Unauthorized("the cookie of this login is not valid here", why="unknown", hint="log in again")
        return token

    def _check_own(self, token: Token, headers: Mapping[str, str]) -> None:
        """Raise ``Forbidden`` for a request that another site made the browser send."""
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Forbidden("another site sent this request", why="origin", hint="send it from a page of this service")
        try:
            said = self._secrets.read("csrf", headers.get(CSRF, ""))
        except BadSignature:
            said = {}
        if not hmac.compare_digest(str(said.get("id", "")), token.id):
            raise Forbidden(
                "a request with a cookie that changes something needs the header X-CSRF-Token",
                why="csrf", hint="GET /login/session tells its value; a program sends a token and no cookie",
            )  # fmt: skip

    # ---- One-time links

    def new_link(
        self, base_url: str, *, name: str, scopes: tuple[str, ...] = ("operator",), tenant: str = "", next: str = "/"
    ) -> str:
        """Return a link that lets one browser in once, within five minutes, under this name. Show it to one person.

        It ends by the clock on the wall; in the server that made it also by a clock that nobody sets, and in any other,
        such as the same one after a restart, by the ledger's time. ``next``: the path of the service that it leads to.
        """
        now, once = time.monotonic(), secrets.token_urlsafe(24)
        self._links = {one: ends for one, ends in self._links.items() if now < ends + LINK_KEPT_S} | {
            once: now + LINK_S
        }
        said: dict[str, Any] = {"once": once, "name": name, "scopes": list(scopes), "tenant": tenant, "next": next}
        said["ends"] = self._secrets.time() + LINK_S
        return f"{base_url.rstrip('/')}/login/link?once={self._secrets.sign('link', said, lives_s=LINK_S)}"

    async def link(self, request: Request) -> Response:
        """Exchange a one-time link for a cookie, and lead to the service."""
        if "prefetch" in request.headers.get("sec-purpose", request.headers.get("purpose", "")):
            return Response(status_code=403, headers=NO_STORE)  # nobody has opened it: it stays valid
        try:
            said = self._secrets.read("link", request.query_params.get("once", ""))
        except BadSignature as bad:
            message = (
                "this link has expired" if bad.why == "expired" else "this link was not made here, or it was changed"
            )
            raise _void(message, why=bad.why) from None
        made_here = said["once"] in self._links
        if made_here and time.monotonic() >= self._links[said["once"]]:
            raise _void("this link has expired", why="expired")
        try:
            made = await self._rt.create_token(
                said["name"], scopes=said["scopes"], tenant=said["tenant"] or None, by=said["name"],
                why="logged in by a one-time link", kind="link", once=said["once"], expires=self._session_s,
                once_until=None if made_here else datetime.fromtimestamp(said["ends"], UTC),
            )  # fmt: skip
        except LinkVoid as void:
            message = "this link has expired" if void.why == "expired" else str(void)
            raise _void(message, why=void.why) from None
        return self._let_in(request, made, f"{_root(request)}{said.get('next', '/')}")

    # ---- The company's login

    async def page(self, request: Request) -> Response:
        """Say how to log in; with a provider, lead there."""
        if self._provider is not None:
            return RedirectResponse(
                f"{_root(request)}/login/start?{urlencode({'next': _next(request)})}", 303, headers=NO_STORE
            )
        from amends.serve.console import html, pages  # here: they know the login

        data = {"has_left": "out" in request.query_params, **pages.bare(request)}
        return html.answer("login.html", data)

    async def start(self, request: Request) -> Response:
        """Lead the browser to the provider, with a state, a nonce and the challenge of a code verifier."""
        provider = self._known_provider()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        answer = RedirectResponse(
            await provider.begin(state=state, nonce=nonce, challenge=challenge), 303, headers=NO_STORE
        )
        begun = {"state": state, "nonce": nonce, "verifier": verifier, "next": _next(request)}
        self._set(request, answer, BEGUN, self._secrets.sign("login", begun, lives_s=BEGUN_S), BEGUN_S)
        return answer

    async def callback(self, request: Request) -> Response:
        """Let in whom the provider vouches for, with the scopes and the tenant of the setting ``login``."""
        provider = self._known_provider()
        try:
            begun = self._secrets.read("login", request.cookies.get(BEGUN, ""))
        except BadSignature:
            raise LoginRefused("this login was not begun in this browser, or too long ago", why="state") from None
        said = request.query_params
        if not hmac.compare_digest(said.get("state", "").encode(), str(begun["state"]).encode()):
            raise LoginRefused("this answer belongs to another login", why="state")
        if said.get("iss", provider.issuer) != provider.issuer:
            raise LoginRefused("another provider sent this answer", why="issuer")
        if "error" in said or not said.get("code"):
            raise LoginRefused("the provider has refused the login", why="provider")
        person = await provider.finish(code=said["code"], verifier=begun["verifier"], nonce=begun["nonce"])
        try:
            made = await self._rt.create_token(
                person.name, scopes=person.scopes, tenant=person.tenant, by=person.name,
                why=f"logged in at {provider.issuer}", kind="login", expires=self._session_s,
            )  # fmt: skip
        except UsageError:
            raise LoginRefused(
                "the provider's name for you, or your tenant, cannot be recorded here", why="name"
            ) from None
        answer = self._let_in(request, made, str(begun["next"]))
        self._unset(request, answer, BEGUN)
        return answer

    def _known_provider(self) -> Provider:
        if self._provider is None:
            raise LoginRefused("no login is configured here", why="none", hint="set login in amends.toml")
        return self._provider

    # ---- Logged in

    async def session(self, request: Request) -> Response:
        """Tell who is logged in, and the value of ``X-CSRF-Token`` for requests that change something."""
        cookie = request.cookies.get(SESSION)
        if cookie is None:
            raise Unauthorized("nobody is logged in", why="missing", hint="log in: GET /login")
        token = await self._token(cookie)
        who = {"name": token.principal, "scopes": list(token.scopes), "tenant": token.tenant, "kind": token.kind}
        more = {"expires_at": token.expires_at.isoformat(), "csrf": self._secrets.sign("csrf", {"id": token.id})}
        return JSONResponse({**who, **more}, headers=NO_STORE)

    async def logout(self, request: Request) -> Response:
        """End the login in every server, and remove the cookie; tell where to log out at the provider."""
        cookie = request.cookies.get(SESSION)
        answer: Response
        if cookie is None:
            raise Unauthorized("nobody is logged in", why="missing")
        try:
            token = await self._token(cookie)
        except Unauthorized:  # it has ended already: only the cookie is left
            answer = JSONResponse({"provider": None}, headers=NO_STORE)
        else:
            self._check_own(token, request.headers)
            mine = self._rt.scoped(token=token.id)
            await mine.revoke_token(token.id, by=token.principal, why="logged out")
            there = await self._provider.end_address() if self._provider and token.kind == "login" else None
            answer = JSONResponse({"provider": there}, headers=NO_STORE)
        self._unset(request, answer, SESSION)
        return answer

    def _let_in(self, request: Request, made: Token, next: str) -> Response:
        assert made.text is not None, "a new token has its text"
        answer = RedirectResponse(next, 303, headers=NO_STORE)
        cookie = self._secrets.sign("session", {"token": made.text}, lives_s=self._session_s)
        self._set(request, answer, SESSION, cookie, self._session_s)
        return answer

    def _set(self, request: Request, answer: Response, name: str, value: str, lives_s: float) -> None:
        answer.set_cookie(
            name, value, max_age=int(lives_s), path=_root(request) or "/", httponly=True, samesite="lax",
            secure=self._is_secure(request),
        )  # fmt: skip

    def _unset(self, request: Request, answer: Response, name: str) -> None:
        answer.delete_cookie(
            name, path=_root(request) or "/", httponly=True, samesite="lax", secure=self._is_secure(request)
        )

    def _is_secure(self, request: Request) -> bool:
        """Return whether browsers reach the service by https: as the request says, or the address of the login."""
        return request.url.scheme == "https" or bool(self._provider and self._provider.is_secure)


def _void(message: str, *, why: str) -> LinkVoid:
    """Return the error of a link that lets nobody in, with what to do: it is no link about an approval."""
    void = LinkVoid(message, why=why)
    void.hint = NEW_LINK
    return void


# ---- Out of logs


_SECRET_PARTS: Final = re.compile(
    r"(?P<token>amt_[0-9A-Za-z]+_)[0-9A-Za-z]+"
    r"|(?P<name>\b(?:once|code|state|token|access_token|id_token|csrf)=)[^&\s\"']+"
    r"|(?P<bearer>\bBearer\s+)(?!TOKEN\b)[^\s\"',]+"
    r"|(?P<cookie>\bamends_(?:session|login)=)[^;\s\"',]+",
    re.IGNORECASE,
)


def redacted(text: str) -> str:
    """Return a text without tokens, one-time links, codes of a login, and cookies."""
    return _SECRET_PARTS.sub(lambda found: f"{next(part for part in found.groups() if part)}•••", text)


class RedactSecrets(logging.Filter):
    """Keep tokens, one-time links, codes and cookies out of what a logger writes, such as ``uvicorn.access``."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace them in the record."""
        record.msg = redacted(record.msg) if isinstance(record.msg, str) else record.msg
        if isinstance(record.args, tuple):
            record.args = tuple(redacted(one) if isinstance(one, str) else one for one in record.args)
        elif isinstance(record.args, Mapping):
            record.args = {name: redacted(one) if isinstance(one, str) else one for name, one in record.args.items()}
        return True


def keep_out_of_logs(*names: str) -> None:
    """Add ``RedactSecrets`` to these loggers, by default those of uvicorn; a second call changes nothing."""
    for name in names or ("uvicorn", "uvicorn.access", "uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, RedactSecrets) for one in logger.filters):
            logger.addFilter(RedactSecrets())


# ---- Addresses


def _root(request: Request) -> str:
    """Return the path below which the application is served."""
    return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/")


def _next(request: Request) -> str:
    """Return where to lead after the login: a path of this service and nothing else."""
    said = request.query_params.get("next", "")
    said = said if len(said) <= NEXT_CHARS_MAX else ""  # a cookie carries it
    is_path = said.startswith("/") and not said.startswith(("//", "/\\")) and said.isprintable() and "\\" not in said
    parts = urlsplit(said) if is_path else urlsplit("")
    is_own = is_path and not parts.scheme and not parts.netloc
    return quote(said, safe="/?&=#%:,;@+~!$'()*") if is_own else f"{_root(request)}/"
