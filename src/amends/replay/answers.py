"""Answers of a replay: each request is answered from the record, or the replay ends there with ``Diverged``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from math import inf
from typing import Any, Final, NoReturn

from amends.encoding.canonical import CLASS_MARK, UNSET_MARK
from amends.encoding.dataclass import changed
from amends.encoding.payloads import read_text
from amends.engine.approvals import held_for, rejected
from amends.engine.blocked import Obstacle, blocked, commit_obstacles, rollback_obstacles
from amends.engine.call import Done, conflict, ended, failure, in_doubt, recorded_done
from amends.engine.compiled import IDENT, NOT_AGAIN, Bound, Compiled, is_exact, key_head
from amends.engine.costs import exceeded
from amends.engine.halts import halted_in
from amends.engine.session import Ask, Session, call_of, error_parts
from amends.errors import (
    Error,
    KeyConflict,
    OutOfOrder,
    RuleRefused,
    RunBlocked,
    RunEnded,
    ToolFailed,
    how_many,
    more_in,
    some_in_words,
    type_name,
)
from amends.ledger.budgets import overrun_in
from amends.ledger.rows import FINAL_NO, CallRow, EventRow, RunRow, lost_at
from amends.ledger.world import Sleep
from amends.model import Residue
from amends.replay.divergence import is_same, missing_at_end, other_end, out_of_turn, unlike, unrecorded
from amends.replay.record import Entry, Record, Sight
from amends.states import FREES_KEY

_CALL: Final = re.compile(r"\((call_[^)]+)\)")
PAUSE_S: Final = 0.001
PAUSE_S_MAX: Final = 0.05
ORDER_S_MAX: Final = 5.0
"""How long a request waits for its turn: other threads and tasks may be about to make the requests before it."""


class Replay:
    """One replay: the requests so far, and whether it has ended.

    A *place* is a position in the ledger's order, the number of an event. The program has *reached* a place when it has
    made the requests up to it.
    """

    def __init__(self, record: Record, *, until: str = "", strict: bool = True) -> None:
        self.record, self.until, self.strict = record, until, strict
        self.reached = 0.0
        """The place that the program has reached."""
        self.broken: Error | None = None
        """The first divergence or denied access, even if the program caught the error."""
        self.stopped = False
        self.asked: list[Entry] = []
        due = [entry for entry in record.entries if entry.needed and entry.answered_at < inf]
        self._due = sorted(due, key=lambda entry: entry.answered_at)
        self._first = 0
        self._left = sum(entry.required for entry in record.entries)
        self.lookup: Callable[[Ask], CallRow | None] = lambda _: None
        """Finds the call of another run that answered, for tools with ``scope="ledger"``."""
        self.rebuild: Callable[[CallRow, ToolFailed], Exception] = lambda _, known: known
        """Rebuilds the error that a call ended with."""
        self.alone: Callable[[], bool] = lambda: True
        """Whether no other thread or task is at work in the replay, so that nobody else will make the due request."""
        self.pooled: set[object] = set()
        """Work that was submitted to a thread pool and has not ended."""
        self.side_by_side = 0
        """Requests of a parallel group that are under way."""
        self.seen: dict[str, float] = {}
        """The place that the program has reached in each run by opening and leaving it."""
        self.undone: set[str] = set()
        """Runs that the program has rolled back by ``run.rollback``: the end of their block changes nothing more."""
        self.opened = False
        """Whether the program has opened the run itself."""
        self.raised = False
        """Whether the program has left the run by an error, or rolled it back itself."""
        self.around = False
        """Whether the program has opened the run with a block and is inside it."""
        self.over = False
        self.finished = False

    def check(self) -> None:
        """Raise the error that ended the replay, if it has ended."""
        if self.broken is not None:
            raise self.broken
        if self.stopped:
            raise Stopped

    def stop(self, error: Error) -> NoReturn:
        """End the replay with this error: nothing is answered any more."""
        self.broken = self.broken or error
        raise error

    def find(self, session: Session, ask: Ask) -> Entry | None:
        """Return the entry that answers this request, chosen as the ledger chose it; None if there is none."""
        if ask.spec.kind == "read":
            return self._find_read(session, ask)
        alike = self._alike(ask)
        known = self._known(ask, alike)
        following = next((entry for entry in alike if self._is_next(session, entry)), None)
        if known is None or known.row is None or known.row.ident != ask.ident:
            return following
        waits = self.state_of(known) in ("held", "ready")
        refused = following is not None and following.row is None and following.asked_at < known.begun_at
        return following if waits and refused else known  # a call that a person released may still be refused

    def _find_read(self, session: Session, ask: Ask) -> Entry | None:
        spare: Entry | None = None
        any_asked = False
        for entry in self._alike(ask):
            if entry.asks or (entry.nested and self._is_inside(entry)):
                any_asked = True
            elif entry.nested or (entry.run != session.uid and not entry.old):
                continue
            elif entry.needed:
                return entry
            else:
                spare = spare or entry
        return None if any_asked else spare

    def _known(self, ask: Ask, alike: Sequence[Entry]) -> Entry | None:
        """Return the call that the ledger had under this key and answered from; None if the key was free.

        This is the choice of ``ledger/admission.py``: in a resumed run the nth request gets the nth generation.
        """
        recorded = self.record.by_key.get(ask.key) or [one for one in alike if one.row is not None]
        known = [entry for entry in recorded if self.is_there(entry)]
        if not known:
            return None
        newest = known[-1]
        if newest.old and not newest.asks:
            unasked = (entry for entry in known if entry.old and not entry.asks)
            chosen = next((entry for entry in unasked if self._answers_first(entry, ask)), None)
            if chosen is not None:
                return chosen
        if self.state_of(newest) not in FREES_KEY:
            return newest
        same = [entry for entry in known if entry.row is not None and entry.row.ident == ask.ident]
        return same[-1] if same and self._is_final(same[-1]) else None

    def _is_final(self, entry: Entry) -> bool:
        """Return whether a person refused the call, or its tool said no for good: both answer every repeat."""
        state = self.state_of(entry)
        return state == "refused" or (state == "failed" and entry.row is not None and entry.row.why == FINAL_NO)

    def _answers_first(self, entry: Entry, ask: Ask) -> bool:
        state = self.state_of(entry)
        same = entry.row is not None and entry.row.ident == ask.ident
        return state not in ("dropped", "compensated") and (state not in FREES_KEY or same)

    def is_there(self, entry: Entry) -> bool:
        """Return whether the call existed at the place that the program has reached."""
        return entry.old or bool(entry.asks) or (entry.nested and self._is_inside(entry))

    def _is_next(self, session: Session, entry: Entry) -> bool:
        """Return whether the replayed execution made this request, in this run, and the program has not made it yet."""
        return not (entry.asks or entry.nested or entry.old) and entry.run == session.uid

    def may_stand(self, row: CallRow, run: str) -> bool:
        """Return whether the call does not block the commit of this run: it succeeded, and nothing rolls it back."""
        entry = self.record.by_call.get(row.id)
        if entry is None or self.state_of(entry) != "succeeded":
            return False
        inside = row.run
        while inside != run and inside in self.record.runs:
            move = self.move_of(inside)
            if move is not None and "rolling_back" in (move.to_state, move.frm):
                return False
            inside = self.record.runs[inside].parent
        return True

    def is_worded(self, entry: Entry, ask: Ask) -> bool:
        """Return whether the request has the version and all arguments that were recorded.

        An earlier execution may have made the call by another request with the same key and other
        arguments; then the arguments of each of them count as recorded.
        """
        same = self.record.by_key.get(ask.key, ()) if entry.old else ()
        rows = [one.row for one in (entry, *same) if one.row is not None]
        return any(is_same(ask, row) for row in rows if row.ident == ask.ident)

    def state_of(self, entry: Entry) -> str:
        """Return the state of the call at the place that the program has reached."""
        return entry.state_at(self.place_of(entry.run), self.reached)

    def _alike(self, ask: Ask) -> Sequence[Entry]:
        """Return the entries with the meaning of this request: those with its key, or all if the tool's keys have changed."""
        entries = self.record.by_name.get((ask.spec.name, ask.ident, ask.again), ())
        if len(entries) < 2:
            return entries
        key = ask.key
        # ``in``: the recorded key of a read, and of a loaded call, is longer.
        mine = [one for one in entries if one.row is None or key in one.row.key]
        return mine if any(one.row is not None for one in mine) else entries

    def _is_inside(self, entry: Entry) -> bool:
        """Return whether the call in whose body it was requested has been answered here."""
        parent = entry.facts.get("parent", "") if entry.row is None else entry.row.parent
        outer = self.record.by_call.get(str(parent))
        return outer is not None and (bool(outer.asks) or (outer.nested and self._is_inside(outer)))

    def first_due(self) -> Entry | None:
        """Return the entry that was answered first, of those that the program has not requested yet."""
        while self._first < len(self._due) and self._due[self._first].asks:
            self._first += 1
        return self._due[self._first] if self._first < len(self._due) else None

    def is_early(self, entry: Entry) -> bool:
        """Return whether the program has not requested something that was answered before this request was made."""
        if entry.asks or not entry.needed:
            return False
        due = self.first_due()
        return due is not None and due is not entry and due.answered_at < entry.asked_at

    def take(self, entry: Entry) -> tuple[Sight, bool]:
        """Note the request for this entry; return what it is told, and whether it is a repeat."""
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
        """Return the recorded requests that the program has not made, in order."""
        return [entry for entry in self.record.entries if entry.required and not entry.asks] if self._left else []

    def end(self) -> None:
        """End the replay after the program has ended; raise ``Diverged`` for requests that it did not make."""
        if self.broken is not None:
            raise self.broken
        if self.stopped:
            return
        missing = self.left()
        if missing or self.until:
            self.stop(missing_at_end(self.record, missing, self.until))
        run = self.record.run
        then = self.record.rollback_error(run.uid)
        if not self.raised and then:
            self.stop(other_end(self.record, run.id, f"ended by {then}", "ended without an error"))

    def end_by(self, error: BaseException) -> None:
        """End the replay after the program has ended with an error.

        Raise what ended the replay before. If the error is the recorded one, raise ``Diverged`` for requests that the
        program did not make. Another error is the caller's to raise.
        """
        if self.broken is not None and error is not self.broken:
            raise self.broken from error
        then = self.record.rollback_error(self.record.run.uid)
        if self.broken is not None or self.stopped or not then.startswith(f"{type_name(error)}: "):
            return
        missing = self.left()
        if missing:
            self.broken = missing_at_end(self.record, missing, "")
            raise self.broken from error

    # ---- Child runs

    def place_of(self, run: str) -> float:
        """Return the place that the program has reached in this run or a run around it."""
        place = self.record.began
        while run:
            place = max(place, self.seen.get(run, 0.0))
            above = self.record.runs.get(run)
            run = "" if above is None else above.parent
        return place

    def move_of(self, run: str) -> EventRow | None:
        """Return the last change of this run's state that the program has reached; None if the run does not exist yet."""
        place = self.place_of(run)
        return next((move for move in reversed(self.record.moves.get(run, ())) if move.n <= place), None)

    def pass_by(self, run: str, move: EventRow) -> None:
        """Note that the program has reached this change of the run's state by opening or leaving the run."""
        self.seen[run] = max(self.seen.get(run, 0.0), move.n)
        self.reached = max(self.reached, move.n)

    def resume(self, run: str) -> EventRow | None:
        """Open an existing run again; return the event that blocked it, or None.

        These are the cases of ``engine.opening.go_on``. What the opening changed was recorded before the program did
        anything else.
        """
        record, move = self.record, self.move_of(run)
        assert move is not None, "only an existing run is opened again"
        place = self.place_of(run)
        limit = record.next_place(max(place, self.reached), run)
        goals = [goal.to_state for goal in record.goals.get(run, ()) if goal.n <= place]
        phase = move.frm if move.to_state == "blocked" else move.to_state
        if phase == "rolling_back" or goals:
            end = record.end_after(run, place, limit)
        else:
            moves = record.moves[run]
            end = next((one for one in moves if place < one.n < limit and one.frm == "blocked"), None)
        if end is not None:
            self.pass_by(run, end)
            move = end
        return move if move.to_state == "blocked" else None

    def is_pivoting(self, run: str) -> bool:
        """Return whether this run's pivot is started or in doubt at the place that the program has reached."""
        pivots = (
            one for one in self.record.entries if one.run == run and one.row is not None and one.row.kind == "pivot"
        )
        return any(self.is_there(one) and self.state_of(one) in ("started", "in_doubt") for one in pivots)

    def run_state(self, run: str) -> str:
        """Return the state of a run at the place that the program has reached."""
        place, state = self.place_of(run), "open"
        for move in self.record.moves.get(run, ()):
            if move.n <= place or (move.to_state == "pivoted" and move.n <= self.reached):
                # The program is inside the block of the root: if the root was blocked, it was opened again.
                is_reopened = move.to_state == "blocked" and not self.record.runs[run].parent
                state = move.frm if is_reopened else move.to_state
        told = (one for one in self.asked if one.run == run and one.row is not None and one.row.kind == "pivot")
        return "pivoted" if state == "open" and any(self.state_of(one) == "succeeded" for one in told) else state

    def had_ended(self, run: str) -> bool:
        """Return whether this child run has committed, so that it only answers from its record."""
        move = self.move_of(run)
        return move is not None and move.to_state == "committed"


