"""Decide how a run ends: rollback and compensations, commit, closing, abandoning.

The flows that await these operations are in ``engine/ending.py`` and ``engine/rollback.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from amends.errors import NAMED_MAX, LeaseLost, TransitionRefused, some_in_words
from amends.ledger.admission import calls_within, make_ready, not_succeeded
from amends.ledger.approvals import make_new_request, replace_request, request_more, undecided_staged, use_staged
from amends.ledger.budgets import (
    earlier_refusal,
    fresh_ids,
    is_of,
    limit_of,
    limits_in,
    overrun_need,
    planned_charges,
    refuse_by_budget,
    reserve_recorded,
)
from amends.ledger.changes import count_replays, move_call, move_run, set_completion, unblock
from amends.ledger.events import GOAL, NONE, goal_facts, proof_of, write_event
from amends.ledger.forks import forks_are_gone, forks_of, rolled_back_source
from amends.ledger.halts import halt_on
from amends.ledger.leases import find_owned, is_owner
from amends.ledger.locks import is_held_back, lock_names_of, take_locks
from amends.ledger.operations import (
    AbandonRun,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    DecideCommit,
    Decision,
    FinishRun,
    Rollback,
    SettleCompensation,
    Settled,
    Tree,
)
from amends.ledger.queries import list_calls, list_tree
from amends.ledger.reading import tree_of
from amends.ledger.rows import (
    APPROVALS,
    CALLS,
    RUNS,
    ApprovalRow,
    CallRow,
    LockRequest,
    Need,
    Now,
    Overrun,
    RunRow,
    TermsByCall,
)
from amends.ledger.tables import Change, Find
from amends.ledger.trees import find_run, mark_of, must_accept, subtree, unknown_pivots
from amends.states import CALL_STATES, RUN_FINAL, STANDING, UNSETTLED

# ---- Rolling back


async def begin_rollback(op: BeginRollback) -> Rollback:
    """Begin a rollback (``BeginRollback``): deferred while a pivot is in flight, refused once one has passed."""
    run = await find_run(op.run)
    root = await find_run(run.root)
    if op.epoch is not None:
        root = await find_owned(run.root, op.owner, op.epoch)
    if run.phase == "pivoted":
        return Rollback("refused", run)
    if run.state in RUN_FINAL and op.repeated and op.plan and run.plan == op.plan:
        return Rollback("rolling", run)  # begun before, and the answer was lost
    if run.state == "committed" and run.uid == run.root and op.person and op.mark and run.gone_at is None:
        return await _take_back_committed(run, op)  # unless it was erased, or lost its payloads, since the plan
    if run.state in RUN_FINAL:
        return Rollback("ended", run)
    now = await Now(root.uid)
    if op.mark and not (op.repeated and run.plan == op.plan):
        if await mark_of(run) != op.mark:
            return Rollback("stale", run)
        await write_event(run, "rollback planned", at=now, by=op.by, epoch=root.epoch, plan=op.plan, why=op.why)
        run = await Change(RUNS, run, {"plan": op.plan})
    changes: dict[str, str] = {}
    forks = await forks_of(run)
    overrules = bool(forks) and op.person and run.goal_by != "person"
    if run.goal != "rollback" or overrules:
        named = [fork.id for fork in forks]
        changes = {"goal": "rollback", "goal_by": "person" if op.person else "self", "goal_why": op.why}
        said = goal_facts(run, changes)
        await write_event(
            run, "goal", at=now, by=op.by, epoch=root.epoch, to="rollback", why=op.why, forks=named or None, **said
        )
    if changes and (op.epoch is None or run.pivot or forks or run.state != "open"):
        run, changes = await Change(RUNS, run, changes), {}  # otherwise the goal is written with the new state
    if op.epoch is None:
        await unblock(run, at=now, by=op.by, epoch=root.epoch)
        return Rollback("deferred", await find_run(op.run))
    run = await _give_up_pivot(run, op, root.epoch, now)
    if run.pivot and run.phase == "open":
        return Rollback("deferred", run)
    if forks and not any(one.goal == "rollback" and one.goal_by == "person" for one in (run, root)):
        return Rollback("forked", run, forks=tuple(forks))
    tree = await _close_subtree(run, op, root.epoch, now, changes)
    return Rollback("rolling", tree.run, tree)


async def _give_up_pivot(run: RunRow, op: BeginRollback, epoch: int, now: float) -> RunRow:
    """End a pivot that certainly had no effect and was to be started again: it failed, and the rollback is followed."""
    pivot = await Find(CALLS, run.pivot) if run.pivot and run.phase == "open" else None
    if pivot is None or pivot.state != "backing_off":
        return run
    await move_call(run, pivot, "failed", at=now, by=op.by, epoch=epoch, settled_at=now)
    return await Change(
        RUNS, run, {"pivot": "", "staged_pivot": "" if run.staged_pivot == pivot.id else run.staged_pivot}
    )


async def _take_back_committed(run: RunRow, op: BeginRollback) -> Rollback:
    """Begin to take back a committed run, by a person's plan; what stays must have been accepted, all of it."""
    if await mark_of(run) != op.mark:
        return Rollback("stale", run)
    if {call.id for call in must_accept(await list_calls(run.uid))} != set(op.accept):
        return Rollback("unaccepted", run)
    now = await Now(run.uid)
    accepted = sorted(op.accept) or None
    await write_event(
        run, "rollback planned", at=now, by=op.by, epoch=run.epoch, plan=op.plan, why=op.why, accepted=accepted
    )
    aim: dict[str, Any] = {"goal": "rollback", "goal_by": "person", "goal_why": op.why}
    run = await move_run(
        run, "rolling_back", at=now, by=op.by, epoch=run.epoch, plan=op.plan, closed_at=None, wake_at=now, **aim
    )
    return Rollback("deferred", run)


