"""The ways out of a block, and what a person may do to a run from outside."""

from __future__ import annotations

from amends.approvalerrors import only_waits
from amends.engine.asking import rejected
from amends.engine.call import Done, conclude, guarded_admission
from amends.engine.ending import commit, go_back, let_go, raise_blocked
from amends.engine.giving import read_tree
from amends.engine.holding import let_go_held
from amends.engine.landing import let_land, wait_for_live
from amends.engine.rollback import Back
from amends.engine.session import Ask, Session
from amends.engine.telling import report_of
from amends.engine.veiling import scrubbed
from amends.engine.waiting import POLL_S_MAX, POLL_S_MIN
from amends.errors import LedgerError, RolledBack, RunEnded
from amends.ledger import ReadCall
from amends.ops import Ended, LiveCalls, Sleep
from amends.phrases import clean, described, is_a
from amends.rows import CallRow, RunRow


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
