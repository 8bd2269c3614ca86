"""Going back: settle what is doubtful, then compensate in reverse order of settling, then close."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from amends.engine.doubt import (
    PROBE_PACE,
    ask_probe,
    is_repeatable,
    may_compensate_in_doubt,
    settle_doubt,
    settle_left,
    wait_settled,
)
from amends.engine.giving import give_back, read_tree
from amends.engine.judge import judge
from amends.engine.landing import let_land, wait_for_live
from amends.engine.leftover import NOT_STARTED, leftovers, taken_by_rule, under
from amends.engine.session import Session, call_of, describe_error
from amends.engine.veiling import call_given, missing, said_of, twin_given
from amends.engine.waiting import POLL_S_MAX, POLL_S_MIN
from amends.errors import ResultLost, TransitionRefused
from amends.flow import Flow
from amends.ledger import (
    AbandonRun,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    NoteProbe,
    ReadCall,
    ResolveCall,
    SettleCompensation,
    Tree,
)
from amends.model import Absent, Happened, Unknown
from amends.ops import Ended, Invoke, Luck, ReadClocks, Sleep, Together
from amends.phrases import is_a
from amends.record import dataclass
from amends.rows import CallRow, RunRow
from amends.rules import yes_or_no
from amends.states import LIVE
from amends.tool import Spec, Twin

PASSES_MAX: Final = 1_000
"""A rollback that is still finding work after this many passes is a bug of ours, not progress."""
LOOK_AGAIN: Final = -1.0
GUARDED: Final = '["Guard", "somebody else changed it since; it was left as it is"]'


@dataclass(frozen=True, slots=True)
class Back:
    """How far the way back went: ``rolled_back``, ``blocked``, ``pivoted``, or still ``rolling_back``."""

    run: RunRow
    tree: Tree
    again_s: float | None = None


async def roll_back(session: Session, *, by: str, why: str, person: bool = False) -> Back:
    """Take everything back that this run did. Repeated, or after any crash, it goes on where it stood."""
    session.recall.close()  # of the whole tree: what is asked for again after a child went back is a new call
    await let_land(session)
    for _ in range(PASSES_MAX):
        began = await BeginRollback(session.uid, by, why, person, session.lease.owner, session.lease.epoch)
        tree = began.tree or await read_tree(session)
        if any(row.state in LIVE for row in tree.calls):
            await wait_for_live(session)
            tree = await read_tree(session)
        if began.how in ("refused", "ended"):
            return Back(began.run, tree)
        if began.how == "forked":
            return await _wait_for_forks(session, tree, began.forks)
        later = await settle_all(session, tree, back=True)
        if later is not None:
            return await _stop(session, tree, later)
        if any(row.state == "in_doubt" for row in tree.calls):
            tree = await read_tree(session)
        if began.how == "deferred":
            if tree.run.pivot and tree.run.phase == "open":
                return await _block(session, tree)  # the pivot's doubt is a person's matter
            continue
        done: dict[str, CallRow] = {}
        again = await _one_pass(session, tree, done)
        if again is None:
            return await _close(session, tree)
        if again > 0:
            return await _stop(session, tree, again)
        closed = await _close_at_once(session, tree, done)
        if closed is not None:
            return closed
    raise AssertionError(f"the rollback of run {session.id} does not end")


async def settle_all(session: Session, tree: Tree, *, back: bool) -> float | None:
    """Settle every doubt that needs no person; seconds until the first that must wait, else None."""
    waits: list[float] = []
    for row in tree.calls:
        if row.state != "in_doubt":
            continue
        spec = session.spec(row.tool)
        after = await settle_doubt(session, spec, row, back=back)
        if after.state == "in_doubt" and spec is not None and await _asked_again(session, spec, after, back=back):
            clocks = await ReadClocks()
            waits.append(max(POLL_S_MAX, (after.probe_at or clocks.wall) - clocks.wall))
    return min(waits, default=None)


async def _asked_again(session: Session, spec: Spec, row: CallRow, *, back: bool) -> bool:
    """Whether time brings more: another probe, or another start of an idempotent call."""
    if spec.probe is not None:
        return True
    blind = back and may_compensate_in_doubt(spec)
    return row.probe_at is not None and not blind and await is_repeatable(session, spec, row)


# ---- compensations ------------------------------------------------------------------------


async def _one_pass(session: Session, tree: Tree, done: dict[str, CallRow]) -> float | None:
    """Compensate what is there. None: nothing left to do; 0: look again; more: not before so many seconds.

    ``done`` gets the calls as they were left.
    """
    todo = _in_turn(session, tree)
    if not todo:
        return None
    while todo:
        batch = [row for row in todo if row.grp == todo[0].grp] if todo[0].grp else todo[:1]
        begun = {row.id for row in batch}
        todo = [row for row in todo if row.id not in begun]
        again = await _compensate_together(session, batch, done)
        if again != 0.0:
            return max(again, 0.0)
    return 0.0


async def _compensate_together(session: Session, batch: list[CallRow], done: dict[str, CallRow]) -> float:
    if len(batch) == 1:
        return await compensate(session, batch[0], done)
    flows: list[Flow[float]] = [compensate(session, row, done) for row in batch]
    ends = await Together(flows)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    waits: list[float] = ends
    return max(waits, key=abs)


def _reversed(tree: Tree) -> list[CallRow]:
    turning = {run.uid for run in tree.runs if run.state == "rolling_back"}
    mine = [row for row in tree.calls if row.run in turning and row.kind != "read" and not row.shared]
    return sorted(mine, key=lambda row: row.settled_seq, reverse=True)


def _in_turn(session: Session, tree: Tree) -> list[CallRow]:
    """What is to be taken back, the last first; nothing that must wait for a later one which cannot be, here."""
    todo: list[CallRow] = []
    stuck: list[CallRow] = []
    for row in _reversed(tree):
        if _is_open(session, row):
            if not any(_comes_first(tree, later, row) for later in stuck):
                todo.append(row)
        elif row.state == "succeeded" and row.undoable:
            stuck.append(row)  # its tool is not known here, or has no compensation any more
    return todo


def _comes_first(tree: Tree, later: CallRow, row: CallRow) -> bool:
    """Whether the ledger would refuse to take ``row`` back while ``later`` stands: of one run or of a child of it."""
    parents = {run.uid: run.parent for run in tree.runs}
    uid = later.run
    for _ in tree.runs:
        if uid == row.run:
            return not row.grp or row.grp != later.grp
        uid = parents.get(uid, "")
    return False


def _is_open(session: Session, row: CallRow) -> bool:
    spec = session.spec(row.tool)
    twin = None if spec is None else spec.compensate
    if spec is None or twin is None or row.violation == "after_pivot" or row.lost_at is not None or row.shared:
        return False
    match row.state:
        case "succeeded":
            return True
        case "in_doubt":
            return may_compensate_in_doubt(spec)
        case "compensation_failed":
            return not row.comp_gave_up
        case "compensation_in_doubt":
            tried = row.comp_attempt - row.comp_from
            again = twin.idempotent and tried < twin.retry.attempts and not _without(session, spec, twin, row)
            return again or twin.probe is not None
    return False


async def compensate(session: Session, row: CallRow, done: dict[str, CallRow]) -> float:
    """Take one call back, at most once per attempt. 0: settled or passed over; less: it is not its turn, look again;
    more: not before so many seconds.
    """
    spec = session.spec(row.tool)
    assert spec is not None, "only what is known here is taken back"
    assert spec.compensate is not None, "only what can be taken back is"
    twin = spec.compensate
    while _is_open(session, row):
        wait = await _not_before(session, spec, twin, row)
        if wait > 0:
            return wait
        if row.state == "compensation_in_doubt" and not (twin.idempotent and not _without(session, spec, twin, row)):
            # Not started again without what it needs: that would call an attempt failed that may have happened.
            row, wait = await _probe_compensation(session, spec, twin, row)
            if wait > 0:
                return wait
            continue
        started = await BeginCompensation(
            row.id, session.lease.owner, session.lease.epoch, row.comp_attempt + 1,
            from_doubt=row.state == "in_doubt", seen=row,
        )  # fmt: skip
        if started is None:
            # Another thread has begun a call since we looked: it lands first.
            await Sleep(POLL_S_MIN)
            await wait_for_live(session)
            return LOOK_AGAIN
        session.memory.flight(started)
        row = done[row.id] = await _attempt(session, spec, twin, started)
        session.memory.flights.pop(row.id, None)
    return 0.0


async def _not_before(session: Session, spec: Spec, twin: Twin, row: CallRow) -> float:
    """Wait for the right moment, up to a limit; seconds that are left then."""
    if row.state == "in_doubt" and not twin.wins:
        return await wait_settled(session, spec, row)
    if row.comp_retry_at is None:
        return 0.0
    clocks = await ReadClocks()
    wait = row.comp_retry_at - clocks.wall
    if wait > session.wait_s:
        return wait
    await Sleep(max(0.0, wait))
    return 0.0


async def _attempt(session: Session, spec: Spec, twin: Twin, row: CallRow) -> CallRow:
    if without := _without(session, spec, twin, row):
        # Passed over and named, so that what was done before it is still taken back.
        return await _settle(session, row, Ended(), spec, twin, refused=json.dumps([NOT_STARTED, without]))
    if spec.guard is not None:
        held = await _guard(session, spec, row)
        if held is not None:
            return await _settle(session, row, held, spec, twin, refused=GUARDED)
    given = call_given(session, spec, row)
    kwargs, _ = twin_given(session, spec, twin, row, call=given)
    _, call = twin_given(session, spec, twin, row, call=call_of(row, spec, phase="compensate", args=given.args))
    ended = await Invoke(
        fn=twin.fn,
        kwargs=kwargs,
        is_async=twin.is_async,
        timeout=twin.timeout,
        call=call,
        lease=session.lease,
        phase="compensate",
        run=session.run,
        flight=session.memory.flights[row.id],
    )
    return await _settle(session, row, ended, spec, twin)


def _without(session: Session, spec: Spec, twin: Twin, row: CallRow) -> str:
    """Return what the compensation or its guard needs and nobody here has; "" where nothing is missing."""
    why = missing(session, spec, row, twin)
    return why or ("" if spec.guard is None else missing(session, spec, row, spec.guard))


async def _guard(session: Session, spec: Spec, row: CallRow) -> Ended | None:
    """None: nobody changed the thing since. Otherwise why it must not be overwritten."""
    assert spec.guard is not None, "only a guarded tool is guarded"
    kwargs, call = twin_given(session, spec, spec.guard, row, call=call_given(session, spec, row, phase="probe"))
    ended = await Invoke(
        fn=spec.guard.fn,
        kwargs=kwargs,
        is_async=spec.guard.is_async,
        timeout=None,
        call=call,
        lease=session.lease,
        phase="probe",
        run=session.run,
    )
    if ended.error is not None:
        return Ended(error=ended.error)
    unchanged = yes_or_no(ended.value)
    if unchanged is None:
        # A text that says who changed it is true, too: only True lets a compensation overwrite the thing.
        what = type(ended.value).__name__
        return Ended(error=TypeError(f"the guard of {spec.name} returned a {what}; it returns True or False"))
    return None if unchanged else Ended(value=False)


async def _settle(
    session: Session, row: CallRow, ended: Ended, spec: Spec, twin: Twin, *, refused: str = ""
) -> CallRow:
    clocks = await ReadClocks()
    settle = SettleCompensation(
        row.id, session.lease.owner, session.lease.epoch, row.comp_attempt, "compensated",
        boot=clocks.boot, mono=clocks.mono, seen=row,
    )  # fmt: skip
    tried = row.comp_attempt - row.comp_from
    if refused and ended.error is None:
        settle.to, settle.error, settle.gave_up = "compensation_failed", refused, True
    elif ended.in_flight:
        settle.to, settle.mono = "compensation_in_doubt", None
        settle.error = describe_error(TimeoutError(f"no answer within {twin.timeout} s"))
    elif ended.error is not None:
        settle.error = said_of(session, row, ended.error)
        doubtful = (
            judge(spec, ended.error, around=ended.around).verdict == "doubt" and not refused
        )  # a guard that broke has started nothing
        settle.to = "compensation_in_doubt" if doubtful else "compensation_failed"
        # Without the result that it asked for, another attempt ends the same way.
        settle.gave_up = tried >= twin.retry.attempts or (is_a(ended.error, ResultLost) and not doubtful)
        if not settle.gave_up:
            settle.retry_s = twin.retry.pause(tried, await Luck())
    settled = await settle
    return settled.call


async def _probe_compensation(session: Session, spec: Spec, twin: Twin, row: CallRow) -> tuple[CallRow, float]:
    assert twin.probe is not None, "a compensation without a probe of its own is a person's matter"
    answer = await ask_probe(session, spec, twin.probe, row)
    if isinstance(answer, Unknown):
        pause = PROBE_PACE.pause(min(row.probes + 1, PROBE_PACE.attempts), await Luck())
        await NoteProbe(
            row.id, row.in_question, row.probes + 1, "unknown", answer.why, next_s=pause, left_s=row.quiet_left
        )
        return row, max(POLL_S_MAX, pause)
    if isinstance(answer, Absent) and await settle_left(session, spec, row) > 0:
        left = await wait_settled(session, spec, row)
        newest = await ReadCall(row.id)
        assert newest is not None, "calls are never deleted while their run is open"
        return newest, left  # asked again when the delay is over: only then is it believed
    to = "compensated" if isinstance(answer, Happened) else "compensation_failed"
    resolved = await ResolveCall(row.id, to, "probe", "", epoch=session.lease.epoch, owner=session.lease.owner)
    return resolved, 0.0


# ---- the end ------------------------------------------------------------------------------


async def _close(session: Session, tree: Tree) -> Back:
    left = leftovers(session, tree)
    if left:
        stays = taken_by_rule(left) if session.uid == session.root else ""
        if not stays:
            return await _block(session, tree)
        return Back(await AbandonRun(session.uid, "rule", stays), await read_tree(session))
    run = await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "rolled_back")
    return Back(run, await read_tree(session))


async def _close_at_once(session: Session, tree: Tree, done: dict[str, CallRow]) -> Back | None:
    """Close a run without children of which all was taken back in one pass; None: look again.

    Whether that is all is the ledger's to say, in the transaction that closes it: nobody need look for it before.
    """
    calls = tuple(done.get(row.id, row) for row in tree.calls)
    left = replace(tree, calls=calls, locks=())
    if len(tree.runs) > 1 or any(row.state != "compensated" for row in done.values()) or leftovers(session, left):
        return None
    try:
        run = await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "rolled_back")
    except TransitionRefused:
        return None
    return Back(run, replace(left, run=run, runs=(run,)))


async def _block(session: Session, tree: Tree) -> Back:
    causes = tuple(left.cause for left in leftovers(session, tree))
    run = await CloseRun(session.uid, session.lease.owner, session.lease.epoch, "blocked", causes=causes)
    return Back(run, await read_tree(session))


async def _wait_for_forks(session: Session, tree: Tree, forks: Iterable[RunRow]) -> Back:
    """Others stand on what it did: it goes back when they have ended, or when a person says so. Doubts are settled."""
    later = await settle_all(session, tree, back=False)
    causes = tuple(under(fork, tree.run) for fork in forks)
    lease = session.lease
    run = await CloseRun(session.uid, lease.owner, lease.epoch, "blocked", causes=causes, wake_s=later)
    return Back(run, await read_tree(session))


async def _stop(session: Session, tree: Tree, again_s: float) -> Back:
    """It must wait longer than anybody wants to stand here: a worker goes on."""
    wake = min(again_s, session.lease.lease_s * 10)
    if session.uid == session.root:
        await give_back(session, wake)
    return Back(tree.run, await read_tree(session), wake)
