"""The file of a SQLite ledger: where it may be, opening it, its schema, and what its errors mean."""

from __future__ import annotations

import os
import random
import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from amends.errors import LedgerCorrupt, LedgerError, LedgerMissing, LedgerUnavailable
from amends.model import Schema
from amends.stores.migrations import applicable, check_shape, check_usable, migrations, schema_of
from amends.visible import visible_log

T = TypeVar("T")

log = visible_log("amends")

SQLITE_MIN: Final = (3, 37, 0)
"""For strict tables."""
BUSY_S_MAX: Final = 1.0
"""How long SQLite itself waits for a lock before we check the deadline."""
PAUSE_S_MAX: Final = 0.016
"""The longest pause, on average, between two attempts to get a lock."""
STATEMENTS_MAX: Final = 256
"""Prepared statements kept per connection; there are about 60 shapes."""
UNDECODABLE: Final = "Could not decode to UTF-8"
"""The message of Python's sqlite3 for bytes that are not text; it has no code for that."""
PAGE_BYTES: Final = 2048
"""Every commit writes whole pages to the log: with 4096 a call takes a twentieth longer, with 1024 no less than with 2048."""
WAL_PAGES: Final = {"FULL": 2000, "NORMAL": 8000}
"""The size of the log at which it is copied into the database: 4 MB if each commit is flushed, else 16 MB. Copying flushes the
log and the database, and whoever waits for that waits longer than for anything else. Where each commit is flushed a
longer log gains nothing, and it would have to be filled first."""
WAL_PAGES_MAX: Final = {"FULL": 8000, "NORMAL": 16_000}
"""The size at which whoever commits copies it, if no thread has done that before (``SqliteStore._copy_log``)."""
WAL_BYTES: Final = PAGE_BYTES * WAL_PAGES["FULL"]
"""The size that the log of a new ledger is given."""

# All processes that use the file share the log's index in memory: two hosts share no memory.
NETWORK: Final = frozenset(
    """
    9p afs beegfs ceph cifs coda fuse.glusterfs fuse.rclone fuse.s3fs fuse.sshfs glusterfs gpfs lustre ncpfs nfs nfs4
    ocfs2 smb2 smb3 smbfs
    """.split()  # noqa: SIM905 (a list of words reads better as words)
)


# ---- Opening


def establish(
    path: Path,
    *,
    create: bool,
    synchronous: str,
    clock: Callable[[], float],
    wait_s: float,
    contract: bool = False,
) -> tuple[sqlite3.Connection, bool]:
    """Return a connection for writing to an up-to-date ledger, and whether this call created the ledger.

    Without ``create`` nothing is created, not even in an empty file. ``wait_s``: how long to wait for the file's lock.
    ``contract``: a person asked for all migrations.
    """
    _check_place(path, create=create)
    connection: sqlite3.Connection | None = None
    try:
        connection = connect(path, create=create, synchronous=synchronous, wait_s=wait_s)
        version = _checked_version(connection, path, create=create)
        patiently(path, wait_s, lambda: _use_wal(connection, path))
        made = _migrate(connection, path, version, clock=clock, wait_s=wait_s, contract=contract)
        return connection, made
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise explained(error, path) from error
        raise


def connect(path: Path, *, create: bool, synchronous: str, wait_s: float) -> sqlite3.Connection:
    """Connect in autocommit mode: BEGIN and COMMIT are statements of ours."""
    connection = sqlite3.connect(
        f"{path.as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=STATEMENTS_MAX,
        timeout=min(BUSY_S_MAX, wait_s),
    )
    try:
        connection.execute(f"pragma page_size = {PAGE_BYTES}")  # of a new file; an existing one keeps its size
        connection.execute(f"pragma synchronous = {synchronous}")
        connection.execute(f"pragma wal_autocheckpoint = {WAL_PAGES[synchronous]}")
        if synchronous == "FULL":
            connection.execute("pragma fullfsync = 1")  # macOS: a plain fsync stops at the drive's cache
    except BaseException:
        connection.close()
        raise
    return connection


