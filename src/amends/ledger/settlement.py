"""Start recorded calls and settle them: outcomes of attempts, late evidence, and decisions of probes and people."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from amends.encoding.dataclass import dataclass
from amends.encoding.secret import SEALED
from amends.errors import TransitionRefused, cut
from amends.ledger.admission import make_ready, pivot_too_early
from amends.ledger.approvals import (
    first_start_answer,
    make_new_request,
    may_start,
    replace_request,
    use_approval,
    use_staged,
)
from amends.ledger.budgets import (
    charge_of_retry,
    earlier_refusal,
    fresh_ids,
    is_allowed,
    limits_in,
    overrun_need,
    read_charge,
    refuse_by_budget,
    reserve_recorded,
    staged_with_cost,
    with_reported_cost,
)
from amends.ledger.changes import drop_unread, move_call, move_run, unblock
from amends.ledger.events import goal_facts, learned_facts, proof_of, settlement_facts, write_event
from amends.ledger.halts import halt_on
from amends.ledger.leases import check_owner, find_owned, is_owner
from amends.ledger.locks import earlier_setting, lock_names_for, lock_names_of, lost_setting, take_locks
from amends.ledger.operations import (
    VALUE,
    AcceptCall,
    DecideCall,
    DropCall,
    NoteEvidence,
    NoteProbe,
    NoteValue,
    PrepareCall,
    ResolveCall,
    RetryCall,
    SettleCall,
    Settled,
    StartCall,
    WatchDoubt,
)
from amends.ledger.permits import approve_by, permit_for
from amends.ledger.queries import page_events
from amends.ledger.rows import (
    CALLS,
    RUNS,
    ApprovalRow,
    CallRow,
    Contention,
    DirectiveRow,
    LockRequest,
    Need,
    Now,
    Overrun,
    RunRow,
    Terms,
    Unapproved,
    removed,
)
from amends.ledger.tables import Change, Find
from amends.ledger.trees import find_run
from amends.states import RUN_FINAL

# ---- Starting and settling attempts


async def start_call(op: StartCall) -> CallRow | Contention | Overrun | Unapproved | DirectiveRow | None:
    """Start an attempt of a recorded call (``StartCall``).

    Its approval, the ordering rules, its locks and its budgets must allow it, and no halt may forbid it.
    """
    call = await _find(op.call_id)
    run = await find_run(call.run)
    root = await find_owned(call.root, op.owner, op.epoch)
    if op.repeated and call.state == "started" and call.attempt == op.attempt:
        return call
    before = await first_start_answer(call, op.terms) if op.repeated else None
    if before is not None:
        return before
    if call.attempt != op.attempt - 1 or not _startable(run, call, op.terms):
        return await earlier_refusal(run, call.id) if op.repeated else None
    halt = await halt_on(call.tool, run, root)
    if halt is not None:
        return halt
    now = await Now(root.uid)
    asks = (call.approval or (op.terms is not None and op.terms.need is not None)) and not call.attempt
    leave = await _leave_to_start(op, run, call, now) if asks else _Leave(call)
    if isinstance(leave, Unapproved):
        return leave
    call, approval = leave.call, leave.approval
    pivots = call.kind == "pivot" and not call.violation
    lawful = asks or op.terms is None or not op.terms.advise
    if pivots and lawful and not call.attempt and not call.is_staged and await _is_early(run, call, op, now):
        return None
    why_not = await _take_locks(run, root, call, now, op.owner)
    if why_not is not None:
        return why_not
    if not call.attempt and (call.cost or root.charged):
        need = None if op.terms is None else op.terms.need
        unpaid = await reserve_start(run, root, call, approval, need, now=now, by=op.owner)
        if unpaid is not None:
            return unpaid if isinstance(unpaid, Overrun) else Unapproved(*unpaid)
        call = await _find(op.call_id)
    call = await _use_leave(op, run, replace(leave, call=call), now)
    if pivots:
        if not call.attempt:
            await use_staged(run, at=now, by=op.owner, epoch=op.epoch)
        run = await Change(RUNS, run, {"pivot": call.id})
    paid = {"cost": charge_of_retry(call.cost)} if '"said"' in call.cost else {}
    facts: dict[str, Any] = {"attempt": op.attempt}
    if op.before is not None and not call.attempt:
        paid["before"], facts["before"] = op.before, proof_of(op, op.before)
    if call.is_reading:
        paid["reason"] = ""
    # The performer of a start that was lost may still act: the doubt of this one covers both.
    remote_s = max(op.remote_s, call.remote_s) if call.state == "in_doubt" else op.remote_s
    facts["remote"] = remote_s or None
    return await move_call(
        run, call, "started", at=now, by=op.owner, epoch=op.epoch, facts=facts, **paid, remote_s=remote_s,
        attempt=op.attempt, first_at=call.first_at or now, started_at=now, settled_at=None, retry_at=None,
        quiet_boot="", quiet_mono=None, quiet_left=None, why="", evidence="", probe_at=None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Leave:
    """What lets a call start: nothing, an approval, or a pending request and the permit that decides it."""

    call: CallRow
    approval: ApprovalRow | None = None
    permit: DirectiveRow | None = None


async def _leave_to_start(op: StartCall, run: RunRow, call: CallRow, now: float) -> _Leave | Unapproved:
    """Return what lets the first attempt of this call start, or why nothing does; nothing is used up yet."""
    approval = await may_start(run, call, op.terms, at=now, by=op.owner, epoch=op.epoch)
    if not isinstance(approval, Unapproved):
        return _Leave(call, approval)
    asked = approval
    if op.terms is None or asked.why or asked.call.is_staged:
        return asked
    permit = await permit_for(op.terms.permits, asked.call, asked.approval)
    return asked if permit is None else _Leave(asked.call, asked.approval, permit)


async def _use_leave(op: StartCall, run: RunRow, leave: _Leave, now: float) -> CallRow:
    """Use up what lets the call start, and return the call, which is ready.

    Only now: a call that a lock or a budget keeps from starting uses neither its approval nor a permit.
    """
    call, approval = leave.call, leave.approval
    if leave.permit is not None and approval is not None:
        call, approval = await approve_by(leave.permit, call, approval, by=op.owner)
    call = await make_ready(run, call, at=now, by=op.owner, epoch=op.epoch)
    if approval is not None:
        await use_approval(run, approval, at=now, by=op.owner, epoch=op.epoch)
    return call


async def prepare_call(op: PrepareCall) -> CallRow | Contention | None:
    """Take the locks of a call before what is there is read (``PrepareCall``)."""
    call = await _find(op.call_id)
    run = await find_run(call.run)
    root = await find_owned(call.root, op.owner, op.epoch)
    if call.attempt or not _startable(run, call):
        return None
    now = await Now(root.uid)
    why_not = await _take_locks(run, root, call, now, op.owner)
    if why_not is not None:
        return why_not
    return await make_ready(run, call, at=now, by=op.owner, epoch=op.epoch)


async def _take_locks(run: RunRow, root: RunRow, call: CallRow, now: float, owner: str) -> Contention | None:
    """Take the locks of the first attempt of a recorded call; None: it has them.

    Later attempts need none: locks of the first attempt are held until the tree has ended. But none starts while a lost
    setter of the same thing may still land, or an earlier one is still to be started.
    """
    lost = None if call.state == "in_doubt" else await lost_setting(root, lock_names_of([call]), key=call.key)
    if lost is None and call.kind == "retriable":  # forward work keeps its order where the order shows
        lost = await earlier_setting(root, call)
    if lost is not None:
        return Contention(lock_names_of([lost])[0], root.id, root.uid, lost.started_at or now, now, lost=lost)
    names = await lock_names_for(call, run, root) if root.locked and not call.attempt else ()
    if not names:
        return None
    wanted = LockRequest(names, waits=True, waited=True)
    return await take_locks(root, wanted, call=call.id, tool=call.tool, at=now, by=owner)


async def drop_call(op: DropCall) -> CallRow:
    """Give up a call that was prepared and not started (``DropCall``)."""
    call = await _find(op.call_id)
    root = await find_owned(call.root, op.owner, op.epoch)
    if call.state != "ready" or call.attempt:
        return call
    now = await Now(root.uid)
    run = await find_run(call.run)
    if call.is_staged:
        return call  # it keeps the locks that the pivot or the commit took for it
    call = await drop_unread(
        run, root, call, at=now, by=op.owner, epoch=op.epoch, why=op.why, error=op.error,
        failure=proof_of(op, op.error or None),
    )  # fmt: skip
    if call.state == "dropped":
        await _after_settling(await find_run(call.run), call, now, op.owner, root.epoch, doom=op.doom)
    return call


async def _is_early(run: RunRow, call: CallRow, op: StartCall, now: float) -> bool:
    """Return whether a new obstacle has appeared between the approval of a pivot and its start."""
    if run.pivot or run.staged_pivot or run.phase != "open":
        return True
    after = () if op.terms is None else op.terms.after
    return await pivot_too_early(run, call.key, after, op.outbox, now) is not None


def _startable(run: RunRow, call: CallRow, terms: Terms | None = None) -> bool:
    if run.phase not in ("open", "pivoted") or (run.goal == "rollback" and run.phase == "open"):
        # During a rollback only an idempotent call in doubt may be started, to learn its result.
        return call.state == "in_doubt" and run.phase in ("rolling_back", "open")
    if call.is_staged:
        return run.phase == "pivoted"
    by_permit = call.state == "held" and bool(call.approval) and terms is not None and bool(terms.permits)
    return by_permit or call.state in ("ready", "backing_off", "in_doubt")


async def settle_call(op: SettleCall) -> Settled:
    """Record the outcome of an attempt (``SettleCall``), or keep it as evidence if the owner was fenced."""
    call = await _find(op.call_id)
    root = await find_run(call.root)
    if op.repeated and call.state == op.to and call.attempt == op.attempt:
        return Settled(call)
    if not is_owner(root, op.owner, op.epoch) or call.attempt != op.attempt or call.state != "started":
        happened = op.to == "succeeded"
        certain = op.to in ("failed", "backing_off")
        kept = await keep_evidence(
            call, op.attempt, happened=happened, certain=certain, result=op.result, proved=proof_of(op, op.result),
            error=op.error, source="fenced", boot=op.boot, mono=op.mono, repeated=op.repeated,
        )  # fmt: skip
        return Settled(kept, fenced=True)
    now = await Now(root.uid)
    run = root if call.run == call.root else await find_run(call.run)
    tells = op.spent or '"said"' in call.cost
    paid = {"cost": await with_reported_cost(call, op, root, now)} if tells else {}
    quiet = {} if op.to == "succeeded" else {"quiet_boot": op.boot, "quiet_mono": op.mono}  # only a doubt needs them
    settled = await move_call(
        run, call, op.to, at=now, by=op.owner, epoch=op.epoch, facts=settlement_facts(op), **paid, **quiet,
        result=op.result, loss=op.loss, error=op.error, why=op.why, settled_at=now,
        retry_at=None if op.retry_s is None else now + op.retry_s,
    )  # fmt: skip
    known = json.loads(call.evidence) if call.evidence and op.to in ("failed", "backing_off") else {}
    if known.get("happened"):
        # This attempt had no effect, but an earlier one, which was believed absent, has returned meanwhile: it had the
        # effect.
        return Settled(await _reopen(run, settled, known["result"], known.get("proof"), now, "late", root.epoch))
    await _after_settling(run, settled, now, op.owner, root.epoch, doom=op.doom)
    return Settled(settled)


async def _after_settling(run: RunRow, call: CallRow, now: float, by: str, epoch: int, *, doom: bool = False) -> RunRow:
    """Update the run for a settled call, in the same transaction, and return it."""
    if call.kind == "pivot" and run.pivot == call.id and run.phase == "open":
        if call.state == "succeeded":
            if run.state == "blocked":
                run = await move_run(run, "open", at=now, by=by, epoch=epoch, came_from="", causes="[]")
            void = {"goal": "", "goal_by": "", "goal_why": ""} if run.goal == "rollback" else {}
            run = await move_run(run, "pivoted", at=now, by=by, epoch=epoch, facts={"pivot": call.tool}, **void)
        elif call.state in ("failed", "residue"):
            staged = "" if run.staged_pivot == call.id else run.staged_pivot
            run = await Change(RUNS, run, {"pivot": "", "staged_pivot": staged})
    if doom and run.phase == "open" and run.goal != "rollback":
        aim = {"goal": "rollback", "goal_by": "self", "goal_why": f"{call.tool} failed and says that the run fails"}
        await write_event(run, "goal", at=now, by=by, epoch=epoch, to="rollback", call=call.id, **goal_facts(run, aim))
        run = await Change(RUNS, run, aim)
    return run


# ---- Evidence


async def note_evidence(op: NoteEvidence) -> CallRow | None:
    """Record evidence that arrived after the fact (``NoteEvidence``)."""
    call = await Find(CALLS, op.call_id)
    if call is None:
        return None
    return await keep_evidence(
        call, op.attempt, happened=op.happened, certain=op.certain, result=op.result, proved=proof_of(op, op.result),
        error=op.error, source=op.source, boot=op.boot, mono=op.mono, repeated=op.repeated,
    )  # fmt: skip


async def keep_evidence(
    call: CallRow, attempt: int, *, happened: bool, certain: bool, result: str | None, proved: str | None,
    error: str, source: str, boot: str, mono: float | None, repeated: bool, reported: int | None = None,
) -> CallRow:  # fmt: skip
    """Keep what was learned of an attempt after the fact; it reopens a state that it contradicts.

    ``reported``: the epoch of the performer that reported it.
    """
    now = await Now(call.root)
    run = await find_run(call.run)
    root = await find_run(call.root)
    if root.is_erased:  # what was erased does not come back with a late answer
        result, error = None if result is None else removed(result, now, erased=True), ""
    kept = {"attempt": attempt, "happened": happened, "certain": certain, "result": result, "error": error}
    text = json.dumps(kept if proved is None else kept | {"proof": proved})
    if repeated and call.evidence == text:
        return call
    word = "happened" if happened else "nothing happened" if certain else "returned"
    changes: dict[str, Any] = {
        "learned": with_answer(call, at=now, by=source, attempt=attempt, answer=word, why=error_words(error))
    }
    if happened or not call.evidence or (certain and reported is not None):
        changes["evidence"] = text
    await write_event(
        run, "evidence", at=now, by=source, epoch=root.epoch, call=call.id, attempt=attempt, happened=happened,
        error=error, result=proved, reported=reported, **learned_facts(changes),
    )  # fmt: skip
    if call.state == "in_doubt" and call.attempt == attempt and call.quiet_mono is None and mono is not None:
        changes |= {"quiet_boot": boot, "quiet_mono": mono, "probe_at": None}  # the body has returned
    call = await Change(CALLS, call, changes)
    if call.state in ("in_doubt", "compensation_in_doubt"):
        await unblock(run, at=now, by=source, epoch=root.epoch)
    # Late news of an effect that was known and then compensated changes nothing. If it was compensated blindly, the
    # effect may have come after the compensation.
    undone = call.state == "compensated" and call.comp_blind
    if happened and (undone or call.state in ("failed", "backing_off")):
        call = await _reopen(run, call, result, proved, now, source, root.epoch)
    return call


async def _reopen(
    run: RunRow, call: CallRow, result: str | None, proved: str | None, now: float, by: str, epoch: int
) -> CallRow:
    """Mark a call as succeeded because an effect that was believed absent or compensated exists after all."""
    if call.state == "backing_off":
        call = await move_call(run, call, "failed", at=now, by=by, epoch=epoch, settled_at=now)
    kept = result if result is not None else call.result
    call = await move_call(
        run, call, "succeeded", at=now, by=by, epoch=epoch, facts={"late": True, "result": proved}, result=kept, settled_at=now,
        comp_from=call.comp_attempt, comp_gave_up=0,
    )  # fmt: skip
    if call.kind == "pivot" and run.phase == "open" and not run.pivot and not call.violation:
        run = await Change(RUNS, run, {"pivot": call.id})  # it had failed, and the run went on without it
    run = await _after_settling(run, call, now, by, epoch)  # a pivot that was believed absent has happened
    root = await find_run(run.root)
    if root.uid != run.uid and root.state in ("committed", "abandoned"):
        return call  # nothing is compensated inside a run that is over: the effect stays, and the report names it
    for one in {run.uid: run, root.uid: root}.values():
        if one.state == "rolled_back":
            back: dict[str, Any] = {"closed_at": None, "gone_at": None, "goal": "rollback"}
            one = await move_run(one, "rolling_back", at=now, by=by, epoch=epoch, **back)
        if one.uid == one.root and one.phase == "rolling_back" and not one.owner:
            if one.state == "blocked":
                one = await move_run(one, one.came_from, at=now, by=by, epoch=epoch, came_from="", causes="[]")
            await Change(RUNS, one, {"wake_at": now})
    return call


async def note_probe(op: NoteProbe) -> CallRow:
    """Record a probe's answer that decided nothing (``NoteProbe``)."""
    call = await _find(op.call_id)
    if op.repeated and (call.probes >= op.number if op.paced else _has_answer(call, op)):
        return call
    now = await Now(call.root)
    run = await find_run(call.run)
    root = await find_run(call.root)
    why = "" if root.is_erased else op.why
    kept = {"learned": with_answer(call, at=now, by=op.by, attempt=op.about, answer=op.answer, why=why)}
    counts = _is_about(call, op.about)
    facts = learned_facts(kept) if counts else {}
    await write_event(
        run, "probed", at=now, by=op.who or op.by, epoch=root.epoch, call=call.id, answer=op.answer, why=why, **facts
    )
    if not counts:
        return call  # the answer came too late: the call was started again, or is settled
    if not op.paced:
        return await Change(CALLS, call, kept)
    at = None if op.next_s is None else now + op.next_s
    return await Change(CALLS, call, kept | {"probes": call.probes + 1, "probe_at": at, "quiet_left": op.left_s})


