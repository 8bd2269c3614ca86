"""What is hidden: the places and spellings that nobody may read in the ledger, and what stands there instead."""

from __future__ import annotations

import re
from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from amends.encoding.dataclass import dataclass

MASK: Final = "•••"
"""What people and models see where a value is hidden."""
MARK: Final = '{"$secret":'
"""How a hidden value begins in a stored text."""
SEALED: Final = "sealed:"
"""How an encrypted text begins: no JSON begins so."""
VALUE: Final = "re:"
"""A pattern that begins so is searched in texts; any other is matched with names."""
SHOWN_CHARS: Final = 6
BOUNDED_CHARS_MAX: Final = 5
"""What is this short is masked only where it stands alone, and not inside a longer word or number."""


class Secret:
    """Stands where a value was hidden: equal where the values were, and silent about what they were."""

    __slots__ = ("commitment", "sealed")

    def __init__(self, commitment: str, sealed: str = "") -> None:
        self.commitment = commitment
        self.sealed = sealed
        """The value itself, encrypted, where the runtime has keys for that."""

    @classmethod
    def read(cls, packed: Any) -> Secret:
        """From a stored text."""
        return cls(packed) if isinstance(packed, str) else cls(*packed)

    @property
    def packed(self) -> str | list[str]:
        """For a stored text."""
        return [self.commitment, self.sealed] if self.sealed else self.commitment

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other.commitment == self.commitment

    def __hash__(self) -> int:
        return hash(self.commitment)

    def __str__(self) -> str:
        return f"{MASK}{self.commitment[:SHOWN_CHARS]}"

    def __repr__(self) -> str:
        return f"Secret({self})"


UNREADABLE: Final = Secret("")
"""Stands where a text is encrypted and this process has no key for it."""


def is_unreadable(args: Mapping[Any, Any]) -> bool:
    """Return whether these arguments are encrypted and this process has no key for them."""
    return args.get(MASK) is UNREADABLE


