"""Many callers of one file: hold one of them inside its transaction, and count flushes."""

import os
import sqlite3
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from amends.encoding.ids import number_of
from amends.ledger import operations as ops
from amends.ledger.rows import RunRow
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Clock, Ledger

CALLERS = 64


class Gate:
    """A clock that can hold the writing thread inside its transaction."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None

    def __call__(self) -> float:
        self.before()
        return Clock.now

    def once(self, act: Callable[[], object]) -> None:
        def first() -> None:
            self.before = lambda: None
            act()

        self.before = first


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds; fail after a minute."""
    pause = threading.Event()
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never came true")


def in_line(store: SqliteStore, count: int) -> Callable[[], None]:
    """Wait until so many operations queue behind the one that is being written."""
    return lambda: wait_for(lambda: len(store._commits.queue) >= count)


def commits(path: Path) -> int:
    """Return how many transactions are in the log: each ends with a frame that holds the size of the database."""
    log = path.with_name(f"{path.name}-wal").read_bytes()
    [size] = struct.unpack(">I", log[8:12])
    ends = range(32, len(log) - size - 23, 24 + size)
    return sum(struct.unpack(">I", log[place + 4 : place + 8]) != (0,) for place in ends)


def ask_together(store: SqliteStore, gate: Gate, pool: ThreadPoolExecutor, requests: list[Any]) -> list[Future[Any]]:
    """Perform all at once; the first stays inside its transaction until all the others queue."""
    gate.once(in_line(store, len(requests) - 1))
    asked = [pool.submit(store.perform, requests[0])]
    wait_for(lambda: store._commits._leader is not None)
    return asked + [pool.submit(store.perform, request) for request in requests[1:]]


def numbered(ledger: Ledger, run: RunRow, count: int) -> list[ops.AdmitCall]:
    return [ledger.admit_op(run, "charge", key=f"key {number}", expected=False) for number in range(count)]


def stored(path: Path) -> Callable[[str], bool]:
    """Return whether another connection sees this call."""

    def asked(call_id: str) -> bool:
        connection = sqlite3.connect(path)
        found = connection.execute("select 1 from amends_call where no = ?", (number_of(call_id),)).fetchone()
        connection.close()
        return found is not None

    return asked


def child(code: str, *args: object) -> str:
    """Run this in another process and return what it prints."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), *map(str, args)]
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
