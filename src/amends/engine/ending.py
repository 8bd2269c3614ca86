"""End a run: commit it, go forward after the pivot, roll it back, or release it; and leave a block."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from amends.encoding.lazy_import import import_on_use
from amends.engine.approvals import held_for, notify_of, outbox_terms, rejected, request_of_call, terms_for
from amends.engine.before import reads_first
from amends.engine.blocked import Obstacle, blocked, commit_obstacles, recorded_causes, rollback_obstacles
from amends.engine.call import Done, guarded_admission, run_attempts, settle_outcome
from amends.engine.costs import exceeded
from amends.engine.doubts import is_repeatable, probe_failure, probed_seldom
from amends.engine.halts import halted
from amends.engine.locks import locked, start_when_unlocked
from amends.engine.outcomes import lost_answer
from amends.engine.reports import report_of
from amends.engine.rollback import (
    STOPPED,
    RollbackProgress,
    doubts_due,
    roll_back,
    settle_doubts,
    take_back_plainly,
    wait_for_live,
    wait_if_live,
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
    error_parts,
    error_text,
    hidden_values_of,
    lacking,
    lacking_words,
    read_tree,
    recorded_error,
    release_tree,
    scrubbed,
)
from amends.errors import (
    BudgetExceeded,
    Error,
    Halted,
    Held,
    InDoubt,
    LedgerError,
    Locked,
    OutOfOrder,
    RolledBack,
    RunBlocked,
    RunEnded,
    Suspended,
    ToolFailed,
    Waiting,
    clean,
    described,
    is_a,
    listed_in,
    only_waits,
    some,
    some_in_words,
)
from amends.ledger.leases import work_left_s
from amends.ledger.operations import (
    CloseRun,
    DecideCommit,
    Decision,
    DropCall,
    ListHalts,
    ReadCall,
    ReadRun,
    ResolveCall,
    Rollback,
    SettleCall,
    StartCall,
    Tree,
)
from amends.ledger.rows import CallRow, Contention, DirectiveRow, Overrun, RunRow, TermsByCall, Unapproved
from amends.ledger.world import Ended, Flight, LiveCalls, ReadClocks, Sleep
from amends.model import Missing
from amends.states import LIVE, RUN_FINAL, UNSETTLED
from amends.visible import visible

if TYPE_CHECKING:  # most runs need only their calls to be complete
    from amends.engine import completion
else:
    import_on_use(globals(), completion="amends.engine.completion")

STOPPED_S_MAX: Final = 24 * 3600.0
"""How long a worker leaves a run alone that its consumer has stopped, if the run has no deadline."""

# ---- Leaving a block


async def leave(session: Session, error: BaseException | None, output: str | None) -> str:
    """Leave a block in one of nine ways; return what there is to say about it, as a note. Never swallows an error."""
    if error is None:
        run = await leave_clean(session, output)
        return forward_note(session, await read_tree(session)) if run.state == "pivoted" else ""
    is_ours = is_a(error, Error)
    if is_ours and (is_a(error, LedgerError) or (is_a(error, RolledBack) and error.run_id == session.id)):
        return ""  # nothing can be recorded here; or nothing is left to do
    try:
        if is_ours and is_a(error, StoppedInDoubt):
            await _leave_stopped_in_doubt(session)
            return ""
        if is_ours and only_waits(error):
            if session.uid == session.root:
                await leave_waiting(session, is_stopped=is_a(error, Suspended))
            return ""
        if session.waits_for_doubts and is_a(error, Exception) and (left := await _leave_doubtful(session, error)):
            return left
        phase = "" if is_a(error, Exception) else await _release_unfinished(session)
        if phase:
            return f"amends: run {session.id} was released as it is ({phase}); open it again, or a worker continues it"
        # It raised: roll back before the pivot, go forward after it.
        by, why = session.lease.owner, scrubbed(session, described(error))[:500]
        await wait_if_live(session, patient=True)
        taken = await take_back_plainly(session, by=by, why=why)
        if isinstance(taken, int):
            return _rolled_back_note(session, taken)
        back = await _roll_back_waited(session, by=by, why=why, first=taken)
    except LedgerError as broken:
        return f"amends: run {session.id} could not be closed here ({broken}); a worker will do it"
    if back.run.state == "blocked" and back.run.phase != "pivoted" and is_a(error, Exception):
        # Only over an ordinary error: an interrupt or a cancellation must not be replaced by another error.
        raise_blocked(session, back.tree, error)
    return rollback_note(session, back)


async def _leave_doubtful(session: Session, error: BaseException) -> str:
    """Release a run whose agent, started again by recovery, failed while a call was in doubt.

    Recovery settles the doubt when its probe is due, or asks a person, and then starts the agent once more. Return the
    note for the error, else "": no doubt is open, and the error is a failure of the run.
    """
    await wait_if_live(session, patient=True)
    tree = await read_tree(session)
    if tree.run.goal == "rollback" or tree.run.phase not in ("open", "pivoted"):
        return ""
    names = some_in_words(dict.fromkeys(row.tool for row in tree.calls if row.state == "in_doubt"))
    again_s, lost = await doubts_due(session, tree), lost_answer(error)
    if again_s is None and lost is None:
        return ""
    if not names:  # settled while the error was on its way: by a person, or by another call of this run
        settled = next((row for row in tree.calls if lost is not None and row.id == lost.call.id), None)
        if settled is None or settled.state not in ("succeeded", "failed", "backing_off"):
            return ""
        names, again_s = settled.tool, 0.0
    if session.uid != session.root:
        return f"amends: run {session.id} stays open until the outcome of {names} is known"
    if again_s is None:
        await _block(session, commit_obstacles(session, tree))
        return f"amends: run {session.id} is blocked until a person says whether {names} happened"
    await release_tree(session, again_s)
    return f"amends: run {session.id} waits for the outcome of {names}; a worker continues it in {again_s:.0f} s"


class StoppedInDoubt(Waiting):
    """An agent that can be resumed stopped while a call was in doubt: it has not ended, so its run gets no goal."""


async def _leave_stopped_in_doubt(session: Session) -> None:
    """Settle the doubts that need no person; if one is left, block the run and raise ``RunBlocked``.

    A goal to commit would close the run when a person settles the doubt, and the agent could not do the rest of its work.
    """
    await wait_if_live(session, patient=True)
    tree = await read_tree(session)
    if tree.run.goal or tree.run.phase not in ("open", "pivoted"):
        await release_run(session)
        return
    later = await settle_doubts(session, tree, back=False)
    tree = await read_tree(session)
    doubts = [row for row in tree.calls if row.state == "in_doubt" and not await _is_repeated(session, row)]
    if not doubts:
        await release_run(session)
        return
    await _block(session, commit_obstacles(session, tree), again_s=later)
    raise_blocked(session, await read_tree(session), None)


async def _release_unfinished(session: Session) -> str:
    """Release a run that was stopped from outside and may be resumed or only goes forward.

    Return its phase, else "".
    """
    run = (await read_tree(session)).run
    if run.recover == "rollback" and run.phase in ("open", "rolling_back"):
        return ""
    if session.uid == session.root:
        await wait_for_live(session)
        await release_run(session)
    return run.phase


async def leave_clean(session: Session, output: str | None) -> RunRow:
    """Commit a block that ended without error.

    Raises the error for what prevents it, or ``RolledBack`` if the goal was to roll back.
    """
    await wait_if_live(session, patient=True)
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
        await _roll_back_to_goal(session, run)
    return tree.run


async def _roll_back_to_goal(session: Session, run: RunRow) -> None:
    """Roll back; raise a person's refusal of the pivot as ``Rejected``."""
    try:
        await roll_back_and_raise(session, why=run.goal_why or "the deadline passed")
    except RolledBack as back:
        for row in (await read_tree(session)).calls:
            if row.state == "refused" and row.at_commit and row.approval and row.run == session.uid:
                raise rejected(session, row) from back
        raise


