"""A parallel group: flight, hotel and car are booked at once; if one fails, the others are taken back at once.

    pip install amends
    python examples/parallel_group.py

The ledger is in the folder `parallel-data`. Run it again: what was booked is answered from the record.
"""

import asyncio
from pathlib import Path

from amends import AsyncRuntime, tool

DATA = Path("parallel-data")


@tool(key="trip")
async def book_flight(trip: str) -> str:
    await asyncio.sleep(0.01)
    return f"flight-{trip}"


@book_flight.compensate
async def cancel_flight(result: str) -> None:
    print("  cancelled", result)


@tool(key="trip")
async def book_hotel(trip: str) -> str:
    await asyncio.sleep(0.02)
    return f"hotel-{trip}"


@book_hotel.compensate
async def cancel_hotel(result: str) -> None:
    print("  cancelled", result)


@tool(key="trip")
def book_car(trip: str) -> str:  # a blocking client: amends gives it a thread
    if trip == "venice":
        raise LookupError("there are no cars in venice")
    return f"car-{trip}"


@book_car.compensate
def cancel_car(result: str) -> None:
    print("  cancelled", result)


async def travel(rt: AsyncRuntime, trip: str) -> None:
    try:
        async with rt.run(trip) as run:
            group = [{"tool": name, "args": {"trip": trip}} for name in ("book_flight", "book_hotel", "book_car")]
            answers = await run.execute([group])  # a list inside the plan is a group: its calls run in parallel
            print("  booked", *(answer.value for answer in answers))
    except LookupError as error:
        print("  failed:", error)
    print("  ledger: run", trip, "is", (await rt.report(trip)).state)


async def main() -> None:
    async with AsyncRuntime(f"sqlite:///{DATA}/ledger.db", tools=[book_flight, book_hotel, book_car]) as rt:
        print("1. Three bookings at once.")
        await travel(rt, "lisbon")
        print("2. One of them fails: the others are taken back, in parallel too.")
        await travel(rt, "venice")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    asyncio.run(main())
