"""Acts: forms that change something, each one verb of the runtime under the name of whoever is logged in.

A form carries ``csrf``, a text that is signed for its login, so that no other site can send it. After an act the browser is
led to a page that shows the result, with one sentence about it (a signed cookie that is shown once).
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from amends import Call
from amends.errors import Forbidden
from amends.secrets import BadSignature
from amends.serve.access import Who
from amends.serve.exchange import Exchange
from amends.serve.limits import read_body
from amends.serve.problems import AlreadyDecided, BadRequest, Invalid, WrongType
from amends.visible import visible

if TYPE_CHECKING:
    from amends.serve.service import Service

B = TypeVar("B", bound=BaseModel)
FLASH: Final = "amends_flash"
"""The cookie with what the next page says about the act before it."""
FLASH_S: Final = 60.0
FLASH_CHARS_MAX: Final = 600
FORM: Final = "application/x-www-form-urlencoded"
FORM_WITH_FILE: Final = "multipart/form-data"
FILE: Final = "amends.file"
"""Where the scope of a request has the content of the file that was sent with a form."""
BOUNDARY_MAX: Final = 200
FORM_BYTES_MAX: Final = 1_000_000
FORM_FIELDS_MAX: Final = 2_000
"""A plan of a rollback has a field for each effect that stays."""
PARTS_MAX: Final = 100
"""Of a form with a file."""
CSRF: Final = b"x-csrf-token"


@dataclass(frozen=True, slots=True)
class Acted:
    """What an act has led to: the page to show (``path(...)``), and one sentence about it."""

    to: str
    said: str
    tone: Literal["ok", "wait", "fail"] = "ok"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked before an act that cannot be taken back: it says the act again, with its count."""

    title: str
    text: str
    label: str
    """Of the button that does it."""
    back: str = "/runs"
    """The page to return to instead."""
    kind: Literal["primary", "danger"] = "danger"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


Act: TypeAlias = Callable[[Exchange, Mapping[str, str]], Awaitable[Acted | Response]]
Asks: TypeAlias = Callable[[Exchange, Mapping[str, str]], Awaitable[Asked]]


def needed(form: Mapping[str, str], name: str, *, label: str = "") -> str:
    """Return a field that must be there; raise ``Invalid`` with the field's name if it is empty."""
    value = form.get(name, "").strip()
    if not value:
        raise Invalid(f"{label or name} is missing", problems=(f"form.{name}: is missing",))
    return value


def body(model: type[B], **given: Any) -> B:
    """Return what a route of the service reads from its body; raise ``Invalid`` for what it would refuse."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        wrong = tuple(f"form.{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10])
        raise Invalid("; ".join(wrong), problems=wrong) from None


# ---- Forms of what was shown


def seen_of(call: Call) -> str:
    """Return what a form carries of the call as its page showed it: its state, and how often it was tried and compensated."""
    undone = 0 if call.compensation is None else call.compensation.attempts
    return f"{call.state} {call.attempt} {undone}"


def check_seen(call: Call, form: Mapping[str, str]) -> None:
    """Refuse a form that was shown for another state: the same answer would mean something else now."""
    if form.get("seen", "") not in ("", seen_of(call)):
        now = call.state.replace("_", " ")
        raise AlreadyDecided(
            f"{visible(call.tool, prose=True)} has changed since you saw this form, and is {now}: nothing was done",
            run_id=call.run_id, hint="read the page again, and decide about what it says now",
        )  # fmt: skip


# ---- Reading a form


async def read_form(service: Service, request: Request, *, takes_file: bool = False) -> dict[str, str]:
    """Return the fields of a form; a field that is there twice is refused.

    ``takes_file``: it may have one file, whose content is then part of the request's scope (``FILE``).
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if takes_file and given == FORM_WITH_FILE:
        return await _with_file(service, request)
    bytes_max = min(FORM_BYTES_MAX, service.limits.body_bytes_max)
    data = await read_body(request, bytes_max=bytes_max, s_max=service.limits.body_s_max)
    if (data or given) and given != FORM:
        raise WrongType(f"the body is {given or 'of no type'}, and {FORM} is read here")
    try:
        pairs = parse_qsl(
            data.decode("utf-8"), keep_blank_values=True, encoding="utf-8", errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )  # fmt: skip
    except ValueError:
        raise BadRequest("the form cannot be read", hint="send it from a page of the console") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequest("a field of the form is there twice", hint="send it from a page of the console")
    return {name: value.replace("\r\n", "\n") for name, value in found.items()}


