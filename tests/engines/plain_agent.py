"""An existing Temporal agent, which knows nothing of amends: activities with Temporal's default retries, and a workflow."""

from __future__ import annotations

import time
from datetime import timedelta

from temporalio import activity, workflow

with workflow.unsafe.imports_passed_through():
    from tests.engines import world

GIVEN_UP_S = 3.0
"""How long Temporal waits for an activity whose worker is gone."""


@activity.defn(name="reserve")
async def reserve(room: str) -> str:
    return _effect("reserve", "reserved", room)


@activity.defn(name="charge")
async def charge(order: str) -> str:
    return _effect("charge", "charged", order)


@activity.defn(name="break_down")
async def break_down(order: str) -> str:
    raise ValueError(f"{order} cannot be done")


@activity.defn(name="unlisted")
async def unlisted(order: str) -> str:
    """What nobody has declared to amends stays an ordinary activity."""
    return f"seen {order}"


@activity.defn(name="drive")
def drive(car: str) -> str:
    """A blocking activity: Temporal cancels it by an exception in its thread."""
    made = _effect("drive", "driven", car)
    until = time.monotonic() + GIVEN_UP_S
    while time.monotonic() < until:
        time.sleep(0.01)
    return made


def _effect(name: str, what: str, value: str) -> str:
    here = world.world()
    here.reach(f"{name}: body")
    made = here.note(what, value)
    here.reach(f"{name}: effect")
    return made


ACTIVITIES = [reserve, charge, break_down, unlisted, drive]


@workflow.defn
class PlainDrive:
    """A program whose activity says that it lives, and so hears that it is cancelled."""

    @workflow.run
    async def run(self) -> str:
        limit, beat = timedelta(seconds=4 * GIVEN_UP_S), timedelta(seconds=1)
        return await workflow.execute_activity(drive, "3", start_to_close_timeout=limit, heartbeat_timeout=beat)


@workflow.defn
class PlainTrip:
    """What a program on Temporal looks like."""

    @workflow.run
    async def run(self, fails: bool) -> list[str]:
        limit = timedelta(seconds=GIVEN_UP_S)
        made = [
            await workflow.execute_activity(unlisted, "7", start_to_close_timeout=limit),
            await workflow.execute_activity(reserve, "12", start_to_close_timeout=limit),
            await workflow.execute_activity(charge, "7", start_to_close_timeout=limit),
        ]
        if fails:
            _ = await workflow.execute_activity(break_down, "7", start_to_close_timeout=limit)
        return made
