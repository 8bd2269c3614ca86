"""What is written down: one text per meaning for keys, and a type-faithful text for the ledger.

Both are JSON. What JSON has no word for is an object with one key that starts with ``$``; a user's own dict of that
shape is written as ``{"$map": [[key, value], ..]}``, so that nothing a user sends can be taken for a tag.
``canonical`` forgets spelling and is never read back; ``encode`` forgets nothing and is. In both an Enum is its
value, a dataclass or model the dict of its fields, a named tuple a tuple.

With a ``Shape`` (what an annotation says about each place of a value) the class is written down where the annotation
leaves it open: ``{"$class": ["Employee", {"id": 7}]}``. Where it names one class, nothing is added. A model of which
some fields were not set is ``{"$unset": [["email"], {"name": "x", "email": null}]}`` in the ledger: a tool that changes
only what was set (``model_dump(exclude_unset=True)``) must get the same in every process. Keys do not know it.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Collection as AbstractCollection
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property, lru_cache, partial
from hashlib import sha256
from inspect import Signature
from json.encoder import encode_basestring
from math import isfinite
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, ForwardRef, Literal, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin
from unicodedata import normalize
from uuid import UUID

from amends.encoding.dataclass import dataclass, field
from amends.encoding.secret import SEALED, Secret
from amends.errors import LedgerCorrupt, LedgerSealed, NotStorable, TooLarge

# ---- Plain data written down in one pass: what nearly every argument and result is, at a fraction of the

# ``canonical`` has the rules and writes everything; here are the same texts for what JSON has words for. Whatever
# is not that (a tuple, a number that JSON readers would round, what is nested deeply or long) is None here, and so is
# left to the rules: there is one place that says no.


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


# ---- What is written down: one text per meaning for keys, and a type-faithful text for the ledger

# Both are JSON. What JSON has no word for is an object with one key that starts with ``$``; a user's own dict of that
# shape is written as ``{"$map": [[key, value], ..]}``, so that nothing a user sends can be taken for a tag.
# ``canonical`` forgets spelling and is never read back; ``encode`` forgets nothing and is. In both an Enum is its
# value, a dataclass or model the dict of its fields, a named tuple a tuple.
#
# With a ``Shape`` (what an annotation says about each place of a value) the class is written down where the annotation
# leaves it open: ``{"$class": ["Employee", {"id": 7}]}``. Where it names one class, nothing is added. A model of which
# some fields were not set is ``{"$unset": [["email"], {"name": "x", "email": null}]}`` in the ledger: a tool that changes
# only what was set (``model_dump(exclude_unset=True)``) must get the same in every process. Keys do not know it.


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


def canonical(value: object, *, path: str = "args", shape: Shape | None = None) -> str:
    """One text for one meaning: equal values give the same text whatever their spelling. Raises ``NotStorable``.

    With a shape a class that the shape does not allow is refused; without one every class is written as plain data.
    """
    return _written(value, _Walk(path, _MEANINGS, shape=shape, strict=shape is not None))


def diff(recorded: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The arguments that do not mean the same, as (recorded, given); a missing one shows as None."""
    same = {n for n in recorded if n in given and _is_same(recorded[n], given[n])}
    return {n: (recorded.get(n), given.get(n)) for n in [*recorded, *given] if n not in same}


def _is_same(one: object, other: object) -> bool:
    texts = [canonical(value) for value in (one, other)]
    if texts[0] != texts[1]:
        return False
    # What is hidden has no class any more: only whole values are compared by their classes too.
    return '{"$secret":' in texts[0] or _classes_in(one) == _classes_in(other)


def _classes_in(value: object) -> list[tuple[str, str]]:
    _written(value, walk := _Walk("", _MEANINGS))
    return sorted((place, kind.__name__) for place, kind, _ in walk.retyped)


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


def encode(value: object, *, path: str, shape: Shape | None = None) -> str:
    """The stored text of a value; decode() gives back an equal one of the same built-in types. Raises ``NotStorable``.

    With a shape a class that the shape does not allow is refused; without one every class is written as plain data.
    """
    return _written(value, _Walk(path, _PACKS, shape=shape, strict=shape is not None))


def decode(text: str, annotation: object = Any) -> Any:
    """The value of a stored text, as the annotation says; as it is written where the annotation does not fit."""
    return _shaped(_read(text), text, annotation)


def _shaped(value: Any, text: str, annotation: object) -> Any:
    is_missing = annotation is Any or annotation is Signature.empty or isinstance(annotation, str)
    if is_missing or (annotation is type(value) and annotation in _PACKS):
        return value
    # Before Python 3.12 pydantic has no schema for a TypedDict of ``typing``: its classes are known all the same.
    is_classed = CLASS_MARK in text or not _has_schema(annotation)
    if is_classed or UNSET_MARK in text:
        try:
            return revive(text, shape_of(annotation))
        except Unlike:
            if is_classed:
                return value
    try:
        # By field name: that is how models are written. Lax: a strict model would refuse its own plain data.
        shaped = adapter(annotation).validate_python(value, strict=False, by_alias=True, by_name=True)
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
        if CLASS_MARK in text:
            revive(text, shape_of(annotation))
            return False
        adapter(annotation).validate_python(_read(text), strict=False, by_alias=True, by_name=True)
    except LedgerCorrupt:
        raise
    except Exception:
        return True
    return False


def _names_own_class(annotation: object) -> bool:
    if isinstance(annotation, type):
        return annotation not in _PACKS and annotation not in _PLAIN and annotation.__module__ != "builtins"
    return any(_names_own_class(part) for part in get_args(annotation))


@dataclass(frozen=True, slots=True)
class Written:
    """Arguments as they are written down, and made anew from that as often as they are needed."""

    args: Mapping[str, Any]
    text: str
    meaning: str
    copy: Callable[[], Mapping[str, Any]] | None
    """None: nothing in them can be changed, so one copy serves all."""


