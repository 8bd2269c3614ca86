"""Approvals: their rows, and what a transaction of the ledger can do with them.

A request is asked for with a call, decided by people, and used up in the transaction that starts the call. As in
``rows``: equality on indexed columns only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, Literal, TypeAlias, get_args
from unicodedata import category, normalize

from amends.flow import Flow, Op
from amends.model import ApprovalState
from amends.record import dataclass
from amends.rows import CallRow, Changes

APPROVAL_STATES: Final[tuple[ApprovalState, ...]] = get_args(ApprovalState)
BUDGET: Final = "budget:"
"""How the policy of a request begins that was made because a call would pass a cap."""
OPEN: Final = ("pending", "approved")
"""What a person may still decide, or a call may still use."""


@dataclass(frozen=True, slots=True)
class ApprovalRow:
    """One request for a person's yes to exactly one call and generation."""

    id: str
    seq: int
    """The place of its first event."""
    call: str
    run: str
    """The run that asked; a staged call may since have been passed to its parent."""
    root: str
    run_id: str
    tenant: str
    tool: str
    version: str
    principal: str
    agent: str
    digest: str
    nonce: str
    state: str
    needed: int
    roles: str
    reasons: str
    rule: str
    """Why it is asked, in words."""
    policy: str
    given: str
    """Who said yes, as JSON: by, for, roles, why, at, bypass."""
    requested_at: float
    expires_at: float
    use_key: str = ""
    """Which tool by which agent, for rules about a first use."""
    residue: str = ""
    """``accept``: who wrote the rule takes what it leaves behind."""
    follows: str = ""
    """The request that this one replaces."""
    by_whom: str = ""
    reason: str = ""
    decided_at: float | None = None
    used_at: float | None = None
    used_seq: int = 0
    """The place of the event that used it up."""
    told_at: float | None = None
    tell_at: float | None = None
    """When somebody is to tell people of it; None: they were told, it was given up, or need not be."""
    tells: int = 0
    """How often that was begun."""
    teller: str = ""
    """Whose turn it is until then; empty: anybody's."""
    editors: str = ""
    """Who wrote any part of what is asked for in place of who asked first, as JSON; empty: nobody. Each is an asker."""

    @property
    def edited_by(self) -> tuple[str, ...]:
        """Return everybody who edited it, first to last."""
        return tuple(json.loads(self.editors)) if self.editors else ()

    @property
    def is_about_money(self) -> bool:
        """Whether it was made because the call would pass a budget; a yes lets it."""
        return self.policy.startswith(BUDGET)

    def lives(self, now: float) -> bool:
        """Whether it may still be decided or used."""
        return self.state in OPEN and self.expires_at > now

    def state_at(self, now: float) -> str:
        """The state that matters: a request that nobody touched since it ran out has expired."""
        return "expired" if self.state in OPEN and self.expires_at <= now else self.state

    @property
    def yeses(self) -> list[dict[str, Any]]:
        """Who said yes."""
        said: list[dict[str, Any]] = json.loads(self.given)
        return said


def person(name: str) -> str:
    """Whose name this is: other capitals, other spellings of a letter and what nobody sees make no other person."""
    plain = name if name.isascii() else "".join(one for one in normalize("NFKC", name) if category(one) != "Cf")
    return plain.strip().casefold()


Tell: TypeAlias = Callable[[ApprovalRow], Flow[None]]
"""Tells people that they are asked, where a process has a way to."""

APPROVAL_COLUMNS: Final = tuple(field.name for field in fields(ApprovalRow))


@dataclass(frozen=True, slots=True)
class DelegationRow:
    """One person's word that another may decide for them, for a while."""

    id: str
    tenant: str
    by_whom: str
    to_whom: str
    until_at: float
    why: str
    made_at: float
    seq: int
    """The place of its event. One without an event counts for nothing."""

    @property
    def root(self) -> str:
        """Return the chain that its one event is in: its own."""
        return self.id


DELEGATION_COLUMNS: Final = tuple(field.name for field in fields(DelegationRow))


@dataclass(frozen=True, slots=True)
class Need:
    """What the rules say of a request that may not simply start. ``id`` and ``nonce``: of the request to be made."""

    id: str
    nonce: str
    decision: Literal["approve", "refuse"] = "approve"
    needed: int = 1
    roles: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    expires_s: float = 86_400.0
    why: str = ""
    policy: str = ""
    first_use: bool = False
    residue: str = ""
    editors: tuple[str, ...] = ()
    """Who wrote what is asked for, besides who asked first."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under what a recorded call may start now: the tool's version here, what the rules say of it, what comes first."""

    version: str
    need: Need | None = None
    after: tuple[str, ...] = ()
    advise: bool = False
    """The ordering law is only advice here."""


@dataclass(frozen=True, slots=True)
class Unapproved:
    """Why a call was not started: its request is not decided, or void for this reason."""

    call: CallRow
    approval: ApprovalRow | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Requested:
    """A request with its call, and the ledger's time."""

    approval: ApprovalRow
    call: CallRow
    now: float


@dataclass(frozen=True, slots=True)
class Ruled:
    """What became of a person's word. ``void``: why it counts for nothing."""

    approval: ApprovalRow
    call: CallRow
    now: float
    void: str = ""


TermsOf: TypeAlias = Mapping[str, Terms]
"""By the id of a call."""


# ---- what a transaction can do ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindApproval(Op["ApprovalRow | None"]):
    """The request of this id; its root is locked as that of a call is."""

    id: str


@dataclass(frozen=True, slots=True)
class ApprovalsOf(Op[list[ApprovalRow]]):
    """Every request of a tree, oldest first."""

    root: str


@dataclass(frozen=True, slots=True)
class PageApprovals(Op[list[ApprovalRow]]):
    """Requests of the whole ledger, newest first, below ``before``."""

    tenant: str | None
    states: tuple[str, ...]
    before: int | None
    limit: int


@dataclass(frozen=True, slots=True)
class ListTells(Op[list[ApprovalRow]]):
    """Requests that somebody is to be told of by now, longest waiting first."""

    now: float
    tenant: str | None
    limit: int


@dataclass(frozen=True, slots=True)
class FindUse(Op[bool]):
    """Whether this tool was used by this agent after somebody approved it."""

    use: str


@dataclass(frozen=True, slots=True)
class InsertApproval(Op[None]):
    """Add a request."""

    row: ApprovalRow


@dataclass(frozen=True, slots=True)
class UpdateApproval(Op[ApprovalRow]):
    """Change columns of a request that is still in the state that was read."""

    row: ApprovalRow
    changes: Changes


@dataclass(frozen=True, slots=True)
class AddDelegation(Op[bool]):
    """Add a person's word unless it is there; false: it was."""

    row: DelegationRow


@dataclass(frozen=True, slots=True)
class DelegationsTo(Op[list[DelegationRow]]):
    """For whom this person may decide, newest last."""

    tenant: str
    to_whom: str
