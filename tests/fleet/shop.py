"""The program of a rolling upgrade: clients and workers, run with one of two copies of amends.

    python shop.py client 0 1 2     place these orders
    python shop.py worker           recover runs until SIGTERM

``AMENDS_URL`` names the ledger, ``WORLD`` the file that stands for the world, ``TOOLS`` the version of the tools.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from amends import Absent, Happened, Probed, Retry, Runtime, current_call, tool
from amends.errors import Busy, RolledBack, RunEnded, Waiting
from amends.worker import work

WORLD = Path(os.environ["WORLD"])
VERSION = os.environ["TOOLS"]
SETTLE_S = 0.2
TRIES = 400
SOON = Retry(attempts=20, delay=0.02, max_delay=0.2)


def note(verb: str, order: str, key: str) -> None:
    with WORLD.open("a", encoding="utf-8") as world:  # one short line is appended at once, or not at all
        world.write(f"{verb} {order} {key} {VERSION}\n")


def found(verb: str, key: str) -> bool:
    with WORLD.open(encoding="utf-8") as world:
        return any(line.split()[0] == verb and line.split()[2] == key for line in world if line.strip())


@tool(key="order", version=VERSION)
def charge(order: str) -> str:
    note("charge", order, current_call().key)
    return f"ch_{order}"


@charge.probe(settle=SETTLE_S)
def find_charge(order: str) -> Probed[str]:
    return Happened(f"ch_{order}") if found("charge", current_call().key) else Absent()


def refunded() -> Probed[None]:
    return Happened(None) if found("refund", current_call().key) else Absent()


@charge.compensate(probe=refunded, retry=SOON)
def refund(order: str) -> None:
    note("refund", order, current_call().key)


@tool(kind="retriable", idempotent=True, version=VERSION, retry=SOON)
def mail(order: str) -> None:
    if not found("mail", current_call().key):  # the destination knows the key
        note("mail", order, current_call().key)


@tool(kind="pivot", key="order", version=VERSION)
def wire(order: str) -> str:
    note("wire", order, current_call().key)
    return f"w_{order}"


@wire.probe(settle=SETTLE_S)
def find_wire(order: str) -> Probed[str]:
    return Happened(f"w_{order}") if found("wire", current_call().key) else Absent()


class Declined(Exception):
    """The order fails, and is taken back."""


def fails(number: int) -> bool:
    return number % 4 == 0


def place(rt: Runtime, number: int) -> None:
    """Place one order; again, while a worker has it."""
    order = f"o-{number}"
    for _ in range(TRIES):
        try:
            with rt.run(order):
                charge(order=order)
                if fails(number):
                    raise Declined
                mail(order=order)
                wire(order=order)
            return
        except (Declined, RolledBack, RunEnded):
            return
        except (Busy, Waiting):
            time.sleep(0.05)
    raise TimeoutError(order)


if __name__ == "__main__":
    rt = Runtime(tools=[charge, mail, wire], lease=3.0, interrupted="commit", wait=1.0)
    if sys.argv[1] == "client":
        with rt:
            for number in sys.argv[2:]:
                place(rt, int(number))
    else:
        work(rt, every=0.1, concurrency=2, drain=10.0)
