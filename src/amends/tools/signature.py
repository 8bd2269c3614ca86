"""The parameters of a tool: arguments are bound, validated and described to a model.

All three use one pydantic model per tool, so that a model is told exactly what is checked. pydantic is imported, and
the model built, on first use, so that declaring tools stays cheap.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from decimal import Decimal
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from amends.encoding.annotations import Member, Shape, Tagged, adapter, anywhere, places_below, shape_of_args
from amends.encoding.canonical import CLASS
from amends.encoding.dataclass import dataclass, field
from amends.encoding.patterns import pattern
from amends.encoding.secret import MASK, NOTHING, RedactionRules
from amends.errors import SHOWN_CHARS_MAX, BadArguments, NotStorable, TooLarge, close_to, shown
from amends.model import Staged

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core import ErrorDetails, ValidationError

PROBLEMS_MAX: Final = 10
"""How many problems of one request are reported: a model corrects the first ones first."""
REPEAT: Final = "again_because"
"""The argument with which a model says that a repeat is deliberate; never a tool's own."""


# ---- Functions and their annotations


def plain_function(fn: Any) -> Any:
    """Return the function behind partials and callable objects, which has the code and the annotations."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if inspect.isroutine(fn) or inspect.isclass(fn):
        return fn
    return getattr(type(fn), "__call__", fn)  # noqa: B004 (the method itself is wanted)


def is_async_function(fn: Any) -> bool:
    """Return whether calling it returns a coroutine."""
    return inspect.iscoroutinefunction(plain_function(fn))


def globals_of(fn: Any) -> dict[str, Any]:
    """Return the globals in which its annotations are evaluated."""
    found: dict[str, Any] = getattr(inspect.unwrap(plain_function(fn)), "__globals__", {})
    return found


def hints_of(fn: Any, local_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return its annotations as types, without those that cannot be resolved.

    Never raise: names imported only for the type checker are common, and an unchecked argument is better than an
    agent that does not start.
    """
    plain = plain_function(fn)
    global_names = globals_of(fn)
    hints: dict[str, Any] = {}
    for name, annotation in getattr(plain, "__annotations__", {}).items():

        def holder() -> None: ...

        holder.__annotations__ = {name: annotation}
        try:
            hints.update(get_type_hints(holder, global_names, dict(local_names), include_extras=True))
        except Exception:  # an annotation may be any expression
            continue
    return hints


# ---- The signature