async def roll_back_and_raise(session: Session, *, why: str) -> None:
    """Roll back on request; always raises, ``RolledBack`` if no effect is left."""
    why = clean(why)
    back = await roll_back_block(session, by=session.principal or session.lease.owner, why=why)
    raise_blocked(session, back.tree, None)
    report = report_of(session, back.tree)
    undone = compensated_in_words(back)
    words = f"run {session.id} was rolled back ({why}): {undone} compensated"
    if back.run.state == "abandoned":
        words = f"run {session.id} was rolled back ({why}), but {back.run.goal_why}"
    elif back.run.state != "rolled_back":
        words = f"run {session.id} is {back.run.state} ({why}); a worker continues it"
    raise RolledBack(words, report=report, run_id=session.id)


async def leave_waiting(session: Session, *, is_stopped: bool = False) -> RunRow:
    """Release a run whose block waits for something; to a person if a call is held.

    ``is_stopped``: the agent's consumer has stopped, and may come back until the deadline of the run.
    """
    await wait_for_live(session, patient=True)  # calls that other threads and tasks have sent are settled by them
    tree = await read_tree(session)
    held = [row for row in tree.calls if row.state in ("held", "ready") and not row.is_staged]
    if held:
        await suspend_for_person(session, held[0])
        return (await read_tree(session)).run
    # After the pivot a run only goes forward: a worker continues with what is recorded.
    goes_on = tree.run.goal or (tree.run.phase == "pivoted" and any(_pending(row) for row in tree.calls))
    if not is_stopped or goes_on:
        return await release_run(session)
    until = tree.run.deadline_at or tree.now + STOPPED_S_MAX
    return await release_tree(session, max(0.0, until - tree.now), suspended=True)


def compensated_in_words(back: RollbackProgress) -> str:
    """Return how many calls were compensated, in words."""
    return _calls_in_words(sum(row.state == "compensated" for row in back.tree.calls))


