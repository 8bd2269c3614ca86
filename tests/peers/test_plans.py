"""Plans and declarations: what can be known to be wrong is known before anything runs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Refused, RunBlocked, UsageError, tool
from amends.errors import BadArguments, BadDeclaration, UnknownTool
from tests.peers.conftest import Ledger
from tests.world import World, states


def _step(name: str, **args: Any) -> dict[str, Any]:
    return {"tool": name, "args": args}


def test_an_unknown_tool_in_the_second_step_runs_nothing(ledger: Ledger) -> None:
    """saga-agent 1.4 d: KeyError escapes, the first step stays done, no audit."""
    world = World()
    rt = ledger(world.compensatable("flight"), world.compensatable("car"))
    with rt.run("r") as run, pytest.raises(UnknownTool) as unknown:
        run.execute([_step("flight"), _step("caar")])
    assert unknown.value.tool == "caar"
    assert "car" in unknown.value.for_model()
    assert world.log == []


def test_an_unknown_tool_in_the_second_step_of_an_async_run_runs_nothing(tmp_path: Path) -> None:
    """saga-agent 1.4 d, where it was observed: its async executor."""
    log: list[str] = []

    @tool
    async def flight() -> None:
        log.append("flight")

    flight.compensate(lambda: None)

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[flight]) as rt, rt.run("r") as run:
            with pytest.raises(UnknownTool):
                await run.execute([[_step("flight")], [_step("nope"), _step("flight")]])

    asyncio.run(main())
    assert log == []


@pytest.mark.parametrize("wrong", [{"y": "1"}, {"n": "many"}, {"x": "1", "z": 2}], ids=["name", "type", "extra"])
def test_wrong_arguments_in_a_later_step_are_found_before_anything_runs(wrong: dict[str, Any], ledger: Ledger) -> None:
    """saga-agent 1.4 e: wrong arg names found only when the step runs (then compensated)."""
    world = World()
    rt = ledger(world.compensatable("flight"), world.compensatable("car"))
    with rt.run("r") as run, pytest.raises(BadArguments) as bad:
        run.execute([_step("flight"), [_step("flight", x="2"), _step("car", **wrong)]])
    assert bad.value.tool == "car"
    assert world.log == []
    assert list(rt.calls()) == []


def test_a_plan_may_mix_single_steps_and_groups(ledger: Ledger) -> None:
    """saga-agent 1.4 e: mixed flat/group list: TypeError after step 1 ran, no rollback."""
    world = World()
    rt = ledger(*(world.compensatable(name) for name in ("a", "b", "c")))
    with rt.run("r") as run:
        answers = run.execute([_step("a"), [_step("b"), _step("c")], _step("a", x="2"), [_step("b", x="2")]])
    assert [answer.value for answer in answers] == ["a:1", "b:1", "c:1", "a:2", "b:2"]
    assert (world.log[0], sorted(world.log[1:3]), world.log[3:]) == ("a:1", ["b:1", "c:1"], ["a:2", "b:2"])


@pytest.mark.parametrize("plan", [[7], [{"args": {}}], ["flight"], [[["flight"]]], [{"tool": "flight", "args": 3}]])
def test_what_is_no_plan_is_refused_before_anything_runs(plan: list[Any], ledger: Ledger) -> None:
    """saga-agent 1.4 e: found in the middle."""
    world = World()
    with ledger(world.compensatable("flight")).run("r") as run, pytest.raises((UsageError, Refused)):
        run.execute([_step("flight"), *plan])
    assert world.log == []


def test_a_step_that_fails_takes_the_groups_before_it_back(ledger: Ledger) -> None:
    """saga-agent 1.3: "rolls back every completed step" when the step format is mixed: it does not."""
    world = World()
    rt = ledger(*(world.compensatable(name) for name in ("a", "b", "c", "d")))
    world.script["d"] = [ValueError("full")]
    with pytest.raises(ValueError, match="full"), rt.run("r") as run:
        run.execute([_step("a"), [_step("b"), _step("c")], _step("d")])
    assert sorted(world.log[3:5]) == ["undo b:1", "undo c:1"]
    assert world.log[5:] == ["undo a:1"]
    assert states(rt, "r")["d"] == "failed"


def test_a_group_runs_side_by_side_and_one_that_fails_waits_for_the_others(ledger: Ledger) -> None:
    """saga-agent 1.2: gather: what still runs when the first one fails is in nobody's list."""
    world, gate = World(), threading.Barrier(2, timeout=20)

    @tool
    def slow() -> str:
        gate.wait()
        threading.Event().wait(0.05)
        return world.happen("slow:1")

    slow.compensate(lambda: world.undo("slow:1"))

    @tool
    def fails() -> None:
        gate.wait()
        raise ValueError("full")

    fails.compensate(lambda: world.undo("fails:1"))
    rt = ledger(slow, fails)
    with pytest.raises(ValueError, match="full"), rt.run("r") as run:
        run.execute([[_step("slow"), _step("fails")]])
    assert world.log == ["slow:1", "undo slow:1"]
    assert rt.report("r").state == "rolled_back"


