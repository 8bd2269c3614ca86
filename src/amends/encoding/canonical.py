"""Write values as JSON text: one text per meaning for keys, and a lossless text for the ledger.

``canonical`` ignores spelling and is never read back; ``encode`` loses nothing, and ``payloads`` reads it. In both an
Enum is its value, a dataclass or model the dict of its fields, and a named tuple a tuple. What JSON has no type for is
an object with one key that starts with ``$``; a user's own dict of that form is written as
``{"$map": [[key, value], ..]}``, so that nothing a user sends can be taken for a tag.

With a ``Shape`` (what an annotation says about each place of a value) the class is written where the annotation leaves
it open: ``{"$class": ["Employee", {"id": 7}]}``. Where it names one class, nothing is added. A model with unset fields
is ``{"$unset": [["email"], {"name": "x", "email": null}]}`` in the ledger, because a tool that changes only what was
set (``model_dump(exclude_unset=True)``) must get the same in every process. Keys ignore it.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from hashlib import sha256
from json.encoder import encode_basestring
from math import isfinite
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import MappingProxyType, NoneType
from typing import Any, Final, NoReturn
from unicodedata import normalize
from uuid import UUID

from amends.encoding.annotations import BUILT_IN, PARTS_MAX, SPELLINGS, Shape, Tagged
from amends.encoding.dataclass import dataclass, field
from amends.encoding.secret import Secret
from amends.errors import NotStorable, TooLarge

PAYLOAD_BYTES_MAX: Final = 1 << 20
"""The default of the setting ``payload_bytes_max``."""
DEPTH_MAX: Final = 100
PART_CHARS: Final = 64  # a long text counts as one value per so many characters
INT_BITS_MAX: Final = 1 << 18  # Python writes an int in quadratic time: 0.1 s for this one, 15 s for one of 400 kB
PLACE_CHARS_MAX: Final = 120
SAFE_INT: Final = (1 << 53) - 1
"""JSON readers other than Python round beyond it."""
PLAIN_INT: Final = 10**32
"""From here on a whole number is written as digits and a power, never with all its zeros."""
CLASS: Final = "$class"
CLASS_MARK: Final = '{"$class":'
UNSET: Final = "$unset"
UNSET_MARK: Final = '{"$unset":'
_SHORT_INT_BITS: Final = 2048  # Python may refuse to read longer ones in decimal
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TICK: Final = timedelta(microseconds=1)


# ---- Canonical text, stored text, and what differs


def canonical(value: object, *, path: str = "args", shape: Shape | None = None) -> str:
    """Return one text for one meaning: equal values give the same text whatever their spelling.

    With a shape, raise ``NotStorable`` for a class that it does not allow; without one, write every class as plain
    data. ``path``: how errors name the value.
    """
    return written(value, Walk(path, MEANINGS, shape=shape, strict=shape is not None))


def encode(value: object, *, path: str, shape: Shape | None = None) -> str:
    """Return the stored text of a value, which ``decode`` reads back as an equal value of the same built-in types.

    With a shape, raise ``NotStorable`` for a class that it does not allow; without one, write every class as plain
    data. ``path``: how errors name the value.
    """
    return written(value, Walk(path, PACKS, shape=shape, strict=shape is not None))


def diff(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the arguments that differ in meaning, as (recorded, given); a missing one is None."""
    same = {n for n in recorded if n in given and _is_same(recorded[n], given[n])}
    return {n: (recorded.get(n), given.get(n)) for n in [*recorded, *given] if n not in same}


def _is_same(one: object, other: object) -> bool:
    texts = [canonical(value) for value in (one, other)]
    if texts[0] != texts[1]:
        return False
    # A redacted value has lost its class, so only whole values are also compared by their classes.
    return '{"$secret":' in texts[0] or _classes_in(one) == _classes_in(other)


def _classes_in(value: object) -> list[tuple[str, str]]:
    written(value, walk := Walk("", MEANINGS))
    return sorted((place, kind.__name__) for place, kind, _ in walk.retyped)


def check_size(text: str, *, path: str, limit: int) -> None:
    """Raise ``TooLarge`` when the text takes more than ``limit`` bytes."""
    if len(text) * 4 <= limit:  # no character takes more bytes
        return
    size = len(text.encode("utf-8"))
    if size > limit:
        raise TooLarge(f"{path} of {size:,} bytes is larger than {limit:,}", path=path, size=size, limit=limit)


# ---- Digests

