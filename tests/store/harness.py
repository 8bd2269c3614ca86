"""The stores that prove themselves, and how each gets a new ledger for every check."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from amends.ledger import Store
from amends.store.memory import MemoryStore
from amends.store.sqlite import SqliteStore

NEW_LEDGER = "opening.a_new_ledger_says_that_it_is_new_and_is_empty"

SERVERS = {"postgresql": "amends.store.postgres", "mysql": "amends.store.mysql"}
STORES = ("memory", "sqlite", *(kind for kind, module in SERVERS.items() if find_spec(module)))


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


def on_server(url: str, store: Callable[..., Store], empty: Callable[[], None]) -> Harness:
    """One database for many checks: making one takes longer than most checks do."""

    def make(clock: Callable[[], float]) -> Store:
        empty()
        return store(url, clock=clock)

    return Harness(make, lambda _, clock: store(url, clock=clock))
