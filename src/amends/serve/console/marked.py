"""Show text of the ledger in a page: as ``amends.visible`` writes it, in segments, so that what could deceive stands out.

A segment is a piece of text and its kind. Put together, the texts are exactly what ``visible`` or ``visible_value`` return,
so two different texts never look the same, and a page escapes them like any other text. A value of several lines is a
list of lines, each a list of segments. A long text is shown by its beginning and its end; what stands in between is
counted and hashed, so that even shortened texts that differ do not look the same.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from hashlib import sha256
from typing import Any, Final, TypeAlias

from amends import Secret
from amends.visible import is_unreadable, quoted, visible, visible_value

Segment: TypeAlias = dict[str, str]
"""``text``, ``kind`` and, of a kind other than plain, ``name``: what it is, in words."""
Line: TypeAlias = list[Segment]
KINDS: Final = {
    "bidi": "changes the direction of the text",
    "zero_width": "cannot be seen",
    "lookalike": "looks like other letters",
    "control": "is a control character",
    "space": "is space that would not be seen",
    "newline": "ends a line",
    "truncated": "is not shown",
    "secret": "is hidden from everybody",
}
"""Every kind of segment but plain, and what it means."""
WARNED: Final = ("bidi", "zero_width", "lookalike", "control")
"""The kinds that an honest text rarely has."""
TEXT_CHARS_MAX: Final = 2_000
"""A longer text is shortened, unless the whole of it is asked for."""
HEAD_CHARS: Final = 1_200
TAIL_CHARS: Final = 400
LINES_MAX: Final = 300
"""More lines of one value are shortened."""
WHOLE_LINES_MAX: Final = 5_000
"""A value that would be longer than this is written without line breaks."""
LINE_CHARS: Final = 64
"""A list or an object that fits into this stays on one line."""
INDENTS_MAX: Final = 10
"""What is nested deeper stays on one line."""
NEAR_CHARS: Final = 24
"""How much of a long text is shown on both sides of what differs."""
_ESCAPE: Final = re.compile(r'\\(?:[nrt\\"]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})')
_SHORT: Final = {"n": "\n", "r": "\r", "t": "\t"}
_DIRECTIONS: Final = frozenset({"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "R", "AL", "AN"})
_MARKS: Final = frozenset("\u200e\u200f\u061c")


# ---- Text


def marked(text: str, *, prose: bool = False) -> Line:
    """Return a name or a sentence as segments; ``prose``: plain words need no quotes."""
    return segments(visible(text, prose=prose))


def plain(text: str) -> Line:
    """Return words of the console itself, or text that is visible already, as one segment."""
    return [{"text": text, "kind": "plain"}]


def segments(shown: str) -> Line:
    """Return visible text with a segment of its own for each escaped character."""
    if "\\" not in shown:
        return plain(shown) if shown else []
    found: Line = []
    place = 0
    for match in _ESCAPE.finditer(shown):
        character = _character(match[0])
        kind = "plain" if character in '\\"' else kind_of(character)
        if kind == "plain":
            continue
        if match.start() > place:
            found += plain(shown[place : match.start()])
        found.append({"text": match[0], "kind": kind, "name": name_of(character)})
        place = match.end()
    return [*found, *plain(shown[place:])] if place < len(shown) else found


def _character(escape: str) -> str:
    sign = escape[1]
    return _SHORT.get(sign, sign) if len(escape) == len("\\n") else chr(int(f"0x{escape[2:]}", 16))


def kind_of(character: str) -> str:
    """Return what is wrong with a character that is escaped."""
    category = unicodedata.category(character)
    if character == "\n":
        return "newline"
    if character in "\t " or category == "Zs":
        return "space"
    if character in _MARKS or unicodedata.bidirectional(character) in _DIRECTIONS:
        return "bidi"
    if category in ("Cc", "Cs", "Co", "Cn", "Zl", "Zp"):
        return "control"
    return "zero_width" if category in ("Cf", "Mn", "Me") else "lookalike"


def name_of(character: str) -> str:
    """Return the name of a character, for the person who wonders what it is."""
    known = {"\n": "NEW LINE", "\r": "CARRIAGE RETURN", "\t": "TAB", "\0": "NULL", "\x1b": "ESCAPE", "\x7f": "DELETE"}
    name = known.get(character) or unicodedata.name(character, "")
    number = f"U+{ord(character):04X}"
    return f"{name} ({number})" if name else number


# ---- Values


def marked_value(value: Any, *, whole: bool = False) -> dict[str, Any]:
    """Return a value as lines of segments, with how much of it is not shown, and notes about what is marked."""
    lines: list[Line] = []
    most = WHOLE_LINES_MAX if whole else LINES_MAX
    beyond = 0
    for line in _broken(_lines(value, 0, whole=whole)):
        if len(lines) < most:
            lines.append(line)
        else:
            beyond += 1
    if beyond and whole:
        lines, beyond = [segments(visible_value(value))], 0
    if beyond:
        unit = "line" if beyond == 1 else "lines"
        name = f"{beyond:,} more {unit}"
        lines.append([{"text": f"… {name}, sha256 {_hash(visible_value(value))} …", "kind": "truncated", "name": name}])
    hidden = any(one["kind"] == "truncated" for line in lines for one in line)
    return {"lines": lines, "is_cut": hidden, "notes": notes(lines)}


def marked_args(
    args: Mapping[Any, Any], classes: Mapping[str, str] | None = None, *, whole: bool = False
) -> dict[str, Any]:
    """Return the arguments of a call, one after the other; ``classes``: as ``Call.classes`` has them."""
    if is_unreadable(args):
        return {"items": [], "is_cut": False, "is_unreadable": True, "notes": []}
    items = [{"name": _name(name), "type": type_of(one)} | marked_value(one, whole=whole) for name, one in args.items()]
    of_class = [{"place": marked(place), "name": marked(name)} for place, name in (classes or {}).items()]
    every = [item["name"] for item in items] + [line for item in items for line in item["lines"]]
    is_cut = any(item["is_cut"] for item in items)
    return {"items": items, "classes": of_class, "is_cut": is_cut, "is_unreadable": False, "notes": notes(every)}


def short_args(args: Mapping[Any, Any], *, chars: int = 160) -> Line:
    """Return the arguments on one line, for a list; shortened after so many characters."""
    if is_unreadable(args):
        return [{"text": "encrypted", "kind": "secret", "name": KINDS["secret"]}]
    found: Line = []
    used = 0
    for number, (name, value) in enumerate(args.items()):
        text = "".join(one["text"] for one in _name(name))
        said = visible_value(_sampled(value, chars))
        if used + len(text) + len(said) > chars and number:
            left = len(args) - number
            return [*found, {"text": f"  … {left} more", "kind": "truncated", "name": f"{left} more arguments"}]
        found += [*plain("  " if number else ""), *segments(text), *plain("="), *_cut(said, chars, counted=False)]
        used += len(text) + len(said) + 3
    return [one for one in found if one["text"]]


def type_of(value: Any) -> str:
    """Return the type of a value, as JSON calls it."""
    if isinstance(value, Secret):
        return "hidden"
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds = ((str, "text"), (int | float, "number"), (Mapping, "object"), (list | tuple | set | frozenset, "list"))
    return next((name for kind, name in kinds if isinstance(value, kind)), visible(type(value).__name__))


def notes(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return what is marked in these lines, each character once with how often it is there; warnings first."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        for one in line:
            if one["kind"] in ("plain", "newline", "truncated"):
                continue
            known = found.setdefault(
                (one["kind"], one["name"]),
                {**one, "times": 0, "meaning": KINDS[one["kind"]], "is_warning": one["kind"] in WARNED},
            )
            known["times"] += 1
    return sorted(found.values(), key=lambda one: not one["is_warning"])


def text_of(lines: Iterable[Line]) -> str:
    """Return what a page shows, as plain text."""
    return "\n".join("".join(one["text"] for one in line) for line in lines)


def _name(name: Any) -> Line:
    return marked(name) if isinstance(name, str) else segments(visible_value(name))


def _lines(value: Any, depth: int, *, whole: bool, before: Line | None = None, after: str = "") -> Iterator[Line]:
    """Yield a value line by line; ``before`` and ``after`` share its first and its last line."""
    lead = [*plain("  " * depth), *(before or [])]
    if isinstance(value, str) and type(value) is str:
        yield [*lead, *_text(value, whole=whole), *plain(after)]
        return
    if isinstance(value, Secret):
        yield [*lead, _secret(value), *plain(after)]
        return
    if type(value) not in (dict, list) or depth >= INDENTS_MAX or _fits(value):
        shown = visible_value(value)
        yield [*lead, *(segments(shown) if whole else _cut(shown, TEXT_CHARS_MAX)), *plain(after)]
        return
    first, last = "{}" if type(value) is dict else "[]"
    yield [*lead, *plain(first)]
    count = len(value)
    for number, item in enumerate(value.items() if type(value) is dict else value, 1):
        comma = "," if number < count else ""
        if type(value) is dict:
            name, item = item
            key = [*segments(visible_value(name)), *plain(": ")]
            yield from _lines(item, depth + 1, whole=whole, before=key, after=comma)
        else:
            yield from _lines(item, depth + 1, whole=whole, after=comma)
    yield plain("  " * depth + last + after)


def _broken(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines, broken after each visible end of a line within a text."""
    for line in lines:
        part: Line = []
        for one in line:
            if not one["text"]:
                continue
            part.append(one)
            if one["kind"] == "newline":
                yield part
                part = []
        if part:
            yield part


