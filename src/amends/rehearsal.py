"""The engine's own flows over a copy of one tree, in virtual time, with every body only written down.

What a person is shown beforehand is not worked out a second time, and so cannot differ from what is then done: it is
the same flow, on the same rows, and no function of a tool is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.budgetrows import SliceRow
from amends.chain import moment
from amends.engine.session import Session, call_of
from amends.flow import Flow, Op, run_flow
from amends.forkops import ReadForks
from amends.forkrows import FORKS_MAX
from amends.hub import Hub
from amends.ledger import HeldLock, ReadRun, StoreOp, Tree
from amends.model import Absent, Call, Unknown
from amends.ops import (
    Await,
    Clocks,
    Ended,
    Invoke,
    IsDead,
    KeepAnchor,
    KeepCheckpoint,
    Later,
    Lease,
    LiveCalls,
    Luck,
    ReadAnchor,
    ReadClocks,
    Sleep,
    Together,
    Watch,
)
from amends.planned import Doing, Planned
from amends.record import changed, dataclass
from amends.rows import AddEvent, CallRow, RunRow
from amends.secret import MARK
from amends.store.memory import MemoryStore
from amends.tool import Spec

T = TypeVar("T")
OPERATIONS_MAX: Final = 1_000_000
"""A rehearsal longer than this does not end: that is a bug of ours."""
WHO: Final = "rehearsal"
MICROSECOND: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Around:
    """What of the ledger outside the tree its way forward may meet: what other runs hold, and how budgets stand."""

    locks: tuple[HeldLock, ...] = ()
    slices: tuple[SliceRow, ...] = ()
    kin: tuple[RunRow, ...] = ()
    """The forks that stand on the tree, and the runs that it was itself forked from."""
    shared: tuple[CallRow, ...] = ()
    """What those forks share."""


async def kin_of(run: RunRow) -> Around:
    """Who stands on this tree, and on whom it stands."""
    kin: list[RunRow] = []
    shared: list[CallRow] = []
    for fork in await ReadForks(run.root):
        tree = await ReadRun("", uid=fork.uid)
        assert tree is not None, "a fork is a run of this ledger"
        kin.append(changed(tree.run, {"forked_from": run.root}))  # a fork of a fork stands on it like any other
        shared += [call for call in tree.calls if call.shared]
    uid = run.forked_from
    while uid and len(kin) < FORKS_MAX:
        source = await ReadRun("", uid=uid)
        if source is None:  # the fork was loaded from another ledger
            break
        kin.append(source.run)
        uid = source.run.forked_from
    return Around(kin=tuple(kin), shared=tuple(shared))


NOTHING_AROUND: Final = Around()


class Stage(MemoryStore):
    """One tree, copied: what happens to it happens to nobody."""

    def __init__(self, tree: Tree, wall: float, around: Around) -> None:
        super().__init__(clock=lambda: self.wall)
        self.wall = wall
        self.runs = {held.root.uid: held.root for held in around.locks} | {run.uid: run for run in around.kin}
        for run in tree.runs:
            self.runs[run.uid] = run
            self._ids.setdefault((run.tenant, run.id), []).append(run.uid)
            self._trees.setdefault(run.root, []).append(run.uid)
        for call in around.shared:
            self.calls[call.id] = call
            self._calls_of.setdefault(call.root, []).append(call.id)
        for call in tree.calls:
            self.calls[call.id] = call
            self._keys.setdefault(call.key, []).append(call.id)
            self._calls_of.setdefault(call.root, []).append(call.id)
        locks = (*(held.lock for held in around.locks), *tree.locks)
        self.locks = {(lock.tenant, lock.name): lock for lock in locks}
        self.slices = {row.name: row for row in around.slices}
        for asked in tree.approvals:
            self.shelf.approvals[asked.id] = asked
            self.shelf._of.setdefault(asked.root, []).append(asked.id)
        self._newest = max((max(call.seq, call.settled_seq) for call in tree.calls), default=0)

    def _row(self, op: Any) -> Any:
        answer = super()._row(op)
        # What is settled on the stage is settled after everything that the ledger has.
        return answer + self._newest if isinstance(op, AddEvent) else answer


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What was about to run, in order, and the tree after it."""

    does: tuple[Planned, ...]
    stage: Stage


