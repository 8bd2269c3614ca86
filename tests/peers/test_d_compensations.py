"""Experiment d, second half: the way back."""

from __future__ import annotations

import threading

import pytest

from amends import Happened, RunBlocked, current_call, tool
from amends.errors import BadDeclaration, OutOfOrder
from tests.peers.conftest import Ledger
from tests.world import FAST, ONCE, World, states


def _trip(world: World, **twins: dict) -> list:
    return [world.compensatable(name, twin=twins.get(name)) for name in ("flight", "car", "charge")]


def _off(rt, tools, error: type[Exception] = KeyError) -> None:
    with rt.run("r"):
        for one in tools:
            one()
        raise error("the trip is off")


def test_everything_is_taken_back_in_reverse(ledger: Ledger) -> None:
    """saga-agent 1.3: "rolls back every completed step", but not on four of the ways out."""
    world = World()
    tools = _trip(world)
    rt = ledger(*tools)
    with pytest.raises(KeyError):
        _off(rt, tools)
    assert world.log[3:] == ["undo charge:1", "undo car:1", "undo flight:1"]
    assert rt.report("r").state == "rolled_back"


def test_a_compensation_that_raises_is_seen_and_the_others_go_on(ledger: Ledger) -> None:
    """AgentRelay 3.4 d: swallowed, status as if rolled back. restate-saga: stops the rest. agent-saga: halts."""
    world = World()
    tools = _trip(world, car={"retry": ONCE})
    world.script["undo car"] = [ValueError("desk closed")]
    rt = ledger(*tools)
    with pytest.raises(RunBlocked) as blocked:
        _off(rt, tools)
    assert world.log[3:] == ["undo charge:1", "undo flight:1"]
    assert [left.call.tool for left in blocked.value.residue] == ["car"]
    assert "desk closed" in blocked.value.residue[0].why
    assert any("retry" in cause for cause in blocked.value.causes)
    report = rt.report("r")
    assert report.state == "blocked"
    assert states(rt, "r")["car"] == "compensation_failed"


def test_a_compensation_that_gave_up_is_finished_later_by_another_process(ledger: Ledger) -> None:
    """saga-agent 1.4 d: no retry, no later resume. agent-saga: written ABORTED, the daemon never looks again."""
    world = World()
    tools = _trip(world, car={"retry": ONCE})
    world.script["undo car"] = [ValueError("desk closed")]
    with pytest.raises(RunBlocked):
        _off(ledger(*tools), tools)
    other = ledger(*tools)
    (left,) = [call for call in other.calls() if call.state == "compensation_failed"]
    assert other.retry(left.id, by="ada", why="the desk is open").state == "rolled_back"
    assert world.standing == []
    assert world.log.count("undo flight:1") == 1


def test_a_compensation_is_retried_by_itself_under_one_key(ledger: Ledger) -> None:
    """saga-agent 1.4 d: no retry. AgentRelay: swallowed."""
    keys: list[str] = []

    @tool
    def charge() -> str:
        return "ch_1"

    @charge.compensate(retry=FAST)
    def refund() -> None:
        keys.append(current_call().key)
        if len(keys) < 3:
            raise ValueError("busy")

    rt = ledger(charge)
    with pytest.raises(KeyError), rt.run("r"):
        charge()
        raise KeyError
    assert (len(keys), len(set(keys))) == (3, 1)
    (call,) = rt.calls()
    assert call.compensation is not None
    assert (call.state, call.compensation.attempts) == ("compensated", 3)


def test_a_compensation_that_hangs_is_doubt_after_its_timeout_and_the_others_go_on(ledger: Ledger) -> None:
    """agent-saga 1.2: no timeout; the heartbeat lives on, so the daemon sees the saga as alive for ever."""
    world, gate = World(), threading.Event()
    flight = world.compensatable("flight")

    @tool
    def charge() -> str:
        return world.happen("charge:1")

    @charge.compensate(timeout=0.05)
    def refund() -> None:
        gate.wait(20)

    rt = ledger(flight, charge)
    with pytest.raises(RunBlocked), rt.run("r"):
        flight()
        charge()
        raise KeyError
    gate.set()
    assert world.log[2:] == ["undo flight:1"]
    assert states(rt, "r") == {"flight": "compensated", "charge": "compensation_in_doubt"}
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Happened(None), by="ada", why="the money is back").state == "rolled_back"


