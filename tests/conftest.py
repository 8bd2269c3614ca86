"""Fixtures and hooks for every test."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pydantic  # noqa: F401 (amends imports it at a tool's first call: no test's deadline should pay for that)
import pytest

from tests.scratch import scratch_folder

# Before anything imports them: a failed check of a conformance suite shows the values.
pytest.register_assert_rewrite("amends.testing.conformance", "tests.adapters.conformance", "tests.ledger.rules")

pytest_plugins = ["tests.servers.fixtures", "tests.stores.fixtures"]


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive() -> None:
    """Restore SIGINT: a suite that a shell started in the background ignores it, and some tests test interrupts."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the SQLite ledgers that a test leaves open: newer Pythons count a forgotten connection as a fault."""
    if request.path.parent.name == "stores":  # they test closing itself
        yield
        return
    from amends.stores.sqlite.store import SqliteStore

    made: list[SqliteStore] = []
    begin = SqliteStore.__init__

    def remember(store: SqliteStore, *args: Any, **options: Any) -> None:
        made.append(store)
        begin(store, *args, **options)

    monkeypatch.setattr(SqliteStore, "__init__", remember)
    yield
    for store in made:
        if hasattr(store, "_pool"):  # made to its end
            store.close()


def pytest_configure() -> None:
    """Put ``tmp_path`` in memory where there is room; pytest asks for the place later, and tells its workers."""
    if (folder := scratch_folder()) is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))


def pytest_collection_finish() -> None:
    """Exclude the imported frameworks and all collected tests from every later garbage collection."""
    gc.collect()
    gc.freeze()
