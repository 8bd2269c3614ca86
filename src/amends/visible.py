"""Show text from a ledger to people: on one line, complete, and without anything that could deceive the reader.

Arguments, names, reasons and errors come from models and from the world. Unescaped, they could move the cursor, change
the direction of writing, add a line that looks like output of amends, or spell a known name with letters of another
alphabet. Everything that shows such text to a person (command line, notices, logs, reports, errors) uses the functions
of this module:

- ``visible(text)``: a name inside a sentence. Bare if it is one plain word, otherwise in double quotes with escapes.
- ``visible(text, prose=True)``: a text at the end of its line. Plain words with single spaces between them stay bare.
- ``visible_value(value)``: an argument or a result. Texts are always quoted, so ``"100"`` and ``100`` differ.
  ``visible_args(args, classes)``: all arguments of a call, one per line; ``is_unreadable(args)``: whether they are
  encrypted and there is no key to show them.
- ``visible_call(tool, args)``: a call to recognize, with short arguments; not for a decision about it.
- ``visible_log(name)``: a logger of amends, whose messages and tracebacks go through ``printable``.
- ``printable(text)``: a finished sentence; escapes only what acts on the display.

The first three are injective: two different texts never look the same. A bare text has no backslash and does not begin
with a quote; in a quoted text every backslash and quote is escaped.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import traceback
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from amends.encoding.patterns import pattern
from amends.encoding.secret import UNREADABLE, Secret
from amends.encoding.secret import is_unreadable as is_unreadable

DEPTH_MAX: Final = 200
"""A value that is nested deeper than the ledger allows is not shown at all."""
MARKS_MAX: Final = 2
"""How many combining marks one letter may have; more of them would cover the lines above and below."""
UNREADABLE_WORDS: Final = "(they are encrypted, and this process has no key to show them)"
"""Shown instead of arguments that cannot be decrypted here."""
INT_DIGITS_MAX: Final = 4_000
"""Longer ints are shown in hexadecimal: Python refuses to write them in decimal."""

SCRIPTS: Final = frozenset(
    {
        *("LATIN", "CYRILLIC", "GREEK", "ARMENIAN", "GEORGIAN", "HEBREW", "ARABIC", "DEVANAGARI", "BENGALI"),
        *("GURMUKHI", "GUJARATI", "ORIYA", "TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA", "THAI", "LAO"),
        *("KHMER", "MYANMAR", "ETHIOPIC", "HANGUL", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK"),
    }
)
"""Scripts whose letters are shown unescaped. Few readers can tell the letters of the others apart."""
_EAST_ASIAN: Final = frozenset({"HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "CJK", "HANGUL"})
_SYMBOLS: Final = frozenset("¡¢£¥§©«®°±»¿×÷€₩₪₫₱₴₹₺₽、。「」『』")
"""Symbols outside ASCII that look like no other symbol."""
_STROKES: Final = frozenset("丨丶丿亅一〇ノーニロエカタトハヘ")
"""East Asian letters that look like punctuation, digits or each other; escaped in a word with Latin letters."""
_LIKE_LATIN: Final = frozenset("асеорхуѕіјһԁԛԝӏквАВЕЅІЈКМНОРСТУХЗҮӀԌԚԜοανρικυχγτΑΒΕΖΗΙΚΜΝΟΡΤΥΧϳօսոհցյՕՍԼ")
"""Cyrillic, Greek and Armenian letters that many fonts draw like Latin ones."""
_LATIN: Final = frozenset(
    number
    for low, high in (
        *((0xC0, 0x137), (0x139, 0x17F), (0x1A0, 0x1A1), (0x1AF, 0x1B0), (0x1CD, 0x1DC), (0x1DE, 0x1E3)),
        *((0x1E6, 0x1ED), (0x1F4, 0x1F5), (0x1F8, 0x21B), (0x21E, 0x21F), (0x226, 0x233), (0x1E00, 0x1EFF)),
    )
    for number in range(low, high + 1)
)
"""The Latin letters of living languages outside ASCII; many phonetic letters look like ASCII."""
_WHOLE: Final = frozenset("\u0e33\u0eb3")
"""Common vowels of Thai and Lao that NFKC decomposes; their parts alone are in ``_BLANK``."""
_BLANK: Final = frozenset("\u0e4d\u0ecd\u2800\u3164\uffa0\u115f\u1160\u17b4\u17b5\u034f\U00016fe4\U0001d159")
"""Letters, marks and symbols that are invisible, or look like part of another character."""
ARG_CHARS_MAX: Final = 80
"""How much of an argument ``visible_call`` shows: enough for a path."""
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}
_WORD: Final = pattern(r"[A-Za-z0-9_][A-Za-z0-9_.\-/:@+#~%]*")
_PROSE: Final = pattern(r"[!#-\[\]-~]+(?: [!-\[\]-~]+)*")  # ASCII without backslash, single spaces, no quote first
_LIKE_VALUE: Final = pattern(r"[-+.\d\[{(]|(?:true|false|null|nan|inf)$|\w+\(|0x")
"""Texts that look like numbers or other values."""
_RUNS: Final = pattern(r"[\w\u0300-\u036f]+")


def visible(text: str, *, prose: bool = False) -> str:
    """Return the text on one line, in a form that shows every character and that no other text has.

    ``prose``: the text is at the end of its line, so plain words with single spaces between them need no quotes.
    """
    if (_PROSE if prose else _WORD).fullmatch(text):
        return text
    escaped = _escaped(text)
    # A bare text has no escapes: escapes occur only inside quotes, so that they can be recognized.
    is_bare = escaped == text and not text.isascii() and _is_left_to_right(text) and _is_unquoted(text, prose)
    return text if is_bare else _in_quotes(escaped)


def quoted(text: str) -> str:
    """Return the text in double quotes, with escapes for what is invisible, deceptive, or would end the quotes."""
    return _in_quotes(_escaped(text))


def _in_quotes(escaped: str) -> str:
    # A Latin letter after the quotes keeps the rest of the line on the correct side of right-to-left letters.
    return f'"{escaped}"' if _is_left_to_right(escaped) else f'"{escaped}"(rtl)'


def visible_value(value: object, *, bare: bool = False) -> str:
    """Return a complete argument or result on one line: texts are quoted, types that JSON lacks are named.

    ``bare``: a text of plain words needs no quotes, unless it looks like a value of another type.
    """
    if bare and type(value) is str and not _LIKE_VALUE.match(value):
        return visible(value, prose=True)
    return "".join(_value(value, 0))


def visible_args(args: Mapping[Any, Any], classes: Mapping[str, str] | None = None) -> list[str]:
    """Return the complete arguments, each as ``name = value`` on one line.

    ``classes``: the classes of values whose annotation leaves them open, by place; one more line for each.
    """
    if is_unreadable(args):
        return [UNREADABLE_WORDS]
    names = {name: visible(name) if isinstance(name, str) else visible_value(name) for name in args}
    of_class = (f"{visible(place)} is of class {visible(name)}" for place, name in (classes or {}).items())
    return [*(f"{names[name]} = {visible_value(value)}" for name, value in args.items()), *of_class]


def visible_call(tool: str, args: Mapping[str, Any]) -> str:
    """Return a call on one line, to recognize it by: ``tool(name=value)``. Long arguments are cut."""
    if is_unreadable(args):
        return f"{visible(tool)}(…)"
    shown = (f"{visible(name)}={shortened(visible_value(value), ARG_CHARS_MAX)}" for name, value in args.items())
    return f"{visible(tool)}({', '.join(shown)})"


def printable(text: str, *, lines: bool = False) -> str:
    """Return the text with escapes for what acts on the display; applying it twice changes nothing more.

    For a sentence whose parts are already visible, as a last line of defence: it neither quotes nor doubles
    backslashes, and keeps symbols such as ✓. ``lines``: newlines are kept.
    """
    if text.isascii() and text.isprintable():
        return text
    kept = "\n" if lines else ""
    return "".join(
        one if one in kept or not _acts(one, before) else _escape(one)
        for before, one in zip(("", *text), text, strict=False)
    )


def ascii_json(text: str) -> str:
    """Return JSON text that is safe in a terminal: ``ensure_ascii`` does not escape DEL."""
    return text.replace("\x7f", "\\u007f")


FOLD_MARK: Final = "     ┊ "
"""Begins each further row of a folded line; visible text never contains this character."""


def folded(text: str, width: int, *, mark: str = FOLD_MARK) -> Iterator[str]:
    """Yield the line in parts that fit the width, broken after a space if there is one; each further part begins with ``mark``.

    If the terminal wrapped the line itself, text from the ledger could begin a row and look like output of amends.
    """
    room = max(width, len(mark) + 8)
    before, part, used = "", "", 0
    for one in text:
        size = columns(one)
        if used + size > room:
            line, rest = _broken(part)
            yield before + line
            before, part = mark, rest
            used = len(mark) + sum(map(columns, rest))
        part, used = part + one, used + size
    yield before + part


def _broken(part: str) -> tuple[str, str]:
    """Return a row, and what continues in the next one: the word that the row ends in, unless that is most of it."""
    at = part.rfind(" ") + 1
    return (part[:at], part[at:]) if at > len(part) // 2 else (part, "")


def words_of_line(text: str) -> list[str]:
    """Return the parts between which a line may be broken or cut, each with the space or comma that ends it."""
    return re.findall(r"[^ ,]*,+ *|[^ ,]* +|[^ ,]+", text) or [""]


def shortened(text: str, room: int) -> str:
    """Return the text cut after a whole word, with "…" in place of the rest, if it is longer than ``room``."""
    if len(text) <= room:
        return text
    kept = ""
    for word in words_of_line(text):
        if len(kept) + len(word) > room - 2:
            break
        kept += word
    return f"{kept.rstrip()} …" if len(kept) > room // 2 else f"{text[: room - 1]}…"


# ---- Logs


class _Visible(logging.Filter):
    """Makes log records safe to read: one line per message, and indented tracebacks."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_logged(one) for one in record.args)
        if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = story("".join(traceback.format_exception(record.exc_info[1])))
        return True


