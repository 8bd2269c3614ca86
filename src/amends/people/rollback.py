"""Roll a run back from outside: plan it, then begin it if the run has not changed since the plan.

A plan comes from a rehearsal: the engine's own flows run over an in-memory copy of the tree, in virtual time, and every
body is only written down. So a plan cannot differ from what is then done. ``rt.preview`` uses the same rehearsal.
"""

from __future__ import annotations

import json
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from amends.encoding.canonical import digest
from amends.encoding.chain import moment
from amends.encoding.dataclass import changed, dataclass
from amends.encoding.secret import MARK
from amends.engine.blocked import rollback_obstacles
from amends.engine.rollback import roll_back
from amends.engine.session import Session, call_of, read_tree
from amends.errors import NAMED_MAX, RunEnded, StalePlan, UsageError, some_in_words
from amends.host.host import Host, View
from amends.host.runs import found
from amends.ledger.ending import IN_THE_WAY
from amends.ledger.flow import Flow, Op, run_flow
from amends.ledger.late_reports import reported_undoing
from amends.ledger.leases import Lease
from amends.ledger.operations import (
    BeginCompensation,
    BeginRollback,
    ClaimRun,
    HeldLock,
    ReadAnswers,
    ReadForks,
    ReadRun,
    SettleCompensation,
    StoreOp,
    Tree,
)
from amends.ledger.rows import (
    APPROVALS,
    BUDGETS,
    CALLS,
    FORKS_MAX,
    LOCKS,
    RUNS,
    AddEvent,
    AnswerRow,
    CallRow,
    RunRow,
    SliceRow,
)
from amends.ledger.tables import Change, List, Table
from amends.ledger.trees import must_accept, plan_text
from amends.ledger.world import (
    Await,
    Clocks,
    DrawRandom,
    Ended,
    Invoke,
    IsDead,
    KeepAnchor,
    KeepCheckpoint,
    LazyCall,
    LiveCalls,
    ReadAnchor,
    ReadClocks,
    RunTogether,
    Sleep,
    Watch,
)
from amends.model import Absent, Call, Residue, Unknown
from amends.people.runs import check_reason, own_run
from amends.report import Doing, Planned, RollbackPlan
from amends.stores.memory import MemoryStore
from amends.tools.spec import Spec

T = TypeVar("T")
OPERATIONS_MAX: Final = 1_000_000
"""A longer rehearsal does not end: that is a bug in amends."""
WHO: Final = "rehearsal"
MICROSECOND: Final = 1e-6
HASH_CHARS: Final = 32
NOT_UNDOABLE: Final = "it has no compensation, so it stays"
PIVOT_PASSED: Final = "its pivot has passed, so it only goes forward"


# ---- Planning and beginning a rollback


async def plan_rollback(host: Host, view: View, run_id: str) -> RollbackPlan:
    """Return what a rollback would do now, in order, and what it cannot undo; the plan's hash binds ``rollback``."""
    return await _plan_of(host, await _root_tree(view, run_id))


async def _plan_of(host: Host, tree: Tree) -> RollbackPlan:
    forks, answered = await ReadForks(tree.run.root), await ReadAnswers(tree.run.root)
    return _planned(host, tree, forks, answered, await relatives_of(tree.run), await ReadClocks())


async def rollback(
    host: Host,
    view: View,
    run_id: str,
    *,
    by: str,
    why: str,
    plan: RollbackPlan | str | None = None,
    accept: Sequence[str] = (),
) -> str:
    """Roll a run back from outside: its owner does it once its live calls have settled, else this process.

    With a plan, or its hash, raise ``StalePlan`` if the run has changed since the plan was made. A committed run is taken
    back by a plan only; ``accept`` names the calls that have no compensation and stay (``plan.must_accept``), and with
    any of them the run ends ``abandoned``.
    """
    check_reason(by, why)
    accepted = _accepted(accept)
    if plan is not None:
        hash = plan.hash if isinstance(plan, RollbackPlan) else plan
        return await _rollback_planned(host, view, run_id, plan=hash, by=by, why=why, accept=accepted)
    if accepted:
        raise UsageError("accept= is for a plan: pass plan=rt.plan_rollback(run_id), too")
    tree = own_run(found(await ReadRun(view.tenant or "", run_id), run_id))
    asked = await BeginRollback(tree.run.uid, by, why, person=True)
    if asked.how in ("refused", "ended"):
        passed = PIVOT_PASSED if asked.how == "refused" else f"it is {asked.run.state}"
        hint = None
        if asked.run.state == "committed":
            hint = f"plan = rt.plan_rollback({run_id!r}), then rt.rollback({run_id!r}, plan=plan, by=..., why=...)"
        raise RunEnded(f"run {run_id} cannot be rolled back: {passed}", state=asked.run.state, run_id=run_id, hint=hint)
    return tree.run.root


