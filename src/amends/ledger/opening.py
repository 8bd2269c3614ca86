"""Decide who owns a run tree: open it, fork it, take it over, renew its lease, release it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from amends.encoding.chain import proof
from amends.errors import RunEnded
from amends.ledger.approvals import released_columns
from amends.ledger.changes import (
    call_columns_digest,
    count_replays,
    find_owned,
    find_run,
    forks_on,
    is_owner,
    is_rolling_back,
    move_call,
    move_run,
    payload_proof,
    proof_of,
    refuse_loaded,
    run_columns_digest,
    sources,
    write_event,
)
from amends.ledger.operations import (
    ClaimRun,
    DueRuns,
    Forked,
    ForkRun,
    OpenChild,
    Opened,
    OpenRun,
    ReadForks,
    ReleaseLease,
    Renewed,
    RenewLeases,
)
from amends.ledger.rows import (
    CallRow,
    DropWaits,
    FindRun,
    FindRunById,
    InsertCall,
    InsertRun,
    LedgerClock,
    ListCalls,
    ListDue,
    ListOwned,
    MoveTime,
    Now,
    RunRow,
    UpdateCall,
    UpdateRun,
    needs_tool,
    point_of,
)

STILL_S: Final = 1.0
"""If the clock is further behind ledger time than this, it was set back: ledger time stands still until it catches up.
"""


async def open_run(op: OpenRun) -> Opened:
    """Open a run (``OpenRun``). The started calls of a resumed run are in doubt when this returns."""
    row = await FindRunById(op.tenant, op.id)
    now = await Now()  # after the lock: its last holder may have written later than we began
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
    now = await Now()
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


async def claim_run(op: ClaimRun) -> RunRow | None:
    """Take over an abandoned tree (``ClaimRun``). Its started calls are in doubt in the same transaction."""
    # A claimer that looks for work takes another tree; one that was asked for this tree, or may already have it, waits.
    root = await FindRun(op.root, skip=not op.repeated and not op.force)
    now = await Now()
    if root is None or root.closed_at is not None or root.origin:
        return None
    if op.repeated and root.opener == op.opener:
        return root
    if not await _is_free(root, op, now):
        await _note_silence(root, op, now)
        return None
    due = root.wake_at is not None and root.wake_at <= now
    if not (root.owner or due or op.force):
        return None
    return await _take_over(root, op, now, history=root.history)


async def _is_free(root: RunRow, op: OpenRun | ClaimRun, now: float) -> bool:
    """Return whether no living process can own this tree.

    Any wall clock, also that of a database server, may be set forward or back at any moment. So it never decides alone:
    the owner is proved dead, or its lease has also ended on its own monotonic clock, which processes of one boot share,
    or nobody has renewed it for a whole lease since somebody first noticed that it seemed to have ended.
    """
    if root.owner in ("", op.dead_owner):
        return True
    if root.silent_mono is not None and root.silent_at is not None:
        # A heartbeat would have removed the note. Clocks of two boots cannot be compared: the ledger's clock passes for
        # both.
        same = root.silent_boot == op.boot
        waited = op.mono - root.silent_mono if same else await LedgerClock() - root.silent_at
        if waited >= root.lease_s:
            return True
    ended = op.boot == root.lease_boot and root.lease_mono is not None and op.mono >= root.lease_mono
    return ended and root.lease_until <= now


async def _note_silence(root: RunRow, op: OpenRun | ClaimRun, now: float) -> RunRow:
    """Record that the lease seems to have ended, by one clock of two, if nobody has; the next heartbeat removes it.

    ``wake_at`` is when a whole lease of silence will have passed. While ledger time stands still, no lease ends in it:
    then every owner of another boot is watched. The clock, not ledger time, says since when; if it was set back since
    then, the silence is counted anew.
    """
    clock = await LedgerClock()
    if root.silent_mono is not None and (root.silent_boot == op.boot or (root.silent_at or 0.0) <= clock):
        return root
    if op.boot == root.lease_boot and root.lease_mono is not None:
        seems_ended = op.mono >= root.lease_mono
    else:
        seems_ended = root.lease_until <= now or now - clock > STILL_S
    if not seems_ended:
        return root
    seen = {"silent_boot": op.boot, "silent_mono": op.mono, "silent_at": clock, "wake_at": now + root.lease_s}
    return await UpdateRun(root, seen)


async def _take_over(root: RunRow, op: OpenRun | ClaimRun, now: float, *, history: int) -> RunRow:
    epoch = root.epoch + 1
    # What the old owner may still send: nothing if it is certainly dead or released the run; otherwise it may send
    # until its own monotonic clock ends its lease, which it can last have renewed just now.
    certain = root.owner in ("", op.dead_owner)
    quiet = op.mono if certain else op.mono + root.lease_s
    await write_event(root, "taken over", at=now, by=op.owner, epoch=epoch, from_owner=root.owner, certain=certain)
    for call in await ListCalls(root.uid, ("started", "compensating", "in_doubt", "compensation_in_doubt")):
        run = await find_run(call.run)
        # A body that outlived its timeout may still run in a process that released the run.
        undoing = call.state in ("compensating", "compensation_in_doubt")
        in_flight = not root.owner and (call.comp_mono if undoing else call.quiet_mono) is None
        await _doubt_started(run, call, op, epoch, now=now, quiet=op.mono + root.lease_s if in_flight else quiet)
    if root.locked:
        await DropWaits(root.uid)  # whoever asked is gone; the new owner asks anew
    return await UpdateRun(
        root,
        {
            "owner": op.owner,
            "opener": op.opener,
            "epoch": epoch,
            "lease_s": op.lease_s,
            "lease_until": now + op.lease_s,
            "wake_at": now + op.lease_s,
            "suspended": 0,
            "history": history,
            **_lease_columns(op.boot, op.mono + op.lease_s),
        },
    )


def _lease_columns(boot: str, until: float) -> dict[str, Any]:
    """Return the columns of a lease on the owner's own clock; any earlier note of silence was wrong."""
    return {"lease_boot": boot, "lease_mono": until, "silent_boot": "", "silent_mono": None, "silent_at": None}


