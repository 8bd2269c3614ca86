"""A travel agent books flight, hotel and insurance: all of a trip or nothing of it, and nothing twice after a crash.

    pip install amends
    python examples/travel_booking.py

A script plays the model. The airline, the hotels and the insurer are files in the folder `travel-data`, beside the ledger.
"""

import os
import signal
from pathlib import Path
from typing import Any

from amends import Absent, Happened, Probed, Runtime, tool
from amends.llm import ScriptedModel, run_agent

DATA = Path("travel-data")
FULL = {"Grand"}  # hotels without a free room


# ---- three services that no database can roll back: each is a file with one line for each booking ---------------


def book(service: str, line: str) -> None:
    with (DATA / service).open("a", encoding="utf-8") as book:
        book.write(f"{line}\n")


def booked(service: str) -> list[str]:
    path = DATA / service
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def cancel(service: str, line: str) -> None:
    left = [one for one in booked(service) if one != line]
    (DATA / service).write_text("".join(f"{one}\n" for one in left), encoding="utf-8")


# ---- the tools ---------------------------------------------------------------------------------------------------


@tool(kind="read")
def search_hotels(city: str) -> list[str]:
    """List the hotels of a city."""
    return ["Grand", "Harbour"]


@tool(key="trip")
def book_flight(trip: str, city: str) -> str:
    """Book the flight of a trip."""
    book("airline", f"{trip}:{city}")
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # the seat is booked, and nobody has heard of it
    return f"{trip}:{city}"


@book_flight.compensate
def cancel_flight(result: str) -> None:
    cancel("airline", result)


@book_flight.probe(settle=0.0)  # the file answers at once; a real airline needs a settle delay
def find_flight(trip: str, city: str) -> Probed[str]:
    return Happened(f"{trip}:{city}") if f"{trip}:{city}" in booked("airline") else Absent()


@tool(key="trip")  # one hotel for a trip: another one makes good that the first was full
def book_hotel(trip: str, hotel: str) -> str:
    """Book a room for a trip."""
    if hotel in FULL:
        raise LookupError(f"{hotel} has no free room")  # an ordinary error: nothing was booked
    book("hotels", f"{trip}:{hotel}")
    return f"{trip}:{hotel}"


@book_hotel.compensate
def cancel_hotel(result: str) -> None:
    cancel("hotels", result)


@tool(kind="pivot", key="trip", after=["book_flight"])
def insure(trip: str) -> str:
    """Take out the insurance. It cannot be cancelled."""
    if trip == "atlantis":
        raise ValueError("nobody insures a trip to Atlantis")
    book("insurer", trip)
    return f"policy-{trip}"


# ---- three trips -------------------------------------------------------------------------------------------------


def travel(rt: Runtime, trip: str, script: list[Any]) -> None:
    """Let the agent book a trip. The same id continues after a crash, and nothing that was done is done again."""
    done = run_agent(
        rt, f"Book {trip}.", client=ScriptedModel(*script), model="script", id=trip, requires=["book_hotel", "insure"]
    )
    print(f"  agent: {done.outcome}: {done.text or done.why}")
    for service in ("airline", "hotels", "insurer"):
        print(f"  {service}:", [line for line in booked(service) if line.startswith(trip)])


def main() -> None:
    DATA.mkdir(exist_ok=True)
    tools = [search_hotels, book_flight, book_hotel, insure]
    lisbon = [
        [("search_hotels", {"city": "Lisbon"}), ("book_flight", {"trip": "lisbon", "city": "Lisbon"})],
        ("book_hotel", {"trip": "lisbon", "hotel": "Grand"}),  # full: the model is told, and takes another one
        ("book_hotel", {"trip": "lisbon", "hotel": "Harbour"}),
        ("insure", {"trip": "lisbon"}),
        "Lisbon is booked: the Grand was full, you stay at the Harbour.",
    ]
    atlantis = [
        ("book_flight", {"trip": "atlantis", "city": "Atlantis"}),
        ("book_hotel", {"trip": "atlantis", "hotel": "Harbour"}),
        ("insure", {"trip": "atlantis"}),
        "Sorry, nobody insures this.",
    ]
    porto = [
        ("book_flight", {"trip": "porto", "city": "Porto"}),
        ("book_hotel", {"trip": "porto", "hotel": "Harbour"}),
        ("insure", {"trip": "porto"}),
        "Porto is booked.",
    ]
    url = f"sqlite:///{DATA}/ledger.db"
    with Runtime(url, tools=tools) as rt:
        print("1. A hotel is full; the model takes another one.", flush=True)
        travel(rt, "lisbon", lisbon)
        print("2. The trip cannot be completed: hotel and flight are cancelled, in reverse order.", flush=True)
        travel(rt, "atlantis", atlantis)
    print("3. The process is killed right after the flight was booked. Another one continues.", flush=True)
    with_a_crash(url, tools, porto)
    with Runtime(url, tools=tools) as rt:
        travel(rt, "porto", porto)


def with_a_crash(url: str, tools: list[Any], script: list[Any]) -> None:
    """Start the trip in a child process that dies in the middle of its first booking."""
    if "porto:Porto" in booked("airline"):
        return  # it was booked the last time that this program ran
    (DATA / "die").touch()
    child = os.fork()  # before the runtime is made: a ledger is not shared with a fork
    if child == 0:
        with Runtime(url, tools=tools) as rt:
            travel(rt, "porto", script)
    _, status = os.waitpid(child, 0)
    print(
        "  killed:",
        os.WTERMSIG(status) == signal.SIGKILL,
        "| flights to Porto:",
        booked("airline").count("porto:Porto"),
    )


if __name__ == "__main__":
    main()
