"""The record of a run as its program saw it: every request, what it was told, and in which order.

A run may have been executed more than once: it was held and opened again, or a worker resumed it after a crash. Each
time its program started from the beginning, was answered from the record, and did its reads again. The last execution is
replayed. Requests that only earlier executions made can be answered, and need not be made.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Final, Literal, TypeAlias

from amends.encoding.dataclass import dataclass, field
from amends.ledger.operations import VALUE, Tree
from amends.ledger.rows import ApprovalRow, CallRow, EventRow, RunRow
from amends.states import NEW

Sight: TypeAlias = Literal[
    "done", "recorded", "failed", "told_failed", "staged", "held", "rejected", "doubt", "refused"
]
"""What a request was told. ``recorded`` and ``told_failed``: its result and its failure from an earlier execution."""
_SETTLED: Final = frozenset({"done", "recorded", "failed", "told_failed", "rejected"})
_ERROR: Final = re.compile(r"[A-Z]\w*: ")
"""How the reason of a rollback begins if it was an error: with the name of its class."""
_FLOWS: Final = frozenset({"probe", "evidence"})
_UNDOING: Final = frozenset(
    {"compensating", "compensated", "dropped", "compensation_failed", "compensation_in_doubt", "residue"}
)
"""States that a call enters because a run is rolled back."""
_ENDS: Final = frozenset({"blocked", "committed", "rolled_back"})
"""States that opening or leaving a run can bring it to."""


@dataclass(slots=True, eq=False)
class Entry:
    """One request of the record. ``row`` is None for a refused request, which is an event and not a call."""

    row: CallRow | None
    run: str
    tool: str
    sights: tuple[Sight, ...]
    asked_at: float = 0.0
    answered_at: float = inf
    """Its places in the ledger's order. A request must come after all that were answered before it was made."""
    needed: bool = True
    """Whether the program made it in the replayed execution."""
    required: bool = True
    """Whether the program must make it. It may skip an earlier failure and use other arguments."""
    nested: bool = False
    """Whether the body of another call made it; in a replay no body runs."""
    landed_at: float = inf
    """The place at which a staged call had run."""
    old: bool = False
    """Whether it existed before the replayed execution, so that it answers the whole tree."""
    begun_at: float = inf
    """The place at which its first attempt began."""
    moves: Sequence[EventRow] = ()
    """Every change of the call's state, in the ledger's order."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    asks: int = 0

    @property
    def last(self) -> Sight:
        """What it was told last."""
        return self.sights[-1]

    def state_at(self, undone: float, reached: float) -> str:
        """Return the call's state at a place in the ledger.

        ``undone``: the place up to which rollbacks of its run count; ``reached``: the place up to which everything else
        counts. They differ because other threads may be ahead of the one that leaves a run.
        """
        state = "" if self.moves or self.row is None else self.row.state
        for move in self.moves:
            if move.n > undone and (move.n > reached or move.to_state in _UNDOING):
                break
            state = move.to_state
        return state


Name: TypeAlias = tuple[str, str, str]
"""The meaning of a request: the tool, the digest of its identity, the reason for a deliberate repeat."""


@dataclass(slots=True, eq=False)
class Record:
    """The tree of one run, as a replay needs it."""

    run: RunRow
    runs: dict[str, RunRow]
    entries: list[Entry]
    """In the order of the requests."""
    by_name: dict[Name, list[Entry]]
    by_call: dict[str, Entry]
    values: dict[tuple[str, str], list[float]]
    """Recorded times, by run and by the call in whose body the clock was read."""
    approvals: dict[str, ApprovalRow]
    by_key: dict[str, list[Entry]]
    """Calls by their key, in order of generation."""
    began: float
    """The place at which the replayed execution began."""
    moves: dict[str, list[EventRow]]
    """Every change of a run's state, by run."""
    goals: dict[str, list[EventRow]]
    """Every decision to commit a run or to roll it back, by run."""
    places: list[tuple[float, str]]
    """Places, in order, at which the program itself acted: made a request, read the clock, opened or left a run.

    Each with the run that it left, or empty.
    """
    resumed: bool
    tree: Tree

    def rollback_error(self, uid: str) -> str:
        """Return the error by which the program left this run; empty if there was none, or if it is not known."""
        run = self.runs[uid]
        end = self.end_after(uid, self.began)
        own = run.goal == "rollback" and run.goal_by == "self" and (end is None or end.to_state != "committed")
        return run.goal_why if own and _ERROR.match(run.goal_why) else ""

    def left_by(self, uid: str, place: float) -> str:
        """Return the error by which the program next left this run after ``place``; empty if there was none."""
        goal = next((goal for goal in self.goals.get(uid, ()) if goal.n > place), None)
        why = "" if goal is None or goal.to_state != "rollback" else str(json.loads(goal.facts).get("why", ""))
        return why if _ERROR.match(why) else ""

    def end_after(self, uid: str, place: float, before: float = inf) -> EventRow | None:
        """Return the first event between two places that blocked, committed or rolled back the run."""
        moves = self.moves.get(uid, ())
        return next((move for move in moves if place < move.n < before and move.to_state in _ENDS), None)

    def next_place(self, place: float, opens: str) -> float:
        """Return the next place at which the program itself acted, after it opened the run ``opens``.

        Ends of runs inside it do not count: the opening itself closed them.
        """
        for at in range(bisect_right(self.places, (place, "~")), len(self.places)):
            seq, left = self.places[at]
            if not self.is_inside(left, opens):
                return seq
        return inf

    def is_inside(self, run: str, other: str) -> bool:
        """Return whether ``run`` is inside another run, at any depth."""
        while run in self.runs:
            run = self.runs[run].parent
            if run == other:
                return True
        return False

    def opened_at(self, uid: str) -> float:
        """Return the place at which this run was created."""
        moves = self.moves.get(uid)
        return moves[0].n if moves else 0.0


