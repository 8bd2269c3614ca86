"""S2: an order whose capture fails for good, and whose void does not work at once (or never)."""

from __future__ import annotations

from contextlib import suppress

from amends import Retry, RunBlocked, Runtime, tool
from tests.scenarios.processes import main
from tests.scenarios.world import World

TOOLS = ("reserve_stock", "authorise_card", "create_label", "capture")


class Unavailable(Exception):
    """The provider's 503: it says that it did nothing."""


class Declined(Exception):
    """The provider's last word."""


def build(world: World, variant: str) -> Runtime:
    @tool(key="order")
    def reserve_stock(order: str) -> str:
        return world.do("reserve_stock", f"S-{order}")

    @reserve_stock.compensate
    def put_back(result: str) -> None:
        world.undo("reserve_stock", result)

    @tool(key="order")
    def authorise_card(order: str) -> str:
        return world.do("authorise_card", f"A-{order}")

    @authorise_card.compensate(retry=Retry(attempts=5 if variant == "flaky" else 2, delay=0.4, factor=1.0, jitter=0.0))
    def void(result: str) -> None:
        if variant == "closed":
            world.note("void", answer="window closed")
            raise Declined("the refund window is closed")
        if len(world.entries("void")) < 2:
            world.note("void", answer=503)
            raise Unavailable("503")
        world.undo("authorise_card", result)

    @tool(key="order")
    def create_label(order: str) -> str:
        return world.do("create_label", f"L-{order}")

    @create_label.compensate
    def cancel_label(result: str) -> None:
        world.undo("create_label", result)

    @tool(kind="pivot", after=["authorise_card"])
    def capture(order: str) -> str:
        raise Declined("the card was stolen")

    rt = Runtime(world.url, tools=[reserve_stock, authorise_card, create_label, capture])
    rt.script = (reserve_stock, authorise_card, create_label, capture)  # type: ignore[attr-defined]
    return rt


def play(rt: Runtime, world: World) -> str:
    with suppress(Declined, RunBlocked), rt.run("order-2"):
        for tool_ in rt.script:  # type: ignore[attr-defined]
            tool_(order="2")
    return rt.report("order-2").state


if __name__ == "__main__":
    main(build, {"play": play})
