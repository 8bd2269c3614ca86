"""Recover trees whose owner is gone, with the same flows as a live run. Repeating a recovery changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from amends.encoding.dataclass import dataclass
from amends.engine.blocked import commit_obstacles, recorded_causes
from amends.engine.checkpoints import check_anchor
from amends.engine.doubts import probed_seldom, waits_for_request
from amends.engine.ending import commit, interrupted
from amends.engine.rollback import roll_back, settle_doubts
from amends.engine.session import Session, read_tree, release_tree
from amends.errors import BudgetExceeded, Halted, Locked, RunBlocked, Waiting
from amends.ledger.flow import Flow
from amends.ledger.leases import Lease, client_left_s
from amends.ledger.operations import ClaimRun, CloseRun, DueRuns, ExpireApprovals, ListHalts, Tree
from amends.ledger.rows import RunRow, deadline_passed
from amends.ledger.world import IsDead, ReadClocks
from amends.states import UNSETTLED

LOOKED_AT_MAX: Final = 10_000
"""The most due trees that one search goes through for those that this process has the tools for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A tree that recovery should look at; ``missing``: names of tools that this process does not have."""

    root: RunRow
    missing: tuple[str, ...]
    dead_owner: str = ""


@dataclass(frozen=True, slots=True)
class Recovered:
    """How a claimed tree was left. ``resume``: its agent must be started again, the lease is still held."""

    how: Literal["done", "resume", "lost"]
    run: RunRow


async def find_abandoned(
    tools: frozenset[str], *, tenant: str | None, limit: int, agents: frozenset[str] | None = None
) -> list[Found]:
    """Find trees whose lease has ended, whose owner is certainly dead, or which are due.

    A run that only its agent can continue is left to a process that has the agent; ``None``: this one has all agents.
    """
    asked, seen = limit, -1
    while True:
        found = await _find_due(tools, tenant, asked, agents)
        ours = [one for one in found if not one.missing]
        if len(ours) >= limit or len(found) <= seen or asked >= LOOKED_AT_MAX:
            return [*ours, *(one for one in found if one.missing)][:limit]
        # Trees that this process cannot recover must not hide those behind them that it can.
        asked, seen = min(asked * 4, LOOKED_AT_MAX), len(found)


async def _find_due(
    tools: frozenset[str], tenant: str | None, limit: int, agents: frozenset[str] | None
) -> list[Found]:
    found: list[Found] = []
    clocks = await ReadClocks()
    for root, needed, is_due in await DueRuns(tenant, limit):
        # By the owner's monotonic clock too: a wall clock that was set back must not delay an abandoned run for an
        # hour.
        same = root.lease_boot == clocks.boot and root.lease_mono is not None
        due, dead = is_due or (same and clocks.mono >= (root.lease_mono or 0.0)), ""
        if root.owner:
            dead = root.owner if await IsDead(root.owner) else ""
        if not is_due and client_left_s(root, clocks.boot, clocks.mono, None) > 0:
            continue  # its client may come back; the ledger wakes it when that is over
        if due or dead:
            missing = tuple(tool for tool in needed if tool not in tools)
            if agents is not None and _needs_agent(root) and root.agent not in agents:
                missing = (*missing, f"agent {root.agent}")
            found.append(Found(root, missing, dead))
    return found


def _needs_agent(root: RunRow) -> bool:
    return root.recover == "resume" and bool(root.agent) and root.state in ("open", "pivoted") and not root.goal


async def claim(
    found: Found, *, owner: str, lease_s: float, new_id: Callable[[str], str], force: bool = False, anchor: Any = None
) -> tuple[RunRow, Lease] | None:
    """Take the tree over; return None if another process was faster."""
    await check_anchor(anchor)
    clocks = await ReadClocks()
    row = await ClaimRun(
        found.root.uid,
        owner,
        new_id("opn"),
        lease_s,
        clocks.boot,
        clocks.mono,
        dead_owner=found.dead_owner,
        force=force,
    )
    if row is None:
        return None
    return row, Lease(row.root, owner, row.epoch, lease_s, clocks.mono + lease_s)


def recover_tree(session: Session, root: RunRow, *, has_agent: bool) -> Flow[Recovered]:
    """Finish one claimed tree: follow its goal, else go forward if it pivoted, else apply its policy."""
    if root.phase == "rolling_back" or (root.goal == "rollback" and root.phase == "open"):
        return _roll_back(session, root.goal_why or "recovered")
    if root.state == "pivoted" and not root.goal and root.recover == "resume" and has_agent:
        # The agent continues the run forward: a person decides only if there is no agent.
        return _wait_or_resume(session, root, has_agent)
    if root.goal == "commit" or root.phase == "pivoted":
        return _go_forward(session, root)
    if deadline_passed(root):
        return _roll_back(session, "the deadline passed")
    if root.recover == "rollback":
        return _roll_back_unless_held(session)
    return _wait_or_resume(session, root, has_agent)


async def _roll_back_unless_held(session: Session) -> Recovered:
    """Roll back, but not a run that only waits for a person and died before it could record that."""
    tree = await read_tree(session)
    if _waits_for_person(tree):
        # Doubts can be settled meanwhile; calls that somebody may still approve are not rolled back.
        later = await settle_doubts(session, tree, back=False)
        tree = await read_tree(session)
        if _waits_for_person(tree):
            run = await release_tree(session, later, suspended=True)
            return Recovered("done", run)
        # A restarted body has used the approval of a call inside it: the run no longer waits for a person.
    if any(row.state_at(tree.now) == "expired" for row in tree.approvals):
        await ExpireApprovals(session.root, session.lease.owner, session.lease.epoch)
        return await _roll_back(session, "nobody decided in time")
    return await _roll_back(session, "its owner was lost")


def _waits_for_person(tree: Tree) -> bool:
    unsettled = [row for row in tree.calls if row.state in UNSETTLED and not row.is_staged]
    expired = {row.id for row in tree.approvals if not row.lives(tree.now)}
    waits = [row for row in unsettled if row.state == "held" and row.approval not in expired]
    asked = {row.approval for row in tree.calls if row.state in ("held", "ready") and not row.attempt} - expired - {""}
    return bool(asked) or (bool(waits) and len(waits) == len(unsettled))


async def _roll_back(session: Session, why: str) -> Recovered:
    back = await roll_back(session, by="recovery", why=why)
    if back.run.phase == "pivoted":
        return await _go_forward(session, back.run)
    return Recovered("done", back.run)


async def _go_forward(session: Session, root: RunRow) -> Recovered:
    try:
        if root.goal == "commit":
            run = await commit(session)
            if run.state in ("open", "rolling_back") and run.goal == "rollback":
                return await _roll_back(session, run.goal_why)
            return Recovered("done", run)
        return Recovered("done", await interrupted(session))
    except (BudgetExceeded, Halted, Locked, RunBlocked, Waiting):
        return Recovered("done", (await read_tree(session)).run)
    except Exception:
        tree = await read_tree(session)
        if tree.run.state in ("rolled_back", "blocked"):
            return Recovered("done", tree.run)  # the pivot failed at commit, and the run was rolled back
        raise


async def _wait_or_resume(session: Session, root: RunRow, has_agent: bool) -> Recovered:
    waits = await _roll_back_children(session, await read_tree(session))
    waits.append(await settle_doubts(session, await read_tree(session), back=False))
    later = min((wait for wait in waits if wait is not None), default=None)
    tree = await read_tree(session)
    doubtful = False
    for row in tree.calls:
        # A call whose body comes with its request is settled by its agent, or by its program when that opens the run.
        doubtful = doubtful or (row.state == "in_doubt" and not await waits_for_request(session, row))
    # Doubts first, then the policy: an agent that meets one fails, and would roll back what a person can still save.
    if root.recover == "resume" and has_agent and not doubtful and tree.run.state in ("open", "pivoted"):
        if any(not halt.tool and halt.is_about("", tree.run) for halt in await ListHalts()):
            # Its first call would be refused, and the agent would fail: it is resumed when the halt is lifted.
            return Recovered("done", await release_tree(session, session.lease.lease_s))
        return Recovered("resume", tree.run)
    if tree.run.phase == "pivoted":
        return await _go_forward(session, tree.run)  # the doubt was about its pivot, which had happened
    if later is None and doubtful and tree.run.state != "blocked":
        causes = recorded_causes(session.id, [left.cause for left in commit_obstacles(session, tree)])
        again_s, lease = probed_seldom(session, tree), session.lease
        run = await CloseRun(session.uid, lease.owner, lease.epoch, "blocked", causes=causes, wake_s=again_s)
        return Recovered("done", run)
    run = await release_tree(session, probed_seldom(session, tree) if later is None else later)
    return Recovered("done", run)


async def _roll_back_children(session: Session, tree: Tree) -> list[float | None]:
    """Continue the rollback of children that had begun it, whatever the parent waits for.

    Return when each continues.
    """
    turning = {run.uid for run in tree.runs if run.state == "rolling_back"}
    waits: list[float | None] = []
    for child in tree.runs:
        if child.parent and child.uid in turning and child.parent not in turning:
            inner = session.child(child.uid, child.id, generation=child.generation, resumed=True, state=child.state)
            waits.append((await roll_back(inner, by="recovery", why=child.goal_why or "recovered")).again_s)
    return waits
