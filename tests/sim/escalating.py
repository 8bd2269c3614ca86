"""F75: nobody answers: people are reminded, others are asked, a deadline ends in a no; or somebody answers in between."""

from __future__ import annotations

from contextlib import suppress

from amends.errors import Held, Refused, UsageError
from amends.host.host import Host
from amends.host.notices import CLAIM_S
from amends.ledger.operations import SearchApprovals
from amends.ledger.world import Sleep
from amends.people import approvals
from amends.people.approvals import send_overdue_notices
from amends.testing.simulation import NOBODY, Inside
from amends.tools.rules import Escalation, Rule, checked_rules
from tests.sim.approving import VARIANTS
from tests.sim.scenarios import Scenario, Variant, do, make, traits

LOOKS = 5
EVERY_S = CLAIM_S
RULES = checked_rules(
    [
        Rule(
            "w", roles=("clerk",), expires=20 * CLAIM_S, remind=1.5 * EVERY_S, reminders=1,
            escalate=[Escalation(2.5 * EVERY_S, ("lead",))], deadline=6 * EVERY_S, why="slow",
        )
    ]
)  # fmt: skip


async def worker(inside: Inside) -> None:
    """Comes by now and then, beside another one."""
    for _ in range(LOOKS):
        await Sleep(EVERY_S)
        await send_overdue_notices(inside.host, NOBODY, 10)


async def lead(inside: Inside) -> None:
    """Says yes as soon as it counts; before the escalation, and after the deadline, it does not."""
    for _ in range(LOOKS):
        await Sleep(EVERY_S)
        for found in await SearchApprovals(None, ("pending",), None, 10):
            row = found.approval
            with suppress(UsageError, Refused):
                await approvals.approve(inside.host, NOBODY, row.id, by="lea", roles=("lead",), digest=row.digest)


def escalating(v: Variant, who: str) -> Scenario:
    """One request that its clerks do not see."""
    w = make("w", variant=v)

    async def program(inside: Inside) -> None:
        with suppress(Held, Refused):
            async with inside.run("r", recover="wait", agent="agent") as run:
                await do(run, w, n=1)

    scenario = Scenario(f"F75 {who}", program, [w], {"w": traits(v)}, policy="wait", asks=("w",))
    scenario.second = worker
    scenario.third = worker if who == "nobody" else lead
    scenario.host = Host({"url": "memory:", "wait": 30.0, "lease": 30.0, "rules": RULES}, [w], alone=True)
    return scenario


def escalating_scenarios(v: Variant) -> list[Scenario]:
    """Nobody answers; the next role answers."""
    return [escalating(v, who) for who in ("nobody", "lead")] if v in VARIANTS else []
