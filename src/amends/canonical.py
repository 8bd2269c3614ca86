"""What is written down: one text per meaning for keys, and a type-faithful text for the ledger.

Both are JSON. What JSON has no word for is an object with one key that starts with ``$``; a user's own dict of that
shape is written as ``{"$map": [[key, value], ..]}``, so that nothing a user sends can be taken for a tag.
``canonical`` forgets spelling and is never read back; ``encode`` forgets nothing and is. In both an Enum is its
value, a dataclass or model the dict of its fields, a named tuple a tuple.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from inspect import Signature
from math import isfinite
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType
from typing import Any, Final, NoReturn, get_args
from unicodedata import normalize
from uuid import UUID

from amends.errors import LedgerCorrupt, LedgerSealed, NotStorable, TooLarge
from amends.plain import PLAIN_INT, SAFE_INT, plain_copy
from amends.plain import digest as digest
from amends.record import dataclass, field
from amends.secret import SEALED, Secret

ARGS_BYTES_MAX: Final = 1 << 20
RESULT_BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = 100
PARTS_MAX: Final = 1 << 20  # values in one value: fifty lists that each hold the next one twice are 2**50 of them
PART_CHARS: Final = 64  # a long text counts as one value per so many characters
INT_BITS_MAX: Final = 1 << 18  # Python writes an int in quadratic time: 0.1 s for this one, 15 s for one of 400 kB
PLACE_CHARS_MAX: Final = 120
ADAPTERS_MAX: Final = 512
_SHORT_INT_BITS: Final = 2048  # Python may refuse to read longer ones in decimal
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


def canonical(value: object, *, path: str = "args") -> str:
    """One text for one meaning: equal values give the same text whatever their spelling. Raises ``NotStorable``."""
    return _written(value, _Walk(path, _MEANINGS))


def diff(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The arguments that do not mean the same, as (recorded, given); a missing one shows as None."""
    same = {n for n in recorded if n in given and canonical(recorded[n]) == canonical(given[n])}
    return {n: (recorded.get(n), given.get(n)) for n in [*recorded, *given] if n not in same}


def check_size(text: str, *, path: str, limit: int) -> None:
    """Raise ``TooLarge`` when the text takes more than ``limit`` bytes."""
    if len(text) * 4 <= limit:  # no character takes more bytes
        return
    size = len(text.encode("utf-8"))
    if size > limit:
        raise TooLarge(f"{path} of {size:,} bytes is larger than {limit:,}", path=path, size=size, limit=limit)


@dataclass(frozen=True, slots=True)
class Stored:
    """A result as the ledger has it. ``loss`` says what a replay will not get; without text that is all of it."""

    text: str | None
    loss: str | None


def encode(value: object, *, path: str) -> str:
    """The stored text of a value; decode() gives back an equal one of the same built-in types. Raises ``NotStorable``."""
    return _written(value, _Walk(path, _PACKS))


def decode(text: str, annotation: object = Any) -> Any:
    """The value of a stored text, as the annotation says; as it is written where the annotation does not fit."""
    return _shaped(_read(text), text, annotation)


def _shaped(value: Any, text: str, annotation: object) -> Any:
    is_missing = annotation is Any or annotation is Signature.empty or isinstance(annotation, str)
    if is_missing or (annotation is type(value) and annotation in _PACKS):
        return value
    try:
        # By field name: that is how models are written. Lax: a strict model would refuse its own plain data.
        shaped = _adapter(annotation).validate_python(value, strict=False, by_alias=True, by_name=True)
        # Iterable[X] is validated lazily, into an iterator that can be read once.
        return value if isinstance(shaped, Iterator) else shaped
    except Exception:
        return _read(text)  # again: the user's validators had their hands on the first one


def misfits(text: str, annotation: object) -> bool:
    """Return whether a stored text can no longer be read as the user's own class that the annotation names.

    Plain data under a plain annotation never misfits: what a body gave back is what its readers get.
    """
    if not _names_own_class(annotation):
        return False
    try:
        _adapter(annotation).validate_python(_read(text), strict=False, by_alias=True, by_name=True)
    except LedgerCorrupt:
        raise
    except Exception:
        return True
    return False


def _names_own_class(annotation: object) -> bool:
    if isinstance(annotation, type):
        return annotation not in _PACKS and annotation not in _PLAIN and annotation.__module__ != "builtins"
    return any(_names_own_class(part) for part in get_args(annotation))


def store_result(value: object, annotation: object = Any) -> Stored:
    """What the ledger keeps of a result. Never raises: what cannot be written down is a stated loss."""
    return faithful(value, annotation)[1]


