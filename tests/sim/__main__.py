"""``make sim``: random schedules over the whole product of flows, variants and faults, then the seeded bugs."""

from __future__ import annotations

import argparse
import sys
import time

from tests.sim.ledgers import LEDGERS
from tests.sim.scenarios import MAIN_VARIANTS, VARIANTS
from tests.sim.sweep import SHOWN_MAX, exhaustive, sweep


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("schedules", nargs="?", type=int, default=24_000, help="how many schedules (default 24,000)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeat an earlier sweep")
    parser.add_argument("--workers", type=int, default=None)
    parser.add_argument(
        "--exhaustive",
        choices=("all", "main"),
        nargs="?",
        const="all",
        help="every single fault of every variant instead (an hour); main: of those of make test (minutes)",
    )
    parser.add_argument("--store", choices=LEDGERS, default="memory", help="the ledger to play on (default memory)")
    parser.add_argument("--no-bugs", action="store_true", help="skip the seeded bugs")
    parser.add_argument(
        "--remember-kills",
        action="store_true",
        help="only write tests/sim/kills.json again: a schedule for each seeded bug, which make test plays first",
    )
    asked = parser.parse_args()
    if asked.remember_kills:
        from tests.sim.kills import remember_kills

        return 1 if remember_kills() else 0
    print(f"seed {asked.seed}", flush=True)
    begun = time.monotonic()
    if asked.exhaustive:
        tally = exhaustive(
            MAIN_VARIANTS if asked.exhaustive == "main" else VARIANTS, workers=asked.workers, store=asked.store
        )
    else:
        tally = sweep(asked.schedules, asked.seed, workers=asked.workers, store=asked.store)
    for flow, count in sorted(tally.by_flow.items(), key=lambda item: (len(item[0]), item[0])):
        print(f"   {flow:<4} {count:>7,} schedules")
    for violation in tally.violations[:SHOWN_MAX]:
        print(f"! {violation}")
    took = time.monotonic() - begun
    print(f"{tally.points:,} operations, {tally.bodies:,} bodies, {took:.0f} s")
    print(f"{tally.schedules:,} schedules, {len(tally.violations):,} violations", flush=True)
    if asked.no_bugs:
        return 1 if tally.violations else 0
    from tests.sim.bugs import hunt

    survivors = hunt()
    return 1 if tally.violations or survivors else 0


if __name__ == "__main__":
    sys.exit(main())
