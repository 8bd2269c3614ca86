"""An agent is replayed: the same program, every answer of the model and of the tools from the record."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime
from amends.errors import Diverged
from amends.llm import Finished, ScriptedModel, run_agent, run_agent_async
from tests.llm.shop import World, client_of, tools_of
from tests.llm.test_agent import BACK, BIG, CHARGE, KINDS, SHIP, effects

TURNS = ([CHARGE, ("reserve", {"sku": "box"})], CHARGE, SHIP, ("mail", {"to": "ada"}), "Done.")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_replay_asks_no_model_and_starts_no_body(world: World, kind: str, stream: bool) -> None:
    model = ScriptedModel(*TURNS)
    with Runtime("memory:", tools=tools_of(world)) as rt, client_of(kind, model) as (client, api):

        def agent() -> tuple[str, int, str]:
            pieces: list[str] = []
            more: dict[str, Any] = {"on_text": pieces.append} if stream else {}
            done = run_agent(rt, "Ship order 7.", client=client, model="gpt-4o-mini", api=api, id="o-7", **more)
            return done.text, done.turns, "".join(pieces)

        live = agent()
        before = world.done
        assert rt.replay("o-7", agent) == live
    assert world.done == before
    assert len(model.asked) == 5


def play(rt: Runtime, *turns: Any, **more: Any) -> Finished:
    return run_agent(rt, "Ship order 7.", client=ScriptedModel(*turns), model="m", id="o-7", **more)


def test_what_waited_for_a_person_is_replayed_in_one_go(world: World) -> None:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        approval = play(rt, *BIG, "Shipped.").waiting[0].approval
        rt.approve(approval.id, digest=approval.digest, by="ada")
        live = play(rt, *BIG, "Shipped.")
        again = rt.replay("o-7", lambda: play(rt, "is not asked"))
    assert (again.text, again.turns, again.messages) == (live.text, live.turns, live.messages)
    assert effects(world) == ["charge big", "reserve box", "ship big"]


def test_what_was_taken_back_is_replayed_to_its_end(world: World) -> None:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        live = play(rt, CHARGE, BACK, may_roll_back=True)
        again = rt.replay("o-7", lambda: play(rt, "is not asked", may_roll_back=True))
    assert (again.outcome, again.turns) == (live.outcome, live.turns) == ("rolled_back", 2)
    assert effects(world) == ["charge 7", "refund ch_7"]


def test_another_prompt_or_system_diverges(world: World) -> None:
    with Runtime("memory:", tools=tools_of(world)) as rt:
        play(rt, CHARGE, "Done.")
        with pytest.raises(Diverged):
            rt.replay("o-7", lambda: play(rt, "is not asked", system="Be quick."))


def test_the_same_awaited(world: World) -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=tools_of(world)) as rt:
            model = ScriptedModel(*TURNS)

            async def agent() -> str:
                done = await run_agent_async(rt, "Ship order 7.", client=model, model="m", id="o-7")
                return done.text

            assert await agent() == await rt.replay("o-7", agent) == "Done."
            assert len(model.asked) == 5

    asyncio.run(main())
    assert effects(world)[-2:] == ["ship 7", "mail ada"]
