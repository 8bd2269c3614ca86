"""The simulator: the flows of the engine in processes that crash on purpose.

A *process* runs a program (a flow) one operation at a time. Before and after every operation the simulation may
kill it, pause it past its lease (a zombie), lose the ledger's answer, or make the outside world misbehave. Time is
virtual. Everything is decided by the schedule, so a schedule that found a bug finds it again.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from amends.drivers.context import inside
from amends.encoding.ids import call_id, number_at
from amends.engine import agents, ending, model_plans, opening, recovery, rollback
from amends.engine.call import Done, guarded_call
from amends.engine.plain import PlainCall, plain_call
from amends.engine.session import Ask, Session, release_tree
from amends.errors import LedgerError, Suspended
from amends.host import runs
from amends.host.host import Host, View
from amends.host.requests import (
    agent_input,
    direct_ask,
    model_ask,
    own_child_name,
    plain_model_request,
    plain_request,
)
from amends.ledger.flow import Op
from amends.ledger.leases import Lease
from amends.ledger.operations import ClaimRun, OpenRun, ReleaseLease, RenewLeases, SettleCall, StoreOp
from amends.ledger.plain import FailPlain, SettlePlain
from amends.ledger.rows import RunRow
from amends.ledger.world import (
    Await,
    DrawRandom,
    Ended,
    Flight,
    Invoke,
    IsDead,
    KeepCheckpoint,
    LiveCalls,
    ReadAnchor,
    ReadClocks,
    RunTogether,
    Scrub,
    Sleep,
    Watch,
)
from amends.model import Answer
from amends.people.approvals import send_overdue_notices
from amends.stores.memory import MemoryStore
from amends.testing.clock import Clock, Remembered
from amends.tools.scope import Options

TURNS_MAX: Final = 20_000
"""A schedule longer than this does not end, which is a violation."""


class Crash(BaseException):
    """The process died. Not an ``Exception``: no flow sees it or cleans up after it."""


class Paused(BaseException):
    """The process is paused; everything else goes on."""


class Cancelled(BaseException):
    """The caller's task was cancelled: the flow ends, the process lives on."""


class Endless(AssertionError):
    """A schedule did not end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and at which operation of its process (counted from 0)."""

    at: int
    kind: str


@dataclass(slots=True)
class Process:
    """One simulated process: its program, its leases, and what will go wrong in it."""

    name: str
    host: str
    owner: str
    program: Coroutine[Any, Any, Any]
    faults: Mapping[int, str]
    leases: dict[str, Lease] = field(default_factory=dict)
    points: int = 0
    alive: bool = True
    paused: bool = False
    done: bool = False
    ready_at: float = 0.0
    ended: BaseException | None = None
    answer: Any = None
    error: BaseException | None = None
    trace: list[str] = field(default_factory=list)
    waiting_op: Op[Any] | None = None
    in_group: bool = False
    live: Counter[str] = field(default_factory=Counter)
    settles: list[SettleCall | SettlePlain | FailPlain] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    """Bodies under way that are flows, the innermost last."""


@dataclass(slots=True)
class Body:
    """A body that is itself a flow: it makes calls of its own, one operation at a time."""

    flow: Coroutine[Any, Any, Any]
    op: Invoke
    mode: str
    fault: str


Onlooker = Callable[["Simulation", Process, Invoke], None]


