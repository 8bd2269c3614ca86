"""Experiment d, first half: what an error means, and what is retried."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from amends import Absent, Happened, InDoubt, NoEffect, Retry, RunBlocked, current_call, tool
from amends.errors import BadDeclaration
from tests.peers.conftest import Ledger
from tests.world import FAST, World, states, until


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), BrokenPipeError()], ids=lambda e: type(e).__name__
)
def test_a_timeout_after_the_charge_went_through_is_not_failed_and_not_retried(
    error: Exception, ledger: Ledger
) -> None:
    """saga-agent 1.4 d: reports COMPENSATED with the money gone; retries=3 charged 4 times."""
    world = World()
    flight, charge = world.compensatable("flight"), world.compensatable("charge", retry=FAST)
    world.script["charge"] = [(error,)]
    rt = ledger(flight, charge)
    with pytest.raises(RunBlocked), rt.run("r"):
        flight()
        charge()
    assert world.log == ["flight:1", "charge:1", "undo flight:1"]
    assert states(rt, "r") == {"flight": "compensated", "charge": "in_doubt"}
    assert rt.report("r").state == "blocked"


def test_an_ambiguous_call_that_happened_is_taken_back_too(ledger: Ledger) -> None:
    """saga-agent 1.4 d: the failed step is never compensated."""
    world = World()
    flight, charge = world.compensatable("flight"), world.probed(world.compensatable("charge"))
    world.script["charge"] = [(TimeoutError(),)]
    rt = ledger(flight, charge)
    with pytest.raises(KeyError), rt.run("r"):
        flight()
        charge()
        raise KeyError("later")
    assert world.log == ["flight:1", "charge:1", "undo charge:1", "undo flight:1"]
    assert rt.report("r").state == "rolled_back"


def test_a_tools_own_deadline_is_doubt_and_its_late_return_settles_it(ledger: Ledger) -> None:
    """SafeAgent, agent-ledger, AgentRelay (peers 7.9): a timeout is final failure."""
    gate, log = threading.Event(), []

    @tool(timeout=0.03)
    def charge() -> str:
        gate.wait(20)
        log.append("charge")
        return "ch_1"

    charge.compensate(lambda: log.append("refund"))
    rt = ledger(charge)
    with rt.run("r"):
        with pytest.raises(InDoubt):
            charge()
        gate.set()
        until(lambda: any(event.what == "evidence" for event in rt.events("r")), seconds=10)
        assert charge() == "ch_1"
    assert log == ["charge"]


def test_an_undo_that_needs_the_result_gets_it_from_the_probe(ledger: Ledger) -> None:
    """agent-saga 1.2: ambiguous timeout, the undo factory gets None, the undo fails; the flight is left too."""
    undone: list[str] = []

    @tool
    def charge() -> str:
        raise TimeoutError

    charge.probe(lambda: Happened("ch_77"))
    charge.compensate(lambda result: undone.append(result))
    rt = ledger(charge)
    with pytest.raises(KeyError), rt.run("r"):
        charge()
        raise KeyError
    assert undone == ["ch_77"]


# ---- a clean no ---------------------------------------------------------------------------


def test_a_call_that_cleanly_failed_is_not_taken_back(ledger: Ledger) -> None:
    """AgentRelay 3.4 d: uncharge for a declined charge. agent-saga: a refund for a charge that never happened."""
    world = World()
    flight, charge = world.compensatable("flight"), world.compensatable("charge")
    world.script["charge"] = [ValueError("declined")]
    rt = ledger(flight, charge)
    with pytest.raises(ValueError, match="declined"), rt.run("r"):
        flight()
        charge()
    assert world.log == ["flight:1", "undo flight:1"]
    assert states(rt, "r") == {"flight": "compensated", "charge": "failed"}
    assert rt.report("r").state == "rolled_back"


@pytest.mark.parametrize("error", [ValueError("declined"), NoEffect("declined")], ids=["ordinary", "said for certain"])
def test_a_clean_decline_needs_no_person_and_may_be_asked_for_again(error: Exception, ledger: Ledger) -> None:
    """SafeAgent 2.4 d, agent-ledger 4.4 d, AgentRelay 3.4 f: final. exactly-once, effect-ledger: an operator for each."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [error]
    rt = ledger(charge)
    with rt.run("r"):
        with pytest.raises(type(error), match="declined"):
            charge()
        assert charge() == "charge:1"
    assert world.log == ["charge:1"]
    assert list(rt.doubts()) == []