def _calls_in_words(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


def _rolled_back_note(session: Session, count: int) -> str:
    return f"amends: run {session.id} rolled back, {_calls_in_words(count)} compensated"


def rollback_note(session: Session, back: RollbackProgress) -> str:
    """Return the note for the exception that rolled the run back."""
    match back.run.state:
        case "rolled_back":
            return _rolled_back_note(session, sum(row.state == "compensated" for row in back.tree.calls))
        case "abandoned":
            undone = compensated_in_words(back)
            return f"amends: run {session.id} was rolled back, {undone} compensated; {back.run.goal_why}"
        case "rolling_back":
            return f"amends: run {session.id} is rolling back; a worker continues it in {back.again_s or 0:.0f} s"
        case "pivoted":
            return forward_note(session, back.tree)
        case "committed":
            return f"amends: run {session.id} had pivoted; nothing was pending, and it was committed"
        case "blocked" if back.run.phase == "pivoted":
            return f"amends: run {session.id} has pivoted and was interrupted; open it again or finish it"
        case _:
            return f"amends: run {session.id} is {back.run.state}"


def forward_note(session: Session, tree: Tree, *, messages: bool = True) -> str:
    """Return the note for a block that left its run ``pivoted``: which calls are not done, and when they are tried again.

    ``messages``: with the messages of errors, not only their types.
    """
    mine = [row for row in tree.calls if row.run == session.uid and _pending(row)]
    words = [_left_in_words(row, tree.now, messages=messages) for row in mine]
    left = "; ".join(some(words, where=listed_in(session.id))) or "its recorded calls are being run"
    return f"amends: run {session.id} has pivoted and goes on: {left}"


async def forward_log(session: Session) -> str:
    """Return the same for a log, which never has the message of an error: a ledger may encrypt it."""
    return forward_note(session, await read_tree(session), messages=False).removeprefix("amends: ")


def _left_in_words(row: CallRow, now: float, *, messages: bool) -> str:
    due = row.retry_at if row.state == "backing_off" else row.probe_at
    when = "" if due is None else f" in {max(1, math.ceil(due - now))} s"
    match row.state:
        case "backing_off":
            error = error_text(row.error) or row.why if messages else error_parts(row.error)[0] or "an error"
            return f"{row.tool} failed ({error}) and is tried again{when}"
        case "in_doubt":
            return f"{row.tool} may have happened ({row.why}) and is looked at again{when}"
        case "started":
            return f"{row.tool} is running"
        case _:
            return f"{row.tool} waits for a lock" if row.locks else f"{row.tool} has not started yet"


# ---- Commit


ROUNDS_MAX: Final = 10_000


async def commit(session: Session, *, output: str | None = None) -> RunRow:
    """Commit, or go forward as far as possible now; raise the error for what prevents it."""
    if session.uid == session.root:
        session.recall.close()  # a child's committed calls stay valid; of a root that has ended gc may remove payloads
    await wait_if_live(session)
    await raise_if_caller_needed(session)
    await _require_pivot_body(session)
    try:
        return await _commit(session, output)
    except (Locked, BudgetExceeded, Halted):
        # Its block has ended and nothing is decided: a worker continues, and only a person or a deadlock rolls it back.
        if session.uid == session.root:
            await release_run(session)
        raise


async def _commit(session: Session, output: str | None) -> RunRow:
    wait = Wait(session.wait_s, longest_s=session.poll_s)
    after = {name: spec.after for name, spec in session.specs.items() if spec.at == "commit" and spec.after}
    judged, missing = ("", "", ""), list[Missing]()
    # A child is judged with its root, at the end of that; only an agent is judged by what it did itself.
    is_judged = session.uid == (session.closing.run or session.root)
    for _ in range(ROUNDS_MAX):
        decision = await DecideCommit(
            session.uid, session.lease.owner, session.lease.epoch, output, session.replays, after,
            await outbox_terms(session), session.plain, session.closing.text if is_judged else "", *judged,
        )  # fmt: skip
        match decision.how:
            case "ended":
                return decision.run
            case "committed":
                session.counted.update(session.replays)
                return decision.run
            case "rollback":
                return replace(decision.run, goal="rollback")  # say so, if only the deadline has decided it
            case "pivot":
                await _run_pivot(session, decision.calls[0])
            case "locked":
                holder = session.root if decision.lock is None else decision.lock.root or session.root
                if not await wait.again(holder):
                    raise _locked_commit(session, decision, wait.waited)
            case "early" | "halted" | "over":
                await _refuse_commit(session, decision)
            case "judge":
                missing = await _judge(session)
                judged = (decision.mark, *completion.why_incomplete(session.id, missing))
            case "incomplete":
                return _incomplete(session, decision.run, missing)
            case "forward":
                left = await _drain(session, decision.calls)
                if left is not None:
                    return await _pause_forward(session, left)
            case "unsettled":
                paused = await _settle_rest(session, decision)
                if paused is not None:
                    return paused
    raise AssertionError(f"the commit of run {session.id} does not end")


async def _refuse_commit(session: Session, decision: Decision) -> NoReturn:
    """Raise why the staged calls may not start; but for a halt, which is lifted some time, roll the run back first."""
    tool = decision.calls[0].tool if decision.calls else ""
    why: OutOfOrder | BudgetExceeded
    match decision.how:
        case "halted":
            assert decision.halt is not None, "a commit that is halted says by which halt"
            raise halted(session, tool, decision.halt)
        case "over":
            assert decision.over is not None, "a commit that costs too much says of which budget"
            why = exceeded(decision.over.tool, decision.over, session.id)
        case _:
            why = OutOfOrder(tool, law="pivot_early", missing=decision.missing, run_id=session.id)
    back = await roll_back(session, by=session.lease.owner, why=str(why))
    raise_blocked(session, back.tree, why)
    raise why


async def _judge(session: Session) -> list[Missing]:
    """Return what the run lacks to be complete; block it if only its program can say that."""
    tree = await read_tree(session)
    missing = completion.missing_in(session, tree)
    if not missing and (names := completion.unchecked(session, tree.run.completion)):
        cause = completion.cause_unchecked(session.id, names, pivoted=tree.run.phase == "pivoted")
        await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=(cause,))
        raise RunBlocked(f"run {session.id} is blocked: {cause}", run_id=session.id, causes=[cause])
    return missing or completion.failed_checks(session, report_of(session, tree))


