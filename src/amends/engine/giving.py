"""Giving a run tree back, to a person, a worker, or whoever opens it next."""

from __future__ import annotations

from amends.engine.session import Session
from amends.ledger import LetGo
from amends.rows import RunRow


async def give_back(session: Session, wake_s: float | None, *, suspended: bool = False) -> RunRow:
    """The tree is nobody's; ``wake_s``: when a worker is to look at it, ``suspended``: it waits for a person."""
    session.recall.close()  # before it is gone: from then on others may take back what has succeeded here
    lease = session.lease
    return await LetGo(session.root, lease.owner, lease.epoch, wake_s, suspended=suspended, replays=session.replays)