class Stopped(BaseException):
    """The replay has reached ``until``. Not an ``Exception``, so that no program takes it for a failure."""


def next_answer(replay: Replay, session: Session, compiled: Compiled, bound: Bound) -> tuple[Any] | None:
    """Return the result that ``recorded_call`` would return, if the request is the only one of its name and is due now.

    None: ``recorded_call`` decides, which also compares what is unusual. ``bound``: the arguments (``Compiled.bind``).
    """
    record, spec = replay.record, compiled.spec
    _, args, named, meaning, _ = bound
    entries = record.by_name.get((spec.name, sha256(IDENT + meaning).hexdigest(), ""), ())
    if len(entries) != 1 or replay.broken is not None or replay.stopped or spec.kind == "read" or session.kin:
        return None
    entry = entries[0]
    row = entry.row
    if row is None or entry.asks or entry.nested or entry.old or entry.sights != ("done",) or entry.run != session.uid:
        return None
    if row.state != "succeeded" or row.result is None or row.args != args or row.version != spec.version:
        return None
    key = sha256(key_head(session.tenant, session.root, spec.name) + named + NOT_AGAIN).hexdigest()
    if record.by_key.get(key) != entries or row.shared or row.parent or replay.is_early(entry):
        return None
    text = session.redactor.revealed(row.result)
    if lost_at(text) is not None or CLASS_MARK in text or UNSET_MARK in text:
        return None
    try:
        value, kinds = read_text(text), compiled.result_kinds
    except Error:  # raised again when the request is noted
        return None
    if kinds is not None and not is_exact(value, kinds):
        return None
    replay.take(entry)
    return (value,)


