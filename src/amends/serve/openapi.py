"""The OpenAPI 3.1 document, made from the table of routes and the models of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from amends import __version__
from amends.serve.events import STREAM
from amends.serve.problems import MEDIA_TYPE, Problem
from amends.serve.routes import Route

REF: Final = "#/components/schemas/{model}"
ABOUT: Final = (
    "Tool calls of AI agents, recorded before they run, run at most once, and compensated when the run fails. "
    "Every error is a problem document (RFC 9457) whose `code` is the name of the error."
)
RETRIES: Final = (409, 429, 503)
"""Statuses whose answer may have the header Retry-After."""


class Shapes(GenerateJsonSchema):
    """Schemas of the records as ``to_dict`` writes them."""

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Describe an amount: ``str()`` of a Decimal."""
        return {"type": "string"}

    def field_is_required(self, field: Any, total: bool) -> bool:
        """Say that a record of the ledger has all its fields: ``to_dict`` leaves none out."""
        if self.mode == "serialization" and field["type"] == "dataclass-field":
            return True
        return super().field_is_required(field, total)


def document(routes: Iterable[Route], *, server: str = "") -> dict[str, Any]:
    """Return the document for these routes. ``server``: the address below which they are served."""
    routes = tuple(routes)
    inputs: list[tuple[Any, Any, TypeAdapter[Any]]] = []
    kept: dict[int, TypeAdapter[Any]] = {}

    def adapter(shape: Any) -> TypeAdapter[Any]:
        return kept.setdefault(id(shape), TypeAdapter(shape))

    shapes = [(one, "validation") for route in routes for one in (route.body,) if one is not None]
    shapes += [(one, "serialization") for route in routes for one in route.answers.values() if one is not None]
    shapes.append((Problem, "serialization"))
    for shape, mode in shapes:
        inputs.append(((id(shape), mode), mode, adapter(shape)))
    found, defs = TypeAdapter.json_schemas(
        [((key, mode, made)) for key, mode, made in inputs], ref_template=REF, schema_generator=Shapes
    )
    refs = {key[0]: schema for (key, _), schema in found.items()}
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, refs)
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "amends", "version": __version__, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": defs.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    if server:
        made["servers"] = [{"url": server}]
    return made


def _operation(route: Route, refs: dict[int, Any]) -> dict[str, Any]:
    needs = "Public." if route.scopes is None else f"Needs the scope {' or '.join(route.scopes)}."
    words = (route.handler.__doc__ or "").strip()
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"{words} {needs}".strip(),
        "tags": list(route.tags),
        "parameters": _parameters(route),
        "responses": _responses(route, refs),
    }
    if route.scopes is not None:
        found["security"] = [{"token": []}]
    if route.body is not None:
        content: dict[str, Any] = {"schema": refs[id(route.body)]}
        if route.example is not None:
            content["example"] = dict(route.example)
        is_needed = any(one.is_required() for one in route.body.model_fields.values())
        found["requestBody"] = {"required": is_needed, "content": {route.body_type: content}}
    elif route.body_type != "application/json":
        content = {"schema": {"type": "string", "format": "binary"}}
        found["requestBody"] = {"required": True, "content": {route.body_type: content}}
    return found


def _parameters(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1, "maxLength": 512}}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    schema = route.query.model_json_schema(schema_generator=Shapes)
    for name, one in schema.get("properties", {}).items():
        shape = {key: value for key, value in one.items() if key not in ("title", "description")}
        is_needed = name in schema.get("required", ())
        words = one.get("description", "")
        found.append({"name": name, "in": "query", "required": is_needed, "description": words, "schema": shape})
    if route.scopes is not None:
        words = "Which tenant: only for an operator's token without a tenant of its own"
        found.append({"name": "tenant", "in": "query", "description": words, "schema": {"type": "string"}})
    if route.takes_key:
        words = "The same value when the request is repeated"
        shape = {"type": "string", "minLength": 1, "maxLength": 255}
        found.append({"name": "Idempotency-Key", "in": "header", "description": words, "schema": shape})
    return found


def _responses(route: Route, refs: dict[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, shape in route.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if shape is not None:
            answer["content"] = {route.media_type: {"schema": refs[id(shape)]}}
            if route.streams:
                answer["content"][STREAM] = {"schema": {"type": "string"}}
        elif status < 300:
            answer["content"] = {route.media_type: {"schema": {"type": "string"}}}
        if route.links:
            answer["links"] = {name: _link(name, said) for name, said in route.links.items()}
        found[str(status)] = answer
    for status in route.statuses:
        answer = {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": refs[id(Problem)]}}}
        if status in RETRIES:
            answer["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
        found[str(status)] = answer
    return found


def _link(name: str, said: Mapping[str, str]) -> dict[str, Any]:
    named = {key: value for key, value in said.items() if not key.startswith("body.")}
    body = {key.removeprefix("body."): value for key, value in said.items() if key.startswith("body.")}
    return {"operationId": name, "parameters": named} | ({"requestBody": body} if body else {})
