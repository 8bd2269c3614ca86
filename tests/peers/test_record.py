"""What is left behind for others to read: every move, who and why; and that nothing else is said or kept."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, Happened, RunBlocked, Unknown, UsageError, tool
from amends.errors import LedgerError
from amends.states import CALL_MOVES, CALL_STATES, NEW, RUN_MOVES, RUN_STATES
from tests.peers.conftest import Ledger
from tests.world import FAST, World, states


def _blocked(rt: Any, charge: Any) -> Any:
    with pytest.raises(RunBlocked), rt.run("r"):
        charge()
    (doubt,) = rt.doubts()
    return doubt


def test_the_record_has_every_transition_with_time_and_actor(ledger: Ledger) -> None:
    """agent-ledger 4.3: no history of transitions: one row, overwritten. saga-agent 1.3: one log line at the end."""
    world = World()
    charge = world.compensatable("charge")
    rt = ledger(charge, agent="clerk")
    with pytest.raises(KeyError), rt.run("r"):
        charge()
        raise KeyError
    events = list(ledger().events("r"))
    (call,) = rt.calls()
    moves = [(event.frm, event.to) for event in events if event.call_id == call.id and event.to]
    assert moves == [
        (NEW, "started"),
        ("started", "succeeded"),
        ("succeeded", "compensating"),
        ("compensating", "compensated"),
    ]
    assert [event.seq for event in events] == sorted({event.seq for event in events})
    assert all(event.by and event.at.tzinfo for event in events)
    assert [event.to for event in events if event.what == "run"] == ["open", "rolling_back", "rolled_back"]


def test_the_intent_is_on_the_disk_before_the_body_runs(ledger: Ledger) -> None:
    """saga-agent 1.3: "every execution is recorded": nothing at a crash."""
    seen: list[tuple[str, str]] = []

    @tool
    def charge(order: str) -> None:
        seen.extend((call.tool, call.state) for call in ledger().calls())
        assert next(iter(ledger().calls())).args == {"order": "7"}

    charge.compensate(lambda: None)
    with ledger(charge).run("r"):
        charge(order="7")
    assert seen == [("charge", "started")]


def test_the_times_are_those_of_the_start_and_the_end(ledger: Ledger) -> None:
    """saga-agent 1.3: executed_at is the creation time of the record; attempts is not in the record."""
    times: list[Any] = []

    @tool
    def charge() -> None:
        times.append(datetime.now(UTC))
        threading.Event().wait(0.02)
        times.append(datetime.now(UTC))

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        charge()
    (call,) = rt.calls()
    assert call.started_at is not None
    assert call.settled_at is not None
    assert call.started_at <= times[0] < times[1] <= call.settled_at
    assert call.attempt == 1


def test_a_persons_word_is_kept_with_who_and_why_and_is_said_once(ledger: Ledger) -> None:
    """exactly-once: store.release without token or record: no who, no why. SafeAgent 2.4 a: anybody, any content."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [(TimeoutError(),)]
    rt = ledger(charge)
    doubt = _blocked(rt, charge)
    for by, why in (("", "seen"), ("ada", "")):
        with pytest.raises(UsageError):
            rt.resolve(doubt.id, Happened("charge:1"), by=by, why=why)
    rt.resolve(doubt.id, Happened("charge:1"), by="ada", why="seen in the bank's list")
    said = [event for event in rt.events("r") if event.by == "ada" and event.call_id == doubt.id]
    assert said[0].to == "succeeded"
    assert "seen in the bank's list" in str(said[0].facts)
    for word in (Absent(), Happened("another"), Unknown()):
        with pytest.raises((UsageError, LedgerError)):
            rt.resolve(doubt.id, word, by="eve", why="I say so")
    assert rt.call(doubt.id).result == "charge:1"


