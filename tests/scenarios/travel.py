"""S1: a trip. Killed right after the flight was booked, before that was written down."""

from __future__ import annotations

from amends import Absent, Happened, Probed, Run, Runtime, current_call, tool
from tests.scenarios.processes import main
from tests.scenarios.world import World

TOOLS = ("hold_hotel", "book_flight", "charge", "email_itinerary")


def build(world: World, variant: str) -> Runtime:
    @tool(kind="read")
    def search(city: str) -> list[str]:
        return [f"hotel in {city}"]

    @tool(key="trip")
    def hold_hotel(trip: str) -> str:
        return world.do("hold_hotel", f"H-{trip}")

    @hold_hotel.compensate
    def release(result: str) -> None:
        world.undo("hold_hotel", result)

    @tool(key="trip")
    def book_flight(trip: str) -> str:
        return world.do("book_flight", f"F-{len(world.entries('book_flight')) + 1}", trip=trip)

    @book_flight.compensate
    def cancel(result: str) -> None:
        world.undo("book_flight", result)

    if variant == "probed":

        @book_flight.probe
        def find_by_ref(trip: str) -> Probed[str]:
            found = [entry["do"] for entry in world.entries("book_flight") if entry.get("trip") == trip]
            return Happened(found[0]) if found else Absent()

    @tool(kind="pivot", after=["book_flight"], idempotent=True)
    def charge(trip: str, cents: int) -> str:
        return world.do("charge", f"C-{trip}", key=current_call().key, cents=cents)

    @tool(kind="retriable", idempotent=True)
    def email_itinerary(trip: str) -> str:
        return world.do("email_itinerary", f"E-{trip}", key=current_call().key)

    def travel(run: Run) -> str:
        trip = run.input["trip"]
        search(city="Porto")
        hold_hotel(trip=trip)
        book_flight(trip=trip)
        email_itinerary(trip=trip)
        return charge(trip=trip, cents=42_000)

    tools = [search, hold_hotel, book_flight, charge, email_itinerary]
    return Runtime(world.url, tools=tools, agents={"travel": travel})


def play(rt: Runtime, world: World) -> str:
    return str(rt.start("travel", id="trip-7", input={"trip": "7"}))


def resolve(rt: Runtime, world: World) -> str:
    (call,) = rt.doubts()
    report = rt.resolve(call.id, Happened("F-1"), by="ada", why="it stands in the airline's own list")
    return report.state


if __name__ == "__main__":
    main(build, {"play": play, "resolve": resolve})
