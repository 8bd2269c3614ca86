"""A browser, as far as a login needs one: it keeps cookies, and follows no redirect by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from amends import AsyncRuntime
from amends.errors import Error, Unauthorized
from amends.secrets import Secrets
from amends.serve.access import CHALLENGE, Access
from amends.serve.login import Logins, redacted
from amends.serve.oidc import Provider

SECRET = "s" * 32
ADDRESSES = {
    "/login": ("GET", "page"),
    "/login/start": ("GET", "start"),
    "/login/callback": ("GET", "callback"),
    "/login/link": ("GET", "link"),
    "/login/session": ("GET", "session"),
    "/login/logout": ("POST", "logout"),
}


def service(rt: AsyncRuntime, logins: Logins) -> Any:
    """Return an application with the login before it, which answers every other request with who asks."""
    access = Access(rt, logins=logins)

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive, send)
        try:
            who = await access(request)
            answer: Response = JSONResponse(
                {"name": who.name, "scopes": sorted(who.scopes), "tenant": who.tenant, "token": who.token}
            )
        except Error as error:
            answer = problem(error)
        await answer(scope, receive, send)

    async def served(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive, send)
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path not in ADDRESSES:
            await answers(scope, receive, send)
            return
        method, name = ADDRESSES[path]
        try:
            found = await getattr(logins, name)(request) if request.method == method else Response(status_code=405)
        except Error as error:
            found = problem(error)
        await found(scope, receive, send)

    return served


def problem(error: Error) -> Response:
    """Return an error as the service does."""
    status = 401 if isinstance(error, Unauthorized) else 403
    said = {
        "status": status,
        "code": type(error).__name__,
        "detail": redacted(str(error)),
        "hint": redacted(error.hint),
    }
    return JSONResponse(said, status, CHALLENGE if status == 401 else {}, media_type="application/problem+json")


def visit(app: Any, *, base: str = "http://127.0.0.1:8000", root: str = "") -> httpx.AsyncClient:
    """Return a browser that visits this application."""
    transport = httpx.ASGITransport(app=app, root_path=root)
    return httpx.AsyncClient(transport=transport, base_url=base, follow_redirects=False)


def played(
    flow: Callable[[AsyncRuntime, Logins, httpx.AsyncClient], Awaitable[None]],
    *,
    provider: Provider | None = None,
    secrets: Secrets | None = None,
    url: str = "memory:",
    **options: Any,
) -> None:
    """Play a flow with a runtime, its logins, and a browser."""

    async def play() -> None:
        async with AsyncRuntime(url) as rt:
            logins = Logins(rt, secrets or Secrets(SECRET), provider=provider)
            async with visit(service(rt, logins), **options) as browser:
                await flow(rt, logins, browser)

    asyncio.run(play())