HEADS_MAX: Final = 1024


def digest(*parts: str | bytes | int | None) -> str:
    """Return the SHA-256 over the parts, each with its type and length, so that different inputs never collide."""
    return sha256(b"".join([_part(part) for part in parts])).hexdigest()


def _part(part: str | bytes | int | None) -> bytes:
    if type(part) is str and part.isascii():  # nearly all are
        return f"str{len(part)}:{part}".encode("ascii")
    if type(part) is int:
        text = str(part)
        return f"int{len(text)}:{text}".encode("ascii")
    data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
    kind = next(kind for kind in (str, bytes, bool, int, type(None)) if isinstance(part, kind))
    return f"{kind.__name__}{len(data)}:".encode() + data


@lru_cache(maxsize=HEADS_MAX)
def head(*parts: str) -> bytes:
    """Return the first parts of many digests, as ``digest_of`` takes them; cached."""
    return b"".join([_part(part) for part in parts])


def digest_of(first: bytes, *rest: str) -> str:
    """Return ``digest`` over the parts of ``head`` and these."""
    data = first
    for part in rest:
        data += f"str{len(part)}:{part}".encode("ascii") if part.isascii() else _part(part)
    return sha256(data).hexdigest()


# ---- Plain data in one pass

# Nearly every argument and result is plain JSON data, which is written here at a fraction of the price. The texts are
# those of the walk below. Everything else (a tuple, a number that JSON readers would round, deep or long values) gives
# None here and is left to the walk, so that only one place refuses values.

CHARS_MAX: Final = 1 << 16
"""Longer values are left to the walk, which counts their parts."""
LEVELS_MAX: Final = 8
quoted: Final = encode_basestring
_WORDS: Final = {None: "null", True: "true", False: "false"}


def plain_texts(value: Any, levels: int = LEVELS_MAX) -> tuple[str, str] | None:
    """Return what ``encode`` and ``canonical`` write for plain data; None for anything else."""
    kind = type(value)
    if kind is str:
        if value.isascii() and len(value) <= CHARS_MAX:
            text = quoted(value)
            return text, text
        return (quoted(value), quoted(normalize("NFC", value))) if _is_text(value) else None
    if kind is float:
        return float_texts(value)
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
        if type(item) is str and item.isascii():  # most are; a third of the cost of the recursive call
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
    meant.sort()  # sorts by name: each written name ends with a quote, so none is the beginning of another
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


def float_texts(value: float) -> tuple[str, str] | None:
    """Return what ``plain_texts`` does for a number."""
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
    """Return what ``encode`` writes for plain data and what ``decode`` would read from it; None for anything else."""
    kind = type(value)
    if kind is dict:
        return _dict_copy(value, levels) if levels else None
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
    return _list_copy(value, levels) if kind is list else None


def _dict_copy(value: dict[Any, Any], levels: int) -> tuple[str, Any] | None:
    stored: list[str] = []
    copied: dict[str, Any] = {}
    length = 0
    for name, item in value.items():
        if type(name) is not str or not name.isascii():
            return None
        kind = type(item)
        if kind is bool or item is None:  # these two are most: the recursive call takes twice as long
            text, copied[name] = f"{quoted(name)}:{_WORDS[item]}", item
        elif kind is str and item.isascii():
            text, copied[name] = f"{quoted(name)}:{quoted(item)}", item
        else:
            kept = plain_copy(item, levels - 1)
            if kept is None:
                return None
            text, copied[name] = f"{quoted(name)}:{kept[0]}", kept[1]
        stored.append(text)
        length += len(text)
        if length > CHARS_MAX:
            return None
    if len(stored) == 1:
        return None if _is_tag(value) else (f"{{{stored[0]}}}", copied)
    return f"{{{','.join(stored)}}}", copied


def flat_copy(value: dict[Any, Any], kinds: Collection[type] | None) -> tuple[str, Any] | None:
    """Return what ``plain_copy`` does for a dict of single values of these types, in a third of the time; None for anything else.

    ``kinds``: None: any type. An empty dict is left to ``plain_copy`` as well: no value in it shows its type.
    """
    parts: list[str] = []
    for name, item in value.items():
        kind = type(item)
        if type(name) is not str or not name.isascii() or not (kinds is None or kind in kinds):
            return None
        if kind is bool or item is None:
            parts.append(f"{quoted(name)}:{_WORDS[item]}")
        elif kind is str and item.isascii():
            parts.append(f"{quoted(name)}:{quoted(item)}")
        elif kind is int and -SAFE_INT <= item <= SAFE_INT:
            parts.append(f"{quoted(name)}:{item}")
        else:
            return None
    text = f"{{{','.join(parts)}}}"
    if not parts or len(text) > CHARS_MAX or (len(parts) == 1 and text.startswith('{"$')):  # as ``_is_tag``
        return None
    return text, value.copy()


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
    """Return whether the text is short and has no lone surrogate, which is not a character."""
    if len(value) > CHARS_MAX:
        return False
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False


