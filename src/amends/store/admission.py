"""Admitting a request: the key, then the law, then the row. One transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from amends.ledger import Admission, AdmitCall
from amends.rows import (
    CallRow,
    FindCall,
    FindKey,
    InsertCall,
    ListCalls,
    ListGenerations,
    ListTree,
    Now,
    RunRow,
    UpdateCall,
    UpdateRun,
)
from amends.states import FREES_KEY, RUN_FINAL, UNSETTLED
from amends.store.change import find_run, held, move_call, note
from amends.store.locks import merged, outbox_names, remember, take_locks

GENERATIONS_MAX: Final = 100
"""How often one key may fail or be taken back in one scope before amends says stop."""


async def admit_call(op: AdmitCall) -> Admission:
    """See ``AdmitCall``."""
    root = await find_run(op.root)
    if not _is_record(root):  # a record starts nothing for anybody and answers everybody
        held(root, op.owner, op.epoch)
    run = root if op.run == op.root else await find_run(op.run)
    now = await Now()
    if op.repeated:
        mine = await FindCall(op.call_id)
        if mine is not None:
            return await _first_answer(mine, run)
    if op.kind == "read":
        return await _admit_read(op, run, root, now)
    known = await FindKey(op.key)
    if known is not None:
        answer = await _answer_known(op, run, root, known, now)
        if answer is not None:
            return answer
    closed = await _closed(op, run, root, now)
    if closed is not None:
        return closed
    if op.again:
        await _let_the_suspicion_go(op, root, now)
    if known is None and root.epoch > 1 and not root.history and not op.declared and not op.again:
        twin = await _suspected_twin(op, root)
        if twin is not None:
            call = await _insert(op, run, root, now, state="held", generation=1, reason="duplicate", twin=twin.id)
            return Admission("held", call, twin, run)
    return await _admit_by_law(op, run, root, now, 1 if known is None else known.generation + 1)


def _is_record(root: RunRow) -> bool:
    """Whether the run is over for its callers: closed, or decided and given to whoever goes forward with it."""
    return root.closed_at is not None or (root.goal == "commit" and not root.owner)


async def _first_answer(mine: CallRow, run: RunRow) -> Admission:
    if mine.state == "held":
        twin = await FindCall(mine.twin) if mine.twin else None
        return Admission("staged" if mine.is_staged else "held", mine, twin, run)
    return Admission("start", mine)


async def _admit_read(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission:
    # Reads are recorded, never deduplicated: the call's own id keeps their keys apart.
    closed = await _closed(op, run, root, now)
    if closed is not None and (root.state == "committed" or root.goal == "commit"):
        recorded = [call for call in await ListCalls(root.uid, ("succeeded",)) if call.key.startswith(f"{op.key}:")]
        return Admission("replay", recorded[-1]) if recorded else closed
    if closed is not None:
        return closed
    locked = await _locked(op, run, root, now)
    if locked is not None:
        return locked
    op = replace(op, key=f"{op.key}:{op.call_id}")  # the request itself may be repeated: it stays as it is
    return Admission("start", await _insert(op, run, root, now, state="started", generation=1))


async def _closed(op: AdmitCall, run: RunRow, root: RunRow, now: float, *, recorded: bool = False) -> Admission | None:
    """Whether the run takes nothing new; a deadline that has passed is found here.

    ``recorded``: it is not new, and a commit waits for it: its caller may bring what nobody else can start it with.
    """
    late = root.deadline_at is not None and now > root.deadline_at
    if late and root.phase == "open" and not root.pivot and root.goal != "rollback":
        await note(root, "goal", at=now, by="deadline", epoch=root.epoch, to="rollback")
        root = await UpdateRun(root, {"goal": "rollback", "goal_by": "deadline", "goal_why": "the deadline passed"})
        run = root if run.uid == root.uid else run
    for one in (run, root):
        if one.state in RUN_FINAL or one.phase == "rolling_back" or (one.goal == "rollback" and one.phase == "open"):
            return Admission("ended", run=one)
    if run.goal == "commit" and not recorded and (op.kind != "read" or _is_record(root)):
        return Admission("ended", run=run)
    return None


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
    if known.reason in ("duplicate", "conflict") and known.state in ("held", "ready"):
        return await _answer_held(op, run, root, known, now)
    if known.ident != op.ident and known.state not in FREES_KEY:
        return await _conflict(op, run, root, known, now)
    match known.state:
        case "succeeded":
            return Admission("replay", known)
        case "started" | "compensating":
            return Admission("wait", known, run=run)
        case "in_doubt" | "backing_off" if _is_record(root) or (known.kind, known.state) == (
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
        case "failed" if (asked_now or _is_record(root)) and known.ident == op.ident:
            return Admission("failed", known, run=run)
        case "refused" if known.ident == op.ident:
            return Admission("rejected", known, run=run)
    newest = known if not asked_now else await FindKey(op.key)
    assert newest is not None, "a key that is known has a newest generation"
    if newest.generation >= GENERATIONS_MAX:
        return Admission("spent", newest, run=run)
    return None


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
    if known.ident != op.ident:
        return await _conflict(op, run, root, known, now)
    twin = await FindCall(known.twin) if known.twin else None
    if known.state == "held":
        return Admission("held", known, twin, run)
    closed = await _closed(op, run, root, now, recorded=True)
    if closed is not None:
        return closed
    broken = None if op.advise else await _broken_law(op, run)
    return broken or Admission("retry", known, twin, run)  # a person said: run it; that changes no law


async def _conflict(op: AdmitCall, run: RunRow, root: RunRow, known: CallRow, now: float) -> Admission:
    if op.on_conflict == "raise" or known.state in ("held", "ready"):
        return Admission("conflict", known, run=run)
    closed = await _closed(op, run, root, now)
    if closed is not None:
        return closed
    # The person decides about exactly these arguments, so the held call has a key of its own.
    op = replace(op, key=f"{op.key}:{op.ident}")
    mine = await FindKey(op.key)
    if mine is None or (mine.state in FREES_KEY - {"refused"} and not mine.alias):
        generation = 1 if mine is None else mine.generation + 1
        mine = await _insert(op, run, root, now, state="held", generation=generation, reason="conflict", twin=known.id)
        return Admission("held", mine, known, run)
    answer = await _answer_known(op, run, root, mine, now)
    return answer or Admission("conflict", known, run=run)


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
        if before and call.tool == op.tool and not call.declared and (call.state == "succeeded" or call.is_staged):
            return call
    return None


# ---- the law ------------------------------------------------------------------------------


async def _admit_by_law(op: AdmitCall, run: RunRow, root: RunRow, now: float, generation: int) -> Admission:
    broken = await _broken_law(op, run)
    if broken is not None and not op.advise:
        await note(
            run, "refused", at=now, by=op.tool, epoch=root.epoch, law=broken.law, tool=op.tool, missing=broken.missing
        )
        return broken
    violation = "" if broken is None else broken.law
    stages = run.phase == "open" and (op.kind == "retriable" or op.at_commit)
    if stages:
        call = await _insert(
            op, run, root, now, state="held", generation=generation, reason="order", violation=violation
        )
        if op.at_commit:
            run = await UpdateRun(run, {"staged_pivot": call.id})
        return Admission("staged", call, run=run)
    locked = await _locked(op, run, root, now, pivots=op.kind == "pivot" and not violation)
    if locked is not None and op.kind == "retriable":
        # Past the pivot it is forward work, whoever has the lock: accepted, and started when that is free.
        call = await _insert(op, run, root, now, state="held", generation=generation, reason="lock")
        return Admission("staged", call, run=run)
    if locked is not None:
        return locked
    call = await _insert(op, run, root, now, state="started", generation=generation, violation=violation)
    if op.kind == "pivot" and not violation:
        await UpdateRun(run, {"pivot": call.id})
    return Admission("start", call)


async def _locked(op: AdmitCall, run: RunRow, root: RunRow, now: float, *, pivots: bool = False) -> Admission | None:
    """Take what the call names, and with a pivot what its outbox will need; the answer when somebody has it."""
    wanted = op.locks
    if pivots and root.locked:
        wanted = replace(wanted, names=merged(wanted.names, await outbox_names(run)))
    if not wanted.names:
        return None
    why_not = await take_locks(root, wanted, call=op.call_id, tool=op.tool, at=now, by=op.owner)
    if why_not is None:
        return None
    run = await find_run(root.uid) if why_not.victim else run
    return Admission("ended" if why_not.victim else "locked", run=run, lock=why_not)


async def _broken_law(op: AdmitCall, run: RunRow) -> Admission | None:
    pivoted = run.phase == "pivoted"
    if run.pivot and not pivoted:
        return Admission("refused", run=run, law="pivot_in_flight", pivot=await _tool_of(run.pivot))
    if op.kind == "retriable" or (op.kind == "compensatable" and not pivoted):
        return None
    if op.kind == "compensatable":
        return Admission("refused", run=run, law="after_pivot", pivot=await _tool_of(run.pivot))
    if pivoted or run.staged_pivot:
        return Admission("refused", run=run, law="pivot_twice", pivot=await _tool_of(run.pivot or run.staged_pivot))
    return await _early(op, run)


async def _early(op: AdmitCall, run: RunRow) -> Admission | None:
    if op.at_commit:
        return None  # what is missing or unsettled is looked at when the run commits
    calls, open_children = await within(run)
    missing = not_done(op.after, calls)
    if missing:
        return Admission("refused", run=run, law="pivot_early", missing=missing)
    others = [call for call in calls if call.key != op.key]  # a held pivot that a person let go is not its own obstacle
    unsettled = [call.tool for call in others if call.state in UNSETTLED and not call.is_staged]
    unsettled += [child.id for child in open_children]
    if unsettled:
        return Admission("refused", run=run, law="pivot_early", unsettled=tuple(dict.fromkeys(unsettled)))
    return None


def not_done(after: Sequence[str], calls: Iterable[CallRow]) -> tuple[str, ...]:
    """Which of these tools have not succeeded."""
    done = {call.tool for call in calls if call.state == "succeeded"}
    return tuple(tool for tool in after if tool not in done)


async def within(run: RunRow) -> tuple[list[CallRow], list[RunRow]]:
    """The calls of a run and of its descendants, and those descendants that are not closed."""
    tree = await ListTree(run.root)
    inside = {run.uid}
    for row in tree:  # parents come first
        if row.parent in inside:
            inside.add(row.uid)
    calls = [call for call in await ListCalls(run.root) if call.run in inside]
    unclosed = [row for row in tree if row.uid in inside and row.uid != run.uid and row.state not in RUN_FINAL]
    return calls, unclosed


async def _tool_of(call_id: str) -> str:
    call = await FindCall(call_id) if call_id else None
    return "the commit" if call is None else call.tool


async def _insert(op: AdmitCall, run: RunRow, root: RunRow, now: float, *, state: str, **facts: Any) -> CallRow:
    """Write the request down, started or held, with its event."""
    if op.locks.names:
        facts["locks"] = json.dumps(op.locks.names, ensure_ascii=False)
        await remember(root)
    seq = await note(
        run, "call", at=now, by=op.owner, epoch=root.epoch, call=op.call_id, frm="(new)", to=state,
        tool=op.tool, reason=facts.get("reason"), violation=facts.get("violation"),
        locks=op.locks.names,
    )  # fmt: skip
    if state == "started":
        facts |= {"attempt": 1, "first_at": now, "started_at": now}
    row = _row_of(op, run, root, now, seq=seq, state=state, **facts)
    await InsertCall(row)
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
        agent=run.agent,
        principal=run.principal,
        **facts,
    )


async def promote(run: RunRow, call: CallRow, *, at: float, by: str, epoch: int) -> CallRow:
    """A held call's turn has come."""
    if call.state == "held":
        call = await move_call(run, call, "ready", at=at, by=by, epoch=epoch)
    return call
