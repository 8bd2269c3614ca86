"""Admitting a request: the key, then the law, then the row. One transaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from amends.approvalrows import FindApproval, Terms
from amends.budgetrows import Overrun
from amends.forkrows import forked_key
from amends.ledger import Admission, AdmitCall
from amends.rows import CallRow, FindCall, FindKey, ListCalls, ListGenerations, Now, RunRow, UpdateCall, UpdateRun
from amends.states import FREES_KEY
from amends.store.change import find_run, held, move_call, note
from amends.store.law import (
    admit_by_law,
    asked_for,
    broken_law,
    hold_for_budget,
    hold_read,
    is_record,
    locked_out,
    refused_by_law,
    refused_by_rule,
    takes_nothing,
    write_call,
)
from amends.store.paying import asked_again, charge_for, refused_before, replanned
from amends.store.requests import PENDING, REVIVED, really, replace_request, why_not, why_replaced

GENERATIONS_MAX: Final = 100
"""How often one key may fail or be taken back in one scope before amends says stop."""


async def admit_call(op: AdmitCall) -> Admission:
    """See ``AdmitCall``."""
    root = await find_run(op.root)
    if not is_record(root):  # a record starts nothing for anybody and answers everybody
        held(root, op.owner, op.epoch)
    run = root if op.run == op.root else await find_run(op.run)
    now = await Now()
    if op.repeated:
        mine = await FindCall(op.call_id)
        if mine is not None:
            return await _first_answer(mine, run)
        over = await refused_before(run, op.call_id)
        if over is not None:
            return Admission("refused", run=run, law="budget", over=over)
    if op.kind == "read":
        return await _admit_read(op, run, root, now)
    known = await FindKey((await _of_fork(op, root)).key)
    if known is not None:
        asked = replace(op, key=known.key) if known.shared else op
        answer = await _answer_known(asked, run, root, await replanned(known, op), now)
        if answer is not None:
            return answer
    closed = await takes_nothing(op, run, root, now)
    if closed is not None:
        return closed
    if op.again:
        no = await _no_to_a_repeat(op, root)
        if no is not None:
            return Admission("rejected", no, run=run)
        await _let_the_suspicion_go(op, root, now)
    if known is None and root.epoch > 1 and not root.history and not op.declared and not op.again:
        twin = await _suspected_twin(op, root)
        if twin is not None and op.need is not None and op.need.decision == "refuse":
            return await refused_by_rule(op, run, root, now)  # nobody is asked about what may not be
        if twin is not None:
            call = await write_call(op, run, root, now, state="held", generation=1, reason="duplicate", twin=twin.id)
            return Admission("held", call, twin, run)
    return await admit_by_law(op, run, root, now, 1 if known is None else known.generation + 1)


async def _first_answer(mine: CallRow, run: RunRow) -> Admission:
    if mine.state == "held":
        twin = await FindCall(mine.twin) if mine.twin else None
        asked = await FindApproval(mine.approval) if mine.approval else None
        if asked is not None and asked.follows:
            return Admission("void", mine, run=run, approval=asked, void="changed")
        return Admission("staged" if mine.is_staged else "held", mine, twin, run, approval=asked)
    return Admission("start", mine)


async def _admit_read(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission:
    # Reads are recorded, never deduplicated: the call's own id keeps their keys apart.
    shared = await _shared_read(op, root) if root.forked_from and not is_record(root) else None
    if shared is not None:
        return Admission("replay" if shared.state == "succeeded" else "failed", shared, run=run)
    closed = await takes_nothing(op, run, root, now)
    if closed is not None and ("committed" in (root.state, run.state) or root.goal == "commit"):
        recorded = [call for call in await ListCalls(root.uid, ("succeeded",)) if call.key.startswith(f"{op.key}:")]
        if run.uid != root.uid and run.state == "committed":
            return await _read_again([call for call in recorded if call.run == run.uid], root) or closed
        return Admission("replay", recorded[-1]) if recorded else closed
    if closed is not None:
        return closed
    if op.need is not None or any(op.costs.ask):
        asked = await _admit_asked_read(op, run, root, now)
        if asked is not None:
            return asked
    locked = await locked_out(op, run, root, now)
    if locked is not None:
        return locked
    paid = await charge_for(op, run, root, now)
    if isinstance(paid, Overrun):
        return await hold_for_budget(op, run, root, now, paid, {"generation": 1})
    if isinstance(paid, Admission):
        return paid
    op = replace(op, key=f"{op.key}:{op.call_id}")  # the request itself may be repeated: it stays as it is
    return Admission("start", await write_call(op, run, root, now, state="started", generation=1, **paid))


async def _read_again(recorded: list[CallRow], root: RunRow) -> Admission | None:
    """In a child that had committed the nth read gets the nth answer, as what it did with them does; then the last."""
    if not recorded:
        return None
    call = next((call for call in recorded if call.asked_epoch < root.epoch), recorded[-1])
    if call.asked_epoch < root.epoch and root.closed_at is None:
        call = await UpdateCall(call, {"asked_epoch": root.epoch})
    return Admission("replay", call)


async def _shared_read(op: AdmitCall, root: RunRow) -> CallRow | None:
    """In a fork the nth read of what it shares gets the nth answer, until something is asked for that it does not."""
    if root.history:
        return None
    calls = await ListCalls(root.uid)
    if any(call.asked_epoch == root.epoch and not call.shared for call in calls):
        return None  # what is read now may have been changed by that
    mine = (call for call in calls if call.shared and call.key.startswith(f"{op.key}:"))
    first = next((call for call in mine if call.asked_epoch < root.epoch), None)
    return None if first is None else await UpdateCall(first, {"asked_epoch": root.epoch})


async def _of_fork(op: AdmitCall, root: RunRow) -> AdmitCall:
    """The request by the key that a fork has it under: a call of the whole ledger is shared under one of its own."""
    if not root.forked_from or op.scope != "ledger":
        return op
    mine = await FindKey(forked_key(op.key, root.uid))
    answers = mine is not None and (mine.state == "succeeded" or mine.asked_epoch < root.epoch)
    return replace(op, key=mine.key) if mine is not None and answers else op


# ---- a key that is known ------------------------------------------------------------------


async def _answer_known(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission | None:
    """The answer from the record, or None when the key is free for a next generation."""
    if known.alias:
        twin = await FindCall(known.alias)
        assert twin is not None, "an alias names a call of this ledger"
        return Admission("replay", twin)
    if known.root != root.uid:
        return await _answer_other_run(op, run, known, now)
    asked_now = False
    if known.asked_epoch < root.epoch and not root.history and root.closed_at is None:
        known = await _next_unasked(op, root)
        asked_now = True
    if known.state in ("held", "ready") and (known.approval or known.reason in ("duplicate", "conflict")):
        return await _answer_held(op, run, root, known, now)
    if known.ident != op.ident and known.state not in FREES_KEY:
        return await _conflict(op, run, root, known, now)
    match known.state:
        case "succeeded":
            return Admission("replay", known)
        case "started" | "compensating":
            return Admission("wait", known, run=run)
        case "in_doubt" | "backing_off" if is_record(root) or (known.kind, known.state) == (
            "retriable",
            "backing_off",
        ):
            return Admission("staged", known, run=run)  # whoever goes forward with the run starts it when it is due
        case "in_doubt" | "compensation_in_doubt" | "compensation_failed" | "residue":
            return Admission("doubt", known, run=run)
        case "backing_off":
            return Admission("retry", known, run=run)
        case "held" | "ready":
            return Admission("staged" if known.is_staged else "held", known, run=run)
        case "failed" if (asked_now or is_record(root)) and known.ident == op.ident:
            return Admission("failed", known, run=run)
        case "refused" if known.ident == op.ident:
            return Admission("rejected", known, run=run)
    newest = known if not asked_now else await FindKey(op.key)
    assert newest is not None, "a key that is known has a newest generation"
    return await _no_further(op, run, root, newest)


async def _no_further(op: AdmitCall, run: RunRow, root: RunRow, newest: CallRow) -> Admission | None:
    """Why there is no next generation; None: there may be.

    A person's no to exactly this stays a no, whatever other arguments were asked for since.
    """
    same = [call for call in await ListGenerations(op.key) if call.root == root.uid and call.ident == op.ident]
    if same and same[-1].state == "refused":
        return Admission("rejected", same[-1], run=run)
    return Admission("spent", newest, run=run) if newest.generation >= GENERATIONS_MAX else None


async def _next_unasked(op: AdmitCall, root: RunRow) -> CallRow:
    """In a resumed run the nth request gets the nth recorded generation first."""
    generations = await ListGenerations(op.key)
    chosen = next((call for call in generations if _answers(call, op, root)), generations[-1])
    return await UpdateCall(chosen, {"asked_epoch": root.epoch})


def _answers(call: CallRow, op: AdmitCall, root: RunRow) -> bool:
    """Whether this generation is an answer to the request. One that freed the key answers only its own words."""
    if call.root != root.uid or call.asked_epoch >= root.epoch or call.state in ("dropped", "compensated"):
        return False
    return call.state not in FREES_KEY or call.ident == op.ident


async def _answer_other_run(op: AdmitCall, run: RunRow, known: CallRow, now: float) -> Admission | None:
    """``scope="ledger"``: another run's call answers only once that run can no longer take it back."""
    if known.state in FREES_KEY:
        return None
    if known.ident != op.ident:
        return await _conflict(op, run, await find_run(run.root), known, now)
    other = await find_run(known.run, peek=True)
    other_root = await find_run(known.root, peek=True)
    pivoted = other.phase == "pivoted" or (other.state == "committed" and bool(other.pivot))
    kept = pivoted or other_root.phase == "pivoted" or other_root.state == "committed"
    if kept and known.state == "succeeded":
        return Admission("replay", known)
    if kept and known.is_staged:
        return Admission("staged", known, run=run)
    return Admission("wait", known, twin=known, run=other_root)


