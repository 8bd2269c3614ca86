"""Checking the record of a ledger, or of the runs that a filter names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from amends.anchor import read_copy
from amends.bundleops import FindTrees
from amends.checkpoint import Anchored
from amends.engine.verify import Audit, Found, plainly, verify_chains, verify_delegations, verify_tree
from amends.filter import CALL_WORDS, RUN_FIELDS, parse_filter
from amends.hub import Hub, View
from amends.ledger import ListRuns
from amends.listing import PAGE, Pages, narrowing
from amends.ops import ReadAnchor
from amends.people import no_run
from amends.rows import RunRow
from amends.signing import load_key
from amends.verified import Verified
from amends.witness import hear, with_witness

NOTHING: Final[Mapping[str, int]] = {}


async def verify(
    hub: Hub, view: View, run_ids: Sequence[str], text: str, *, anchor: str | None = None, keys: Sequence[str] = ()
) -> Verified:
    """Every tree that the runtime may see; or the trees of these runs and of those that the filter takes.

    ``anchor``: a copy that was kept elsewhere; ``keys``: who must have signed. Else those of the runtime.
    """
    trusted = [load_key(key) for key in keys] or [key for key in (hub.checkpointer.key,) if key is not None]
    known = await _known(hub, anchor)
    if not run_ids and not text.strip():
        heard = await hear(trusted, known, demanded=bool(keys))
        found = await verify_chains(audit_of(hub, view, heard.behind))
        return await with_witness(found.verified(), heard, view.tenant or None)
    roots = await _trees_of(view, run_ids)
    if text.strip():
        roots |= await _filtered(audit_of(hub, view), text)
    heard = await hear(trusted, known, roots=frozenset(roots), demanded=bool(keys))
    found = Found(audit_of(hub, view, heard.behind))
    for root in roots:
        await verify_tree(found, root)
    await verify_delegations(found)
    return await with_witness(found.verified(), heard, view.tenant or None)


def audit_of(hub: Hub, view: View, behind: Mapping[str, int] = NOTHING) -> Audit:
    """How this runtime looks at a ledger: what is encrypted is proved where it has the keys."""
    sealing = hub.hiding.sealing
    return Audit(view.tenant or None, plainly if sealing is None else sealing.proves, behind=behind)


async def _known(hub: Hub, copy: str | None) -> Anchored | None:
    """The checkpoint that is known outside. Read before the ledger is: it may only have grown since."""
    if copy is not None:
        return read_copy(Path(copy))
    mark = None if hub.anchor is None else await ReadAnchor(hub.anchor)
    known: Anchored | None = None if mark is None else mark.checkpoint
    return known


async def _trees_of(view: View, run_ids: Sequence[str]) -> dict[str, None]:
    roots: dict[str, None] = {}
    for run_id in run_ids:
        found = await FindTrees(view.tenant or "", run_id)
        if not found:
            raise no_run(run_id)
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
