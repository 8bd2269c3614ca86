"""Roll a run back: settle doubts, compensate in reverse order of settling, then close the run or block it.

Also here: waiting for calls that this process still runs. ``blocked.py`` has what keeps a run from ending.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from amends.encoding.dataclass import changed, dataclass, field
from amends.encoding.ids import call_id
from amends.encoding.payloads import load_result, read_text
from amends.encoding.secret import MARK
from amends.engine.blocked import (
    NOT_STARTED,
    accepted_by_plan,
    accepted_by_rule,
    fork_obstacle,
    recorded_causes,
    rollback_obstacles,
)
from amends.engine.checkpoints import check_again
from amends.engine.compiled import is_exact
from amends.engine.doubts import (
    PROBE_PACE,
    ask_probe,
    is_repeatable,
    may_compensate_in_doubt,
    note_unknown,
    probe_failure,
    probed_seldom,
    settle_delay_left,
    settle_doubt,
    wait_settle_delay,
)
from amends.engine.outcomes import has_ended, heard, judge
from amends.engine.session import (
    POLL_S_MAX,
    POLL_S_MIN,
    Session,
    companion_args,
    compensation_args,
    describe_error,
    missing,
    read_tree,
    recorded_error,
    release_tree,
    revealed_call,
)
from amends.errors import LedgerError, ResultLost, TransitionRefused, is_a, words_of
from amends.ledger.flow import Flow
from amends.ledger.late_reports import reported_undoing
from amends.ledger.leases import work_left_s
from amends.ledger.locks import is_held_back, lock_names_of
from amends.ledger.operations import (
    AbandonRun,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    DropCall,
    ReadCall,
    ResolveCall,
    Rollback,
    SettleCall,
    SettleCompensation,
    Settled,
    Tree,
)
from amends.ledger.plain import Begun, SettledPlain, TakenBack, TurnPlain, UndonePlain
from amends.ledger.rows import CallRow, RunRow
from amends.ledger.world import (
    DrawRandom,
    Ended,
    Flight,
    Invoke,
    LazyCompensation,
    LiveCalls,
    ReadClocks,
    RunTogether,
    Sleep,
)
from amends.model import Absent, Call, Happened, NoEffect, Unknown
from amends.states import LIVE
from amends.tools.rules import yes_or_no
from amends.tools.spec import CompensationSpec, Spec

# ---- Rolling back


PASSES_MAX: Final = 1_000
"""A rollback that still finds work after so many passes is a bug of ours, not progress."""
REFUSALS_MAX: Final = 10
"""So often at most does the ledger find that something is left where this process found nothing."""
LOOK_AGAIN: Final = -1.0
_IN_DOUBT: Final = ("in_doubt", "compensation_in_doubt")
_COMPENSATED_FROM: Final = frozenset({"succeeded", "in_doubt", "compensation_failed", "compensation_in_doubt"})
GUARDED: Final = '["Guard", "somebody else changed it since; it was left as it is"]'


@dataclass(frozen=True, slots=True)
class RollbackProgress:
    """How far the rollback got: ``rolled_back``, ``blocked``, ``pivoted``, or still ``rolling_back``."""

    run: RunRow
    tree: Tree
    again_s: float | None = None


@dataclass(slots=True)
class _Ahead:
    """What was done together with the settlement of the compensation before it."""

    begun: dict[str, CallRow] = field(default_factory=dict)
    """Compensations that have begun and whose bodies did not run yet, by call."""
    closed: RunRow | None = None


async def roll_back(
    session: Session,
    *,
    by: str,
    why: str,
    person: bool = False,
    has_waited: bool = False,
    first: Rollback | None = None,
) -> RollbackProgress:
    """Compensate everything that this run did. Repeated, or after a crash, it continues where it was.

    ``has_waited``: the caller has waited for the calls that other threads and tasks of this process run. ``first``: the
    rollback as it has just begun.
    """
    session.recall.close()  # for the whole tree: what is requested again after a child was rolled back is a new call
    if not has_waited:
        await wait_if_live(session)
    refusals = 0
    for _ in range(PASSES_MAX):
        lease = session.lease
        began, first = (
            first or await BeginRollback(session.uid, by, why, person, lease.owner, lease.epoch, plain=session.plain),
            None,
        )
        tree = began.tree or await read_tree(session)
        states = {row.state for row in tree.calls}
        if not states.isdisjoint(LIVE):
            await wait_for_live(session)
            tree = await read_tree(session)
            states = {row.state for row in tree.calls}
        if began.how in ("refused", "ended"):
            return RollbackProgress(began.run, tree)
        if began.how == "forked":
            return await _wait_for_forks(session, tree, began.forks)
        if "in_doubt" in states:
            later = await settle_doubts(session, tree, back=True)
            if later is not None:
                return await _stop(session, tree, later)
            tree = await read_tree(session)
        if began.how == "deferred":
            if tree.run.pivot and tree.run.phase == "open":
                return await _block(session, tree)  # the pivot's doubt needs a person
            continue
        done: dict[str, CallRow] = {}
        ahead = _Ahead()
        again = await _one_pass(session, tree, done, ahead)
        if again is None:
            try:
                return await _close(session, tree)
            except TransitionRefused:
                # A child is open although nothing stands in it: its pivot turned out not to have happened since the rollback
                # began. The next beginning takes it in.
                refusals += 1
                if refusals == REFUSALS_MAX:
                    raise
                continue
        if again > 0:
            return await _stop(session, tree, again)
        closed = await _close_at_once(session, tree, done, ahead)
        if closed is not None:
            return closed
    raise AssertionError(f"the rollback of run {session.id} does not end")


async def settle_doubts(session: Session, tree: Tree, *, back: bool) -> float | None:
    """Settle every doubt that needs no person; return the seconds until the first that must wait, else None."""
    waits: list[float] = []
    for row in tree.calls:
        if row.state != "in_doubt":
            continue
        after = await settle_doubt(session, session.spec(row.tool), row, back=back)
        waits += await _next_look(session, after, back=back)
    return min(waits, default=None)


async def doubts_due(session: Session, tree: Tree) -> float | None:
    """Return the seconds until the first doubt is looked at again without a person; None if none is."""
    waits: list[float] = []
    for row in tree.calls:
        waits += await _next_look(session, row, back=False)
    return min(waits, default=None)


async def _next_look(session: Session, row: CallRow, *, back: bool) -> list[float]:
    """Return the seconds until this doubt is looked at again; empty if it is settled or needs a person."""
    spec = session.spec(row.tool)
    if row.state != "in_doubt" or spec is None or not await _will_retry_doubt(session, spec, row, back=back):
        return []
    clocks = await ReadClocks()
    return [max(POLL_S_MAX, (row.probe_at or clocks.wall) - clocks.wall)]


async def _will_retry_doubt(session: Session, spec: Spec, row: CallRow, *, back: bool) -> bool:
    """Return whether waiting helps: another probe, or another start of an idempotent call, will follow."""
    if spec.probe is not None and not probe_failure(row):
        return True
    blind = back and may_compensate_in_doubt(spec)
    if row.probe_at is None or blind or session.body(row) is None:
        return False  # without the body, which comes with a request, nothing is started again here
    return await is_repeatable(session, spec, row)


# ---- Compensations


async def _one_pass(session: Session, tree: Tree, done: dict[str, CallRow], ahead: _Ahead) -> float | None:
    """Compensate what can be. Return None: nothing left to do; 0: look again; more: not before so many seconds.

    ``done`` receives the calls in their final state.
    """
    todo = _compensation_order(session, tree)
    if not todo:
        return None
    while todo:
        batch = _side_by_side(todo)
        if len(batch) == 1:
            todo = todo[1:]
            again = await compensate(session, batch[0], done, ahead, _what_follows(session, tree, todo, done, batch[0]))
        else:
            begun = {row.id for row in batch}
            todo = [row for row in todo if row.id not in begun]
            again = await _compensate_together(session, batch, done)
        if again != 0.0:
            return max(again, 0.0)
    return 0.0


def _what_follows(
    session: Session, tree: Tree, todo: list[CallRow], done: dict[str, CallRow], row: CallRow
) -> BeginCompensation | CloseRun | None:
    """Return what may be recorded together with the success of the compensation of ``row``; None: nothing.

    That is the beginning of the next compensation, since its body runs at once, or after the last one the end of the run.
    """
    lease = session.lease
    if todo:
        later = todo[0]
        spec = session.spec(later.tool)
        if later.state != "succeeded" or later.grp or later.comp_retry_at is not None or spec is None:
            return None
        return BeginCompensation(
            later.id, lease.owner, lease.epoch, later.comp_attempt + 1, seen=later, remote_s=spec.remote
        )
    if len(tree.runs) > 1 or any(one.state != "compensated" for one in done.values()):
        return None
    others = [one for one in tree.calls if one.id != row.id and one.id not in done]
    if others and rollback_obstacles(session, changed(tree, {"calls": tuple(others), "locks": ()})):
        return None
    return CloseRun(session.uid, lease.owner, lease.epoch, "rolled_back", plain=session.plain)


def _side_by_side(todo: list[CallRow]) -> list[CallRow]:
    """Return what is compensated at the same time: the first, and the others of its group that share no lock with it.

    The guard of one that was settled later may hold back those that share its locks.
    """
    batch = todo[:1]
    if not batch[0].grp:
        return batch
    names = set(lock_names_of(batch))
    for row in todo[1:]:
        own = lock_names_of([row])
        if row.grp == batch[0].grp and names.isdisjoint(own):
            batch.append(row)
            names.update(own)
    return batch


async def _compensate_together(session: Session, batch: list[CallRow], done: dict[str, CallRow]) -> float:
    flows: list[Flow[float]] = [compensate(session, row, done, _Ahead()) for row in batch]
    ends = await RunTogether(flows)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    waits: list[float] = ends
    return max(waits, key=abs)


def _reversed(tree: Tree) -> list[CallRow]:
    turning = {run.uid for run in tree.runs if run.state == "rolling_back"}
    mine = [row for row in tree.calls if row.run in turning and row.kind != "read" and not row.shared]
    return sorted(mine, key=lambda row: row.settled_seq, reverse=True)


def _compensation_order(session: Session, tree: Tree) -> list[CallRow]:
    """Return what is to be compensated, the last first.

    A call is left out if a later one must be compensated before it and cannot be, in this process.
    """
    todo: list[CallRow] = []
    stuck: list[CallRow] = []
    # Only what a guard has passed over, or what is in doubt, can keep another call of its locks from its turn.
    special = [row for row in tree.calls if row.comp_guarded or row.state in _IN_DOUBT]
    for row in _reversed(tree):
        if _may_compensate(session, row) and not _rests(row, tree.now):
            if any(is_held_back(row, later) or _may_land(session, row, later) for later in special):
                continue  # named among the obstacles
            if not any(_comes_first(tree, later, row) for later in stuck):
                todo.append(row)
        elif row.state == "succeeded" and row.undoable:
            stuck.append(row)  # its tool is not known here, or has no compensation any more
    return todo


def _may_land(session: Session, row: CallRow, later: CallRow) -> bool:
    """Return whether a later setter of the same thing, or its compensation, is in doubt for a person: it may still land."""
    spec = session.spec(later.tool)
    if spec is None or later.id == row.id or later.settled_seq < row.settled_seq or _may_compensate(session, later):
        return False
    sets = spec.put if later.state == "in_doubt" else spec.compensate is not None and spec.compensate.put
    if later.state not in _IN_DOUBT or not sets:
        return False
    return not set(lock_names_of([row])).isdisjoint(lock_names_of([later]))


def _rests(row: CallRow, now: float) -> bool:
    """Return whether the probe of a compensation keeps failing and is not asked again yet."""
    is_due = row.probe_at is None or row.probe_at <= now
    return row.state == "compensation_in_doubt" and not is_due and bool(probe_failure(row))


def _comes_first(tree: Tree, later: CallRow, row: CallRow) -> bool:
    """Return whether the ledger refuses to compensate ``row`` before ``later``: one run, or a child of it."""
    parents = {run.uid: run.parent for run in tree.runs}
    uid = later.run
    for _ in tree.runs:
        if uid == row.run:
            return not row.grp or row.grp != later.grp
        uid = parents.get(uid, "")
    return False


def _may_compensate(session: Session, row: CallRow) -> bool:
    if row.state not in _COMPENSATED_FROM:
        return False
    spec = session.spec(row.tool)
    compensation = None if spec is None else spec.compensate
    if spec is None or compensation is None or row.violation == "after_pivot" or row.lost_at is not None or row.shared:
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
            again = tried < compensation.retry.attempts and _may_repeat(session, spec, compensation, row)
            return again or compensation.probe is not None or bool(reported_undoing(row))
    return False


async def compensate(
    session: Session, row: CallRow, done: dict[str, CallRow], ahead: _Ahead,
    then: BeginCompensation | CloseRun | None = None,
) -> float:  # fmt: skip
    """Compensate one call, starting each attempt at most once.

    Returns 0: settled or skipped; less than 0: it is not its turn, look again; more: not before so many seconds.
    ``then``: what is recorded together with its success.
    """
    spec = session.spec(row.tool)
    assert spec is not None, "only a known tool is compensated"
    assert spec.compensate is not None, "only a tool with a compensation is compensated"
    compensation = spec.compensate
    if (begun := ahead.begun.pop(row.id, None)) is not None:
        row = done[row.id] = await _attempt(session, spec, compensation, begun, ahead, then)
        session.memory.flights.pop(row.id, None)
    while _may_compensate(session, row):
        if row.state == "compensation_in_doubt" and (told := reported_undoing(row)):
            # Its performer reported it while the attempt had an owner, who never came to record it.
            row = done[row.id] = await ResolveCall(
                row.id, told, "evidence", "", epoch=session.lease.epoch, owner=session.lease.owner
            )
            continue
        wait = await _not_before(session, spec, compensation, row)
        if wait > 0:
            return wait
        if row.state == "compensation_in_doubt" and not _may_repeat(session, spec, compensation, row):
            # Not started again without what it needs: that would record an attempt as failed that may have happened.
            row, wait = await _probe_compensation(session, spec, compensation, row)
            if probe_failure(row):
                return 0.0  # a person is asked, and it is passed over
            if wait > 0:
                return wait
            continue
        started = await BeginCompensation(
            row.id, session.lease.owner, session.lease.epoch, row.comp_attempt + 1,
            from_doubt=row.state == "in_doubt", seen=row, remote_s=spec.remote,
        )  # fmt: skip
        if started is None:
            # Another thread has started a call meanwhile: wait for it first.
            await Sleep(POLL_S_MIN)
            await wait_for_live(session)
            return LOOK_AGAIN
        session.memory.flight(started)
        row = done[row.id] = await _attempt(session, spec, compensation, started, ahead, then)
        session.memory.flights.pop(row.id, None)
    return 0.0


async def _not_before(session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow) -> float:
    """Wait for the right moment, up to a limit; return the seconds that are left then."""
    if row.state == "in_doubt" and not compensation.wins:
        return await wait_settle_delay(session, spec, row)
    if row.state == "compensation_in_doubt" and compensation.put:
        # It sets a value: the start that was lost would overwrite what comes after it.
        left = await wait_settle_delay(session, spec, row)
        if left > 0:
            return left
    if row.comp_retry_at is None:
        return 0.0
    clocks = await ReadClocks()
    wait = row.comp_retry_at - clocks.wall
    if wait > session.wait_s:
        return wait
    await Sleep(max(0.0, wait))
    return 0.0


async def _attempt(
    session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow, ahead: _Ahead,
    then: BeginCompensation | CloseRun | None,
) -> CallRow:  # fmt: skip
    if without := _lacks(session, spec, compensation, row):
        # Skip it and name it, so that what was done before it is still compensated.
        return await _settle(session, row, Ended(), spec, compensation, refused=json.dumps([NOT_STARTED, without]))
    if spec.guard is not None:
        held = await _guard(session, spec, row)
        if held is not None:
            return await _settle(session, row, held, spec, compensation, refused=GUARDED, guarded=True)
    if session.anchor is not None and not session.anchor.is_compared:
        await _compare_again(session, spec, compensation, row)
    kwargs, call = compensation_args(session, spec, compensation, row)
    ended = await Invoke(
        fn=compensation.fn,
        kwargs=kwargs,
        is_async=compensation.is_async,
        timeout=compensation.timeout,
        call=call,
        lease=session.lease,
        phase="compensate",
        run=session.run,
        flight=session.memory.flights[row.id],
    )
    return await _settle(session, row, heard(ended, call), spec, compensation, ahead=ahead, then=then)


async def _compare_again(session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow) -> None:
    """Compare the ledger with its anchor once more, since another server may have answered this start.

    One that is behind may have forgotten that this compensation was done. Then, or if the anchor cannot be read, settle it
    as certainly never sent, and raise: it is tried again when a person has reconciled the ledger.
    """
    try:
        await check_again(session.anchor)
    except LedgerError as broken:
        await _settle(session, row, Ended(error=NoEffect(words_of(broken))), spec, compensation)
        session.memory.flights.pop(row.id, None)
        raise


def _may_repeat(session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow) -> bool:
    """Return whether a compensation that may have happened may be started again here."""
    return compensation.idempotent and not _lacks(session, spec, compensation, row)


def _lacks(session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow) -> str:
    """Return what the compensation or its guard needs and this process does not have; "" if nothing is missing."""
    why = missing(session, spec, row, compensation)
    return why or ("" if spec.guard is None else missing(session, spec, row, spec.guard))


async def _guard(session: Session, spec: Spec, row: CallRow) -> Ended | None:
    """Return None if nobody changed the thing since; otherwise why it must not be overwritten."""
    assert spec.guard is not None, "only a guarded tool is guarded"
    kwargs, call = companion_args(session, spec, spec.guard, row, call=revealed_call(session, spec, row, phase="probe"))
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
        # A text that says who changed it is truthy, too: only True lets a compensation overwrite the thing.
        what = type(ended.value).__name__
        return Ended(error=TypeError(f"the guard of {spec.name} returned a {what}; it returns True or False"))
    return None if unchanged else Ended(value=False)


async def _settle(
    session: Session, row: CallRow, ended: Ended, spec: Spec, compensation: CompensationSpec, *, refused: str = "",
    guarded: bool = False, ahead: _Ahead | None = None, then: BeginCompensation | CloseRun | None = None,
) -> CallRow:  # fmt: skip
    settle = SettleCompensation(
        row.id, session.lease.owner, session.lease.epoch, row.comp_attempt, "compensated", seen=row, guarded=guarded
    )
    if refused or ended.in_flight or ended.error is not None:  # what is over does not need to know since when
        clocks = await ReadClocks()
        settle.boot, settle.mono = clocks.boot, clocks.mono
    tried = row.comp_attempt - row.comp_from
    if refused and ended.error is None:
        settle.to, settle.error, settle.gave_up = "compensation_failed", refused, True
    elif ended.in_flight:
        settle.to, settle.mono = "compensation_in_doubt", None
        settle.error = describe_error(TimeoutError(f"no answer within {compensation.timeout} s"))
    elif ended.error is not None:
        settle.error = recorded_error(session, row, ended.error)
        # A guard that raised has started nothing.
        doubtful = judge(spec, ended.error, around=ended.around, is_body=False).verdict == "doubt" and not refused
        settle.to = "compensation_in_doubt" if doubtful else "compensation_failed"
        # Without the result that it needs, another attempt would end the same way.
        settle.gave_up = tried >= compensation.retry.attempts or (is_a(ended.error, ResultLost) and not doubtful)
        settle.untried = is_a(ended.error, NoEffect) and not ended.error.is_try
        settle.gave_up = settle.gave_up and not settle.untried
        if not settle.gave_up:
            starts = row.comp_attempt if settle.untried else tried
            settle.retry_s = compensation.retry.pause(starts, await DrawRandom())
        if doubtful and not has_ended(ended.error) and settle.mono is not None:
            settle.mono += work_left_s(row)
    if ahead is not None and settle.to == "compensated":
        settle.then = then
    settled = await settle
    after = settled.then
    if ahead is not None and isinstance(after, CallRow):
        session.memory.flight(after)
        ahead.begun[after.id] = after
    elif ahead is not None and isinstance(after, RunRow):
        ahead.closed = after
    return settled.call


async def _probe_compensation(
    session: Session, spec: Spec, compensation: CompensationSpec, row: CallRow
) -> tuple[CallRow, float]:
    assert compensation.probe is not None, "a compensation without a probe of its own is left to a person"
    answer = await ask_probe(session, spec, compensation.probe, row)
    if isinstance(answer, Unknown):
        pause = PROBE_PACE.pause(min(row.probes + 1, PROBE_PACE.attempts), await DrawRandom())
        row = await note_unknown(row, answer, pause=pause, left_s=row.quiet_left)
        return row, max(POLL_S_MAX, pause)
    if isinstance(answer, Absent) and await settle_delay_left(session, spec, row) > 0:
        left = await wait_settle_delay(session, spec, row)
        newest = await ReadCall(row.id)
        assert newest is not None, "calls are never deleted while their run is open"
        return newest, left  # probed again when the delay is over: only then is the answer believed
    to = "compensated" if isinstance(answer, Happened) else "compensation_failed"
    resolved = await ResolveCall(row.id, to, "probe", "", epoch=session.lease.epoch, owner=session.lease.owner)
    return resolved, 0.0


# ---- The short way: a run whose calls were all plain


_UNSAID: Final = {
    "made": None, "spent": None, "until": None, "touched": False, "waits": 0, "is_stuck": False, "is_over": False,
    "sent": False, "doubted": False, "goes_on": False,
}  # fmt: skip


class PlainUndo(LazyCompensation):
    """A compensation of the short way: what is in flight, and the compensation as its function may ask for it."""

    __slots__ = ("begun", "compensation", "doubted", "goes_on", "sent", "session", "spec")

    sent: bool
    doubted: bool
    goes_on: bool

    def __init__(self, session: Session, spec: Spec, compensation: CompensationSpec, begun: Begun) -> None:
        self.session, self.spec, self.compensation, self.begun = session, spec, compensation, begun

    def __getattr__(self, name: str) -> Any:
        if name == "row":
            self.row = row = self.begun.row
            return row
        if name == "passed":
            self.passed = []
            return self.passed
        if name in _UNSAID:
            return _UNSAID[name]
        raise AttributeError(name)

    def whole(self) -> Call:
        """Return the call itself; always the same object."""
        if self.made is None:
            self.made = compensation_args(self.session, self.spec, self.compensation, self.row)[1].whole()
        return self.made

    @property
    def call(self) -> CallRow:
        """The call whose compensation is in flight."""
        return self.row

    @property
    def id(self) -> str:
        """The id of the call."""
        return call_id(self.begun.settled.started.op.number)

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.begun.settled.started.op.run.run_id

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.begun.settled.started.op.tool.name

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return 1

    def kwargs(self) -> dict[str, Any]:
        """Return the arguments of the compensation."""
        compensation, result_type = self.compensation, self.spec.result_type
        if compensation.params == ("result",) and result_type is not Any:
            text, kinds = self.begun.settled.result, self.begun.settled.started.op.tool.result_kinds
            value = read_text(text)  # a plain result has no class in it
            is_plain = kinds is not None and is_exact(value, kinds)
            return {"result": value if is_plain else load_result(text, result_type)}
        return compensation_args(self.session, self.spec, compensation, self.row)[0]


async def take_back_plainly(session: Session, *, by: str, why: str) -> int | Rollback | None:
    """Roll back a run about which nothing is unusual; return how many calls were compensated.

    Else something is unusual, and ``roll_back`` goes on from where it is, with the answer if there is one. The ledger is asked
    for the rollback and its first compensation at once, and it does so only if it has the very calls that this process
    saw succeed, and nothing else to take back. So neither reads nor compares rows.
    """
    left = _known_effects(session)
    if not left or session.plain is None:
        return None
    session.recall.close()
    count, flights = len(left), session.memory.flights
    answer: Any = await TurnPlain(session.plain, by, why, tuple(left))
    while type(answer) is Begun:
        op = left.pop().started.op
        id, spec = call_id(op.number), session.specs[op.tool.name]
        compensation = spec.compensate
        assert compensation is not None, "only a tool with a compensation is taken back"
        undo: Any = PlainUndo(session, spec, compensation, answer)  # it has all that a flight has
        flights[id] = undo
        if session.anchor is not None and not session.anchor.is_compared:
            await _compare_again(session, spec, compensation, undo.row)
        ended = await Invoke(
            compensation.fn, undo.kwargs(), compensation.is_async, compensation.timeout, undo, session.lease, "compensate",
            session.run, None, undo,
        )  # fmt: skip
        ended = heard(ended, undo)
        if ended.error is not None or ended.in_flight:
            await _settle(session, answer.row, ended, spec, compensation)
            flights.pop(id, None)
            return None
        answer = await UndonePlain(answer, left[-1] if left else None, why)
        flights.pop(id, None)
    if type(answer) is TakenBack:
        return count
    # As the general operations answer: what they have begun is finished here, then the general way goes on.
    begun = answer.then if isinstance(answer, Settled) else answer.begun
    if isinstance(begun, CallRow):
        session.memory.flight(begun)
        await compensate(session, begun, {}, _Ahead({begun.id: begun}))
        return None
    if isinstance(begun, RunRow):
        return count
    return answer if isinstance(answer, Rollback) else None


def _known_effects(session: Session) -> list[SettledPlain]:
    """Return the calls that this process saw succeed, in the order of settling; empty: they need the general way."""
    run, recall = session.plain, session.recall
    if run is None or not run.takes_back or recall.closed or recall.rows or not recall.plain:
        return []
    effects = recall.settled()
    for settled in effects:
        op = settled.started.op
        spec = session.specs.get(op.tool.name)
        compensation = None if spec is None else spec.compensate
        if spec is None or compensation is None or spec.guard is not None or MARK in op.args or MARK in settled.result:
            return []
        if compensation.params != ("result",) and missing(session, spec, settled.row, compensation):
            return []
    return effects


# ---- Closing


async def _close(session: Session, tree: Tree) -> RollbackProgress:
    left = rollback_obstacles(session, tree)
    if left:
        stays, by = "", "rule"
        if session.uid == session.root:
            stays = accepted_by_rule(session.id, left)
            stays, by = (stays, by) if stays else (accepted_by_plan(tree.run, left), "plan")
        if not stays:
            return await _block(session, tree)
        return RollbackProgress(await AbandonRun(session.uid, by, stays), await read_tree(session))
    lease = session.lease
    run = await CloseRun(session.uid, lease.owner, lease.epoch, "rolled_back", plain=session.plain)
    if len(tree.runs) == 1 and not (
        tree.locks or tree.approvals
    ):  # nothing else can have changed: this process owns the run
        return RollbackProgress(run, changed(tree, {"run": run, "runs": (run,)}))
    return RollbackProgress(run, await read_tree(session))


async def _close_at_once(
    session: Session, tree: Tree, done: dict[str, CallRow], ahead: _Ahead
) -> RollbackProgress | None:
    """Close a run without children if all of it was compensated in one pass; None: look again.

    The ledger checks in the closing transaction that nothing is left: no flow need look for it before.
    """
    calls = tuple(done.get(row.id, row) for row in tree.calls)
    if ahead.closed is not None:
        ended = {"calls": calls, "locks": (), "run": ahead.closed, "runs": (ahead.closed,)}
        return RollbackProgress(ahead.closed, changed(tree, ended))
    left = changed(tree, {"calls": calls, "locks": ()})
    if (
        len(tree.runs) > 1
        or any(row.state != "compensated" for row in done.values())
        or rollback_obstacles(session, left)
    ):
        return None
    lease = session.lease
    try:
        run = await CloseRun(session.uid, lease.owner, lease.epoch, "rolled_back", plain=session.plain)
    except TransitionRefused:
        return None
    return RollbackProgress(run, changed(left, {"run": run, "runs": (run,)}))


async def _block(session: Session, tree: Tree) -> RollbackProgress:
    causes = recorded_causes(session.id, [left.cause for left in rollback_obstacles(session, tree)])
    again_s, lease = probed_seldom(session, tree), session.lease
    run = await CloseRun(session.uid, lease.owner, lease.epoch, "blocked", causes=causes, wake_s=again_s)
    return RollbackProgress(run, await read_tree(session))


async def _wait_for_forks(session: Session, tree: Tree, forks: Iterable[RunRow]) -> RollbackProgress:
    """Block a run that forks depend on until they have ended or a person decides; settle its doubts meanwhile."""
    later = await settle_doubts(session, tree, back=False)
    if later is None:
        later = probed_seldom(session, await read_tree(session))
    causes = recorded_causes(session.id, [fork_obstacle(fork, tree.run) for fork in forks])
    lease = session.lease
    run = await CloseRun(session.uid, lease.owner, lease.epoch, "blocked", causes=causes, wake_s=later)
    return RollbackProgress(run, await read_tree(session))


async def _stop(session: Session, tree: Tree, again_s: float) -> RollbackProgress:
    """Stop here and let a worker continue: the wait is too long."""
    wake = min(again_s, session.lease.lease_s * 10)
    if session.uid == session.root:
        await release_tree(session, wake)
    return RollbackProgress(tree.run, await read_tree(session), wake)


# ---- Waiting for calls that this process still runs


STOPPED: Final = '["Cancelled", "its flow was stopped"]'


async def wait_if_live(session: Session, *, patient: bool = False) -> None:
    """Wait for the calls that other threads and tasks of this process run, if there are any.

    Calls without a flow stay as they are: the caller finds them in what it reads next.
    """
    if await LiveCalls(session.uid):
        await wait_for_live(session, patient=patient)


async def wait_for_live(session: Session, *, patient: bool = False) -> None:
    """Wait for the calls that other threads and tasks of this process run, then settle those without a flow.

    ``patient``: wait however long they take, as closing a block does. A body that must not take long needs a timeout.
    """
    waited, pause = 0.0, POLL_S_MIN
    while True:
        seen = {row.id for row in (await read_tree(session)).calls if row.state in LIVE or row.is_reading}
        if not await LiveCalls(session.uid):
            return await _settle_orphans(session, seen)
        if not patient and waited >= session.wait_s:
            return None
        await Sleep(pause)
        waited, pause = waited + pause, min(pause * 2, POLL_S_MAX)


async def clean_up_stopped_flow(session: Session) -> None:
    """Clean up after a flow that ended or recovered this run was stopped by an interrupt, an exit or a cancellation.

    Turn what it had started into doubt and release the tree, so that recovery goes on at once and not after a lease.
    While other threads of this process still run calls of the run, it stays theirs.
    """
    if await LiveCalls(session.uid):
        return
    live = {row.id for row in (await read_tree(session)).calls if row.state in LIVE or row.is_reading}
    await _settle_orphans(session, live)
    if session.uid == session.root:
        await release_tree(session, 0.0)


async def _settle_orphans(session: Session, seen: set[str]) -> None:
    """Settle calls that no flow runs any more.

    Their flow was stopped (an interrupt, a cancellation) and could not do it.

    They were seen before the last flow ended and are still there after it: a call that another thread has started since
    then is not among them.
    """
    if not seen:
        return
    clocks = await ReadClocks()
    owner, epoch = session.lease.owner, session.lease.epoch
    for row in (await read_tree(session)).calls:
        if row.id not in seen:
            continue
        if row.is_reading:  # it never started
            await DropCall(row.id, owner, epoch, "cancelled")
            continue
        flight = _flight_of(session, row)
        mono = None if flight is not None and flight.goes_on else clocks.mono + work_left_s(row)
        if row.state == "started":
            to = "failed" if row.kind == "read" else "in_doubt"
            await SettleCall(
                row.id, owner, epoch, row.attempt, to, why="cancelled", error=STOPPED, boot=clocks.boot, mono=mono
            )
        elif row.state == "compensating":
            undo = SettleCompensation(
                row.id, owner, epoch, row.comp_attempt, "compensation_in_doubt", error=STOPPED, boot=clocks.boot,
                mono=mono,
            )  # fmt: skip
            # Stopped in its guard, for example: it was never started, and may be started at once.
            if flight is not None and not flight.sent:
                undo.to, undo.retry_s = "compensation_failed", 0.0
            await undo


def _flight_of(session: Session, row: CallRow) -> Flight | None:
    """Return what this process knows of the very attempt that is recorded as live."""
    flight = session.memory.flights.pop(row.id, None)
    begun = None if flight is None else flight.call
    if begun is None or (begun.attempt, begun.comp_attempt) != (row.attempt, row.comp_attempt):
        return None
    return flight
