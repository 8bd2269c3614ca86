"""One file, many processes and forks."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.stores.many import child

HAMMER = """
    import sys
    from pathlib import Path
    from amends.stores.sqlite.store import SqliteStore
    from amends.testing.conformance.ledger import Clock, Ledger

    name, path = sys.argv[1], Path(sys.argv[2])
    store = SqliteStore(path, "NORMAL", Clock())
    ledger = Ledger(store, made=10_000 * int(name))
    run = ledger.run(f"run {name}", owner=name)
    shared = 0
    for number in range(60):
        ledger.do(run, f"tool {number}")
        shared += ledger.admit(run, "once", key=f"shared {number}", scope="ledger").verdict == "start"
    print(shared)
    store.close()
"""


def test_processes_that_share_a_file_start_each_shared_key_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with ThreadPoolExecutor(3) as pool:
        started = [int(out) for out in pool.map(lambda name: child(HAMMER, name, path), (1, 2, 3))]
    assert sum(started) == 60
    store = SqliteStore(path, "NORMAL")
    ledger = Ledger(store)
    assert len(ledger.calls()) == 3 * 60 + 60
    audit(ledger)
    store.close()


FORKS = """
    import os, sys, threading
    from pathlib import Path
    from amends.stores.sqlite.store import SqliteStore
    from amends.testing.conformance.ledger import Clock, Ledger, audit

    path = Path(sys.argv[1])
    store = SqliteStore(path, "NORMAL", Clock())
    ledger = Ledger(store)
    run = ledger.run("parent")
    ledger.runs()
    stop = threading.Event()

    def hammer():
        mine, number = Ledger(store, made=50_000), 0
        while not stop.is_set():
            number += 1
            mine.do(run, f"tool {number}")
            mine.read(run)

    thread = threading.Thread(target=hammer)
    thread.start()
    for name in range(1, 9):
        pid = os.fork()
        if pid == 0:
            mine = Ledger(store, made=1000 * name)
            own = mine.run(f"child {name}")
            for number in range(5):
                mine.do(own, f"tool {number}")
            assert len(mine(__import__("amends.ledger.operations").ledger.operations.ReadRun("", uid=own.uid)).calls) == 5
            store.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    thread.join()
    audit(ledger)
    print(len(ledger.runs()))
    store.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_forked_children_write_beside_a_parent_that_writes(tmp_path: Path) -> None:
    assert child(FORKS, tmp_path / "ledger.db").strip() == "9"
    raw = sqlite3.connect(tmp_path / "ledger.db")
    assert raw.execute("pragma integrity_check").fetchone() == ("ok",)
    raw.close()
