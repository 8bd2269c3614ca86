"""Conditions of rules on arguments: read them, and compare values with them.

Every comparison answers True, False, or None if the answer cannot be known.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import islice
from typing import Any, Final, TypeAlias, get_origin
from unicodedata import normalize
from uuid import UUID

from amends.encoding.dataclass import dataclass
from amends.encoding.patterns import pattern
from amends.encoding.secret import MASK, Secret
from amends.errors import folded, is_slip, shown

PARTS_MAX: Final = 10_000
"""How many values are compared for one condition; a longer list is unclear."""
NAMES_MAX: Final = 100
"""A dict with more keys holds data rather than names, so its keys are not checked for typing errors."""


# ---- Reading conditions

_SIGN: Final = pattern(r"(>=|<=|>|<|!=|!)\s*")
_NO_SIGN: Final = (  # compiled when the first condition is read: it takes as long as all other patterns of amends
    r"""(?ix)^(
        [=≠≤≥≦≧≮≯~≈]                                            # "=>5", "==5": not a sign of this grammar
      | (gt|gte|ge|lt|lte|le|eq|ne|neq|not|over|under|above|below|exceeds|min|max|from|between
         |(more|greater|less|larger|smaller|higher|lower|bigger)(\s+than)?|at\s+(least|most))[\s:=(]*[-+$€£]?\d
      | [-+]?[\d.,_]+\s*(<|>|=|≤|≥|\.\.|and\b|or\b|to\b|or\s+more)  # "10000<", "1..5"
    )"""
)
WILD: Final = pattern(r"[*?\[]")
_MOMENT: Final = pattern(r"\d{4}-\d\d-\d\d|\d\d:\d\d")


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition: ``sign`` is empty (equal, or a pattern), ``!`` or one of the four comparisons."""

    sign: str
    text: str

    @property
    def compares(self) -> bool:
        """Whether it is one of the four comparisons."""
        return self.sign not in ("", "!")

    @property
    def is_pattern(self) -> bool:
        """Whether the text has wildcards."""
        return bool(WILD.search(self.text))


@lru_cache(maxsize=1024)
def read_condition(said: str) -> Condition:
    """Parse a condition; raise ``ValueError`` for an invalid one."""
    if not said.isprintable():
        raise ValueError(f"{said!a} has invisible characters; write ? for one of them")
    text = said.strip()
    found = _SIGN.match(text)
    if found is None:
        looks = normalize("NFKC", text)
        if re.match(_NO_SIGN, looks) or (looks != text and _SIGN.match(looks)):
            raise ValueError(
                f'{said!r} is not a condition: write ">5", ">=5", "<5", "<=5", "5" or "!5"; '
                f"for a text that really begins so, put its first character in brackets: {_bracketed(text)!r}"
            )
        return Condition("", nfc(said))
    sign = "!" if found[1] == "!=" else found[1]
    rest = nfc(text[found.end() :])
    if rest[:1] in ("<", ">", "=", "!"):
        raise ValueError(f"{said!r} has more than one sign")
    if sign != "!" and number_of(rest) is None and moment_of(rest) is None:
        raise ValueError(f"{said!r} compares with {rest!r}, which is neither a number nor a date")
    return Condition(sign, rest)


def _bracketed(text: str) -> str:
    return f"[{text[0]}]{text[1:]}"


def number_of(value: object) -> Decimal | None:
    """Return an exact, finite number, or None. A float counts as its shortest decimal."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        number = Decimal(repr(float(value)) if isinstance(value, float) else value)
    except (ArithmeticError, ValueError):
        return None
    return number if number.is_finite() else None


def moment_of(text: str) -> datetime | date | time | None:
    if not _MOMENT.match(text.strip()):
        return None  # Python would read "10,000" as a time of day
    for read in (date.fromisoformat, datetime.fromisoformat, time.fromisoformat):
        try:
            found: datetime | date | time = read(text.strip())
        except ValueError:
            continue
        return found
    return None


@lru_cache(maxsize=256)
def _duration(text: str) -> timedelta | None:
    """Return a duration as pydantic reads it ("PT1H", "01:00:00"); None for a number of seconds, or no duration."""
    if number_of(text) is not None:
        return None
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(timedelta).validate_python(text.strip())
    except ValidationError:
        return None


def shown_condition(said: object) -> str:
    return shown(said) if isinstance(said, str) else shown(said if isinstance(said, list | tuple) else str(said))


def nfc(text: str) -> str:
    return text if text.isascii() else normalize("NFC", text)


# ---- Values at a path

_MISSING: Final = object()
_UNCLEAR: Final = object()
SCALARS: Final = frozenset(
    {str, bytes, bytearray, int, float, bool, complex, Decimal, date, datetime, time, timedelta, UUID}
)


def any_of(answers: Iterable[bool | None]) -> bool | None:
    unclear = False
    for number, answer in enumerate(answers):
        if answer or number == PARTS_MAX:
            return answer or None
        unclear = unclear or answer is None
    return None if unclear else False


def every_of(answers: Iterable[bool | None]) -> bool | None:
    """Return whether there are answers and all are True."""
    found = [*islice(answers, PARTS_MAX + 1)]
    if not found or False in found:
        return False
    return None if None in found or len(found) > PARTS_MAX else True


Among: TypeAlias = Callable[[Iterable[bool | None]], bool | None]


def holds(value: Any, parts: tuple[str, ...], said: object, among: Among) -> bool | None:
    """Return whether the value at a path meets a condition; ``among`` combines the answers for several values."""
    if isinstance(said, Mapping):
        return every_of(holds(value, (*parts, *path_parts(path)), one, among) for path, one in said.items())
    return among(is_as(one, said, among) for one in _at(value, parts))


def path_parts(path: str) -> tuple[str, ...]:
    return tuple(nfc(path).split("."))


def _at(value: Any, parts: tuple[str, ...]) -> Iterator[Any]:
    """Yield every value at a path, looking into the elements of lists; ``_MISSING`` if there is none."""
    if not parts:
        yield value
        return
    if parts[0] == "*" and (_is_list(value) or isinstance(value, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _at(one, parts[1:])
        return
    if isinstance(value, Secret) or value == MASK:
        yield _UNCLEAR
    elif isinstance(value, Mapping):
        yield from _in_mapping(value, parts)
    elif _is_list(value) and not (hasattr(value, "_fields") and parts[0] in value._fields):
        yield from _in_list(value, parts)
    elif value is None:
        yield _MISSING
    elif not isinstance(value, str | bytes | int | float | Decimal) and hasattr(value, parts[0]):
        yield from _at(getattr(value, parts[0]), parts[1:])
    elif isinstance(value, Enum):
        yield from _at(value.value, parts)
    elif (fields := fields_of_type(type(value))) is not None:
        # The type has it under another spelling, or another member of the union has it.
        yield _UNCLEAR if folded(parts[0]) in map(folded, fields) else _MISSING
    else:
        # A text may be JSON that contains the value; an object may have it under another name.
        yield _UNCLEAR


def _in_mapping(value: Mapping[Any, Any], parts: tuple[str, ...]) -> Iterator[Any]:
    found = False
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])  # a key may have a dot in it
        alike = folded(name)
        for key, one in value.items():
            names = names_of(key)
            if name in names:
                found = True
                yield from _at(one, parts[count:])
            elif alike in map(folded, names):
                # The tool may read either spelling, even if both are there.
                found = True
                yield _UNCLEAR
    if not found:
        # The names of an undeclared dict were never checked.
        known = value if len(value) <= NAMES_MAX else ()
        slip = any(is_slip(parts[0], name) for key in known for name in names_of(key))
        yield _UNCLEAR if slip else _MISSING


def names_of(key: object) -> tuple[str, ...]:
    """Return the names of a key; an Enum has its value and its name."""
    if isinstance(key, Enum):
        return nfc(str(key.value)), nfc(str(key.name))
    return (nfc(str(key)),)


def _in_list(value: Iterable[Any], parts: tuple[str, ...]) -> Iterator[Any]:
    every = [*value]
    if re.fullmatch(r"-?\d+", parts[0]):
        place = int(parts[0])
        if -len(every) <= place < len(every):
            yield from _at(every[place], parts[1:])
        else:
            yield _MISSING
        return
    for one in every:
        yield from _at(one, parts)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence | AbstractSet) and not isinstance(value, str | bytes | bytearray)


def fields_of_type(hint: Any) -> dict[str, Any] | None:
    """Return the named parts of a class with their types; None if it has none, or allows any name."""
    cls = get_origin(hint) or hint
    if not isinstance(cls, type) or issubclass(cls, Enum) or cls in SCALARS:
        return None
    models = getattr(cls, "model_fields", None)
    if isinstance(models, dict):
        if getattr(cls, "model_config", {}).get("extra") == "allow":
            return None
        names = {name: one.annotation for name, one in models.items()}
    elif (
        dataclasses.is_dataclass(cls)
        or typing.is_typeddict(cls)
        or hasattr(cls, "_fields")
        or hasattr(cls, "__attrs_attrs__")
    ):
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except Exception:  # an annotation may be any expression
            hints = {}
        listed = [one.name for one in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else [
            *getattr(cls, "_fields", ()), *(one.name for one in getattr(cls, "__attrs_attrs__", ()))
        ]  # fmt: skip
        names = {name: hints.get(name, Any) for name in (listed or hints)}
    else:
        return None
    # A property can be read too, although it is not a field.
    names |= {name: Any for name, one in inspect.getmembers_static(cls) if isinstance(one, property) and name[0] != "_"}
    return names


# ---- Comparing one value

BOOLS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1", "y", "t"), True),
    **dict.fromkeys(("false", "no", "off", "0", "n", "f"), False),
}
_NONES: Final = ("none", "null")
_TEXTUAL: Final = (
    "ipaddress",
    "pathlib",
    "pathlib._local",
    "pydantic.networks",
    "pydantic_core._pydantic_core",
    "yarl",
)
"""Modules whose classes are compared by their text."""


def is_as(value: Any, said: object, among: Among) -> bool | None:
    """Return whether one value meets a condition. A missing argument does not."""
    if value is _UNCLEAR or isinstance(value, Secret):
        return None
    condition = read_condition(said) if isinstance(said, str) else None
    if value is _MISSING:
        # "not DE" is neither true nor false for a missing value.
        return None if condition is not None and condition.sign == "!" else False
    if _is_list(value):
        return among(is_as(one, said, among) for one in value)
    if is_many(said):
        return any_of(is_as(value, one, among) for one in said)
    if isinstance(value, str) and value == MASK:
        return None
    if condition is None:
        return is_equal(value, said)
    if condition.compares:
        return _ordered(value, condition)
    equal = is_equal(value, condition.text)
    return equal if not condition.sign or equal is None else not equal


def is_many(said: object) -> typing.TypeGuard[Iterable[object]]:
    return isinstance(said, list | tuple | set | frozenset)


def is_equal(value: Any, said: Any) -> bool | None:
    """Return whether a value equals the condition, whose text is read as the type of the value."""
    if isinstance(said, Enum) and not isinstance(value, type(said)):
        said = said.value
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, Enum):
        name: Any = value.name  # a combination of flags has none
        return said is value or any_of((is_equal(value.value, said), False if name is None else is_equal(name, said)))
    if value is None or said is None:
        return value is said or (isinstance(said, str) and (said == "*" or said.strip().casefold() in _NONES))
    if isinstance(value, bool):
        return _equal_bool(value, said)
    if isinstance(value, int | float | Decimal):
        return _equal_number(value, said)
    if isinstance(value, str):
        return _equal_text(value, said)
    if isinstance(value, date | time):
        return _equal_moment(value, said)
    if isinstance(value, timedelta):
        duration = _duration(said) if isinstance(said, str) else None
        return _equal_number(Decimal(str(value.total_seconds())), said) if duration is None else value == duration
    if isinstance(value, UUID):
        return _equal_uuid(value, said)
    return _equal_other(value, said)


def text_matches(text: str, said: str) -> bool:
    """Return whether a text equals or matches another, both in the same Unicode form."""
    text, said = nfc(text), nfc(said)
    return text == said or fnmatchcase(text, said)


def _equal_bool(value: bool, said: Any) -> bool | None:
    if isinstance(said, bool):
        return value is said
    if not isinstance(said, str):
        return None
    word = BOOLS.get(said.strip().casefold())
    return fnmatchcase(str(value).lower(), said.lower()) if word is None else word is value


def _equal_number(value: int | float | Decimal, said: Any) -> bool | None:
    mine = number_of(value)
    if mine is None or isinstance(said, bool) or not isinstance(said, int | float | Decimal | str):
        return None
    theirs = number_of(said)
    if theirs is not None:
        return mine == theirs
    return any(fnmatchcase(text, str(said)) for text in (str(value), f"{mine.normalize():f}"))


def _equal_text(value: str, said: Any) -> bool | None:
    if isinstance(said, str):
        return text_matches(value, said)
    if isinstance(said, bool):
        return BOOLS.get(value.strip().casefold()) is said
    if isinstance(said, int | float | Decimal):
        mine = number_of(value)
        return mine is not None and mine == number_of(said)
    if isinstance(said, UUID):
        return value.strip().casefold() in (str(said), said.hex, f"{{{said}}}", said.urn)
    if isinstance(said, date | time):
        mine_at = moment_of(value)
        return False if mine_at is None else _equal_moment(mine_at, said)
    return None


def _equal_moment(value: date | time, said: Any) -> bool | None:
    theirs = moment_of(said) if isinstance(said, str) else said
    if theirs is None:  # a pattern: "2026-*"
        return fnmatchcase(value.isoformat(), said) or fnmatchcase(str(value), said)
    pair = _comparable(value, theirs)
    return None if pair is None else bool(pair[0] == pair[1])


def _comparable(value: date | time, other: Any) -> tuple[Any, Any] | None:
    """Return both in comparable form (a date is the whole day of a moment); None if they cannot be compared."""
    if isinstance(value, datetime) and isinstance(other, date) and not isinstance(other, datetime):
        return value.date(), other
    if isinstance(other, datetime) and isinstance(value, date) and not isinstance(value, datetime):
        return (value, other.date()) if other.time() == time() else None
    if (isinstance(value, datetime) and isinstance(other, datetime)) or (
        isinstance(value, time) and isinstance(other, time)
    ):
        return (value, other) if (value.utcoffset() is None) == (other.utcoffset() is None) else None
    if type(value) is date and type(other) is date:
        return value, other
    return None


def _equal_uuid(value: UUID, said: Any) -> bool | None:
    if not isinstance(said, UUID | str):
        return None
    try:
        return value == (said if isinstance(said, UUID) else UUID(said.strip()))
    except ValueError:
        return fnmatchcase(str(value), str(said).casefold())


def _equal_other(value: Any, said: Any) -> bool | None:
    if isinstance(value, bytes | bytearray):
        try:
            return is_equal(bytes(value).decode(), said)
        except UnicodeDecodeError:
            return None
    if isinstance(said, str) and type(value).__module__ in _TEXTUAL:
        text = str(value)
        return text_matches(text, said) or text_matches(text.rstrip("/"), said)
    if type(value) is type(said):
        return bool(value == said)
    return True if said == "*" else None


def _ordered(value: Any, condition: Condition) -> bool | None:
    """Return whether a value is larger or smaller; None if it has no such order."""
    if isinstance(value, Enum):
        value = value.value
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if isinstance(value, timedelta):
        value = Decimal(str(value.total_seconds()))
    pair: tuple[Any, Any] | None = None
    if isinstance(value, date | time):
        other = moment_of(condition.text)
        pair = None if other is None else _comparable(value, other)
    else:
        mine, theirs = _infinite(value), number_of(condition.text)
        if mine is not None and theirs is not None:
            pair = mine, theirs
        elif isinstance(value, str) and (mine_at := moment_of(value)) and (other := moment_of(condition.text)):
            pair = _comparable(mine_at, other)
    if pair is None:
        return None
    a, b = pair
    match condition.sign:
        case ">":
            return bool(a > b)
        case ">=":
            return bool(a >= b)
        case "<":
            return bool(a < b)
        case _:
            return bool(a <= b)


def _infinite(value: object) -> Decimal | float | None:
    """Return a number that may be infinite, which exceeds every limit; None for a value without order."""
    return value if value in (float("inf"), float("-inf")) and isinstance(value, float | Decimal) else number_of(value)
