"""What the record of a run says that its program saw: every request, what it was told, and in which order.

A run may have been executed more than once: it was held and opened again, or a worker went on with it after a crash.
Its program began anew each time, was answered from the record, and read anew. The execution that is replayed is the
last one; what only earlier ones asked for is there to answer, and nobody has to ask for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Final, Literal, TypeAlias

from amends.approvalrows import ApprovalRow
from amends.ledger import Tree
from amends.record import dataclass, field
from amends.rows import CallRow, EventRow, RunRow
from amends.valueops import VALUE

Sight: TypeAlias = Literal[
    "done", "recorded", "failed", "told_failed", "staged", "held", "rejected", "doubt", "refused"
]
"""What a request was told. ``recorded``: its result from an earlier execution; ``told_failed``: its failure from one."""
_SETTLED: Final = frozenset({"done", "recorded", "failed", "told_failed", "rejected"})
_ERROR: Final = re.compile(r"[A-Z]\w*: ")
"""How the word for a rollback begins where an error was the reason: with the name of its class."""
_FLOWS: Final = frozenset({"probe", "evidence"})


@dataclass(slots=True, eq=False)
class Entry:
    """One request of the record. ``row`` is None for one that was refused: that is an event and no call."""

    row: CallRow | None
    run: str
    tool: str
    sights: tuple[Sight, ...]
    asked_at: float = 0.0
    answered_at: float = inf
    """Its places in the ledger's order; what was answered before another was asked for must come before it."""
    needed: bool = True
    """Whether the program asked for it in the execution that is replayed."""
    required: bool = True
    """Whether it must be asked for. A failure from before may have been passed over for other arguments."""
    nested: bool = False
    """The body of another call asked for it; no body runs here."""
    landed_at: float = inf
    """Of what was staged: when it had run."""
    old: bool = False
    """It was there before the execution that is replayed: it answers the whole tree."""
    begun_at: float = inf
    """When its first attempt began."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    asks: int = 0
    freed: bool = False
    """Taken back by the failure of the child run that it was in: the key is free again."""

    @property
    def last(self) -> Sight:
        """What it was told in the end."""
        return self.sights[-1]

    @property
    def answers_again(self) -> bool:
        """Whether the same request is answered from it once more, instead of being the next one."""
        return not self.freed and self.last not in ("failed", "told_failed", "refused")


Name: TypeAlias = tuple[str, str, str]
"""A request by what it asks for: the tool, the digest of its meaning, the word for a deliberate repeat."""


@dataclass(slots=True, eq=False)
class Record:
    """One run's tree, as a replay needs it."""

    run: RunRow
    runs: dict[str, RunRow]
    entries: list[Entry]
    """In the order in which they were asked for."""
    by_name: dict[Name, list[Entry]]
    by_call: dict[str, Entry]
    values: dict[tuple[str, str], list[float]]
    """What the clock said, by run and by the call in whose body it was read."""
    approvals: dict[str, ApprovalRow]
    before: dict[str, str]
    """The state of every run inside it that was there when the execution that is replayed began."""
    blocked: dict[str, EventRow]
    """Those that were left blocked in it: how each came to be so first."""
    decided: frozenset[str]
    """Those whose block had ended before: opened again they were committed first of all."""
    gone: frozenset[str]
    """Those that had been taken back before, or were when they were opened again: then they were new ones."""
    ends: dict[str, str]
    """What each came to first when it was left in it."""
    blocks: dict[str, EventRow]
    """Those that were blocked before: how."""
    resumed: bool
    tree: Tree

    def went_back_over(self, uid: str) -> str:
        """The error that its program left this run by, as it is recorded; empty: it did not, or nobody can tell."""
        run = self.runs[uid]
        own = run.goal == "rollback" and run.goal_by == "self" and self.ends.get(uid) != "committed"
        return run.goal_why if own and _ERROR.match(run.goal_why) else ""

    def within(self, run: str) -> set[str]:
        """This run and those inside it, at any depth."""
        found = {run}
        for one in self.tree.runs:  # parents come first
            if one.parent in found:
                found.add(one.uid)
        return found

    def goes_on_in(self, run: str) -> bool:
        """Whether something was asked for in this run in the execution that is replayed."""
        return any(entry.run == run and entry.needed for entry in self.entries)

    def obstacle(self, run: str) -> EventRow | None:
        """What a run that was there before could not go on for when it was opened again; None: it went on."""
        was_over = self.before.get(run) in ("rolling_back", "blocked") or (run in self.before and run in self.decided)
        # What another run asked for of it since is no sign that it went on: nothing became of it.
        stands = self.before.get(run) == "blocked" and run in self.decided and run not in self.ends
        if not was_over or (self.goes_on_in(run) and not stands):
            return None
        return self.blocked.get(run) or (self.blocks.get(run) if self.before[run] == "blocked" else None)


