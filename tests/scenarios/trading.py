"""S8: an order on an exchange whose answer is lost."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from amends import Absent, Happened, Probed, RunBlocked, Runtime, Unknown, current_call, tool
from tests.scenarios.processes import main
from tests.scenarios.world import World, die_at

SETTLE_S = 1.0


def build(world: World, variant: str) -> Runtime:
    @tool(kind="pivot", key="ticket", timeout=0.3)
    def place_order(ticket: str, shares: int) -> str:
        client = current_call().key
        world.note("sent", client=client, slow=variant == "callback")
        match variant:
            case "lost" if len(world.entries("sent")) == 1:
                raise TimeoutError("it never got there")
            case "late":
                _land_later(world, f"O-{ticket}", client)
                raise TimeoutError("the exchange is slow")
            case "eventual":
                world.do("place_order", f"O-{ticket}", client=client)
                raise TimeoutError("the answer was lost")
            case "callback":
                world.do("place_order", f"O-{ticket}", client=client)
                time.sleep(1.0)  # longer than the timeout: it comes back as a late, second word about the same order
                return f"O-{ticket}"
        return world.do("place_order", f"O-{ticket}", client=client)

    @place_order.probe(settle=SETTLE_S)
    def find_order(ticket: str) -> Probed[str]:
        asked = len(world.entries("asked"))
        found = world.standing("place_order")
        world.note("asked", found=found)
        if variant == "eventual" and asked < 2:
            return Unknown("the exchange's index is behind")
        return Happened(found[0]) if found else Absent()

    return Runtime(world.url, tools=[place_order], lease=4.0)


def _land_later(world: World, id: str, client: str) -> None:
    """Let the order land after the exchange was first asked for it, and before its settle delay is over."""

    def land() -> None:
        while not world.entries("asked"):
            time.sleep(0.002)
        world.do("place_order", id, client=client)

    threading.Thread(target=land, daemon=True).start()


def play(rt: Runtime, world: World) -> dict[str, Any]:
    """A model that is told at once: nothing is waited for here."""
    told: dict[str, Any] = {}
    with suppress(RunBlocked), rt.run("trade-8", wait=0.0) as run:
        answer = run.answer("place_order", {"ticket": "8", "shares": 100})
        told = {"status": answer.status, "is_error": answer.is_error, "text": answer.text}
        die_at("told")
    return told


def patient(rt: Runtime, world: World) -> dict[str, Any]:
    """A program that stands and waits for the answer; then for what is still under way."""
    with rt.run("trade-8", wait=60.0) as run:
        answer = run.answer("place_order", {"ticket": "8", "shares": 100})
    if world.entries("sent")[0].get("slow"):
        time.sleep(1.2)  # until the body that outlived its timeout has returned and said its late word
    return {"status": answer.status, "value": answer.value}


if __name__ == "__main__":
    main(build, {"play": play, "patient": patient})
