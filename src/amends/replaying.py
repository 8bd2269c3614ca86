"""Replaying, for both colours: reading the record, and a driver that starts nothing and writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from amends import people
from amends.canonical import decode
from amends.engine.recorded import Record, read_record
from amends.engine.replay import Replay, as_staged, blocked_by, recorded_call
from amends.engine.session import Ask, Session, call_of
from amends.engine.telling import report_of
from amends.engine.unlike import clock_past_end, no_such_child, other_end, other_input
from amends.engine.values import clock_stopped, recorded_values
from amends.errors import Diverged, ReplayDenied, RolledBack, RunBlocked, RunEnded, UsageError, Waiting
from amends.flow import Flow, Op
from amends.hiding import Said, input_said
from amends.hub import Hub, View
from amends.ledger import ReadEvents, ReadRun, SearchCalls, Tree
from amends.model import Call
from amends.ops import Lease
from amends.phrases import cut, described
from amends.rebuilt import error_of
from amends.record import changed
from amends.report import Report
from amends.rows import CallRow, EventRow, RunRow
from amends.valueops import NoteValue

T = TypeVar("T")
Source: TypeAlias = tuple[Record, dict[str, CallRow]]
"""A record, and the calls of other runs that answered some of its requests, by key."""
EVENTS_PAGE: Final = 5_000
PAGES_MAX: Final = 100_000
CALLS_PAGE: Final = 500
CALL_PAGES_MAX: Final = 200
"""How far back the ledger is looked through for a call of another run that answered this one."""
NAMED_MAX: Final = 5
WHY_CHARS_MAX: Final = 500
NEW_CHILD: Final = "child_"
"""How the made-up name of a child run begins that its program gave none."""


# ---- the record ---------------------------------------------------------------------------


async def read_from_ledger(view: View, run_id: str) -> Record:
    """One run's tree and all its events."""
    tree = people.found(await ReadRun(view.tenant or "", run_id), run_id)
    events: list[EventRow] = []
    after = 0
    for _ in range(PAGES_MAX):
        page = await ReadEvents(None, tree.run.root, after, EVENTS_PAGE)
        events += page
        if len(page) < EVENTS_PAGE:
            break
        after = page[-1].seq
    return read_record(tree, events)


async def read(hub: Hub, view: View, run_id: str) -> Source:
    """What a replay of this run needs, read before it begins: during it nobody asks the ledger."""
    record = await read_from_ledger(view, run_id)
    if record.run.forked_from:  # what it had read before it was forked stands in the record of another run
        record.values = await recorded_values(hub.reader(record.run))
    return record, await calls_of_ledger(hub, record.tree)


def unpacked(hub: Hub, bundle: bytes, run_id: str = "") -> Source:
    """The same from an exported bundle; ``run_id``: which of its runs, where it has several."""
    from amends.bundle import unpack  # here: who replays from a ledger needs no zips

    if hub.hides:
        hub.ready()  # what is hidden is compared by commitments, which take the ledger's key
    trees = unpack(bundle)
    newest = {tree.root.id: tree for tree in sorted(trees, key=lambda tree: tree.root.generation)}
    ids = [run_id] if run_id in newest else list(newest)
    if len(ids) != 1 or (run_id and run_id not in newest):
        has = ", ".join(list(newest)[:NAMED_MAX])
        raise UsageError(f"the bundle has {has}: which one?", hint="export one run, or name one of these")
    chosen = newest[ids[0]]
    others = {row.key: row for tree in trees if tree is not chosen for row in tree.calls if row.scope == "ledger"}
    return _opened(hub, chosen.runs[0], chosen), others


def runs_in(bundle: bytes) -> list[str]:
    """The ids of the runs that an exported bundle has, without those inside them."""
    from amends.bundle import unpack

    return list(dict.fromkeys(tree.root.id for tree in unpack(bundle)))


