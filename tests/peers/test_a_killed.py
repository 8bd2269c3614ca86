"""Experiment a: killed after the effect and before its record. Real processes, SIGKILL, a file as the world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amends import Absent, Happened, RunBlocked, Unknown
from tests.peers import trip


def _outcome(folder: Path, variant: str, verb: str, *, at: str) -> trip.Trip:
    made = trip.Trip(folder, variant)
    made.killed(verb, at=at)
    return made


def _standing(made: trip.Trip) -> dict[str, int]:
    return {name: len(made.world.standing(name)) for name in trip.NAMES}


NOTHING = dict.fromkeys(trip.NAMES, 0)
ALL = dict.fromkeys(trip.NAMES, 1)


def test_a_restart_runs_no_effect_a_second_time_and_shows_the_doubt(tmp_path: Path) -> None:
    """saga-agent 1.4 a, AgentRelay 3.4 a: the restart booked everything again, the first effects were orphaned."""
    made = _outcome(tmp_path, "plain", "resume", at="after charge")
    with pytest.raises(RunBlocked):
        made.here("resume")
    assert [len(made.world.entries(name)) for name in trip.NAMES] == [1, 1, 1]
    report = made.report("trip-7")
    assert [call.tool for call in report.doubts] == ["charge"]
    assert any("resolve" in cause for cause in report.run.causes)


@pytest.mark.parametrize("word", [Happened("charge-1"), Absent(), Unknown()], ids=["happened", "absent", "unknown"])
def test_the_doubt_of_a_kill_has_a_way_out_by_a_persons_word(tmp_path: Path, word: Any) -> None:
    """SafeAgent 2.4 a: claim_pending for ever, no API to resolve. agent-ledger 4.3: stuck on every retry."""
    made = _outcome(tmp_path, "plain", "resume", at="after charge")
    with pytest.raises(RunBlocked):
        made.here("resume")
    with trip.build(made.world, "plain") as rt:
        (doubt,) = rt.doubts()
        report = rt.resolve(doubt.id, word, by="ada", why="looked into the provider's list")
        assert report.state == "committed"
        event = next(event for event in rt.events("trip-7") if event.by == "ada")
        assert event.call_id == doubt.id
    assert _standing(made) == ALL
    made.assert_quiet()


def test_a_probe_settles_the_kill_without_a_person_and_the_restart_gets_the_results(tmp_path: Path) -> None:
    """SafeAgent 2.3: "broker never touched again", but the retry is blocked for ever. exactly-once: needs a policy."""
    made = _outcome(tmp_path, "probed", "resume", at="after charge")
    assert made.here("resume") == ["flight-1", "car-1", "charge-1"]
    assert _standing(made) == ALL
    assert made.report("trip-7").state == "committed"
    assert made.here("resume") == ["flight-1", "car-1", "charge-1"]
    made.assert_quiet()


def test_an_idempotent_tool_is_asked_again_with_the_same_key(tmp_path: Path) -> None:
    """agent-ledger 4.3: the stale takeover ran the effect a second time under no key that the provider knows."""
    made = _outcome(tmp_path, "idempotent", "resume", at="after charge")
    assert made.here("resume") == ["flight-1", "car-1", "charge-1"]
    assert _standing(made) == ALL


def test_a_worker_takes_back_what_the_killed_run_left_and_a_restart_books_once(tmp_path: Path) -> None:
    """saga-agent 1.4 a, AgentRelay 3.4 a: the first run's flight, car and charge were never undone."""
    made = _outcome(tmp_path, "probed", "book", at="after charge")
    made.recover()
    assert made.report("trip-7").state == "rolled_back"
    assert _standing(made) == NOTHING
    made.assert_quiet()
    made.here("book")
    assert _standing(made) == ALL
    assert made.report("trip-7").run.generation == 2


def test_a_restart_alone_takes_back_first_where_no_worker_was(tmp_path: Path) -> None:
    """saga-agent 1.4 a, AgentRelay 3.4 a: nothing can resume, so the restart only adds to what is left."""
    made = _outcome(tmp_path, "probed", "book", at="after charge")
    made.here("book")
    assert _standing(made) == ALL