def fill_log(connection: sqlite3.Connection, path: Path) -> None:
    """Give the log its full size at once, unless it has some: a flush of a file that grows takes twice as long.

    A transaction that is too large for the cache writes its pages to the log, and is rolled back: the file keeps its
    size, and the database does not grow.
    """
    log_path = path.with_name(f"{path.name}-wal")
    try:
        if log_path.stat().st_size >= WAL_BYTES // 4:
            return
    except OSError:
        return
    [(cache,)] = connection.execute("pragma cache_size").fetchall()
    try:
        connection.execute("begin immediate")
        connection.execute("pragma cache_size = 10")
        connection.execute("create table amends_fill (filling blob)")
        connection.execute("insert into amends_fill values (zeroblob(?))", (WAL_BYTES,))
    except sqlite3.OperationalError as error:
        log.debug("the log of %s was not filled: %s", path, error)  # another writer, or no space: it grows by itself
    finally:
        if connection.in_transaction:
            connection.execute("rollback")
        connection.execute(f"pragma cache_size = {cache}")


def scrub(path: Path, *, synchronous: str, wait_s: float) -> None:
    """Rewrite the file without its free pages and bytes, copy its log into it, and cut the log to nothing."""
    try:
        with closing(connect(path, create=False, synchronous=synchronous, wait_s=wait_s)) as connection:
            patiently(path, wait_s, lambda: connection.execute("vacuum"))
            patiently(path, wait_s, lambda: _empty_log(connection))
    except sqlite3.Error as error:
        raise explained(error, path) from error


def _empty_log(connection: sqlite3.Connection) -> None:
    """Cut the log to nothing; raise as for a lock if a reader still needs it."""
    [(is_busy_now, _, _)] = connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    if is_busy_now:
        error = sqlite3.OperationalError("a reader needs the log")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error


def patiently(path: Path, wait_s: float, act: Callable[[], T]) -> T:
    """Call ``act`` as soon as the file's lock allows; give up after ``wait_s``."""
    until = time.monotonic() + wait_s
    pause_s = 0.001
    while True:
        try:
            return act()
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            if time.monotonic() >= until:
                raise locked(path, wait_s) from error
        # Jitter: processes that were refused at the same moment must not retry at the same moment.
        time.sleep(random.uniform(0.5, 1.5) * pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


def _check_place(path: Path, *, create: bool) -> None:
    if sqlite3.sqlite_version_info < SQLITE_MIN:
        needed = ".".join(map(str, SQLITE_MIN))
        raise LedgerUnavailable(
            f"this Python has SQLite {sqlite3.sqlite_version}; the ledger needs {needed} or newer",
            hint="use a newer Python or operating system, or another ledger",
        )
    # os.path and not Path: False for a directory that may not be entered; SQLite explains the rest.
    if not os.path.exists(path):  # noqa: PTH110
        if not create:
            raise _missing(path, "there is no file")
        if not os.path.isdir(path.parent):  # noqa: PTH112
            raise LedgerUnavailable(
                f"cannot create a ledger at {path}: the directory {path.parent} does not exist",
                hint="create the directory",
            )
    elif not os.access(path, os.W_OK):
        raise _unwritable(path, "this user may not write the file")
    kind = network_file_system(path)
    if kind is not None:
        raise LedgerUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite can neither lock nor share memory",
            hint="put the ledger on a local disk of one host",
        )


def _unwritable(path: Path, why: str) -> LedgerUnavailable:
    return LedgerUnavailable(
        f"the ledger at {path} cannot be written: {why}",
        hint="this user needs to write the file and its directory (SQLite keeps its log next to the file)",
    )


