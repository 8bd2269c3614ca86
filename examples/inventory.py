"""An agent that changes stock and prices: what was there before is put back, and never over somebody else's change.

    pip install amends
    python examples/inventory.py

The shop's database is an SQLite file in the folder `inventory-data`, beside the ledger.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from amends import Runtime, tool
from amends.errors import RunBlocked

DATA = Path("inventory-data")


def sql(statement: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(DATA / "shop.db")) as db, db:  # `with db` commits
        return db.execute(statement, values).fetchall()


def price_of(sku: str) -> int:
    [(cents,)] = sql("select cents from prices where sku = ?", sku)
    assert isinstance(cents, int)
    return cents


# ---- the tools ---------------------------------------------------------------------------------------------------


# A setter: the newest value counts (`on_conflict="next"`), and one run at a time works on a price (`locks=`).
@tool(key="sku", on_conflict="next", locks=lambda call: [f"price:{call.args['sku']}"])
def set_price(sku: str, cents: int) -> None:
    """Set the price of an article."""
    sql("update prices set cents = ? where sku = ?", cents, sku)


@set_price.before
def old_price(sku: str) -> int:
    return price_of(sku)


@set_price.guard  # has somebody else changed it since?
def unchanged(sku: str, cents: int) -> bool:
    return price_of(sku) == cents


@set_price.compensate
def put_back(sku: str, before: int) -> None:
    sql("update prices set cents = ? where sku = ?", before, sku)


@tool(key="delivery")
def add_stock(delivery: str, sku: str, pieces: int) -> str:
    """Book a delivery into the stock."""
    sql("insert into deliveries values (?, ?, ?)", delivery, sku, pieces)
    return delivery


@add_stock.compensate
def remove_stock(result: str) -> None:
    sql("delete from deliveries where id = ?", result)


# ---- three runs --------------------------------------------------------------------------------------------------


def show(rt: Runtime, run: str) -> None:
    print("  prices:", dict(sql("select sku, cents from prices")))  # type: ignore[arg-type]
    print("  deliveries:", [id for (id,) in sql("select id from deliveries")])
    print("  ledger: run", run, "is", rt.report(run).state)


def main() -> None:
    DATA.mkdir(exist_ok=True)
    if not (DATA / "shop.db").exists():
        sql("create table prices (sku text primary key, cents integer)")
        sql("create table deliveries (id text primary key, sku text, pieces integer)")
        sql("insert into prices values ('tea', 300), ('cup', 900)")
    with Runtime(f"sqlite:///{DATA}/ledger.db", tools=[set_price, add_stock]) as rt:
        done = {run.id for run in rt.runs()}
        print("1. A delivery arrives, and the price falls. It commits.")
        if "delivery-1" not in done:
            with rt.run("delivery-1"):
                add_stock(delivery="d-1", sku="tea", pieces=40)
                set_price(sku="tea", cents=250)
        show(rt, "delivery-1")
        print("2. A sale is cancelled in the middle: every price is what it was.")
        if "sale" not in done:
            try:
                with rt.run("sale"):
                    set_price(sku="tea", cents=200)
                    set_price(sku="tea", cents=150)
                    set_price(sku="cup", cents=500)
                    raise RuntimeError("the campaign is cancelled")
            except RuntimeError as error:
                print("  failed:", error)
        show(rt, "sale")
        print("3. Somebody changed a price meanwhile: it is left alone, and a person is told.")
        if "second-sale" not in done:
            try:
                with rt.run("second-sale"):
                    add_stock(delivery="d-2", sku="cup", pieces=5)
                    set_price(sku="cup", cents=500)
                    sql("update prices set cents = 1100 where sku = 'cup'")  # a colleague, by hand
                    raise RuntimeError("this one is cancelled too")
            except (RuntimeError, RunBlocked) as error:
                print("  failed:", str(error).partition("\n")[0])
            show(rt, "second-sale")
            for item in rt.inbox():
                print("  inbox:", item.what, "|", item.run_id)
            rt.abandon("second-sale", by="ada", why="1100 is the right price")
        show(rt, "second-sale")


if __name__ == "__main__":
    main()
