"""A Pydantic AI agent that books a trip: it commits, it is rolled back, and it survives a kill. Needs no API key.

    pip install "amends[pydantic-ai]"
    python examples/pydantic_ai_agent.py

A function plays the model; put `"openai:gpt-4o"` in its place. Everything is kept in the folder `pydantic-ai-data`.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

import amends
from amends.adapters.pydantic_ai import AmendsCapability

DATA = Path("pydantic-ai-data")
FLIGHT, HOTEL = ("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2})


# ---- the agent's tools, as Pydantic AI knows them: no amends here --------------------------------------------


def book_flight(trip: str) -> str:
    """Book a flight."""
    # Write a whole line at once: calls of one turn run in parallel.
    print(f"  airline: flight to {trip} booked\n", end="", flush=True)
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return f"F-{trip}"


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


# ---- the agent as usual, and one capability ------------------------------------------------------------------


def model_of(script: list[Any]) -> FunctionModel:
    def say(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        line = script[sum(isinstance(one, ModelResponse) for one in messages)]
        if isinstance(line, Exception):
            raise line
        said = TextPart(line) if isinstance(line, str) else ToolCallPart(line[0], line[1], os.urandom(4).hex())
        return ModelResponse(parts=[said])

    return FunctionModel(say)


async def talk(run_id: str, script: list[Any]) -> None:
    async with runtime() as rt:
        agent = Agent(model_of(script), tools=[book_flight, book_hotel], capabilities=[AmendsCapability(rt)])
        try:
            result = await agent.run("Book me a weekend in Lisbon.", run_id=run_id)
            print("  agent:", result.output)
        except ConnectionError as error:
            print("  agent failed:", error)
        print("  ledger: run", run_id, "is", (await rt.report(run_id)).state)


def main() -> None:
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
