"""Asking for a person's yes before a call is made, for whoever must know that first. Starts nothing."""

from __future__ import annotations

from typing import Final, NoReturn

from amends.engine.asking import held_for, request_of_call
from amends.engine.call import admit, conclude
from amends.engine.giving import read_tree
from amends.engine.policy import need_for
from amends.engine.refusing import row_of
from amends.engine.session import Ask, Session
from amends.engine.waiting import Wait
from amends.errors import Held, Waiting
from amends.model import NoEffect
from amends.ops import Ended
from amends.rows import CallRow

FREED: Final = ("failed", "compensated", "dropped")
"""What is recorded of an earlier request, and leaves the next one to be asked about anew."""


async def ask_first(session: Session, ask: Ask) -> NoReturn:
    """Raise ``Held`` where the call waits for a person's yes, the request made; else ``Waiting``, for nothing.

    It never returns, so that the run of an undeclared call is left as it is.
    """
    raise await _waits_for(session, ask) or Waiting(f"{ask.spec.name} waits for nobody", run_id=session.id)


async def _waits_for(session: Session, ask: Ask) -> Held | None:
    need = await need_for(session, ask)
    if need is None or need.decision != "approve" or need.first_use:  # whether it is the first only a start can tell
        return None
    known = await _newest(session, ask)
    if known is not None and known.state == "held" and known.reason == "approval":
        asked = await request_of_call(known)
        if asked is not None and asked.state == "pending" and known.digest == ask.digest:
            _leave_to_caller(session, ask, known)
            return held_for(session, known, asked)
    if known is not None and known.state not in (*FREED, "held"):
        return None
    answer = await admit(session, ask, Wait(0.0))
    if answer.verdict == "start":  # its rule was lifted this very moment: nobody has called it yet
        await conclude(session, ask, row_of(answer), Ended(error=NoEffect("it was only asked about")))
        return None
    if answer.verdict not in ("held", "void") or answer.approval is None:
        return None
    row = row_of(answer)
    _leave_to_caller(session, ask, row)
    return held_for(session, row, answer.approval)


async def _newest(session: Session, ask: Ask) -> CallRow | None:
    """The newest call of this identity in this run; a read that waits is kept under a key of its own."""
    found = [
        row
        for row in (await read_tree(session)).calls
        if row.run == session.uid and (row.key == ask.key or row.key.startswith(f"{ask.key}:"))
    ]
    return max(found, key=lambda row: row.seq, default=None)


def _leave_to_caller(session: Session, ask: Ask, row: CallRow) -> None:
    session.asks.add(row.id)
    if ask.undeclared or ask.spec.fn is None:
        session.strangers[row.id] = row