async def _close_subtree(run: RunRow, op: BeginRollback, epoch: int, now: float, changes: Mapping[str, str]) -> Tree:
    """Close the subtree: drop held calls, end those that back off; return the tree as it is then."""
    runs: dict[str, RunRow] = {}
    back: set[str] = set()
    for one in await subtree(run):
        if one.parent in back:  # a run whose parent stays is none of this rollback's business
            one = await _give_up_pivot(one, op, epoch, now)
        runs[one.uid] = one
        if one.uid != run.uid and (one.phase == "pivoted" or one.pivot or one.parent not in back):
            continue  # a child's pivot stays, or may: it is residue, or a doubt to settle first
        if one.state == "blocked" and one.came_from in ("open", "rolling_back"):
            one = await move_run(one, one.came_from, at=now, by=op.by, epoch=epoch, came_from="", causes="[]")
        if one.state in ("open", "committed"):
            why = changes if one.uid == run.uid else {}
            said: dict[str, Any] = {"goal": "rollback", "closed_at": None, **why}
            one = await move_run(one, "rolling_back", at=now, by=op.by, epoch=epoch, **said)
        if one.state in ("rolling_back", "rolled_back"):
            back.add(one.uid)
        runs[one.uid] = one
    calls: list[CallRow] = []
    for call in await list_calls(run.root):
        if call.run in back and call.state in ("held", "ready", "backing_off"):
            to = "failed" if call.state == "backing_off" else "dropped"
            call = await move_call(runs[call.run], call, to, at=now, by=op.by, epoch=epoch, settled_at=now)
        if call.run in runs:
            calls.append(call)
    return await tree_of(runs[run.uid], [*runs.values()], calls, now)


PASSED_OVER: Final = ("compensation_failed", "compensation_in_doubt", "residue")
"""States of calls that need a person: what is older is compensated without them, unless a guard forbids it."""
IN_THE_WAY: Final = ("started", "succeeded", "compensating", *PASSED_OVER)
"""States of calls that may have to end, or to be compensated, before another one is compensated."""