async def _answer_held(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission | None:
    if known.approval:
        return await _answer_requested(op, run, root, known, now)
    if known.ident != op.ident:
        return await _conflict(op, run, root, known, now)
    twin = await FindCall(known.twin) if known.twin else None
    if known.state == "held":
        return Admission("held", known, twin, run)
    closed = await takes_nothing(op, run, root, now, recorded=True)
    if closed is not None:
        return closed
    broken = None if op.advise else await broken_law(op, run, now)
    if broken is not None:
        return await refused_by_law(op, run, root, now, broken)
    return Admission("retry", known, twin, run)  # a person said: run it; that changes no law


# ---- a call that a person is asked about --------------------------------------------------


async def _answer_requested(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    """It is held, or may start: exactly as it was asked for and no other way."""
    approval = await FindApproval(known.approval)
    assert approval is not None, "a call names a request of this ledger"
    waiting = Admission("staged" if known.is_staged else "held", known, run=run, approval=approval)
    if op.repeated and op.need is not None and op.need.id == known.approval:
        return replace(waiting, verdict="void", void=await why_replaced(approval))
    if is_record(root) or (known.is_staged and approval.state == "used" and op.digest == known.digest):
        return waiting  # decided: it starts with what goes forward
    closed = await takes_nothing(op, run, root, now, recorded=known.state == "ready")
    if closed is not None:
        return closed
    need = await really(op.need, run, op.tool)
    if need is not None and need.decision == "refuse":
        return await refused_by_rule(op, run, root, now)
    if op.digest != known.digest:
        return await _ask_for_these(op, run, root, known, now)
    why = why_not(approval, known, Terms(op.version, need), now)
    need = need or asked_again(op, approval)
    if why in ("expired", "changed", REVIVED) and need is not None:
        call, made = await replace_request(run, known, approval, need, why, at=now, by=op.owner, epoch=root.epoch)
        return Admission("void", call, run=run, approval=made, void=why)
    if why not in ("", PENDING):
        return replace(waiting, verdict="void", void=why)
    if why == PENDING or known.is_staged:
        return waiting
    broken = None if op.advise or op.kind == "read" else await broken_law(op, run, now)
    if broken is not None:
        return await refused_by_law(op, run, root, now, broken)
    return replace(waiting, verdict="retry")


async def _ask_for_these(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    """Other arguments under the same key: nobody has said yes to those, and what was asked is asked no more."""
    no = await _no_further(op, run, root, known)
    if no is not None:
        return no
    home = await find_run(known.run)
    why = "asked for with other arguments"
    await move_call(home, known, "dropped", at=now, by=op.owner, epoch=root.epoch, why=why, settled_at=now)
    if home.staged_pivot == known.id:
        await UpdateRun(home, {"staged_pivot": ""})
    run = await find_run(run.uid)
    return await admit_by_law(op, run, root, now, known.generation + 1, follows=known.approval)


async def _admit_asked_read(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission | None:
    """Reads are not deduplicated; one that waits for a person is found again by what it asks. None: it may start."""
    need = await really(op.need, run, op.tool)
    if need is not None and need.decision == "refuse":
        return await refused_by_rule(op, run, root, now)
    if need is None and not any(op.costs.ask):
        return None
    same = [
        call
        for call in await ListCalls(root.uid, ("held", "ready", "refused"))
        if call.kind == "read" and call.approval and call.key.startswith(f"{op.key}:")
    ]
    mine = [call for call in same if call.run == run.uid]
    told = mine or [call for call in same if call.state == "refused"]  # a no is one for the whole tree
    if told and told[-1].state == "refused":
        return Admission("rejected", told[-1], run=run)
    if mine and mine[-1].digest == op.digest:
        return await _answer_requested(op, run, root, await replanned(mine[-1], op), now)
    if mine:  # of another version, or worded anew: nobody has said yes to this one, and what was asked is asked no more
        why = "asked for with other arguments"
        await move_call(run, mine[-1], "dropped", at=now, by=op.owner, epoch=root.epoch, why=why, settled_at=now)
    return None if need is None else await hold_read(op, run, root, need, now)


async def _conflict(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    if op.on_conflict == "raise" or known.state in ("held", "ready"):
        if not is_record(root):
            await note(
                run, "refused", at=now, by=op.tool, epoch=root.epoch, law="conflict", tool=op.tool, known=known.id,
                **asked_for(op),
            )  # fmt: skip
        return Admission("conflict", known, run=run)
    closed = await takes_nothing(op, run, root, now)
    if closed is not None:
        return closed
    if op.need is not None and op.need.decision == "refuse":
        return await refused_by_rule(op, run, root, now)
    # The person decides about exactly these arguments, so the held call has a key of its own.
    op = replace(op, key=f"{op.key}:{op.ident}")
    mine = await FindKey(op.key)
    if mine is None or (mine.state in FREES_KEY - {"refused"} and not mine.alias):
        generation = 1 if mine is None else mine.generation + 1
        mine = await write_call(
            op, run, root, now, state="held", generation=generation, reason="conflict", twin=known.id
        )
        return Admission("held", mine, known, run)
    answer = await _answer_known(op, run, root, mine, now)
    return answer or Admission("conflict", known, run=run)


async def _no_to_a_repeat(op: AdmitCall, root: RunRow) -> CallRow | None:
    """A person's no to these arguments, which a request does not get around by calling itself another one."""
    same = [call for call in await ListCalls(root.uid) if (call.tool, call.ident) == (op.tool, op.ident)]
    return same[-1] if same and same[-1].state == "refused" else None


async def _let_the_suspicion_go(op: AdmitCall, root: RunRow, now: float) -> None:
    """A repeat said on purpose answers the question whether it was one: nobody need be asked any more."""
    for call in await ListCalls(root.uid, ("held",)):
        if call.reason in ("duplicate", "conflict") and call.tool == op.tool and call.ident == op.ident:
            run = await find_run(call.run)
            await move_call(run, call, "dropped", at=now, by=op.owner, epoch=root.epoch, why=f"repeated: {op.again}")


async def _suspected_twin(op: AdmitCall, root: RunRow) -> CallRow | None:
    """A call of this tool from before the resume that nobody has asked for again yet."""
    for call in await ListCalls(root.uid):
        before = call.created_epoch < root.epoch and call.asked_epoch < root.epoch
        # One that a person was asked about counts too: else both would be done once they said yes.
        counts = call.state == "succeeded" or call.is_staged or (call.approval and call.state in ("held", "ready"))
        if before and call.tool == op.tool and not call.declared and counts:
            return call
    return None
