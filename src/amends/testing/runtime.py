"""A runtime for tests: in memory, in virtual time, and it can crash."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from amends.drivers.blocking import Driver, Live
from amends.errors import UsageError, WrongColour
from amends.host.heartbeat import Heartbeat
from amends.host.host import Host, View
from amends.host.work_leases import WorkLeases
from amends.ledger.flow import Op
from amends.ledger.operations import StoreOp
from amends.ledger.store import Store
from amends.ledger.world import Await, DrawRandom, Ended, Invoke, IsDead, ReadClocks, Sleep, Watch
from amends.model import Approval
from amends.run import Run
from amends.runtime import Runtime
from amends.stores.memory import MemoryStore
from amends.testing.clock import Clock
from amends.testing.simulation import Crash
from amends.tools.scope import caller_here


class TestClock(Clock):
    """Virtual time; open runs keep their leases while it passes."""

    __test__ = False

    def __init__(self) -> None:
        super().__init__()
        self._passing: list[Callable[[], object]] = []

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        super().advance(seconds)
        for heartbeat in self._passing:
            heartbeat()


class TestDriver(Driver):
    """The blocking driver in virtual time. It can die at any operation, and does nothing after that."""

    __test__ = False

    def __init__(self, store: Store, live: Live, lease_s: float, clock: Clock, dead_owners: set[str]) -> None:
        super().__init__(store, live, lease_s)
        self.clock, self.dead_owners = clock, dead_owners
        self.mono = lambda: clock.mono
        self.faults: dict[int, str] = {}
        self.points = 0
        self.dead = False
        self.trace: list[str] = []
        self.loses: frozenset[str] = frozenset()
        """The phases whose requests are lost, every one: "execute", for example."""
        self.finished: list[tuple[str, str]] = []
        """Call id and phase of every body that ran to its end without an error."""
        self.returned: object = None
        """What the last of them returned, before it was recorded."""

    def perform(self, op: Op[Any]) -> Any:
        """Perform one operation, unless the process dies here."""
        if self.dead:
            raise Crash
        if isinstance(op, StoreOp | Invoke):
            return self._point(op)
        if isinstance(op, ReadClocks):
            return self.clock.read("test")
        if isinstance(op, Watch):
            return None  # no wakeups in virtual time: polls are as frequent as they need to be
        if isinstance(op, Sleep | Await):
            return self.clock.advance(max(0.0, min(op.seconds, 1e7)))
        if isinstance(op, DrawRandom):
            return 0.5
        if isinstance(op, IsDead):
            return op.owner in self.dead_owners
        return super().perform(op)

    def _point(self, op: StoreOp[Any] | Invoke) -> Any:
        fault = self.faults.get(self.points, "")
        self.points += 1
        self.trace.append(f"{op.phase} {op.call.tool}" if isinstance(op, Invoke) else type(op).__name__)
        if fault == "before":
            self.die()
        if isinstance(op, Invoke) and (fault == "request lost" or op.phase in self.loses):
            return Ended(error=TimeoutError("the request was lost (simulated)"))
        answer = super().perform(op)
        if isinstance(op, Invoke) and answer.error is None and not answer.in_flight:
            self.finished.append((op.call.id, op.phase))
            self.returned = answer.value
        if fault == "after":
            self.die()
        if isinstance(op, Invoke) and fault == "answer lost":
            return Ended(error=TimeoutError("the answer was lost (simulated)"))
        return answer

    def die(self) -> None:
        """End the process here, as SIGKILL would."""
        self.dead = True
        raise Crash


class TestRuntime(Runtime):
    """``Runtime`` in memory with its own clock. Reads no environment and no file."""

    __test__ = False

    def __init__(
        self,
        *,
        tools: Iterable[object] = (),
        agents: Mapping[str, Callable[[Run], object]] | None = None,
        store: MemoryStore | None = None,
        clock: TestClock | None = None,
        on_approval_needed: Callable[[Approval], object] | None = None,
        **options: Any,
    ) -> None:
        self.clock = TestClock() if clock is None else clock
        memory = MemoryStore(clock=lambda: self.clock.wall) if store is None else store
        self._host = Host({"url": "memory:", **options}, tools, store=memory, alone=True, hook=on_approval_needed)
        self._host.heartbeat = Heartbeat(
            memory.perform,
            self._host.lease_s,
            mono=lambda: self.clock.mono,
            boot=lambda: self.clock.read("test").boot,
            beats=False,
        )
        self._host.checkpointer.beats = False  # virtual time passes no thread
        self._host.work_leases = WorkLeases(mono=lambda: self.clock.mono, watches=False)
        self.clock._passing.append(self._renew)
        self._deaths: set[str] = set()
        self._births = 0
        self._memory = memory
        value = self._host.value
        self._view = View(value("tenant"), value("agent"), value("principal"))
        self._host.agents.update(agents or {})
        self._be_born()

    def worker(self, *, every: float = 1.0, limit: int = 100, concurrency: int = 1) -> NoReturn:
        """Raise ``UsageError``: in virtual time nothing happens beside a test."""
        raise UsageError("a runtime for tests has a clock of its own and no worker", hint="rt.recover() does one pass")

    def _on_a_loop(self) -> NoReturn:
        raise WrongColour(
            "the agent is async, and a runtime for tests resumes blocking agents only",
            tool="agent",
            hint="test it with AsyncRuntime('memory:')",
        )

    def _renew(self) -> None:
        self._host.heartbeat.renew(self._host.heartbeat.kept())
        self._host.work_leases.look()

    def crash(self) -> None:
        """Crash here, as by SIGKILL: open runs stay as they are, and this object becomes a new process.

        Inside a run it raises ``Crash``, which is not an ``Exception``: nothing cleans up on the way out.
        """
        self._test_driver.dead = True
        self._deaths.add(self._host.owner)
        self._host.forget()
        for lease in self._host.heartbeat.kept():
            self._host.heartbeat.forget(lease)
        self._host.work_leases.clear()
        self._be_born()
        if caller_here() is not None:
            raise Crash

    def approve_all(self, by: str = "tester") -> list[Approval]:
        """Approve every pending request, however many people it needs, and return what was approved."""
        waiting = list(self.approvals())
        return [self.bypass(one.id, digest=one.digest, by=by, why="a test") for one in waiting]

    def _be_born(self) -> None:
        self._births += 1
        self._host.be(f"test|boot|ns|{self._births}|0")
        self._host.live = Live()
        self._driver = self._test_driver = TestDriver(
            self._host.hiding.kept, self._host.live, self._host.lease_s, self.clock, self._deaths
        )


def runtime(*, tools: Iterable[object] = (), **options: Any) -> TestRuntime:
    """Return a runtime in memory with its own clock; it reads no environment and no file."""
    return TestRuntime(tools=tools, **options)
