"""Open a run or a child run, and fork a run. ``leases.py`` takes over, renews and releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from amends.encoding.chain import proof
from amends.errors import RunEnded
from amends.ledger.changes import (
    call_columns_digest,
    find_owned,
    find_run,
    forks_on,
    is_rolling_back,
    move_run,
    payload_proof,
    proof_of,
    refuse_loaded,
    run_columns_digest,
    sources,
    write_event,
)
from amends.ledger.leases import _is_free, _note_silence, _take_over
from amends.ledger.operations import (
    Forked,
    ForkRun,
    OpenChild,
    Opened,
    OpenRun,
    ReadForks,
)
from amends.ledger.rows import (
    CallRow,
    FindRun,
    FindRunById,
    InsertCall,
    InsertRun,
    ListCalls,
    Now,
    RunRow,
    UpdateRun,
    point_of,
)


async def open_run(op: OpenRun) -> Opened:
    """Open a run (``OpenRun``). The started calls of a resumed run are in doubt when this returns."""
    row = await FindRunById(op.tenant, op.id)
    # After the lock: its last holder may have written later than we began.
    now = await Now("" if row is None else row.root)
    if row is None:
        return Opened("fresh", await _create(op, 1, now), now)
    refuse_loaded(row)
    if op.repeated and row.opener == op.opener:
        return Opened("fresh" if row.epoch == 1 else "resumed", row, now)
    if row.parent:
        return Opened("refused", row, now)
    if op.input and row.input_digest != op.input_digest:
        return Opened("conflict", row, now)
    again = row.goal_by != "person" and op.if_rolled_back == "again" and not row.forked_from
    if row.state == "rolled_back" and again:
        return Opened("fresh", await _create(op, row.generation + 1, now), now)
    if row.state in ("rolled_back", "abandoned"):
        return Opened("refused", row, now)
    if row.state == "committed":
        return Opened("ended", row, now)
    if op.principal and row.principal and op.principal != row.principal:
        # Its calls would be requested in the other principal's name, and the opener could approve them.
        return Opened("foreign", row, now)
    if not await _is_free(row, op, now):
        return Opened("busy", await _note_silence(row, op, now), now)
    row = await _take_over(row, op, now, history=int(op.history))
    if row.state == "blocked" and row.interrupted:
        row = await move_run(row, row.came_from, at=now, by=op.owner, epoch=row.epoch, causes="[]", interrupted=0)
    if op.budgets and op.budgets != row.budgets:
        await write_event(row, "budgets", at=now, by=op.owner, epoch=row.epoch, budgets=proof(op.budgets))
        row = await UpdateRun(row, {"budgets": op.budgets})
    return Opened("resumed", row, now)


async def _create(op: OpenRun, generation: int, now: float) -> RunRow:
    row = RunRow(
        uid=op.uid,
        id=op.id,
        tenant=op.tenant,
        generation=generation,
        root=op.uid,
        parent="",
        state="open",
        created_at=now,
        policy=op.policy,
        order_mode=op.order_mode,
        agent=op.agent,
        principal=op.principal,
        input=op.input,
        input_digest=op.input_digest,
        tags=op.tags,
        deadline_at=None if op.deadline_s is None else now + op.deadline_s,
        owner=op.owner,
        opener=op.opener,
        epoch=1,
        lease_s=op.lease_s,
        lease_until=now + op.lease_s,
        wake_at=now + op.lease_s,
        budgets=op.budgets,
        lease_boot=op.boot,
        lease_mono=op.mono + op.lease_s,
    )
    await InsertRun(row)
    await write_event(
        row, "run", at=now, by=op.owner, epoch=1, frm="(new)", to="open", generation=generation,
        input=proof_of(op, op.input or None), row=run_columns_digest(row), budgets=proof(op.budgets) if op.budgets else None,
    )  # fmt: skip
    return row


async def open_child(op: OpenChild) -> Opened:
    """Open a child run (``OpenChild``). The same request finds the same child."""
    parent = await find_run(op.parent)
    root = await find_run(parent.root)
    if root.closed_at is None:  # a closed run opens nothing, and shows the children that it had
        root = await find_owned(parent.root, op.owner, op.epoch)
    now = await Now(root.uid)
    row = await FindRunById(parent.tenant, op.id)
    mine = row is not None and row.root == parent.root
    if row is not None:
        refuse_loaded(row)
    if row is not None and mine:
        if op.input and row.input_digest != op.input_digest:
            return Opened("conflict", row, now)
        if row.state in ("committed", "abandoned"):
            return Opened("ended" if row.state == "committed" else "refused", row, now)
        if row.state != "rolled_back":
            if row.state == "blocked" and row.interrupted:
                row = await move_run(
                    row, row.came_from, at=now, by=op.owner, epoch=op.epoch, causes="[]", interrupted=0
                )
            return Opened("fresh" if op.repeated and row.uid == op.uid else "resumed", row, now)
    _may_have_children(parent, root)
    child = RunRow(
        uid=op.uid,
        id=op.id,
        tenant=parent.tenant,
        generation=1 if row is None else row.generation + 1,
        root=parent.root,
        parent=parent.uid,
        state="open",
        created_at=now,
        policy=parent.policy,
        order_mode=parent.order_mode,
        agent=parent.agent,
        principal=parent.principal,
        input=op.input,
        input_digest=op.input_digest,
        epoch=op.epoch,
    )
    await InsertRun(child)
    await write_event(
        child, "run", at=now, by=op.owner, epoch=op.epoch, frm="(new)", to="open", parent=parent.id,
        input=proof_of(op, op.input or None), row=run_columns_digest(child),
    )  # fmt: skip
    return Opened("fresh", child, now)


def _may_have_children(parent: RunRow, root: RunRow) -> None:
    for run in (parent, root):
        in_flight = bool(run.pivot) and run.phase == "open"
        if run.phase not in ("open", "pivoted") or run.goal or in_flight:
            why = "its pivot is in flight" if in_flight else f"it is {run.state}, on its way to {run.goal or 'its end'}"
            raise RunEnded(f"run {run.id} takes no new child: {why}", state=run.state, run_id=run.id)


EPOCH: Final = 1
"""The epoch in which a fork is made: it is opened in a later one, and so resumed."""


async def fork_run(op: ForkRun) -> Forked:
    """Add a fork (``ForkRun``). The source is locked: it cannot begin to roll back while it is forked."""
    source = await find_run(op.source)
    fork = op.runs[0]
    if op.repeated:
        mine = await FindRun(fork.uid)
        if mine is not None:
            return Forked("forked", mine)
    taken = await FindRunById(fork.tenant, fork.id)
    if taken is not None:
        same = taken.forked_from == op.source and _call_at(taken) == _call_at(fork) and taken.closed_at is None
        return Forked("forked" if same else "taken", taken)
    family = [source, *await sources(source, peek=False)]
    back = next((run for run in family if is_rolling_back(run)), None)
    if back is not None:
        return Forked("back", back)
    if not await _as_seen(op, family):
        return Forked("moved", source)
    now = await Now(source.root)
    runs = {row.uid: await _open(row, op, now) for row in op.runs}
    await _share(op, runs, now)
    at = _call_at(fork)
    await write_event(
        source, "forked", at=now, by=op.by, epoch=source.epoch, call=at, fork=fork.id, calls=len(op.calls)
    )
    for row in reversed(op.runs):
        await _end_as(row, runs[row.uid], op, now)
    return Forked("forked", await find_run(fork.uid))


def _call_at(fork: RunRow) -> str:
    point = point_of(fork)
    return "" if point is None else point.call


async def _as_seen(op: ForkRun, family: list[RunRow]) -> bool:
    """Return whether every call, and the call that it stands for, still is in the planned state."""
    calls: dict[str, CallRow] = {}
    for run in family:
        calls |= {call.id: call for call in await ListCalls(run.uid)}
    return all(calls[one.of].state == one.seen and calls[one.row.shared].state == one.seen for one in op.calls)


async def _open(row: RunRow, op: ForkRun, now: float) -> RunRow:
    born = replace(row, state="open", created_at=now, epoch=EPOCH)
    await InsertRun(born)
    point = point_of(row)
    await write_event(
        born, "run", at=now, by=op.by, epoch=EPOCH, frm="(new)", to="open", generation=row.generation,
        input=payload_proof(op, row, "input"), output=payload_proof(op, row, "output"), row=run_columns_digest(born),
        forked_from=point and point.run_id, forked_at=point and point.call,
    )  # fmt: skip
    return born


async def _share(op: ForkRun, runs: dict[str, RunRow], now: float) -> None:
    """Write the shared calls, each with its event, in the order in which they were requested."""
    for one in op.calls:
        row = one.row
        seq = await write_event(
            runs[row.run], "shared", at=now, by=op.by, epoch=EPOCH, call=row.id, frm="(new)", to=row.state,
            tool=row.tool, args=payload_proof(op, row, "args"), row=call_columns_digest(row, row.key, row.generation),
            result=payload_proof(op, row, "result"), failure=payload_proof(op, row, "error"), attempt=row.attempt,
            shared=row.shared,
        )  # fmt: skip
        place = seq if row.state == "succeeded" else 0
        await InsertCall(
            replace(row, seq=seq, created_at=now, created_epoch=EPOCH, asked_epoch=EPOCH, settled_seq=place)
        )


async def _end_as(row: RunRow, born: RunRow, op: ForkRun, now: float) -> None:
    """Move a run of the fork to the state of the original: past its pivot, or closed while its parent is open."""
    if row.state == "pivoted" or (row.state == "committed" and row.pivot):
        born = await move_run(born, "pivoted", at=now, by=op.by, epoch=EPOCH)
    if row.state == "committed":
        await move_run(born, "committed", at=now, by=op.by, epoch=EPOCH)


async def read_forks(op: ReadForks) -> list[RunRow]:
    """List the forks that depend on a tree (``ReadForks``)."""
    return await forks_on(op.root)