# ---- One walk through any value


class Fields(dict[Any, Any]):
    """The fields of an object of which a part is redacted: written as the object itself would be."""

    __slots__ = ("kind", "unset")

    def __init__(self, value: object, named: Mapping[Any, Any]) -> None:
        super().__init__(named)
        self.kind = type(value)
        self.unset = _unset_in(value)


@dataclass(slots=True)
class Walk:
    path: str
    packs: Mapping[type, Callable[[Any, Walk], Any]]
    trail: list[object] = field(default_factory=list)  # keys down to here; an error leaves it, and so names the place
    parts: int = 0
    retyped: list[tuple[str, type, type]] = field(default_factory=list)  # (place, user's type, type it is written as)
    shape: Shape | None = None
    """What the annotation says about the current place; None: nothing is known, and nothing is refused."""
    strict: bool = False
    """Whether to refuse a class that the shape does not allow. A result is never refused: its effect has happened."""

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


def written(value: object, walk: Walk) -> str:
    """Return the text of a value. Reading it runs users' code, whose errors become refusals that name the place."""
    try:
        return dump(pack_value(value, walk))
    except NotStorable:
        raise
    except Exception as error:
        walk.refuse(f"cannot be stored: reading it raised {type(error).__name__}")


def pack_value(value: object, walk: Walk) -> Any:
    """Return the value as JSON data with tags."""
    kind, shape = type(value), walk.shape
    pack = walk.packs.get(kind)
    if pack is not None:
        if walk.strict and shape is not None and shape.mistakes(value):
            wanted = " or ".join(member.name for member in shape.classes.values())
            walk.refuse(f"is a {kind.__name__}, but the annotation says {wanted}", cure=f"pass a {wanted}")
        return pack(value, walk)
    if shape is not None:
        return _pack_member(value, walk, shape)
    plain = reduced(value, walk)
    walk.retyped.append((walk.place(), kind, type(plain)))
    return pack_value(plain, walk)


def _pack_member(value: Any, walk: Walk, shape: Shape) -> Any:
    """Pack a value of a user's class, with the name of the class if the annotation leaves it open."""
    kind = value.kind if isinstance(value, Fields) else type(value)
    member = shape.classes.get(kind)
    if member is None and not walk.strict:
        member = shape.below(kind)  # the effect has happened: keep what was returned as well as can be
    if member is None:
        return _pack_other(value, walk, shape, kind=kind)
    is_part = isinstance(value, Fields)
    plain = value if is_part else reduced(value, walk)
    walk.retyped.append((walk.place(), kind, type(plain)))
    walk.shape = member.inner
    pack = _pack_dict if is_part else walk.packs.get(type(plain), pack_value)
    packed = pack(plain, walk)
    walk.shape = shape
    if member.kind == "model" and walk.packs is PACKS and (unset := value.unset if is_part else _unset_in(value)):
        packed = {UNSET: [unset, packed]}
    return {CLASS: [member.name, packed]} if shape.names(member) else packed


def _pack_other(value: Any, walk: Walk, shape: Shape, *, kind: type) -> Any:
    """Pack a value of a class that the annotation does not name: as a built-in type that it names, or refuse it."""
    plain = dict(value) if isinstance(value, Fields) else reduced(value, walk)
    base = next((base for base in kind.__mro__ if base in shape.types), None)
    if walk.strict and base is None and kind not in SPELLINGS:
        plain_cure = "pass an id or plain data instead"
        classes = _example(kind, shape)
        walk.refuse(
            f"is of class {kind.__name__}, which {shape.said}",
            cure=f"annotate it with every class that it may have ({classes}), or {plain_cure}"
            if walk.path.startswith("args")
            else plain_cure,
        )
    walk.retyped.append((walk.place(), kind, type(plain)))
    walk.shape = shape if walk.strict or base is not None else None
    packed = pack_value(plain, walk)
    walk.shape = shape
    return packed


