"""The outside world of the simulation: it records every real effect, and nothing in amends can change that record."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from amends.budgets import amount_in, text_of
from amends.encoding.canonical import encode
from amends.encoding.payloads import decode
from amends.ledger.budgets import RESERVED, read_charge
from amends.ledger.rows import CallRow, SliceRow
from amends.ledger.world import Invoke
from amends.model import Absent, Approval, Happened, NoEffect, Probed, Unknown
from amends.report import RollbackPlan
from amends.states import UNSETTLED
from amends.stores.memory import MemoryStore
from amends.testing.simulation import Process, Simulation

# ---- Budgets compared with calls


def imbalances(slices: Iterable[SliceRow], calls: Iterable[CallRow]) -> Iterator[str]:
    """Yield every slice that disagrees with its calls, and every budget whose slices could exceed its cap."""
    held: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in calls:
        if not call.cost:
            continue
        charge = read_charge(call.cost)
        for name, unit, asked in charge.taken:
            for place, amount in enumerate(charge.standing(unit, asked, charge.phase)):
                held[name][place] += amount
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    caps: dict[str, set[str]] = defaultdict(set)
    for row in slices:
        expected = tuple(map(text_of, held[row.name]))
        if (row.reserved, row.spent) != expected:
            yield f"slice {row.name} has {row.reserved} reserved and {row.spent} spent; its calls have {expected}"
        ident = row.name.partition("/")[0]
        used = amount_in(row.reserved) + amount_in(row.spent)
        for place, amount in enumerate((amount_in(row.allot), used, max(0, amount_in(row.allot) - used))):
            sums[ident][place] += amount
        caps[ident].add(row.cap)
    for ident, texts in caps.items():
        allotted, used, free = sums[ident]
        cap = amount_in(min(texts))
        # Less than the cap after it was exceeded once, until slices are allotted again; never more, and never more free.
        if len(texts) > 1 or allotted > cap or free > max(0, cap - used):
            yield f"the slices of budget {ident} are allotted {text_of(allotted)} of {sorted(texts)}"


def overdrawn(slices: Iterable[SliceRow]) -> Iterator[str]:
    """Yield every budget of which more than its cap is spent and reserved."""
    used: dict[str, int] = defaultdict(int)
    caps: dict[str, tuple[str, str]] = {}
    for row in slices:
        ident = row.name.partition("/")[0]
        used[ident] += amount_in(row.reserved) + amount_in(row.spent)
        caps[ident] = row.cap, row.unit
    for ident, (cap, unit) in caps.items():
        if used[ident] > amount_in(cap):
            yield f"{text_of(used[ident])} {unit} of {cap} is spent or reserved"


def unpaid(calls: Iterable[CallRow]) -> Iterator[str]:
    """Yield every call that has, or may have, an effect and holds nothing of its budgets."""
    may = (UNSETTLED - {"held", "ready"}) | {"compensating", "compensation_failed", "compensation_in_doubt", "residue"}
    for call in calls:
        if not call.cost or call.state not in may | {"succeeded"}:
            continue
        charge = read_charge(call.cost)
        wanted = "spent" if call.state == "succeeded" else ("reserved", "spent")
        if charge.phase not in wanted:
            yield f"{call.tool} ({call.id}) is {call.state} and what it costs is {charge.phase}"


def overspent(store: MemoryStore, stands: Callable[[str], bool]) -> Iterator[str]:
    """Yield every budget whose standing effects have cost more than its cap."""
    used: dict[str, int] = defaultdict(int)
    for call in store.calls.values():
        if call.cost and stands(call.id):
            charge = read_charge(call.cost)
            if charge.passed:
                continue  # a person allowed it
            for name, unit, _ in charge.taken:
                used[name.partition("/")[0]] += charge.actual(unit)
    for row in {row.name.partition("/")[0]: row for row in store.slices.values()}.values():
        if used[row.name.partition("/")[0]] > amount_in(row.cap):
            yield f"the effects have cost {text_of(used[row.name.partition('/')[0]])} {row.unit}; the cap is {row.cap}"


# ---- The world


class Broke(Exception):
    """An ordinary error of a tool."""


@dataclass(frozen=True, slots=True)
class Landing:
    """One effect, or one compensation, that arrived in the world."""

    call_id: str
    tool: str
    key: str
    phase: str
    at: float
    refused: bool = False
    """Whether the destination refused it."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One notification about a request, delivered or not."""

    approval: str
    arrived: bool
    failed: bool
    """Whether the hook failed, so that it is called again."""
    reached: int = 0
    """Which notice about the request it is: each reminder and each escalation is one of its own."""


