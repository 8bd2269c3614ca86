"""Open a run or a child run. ``leases.py`` takes over, renews and releases; ``forks.py`` forks."""

from __future__ import annotations

from typing import Any, Final

from amends.encoding.chain import proof
from amends.errors import RunEnded
from amends.ledger.changes import move_run, set_completion
from amends.ledger.events import proof_of, refuse_loaded, run_columns_digest, write_event, written_facts
from amends.ledger.leases import _is_free, _note_silence, _take_over, find_owned, note_wish
from amends.ledger.operations import OpenChild, Opened, OpenRun
from amends.ledger.queries import newest_run
from amends.ledger.rows import RUNS, Now, RunRow
from amends.ledger.tables import Add, Change
from amends.ledger.trees import find_run
from amends.states import NEW


async def open_run(op: OpenRun) -> Opened:
    """Open a run (``OpenRun``). The started calls of a resumed run are in doubt when this returns."""
    row = await newest_run(op.tenant, op.id)
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
    again = row.goal_by not in ("person", "unanswered") and op.if_rolled_back == "again" and not row.forked_from
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
        return Opened("busy", await note_wish(await _note_silence(row, op, now), op), now)
    row = await _take_over(row, op, now, history=int(op.history))
    if row.state == "blocked" and row.interrupted:
        row = await move_run(row, row.came_from, at=now, by=op.owner, epoch=row.epoch, causes="[]", interrupted=0)
    if op.budgets and op.budgets != row.budgets:
        await write_event(row, "budgets", at=now, by=op.owner, epoch=row.epoch, budgets=proof(op.budgets))
        row = await Change(RUNS, row, {"budgets": op.budgets})
    row = await set_completion(row, op.completion, at=now, by=op.owner, epoch=row.epoch)
    return Opened("resumed", row, now)


async def _create(op: OpenRun, generation: int, now: float) -> RunRow:
    row = new_run(op, generation, now)
    await Add(RUNS, row)
    await write_event(row, "run", at=now, by=op.owner, epoch=1, frm=NEW, to="open", **opening_facts(op, row))
    return row


OPENED: Final = (
    "uid", "id", "tenant", "root", "created_at", "policy", "order_mode", "agent", "principal", "input", "input_digest", "tags",
    "deadline_at", "owner", "opener", "lease_s", "lease_until", "wake_at", "budgets", "completion", "lease_boot", "lease_mono",
)  # fmt: skip
"""The columns that an opening says; in all others, new runs of one generation are alike."""


def new_run(op: OpenRun, generation: int, now: float) -> RunRow:
    """Return the row of a run that is opened now."""
    return RunRow(
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
        completion=op.completion,
        lease_boot=op.boot,
        lease_mono=op.mono + op.lease_s,
    )


def opening_facts(op: OpenRun, row: RunRow) -> dict[str, Any]:
    """Return what the first event of a run says; the fast paths write the same."""
    return {
        "generation": row.generation,
        "input": proof_of(op, op.input or None),
        "row": run_columns_digest(row),
        "budgets": proof(op.budgets) if op.budgets else None,
        "completion": proof(op.completion) if op.completion else None,
    }


def opening_text(op: OpenRun, row: RunRow) -> str:
    """Return ``opening_facts`` as ``write_event`` writes them; of most runs they are two."""
    if op.input or op.budgets or op.completion:
        return written_facts(opening_facts(op, row))
    return f'{{"generation": {row.generation}, "row": "{run_columns_digest(row)}"}}'


async def open_child(op: OpenChild) -> Opened:
    """Open a child run (``OpenChild``). The same request finds the same child."""
    parent = await find_run(op.parent)
    root = await find_run(parent.root)
    if root.closed_at is None:  # a closed run opens nothing, and shows the children that it had
        root = await find_owned(parent.root, op.owner, op.epoch)
    now = await Now(root.uid)
    row = await newest_run(parent.tenant, op.id)
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
    await Add(RUNS, child)
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