def _incomplete(session: Session, run: RunRow, missing: list[Missing]) -> RunRow:
    """Return a run that is to be rolled back; raise ``RunBlocked`` if it has pivoted."""
    if run.state != "blocked":
        return run
    causes = list(json.loads(run.causes))
    words = f"run {session.id} is blocked: {'; '.join(some(causes, where=listed_in(session.id)))}"
    raise RunBlocked(words, run_id=session.id, causes=causes, missing=missing)


async def before_end(session: Session) -> str:
    """Return what a model that is about to stop is told: what is missing, and what stopping does; empty: nothing is."""
    if not session.closing.text:
        return ""
    # A child is judged with its root, but an agent by what it did itself.
    tree = await ReadRun(session.tenant, uid=session.closing.run or session.root)
    assert tree is not None, "an open run is in the ledger"
    return end_text(session, tree)


def end_text(session: Session, tree: Tree) -> str:
    """Return what ``before_end`` does, of a tree that was read."""
    if tree.run.phase not in ("open", "pivoted") or tree.run.goal == "rollback":
        return ""
    missing = completion.missing_in(session, tree)
    if session.closing.checks:
        missing += completion.failed_checks(session, report_of(session, tree))
    return completion.told_before_end(missing, pivoted=tree.run.phase == "pivoted")


def _locked_commit(session: Session, decision: Decision, waited: float) -> Locked:
    lock = decision.lock
    assert lock is not None, "a commit that waits for a lock says for which"
    tool = next((row.tool for row in decision.calls if lock.name in row.locks), decision.calls[0].tool)
    hint = f"run {session.id} has ended and commits when the lock is free: in a worker, or when it is opened again"
    return locked(session, tool, lock, waited=waited, hint=hint)


async def _require_pivot_body(session: Session) -> None:
    """Block the run before the commit if its pivot cannot be started here.

    The handler of that pivot lived in another process.
    """
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
    """Run the pivot that waited for the commit; if it fails, roll back and raise its error."""
    try:
        await run_attempts(session, recorded_ask(session, row), row, needs_result=False)
    except InDoubt:
        return  # the next round finds it unsettled
    except (Waiting, LedgerError):
        raise
    except Exception as error:
        back = await roll_back(session, by=session.lease.owner, why=f"{row.tool} failed at commit")
        raise_blocked(session, back.tree, error)
        raise


# ---- Forward, after the commit is decided


async def _drain(session: Session, staged: tuple[CallRow, ...]) -> tuple[CallRow, ...] | None:
    """Start the staged calls in order; return None when all are done, else those that are not."""
    for row in staged:
        await drive_forward(session, row)
    tree = await read_tree(session)
    left = tuple(row for row in tree.calls if row.run == session.uid and row.state != "succeeded" and _pending(row))
    return left or None


def _pending(row: CallRow) -> bool:
    let_go = row.state == "ready" and row.kind == "retriable"  # past the pivot a person has approved it
    return row.is_staged or let_go or row.state in ("in_doubt", "backing_off", "started")


async def drive_forward(session: Session, row: CallRow) -> None:
    """Start one retriable once, unless its time has not come."""
    clocks = await ReadClocks()
    waits = row.state == "backing_off" and (row.retry_at is None or row.retry_at > clocks.wall)
    if waits or row.state not in ("held", "ready", "backing_off") or session.body(row) is None:
        return
    if lacking(session, row):
        return  # it is named among the obstacles
    started = await _start_recorded(session, row, {})
    if not isinstance(started, CallRow):
        return  # not now: another run holds its lock, or a halt stands, and it stays staged
    try:
        await run_attempts(session, recorded_ask(session, started), started, needs_result=False)
    except InDoubt:
        return  # it stays visible; the next round probes it again


