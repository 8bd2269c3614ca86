"""Find values inside encoded text: base64, hex, percent encoding and escapes, also nested.

Redaction uses it to mask values that a tool or a model has encoded.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from typing import Final, TypeAlias

from amends.encoding.patterns import pattern

BOUNDED_CHARS_MAX: Final = 5
"""Values this short are masked only where they stand alone, not inside a longer word or number."""
ENCODED_BYTES_MIN: Final = 4
"""Shorter values are not searched for in base64 and hex: chance would find them everywhere."""
NESTED_MAX: Final = 3
"""How many nested encodings are decoded, for example base64 of a percent-encoded text."""
PRINTABLE_MIN: Final = 0.8
"""Decoded bytes with at least this share of printable characters are searched as text."""

Span: TypeAlias = tuple[int, int, str]
"""Start, end, and the spelling that was found there; an empty spelling means that a pattern matched."""
_Part: TypeAlias = tuple[int, int, int, int]
"""Start and end of a decoded escape, and the start and end of the escape itself."""

_RUN: Final = pattern(r"[A-Za-z0-9+/_-]{6,}(?:\r?\n[A-Za-z0-9+/_-]{4,})*={0,2}")
_HEX: Final = pattern(r"[0-9A-Fa-f]{2}(?:[ :-]?[0-9A-Fa-f]{2}){3,}")
_ESCAPE: Final = pattern(
    r"(?:%[0-9A-Fa-f]{2})+|(?:\\x[0-9A-Fa-f]{2})+|(?:\\u[0-9A-Fa-f]{4})+|\\[nrtbf\"'\\/]"
    r"|&(?:#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]{2,8});"
)
_PLUS: Final = pattern(rf"{_ESCAPE.pattern}|\+")
_ASCII: Final = bytes(range(32, 127))
_URLSAFE: Final = str.maketrans("-_", "+/")
_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}


def encoded_spans(
    text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], *, depth: int = 0
) -> list[Span]:
    """Return the spans that encode one of these spellings or a match of a pattern, sorted and without overlap.

    Decode base64 (both alphabets, at any alignment, wrapped lines), hex (both cases, with separators), percent
    encoding, the escapes of JSON, Python and HTML, and any of these inside another. Text that is compressed,
    encrypted, reversed or written in other letters is not decoded.
    """
    if depth >= NESTED_MAX or len(text) < ENCODED_BYTES_MIN or not (spelled or values):
        return []
    found = _escaped_spans(text, spelled, values, depth)
    found += _run_spans(text, spelled, values, depth)
    return _apart(found)


def _apart(found: list[Span]) -> list[Span]:
    """Return the spans sorted, with overlapping ones merged."""
    kept: list[Span] = []
    for start, end, what in sorted(found):
        if kept and start < kept[-1][1]:
            first, last, known = kept[-1]
            kept[-1] = first, max(last, end), known or what
        else:
            kept.append((start, end, what))
    return kept


def _spans_in(text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], depth: int) -> list[Span]:
    """Return the spans of a decoded text that hold one of these, or encode it once more."""
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


# ---- Escapes


def _escaped_spans(text: str, spelled: Collection[str], values: Sequence[re.Pattern[str]], depth: int) -> list[Span]:
    found: list[Span] = []
    for escape in (_ESCAPE, _PLUS) if "+" in text else (_ESCAPE,):
        plain, parts = _unescaped(text, escape)
        if plain != text:
            found += [_mapped(span, parts) for span in _spans_in(plain, spelled, values, depth + 1)]
    return found


def _unescaped(text: str, escape: re.Pattern[str]) -> tuple[str, list[_Part]]:
    """Return the text with its escapes decoded, and the position of each."""
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
            from html import unescape  # imported here: few texts need it

            return unescape(escape)


def _mapped(span: Span, parts: list[_Part]) -> Span:
    """Return the position of a span of the unescaped text in the original; an escape is covered whole."""
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


# ---- Runs of base64 and hex


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
    """Return the spellings, as bytes, that occur anywhere in the decoded bytes."""
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
        return []  # a quick form of the exact check below; it rejects nearly every word
    text = raw.decode("utf-8", "replace")
    printable = sum(letter.isprintable() and letter != "\N{REPLACEMENT CHARACTER}" for letter in text)
    if printable < len(text) * PRINTABLE_MIN:
        return []
    found = [(match.start(), match.end(), "") for value in values for match in value.finditer(text)]
    return found + encoded_spans(text, spelled, values, depth=depth + 1)


def _from_base64(run: str) -> Iterator[bytes]:
    """Yield what a run of base64 letters may decode to: it may have begun at any of four letters."""
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