def _accepted(accept: Any) -> tuple[str, ...]:
    if isinstance(accept, str) or not all(isinstance(one, str) for one in accept):
        raise UsageError("accept= is a list of ids of calls")
    return tuple(dict.fromkeys(accept))


async def _rollback_planned(
    host: Host, view: View, run_id: str, *, plan: str, by: str, why: str, accept: tuple[str, ...]
) -> str:
    given: Any = plan
    if not isinstance(given, str) or not given:
        raise UsageError(f"a plan is the hash of rt.plan_rollback({run_id!r}), not {plan!r}")
    tree = await _root_tree(view, run_id)
    _refuse_ended(tree.run)
    forks, answered = await ReadForks(tree.run.root), await ReadAnswers(tree.run.root)
    newest = _planned(host, tree, forks, answered, await relatives_of(tree.run), await ReadClocks())
    if newest.hash != plan:
        raise StalePlan(plan, now=newest.hash, run_id=run_id)
    _check_loaded(newest)
    _check_accepted(newest, accept)
    # The run may change after this look: the ledger compares once more, in the transaction that begins the rollback.
    text = plan_text(plan, accept) if tree.run.state == "committed" else plan
    asked = await BeginRollback(tree.run.uid, by, why, person=True, plan=text, mark=tree.mark, accept=accept)
    if asked.how in ("stale", "unaccepted"):
        newest = await plan_rollback(host, view, run_id)
        raise StalePlan(plan, now=newest.hash, run_id=run_id)
    if asked.how in ("refused", "ended"):
        _refuse_ended(asked.run)
    return tree.run.root


async def _root_tree(view: View, run_id: Any) -> Tree:
    if not isinstance(run_id, str):
        raise UsageError(f"a run id is a string, not {run_id!r}")
    tree = own_run(found(await ReadRun(view.tenant or "", run_id, marked=True), run_id))
    if tree.run.parent:
        raise UsageError(f"run {run_id} is a child: plan the rollback of its root")
    return tree


def _check_loaded(plan: RollbackPlan) -> None:
    """Raise ``UsageError`` if the plan shows calls as staying only because their tools are not loaded here.

    Another process would compensate them: that is not what the person saw.
    """
    if plan.unloaded:
        raise UsageError(
            f"the plan of run {plan.run_id} was made without the code of {some_in_words(plan.unloaded)}: a process that has it "
            "would compensate what the plan shows as staying",
            hint="make the plan where these tools are loaded",
            run_id=plan.run_id,
        )


def _check_accepted(plan: RollbackPlan, accept: tuple[str, ...]) -> None:
    """Raise ``UsageError`` unless exactly what stays of a committed run is accepted."""
    must = {call.id: call.tool for call in plan.must_accept}
    if missing := [f"{tool} ({id})" for id, tool in must.items() if id not in accept]:
        ids = f"pass in accept= the id of every call that stays: rt.plan_rollback({plan.run_id!r}) names them"
        raise UsageError(
            f"run {plan.run_id} cannot be taken back completely: {some_in_words(missing)} would stay",
            hint=ids if len(must) > NAMED_MAX else f"accept what stays: accept={list(must)!r}",
            run_id=plan.run_id,
        )
    if others := [id for id in accept if id not in must]:
        raise UsageError(
            f"nothing is to be accepted about {some_in_words(map(repr, others))} in run {plan.run_id}",
            hint="accept= names the calls of plan.must_accept, and no others",
            run_id=plan.run_id,
        )


