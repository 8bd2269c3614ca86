"""The audit can fail: every count goes up when the world or the ledger is broken on purpose."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from amends import Runtime
from amends.ledger import operations, plain
from amends.ledger.dispatch import READS
from amends.ledger.operations import StoreOp
from amends.stores.sqlite.store import SqliteStore
from tests.chaos.audit import COUNTS, audit
from tests.chaos.plans import Plan, Planned, Want, play
from tests.chaos.points import CALLERS, DURING, NAMES, WORKERS, Fate, MortalStore
from tests.chaos.tools import TRAITS, Kit
from tests.chaos.world import Line, Traits, World, standing

DONE, BACK, DOUBT = 0, 1, 2
IDS = {"done": DONE, "back": BACK, "doubt": DOUBT}


@dataclass(slots=True)
class Small:
    """Three runs: one committed, one taken back, one that waits for a person."""

    folder: Path
    world: World
    kit: Kit
    rt: Runtime

    def counts(self) -> Counter[str]:
        """What the audit finds."""
        return Counter(one.count for one in audit(self.rt, self.rt._host.store, self.world, run_ids=IDS))

    def lines(self, number: int) -> list[str]:
        """What the world has of a run."""
        return self.world.path(number).read_text(encoding="utf-8").splitlines(keepends=True)

    def rewrite(self, number: int, change: Callable[[list[str]], list[str]]) -> None:
        """Break the world."""
        self.world.path(number).write_text("".join(change(self.lines(number))), encoding="utf-8")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    world = World(tmp_path / "world")
    world.make(len(IDS))
    kit = Kit(world)
    with Runtime(store=SqliteStore(tmp_path / "ledger.db", "NORMAL"), tools=kit.tools.values(), wait=0) as rt:
        wants = (Want("charge", "0"), Want("book", "1"), Want("note", "2"))
        with rt.run("done") as run:
            play(run, kit.tools, Plan(DONE, "rollback", wants), 1)
        with pytest.raises(Planned), rt.run("back") as run:
            play(run, kit.tools, Plan(BACK, "rollback", wants, "raise"), 1)
        with pytest.raises(Exception, match="is blocked"), rt.run("doubt") as run:
            play(run, kit.tools, Plan(DOUBT, "rollback", (Want("note", "0", "answer lost"),)), 1)
        yield Small(tmp_path, world, kit, rt)


def test_a_true_ledger_and_a_doubt_that_waits_visibly_count_nothing(small: Small) -> None:
    assert small.counts() == Counter()
    assert small.rt.report("doubt").state == "blocked"


def test_an_effect_twice_is_duplicated(small: Small) -> None:
    small.rewrite(DONE, lambda lines: [*lines, lines[0]])
    assert small.counts() == Counter(duplicated=1)


def test_a_compensation_twice_is_duplicated(small: Small) -> None:
    undo = next(line for line in small.lines(BACK) if '"undo", "note"' in line)
    small.rewrite(BACK, lambda lines: [*lines, undo])
    assert small.counts() == Counter(duplicated=1)


def test_what_an_idempotent_destination_gets_twice_happened_once(small: Small) -> None:
    booked = next(line for line in small.lines(DONE) if '"do", "book"' in line)
    small.rewrite(DONE, lambda lines: [*lines, booked])
    assert small.counts() == Counter()


def test_a_success_without_an_effect_is_lost(small: Small) -> None:
    small.rewrite(DONE, lambda lines: lines[1:])
    assert small.counts() == Counter(lost=1)


def test_an_effect_that_the_ledger_does_not_know_is_lost(small: Small) -> None:
    small.world.note(DONE, "do", "charge", key="x", call="call_x", run="done", attempt=1)
    assert small.counts() == Counter(lost=1)


def test_an_effect_that_a_rolled_back_run_left_is_lost_and_unnamed(small: Small) -> None:
    small.rewrite(BACK, lambda lines: [line for line in lines if '"undo", "charge"' not in line])
    assert small.counts() == Counter(lost=1, unnamed=1)


def test_a_commit_that_was_told_and_is_none_is_lost(small: Small) -> None:
    small.world.note(BACK, "told", "", key="", call="", run="back", attempt=0)
    assert small.counts() == Counter(lost=1)


def test_a_run_that_never_came_into_the_ledger_is_lost(small: Small) -> None:
    found = audit(small.rt, small.rt._host.store, small.world, run_ids={"never": 0})
    assert "lost" in {one.count for one in found}


def test_a_run_that_nobody_ended_is_stuck(small: Small) -> None:
    left = small.rt.open("done-2")
    left.call(small.kit.tools["charge"], n=DONE, item="more", mood="")
    found = audit(small.rt, small.rt._host.store, small.world, run_ids={"done-2": DONE})
    assert "stuck" in {one.count for one in found}


def test_a_doubt_of_a_tool_that_needs_no_person_is_stuck(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAITS, "note", Traits(safe=True))
    assert small.counts() == Counter(stuck=1)


def test_a_child_s_pivot_that_outlives_its_parent_is_named_and_waits_for_a_person(small: Small) -> None:
    wants = (
        Want("charge", "0"),
        Want("charge", "in 0", child="part"),
        Want("ship", "in pivot", child="part"),
    )
    with pytest.raises(Exception, match="is blocked"), small.rt.run("kept") as run:
        play(run, small.kit.tools, Plan(3, "rollback", wants, "raise"), 1)
    assert audit(small.rt, small.rt._host.store, small.world, run_ids={"kept": 3}) == []
    small.world.note(3, "do", "charge", key="y", call=_first_call(small, "kept"), run="kept", attempt=1)
    found = audit(small.rt, small.rt._host.store, small.world, run_ids={"kept": 3})
    assert {one.count for one in found} == {"duplicated", "lost", "unnamed"}


def _first_call(small: Small, run_id: str) -> str:
    return small.rt.report(run_id).calls[0].id


def test_what_stands_and_is_no_call_of_the_ledger_s_any_more_breaks_the_record(small: Small) -> None:
    store = small.rt._host.store
    assert isinstance(store, SqliteStore)
    assert store._writer is not None
    charge = "(select no from amends_tool where name = 'charge')"
    store._writer.raw.execute(f"update amends_call set state = 'failed' where tool in {charge} and state = 'succeeded'")
    counts = small.counts()
    assert counts["lost"] == 1
    assert counts["event_per_transition"] == 1
    assert set(counts) - set(COUNTS) == {"event_per_transition", "record_is_whole"}


@pytest.mark.parametrize(
    "change",
    [
        "amends_call set settled_at = settled_at + 1 where settled_hash is not null",
        "amends_call set result = '\"other\"' where settled_hash is not null",
        "amends_call set undone_hash = comp_hash where undone_hash is not null",
        "amends_event set facts = '{}' where what = 'run'",
    ],
)
def test_a_record_that_somebody_has_edited_is_not_whole(small: Small, change: str) -> None:
    """In the rows of events, and in the columns of calls that events are folded into."""
    store = small.rt._host.store
    assert isinstance(store, SqliteStore)
    assert store._writer is not None
    assert store._writer.raw.execute(f"update {change}").rowcount > 0, "there is something to edit"
    assert small.counts()["record_is_whole"] > 0


def test_a_late_effect_after_a_blind_compensation_stands_and_happened_once() -> None:
    undo = Line("undo", "reserve", "u", "call_1", "run", 1, 1, 0.0)
    there = standing([undo, replace(undo, what="do", key="d")], TRAITS)
    assert there.stands("call_1")
    assert there.done == Counter(call_1=1)
    assert not there.undone
    assert not standing([replace(undo, what="do", key="d"), undo], TRAITS).stands("call_1")


# ---- the killer ---------------------------------------------------------------------------


def test_a_process_meets_its_fate_at_its_point_and_at_no_other() -> None:
    points = {*CALLERS, *WORKERS, *DURING}
    for point in points:
        met: list[int] = []

        def note(number: int, frame: object, met: list[int] = met) -> None:
            met.append(number)

        kept = signal.signal(signal.SIGUSR1, note)
        try:
            fate = Fate(point, 2, signal.SIGUSR1)
            for other in (*(points - {point}), point):
                fate.passing(other)
            assert not met, point
            fate.passing(point)
            assert met == [signal.SIGUSR1], point
            fate.passing(point)
            assert met == [signal.SIGUSR1], point
        finally:
            signal.signal(signal.SIGUSR1, kept)


def test_every_operation_that_writes_a_run_s_way_is_a_point() -> None:
    reads = {one.__name__ for one in READS}
    persons = {"DecideCall", "RetryCall", "AbandonRun", "FinishRun", "CollectGarbage", "AcceptCall", "ForkRun"}
    persons |= {
        "DecideApproval",
        "RenewRequest",
        "EditApproval",
        "VoidApproval",
        "Delegate",
        "LoadRecords",
        "RewriteTexts",
        "Permit",
        "RevokePermit",
        "Halt",
        "Unhalt",
        "MakeToken",
        "EndToken",
        "OrderWork",
        "EraseTree",
        "EndScrub",
    }
    quiet = {
        "NoteEvidence",
        "NoteReport",
        "NoteDriver",
        "ReserveTools",
        "WatchDoubt",
        "NoteValue",
        "ClaimNotice",
        "RecordNotice",
        "ExpireApprovals",
        "FollowTimetable",
        "PinKey",
    }
    quiet |= {"WriteCheckpoint", "CountReplays"}
    known = {**vars(operations), **vars(plain)}
    every = {name for name, one in known.items() if isinstance(one, type) and issubclass(one, StoreOp)}
    assert {one.__name__ for one in NAMES} == every - reads - persons - quiet - {"StoreOp"}


def test_a_store_is_died_of_before_inside_and_after_an_operation(tmp_path: Path) -> None:
    passed: list[str] = []

    class Noting(Fate):
        def passing(self, point: str) -> None:
            passed.append(point)

    fate = Noting("during open", 0)
    monitor = MortalStore("sqlite:", lambda clock: SqliteStore(tmp_path / "l.db", "NORMAL", clock), fate)
    with Runtime(store=monitor, tools=()) as rt, rt.run("one"):
        pass
    opened = [point for point in passed if point.endswith(" open")]
    assert opened[0] == "before open"
    assert opened[-1] == "after open"
    assert "during open" in opened
