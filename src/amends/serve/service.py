"""The application: match a request with the table, check it, carry it out, and answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping
from secrets import token_urlsafe
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from amends import Approval, AsyncRuntime, Runtime
from amends.errors import Error, Forbidden, LeaseLost, Unauthorized, UsageError, log_error
from amends.secrets import Secrets, secrets_of
from amends.serve import openapi
from amends.serve.access import Access, Accessor, Who, allows, check_scope
from amends.serve.console import PAGES, Page, pages
from amends.serve.console.html import SUFFIX
from amends.serve.exchange import Exchange, PageQuery, Reply, encoded
from amends.serve.lifespan import live
from amends.serve.limits import Limits, Rates, read_body
from amends.serve.login import Logins, redacted
from amends.serve.long_work import LongWorks
from amends.serve.metrics import Meters
from amends.serve.problems import (
    MEDIA_TYPE,
    BadRequest,
    Internal,
    Invalid,
    NoSuchRoute,
    WrongMethod,
    WrongType,
    headers_of,
    problem_of,
)
from amends.serve.routes import ROUTES, Route
from amends.serve.sessions import SWEEP_S, Session, Sessions
from amends.serve.started import Started
from amends.serve.workers import Desk
from amends.visible import visible_log

log = visible_log("amends")
T = TypeVar("T")
Methods: TypeAlias = dict[str, tuple[Route | Page, tuple[str, ...]]]
"""The routes of one path by their methods, each with the names in its path."""
Branch: TypeAlias = dict[Any, Any]
"""The routes below one part of an address, by the next part; those that end here are at ``HERE``."""
NAME: Final = "{}"
HERE: Final = None
NOBODY: Final = Who("nobody", frozenset({"viewer"}))
"""Who makes a request to a public route."""
OWN_ONLY: Final = ("agent", "worker")
"""Scopes that show only what belongs to the own runs."""
ROUTE: Final = "amends.route"
"""Where the scope of a request has the path of its route, for the metrics."""
JSON: Final = "application/json"
JSON_HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-type", b"application/json"),
)
PROBED: Final = (["health"], ["ready"])
"""The addresses that answer HEAD as they answer GET."""
PROBLEMS_MAX: Final = 20
"""How many wrong fields a problem names."""


class Service:
    """The ASGI application of one runtime. It starts with the first request, or with the server's lifespan."""

    def __init__(
        self,
        rt: Runtime | AsyncRuntime,
        *,
        access: Accessor | None = None,
        limits: Limits | None = None,
        worker: bool = True,
        read_only: bool = False,
        secrets: Secrets | None = None,
        metrics: bool = False,
        console: bool = True,
        routes: Iterable[Route] = ROUTES,
        pages: Iterable[Page] = PAGES,
    ) -> None:
        self.rt, self._given = rt.as_async(), rt
        self.limits = limits or Limits()
        self.sessions = Sessions(self.limits)
        self.desk = Desk(self)
        self._secrets, self._signs_for = secrets, ""
        self.long_works = LongWorks()
        self.started = Started()
        self.streams = 0
        """How many event streams are open."""
        self.is_closing = False
        self._access, self._has_own_access = access, access is not None
        self._logins: Logins | None = None
        self._has_worker, self.is_read_only = worker, read_only
        self._rates = Rates(self.limits.requests_per_s)
        self.routes = tuple(routes)
        self.pages: tuple[Page, ...] = tuple(pages) if console else ()
        """The pages of the console; they are no part of the API, and of its document."""
        self._route_tree, self._page_tree = _tree_of(self.routes), _tree_of(self.pages)
        known: tuple[Route | Page, ...] = (*self.routes, *self.pages)
        self._plain = {
            (route.method, route.path): self._paged(route.query())
            for route in known
            if not any(one.is_required() for one in route.query.model_fields.values())
        }
        """What an address says that says nothing, where that is enough."""
        self.meters = self._meters(traces=metrics)
        self._keeper: asyncio.Task[None] | None = None
        self._document: dict[str, Any] | None = None

    def _meters(self, *, traces: bool) -> Meters | None:
        try:
            return Meters(self, traces=traces)
        except ModuleNotFoundError:
            return None  # the answer at /metrics says so

    # ---- Life

    async def start(self) -> None:
        """Begin to let go of silent clients' runs, and to recover runs; a second call does nothing."""
        if self._keeper is None or self._keeper.done():
            self.is_closing = False
            self._keeper = asyncio.get_running_loop().create_task(self._keep(), name="amends-serve")

    async def close(self) -> None:
        """End what ``start`` began, after the requests under way. The runtime stays open: whoever made it closes it."""
        self.is_closing = True
        await self.long_works.close()
        await self.started.close()
        await self.sessions.close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep(self) -> None:
        if self._has_worker and not self.is_read_only:
            async with self.rt.worker():
                await self._sweep()
        else:
            await self._sweep()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            for look in (self._hand_over, self.sessions.let_go_of_silent, self.desk.look_at_workers):
                try:
                    if (looking := look()) is not None:
                        await looking
                except Exception as error:  # the next sweep tries again
                    log_error(log, logging.ERROR, "leases of clients could not be looked at", error)

    async def _hand_over(self) -> None:
        if len(self.sessions):
            self.sessions.hand_over([(run.tenant or "", run.id) for run in await self.rt.wanted()])

    @property
    def secrets(self) -> Secrets:
        """What cookies and the tokens of claims are signed with; read from the settings when they are first needed."""
        if self._secrets is None:
            found = secrets_of(self.rt)
            self._secrets = found.of_tenant(self._signs_for) if self._signs_for else found
        return self._secrets

    def sign_for(self, tenant: str) -> None:
        """Sign for this tenant only, before anything is served: other tenants of the process may have the same secret."""
        assert not self._signs_for, "a service has one tenant"
        self._signs_for, self._logins = tenant, None
        self._secrets = None if self._secrets is None else self._secrets.of_tenant(tenant)

    @property
    def logins(self) -> Logins | None:
        """How people log in with a browser; None: the program that mounts the service has its own way (``access=``)."""
        if self._logins is None and not self._has_own_access:
            self._logins = Logins.of(self.rt, self.secrets)
        return self._logins

    # ---- Requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection (ASGI)."""
        if scope["type"] == "lifespan":
            await live(self, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        request = Request(scope, receive, send)
        begun = time.monotonic()
        response = await self._answered(request)
        if self.meters is not None:
            self.meters.answered(scope.get(ROUTE, ""), response.status_code, time.monotonic() - begun)
        await response(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        try:
            reply = await self._carried_out(request)
        except Error as error:
            return await self._problem(request, error)
        except Exception as error:
            log_error(log, logging.ERROR, f"{request.method} {request.url.path.partition('?')[0]} failed", error)
            return await self._problem(request, Internal("the service failed"))
        if isinstance(reply, Response):
            return reply
        if reply.stream is not None:
            return StreamingResponse(reply.stream, reply.status, dict(reply.headers), reply.media_type)
        if reply.media_type == JSON and not isinstance(reply.data, bytes):
            return JsonAnswer(encoded(reply.data), reply.status, reply.headers)
        body = reply.data if isinstance(reply.data, bytes) else encoded(reply.data)
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **reply.headers}
        return Response(body, reply.status, headers, reply.media_type)

    async def _problem(self, request: Request, error: Error) -> Response:
        if self.pages and pages.is_browser(request) and not self._is_for_programs(request):
            return await pages.problem(self, request, error)
        found = problem_of(error)
        found |= {
            "detail": redacted(found["detail"]),
            "hint": redacted(found["hint"]),
            "text": redacted(error.for_model()),
        }
        return Response(encoded(found), found["status"], headers_of(error), MEDIA_TYPE)

    async def _carried_out(self, request: Request) -> Reply | Response:
        await self.start()
        route, path, as_json = self._found(request)
        request.scope[ROUTE] = route.path
        if isinstance(route, Page):
            return await pages.show(self, request, route, path, as_json=as_json)
        x = await self.exchange(route, request, path)
        x.body = await self._body(route, request)
        with x.uses:
            return await route.handler(x)

    async def exchange(self, route: Route | Page, request: Request, path: Mapping[str, str]) -> Exchange:
        """Return the request as a handler gets it, without its body: whoever asks may ask this."""
        if route.scopes is None:
            who, is_wide = NOBODY, False
        else:
            who = await self.who(request)
            self._rates.check(who.token or who.name)
            check_scope(who, *route.scopes)
            others = tuple(one for one in route.scopes if one not in OWN_ONLY)
            is_wide = allows(who, *others) if others else "operator" in who.scopes
        if self.is_read_only and request.method not in ("GET", "HEAD") and route.name != "logout":
            raise Forbidden("this service is read-only", why="read_only")
        query, tenant = self._query(route, request)
        rt = self._view(who, tenant)
        if route.of == "ledger" and (who.tenant is not None or tenant is not None):
            raise Forbidden("this concerns every tenant: it needs an operator of every tenant", why="tenant")
        whose = (who.tenant or tenant) or ""
        return Exchange(self, request, who, whose, rt, path, query, None, is_wide)

    def _query(self, route: Route | Page, request: Request) -> tuple[BaseModel, str | None]:
        """Return what the address says, and which tenant it names."""
        if not request.scope["query_string"] and (route.method, route.path) in self._plain:
            return self._plain[(route.method, route.path)], None
        said = dict(request.query_params)
        if len(said) != len(request.query_params.multi_items()):
            raise BadRequest("a parameter of the address is there twice")
        tenant = said.pop("tenant", None) if route.scopes is not None else None
        return self._paged(_validated(route.query, said, "query", strict=False)), tenant

    def _paged(self, query: BaseModel) -> BaseModel:
        """Return the query with no more items than a page may have; raise ``Invalid`` if it asks for more."""
        page_max = self.limits.page_max
        if not isinstance(query, PageQuery) or query.limit <= page_max:
            return query
        if "limit" in query.model_fields_set:
            wrong = f"query.limit: a page has at most {page_max:,} items (page_max)"
            raise Invalid(wrong, problems=(wrong,))
        return query.model_copy(update={"limit": page_max})

    def _found(self, request: Request) -> tuple[Route | Page, dict[str, str], bool]:
        """Return the route or the page of this address, the names in it, and whether it asks for the page's data."""
        raw = self._parts(request.scope)
        try:
            parts = [unquote(part, errors="strict") for part in raw]
        except UnicodeDecodeError:
            raise BadRequest("the address is not UTF-8", hint="correct the address") from None
        # Whoever watches a service often asks so; elsewhere HEAD could use up what is valid once.
        method = "GET" if request.method == "HEAD" and parts in PROBED else request.method
        # A quoted ".json" is part of a name (see ``html.segment``).
        asks_data = request.method == "GET" and raw[-1].endswith(SUFFIX)
        methods = set[str]()
        for tree, as_json in ((self._route_tree, False), (self._page_tree, True), (self._page_tree, False)):
            if as_json and not asks_data:
                continue
            asked = [*parts[:-1], parts[-1].removesuffix(SUFFIX)] if as_json else parts
            found, named = _reached(tree, asked, 0)
            if found is None:
                continue
            if method in found:
                route, names = found[method]
                return route, dict(zip(names, reversed(named), strict=True)), as_json
            methods |= set(found)
        if not methods:
            raise NoSuchRoute("there is nothing at this address")
        allow = ", ".join(sorted(methods))
        raise WrongMethod(f"{request.method} is not possible here; {allow} is", allow=allow)

    def _is_for_programs(self, request: Request) -> bool:
        parts = self._parts(request.scope)
        return parts[0] in ("v1", "health", "ready", "metrics") or parts[-1].endswith(SUFFIX)

    @staticmethod
    def _parts(scope: Scope) -> list[str]:
        """Return the parts of the address, still quoted, below where the application is mounted."""
        raw = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
        parts = raw.decode("latin-1").partition("?")[0].lstrip("/").split("/")
        above = [part for part in scope.get("root_path", "").split("/") if part]
        if [unquote(part) for part in parts[: len(above)]] == above:
            parts = parts[len(above) :]
        return parts or [""]

    async def who(self, request: Request) -> Who:
        """Return whoever asks; raise ``Unauthorized``."""
        if self._access is None:
            self._access = Access(self.rt, logins=self.logins)
        found = self._access(request)
        who = await found if inspect.isawaitable(found) else found
        if not isinstance(who, Who):
            raise Unauthorized("nobody knows who asks", why="missing")
        return who

    async def _body(self, route: Route, request: Request) -> Any:
        if route.body is None and route.body_type == "application/json":
            return None
        is_json = route.body is not None
        bytes_max = self.limits.body_bytes_max if is_json else self.limits.bundle_bytes_max
        data = await read_body(request, bytes_max=bytes_max, s_max=self.limits.body_s_max)
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if (data or given) and given != route.body_type:
            raise WrongType(f"the body is {given or 'of no type'}, and {route.body_type} is read here")
        if route.body is None:
            return data
        try:
            said = from_json(data, allow_inf_nan=False) if data else {}
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {str(error)[:200]}") from None
        if not isinstance(said, dict):
            raise Invalid("the body is not a JSON object", problems=("body: not an object",))
        return _validated(route.body, said, "body", strict=True)

    def _view(self, who: Who, tenant: str | None) -> AsyncRuntime:
        if who.tenant is not None and tenant not in (None, who.tenant):
            raise Forbidden("this token belongs to one tenant, and the request names another", why="tenant")
        try:
            return self.rt.scoped(
                tenant=(who.tenant or tenant) or None, agent=who.agent or None, principal=who.name,
                token=who.token or None,
            )  # fmt: skip
        except UsageError:
            raise Forbidden("this service does not act for the token's tenant", why="tenant") from None

    # ---- For handlers

    def own_tenant(self, x: Exchange) -> str | None:
        """Return the tenant that a request is limited to, "" for the one without a name; None: every tenant."""
        return x.who.tenant if x.who.tenant is not None else x.request.query_params.get("tenant")

    def new_id(self, what: str) -> str:
        """Return a new id for something that lives in this process only."""
        return f"{what}_{token_urlsafe(12)}"

    def runtime(self, tenant: str) -> AsyncRuntime:
        """Return the runtime for this tenant, without the names of whoever asks."""
        return self.rt.scoped(tenant=tenant or None)

    def blocking(self, x: Exchange) -> Runtime | None:
        """Return the runtime for whoever asks as its program made it, if it is a blocking one: its agents block."""
        if not isinstance(self._given, Runtime):
            return None
        return self._given.scoped(tenant=x.tenant or None, principal=x.who.name, token=x.who.token or None)

    async def finished(self, x: Exchange, session: Session, work: Coroutine[Any, Any, T]) -> T:
        """Finish work in a run within the time that a client should wait for an answer."""
        try:
            return await self.sessions.within(x.tenant, session, work, s_max=self.limits.answer_s_max)
        except LeaseLost:
            self.sessions.forget(x.tenant, session.root_id, session.root)  # a child is lost with its root
            raise

    async def check(self, x: Exchange) -> None:
        """Raise ``Unauthorized`` if whoever asked may not ask any more."""
        await self.who(x.request)

    def base(self, request: Request) -> str:
        """Return the path below which the application is served, quoted as in an address."""
        return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/")

    def approval_place(self, x: Exchange, approval: Approval) -> str:
        """Return the address of a request for approval."""
        return f"{self.base(x.request)}/v1/approvals/{quote(approval.id, safe='')}"

    def document(self) -> dict[str, Any]:
        """Return the OpenAPI document of the routes that are served."""
        if self._document is None:
            self._document = openapi.document(self.routes)
        return self._document


class JsonAnswer(Response):
    """The answer of nearly every request: its headers need no encoding, except those that the handler gives."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str]) -> None:
        self.status_code, self.body, self.background = status, body, None
        self.raw_headers = [
            *JSON_HEADERS,
            (b"content-length", str(len(body)).encode("ascii")),
            *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()),
        ]


def _tree_of(routes: Iterable[Route | Page]) -> Branch:
    """Return these routes part by part: a fixed word, or a name (``NAME``)."""
    tree: Branch = {}
    for route in routes:
        parts = route.path.strip("/").split("/")
        branch = tree
        for part in parts:
            branch = branch.setdefault(NAME if part.startswith("{") else part, {})
        names = tuple(part[1:-1] for part in parts if part.startswith("{"))
        branch.setdefault(HERE, {})[route.method] = (route, names)
    return tree


def _reached(branch: Branch, parts: list[str], place: int) -> tuple[Methods | None, list[str]]:
    """Return the routes at these parts of an address, and the names among them, the last one first.

    A fixed word counts before a name.
    """
    if place == len(parts):
        return branch.get(HERE), []
    part = parts[place]
    if part != NAME and (word := branch.get(part)) is not None:
        found, named = _reached(word, parts, place + 1)
        if found is not None:
            return found, named
    if part and (name := branch.get(NAME)) is not None:
        found, named = _reached(name, parts, place + 1)
        if found is not None:
            named.append(part)
            return found, named
    return None, []


def _validated(model: type[BaseModel], said: Mapping[str, Any], where: str, *, strict: bool) -> BaseModel:
    try:
        return model.model_validate(said, strict=strict)
    except ValidationError as error:
        wrong = tuple(
            f"{where}.{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors(include_url=False, include_context=False, include_input=False)[:PROBLEMS_MAX]
        )
        raise Invalid("; ".join(wrong), problems=wrong) from None