async def recorded_call(replay: Replay, session: Session, ask: Ask) -> Done:
    """Answer a request from the record; raise what it raised then, and ``Diverged`` if there is no answer."""
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
    first = not entry.asks and not entry.nested  # the words of a repeat are not recorded
    if replay.strict and first and row is not None and not replay.is_worded(entry, ask):
        replay.stop(unlike(session, ask, entry))
    sight, repeated = replay.take(entry)
    if row is None:
        raise refusal_of(replay, session, ask, entry)
    return told(replay, session, ask, entry, sight, repeated=repeated)


async def _unrecorded(replay: Replay, session: Session, ask: Ask) -> Done:
    """Answer a request without an entry: from another run's call, or from an ended run, or end the replay."""
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
    """Answer in a run that had ended: it answers its recorded reads, and takes no new call."""
    entries = replay.record.by_name.get((ask.spec.name, ask.ident, ask.again), ())
    known = [entry for entry in entries if entry.asks or not entry.asked_at or entry.nested]
    known = [entry for entry in known if entry.row is not None and entry.row.state == "succeeded"]
    if session.above:  # the nth read gets the nth answer: see ``ledger/admission.py``
        known = [entry for entry in known if entry.run == session.uid]
        known = [entry for entry in known if not entry.asks][:1] or known
    row = known[-1].row if known else None
    if ask.spec.kind != "read" or row is None:
        raise ended(session, "committed")
    replay.take(known[-1])
    return recorded_done(session, ask.spec, row)