@dataclass(slots=True)
class Traits:
    """How the destination of a tool behaves."""

    dedups: bool = False
    comp_dedups: bool = False
    wins: bool = False
    tolerant: bool = False
    settle: float = 0.0


@dataclass(slots=True)
class World:
    """Effects, in the order in which they arrived, and what went wrong on the way."""

    sim: Simulation
    traits: dict[str, Traits] = field(default_factory=dict)
    landings: list[Landing] = field(default_factory=list)
    unwritten: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    lies: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    """Compensations that a living process left as if one of its flows were still running them."""
    alone: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)
    unlocked: list[str] = field(default_factory=list)
    deadlocks: list[str] = field(default_factory=list)
    unapproved: list[str] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    asks: frozenset[str] = frozenset()
    """Tools that never start without an approval."""
    unrepeated: frozenset[str] = frozenset()
    """Tools that a model repeats on purpose although no repeat was offered."""
    overspent: list[str] = field(default_factory=list)
    unpaid: list[str] = field(default_factory=list)
    answers: list[tuple[str, str, str]] = field(default_factory=list)
    """Root run, tool and value of every result that a program got."""
    later: list[tuple[float, Landing]] = field(default_factory=list)
    unknown_probes: int = 0
    broken_probes: int = 0
    plans: dict[str, RollbackPlan] = field(default_factory=dict)
    """Every rollback plan that a person was shown, by its hash."""
    told_stale: list[str] = field(default_factory=list)
    read: list[tuple[str, int, object]] = field(default_factory=list)
    """Run, number and value of every clock, random number or id that a program read through its run."""
    replaying: set[str] = field(default_factory=set)
    """Processes that replay a run now."""
    impatient: list[str] = field(default_factory=list)
    """Calls inside a body that stopped waiting while a person could still have approved them."""
    replay_bodies: list[str] = field(default_factory=list)
    """Bodies that one of them started."""

    stopped: set[str] = field(default_factory=set)
    """Runs that whoever reads their agent's answers has stopped."""
    interrupted: set[str] = field(default_factory=set)
    """Runs whose block ended early after the pivot."""
    mistaken: list[str] = field(default_factory=list)
    """Bodies and compensations that got other arguments than were recorded."""
    mixed: list[str] = field(default_factory=list)
    """Requests that differ in class only and were taken for one."""
    sets: frozenset[str] = frozenset()
    """Tools that set the value, whose effect is not a landing: the newest one overwrites the others."""
    value: int = 0
    stranger: int | None = None
    """What somebody else has set it to since; nobody may overwrite that."""
    puts: list[tuple[float, int, str, str]] = field(default_factory=list)
    """Values that will arrive late: when, which, of which call and in which phase."""
    set_by: set[tuple[str, str]] = field(default_factory=set)
    """The calls, and phases of them, whose value has arrived."""
    asked: dict[str, int] = field(default_factory=dict)
    """By run: the last value that its program was told to be set."""
    misread: list[str] = field(default_factory=list)
    """Setters that started with another ``before`` than was there, or with none."""
    reported: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    """By call, phase and attempt: what its performer has reported late, and the ledger has answered; True: it happened."""
    untaken: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    """By call: how often its compensation may be tried, and the attempts that nobody was there to do."""

    def __post_init__(self) -> None:
        self.sim.before_body.append(self._watch)

    # ---- What tools do

    def act(self) -> str:
        """Have the effect of a tool's body; the schedule says what goes wrong."""
        _, op = self._now()
        landing = self._landing(op, "execute")
        self._happen(landing)
        return result_of(op.call.key)

    def undo(self) -> None:
        """Have the effect of a compensation."""
        _, op = self._now()
        self._happen(self._landing(op, "compensate"))

    def probe(self) -> Probed[str]:
        """Return what the world knows of a call."""
        _, op = self._now()
        if self.broken_probes > 0:
            self.broken_probes -= 1
            raise NameError("the probe has a bug")
        if self.unknown_probes > 0:
            self.unknown_probes -= 1
            return Unknown("not yet")
        if self.sim.mode == "unknown":
            return Unknown("no answer")
        self.settle_late()
        return Happened(result_of(op.call.key)) if self._in_place(op.call.key) else Absent()

    def read_value(self) -> int:
        """Read the value that setters set."""
        self.land_puts()
        if self.sim.mode in ("raise", "no effect"):
            raise Broke("it cannot be read")
        if self.sim.mode not in ("", "ok", None):
            raise TimeoutError("no answer")
        return self.value

    def put(self, value: int) -> None:
        """Set the value; the destination takes every request as it comes."""
        self.land_puts()
        _, op = self._now()
        match self.sim.mode:
            case "raise":
                raise Broke("it broke before anything happened")
            case "no effect":
                raise NoEffect("certainly nothing")
            case "request lost":
                raise TimeoutError("no answer")
            case "late":
                settle = self.traits.get(op.call.tool, Traits()).settle
                self.puts.append((self.sim.clock.mono + settle * 0.9, value, op.call.id, op.phase))
                raise TimeoutError("no answer")
        self.value = value
        self.set_by.add((op.call.id, op.phase))
        if self.sim.mode not in ("", "ok", None):
            raise TimeoutError("no answer")

    def land_puts(self, *, at_once: bool = False) -> None:
        """Let every value arrive that is due; ``at_once``: all of them."""
        due = sorted(one for one in self.puts if at_once or one[0] <= self.sim.clock.mono)
        self.puts = [one for one in self.puts if one not in due]
        for _, value, call_id, phase in due:
            self.value = value
            self.set_by.add((call_id, phase))

    def given(self, name: str, says: str, value: object) -> None:
        """Compare the value that a body or a compensation got with ``says``, its repr when the caller asked."""
        if repr(value) != says:
            self.mistaken.append(f"{name} was requested with {says} but got {value!r}")

    def probe_undo(self) -> Probed[None]:
        """Return what the world knows of a compensation, by its own key."""
        _, op = self._now()
        if self.sim.mode == "unknown":
            return Unknown("no answer")
        landed = any(one.key == op.call.key and one.phase == "compensate" for one in self.landings)
        return Happened(None) if landed else Absent()

    def hear(self, approval: Approval) -> None:
        """Notify people of a request."""
        lost, failed = self.sim.mode == "raise", self.sim.mode in ("raise", "answer lost")
        self.notices.append(Notice(approval.id, arrived=not lost, failed=failed, reached=approval.reached))
        if failed:
            raise Broke("it is unknown whether the notice arrived")

    def _now(self) -> tuple[Process, Invoke]:
        assert self.sim.current is not None, "only bodies touch the world"
        return self.sim.current

    def _landing(self, op: Invoke, phase: str) -> Landing:
        return Landing(op.call.id, op.call.tool, op.call.key, phase, self.sim.clock.mono)

    def _happen(self, landing: Landing) -> None:
        self.settle_late()
        match self.sim.mode:
            case "raise":
                raise Broke("it broke before anything happened")
            case "no effect":
                raise NoEffect("certainly nothing")
            case "final no":
                raise NoEffect("nothing, and never", final=True)
            case "request lost":
                raise TimeoutError("no answer")
            case "late":
                settle = self.traits.get(landing.tool, Traits()).settle
                self.later.append((self.sim.clock.mono + settle * 0.9, landing))
                raise TimeoutError("no answer")
        self._land(landing)
        # Without a probe, an ordinary error claims that nothing happened: for a compensation that would be a lie.
        if self.sim.mode == "answer lost" or (self.sim.mode == "raise after" and landing.phase == "compensate"):
            raise TimeoutError("no answer")
        match self.sim.mode:  # the same loss, under another error
            case "lost in a group":
                raise ExceptionGroup("several", [Broke("one"), ExceptionGroup("more", [TimeoutError("no answer")])])
            case "lost in a chain":
                raise Broke("it broke") from TimeoutError("no answer")
            case "lost in a handler":
                try:
                    raise TimeoutError("no answer")
                except TimeoutError:
                    raise Broke("it broke")  # noqa: B904 (this is what is tried)
        if self.sim.mode == "raise after":
            raise Broke("it broke after it had happened")

    def hand_out(self, row: CallRow, key: str, phase: str, *, until: float) -> None:
        """Give a piece of work to a performer outside every process: it acts at the last moment that its lease allows."""
        self.later.append((until, Landing(row.id, row.tool, key, phase, self.sim.clock.mono)))

    def hand_out_here(self, until: float) -> str:
        """Give the work of the body that runs now to a performer outside; return what that will answer."""
        _, op = self._now()
        match self.sim.mode:
            case "raise":
                raise Broke("it broke before anything was handed out")
            case "no effect":
                raise NoEffect("certainly nothing")
            case "request lost":
                raise TimeoutError("no answer")
        self.later.append((until, self._landing(op, op.phase)))
        if self.sim.mode == "raise after" and op.phase == "execute":
            raise Broke("it broke while its performer goes on")
        if self.sim.mode not in ("", "ok", None):
            raise TimeoutError("no answer, and its performer goes on")
        return result_of(op.call.key)

    def renewed(self, call_id: str, *, until: float) -> None:
        """Let a performer go on for its renewed lease, if it has not acted."""
        self.later = [(until if one.call_id == call_id else at, one) for at, one in self.later]

    def performed(self, call_id: str) -> bool:
        """Let a performer act now, if it has not; return whether its effect has arrived."""
        self.later = [(self.sim.clock.mono if one.call_id == call_id else at, one) for at, one in self.later]
        self.settle_late()
        return any(one.call_id == call_id for one in self.landings)

    def settle_late(self) -> None:
        """Let every late effect arrive whose time has come."""
        due = sorted((one for one in self.later if one[0] <= self.sim.clock.mono), key=lambda one: one[0])
        self.later = [one for one in self.later if one[0] > self.sim.clock.mono]
        for _, landing in due:
            self._land(landing)

    def _land(self, landing: Landing) -> None:
        traits = self.traits.get(landing.tool, Traits())
        dedups = traits.dedups if landing.phase == "execute" else traits.comp_dedups
        if dedups and any(one.key == landing.key and one.phase == landing.phase for one in self.landings):
            return
        if landing.phase == "execute" and traits.wins and self._taken_back(landing.call_id):
            return  # the destination remembers the cancellation
        if landing.phase == "compensate" and traits.tolerant and not self.stands(landing.call_id):
            landing = replace(landing, refused=True)  # there is nothing to undo, and the destination says so
        self.landings.append(landing)
        if landing.phase == "execute":
            self.overspent += overspent(self.sim.store, self.stands)

    def _taken_back(self, call_id: str) -> bool:
        return any(one.call_id == call_id and one.phase == "compensate" for one in self.landings)

    def _in_place(self, key: str) -> bool:
        call_ids = {one.call_id for one in self.landings if one.key == key and one.phase == "execute"}
        return any(self.stands(call_id) for call_id in call_ids)

    def left(self, process: Process) -> None:
        """Note compensations that are still under way although the program of this living process has ended."""
        for row in self.sim.store.calls.values():
            if row.state == "compensating" and self.sim.store.runs[row.root].owner == process.owner:
                self.orphans.append(f"{row.tool} {row.id} is {row.state}, and {process.name} has ended")

    # ---- What checkers read

    def stands(self, call_id: str) -> bool:
        """Return whether the effect of this call is in the world now."""
        there = False
        for one in self.landings:
            if one.call_id == call_id:
                there = one.phase == "execute"
        return there

    @property
    def is_quiet(self) -> bool:
        """Whether no process died or was paused, and no clock jumped forward."""
        upset = ("before", "after", "pause", "cancel", "slow", "clock forward")
        return not any(kind.startswith(upset) for process in self.sim.processes for kind in process.faults.values())

    def landed_counts(self, phase: str) -> Counter[str]:
        """Return how often each call's effect, or its compensation, arrived."""
        counts: Counter[str] = Counter()
        for one in self.landings:
            if one.phase == phase and not one.refused:
                counts[one.call_id] += 1
        return counts

    def standing_intents(self, store: MemoryStore) -> Counter[tuple[str, str, str]]:
        """Return how often each intent (root, tool, arguments) stands; deliberate repeats are other intents."""
        counts: Counter[tuple[str, str, str]] = Counter()
        for call in store.calls.values():
            if call.kind != "read" and self.stands(call.id) and not call.again:
                root = "ledger" if call.scope == "ledger" else call.root
                counts[root, call.tool, call.args] += 1
        return counts

    def told(self, root: str, tool: str, value: str) -> None:
        """Note the result that a program got, and whether any effect in the world gave it."""
        self.answers.append((root, tool, value))
        if value not in {result_of(one.key) for one in self.landings if one.tool == tool}:
            self.lies.append(f"{tool} answered {value!r}, which no effect in the world gave")

    def _watch(self, sim: Simulation, process: Process, op: Invoke) -> None:
        if process.name in self.replaying:
            self.replay_bodies.append(f"{process.name} started the {op.phase} of {op.call.tool} inside a replay")
        row = sim.store.calls.get(op.call.id)
        if op.phase == "execute" and (row is None or row.state != "started" or row.attempt != op.call.attempt):
            self.unwritten.append(f"the body of {op.call.tool} started before its start was durable")
        if op.phase == "execute" and row is not None and row.tool in self.sets and row.attempt == 1:
            self.land_puts()
            if row.before is None or decode(row.before) != self.value:
                self.misread.append(f"{row.tool} {row.id} started over {self.value} and has recorded {row.before}")
        if op.phase == "execute" and row is not None:
            self.unlocked += _not_held(sim.store, row)
            self.unapproved += _not_approved(sim.store, row, op, self.asks)
            self.unpaid += _not_paid(row)
        if op.phase == "compensate" and (row is None or row.state != "compensating"):
            self.unwritten.append(f"the compensation of {op.call.tool} started before its start was durable")
        if op.phase in ("execute", "compensate") and row is not None:
            root = sim.store.runs[row.root]
            lease = process.leases.get(row.root)
            if lease is not None and root.epoch != lease.epoch and sim.clock.mono >= lease.until:
                self.stale.append(f"{op.call.tool} was started by {process.name}, whose lease had ended")