def _has_answer(call: CallRow, op: NoteProbe) -> bool:
    return has_answer(call, by=op.by, attempt=op.about, answer=op.answer, why=op.why)


async def watch_doubt(op: WatchDoubt) -> CallRow:
    """Start to count the settle delay on this host's clock (``WatchDoubt``)."""
    call = await _find(op.call_id)
    if not _is_about(call, op.about) or call.is_loaded:
        return call
    if call.state == "in_doubt":
        left = {"quiet_left": None} if op.renewed else {}
        return await Change(CALLS, call, {"quiet_boot": op.boot, "quiet_mono": op.mono, **left})
    return await Change(CALLS, call, {"comp_boot": op.boot, "comp_mono": op.mono})


def _is_about(call: CallRow, attempt: int) -> bool:
    """Return whether the call is still in doubt, for this very attempt of it or of its compensation."""
    return call.in_question == attempt > 0


# ---- Decisions of probes and people


async def resolve_call(op: ResolveCall) -> CallRow:
    """Settle a doubt (``ResolveCall``). With an epoch it is a probe's answer under the lease.

    Without an epoch it is a person's decision.
    """
    call = await _find(op.call_id)
    root = await find_run(call.root)
    if op.repeated and call.state == op.to:
        return call
    if op.epoch is not None:
        await find_owned(call.root, op.owner, op.epoch)
    given_up = call.state == "backing_off" and op.to == "failed"
    if call.state not in ("in_doubt", "compensation_in_doubt", "compensation_failed") and not given_up:
        if op.epoch is not None:
            return call  # it was settled meanwhile
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state}: there is no doubt to resolve", frm=call.state, to=op.to
        )
    now = await Now(call.root)
    run = await find_run(call.run)
    if op.to == "residue" and call.state == "compensation_in_doubt":
        call = await move_call(run, call, "compensation_failed", at=now, by=op.by, epoch=root.epoch)
    changes: dict[str, Any] = {"why": op.why, "probe_at": None}
    if op.to in ("compensated", "compensation_failed"):
        changes = {"comp_settled_at": now, "comp_gave_up": 0, "comp_from": call.comp_attempt}
    elif op.to != "residue":
        changes |= {"settled_at": now, "retry_at": None if op.retry_s is None else now + op.retry_s}
    facts: dict[str, Any] = {"why": op.why, "resolved": True}
    if op.to == "succeeded":
        changes |= {"result": op.result, "loss": op.loss}
        facts["result"] = proof_of(op, op.result)
    call = await move_call(run, call, op.to, at=now, by=op.by, epoch=root.epoch, facts=facts, **changes)
    run = await _after_settling(run, call, now, op.by, root.epoch)
    await unblock(run, at=now, by=op.by, epoch=root.epoch)
    return call


