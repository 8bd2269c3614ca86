"""Leaving a run: commit, go forward, go back, or let it go. Each is a flow of its own."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from amends.engine.answers import report_of
from amends.engine.approvals import held_for, outbox_terms, rejected, request_of_call, tell_of, terms_for
from amends.engine.call import Done, conclude, guarded_admission, locked, run_attempts, start_waiting
from amends.engine.doubts import is_repeatable
from amends.engine.rollback import (
    STOPPED,
    Back,
    Leftover,
    leftovers,
    let_land,
    obstacles,
    roll_back,
    settle_all,
    wait_for_live,
)
from amends.engine.session import (
    POLL_S_MAX,
    POLL_S_MIN,
    Ask,
    Session,
    Wait,
    body_args,
    call_of,
    cause_of,
    exceeded,
    give_back,
    known_of,
    lacking,
    lacks,
    read_tree,
    scrubbed,
)
from amends.errors import (
    BudgetExceeded,
    Held,
    InDoubt,
    LedgerError,
    Locked,
    OutOfOrder,
    RolledBack,
    RunBlocked,
    RunEnded,
    ToolFailed,
    Waiting,
    clean,
    described,
    is_a,
    only_waits,
)
from amends.ledger.operations import (
    CloseRun,
    DecideCommit,
    Decision,
    ReadCall,
    ResolveCall,
    SettleCall,
    StartCall,
    Tree,
)
from amends.ledger.rows import CallRow, Contention, Overrun, RunRow, Unapproved
from amends.ledger.world import Ended, Flight, LiveCalls, ReadClocks, Sleep
from amends.model import Residue
from amends.states import LIVE
from amends.visible import visible

# ---- Calls that wait for a person: suspending a run for them, and doing what was decided after its block


def asks_somebody(tree: Tree) -> bool:
    """Whether a person can still say something that this tree waits for, or has said yes to what it has not done."""
    living = {row.id for row in tree.approvals if row.lives(tree.now)}
    for row in tree.calls:
        if row.state not in ("held", "ready") or row.attempt:
            continue
        if row.approval in living or (row.state == "held" and not row.is_staged and not row.approval):
            return True
    return False


def is_pending(tree: Tree) -> bool:
    """Whether somebody has not yet said what this tree waits for."""
    asked = {row.approval for row in tree.calls if row.state in ("held", "ready") and not row.attempt}
    if any(row.state == "held" and not row.approval and not row.is_staged for row in tree.calls):
        return True
    return any(row.id in asked and row.state == "pending" and row.lives(tree.now) for row in tree.approvals)


async def let_go_held(session: Session, row: CallRow, *, again_s: float | None = None) -> Held:
    """Suspend the run for a person, in one transaction; returns what to raise.

    Not while a call of the tree runs in this process, in the body of which a child may be left: its run is still needed.
    """
    twin = await ReadCall(row.twin) if row.twin else None
    if session.uid == session.root or not (session.bodies or await LiveCalls(session.root)):
        await give_back(session, again_s, suspended=True)
    held = held_for(session, row, await request_of_call(row), twin)
    held.args = (f"run {visible(session.id)} waits for a person: {visible(row.tool)} is held ({held.reason})",)
    return held


async def leave_to_caller(session: Session) -> None:
    """Raise ``Held``, and decide nothing, where only the caller's own body can go on with what waits for a person."""
    for known in session.strangers.values():
        if session.uid not in (known.run, known.root):
            continue  # another child's: this one ends without it
        row = await ReadCall(known.id)
        if row is not None and row.state in ("held", "ready") and not row.is_staged:
            raise await let_go_held(session, row)
    if session.resumed and any(spec.fn is None for spec in session.specs.values()):
        # Asked for by an earlier opening, and not yet again: its caller may still come.
        for row in (await read_tree(session)).calls:
            if row.state in ("held", "ready") and not row.is_staged and session.body(row) is None:
                raise await let_go_held(session, row)


