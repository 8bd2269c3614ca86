"""Checking the record: each tree's chain, where its rows stand by it, and that what they say is what was written.

``TreeCheck`` is given the events of one tree, in their order, and then its rows; it asks nobody and remembers no more
than that tree. ``verify_chains`` goes through a ledger with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from amends.approvalrows import ApprovalRow, DelegationRow
from amends.auditops import Chains, Place, ReadChains
from amends.chain import GENESIS, link, moment, proof
from amends.engine.standing import Load, Standing, Use
from amends.record import dataclass, field
from amends.rows import PLAIN, CallRow, EventRow, RunRow
from amends.secret import SEALED
from amends.verified import PROBLEMS_MAX, How, Problem, Verified

Prove: TypeAlias = Callable[[str, str, str], "bool | None"]
"""Whether a proof is of this payload, of the row of this id; None: nobody here can tell."""
Heads: TypeAlias = Mapping[int, str]
"""Hashes that the events of a tree with these numbers are known to have had."""
NO_HEADS: Final[Heads] = {}
NO_SENSE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What values raise that no amends has written: somebody has changed them, and that is said instead."""
PAGES_MAX: Final = 10**9
WALKS_MAX: Final = 3
"""So often the ledger is gone through where what was loaded does not fit: runs are loaded beside us, too."""


def plainly(proved: str, text: str, _about: str) -> bool | None:
    """What can be proved without a key: also that a text should be encrypted, by a proof that was made with a key."""
    if text.startswith(SEALED):
        return None
    if ":" in proved:
        return None if text in PLAIN else False
    return proof(text) == proved


class TreeCheck:
    """One tree: first its events, then ``ended`` with its rows."""

    def __init__(self, root: str, prove: Prove = plainly, heads: Heads = NO_HEADS) -> None:
        self.root, self._heads = root, heads
        self.events, self.young, self.tenant = 0, 0, ""
        self._standing = Standing(prove)
        self._n, self._prev, self._seq, self._run_id = 0, GENESIS, 0, ""
        self._broken: EventRow | None = None
        self.problems: list[Problem] = []

    def event(self, event: EventRow) -> None:
        """Look at the next event. After the first that is not linked nothing can be said of those that follow."""
        self.events += 1
        if self._broken is not None:
            if not self.problems:
                self._tell(self._broken, *self._how_broken(self._broken, event))
            return
        self._run_id, self.tenant = self._run_id or event.run_id, self.tenant or event.tenant
        n = self._n + 1
        if event.n != n or event.seq <= self._seq or event.hash != _linked(self._prev, n, event):
            self._broken = event
            return
        self._n, self._prev, self._seq = n, event.hash, event.seq
        if event.at != moment(event.at):
            self._tell(event, "edited", "its time is no whole microsecond")
        if self._heads.get(n, event.hash) != event.hash:
            self._tell(event, "rewritten", "a checkpoint names another one in its place")
        try:
            said = list(self._standing.moved(event))
        except NO_SENSE:
            said = [("edited", "what it says makes no sense")]
        for how, text in said:
            self._tell(event, how, text)

    def ended(
        self,
        runs: Iterable[RunRow],
        calls: Iterable[CallRow],
        approvals: Iterable[ApprovalRow],
        delegations: Iterable[DelegationRow] = (),
    ) -> list[Problem]:
        """Everything that is wrong with the tree, the first bad event first."""
        if self._broken is not None:
            if not self.problems:
                self._tell(self._broken, *self._how_broken(self._broken, None))
            return self.problems
        beyond = min((n for n in self._heads if n > self._n), default=0)
        if beyond:
            text = f"it ends at event {self._n}, and a checkpoint names event {beyond}"
            self.problems.append(Problem(self._run_id, self.root, self._n + 1, self._seq, "cut", text))
            return self.problems
        for how, text, n, seq, run_id in self._standing.unlike(runs, calls, approvals, delegations):
            self.problems.append(Problem(run_id or self._run_id, self.root, n, seq, how, text))
        return self.problems

    @property
    def unproved(self) -> int:
        """Payloads of which nobody here can tell whether they are what was written."""
        return self._standing.unproved

    @property
    def loads(self) -> set[Load]:
        """The records that its events say were loaded."""
        return self._standing.loads

    @property
    def delegated(self) -> dict[str, EventRow]:
        """The delegations that its events made."""
        return self._standing.delegated

    @property
    def uses(self) -> list[Use]:
        """The decisions in it that were made by a delegation."""
        return self._standing.uses

    def as_load(self, root: RunRow) -> Load:
        """What the event of its loading must have said, where it is a record."""
        return (root.origin, root.id, self._n, self._prev)

    def _tell(self, event: EventRow, how: How, text: str) -> None:
        n = self._n + 1 if how == "deleted" else event.n
        self.problems.append(Problem(event.run_id, self.root, n, event.seq, how, text))

    def _how_broken(self, event: EventRow, after: EventRow | None) -> tuple[How, str]:
        """What was done to the first event that does not hang on the one before it, by what follows it."""
        n, prev = self._n + 1, self._prev
        if event.n > n:
            return (
                "deleted",
                f"event {n} is not there" if event.n == n + 1 else f"events {n} to {event.n - 1} are not there",
            )
        if event.n == n and event.hash == _linked(prev, n, event):
            return "swapped", "it stands before its forerunner in the ledger"
        if after is not None and after.hash == _linked(prev, n, after):
            if event.hash == _linked(after.hash, n + 1, event):
                return "swapped", f"it was event {n + 1}"
            return "inserted", "the event after it hangs on the one before it"
        if after is not None and after.hash == _linked(event.hash, n + 2, after):
            return "deleted", f"event {n} is not there, and those after it were numbered anew"
        return "edited", "it does not say what its hash is of"


