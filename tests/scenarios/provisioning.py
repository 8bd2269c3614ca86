"""S10: a cloud, a cap of 100 usd, and three things that cost more than that together."""

from __future__ import annotations

from typing import Any, Final

from amends import Budget, Cost, Runtime, tool
from amends.errors import BudgetExceeded
from tests.scenarios.processes import main
from tests.scenarios.world import World

TOOLS: Final = ("create_vm", "create_db", "create_lb")
CAP: Final = Budget(100, per="tenant")


def tools_of(world: Any) -> list[Any]:
    """What can be bought; ``world`` does and undoes. Of a database the set-up fee of 5 usd does not come back."""

    @tool(cost=40)
    def create_vm(name: str) -> str:
        return str(world.do("create_vm", name))

    @create_vm.compensate
    def delete_vm(result: str) -> None:
        world.undo("create_vm", result)

    @tool(cost=Cost(50, refundable=0.9))
    def create_db(name: str) -> str:
        return str(world.do("create_db", name))

    @create_db.compensate
    def delete_db(result: str) -> None:
        world.undo("create_db", result)

    @tool(cost=lambda call: 30)
    def create_lb(name: str) -> str:
        return str(world.do("create_lb", name))

    @create_lb.compensate
    def delete_lb(result: str) -> None:
        world.undo("create_lb", result)

    return [create_vm, create_db, create_lb]


def build(world: World, variant: str) -> Runtime:
    return Runtime(world.url, tools=tools_of(world), budgets=[CAP])


def play(rt: Runtime, world: World) -> list[str]:
    tools: list[Any] = rt._host.tools
    try:
        with rt.run("site-1") as run:
            for one in tools:
                run.call(one, name="site-1")
    except BudgetExceeded as no:
        return [no.tool, str(no.asked), str(no.left)]
    return ["committed"]


if __name__ == "__main__":
    main(build, {"play": play})