def test_no_amount_of_waiting_or_sweeping_decides_a_doubt(tmp_path: Path, ledger: Ledger) -> None:
    """agent-ledger 4.3: stale takeover runs it twice. SafeAgent 2.3: pending_ttl resets, says the docstring."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [(TimeoutError(),)]
    rt = ledger(charge)
    doubt = _blocked(rt, charge)
    before = [event.seq for event in rt.events()]
    for _ in range(3):
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as raw, raw:
            raw.execute("update amends_run set wake_at = 0 where wake_at is not null")  # however long it waited
        ledger(charge).recover()
    assert rt.call(doubt.id).state == "in_doubt"
    assert [event.seq for event in rt.events()] == before
    assert world.log == ["charge:1"]


def test_what_is_stuck_is_listed_and_each_has_a_way_out(ledger: Ledger) -> None:
    """SafeAgent 2.4 g, agent-ledger 4.3: no call lists them; stuck in processing. effect-ledger: an operator for each."""
    world = World()
    charge = world.compensatable("charge")
    ways: dict[str, Any] = {
        "happened": lambda rt, doubt, run: rt.resolve(doubt, Happened("x"), by="ada", why="w").state,
        "absent": lambda rt, doubt, run: rt.resolve(doubt, Absent(), by="ada", why="w").state,
        "unknown": lambda rt, doubt, run: rt.resolve(doubt, Unknown(), by="ada", why="w").state,
        "abandon": lambda rt, doubt, run: rt.abandon(run, by="ada", why="w").state,
    }
    rt = ledger(charge)
    for name in ways:
        world.script["charge"] = [(TimeoutError(),)]
        with pytest.raises(RunBlocked), rt.run(name):
            charge()
    other = ledger(charge)
    assert {info.id for info in other.runs("status:blocked")} == set(ways)
    doubts = {call.run_id: call.id for call in other.doubts()}
    ends = {name: way(other, doubts[name], name) for name, way in ways.items()}
    assert ends == {
        "happened": "rolled_back",
        "absent": "rolled_back",
        "unknown": "blocked",  # it cannot be known: only a person closes the run over it
        "abandon": "abandoned",
    }
    report = other.abandon("unknown", by="ada", why="written off")
    assert [left.call.tool for left in report.residue] == ["charge"]
    assert list(other.doubts()) == []


def test_a_call_started_by_hand_and_left_without_a_word_is_doubt_with_a_way_out(ledger: Ledger) -> None:
    """agent-ledger 4.3: begin without commit is stuck. SafeAgent: anybody may settle, with any content, at any time."""
    rt = ledger()
    with pytest.raises(RunBlocked), rt.run("r") as run, run.begin("charge", {"order": 7}, kind="pivot"):
        pass
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Happened({"id": "ch_1"}), by="ada", why="it is there").state == "committed"
    with rt.run("r") as run:
        attempt = run.begin("charge", {"order": 7}, kind="pivot")
    assert (attempt.replayed, attempt.result) == (True, {"id": "ch_1"})


def test_an_outcome_by_hand_is_said_once(ledger: Ledger) -> None:
    """SafeAgent 2.4 a: any caller can call store.settle with any content."""
    rt = ledger()
    with rt.run("r") as run:
        attempt = run.begin("charge", {"order": 7}, kind="pivot")
        attempt.succeed({"id": "ch_1"})
        for again in (lambda: attempt.succeed({"id": "ch_2"}), lambda: attempt.fail("no")):
            with pytest.raises(UsageError):
                again()
    (call,) = rt.calls()
    assert (call.state, call.result) == ("succeeded", {"id": "ch_1"})


def test_repeats_are_counted(ledger: Ledger) -> None:
    """peers 6.20: a dedup counter; only agent-ledger has one."""
    world = World()
    charge = world.compensatable("charge")
    rt = ledger(charge)
    with rt.run("r"):
        for _ in range(4):
            charge()
    (call,) = rt.calls()
    assert call.replays == 3


def test_nothing_is_printed_and_the_logger_can_be_silenced(ledger: Ledger, capfd: Any, caplog: Any) -> None:
    """saga-agent 1.1: retry lines, in Korean, on stdout at every run; there is no switch to silence it."""
    caplog.set_level(logging.CRITICAL, logger="amends")
    world = World()
    flight, charge = world.compensatable("flight"), world.compensatable("charge", retry=FAST)
    world.script["charge"] = [ValueError("busy"), (TimeoutError(),)]
    world.script["undo flight"] = [ValueError("busy")]
    rt = ledger(flight, charge)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        flight()
        run.answer("charge", {})
        charge()
    rt.recover()
    assert capfd.readouterr() == ("", "")


def test_after_a_block_nobody_owns_the_run(ledger: Ledger) -> None:
    """agent-saga 1.2: if the caller gives up, the heartbeat lives on: 40 renewals in 4 s, alive for ever."""
    world = World()
    charge = world.compensatable("charge")
    rt = ledger(charge)
    for end in (None, KeyError):
        try:
            with rt.run("committed" if end is None else "back"):
                charge()
                if end is not None:
                    raise end
        except KeyError:
            pass
    assert [info.owner for info in rt.runs()] == [None, None]
    assert rt._host.heartbeat.kept() == []


def test_every_state_of_the_tables_can_be_reached() -> None:
    """agent-ledger 4.3: the canceled state: no API reaches it."""
    for moves, all_states in ((CALL_MOVES, CALL_STATES), (RUN_MOVES, RUN_STATES)):
        reached: set[str] = {NEW}
        for _ in moves:
            reached |= {to for frm in reached for to in moves[frm]}
        assert reached == {NEW, *all_states}


def test_a_list_is_read_page_by_page(ledger: Ledger) -> None:
    """agent-ledger, peers 7.13: the listing reads the whole table. exactly-once: list() is the whole table."""

    @tool
    def charge(n: int) -> int:
        return n

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        for n in range(250):
            charge(n=n)
    listing = rt.calls()
    assert next(listing).result == 249  # newest first
    assert [call.result for call in listing] == list(range(248, -1, -1))


def test_a_run_whose_tools_this_process_does_not_have_is_named_and_left_alone(ledger: Ledger) -> None:
    """AgentRelay 3.3: a missing compensation is swallowed; here the worker says which tools it would need."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [(TimeoutError(),)]
    rt = ledger(charge)
    _blocked(rt, charge)
    rt.rollback("r", by="ada", why="off")
    stranger = ledger()
    report = stranger.report("r")
    assert report.state == "blocked"
    assert states(stranger, "r") == {"charge": "in_doubt"}
    assert all(one.skipped == ("charge",) for one in stranger.recover())
    assert world.log == ["charge:1"]