class Simulation:
    """A ledger, a clock, and processes that live and die by a schedule.

    ``make_store`` gets the clock and returns a new ledger, whose rows can be read as those of a ``MemoryStore``. If it
    has a method ``of``, each process uses the store that this returns for its owner; and if it has a method ``fail``, an
    operation that is not done at first was carried out, and its commit failed.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        lease_s: float = 30.0,
        make_store: Callable[[Callable[[], float]], MemoryStore] = MemoryStore,
    ) -> None:
        self.clock = Clock()
        self.store = make_store(lambda: self.clock.wall)
        self.anchor = Remembered()
        self.lease_s = lease_s
        self.luck = random.Random(seed)
        self.processes: list[Process] = []
        self.before_body: list[Onlooker] = []
        self.mode = "ok"
        """What the outside world does to the body that runs now; tools of the simulation look at it."""
        self.script: dict[str, list[str]] = {}
        """Modes by name of function, in order of its invocations; then everything works."""
        self.current: tuple[Process, Invoke] | None = None
        self.bodies = 0
        self.disturbed: list[str] = []
        self.hasty: list[str] = []
        """Runs that recovery took over while their client could still come back."""
        self._heard: dict[str, tuple[float, str]] = {}
        self._asked: dict[str, float] = {}
        """By root: when somebody last heard of its owner, or, if that let it go, of its client; and then on which host."""
        self.remembered: list[str] = []
        """Answers that a process gave without the ledger while its lease may have ended."""
        self.jumped = False
        self._ids = 0
        self._turns = 0
        self._is_slow = False

    def new_id(self, prefix: str) -> str:
        """Return ids in order, so that a schedule is the same every time; the number of a call has the time in it."""
        self._ids += 1
        if prefix == "call":
            return call_id(number_at(self.clock.wall, self._ids))
        return f"{prefix}_{self._ids:05d}"

    def start(
        self,
        name: str,
        program: Callable[[Process], Coroutine[Any, Any, Any]],
        *,
        host: str = "host",
        faults: tuple[Fault, ...] = (),
    ) -> Process:
        """Start a process that runs this program; ``faults`` go wrong at its operations."""
        number = len(self.processes) + 1
        process = Process(
            name, host, f"{host}|boot|ns|{number}|0", _never(), {fault.at: fault.kind for fault in faults}
        )
        process.program.close()
        process.program = program(process)
        self.processes.append(process)
        return process

    def _store_of(self, process: Process) -> MemoryStore:
        """Return the ledger as this process has it: what a store remembers, only its own process knows."""
        of = getattr(self.store, "of", None)
        store: MemoryStore = self.store if of is None else of(process.owner)
        return store

    # ---- Running

    def run(self, process: Process) -> None:
        """Run one process until it ends, dies or is paused."""
        while not process.done and process.alive and not process.paused:
            if process.ready_at > self.clock.mono:
                self.advance(process.ready_at - self.clock.mono)
            self.turn(process)

    def race(self, *processes: Process) -> None:
        """Interleave processes one operation at a time, in an order fixed by the seed."""
        while True:
            runnable = [p for p in processes if not p.done and p.alive and not p.paused]
            if not runnable:
                return
            ready = [p for p in runnable if p.ready_at <= self.clock.mono]
            if not ready:
                self.advance(min(p.ready_at for p in runnable) - self.clock.mono)
                continue
            self.turn(self.luck.choice(ready))

    def turn(self, process: Process) -> None:
        """Perform one operation of one process."""
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise Endless(f"{process.name} does not come to an end: {process.trace[-8:]}")
        try:
            op = process.waiting_op
            process.waiting_op = None
            if op is None:
                op = self._next_op(process)
            self._perform_for(process, op)
        except StopIteration as stop:
            process.done, process.answer = True, stop.value
        except Paused:
            process.paused = True
        except Crash:
            process.alive = False
        except Exception as error:  # the program itself ended with it
            process.done, process.ended = True, error
        except BaseException as error:  # a cancellation that reached the end of the program
            process.done, process.ended = True, error

    def _next_op(self, process: Process) -> Op[Any]:
        asked: Op[Any]
        while process.bodies:
            body = process.bodies[-1]
            try:
                return self._go_on(process, body)
            except StopIteration as stop:
                self._end_body(process, Ended(stop.value))
            except Exception as failed:
                self._end_body(process, Ended(error=failed))
            except BaseException as stopped:  # a cancellation is passed on to the caller of this body
                process.bodies.pop()
                process.error = stopped
        if process.error is not None:
            error, process.error = process.error, None
            asked = process.program.throw(error)
        else:
            answer, process.answer = process.answer, None
            asked = process.program.send(answer)
        return asked

    def _go_on(self, process: Process, body: Body) -> Op[Any]:
        """Return the next operation of a body that is a flow."""
        asked: Op[Any]
        answer, process.answer = process.answer, None
        error, process.error = process.error, None
        self.mode, self.current = body.mode, (process, body.op)
        try:
            with inside(body.op.run, body.op.call, body.op.phase, is_async=False):
                asked = body.flow.throw(error) if error is not None else body.flow.send(answer)
        finally:
            self.mode, self.current = "ok", None
        return asked

    def _end_body(self, process: Process, ended: Ended) -> None:
        body = process.bodies.pop()
        process.answer = ended
        match body.fault:
            case "after":
                raise Crash
            case "cancel after":
                process.answer, process.error = None, Cancelled()

    def _begin_body(self, process: Process, op: Invoke) -> None:
        fault = process.faults.get(process.points, "")
        process.points += 1
        process.trace.append(_named(op) + (f" <{fault}>" if fault else ""))
        match fault:
            case "before":
                raise Crash
            case "pause before":
                raise Paused
            case "cancel before":
                raise Cancelled
        self._about_to_run(process, op)
        process.bodies.append(Body(op.fn(**op.kwargs), op, self._mode_for(op, fault), fault))

    def _perform_for(self, process: Process, op: Op[Any]) -> None:
        try:
            if isinstance(op, Invoke) and getattr(op.fn, "is_flow", False):
                return self._begin_body(process, op)
            process.answer = self.perform(process, op)
        except _PausedWith as paused:
            process.answer, process.paused = paused.answer, True
        except Paused:
            process.waiting_op, process.paused = op, True
        except (Exception, Cancelled) as error:
            process.error = error

    def wake(self, process: Process) -> None:
        """Let a paused process go on as if no time had passed for it."""
        process.paused = False

    def kill(self, process: Process) -> None:
        """Kill the process where it is."""
        process.alive = False

    def advance(self, seconds: float) -> None:
        """Let time pass; living processes keep their leases, as their heartbeats would."""
        self.clock.advance(seconds)
        for process in self.processes:
            if process.alive and not process.paused and not process.done:
                self.renew(process)

    def renew(self, process: Process) -> None:
        """Renew the leases of a process, as its heartbeat does."""
        leases = {root: lease for root, lease in process.leases.items() if not lease.lost}
        if not leases:
            return
        epochs = {root: lease.epoch for root, lease in leases.items()}
        clocks = self.clock.read(process.host)
        renewed = self._store_of(process).perform(
            RenewLeases(process.owner, epochs, self.lease_s, boot=clocks.boot, mono=clocks.mono)
        )
        for root, lease in leases.items():
            if root in renewed.goals:
                lease.until = self.clock.mono + self.lease_s
                lease.is_wanted = lease.is_wanted or root in renewed.wanted
                self._heard[root] = (self.clock.mono, "")
            else:
                lease.lost = True

    # ---- One operation

    def perform(self, process: Process, op: Op[Any]) -> Any:
        """Perform one operation for a process, with the faults of its schedule."""
        if isinstance(op, StoreOp | Invoke | KeepCheckpoint | Scrub):
            return self._point(process, op)
        if isinstance(op, ReadAnchor):
            return op.anchor.read()
        if isinstance(op, ReadClocks):
            return self.clock.read(process.host)
        if isinstance(op, DrawRandom):
            return 0.5
        if isinstance(op, Watch):
            return None  # no wakeups in virtual time: polls are as frequent as they need to be
        if isinstance(op, Sleep | Await):
            process.ready_at = self.clock.mono + max(0.0, min(op.seconds, 1e6))
            return None
        if isinstance(op, IsDead):
            return self._is_dead(process, op.owner)
        if isinstance(op, LiveCalls):
            return process.live[op.run]
        if isinstance(op, RunTogether):
            return self._together(process, op)
        raise TypeError(f"the simulation does not know {type(op).__name__}")

    def _point(self, process: Process, op: StoreOp[Any] | Invoke | KeepCheckpoint | Scrub) -> Any:
        """Perform an operation at which a fault may happen."""
        fault = process.faults.get(process.points, "")
        process.points += 1
        process.trace.append(_named(op) + (f" <{fault}>" if fault else ""))
        match fault:
            case "before":
                raise Crash
            case "pause before" if not process.in_group:
                raise Paused
            case "cancel before" if isinstance(op, Invoke):
                raise Cancelled
            case "lost" if isinstance(op, StoreOp):
                self._store_of(process).perform(op)  # committed, and the answer was lost
                op.repeated = True
            case "unsent" if isinstance(op, StoreOp):
                self._leave_undone(process, op)
            case "redeliver" if process.settles:
                again: StoreOp[Any] = process.settles[0]
                self._store_of(process).perform(again)  # an old message arrives again
            case "slow" if isinstance(op, Invoke):
                # Almost the whole lease passes before the request leaves; it lands late; then the process dies.
                self.clock.advance(self.lease_s * 0.85)
                self._invoke(process, op, "body late")
                raise Crash
            case "clock back":
                self.clock.jump(-3_600.0)
            case "clock forward":
                self.jumped = True
                self.clock.jump(3_600.0)
        seen = len(self.store.events)
        answer = self._answer(process, op, fault)
        if isinstance(op, OpenRun | ClaimRun | ReleaseLease):
            self._watch_owners(seen)
            self._watch_clients(process, seen, op)
        if isinstance(op, SettleCall | SettlePlain | FailPlain):
            process.settles.append(replace(op, repeated=True))
        if fault == "after":
            raise Crash
        if fault == "pause after" and not process.in_group:
            raise _PausedWith(answer)
        if fault == "cancel after" and isinstance(op, Invoke):
            raise Cancelled
        return answer

    def _leave_undone(self, process: Process, op: StoreOp[Any]) -> None:
        """Get no answer of an operation that never arrived, or whose commit failed."""
        fail = getattr(self._store_of(process), "fail", None)
        if fail is not None:
            fail(op)
        op.repeated = True

    def _answer(self, process: Process, op: StoreOp[Any] | Invoke | KeepCheckpoint | Scrub, fault: str) -> Any:
        if isinstance(op, KeepCheckpoint):
            return op.anchor.keep_checkpoint(op.newest)
        if isinstance(op, Scrub):
            return op.store.scrub()
        return self._invoke(process, op, fault) if isinstance(op, Invoke) else self._store_of(process).perform(op)

    def _watch_owners(self, seen: int) -> None:
        """Note every run that was taken over from a process that lives and kept its lease."""
        for event in self.store.events[seen:]:
            owner = json.loads(event.facts).get("from_owner", "") if event.what == "taken over" else ""
            lives = any(
                p.owner == owner and p.alive and not p.paused and not p.done and event.root in p.leases
                for p in self.processes
            )
            if owner and lives:
                self.disturbed.append(f"run {event.run_id} was taken over from {owner}, which renews its lease")

    def _watch_clients(self, process: Process, seen: int, op: OpenRun | ClaimRun | ReleaseLease) -> None:
        """Note every run that recovery took although its client lease has not passed since the last sign of its owner."""
        if isinstance(op, ReleaseLease):
            heard = -math.inf if op.silent_s is None else self.clock.mono - op.silent_s
            self._heard[op.root] = (max(heard, self._asked.pop(op.root, heard)), process.host)
            return
        if isinstance(op, OpenRun) and op.wants:
            for run in self.store.runs.values():
                if (run.tenant, run.id) == (op.tenant, op.id) and run.owner not in ("", op.owner):
                    # Its client lives, and is at another server.
                    self._asked[run.root] = self.clock.mono
                    self._heard[run.root] = (self.clock.mono, process.host)
        for event in self.store.events[seen:]:
            if event.run != event.root or event.what not in ("run", "taken over"):
                continue
            run = self.store.runs[event.root]
            heard, host = self._heard.get(event.root, (-math.inf, ""))
            left = heard + run.client_lease_s - self.clock.mono
            # Silence that another boot has noted is counted on the ledger's clock, as for leases: that may have jumped.
            unsure = self.jumped and host not in ("", process.host)
            if isinstance(op, ClaimRun) and event.what == "taken over" and run.is_clients and left > 0 and not unsure:
                self.hasty.append(f"run {run.id} was recovered {left:.3f} s before its client lease had passed")
            self._heard[event.root] = (self.clock.mono, "")

    def _is_dead(self, process: Process, owner: str) -> bool:
        host = owner.split("|", 1)[0]
        if host != process.host:
            return False
        return any(p.owner == owner and not p.alive for p in self.processes)

    def _about_to_run(self, process: Process, op: Invoke) -> None:
        if process.faults.get(process.points - 1) != "slow" or not self._is_slow:
            self.renew(process)
        if op.lease is not None:
            op.lease.check(self.clock.mono)
        for watch in self.before_body:
            watch(self, process, op)
        self.bodies += 1
        if op.flight is not None:
            op.flight.sent = True

    def _mode_for(self, op: Invoke, fault: str) -> str:
        scripted = self.script.get(getattr(op.fn, "__name__", ""), [])
        return fault.removeprefix("body ") if fault.startswith("body ") else (scripted.pop(0) if scripted else "ok")

    def _invoke(self, process: Process, op: Invoke, fault: str) -> Ended:
        self._is_slow = fault == "body late"
        self._about_to_run(process, op)
        self.mode = self._mode_for(op, fault)
        self.current = (process, op)
        try:
            with inside(op.run, op.call, op.phase, is_async=False):
                return Ended(op.fn(**op.kwargs))
        except Exception as error:
            return Ended(error=error)
        finally:
            self.mode, self.current = "ok", None

    def _together(self, process: Process, op: RunTogether) -> list[Any]:
        """Run flows concurrently inside one process: one operation each, in an order fixed by the seed."""
        try:
            return self._side_by_side(process, op)
        finally:
            process.in_group = False
            for flow in op.flows:
                flow.close()

    def _side_by_side(self, process: Process, op: RunTogether) -> list[Any]:
        process.in_group = True
        ends: dict[int, Any] = {}
        inbox: dict[int, tuple[Any, BaseException | None]] = dict.fromkeys(range(len(op.flows)), (None, None))
        is_cancelled = False
        until: dict[int, float] = dict.fromkeys(inbox, 0.0)
        while inbox:
            ready = [n for n in inbox if until[n] <= self.clock.mono]
            if not ready:
                self.advance(min(until[n] for n in inbox) - self.clock.mono)
                continue
            turn = self.luck.choice(ready)
            answer, error = inbox.pop(turn)
            try:
                asked = op.flows[turn].throw(error) if error is not None else op.flows[turn].send(answer)
            except StopIteration as stop:
                ends[turn] = stop.value
                continue
            except (Exception, Cancelled) as failed:
                ends[turn] = failed
                continue
            try:
                inbox[turn] = (self.perform(process, asked), None)
                until[turn], process.ready_at = max(until[turn], process.ready_at), 0.0
            except Exception as failed:
                inbox[turn] = (None, failed)
            except Cancelled:
                # As on an event loop: every member is cancelled, and may still clean up before the group ends.
                is_cancelled = True
                inbox = dict.fromkeys([turn, *inbox], (None, Cancelled()))
                until = dict.fromkeys(inbox, 0.0)
        if is_cancelled:
            raise Cancelled
        return [ends[n] for n in sorted(ends)]


class _PausedWith(Paused):
    """Paused after the operation; the process gets its answer when it wakes."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


