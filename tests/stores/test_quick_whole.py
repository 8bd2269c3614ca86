"""A quick operation that breaks in its middle leaves neither an event without its change nor a change without its event.

The conformance suite breaks operations inside their shared flow, which a quick statement goes around. Here the database
itself refuses the second half: a trigger on ``amends_call`` raises after the event was written.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.ledger import operations as ops
from amends.ledger.operations import StoreOp
from amends.stores.mysql.store import MysqlStore
from amends.stores.postgres.store import PostgresStore
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers.databases import execute

Asked = Callable[[Ledger], StoreOp[Any]]

BREAK = {
    "sqlite": [
        f"create trigger broken_{when} before {when} on amends_call begin select raise(abort, 'broken'); end"
        for when in ("insert", "update")
    ],
    "postgres": [
        "create function broken() returns trigger language plpgsql as $$ begin raise exception 'broken'; end $$",
        "create trigger broken after insert or update on amends_call for each row execute function broken()",
    ],
    "mysql": [
        f"create trigger broken_{when} after {when} on amends_call for each row signal sqlstate '45000' set message_text = 'broken'"
        for when in ("insert", "update")
    ],
}
MEND = {
    "sqlite": ["drop trigger broken_insert", "drop trigger broken_update"],
    "postgres": ["drop trigger broken on amends_call", "drop function broken"],
    "mysql": ["drop trigger broken_insert", "drop trigger broken_update"],
}


def admitting(ledger: Ledger) -> StoreOp[Any]:
    return ledger.admit_op(ledger.run(), expected=False)


def settling(ledger: Ledger) -> StoreOp[Any]:
    return ledger.settle_op(ledger.start(ledger.run()))


def beginning(ledger: Ledger) -> StoreOp[Any]:
    run = ledger.run()
    call = ledger.do(run)
    ledger.roll_back(run)
    return ledger.compensate_op(call)


def ending(ledger: Ledger) -> StoreOp[Any]:
    begun = ledger(beginning(ledger))
    return ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", boot="boot", mono=1.0, seen=begun)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Ledger, Callable[[list[str]], None]]]:
    """A ledger, and how to say something to its database behind its back."""
    kind = request.param
    if kind == "sqlite":
        path = tmp_path / "ledger.db"
        store: Any = SqliteStore(path, "NORMAL")

        def say(statements: list[str]) -> None:
            with closing(sqlite3.connect(path)) as raw:
                for statement in statements:
                    raw.execute(statement)
                raw.commit()
    else:
        url: str = request.getfixturevalue(f"{kind}_url")
        store = PostgresStore(url) if kind == "postgres" else MysqlStore(url)

        def say(statements: list[str]) -> None:
            execute(url, statements)

    with closing(store):
        store.open(create=True)
        yield Ledger(store), say


@pytest.mark.parametrize("asked", [admitting, settling, beginning, ending])
def test_what_breaks_in_the_middle_leaves_nothing(
    request: pytest.FixtureRequest, broken: tuple[Ledger, Callable[[list[str]], None]], asked: Asked
) -> None:
    ledger, say = broken
    kind = request.node.callspec.params["broken"]
    op = asked(ledger)
    before = (ledger.events(), ledger.calls())
    say(BREAK[kind])
    with pytest.raises(Exception, match="broken"):
        ledger(op)
    assert (ledger.events(), ledger.calls()) == before
    say(MEND[kind])
    op.repeated = False
    assert ledger(op) is not None
    assert len(ledger.events()) == len(before[0]) + 1
    audit(ledger)
