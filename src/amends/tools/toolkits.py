"""Declare a whole toolkit at once: the functions of a module, a class, an object, a list or a dict."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from types import FrameType, ModuleType
from typing import Any, Final, Literal, TypeAlias

from amends.errors import BadDeclaration, close_to
from amends.tools.declarations import declaration, declared_target
from amends.tools.scope import Options
from amends.tools.spec import ClassOptions, Declaration, declaration_of, place
from amends.tools.tool import Declared, function_of

TOOLS_MAX: Final = 1_000
Rest: TypeAlias = Literal["raise", "skip"] | ClassOptions
_ABSENT: Final = object()


def declare_all(
    toolkit: object, options: Mapping[str, ClassOptions | None], /, *, rest: Rest = "raise"
) -> list[Declared]:
    """Declare every tool of a toolkit, as ``tool(fn, ...)`` does, and return them for ``Runtime(tools=...)``.

    ``toolkit``: a module, a class or an object (its public functions or methods), or functions in a list or a dict. A
    name, or an object with a ``name`` (a framework's tool), in a list or a dict is declared without a body, as
    ``declare(name, ...)`` does. The toolkit itself is not changed. ``options``: the options of each tool by its name in
    the toolkit; None leaves it out. ``rest``: what to do with tools that ``options`` does not name: "raise" (default),
    "skip", or options for all of them. Raise ``BadDeclaration``, which names the tool.
    """
    frame = sys._getframe(1)
    kit = _Kit(toolkit, place(frame.f_code.co_filename, frame.f_lineno))
    if not isinstance(options, Mapping):
        raise kit.bad(f"the options of the toolkit are a mapping from names to options, not {options!r}", "")
    members = kit.members()
    for name in options:
        if name not in members:
            members[name] = kit.named(name, members)
    left = [name for name, thing in members.items() if name not in options and declaration_of(thing) is None]
    if left and rest == "raise":
        raise _undeclared(kit, left)
    made: list[Declared] = []
    for name, thing in members.items():
        said = options.get(name, rest)
        if name not in options and declaration_of(thing) is not None:
            made.append(thing)  # declared by itself, with @tool
        elif said is not None and said != "skip":
            made.append(_declared(kit, name, thing, said, frame))
    if not made:
        raise kit.bad(f"{kit} has no tool to declare", "")
    return made


def _undeclared(kit: _Kit, left: list[str]) -> BadDeclaration:
    are = "is" if len(left) == 1 else "are"
    return kit.bad(
        f"{kit}: {', '.join(left)} {are} not declared",
        left[0],
        hint=f'give options, {{"{left[0]}": {{"kind": "read"}}}}, or None to leave it out; rest= says it for all',
    )


def _declared(kit: _Kit, name: str, thing: Any, said: object, frame: FrameType) -> Declared:
    if not isinstance(said, Mapping) or not all(isinstance(word, str) for word in said):
        raise kit.bad(
            f"{name}: its options are {said!r}, which is not a mapping",
            name,
            hint=f'say {{"{name}": {{"kind": "read"}}}}',
        )
    if declaration_of(thing) is not None:
        raise kit.bad(f"{name} is already a tool: leave it out of the options, or declare its body, {name}.fn", name)
    given = {"name": name, **said}
    if not isinstance(given["name"], str) or not given["name"]:
        raise kit.bad(f"{name}: its name is {given['name']!r}, which is not a name", name)
    try:
        if _is_elsewhere(thing):
            return declaration(given.pop("name"), kit.where, options=given)
        found = declared_target(thing, given, frame)
        return found if isinstance(thing, type) else function_of(found, Options())
    except BadDeclaration as error:
        error.tool = name  # which may differ from the function's own
        raise


def _is_elsewhere(thing: object) -> bool:
    """Return whether this names a tool without being its body: a name, or the tool of a framework."""
    is_function = inspect.isroutine(thing) or isinstance(thing, functools.partial | type)
    return not is_function and not callable(getattr(thing, "execute", None)) and _own_name(thing) is not None


def _own_name(thing: object) -> str | None:
    name = thing if isinstance(thing, str) else getattr(thing, "name", None)
    return name if isinstance(name, str) and name else None


class _Kit:
    """A toolkit: what it has, and what messages call it."""

    def __init__(self, toolkit: object, where: str) -> None:
        self.toolkit, self.where = toolkit, where
        self._made: object = _ABSENT

    def __str__(self) -> str:
        own = self.toolkit
        if isinstance(own, ModuleType | type):
            return own.__name__
        return "the toolkit" if _is_listing(own) else f"the toolkit {type(own).__name__}"

    def bad(self, problem: str, tool: str, *, hint: str | None = None) -> BadDeclaration:
        """Return the error, with the line that declares the toolkit."""
        return BadDeclaration(problem, tool=tool, where=self.where, hint=hint)

    def members(self) -> dict[str, Any]:
        """Return the tools by name, in their order."""
        own, found = self.toolkit, dict[str, Any]()
        if own is None or isinstance(own, str | bytes | int | float) or inspect.isroutine(own):
            raise self.bad(f"{own!r} is not a toolkit: give a module, a class, an object, a list or a dict", "")
        for name, thing in self._items():
            if not isinstance(name, str) or not name or name == "<lambda>":
                raise self.bad(
                    f"{thing!r} has no name: give the toolkit as a dict, {{name: function}}",
                    "",
                    hint="name each function",
                )
            if name in found:
                raise self.bad(f"{self} has two tools called {name}: give it as a dict, with two names", name)
            found[name] = thing
            if len(found) > TOOLS_MAX:
                raise self.bad(f"{self} has more than {TOOLS_MAX} tools", name)
        return found

    def named(self, name: object, members: Mapping[str, Any]) -> Any:
        """Return a function that is not listed but that somebody names, such as an imported one."""
        if isinstance(name, str) and not _is_listing(self.toolkit):
            static = inspect.getattr_static(self.toolkit, name, _ABSENT)
            if static is not _ABSENT and (found := self._bound(name, static)) is not None:
                return found
        close = close_to(name, members, cutoff=0.4) if isinstance(name, str) else []
        raise self.bad(
            f"{self} has no tool {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""),
            str(name),
            hint=f"it has {', '.join(members) or 'none'}",
        )

    def _items(self) -> Iterator[tuple[Any, Any]]:
        own: Any = self.toolkit
        if isinstance(own, Mapping):
            yield from own.items()
        elif isinstance(own, ModuleType):
            yield from self._of_module(own)
        elif _is_listing(own):
            yield from ((_name_in_list(thing), thing) for thing in own)
        else:
            yield from self._of_class(own if isinstance(own, type) else type(own))

    def _of_module(self, module: ModuleType) -> Iterator[tuple[str, Any]]:
        said = getattr(module, "__all__", None)
        for name, value in vars(module).items():
            is_own = getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
            if inspect.isfunction(value) and (is_own if said is None else name in said):
                yield name, value

    def _of_class(self, cls: type) -> Iterator[tuple[str, Any]]:
        # In the order in which they are written, the base classes first; a property is never evaluated.
        for base in reversed(cls.__mro__[:-1]):
            for name in vars(base):
                if not name.startswith("_") and next(one for one in cls.__mro__ if name in vars(one)) is base:
                    found = self._bound(name, inspect.getattr_static(self.toolkit, name))
                    if found is not None:
                        yield name, found

    def _bound(self, name: str, static: Any) -> Any:
        """Return a function of the toolkit as it is called: a method is bound. None if it is not a function."""
        if isinstance(static, staticmethod | classmethod):
            return getattr(self.toolkit, name)
        if not inspect.isfunction(static) and not inspect.isbuiltin(static) and not inspect.ismethod(static):
            return None
        if isinstance(self.toolkit, type) and _takes_self(static):
            return getattr(self._instance(name), name)
        return getattr(self.toolkit, name)

    def _instance(self, name: str) -> object:
        """Return an object of a class that is the toolkit, made once."""
        assert isinstance(self.toolkit, type), "only a class is instantiated"
        if self._made is _ABSENT:
            try:
                self._made = self.toolkit()
            except TypeError as error:
                raise self.bad(
                    f"{name} is a method, and {self} cannot be created without arguments ({error}): "
                    f"create it yourself, declare_all({self}(…), …)",
                    name,
                ) from error
        return self._made


def _is_listing(toolkit: object) -> bool:
    """Return whether this holds functions; an object that can be iterated, as a pydantic model, is not meant so."""
    return isinstance(toolkit, (Mapping, Sequence, Set, Iterator, ValuesView)) and not isinstance(toolkit, str | bytes)


def _takes_self(static: Any) -> bool:
    code = getattr(inspect.unwrap(static), "__code__", None)
    return code is not None and code.co_argcount > 0 and code.co_varnames[0] == "self"


def _name_in_list(thing: Any) -> str | None:
    declared = declaration_of(thing)
    if isinstance(declared, Declaration):
        return declared.name
    if _is_elsewhere(thing):
        return _own_name(thing)
    while isinstance(thing, functools.partial):
        thing = thing.func
    if not callable(thing) and not callable(getattr(thing, "execute", None)):
        return None
    return getattr(thing, "__name__", None) or type(thing).__name__