def _missing(path: Path, why: str) -> LedgerMissing:
    return LedgerMissing(
        f"no ledger at {path}: {why}, and creating one was not allowed",
        hint="check the path and the working directory; a first start creates the ledger with create=True",
    )


def read_schema(path: Path, *, wait_s: float) -> Schema:
    """Return the schema version of the file; changes nothing."""
    if not os.path.exists(path):  # noqa: PTH110
        return schema_of("sqlite", 0, 0, "")
    try:
        with closing(connect(path, create=False, synchronous="FULL", wait_s=wait_s)) as connection:
            return patiently(path, wait_s, lambda: _current_schema(connection, path))
    except sqlite3.Error as error:
        raise explained(error, path) from error


def _checked_version(connection: sqlite3.Connection, path: Path, *, create: bool) -> int:
    found = _current_schema(connection, path)
    if found.version == 0 and not create:
        raise _missing(path, "the file has none")
    check_usable(found, str(path))
    return found.version


def _current_schema(connection: sqlite3.Connection, path: Path) -> Schema:
    found = _schema(connection, _names(connection))
    if found.version:
        columns: dict[str, set[str]] = {}
        for table, column in connection.execute(COLUMNS):
            columns.setdefault(table, set()).add(column)
        check_shape(found, "sqlite", columns, str(path))
    return found


COLUMNS: Final = (
    "select t.name, c.name from sqlite_master t, pragma_table_xinfo(t.name) c "
    "where t.type = 'table' and t.name glob 'amends_*'"
)


def estimate_rows(path: Path, tables: Collection[str], *, wait_s: float) -> dict[str, int]:
    """Return the highest row number of these tables: rows are never removed, so it is about their count."""
    found: dict[str, int] = {}
    try:
        with closing(connect(path, create=False, synchronous="FULL", wait_s=wait_s)) as connection:
            for table in sorted(set(tables) & _names(connection)):
                source = "_rowid_" if _has_rowid(connection, table) else ""
                sql = f"select max({source}) from {table}" if source else f"select count(*) from {table}"
                found[table] = connection.execute(sql).fetchone()[0] or 0
    except sqlite3.Error as error:
        raise explained(error, path) from error
    return found


def _has_rowid(connection: sqlite3.Connection, table: str) -> bool:
    [(text,)] = connection.execute("select sql from sqlite_master where name = ?", (table,))
    # The number of a call is made from the time, so it says nothing about how many there are.
    return "without rowid" not in text.lower() and table != "amends_call"


def _names(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("select name from sqlite_master")}


def _schema(connection: sqlite3.Connection, names: set[str]) -> Schema:
    if "amends_schema" not in names:
        return schema_of("sqlite", 0, 0, "")
    version, needs, ledger = connection.execute(
        "select max(version), max(needs), max(ledger) from amends_schema"
    ).fetchone()
    return schema_of("sqlite", version or 0, needs or 0, ledger or "")


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    mode = connection.execute("pragma journal_mode = wal").fetchone()[0]
    if mode != "wal":
        raise LedgerUnavailable(
            f"{path}: the file system does not support SQLite's write-ahead log", hint="use a local disk"
        )


def _migrate(
    connection: sqlite3.Connection,
    path: Path,
    version: int,
    *,
    clock: Callable[[], float],
    wait_s: float,
    contract: bool,
) -> bool:
    """Migrate the schema under the write lock; return whether the ledger is new."""
    if not applicable(migrations("sqlite"), version, contract=contract):
        return False  # without the lock: a reader must not wait for a writer
    patiently(path, wait_s, lambda: connection.execute("begin immediate"))
    try:
        schema = _schema(connection, _names(connection))  # another process may have been faster
        found, ledger = schema.version, schema.ledger or secrets.token_hex(8)
        for migration in applicable(migrations("sqlite"), found, contract=contract):
            if found:
                log.info("migrating the ledger at %s to version %d (%s)", path, migration.version, migration.name)
            for statement in migration.statements:
                connection.execute(statement)
            connection.execute(
                "insert into amends_schema values (?, ?, ?, ?)", (migration.version, migration.needs, clock(), ledger)
            )
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise
    return version == 0 and found == 0


