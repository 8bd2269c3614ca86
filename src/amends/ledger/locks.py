"""Take locks in the transaction that starts a call, and resolve a deadlock in the transaction that finds it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from amends.encoding.dataclass import dataclass
from amends.ledger.events import goal_facts, write_event
from amends.ledger.operations import HeldLock, ListLocks
from amends.ledger.queries import (
    drop_locks,
    drop_waits,
    find_locks,
    list_calls,
    list_tree,
    page_locks,
    waits_for,
    waits_of,
)
from amends.ledger.rows import (
    LOCKS,
    PUT,
    PUT_BACK,
    RUNS,
    WAITS,
    CallRow,
    Contention,
    LockRequest,
    LockRow,
    Now,
    RunRow,
    WaitRow,
)
from amends.ledger.tables import Add, Change, Find
from amends.ledger.trees import find_run

WAIT_FRESH_S: Final = 5.0
"""A wait of a living run counts if it was repeated this recently: many times the longest pause between two tries."""
CYCLE_ROOTS_MAX: Final = 64
"""The most runs that are searched for one deadlock; a longer cycle is found from another of its members, or times out.
"""


@dataclass(frozen=True, slots=True)
class _Link:
    """One run in a cycle of waits, and the lock of the next run that it waits for."""

    waiter: RunRow
    lock: LockRow


async def lock_names_for(call: CallRow, run: RunRow, root: RunRow) -> tuple[str, ...]:
    """Return the locks needed before this call first starts: its own, and with a pivot those of its outbox."""
    own = lock_names_of([call])
    starts_outbox = call.kind == "pivot" and not call.violation and root.locked
    return merged(own, await outbox_lock_names(run)) if starts_outbox else own


async def outbox_lock_names(run: RunRow) -> tuple[str, ...]:
    """Return the lock names that the staged calls of this run will need."""
    waiting = await list_calls(run.root, ("held", "ready"))
    return lock_names_of(call for call in waiting if call.run == run.uid and call.is_staged)


def lock_names_of(calls: Iterable[CallRow]) -> tuple[str, ...]:
    """Return the lock names of these calls, each once, in the order in which everybody takes them."""
    return merged(*(json.loads(call.locks) for call in calls if call.locks))


def merged(*names: Iterable[str]) -> tuple[str, ...]:
    """Return each name once, sorted.

    Two transactions that insert the same names in two orders would wait for each other.
    """
    return tuple(sorted({name for some in names for name in some}))


async def take_locks(
    root: RunRow, wanted: LockRequest, *, call: str, tool: str, at: float, by: str
) -> Contention | None:
    """Take all of these locks for the tree, or none; return who holds one."""
    known = await find_locks(root.tenant, wanted.names)
    others = [row for row in known if row.root != root.uid]
    if others:
        return await _wait_for(root, others, wanted, tool=tool, at=at, by=by)
    await mark_locked(root)
    mine = {row.name for row in known}
    taken: list[str] = []
    for name in wanted.names:
        if name in mine:
            continue
        if not await Add(LOCKS, LockRow(root.tenant, name, root.uid, root.id, call, tool, at), if_absent=True):
            for one in taken:
                await drop_locks(root.uid, one)
            return Contention(name, "", "", at, at)
        taken.append(name)
    if wanted.waited:
        await drop_waits(root.uid, wanted.names)
    return None


def is_held_back(call: CallRow, later: CallRow) -> bool:
    """Return whether ``call`` must not be compensated: a later call of the same lock name was passed over by its guard.

    Somebody else has changed what the name stands for: going further back would overwrite that. Not if a person has
    compensated the later one by hand since.
    """
    if not (call.locks and later.locks and later.comp_guarded and later.settled_seq > call.settled_seq):
        return False
    if later.state == "compensated":
        return False
    return not set(json.loads(call.locks)).isdisjoint(json.loads(later.locks))


async def lost_setting(root: RunRow, names: Iterable[str], *, key: str) -> CallRow | None:
    """Return a setter of one of these things (``idempotent="put"``) that is in doubt, or whose compensation is.

    It may still land, and would overwrite what another call does. ``key``: of the call that asks.
    """
    wanted = set(names)
    if not wanted or not root.locked:
        return None
    for other in await list_calls(root.uid, ("in_doubt", "compensation_in_doubt")):
        lands = other.put & (PUT if other.state == "in_doubt" else PUT_BACK)
        same = other.key == key and other.state == "in_doubt"  # its own doubt is settled as such
        if lands and not same and not wanted.isdisjoint(lock_names_of([other])):
            return other
    return None


async def earlier_setting(root: RunRow, call: CallRow) -> CallRow | None:
    """Return a setter of the same thing that was asked for before this call and is still to be started, or started again."""
    wanted = set(lock_names_of([call]))
    if not wanted or not root.locked:
        return None
    for other in await list_calls(root.uid, ("held", "ready", "backing_off")):
        if other.put & PUT and other.seq < call.seq and not wanted.isdisjoint(lock_names_of([other])):
            return other
    return None


async def mark_locked(root: RunRow) -> None:
    """Mark that the tree has named locks: only then are locks looked for when it pivots or ends."""
    if not root.locked:
        await Change(RUNS, root, {"locked": 1})


def waits_now(wait: WaitRow, root: RunRow, now: float) -> bool:
    """Return whether this wait keeps its run from ending: not if the owner is dead, or the run is rolling back."""
    if root.phase not in ("open", "pivoted") or (root.goal == "rollback" and root.phase == "open"):
        return False
    if root.owner:
        return root.lease_until > now and wait.seen_at >= now - WAIT_FRESH_S
    return root.goal == "commit"  # released: a worker asks again when it is due


# ---- Waiting


async def _wait_for(
    root: RunRow, others: list[LockRow], wanted: LockRequest, *, tool: str, at: float, by: str
) -> Contention:
    first = others[0]
    why_not = Contention(first.name, first.run_id, first.root, first.taken_at, at)
    if not wanted.waits:
        if wanted.waited:
            await drop_waits(root.uid, wanted.names)
        return why_not
    await mark_locked(root)
    for row in others:
        if await _record_wait(WaitRow(root.uid, root.tenant, row.name, root.id, tool, at, at)):
            await write_event(
                root, "waits", at=at, by=by, epoch=root.epoch, lock=row.name, held_by=row.run_id, tool=tool
            )
    circle = await _find_cycle(root, others, at)
    victim = await _victim(circle)
    if victim is None:
        await _free_one_lock(circle)
        return why_not
    why = await _roll_back_victim(victim, circle)
    return replace(why_not, victim=why if victim.uid == root.uid else "")


# ---- Deadlocks


async def _record_wait(row: WaitRow) -> bool:
    """Record that this root still waits for this name; return whether the wait is new."""
    known = await Find(WAITS, (row.root, row.name))
    if known is None:
        await Add(WAITS, row)
    else:
        await Change(WAITS, known, {"seen_at": row.seen_at})
    return known is None


async def _find_cycle(root: RunRow, others: list[LockRow], now: float) -> list[_Link]:
    """Return the cycle of runs that wait for each other and for this one; empty: waiting may end by itself."""
    came: dict[str, _Link] = {row.root: _Link(root, row) for row in others}
    queue = list(came)
    for uid in queue:  # it grows while it is walked through
        # Skip locked rows: two transactions that read each other's runs would wait for ever. The next try sees it.
        holder = await Find(RUNS, uid, skip=True)
        if holder is None:
            continue
        names = tuple(wait.name for wait in await waits_of(uid) if waits_now(wait, holder, now))
        for lock in await find_locks(root.tenant, names) if names else ():
            if lock.root == root.uid:
                return _cycle_links(_Link(holder, lock), came, root.uid)
            if lock.root not in came and len(queue) < CYCLE_ROOTS_MAX:
                came[lock.root] = _Link(holder, lock)
                queue.append(lock.root)
    return []


def _cycle_links(last: _Link, came: dict[str, _Link], first: str) -> list[_Link]:
    links = [last]
    while links[-1].waiter.uid != first:
        links.append(came[links[-1].waiter.uid])
    return links[::-1]


async def _victim(circle: list[_Link]) -> RunRow | None:
    """Return the run to roll back: one whose block has not ended if there is one, and of those the youngest."""
    able = [link.waiter for link in circle if await _may_roll_back(link.waiter)]
    return max(able, key=lambda run: (run.goal != "commit", run.created_at, run.uid), default=None)


async def _may_roll_back(root: RunRow) -> bool:
    """Return whether the run may be rolled back: never past a pivot, its own or a child's, passed or in flight."""
    if root.state != "open" or root.pivot:
        return False
    return not any(run.pivot or run.phase == "pivoted" for run in await list_tree(root.uid))


