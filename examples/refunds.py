"""A support agent that refunds orders: each order once, in all conversations; large amounts wait for a person.

    pip install amends
    python examples/refunds.py

A script plays the model. The bank is a file in the folder `refunds-data`, beside the ledger.
"""

from pathlib import Path
from typing import Any

from amends import Runtime, tool
from amends.llm import Finished, ScriptedModel, run_agent

DATA = Path("refunds-data")


# `scope="ledger"`: an order is refunded once in all runs, not once in each conversation.
# `ignore="reason"`: models word a reason anew every time. It does not make another refund.
@tool(
    kind="pivot",
    key="order",
    scope="ledger",
    ignore=["reason"],
    needs_approval=lambda call: call.args["cents"] > 100_00,
)
def refund(order: str, cents: int, reason: str) -> str:
    """Refund an order. The money is gone then."""
    with (DATA / "bank").open("a", encoding="utf-8") as book:
        book.write(f"{order} {cents}\n")
    return f"refund-{order}"


@tool(kind="retriable", key="order", idempotent=True)
def tell_customer(order: str, text: str) -> None:
    """Write to the customer. The mail is sent after the refund, and again until it succeeds."""
    (DATA / f"mail-{order}").write_text(text, encoding="utf-8")


def ask(rt: Runtime, conversation: str, *script: Any) -> Finished:
    done = run_agent(rt, "I want my money back.", client=ScriptedModel(*script), model="script", id=conversation)
    for message in done.messages:
        if message["role"] == "tool":
            print("  model is told:", message["content"])
    print("  bank:", (DATA / "bank").read_text(encoding="utf-8").split("\n")[:-1])
    return done


def main() -> None:
    DATA.mkdir(exist_ok=True)
    (DATA / "bank").touch()
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[refund, tell_customer], principal="support-bot") as rt:
        print("1. A refund. The model repeats it in other words.")
        mail = ("tell_customer", {"order": "77", "text": "Your refund is on its way."})
        one = ("refund", {"order": "77", "cents": 1900, "reason": "the lamp was broken"})
        same = ("refund", {"order": "77", "cents": 1900, "reason": "customer reports a defective lamp"})
        ask(rt, "conversation-1", mail, one, same, "Done.")
        print("2. The customer asks again, in another conversation, for more.")
        more = ("refund", {"order": "77", "cents": 2900, "reason": "and the postage"})
        ask(rt, "conversation-2", more, "This order was refunded already.")
        print("3. A large refund waits. A person looks at exactly these arguments and agrees.")
        large = ("refund", {"order": "78", "cents": 250_00, "reason": "never arrived"})
        waiting = ask(rt, "conversation-3", large, "Done.")
        for held in waiting.waiting:
            assert held.approval is not None
            print("  ada sees:", held.approval.call.tool, dict(held.approval.call.args))
            rt.approve(held.approval.id, digest=held.approval.digest, by="ada", why="the parcel was lost")
        print("4. The same conversation continues.")
        print("  agent:", ask(rt, "conversation-3", large, "Done.").text)


if __name__ == "__main__":
    main()
