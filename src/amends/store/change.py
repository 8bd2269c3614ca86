"""Every change of state goes through here: guarded by the table, with its event, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from amends.approvalrows import OPEN, ApprovalRow, FindApproval, UpdateApproval
from amends.chain import proof
from amends.errors import LeaseLost, RunIsRecord, TransitionRefused
from amends.lockrows import DropWaits, FreeLocks
from amends.plain import quoted
from amends.proofs import call_said, goal_said, words_bound
from amends.rows import AddEvent, CallRow, FindCall, FindRun, ListCalls, RunRow, UpdateCall, UpdateRun
from amends.states import call_may, run_may
from amends.store.charging import moved_on
from amends.store.kin import GONE_BACK, forks_on, sources


async def owned(root_uid: str, owner: str, epoch: int) -> RunRow:
    """The root, if this owner and epoch still hold it; an old epoch is admitted nothing."""
    return held(await find_run(root_uid), owner, epoch)


def held(root: RunRow, owner: str, epoch: int) -> RunRow:
    """The root again, if this owner and epoch hold it."""
    if not holds(root, owner, epoch):
        raise LeaseLost(
            f"run {root.id} is owned by somebody else now (epoch {root.epoch}, not {epoch}); nothing was started",
            hint="another worker goes on with it",
            run_id=root.id,
        )
    return root


def holds(root: RunRow, owner: str, epoch: int) -> bool:
    """Whether this owner's epoch is the one in force."""
    return root.epoch == epoch and root.owner == owner


async def find_run(uid: str, *, peek: bool = False) -> RunRow:
    """The run of this uid, which must exist."""
    row = await FindRun(uid, peek=peek)
    assert row is not None, f"the ledger names a run that it does not have: {uid}"
    return row


def refuse_record(run: RunRow) -> None:
    """Raise ``RunIsRecord`` of a run that was loaded from another ledger."""
    if run.origin:
        raise RunIsRecord(run.id, origin=run.origin)


async def note(
    run: RunRow, what: str, *, at: float, by: str, epoch: int, call: str = "", frm: str = "", to: str = "", **facts: Any
) -> int:
    """Write an event; returns its place in the ledger. The record of another ledger is not gone on with."""
    refuse_record(run)
    kept = {name: value for name, value in facts.items() if value not in (None, "", ())}
    return await AddEvent(
        at=at,
        root=run.root,
        run=run.uid,
        run_id=run.id,
        tenant=run.tenant,
        call=call,
        what=what,
        frm=frm,
        to_state=to,
        by_whom=by,
        epoch=epoch,
        facts=_written(kept) if kept else "{}",
    )


def _written(facts: Mapping[str, Any]) -> str:
    """As JSON; most are a word or a number, and are written without an encoder."""
    texts = []
    for name, value in facts.items():
        if type(value) is not str and type(value) is not int:
            return json.dumps(facts, ensure_ascii=False, default=str)
        texts.append(f'"{name}": {quoted(value) if type(value) is str else value}')
    return f"{{{', '.join(texts)}}}"


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
    """Move a call, write the event, and give it its place among the settled."""
    if not call_may(call.state, to):
        raise TransitionRefused(
            f"call {call.id} ({call.tool}) is {call.state} and cannot become {to}", frm=call.state, to=to
        )
    cost = changes.get("cost", call.cost)
    if cost:
        changes["cost"], costs = await moved_on(cost, to, kind=call.kind, why=changes.get("why", ""))
        facts = {**(facts or {}), "costs": costs or None}
    said = {**call_said(to, changes), **(facts or {})}
    seq = await note(run, "call", at=at, by=by, epoch=epoch, call=call.id, frm=call.state, to=to, **said)
    if to in ("succeeded", "in_doubt") and call.state not in ("failed", "compensated"):
        changes["settled_seq"] = seq
    elif to == "succeeded":
        changes["settled_seq"] = seq
        changes["late"] = 1
    if to == "dropped" and call.approval:
        await _cancel(run, call, at=at, by=by, epoch=epoch)
    return await UpdateCall(call, {"state": to, **changes})


