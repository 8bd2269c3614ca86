"""The law: whether a request may start now, and the row that says that it did. Part of one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from amends.approvalrows import Need, TermsOf
from amends.budgetrows import Overrun
from amends.ledger import Admission, AdmitCall
from amends.proofs import call_bound, goal_said, proof_of
from amends.rows import CallRow, FindCall, InsertCall, ListCalls, ListTree, RunRow, UpdateRun
from amends.states import RUN_FINAL, UNSETTLED
from amends.store.change import find_run, move_call, note
from amends.store.kin import taken_back
from amends.store.locks import merged, outbox_names, remember, take_locks
from amends.store.paying import charge_for, need_for, remember_cost
from amends.store.requests import ask, really, unready, use_staged


def is_record(root: RunRow) -> bool:
    """Whether the run is over for its callers: closed, or decided and given to whoever goes forward with it."""
    return root.closed_at is not None or (root.goal == "commit" and not root.owner)


async def takes_nothing(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, recorded: bool = False
) -> Admission | None:
    """Whether the run takes nothing new; a deadline that has passed is found here.

    ``recorded``: it is not new, and a commit waits for it: its caller may bring what nobody else can start it with.
    """
    late = root.deadline_at is not None and now > root.deadline_at
    if late and root.phase == "open" and not root.pivot and root.goal != "rollback":
        aim = {"goal": "rollback", "goal_by": "deadline", "goal_why": "the deadline passed"}
        await note(root, "goal", at=now, by="deadline", epoch=root.epoch, to="rollback", **goal_said(root, aim))
        root = await UpdateRun(root, aim)
        run = root if run.uid == root.uid else run
    gone = await taken_back(root) if root.phase == "open" and not root.pivot and root.goal != "rollback" else None
    if gone is not None:
        why = f"run {gone.id}, whose calls it shares, was taken back"
        aim = {"goal": "rollback", "goal_by": "self", "goal_why": why}
        await note(root, "goal", at=now, by="fork", epoch=root.epoch, to="rollback", why=why, **goal_said(root, aim))
        root = await UpdateRun(root, aim)
        run = root if run.uid == root.uid else run
    for one in (run, root):
        if one.state in RUN_FINAL or one.phase == "rolling_back" or (one.goal == "rollback" and one.phase == "open"):
            return Admission("ended", run=one)
    if run.goal == "commit" and not recorded and (op.kind != "read" or is_record(root)):
        return Admission("ended", run=run)
    return None


async def admit_by_law(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, generation: int, *, follows: str = ""
) -> Admission:
    """Start it, stage it, hold it for a person, or refuse it. ``follows``: the request for other arguments that ended."""
    broken = await broken_law(op, run, now)
    if broken is not None and not op.advise:
        return await refused_by_law(op, run, root, now, broken)
    need = None if op.need is None else await really(op.need, run, op.tool)
    if need is not None and need.decision == "refuse":
        return await refused_by_rule(op, run, root, now)
    facts: dict[str, Any] = {"generation": generation, "violation": "" if broken is None else broken.law}
    if run.phase == "open" and (op.kind == "retriable" or op.at_commit):
        call = await write_call(op, run, root, now, state="held", reason="order", need=need, **facts)
        if op.at_commit:
            run = await UpdateRun(run, {"staged_pivot": call.id})
        return await _asked(op, run, root, call, need, now, follows=follows, verdict="staged")
    if need is not None:
        call = await write_call(op, run, root, now, state="held", reason="approval", need=need, **facts)
        return await _asked(op, run, root, call, need, now, follows=follows)
    return await _start(op, run, root, now, facts)


async def refused_by_law(op: AdmitCall, run: RunRow, root: RunRow, now: float, broken: Admission) -> Admission:
    """Record that the ordering law refuses this request."""
    await note(
        run, "refused", at=now, by=op.tool, epoch=root.epoch, law=broken.law, tool=op.tool, missing=broken.missing,
        unsettled=broken.unsettled, pivot=broken.pivot, **asked_for(op),
    )  # fmt: skip
    return broken


def asked_for(op: AdmitCall) -> dict[str, str]:
    """What a refusal was an answer to, for a replay: a refusal has no row."""
    return {"ident": op.ident, "again": op.again, "parent": op.parent}


async def _start(op: AdmitCall, run: RunRow, root: RunRow, now: float, facts: dict[str, Any]) -> Admission:
    pivots = op.kind == "pivot" and not facts["violation"]
    locked = await locked_out(op, run, root, now, pivots=pivots)
    if locked is not None and op.kind != "retriable":
        return locked
    paid = await charge_for(op, run, root, now, pivots=pivots)
    if isinstance(paid, Overrun):
        return await hold_for_budget(op, run, root, now, paid, facts)
    if isinstance(paid, Admission):
        return paid
    if locked is not None:
        # Past the pivot it is forward work, whoever has the lock: accepted, and started when that is free.
        facts = {"generation": facts["generation"], "reason": "lock", **paid}
        return Admission("staged", await write_call(op, run, root, now, state="held", **facts), run=run)
    if pivots:
        await use_staged(run, at=now, by=op.owner, epoch=root.epoch)
    call = await write_call(op, run, root, now, state="started", **facts, **paid)
    if pivots:
        await UpdateRun(run, {"pivot": call.id})
    return Admission("start", call)


async def refused_by_rule(op: AdmitCall, run: RunRow, root: RunRow, now: float) -> Admission:
    """A rule says no: an event and an answer, no call; it takes no key."""
    why = "" if op.need is None else op.need.why
    await note(
        run, "refused", at=now, by=op.tool, epoch=root.epoch, law="rule", tool=op.tool, rule=why, **asked_for(op)
    )
    return Admission("refused", run=run, law="rule", void=why)


async def _asked(
    op: AdmitCall, run: RunRow, root: RunRow, call: CallRow, need: Need | None, now: float, *,
    follows: str, verdict: str = "held",
) -> Admission:  # fmt: skip
    if need is None:
        return Admission(verdict, call, run=run)
    made = await ask(run, call, need, at=now, by=op.owner, epoch=root.epoch, follows=follows)
    return Admission("void" if follows else verdict, call, run=run, approval=made, void="changed" if follows else "")


async def hold_for_budget(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, over: Overrun, facts: dict[str, Any]
) -> Admission:
    """A call that would pass a cap waits for a person, who may let it."""
    need = need_for(over, op.costs.ask, None)
    kept = replace(op, key=f"{op.key}:{op.call_id}") if op.kind == "read" else op
    call = await write_call(kept, run, root, now, state="held", reason="budget", need=need, **facts)
    return await _asked(op, run, root, call, need, now, follows="")


async def hold_read(op: AdmitCall, run: RunRow, root: RunRow, need: Need, now: float) -> Admission:
    """A read that a person must allow: reads take no key, so that its own id keeps it apart."""
    call = await write_call(
        replace(op, key=f"{op.key}:{op.call_id}"), run, root, now, state="held", reason="approval", need=need,
        generation=1,
    )  # fmt: skip
    return await _asked(op, run, root, call, need, now, follows="")


async def locked_out(op: AdmitCall, run: RunRow, root: RunRow, now: float, *, pivots: bool = False) -> Admission | None:
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


async def broken_law(op: AdmitCall, run: RunRow, now: float) -> Admission | None:
    """What of the ordering law the request would break."""
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
        return None  # what is missing or unsettled is looked at when the run commits
    return await early(run, op.key, op.after, op.outbox, now)


async def early(run: RunRow, key: str, after: Sequence[str], outbox: TermsOf, now: float) -> Admission | None:
    """Why the pivot of this key comes too early; None: it does not."""
    calls, open_children = await within(run)
    missing = not_done(after, calls)
    if missing:
        return Admission("refused", run=run, law="pivot_early", missing=missing)
    others = [call for call in calls if call.key != key]  # a held pivot that a person let go is not its own obstacle
    unsettled = [call.tool for call in others if call.state in UNSETTLED and not call.is_staged]
    unsettled += [call.tool for call in await unready(run, others, outbox, now)]
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


async def write_call(
    op: AdmitCall, run: RunRow, root: RunRow, now: float, *, state: str, need: Need | None = None, **facts: Any
) -> CallRow:
    """Write the request down, started or held, with its event."""
    if need is not None:
        facts["approval"] = need.id
    if op.accepts:
        facts["accepts"] = op.accepts
    if op.locks.names:
        facts["locks"] = json.dumps(op.locks.names, ensure_ascii=False)
        await remember(root)
    costs = None
    if op.costs.costs:
        facts["cost"], costs = await remember_cost(op, root, facts.get("cost", ""))
    seq = await note(
        run, "call", at=now, by=op.owner, epoch=root.epoch, call=op.call_id, frm="(new)", to=state,
        tool=op.tool, args=proof_of(op, op.args), row=call_bound(op, op.key, facts["generation"]),
        reason=facts.get("reason"), violation=facts.get("violation"), twin=facts.get("twin"),
        locks=op.locks.names, costs=costs, accepts=op.accepts,
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
