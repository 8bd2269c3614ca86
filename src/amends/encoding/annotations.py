"""What annotations say about values: which built-in types and which users' classes are allowed at each place.

A ``Shape`` decides where a stored value needs the name of its class, and which class it is read back as. Nothing here
writes or reads a value.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Collection as AbstractCollection
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSequence, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cache, cached_property
from inspect import Signature
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Final, ForwardRef, Literal, TypeAlias, TypeVar, Union, get_args, get_origin
from uuid import UUID

from amends.encoding.secret import Secret

# ---- Built-in types


class Tagged(dict[str, Any]):
    """A value of a class that this process does not know: ``{"$class": [name, data]}``, written as it was read."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # it may be a key of a dict, and is never changed
        return hash(repr(self))


BUILT_IN: Final = frozenset(
    {
        *(NoneType, bool, int, float, str, list, tuple, dict, set, frozenset, Decimal, UUID, bytes, bytearray),
        *(datetime, date, time, timedelta, type(Path()), PurePosixPath, PureWindowsPath, Secret, Tagged),
    }
)
"""The types that are written as themselves."""
SPELLINGS: Final = (memoryview, MappingProxyType)
"""Other spellings of bytes and dict, which are not users' classes."""
BASES: Final = BUILT_IN - {NoneType, bool, Secret, Tagged} | {*SPELLINGS}
"""The types whose subclasses can be written as plain data."""


# ---- What an annotation says about one place of a value

ANY_FORM: Final = "any"
ANNOTATION_DEPTH_MAX: Final = 64
PLACES_MAX: Final = 10_000
"""How many places of one annotation are visited: a generic alias may contain itself without end."""
PARTS_MAX: Final = 1 << 20  # values in one value: fifty lists that each hold the next one twice are 2**50 of them


class ClassNames(dict[type, str]):
    """In ``Annotated``: the names under which these classes are written, here and in everything inside."""


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
        """Whether a discriminator tells pydantic how to choose a member."""
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

    # ---- The parts of a place

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
        """Return the shape of one item of a list or tuple."""
        if index >= len(self._places):
            return self.item
        if index not in self._parts:
            self._parts[index] = Shape([*self._places[index], *self._items], said=self.said)
        return self._parts[index]

    def value(self, key: object) -> Shape:
        """Return the shape of the value of this key of a dict, or of this field of an object."""
        named = self._named.get(key) if isinstance(key, str) else None
        name = key if named is not None else None
        if name not in self._parts:
            hints = [*(named or ()), *self._values]
            self._parts[name] = Shape(hints, said=self.said) if hints else OPEN
        return self._parts[name]

    @cached_property
    def tagged(self) -> frozenset[type]:
        """The classes that are written by name, because another member could be taken for them."""
        members = list(self.classes.values())
        plain = {ANY_FORM} if self.is_open else {form_of(kind) for kind in self.types}
        return frozenset(
            one.cls
            for one in members
            if _overlap(one.forms, plain) or any(_overlap(one.forms, two.forms) for two in members if two is not one)
        )

    def names(self, member: Member) -> bool:
        """Return whether a value of this class is written with its name."""
        return member.cls in self.tagged or member.cls not in self.classes

    def named(self, name: str) -> Member | None:
        """Return the member with this name, or None."""
        found = next((one for one in self.classes.values() if one.name == name), None)
        if found is not None:
            return found
        below = {cls for base in self.classes for cls in _subclasses(base) if cls.__name__ == name}
        return self.below(below.pop()) if len(below) == 1 else None

    def below(self, kind: type) -> Member | None:
        """Return a member for a subclass of an allowed class; None if its name would not identify it."""
        base = next((one for cls, one in self.classes.items() if cls in kind.__mro__), None)
        if base is None or any(one.name == kind.__name__ for one in self.classes.values()):
            return None
        if sum(cls.__name__ == kind.__name__ for root in self.classes for cls in _subclasses(root)) != 1:
            return None
        return Member(kind, kind, base.scope, self)

    def mistakes(self, value: object) -> bool:
        """Return whether this built-in value would be read back as one of the classes."""
        if not self.classes or self.is_open or type(value) in self.types:
            return False
        form = form_of(type(value))
        return any(form in one.forms for one in self.classes.values())

    # ---- Reading an annotation

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
        elif kind in BUILT_IN:
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
    """Any place of a value without an annotation; the classes are known from elsewhere in the declaration."""

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
        """More than one if the place allows a generic class with several different type arguments."""
        self.name = scope.names.get(cls, cls.__name__)

    @cached_property
    def kind(self) -> str:
        """How its values are taken apart and rebuilt."""
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
        """The forms that its values have in JSON."""
        if self.kind == "enum":
            values = [value._value_ for value in self.cls.__members__.values()]  # type: ignore[attr-defined]
            return frozenset(form_of(type(value)) for value in values) or frozenset({ANY_FORM})
        if self.kind in ("model", "dataclass"):
            return frozenset({"dict"})
        if self.kind == "tuple":
            return frozenset({"list"})
        base = next((base for base in self.cls.__mro__ if base in BASES), None)
        return frozenset({ANY_FORM if base is None or self.kind == "root" else form_of(base)})

    @cached_property
    def field_names(self) -> frozenset[str]:
        """The names and aliases of its fields."""
        named: Any = getattr(self.cls, "model_fields", {}) if self.kind == "model" else {}
        return frozenset([*self._hints, *(one.alias for one in named.values() if one.alias)])

    @cached_property
    def inner(self) -> Shape | None:
        """The shape inside its values; None for an Enum, whose values have no annotation."""
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


