"""Fork a run.

A fork is a new run that shares the calls of its source up to one call: it has them as already done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from amends.encoding.dataclass import dataclass
from amends.encoding.secret import SEALED
from amends.engine.session import Session, call_of
from amends.errors import CannotFork, RunConflict, RunNotFound, UsageError
from amends.host.host import Host, View, run_id_of
from amends.ledger.operations import ForkRun, ReadRun, SharedCopy, Tree
from amends.ledger.rows import CallRow, Point, RunRow, counterparts_of, dump_point, forked_key, point_of
from amends.states import RUN_FINAL

CALLS_MAX: Final = 10_000
"""How many calls a fork may share: they are copied in one transaction."""
LOOKS_MAX: Final = 20
"""How often to read a run again that changes while it is forked."""
ID_CHARS_MAX: Final = 512
SETTLED: Final = ("succeeded", "failed", "refused")
NOT_DONE: Final = ("dropped", "compensated")
"""States of calls that left no effect: a fork that requests them does them."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller said about the fork it wants."""

    tenant: str
    run_id: str
    at: str
    id: str | None
    principal: str
    by: str
    new_id: Callable[[str], str]


async def _fork(session: Session, wish: Wish) -> str:
    """Create a run that shares what this one did up to a call; return its id. It is opened like any other run."""
    for _ in range(LOOKS_MAX):
        tree = await ReadRun(wish.tenant, wish.run_id)
        op = planned(session, tree, wish)
        made = await op
        match made.how:
            case "forked":
                return made.run.id
            case "taken":
                raise RunConflict(
                    f"run {made.run.id} exists already, and is not this fork; nothing was created",
                    recorded=made.run.id,
                    given=wish.id,
                    run_id=made.run.id,
                    hint="give the fork another id",
                )
            case "back":
                raise _taken_back(made.run, wish)
            case "moved":
                continue
    raise CannotFork(
        f"run {wish.run_id} changes faster than it can be forked; nothing was created",
        why="moved", run_id=wish.run_id, hint="fork it when its calls have settled",
    )  # fmt: skip


def planned(session: Session, tree: Tree | None, wish: Wish) -> ForkRun:
    """Return the operation that creates the fork; raise if the run cannot be forked there."""
    if tree is None:
        raise RunNotFound(wish.run_id)
    run = tree.run
    if run.parent:
        raise UsageError(f"run {run.id} is a child: fork its root", hint="at= may be a call of the child")
    if wish.principal and run.principal and wish.principal != run.principal:
        raise RunConflict(
            f"run {run.id} belongs to {run.principal} and cannot be forked for {wish.principal}; nothing was created",
            recorded=run.principal, given=wish.principal, run_id=run.id,
            hint="fork it for the principal that it is recorded with",
        )  # fmt: skip
    if run.phase in ("rolling_back", "rolled_back") or (run.goal == "rollback" and run.phase == "open"):
        raise _taken_back(run, wish)
    shared = prefix(session, tree, wish.at)
    return made(tree, wish, shared)


def prefix(session: Session, tree: Tree, at: str) -> list[CallRow]:
    """Return the calls that were requested up to this one, and the calls inside of their bodies.

    The order of requests counts, which is the program's; the order of settling is the world's. Each of the calls must
    be settled. Staged calls have not been done and are not shared.
    """
    last = next((row for row in tree.calls if row.id == at), None)
    if last is None:
        raise UsageError(f"run {tree.run.id} has no call {at!r}", hint=f"rt.report({tree.run.id!r}) lists its calls")
    inside: set[str] = set()
    for row in tree.calls:  # in the order of the ledger: a call comes before the calls that its body makes
        if row.seq <= last.seq or row.parent in inside:
            inside.add(row.id)
    rows = [row for row in tree.calls if row.id in inside and _counts(row, last)]
    open_ones = [row for row in rows if row.state not in SETTLED and not row.alias]
    if open_ones:
        raise _refusal(session, tree.run, open_ones, "unsettled")
    gone = [row for row in rows if row.lost_at is not None]
    if gone:
        raise _refusal(session, tree.run, gone, "gone")
    sealed = [row for row in rows if row.args.startswith(SEALED) or (row.result or "").startswith(SEALED)]
    if sealed:
        raise _refusal(session, tree.run, sealed, "sealed")
    if len(rows) > CALLS_MAX:
        raise CannotFork(
            f"run {tree.run.id} has {len(rows)} calls up to {last.tool} ({at}); a fork shares {CALLS_MAX} at most",
            why="long", run_id=tree.run.id, hint="fork it at an earlier call",
        )  # fmt: skip
    return rows


