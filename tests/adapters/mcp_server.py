"""An MCP server in a process of its own, for tests of clients: ``python -m tests.adapters.mcp_server FOLDER HOW``.

Its effects are lines of a file outside. ``HOW``: what its tool ``pay`` does. ``held``, ``lost``, ``once`` and
``once-fastmcp`` are guarded by amends; the last two are killed after the effect if the folder has a file ``die``.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from fastmcp import FastMCP
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

import amends
from amends.adapters.fastmcp import AmendsMiddleware
from amends.adapters.mcp import guarded


def served(folder: Path, how: str) -> Any:
    """The server, which has one tool."""

    def pay(order: str, cents: int = 5) -> str:
        """Pay an order."""
        if how == "refused":
            raise ToolError(f"there is no order {order}")
        with (folder / "effects").open("a", encoding="utf-8") as file:
            file.write(f"pay {order} {cents}\n")
            file.flush()
            os.fsync(file.fileno())
        if how == "killed" or (folder / "die").exists():
            (folder / "die").unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "slow":
            time.sleep(60)
        if how == "lost":
            raise ConnectionResetError("the provider did not answer")
        return f"paid_{order}"

    url = f"sqlite:///{folder / 'server.db'}"
    if how == "once-fastmcp":
        fast: FastMCP = FastMCP("payments")
        fast.add_middleware(AmendsMiddleware(amends.AsyncRuntime(url, tools=[amends.declare("pay", kind="pivot")])))
        fast.tool(pay)
        return fast
    server = MCPServer("payments")
    if how in ("held", "lost", "once"):
        declared = amends.declare("pay", kind="pivot", needs_approval=how == "held")
        rt = amends.Runtime(url, tools=[declared])
        server.tool()(guarded(rt)(pay))
    else:
        server.tool()(pay)
    return server


if __name__ == "__main__":
    served(Path(sys.argv[1]), sys.argv[2]).run("stdio")