def told(replay: Replay, session: Session, ask: Ask, entry: Entry, sight: Sight, *, repeated: bool) -> Done:
    """Return or raise what the program was told of this call."""
    row, spec = entry.row, ask.spec
    assert row is not None, "a refusal is answered elsewhere"
    match sight:
        case "done" | "recorded":
            done = recorded_done(session, spec, _as_done(row))
            if row.shared:  # recorded values need to know how far a fork's program has come
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
            raise _doubt(replay, session, entry)
        case "failed":
            failed = changed(row, {"state": "failed"})
            raise _let_through(replay, session, ask, row) or replay.rebuild(failed, failure(spec, failed))
        case _:
            raise failure(spec, changed(row, {"state": "failed"}))


def _doubt(replay: Replay, session: Session, entry: Entry) -> Exception:
    row, state = entry.row, replay.state_of(entry)
    assert row is not None, "a refusal is never in doubt"
    if state in ("compensation_in_doubt", "compensation_failed", "residue"):
        return in_doubt(session, changed(row, {"state": state}))
    return in_doubt(session, changed(row, {"state": "in_doubt", "result": None, "why": row.why or "lost"}))


def _let_through(replay: Replay, session: Session, ask: Ask, row: CallRow) -> Exception | None:
    """Return the error of amends that a call inside the body raised and the body did not catch."""
    name, message = error_parts(row.error)
    inside: Iterable[Exception] = ()
    if name == "amends.errors.InDoubt":
        calls = (one for one in replay.record.entries if one.row is not None and message.startswith(f"{one.tool} "))
        inside = (_doubt(replay, session, one) for one in calls)
    elif name.startswith("amends."):
        refused = (one for one in replay.record.entries if one.row is None and one.facts.get("parent") == row.id)
        inside = (refusal_of(replay, session, ask, one) for one in refused)
    return next((error for error in inside if str(error) == message and name.endswith(type(error).__name__)), None)