@dataclass(frozen=True, slots=True)
class Hidden:
    """Which places and texts are hidden.

    ``places``: of one tool, an argument or a path into one ("card", "customer.iban"). ``names``: patterns for a name
    at any depth. ``values``: searched in every text.
    """

    places: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    values: tuple[re.Pattern[str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.places or self.names or self.values)

    @property
    def is_wide(self) -> bool:
        """Whether it hides something whatever the tool says."""
        return bool(self.names or self.values)

    def at(self, places: Iterable[str]) -> Hidden:
        """The same, and these places of one tool."""
        return Hidden(tuple(places), self.names, self.values)

    def covers(self, path: Sequence[object]) -> bool:
        """Whether what is at this path is hidden: the place itself, or one that it is inside of."""
        names = [part for part in path if isinstance(part, str)]
        if self.names and any(self.covers_name(name) for name in names):
            return True
        if not self.places:
            return False
        dotted = ".".join(names)
        return any(dotted == place or dotted.startswith(f"{place}.") for place in self.places)

    def touches(self, path: Sequence[object], value: object) -> bool:
        """Whether this value at this path is hidden, or may have something hidden inside it."""
        dotted = ".".join(part for part in path if isinstance(part, str))
        inside = any(place.startswith(f"{dotted}.") for place in self.places)
        within = bool(self) and isinstance(value, Mapping | list | tuple | set | frozenset)
        return inside or within or self.covers(path) or (bool(self.values) and self.matches(str(value)))

    def covers_name(self, name: str) -> bool:
        """Whether a pattern for names matches; capitals make no difference."""
        return any(fnmatchcase(name.lower(), pattern) for pattern in self.names)

    def matches(self, text: str) -> bool:
        """Return whether a pattern for values is found in the text, or in what it encodes."""
        if not self.values:
            return False
        return any(value.search(text) for value in self.values) or bool(encoded_spans(text, (), self.values))

    def scrub(self, text: str) -> str:
        """Return the text without what the patterns for values find in it, or in what it encodes."""
        for value in self.values:
            text = value.sub(MASK, text)
        if self.values:
            for start, end, _ in reversed(encoded_spans(text, (), self.values)):
                text = f"{text[:start]}{MASK}{text[end:]}"
        return text


NOTHING: Final = Hidden()


def hidden_by(patterns: Iterable[object]) -> Hidden:
    """What a runtime's ``redact=`` means; raises ``ValueError`` that says what is wrong with a pattern."""
    names: list[str] = []
    values: list[re.Pattern[str]] = []
    for pattern in patterns:
        if not isinstance(pattern, str) or not pattern or pattern == VALUE:
            raise ValueError(f"{pattern!r} is no pattern; it is a name, a name with *, or re: and an expression")
        if not pattern.startswith(VALUE):
            names.append(pattern.lower())
            continue
        try:
            value = re.compile(pattern.removeprefix(VALUE))
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        if value.search(""):
            raise ValueError(f"{pattern!r} matches an empty text, and so everything")
        values.append(value)
    return Hidden((), tuple(names), tuple(values))


# ---- encodings ----------------------------------------------------------------------------

ENCODED_BYTES_MIN: Final = 4
"""A hidden value of fewer bytes is not searched for in base64 and hex: chance would find it everywhere."""
NESTED_MAX: Final = 3
"""How many encodings around each other are looked into: base64 of a percent-encoded text, for one."""
PRINTABLE_MIN: Final = 0.8
"""From this part of printable characters on, decoded bytes are taken for a text that patterns are searched in."""

Span: TypeAlias = tuple[int, int, str]
"""From, to, and the spelling that was found there; empty: a pattern found something."""
_Part: TypeAlias = tuple[int, int, int, int]
"""Where an escape stands when it is read, from and to, and where it stood before."""

_RUN: Final = re.compile(r"[A-Za-z0-9+/_-]{6,}(?:\r?\n[A-Za-z0-9+/_-]{4,})*={0,2}")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{2}(?:[ :-]?[0-9A-Fa-f]{2}){3,}")
_ESCAPE: Final = re.compile(
    r"(?:%[0-9A-Fa-f]{2})+|(?:\\x[0-9A-Fa-f]{2})+|(?:\\u[0-9A-Fa-f]{4})+|\\[nrtbf\"'\\/]"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"
)
_PLUS: Final = re.compile(rf"{_ESCAPE.pattern}|\+")
_ASCII: Final = bytes(range(32, 127))
_URLSAFE: Final = str.maketrans("-_", "+/")
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def encoded_spans(
    text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], *, depth: int = 0
) -> list[Span]:
    """Return where the text encodes one of these spellings, or something that a pattern finds; in order, apart.

    Looks into base64 (both alphabets, at any alignment, wrapped lines), hex (both cases, with separators), percent
    encoding, the escapes of JSON, Python and HTML, and these around each other. Not into what is compressed,
    encrypted, reversed or spelled in other letters.
    """
    if depth >= NESTED_MAX or len(text) < ENCODED_BYTES_MIN or not (spelled or values):
        return []
    found = _escaped_spans(text, spelled, values, depth)
    found += _run_spans(text, spelled, values, depth)
    return _apart(found)


def _apart(found: list[Span]) -> list[Span]:
    """Return the spans in order; those that overlap as one."""
    kept: list[Span] = []
    for start, end, what in sorted(found):
        if kept and start < kept[-1][1]:
            first, last, known = kept[-1]
            kept[-1] = first, max(last, end), known or what
        else:
            kept.append((start, end, what))
    return kept


def _spans_in(text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], depth: int) -> list[Span]:
    """Return where a decoded text has one of these, or encodes it once more."""
    found = [(at, at + len(one), one) for one in spelled for at in _places(text, one)]
    found += [(match.start(), match.end(), "") for value in values for match in value.finditer(text)]
    return found + encoded_spans(text, spelled, values, depth=depth)


def _places(text: str, one: str) -> Iterator[int]:
    at = text.find(one)
    while at >= 0:
        end = at + len(one)
        around = f"{text[at - 1 : at]}{text[end : end + 1]}"
        if len(one) > BOUNDED_CHARS_MAX or not any(letter.isalnum() or letter == "_" for letter in around):
            yield at
        at = text.find(one, end)


# ---- escapes: characters written as others, between those that stand for themselves


def _escaped_spans(text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], depth: int) -> list[Span]:
    found: list[Span] = []
    for escape in (_ESCAPE, _PLUS) if "+" in text else (_ESCAPE,):
        plain, parts = _unescaped(text, escape)
        if plain != text:
            found += [_mapped(span, parts) for span in _spans_in(plain, spelled, values, depth + 1)]
    return found


