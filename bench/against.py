"""``python -m bench.against FOLDER``: compare a fresh call of this checkout with that of another one, as ratios.

FOLDER is a checkout of an older commit (``git worktree add FOLDER COMMIT``). The ratio is the cost of the changes since,
measured on one machine in one run, in turn. Each side has its own process and database.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CALLS: Final = {"memory": 3000, "sqlite": 600, "postgres": 600, "mariadb": 400}
"""Calls in a block; a process measures five blocks and reports the median."""
BLOCKS: Final = 5
ROUNDS: Final = 5
PATIENCE_S: Final = 120


def main() -> None:
    """Measure every requested store, and print a line each."""
    from bench.places import places

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stores", nargs="+", choices=CALLS, default=list(CALLS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", type=int, default=0, help="in a block, instead of the store's own number")
    asked = parser.parse_args()
    if not (asked.folder / "src" / "amends" / "__init__.py").exists():
        parser.error(f"{asked.folder} is no checkout of amends: it has no src/amends")
    trees = {"there": asked.folder.resolve(), "here": ROOT}
    for store in asked.stores:
        with places("sqlite" if store == "memory" else store) as made:
            urls = {name: "memory:" if store == "memory" else _url(made.make(name)) for name in trees}
            turns = [list(trees), list(reversed(trees))]
            got: dict[str, list[float]] = {name: [] for name in trees}
            for turn in range(asked.rounds):
                for name in turns[turn % 2]:
                    got[name].append(_measured(trees[name], urls[name], asked.calls or CALLS[store]))
        ratio = statistics.median(here / there for here, there in zip(got["here"], got["there"], strict=True))
        there, here = (statistics.median(got[name]) for name in trees)
        print(f"{store:9} {there:7.0f} µs there, {here:7.0f} µs here, ratio {ratio:.2f}", flush=True)


def _url(place: str) -> str:
    return place if "://" in place else f"sqlite:///{place}"


def _measured(tree: Path, url: str, calls: int) -> float:
    done = subprocess.run(
        [sys.executable, __file__, url, str(calls)],
        env={**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{tree}: {done.stderr[-2000:]}")
    return float(done.stdout)


def one_side(url: str, calls: int) -> float:
    """Return the microseconds of a fresh call of the amends that is imported here."""
    import logging

    from amends import Runtime, tool

    logging.disable()

    @tool(key="order")
    def charge(order: str, cents: int) -> str:
        return f"ch_{order}"

    @charge.compensate
    def refund(result: str) -> None: ...

    mark = uuid.uuid4().hex[:8]
    took: list[float] = []
    with Runtime(url, tools=[charge]) as rt:
        for block in range(BLOCKS + 1):
            with rt.run(f"{mark}-{block}"):
                began = time.perf_counter()
                for number in range(calls if block else min(calls, 200)):  # the first block is the warm-up
                    charge(order=f"{mark}-{block}-{number}", cents=5)
                took.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(took[1:])


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[2].isdigit():
        print(one_side(sys.argv[1], int(sys.argv[2])))
    else:
        main()
