"""Write and read events, and the digests by which an event proves what its row says.

A row is not in the chain, and some of its columns change without an event. What was decided once is proved by the event
that decided it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from amends.encoding.canonical import quoted
from amends.encoding.chain import GENESIS, TEXTS_MAX, bound, link, proof, storable
from amends.encoding.dataclass import changed
from amends.errors import RunIsRecord
from amends.ledger.operations import (
    AdmitCall,
    ForkRun,
    ReadEvents,
    ReadEventsBack,
    ReadNewestEvent,
    SettleCall,
    StoreOp,
)
from amends.ledger.queries import newest_event, page_events, page_events_back
from amends.ledger.rows import AddEvent, ApprovalRow, CallRow, DelegationRow, EventRow, RunRow


def refuse_loaded(run: RunRow) -> None:
    """Raise ``RunIsRecord`` if the run was loaded from another ledger."""
    if run.origin:
        raise RunIsRecord(run.id, origin=run.origin)


async def write_event(
    run: RunRow, what: str, *, at: float, by: str, epoch: int, call: str = "", frm: str = "", to: str = "", **facts: Any
) -> int:
    """Write an event; return its number in its tree. A run loaded from another ledger is refused."""
    refuse_loaded(run)
    return await AddEvent(
        at=at,
        root=run.root,
        run=run.uid,
        run_id=run.id,
        tenant=run.tenant,
        call=call,
        what=what,
        frm=frm,
        to_state=to,
        by_whom=by,
        epoch=epoch,
        facts=written_facts(facts),
    )


def written_facts(facts: Mapping[str, Any]) -> str:
    """Return the facts that are not empty as JSON; most are a string or a number, and are written without an encoder."""
    kept = {name: value for name, value in facts.items() if value not in (None, "", ())}
    texts = []
    for name, value in kept.items():
        if type(value) is not str and type(value) is not int:
            return json.dumps(kept, ensure_ascii=False, default=str)
        texts.append(f'"{name}": {quoted(value) if type(value) is str else value}')
    return f"{{{', '.join(texts)}}}"


def with_token(facts: str, token: str) -> str:
    """Return the facts of an event and the token by which it was asked for: what was written stays as it was written."""
    before = facts.rstrip().removesuffix("}")
    return f'{before}{"" if before.strip() == "{" else ", "}"token": {quoted(token)}}}'


# ---- What events say about rows: digests of payloads, and of columns that are written once


LEARNED: Final = ("learned", "evidence")
GOAL: Final = ("goal", "goal_by", "goal_why")
NONE: Final = "none"
"""How an event says that a run has no goal any more: empty facts are left out."""
WORDS: Final = ("by_whom", "reason", "decided_at")
"""Columns of a request: who decided it, why, and when."""


def proof_of(op: StoreOp[Any], text: str | None) -> str | None:
    """Return the digest of the operation's payload; if the payload is encrypted by now, the digest was made before."""
    return None if text is None else op.proof or proof(text)


def payload_proof(op: ForkRun, row: RunRow | CallRow, name: str) -> str | None:
    """Return the digest of a payload of a whole row; None: there is no payload.

    If the payload is encrypted by now, the digest was made before.
    """
    text: str | None = getattr(row, name)
    if not text:
        return None
    return op.proofs.get(f"{row.uid if isinstance(row, RunRow) else row.id}.{name}") or proof(text)


def settlement_facts(op: SettleCall) -> dict[str, Any]:
    """Return what the event of a settlement says; the fast paths write the same."""
    failure = proof_of(op, op.error) if op.result is None and op.error else None
    return {"attempt": op.attempt, "why": op.why, "result": proof_of(op, op.result), "failure": failure}