@dataclass(slots=True)
class _Events:
    """The events of a tree, by kind."""

    moves: dict[str, list[EventRow]] = field(default_factory=dict)
    refusals: list[EventRow] = field(default_factory=list)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    states: dict[str, list[EventRow]] = field(default_factory=dict)
    goals: dict[str, list[EventRow]] = field(default_factory=dict)
    clock: list[float] = field(default_factory=list)
    """The places at which the program itself read the clock."""
    last: int = 1
    """The newest epoch in which the program did something other than a call."""
    starts: dict[int, float] = field(default_factory=dict)
    """The place of the first event of each epoch."""


def _told(events: Iterable[EventRow], tree: Tree) -> _Events:
    told, mine = _Events(), {run.uid for run in tree.runs}
    moves = told.moves
    for event in events:
        if event.epoch not in told.starts:
            told.starts[event.epoch] = event.n
        if event.what in ("call", "shared"):
            if event.call in moves:
                moves[event.call].append(event)
            else:
                moves[event.call] = [event]
        elif event.what == "run":
            told.states.setdefault(event.run, []).append(event)
            if event.frm == "(new)" and event.run != tree.run.uid:
                told.last = max(told.last, event.epoch)
        elif event.what == "goal":
            told.goals.setdefault(event.run, []).append(event)
            if event.run == tree.run.uid and _is_programs(event):
                told.last = max(told.last, event.epoch)
        elif event.what == "refused" and event.run in mine:
            told.refusals.append(event)
            told.last = max(told.last, event.epoch)
        elif event.what == VALUE and event.run in mine:
            told.last = max(told.last, event.epoch)
            told.values.setdefault((event.run, event.call), []).append(event.at)
            if not event.call:
                told.clock.append(event.n)
    return told


def _is_programs(goal: EventRow) -> bool:
    """Return whether the program decided this by leaving its block, rather than a worker, a person or the deadline."""
    return goal.to_state == "commit" or bool(_ERROR.match(str(json.loads(goal.facts).get("why", ""))))