async def move_approval(
    run: RunRow, row: ApprovalRow, to: str, *, at: float, by: str, epoch: int, why: str = "",
    facts: Mapping[str, Any] | None = None, **changes: Any,
) -> ApprovalRow:  # fmt: skip
    """Move a request for a person's yes and write the event; what was decided stays decided."""
    if row.state not in OPEN or (row.state, to) == ("pending", "used"):
        raise TransitionRefused(
            f"approval {row.id} ({row.tool}) is {row.state} and cannot become {to}", frm=row.state, to=to
        )
    given = proof(changes["given"]) if "given" in changes else None
    seq = await note(
        run, "approval", at=at, by=by, epoch=epoch, call=row.call, frm=row.state, to=to, approval=row.id, why=why,
        given=given, said=words_bound(row, changes), **(facts or {}),
    )  # fmt: skip
    if to == "used":
        changes["used_seq"] = seq
    # What is decided, used or over need not be told any more.
    return await UpdateApproval(row, {"state": to, "tell_at": None, **changes})


async def _cancel(run: RunRow, call: CallRow, *, at: float, by: str, epoch: int) -> None:
    """Nobody need decide about a call that will not be made."""
    row = await FindApproval(call.approval)
    if row is not None and row.state in OPEN:
        await move_approval(run, row, "cancelled", at=at, by=by, epoch=epoch)


async def move_run(
    run: RunRow, to: str, *, at: float, by: str, epoch: int, facts: Mapping[str, Any] | None = None, **changes: Any
) -> RunRow:
    """Move a run and write the event; a final root has no owner and nothing wakes it."""
    if not run_may(run.state, to):
        raise TransitionRefused(f"run {run.id} is {run.state} and cannot become {to}", frm=run.state, to=to)
    said = {**(facts or {}), **goal_said(run, changes)}
    await note(run, "run", at=at, by=by, epoch=epoch, frm=run.state, to=to, **said)
    if to in ("committed", "rolled_back", "abandoned"):
        changes |= {"closed_at": at, "owner": "", "lease_until": 0.0, "wake_at": None, "suspended": 0, "causes": "[]"}
        if run.forked_from and run.uid == run.root and to in GONE_BACK:
            await _wake_sources(run, at=at, by=by)
        if run.locked and run.uid == run.root:
            await _free_locks(run, at=at, by=by, epoch=epoch)
            changes["locked"] = 0
    return await UpdateRun(run, {"state": to, **changes})


async def _free_locks(root: RunRow, *, at: float, by: str, epoch: int) -> None:
    """The tree has ended: others may have what it held, and it waits for nothing."""
    count = await FreeLocks(root.uid)
    await DropWaits(root.uid)
    if count:
        await note(root, "locks freed", at=at, by=by, epoch=epoch, count=count)


async def _wake_sources(fork: RunRow, *, at: float, by: str) -> None:
    """A fork stands on nothing more: a run that was not taken back because of it goes on, unless another one does."""
    for source in await sources(fork, peek=False):
        waits = source.state == "blocked" and source.came_from == "open"
        if waits and all(other.uid == fork.uid for other in await forks_on(source.uid)):
            await unblock(source, at=at, by=by, epoch=source.epoch)


async def count_replays(replays: Mapping[str, int]) -> None:
    """Add up how often calls were answered from the record; counted in memory until the run is left."""
    for call_id, count in replays.items():
        call = await FindCall(call_id)
        if call is not None and call.replays < count:
            await UpdateCall(call, {"replays": count})


async def unblock(run: RunRow, *, at: float, by: str, epoch: int) -> RunRow:
    """A cause was removed: the run goes back to where it stood and a worker may look at it now."""
    if run.state == "blocked":
        run = await move_run(run, run.came_from, at=at, by=by, epoch=epoch, came_from="", causes="[]")
    root = run if run.uid == run.root else await find_run(run.root)
    if root.uid != run.uid and root.state == "blocked":
        root = await move_run(root, root.came_from, at=at, by=by, epoch=epoch, came_from="", causes="[]")
    if not root.owner and root.closed_at is None and not await _waits_for_a_person(root, run):
        root = await UpdateRun(root, {"wake_at": at, "suspended": 0})
    return root if root.uid == run.uid else run


async def _waits_for_a_person(root: RunRow, run: RunRow) -> bool:
    """Whether it is suspended, and another call is still held: what was said of one does not wake its policy."""
    if not root.suspended or "rollback" in (root.goal, run.goal):
        return False
    return any(not call.is_staged for call in await ListCalls(root.uid, ("held",)))
