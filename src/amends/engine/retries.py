"""Decide whether a call is started again after an error or a probe's answer, and after which pause."""

from __future__ import annotations

from typing import Final

from amends.engine.outcomes import matches
from amends.errors import is_a
from amends.ledger.rows import CallRow
from amends.ledger.world import DrawRandom
from amends.model import Retry
from amends.tools.spec import Spec

FORWARD: Final = Retry(attempts=1_000_000, delay=1.0, factor=2.0, max_delay=300.0, jitter=0.3)
"""A retriable is never given up after the pivot; its own ``retry`` sets the pace."""
_PERMANENT: Final = (TypeError, AttributeError, NameError, NotImplementedError)
"""Errors of the code rather than of the world: retrying for hours would hide them."""
LOST_STARTS_MAX: Final = 3
"""The most starts of a call whose starts are lost, as long as they had no effect or did no harm."""


def may_retry(spec: Spec, error: Exception) -> bool:
    """Return whether the tool's ``retry`` names this error."""
    return not spec.retry.on or matches(error, spec.retry.on)


def should_retry(spec: Spec, row: CallRow, error: Exception) -> bool:
    """Return whether to start a call again after an error that certainly had no effect."""
    started = row.attempt - row.tries_from
    if spec.kind == "retriable" and not spec.retry_declared:
        return not is_a(error, *_PERMANENT) or started < LOST_STARTS_MAX
    return started < spec.retry.attempts and may_retry(spec, error)


async def retry_delay(spec: Spec, row: CallRow) -> float:
    """Return the seconds to wait before the next attempt."""
    retry = spec.retry if spec.retry_declared or spec.kind != "retriable" else FORWARD
    return retry.pause(max(1, row.attempt - row.tries_from), await DrawRandom())


def should_retry_absent(spec: Spec, row: CallRow) -> bool:
    """Return whether to start a call again that a probe or a person found absent."""
    started = row.attempt - row.tries_from
    if spec.kind == "retriable":
        return True
    if row.why == "final error":  # not one of the errors that its retry names: the probe only tells whether it happened
        return False
    if row.why == "error":
        return started < spec.retry.attempts
    return started < max(spec.retry.attempts, LOST_STARTS_MAX)