def _opened(hub: Hub, root: RunRow, found: Any) -> Record:
    """One tree of a bundle as the ledger that wrote it would read it, if this process has its keys."""
    rows = (found.runs, found.calls, found.events, found.approvals)
    runs, calls, events, approvals = rows if hub.hiding.sealing is None else hub.hiding.sealing.opened(rows)
    tree = Tree(runs[0], tuple(runs), tuple(calls), root.closed_at or root.created_at, (), tuple(approvals))
    return read_record(tree, events)


async def calls_of_ledger(hub: Hub, tree: Tree) -> dict[str, CallRow]:
    """Calls of other runs that may have answered this one, by key: of tools that are once in the ledger."""
    tools = [spec.name for spec in hub.specs.values() if spec.scope == "ledger"]
    found: dict[str, CallRow] = {}
    for tool in tools:
        before: int | None = None
        for _ in range(CALL_PAGES_MAX):
            page = await SearchCalls(tree.run.tenant, (), before, CALLS_PAGE, tool)
            for row in page:
                if row.root != tree.run.root and row.result is not None:
                    found.setdefault(row.key, row)
            if len(page) < CALLS_PAGE:
                break
            before = page[-1].seq
    return found


def begun(record: Record, others: dict[str, CallRow], *, until: str | None, strict: bool) -> Replay:
    """A replay of this record from its beginning."""
    if until is not None and until not in record.by_call:
        raise UsageError(f"run {record.run.id} has no call {until!r} to replay up to")
    replay = Replay(record, until=until or "", strict=strict)
    replay.rebuild = error_of

    def answered_elsewhere(ask: Ask) -> CallRow | None:
        row = others.get(ask.key)
        return row if row is not None and row.ident == ask.ident else None

    replay.lookup = answered_elsewhere
    return replay


def session_of(hub: Hub, replay: Replay) -> Session:
    """The recorded run as the engine sees it: with its own names, so that requests have theirs, and no lease."""
    row = replay.record.run
    lease = Lease(row.root, "", -1, hub.lease_s, 0.0, lost=True)
    session = hub.session(row, lease, resumed=replay.record.resumed)
    session.budgets, session.rules, session.tell, session.anchor = (), (), None, None
    session.readings.recorded = replay.record.values
    session.state = "open"
    session.recall.record = partial(recorded_call, replay)
    return session


# ---- a driver -----------------------------------------------------------------------------


def refuse(replay: Replay, op: Op[Any]) -> NoReturn:
    """What a flow of a replay asks of the world, it does not get."""
    if isinstance(op, NoteValue):
        if replay.had_ended(op.run):
            raise clock_stopped(replay.record.runs[op.run].id, "committed")
        replay.stop(clock_past_end(replay.record, op.run))
    raise AssertionError(f"a replay starts nothing and writes nothing: {type(op).__name__}")


def in_turn(replay: Replay, flows: Sequence[Flow[Any]], perform: Callable[[Op[Any]], Any]) -> list[Any]:
    """Flows that ran side by side, in one thread: one that must wait for its turn lets the others go on."""
    ends: list[Any] = [None] * len(flows)
    waiting: dict[int, Op[Any] | None] = dict.fromkeys(range(len(flows)))
    while waiting:
        replay.side_by_side = len(waiting)
        for place, op in list(waiting.items()):
            try:
                waiting[place] = flows[place].send(None if op is None else perform(op))
            except StopIteration as stop:
                ends[place] = stop.value
                del waiting[place]
            except Exception as error:
                ends[place] = error
                del waiting[place]
    replay.side_by_side = 0
    return ends


# ---- runs inside the run ------------------------------------------------------------------


