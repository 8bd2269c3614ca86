"""The play: keeps callers and workers going, kills and freezes them, breaks the ledger, then lets all of it end."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from amends import Runtime
from amends.ledger.operations import ReadRun
from amends.ledger.rows import RunRow
from amends.ledger.store import Store
from amends.states import RUN_FINAL, RUN_STATES
from tests.chaos.audit import Finding, audit, not_visible, read_runs
from tests.chaos.children import Scene, async_caller, caller, forked, worker
from tests.chaos.points import CALLERS, RARE, WORKERS
from tests.chaos.tools import FROZEN_S_MAX, LEASE_S

TICK_S: Final = 0.01
CHUNK: Final = 16
"""Runs that one caller is given."""
DELIVERIES_MAX: Final = 12
RANDOM_SHARE: Final = 0.35
"""Of all kills; the others are at named points."""
CHILD_S_MAX: Final = 120.0


@dataclass(slots=True)
class Settings:
    """How much of everything."""

    seed: int
    runs: int
    kills: int
    seconds: float
    callers: int = 4
    workers: int = 4
    stops: int = 40
    faults: int = 6
    setbacks: int = 3
    drain_s: float = 90.0
    """How long the workers may take, once nothing is killed any more, to end all that can end."""


@dataclass(slots=True)
class Child:
    """A process of the play."""

    pid: int
    role: str
    numbers: list[int]
    point: str
    signal: int
    killed: str = ""
    frozen_at: float | None = None
    thaw_at: float = 0.0
    born_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class Outcome:
    """What the last line is made of."""

    runs: int
    kills: int
    findings: list[Finding]
    surprises: str
    seconds: float


class Conductor:
    """One play over one ledger."""

    def __init__(self, scene: Scene, settings: Settings) -> None:
        self.scene, self.settings = scene, settings
        self.dice = random.Random(settings.seed)
        self.children: dict[int, Child] = {}
        self.todo: deque[list[int]] = deque(
            list(range(at, min(at + CHUNK, settings.runs))) for at in range(0, settings.runs, CHUNK)
        )
        self.kills: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.cpu_s = {"caller": 0.0, "worker": 0.0}
        self.born: Counter[str] = Counter()
        self.points = {role: deque[str]() for role in ("caller", "worker")}
        self.fault: tuple[str, float] | None = None
        self.began = time.monotonic()

    # ---- the three acts -------------------------------------------------------------------

    def play(self) -> Outcome:
        """Runs under fire, then quiet until all that can end has ended, then the audit."""
        gc.collect()
        gc.freeze()  # a child that collects garbage would copy every page it looks at
        self._in_child(_create)
        try:
            self._under_fire()
            self._drain()
        finally:
            self._end_all()
        findings = [Finding(*one) for one in self._in_child(_audited)]
        surprises = self.scene.surprises
        return Outcome(
            runs=self.scene.board.begun(),
            kills=self.kills.total(),
            findings=findings,
            surprises=surprises.read_text(encoding="utf-8") if surprises.exists() else "",
            seconds=time.monotonic() - self.began,
        )

    def _under_fire(self) -> None:
        told = time.monotonic()
        while self._has_callers():
            if time.monotonic() - self.began > self.settings.seconds:
                self.say(f"{self.settings.seconds:g} s are over; {len(self.todo)} chunks are left undone")
                break
            self._staff()
            self._fire()
            self._break_ledger()
            time.sleep(TICK_S)
            self._reap()
            if time.monotonic() - told > 5:
                told = time.monotonic()
                self._progress()
        self._mend()
        while self.kills.total() < self.settings.kills and self.todo == deque():
            self._kill(self._any("worker"))  # what is missing, while they still have work
            self._staff()
            time.sleep(TICK_S)
            self._reap()
        self._progress()

    def _drain(self) -> None:
        """Nothing is killed any more. What waits for its program is delivered again; the rest is the workers'."""
        until = time.monotonic() + self.settings.drain_s
        said: tuple[int, list[int]] | None = None
        self.todo.clear()
        self._retire()
        while True:
            self._staff(fated=False)
            left, waiting = self._in_child(_unended)
            if not left and not waiting and not self._has_callers():
                return
            if time.monotonic() > until:
                self.say(f"{left + len(waiting)} runs did not end in {self.settings.drain_s:g} s")
                return
            if (left, waiting) != said:
                said = (left, waiting)
                self.say(f"{left + len(waiting)} runs have not ended; {len(waiting)} are delivered again")
            self.todo.extend(waiting[at : at + CHUNK] for at in range(0, len(waiting), CHUNK))
            pause = time.monotonic() + 0.5
            while time.monotonic() < pause or self._has_callers():
                self._staff(fated=False)
                time.sleep(TICK_S)
                self._reap()

    def _has_callers(self) -> bool:
        return bool(self.todo) or any(child.role == "caller" for child in self.children.values())

    # ---- staff ----------------------------------------------------------------------------

    def _staff(self, *, fated: bool = True) -> None:
        roles = Counter(child.role for child in self.children.values())
        for place in range(roles["worker"], self.settings.workers):
            self._start("worker", worker(colour="async" if place == 0 else "blocking"), [], fated=fated)
        for place in range(roles["caller"], self.settings.callers):
            if self.todo:
                numbers = self.todo.popleft()
                main = async_caller(numbers) if place % 2 == 0 else caller(numbers)
                self._start("caller", main, numbers, fated=fated)

    def _start(self, role: str, main: Callable[[Scene], None], numbers: list[int], *, fated: bool) -> None:
        point, number = "", int(signal.SIGKILL)
        if fated and self._owed() > -3 and self.dice.random() < 0.7:
            point = self._next_point(role)
            # A stop at a named point is the worst zombie: for one, between the check of its lease and its effect.
            if self.stops.total() < self._due(self.settings.stops) and self.dice.random() < 0.4:
                number = int(signal.SIGSTOP)
        rare = any(word in point for word in RARE)
        passes = self.dice.randint(1, 2 if rare or role == "worker" else 12)
        pid = forked(self.scene, main, point=point, passes=passes, number=number)
        self.children[pid] = Child(pid, role, numbers, point, number)

    def _next_point(self, role: str) -> str:
        line = self.points[role]
        if not line:
            every = list(CALLERS if role == "caller" else WORKERS) + list(self.scene.place.points)
            self.dice.shuffle(every)
            line.extend(every)
        return line.popleft()

    # ---- fire -----------------------------------------------------------------------------

    def _due(self, total: int) -> float:
        return total * self.scene.board.begun() / max(1, self.settings.runs)

    def _owed(self) -> float:
        return self._due(self.settings.kills) - self.kills.total()

    def _fire(self) -> None:
        share = self.kills["at random"] < RANDOM_SHARE * self.kills.total() + 2
        if self._owed() > (0 if share else len(self.children)) and self.dice.random() < 0.2:
            self._kill(self._any(self.dice.choice(("caller", "worker"))))
        if self.stops["at random"] < self._due(self.settings.stops) / 2 and self.dice.random() < 0.1:
            child = self._any(self.dice.choice(("caller", "worker")))
            if child is not None and child.frozen_at is None:
                os.kill(child.pid, signal.SIGSTOP)
        now = time.monotonic()
        for child in self.children.values():
            if child.frozen_at is not None and now >= child.thaw_at:
                self._thaw(child, now)
            elif now - child.born_at > CHILD_S_MAX and child.role == "caller":
                self.say(f"process {child.pid} has been at {child.numbers} for {CHILD_S_MAX:g} s; killed")
                self._kill(child)

    def _thaw(self, child: Child, now: float) -> None:
        assert child.frozen_at is not None
        if now - child.frozen_at > FROZEN_S_MAX:
            # We are late ourselves: woken now it might send later than its destinations allow.
            self._kill(child)
            return
        child.frozen_at = None
        os.kill(child.pid, signal.SIGCONT)

    def _any(self, role: str) -> Child | None:
        found = [child for child in self.children.values() if child.role == role and not child.killed]
        return self.dice.choice(found) if found else None

    def _kill(self, child: Child | None) -> None:
        if child is not None and not child.killed:
            child.killed = "at random"
            os.kill(child.pid, signal.SIGKILL)

    def _reap(self) -> None:
        for child in list(self.children.values()):
            pid, status, used = os.wait4(child.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                continue
            if os.WIFSTOPPED(status):
                self.stops[child.point if child.point and child.signal == signal.SIGSTOP else "at random"] += 1
                child.frozen_at = time.monotonic()
                child.thaw_at = child.frozen_at + self.dice.uniform(1.02, 1.3) * LEASE_S
                continue
            del self.children[child.pid]
            self.cpu_s[child.role] += used.ru_utime + used.ru_stime
            self.born[child.role] += 1
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                self.kills[child.killed or child.point] += 1
            self._inherit(child)

    def _inherit(self, child: Child) -> None:
        """What a dead caller had not begun is another's; what it had begun is the workers', or delivered again."""
        board, mine = self.scene.board, child.numbers
        left = [n for n in mine if not board.deliveries(n)]
        left += [
            n for n in mine
            if board.deliveries(n) and not board.has_ended(n) and self.scene.plan(n).redelivered
            and board.deliveries(n) < DELIVERIES_MAX
        ]  # fmt: skip
        if left and child.role == "caller":
            self.todo.append(left)

    # ---- the ledger and the clock ---------------------------------------------------------

    def _break_ledger(self) -> None:
        now = time.monotonic()
        if self.fault is not None:
            if now >= self.fault[1]:
                self._mend()
            return
        faults = self.scene.place.faults
        if faults and self.done.total() - self.done["clock"] < self._due(self.settings.faults) - 0.5:
            fault = faults[self.done.total() % len(faults)]
            self.done[fault] += 1
            self.fault = (fault, now + self.dice.uniform(0.2, 0.8))
            self.scene.place.begin(fault)
        if self.done["clock"] < self._due(self.settings.setbacks) - 0.5:
            self.done["clock"] += 1
            self.scene.board.shift_s -= self.dice.uniform(0.5, 1.5)

    def _mend(self) -> None:
        if self.fault is not None:
            self.scene.place.end(self.fault[0])
            self.fault = None

    # ---- ends -----------------------------------------------------------------------------

    def _retire(self) -> None:
        """Whoever still carries a fate is sent home; those who stand still go on."""
        for child in self.children.values():
            os.kill(child.pid, signal.SIGCONT)
            if child.role == "worker":
                os.kill(child.pid, signal.SIGTERM)
        until = time.monotonic() + 10
        while any(child.role == "worker" for child in self.children.values()) and time.monotonic() < until:
            time.sleep(TICK_S)
            self._reap()
        self._end_all()

    def _end_all(self) -> None:
        for child in self.children.values():
            os.kill(child.pid, signal.SIGKILL)
        for child in self.children.values():
            os.waitpid(child.pid, 0)
        self.children.clear()

    def _in_child(self, ask: Callable[[Scene, Runtime, int], Any]) -> Any:
        """Ask the ledger in a process of its own: this one never has a connection, since it forks."""
        answer = self.scene.folder / "answer"

        def main(scene: Scene) -> None:
            with Runtime(
                store=scene.place.store(time.time), tools=scene.kit.tools.values(), lease=LEASE_S, create=True
            ) as rt:
                answer.write_text(json.dumps(ask(scene, rt, self.settings.runs)), encoding="utf-8")

        answer.unlink(missing_ok=True)
        pid = forked(self.scene, main, point="", passes=0, number=0)
        os.waitpid(pid, 0)
        assert answer.exists(), self.scene.surprises.read_text(encoding="utf-8")
        return json.loads(answer.read_text(encoding="utf-8"))

    # ---- telling --------------------------------------------------------------------------

    def _progress(self) -> None:
        seconds = time.monotonic() - self.began
        begun = self.scene.board.begun()
        self.say(
            f"{begun} runs, {self.kills.total()} kills, {self.stops.total()} stops, "
            f"{self.done.total()} faults in {seconds:.0f} s ({begun / max(seconds, 0.1):.0f} runs/s)"
        )

    def show(self, run_id: str) -> None:
        """The run's report, its events and what happened in the world, for whoever has to find out."""
        number = int(run_id.rpartition("-")[2])
        for line in self._in_child(lambda scene, rt, runs: _story(rt, run_id)):
            print(f"    {line}")
        for one in self.scene.world.lines(number):
            print(f"    world: {one}")

    def costs(self) -> str:
        """Where the time went."""
        mine = sum(os.times()[:2])
        theirs = (f"{role}s {seconds:.0f} s in {self.born[role]} processes" for role, seconds in self.cpu_s.items())
        return f"CPU: {', '.join(theirs)}, conductor {mine:.0f} s"

    def say(self, what: str) -> None:
        """Progress is for stderr."""
        print(f"{self.scene.place.name}: {what}", file=sys.stderr, flush=True)


# ---- questions to the ledger, each asked in a child -----------------------------------------


def _create(scene: Scene, rt: Runtime, runs: int) -> None:
    return None


def _unended(scene: Scene, rt: Runtime, runs: int) -> tuple[int, list[int]]:
    """How many runs somebody still works at, and the numbers of those that wait for their program."""
    store = rt._host.store
    states = tuple(state for state in RUN_STATES if state not in RUN_FINAL)
    roots = [run for run in read_runs(store, states) if run.uid == run.root]
    busy, waiting = 0, []
    for run in roots:
        if run.state == "blocked" and _waits_for_a_person(store, run):
            continue
        number = int(run.id.rpartition("-")[2])
        if run.owner or run.wake_at is not None or scene.board.deliveries(number) >= DELIVERIES_MAX:
            busy += 1
        else:
            waiting.append(number)
    unheard = [n for n in range(runs) if scene.board.deliveries(n) and n not in waiting and _is_unknown(scene, rt, n)]
    return busy, waiting + unheard


def _waits_for_a_person(store: Store, run: RunRow) -> bool:
    tree = store.perform(ReadRun(run.tenant, uid=run.uid))
    return tree is not None and not not_visible(tree.run, list(tree.calls))


def _is_unknown(scene: Scene, rt: Runtime, number: int) -> bool:
    """A caller died before its run was in the ledger: there is nothing to recover, its program comes again."""
    if scene.board.has_ended(number) or scene.board.deliveries(number) >= DELIVERIES_MAX:
        return False
    try:
        rt.report(scene.run_id(number))
    except Exception:
        return True
    return False


def _audited(scene: Scene, rt: Runtime, runs: int) -> list[tuple[str, str, str]]:
    ids = {scene.run_id(n): n for n in range(runs) if scene.board.deliveries(n)}
    found = audit(rt, rt._host.store, scene.world, run_ids=ids)
    return [(one.count, one.run_id, one.what) for one in found]


def _story(rt: Runtime, run_id: str) -> list[str]:
    try:
        lines = str(rt.report(run_id)).splitlines()
        for event in rt.events(run_id):
            who = event.by.split("|")[-2] if "|" in event.by else event.by
            lines.append(
                f"{event.seq} {event.at:%H:%M:%S.%f} {event.run_id} {event.call_id or ''} {event.what}: "
                f"{event.frm} -> {event.to} by {who} {dict(event.facts)}"
            )
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    return lines
