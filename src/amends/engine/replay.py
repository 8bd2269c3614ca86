"""Replaying: a request is answered from the record, or the replay ends there. Nothing is started, nothing written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NoReturn

from amends.charges import overrun_in
from amends.engine.asking import held_for, rejected
from amends.engine.call import Done, recorded_done
from amends.engine.recorded import Entry, Record, Sight
from amends.engine.refusing import conflict, ended, failure, in_doubt
from amends.engine.session import Ask, Session, call_of
from amends.engine.spending import exceeded
from amends.engine.unlike import missing_at_end, other_end, out_of_turn, unlike, unrecorded
from amends.errors import Error, KeyConflict, OutOfOrder, RuleRefused, RunBlocked, RunEnded, ToolFailed
from amends.model import Residue
from amends.ops import Sleep
from amends.record import changed
from amends.rows import CallRow, EventRow

_CALL: Final = re.compile(r"\((call_[^)]+)\)")
PAUSE_S: Final = 0.001
PAUSE_S_MAX: Final = 0.05
ORDER_S_MAX: Final = 5.0
"""How long a request that comes before its turn waits: other threads and tasks may be about to ask for what is due."""


class Replay:
    """One replay: what was asked for so far, and whether it has ended."""

    def __init__(self, record: Record, *, until: str = "", strict: bool = True) -> None:
        self.record, self.until, self.strict = record, until, strict
        self.reached = 0.0
        """How far in the ledger's order the program has come."""
        self.broken: Error | None = None
        """The first divergence, or what was refused around the record: whatever the program made of it."""
        self.stopped = False
        self.asked: list[Entry] = []
        due = [entry for entry in record.entries if entry.needed and entry.answered_at < inf]
        self._due = sorted(due, key=lambda entry: entry.answered_at)
        self._first = 0
        self._left = sum(entry.required for entry in record.entries)
        self.lookup: Callable[[Ask], CallRow | None] = lambda _: None
        """Finds the call of another run that answered, for tools that are once in the ledger."""
        self.rebuild: Callable[[CallRow, ToolFailed], Exception] = lambda _, known: known
        """Makes the error that a call ended with."""
        self.alone: Callable[[], bool] = lambda: True
        """Whether nobody but who asks is at work in the replay: then nobody else will ask for what is due."""
        self.pooled: set[object] = set()
        """What was given to the threads of a pool, and is not done."""
        self.side_by_side = 0
        """Requests of a plan's group that are under way."""
        self.entered: set[str] = set()
        """Runs inside the run that were opened."""
        self.left_committed: set[str] = set()
        self.opened = False
        """Whether the program has opened the run itself."""
        self.raised = False
        """Whether the program has left the run by an error of its own, or asked for its end."""
        self.around = False
        """Whether it did so by a block, and is in it."""
        self.over = False
        self.finished = False

    def check(self) -> None:
        """Raise what has ended the replay, if something has."""
        if self.broken is not None:
            raise self.broken
        if self.stopped:
            raise Stopped

    def stop(self, error: Error) -> NoReturn:
        """Nothing is answered any more."""
        self.broken = self.broken or error
        raise error

    def find(self, session: Session, ask: Ask) -> Entry | None:
        """The entry that answers this request; None: there is none."""
        again: Entry | None = None
        spare: Entry | None = None
        is_read = ask.spec.kind == "read"
        for entry in self._alike(ask):
            if entry.asks or (entry.nested and self._is_inside(entry)):
                again = entry
            elif entry.nested:
                continue
            elif again is not None and again.answers_again and not is_read:
                break
            elif entry.run != session.uid and not entry.old:
                continue
            elif entry.needed:
                return entry
            else:
                spare = spare or entry
        if again is not None and (again.answers_again and not is_read):
            return again
        return spare if again is None else None

    def _alike(self, ask: Ask) -> Sequence[Entry]:
        """The entries of what this request asks for; under its own key, unless the tool names its calls anew by now."""
        entries = self.record.by_name.get((ask.spec.name, ask.ident, ask.again), ())
        if len(entries) < 2:
            return entries
        key = ask.key
        mine = [
            one for one in entries if one.row is None or key in one.row.key
        ]  # a read's, and a loaded one, is longer
        return mine if any(one.row is not None for one in mine) else entries

    def _is_inside(self, entry: Entry) -> bool:
        """Whether the call in whose body it was asked for has been answered here."""
        parent = entry.facts.get("parent", "") if entry.row is None else entry.row.parent
        outer = self.record.by_call.get(str(parent))
        return outer is not None and (bool(outer.asks) or (outer.nested and self._is_inside(outer)))

    def first_due(self) -> Entry | None:
        """What was answered first of all that has not been asked for."""
        while self._first < len(self._due) and self._due[self._first].asks:
            self._first += 1
        return self._due[self._first] if self._first < len(self._due) else None

    def is_early(self, entry: Entry) -> bool:
        """Whether something that the record has before it has not been asked for."""
        if entry.asks or not entry.needed:
            return False
        due = self.first_due()
        return due is not None and due is not entry and due.answered_at < entry.asked_at

    def take(self, entry: Entry) -> tuple[Sight, bool]:
        """What this request is told, and whether it was asked for before."""
        repeated = bool(entry.asks) or entry.nested
        sight = entry.sights[min(entry.asks, len(entry.sights) - 1)]
        if not entry.asks:
            self.asked.append(entry)
            self._left -= entry.required
        entry.asks += 1
        self.reached = max(self.reached, entry.asked_at, entry.answered_at if entry.answered_at < inf else 0.0)
        if self.until and entry.row is not None and entry.row.id == self.until:
            self.stopped = True
        return sight, repeated

    def left(self) -> list[Entry]:
        """What the program asked for then and has not asked for now, in order."""
        return [entry for entry in self.record.entries if entry.required and not entry.asks] if self._left else []

    def end(self) -> None:
        """The program has ended: raises what it did not ask for."""
        if self.broken is not None:
            raise self.broken
        if self.stopped:
            return
        missing = self.left()
        if missing or self.until:
            self.stop(missing_at_end(self.record, missing, self.until))
        run = self.record.run
        then = self.record.went_back_over(run.uid)
        if not self.raised and then:
            self.stop(other_end(self.record, run.id, f"ended by {then}", "ended without an error"))

    def free(self, run: str) -> None:
        """A child run was left by its failure: what was taken back with it may be asked for anew."""
        inside = self.record.within(run)
        for entry in self.record.entries:
            if entry.run in inside and entry.row is not None and entry.row.comp_attempt:
                entry.freed = True

    def is_pivoting(self, run: str) -> bool:
        """Whether the program was told here that nobody knows of this run's pivot whether it happened."""
        told = (one for one in self.asked if one.run == run and one.row is not None and one.row.kind == "pivot")
        return any(one.sights[min(one.asks, len(one.sights)) - 1] == "doubt" for one in told)

    def had_ended(self, run: str) -> bool:
        """Whether this run inside the run only answers by now: it had committed before, or has been left so here."""
        record = self.record
        if record.before.get(run) == "committed" or run in self.left_committed:
            return True
        return run in record.decided and record.ends.get(run) == "committed"