def visible_log(name: str) -> logging.Logger:
    """Return the logger of this name, whose arguments cannot act on a terminal or end a line."""
    log = logging.getLogger(name)
    if not any(isinstance(one, _Visible) for one in log.filters):
        log.addFilter(_Visible())
    return log


class Story(str):
    """Several lines for a log, indented so that none looks like a log line of its own."""

    __slots__ = ()


def story(text: str) -> Story:
    """Return a text of several lines, such as a traceback, with each line indented."""
    return Story("\n".join(f"  {line}" for line in printable(text.rstrip("\n"), lines=True).split("\n")))


def _logged(arg: object) -> object:
    return arg if isinstance(arg, int | float | Story) else printable(_said(arg))


# ---- Values


def _value(value: Any, depth: int) -> Iterator[str]:
    if depth > DEPTH_MAX:
        raise ValueError(f"a value is nested deeper than {DEPTH_MAX} levels")
    kind = type(value)
    if kind is str:
        yield quoted(value)
    elif value is None or kind is bool:
        yield {None: "null", True: "true", False: "false"}[value]
    elif kind is int:
        yield str(value) if value.bit_length() < 3 * INT_DIGITS_MAX else hex(value)
    elif kind is float:
        yield repr(value)
    elif kind is dict:
        yield from _pairs("{", value.items(), "}", depth)
    elif kind is list:
        yield from _items("[", value, "]", depth)
    elif kind is tuple:
        yield from _items("(", value, ",)" if len(value) == 1 else ")", depth)
    elif kind is set or kind is frozenset:
        yield from _sorted(f"{kind.__name__}(", value, ")", depth)
    else:
        yield from _typed(value, kind, depth)


