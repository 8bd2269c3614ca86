"""An agent on the OpenAI Agents SDK that books a trip: it commits, it is rolled back, and it survives a kill. No API key.

    pip install "amends[openai-agents]"
    python examples/openai_agents_agent.py

The SDK's own scripted model replaces a real one. Everything is kept in the folder `openai-agents-data`.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from agents import Agent, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import amends
from amends.adapters.openai_agents import AmendsRunner, amends_tools

DATA = Path("openai-agents-data")
FLIGHT, HOTEL = ("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2})


# ---- the agent's tools, as the SDK knows them: no amends here ------------------------------------------------


@function_tool
def book_flight(trip: str) -> str:
    """Book a flight."""
    # Write a whole line at once: calls of one turn run in parallel.
    print(f"  airline: flight to {trip} booked\n", end="", flush=True)
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return f"F-{trip}"


@function_tool
def book_hotel(trip: str, nights: int) -> str:
    """Book a hotel."""
    print(f"  hotel: {nights} nights in {trip} booked\n", end="", flush=True)
    return f"H-{trip}"


# ---- their declarations: compensations and probes, by name ---------------------------------------------------


def cancel_flight(result: str) -> None:
    print("  airline: ticket", result, "cancelled")


def find_flight(trip: str) -> amends.Probed[str]:
    print("  amends asks the airline: is there a flight to", trip)
    return amends.Happened(f"F-{trip}")


def cancel_hotel(result: str) -> None:
    print("  hotel: booking", result, "cancelled")


def runtime() -> amends.AsyncRuntime:
    return amends.AsyncRuntime(f"sqlite:///{DATA}/ledger.db", tools=[
        amends.declare("book_flight", key="trip", compensate=cancel_flight, probe=find_flight),
        amends.declare("book_hotel", key="trip", compensate=cancel_hotel),
    ])  # fmt: skip


# ---- the agent as usual, its tools guarded, and a runner with a run around each turn -------------------------


def agent(script: list[Any]) -> Agent[Any]:
    said = [line if isinstance(line, Exception) else [_item(line)] for line in script]
    return Agent(name="travel", model=ScriptedModel(said), tools=amends_tools([book_flight, book_hotel]))


def _item(line: Any) -> Any:
    if isinstance(line, str):
        return assistant_message(line)
    return function_call(line[0], line[1], call_id=f"call_{os.urandom(4).hex()}")


async def talk(run_id: str, script: list[Any]) -> None:
    async with runtime() as rt:
        try:
            result = await AmendsRunner(rt).run(agent(script), "Book me a weekend in Lisbon.", run_id=run_id)
            print("  agent:", result.final_output)
        except ConnectionError as error:
            print("  agent failed:", error)
        print("  ledger: run", run_id, "is", (await rt.report(run_id)).state)


def main() -> None:
    set_tracing_disabled(True)
    DATA.mkdir(exist_ok=True)
    trip = [FLIGHT, HOTEL, "All booked."]
    if sys.argv[1:] == ["killed"]:
        asyncio.run(talk("killed", trip))
        return
    print("1. It commits; the model repeats a call, and is answered from the record.", flush=True)
    asyncio.run(talk("commits", [FLIGHT, *trip]))
    print("2. The model is down in the middle: everything is rolled back.", flush=True)
    asyncio.run(talk("fails", [FLIGHT, HOTEL, ConnectionError("the model is down")]))
    print("3. Its process is killed between the booking and the record; another one continues.", flush=True)
    (DATA / "die").touch()
    died = subprocess.run([sys.executable, __file__, "killed"], check=False)
    (DATA / "die").unlink(missing_ok=True)  # nothing dies if all was done before
    print("  killed:", died.returncode == -signal.SIGKILL)
    asyncio.run(talk("killed", trip))


if __name__ == "__main__":
    main()
