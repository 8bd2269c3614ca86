"""The kinds of stores under test, and how each gets a new ledger for every check."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from amends.ledger.store import Store
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance import COLOURS
from tests.stores.emptied import Emptied

NEW_LEDGER = "opening.a_new_ledger_says_that_it_is_new_and_is_empty"

SERVERS = {
    "postgresql": ("amends.stores.postgres.store", "PostgresStore"),
    "mysql": ("amends.stores.mysql.store", "MysqlStore"),
}
STORES = ("memory", "sqlite", *(kind for kind, (module, _) in SERVERS.items() if find_spec(module)))
REST = pytest.mark.rest


def in_share(kind: str, name: str, colour: str) -> bool:
    """Return whether this is the server and the colour in which ``make test`` makes this check, always the same."""
    dice = crc32(name.encode())
    servers = [one for one in STORES if one in SERVERS]
    return COLOURS[dice % 2] == colour and (kind not in SERVERS or servers[dice // 2 % len(servers)] == kind)


@dataclass(frozen=True)
class Harness:
    """What ``check_store`` needs to know of one kind of store."""

    make: Callable[[Callable[[], float]], Any]
    second: Callable[[Any, Callable[[], float]], Store]
    kept: Callable[[Callable[[], float]], Any] | None = None
    """Like ``make``, but returns a store that stays connected; for the blocking colour only."""
    close: Callable[[], None] = lambda: None
    url: str = ""
    """Of the database, if it is on a server."""


class Kept:
    """A store that stays connected from check to check: to connect and to prepare statements takes as long as a check."""

    def __init__(self, make: Callable[[Callable[[], float]], Store]) -> None:
        self.store = make(lambda: self.clock())
        self.url = self.store.url
        self.clock: Callable[[], float] = lambda: 0.0

    def open(self, *, create: bool) -> bool:
        self.store.open(create=create)
        return False

    def perform(self, op: Any) -> Any:
        return self.store.perform(op)

    async def perform_async(self, op: Any) -> Any:
        return await self.store.perform_async(op)

    def close(self) -> None:
        """Stay connected; ``Harness.close`` closes the store itself."""


def in_memory() -> Harness:
    return Harness(MemoryStore, lambda store, _: store)


def in_file(path: Path) -> Harness:
    def make(clock: Callable[[], float]) -> Store:
        return SqliteStore(path, "NORMAL", clock)

    return Harness(make, lambda _, clock: make(clock))


def on_server(kind: str, database: Emptied) -> Harness:
    module, name = SERVERS[kind]
    store: Callable[..., Store] = getattr(import_module(module), name)

    def make(clock: Callable[[], float]) -> Store:
        database.empty()
        return store(database.url, clock=clock)

    made: list[Kept] = []

    def kept(clock: Callable[[], float]) -> Kept:
        if not made:
            made.append(Kept(lambda time: store(database.url, clock=time)))
        database.empty()
        made[0].clock = clock
        forget = getattr(getattr(made[0].store, "_plain", None), "forget", None)
        if forget is not None:  # what it remembers of runs that were deleted
            forget()
        return made[0]

    def close() -> None:
        for one in made:
            one.store.close()

    return Harness(make, lambda _, clock: store(database.url, clock=clock), kept, close, database.url)
