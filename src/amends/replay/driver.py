"""The driver of a replay, for both colours: it reads the record, and starts and writes nothing.

It also denies the replayed program the network, other processes and the ledger (the last section).
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import re
import sys
import threading
import weakref
from ast import literal_eval
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from amends.drivers.context import guards
from amends.drivers.event_loop import is_on_loop
from amends.encoding.dataclass import changed
from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED
from amends.engine.recorded_values import clock_stopped, recorded_values
from amends.engine.reports import report_of
from amends.engine.session import Ask, Session, call_of, error_parts
from amends.errors import (
    INCOMPLETE,
    Diverged,
    Error,
    LedgerSealed,
    ReplayDenied,
    RolledBack,
    RunBlocked,
    RunEnded,
    RunNotFound,
    ToolFailed,
    UsageError,
    Waiting,
    cut,
    described,
    is_a,
    note_on,
    words_of,
)
from amends.host import runs
from amends.host.host import Host, View
from amends.host.redaction import Said, recorded_input
from amends.ledger.flow import Flow, Op
from amends.ledger.leases import Lease
from amends.ledger.operations import NoteValue, ReadEvents, ReadRun, SearchCalls, Tree
from amends.ledger.rows import CallRow, EventRow, RunRow
from amends.model import Call
from amends.replay.answers import Replay, as_staged, blocked_by, recorded_call
from amends.replay.divergence import clock_past_end, no_such_child, other_end, other_input
from amends.replay.record import Record, read_record
from amends.report import Report

# ---- Recorded errors


GROUP_MAX: Final = 10_000
"""The largest group of errors that is rebuilt."""
_GROUP: Final = re.compile(r"(.*) \((\d+) sub-exceptions?\)", re.DOTALL)
NOTE = "amends: rebuilt from the record by a replay; only its type and its message are recorded"


def error_of(row: CallRow, known: ToolFailed) -> Exception:
    """Return the error that a call ended with, rebuilt from its type and message; ``known`` if that is impossible."""
    name, message = error_parts(row.error)
    if name == "amends.errors.ToolFailed":  # of a call that its body made
        inner, _, said = message.partition(": ")
        return ToolFailed(said or message, call=known.call, type_name=inner if said else "", run_id=known.run_id)
    found = _class_named(name)
    made = None if found is None else _made(found, message, known)
    if made is None:
        return known
    note_on(made, NOTE)
    return made


def _class_named(name: str) -> type[Exception] | None:
    """Return the class if its module is loaded: a record never makes this process import something."""
    module, _, qualname = name.rpartition(".") if "." in name else ("builtins", "", name)
    parts = [qualname]
    while module and module not in sys.modules:  # an inner class: part of the path is a class, not a module
        module, _, outer = module.rpartition(".")
        parts.insert(0, outer)
    found: Any = sys.modules.get(module)
    for part in parts:
        found = getattr(found, part, None)
    is_error = isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, Error)
    return found if is_error else None


def _made(cls: type[Exception], message: str, known: ToolFailed) -> Exception | None:
    makes: tuple[Callable[[], Exception], ...] = (
        lambda: cls(message) if message else cls(),
        lambda: cls(literal_eval(message)),  # the message of a KeyError is the repr of its argument
        lambda: _bare(cls, message),
        lambda: _group(cls, message, known),
    )
    for make in makes:
        try:
            made = make()
            if words_of(made) == message:
                return made
        except Exception:
            continue
    return None


def _bare(cls: type[Exception], message: str) -> Exception:
    """Make the error without its constructor, which takes more than a message; its type and its message are right."""
    made = cls.__new__(cls)
    made.args = (message,)
    return made


def _group(cls: type[Exception], message: str, known: ToolFailed) -> Exception:
    """Make a group of as many errors as it had. They are not recorded: each is the failure of the call."""
    found = _GROUP.fullmatch(message)
    if found is None or not issubclass(cls, ExceptionGroup):
        raise TypeError("not a group of errors")
    count = int(found.group(2))
    if count > GROUP_MAX:
        raise ValueError("too many errors in one group")
    return cls(found.group(1), [known] * count)


# ---- The record


T = TypeVar("T")
Source: TypeAlias = tuple[Record, dict[str, CallRow]]
"""A record, and the calls of other runs that answered some of its requests, by key."""
EVENTS_PAGE: Final = 5_000
PAGES_MAX: Final = 100_000
CALLS_PAGE: Final = 500
CALL_PAGES_MAX: Final = 200
"""How far back the ledger is searched for a call of another run that answered a request."""
NAMED_MAX: Final = 5
WHY_CHARS_MAX: Final = 500
NEW_CHILD: Final = "child_"
"""How the generated name of a child run begins that its program did not name."""


async def read_from_ledger(view: View, run_id: str) -> Record:
    """Read the tree of one run and all its events."""
    tree = runs.found(await ReadRun(view.tenant or "", run_id), run_id)
    events: list[EventRow] = []
    after = 0
    for _ in range(PAGES_MAX):
        page = await ReadEvents(None, tree.run.root, after, EVENTS_PAGE)
        events += page
        if len(page) < EVENTS_PAGE:
            break
        after = page[-1].n
    return read_record(tree, events)


async def read(host: Host, view: View, run_id: str) -> Source:
    """Read everything that a replay of this run needs; during the replay the ledger is not used."""
    record = await read_from_ledger(view, run_id)
    if record.run.forked_from:  # values that it read before the fork are in the record of another run
        record.values = await recorded_values(host.reader(record.run))
    return record, await calls_of_ledger(host, record.tree)


def unpacked(host: Host, bundle: bytes, run_id: str = "") -> Source:
    """Read the same from an exported bundle; ``run_id``: which of its runs, if it has several."""
    from amends.audit.bundles import unpack  # here: a replay from a ledger needs no zip files

    if host.hides:
        host.ready()  # redacted values are compared by commitments, which need the ledger's key
    trees = unpack(bundle)
    newest = {tree.root.id: tree for tree in sorted(trees, key=lambda tree: tree.root.generation)}
    ids = [run_id] if run_id in newest else list(newest)
    if len(ids) != 1 or (run_id and run_id not in newest):
        has = ", ".join(list(newest)[:NAMED_MAX])
        raise UsageError(f"the bundle has the runs {has}; name one", hint="export one run, or name one of these")
    chosen = newest[ids[0]]
    others = {row.key: row for tree in trees if tree is not chosen for row in tree.calls if row.scope == "ledger"}
    return _opened(host, chosen.runs[0], chosen), others


def runs_in(bundle: bytes) -> list[str]:
    """Return the ids of the root runs in an exported bundle."""
    from amends.audit.bundles import unpack

    return list(dict.fromkeys(tree.root.id for tree in unpack(bundle)))


def _opened(host: Host, root: RunRow, found: Any) -> Record:
    """Return one tree of a bundle as its own ledger would read it, decrypted if this process has the keys."""
    rows = (found.runs, found.calls, found.events, found.approvals)
    runs, calls, events, approvals = rows if host.hiding.sealing is None else host.hiding.sealing.opened(rows)
    tree = Tree(runs[0], tuple(runs), tuple(calls), root.closed_at or root.created_at, (), tuple(approvals))
    return read_record(tree, events)


async def calls_of_ledger(host: Host, tree: Tree) -> dict[str, CallRow]:
    """Return calls of other runs that may have answered this one, by key: of tools with ``scope="ledger"``."""
    tools = [spec.name for spec in host.specs.values() if spec.scope == "ledger"]
    found: dict[str, CallRow] = {}
    for tool in tools:
        before: str | None = None
        for _ in range(CALL_PAGES_MAX):
            page = await SearchCalls(tree.run.tenant, (), before, CALLS_PAGE, tool)
            for row in page:
                if row.root != tree.run.root and row.result is not None:
                    found.setdefault(row.key, row)
            if len(page) < CALLS_PAGE:
                break
            before = page[-1].id
    return found


def begun(record: Record, others: dict[str, CallRow], *, until: str | None, strict: bool) -> Replay:
    """Begin a replay of this record; ``until``: the call where it ends, ``strict``: compare versions and all arguments."""
    if until is not None and until not in record.by_call:
        raise UsageError(f"run {record.run.id} has no call {until!r} to replay up to")
    _refuse_sealed(record)
    replay = Replay(record, until=until or "", strict=strict)
    replay.rebuild = error_of

    def answered_elsewhere(ask: Ask) -> CallRow | None:
        row = others.get(ask.key)
        return row if row is not None and row.ident == ask.ident else None

    replay.lookup = answered_elsewhere
    return replay


def _refuse_sealed(record: Record) -> None:
    """Raise ``LedgerSealed`` if this process has no key for the record: nothing of it could be answered."""
    texts: list[str | None] = [text for run in record.tree.runs for text in (run.input, run.output)]
    texts += [text for call in record.tree.calls for text in (call.args, call.result, call.error)]
    sealed = next((text for text in texts if text and text.startswith(SEALED)), None)
    if sealed is not None:
        key = sealed.removeprefix(SEALED).partition(":")[0]
        raise LedgerSealed(
            f"run {record.run.id} is encrypted with key {key}, which this runtime does not have; nothing was replayed",
            run_id=record.run.id,
        )


def session_of(host: Host, replay: Replay) -> Session:
    """Return the session of the recorded run: with its recorded ids, so that requests get the same keys, and no lease."""
    row = replay.record.run
    lease = Lease(row.root, "", -1, host.lease_s, 0.0, lost=True)
    session = host.session(row, lease, resumed=replay.record.resumed)
    session.budgets, session.rules, session.tell, session.anchor = (), (), None, None
    session.readings.recorded = replay.record.values
    session.state = "open"
    session.recall.record = partial(recorded_call, replay)
    return session


# ---- Operations


def refuse(replay: Replay, op: Op[Any]) -> NoReturn:
    """Raise for an operation that a replay does not perform."""
    if isinstance(op, NoteValue):
        if replay.had_ended(op.run):
            raise clock_stopped(replay.record.runs[op.run].id, "committed")
        replay.stop(clock_past_end(replay.record, op.run))
    raise AssertionError(f"a replay starts nothing and writes nothing: {type(op).__name__}")


def in_turn(replay: Replay, flows: Sequence[Flow[Any]], perform: Callable[[Op[Any]], Any]) -> list[Any]:
    """Run flows of a parallel group in one thread: one that must wait for its turn lets the others continue."""
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


# ---- Child runs, and the ends of runs


def child_row(replay: Replay, session: Session, id: str | None, input: object) -> tuple[RunRow, Session]:
    """Return the recorded child run that is opened next by this name; raise ``Diverged`` if there is none."""
    replay.check()
    said = recorded_input(session.redactor, session.tenant, input)
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
            if replay.is_pivoting(run.uid):  # refused then as well; such a refusal is not recorded
                words = f"run {run.id} takes no new child: its pivot is in flight"
                raise RunEnded(words, state="open", run_id=run.id)
        replay.stop(no_such_child(record, session, full))
    _check_input(replay, row, said)
    replay.pass_by(row.uid, record.moves[row.uid][0])
    inner = session.child(row.uid, row.id, generation=row.generation, resumed=False, state="open", given=input)
    return row, inner


def _existing(replay: Replay, full: str) -> RunRow | None:
    """Return the newest run of this name that exists at the place that the program has reached."""
    found = [run for run in replay.record.runs.values() if run.id == full and replay.move_of(run.uid) is not None]
    newest = max(found, key=lambda run: run.generation, default=None)
    return None if newest is None or _was_rolled_back(replay, newest) else newest


def _was_rolled_back(replay: Replay, run: RunRow) -> bool:
    move = replay.move_of(run.uid)
    return move is not None and move.to_state == "rolled_back"


def _next_child(replay: Replay, session: Session, full: str, *, is_named: bool) -> RunRow | None:
    """Return the child run that the replayed execution created next by this name."""
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


def left(host: Host, replay: Replay, session: Session, error: BaseException | None) -> None:
    """Leave a run as it was left then: what was rolled back may be requested again, and what blocked it is raised."""
    record, uid = replay.record, session.uid
    if not session.above:
        replay.around = False
        # With ``history`` the record covers all executions, and the next one opens the run again.
        replay.opened = replay.opened and not (is_a(error, Waiting) and record.run.history)
    replay.raised = replay.raised or (error is not None and not session.above)
    if is_a(error, Waiting, Diverged, ReplayDenied) or (error is not None and not isinstance(error, Exception)):
        return
    if session.above and (replay.had_ended(uid) or uid in replay.undone):
        return  # it only answered from its record, or it had ended before
    place = replay.place_of(uid)
    end = record.end_after(uid, place)
    _check_end(replay, session, error, place, end)
    if end is None:
        return
    if session.above:
        replay.pass_by(uid, end)
    if end.to_state == "blocked" and (error is None or end.frm != "pivoted"):
        raise blocked_by(replay, session, end) from error
    why = record.runs[uid].goal_why
    if error is None and not session.above and end.to_state == "rolled_back" and why.startswith(INCOMPLETE):
        raise taken_back(host, replay, session, why)


def _check_end(
    replay: Replay, session: Session, error: BaseException | None, place: float, end: EventRow | None
) -> None:
    """End the replay if the block ends in another way than the recorded one, even if the program catches the error."""
    record, uid = replay.record, session.uid
    if replay.over:
        return
    then = record.left_by(uid, place) if session.above else ""
    if error is None and then:
        replay.stop(other_end(record, session.id, f"ended by {then}", "ended without an error"))
    if error is not None and end is not None and end.to_state == "committed" and not record.runs[uid].pivot:
        now = cut(f"ended by {described(error)}", WHY_CHARS_MAX)
        replay.stop(other_end(record, session.id, "committed", now))


def open_again(host: Host, replay: Replay, session: Session, id: str | None, input: object, *, block: bool) -> bool:
    """Return whether ``rt.run(...)`` inside a replay opens the replayed run; its program does that itself, once.

    It does so again if it suspended the run and continues it, as a server does with each request. Raise ``Diverged`` if
    it uses another id or another input.
    """
    if replay.opened:
        return False
    replay.check()
    row = replay.record.run
    if id is not None and id != row.id:
        replay.stop(no_such_child(replay.record, session, id))
    said = recorded_input(host.redactor, row.tenant, input)
    if said.digest != row.input_digest:
        recorded = decode(row.input) if row.input else None
        replay.stop(other_input(replay.record, row.id, recorded, said.shown))
    replay.opened, replay.around, replay.over = True, block, False
    return True


# ---- Reports and states


def report_now(host: Host, replay: Replay) -> Report:
    """Return the report of the run at the place that its program has reached; after its end, the final report."""
    return report_of(host.reader(replay.record.run), tree_now(replay), ledger=host.store.url)


def tree_now(replay: Replay) -> Tree:
    """Return the tree of the run at the place that its program has reached; after its end, as it is recorded."""
    record, tree = replay.record, replay.record.tree
    if not replay.over:
        seen = {entry.row.id for entry in record.entries if entry.row is not None and replay.is_there(entry)}
        runs = tuple(run for run in tree.runs if not run.parent or replay.move_of(run.uid) is not None)
        root = changed(runs[0], {"state": state_now(replay, runs[0].uid), "output": "", "goal": "", "closed_at": None})
        calls = tuple(row for row in tree.calls if row.id in seen)
        tree = Tree(root, (root, *runs[1:]), calls, tree.now, (), tree.approvals)
    return tree


def report_named(host: Host, replay: Replay, run_id: str) -> Report | None:
    """Return what ``rt.report`` says of the replayed run; None if ``run_id`` is another run."""
    if run_id != replay.record.run.id:
        return None
    if not (replay.opened or replay.asked or replay.record.resumed):
        raise RunNotFound(run_id)
    return report_now(host, replay)


def taken_back(host: Host, replay: Replay, session: Session, why: str) -> RolledBack | RunBlocked:
    """Return the error of ``run.rollback``: how the rollback ended then."""
    record, uid = replay.record, session.uid
    replay.raised = True
    end = record.end_after(uid, replay.place_of(uid))
    if end is not None and session.above:
        replay.pass_by(uid, end)
        replay.undone.add(uid)
    if end is not None and end.to_state == "blocked":
        return blocked_by(replay, session, end)
    if end is not None and end.to_state == "committed":
        replay.stop(other_end(record, session.id, "committed", f"was rolled back ({why})"))
    replay.over = replay.over or not session.above
    count = sum(row.state == "compensated" for row in record.tree.calls if uid == record.run.uid or row.run == uid)
    words = f"run {session.id} was rolled back ({why}): {count} call{'' if count == 1 else 's'} compensated"
    return RolledBack(words, report=report_now(host, replay), run_id=session.id)


def staged_now(host: Host, replay: Replay, call_id: str) -> Call:
    """Return a staged call as it was at the place that the program has reached."""
    entry = replay.record.by_call[call_id]
    row = entry.row
    assert row is not None, "a staged call is a call"
    landed = replay.reached >= entry.landed_at or (replay.over and row.state == "succeeded")
    return call_of(row if landed else as_staged(row), host.specs.get(row.tool))


def state_now(replay: Replay, uid: str) -> str:
    """Return the state of a run at the place that the program has reached; after its end, the final state."""
    if replay.over:
        return replay.record.runs[uid].state
    return replay.run_state(uid)


# ---- Denied access

# Inside a replay, sockets, name lookups and new processes are refused. Python calls an audit hook before each of them. A
# hook cannot be removed, so it is added with the first replay, and it checks only code that runs inside a replay. Code is
# inside a replay if one of these is: its context, its thread, its task, or the event-loop callback that it runs in.
#
# A replayed program may also hand work to threads and tasks that are older than the replay and also do live work. So the
# places where work is handed over are patched: pools, queues, and the callbacks and tasks of event loops. A thread or
# task that takes an item which the replay put into a queue is inside the replay until it takes the next item. Work that
# is handed over by other means, such as a list that another task reads, is not seen; nor is what a C extension does
# without Python's modules.


REFUSED: Final = {
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"), "the network"),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), "a name on the network"),
    "socket.getnameinfo": "a name on the network",
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn"), "another process"),
    **dict.fromkeys(("os.fork", "os.forkpty", "pty.spawn", "os.startfile"), "another process"),
}
THREAD: Final = "_thread.start_new_thread"
JOINABLE: Final = "_thread.start_joinable_thread"
"""The name of the event of a new thread since Python 3.13."""

_replay: ContextVar[Replay | None] = ContextVar("amends.replay", default=None)
_born: Final[weakref.WeakKeyDictionary[threading.Thread, Replay]] = weakref.WeakKeyDictionary()
"""Threads that code inside a replay has started; they do not inherit its context."""
_tasks: Final[weakref.WeakKeyDictionary[asyncio.Future[Any], Replay]] = weakref.WeakKeyDictionary()
"""Tasks that a replay runs in or has started, even with another context."""
_takers: Final[weakref.WeakKeyDictionary[Any, Replay]] = weakref.WeakKeyDictionary()
"""Threads and tasks that have taken an item of a replay from a queue, until they take the next one."""
_items: Final[weakref.WeakKeyDictionary[Any, list[tuple[object, Replay]]]] = weakref.WeakKeyDictionary()
"""Items that replays have put into queues."""


class _Now(threading.local):
    """What this thread is doing now."""

    replay: Replay | None = None
    """The replay on whose behalf it runs a callback or a piece of work."""
    passes: Replay | None = None
    """The replay whose item it passes on to the task that waits for it."""


_now: Final = _Now()
_adding: Final = threading.RLock()
_added = False
_active = 0
"""How many replays are under way in this process."""
_watched: Final[set[type]] = set()
"""Classes of event loops and executors that are patched."""


@contextmanager
def denied(replay: Replay) -> Iterator[None]:
    """Deny the code inside this block everything but its run.

    The whole thread counts as inside, whatever context its code runs in, unless it runs an event loop.
    """
    global _active
    _add_hook()
    _watch_processes()
    _replay.set(replay)
    here: Any = current_task()
    if here is not None:
        _watch_loops(type(here.get_loop()))
        _tasks[here] = replay
    elif not is_on_loop():
        here = threading.current_thread()
        _born[here] = replay
    with _adding:
        _active += 1
    try:
        yield
    finally:
        with _adding:
            _active -= 1
        # Other contexts may still refer to the replay, so it is marked as finished; the block may be left anywhere.
        replay.finished = True
        places: Any = _born if isinstance(here, threading.Thread) else _tasks
        if here is not None and places.get(here) is replay:
            del places[here]
        if _replay.get() is replay:
            _replay.set(None)


def current_task() -> asyncio.Task[Any] | None:
    """Return the current task; None if no event loop runs in this thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def replay_here() -> Replay | None:
    """Return the replay that this code runs inside of, if any."""
    if not _active:
        return None
    thread, task = threading.current_thread(), current_task()
    found = [_replay.get(), _now.replay, _born.get(thread), _takers.get(thread)]
    if task is not None:
        found += [_tasks.get(task), _takers.get(task)]
    return next((one for one in found if one is not None and not one.finished), None)


