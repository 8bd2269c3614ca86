"""The world of the adapter tests: a shop whose effects are lines of a file, its tools as plain functions.

The functions know nothing of any framework; a harness turns them into its framework's own tools. What amends is told
of them are declarations by name, as for any tool that lives elsewhere.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amends

LIMIT = 100_00
"""Cents above which a wire needs a person's approval."""


class Shop:
    """One folder: the effects, the ledger, whatever the framework keeps, and the switches of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'ledger.db'}"
        self.options: dict[str, Any] = {}
        """Options of the runs, as an adapter is given them."""
        self.more: list[tuple[Callable[..., Any], Any]] = []
        """More tools of a test: the function, and what amends is told of it."""
        self._lock = threading.Lock()
        self._reserve = self._tool_of_amends()

    # ---- what a test looks at -----------------------------------------------------------------

    def effects(self) -> list[str]:
        """What really happened, in order: ``"charge A1 500"``, ``"refund ch_A1"``."""
        return self._lines("effects")

    def contexts(self) -> list[tuple[str, str, str]]:
        """Of each body: the tool, the run that it was in, and the key that its provider would be given."""
        return [(tool, run, key) for tool, run, key in (line.split(" ") for line in self._lines("contexts"))]

    def desk(self) -> amends.Runtime:
        """The ledger as a person sees it."""
        return amends.Runtime(self.url, tools=self.declared())

    def runs(self) -> list[amends.RunInfo]:
        """Every run of the ledger, newest first, without children."""
        with self.desk() as rt:
            found = list(rt.runs())
            inner = {child.run.id for run in found for child in rt.report(run.id).children}
            return [run for run in found if run.id not in inner]

    def states(self) -> list[str]:
        """The state of every run, oldest first."""
        return [run.state for run in reversed(self.runs())]

    # ---- switches -----------------------------------------------------------------------------

    def die_after(self, tool: str) -> None:
        """The process that next has this effect is killed before it can tell anybody."""
        (self.folder / f"die-{tool}").touch()

    # ---- the tools ----------------------------------------------------------------------------

    def functions(self) -> list[Callable[..., Any]]:
        """The tools as a framework is given them: names, types and words for a model."""

        def charge(order: str, cents: int, note: str = "") -> dict[str, Any]:
            """Charge the customer of an order. The note is free text."""
            self._effect("charge", order, cents)
            return {"id": f"ch_{order}", "cents": cents}

        def balance(account: str) -> int:
            """Balance of an account, in cents."""
            self._note("balance")
            return 9000

        def wire(iban: str, cents: int) -> str:
            """Send a wire."""
            self._effect("wire", iban, cents)
            return f"wire_{iban}"

        def ship(order: str) -> str:
            """Hand the parcel to the courier."""
            if order == "nowhere":
                raise ValueError("address unknown")
            self._effect("ship", order)
            return f"parcel_{order}"

        def mail(to: str) -> str:
            """Send the receipt."""
            self._effect("mail", to)
            return f"mail_{to}"

        def take_seat(seat: str) -> str:
            """Book a seat. The airline knows a booking by its key, and makes it once."""
            self._effect("take_seat", seat)
            return f"booked_{seat}"

        def stamp(text: str) -> str:
            """A tool that nobody has declared to amends."""
            self._effect("stamp", text)
            return f"stamped_{text}"

        return [charge, balance, wire, ship, mail, take_seat, stamp, self._reserve, *(fn for fn, _ in self.more)]

    def declared(self) -> list[Any]:
        """What amends is told of the tools above; nothing of ``stamp``."""

        def refund(result: dict[str, Any]) -> None:
            self._line("effects", f"refund {result['id']}")

        def give_back(seat: str) -> None:
            self._line("effects", f"give_back {seat}")

        def find_charge(call: amends.Call) -> amends.Probed[dict[str, Any]]:
            order, cents = call.args["order"], call.args["cents"]
            if f"charge {order} {cents}" in self.effects():
                return amends.Happened({"id": f"ch_{order}", "cents": cents})
            return amends.Absent()

        return [
            amends.declare("charge", key="order", ignore=["note"], compensate=refund, probe=find_charge),
            amends.declare("balance", kind="read"),
            amends.declare(
                "wire", kind="pivot", key=("iban", "cents"), needs_approval=lambda call: call.args["cents"] > LIMIT
            ),
            amends.declare("ship", kind="pivot", after=["charge"]),
            amends.declare("mail", kind="retriable", idempotent=True),
            amends.declare("take_seat", key="seat", idempotent=True, compensate=give_back),
            self._reserve,
            *(declared for _, declared in self.more),
        ]

    # ---- inside -------------------------------------------------------------------------------

    def _tool_of_amends(self) -> Callable[..., Any]:
        """A function that is a tool of amends already, and is given to the framework as it is."""

        @amends.tool(key="sku")
        def reserve(sku: str) -> str:
            """Reserve an article."""
            self._effect("reserve", sku)
            return f"reserved_{sku}"

        @reserve.compensate
        def release(sku: str) -> None:
            self._line("effects", f"release {sku}")

        return reserve

    def _effect(self, tool: str, *words: object) -> None:
        self._note(tool)
        self._line("effects", " ".join(map(str, (tool, *words))))
        try:
            (self.folder / f"die-{tool}").unlink()
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def _note(self, tool: str) -> None:
        self._line("contexts", f"{tool} {amends.current_run().id} {amends.current_call().key}")

    def _line(self, name: str, text: str) -> None:
        with self._lock, (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self, name: str) -> list[str]:
        try:
            return (self.folder / name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
