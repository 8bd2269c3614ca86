"""A table from tenants to ledgers: one application, below whose paths each tenant has a service of its own.

amends does not spread one ledger over several databases. A run is in one ledger, and a tenant's runs are in the ledger
that the table names. So what happens to one ledger (its server is lost, restored or upgraded) happens to its tenants
only: each service has its own connections, worker, tokens, sessions and limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from amends import AsyncRuntime, Runtime, __version__
from amends.errors import BadConfig, Error
from amends.serve.exchange import encoded
from amends.serve.lifespan import live
from amends.serve.problems import MEDIA_TYPE, BadRequest, NoSuchRoute, WrongMethod, headers_of, problem_of
from amends.serve.service import Service

RESERVED: Final = frozenset({"health", "ready", "metrics", "v1", ".", ".."})
"""First parts of addresses that are no tenant's."""
NAME_MAX: Final = 200
TENANTS_MAX: Final = 1_000
"""More ledgers than this in one process are a mistake: each has connections and a worker."""
READY_S_MAX: Final = 5.0
JSON: Final = "application/json"


class Tenants:
    """The ASGI application of several services: ``/acme/v1/runs`` is ``/v1/runs`` of the tenant ``acme``."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services: Mapping[str, Service] = MappingProxyType(dict(services))
        for name, service in self.services.items():
            service.sign_for(name)

    async def start(self) -> None:
        """Start every service; a ledger that does not answer keeps no other service from starting."""
        for service in self.services.values():
            await service.start()

    async def close(self) -> None:
        """End every service, all at once: one whose ledger does not answer holds up nobody."""
        done = await asyncio.gather(*(one.close() for one in self.services.values()), return_exceptions=True)
        failed = [one for one in done if isinstance(one, Exception)]
        if failed:
            raise ExceptionGroup("services that did not end in order", failed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection (ASGI)."""
        if scope["type"] == "lifespan":
            await live(self, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            first = _first_part(scope)
            service = self.services.get(first)
            if service is not None:
                below = {**scope, "root_path": f"{scope.get('root_path', '').rstrip('/')}/{first}"}
                await service(below, receive, send)
                return
            response = await self._own(first, Request(scope, receive))
        except Error as error:
            found = problem_of(error)
            response = Response(encoded(found), found["status"], headers_of(error), MEDIA_TYPE)
        await response(scope, receive, send)

    async def _own(self, first: str, request: Request) -> Response:
        """Answer what is about the process, and not about a tenant. It names no tenant: anybody may ask."""
        if first not in ("health", "ready"):
            raise NoSuchRoute(
                "there is no tenant of this name here", hint="the first part of the address names the tenant"
            )
        if request.method not in ("GET", "HEAD"):
            raise WrongMethod(f"{request.method} is not possible here; GET is", allow="GET")
        said: dict[str, Any] = {"status": "ok", "version": __version__}
        status = 200
        if first == "ready":
            answers = await asyncio.gather(*map(_answers, self.services.values()))
            said |= {"ledgers": len(answers), "answering": sum(answers)}
            if not any(answers):
                said["status"], status = "failing", 503
            elif not all(answers):
                said["status"] = "partial"
        return Response(encoded(said), status, {"Cache-Control": "no-store"}, JSON)


def check_table(table: Mapping[str, Runtime | AsyncRuntime]) -> None:
    """Raise ``BadConfig`` unless each tenant has a name that can be in an address, and a ledger of its own."""
    given: Any = table
    if not isinstance(given, Mapping) or not given:
        raise _bad("this is no table from the names of tenants to runtimes, or an empty one")
    if len(table) > TENANTS_MAX:
        raise _bad(f"the table has {len(table):,} tenants; one process serves at most {TENANTS_MAX:,}")
    seen: dict[object, str] = {}
    for name, rt in table.items():
        _check_name(name)
        if not isinstance(rt, Runtime | AsyncRuntime):
            raise _bad(
                f"tenant {name!r} has a {type(rt).__name__}, not a runtime",
                hint="make a runtime for each ledger: {name: Runtime(url, tools=TOOLS) for name, url in urls.items()}",
            )
        url = str(rt.settings["url"].value)
        known = seen.setdefault(id(rt) if url == "memory:" else url, name)
        if known != name:
            raise _bad(
                f"tenants {known!r} and {name!r} have the same ledger, and would see each other's runs",
                hint="give each its own ledger; tenants that share one are separated by their tokens: amends tokens create"
                " --tenant",
            )


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise _bad(f"the name of a tenant is a text of 1 to {NAME_MAX} characters, not {name!r}")
    if "/" in name or not name.isprintable() or name != name.strip():
        raise _bad(f"the tenant {name!r} cannot be part of an address: it has a slash, a space at an end, or worse")
    if name in RESERVED:
        raise _bad(f"no tenant can be called {name!r}: that address has another meaning")


def _bad(message: str, hint: str = 'as in tenants({"acme": Runtime(url, tools=TOOLS)})') -> BadConfig:
    return BadConfig(message, setting="tenants", hint=hint)


async def _answers(service: Service) -> bool:
    """Return whether the ledger of this service answers."""
    try:
        async with asyncio.timeout(READY_S_MAX):
            await service.rt.newest_event()
    except (Error, TimeoutError):
        return False
    return True


def _first_part(scope: Scope) -> str:
    """Return the first part of the address below where the application is mounted."""
    raw = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
    try:
        parts = [
            unquote(one, errors="strict") for one in raw.decode("latin-1").partition("?")[0].lstrip("/").split("/")
        ]
    except UnicodeDecodeError:
        raise BadRequest("the address is not UTF-8", hint="correct the address") from None
    above = [part for part in scope.get("root_path", "").split("/") if part]
    below = parts[len(above) :] if parts[: len(above)] == above else parts
    return below[0] if below else ""