class Stopped(BaseException):
    """The replay has come to where it was to end. Not an ``Exception``: no program takes it for a failure."""


async def recorded_call(replay: Replay, session: Session, ask: Ask) -> Done:
    """Answer a request as the record says; raises what it raised then, and ``Diverged`` where there is no answer."""
    replay.check()
    pause, waited = PAUSE_S, 0.0
    while True:
        entry = replay.find(session, ask)
        if entry is None or (ask.spec.kind == "read" and replay.had_ended(session.uid)):
            return await _unrecorded(replay, session, ask)
        if not replay.is_early(entry):
            break
        if waited >= ORDER_S_MAX or (replay.alone() and replay.side_by_side < 2):
            replay.stop(out_of_turn(session, ask, entry, replay.first_due()))
        await Sleep(pause)
        replay.check()
        waited, pause = waited + pause, min(pause * 2, PAUSE_S_MAX)
    row = entry.row
    first = not entry.asks and not entry.nested  # how a repeat was worded is not recorded
    if replay.strict and first and row is not None and not _is_same(ask, row):
        replay.stop(unlike(session, ask, entry))
    sight, repeated = replay.take(entry)
    if row is None:
        raise refusal_of(replay, session, ask, entry)
    return told(replay, session, ask, entry, sight, repeated=repeated)


def _is_same(ask: Ask, row: CallRow) -> bool:
    """Whether version and all arguments are as they were; the same text needs no digest."""
    return (row.args == ask.text and row.version == ask.spec.version) or row.digest == ask.digest


async def _unrecorded(replay: Replay, session: Session, ask: Ask) -> Done:
    """No entry answers it: another run's call does, or the run took nothing more, or the replay ends here."""
    if ask.spec.scope == "ledger":
        row = replay.lookup(ask)
        if row is not None:
            return recorded_done(session, ask.spec, _as_done(row))
    if replay.had_ended(session.uid):
        return _from_closed(replay, session, ask)
    run, left = replay.record.run, replay.left()
    if not left and run.goal == "rollback" and run.goal_by not in ("", "self"):
        raise RunEnded(f"run {run.id} is rolling back: it takes no new call", state="rolling_back", run_id=run.id)
    return replay.stop(unrecorded(replay.record, session, ask, left, replay.first_due()))


