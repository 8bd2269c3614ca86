"""One turn of a model: what it asks for at once is done side by side, and a point of no return comes last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amends.engine.call import Done, guarded_call
from amends.engine.session import Ask, Session
from amends.errors import OutOfOrder
from amends.ops import Together

SIDE_BY_SIDE_MAX: Final = 16
"""Calls of one turn that run at once; more wait for them."""

End = Done | Exception


def comes_last(ask: Ask) -> bool:
    """A pivot that starts at once: whoever asks for it together with others has not seen what became of those."""
    return ask.spec.kind == "pivot" and ask.spec.at == "call"


async def do_turn(session: Session, asks: Sequence[Ask | Exception]) -> list[End]:
    """How each ended, in the order they were asked for. An exception stands for what could not be asked at all."""
    ends: dict[int, End] = {place: ask for place, ask in enumerate(asks) if isinstance(ask, Exception)}
    open_ = {place: ask for place, ask in enumerate(asks) if isinstance(ask, Ask)}
    first = [place for place, ask in open_.items() if not comes_last(ask)]
    for at in range(0, len(first), SIDE_BY_SIDE_MAX):
        some = first[at : at + SIDE_BY_SIDE_MAX]
        ends |= zip(some, await _side_by_side(session, [open_[place] for place in some]), strict=True)
    missing = [_name(asks[place], end) for place, end in sorted(ends.items()) if isinstance(end, Exception)]
    for place, ask in open_.items():
        if not comes_last(ask):
            continue
        if missing:
            ends[place] = OutOfOrder(ask.spec.name, law="pivot_early", missing=missing, run_id=session.id)
        else:
            ends |= zip([place], await _side_by_side(session, [ask]), strict=True)
    return [ends[place] for place in range(len(asks))]


def _name(ask: Ask | Exception, end: Exception) -> str:
    return ask.spec.name if isinstance(ask, Ask) else str(getattr(end, "tool", "what you asked for beside it"))


async def _side_by_side(session: Session, asks: Sequence[Ask]) -> list[End]:
    if len(asks) > 1:
        return await Together([guarded_call(session, ask) for ask in asks])
    try:
        return [await guarded_call(session, asks[0])]
    except Exception as error:  # as the driver gives it for a group
        return [error]
