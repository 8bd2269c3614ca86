"""A little MCP server with a shelf: ``python -m tests.gateway.shelf_server FILE``. Each line of the file is an item."""

from __future__ import annotations

import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("shelf")
shelf = Path(sys.argv[1])


def items() -> list[str]:
    return shelf.read_text().splitlines() if shelf.exists() else []


@server.tool()
async def put(item: str, count: int = 1) -> str:
    """Put something on the shelf."""
    shelf.write_text("".join(f"{one}\n" for one in [*items(), *[item] * count]))
    return f"put {count} {item}"


@server.tool()
async def take(item: str) -> str:
    """Take all of one kind from the shelf."""
    shelf.write_text("".join(f"{one}\n" for one in items() if one != item))
    return f"took {item}"


@server.tool()
async def sell(item: str) -> str:
    """Sell something, for good."""
    return await take(item)


if __name__ == "__main__":
    print("shelf is ready", file=sys.stderr)
    server.run("stdio")