async def _start_recorded(
    session: Session, row: CallRow, outbox: TermsByCall
) -> CallRow | Contention | Overrun | Unapproved | DirectiveRow | None:
    """Start a recorded call; None too if what is there before it could not be read: it stays staged, or was dropped."""
    try:
        started = await start_when_unlocked(session, row, await terms_for(session, row), outbox)
    except LedgerError:
        raise
    except Exception as error:
        if not reads_first(session.spec(row.tool), row):
            raise
        session.memory.unread[row.id] = recorded_error(session, row, error)
        return None
    session.memory.unread.pop(row.id, None)
    return started


async def _pause_forward(session: Session, left: tuple[CallRow, ...]) -> RunRow:
    """Release the run until a worker resumes it when the first call is due, or a person has decided."""
    tree = await read_tree(session)
    blocking = commit_obstacles(session, tree)
    clocks = await ReadClocks()
    due = [row.retry_at - clocks.wall for row in left if row.retry_at is not None]
    doubts = [row for row in left if row.state == "in_doubt" and not probe_failure(row)]
    due += [row.probe_at - clocks.wall for row in doubts if row.probe_at is not None]
    unknown = [row for row in left if row.is_staged or row.state == "ready"]
    if blocking and not due and len(blocking) == len(left):
        return await _block(session, blocking)
    unread = _unread(session, left) if session.resumed and session.uid == session.root else []
    if unread:  # not for the first time: somebody should look, and a worker tries again meanwhile
        return await _block(session, [*blocking, *unread], again_s=session.lease.lease_s)
    wake = max(0.0, min(due)) if due else (session.lease.lease_s if unknown else 0.0)
    if not wake and await ListHalts():
        wake = session.lease.lease_s  # what is due may be halted: look again later, not at once
    if session.uid != session.root:
        return tree.run
    return await release_tree(session, wake)


def _unread(session: Session, rows: tuple[CallRow, ...]) -> list[Obstacle]:
    """Return the staged calls that were not started because what is there before them could not be read."""
    found = []
    for row in rows:
        if (error := session.memory.unread.get(row.id)) is not None:
            why = f"what is there before it cannot be read ({error_text(error)})"
            verb = f"it is tried again; or close the run without it: rt.abandon({session.id!r}, by=..., why=...)"
            found.append(Obstacle(row, why, f"{row.tool} ({row.id}): {why}: {verb}"))
    return found


# ---- Unsettled calls


async def _settle_rest(session: Session, decision: Decision) -> RunRow | None:
    """Settle what can be settled without a person; raise ``Held`` or ``RunBlocked`` otherwise."""
    held = [row for row in decision.calls if row.state == "held" or row.is_staged]
    if held:
        tree = await read_tree(session)
        if awaits_person(tree):
            # Decided meanwhile, or approved for another version of the tool, which another process has: check again
            # later.
            raise await suspend_for_person(
                session, held[0], again_s=None if has_pending_decision(tree) else session.lease.lease_s
            )
    if any(row.state in LIVE for row in decision.calls):
        await wait_for_live(session)
    waits = [await _close_child(session, child) for child in decision.children]
    tree = await read_tree(session)
    waits.append(await settle_doubts(session, tree, back=False))
    later = min((wait for wait in waits if wait is not None), default=None)
    # The pivot last: it starts only when everything else is settled.
    for row in sorted((await read_tree(session)).calls, key=lambda row: row.kind == "pivot"):
        await _continue_call(session, row)
    tree = await read_tree(session)
    blocking = commit_obstacles(session, tree)
    forward = tree.run.phase == "pivoted"
    waiting = [
        row
        for row in tree.calls
        if row.state == "backing_off" and row.retry_at is not None and not lacking(session, row)
    ]
    waiting += [row for row in tree.calls if forward and await _is_repeated(session, row)]
    if waiting:  # a call of this run, or of a child that pivoted, that is due later
        return await _pause_forward(session, tuple(waiting))
    if blocking:
        await _block(session, blocking, again_s=later)
        raise_blocked(session, await read_tree(session), None)
    stuck = [run for run in tree.runs if run.uid != session.uid and run.state == "blocked"]
    if stuck:  # a child that only its own program or a person can end, such as one that is incomplete after its pivot
        causes = [cause for run in stuck for cause in json.loads(run.causes)]
        lease = session.lease
        await CloseRun(
            session.uid, lease.owner, lease.epoch, "blocked", causes=recorded_causes(session.id, causes), wake_s=later
        )
        words = f"run {session.id} is blocked: {'; '.join(some(causes, where=listed_in(session.id)))}"
        raise RunBlocked(words, run_id=session.id, causes=causes)
    return None


