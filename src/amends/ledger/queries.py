"""Say what the flows ask of the tables, each question once: every one has an index that serves it.

A question for one row by its key needs no name here: it is ``Find``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from amends.encoding.chain import read_place
from amends.ledger.flow import Flow, Op
from amends.ledger.operations import ROWS_MAX
from amends.ledger.rows import (
    ANSWERS,
    ANSWERS_MAX,
    APPROVALS,
    BUDGETS,
    CALLS,
    CHECKPOINTS,
    DELEGATIONS,
    DIRECTIVES,
    DIRECTIVES_MAX,
    EVENTS,
    FORKS_MAX,
    LOCKS,
    MARKS,
    RUNS,
    TIME,
    WAITS,
    AnswerRow,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    DelegationRow,
    DirectiveRow,
    EventRow,
    LockRow,
    RunRow,
    SliceRow,
    WaitRow,
)
from amends.ledger.tables import ADDED, Change, Find, List, Remove, Row, Table, Where, equal

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedCall, FoldedEvent


async def first(question: List[Row]) -> Row | None:
    """Return the first of these rows; None: there is none."""
    found = await question
    return found[0] if found else None


# ---- Runs


def newest_run(tenant: str, id: str) -> Flow[RunRow | None]:
    """Return the newest generation of the run with this id; its tree is locked as by ``Find``."""
    return first(List(RUNS, equal(id=id, tenant=tenant), ("-generation",), 1, lock="wait"))


def generations_of(tenant: str, id: str) -> List[RunRow]:
    """Return every generation of the run with this id, oldest first."""
    return List(RUNS, equal(id=id, tenant=tenant), ("generation",))


def list_tree(root: str) -> List[RunRow]:
    """Return the root and all its descendants, parents first."""
    return List(RUNS, (("root", "=", root),), (ADDED,))


def list_forks(*roots: str) -> List[RunRow]:
    """Return the runs that were forked from these roots, oldest first, without locks: each is a tree of its own."""
    some: Where = (*equal(forked_from=roots if len(roots) > 1 else roots[0]), ("forked_from", "<>", ""))
    return List(RUNS, some, (ADDED,), FORKS_MAX, index="forked")


def list_due(now: float, tenant: str | None, limit: int) -> List[RunRow]:
    """Return the roots for which recovery has something to do now, longest waiting first."""
    return List(RUNS, (("wake_at", "<=", now), *equal(tenant=tenant)), ("wake_at", ADDED), limit, index="wake")


def list_owned(tenant: str | None, limit: int) -> List[RunRow]:
    """Return the roots that have an owner now; the caller finds out whether the owner is alive."""
    return List(RUNS, (("owner", "<>", ""), *equal(tenant=tenant)), (ADDED,), limit, index="owned")


def wanted_runs(owner: str, limit: int) -> List[RunRow]:
    """Return the roots of this owner that another server has asked for since its last heartbeat."""
    some: Where = (("owner", "=", owner), ("owner", "<>", ""), ("wanted", "<>", ""))
    return List(RUNS, some, (ADDED,), limit, index="owned")


def page_runs(
    tenant: str | None, states: tuple[str, ...], before: tuple[float, str] | None, limit: int
) -> List[RunRow]:
    """Return runs, newest first, below ``before`` (the creation time and uid of a run)."""
    order = ("-created_at", "-uid")
    return List(RUNS, equal(tenant=tenant, state=states), order, limit, before, index="created")


def page_unfinished(tenant: str | None, before: str, limit: int) -> List[RunRow]:
    """Return the roots that have not ended, newest first, below ``before`` (a uid).

    Each of them has events that no checkpoint covers for good: the index of those has few others.
    """
    some: Where = (("parent", "=", ""), ("closed_at", "=", None), *equal(tenant=tenant))
    return List(RUNS, some, ("-uid",), limit, (before,) if before else None, index="unsealed")


def page_closed(before: float, tenant: str | None, after: tuple[float, str] | None, limit: int) -> List[RunRow]:
    """Return the roots that ended before this time and still have payloads, longest ended first, above ``after``."""
    some: Where = (("parent", "=", ""), ("gone_at", "=", None), ("closed_at", "<>", None), ("closed_at", "<", before))
    return List(RUNS, (*some, *equal(tenant=tenant)), ("closed_at", "uid"), limit, after, index="closed")


def find_roots(uids: tuple[str, ...], *, peek: bool) -> List[RunRow]:
    """Return these roots, locked now, without those that another transaction has locked; ``peek``: all, and lock none."""
    return List(RUNS, (("uid", "in", uids),), (), lock="" if peek else "skip")


def runs_of_trees(roots: tuple[str, ...]) -> List[RunRow]:
    """Return the runs of these trees, parents first."""
    return List(RUNS, (("root", "in", roots),), (ADDED,))


# ---- Calls


def _of_key(key: str, root: str) -> Where:
    return (("key", "=", key), ("root", "=", root) if root else ("scope", "=", "ledger"))


def newest_call(key: str, root: str) -> Flow[CallRow | None]:
    """Return the newest generation of this key in a tree; without a root, of a key of the whole ledger.

    A call of another tree may change at any time.
    """
    return first(List(CALLS, _of_key(key, root), ("-generation",), 1))


def list_generations(key: str, root: str) -> List[CallRow]:
    """Return every generation of this key in a tree, oldest first; without a root, of a key of the whole ledger."""
    return List(CALLS, _of_key(key, root), ("generation",))


def list_calls(root: str, states: tuple[str, ...] = ()) -> List[CallRow]:
    """Return the calls of a tree in the order in which they were requested; with states, only those in one of them."""
    some: Where = (("root", "=", root), ("state", "in", states)) if states else (("root", "=", root),)
    return List(CALLS, some, ("seq",))


def calls_after(root: str, seq: int, limit: int) -> List[CallRow]:
    """Return some calls of a tree in the order in which they were requested, those after this number."""
    return List(CALLS, (("root", "=", root), ("seq", ">", seq)), ("seq",), limit)


def calls_of_trees(roots: tuple[str, ...], states: tuple[str, ...] = ()) -> List[CallRow]:
    """Return the calls of these trees, those of each in the order in which they were requested; in one of these states."""
    return List(CALLS, (("root", "in", roots), *equal(state=states)), ("seq",))


def page_calls(
    tenant: str | None, states: tuple[str, ...], before: str | None, limit: int, tool: str = ""
) -> List[CallRow]:
    """Return calls of the whole ledger, newest first; of one tool, if one is named.

    ``before``: the id of the last call of the page before.
    """
    some = equal(tenant=tenant, state=states, tool=tool or None)
    return List(CALLS, some, (f"-{ADDED}",), limit, None if before is None else (before,))


def answers_from(calls: tuple[str, ...]) -> List[AnswerRow]:
    """Return the runs that were answered from these calls of other runs."""
    return List(ANSWERS, (("call", "in", calls),), ("call", "root"), ANSWERS_MAX)


# ---- Events


def page_events(root: str | None, tenant: str | None, after: int | str, limit: int) -> List[EventRow]:
    """Return the events after ``after``: of one tree by number, of the ledger by moment, tree and number.

    ``after`` is a number with a root, and a place (``EventRow.place``) without one; empty: from the beginning.
    """
    if root is not None:
        return List(EVENTS, equal(root=root, tenant=tenant), ("n",), limit, (int(after or 0),))
    return List(EVENTS, equal(tenant=tenant), ("at", "root", "n"), limit, read_place(str(after or "")))


def page_events_back(tenant: str | None, before: str, limit: int) -> List[EventRow]:
    """Return the events of the ledger below a place, the newest first; an empty place: from the end."""
    place = read_place(before) if before else None
    return List(EVENTS, equal(tenant=tenant), ("-at", "-root", "-n"), limit, place)


def newest_event(root: str | None, tenant: str | None) -> Flow[EventRow | None]:
    """Return the last event: of one tree by number, of the ledger by moment, tree and number."""
    order = ("-at", "-root", "-n") if root is None else ("-n",)
    return first(List(EVENTS, equal(root=root, tenant=tenant), order, 1))


# ---- Approvals and delegations


def approvals_of(root: str) -> List[ApprovalRow]:
    """Return every request of a tree, oldest first."""
    return List(APPROVALS, (("root", "=", root),), (ADDED,))


def page_approvals(
    tenant: str | None, states: tuple[str, ...], before: str | None, limit: int, use: str = ""
) -> List[ApprovalRow]:
    """Return requests of the whole ledger, newest first; of one tool as used by one agent, if ``use`` names them.

    ``before``: the id of the last one of the page before.
    """
    some, index = equal(tenant=tenant, state=states), "state" if len(states) == 1 else ""
    if use:
        some, index = (("use_key", "<>", ""), *equal(use_key=use), *some), "use"
    return List(APPROVALS, some, (f"-{ADDED}",), limit, None if before is None else (before,), index=index)


def list_due_notices(now: float, tenant: str | None, limit: int) -> List[ApprovalRow]:
    """Return requests whose notice is due by now, longest waiting first."""
    return List(APPROVALS, (("tell_at", "<=", now), *equal(tenant=tenant)), ("tell_at", ADDED), limit, index="tell")


def list_due_requests(now: float, tenant: str | None, limit: int) -> List[ApprovalRow]:
    """Return requests whose timetable has an entry that is due by now, longest waiting first."""
    return List(APPROVALS, (("due_at", "<=", now), *equal(tenant=tenant)), ("due_at", ADDED), limit, index="due")


def used_approvals(use: str) -> List[ApprovalRow]:
    """Return a request with which this agent used this tool; the list is empty if there is none."""
    return List(APPROVALS, (("use_key", "<>", ""), *equal(use_key=use, state="used")), (), 1)


def delegations_to(tenant: str, to_whom: str) -> List[DelegationRow]:
    """Return the delegations to this person, newest last."""
    return List(DELEGATIONS, equal(tenant=tenant, to_whom=to_whom), ("made_at", "id"))


# ---- Directives


def standing_halts() -> List[DirectiveRow]:
    """Return the halts that nobody has lifted, oldest first."""
    return List(DIRECTIVES, (*equal(kind="halt"), ("closed_at", "=", None)), ("made_at", "id"), DIRECTIVES_MAX)


def lifted_halts() -> List[DirectiveRow]:
    """Return the halts that somebody has lifted, newest first."""
    return List(DIRECTIVES, (*equal(kind="halt"), ("closed_at", "<>", None)), ("-closed_at", "-id"), DIRECTIVES_MAX)


def standing_tokens(tenant: str | None, now: float) -> List[DirectiveRow]:
    """Return the tokens that are valid now, oldest first: of a tenant, or (None) of all.

    Logins that nobody ended stay as they are when their time is over: they must not hide what is valid.
    """
    some = (*equal(kind="token", tenant=tenant), ("closed_at", "=", None), ("until_at", ">", now))
    return List(DIRECTIVES, some, ("made_at", "id"), DIRECTIVES_MAX)


def standing_permits(tenant: str | None, tool: str, now: float) -> List[DirectiveRow]:
    """Return the permits of a tenant, or (None) of all, that may be used now, oldest first; of one tool, if one is named.

    Those that nobody used stay as they are when their time is over: they must not hide what is valid.
    """
    some = (*equal(kind="permit", tenant=tenant, tool=tool or None), ("closed_at", "=", None), ("until_at", ">", now))
    return List(DIRECTIVES, some, ("made_at", "id"), DIRECTIVES_MAX)


# ---- Budgets


def page_slices(tenant: str, after: str, limit: int) -> List[SliceRow]:
    """Return the slices of a tenant by name, above ``after``."""
    return List(BUDGETS, equal(tenant=tenant), ("name",), limit, (after,))


def slices_named(tenant: str, names: tuple[str, ...]) -> List[SliceRow]:
    """Return those of these slices that exist, by name."""
    return List(BUDGETS, (("tenant", "=", tenant), ("name", "in", names)), ("name",))


def drop_slices(root: str) -> Remove[SliceRow]:
    """Remove the slices of this root; return how many there were."""
    return Remove(BUDGETS, (("root", "<>", ""), *equal(root=root)))


# ---- Locks


def find_locks(tenant: str, names: tuple[str, ...]) -> List[LockRow]:
    """Return those of these names that somebody holds, by name."""
    return List(LOCKS, (("tenant", "=", tenant), ("name", "in", names)), ("name",))


def locks_of(root: str) -> List[LockRow]:
    """Return the locks of this root, by name."""
    return List(LOCKS, (("root", "=", root),), ("name",))


def page_locks(tenant: str, after: str, limit: int) -> List[LockRow]:
    """Return the locks of a tenant by name, above ``after``."""
    return List(LOCKS, equal(tenant=tenant), ("name",), limit, (after,))


def drop_locks(root: str, name: str | None = None) -> Remove[LockRow]:
    """Remove the lock of this name from this root or, without a name, all its locks; return how many there were."""
    return Remove(LOCKS, equal(root=root, name=name))


def waits_of(root: str) -> List[WaitRow]:
    """Return what this root waits for, by name."""
    return List(WAITS, (("root", "=", root),), ("name",))


def waits_for(tenant: str, name: str) -> List[WaitRow]:
    """Return who waits for this name, longest first."""
    return List(WAITS, equal(tenant=tenant, name=name), ("since", "root"))


def drop_waits(root: str, names: tuple[str, ...] = ()) -> Remove[WaitRow]:
    """Forget that this root waits for these names or, without names, for any."""
    return Remove(WAITS, equal(root=root, name=names))


# ---- The ledger itself


async def move_time(at: float) -> None:
    """Advance the ledger's time to this moment, unless it is there already or another transaction is advancing it."""
    mark = await Find(MARKS, TIME, skip=True)
    if mark is not None and mark.made_at < at:
        await Change(MARKS, mark, {"made_at": at})