async def decide_call(op: DecideCall) -> CallRow:
    """Apply a person's decision on a held call (``DecideCall``). A replay makes the held key an alias of its twin."""
    call = await _find(op.call_id)
    if op.repeated and call.state == {"run": "ready", "replay": "dropped", "refuse": "refused"}[op.decision]:
        return call
    if call.state != "held" or call.reason not in ("duplicate", "conflict"):
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state}: it does not wait for a decision",
            frm=call.state,
            to=op.decision,
        )
    now = await Now(call.root)
    run = await find_run(call.run)
    root = await find_run(call.root)
    facts = {"decision": op.decision, "why": op.why}
    if op.decision == "replay" and call.twin:
        twin = await _find(call.twin)
        if twin.approval and twin.state in ("held", "ready") and not twin.is_staged:
            raise TransitionRefused(
                f"{twin.tool} ({twin.id}), which it may duplicate, waits for a person itself and has no result yet",
                frm=call.state,
                to="dropped",
            )
    if op.decision == "run":
        call = await _make_ready(run, call, op, now, root.epoch)
    elif op.decision == "refuse":
        call = await move_call(
            run,
            call,
            "refused",
            at=now,
            by=op.by,
            epoch=root.epoch,
            facts=facts,
            why=op.why,
            error=json.dumps([op.by, op.why]),
        )
    else:
        call = await move_call(
            run, call, "dropped", at=now, by=op.by, epoch=root.epoch, facts=facts, why=op.why, alias=call.twin
        )
    await unblock(run, at=now, by=op.by, epoch=root.epoch)
    root = await find_run(call.root)
    undecided = root.owner or root.suspended  # another process owns the run, or another call is still held
    if not undecided and root.phase == "open" and not root.goal and root.recover != "resume":
        # Its caller may open the run again for the answer, so the policy applies only after one lease.
        await Change(RUNS, root, {"wake_at": None if root.recover == "wait" else now + root.lease_s})
    return call


