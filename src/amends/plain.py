"""Plain data written down in one pass: what nearly every argument and result is, at a fraction of the price.

``canonical`` has the rules and writes everything; here are the same texts for what JSON has words for. Whatever
is not that (a tuple, a number that JSON readers would round, what is nested deeply or long) is None here, and so is
left to the rules: there is one place that says no.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from json.encoder import encode_basestring
from typing import Any, Final
from unicodedata import normalize

CHARS_MAX: Final = 1 << 16
"""Longer values are left to the rules, which count their parts."""
LEVELS_MAX: Final = 8
HEADS_MAX: Final = 1024
quoted: Final = encode_basestring
SAFE_INT: Final = (1 << 53) - 1
"""JSON readers other than Python round beyond it."""
PLAIN_INT: Final = 10**32
"""From here on a whole number is written as digits and a power, never with all its zeros."""
_WORDS: Final = {None: "null", True: "true", False: "false"}


def digest(*parts: str | bytes | int | None) -> str:
    """SHA-256 over the parts, each with its type and length: no two different inputs collide."""
    return sha256(b"".join([_part(part) for part in parts])).hexdigest()


def _part(part: str | bytes | int | None) -> bytes:
    if type(part) is str and part.isascii():  # nearly all are
        return f"str{len(part)}:{part}".encode("ascii")
    data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
    kind = next(kind for kind in (str, bytes, bool, int, type(None)) if isinstance(part, kind))
    return f"{kind.__name__}{len(data)}:".encode() + data


@lru_cache(maxsize=HEADS_MAX)
def head(*parts: str) -> bytes:
    """The first parts of many digests, written once."""
    return b"".join([_part(part) for part in parts])


def digest_of(first: bytes, *rest: str) -> str:
    """``digest`` over the parts of ``head`` and these."""
    data = first
    for part in rest:
        data += f"str{len(part)}:{part}".encode("ascii") if part.isascii() else _part(part)
    return sha256(data).hexdigest()


def plain_texts(value: Any, levels: int = LEVELS_MAX) -> tuple[str, str] | None:
    """What ``encode`` and ``canonical`` write for it; None: ask them."""
    kind = type(value)
    if kind is str:
        if value.isascii() and len(value) <= CHARS_MAX:
            text = quoted(value)
            return text, text
        return (quoted(value), quoted(normalize("NFC", value))) if _is_text(value) else None
    if kind is float:
        return _float_texts(value)
    if kind is int:
        text = str(value) if -SAFE_INT <= value <= SAFE_INT else ""
        return (text, text) if text else None
    if kind is bool or value is None:
        text = _WORDS[value]
        return text, text
    if not levels:
        return None
    return _dict_texts(value, levels) if kind is dict else _list_texts(value, levels) if kind is list else None


def _dict_texts(value: dict[Any, Any], levels: int) -> tuple[str, str] | None:
    stored: list[str] = []
    meant: list[str] = []
    length = 0
    for name, item in value.items():
        if type(name) is not str or not name.isascii():
            return None
        if type(item) is str and item.isascii():  # most are: a third of the price of asking
            text = f"{quoted(name)}:{quoted(item)}"
            stored.append(text)
            meant.append(text)
        else:
            texts = plain_texts(item, levels - 1)
            if texts is None:
                return None
            name = quoted(name)
            text = f"{name}:{texts[0]}"
            stored.append(text)
            meant.append(text if texts[0] is texts[1] else f"{name}:{texts[1]}")
        length += len(text)
        if length > CHARS_MAX:
            return None
    if _is_tag(value):
        return None
    meant.sort()  # by the names as they are written: each ends with a quote, and none begins like another
    return f"{{{','.join(stored)}}}", f"{{{','.join(meant)}}}"


def _list_texts(value: list[Any], levels: int) -> tuple[str, str] | None:
    stored: list[str] = []
    meant: list[str] = []
    length = 0
    for item in value:
        texts = plain_texts(item, levels - 1)
        length += 1 if texts is None else len(texts[0])
        if texts is None or length > CHARS_MAX:
            return None
        stored.append(texts[0])
        meant.append(texts[1])
    return f"[{','.join(stored)}]", f"[{','.join(meant)}]"


def _float_texts(value: float) -> tuple[str, str] | None:
    text = repr(value)
    if value.is_integer():
        whole = int(value)
        return (text, str(whole)) if -PLAIN_INT < whole < PLAIN_INT else None
    whole_digits, dot, decimals = text.partition(".")
    if not dot or "e" in decimals:  # 1e-07, nan, inf
        return None
    digits = (whole_digits + decimals).lstrip("-0")
    sign = "-" if value < 0 else ""
    return text, f'{{"$number":"{sign}{digits}e-{len(decimals)}"}}'


def plain_copy(value: Any, levels: int = LEVELS_MAX) -> tuple[str, Any] | None:
    """What ``encode`` writes for it, and what ``decode`` would read from that; None: ask them."""
    kind = type(value)
    if kind is str:
        return (quoted(value), value) if _is_text(value) else None
    if kind is bool or value is None:
        return _WORDS[value], value
    if kind is int:
        return (str(value), value) if -SAFE_INT <= value <= SAFE_INT else None
    if kind is float:
        return (repr(value), value) if value - value == 0.0 else None
    if not levels:
        return None
    return _dict_copy(value, levels) if kind is dict else _list_copy(value, levels) if kind is list else None


def _dict_copy(value: dict[Any, Any], levels: int) -> tuple[str, Any] | None:
    stored: list[str] = []
    copied: dict[str, Any] = {}
    length = 0
    for name, item in value.items():
        kept = plain_copy(item, levels - 1) if type(name) is str and name.isascii() else None
        if kept is None:
            return None
        stored.append(f"{quoted(name)}:{kept[0]}")
        copied[name] = kept[1]
        length += len(stored[-1])
        if length > CHARS_MAX:
            return None
    return None if _is_tag(value) else (f"{{{','.join(stored)}}}", copied)


def _list_copy(value: list[Any], levels: int) -> tuple[str, Any] | None:
    stored: list[str] = []
    copied: list[Any] = []
    length = 0
    for item in value:
        kept = plain_copy(item, levels - 1)
        length += 1 if kept is None else len(kept[0])
        if kept is None or length > CHARS_MAX:
            return None
        stored.append(kept[0])
        copied.append(kept[1])
    return f"[{','.join(stored)}]", copied


def _is_tag(value: dict[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _is_text(value: str) -> bool:
    """Whether it is short and has no lone surrogate, which is no character."""
    if len(value) > CHARS_MAX:
        return False
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False
