"""Three tools and an agent's run: a place to begin. Every line is yours to change.

python app.py 1042 4200        pays order 1042, 42.00
amends runs show order-1042    what happened, from the ledger
amends worker                  goes on with what a killed process left
"""

import sys

from amends import Absent, Happened, Probed, Runtime, tool

BANK: dict[str, str] = {}
"""Stands for the outside world; a real one survives the process."""


@tool(key="order")  # one reservation per order, however often it is asked for
def reserve(order: str) -> str:
    return f"r_{order}"


@reserve.compensate  # runs when the run fails later
def release(result: str) -> None:
    print("released", result)


@tool(kind="pivot", after=["reserve"])  # cannot be taken back, so it comes last
def pay(order: str, cents: int) -> str:
    BANK[order] = f"ch_{order}"
    print("paid", cents)
    return BANK[order]


@pay.probe  # did it happen? asked when the answer was lost
def find_payment(order: str) -> Probed[str]:
    return Happened(BANK[order]) if order in BANK else Absent()


@tool(kind="retriable", idempotent=True)  # after the payment, and then until it works
def send_receipt(order: str) -> None:
    print("receipt sent for", order)


rt = Runtime(tools=[reserve, pay, send_receipt])  # the ledger is the one that amends.toml names

if __name__ == "__main__":
    order, cents = sys.argv[1], int(sys.argv[2])
    with rt.run(f"order-{order}"):  # leaving commits; an exception takes everything back
        reserve(order=order)
        send_receipt(order=order)  # staged until the payment is made
        pay(order=order, cents=cents)
    print(rt.report(f"order-{order}"))