def write_args(args: Mapping[str, Any], shape: Shape, plain: tuple[str, str] | None = None) -> Written:
    """Write arguments down. What is returned has nothing in common with the caller's objects.

    ``plain``: what ``plain_texts`` has given for them. Raises ``NotStorable`` for a class that the annotations do not
    name, and for a value that does not come back as it was.
    """
    plain = plain or plain_texts(args)
    if plain is not None:
        for value in args.values():
            if type(value) is list or type(value) is dict:
                copy = partial(_read, plain[0])
                return Written(copy(), plain[0], plain[1], copy)
        return Written(args, plain[0], plain[1], None)
    walk = _Walk("args", _PACKS, shape=shape, strict=True)
    text = _written(dict(args), walk)
    if len(text) > ARGS_BYTES_MAX:
        check_size(text, path="args", limit=ARGS_BYTES_MAX)
    if all(type(value) in CONSTANTS for value in args.values()):
        return Written(args, text, canonical(args, shape=shape), None)
    copy = partial(_written_args, text, shape)
    kept = copy()
    if walk.retyped and encode(kept, path="args", shape=shape) != text:
        _refuse_changed(args, shape)
    return Written(kept, text, canonical(kept, shape=shape), copy)


def _written_args(text: str, shape: Shape) -> Mapping[str, Any]:
    found, unlike = revive_each(text, shape, exact=False)
    for name in sorted(unlike):
        _refuse_changed({name: None}, shape)
    return found


def _refuse_changed(args: Mapping[str, Any], shape: Shape) -> NoReturn:
    changed = [name for name, value in args.items() if not _comes_back(name, value, shape)]
    path = f"args.{changed[0]}" if changed else "args"
    raise NotStorable(
        f"{path} does not come back as it was from what is written down",
        path=path,
        hint="use a dataclass or a pydantic model whose fields say all of it, or pass an id or plain data instead",
    )


def _comes_back(name: str, value: object, shape: Shape) -> bool:
    if value is None:
        return False
    inner = shape.value(name)
    try:
        text = encode(value, path=name, shape=inner)
        return encode(revive(text, inner, exact=False), path=name, shape=inner) == text
    except (NotStorable, Unlike):
        return False


def store_result(value: object, annotation: object = Any) -> Stored:
    """What the ledger keeps of a result. Never raises: what cannot be written down is a stated loss."""
    return faithful(value, annotation)[1]


def load_result(stored_text: str | None, annotation: object = Any) -> Any:
    """The result as every replay sees it; None where it could not be kept."""
    return None if stored_text is None else decode(stored_text, annotation)


def faithful(value: Any, annotation: object = Any) -> tuple[Any, Stored]:
    """The value as every replay will see it, and what is stored; the original where nothing could be. Never raises."""
    if type(value) is dict and len(value) == 1 and CLASS in value:
        value = _said_class(value, shape_of(annotation))
    plain = plain_copy(value)
    if plain is not None:
        return _shaped(plain[1], plain[0], annotation), Stored(plain[0], None)
    walk = _Walk("result", _PACKS, shape=shape_of(annotation))
    try:
        text = _written(value, walk)
        check_size(text, path="result", limit=RESULT_BYTES_MAX)
        seen = decode(text, annotation)
        return seen, Stored(text, _loss(value, seen, text=text, retyped=walk.retyped, annotation=annotation))
    except (NotStorable, TooLarge) as error:
        return value, Stored(None, str(error))
    except Exception as error:
        return value, Stored(None, f"result of type {type(value).__name__} cannot be kept ({type(error).__name__})")


CLASS: Final = "$class"
CLASS_MARK: Final = '{"$class":'
UNSET: Final = "$unset"
UNSET_MARK: Final = '{"$unset":'


class Tagged(dict[str, Any]):
    """A value of a class that this process does not know: ``{"$class": [name, data]}``, written down as it was read."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # it may be a key of a dict; nobody changes it
        return hash(repr(self))


class Fields(dict[Any, Any]):
    """The fields of an object of which something is hidden: written down as the object itself would be."""

    __slots__ = ("kind", "unset")

    def __init__(self, value: object, named: Mapping[Any, Any]) -> None:
        super().__init__(named)
        self.kind = type(value)
        self.unset = _unset_in(value)


def _said_class(value: dict[Any, Any], shape: Shape) -> dict[Any, Any]:
    """A result that a person told in plain data, with the name of its class."""
    pair = value[CLASS]
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
    return Tagged(value) if is_pair and shape.named(pair[0]) is not None else value


# ---- one walk through a value -------------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    path: str
    packs: Mapping[type, Callable[[Any, _Walk], Any]]
    trail: list[object] = field(default_factory=list)  # keys down to here; an error leaves it, and so names the place
    parts: int = 0
    retyped: list[tuple[str, type, type]] = field(default_factory=list)  # (place, user's type, type it is written as)
    shape: Shape | None = None
    """What the annotation says about the place where the walk is; None: nothing is known, and nothing is refused."""
    strict: bool = False
    """Refuse a class that the shape does not allow. A result is never refused: its effect has happened."""

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
    kind, shape = type(value), walk.shape
    pack = walk.packs.get(kind)
    if pack is not None:
        if walk.strict and shape is not None and shape.mistakes(value):
            wanted = " or ".join(member.name for member in shape.classes.values())
            walk.refuse(f"is a {kind.__name__} where the annotation says {wanted}", cure=f"pass a {wanted}")
        return pack(value, walk)
    if shape is not None:
        return _pack_member(value, walk, shape)
    plain = _reduce(value, walk)
    walk.retyped.append((walk.place(), kind, type(plain)))
    return _pack(plain, walk)


def _pack_member(value: Any, walk: _Walk, shape: Shape) -> Any:
    """A value of a user's class, with the name of the class where the annotation leaves that open."""
    kind = value.kind if isinstance(value, Fields) else type(value)
    member = shape.classes.get(kind)
    if member is None and not walk.strict:
        member = shape.below(kind)  # the effect has happened: keep what was returned as well as can be
    if member is None:
        return _pack_other(value, walk, shape, kind=kind)
    is_part = isinstance(value, Fields)
    plain = value if is_part else member.reduced(value, walk)
    walk.retyped.append((walk.place(), kind, type(plain)))
    walk.shape = member.inner
    pack = _pack_dict if is_part else walk.packs.get(type(plain), _pack)
    packed = pack(plain, walk)
    walk.shape = shape
    if member.kind == "model" and walk.packs is _PACKS and (unset := value.unset if is_part else _unset_in(value)):
        packed = {UNSET: [unset, packed]}
    return {CLASS: [member.name, packed]} if shape.names(member) else packed