def test_a_compensation_whose_answer_is_lost_is_not_sent_twice(ledger: Ledger) -> None:
    """agent-saga 1.3: "double-refunds are structurally impossible": observed."""
    world = World()
    tools = _trip(world, charge={"retry": FAST})
    world.script["undo charge"] = [(TimeoutError(),)]
    rt = ledger(*tools)
    with pytest.raises(RunBlocked):
        _off(rt, tools)
    ledger(*tools).recover()
    ledger(*tools).recover()
    assert world.log.count("undo charge:1") == 1
    assert states(rt, "r") == {"flight": "compensated", "car": "compensated", "charge": "compensation_in_doubt"}


def test_a_compensation_gets_the_result_the_arguments_and_the_call(ledger: Ledger) -> None:
    """AgentRelay 3.4 d: it receives the forward args, never the result (cannot refund a payment id)."""
    seen: list[object] = []

    @tool
    def charge(order: str, cents: int) -> dict[str, str]:
        return {"payment": "pay_9"}

    @charge.compensate
    def refund(result: dict[str, str], order: str, cents: int, call) -> None:
        seen.append((result["payment"], order, cents, call.tool, call.key != current_call().key))

    with pytest.raises(KeyError), ledger(charge).run("r"):
        charge("7", cents=42)
        raise KeyError
    assert seen == [("pay_9", "7", 42, "charge", True)]


@pytest.mark.parametrize("said", ["refnd", 7], ids=["no such tool", "no function"])
def test_a_compensation_that_does_not_exist_is_found_when_the_runtime_is_built(said: object, ledger: Ledger) -> None:
    """AgentRelay 3.3: an unregistered compensation name is swallowed; nothing says the undo never ran."""
    world = World()
    charge = world.compensatable("charge")
    charge.compensate(said)
    with pytest.raises(BadDeclaration) as bad:
        ledger(charge)
    assert bad.value.tool == "charge"


def test_a_compensation_that_asks_for_what_there_is_not_is_found_when_the_runtime_is_built(ledger: Ledger) -> None:
    """AgentRelay 3.4 d: found when the undo is needed, and then swallowed."""
    world = World()
    charge = world.compensatable("charge")
    charge.compensate(lambda payment_id: None)
    with pytest.raises(BadDeclaration):
        ledger(charge)


def test_a_tool_without_a_way_back_is_refused_where_it_is_declared(ledger: Ledger) -> None:
    """agent-saga 1.3: "1 line protects any tool": no inverse exists for an undeclared tool, nothing is refunded."""

    @tool
    def charge() -> str:
        return "ch_1"

    with pytest.raises(BadDeclaration) as bad:
        ledger(charge)
    assert bad.value.tool == "charge"


def test_a_compensatable_call_after_the_point_of_no_return_is_refused(ledger: Ledger) -> None:
    """agent-saga 1.2: accepted; on failure it rolls back round the pivot. peers 7.10: no package knows the order."""
    world = World()
    flight, wire = world.compensatable("flight"), world.pivot("wire")
    with ledger(flight, wire).run("r"):
        wire()
        with pytest.raises(OutOfOrder):
            flight()
    assert world.log == ["wire:1"]


def test_a_rollback_is_recorded_call_by_call(ledger: Ledger) -> None:
    """AgentRelay 3.4 d: visible only in the call row. agent-saga 1.2: COMPENSATED is appended without a fence."""
    world = World()
    tools = _trip(world)
    rt = ledger(*tools)
    with pytest.raises(KeyError):
        _off(rt, tools)
    moves = [(event.frm, event.to) for event in rt.events("r")]
    assert moves.count(("succeeded", "compensating")) == 3
    assert moves.count(("compensating", "compensated")) == 3
    assert moves[-1] == ("rolling_back", "rolled_back")
    assert all(call.compensation is not None and call.compensation.settled_at for call in rt.calls())


def test_the_error_that_took_the_run_back_reaches_the_caller_as_itself(ledger: Ledger) -> None:
    """saga-agent 1.4 f: on the failing path the rollback ran but the caller gets TypeError instead of the outcome."""
    world = World()
    tools = _trip(world)
    rt = ledger(*tools)
    with pytest.raises(KeyError, match="the trip is off") as told:
        _off(rt, tools)
    assert any("3" in note for note in told.value.__notes__)
