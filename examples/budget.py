"""A budget: machines and disks cost money, and a run that would exceed its budget is refused and taken back.

    pip install amends
    python examples/budget.py

The ledger is in the folder `budget-data`: `amends budgets --url sqlite:///budget-data/ledger.db` shows what is left.
"""

from pathlib import Path

from amends import Budget, Runtime, tool
from amends.errors import BudgetExceeded

DATA = Path("budget-data")


@tool(cost=40)
def create_vm(name: str) -> str:
    return f"vm {name}"


@create_vm.compensate
def delete_vm(result: str) -> None:
    print("  deleted", result)


@tool(cost=lambda call: call.args["gb"] * 0.5)
def create_disk(name: str, gb: int) -> str:
    return f"disk {name}"


@create_disk.compensate
def delete_disk(result: str) -> None:
    print("  deleted", result)


def build(rt: Runtime, site: str, *, gb: int) -> None:
    try:
        with rt.run(site):
            print("  created", create_vm(name=site))
            print("  created", create_disk(name=site, gb=gb))
    except BudgetExceeded as no:
        print("  refused:", no)
    [state] = rt.budgets()
    print("  spent", state.spent, "of", state.budget.cap, "usd; run", site, "is", rt.report(site).state)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    budgets = [Budget(100, per="ledger")]
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[create_vm, create_disk], budgets=budgets) as rt:
        print("1. A site that fits.")
        build(rt, "site-1", gb=20)
        print("2. One that does not: its cost is refused before anything is spent, and the run is taken back.")
        build(rt, "site-2", gb=60)


if __name__ == "__main__":
    main()
