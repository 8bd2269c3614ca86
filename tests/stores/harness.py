"""The stores that prove themselves, and how each gets a new ledger for every check."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amends.ledger.operations import Store
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore
from tests.stores.emptied import Emptied

NEW_LEDGER = "opening.a_new_ledger_says_that_it_is_new_and_is_empty"

SERVERS = {
    "postgresql": ("amends.stores.postgres.store", "PostgresStore"),
    "mysql": ("amends.stores.mysql.store", "MysqlStore"),
}
STORES = ("memory", "sqlite", *(kind for kind, (module, _) in SERVERS.items() if find_spec(module)))


@dataclass(frozen=True)
class Harness:
    """What ``check_store`` needs to know of one kind of store."""

    make: Callable[[Callable[[], float]], Any]
    second: Callable[[Any, Callable[[], float]], Store]


def in_memory() -> Harness:
    return Harness(MemoryStore, lambda store, _: store)


def in_file(path: Path) -> Harness:
    return Harness(
        lambda clock: SqliteStore(path, "NORMAL", clock), lambda _, clock: SqliteStore(path, "NORMAL", clock)
    )


def on_server(kind: str, database: Emptied) -> Harness:
    module, name = SERVERS[kind]
    store: Callable[..., Store] = getattr(import_module(module), name)

    def make(clock: Callable[[], float]) -> Store:
        database.empty()
        return store(database.url, clock=clock)

    return Harness(make, lambda _, clock: store(database.url, clock=clock))
