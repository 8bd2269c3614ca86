"""Errors of the service as the runtime's own exceptions: ``code`` of a problem document names the class."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final

from amends import Call, errors
from amends.client.records import approval_of, call_of
from amends.errors import Error, ToolFailed

TEXTS_MAX: Final = 2_000
"""How much of an answer that is no problem document an error shows."""


class ServiceError(Error):
    """The service refused a request, or failed, with an error that is only the service's own."""

    default_hint = "GET /v1/openapi.json of the service describes every route and every field"

    def __init__(self, message: str, *, status: int, name: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status, self.name = status, name
        """The status of the answer; 0: there was none. ``name``: the service's ``code``, as ``TooMany``."""

    @property
    def code(self) -> str:
        """The service's name of the error in snake_case: stable, for programs."""
        return _snake(self.name or type(self).__name__)


class Unreachable(ServiceError):
    """The service does not answer. Unless it says otherwise, what was asked for may have been done."""

    default_hint = (
        "repeat the request with the same id and the same arguments: what was done is answered from the record"
    )

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, status=0, hint=hint)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


KNOWN: Final[Mapping[str, type[Error]]] = {
    one.__name__: one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Error)
}
BY_CODE: Final = {_snake(name): kind for name, kind in KNOWN.items()}
SAME: Final = ("type", "title", "status", "detail", "code", "hint", "text", "instance")
"""What a problem document has besides the facts of the error."""


def error_of(problem: Mapping[str, Any], *, status: int = 0) -> Error:
    """Return the error that a problem document describes."""
    name, detail = str(problem.get("code", "")), str(problem.get("detail") or problem.get("title") or "no details")
    hint = str(problem.get("hint") or "") or None
    kind = KNOWN.get(name)
    facts = {key: value for key, value in problem.items() if key not in SAME}
    if kind is None:
        made: Error = ServiceError(detail, status=int(problem.get("status") or status), name=name, hint=hint)
        for key, value in facts.items():
            setattr(made, key, value)
        return made
    return _made(kind, detail, hint, facts)


def answer_error(said: Mapping[str, Any] | None, call: Call | None) -> Exception | None:
    """Return the error of an answer: the runtime's own class, or ``ToolFailed`` for what the tool itself raised."""
    if said is None:
        return None
    kind = BY_CODE.get(str(said.get("code", "")))
    message = str(said.get("message", ""))
    if kind is None:
        return ToolFailed(message, call=call, type_name=str(said.get("type", "")))
    facts = {key: value for key, value in said.items() if key not in ("code", "message", "hint")}
    return _made(kind, message, str(said.get("hint") or "") or None, facts)


def _made(kind: type[Error], message: str, hint: str | None, facts: Mapping[str, Any]) -> Error:
    """Return an error with these facts; those that the service does not tell have empty values."""
    made: Error = kind.__new__(kind, message)
    Error.__init__(made, message, hint=hint)
    if hint is None:
        made.hint = kind.default_hint
    for name, empty in _attributes(kind).items():
        setattr(made, name, empty)
    for name, value in facts.items():
        setattr(made, name, _read(name, value))
    return made


def _attributes(kind: type[Error]) -> dict[str, Any]:
    """Return what the constructors of a class take, with an empty value for each."""
    found: dict[str, Any] = {}
    for one in reversed(kind.__mro__[: kind.__mro__.index(Error)]):
        if "__init__" not in vars(one):
            continue
        for name, parameter in list(inspect.signature(vars(one)["__init__"]).parameters.items())[1:]:
            if name not in ("message", "hint", "run_id", "where"):
                found[name] = _empty(str(parameter.annotation))
    return found


def _empty(annotation: str) -> Any:
    if "None" in annotation or annotation == "Any":
        return None
    kinds = {"str": "", "bool": False, "int": 0, "float": 0.0}
    if annotation in kinds:
        return kinds[annotation]
    if annotation.startswith(("Sequence", "Iterable", "tuple", "list")):
        return ()
    return {} if annotation.startswith(("Mapping", "dict")) else None


def _read(name: str, value: Any) -> Any:
    if name in ("call", "twin", "pivot") and isinstance(value, Mapping) and "run_id" in value:
        return call_of(value)
    if name == "approval" and isinstance(value, Mapping):
        return approval_of(value)
    return tuple(value) if isinstance(value, list) else value
