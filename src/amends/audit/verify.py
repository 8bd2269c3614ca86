"""``rt.verify``: check the hash chain of each tree, its rows and payloads against its events, checkpoints and anchor.

``TreeCheck`` takes the events of one tree in order, then its rows; it reads nothing itself and remembers only that tree.
``verify_chains`` walks through a ledger with it. ``check_checkpoints`` compares the ledger with its checkpoints.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from amends.encoding.chain import GENESIS, Anchored, link, moment, proof, read_heads, storable
from amends.encoding.dataclass import changed, dataclass, field
from amends.encoding.secret import SEALED
from amends.errors import RunNotFound
from amends.host.anchor import read_copy
from amends.host.filters import CALL_WORDS, RUN_FIELDS, parse_filter
from amends.host.host import Host, View
from amends.host.listing import PAGE, Pages, narrowing
from amends.ledger.directives import directive_after, is_directive
from amends.ledger.erasure import ERASURE, left_line
from amends.ledger.erasure import ROW as ERASED_ROW
from amends.ledger.events import GOAL as GOAL_FACTS
from amends.ledger.events import (
    LEARNED,
    NONE,
    call_columns_digest,
    decision_digest,
    is_delegated,
    request_columns_digest,
    run_columns_digest,
)
from amends.ledger.operations import (
    PLACES_MAX,
    Chains,
    FindTrees,
    ListRuns,
    Misfit,
    Place,
    ReadChains,
    ReadCheckpoints,
    ReadHashes,
)
from amends.ledger.rows import (
    GONE,
    LOADED,
    PLAIN,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    DelegationRow,
    DirectiveRow,
    EventRow,
    RunRow,
    entry_at,
    erased_body,
    person,
)
from amends.ledger.world import ReadAnchor
from amends.report import ERASED_MAX, PROBLEMS_MAX, Erased, Problem, Tampering, Verified
from amends.signing import AuditKey, embedded_key, load_key
from amends.states import CALL_MOVES, NEW, RUN_MOVES

if TYPE_CHECKING:
    from amends.ledger.folded import FoldedCall, FoldedEvent

# ---- The verb


NOTHING: Final[Mapping[str, int]] = {}


async def verify(
    host: Host,
    view: View,
    *run_ids: str,
    filter: str = "",
    anchor: str | None = None,
    keys: Sequence[str] = (),
    progress: Progress | None = None,
    tenant: str | None = None,
) -> Verified:
    """Verify that the record is as it was written: all of it, or these runs and those of the filter. Changes nothing.

    ``anchor``: the file of a checkpoint that was kept elsewhere; ``keys``: who must have signed. By default those of
    the settings. ``progress``: called now and then with how many runs and events were read so far. ``tenant``: the only
    one that is told about; "" is the one without a name.
    """
    whose = view.only(tenant)
    trusted = [load_key(key) for key in keys] or [key for key in (host.checkpointer.key,) if key is not None]
    known = await _known(host, anchor)
    if not run_ids and not filter.strip():
        seen = await check_checkpoints(trusted, known, demanded=bool(keys))
        found = await verify_chains(audit_of(host, whose, seen.behind, progress))
        await verify_orders(found)
        return await combined(found.verified(), seen, whose)
    roots = await _trees_of(view, run_ids)
    if filter.strip():
        roots |= await _filtered(audit_of(host, whose), filter)
    seen = await check_checkpoints(trusted, known, roots=frozenset(roots), demanded=bool(keys))
    found = Found(audit_of(host, whose, seen.behind, progress))
    for root in roots:
        await verify_tree(found, root)
    await verify_delegations(found)
    await verify_orders(found)
    return await combined(found.verified(), seen, whose)


def audit_of(
    host: Host, tenant: str | None, behind: Mapping[str, int] = NOTHING, progress: Progress | None = None
) -> Audit:
    """Return how this runtime checks a ledger: with its keys it can also check encrypted payloads."""
    sealing = host.hiding.sealing
    return Audit(tenant, plainly if sealing is None else sealing.proves, behind=behind, progress=progress)


async def _known(host: Host, copy: str | None) -> Anchored | None:
    """Read the checkpoint that is kept outside, before the ledger is read: the ledger may only have grown since."""
    if copy is not None:
        return read_copy(Path(copy))
    mark = None if host.anchor is None else await ReadAnchor(host.anchor)
    known: Anchored | None = None if mark is None else mark.checkpoint
    return known


async def _trees_of(view: View, run_ids: Sequence[str]) -> dict[str, None]:
    roots: dict[str, None] = {}
    for run_id in run_ids:
        found = await FindTrees(view.tenant or "", run_id)
        if not found:
            raise RunNotFound(run_id)
        roots |= dict.fromkeys(root.uid for root in found)
    return roots


async def _filtered(audit: Audit, text: str) -> dict[str, None]:
    wanted = parse_filter(text, RUN_FIELDS)

    def then(row: RunRow) -> ListRuns:
        return ListRuns(audit.tenant, wanted.states, (row.created_at, row.uid), PAGE)

    first = ListRuns(audit.tenant, wanted.states, None, PAGE)
    pages = Pages(first, then, wanted.takes_run, lambda row: str(row.root), narrow=narrowing(wanted, *CALL_WORDS))
    roots: dict[str, None] = {}
    while (page := pages.read()) is not None:
        roots |= dict.fromkeys(await page)
    return roots


# ---- Checking one tree


Progress: TypeAlias = Callable[[int, int], object]
Prove: TypeAlias = Callable[[str, str, str], "bool | None"]
"""Whether a proof matches this payload of the row with this id; None if that cannot be checked here."""
Heads: TypeAlias = Mapping[int, str]
"""Known hashes of events of a tree, by event number."""
NO_HEADS: Final[Heads] = {}
MALFORMED: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Raised by values that amends never writes: they were changed, and are reported as such."""
PAGES_MAX: Final = 10**9
EVENTS_PAGE: Final = 5_000
"""Events per page: a tree that ends on the next page is read again there, so that a page is longer than most trees."""
WALKS_MAX: Final = 3
"""How often the ledger is walked if loaded records do not match their events: a run may be loaded meanwhile."""


def plainly(proved: str, text: str, _about: str) -> bool | None:
    """Check a proof without a key. A proof that was made with a key shows that the text should be encrypted."""
    if text.startswith(SEALED):
        return None
    if ":" in proved:
        return None if text in PLAIN else False
    return proof(text) == proved


