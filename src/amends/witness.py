"""The ledger held against what others know of it: its own chain, who signed that, and the anchor outside.

Where the chain of one tree is whole in itself, this is what tells a tree whose end was cut off, or that was written
anew, from one that was always so, and yesterday's ledger from today's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amends.auditops import Place, ReadChains
from amends.chain import GENESIS, moment
from amends.checkpoint import Anchored, read_heads
from amends.checkpointops import PLACES_MAX, ReadCheckpoints, ReadHashes
from amends.checkpointrows import CheckpointRow
from amends.record import changed, dataclass, field
from amends.signing import AuditKey, embedded_key
from amends.verified import PROBLEMS_MAX, How, Problem, Verified

PAGE: Final = 20
"""Checkpoints are read by so many: each may name thousands of trees."""


@dataclass(slots=True)
class Heard:
    """What the checkpoints and the anchor say."""

    checkpoints: int = 0
    newest: CheckpointRow | None = None
    """The end of the ledger's own chain, as it is there."""
    problems: list[Problem] = field(default_factory=list)
    anchored: int = 0
    """The checkpoint that is known outside; 0: none is."""
    vouched: int = 0
    """The newest checkpoint that a key which is trusted here has signed."""
    named: set[str] = field(default_factory=set)
    behind: dict[str, int] = field(default_factory=dict)
    """Of each tree the newest event that a checkpoint names."""

    def say(self, how: How, text: str, *, root: str = "", n: int = 0) -> None:
        """One problem; of one tree only the first, and of all only so many."""
        if len(self.problems) < PROBLEMS_MAX and (not root or root not in self.named):
            self.named.add(root)
            self.problems.append(Problem("", root, n, 0, how, text))


async def hear(
    keys: Sequence[AuditKey] = (),
    anchor: Anchored | None = None,
    *,
    roots: frozenset[str] | None = None,
    demanded: bool = False,
) -> Heard:
    """Every checkpoint, from the first; only these trees, where some are named. Reads only, in constant memory.

    ``demanded``: somebody said that one of these keys must have signed, so there must be something that is signed.
    """
    heard = Heard(anchored=0 if anchor is None else anchor.n)
    by_name = {key.name: key for key in keys}
    after = 0
    while page := await ReadCheckpoints(after, PAGE):
        for row in page:
            _check_link(heard, row)
            _check_signature(heard, row, by_name)
            if anchor is not None and row.n == anchor.n:
                _check_anchored(heard, row, anchor)
            await _check_heads(heard, row, roots)
            heard.checkpoints, heard.newest = heard.checkpoints + 1, row
        after = max(after + 1, page[-1].n)
    if demanded and heard.newest is None:
        heard.say("bad_signature", f"there is no checkpoint: nothing is signed with {_named(keys)}", n=1)
    _check_vouched(heard, keys)
    _check_end(heard, anchor, by_name)
    return heard


def _check_link(heard: Heard, row: CheckpointRow) -> None:
    last = heard.newest
    wanted = 1 if last is None else last.n + 1
    if row.n != wanted:
        heard.say("deleted", f"checkpoint {wanted} is missing: the next one is {row.n}", n=wanted)
    elif row.prev != (GENESIS if last is None else last.hash):
        heard.say("rewritten", f"checkpoint {row.n} does not follow the one before it", n=row.n)
    if not _is_as_hashed(row):
        heard.say("edited", f"checkpoint {row.n} does not say what its hash is of", n=row.n)
    if last is not None and row.ledger != last.ledger:
        heard.say("inserted", f"checkpoint {row.n} is of another ledger: {row.ledger}, not {last.ledger}", n=row.n)


def _is_as_hashed(row: CheckpointRow) -> bool:
    try:
        return row.hash == row.true_hash and row.at == moment(row.at)
    except (ValueError, OverflowError):  # a moment that is none
        return False


def _check_signature(heard: Heard, row: CheckpointRow, trusted: dict[str, AuditKey]) -> None:
    key = trusted.get(row.key) or embedded_key(row.key)
    if row.key and not row.signature:
        heard.say("bad_signature", f"the signature of checkpoint {row.n} is gone; it was made with {row.key}", n=row.n)
    elif key is not None and not key.has_signed(row.hash, row.signature):
        heard.say("bad_signature", f"the signature of checkpoint {row.n} is not one of {row.key}", n=row.n)
    elif row.signature and not row.key:
        heard.say("bad_signature", f"checkpoint {row.n} has a signature of no key", n=row.n)
    elif row.key in trusted:
        heard.vouched = row.n