def load_result(stored_text: str | None, annotation: object = Any) -> Any:
    """The result as every replay sees it; None where it could not be kept."""
    return None if stored_text is None else decode(stored_text, annotation)


def faithful(value: Any, annotation: object = Any) -> tuple[Any, Stored]:
    """The value as every replay will see it, and what is stored; the original where nothing could be. Never raises."""
    plain = plain_copy(value)
    if plain is not None:
        return _shaped(plain[1], plain[0], annotation), Stored(plain[0], None)
    walk = _Walk("result", _PACKS)
    try:
        text = _written(value, walk)
        check_size(text, path="result", limit=RESULT_BYTES_MAX)
        seen = decode(text, annotation)
        return seen, Stored(text, _loss(value, seen, text=text, retyped=walk.retyped))
    except (NotStorable, TooLarge) as error:
        return value, Stored(None, str(error))
    except Exception as error:
        return value, Stored(None, f"result of type {type(value).__name__} cannot be kept ({type(error).__name__})")


# ---- one walk through a value -------------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    path: str
    packs: Mapping[type, Callable[[Any, _Walk], Any]]
    trail: list[object] = field(default_factory=list)  # keys down to here; an error leaves it, and so names the place
    parts: int = 0
    retyped: list[tuple[str, type, type]] = field(default_factory=list)  # (place, user's type, type it is written as)

    def spend(self, parts: int) -> None:
        self.parts += parts
        if len(self.trail) > DEPTH_MAX:
            self.refuse(f"is nested deeper than {DEPTH_MAX} levels, or contains itself")
        if self.parts > PARTS_MAX:
            self.trail.clear()  # the whole is too large, not the part where we noticed
            self.refuse(f"holds more than {PARTS_MAX:,} values")

    def place(self) -> str:
        return (self.path + "".join(map(_crumb, self.trail)))[:PLACE_CHARS_MAX]

    def refuse(self, what: str, *, cure: str = "pass an id or plain data instead") -> NoReturn:
        raise NotStorable(f"{self.place()} {what}", path=self.place(), hint=cure)


def _crumb(key: object) -> str:
    if type(key) is str and key.isidentifier():
        return f".{key}"
    try:
        return "{}" if key is ... else f"[{key!r:.40}]"
    except Exception:  # a user's key, a user's repr()
        return f"[{type(key).__name__}]"


def _written(value: object, walk: _Walk) -> str:
    """The text of a value. Reading it runs users' code: whatever that raises is a refusal that names the place."""
    try:
        return _dump(_pack(value, walk))
    except NotStorable:
        raise
    except Exception as error:
        walk.refuse(f"cannot be written down: reading it raised {type(error).__name__}")


def _pack(value: object, walk: _Walk) -> Any:
    """The value as JSON data with tags."""
    pack = walk.packs.get(type(value))
    if pack is not None:
        return pack(value, walk)
    plain = _reduce(value, walk)
    walk.retyped.append((walk.place(), type(value), type(plain)))
    return _pack(plain, walk)


def _reduce(value: Any, walk: _Walk) -> Any:
    """The plain value that stands for one of a user's type."""
    kind = type(value)
    # Only the class is asked, never the instance: mocks and proxies lie about their ``__class__``.
    if issubclass(kind, Enum):
        return value._value_
    if hasattr(kind, "__pydantic_root_model__"):
        # Not model_dump(): it runs the user's serializers, and dumps what is inside before we see its type.
        known = {name: item for name, item in vars(value).items() if name in kind.model_fields}
        return value.root if kind.__pydantic_root_model__ else known | (value.model_extra or {})
    if is_dataclass(kind):
        return {one.name: getattr(value, one.name) for one in fields(kind)}
    if any(base.__module__ == "pydantic.networks" for base in kind.__mro__):
        return str(value)  # HttpUrl and its kin
    base = next((base for base in kind.__mro__ if base in _PLAIN), None)
    if base is None:
        walk.refuse(f"of type {kind.__name__} cannot be written down")
    plain = _PLAIN[base](value)
    # A subclass may know more than its base: pandas' Timestamp has nanoseconds.
    if base in _LEAVES and plain != value:
        walk.refuse(f"of type {kind.__name__} cannot be written down as {base.__name__}")
    return plain


def _pack_list(value: list[object] | tuple[object, ...], walk: _Walk) -> list[Any]:
    walk.spend(len(value))
    packed = []
    for index, item in enumerate(value):
        walk.trail.append(index)
        packed.append(_pack(item, walk))
        walk.trail.pop()
    return packed