class TreeCheck:
    """The check of one tree: call ``event`` with each event, then ``ended`` with the rows."""

    def __init__(self, root: str, prove: Prove = plainly, heads: Heads = NO_HEADS) -> None:
        self.root, self._heads = root, heads
        self.events, self.young, self.tenant = 0, 0, ""
        self._standing = Standing(prove)
        self._n, self._prev, self._run_id = 0, GENESIS, ""
        self._broken: EventRow | None = None
        self._left, self._left_said, self._last_left = sha256(), "", 0
        """The digest of the erased events, the newest one that an event of erasure names, and the last erased event."""
        self.erasures: list[Erased] = []
        self.erasing: list[EventRow] = []
        """The event of each of these erasures."""
        self.problems: list[Problem] = []

    def event(self, event: EventRow | FoldedEvent) -> None:
        """Check the next event. After the first one that is not linked, the following ones cannot be checked."""
        self.events += 1
        if not isinstance(event, EventRow):
            if self._broken is None and self._takes(event):
                return
            event = event.made
        if self._broken is not None:
            if not self.problems:
                self._tell(self._broken, *self._how_broken(self._broken, event))
            return
        self._run_id, self.tenant = self._run_id or event.run_id, self.tenant or event.tenant
        n = self._n + 1
        if event.n != n or event.hash != _linked(self._prev, n, event):
            self._broken = event
            return
        self._n, self._prev = n, event.hash
        if event.at != moment(event.at):
            self._tell(event, "edited", "its time is not in whole microseconds")
        if self._heads.get(n, event.hash) != event.hash:
            self._tell(event, "rewritten", "a checkpoint names another event with this number")
        try:
            self._note_erased(event)
            said = list(self._standing.moved(event))
        except MALFORMED:
            said = [("edited", "its content makes no sense")]
        for how, text in said:
            self._tell(event, how, text)

    def _note_erased(self, event: EventRow) -> None:
        """Count an erased event, and take in who erased what was before."""
        if erased_body(event.facts):
            self._left.update(left_line(event))
            self._last_left = event.n
        elif event.what == ERASURE:
            facts = _facts(event)
            self._left_said = str(facts.get("left", ""))
            self.erasures.append(_erased(event, facts))
            self.erasing.append(event)

    def _takes(self, event: FoldedEvent) -> bool:
        """Take in an event of a plain call with which nothing is wrong; otherwise return False and change nothing."""
        n, folded = self._n + 1, event.folded
        if event.n != n:
            return False
        try:
            hash = folded.linked(event.is_settlement, self._prev, n)
        except MALFORMED:
            return False
        if not hash or self._heads.get(n, hash) != hash or not self._standing.takes(event):
            return False
        self._n, self._prev = n, hash
        self._run_id, self.tenant = self._run_id or folded.run_id, self.tenant or folded.tenant
        return True

    def ended(
        self,
        runs: Iterable[RunRow],
        calls: Iterable[CallRow | FoldedCall],
        approvals: Iterable[ApprovalRow],
        delegations: Iterable[DelegationRow] = (),
        directives: Iterable[DirectiveRow] = (),
    ) -> list[Problem]:
        """Return every problem of the tree, that of the first bad event first."""
        if self._broken is not None:
            if not self.problems:
                self._tell(self._broken, *self._how_broken(self._broken, None))
            return self.problems
        beyond = min((n for n in self._heads if n > self._n), default=0)
        if beyond:
            text = f"it ends at event {self._n}, and a checkpoint names event {beyond}"
            self.problems.append(Problem(self._run_id, self.root, self._n + 1, "cut", text))
            return self.problems
        if self._last_left and self._left.hexdigest() != self._left_said:
            text = "events of it were erased, or changed after that, and no event says so"
            self.problems.append(Problem(self._run_id, self.root, self._last_left, "edited", text))
        for how, text, n, run_id in self._standing.unlike(runs, calls, approvals, delegations, directives):
            self.problems.append(Problem(run_id or self._run_id, self.root, n, how, text))
        return self.problems

    @property
    def unproved(self) -> int:
        """How many payloads could not be checked here."""
        return self._standing.unproved

    @property
    def loads(self) -> set[Load]:
        """The records that were loaded according to its events."""
        return self._standing.loads

    @property
    def delegated(self) -> dict[str, EventRow]:
        """The delegations in its events."""
        return self._standing.delegated

    @property
    def orders(self) -> dict[str, DirectiveRow]:
        """The orders to erase in its events."""
        return {id: row for id, row in self._standing.directed.items() if _trees_ordered(row) is not None}

    @property
    def uses(self) -> list[Use]:
        """The decisions in it that were made under a delegation."""
        return self._standing.uses

    def as_load(self, root: RunRow) -> Load:
        """Return what the event of its loading must say if this tree is a loaded record."""
        return (root.origin, root.id, self._n, self._prev)

    def _tell(self, event: EventRow, how: Tampering, text: str) -> None:
        n = self._n + 1 if how == "deleted" else event.n
        self.problems.append(Problem(event.run_id, self.root, n, how, text))

    def _how_broken(self, event: EventRow, after: EventRow | None) -> tuple[Tampering, str]:
        """Tell from the event that follows what was done to the first event that is not linked."""
        n, prev = self._n + 1, self._prev
        if event.n > n:
            return (
                "deleted",
                f"event {n} is missing" if event.n == n + 1 else f"events {n} to {event.n - 1} are missing",
            )
        if after is not None and after.hash == _linked(prev, n, after):
            if event.hash == _linked(after.hash, n + 1, event):
                return "swapped", f"it was event {n + 1}"
            return "inserted", "the event after it is linked to the one before it"
        if after is not None and after.hash == _linked(event.hash, n + 2, after):
            return "deleted", f"event {n} is missing, and the events after it were renumbered"
        return "edited", "its content does not match its hash"


def _erased(event: EventRow, facts: Mapping[str, Any]) -> Erased:
    why, order, token = (str(facts.get(name, "")) for name in ("why", "order", "token"))
    runs, calls, approvals, events = (int(facts.get(name, 0)) for name in ("runs", "calls", "approvals", "events"))
    at = datetime.fromtimestamp(event.at, UTC)
    return Erased(event.run_id, at, event.by_whom, why, order, token, runs, calls, approvals, events)


def _order_of(event: EventRow) -> str:
    return str(_facts(event).get("order", ""))


def _trees_ordered(row: DirectiveRow) -> int | None:
    """Return how many trees this order is to erase; None: it is another order."""
    try:
        words = json.loads(row.words) if row.kind == "work" else {}
        return int(words["runs"]) if words.get("what") == "erase" else None
    except MALFORMED:
        return None