async def _doubt_started(
    run: RunRow, call: CallRow, op: OpenRun | ClaimRun, epoch: int, *, now: float, quiet: float
) -> None:
    if call.state == "started" and call.kind == "read":
        await move_call(run, call, "failed", at=now, by=op.owner, epoch=epoch, why="lost", settled_at=now)
    elif call.state == "started":
        await move_call(
            run,
            call,
            "in_doubt",
            at=now,
            by=op.owner,
            epoch=epoch,
            why="lost",
            settled_at=now,
            quiet_boot=op.boot,
            quiet_mono=quiet,
            quiet_left=None,
        )
    elif call.state == "compensating":
        await move_call(
            run, call, "compensation_in_doubt", at=now, by=op.owner, epoch=epoch, comp_settled_at=now,
            comp_boot=op.boot, comp_mono=quiet,
        )  # fmt: skip
    elif call.state == "in_doubt" and call.quiet_mono is None:
        await UpdateCall(call, {"quiet_boot": op.boot, "quiet_mono": quiet})
    elif call.state == "compensation_in_doubt" and call.comp_mono is None:
        await UpdateCall(call, {"comp_boot": op.boot, "comp_mono": quiet})


async def renew_leases(op: RenewLeases) -> Renewed:
    """Extend the leases that this owner still holds (``RenewLeases``)."""
    now = await Now()
    goals: dict[str, str] = {}
    given_back: set[str] = set()
    busy: set[str] = set()
    for uid, epoch in sorted(op.epochs.items()):  # in one order: rows are locked, and others renew as well
        root = await FindRun(uid, skip=not op.waits)
        if root is None and not op.waits:
            busy.add(uid)
        if root is not None and root.epoch == epoch and not root.owner:
            given_back.add(uid)
        if root is None or not is_owner(root, op.owner, epoch):
            continue
        until = now + op.lease_s
        clock = (op.boot, op.mono + op.lease_s) if op.boot else (root.lease_boot, root.lease_mono or 0.0)
        await UpdateRun(root, {"lease_until": until, "wake_at": until, "lease_s": op.lease_s, **_lease_columns(*clock)})
        goals[uid] = root.goal if root.goal_by in ("person", "deadline", "deadlock") else ""
    await MoveTime(now)
    return Renewed(goals, frozenset(given_back), frozenset(busy))


async def release_lease(op: ReleaseLease) -> RunRow:
    """Release the lease (``ReleaseLease``). A released run has no unfinished call, which would belong to nobody."""
    root = await find_run(op.root)
    if not is_owner(root, op.owner, op.epoch):
        return root  # already taken over, or a repeated operation: nothing of ours is left to release
    now = await Now()
    await count_replays(op.replays)
    if root.closed_at is not None:
        return root
    await write_event(root, "let go", at=now, by=op.owner, epoch=op.epoch, suspended=op.suspended)
    given_back: dict[str, Any] = {"owner": "", "lease_until": 0.0}
    if op.suspended and op.wake_s is None:
        # If it was decided meanwhile, there is nobody to wait for; and when nobody can approve any more, the policy
        # applies.
        return await UpdateRun(root, {**given_back, **await released_columns(root, now)})
    wake_at = None if op.wake_s is None else now + op.wake_s
    return await UpdateRun(root, {**given_back, "wake_at": wake_at, "suspended": int(op.suspended)})


async def due_runs(op: DueRuns) -> list[tuple[RunRow, tuple[str, ...], bool]]:
    """List the trees that recovery should look at (``DueRuns``)."""
    now = await Now()
    stands_still = now - await LedgerClock() > STILL_S
    due = await ListDue(now, op.tenant, op.limit)
    seen = {root.uid for root in due}
    others = [root for root in await ListOwned(op.tenant, op.limit) if root.uid not in seen]
    found: list[tuple[RunRow, tuple[str, ...], bool]] = []
    for root in [*due, *others]:
        calls = await ListCalls(root.uid)
        tools = tuple(sorted({call.tool for call in calls if needs_tool(root, call)}))
        found.append((root, tools, root.uid in seen or stands_still))
    return found


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
    now = await Now()
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
