"""What events say of rows: digests of payloads, and of the columns that are written once.

A row is not in the chain, and some of its columns change without an event. What of it was decided once is proved by the
event that decided it.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any

from amends.approvalrows import ApprovalRow
from amends.chain import TEXTS_MAX, bound, proof, storable
from amends.forkops import ForkRun
from amends.ledger import AdmitCall, SettleCall, StoreOp
from amends.rows import CallRow, RunRow


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


def terms_bound(row: ApprovalRow) -> str:
    """What was asked for, by whom, of whom and until when."""
    return bound(
        row.call, row.run, row.version, row.principal, row.agent, row.nonce, row.needed, row.roles, row.reasons, row.rule,
        row.policy, row.requested_at, row.expires_at, row.use_key, row.residue, row.follows,
    )  # fmt: skip