async def begin_compensation(op: BeginCompensation) -> CallRow | None:
    """Start a compensation attempt (``BeginCompensation``).

    The order is the reverse of settling; none starts while a call of the tree is started.
    """
    call = await Find(CALLS, op.call_id)
    assert call is not None, "a compensation is begun for a call of the ledger"
    root = await find_owned(call.root, op.owner, op.epoch)
    if op.repeated and call.state == "compensating" and call.comp_attempt == op.attempt:
        return call
    run = await find_run(call.run)
    allowed = {"succeeded", "compensation_failed", "compensation_in_doubt"} | ({"in_doubt"} if op.from_doubt else set())
    if run.state != "rolling_back" or call.state not in allowed or call.comp_attempt != op.attempt - 1:
        return None
    if call.lost_at is not None or call.shared:
        return None  # its arguments are removed, so a person must compensate it; or the effect belongs to another run
    # Calls of a child that pivoted (or may have) do not block what is compensated now.
    runs = await subtree(run)
    inside, turning = {row.uid for row in runs}, {row.uid for row in runs if row.state == "rolling_back"}
    calls = await list_calls(call.root, IN_THE_WAY)
    passed = [other for other in calls if other.comp_guarded]
    if any(is_held_back(call, later) for later in passed):
        return None
    for other in calls:
        stays = other.state == "succeeded" and any(is_held_back(other, later) for later in passed)
        if stays or other.state in PASSED_OVER:
            continue  # named among the obstacles: what has nothing to do with it is compensated all the same
        if other.run in (inside if other.state == "started" else turning) and _comes_first(other, call):
            return None
    remote_s = max(op.remote_s, call.remote_s) if call.state == "compensation_in_doubt" else op.remote_s
    now = await Now(call.root)
    return await move_call(
        run, call, "compensating", at=now, by=op.owner, epoch=root.epoch,
        facts={"attempt": op.attempt, "remote": remote_s or None}, remote_s=remote_s,
        comp_attempt=op.attempt, comp_at=now, comp_settled_at=None, comp_retry_at=None, comp_error="",
        comp_guarded=0, comp_boot="", comp_mono=None, comp_blind=int(op.from_doubt) or call.comp_blind, quiet_left=None,
    )  # fmt: skip


def _comes_first(other: CallRow, call: CallRow) -> bool:
    if other.id == call.id or other.kind == "read":
        return False
    if other.state == "started":
        return True
    side_by_side = bool(call.grp) and other.grp == call.grp
    later = other.settled_seq > call.settled_seq and not side_by_side
    return later and (other.state == "compensating" or bool(other.undoable))


async def settle_compensation(op: SettleCompensation) -> Settled:
    """Record the outcome of a compensation attempt (``SettleCompensation``)."""
    call = await Find(CALLS, op.call_id)
    assert call is not None, "a compensation is settled for a call of the ledger"
    root = await find_run(call.root)
    run = await find_run(call.run)
    now = await Now(root.uid)
    if op.repeated and call.state == op.to and call.comp_attempt == op.attempt:
        return Settled(call, then=await _then(op))
    if not is_owner(root, op.owner, op.epoch) or call.comp_attempt != op.attempt or call.state != "compensating":
        await write_event(
            run, "evidence", at=now, by="fenced", epoch=root.epoch, call=call.id, attempt=op.attempt,
            compensation=op.to, error="" if root.is_erased else op.error,
        )  # fmt: skip
        return Settled(call, fenced=True)
    moved = await move_call(
        run, call, op.to, at=now, by=op.owner, epoch=root.epoch, facts={"attempt": op.attempt, "error": op.error},
        comp_error=op.error, comp_settled_at=now, comp_gave_up=int(op.gave_up), comp_guarded=int(op.guarded),
        comp_retry_at=None if op.retry_s is None else now + op.retry_s, comp_from=call.comp_from + op.untried, **_quiet(op),
    )  # fmt: skip
    return Settled(moved, then=await _then(op))


async def _then(op: SettleCompensation) -> CallRow | RunRow | None:
    """Do what follows the settlement (``SettleCompensation.then``); return None if it cannot be, and nothing was changed."""
    then = op.then
    if then is None or op.to != "compensated":
        return None
    then.repeated = op.repeated
    try:
        return await (begin_compensation(then) if isinstance(then, BeginCompensation) else close_run(then))
    except (TransitionRefused, LeaseLost):  # both are raised before anything is written
        return None


def _quiet(op: SettleCompensation) -> dict[str, Any]:
    """Return since when nothing new can have been sent; only a compensation that is not over needs that."""
    return (
        {"comp_boot": "", "comp_mono": None} if op.to == "compensated" else {"comp_boot": op.boot, "comp_mono": op.mono}
    )


# ---- Committing


