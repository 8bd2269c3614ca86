"""An example shop. Its bank, stock, courier and mail each write a file of their own, which amends cannot roll back.

`amends demo` copies this file next to its ledger; read it, change it, and run it:

    python shop.py order-9                 an order of your own
    python shop.py --open                  orders all day, until its input ends; each line of the input is one more customer
    amends worker shop.py:rt               recovers what a killed process left
"""

import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from amends import Absent, Happened, Probed, Run, Runtime, current_call, tool
from amends.errors import Error, Waiting

HERE = Path(__file__).resolve().parent
STOCK = 500
BANK_S = float(os.environ.get("SHOP_BANK_S", "0"))  # how long the bank takes to answer


def append(book: str, **entry: Any) -> None:
    """Change the outside world: when this returns, it has happened, even if our process dies."""
    with (HERE / f"{book}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")
        file.flush()
        os.fsync(file.fileno())


def entries(book: str) -> list[dict[str, Any]]:
    """Return what happened there, in order."""
    path = HERE / f"{book}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


# ---- Tools


@tool(key="order")
def reserve_stock(order: str, item: str) -> int:
    append("stock", order=order, item=item, change=-1)
    return int(STOCK + sum(entry["change"] for entry in entries("stock")))


@reserve_stock.compensate
def put_back(order: str, item: str) -> None:
    append("stock", order=order, item=item, change=+1)


@tool(key="order", needs_approval=lambda call: call.args["cents"] > 1000_00)  # above 1,000.00 EUR a person must approve
def charge(order: str, cents: int) -> str:
    receipt = f"ch_{sum('charge' in entry for entry in entries('payments')) + 1}"
    append("payments", charge=receipt, order=order, cents=cents, key=current_call().key)
    if os.environ.get("SHOP_DIES_AFTER_CHARGE") == order:
        os.kill(
            os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM)
        )  # the bank has the money, and the ledger does not know it yet
    time.sleep(BANK_S)  # so is this moment: whoever is killed here has charged, and not heard of it
    return receipt


@charge.compensate
def give_back(result: str, cents: int) -> None:
    append("payments", refund=result, cents=cents)


@charge.probe
def ask_the_bank(order: str) -> Probed[str]:
    time.sleep(BANK_S)
    found = [entry["charge"] for entry in entries("payments") if entry.get("order") == order]
    return Happened(found[-1]) if found else Absent()


@tool(kind="pivot", after=["charge"])  # a parcel cannot be called back, so it goes last
def ship(order: str, town: str) -> str:
    if town == "Atlantis":
        raise RuntimeError("no courier goes to Atlantis")
    parcel = f"parcel-{len(entries('shipping')) + 1}"
    append("shipping", parcel=parcel, order=order, town=town)
    return parcel


@tool(kind="retriable", idempotent=True)  # sent after the parcel, and retried until it works
def send_mail(order: str, text: str) -> None:
    key = current_call().key
    if all(entry["key"] != key for entry in entries("mail")):  # the mail server takes each letter once
        append("mail", order=order, text=text, key=key)


# ---- The agents


def clerk(run: Run) -> str:
    """Fill one order. A real agent would ask a model what to do next; after a crash it starts from the beginning, too."""
    order = run.input["order"]
    charge(order=order, cents=run.input["cents"])
    return ship(order=order, town=run.input["town"])


def shopkeeper(run: Run) -> str:
    """Fill one order of the shop that is open all day: the same, with the stock and a letter."""
    order = run.input["order"]
    reserve_stock(order=order, item=run.input["item"])
    charge(order=order, cents=run.input["cents"])
    send_mail(order=order, text=f"your {run.input['item']} is on its way")
    return ship(order=order, town=run.input["town"])


rt = Runtime(
    f"sqlite:///{HERE / 'ledger.db'}",
    tools=[reserve_stock, charge, ship, send_mail],
    agents={"clerk": clerk, "shopkeeper": shopkeeper},
)

# ---- Open all day: one process that fills orders, and recovers what a killed one left


PAUSE_S = float(os.environ.get("SHOP_PAUSE_S", "4"))  # between two customers
ORDERS_MAX = 400
GOODS = (("teapot", 31_50), ("kettle", 42_00), ("lamp", 58_90), ("coffee mill", 74_00), ("stool", 89_00))
TOWNS = ("Leiden", "Ghent", "Aarhus", "Porto", "Graz", "Turku")


def open_all_day() -> None:
    rings: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            rings.put(line)
        rings.put("")

    threading.Thread(target=listen, daemon=True).start()
    with rt, rt.worker(every=0.5):
        first = sum(1 for _ in rt.runs()) + 1
        for number in range(first, first + ORDERS_MAX):
            try:
                if not rings.get(timeout=PAUSE_S):
                    return  # the input has ended
            except queue.Empty:
                pass
            fill(number)


def fill(number: int) -> None:
    """Fill one order. Every seventh goes where no courier goes, and some are so large that a person must approve them."""
    item, cents = GOODS[number % len(GOODS)]
    is_large = number % 5 == 1 and not any(True for _ in rt.approvals("state:pending"))
    order = {
        "order": f"order-{number}",
        "item": item,
        "cents": 2_500_00 if is_large else cents,
        "town": "Atlantis" if number % 7 == 3 else TOWNS[number % len(TOWNS)],
    }
    try:
        rt.start("shopkeeper", id=str(order["order"]), input=order)
    except Waiting:
        pass  # the worker resumes it when a person has decided
    except (Error, RuntimeError) as error:
        print(f"order-{number}: {error}", file=sys.stderr)  # the ledger says how it ended


if __name__ == "__main__" and sys.argv[1:] == ["--open"]:
    open_all_day()
elif __name__ == "__main__":
    name = sys.argv[1]
    rt.start("clerk", id=name, input={"order": name, "cents": 4200, "town": "Leiden"})
    print(rt.report(name))
