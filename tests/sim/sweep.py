"""Many schedules: all single faults of chosen variants, then random ones, on every core there is."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache

from amends.testing.checkers import Violation
from amends.testing.simulation import Fault
from tests.sim.ledgers import play_on, played_on
from tests.sim.scenarios import VARIANTS, Scenario, Variant, all_scenarios
from tests.sim.schedule import BODY, CLOCKS, CRASHES, LEDGER, Schedule, kinds_at, operations_of, play

SHOWN_MAX = 20
IN_RECOVERY = (*CRASHES, *LEDGER, *BODY[:4])


@dataclass(slots=True)
class Tally:
    """What a sweep has seen."""

    schedules: int = 0
    bodies: int = 0
    points: int = 0
    by_flow: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.schedules += other.schedules
        self.bodies += other.bodies
        self.points += other.points
        self.by_flow += other.by_flow
        self.violations += other.violations


@cache
def scenarios_of(variant: Variant) -> tuple[Scenario, ...]:
    return tuple(all_scenarios(variant))


@cache
def clean_trace(variant: Variant, index: int) -> tuple[str, ...]:
    with played_on("memory"):  # the fastest; on SQLite a rollback may ask for one operation less
        return operations_of(scenarios_of(variant)[index])


def one(variant: Variant, index: int, schedule: Schedule, tally: Tally) -> None:
    """Play one schedule and count it."""
    scenario = scenarios_of(variant)[index]
    outcome = play(scenario, schedule)
    tally.schedules += 1
    tally.by_flow[scenario.name.split()[0]] += 1
    if outcome.sim is not None:
        tally.bodies += outcome.sim.bodies
        tally.points += sum(process.points for process in outcome.sim.processes)
    tally.violations += [Violation(v.checker, f"({variant}) {v.what}", v.schedule) for v in outcome.violations]


def single_faults(variant: Variant, *, hosts: tuple[bool, ...] = (True, False)) -> Iterator[tuple[int, Schedule]]:
    """Every fault at every operation of every flow."""
    for index, scenario in enumerate(scenarios_of(variant)):
        del scenario
        for at, name in enumerate(clean_trace(variant, index)):
            for kind in kinds_at(name, variant.probe):
                for same in hosts:
                    yield index, Schedule(agent=(Fault(at, kind),), same_host=same)


Play = tuple[Variant, int, Schedule]


@cache
def chosen_faults(variants: tuple[Variant, ...]) -> tuple[Play, ...]:
    """Return a share of the single faults of these variants that leaves out no kind of them.

    In an order that never changes, each is taken that has something which none before it had: see ``_shown_by``. Most
    of the others only repeat an outcome, because a flow asks for the same operation many times.
    """
    every = [(variant, index, schedule) for variant in variants for index, schedule in single_faults(variant)]
    random.Random(1).shuffle(every)
    seen: set[tuple[object, ...]] = set()
    chosen = []
    for one_play in every:
        shown = _shown_by(*one_play)
        if not seen.issuperset(shown):
            seen |= shown
            chosen.append(one_play)
    return tuple(chosen)


def _shown_by(variant: Variant, index: int, schedule: Schedule) -> set[tuple[object, ...]]:
    """Return what a single fault shows: each kind of fault at each operation, of each flow and in each variant.

    Within one flow these are one kind: dying after an operation and before the next, since nothing happens in between;
    an answer of the ledger lost with or without its write; the clock set back or forward. Whether recovery is on the
    same host matters to whoever has died or is paused, so both are shown, and every place has its death or pause.
    """
    [fault] = schedule.agent
    trace, flow = clean_trace(variant, index), scenarios_of(variant)[index].name
    operation = trace[fault.at]
    if fault.kind not in CRASHES:
        kind = next((group[0] for group in (LEDGER, CLOCKS) if fault.kind in group), fault.kind)
        return {("flow", flow, operation, kind), ("variant", variant, operation, fault.kind)}
    stop, _, when = fault.kind.rpartition(" ")
    at = fault.at + (when == "after")
    following = trace[at] if at < len(trace) else "the end"
    return {
        ("place", flow, at),
        ("flow", flow, following, stop),
        ("variant", variant, operation, fault.kind, schedule.same_host),
    }


def random_schedule(luck: random.Random) -> tuple[Variant, int, Schedule]:
    """One schedule out of the whole product: faults in the agent, in its recovery, and beside it."""
    variant = luck.choice(VARIANTS)
    index = luck.randrange(len(scenarios_of(variant)))
    trace = clean_trace(variant, index)
    faults = tuple(_fault(luck, trace, variant.probe) for _ in range(luck.choice((0, 1, 1, 1, 2))))
    recovery = tuple(Fault(luck.randrange(24), luck.choice(IN_RECOVERY)) for _ in range(luck.choice((0, 1, 1, 2))))
    raced = scenarios_of(variant)[index].second is not None and luck.random() < 0.8
    second = (Fault(luck.randrange(12), luck.choice(CRASHES + LEDGER)),) if raced and luck.random() < 0.3 else ()
    later = (Fault(luck.randrange(24), luck.choice(IN_RECOVERY)),) if recovery and luck.random() < 0.3 else ()
    schedule = Schedule(
        faults, recovery, second, luck.random() < 0.5, raced, luck.randrange(1 << 30), later, luck.random() < 0.2
    )
    return variant, index, schedule


def _fault(luck: random.Random, trace: tuple[str, ...], probed: bool) -> Fault:
    at = luck.randrange(len(trace))
    return Fault(at, luck.choice(list(kinds_at(trace[at], probed))))


def random_part(job: tuple[int, int, float]) -> Tally:
    """A worker's share of a random sweep."""
    seed, count, seconds = job
    luck, tally, end = random.Random(seed), Tally(), time.monotonic() + seconds
    for _ in range(count):
        one(*random_schedule(luck), tally)
        if len(tally.violations) > SHOWN_MAX or time.monotonic() > end:
            break
    return tally


def exhaustive_part(job: tuple[Variant, bool]) -> Tally:
    """Every single fault of one variant, with the recovery on the same host or on another."""
    variant, same_host = job
    tally = Tally()
    for index, schedule in single_faults(variant, hosts=(same_host,)):
        one(variant, index, schedule, tally)
    return tally


def exhaustive(variants: tuple[Variant, ...], *, workers: int | None = None, store: str = "memory") -> Tally:
    """Play every single fault at every operation of every flow, for each of these variants."""
    total = Tally()
    jobs = [(variant, same) for variant in variants for same in (True, False)]
    with ProcessPoolExecutor(workers or os.cpu_count() or 1, initializer=play_on, initargs=(store,)) as pool:
        for tally in pool.map(exhaustive_part, jobs):
            total.add(tally)
    return total


def sweep(
    count: int, seed: int, *, workers: int | None = None, seconds: float = 3_600.0, store: str = "memory"
) -> Tally:
    """Play ``count`` random schedules on this kind of ledger, spread over the cores; each stops after ``seconds``."""
    number = workers or os.cpu_count() or 1
    parts = number * 8
    share = -(-count // parts)
    total = Tally()
    with ProcessPoolExecutor(number, initializer=play_on, initargs=(store,)) as pool:
        for tally in pool.map(random_part, [(seed + n, share, seconds) for n in range(parts)]):
            total.add(tally)
    return total
