"""Send requests to the service: with a token, again when that is safe, and with errors as exceptions."""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from amends.client.flows import Send, Sleep
from amends.client.problems import TEXTS_MAX, ServiceError, Unreachable, error_of
from amends.errors import Error, UsageError

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 5.0
"""Between two tries: it doubles, up to this, and is half random, so that many clients do not come back at once."""
PAGE: Final = 200
ROUTE_HEADER: Final = "X-Amends-Route"
"""Requests with the same text in it go to the same server, if a proxy has several: most often the id of a run."""
RUN_PATH: Final = "/v1/runs/"
PASSING: Final = frozenset({409, 429, 502, 503, 504})
"""The statuses that may pass; of 409 only those with Retry-After."""


class AnyClient:
    """A client of either colour."""

    _driver: Any

    def __init__(
        self, url: str, token: str, *, tenant: str | None, patience: float, timeout: float, route: str | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"{url!r} is no address of a service", hint='Client("http://127.0.0.1:8484", token="...")')
        if not token or not token.isascii() or any(one.isspace() for one in token):
            raise UsageError("a client needs a token", hint="amends tokens create shows one, once")
        self.url = url.rstrip("/")
        if route is not None and not (route and route.isascii() and route.isprintable()):
            raise UsageError(
                f"{route!r} cannot be sent in a header", hint="route= is a text of printable ASCII characters"
            )
        self._token, self._tenant, self._patience_s, self._timeout_s = token, tenant, patience, timeout
        self._route = route

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"


def transport_errors(client: AnyClient) -> tuple[type[Exception], ...]:
    """Return the errors of a connection that broke, or never came about."""
    return (client._driver.package.TransportError,)


def _connect_errors(client: AnyClient) -> tuple[type[Exception], ...]:
    """Return the errors after which the service has certainly not seen the request."""
    package = client._driver.package
    return (package.ConnectError, package.ConnectTimeout, package.PoolTimeout, package.UnsupportedProtocol)


async def ask(
    client: AnyClient,
    method: str,
    path: str,
    *,
    body: Mapping[str, Any] | bytes | None = None,
    query: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    is_repeatable: bool = True,
    patience: float | None = None,
    route: str = "",
) -> httpx.Response:
    """Return the answer to a request; raise the error that it describes.

    A connection that broke, and an answer that says when to try again, are tried again for ``patience`` seconds.
    ``is_repeatable=False``: sent twice it would be done twice, or refused the second time; so it is sent again only if it was
    certainly not done. ``route``: the id of the run that it is about, if its path does not name it.
    """
    sent = request(client, method, path, body=body, query=query, headers=headers, timeout=timeout, route=route)
    until = time.monotonic() + (client._patience_s if patience is None else patience)
    pause_s = PAUSE_S
    while True:
        after_s: float | None = None
        try:
            answer = await sent
        except transport_errors(client) as error:
            is_unseen = isinstance(error, _connect_errors(client))
            if not (is_repeatable or is_unseen):
                raise Unreachable(
                    f"{method} {path}: the connection to {client.url} broke ({type(error).__name__}): it may have been done",
                    hint="look whether it was done before you ask again",
                ) from error
            broken: Error = Unreachable(f"{client.url} does not answer ({type(error).__name__})")
            broken.__cause__ = error
        else:
            if answer.status_code < 400:
                return answer
            broken = error_in(answer)
            after_s = _after(answer)
            # 503 may come after the ledger has written: only a request that is repeatable is sent again after it.
            may_pass = answer.status_code in PASSING and (answer.status_code != 409 or after_s is not None)
            if not may_pass or not (is_repeatable or answer.status_code == 429):
                raise broken
        wait_s = after_s if after_s is not None else pause_s * (0.5 + random.random() / 2)
        if time.monotonic() + wait_s > until:
            raise broken
        await Sleep(wait_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def request(
    client: AnyClient,
    method: str,
    path: str,
    *,
    body: Mapping[str, Any] | bytes | None = None,
    query: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    route: str = "",
) -> Send:
    """Return the operation that sends a request with the client's token."""
    own = {"Authorization": f"Bearer {client._token}", "Accept": "application/json, application/problem+json, */*"}
    routed = client._route or quote(str(route), safe="", errors="replace") or _run_in(path)
    if routed:
        own[ROUTE_HEADER] = routed
    content: bytes | None = None
    if isinstance(body, bytes):
        content, own["Content-Type"] = body, "application/zip"
    elif body is not None:
        content, own["Content-Type"] = written(body), "application/json"
    said = {name: _word(value) for name, value in (query or {}).items() if value is not None and value != ""}
    if client._tenant is not None and path.startswith("/v1/") and path != "/v1/openapi.json":
        said["tenant"] = client._tenant
    timeout_s = client._timeout_s if timeout is None else timeout
    return Send(method, client.url + path, said, content, {**own, **(headers or {})}, timeout_s)


def _run_in(path: str) -> str:
    """Return the run that a path names, quoted as it is there; empty: none."""
    return path.split("/")[3].partition("?")[0] if path.startswith(RUN_PATH) else ""


def written(body: Mapping[str, Any]) -> bytes:
    """Return JSON text; raise ``UsageError`` for what JSON cannot hold, before anything is sent."""
    try:
        return json.dumps(body, allow_nan=False).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"this cannot be sent as JSON: {error}", hint="pass plain data; nothing was sent") from error


def _word(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _after(answer: httpx.Response) -> float | None:
    try:
        return max(0.0, min(float(answer.headers["retry-after"]), 3_600.0))
    except (KeyError, ValueError):
        return None


def error_in(answer: httpx.Response) -> Error:
    """Return the error that an answer describes; of a proxy that answers in its own words too."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if isinstance(problem, dict) and "code" in problem:
        return error_of(problem, status=answer.status_code)
    text = answer.text[:TEXTS_MAX].strip()
    return ServiceError(
        f"the answer was {answer.status_code}, which is no answer of this service: {text or 'it is empty'}",
        status=answer.status_code,
        hint="is this the address of the service, and what is between here and there?",
    )


async def read(client: AnyClient, path: str, **query: Any) -> Any:
    """Return the JSON data at an address."""
    return (await ask(client, "GET", path, query=query)).json()


async def post(
    client: AnyClient, path: str, body: Mapping[str, Any], *, is_repeatable: bool = True, route: str = ""
) -> Any:
    """Send JSON data, and return the answer's."""
    return (await ask(client, "POST", path, body=body, is_repeatable=is_repeatable, route=route)).json()


async def pages(
    client: AnyClient, path: str, reader: Callable[[Mapping[str, Any]], T], *, after: str = "", **query: Any
) -> AsyncGenerator[T, None]:
    """Yield each item of a listing, page by page."""
    next_: str | None = after
    while next_ is not None:
        page = await read(client, path, after=next_, limit=PAGE, **query)
        for one in page["items"]:
            yield reader(one)
        next_ = page["next"]


async def whole(client: AnyClient, path: str, reader: Callable[[Mapping[str, Any]], T], **query: Any) -> list[T]:
    """Return all items of a listing."""
    return [one async for one in pages(client, path, reader, **query)]


def said(**fields: Any) -> dict[str, Any]:
    """Return the fields that were given."""
    return {name: value for name, value in fields.items() if value is not None}


def part(text: str) -> str:
    """Return a part of a path."""
    # A part of dots alone would be taken for a step in the path.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")
