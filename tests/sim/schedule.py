"""One schedule: a scenario with faults, recovery until nothing happens, the checkers, people's verbs, the checkers again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from amends.encoding.ids import number_of
from amends.errors import Busy, Refused, UsageError
from amends.ledger.operations import ReadRun
from amends.ledger.rows import RunRow
from amends.model import Absent, Happened
from amends.people import approvals, doubts, runs
from amends.people import rollback as rollback_plans
from amends.states import RUN_FINAL
from amends.stores.memory import MemoryStore
from amends.testing.checkers import Violation, check_all
from amends.testing.simulation import NOBODY, Endless, Fault, Inside, Process, Simulation
from amends.testing.world import World, result_of
from tests.sim.ledgers import SqliteLedger, make_ledger
from tests.sim.scenarios import Here, Scenario

ROUNDS_MAX = 200  # a run that waits for another one out of a clock that was set back an hour looks once a lease

NEW_TOOLS = 5  # in every fifth random schedule the ledger has not seen the tools before


@dataclass(frozen=True, slots=True)
class Schedule:
    """What goes wrong and when: in the agent, in the first recovery, in the second process."""

    agent: tuple[Fault, ...] = ()
    recovery: tuple[Fault, ...] = ()
    second: tuple[Fault, ...] = ()
    same_host: bool = True
    raced: bool = False
    seed: int = 0
    later: tuple[Fault, ...] = ()
    """In the recovery of the recovery, and in the one after that."""
    rivals: bool = False
    """Two workers race for every tree."""

    def __str__(self) -> str:
        parts = [f"{f.kind} at {f.at}" for f in self.agent]
        parts += [f"recovery: {f.kind} at {f.at}" for f in self.recovery]
        parts += [f"second: {f.kind} at {f.at}" for f in self.second]
        parts += [f"later: {f.kind} at {f.at}" for f in self.later] + ["rivals"] * self.rivals
        return ", ".join(parts) + f" (host {'same' if self.same_host else 'other'}, seed {self.seed})"


@dataclass(slots=True)
class Outcome:
    """What a schedule showed."""

    violations: list[Violation] = field(default_factory=list)
    agent: Process | None = None
    recovery_points: int = 0
    sim: Simulation | None = None
    world: World | None = None


def play(scenario: Scenario, schedule: Schedule) -> Outcome:
    """Run one schedule to its end."""
    stage = _stage(scenario, schedule)
    sim, world, outcome = stage.sim, stage.world, stage.outcome
    try:
        stage.run()
    except Endless as endless:
        outcome.violations.append(Violation("nothing_stuck", str(endless)))
        outcome.violations += check_all(sim.store, world)  # why it did not end is more than that it did not
    except AssertionError as broken:
        outcome.violations.append(Violation("assertion", str(broken)))
    _close(sim)
    named = f"{scenario.name}: {schedule}"
    outcome.violations = [Violation(v.checker, v.what, named) for v in outcome.violations]
    return outcome


def operations_of(scenario: Scenario) -> tuple[str, ...]:
    """Return the operations that the agent asks for when nothing goes wrong: its part of the schedule is enough."""
    stage = _stage(scenario, Schedule())
    agent, _ = stage.run_programs()
    _close(stage.sim)
    return tuple(agent.trace)


def _stage(scenario: Scenario, schedule: Schedule) -> _Stage:
    """Return a new ledger and a new world with the scenario in them."""
    sim = Simulation(seed=schedule.seed, make_store=make_ledger)
    world = World(
        sim,
        scenario.traits,
        unknown_probes=scenario.unknown_probes,
        broken_probes=scenario.broken_probes,
        asks=frozenset(scenario.asks),
        unrepeated=frozenset(scenario.unrepeated),
        sets=frozenset(scenario.sets),
    )
    Here.world = world
    host = scenario.prepared()
    host.store, host.new_id = sim.store, sim.new_id
    if isinstance(sim.store, SqliteLedger) and schedule.seed % NEW_TOOLS != 1:
        sim.store.know(host.specs.values())
    host.new_number = lambda: number_of(sim.new_id("call")) or 0
    sim.script = {name: list(modes) for name, modes in scenario.script.items()}
    return _Stage(scenario, schedule, sim, world, Outcome(sim=sim, world=world))


def _close(sim: Simulation) -> None:
    for process in sim.processes:
        process.program.close()


class _Stage:
    def __init__(self, scenario: Scenario, schedule: Schedule, sim: Simulation, world: World, outcome: Outcome) -> None:
        self.scenario, self.schedule, self.sim, self.world, self.outcome = scenario, schedule, sim, world, outcome
        self.host = scenario.prepared()
        self.workers = 0
        self.agents = {"agent": scenario.program}

    def run(self) -> None:
        sim = self.sim
        agent, second = self.run_programs()
        if agent.done and second is None:
            self.world.left(agent)
        if isinstance(agent.ended, Busy) and second is None:
            self.world.alone.append("the agent waited for itself")
        self._until_quiet(self.schedule.recovery)
        for process in (agent, second):
            if process is not None and process.paused:
                sim.wake(process)
                sim.run(process)
                self._until_quiet(())
        self._check()
        checked = self._everything()
        self._nothing_more()
        self._persons()
        if self._everything() != checked:  # else the checkers have seen exactly this
            self._check()

    def run_programs(self) -> tuple[Process, Process | None]:
        """Run the agent, and whoever is beside it, until they end, die or pause."""
        sim, scenario, schedule = self.sim, self.scenario, self.schedule
        agent = sim.start("agent", lambda p: scenario.program(Inside(sim, self.host, p)), faults=schedule.agent)
        self.outcome.agent = agent
        second = None
        if scenario.second is not None:
            other = scenario.second
            second = sim.start(
                "second", lambda p: other(Inside(sim, self.host, p)), host="other", faults=schedule.second
            )
        if second is not None and scenario.third is not None:
            last = scenario.third
            third = sim.start("third", lambda p: last(Inside(sim, self.host, p)), host="third")
            sim.race(agent, second, third)
        elif second is not None and schedule.raced:
            sim.race(agent, second)
        else:
            sim.run(agent)
            if second is not None:
                sim.run(second)
        return agent, second

    def _check(self) -> None:
        self.outcome.violations += check_all(self.sim.store, self.world)

    def _everything(self) -> tuple[object, ...]:
        """Return whatever the checkers read: rows, the anchor, the clock, and how much the world has seen."""
        sim, store = self.sim, self.sim.store
        seen = [value if isinstance(value, int) else len(value) for value in _noted(self.world)]
        tables: tuple[dict[Any, Any], ...] = (
            store.runs,
            store.calls,
            store.locks,
            store.waits,
            store.slices,
            store.approvals,
        )
        rows = [*(dict(table) for table in tables), len(store.events), len(store.checkpoints)]
        return rows, seen, sim.bodies, sim.jumped, len(sim.disturbed), sim.anchor.mark, sim.clock.wall, sim.clock.mono

    # ---- rest ----------------------------------------------------------------------------

    def _until_quiet(self, faults: tuple[Fault, ...]) -> None:
        for round_ in range(ROUNDS_MAX):
            worker = self._recover(faults)
            faults = self.schedule.later if faults and round_ < 2 else ()
            if not self._wait_for_more() and worker.alive:
                return self._sweep()
        raise Endless("the ledger does not come to rest: " + ", ".join(_states(self.sim)))

    def _sweep(self) -> None:
        sweeper = self.scenario.sweeper
        if sweeper is not None:
            self.sim.run(self.sim.start("sweeper", lambda p: sweeper(Inside(self.sim, self.host, p)), host="other"))

    def _recover(self, faults: tuple[Fault, ...]) -> Process:
        self.workers += 1
        host = "host" if self.schedule.same_host else f"other{self.workers}"

        def program(process: Process) -> Any:
            return Inside(self.sim, self.host, process).recover(self.agents)

        worker = self.sim.start(f"worker {self.workers}", program, host=host, faults=faults)
        if self.schedule.rivals:
            self.sim.race(worker, self.sim.start(f"rival {self.workers}", program, host="rival"))
        self.sim.run(worker)
        self.world.settle_late()
        if self.workers == 1:
            self.outcome.recovery_points = worker.points
        if worker.paused:
            # A zombie worker: somebody else goes on, then it wakes.
            self.sim.advance(self.sim.lease_s * 1.5)
            self._recover(())
            self.sim.wake(worker)
            self.sim.run(worker)
        if worker.ended is not None:
            self.outcome.violations.append(Violation("recovery_survives", repr(worker.ended)))
        return worker

    def _wait_for_more(self) -> bool:
        """Let time pass until something may happen; False when nothing will."""
        sim = self.sim
        newest = sim.store.events[-1].at if sim.store.events else 0.0
        now = max(sim.clock.wall, newest)
        at_rest = _behind_a_person(sim.store)
        wakes = [
            self._wakes_in(r, now) for r in sim.store.runs.values() if r.wake_at is not None and r.uid not in at_rest
        ]
        wakes += [at - sim.clock.mono for at, _ in self.world.later]
        wakes += [row.due_at - now for row in sim.store.approvals.values() if row.due_at is not None]
        if self.host.notices.hook is not None:  # without one the outbox is nobody's, and waits for ever
            wakes += [row.tell_at - now for row in sim.store.approvals.values() if row.tell_at is not None]
        if not wakes:
            return False
        behind = max(0.0, newest - sim.clock.wall)  # a clock that was set back must catch up first
        sim.advance(max(0.0, min(wakes)) + behind + 0.001)
        self.world.settle_late()
        return True

    def _wakes_in(self, run: RunRow, now: float) -> float:
        """Return when a worker may do something about the run: after a jump its lease still ends on the monotonic clock."""
        assert run.wake_at is not None, "asked only of runs that wake"
        by_wall = run.wake_at - now
        if by_wall > 0 or not run.owner or run.lease_mono is None:
            return by_wall
        return max(by_wall, run.lease_mono - self.sim.clock.mono)

    def _nothing_more(self) -> None:
        """Recovery three times more changes nothing and starts nothing."""
        before = (dict(self.sim.store.runs), dict(self.sim.store.calls), len(self.sim.store.events), self.sim.bodies)
        for _ in range(3):
            self._recover(())
        after = (dict(self.sim.store.runs), dict(self.sim.store.calls), len(self.sim.store.events), self.sim.bodies)
        if before != after:
            changed = [e.what + " " + e.to_state for e in self.sim.store.events[before[2] :]]
            self.outcome.violations.append(
                Violation("recovery_changes_nothing", f"it changed {changed[:5]}, {after[3] - before[3]} bodies")
            )

    # ---- persons -------------------------------------------------------------------------

    def _persons(self) -> None:
        for round_ in range(6):
            waiting = [r for r in self.sim.store.runs.values() if r.state not in RUN_FINAL and r.uid == r.root]
            if not waiting:
                return
            for run in waiting:
                person = self.sim.start("person", partial(_decide_all, self.world, self.host, run.uid, round_))
                self.sim.run(person)
                if person.ended is not None:
                    self.outcome.violations.append(Violation("persons_may", f"{run.id}: {person.ended!r}"))
            self._until_quiet(())
        left = _states(self.sim)
        if left:
            self.outcome.violations.append(Violation("persons_end_it", f"after every verb: {left}"))


async def _decide_all(world: World, host: Any, uid: str, round_: int, process: Process) -> None:
    """A person who knows the truth says it, about everything that asks for it."""
    tree = await ReadRun("", uid=uid)
    assert tree is not None, f"{process.name} looks at a run that was there a moment ago"
    done = 0
    for row in tree.calls:
        if row.tool in world.sets and row.state in ("in_doubt", "compensation_in_doubt"):
            phase, n = ("execute", row.args) if row.state == "in_doubt" else ("compensate", "")
            value = json.loads(n)["n"] if n else None
            told = Happened(value) if (row.id, phase) in world.set_by else Absent()
            await doubts.resolve(host, NOBODY, row.id, told, by="anna", why="looked")
        elif row.state == "in_doubt":
            answer = Happened(result_of(_provider(row))) if world.stands(row.id) else Absent()
            await doubts.resolve(host, NOBODY, row.id, answer, by="anna", why="looked")
        elif row.state == "compensation_in_doubt":
            undone = Absent() if world.stands(row.id) else Happened(None)
            await doubts.resolve(host, NOBODY, row.id, undone, by="anna", why="looked")
        elif row.comp_guarded and round_ > 0:
            continue  # somebody else's value stays
        elif row.state == "compensation_failed" or (row.state == "backing_off" and row.retry_at is None):
            lacks = row.state == "compensation_failed" and row.result is None and bool(world.stands(row.id))
            given = {"result": result_of(_provider(row))} if lacks and _needs_result(host, row) else {}
            await runs.retry(host, NOBODY, row.id, by="anna", why="mended", **given)
        elif row.state == "held" and row.reason in ("duplicate", "conflict"):
            await runs.decide(host, NOBODY, row.id, ("replay", "refuse")[round_ % 2], by="anna", why="looked")
        elif row.state in ("held", "ready") and row.approval and round_ == 0:
            await _decide_request(host, row.approval)
        else:
            continue
        done += 1
    if done:
        return
    if tree.run.state == "blocked" and tree.run.came_from == "pivoted":
        await runs.finish(host, NOBODY, tree.run.id, by="anna", why="done by hand")
    elif tree.run.state == "open" and round_ == 0:
        await rollback_plans.rollback(host, NOBODY, tree.run.id, by="anna", why="nobody goes on")
    else:
        await runs.abandon(host, NOBODY, tree.run.id, by="anna", why="nothing else helps")


async def _decide_request(host: Any, id: str) -> None:
    with suppress(UsageError, Refused):
        asked = await approvals.approval(host, NOBODY, id)
        if asked.state == "expired":
            asked = await approvals.ask_again(host, NOBODY, id, by="anna", why="too late")
        if asked.state == "pending":
            for by in ("anna", "bob")[: asked.needed]:
                await approvals.approve(host, NOBODY, asked.id, by=by, digest=asked.digest)


def _needs_result(host: Any, row: Any) -> bool:
    twin = host.specs[row.tool].compensate
    return twin is not None and twin.needs_result


def _provider(row: Any) -> str:
    from amends.engine.keys import provider_key

    return provider_key(row)


def _states(sim: Simulation) -> list[str]:
    return [
        f"{r.id} {r.state} goal={r.goal} wake={r.wake_at} causes={r.causes}"
        for r in sim.store.runs.values()
        if r.state not in RUN_FINAL and r.uid == r.root
    ]


def _noted(world: World) -> list[Any]:
    """Return everything that a world counts or collects."""
    noted = [getattr(world, each.name) for each in fields(world)]
    return [value for value in noted if isinstance(value, int | list | dict | set)]


def _behind_a_person(store: MemoryStore) -> set[str]:
    """Runs that wake only to find the lock they need with a run that waits for a person, or with another such run."""
    found: set[str] = set()
    for _ in store.runs:
        for wait in store.waits.values():
            lock, waiter = store.locks.get((wait.tenant, wait.name)), store.runs[wait.root]
            holder = None if lock is None else store.runs[lock.root]
            asleep = not waiter.owner and waiter.goal != "rollback" and waiter.phase in ("open", "pivoted")
            if asleep and holder is not None and (holder.wake_at is None or holder.uid in found):
                found.add(waiter.uid)
    return found


# ---- which schedules there are ---------------------------------------------------------------

CRASHES = ("before", "after", "pause before", "pause after")
LEDGER = ("lost", "unsent")
CLOCKS = ("clock back", "clock forward")
BODY = ("body raise", "body no effect", "body request lost", "body answer lost", "cancel before", "cancel after")


def kinds_at(trace: str, probed: bool) -> Iterator[str]:
    """The faults that make sense at an operation."""
    yield from CRASHES
    if trace.startswith(("execute", "compensate")):
        yield from BODY
        if probed and trace.startswith("execute") and trace != "execute m":
            # Without a probe an ordinary error is the tool's word, and this one would be a lie.
            yield from ("body late", "body raise after", "slow")
        if " put" in trace:
            yield "body late"
    elif trace.startswith("before"):
        yield from ("body raise", "body answer lost", "cancel before", "cancel after")
    elif trace.startswith("probe"):
        yield "body unknown"
    elif trace.startswith("notice"):
        yield from ("body raise", "body answer lost", "cancel before", "cancel after")
    else:
        yield from LEDGER
        yield from CLOCKS
        yield "redeliver"
