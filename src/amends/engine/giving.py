"""Reading a run tree, and giving it back: to a person, a worker, or whoever opens it next."""

from __future__ import annotations

from amends.engine.session import Session
from amends.ledger import LetGo, ReadRun, Tree
from amends.rows import RunRow


async def give_back(session: Session, wake_s: float | None, *, suspended: bool = False) -> RunRow:
    """The tree is nobody's; ``wake_s``: when a worker is to look at it, ``suspended``: it waits for a person."""
    session.recall.close()  # before it is gone: from then on others may take back what has succeeded here
    lease = session.lease
    return await LetGo(session.root, lease.owner, lease.epoch, wake_s, suspended=suspended, replays=session.replays)


async def read_tree(session: Session) -> Tree:
    """This run, its descendants and their calls, as they are now."""
    tree = await ReadRun(session.tenant, uid=session.uid)
    assert tree is not None, "an open run is in the ledger"
    return tree