# ---- Errors


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection has the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_total(error: sqlite3.Error) -> bool:
    """Return whether the whole transaction is lost, not only one statement of it."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError or _is_closed(error)


def explained(error: sqlite3.Error, path: Path) -> LedgerError:
    """Return the error in the caller's words."""
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return LedgerUnavailable(f"the ledger at {path} is locked", hint=HOLDERS)
        case sqlite3.SQLITE_FULL:
            return LedgerUnavailable(
                f"no space is left for the ledger at {path}; nothing of this was written", hint="make room on the disk"
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return _unwritable(path, str(error))
        case sqlite3.SQLITE_CANTOPEN:
            return LedgerUnavailable(
                f"the ledger at {path} cannot be opened: {error}",
                hint="check that the file exists and may be written",
            )
        case sqlite3.SQLITE_NOTADB:
            return LedgerCorrupt(f"{path} is not a ledger: {error}", hint="check the path; the file was not touched")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_FORMAT | sqlite3.SQLITE_ERROR:
            return LedgerCorrupt(
                f"the ledger at {path} is damaged: {error}",
                hint="stop all workers, keep a copy of the file, and restore the newest backup",
            )
        case sqlite3.SQLITE_IOERR:
            return LedgerUnavailable(f"the disk of the ledger at {path} failed: {error}", hint="see the system's log")
        case _:
            pass
    if _is_closed(error):
        return LedgerUnavailable(f"the ledger at {path} is closed", hint="make a new runtime")
    if UNDECODABLE in str(error):
        return LedgerCorrupt(
            f"the ledger at {path} contains bytes that are not text: {error}",
            hint="amends audit verify says where; keep a copy of the file, and restore the newest backup",
        )
    return LedgerUnavailable(f"the ledger at {path} does not answer: {error}")


def _is_closed(error: sqlite3.Error) -> bool:
    return isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its detail


HOLDERS: Final = (
    "look for a long transaction in another program (a sqlite3 shell, a database browser, a backup), "
    "or a worker that was stopped with SIGSTOP or a debugger"
)


def locked(path: Path, wait_s: float) -> LedgerUnavailable:
    """Return the error for a lock that stayed taken."""
    pids = lock_holders(path)
    who = f" by process {', '.join(map(str, pids))}" if pids else ""
    return LedgerUnavailable(f"the ledger at {path} was locked{who} for more than {wait_s:g} s", hint=HOLDERS)


def lock_holders(path: Path, locks: str | None = None) -> list[int]:
    """Return the processes that hold a write lock on the file or its log's index, where the system tells."""
    files = {inode_of(path), inode_of(path.with_name(f"{path.name}-shm"))} - {0}
    rows = re.findall(r"WRITE\s+(\d+)\s+\w+:\w+:(\d+)\s", _read("/proc/locks") if locks is None else locks)
    return sorted({int(pid) for pid, inode in rows if int(inode) in files} - {0, os.getpid()})


def inode_of(path: str | Path) -> int:
    """Return the inode that the path names now; 0 if it names none."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116 (called before every transaction: a third of the time of Path.stat)
    except OSError:
        return 0


# ---- Network file systems


def network_file_system(path: Path, mounts: str | None = None) -> str | None:
    """Return the kind of network file system that holds ``path``; None if it is local or unknown."""
    where = Path(os.path.realpath(path))
    best, kind = Path("/"), ""
    for line in (_read("/proc/self/mounts") if mounts is None else mounts).splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1]))
        if where.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, fields[2]
    if kind == "9p" and best == Path("/"):
        return None  # a sandbox's own root: there is one kernel behind it, which does share memory
    return kind if kind in NETWORK else None


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
