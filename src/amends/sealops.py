"""What hiding and encryption ask of the ledger. See ``ledger`` for the rest."""

from __future__ import annotations

from collections.abc import Mapping

from amends.ledger import StoreOp
from amends.record import dataclass


@dataclass(slots=True)
class PinKey(StoreOp[str]):
    """Pin the fingerprint of the key that commitments are made with; the one that is pinned. Empty: only look."""

    fingerprint: str


@dataclass(slots=True)
class RewriteTexts(StoreOp[int]):
    """Write payloads of one call or run anew, each only where it is still as it was read; how many were."""

    row: str
    is_call: bool
    was: Mapping[str, str]
    now: Mapping[str, str]
