"""Checking the record of a ledger, or of the runs that a filter names."""

from __future__ import annotations

from collections.abc import Sequence

from amends.bundleops import FindTrees
from amends.engine.verify import Audit, Found, plainly, verify_chains, verify_tree
from amends.filter import CALL_WORDS, RUN_FIELDS, parse_filter
from amends.hub import Hub, View
from amends.ledger import ListRuns
from amends.listing import PAGE, Pages, narrowing
from amends.people import no_run
from amends.rows import RunRow
from amends.verified import Verified


async def verify(hub: Hub, view: View, run_ids: Sequence[str], text: str) -> Verified:
    """Every tree that the runtime may see; or the trees of these runs and of those that the filter takes."""
    audit = audit_of(hub, view)
    if not run_ids and not text.strip():
        return (await verify_chains(audit)).verified()
    roots = await _trees_of(view, run_ids)
    if text.strip():
        roots |= await _filtered(audit, text)
    found = Found(audit)
    for root in roots:
        await verify_tree(found, root)
    return found.verified()


def audit_of(hub: Hub, view: View) -> Audit:
    """How this runtime looks at a ledger: what is encrypted is proved where it has the keys."""
    sealing = hub.hiding.sealing
    return Audit(view.tenant or None, plainly if sealing is None else sealing.proves)


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