def child_row(replay: Replay, session: Session, id: str | None, input: object) -> tuple[RunRow, Session]:
    """The recorded run inside this one that is opened next by this name; raises ``Diverged`` where there is none."""
    replay.check()
    said = input_said(session.veil, session.tenant, input)
    record = replay.record
    name = id or (f"child-{said.digest[:12]}" if said.digest else "")
    full = f"{session.id}/{name}"
    row = _existing(replay, full) if name else None
    if row is not None:
        _check_input(replay, row, said)
        inner = session.child(row.uid, row.id, generation=row.generation, resumed=True, state="open", given=input)
        obstacle = replay.resume(row.uid)
        replay.undone.discard(row.uid)
        if obstacle is not None:
            raise blocked_by(replay, inner, obstacle)
        if not _was_rolled_back(replay, row):
            return row, inner
    if replay.had_ended(session.uid):
        words = f"run {session.id} takes no new child: it is committed, on its way to commit"
        raise RunEnded(words, state="committed", run_id=session.id)
    row = _next_child(replay, session, full, is_named=bool(name))
    if row is None:
        for run in (record.runs[session.uid], record.run):
            if replay.is_pivoting(run.uid):  # refused then, of which nothing is written down, and refused now
                words = f"run {run.id} takes no new child: its pivot is in flight"
                raise RunEnded(words, state="open", run_id=run.id)
        replay.stop(no_such_child(record, session, full))
    _check_input(replay, row, said)
    replay.pass_by(row.uid, record.moves[row.uid][0])
    inner = session.child(row.uid, row.id, generation=row.generation, resumed=False, state="open", given=input)
    return row, inner


def _existing(replay: Replay, full: str) -> RunRow | None:
    """Return the newest run of this name that was there when the program had come as far as it has."""
    found = [run for run in replay.record.runs.values() if run.id == full and replay.move_of(run.uid) is not None]
    newest = max(found, key=lambda run: run.generation, default=None)
    return None if newest is None or _was_rolled_back(replay, newest) else newest


def _was_rolled_back(replay: Replay, run: RunRow) -> bool:
    move = replay.move_of(run.uid)
    return move is not None and move.to_state == "rolled_back"


def _next_child(replay: Replay, session: Session, full: str, *, is_named: bool) -> RunRow | None:
    """Return the run that the replayed execution created next by this name inside this one."""
    record = replay.record
    inside = [run for run in record.runs.values() if run.parent == session.uid]
    if is_named:
        named = [run for run in inside if run.id == full]
    else:
        named = [run for run in inside if run.id.startswith(f"{full}{NEW_CHILD}")]
    new = [run for run in named if replay.move_of(run.uid) is None]
    return min(new, key=lambda run: (run.generation, record.opened_at(run.uid)), default=None)


def _check_input(replay: Replay, row: RunRow, said: Said) -> None:
    if row.input_digest != said.digest:
        recorded = decode(row.input) if row.input else None
        replay.stop(other_input(replay.record, row.id, recorded, said.shown))


def left(replay: Replay, session: Session, error: BaseException | None) -> None:
    """A run of the record is left as it was then: what was taken back is free again, and what blocked it is raised."""
    record, uid = replay.record, session.uid
    if not session.above:
        replay.around = False
        # With its program's own history the record is of all executions: the next one opens the run once more.
        replay.opened = replay.opened and not (isinstance(error, Waiting) and record.run.history)
    replay.raised = replay.raised or (error is not None and not session.above)
    if isinstance(error, Waiting | Diverged | ReplayDenied) or (error is not None and not isinstance(error, Exception)):
        return
    if session.above and (replay.had_ended(uid) or uid in replay.undone):
        return  # it only answered, or its end came before
    place = replay.place_of(uid)
    end = record.end_after(uid, place)
    _check_end(replay, session, error, place, end)
    if end is None:
        return
    if session.above:
        replay.pass_by(uid, end)
    if end.to_state == "blocked" and (error is None or end.frm != "pivoted"):
        raise blocked_by(replay, session, end) from error


