"""A page of the console: its address, who may see it, the function that loads its data, and the template that shows it.

``load`` returns plain JSON data; the address with ``.json`` answers exactly that, and the template shows that and nothing
else. So what a page says is decided in Python. A page whose ``act`` is set is a form that changes something (``acts.py``).

A template extends ``shell.layout`` and gets the data's fields as its variables, ``shell`` (who looks, what they may do,
what was typed), ``url("/runs", id, tab="x")`` for addresses of the console, and ``static(name)``.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from amends.errors import Error, Unauthorized
from amends.serve.access import Who, allows
from amends.serve.console import acts, html
from amends.serve.console.acts import Act, Asks
from amends.serve.console.html import path
from amends.serve.exchange import Exchange, encoded
from amends.serve.login import SESSION, redacted
from amends.serve.problems import headers_of, problem_of

if TYPE_CHECKING:
    from amends.serve.service import Service

Load: TypeAlias = Callable[[Exchange], Awaitable[dict[str, Any] | Response]]
Thing: TypeAlias = Literal["nothing", "tenant", "run", "call", "approval", "worker", "ledger"]
READ: Final = ("viewer",)
DECIDE: Final = ("approver",)
OPERATE: Final = ("operator",)
FOR_PROGRAMS: Final = re.compile(r"\brt\.\w|^GET /|X-CSRF-Token")
"""What the hint of an error has if it is for somebody who writes a program, not for a person at a page."""
JSON_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
HERE_CHARS_MAX: Final = 900
"""A longer address is not returned to after a login."""
WAITS_MAX: Final = 99
"""A higher count of what waits is shown as "99+"."""
NAV: Final = (
    ("demo", "Live shop", "/demo"),  # only where `amends demo` serves it
    ("runs", "Runs", "/runs"),
    ("approvals", "Approvals", "/approvals"),
    ("doubts", "Doubts", "/doubts"),
    ("costs", "Costs", "/costs"),
    ("tools", "Tools", "/tools"),
    ("workers", "Workers", "/workers"),
    ("compare", "Compare", "/compare"),
    ("audit", "Audit", "/audit"),
)
"""The side navigation: those of its pages that exist are shown."""


class Said(BaseModel):
    """What an address of the console may say; a parameter that nobody knows is ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True, slots=True)