def _twin(replay: Replay, row: CallRow) -> CallRow | None:
    entry = replay.record.by_call.get(row.twin)
    return None if entry is None else entry.row


def _as_done(row: CallRow) -> CallRow:
    """Return the call as it was when it had succeeded."""
    return row if row.state == "succeeded" else changed(row, {"state": "succeeded"})


def as_staged(row: CallRow) -> CallRow:
    """Return the call as it was when it had been staged."""
    return changed(
        row, {"state": "held", "result": None, "loss": "", "attempt": 0, "started_at": None, "settled_at": None}
    )


def as_held(row: CallRow) -> CallRow:
    """Return the call as it was while it waited for a person."""
    return changed(row, {"state": "held", "result": None, "attempt": 0, "started_at": None, "settled_at": None})


def refusal_of(replay: Replay, session: Session, ask: Ask, entry: Entry) -> Exception:
    """Return the typed error of a refusal, from its event."""
    facts, tool = entry.facts, entry.tool
    match facts.get("law"):
        case "rule":
            return RuleRefused(tool, why=str(facts.get("rule", "")), run_id=session.id)
        case "halt":
            return halted_in(session, tool, facts)
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
    """Return the error of a blocked run, from the event that recorded it.

    If the event only counts some of its causes, they are found again in the states of that moment; where their number is
    another one now, the error has those that the event names.
    """
    causes = [str(cause) for cause in json.loads(move.facts).get("causes", ())]
    if causes and more_in(causes[-1]):
        left = _obstacles_at(replay, session, move)
        if len(left) == how_many(causes):
            return blocked(session, left)
    doubts, residue, names, about = [], [], [], []
    for cause in causes:
        found = _CALL.search(cause)
        # Among all calls of the tree: a call that was rolled back answers no request, but may be a cause.
        row = next((one for one in replay.record.tree.calls if found is not None and one.id == found.group(1)), None)
        if row is None or (move.frm != "rolling_back" and replay.may_stand(row, move.run)):
            continue
        about.append(cause)
        call, why = call_of(row, session.spec(row.tool)), cause.partition(": ")[0]
        names.append(row.tool)
        if "may have happened" in cause:
            doubts.append(call)
        else:
            residue.append(Residue(call, why))
    named = some_in_words(dict.fromkeys(names)) or "nothing amends can name"
    return RunBlocked(
        f"run {session.id} is blocked: {named}",
        run_id=session.id,
        residue=residue,
        doubts=doubts,
        causes=[*about, *filter(more_in, causes)] if about else causes,
    )


def _obstacles_at(replay: Replay, session: Session, move: EventRow) -> list[Obstacle]:
    """Return what kept the run from its end when it was blocked: the recorded causes name a part of it."""
    record, uid = replay.record, session.uid
    runs = [_run_at(record, row, move) for row in record.tree.runs if row.uid == uid or record.is_inside(row.uid, uid)]
    inside = {row.uid for row in runs}
    calls = []
    for row in record.tree.calls:
        entry = record.by_call.get(row.id)
        if row.run in inside and entry is not None:
            calls.append(changed(row, {"state": entry.state_at(move.n, move.n)}))
    run = next(row for row in runs if row.uid == uid)
    tree = changed(record.tree, {"run": run, "runs": tuple(runs), "calls": tuple(calls)})
    return rollback_obstacles(session, tree) if move.frm == "rolling_back" else commit_obstacles(session, tree)


def _run_at(record: Record, row: RunRow, move: EventRow) -> RunRow:
    """Return a run as it was at the time of this event."""
    before = [one for one in record.moves.get(row.uid, ()) if one.n <= move.n]
    if not before:
        return row
    return changed(row, {"state": before[-1].to_state, "came_from": before[-1].frm})