async def decide_commit(op: DecideCommit) -> Decision:
    """Decide the commit (``DecideCommit``), in this transaction if it can be decided."""
    run = await find_run(op.run)
    if op.repeated and op.incomplete and run.interrupted and not is_owner(run, op.owner, op.epoch):
        return Decision("incomplete", run)  # this very operation has blocked and released it
    root = await find_owned(run.root, op.owner, op.epoch) if run.state not in RUN_FINAL else run
    now = await Now(run.root)
    if run.state in RUN_FINAL:
        return Decision("committed" if op.repeated and run.state == "committed" else "ended", run)
    late = root.deadline_at is not None and now > root.deadline_at and run.phase == "open" and not run.pivot
    gone = await rolled_back_source(root) if run.phase == "open" and not run.pivot else None
    if gone is not None:
        return Decision("rollback", replace(run, goal_why=f"run {gone.id}, whose calls it shares, was rolled back"))
    if root.goal_by == "deadlock" and root.goal == "rollback" and run.phase == "open" and not run.pivot:
        return Decision("rollback", run)  # a child, too, decides nothing if its root was chosen to roll back
    if run.phase == "rolling_back" or (run.phase == "open" and (run.goal == "rollback" or late)):
        over = await earlier_refusal(run, run.uid) if op.repeated else None
        if over is not None:
            outbox = tuple(call for call in (await calls_within(run))[0] if call.run == run.uid and call.is_staged)
            return Decision("over", run, outbox, over=over)
        return Decision("rollback", run)
    await count_replays(op.replays)
    run = await set_completion(run, op.completion, at=now, by=op.owner, epoch=op.epoch)
    if run.goal != "commit" or op.output is not None:
        proved = proof_of(op, op.output)
        if run.goal != "commit":
            aim = goal_facts(run, {"goal": "commit", "goal_by": "self"})
            await write_event(run, "goal", at=now, by=op.owner, epoch=op.epoch, to="commit", output=proved, **aim)
        elif op.output != run.output:
            await write_event(run, "output", at=now, by=op.owner, epoch=op.epoch, output=proved)
        output = run.output if op.output is None else op.output
        run = await Change(RUNS, run, {"goal": "commit", "goal_by": "self", "output": output})
    if op.repeated and run.pivot and run.pivot == run.staged_pivot and run.phase == "open":
        pivot = await Find(CALLS, run.pivot)
        if pivot is not None and pivot.state == "started" and pivot.attempt == 1:
            return Decision("pivot", run, (pivot,))  # decided before, and the answer was lost
    calls, children = await calls_within(run)
    mine = [call for call in calls if call.run == run.uid]
    unsettled = [call for call in calls if call.state in UNSETTLED and not call.is_staged]
    unsettled += unknown_pivots(run, mine)
    if run.phase == "open" and (run.staged_pivot or not run.parent):  # otherwise its outbox becomes its parent's
        waiting = await undecided_staged(run, mine, op.outbox, now)
        unsettled += await request_more(run, waiting, op.outbox, at=now, by=op.owner, epoch=op.epoch)
    if unsettled or children:
        return Decision("unsettled", run, tuple(unsettled), tuple(children))
    staged = tuple(call for call in mine if call.is_staged)
    return await _decide_settled(run, staged, op, now)


