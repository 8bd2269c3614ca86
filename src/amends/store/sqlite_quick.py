"""Plain admissions and settlements on SQLite: two statements each, inside the transaction that is open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from amends.ledger import Admission, AdmitCall, BeginCompensation, SettleCall, SettleCompensation, Settled
from amends.rows import CallRow
from amends.store.dialect import SQLITE
from amends.store.quick import (
    BEGUN_SQL,
    FREE_TO_GO,
    FROM_OP,
    OPEN_ROOT,
    SAME,
    SETTLED,
    STILL_GOING,
    UNDONE,
    WHEN,
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

_NOW: Final = "max(?, coalesce((select at from events order by seq desc limit 1), 0.0))"
_EVENT: Final = (
    'insert into events (at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts)'
    f" select {_NOW}, "
)
_TOLD: Final = " returning seq, at, run_id, tenant"

_ADMIT_EVENT: Final = (
    f"{_EVENT} uid, uid, id, tenant, ?, 'call', '(new)', 'started', ?, epoch, ? from runs where uid = ?"
    f" and owner = ? and epoch = ? and {OPEN_ROOT}"
    f' and not exists (select 1 from calls where "key" = ?){_TOLD}'
)
_COLUMNS: Final = ("seq", "run_id", "tenant", *FROM_OP, *WHEN, *SAME)
_ADMIT_CALL: Final = (
    f"insert into calls ({', '.join(map(SQLITE.name_of, _COLUMNS))}, agent, principal)"
    f" select {', '.join('?' * len(_COLUMNS))}, agent, principal from runs where uid = ? returning agent, principal"
)
_SAME: Final = tuple(SAME.values())

_SETTLE_EVENT: Final = (
    f"{_EVENT} c.root, c.run, c.run_id, c.tenant, c.id, 'call', 'started', ?, ?, ?, ? from calls c"
    " join runs o on o.uid = c.root where c.id = ? and c.state = 'started' and c.attempt = ? and c.evidence = ''"
    f" and o.owner = ? and o.epoch = ?{_TOLD}"
)
_SETS: Final = ", ".join(f"{name} = ?" for name in (*SETTLED, "settled_at", "retry_at"))
_SETTLE_CALL: Final = f"update calls set {_SETS} where seq = ? and id = ?"
_SETTLE_CALL_PLACED: Final = f"update calls set {_SETS}, settled_seq = ? where seq = ? and id = ?"


def admit(cursor: sqlite3.Cursor, op: AdmitCall, clock: Callable[[], float]) -> Admission | None:
    """Start the call; None: nothing was changed and the flow decides."""
    if not is_plain_admission(op):
        return None
    values = admission_values(op)
    execute = cursor.execute
    told = execute(
        _ADMIT_EVENT,
        (clock(), op.call_id, op.owner, admission_facts(op), op.root, op.owner, op.epoch, values[6]),
    ).fetchall()
    if not told:
        return None
    [(seq, at, run_id, tenant)] = told
    [(agent, principal)] = execute(_ADMIT_CALL, (seq, run_id, tenant, *values, at, at, at, *_SAME, op.root)).fetchall()
    return admitted(values, seq, at, (run_id, tenant, agent, principal))


def settle(cursor: sqlite3.Cursor, op: SettleCall, clock: Callable[[], float]) -> Settled | None:
    """Settle the call; None: nothing was changed and the flow decides."""
    if not is_plain_settlement(op):
        return None
    assert op.seen is not None, "a plain settlement knows what it settles"
    execute = cursor.execute
    told = execute(
        _SETTLE_EVENT,
        (clock(), op.to, op.owner, op.epoch, settlement_facts(op), op.call_id, op.attempt, op.owner, op.epoch),
    ).fetchall()
    if not told:
        return None
    seq, at = told[0][:2]
    sets = (*settlement_values(op), at, None if op.retry_s is None else at + op.retry_s)
    if places(op):
        _change(cursor, _SETTLE_CALL_PLACED, (*sets, seq, op.seen.seq, op.call_id))
    else:
        _change(cursor, _SETTLE_CALL, (*sets, op.seen.seq, op.call_id))
    return settled(op, seq, at)


_BEGIN_EVENT: Final = (
    f"{_EVENT} c.root, c.run, c.run_id, c.tenant, c.id, 'call', 'succeeded', 'compensating', ?, ?, ? from calls c"
    " join runs o on o.uid = c.root where c.id = ? and o.owner = ? and o.epoch = ? and o.state = 'rolling_back'"
    f" and {FREE_TO_GO.format('?')}{_TOLD}"
)
_BEGIN_CALL: Final = (
    f"update calls set state = 'compensating', comp_attempt = ?, comp_at = ?{BEGUN_SQL} where seq = ? and id = ?"
)


def begin(cursor: sqlite3.Cursor, op: BeginCompensation, clock: Callable[[], float]) -> CallRow | None:
    """Begin the compensation; None: nothing was changed and the flow decides."""
    if not is_plain_beginning(op):
        return None
    assert op.seen is not None, "a plain compensation knows what it takes back"
    told = cursor.execute(
        _BEGIN_EVENT,
        (clock(), op.owner, op.epoch, beginning_facts(op), op.call_id, op.owner, op.epoch, *free_values(op)),
    ).fetchall()
    if not told:
        return None
    at = told[0][1]
    _change(cursor, _BEGIN_CALL, (op.attempt, at, op.seen.seq, op.call_id))
    return begun(op, at)


_END_EVENT: Final = (
    f"{_EVENT} c.root, c.run, c.run_id, c.tenant, c.id, 'call', 'compensating', ?, ?, ?, ? from calls c"
    " join runs o on o.uid = c.root where c.id = ?"
    f" and {STILL_GOING.format('?')} and o.owner = ? and o.epoch = ?{_TOLD}"
)
_END_SETS: Final = ", ".join(f"{name} = ?" for name in (*UNDONE, "comp_settled_at", "comp_retry_at"))
_END_CALL: Final = f"update calls set {_END_SETS} where seq = ? and id = ?"


def end(cursor: sqlite3.Cursor, op: SettleCompensation, clock: Callable[[], float]) -> Settled | None:
    """Settle the compensation; None: nothing was changed and the flow decides."""
    if not is_plain_end(op):
        return None
    assert op.seen is not None, "a plain compensation knows what it takes back"
    told = cursor.execute(
        _END_EVENT,
        (clock(), op.to, op.owner, op.epoch, undone_facts(op), op.call_id, *going_values(op), op.owner, op.epoch),
    ).fetchall()
    if not told:
        return None
    at = told[0][1]
    retry_at = None if op.retry_s is None else at + op.retry_s
    _change(cursor, _END_CALL, (*undone_values(op), at, retry_at, op.seen.seq, op.call_id))
    return undone(op, at)


def _change(cursor: sqlite3.Cursor, sql: str, values: tuple[Any, ...]) -> None:
    """Change the one row that the event was written for; its number finds it without an index."""
    cursor.execute(sql, values)
    assert cursor.rowcount == 1, "what a caller saw of a call is its row in this ledger"


QUICK: Final[dict[type[Any], Callable[[sqlite3.Cursor, Any, Callable[[], float]], Any]]] = {
    AdmitCall: admit,
    SettleCall: settle,
    BeginCompensation: begin,
    SettleCompensation: end,
}