async def _roll_back_victim(victim: RunRow, circle: list[_Link]) -> str:
    waits = [f"run {one.waiter.id} waited for {one.lock.name!r} of run {one.lock.run_id}" for one in circle]
    why = f"deadlock: {', '.join(waits)}"
    names = [one.lock.name for one in circle]
    aim = {"goal": "rollback", "goal_by": "deadlock", "goal_why": why}
    said = goal_facts(victim, aim)
    now = await Now(victim.uid)
    await write_event(
        victim, "goal", at=now, by="deadlock", epoch=victim.epoch, to="rollback", why=why, locks=names, **said
    )
    woken = {} if victim.owner else {"wake_at": now, "suspended": 0}
    await Change(RUNS, victim, {**aim, **woken})
    return why


async def _free_one_lock(circle: list[_Link]) -> None:
    """Free one lock if no run may roll back: a run past its pivot compensates nothing, so it can spare an unused lock.

    Without this, two runs that pivoted and then want each other's locks would wait for ever.
    """
    runs = {link.waiter.uid: link.waiter for link in circle}
    for link in circle:
        holder, name = runs[link.lock.root], link.lock.name
        if holder.phase == "pivoted" and not await _is_in_use(holder, name):
            await drop_locks(holder.uid, name)
            at = await Now(holder.uid)
            await write_event(
                holder, "lock let go", at=at, by="deadlock", epoch=holder.epoch, lock=name, wanted_by=link.waiter.id
            )
            return


