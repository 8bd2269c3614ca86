"""``python -m bench.verifying``: measure how long the audit of a large ledger takes, and how much memory.

    python -m bench.verifying                          a million events on SQLite
    python -m bench.verifying --events 100000 --url postgresql://...      on an empty database

The ledger is one real run, copied under other ids with its chain rebuilt: making it by calls would take an hour.
"""

from __future__ import annotations

import argparse
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from amends import Runtime
from amends.encoding.chain import GENESIS, link
from amends.ledger.events import call_columns_digest, run_columns_digest
from amends.ledger.operations import LoadRecords, ReadRecord, Record
from amends.ledger.rows import CALL_COLUMNS, EVENT_COLUMNS, RUN_COLUMNS, CallRow, EventRow
from amends.ledger.store import Store
from amends.stores import store_for
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore
from bench.places import BUILD
from bench.sides.ours import pay
from bench.sides.timing import args_of

EVENTS: Final = 1_000_000
CALLS: Final = 48
"""Per run: a hundred with its own four events."""
BATCH: Final = 50
SECONDS_MAX: Final = 60.0


def main() -> None:
    """Fill a ledger, verify it, print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--url", default="")
    asked = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        url = asked.url or f"sqlite:///{Path(folder) / 'ledger.db'}?synchronous=normal"
        began = time.perf_counter()
        fill(url, asked.events)
        print(f"filled in {time.perf_counter() - began:.0f} s")
        with closing(Runtime(url, tools=[pay])) as rt:
            began, cpu, before = time.perf_counter(), time.process_time(), _peak_mb()
            found = rt.verify()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        print(f"{found}\n{seconds:.1f} s ({cpu:.1f} s of CPU), {found.events / seconds:,.0f} events a second")
        print(f"memory grew by {_peak_mb() - before:.0f} MB while it looked (it began at {before:.0f} MB)")
        assert found.ok, str(found)
        print("within" if seconds < SECONDS_MAX * asked.events / EVENTS else "over", f"the bar of {SECONDS_MAX:g} s")


def fill(url: str, events: int) -> None:
    """Make this many events in trees of a hundred: native ones in a file, records of another ledger on a server."""
    pattern = _pattern()
    store = store_for(url)
    store.open(create=True)
    with closing(store):
        is_file = isinstance(store, SqliteStore)
        write = _into_file(store.path) if isinstance(store, SqliteStore) else _loaded(store)
        per_run = len(pattern.events)
        for first in range(0, events // per_run, BATCH):
            write([_copy(pattern, number, "" if is_file else "bench") for number in range(first, first + BATCH)])


def _loaded(store: Store) -> Callable[[list[Record]], None]:
    def write(some: list[Record]) -> None:
        uid = f"load-{some[0].root.uid}"
        store.perform(LoadRecords(uid, uid, "", "bench", tuple(some)))

    return write


def _into_file(path: Path) -> Callable[[list[Record]], None]:
    """Insert row by row without the ledger's code, which is many times faster than loading them."""
    columns = {"runs": RUN_COLUMNS, "calls": CALL_COLUMNS, "events": EVENT_COLUMNS}
    file = sqlite3.connect(path)

    def write(some: list[Record]) -> None:
        for table, names in columns.items():
            listed, marks = ", ".join(f'"{name}"' for name in names), ", ".join("?" * len(names))
            rows = (attrgetter(*names)(row) for record in some for row in getattr(record, table))
            file.executemany(f"insert into {table} ({listed}) values ({marks})", rows)
        file.commit()

    return write


def _pattern() -> Record:
    """Write one real run with amends."""
    memory = MemoryStore()
    with closing(Runtime(store=memory, tools=[pay], checkpoint="off")) as rt, rt.run("pattern") as run:
        for number in range(CALLS):
            pay(**args_of(f"order-{number}"))
        run.output = "done"
    [root] = memory.runs
    record = memory.perform(ReadRecord(root))
    assert record is not None, "it was made just now"
    return record


def _copy(pattern: Record, number: int, origin: str) -> Record:
    """Copy the run under other ids, with its chain rebuilt."""
    [run] = pattern.runs
    copied = replace(run, uid=f"{run.uid}-{number}", id=f"{run.id}-{number}", root=f"{run.uid}-{number}", origin=origin)
    bound = {"": (run_columns_digest(run), run_columns_digest(copied))}
    calls: list[CallRow] = []
    for call in pattern.calls:
        key = call.key if origin else f"{call.key}-{number}"  # in one ledger two calls have two ids
        made = replace(
            call,
            id=f"{call.id}-{number}",
            key=key,
            run=copied.uid,
            root=copied.uid,
            run_id=copied.id,
        )
        bound[call.id] = (
            call_columns_digest(call, call.key, call.generation),
            call_columns_digest(made, key, made.generation),
        )
        calls.append(made)
    events: list[EventRow] = []
    prev = GENESIS
    for event in pattern.events:
        of_call = f"{event.call}-{number}" if event.call else ""
        facts = event.facts.replace(*bound[event.call])
        event = replace(event, root=copied.uid, run=copied.uid, run_id=copied.id, call=of_call, facts=facts)
        prev = link(prev, event.n, event.at, event.body)
        events.append(replace(event, hash=prev))
    return Record((copied,), tuple(calls), tuple(events), ())


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