class Rehearsal:
    """A driver that starts nothing: bodies and compensations succeed, and what a probe says is assumed."""

    def __init__(
        self, hub: Hub, tree: Tree, clocks: Clocks, *, probes_say: Absent | Unknown, around: Around = NOTHING_AROUND
    ) -> None:
        # Ledger time is whole microseconds. Here nothing takes time: what is due now must not be due in a part of one.
        wall = moment(max(clocks.wall, tree.now))
        self._hub, self._clocks, self._probes_say = hub, replace(clocks, wall=wall), probes_say
        self.stage = Stage(tree, wall, around)
        self.does: list[Planned] = []
        self._known = {call.id: call for call in tree.calls}
        self._count = 0

    def own(self, root: RunRow) -> RunRow:
        """Be the owner of a tree whose owner lives: as if that one did it."""
        mine = {"owner": WHO, "epoch": root.epoch + 1, "lease_until": float("inf"), "suspended": 0}
        self.stage.runs[root.uid] = changed(root, mine)
        return self.stage.runs[root.uid]

    def session(self, root: RunRow, *, wait_s: float) -> Session:
        """The tree as its owner's flows see it."""
        return self.played(root, Lease(root.uid, WHO, root.epoch, self._hub.lease_s, float("inf")), wait_s=wait_s)

    def played(self, root: RunRow, lease: Lease, *, wait_s: float) -> Session:
        """Return a session of the rehearsal: what it learns, the live run does not."""
        session = self._hub.session(root, lease, resumed=True, wait_s=wait_s)
        return replace(session, memory=session.memory.copy())

    def play(self, flow: Flow[T]) -> T:
        """Run the flow to its end."""
        return run_flow(flow, self._perform)

    def _perform(self, op: Op[Any]) -> Any:
        self._count += 1
        assert self._count <= OPERATIONS_MAX, "a rehearsal comes to its end"
        match op:
            case StoreOp():
                return self.stage.perform(op)
            case Invoke():
                return self._invoke(op)
            case ReadClocks():
                return self._clocks
            case Sleep(seconds=seconds) | Await(seconds=seconds):
                self._pass(seconds)
            case Luck():
                return 0.5
            case LiveCalls():
                return 0
            case IsDead():
                return False
            case Watch() | ReadAnchor() | KeepAnchor() | KeepCheckpoint():
                return None  # nothing is used up here, and so no anchor is asked
            case Together(flows=flows):
                return self._in_turn(flows)
            case _:
                raise TypeError(f"a rehearsal does not know {type(op).__name__}")
        return None

    def _pass(self, seconds: float) -> None:
        seconds = max(0.0, min(seconds, 1e9))
        self.stage.wall = moment(self.stage.wall + seconds + MICROSECOND)
        self._clocks = replace(self._clocks, wall=self.stage.wall, mono=self._clocks.mono + seconds)

    def _in_turn(self, flows: Sequence[Flow[Any]]) -> list[Any]:
        ends: list[Any] = []
        for flow in flows:
            try:
                ends.append(run_flow(flow, self._perform))
            except Exception as error:
                ends.append(error)
        return ends

    def _invoke(self, op: Invoke) -> Ended:
        call = op.call.whole() if isinstance(op.call, Later) else op.call
        spec = self._hub.specs.get(call.tool)
        what = _doing(op, spec)
        self.does.append(self._planned(what, op, call, spec))
        if what == "guard":
            return Ended(value=True)
        return Ended(value=self._probes_say if what == "probe" else None)

    def _planned(self, what: Doing, op: Invoke, call: Call, spec: Spec | None) -> Planned:
        row = self._known[call.id]
        shown = call_of(row, spec)
        args = {name: value for name, value in op.kwargs.items() if name != "call"}
        if MARK in f"{row.args}{row.result}":  # a plan is for people: what is hidden stays so
            seen = {**shown.args, "result": shown.result}
            args = {name: seen.get(name, value) for name, value in args.items()}
        note = ""
        if what == "compensate" and row.state in ("in_doubt", "started") and "result" in args:
            del args["result"]
            note = "its result is learned first"
        return Planned(what, shown, named(spec, what, op.fn), args, note)


def _doing(op: Invoke, spec: Spec | None) -> Doing:
    if op.phase == "compensate":
        return "compensate"
    if op.phase == "execute":
        return "start"
    return "guard" if spec is not None and spec.guard is not None and op.fn is spec.guard.fn else "probe"


def named(spec: Spec | None, what: Doing, fn: Callable[..., Any]) -> str:
    """What a function of a tool is called in words: the tool that it is, else its own name."""
    if spec is not None and what == "start":
        return spec.name
    twin = None if spec is None else spec.compensate
    if twin is not None and what == "compensate" and twin.tool:
        return twin.tool
    return str(getattr(fn, "__qualname__", type(fn).__name__)).rpartition("<locals>.")[2]