async def start_decided(session: Session, row: CallRow) -> None:
    """A person let this call go on after its block had ended: it is done now, and its own error is no failure."""
    if session.body(row) is None:
        raise await let_go_held(session, row, again_s=session.lease.lease_s)
    if lacking(session, row):
        raise await let_go_held(session, row)  # whoever asked for it has what it hides, and comes back for it
    outbox = await outbox_terms(session) if row.kind == "pivot" else {}
    started = await start_waiting(session, row, await terms_for(session, row), outbox)
    if isinstance(started, Contention) and not started.victim:
        raise locked(session, row.tool, started, waited=session.wait_s)
    if isinstance(started, Overrun):
        raise exceeded(row.tool, started, session.id)
    if isinstance(started, Unapproved):
        await tell_of(session, started.approval)
    if isinstance(started, Unapproved) and started.why == "refused" and session.uid == session.root:
        await _block_refused(session, started)
    if isinstance(started, Unapproved) and started.why not in ("", "expired"):
        raise await let_go_held(session, started.call, again_s=session.lease.lease_s)
    if not isinstance(started, CallRow):
        return
    try:
        await run_attempts(session, recorded_ask(session, started), started, told=False)
    except (Waiting, LedgerError):
        raise
    except Exception:  # settled as failed, or in doubt for the next round; a tool's error is not its run's
        return


async def _block_refused(session: Session, no: Unapproved) -> NoReturn:
    """Somebody has said yes, and a rule says no by now: more asking changes nothing, so a person must end it."""
    row, tree = no.call, await read_tree(session)
    withdraw = "" if no.approval is None else f"rt.withdraw({no.approval.id!r}, by=..., why=...), or "
    end = "rollback" if tree.run.phase == "open" else "abandon"
    cause = f"{row.tool} ({row.id}): a rule refuses it by now: {withdraw}rt.{end}({session.id!r}, by=..., why=...)"
    await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=(cause,))
    raise RunBlocked(f"run {session.id} is blocked: {cause}", run_id=session.id, causes=[cause])


def recorded_ask(session: Session, row: CallRow) -> Ask:
    """The request of a recorded call, to start it again in its own words."""
    spec = session.spec(row.tool)
    body = session.body(row)
    assert spec is not None, f"the tool {row.tool} is known here"
    assert body is not None, f"the tool {row.tool} has its body here"
    return Ask(
        spec=spec,
        args=body_args(session, spec, row),
        copy=partial(body_args, session, spec, row),
        text=row.args,
        key=row.key,
        ident=row.ident,
        whole="",
        fn=body[0],
        is_async=body[1],
        timeout=spec.timeout,
        flight=session.memory.flight(row),
        recorded_digest=row.digest,
        known=known_of(session, row),
    )


# ---- Leaving a run: commit, go forward, go back, or let it go. Each is a flow of its own


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


# ---- The ways out of a block, and what a person may do to a run from outside


async def leave(session: Session, error: BaseException | None, output: str | None) -> str:
    """The nine ways out of a block; returns what is to be noted on the error. Never swallows one."""
    if error is None:
        await leave_clean(session, output)
        return ""
    if is_a(error, LedgerError) or (is_a(error, RolledBack) and error.run_id == session.id):
        return ""  # nothing can be written down here; or nothing is left to do
    try:
        if only_waits(error):
            if session.uid == session.root:
                await leave_waiting(session)
            return ""
        phase = "" if is_a(error, Exception) else await _let_go_as_it_is(session)
        if phase:
            return f"amends: run {session.id} was let go as it is ({phase}); open it again, or a worker goes on"
        back = await leave_raised(session, error)
    except LedgerError as broken:
        return f"amends: run {session.id} could not be left in order here ({broken}); a worker will see to it"
    if back.run.state == "blocked" and back.run.phase != "pivoted" and is_a(error, Exception):
        # Only over an ordinary error: an interrupt or a cancellation that comes out as another one is swallowed.
        raise_blocked(session, back.tree, error)
    return note_of(session, back)


async def _let_go_as_it_is(session: Session) -> str:
    """Stopped from outside: a run that may be resumed, or only goes forward, is given back; its phase, else ""."""
    run = (await read_tree(session)).run
    if run.policy == "rollback" and run.phase in ("open", "rolling_back"):
        return ""
    if session.uid == session.root:
        await wait_for_live(session)
        await let_go(session)
    return run.phase


async def leave_clean(session: Session, output: str | None) -> RunRow:
    """The block ended: commit. Raises what stands in the way, or ``RolledBack`` when the goal was to go back."""
    await let_land(session, patient=True)
    run = await commit(session, output=output)
    if run.state == "committed":
        return run
    tree = await read_tree(session)
    raise_blocked(session, tree, None)
    if run.state in ("abandoned", "rolled_back"):
        raise RunEnded(
            f"run {session.id} was {run.state.replace('_', ' ')} meanwhile: it is not committed",
            state=run.state,
            run_id=session.id,
        )
    if run.phase == "open" and run.goal == "rollback":
        await _take_back_undecided(session, run)
    return tree.run