def _why_not_ordered(event: EventRow, order: DirectiveRow | None, done: int) -> str:
    """Return why the order did not allow this erasure; empty if it did. ``done``: how many erasures name the order."""
    if order is None:
        return "which does not exist"
    said = (order.tenant, order.by_whom, order.why)
    if said != (event.tenant, event.by_whom, str(_facts(event).get("why", ""))):
        return "which somebody else gave, or for another reason"
    return "" if done <= (_trees_ordered(order) or 0) else f"which is for fewer runs than the {done} that name it"


def _linked(prev: str, n: int, event: EventRow) -> str:
    """Return the hash that this event must have; empty if its time is not a time, which amends never writes."""
    try:
        return link(prev, n, event.at, event.body)
    except MALFORMED:
        return ""


# ---- Checking a whole ledger


@dataclass(frozen=True, slots=True)
class Audit:
    """What to check and how: whose trees, what proves a payload, and the known hashes of each tree."""

    tenant: str | None = None
    prove: Prove = plainly
    heads_of: Callable[[str], Heads] = lambda _root: NO_HEADS
    behind: Mapping[str, int] = field(default_factory=dict)
    """For each tree the newest event number that a checkpoint names."""
    progress: Progress | None = None


class Found:
    """What a walk through trees found so far."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._tree: TreeCheck | None = None
        self.runs = self.events = self.young = self.unproved = 0
        self.problems: list[Problem] = []
        self.erased: list[Erased] = []
        self._loads: set[Load] = set()
        self._delegated: dict[str, EventRow] = {}
        self._uses: list[Use] = []
        self._orders: dict[str, DirectiveRow] = {}
        self._erasing: list[EventRow] = []
        self._records: dict[Load, str] = {}
        self._misfits: dict[Misfit, None] = {}

    def page(self, page: Chains) -> None:
        """Take in a page of trees; a tree that continues on the next page stays open."""
        self._misfits |= dict.fromkeys(page.misfits)
        runs, calls = _by_root(page.runs), _by_root(page.calls)
        approvals, delegations = _by_root(page.approvals), _by_root(page.delegations)
        of_root = _by_root(page.events)
        going_on = None if page.next is None or not page.next.within else page.next.within
        directives = _by_root(page.directives)
        roots = {*of_root, *runs, *calls, *approvals, *delegations, *directives}
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
            self._ended(tree, *rows, directives.get(root, []))
        if self._audit.progress is not None:
            self._audit.progress(self.runs, self.events)

    def _begun(self, root: str) -> TreeCheck:
        return TreeCheck(root, self._audit.prove, self._audit.heads_of(root))

    def _ended(
        self,
        tree: TreeCheck,
        runs: list[RunRow],
        calls: list[CallRow | FoldedCall],
        approvals: list[ApprovalRow],
        delegations: list[DelegationRow],
        directives: list[DirectiveRow],
    ) -> None:
        origins = {row.origin for row in runs}
        if origins <= {""}:
            self._loads |= tree.loads
            self._delegated |= tree.delegated
            self._uses += tree.uses
            self._orders |= tree.orders
            self._erasing += tree.erasing
        whose = (
            {run.tenant for run in runs}
            | {one.tenant for one in delegations}
            | {one.tenant for one in directives}
            | ({tree.tenant} if tree.events else set())
        )
        if self._audit.tenant is not None and self._audit.tenant not in whose:
            return
        self.runs += len(runs)
        self.events += tree.events
        self.young += tree.young
        self.problems += tree.ended(runs, calls, approvals, delegations, directives)
        self.unproved += tree.unproved
        self.erased += tree.erasures
        self._records |= {tree.as_load(row): tree.root for row in runs if row.uid == tree.root and row.origin}
        if len(origins) > 1:
            text = f"its runs name several ledgers: {', '.join(map(repr, sorted(origins)))}"
            self.problems.append(Problem(runs[0].id, tree.root, 0, "row_changed", text))
        if len(self.problems) > PROBLEMS_MAX:
            self.problems = sorted(self.problems, key=_place)[:PROBLEMS_MAX]

    @property
    def strays(self) -> set[Load]:
        """Records without an event of their loading, and loaded records that are missing."""
        return self._loads ^ self._records.keys() if self._audit.tenant is None else self._records.keys() - self._loads

    def all_seen(self) -> None:
        """Report every mismatch between records and loads; call it after the whole ledger was walked."""
        for load in self._records.keys() - self._loads:
            text = f"it claims to be of ledger {load[0]}, and no event says that it was loaded"
            self.problems.append(Problem(load[1], self._records[load], 0, "row_changed", text))
        if self._audit.tenant is None:
            for origin, run_id, n, _ in self._loads - self._records.keys():
                text = f"it was loaded from ledger {origin} with {n} events, and no such record is here"
                self.problems.append(Problem(run_id, "", 0, "row_changed", text))

    @property
    def unseen(self) -> set[str]:
        """The delegations that decisions name and that were not read yet."""
        return {use.delegation for use in self._uses} - self._delegated.keys()

    def check_uses(self) -> None:
        """Report every decision on behalf of another person that no valid delegation allowed."""
        for use in self._uses:
            try:
                why_not = use.why_not(self._delegated.get(use.delegation))
            except MALFORMED:
                why_not = "which makes no sense"
            event = use.event
            if why_not and self._audit.tenant in (None, event.tenant):
                text = f"{event.by_whom} decided for {use.behalf} under delegation {use.delegation}, {why_not}"
                self.problems.append(Problem(event.run_id, event.root, event.n, "row_forged", text))

    @property
    def unseen_orders(self) -> set[str]:
        """The orders that erasures name and that were not read yet."""
        return {id for event in self._erasing if (id := _order_of(event))} - self._orders.keys()

    def check_orders(self) -> None:
        """Report every erasure that nobody ordered. What was loaded was ordered in the ledger that it came from."""
        done = Counter(map(_order_of, self._erasing))
        for event in self._erasing:
            id = _order_of(event)
            why_not = _why_not_ordered(event, self._orders.get(id), done[id])
            if why_not and self._audit.tenant in (None, event.tenant):
                text = f"{event.by_whom} erased it by order {id or '(none)'}, {why_not}"
                self.problems.append(Problem(event.run_id, event.root, event.n, "row_forged", text))

    def verified(self) -> Verified:
        """Return the result of the walk. What does not fit a tree is told only if nothing else is wrong with it."""
        known = {one.root for one in self.problems}
        for one in self._misfits:
            if one.root not in known and self._audit.tenant in (None, one.tenant):
                self.problems.append(Problem(one.run_id, one.root, 0, "row_changed", one.text))
        self._misfits.clear()
        problems = tuple(sorted(self.problems, key=_place)[:PROBLEMS_MAX])
        counts = {"unanchored": self.young, "unproved": self.unproved, "erasures": len(self.erased)}
        named = tuple(sorted(self.erased, key=lambda one: (one.at, one.run_id))[:ERASED_MAX])
        return Verified(self.runs, self.events, **counts, problems=problems, erased=named)


def _by_root(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.root, []).append(row)
    return found


def _place(problem: Problem) -> tuple[bool, str, int]:
    return (problem.n == 0, problem.root, problem.n)


async def verify_chains(audit: Audit) -> Found:
    """Check every tree of the ledger, page by page; memory holds one page, or one tree if that is longer."""
    found = await _walked(audit)
    for _ in range(WALKS_MAX - 1):
        if not found.strays:
            break
        found = await _walked(
            audit
        )  # a run may have been loaded meanwhile: its rows before our position, its event after it
    await verify_delegations(found)
    found.all_seen()
    return found


async def verify_delegations(found: Found) -> None:
    """Read the delegations that decisions name, also those made during the walk; then check the decisions."""
    for id in sorted(found.unseen):
        await verify_tree(found, id)
    found.check_uses()


async def verify_orders(found: Found) -> None:
    """Read the orders that erasures name, also those given during the walk; then check the erasures."""
    for id in sorted(found.unseen_orders):
        await verify_tree(found, id)
    found.check_orders()


async def _walked(audit: Audit) -> Found:
    found = Found(audit)
    found.page(
        await ReadChains(Place(), alone=True)
    )  # rows without a tree: amends writes none, and no page follows them
    place: Place | None = Place()
    for _ in range(PAGES_MAX):
        page = await ReadChains(place or Place(), limit=EVENTS_PAGE)
        found.page(page)
        place = page.next
        if place is None:
            return found
    raise AssertionError("a ledger has fewer pages than PAGES_MAX")


async def verify_tree(found: Found, root: str) -> None:
    """Check one tree."""
    place: Place | None = Place(within=root)
    while place is not None:
        page = await ReadChains(place, alone=True, limit=EVENTS_PAGE)
        found.page(page)
        place = page.next


# ---- Checking checkpoints, their signatures and the anchor

# The chain of one tree cannot show that its end was cut off or that all of it was rewritten, nor that the whole ledger
# was replaced by an older copy. Checkpoints and the anchor outside the ledger show that.


CHECKPOINTS_PAGE: Final = 20
"""Checkpoints per page: each may name thousands of trees."""


@dataclass(slots=True)
class CheckpointsFound:
    """What the check of checkpoints and anchor found."""

    checkpoints: int = 0
    newest: CheckpointRow | None = None
    """The last checkpoint in the ledger."""
    problems: list[Problem] = field(default_factory=list)
    anchored: int = 0
    """The number of the checkpoint that the anchor knows; 0 if none."""
    vouched: int = 0
    """The newest checkpoint that was signed with a trusted key."""
    named: set[str] = field(default_factory=set)
    behind: dict[str, int] = field(default_factory=dict)
    """For each tree the newest event number that a checkpoint names."""

    def add(self, how: Tampering, text: str, *, root: str = "", n: int = 0) -> None:
        """Add a problem; keep only the first of each tree, and ``PROBLEMS_MAX`` in all."""
        if len(self.problems) < PROBLEMS_MAX and (not root or root not in self.named):
            self.named.add(root)
            self.problems.append(Problem("", root, n, how, text))


async def check_checkpoints(
    keys: Sequence[AuditKey] = (),
    anchor: Anchored | None = None,
    *,
    roots: frozenset[str] | None = None,
    demanded: bool = False,
) -> CheckpointsFound:
    """Check every checkpoint from the first on; with ``roots`` only against these trees. Uses constant memory.

    ``keys``: the trusted keys. ``anchor``: the checkpoint that is known outside the ledger. ``demanded``: one of the
    keys must have signed, so that it is a problem if there is no checkpoint.
    """
    seen = CheckpointsFound(anchored=0 if anchor is None else anchor.n)
    by_name = {key.name: key for key in keys}
    after = 0
    while page := await ReadCheckpoints(after, CHECKPOINTS_PAGE):
        for row in page:
            _check_link(seen, row)
            _check_signature(seen, row, by_name)
            if anchor is not None and row.n == anchor.n:
                _check_anchored(seen, row, anchor)
            await _check_heads(seen, row, roots)
            seen.checkpoints, seen.newest = seen.checkpoints + 1, row
        after = max(after + 1, page[-1].n)
    if demanded and seen.newest is None:
        seen.add("bad_signature", f"there is no checkpoint: nothing is signed with {_named(keys)}", n=1)
    _check_vouched(seen, keys)
    _check_end(seen, anchor, by_name)
    return seen


def _check_link(seen: CheckpointsFound, row: CheckpointRow) -> None:
    last = seen.newest
    wanted = 1 if last is None else last.n + 1
    if row.n != wanted:
        seen.add("deleted", f"checkpoint {wanted} is missing: the next one is {row.n}", n=wanted)
    elif row.prev != (GENESIS if last is None else last.hash):
        seen.add("rewritten", f"checkpoint {row.n} does not follow the one before it", n=row.n)
    if not _is_as_hashed(row):
        seen.add("edited", f"checkpoint {row.n} does not match its hash", n=row.n)
    if last is not None and row.ledger != last.ledger:
        seen.add("inserted", f"checkpoint {row.n} is of another ledger: {row.ledger}, not {last.ledger}", n=row.n)


def _is_as_hashed(row: CheckpointRow) -> bool:
    try:
        return row.hash == row.true_hash and row.at == moment(row.at)
    except (ValueError, OverflowError):  # its time is not a time
        return False


def _check_signature(seen: CheckpointsFound, row: CheckpointRow, trusted: dict[str, AuditKey]) -> None:
    key = trusted.get(row.key) or embedded_key(row.key)
    if row.key and not row.signature:
        seen.add(
            "bad_signature", f"the signature of checkpoint {row.n} is missing; it was made with {row.key}", n=row.n
        )
    elif key is not None and not key.has_signed(row.hash, row.signature):
        seen.add("bad_signature", f"the signature of checkpoint {row.n} is not of {row.key}", n=row.n)
    elif row.signature and not row.key:
        seen.add("bad_signature", f"checkpoint {row.n} has a signature and no key", n=row.n)
    elif row.key in trusted:
        seen.vouched = row.n


def _check_vouched(seen: CheckpointsFound, keys: Sequence[AuditKey]) -> None:
    """Report that no trusted key signed the newest checkpoint.

    A signature covers its checkpoint and all before it; anybody could have written what comes after.
    """
    newest = seen.newest
    if not keys or newest is None or seen.vouched == newest.n:
        return
    if any(one.how == "bad_signature" for one in seen.problems):
        return  # already reported for the first such checkpoint
    who = f"is signed with {newest.key}" if newest.key else "is not signed"
    since = f"after checkpoint {seen.vouched} nothing is" if seen.vouched else "nothing is"
    seen.add(
        "bad_signature",
        f"checkpoint {newest.n} {who}: {since} signed with {_named(keys)}",
        n=seen.vouched + 1,
    )


def _named(keys: Sequence[AuditKey]) -> str:
    return " or ".join(key.name for key in keys)


async def _check_heads(seen: CheckpointsFound, row: CheckpointRow, roots: frozenset[str] | None) -> None:
    try:
        heads = read_heads(row.heads)
    except ValueError:
        seen.add("edited", f"the heads of checkpoint {row.n} cannot be read", n=row.n)
        return
    wanted = [head for head in heads if roots is None or head[0] in roots]
    for start in range(0, len(wanted), PLACES_MAX):
        some = wanted[start : start + PLACES_MAX]
        found = {(root, n): hash for root, n, hash in await ReadHashes(tuple((root, n) for root, n, _ in some))}
        for root, n, hash in some:
            seen.behind[root] = max(n, seen.behind.get(root, 0))
            if found.get((root, n)) == hash or root in seen.named:
                continue
            if (root, n) in found:
                text = f"event {n} is not the one that checkpoint {row.n} names: the chain was rewritten from there"
                seen.add("rewritten", f"{text} or from an earlier event", root=root, n=n)
            else:
                end = await _end_of(root, n)
                text = f"its chain ends at event {end}" if end else "it is missing"
                seen.add("cut", f"{text}; checkpoint {row.n} names event {n}", root=root, n=end + 1)


async def combined(found: Verified, seen: CheckpointsFound, tenant: str | None = None) -> Verified:
    """Combine both results. If the end of a tree was cut off, its rows differ too: report that after it."""
    told: list[Problem] = []
    for one in seen.problems:
        run_id, whose = await _run_of(one.root) if one.root else ("", None)
        if tenant is None or whose is None or whose == tenant:
            told.append(changed(one, {"run_id": run_id}))
    after = [one for one in found.problems if one.root in seen.named and one.how.startswith("row_")]
    before = [one for one in found.problems if one not in after]
    problems = (*before, *told, *after)[:PROBLEMS_MAX]
    counts = {"checkpoints": seen.checkpoints, "anchored": seen.anchored}
    return changed(found, {**counts, "problems": problems})


async def _run_of(root: str) -> tuple[str, str | None]:
    """Return the id and the tenant of a tree's first run; no tenant if nothing is left of the tree."""
    page = await ReadChains(Place(within=root), alone=True, limit=1)
    if not page.events:
        return "", None
    first = page.events[0] if isinstance(page.events[0], EventRow) else page.events[0].folded
    return first.run_id, first.tenant


