"""Render HTML: one Jinja environment with escaping always on, what templates may call, and the static files.

A template gets data and shows it; it decides nothing. Whatever it prints goes through ``printable``, so that no text of
the ledger can act on the page; names also go through the filter ``visible``, which shows look-alike letters. ``exact``
prints a text unchanged (and escaped): for the value of a field that is sent back.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import Response

from amends.visible import printable, quoted, shortened, visible

HERE: Final = Path(__file__).parent
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Vary": "Cookie, HX-Request",
    "X-Content-Type-Options": "nosniff",
}
"""The headers of every page."""
SUFFIX: Final = ".json"
"""What an address ends with that asks for a page's data."""
DEPTH_MAX: Final = 64
"""How deep a value is shown nested; what is deeper is shown as text."""
ID_CHARS_MAX: Final = 28
"""Longer ids are shortened in the middle; the copy button has all of it."""


# ---- Addresses


def segment(name: str) -> str:
    """Return a name as one part of an address. One that ends in .json is quoted so that it does not ask for data."""
    part = quote(name, safe="")
    return f"{part.removesuffix(SUFFIX)}%2Ejson" if part.endswith(SUFFIX) else part


def path(first: str, name: str = "", then: str = "", /, **query: Any) -> str:
    """Return an address of the console below where it is served: ``path("/runs", run_id, "/rollback", tab="x")``.

    ``name`` is quoted, whatever it begins with; ``first`` and ``then`` are parts of the table of pages.
    """
    said = {word: value for word, value in query.items() if value not in (None, "")}
    found = f"/{first.strip('/')}" + (f"/{segment(name)}" if name else "") + then
    return f"{found}?{urlencode(said)}" if said else found


# ---- States


@dataclass(frozen=True, slots=True)
class Look:
    """How a state is shown: a colour, a glyph and a word, so that none of them alone says it."""

    tone: str
    glyph: str
    word: str


LOOKS: Final[Mapping[str, Look]] = {
    # runs
    "open": Look("run", "dot", "open"),
    "pivoted": Look("run", "pivot", "past its pivot"),
    "committed": Look("ok", "check", "committed"),
    "rolling_back": Look("undo", "undo", "rolling back"),
    "rolled_back": Look("undo", "undone", "rolled back"),
    "blocked": Look("fail", "hand", "blocked"),
    "abandoned": Look("mute", "cross", "abandoned"),
    # calls
    "held": Look("wait", "pause", "held"),
    "ready": Look("wait", "play", "ready"),
    "started": Look("run", "dot", "started"),
    "succeeded": Look("ok", "check", "succeeded"),
    "failed": Look("fail", "cross", "failed"),
    "backing_off": Look("wait", "clock", "backing off"),
    "in_doubt": Look("doubt", "question", "in doubt"),
    "compensating": Look("undo", "undo", "compensating"),
    "compensated": Look("undo", "undone", "compensated"),
    "compensation_failed": Look("fail", "hand", "compensation failed"),
    "compensation_in_doubt": Look("doubt", "question", "compensation in doubt"),
    "refused": Look("mute", "ban", "refused"),
    "dropped": Look("mute", "ban", "dropped"),
    "residue": Look("fail", "anchor", "residue"),
    # requests for approval
    "pending": Look("wait", "clock", "waiting"),
    "approved": Look("ok", "check", "approved"),
    "rejected": Look("fail", "cross", "rejected"),
    "expired": Look("mute", "clock", "expired"),
    "used": Look("ok", "check", "used"),
    "cancelled": Look("mute", "ban", "cancelled"),
    # what happens now
    "running": Look("run", "dot", "running"),
    "waiting": Look("wait", "pause", "waiting"),
    "orphaned": Look("doubt", "question", "orphaned"),
}
"""Every state that a page shows."""


def look(state: str) -> Look:
    """Return how a state is shown; one that nobody knows is shown as its own name."""
    return LOOKS.get(state) or Look("mute", "ring", state.replace("_", " "))


# ---- Values


def moment(said: Any) -> datetime | None:
    """Return the moment that a record's field has: a text of ISO 8601, or seconds; None: there is none."""
    if said is None or said == "":
        return None
    if isinstance(said, datetime):
        return said if said.tzinfo else said.replace(tzinfo=UTC)
    if isinstance(said, int | float):
        return datetime.fromtimestamp(said, UTC)
    found = datetime.fromisoformat(str(said))
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def iso(said: Any) -> str:
    """Return a moment as ISO 8601 in UTC, to the millisecond."""
    found = moment(said)
    return "" if found is None else found.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ago(said: Any, *, now: float | None = None) -> str:
    """Return how far a moment is from now: "12 s ago", "in 5 min". ``console.js`` says the same while time goes on."""
    found = moment(said)
    if found is None:
        return "–"
    away = (time.time() if now is None else now) - found.timestamp()
    text = _spoken(abs(away))
    if not text:
        return "now"
    return f"{text} ago" if away > 0 else f"in {text}"


def _spoken(s: float) -> str:
    for unit, size, until in (("s", 1, 60), ("min", 60, 3_600), ("h", 3_600, 86_400), ("d", 86_400, 86_400 * 60)):
        if s < until:
            return f"{int(s // size)} {unit}" if s >= 1 else ""
    return f"{int(s // (86_400 * 30))} mo" if s < 86_400 * 365 * 2 else f"{int(s // (86_400 * 365))} y"