def _pack_other(value: Any, walk: _Walk, shape: Shape, *, kind: type) -> Any:
    """A value of a class that the annotation does not name: as the built-in that it names, or not at all."""
    plain = dict(value) if isinstance(value, Fields) else _reduce(value, walk)
    base = next((base for base in kind.__mro__ if base in shape.types), None)
    if walk.strict and base is None and kind not in _SPELLINGS:
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
    packed = _pack(plain, walk)
    walk.shape = shape
    return packed


def _example(kind: type, shape: Shape) -> str:
    return " | ".join(dict.fromkeys([*(member.name for member in shape.classes.values()), kind.__name__]))


def _unset_in(value: Any) -> list[str]:
    """The fields of a model that nobody set: they have their defaults."""
    kind: Any = type(value)
    if not hasattr(kind, "__pydantic_root_model__"):
        return []
    return [name for name in kind.model_fields if name not in value.__pydantic_fields_set__]


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
    shape = walk.shape
    for index, item in enumerate(value):
        walk.trail.append(index)
        walk.shape = None if shape is None else shape.at(index)
        packed.append(_pack(item, walk))
        walk.trail.pop()
    walk.shape = shape
    return packed


def _pack_tagged(value: Tagged, walk: _Walk) -> Any:
    name, data = value[CLASS]
    shape, walk.shape = walk.shape, None
    packed = _pack(data, walk)
    walk.shape = shape
    return {CLASS: [name, packed]}


def _pack_set(value: set[object] | frozenset[object], walk: _Walk) -> list[Any]:
    walk.spend(len(value))
    walk.trail.append(...)  # somewhere in it: a set has no order to count by
    shape = walk.shape
    walk.shape = None if shape is None else shape.item
    packed = {_dump(item): item for item in [_pack(item, walk) for item in value]}
    walk.shape = shape
    walk.trail.pop()
    return [packed[text] for text in sorted(packed)]  # in no order that depends on the hash seed


def _pack_dict(value: dict[object, object], walk: _Walk) -> Any:
    walk.spend(len(value))
    is_canonical = walk.packs is _MEANINGS
    packed: dict[Any, tuple[Any, Any]] = {}
    shape = walk.shape
    for key, item in value.items():
        walk.trail.append(key)
        walk.shape = None if shape is None else shape.key
        name = _pack(key, walk)
        # What is read back must be a key again, and another one than the rest: Enum members are stored as values.
        is_named = type(name) is dict and CLASS in name
        mark = _dump(name) if is_canonical or is_named else name if type(name) is str else _parse(_dump(name))
        if mark in packed:
            walk.refuse("is a key that is written like another one", cure="keep one of the two")
        walk.shape = None if shape is None else shape.value(key)
        packed[mark] = (name, _pack(item, walk))
        walk.trail.pop()
    walk.shape = shape
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
CONSTANTS: Final = frozenset({*_LEAVES, str, int, float, bool, NoneType} - {bytearray})
"""Types of values that nobody can change."""
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
    Tagged: _pack_tagged,
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


def adapter(annotation: Any) -> Any:
    """Return pydantic's adapter for an annotation; one for anything where pydantic has no schema for it."""
    # By identity: some annotations have no hash, and A | B equals B | A, which validates otherwise.
    known = _ADAPTERS.get(id(annotation))
    if known is None:
        from pydantic import TypeAdapter  # here: it takes longer to import than all of amends

        if len(_ADAPTERS) >= ADAPTERS_MAX:
            _ADAPTERS.clear()
        try:
            known = (annotation, TypeAdapter(annotation))
        except Exception:
            known = (annotation, _anything())
        _ADAPTERS[id(annotation)] = known
    return known[1]


def _has_schema(annotation: Any) -> bool:
    """Whether pydantic can check values of this annotation."""
    return adapter(annotation) is not _anything()


@cache
def _anything() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Any)


def _loss(
    value: object, seen: object, *, text: str, retyped: list[tuple[str, type, type]], annotation: object
) -> str | None:
    """What a replay does not get of a value that was written down."""
    if not retyped:
        return None
    seen_text = _written(seen, walk := _Walk("result", _PACKS, shape=shape_of(annotation)))
    had, kept = ({(place, kind) for place, kind, _ in one} for one in (retyped, walk.retyped))
    for place, was, plain in retyped:
        if (place, was) not in kept:
            return f"{place} came back as {dict(kept - had).get(place, plain).__name__}, was {was.__name__}"
    return None if seen_text == text or seen == value else f"{type(value).__name__} came back changed by its validators"


# ---- what an annotation says about classes --------------------------------------------------

ANY_FORM: Final = "any"
ANNOTATION_DEPTH_MAX: Final = 64
PLACES_MAX: Final = 10_000
"""Places of one annotation that are looked at: a generic alias may contain itself without end."""


class Unlike(Exception):
    """A stored text is not of the shape that the annotation has now: another version of the tool wrote it."""


class ClassNames(dict[type, str]):
    """In ``Annotated``: the names under which these classes are written down, in everything below."""


class _Scope:
    """What an annotation is read with: names for classes, what its words mean, what its type variables stand for."""

    __slots__ = ("args", "names", "words")

    def __init__(
        self, names: Mapping[type, str], words: Mapping[str, Any], args: Mapping[Any, tuple[Any, _Scope]]
    ) -> None:
        self.names, self.words, self.args = names, words, args

    def inside(self, cls: type, args: Mapping[Any, tuple[Any, _Scope]]) -> _Scope:
        """The scope of what is written in the body of this class."""
        module = sys.modules.get(cls.__module__)
        words = {**self.words, **(vars(module) if module else {}), cls.__name__: cls}
        return _Scope(self.names, words, args)


_NOWHERE: Final = _Scope({}, {}, {})
_Hint: TypeAlias = tuple[Any, _Scope]