def _counts(row: CallRow, last: CallRow) -> bool:
    """Return whether the call was done; the last one always counts, because its caller named it."""
    if row.id == last.id:
        return True
    return not row.is_staged and (row.state not in NOT_DONE or bool(row.alias))


def made(tree: Tree, wish: Wish, shared: list[CallRow]) -> ForkRun:
    """Return the operation that creates a fork with these calls of the tree."""
    return _Maker(tree, wish).made(shared)


class _Maker:
    """The rows of one fork."""

    def __init__(self, tree: Tree, wish: Wish) -> None:
        self._tree, self._wish = tree, wish
        self._root = wish.new_id("run")
        self._uids: dict[str, str] = {tree.run.uid: self._root}
        self._ids: dict[str, str] = {}
        self._generations: dict[str, int] = {}
        self._id = wish.id or _named(tree.run.id, self._root)

    def made(self, shared: list[CallRow]) -> ForkRun:
        """Return the operation that creates the fork."""
        self._ids = {row.id: self._wish.new_id("call") for row in shared}
        runs = self._runs(shared)
        calls = tuple(self._call(row, runs) for row in shared if not row.alias or row.alias in self._ids)
        return ForkRun(self._tree.run.uid, tuple(runs.values()), calls, self._wish.by)

    def _runs(self, shared: list[CallRow]) -> dict[str, RunRow]:
        """Return the rows of the fork and of the children with shared calls, by the uid of their source."""
        source = self._tree.run
        point = point_of(source)
        place = Point(source.id, self._wish.at, source.uid if point is None else point.kin, self._phases(shared))
        runs = {
            source.uid: replace(
                self._blank(source), uid=self._root, id=self._id, root=self._root, parent="", generation=1,
                principal=source.principal or self._wish.principal, tags=source.tags, budgets=source.budgets,
                completion=source.completion,
                forked_from=source.uid, forked_at=dump_point(place),
                state="pivoted" if self._pivot(source, shared) else "open",
            )
        }  # fmt: skip
        needed = self._needed(shared)
        for row in self._tree.runs:
            if row.uid in needed and row.parent in runs:
                self._uids[row.uid] = self._wish.new_id("run")
                runs[row.uid] = replace(
                    self._blank(row), uid=self._uids[row.uid], id=self._id + row.id.removeprefix(source.id),
                    root=self._root, parent=self._uids[row.parent], generation=1, state=self._state(row, shared),
                    output=row.output if self._state(row, shared) == "committed" else "", forked_from=row.uid,
                    forked_at=json.dumps([*counterparts_of(row), row.uid][-len(place.phases) :] if place.phases else []),
                )  # fmt: skip
        return {uid: replace(row, pivot=self._pivot(self._row(uid), shared)) for uid, row in runs.items()}

    def _phases(self, shared: list[CallRow]) -> tuple[tuple[str, str, str], ...]:
        """Return whose clock, random numbers and ids the program reads until it has requested what it shares.

        See ``Point.phases``.
        """
        done = [row for row in shared if row.state == "succeeded"]
        if not done:
            return ()
        last = done[-1]
        point = point_of(self._tree.run)
        phases: list[tuple[str, str, str]] = []
        for root, call, mine in () if point is None else point.phases:
            if mine not in self._ids or mine == last.id:  # the shared calls end inside this phase
                shared_of = {row.id: row.shared for row in shared}
                return (*phases, (root, shared_of[last.id], self._ids[last.id]))
            phases.append((root, call, self._ids[mine]))
        return (*phases, (self._tree.run.uid, last.id, self._ids[last.id]))

    def _needed(self, shared: list[CallRow]) -> set[str]:
        parents = {row.uid: row.parent for row in self._tree.runs}
        needed: set[str] = set()
        for call in shared:
            uid = call.run
            while uid and uid not in needed:
                needed.add(uid)
                uid = parents[uid]
        return needed

    def _row(self, uid: str) -> RunRow:
        return next(row for row in self._tree.runs if row.uid == uid)

    def _blank(self, row: RunRow) -> RunRow:
        """Return an empty run with the settings of this one."""
        return RunRow(
            uid=row.uid, id=row.id, tenant=row.tenant, generation=1, root=row.root, parent=row.parent, state="open",
            created_at=0.0, policy=row.policy, order_mode=row.order_mode, agent=row.agent, principal=row.principal,
            input=row.input, input_digest=row.input_digest,
        )  # fmt: skip

    def _pivot(self, run: RunRow, shared: Iterable[CallRow]) -> str:
        """Return the fork's id of this run's pivot, if the pivot is among the shared calls; else an empty string."""
        passed = (row for row in shared if row.id == run.pivot and row.state == "succeeded" and not row.violation)
        return next((self._ids[row.id] for row in passed), "")

    def _state(self, child: RunRow, shared: list[CallRow]) -> str:
        """Return "committed" if everything that the child did is shared; else the fork continues it."""
        have = {row.id for row in shared}
        below = {child.uid}
        for row in self._tree.runs:
            if row.parent in below:
                below.add(row.uid)
        inside = [row for row in self._tree.calls if row.run in below and row.state not in NOT_DONE]
        if child.state == "committed" and all(row.id in have for row in inside):
            return "committed"
        return "pivoted" if self._pivot(child, shared) else "open"

    def _call(self, row: CallRow, runs: dict[str, RunRow]) -> SharedCopy:
        """Return the fork's copy of a call: its request and its answer, and nothing for which the fork is responsible."""
        id, run = self._ids[row.id], runs[row.run]
        key = forked_key(row.key, self._root)
        if row.kind == "read":
            key = f"{key.partition(':')[0]}:{id}"
        generation = self._generations[key] = self._generations.get(key, 0) + 1
        copy = CallRow(
            id=id, seq=0, run=run.uid, root=self._root, run_id=run.id, tenant=row.tenant, tool=row.tool,
            version=row.version, kind=row.kind, key=key, generation=generation, ident=row.ident, digest=row.digest,
            args=row.args, state=row.state, created_at=row.created_at, created_epoch=0, asked_epoch=0, scope=row.scope,
            declared=row.declared, again=row.again, call_ref=row.call_ref, parent=self._ids.get(row.parent, ""),
            grp=row.grp, reason=row.reason, alias=self._ids.get(row.alias, ""), at_commit=row.at_commit,
            violation=row.violation, attempt=row.attempt, result=row.result, loss=row.loss, error=row.error,
            why=row.why, first_at=row.first_at, started_at=row.started_at, settled_at=row.settled_at, agent=run.agent,
            principal=run.principal, shared=row.shared or row.id,
        )  # fmt: skip
        return SharedCopy(row.id, row.state, copy)