def call_columns_digest(one: AdmitCall | CallRow, key: str, generation: int) -> str:
    """Return the digest of the columns of a call that never change after its first event."""
    ident, digest, shared = one.ident, one.digest, one.shared if isinstance(one, CallRow) else ""
    if key.isalnum() and ident.isalnum() and digest.isalnum() and (key + ident + digest).isascii():
        # Written as ``bound`` does it; what the calls of a tool have in common is written once.
        first = spelled(one.tool, one.version, one.kind)
        rest = spelled(
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
def spelled(*parts: str | int) -> str:
    """Return parts of a row as ``bound`` writes them, without the brackets; cached."""
    return ascii(tuple(storable(part) if isinstance(part, str) else int(part) for part in parts))[1:-1]


def run_columns_digest(row: RunRow) -> str:
    """Return the digest of the columns of a run that never change after its first event."""
    return bound(
        row.uid, row.id, row.tenant, row.generation, row.root, row.parent, row.policy, row.order_mode, row.agent,
        row.principal, row.input_digest, row.tags, row.deadline_at, row.forked_from, row.forked_at,
    )  # fmt: skip


def call_facts(to: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the event of a move says about the new texts of the call: reason, alias, a person's refusal."""
    facts = {name: changes[name] for name in ("why", "alias") if name in changes}
    if to == "refused" and "error" in changes:
        facts["failure"] = proof(changes["error"])
    return facts


def learned_facts(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of the call's kept answers and of its evidence."""
    return {name: proof(changes[name]) for name in LEARNED if name in changes}


def goal_facts(run: RunRow, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return what an event says about a changed goal: the goal, who set it and why, all of it each time."""
    if not any(name in changes for name in GOAL):
        return {}
    goal, by, why = (changes.get(name, getattr(run, name)) for name in GOAL)
    return {"goal": goal or NONE, "goal_by": by, "goal_why": why}


def decision_digest(row: ApprovalRow, changes: Mapping[str, Any] | None = None) -> str | None:
    """Return the digest of who decided a request, why and when, after these changes; None: nobody did."""
    new = row if not changes else changed(row, {name: changes[name] for name in WORDS if name in changes})
    words = tuple(getattr(new, name) for name in WORDS)
    return None if words == ("", "", None) else bound(*words)


def delegation_facts(row: DelegationRow) -> str:
    """Return the facts of the event of a delegation: all of it, so that no column can be changed unnoticed."""
    facts = {"by": row.by_whom, "to": row.to_whom, "until": row.until_at, "why": row.why}
    return json.dumps(facts, ensure_ascii=False)


def is_delegated(row: DelegationRow, event: EventRow | None) -> bool:
    """Return whether this event, the first of its chain, made the delegation exactly as the row has it."""
    if event is None or event.what != "delegated":
        return False
    facts = delegation_facts(row)
    token = json.loads(event.facts).get("token")  # by which it was made over the network; no column has it
    said = facts if token is None else with_token(facts, str(token))
    mine = (row.id, row.tenant, row.made_at, row.seq, storable(said))
    theirs = (event.root, event.tenant, event.at, event.n, storable(event.facts))
    return mine == theirs and event.hash == link(GENESIS, 1, event.at, event.body)


def request_columns_digest(row: ApprovalRow) -> str:
    """Return the digest of what was asked for, by whom, of whom and until when."""
    return bound(
        row.call, row.run, row.version, row.principal, row.agent, row.nonce, row.needed, row.roles, row.reasons, row.rule,
        row.policy, row.requested_at, row.expires_at, row.use_key, row.residue, row.follows,
        row.editors, row.timetable,
    )  # fmt: skip


# ---- Reading


async def read_events(op: ReadEvents) -> list[EventRow]:
    """Read a page of events (``ReadEvents``)."""
    return await page_events(op.root, op.tenant, op.after, op.limit)


async def read_newest_event(op: ReadNewestEvent) -> EventRow | None:
    """Read the last event (``ReadNewestEvent``)."""
    return await newest_event(op.root, op.tenant)


async def read_events_back(op: ReadEventsBack) -> list[EventRow]:
    """Read a page of events, newest first (``ReadEventsBack``)."""
    return await page_events_back(op.tenant, op.before, op.limit)
