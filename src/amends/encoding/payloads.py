"""Store arguments and results, and read them back in the classes that they had.

``canonical`` writes the texts and ``annotations`` says which classes a place allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import lru_cache, partial
from inspect import Signature
from typing import Any, Final, NoReturn, get_args

from amends.encoding.annotations import ANY_FORM, Member, Shape, Tagged, adapter, form_of, has_schema, shape_of
from amends.encoding.canonical import (
    CLASS,
    CLASS_MARK,
    CONSTANTS,
    LEAVES,
    PACKS,
    PAYLOAD_BYTES_MAX,
    PLAIN,
    READS,
    UNSET,
    UNSET_MARK,
    Walk,
    canonical,
    check_size,
    dump,
    encode,
    pack_value,
    parse,
    plain_copy,
    plain_texts,
    reduced,
    written,
)
from amends.encoding.dataclass import dataclass
from amends.encoding.secret import SEALED
from amends.errors import LedgerCorrupt, LedgerSealed, NotStorable, TooLarge


class ShapeMismatch(Exception):
    """A stored text does not fit the annotation of today: another version of the tool wrote it."""


# ---- Results


@dataclass(frozen=True, slots=True)
class Stored:
    """A result as the ledger stores it. ``loss`` says what a replay will not get; without ``text`` that is everything."""

    text: str | None
    loss: str | None


def store_result(value: object, annotation: object = Any) -> Stored:
    """Return what the ledger keeps of a result. Never raise: what cannot be written is a stated loss."""
    return round_trip(value, annotation)[1]


def load_result(stored_text: str | None, annotation: object = Any) -> Any:
    """Return the result as every replay sees it; None if it could not be stored."""
    return None if stored_text is None else decode(stored_text, annotation)


def round_trip(value: Any, annotation: object = Any, *, limit: int = PAYLOAD_BYTES_MAX) -> tuple[Any, Stored]:
    """Return the value as every replay will see it, and what is stored. Never raise.

    If nothing can be stored, also because it takes more than ``limit`` bytes, the value is the original.
    """
    if type(value) is dict and len(value) == 1 and CLASS in value:
        value = _said_class(value, shape_of(annotation))
    plain = plain_copy(value)
    if plain is not None and len(plain[0]) * 4 <= limit:  # no character takes more bytes
        return _shaped(plain[1], plain[0], annotation), Stored(plain[0], None)
    walk = Walk("result", PACKS, shape=shape_of(annotation))
    try:
        text = written(value, walk)
        check_size(text, path="result", limit=limit)
        seen = decode(text, annotation)
        return seen, Stored(text, _loss(value, seen, text=text, retyped=walk.retyped, annotation=annotation))
    except (NotStorable, TooLarge) as error:
        return value, Stored(None, str(error))
    except Exception as error:
        return value, Stored(None, f"result of type {type(value).__name__} cannot be kept ({type(error).__name__})")


def decode(text: str, annotation: object = Any) -> Any:
    """Read a stored text as the annotation says, or as plain data if the annotation does not fit."""
    return _shaped(read_text(text), text, annotation)


def no_longer_fits(text: str, annotation: object) -> bool:
    """Return whether a stored text can no longer be read as the user's class that the annotation names.

    Plain data under a plain annotation always fits: its readers get what the body returned.
    """
    if not _names_own_class(annotation):
        return False
    try:
        if CLASS_MARK in text:
            revive(text, shape_of(annotation))
            return False
        adapter(annotation).validate_python(read_text(text), strict=False, by_alias=True, by_name=True)
    except LedgerCorrupt:
        raise
    except Exception:
        return True
    return False


def _shaped(value: Any, text: str, annotation: object) -> Any:
    is_missing = annotation is Any or annotation is Signature.empty or isinstance(annotation, str)
    if is_missing or (annotation is type(value) and annotation in PACKS):
        return value
    # Before Python 3.12 pydantic has no schema for a TypedDict of ``typing``, but its classes are known.
    is_classed = CLASS_MARK in text or not has_schema(annotation)
    if is_classed or UNSET_MARK in text:
        try:
            return revive(text, shape_of(annotation))
        except ShapeMismatch:
            if is_classed:
                return value
    try:
        # By field name, because models are written so. Lax, because a strict model would refuse its own plain data.
        shaped = adapter(annotation).validate_python(value, strict=False, by_alias=True, by_name=True)
        # Iterable[X] is validated lazily, into an iterator that can be read once.
        return value if isinstance(shaped, Iterator) else shaped
    except Exception:
        return read_text(text)  # read again: the user's validators may have changed the first value


def _names_own_class(annotation: object) -> bool:
    try:
        return _has_own_class(annotation)
    except TypeError:  # it holds something that has no hash, such as metadata in a list
        return _has_own_class.__wrapped__(annotation)


@lru_cache(maxsize=1024)
def _has_own_class(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return annotation not in PACKS and annotation not in PLAIN and annotation.__module__ != "builtins"
    return any(_names_own_class(part) for part in get_args(annotation))


def _said_class(value: dict[Any, Any], shape: Shape) -> dict[Any, Any]:
    """Return a result that a person gave as plain data, marked with its class if the name is known."""
    pair = value[CLASS]
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)
    return Tagged(value) if is_pair and shape.named(pair[0]) is not None else value


def _loss(
    value: object, seen: object, *, text: str, retyped: list[tuple[str, type, type]], annotation: object
) -> str | None:
    """Return what a replay does not get of a stored value; None if it gets everything."""
    if not retyped:
        return None
    seen_text = written(seen, walk := Walk("result", PACKS, shape=shape_of(annotation)))
    had, kept = ({(place, kind) for place, kind, _ in one} for one in (retyped, walk.retyped))
    for place, was, plain in retyped:
        if (place, was) not in kept:
            return f"{place} came back as {dict(kept - had).get(place, plain).__name__}, was {was.__name__}"
    return None if seen_text == text or seen == value else f"{type(value).__name__} came back changed by its validators"


def read_text(text: str) -> Any:
    if text.startswith(SEALED):
        raise LedgerSealed(f"a stored value is encrypted, with key {text.split(':')[1]}")
    try:
        return parse(text)
    except (ValueError, TypeError, KeyError, ArithmeticError) as error:
        raise LedgerCorrupt(f"a stored value cannot be read: {error!r}", hint="was a newer amends here?") from error


# ---- Arguments


@dataclass(frozen=True, slots=True)
class Written:
    """Arguments as they are stored, and a function that makes fresh copies of them."""

    args: Mapping[str, Any]
    text: str
    meaning: str
    copy: Callable[[], Mapping[str, Any]] | None
    """None if all arguments are immutable, so that one copy serves all."""


def write_args(
    args: Mapping[str, Any], shape: Shape, plain: tuple[str, str] | None = None, *, limit: int = PAYLOAD_BYTES_MAX
) -> Written:
    """Return the arguments as they are stored. The result shares no mutable object with the caller.

    ``plain``: the texts from ``plain_texts``, if it was already called. Raise ``NotStorable`` for a class that the
    annotations do not name, and for a value that would not be read back unchanged; ``TooLarge`` above ``limit`` bytes.
    """
    plain = plain or plain_texts(args)
    if plain is not None:
        for value in args.values():
            if type(value) is list or type(value) is dict:
                copy = partial(read_text, plain[0])
                return Written(copy(), plain[0], plain[1], copy)
        return Written(args, plain[0], plain[1], None)
    walk = Walk("args", PACKS, shape=shape, strict=True)
    text = written(dict(args), walk)
    if len(text) > limit:
        check_size(text, path="args", limit=limit)
    if all(type(value) in CONSTANTS for value in args.values()):
        return Written(args, text, canonical(args, shape=shape), None)
    copy = partial(_written_args, text, shape)
    kept = copy()
    if walk.retyped and encode(kept, path="args", shape=shape) != text:
        _refuse_changed(args, shape)
    return Written(kept, text, canonical(kept, shape=shape), copy)


def _written_args(text: str, shape: Shape) -> Mapping[str, Any]:
    found, unlike = rebuild_args(text, shape, exact=False)
    for name in sorted(unlike):
        _refuse_changed({name: None}, shape)
    return found


def _refuse_changed(args: Mapping[str, Any], shape: Shape) -> NoReturn:
    changed = [name for name, value in args.items() if not _comes_back(name, value, shape)]
    path = f"args.{changed[0]}" if changed else "args"
    raise NotStorable(
        f"{path} would not be read back unchanged from the ledger",
        path=path,
        hint="use a dataclass or a pydantic model whose fields hold everything, or pass an id or plain data instead",
    )


def _comes_back(name: str, value: object, shape: Shape) -> bool:
    if value is None:
        return False
    inner = shape.value(name)
    try:
        text = encode(value, path=name, shape=inner)
        return encode(revive(text, inner, exact=False), path=name, shape=inner) == text
    except (NotStorable, ShapeMismatch):
        return False


def rebuild_args(text: str, shape: Shape, *, exact: bool = True) -> tuple[dict[str, Any], set[str]]:
    """Read stored arguments, and return the names of those that do not fit the shape and remain plain data."""
    found: dict[str, Any] = {}
    unlike: set[str] = set()
    try:
        raw = json.loads(text)
        named = dict(raw["$map"]) if len(raw) == 1 and "$map" in raw else raw
    except (ValueError, TypeError, KeyError):
        named = read_text(text)  # raises an error that says what is wrong
    for name, data in named.items():
        try:
            found[name] = _rebuilt(data, shape.value(name), exact=exact)
        except (ShapeMismatch, ValueError, TypeError, KeyError, ArithmeticError, AttributeError):
            found[name] = read_text(dump(data))
            unlike.add(name)
    return found, unlike


def classes_of(text: str) -> dict[str, str]:
    """Return the classes that a stored text names, by their place."""
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
            waiting += [(f"{place}[{dump(key)}]", item) for key, item in data[tag]]
        elif tag in ("$tuple", "$set", "$frozenset") or type(data) is list:
            items = data if type(data) is list else data[tag]
            waiting += [(f"{place}[{index}]", item) for index, item in enumerate(items)]
        elif type(data) is dict:
            waiting += [(_place_below(place, name), item) for name, item in data.items()]
    return dict(sorted(found.items()))


def _place_below(place: str, name: str) -> str:
    """Return the path of a name inside a place; a name that looks like a path, such as ``a.b``, is quoted."""
    if not name.isidentifier():
        return f"{place}[{dump(name)}]"
    return f"{place}.{name}" if place else name


# ---- Values of users' classes, made from their stored text


def revive(text: str, shape: Shape, *, exact: bool = True) -> Any:
    """Read a stored text in the classes that it was written from; raise ``ShapeMismatch`` if it does not fit.

    No validator runs. ``exact``: also refuse built-in types that the annotation does not name, since another version
    of the tool wrote them. Not needed for a text that this process has just written.
    """
    try:
        return _rebuilt(json.loads(text), shape, exact=exact)
    except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError) as error:
        raise ShapeMismatch(str(error)) from error


def _rebuilt(data: Any, shape: Shape | None, *, exact: bool) -> Any:
    """Return the value of JSON data with tags at a place of this shape; raise ``ShapeMismatch``."""
    if shape is None:
        return parse(dump(data))
    tag = next(iter(data), "") if type(data) is dict and len(data) == 1 else ""
    if tag == CLASS:
        name, inner = data[tag]
        member = shape.named(name)
        if member is None:
            raise ShapeMismatch(name)
        return _rebuilt_member(member, inner, exact=exact)
    kind = _TAG_TYPES.get(tag, type(data))
    if kind not in shape.types and not shape.is_open:
        form = form_of(kind)
        found = [
            one
            for cls, one in shape.classes.items()
            if cls not in shape.tagged and (form in one.forms or ANY_FORM in one.forms)
        ]
        if len(found) == 1:
            return _rebuilt_member(found[0], data, exact=exact)
        if exact:
            raise ShapeMismatch(kind.__name__)
    return _built(data, shape, exact=exact)


def _built(data: Any, shape: Shape, *, exact: bool) -> Any:
    """Return a built-in value with everything inside it rebuilt."""
    if type(data) is list:
        return [_rebuilt(item, shape.at(index), exact=exact) for index, item in enumerate(data)]
    if type(data) is not dict:
        return data
    tag = next(iter(data), "") if len(data) == 1 else ""
    if not tag.startswith("$"):
        is_plain = not shape._keys
        return {
            key if is_plain else _rebuilt(key, shape.key, exact=exact): _rebuilt(item, shape.value(key), exact=exact)
            for key, item in data.items()
        }
    inner = data[tag]
    match tag:
        case "$secret":
            raise ShapeMismatch(tag)
        case "$unset":
            return _built(inner[1], shape, exact=exact)
        case "$tuple":
            return tuple(_rebuilt(item, shape.at(index), exact=exact) for index, item in enumerate(inner))
        case "$set" | "$frozenset":
            items = [_rebuilt(item, shape.item, exact=exact) for item in inner]
            return set(items) if tag == "$set" else frozenset(items)
        case "$map":
            return {
                _rebuilt(key, shape.key, exact=exact): _rebuilt(item, shape.value(key), exact=exact)
                for key, item in inner
            }
        case _:
            return READS[tag](inner)


_TAG_TYPES: Final[dict[str, type]] = {
    **{tag: kind for kind, (tag, _, _) in LEAVES.items()},
    "$map": dict,
    UNSET: dict,
    "$str": str,
    "$int": int,
    "$float": float,
    "$tuple": tuple,
    "$set": set,
    "$frozenset": frozenset,
}


def _rebuilt_member(member: Member, data: Any, *, exact: bool) -> Any:
    """Return a value of this class from the data that stands for it; raise ``ShapeMismatch``."""
    match member.kind:
        case "enum":
            return _rebuilt_enum(member, data)
        case "root":
            return _rebuilt_model(member, {"root": _rebuilt(data, member.inner, exact=exact)}, data, exact=exact)
        case "tuple":
            items = data.get("$tuple") if type(data) is dict else None
            if items is None or len(items) != len(member.cls._fields):  # type: ignore[attr-defined]
                raise ShapeMismatch(member.name)
            inner = member.inner
            assert inner is not None, "a named tuple has a shape inside"
            parts = [_rebuilt(item, inner.at(index), exact=exact) for index, item in enumerate(items)]
            return tuple.__new__(member.cls, parts)
        case "other":
            return _rebuilt_other(member, data, exact=exact)
        case "model":
            unset, plain = data[UNSET] if type(data) is dict and UNSET in data and len(data) == 1 else ((), data)
            made = _rebuilt_model(member, _field_values(member, plain, exact=exact), plain, exact=exact)
            made.__pydantic_fields_set__.difference_update(unset)
            return made
        case _:
            return _rebuilt_dataclass(member, _field_values(member, data, exact=exact), data, exact=exact)


def _field_values(member: Member, data: Any, *, exact: bool) -> dict[str, Any]:
    found = dict(data["$map"]) if type(data) is dict and "$map" in data and len(data) == 1 else data
    inner = member.inner
    if type(found) is not dict or inner is None:
        raise ShapeMismatch(member.name)
    return {name: _rebuilt(item, inner.value(name), exact=exact) for name, item in found.items()}


def _rebuilt_enum(member: Member, data: Any) -> Any:
    cls: Any = member.cls
    try:
        made = cls(parse(dump(data)))
        if type(made) is cls and _packed(made._value_) == data:
            return made
    except Exception:  # no such value, or one that has no hash
        pass
    for made in cls.__members__.values():
        if _packed(made._value_) == data:
            return made
    raise ShapeMismatch(member.name)


def _rebuilt_model(member: Member, values: dict[str, Any], data: Any, *, exact: bool) -> Any:
    """Rebuild a model without its validators: they have already seen these values, and might change them again."""
    cls: Any = member.cls
    names = cls.model_fields
    extra = {name: value for name, value in values.items() if name not in names}
    takes_extra = cls.model_config.get("extra") == "allow"
    if names.keys() - values.keys() or (extra and not takes_extra):
        raise ShapeMismatch(member.name)
    made = cls.__new__(cls)
    known = {name: values[name] for name in names}
    object.__setattr__(made, "__dict__", known)
    object.__setattr__(made, "__pydantic_fields_set__", set(values))
    if member.kind == "model":  # a root model has neither
        object.__setattr__(made, "__pydantic_extra__", extra if takes_extra else None)
        object.__setattr__(made, "__pydantic_private__", None)
    if cls.__pydantic_post_init__:  # it creates private attributes
        made.model_post_init(None)
        if _packed_member(member, made) != data:
            fresh = {"root": _rebuilt(data, member.inner, exact=exact)} if member.kind == "root" else None
            again = fresh or _field_values(member, data, exact=exact)
            vars(made).update({name: again[name] for name in names})
    return made


def _rebuilt_dataclass(member: Member, values: dict[str, Any], data: Any, *, exact: bool) -> Any:
    cls: Any = member.cls
    named = fields(cls)
    if {one.name for one in named} != values.keys():
        raise ShapeMismatch(member.name)
    if hasattr(cls, "__post_init__") or "__init__" not in vars(cls):
        # The constructor may set attributes that are no fields, but may also change fields; then the record decides.
        try:
            made = cls(**{one.name: values[one.name] for one in named if one.init})
            if _packed_member(member, made) == data:
                return made
        except Exception:  # the constructor needs something that was not written
            made = cls.__new__(cls)
        values = _field_values(member, data, exact=exact)
    else:
        made = cls.__new__(cls)
    for one in named:
        object.__setattr__(made, one.name, values[one.name])
    return made


def _rebuilt_other(member: Member, data: Any, *, exact: bool) -> Any:
    """Rebuild a subclass of a built-in type, or a type that only pydantic knows."""
    plain = _built(data, member.place, exact=exact)
    makers: tuple[Callable[[Any], Any], ...] = (
        member.cls,
        lambda given: adapter(member.hint).validate_python(given, strict=False),
    )
    for make in makers:
        try:
            made = make(plain)
            if made is not plain and _packed_member(member, made) == data:
                return made
        except Exception:  # a user's constructor
            continue
        plain = _built(data, member.place, exact=exact)
    raise ShapeMismatch(member.name)


def _packed_member(member: Member, made: Any) -> Any:
    walk = Walk("", PACKS, shape=member.inner)
    plain = made if type(made) in PACKS else reduced(made, walk)
    return pack_value(plain, walk)


def _packed(value: object) -> Any:
    return pack_value(value, Walk("", PACKS))
