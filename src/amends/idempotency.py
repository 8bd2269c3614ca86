"""The ``Idempotency-Key`` header: which key it carries, and what a response to it says about the effect.

By draft-ietf-httpapi-idempotency-key-header: 400, the key is missing and nothing was done; 409, a request with this
key is still in progress; 422, this key was used with another payload before (Stripe and Square answer 400). Servers use
these statuses for other things too, so a response counts only if it mentions idempotency or, with 409 and 422, has no
text at all.
"""

from __future__ import annotations

import re
import time
from typing import Final, Literal

from amends.drivers.context import current_call
from amends.errors import NoRun
from amends.model import Call, NoEffect

HEADER: Final = "Idempotency-Key"
STATUSES: Final = frozenset({400, 409, 422})
"""Only for these statuses the body of a response is read."""
WAIT_S: Final = 10.0
"""How long a request that is still in progress at the destination is sent again."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0
TEXT_CHARS_MAX: Final = 65_536
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_SPEAKS_OF_IT: Final = re.compile(r"idempoten", re.IGNORECASE)
_CAME_BEFORE: Final = re.compile(r"reus|differ|another|\bsame\b|already|match|conflict", re.IGNORECASE)
"""Words about an earlier request: a 400 with one of them does not mean that nothing was done."""

Meaning = Literal["", "missing", "running", "reused"]


class StillRunning(TimeoutError):
    """The destination was still working on an earlier request with this key, so the call is in doubt."""


class KeyReused(Exception):
    """The destination has seen this key with another payload, whose effect may stand, so the call is in doubt."""


class Sending:
    """One request that carries the key of the call whose body sends it."""

    def __init__(self, call: Call, wait_s: float) -> None:
        self.call, self.key = call, call.key
        self._until = time.monotonic() + wait_s
        self._pause_s = PAUSE_S_MIN

    def read(self, status: int, text: str, *, retry_after: str | None = None, again: bool = True) -> float | None:
        """Return None if the response is for the caller, or the seconds after which to send the request again.

        Raise ``NoEffect``, ``StillRunning`` or ``KeyReused`` if the response says so. ``retry_after``: the header of
        that name. ``again``: whether the request can be sent a second time.
        """
        match meaning(status, text):
            case "missing":
                raise NoEffect(f"{self.call.tool}: the destination saw no {HEADER} and did nothing ({status})")
            case "reused":
                raise KeyReused(
                    f"{self.call.tool}: the destination has seen the key of this call with another payload ({status}). "
                    "Either an earlier attempt sent something else, or the body sends two requests: give each its own key"
                )
            case "running":
                return self._again_in(retry_after, again=again)
        return None

    def _again_in(self, retry_after: str | None, *, again: bool) -> float:
        pause = self._pause_s if not (retry_after or "").isdigit() else float(retry_after or 0)
        self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        if not again or time.monotonic() + pause > self._until:
            raise StillRunning(f"{self.call.tool}: the destination is still working on the first request with this key")
        return pause


def sending(method: str, *, wait_s: float = WAIT_S) -> Sending | None:
    """Return the request that is about to be sent, or None for a read or a request outside a body or compensation."""
    if method.upper() in _SAFE:
        return None
    try:
        call = current_call()
    except NoRun:
        return None
    return None if call.phase in ("probe", "before") else Sending(call, wait_s)


def meaning(status: int, text: str) -> Meaning:
    """Return what a response says about the idempotency key; empty if it is about something else."""
    if status not in STATUSES:
        return ""
    says_so = _SPEAKS_OF_IT.search(text[:TEXT_CHARS_MAX]) is not None
    if status == 400:
        if not says_so:
            return ""
        return "reused" if _CAME_BEFORE.search(text[:TEXT_CHARS_MAX]) else "missing"
    if not says_so and text.strip():
        return ""
    return "running" if status == 409 else "reused"
