"""Quick statements on SQLite: a plain operation is three statements, inside the open transaction.

Nobody else can write before it ends: what the first statement reads still holds for the others.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from amends.encoding.chain import link, moment
from amends.ledger.operations import Admission, AdmitCall, BeginCompensation, SettleCall, SettleCompensation, Settled
from amends.ledger.plain import AdmitPlain, SettlePlain
from amends.ledger.rows import CallRow
from amends.stores.quick import (
    BEGUN_SQL,
    FREE_TO_GO,
    FROM_OP,
    OPEN_ROOT,
    SAME,
    SETTLED,
    STILL_GOING,
    UNDONE,
    WHEN,
    admission_body,
    admission_facts,
    admission_values,
    admitted,
    beginning_facts,
    begun,
    body_after,
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
from amends.stores.sql import SQLITE

_NEWEST: Final = "(select at from events order by seq desc limit 1)"
_TAIL: Final = f"select {_NEWEST}, e.n, e.hash"
_LAST: Final = " order by e.n desc limit 1"
# The statement checks the same values of the call and its run that the event's hash covers.
_EVENT: Final = (
    'insert into events (at, n, hash, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch, facts)'
    " values (?, ?, ?, ?, ?, ?, ?, ?, 'call', {}, ?, ?, ?)"
)

_MAY_ADMIT: Final = (
    f"{_TAIL}, r.agent, r.principal from runs r join events e on e.root = r.uid"
    " where r.uid = ? and r.id = ? and r.tenant = ? and r.owner = ? and r.epoch = ?"
    f' and {OPEN_ROOT} and not exists (select 1 from calls where "key" = ?){_LAST}'
)
_ADMIT_EVENT: Final = _EVENT.format("'(new)', 'started'")
_COLUMNS: Final = ("seq", "run_id", "tenant", "agent", "principal", *FROM_OP, *WHEN, *SAME)
_ADMIT_CALL: Final = (
    f"insert into calls ({', '.join(map(SQLITE.name_of, _COLUMNS))}) values ({', '.join('?' * len(_COLUMNS))})"
)
_SAME: Final = tuple(SAME.values())

_OF_CALL: Final = (
    f"{_TAIL} from calls c join runs o on o.uid = c.root join events e on e.root = c.root"
    " where c.id = ? and c.run = ? and o.owner = ? and o.epoch = ? and {}" + _LAST
)
_MAY_SETTLE: Final = _OF_CALL.format("c.state = 'started' and c.attempt = ? and c.evidence = ''")
_SETTLE_EVENT: Final = _EVENT.format("'started', ?")
_SETS: Final = ", ".join(f"{name} = ?" for name in (*SETTLED, "settled_at", "retry_at"))
_SETTLE_CALL: Final = f"update calls set {_SETS} where seq = ? and id = ?"
_SETTLE_CALL_PLACED: Final = f"update calls set {_SETS}, settled_seq = ? where seq = ? and id = ?"


def admit(cursor: sqlite3.Cursor, op: AdmitCall, clock: Callable[[], float]) -> Admission | None:
    """Start the call; return None if nothing was changed and the flow must decide."""
    if not is_plain_admission(op):
        return None
    values = admission_values(op)
    execute, root, run_id, tenant, facts = cursor.execute, op.root, op.run_id, op.tenant, admission_facts(op)
    found = execute(_MAY_ADMIT, (root, run_id, tenant, op.owner, op.epoch, values[6])).fetchall()
    if not found:
        return None
    newest, last, prev, agent, principal = found[0]
    at = moment(max(clock(), newest))
    chained = (at, last + 1, link(prev, last + 1, at, admission_body(op, facts)))
    execute(_ADMIT_EVENT, (*chained, root, root, run_id, tenant, op.call_id, op.owner, op.epoch, facts))
    seq = _made(cursor)
    execute(_ADMIT_CALL, (seq, run_id, tenant, agent, principal, *values, at, at, at, *_SAME))
    return admitted(values, seq, at, (run_id, tenant, agent, principal))


def settle(cursor: sqlite3.Cursor, op: SettleCall, clock: Callable[[], float]) -> Settled | None:
    """Settle the call; return None if nothing was changed and the flow must decide."""
    if not is_plain_settlement(op):
        return None
    seen = op.seen
    assert seen is not None, "a plain settlement knows its call"
    found = cursor.execute(_MAY_SETTLE, (op.call_id, seen.run, op.owner, op.epoch, op.attempt)).fetchall()
    if not found:
        return None
    facts = settlement_facts(op)
    at, chained = _chained(found[0], clock, body_after(op, "started", op.to, facts))
    cursor.execute(_SETTLE_EVENT, (*chained, *_whose(seen), op.to, op.owner, op.epoch, facts))
    seq = _made(cursor)
    sets = (*settlement_values(op), at, None if op.retry_s is None else at + op.retry_s)
    if places(op):
        _change(cursor, _SETTLE_CALL_PLACED, (*sets, seq, seen.seq, op.call_id))
    else:
        _change(cursor, _SETTLE_CALL, (*sets, seen.seq, op.call_id))
    return settled(op, seq, at)


_MAY_BEGIN: Final = _OF_CALL.format(f"o.state = 'rolling_back' and {FREE_TO_GO.format('?')}")
_BEGIN_EVENT: Final = _EVENT.format("'succeeded', 'compensating'")
_BEGIN_CALL: Final = (
    f"update calls set state = 'compensating', comp_attempt = ?, comp_at = ?{BEGUN_SQL} where seq = ? and id = ?"
)


def begin(cursor: sqlite3.Cursor, op: BeginCompensation, clock: Callable[[], float]) -> CallRow | None:
    """Begin the compensation; return None if nothing was changed and the flow must decide."""
    if not is_plain_beginning(op):
        return None
    seen = op.seen
    assert seen is not None, "a plain compensation knows its call"
    found = cursor.execute(_MAY_BEGIN, (op.call_id, seen.run, op.owner, op.epoch, *free_values(op))).fetchall()
    if not found:
        return None
    facts = beginning_facts(op)
    at, chained = _chained(found[0], clock, body_after(op, "succeeded", "compensating", facts))
    cursor.execute(_BEGIN_EVENT, (*chained, *_whose(seen), op.owner, op.epoch, facts))
    _change(cursor, _BEGIN_CALL, (op.attempt, at, seen.seq, op.call_id))
    return begun(op, at)


_MAY_END: Final = _OF_CALL.format(STILL_GOING.format("?"))
_END_EVENT: Final = _EVENT.format("'compensating', ?")
_END_SETS: Final = ", ".join(f"{name} = ?" for name in (*UNDONE, "comp_settled_at", "comp_retry_at"))
_END_CALL: Final = f"update calls set {_END_SETS} where seq = ? and id = ?"


def end(cursor: sqlite3.Cursor, op: SettleCompensation, clock: Callable[[], float]) -> Settled | None:
    """Settle the compensation; return None if nothing was changed and the flow must decide."""
    if not is_plain_end(op):
        return None
    seen = op.seen
    assert seen is not None, "a plain compensation knows its call"
    found = cursor.execute(_MAY_END, (op.call_id, seen.run, op.owner, op.epoch, *going_values(op))).fetchall()
    if not found:
        return None
    facts = undone_facts(op)
    at, chained = _chained(found[0], clock, body_after(op, "compensating", op.to, facts))
    cursor.execute(_END_EVENT, (*chained, *_whose(seen), op.to, op.owner, op.epoch, facts))
    retry_at = None if op.retry_s is None else at + op.retry_s
    _change(cursor, _END_CALL, (*undone_values(op), at, retry_at, seen.seq, op.call_id))
    return undone(op, at)


def _chained(found: tuple[float, int, str], clock: Callable[[], float], body: str) -> tuple[float, tuple[Any, ...]]:
    """Return the time of the next event, and the time with its number and hash."""
    newest, last, prev = found
    at = moment(max(clock(), newest))
    return at, (at, last + 1, link(prev, last + 1, at, body))


def _whose(seen: CallRow) -> tuple[str, str, str, str, str]:
    return (seen.root, seen.run, seen.run_id, seen.tenant, seen.id)


def _made(cursor: sqlite3.Cursor) -> int:
    seq = cursor.lastrowid
    assert seq is not None, "an inserted event has a number"
    return seq


def _change(cursor: sqlite3.Cursor, sql: str, values: tuple[Any, ...]) -> None:
    """Change the one row of the event; its number finds it without an index."""
    cursor.execute(sql, values)
    assert cursor.rowcount == 1, "the caller's copy of a call has a row in this ledger"


QUICK: Final[dict[type[Any], Callable[[sqlite3.Cursor, Any, Callable[[], float]], Any]]] = {
    AdmitCall: admit,
    SettleCall: settle,
    AdmitPlain: lambda cursor, op, clock: admit(cursor, op.general(), clock),
    SettlePlain: lambda cursor, op, clock: settle(cursor, op.general(), clock),
    BeginCompensation: begin,
    SettleCompensation: end,
}