class Shape:
    """What an annotation says about the value at one place: which built-in types and which classes it may have.

    Members of a union are merged, so that ``list[A] | list[B]`` has items that are A or B.
    """

    def __init__(self, hints: Iterable[_Hint] = (), *, said: str = "the annotation does not name") -> None:
        self.said = said
        self.classes: dict[type, Member] = {}
        self.types: set[type] = set()
        self.is_open = False
        self.is_decided = False
        """Whether pydantic is told how to choose a member (a discriminator)."""
        self.newtypes: dict[str, Any] = {}
        self.tables: list[type] = []
        self._items: list[_Hint] = []
        self._places: list[list[_Hint]] = []
        self._keys: list[_Hint] = []
        self._values: list[_Hint] = []
        self._named: dict[str, list[_Hint]] = {}
        self.said_by = tuple(hints)
        for hint, scope in self.said_by:
            self._add(hint, scope, 0)

    # ---- its parts ----------------------------------------------------------------------------

    @cached_property
    def item(self) -> Shape:
        """The items of a list, a set or a tuple of any length."""
        return Shape(self._items, said=self.said) if self._items else OPEN

    @cached_property
    def key(self) -> Shape:
        """The keys of a dict."""
        return Shape(self._keys, said=self.said) if self._keys else OPEN

    @cached_property
    def _parts(self) -> dict[object, Shape]:
        return {}

    def at(self, index: int) -> Shape:
        """One place of a list or tuple."""
        if index >= len(self._places):
            return self.item
        if index not in self._parts:
            self._parts[index] = Shape([*self._places[index], *self._items], said=self.said)
        return self._parts[index]

    def value(self, key: object) -> Shape:
        """The value of this key of a dict, or of this field of an object."""
        named = self._named.get(key) if isinstance(key, str) else None
        name = key if named is not None else None
        if name not in self._parts:
            hints = [*(named or ()), *self._values]
            self._parts[name] = Shape(hints, said=self.said) if hints else OPEN
        return self._parts[name]

    @cached_property
    def tagged(self) -> frozenset[type]:
        """The classes that are written down by name: those that another member could be taken for."""
        members = list(self.classes.values())
        plain = {ANY_FORM} if self.is_open else {_form(kind) for kind in self.types}
        return frozenset(
            one.cls
            for one in members
            if _overlap(one.forms, plain) or any(_overlap(one.forms, two.forms) for two in members if two is not one)
        )

    def names(self, member: Member) -> bool:
        """Whether a value of this class is written down with its name."""
        return member.cls in self.tagged or member.cls not in self.classes

    def named(self, name: str) -> Member | None:
        """The member of this name."""
        found = next((one for one in self.classes.values() if one.name == name), None)
        if found is not None:
            return found
        below = {cls for base in self.classes for cls in _subclasses(base) if cls.__name__ == name}
        return self.below(below.pop()) if len(below) == 1 else None

    def below(self, kind: type) -> Member | None:
        """A class that is not named itself, and inherits from one that is; None: it could not be found again."""
        base = next((one for cls, one in self.classes.items() if cls in kind.__mro__), None)
        if base is None or any(one.name == kind.__name__ for one in self.classes.values()):
            return None
        if sum(cls.__name__ == kind.__name__ for root in self.classes for cls in _subclasses(root)) != 1:
            return None
        return Member(kind, kind, base.scope, self)

    def mistakes(self, value: object) -> bool:
        """Whether this built-in value would be read back as one of the classes."""
        if not self.classes or self.is_open or type(value) in self.types:
            return False
        form = _form(type(value))
        return any(form in one.forms for one in self.classes.values())

    # ---- reading an annotation ------------------------------------------------------------------

    def _add(self, hint: Any, scope: _Scope, depth: int) -> None:
        origin, args = get_origin(hint), get_args(hint)
        if depth > ANNOTATION_DEPTH_MAX or hint is Any or hint is object or hint is Signature.empty:
            self.is_open = True
        elif isinstance(hint, str | ForwardRef):
            word = hint if isinstance(hint, str) else hint.__forward_arg__
            self._add(_meaning_of(word, scope), scope, depth + 1)
        elif isinstance(hint, TypeVar):
            self._add_variable(hint, scope, depth)
        elif isinstance(hint, typing.NewType):
            self.newtypes[f"{hint.__module__}.{hint.__name__}"] = hint
            self._add(hint.__supertype__, scope, depth + 1)
        elif type(hint).__name__ == "TypeAliasType":
            self._add(_alias_of(hint), scope, depth + 1)
        elif type(origin).__name__ == "TypeAliasType":
            given = dict(zip(origin.__type_params__, [(arg, scope) for arg in args], strict=False))
            self._add(_alias_of(origin), _Scope(scope.names, scope.words, {**scope.args, **given}), depth + 1)
        elif origin is Annotated:
            names = next((one for one in args[1:] if isinstance(one, ClassNames)), None)
            self.is_decided = self.is_decided or any(map(_decides, args[1:]))
            inner = scope if names is None else _Scope({**scope.names, **names}, scope.words, scope.args)
            self._add(args[0], inner, depth + 1)
        elif origin in (Union, UnionType):
            for arg in args:
                self._add(arg, scope, depth + 1)
        elif origin is Literal:
            for literal in args:
                self._add(type(literal), scope, depth + 1)
        elif isinstance(hint, InitVar):
            self._add(hint.type, scope, depth + 1)
        elif args and getattr(origin, "__name__", getattr(origin, "_name", "")) in _WRAPPERS:
            self._add(args[0], scope, depth + 1)
        else:
            self._add_type(NoneType if hint is None else origin or hint, args, hint=hint, scope=scope)

    def _add_variable(self, hint: TypeVar, scope: _Scope, depth: int) -> None:
        known = scope.args.get(hint)
        if known is not None:
            self._add(known[0], known[1], depth + 1)
        for bound in hint.__constraints__ or ((hint.__bound__,) if hint.__bound__ is not None else ()):
            if known is None:
                self._add(bound, scope, depth + 1)
        if known is None and not hint.__constraints__ and hint.__bound__ is None:
            self.is_open = True

    def _add_type(self, kind: Any, args: tuple[Any, ...], *, hint: Any, scope: _Scope) -> None:
        if kind is typing.LiteralString:
            kind = str
        if not isinstance(kind, type):
            self.is_open = True
            return
        hints = [(arg, scope) for arg in args]
        if kind in _SEQUENCES:
            self.types.update(_SEQUENCES[kind])
            self._items.append(hints[0] if hints else (Any, scope))
        elif kind is tuple:
            self._add_tuple(hints)
        elif kind in _MAPPINGS:
            self.types.add(dict)
            self._keys.append(hints[0] if hints else (Any, scope))
            self._values.append(hints[-1] if hints else (Any, scope))
        elif hasattr(kind, "__required_keys__"):
            self.types.add(dict)
            self.tables.append(kind)
            inner = scope.inside(kind, _variables(kind, hints, scope))
            for name, one in inspect.get_annotations(kind).items():
                self._named.setdefault(name, []).append((one, inner))
        elif kind in _ABSTRACT:
            self.types.update(_ABSTRACT[kind])
        elif kind in _MEANINGS:
            self.types.add(kind)
        else:
            self._add_class(kind, hints, hint=hint, scope=scope)

    def _add_tuple(self, hints: list[_Hint]) -> None:
        self.types.add(tuple)
        if not hints or hints[-1][0] is ...:
            self._items.append(hints[0] if hints else (Any, _NOWHERE))
            return
        for index, hint in enumerate(hints):
            self._places += [[]] * (index >= len(self._places))
            self._places[index] = [*self._places[index], hint]

    def _add_class(self, kind: type, hints: list[_Hint], *, hint: Any, scope: _Scope) -> None:
        inner = scope.inside(kind, _variables(kind, hints, scope))
        known = self.classes.get(kind)
        self.classes[kind] = Member(kind, hint, inner, self, also=() if known is None else known.scopes)
        if issubclass(kind, dict):
            self._keys.append(hints[0] if hints else (Any, scope))
            self._values.append(hints[-1] if len(hints) > 1 else (Any, scope))
        elif issubclass(kind, list | set | frozenset):
            self._items.append(hints[0] if hints else (Any, scope))