async def _with_file(service: Service, request: Request) -> dict[str, str]:
    """Read a form with a file, as browsers send it (RFC 7578): its parts are headers, an empty line and the content."""
    data = await read_body(request, bytes_max=service.limits.bundle_bytes_max, s_max=service.limits.body_s_max)
    said = Message()
    said["content-type"] = request.headers["content-type"]
    mark = said.get_param("boundary")
    if not isinstance(mark, str) or not mark or len(mark) > BOUNDARY_MAX:
        raise BadRequest("the form cannot be read", hint="send it from a page of the console")
    parts = (b"\r\n" + data).split(b"\r\n--" + mark.encode("utf-8", "replace"))
    if len(parts) < 2 or len(parts) > PARTS_MAX or not parts[-1].startswith(b"--"):
        raise BadRequest("the form cannot be read", hint="send it from a page of the console")
    fields: dict[str, str] = {}
    for part in parts[1:-1]:
        head, gap, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        about = Message()
        about["content-disposition"] = next(
            (line.partition(":")[2] for line in head.decode("utf-8", "replace").split("\r\n")
             if line.lower().startswith("content-disposition:")), "",
        ).strip()  # fmt: skip
        name = about.get_param("name", header="content-disposition")
        if not gap or not isinstance(name, str) or name in fields:
            raise BadRequest("a field of the form has no name, or is there twice")
        if about.get_param("filename", header="content-disposition") is None:
            fields[name] = content.decode("utf-8", "replace").replace("\r\n", "\n")
        elif FILE in request.scope:
            raise BadRequest("the form has more than one file")
        else:
            request.scope[FILE], fields[name] = content, ""
    return fields


# ---- Only forms of this console


def csrf_of(service: Service, who: Who) -> str:
    """Return the text that a form of this person carries."""
    return service.secrets.sign("csrf", {"id": _whose(who)})


def with_csrf(request: Request, form: Mapping[str, str]) -> Request:
    """Return the request with the form's field ``csrf`` as the header that logins are checked by."""
    if request.headers.get("x-csrf-token") or "csrf" not in form:
        return request
    said = form["csrf"].encode("ascii", "replace")
    return Request(dict(request.scope) | {"headers": [*request.scope["headers"], (CSRF, said)]}, request.receive)


def check_csrf(x: Exchange, form: Mapping[str, str]) -> None:
    """Raise ``Forbidden`` for a form that another site made the browser send.

    A bearer token needs no such text: no browser sends it by itself.
    """
    if x.request.headers.get("authorization", "").lower().startswith("bearer "):
        return
    if x.request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("another site sent this request", why="origin", hint="send it from a page of this console")
    try:
        said = x.service.secrets.read("csrf", x.request.headers.get("x-csrf-token", "") or form.get("csrf", ""))
    except BadSignature:
        said = {}
    if not hmac.compare_digest(str(said.get("id", "")).encode(), _whose(x.who).encode()):
        raise Forbidden("this form does not belong to your login", why="csrf", hint="load the page again")


def _whose(who: Who) -> str:
    return who.token or f"name {who.name}"


# ---- What the next page says


def set_flash(service: Service, request: Request, answer: Response, done: Acted) -> None:
    """Let the next page say what was done."""
    said = {"said": done.said[:FLASH_CHARS_MAX], "tone": done.tone}
    answer.set_cookie(
        FLASH, service.secrets.sign("flash", said, lives_s=FLASH_S), max_age=int(FLASH_S),
        path=service.base(request) or "/", httponly=True, samesite="lax", secure=request.url.scheme == "https",
    )  # fmt: skip


def flash_of(service: Service, request: Request) -> dict[str, Any] | None:
    """Return what the act before this page has to say; None: nothing."""
    cookie = request.cookies.get(FLASH)
    if not cookie:
        return None
    try:
        said = service.secrets.read("flash", cookie)
    except BadSignature:
        return None
    return {"said": str(said.get("said", "")), "tone": str(said.get("tone", "ok"))}


def forget_flash(service: Service, request: Request, answer: Response) -> None:
    """Say it once."""
    answer.delete_cookie(FLASH, path=service.base(request) or "/", httponly=True, samesite="lax")
