"""Read a model's arguments by the schema or the function of a tool that lives elsewhere.

The same request in other words must have the same key: a default that is left out and then said, a number that is sent
as text, an argument that the tool does not have. No value becomes another one: what a schema does not decide stays as
it was sent.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

from amends.errors import UsageError, shown
from amends.tools.signature import REPEAT, Signature

DEPTH_MAX: Final = 32
"""How deep a request is read; what is below is taken as it was sent."""
STEPS_MAX: Final = 10_000
"""How many values and forms of one request are looked at; the rest is left to the server."""
PROBLEMS_MAX: Final = 5
"""How many problems of one request are named."""
KINDS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}
"""The types of JSON schema, and those of Python that such a value has."""


def fill(schema: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's arguments as their JSON schema means them: with defaults, and with numbers as numbers.

    Left out are arguments that the schema excludes, and a null for one that may be left out and has no default.
    """
    try:
        filled: dict[str, Any] = _filled({"type": "object", "properties": {}, **schema}, dict(args), schema, 0)
    except (TypeError, AttributeError):  # it is no JSON schema, and says nothing
        return dict(args)
    return filled


def _filled(schema: Any, value: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == DEPTH_MAX:
        return value
    if isinstance(ref := schema.get("$ref"), str):
        return _filled(_referred(ref, root), value, root, depth + 1)
    choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or ()
    others = [one for one in choices if isinstance(one, Mapping) and one.get("type") != "null"]
    if len(others) == 1 and value is not None:
        return _filled(others[0], value, root, depth + 1)
    if isinstance(value, dict) and isinstance(schema.get("properties"), Mapping):
        return _filled_object(schema, value, root, depth)
    if isinstance(value, list):
        return [_filled(schema.get("items"), one, root, depth + 1) for one in value]
    return _number(value, schema.get("type")) if isinstance(value, str | float) else value


def _filled_object(schema: Mapping[str, Any], value: dict[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    known, needed = schema["properties"], schema.get("required") or ()
    is_closed = schema.get("additionalProperties") is False
    filled = {
        name: _filled(known.get(name), one, root, depth + 1)
        for name, one in value.items()
        if name in known or not is_closed
    }
    for name, one in known.items():
        has_default = isinstance(one, Mapping) and "default" in one
        if has_default and name not in value:
            filled[name] = _filled(one, one["default"], root, depth + 1)
        elif not has_default and name not in needed and filled.get(name) is None:
            filled.pop(name, None)
    return filled


def problems_of(tool: str, schema: Mapping[str, Any], args: Mapping[str, Any]) -> list[str]:
    """Return why arguments cannot fit their JSON schema, each with the name of the argument; empty if they may.

    Looked at are required and unknown names, types and enumerations. Everything else is the server's to judge: a pattern or
    a reference to another document of a foreign schema would make this process work for whoever wrote it.
    """
    look = _Look(schema)
    try:
        look.at({"type": "object", **schema}, dict(args), tool, 0)
    except (TypeError, AttributeError):  # it is no JSON schema, and says nothing
        return []
    return look.found[:PROBLEMS_MAX]


class _Look:
    """One look at arguments: the problems found, and how much may still be looked at."""

    __slots__ = ("_left", "_root", "found")

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, STEPS_MAX
        self.found: list[str] = []

    def at(self, schema: Any, value: Any, place: str, depth: int) -> None:
        """Look at one value."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth == DEPTH_MAX or self._left < 0:
            return
        if isinstance(ref := schema.get("$ref"), str):
            self.at(_referred(ref, self._root), value, place, depth + 1)
            return
        problem = self._problem(schema, value, depth)
        if problem:
            self.found.append(f"{place} {problem}")
        elif isinstance(value, dict):
            self._inside(schema, value, place, depth)
        elif isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
            for number, one in enumerate(value):
                self.at(items, one, f"{place}[{number}]", depth + 1)

    def _problem(self, schema: Mapping[str, Any], value: Any, depth: int) -> str:
        kinds = _kinds(schema)
        if kinds and not any(_is_kind(value, kind) for kind in kinds):
            return f"must be {' or '.join(map(_article, kinds))}, not {_shown(value)}"
        allowed = schema.get("enum")
        if isinstance(allowed, list) and allowed and value not in allowed:
            return f"must be one of {_shown(allowed)}, not {_shown(value)}"
        choices = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(choices, list) and choices and not any(self._fits(one, value, depth) for one in choices):
            return f"does not fit any of its forms: {_shown(value)}"
        return ""

    def _inside(self, schema: Mapping[str, Any], value: dict[str, Any], place: str, depth: int) -> None:
        known, needed = schema.get("properties") or {}, schema.get("required") or ()
        self.found += [f"{place}.{name} is missing" for name in needed if name not in value]
        if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
            self.found += [f"{place} has no argument {name}" for name in value if name not in known]
        for name, one in value.items():
            if one is not None or name in needed:  # what may be left out may be nothing
                self.at(known.get(name), one, f"{place}.{name}", depth + 1)

    def _fits(self, schema: Any, value: Any, depth: int) -> bool:
        before, self.found = self.found, []
        self.at(schema, value, "", depth + 1)
        found, self.found = self.found, before
        return not found or self._left < 0


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    said = schema.get("type")
    kinds = [said] if isinstance(said, str) else list(said or ())
    if any(kind not in KINDS for kind in kinds):
        return []  # a word of another language
    return [*kinds, "null"] if kinds and schema.get("nullable") is True and "null" not in kinds else kinds


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "integer":
        return not isinstance(value, bool) and (
            isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        )
    return isinstance(value, KINDS[kind]) and not (kind == "number" and isinstance(value, bool))


def _article(kind: str) -> str:
    return kind if kind == "null" else f"{'an' if kind[0] in 'aio' else 'a'} {kind}"


def _shown(value: Any) -> str:
    return shown(json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, str) else value)


def _referred(ref: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _number(value: str | float, kind: Any) -> Any:
    """Return a number that was sent as text, or a whole one that was sent as a fraction, where the schema takes only that."""
    kinds = {kind} if isinstance(kind, str) else set(kind or ())
    if isinstance(value, float):
        return int(value) if "integer" in kinds and "number" not in kinds and value.is_integer() else value
    if "string" in kinds:
        return value
    text = value.strip()
    if "boolean" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    with suppress(ValueError):
        if "integer" in kinds and text.lstrip("+-").isdecimal():
            return int(text)
        if "number" in kinds and math.isfinite(number := float(text)):
            return number
    return value


# ---- By the function


def take(tool: str, fn: Callable[..., Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments as this function takes them, in plain data; raise ``BadArguments``.

    They are returned as they are for a function that takes any name, or that cannot be asked.
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return dict(args)
    if any(one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in parameters):
        return dict(args)
    signature = Signature(tool, fn)
    # Twice: a default that is new each time (an id, the time) is no part of what was asked for.
    first, second = signature.bind((), args), signature.bind((), args)
    taken: dict[str, Any] = {}
    for name, value in first.items():
        if name in args and _is_same(value, args[name]):
            taken[name] = args[name]  # as it was sent; a framework's own object, too
            continue
        plain = plain_form(value)
        if plain is not NO_FORM and plain == plain_form(second[name]):
            taken[name] = plain
        elif name in args:
            taken[name] = args[name]
    return taken


def _is_same(value: Any, given: Any) -> bool:
    try:
        return value is given or (type(value) is type(given) and bool(value == given))
    except Exception:  # an object of the user's may raise anything
        return False


NO_FORM: Final = object()


def plain_form(value: Any) -> Any:
    """Return a value as it is recorded for a tool that lives elsewhere: as JSON, with exact decimals; else ``NO_FORM``."""
    try:
        return _plain(value, 0)
    except Exception:  # a model of the user's may raise anything
        return NO_FORM


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, Decimal | bytes) or type(value) in (bool, int, float, str):
        return value
    if depth == DEPTH_MAX:
        raise TypeError("nested too deeply")
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1)
    if isinstance(value, date | time | timedelta | UUID):
        from pydantic_core import to_jsonable_python

        return to_jsonable_python(value)
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(one, depth + 1) for one in value), key=repr)
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: _plain(one, depth + 1) for name, one in value.items()}
    from dataclasses import asdict, is_dataclass

    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return _plain(value.model_dump(by_alias=True), depth + 1)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), depth + 1)
    raise TypeError(f"{type(value).__name__} has no plain form")


# ---- For a model that must keep to the schema


def strict(tool: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that a model can be made to keep to: every argument is named and must be given.

    A default is told in the description, because no argument may be left out. Raise ``UsageError`` for a tool with an
    object whose names are not known: no such schema can describe it.
    """
    made: dict[str, Any] = _strict(tool, "", schema)
    if REPEAT in made["properties"]:
        made["properties"][REPEAT] = {**made["properties"][REPEAT], "type": ["string", "null"]}
    return made


def _strict(tool: str, path: str, schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(tool, path, one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {
        name: {key: _strict(tool, f"{path}.{key}", one) for key, one in value.items()}
        if name in ("properties", "$defs") and isinstance(value, Mapping)
        else value
        if name in ("enum", "const", "examples")
        else _strict(tool, path, value)
        for name, value in schema.items()
        if name != "default"
    }
    if "default" in schema and "$ref" not in schema:
        said = f"Default: {json.dumps(schema['default'], ensure_ascii=False, default=str)}."
        made["description"] = f"{schema['description']} {said}" if schema.get("description") else said
    if made.get("type") == "object":
        if schema.get("additionalProperties", False) is not False or "properties" not in made:
            raise UsageError(
                f"{tool}{path} takes any names, which a strict schema cannot describe",
                hint="give it named arguments, or leave strict=True away",
            )
        made |= {"additionalProperties": False, "required": list(made["properties"])}
    return made
