"""Crash tests for your own programs: ``simulate`` kills a task, and its recovery, at every operation.

``simulation.py`` is the simulator behind amends' own tests.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from amends.encoding.canonical import encode
from amends.engine.keys import compensation_key, provider_key
from amends.errors import NotStorable
from amends.ledger.rows import CallRow
from amends.model import Policy
from amends.run import Run
from amends.states import RUN_FINAL
from amends.testing.checkers import CHECKERS, Violation
from amends.testing.runtime import TestRuntime
from amends.testing.simulation import Crash, Simulation
from amends.testing.world import World

SCHEDULES_MAX: Final = 5_000
ROUNDS_MAX: Final = 60
ON_ANY_WORLD: Final = (
    "event_per_transition",
    "nothing_stuck",
    "compensation_order",
    "attempts_in_order",
    "settled_by_owner",
    "work_left",
    "pivot_moves_its_run",
)
"""The checkers that read only the ledger; your ``state`` replaces the simulated world."""

Faults = tuple[tuple[int, str], ...]
Scenario = Callable[[Run], object]
State = Callable[[], object]


@dataclass(slots=True)
class Verdict:
    """How many schedules were played, and every promise that one of them broke."""

    schedules: int = 0
    violations: list[Violation] = field(default_factory=list)

    def raise_if_broken(self) -> None:
        """Fail a test, naming the first violations."""
        if self.violations:
            shown = "\n".join(f"  {violation}" for violation in self.violations[:10])
            raise AssertionError(f"{len(self.violations)} violations in {self.schedules} schedules:\n{shown}")


def simulate(
    scenario: Scenario,
    /,
    *,
    tools: Sequence[object],
    state: State | None = None,
    fresh: Callable[[], object] | None = None,
    seeds: int = 100,
    crashes: int = 1,
    workers: int = 1,
    recover: Policy = "rollback",
) -> Verdict:
    """Kill a task before and after every operation, recover it, and compare the world before and after.

    ``scenario`` is the task: it gets a run, as inside ``with rt.run()``.
    ``tools`` are the tools that it calls.
    ``state`` returns your world: after a rollback it must be what it was before.
    ``fresh`` resets your world before every schedule; then every commit must leave what a commit without faults leaves.
    ``seeds`` is the number of random schedules, which add lost requests and lost answers.
    ``crashes=2`` also kills the recovery at every operation.
    ``workers`` recover one after another in each round; ``recover`` is the policy of the run.
    """
    play = _Player(scenario, tools, state, fresh, workers, recover)
    with _quiet():
        return _played(play, seeds, crashes)


@contextmanager
def _quiet() -> Iterator[None]:
    """Log nothing of runs that are killed on purpose, unless somebody has set the level of the logger ``amends``."""
    log = logging.getLogger("amends")
    if log.level != logging.NOTSET:
        yield
        return
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(logging.NOTSET)


def _played(play: _Player, seeds: int, crashes: int) -> Verdict:
    verdict = Verdict()
    clean = play(verdict, ())
    for at in range(len(clean.trace)):
        for kind in ("before", "after"):
            hit = play(verdict, ((at, kind),), clean=clean)
            if crashes >= 2 and verdict.schedules < SCHEDULES_MAX:
                for again in range(hit.recovery_points):
                    play(verdict, ((at, kind),), ((again, "after"),), clean=clean)
    for faults, recovery in _random_faults(clean.trace, seeds):
        if verdict.schedules >= SCHEDULES_MAX:
            break
        play(verdict, faults, recovery, clean=clean)
    return verdict


def _random_faults(trace: Sequence[str], seeds: int) -> Iterator[tuple[Faults, Faults]]:
    bodies = [at for at, name in enumerate(trace) if name.startswith(("execute", "compensate"))]
    for seed in range(seeds if bodies else 0):
        luck = random.Random(seed)
        lost = (luck.choice(bodies), luck.choice(("answer lost", "request lost")))
        crash = (luck.randrange(len(trace)), luck.choice(("before", "after")))
        yield (lost,) if luck.random() < 0.5 else (lost, crash), ((luck.randrange(12), "after"),)


@dataclass(slots=True)
class _Played:
    trace: list[str]
    recovery_points: int = 0
    after: object = None
    committed: bool = False


class _Player:
    """Plays one scenario again and again, each time on a new ledger."""

    def __init__(
        self,
        scenario: Scenario,
        tools: Sequence[object],
        state: State | None,
        fresh: Callable[[], object] | None,
        workers: int,
        recover: Policy,
    ) -> None:
        self._scenario, self._tools, self._state, self._fresh = scenario, tools, state, fresh
        self._workers, self._recover = workers, recover
        self._nowhere = World(Simulation())

    def __call__(
        self, verdict: Verdict, faults: Faults, recovery: Faults = (), *, clean: _Played | None = None
    ) -> _Played:
        verdict.schedules += 1
        if self._fresh is not None:
            self._fresh()
        before = self._seen()
        agents = {"simulated": self._scenario}
        rt = TestRuntime(tools=self._tools, agents=agents)
        driver = rt._test_driver
        driver.faults = dict(faults)
        # Every schedule has its own run id, so its keys differ and a world that is not reset does not confuse them.
        id = f"simulated-{verdict.schedules}"
        try:
            with rt.run(id, agent="simulated", recover=self._recover) as run:
                run.output = self._scenario(run)
        except (Exception, Crash):
            pass  # the ledger shows how it ended
        played = _Played(list(driver.trace))
        finished = Counter(driver.finished)
        driver.finished.clear()
        if driver.dead:
            rt.crash()
        played.recovery_points = self._rest(rt, recovery, finished)
        broken = [*self._of_ledger(rt), *_twice(rt, finished), *self._of_world(rt, id, before, played, clean)]
        said = ", ".join(f"{kind} at {at}" for at, kind in faults) + (f"; in recovery {recovery}" if recovery else "")
        verdict.violations += [Violation(name, what, said or "undisturbed") for name, what in broken]
        return played

    def _seen(self) -> object:
        return None if self._state is None else _frozen(self._state())

    def _rest(self, rt: TestRuntime, faults: Faults, finished: Counter[tuple[str, str]]) -> int:
        """Recover until nothing more happens; return how many operations the first recovery had."""
        first = 0
        for round_ in range(ROUNDS_MAX):
            driver = rt._test_driver
            driver.faults = dict(faults) if round_ == 0 else {}
            driver.points = 0
            try:
                for _ in range(self._workers):
                    rt.recover()
            except Crash:
                rt.crash()
            first = driver.points if round_ == 0 else first
            finished.update(driver.finished)
            driver.finished.clear()
            waits = [run.wake_at - rt.clock.wall for run in rt._memory.runs.values() if run.wake_at is not None]
            if not waits and not driver.dead:
                break
            rt.clock.advance(max(0.0, min(waits, default=0.0)) + 0.001)
        return first

    def _of_ledger(self, rt: TestRuntime) -> Iterator[tuple[str, str]]:
        for name in ON_ANY_WORLD:
            for what in CHECKERS[name](rt._memory, self._nowhere):
                yield name, what

    def _of_world(
        self, rt: TestRuntime, id: str, before: object, played: _Played, clean: _Played | None
    ) -> Iterator[tuple[str, str]]:
        roots = [run for run in rt._memory.runs.values() if run.id == id and run.uid == run.root]
        if not roots or self._state is None:
            return
        state = roots[-1].state
        after = self._seen()
        played.after, played.committed = nameless(after, rt._memory.calls.values()), state == "committed"
        if state == "rolled_back" and after != before:
            yield "world_restored", f"the run is rolled_back and the world went from {before} to {after}"
        comparable = self._fresh is not None and clean is not None and clean.committed
        if comparable and clean is not None and state == "committed" and played.after != clean.after:
            yield "world_committed", f"the run is committed and the world is {played.after}, not {clean.after}"
        if state not in RUN_FINAL and state != "blocked" and roots[-1].policy == "rollback":
            yield "run_ended", f"the run is {state} and nothing will continue it"


def _twice(rt: TestRuntime, finished: Counter[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for (call_id, phase), count in finished.items():
        row = rt._memory.calls.get(call_id)
        spec = None if row is None else rt._host.specs.get(row.tool)
        if row is None or spec is None or count < 2 or row.kind == "read" or phase in ("probe", "before", "notice"):
            continue
        compensation = spec.compensate
        allowed = (
            spec.idempotent
            if phase == "execute"
            else compensation is not None and (compensation.idempotent or compensation.absent_ok)
        )
        if not allowed:
            yield f"{phase}d_once", f"{row.tool} ran to its end {count} times"


def nameless(seen: object, calls: Iterable[CallRow]) -> object:
    """Return a state without the keys and ids of these calls: each run has its own, and the rest can be compared."""
    if not isinstance(seen, str):
        return seen
    for number, row in enumerate(sorted(calls, key=lambda row: row.seq)):
        names = {"key": provider_key(row), "undo key": compensation_key(row), "call key": row.key, "call": row.id}
        for what, name in names.items():
            seen = seen.replace(name, f"<{what} {number}>")
    return seen


def _frozen(state: object) -> object:
    """Return a copy of the state: a live object would change before the comparison."""
    try:
        return encode(state, path="state")
    except NotStorable:
        return repr(state)
