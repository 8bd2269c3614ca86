"""Errors as problem documents (RFC 9457): ``code`` is the name of the error's class, ``status`` follows from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from amends import errors
from amends.errors import Error, Forbidden, Unauthorized
from amends.serve.access import CHALLENGE
from amends.serve.oidc import LoginRefused

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 1.0
"""After how many seconds to try again, unless the error knows better."""


# ---- Errors that only the service raises


class NoSuchRoute(errors.NotFound):
    """There is nothing at this address."""

    default_hint = "GET /v1/openapi.json describes every route"


class WrongMethod(Error):
    """The address exists, but not for this method; the header Allow names those that it has."""

    default_hint = "GET /v1/openapi.json describes every route"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BadRequest(errors.UsageError):
    """The request cannot be read; nothing was started."""

    default_hint = "send one JSON object as GET /v1/openapi.json describes it"


class Invalid(errors.UsageError):
    """The request can be read, but a field of it is missing, unknown or of the wrong type; nothing was started."""

    default_hint = "GET /v1/openapi.json describes every field"

    def __init__(self, message: str, *, problems: tuple[str, ...]) -> None:
        super().__init__(message)
        self.problems = problems


class KeyMissing(errors.UsageError):
    """The request would be carried out twice if it were sent twice: it needs a key; nothing was started."""

    default_hint = "send the header Idempotency-Key, with the same value when the request is repeated"


class WrongType(errors.UsageError):
    """The body is not of the type that this route reads; nothing was started."""

    default_hint = "send the header Content-Type that GET /v1/openapi.json names"


class BodyTooLarge(errors.UsageError):
    """The body is larger than the service accepts; nothing was started."""

    default_hint = "send less, or start the service with a larger body_bytes_max"


class HeadTooLarge(errors.UsageError):
    """The address and headers of the request are larger than the service accepts; nothing was started."""

    default_hint = "send fewer or shorter headers; what is long belongs into the body"


class TooSlow(errors.UsageError):
    """The request did not arrive in time; nothing was started."""

    default_hint = "send the whole request at once"


class TooMany(Error):
    """The limit of requests, streams or open runs is reached; nothing was started."""

    default_hint = "try again later, or start the service with a higher limit"

    def __init__(self, message: str, *, retry_after: float = RETRY_AFTER_S) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Taken(Error):
    """Another tool has this name; nothing was declared."""

    default_hint = "GET /v1/tools lists the tools that are known here"

    def __init__(self, message: str, *, tool: str) -> None:
        super().__init__(message)
        self.tool = tool


class AlreadyDecided(errors.Refused):
    """Somebody else has decided this already; nothing was changed."""

    default_hint = "this page shows what they decided; what you typed is still in the form"


class Internal(Error):
    """The service itself failed; its log has the reason."""

    default_hint = "read the service's log, and what was recorded: GET /v1/runs/{id}/report"


# ---- From an error to a document

STATUS: Final[Mapping[type[Error], int]] = {
    Unauthorized: 401,
    Forbidden: 403,
    errors.NotFound: 404,
    WrongMethod: 405,
    BadRequest: 400,
    KeyMissing: 400,
    Invalid: 422,
    WrongType: 415,
    BodyTooLarge: 413,
    HeadTooLarge: 431,
    TooSlow: 408,
    TooMany: 429,
    Taken: 409,
    errors.BadDeclaration: 422,
    Internal: 500,
    errors.LinkVoid: 403,
    LoginRefused: 403,
    errors.BadArguments: 422,
    errors.UnknownTool: 422,
    errors.KeyConflict: 422,
    errors.RunConflict: 422,
    errors.BadBundle: 422,
    errors.NotStorable: 422,
    errors.TooLarge: 413,
    errors.ReportConflict: 409,
    errors.RunEnded: 409,
    errors.RunTaken: 409,
    errors.RunIsRecord: 409,
    errors.TransactionOpen: 409,
    errors.LeaseLost: 409,
    errors.TransitionRefused: 409,
    errors.UsageError: 400,
    errors.Refused: 409,
    errors.ToolError: 409,
    errors.RolledBack: 409,
    errors.Waiting: 409,
    errors.LedgerSealed: 409,
    errors.LedgerError: 503,
}
"""The status of an error: that of the nearest class in its ancestry."""
TRY_AGAIN: Final = (errors.Busy, errors.Locked, errors.LedgerUnavailable, TooMany)
"""Errors that pass: their answer says when to try again."""
FACTS: Final = (
    "run_id",
    "call_id",
    "approval_id",
    "tool",
    "reason",
    "problems",
    "state",
    "causes",
    "allowed",
    "missing",
)
"""Attributes of an error that its document has under the same name. Values that a tool was given are not among them."""


def status_of(error: Error) -> int:
    """Return the status for this error."""
    return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)


def problem_of(error: Error) -> dict[str, Any]:
    """Return the document that tells a client what went wrong, whose fault it is, and what to do."""
    kind = type(error)
    found: dict[str, Any] = {
        "type": f"urn:amends:error:{kind.__name__}",
        "title": (kind.__doc__ or kind.__name__).partition("\n")[0].replace("``", ""),
        "status": status_of(error),
        "detail": str(error),
        "code": kind.__name__,
        "hint": error.hint,
    }
    for name in FACTS:
        value = getattr(error, name, None)
        if isinstance(value, str) and value:
            found[name] = value
        elif isinstance(value, list | tuple) and value:
            found[name] = [str(one) for one in value]
    if isinstance(error, errors.RunBlocked) and error.causes:
        found["causes"] = errors.some(error.causes, where=errors.listed_in(error.run_id or ""), most=errors.CAUSES_MAX)
    for name in ("call", "approval"):
        about = getattr(getattr(error, name, None), "id", "")
        if about:
            found[f"{name}_id"] = about
    if (after := retry_after(error)) is not None:
        found["retry_after"] = after
    return found


def headers_of(error: Error) -> dict[str, str]:
    """Return the headers that belong to the document."""
    found = {"Cache-Control": "no-store"}
    if isinstance(error, Unauthorized):
        found |= CHALLENGE
    if isinstance(error, WrongMethod):
        found["Allow"] = error.allow
    if (after := retry_after(error)) is not None:
        found["Retry-After"] = str(after)
    return found


def retry_after(error: Error) -> int | None:
    """Return after how many whole seconds to try again; None: trying again does not help."""
    if not isinstance(error, TRY_AGAIN):
        return None
    said = getattr(error, "retry_after", RETRY_AFTER_S)
    return max(1, min(math.ceil(said), 3_600))


class Problem(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str = Field(description="What happened, to which call")
    code: str = Field(description="The name of the error's class: stable, for programs")
    hint: str = Field(description="What to do")
    run_id: str | None = None
    call_id: str | None = None
    approval_id: str | None = None
    tool: str | None = None
    problems: list[str] | None = Field(None, description="Each field that is wrong, and why")
    retry_after: int | None = Field(None, description="Seconds after which to try again, as in Retry-After")
    text: str | None = Field(None, description="What to tell a model")
