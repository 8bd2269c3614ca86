"""F28: people are told by who asked, or, where that cannot tell them, by one of two workers that find it at once."""

from __future__ import annotations

from contextlib import suppress

from amends.errors import Held
from amends.host.host import Host
from amends.host.notices import CLAIM_S
from amends.ledger.world import Sleep
from amends.people.approvals import send_overdue_notices
from amends.testing.simulation import NOBODY, Inside
from amends.tools.rules import Rule
from tests.sim.approving import VARIANTS
from tests.sim.scenarios import Scenario, Variant, do, make, traits

LOOKS = 4
RULES = (Rule("w", expires=20 * CLAIM_S, why="long"),)


async def worker(inside: Inside) -> None:
    """Comes by now and then."""
    for _ in range(LOOKS):
        await Sleep(5.0)
        await send_overdue_notices(inside.host, NOBODY, 10)


def telling(v: Variant, who: str) -> Scenario:
    """Two requests that live long enough for whoever is left to tell of them."""
    w = make("w", variant=v)

    async def program(inside: Inside) -> None:
        for id in ("r", "s"):
            with suppress(Held):
                async with inside.run(id, recover="wait") as run:
                    run.session.tell = run.session.tell if who == "asker" else None
                    await do(run, w, n=1)

    scenario = Scenario(f"F28 {who} tells", program, [w], {"w": traits(v)}, policy="wait", asks=("w",))
    if who == "worker":
        scenario.second = scenario.third = worker
    scenario.host = Host({"url": "memory:", "wait": 30.0, "lease": 30.0, "rules": RULES}, [w], alone=True)
    return scenario


def telling_scenarios(v: Variant) -> list[Scenario]:
    """By who asked, and by others."""
    return [telling(v, who) for who in ("asker", "worker")] if v in VARIANTS else []