def _example(kind: type, shape: Shape) -> str:
    return " | ".join(dict.fromkeys([*(member.name for member in shape.classes.values()), kind.__name__]))


def _unset_in(value: Any) -> list[str]:
    """Return the fields of a model that were not set and have their defaults."""
    kind: Any = type(value)
    if not hasattr(kind, "__pydantic_root_model__"):
        return []
    return [name for name in kind.model_fields if name not in value.__pydantic_fields_set__]


def reduced(value: Any, walk: Walk) -> Any:
    """Return the plain value that stands for a value of a user's type."""
    kind = type(value)
    # Only the class is inspected, never the instance: mocks and proxies lie about their ``__class__``.
    if issubclass(kind, Enum):
        return value._value_
    if hasattr(kind, "__pydantic_root_model__"):
        # Not model_dump(): it runs the user's serializers, and dumps nested values before their types can be seen.
        known = {name: item for name, item in vars(value).items() if name in kind.model_fields}
        return value.root if kind.__pydantic_root_model__ else known | (value.model_extra or {})
    if is_dataclass(kind):
        return {one.name: getattr(value, one.name) for one in fields(kind)}
    if any(base.__module__ == "pydantic.networks" for base in kind.__mro__):
        return str(value)  # HttpUrl and similar types
    base = next((base for base in kind.__mro__ if base in PLAIN), None)
    if base is None:
        walk.refuse(f"of type {kind.__name__} cannot be stored")
    plain = PLAIN[base](value)
    # A subclass may hold more than its base: pandas' Timestamp has nanoseconds.
    if base in LEAVES and plain != value:
        walk.refuse(f"of type {kind.__name__} cannot be stored as {base.__name__}")
    return plain


# ---- How each type is written


def _pack_list(value: list[object] | tuple[object, ...], walk: Walk) -> list[Any]:
    walk.spend(len(value))
    packed = []
    shape = walk.shape
    for index, item in enumerate(value):
        walk.trail.append(index)
        walk.shape = None if shape is None else shape.at(index)
        packed.append(pack_value(item, walk))
        walk.trail.pop()
    walk.shape = shape
    return packed


def _pack_tagged(value: Tagged, walk: Walk) -> Any:
    name, data = value[CLASS]
    shape, walk.shape = walk.shape, None
    packed = pack_value(data, walk)
    walk.shape = shape
    return {CLASS: [name, packed]}


def _pack_set(value: set[object] | frozenset[object], walk: Walk) -> list[Any]:
    walk.spend(len(value))
    walk.trail.append(...)  # a set has no order to count by
    shape = walk.shape
    walk.shape = None if shape is None else shape.item
    packed = {dump(item): item for item in [pack_value(item, walk) for item in value]}
    walk.shape = shape
    walk.trail.pop()
    return [packed[text] for text in sorted(packed)]  # the order must not depend on the hash seed


def _pack_dict(value: dict[object, object], walk: Walk) -> Any:
    walk.spend(len(value))
    is_canonical = walk.packs is MEANINGS
    packed: dict[Any, tuple[Any, Any]] = {}
    shape = walk.shape
    for key, item in value.items():
        walk.trail.append(key)
        walk.shape = None if shape is None else shape.key
        name = pack_value(key, walk)
        # Each key must be read back as a key that differs from the others: Enum members are stored as values.
        is_named = type(name) is dict and CLASS in name
        mark = dump(name) if is_canonical or is_named else name if type(name) is str else parse(dump(name))
        if mark in packed:
            walk.refuse("is a key with the same text as another key", cure="keep one of the two")
        walk.shape = None if shape is None else shape.value(key)
        packed[mark] = (name, pack_value(item, walk))
        walk.trail.pop()
    walk.shape = shape
    pairs = [packed[mark] for mark in (sorted(packed) if is_canonical else packed)]
    is_plain = all(type(name) is str for name, _ in pairs)
    return dict(pairs) if is_plain and not (len(pairs) == 1 and pairs[0][0].startswith("$")) else {"$map": pairs}