def _unescaped(text: str, escape: re.Pattern[str]) -> tuple[str, list[_Part]]:
    """Return the text with its escapes read, and where each of them stood."""
    made: list[str] = []
    parts: list[_Part] = []
    here = length = 0
    for match in escape.finditer(text):
        read = _read_escape(match[0])
        made += (text[here : match.start()], read)
        length += match.start() - here
        parts.append((length, length + len(read), match.start(), match.end()))
        length += len(read)
        here = match.end()
    made.append(text[here:])
    return "".join(made), parts


def _read_escape(escape: str) -> str:
    try:
        match escape[:2]:
            case "\\x":
                return bytes.fromhex(escape.replace("\\x", "")).decode("utf-8", "replace")
            case "\\u":
                units = bytes.fromhex(escape.replace("\\u", ""))
                return units.decode("utf-16-be", "replace")
    except ValueError:
        return escape
    match escape[0]:
        case "%":
            return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "replace")
        case "\\":
            return _LETTERS.get(escape[1], escape[1])
        case "+":
            return " "
        case _:
            from html import unescape  # only where something is hidden, and the text has such an escape

            return unescape(escape)


def _mapped(span: Span, parts: list[_Part]) -> Span:
    """Return where a span of the unescaped text stands in the text itself; an escape is covered whole."""
    starts = [part[0] for part in parts]

    def source(at: int, *, after: int) -> int:
        index = bisect_right(starts, at) - 1
        if index < 0:
            return at + after
        _, end, first, last = parts[index]
        if at < end:
            return last if after else first
        return last + at - end + after

    start, end, what = span
    return source(start, after=0), source(end - 1, after=1), what


# ---- runs: base64 and hex


def _run_spans(text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], depth: int) -> list[Span]:
    runs = [(match.start(), match.end(), raw) for match in _RUN.finditer(text) for raw in _from_base64(match[0])]
    runs += [(match.start(), match.end(), raw) for match in _HEX.finditer(text) for raw in _from_hex(match[0])]
    if not runs:
        return []
    wanted = _wanted(spelled, b"\0".join(raw for _, _, raw in runs))
    found: list[Span] = []
    for start, end, raw in runs:
        known = next((one for one, forms in wanted if any(form in raw for form in forms)), None)
        if known is not None:
            found.append((start, end, known))
        elif inner := _text_in(raw, spelled, values, depth):
            found.append((start, end, inner[0][2]))
    return found


def _wanted(spelled: Collection[str], everything: bytes) -> list[tuple[str, list[bytes]]]:
    """Return those spellings, as bytes, that are anywhere in what was decoded."""
    wanted = []
    for one in spelled:
        forms = [one.encode("utf-8", "replace"), one.encode("utf-16-le", "replace")]
        if len(forms[0]) >= ENCODED_BYTES_MIN and any(form in everything for form in forms):
            wanted.append((one, forms))
    return wanted


def _text_in(raw: bytes, spelled: Collection[str], values: Sequence[re.Pattern[str]], depth: int) -> list[Span]:
    if raw.count(0) * 3 >= len(raw):
        raw = raw.replace(b"\0", b"")  # UTF-16, as some shells write it
    if len(raw.translate(None, _ASCII)) > len(raw) // 2:
        return []  # said again below, more exactly: this is quick, and true of nearly every word
    text = raw.decode("utf-8", "replace")
    printable = sum(letter.isprintable() and letter != "\N{REPLACEMENT CHARACTER}" for letter in text)
    if printable < len(text) * PRINTABLE_MIN:
        return []
    found = [(match.start(), match.end(), "") for value in values for match in value.finditer(text)]
    return found + encoded_spans(text, spelled, values, depth=depth + 1)


def _from_base64(run: str) -> Iterator[bytes]:
    """Return what a run of its letters may stand for: it may have begun at any of four letters."""
    plain = "".join(run.split()).rstrip("=").translate(_URLSAFE)
    for offset in range(4):
        part = plain[offset:]
        part = part[: len(part) - (len(part) % 4 == 1)]
        if len(part) >= 6:
            yield a2b_base64(part + "=" * (-len(part) % 4))


def _from_hex(run: str) -> Iterator[bytes]:
    digits = re.sub(r"[ :-]", "", run)
    yield bytes.fromhex(digits[: len(digits) // 2 * 2])
    if len(digits) > 2 * ENCODED_BYTES_MIN:
        yield bytes.fromhex(digits[1 : 1 + (len(digits) - 1) // 2 * 2])
