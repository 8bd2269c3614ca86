"""``make chaos``: real processes, killed; the last line of each store says what that did."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.chaos.audit import COUNTS
from tests.chaos.board import Board
from tests.chaos.children import Scene
from tests.chaos.conductor import Conductor, Outcome, Settings
from tests.chaos.places import STORES
from tests.chaos.tools import Kit
from tests.chaos.world import World
from tests.servers import Unavailable

SHOWN_MAX = 5


def main() -> int:
    """0 when every count of every store is 0."""
    options = _options()
    if options.serve:
        return _served(options)
    seed = options.seed if options.seed is not None else int(time.time())
    print(f"seed {seed}", file=sys.stderr, flush=True)
    stores = list(STORES) if options.store == "all" else [options.store]
    return max(_one(name, options, seed) for name in stores)


def _served(options: argparse.Namespace) -> int:
    from tests.chaos.service import play

    stores = play.STORES if options.store == "all" else (options.store,)
    if missing := set(stores) - set(play.STORES):
        raise SystemExit(f"--serve is played on {', '.join(play.STORES)}, not on {', '.join(missing)}")
    return max(play.play_on(store, short=options.short) for store in stores)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--store", default="all", choices=("all", *STORES))
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=540.0, help="begin no more runs after this")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--callers", type=int, default=6)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--short", action="store_true", help="60 runs and 16 kills: seconds")
    parser.add_argument("--serve", action="store_true", help="a saga over HTTP: client, server and worker killed")
    parser.add_argument("--keep", action="store_true", help="leave the ledger and the world where they are")
    options = parser.parse_args()
    if options.short:
        options.runs, options.kills, options.seconds = 60, 16, 5.0
    return options


def _one(name: str, options: argparse.Namespace, seed: int) -> int:
    folder = Path(tempfile.mkdtemp(prefix="amends-chaos-"))
    try:
        place = STORES[name](folder)
    except Unavailable as why:
        print(f"{name}: skipped, {why}", flush=True)
        shutil.rmtree(folder)
        return 1 if os.environ.get("CI") else 0
    world = World(folder / "world")
    world.make(options.runs)
    scene = Scene(seed, place, folder, world, Board(options.runs), Kit(world))
    settings = Settings(seed, options.runs, options.kills, options.seconds, options.callers, options.workers)
    settings.stops, settings.faults = max(2, options.kills // 20), max(1, options.kills // 100)
    conductor = Conductor(scene, settings)
    conductor.say(place.said)
    try:
        outcome = conductor.play()
        _tell(conductor, outcome)
    finally:
        place.close()
        if options.keep:
            conductor.say(f"kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return int(bool(outcome.findings or outcome.surprises))


def _tell(conductor: Conductor, outcome: Outcome) -> None:
    name = conductor.scene.place.name
    conductor.say(f"kills: {_listed(conductor.kills)}")
    conductor.say(f"stops: {_listed(conductor.stops)}")
    conductor.say(f"faults: {_listed(conductor.done)}; {outcome.seconds:.0f} s; {conductor.costs()}")
    if outcome.surprises:
        print(f"{name}: errors that no program should see:\n{outcome.surprises[:8000]}")
    counts = Counter(one.count for one in outcome.findings)
    shown: Counter[str] = Counter()
    for one in outcome.findings:
        shown[one.count] += 1
        if shown[one.count] <= SHOWN_MAX:
            print(f"{name}: {one.count}: {one.run_id}: {one.what}")
            conductor.show(one.run_id)
    others = {count: found for count, found in counts.items() if count not in COUNTS}
    if others:
        print(f"{name}: the record breaks its rules: {others}")
    words = ", ".join(f"{counts[count]} {count}" for count in COUNTS)
    print(f"{name}: {outcome.runs} runs, {outcome.kills} kills, {words}", flush=True)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {point}" for point, count in sorted(counts.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())
