"""S7 with people: a release whose parallel group has two members that somebody must allow."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from amends import Held, Runtime, tool
from amends.errors import Refused
from tests.scenarios.world import World

PLAN = [
    [
        {"tool": "apply_config", "args": {"release": "7"}},
        {"tool": "scale_canary", "args": {"release": "7"}},
        {"tool": "open_gate", "args": {"release": "7"}},
        {"tool": "warm_cache", "args": {"release": "7"}},
    ],
]
ASKS = ("scale_canary", "open_gate")
TOOLS = ("apply_config", "scale_canary", "open_gate", "warm_cache")


def build(url: str, world: World) -> Runtime:
    def make(name: str) -> object:
        @tool(name=name, key="release", needs_approval=name in ASKS)
        def body(release: str) -> str:
            return world.do(name, f"{name}-{release}")

        @body.compensate
        def undo(result: str) -> None:
            world.undo(name, result)

        return body

    return Runtime(url, tools=[make(name) for name in TOOLS], principal="bot", wait=60.0)


def play(rt: Runtime, *, wait_approval: float = 0.0) -> str:
    """One life of the program; what became of the run, as it was seen from inside."""
    try:
        with rt.run("release-7", wait_approval=wait_approval) as run:
            try:
                run.execute(PLAN)
            except Refused as no:
                return f"rejected {no.tool}"  # type: ignore[attr-defined]
    except Held:
        return "held"
    return "committed"


def main() -> None:
    """``canary.py URL FOLDER [killed]``: played once; killed while it waits for people."""
    url, folder, *rest = sys.argv[1:]
    rt = build(url, World(Path(folder)))
    if rest == ["killed"]:
        threading.Thread(target=_die_when_all_is_asked, args=(url, Path(folder)), daemon=True).start()
        play(rt, wait_approval=60.0)
    print(play(rt))
    rt.close()


def _die_when_all_is_asked(url: str, folder: Path) -> None:
    beside = build(url, World(folder))
    pause = threading.Event()
    while len(list(beside.approvals())) < len(ASKS) or len(list(beside.calls("status:succeeded"))) < 2:
        pause.wait(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