def _pack_str(value: str, walk: Walk) -> Any:
    walk.spend(len(value) // PART_CHARS)
    if value.isascii():
        return value
    value = normalize("NFC", value) if (is_canonical := walk.packs is MEANINGS) else value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        if is_canonical:
            walk.refuse("has a lone surrogate, which is not a character", cure="decode the bytes before you pass them")
        # Not as JSON escapes: two adjacent ones are read back as one character.
        return {"$str": value.encode("unicode_escape").decode("ascii")}
    return value


def _pack_int(value: int, _: Walk) -> Any:
    if -SAFE_INT <= value <= SAFE_INT:
        return value
    return {"$int": str(value) if value.bit_length() <= _SHORT_INT_BITS else hex(value)}


def _pack_leaf(value: object, walk: Walk, *, tag: str, write: Callable[[Any], str]) -> Any:
    return {tag: _pack_str(write(value), walk)}


def _mean_number(value: float | Decimal, walk: Walk) -> Any:
    if type(value) is float:
        # An integral float is the int it equals (2.0**60 is 2**60); any other is its shortest decimal, as typed.
        value = int(value) if value.is_integer() else Decimal(repr(value))
    if type(value) is int and abs(value) < PLAIN_INT:
        return value
    if type(value) is int and value.bit_length() > INT_BITS_MAX:
        walk.refuse(f"is an int of more than {INT_BITS_MAX:,} bits", cure="pass it as bytes")
    number = Decimal(value)  # exact in any context; and Python itself writes no int of more than 4,300 digits
    if not number.is_finite():
        walk.refuse(f"is {number}, which has no unique meaning", cure="pass a finite number or None")
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - len(text)
    if not text or (power >= 0 and number.copy_abs() < PLAIN_INT):
        return int(number)
    return {"$number": f"{'-' * sign}{text}e{power}"}  # so the zeros of 1E+999999 are never written out


def _mean_moment(value: datetime | time) -> str:
    if value.utcoffset() is None:
        return value.isoformat()
    # Subtracted, not converted: the first and the last hours of the calendar do not exist in UTC.
    return str(((value if isinstance(value, datetime) else datetime.combine(_EPOCH, value)) - _EPOCH) // _TICK)


def _read_set(items: list[Any], kind: type = set) -> Any:
    try:
        return kind(items)
    except TypeError:  # frozen dataclasses, written as dicts; set[Receipt] validates from a list
        return items


LEAVES: Final[dict[type, tuple[str, Callable[[Any], str], Callable[[Any], Any]]]] = {
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
PLAIN: Final[dict[type, Callable[[Any], Any]]] = {  # what stands for an instance of a subclass
    **{kind: partial(lambda leaf, value: leaf[2](leaf[1](value)), leaf) for kind, leaf in LEAVES.items()},
    **{kind: kind for kind in (list, tuple, dict, set, frozenset)},
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    memoryview: bytes,
    MappingProxyType: dict,
}
CONSTANTS: Final = frozenset({*LEAVES, str, int, float, bool, NoneType} - {bytearray})
"""The immutable types."""
PACKS: Final[dict[type, Callable[[Any, Walk], Any]]] = {
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
    Tagged: _pack_tagged,
    **{kind: partial(_pack_leaf, tag=tag, write=write) for kind, (tag, write, _) in LEAVES.items()},
}
MEANINGS: Final[dict[type, Callable[[Any, Walk], Any]]] = {
    **PACKS,
    **dict.fromkeys((int, float, Decimal), _mean_number),
    **dict.fromkeys((PurePosixPath, PureWindowsPath), PACKS[type(Path())]),
    tuple: _pack_list,
    frozenset: PACKS[set],
    bytearray: PACKS[bytes],
    Secret: lambda value, _: {"$secret": value.commitment},
    **{kind: partial(_pack_leaf, tag=f"${kind.__name__}", write=_mean_moment) for kind in (datetime, time)},
}
assert PACKS.keys() == BUILT_IN, "annotations know exactly the types that are written as themselves"
READS: Final[dict[str, Callable[[Any], Any]]] = {
    **{tag: read for tag, _, read in LEAVES.values()},
    CLASS: lambda pair: Tagged({CLASS: pair}),
    UNSET: lambda pair: pair[1],
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
    return READS[tag](found[tag]) if tag.startswith("$") else found


dump: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_plain_decoder: Final[Any] = json.JSONDecoder()
_parse_tagged: Final = json.JSONDecoder(object_hook=_revive).decode


def parse(text: str) -> Any:
    """Read a stored text; one without a dollar sign has no tags."""
    if "$" in text or "\\u" in text:
        return _parse_tagged(text)
    try:
        value, end = _plain_decoder.scan_once(text, 0)
    except StopIteration:  # not what amends writes; the decoder says what is wrong with it
        value, end = None, -1
    return value if end == len(text) else _plain_decoder.decode(text)
