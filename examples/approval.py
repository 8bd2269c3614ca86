"""An approval: a large payment waits for a person, the run is released, and the same id continues after the decision.

    pip install amends
    python examples/approval.py

The ledger is in the folder `approval-data`: `amends inbox --url sqlite:///approval-data/ledger.db` lists what waits.
Run it again: both runs have ended, and nothing is paid twice.
"""

from pathlib import Path

from amends import Held, Rule, Runtime, tool
from amends.errors import Rejected, RunEnded

DATA = Path("approval-data")


@tool(kind="pivot", key="invoice")
def pay(invoice: str, euros: int) -> str:
    """Pay an invoice. This cannot be undone."""
    print("  bank:", euros, "euros paid")
    return f"paid-{invoice}"


RULES = [Rule("pay", args={"euros": ">1000"}, roles=("treasurer",), why="more than 1000 euros")]
PEOPLE = {"treasurer": ["ada"]}


def settle(rt: Runtime, invoice: str, euros: int) -> None:
    """Pay in a run with the invoice's id; a repeat continues where it stopped."""
    try:
        with rt.run(invoice):
            print("  result:", pay(invoice=invoice, euros=euros))
    except Held as held:
        print("  waits for approval:", held.approval.rule)
    except Rejected as no:
        print("  rejected:", no.reason)
    except RunEnded as ended:
        print("  ended:", ended)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[pay], rules=RULES, approvers=PEOPLE, principal="bot") as rt:
        print("1. A small payment needs nobody.")
        settle(rt, "invoice-1", 200)
        print("2. A large one waits; nothing is paid, and no process has to stay alive.")
        settle(rt, "invoice-2", 4000)
        for approval in rt.approvals("state:pending run:invoice-2"):
            print("  ada looks at:", approval.call.tool, dict(approval.call.args))
            rt.approve(approval.id, digest=approval.digest, by="ada", why="it is in the contract")
        print("3. The same id continues.")
        settle(rt, "invoice-2", 4000)
        print("4. A person says no.")
        settle(rt, "invoice-3", 9000)
        for approval in rt.approvals("state:pending run:invoice-3"):
            rt.reject(approval.id, by="ada", reason="nobody ordered this")
        settle(rt, "invoice-3", 9000)


if __name__ == "__main__":
    main()