class _Anywhere(Shape):
    """Any place of a value that has no annotation, where these classes are known from elsewhere in the declaration."""

    def __init__(self, members: Iterable[tuple[Shape, Member]]) -> None:
        super().__init__(said="no annotation of the tool names")
        found = list(members)
        self.classes = {one.cls: one for _, one in found}
        self._open = frozenset(one.cls for place, one in found if place.is_open or place.names(one))
        self.is_open = True
        self.item = self.key = self

    def at(self, index: int) -> Shape:
        return self

    def value(self, key: object) -> Shape:
        return self

    @cached_property
    def tagged(self) -> frozenset[type]:
        members = list(self.classes.values())
        return self._open | {
            one.cls for one in members if any(_overlap(one.forms, two.forms) for two in members if two is not one)
        }


class Member:
    """One class that an annotation allows at one place."""

    def __init__(self, cls: type, hint: Any, scope: _Scope, place: Shape, *, also: tuple[_Scope, ...] = ()) -> None:
        self.cls, self.hint, self.scope, self.place = cls, hint, scope, place
        self.scopes = (*also, scope)
        """More than one where a generic class stands there with several arguments."""
        self.name = scope.names.get(cls, cls.__name__)

    @cached_property
    def kind(self) -> str:
        """How its values are taken apart and put together."""
        cls: Any = self.cls
        if issubclass(cls, Enum):
            return "enum"
        if hasattr(cls, "__pydantic_root_model__"):
            return "root" if cls.__pydantic_root_model__ else "model"
        if is_dataclass(cls):
            return "dataclass"
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return "tuple"
        return "other"

    @cached_property
    def forms(self) -> frozenset[str]:
        """What its values look like when they are written down."""
        if self.kind == "enum":
            values = [value._value_ for value in self.cls.__members__.values()]  # type: ignore[attr-defined]
            return frozenset(_form(type(value)) for value in values) or frozenset({ANY_FORM})
        if self.kind in ("model", "dataclass"):
            return frozenset({"dict"})
        if self.kind == "tuple":
            return frozenset({"list"})
        base = next((base for base in self.cls.__mro__ if base in _PLAIN), None)
        return frozenset({ANY_FORM if base is None or self.kind == "root" else _form(base)})

    @cached_property
    def field_names(self) -> frozenset[str]:
        """The names and aliases of its fields."""
        named: Any = getattr(self.cls, "model_fields", {}) if self.kind == "model" else {}
        return frozenset([*self._hints, *(one.alias for one in named.values() if one.alias)])

    @cached_property
    def inner(self) -> Shape | None:
        """The places inside its values; None: of an Enum, whose values are its own business."""
        cls: Any = self.cls
        if self.kind == "enum":
            return None
        if self.kind == "other":
            return self.place
        said = f"the annotation in {cls.__name__} does not name"
        found = Shape(said=said)
        hints = {name: [(hint, scope) for scope in self.scopes] for name, hint in self._hints.items()}
        if self.kind == "root":
            return Shape(hints["root"], said=said)
        if self.kind == "tuple":
            found._places = [hints.get(name, [(Any, _NOWHERE)]) for name in cls._fields]
        else:
            found.types.add(dict)
            found._named = hints
        return found

    @cached_property
    def _hints(self) -> dict[str, Any]:
        cls: Any = self.cls
        if self.kind in ("root", "model"):
            hints = {}
            for name, one in cls.model_fields.items():
                is_decided = getattr(one, "discriminator", None) is not None
                hints[name] = Annotated[one.annotation, one] if is_decided else one.annotation
            return hints
        found: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            if base is not object:
                found |= inspect.get_annotations(base)
        return found

    def reduced(self, value: Any, walk: _Walk) -> Any:
        """The plain value that stands for one of this class."""
        return _reduce(value, walk)

    def revived(self, data: Any, *, exact: bool) -> Any:
        """A value of this class from what stands for it; raises ``Unlike``."""
        match self.kind:
            case "enum":
                return self._enum(data)
            case "root":
                return self._model({"root": _revived(data, self.inner, exact=exact)}, data, exact=exact)
            case "tuple":
                items = data.get("$tuple") if type(data) is dict else None
                if items is None or len(items) != len(self.cls._fields):  # type: ignore[attr-defined]
                    raise Unlike(self.name)
                inner = self.inner
                assert inner is not None, "a named tuple has places"
                parts = [_revived(item, inner.at(index), exact=exact) for index, item in enumerate(items)]
                return tuple.__new__(self.cls, parts)
            case "other":
                return self._other(data, exact=exact)
            case "model":
                unset, plain = data[UNSET] if type(data) is dict and UNSET in data and len(data) == 1 else ((), data)
                made = self._model(self._values(plain, exact=exact), plain, exact=exact)
                made.__pydantic_fields_set__.difference_update(unset)
                return made
            case _:
                return self._dataclass(self._values(data, exact=exact), data, exact=exact)

    def _values(self, data: Any, *, exact: bool) -> dict[str, Any]:
        found = dict(data["$map"]) if type(data) is dict and "$map" in data and len(data) == 1 else data
        inner = self.inner
        if type(found) is not dict or inner is None:
            raise Unlike(self.name)
        return {name: _revived(item, inner.value(name), exact=exact) for name, item in found.items()}

    def _enum(self, data: Any) -> Any:
        cls: Any = self.cls
        try:
            made = cls(_parse(_dump(data)))
            if type(made) is cls and _packed(made._value_) == data:
                return made
        except Exception:  # no such value, or one that has no hash
            pass
        for made in cls.__members__.values():
            if _packed(made._value_) == data:
                return made
        raise Unlike(self.name)

    def _model(self, values: dict[str, Any], data: Any, *, exact: bool) -> Any:
        """Put a model together without its validators: they have seen these values once, and may change them again."""
        cls: Any = self.cls
        names = cls.model_fields
        extra = {name: value for name, value in values.items() if name not in names}
        takes_extra = cls.model_config.get("extra") == "allow"
        if names.keys() - values.keys() or (extra and not takes_extra):
            raise Unlike(self.name)
        made = cls.__new__(cls)
        known = {name: values[name] for name in names}
        object.__setattr__(made, "__dict__", known)
        object.__setattr__(made, "__pydantic_fields_set__", set(values))
        if self.kind == "model":  # a root model has neither
            object.__setattr__(made, "__pydantic_extra__", extra if takes_extra else None)
            object.__setattr__(made, "__pydantic_private__", None)
        if cls.__pydantic_post_init__:  # private attributes are made here
            made.model_post_init(None)
            if self._written(made) != data:
                fresh = {"root": _revived(data, self.inner, exact=exact)} if self.kind == "root" else None
                again = fresh or self._values(data, exact=exact)
                vars(made).update({name: again[name] for name in names})
        return made

    def _dataclass(self, values: dict[str, Any], data: Any, *, exact: bool) -> Any:
        cls: Any = self.cls
        named = fields(cls)
        if {one.name for one in named} != values.keys():
            raise Unlike(self.name)
        if hasattr(cls, "__post_init__") or "__init__" not in vars(cls):
            # It may set what is no field; what it makes of the fields is not what was written down.
            try:
                made = cls(**{one.name: values[one.name] for one in named if one.init})
                if self._written(made) == data:
                    return made
            except Exception:  # it takes what is not written down
                made = cls.__new__(cls)
            values = self._values(data, exact=exact)
        else:
            made = cls.__new__(cls)
        for one in named:
            object.__setattr__(made, one.name, values[one.name])
        return made

    def _other(self, data: Any, *, exact: bool) -> Any:
        """A subclass of a built-in type, or a type that only pydantic knows."""
        plain = _built(data, self.place, exact=exact)
        makers: tuple[Callable[[Any], Any], ...] = (
            self.cls,
            lambda given: adapter(self.hint).validate_python(given, strict=False),
        )
        for make in makers:
            try:
                made = make(plain)
                if made is not plain and self._written(made) == data:
                    return made
            except Exception:  # a user's constructor
                continue
            plain = _built(data, self.place, exact=exact)
        raise Unlike(self.name)

    def _written(self, made: Any) -> Any:
        walk = _Walk("", _PACKS, shape=self.inner)
        plain = made if type(made) in _PACKS else self.reduced(made, walk)
        return _pack(plain, walk)