async def _make_ready(run: RunRow, call: CallRow, op: DecideCall, now: float, epoch: int) -> CallRow:
    """Make a held call ready. The person lifts a suspicion, not the ordering rules: what must be staged is staged."""
    if run.phase == "pivoted" and call.kind in ("compensatable", "pivot") and run.order_mode != "advise":
        raise TransitionRefused(
            f"run {run.id} has pivoted: {call.tool} can no longer run in it; refuse it, or answer it with the recorded call",
            frm=call.state,
            to="ready",
        )
    stages = run.phase == "open" and (call.kind == "retriable" or call.at_commit)
    if stages and call.at_commit and run.staged_pivot:
        raise TransitionRefused(f"run {run.id} has its pivot at commit already", frm=call.state, to="ready")
    facts = {"decision": op.decision, "why": op.why}
    changes = {"reason": "order"} if stages else {}
    call = await move_call(run, call, "ready", at=now, by=op.by, epoch=epoch, facts=facts, **changes)
    if stages and call.at_commit:
        await Change(RUNS, run, {"staged_pivot": call.id})
    return call


async def retry_call(op: RetryCall) -> CallRow:
    """Apply a person's decision to retry a call or a compensation that gave up (``RetryCall``)."""
    call = await _find(op.call_id)
    if call.state not in ("backing_off", "compensation_failed"):
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state}: there is nothing to retry", frm=call.state, to="started"
        )
    if op.repeated and call.tries_from == call.attempt and call.comp_from == call.comp_attempt:
        return call
    if op.result is not None and call.state != "compensation_failed":
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state}: a result can only be given for a compensation that was not started",
            frm=call.state,
            to="compensating",
        )
    now = await Now(call.root)
    run = await find_run(call.run)
    root = await find_run(call.root)
    facts: dict[str, Any] = {} if op.result is None else {"result": proof_of(op, op.result)}
    await write_event(run, "retry asked", at=now, by=op.by, epoch=root.epoch, call=call.id, why=op.why, **facts)
    given = {} if op.result is None else {"result": op.result, "loss": ""}
    call = await Change(
        CALLS,
        call,
        given
        | {
            "tries_from": call.attempt,
            "retry_at": now if call.state == "backing_off" else call.retry_at,
            "comp_from": call.comp_attempt,
            "comp_gave_up": 0,
            "comp_retry_at": None,
            "why": "" if call.state == "backing_off" else call.why,
        },
    )
    await unblock(run, at=now, by=op.by, epoch=root.epoch)
    return call


