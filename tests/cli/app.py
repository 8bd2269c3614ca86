"""A user's program, for the verbs that need one."""

import os
import signal
import time
from pathlib import Path

from amends import Absent, AsyncRuntime, Happened, Run, Runtime, tool

PAID = Path("paid.txt")


def say(word: str) -> None:
    with PAID.open("a", encoding="utf-8") as file:
        file.write(word + "\n")
        file.flush()
        os.fsync(file.fileno())


@tool(key="order")
def pay(order: str) -> str:
    say(f"paid {order}")
    if os.environ.get("DIE") == order:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ch_{order}"


@pay.compensate
def refund(result: str) -> None:
    if os.environ.get("SLOW"):
        say("refunding")
        time.sleep(float(os.environ["SLOW"]))
    say(f"refunded {result}")


@pay.probe
def find(order: str) -> Happened[str] | Absent:
    return Happened(f"ch_{order}") if f"paid {order}" in PAID.read_text(encoding="utf-8") else Absent()


@tool(key="order")
def pay_blindly(order: str) -> str:
    say(f"paid {order}")
    if os.environ.get("DIE") == order:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ch_{order}"


@pay_blindly.compensate
def refund_blindly(result: str) -> None:
    say(f"refunded {result}")


def agent(run: Run) -> str:
    return pay(order=run.id)


rt = Runtime("sqlite:///shop.db", tools=[pay, pay_blindly], agents={"agent": agent})
art = AsyncRuntime("sqlite:///shop.db", tools=[pay, pay_blindly])
poor = Runtime("sqlite:///shop.db")
memory = Runtime("memory:", tools=[pay])


class Shop:
    rt = rt


if __name__ == "__main__":
    import sys

    tool_, orders = {"pay": pay, "blind": pay_blindly}[sys.argv[1]], sys.argv[2:]
    for order in orders:
        with rt.run(order):
            tool_(order=order)
