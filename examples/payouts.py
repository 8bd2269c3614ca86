"""Payouts to sellers: a daily cap, two people for large amounts, and a list that is paid completely or waits.

    pip install amends
    python examples/payouts.py

The bank is a file in the folder `payouts-data`, beside the ledger. `amends inbox --url sqlite:///payouts-data/ledger.db`
lists what waits for a person.
"""

from pathlib import Path

from amends import Budget, Cost, Held, Rule, Runtime, tool
from amends.errors import BudgetExceeded, Rejected, RunEnded

DATA = Path("payouts-data")
RULES = [
    Rule("pay", args={"euros": "<=500"}, decision="allow"),
    Rule("pay", approvers=2, roles=("finance",), reasons=("wrong seller", "wrong amount"), why="more than 500 euros"),
]
PEOPLE = {"finance": ["ada", "ben", "eve"]}
BUDGETS = [Budget(5_000, per="ledger", unit="eur")]


@tool(kind="pivot", key="payout", cost=lambda call: Cost(call.args["euros"], "eur"))
def pay(payout: str, seller: str, euros: int) -> str:
    """Pay a seller. This cannot be undone."""
    with (DATA / "bank").open("a", encoding="utf-8") as book:
        book.write(f"{payout} {seller} {euros}\n")
    return f"paid-{payout}"


def pay_out(rt: Runtime, payout: str, seller: str, euros: int) -> None:
    """Pay one seller in a run with the payout's id. Calling it again continues, and never pays twice."""
    try:
        with rt.run(payout):
            print(f"  {payout}:", pay(payout=payout, seller=seller, euros=euros))
    except Held as held:
        print(f"  {payout}: waits for {held.approval.needed} people, {len(held.approval.given)} agreed")
    except Rejected as no:
        print(f"  {payout}: rejected, {no.reason}")
    except BudgetExceeded as no:
        print(f"  {payout}: refused, {no}")
    except RunEnded as ended:
        print(f"  {payout}: ended before, {ended.state}")


def main() -> None:
    DATA.mkdir(exist_ok=True)
    url = f"sqlite:///{DATA}/ledger.db"
    with Runtime(url, tools=[pay], rules=RULES, approvers=PEOPLE, budgets=BUDGETS, principal="payout-bot") as rt:
        print("1. A small payout needs nobody. The program runs twice; the seller is paid once.")
        pay_out(rt, "p-1", "lamps & co", 200)
        pay_out(rt, "p-1", "lamps & co", 200)
        print("2. A large one needs two people.")
        pay_out(rt, "p-2", "chairs ltd", 3_000)
        for person in ("ada", "ben"):
            for approval in rt.approvals("state:pending run:p-2"):
                rt.approve(approval.id, digest=approval.digest, by=person, why="the invoice is right")
            pay_out(rt, "p-2", "chairs ltd", 3_000)
        print("3. One no is enough.")
        pay_out(rt, "p-3", "chairs ltb", 900)
        for approval in rt.approvals("state:pending run:p-3"):
            rt.reject(approval.id, by="eve", reason="wrong seller")
        pay_out(rt, "p-3", "chairs ltb", 900)
        print("4. Nothing exceeds the cap, whoever agrees.")
        pay_out(rt, "p-4", "desks inc", 2_500)
        for person in ("ada", "ben"):
            for approval in rt.approvals("state:pending run:p-4"):
                rt.approve(approval.id, digest=approval.digest, by=person, why="looks right")
        pay_out(rt, "p-4", "desks inc", 2_500)
        print("  bank:", (DATA / "bank").read_text(encoding="utf-8").split("\n")[:-1])


if __name__ == "__main__":
    main()