def test_the_earlier_calls_are_undone_also_where_the_last_is_in_doubt(tmp_path: Path) -> None:
    """agent-saga 1.2: halted before the earlier steps; the flight with a valid undo stays, on every sweep."""
    made = _outcome(tmp_path, "plain", "book", at="after charge")
    made.recover()
    assert made.world.undone("car") == ["car-1"]
    assert made.world.undone("flight") == ["flight-1"]
    assert made.world.undone("charge") == []
    report = made.report("trip-7")
    assert report.state == "blocked"
    assert [call.tool for call in report.doubts] == ["charge"]
    with trip.build(made.world, "plain") as rt:
        assert rt.resolve(report.doubts[0].id, Happened("charge-1"), by="ada", why="seen").state == "rolled_back"
    assert _standing(made) == NOTHING
    made.assert_quiet()


def test_a_compensation_that_tolerates_absence_needs_no_result_to_undo_a_kill(tmp_path: Path) -> None:
    """agent-saga 1.2: the undo is built from the result, so a kill in the window that matters leaves no undo."""
    made = _outcome(tmp_path, "absent_ok", "book", at="after charge")
    made.recover()
    assert made.report("trip-7").state == "rolled_back"
    assert _standing(made) == NOTHING


def test_a_kill_between_two_calls_is_undone_in_reverse_once(tmp_path: Path) -> None:
    """agent-saga 1.2: the one crash it handles; AgentRelay 3.4 a: the run stays pending, nobody undoes it."""
    made = _outcome(tmp_path, "plain", "book", at="recorded car")
    made.recover()
    assert [entry["tool"] for entry in made.world.entries("undos")] == ["car", "flight"]
    assert made.report("trip-7").state == "rolled_back"
    made.assert_quiet()


@pytest.mark.parametrize("at", ["before undo car", "after undo car", "before undo flight", "after undo flight"])
@pytest.mark.parametrize("variant", ["probed", "idempotent"])
def test_a_crash_in_the_middle_of_a_rollback_is_finished_by_recovery(tmp_path: Path, variant: str, at: str) -> None:
    """saga-agent 1.4 d, AgentRelay 3.4 d: the remaining compensations are lost and a restart books everything again."""
    made = _outcome(tmp_path, variant, "fail", at=at)
    made.recover()
    assert made.report("trip-7").state == "rolled_back"
    assert _standing(made) == NOTHING
    made.assert_quiet()
    undos = made.world.entries("undos")
    if variant == "probed":
        assert [entry["tool"] for entry in undos] == ["charge", "car", "flight"]
    else:
        # The one that was lost is asked for again under its own key, so the provider can tell.
        assert len({entry["key"] for entry in undos}) == 3


@pytest.mark.parametrize("at", ["before undo car", "after undo car"])
def test_an_undo_that_may_have_happened_is_not_run_twice_and_a_person_ends_it(tmp_path: Path, at: str) -> None:
    """agent-saga 1.2: the interrupted undo ran again 8 of 8, one that had returned 2 of 8."""
    made = _outcome(tmp_path, "plain", "fail", at=at)
    made.recover(times=3)
    report = made.report("trip-7")
    assert report.state == "blocked"
    assert [(call.tool, call.state) for call in report.doubts] == [("car", "compensation_in_doubt")]
    assert made.world.undone("flight") == ["flight-1"]
    assert len(made.world.undone("car")) == (at == "after undo car")
    word = Happened(None) if at == "after undo car" else Absent()
    with trip.build(made.world, "plain") as rt:
        assert rt.resolve(report.doubts[0].id, word, by="ada", why="looked").state == "rolled_back"
    assert _standing(made) == NOTHING
    assert made.world.undone("car") == ["car-1"]


def test_a_restart_after_a_crash_in_the_rollback_finishes_it_before_it_books_again(tmp_path: Path) -> None:
    """saga-agent 1.4 d, AgentRelay 3.4 d: the restart starts a new run and books again beside the old effects."""
    made = _outcome(tmp_path, "probed", "fail", at="after undo car")
    assert made.here("book") == ["flight-3", "car-3", "charge-3"]
    assert _standing(made) == ALL
    assert [entry["tool"] for entry in made.world.entries("undos")] == ["charge", "car", "flight"]


def test_four_workers_that_race_for_one_dead_run_undo_it_once(tmp_path: Path) -> None:
    """agent-saga 1.2, 4 daemons: held there; row 3 of peers 7: no other package has a takeover at all."""
    made = _outcome(tmp_path, "plain", "book", at="recorded car")
    workers = [made.child("recover") for _ in range(4)]
    for worker in workers:
        worker.answer()
    assert [entry["tool"] for entry in made.world.entries("undos")] == ["car", "flight"]
    assert made.report("trip-7").state == "rolled_back"