async def _is_repeated(session: Session, row: CallRow) -> bool:
    """Return whether a doubt needs neither probe nor person: its idempotent call is started again when it is due."""
    spec = session.spec(row.tool)
    if row.state != "in_doubt" or row.probe_at is None or spec is None or spec.probe is not None:
        return False
    return await is_repeatable(session, spec, row)


async def _continue_call(session: Session, row: CallRow) -> None:
    """Do what an unsettled call needs before its run can commit."""
    if row.is_reading:
        # Its flow was stopped before it started, and it was not requested again: it is not part of the commit.
        await DropCall(row.id, session.lease.owner, session.lease.epoch, "cancelled")
    elif row.state == "ready" and not row.is_staged:
        await run_decided_call(session, row)
    elif row.state == "backing_off" and row.kind == "retriable":
        await drive_forward(session, row)
    elif row.state == "backing_off" and row.kind == "pivot" and row.retry_at is not None:
        # Its start was lost and had no effect; the calls staged after it must not run as if it had succeeded.
        await _restart_pivot(session, row)
    elif row.state == "backing_off":
        # It was not requested again, and certainly nothing happened: it is not part of the commit.
        await _give_up(session, row)


async def _restart_pivot(session: Session, row: CallRow) -> None:
    if gone := lacking(session, row):
        # It certainly did not happen and cannot be started here: it failed, and before a pivot a failure rolls back.
        await _give_up(session, row)
        call, name = call_of(row, session.spec(row.tool)), "Redacted"
        failed = ToolFailed(f"{row.tool} was not started again: {lacking_words(gone)}", call=call, type_name=name)
        back = await roll_back(session, by=session.lease.owner, why=str(failed))
        raise_blocked(session, back.tree, failed)
        raise failed
    spec = session.spec(row.tool)
    remote_s = 0.0 if spec is None else spec.remote
    started = await StartCall(row.id, session.lease.owner, session.lease.epoch, row.attempt + 1, remote_s=remote_s)
    if isinstance(started, DirectiveRow):
        raise halted(session, row.tool, started)
    if isinstance(started, CallRow):
        await _run_pivot(session, started)


async def _give_up(session: Session, row: CallRow) -> None:
    await ResolveCall(
        row.id, "failed", session.lease.owner, row.why, epoch=session.lease.epoch, owner=session.lease.owner
    )


async def _close_child(session: Session, child: RunRow) -> float | None:
    """Roll back a child that was left open, or go forward if it pivoted; return the seconds until it can continue."""
    inner = session.child(child.uid, child.id, generation=child.generation, resumed=True, state=child.state)
    if child.phase == "pivoted" or child.goal == "commit":
        with suppress(RunBlocked):  # what blocks it blocks us: it is found and named with our own obstacles
            await commit(inner)
        return None
    return (await roll_back(inner, by=session.lease.owner, why="its block was never finished")).again_s


# ---- Blocked and interrupted runs


async def _block(session: Session, blocking: list[Obstacle], *, again_s: float | None = None) -> RunRow:
    causes = recorded_causes(session.id, [left.cause for left in blocking])
    if again_s is None:
        again_s = await _look_again(session, await read_tree(session))
    return await CloseRun(
        session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=causes, wake_s=again_s
    )


async def interrupted(session: Session, *, asked: str = "") -> RunRow:
    """Finish the recorded calls of a block that ended early after its pivot; then the run waits to be opened again.

    With ``interrupted="commit"`` it is committed instead if nothing is pending then. ``asked``: the reason of the rollback
    that was asked for.
    """
    tree = await read_tree(session)
    staged = tuple(row for row in tree.calls if row.run == session.uid and _pending(row))
    await settle_doubts(session, tree, back=False)
    left = await _drain(session, staged)
    if left is not None and any(_will_continue(session, row) for row in left):
        return await _pause_forward(session, left)
    tree = await read_tree(session)
    if left is None and tree.run.commits_interrupted and _is_settled(tree):
        with suppress(RunBlocked):
            return await commit(session)
        return (await read_tree(session)).run
    ended = "the block ended after the pivot and before its end"
    if asked:
        ended = f"a rollback was asked for ({asked}), and the pivot cannot be undone"
    cause = f"{ended}: open run {session.id!r} again, or close it with rt.finish({session.id!r}, by=..., why=...)"
    causes = recorded_causes(session.id, [cause, *(one.cause for one in commit_obstacles(session, tree))])
    lease, again_s = session.lease, await _look_again(session, tree)
    return await CloseRun(
        session.uid, lease.owner, lease.epoch, "blocked", causes=causes, interrupted=True, wake_s=again_s
    )


async def _look_again(session: Session, tree: Tree) -> float | None:
    """Return the seconds until a doubt of a blocked run is looked at again without a person; None if none is.

    A call that was continued here may be in doubt anew.
    """
    due = [await doubts_due(session, tree), probed_seldom(session, tree)]
    return min((wait for wait in due if wait is not None), default=None)