async def _end_of(root: str, below: int) -> int:
    """Return the newest event of a tree whose event ``below`` is missing; gaps in its chain were reported before."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        if await ReadHashes(((root, middle),)):
            low = middle
        else:
            high = middle
    return low


def _check_anchored(seen: CheckpointsFound, row: CheckpointRow, anchor: Anchored) -> None:
    if (row.hash, row.ledger) != (anchor.hash, anchor.ledger):
        other = f" of ledger {anchor.ledger}" if row.ledger != anchor.ledger else ""
        seen.add(
            "rewritten", f"checkpoint {row.n} is not the one that the anchor knows{other}: it was rewritten", n=row.n
        )


def _check_end(seen: CheckpointsFound, anchor: Anchored | None, trusted: dict[str, AuditKey]) -> None:
    if anchor is None:
        return
    key = trusted.get(anchor.key) or embedded_key(anchor.key)
    if key is not None and not key.has_signed(anchor.hash, anchor.signature):
        seen.add("bad_signature", f"the checkpoint in the anchor was not signed by {anchor.key}", n=anchor.n)
    end = 0 if seen.newest is None else seen.newest.n
    if anchor.n > end:
        seen.add(
            "put_back",
            f"the ledger ends at checkpoint {end}, and the anchor knows {anchor.n}: it was restored to an earlier state,"
            " or its end was cut off",
            n=end + 1,
        )


# ---- Comparing the rows of a tree with its events


Said: TypeAlias = tuple[Tampering, str]
Load: TypeAlias = tuple[str, str, int, str]
"""A loaded record: its ledger, its id, the number of its events and the hash of the last."""
Unlike: TypeAlias = tuple[Tampering, str, int, str]
"""How and in what a row differs, with the number and run id of its last event."""
APPROVAL_MOVES: Final[Mapping[str, tuple[str, ...]]] = {
    NEW: ("pending",),
    "pending": ("approved", "rejected", "expired", "cancelled"),
    "approved": ("used", "rejected", "expired", "cancelled", "approved"),
}
TIMETABLE: Final = ("reminded", "escalated", "overdue")
"""Events of a request that nobody answered."""
SHARED: Final[Mapping[str, tuple[str, ...]]] = {NEW: ("succeeded", "failed", "refused", "dropped")}
"""A shared call: the fork has it in its final state, and it never changes there."""
MOVES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "run": RUN_MOVES,
    "call": CALL_MOVES,
    "approval": APPROVAL_MOVES,
}


class Use(NamedTuple):
    """A decision on behalf of another person: by which delegation, and the hash of its event at that time."""

    delegation: str
    hash: str
    behalf: str
    event: EventRow

    def why_not(self, said: EventRow | None) -> str:
        """Return why the delegation did not allow this decision; empty if it did. ``said``: the delegation's event."""
        if said is None:
            return "which does not exist"
        word = _facts(said)
        event = self.event
        if said.hash != self.hash or said.tenant != event.tenant:
            return "which was different then"
        if (word.get("to"), word.get("by")) != (storable(person(event.by_whom)), storable(person(self.behalf))):
            return "which is between other people"
        return "" if said.at <= event.at < float(word["until"]) else "which was not valid then"


