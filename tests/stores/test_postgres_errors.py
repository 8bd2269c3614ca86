"""Everything that can be wrong with a PostgreSQL server: told apart, survived where that is safe, and never twice."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from amends.errors import BadConfig, LedgerMissing, LedgerUnavailable
from amends.ledger import operations as ops
from amends.stores.pool import Pool
from amends.stores.postgres import transaction
from amends.stores.postgres.store import PostgresStore
from amends.testing.conformance.ledger import Ledger
from tests.servers.databases import execute, with_database
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer
from tests.stores.pg import Wire, count, ends_sessions, fails, locked, sessions, works_again

COLOURS = ["blocking", "async"]
CONNECTIONS = 14


@pytest.fixture(scope="module")
def small() -> Iterator[PostgresServer]:
    """A server with few connections, where some roles need a password."""
    try:
        server = PostgresServer(tcp=True, settings={"max_connections": str(CONNECTIONS)}).start()
    except Unavailable as refusal:
        unavailable(refusal)
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
    execute(
        server.url(),
        ["create role locked login password 'right'", "create role plain login", "select pg_reload_conf()"],
    )
    yield server
    server.close()


@pytest.fixture
def url(small: PostgresServer) -> Iterator[str]:
    """A database in it."""
    made = small.create_database()
    yield made
    small.drop_database(made)


@pytest.fixture
def make(url: str) -> Iterator[Callable[..., PostgresStore]]:
    made: list[PostgresStore] = []

    def one(where: str = "", **given: Any) -> PostgresStore:
        made.append(PostgresStore(where or url, **given))
        return made[-1]

    yield one
    for store in made:
        store.close()


Make = Callable[..., PostgresStore]


def unavailable_error(ledger: Ledger, op: ops.StoreOp[Any]) -> LedgerUnavailable:
    with pytest.raises(LedgerUnavailable) as found:
        ledger(op)
    assert found.value.hint
    return found.value


# ---- getting in ---------------------------------------------------------------------------


@pytest.mark.parametrize("password", ["wrong", ""])
def test_a_wrong_password_is_a_fault_of_the_settings(make: Make, url: str, password: str) -> None:
    place = url.replace("postgres@", f"locked:{password}@")
    with pytest.raises(BadConfig) as bad:
        make(place).open(create=True)
    assert "locked" in str(bad.value)
    assert "PGPASSWORD" in bad.value.hint
    assert f"{password}@" not in str(bad.value) + repr(bad.value.__cause__) or not password


def test_the_right_password_gets_in_and_is_not_shown(make: Make, url: str) -> None:
    execute(url, ["grant create on schema public to locked"])
    store = make(url.replace("postgres@", "locked:right@"))
    assert store.open(create=True)
    assert "right" not in store.url


def test_a_role_that_is_not_there_is_a_fault_of_the_settings(make: Make, url: str) -> None:
    with pytest.raises(BadConfig) as bad:
        make(url.replace("postgres@", "stranger@")).open(create=True)
    assert "stranger" in str(bad.value)


def test_a_database_that_is_not_there_is_missing(make: Make, url: str) -> None:
    with pytest.raises(LedgerMissing) as missing:
        make(with_database(url, "nowhere")).open(create=True)
    assert "nowhere" in str(missing.value)
    assert "not the database" in missing.value.hint


def test_a_role_without_rights_to_create_is_told_which_it_needs(make: Make, url: str) -> None:
    with pytest.raises(BadConfig) as bad:
        make(url.replace("postgres@", "plain@")).open(create=True)
    assert "permission denied" in str(bad.value)
    assert "amends db migrate" in bad.value.hint
    assert make().schema().version == 0


def test_a_role_may_use_a_ledger_that_it_may_not_make(make: Make, url: str) -> None:
    make().open(create=True)
    with pytest.raises(LedgerUnavailable) as refused:
        make(url.replace("postgres@", "plain@")).open(create=True)
    assert "select, insert and update" in refused.value.hint
    execute(
        url,
        [
            "grant select on amends_schema, amends_ledger to plain",
            "grant select, insert, update on amends_tool, amends_run, amends_call, amends_event to plain",
            "grant select, insert, update, delete on amends_lock, amends_wait, amends_budget, amends_mark to plain",
        ],
    )
    ledger = Ledger(make(url.replace("postgres@", "plain@")))
    assert ledger.store.open(create=True) is False
    assert ledger.do(ledger.run()).state == "succeeded"
    execute(url, ["drop owned by plain"])


def test_a_server_that_is_not_there_does_not_answer(make: Make) -> None:
    with pytest.raises(LedgerUnavailable) as away:
        make("postgresql://postgres@127.0.0.1:1/shop").open(create=True)
    assert "nothing of this was written" in str(away.value)
    assert "running" in away.value.hint


@pytest.mark.parametrize("colour", COLOURS)
def test_too_many_connections_are_told_and_pass(make: Make, url: str, colour: str) -> None:
    store = make(pool_max=2)
    store.open(create=True)
    store._pool.drop_idle()
    ledger = Ledger(store, colour)
    others: list[psycopg.Connection[Any]] = []
    # Those reserved for superusers are taken too: our role is one.
    for role in ("plain@", "postgres@"):
        with suppress(psycopg.OperationalError):
            others.extend(psycopg.connect(url.replace("postgres@", role)) for _ in range(CONNECTIONS))
    error = unavailable_error(ledger, ledger.open_op())
    for other in others:
        other.close()
    assert "no connection left" in str(error)
    assert "pool_max" in error.hint
    assert eventually(lambda: sessions_of(url) == 0)
    assert ledger.run().state == "open"


def eventually(holds: Callable[[], bool]) -> bool:
    for _ in range(3000):
        if holds():
            return True
        threading.Event().wait(0.01)
    return False


def sessions_of(url: str) -> int:
    try:
        found: int = execute(url, ["select count(*) from pg_stat_activity where usename = 'plain'"])[0][0]
    except psycopg.OperationalError:
        return -1
    return found


@pytest.mark.parametrize("colour", COLOURS)
def test_an_exhausted_pool_is_told_and_passes(make: Make, url: str, colour: str) -> None:
    store = make(pool_max=1)
    store.open(create=True)
    run = Ledger(make()).run()
    ledger = Ledger(store, made=50)

    async def on_a_loop() -> LedgerUnavailable:
        store._loop_pool()._wait_s = 0.1
        writing = asyncio.ensure_future(store.perform_async(ledger.admit_op(run)))
        await asyncio.to_thread(waits_for_lock, url)
        with pytest.raises(LedgerUnavailable) as found:
            await store.perform_async(ops.ListRuns(None))
        holder.rollback()
        await writing
        return found.value

    def in_threads() -> LedgerUnavailable:
        assert isinstance(store._pool, Pool)
        store._pool._wait_s = 0.1
        writing = threading.Thread(target=store.perform, args=(ledger.admit_op(run),))
        writing.start()
        waits_for_lock(url)
        error = unavailable_error(ledger, ops.ListRuns(None))
        holder.rollback()
        writing.join()
        return error

    with psycopg.connect(url) as holder:
        holder.execute("select 1 from amends_run where uid = %s for update", (run.uid,))
        error = asyncio.run(on_a_loop()) if colour == "async" else in_threads()
    assert "all 1 connections" in str(error)
    assert "pool_max" in error.hint
    assert len(ledger.calls()) == 1


def waits_for_lock(url: str) -> None:
    """Until somebody of ours waits for a row."""
    waiting = (
        "select count(*) from pg_stat_activity "
        "where wait_event_type = 'Lock' and application_name = 'amends' and datname = current_database()"
    )
    assert eventually(lambda: execute(url, [waiting])[0][0] == 1)


# ---- losing the server --------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_was_killed_is_told_and_used_again_when_it_is_back(
    postgres_server: PostgresServer, make: Make, colour: str
) -> None:
    store = make(postgres_server.create_database())
    ledger = Ledger(store, colour)
    run = ledger.run()
    call = ledger.start(run)
    postgres_server.kill()
    error = unavailable_error(ledger, ledger.settle_op(call))
    assert "does not answer" in str(error)
    postgres_server.start()
    assert ledger.settle(call).call.state == "succeeded"
    assert ledger.admit(run).verdict == "replay"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_restart_while_connections_lie_idle_is_not_noticed(
    postgres_server: PostgresServer, make: Make, colour: str
) -> None:
    store = make(postgres_server.create_database())
    ledger = Ledger(store, colour)
    runs = [ledger.run(f"order-{n}") for n in range(3)]
    if colour == "blocking":  # several that lie idle
        threads = [threading.Thread(target=ledger.admit, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    postgres_server.restart()
    assert ledger.do(runs[0], "again").state == "succeeded"


@pytest.mark.parametrize("colour", COLOURS)
def test_a_session_that_is_ended_in_the_middle_is_begun_again(make: Make, url: str, colour: str) -> None:
    """57P01: nothing was committed, so another session may try."""
    ledger = Ledger(make(), colour)
    run = ledger.run()
    ends_sessions(url, times=1)
    assert ledger.admit(run).verdict == "start"
    works_again(url)
    assert len(ledger.calls()) == 1
    assert len(ledger.events()) == 2


@pytest.mark.parametrize("colour", COLOURS)
def test_sessions_that_are_ended_again_and_again_are_told(make: Make, url: str, colour: str) -> None:
    ledger = Ledger(make(), colour)
    run = ledger.run()
    ends_sessions(url, times=50)
    error = unavailable_error(ledger, ledger.admit_op(run))
    assert "closed the connection; nothing of this was written" in str(error)
    works_again(url)
    assert ledger.calls() == []
    assert ledger.admit(run).verdict == "start"


@pytest.fixture
def wire(url: str) -> Iterator[Wire]:
    made = Wire(url)
    yield made
    made.close()


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_commit_whose_answer_is_lost_is_not_known_and_found_out_by_repeating(
    make: Make, wire: Wire, cut: str, colour: str
) -> None:
    behind = Ledger(make())
    ledger = Ledger(make(wire.through()), colour, made=100)
    run = ledger.run()
    op = ledger.admit_op(run, again="said")  # no plain one: that has no commit of its own
    wire.cut = cut
    error = unavailable_error(ledger, op)
    assert wire.cuts == 1
    assert "unknown whether" in str(error)
    assert len(behind.calls()) == (1 if cut == "after" else 0)
    op.repeated = True
    assert ledger(op).verdict == "start"
    assert len(behind.calls()) == 1
    settle = ledger.settle_op(behind.calls()[0], seen=None)
    wire.cut = cut
    unavailable_error(ledger, settle)
    settle.repeated = True
    settled = ledger(settle)
    assert (settled.fenced, settled.call.state) == (False, "succeeded")
    assert [event.to_state for event in behind.events() if event.call] == ["started", "succeeded"]


# ---- two at once --------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["40001", "40P01"])
@pytest.mark.parametrize("colour", COLOURS)
def test_what_the_server_undid_because_of_others_is_begun_again(make: Make, url: str, code: str, colour: str) -> None:
    ledger = Ledger(make(), colour)
    run = ledger.run()
    fails(url, code, times=transaction.ATTEMPTS_MAX - 1)
    assert ledger.admit(run).verdict == "start"
    works_again(url)
    assert len(ledger.calls()) == 1
    assert [event.call for event in ledger.events()] == ["", ledger.calls()[0].id]


@pytest.mark.parametrize("colour", COLOURS)
def test_what_is_undone_every_time_is_told(make: Make, url: str, colour: str) -> None:
    ledger = Ledger(make(), colour)
    run = ledger.run()
    fails(url, "40001", times=1000)
    error = unavailable_error(ledger, ledger.admit_op(run))
    assert f"{transaction.ATTEMPTS_MAX} times" in str(error)
    works_again(url)
    assert ledger.calls() == []


@pytest.mark.parametrize("colour", COLOURS)
def test_a_real_deadlock_with_somebody_elses_transaction_passes(make: Make, url: str, colour: str) -> None:
    """We hold the first run and want the second; they hold the second and want the first."""
    # A waiter looks for a circle once, after this time: until then the others must have closed it.
    execute(url, ["alter database " + url.rpartition("/")[2] + " set deadlock_timeout = '2s'"])
    ledger = Ledger(make(), colour)
    one, two = sorted((ledger.run("one"), ledger.run("two")), key=lambda run: run.uid)
    theirs = psycopg.connect(url)
    theirs.execute("set deadlock_timeout = '60s'")  # it is we who are chosen
    theirs.execute("select 1 from amends_run where uid = %s for update", (two.uid,))
    renewed: list[Any] = []
    renewing = threading.Thread(
        target=lambda: renewed.append(ledger(ops.RenewLeases("a", {one.uid: 1, two.uid: 1}, 30.0)))
    )
    renewing.start()
    waits_for_lock(url)
    theirs.execute("select 1 from amends_run where uid = %s for update", (one.uid,))  # returns when we were chosen
    theirs.close()
    renewing.join()
    assert set(renewed[0].goals) == {one.uid, two.uid}


def test_two_that_open_one_id_at_once_are_one_run(make: Make) -> None:
    stores = [make() for _ in range(4)]
    stores[0].open(create=True)
    opened: list[Any] = []
    start = threading.Barrier(len(stores))

    def begin(number: int, store: PostgresStore) -> None:
        ledger = Ledger(store, made=1000 * number)
        for round_ in range(10):
            start.wait()
            opened.append(ledger.open(f"order-{round_}", owner=f"owner-{number}").how)

    threads = [threading.Thread(target=begin, args=pair) for pair in enumerate(stores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(opened) == ["busy"] * 30 + ["fresh"] * 10


@pytest.mark.parametrize("colour", COLOURS)
def test_a_run_that_somebody_keeps_locked_is_named(make: Make, url: str, colour: str) -> None:
    ledger = Ledger(make(lock_wait_s=0.1), colour)
    run = ledger.run()
    call = ledger.start(run)
    with locked(url, run.uid):
        error = unavailable_error(ledger, ledger.admit_op(run, "other"))
        assert f"run {run.id} is locked by another transaction" in str(error)
        assert "idle in transaction" in error.hint
        assert f"call {call.id} is locked" in str(unavailable_error(ledger, ledger.settle_op(call)))
        assert "order is locked" in str(unavailable_error(ledger, ledger.open_op("order")))
        assert ledger.claim(run) is None, "who looks for work passes over it"
        assert ledger.read(run) == run, "who reads does not wait"
    assert ledger.settle(call).call.state == "succeeded"


def test_a_process_that_stops_in_the_middle_does_not_keep_its_run(make: Make, url: str) -> None:
    """Stopped between two statements, as by SIGSTOP: the server ends its transaction."""
    store = make(lock_wait_s=1.0)
    ledger = Ledger(store)
    run = ledger.run()
    link = store._pool.take()
    link.command("begin")
    link.raw.execute("select 1 from amends_run where uid = %s for update", (run.uid,))
    assert Ledger(make(lock_wait_s=10), made=100).admit(run).verdict == "start"
    store._pool.give(link, keep=True)
    assert ledger.admit(run).verdict == "wait"


# ---- a server that refuses ----------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_takes_no_writes_is_told_and_can_be_read(make: Make, url: str, colour: str) -> None:
    Ledger(make()).run()
    execute(url, ["alter database " + url.rpartition("/")[2] + " set default_transaction_read_only = on"])
    ledger = Ledger(make(), colour, made=100)
    error = unavailable_error(ledger, ledger.open_op("another"))
    assert "read-only" in str(error)
    assert "target_session_attrs" in error.hint
    assert [run.id for run in ledger.runs()] == ["order"]


@pytest.mark.parametrize(
    "code, words",
    [("53100", "no space is left"), ("57014", "cancelled"), ("53200", "has a problem"), ("XX000", "has a problem")],
)
@pytest.mark.parametrize("colour", COLOURS)
def test_what_the_server_refuses_is_told_and_leaves_nothing(
    make: Make, url: str, code: str, words: str, colour: str
) -> None:
    ledger = Ledger(make(), colour)
    run = ledger.run()
    fails(url, code, times=1)
    error = unavailable_error(ledger, ledger.admit_op(run))
    assert words in str(error)
    assert "nothing of this was written" in str(error)
    assert ledger.admit(run).verdict == "start"
    works_again(url)
    assert (count(url, "amends_call"), count(url, "amends_event")) == (1, 2)


def test_a_statement_that_runs_too_long_for_its_role_is_told(make: Make, url: str) -> None:
    ledger = Ledger(make())
    run = ledger.run()
    with locked(url, run.uid):
        execute(url, ["alter database " + url.rpartition("/")[2] + " set statement_timeout = '100ms'"])
        patient = Ledger(make(), made=100)
        assert "statement_timeout" in unavailable_error(patient, patient.admit_op(run)).hint


def test_a_ledger_that_is_dropped_while_it_is_used_is_missing(make: Make, url: str) -> None:
    ledger = Ledger(make())
    ledger.run()
    execute(url, ["drop table amends_event, amends_call, amends_run, amends_schema"])
    with pytest.raises(LedgerMissing):
        ledger.run("another")


@pytest.mark.parametrize("colour", COLOURS)
def test_the_flow_s_own_errors_leave_the_connection_as_it_was(make: Make, url: str, colour: str) -> None:
    ledger = Ledger(make(), colour)
    ledger.run()
    with pytest.raises(LookupError):
        ledger(ops.DecideCall("nothing", "run", "ann", "why"))
    assert ledger.run("another").state == "open"
    assert sessions(url) <= 2