def _pack_set(value: set[object] | frozenset[object], walk: _Walk) -> list[Any]:
    walk.spend(len(value))
    walk.trail.append(...)  # somewhere in it: a set has no order to count by
    packed = {_dump(item): item for item in [_pack(item, walk) for item in value]}
    walk.trail.pop()
    return [packed[text] for text in sorted(packed)]  # in no order that depends on the hash seed


def _pack_dict(value: dict[object, object], walk: _Walk) -> Any:
    walk.spend(len(value))
    is_canonical = walk.packs is _MEANINGS
    packed: dict[Any, tuple[Any, Any]] = {}
    for key, item in value.items():
        walk.trail.append(key)
        name = _pack(key, walk)
        # What is read back must be a key again, and another one than the rest: Enum members are stored as values.
        mark = _dump(name) if is_canonical else name if type(name) is str else _parse(_dump(name))
        if mark in packed:
            walk.refuse("is a key that is written like another one", cure="keep one of the two")
        packed[mark] = (name, _pack(item, walk))
        walk.trail.pop()
    pairs = [packed[mark] for mark in (sorted(packed) if is_canonical else packed)]
    is_plain = all(type(name) is str for name, _ in pairs)
    return dict(pairs) if is_plain and not (len(pairs) == 1 and pairs[0][0].startswith("$")) else {"$map": pairs}