class Subject:
    """One row as its events describe it."""

    __slots__ = (
        "attempt", "causes", "comp_attempt", "comp_error", "created_at", "facts", "first", "last", "passed",
        "remote_s", "settled_seq", "state", "why",
    )  # fmt: skip

    def __init__(self, event: EventRow, facts: dict[str, Any]) -> None:
        self.first = self.last = event
        self.created_at, self.state = event.at, event.to_state
        self.facts = facts
        """The newest fact of each name."""
        self.attempt = self.comp_attempt = self.settled_seq = 0
        self.remote_s = 0.0
        self.passed = False
        self.why = str(facts.get("why", "")) if event.what == "call" else ""
        self.comp_error = ""
        """For a call: the error of its compensation."""
        self.causes: list[str] = []
        """For a run: why it is blocked."""


class Standing:
    """All rows of a tree as its events leave them: feed it events with ``moved``, then compare with ``unlike``."""

    def __init__(self, prove: Callable[[str, str, str], bool | None]) -> None:
        self._prove = prove
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._folded: dict[str, FoldedEvent] = {}
        """The last event of each plain call, by its id: what its row must be is known without a subject."""
        self._runs: dict[str, EventRow] = {}
        self._emptied = False
        self.delegated: dict[str, EventRow] = {}
        """The events of delegations, by the id of the delegation."""
        self.directed: dict[str, DirectiveRow] = {}
        """The directives as their events leave them, by id."""
        self.uses: list[Use] = []
        """Decisions on behalf of another person."""
        self.loads: set[Load] = set()
        self.unproved = 0

    def takes(self, event: FoldedEvent) -> bool:
        """Apply an event of a plain call that is linked correctly; False: it is not such a call here, or not in order."""
        folded = event.folded
        last = self._folded.get(folded.id)
        if event.is_settlement:
            if last is None or last.folded is not folded or last.is_settlement:
                return False
        elif last is not None or ("call", folded.id) in self._subjects or self._prove is not plainly:
            return False
        if folded.root not in self._runs:
            self._runs[folded.root] = event.made
        self._folded[folded.id] = event
        return True

    def _subject(self, kind: str, id: str) -> Subject | None:
        """Return what the events so far say about a row; None: nothing."""
        if kind == "call" and id in self._folded:
            last = self._folded.pop(id)
            for event in (last.folded.event(False), last.made)[: 1 + last.is_settlement]:
                for _ in self._moves(kind, id, event, _facts(event)):
                    raise AssertionError("a plain call moves as every call may")
        return self._subjects.get((kind, id))

    def moved(self, event: EventRow) -> Iterator[Said]:
        """Apply an event that is linked correctly, and yield what else is wrong with it."""
        what = event.what
        if what == "delegated":
            self.delegated[event.root] = event
            return
        if is_directive(event):
            after = directive_after(self.directed.get(event.root), event)
            if after is None:
                yield "inserted", f"directive {event.root} was not such that it could be {what}"
            else:
                self.directed[event.root] = after
            return
        self._runs.setdefault(event.run, event)
        if what == "call" or what == "shared":
            yield from self._moves("call", event.call, event, _facts(event))
        elif what == "run":
            yield from self._moves("run", event.run, event, _facts(event))
        elif what == "approval":
            facts = _facts(event)
            yield from self._moves("approval", str(facts.get("approval")), event, facts)
            yield from self._delegated(event, facts)
        elif what in ("goal", "output", "budgets", "completion", "rollback planned"):
            facts = _facts(event)
            self._adds("run", event.run, facts, "output", "budgets", "completion", "plan", *GOAL_FACTS)
        elif what == "retry asked":
            self._adds("call", event.call, _facts(event), "result")
            self._marked(event)
        elif what == "approval given":
            facts = _facts(event)
            self._adds("approval", str(facts.get("approval")), facts, "given")
            yield from self._delegated(event, facts)
        elif what in TIMETABLE:
            facts = _facts(event)
            at = {"asked_at": event.at} if what == "escalated" else {}
            self._adds("approval", str(facts.get("approval")), {**facts, **at}, "entry", "asked_at")
        elif what in ("evidence", "probed"):
            self._adds("call", event.call, _facts(event), *LEARNED)
        elif what in ("payloads removed", ERASURE):
            self._emptied = True
        elif what == "runs loaded":
            self.loads |= {(str(origin), str(id), int(n), str(hash)) for origin, id, n, hash in _facts(event)["heads"]}
        else:
            self._marked(event)

    def _marked(self, event: EventRow) -> None:
        """Take in an event that changes columns of a row without a transition."""
        if event.what == ERASED_ROW:
            self._left(event)
            return
        run, call = self._subject("run", event.run), self._subject("call", event.call)
        if event.what == "causes" and run is not None:
            run.causes = list(_facts(event).get("causes", ()))
        elif event.what == "passed to parent" and call is not None:
            call.passed = True
        elif event.what == "retry asked" and call is not None and call.state == "backing_off":
            call.why = ""

    def _left(self, event: EventRow) -> None:
        """Take in what an erasure left of columns that earlier events prove."""
        facts = _facts(event)
        if "approval" in facts:
            self._adds("approval", str(facts["approval"]), facts, "terms", "said", "given")
        elif event.call:
            self._adds("call", event.call, facts, "row", "failure")
        else:
            self._adds("run", event.run, facts, "row", "completion")

    def _moves(self, kind: str, id: str, event: EventRow, facts: dict[str, Any]) -> Iterator[Said]:
        subject = self._subject(kind, id)
        state = NEW if subject is None else subject.state
        if event.frm != state:
            yield "inserted", f"{kind} {id} was {state} then, not {event.frm}"
        elif event.to_state not in (SHARED if event.what == "shared" else MOVES[kind]).get(state, ()):
            yield "inserted", f"no {kind} goes from {state} to {event.to_state}"
        if subject is None:
            subject = self._subjects[kind, id] = Subject(event, facts)
        else:
            if kind == "call" and (event.frm == "started" if "attempt" in facts else "resolved" in facts):
                _forgotten(subject, event)
            _updated(subject, facts)
            subject.last, subject.state = event, event.to_state
        if kind == "call":
            _counted(subject, event, facts)
            _worded(subject, event, facts)
        elif kind == "run":
            subject.causes = list(facts.get("causes", ()))

    def _adds(self, kind: str, id: str, facts: dict[str, Any], *names: str) -> None:
        subject = self._subject(kind, id)
        if subject is not None:
            _updated(subject, {name: facts[name] for name in names if name in facts})

    def _delegated(self, event: EventRow, facts: dict[str, Any]) -> Iterator[Said]:
        behalf, word = facts.get("behalf"), facts.get("delegation")
        if behalf is None and word is None:
            return
        if behalf is None or not isinstance(word, list) or len(word) != 2:
            yield "edited", f"{event.by_whom} decided for {behalf}, and names no delegation"
            return
        self.uses.append(Use(str(word[0]), str(word[1]), str(behalf), event))

    # ---- Comparing the rows

    def unlike(
        self,
        runs: Iterable[RunRow],
        calls: Iterable[CallRow | FoldedCall],
        approvals: Iterable[ApprovalRow],
        delegations: Iterable[DelegationRow] = (),
        directives: Iterable[DirectiveRow] = (),
    ) -> Iterator[Unlike]:
        """Yield every difference between the rows and what the events say about them."""
        by_uid, tools = {run.uid: run for run in runs}, dict[str, str]()
        newest = {subject.first.call: id for (kind, id), subject in self._subjects.items() if kind == "approval"}
        self._emptied = self._emptied or any(
            run.origin for run in by_uid.values()
        )  # gc writes no event into a loaded record
        for run in by_uid.values():
            yield from self._compared("run", run.uid, run, self._run)
        for call in calls:
            tools[call.id] = call.tool
            if not isinstance(call, CallRow):
                if self._is_as_taken(call, newest, by_uid):
                    continue
                call = call.row
            yield from self._compared("call", call.id, call, lambda one, subject: self._call(one, subject, by_uid))
            if call.approval != newest.get(call.id, ""):
                text = f"call {call.id}: its approval is not the newest one"
                yield "row_changed", text, 0, call.run_id
        for asked in approvals:
            if asked.tool != tools.get(asked.call):
                yield "row_changed", f"approval {asked.id}: the tool was changed", 0, asked.run_id
            yield from self._compared(
                "approval", asked.id, asked, lambda one, subject: self._approval(one, subject, by_uid)
            )
        yield from self._delegations(delegations)
        yield from self._directives(directives)
        for id in tuple(self._folded):
            self._subject("call", id)
        for (kind, id), subject in self._subjects.items():
            yield "row_missing", f"{kind} {id} is missing", subject.last.n, subject.last.run_id
        for uid, event in self._runs.items():
            if uid not in by_uid and ("run", uid) not in self._subjects:
                yield "row_missing", f"run {uid} is missing", event.n, event.run_id

    def _is_as_taken(self, call: FoldedCall, asked: Mapping[str, str], runs: Mapping[str, RunRow]) -> bool:
        """Return whether a plain call has exactly the events that were taken in, and nothing else knows of it."""
        last, run = self._folded.get(call.id), runs.get(call.root)
        is_same = last is not None and last.folded is call and last.is_settlement == call.is_settled
        if not is_same or run is None or run.origin or call.id in asked:
            return False
        del self._folded[call.id]
        return True

    def _delegations(self, rows: Iterable[DelegationRow]) -> Iterator[Unlike]:
        there = {row.id: row for row in rows}
        for id, event in self.delegated.items():
            row = there.pop(id, None)
            if row is None:
                yield "row_missing", f"delegation {id} is missing", event.n, event.run_id
            elif not is_delegated(row, event):
                yield "row_changed", f"delegation {id} differs from its event", event.n, event.run_id
        for id in there:
            yield "row_forged", f"delegation {id} has no event", 0, id

    def _directives(self, rows: Iterable[DirectiveRow]) -> Iterator[Unlike]:
        there = {row.id: row for row in rows}
        for id, said in self.directed.items():
            row = there.pop(id, None)
            if row is None:
                yield "row_missing", f"{said.kind} {id} is missing", said.seq, id
            elif row != said:
                yield "row_changed", f"{said.kind} {id} differs from its events", said.seq, id
        for id in there:
            yield "row_forged", f"directive {id} has no event", 0, id

    def _compared(
        self, kind: str, id: str, row: Any, compare: Callable[[Any, Subject], Iterator[Said]]
    ) -> Iterator[Unlike]:
        subject = self._subject(kind, id)
        self._subjects.pop((kind, id), None)
        if subject is None:
            run_id = row.id if kind == "run" else row.run_id
            yield "row_forged", f"{kind} {id} has no event", 0, run_id
            return
        last = subject.last
        if row.state != subject.state:
            text = f"{kind} {id} is {row.state}, and its last event says {subject.state}"
            yield "row_changed", text, last.n, last.run_id
        try:
            said = list(compare(row, subject))
        except MALFORMED:
            said = [("row_changed", "its content makes no sense")]
        for how, text in said:
            yield how, f"{kind} {id}: {text}", last.n, last.run_id

    def _run(self, row: RunRow, subject: Subject) -> Iterator[Said]:
        first, facts = subject.first, subject.facts
        if "row" in facts and facts["row"] != run_columns_digest(row):
            yield "row_changed", "a column that never changes was changed"
        if (row.root, row.id, row.tenant, row.created_at) != (first.root, first.run_id, first.tenant, first.at):
            yield "row_changed", "the id, the tenant or the time was changed"
        if "row" in facts:
            yield from self._payload("input", row.input, facts.get("input"), row.uid)
            yield from self._payload("output", row.output, facts.get("output"), row.uid)
        goal, by, why = (str(facts.get(name, "")) for name in GOAL_FACTS)
        if (row.goal, row.goal_by) != (goal if goal != NONE else "", by):
            yield "row_changed", "the goal, or who set it, was changed"
        yield from self._words("why it has its goal", row.goal_why, why)
        if row.plan != facts.get("plan", ""):
            yield "row_changed", "the plan was changed"
        if bool(row.budgets) != ("budgets" in facts) or (row.budgets and proof(row.budgets) != facts["budgets"]):
            yield "row_changed", "the budgets were changed"
        if (proof(row.completion) if row.completion else None) != facts.get("completion"):
            yield "row_changed", "when it is complete was changed"
        yield from self._words("why it is blocked", row.causes, json.dumps(subject.causes, ensure_ascii=False))
        if row.state == "blocked" and row.came_from != subject.last.frm:
            yield "row_changed", "its state before it was blocked was changed"

    def _words(self, name: str, text: str, said: str) -> Iterator[Said]:
        """Compare a text with what an event says in plain text; a text that was encrypted since cannot be compared."""
        if text == said or storable(text) == storable(said):
            return
        if SEALED in text and said:
            self.unproved += 1
            return
        yield "row_changed", f"{name} was changed"

    def _call(self, row: CallRow, subject: Subject, runs: Mapping[str, RunRow]) -> Iterator[Said]:
        first, facts = subject.first, subject.facts
        run = runs.get(row.run)
        key = row.key if run is None or not run.origin else row.key.removeprefix(f"{LOADED}{row.id}:")
        if "row" in facts and facts["row"] != call_columns_digest(row, key, row.generation):
            yield "row_changed", "a column that never changes was changed"
        mine = (row.root, row.run_id, row.tenant, row.created_at, row.seq)
        if mine != (first.root, first.run_id, first.tenant, first.at, first.n):
            yield "row_changed", "the run, the time or the number was changed"
        if run is None or (row.run != first.run and not subject.passed):
            yield "row_changed", "the run was changed"
        elif (row.agent, row.principal) != (run.agent, run.principal):
            yield "row_changed", "the agent or the principal was changed"
        counts = (row.attempt, row.comp_attempt, row.settled_seq)
        if counts != (subject.attempt, subject.comp_attempt, subject.settled_seq):
            yield "row_changed", "the attempts or the order of settlement were changed"
        if row.remote_s != subject.remote_s:
            yield "row_changed", "its work lease was changed"
        if "row" in facts:
            yield from self._payload("args", row.args, facts.get("args"), row.id)
            yield from self._payload("result", row.result, facts.get("result"), row.id)
            yield from self._payload("before", row.before, facts.get("before"), row.id)
            failure = facts.get("failure")
            if failure and (row.state == "refused" or not self._emptied):
                yield from self._payload("error", row.error, failure, row.id)
            elif not failure and row.error and row.result is None:
                yield "row_changed", "an error was added"
            yield from self._worded(row, subject)

    def _worded(self, row: CallRow, subject: Subject) -> Iterator[Said]:
        """Compare what people, probes and bodies said about the call."""
        facts = subject.facts
        if subject.first.what != "shared":
            yield from self._words("why", row.why, subject.why)
        if (row.alias, row.twin, row.violation) != tuple(facts.get(one, "") for one in ("alias", "twin", "violation")):
            yield "row_changed", "what it stands for, or the rule that it broke, was changed"
        if self._emptied:
            return
        yield from self._words("the error of its compensation", row.comp_error, subject.comp_error)
        names = facts.get("locks")
        if row.locks != (json.dumps(names, ensure_ascii=False) if names else ""):
            yield "row_changed", "the names of its locks were changed"
        for name in LEARNED:
            text, proved = str(getattr(row, name)), facts.get(name)
            if SEALED in text:
                self.unproved += 1
            elif text and (proved is None or proof(text) != proved):
                yield (
                    "row_changed",
                    f"what was {'learned of it' if name == 'learned' else 'kept as evidence'} was changed",
                )
            elif not text and name == "learned" and proved is not None:
                yield "row_changed", "what was learned of it was removed"

    def _approval(self, row: ApprovalRow, subject: Subject, runs: Mapping[str, RunRow]) -> Iterator[Said]:
        first, facts = subject.first, subject.facts
        run = runs.get(row.run)
        is_record = run is not None and run.origin
        asked = changed(row, {"use_key": row.use_key.removeprefix(LOADED)}) if is_record else row
        if "terms" in facts and facts["terms"] != request_columns_digest(asked):
            yield "row_changed", "the terms of the request were changed"
        if (row.digest, row.seq, row.call) != (facts.get("digest"), first.n, first.call):
            yield "row_changed", "the call that it binds was changed"
        if (row.root, row.run_id, row.tenant) != (first.root, first.run_id, first.tenant):
            yield "row_changed", "the run was changed"
        if row.state == "used" and (row.used_at, row.used_seq) != (subject.last.at, subject.last.n):
            yield "row_changed", "the time of its use was changed"
        if decision_digest(row) != facts.get("said"):
            yield "row_changed", "who decided, when, or why was changed"
        if (row.reached, row.asked_at) != (facts.get("entry", 0), facts.get("asked_at")):
            yield "row_changed", "whom it was escalated to, or when, was changed"
        is_open = row.state == "pending" and not is_record
        if row.due_at != (entry_at(row.requested_at, row.entries, row.reached) if is_open else None):
            yield "row_changed", "when something happens if nobody answers was changed"
        if row.given != "[]" or "given" in facts:
            yield from self._payload("given", row.given, facts.get("given"), row.id)

    def _payload(self, name: str, text: str | None, proved: str | None, about: str) -> Iterator[Said]:
        if text is not None and text.startswith(GONE):
            if not self._emptied:
                yield "payload_changed", f"the {name} is gone, and neither gc nor an erasure removed it"
            return
        if proved is None or text is None or not isinstance(proved, str):
            is_proved: bool | None = proved is None and not text
        else:
            is_proved = self._prove(proved, text, about)
        self.unproved += is_proved is None
        if is_proved is False:
            yield "payload_changed", f"the {name} is not what was written"


