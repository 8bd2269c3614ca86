"""A little shop. Its bank, stock, courier and mail each keep a file of their own, which amends cannot roll back.

`amends demo` copies this file next to its ledger; read it, change it, and run it:

    python shop.py order-9                 an order of your own
    amends worker shop.py:rt               goes on with what a killed process left
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from amends import Absent, Happened, Probed, Run, Runtime, current_call, tool

HERE = Path(__file__).resolve().parent
STOCK = 10


def append(book: str, **entry: Any) -> None:
    """The outside world: once this returns, it has happened, whatever becomes of our process."""
    with (HERE / f"{book}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def entries(book: str) -> list[dict[str, Any]]:
    """What happened there, in order."""
    path = HERE / f"{book}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# ---- the tools ----------------------------------------------------------------------------


@tool(key="order")
def reserve_stock(order: str, item: str) -> int:
    append("stock", order=order, item=item, change=-1)
    return int(STOCK + sum(entry["change"] for entry in entries("stock")))


@reserve_stock.compensate
def put_back(order: str, item: str) -> None:
    append("stock", order=order, item=item, change=+1)


@tool(key="order", needs_approval=lambda call: call.args["cents"] > 1000_00)  # a person decides about more
def charge(order: str, cents: int) -> str:
    receipt = f"ch_{sum('charge' in entry for entry in entries('payments')) + 1}"
    append("payments", charge=receipt, order=order, cents=cents, key=current_call().key)
    if os.environ.get("SHOP_DIES_AFTER_CHARGE") == order:
        os.kill(os.getpid(), signal.SIGKILL)  # the bank has the money, and nobody has written it down
    return receipt


@charge.compensate
def give_back(result: str, cents: int) -> None:
    append("payments", refund=result, cents=cents)


@charge.probe
def ask_the_bank(order: str) -> Probed[str]:
    found = [entry["charge"] for entry in entries("payments") if entry.get("order") == order]
    return Happened(found[-1]) if found else Absent()


@tool(kind="pivot", after=["charge"])  # a parcel does not come back, so it goes last
def ship(order: str, town: str) -> str:
    if town == "Atlantis":
        raise RuntimeError("no courier goes to Atlantis")
    parcel = f"parcel-{len(entries('shipping')) + 1}"
    append("shipping", parcel=parcel, order=order, town=town)
    return parcel


@tool(kind="retriable", idempotent=True)  # sent after the parcel, and then until it works
def send_mail(order: str, text: str) -> None:
    key = current_call().key
    if all(entry["key"] != key for entry in entries("mail")):  # the mail server takes a letter once
        append("mail", order=order, text=text, key=key)


# ---- the agent ----------------------------------------------------------------------------


def clerk(run: Run) -> str:
    """Fills one order. A real one would ask a model what to do next; after a crash it begins again, like a model."""
    order = run.input["order"]
    charge(order=order, cents=run.input["cents"])
    return ship(order=order, town=run.input["town"])


rt = Runtime(
    f"sqlite:///{HERE / 'ledger.db'}",
    tools=[reserve_stock, charge, ship, send_mail],
    agents={"clerk": clerk},
)

if __name__ == "__main__":
    name = sys.argv[1]
    rt.start("clerk", id=name, input={"order": name, "cents": 4200, "town": "Leiden"})
    print(rt.report(name))