def _pack_str(value: str, walk: _Walk) -> Any:
    walk.spend(len(value) // PART_CHARS)
    if value.isascii():
        return value
    value = normalize("NFC", value) if (is_canonical := walk.packs is _MEANINGS) else value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        if is_canonical:
            walk.refuse("has a lone surrogate, which is no character", cure="decode the bytes before you pass them")
        # Not as JSON escapes: two of those, side by side, are read back as one character.
        return {"$str": value.encode("unicode_escape").decode("ascii")}
    return value


def _pack_int(value: int, _: _Walk) -> Any:
    if -SAFE_INT <= value <= SAFE_INT:
        return value
    return {"$int": str(value) if value.bit_length() <= _SHORT_INT_BITS else hex(value)}


def _pack_leaf(value: object, walk: _Walk, *, tag: str, write: Callable[[Any], str]) -> Any:
    return {tag: _pack_str(write(value), walk)}


def _mean_number(value: float | Decimal, walk: _Walk) -> Any:
    if type(value) is float:
        # A whole float is the int it equals (2.0**60 is 2**60); any other is its shortest decimal, as it was typed.
        value = int(value) if value.is_integer() else Decimal(repr(value))
    if type(value) is int and abs(value) < PLAIN_INT:
        return value
    if type(value) is int and value.bit_length() > INT_BITS_MAX:
        walk.refuse(f"is an int of more than {INT_BITS_MAX:,} bits", cure="pass it as bytes")
    number = Decimal(value)  # exact, whatever the context; and Python itself writes no int of more than 4,300 digits
    if not number.is_finite():
        walk.refuse(f"is {number}, which has no one meaning", cure="pass a finite number or None")
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - len(text)
    if not text or (power >= 0 and number.copy_abs() < PLAIN_INT):
        return int(number)
    return {"$number": f"{'-' * sign}{text}e{power}"}  # never the zeros of 1E+999999 written out


def _mean_moment(value: datetime | time) -> str:
    if value.utcoffset() is None:
        return value.isoformat()
    # Counted, not converted: the first and the last hours of the calendar do not exist in UTC.
    return str(((value if isinstance(value, datetime) else datetime.combine(_EPOCH, value)) - _EPOCH) // _TICK)


def _read_set(items: list[Any], kind: type = set) -> Any:
    try:
        return kind(items)
    except TypeError:  # frozen dataclasses, written as dicts; set[Receipt] validates from a list
        return items


# For each type: its tag, how it is written, how it is read.
_LEAVES: Final[dict[type, tuple[str, Callable[[Any], str], Callable[[Any], Any]]]] = {
    Decimal: ("$decimal", Decimal.__str__, Decimal),
    datetime: ("$datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("$date", date.isoformat, date.fromisoformat),
    time: ("$time", time.isoformat, time.fromisoformat),
    timedelta: ("$timedelta_us", lambda value: str(value // _TICK), lambda text: int(text) * _TICK),
    UUID: ("$uuid", UUID.__str__, UUID),
    bytes: ("$bytes", lambda value: b64encode(value).decode("ascii"), b64decode),
    bytearray: ("$bytearray", lambda value: b64encode(value).decode("ascii"), lambda text: bytearray(b64decode(text))),
    type(Path()): ("$path", str, Path),
    PurePosixPath: ("$posixpath", str, PurePosixPath),
    PureWindowsPath: ("$windowspath", str, PureWindowsPath),
}
_PLAIN: Final[dict[type, Callable[[Any], Any]]] = {  # what stands for an instance of a subclass
    **{kind: partial(lambda leaf, value: leaf[2](leaf[1](value)), leaf) for kind, leaf in _LEAVES.items()},
    **{kind: kind for kind in (list, tuple, dict, set, frozenset)},
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    memoryview: bytes,
    MappingProxyType: dict,
}
_PACKS: Final[dict[type, Callable[[Any, _Walk], Any]]] = {
    **dict.fromkeys((bool, type(None)), lambda value, _: value),
    str: _pack_str,
    int: _pack_int,
    float: lambda value, _: value if isfinite(value) else {"$float": repr(value)},
    list: _pack_list,
    dict: _pack_dict,
    tuple: lambda value, walk: {"$tuple": _pack_list(value, walk)},
    set: lambda value, walk: {"$set": _pack_set(value, walk)},
    frozenset: lambda value, walk: {"$frozenset": _pack_set(value, walk)},
    Secret: lambda value, _: {"$secret": value.packed},
    **{kind: partial(_pack_leaf, tag=tag, write=write) for kind, (tag, write, _) in _LEAVES.items()},
}
_MEANINGS: Final[dict[type, Callable[[Any, _Walk], Any]]] = {
    **_PACKS,
    **dict.fromkeys((int, float, Decimal), _mean_number),
    **dict.fromkeys((PurePosixPath, PureWindowsPath), _PACKS[type(Path())]),
    tuple: _pack_list,
    frozenset: _PACKS[set],
    bytearray: _PACKS[bytes],
    Secret: lambda value, _: {"$secret": value.commitment},
    **{kind: partial(_pack_leaf, tag=f"${kind.__name__}", write=_mean_moment) for kind in (datetime, time)},
}
_READS: Final[dict[str, Callable[[Any], Any]]] = {
    **{tag: read for tag, _, read in _LEAVES.values()},
    "$map": dict,
    "$secret": Secret.read,
    "$str": lambda text: text.encode("ascii").decode("unicode_escape"),
    "$int": partial(int, base=0),
    "$float": float,
    "$tuple": tuple,
    "$set": _read_set,
    "$frozenset": partial(_read_set, kind=frozenset),
}


def _revive(found: dict[str, Any]) -> object:
    tag = next(iter(found), "") if len(found) == 1 else ""
    return _READS[tag](found[tag]) if tag.startswith("$") else found


_dump: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_ADAPTERS: Final[dict[int, tuple[object, Any]]] = {}  # the annotation is kept, so that its id stays its own
_parse: Final = json.JSONDecoder(object_hook=_revive).decode


def _read(text: str) -> Any:
    if text.startswith(SEALED):
        raise LedgerSealed(f"a stored value is encrypted, with key {text.split(':')[1]}")
    try:
        return _parse(text)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise LedgerCorrupt(f"a stored value cannot be read: {error!r}", hint="was a newer amends here?") from error


def _adapter(annotation: Any) -> Any:
    # By identity: some annotations have no hash, and A | B equals B | A, which validates otherwise.
    known = _ADAPTERS.get(id(annotation))
    if known is None:
        from pydantic import TypeAdapter  # here: it takes longer to import than all of amends

        if len(_ADAPTERS) >= ADAPTERS_MAX:
            _ADAPTERS.clear()
        try:
            known = (annotation, TypeAdapter(annotation))
        except Exception:  # pydantic has no schema for it: what comes back is plain data, and said to be
            known = (annotation, TypeAdapter(Any))
        _ADAPTERS[id(annotation)] = known
    return known[1]


def _loss(value: object, seen: object, *, text: str, retyped: list[tuple[str, type, type]]) -> str | None:
    """What a replay does not get of a value that was written down."""
    if not retyped:
        return None
    seen_text = _written(seen, walk := _Walk("result", _PACKS))
    had, kept = ({(place, kind) for place, kind, _ in one} for one in (retyped, walk.retyped))
    for place, was, plain in retyped:
        if (place, was) not in kept:
            return f"{place} came back as {dict(kept - had).get(place, plain).__name__}, was {was.__name__}"
    return None if seen_text == text or seen == value else f"{type(value).__name__} came back changed by its validators"
