"""Decide whether a call may start: by its key, by the ordering rules, by approvals, locks and budgets.

One transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from amends.ledger.approvals import (
    PENDING,
    REVIVED,
    make_request,
    replace_request,
    still_needed,
    undecided_staged,
    use_staged,
    why_not_startable,
    why_replaced,
)
from amends.ledger.budgets import (
    earlier_refusal,
    initial_charge,
    overrun_need,
    repeat_need,
    reserve_new_call,
    with_current_caps,
)
from amends.ledger.changes import move_call
from amends.ledger.events import call_columns_digest, goal_facts, proof_of, write_event
from amends.ledger.forks import rolled_back_source
from amends.ledger.halts import halt_on, halted_facts
from amends.ledger.leases import check_owner
from amends.ledger.locks import lost_setting, mark_locked, merged, outbox_lock_names, take_locks
from amends.ledger.operations import Admission, AdmitCall
from amends.ledger.queries import list_calls, list_generations, list_tree, move_time, newest_call
from amends.ledger.rows import (
    ANSWERS,
    APPROVALS,
    CALLS,
    FINAL_NO,
    READING,
    RUNS,
    AnswerRow,
    CallRow,
    IdTaken,
    Need,
    Now,
    Overrun,
    RunRow,
    Terms,
    TermsByCall,
    forked_key,
)
from amends.ledger.tables import Add, Change, Find
from amends.ledger.trees import find_run, key_root
from amends.states import FREES_KEY, RUN_FINAL, UNSETTLED

# ---- Admission


GENERATIONS_MAX: Final = 100
"""How often one key may fail or be compensated in one scope before amends refuses it."""


async def admit_call(op: AdmitCall) -> Admission:
    """Decide about one request (``AdmitCall``): the key first, then the ordering rules, then write the row."""
    root = await find_run(op.root)
    if not is_over_for_callers(root):  # a closed run starts nothing, and answers every owner from the record
        check_owner(root, op.owner, op.epoch)
    run = root if op.run == op.root else await find_run(op.run)
    now = await Now(root.uid)
    if op.repeated:
        mine = await Find(CALLS, op.call_id)
        if mine is not None and not _is_from(op, mine):
            raise IdTaken(op.call_id)
        if mine is not None:
            return await _first_answer(mine, run)
        over = await earlier_refusal(run, op.call_id)
        if over is not None:
            return Admission("refused", run=run, law="budget", over=over)
    if op.kind == "read":
        return await _admit_read(op, run, root, now)
    known = await newest_call((await _with_fork_key(op, root)).key, key_root(op))
    if known is not None:
        asked = replace(op, key=known.key) if known.shared else op
        answer = await _answer_known(asked, run, root, await with_current_caps(known, op), now)
        if answer is not None:
            return answer
    closed = await closed_for_calls(op, run, root, now)
    if closed is not None:
        return closed
    if op.again:
        no = await _refused_repeat(op, root)
        if no is not None:
            return Admission("rejected", no, run=run)
        await _drop_suspected(op, root, now)
    if known is None and root.epoch > 1 and not root.history and not op.declared and not op.again:
        twin = await _suspected_duplicate(op, root)
        if twin is not None and op.need is not None and op.need.decision == "refuse":
            return await refuse_by_rule(op, run, root, now)  # no person is asked to approve what a rule refuses
        if twin is not None:
            call = await write_call(op, run, root, now, state="held", generation=1, reason="duplicate", twin=twin.id)
            return Admission("held", call, twin, run)
    return await admit_new_call(op, run, root, now, 1 if known is None else known.generation + 1)


def _is_from(op: AdmitCall, call: CallRow) -> bool:
    """Return whether this call was written for this request, and not for another one that drew the same id."""
    same = (call.root, call.run, call.tool, call.ident) == (op.root, op.run, op.tool, op.ident)
    # A read and a conflict have more behind their key.
    return same and any(f"{call.key}:".startswith(f"{key}:") for key in (op.key, forked_key(op.key, op.root)))


async def _first_answer(mine: CallRow, run: RunRow) -> Admission:
    if mine.state == "held":
        twin = await Find(CALLS, mine.twin) if mine.twin else None
        asked = await Find(APPROVALS, mine.approval) if mine.approval else None
        if asked is not None and asked.follows:
            return Admission("void", mine, run=run, approval=asked, void="changed")
        return Admission("staged" if mine.is_staged else "held", mine, twin, run, approval=asked)
    if mine.state == "ready":  # its `before` is to be read, or a permit covered it and something else was in its way
        return Admission("retry", mine, is_prepared=mine.is_reading)
    return Admission("start", mine)


async def _admit_read(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission:
    # Reads are recorded, never deduplicated: the call's own id keeps their keys apart.
    shared = await _shared_read(op, root) if root.forked_from and not is_over_for_callers(root) else None
    if shared is not None:
        return Admission("replay" if shared.state == "succeeded" else "failed", shared, run=run)
    closed = await closed_for_calls(op, run, root, now)
    if closed is not None and ("committed" in (root.state, run.state) or root.goal == "commit"):
        recorded = [call for call in await list_calls(root.uid, ("succeeded",)) if call.key.startswith(f"{op.key}:")]
        if run.uid != root.uid and run.state == "committed":
            return await _replay_read(op, [call for call in recorded if call.run == run.uid], root) or closed
        return Admission("replay", recorded[-1]) if recorded else closed
    if closed is not None:
        return closed
    known = await _resumed_read(op, run, root) if root.epoch > 1 else None
    if known is not None:
        return Admission("replay" if known.state == "succeeded" else "failed", known, run=run)
    if op.need is not None or any(op.costs.ask):
        asked = await _answer_held_read(op, run, root, now)
        if asked is not None:
            return asked
    locked = await take_call_locks(op, run, root, now)
    if locked is not None:
        return locked
    paid = await reserve_new_call(op, run, root, now)
    if isinstance(paid, Overrun):
        return await hold_for_budget(op, run, root, now, paid, {"generation": 1})
    if isinstance(paid, Admission):
        return paid
    op = replace(op, key=f"{op.key}:{op.call_id}")  # the operation itself may be repeated: it must not change
    return Admission("start", await write_call(op, run, root, now, state="started", generation=1, **paid))


async def _replay_read(op: AdmitCall, recorded: list[CallRow], root: RunRow) -> Admission | None:
    """Answer a read in a committed child from the record: the nth read gets the nth answer, later reads the last one.

    The child's other calls are answered in the same way.
    """
    if not recorded:
        return None
    again = _asked_before(op, recorded, root)
    call = again or next((call for call in recorded if call.asked_epoch < root.epoch), recorded[-1])
    if call.asked_epoch < root.epoch and root.closed_at is None:
        call = await _ask_for(op, call, root)
    return Admission("replay", call)


async def _resumed_read(op: AdmitCall, run: RunRow, root: RunRow) -> CallRow | None:
    """Return the recorded answer to a read of a resumed run; None: it runs.

    The nth read gets the nth, until the run makes a call that the record does not have: that call may have changed what
    is read. Otherwise a resumed agent would see its own effects, and plan differently.
    """
    if root.history or root.reads_again or root.forked_from or op.parent:
        return None  # a body that is started again is another attempt, and reads for itself
    calls = await list_calls(root.uid)
    again = _asked_before(op, calls, root)
    if again is not None:
        return again
    if any(call.created_epoch == root.epoch for call in calls):
        return None
    alike = [call for call in calls if call.kind == "read" and call.run == run.uid and not call.parent]
    mine = (call for call in alike if call.key.startswith(f"{op.key}:"))
    first = next((call for call in mine if call.asked_epoch < root.epoch and _has_answer(call)), None)
    return None if first is None else await _ask_for(op, first, root)


async def _ask_for(op: AdmitCall, call: CallRow, root: RunRow) -> CallRow:
    """Record that this request was answered with a recorded call; the next request gets the next one."""
    return await Change(CALLS, call, {"asked_epoch": root.epoch, "asked_by": op.call_id})


def _asked_before(op: AdmitCall, calls: Iterable[CallRow], root: RunRow) -> CallRow | None:
    """Return the call that this request was answered with before its answer was lost; None: it is asked for the first time."""
    if not op.repeated:
        return None
    return next((call for call in calls if call.asked_epoch == root.epoch and call.asked_by == op.call_id), None)


def _has_answer(read: CallRow) -> bool:
    """Return whether the record has what this read was answered: not if it was lost, or its result was not kept whole."""
    if read.state == "failed":
        return read.why not in ("lost", "cancelled") and bool(read.error)
    return read.state == "succeeded" and read.result is not None and not read.loss and read.lost_at is None


async def _shared_read(op: AdmitCall, root: RunRow) -> CallRow | None:
    """Return the shared answer to a read in a fork.

    The nth read gets the nth, until the fork makes a call of its own.
    """
    if root.history:
        return None
    calls = await list_calls(root.uid)
    again = _asked_before(op, calls, root)
    if again is not None:
        return again
    if any(call.asked_epoch == root.epoch and not call.shared for call in calls):
        return None  # that call may have changed what is read now
    mine = (call for call in calls if call.shared and call.key.startswith(f"{op.key}:"))
    first = next((call for call in mine if call.asked_epoch < root.epoch), None)
    return None if first is None else await _ask_for(op, first, root)


async def _with_fork_key(op: AdmitCall, root: RunRow) -> AdmitCall:
    """Return the request under the key that the fork has for it.

    A shared call of scope ``ledger`` has a key of its own.
    """
    if not root.forked_from or op.scope != "ledger":
        return op
    mine = await newest_call(forked_key(op.key, root.uid), "")
    answers = mine is not None and (mine.state == "succeeded" or mine.asked_epoch < root.epoch)
    return replace(op, key=mine.key) if mine is not None and answers else op


# ---- Requests with a known key


async def _answer_known(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission | None:
    """Return the answer from the record, or None if the key is free for the next generation."""
    if known.alias:
        twin = await Find(CALLS, known.alias)
        assert twin is not None, "an alias names a call of this ledger"
        return Admission("replay", twin)
    if known.root != root.uid:
        return await _answer_other_run(op, run, known, now)
    recorded = await _recorded_generation(op, root, known)
    known, asked_now = recorded or known, recorded is not None
    if known.state in ("held", "ready") and (known.approval or known.reason in ("duplicate", "conflict")):
        return await _answer_held(op, run, root, known, now)
    if known.ident != op.ident and known.state not in FREES_KEY:
        return await _other_arguments(op, run, root, known, now)
    match known.state:
        case "succeeded":
            return Admission("replay", known)
        case "started" | "compensating":
            return Admission("wait", known, run=run)
        case "in_doubt" | "backing_off" if is_over_for_callers(root) or (known.kind, known.state) == (
            "retriable",
            "backing_off",
        ):
            return Admission("staged", known, run=run)  # the process that finishes the run starts it when it is due
        case "in_doubt" | "compensation_in_doubt" | "compensation_failed" | "residue":
            return Admission("doubt", known, run=run)
        case "backing_off":
            return Admission("retry", known, run=run)
        case "ready" if known.is_reading:
            return await closed_for_calls(op, run, root, now) or Admission("retry", known, run=run)
        case "held" | "ready":
            return Admission("staged" if known.is_staged else "held", known, run=run)
        case "failed" if (asked_now or is_over_for_callers(root)) and known.ident == op.ident:
            return Admission("failed", known, run=run)
        case "refused" if known.ident == op.ident:
            return Admission("rejected", known, run=run)
    newest = known if not asked_now else await newest_call(op.key, key_root(op))
    assert newest is not None, "a key that is known has a newest generation"
    return await _next_generation(op, run, root, newest, now)


async def _next_generation(op: AdmitCall, run: RunRow, root: RunRow, newest: CallRow, now: float) -> Admission | None:
    """Answer a request whose key is free; None: it is the next generation."""
    if op.on_conflict == "next":
        return await _next_setting(op, run, root, newest, now)
    return await _why_no_next(op, run, root, newest)


async def _other_arguments(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission | None:
    """Answer a request with other arguments than the call that has its key."""
    answer = _next_setting if op.on_conflict == "next" else _conflict
    return await answer(op, run, root, known, now)


async def _next_setting(op: AdmitCall, run: RunRow, root: RunRow, newest: CallRow, now: float) -> Admission | None:
    """Answer a setter (``on_conflict="next"``): None for the next generation of its key.

    Only what stands answers a repeat: the newest generation that did not fail and was not compensated. Another value
    waits until that one is settled, so that the two cannot land in the wrong order.
    """
    generations = await list_generations(op.key, key_root(op))
    standing = [call for call in generations if call.root == root.uid and call.state not in FREES_KEY]
    if standing:
        last = standing[-1]
        match last.state:
            case "succeeded" if last.ident == op.ident:
                return Admission("replay", last)
            case "started" | "compensating":
                return Admission("wait", last, run=run)
            case "in_doubt" | "compensation_in_doubt" | "compensation_failed":
                return Admission("doubt", last, run=run)
            case "ready" if last.is_reading:
                return Admission("wait", last, run=run)  # or its flow was stopped, which only its process knows
            case "held" | "ready" | "backing_off":
                return await _conflict(op, run, root, last, now)
    return await _why_no_next(op, run, root, newest)


async def _why_no_next(op: AdmitCall, run: RunRow, root: RunRow, newest: CallRow) -> Admission | None:
    """Return why there is no next generation; None: there may be one.

    If a person refused exactly these arguments, or the tool said no for good, that stays so, whatever other arguments were
    requested since.
    """
    same = [
        call
        for call in await list_generations(op.key, key_root(op))
        if call.root == root.uid and call.ident == op.ident
    ]
    if same and same[-1].state == "refused":
        return Admission("rejected", same[-1], run=run)
    if same and same[-1].state == "failed" and same[-1].why == FINAL_NO:
        return Admission("failed", same[-1], run=run)
    return Admission("spent", newest, run=run) if newest.generation >= GENERATIONS_MAX else None


async def _recorded_generation(op: AdmitCall, root: RunRow, newest: CallRow) -> CallRow | None:
    """Return the recorded generation that answers: in a resumed run the nth request gets the nth one first; None: the newest."""
    if not op.repeated and newest.asked_epoch >= root.epoch:
        return None
    generations = await list_generations(op.key, key_root(op))
    again = _asked_before(op, generations, root)
    if again is not None or newest.asked_epoch >= root.epoch or root.history or root.closed_at is not None:
        return again
    chosen = next((call for call in generations if _answers(call, op, root)), generations[-1])
    return await _ask_for(op, chosen, root)


def _answers(call: CallRow, op: AdmitCall, root: RunRow) -> bool:
    """Return whether this generation answers the request; one that freed the key only answers equal arguments."""
    if call.root != root.uid or call.asked_epoch >= root.epoch or call.state in ("dropped", "compensated"):
        return False
    return call.state not in FREES_KEY or call.ident == op.ident


async def _answer_other_run(op: AdmitCall, run: RunRow, known: CallRow, now: float) -> Admission | None:
    """Answer a call of scope ``ledger`` from another run, but only once that run can no longer roll it back."""
    if known.state in FREES_KEY:
        return None
    if known.ident != op.ident:
        return await _conflict(op, run, await find_run(run.root), known, now)
    other = await find_run(known.run, peek=True)
    other_root = await find_run(known.root, peek=True)
    pivoted = other.phase == "pivoted" or (other.state == "committed" and bool(other.pivot))
    kept = pivoted or other_root.phase == "pivoted" or other_root.state == "committed"
    if kept and known.state == "succeeded":
        await _note_answer(op, run, known, now)
        return Admission("replay", known)
    if kept and known.is_staged:
        return Admission("staged", known, run=run)
    return Admission("wait", known, twin=known, run=other_root)


async def _note_answer(op: AdmitCall, run: RunRow, known: CallRow, now: float) -> None:
    """Record, once, that this run relies on a call of another run: a plan to take that back names it."""
    root = await find_run(run.root)
    if root.closed_at is not None:
        return
    if await Add(ANSWERS, AnswerRow(known.id, root.uid, root.id, now), if_absent=True):
        said = {"answered": known.id, "of": known.run_id}
        await write_event(run, "answered", at=now, by=op.owner, epoch=root.epoch, **said)


async def _answer_held(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission | None:
    if known.approval:
        return await _answer_requested(op, run, root, known, now)
    if known.ident != op.ident:
        return await _conflict(op, run, root, known, now)
    twin = await Find(CALLS, known.twin) if known.twin else None
    if known.state == "held":
        return Admission("held", known, twin, run)
    closed = await closed_for_calls(op, run, root, now, recorded=True)
    if closed is not None:
        return closed
    broken = None if op.advise else await order_violation(op, run, now)
    if broken is not None:
        return await refuse_by_order(op, run, root, now, broken)
    return Admission("retry", known, twin, run)  # a person decided to run it; the ordering rules still hold


# ---- Calls with an approval request


async def _answer_requested(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    """Answer that the call is held, or may start: with exactly the arguments of the request and no others."""
    approval = await Find(APPROVALS, known.approval)
    assert approval is not None, "a call names a request of this ledger"
    waiting = Admission("staged" if known.is_staged else "held", known, run=run, approval=approval)
    if op.repeated and op.need is not None and op.need.id == known.approval:
        return replace(waiting, verdict="void", void=await why_replaced(approval))
    if is_over_for_callers(root) or (known.is_staged and approval.state == "used" and op.digest == known.digest):
        return waiting  # decided: it starts with the forward work
    closed = await closed_for_calls(op, run, root, now, recorded=known.state == "ready")
    if closed is not None:
        return closed
    need = await still_needed(op.need, run, op.tool)
    if need is not None and need.decision == "refuse":
        return await refuse_by_rule(op, run, root, now)
    if op.digest != known.digest:
        return await _replace_held_call(op, run, root, known, now)
    await move_time(now)
    why = why_not_startable(approval, known, Terms(op.version, need), now)
    need = need or repeat_need(op, approval)
    if why in ("expired", "changed", REVIVED) and need is not None:
        call, made = await replace_request(run, known, approval, need, why, at=now, by=op.owner, epoch=root.epoch)
        return Admission("void", call, run=run, approval=made, void=why)
    if why not in ("", PENDING):
        return replace(waiting, verdict="void", void=why)
    if why == PENDING or known.is_staged:
        return waiting
    broken = None if op.advise or op.kind == "read" else await order_violation(op, run, now)
    if broken is not None:
        return await refuse_by_order(op, run, root, now, broken)
    return replace(waiting, verdict="retry")


async def _replace_held_call(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    """Replace a held call by one with other arguments under the same key: nobody has approved those."""
    no = await _why_no_next(op, run, root, known)
    if no is not None:
        return no
    home = await find_run(known.run)
    why = "asked for with other arguments"
    await move_call(home, known, "dropped", at=now, by=op.owner, epoch=root.epoch, why=why, settled_at=now)
    if home.staged_pivot == known.id:
        await Change(RUNS, home, {"staged_pivot": ""})
    run = await find_run(run.uid)
    return await admit_new_call(op, run, root, now, known.generation + 1, follows=known.approval)


async def _answer_held_read(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission | None:
    """Find a read that waits for a person by its arguments, since reads are not deduplicated; None: it may start."""
    need = await still_needed(op.need, run, op.tool)
    if need is not None and need.decision == "refuse":
        return await refuse_by_rule(op, run, root, now)
    if need is None and not any(op.costs.ask):
        return None
    same = [
        call
        for call in await list_calls(root.uid, ("held", "ready", "refused"))
        if call.kind == "read" and call.approval and call.key.startswith(f"{op.key}:")
    ]
    mine = [call for call in same if call.run == run.uid]
    same_tree = mine or [call for call in same if call.state == "refused"]  # a refusal holds for the whole tree
    if same_tree and same_tree[-1].state == "refused":
        return Admission("rejected", same_tree[-1], run=run)
    if mine and mine[-1].digest == op.digest:
        return await _answer_requested(op, run, root, await with_current_caps(mine[-1], op), now)
    if mine:  # another version or other arguments: nobody has approved this one, and the old request is dropped
        why = "asked for with other arguments"
        await move_call(run, mine[-1], "dropped", at=now, by=op.owner, epoch=root.epoch, why=why, settled_at=now)
    return None if need is None else await hold_read(op, run, root, need, now)


async def _conflict(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    if op.on_conflict != "hold" or known.state in ("held", "ready"):
        if not is_over_for_callers(root):
            await write_event(
                run, "refused", at=now, by=op.tool, epoch=root.epoch, law="conflict", tool=op.tool, known=known.id,
                **refusal_facts(op),
            )  # fmt: skip
        return Admission("conflict", known, run=run)
    closed = await closed_for_calls(op, run, root, now)
    if closed is not None:
        return closed
    if op.need is not None and op.need.decision == "refuse":
        return await refuse_by_rule(op, run, root, now)
    # The person decides about exactly these arguments, so the held call has a key of its own.
    op = replace(op, key=f"{op.key}:{op.ident}")
    mine = await newest_call(op.key, key_root(op))
    if mine is None or (mine.state in FREES_KEY - {"refused"} and not mine.alias):
        generation = 1 if mine is None else mine.generation + 1
        mine = await write_call(
            op, run, root, now, state="held", generation=generation, reason="conflict", twin=known.id
        )
        return Admission("held", mine, known, run)
    answer = await _answer_known(op, run, root, mine, now)
    return answer or Admission("conflict", known, run=run)


async def _refused_repeat(op: AdmitCall, root: RunRow) -> CallRow | None:
    """Return the call with these arguments that a person refused.

    A declared repeat (``again``) does not get around it.
    """
    same = [call for call in await list_calls(root.uid) if (call.tool, call.ident) == (op.tool, op.ident)]
    return same[-1] if same and same[-1].state == "refused" else None


async def _drop_suspected(op: AdmitCall, root: RunRow, now: float) -> None:
    """Drop calls that are held as suspected duplicates: a declared repeat answers that question."""
    for call in await list_calls(root.uid, ("held",)):
        if call.reason in ("duplicate", "conflict") and call.tool == op.tool and call.ident == op.ident:
            run = await find_run(call.run)
            await move_call(run, call, "dropped", at=now, by=op.owner, epoch=root.epoch, why=f"repeated: {op.again}")


async def _suspected_duplicate(op: AdmitCall, root: RunRow) -> CallRow | None:
    """Return a call of this tool from before the resume that was not requested again yet."""
    for call in await list_calls(root.uid):
        before = call.created_epoch < root.epoch and call.asked_epoch < root.epoch
        # One that waits for approval counts too: otherwise both would run once they are approved.
        counts = call.state == "succeeded" or call.is_staged or (call.approval and call.state in ("held", "ready"))
        if before and call.tool == op.tool and not call.declared and counts:
            return call
    return None


# ---- The ordering rules, and the call that is written


def is_over_for_callers(root: RunRow) -> bool:
    """Return whether the run is over for its callers: closed, or decided to commit and left to whoever finishes it."""
    return root.closed_at is not None or (root.goal == "commit" and not root.owner)


async def closed_for_calls(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, recorded: bool = False
) -> Admission | None:
    """Return the answer if the run takes nothing new; None if it does. A missed deadline and a halt are noticed here.

    ``recorded``: the call is not new and a commit waits for it: only its caller may have what it must be started
    with.
    """
    late = root.deadline_at is not None and now > root.deadline_at
    if late and root.phase == "open" and not root.pivot and root.goal != "rollback":
        aim = {"goal": "rollback", "goal_by": "deadline", "goal_why": "the deadline passed"}
        await write_event(root, "goal", at=now, by="deadline", epoch=root.epoch, to="rollback", **goal_facts(root, aim))
        root = await Change(RUNS, root, aim)
        run = root if run.uid == root.uid else run
    gone = (
        await rolled_back_source(root) if root.phase == "open" and not root.pivot and root.goal != "rollback" else None
    )
    if gone is not None:
        why = f"run {gone.id}, whose calls it shares, was rolled back"
        aim = {"goal": "rollback", "goal_by": "self", "goal_why": why}
        await write_event(
            root, "goal", at=now, by="fork", epoch=root.epoch, to="rollback", why=why, **goal_facts(root, aim)
        )
        root = await Change(RUNS, root, aim)
        run = root if run.uid == root.uid else run
    for one in (run, root):
        if one.state in RUN_FINAL or one.phase == "rolling_back" or (one.goal == "rollback" and one.phase == "open"):
            return Admission("ended", run=one)
    if run.goal == "commit" and not recorded and (op.kind != "read" or is_over_for_callers(root)):
        return Admission("ended", run=run)
    return await _refuse_by_halt(op, run, root, now)


async def _refuse_by_halt(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission | None:
    """Record that a halt refuses this request; None: no halt does."""
    halt = await halt_on(op.tool, run, root)
    if halt is None:
        return None
    await write_event(
        run, "refused", at=now, by=op.tool, epoch=root.epoch, law="halt", tool=op.tool, halt=halt.id,
        said=halted_facts(halt), **refusal_facts(op),
    )  # fmt: skip
    return Admission("refused", run=run, law="halt", halt=halt)


async def admit_new_call(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, generation: int, *, follows: str = ""
) -> Admission:
    """Start the call, stage it, hold it for a person, or refuse it by the ordering rules.

    ``follows``: the request for other arguments that this one replaces.
    """
    broken = await order_violation(op, run, now)
    if broken is not None and not op.advise:
        return await refuse_by_order(op, run, root, now, broken)
    need = None if op.need is None else await still_needed(op.need, run, op.tool)
    if need is not None and need.decision == "refuse":
        return await refuse_by_rule(op, run, root, now)
    facts: dict[str, Any] = {"generation": generation, "violation": "" if broken is None else broken.law}
    if run.phase == "open" and (op.kind == "retriable" or op.at_commit):
        call = await write_call(op, run, root, now, state="held", reason="order", need=need, **facts)
        if op.at_commit:
            run = await Change(RUNS, run, {"staged_pivot": call.id})
        return await _held_answer(op, run, root, call, need, now, follows=follows, verdict="staged")
    if need is not None:
        call = await write_call(op, run, root, now, state="held", reason="approval", need=need, **facts)
        return await _held_answer(op, run, root, call, need, now, follows=follows)
    return await _start(op, run, root, now, facts)


async def refuse_by_order(op: AdmitCall, run: RunRow, root: RunRow, now: float, broken: Admission) -> Admission:
    """Record that the ordering rules refuse this request."""
    await write_event(
        run, "refused", at=now, by=op.tool, epoch=root.epoch, law=broken.law, tool=op.tool, missing=broken.missing,
        unsettled=broken.unsettled, pivot=broken.pivot, **refusal_facts(op),
    )  # fmt: skip
    return broken


def refusal_facts(op: AdmitCall) -> dict[str, str]:
    """Return the identity of a refused request, for a replay: a refusal has no row."""
    return {"ident": op.ident, "again": op.again, "parent": op.parent}


async def _start(op: AdmitCall, run: RunRow, root: RunRow, now: float, facts: dict[str, Any]) -> Admission:
    pivots = op.kind == "pivot" and not facts["violation"]
    locked = await take_call_locks(op, run, root, now, pivots=pivots)
    if locked is not None and (op.kind != "retriable" or locked.verdict == "doubt"):
        return locked
    if op.reads and op.kind != "retriable":
        call = await write_call(op, run, root, now, state="held", reason=READING, **facts)
        call = await make_ready(run, call, at=now, by=op.owner, epoch=root.epoch)
        return Admission("retry", call, is_prepared=True)
    paid = await reserve_new_call(op, run, root, now, pivots=pivots)
    if isinstance(paid, Overrun):
        return await hold_for_budget(op, run, root, now, paid, facts)
    if isinstance(paid, Admission):
        return paid
    if locked is not None or op.reads:
        # After the pivot it is forward work, whoever holds the lock and whether or not what is there can be read now:
        # accept it, and start it when that is possible.
        facts = {"generation": facts["generation"], "reason": "lock", **paid}
        return Admission("staged", await write_call(op, run, root, now, state="held", **facts), run=run)
    if pivots:
        await use_staged(run, at=now, by=op.owner, epoch=root.epoch)
    call = await write_call(op, run, root, now, state="started", **facts, **paid)
    if pivots:
        await Change(RUNS, run, {"pivot": call.id})
    return Admission("start", call)


async def refuse_by_rule(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission:
    """Record the refusal by a rule: an event and an answer, but no call, so that it takes no key."""
    why = "" if op.need is None else op.need.why
    await write_event(
        run, "refused", at=now, by=op.tool, epoch=root.epoch, law="rule", tool=op.tool, rule=why, **refusal_facts(op)
    )
    return Admission("refused", run=run, law="rule", void=why)


async def _held_answer(
    op: AdmitCall, run: RunRow, root: RunRow, call: CallRow, need: Need | None, now: float, *,
    follows: str, verdict: str = "held",
) -> Admission:  # fmt: skip
    if need is None:
        return Admission(verdict, call, run=run)
    made = await make_request(run, call, need, at=now, by=op.owner, epoch=root.epoch, follows=follows)
    return Admission("void" if follows else verdict, call, run=run, approval=made, void="changed" if follows else "")


async def hold_for_budget(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, over: Overrun, facts: dict[str, Any]
) -> Admission:
    """Hold a call that would exceed a budget for a person, who may allow it."""
    need = overrun_need(over, op.costs.ask, None)
    kept = replace(op, key=f"{op.key}:{op.call_id}") if op.kind == "read" else op
    call = await write_call(kept, run, root, now, state="held", reason="budget", need=need, **facts)
    return await _held_answer(op, run, root, call, need, now, follows="")


async def hold_read(op: AdmitCall, run: RunRow, root: RunRow, need: Need, now: float) -> Admission:
    """Hold a read that a person must allow: reads take no key, so its own id keeps it apart."""
    call = await write_call(
        replace(op, key=f"{op.key}:{op.call_id}"), run, root, now, state="held", reason="approval", need=need,
        generation=1,
    )  # fmt: skip
    return await _held_answer(op, run, root, call, need, now, follows="")


async def take_call_locks(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, pivots: bool = False
) -> Admission | None:
    """Take the locks that the call names, and with a pivot those of its outbox.

    Return the answer if another run has one.
    """
    wanted = op.locks
    if pivots and root.locked:
        wanted = replace(wanted, names=merged(wanted.names, await outbox_lock_names(run)))
    if not wanted.names:
        return None
    lost = await lost_setting(root, wanted.names, key=op.key)
    if lost is not None:
        return Admission("doubt", lost, run=run)
    why_not = await take_locks(root, wanted, call=op.call_id, tool=op.tool, at=now, by=op.owner)
    if why_not is None:
        return None
    run = await find_run(root.uid) if why_not.victim else run
    return Admission("ended" if why_not.victim else "locked", run=run, lock=why_not)


async def order_violation(op: AdmitCall, run: RunRow, now: float) -> Admission | None:
    """Return the refusal if the request would break the ordering rules; None if it would not."""
    pivoted = run.phase == "pivoted"
    if run.pivot and not pivoted:
        return Admission("refused", run=run, law="pivot_in_flight", pivot=await _tool_of(run.pivot))
    if op.kind == "retriable" or (op.kind == "compensatable" and not pivoted):
        return None
    if op.kind == "compensatable":
        return Admission("refused", run=run, law="after_pivot", pivot=await _tool_of(run.pivot))
    if pivoted or run.staged_pivot:
        return Admission("refused", run=run, law="pivot_twice", pivot=await _tool_of(run.pivot or run.staged_pivot))
    if op.at_commit:
        return None  # what is missing or unsettled is checked when the run commits
    return await pivot_too_early(run, op.key, op.after, op.outbox, now)


async def pivot_too_early(
    run: RunRow, key: str, after: Sequence[str], outbox: TermsByCall, now: float
) -> Admission | None:
    """Return why the pivot with this key comes too early; None: it does not."""
    calls, open_children = await calls_within(run)
    missing = not_succeeded(after, calls)
    if missing:
        return Admission("refused", run=run, law="pivot_early", missing=missing)
    others = [call for call in calls if call.key != key]  # a held pivot that a person released does not block itself
    unknown = [call for call in others if call.run == run.uid and call.kind == "pivot" and call.state == "residue"]
    if unknown:  # it may have happened: another one could be the second
        return Admission("refused", run=run, law="pivot_twice", pivot=unknown[0].tool)
    unsettled = [call.tool for call in others if call.state in UNSETTLED and not call.is_staged]
    unsettled += [call.tool for call in await undecided_staged(run, others, outbox, now)]
    unsettled += [child.id for child in open_children]
    if unsettled:
        return Admission("refused", run=run, law="pivot_early", unsettled=tuple(dict.fromkeys(unsettled)))
    return None


def not_succeeded(after: Sequence[str], calls: Iterable[CallRow]) -> tuple[str, ...]:
    """Return those of these tools that have not succeeded."""
    done = {call.tool for call in calls if call.state == "succeeded"}
    return tuple(tool for tool in after if tool not in done)


async def calls_within(run: RunRow) -> tuple[list[CallRow], list[RunRow]]:
    """Return the calls of a run and of its descendants, and those descendants that are not closed."""
    tree = await list_tree(run.root)
    inside = {run.uid}
    for row in tree:  # parents come first
        if row.parent in inside:
            inside.add(row.uid)
    calls = [call for call in await list_calls(run.root) if call.run in inside]
    unclosed = [row for row in tree if row.uid in inside and row.uid != run.uid and row.state not in RUN_FINAL]
    return calls, unclosed


async def _tool_of(call_id: str) -> str:
    call = await Find(CALLS, call_id) if call_id else None
    return "the commit" if call is None else call.tool


async def write_call(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, state: str, need: Need | None = None, **facts: Any
) -> CallRow:
    """Write the call, started or held, with its event."""
    if need is not None:
        facts["approval"] = need.id
    if op.accepts:
        facts["accepts"] = op.accepts
    if op.locks.names:
        facts["locks"] = json.dumps(op.locks.names, ensure_ascii=False)
        await mark_locked(root)
    costs = None
    if op.costs.costs:
        facts["cost"], costs = await initial_charge(op, root, facts.get("cost", ""))
    seq = await write_event(
        run, "call", at=now, by=op.owner, epoch=root.epoch, call=op.call_id, frm="(new)", to=state,
        tool=op.tool, args=proof_of(op, op.args), row=call_columns_digest(op, op.key, facts["generation"]),
        reason=facts.get("reason"), violation=facts.get("violation"), twin=facts.get("twin"),
        locks=op.locks.names, costs=costs, accepts=op.accepts, remote=op.remote_s or None if state == "started" else None,
    )  # fmt: skip
    if state == "started":
        facts |= {"attempt": 1, "first_at": now, "started_at": now, "remote_s": op.remote_s}
    row = _row_of(op, run, root, now, seq=seq, state=state, **facts)
    await Add(CALLS, row)
    return row


def _row_of(op: AdmitCall, run: RunRow, root: RunRow, now: float, **facts: Any) -> CallRow:
    return CallRow(
        id=op.call_id,
        run=run.uid,
        root=root.uid,
        run_id=run.id,
        tenant=run.tenant,
        tool=op.tool,
        version=op.version,
        kind=op.kind,
        key=op.key,
        ident=op.ident,
        digest=op.digest,
        args=op.args,
        created_at=now,
        created_epoch=root.epoch,
        asked_epoch=root.epoch,
        scope=op.scope,
        declared=int(op.declared),
        again=op.again,
        call_ref=op.call_ref,
        parent=op.parent,
        grp=op.grp,
        at_commit=int(op.at_commit),
        undoable=int(op.undoable),
        put=int(op.put),
        agent=run.agent,
        principal=run.principal,
        **facts,
    )


async def make_ready(run: RunRow, call: CallRow, *, at: float, by: str, epoch: int) -> CallRow:
    """Make a held call ready to start."""
    if call.state == "held":
        call = await move_call(run, call, "ready", at=at, by=by, epoch=epoch)
    return call
