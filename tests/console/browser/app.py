"""The runtime that the browser's tests serve: a shop whose bank keeps its book in a file, and an agent that fills orders.

``amends serve`` runs it in a process of its own; the tests open runs in it from theirs. Its tools stand beside those of
``tests.console.shop``, whose runs are in the ledger of ``filled``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from amends import Absent, Happened, Probed, Run, Runtime, Unknown, tool
from tests.console.shop import Shop, World, tools_of

PROGRAM = """from pathlib import Path
from tests.console.browser.app import runtime
rt = runtime(Path(__file__).parent)
"""
"""What is served: app.py in the folder of the ledger."""


def ledger_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'ledger.db'}"


class Bank:
    """The world, which every process sees: one line for each thing that happened, and a sign whether the bank answers."""

    def __init__(self, folder: Path) -> None:
        self._book, self._closed = folder / "bank.jsonl", folder / "bank-is-closed"

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._book.read_text().splitlines()] if self._book.exists() else []

    def write(self, **entry: Any) -> None:
        with self._book.open("a") as book:
            book.write(json.dumps(entry) + "\n")

    @property
    def is_closed(self) -> bool:
        return self._closed.exists()

    def close(self) -> None:
        self._closed.touch()

    def open(self) -> None:
        self._closed.unlink(missing_ok=True)


def shop_of(bank: Bank) -> tuple[list[Any], Any]:
    """Return the tools that use this bank, and the agent that uses the tools."""

    @tool(key="order")
    def pack(order: str, item: str) -> str:
        """Pack a parcel."""
        bank.write(packed=order)
        return f"{item} for {order}"

    @pack.compensate
    def unpack(order: str) -> None:
        bank.write(unpacked=order)

    @tool(key="order", needs_approval=lambda call: call.args["cents"] > 100_00)
    def pay(order: str, cents: int, note: str = "") -> str:
        """Pay a supplier. More than 100.00 needs a person."""
        bank.write(paid=order, cents=cents, note=note)
        if bank.is_closed:
            raise TimeoutError("the bank took the money and did not answer")
        return f"pay_{order}"

    @pay.compensate
    def claim_back(order: str) -> None:
        bank.write(claimed=order)

    @pay.probe
    def ask_bank(order: str) -> Probed[str]:
        if bank.is_closed:
            return Unknown("the bank is closed")
        found = any(entry.get("paid") == order for entry in bank.entries())
        return Happened(f"pay_{order}") if found else Absent()

    @tool(kind="pivot")
    def send(order: str, town: str) -> str:
        """Hand the parcel to the courier; it cannot be called back."""
        bank.write(sent=order)
        return f"parcel-{order}"

    def clerk(run: Run) -> str:
        order, said = run.id, run.input
        pack(order=order, item=said["item"])
        pay(order=order, cents=said["cents"], note=said.get("note", ""))
        return send(order=order, town=said["town"])

    return [pack, pay, send], clerk


def runtime(folder: Path) -> Runtime:
    """Return the runtime over the ledger in a folder."""
    tools, clerk = shop_of(Bank(folder))
    options: dict[str, Any] = {"lease": 5.0, "wait": 0.5, "wait_approval": 0.0}
    return Runtime(ledger_of(folder), tools=[*tools_of(World()), *tools], agents={"clerk": clerk}, **options)


if __name__ == "__main__":
    Shop(ledger_of(Path(sys.argv[1]))).close()