def born_in(replay: Replay) -> bool:
    """Return whether other threads are at work for this replay: started inside it, or in a pool."""
    if replay.pooled:
        return True
    here = threading.current_thread()
    return any(one is replay and thread.is_alive() and thread is not here for thread, one in list(_born.items()))


def refuse_in_replay(what: str) -> None:
    """Raise ``ReplayDenied`` inside a replay: a replayed program neither reads nor writes the ledger."""
    replay = replay_here()
    if replay is not None:
        replay.stop(_denial(replay, what, "the ledger"))


def _add_hook() -> None:
    global _added
    with _adding:
        if not _added:
            sys.addaudithook(_hook)
            guards.append(refuse_in_replay)
            if sys.version_info < (3, 12):
                _watch_threads()
            _watch_pools()
            _watch_loops(asyncio.BaseEventLoop)
            _watch_queues()
            _added = True


def _watch_threads() -> None:
    """Patch the start of threads: before Python 3.12 there is no audit event for it."""
    module: Any = threading
    begin = module._start_new_thread

    def told(function: Any, *more: Any) -> Any:
        _note_birth(function)
        return begin(function, *more)

    module._start_new_thread = told


def _watch_pools() -> None:
    """Patch thread pools: their threads are older than the replay and do not have its context."""
    pool: Any = ThreadPoolExecutor
    submit = pool.submit

    @wraps(submit)
    def told(self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is None:
            return submit(self, fn, *args, **kwargs)
        future = submit(self, partial(_inside, replay, fn), *args, **kwargs)
        replay.pooled.add(future)
        future.add_done_callback(replay.pooled.discard)
        return future

    pool.submit = told


def _inside(replay: Replay, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run ``fn`` on behalf of a replay, whatever context and thread it has."""
    before, _now.replay = _now.replay, replay
    try:
        return fn(*args, **kwargs)
    finally:
        _now.replay = before


def _patched(owner: Any, name: str, told: Callable[..., Any]) -> None:
    """Replace a method of a class by ``told``, whose first argument is the method itself."""
    method = getattr(owner, name)

    @wraps(method)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return told(method, *args, **kwargs) if _active else method(*args, **kwargs)

    setattr(owner, name, replaced)


def _watch_processes() -> None:
    """Patch process pools: one that is older than the replay starts no process, so no audit event is raised."""
    module = sys.modules.get("concurrent.futures.process")
    pool: Any = getattr(module, "ProcessPoolExecutor", None)
    if pool is None or pool in _watched:
        return

    def submit(method: Any, self: Any, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is not None:
            replay.stop(_denial(replay, "ProcessPoolExecutor.submit", "another process"))
        return method(self, fn, *args, **kwargs)

    _watched.add(pool)
    _patched(pool, "submit", submit)


def _watch_loops(loop: Any) -> None:
    """Patch event loops: tasks and callbacks of a replay belong to it, in any context and on any loop."""
    if any(one in _watched for one in loop.__mro__):
        return

    def soon(method: Any, self: Any, callback: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, _owned(callback, args), *args, **kwargs)

    def at(method: Any, self: Any, when: float, callback: Any, *args: Any, **kwargs: Any) -> Any:
        return method(self, when, _owned(callback, args), *args, **kwargs)

    def create_task(method: Any, self: Any, coroutine: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is None:
            return method(self, coroutine, **kwargs)
        task = _inside(replay, method, self, coroutine, **kwargs)  # an eager task starts inside of this call
        _tasks[task] = replay
        return task

    _watched.add(loop)
    _patched(loop, "call_soon", soon)
    _patched(loop, "call_soon_threadsafe", soon)
    _patched(loop, "call_at", at)
    if not issubclass(loop, asyncio.BaseEventLoop):
        _patched(loop, "call_later", at)  # that of asyncio uses call_at
    _patched(loop, "create_task", create_task)


def _owned(callback: Any, args: tuple[Any, ...]) -> Any:
    """Return a callback that the replay schedules here, so that it runs on behalf of the replay.

    A task or a future that the replay only wakes stays as it is: others may wait for it too.
    """
    replay = replay_here()
    task = getattr(callback, "__self__", None)
    if len(args) == 1 and isinstance(args[0], asyncio.Future):
        passed = _now.passes or _passed_on(args[0])
        if passed is None:
            return callback
        if not isinstance(task, asyncio.Task):
            return partial(_pass, passed, callback)
        _takers[task] = passed
        return callback
    if replay is None:
        return callback
    if not isinstance(task, asyncio.Task):
        return partial(_inside, replay, callback)
    coroutine = task.get_coro()
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        _tasks[task] = replay  # it starts now, and was not created by the loop's create_task
    return callback


def _passed_on(ended: asyncio.Future[Any]) -> Replay | None:
    """Return the replay whose item this task took from a queue, if it did only that: ``wait_for(queue.get(), 1)``."""
    replay = _takers.get(ended)
    if replay is None or replay.finished or not isinstance(ended, asyncio.Task):
        return None
    return replay if getattr(ended.get_coro(), "__qualname__", "") == asyncio.Queue.get.__qualname__ else None


def _pass(replay: Replay, callback: Any, /, *args: Any) -> Any:
    before, _now.passes = _now.passes, replay
    try:
        return callback(*args)
    finally:
        _now.passes = before


def _watch_queues() -> None:
    """Patch queues: a thread or task that takes an item of a replay works for the replay until it takes another item."""

    def put(method: Any, self: Any, item: Any, *args: Any, **kwargs: Any) -> Any:
        replay = replay_here()
        if replay is None:
            return method(self, item, *args, **kwargs)
        with _adding:
            _items.setdefault(self, []).append((item, replay))
        try:
            return method(self, item, *args, **kwargs)
        except BaseException:  # the queue is full
            _of_replay(self, item)
            raise

    def get(method: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        item = method(self, *args, **kwargs)
        taker: Any = threading.current_thread() if isinstance(self, queue.Queue) else current_task()
        replay = _of_replay(self, item)
        if taker is None or (replay is None and taker not in _takers):
            return item
        if replay is None:
            del _takers[taker]
        else:
            _takers[taker] = replay
        return item

    _patched(asyncio.Queue, "put_nowait", put)
    _patched(asyncio.Queue, "get_nowait", get)
    _patched(queue.Queue, "put", put)
    for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
        _patched(kind, "_get", get)  # not get: threads may already be waiting inside it


def _of_replay(source: Any, item: object) -> Replay | None:
    """Return the replay that put this item into this queue, and forget the item; None if no replay did."""
    with _adding:
        known = _items.get(source, [])
        for place, (one, replay) in enumerate(known):
            if one is item:
                del known[place]
                return None if replay.finished else replay
    return None


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in REFUSED:
        replay = replay_here()
        if replay is not None:
            replay.stop(_denial(replay, f"{event}({_target(event, args)})", REFUSED[event]))
    elif event in (THREAD, JOINABLE):
        _note_birth(args[0])


def _note_birth(function: Any) -> None:
    replay = replay_here()
    if replay is not None:
        thread = getattr(function, "__self__", None)
        if isinstance(thread, threading.Thread):
            _born[thread] = replay


def _denial(replay: Replay, what: str, where: str) -> ReplayDenied:
    run = replay.record.run
    return ReplayDenied(f"{what}: code inside the replay of run {run.id} reached for {where}", what=what, run_id=run.id)


def _target(event: str, args: tuple[Any, ...]) -> str:
    """Return the target of an audit event that is no secret: an address or a program."""
    if event.startswith("socket.") and event != "socket.getaddrinfo" and len(args) > 1:
        return str(args[1])[:200]
    return str(args[0])[:200] if args else ""