EXACT: Final = (str, int, float, bool, NoneType)
"""Plain types: an argument that is exactly of its type is bound without pydantic, which need not be imported then."""
_EMPTY: Final = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class _Model:
    cls: type[BaseModel]
    validate: Callable[[object], Any]
    error: type[ValidationError]
    fields: tuple[tuple[str, str], ...]
    """(argument, field): fields are numbered, since pydantic reserves some names that an argument may have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    """The arguments of one tool. Without slots, since cached properties are stored on the object."""

    tool: str
    fn: Callable[..., Any]
    local_names: Mapping[str, Any] = field(default_factory=dict[str, Any])
    class_names: Mapping[type, str] = field(default_factory=dict[type, str])

    @functools.cached_property
    def parameters(self) -> tuple[inspect.Parameter, ...]:
        """The parameters of the body."""
        return tuple(inspect.signature(self.fn).parameters.values())

    @functools.cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations of the body as types."""
        hints = hints_of(self.fn, self.local_names)
        for one in self.parameters:
            if one.default is None and one.name in hints and not _takes_none(hints[one.name]):
                hints[one.name] = Union[hints[one.name], None]  # noqa: UP007 (`x: str = None` means that)
        return hints

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The named arguments, in order."""
        return tuple(p.name for p in self.parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))

    @functools.cached_property
    def rest(self) -> inspect.Parameter | None:
        """The parameter that takes any other name (``**kwargs``)."""
        return next((p for p in self.parameters if p.kind is p.VAR_KEYWORD), None)

    @functools.cached_property
    def shape(self) -> Shape:
        """Which classes its arguments may have."""
        defaults = {one.name: type(one.default) for one in self.parameters if one.default is not one.empty}
        # A default of a user's class means that this class is allowed besides plain data.
        hints = {name: self.hints.get(name, Union[defaults.get(name, Any), Any]) for name in self.names}  # noqa: UP007
        rest = self.hints.get(self.rest.name, Any) if self.rest else None
        # A recursive alias contains its own name as text: Tree = Union[Leaf, list["Tree"]].
        words = {**globals_of(self.fn), **self.local_names}
        return shape_of_args(hints, rest, words=words, names=self.class_names)

    @functools.cached_property
    def anywhere(self) -> Shape:
        """Which classes a value that a function makes from the arguments may have, such as a key."""
        return anywhere(self.shape)

    @functools.cached_property
    def _open(self) -> frozenset[str]:
        """The arguments whose annotation leaves a class open."""
        places = {name: self.shape.value(name) for name in self.names}
        return frozenset(name for name, place in places.items() if any(one.tagged for one in places_below(place)))

    @functools.cached_property
    def _exact(self) -> tuple[tuple[str, type, Any], ...] | None:
        """Name, type and default of each argument if all are of plain types, whose values pydantic leaves as they are."""
        made = tuple((one.name, self.hints.get(one.name, Any), one.default) for one in self.parameters)
        plain = all(_is_exact(hint) and (default is _EMPTY or _is_exact(type(default))) for _, hint, default in made)
        return made if plain and len(made) == len(self.names) else None

    @functools.cached_property
    def positional(self) -> tuple[str, ...]:
        """The arguments that may be given by position."""
        return tuple(p.name for p in self.parameters if p.kind is p.POSITIONAL_OR_KEYWORD)

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], *, redact: RedactionRules | None = None
    ) -> dict[str, Any]:
        """Return the arguments by name, as the annotated types, with defaults; raise ``BadArguments``."""
        given = self._placed(args, kwargs) if args else kwargs
        for name, value in given.items():
            if isinstance(value, Staged):
                refuse(self.tool, [staged_problem(self.tool, name)])
        if self._exact is not None and (bound_exactly := _bound_exactly(given, self._exact)) is not None:
            return bound_exactly
        if self._open:
            given = {
                name: _chosen(value, self.shape.value(name), f"{self.tool}.{name}", self.tool)
                if name in self._open
                else value
                for name, value in given.items()
            }
        model = self._model
        try:
            bound = model.validate(given)
        except model.error as error:
            problems = problems_of(
                self.tool, error.errors(include_url=False), given, names=self.names, redact=redact or NOTHING
            )
        else:
            values = bound.__dict__
            named = {name: values[numbered] for name, numbered in model.fields}
            return {**named, **bound.__pydantic_extra__} if self.rest else named
        # Outside the handler: pydantic's error holds the values, redacted ones too, and must not become the context.
        raise BadArguments(self.tool, problems=problems)

    def _placed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.positional):
            refuse(self.tool, [f"{self.tool} takes {len(self.positional)} arguments by position, not {len(args)}"])
        given = dict(zip(self.positional, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            refuse(self.tool, [f"{self.tool}.{name} is given twice" for name in sorted(twice)])
        return {**given, **kwargs}

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments, as a copy that the caller may change."""
        return copy.deepcopy(self._schema)

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        made = self._model.cls.model_json_schema(by_alias=True, schema_generator=_generator())
        made.pop("title", None)
        made.setdefault("properties", {})
        return made

    @functools.cached_property
    def _model(self) -> _Model:
        from pydantic_core import ValidationError

        hints = {name: exact(self.hints.get(name, Any)) for name in self.names}
        rest = exact(self.hints.get(self.rest.name, Any)) if self.rest else None
        cls = self._made(hints, rest)
        if cls is None:
            # pydantic has no schema for some annotation: those arguments accept anything, the others stay checked.
            hints = {name: hint if self._made({name: hint}, None) else Any for name, hint in hints.items()}
            cls = self._made(hints, Any if self.rest else None)
        assert cls is not None, "every single hint was accepted"
        fields = tuple((name, f"f{number}") for number, name in enumerate(hints))
        return _Model(cls, cls.__pydantic_validator__.validate_python, ValidationError, fields)

    def _made(self, hints: Mapping[str, Any], rest: Any) -> type[BaseModel] | None:
        from pydantic import BaseModel, ConfigDict, Field, create_model

        config = ConfigDict(arbitrary_types_allowed=True, extra="forbid" if rest is None else "allow")
        body: dict[str, Any] = {"__module__": __name__, "model_config": config}
        if rest is not None:
            body["__annotations__"] = {"__pydantic_extra__": dict[str, rest]}
        defaults = {p.name: ... if p.default is p.empty else p.default for p in self.parameters}
        fields: dict[str, Any] = {}
        for number, (name, hint) in enumerate(hints.items()):
            fields[f"f{number}"] = _field(Field, name, hint=hint, default=defaults[name])
        try:
            base: Any = type.__call__(type(BaseModel), "Base", (BaseModel,), body)
            cls: type[BaseModel] = create_model("Arguments", __base__=base, **fields)
            cls.model_rebuild(raise_errors=True)
        except Exception:  # an annotation may raise anything while pydantic inspects it
            return None
        return cls


