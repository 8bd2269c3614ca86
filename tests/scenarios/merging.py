"""S9: after the merge, a ticket system that is down for longer than any process lives."""

from __future__ import annotations

import logging
from typing import Final

from amends import Retry, Runtime, current_call, tool
from amends.worker import work
from tests.scenarios.processes import main
from tests.scenarios.world import World

TOOLS = ("create_branch", "merge_pr", "close_ticket", "post_changelog")
RETRY: Final = Retry(attempts=1_000, delay=0.1, factor=2.0, max_delay=0.3, jitter=0.3)


class Down(Exception):
    """The ticket system says 503."""


def build(world: World, variant: str) -> Runtime:
    @tool(key="pr")
    def create_branch(pr: str) -> str:
        return world.do("create_branch", f"B-{pr}")

    @create_branch.compensate
    def delete_branch(result: str) -> None:
        world.undo("create_branch", result)

    @tool(kind="pivot", after=["create_branch"])
    def merge_pr(pr: str) -> str:
        return world.do("merge_pr", f"M-{pr}")

    @tool(kind="retriable", idempotent=True, retry=RETRY)
    def close_ticket(pr: str) -> str:
        if (world.folder / "outage").exists():
            world.note("tried", pr=pr)
            raise Down("503")
        return world.do("close_ticket", f"T-{pr}", key=current_call().key)

    @tool(kind="retriable", idempotent=True, retry=RETRY)
    def post_changelog(pr: str) -> str:
        return world.do("post_changelog", f"C-{pr}", key=current_call().key)

    rt = Runtime(world.url, tools=[create_branch, merge_pr, close_ticket, post_changelog])
    rt.script = (create_branch, close_ticket, post_changelog, merge_pr)  # type: ignore[attr-defined]
    return rt


def play(rt: Runtime, world: World) -> str:
    with rt.run("merge-9", deadline=0.5) as run:
        for tool_ in rt.script:  # type: ignore[attr-defined]
            tool_(pr="9")
    return run.state


def worker(rt: Runtime, world: World) -> str:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    work(rt, every=0.05)
    return "stopped"


if __name__ == "__main__":
    main(build, {"play": play, "worker": worker})