def _packed(value: object) -> Any:
    return _pack(value, _Walk("", _PACKS))


_SHAPES: Final[dict[int, tuple[object, Shape]]] = {}
OPEN: Final = Shape([(Any, _NOWHERE)], said="no annotation names")


def shape_of(annotation: Any, *, words: Mapping[str, Any] | None = None) -> Shape:
    """What this annotation says; ``words``: what names in it, and in the classes that it names, may mean."""
    if words:
        return Shape([(annotation, _Scope({}, words, {}))])
    known = _SHAPES.get(id(annotation))
    if known is None:
        if len(_SHAPES) >= ADAPTERS_MAX:
            _SHAPES.clear()
        is_open = annotation is Any or annotation is Signature.empty
        known = (annotation, OPEN if is_open else Shape([(annotation, _NOWHERE)]))
        _SHAPES[id(annotation)] = known
    return known[1]


def shape_of_args(
    hints: Mapping[str, Any], rest: Any = None, *, words: Mapping[str, Any], names: Mapping[type, str] | None = None
) -> Shape:
    """The shape of a dict of arguments; ``rest``: the annotation of any other name."""
    found = Shape()
    scope = _Scope(names or {}, words, {})
    found._named = {name: [(hint, scope)] for name, hint in hints.items()}
    if rest is not None and getattr(get_origin(rest), "__name__", "") == "Unpack":
        found._add(get_args(rest)[0], scope, 0)
    elif rest is not None:
        found._values = [(rest, scope)]
    found.types.add(dict)
    return found


ANY_ARGS: Final = shape_of_args({}, Any, words={})
"""Of a tool that lives elsewhere: nothing is known about its arguments, so they are plain data."""


def revive(text: str, shape: Shape, *, exact: bool = True) -> Any:
    """The value of a stored text, in the classes that it was written down from; raises ``Unlike``.

    No validator runs. ``exact``: refuse built-in types that the annotation does not name, since another version of
    the tool wrote them; otherwise the text is this process's own.
    """
    try:
        return _revived(json.loads(text), shape, exact=exact)
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError) as error:
        raise Unlike(str(error)) from error


def revive_each(text: str, shape: Shape, *, exact: bool = True) -> tuple[dict[str, Any], set[str]]:
    """The arguments of a stored text, and the names of those that are not of the shape: they are plain data."""
    found: dict[str, Any] = {}
    unlike: set[str] = set()
    try:
        raw = json.loads(text)
        named = dict(raw["$map"]) if len(raw) == 1 and "$map" in raw else raw
    except (ValueError, TypeError, KeyError):
        named = _read(text)  # says what is wrong with it
    for name, data in named.items():
        try:
            found[name] = _revived(data, shape.value(name), exact=exact)
        except (Unlike, ValueError, TypeError, KeyError, ArithmeticError, AttributeError):
            found[name] = _read(_dump(data))
            unlike.add(name)
    return found, unlike


