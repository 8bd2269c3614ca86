"""Check rules against the tools that they name: arguments that exist, and values that they can have.

``rules`` checks each rule by itself.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, get_args, get_origin
from uuid import UUID

from amends.encoding.dataclass import dataclass
from amends.errors import close_to, folded, is_slip
from amends.tools.conditions import (
    BOOLS,
    SCALARS,
    WILD,
    Condition,
    any_of,
    fields_of_type,
    is_as,
    is_equal,
    is_many,
    moment_of,
    names_of,
    nfc,
    number_of,
    path_parts,
    read_condition,
    shown_condition,
    text_matches,
)
from amends.tools.rules import Escalation, Rule, bad_rule, did_you_mean, matches_name
from amends.tools.signature import Signature
from amends.tools.spec import Spec

# ---- Rules and tools


def check_rules_for(
    rules: Sequence[Rule], specs: Mapping[str, Spec], *, origin: str, approvers: Mapping[str, Sequence[str]]
) -> list[str]:
    """Raise ``BadRule`` for a rule that can never match a declared tool as intended; return warnings about others."""
    warnings: list[str] = []
    for number, rule in enumerate(rules, 1):
        warnings += _check_tool(rule, number, specs, origin)
        later = [role for one in rule.escalate if isinstance(one, Escalation) for role in one.roles]
        if missing := sorted({role for role in (*rule.roles, *later) if approvers and not approvers.get(role)}):
            warnings.append(
                f"rule {number} ({origin}) asks for the role {missing[0]!r}, which nobody has"
                f"{did_you_mean(missing[0], approvers)}: say who has it in approvers"
            )
        people = {one for role in rule.roles for one in approvers.get(role, ())}
        if people and len(people) < rule.approvers:
            warnings.append(
                f"rule {number} ({origin}) asks for {rule.approvers} people of {' or '.join(rule.roles)}, "
                f"and there {'is' if len(people) == 1 else 'are'} {len(people)}"
            )
    return warnings


def check_agents(rules: Sequence[Rule], known: Iterable[str], *, origin: str) -> None:
    """Raise ``BadRule`` for a rule whose agent is a mistyped known name."""
    names = [*known]
    for number, rule in enumerate(rules, 1):
        if any(matches_name(name, rule.agent) for name in names):
            continue
        if alike := [name for name in names if _may_be(rule.agent, name)]:
            text = f"is for the agent {rule.agent!r}, which does not exist; did you mean {alike[0]!r}?"
            raise bad_rule(number, origin, text, tool=rule.tool, meant=alike[0])


def _check_tool(rule: Rule, number: int, specs: Mapping[str, Spec], origin: str) -> list[str]:
    if not specs:
        return []  # a program without tools only reads the ledger
    meant = [spec for name, spec in specs.items() if matches_name(name, rule.tool)]
    if meant:
        if rule.undeclared and not WILD.search(rule.tool):
            return [f"rule {number} ({origin}) is for {rule.tool} only while it is undeclared, but it is declared"]
        if not rule.undeclared:
            _check_args(rule, number, meant, origin)
        return []
    names = [one for one in re.split(r"[,|;&+()\[\]{}^$'\"\s]+|^re:", rule.tool) if one]
    several = [one for one in names if one in specs]
    if several:
        advice = "write one rule for each" if len(names) > 1 else f"did you mean {several[0]!r}?"
        raise bad_rule(
            number, origin, f"is for {rule.tool!r}, which is not a pattern for one tool; {advice}",
            tool=rule.tool, meant=several[0],
        )  # fmt: skip
    if rule.undeclared:
        alike = next((name for name in specs if fnmatchcase(folded(name), folded(rule.tool))), None)
    else:
        alike = next((name for name in specs if _may_be(rule.tool, name)), None)
    if alike is not None:
        raise bad_rule(
            number, origin, f"is for {rule.tool!r}, which is not a tool; did you mean {alike!r}?",
            tool=rule.tool, meant=alike,
        )  # fmt: skip
    if rule.undeclared:
        return []
    return [f"rule {number} ({origin}) is for {rule.tool!r}, which is not a tool here{did_you_mean(rule.tool, specs)}"]


def _may_be(pattern: str, name: str) -> bool:
    """Return whether a pattern that does not match a name was probably meant to."""
    if fnmatchcase(folded(name), folded(pattern)):
        return True
    head = WILD.split(pattern, maxsplit=1)[0]
    if head == pattern:
        return is_slip(pattern, name)
    return len(head) >= 4 and is_slip(head, name[: len(head)])  # "sned_*"


def _check_args(rule: Rule, number: int, meant: Sequence[Spec], origin: str) -> None:
    for path, said in _flat(rule.args):
        problems = [_argument_problem(spec, path, said) for spec in meant]
        slips = [one for one in problems if one is not None and not one.known and is_slip(path[0], one.meant)]
        closed = [
            one for spec, one in zip(meant, problems, strict=True) if one is not None or not _is_open(spec, path[0])
        ]
        # If a pattern names several tools, those that have the argument are meant. A tool that takes any name does not
        # excuse a name that is a typing error for another of them.
        if all(problem is not None for problem in problems) or (slips and all(one is not None for one in closed)):
            first = next((one for one in problems if one is not None and one.known), problems[0])
            first = first or slips[0]
            raise bad_rule(number, origin, first.text, tool=rule.tool, argument=".".join(path), meant=first.meant)


def _is_open(spec: Spec, name: str) -> bool:
    """Return whether the tool takes this argument only because it takes any name."""
    return spec.signature is None or (spec.signature.rest is not None and name not in map(nfc, spec.signature.names))


def _flat(args: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    for path, said in args.items():
        parts = (*above, *path_parts(path))
        if isinstance(said, Mapping):
            yield from _flat(said, parts)
        else:
            yield parts, said


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str
    meant: str = ""
    known: bool = True
    """Whether the tool has the argument, and only the value is wrong."""


class _Strange(Exception):
    """A type does not have this path or value."""

    def __init__(self, text: str, meant: str = "") -> None:
        super().__init__(text)
        self.meant = meant


def _argument_problem(spec: Spec, path: tuple[str, ...], said: object) -> _Problem | None:
    signature = spec.signature
    if signature is None:
        return None  # its body is elsewhere, so its arguments are not known
    place = f"{spec.name}.{'.'.join(path)}"
    try:
        hint = _hint_of(signature, path[0])
    except _Strange as strange:
        return _Problem(f"names {place}, and {spec.name} {strange}", strange.meant, known=False)
    try:
        leaves = _below(hint, path[1:])
    except _Strange as strange:
        return _Problem(f"names {place}, and {strange}", strange.meant)
    for one in said if is_many(said) else (said,):
        try:
            _check_leaves(leaves, one)
        except _Strange as strange:
            return _Problem(f"says {place} is {shown_condition(one)!r}, and {strange}", strange.meant)
    return None


def _hint_of(signature: Signature, name: str) -> Any:
    by_name = {nfc(one): one for one in signature.names}
    if name in by_name:
        return signature.hints.get(by_name[name], Any)
    rest = signature.rest
    known = [*signature.names]
    if rest is not None:
        hint = signature.hints.get(rest.name, Any)
        if get_origin(hint) is typing.Unpack:
            names = fields_of_type(get_args(hint)[0]) or {}
            if name in names:
                return names[name]
            known += names
        elif name != rest.name and not any(is_slip(name, one) for one in known):
            return hint
    raise _Strange(f'has no argument "{name}"{did_you_mean(name, known)}', meant="".join(close_to(name, known)))


# ---- Paths below a type


def _below(hint: Any, parts: tuple[str, ...]) -> list[Any]:
    """Return the types at a path below a type (``Any`` if unknown); raise ``_Strange`` if there is no such path."""
    whole, hint = hint, _plain_hint(hint)
    if hint is Any:
        return [Any]
    if _is_union(hint):
        return _below_any([one for one in get_args(hint) if one is not type(None)] or [Any], parts, get_args(hint))
    if not parts:
        return [whole]  # with its bounds
    origin = get_origin(hint) or hint
    if parts[0] == "*" and _is_list_type(origin) and fields_of_type(hint) is None:
        return _below_any([one for one in get_args(hint) if one is not ...] or [Any], parts[1:], ())
    if isinstance(origin, type) and issubclass(origin, Mapping) and not typing.is_typeddict(origin):
        given = get_args(hint)
        key, value = given if len(given) == 2 else (Any, Any)  # Counter[str] has one
        return _below_keys(key, value, parts)
    fields = fields_of_type(hint)
    if fields is not None and parts[0] in fields:
        return _below(fields[parts[0]], parts[1:])
    if _is_list_type(origin) and fields is None:
        return _below_places(hint, parts)
    if fields is not None:
        raise _Strange(
            f'{_type_name(hint)} has no "{parts[0]}"{did_you_mean(parts[0], fields)}',
            "".join(close_to(parts[0], fields)),
        )
    if isinstance(origin, type) and (origin in SCALARS or issubclass(origin, Enum)):
        if not callable(getattr(origin, parts[0], len)) and origin not in (str, bytes, int, float, bool, Decimal):
            return [Any]
        raise _Strange(f"{_type_name(hint)} has nothing called {parts[0]!r} in it")
    if get_origin(hint) is Literal:
        raise _Strange(f"{_type_name(hint)} has nothing called {parts[0]!r} in it")
    return [Any]


def _below_places(hint: Any, parts: tuple[str, ...]) -> list[Any]:
    """Return the types at a path below a list, or below a tuple, whose places may have types of their own."""
    inner = [one for one in get_args(hint) if one is not ...] or [Any]
    if not re.fullmatch(r"-?\d+", parts[0]):
        return _below_any(inner, parts, ())
    if get_origin(hint) is tuple and ... not in get_args(hint):
        place = int(parts[0])
        if not -len(inner) <= place < len(inner):
            raise _Strange(f"{_type_name(hint)} has no place {place}: its places are 0 to {len(inner) - 1}")
        inner = [inner[place]]
    return _below_any(inner, parts[1:], ())


def _below_keys(key: Any, hint: Any, parts: tuple[str, ...]) -> list[Any]:
    """Return the types at a path below a dict; raise ``_Strange`` for a key that the type of its keys excludes."""
    plain = _plain_hint(key)
    if parts[0] == "*":
        return _below(hint, parts[1:])
    if plain is int and not re.fullmatch(r"-?\d+", parts[0]):
        raise _Strange(f"{parts[0]!r} is not a key there: keys are whole numbers")
    if not (options := _options_of(plain)):
        return _below(hint, parts[1:])
    names = [name for one in options for name in names_of(one)]
    for count in range(1, len(parts) + 1):
        if ".".join(parts[:count]) in names:
            return _below(hint, parts[count:])
    guess = did_you_mean(parts[0], names)
    raise _Strange(
        f"{parts[0]!r} is not a key there; keys are {', '.join(names[:10])}{guess}", "".join(close_to(parts[0], names))
    )


def _below_any(hints: Iterable[Any], parts: tuple[str, ...], every: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    strange: _Strange | None = None
    for hint in hints:
        try:
            found += _below(hint, parts)
        except _Strange as error:
            strange = strange or error
    if not found and strange is not None:
        raise strange
    return [*found, type(None)] if type(None) in every and not parts else found


def _plain_hint(hint: Any) -> Any:
    """Return a type without its wrappers: Annotated, NewType, an alias; ``Any`` if it cannot be inspected."""
    while True:
        if get_origin(hint) in (typing.Annotated, typing.Required, typing.NotRequired, typing.Final):
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        elif isinstance(hint, typing.TypeVar):
            hint = hint.__bound__ or Any
        else:
            return Any if hint is object or isinstance(hint, str) or hint is inspect.Parameter.empty else hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


def _is_list_type(origin: Any) -> bool:
    return (
        isinstance(origin, type)
        and issubclass(origin, Iterable)
        and not issubclass(origin, str | bytes | Mapping | Enum)
    )


def _type_name(hint: Any) -> str:
    return getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint).removeprefix("typing.")  # type: ignore[return-value]


# ---- Values of a type


def _check_leaves(leaves: Sequence[Any], said: object) -> None:
    """Raise ``_Strange`` if none of these types can ever have such a value."""
    strange: _Strange | None = None
    for leaf in leaves:
        try:
            _check_leaf(leaf, said)
        except _Strange as error:
            strange = strange or error
        else:
            return
    if strange is not None:
        raise strange


def _check_leaf(hint: Any, said: object) -> None:
    plain = _plain_hint(hint)
    condition = read_condition(said) if isinstance(said, str) else None
    if plain is Any:
        return
    if _is_union(plain):
        _check_leaves(get_args(plain), said)
        return
    origin = get_origin(plain) or plain
    if plain is type(None) or plain is None:
        if said is not None and (condition is None or is_equal(None, condition.text) is not True):
            raise _Strange("it can never have that value")
        return
    if options := _options_of(plain):
        _check_options(plain, options, said)
    elif _is_list_type(origin) and fields_of_type(plain) is None:
        _check_leaves([one for one in get_args(plain) if one is not ...] or [Any], said)
    elif (isinstance(origin, type) and issubclass(origin, Mapping)) or fields_of_type(plain) is not None:
        raise _Strange(f"{_type_name(plain)} is more than one value: name what is in it, with a dot")
    elif isinstance(origin, type) and origin in SCALARS:
        _check_scalar(origin, hint, said, condition)
    elif condition is not None and not condition.compares and not condition.is_pattern:
        _check_valid(hint, condition.text)


def _options_of(plain: Any) -> list[Any]:
    if get_origin(plain) is Literal:
        return list(get_args(plain))
    return list(plain) if isinstance(plain, type) and issubclass(plain, Enum) and plain.__members__ else []


def _check_options(plain: Any, options: Sequence[Any], said: object) -> None:
    from enum import Flag

    if isinstance(plain, type) and issubclass(plain, Flag):
        return  # any combination of its members
    tried: object = said
    if isinstance(said, str) and (condition := read_condition(said)).sign == "!":
        tried = condition.text  # "not x" is a mistake too if the value can never be x
    answers = [is_as(one, tried, any_of) for one in options]
    if not any(answers):
        texts = [str(one.value if isinstance(one, Enum) else one) for one in options]
        names = [one.name for one in options if isinstance(one, Enum)]
        guess = did_you_mean(str(tried), [*texts, *names])
        raise _Strange(f"it is one of {', '.join(texts[:10])}{guess}", "".join(close_to(str(tried), [*texts, *names])))


_SCALAR_WORDS: Final[dict[type, str]] = {
    int: "a whole number",
    float: "a number",
    Decimal: "a number",
    bool: "true or false",
    str: "a text",
    date: "a date",
    datetime: "a date with a time",
    time: "a time",
    timedelta: "a duration",
    UUID: "a UUID",
}


def _check_scalar(cls: type, hint: Any, said: object, condition: Condition | None) -> None:
    """Raise ``_Strange`` if no value of this built-in type can meet the condition."""
    wanted = f"it is {_SCALAR_WORDS.get(cls, cls.__name__)}"
    if condition is not None and condition.compares:
        if not _has_order(cls, condition.text):
            raise _Strange(f"{wanted}, which has no such order")
        return
    value: object = said if condition is None else condition.text
    if isinstance(value, Enum):
        value = value.value
    if condition is not None and condition.is_pattern:
        _check_pattern(cls, hint, condition.text, wanted)
        return
    if cls in (int, float, Decimal):
        number = number_of(value)
        if number is None or (cls is int and number != int(number)):
            raise _Strange(wanted)
        value = int(number) if cls is int else number
    elif cls is bool:
        if not isinstance(value, bool) and not (isinstance(value, str) and value.strip().casefold() in BOOLS):
            raise _Strange(wanted)
        return
    elif cls is str:
        if value is None:
            raise _Strange(wanted)
        value = value if isinstance(value, str) else str(value)
    elif value is None or isinstance(value, bool):
        raise _Strange(wanted)
    elif cls is timedelta and (number := number_of(value)) is not None:
        value = timedelta(seconds=float(number))
    _check_valid(hint, value)


def _check_pattern(cls: type, hint: Any, text: str, wanted: str) -> None:
    if cls in (int, float, Decimal) and not re.fullmatch(r"[-+0-9.eE*?\[\]!]+", text):
        raise _Strange(wanted)
    if cls is bool and not (text_matches("true", text.lower()) or text_matches("false", text.lower())):
        raise _Strange(wanted)
    if cls is str:
        _check_letters(hint, text)


def _has_order(cls: type, text: str) -> bool:
    """Return whether values of this type can be larger or smaller than this text."""
    moment = moment_of(text)
    if cls is date:
        return isinstance(moment, date) and (not isinstance(moment, datetime) or moment.time() == time())
    if cls is datetime:
        return isinstance(moment, date)
    if cls is time:
        return isinstance(moment, time)
    if cls is str:
        return True  # the text may be a number or a date; a call with neither is held
    return cls in (int, float, Decimal, timedelta) and number_of(text) is not None


def _check_valid(hint: Any, value: object) -> None:
    """Raise ``_Strange`` if pydantic refuses the value for this type; do nothing if it has no schema for it."""
    if isinstance(value, str) and _plain_hint(hint) is str and get_origin(hint) is not typing.Annotated:
        return
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hint, config=None if _has_config(hint) else ConfigDict())
        read = adapter.validate_python(value)
    except ValidationError as error:
        raise _Strange(f"that can never be: {error.errors()[0]['msg']}") from None
    except Exception:  # an annotation may raise anything while pydantic inspects it
        return
    if is_equal(read, value) is False:
        # The type accepts and changes it: lower case, another time zone, a date from a number.
        raise _Strange(f"the type changes it to {shown_condition(read)!r}: write that")


def _check_letters(hint: Any, pattern: str) -> None:
    """Raise ``_Strange`` if the type changes the case of every text, so that the pattern can never match."""
    if get_origin(hint) is not typing.Annotated:
        return
    from pydantic import TypeAdapter

    try:
        read = TypeAdapter(hint).validate_python(pattern)
    except Exception:  # a pattern need not be valid itself
        return
    if isinstance(read, str) and read != pattern and read.casefold() == pattern.casefold():
        raise _Strange(f"the type changes it to {read!r}: write that")


def _has_config(hint: Any) -> bool:
    return hasattr(_plain_hint(hint), "__pydantic_config__") or hasattr(_plain_hint(hint), "model_config")