class _Scope:
    """The context of an annotation: names for classes, the meaning of its words, and its type variables."""

    __slots__ = ("args", "names", "words")

    def __init__(
        self, names: Mapping[type, str], words: Mapping[str, Any], args: Mapping[Any, tuple[Any, _Scope]]
    ) -> None:
        self.names, self.words, self.args = names, words, args

    def inside(self, cls: type, args: Mapping[Any, tuple[Any, _Scope]]) -> _Scope:
        """Return the scope of the annotations in the body of this class."""
        module = sys.modules.get(cls.__module__)
        words = {**self.words, **(vars(module) if module else {}), cls.__name__: cls}
        return _Scope(self.names, words, args)


_NOWHERE: Final = _Scope({}, {}, {})
_Hint: TypeAlias = tuple[Any, _Scope]
OPEN: Final = Shape([(Any, _NOWHERE)], said="no annotation names")


# ---- Shapes of annotations and of arguments

ADAPTERS_MAX: Final = 512
_SHAPES: Final[dict[int, tuple[object, Shape]]] = {}


def shape_of(annotation: Any, *, words: Mapping[str, Any] | None = None) -> Shape:
    """Return the shape of an annotation; ``words``: the meaning of names in it and in the classes that it names."""
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
    """Return the shape of a dict of arguments.

    ``hints``: annotations by argument. ``rest``: the annotation of any other name. ``words``: the meaning of names in
    annotations. ``names``: the names under which classes are written.
    """
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
"""The arguments of a tool whose body is elsewhere: nothing is known about them, so they are plain data."""


def anywhere(shape: Shape) -> Shape:
    """Return the shape of a value that a function without annotations makes from values of this shape."""
    return _Anywhere(classes_below(shape))


def shape_of_given(value: object) -> Shape:
    """Return the shape of arguments that a framework has checked: it allows exactly the classes found in them.

    Every class is written by name, since no annotation is known that would decide it.
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
        elif type(one) not in BUILT_IN and type(one) not in SPELLINGS:
            classes.setdefault(type(one).__name__, type(one))
    if not classes:
        return ANY_ARGS
    return _Anywhere((place, Member(cls, cls, _NOWHERE.inside(cls, {}), place)) for cls in classes.values())


def classes_below(shape: Shape) -> list[tuple[Shape, Member]]:
    """Return every class that the annotation allows anywhere, with its place."""
    found: list[tuple[Shape, Member]] = []
    seen: set[tuple[type, ...]] = set()
    for place in places_below(shape):
        mark = tuple(place.classes)
        if mark not in seen:
            seen.add(mark)
            found += [(place, member) for member in place.classes.values()]
    return found


def places_below(shape: Shape) -> Iterator[Shape]:
    """Yield this place and all places inside it; a class or an alias that contains itself is visited once."""
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


# ---- Unions whose members no value can tell apart


def problem_of(shape: Shape) -> str | None:
    """Return why two members of a union in this annotation cannot be told apart; None if all can."""
    for place in places_below(shape):
        names: dict[str, type] = {}
        for cls, member in place.classes.items():
            other = names.setdefault(member.name, cls)
            if other is not cls:
                return (
                    f"two classes called {member.name} ({other.__module__}.{other.__qualname__} and "
                    f"{cls.__module__}.{cls.__qualname__}) share one place, and the record cannot tell them apart; "
                    'give one of them another name with class_names={TheClass: "Name"}'
                )
        bases: dict[int, str] = {}
        for name, new in place.newtypes.items():
            if (two := bases.setdefault(id(_supertype(new)), name)) != name:
                return f"{two} and {name} are NewTypes of one type, which no value can tell apart; use a class instead"
        for index, one in enumerate(place.tables):
            for two_table in place.tables[index + 1 :]:
                if one is not two_table and _is_like(one, two_table):
                    return (
                        f"the TypedDicts {one.__name__} and {two_table.__name__} have the same keys, so no value can "
                        "tell them apart; give each a key with another Literal"
                    )
    return None


def _is_like(one: Any, other: Any) -> bool:
    """Return whether no dict can tell the two TypedDicts apart."""
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


# ---- What pydantic knows about an annotation

_ADAPTERS: Final[dict[int, tuple[object, Any]]] = {}  # the annotation is kept, so that its id stays its own


def adapter(annotation: Any) -> Any:
    """Return pydantic's adapter for an annotation, or one for ``Any`` if pydantic has no schema for it."""
    # By identity: some annotations have no hash, and A | B equals B | A, which validates differently.
    known = _ADAPTERS.get(id(annotation))
    if known is None:
        from pydantic import TypeAdapter  # imported here: it takes longer to import than all of amends

        if len(_ADAPTERS) >= ADAPTERS_MAX:
            _ADAPTERS.clear()
        try:
            known = (annotation, TypeAdapter(annotation))
        except Exception:
            known = (annotation, _anything())
        _ADAPTERS[id(annotation)] = known
    return known[1]


def has_schema(annotation: Any) -> bool:
    """Return whether pydantic can check values of this annotation."""
    return adapter(annotation) is not _anything()


@cache
def _anything() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(Any)


# ---- Names, aliases and type variables


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
    """Return what an alias stands for; one that is written as text is evaluated in its own module."""
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
    """Return what the type variables of a generic class and of its generic bases stand for."""
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


# ---- What a value looks like in JSON


def _overlap(one: AbstractSet[str], other: AbstractSet[str]) -> bool:
    if ANY_FORM in one:
        return bool(other - {"none"})
    return bool(one & other) or ANY_FORM in other


def form_of(kind: type) -> str:
    """Return the form that a value of this type has in JSON."""
    return _FORMS.get(kind) or (kind.__name__ if kind in BUILT_IN else _form_below(kind))


def _form_below(kind: type) -> str:
    base = next((base for base in kind.__mro__ if base in BASES), None)
    return ANY_FORM if base is None else form_of(base)


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