async def _decide_settled(run: RunRow, staged: tuple[CallRow, ...], op: DecideCommit, now: float) -> Decision:
    if run.state == "blocked":
        run = await move_run(run, run.came_from, at=now, by=op.owner, epoch=op.epoch, came_from="", causes="[]")
    if run.completion and (run.phase == "open" or not staged):
        # Before the point of no return; and again at the end, which an agent may reach with something left to do.
        mark = await mark_of(run)
        if op.judged != mark:
            return Decision("judge", run, mark=mark)
        if op.incomplete:
            return await _fail_incomplete(run, op, now)
    if run.phase == "open" and run.staged_pivot:
        pivot = next(call for call in staged if call.id == run.staged_pivot)
        missing = not_succeeded(op.after.get(pivot.tool, ()), (await calls_within(run))[0])
        if missing and not pivot.violation:
            return Decision("early", run, (pivot,), missing=missing)
        why_not = await _take_staged(run, staged, op, now)
        if why_not is not None:
            return why_not
        await use_staged(run, at=now, by=op.owner, epoch=op.epoch)
        run = await Change(RUNS, run, {"pivot": pivot.id})
        pivot = await make_ready(run, await Find(CALLS, pivot.id) or pivot, at=now, by=op.owner, epoch=op.epoch)
        pivot = await move_call(
            run, pivot, "started", at=now, by=op.owner, epoch=op.epoch, facts={"attempt": 1},
            attempt=1, first_at=now, started_at=now,
        )  # fmt: skip
        return Decision("pivot", run, (pivot,))
    if run.phase == "open" and staged and run.parent:
        for call in staged:  # the parent may still roll the child back: the child's outbox becomes the parent's
            await _pass_to_parent(run, call, op, now)
        staged = ()
    if staged:
        why_not = await _take_staged(run, staged, op, now) if run.phase == "open" else None
        if why_not is not None:
            return why_not
        if run.phase == "open":
            await use_staged(run, at=now, by=op.owner, epoch=op.epoch)
            run = await move_run(run, "pivoted", at=now, by=op.owner, epoch=op.epoch, facts={"pivot": "commit"})
        return Decision("forward", run, staged)
    return Decision("committed", await move_run(run, "committed", at=now, by=op.owner, epoch=op.epoch))


async def _fail_incomplete(run: RunRow, op: DecideCommit, now: float) -> Decision:
    """Fail a run that was left without what it needs: before its pivot its goal is to roll back, after it it is blocked."""
    is_open = run.phase == "open"
    why = {"goal": "rollback", "goal_by": "self", "goal_why": op.incomplete} if is_open else dict.fromkeys(GOAL, "")
    said = {"why": op.incomplete, **goal_facts(run, why)}
    await write_event(run, "goal", at=now, by=op.owner, epoch=op.epoch, to=why["goal"] or NONE, **said)
    run = await Change(RUNS, run, why)
    if not is_open:
        # It has no goal now: whoever opens it again goes on with it.
        run = await _block(run, (op.cause,), at=now, by=op.owner, epoch=op.epoch, interrupted=True)
    return Decision("incomplete", run)


async def _pass_to_parent(run: RunRow, call: CallRow, op: DecideCommit, now: float) -> None:
    """Pass a child's staged call on to its parent.

    If the parent's pivot has passed, no later decision covers the call: it waits for its approval by itself.
    """
    parent = await find_run(run.parent)
    await write_event(run, "passed to parent", at=now, by=op.owner, epoch=op.epoch, call=call.id)
    call = await Change(CALLS, call, {"run": parent.uid})
    asked = await Find(APPROVALS, call.approval) if call.approval and parent.phase == "pivoted" else None
    if asked is None or asked.state == "used":
        return
    call = await Change(CALLS, call, {"reason": "approval"})
    if asked.state == "approved":
        await make_ready(parent, call, at=now, by=op.owner, epoch=op.epoch)


async def _take_staged(run: RunRow, staged: tuple[CallRow, ...], op: DecideCommit, now: float) -> Decision | None:
    """Take the locks and reserve the costs of the staged calls.

    Return None, or the decision if that is not possible.
    """
    for call in staged:
        halt = await halt_on(call.tool, run, await find_run(run.root))
        if halt is not None:
            return Decision("halted", run, (call,), halt=halt)
    names = lock_names_of(staged)
    if names:
        root = await find_run(run.root)
        first = next(call for call in staged if call.locks)
        wanted = LockRequest(names, waits=True, waited=True)
        why_not = await take_locks(root, wanted, call=first.id, tool=first.tool, at=now, by=op.owner)
        if why_not is not None:
            run = await find_run(run.uid)
            return Decision("rollback" if why_not.victim else "locked", run, staged, lock=why_not)
    root = await find_run(run.root)
    over = await reserve_staged(run, root, staged, terms=op.outbox, now=now, by=op.owner)
    if over is None:
        return None
    if isinstance(over, list):
        return Decision("unsettled", run, tuple(over))
    return Decision(
        "over", await refuse_by_budget(over, run, root, now, by=op.owner, request=run.uid), staged, over=over
    )


# ---- Closing


