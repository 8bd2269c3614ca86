"""One request and its answer, as a handler sees them: already authorised, limited and validated."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from amends import AsyncRuntime
from amends.serve.access import Who
from amends.serve.problems import Invalid
from amends.visible import ascii_json

if TYPE_CHECKING:
    from amends.serve.service import Service

DEPTH_MAX: Final = 64
"""How deep an answer may be nested; what is deeper is shown as text."""


class Body(BaseModel):
    """What a client may send; a field that nobody knows is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoBody(Body):
    """An empty object, or nothing."""


class Query(BaseModel):
    """What a client may say in the address; a parameter that nobody knows is an error."""

    model_config = ConfigDict(extra="forbid")


class AnyQuery(BaseModel):
    """Whatever a browser or a provider of logins sends: the handler reads it."""

    model_config = ConfigDict(extra="allow")


class PageQuery(Query):
    """One page of a listing."""

    limit: int = Field(50, ge=1, le=200, description="How many items")
    after: str = Field("", max_length=1_000, description="What `next` of the page before said")


class FilterQuery(PageQuery):
    """One page of a filtered listing."""

    filter: str = Field("", max_length=2_000, description="The grammar of the CLI's filters: `state:open tool:charge`")


@dataclass(slots=True)
class Exchange:
    """One request. ``rt`` sees the tenant of whoever asks and acts under their name."""

    service: Service
    request: Request
    who: Who
    tenant: str
    """The tenant that the request is about."""
    rt: AsyncRuntime
    path: Mapping[str, str]
    query: Any
    body: Any
    is_wide: bool
    """Whether runs of others may be seen; else only those of the agent that asks."""
    uses: ExitStack = field(default_factory=ExitStack)
    """The open runs that it is about: they stay in this server until it is answered."""

    def owns(self, run: Any) -> bool:
        """Return whether whoever asks may know of this run: it is within their tenant already."""
        if self.is_wide:
            return True
        return (run.agent or "") == self.who.agent if self.who.agent else (run.principal or "") == self.who.name


@dataclass(frozen=True, slots=True)
class Reply:
    """What a handler answers: JSON data, or bytes of another type, or a stream."""

    data: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    media_type: str = "application/json"
    stream: AsyncIterator[bytes] | None = None


def encoded(value: Any) -> bytes:
    """Return JSON text in ASCII: any character that the ledger holds can be sent."""
    try:
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except (ValueError, TypeError, RecursionError):
        text = json.dumps(_finite(value, 0), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return ascii_json(text).encode("ascii")


def _finite(value: Any, depth: int) -> Any:
    """Return the value with what JSON cannot hold as text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | int | bool):
        return value
    if depth > DEPTH_MAX:
        return "..."
    if isinstance(value, Mapping):
        return {str(key): _finite(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_finite(one, depth + 1) for one in value]
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


async def page_of(
    found: AsyncIterable[Any],
    query: PageQuery,
    place: Callable[[Any], str],
    *,
    keep: Callable[[Any], bool] | None = None,
) -> Reply:
    """Return one page of a listing that began after ``query.after``; ``next`` names where the next one begins."""
    items: list[Any] = []
    next_: str | None = None
    async for one in found:
        if keep is not None and not keep(one):
            continue
        if len(items) == query.limit:
            next_ = place(items[-1])
            break
        items.append(one)
    return Reply({"items": [one.to_dict() for one in items], "next": next_})


def part_of(found: Sequence[Any], query: PageQuery) -> Reply:
    """Return one page of a list that was read as a whole; ``after`` is how many were shown."""
    if query.after and not (query.after.isdigit() and query.after.isascii() and len(query.after) < 12):
        raise Invalid(f"after={query.after!r} is not what `next` of a page said", problems=("query.after",))
    first = int(query.after or 0)
    end = first + query.limit
    items = [one.to_dict() for one in found[first:end]]
    return Reply({"items": items, "next": str(end) if end < len(found) else None})
