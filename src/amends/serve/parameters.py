"""Turn the JSON schema of a tool that lives in another language into the parameters of a Python function.

Arguments are validated by what the schema says and stay plain JSON. A keyword that cannot be checked is refused when the
tool is declared: an argument that nobody checks would reach the worker.
"""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Mapping
from typing import Annotated, Any, Final, NoReturn, Union

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, WithJsonSchema, create_model

from amends.errors import BadDeclaration

DEPTH_MAX: Final = 16
PARAMETERS_MAX: Final = 200
ANNOTATIONS: Final = frozenset({
    "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "default", "definitions", "deprecated",
    "description", "examples", "format", "readOnly", "title", "writeOnly",
})  # fmt: skip
"""Keywords that say nothing about what is valid, or nothing that is checked anywhere by default."""
STRING: Final = {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}
NUMBER: Final = {
    "minimum": "ge", "maximum": "le", "exclusiveMinimum": "gt", "exclusiveMaximum": "lt", "multipleOf": "multiple_of",
}  # fmt: skip
ARRAY: Final = {"minItems": "min_length", "maxItems": "max_length"}
WORDS: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset(STRING),
    "integer": frozenset(NUMBER),
    "number": frozenset(NUMBER),
    "boolean": frozenset(),
    "null": frozenset(),
    "array": frozenset({*ARRAY, "items"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}


class Parameters:
    """The parameters that a JSON schema describes, and how arguments are sent to whoever has the schema."""

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self._tool, self._root = tool, schema
        if schema.get("type", "object") != "object":
            self._refuse("", "the parameters of a tool are an object")
        self._check_words(schema, "object", "")
        properties = self._mapping(schema, "properties", "")
        if len(properties) > PARAMETERS_MAX:
            self._refuse("properties", f"a tool has at most {PARAMETERS_MAX} parameters")
        required = self._required(schema, properties, "")
        self._unset: set[str] = set()
        """Parameters that may be left out, have no default, and may not be null: left out when they are sent."""
        made = []
        for name, one in properties.items():
            self._check_name(name)
            made.append(self._parameter(name, one, is_required=name in required))
        self.signature = inspect.Signature(sorted(made, key=lambda one: one.default is not one.empty))

    def sent(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the schema has them: what was not given and has no default is left out."""
        return {name: value for name, value in args.items() if not (value is None and name in self._unset)}

    def _parameter(self, name: str, schema: Any, *, is_required: bool) -> inspect.Parameter:
        path = f"properties.{name}"
        adapter: TypeAdapter[Any] = TypeAdapter(self._type(schema, path, 0))
        said = self._inlined(schema, path, 0)
        has_default = isinstance(schema, Mapping) and "default" in schema
        if not is_required and not has_default and not _takes_none(adapter):
            self._unset.add(name)
        may_lack = name in self._unset

        def check(value: Any) -> Any:
            if value is None and may_lack:
                return None
            return adapter.dump_python(adapter.validate_python(value), mode="json", exclude_unset=True)

        default = inspect.Parameter.empty if is_required else schema["default"] if has_default else None
        hint = Annotated[Any, BeforeValidator(check), WithJsonSchema(said if isinstance(said, dict) else {})]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)

    # ---- Types

    def _type(self, schema: Any, path: str, depth: int) -> Any:
        if depth > DEPTH_MAX:
            self._refuse(path, f"it is nested more than {DEPTH_MAX} times, or refers to itself")
        if schema is True or schema == {}:
            return Any
        if not isinstance(schema, Mapping):
            self._refuse(path, f"{schema!r} is not a schema")
        if "$ref" in schema:
            return self._type(self._referred(schema["$ref"], path), path, depth + 1)
        if "const" in schema or "enum" in schema:
            return self._choice([schema["const"]] if "const" in schema else schema["enum"], path)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                self._check_words(schema, word, path)
                parts = schema[word]
                if not isinstance(parts, list) or not parts:
                    self._refuse(path, f"{word} is a list of schemas")
                return _union([self._type(one, f"{path}.{word}", depth + 1) for one in parts])
        kind = schema.get("type")
        if isinstance(kind, list):
            return _union([self._type({**schema, "type": one}, path, depth + 1) for one in kind])
        if kind is None:
            self._check_words(schema, "", path)
            return Any
        return self._typed(kind, schema, path, depth)

    def _typed(self, kind: Any, schema: Mapping[str, Any], path: str, depth: int) -> Any:
        if kind not in WORDS:
            self._refuse(path, f"there is no type {kind!r}")
        self._check_words(schema, kind, path)
        match kind:
            case "string":
                return _limited(str, schema, STRING)
            case "integer":
                return _limited(Annotated[int, BeforeValidator(_no_bool)], schema, NUMBER)
            case "number":
                return _limited(Annotated[int | float, BeforeValidator(_no_bool)], schema, NUMBER)
            case "boolean":
                return Annotated[bool, Field(strict=True)]
            case "null":
                return None
            case "array":
                item = self._type(schema.get("items", True), f"{path}.items", depth + 1)
                return _limited(list[item], schema, ARRAY)  # type: ignore[valid-type]
            case _:
                return self._object(schema, path, depth)

    def _object(self, schema: Mapping[str, Any], path: str, depth: int) -> Any:
        properties = self._mapping(schema, "properties", path)
        more = schema.get("additionalProperties", True)
        if not properties:
            if more is False:
                return Annotated[dict[str, Any], AfterValidator(_empty)]
            return dict[str, self._type(more, f"{path}.additionalProperties", depth + 1)]  # type: ignore[misc]
        if not isinstance(more, bool):
            self._refuse(path, "additionalProperties is true or false where there are properties")
        required = self._required(schema, properties, path)
        fields: dict[str, Any] = {}
        for number, (name, one) in enumerate(properties.items()):
            hint = self._type(one, f"{path}.{name}", depth + 1)
            has_default = isinstance(one, Mapping) and "default" in one
            default: Any = ... if name in required else one["default"] if has_default else None
            fields[f"field_{number}"] = (hint, Field(default, alias=name, validate_default=has_default))
        config = ConfigDict(extra="allow" if more else "forbid", serialize_by_alias=True)
        model = create_model("Object", __config__=config, **fields)
        defaults = [name for name, one in properties.items() if isinstance(one, Mapping) and "default" in one]

        def filled(value: Any) -> Any:
            if not isinstance(value, Mapping):
                return value
            return {**{name: properties[name]["default"] for name in defaults}, **value}

        return Annotated[model, BeforeValidator(filled)]

    def _choice(self, values: Any, path: str) -> Any:
        if not isinstance(values, list) or not values:
            self._refuse(path, "enum is a list of values")
        if not all(one is None or isinstance(one, str | int | bool) for one in values):
            self._refuse(path, "only texts, whole numbers, true, false and null can be listed as values")

        def check(value: Any) -> Any:
            # 1 is not true here, though Python says so.
            if not any(value == one and type(value) is type(one) for one in values):
                raise ValueError(f"must be one of {', '.join(map(repr, values))}")
            return value

        return Annotated[Any, BeforeValidator(check)]

    # ---- Reading the schema

    def _inlined(self, schema: Any, path: str, depth: int) -> Any:
        """Return the schema without references, as models get it."""
        if depth > 2 * DEPTH_MAX:
            self._refuse(path, "it is nested too deep")
        if isinstance(schema, list):
            return [self._inlined(one, path, depth + 1) for one in schema]
        if not isinstance(schema, Mapping):
            return schema
        if "$ref" in schema:
            rest = {word: one for word, one in schema.items() if word != "$ref"}
            return {**self._inlined(self._referred(schema["$ref"], path), path, depth + 1), **rest}
        return {word: self._inlined(one, path, depth + 1) for word, one in schema.items()}

    def _referred(self, ref: Any, path: str) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#/"):
            self._refuse(path, f"$ref {ref!r} does not point into the schema itself (#/$defs/...)")
        found: Any = self._root
        for part in ref[2:].split("/"):
            word = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or word not in found:
                self._refuse(path, f"$ref {ref!r} points to nothing")
            found = found[word]
        return found

    def _mapping(self, schema: Mapping[str, Any], word: str, path: str) -> Mapping[str, Any]:
        found = schema.get(word, {})
        if not isinstance(found, Mapping):
            self._refuse(path, f"{word} is an object")
        return found

    def _required(self, schema: Mapping[str, Any], properties: Mapping[str, Any], path: str) -> frozenset[str]:
        found = schema.get("required", [])
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            self._refuse(path, "required is a list of names")
        if strange := sorted(set(found) - set(properties)):
            self._refuse(path, f"required names {strange[0]!r}, which is not a property")
        return frozenset(found)

    def _check_words(self, schema: Mapping[str, Any], kind: str, path: str) -> None:
        known = {*ANNOTATIONS, "type", *WORDS.get(kind, frozenset({kind}))}
        if unknown := sorted(set(schema) - known):
            self._refuse(path, f"the keyword {unknown[0]!r} is not supported{f' for {kind}' if kind in WORDS else ''}")

    def _check_name(self, name: str) -> None:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            self._refuse(f"properties.{name}", "a parameter is named like a variable: letters, digits and _")

    def _refuse(self, path: str, problem: str) -> NoReturn:
        where = f"parameters.{path}" if path else "parameters"
        raise BadDeclaration(f"{self._tool}: {where}: {problem}", tool=self._tool)


def _union(types: list[Any]) -> Any:
    return Union[tuple(types)]  # noqa: UP007 (made at run time)


def _limited(kind: Any, schema: Mapping[str, Any], words: Mapping[str, str]) -> Any:
    said = {ours: schema[theirs] for theirs, ours in words.items() if theirs in schema}
    return Annotated[kind, Field(strict=kind is str or None, **said)]


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")  # noqa: TRY004 (pydantic reports this one)
    return value


def _empty(value: dict[str, Any]) -> dict[str, Any]:
    if value:
        raise ValueError("no property is allowed")
    return value


def _takes_none(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.validate_python(None)
    except ValueError:
        return False
    return True
