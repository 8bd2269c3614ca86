"""A little MCP server: it tells its secret, describes its tool as a file says, and can be slow or talk too much."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("changing")
described = Path(sys.argv[1])


async def note(text: str, slow: float = 0.0) -> str:
    time.sleep(slow)  # it goes on, whatever its client wants
    with described.with_suffix(".notes").open("a") as file:
        file.write(f"{text}\n")
    return f"noted {text} for {os.environ.get('TOKEN', 'nobody')}"


async def shout(times: int) -> str:
    """Return a long text."""
    return "x" * times


async def fail() -> str:
    """Fail with the secret in the message."""
    raise ToolError(f"cannot log in with {os.environ.get('TOKEN')}")


server.tool(description=described.read_text())(note)
server.tool()(shout)
server.tool()(fail)

if __name__ == "__main__":
    server.run("stdio")