def _from_closed(replay: Replay, session: Session, ask: Ask) -> Done:
    """A run that had ended before: it answered what it had read, and took nothing new."""
    entries = replay.record.by_name.get((ask.spec.name, ask.ident, ask.again), ())
    known = [entry for entry in entries if entry.asks or not entry.asked_at or entry.nested]
    known = [entry for entry in known if entry.row is not None and entry.row.state == "succeeded"]
    if session.above:  # the nth read gets the nth answer: see ``_read_again`` in the ledger's decisions
        known = [entry for entry in known if entry.run == session.uid]
        known = [entry for entry in known if not entry.asks][:1] or known
    row = known[-1].row if known else None
    if ask.spec.kind != "read" or row is None:
        raise ended(session, "committed")
    replay.take(known[-1])
    return recorded_done(session, ask.spec, row)


def told(replay: Replay, session: Session, ask: Ask, entry: Entry, sight: Sight, *, repeated: bool) -> Done:
    """What the program was told of this call."""
    row, spec = entry.row, ask.spec
    assert row is not None, "a refusal is told elsewhere"
    match sight:
        case "done" | "recorded":
            done = recorded_done(session, spec, _as_done(row))
            if row.shared:  # it tells how far a fork's program has come: see ``values``
                session.replays[row.id] = 1
            return Done(done.row, done.value, replayed=repeated or sight == "recorded", staged=done.staged)
        case "staged":
            landed = replay.reached >= entry.landed_at
            return Done(
                _as_done(row) if landed and (row.result is not None or row.loss) else as_staged(row), staged=True
            )
        case "held":
            raise held_for(session, as_held(row), replay.record.approvals.get(row.approval), _twin(replay, row))
        case "rejected":
            raise rejected(session, row)
        case "doubt":
            raise in_doubt(session, changed(row, {"state": "in_doubt", "result": None, "why": row.why or "lost"}))
        case "failed":
            failed = changed(row, {"state": "failed"})
            raise replay.rebuild(failed, failure(spec, failed))
        case _:
            raise failure(spec, changed(row, {"state": "failed"}))


def _twin(replay: Replay, row: CallRow) -> CallRow | None:
    entry = replay.record.by_call.get(row.twin)
    return None if entry is None else entry.row


def _as_done(row: CallRow) -> CallRow:
    """The call as it was when it had been done, whatever became of it since."""
    return row if row.state == "succeeded" else changed(row, {"state": "succeeded"})


def as_staged(row: CallRow) -> CallRow:
    """The call as it was when it had been accepted for later."""
    return changed(
        row, {"state": "held", "result": None, "loss": "", "attempt": 0, "started_at": None, "settled_at": None}
    )


def as_held(row: CallRow) -> CallRow:
    """The call as it was while a person was asked."""
    return changed(row, {"state": "held", "result": None, "attempt": 0, "started_at": None, "settled_at": None})


def refusal_of(replay: Replay, session: Session, ask: Ask, entry: Entry) -> Exception:
    """The typed error of a refusal, from its event."""
    facts, tool = entry.facts, entry.tool
    match facts.get("law"):
        case "rule":
            return RuleRefused(tool, why=str(facts.get("rule", "")), run_id=session.id)
        case "budget":
            return exceeded(tool, overrun_in(facts), session.id)
        case "conflict":
            known = replay.record.by_call.get(str(facts.get("known", "")))
            if known is not None and known.row is not None:
                return conflict(session, ask, known.row)
            return KeyConflict(f"{tool} was already asked for with other arguments", tool=tool, run_id=session.id)
        case law:
            return OutOfOrder(
                tool, law=str(law), missing=tuple(facts.get("missing", ())), unsettled=tuple(facts.get("unsettled", ())),
                allowed=[one.name for one in session.specs.values() if one.kind in ("retriable", "read")],
                pivot=facts.get("pivot"), run_id=session.id,
            )  # fmt: skip


def blocked_by(replay: Replay, session: Session, move: EventRow) -> RunBlocked:
    """What a run that amends could do nothing more for raised, from the event that says so."""
    causes = [str(cause) for cause in json.loads(move.facts).get("causes", ())]
    doubts, residue, names = [], [], []
    for cause in causes:
        found = _CALL.search(cause)
        # Among all of the tree's: what was taken back before answers nobody any more, and is named all the same.
        row = next((one for one in replay.record.tree.calls if found is not None and one.id == found.group(1)), None)
        if row is None:
            continue
        call, why = call_of(row, session.spec(row.tool)), cause.partition(": ")[0]
        names.append(row.tool)
        if "may have happened" in cause:
            doubts.append(call)
        else:
            residue.append(Residue(call, why))
    left = ", ".join(dict.fromkeys(names)) or "nothing amends can name"
    return RunBlocked(
        f"run {session.id} is blocked: {left}", run_id=session.id, residue=residue, doubts=doubts, causes=causes
    )