async def _take_back_undecided(session: Session, run: RunRow) -> None:
    """The goal is to go back; a person's no to the pivot comes out as what it is."""
    try:
        await take_back(session, why=run.goal_why or "the deadline passed")
    except RolledBack as back:
        for row in (await read_tree(session)).calls:
            if row.state == "refused" and row.at_commit and row.approval and row.run == session.uid:
                raise rejected(session, row) from back
        raise


async def take_back(session: Session, *, why: str) -> None:
    """Go back on request; always raises, ``RolledBack`` when nothing is left standing."""
    why = clean(why)
    back = await go_back(session, by=session.principal or session.lease.owner, why=why)
    raise_blocked(session, back.tree, None)
    report = report_of(session, back.tree)
    undone = undone_in(back)
    words = f"run {session.id} was taken back ({why}): {undone} compensated"
    if back.run.state == "abandoned":
        words = f"run {session.id} was taken back ({why}), but {back.run.goal_why}"
    elif back.run.state != "rolled_back":
        words = f"run {session.id} is {back.run.state} ({why}); a worker goes on with it"
    raise RolledBack(words, report=report, run_id=session.id)


async def leave_raised(session: Session, error: BaseException) -> Back:
    """The block raised: go back before the pivot, forward after it."""
    return await go_back(session, by=session.lease.owner, why=scrubbed(session, described(error))[:500])


async def leave_waiting(session: Session) -> RunRow:
    """The block waits for something: give the run back, to a person if a call is held."""
    await wait_for_live(session, patient=True)  # what other threads and tasks have sent is settled by its owner
    tree = await read_tree(session)
    held = [row for row in tree.calls if row.state in ("held", "ready") and not row.is_staged]
    if held:
        await let_go_held(session, held[0])
        return (await read_tree(session)).run
    return await let_go(session)


def undone_in(back: Back) -> str:
    """How many calls were compensated, in words."""
    count = sum(row.state == "compensated" for row in back.tree.calls)
    return f"{count} call{'' if count == 1 else 's'}"


def note_of(session: Session, back: Back) -> str:
    """What is said on the exception that took the run back."""
    match back.run.state:
        case "rolled_back":
            return f"amends: run {session.id} rolled back, {undone_in(back)} compensated"
        case "abandoned":
            return f"amends: run {session.id} was taken back, {undone_in(back)} compensated; {back.run.goal_why}"
        case "rolling_back":
            return f"amends: run {session.id} is rolling back; a worker goes on in {back.again_s or 0:.0f} s"
        case "pivoted":
            return f"amends: run {session.id} goes on: it has pivoted, what it recorded is being done"
        case "blocked" if back.run.phase == "pivoted":
            return f"amends: run {session.id} has pivoted and was interrupted; open it again or finish it"
        case _:
            return f"amends: run {session.id} is {back.run.state}"


# ---- attempts by hand ---------------------------------------------------------------------


async def begin_by_hand(session: Session, ask: Ask) -> Done:
    """Admit a call whose body is the caller's own code; ``replayed`` when the record answers."""
    return await guarded_admission(session, ask)


async def let_others_end(session: Session) -> None:
    """What other threads and tasks of this process do in the run comes to its end; however long that takes.

    Unlike ``let_land`` it judges nobody: attempts by hand that are open are asked next.
    """
    pause = POLL_S_MIN
    while await LiveCalls(session.uid):
        await Sleep(pause)
        pause = min(pause * 2, POLL_S_MAX)


async def end_by_hand(
    session: Session, ask: Ask, row: CallRow, ended: Ended, *, said: dict[str, int] | None = None
) -> CallRow:
    """Settle a call that was started by hand, and was said to have spent this."""
    _, settled = await conclude(session, ask, row, ended, said=said)
    return settled


async def doubt_by_hand(session: Session, ask: Ask, row: CallRow, *, said: dict[str, int] | None = None) -> CallRow:
    """The caller left without a word: perhaps it happened."""
    newest = await ReadCall(row.id)
    if newest is not None and newest.state != "started":
        return newest
    silence = TimeoutError("the attempt ended without succeed() or fail()")
    return await end_by_hand(session, ask, row, Ended(error=silence), said=said)