def _fits(value: Any) -> bool:
    """Return whether a list or an object fits on one line; a long one is not written for that."""
    if _size(value, LINE_CHARS) > LINE_CHARS:
        return False
    shown = visible_value(value)
    return len(shown) <= LINE_CHARS and "\\n" not in shown


def _size(value: Any, most: int) -> int:
    """Return about how many characters a value has, not more than needed to see that it has more than ``most``."""
    if isinstance(value, str):
        return len(value) + 2
    if not isinstance(value, dict | list | tuple):
        return 1
    size = 2
    for item in value.items() if isinstance(value, dict) else value:
        size += 1 + _size(item, most - size)
        if size > most:
            break
    return size


def _text(text: str, *, whole: bool) -> Line:
    if whole or len(text) <= TEXT_CHARS_MAX:
        return segments(quoted(text))
    head, tail = text[:HEAD_CHARS], text[-TAIL_CHARS:]
    return [*_inner(head, end=False), _gap(text[HEAD_CHARS:-TAIL_CHARS]), *_inner(tail, begin=False)]


def _inner(part: str, *, begin: bool = True, end: bool = True) -> Line:
    """Return a part of a text, with a quote only where the text itself begins or ends."""
    shown = quoted(part)
    turned = shown.endswith('"(rtl)')
    body = shown.removesuffix("(rtl)")[1:-1]
    first, last = '"' if begin else "", '"' if end else ""
    return segments(first + body + last + ("(rtl)" if turned else ""))


