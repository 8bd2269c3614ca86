"""Wakeups reach every runtime of a store, and every fork."""

from __future__ import annotations

import os
import queue
import threading
from typing import Any

from amends.drivers.wakeup import Wakeup
from amends.ledger import operations as ops
from amends.stores.memory import MemoryStore
from amends.testing.conformance.ledger import Ledger


class Telling(MemoryStore):
    """Remembers whom it shall tell."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: list[Any] = []

    def watch(self, ring: Any) -> bool:
        self.rings.append(ring)
        return True


def test_a_store_is_asked_to_tell_again_in_a_fork() -> None:
    store = Telling()
    wakeup = Wakeup(store)
    wakeup.watch("one")
    assert store.rings == [wakeup.ring]
    child = os.fork()
    if not child:
        store.rings.clear()  # as a store that starts with nothing of its parent's
        wakeup.watch("two")
        os._exit(0 if store.rings == [wakeup.ring] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_two_runtimes_of_one_store_are_both_rung(postgres_url: str) -> None:
    from amends.stores.postgres.store import PostgresStore

    store, other = PostgresStore(postgres_url), PostgresStore(postgres_url)
    store.open(create=True)
    one: queue.Queue[str] = queue.Queue()
    two: queue.Queue[str] = queue.Queue()
    try:
        assert store.watch(one.put)
        assert store.watch(two.put)
        assert store.watch(two.put), "asked twice, told once"
        assert one.get(timeout=20) == ""
        ledger = Ledger(other)
        run = ledger.run()
        ledger(ops.ReleaseLease(run.uid, "a", 1, None))
        assert one.get(timeout=20) == run.uid
        heard: list[str] = []
        while not heard or heard[-1] != run.uid:
            heard.append(two.get(timeout=20))
        assert two.empty()
        assert [thread.name for thread in threading.enumerate()].count("amends-watch") == 1
    finally:
        store.close()
        other.close()
