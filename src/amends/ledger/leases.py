"""The lease of a run tree: refuse whoever no longer holds it, take it over, renew it and release it."""

from __future__ import annotations

import json
from typing import Any, Final

from amends.encoding.dataclass import dataclass
from amends.errors import LeaseLost
from amends.ledger.changes import count_replays, drop_unread, move_call
from amends.ledger.events import write_event
from amends.ledger.joined import JoinedTransactions
from amends.ledger.operations import (
    ClaimRun,
    CountReplays,
    DueRuns,
    ListWanted,
    OpenRun,
    ReleaseLease,
    Renewed,
    RenewLeases,
)
from amends.ledger.queries import approvals_of, drop_waits, list_calls, list_due, list_owned, move_time, wanted_runs
from amends.ledger.rows import CALLS, RUNS, CallRow, Now, RunRow, needs_tool
from amends.ledger.tables import Change, Find
from amends.ledger.trees import find_run

STILL_S: Final = 1.0
"""If the clock is further behind ledger time than this, it was set back: ledger time stands still until it catches up.
"""


# ---- Fencing: an old owner or epoch writes nothing


@dataclass(slots=True)
class Lease:
    """A run tree that this process owns, and until when on its own monotonic clock."""

    root: str
    owner: str
    epoch: int
    lease_s: float
    until: float
    lost: bool = False
    goal: str = ""
    """The goal that a person set meanwhile, learned when the lease was renewed."""
    is_wanted: bool = False
    """Whether another server has asked for the tree, learned when the lease was renewed: its client has moved there."""
    joined: JoinedTransactions | None = None
    """The caller's own transactions that calls of this tree have joined; None until the first."""

    def check(self, mono: float) -> None:
        """Raise ``LeaseLost`` unless this process certainly still owns the tree.

        The margin covers the time between this check and the first byte of a request.
        """
        if self.lost or mono >= self.until - self.lease_s / 10:  # as ``is_ours``; every body is checked
            raise LeaseLost(
                "this process no longer owns the run; nothing was started",
                hint="another worker continues it; open the run again to see its state",
            )

    def is_ours(self, mono: float) -> bool:
        """Return whether this process certainly owns the tree at this moment."""
        return not self.lost and mono < self.until - self.margin

    @property
    def margin(self) -> float:
        """The safety margin between two clocks, and between check and send: a tenth of the lease."""
        return self.lease_s / 10


async def find_owned(root_uid: str, owner: str, epoch: int) -> RunRow:
    """Return the root if this owner and epoch still hold it; raise ``LeaseLost`` otherwise."""
    return check_owner(await find_run(root_uid), owner, epoch)


def check_owner(root: RunRow, owner: str, epoch: int) -> RunRow:
    """Return the root itself if this owner and epoch hold it; raise ``LeaseLost`` otherwise."""
    if not is_owner(root, owner, epoch):
        raise LeaseLost(
            f"run {root.id} has another owner now (epoch {root.epoch}, not {epoch}); nothing was started",
            hint="another worker continues it",
            run_id=root.id,
        )
    return root


def is_owner(root: RunRow, owner: str, epoch: int) -> bool:
    """Return whether this owner and epoch hold the lease."""
    return root.epoch == epoch and root.owner == owner


# ---- Whoever performs a call outside the owner's process


WORK_MARGIN: Final = 1.1
"""The performer counts its lease from before it asked, the owner from after it granted it, and a tenth for two clocks."""


@dataclass(slots=True, eq=False)
class WorkLease:
    """The right to perform one attempt outside the owner's process, and until when on the owner's monotonic clock."""

    lease_s: float
    until: float

    @property
    def over_at(self) -> float:
        """When the performer certainly does nothing more."""
        return self.until + self.lease_s * (WORK_MARGIN - 1.0)


def work_left_s(call: CallRow) -> float:
    """Return for how long a performer may still act after the last moment in which its owner can have renewed its lease."""
    return call.remote_s * WORK_MARGIN


# ---- Taking over


