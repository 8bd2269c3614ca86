"""The OpenAPI 3.1 document, made from the table of routes and the models of requests and answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from amends import __version__, errors
from amends.serve import problems
from amends.serve.events import STREAM
from amends.serve.problems import MEDIA_TYPE, Problem, problem_of
from amends.serve.routes import Route

REF: Final = "#/components/schemas/{model}"
ABOUT: Final = (
    "Tool calls of AI agents, recorded before they run, run at most once, and compensated when the run fails. "
    "Every error is a problem document (RFC 9457) whose `code` is the name of the error."
)
RETRIES: Final = (409, 429, 503)
"""Statuses whose answer may have the header Retry-After."""
EXAMPLES: Final = Path(__file__).with_name("examples.json")
"""One answer of each route and status, made by scripts/examples.py from a real service."""
NAMED: Final[Mapping[str, str]] = {
    "run": "The id of a run; of a child, that of its parent, a slash and its own",
    "call": "The id of a call",
    "claim": "The id of the claimed call",
    "approval": "The id of a request for approval",
    "worker": "The id that the worker got when it was added",
}
"""What the name in an address is, by what the route is about."""
NAMED_BY: Final[Mapping[str, str]] = {
    "kind_of": "The name of a tool",
    "start": "The name of an agent of the server",
    "replay_each": "The name of an agent of the server",
    "revoke": "The id of a permit",
    "revoke_token": "The id of a token, which is no secret",
    "long_work": "The id of the work, as its first answer has it",
}
"""The same for the routes that are about something else."""
PROBLEMS: Final[tuple[errors.Error, ...]] = (
    problems.KeyMissing("a run that is opened over HTTP needs an id, or the header Idempotency-Key"),
    errors.Unauthorized("this needs a token, and none was sent", why="missing"),
    errors.Forbidden("this needs the scope approver, and yours is agent", needs=("approver",)),
    errors.RunNotFound("order-1042"),
    problems.WrongMethod("PUT is not possible here; GET, POST is", allow="GET, POST"),
    problems.TooSlow("the body did not arrive within 15 s"),
    errors.Busy("run order-1042 is busy", owner="another server", retry_after=1.0, run_id="order-1042"),
    problems.BodyTooLarge("the body has more than 1,048,576 bytes (body_bytes_max)"),
    problems.WrongType("the body is text/plain, and application/json is read here"),
    problems.Invalid("body.cents: Field required", problems=("body.cents: Field required",)),
    problems.TooMany("more requests than 5,000 a second (requests_per_s)"),
    errors.LedgerUnavailable("the ledger does not answer"),
)
"""A problem of each status that the document names."""


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
            "examples": {f"problem_{one['status']}": {"value": one} for one in _problems()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "amends tokens create"},
                "login": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": "amends_session",
                    "description": "Of a browser that has logged in; what changes something also needs X-CSRF-Token",
                },
            },
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
        found["security"] = [{"token": []}, {"login": []}]
    if route.body is not None:
        content: dict[str, Any] = {"schema": refs[id(route.body)], "example": dict(route.example or {})}
        is_needed = any(one.is_required() for one in route.body.model_fields.values())
        found["requestBody"] = {"required": is_needed, "content": {route.body_type: content}}
    elif route.body_type != "application/json":
        content = {"schema": {"type": "string", "format": "binary"}}
        found["requestBody"] = {"required": True, "content": {route.body_type: content}}
    return found


def _parameters(route: Route) -> list[dict[str, Any]]:
    shape: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 512}
    words = NAMED_BY.get(route.name) or NAMED.get(route.of, "")
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "description": words, "schema": dict(shape)}
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
            answer["content"] = {route.media_type: {"schema": refs[id(shape)]} | _example(route, status)}
            if route.streams:
                answer["content"][STREAM] = {"schema": {"type": "string"}}
        elif status < 300:
            answer["content"] = {route.media_type: {"schema": {"type": "string"}}}
        if route.links:
            answer["links"] = {name: _link(name, said) for name, said in route.links.items()}
        found[str(status)] = answer
    for status in route.statuses:
        example = {"problem": {"$ref": f"#/components/examples/problem_{status}"}}
        content = {MEDIA_TYPE: {"schema": refs[id(Problem)], "examples": example}}
        answer = {"description": HTTPStatus(status).phrase, "content": content}
        if status in RETRIES:
            answer["headers"] = {"Retry-After": {"description": "Seconds", "schema": {"type": "integer"}}}
        found[str(status)] = answer
    return found


@cache
def _examples() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(EXAMPLES.read_text(encoding="utf-8")) if EXAMPLES.exists() else {}
    return found


def _example(route: Route, status: int) -> dict[str, Any]:
    found = _examples().get(route.name, {})
    return {"example": found[str(status)]} if str(status) in found else {}


def _problems() -> list[dict[str, Any]]:
    return [problem_of(one) | {"text": one.for_model()} for one in PROBLEMS]


def _link(name: str, said: Mapping[str, str]) -> dict[str, Any]:
    named = {key: value for key, value in said.items() if not key.startswith("body.")}
    body = {key.removeprefix("body."): value for key, value in said.items() if key.startswith("body.")}
    return {"operationId": name, "parameters": named} | ({"requestBody": body} if body else {})
