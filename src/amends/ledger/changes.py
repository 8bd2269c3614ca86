"""Change the state of runs, calls and approvals.

Every change is guarded by the table of transitions and written with its event in one transaction. In all of these
functions ``at`` is ledger time, ``by`` is who caused the change, ``epoch`` is the epoch of the root's lease, ``facts``
are what the event says, and further keyword arguments are the columns that change with the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amends.encoding.chain import proof
from amends.errors import TransitionRefused
from amends.ledger.budgets import move_charge
from amends.ledger.events import call_facts, decision_digest, goal_facts, write_event
from amends.ledger.locks import free_locks, free_unstarted
from amends.ledger.queries import list_calls, move_time
from amends.ledger.rows import APPROVALS, CALLS, OPEN, RUNS, ApprovalRow, CallRow, RunRow
from amends.ledger.tables import Change, Find
from amends.ledger.trees import ENDED_UNCOMMITTED, find_run, forks_on, sources
from amends.states import call_may, run_may


async def move_call(
    run: RunRow,
    call: CallRow,
    to: str,
    *,
    at: float,
    by: str,
    epoch: int,
    facts: Mapping[str, Any] | None = None,
    **changes: Any,
) -> CallRow:
    """Change the state of a call, write the event, and set its place in the order of settling."""
    if not call_may(call.state, to):
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state} and cannot become {to}", frm=call.state, to=to
        )
    cost = changes.get("cost", call.cost)
    if cost:
        changes["cost"], costs = await move_charge(cost, to, kind=call.kind, why=changes.get("why", ""))
        facts = {**(facts or {}), "costs": costs or None}
    said = {**call_facts(to, changes), **(facts or {})}
    seq = await write_event(run, "call", at=at, by=by, epoch=epoch, call=call.id, frm=call.state, to=to, **said)
    if to in ("succeeded", "in_doubt") and call.state not in ("failed", "compensated"):
        changes["settled_seq"] = seq
    elif to == "succeeded":
        changes["settled_seq"] = seq
        changes["late"] = 1
    if to == "dropped" and call.approval:
        await _cancel(run, call, at=at, by=by, epoch=epoch)
    return await Change(CALLS, call, {"state": to, **changes})


async def drop_unread(
    run: RunRow, root: RunRow, call: CallRow, *, at: float, by: str, epoch: int, why: str, error: str = "",
    failure: str | None = None,
) -> CallRow:  # fmt: skip
    """Free the locks of a call that was not started, and drop it unless a person or a commit has decided about it.

    ``error``: why what is there could not be read. Its caller is told that it failed: then it is dropped even if a person
    has approved it, or the commit would run it. ``failure``: the digest of the error.
    """
    await free_unstarted(root, call, at=at, by=by, epoch=epoch)
    if not call.is_reading and not error:
        return call
    failed: dict[str, Any] = {"error": error, "facts": {"failure": failure}} if error else {}
    return await move_call(run, call, "dropped", at=at, by=by, epoch=epoch, why=why, settled_at=at, **failed)


async def move_approval(
    run: RunRow, row: ApprovalRow, to: str, *, at: float, by: str, epoch: int, why: str = "",
    facts: Mapping[str, Any] | None = None, **changes: Any,
) -> ApprovalRow:  # fmt: skip
    """Change the state of an approval request and write the event; a decided request stays decided."""
    if row.state not in OPEN or (row.state, to) == ("pending", "used"):
        raise TransitionRefused(
            f"approval {row.id} ({row.tool}) is {row.state} and cannot become {to}", frm=row.state, to=to
        )
    given = proof(changes["given"]) if "given" in changes else None
    await move_time(at)
    seq = await write_event(
        run, "approval", at=at, by=by, epoch=epoch, call=row.call, frm=row.state, to=to, approval=row.id, why=why,
        given=given, said=decision_digest(row, changes), **(facts or {}),
    )  # fmt: skip
    if to == "used":
        changes["used_seq"] = seq
    # A decided, used or ended request needs no notice any more, and nothing of its timetable is due.
    return await Change(APPROVALS, row, {"state": to, "tell_at": None, "due_at": None, **changes})


async def _cancel(run: RunRow, call: CallRow, *, at: float, by: str, epoch: int) -> None:
    """Cancel the open request of a call that will not be made."""
    row = await Find(APPROVALS, call.approval)
    if row is not None and row.state in OPEN:
        await move_approval(run, row, "cancelled", at=at, by=by, epoch=epoch)


async def move_run(
    run: RunRow, to: str, *, at: float, by: str, epoch: int, facts: Mapping[str, Any] | None = None, **changes: Any
) -> RunRow:
    """Change the state of a run and write the event; a final root has no owner and no wake-up time."""
    if not run_may(run.state, to):
        raise TransitionRefused(f"run {run.id} is {run.state} and cannot become {to}", frm=run.state, to=to)
    said = {**(facts or {}), **goal_facts(run, changes)}
    await write_event(run, "run", at=at, by=by, epoch=epoch, frm=run.state, to=to, **said)
    if to in ("committed", "rolled_back", "abandoned"):
        changes |= {"closed_at": at, "owner": "", "lease_until": 0.0, "wake_at": None, "suspended": 0, "causes": "[]"}
        if run.forked_from and run.uid == run.root and to in ENDED_UNCOMMITTED:
            await _wake_sources(run, at=at, by=by)
        if run.locked and run.uid == run.root:
            await free_locks(run, at=at, by=by, epoch=epoch)
            changes["locked"] = 0
    return await Change(RUNS, run, {"state": to, **changes})


async def set_completion(run: RunRow, completion: str, *, at: float, by: str, epoch: int) -> RunRow:
    """Record when the run is complete, if somebody said it anew; empty: nobody did."""
    if not completion or completion == run.completion:
        return run
    await write_event(run, "completion", at=at, by=by, epoch=epoch, completion=proof(completion))
    return await Change(RUNS, run, {"completion": completion})


async def _wake_sources(fork: RunRow, *, at: float, by: str) -> None:
    """Unblock the runs that were not rolled back because of this fork, unless another fork depends on them."""
    for source in await sources(fork, peek=False):
        waits = source.state == "blocked" and source.came_from == "open"
        if waits and all(other.uid == fork.uid for other in await forks_on(source.uid)):
            await unblock(source, at=at, by=by, epoch=source.epoch)


async def count_replays(replays: Mapping[str, int], *, root: str = "") -> None:
    """Write how often calls were answered from the record; counted in memory until the run is closed.

    The counts include what was written before, and never fall. ``root``: only calls of this tree.
    """
    for call_id, count in replays.items():
        call = await Find(CALLS, call_id)
        if call is not None and call.replays < count and root in ("", call.root):
            await Change(CALLS, call, {"replays": count})


async def unblock(run: RunRow, *, at: float, by: str, epoch: int) -> RunRow:
    """Return a blocked run to its former state after a cause was removed, and let a worker look at it now."""
    if run.state == "blocked":
        run = await move_run(run, run.came_from, at=at, by=by, epoch=epoch, came_from="", causes="[]")
    root = run if run.uid == run.root else await find_run(run.root)
    if root.uid != run.uid and root.state == "blocked":
        root = await move_run(root, root.came_from, at=at, by=by, epoch=epoch, came_from="", causes="[]")
    if not root.owner and root.closed_at is None and not await _waits_for_a_person(root, run):
        root = await Change(RUNS, root, {"wake_at": at, "suspended": 0})
    return root if root.uid == run.uid else run


async def _waits_for_a_person(root: RunRow, run: RunRow) -> bool:
    """Return whether it is suspended and another call is still held: one decision does not wake it then."""
    if not root.suspended or "rollback" in (root.goal, run.goal):
        return False
    return any(not call.is_staged for call in await list_calls(root.uid, ("held",)))
