"""``python -m tests.adapters.mcp_desk FILE``: an MCP server over stdio whose effects are lines of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer

effects = Path(sys.argv[1])
server = MCPServer("desk")


def _effect(line: str) -> None:
    with effects.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


@server.tool()
def book(room: str, nights: int = 1) -> dict[str, Any]:
    """Book a room."""
    if room == "none":
        raise ValueError("no such room")
    _effect(f"book {room} {nights}")
    return {"id": f"b_{room}", "nights": nights}


@server.tool()
def erase(room: str) -> str:
    """A tool that nobody has declared to amends."""
    _effect(f"erase {room}")
    return "erased"


if __name__ == "__main__":
    server.run()
