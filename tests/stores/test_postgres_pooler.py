"""Behind a pooler in transaction mode every transaction may have another session: nothing may rely on one."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from amends.errors import LedgerUnavailable
from amends.stores.postgres.store import PostgresStore
from amends.testing.conformance import CHECKS, COLOURS, check_store
from amends.testing.conformance.ledger import Ledger, audit
from amends.testing.conformance.prove import Colour
from tests.servers.databases import with_database
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable, unprivileged_user
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.stores.emptied import Emptied
from tests.stores.harness import Harness
from tests.stores.pg import fails, locked, works_again

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
SESSIONS = 3
START_S = 20
SETTINGS = """
[databases]
* = host=127.0.0.1 port={port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 200
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    try:
        made = PostgresServer(tcp=True).start()
    except Unavailable as refusal:
        unavailable(refusal)
    yield made
    made.close()


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[int]:
    """The port of a real PgBouncer in front of it."""
    if PROGRAM is None:
        unavailable(Unavailable("no pgbouncer on PATH or in /usr/sbin; apt-get install pgbouncer"))
    user, own = unprivileged_user(), free_port()
    with tempfile.TemporaryDirectory(prefix="amends-", ignore_cleanup_errors=True) as folder:
        settings = Path(folder) / "pgbouncer.ini"
        settings.write_text(SETTINGS.format(port=server.port, own=own, sessions=SESSIONS))
        for path in (Path(folder), settings):
            os.chown(path, user.uid, user.gid)
        given: dict[str, Any] = {"user": user.uid, "group": user.gid, "extra_groups": []} if user.is_other else {}
        running = subprocess.Popen(
            [PROGRAM, "-q", str(settings)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **given
        )
        try:
            _wait_for(own, running)
            yield own
        finally:
            running.terminate()
            running.wait(START_S)


def _wait_for(port: int, running: "subprocess.Popen[bytes]") -> None:
    for _ in range(START_S * 50):
        assert running.poll() is None, "pgbouncer ended"
        try:
            psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", connect_timeout=2).close()
        except psycopg.OperationalError:
            threading.Event().wait(0.02)
        else:
            return
    raise AssertionError("pgbouncer does not answer")


@pytest.fixture(scope="module")
def direct(server: PostgresServer) -> str:
    return server.create_database()


@pytest.fixture(scope="module")
def url(pooler: int, direct: str) -> str:
    through = with_database(f"postgresql://postgres@127.0.0.1:{pooler}/x", direct.rpartition("/")[2])
    return f"{through}?pooler=transaction&schema=ledger"


@pytest.fixture(scope="module")
def harness(url: str, direct: str) -> Iterator[Harness]:
    store = PostgresStore(url)
    assert store.open(create=True)
    store.close()

    with closing(Emptied(f"{direct}?options=-csearch_path%3Dledger")) as database:

        def make(clock: Callable[[], float]) -> PostgresStore:
            database.empty()  # the next check begins with its own clock
            return PostgresStore(url, clock)

        yield Harness(make, lambda _, clock: PostgresStore(url, clock))


SOME = [name for name in CHECKS if name.startswith(("racing.", "storing."))]


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("colour", [COLOURS[0], *(pytest.param(one, marks=pytest.mark.rest) for one in COLOURS[1:])])
def test_a_store_conforms_behind_a_pooler(harness: Harness, colour: Colour, name: str) -> None:
    check_store(name, harness.make, second=harness.second, colour=colour)


def test_more_callers_than_sessions_share_them(harness: Harness, url: str) -> None:
    ledger = Ledger(harness.make(lambda: 5.0))
    runs = [ledger.run(f"order-{n}") for n in range(4 * SESSIONS)]

    async def all_at_once() -> None:
        await asyncio.gather(
            *(ledger.store.perform_async(ledger.admit_op(run, f"tool-{n}")) for run in runs for n in range(5))
        )

    asyncio.run(all_at_once())
    threads = [threading.Thread(target=ledger.do, args=(run, "last")) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.calls()) == 6 * len(runs)
    audit(ledger)
    ledger.store.close()


def test_waiting_for_a_lock_is_bounded_without_a_session(harness: Harness, url: str, direct: str) -> None:
    harness.make(lambda: 5.0)
    store = PostgresStore(url, lambda: 5.0, lock_wait_s=0.1)
    ledger = Ledger(store)
    run = ledger.run()
    with locked(f"{direct}?options=-csearch_path%3Dledger", run.uid):
        with pytest.raises(LedgerUnavailable) as error:
            ledger.admit(run)
    assert "locked by another transaction" in str(error.value)
    assert ledger.admit(run).verdict == "start"
    store.close()


def test_what_was_undone_is_begun_again_behind_a_pooler(harness: Harness, direct: str) -> None:
    ledger = Ledger(harness.make(lambda: 5.0))
    run = ledger.run()
    own = f"{direct}?options=-csearch_path%3Dledger"
    fails(own, "40001", times=2)
    try:
        assert ledger.admit(run).verdict == "start"
    finally:
        works_again(own)
    ledger.store.close()
