"""When a permit or a token ends: a moment, or how long from now."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from amends.errors import UsageError
from amends.host.filters import seconds_in
from amends.ledger.world import ReadClocks
from amends.model import AHEAD_MAX_S


async def end_of(expires: Any, must: str) -> float:
    """Return the timestamp that ``expires=`` means; ``must``: the beginning of the error for one that is not ahead."""
    now = (await ReadClocks()).wall
    if isinstance(expires, str) and (seconds := seconds_in(expires)) is not None:
        expires = seconds
    if isinstance(expires, datetime):
        if expires.tzinfo is None:
            raise UsageError(
                "expires must be a datetime with a time zone, a timedelta, or a number of seconds from now"
            )
        ends = expires.timestamp()
    elif isinstance(expires, timedelta):
        ends = now + expires.total_seconds()
    elif isinstance(expires, int | float) and not isinstance(expires, bool):
        ends = now + expires
    else:
        raise UsageError(f'expires is a time, a number of seconds from now, or a string like "12h", not {expires!r}')
    if not 0 < ends - now <= AHEAD_MAX_S:
        raise UsageError(f"{must} in the future, and within a hundred years")
    return float(ends)
