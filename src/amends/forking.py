"""Forking and comparing as flows, for both colours of the runtime."""

from __future__ import annotations

from typing import Any

from amends.compared import Comparison
from amends.engine import comparing
from amends.engine.forking import Wish
from amends.engine.forking import fork as fork_run
from amends.errors import UsageError
from amends.flow import Flow
from amends.forkops import ReadForks
from amends.hub import Hub, View, run_id_of
from amends.ledger import ReadRun, Tree
from amends.people import found
from amends.rows import RunRow


def fork(hub: Hub, view: View, run_id: Any, *, at: Any, id: Any) -> Flow[str]:
    """See ``rt.fork``."""
    if not isinstance(at, str) or not at:
        raise UsageError(f"at is the id of the last call that the fork shares, not {at!r}")
    wish = Wish(
        tenant=view.tenant or "",
        run_id=run_id_of(run_id),
        at=at,
        id=None if id is None else run_id_of(id),
        principal=view.principal or "",
        by=view.principal or hub.owner,
        new_id=hub.new_id,
    )
    return fork_run(hub.reader(), wish)


async def compare(hub: Hub, view: View, left: str, right: str) -> Comparison:
    """See ``rt.compare``."""
    one = found(await ReadRun(view.tenant or "", run_id_of(left)), left)
    other = found(await ReadRun(view.tenant or "", run_id_of(right)), right)
    return comparing.compare(hub.reader(), one, other)


async def forks_on(tree: Tree) -> list[RunRow]:
    """The forks that stand on this tree; a child's are its root's."""
    return [] if tree.run.parent else await ReadForks(tree.run.uid)
