"""Anthropic's tool runner books a trip: it commits, it is rolled back, and it survives a kill. Needs no API key.

    pip install "amends[anthropic]"
    python examples/anthropic_agent.py

The real SDK talks to a scripted model on this machine; without `ModelServer` it talks to Anthropic. Everything
is kept in the folder `anthropic-data`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from anthropic import Anthropic, AnthropicError

from amends import Happened, Probed, Runtime, tool
from amends.adapters.anthropic import runner_tools, until_done
from amends.llm import ModelServer, ScriptedModel

DATA = Path("anthropic-data")
TRIP = [("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2}), "All booked."]


# ---- the tools -----------------------------------------------------------------------------------------------


@tool(key="trip")
def book_flight(trip: str) -> dict[str, str]:
    """Book a flight."""
    # Write a whole line at once: calls of one turn run in parallel.
    print(f"  airline: flight to {trip} booked\n", end="")
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return {"ticket": f"F-{trip}"}


@book_flight.compensate
def cancel_flight(result: dict[str, str]) -> None:
    print("  airline: ticket", result["ticket"], "cancelled")


@book_flight.probe(settle=0.0)
def find_flight(trip: str) -> Probed[dict[str, str]]:
    print("  amends asks the airline: is there a flight to", trip)
    return Happened({"ticket": f"F-{trip}"})


@tool(key="trip")
def book_hotel(trip: str, nights: int) -> str:
    """Book a hotel."""
    print(f"  hotel: {nights} nights in {trip} booked\n", end="")
    return f"H-{trip}"


@book_hotel.compensate
def cancel_hotel(result: str) -> None:
    print("  hotel: booking", result, "cancelled")


# ---- the agent: the SDK's own runner, with tools that run in the run -----------------------------------------


def agent(rt: Runtime, id: str, client: Anthropic) -> str:
    with rt.run(id) as run:
        runner = client.beta.messages.tool_runner(
            model="claude-sonnet-5",
            max_tokens=1000,
            messages=[{"role": "user", "content": "Book me a weekend in Lisbon."}],
            tools=runner_tools(run, rt),
        )
        return "".join(block.text for block in until_done(runner).content if block.type == "text")


def play(id: str, script: list[Any]) -> None:
    with (
        Runtime(f"sqlite:///{DATA}/ledger.db", tools=[book_flight, book_hotel]) as rt,
        ModelServer(ScriptedModel(*script)) as server,
        Anthropic(**server.anthropic) as client,
    ):
        try:
            print("  agent:", agent(rt, id, client))
        except AnthropicError as error:
            print("  agent failed:", error)
        print("  ledger: run", id, "is", rt.report(id).state)


def down(_: Any) -> Any:
    raise ConnectionError("the model is down")


def main() -> None:
    DATA.mkdir(exist_ok=True)
    if sys.argv[1:] == ["killed"]:
        play("killed", TRIP)
        return
    print("1. It commits; the model repeats a call, and is answered from the record.", flush=True)
    play("commits", [TRIP[0], *TRIP])
    print("2. The model is down in the middle: everything is rolled back.", flush=True)
    play("fails", [*TRIP[:2], down])
    print("3. Its process is killed between the booking and the record; another one continues.", flush=True)
    (DATA / "die").touch()
    died = subprocess.run([sys.executable, __file__, "killed"], check=False)
    (DATA / "die").unlink(missing_ok=True)  # nothing dies if all was done before
    print("  killed:", died.returncode == -signal.SIGKILL)
    play("killed", TRIP)


if __name__ == "__main__":
    main()
