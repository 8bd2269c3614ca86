"""Run the parallel calls of one turn of a model, and ask for an approval before a call is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NoReturn

from amends.engine.approvals import held_for, request_of_call
from amends.engine.call import Done, admit, guarded_call, row_of, settle_outcome
from amends.engine.permits import is_permitted
from amends.engine.rules import need_for
from amends.engine.session import Ask, Session, Wait, read_tree
from amends.errors import (
    Held,
    OutOfOrder,
    Waiting,
)
from amends.ledger.rows import CallRow
from amends.ledger.world import Ended, RunTogether
from amends.model import NoEffect

# ---- One turn of a model: parallel calls, and a pivot last


SIDE_BY_SIDE_MAX: Final = 16
"""The most calls of one turn that run at once; more wait for them."""
End = Done | Exception


def is_immediate_pivot(ask: Ask) -> bool:
    """Return whether the request is a pivot that would start at once.

    The model that requests it has not seen the outcomes of the other calls of its turn.
    """
    return ask.spec.kind == "pivot" and ask.spec.at == "call"


async def run_turn(session: Session, asks: Sequence[Ask | Exception]) -> list[End]:
    """Run the calls of a turn and return how each ended, in order.

    An exception in ``asks`` is the error of an invalid request.
    """
    ends: dict[int, End] = {place: ask for place, ask in enumerate(asks) if isinstance(ask, Exception)}
    open_ = {place: ask for place, ask in enumerate(asks) if isinstance(ask, Ask)}
    first = [place for place, ask in open_.items() if not is_immediate_pivot(ask)]
    for at in range(0, len(first), SIDE_BY_SIDE_MAX):
        some = first[at : at + SIDE_BY_SIDE_MAX]
        ends |= zip(some, await run_side_by_side(session, [open_[place] for place in some]), strict=True)
    missing = [_name(asks[place], end) for place, end in sorted(ends.items()) if isinstance(end, Exception)]
    for place, ask in open_.items():
        if not is_immediate_pivot(ask):
            continue
        if missing:
            ends[place] = OutOfOrder(ask.spec.name, law="pivot_early", missing=missing, run_id=session.id)
        else:
            ends |= zip([place], await run_side_by_side(session, [ask]), strict=True)
    return [ends[place] for place in range(len(asks))]


def _name(ask: Ask | Exception, end: Exception) -> str:
    return ask.spec.name if isinstance(ask, Ask) else str(getattr(end, "tool", "what you asked for beside it"))


async def run_side_by_side(session: Session, asks: Sequence[Ask]) -> list[End]:
    if len(asks) > 1:
        return await RunTogether([guarded_call(session, ask) for ask in asks])
    try:
        return [await guarded_call(session, asks[0])]
    except Exception as error:  # as the driver returns it for a group
        return [error]


# ---- Asking for approval before a call is made. Starts nothing


FREED: Final = ("failed", "compensated", "dropped")
"""States of an earlier request after which the next one asks for approval anew."""


async def ask_first(session: Session, ask: Ask) -> NoReturn:
    """Raise ``Held`` if the call needs a person's approval, with the request made; otherwise raise ``Waiting``.

    It never returns, so that the run of an undeclared call is left as it is.
    """
    raise await _held_for_approval(session, ask) or Waiting(f"{ask.spec.name} waits for nobody", run_id=session.id)


async def _held_for_approval(session: Session, ask: Ask) -> Held | None:
    need = await need_for(session, ask)
    # Only a start can tell whether it is the first use.
    if need is None or need.decision != "approve" or need.first_use:
        return None
    known = await _newest(session, ask)
    if known is not None and known.state == "held" and known.reason == "approval":
        asked = await request_of_call(known)
        if asked is not None and asked.state == "pending" and known.digest == ask.digest:
            if not asked.is_about_money and await is_permitted(session, ask, replace(need, editors=asked.edited_by)):
                return None  # the call itself uses the permit
            _remember_held(session, ask, known)
            return held_for(session, known, asked)
    if known is not None and known.state not in (*FREED, "held"):
        return None
    if await is_permitted(session, ask, need):
        return None
    answer = await admit(session, ask, Wait(0.0), by_permit=False)
    if answer.verdict == "start":  # its rule was removed meanwhile, and the admission has started it: no body has run
        await settle_outcome(session, ask, row_of(answer), Ended(error=NoEffect("it was only asked about")))
        return None
    if answer.verdict not in ("held", "void") or answer.approval is None:
        return None
    row = row_of(answer)
    _remember_held(session, ask, row)
    return held_for(session, row, answer.approval)


async def _newest(session: Session, ask: Ask) -> CallRow | None:
    """Return the newest call of this identity in this run; a held read has a key of its own."""
    found = [
        row
        for row in (await read_tree(session)).calls
        if row.run == session.uid and (row.key == ask.key or row.key.startswith(f"{ask.key}:"))
    ]
    return max(found, key=lambda row: row.seq, default=None)


def _remember_held(session: Session, ask: Ask, row: CallRow) -> None:
    session.asked_calls.add(row.id)
    if ask.undeclared or ask.spec.fn is None:
        session.held_from_caller[row.id] = row