def classes_of(text: str) -> dict[str, str]:
    """The classes that a stored text names, by the place where they stand."""
    found: dict[str, str] = {}
    try:
        waiting: list[tuple[str, Any]] = [("", json.loads(text))]
    except ValueError:  # encrypted
        return found
    while waiting:
        place, data = waiting.pop()
        tag = next(iter(data), "") if type(data) is dict and len(data) == 1 else ""
        if tag == CLASS:
            found[place], data = data[CLASS]
            waiting.append((place, data))
        elif tag == UNSET:
            waiting.append((place, data[UNSET][1]))
        elif tag == "$map":
            waiting += [(f"{place}[{_dump(key)}]", item) for key, item in data[tag]]
        elif tag in ("$tuple", "$set", "$frozenset") or type(data) is list:
            items = data if type(data) is list else data[tag]
            waiting += [(f"{place}[{index}]", item) for index, item in enumerate(items)]
        elif type(data) is dict:
            waiting += [(_place_below(place, name), item) for name, item in data.items()]
    return dict(sorted(found.items()))


def _place_below(place: str, name: str) -> str:
    """Return the place of a name in a place; a name that could be read as a path, such as ``a.b``, is quoted."""
    if not name.isidentifier():
        return f"{place}[{_dump(name)}]"
    return f"{place}.{name}" if place else name


def classes_below(shape: Shape) -> list[tuple[Shape, Member]]:
    """Every class that the annotation allows anywhere, with the place where it stands."""
    found: list[tuple[Shape, Member]] = []
    seen: set[tuple[type, ...]] = set()
    for place in places_below(shape):
        mark = tuple(place.classes)
        if mark not in seen:
            seen.add(mark)
            found += [(place, member) for member in place.classes.values()]
    return found


def places_below(shape: Shape) -> Iterator[Shape]:
    """This place and all those inside it; a class or an alias that contains itself is looked at once."""
    waiting, seen = [shape], set[Any]()
    for _ in range(PLACES_MAX):
        if not waiting:
            return
        place = waiting.pop()
        # By identity: an alias may contain itself, and some annotations have no hash.
        said = tuple((id(hint), id(scope.args)) for hint, scope in place.said_by)
        if place is OPEN or (said and said in seen):
            continue
        seen.add(said)
        yield place
        waiting += [place.value(name) for name in place._named]
        waiting += [place.at(index) for index in range(len(place._places))]
        waiting += [place.item] * bool(place._items)
        waiting += [place.key] * bool(place._keys) + [place.value(None)] * bool(place._values)
        for member in place.classes.values():
            mark = (member.cls, str(member.hint))
            if mark not in seen and member.kind != "other" and member.inner is not None:
                seen.add(mark)
                waiting.append(member.inner)


def anywhere(shape: Shape) -> Shape:
    """Any place of a value that is made from values of this shape, by a function that has no annotation."""
    return _Anywhere(classes_below(shape))


def shape_of_given(value: object) -> Shape:
    """The shape of arguments that somebody else has checked (a framework): the classes in them are those they have.

    Every one of them is written down by name, since no annotation is known that would decide it.
    """
    place = Shape([(Any, _NOWHERE)], said="could not be told from another one of that name")
    classes: dict[str, type] = {}
    waiting, count = [value], 0
    while waiting and count < PARTS_MAX:
        one, count = waiting.pop(), count + 1
        if type(one) is dict:
            waiting += [*one, *one.values()]
        elif type(one) in (list, tuple, set, frozenset):
            waiting += one  # type: ignore[arg-type]
        elif type(one) not in _PACKS and type(one) not in _SPELLINGS:
            classes.setdefault(type(one).__name__, type(one))
    if not classes:
        return ANY_ARGS
    return _Anywhere((place, Member(cls, cls, _NOWHERE.inside(cls, {}), place)) for cls in classes.values())


def problem_of(shape: Shape) -> str | None:
    """Why two members of a union in this annotation could not be told apart; None: all can."""
    for place in places_below(shape):
        names: dict[str, type] = {}
        for cls, member in place.classes.items():
            other = names.setdefault(member.name, cls)
            if other is not cls:
                return (
                    f"two classes called {member.name} ({other.__module__}.{other.__qualname__} and "
                    f"{cls.__module__}.{cls.__qualname__}) share one place: the record could not tell them apart; "
                    'name one of them otherwise with class_names={TheClass: "Name"}'
                )
        bases: dict[int, str] = {}
        for name, new in place.newtypes.items():
            if (two := bases.setdefault(id(_supertype(new)), name)) != name:
                return f"{two} and {name} are NewTypes of one type: no value says which it is; pass a class of your own"
        for index, one in enumerate(place.tables):
            for two_table in place.tables[index + 1 :]:
                if one is not two_table and _is_like(one, two_table):
                    return (
                        f"the TypedDicts {one.__name__} and {two_table.__name__} have the same keys: no value says which "
                        "it is; give each a key with another Literal"
                    )
    return None


def _is_like(one: Any, other: Any) -> bool:
    """Whether a dict could be either of the two TypedDicts, whatever is in it."""
    if one.__required_keys__ != other.__required_keys__ or one.__optional_keys__ != other.__optional_keys__:
        return False
    mine, theirs = (Shape([(table, _NOWHERE)]) for table in (one, other))
    for name in one.__required_keys__:
        hints = [_literals(shape._named[name]) for shape in (mine, theirs)]
        if hints[0] and hints[1] and not hints[0] & hints[1]:
            return False
        types = [shape.value(name).types | set(shape.value(name).classes) for shape in (mine, theirs)]
        if not any(shape.value(name).is_open for shape in (mine, theirs)) and not types[0] & types[1]:
            return False
    return True


def _literals(hints: list[_Hint]) -> set[Any]:
    found = set()
    for hint, scope in hints:
        meant = _meaning_of(hint.__forward_arg__, scope) if isinstance(hint, ForwardRef) else hint
        found |= {str(one) for one in get_args(meant)} if get_origin(meant) is Literal else set()
    return found


def _supertype(new: Any) -> Any:
    while isinstance(new, typing.NewType):
        new = new.__supertype__
    return new