@dataclass(slots=True)
class _Events:
    """The events of a tree, by what they tell."""

    moves: dict[str, list[EventRow]] = field(default_factory=dict)
    refusals: list[EventRow] = field(default_factory=list)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    states: list[EventRow] = field(default_factory=list)
    goals: list[EventRow] = field(default_factory=list)
    last: int = 1
    """The newest epoch in which the program asked for something that is no call: it was refused, or read the clock."""


def _told(events: Iterable[EventRow], mine: Mapping[str, RunRow]) -> _Events:
    told = _Events()
    moves = told.moves
    for event in events:
        if event.what in ("call", "shared"):
            known = moves.get(event.call)
            if known is None:
                moves[event.call] = [event]
            else:
                known.append(event)
        elif event.what == "run":
            told.states.append(event)
        elif event.what == "goal" and event.to_state == "commit":
            told.goals.append(event)
        elif event.what == "refused" and event.run in mine:
            told.refusals.append(event)
            told.last = max(told.last, event.epoch)
        elif event.what == VALUE and event.run in mine:
            told.last = max(told.last, event.epoch)
            told.values.setdefault((event.run, event.call), []).append(event.at)
    return told


def read_record(tree: Tree, events: Iterable[EventRow]) -> Record:
    """The record of this tree; ``events``: all of the tree's, in ledger order."""
    mine = {run.uid: run for run in tree.runs}
    told = _told(events, mine)
    moves, states = told.moves, told.states
    last = max((max(row.asked_epoch, row.created_epoch) for row in tree.calls), default=1)
    last = max(last, told.last)
    first = 0 if tree.run.history else last
    entries = [one for row in tree.calls if (one := _entry_of(row, moves.get(row.id, ()), last, first)) is not None]
    entries += [_refusal(event) for event in told.refusals if event.epoch >= first and "ident" in event.facts]
    entries.sort(key=lambda entry: entry.asked_at)
    before = {event.run: event.to_state for event in states if event.epoch < first}
    left = _left_as(event for event in states if event.epoch >= first)
    gone = _gone(tree.runs, before, left)
    entries = [entry for entry in entries if entry.run not in gone or entry.asked_at or entry.last == "told_failed"]
    record = Record(
        run=tree.run,
        runs=mine,
        entries=entries,
        by_name={},
        by_call={entry.row.id: entry for entry in entries if entry.row is not None},
        values=told.values,
        approvals={asked.id: asked for asked in tree.approvals},
        before=before,
        decided=frozenset(event.run for event in told.goals if event.epoch < first),
        gone=gone,
        blocks={event.run: event for event in states if event.epoch < first and event.to_state == "blocked"},
        ends={run: move.to_state for run, move in left.items()},
        blocked={run: move for run, move in left.items() if move.to_state == "blocked"},
        resumed=last > 1,
        tree=tree,
    )
    for entry in entries:
        record.by_name.setdefault(_name_of(entry), []).append(entry)
    _show_holds(record)
    return record


