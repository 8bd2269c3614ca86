"""An order: reserve, charge, mail, ship. One commits, one fails and is taken back, one is killed and recovered.

    pip install amends
    python examples/order.py

The ledger and the shop's own books are in the folder `order-data`. Run it again: everything is answered from the record.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from amends import Absent, Happened, Probed, Runtime, tool

DATA = Path("order-data")
BANK = DATA / "bank.txt"


# ---- the tools ------------------------------------------------------------------------------------------------


@tool(key="order")
def reserve(order: str, item: str) -> str:
    """Reserve an item in the stock."""
    print("  stock:", item, "reserved")
    return item


@reserve.compensate
def release(result: str) -> None:
    print("  stock:", result, "released")


@tool(key="order")
def charge(order: str, cents: int) -> str:
    """Charge the customer's card."""
    with BANK.open("a", encoding="utf-8") as book:
        book.write(f"{order}\n")
    print("  bank:", cents, "cents charged")
    if (DATA / "die").exists():
        (DATA / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)  # after the effect, before the result is recorded
    return f"ch-{order}"


@charge.compensate
def refund(result: str) -> None:
    print("  bank:", result, "refunded")


@charge.probe(settle=0.0)
def find_charge(order: str) -> Probed[str]:
    """Ask the bank whether it happened: amends does so when an answer was lost."""
    charged = BANK.exists() and order in BANK.read_text(encoding="utf-8").split()
    print("  amends asks the bank:", "charged" if charged else "not charged")
    return Happened(f"ch-{order}") if charged else Absent()


@tool(kind="retriable", key="order", idempotent=True)
def send_mail(order: str) -> None:
    """Send a mail: staged, and sent after the point of no return, again and again until it succeeds."""
    print("  mail: sent")


@tool(kind="pivot", key="order", after=["charge"])
def ship(order: str, town: str) -> str:
    """Hand the parcel over. This cannot be undone."""
    if town == "Atlantis":
        raise RuntimeError("no courier goes to Atlantis")
    print("  courier: a parcel goes to", town)
    return f"parcel-{order}"


# ---- three orders ---------------------------------------------------------------------------------------------


def place(rt: Runtime, order: str, town: str) -> None:
    try:
        with rt.run(order):
            reserve(order=order, item="kettle")
            charge(order=order, cents=4200)
            send_mail(order=order)
            ship(order=order, town=town)
    except RuntimeError as error:
        print("  failed:", error)
    print("  ledger: run", order, "is", rt.report(order).state)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[reserve, charge, send_mail, ship]) as rt:
        if sys.argv[1:] == ["killed"]:
            place(rt, "order-3", "Leiden")
            return
        print("1. It commits.", flush=True)
        place(rt, "order-1", "Leiden")
        print("2. The courier fails: what was done is taken back, in reverse.", flush=True)
        place(rt, "order-2", "Atlantis")
        print("3. Its process is killed between the charge and the record; another one continues.", flush=True)
        (DATA / "die").touch()
        subprocess.run([sys.executable, "-u", __file__, "killed"], check=False)  # -u: what it prints is not lost
        (DATA / "die").unlink(missing_ok=True)
        place(rt, "order-3", "Leiden")


if __name__ == "__main__":
    main()
