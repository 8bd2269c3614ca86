"""Plain admissions and settlements on PostgreSQL: one statement, one round trip, its own transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends.ledger import Admission, AdmitCall, BeginCompensation, SettleCall, SettleCompensation, Settled, StoreOp
from amends.rows import CallRow
from amends.store.quick import (
    FROM_OP,
    admission_facts,
    admission_values,
    admitted,
    beginning_facts,
    begun,
    free_values,
    going_values,
    is_plain_admission,
    is_plain_beginning,
    is_plain_end,
    is_plain_settlement,
    places,
    settled,
    settlement_facts,
    settlement_values,
    undone,
    undone_facts,
    undone_values,
)
from amends.store.sql import Execute

_SENT: Final = tuple(
    place for place, name in enumerate(FROM_OP) if name not in ("run", "again", "created_epoch", "asked_epoch")
)
"""What the function is told of the request; the rest it knows: a plain one is of the root, and of this epoch."""
_ADMIT: Final = f"select * from amends_admit_1({', '.join(['%s'] * (4 + len(_SENT)))})"
_BEGIN: Final = f"select * from amends_begin_1({', '.join(['%s'] * 11)})"
_END: Final = f"select * from amends_end_1({', '.join(['%s'] * 15)})"
_SETTLE: Final = f"select * from amends_settle_1({', '.join(['%s'] * 16)})"

Clock = Callable[[], float] | None


async def admit(op: AdmitCall, clock: Clock) -> Admission | None:
    """Start the call; None: nothing was changed and the flow decides."""
    if not is_plain_admission(op):
        return None
    values = admission_values(op)
    told, _, _ = await Execute(
        _ADMIT, (_now(clock), op.owner, op.epoch, admission_facts(op), *[values[place] for place in _SENT])
    )
    if not told:
        return None
    [(seq, at, *of_run)] = told
    return admitted(values, seq, at, of_run)


async def settle(op: SettleCall, clock: Clock) -> Settled | None:
    """Settle the call; None: nothing was changed and the flow decides."""
    if not is_plain_settlement(op):
        return None
    assert op.seen is not None, "a plain settlement knows what it settles"
    if op.seen.scope == "ledger":
        return None  # other processes may wait for it, and the flow's transaction rings them
    told, _, _ = await Execute(
        _SETTLE,
        (
            _now(clock), op.owner, op.epoch, settlement_facts(op), op.call_id, op.seen.root, op.attempt, places(op),
            *settlement_values(op), op.retry_s,
        ),
    )  # fmt: skip
    return settled(op, *told[0]) if told else None


async def begin(op: BeginCompensation, clock: Clock) -> CallRow | None:
    """Begin the compensation; None: nothing was changed and the flow decides."""
    if not is_plain_beginning(op):
        return None
    assert op.seen is not None, "a plain compensation knows what it takes back"
    told, _, _ = await Execute(
        _BEGIN,
        (
            _now(clock), op.owner, op.epoch, beginning_facts(op), op.call_id, op.seen.root, op.attempt,
            *free_values(op),
        ),
    )  # fmt: skip
    return begun(op, told[0][1]) if told else None


async def end(op: SettleCompensation, clock: Clock) -> Settled | None:
    """Settle the compensation; None: nothing was changed and the flow decides."""
    if not is_plain_end(op):
        return None
    assert op.seen is not None, "a plain compensation knows what it takes back"
    told, _, _ = await Execute(
        _END,
        (
            _now(clock), op.owner, op.epoch, undone_facts(op), op.call_id, op.seen.root, *going_values(op),
            *undone_values(op), op.retry_s,
        ),
    )  # fmt: skip
    return undone(op, told[0][1]) if told else None


def _now(clock: Clock) -> float | None:
    return None if clock is None else clock()


QUICK: Final[dict[type[StoreOp[Any]], Callable[[Any, Clock], Any]]] = {
    AdmitCall: admit,
    SettleCall: settle,
    BeginCompensation: begin,
    SettleCompensation: end,
}