def _not_held(store: MemoryStore, row: CallRow) -> Iterator[str]:
    """Yield the locks that a call names and its root does not hold when the body starts."""
    going_back = store.runs[row.root].phase not in ("open", "pivoted")  # a start to learn a result needs no lock
    for name in json.loads(row.locks) if row.locks and not going_back else ():
        held = store.locks.get((row.tenant, name))
        if held is None or held.root != row.root:
            yield f"{row.tool} {row.id} started without its lock {name}, which is {held and held.run_id}'s"


def _not_approved(store: MemoryStore, row: CallRow, op: Invoke, asks: frozenset[str]) -> Iterator[str]:
    """Yield what is wrong with the approval of a body that starts: missing, not used up, or for other arguments."""
    if not row.approval and row.tool not in asks:
        return
    approval = store.approvals.get(row.approval)
    if approval is None or approval.state != "used" or approval.call != row.id:
        yield f"the body of {row.tool} {row.id} started, and its approval is {approval and approval.state}"
    given = encode(dict(op.kwargs), path="args")
    if decode(given) != decode(row.args):
        yield f"{row.tool} {row.id} was approved with {row.args} and started with {given}"


def _not_paid(row: CallRow) -> Iterator[str]:
    """Yield a call that has a cost and reserved nothing when its body starts."""
    if row.cost and read_charge(row.cost).phase != RESERVED:
        yield f"{row.tool} {row.id} started and what it costs is {read_charge(row.cost).phase}"


def result_of(key: str) -> str:
    """Return what a destination answers for an idempotency key."""
    return f"r-{key[:8]}"
