"""S7: a release whose parallel group fails in the middle, with one member that lands late."""

from __future__ import annotations

import time
from contextlib import suppress

from amends import Absent, Happened, Probed, Runtime, tool
from tests.scenarios.processes import main
from tests.scenarios.world import World

TOOLS = ("apply_config", "scale_canary", "warm_cache", "shift_traffic")
PLAN = [
    [
        {"tool": "apply_config", "args": {"release": "7"}},
        {"tool": "scale_canary", "args": {"release": "7"}},
        {"tool": "run_migration_dry", "args": {"release": "7"}},
        {"tool": "warm_cache", "args": {"release": "7"}},
    ],
    [{"tool": "shift_traffic", "args": {"release": "7"}}],
]


class DryRunFailed(Exception):
    """The migration would not work."""


def build(world: World, variant: str) -> Runtime:
    @tool
    def apply_config(release: str) -> str:
        return world.do("apply_config", f"config-{release}")

    @apply_config.compensate
    def restore_config(result: str) -> None:
        world.undo("apply_config", result)

    @tool
    def scale_canary(release: str) -> str:
        return world.do("scale_canary", f"canary-{release}")

    @scale_canary.compensate
    def remove_canary(result: str) -> None:
        world.undo("scale_canary", result)

    @tool(kind="read")
    def run_migration_dry(release: str) -> str:
        time.sleep(0.05)
        world.note("dry_run", failed=release)
        raise DryRunFailed("column missing")

    @tool
    def warm_cache(release: str) -> str:
        time.sleep(0.2)
        return world.do("warm_cache", f"cache-{release}")

    @warm_cache.compensate
    def drop_cache(result: str) -> None:
        world.undo("warm_cache", result)

    @warm_cache.probe
    def is_warm(release: str) -> Probed[str]:
        found = world.standing("warm_cache")
        return Happened(found[0]) if found else Absent()

    @tool(kind="pivot", after=["apply_config"])
    def shift_traffic(release: str) -> str:
        return world.do("shift_traffic", f"traffic-{release}")

    return Runtime(world.url, tools=[apply_config, scale_canary, run_migration_dry, warm_cache, shift_traffic])


def play(rt: Runtime, world: World) -> str:
    with suppress(DryRunFailed), rt.run("release-7") as run:
        run.execute(PLAN)
    return rt.report("release-7").state


if __name__ == "__main__":
    main(build, {"play": play})