def _linked(prev: str, n: int, event: EventRow) -> str:
    """What the hash of this event must be; empty where its moment is none, which no event of ours has."""
    try:
        return link(prev, n, event.at, event.body)
    except NO_SENSE:
        return ""


# ---- a whole ledger -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audit:
    """What is looked at and with what: whose trees, what proves a payload, and which heads of a tree are known."""

    tenant: str | None = None
    prove: Prove = plainly
    heads_of: Callable[[str], Heads] = lambda _root: NO_HEADS
    behind: Mapping[str, int] = field(default_factory=dict)
    """Of each tree the newest event that a checkpoint names. Not a place in the ledger: a server leaves places free."""


class Found:
    """What a walk through trees has found so far."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._tree: TreeCheck | None = None
        self.runs = self.events = self.young = self.unproved = 0
        self.problems: list[Problem] = []
        self._loads: set[Load] = set()
        self._delegated: dict[str, EventRow] = {}
        self._uses: list[Use] = []
        self._records: dict[Load, str] = {}

    def page(self, page: Chains) -> None:
        """Take in some trees; one that goes on stays open."""
        runs, calls = _by_root(page.runs), _by_root(page.calls)
        approvals, delegations = _by_root(page.approvals), _by_root(page.delegations)
        of_root = _by_root(page.events)
        going_on = None if page.next is None or not page.next.within else page.next.within
        roots = {*of_root, *runs, *calls, *approvals, *delegations}
        for root in sorted(roots | ({self._tree.root} if self._tree is not None and not going_on else set())):
            tree = self._tree if self._tree is not None and self._tree.root == root else self._begun(root)
            named = self._audit.behind.get(root, 0)
            for event in of_root.get(root, ()):
                tree.young += event.n > named
                tree.event(event)
            if root == going_on:
                self._tree = tree
                continue
            self._tree = None if tree is self._tree else self._tree
            rows = (runs.get(root, []), calls.get(root, []), approvals.get(root, []), delegations.get(root, []))
            self._ended(tree, *rows)

    def _begun(self, root: str) -> TreeCheck:
        return TreeCheck(root, self._audit.prove, self._audit.heads_of(root))

    def _ended(
        self,
        tree: TreeCheck,
        runs: list[RunRow],
        calls: list[CallRow],
        approvals: list[ApprovalRow],
        delegations: list[DelegationRow],
    ) -> None:
        origins = {row.origin for row in runs}
        if origins <= {""}:
            self._loads |= tree.loads
            self._delegated |= tree.delegated
            self._uses += tree.uses
        whose = (
            {run.tenant for run in runs}
            | {one.tenant for one in delegations}
            | ({tree.tenant} if tree.events else set())
        )
        if self._audit.tenant is not None and self._audit.tenant not in whose:
            return
        self.runs += len(runs)
        self.events += tree.events
        self.young += tree.young
        self.problems += tree.ended(runs, calls, approvals, delegations)
        self.unproved += tree.unproved
        self._records |= {tree.as_load(row): tree.root for row in runs if row.uid == tree.root and row.origin}
        if len(origins) > 1:
            text = f"its runs are said to be of several ledgers: {', '.join(map(repr, sorted(origins)))}"
            self.problems.append(Problem(runs[0].id, tree.root, 0, 0, "row_changed", text))
        if len(self.problems) > PROBLEMS_MAX:
            self.problems = sorted(self.problems, key=_place)[:PROBLEMS_MAX]

    @property
    def strays(self) -> set[Load]:
        """Records that nobody loaded, and what was loaded and is no record."""
        return self._loads ^ self._records.keys() if self._audit.tenant is None else self._records.keys() - self._loads

    def all_seen(self) -> None:
        """That was the whole ledger: what is a record is what was loaded, and nothing else."""
        for load in self._records.keys() - self._loads:
            text = f"it is said to be of ledger {load[0]}, and no event tells that it was loaded"
            self.problems.append(Problem(load[1], self._records[load], 0, 0, "row_changed", text))
        if self._audit.tenant is None:
            for origin, run_id, n, _ in self._loads - self._records.keys():
                text = f"it was loaded from ledger {origin} with {n} events, and is not here as that"
                self.problems.append(Problem(run_id, "", 0, 0, "row_changed", text))

    @property
    def unseen(self) -> set[str]:
        """The delegations that decisions name and that were not looked at."""
        return {use.delegation for use in self._uses} - self._delegated.keys()

    def check_uses(self) -> None:
        """Every decision for somebody else was made by a delegation that held then."""
        for use in self._uses:
            try:
                why_not = use.why_not(self._delegated.get(use.delegation))
            except NO_SENSE:
                why_not = "which makes no sense"
            event = use.event
            if why_not and self._audit.tenant in (None, event.tenant):
                text = f"{event.by_whom} decided for {use.behalf} by delegation {use.delegation}, {why_not}"
                self.problems.append(Problem(event.run_id, event.root, event.n, event.seq, "row_forged", text))

    def verified(self) -> Verified:
        """All of it."""
        problems = tuple(sorted(self.problems, key=_place)[:PROBLEMS_MAX])
        return Verified(self.runs, self.events, unanchored=self.young, unproved=self.unproved, problems=problems)


def _by_root(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.root, []).append(row)
    return found


def _place(problem: Problem) -> tuple[bool, int, str, int]:
    return (problem.seq == 0, problem.seq, problem.root, problem.n)


async def verify_chains(audit: Audit) -> Found:
    """Every tree of the ledger, page by page; what is remembered is of one page, or of one tree where that is longer."""
    found = await _walked(audit)
    for _ in range(WALKS_MAX - 1):
        if not found.strays:
            break
        found = await _walked(audit)  # somebody may have loaded something before where we were, and told of it after
    await verify_delegations(found)
    found.all_seen()
    return found


async def verify_delegations(found: Found) -> None:
    """Look at the delegations that decisions name, those too that were made while we looked; then compare."""
    for id in sorted(found.unseen):
        await verify_tree(found, id)
    found.check_uses()


async def _walked(audit: Audit) -> Found:
    found = Found(audit)
    found.page(await ReadChains(Place(), alone=True))  # rows of no tree: none of ours are, and none follow them
    place: Place | None = Place()
    for _ in range(PAGES_MAX):
        page = await ReadChains(place or Place())
        found.page(page)
        place = page.next
        if place is None:
            return found
    raise AssertionError("a ledger has fewer pages than that")


async def verify_tree(found: Found, root: str) -> None:
    """One tree more."""
    place: Place | None = Place(within=root)
    while place is not None:
        page = await ReadChains(place, alone=True)
        found.page(page)
        place = page.next