def _named(run_id: str, uid: str) -> str:
    id = f"{run_id}.fork-{uid[-6:]}"
    return id if len(id) <= ID_CHARS_MAX else uid


# ---- Refusals

_WHY: Final = {
    "unsettled": (
        "is not settled",
        "wait for it, settle its doubt (rt.resolve) or decide it, or fork at an earlier call",
    ),
    "gone": ("has lost its arguments or its result to gc", "a run can be forked only before gc removes its payloads"),
    "sealed": ("is encrypted with a key that is missing here", "give Runtime(encrypt=...) the keys of the ledger"),
}


def _refusal(session: Session, run: RunRow, rows: list[CallRow], why: str) -> CannotFork:
    words, hint = _WHY[why]
    named = ", ".join(f"{row.tool} ({row.id}, {row.state.replace('_', ' ')})" for row in rows[:5])
    more = f" and {len(rows) - 5} more" if len(rows) > 5 else ""
    return CannotFork(
        f"run {run.id} cannot be forked there: {named}{more} {words}; nothing was created",
        calls=[call_of(row, session.spec(row.tool)) for row in rows], why=why, run_id=run.id, hint=hint,
    )  # fmt: skip


def _taken_back(run: RunRow, wish: Wish) -> CannotFork:
    is_over = run.state in RUN_FINAL
    return CannotFork(
        f"run {wish.run_id} cannot be forked: it {'was rolled back' if is_over else 'is being rolled back'}"
        + (f" with run {run.id}" if run.id != wish.run_id else ""),
        why="taken_back", run_id=wish.run_id, hint="start a new run",
    )  # fmt: skip


# ---- The verbs of the runtime


async def fork(host: Host, view: View, run_id: str, *, at: str, id: str | None = None, by: str = "") -> str:
    """Make a new run that shares the calls of this one up to and including call ``at``; return its id.

    Open it with ``rt.run``: shared calls are answered from the record. Everything after them is live and needs
    approvals and budgets of its own. A fork never rolls back what it shares. ``by``: who makes it, if that is not the
    principal; the events name them.
    """
    last: Any = at
    if not isinstance(last, str) or not last:
        raise UsageError(f"at is the id of the last call that the fork shares, not {at!r}")
    wish = Wish(
        tenant=view.tenant or "",
        run_id=run_id_of(run_id),
        at=at,
        id=None if id is None else run_id_of(id),
        principal=view.principal or "",
        by=by or view.principal or host.owner,
        new_id=host.new_id,
    )
    return await _fork(host.reader(), wish)
