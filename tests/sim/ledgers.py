"""The ledgers that schedules are played on: the memory store, and SQLite with its own SQL, plain statements and batches."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from amends.ledger.dispatch import READS
from amends.ledger.operations import StoreOp
from amends.ledger.rows import (
    APPROVALS,
    BUDGETS,
    CHECKPOINTS,
    DIRECTIVES,
    LOCKS,
    RUN_COLUMNS,
    WAITS,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    DirectiveRow,
    EventRow,
    LockRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.stores.calls import join
from amends.stores.memory import MemoryStore
from amends.stores.sql import _event as event_of
from amends.stores.sql import folded_events
from amends.stores.sqlite.group_commit import Pending
from amends.stores.sqlite.store import STATEMENTS, SqliteStore

LEDGERS = ("memory", "sqlite")
_numbers = count()
_kind = "memory"
_open: list[SqliteLedger] = []


def play_on(kind: str) -> None:
    """Play every schedule of this process on this kind of ledger from now on."""
    global _kind
    assert kind in LEDGERS, kind
    _kind = kind


@contextmanager
def played_on(kind: str) -> Iterator[None]:
    """Play every schedule of this block on this kind of ledger."""
    before = _kind
    play_on(kind)
    try:
        yield
    finally:
        play_on(before)
        close_ledgers()


def make_ledger(clock: Callable[[], float]) -> Any:
    """Return a new, empty ledger of the kind that is played on; ``clock`` is its time.

    It closes the one before: schedules are played one after another, and a ledger is read until the next begins.
    """
    if _kind == "memory":
        return MemoryStore(clock)
    close_ledgers()
    _open.append(SqliteLedger(clock))
    return _open[-1]


def close_ledgers() -> None:
    """Close the ledger of the newest schedule, if it has a file."""
    while _open:
        _open.pop().close()


class SqliteLedger:
    """One file, a real ``SqliteStore`` for each process, and its rows as a ``MemoryStore`` has them, for the checkers.

    Rows are read over a connection of their own, so only what was committed is seen. What a store remembers of a chain
    is known only in its own process: a rival's transaction must be noticed by the statements alone.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._path = _folder() / f"{next(_numbers)}.db"
        shutil.copyfile(_template(), self._path)
        self._stores: dict[str, OneStore] = {}
        self._rows = sqlite3.connect(self._path, isolation_level=None)
        self._version = -1
        self._read: dict[str, Any] = {}
        self._order: dict[tuple[str, int], None] = {}
        self.url = f"sqlite:///{self._path}"

    def know(self, specs: Iterable[Any]) -> None:
        """Have these tools in the ledger, as if they had been called before: the first call of a tool is never plain."""
        known = [(s.name, s.version, s.kind, int(s.declared_key), int(s.compensate is not None)) for s in specs]
        insert = "insert into amends_tool (name, version, kind, scope, declared, undoable, at_commit)"
        with sqlite3.connect(self._path) as connection:
            connection.executemany(f"{insert} values (?, ?, ?, 'run', ?, ?, 0) on conflict do nothing", known)
        connection.close()

    def of(self, owner: str) -> OneStore:
        """Return the store of a process."""
        store = self._stores.get(owner)
        if store is None:
            store = self._stores[owner] = OneStore(self._path, self._clock, self._look)
        return store

    def perform(self, op: StoreOp[Any]) -> Any:
        """Carry out one operation of nobody."""
        return self.of("").perform(op)

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        """Carry out one operation; nothing here waits."""
        return self.perform(op)

    def open(self, *, create: bool) -> bool:
        """Return whether the ledger is new."""
        return not self.events

    def close(self) -> None:
        """Close all connections and remove the file."""
        self._rows.close()
        for store in self._stores.values():
            store.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    # ---- Rows, as the memory store has them

    @property
    def runs(self) -> dict[str, RunRow]:
        return self._table("amends_run", RUN_COLUMNS, RunRow, "no", lambda run: run.uid)

    @property
    def calls(self) -> dict[str, CallRow]:
        read = self._current()
        if "calls" not in read:
            found = self._rows.execute(f"{STATEMENTS.calls.select} order by c.root, c.n, c.no").fetchall()
            read["calls"] = {row.id: row for row, _ in map(join, found)}
        return read["calls"]

    @property
    def locks(self) -> dict[tuple[str, str], LockRow]:
        return self._table("amends_lock", LOCKS.columns, LockRow, "rowid", lambda lock: (lock.tenant, lock.name))

    @property
    def waits(self) -> dict[tuple[str, str], WaitRow]:
        return self._table("amends_wait", WAITS.columns, WaitRow, "rowid", lambda wait: (wait.root, wait.name))

    @property
    def slices(self) -> dict[str, SliceRow]:
        return self._table("amends_budget", BUDGETS.columns, SliceRow, "rowid", lambda row: row.name)

    @property
    def checkpoints(self) -> list[CheckpointRow]:
        found = self._table("amends_checkpoint", CHECKPOINTS.columns, CheckpointRow, "n", lambda row: row.n)
        return list(found.values())

    @property
    def sealed(self) -> dict[str, int]:
        marked = "select uid, sealed from amends_run where sealed > 0"
        for table in ("amends_delegation", "amends_directive"):
            marked += f" union all select id, sealed from {table} where sealed > 0"
        return dict(self._rows.execute(marked))

    @property
    def directives(self) -> dict[str, DirectiveRow]:
        return self._table("amends_directive", DIRECTIVES.columns, DirectiveRow, "rowid", lambda row: row.id)

    @property
    def approvals(self) -> dict[str, ApprovalRow]:
        return self._table("amends_approval", APPROVALS.columns, ApprovalRow, "no", lambda row: row.id)

    @property
    def events(self) -> list[EventRow]:
        """Every event, as rows and folded, in the order in which they were seen: within a tree that of their numbers.

        They are looked at after every operation, so this is the order of writing. An event that is no longer there is
        left out, and one that is there twice is there twice: a checker sees it.
        """
        read = self._current()
        if "events" not in read:
            found = [event_of(values) for values in self._rows.execute(_EVENTS)]
            found += folded_events(self._rows.execute(_FOLDED))
            found.sort(key=lambda event: (event.root, event.n))
            self._order.update(dict.fromkeys((event.root, event.n) for event in found))
            places = {place: index for index, place in enumerate(self._order)}
            found.sort(key=lambda event: places[event.root, event.n])
            read["events"] = found
        return read["events"]

    def _look(self) -> None:
        """Note the order of the events so far."""
        _ = self.events

    def _table(
        self, name: str, columns: Sequence[str], kind: Callable[..., Any], order: str, key: Callable[[Any], Any]
    ) -> Any:
        read = self._current()
        if name not in read:
            read[name] = {key(row): row for row in self._select(name, columns, kind, f"true order by {order}")}
        return read[name]

    def _select(self, name: str, columns: Sequence[str], kind: Callable[..., Any], where: str) -> list[Any]:
        shown = ", ".join(f'"{column}"' for column in columns)
        return [kind(*row) for row in self._rows.execute(f"select {shown} from {name} where {where}")]

    def _current(self) -> dict[str, Any]:
        """Return what was read since the last commit of anybody."""
        [(version,)] = self._rows.execute("pragma data_version")
        if version != self._version:
            self._version, self._read = version, {}
        return self._read


