"""A FastMCP server that books trips: runs commit, are rolled back, and survive a kill of the server. Needs no API key.

    pip install "amends[fastmcp]"
    python examples/fastmcp_server.py

A client that follows a script plays an agent: it starts the server, names the run of its calls, and ends it.
Everything is kept in the folder `fastmcp-data`.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from fastmcp import Client, FastMCP
from fastmcp.client.transports import StdioTransport
from mcp import MCPError

import amends
from amends.adapters.fastmcp import RUN_META, AmendsMiddleware

DATA = Path("fastmcp-data")


# ---- the server's tools: no amends here ----------------------------------------------------------------------


def book_flight(trip: str) -> str:
    """Book a flight."""
    note("airline: flight to", trip, "booked")
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return f"F-{trip}"


def book_hotel(trip: str, nights: int) -> str:
    """Book a hotel."""
    note("hotel:", nights, "nights in", trip, "booked")
    return f"H-{trip}"


def note(*words: object) -> None:
    """Write to a file: the output of the server belongs to the protocol."""
    with (DATA / "world.txt").open("a", encoding="utf-8") as world:
        print(*words, file=world)


# ---- their declarations: compensations and probes, by name ---------------------------------------------------


def cancel_flight(result: str) -> None:
    note("airline: ticket", result, "cancelled")


def find_flight(trip: str) -> amends.Probed[str]:
    note("amends asks the airline: is there a flight to", trip)
    return amends.Happened(f"F-{trip}")


def cancel_hotel(result: str) -> None:
    note("hotel: booking", result, "cancelled")


def runtime() -> amends.AsyncRuntime:
    return amends.AsyncRuntime(f"sqlite:///{DATA}/ledger.db", tools=[
        amends.declare("book_flight", key="trip", compensate=cancel_flight, probe=find_flight),
        amends.declare("book_hotel", key="trip", compensate=cancel_hotel),
    ])  # fmt: skip


def server() -> FastMCP:
    rt = runtime()
    guard, made = AmendsMiddleware(rt), FastMCP("travel")
    made.add_middleware(guard)
    for tool in (book_flight, book_hotel, guard.end_run):
        made.tool(tool)
    return made


# ---- three clients -------------------------------------------------------------------------------------------


def connected() -> Client[Any]:
    return Client(StdioTransport(sys.executable, [__file__, "serve"], env=dict(os.environ), keep_alive=False))


async def talk(run_id: str, *calls: tuple[str, dict[str, Any]], how: str) -> None:
    meta: Any = {RUN_META: run_id}
    try:
        async with connected() as client:
            for tool, args in (*calls, ("end_run", {"how": how})):
                told = await client.call_tool(tool, args, meta=meta, raise_on_error=False)
                text = getattr(told.content[0], "text", "")
                print(f"  {tool}: {text}")
    except MCPError:
        print("  the server is gone")
    world = DATA / "world.txt"
    if world.exists():  # not if all was done before
        print("".join(f"    {line}\n" for line in world.read_text(encoding="utf-8").splitlines()), end="")
        world.unlink()


async def main() -> None:
    flight = ("book_flight", {"trip": "lisbon"})
    hotel = ("book_hotel", {"trip": "lisbon", "nights": 2})
    print("1. It commits; a request that is repeated is answered from the record.")
    await talk("commits", flight, flight, hotel, how="commit")
    print("2. The client gives up: everything is rolled back.")
    await talk("gives-up", flight, hotel, how="rollback")
    print("3. The server is killed between the booking and the record; the client tries again.")
    (DATA / "die").touch()
    await talk("killed", flight, hotel, how="commit")
    (DATA / "die").unlink(missing_ok=True)  # nothing dies if all was done before
    await talk("killed", flight, hotel, how="commit")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        server().run(show_banner=False)
    else:
        DATA.mkdir(exist_ok=True)
        asyncio.run(main())