async def close_run(op: CloseRun) -> RunRow:
    """Close or block a run (``CloseRun``). ``rolled_back`` never has residue: the calls are checked once more here."""
    run = await find_run(op.run)
    given_back = run.uid != run.root or not is_owner(run, op.owner, op.epoch)
    if op.repeated and run.state == op.to and given_back:
        return run
    root = await find_owned(run.root, op.owner, op.epoch)
    now = await Now(root.uid)
    if op.to == "rolled_back":
        return await _close_rolled_back(run, op, now)
    if op.to == "committed":
        calls, children = await calls_within(run)
        left = [call.tool for call in calls if call.run == run.uid and call.state in UNSETTLED]
        if left or children:
            raise TransitionRefused(f"run {run.id} has unsettled calls: {_few(left)}", frm=run.state, to="committed")
        return await move_run(run, "committed", at=now, by=op.owner, epoch=root.epoch)
    assert op.to == "blocked", f"a run is not closed as {op.to}"
    wake = now if await forks_are_gone(run) else None if op.wake_s is None else now + op.wake_s
    return await _block(
        run, op.causes, at=now, by=op.owner, epoch=root.epoch, interrupted=op.interrupted, wake=wake
    )  # fmt: skip


async def _block(
    run: RunRow,
    causes: tuple[str, ...],
    *,
    at: float,
    by: str,
    epoch: int,
    interrupted: bool,
    wake: float | None = None,
) -> RunRow:
    """Block the run with these causes and release it; ``wake``: when a worker looks at it again."""
    text = json.dumps(causes, ensure_ascii=False)
    if run.state == "blocked":
        if text != run.causes:
            await write_event(run, "causes", at=at, by=by, epoch=epoch, causes=causes)
        run = await Change(RUNS, run, {"causes": text, "interrupted": int(interrupted)})
    else:
        run = await move_run(
            run, "blocked", at=at, by=by, epoch=epoch, facts={"causes": causes}, came_from=run.state, causes=text,
            interrupted=int(interrupted),
        )  # fmt: skip
    if run.uid == run.root:
        run = await Change(RUNS, run, {"owner": "", "lease_until": 0.0, "wake_at": wake})
    return run


_KEEP_FROM_END: Final = tuple(state for state in CALL_STATES if state in STANDING | UNSETTLED | {"residue"})


async def _close_rolled_back(run: RunRow, op: CloseRun, now: float) -> RunRow:
    everything = await subtree(run)
    kept = [row.id for row in everything if row.state not in ("rolling_back", "rolled_back")]
    if kept:
        raise TransitionRefused(f"run {run.id} is not rolled back: {kept} are not", frm=run.state, to="rolled_back")
    turning = [row for row in everything if row.state == "rolling_back"]
    inside = {row.uid for row in turning}
    for call in await list_calls(run.root, _KEEP_FROM_END):
        if call.run in inside and call.kind != "read" and not call.shared:
            raise TransitionRefused(
                f"run {run.id} is not rolled back: {call.tool} is {call.state}", frm=run.state, to="rolled_back"
            )
    for row in reversed(turning):
        closed = await move_run(row, "rolled_back", at=now, by=op.owner, epoch=op.epoch)
        run = closed if row.uid == run.uid else run
    return run


def _few(tools: list[str]) -> str:
    return str(tools) if len(tools) <= NAMED_MAX else some_in_words(tools)


async def abandon_run(op: AbandonRun) -> RunRow:
    """Abandon a run (``AbandonRun``). Its owner is fenced off."""
    root = await Find(RUNS, op.run)
    assert root is not None, "the runtime found this run a moment ago"
    if op.repeated and root.state == "abandoned":
        return root
    if root.state in RUN_FINAL:
        raise TransitionRefused(f"run {root.id} is {root.state} already", frm=root.state, to="abandoned")
    calls = await list_calls(root.uid)
    live = [call.tool for call in calls if call.state in ("started", "compensating")]
    if live:
        raise TransitionRefused(
            f"run {root.id} has calls in flight ({some_in_words(live)}); wait for them, or for their owner's lease",
            frm=root.state,
            to="abandoned",
        )
    now = await Now(root.uid)
    epoch = root.epoch + 1
    forward = root.phase == "pivoted"
    for call in calls:
        await _abandon_call(call, op, epoch, now, forward=forward)
    for row in reversed(await list_tree(root.uid)):
        if row.state not in RUN_FINAL:
            aim = {"goal_by": "person", "goal_why": op.why} if row.uid == root.uid else {}
            closed = await move_run(row, "abandoned", at=now, by=op.by, epoch=epoch, facts={"why": op.why}, **aim)
            root = closed if row.uid == root.uid else root
    return await Change(RUNS, root, {"epoch": epoch})


