"""``python crewai_server.py FOLDER HOW``: an MCP server whose effects are lines of a file, with the ``mcp`` that CrewAI has.

``HOW``: what its tool ``pay`` does. ``held``: it answers as a server that is guarded by amends, whose call waits.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.fastmcp import FastMCP  # type: ignore[attr-defined]  # of the version that CrewAI needs

server = FastMCP("payments")
folder, how = Path(sys.argv[1]), sys.argv[2]


@server.tool()
def pay(order: str, cents: int = 5) -> list[Any]:
    """Pay an order."""
    if how == "refused":
        raise ValueError(f"there is no order {order}")
    if how == "held":
        outcome = {"status": "held", "executed": False, "text": "pay needs a person's approval"}
        return ["pay needs a person's approval", json.dumps({"amends/outcome": outcome})]
    with (folder / "effects").open("a", encoding="utf-8") as file:
        file.write(f"pay {order} {cents}\n")
        file.flush()
        os.fsync(file.fileno())
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "slow":
        time.sleep(20)
    return [f"paid_{order}"]


if __name__ == "__main__":
    server.run()