def duration(s: Any) -> str:
    """Return a time in seconds as people say it: "340 ms", "1.2 s", "3 min 20 s", "2 h 5 min"."""
    if s is None or s == "":
        return "–"
    s = float(s)
    if not math.isfinite(s):
        return "–"
    if s < 0.0005:
        return "0 ms"
    if s < 1:
        return f"{s * 1000:.0f} ms"
    if s < 60:
        return f"{s:.1f} s".replace(".0 s", " s")
    if s < 3_600:
        return f"{int(s // 60)} min {int(s % 60)} s".removesuffix(" 0 s")
    if s < 86_400:
        return f"{int(s // 3_600)} h {int(s % 3_600 // 60)} min".removesuffix(" 0 min")
    return f"{int(s // 86_400)} d {int(s % 86_400 // 3_600)} h".removesuffix(" 0 h")


def number(value: Any) -> str:
    """Return a number with separators, as many digits as it has."""
    try:
        exact = Decimal(str(value))
    except InvalidOperation:
        return str(value)
    return f"{exact.normalize():,f}" if exact.is_finite() else str(value)


def amount(unit: str, value: Any) -> str:
    """Return an amount of one unit: "$4.20", "1,234 tokens"."""
    if unit.casefold() != "usd":
        return f"{number(value)} {visible(unit)}"
    try:
        exact = Decimal(str(value))
    except InvalidOperation:
        return str(value)
    if not exact.is_finite():
        return str(value)
    cents = exact.quantize(Decimal("0.01"))
    small = exact and abs(exact) < Decimal("0.01")
    text = f"{exact.normalize():,f}" if small else f"{abs(cents):,.2f}"
    return f"{'-' if exact < 0 and not small else ''}${text}"


def pretty(value: Any) -> str:
    """Return a value as JSON over several lines, keys sorted, with whatever could deceive the eye escaped in its texts."""
    return "".join(_pretty(value, "", 0))


def _pretty(value: Any, margin: str, depth: int) -> list[str]:
    if isinstance(value, str):
        return [quoted(value)]
    if depth > DEPTH_MAX:
        return [quoted(shortened(str(value), 200))]
    deeper = f"{margin}  "
    if isinstance(value, Mapping) and value:
        parts: list[str] = ["{\n"]
        for place, key in enumerate(sorted(value, key=str)):
            parts += [",\n"] if place else []
            parts += [deeper, quoted(str(key)), ": ", *_pretty(value[key], deeper, depth + 1)]
        return [*parts, f"\n{margin}}}"]
    if isinstance(value, list | tuple) and value:
        parts = ["[\n"]
        for place, one in enumerate(value):
            parts += [",\n"] if place else []
            parts += [deeper, *_pretty(one, deeper, depth + 1)]
        return [*parts, f"\n{margin}]"]
    if isinstance(value, Mapping):
        return ["{}"]
    if isinstance(value, list | tuple):
        return ["[]"]
    return [json.dumps(value) if isinstance(value, bool | int | float) or value is None else quoted(str(value))]


def short(text: str, chars: int = ID_CHARS_MAX) -> str:
    """Return an id cut in the middle: both of its ends tell ids apart."""
    return text if len(text) <= chars else f"{text[: chars // 2]}…{text[-(chars - chars // 2 - 1) :]}"


def sentence(text: str) -> str:
    """Return the text of an error as a sentence: they begin in lower case, and have no full stop. A command stays as it is."""
    said = text.strip()
    first = said[:1] if said.startswith("amends ") else said[:1].upper()
    return said and first + said[1:] + ("" if said.endswith((".", "!", "?", "…")) else ".")


# ---- Static files


@dataclass(frozen=True, slots=True)
class File:
    """One static file."""

    data: bytes
    kind: str
    mark: str
    """The beginning of its digest: part of its address, so that a browser may keep it forever."""


KINDS: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
}
_USED: Final = re.compile(rb'url\("([\w.-]+)"\)')


@lru_cache(maxsize=1)
def files() -> Mapping[str, File]:
    """Return every static file by its name; a style sheet names others with their marks."""
    read = {one.name: one.read_bytes() for one in sorted((HERE / "static").iterdir()) if one.suffix in KINDS}

    def named(found: re.Match[bytes]) -> bytes:
        name = found[1].decode()
        return b'url("%b?v=%b")' % (found[1], _mark(read[name]).encode()) if name in read else found[0]

    for name in [name for name in read if name.endswith(".css")]:
        read[name] = _USED.sub(named, read[name])
    return {name: File(data, KINDS[Path(name).suffix], _mark(data)) for name, data in read.items()}


def _mark(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def static(name: str) -> str:
    """Return the address of a static file, without where the console is served."""
    return f"/static/{name}?v={files()[name].mark}"


# ---- Templates


def _finished(value: Any) -> Any:
    """Return what a template prints: text that cannot act on the display."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    return printable(value, lines=True) if isinstance(value, str) else value


def _exact(value: Any) -> Markup:
    return escape(value)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Return the environment of all templates."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates", encoding="utf-8"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, finalize=_finished, auto_reload=False, cache_size=200,
    )  # fmt: skip
    made.filters |= {
        "ago": ago, "iso": iso, "duration": duration, "number": number, "pretty": pretty, "short": short,
        "exact": _exact, "shown": _shown, "look": look, "sentence": sentence,
    }  # fmt: skip
    made.globals |= {"look": look, "amount": amount}
    return made


def _shown(text: Any) -> str:
    """Return a name or a reason of the ledger as people may safely read it; nothing stays nothing."""
    said = "" if text is None else str(text)
    return visible(said, prose=True) if said else ""


def rendered(template: str, data: Mapping[str, Any]) -> str:
    """Return a template with its data as text."""
    return environment().get_template(template).render(data)


def answer(template: str, data: Mapping[str, Any], *, status: int = 200) -> Response:
    """Return a template with its data as an answer, with the headers that every page has."""
    return Response(rendered(template, data), status, dict(HEADERS), "text/html; charset=utf-8")
