"""A migration of a large ledger while programs and workers of the previous version use it.

make test-upgrade                  a million calls on SQLite, PostgreSQL and MariaDB
make test-upgrade ARGS=20000       so many calls
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from amends import Runtime, tool
from bench.fill import fill
from bench.sides.ours import url_of
from tests.fleet.copies import command, next_version
from tests.world import die

CALLERS: Final = 2
BEFORE, AFTER = 20, 20
"""Runs of the callers before the migration begins, and after it has ended."""
VERIFIED_CALLS_MAX: Final = 50_000
WAIT_S_MAX: Final = 300.0
STORES: Final = ("sqlite-normal", "postgres", "mariadb")


@tool(key="order")
def pay(order: str) -> str:
    """Do nothing, under guard."""
    return f"ch_{order}"


@pay.compensate
def refund(result: str) -> None:
    """Do nothing back."""


@dataclass(slots=True)
class Load:
    """Callers of the previous version, each with its own runtime, and a worker."""

    url: str
    runs: int = 0
    longest_s: float = 0.0
    abandoned: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def going(self) -> Iterator[None]:
        """Run it inside the block."""
        stop = threading.Event()
        threads = [threading.Thread(target=self._call, args=(number, stop)) for number in range(CALLERS)]
        with Runtime(self.url, tools=[pay]) as rt, rt.worker(every=0.1):
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                stop.set()
                for thread in threads:
                    thread.join(WAIT_S_MAX)
            wait_for(lambda: all(rt.report(id).state == "rolled_back" for id in self.abandoned))

    def _call(self, number: int, stop: threading.Event) -> None:
        try:
            with Runtime(self.url, tools=[pay]) as rt:
                at = 0
                while not stop.is_set():
                    at += 1
                    began = time.monotonic()
                    with rt.run(f"load-{number}-{at}"):
                        pay(order=f"{number}-{at}")
                    took = time.monotonic() - began
                    if at % 10 == 0:
                        self._abandon(f"left-{number}-{at}")
                    with self._lock:
                        self.runs, self.longest_s = self.runs + 1, max(self.longest_s, took)
        except BaseException as error:
            self.errors.append(error)

    def _abandon(self, id: str) -> None:
        """Leave a run to the worker."""
        with Runtime(self.url, tools=[pay]) as rt:
            run = rt.open(id)
            run.call(pay, order=id)
            die(run)
        self.abandoned.append(id)


def wait_for(is_so: Callable[[], bool]) -> None:
    """Wait for it, and not for ever."""
    until = time.monotonic() + WAIT_S_MAX
    while not is_so():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Figures:
    """How long it took, and what those who went on noticed of it."""

    calls: int
    filled_s: float
    migration_s: float
    runs: int
    abandoned: int
    longest_s: float
    plan: str
    version: int


def migrate_under_load(store: str, place: str, newer: Path, calls: int, *, cwd: Path) -> Figures:
    """Fill the ledger, load it with this version, migrate it by the newer one, and check that all went on."""
    began = time.monotonic()
    fill(store, place, calls)
    filled_s, url = time.monotonic() - began, url_of(store, place)
    with Runtime(url, create=False) as rt:
        before = rt.schema().version
    load = Load(url)
    with load.going():
        wait_for(lambda: load.runs >= BEFORE or bool(load.errors))
        plan = command(newer, "db", "migrate", "--plan", "--url", url, cwd=cwd)
        load.longest_s, began = 0.0, time.monotonic()
        done = command(newer, "db", "migrate", "--url", url, cwd=cwd)
        migration_s, at = time.monotonic() - began, load.runs
        wait_for(lambda: load.runs >= at + AFTER or bool(load.errors))
    if load.errors:
        raise load.errors[0]
    assert done.returncode == 0, done.stderr
    assert plan.returncode == 1, plan.stderr
    with Runtime(url, create=False) as rt:
        after = rt.schema().version
        # All of a small ledger; of a large one what was written around the migration: an audit of a million calls takes long.
        assert rt.verify(*([] if calls <= VERIFIED_CALLS_MAX else ["load-0-1", "load-1-1", *load.abandoned])).ok
    assert after == before + 1
    return Figures(calls, filled_s, migration_s, load.runs, len(load.abandoned), load.longest_s, plan.stdout, after)


def main(calls: int) -> None:
    """Do it on every database that is here."""
    from tests.servers.mariadb import MariadbServer
    from tests.servers.postgres import PostgresServer

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amends-upgrade-")))
        newer = next_version(folder / "next")
        for store in STORES:
            if store.startswith("sqlite"):
                place = str(folder / "ledger.db")
            else:
                server: Any = PostgresServer(tcp=True) if store == "postgres" else MariadbServer(tcp=True)
                place = stack.enter_context(server).create_database()
            found = migrate_under_load(store, place, newer, calls, cwd=folder)
            print(
                f"{store}: {found.calls:,} calls filled in {found.filled_s:.0f} s; migrated in {found.migration_s:.1f} s "
                f"(with the start of the command); {found.runs} runs beside it, {found.abandoned} of others recovered; "
                f"the slowest run took {found.longest_s:.2f} s; 0 failed",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
