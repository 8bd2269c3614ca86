"""F90: tokens of the service. A one-time link that two browsers use at once, and tokens that people end beside their use."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from amends.errors import LinkVoid, NotFound, Unauthorized
from amends.host.host import View
from amends.host.token_cache import TokenCache
from amends.ledger.operations import EndToken
from amends.ledger.world import Sleep
from amends.people import tokens
from amends.testing.simulation import NOBODY, Inside
from tests.sim.scenarios import PLAIN, Scenario, Variant, do, make, traits


def token_scenarios(v: Variant) -> list[Scenario]:
    """A link that is used twice, with people who end what it gave; a token that expires while it is used."""
    if v != PLAIN:
        return []  # how tools behave makes no difference to tokens
    a = make("a", variant=v)
    rest = {"a": traits(v)}

    def browser(name: str) -> Callable[[Inside], Coroutine[Any, Any, None]]:
        async def enters(inside: Inside) -> None:
            inside.host.token_cache = TokenCache(0.0)  # one host plays all processes of all schedules
            with suppress(LinkVoid, NotFound, Unauthorized):
                said: dict[str, Any] = {"scopes": "operator", "by": "link", "why": "logged in", "kind": "link"}
                made = await tokens.create_token(inside.host, NOBODY, name, once="nonce", expires=30.0, **said)
                mine = View(None, None, name, made.id)
                more: dict[str, Any] = {"scopes": "viewer", "by": name, "why": "another one"}
                await mine.signed(tokens.create_token(inside.host, mine, f"for {name}", **more))
                await tokens.check_token(inside.host, NOBODY, str(made.text))
                async with inside.run(name) as run:
                    await do(run, a, n=1)
                await Sleep(0.5)
                await mine.signed(tokens.revoke_token(inside.host, mine, made.id, by=name, why="logged out"))

        return enters

    async def ends(inside: Inside) -> None:
        for _ in range(3):
            for one in await tokens.tokens(inside.host, NOBODY, kind="all"):
                await tokens.revoke_token(inside.host, NOBODY, one.id, by="anna", why="it leaked")
            await Sleep(0.3)

    async def works(inside: Inside) -> None:
        inside.host.token_cache = TokenCache(0.0)
        made = await tokens.create_token(inside.host, NOBODY, "ci", scopes="viewer", by="anna", why="ci", expires=2.0)
        async with inside.run("r") as run:
            for n in range(1, 5):
                await EndToken(made.id, None, "clock", "is it over?", expired=True)
                with suppress(Unauthorized):
                    await tokens.check_token(inside.host, NOBODY, str(made.text))
                    await do(run, a, n=n)
                await Sleep(1.0)

    return [
        Scenario("F90 a link used twice", browser("ada"), [a], rest, second=browser("eve"), third=ends),
        Scenario("F90b a token expires", works, [a], rest, second=ends),
    ]