def test_a_model_is_told_what_happened_and_never_before_it_happened(ledger: Ledger) -> None:
    """saga-agent 1.3: told "X executed" before anything has run; results and failures never reach the model."""
    world = World()
    charge = world.compensatable("charge")
    world.script["charge"] = [ValueError("card closed"), (TimeoutError(),)]
    with pytest.raises(RunBlocked), ledger(charge).run("r") as run:
        failed, lost = run.answer("charge", {}), run.answer("charge", {})
    assert (failed.status, lost.status) == ("failed", "in_doubt")
    assert "card closed" in failed.text
    assert "may have happened" in lost.text
    assert failed.is_error
    assert lost.is_error


# ---- declarations -------------------------------------------------------------------------


def test_two_tools_of_one_name_are_refused(ledger: Ledger) -> None:
    """saga-agent 1.2: a second class with the same name silently replaces the first."""
    world = World()
    with pytest.raises(BadDeclaration) as bad:
        ledger(world.compensatable("charge"), world.compensatable("charge"))
    assert "charge" in str(bad.value)
    rt = ledger(world.compensatable("charge"))
    with pytest.raises(BadDeclaration):
        rt.add(world.compensatable("charge"))


def test_a_tool_has_any_signature(ledger: Ledger) -> None:
    """SafeAgent 2.3: a normal two-argument function: execute_failed:TypeError, final. agent-saga 1.1: keywords only."""
    seen: list[Any] = []

    class Shop:
        def pay(self, order: str, *, cents: int = 1, **rest: str) -> str:
            seen.append((order, cents, rest))
            return "ok"

    class Ship:
        def execute(self, order: str, weight: float = 1.0) -> str:
            seen.append((order, weight))
            return "sent"

        def compensate(self, result: str) -> None: ...

    pay, ship = tool(Shop().pay, compensate=lambda: None), tool(Ship())
    with ledger(pay, ship).run("r"):
        assert pay("7", cents=3, note="x") == "ok"
        assert pay(note="x", cents=3, order="7") == "ok"
        assert ship("7") == "sent"
        assert ship("7", weight=1.0) == "sent"
    assert seen == [("7", 3, {"note": "x"}), ("7", 1.0)]


def test_a_signature_that_cannot_be_asked_by_name_is_refused_where_it_is_declared(ledger: Ledger) -> None:
    """SafeAgent 2.3: found when the call is made, and then the failure is final."""

    def pay(*lines: int) -> None: ...

    with pytest.raises(BadDeclaration):
        ledger(tool(pay, compensate=lambda: None))


def test_an_option_that_nobody_knows_is_refused() -> None:
    """agent-saga 1.2: guard(max_steps=2, max_budget_usd=1): 6 of 6 steps ran, both parameters unused."""
    said: dict[str, Any] = {"compensat": lambda: None}
    with pytest.raises(BadDeclaration, match="compensate"):
        tool(lambda: None, **said)


@pytest.mark.parametrize(
    "option", [{"needs_approval": True}, {"cost": 5}, {"locks": ["x"]}], ids=lambda o: next(iter(o))
)
def test_an_option_that_amends_cannot_keep_yet_is_refused_and_not_ignored(
    option: dict[str, Any], ledger: Ledger
) -> None:
    """agent-saga 1.2: verdicts that execute ignores. Until the later part is there, saying it is an error."""
    world = World()
    try:
        rt = ledger(world.compensatable("charge", **option))
    except BadDeclaration:
        return
    # The later part is there: then the option must not be passed over either.
    assert getattr(rt._host.specs["charge"], next(iter(option)))