def refusal(run: RunRow) -> str:
    """Return why a run cannot be rolled back; empty if it can. A committed run can, by a person's plan."""
    if run.phase == "pivoted":
        return PIVOT_PASSED
    if run.gone_at is not None:
        return "what was recorded of it was removed"
    return f"it is {run.state}" if run.closed_at is not None and run.state != "committed" else ""


def _refuse_ended(run: RunRow) -> None:
    if why := refusal(run):
        raise RunEnded(f"run {run.id} cannot be rolled back: {why}", state=run.state, run_id=run.id)


# ---- Making the plan


def _planned(
    host: Host, tree: Tree, forks: list[RunRow], answered: list[AnswerRow], around: Around, clocks: Clocks
) -> RollbackPlan:
    no = refusal(tree.run)
    if no:
        # Effects that existed when the pivot passed, or when the run ended, stay: nothing is compensated.
        left = tuple(Residue(_call(host, row), no) for row in tree.calls if _stands(row))
        plan = RollbackPlan(tree.run.id, "", cannot=left, refused=no, state=tree.run.state)  # type: ignore[arg-type]
        return _hashed(plan, tree.mark)
    rehearsal = Rehearsal(host, tree, clocks, probes_say=Absent(), around=around)
    must = must_accept(tree.calls) if tree.run.state == "committed" else []
    accepted = {row.id for row in must}
    if tree.run.state == "committed":
        taken = {"state": "rolling_back", "goal": "rollback", "goal_by": "person", "closed_at": None}
        planned = {"plan": plan_text(WHO, (row.id for row in must)), "wake_at": rehearsal.stage.wall}
        rehearsal.stage.runs[tree.run.uid] = changed(tree.run, {**taken, **planned})
    running = _take_stage(host, rehearsal, tree, clocks)
    root = rehearsal.stage.runs[tree.run.uid]
    session = rehearsal.session(root, wait_s=float("inf"))
    rehearsal.play(roll_back(session, by=WHO, why=WHO, person=True))  # a person may roll back a run with forks
    after = rehearsal.play(read_tree(session))
    plan = RollbackPlan(
        tree.run.id,
        "",
        compensations=tuple(one for one in rehearsal.does if one.what == "compensate"),
        cannot=(
            *(Residue(_call(host, row), NOT_UNDOABLE) for row in must),
            *(left for left in _left(host, tree, after) if left.call.id not in accepted),
        ),
        doubts=_doubts(host, rehearsal, tree, running),
        dropped=tuple(_call(host, row) for row in tree.calls if _is_dropped(row, rehearsal.stage.calls[row.id])),
        running=tuple(_call(host, row) for row in running),
        state=tree.run.state,  # type: ignore[arg-type]  # the ledger's own words
        forks=tuple(fork.id for fork in forks),
        must_accept=tuple(_call(host, row) for row in must),
        answered=tuple(dict.fromkeys(one.run_id for one in answered)),
    )
    return _hashed(plan, tree.mark)


def _take_stage(host: Host, rehearsal: Rehearsal, tree: Tree, clocks: Clocks) -> list[CallRow]:
    """Take over the copy; assume that calls which its live owner still runs end without an effect, and return those."""
    run = tree.run
    if not (run.owner and run.lease_until > tree.now):
        # Do not wait for a heartbeat or a client on the copy: its owner counts as silent for long enough.
        silent_s = max(run.lease_s, run.client_lease_s)
        silent = {
            "silent_boot": clocks.boot,
            "silent_mono": clocks.mono - silent_s,
            "silent_at": tree.now,
            "wanted": "",
        }
        rehearsal.stage.runs[run.uid] = changed(rehearsal.stage.runs[run.uid], silent)
        claim = ClaimRun(run.uid, WHO, WHO, host.lease_s, clocks.boot, clocks.mono, force=True)
        claimed = rehearsal.play(_one(claim))
        assert claimed is not None, "a run without an owner can be claimed"
        return []
    rehearsal.own(run)
    lands = {"started": "failed", "compensating": "compensated"}
    running = [row for row in tree.calls if row.state in lands and row.kind != "read"]
    for row in tree.calls:
        if row.state in lands:
            rehearsal.stage.calls[row.id] = changed(row, {"state": lands[row.state]})
    return running


