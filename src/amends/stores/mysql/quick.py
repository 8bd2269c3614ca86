"""Quick statements on MariaDB and MySQL: a plain operation is one packet, one round trip and its own transaction.

The packet has several statements, because neither server can do all of it in one. ``@at`` is the time if the run and
the call are as they must be, and null otherwise: then every later statement does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends.encoding.chain import GENESIS
from amends.ledger.operations import (
    Admission,
    AdmitCall,
    BeginCompensation,
    SettleCall,
    SettleCompensation,
    Settled,
    StoreOp,
)
from amends.ledger.rows import TIME, CallRow
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
from amends.stores.sql import MYSQL

Clock = Callable[[], float] | None
Ask = Callable[[str, tuple[Any, ...], str], list[tuple[Any, ...]]]
"""Sends statements, with literals for %s, in one packet, for the run of this uid; returns the rows of the one that has any."""

_NEWEST: Final = f"greatest({{clock}}, coalesce((select made_at from marks where name = '{TIME}'), 0))"
_NOW: Final = f"round({_NEWEST} * 1e6) / 1e6"
_ROOT: Final = (
    f"set @n = 1, @prev = '{GENESIS}', @at = (select {_NOW} from runs where uid = %s and owner = %s and epoch = %s"
)
# A statement of its own, after the one that has locked the run: it sees what others have written until then.
_TAIL: Final = (
    "select n + 1, hash, greatest(@at, at) into @n, @prev, @at from events where root = %s order by n desc limit 1"
)
_EVENT: Final = (
    "insert into events (at, n, hash, root, run, run_id, tenant, `call`, what, frm, to_state, by_whom, epoch, facts)"
    f" select @at, @n, {MYSQL.linked.format('@prev', '@n', 'cast(round(@at * 1e6) as signed)', '%s')}, "
)
_COLUMNS: Final = ("seq", "run_id", "tenant", "agent", "principal", *FROM_OP, *SAME, *WHEN)

_ADMIT: Final = "; ".join(
    (
        "begin",
        (
            f"{_ROOT} and id = %s and tenant = %s and {OPEN_ROOT}"
            " and not exists (select 1 from calls where `key` = %s) for update)"
        ),
        _TAIL,
        (
            f"{_EVENT}uid, uid, id, tenant, %s, 'call', '(new)', 'started', %s, epoch, %s from runs"
            " where uid = %s and @at is not null"
        ),
        (
            f"insert into calls ({', '.join(map(MYSQL.name_of, _COLUMNS))})"
            " select @n, id, tenant, agent, principal, "
            f"{', '.join(['%s'] * (len(FROM_OP) + len(SAME)))}, @at, @at, @at from runs where uid = %s and @at is not null"
        ),
        "select seq, created_at, run_id, tenant, agent, principal from calls where id = %s and @at is not null",
        "commit",
    )
)
_IS_MEANT: Final = (
    "id = %s and root = %s and run = %s and state = 'started' and attempt = %s and evidence = '' and kind <> 'pivot'"
)
_SETTLE: Final = "; ".join(
    (
        "begin",
        f"{_ROOT} for update)",
        _TAIL,
        (
            f"{_EVENT}root, run, run_id, tenant, id, 'call', 'started', %s, %s, %s, %s from calls"
            f" where {_IS_MEANT} and @at is not null"
        ),
        (
            f"update calls set {', '.join(f'{name} = %s' for name in SETTLED)}, settled_at = @at, retry_at = @at + %s,"
            " settled_seq = if(%s, @n, settled_seq)"
            f" where {_IS_MEANT} and @at is not null"
        ),
        "select @n, @at from dual where row_count() = 1",
        "commit",
    )
)
_BEGIN: Final = "; ".join(
    (
        "begin",
        f"{_ROOT} and state = 'rolling_back' for update)",
        _TAIL,
        f"set @at = (select @at from calls c where c.id = %s and c.root = %s and c.run = %s and {FREE_TO_GO.format('%s')})",
        (
            f"{_EVENT}root, run, run_id, tenant, id, 'call', 'succeeded', 'compensating', %s, %s, %s from calls"
            " where id = %s and @at is not null"
        ),
        (
            f"update calls set state = 'compensating', comp_attempt = %s, comp_at = @at{BEGUN_SQL}"
            " where id = %s and @at is not null"
        ),
        "select @at from dual where @at is not null",
        "commit",
    )
)
_END: Final = "; ".join(
    (
        "begin",
        f"{_ROOT} for update)",
        _TAIL,
        f"set @at = (select @at from calls c where c.id = %s and c.root = %s and c.run = %s and {STILL_GOING.format('%s')})",
        (
            f"{_EVENT}root, run, run_id, tenant, id, 'call', 'compensating', %s, %s, %s, %s from calls"
            " where id = %s and @at is not null"
        ),
        (
            f"update calls set {', '.join(f'{name} = %s' for name in UNDONE)}, comp_settled_at = @at,"
            " comp_retry_at = @at + %s where id = %s and @at is not null"
        ),
        "select @at from dual where @at is not null",
        "commit",
    )
)
_TEXTS: Final = (_ADMIT, _SETTLE, _BEGIN, _END)
_SERVER: Final = tuple(text.replace("{clock}", MYSQL.clock) for text in _TEXTS)
_GIVEN: Final = tuple(text.replace("{clock}", "%s") for text in _TEXTS)
_SAME: Final = tuple(SAME.values())


def admit(op: AdmitCall, clock: Clock, ask: Ask) -> Admission | None:
    """Start the call; return None if nothing was changed and the flow must decide."""
    values, facts = admission_values(op), admission_facts(op)
    text, now = (_SERVER[0], ()) if clock is None else (_GIVEN[0], (clock(),))
    told = ask(
        text,
        (
            *now, op.root, op.owner, op.epoch, op.run_id, op.tenant, values[6], op.root, admission_body(op, facts),
            op.call_id, op.owner, facts, op.root, *values, *_SAME, op.root, op.call_id,
        ),
        op.root,
    )  # fmt: skip
    if not told:
        return None
    [(n, at, *of_run)] = told
    return admitted(values, n, at, of_run)


def settle(op: SettleCall, clock: Clock, ask: Ask) -> Settled | None:
    """Settle the call; return None if nothing was changed and the flow must decide."""
    assert op.seen is not None, "a plain settlement knows its call"
    text, now = (_SERVER[1], ()) if clock is None else (_GIVEN[1], (clock(),))
    root, facts = op.seen.root, settlement_facts(op)
    meant = (op.call_id, root, op.seen.run, op.attempt)
    told = ask(
        text,
        (
            *now, root, op.owner, op.epoch, root, body_after(op, "started", op.to, facts), op.to, op.owner, op.epoch,
            facts, *meant, *settlement_values(op), op.retry_s, int(places(op)), *meant,
        ),
        root,
    )  # fmt: skip
    return settled(op, *told[0]) if told else None


def begin(op: BeginCompensation, clock: Clock, ask: Ask) -> CallRow | None:
    """Begin the compensation; return None if nothing was changed and the flow must decide."""
    assert op.seen is not None, "a plain compensation knows its call"
    text, now = (_SERVER[2], ()) if clock is None else (_GIVEN[2], (clock(),))
    root, facts = op.seen.root, beginning_facts(op)
    told = ask(
        text,
        (
            *now, root, op.owner, op.epoch, root, op.call_id, root, op.seen.run, *free_values(op),
            body_after(op, "succeeded", "compensating", facts), op.owner, op.epoch, facts, op.call_id, op.attempt,
            op.call_id,
        ),
        root,
    )  # fmt: skip
    return begun(op, told[0][0]) if told else None


def end(op: SettleCompensation, clock: Clock, ask: Ask) -> Settled | None:
    """Settle the compensation; return None if nothing was changed and the flow must decide."""
    assert op.seen is not None, "a plain compensation knows its call"
    text, now = (_SERVER[3], ()) if clock is None else (_GIVEN[3], (clock(),))
    root, facts = op.seen.root, undone_facts(op)
    told = ask(
        text,
        (
            *now, root, op.owner, op.epoch, root, op.call_id, root, op.seen.run, *going_values(op),
            body_after(op, "compensating", op.to, facts), op.to, op.owner, op.epoch, facts, op.call_id,
            *undone_values(op), op.retry_s, op.call_id,
        ),
        root,
    )  # fmt: skip
    return undone(op, told[0][0]) if told else None


def quick(op: StoreOp[Any]) -> Callable[[Any, Clock, Ask], Any] | None:
    """Return the quick way to carry out the operation, if it is plain."""
    if isinstance(op, AdmitCall) and is_plain_admission(op):
        return admit
    if isinstance(op, SettleCall) and is_plain_settlement(op):
        return settle
    if isinstance(op, BeginCompensation) and is_plain_beginning(op):
        return begin
    if isinstance(op, SettleCompensation) and is_plain_end(op):
        return end
    return None
