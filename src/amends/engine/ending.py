"""Leaving a run: commit, go forward, go back, or let it go. Each is a flow of its own."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Final

from amends.engine.call import run_attempts
from amends.engine.doubt import is_repeatable
from amends.engine.giving import give_back, read_tree
from amends.engine.holding import asks_somebody, is_pending, leave_to_caller, let_go_held, recorded_ask, start_decided
from amends.engine.landing import STOPPED, let_land, wait_for_live
from amends.engine.leftover import Leftover, leftovers, obstacles
from amends.engine.locking import locked, start_waiting
from amends.engine.policy import outbox_terms, terms_for
from amends.engine.rollback import Back, roll_back, settle_all
from amends.engine.session import Session, call_of
from amends.engine.spending import exceeded
from amends.engine.veiling import cause_of, lacking, lacks
from amends.engine.waiting import Wait
from amends.errors import (
    BudgetExceeded,
    InDoubt,
    LedgerError,
    Locked,
    OutOfOrder,
    RunBlocked,
    ToolFailed,
    Waiting,
)
from amends.ledger import (
    CloseRun,
    DecideCommit,
    Decision,
    ResolveCall,
    SettleCall,
    StartCall,
    Tree,
)
from amends.model import Residue
from amends.ops import Flight, ReadClocks
from amends.rows import CallRow, RunRow
from amends.states import LIVE

ROUNDS_MAX: Final = 10_000


async def commit(session: Session, *, output: str | None = None) -> RunRow:
    """Commit, or go forward as far as one can now; raises what stands in the way."""
    if session.uid == session.root:
        session.recall.close()  # what a child has committed stands as before; of a root that has ended gc takes its share
    await let_land(session)
    await leave_to_caller(session)
    await _need_body(session)
    try:
        return await _commit(session, output)
    except (Locked, BudgetExceeded):
        # Its block has ended and nothing is decided: a worker goes on, and nothing but a person or a deadlock undoes it.
        if session.uid == session.root:
            await let_go(session)
        raise


async def _commit(session: Session, output: str | None) -> RunRow:
    wait = Wait(session.wait_s)
    after = {name: spec.after for name, spec in session.specs.items() if spec.at == "commit" and spec.after}
    for _ in range(ROUNDS_MAX):
        decision = await DecideCommit(
            session.uid, session.lease.owner, session.lease.epoch, output, session.replays, after,
            await outbox_terms(session),
        )  # fmt: skip
        match decision.how:
            case "committed" | "ended":
                return decision.run
            case "rollback":
                return replace(decision.run, goal="rollback")  # said, where only the deadline has decided it
            case "pivot":
                await _run_pivot(session, decision.calls[0])
            case "early":
                early = OutOfOrder(
                    decision.calls[0].tool, law="pivot_early", missing=decision.missing, run_id=session.id
                )
                back = await roll_back(session, by=session.lease.owner, why=str(early))
                raise_blocked(session, back.tree, early)
                raise early
            case "locked":
                holder = session.root if decision.lock is None else decision.lock.root or session.root
                if not await wait.again(holder):
                    raise _locked_commit(session, decision, wait.waited)
            case "over":
                assert decision.over is not None, "a commit that costs too much says of which budget"
                over = exceeded(decision.over.tool, decision.over, session.id)
                back = await roll_back(session, by=session.lease.owner, why=str(over))
                raise_blocked(session, back.tree, over)
                raise over
            case "forward":
                left = await _drain(session, decision.calls)
                if left is not None:
                    return await _pause_forward(session, left)
            case "unsettled":
                paused = await _settle_rest(session, decision)
                if paused is not None:
                    return paused
    raise AssertionError(f"the commit of run {session.id} does not end")


def _locked_commit(session: Session, decision: Decision, waited: float) -> Locked:
    lock = decision.lock
    assert lock is not None, "a commit that waits for a lock says for which"
    tool = next((row.tool for row in decision.calls if lock.name in row.locks), decision.calls[0].tool)
    hint = f"run {session.id} has ended and commits when the lock is free: in a worker, or when it is opened again"
    return locked(session, tool, lock, waited=waited, hint=hint)


async def _need_body(session: Session) -> None:
    """A pivot at commit whose handler lived in another process cannot be started here: that is said before it is."""
    if not any(spec.at == "commit" and spec.fn is None for spec in session.specs.values()):
        return
    tree = await read_tree(session)
    pivot = next((row for row in tree.calls if row.id == tree.run.staged_pivot and row.is_staged), None)
    if pivot is None or session.body(pivot) is not None or tree.run.phase != "open":
        return
    cause = f"{pivot.tool} ({pivot.id}) has no body in this process: rt.rollback({session.id!r}, by=..., why=...)"
    await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=(cause,))
    raise RunBlocked(f"run {session.id} is blocked: {cause}", run_id=session.id, causes=[cause])


async def _run_pivot(session: Session, row: CallRow) -> None:
    """The pivot that waited for the commit; if it fails the run goes back, and its error comes out."""
    try:
        await run_attempts(session, recorded_ask(session, row), row, told=False)
    except InDoubt:
        return  # the next round finds it unsettled
    except (Waiting, LedgerError):
        raise
    except Exception as error:
        back = await roll_back(session, by=session.lease.owner, why=f"{row.tool} failed at commit")
        raise_blocked(session, back.tree, error)
        raise


# ---- forward ------------------------------------------------------------------------------


async def _drain(session: Session, staged: tuple[CallRow, ...]) -> tuple[CallRow, ...] | None:
    """Start what was staged, in its order; None when all of it is done, else what is not."""
    for row in staged:
        await drive_forward(session, row)
    tree = await read_tree(session)
    left = tuple(row for row in tree.calls if row.run == session.uid and row.state != "succeeded" and _pending(row))
    return left or None


def _pending(row: CallRow) -> bool:
    let_go = row.state == "ready" and row.kind == "retriable"  # past the pivot somebody has said yes to it
    return row.is_staged or let_go or row.state in ("in_doubt", "backing_off", "started")


async def drive_forward(session: Session, row: CallRow) -> None:
    """One start of one retriable, unless it is not its time."""
    clocks = await ReadClocks()
    waits = row.state == "backing_off" and (row.retry_at is None or row.retry_at > clocks.wall)
    if waits or row.state not in ("held", "ready", "backing_off") or session.body(row) is None:
        return
    if lacking(session, row):
        return  # named among the obstacles
    started = await start_waiting(session, row, await terms_for(session, row))
    if not isinstance(started, CallRow):
        return  # not now: another run has its lock, and it stays staged
    try:
        await run_attempts(session, recorded_ask(session, started), started, told=False)
    except InDoubt:
        return  # stays visible; the next round probes it again


async def _pause_forward(session: Session, left: tuple[CallRow, ...]) -> RunRow:
    """The run goes on later: in a worker when the first is due, or when a person has decided."""
    tree = await read_tree(session)
    blocking = obstacles(session, tree)
    clocks = await ReadClocks()
    due = [row.retry_at - clocks.wall for row in left if row.retry_at is not None]
    due += [row.probe_at - clocks.wall for row in left if row.state == "in_doubt" and row.probe_at is not None]
    unknown = [row for row in left if row.is_staged or row.state == "ready"]
    if blocking and not due and len(blocking) == len(left):
        return await _block(session, blocking)
    wake = max(0.0, min(due)) if due else (session.lease.lease_s if unknown else 0.0)
    if session.uid != session.root:
        return tree.run
    return await give_back(session, wake)


# ---- what is not settled ------------------------------------------------------------------


async def _settle_rest(session: Session, decision: Decision) -> RunRow | None:
    """Settle what can be settled without a person; raises ``Held`` or ``RunBlocked`` otherwise."""
    held = [row for row in decision.calls if row.state == "held" or row.is_staged]
    if held:
        tree = await read_tree(session)
        if asks_somebody(tree):
            # Decided meanwhile, or by people whose yes needs a process with that version of the tool: looked at again.
            raise await let_go_held(session, held[0], again_s=None if is_pending(tree) else session.lease.lease_s)
    if any(row.state in LIVE for row in decision.calls):
        await wait_for_live(session)
    waits = [await _close_child(session, child) for child in decision.children]
    tree = await read_tree(session)
    waits.append(await settle_all(session, tree, back=False))
    later = min((wait for wait in waits if wait is not None), default=None)
    # A pivot last: it starts only when everything else is settled.
    for row in sorted((await read_tree(session)).calls, key=lambda row: row.kind == "pivot"):
        await _go_on_with(session, row)
    tree = await read_tree(session)
    blocking = obstacles(session, tree)
    forward = tree.run.phase == "pivoted"
    waiting = [
        row
        for row in tree.calls
        if row.state == "backing_off" and row.retry_at is not None and not lacking(session, row)
    ]
    waiting += [row for row in tree.calls if forward and await _is_repeated(session, row)]
    if waiting:  # of this run or of a child that pivoted: it is due later
        return await _pause_forward(session, tuple(waiting))
    if blocking:
        await _block(session, blocking, again_s=later)
        raise_blocked(session, await read_tree(session), None)
    return None


async def _is_repeated(session: Session, row: CallRow) -> bool:
    """Whether a doubt needs neither probe nor person: its idempotent call is started again when it is due."""
    spec = session.spec(row.tool)
    if row.state != "in_doubt" or row.probe_at is None or spec is None or spec.probe is not None:
        return False
    return await is_repeatable(session, spec, row)


async def _go_on_with(session: Session, row: CallRow) -> None:
    """What an unsettled call needs before its run can commit."""
    if row.state == "ready" and not row.is_staged:
        await start_decided(session, row)
    elif row.state == "backing_off" and row.kind == "retriable":
        await drive_forward(session, row)
    elif row.state == "backing_off" and row.kind == "pivot" and row.retry_at is not None:
        # Its start was lost and had no effect; what is staged behind it must not go out as if it had.
        await _restart_pivot(session, row)
    elif row.state == "backing_off":
        # Nobody asked for it again, and certainly nothing happened: it is not part of what is committed.
        await _give_up(session, row)


async def _restart_pivot(session: Session, row: CallRow) -> None:
    if gone := lacking(session, row):
        # It certainly did not happen and cannot be started here: it failed, and before a pivot failure goes backward.
        await _give_up(session, row)
        call, name = call_of(row, session.spec(row.tool)), "Redacted"
        failed = ToolFailed(f"{row.tool} was not started again: {lacks(gone)}", call=call, type_name=name)
        back = await roll_back(session, by=session.lease.owner, why=str(failed))
        raise_blocked(session, back.tree, failed)
        raise failed
    started = await StartCall(row.id, session.lease.owner, session.lease.epoch, row.attempt + 1)
    if isinstance(started, CallRow):
        await _run_pivot(session, started)


async def _give_up(session: Session, row: CallRow) -> None:
    await ResolveCall(
        row.id, "failed", session.lease.owner, row.why, epoch=session.lease.epoch, owner=session.lease.owner
    )


async def _close_child(session: Session, child: RunRow) -> float | None:
    """A child that was left open never finished: it goes back; one that pivoted goes forward.

    Seconds until it can go on, where it must wait.
    """
    inner = session.child(child.uid, child.id, generation=child.generation, resumed=True, state=child.state)
    if child.phase == "pivoted" or child.goal == "commit":
        with suppress(RunBlocked):  # what blocks it blocks us: it is found, and named, with our own obstacles
            await commit(inner)
        return None
    return (await roll_back(inner, by=session.lease.owner, why="its block was never finished")).again_s


# ---- blocked ------------------------------------------------------------------------------


async def _block(session: Session, blocking: list[Leftover], *, again_s: float | None = None) -> RunRow:
    causes = tuple(left.cause for left in blocking)
    return await CloseRun(
        session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=causes, wake_s=again_s
    )


async def interrupted(session: Session) -> RunRow:
    """After the pivot the block ended early: what is recorded goes on, then the run waits to be opened again."""
    tree = await read_tree(session)
    staged = tuple(row for row in tree.calls if row.run == session.uid and _pending(row))
    await settle_all(session, tree, back=False)
    left = await _drain(session, staged)
    if left is not None and any(_goes_on(session, row) for row in left):
        return await _pause_forward(session, left)
    cause = (
        f"the block ended after the pivot and before its end: open run {session.id!r} again, "
        f"or close it with rt.finish({session.id!r}, by=..., why=...)"
    )
    tree = await read_tree(session)
    causes = (cause, *(one.cause for one in obstacles(session, tree)))
    return await CloseRun(
        session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=causes, interrupted=True
    )


def _goes_on(session: Session, row: CallRow) -> bool:
    """Whether time brings more: it is due later, or waits for a lock of another run."""
    is_locked = row.is_staged and bool(row.locks) and session.body(row) is not None
    return is_locked or row.retry_at is not None or row.probe_at is not None


def raise_blocked(session: Session, tree: Tree, cause: BaseException | None) -> None:
    """Raise ``RunBlocked`` when the run is, naming everything that is left."""
    if tree.run.state != "blocked":
        return
    left = leftovers(session, tree) if tree.run.phase == "rolling_back" else obstacles(session, tree)
    doubts = [call_of(one.row, session.spec(one.row.tool)) for one in left if one.doubtful]
    residue = [Residue(call_of(one.row, session.spec(one.row.tool)), one.why) for one in left if not one.doubtful]
    names = ", ".join(dict.fromkeys(one.row.tool for one in left)) or "nothing amends can name"
    if tree.run.phase == "open" and tree.run.goal == "rollback" and not left:  # not turned: others stand on it
        names = "; ".join(json.loads(tree.run.causes))
    raise RunBlocked(
        f"run {session.id} is blocked: {names}",
        run_id=session.id,
        residue=residue,
        doubts=doubts,
        causes=[one.cause for one in left] or list(json.loads(tree.run.causes)),
    ) from cause_of(session, cause)


async def stop_call(session: Session, flight: Flight) -> None:
    """A flow was stopped in a living process: its call becomes doubt, or failed if it was never sent."""
    row = flight.call
    if row is None:
        return
    clocks = await ReadClocks()
    doubtful = (flight.sent or flight.doubted) and row.kind != "read"
    await SettleCall(
        row.id, session.lease.owner, session.lease.epoch, row.attempt, "in_doubt" if doubtful else "failed",
        why="cancelled", boot=clocks.boot, mono=None if flight.goes_on else clocks.mono, error=STOPPED,
    )  # fmt: skip


async def let_go(session: Session) -> RunRow:
    """Leave the run to whoever opens it next; a worker follows its policy after one lease."""
    return await give_back(session, session.lease.lease_s)


async def go_back(session: Session, *, by: str, why: str) -> Back:
    """The rollback of a block that raised; after the pivot it goes forward instead."""
    await let_land(session, patient=True)
    back = await roll_back(session, by=by, why=why)
    if back.run.phase == "pivoted" and back.run.state == "pivoted":
        run = await interrupted(session)
        return Back(run, await read_tree(session))
    return back
