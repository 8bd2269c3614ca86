"""A rolling upgrade under load: clients and workers of two versions over one ledger, killed, then compared with the world."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from amends import Runtime
from amends.ledger.operations import ListUnfinished
from tests.fleet.copies import SOURCE, command, environment
from tests.fleet.shop_world import Fact, read_world

SHOP: Final = Path(__file__).with_name("shop.py")
CHUNK: Final = 5
CLIENTS: Final = 2
WORKERS: Final = 2
TICK_S: Final = 0.02
DRAIN_S: Final = 120.0


@dataclass(slots=True)
class Member:
    """One process of the fleet."""

    role: str
    version: str
    process: subprocess.Popen[str]
    orders: list[int] = field(default_factory=list)
    log: Path | None = None


@dataclass(slots=True)
class Outcome:
    """What is compared: zeros, and how much of everything there was."""

    orders: int
    states: Counter[str]
    kills: Counter[str]
    by_tools: Counter[str]
    duplicated: list[str]
    lost: list[str]
    stuck: list[str]
    plan: str
    errors: str


class Fleet:
    """Old and new processes over one ledger."""

    def __init__(self, folder: Path, url: str, newer: Path, *, orders: int, kills: int, seed: int) -> None:
        self.folder, self.url, self.orders, self.kills_wanted = folder, url, orders, kills
        self.sources = {"old": SOURCE.parent, "new": newer}
        self.world = folder / "world.txt"
        self.world.touch()
        self.dice = random.Random(seed)
        self.members: list[Member] = []
        self.todo = deque(list(range(at, min(at + CHUNK, orders))) for at in range(0, orders, CHUNK))
        self.kills: Counter[str] = Counter()
        self.errors: list[str] = []
        self.born = 0
        self.done = 0

    def play(self, *, seconds: float) -> Outcome:
        """Old only; then the new version migrates beside them; then both; then the old ones are drained."""
        until = time.monotonic() + seconds
        try:
            command(self.sources["old"], "db", "migrate", "--url", self.url, cwd=self.folder)
            plan, is_migrated = "", False
            while self.todo or self._of("client") or self.kills.total() < self.kills_wanted:
                assert time.monotonic() < until, f"{len(self.todo)} chunks are left"
                assert not self.errors, self.errors[0]
                if not self.todo and self.kills.total() < self.kills_wanted:
                    # A fast machine is done before every kill was due: deliver orders again, which must change nothing.
                    self.todo.append([self.dice.randrange(self.orders) for _ in range(CHUNK)])
                progress = min(self.done / self.orders, 1.0)
                if not is_migrated and progress >= 0.15:
                    is_migrated, plan = True, self._migrate()
                self._staff(("old",) if not is_migrated else ("old", "new") if progress < 0.75 else ("new",))
                if self.kills.total() < self.kills_wanted * progress + 1 and self.members:
                    self._kill()
                time.sleep(TICK_S)
                self._reap()
            self._end()
        finally:
            for member in self.members:
                member.process.kill()
                member.process.wait()
        return self._compare(plan)

    def _migrate(self) -> str:
        plan = command(self.sources["new"], "db", "migrate", "--plan", "--url", self.url, cwd=self.folder)
        done = command(self.sources["new"], "db", "migrate", "--url", self.url, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return plan.stdout

    def _of(self, role: str) -> list[Member]:
        return [member for member in self.members if member.role == role]

    def _staff(self, versions: tuple[str, ...]) -> None:
        for member in self._of("worker"):
            if member.version not in versions and len(self._of("worker")) >= WORKERS:
                member.process.terminate()  # drained: its successor starts when it has ended
                member.role = "leaving"
        while len(self._of("worker")) < WORKERS:
            self._start("worker", versions[len(self._of("worker")) % len(versions)], [])
        while self.todo and len(self._of("client")) < CLIENTS:
            self._start("client", versions[len(self._of("client")) % len(versions)], self.todo.popleft())

    def _start(self, role: str, version: str, orders: list[int]) -> None:
        self.born += 1
        log = self.folder / f"{self.born}-{version}-{role}.log"
        tools = {"old": "1", "new": "2"}[version]
        env = environment(self.sources[version], AMENDS_URL=self.url, WORLD=str(self.world), TOOLS=tools)
        with log.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, str(SHOP), role, *map(str, orders)], cwd=self.folder, env=env, stderr=file, text=True
            )
        self.members.append(Member(role, version, process, orders, log))

    def _kill(self) -> None:
        member = self.dice.choice(self.members)
        if member.log is not None and not self._has_begun(member):
            return
        member.process.kill()
        self.kills[f"{member.version} {member.role}"] += 1

    def _has_begun(self, member: Member) -> bool:
        """Return whether it is past its imports: killing it there proves nothing."""
        return self.dice.random() < 0.1

    def _reap(self) -> None:
        for member in [member for member in self.members if member.process.poll() is not None]:
            self.members.remove(member)
            code = member.process.returncode
            if member.orders and code == -signal.SIGKILL:
                self.todo.append(member.orders)
            elif code == 0:
                self.done += len(member.orders)
            elif code not in (-signal.SIGKILL, -signal.SIGTERM):
                assert member.log is not None
                self.errors.append(f"{member.version} {member.role}: {member.log.read_text(encoding='utf-8')}")
                self.todo.extend([member.orders] if member.orders else [])

    def _end(self) -> None:
        """Let the workers end what is left, then drain them."""
        with Runtime(self.url, create=False) as rt:
            until = time.monotonic() + DRAIN_S
            while time.monotonic() < until and self._unfinished(rt):
                self._staff(("new",))
                time.sleep(TICK_S)
                self._reap()
        for member in self.members:
            member.process.terminate()
        for member in self.members:
            member.process.wait(60)

    def _unfinished(self, rt: Runtime) -> list[str]:
        rt._host.ready()
        return [row.id for row in rt._host.store.perform(ListUnfinished(None, limit=10_000))]

    def _compare(self, plan: str) -> Outcome:
        facts = read_world(self.world)
        with Runtime(self.url, create=False) as rt:
            states = {f"o-{number}": rt.report(f"o-{number}").state for number in range(self.orders)}
        return Outcome(
            orders=self.orders,
            states=Counter(states.values()),
            kills=self.kills,
            by_tools=Counter(fact.version for fact in facts),
            duplicated=_duplicated(facts),
            lost=_lost(facts, states),
            stuck=[order for order, state in states.items() if state not in ("committed", "rolled_back")],
            plan=plan,
            errors="".join(self.errors),
        )


def _duplicated(facts: list[Fact]) -> list[str]:
    """Return every effect that the world has twice under one key."""
    counts = Counter((fact.verb, fact.key) for fact in facts)
    return [f"{verb} {key}" for (verb, key), count in counts.items() if count > 1]


def _lost(facts: list[Fact], states: Mapping[str, str]) -> list[str]:
    """Return every order of which the world and the ledger say different things."""
    found = []
    for order, state in states.items():
        counts = Counter(fact.verb for fact in facts if fact.order == order)
        net, has = counts["charge"] - counts["refund"], (counts["wire"], counts["mail"])
        if (net, has) != ((1, (1, 1)) if state == "committed" else (0, (0, 0))):
            found.append(f"{order} is {state}: {dict(counts)}")
    return found
