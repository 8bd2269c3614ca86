"""Plain admissions and settlements on SQLite: two statements each, inside the transaction that is open."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from amends.ledger import Admission, AdmitCall, SettleCall, Settled
from amends.store.dialect import SQLITE
from amends.store.quick import (
    FROM_OP,
    OPEN_ROOT,
    SAME,
    SETTLED,
    WHEN,
    admission_facts,
    admission_values,
    admitted,
    is_plain_admission,
    is_plain_settlement,
    places,
    settled,
    settlement_facts,
    settlement_values,
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
_SETTLE_CALL: Final = f"update calls set {_SETS} where seq = ?"
_SETTLE_CALL_PLACED: Final = f"update calls set {_SETS}, settled_seq = ? where seq = ?"


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
        execute(_SETTLE_CALL_PLACED, (*sets, seq, op.seen.seq))
    else:
        execute(_SETTLE_CALL, (*sets, op.seen.seq))
    return settled(op, seq, at)


QUICK: Final[dict[type[Any], Callable[[sqlite3.Cursor, Any, Callable[[], float]], Any]]] = {
    AdmitCall: admit,
    SettleCall: settle,
}
