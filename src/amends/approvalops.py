"""What people and the engine may ask of the ledger about approvals. See ``ledger``: each is one transaction."""

from __future__ import annotations

from typing import Literal

from amends.approvalrows import DelegationRow, Requested, Ruled
from amends.ledger import AdmitCall, StoreOp
from amends.record import dataclass
from amends.rows import RunRow


@dataclass(slots=True)
class DecideApproval(StoreOp[Ruled]):
    """A person's word on a request: approve, bypass, reject or withdraw; or why it counts for nothing."""

    approval: str
    verb: Literal["approve", "bypass", "reject", "withdraw"]
    by: str
    why: str
    digest: str = ""
    """What the person saw; an approval is of exactly that."""
    behalf: str = ""
    """Who delegated it."""
    roles: tuple[str, ...] = ()
    """Of the person who decides, or of the one who delegated it."""


@dataclass(slots=True)
class AskAgain(StoreOp[Ruled]):
    """Ask anew for a call whose request has expired."""

    approval: str
    id: str
    nonce: str
    by: str
    why: str


@dataclass(slots=True)
class EditApproval(StoreOp[Ruled]):
    """Refuse a request and make one for other arguments, which ``instead`` brings."""

    approval: str
    by: str
    why: str
    instead: AdmitCall
    roles: tuple[str, ...] = ()
    """Of the person who says so: it is a no, too."""


@dataclass(slots=True)
class ExpireApprovals(StoreOp[RunRow]):
    """Write down what has expired in a tree: nobody decided in time."""

    root: str
    owner: str
    epoch: int


@dataclass(slots=True)
class VoidApproval(StoreOp[Ruled]):
    """The ledger was put back: what was asked or given before counts no more."""

    approval: str
    by: str
    why: str


@dataclass(slots=True)
class ReadApproval(StoreOp["Requested | None"]):
    """One request, with its call."""

    approval: str


@dataclass(slots=True)
class SearchApprovals(StoreOp[list[Requested]]):
    """A page of requests, newest first."""

    tenant: str | None
    states: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100


@dataclass(slots=True)
class Delegate(StoreOp[DelegationRow]):
    """One person lets another decide, until a time."""

    id: str
    tenant: str
    by: str
    to: str
    until_at: float
    why: str