_EVENTS = STATEMENTS.events.newest[False].partition(" order by ")[0]
_FOLDED = STATEMENTS.events.folded_since[False, ""].partition(" where ")[0]


class OneStore:
    """The store of one process."""

    def __init__(self, path: Path, clock: Callable[[], float], after: Callable[[], None]) -> None:
        self._store, self._after = SqliteStore(path, "NORMAL", clock), after
        self._store.open(create=False)

    def perform(self, op: StoreOp[Any]) -> Any:
        """Carry out one operation."""
        try:
            return self._store.perform(op)
        finally:
            self._after()

    def fail(self, op: StoreOp[Any]) -> None:
        """Carry out one operation in a batch whose commit fails, so that nothing of it is written."""
        if type(op) in READS:
            return
        writer = self._store._ready_writer()
        writer.raw.set_authorizer(_no_commit)
        try:
            self._store._flush([Pending(op)], True)
        finally:
            if self._store._writer is not None:
                self._store._writer.raw.set_authorizer(None)

    def close(self) -> None:
        """Close the connections."""
        self._store.close()


def _no_commit(action: int, first: str | None, *_rest: object) -> int:
    is_commit = action == sqlite3.SQLITE_TRANSACTION and first == "COMMIT"
    return sqlite3.SQLITE_DENY if is_commit else sqlite3.SQLITE_OK


@cache
def _folder() -> Path:
    """Return a folder of this process, in memory if the system has such a place: a schedule commits a hundred times."""
    shared = Path("/dev/shm")
    made = tempfile.mkdtemp(prefix="amends-sim-", dir=shared if shared.is_dir() else None)
    Finalize(None, _clean_up, (made,), exitpriority=1)  # not atexit: the processes of a pool do not run that
    return Path(made)


def _clean_up(folder: str) -> None:
    close_ledgers()
    shutil.rmtree(folder, ignore_errors=True)


@cache
def _template() -> Path:
    """Return a new ledger to copy: applying the migrations takes longer than most schedules."""
    path = _folder() / "template.db"
    store = SqliteStore(path, "NORMAL", lambda: 1_600_000_000.0)
    store.open(create=True)
    store.close()
    return path