def _typed(value: Any, kind: type, depth: int) -> Iterator[str]:
    """Yield the parts of a value of another class: its name, and what it holds."""
    name = visible(kind.__name__)
    if kind is Secret:
        yield "encrypted(•••)" if value is UNREADABLE else f"redacted({value})"
    elif issubclass(kind, Enum):
        yield f"{name}."
        yield visible(value.name or "")
        yield from _items("(", [value.value], ")", depth)
    elif dataclasses.is_dataclass(kind):
        fields = [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
        yield from _fields(name, fields, depth)
    elif hasattr(kind, "model_fields"):
        fields = [(one, getattr(value, one)) for one in kind.model_fields]
        yield from _fields(name, [*fields, *(getattr(value, "model_extra", None) or {}).items()], depth)
    elif isinstance(value, Mapping):
        yield from _pairs("{" if name == "mappingproxy" else f"{name}{{", value.items(), "}", depth)
    elif isinstance(value, str | int | float | Decimal):
        plain = next(base for base in (str, int, float, Decimal) if isinstance(value, base))
        yield from (f"{name}(", *_value(plain.__str__(value) if plain in (str, Decimal) else plain(value), depth), ")")
    elif isinstance(value, bytes | bytearray | memoryview):
        yield f"{name}({bytes(value)!r})"
    elif isinstance(value, datetime | date | time):
        yield f"{name}({quoted(value.isoformat())})"
    elif isinstance(value, timedelta):
        yield f"{name}({quoted(str(value))})"
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (_sorted if isinstance(value, set | frozenset) else _items)(f"{name}(", value, ")", depth)
    else:
        yield f"{name}({quoted(_said(value))})"


def _said(value: object) -> str:
    try:
        return str(value)
    except Exception:  # a user's class, a user's __str__
        return "cannot be shown"


def _items(begin: str, items: Iterable[Any], end: str, depth: int) -> Iterator[str]:
    yield begin
    for number, item in enumerate(items):
        yield "," if number else ""
        yield from _value(item, depth + 1)
    yield end


def _sorted(begin: str, items: Iterable[Any], end: str, depth: int) -> Iterator[str]:
    """Yield a set in the order of its texts, which is the same in every process."""
    yield begin
    yield ",".join(sorted("".join(_value(item, depth + 1)) for item in items))
    yield end


def _pairs(begin: str, pairs: Iterable[tuple[Any, Any]], end: str, depth: int) -> Iterator[str]:
    yield begin
    for number, (name, item) in enumerate(pairs):
        yield "," if number else ""
        yield from _value(name, depth + 1)
        yield ":"
        yield from _value(item, depth + 1)
    yield end


def _fields(name: str, pairs: Iterable[tuple[str, Any]], depth: int) -> Iterator[str]:
    yield f"{name}("
    for number, (field, item) in enumerate(pairs):
        yield f"{',' if number else ''}{visible(field)}="
        yield from _value(item, depth + 1)
    yield ")"


# ---- Characters


def _escaped(text: str) -> str:
    """Escape every backslash, quote, and invisible or deceptive character."""
    hidden = frozenset[int]() if text.isascii() else _deceiving(text)
    out: list[str] = []
    last = len(text) - 1
    for place, one in enumerate(text):
        if one == " ":
            # A space at the beginning or end is invisible; many in a row push the rest out of sight.
            is_seen = 0 < place < last and text[place - 1] != " "
            out.append(one if is_seen else "\\x20")
        elif one in _SHORT:
            out.append(_SHORT[one])
        elif " " < one <= "~" or (one > "\x7f" and place not in hidden):
            out.append(one)
        else:
            out.append(_escape(one))
    return "".join(out)


def _escape(one: str) -> str:
    """Return one character as a Python escape, lone surrogates too."""
    number = ord(one)
    if one in "\n\r\t":
        return _SHORT[one]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _deceiving(text: str) -> frozenset[int]:
    """Return the positions of the characters outside ASCII that must be escaped."""
    found = {place for place, one in enumerate(text) if one > "~" and not _is_known(one)}
    found |= _piled(text, found)
    around = _alphabets(text)
    for word in _RUNS.finditer(text):
        if _is_mixed(word[0], around):
            found |= {place for place in range(word.start(), word.end()) if text[place] > "~"}
    if not _is_one_way(text):
        found |= {place for place, one in enumerate(text) if _is_right_to_left(one)}
        found |= _piled(text, found)
    return frozenset(found)


@lru_cache(maxsize=4096)
def _is_known(one: str) -> bool:
    """Return whether this character may be shown: a letter or mark of a living script, or a known symbol."""
    if one in _SYMBOLS:
        return True
    number, category = ord(one), unicodedata.category(one)
    if category not in ("Lu", "Ll", "Lt", "Lo", "Lm", "Mn", "Mc") or one in _BLANK:
        return False
    # Compatibility characters look like others: full width, ligatures, bold letters, the Kelvin sign.
    if one not in _WHOLE and unicodedata.normalize("NFKC", one) != one:
        return False
    script = _script(one)
    if script not in SCRIPTS or (number > 0xFFFF and script != "CJK"):
        return False
    if script == "HANGUL" and not 0xAC00 <= number <= 0xD7A3:
        return False  # parts of syllables, which combine into characters that exist on their own
    return script != "LATIN" or number in _LATIN


@lru_cache(maxsize=4096)
def _script(one: str) -> str:
    return unicodedata.name(one, "").partition(" ")[0]


def _piled(text: str, hidden: set[int]) -> set[int]:
    """Return the marks that have no base letter of their script, are too many, or have a precomposed character."""
    found: set[int] = set()
    base = ""
    cluster = ""
    for place, one in enumerate(text):
        if unicodedata.category(one)[0] != "M":
            base = cluster = "" if place in hidden or one <= "~" else one
            continue
        cluster += one
        is_sound = base and len(cluster) <= 1 + MARKS_MAX and _script(one) == _script(base) and place not in hidden
        if not is_sound or unicodedata.normalize("NFC", cluster) != cluster:
            found.add(place)
            base = ""
    return found


def _alphabets(text: str) -> frozenset[str]:
    """Return the scripts of the letters in the text, without those letters that only look Latin."""
    letters = {one for one in text if unicodedata.category(one)[0] == "L"}
    return frozenset("LATIN" if one.isascii() else _script(one) for one in letters if one not in _LIKE_LATIN)


def _is_mixed(word: str, around: frozenset[str]) -> bool:
    """Return whether a word mixes alphabets, or is written in another alphabet but looks Latin."""
    if word.isascii():
        return False
    letters = [one for one in word if unicodedata.category(one)[0] == "L"]
    scripts = {"LATIN" if one.isascii() else _script(one) for one in letters}
    scripts = {"EAST ASIAN" if script in _EAST_ASIAN else script for script in scripts}
    if scripts == {"LATIN", "EAST ASIAN"}:
        return any(one in _STROKES for one in word)
    if len(scripts) > 1:
        return True
    if not letters or not all(one in _LIKE_LATIN for one in letters):
        return False
    # "а" is a Russian word, and "сосо" looks English: the rest of the text tells which is meant.
    return "LATIN" in around or not scripts & around


def _is_right_to_left(one: str) -> bool:
    return one > "~" and unicodedata.bidirectional(one) in ("R", "AL", "AN")


def _is_left_to_right(text: str) -> bool:
    return text.isascii() or not any(map(_is_right_to_left, text))


def _is_one_way(text: str) -> bool:
    """Return whether the text has one direction: right-to-left letters reorder digits and other letters beside them."""
    if _is_left_to_right(text):
        return True
    return not any(one.isalnum() and not _is_right_to_left(one) for one in text)


def _is_unquoted(text: str, prose: bool) -> bool:
    """Return whether a text without escapes needs no quotes."""
    if prose:
        return not text.startswith('"')
    if not text[0].isalnum() and text[0] != "_":
        return False  # as _WORD: a sign that begins a word would look like part of what is before it
    return all(one.isalnum() or one in "_.-/:@+#~%" or unicodedata.category(one)[0] == "M" for one in text)


@lru_cache(maxsize=4096)
def _acts_alone(one: str) -> bool:
    """Return whether a character outside ASCII is invisible, blank, unassigned, or acts on others."""
    category = unicodedata.category(one)
    return category[0] == "C" or category[0] == "Z" or category == "Me" or one in _BLANK or _is_selector(one)


def _acts(one: str, before: str) -> bool:
    if " " <= one <= "~":
        return False
    if one < " " or one == "\x7f" or _acts_alone(one):
        return True
    # One combining mark on a letter is normal writing; a mark on a mark is not.
    return unicodedata.category(one) == "Mn" and (not before or unicodedata.category(before)[0] in "MZC")


def _is_selector(one: str) -> bool:
    return "\ufe00" <= one <= "\ufe0f" or "\U000e0100" <= one <= "\U000e01ef" or "\u180b" <= one <= "\u180f"


@lru_cache(maxsize=4096)
def _wide(one: str) -> int:
    if unicodedata.category(one) == "Mn":
        return 0
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1


def columns(one: str) -> int:
    """Return how many columns of a terminal one character takes."""
    return 1 if one <= "~" else _wide(one)
