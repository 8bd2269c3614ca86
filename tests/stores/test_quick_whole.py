"""A plain step that breaks in its middle leaves neither an event without its change nor a change without its event.

The conformance suite breaks operations inside their shared flow, which a plain statement goes around. Here the database
itself refuses: a trigger on ``amends_call`` raises while the statement is carried out, on PostgreSQL after it has
continued the chain in the row of the run.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.ledger import operations as ops
from amends.ledger.operations import StoreOp
from amends.ledger.plain import FailPlain, PlainRun, SettlePlain
from amends.ledger.rows import RunRow
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Clock, Ledger, audit
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
    run = ledger.run()
    ledger.start_plain(run, args="[1]")  # the store knows the tool now
    return ledger.plain_op(run, args="[2]")


def settling(ledger: Ledger) -> StoreOp[Any]:
    return SettlePlain(ledger.start_plain(ledger.run()), '"ok"')


def beginning(ledger: Ledger) -> StoreOp[Any]:
    run = ledger.run()
    call = ledger(SettlePlain(ledger.start_plain(run), '"ok"')).call
    ledger.roll_back(run)
    return ledger.compensate_op(call)


def ending(ledger: Ledger) -> StoreOp[Any]:
    begun = ledger(beginning(ledger))
    return ops.SettleCompensation(begun.id, "a", 1, 1, "compensated", boot="boot", mono=1.0, seen=begun)


def store_for(url: str, clock: Clock) -> Any:
    if url.startswith("postgres"):
        from amends.stores.postgres.store import PostgresStore

        return PostgresStore(url, clock)
    from amends.stores.mysql.store import MysqlStore

    return MysqlStore(url, clock)


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Ledger, Callable[[list[str]], Any]]]:
    """A ledger, and how to say something to its database behind its back."""
    kind, clock = request.param, Clock()
    if kind == "sqlite":
        path = tmp_path / "ledger.db"
        store: Any = SqliteStore(path, "NORMAL", clock)

        def say(statements: list[str]) -> Any:
            with closing(sqlite3.connect(path)) as raw:
                found = [raw.execute(statement).fetchall() for statement in statements][-1]
                raw.commit()
            return found
    else:
        url: str = request.getfixturevalue(f"{kind}_url")
        store = store_for(url, clock)

        def say(statements: list[str]) -> Any:
            return execute(url, statements)

    with closing(store):
        store.open(create=True)
        yield Ledger(store, clock=clock), say


BREAK_EVENTS = {kind: [one.replace("amends_call", "amends_event") for one in says] for kind, says in BREAK.items()}
MEND_EVENTS = {kind: [one.replace("amends_call", "amends_event") for one in says] for kind, says in MEND.items()}


def plainly(run: RunRow) -> PlainRun:
    return PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, "a", run.epoch)


def opening(ledger: Ledger) -> StoreOp[Any]:
    return ledger.open_op("another")


def failing(ledger: Ledger) -> StoreOp[Any]:
    return ledger.settle_op(ledger.start_plain(ledger.run()).row, "failed", error="broken")


def failing_plainly(ledger: Ledger) -> StoreOp[Any]:
    return FailPlain(ledger.start_plain(ledger.run()), '["ValueError", "no"]', "boot", 5.0)


def turning(ledger: Ledger) -> StoreOp[Any]:
    run = ledger.run()
    ledger(SettlePlain(ledger.start_plain(run), '"ok"'))
    return ops.BeginRollback(run.uid, "a", "it failed", False, owner="a", epoch=1, plain=plainly(run))


def closing_run(ledger: Ledger) -> StoreOp[Any]:
    ledger(ending(ledger))
    [run] = ledger.runs()
    return ops.CloseRun(run.uid, "a", 1, "rolled_back", plain=plainly(run))


def committing(ledger: Ledger) -> StoreOp[Any]:
    run = ledger.run()
    ledger(SettlePlain(ledger.start_plain(run), '"ok"'))
    return ops.DecideCommit(run.uid, "a", 1, '"out"', plain=plainly(run))


@pytest.mark.parametrize("asked", [opening, turning, closing_run, committing])
def test_what_breaks_at_its_event_leaves_nothing(
    request: pytest.FixtureRequest, broken: tuple[Ledger, Callable[[list[str]], Any]], asked: Asked
) -> None:
    ledger, say = broken
    kind = request.node.callspec.params["broken"]
    op = asked(ledger)
    before = ledger.everything()
    say(BREAK_EVENTS[kind])
    with pytest.raises(Exception, match="broken"):
        ledger(op)
    assert ledger.everything() == before
    say(MEND_EVENTS[kind])
    op.repeated = False
    assert ledger(op) is not None
    assert len(ledger.events()) == len(before[2]) + (2 if asked in (turning, committing) else 1)
    audit(ledger)


FOLDED = "select count(hash), count(settled_hash), count(comp_hash), count(undone_hash) from amends_call"


@pytest.mark.parametrize("asked", [admitting, settling, failing, failing_plainly, beginning, ending])
def test_what_breaks_in_the_middle_leaves_nothing(
    request: pytest.FixtureRequest, broken: tuple[Ledger, Callable[[list[str]], Any]], asked: Asked
) -> None:
    ledger, say = broken
    kind = request.node.callspec.params["broken"]
    op = asked(ledger)
    before = (ledger.events(), ledger.calls())
    folded = say([FOLDED])
    say(BREAK[kind])
    with pytest.raises(Exception, match="broken"):
        ledger(op)
    assert (ledger.events(), ledger.calls()) == before
    say(MEND[kind])
    op.repeated = False
    assert ledger(op) is not None
    assert len(ledger.events()) == len(before[0]) + 1
    # It was and is a plain statement; only the owner of a SQLite file forgets what it knew when something breaks.
    assert sum(say([FOLDED])[0]) == sum(folded[0]) + (1 if asked is admitting or kind != "sqlite" else 0)
    audit(ledger)