def newest_checkpoint() -> Flow[CheckpointRow | None]:
    """Return the last checkpoint of the ledger's own chain."""
    return first(List(CHECKPOINTS, (), ("-n",), 1))


def page_checkpoints(after: int, limit: int) -> List[CheckpointRow]:
    """Return checkpoints in order, above ``after``."""
    return List(CHECKPOINTS, (), ("n",), limit, (after,))


# ---- Audits: ranges of trees


def chains_above(root: str, limit: int) -> Op[list[EventRow | FoldedEvent]]:
    """Return the events of all trees whose root comes after this one, tree by tree."""
    return cast("Op[list[EventRow | FoldedEvent]]", List(EVENTS, (("root", ">", root),), ("root", "n"), limit))


def runs_between(above: str, upto: str | None) -> List[RunRow]:
    """Return the runs of the trees whose roots lie above one and up to another; None: to the end."""
    return _between(RUNS, "root", above, upto, index="root")


def calls_between(above: str, upto: str | None) -> Op[list[CallRow | FoldedCall]]:
    """Return the calls of the same range of trees."""
    return cast("Op[list[CallRow | FoldedCall]]", _between(CALLS, "root", above, upto))


def approvals_between(above: str, upto: str | None) -> List[ApprovalRow]:
    """Return the approval requests of the same range of trees."""
    return _between(APPROVALS, "root", above, upto, index="root")


def delegations_between(above: str, upto: str | None) -> List[DelegationRow]:
    """Return the delegations of the same range: each is the root of its own chain."""
    return _between(DELEGATIONS, "id", above, upto)


def directives_between(above: str, upto: str | None) -> List[DirectiveRow]:
    """Return the directives of the same range: each is the root of its own chain."""
    return _between(DIRECTIVES, "id", above, upto)


def _between(table: Table[Row], root: str, above: str, upto: str | None, *, index: str = "") -> List[Row]:
    some: Where = ((root, ">", above),) if upto is None else ((root, ">", above), (root, "<=", upto))
    return List(table, some, (root,), ROWS_MAX, index=index)