def _gone(runs: Iterable[RunRow], before: Mapping[str, str], left: Mapping[str, EventRow]) -> frozenset[str]:
    newest: dict[str, int] = {}
    for run in runs:
        newest[run.id] = max(run.generation, newest.get(run.id, 0))
    ended = {run: move.to_state for run, move in left.items()}
    found = (
        run.uid
        for run in runs
        if before.get(run.uid) == "rolled_back"
        or (
            before.get(run.uid) in ("rolling_back", "blocked")
            and ended.get(run.uid) == "rolled_back"
            and run.generation < newest[run.id]
        )
    )
    return frozenset(found)


def _left_as(states: Iterable[EventRow]) -> dict[str, EventRow]:
    """What each run came to first when it was left."""
    left: dict[str, EventRow] = {}
    for move in states:
        if move.to_state in ("blocked", "committed", "rolled_back"):
            left.setdefault(move.run, move)
    return left


def _name_of(entry: Entry) -> Name:
    if entry.row is None:
        return entry.tool, str(entry.facts["ident"]), str(entry.facts.get("again", ""))
    return entry.tool, entry.row.ident, entry.row.again


def _refusal(event: EventRow) -> Entry:
    facts: Mapping[str, Any] = json.loads(event.facts)
    return Entry(
        None, event.run, str(facts.get("asks") or facts["tool"]), ("refused",), asked_at=event.seq, answered_at=event.seq,
        needed=not facts.get("parent"), required=not facts.get("parent"), nested=bool(facts.get("parent")), facts=facts,
    )  # fmt: skip


def _entry_of(row: CallRow, moves: Sequence[EventRow], last: int, first: int) -> Entry | None:
    """Where it stood when the last execution began, and what that was told of it.

    ``first``: the epoch in which that execution began; with the model's own history it is all of them.
    """
    # Where it was asked for: what a child had staged is its parent's once the child has committed.
    asked_in = moves[0].run if moves else row.run
    entry = Entry(row, asked_in, row.tool, (), asked_at=row.seq, nested=bool(row.parent))
    asked = row.asked_epoch == last or row.created_epoch == last
    if row.kind == "read" and not row.shared and row.created_epoch < first:
        asked = False  # a child that had committed gave it again: it answers that child, and nobody has to ask for it
    entry.needed = not entry.nested and (asked or (first < last and row.kind != "read"))
    before = [move for move in moves if move.epoch < first] if row.created_epoch < first else ()
    if before:
        moves = moves[len(before) :]
        entry.old = True
        entry.asked_at = 0.0  # asked for again, nobody wrote down when
        sights = _sights_before(row, before[-1].to_state)
        if not sights and before[-1].to_state not in ("started", "ready", "backing_off"):
            return None  # it was taken back before: the key was free again
    else:
        sights = []
    for move in moves:
        _see(entry, sights, move)
    entry.sights = tuple(sights) or ("doubt",)
    entry.required = entry.needed and entry.sights != ("told_failed",)
    return entry


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
    """What one change of the call's state meant to who had asked for it."""
    row = entry.row
    assert row is not None, "only a call moves"
    told: Sight | None = None
    if move.to_state == "started" and entry.begun_at == inf:
        entry.begun_at = move.seq
        if not entry.asked_at and sights[:1] != ["staged"]:
            entry.asked_at = move.seq  # it had waited for a person; asked for again it began
    match move.to_state:
        case "held":
            told = "staged" if row.reason in ("order", "lock") else "held"
        case "succeeded" if sights[-1:] == ["staged"]:
            entry.landed_at = move.seq
        case "succeeded" if move.frm in ("failed", "compensated"):
            pass  # late evidence: whoever asked was told something else
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
        sights.pop()  # the doubt was settled while its caller waited
    sights.append(told)
    if entry.answered_at == inf and entry.asked_at:
        entry.answered_at = move.seq


def _show_holds(record: Record) -> None:
    """Keep the word that a call is held only where its caller went on with it.

    Who waits in place is told the decision alone; then nothing else was asked for between the two.
    """
    held = [entry for entry in record.entries if len(entry.sights) > 1 and entry.sights[0] == "held"]
    for entry in held:
        others = (other for other in record.entries if other is not entry and other.needed)
        if not any(entry.asked_at < other.asked_at < entry.begun_at for other in others):
            entry.sights = entry.sights[1:]