async def claim_run(op: ClaimRun) -> RunRow | None:
    """Take over an abandoned tree (``ClaimRun``). Its started calls are in doubt in the same transaction."""
    # A claimer that looks for work takes another tree; one that was asked for this tree, or may already have it, waits.
    root = await Find(RUNS, op.root, skip=not op.repeated and not op.force)
    if root is None or root.closed_at is not None or root.origin:
        return None
    now = await Now(op.root)  # only now: it waits for a run that somebody else has locked
    if op.repeated and root.opener == op.opener:
        return root
    if not await _is_free(root, op, now):
        await _note_silence(root, op, now)
        return None
    left = client_left_s(root, op.boot, op.mono, await Now(None)) if root.client_lease_s else 0.0
    if left > 0:
        if root.wake_at is None or root.wake_at < now + left - STILL_S:
            await Change(RUNS, root, {"wake_at": now + left})  # recovery need not look at it before
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
        waited = op.mono - root.silent_mono if same else await Now(None) - root.silent_at
        if waited >= root.lease_s:
            return True
    ended = op.boot == root.lease_boot and root.lease_mono is not None and op.mono >= root.lease_mono
    return ended and root.lease_until <= now


def client_left_s(root: RunRow, boot: str, mono: float, clock: float | None) -> float:
    """Return for how many seconds recovery still leaves a run that nobody owns any more to its client; 0: no longer.

    Its client may be alive although its owner is dead. A goal, above all a person's, is followed at once. As for leases no
    wall clock decides alone: the silence is counted on the monotonic clock of the boot that knows since when it lasts.
    ``clock``: the clock of the ledger, for silence that another boot has noticed; None: unknown.
    """
    lease_s = root.client_lease_s
    if not lease_s or not root.is_clients or (not root.owner and root.silent_mono is None):
        return 0.0
    silent_s = 0.0
    if root.owner and root.wanted:  # since its client has asked another server
        asked_boot, asked_mono, asked_at = json.loads(root.wanted)
        silent_s = mono - asked_mono if asked_boot == boot else 0.0 if clock is None else clock - asked_at
        return max(0.0, lease_s - max(0.0, silent_s))
    if root.owner and root.lease_boot == boot and root.lease_mono is not None:
        silent_s = mono - (root.lease_mono - root.lease_s)  # since its last heartbeat
    if root.silent_mono is not None and root.silent_boot == boot:
        silent_s = max(silent_s, mono - root.silent_mono)
    elif root.silent_at is not None and clock is not None:
        silent_s = max(silent_s, clock - root.silent_at)
    return max(0.0, lease_s - silent_s)


async def _note_silence(root: RunRow, op: OpenRun | ClaimRun, now: float) -> RunRow:
    """Record that the lease seems to have ended, if no process has recorded it; the next heartbeat removes the note.

    ``wake_at`` is when a whole lease of silence will have passed. While ledger time stands still, no lease ends in it:
    then every owner of another boot is watched. The start of the silence is taken from the clock; if that was set back
    since, the silence is counted from the beginning.
    """
    clock = await Now(None)
    if root.silent_mono is not None and (root.silent_boot == op.boot or (root.silent_at or 0.0) <= clock):
        return root
    if op.boot == root.lease_boot and root.lease_mono is not None:
        seems_ended = op.mono >= root.lease_mono
    else:
        seems_ended = root.lease_until <= now or now - clock > STILL_S
    if not seems_ended:
        return root
    seen = {"silent_boot": op.boot, "silent_mono": op.mono, "silent_at": clock, "wake_at": now + root.lease_s}
    return await Change(RUNS, root, seen)


WANTED_S: Final = 1.0
"""How often it is noted again that a server still wants a run."""


async def note_wish(root: RunRow, op: OpenRun) -> RunRow:
    """Record that a server wants this run for its client, if another one has it: its owner lets it go as soon as it may."""
    if not op.wants or not root.client_lease_s or not root.is_clients:
        return root
    if root.wanted:
        boot, mono, _ = json.loads(root.wanted)
        if boot == op.boot and 0 <= op.mono - mono < WANTED_S:
            return root
    return await Change(RUNS, root, {"wanted": json.dumps([op.boot, op.mono, await Now(None)])})