async def _abandon_call(call: CallRow, op: AbandonRun, epoch: int, now: float, *, forward: bool) -> None:
    run = await find_run(call.run)
    if call.shared or (call.kind == "read" and call.state not in ("held", "ready", "backing_off")):
        return
    if call.state == "compensation_in_doubt":
        call = await move_call(run, call, "compensation_failed", at=now, by=op.by, epoch=epoch)
    to = {"held": "dropped", "ready": "dropped", "backing_off": "failed", "in_doubt": "residue"}.get(call.state, "")
    if call.state == "compensation_failed" or (call.state == "succeeded" and not forward and not _keeps_effects(run)):
        to = "residue"
    if to:
        await move_call(run, call, to, at=now, by=op.by, epoch=epoch, facts={"why": op.why}, why=op.why)


def _keeps_effects(run: RunRow) -> bool:
    """Return whether a child keeps its effects because it pivoted: that is its outcome, not residue."""
    return bool(run.pivot) and run.phase in ("pivoted", "committed")


async def finish_run(op: FinishRun) -> RunRow:
    """Close an interrupted run as committed (``FinishRun``)."""
    run = await find_run(op.run)
    if op.repeated and run.state == "committed":
        return run
    if run.state != "blocked" or run.came_from != "pivoted":
        raise TransitionRefused(
            f"run {run.id} is {run.state}: only a run that was interrupted after its pivot is finished by hand",
            frm=run.state,
            to="committed",
        )
    calls, children = await calls_within(run)
    left = [call.tool for call in calls if call.state in UNSETTLED]
    if left or children:
        raise TransitionRefused(f"run {run.id} still has unsettled calls: {_few(left)}", frm=run.state, to="committed")
    now = await Now(run.root)
    root = await find_run(run.root)
    run = await unblock(run, at=now, by=op.by, epoch=root.epoch)  # and its root: a worker sees whether more is missing
    return await move_run(run, "committed", at=now, by=op.by, epoch=root.epoch, facts={"why": op.why})


# ---- The cost of staged calls


async def reserve_staged(
    run: RunRow, root: RunRow, calls: Iterable[CallRow], *, terms: TermsByCall, now: float, by: str
) -> Overrun | list[CallRow] | None:
    """Reserve the cost of the staged calls.

    Returns None, the budget that has not enough, or the calls that wait for a person. ``terms``: by call, what the rules
    require.
    """
    calls = list(calls)
    requests: dict[str, ApprovalRow] = {}
    for call in calls:
        request = await Find(APPROVALS, call.approval) if call.cost and call.approval else None
        if request is not None:
            requests[call.id] = request
    allowed = {id: limits_in(request) for id, request in requests.items() if request.state in ("approved", "used")}
    over = await reserve_recorded(calls, root, now, allowed_limits=allowed)
    if over is None or not over.want.holds:
        return over and replace(over, also=())
    asked: list[CallRow] = []
    for call, charge in await planned_charges(calls):
        before = allowed.get(call.id, {})
        mine = [one for one in (over, *over.also) if is_of(one, charge.wants) and limit_of(one.want) not in before]
        if mine:
            rule = terms[call.id].need if call.id in terms else None
            ask = await fresh_ids(charge.ask, call)
            need = overrun_need(
                replace(mine[0], also=tuple(mine[1:])), ask, rule or requests.get(call.id), before=before
            )
            asked.append(await _ask_about_money(run, call, requests.get(call.id), need, at=now, by=by, root=root))
    return asked


async def _ask_about_money(
    run: RunRow, call: CallRow, old: ApprovalRow | None, need: Need, *, at: float, by: str, root: RunRow
) -> CallRow:
    """Hold a staged call for a person because of its cost; an earlier request about it ends."""
    if old is None:
        return (await make_new_request(run, call, need, at=at, by=by, epoch=root.epoch))[0]
    return (await replace_request(run, call, old, need, "changed", at=at, by=by, epoch=root.epoch))[0]