def _check_vouched(heard: Heard, keys: Sequence[AuditKey]) -> None:
    """A key vouches for what it signed and for all before. Anybody could have written what comes after."""
    newest = heard.newest
    if not keys or newest is None or heard.vouched == newest.n:
        return
    if any(one.how == "bad_signature" for one in heard.problems):
        return  # said already, of the very first
    who = f"is signed with {newest.key}" if newest.key else "is not signed"
    since = f"after checkpoint {heard.vouched} nothing is" if heard.vouched else "nothing is"
    heard.say(
        "bad_signature",
        f"checkpoint {newest.n} {who}: {since} signed with {_named(keys)}",
        n=heard.vouched + 1,
    )


def _named(keys: Sequence[AuditKey]) -> str:
    return " or ".join(key.name for key in keys)


async def _check_heads(heard: Heard, row: CheckpointRow, roots: frozenset[str] | None) -> None:
    try:
        heads = read_heads(row.heads)
    except ValueError:
        heard.say("edited", f"the heads of checkpoint {row.n} cannot be read", n=row.n)
        return
    wanted = [head for head in heads if roots is None or head[0] in roots]
    for start in range(0, len(wanted), PLACES_MAX):
        some = wanted[start : start + PLACES_MAX]
        found = {(root, n): hash for root, n, hash in await ReadHashes(tuple((root, n) for root, n, _ in some))}
        for root, n, hash in some:
            heard.behind[root] = max(n, heard.behind.get(root, 0))
            if found.get((root, n)) == hash or root in heard.named:
                continue
            if (root, n) in found:
                text = f"event {n} is not the one that checkpoint {row.n} names: the chain was written anew from there"
                heard.say("rewritten", f"{text} or from an earlier event", root=root, n=n)
            else:
                end = await _end_of(root, n)
                text = f"its chain ends at event {end}" if end else "it is gone"
                heard.say("cut", f"{text}; checkpoint {row.n} names event {n}", root=root, n=end + 1)


async def with_witness(found: Verified, heard: Heard, tenant: str | None = None) -> Verified:
    """Both together. Where the end of a tree was cut off its rows differ, too: that comes after it."""
    told: list[Problem] = []
    for one in heard.problems:
        run_id, whose = await _run_of(one.root) if one.root else ("", None)
        if tenant is None or whose is None or whose == tenant:
            told.append(changed(one, {"run_id": run_id}))
    after = [one for one in found.problems if one.root in heard.named and one.how.startswith("row_")]
    before = [one for one in found.problems if one not in after]
    problems = (*before, *told, *after)[:PROBLEMS_MAX]
    counts = {"checkpoints": heard.checkpoints, "anchored": heard.anchored}
    return changed(found, {**counts, "problems": problems})


async def _run_of(root: str) -> tuple[str, str | None]:
    """The id of a tree's first run and its tenant; nobody's, where nothing is left of it."""
    page = await ReadChains(Place(within=root), alone=True, limit=1)
    return (page.events[0].run_id, page.events[0].tenant) if page.events else ("", None)


async def _end_of(root: str, below: int) -> int:
    """The newest event of a tree whose event ``below`` is not there; its chain has no gaps, or that was told."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        if await ReadHashes(((root, middle),)):
            low = middle
        else:
            high = middle
    return low


def _check_anchored(heard: Heard, row: CheckpointRow, anchor: Anchored) -> None:
    if (row.hash, row.ledger) != (anchor.hash, anchor.ledger):
        other = f" of ledger {anchor.ledger}" if row.ledger != anchor.ledger else ""
        heard.say(
            "rewritten", f"checkpoint {row.n} is not the one that the anchor knows{other}: it was written anew", n=row.n
        )


def _check_end(heard: Heard, anchor: Anchored | None, trusted: dict[str, AuditKey]) -> None:
    if anchor is None:
        return
    key = trusted.get(anchor.key) or embedded_key(anchor.key)
    if key is not None and not key.has_signed(anchor.hash, anchor.signature):
        heard.say("bad_signature", f"what the anchor knows was not signed by {anchor.key}", n=anchor.n)
    end = 0 if heard.newest is None else heard.newest.n
    if anchor.n > end:
        heard.say(
            "put_back",
            f"the ledger ends at checkpoint {end}, and the anchor knows {anchor.n}: it was put back to an earlier state,"
            " or its end was cut off",
            n=end + 1,
        )