def _updated(subject: Subject, facts: Mapping[str, Any]) -> None:
    """Take in the newest facts. An event with a goal names all of it: what it leaves out is empty."""
    if "goal" in facts:
        for name in GOAL_FACTS:
            subject.facts.pop(name, None)
    subject.facts.update(facts)


def _worded(subject: Subject, event: EventRow, facts: dict[str, Any]) -> None:
    """Keep the reason and the error that the row has after this transition."""
    to = event.to_state
    words = "why" in facts or "resolved" in facts
    if "started" in (event.frm, to) or (words and to not in ("ready", "compensated", "compensation_failed")):
        subject.why = str(facts.get("why", ""))
    if to == "compensating":
        subject.comp_error = ""
    elif event.frm == "compensating":
        subject.comp_error = str(facts.get("error", ""))


def _forgotten(subject: Subject, event: EventRow) -> None:
    """Drop the facts that a settlement, or the resolution of a doubt, replaces: it may leave no result."""
    if event.frm == "started":
        subject.facts.pop("failure", None)
    if event.frm == "started" or event.to_state == "succeeded":
        subject.facts.pop("result", None)


def _counted(subject: Subject, event: EventRow, facts: dict[str, Any]) -> None:
    to = event.to_state
    if to in ("started", "compensating"):
        subject.remote_s = facts.get("remote", 0.0)
    if event.what == "shared" or to == "started":
        subject.attempt = facts.get("attempt", 1)
        subject.settled_seq = event.n if to == "succeeded" else subject.settled_seq
    elif to == "compensating":
        subject.comp_attempt = facts.get("attempt", 0)
    elif to == "succeeded" or to == "in_doubt":
        subject.settled_seq = event.n


def _facts(event: EventRow) -> dict[str, Any]:
    if event.facts == "{}":
        return {}
    facts = json.loads(event.facts)
    if not isinstance(facts, dict):
        raise ValueError("no facts")  # noqa: TRY004 (as for a text that is not JSON)
    return facts