def read_record(tree: Tree, events: Iterable[EventRow]) -> Record:
    """Return the record of this tree; ``events``: all events of the tree, in the ledger's order."""
    mine = {run.uid: run for run in tree.runs}
    told = _told(events, tree)
    moves = told.moves
    last = max((max(row.asked_epoch, row.created_epoch) for row in tree.calls), default=1)
    last = max(last, told.last)
    first = 0 if tree.run.history else last
    ended = {uid for uid, states in told.states.items() if _had_ended(states, first)}
    entries = [_entry_of(row, moves.get(row.id, ()), last, first, ended) for row in tree.calls]
    entries += [_refusal(event) for event in told.refusals if event.epoch >= first and "ident" in event.facts]
    entries.sort(key=lambda entry: entry.asked_at)
    begins = [seq for epoch, seq in told.starts.items() if epoch >= first]
    record = Record(
        run=tree.run,
        runs=mine,
        entries=entries,
        by_name={},
        by_call={entry.row.id: entry for entry in entries if entry.row is not None},
        by_key={},
        values=told.values,
        approvals={asked.id: asked for asked in tree.approvals},
        began=min(begins) - 1 if first > 1 and begins else 0.0,
        moves=told.states,
        goals=told.goals,
        places=_places(entries, told),
        resumed=last > 1,
        tree=tree,
    )
    for entry in entries:
        record.by_name.setdefault(_name_of(entry), []).append(entry)
        if entry.row is not None:
            record.by_key.setdefault(entry.row.key, []).append(entry)
    for generations in record.by_key.values():
        _order(generations)
    _show_holds(record)
    return record


def _places(entries: Iterable[Entry], told: _Events) -> list[tuple[float, str]]:
    places = [(entry.asked_at, "") for entry in entries if not entry.nested]
    places += [(seq, "") for seq in told.clock]
    places += [(moves[0].n, "") for moves in told.states.values()]
    places += [(goal.n, goal.run) for goals in told.goals.values() for goal in goals if _is_programs(goal)]
    return sorted(places)


def _order(generations: list[Entry]) -> None:
    """Sort the calls of one key by generation; those that were rolled back before the next one are not required.

    The ledger marks the newest generation as requested even if it was rolled back and answered no request.
    """
    generations.sort(key=lambda entry: 0 if entry.row is None else entry.row.generation)
    for older, newer in pairwise(generations):
        gone = (move.n for move in older.moves if move.to_state in ("compensated", "dropped"))
        if older.old and not newer.old and any(seq < newer.asked_at for seq in gone):
            older.required = False


def _name_of(entry: Entry) -> Name:
    if entry.row is None:
        return entry.tool, str(entry.facts["ident"]), str(entry.facts.get("again", ""))
    return entry.tool, entry.row.ident, entry.row.again


def _refusal(event: EventRow) -> Entry:
    facts: Mapping[str, Any] = json.loads(event.facts)
    return Entry(
        None, event.run, str(facts.get("asks") or facts["tool"]), ("refused",), asked_at=event.n, answered_at=event.n,
        needed=not facts.get("parent"), required=not facts.get("parent"), nested=bool(facts.get("parent")), facts=facts,
    )  # fmt: skip


def _had_ended(moves: Sequence[EventRow], first: int) -> bool:
    """Return whether a run was committed before the execution began whose epoch is ``first``."""
    before = [move.to_state for move in moves if move.epoch < first]
    return bool(before) and before[-1] == "committed"


def _entry_of(row: CallRow, moves: Sequence[EventRow], last: int, first: int, ended: Container[str]) -> Entry:
    """Return the entry of a call: its state when the last execution began, and what that execution was told of it.

    ``last``: the newest epoch of the program. ``first``: the epoch in which the replayed execution began; 0 for a run
    with ``history``, whose executions are all replayed. ``ended``: runs that were committed before it began.
    """
    if _is_plain(row, moves, last, first):
        begun, done = moves
        return Entry(
            row, begun.run, row.tool, _DONE, asked_at=row.seq, answered_at=done.n, begun_at=begun.n, moves=moves
        )  # fmt: skip
    # The run that made the request: a staged call of a child belongs to the parent after the child has committed.
    asked_in = moves[0].run if moves else row.run
    entry = Entry(row, asked_in, row.tool, (), asked_at=row.seq, nested=bool(row.parent), moves=moves)
    asked = row.asked_epoch == last or row.created_epoch == last
    if row.kind == "read" and not row.shared and row.created_epoch < first and row.run in ended:
        asked = False  # a committed child returned it again: it answers that child, and need not be requested
    entry.needed = not entry.nested and (asked or (first < last and row.kind != "read"))
    before = [move for move in moves if move.epoch < first] if row.created_epoch < first else ()
    if before:
        moves = moves[len(before) :]
        entry.old = True
        entry.asked_at = 0.0  # it was requested again, but it is not recorded when
        sights = _sights_before(row, before[-1].to_state)
        if not sights and before[-1].to_state not in ("started", "ready", "backing_off"):
            entry.needed = False  # it was rolled back, fully or in part: it answers no request, or is in doubt
    else:
        sights = []
    for move in moves:
        if move.to_state == "held" and '"reason": "before"' in move.facts:
            continue  # what is there before it was read: the program was told nothing yet
        if move.epoch <= last:  # the program was not told of later changes
            _see(entry, sights, move)
    if not sights and row.state == "dropped":
        entry.needed = False  # its flow was stopped before it started
    entry.sights = tuple(sights) or ("doubt",)
    entry.required = entry.needed and entry.sights != ("told_failed",)
    return entry