async def _one(op: ClaimRun) -> RunRow | None:
    return await op


def _left(host: Host, before: Tree, after: Tree) -> tuple[Residue, ...]:
    doubtful = {row.id for row in before.calls if row.state in ("in_doubt", "started")}
    return tuple(
        Residue(_call(host, one.row), one.why)
        for one in rollback_obstacles(host.reader(after.run), after)
        if not (one.doubtful and one.row.id in doubtful)
    )


def _doubts(host: Host, rehearsal: Rehearsal, tree: Tree, running: list[CallRow]) -> tuple[Planned, ...]:
    found: list[Planned] = []
    lands = {row.id for row in running}
    for row in tree.calls:
        doubtful = row.state in ("in_doubt", "compensation_in_doubt", "started", "compensating")
        if not doubtful or row.kind == "read" or row.id in lands:
            continue
        mine = [one for one in rehearsal.does if one.call.id == row.id]
        first = next((one for one in mine if one.what in ("probe", "start")), None)
        if first is not None:
            found.append(first)
        elif (known := _known(row)) and rehearsal.stage.calls[row.id].state not in (
            "in_doubt",
            "compensation_in_doubt",
        ):
            found.append(Planned("settle", _call(host, row), "", note=known))
        elif not mine:
            answers = (
                "Happened(None) | Absent()" if row.state.startswith("comp") else "Happened(...) | Absent() | Unknown()"
            )
            asks = f"it stays in doubt until rt.resolve({row.id!r}, {answers}, by=..., why=...)"
            found.append(Planned("ask", _call(host, row), "", note=asks))
        else:
            note = "compensated whether it happened or not"
            found.append(Planned(mine[0].what, mine[0].call, mine[0].by, mine[0].args, note))
    return tuple(found)


def _known(row: CallRow) -> str:
    """Return what the evidence says about a doubt; empty: there is none."""
    if row.state.startswith("compensat"):
        said = {"compensated": "its compensation happened", "compensation_failed": "its compensation had no effect"}
        return said.get(reported_undoing(row), "")
    if not row.evidence:
        return ""
    return "it happened" if json.loads(row.evidence)["happened"] else "it had no effect"


def _is_dropped(before: CallRow, after: CallRow) -> bool:
    return before.state in ("held", "ready", "backing_off") and after.state in ("dropped", "failed")


def _stands(row: CallRow) -> bool:
    return (
        row.kind != "read"
        and not row.shared
        and row.state in ("succeeded", "in_doubt", "residue", "compensation_failed")
    )


def _call(host: Host, row: CallRow) -> Call:
    return call_of(row, host.specs.get(row.tool))


def _hashed(plan: RollbackPlan, mark: str) -> RollbackPlan:
    """Give the plan its hash, which covers the state of the tree and what this process would do about it."""
    parts: list[str] = ["rollback plan", mark, plan.refused or ""]
    for one in (*plan.doubts, *plan.compensations):
        parts += [one.what, one.call.id, one.by]
    parts += ["cannot", *(left.call.id for left in plan.cannot)]
    parts += ["dropped", *(call.id for call in plan.dropped), "running", *(call.id for call in plan.running)]
    return changed(plan, {"hash": digest(*parts)[:HASH_CHARS]})


# ---- The rehearsal


@dataclass(frozen=True, slots=True)
class Around:
    """What a rehearsal may meet outside its tree: locks of other runs, budgets, and related runs."""

    locks: tuple[HeldLock, ...] = ()
    slices: tuple[SliceRow, ...] = ()
    relatives: tuple[RunRow, ...] = ()
    """The forks of the tree, and the runs that it was itself forked from."""
    shared: tuple[CallRow, ...] = ()
    """The calls that those forks share with the tree."""