def _named(op: Op[Any]) -> str:
    if isinstance(op, Invoke):
        return f"{op.phase} {getattr(op.fn, '__name__', '?')}"
    return type(op).__name__


async def _never() -> None:
    return None


# ---- Programs of agents, workers and people


NOBODY: Final = View(None, None, None)
Agent = Callable[["Inside"], Coroutine[Any, Any, Any]]


class Inside:
    """What a simulated program can use: its process, the tools, the ledger."""

    def __init__(self, sim: Simulation, host: Host, process: Process) -> None:
        self.sim, self.host, self.process = sim, host, process
        host.forget()  # another process knows only what the ledger says

    def run(self, id: str, *, agent: str = "", **options: Any) -> SimulatedBlock:
        """Return a block: ``async with inside.run("r"):`` is ``with rt.run("r"):``."""
        return SimulatedBlock(self, id, agent=agent, **options)

    async def open(self, id: str, **options: Any) -> SimulatedRun:
        """Open or resume a run."""
        wanted = self.host.opening(NOBODY, id, options.pop("input", None), options)
        wanted = _owned_by(wanted, self.process.owner)
        while True:
            opened, lease = await opening.take(wanted)
            resumed = opened.how == "resumed"
            session = self.host.session(opened.run, lease, resumed=resumed, wait_s=wanted.wait_s)
            if opened.how == "ended":
                return SimulatedRun(self, session, over=True)
            self.process.leases[lease.root] = lease
            recovered = SimulatedRun(self, session, over=False)  # whatever recovery calls needs to know its run
            row = opened.run
            if resumed:
                row = await recovered._ending(opening.go_on(session, opened.run))
            if row.state != "rolled_back":
                return SimulatedRun(self, session, over=row.state == "committed")

    async def recover(self, agents: dict[str, Agent] | None = None, *, limit: int = 100) -> int:
        """Do one pass of a worker; return how many trees it claimed."""
        await send_overdue_notices(self.host, NOBODY, limit)
        found = await recovery.find_abandoned(frozenset(self.host.specs), tenant=None, limit=limit)
        taken = 0
        for one in found:
            if one.missing:
                continue
            claimed = await recovery.claim(
                one, owner=self.process.owner, lease_s=self.sim.lease_s, new_id=self.sim.new_id
            )
            if claimed is not None:
                taken += 1
                await self._recover(*claimed, agents or {})
        return taken

    async def _recover(self, row: RunRow, lease: Any, agents: dict[str, Agent]) -> None:
        self.process.leases[lease.root] = lease
        patience = runs.PATIENCE_S_MAX
        session = self.host.session(row, lease, resumed=True, wait_s=patience, said=(patience, patience))
        recovered = SimulatedRun(self, session, over=False)
        try:
            done = await recovered._ending(recovery.recover_tree(session, row, has_agent=row.agent in agents))
        except LedgerError:
            now = self.sim.store.runs[lease.root]
            if (now.owner, now.epoch) == (lease.owner, lease.epoch) and not self.sim.disturbed:
                raise
            return  # taken over meanwhile, or the ledger was away
        if done.how == "resume":
            session.waits_for_doubts = True
            await _to_its_end(lambda: agents[row.agent](_With(self, recovered)))
        self.process.leases.pop(lease.root, None)


