"""Flows whose bodies are handlers that call the tool's own function: too often, otherwise, and too late."""

from __future__ import annotations

import contextvars
from contextlib import suppress
from typing import Any

from amends.errors import NoRun
from amends.host.requests import model_ask
from amends.testing.simulation import Inside, NoNestedCalls, SimulatedRun
from tests.sim.scenarios import Fails, Here, Scenario, Variant, make, traits

REFUSED = (NoRun, NoNestedCalls)
"""What a handler is told that may not call the function; a guarded call of its own counts as refused here."""


async def _answered(run: SimulatedRun, a_tool: Any, handler: Any, **args: Any) -> None:
    ask = model_ask(run.inside.host, run.session, a_tool.name, args, handler=handler, tool_call_id=None, again=None)
    done = await run.do(ask)
    Here.world.told(run.session.uid, a_tool.name, done.value)


def context_scenarios(v: Variant) -> list[Scenario]:
    """A handler that calls its tool twice and with other arguments; another that uses the right of the first."""
    a, b = make("a", variant=v), make("b", variant=v)
    rest = {name: traits(v) for name in "ab"}

    def program_of(*, fails: bool) -> Any:
        async def program(inside: Inside) -> None:
            kept: list[contextvars.Context] = []

            def greedy(n: int, word: str) -> Any:
                with suppress(*REFUSED):
                    a(n=n + 1, word=word)
                try:
                    return a(n=n, word=word)
                finally:
                    with suppress(*REFUSED):
                        a(n=n, word=word)

            def lazy(n: int, word: str) -> Any:
                kept.append(contextvars.copy_context())
                return a.fn(n=n, word=word)

            def late(n: int, word: str) -> Any:
                for context in kept:
                    with suppress(*REFUSED):
                        context.run(a, n=2)
                return b(n=n, word=word)

            async with inside.run("r") as run:
                await _answered(run, a, greedy, n=1)
                await _answered(run, a, lazy, n=2)
                await _answered(run, b, late, n=1)
                if fails:
                    raise Fails

        return program

    return [
        Scenario("H1 handlers", program_of(fails=False), [a, b], rest),
        Scenario("H2 handlers fail", program_of(fails=True), [a, b], rest),
    ]