async def list_wanted(op: ListWanted) -> list[RunRow]:
    """List what other servers want of this owner (``ListWanted``)."""
    return list(await wanted_runs(op.owner, op.limit))


async def _take_over(root: RunRow, op: OpenRun | ClaimRun, now: float, *, history: int) -> RunRow:
    epoch = root.epoch + 1
    # What the old owner may still send: nothing if it is certainly dead or released the run; otherwise it may send
    # until its own monotonic clock ends its lease, which it can last have renewed just now.
    certain = root.owner in ("", op.dead_owner)
    quiet = op.mono if certain else op.mono + root.lease_s
    await write_event(root, "taken over", at=now, by=op.owner, epoch=epoch, from_owner=root.owner, certain=certain)
    for call in await list_calls(root.uid, ("ready", "started", "compensating", "in_doubt", "compensation_in_doubt")):
        run = await find_run(call.run)
        if call.state == "ready":
            if not call.is_staged:
                await drop_unread(run, root, call, at=now, by=op.owner, epoch=epoch, why="lost")
            continue
        # A body that outlived its timeout may still run in a process that released the run.
        undoing = call.state in ("compensating", "compensation_in_doubt")
        in_flight = not root.owner and (call.comp_mono if undoing else call.quiet_mono) is None
        # The end of the owner does not end whoever performs the call elsewhere.
        last = (op.mono + root.lease_s if in_flight else quiet) + work_left_s(call)
        await _doubt_started(run, call, op, epoch, now=now, quiet=last)
    if root.locked:
        await drop_waits(root.uid)  # the process that asked is gone; the new owner asks again
    return await Change(
        RUNS,
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


NOTHING_NOTICED: Final = {"silent_boot": "", "silent_mono": None, "silent_at": None, "wanted": ""}


def _lease_columns(boot: str, until: float) -> dict[str, Any]:
    """Return the columns of a lease on the owner's own clock; any earlier note of silence was wrong."""
    return {"lease_boot": boot, "lease_mono": until, **NOTHING_NOTICED}


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
        await Change(CALLS, call, {"quiet_boot": op.boot, "quiet_mono": quiet})
    elif call.state == "compensation_in_doubt" and call.comp_mono is None:
        await Change(CALLS, call, {"comp_boot": op.boot, "comp_mono": quiet})


# ---- Renewing and releasing


async def renew_leases(op: RenewLeases) -> Renewed:
    """Extend the leases that this owner still holds (``RenewLeases``)."""
    seen = 0.0
    goals: dict[str, str] = {}
    given_back: set[str] = set()
    busy: set[str] = set()
    wanted: set[str] = set()
    for uid, epoch in sorted(op.epochs.items()):  # in one order: rows are locked, and others renew as well
        root = await Find(RUNS, uid, skip=not op.waits)
        if root is None and not op.waits:
            busy.add(uid)
        if root is not None and root.epoch == epoch and not root.owner:
            given_back.add(uid)
        if root is None or not is_owner(root, op.owner, epoch):
            continue
        if root.wanted:
            wanted.add(uid)  # the note goes: the owner remembers it
        now = await Now(root.uid)
        seen, until = max(seen, now), now + op.lease_s
        clock = (op.boot, op.mono + op.lease_s) if op.boot else (root.lease_boot, root.lease_mono or 0.0)
        await Change(
            RUNS, root, {"lease_until": until, "wake_at": until, "lease_s": op.lease_s, **_lease_columns(*clock)}
        )
        goals[uid] = root.goal if root.goal_by in ("person", "deadline", "deadlock") else ""
    await move_time(seen or await Now(""))
    return Renewed(goals, frozenset(given_back), frozenset(busy), frozenset(wanted))


async def release_lease(op: ReleaseLease) -> RunRow:
    """Release the lease (``ReleaseLease``). A released run has no unfinished call, which would belong to nobody."""
    root = await find_run(op.root)
    if not is_owner(root, op.owner, op.epoch):
        return root  # already taken over, or a repeated operation: nothing of ours is left to release
    now = await Now(root.uid)
    await count_replays(op.replays)
    if root.closed_at is not None:
        return root
    await write_event(root, "let go", at=now, by=op.owner, epoch=op.epoch, suspended=op.suspended)
    given_back: dict[str, Any] = {"owner": "", "lease_until": 0.0, **NOTHING_NOTICED}
    if op.silent_s is not None:
        heard_at = await Now(None) - op.silent_s
        given_back |= {"silent_boot": op.boot, "silent_mono": op.mono - op.silent_s, "silent_at": heard_at}
    # Another server wants it for its client, which therefore lives, whatever its owner knows of it.
    is_moved = bool(op.boot) and (op.is_wanted or bool(root.wanted)) and root.is_clients
    if is_moved:
        given_back |= {"silent_boot": op.boot, "silent_mono": op.mono, "silent_at": await Now(None)}
    if op.suspended and (op.wake_s is None or root.goal == "rollback"):
        # If it was decided meanwhile, there is nobody to wait for; and when nobody can approve any more, the policy
        # applies.
        return await Change(RUNS, root, {**given_back, **await released_columns(root, now)})
    wake_at = None if op.wake_s is None else now + max(op.wake_s, root.client_lease_s if is_moved else 0.0)
    return await Change(RUNS, root, {**given_back, "wake_at": wake_at, "suspended": int(op.suspended)})


async def note_replays(op: CountReplays) -> None:
    """Write the counts (``CountReplays``); they say nothing about the run, so anybody may."""
    root = await find_run(op.root)
    if not root.origin:
        await count_replays(op.replays, root=root.uid)


async def due_runs(op: DueRuns) -> list[tuple[RunRow, tuple[str, ...], bool]]:
    """List the trees that recovery should look at (``DueRuns``)."""
    clock = await Now(None)
    due = await list_due(await Now(""), op.tenant, op.limit)
    seen = {root.uid for root in due}
    others = [root for root in await list_owned(op.tenant, op.limit) if root.uid not in seen]
    found: list[tuple[RunRow, tuple[str, ...], bool]] = []
    for root in [*due, *others]:
        calls = await list_calls(root.uid)
        tools = tuple(sorted({call.tool for call in calls if needs_tool(root, call)}))
        stands_still = root.uid not in seen and await Now(root.uid) - clock > STILL_S
        found.append((root, tools, root.uid in seen or stands_still))
    return found


# ---- How long a released run is left alone


async def waits_until(root: str, now: float) -> tuple[bool, float | None]:
    """Return whether a person is asked in this tree, and when the last of those requests expires; None: never."""
    held = [call for call in await list_calls(root, ("held", "ready")) if not call.attempt]
    if any(call.state == "held" and not call.is_staged and not call.approval for call in held):
        return True, None
    asked = {call.approval for call in held if call.approval}
    if asked:
        await move_time(now)
    living = [row for row in await approvals_of(root) if row.id in asked and row.lives(now)] if asked else []
    return any(row.state == "pending" for row in living), max((row.expires_at for row in living), default=None)


async def released_columns(root: RunRow, now: float, *, at_least: float | None = None) -> dict[str, Any]:
    """Return until when a released run is left alone, and whether it waits for a person.

    ``at_least``: how long its caller may take to come back for the decision.
    """
    waits, until = await waits_until(root.uid, now)
    if root.goal == "rollback":
        return {"suspended": 0, "wake_at": now}
    if waits:
        return {"suspended": 1, "wake_at": until}
    if root.goal == "commit" or root.phase == "pivoted" or (root.recover == "resume" and root.agent):
        return {"suspended": 0, "wake_at": now}
    if root.recover == "wait":
        return {"suspended": 0, "wake_at": None}
    return {"suspended": 0, "wake_at": max(until or now + root.lease_s, at_least or 0.0)}
