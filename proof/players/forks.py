"""A loaded process that forks for every act, so that starting a player costs no import. Run by the player's interpreter.

    forks.py PLAYER CATALOGUE

A line of JSON on standard input is an act: ``{"act": "play", "copies": 1, "scenario": {...}}``. The answer is a line with the exit
codes of the processes that acted: negative for a signal.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])  # not this folder: players are named after packages

from proof.destination import Scenario  # noqa: E402  # found by the line above

ACT_S_MAX = 60.0


def main() -> None:
    """Answer acts until standard input ends."""
    player: Any = importlib.import_module(f"proof.players.{sys.argv[1]}")
    player.prepare(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    print(json.dumps({"version": player.VERSION}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        scenario = Scenario(**asked["scenario"])
        children = [_forked(player, asked["act"], scenario) for _ in range(asked.get("copies", 1))]
        print(json.dumps([_code(child) for child in children]), flush=True)


def _forked(player: Any, act: str, scenario: Scenario) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(Path(scenario.folder, "log.txt"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = getattr(player, act)(scenario) or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code(child: int) -> int:
    """Return how a child ended; kill one that takes too long."""
    end = time.monotonic() + ACT_S_MAX
    pause = 0.001
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 124


if __name__ == "__main__":
    main()