async def _find(call_id: str) -> CallRow:
    call = await Find(CALLS, call_id)
    if call is None:
        raise LookupError(f"there is no call {call_id!r} in this ledger")
    return call


# ---- Accepted residue


DOUBTFUL: Final = ("in_doubt", "compensation_in_doubt", "compensation_failed")


async def accept_call(op: AcceptCall) -> CallRow:
    """Accept an effect as residue (``AcceptCall``). A certain effect is accepted only in a run that is rolling back."""
    call = await _find(op.call_id)
    if op.repeated and call.state == "residue":
        return call
    if call.state in DOUBTFUL:
        return await resolve_call(ResolveCall(op.call_id, "residue", op.by, op.why))
    run = await find_run(call.run)
    if call.state != "succeeded" or call.kind == "read" or call.shared or run.phase != "rolling_back":
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state} in run {run.id}, which is {run.state}: "
            "it has no remaining effect to accept",
            frm=call.state,
            to="residue",
        )
    now = await Now(call.root)
    root = await find_run(call.root)
    call = await move_call(
        run, call, "residue", at=now, by=op.by, epoch=root.epoch, facts={"why": op.why, "accepted": True}, why=op.why
    )
    await unblock(run, at=now, by=op.by, epoch=root.epoch)
    return call


# ---- Answers kept on a call in doubt: only the newest; the events have all of them


