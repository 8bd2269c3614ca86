"""The ledgers that schedules are played on: the memory store, and SQLite with its own SQL, quick paths and group commit."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from amends.ledger.operations import StoreOp
from amends.ledger.rows import (
    APPROVAL_COLUMNS,
    CALL_COLUMNS,
    CHECKPOINT_COLUMNS,
    EVENT_COLUMNS,
    LOCK_COLUMNS,
    RUN_COLUMNS,
    SLICE_COLUMNS,
    WAIT_COLUMNS,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    EventRow,
    LockRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore

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
    """A real ``SqliteStore`` whose rows are read as those of a ``MemoryStore``: what checkers and the world look at.

    Rows are read over a connection of their own, so only what was committed is seen.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._path = _folder() / f"{next(_numbers)}.db"
        shutil.copyfile(_template(), self._path)
        self._store = SqliteStore(self._path, "NORMAL", clock)
        self._store.open(create=False)
        self._rows = sqlite3.connect(self._path, isolation_level=None)
        self._version = -1
        self._read: dict[str, Any] = {}
        self._events: list[EventRow] = []
        self.url = self._store.url

    def perform(self, op: StoreOp[Any]) -> Any:
        """Carry out one operation."""
        return self._store.perform(op)

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        """Carry out one operation; nothing here waits."""
        return self._store.perform(op)

    def open(self, *, create: bool) -> bool:
        """Return whether the ledger is new."""
        return not self.events

    def close(self) -> None:
        """Close both connections and remove the file."""
        self._rows.close()
        self._store.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    # ---- Rows, as the memory store has them

    @property
    def runs(self) -> dict[str, RunRow]:
        return self._table("runs", RUN_COLUMNS, RunRow, "place", lambda run: run.uid)

    @property
    def calls(self) -> dict[str, CallRow]:
        return self._table("calls", CALL_COLUMNS, CallRow, "place", lambda call: call.id)

    @property
    def locks(self) -> dict[tuple[str, str], LockRow]:
        return self._table("locks", LOCK_COLUMNS, LockRow, "rowid", lambda lock: (lock.tenant, lock.name))

    @property
    def waits(self) -> dict[tuple[str, str], WaitRow]:
        return self._table("waits", WAIT_COLUMNS, WaitRow, "rowid", lambda wait: (wait.root, wait.name))

    @property
    def slices(self) -> dict[str, SliceRow]:
        return self._table("budgets", SLICE_COLUMNS, SliceRow, "rowid", lambda row: row.name)

    @property
    def checkpoints(self) -> list[CheckpointRow]:
        return list(self._table("checkpoints", CHECKPOINT_COLUMNS, CheckpointRow, "n", lambda row: row.n).values())

    @property
    def sealed(self) -> dict[str, int]:
        marked = "select uid, sealed from runs where sealed > 0 union all select id, sealed from delegations where sealed > 0"
        return dict(self._rows.execute(marked))

    @property
    def approvals(self) -> dict[str, ApprovalRow]:
        return self._table("approvals", APPROVAL_COLUMNS, ApprovalRow, "place", lambda row: row.id)

    @property
    def events(self) -> list[EventRow]:
        """Every event; events are only ever added, so only new ones are read."""
        if "events" not in self._current():
            # No event is ever deleted: places have no gaps here.
            self._events += self._select(
                "events", EVENT_COLUMNS, EventRow, f"place > {len(self._events)} order by place"
            )
            self._read["events"] = self._events
        return self._events

    @property
    def _ids(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for run in self.runs.values():
            found.setdefault((run.tenant, run.id), []).append(run.uid)
        return found

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