def _gap(hidden: str) -> Segment:
    name = f"{len(hidden):,} more characters"
    return {"text": f" … {name}, sha256 {_hash(hidden)} … ", "kind": "truncated", "name": name}


def _cut(shown: str, chars: int, *, counted: bool = True) -> Line:
    """Return visible text of at most so many characters, without cutting an escape in two.

    ``counted``: say how much is missing, and its hash.
    """
    if len(shown) <= chars:
        return segments(shown)
    head = shown[: chars * 3 // 4]
    if (at := head.rfind("\\", -10)) >= 0:
        head = head[:at]
    more: Segment = {"text": " …", "kind": "truncated", "name": "there is more of it"}
    return [*segments(head), _gap(shown[len(head) :]) if counted else more]


def _sampled(value: Any, chars: int) -> Any:
    """Return a long text or list cut short, so that a list of requests does not write megabytes only to drop them."""
    if type(value) is str:
        return value[: chars * 2]
    if type(value) in (list, tuple):
        return type(value)(_sampled(one, chars) for one in value[:chars])
    if type(value) is dict:
        return {name: _sampled(one, chars) for name, one in list(value.items())[:chars]}
    return value


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _secret(value: Any) -> Segment:
    name = "nobody can see it; an approval is bound to it all the same"
    return {"text": visible_value(value), "kind": "secret", "name": name}


# ---- What differs between two values


def marked_pair(was: Any, now: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two values that differ, each as ``marked_value``; of long texts only what is around the difference."""
    if type(was) is str and type(now) is str and max(len(was), len(now)) > 4 * NEAR_CHARS:
        first = _shared(was, now)
        last = min(_shared(was[::-1], now[::-1]), min(len(was), len(now)) - first)
        return _around(was, first, last), _around(now, first, last)
    return marked_value(was), marked_value(now)


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _around(text: str, first: int, last: int) -> dict[str, Any]:
    begin, end = max(0, first - NEAR_CHARS), len(text) - max(0, last - NEAR_CHARS)
    part = text[begin:end]
    line: Line = [_same(begin)] if begin else []
    if len(part) > TEXT_CHARS_MAX:
        head, tail = part[:HEAD_CHARS], part[-TAIL_CHARS:]
        line += [
            *_inner(head, begin=not begin, end=False),
            _gap(part[HEAD_CHARS:-TAIL_CHARS]),
            *_inner(tail, begin=False, end=end == len(text)),
        ]
    else:
        line += _inner(part, begin=not begin, end=end == len(text))
    line += [_same(len(text) - end)] if end < len(text) else []
    lines = list(_broken([line]))
    return {"lines": lines, "is_cut": any(one["kind"] == "truncated" for one in line), "notes": notes(lines)}


def _same(chars: int) -> Segment:
    name = f"{chars:,} characters that are the same"
    return {"text": f"… {name} …", "kind": "truncated", "name": name}


# ---- Values in a form, and back


def field_of(name: str, value: Any) -> dict[str, Any]:
    """Return how a value is edited in a form: as plain text if it is plain, otherwise as JSON, which keeps its type.

    ``as`` is ``hidden`` for a redacted value, which must be typed anew, and ``fixed`` for one that no form can hold.
    """
    shown = {"name": name, "shown": marked(name), "type": type_of(value)}
    if isinstance(value, Secret):
        return shown | {"as": "hidden", "text": ""}
    if isinstance(value, Decimal | datetime):
        return shown | {"as": "text", "text": str(value) if isinstance(value, Decimal) else value.isoformat()}
    if type(value) is str and not any(one["kind"] not in ("plain", "newline") for one in segments(quoted(value))):
        return shown | {"as": "text", "text": value}
    try:
        text = json.dumps(value, ensure_ascii=True, indent=2 if type(value) in (list, dict) else None)
    except (TypeError, ValueError, RecursionError):
        return shown | {"as": "fixed", "text": ""}
    return shown | {"as": "json", "text": text}


def value_of(field: Mapping[str, Any], text: str, old: Any) -> Any:
    """Return what a person typed into a field; ``old``, if they changed nothing. Raise ``ValueError`` if it does not fit."""
    # A browser sends every end of a line in a text area as two characters.
    typed = text.replace("\r\n", "\n")
    if field["as"] == "fixed" or (typed == field["text"] and field["as"] != "hidden"):
        return old
    if isinstance(old, Decimal):
        try:
            return Decimal(typed.strip())
        except InvalidOperation:
            raise ValueError(f"{visible(typed)} is no number") from None
    if isinstance(old, datetime):
        return datetime.fromisoformat(typed.strip())
    return typed if field["as"] in ("text", "hidden") else json.loads(typed, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