async def relatives_of(run: RunRow) -> Around:
    """Read the forks of this tree, and the runs that it was forked from."""
    relatives: list[RunRow] = []
    shared: list[CallRow] = []
    for fork in await ReadForks(run.root):
        tree = await ReadRun("", uid=fork.uid)
        assert tree is not None, "a fork is a run of this ledger"
        relatives.append(changed(tree.run, {"forked_from": run.root}))  # a fork of a fork counts as a fork of this tree
        shared += [call for call in tree.calls if call.shared]
    uid = run.forked_from
    while uid and len(relatives) < FORKS_MAX:
        source = await ReadRun("", uid=uid)
        if source is None:  # the fork was loaded from another ledger
            break
        relatives.append(source.run)
        uid = source.run.forked_from
    return Around(relatives=tuple(relatives), shared=tuple(shared))


NOTHING_AROUND: Final = Around()


class Stage(MemoryStore):
    """A copy of one tree in memory: changing it changes nothing in the ledger.

    Before each compensation the ledger looks at all calls that may be in its way (``begin_compensation``). Of those that
    have succeeded, only what was settled later and can be compensated ever is: the copy answers with these and the calls
    in other states, so that the time of a plan grows with the number of calls and not with its square.
    """

    def __init__(self, tree: Tree, wall: float, around: Around) -> None:
        self._succeeded: list[tuple[int, str]] = []
        """Number of the settlement and id of calls that have succeeded and can be compensated, in order; some have another
        state by now."""
        self._others: set[str] = set()
        """The calls in the other states of ``IN_THE_WAY``."""
        self._begins: str = ""
        """The call whose compensation is about to begin."""
        super().__init__(clock=lambda: self.wall)
        self.wall = wall
        for run in (*tree.runs, *around.relatives, *(held.root for held in around.locks)):
            if run.uid not in self.runs:
                self._keep(RUNS, run)
        for call in (*around.shared, *tree.calls):
            self._keep(CALLS, call)
        for lock in (*(held.lock for held in around.locks), *tree.locks):
            self._keep(LOCKS, lock)
        for row in around.slices:
            self._keep(BUDGETS, row)
        for asked in tree.approvals:
            self._keep(APPROVALS, asked)
        self._newest = max((max(call.seq, call.settled_seq) for call in tree.calls), default=0)

    def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation on the copy."""
        begins = op.then if isinstance(op, SettleCompensation) else op
        self._begins = begins.call_id if isinstance(begins, BeginCompensation) else ""
        return super().perform(op)

    def _row(self, op: Any) -> Any:
        if isinstance(op, List) and self._begins and op.where[1:] == (("state", "in", IN_THE_WAY),):
            return self._in_the_way(op.where[0][2])
        answer = super()._row(op)
        if isinstance(op, Change) and op.table is CALLS:
            self._note(answer)
        # Events of the rehearsal come after every event of the ledger.
        return answer + self._newest if isinstance(op, AddEvent) else answer

    def _keep(self, table: Table[Any], row: Any) -> list[list[Any]]:
        if table is CALLS:
            self._note(row)
        return super()._keep(table, row)

    def _note(self, row: CallRow) -> None:
        if row.state == "succeeded" and ((row.undoable and row.kind != "read") or row.comp_guarded):
            insort(self._succeeded, (row.settled_seq, row.id))
        if row.state in IN_THE_WAY and row.state != "succeeded":
            self._others.add(row.id)
        elif row.id in self._others:
            self._others.discard(row.id)
            self._undo.append(partial(self._others.add, row.id))

    def _in_the_way(self, root: str) -> list[CallRow]:
        """Return the calls of the tree that can keep the next compensation from beginning."""
        calls = self._calls
        first, found = calls[self._begins].settled_seq, [calls[id] for id in self._others if id in calls]
        place = len(self._succeeded)
        while place and self._succeeded[place - 1][0] > first:
            place -= 1
            settled, id = self._succeeded[place]
            row = calls.get(id)
            if row is not None and (row.state, row.settled_seq) == ("succeeded", settled):
                found.append(row)
            elif place == len(self._succeeded) - 1:  # nearly always: what is settled last is compensated first
                self._undo.append(partial(insort, self._succeeded, self._succeeded.pop()))
        return sorted((row for row in found if row.root == root and row.state in IN_THE_WAY), key=lambda row: row.seq)


class Rehearsal:
    """A driver that starts nothing: bodies and compensations succeed, and every probe gives the assumed answer."""

    def __init__(
        self, host: Host, tree: Tree, clocks: Clocks, *, probes_say: Absent | Unknown, around: Around = NOTHING_AROUND
    ) -> None:
        # Ledger time is whole microseconds. No time passes here, so what is due now must not be due a fraction later.
        wall = moment(max(clocks.wall, tree.now))
        self._host, self._clocks, self._probes_say = host, replace(clocks, wall=wall), probes_say
        self.stage = Stage(tree, wall, around)
        self.does: list[Planned] = []
        self._known = {call.id: call for call in tree.calls}
        self._count = 0

    def own(self, root: RunRow) -> RunRow:
        """Take the tree over from its live owner, as if that owner did what is rehearsed."""
        mine = {"owner": WHO, "epoch": root.epoch + 1, "lease_until": float("inf"), "suspended": 0}
        self.stage.runs[root.uid] = changed(root, mine)
        return self.stage.runs[root.uid]

    def session(self, root: RunRow, *, wait_s: float) -> Session:
        """Return a session of the owner of the tree."""
        return self.played(root, Lease(root.uid, WHO, root.epoch, self._host.lease_s, float("inf")), wait_s=wait_s)

    def played(self, root: RunRow, lease: Lease, *, wait_s: float) -> Session:
        """Return a session with a memory of its own, so that the live run learns nothing from the rehearsal."""
        session = self._host.session(root, lease, resumed=True, wait_s=wait_s)
        return replace(session, memory=session.memory.copy())

    def play(self, flow: Flow[T]) -> T:
        """Run a flow to its end."""
        return run_flow(flow, self._perform)

    def _perform(self, op: Op[Any]) -> Any:
        self._count += 1
        assert self._count <= OPERATIONS_MAX, "a rehearsal ends"
        match op:
            case StoreOp():
                return self.stage.perform(op)
            case Invoke():
                return self._invoke(op)
            case ReadClocks():
                return self._clocks
            case Sleep(seconds=seconds) | Await(seconds=seconds):
                self._pass(seconds)
            case DrawRandom():
                return 0.5
            case LiveCalls():
                return 0
            case IsDead():
                return False
            case Watch() | ReadAnchor() | KeepAnchor() | KeepCheckpoint():
                return None  # a rehearsal consumes no approval, so it needs no anchor
            case RunTogether(flows=flows):
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
        call = op.call.whole() if isinstance(op.call, LazyCall) else op.call
        spec = self._host.specs.get(call.tool)
        what = _doing(op, spec)
        self.does.append(self._planned(what, op, call, spec))
        if what == "guard":
            return Ended(value=True)
        return Ended(value=self._probes_say if what == "probe" else None)

    def _planned(self, what: Doing, op: Invoke, call: Call, spec: Spec | None) -> Planned:
        row = self._known[call.id]
        shown = call_of(row, spec)
        args = {name: value for name, value in op.kwargs.items() if name != "call"}
        if MARK in f"{row.args}{row.result}":  # a plan is for people: redacted values stay redacted
            seen = {**shown.args, "result": shown.result}
            args = {name: seen.get(name, value) for name, value in args.items()}
        note = ""
        if what == "compensate" and row.state in ("in_doubt", "started") and "result" in args:
            del args["result"]
            note = "its result is found out first"
        return Planned(what, shown, named(spec, what, op.fn), args, note)


def _doing(op: Invoke, spec: Spec | None) -> Doing:
    if op.phase == "compensate":
        return "compensate"
    if op.phase == "execute":
        return "start"
    return "guard" if spec is not None and spec.guard is not None and op.fn is spec.guard.fn else "probe"


def named(spec: Spec | None, what: Doing, fn: Callable[..., Any]) -> str:
    """Return the name of a tool's function for people: the name of the tool that it is, else its own."""
    if spec is not None and what == "start":
        return spec.name
    compensation = None if spec is None else spec.compensate
    if compensation is not None and what == "compensate" and compensation.tool:
        return compensation.tool
    return str(getattr(fn, "__qualname__", type(fn).__name__)).rpartition("<locals>.")[2]