LEARNED_MAX: Final = 20
"""How many of the newest answers are kept with the call."""
WORDS_MAX: Final = 500


def with_answer(call: CallRow, *, at: float, by: str, attempt: int, answer: str, why: str) -> str:
    """Return the call's answers with this one added, newest last."""
    kept: list[Any] = json.loads(call.learned) if call.learned else []
    kept.append([at, by, attempt, answer, _cut(why)])
    return json.dumps(kept[-LEARNED_MAX:], ensure_ascii=False)


def has_answer(call: CallRow, *, by: str, attempt: int, answer: str, why: str) -> bool:
    """Return whether this very answer is kept already, so that a repeated operation does not record it twice."""
    kept: list[Any] = json.loads(call.learned) if call.learned else []
    return any(one[1:] == [by, attempt, answer, _cut(why)] for one in kept)


def _cut(why: str) -> str:
    """Return the text cut to the length that is kept; an encrypted text is kept whole."""
    return why if why.startswith(SEALED) else cut(why, WORDS_MAX)


def error_words(error: str) -> str:
    """Return a stored error in words."""
    return ": ".join(part for part in json.loads(error) if part) if error.startswith("[") else error


# ---- The clock as a program reads it through its run


EVENTS_PAGE: Final = 500
PAGES_MAX: Final = 100_000
"""The most pages of one tree's events that are searched for a reading whose answer was lost."""