def _is_settled(tree: Tree) -> bool:
    """Return whether nothing is pending in a run that has pivoted: every call is settled, every child has ended."""
    within = {run.uid for run in tree.runs if run.uid != tree.run.uid}
    ended = {run.uid for run in tree.runs if run.state in RUN_FINAL}
    return within <= ended and not any(row.state in UNSETTLED for row in tree.calls)


def _will_continue(session: Session, row: CallRow) -> bool:
    """Return whether waiting helps: it is due later, or waits for a lock of another run."""
    is_locked = row.is_staged and bool(row.locks) and session.body(row) is not None
    return is_locked or row.retry_at is not None or (row.probe_at is not None and not probe_failure(row))


def raise_blocked(session: Session, tree: Tree, cause: BaseException | None) -> None:
    """Raise ``RunBlocked`` if the run is blocked; its attributes have everything that is left, its texts name a part."""
    if tree.run.state != "blocked":
        return
    left = rollback_obstacles(session, tree) if tree.run.phase == "rolling_back" else commit_obstacles(session, tree)
    causes = json.loads(tree.run.causes)
    forks = ""
    if tree.run.phase == "open" and tree.run.goal == "rollback" and not left:  # it has not begun to roll back
        forks = "; ".join(some(causes, where=listed_in(session.id)))
    raise blocked(session, left, named=forks, causes=causes) from cause_of(session, cause)


async def stop_call(session: Session, flight: Flight) -> None:
    """Settle the call of a flow that was stopped in a living process: as doubt, or as failed if it was never sent."""
    row = flight.call
    if row is None:
        return
    clocks = await ReadClocks()
    doubtful = (flight.sent or flight.doubted) and row.kind != "read"
    await SettleCall(
        row.id, session.lease.owner, session.lease.epoch, row.attempt, "in_doubt" if doubtful else "failed",
        why="cancelled", boot=clocks.boot, mono=None if flight.goes_on else clocks.mono + work_left_s(row), error=STOPPED,
    )  # fmt: skip


async def release_run(session: Session) -> RunRow:
    """Release the run to its next opener; a worker follows its policy after one lease."""
    return await release_tree(session, session.lease.lease_s)


async def let_go(session: Session, *, silent_s: float) -> RunRow:
    """Release a run that has not ended: to its client until its client lease has passed, then to recovery.

    ``silent_s``: how long its client has been silent. Without a client lease, or when a goal was set, recovery goes on at
    once.
    """
    await wait_for_live(session, patient=True)
    tree = await read_tree(session)
    held = [row for row in tree.calls if row.state in ("held", "ready") and not row.is_staged]
    if held:
        await suspend_for_person(session, held[0])
        return (await read_tree(session)).run
    left = tree.run.client_lease_s - silent_s
    if left <= 0 or not tree.run.is_clients:
        return await release_tree(session, 0.0)
    return await release_tree(session, left, silent_s=silent_s)


async def roll_back_block(session: Session, *, by: str, why: str) -> RollbackProgress:
    """Roll back a block that asks for it; after the pivot go forward instead."""
    await wait_if_live(session, patient=True)
    return await _roll_back_waited(session, by=by, why=why, asked=why)


async def _roll_back_waited(
    session: Session, *, by: str, why: str, first: Rollback | None = None, asked: str = ""
) -> RollbackProgress:
    back = await roll_back(session, by=by, why=why, has_waited=True, first=first)
    if back.run.phase == "pivoted" and back.run.state == "pivoted":
        run = await interrupted(session, asked=asked)
        return RollbackProgress(run, await read_tree(session))
    return back


# ---- Calls that wait for a person


def awaits_person(tree: Tree) -> bool:
    """Return whether a decision of a person is still open in this tree, or an approved call is not done yet."""
    living = {row.id for row in tree.approvals if row.lives(tree.now)}
    for row in tree.calls:
        if row.state not in ("held", "ready") or row.attempt:
            continue
        if row.approval in living or (row.state == "held" and not row.is_staged and not row.approval):
            return True
    return False


def has_pending_decision(tree: Tree) -> bool:
    """Return whether a person has not yet decided what this tree waits for."""
    asked = {row.approval for row in tree.calls if row.state in ("held", "ready") and not row.attempt}
    if any(row.state == "held" and not row.approval and not row.is_staged for row in tree.calls):
        return True
    return any(row.id in asked and row.state == "pending" and row.lives(tree.now) for row in tree.approvals)


async def suspend_for_person(session: Session, row: CallRow, *, again_s: float | None = None) -> Held:
    """Suspend the run for a person, in one transaction; return the error to raise.

    It is not released while this process runs a call of the tree, in whose body a child may be closed: the run is still
    needed.
    """
    twin = await ReadCall(row.twin) if row.twin else None
    if session.uid == session.root or not (session.bodies or await LiveCalls(session.root)):
        await release_tree(session, again_s, suspended=True)
    held = held_for(session, row, await request_of_call(row), twin)
    held.args = (f"run {visible(session.id)} waits for a person: {visible(row.tool)} is held ({held.reason})",)
    return held