async def _is_in_use(root: RunRow, name: str) -> bool:
    """Return whether a call that was started, and has no result yet, named this lock."""
    calls = await list_calls(root.uid, ("started", "backing_off", "in_doubt"))
    return any(name in json.loads(call.locks) for call in calls if call.locks and call.attempt)


# ---- Freeing and listing


async def free_unstarted(root: RunRow, call: CallRow, *, at: float, by: str, epoch: int) -> None:
    """Free the locks that a call took and never used: those that no other call of its tree counts on."""
    if not call.locks:
        return
    decided = root.phase == "pivoted" or root.goal == "commit"  # then staged calls have theirs, too
    used: set[str] = set()
    for other in await list_calls(root.uid):
        counts = other.attempt or other.state == "ready" or (decided and other.state == "held")
        if other.id != call.id and other.locks and counts:
            used |= set(json.loads(other.locks))
    held = await find_locks(root.tenant, tuple(json.loads(call.locks)))
    free = [row.name for row in held if row.root == root.uid and row.call == call.id and row.name not in used]
    for name in free:
        await drop_locks(root.uid, name)
    if free:
        await write_event(root, "locks freed", at=at, by=by, epoch=epoch, count=len(free))


async def free_locks(root: RunRow, *, at: float, by: str, epoch: int) -> None:
    """Free the locks of a tree that has ended, and forget what it waited for."""
    count = await drop_locks(root.uid)
    await drop_waits(root.uid)
    if count:
        await write_event(root, "locks freed", at=at, by=by, epoch=epoch, count=count)


async def list_locks(op: ListLocks) -> list[HeldLock]:
    """Read a page of locks, with the runs that wait for them (``ListLocks``)."""
    now = await Now("")
    held: list[HeldLock] = []
    for lock in await page_locks(op.tenant, op.after, op.limit):
        root = await find_run(lock.root)
        asked = await waits_for(lock.tenant, lock.name)
        waits = [wait for wait in asked if waits_now(wait, await find_run(wait.root), now)]
        held.append(HeldLock(lock, root, tuple(waits), now))
    return held
