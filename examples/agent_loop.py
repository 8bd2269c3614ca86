"""amends' own agent loop books a trip: it commits, waits for a person, is rolled back, and survives a kill. Needs no API key.

    pip install amends
    python examples/agent_loop.py

A script plays the model; put `client=OpenAI(), model="gpt-4o"` or `client=Anthropic(), model="claude-sonnet-5"` in
its place. Everything is kept in the folder `loop-data`.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from amends import Happened, Probed, Runtime, tool
from amends.llm import Finished, ScriptedModel, run_agent

DATA = Path("loop-data")
PROMPT = "Book me a weekend in Lisbon."
TRIP = [
    [("book_flight", {"trip": "lisbon"}), ("book_hotel", {"trip": "lisbon", "nights": 2})],
    ("pay", {"trip": "lisbon", "euros": 400}),
    "All booked.",
]


# ---- the tools, with compensations and probes ----------------------------------------------------------------


@tool(key="trip")
def book_hotel(trip: str, nights: int) -> str:
    """Book a hotel."""
    # Write a whole line at once: calls of one turn run in parallel.
    print(f"  hotel: {nights} nights in {trip} booked\n", end="")
    return f"H-{trip}"


@book_hotel.compensate
def cancel_hotel(result: str) -> None:
    print("  hotel: booking", result, "cancelled")


@tool(key="trip")
def book_flight(trip: str) -> dict[str, str]:
    """Book a flight."""
    print(f"  airline: flight to {trip} booked\n", end="")
    return {"ticket": f"F-{trip}"}


@book_flight.compensate
def cancel_flight(result: dict[str, str]) -> None:
    print("  airline: ticket", result["ticket"], "cancelled")


@tool(kind="pivot", key="trip", after=["book_flight"], needs_approval=lambda call: call.args["euros"] > 1000)
def pay(trip: str, euros: int) -> str:
    """Pay for the trip. This cannot be undone."""
    print(f"  bank: {euros} euros paid\n", end="")
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return f"P-{trip}"


@pay.probe(settle=0.0)
def find_payment(trip: str) -> Probed[str]:
    print("  amends asks the bank: was", trip, "paid?")
    return Happened(f"P-{trip}")


# ---- four runs -----------------------------------------------------------------------------------------------


def agent(rt: Runtime, id: str, script: list[Any], **more: Any) -> Finished:
    done = run_agent(rt, PROMPT, client=ScriptedModel(*script), model="script", id=id, **more)
    print(f"  agent: {done.outcome}, {done.turns} turns: {done.text or done.why}")
    print("  ledger: run", done.run_id, "is", done.state)
    return done


def main() -> None:
    DATA.mkdir(exist_ok=True)
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[book_hotel, book_flight, pay]) as rt:
        if sys.argv[1:] == ["killed"]:
            agent(rt, "killed", TRIP)
            return
        print("1. It commits; the model asks too early and repeats a call, and is told.", flush=True)
        agent(rt, "commits", [TRIP[1], TRIP[0][1], TRIP[0], *TRIP[1:]])
        print("2. A payment waits for a person; the same id continues after the approval.", flush=True)
        dear = [TRIP[0], ("pay", {"trip": "lisbon", "euros": 4000}), "All booked."]
        for held in agent(rt, "waits", dear).waiting:  # nothing waits if it was approved before
            assert held.approval is not None
            rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
            agent(rt, "waits", dear)
        print("3. The model requests a rollback; amends does it.", flush=True)
        wish = ("request_rollback", {"why": "there is a storm"})
        agent(rt, "taken-back", [TRIP[0][0], TRIP[0][1], wish], may_roll_back=True)
        print("4. Its process is killed between the payment and the record; another one continues.", flush=True)
        (DATA / "die").touch()
        died = subprocess.run([sys.executable, __file__, "killed"], check=False)
        (DATA / "die").unlink(missing_ok=True)  # nothing dies if all was done before
        print("  killed:", died.returncode == -signal.SIGKILL)
        agent(rt, "killed", TRIP)


if __name__ == "__main__":
    main()
