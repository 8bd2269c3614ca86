"""Roll a run back: show the plan, then carry out exactly that plan, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from amends import Planned, Residue, RollbackPlan
from amends.errors import StalePlan, UsageError
from amends.serve import runs as service_runs
from amends.serve.console.acts import Acted, Asked, body, needed
from amends.serve.console.html import path
from amends.serve.console.run import FINAL, calls_in, count, under_way
from amends.serve.exchange import Exchange, Reply
from amends.visible import visible, visible_value

PLAN_CALLS_MAX: Final = 1_000
"""A run with more calls is planned on the command line: a plan is a rehearsal, which would keep this server busy."""
ACCEPT: Final = "accept."
"""Begins the name of the field by which a call that stays is accepted."""


async def rollback(x: Exchange) -> dict[str, Any]:
    """Return the plan of a rollback, in order, and what it cannot undo."""
    info = await x.rt.info(x.path["id"])
    if not x.owns(info):
        raise UsageError(f"there is no run {info.id}")
    found: dict[str, Any] = {"run": info.to_dict(), "plan": None, "sentence": "", "why_not": "", "command": ""}
    if info.parent is not None:
        return found | {"why_not": "This is a child run: it is rolled back with the run above it."}
    if info.state in ("rolled_back", "abandoned"):
        return found | {"why_not": f"The run is {info.state.replace('_', ' ')}: there is nothing to take back."}
    if calls_in(await x.rt.report(info.id, limit=PLAN_CALLS_MAX + 1)) > PLAN_CALLS_MAX:
        why_not = f"The run has more than {PLAN_CALLS_MAX:,} calls. Its plan is made on the command line."
        return found | {"why_not": why_not, "command": f"amends rollback {info.id} --plan"}
    plan = await x.rt.plan_rollback(info.id)
    is_begun = info.goal == "rollback" or info.state == "rolling_back"
    return found | {
        "plan": plan_data(plan),
        "sentence": sentence(plan),
        "is_begun": is_begun,
        "why_not": "" if plan.refused is None else f"It cannot be rolled back: {plan.refused}.",
    }


def plan_data(plan: RollbackPlan) -> dict[str, Any]:
    """Return the plan with what a page shows of each call beside its id."""
    found = plan.to_dict()
    for facts, planned_one in zip(found["compensations"], plan.compensations, strict=True):
        args = ", ".join(f"{visible(name)}={visible_value(value)}" for name, value in planned_one.args.items())
        facts["said"] = f"{visible(planned_one.by)}({args})"
    planned: tuple[Planned | Residue, ...] = (*plan.compensations, *plan.doubts, *plan.cannot)
    for facts, one in zip((*found["compensations"], *found["doubts"], *found["cannot"]), planned, strict=True):
        facts |= {"state": one.call.state, "call_args": dict(one.call.to_dict()["args"]), "run": one.call.run_id}
    return found


def sentence(plan: RollbackPlan) -> str:
    """Return what will happen, with its numbers."""
    asks = sum(one.what == "ask" for one in plan.doubts)
    others = len(plan.doubts) - asks
    parts = [f"{count(len(plan.compensations), 'compensation')} will run"]
    if plan.running:
        parts.append(f"{count(len(plan.running), 'call')} in flight must end first")
    if others:
        parts.append(f"{count(others, 'doubt')} will be settled first and taken back if {_it(others)} happened")
    if asks:
        parts.append(f"{count(asks, 'doubt')} will wait for a person")
    if plan.dropped:
        parts.append(f"{count(len(plan.dropped), 'staged or held call')} will never start")
    stays = len(plan.cannot)
    nothing = "nothing else stays" if plan.doubts else "nothing stays"
    parts.append(f"{count(stays, 'effect')} stay{'s' if stays == 1 else ''}" if stays else nothing)
    return f"{', '.join(parts)}."


def _it(number: int) -> str:
    return "it" if number == 1 else "they"


# ---- The act


async def asks(x: Exchange, form: Mapping[str, str]) -> Asked:
    """Say once more what the plan will do; refuse one that is stale before anybody confirms it."""
    needed(form, "why", label="the reason")
    hash, id = needed(form, "plan", label="the plan"), x.path["id"]
    plan = await x.rt.plan_rollback(id)
    if plan.hash != hash:
        raise StalePlan(hash, now=plan.hash, run_id=id)
    return Asked(f"Roll back {visible(id)}?", sentence(plan), "Roll back", path("/runs", id, "/rollback"))


async def apply(x: Exchange, form: Mapping[str, str]) -> Acted:
    """Roll the run back by exactly the plan that was shown."""
    said = body(
        service_runs.RollBack,
        why=needed(form, "why", label="the reason"),
        plan=needed(form, "plan", label="the plan"),
        accept=[
            name.removeprefix(ACCEPT) for name, value in form.items() if name.startswith(ACCEPT) and value == "yes"
        ],
    )
    done: Reply | None = await under_way(service_runs.rollback(replace(x, body=said)))
    to, id = path("/runs", x.path["id"]), visible(x.path["id"])
    state = None if done is None else str(done.data["run"]["state"])
    if done is None or state not in (*FINAL, "blocked"):
        return Acted(to, f"The rollback of {id} is under way.", "wait")
    if state == "rolled_back":
        undone = _undone(done.data)
        return Acted(to, f"Rolled back: {count(undone, 'compensation')} ran, and nothing is left standing.")
    left = count(len(done.data["residue"]), "effect")
    if state == "blocked":
        return Acted(to, f"The rollback of {id} is blocked: {left} could not be taken back.", "fail")
    return Acted(to, f"Taken back; {left} left standing, as accepted.")


def _undone(report: Mapping[str, Any]) -> int:
    mine = sum(call["state"] == "compensated" for call in report["calls"])
    return int(mine + sum(_undone(one) for one in report["children"]))
