"""Looking before saying: a rollback as it would go, bound to where the ledger stood."""

from __future__ import annotations

from typing import Any, Final

from amends.engine.giving import read_tree
from amends.engine.leftover import leftovers
from amends.engine.rollback import roll_back
from amends.engine.session import call_of
from amends.errors import RunEnded, StalePlan, UsageError
from amends.forkops import ReadForks
from amends.hub import Hub, View
from amends.ledger import BeginRollback, ClaimRun, ReadRun, Tree
from amends.model import Absent, Call, Residue
from amends.ops import Clocks, ReadClocks
from amends.people import found, own_run, said
from amends.plain import digest
from amends.planmark import tree_mark
from amends.planned import Planned, RollbackPlan
from amends.record import changed
from amends.rehearsal import WHO, Around, Rehearsal, kin_of
from amends.rows import CallRow, RunRow

HASH_CHARS: Final = 32


async def plan_rollback(hub: Hub, view: View, run_id: str) -> RollbackPlan:
    """What ``rollback`` would do now, and the hash that binds it."""
    tree = await _root_tree(view, run_id)
    return _planned(hub, tree, await ReadForks(tree.run.root), await kin_of(tree.run), await ReadClocks())


async def rollback_planned(hub: Hub, view: View, run_id: str, *, plan: str, by: str, why: str) -> str:
    """Make rollback the run's goal, if the run still stands where it was planned; returns its root."""
    said(by, why)
    given: Any = plan
    if not isinstance(given, str) or not given:
        raise UsageError(f"a plan is the hash of rt.plan_rollback({run_id!r}), not {plan!r}")
    tree = await _root_tree(view, run_id)
    _refuse_ended(tree.run)
    forks = await ReadForks(tree.run.root)
    newest = _planned(hub, tree, forks, await kin_of(tree.run), await ReadClocks())
    if newest.hash != plan:
        raise StalePlan(plan, now=newest.hash, run_id=run_id)
    # Between that look and this word the run may move: the ledger compares once more, in the transaction that decides.
    mark = tree_mark(tree.runs, tree.calls, forks)
    asked = await BeginRollback(tree.run.uid, by, why, person=True, plan=plan, mark=mark)
    if asked.how == "stale":
        newest = await plan_rollback(hub, view, run_id)
        raise StalePlan(plan, now=newest.hash, run_id=run_id)
    if asked.how in ("refused", "ended"):
        _refuse_ended(asked.run)
    return tree.run.root


async def _root_tree(view: View, run_id: Any) -> Tree:
    if not isinstance(run_id, str):
        raise UsageError(f"a run id is a text, not {run_id!r}")
    tree = own_run(found(await ReadRun(view.tenant or "", run_id), run_id))
    if tree.run.parent:
        raise UsageError(f"run {run_id} is a child: plan the rollback of its root")
    return tree


def refusal(run: RunRow) -> str:
    """Why a run cannot be rolled back; empty: it can."""
    if run.phase == "pivoted":
        return "its pivot has passed, so it only goes forward"
    return f"it is {run.state}" if run.closed_at is not None else ""


def _refuse_ended(run: RunRow) -> None:
    if why := refusal(run):
        raise RunEnded(f"run {run.id} cannot be taken back: {why}", state=run.state, run_id=run.id)


# ---- the plan -----------------------------------------------------------------------------


def _planned(hub: Hub, tree: Tree, forks: list[RunRow], around: Around, clocks: Clocks) -> RollbackPlan:
    mark = tree_mark(tree.runs, tree.calls, forks)
    no = refusal(tree.run)
    if no:
        # What stood when the pivot passed, or the run ended, stands: there is no order to show.
        left = tuple(Residue(_call(hub, row), no) for row in tree.calls if _stands(row))
        plan = RollbackPlan(tree.run.id, "", cannot=left, refused=no, state=tree.run.state)  # type: ignore[arg-type]
        return _hashed(plan, mark)
    rehearsal = Rehearsal(hub, tree, clocks, probes_say=Absent(), around=around)
    running = _take_stage(hub, rehearsal, tree, clocks)
    root = rehearsal.stage.runs[tree.run.uid]
    session = rehearsal.session(root, wait_s=float("inf"))
    rehearsal.play(roll_back(session, by=WHO, why=WHO, person=True))  # by a person's word, whoever stands on it
    after = rehearsal.play(read_tree(session))
    plan = RollbackPlan(
        tree.run.id,
        "",
        compensations=tuple(one for one in rehearsal.does if one.what == "compensate"),
        cannot=_left(hub, tree, after),
        doubts=_doubts(hub, rehearsal, tree, running),
        dropped=tuple(_call(hub, row) for row in tree.calls if _is_dropped(row, rehearsal.stage.calls[row.id])),
        running=tuple(_call(hub, row) for row in running),
        state=tree.run.state,  # type: ignore[arg-type]  # the ledger's own words
        forks=tuple(fork.id for fork in forks),
    )
    return _hashed(plan, mark)


def _take_stage(hub: Hub, rehearsal: Rehearsal, tree: Tree, clocks: Clocks) -> list[CallRow]:
    """Own the copy; what its living owner still runs is taken as landed without an effect, and told."""
    run = tree.run
    if not (run.owner and run.lease_until > tree.now):
        # On the copy nobody waits for a heartbeat: its owner counts as silent for long enough.
        silent = {"silent_boot": clocks.boot, "silent_mono": clocks.mono - run.lease_s, "silent_at": tree.now}
        rehearsal.stage.runs[run.uid] = changed(run, silent)
        claim = ClaimRun(run.uid, WHO, WHO, hub.lease_s, clocks.boot, clocks.mono, force=True)
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


def _left(hub: Hub, before: Tree, after: Tree) -> tuple[Residue, ...]:
    doubtful = {row.id for row in before.calls if row.state in ("in_doubt", "started")}
    return tuple(
        Residue(_call(hub, one.row), one.why)
        for one in leftovers(hub.reader(after.run), after)
        if not (one.doubtful and one.row.id in doubtful)
    )


def _doubts(hub: Hub, rehearsal: Rehearsal, tree: Tree, running: list[CallRow]) -> tuple[Planned, ...]:
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
        elif not mine:
            found.append(Planned("ask", _call(hub, row), "", note="it stays as it is until rt.resolve settles it"))
        else:
            note = "taken back whether it happened or not"
            found.append(Planned(mine[0].what, mine[0].call, mine[0].by, mine[0].args, note))
    return tuple(found)


def _is_dropped(before: CallRow, after: CallRow) -> bool:
    return before.state in ("held", "ready", "backing_off") and after.state in ("dropped", "failed")


def _stands(row: CallRow) -> bool:
    return (
        row.kind != "read"
        and not row.shared
        and row.state in ("succeeded", "in_doubt", "residue", "compensation_failed")
    )


def _call(hub: Hub, row: CallRow) -> Call:
    return call_of(row, hub.specs.get(row.tool))


def _hashed(plan: RollbackPlan, mark: str) -> RollbackPlan:
    """The hash binds where the tree stands and what this process would do about it."""
    parts: list[str] = ["rollback plan", mark, plan.refused or ""]
    for one in (*plan.doubts, *plan.compensations):
        parts += [one.what, one.call.id, one.by]
    parts += ["cannot", *(left.call.id for left in plan.cannot)]
    parts += ["dropped", *(call.id for call in plan.dropped), "running", *(call.id for call in plan.running)]
    return changed(plan, {"hash": digest(*parts)[:HASH_CHARS]})
