"""PostgreSQL: two workers on one ledger ask for the same payment at the same moment; it is made once.

    pip install 'amends[postgres]'
    AMENDS_URL=postgresql://user@host/database python examples/postgresql.py

The ledger is the schema `amends_example` of that database; nothing else there is touched. Run it again: it is answered
from the record.
"""

import os
import subprocess
import sys
from urllib.parse import urlsplit

from amends import Runtime, tool


def ledger() -> str:
    """The database that AMENDS_URL names, with a schema of this program's own."""
    url = os.environ.get("AMENDS_URL", "")
    if not url.startswith(("postgres://", "postgresql://")):
        sys.exit("set AMENDS_URL to a PostgreSQL database, for example postgresql://user@localhost/shop")
    return f"{url}{'&' if urlsplit(url).query else '?'}schema=amends_example"


@tool(kind="pivot", key="order", scope="ledger")
def pay(order: str, cents: int) -> str:
    """Pay once for an order, whichever run asks: scope="ledger"."""
    print("  bank:", cents, "cents paid", flush=True)
    return f"payment-{order}"


def main() -> None:
    with Runtime(ledger(), tools=[pay]) as rt:
        if sys.argv[1:]:
            with rt.run(sys.argv[1]):
                assert pay(order="7", cents=4200) == "payment-7"
            return
        rt.migrate()  # before the workers start; in production: amends db migrate
        print("two workers ask for the same payment", flush=True)
        workers = [subprocess.Popen([sys.executable, __file__, f"run-{n}"]) for n in (1, 2)]
        codes = [worker.wait() for worker in workers]
        print("  workers ended with", codes)
        print("  calls in the ledger:", [(call.tool, call.state) for call in rt.calls("tool:pay")])


if __name__ == "__main__":
    main()
