"""Doubt: timeouts, late returns, probes, settle delays, idempotent repeats."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest

from amends import Absent, Happened, InDoubt, RunBlocked, Unknown, testing, tool
from amends.encoding.dataclass import changed
from tests.world import FAST, World, runtime, states, until, wake


def _slow(gate: threading.Event, log: list[str], error: Exception | None = None, **options):
    @tool(name="pay", timeout=0.02, **options)
    def pay() -> str:
        gate.wait(60)
        if error is not None:
            raise error
        log.append("pay")
        return "paid"

    pay.compensate(lambda: log.append("refund"))
    return pay


def test_a_timeout_is_doubt_and_the_late_return_settles_it() -> None:
    gate = threading.Event()
    log: list[str] = []
    pay = _slow(gate, log)
    rt = runtime(pay)
    with rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        gate.set()
        until(lambda: any(event.what == "evidence" for event in rt.events()))
        assert pay() == "paid"
    assert log == ["pay"]
    assert rt.report("r").state == "committed"


def test_a_late_return_settles_at_commit_without_being_asked_again() -> None:
    gate = threading.Event()
    log: list[str] = []
    pay = _slow(gate, log)
    rt = runtime(pay)
    with rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        gate.set()
        until(lambda: any(event.what == "evidence" for event in rt.events()))
    assert states(rt, "r") == {"pay": "succeeded"}


def test_a_late_return_in_a_rollback_is_compensated() -> None:
    gate = threading.Event()
    log: list[str] = []
    pay = _slow(gate, log)
    rt = runtime(pay)
    with pytest.raises(KeyError), rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        gate.set()
        until(lambda: any(event.what == "evidence" for event in rt.events()))
        raise KeyError
    assert log == ["pay", "refund"]


def test_a_late_ordinary_error_is_the_tools_word_that_nothing_happened() -> None:
    gate = threading.Event()
    log: list[str] = []
    pay = _slow(gate, log, ValueError("declined"))
    rt = runtime(pay)
    with rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        gate.set()
        until(lambda: any(event.what == "evidence" for event in rt.events()))
    assert states(rt, "r") == {"pay": "failed"}


def test_a_late_lost_connection_leaves_the_doubt() -> None:
    gate = threading.Event()
    log: list[str] = []
    pay = _slow(gate, log, ConnectionResetError())
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt):
            pay()
        gate.set()
        until(lambda: any(event.what == "evidence" for event in rt.events()))
    assert states(rt, "r") == {"pay": "in_doubt"}


def test_a_late_return_into_a_blocked_run_unblocks_it() -> None:
    gate = threading.Event()
    log: list[str] = []
    pay = _slow(gate, log)
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r"), pytest.raises(InDoubt):
        pay()
    gate.set()
    until(lambda: any(event.what == "evidence" for event in rt.events()))
    assert [report.state for report in rt.recover()] == ["committed"]


def test_a_probe_that_finds_the_effect_settles_the_call_as_if_it_had_answered() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"))
    world.script["pay"] = [(TimeoutError(),)]
    rt = runtime(pay)
    with rt.run("r"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]


def test_a_probe_that_finds_nothing_lets_the_call_start_again() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"))
    world.script["pay"] = [TimeoutError()]
    rt = runtime(pay)
    with rt.run("r"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]
    (call,) = rt.calls()
    assert call.attempt == 2


def test_every_error_of_a_probed_tool_is_probed() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"))
    world.script["pay"] = [(ValueError("but it happened"),)]
    with runtime(pay).run("r"):
        assert pay() == "pay:1"


def test_an_error_of_a_probed_tool_that_had_no_effect_comes_out_as_itself() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"))
    world.script["pay"] = [ValueError("declined")]
    rt = runtime(pay)
    with rt.run("r"), pytest.raises(ValueError, match="declined"):
        pay()
    assert states(rt, "r") == {"pay": "failed"}


def _answering(answer):
    @tool(name="pay")
    def pay() -> str:
        raise TimeoutError

    pay.compensate(lambda: None)

    @pay.probe
    def ask():
        if isinstance(answer, Exception):
            raise answer
        return answer

    return pay


@pytest.mark.parametrize("answer", [Unknown("busy"), Unknown, None, True, "yes", ValueError("broken"), Happened])
def test_a_probe_that_says_nothing_usable_leaves_the_doubt(answer) -> None:
    pay = _answering(answer)
    rt = runtime(pay, wait=0.02)
    with pytest.raises(RunBlocked), rt.run("r"), pytest.raises(InDoubt):
        pay()
    assert states(rt, "r") == {"pay": "in_doubt"}
    assert any(event.what == "probed" for event in rt.events())


@pytest.mark.parametrize("answer", [Absent(), Absent])
def test_absent_without_its_parentheses_is_absent(answer) -> None:
    pay = _answering(answer)
    rt = runtime(pay, wait=0.02)
    with rt.run("r"), pytest.raises(TimeoutError):
        pay()
    assert states(rt, "r") == {"pay": "failed"}


def test_a_probe_asks_by_name_for_arguments_and_the_call() -> None:
    asked: list[object] = []

    @tool
    def pay(order: str) -> str:
        raise TimeoutError

    pay.compensate(lambda: None)

    @pay.probe
    def ask(order: str, call):
        asked.append((order, call.tool, call.args, len(call.key)))
        return Happened(f"found {order}")

    with runtime(pay).run("r"):
        assert pay(order="7") == "found 7"
    assert asked == [("7", "pay", {"order": "7"}, 64)]


def test_absent_is_not_believed_before_the_settle_delay() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"), settle=0.06)
    world.script["pay"] = [TimeoutError()]
    began = time.monotonic()
    with runtime(pay).run("r"):
        assert pay() == "pay:1"
    assert time.monotonic() - began >= 0.06


def test_an_effect_that_lands_inside_the_settle_delay_is_found_not_repeated() -> None:
    world = World()
    pay = world.compensatable("pay")
    asked: list[str] = []

    @pay.probe(settle=60)
    def look(x: str) -> Any:
        asked.append(x)
        if len(asked) == 1:
            world.happen("pay:1")  # it lands when it was looked for
            return Absent()
        return Happened("pay:1")

    world.script["pay"] = [TimeoutError()]
    with testing.runtime(tools=[pay], wait=600).run("r"):  # in virtual time: the delay is not over before it is over
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]
    assert asked == ["1", "1"]


def test_the_settle_delay_is_at_least_the_timeout() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay", timeout=0.05))
    world.script["pay"] = [ConnectionResetError()]
    began = time.monotonic()
    with runtime(pay).run("r"):
        pay()
    assert time.monotonic() - began >= 0.05


def test_an_idempotent_call_in_doubt_is_started_again_with_the_same_key() -> None:
    from amends import current_call

    keys: list[str] = []

    @tool(idempotent=True)
    def pay() -> str:
        keys.append(current_call().key)
        if len(keys) < 2:
            raise TimeoutError
        return "paid"

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with rt.run("r"):
        assert pay() == "paid"
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_an_idempotent_call_past_its_window_is_not_started_again() -> None:
    world = World()
    pay = world.compensatable("pay", idempotent="0.05s", retry=FAST)

    world.script["pay"] = [TimeoutError()]
    rt = runtime(pay)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait"):
        world.script["pay"] = [KeyboardInterrupt()]
        pay()
    time.sleep(0.06)
    with pytest.raises(RunBlocked), rt.run("r"), pytest.raises(InDoubt):
        pay()
    assert world.log == []


def test_an_idempotent_call_inside_its_window_is_started_again() -> None:
    world = World()
    pay = world.compensatable("pay", idempotent="24h")
    world.script["pay"] = [(TimeoutError(),)]
    with runtime(pay).run("r"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1", "pay:1"]  # the destination deduplicates on the key


def test_a_blocked_run_is_still_probed_also_after_somebody_looked_in_vain() -> None:
    answers: list[object] = [Unknown("busy")]

    @tool
    def pay() -> str:
        raise TimeoutError

    pay.compensate(lambda: None)

    @pay.probe
    def ask():
        return answers[0]

    rt = runtime(pay, wait=0.01)
    for _ in range(2):
        with pytest.raises(RunBlocked), rt.run("r"), pytest.raises(InDoubt):
            pay()
    answers[0] = Happened("paid")
    until(lambda: [report.state for report in rt.recover()] == ["committed"])


# ---- A probe that keeps failing


def _broken(one: Any, *, times: int, how: Any = None) -> list[str]:
    """Give the tool a probe with a bug, which is mended after so many times."""
    asked: list[str] = []

    def look(x: str) -> Any:
        asked.append(x)
        if len(asked) > times:
            return Happened(f"{one.name}:{x}")
        if how is None:
            return order_id  # type: ignore[name-defined] # noqa: F821 (the bug)
        return how

    one.probe(look)
    return asked


def _visits(rt: Any, worker: Any, number: int) -> list[str]:
    found = []
    calls = rt._host.store.calls
    for _ in range(number):
        wake(rt._host.store)
        calls.update({id: changed(row, {"probe_at": 0.0}) for id, row in calls.items() if row.probe_at is not None})
        found += [report.state for report in worker.recover()]
    return found


@pytest.mark.parametrize("how, words", [(None, "NameError: name 'order_id' is not defined"), (True, "returned True")])
def test_a_probe_that_keeps_failing_asks_a_person_with_its_error(how: Any, words: str) -> None:
    world = World()
    pay, hold = world.compensatable("pay"), world.compensatable("hold")
    asked = _broken(hold, times=10**6, how=how)
    world.script["hold"] = [(TimeoutError("no answer"),)]
    rt = runtime(pay, hold, wait=0.01)
    with pytest.raises(InDoubt), rt.run("r"):
        pay()
        hold()
    assert rt.report("r").state == "rolling_back"
    assert _visits(rt, rt, 3)[-1] == "blocked"
    report = rt.report("r")
    (cause,) = report.run.causes
    assert "hold" in cause
    assert "its probe keeps failing (" in cause
    assert words in cause
    assert f"rt.resolve('{report.calls[1].id}'" in cause
    assert len(asked) in (5, 6)
    assert world.log == ["pay:1", "hold:1", "undo pay:1"]  # the others are compensated meanwhile
    (doubt,) = rt.doubts()
    assert [one.answer for one in doubt.evidence] == ["failed"] * len(asked)
    assert rt.resolve(doubt.id, Happened("hold:1"), by="anna", why="looked").state == "rolled_back"
    assert world.standing == []


def test_a_blocked_run_is_still_probed_and_goes_on_when_the_probe_is_mended() -> None:
    world = World()
    hold = world.compensatable("hold")
    asked = _broken(hold, times=7)
    world.script["hold"] = [(TimeoutError("no answer"),)]
    rt = runtime(hold, wait=0.01)
    with pytest.raises(InDoubt), rt.run("r"):
        hold()
    assert _visits(rt, rt, 3)[-1] == "blocked"
    row = next(iter(rt._host.store.runs.values()))
    assert 50 < row.wake_at - time.time() <= 60  # seldom
    assert _visits(rt, rt, 4) == ["blocked", "blocked", "rolled_back"]
    assert len(asked) == 8
    assert world.log == ["hold:1", "undo hold:1"]


@pytest.mark.parametrize("recover", ["resume", "wait"])
def test_a_run_that_waits_for_a_broken_probe_is_blocked_too(recover: str) -> None:
    world = World()
    hold = world.compensatable("hold", key="x")
    _broken(hold, times=6)
    world.script["hold"] = [(KeyboardInterrupt(),)]

    def agent(run: Any) -> str:
        return str(hold())

    rt = runtime(hold, wait=0.01, agents={"clerk": agent})
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover=recover, agent="clerk"):
        hold()
    found = _visits(rt, rt, 5)
    assert found == ["open"] * 4 + ["blocked"]
    assert "NameError" in rt.report("r").run.causes[0]
    _visits(rt, rt, 2)
    assert rt.report("r").state == {"resume": "committed", "wait": "open"}[recover]
    assert states(rt, "r") == {"hold": "succeeded"}


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    world = World()
    hold = world.compensatable("hold")
    asked: list[str] = []

    def look(x: str) -> Any:
        asked.append(x)
        if len(asked) % 3 == 0:
            return Unknown("not yet")
        raise ValueError("down")

    hold.probe(look)
    world.script["hold"] = [(TimeoutError("no answer"),)]
    rt = runtime(hold, wait=0.01)
    with pytest.raises(InDoubt), rt.run("r"):
        hold()
    assert set(_visits(rt, rt, 12)) == {"rolling_back"}


def test_a_clean_end_over_a_broken_probe_blocks_and_commits_when_it_is_mended() -> None:
    world = World()
    wire = world.pivot()
    _broken(wire, times=6)
    world.script["wire"] = [(TimeoutError("no answer"),)]
    rt = runtime(wire, wait=0.01)
    with pytest.raises(RunBlocked), rt.run("r"), contextlib.suppress(InDoubt):
        wire()
    found = _visits(rt, rt, 6)
    assert found[-1] == "committed"
    assert set(found[:-1]) == {"blocked"}


def test_a_retriable_with_a_broken_probe_asks_a_person() -> None:
    world = World()
    wire, mail = world.pivot(), world.retriable(idempotent=False)
    _broken(mail, times=6)
    world.script["mail"] = [(TimeoutError("no answer"),)]
    rt = runtime(wire, mail, wait=0.01)
    with rt.run("r"):
        mail()
        wire()
    found = _visits(rt, rt, 7)
    assert "blocked" in found
    assert found[-1] == "committed"
    assert world.log == ["wire:1", "mail:1"]


def test_a_compensation_whose_probe_keeps_failing_asks_a_person_and_the_others_go_on() -> None:
    world = World()
    asked: list[str] = []

    def look(x: str) -> Any:
        asked.append(x)
        if len(asked) > 6:
            return Happened(None)
        raise KeyError("no such field")

    pay = world.compensatable("pay")
    hold = world.compensatable("hold", twin={"probe": look})
    world.script["undo hold"] = [(TimeoutError("no answer"),)]
    rt = runtime(pay, hold, wait=0.01)
    with pytest.raises(ValueError, match="no"), rt.run("r"):
        pay()
        hold()
        raise ValueError("no")
    found = _visits(rt, rt, 5)
    assert found[-1] == "blocked"
    assert "its probe keeps failing (KeyError: 'no such field')" in rt.report("r").run.causes[0]
    assert world.log == ["pay:1", "hold:1", "undo hold:1", "undo pay:1"]
    assert _visits(rt, rt, 4)[-1] == "rolled_back"


def test_a_probe_by_hand_that_fails_says_why() -> None:
    world = World()
    hold = world.compensatable("hold")
    _broken(hold, times=10**6)
    world.script["hold"] = [(TimeoutError("no answer"),)]
    rt = runtime(hold, wait=0.01)
    with pytest.raises(InDoubt), rt.run("r"):
        hold()
    (doubt,) = rt.doubts()
    assert rt.probe(doubt.id) == Unknown("NameError: name 'order_id' is not defined")
    (doubt,) = rt.doubts()
    assert doubt.evidence[-1].answer == "failed"
