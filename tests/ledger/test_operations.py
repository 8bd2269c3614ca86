"""What single operations do when they are repeated, come late or follow a takeover."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from amends.ledger.operations import (
    AdmitCall,
    BeginCompensation,
    BeginRollback,
    ClaimRun,
    CloseRun,
    NoteEvidence,
    NoteProbe,
    OpenChild,
    OpenRun,
    ReleaseLease,
    ResolveCall,
    SettleCall,
    SettleCompensation,
    StartCall,
    WatchDoubt,
)
from amends.ledger.rows import CallRow
from amends.stores.memory import MemoryStore

LEASE_S = 30.0


def opened(store: MemoryStore, *, owner: str = "w1", opener: str = "o1", mono: float = 0.0) -> OpenRun:
    op = OpenRun("u1", "r", "", owner, opener, LEASE_S, "", "", "boot", mono)
    assert store.perform(op).how in ("fresh", "resumed")
    return op


def admitted(store: MemoryStore, **facts: Any) -> CallRow:
    op = AdmitCall("c1", "u1", "u1", "w1", 1, "pay", "1", "compensatable", "k", "i", "d", "{}", undoable=True)
    answer = store.perform(replace(op, **facts))
    assert answer.call is not None
    return answer.call


def test_a_compensation_in_flight_is_not_quiet_when_its_run_is_taken_over() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "succeeded", boot="boot", mono=1.0))
    store.perform(BeginRollback("u1", "w1", "failed", person=False, owner="w1", epoch=1))
    assert store.perform(BeginCompensation("c1", "w1", 1, 1)) is not None
    # It outlived its timeout, so it may still be sent; the run is given back meanwhile.
    store.perform(SettleCompensation("c1", "w1", 1, 1, "compensation_in_doubt", boot="boot", mono=None))
    store.perform(ReleaseLease("u1", "w1", 1, 0.0))
    assert store.perform(ClaimRun("u1", "w2", "o2", LEASE_S, "boot", 100.0)) is not None
    assert store.calls["c1"].comp_mono == 100.0 + LEASE_S


def test_a_child_that_was_there_before_is_resumed_whether_or_not_the_answer_was_lost() -> None:
    store = MemoryStore()
    opened(store)
    first = store.perform(OpenChild("u2", "r/x", "u1", 1, "w1", "", ""))
    again = store.perform(OpenChild("u3", "r/x", "u1", 1, "w1", "", "", repeated=True))
    lost = store.perform(OpenChild("u2", "r/x", "u1", 1, "w1", "", "", repeated=True))
    assert (first.how, again.how, lost.how) == ("fresh", "resumed", "fresh")


def test_blocking_a_blocked_run_again_gives_it_back_although_the_first_request_never_arrived() -> None:
    store = MemoryStore()
    opened(store)
    store.perform(CloseRun("u1", "w1", 1, "blocked", causes=("ask anna",), wake_s=0.0))
    assert store.perform(ClaimRun("u1", "w2", "o2", LEASE_S, "boot", 1.0)) is not None
    run = store.perform(CloseRun("u1", "w2", 2, "blocked", causes=("ask bob",), repeated=True))
    assert (run.owner, json.loads(run.causes)) == ("", ["ask bob"])


def test_a_probe_noted_twice_is_one_probe() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "in_doubt", why="timeout", boot="boot", mono=1.0))
    store.perform(NoteProbe("c1", 1, 1, "unknown", "", next_s=1.0))
    store.perform(NoteProbe("c1", 1, 1, "unknown", "", next_s=1.0, repeated=True))
    assert store.calls["c1"].probes == 1
    assert [event.what for event in store.events].count("probed") == 1


def test_what_a_slow_worker_says_of_an_older_attempt_does_not_shorten_the_settle_delay() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "in_doubt", why="timeout", boot="boot", mono=1.0))
    store.perform(ResolveCall("c1", "backing_off", "probe", "", epoch=1, owner="w1", retry_s=0.0))
    assert store.perform(StartCall("c1", "w1", 1, 2)) is not None
    store.perform(SettleCall("c1", "w1", 1, 2, "in_doubt", why="timeout", boot="boot", mono=None))
    store.perform(NoteProbe("c1", 1, 1, "absent, too early to believe", "", next_s=1.0, left_s=1.0))
    store.perform(WatchDoubt("c1", 1, "elsewhere", 2.0))
    assert (store.calls["c1"].quiet_mono, store.calls["c1"].quiet_left) == (None, None)


def test_a_late_effect_is_not_lost_when_the_next_attempt_fails() -> None:
    store = MemoryStore()
    opened(store)
    admitted(store)
    store.perform(SettleCall("c1", "w1", 1, 1, "in_doubt", why="timeout", boot="boot", mono=1.0))
    store.perform(ResolveCall("c1", "backing_off", "probe", "", epoch=1, owner="w1", retry_s=0.0))
    assert store.perform(StartCall("c1", "w1", 1, 2)) is not None
    store.perform(NoteEvidence("c1", 1, True, '"r"', "", "boot", 2.0, "late"))
    settled = store.perform(SettleCall("c1", "w1", 1, 2, "failed", error='["E", "no"]', boot="boot", mono=3.0))
    assert (settled.call.state, settled.call.late, settled.call.result) == ("succeeded", 1, '"r"')
