"""What events say of rows: digests of payloads, and of the columns that are written once.

A row is not in the chain, and some of its columns change without an event. What of it was decided once is proved by the
event that decided it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from amends.approvalrows import ApprovalRow, DelegationRow
from amends.chain import GENESIS, TEXTS_MAX, bound, link, proof, storable
from amends.forkops import ForkRun
from amends.ledger import AdmitCall, SettleCall, StoreOp
from amends.record import changed
from amends.rows import CallRow, EventRow, RunRow

LEARNED: Final = ("learned", "evidence")
GOAL: Final = ("goal", "goal_by", "goal_why")
NONE: Final = "none"
"""How an event says that a run has no goal any more: empty facts are left out."""
WORDS: Final = ("by_whom", "reason", "decided_at")
"""Of a request: who decided it, why, and when."""


def proof_of(op: StoreOp[Any], text: str | None) -> str | None:
    """The proof of the payload that this operation brings; made before, where the payload is encrypted by now."""
    return None if text is None else op.proof or proof(text)


def proved(op: ForkRun, row: RunRow | CallRow, name: str) -> str | None:
    """The proof of a payload of a row that comes whole; made before, where it is encrypted by now. None: it has none."""
    text: str | None = getattr(row, name)
    if not text:
        return None
    return op.proofs.get(f"{row.uid if isinstance(row, RunRow) else row.id}.{name}") or proof(text)


def settlement_said(op: SettleCall) -> dict[str, Any]:
    """What the event of a settlement says; the quick ways write the same."""
    failure = proof_of(op, op.error) if op.result is None and op.error else None
    return {"attempt": op.attempt, "why": op.why, "result": proof_of(op, op.result), "failure": failure}


def call_bound(one: AdmitCall | CallRow, key: str, generation: int) -> str:
    """What a call is from its first event on."""
    ident, digest, shared = one.ident, one.digest, one.shared if isinstance(one, CallRow) else ""
    if key.isalnum() and ident.isalnum() and digest.isalnum() and (key + ident + digest).isascii():
        # As ``bound`` writes it; what the calls of a tool have in common is written once.
        first = _spelled(one.tool, one.version, one.kind)
        rest = _spelled(
            one.scope, one.declared, one.again, one.call_ref, one.parent, one.grp, one.at_commit, one.undoable,
            one.accepts, shared,
        )  # fmt: skip
        text = f"({first}, '{key}', {generation}, '{ident}', '{digest}', {rest})"
        return sha256(text.encode("ascii")).hexdigest()
    return bound(
        one.tool, one.version, one.kind, key, generation, one.ident, one.digest, one.scope, int(one.declared), one.again,
        one.call_ref, one.parent, one.grp, int(one.at_commit), int(one.undoable), one.accepts, shared,
    )  # fmt: skip


@lru_cache(maxsize=TEXTS_MAX)
def _spelled(*parts: str | int) -> str:
    return ascii(tuple(storable(part) if isinstance(part, str) else int(part) for part in parts))[1:-1]


def run_bound(row: RunRow) -> str:
    """What a run is from its first event on."""
    return bound(
        row.uid, row.id, row.tenant, row.generation, row.root, row.parent, row.policy, row.order_mode, row.agent,
        row.principal, row.input_digest, row.tags, row.deadline_at, row.forked_from, row.forked_at,
    )  # fmt: skip


def call_said(to: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the event of a move says of the words that the call has from then on: why, an alias, a person's no."""
    said = {name: changes[name] for name in ("why", "alias") if name in changes}
    if to == "refused" and "error" in changes:
        said["failure"] = proof(changes["error"])
    return said


def learned_said(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the proofs of what a call has learned, and of the evidence that it keeps."""
    return {name: proof(changes[name]) for name in LEARNED if name in changes}


def goal_said(run: RunRow, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return what an event says of a run's goal, who set it and why, where these changes set it; all of it, each time."""
    if not any(name in changes for name in GOAL):
        return {}
    goal, by, why = (changes.get(name, getattr(run, name)) for name in GOAL)
    return {"goal": goal or NONE, "goal_by": by, "goal_why": why}


def words_bound(row: ApprovalRow, changes: Mapping[str, Any] | None = None) -> str | None:
    """Return the digest of who decided a request, when, and in which words, after these changes; None: nobody did."""
    new = row if not changes else changed(row, {name: changes[name] for name in WORDS if name in changes})
    said = tuple(getattr(new, name) for name in WORDS)
    return None if said == ("", "", None) else bound(*said)


def delegation_said(row: DelegationRow) -> str:
    """Return the facts of the event of a delegation: all of it, so that nothing of the row can change unseen."""
    said = {"by": row.by_whom, "to": row.to_whom, "until": row.until_at, "why": row.why}
    return json.dumps(said, ensure_ascii=False)


def is_delegated(row: DelegationRow, event: EventRow | None) -> bool:
    """Return whether this event, the first of its chain, is the one that made the delegation as the row has it."""
    if event is None or event.what != "delegated":
        return False
    mine = (row.id, row.tenant, row.made_at, row.seq, storable(delegation_said(row)))
    theirs = (event.root, event.tenant, event.at, event.seq, storable(event.facts))
    return mine == theirs and event.hash == link(GENESIS, 1, event.at, event.body)


def terms_bound(row: ApprovalRow) -> str:
    """What was asked for, by whom, of whom and until when."""
    return bound(
        row.call, row.run, row.version, row.principal, row.agent, row.nonce, row.needed, row.roles, row.reasons, row.rule,
        row.policy, row.requested_at, row.expires_at, row.use_key, row.residue, row.follows,
        row.editors,
    )  # fmt: skip