def _subclasses(cls: type) -> set[type]:
    found: set[type] = set()
    waiting = [cls]
    while waiting:
        below: list[type] = type.__subclasses__(waiting.pop())
        for one in below:
            if one not in found:
                found.add(one)
                waiting.append(one)
    return found


_ALIASES: Final[dict[int, tuple[Any, Any]]] = {}  # one meaning for each, so that an alias in itself is recognised


def _alias_of(alias: Any) -> Any:
    """What an alias stands for; one that is written as a text is read in its own module."""
    known = _ALIASES.get(id(alias))
    if known is None:
        found = alias.__value__
        if isinstance(found, str):
            module = sys.modules.get(alias.__module__ or "")
            found = _meaning_of(found, _Scope({}, {**(vars(module) if module else {}), alias.__name__: alias}, {}))
        known = _ALIASES[id(alias)] = (alias, found)
    return known[1]


def _meaning_of(word: str, scope: _Scope) -> Any:
    try:
        return eval(word, dict(scope.words))
    except Exception:  # a name that only a type checker knows
        return Any


def _variables(kind: Any, hints: list[_Hint], scope: _Scope) -> dict[Any, _Hint]:
    """What the type variables of a generic class, and of the generic classes that it inherits from, stand for."""
    found: dict[Any, _Hint] = dict(zip(getattr(kind, "__parameters__", ()), hints, strict=False))
    for base in getattr(kind, "__mro__", ()):
        for one in getattr(base, "__orig_bases__", ()):
            params = getattr(get_origin(one), "__parameters__", ())
            for param, arg in zip(params, get_args(one), strict=False):
                if arg is not param:
                    found.setdefault(param, found.get(arg, (arg, scope)) if isinstance(arg, TypeVar) else (arg, scope))
    return found


def _decides(meta: object) -> bool:
    return (
        getattr(meta, "discriminator", None) is not None
        or getattr(meta, "union_mode", None) is not None
        or any(getattr(one, "union_mode", None) is not None for one in getattr(meta, "metadata", ()) or ())
    )


def _overlap(one: AbstractSet[str], other: AbstractSet[str]) -> bool:
    if ANY_FORM in one:
        return bool(other - {"none"})
    return bool(one & other) or ANY_FORM in other


def _form(kind: type) -> str:
    """What a value of this type looks like when it is written down."""
    return _FORMS.get(kind) or (kind.__name__ if kind in _MEANINGS else _form_below(kind))


def _form_below(kind: type) -> str:
    base = next((base for base in kind.__mro__ if base in _PLAIN), None)
    return ANY_FORM if base is None else _form(base)


_FORMS: Final[dict[type, str]] = {
    NoneType: "none",
    **dict.fromkeys((int, float, Decimal), "number"),
    **dict.fromkeys((list, tuple), "list"),
    **dict.fromkeys((set, frozenset), "set"),
    **dict.fromkeys((bytes, bytearray), "bytes"),
    **dict.fromkeys((type(Path()), PurePosixPath, PureWindowsPath), "path"),
}
_SEQUENCES: Final[dict[type, tuple[type, ...]]] = {
    list: (list,),
    set: (set,),
    frozenset: (frozenset,),
    **dict.fromkeys((Sequence, MutableSequence), (list, tuple)),
    **dict.fromkeys((AbstractSet, MutableSet), (set, frozenset)),
    **dict.fromkeys((Iterable, Iterator, AbstractCollection), (list, tuple, set, frozenset)),
}
_MAPPINGS: Final = (dict, Mapping, MutableMapping)
_ABSTRACT: Final[dict[type, tuple[type, ...]]] = {
    Path: (type(Path()),),
    PurePath: (type(Path()), PurePosixPath, PureWindowsPath),
}
_WRAPPERS: Final = ("Final", "ClassVar", "Required", "NotRequired", "ReadOnly")
_SPELLINGS: Final = (memoryview, MappingProxyType)
"""Other spellings of bytes and dict: nobody's class."""
_TAG_TYPES: Final[dict[str, type]] = {
    **{tag: kind for kind, (tag, _, _) in _LEAVES.items()},
    "$map": dict,
    UNSET: dict,
    "$str": str,
    "$int": int,
    "$float": float,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
}


def _revived(data: Any, shape: Shape | None, *, exact: bool) -> Any:
    """JSON data with tags as the value that it stands for, at a place of this shape; raises ``Unlike``."""
    if shape is None:
        return _parse(_dump(data))
    tag = next(iter(data), "") if type(data) is dict and len(data) == 1 else ""
    if tag == CLASS:
        name, inner = data[tag]
        member = shape.named(name)
        if member is None:
            raise Unlike(name)
        return member.revived(inner, exact=exact)
    kind = _TAG_TYPES.get(tag, type(data))
    if kind not in shape.types and not shape.is_open:
        form = _form(kind)
        found = [
            one
            for cls, one in shape.classes.items()
            if cls not in shape.tagged and (form in one.forms or ANY_FORM in one.forms)
        ]
        if len(found) == 1:
            return found[0].revived(data, exact=exact)
        if exact:
            raise Unlike(kind.__name__)
    return _built(data, shape, exact=exact)


def _built(data: Any, shape: Shape, *, exact: bool) -> Any:
    """A built-in value, with what is inside it."""
    if type(data) is list:
        return [_revived(item, shape.at(index), exact=exact) for index, item in enumerate(data)]
    if type(data) is not dict:
        return data
    tag = next(iter(data), "") if len(data) == 1 else ""
    if not tag.startswith("$"):
        is_plain = not shape._keys
        return {
            key if is_plain else _revived(key, shape.key, exact=exact): _revived(item, shape.value(key), exact=exact)
            for key, item in data.items()
        }
    inner = data[tag]
    match tag:
        case "$secret":
            raise Unlike(tag)
        case "$unset":
            return _built(inner[1], shape, exact=exact)
        case "$tuple":
            return tuple(_revived(item, shape.at(index), exact=exact) for index, item in enumerate(inner))
        case "$set" | "$frozenset":
            items = [_revived(item, shape.item, exact=exact) for item in inner]
            return set(items) if tag == "$set" else frozenset(items)
        case "$map":
            return {
                _revived(key, shape.key, exact=exact): _revived(item, shape.value(key), exact=exact)
                for key, item in inner
            }
        case _:
            return _READS[tag](inner)