class _With(Inside):
    """Runs the program of a run that a worker has claimed: its block is already open."""

    def __init__(self, inside: Inside, run: SimulatedRun) -> None:
        super().__init__(inside.sim, inside.host, inside.process)
        self._run = run

    def run(self, id: str, *, agent: str = "", **options: Any) -> SimulatedBlock:
        return SimulatedBlock(self, id, agent=agent, claimed=self._run, **options)


async def _to_its_end(program: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    try:
        await program()
    except Exception:
        return


def _owned_by(wanted: opening.Opening, owner: str) -> opening.Opening:
    from dataclasses import replace

    return replace(wanted, owner=owner)


class NoNestedCalls(Exception):
    """A body of the simulation called a tool directly, which the simulation does not support."""


class SimulatedRun:
    """One opened run: the same flows as ``Run`` and ``AsyncRun``."""

    is_async = _is_nowhere = _is_replay = False

    def __init__(self, inside: Inside, session: Session, *, over: bool) -> None:
        self.inside, self.session, self.over = inside, session, over
        session.run = self
        self.id = session.id

    async def call(self, tool: Any, *, again: str | None = None, **args: Any) -> Any:
        """Call a tool in this run; a cancellation turns a started call into doubt."""
        declared, _ = runs.declared_as(tool)
        options = Options(again=again)
        call = plain_request(self.inside.host, self.session, declared, options, (), args)
        if call is not None:
            return await self._plainly(call)
        return (await self.do(direct_ask(self.inside.host, self.session, declared, options, (), args))).value

    async def _plainly(self, call: PlainCall) -> Any:
        process, lease = self.inside.process, self.session.lease
        points = process.points
        value = await self._counted(plain_call(call), call)
        if process.points == points and not lease.is_ours(self.inside.sim.clock.mono):
            self.inside.sim.remembered.append(f"{call.tool} was answered from memory without a lease")
        return value

    async def ask(self, tool: str, args: Mapping[str, Any], *, handler: Callable[..., Any] | None = None) -> Any:
        """Call a tool as a model does: by its name, with plain data; ``handler``: the body, as an adapter has it."""
        host, call = self.inside.host, None
        if handler is None:
            call = plain_model_request(host, self.session, tool, args, tool_call_id=None)
        if call is not None:
            return await self._plainly(call)
        asked = model_ask(host, self.session, tool, args, handler=handler, tool_call_id=None, again=None)
        return (await self.do(asked)).value

    async def do(self, ask: Ask) -> Done:
        """Perform a request in this run."""
        done: Done = await self._counted(guarded_call(self.session, ask), ask.flight)
        return done

    async def _counted(self, flow: Coroutine[Any, Any, Any], flight: Any) -> Any:
        """Run the flow of a call; a cancellation turns what it has started into doubt."""
        live, lineage = self.inside.process.live, self.session.lineage
        live.update(lineage)
        try:
            return await flow
        except Exception:
            raise
        except GeneratorExit:  # the process died
            raise
        except BaseException:
            await ending.stop_call(self.session, flight)
            raise
        finally:
            live.subtract(lineage)

    async def execute(self, calls: Sequence[object]) -> list[Answer]:
        """Run a plan; a cancellation turns its started calls into doubt."""
        flights: list[Flight] = []
        live, lineage = self.inside.process.live, self.session.lineage
        live.update(lineage)
        try:
            return await model_plans.run_plan(self.session, calls, flights=flights)
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            for flight in flights:
                await ending.stop_call(self.session, flight)
            raise
        finally:
            live.subtract(lineage)

    async def delegate(self, tool: Any, work: Callable[[SimulatedRun], Coroutine[Any, Any, Any]], **args: Any) -> None:
        """Let an agent do what was asked of it, in a child run, as ``Run`` does; ``work`` is the agent itself."""
        declared, _ = runs.declared_as(tool)
        ask = direct_ask(self.inside.host, self.session, declared, Options(), (), args)
        live, lineage = self.inside.process.live, self.session.lineage
        live.update(lineage)
        try:
            child = await self.child(own_child_name(ask), agent_input(ask))
            if child.over:
                return
            child.session.closing = agents.closing_of(child.session)
            try:
                await agents.allow(child.session, ask)
                await work(child)
                await agents.wait_for_person(child.session)
            except GeneratorExit:  # the process died
                raise
            except BaseException as error:
                is_stopped = not isinstance(error, Exception)
                await child.leave(Suspended(f"{ask.spec.name} was stopped", run_id=child.id) if is_stopped else error)
                raise
            await child.leave()
        finally:
            live.subtract(lineage)

    async def child(self, name: str, input: object = None) -> SimulatedRun:
        """Open a child of this run."""
        opened, session = await runs.child_of(self.inside.host, self.session, name, input)
        return SimulatedRun(self.inside, session, over=opened.how == "ended" or session.state == "committed")

    async def leave(self, error: BaseException | None = None) -> None:
        """Leave the block, in one of the nine ways that the surface has."""
        if not self.over:
            await self._ending(ending.leave(self.session, error, None))
        self.over = True

    async def _ending(self, flow: Any) -> Any:
        """Run a flow that ends the run; a cancellation leaves doubt, and a run that others can claim at once."""
        try:
            return await flow
        except (Exception, GeneratorExit):
            raise
        except BaseException:
            await rollback.clean_up_stopped_flow(self.session)
            raise

    async def let_go(self) -> None:
        """Release the run."""
        await release_tree(self.session, None)

    def direct(self, declared: Any, options: Any, args: Any, kwargs: Any) -> Any:
        """Raise ``NoNestedCalls``: bodies of the simulation call no tools directly."""
        raise NoNestedCalls("a simulated body called a tool")


class SimulatedBlock:
    """``async with``: leaving works as in ``Run``; a dead process leaves nothing."""

    def __init__(self, inside: Inside, id: str, *, claimed: SimulatedRun | None = None, **options: Any) -> None:
        self._inside, self._id, self._claimed, self._options = inside, id, claimed, options
        self._run: SimulatedRun | None = None

    async def __aenter__(self) -> SimulatedRun:
        self._run = self._claimed or await self._inside.open(self._id, **self._options)
        return self._run

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        assert self._run is not None, "a block is left after it was entered"
        if isinstance(error, GeneratorExit):
            return
        await self._run.leave(error)
        self._inside.process.leases.pop(self._run.session.root, None)
