"""Experiment h: asked again after a restart, in other words, on purpose, by a loop."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from amends import Held, Waiting, tool
from amends.errors import RunConflict
from tests.peers.conftest import Ledger
from tests.world import World, runtime


def _pay(log: list[Any], **options: Any) -> Any:
    @tool(name="pay", **options)
    def pay(order: str, amount: Decimal, note: str = "") -> str:
        log.append((order, amount, note))
        return f"p-{len(log)}"

    pay.compensate(lambda: None)
    return pay


SPELLINGS: list[dict[str, Any]] = [
    {"order": "7", "amount": 50, "note": "rent"},
    {"amount": "50.00", "order": "7", "note": "rent for May"},
    {"order": "7", "amount": 50.0},
    {"note": "RENT", "amount": "5E+1", "order": "7"},
]


def test_four_spellings_of_one_payment_are_one_effect(ledger: Ledger) -> None:
    """AgentRelay 3.4 h, agent-ledger 4.4 h: 4 effects. saga-agent 1.4 h: runs again."""
    log: list[Any] = []
    pay = _pay(log, key="order", ignore=["note"])
    with ledger(pay).run("r") as run:
        answers = [run.answer("pay", asked) for asked in SPELLINGS]
    assert [answer.status for answer in answers] == ["done", "replayed", "replayed", "replayed"]
    assert {answer.value for answer in answers} == {"p-1"}
    assert len(log) == 1


def test_a_reworded_request_after_a_resume_is_held_where_nobody_said_what_makes_it_the_same(ledger: Ledger) -> None:
    """peers 7.7: all four run the re-issued call. effect-ledger: a new call id, 2 effects."""
    log: list[Any] = []
    pay = _pay(log)
    rt = ledger(pay)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="wait") as run:
        run.answer("pay", SPELLINGS[0])
        raise KeyboardInterrupt
    with pytest.raises(Waiting), ledger(pay).run("r") as run:
        answer = run.answer("pay", SPELLINGS[1])
        assert answer.status == "held"
        assert isinstance(answer.error, Held)
        assert answer.error.reason == "duplicate"
    assert len(log) == 1
    (held,) = [call for call in rt.calls() if call.state == "held"]
    rt.decide(held.id, "replay", by="ada", why="the same rent")
    with ledger(pay).run("r") as run:
        assert run.answer("pay", SPELLINGS[1]).value == "p-1"
    assert len(log) == 1


def test_the_frameworks_call_id_makes_no_second_call(ledger: Ledger) -> None:
    """effect-ledger: the model re-issues the same call under a new call id, 2 effects. OpenAI ledger: the same."""
    log: list[Any] = []
    pay = _pay(log)
    with ledger(pay).run("r") as run:
        for number in range(3):
            run.answer("pay", {"order": "7", "amount": 50}, tool_call_id=f"call_{number}")
    assert len(log) == 1


def test_three_identical_calls_are_possible_by_saying_so(ledger: Ledger) -> None:
    """AgentRelay 3.4 e: three intended identical calls in a run, one effect: no way to say "again, on purpose"."""
    log: list[Any] = []
    pay = _pay(log)
    rt = ledger(pay, repeats=True)
    asked: dict[str, Any] = {"order": "7", "amount": Decimal(5)}
    with rt.run("r") as run:
        ids = [pay(**asked), pay.with_options(again="second box")(**asked)]
        ids.append(run.answer("pay", {**asked, "again_because": "third box"}).value)
        assert pay.with_options(again="second box")(**asked) == ids[1]
    assert ids == ["p-1", "p-2", "p-3"]
    assert len(log) == 3
    assert sorted(call.again or "" for call in rt.calls()) == ["", "second box", "third box"]


def test_a_loop_that_comes_by_with_another_order_is_another_call(ledger: Ledger) -> None:
    """exactly-once once_node: keyed by thread and node: charged only order 1, and answered order 2 with its result."""
    log: list[Any] = []
    pay = _pay(log, key="order")
    with ledger(pay).run("thread") as run:
        answers = [run.answer("pay", {"order": order, "amount": 1}).value for order in ("1", "2")]
    assert answers == ["p-1", "p-2"]


def test_two_tasks_with_the_same_arguments_are_two_effects(ledger: Ledger) -> None:
    """The other side of AgentRelay 3.3: the run is the task, not the process and not the block."""
    log: list[Any] = []
    pay = _pay(log)
    rt = ledger(pay)
    for run_id in ("may", "june", "may"):
        with rt.run(run_id):
            pay(order="7", amount=Decimal(50))
    assert len(log) == 2


def test_one_run_id_for_two_tasks_is_a_conflict(ledger: Ledger) -> None:
    """OpenAI ledger: same run id without resume_from runs again, overwriting the checkpoint."""
    rt = ledger()
    with rt.run("r", input={"order": 1}):
        pass
    with pytest.raises(RunConflict) as conflict, rt.run("r", input={"order": 2}):
        pass
    assert (conflict.value.recorded, conflict.value.given) == ({"order": 1}, {"order": 2})
    with rt.run("r", input={"order": 1}):
        pass


def test_a_finished_run_goes_on_from_its_record_and_starts_nothing(ledger: Ledger) -> None:
    """AgentRelay 3.4 a: agent_session takes no run id, so nothing can resume. OpenAI ledger: no way to feed it back."""
    world = World()
    flight, car = world.compensatable("flight"), world.compensatable("car")
    rt = ledger(flight, car)
    with pytest.raises(KeyboardInterrupt), rt.run("r", recover="resume"):
        flight()
        raise KeyboardInterrupt
    with ledger(flight, car).run("r", recover="resume"):
        assert [flight(), car()] == ["flight:1", "car:1"]
    with ledger(flight, car).run("r"):
        assert [flight(), car()] == ["flight:1", "car:1"]
    assert world.log == ["flight:1", "car:1"]


def test_no_number_of_later_calls_makes_an_old_key_run_again() -> None:
    """agent-ledger 4.4 c: max_size reached, an old key runs again (2 effects)."""
    log: list[int] = []

    @tool(scope="ledger")
    def pay(number: int) -> int:
        log.append(number)
        return number

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with rt.run("first"):
        pay(number=0)
        for number in range(1, 3000):
            pay(number=number)
    with rt.run("second"):
        assert [pay(number=number) for number in (0, 1, 2999)] == [0, 1, 2999]
    assert len(log) == 3000
    assert len(list(rt.calls("tool:pay"))) == 3000
