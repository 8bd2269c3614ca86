"""``python -m bench.verifying``: measure how long the audit of a large ledger takes, and how much memory.

    python -m bench.verifying                          a million events on SQLite
    python -m bench.verifying --events 100000 --url postgresql://...      on an empty database

The ledger is one real run, copied under other ids with its chain rebuilt: making it by calls would take an hour.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from amends import Runtime
from bench.alone import VERIFIED_CALLS_PER_RUN
from bench.bars import VERIFIED
from bench.fill import fill
from bench.places import BUILD
from bench.sides.ours import pay, url_of

EVENTS: Final = 1_000_000


def main() -> None:
    """Fill a ledger, verify it, print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--url", default="")
    asked = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        place = asked.url or str(Path(folder) / "ledger.db")
        store = store_of(asked.url)
        began = time.perf_counter()
        fill(store, place, asked.events // 2, calls_per_run=VERIFIED_CALLS_PER_RUN)
        print(f"filled in {time.perf_counter() - began:.0f} s")
        with closing(Runtime(url_of(store, place), tools=[pay])) as rt:
            began, cpu, before = time.perf_counter(), time.process_time(), _peak_mb()
            found = rt.verify()
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        rate = found.events / seconds
        print(f"{found}\n{seconds:.1f} s ({cpu:.1f} s of CPU), {rate:,.0f} events a second")
        print(f"memory grew by {_peak_mb() - before:.0f} MB while it looked (it began at {before:.0f} MB)")
        assert found.ok, str(found)
        bar = VERIFIED.bars["sqlite-normal"]
        print("within" if rate >= bar else "under", f"the bar of {bar:,.0f} events a second")


def store_of(url: str) -> str:
    """Return the name of the store that a URL names, as the table has it."""
    scheme = url.partition(":")[0]
    return {"": "sqlite-normal", "postgresql": "postgres", "postgres": "postgres"}.get(scheme, "mariadb")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
