"""Fork a run, and keep a run from rolling back while a fork depends on it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from amends.encoding.chain import proof
from amends.ledger.changes import move_run
from amends.ledger.events import call_columns_digest, payload_proof, run_columns_digest, write_event
from amends.ledger.operations import Forked, ForkRun, ReadAnswers, ReadForks
from amends.ledger.queries import list_calls, newest_run
from amends.ledger.rows import CALLS, RUNS, AnswerRow, CallRow, Now, RunRow, point_of
from amends.ledger.tables import Add, Find
from amends.ledger.trees import answered_by, find_run, forks_on, sources, subtree

# ---- Forking


EPOCH: Final = 1
"""The epoch in which a fork is made: it is opened in a later one, and so resumed."""


async def fork_run(op: ForkRun) -> Forked:
    """Add a fork (``ForkRun``). The source is locked: it cannot begin to roll back while it is forked."""
    source = await find_run(op.source)
    fork = op.runs[0]
    if op.repeated:
        mine = await Find(RUNS, fork.uid)
        if mine is not None:
            return Forked("forked", mine)
    taken = await newest_run(fork.tenant, fork.id)
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
        calls |= {call.id: call for call in await list_calls(run.uid)}
    return all(calls[one.of].state == one.seen and calls[one.row.shared].state == one.seen for one in op.calls)


async def _open(row: RunRow, op: ForkRun, now: float) -> RunRow:
    born = replace(row, state="open", created_at=now, epoch=EPOCH)
    await Add(RUNS, born)
    point = point_of(row)
    await write_event(
        born, "run", at=now, by=op.by, epoch=EPOCH, frm="(new)", to="open", generation=row.generation,
        input=payload_proof(op, row, "input"), output=payload_proof(op, row, "output"), row=run_columns_digest(born),
        forked_from=point and point.run_id, forked_at=point and point.call,
        budgets=proof(row.budgets) if row.budgets else None, completion=proof(row.completion) if row.completion else None,
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
        await Add(
            CALLS, replace(row, seq=seq, created_at=now, created_epoch=EPOCH, asked_epoch=EPOCH, settled_seq=place)
        )


async def _end_as(row: RunRow, born: RunRow, op: ForkRun, now: float) -> None:
    """Move a run of the fork to the state of the original: past its pivot, or closed while its parent is open."""
    if row.state == "pivoted" or (row.state == "committed" and row.pivot):
        born = await move_run(born, "pivoted", at=now, by=op.by, epoch=EPOCH)
    if row.state == "committed":
        await move_run(born, "committed", at=now, by=op.by, epoch=EPOCH)


async def read_answers(op: ReadAnswers) -> list[AnswerRow]:
    """List the runs that were answered from calls of this tree (``ReadAnswers``)."""
    return await answered_by(await find_run(op.root), await list_calls(op.root))


async def read_forks(op: ReadForks) -> list[RunRow]:
    """List the forks that depend on a tree (``ReadForks``)."""
    return await forks_on(op.root)


# ---- What depends on forks


async def forks_sharing(root: str, calls: Collection[str]) -> list[RunRow]:
    """Return the forks on this tree that share one of these calls."""
    forks = await forks_on(root)
    return [fork for fork in forks if any(call.shared in calls for call in await list_calls(fork.uid))]


def is_rolling_back(run: RunRow) -> bool:
    """Return whether the effects of this run are being compensated, were, or will be."""
    return run.phase in ("rolling_back", "rolled_back") or (run.goal == "rollback" and run.phase == "open")


async def rolled_back_source(fork: RunRow) -> RunRow | None:
    """Return the run under this fork that is rolling back or was rolled back.

    None: what the fork shares is still valid.
    """
    if not fork.forked_from:
        return None
    return next((run for run in await sources(fork) if run.phase in ("rolling_back", "rolled_back")), None)


async def forks_of(run: RunRow) -> list[RunRow]:
    """Return the forks that share a call of this run or of its descendants, while it could still be rolled back."""
    if run.phase not in ("open", "committed") or not await forks_on(run.root):
        return []
    inside = {row.uid for row in await subtree(run)}
    return await forks_sharing(run.root, {call.id for call in await list_calls(run.root) if call.run in inside})


async def forks_are_gone(run: RunRow) -> bool:
    """Return whether the run, or one inside it, waited for forks to end before rolling back, and all of them have.

    Checked in the transaction that blocks it: a fork that ended just before found nobody to wake.
    """
    if run.uid != run.root:
        return False
    waiting = [one for one in await subtree(run) if one.goal == "rollback" and one.phase == "open" and not one.pivot]
    return any([not await forks_of(one) for one in waiting])
