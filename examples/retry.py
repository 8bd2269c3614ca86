"""Retries: an error that certainly had no effect is tried again; one that may have had an effect is asked about first.

    pip install amends
    python examples/retry.py

The ledger is in the folder `retry-data`. Run it again: nothing is sent a second time.
"""

from pathlib import Path

from amends import Absent, Happened, Probed, Retry, Runtime, tool

DATA = Path("retry-data")
PARCELS = DATA / "parcels.txt"


class Full(Exception):
    """The courier accepts no more parcels right now: nothing was booked."""


@tool(key="order", retry=Retry(attempts=4, on=Full, delay=0.01))
def book(order: str) -> str:
    """Book a parcel; the courier is full twice."""
    tries = len(PARCELS.read_text(encoding="utf-8").splitlines()) if PARCELS.exists() else 0
    with PARCELS.open("a", encoding="utf-8") as book:
        book.write(f"tried {order}\n")
    if tries < 2:
        print("  courier: full")
        raise Full
    print("  courier: booked")
    return f"parcel-{order}"


@book.compensate
def cancel(result: str) -> None:
    print("  courier: cancelled", result)


@tool(key="order", retry=Retry(attempts=3, on=TimeoutError, delay=0.01))
def announce(order: str) -> str:
    """Announce the parcel; the first answer is lost. With a probe, a timeout may be retried."""
    sent = PARCELS.read_text(encoding="utf-8")
    with PARCELS.open("a", encoding="utf-8") as book:
        book.write(f"announced {order}\n")
    if "announced" not in sent:
        print("  courier: announced, but the answer is lost")
        raise TimeoutError("no answer")
    return f"note-{order}"


@announce.probe(settle=0.0)
def find(order: str) -> Probed[str]:
    found = f"announced {order}" in PARCELS.read_text(encoding="utf-8")
    print("  amends asks the courier:", "announced" if found else "not announced")
    return Happened(f"note-{order}") if found else Absent()


@announce.compensate
def withdraw(result: str) -> None:
    print("  courier: withdrawn", result)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[book, announce]) as rt:
        with rt.run("order-1"):
            print("1. An error without effect is tried again.")
            print("  result:", book(order="1"))
            print("2. A lost answer is asked about, and not sent twice.")
            print("  result:", announce(order="1"))
        report = rt.report("order-1")
        print("  ledger:", report.state, {call.tool: call.attempt for call in report.calls})


if __name__ == "__main__":
    main()
