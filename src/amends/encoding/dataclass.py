"""A faster ``dataclass(slots=True)``: cheap to define and, if frozen, cheap to create.

The standard decorator compiles up to seven functions per class, most of which are never called: two thirds of the time
to import amends. It fills a frozen object with one function call per field: 5 us for a call's row, 0.9 us here. The
result is an ordinary dataclass: ``fields``, ``replace``, comparison, copying and pickling work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True, kw_only: bool = False) -> Any:
        """Decorate a class; only the options that amends uses are supported."""
        assert slots, "only classes with slots are supported"

        def decorate(cls: type[Any]) -> type[Any]:
            return _made(cls, frozen=frozen, eq=eq, kw_only=kw_only)

        return decorate


__all__ = ["changed", "dataclass", "field"]

T = TypeVar("T")
SWAP_FIELDS_MIN: Final = 3
"""From this many fields on it is faster to fill an unfrozen object and change its class than to bypass the freezing."""


class _Unset:
    """Stands for the default of a field with a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_UNSET: Final = _Unset()


def _made(cls: Any, *, frozen: bool, eq: bool, kw_only: bool) -> Any:
    assert not hasattr(cls, "__post_init__"), "__post_init__ is not supported"
    # The standard library insists that the subclasses of a frozen dataclass are frozen as well.
    inherits = frozen and any("__dataclass_params__" in vars(base) for base in cls.__mro__)
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False, frozen=inherits, slots=True, kw_only=kw_only)(
        cls
    )
    said = made.__dataclass_params__
    said.init, said.repr, said.eq, said.frozen = True, True, eq, frozen
    fields = dataclasses.fields(made)
    names = frozenset(one.name for one in fields)
    if "__repr__" not in vars(cls):
        made.__repr__ = _repr
    if eq:
        made.__eq__ = _eq
        made.__hash__ = _hash if frozen else None
    if frozen:
        made.__getstate__, made.__setstate__ = _getstate, _setstate
        made.__setattr__, made.__delattr__ = _guards(made, names)
    made.__init__ = _initializer(made, fields, frozen=frozen)
    return made


def _initializer(cls: Any, fields: tuple[dataclasses.Field[Any], ...], *, frozen: bool) -> Any:
    known: dict[str, Any] = {"_cls": cls, "_unset": _UNSET, "_become": _become, "_fill": _fill}
    first: list[str] = []
    last: list[str] = []
    lines: list[str] = []
    for one in fields:
        name, default = one.name, ""
        if one.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = one.default
            default = f"=_default_{name}"
        elif one.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = one.default_factory
            default = "=_unset"
            lines.append(f"if {name} is _unset: {name} = _make_{name}()")
        if one.init:
            (last if one.kw_only else first).append(name + default)
        else:
            assert default, f"{name} needs a default, since init=False"
            lines.insert(0, name + default)
    names = [one.name for one in fields]
    plain = [f"self.{name} = {name}" for name in names]
    if frozen and len(names) < SWAP_FIELDS_MIN:
        known |= {f"_set_{name}": getattr(cls, name).__set__ for name in names}
        lines += [f"_set_{name}(self, {name})" for name in names]
    elif frozen:
        known["_bare"] = _bare(cls)
        lines.append(f"if self.__class__ is not _cls: return _fill(self, _cls, ({', '.join(names)}))")
        lines += ["_become(self, _bare)", *plain, "self.__class__ = _cls"]
    else:
        lines += plain
    params = ", ".join(["self", *first, *(["*", *last] if last else [])])
    exec(f"def __init__({params}):\n    " + "\n    ".join(lines or ["pass"]), known)
    made: Any = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {one.name: one.type for one in fields} | {"return": None}
    return made


def _bare(cls: Any) -> Any:
    """Return a class of the same layout whose fields can be set."""
    known = {"__slots__": cls.__slots__, "__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    generic = {name: vars(cls)[name] for name in ("__orig_bases__",) if name in vars(cls)}
    return type("bare", cls.__bases__, known | generic)


def changed(one: T, changes: Mapping[str, Any]) -> T:
    """Return a copy of a frozen dataclass with some fields changed: ``dataclasses.replace``, many times faster."""
    kind = type(one)
    copy = _COPIERS.get(kind)
    if copy is None:
        copy = _COPIERS[kind] = _copier(kind)
    new = copy(one)
    for name, value in changes.items():
        setattr(new, name, value)
    new.__class__ = kind
    made: T = new
    return made


def _copier(cls: Any) -> Callable[[Any], Any]:
    """Return a function that copies an instance into an unfrozen one."""
    known: dict[str, Any] = {"_new": object.__new__, "_bare": _bare(cls)}
    lines = [
        "new = _new(_bare)",
        *(f"new.{one.name} = old.{one.name}" for one in dataclasses.fields(cls)),
        "return new",
    ]
    exec("def copy(old):\n    " + "\n    ".join(lines), known)
    made: Callable[[Any], Any] = known["copy"]
    return made


_COPIERS: Final[dict[type[Any], Callable[[Any], Any]]] = {}
_become: Final = object.__dict__["__class__"].__set__


def _fill(self: Any, cls: Any, values: tuple[Any, ...]) -> None:
    """Fill an instance of a subclass, whose layout may differ, so that its class cannot be swapped."""
    for one, value in zip(dataclasses.fields(cls), values, strict=True):
        object.__setattr__(self, one.name, value)


def _guards(cls: Any, names: frozenset[str]) -> tuple[Any, Any]:
    def refuse_set(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def refuse_del(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return refuse_set, refuse_del


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{one.name}={getattr(self, one.name)!r}" for one in dataclasses.fields(self) if one.repr)
    return f"{type(self).__qualname__}({shown})"


def _compared(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, one.name) for one in dataclasses.fields(self) if one.compare])


def _eq(self: Any, other: object) -> Any:
    return _compared(self) == _compared(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_compared(self))


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, one.name, value)