_DONE: Final[tuple[Sight, ...]] = ("done",)


def _is_plain(row: CallRow, moves: Sequence[EventRow], last: int, first: int) -> bool:
    """Return whether the call was made in the replayed execution, started at once, and succeeded there."""
    if len(moves) != 2 or row.parent or row.created_epoch < first or row.created_epoch != last:
        return False
    begun, done = moves
    return (
        begun.what == done.what == "call"
        and (begun.frm, begun.to_state, done.frm, done.to_state) == (NEW, "started", "started", "succeeded")
        and begun.epoch == done.epoch == last
        and row.seq > 0
    )


def _sights_before(row: CallRow, state: str) -> list[Sight]:
    match state:
        case "succeeded":
            return ["recorded"]
        case "failed":
            return ["told_failed"]
        case "refused":
            return ["rejected"]
        case "held" | "ready" if row.reason in ("order", "lock"):
            return ["staged"]
        case "backing_off" if row.kind == "retriable":
            return ["staged"]
        case "held":
            return ["held"]
        case "in_doubt" | "compensation_in_doubt" | "compensation_failed" | "residue":
            return ["doubt"]
        case _:
            return []


def _see(entry: Entry, sights: list[Sight], move: EventRow) -> None:
    """Add to ``sights`` what one change of the call's state told the program."""
    row = entry.row
    assert row is not None, "only a call changes its state"
    told: Sight | None = None
    if move.to_state == "started" and entry.begun_at == inf:
        entry.begun_at = move.n
        if not entry.asked_at and sights[:1] != ["staged"]:
            entry.asked_at = move.n  # it had waited for a person; requested again, it started
    match move.to_state:
        case "dropped" if move.frm == "ready" and row.error:
            told = "failed"  # what is there before it could not be read
        case "held":
            told = "staged" if row.reason in ("order", "lock") else "held"
        case "succeeded" if sights[-1:] == ["staged"]:
            entry.landed_at = move.n
        case "succeeded" if move.frm in ("failed", "compensated"):
            pass  # late evidence: the program was told something else
        case "succeeded":
            told = "done"
        case "failed" if move.frm != "in_doubt" or sights[-1:] == ["doubt"]:
            told = "failed"
        case "in_doubt":
            told = "doubt"
        case "backing_off" if row.kind == "retriable" and sights[-1:] != ["staged"]:
            told = "staged"
        case "refused":
            told = "rejected"
    if told is None:
        return
    if sights[-1:] == ["doubt"] and (move.by_whom in _FLOWS or move.frm == "started"):
        sights.pop()  # the doubt was resolved while the caller waited
    sights.append(told)
    if entry.answered_at == inf and entry.asked_at:
        entry.answered_at = move.n


def _show_holds(record: Record) -> None:
    """Keep "held" in what a request was told only if its caller continued after it.

    A caller that waits is told only the decision; then there is no other request in between.
    """
    held = [entry for entry in record.entries if len(entry.sights) > 1 and entry.sights[0] == "held"]
    for entry in held:
        others = (other for other in record.entries if other is not entry and other.needed)
        if not any(entry.asked_at < other.asked_at < entry.begun_at for other in others):
            entry.sights = entry.sights[1:]
