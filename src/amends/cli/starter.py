"""Three tools and one order: a program to begin with. Every line is yours to change.

python app.py 1042 4200        pays 42.00 for order 1042
python app.py 1043 250000      2,500.00 needs approval: amends approvals list
amends runs show order-1042    what happened, from the ledger
amends worker                  recovers what a killed process left
"""

import sys
from pathlib import Path

from amends import Absent, Happened, Held, Probed, Refused, Runtime, tool

BANK = Path(__file__).with_name("bank.txt")  # stands for the outside world, which amends cannot roll back


@tool(key="order")  # one reservation per order, however often it is called
def reserve(order: str) -> str:
    return f"r_{order}"


@reserve.compensate  # is called if the run fails later
def release(result: str) -> None:
    print("released", result)


@tool(
    kind="pivot",  # cannot be compensated, so it comes last
    key="order",
    after=["reserve"],
    needs_approval=lambda call: call.args["cents"] > 1000_00,  # above 1,000.00 a person must approve
)
def pay(order: str, cents: int) -> str:
    with BANK.open("a", encoding="utf-8") as bank:
        print("paid", order, cents, file=bank)
    return f"ch_{order}"


@pay.probe  # did it happen? called if the answer was lost
def find_payment(order: str) -> Probed[str]:
    found = BANK.exists() and f"paid {order} " in BANK.read_text(encoding="utf-8")
    return Happened(f"ch_{order}") if found else Absent()


@tool(kind="retriable", idempotent=True)  # runs after the payment, and is retried until it works
def send_receipt(order: str) -> None:
    print("receipt sent for order", order)


rt = Runtime(tools=[reserve, pay, send_receipt])  # amends.toml names the ledger

if __name__ == "__main__":
    order, cents = sys.argv[1], int(sys.argv[2])
    try:
        with rt.run(f"order-{order}"):  # leaving commits; an exception rolls everything back
            reserve(order=order)
            send_receipt(order=order)  # staged until the payment is done
            pay(order=order, cents=cents)
    except (Held, Refused) as error:
        print(f"not paid: {error}")
    print(rt.report(f"order-{order}"))
