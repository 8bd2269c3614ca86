"""A crew that books a trip: it commits, it is rolled back, and it survives a kill. Needs no API key.

    pip install "amends[crewai]"
    python examples/crewai_crew.py

A script plays the model; put `"gpt-4o"` in its place. Everything is kept in the folder `crewai-data`.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.tools import tool

import amends
from amends.adapters.crewai import amends_tools

DATA = Path("crewai-data")
TRIP = [("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2}), "All booked."]


# ---- the crew's tools: no amends here ------------------------------------------------------------------------


@tool("book_flight")
def book_flight(trip: str) -> dict[str, str]:
    """Book a flight."""
    # Write a whole line at once: calls of one turn run in parallel.
    print(f"  airline: flight to {trip} booked\n", end="", flush=True)
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return {"ticket": f"F-{trip}"}


@tool("book_hotel")
def book_hotel(trip: str, nights: int) -> str:
    """Book a hotel."""
    print(f"  hotel: {nights} nights in {trip} booked\n", end="", flush=True)
    return f"H-{trip}"


# ---- their declarations --------------------------------------------------------------------------------------


def cancel_flight(result: dict[str, str]) -> None:
    print("  airline: ticket", result["ticket"], "cancelled", flush=True)


def find_flight(trip: str) -> amends.Probed[dict[str, str]]:
    print("  amends asks the airline: is there a flight to", trip, flush=True)
    return amends.Happened({"ticket": f"F-{trip}"})


def cancel_hotel(result: str) -> None:
    print("  hotel: booking", result, "cancelled", flush=True)


TOOLS = [
    amends.declare("book_flight", key="trip", probe=find_flight, compensate=cancel_flight),
    amends.declare("book_hotel", key="trip", compensate=cancel_hotel),
]


class Script(BaseLLM):
    """Play a model: say the next line of the script."""

    turns: Any = ()

    def call(self, messages: Any, *_: Any, **__: Any) -> Any:
        line = self.turns[sum(one["role"] == "assistant" for one in messages)]
        if isinstance(line, Exception):
            raise line
        if isinstance(line, str):
            return line
        return [{"id": os.urandom(4).hex(), "function": {"name": line[0], "arguments": json.dumps(line[1])}}]

    def supports_function_calling(self) -> bool:
        return True


# ---- three trips ---------------------------------------------------------------------------------------------


def book(run_id: str, script: list[Any]) -> None:
    clerk = Agent(role="clerk", goal="book trips", backstory="a travel agency", llm=Script(model="script", turns=script),
                  tools=amends_tools([book_flight, book_hotel]))  # fmt: skip
    trip = Task(description="Book a weekend in Lisbon.", expected_output="what was booked", agent=clerk)
    with amends.Runtime(f"sqlite:///{DATA}/ledger.db", tools=TOOLS) as rt:
        try:
            with rt.run(run_id, recover="wait"):  # one run for the kickoff and everything that the crew retries in it
                print("  crew:", Crew(agents=[clerk], tasks=[trip]).kickoff(), flush=True)
        except ConnectionError as error:
            print("  crew failed:", error, flush=True)
        print("  ledger: run", run_id, "is", rt.report(run_id).state, flush=True)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    if sys.argv[1:] == ["killed"]:
        book("killed", TRIP)
        return
    print("1. It commits; the model repeats a call, and is answered from the record.", flush=True)
    book("commits", [TRIP[0], *TRIP])
    print("2. The model is down in the middle, the crew retries in vain: everything is rolled back.", flush=True)
    book("fails", [*TRIP[:2], ConnectionError("the model is down")])
    print("3. Its process is killed between the booking and the record; another one continues.", flush=True)
    (DATA / "die").touch()
    died = subprocess.run([sys.executable, __file__, "killed"], stderr=subprocess.DEVNULL, check=False)
    (DATA / "die").unlink(missing_ok=True)  # nothing dies if all was done before
    print("  killed:", died.returncode == -signal.SIGKILL, flush=True)
    book("killed", TRIP)


if __name__ == "__main__":
    main()