class Page:
    """One page, or one act (a form that is sent by POST).

    ``name``: unique among pages; its template is ``name.html``. ``scopes``, ``of``: as of a route of the service.
    ``nav``: the entry of the side navigation that it belongs to. ``live``: which changes it follows: those of the ledger,
    those of the run that its address names, or none. ``back``: of an act, the name of the page that it came from, which is
    shown again with what was typed if the act is refused. ``asks``: of an act that cannot be taken back, a function that
    says once more what will happen; the act is carried out when that was confirmed.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    title: str
    scopes: tuple[str, ...] | None
    of: Thing
    load: Load | None = None
    act: Act | None = None
    query: type[BaseModel] = Said
    nav: str = ""
    live: Literal["", "ledger", "run"] = ""
    back: str = ""
    asks: Asks | None = None
    takes_file: bool = False
    """Of an act: whether its form may have a file."""

    def __post_init__(self) -> None:
        assert (self.load is None) == (self.method == "POST"), "a page is loaded by GET"
        assert (self.act is None) == (self.method == "GET"), "an act is a POST"

    @property
    def template(self) -> str:
        """The template that shows it."""
        return f"{self.name}.html"


# ---- Showing


async def show(service: Service, request: Request, page: Page, names: Mapping[str, str], *, as_json: bool) -> Response:
    """Answer a request for a page, or carry out its act."""
    form: dict[str, str] = {}
    try:
        if page.act is not None:
            form = await acts.read_form(service, request, takes_file=page.takes_file)
            request = acts.with_csrf(request, form)
        x = await service.exchange(page, request, names)
        x.body = form
        if page.act is not None:
            return await _acted(x, page, form)
        return await shown(x, page, as_json=as_json)
    except Error as error:
        if as_json or not is_browser(request):
            raise
        return await _failed(service, request, page, names, form, error)


async def shown(
    x: Exchange,
    page: Page,
    *,
    as_json: bool = False,
    error: Error | None = None,
    typed: Mapping[str, str] | None = None,
    acted: str = "",
) -> Response:
    """Return a page with its data.

    ``error``: what went wrong with an act; ``typed``: what was typed for it; ``acted``: the name of the act.
    """
    assert page.load is not None, f"{page.name} has something to show"
    shell = await _shell(x, page) if not as_json else {}
    data = await page.load(x)
    if isinstance(data, Response):
        return data
    if as_json:
        return Response(encoded(data), 200, JSON_HEADERS, "application/json")
    if error is not None:
        shell |= {"error": _told(error), "typed": dict(typed or {}), "acted": acted}
    status = 200 if error is None else problem_of(error)["status"]
    answer = html.answer(page.template, {**data, **callables(x.request), "shell": shell}, status=status)
    if shell["flash"]:
        acts.forget_flash(x.service, x.request, answer)
    return answer


async def _acted(x: Exchange, page: Page, form: Mapping[str, str]) -> Response:
    assert page.act is not None, "it is an act"
    acts.check_csrf(x, form)
    if page.asks is not None and form.get("confirmed") != "yes":
        asked = await page.asks(x, form)
        kept = {name: value for name, value in form.items() if name not in ("csrf", "confirmed")}
        shell = await _shell(x, page)
        data = {"asked": asked.to_dict(), "kept": kept, "here": shell["here"], "back": asked.back}
        return html.answer("confirm.html", {**data, **callables(x.request), "shell": shell})
    done = await page.act(x, form)
    if isinstance(done, Response):
        return done
    answer = RedirectResponse(_in_place(x.request, done.to), 303, headers={"Cache-Control": "no-store"})
    acts.set_flash(x.service, x.request, answer, done)
    return answer


async def _failed(
    service: Service, request: Request, page: Page, names: Mapping[str, str], form: Mapping[str, str], error: Error
) -> Response:
    """Return what a browser is shown instead of the page: the login, the page that an act came from, or an error."""
    back = next((one for one in service.pages if page.back and one.name == page.back), None)
    if isinstance(error, Unauthorized) and service.logins is not None:
        there = _path_of(back, names) if back is not None else path(request.url.path)
        return to_login(service, request, there if page.act is not None else None)
    if page.act is not None and back is not None:
        try:
            x = await service.exchange(back, as_get(request), names)
            return await shown(x, back, error=error, typed=form, acted=page.name)
        except Error:
            pass  # what went wrong first is what is told
    return await problem(service, request, error)


async def problem(service: Service, request: Request, error: Error) -> Response:
    """Return an error as a page."""
    try:
        who: Who | None = await service.who(as_get(request))
    except Error:
        who = None
    told = _told(error)
    shell = _bare(request, service=service, who=who) | {"title": told["title"]}
    answer = html.answer("error.html", {"told": told, **callables(request), "shell": shell}, status=told["status"])
    answer.headers.update({name: value for name, value in headers_of(error).items() if name != "Cache-Control"})
    return answer


def to_login(service: Service, request: Request, there: str | None = None) -> Response:
    """Lead somebody who is not logged in to the login, and from there back to this page."""
    here = _in_place(request, there) if there is not None else _here(request)
    here = here if len(here) <= HERE_CHARS_MAX else _in_place(request, "/runs")
    if request.headers.get("hx-request") == "true":  # a part of a page: its script leads there as a whole
        return Response(status_code=401, headers={"Cache-Control": "no-store"})
    to = service.base(request) + path("/login", next=here)
    if request.method == "POST" and service.logins is not None and service.logins.has_provider:
        text = "Nothing was done. Log in, and send the form again."
        return leading(request, to, title="You are logged out", text=text, label="Log in", status=401)
    return RedirectResponse(to, 303, headers={"Cache-Control": "no-store"})


def leading(request: Request, there: str, *, title: str, text: str, label: str, status: int = 200) -> Response:
    """Return a page that leads on by itself.

    The policy of the pages (``form-action``) keeps browsers from following a redirect of a form to another site.
    """
    data = bare(request)
    data |= {"shell": data["shell"] | {"title": title}, "title": title, "text": text, "label": label, "there": there}
    answer = html.answer("leave.html", data, status=status)
    answer.headers["Refresh"] = f"0; url={there}"
    return answer


def is_browser(request: Request) -> bool:
    """Return whether whoever asks wants to see a page.

    Somebody with the cookie of a login who takes anything does, too: the pages themselves are HTML for them. A script of
    a page sends that cookie as well, and gets data.
    """
    headers = request.headers
    accept = headers.get("accept", "").strip()
    if "text/html" in accept:
        return True
    is_script = "hx-request" in headers or headers.get("sec-fetch-mode", "navigate") != "navigate"
    is_login = SESSION in request.cookies and "authorization" not in headers
    return is_login and not is_script and accept in ("", "*/*")


def as_get(request: Request) -> Request:
    """Return the request as if it only asked, for the same tenant and the same tab of a page."""
    kept = {name: request.query_params[name] for name in ("tenant", "tab") if name in request.query_params}
    said = urlencode(kept).encode()
    return Request(dict(request.scope) | {"method": "GET", "query_string": said}, request.receive)


# ---- What every page has


def callables(request: Request) -> dict[str, Any]:
    """Return what a template may call."""
    base, tenant = _base(request), request.query_params.get("tenant")

    def url(first: str, name: Any = "", then: str = "", /, **query: Any) -> str:
        return base + path(first, str(name), then, **({"tenant": tenant} | query))

    return {"url": url, "static": lambda name: base + html.static(name)}


async def _shell(x: Exchange, page: Page) -> dict[str, Any]:
    service = x.service
    shell = _bare(x.request, service=service, who=x.who)
    is_part = x.request.headers.get("hx-request") == "true"
    live = ""
    if page.live and not is_part:
        run = x.path.get("id") if page.live == "run" else None
        newest = await x.rt.newest_event(run)  # what happens from here on is told
        live = _in_place(x.request, path("/live", run=run, after=newest.place if newest else ""))
    return shell | {
        "layout": "part.html" if is_part else "base.html",
        "title": page.title,
        "page": page.name,
        "nav": page.nav,
        "csrf": acts.csrf_of(service, x.who),
        "live": live,
        "flash": None if is_part else acts.flash_of(service, x.request),
        "waits": await _waits(x) if page.nav else {},
    }


async def _waits(x: Exchange) -> dict[str, str]:
    """Return how much waits for a person, for the navigation: "12", "99+"."""
    paths = {one.path for one in x.service.pages}
    found: dict[str, str] = {}
    for key, listed in (("approvals", lambda: x.rt.approvals("state:pending")), ("doubts", x.rt.doubts)):
        if f"/{key}" in paths:
            count = 0
            async for _ in listed():
                count += 1
                if count > WAITS_MAX:
                    break
            found[key] = f"{WAITS_MAX}+" if count > WAITS_MAX else str(count or "")
    return found


def _bare(request: Request, *, service: Service, who: Who | None) -> dict[str, Any]:
    """Return what the frame of a page shows whatever the page is."""
    paths = {one.path for one in service.pages}
    may_write = who is not None and not service.is_read_only
    return {
        "layout": "base.html",
        "title": "amends",
        "page": "",
        "nav": "",
        "navigation": [one for one in NAV if one[2] in paths] if who is not None and allows(who, "viewer") else [],
        "who": None if who is None else {"name": who.name, "scopes": sorted(who.scopes), "kind": who.kind},
        "may": {
            "decide": may_write and who is not None and allows(who, "approver"),
            "operate": may_write and who is not None and allows(who, "operator"),
        },
        "can_log_out": who is not None and who.kind in ("login", "link") and service.logins is not None,
        "is_read_only": service.is_read_only,
        "tenant": request.query_params.get("tenant") or ((who.tenant or "") if who is not None else ""),
        "tenant_named": request.query_params.get("tenant"),
        "csrf": "",
        "live": "",
        "waits": {},
        "flash": None,
        "error": None,
        "typed": {},
        "acted": "",
        "here": _here(request),
    }


def bare(request: Request) -> dict[str, Any]:
    """Return the frame of a page for somebody whom nobody knows, and what its template may call."""
    shell = {"layout": "alone.html", "title": "Log in", "page": "login", "here": _here(request)}
    return {**callables(request), "shell": shell}


def _told(error: Error) -> dict[str, Any]:
    found = problem_of(error)
    return {
        "title": found["title"],
        "detail": redacted(found["detail"]),
        "hint": "" if FOR_PROGRAMS.search(found["hint"]) else redacted(found["hint"]),
        "code": found["code"],
        "status": found["status"],
        "problems": found.get("problems", []),
    }


def _path_of(page: Page, names: Mapping[str, str]) -> str:
    parts = page.path.strip("/").split("/")
    return "/" + "/".join(html.segment(names[part[1:-1]]) if part.startswith("{") else part for part in parts)


def _base(request: Request) -> str:
    return quote(str(request.scope.get("root_path", "")).rstrip("/"), safe="/")


def _here(request: Request) -> str:
    said = request.scope.get("query_string", b"").decode("latin-1")
    raw = request.scope.get("raw_path")
    own = raw.decode("latin-1").partition("?")[0] if raw else quote(request.scope["path"])
    base = _base(request)
    own = own if own.startswith(f"{base}/") or own == base else base + own
    return f"{own}?{said}" if said else own


def _in_place(request: Request, to: str) -> str:
    """Return an address of the console as a browser asks for it, for the tenant that this request names."""
    tenant = request.query_params.get("tenant")
    more = f"{'&' if '?' in to else '?'}{urlencode({'tenant': tenant})}" if tenant is not None else ""
    return _base(request) + to + more