def _is_exact(hint: object) -> bool:
    return any(hint is one for one in EXACT)  # by identity: a hint need not have a hash


def _bound_exactly(given: Mapping[str, Any], exact_types: tuple[tuple[str, type, Any], ...]) -> dict[str, Any] | None:
    """Return the arguments with defaults if each value is exactly of its type, as pydantic would; else None."""
    bound: dict[str, Any] = {}
    left = len(given)
    for name, kind, default in exact_types:
        if name in given:
            value, left = given[name], left - 1
            if type(value) is not kind:
                return None
        elif default is _EMPTY:
            return None
        else:
            value = default
        bound[name] = value
    return None if left else bound


def _field(make: Callable[..., Any], name: str, *, hint: Any, default: Any) -> tuple[Any, Any]:
    if type(default).__name__ == "FieldInfo":  # def f(cents: int = Field(gt=0))
        return Annotated[hint, default], make(alias=name)
    return hint, make(alias=name, default=default)


def _chosen(value: Any, shape: Shape, place: str, tool: str) -> Any:
    """Return plain data with a value of the class at each place that names one; refuse what fits two classes.

    pydantic takes the first member of a union that fits, so data that fits several must name its class, as in the
    stored form.
    """
    kind = type(value)
    if kind in (dict, Tagged) and len(value) == 1 and CLASS in value and shape.classes:
        return _named(value[CLASS], shape, place, tool)
    if kind is list or kind is tuple:
        return kind(_chosen(item, shape.at(index), f"{place}[{index}]", tool) for index, item in enumerate(value))
    if kind is dict:
        inside: Shape | None = shape
        if dict not in shape.types and not shape.is_open:
            member = _only(value, [one for one in shape.classes.values() if "dict" in one.forms], shape, place, tool)
            inside = None if member is None else member.inner
        if inside is None:
            return value
        return {key: _chosen(item, inside.value(key), f"{place}.{key}", tool) for key, item in value.items()}
    if kind not in shape.types and not shape.is_open and kind in (str, int, float, bool):
        enums = [one for one in shape.classes.values() if one.kind == "enum"]
        _only(value, enums, shape, place, tool)
    return value


def _named(pair: Any, shape: Shape, place: str, tool: str) -> Any:
    """Return the value of ``{"$class": [name, data]}``."""
    is_pair = isinstance(pair, list | tuple) and len(pair) == 2
    member = next((one for one in shape.classes.values() if is_pair and one.name == pair[0]), None)
    if member is None:
        names = " or ".join(one.name for one in shape.classes.values())
        refuse(tool, [f'{place} must be {{"{CLASS}": [name, data]}} with the name {names}'])
    data = pair[1] if member.inner is None else _chosen(pair[1], member.inner, place, tool)
    try:
        made = adapter(member.hint).validate_python(data, by_alias=True, by_name=True)
    except Exception as error:
        problem = f"{place} is not a valid {member.name} ({type(error).__name__})"
    else:
        return made
    return refuse(tool, [problem])  # outside the handler, whose error holds the values


def _only(value: Any, members: Sequence[Member], shape: Shape, place: str, tool: str) -> Member | None:
    """Return the one class that fits this plain value best; None if none does, or pydantic is to choose."""
    if len(members) < 2:
        return members[0] if members else None
    if shape.is_decided:
        return None
    fits: dict[str, tuple[int, Member]] = {}
    for member in members:
        try:
            adapter(member.hint).validate_python(value)
        except Exception:  # it does not fit, or its validators refuse it
            continue
        named = value.keys() & member.field_names if isinstance(value, dict) else ()
        fits[member.name] = (len(named), member)
    best = max((count for count, _ in fits.values()), default=0)
    found = [member for count, member in fits.values() if count == best]
    if len(found) > 1:
        names = " and ".join(one.name for one in found)
        example = f'{{"{CLASS}": ["{found[0].name}", …]}}'
        refuse(tool, [f"{place} could be {names}: say which, as in {example}"])
    return found[0] if found else None


