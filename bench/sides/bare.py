"""The statements of amends on SQLite, carried out by a loop that does nothing else, and its queues with nothing to write.

For each measurement amends makes the calls on a ledger of its own, and what its writer executes is recorded. Then the same
statements, with the same values, are executed on a copy of the ledger as it was before, and only that is timed. So the
figure is what SQLite takes for them, with a binding and a commit for each: no call of amends can take less.

The queues are those of 64 callers: everybody asks twice for something that only takes as long as a batch of the store does. So
the figure is what it takes to queue, to wait, to be woken and to go on.

The engine after flushes is calls on the ledger in memory, where a page of a file is written and flushed before each operation, and
that time is not counted. So the figure is what a flush leaves of the speed of the same code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import amends
from amends import AsyncRuntime, Runtime
from amends.stores.batches import Batches
from amends.stores.sqlite.connection import connect, fill_log
from amends.stores.sqlite.group_commit import GroupCommit, Pending
from bench.sides.ours import apay, pay, ship, url_of
from bench.sides.timing import (
    CALLERS,
    Figures,
    Work,
    args_of,
    asked,
    erased,
    fresh,
    many,
    many_async,
    plain,
    plain_async,
    serve,
)

RUN_CALLS: Final = 100
WARM: Final = 10
"""So many calls or sagas come before those that are timed."""
CALLS_MAX, SAGAS_MAX, ROUNDS_MAX = 2_000, 60, 10
"""Calls, sagas, and calls of each of the 64 tasks in one measurement: the log is not copied into the file meanwhile, which a
thread does for amends."""

PAUSE_S: Final = {"NORMAL": 0.0, "FULL": 0.0001}
"""How long a batch takes in the queues of SQLite: it is flushed, or not."""
SERVER_PAUSE_S: Final = 0.0003
"""The same for a server: about what PostgreSQL takes for a batch of 32 steps."""

PAGE: Final = 4_096
PAGES: Final = 1_000

Statement = tuple[str, Any]


class Recorded(sqlite3.Connection):
    """A connection whose statements are recorded while ``tape`` is a list."""

    tape: list[Statement | bool] | None = None
    writer: Recorded | None = None
    """The connection that writes."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """Return a cursor that records."""
        return super().cursor(RecordedCursor)


class RecordedCursor(sqlite3.Cursor):
    """A cursor of such a connection."""

    def execute(self, sql: str, params: Any = ()) -> Any:
        """Carry out and record a statement. What is said to the connection, and what others read, is not recorded."""
        tape = Recorded.tape
        if tape is not None and self.connection is Recorded.writer and not sql.startswith("pragma"):
            tape.append((sql, params))
        return super().execute(sql, params)


def recorded_connect(database: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
    """Connect as ``sqlite3.connect`` does, and record."""
    return _connect(database, *args, factory=Recorded, **kwargs)


_connect: Final = sqlite3.connect


class Bare:
    """The works, on one ledger and its copies."""

    def __init__(self, place: str, synchronous: Literal["NORMAL", "FULL"]) -> None:
        self.place, self.synchronous = place, synchronous
        self.copy = f"{place}-copy"

    def works(self) -> dict[str, Work]:
        """Return the works by name."""
        return {
            "fresh": lambda n, _: self._timed(self._fresh, min(n, CALLS_MAX)),
            "saga": lambda n, _: self._timed(self._sagas, min(n, SAGAS_MAX)),
            "many_async": lambda n, _: self._timed_async(max(1, min(n // CALLERS, ROUNDS_MAX))),
            "queue": partial(queued_threads, PAUSE_S[self.synchronous]),
            "queue_async": partial(queued_tasks, PAUSE_S[self.synchronous]),
            "engine_flushed": partial(after_flushes, Path(f"{self.place}-flushed")),
        }

    # ---- What is recorded

    def _fresh(self, rt: Runtime, n: int) -> None:
        for _ in range(0, n, RUN_CALLS):
            with rt.run(fresh("fresh")):
                _mark(timed=True)
                for _ in range(min(n, RUN_CALLS)):
                    pay(**args_of(fresh()))
                _mark(timed=False)

    def _sagas(self, rt: Runtime, n: int) -> None:
        _mark(timed=True)
        for _ in range(n):
            with contextlib.suppress(ValueError), rt.run(fresh("saga")):
                for number in range(3):
                    pay(**args_of(f"o-{number}"))
                ship(**args_of("o-3"))
        _mark(timed=False)

    def _url(self) -> str:
        erased(self.place)
        Path(f"{self.place}.anchor").unlink(missing_ok=True)
        return url_of(f"sqlite-{self.synchronous.lower()}", self.place)

    def _timed(self, act: Callable[[Runtime, int], None], n: int) -> Figures:
        """Return the time of the statements of ``act``, after some that prepare them and read the file."""
        with _recording(), Runtime(self._url(), tools=[pay, ship]) as rt:
            self._fresh(rt, RUN_CALLS)
            self._keep_copy()
            Recorded.tape = []
            act(rt, WARM)
            Recorded.tape = [one for one in Recorded.tape if not isinstance(one, bool)]
            act(rt, n)
            tape, Recorded.tape = Recorded.tape, None
        return self._again(tape, n)

    def _keep_copy(self) -> None:
        with (
            contextlib.closing(_connect(self.place)) as source,
            contextlib.closing(_connect(erased(self.copy))) as target,
        ):
            source.backup(target)

    async def _timed_async(self, rounds: int) -> Figures:
        """Do the same with 64 tasks."""
        with _recording():
            async with AsyncRuntime(self._url(), tools=[apay]) as rt:
                runs = [await rt.open(fresh("many")) for _ in range(CALLERS)]

                async def loop(run: Any, count: int) -> None:
                    for _ in range(count):
                        await run.call(apay, **args_of(fresh()))

                await asyncio.gather(*[asyncio.create_task(loop(run, 1)) for run in runs])
                self._keep_copy()
                Recorded.tape = []
                await asyncio.gather(*[asyncio.create_task(loop(run, 1)) for run in runs])
                _mark(timed=True)
                await asyncio.gather(*[asyncio.create_task(loop(run, rounds)) for run in runs])
                _mark(timed=False)
                tape, Recorded.tape = Recorded.tape, None
                for run in runs:
                    await run.commit()
        return self._again(tape, rounds * CALLERS)

    # ---- And carried out again

    def _again(self, tape: Sequence[Statement | bool], n: int) -> Figures:
        path = Path(self.copy)
        seconds, began = 0.0, 0.0
        with contextlib.closing(connect(path, create=False, synchronous=self.synchronous, wait_s=1.0)) as con:
            con.execute("pragma journal_mode = wal")
            fill_log(con, path)
            cursor = con.cursor()
            for one in tape:
                if isinstance(one, bool):
                    if one:
                        began = time.perf_counter()
                    else:
                        seconds += time.perf_counter() - began
                    continue
                cursor.execute(*one)
                if cursor.description is not None:
                    cursor.fetchall()
            calls = _calls(con)
        with contextlib.closing(_connect(self.place, isolation_level=None)) as con:
            assert calls == _calls(con), "the statements did to the copy what they had done to the ledger"
        return {"seconds": seconds, "count": n}


def _calls(con: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """Return how many calls there are in each state, with all that is in their hashes."""
    sql = "select state, count(*), sum(n), sum(settled_n), sum(undone_n) from amends_call group by state order by state"
    return con.execute(sql).fetchall()


def _mark(*, timed: bool) -> None:
    if Recorded.tape is not None:
        Recorded.tape.append(timed)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Let amends connect so that its statements can be recorded."""

    def connected(database: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        made = recorded_connect(database, *args, **kwargs)
        if Recorded.writer is None:  # the first one writes
            Recorded.writer = made  # type: ignore[assignment]
        return made

    Recorded.writer = None
    sqlite3.connect = connected  # type: ignore[assignment]
    try:
        yield
    finally:
        sqlite3.connect = _connect
        Recorded.tape = Recorded.writer = None


# ---- Queues


class Nothing:
    """An operation that takes no more than the pause of its batch."""

    repeated = False


def _group_commit(pause_s: float) -> GroupCommit:
    def flush(batch: list[Pending], may_wait: bool) -> None:
        commits.join(batch)
        for pending in batch:
            pending.answer = True
        time.sleep(pause_s)

    def alone(_: object) -> bool:
        time.sleep(pause_s)
        return True

    def no_threads() -> Any:
        raise AssertionError("everything is written where it was asked for")

    commits = GroupCommit(flush, alone, no_threads, lambda _: True)
    return commits


def queued_threads(pause_s: float, n: int, limit_s: float) -> Figures:
    """Let 64 threads ask twice for each call."""
    commits, op = _group_commit(pause_s), Nothing()

    def call() -> None:
        commits.perform(op)  # type: ignore[arg-type]  # it is only handed on
        commits.perform(op)  # type: ignore[arg-type]

    return many(lambda: plain(call), n, limit_s)


async def queued_tasks(pause_s: float, n: int, limit_s: float) -> Figures:
    """Do the same with 64 tasks, which are written on their event loop."""
    commits, op = _group_commit(pause_s), Nothing()

    async def call() -> None:
        await commits.perform_async(op)  # type: ignore[arg-type]
        await commits.perform_async(op)  # type: ignore[arg-type]

    return await many_async(lambda: plain_async(call), n, limit_s)


def queued_at_server(pause_s: float, n: int, limit_s: float) -> Figures:
    """Let 64 threads ask twice for each call as they do on a server, which takes ``pause_s`` for a batch."""

    def together(ops: Sequence[Any]) -> Sequence[Any]:
        time.sleep(pause_s)
        return [True] * len(ops)

    batches = Batches(together)

    @contextlib.contextmanager
    def caller() -> Iterator[Callable[[], object]]:
        root = fresh("run")

        def call() -> None:
            batches.perform(Nothing(), root, lambda op: together([op])[0])
            batches.perform(Nothing(), root, lambda op: together([op])[0])

        yield call

    return many(caller, n, limit_s)


# ---- The engine after flushes


class Flushing:
    """A store that writes a page of a file and flushes it before each operation."""

    def __init__(self, store: Any, path: Path) -> None:
        self.store = store
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self.file, bytes(PAGE * PAGES), 0)  # at its full size: a file that grows takes longer
        os.fsync(self.file)
        self.page = 0
        self.flushed_s = 0.0

    def perform(self, op: Any) -> Any:
        """Flush, and carry out the operation."""
        began = time.perf_counter()
        self.page = (self.page + 1) % PAGES
        os.pwrite(self.file, bytes(PAGE), self.page * PAGE)
        os.fdatasync(self.file)
        self.flushed_s += time.perf_counter() - began
        return self.store.perform(op)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def after_flushes(path: Path, n: int, limit_s: float) -> Figures:
    """Make calls on the ledger in memory, with a flush before each operation, whose time is not counted."""
    with Runtime("memory://", tools=[pay]) as rt:
        flushing = Flushing(rt._driver.store, path)
        rt._driver.through(lambda _: flushing)
        seconds, count, end = 0.0, 0, time.perf_counter() + limit_s
        while count < n and time.perf_counter() < end:
            with rt.run(fresh("flushed")):
                flushed_s, began = flushing.flushed_s, time.perf_counter()
                for _ in range(RUN_CALLS):
                    pay(**args_of(fresh()))
                seconds += time.perf_counter() - began - (flushing.flushed_s - flushed_s)
                count += RUN_CALLS
        os.close(flushing.file)
    return {"seconds": seconds, "count": count}


def main() -> None:
    """Serve these works."""
    said = asked()
    logging.getLogger("amends").setLevel(logging.ERROR)
    if said.store.startswith("sqlite"):
        works = Bare(said.place, "NORMAL" if said.store == "sqlite-normal" else "FULL").works()
    else:
        works = {"queue": partial(queued_at_server, SERVER_PAUSE_S)}
    serve(works, version=amends.__version__)


if __name__ == "__main__":
    main()
