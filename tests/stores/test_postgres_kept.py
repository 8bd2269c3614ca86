"""Two processes never believe that they know the end of the same chain of a ledger in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from amends import Runtime, tool
from amends.ledger import operations as ops
from amends.ledger.plain import FailPlain, SettledPlain, SettlePlain, Started
from amends.ledger.rows import RunRow
from amends.ledger.store import OUTCOME
from amends.stores.postgres.store import PostgresStore
from amends.stores.sql import Kept
from amends.testing.conformance.ledger import Clock, Ledger, audit
from tests.servers.databases import connect, execute


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(postgres_url: str, clock: Clock) -> Iterator[Ledger]:
    with closing(PostgresStore(postgres_url, clock)) as store:
        store.open(create=True)
        made = Ledger(store, clock=clock)
        yield made
        audit(made)


@pytest.fixture
def run(ledger: Ledger) -> RunRow:
    """A run; its tool is known, and so is the end of its chain."""
    run = ledger.run()
    ledger.start_plain(run, args="[0]")
    assert isinstance(ledger.raw(ledger.plain_op(run, args="[00]")), Started)
    return run


def kept_of(ledger: Ledger, run: RunRow) -> Kept:
    kept = ledger.store._plain.get(run.uid)  # type: ignore[attr-defined]
    assert kept is not None
    return kept  # type: ignore[no-any-return]


def on_its_way(ledger: Ledger, run: RunRow) -> tuple[str, list[bytes | None], Kept]:
    """The statement of a step that was sent, and of which nobody knows what became of it."""
    plain = ledger.store._plain  # type: ignore[attr-defined]
    op = ledger.plain_op(run, args="[late]")
    plain.tools[op.tool] = next(iter(plain.tools.values()))
    step = plain.advance(op)
    assert step is not None
    return step.sql, plain.values(step), step.kept


def carried_out(url: str, sql: str, values: list[bytes | None]) -> int:
    """How many rows the server answers when the statement arrives after all."""
    from amends.stores.postgres.connection import binary, numbered

    with connect(url) as connection:
        connection.autocommit = True
        result = connection.pgconn.exec_params(numbered(sql), values, param_formats=binary(len(values)))
        assert not result.error_message, result.error_message
        return int(result.ntuples)


def test_a_statement_that_arrives_late_changes_nothing(ledger: Ledger, run: RunRow, postgres_url: str) -> None:
    sql, values, kept = on_its_way(ledger, run)
    kept.forget()  # as after a lost connection
    kept.use.release()
    answer = ledger.raw(ledger.plain_op(run, args="[next]"))
    assert isinstance(answer, ops.Admission), "the flow does it, and moves touch on"
    assert carried_out(postgres_url, sql, values) == 0
    assert isinstance(ledger.raw(ledger.plain_op(run, args="[1]")), Started), "the end of the chain is known again"


def test_a_statement_that_was_done_unknown_to_its_sender_is_part_of_the_chain(
    ledger: Ledger, run: RunRow, postgres_url: str
) -> None:
    sql, values, kept = on_its_way(ledger, run)
    assert carried_out(postgres_url, sql, values) == 1
    kept.forget()
    kept.use.release()
    before = len(ledger.events())
    ledger.raw(ledger.plain_op(run, args="[next]"))
    assert len(ledger.events()) == before + 1


def test_a_flow_does_not_rely_on_an_end_from_which_a_step_goes_on(
    ledger: Ledger, run: RunRow, postgres_url: str
) -> None:
    sql, values, kept = on_its_way(ledger, run)
    assert carried_out(postgres_url, sql, values) == 1  # its sender has not read the answer yet
    ledger(ops.BeginRollback(run.uid, "ann", "stop", True))
    assert kept.touch < 0, "what the step has learned is used by nobody"
    kept.use.release()


def test_what_another_process_writes_is_not_overlooked(
    ledger: Ledger, run: RunRow, postgres_url: str, clock: Clock
) -> None:
    started = ledger.raw(ledger.plain_op(run, args="[1]"))
    with closing(PostgresStore(postgres_url, clock)) as store:
        Ledger(store, clock=clock)(ops.NoteEvidence(started.row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    assert isinstance(ledger.raw(ledger.plain_op(run, args="[2]")), ops.Admission)
    assert isinstance(ledger.raw(ledger.plain_op(run, args="[3]")), Started)


def test_a_process_that_does_not_own_the_run_remembers_nothing(
    ledger: Ledger, run: RunRow, postgres_url: str, clock: Clock
) -> None:
    started = ledger.raw(ledger.plain_op(run, args="[1]"))
    with closing(PostgresStore(postgres_url, clock)) as store:
        Ledger(store, clock=clock)(ops.NoteEvidence(started.row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
        assert store._plain.get(run.uid) is None


def test_one_step_of_a_run_is_on_its_way_at_a_time(ledger: Ledger, run: RunRow) -> None:
    started = ledger.raw(ledger.plain_op(run, args="[1]"))
    _, _, kept = on_its_way(ledger, run)
    settle = SettlePlain(started, '"ok"')
    assert ledger.store._plain.advance(settle) is None  # type: ignore[attr-defined]
    kept.use.release()
    assert isinstance(ledger.raw(settle), SettledPlain)


def test_a_forked_child_knows_no_end(ledger: Ledger, run: RunRow) -> None:
    kept, pool = kept_of(ledger, run), ledger.store._pool  # type: ignore[attr-defined]
    ledger.store.after_fork_in_child()  # type: ignore[attr-defined]
    assert kept.touch < 0
    pool.close()  # the parent's


def test_an_older_commit_that_is_remembered_later_does_not_count(ledger: Ledger, run: RunRow) -> None:
    plain = ledger.store._plain  # type: ignore[attr-defined]
    kept = kept_of(ledger, run)
    old = Kept(kept.no, kept.n - 1, "00" * 32, kept.at, kept.touch - 1, kept.owner, kept.epoch)
    plain._keep(run.uid, old)
    assert kept_of(ledger, run) is kept


def test_after_a_lost_connection_no_end_is_known(ledger: Ledger, run: RunRow, postgres_url: str) -> None:
    """The server may have been restored from a backup: then a chain ends elsewhere, with the same ``touch``."""
    other = ledger.run("other")
    started = ledger.raw(ledger.plain_op(run, args="[1]"))
    kept, beside = kept_of(ledger, run), kept_of(ledger, other)
    others = "datname = current_database() and pid <> pg_backend_pid()"
    execute(postgres_url, [f"select pg_terminate_backend(pid) from pg_stat_activity where {others}"])
    settled = ledger.raw(SettlePlain(started, '"ok"'))
    assert kept.touch < 0
    assert beside.touch < 0
    assert not isinstance(settled, SettledPlain)
    assert settled.call.state == "succeeded"


def test_a_failure_that_waits_for_its_run_keeps_its_outcome_when_all_tasks_are_cancelled(
    ledger: Ledger, run: RunRow, postgres_url: str
) -> None:
    started = ledger.start_plain(run, args="[1]")

    async def play() -> asyncio.CancelledError:
        with closing(connect(postgres_url)) as raw:
            cursor = raw.cursor()
            cursor.execute("begin")
            cursor.execute(f"select 1 from amends_run where uid = '{run.uid}' for update")
            failure = asyncio.create_task(ledger.store.perform_async(FailPlain(started, "it failed", "boot", 1.0)))
            await asyncio.sleep(0.2)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as a loop that ends does
                task.cancel()
            await asyncio.sleep(0.2)
            raw.rollback()
        with pytest.raises(asyncio.CancelledError) as stopped:
            await failure
        return stopped.value

    stop = asyncio.run(play())
    assert getattr(stop, OUTCOME)() is not None
    assert ledger.look(started.row).state == "failed"


def test_a_tool_whose_name_postgresql_stores_otherwise_is_no_damage(postgres_url: str) -> None:
    @tool(name="charge\0", key="order")
    def charge(order: str) -> str:
        return order

    @charge.compensate
    def refund(order: str) -> None: ...

    with Runtime(postgres_url, tools=[charge]) as rt:
        for order in ("a", "b"):
            with rt.run(order):
                assert charge(order=order) == order
        assert rt.verify().ok
