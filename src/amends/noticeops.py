"""What the ledger is asked about notices: who has to be told of which request. See ``ledger``: each is one transaction.

The columns of a request are the outbox: written with the request itself, so that no crash can lose a notice.
"""

from __future__ import annotations

from typing import Final

from amends.approvalrows import ApprovalRow, Requested
from amends.ledger import StoreOp
from amends.record import dataclass

TELLS_MAX: Final = 24
"""So often is tried to tell of one request: a hook that kills its process must not do so for ever."""


@dataclass(slots=True)
class DueNotices(StoreOp[list[str]]):
    """The requests that somebody has to be told of now, longest waiting first."""

    tenant: str | None
    limit: int


@dataclass(slots=True)
class ClaimNotice(StoreOp[Requested | None]):
    """Be the one who tells of this request, for so long; None: somebody else is, or there is nothing to tell."""

    approval: str
    teller: str
    """Names this claim: it is new."""
    claim_s: float


@dataclass(slots=True)
class NoteTold(StoreOp[ApprovalRow]):
    """People were told of this request; or, with an error, they were not, and are to be after ``retry_s``."""

    approval: str
    teller: str
    error: str = ""
    retry_s: float | None = None
    """None: it is given up."""