async def note_value(op: NoteValue) -> float | None:
    """Record a reading of the ledger's clock (``NoteValue``)."""
    root = await find_run(op.root)
    run = root if op.run == op.root else await find_run(op.run)
    if op.repeated:
        before = await _read_before(op, run)
        if before is not None:
            return before
    if root.state in RUN_FINAL or run.state in RUN_FINAL:
        return None
    check_owner(root, op.owner, op.epoch)
    now = await Now(root.uid)
    await write_event(run, VALUE, at=now, by=op.owner, epoch=op.epoch, call=op.call, nonce=op.nonce)
    return now


async def _read_before(op: NoteValue, run: RunRow) -> float | None:
    after = 0
    for _ in range(PAGES_MAX):
        page = await page_events(run.root, None, after, EVENTS_PAGE)
        for event in page:
            if event.what == VALUE and event.run == run.uid and json.loads(event.facts).get("nonce") == op.nonce:
                return event.at
        if len(page) < EVENTS_PAGE:
            return None
        after = page[-1].n
    return None


# ---- The cost of a first start


async def reserve_start(
    run: RunRow, root: RunRow, call: CallRow, approval: ApprovalRow | None, need: Need | None, *, now: float, by: str
) -> Overrun | tuple[CallRow, ApprovalRow] | None:
    """Reserve the cost of a recorded call for its first start, and with a pivot that of its outbox.

    Returns None, or the budget that has not enough; or, if that asks a person, the held call and the request.
    """
    pivots = call.kind == "pivot" and not call.violation and root.charged
    calls = {one.id: one for one in (call, *(await staged_with_cost(run) if pivots else ()))}
    allowed = {} if approval is None else limits_in(approval)
    over = await reserve_recorded(calls.values(), root, now)
    if over is not None and is_allowed(over, allowed):
        over = await reserve_recorded(
            calls.values(), root, now, allowed_limits=dict.fromkeys(calls, allowed), by=approval
        )
    if over is None:
        return None
    ask = read_charge(call.cost).ask if call.cost else ("", "")
    if not over.want.holds or not (any(ask) or call.approval):
        await refuse_by_budget(over, run, root, now, by=by, request=call.id)
        return replace(over, also=())
    asked = overrun_need(over, await fresh_ids(ask, call), need or approval)
    if approval is not None:
        return await replace_request(run, call, approval, asked, "changed", at=now, by=by, epoch=root.epoch)
    return await make_new_request(run, call, asked, at=now, by=by, epoch=root.epoch)