async def raise_if_caller_needed(session: Session) -> None:
    """Raise ``Held`` if only the caller's own body can continue with a call that waits for a person.

    Nothing is decided then.
    """
    for known in session.held_from_caller.values():
        if session.uid not in (known.run, known.root):
            continue  # another child's call: this one ends without it
        row = await ReadCall(known.id)
        if row is not None and row.state in ("held", "ready") and not row.is_staged:
            raise await suspend_for_person(session, row)
    if session.resumed and any(spec.fn is None or spec.kind == "agent" for spec in session.specs.values()):
        # Requested by an earlier opening, and not yet again: its caller may still come.
        for row in (await read_tree(session)).calls:
            if row.state in ("held", "ready") and not row.is_staged and session.body(row) is None:
                raise await suspend_for_person(session, row)


async def run_decided_call(session: Session, row: CallRow) -> None:
    """Run a call that a person released after its block had ended; its own error is no failure of the run."""
    if session.body(row) is None:
        raise await suspend_for_person(session, row, again_s=session.lease.lease_s)
    if lacking(session, row):
        raise await suspend_for_person(session, row)  # its requester has the hidden values, and comes back for it
    outbox = await outbox_terms(session) if row.kind == "pivot" else {}
    started = await _start_recorded(session, row, outbox)
    if isinstance(started, Contention) and started.lost is not None:
        return  # a setter of the same thing is in doubt, and that is settled first
    if isinstance(started, Contention) and not started.victim:
        raise locked(session, row.tool, started, waited=session.wait_s)
    if isinstance(started, Overrun):
        raise exceeded(row.tool, started, session.id)
    if isinstance(started, DirectiveRow):
        raise halted(session, row.tool, started)
    if isinstance(started, Unapproved):
        await notify_of(session, started.approval)
    if isinstance(started, Unapproved) and started.why == "refused" and session.uid == session.root:
        await _block_refused(session, started)
    if isinstance(started, Unapproved) and started.why not in ("", "expired"):
        raise await suspend_for_person(session, started.call, again_s=session.lease.lease_s)
    if not isinstance(started, CallRow):
        return
    try:
        await run_attempts(session, recorded_ask(session, started), started, needs_result=False)
    except (Waiting, LedgerError):
        raise
    except Exception:  # settled as failed, or in doubt for the next round; a tool's error is not its run's
        return


async def _block_refused(session: Session, no: Unapproved) -> NoReturn:
    """Block a run whose call was approved but is now refused by a rule.

    A new request would not help: a person must end the run.
    """
    row, tree = no.call, await read_tree(session)
    withdraw = "" if no.approval is None else f"rt.withdraw({no.approval.id!r}, by=..., why=...), or "
    end = "rollback" if tree.run.phase == "open" else "abandon"
    cause = f"{row.tool} ({row.id}): a rule refuses it now: {withdraw}rt.{end}({session.id!r}, by=..., why=...)"
    await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=(cause,))
    raise RunBlocked(f"run {session.id} is blocked: {cause}", run_id=session.id, causes=[cause])


def recorded_ask(session: Session, row: CallRow) -> Ask:
    """Return the request of a recorded call, to start it again with its recorded arguments."""
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
        known=hidden_values_of(session, row),
    )


# ---- Attempts by hand


async def begin_by_hand(session: Session, ask: Ask) -> Done:
    """Admit a call whose body is the caller's own code; ``replayed`` if the record answers.

    The lease is checked last, as before every body: after a takeover nothing is handed out that others have in doubt.
    """
    done = await guarded_admission(session, ask)
    if not done.replayed and ask.spec.kind != "read":
        session.lease.check((await ReadClocks()).mono)
    return done


async def wait_for_others(session: Session) -> None:
    """Wait until other threads and tasks of this process have finished in the run, however long that takes.

    Unlike ``wait_if_live`` it settles nothing: open attempts by hand are ended next.
    """
    pause = POLL_S_MIN
    while await LiveCalls(session.uid):
        await Sleep(pause)
        pause = min(pause * 2, POLL_S_MAX)


async def end_by_hand(
    session: Session, ask: Ask, row: CallRow, ended: Ended, *, said: dict[str, int] | None = None
) -> CallRow:
    """Settle a call that was started by hand, with the cost that was reported for it."""
    _, settled = await settle_outcome(session, ask, row, ended, reported=said)
    return settled


async def doubt_by_hand(session: Session, ask: Ask, row: CallRow, *, said: dict[str, int] | None = None) -> CallRow:
    """Settle an attempt by hand that ended without an outcome: as doubt."""
    newest = await ReadCall(row.id)
    if newest is not None and newest.state != "started":
        return newest
    silence = TimeoutError("the attempt ended without succeed() or fail()")
    return await end_by_hand(session, ask, row, Ended(error=silence), said=said)