def parsed(tool: str, arguments: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """Return a model's arguments as a mapping; raise ``BadArguments``."""
    value: Any = arguments
    problem = f"the arguments of {tool} must be a JSON object"
    if isinstance(arguments, str):
        try:
            # Some models send nothing at all for a tool without arguments.
            value = json.loads(arguments, parse_constant=_no_constant) if arguments.strip() else {}
        except (ValueError, RecursionError):
            value, problem = None, f"the arguments of {tool} are not valid JSON"
    if not isinstance(value, Mapping):
        refuse(tool, [problem])  # outside the handler, whose error holds the whole text
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# ---- Stricter validation than pydantic's

_REBUILT: Final = frozenset(
    {list, set, frozenset, tuple, dict, Sequence, Iterable, Iterator, Collection, Mapping, AbstractSet}
)


def exact(hint: Any) -> Any:
    """Return the hint so that True and False are not numbers: pydantic takes them for 1 and 0, a payment must not."""
    origin, args = get_origin(hint), get_args(hint)
    if _is_number(hint):
        return Annotated[hint, _no_bool(hint)]
    if origin is Annotated and _is_number(args[0]):
        # Last, so that bounds before it (Field(gt=0)) still reach the number's own schema.
        return Annotated[(*args, _no_bool(args[0]))]
    if origin is Annotated:
        return Annotated[(exact(args[0]), *args[1:])]
    if origin in (Union, UnionType):
        # Enums before Literals: pydantic would take a member of a str Enum for an equal Literal that comes first.
        args = tuple(sorted(args, key=_is_literal))
        return Union[tuple(exact(arg) for arg in args)]  # noqa: UP007 (known at run time only)
    if origin is Iterable or hint is Iterable:
        # pydantic would read it lazily, into an iterator that cannot be stored.
        item = exact(args[0]) if args else Any
        return Union[Sequence[item], set[item], frozenset[item]]  # type: ignore[valid-type]  # noqa: UP007 (known at run time only)
    if origin in _REBUILT:
        return origin[tuple(arg if arg is ... else exact(arg) for arg in args)]
    return Any if _is_closed_protocol(hint) else hint


def _is_literal(hint: Any) -> bool:
    origin: Any = get_origin(hint)
    return origin is Literal


def _is_number(hint: Any) -> bool:
    return hint is int or hint is float or hint is Decimal


def _is_closed_protocol(hint: Any) -> bool:
    """Return whether isinstance() would refuse this protocol, so that it cannot be checked at a call."""
    return bool(getattr(hint, "_is_protocol", False)) and not getattr(hint, "_is_runtime_protocol", False)


@functools.cache
def _no_bool(number: type) -> Any:
    from pydantic import BeforeValidator
    from pydantic_core import PydanticKnownError

    kind: Any = {int: "int_type", float: "float_type", Decimal: "decimal_type"}[number]

    def no_bool(value: object) -> object:
        if value is True or value is False:
            raise PydanticKnownError(kind)
        return value

    return BeforeValidator(no_bool)


@functools.cache
def _generator() -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema

    class Plain(GenerateJsonSchema):
        """Schemas without titles, which only cost tokens; a type that JSON lacks is any value."""

        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 (pydantic's own type)

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
            return {}

    return Plain


def _takes_none(hint: Any) -> bool:
    try:
        return admits_none(hint)
    except TypeError:  # an annotation that has no hash
        return True


def admits_none(hint: Any) -> bool:
    """Return whether a value of this annotation may be None; True if the annotation does not say."""
    if isinstance(hint, str | TypeVar) or hint in (Any, object, None, type(None), inspect.Signature.empty):
        return True
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return admits_none(args[0])
    if origin in (Union, UnionType):
        return any(admits_none(arg) for arg in args)
    if origin is Literal:
        return None in args
    meant = getattr(hint, "__value__", hint)  # type X = str | None
    return meant is not hint and admits_none(meant)


# ---- Problems in words

_WANTED: Final = {
    "int": "an integer",
    "float": "a number",
    "decimal": "a decimal number",
    "bool": "true or false",
    "string": "a string",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "frozen_set": "a list",
    "dict": "an object",
    "mapping": "an object",
    "model": "an object",
    "dataclass": "an object",
    "date": "a date",
    "datetime": "a date with a time",
    "time": "a time",
    "time_delta": "a duration",
    "uuid": "a UUID",
    "url": "a URL",
    "none": "null",
}
_WHOLES: Final = ("an object", "a list")  # the value that was given instead may contain anything
_WHY: Final = pattern(r"_(parsing|type|from_float|parsing_size|required)$")


def refuse(tool: str, problems: Sequence[str]) -> NoReturn:
    """Raise ``BadArguments`` with these problems."""
    raise BadArguments(tool, problems=problems)


# ---- What a model can correct

JSON_VALUES_MAX: Final = 2_000_000
PLACE_CHARS_MAX: Final = 60


@contextmanager
def correctable(tool: str, given: object) -> Iterator[None]:
    """Turn what cannot be stored of a model's arguments into ``BadArguments``: the model can send others.

    If ``given`` is no JSON data, a program made it, and its error stays.
    """
    try:
        yield
    except (NotStorable, TooLarge) as error:
        if not error.path.startswith("args") or not _is_json(given):  # else it is a key, or a program's own value
            raise
        raise BadArguments(tool, problems=[_correction(tool, error)]) from error


def _correction(tool: str, error: NotStorable | TooLarge) -> str:
    if isinstance(error, TooLarge):
        return f"{tool}: its arguments have {error.size:,} bytes, and at most {error.limit:,} are accepted: send less"
    place = f"{tool}{error.path.removeprefix('args')}"
    what = str(error).removeprefix(error.path).strip()
    place = place if len(place) <= PLACE_CHARS_MAX else f"{place[:PLACE_CHARS_MAX]}…"
    return f"{place} {what} ({error.hint})"


def _is_json(given: object) -> bool:
    """Return whether a model could have sent it."""
    left, count = [given], 0
    while left:
        one = left.pop()
        count += 1
        if count > JSON_VALUES_MAX:
            return isinstance(given, dict)  # so much was not made by hand
        if isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif type(one) is list:
            left += one
        elif one is not None and type(one) not in (str, int, float, bool):
            return False
    return True


def no_repeat(tool: str) -> str:
    """Return the problem of a repeat that is not possible."""
    return f'{tool} has no argument "{REPEAT}": a call that was made before cannot be repeated here; leave it out'


def staged_problem(tool: str, name: str) -> str:
    """Return the problem of a staged call given as an argument."""
    return f"{tool}.{name} is a staged call: it has no result yet"


def problems_of(
    tool: str,
    errors: Sequence[ErrorDetails],
    given: Mapping[str, Any],
    *,
    names: Sequence[str],
    redact: RedactionRules,
) -> list[str]:
    """Return pydantic's errors in our own words, at most ``PROBLEMS_MAX``.

    ``given``: the arguments as given. ``names``: the arguments of the tool. ``redact``: what must not be quoted.
    """
    told: list[str] = []
    wanted: dict[str, list[str]] = {}
    values: dict[str, str] = {}
    for error in errors:
        *above, last = path = _path(error, given)
        place = ".".join([tool, *map(str, path)])
        is_secret = redact.touches(path, error["input"])
        if error["type"] == "missing":
            told.append(f"{place} is missing")
        elif error["type"] == "extra_forbidden":
            told.append(_unknown(".".join([tool, *map(str, above)]), str(last), names=() if above else names))
        elif words := _wants(error, is_secret=is_secret):
            is_secret = is_secret or (bool(redact) and words in _WHOLES)
            wanted.setdefault(place, []).append(words)
            values[place] = MASK if is_secret else _quoted(error["input"])
        else:
            told.append(_free(place, error, is_secret=is_secret))
    told += [f"{place} must be {' or '.join(dict.fromkeys(w))}, not {values[place]}" for place, w in wanted.items()]
    return told[:PROBLEMS_MAX]


def _path(error: ErrorDetails, given: Any) -> list[int | str]:
    """Return the path in the arguments as given, without pydantic's names for the members of a union."""
    first, *parts = error["loc"]
    path = [first]
    given = given.get(first)
    for part in parts:
        # The last part names what is missing, although there is no such value.
        is_named = error["type"] == "missing" and part is parts[-1]
        try:
            given = given[part]
        except (TypeError, KeyError, IndexError):
            if not is_named:
                continue
        path.append(part)
    return path


def _quoted(value: object) -> str:
    return f'"{shown(value)}"' if isinstance(value, str) else shown(value)


def _unknown(place: str, name: str, *, names: Sequence[str]) -> str:
    close = close_to(name, names)
    guess = f'; did you mean "{close[0]}"?' if close else ""
    return f'{place} has no argument "{shown(name)}"{guess}'


def _wants(error: ErrorDetails, *, is_secret: bool) -> str | None:
    """Return the words after "must be" if the error only states a type, else None."""
    if known := _WANTED.get(_WHY.sub("", error["type"])):
        return known
    message = error["msg"]
    if is_secret or not message.startswith("Input should be "):
        return None
    return message.removeprefix("Input should be ")[:SHOWN_CHARS_MAX]


def _free(place: str, error: ErrorDetails, *, is_secret: bool) -> str:
    if is_secret:
        return f"{place} is not valid"  # the message of a user's validator may quote the value
    message = error["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = re.sub(r"^\w+ should ", "must ", message)
    return f"{place} {message}" if message.startswith("must ") else f"{place} is not valid: {shown(message)}"
