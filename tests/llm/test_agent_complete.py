"""The agent loop has two outcomes: complete, or taken back; the model is told once before it may stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Report, Runtime, UsageError
from amends.errors import NOT_FINISHED
from amends.llm import Finished, ScriptedModel, run_agent, run_agent_async
from tests.llm.shop import World, client_of, tools_of

CHARGE = ("charge", {"order": "7", "cents": 4200})
DECLINED = ("charge", {"order": "8", "cents": 200_000})
CHEAPER = ("charge", {"order": "8", "cents": 100})
SHIP = ("ship", {"order": "7"})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def rt(world: World) -> Iterator[Runtime]:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        yield rt


def agent(rt: Runtime, *turns: Any, **options: Any) -> Finished:
    model = turns[0] if isinstance(turns[0], ScriptedModel) else ScriptedModel(*turns)
    return run_agent(rt, "Ship order 7.", client=model, model="script", **options)


def warnings(done: Finished) -> list[str]:
    texts = [one.get("content") or one.get("parts", [{}])[0].get("text") for one in done.messages]
    return [str(text) for text in texts if str(text).startswith(NOT_FINISHED)]


@pytest.mark.parametrize("kind", ["chat.completions", "responses", "messages", "generate_content", "chat"])
def test_a_model_that_stops_over_an_open_failure_is_told_once_and_everything_is_taken_back(
    rt: Runtime, world: World, kind: str
) -> None:
    with client_of(kind, ScriptedModel(CHARGE, DECLINED, "Sorry.")) as (client, api):
        done = run_agent(rt, "Ship order 7.", client=client, model="m", api=api)
    assert (done.outcome, done.state, done.text, done.turns) == ("rolled_back", "rolled_back", "Sorry.", 4)
    assert [one.tool for one in done.report.missing] == ["charge"]
    assert len(warnings(done)) == 1
    assert "the card was declined" in warnings(done)[0]
    assert [line.split()[0] for line in world.done] == ["charge", "refund"]


def test_a_model_that_is_told_can_make_it_good(rt: Runtime) -> None:
    done = agent(rt, CHARGE, DECLINED, "Sorry.", CHEAPER, "Done after all.")
    assert (done.outcome, done.text, len(warnings(done))) == ("done", "Done after all.", 1)


def test_the_old_way_can_be_had(rt: Runtime) -> None:
    done = agent(rt, CHARGE, DECLINED, "Sorry.", on_open_failure="commit")
    assert (done.outcome, done.turns, warnings(done)) == ("done", 3, [])
    assert [one.tool for one in done.report.missing] == ["charge"]


def test_without_a_turn_left_nobody_is_told(rt: Runtime) -> None:
    done = agent(rt, CHARGE, DECLINED, "Sorry.", max_turns=3)
    assert (done.outcome, done.turns, warnings(done)) == ("rolled_back", 3, [])


def test_what_is_required_is_told_and_taken_back(rt: Runtime) -> None:
    done = agent(rt, CHARGE, "That is all.", requires=["ship"])
    assert (done.outcome, done.state) == ("rolled_back", "rolled_back")
    assert "ship has not succeeded" in warnings(done)[0]
    assert agent(rt, CHARGE, "That is all.", SHIP, "Sent.", requires=["ship"]).outcome == "done"
    assert agent(rt, "Hello.", requires=lambda report: bool(report.calls) and False).outcome == "rolled_back"


def test_after_the_pivot_the_same_id_goes_on(rt: Runtime, world: World) -> None:
    script = ScriptedModel(CHARGE, SHIP, "Sent.", "Still sent.", ("mail", {"to": "ada"}), "And mailed.")
    done = agent(rt, script, id="o", requires=["mail"])
    assert (done.outcome, done.state, [one.tool for one in done.report.missing]) == ("incomplete", "blocked", ["mail"])
    done = agent(rt, script, id="o", requires=["mail"])
    assert (done.outcome, done.state, done.text) == ("done", "committed", "And mailed.")
    assert world.done[-1] == "mail ada"


def test_what_the_model_does_not_have_cannot_be_required(rt: Runtime) -> None:
    for requires in (["ship"], "ship", {"tool": "ship"}, [("ship", {"order": "7"})]):
        with pytest.raises(UsageError, match="the model does not have"):
            agent(rt, "Hello.", tools=["charge"], requires=requires)
    assert list(rt.runs()) == []


def test_a_generator_that_requires_something_is_refused_and_not_used_up(rt: Runtime) -> None:
    with pytest.raises(UsageError, match="read only once"):
        agent(rt, CHARGE, "That is all.", requires=(name for name in ["ship"]))
    assert list(rt.runs()) == []


def test_it_is_replayed_as_it_was(rt: Runtime) -> None:
    def program() -> tuple[str, str]:
        done = agent(rt, CHARGE, DECLINED, "Sorry.", id="o")
        return done.outcome, done.state

    assert program() == rt.replay("o", program) == ("rolled_back", "rolled_back")


def test_the_same_on_an_event_loop(world: World) -> None:
    async def main() -> list[str]:
        async with AsyncRuntime("memory:", tools=tools_of(world)) as rt:
            ends: list[str] = []
            for turns, options in (
                ((CHARGE, DECLINED, "Sorry."), {}),
                ((CHARGE, DECLINED, "Sorry.", CHEAPER, "Done."), {}),
                ((CHARGE, SHIP, "Sent."), {"requires": ["mail"]}),
            ):
                given: Any = options
                done = await run_agent_async(rt, "Go.", client=ScriptedModel(*turns), model="script", **given)
                ends.append(done.outcome)
            return ends

    assert asyncio.run(main()) == ["rolled_back", "done", "incomplete"]


def test_a_check_of_the_program_sees_the_report(rt: Runtime) -> None:
    seen: list[str] = []

    def shipped(report: Report) -> bool:
        seen.append(report.state)
        return any(call.tool == "ship" for call in report.calls)

    assert agent(rt, CHARGE, SHIP, "Sent.", requires=shipped).outcome == "done"
    assert seen[0] == "pivoted"
