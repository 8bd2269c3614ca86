"""A travel desk with a week of history, for the pictures of the console.

Time is made up: a call takes as long as its tool says, and a week passes in a second. It ends now, so that what is shown as
"2 min ago" is. Everything else is the same each time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from amends import Absent, Budget, NoEffect, Retry, Rule, Runtime, Unknown, tool
from amends.errors import Error
from amends.stores.sqlite.store import SqliteStore

DAY_S = 86_400
DAYS = 6
CITIES = ("Lisbon", "Porto", "Ghent", "Aarhus", "Graz", "Turku", "Split", "Bergen")


class Clock:
    """The clock of the ledger: it stands still until something takes time. ``live`` lets it run as all others do."""

    def __init__(self, at: float) -> None:
        self._at, self._is_live = at, False

    def __call__(self) -> float:
        return time.time() if self._is_live else self._at

    def spend(self, seconds: float) -> None:
        if not self._is_live:
            self._at += seconds

    def until(self, at: float) -> None:
        self._at = max(self._at, at)

    def live(self) -> None:
        self._is_live = True


def tools_of(clock: Clock) -> list[Any]:
    """Return the tools of the desk. ``fails`` and ``lost`` in a name say what the provider does."""

    chance = random.Random(11)

    def takes(seconds: float) -> None:
        clock.spend(seconds * chance.uniform(0.75, 1.4))

    @tool(kind="read", cost=0.002)
    def search_flights(to: str) -> list[str]:
        """Search for flights."""
        takes(0.7)
        return [f"TP-{len(to) * 117}", f"KL-{len(to) * 208}"]

    @tool(key="trip", cost=lambda call: call.args["eur"])
    def book_flight(trip: str, flight: str, eur: float) -> str:
        """Book a seat on a flight."""
        takes(2.4)
        return f"PNR X{trip[-3:].upper()}"

    @book_flight.compensate
    def cancel_flight(trip: str) -> None:
        takes(1.7)

    @tool(key="trip", cost=lambda call: call.args["eur"], retry=Retry(attempts=3, delay=0))
    def book_hotel(trip: str, city: str, nights: int, eur: float) -> str:
        """Book a room."""
        takes(1.1)
        tries[trip] = tries.get(trip, 0) + 1
        if city == "Lisbon" and tries[trip] < 2:
            raise NoEffect("503 from the hotel's booking system")
        takes(0.8)
        return f"H-{trip[-4:]}"

    @book_hotel.compensate
    def cancel_hotel(trip: str) -> None:
        takes(1.2)

    @tool(key="trip")
    def rent_car(trip: str, city: str) -> str:
        """Rent a car at the airport."""
        takes(1.6)
        if city == "Lisbon":
            raise RuntimeError("no cars left in Lisbon")
        return f"CAR-{trip[-4:]}"

    @rent_car.compensate
    def return_car(trip: str) -> None:
        takes(0.9)

    @tool(key="trip", cost=lambda call: call.args["eur"])
    def charge_card(trip: str, eur: float) -> str:
        """Charge the customer's card."""
        takes(1.3)
        if trip.endswith("lost"):
            takes(28.7)
            raise TimeoutError("no answer from payments.example within 30 s")
        return f"ch_{trip}"

    @charge_card.compensate
    def refund_card(trip: str) -> None:
        takes(1.4)
        if trip.endswith("stuck"):
            raise NoEffect("the card was closed: no refund is possible")

    @charge_card.probe
    def find_charge(trip: str) -> Any:
        return Unknown("the bank's search is down for maintenance") if trip.endswith("lost") else Absent()

    @tool(kind="pivot", cost=lambda call: call.args["eur"])
    def wire_supplier(supplier: str, eur: float, reference: str) -> str:
        """Wire money to a supplier; it cannot be taken back."""
        takes(2.2)
        return f"wire_{reference}"

    @tool(key="trip")
    def print_vouchers(trip: str, pages: int) -> str:
        """Print the vouchers; the printer cannot be asked afterwards."""
        takes(4.1)
        raise ConnectionResetError("the printer closed the connection")

    @print_vouchers.compensate
    def shred_vouchers(trip: str) -> None:
        takes(0.5)

    @tool(kind="pivot")
    def issue_tickets(trip: str) -> str:
        """Issue the tickets; they cannot be called back."""
        takes(1.9)
        return f"E-{trip[-4:]}"

    @tool(kind="retriable", idempotent=True, retry=Retry(attempts=4, delay=0))
    def send_email(to: str, text: str) -> None:
        """Write to the customer; tried until it works."""
        takes(0.4)

    tries: dict[str, int] = {}
    return [
        search_flights,
        book_flight,
        book_hotel,
        rent_car,
        charge_card,
        wire_supplier,
        print_vouchers,
        issue_tickets,
        send_email,
    ]