def test_a_failed_call_may_be_asked_for_again_by_a_later_process(ledger: Ledger) -> None:
    """SafeAgent 2.4 d: stored as COMMITTED with ok False; a retry with a healthy tool never runs it."""
    world = World()
    charge = world.compensatable("charge", key="x", scope="ledger")
    world.script["charge"] = [ValueError("down")]
    with pytest.raises(ValueError), ledger(charge).run("first"):
        charge()
    with ledger(charge).run("second"):
        assert charge() == "charge:1"


def test_the_error_is_kept_with_its_type_and_its_words(ledger: Ledger) -> None:
    """SafeAgent 2.4 d, effect-ledger: message not stored, only the type name; the caller never gets the exception."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [ValueError("card 4242 is closed")]
    rt = ledger(charge)
    with rt.run("r"), pytest.raises(ValueError, match="card 4242 is closed"):
        charge()
    (call,) = ledger().calls()
    assert call.state == "failed"
    assert "ValueError" in (call.error or "")
    assert "card 4242 is closed" in (call.error or "")


def test_a_replayed_failure_does_not_look_like_a_success(ledger: Ledger) -> None:
    """onceonly: a tool that failed is never retried; the 2nd and 3rd call return None as if done."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [ValueError("no"), ValueError("no")]
    with ledger(charge).run("r") as run:
        assert [run.answer("charge", {}).status for _ in range(3)] == ["failed", "failed", "done"]
    assert world.log == ["charge:1"]


# ---- retries ------------------------------------------------------------------------------


def test_retries_are_made_counted_and_recorded(ledger: Ledger) -> None:
    """saga-agent 1.3: retries=3 ignored by agent.run, attempts not in the record."""
    keys: list[str] = []

    @tool(retry=Retry(attempts=3, on=ValueError, delay=0.001))
    def charge() -> str:
        keys.append(current_call().key)
        if len(keys) < 3:
            raise ValueError("busy")
        return "ch_1"

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        assert charge() == "ch_1"
    (call,) = rt.calls()
    assert call.attempt == 3
    assert len(set(keys)) == 1
    starts = [event for event in rt.events("r") if event.call_id == call.id and event.to == "started"]
    assert len(starts) == 3


def test_a_retry_on_an_error_that_may_have_had_an_effect_is_refused_where_it_is_declared(ledger: Ledger) -> None:
    """saga-agent 1.4 d: retries=3 charged 4 times. idemkit: a raise after the effect, 3 retries, 3 effects."""

    @tool(retry=Retry(attempts=3, on=TimeoutError))
    def charge() -> str:
        return "ch_1"

    charge.compensate(lambda: None)
    with pytest.raises(BadDeclaration) as bad:
        ledger(charge)
    assert bad.value.tool == "charge"


def test_a_raise_after_the_effect_is_found_by_the_probe_and_not_repeated(ledger: Ledger) -> None:
    """idemkit, idempotent-tools: a tool raising after its effect runs again: 3 of 3."""
    world = World()
    charge = world.probed(world.compensatable("charge", retry=FAST))
    world.script["charge"] = [(ValueError("the answer could not be read"),)]
    with ledger(charge).run("r"):
        assert charge() == "charge:1"
    assert world.log == ["charge:1"]


def test_the_body_is_handed_a_key_for_the_provider_that_every_attempt_shares(tmp_path: Path, ledger: Ledger) -> None:
    """agent-saga: the first run carries no key, the second one does, so the provider cannot tell."""
    keys: list[str] = []

    @tool(idempotent=True)
    def charge() -> str:
        keys.append(current_call().key)
        if len(keys) == 1:
            raise TimeoutError
        return "ch_1"

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        assert charge() == "ch_1"
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_doubt_that_the_world_denies_is_started_again_and_only_then(ledger: Ledger) -> None:
    """agent-ledger 4.3: stale takeover runs it again without asking anybody."""
    world = World()
    charge = world.compensatable("charge")
    answers: list[object] = [Absent()]
    charge.probe(lambda: answers[0])
    world.script["charge"] = [TimeoutError()]
    rt = ledger(charge)
    with rt.run("r"):
        assert charge() == "charge:1"
    assert world.log == ["charge:1"]
    (call,) = rt.calls()
    assert call.attempt == 2