def _check_end(
    replay: Replay, session: Session, error: BaseException | None, place: float, end: EventRow | None
) -> None:
    """A block that ends otherwise than then is a divergence, whatever the program around it makes of its error."""
    record, uid = replay.record, session.uid
    if replay.over:
        return
    then = record.left_by(uid, place) if session.above else ""
    if error is None and then:
        replay.stop(other_end(record, session.id, f"ended by {then}", "ended without an error"))
    if error is not None and end is not None and end.to_state == "committed" and not record.runs[uid].pivot:
        now = cut(f"ended by {described(error)}", WHY_CHARS_MAX)
        replay.stop(other_end(record, session.id, "committed", now))


def open_again(hub: Hub, replay: Replay, session: Session, id: str | None, input: object, *, block: bool) -> bool:
    """Whether ``rt.run(...)`` inside a replay opens the run that is replayed: its program does that itself, once.

    Once more where it has let the run go and went on with it, as a server does with each request. Raises ``Diverged``
    when it is opened by another name, or with another input.
    """
    if replay.opened:
        return False
    replay.check()
    row = replay.record.run
    if id is not None and id != row.id:
        replay.stop(no_such_child(replay.record, session, id))
    said = input_said(hub.veil, row.tenant, input)
    if said.digest != row.input_digest:
        recorded = decode(row.input) if row.input else None
        replay.stop(other_input(replay.record, row.id, recorded, said.shown))
    replay.opened, replay.around, replay.over = True, block, False
    return True


# ---- what a run tells of itself -----------------------------------------------------------


def report_now(hub: Hub, replay: Replay) -> Report:
    """What the run had done when its program had come as far as it has; after its end, what became of it."""
    record, tree = replay.record, replay.record.tree
    if not replay.over:
        seen = {entry.row.id for entry in record.entries if entry.row is not None and (entry.old or entry.asks)}
        runs = tuple(run for run in tree.runs if not run.parent or replay.move_of(run.uid) is not None)
        root = changed(runs[0], {"state": state_now(replay, runs[0].uid), "output": "", "goal": "", "closed_at": None})
        calls = tuple(row for row in tree.calls if row.id in seen)
        tree = Tree(root, (root, *runs[1:]), calls, tree.now, (), tree.approvals)
    return report_of(hub.reader(record.run), tree, ledger=hub.store.url)


def report_named(hub: Hub, replay: Replay, run_id: str) -> Report | None:
    """What ``rt.report`` says of the run that is replayed; None: it is about another one."""
    if run_id != replay.record.run.id:
        return None
    if not (replay.opened or replay.asked or replay.record.resumed):
        raise UsageError(f"there is no run {run_id!r} in this ledger")
    return report_now(hub, replay)


def taken_back(hub: Hub, replay: Replay, session: Session, why: str) -> RolledBack | RunBlocked:
    """The end that a program asked for itself."""
    record, uid = replay.record, session.uid
    replay.raised = True
    end = record.end_after(uid, replay.place_of(uid))
    if end is not None and session.above:
        replay.pass_by(uid, end)
        replay.undone.add(uid)
    if end is not None and end.to_state == "blocked":
        return blocked_by(replay, session, end)
    if end is not None and end.to_state == "committed":
        replay.stop(other_end(record, session.id, "committed", f"was taken back ({why})"))
    replay.over = replay.over or not session.above
    count = sum(row.state == "compensated" for row in record.tree.calls if uid == record.run.uid or row.run == uid)
    words = f"run {session.id} was taken back ({why}): {count} call{'' if count == 1 else 's'} compensated"
    return RolledBack(words, report=report_now(hub, replay), run_id=session.id)


def staged_now(hub: Hub, replay: Replay, call_id: str) -> Call:
    """A staged call as it stood when the program had come as far as it has."""
    entry = replay.record.by_call[call_id]
    row = entry.row
    assert row is not None, "a staged call is a call"
    landed = replay.reached >= entry.landed_at or (replay.over and row.state == "succeeded")
    return call_of(row if landed else as_staged(row), hub.specs.get(row.tool))


def state_now(replay: Replay, uid: str) -> str:
    """The state of a run as far as the program has come."""
    if replay.over:
        return replay.record.runs[uid].state
    return replay.run_state(uid)