class Desk:
    """The runtime of the desk, its clock, and the runs that are still open."""

    def __init__(self, folder: Path) -> None:
        self.now = time.time()
        self.clock = Clock(self.now - DAYS * DAY_S)
        self._chance = random.Random(7)
        budgets = [
            Budget(20_000, per="agent", every="day"),
            Budget(28_000, per="tenant", every="day"),
            Budget(900, tool="book_flight", per="call"),
        ]
        reasons = ("wrong payee", "too much", "paid already")
        rules = [
            Rule(
                "wire_supplier",
                args={"eur": ">=10000"},
                approvers=2,
                reasons=reasons,
                why="10,000 or more",
                expires=2 * 3_600,
            ),
            Rule("wire_supplier", args={"eur": "<10000"}, approvers=1, reasons=reasons, why="money leaves the company"),
        ]
        store = SqliteStore(folder / "ledger.db", "NORMAL", self.clock)
        self.rt = Runtime(
            tools=tools_of(self.clock), budgets=budgets, rules=rules, wait=0.2, wait_approval=0.0, store=store,
            agents={"quotes": lambda run: _quoted(run, nights=4)},
        )  # fmt: skip
        self.open: list[Any] = []

    # ---- History

    def week(self) -> None:
        """Make the runs of the last days."""
        for day in range(DAYS):
            begin, interval = self.now - (DAYS - day) * DAY_S + 9 * 3_600, 4_100.0
            if day == DAYS - 1:
                begin, interval = self._morning(begin)
            for number in range(6 + day % 3):
                self.clock.until(begin + number * interval)
                self._trip(f"trip-{2100 + day * 12 + number}", self._chance.choice(CITIES[1:]))
            self._wire(f"inv-{310 + day}", "Casa Azul Lda", 1_180 + day * 35, decided="approve")

    def _morning(self, begin: float) -> tuple[float, float]:
        """Return when the trips of the last day begin, and how far apart: today by UTC, as the budgets of a day count."""
        midnight = self.now - self.now % DAY_S
        room = self.now - 2 * 3_600 - midnight
        return (midnight + 60, min(4_100.0, room / 9)) if room > 600 else (begin, 4_100.0)

    def _trip(self, trip: str, city: str, *, agent: str = "travel-desk") -> None:
        rt = self.rt.scoped(agent=agent, principal="nora")
        fails = self._chance.random() < 0.12
        with suppress(Error, ValueError), rt.run(trip, input={"city": city}, tags=[city.lower()]) as run:
            run.answer("search_flights", {"to": city})
            self.clock.spend(1.5)
            run.answer("book_flight", {"trip": trip, "flight": "TP-702", "eur": 180 + len(city) * 21.5})
            if self._chance.random() < 0.3:  # the model asks twice
                run.answer("book_flight", {"trip": trip, "flight": "TP-702", "eur": 180 + len(city) * 21.5})
            self.clock.spend(0.8)
            run.answer("book_hotel", {"trip": trip, "city": city, "nights": 3, "eur": 240 + len(city) * 11})
            if fails:
                raise ValueError("the customer has changed their mind")
            run.answer("charge_card", {"trip": trip, "eur": 480 + len(city) * 40})
            run.answer("issue_tickets", {"trip": trip})
            run.answer("send_email", {"to": f"{trip}@example.com", "text": f"Your trip to {city} is booked."})

    def _wire(self, reference: str, supplier: str, eur: float, *, decided: str = "") -> Any:
        run = self.rt.scoped(agent="invoices", principal="nora").open(f"wire-{reference}", input={"invoice": reference})
        args = {"supplier": supplier, "eur": eur, "reference": reference}
        run.answer("wire_supplier", args)
        if not decided:
            self.open.append(run)
            return run
        self.clock.spend(340)
        [asked] = self.rt.approvals(f"state:pending run:wire-{reference}")
        self.rt.approve(asked.id, digest=asked.digest, by="ana", why="matches the invoice")
        run.answer("wire_supplier", args)
        run.commit()
        return run

    # ---- The last hour

    def today(self) -> None:
        """Make what waits for somebody, and what the pictures show."""
        self._at(3_300)
        with (
            suppress(Error, ValueError),
            self.rt.scoped(agent="travel-desk", principal="nora").run("trip-2188-stuck") as run,
        ):
            run.answer("charge_card", {"trip": "2188-stuck", "eur": 610})
            run.answer("book_flight", {"trip": "2188-stuck", "flight": "KL-1693", "eur": 310})
            raise ValueError("the visa was refused")
        self._at(2_900)
        for number, nights in (("1", 3), ("2", 4)):
            self._quote(f"quote-77-{number}", nights)
        self._at(2_700)
        self._wire("inv-402", "Casa Azul Lda", 1_395)
        self._at(2_300)
        courier = self.rt.scoped(agent="travel-desk", principal="nora").open("trip-2189", input={"city": "Aarhus"})
        courier.answer("print_vouchers", {"trip": "trip-2189", "pages": 12})
        self.open.append(courier)
        self._at(2_100)
        self._wire("inv-398", "Nordlys Hotels ApS", 3_980)
        self._at(1_900)
        lost = self.rt.scoped(agent="travel-desk", principal="nora").open("trip-2190-lost", input={"city": "Bergen"})
        lost.answer("book_flight", {"trip": "2190-lost", "flight": "SK-881", "eur": 402})
        lost.answer("charge_card", {"trip": "2190-lost", "eur": 720})
        self.open.append(lost)
        self._at(1_500)
        self._wire("inv-403", "C\u0430sa Azul Lda", 12_400)  # a Cyrillic letter
        self._at(1_000)
        self._family()
        self._at(860)
        with (
            suppress(Error),
            self.rt.scoped(agent="travel-desk", principal="nora").run("trip-2192", on_open_failure="commit") as run,
        ):  # first class: the cap refuses it
            run.answer("book_flight", {"trip": "2192", "flight": "LH-1", "eur": 2_940})
        self._at(700)
        self._trip("trip-2193", "Porto")
        self._at(420)
        self.lisbon()
        self._at(200)
        self._trip("trip-2195", "Graz")
        self._at(24)
        going = self.rt.scoped(agent="travel-desk", principal="nora").open("trip-2196", input={"city": "Split"})
        going.answer("search_flights", {"to": "Split"})
        going.answer("book_flight", {"trip": "trip-2196", "flight": "OU-411", "eur": 233})
        going.answer("book_hotel", {"trip": "trip-2196", "city": "Split", "nights": 5, "eur": 515})
        going.answer("charge_card", {"trip": "trip-2196", "eur": 748})
        going.answer("send_email", {"to": "j.berg@example.com", "text": "Your trip to Split is booked."})
        self.open.append(going)
        self.clock.until(self.now)

    def lisbon(self, id: str = "trip-2194") -> None:
        """Make a run that is rolled back: the last booking fails, after a retry and three successes."""
        with (
            suppress(Error, RuntimeError),
            self.rt.scoped(agent="travel-desk", principal="nora").run(
                id, input={"city": "Lisbon", "nights": 3}, tags=["lisbon"]
            ) as run,
        ):
            run.answer("search_flights", {"to": "Lisbon"})
            self.clock.spend(1.1)
            run.answer("book_flight", {"trip": id, "flight": "TP-702", "eur": 312.5})
            self.clock.spend(0.6)
            run.answer("book_hotel", {"trip": id, "city": "Lisbon", "nights": 3, "eur": 384})
            self.clock.spend(0.9)
            run.answer("charge_card", {"trip": id, "eur": 748.5})
            self.clock.spend(0.5)
            run.answer("send_email", {"to": "m.silva@example.com", "text": "Your trip to Lisbon is booked."})
            run.answer("rent_car", {"trip": id, "city": "Lisbon"})
            raise RuntimeError("no cars left in Lisbon")

    def _quote(self, id: str, nights: int) -> None:
        """Make one of two runs that differ in one argument."""
        with self.rt.scoped(agent="quotes", principal="nora").run(id, input={"city": "Porto"}) as run:
            _quoted(run, nights=nights)

    def _family(self) -> None:
        with self.rt.scoped(agent="travel-desk", principal="nora").run("group-88", input={"people": 2}) as run:
            for person in ("ida", "tom"):
                with run.child(person) as child:
                    child.answer("book_flight", {"trip": f"88-{person}", "flight": "FR-12", "eur": 88})
                    self.clock.spend(0.7)
            run.answer("issue_tickets", {"trip": "group-88"})

    def _at(self, seconds_ago: float) -> None:
        self.clock.until(self.now - seconds_ago)


def _quoted(run: Any, *, nights: int) -> None:
    run.answer("search_flights", {"to": "Porto"})
    run.answer("book_flight", {"trip": "quote-77", "flight": "TP-585", "eur": 214})
    run.answer("book_hotel", {"trip": "quote-77", "city": "Porto", "nights": nights, "eur": nights * 98})
    run.answer("issue_tickets", {"trip": "quote-77"})


@contextmanager
def desk(folder: Path) -> Iterator[Desk]:
    """Make the desk with all its history."""
    made = Desk(folder)
    try:
        made.week()
        made.today()
        made.clock.live()
        yield made
    finally:
        for run in made.open:
            with suppress(Error):
                run.release()
        made.rt.close()
