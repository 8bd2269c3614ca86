"""What the plain statements of the databases have in common.

A plain statement has its whole condition in SQL: it either does exactly what the flow in ``ledger/`` would have done, or
it changes nothing and the flow decides. So the decisions stay in one place, and the conformance suite compares both
ways. Each store writes the statements in its own SQL.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from amends.encoding.chain import body_of, proof
from amends.encoding.dataclass import changed, dataclass
from amends.encoding.ids import made_at, number_of
from amends.ledger.events import proof_of, written_facts
from amends.ledger.opening import OPENED, new_run, opening_facts
from amends.ledger.operations import (
    Admission,
    AdmitCall,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    DecideCommit,
    OpenRun,
    Rollback,
    SettleCall,
    SettleCompensation,
    Settled,
)
from amends.ledger.plain import AdmitPlain, FailPlain, PlainRun, SettlePlain
from amends.ledger.rows import RUN_COLUMNS, AddEvent, CallRow, RunRow
from amends.states import CALL_STATES, NEW, STANDING, UNSETTLED
from amends.stores.calls import (
    RootFacts,
    attempt_facts,
    failure_facts,
    join,
    pack,
    unsaid,
    with_changes,
    written_more,
)
from amends.stores.sql import SKEW_S, Statements, among

OPEN_ROOT: Final = "state = 'open' and goal = '' and pivot = '' and deadline_at is null and forked_from = ''"
"""The condition of a run that admits a compensatable call or a read without further checks."""


# ---- Plain calls


def is_plain(op: AdmitPlain) -> bool:
    """Return whether only rows of the ledger can keep the call from starting.

    In a resumed run a call without a declared key may repeat one from before: the flow looks.
    """
    return not op.repeated and (op.run.epoch == 1 or bool(op.tool.declared) or op.tool.kind == "read")


def key_of(op: AdmitPlain) -> bytes:
    """Return the key as it is stored: a read has one of its own, since reads are never deduplicated."""
    return op.key if op.tool.kind != "read" else op.key + op.number.to_bytes(8, "big")


def admission_body(op: AdmitPlain) -> str:
    """Return the body of the hash of the event of a plain admission."""
    return op.run.admission_body(op)


def success_body(op: SettlePlain) -> str:
    """Return the body of the hash of the event of a plain success."""
    return op.started.op.run.success_body(op)


def more_of(op: AdmitPlain, result_proof: str = "") -> str | None:
    """Return what the hot columns do not say of a plain call, as ``amends.stores.calls`` writes it."""
    if not op.call_ref and not op.proof and not result_proof:
        return None
    said = (("call_ref", op.call_ref), ("args_proof", op.proof), ("result_proof", result_proof))
    return json.dumps({name: value for name, value in said if value}, separators=(",", ":"))


def is_plain_failure(op: SettleCall, seen: CallRow) -> bool:
    """Return whether a plain call failed for good, and nothing but the call and the end of the chain changes.

    Its event is folded, and so it is of the epoch in which the call was made.
    """
    if op.to != "failed" or op.repeated or op.attempt != 1 or op.doom or op.spent or op.wants or op.retry_s is not None:
        return False
    plain = seen.id == op.call_id and seen.state == "started" and seen.attempt == 1 and seen.run == seen.root
    plain = plain and seen.kind != "pivot" and not seen.cost and not seen.evidence and op.result is None and not op.loss
    plain = plain and seen.settled_at is None and seen.result is None and not op.proof and not op.token
    return plain and seen.created_epoch == op.epoch and is_dated(seen)


def is_dated(call: CallRow) -> bool:
    """Return whether the number of a call says about when it was made: only near that, feeds look for its folded events."""
    number = number_of(call.id)
    return number is not None and abs(made_at(number) - call.created_at) <= SKEW_S


def failed(op: SettleCall, seen: CallRow, root: RootFacts) -> tuple[dict[str, Any], str | None, str | None]:
    """Return what a plain failure changes, and what the hot columns do not say of the call, before and after."""
    learned = {
        "quiet_boot": op.boot, "quiet_mono": op.mono, "loss": "", "error": op.error, "why": op.why, "retry_at": None,
    }  # fmt: skip
    known = {"at": seen.created_at, "attempt": seen.attempt, "epoch": seen.created_epoch, "comp_at": seen.comp_at}
    before = unsaid(seen, known, root)
    return learned, written_more(before), written_more(with_changes(before, learned))


def failed_row(seen: CallRow, learned: Mapping[str, Any], at: float) -> CallRow:
    """Return the call after a plain failure."""
    return changed(seen, {"state": "failed", "settled_at": at, **learned})


def failed_body(op: SettleCall, seen: CallRow) -> str:
    """Return the body of the hash of the event of a plain failure."""
    facts = failure_facts(op.attempt, op.why, proof(op.error) if op.error else "")
    return body_of(
        seen.root, seen.run, seen.run_id, seen.tenant, seen.id, "call", "started", "failed", op.owner, op.epoch, facts
    )


def fails_plainly(op: FailPlain) -> bool:
    """Return whether a call that this process has started fails plainly."""
    return not (op.repeated or op.token or op.proof or op.started.op.proof)


def failure_body(op: FailPlain) -> str:
    """Return the same as ``failed_body`` for a call that this process has started."""
    first = op.started.op
    facts = failure_facts(1, "", proof(op.error) if op.error else "")
    return first.run.body(first.number, "started", "failed", facts)


def more_of_failure(op: FailPlain) -> str | None:
    """Return what the hot columns do not say of a call that has failed plainly, as ``amends.stores.calls`` writes it."""
    call_ref = op.started.op.call_ref
    said = {"quiet_boot": op.boot, "quiet_mono": op.mono, "error": op.error}
    return written_more(with_changes({"call_ref": call_ref} if call_ref else {}, said))


# ---- Plain compensations


@dataclass(slots=True)
class Undo:
    """The calls of a tree that are left to compensate, in the order of settling, as the rollback found them.

    While the run has the same ``touch``, nobody has changed anything else: so the last of them is the next one, and no
    statement has to look at the others.
    """

    touch: int
    left: list[tuple[int, str]]
    rows: dict[str, CallRow]
    """The calls by id: a plain answer is made from what its caller has seen, which must be this."""
    going: str = ""
    begun: CallRow | None = None
    """The call that is being compensated, as the plain statement has left it."""


def undo_of(answer: Rollback, touch: int) -> Undo | None:
    """Return what is left to compensate after a rollback began; None: the flows look themselves."""
    tree = answer.tree
    if tree is None or len(tree.runs) != 1 or tree.run.uid != tree.run.root:
        return None
    effects = [call for call in tree.calls if call.kind != "read"]
    if any(call.state in ("started", "compensating") for call in effects):
        return None
    rows = {call.id: call for call in effects if call.state == "succeeded" and call.undoable}
    return Undo(touch, sorted((call.settled_seq, call.id) for call in rows.values()), rows)


def is_plain_beginning(op: BeginCompensation, undo: Undo | None) -> bool:
    """Return whether this is the next call to compensate, and nothing about it is special."""
    seen = op.seen
    if undo is None or seen is None or op.repeated or op.from_doubt or op.attempt != 1 or undo.going:
        return False
    plain = seen.state == "succeeded" and seen.run == seen.root and not seen.comp_attempt and not seen.shared
    plain = (
        plain
        and not op.remote_s
        and not seen.remote_s
        and not seen.cost
        and not seen.locks
        and not seen.grp
        and seen.lost_at is None
        and is_dated(seen)
    )
    if not plain or not undo.left or undo.left[-1][1] != seen.id:
        return False
    known = undo.rows[seen.id]
    return known is seen or known == seen


def begun(op: BeginCompensation, at: float, undo: Undo) -> CallRow:
    """Remember a plain beginning; return its answer."""
    assert op.seen is not None, "a plain compensation knows its call"
    row = changed(op.seen, {"state": "compensating", "comp_attempt": 1, "comp_at": at, "quiet_left": None})
    undo.going, undo.begun = op.call_id, row
    return row


def is_plain_end(op: SettleCompensation, undo: Undo | None) -> bool:
    """Return whether the compensation that ends is the one that began by a plain statement, and succeeded."""
    if undo is None or op.seen is None or op.repeated or op.to != "compensated" or op.attempt != 1:
        return False
    if undo.going != op.call_id or op.error or op.retry_s is not None or op.gave_up or op.guarded:
        return False
    return undo.begun is op.seen or undo.begun == op.seen


def undone(op: SettleCompensation, at: float, then: CallRow | RunRow | None = None) -> Settled:
    """Return the answer to a plain end of a compensation, with that to what follows it."""
    assert op.seen is not None, "a plain compensation knows its call"
    return Settled(changed(op.seen, {"state": "compensated", "comp_settled_at": at}), then=then)


def compensation_body(op: BeginCompensation | SettleCompensation, frm: str, to: str) -> str:
    """Return the body of the hash of the event of a plain step of a compensation."""
    seen = op.seen
    assert seen is not None, "a plain compensation knows its call"
    return body_of(
        seen.root, seen.run, seen.run_id, seen.tenant, seen.id, "call", frm, to, op.owner, op.epoch, attempt_facts(1)
    )


# ---- Plain runs: opening them, beginning their rollback, closing them


PLAIN_ROOT: Final = (
    "locked = 0 and origin = '' and forked_from = ''"
    " and not exists (select 1 from amends_run k where k.root = amends_run.uid and k.uid <> amends_run.uid)"
)
"""The condition of a root without children and locks, which is no fork and was not loaded."""
UNSHARED: Final = (
    "not exists (select 1 from amends_run f where f.forked_from = amends_run.uid and f.forked_from <> '')"
    " and not exists (select 1 from amends_approval a where a.root = amends_run.uid)"
)
"""The condition of a run on which no fork relies, and in which nobody was asked for an approval."""
ENDED: Final = "owner = '', lease_until = 0.0, wake_at = null, suspended = 0, causes = '[]'"
"""What changes in the row of a root with every end."""


def has_no_call(states: Collection[str], *, but_reads: bool = False) -> str:
    """Return the condition that no call of the run is in one of these states."""
    some = among((state for state in CALL_STATES if state in states), "c.state")
    tools, effects = (" join amends_tool t on t.no = c.tool", " and t.kind <> 'read'") if but_reads else ("", "")
    return f"not exists (select 1 from amends_call c{tools} where c.root = amends_run.no and {some}{effects})"


NOTHING_DROPPED: Final = has_no_call({"held", "ready", "backing_off"})
"""The condition that the beginning of a rollback changes no call."""
NOTHING_LEFT: Final = has_no_call(STANDING | UNSETTLED | {"residue"}, but_reads=True)
"""The condition that nothing keeps a run from being rolled back."""
NOTHING_UNSETTLED: Final = has_no_call(UNSETTLED | {"residue"})
"""The condition that nothing keeps a run from being committed; what is residue may be a pivot that nobody can know."""


def _literal(value: str | float | None) -> str:
    assert "'" not in str(value), "a literal needs no quotes"
    return "null" if value is None else f"'{value}'" if isinstance(value, str) else repr(value)


_NEW_RUN: Final = new_run(OpenRun("", "", "", "", "", 0.0, "", "", "", 0.0), 1, 0.0)
COMMON_COLUMNS: Final = {name: _literal(getattr(_NEW_RUN, name)) for name in RUN_COLUMNS if name not in OPENED}
"""The columns of a run that are the same in all new runs, as SQL."""


def opening_event(op: OpenRun, row: RunRow, at: float) -> AddEvent:
    """Return the first event of a run."""
    facts = written_facts(opening_facts(op, row))
    return AddEvent(at, op.uid, op.uid, op.id, op.tenant, "", "run", NEW, "open", op.owner, 1, facts)


def is_plain_rollback(op: BeginRollback) -> bool:
    """Return whether the owner of a plain run rolls it back, and not by a plan."""
    return op.plain is not None and op.epoch is not None and not (op.repeated or op.mark or op.plan)


def rollback_goal(op: BeginRollback) -> dict[str, str]:
    """Return the goal that a rollback sets."""
    return {"goal": "rollback", "goal_by": "person" if op.person else "self", "goal_why": op.why}


def rollback_events(op: BeginRollback, run: PlainRun, at: float) -> tuple[AddEvent, AddEvent]:
    """Return the events of the beginning of a plain rollback."""
    said = rollback_goal(op)
    return (
        _run_event(run, at, "goal", "", "rollback", op.by, {"why": op.why, **said}),
        _run_event(run, at, "run", "open", "rolling_back", op.by, said),
    )


def is_plain_close(op: CloseRun) -> bool:
    """Return whether a plain run is closed because everything was compensated."""
    return op.plain is not None and op.to == "rolled_back" and not op.repeated


def close_event(op: CloseRun, run: PlainRun, at: float) -> AddEvent:
    """Return the event of the end of a plain rollback."""
    return _run_event(run, at, "run", "rolling_back", "rolled_back", op.owner, {})


def is_plain_commit(op: DecideCommit) -> bool:
    """Return whether only rows of the ledger can keep the run from being committed."""
    return op.plain is not None and not (op.repeated or op.replays or op.completion)


def commit_events(op: DecideCommit, run: PlainRun, at: float) -> tuple[AddEvent, AddEvent]:
    """Return the events of a plain commit."""
    said = {"output": proof_of(op, op.output), "goal": "commit", "goal_by": "self"}
    return (
        _run_event(run, at, "goal", "", "commit", op.owner, said),
        _run_event(run, at, "run", "open", "committed", op.owner, {}),
    )


def _run_event(
    run: PlainRun, at: float, what: str, frm: str, to: str, by: str, facts: Mapping[str, str | None]
) -> AddEvent:
    return AddEvent(
        at, run.root, run.root, run.run_id, run.tenant, "", what, frm, to, by, run.epoch, written_facts(facts)
    )


# ---- Answers from the record


def answer_sql(statements: Statements) -> str:
    """Return the select of the newest generation of a key, with the owner and the epoch of its tree; locks nothing."""
    mark, name = statements.dialect.mark, statements.dialect.name_of
    select = statements.calls.rooted.replace("select ", "select r.owner, r.epoch, ", 1)
    return f"{select} where r.uid = {mark} and c.{name('key')} = {mark} order by c.gen desc limit 1"


def is_plain_question(op: AdmitCall) -> bool:
    """Return whether the record may answer the request as it is."""
    return op.expected and op.kind != "read" and op.scope != "ledger"


def question(op: AdmitCall) -> tuple[str, bytes]:
    """Return the values of ``answer_sql``."""
    return op.root, pack(op.key)


def answered(op: AdmitCall, found: Sequence[tuple[Any, ...]]) -> Admission | None:
    """Return the answer from the record: a call of this tree that has succeeded. None: the flow decides."""
    if not found:
        return None
    owner, epoch, *values = found[0]
    row, _ = join(values)
    mine = owner == op.owner and epoch == op.epoch and row.root == op.root and row.asked_epoch >= epoch
    same = row.state == "succeeded" and row.ident == op.ident and not row.alias
    return Admission("replay", row) if mine and same else None
