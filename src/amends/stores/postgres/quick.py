"""Quick statements on PostgreSQL: a plain operation is one statement, one round trip and its own transaction.

Each locks the run's row first, as every operation does (``r``), then takes the next place and the time (``s``), and
changes nothing if either is missing. A statement reads one snapshot: what another transaction wrote while this one
waited for the run shows as a row that no longer matches, or as a duplicate key, and then the flow decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from amends.ledger.operations import (
    Admission,
    AdmitCall,
    BeginCompensation,
    SettleCall,
    SettleCompensation,
    Settled,
    StoreOp,
)
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
    answer_sql,
    answered,
    beginning_facts,
    begun,
    body_after,
    free_values,
    going_values,
    is_plain_admission,
    is_plain_beginning,
    is_plain_end,
    is_plain_question,
    is_plain_settlement,
    places,
    settled,
    settlement_facts,
    settlement_values,
    undone,
    undone_facts,
    undone_values,
)
from amends.stores.sql import POSTGRES, Execute

Clock = Callable[[], float] | None

_ROOT: Final = (
    "with r as materialized (select uid, id, tenant, agent, principal from runs"
    " where uid = %s and owner = %s and epoch = %s{} for update)"
)
# The end of the chain is read by a function, which reads when it is called: after r has locked the run.
_PLACE: Final = (
    ", s as materialized (select nextval('events_seq_seq') as seq,"
    " round(greatest(coalesce(%s::float8, extract(epoch from clock_timestamp())::float8),"
    " (select at from events order by seq desc limit 1)) * 1e6::float8) / 1e6::float8 as at, t.last + 1 as n, t.prev"
    " from r cross join lateral amends_tail(r.uid) t where t.last is not null{})"
)
_EVENT: Final = (
    ', e as (insert into events (seq, at, root, run, run_id, tenant, "call", what, frm, to_state, by_whom, epoch,'
    " facts, n, hash) select s.seq, s.at, {}, 'call', {}, %s, %s, %s, s.n, "
    + POSTGRES.linked.format("s.prev", "s.n", "round(s.at * 1e6::float8)::bigint", "%s::text")
    + " from {})"
)
_NUMBERS: Final = {"declared", "undoable", "created_epoch", "asked_epoch", "comp_gave_up"}
_FLOATS: Final = {"quiet_mono", "comp_mono"}


def _mark(name: str) -> str:
    """Return a placeholder with its type: in a select the server cannot infer it."""
    return "%s::bigint" if name in _NUMBERS else "%s::float8" if name in _FLOATS else "%s::text"


_ADMIT: Final = (
    _ROOT.format(f" and id = %s and tenant = %s and {OPEN_ROOT}")
    + _PLACE.format(' and not exists (select 1 from calls where "key" = %s)')
    + _EVENT.format("r.uid, r.uid, r.id, r.tenant, %s", "'(new)', 'started'", "r, s")
    + f", c as (insert into calls (seq, run_id, tenant, agent, principal, {', '.join(WHEN)}, generation, state, attempt, "
    + ", ".join(f'"{name}"' for name in FROM_OP)
    + ") select s.seq, r.id, r.tenant, r.agent, r.principal, s.at, s.at, s.at, "
    + ", ".join(repr(value) for value in SAME.values())
    + f", {', '.join(map(_mark, FROM_OP))} from r, s)"
    " select s.seq, s.at, r.id, r.tenant, r.agent, r.principal from r, s"
)
assert tuple(SAME) == ("generation", "state", "attempt"), "the statement names them in this order"

_ANSWER: Final = answer_sql(POSTGRES)

_CHANGE: Final = (
    ", u as (update calls c set {} from r, s where c.id = %s and c.root = r.uid and c.run = %s and {}"
    " returning c.run, c.run_id, c.tenant, c.id)"
)
_TOLD: Final = " select s.seq, s.at from s, u"
_OF_CALL: Final = "r.uid, u.run, u.run_id, u.tenant, u.id"

_SETTLE: Final = (
    _ROOT.format("")
    + _PLACE.format("")
    + _CHANGE.format(
        ", ".join(f"{name} = {_mark(name)}" for name in SETTLED) + ", settled_at = s.at, retry_at = s.at + %s::float8,"
        " settled_seq = case when %s::boolean then s.seq else c.settled_seq end",
        "c.state = 'started' and c.attempt = %s and c.evidence = '' and c.kind <> 'pivot'",
    )
    + _EVENT.format(_OF_CALL, "'started', %s", "r, s, u")
    + _TOLD
)
# The statement sees the other calls as they were before it waited for the root. Locking a row reads its newest
# version: a call that has left these states meanwhile is not locked, the counts differ, and the flow decides.
_MAY_RISE: Final = (
    "o.kind <> 'read' and (o.state = 'failed' or o.state = 'backing_off' or o.state = 'in_doubt'"
    " or o.state = 'compensation_failed' or o.state = 'compensation_in_doubt'"
    " or (o.state = 'compensated' and o.comp_blind = 1))"
)
_RISEN: Final = (
    f", k as materialized (select o.id from calls o, r where o.root = r.uid and {_MAY_RISE} for update of o)"
)
_NONE_ROSE: Final = (
    f" and (select count(*) from k) = (select count(*) from calls o where o.root = c.root and {_MAY_RISE})"
)
_BEGIN: Final = (
    _ROOT.format(" and state = 'rolling_back'")
    + _RISEN
    + _PLACE.format("")
    + _CHANGE.format(
        f"state = 'compensating', comp_attempt = %s, comp_at = s.at{BEGUN_SQL}", FREE_TO_GO.format("%s") + _NONE_ROSE
    )
    + _EVENT.format(_OF_CALL, "'succeeded', 'compensating'", "r, s, u")
    + _TOLD
)
_END: Final = (
    _ROOT.format("")
    + _PLACE.format("")
    + _CHANGE.format(
        ", ".join(f"{name} = {_mark(name)}" for name in UNDONE)
        + ", comp_settled_at = s.at, comp_retry_at = s.at + %s::float8",
        STILL_GOING.format("%s"),
    )
    + _EVENT.format(_OF_CALL, "'compensating', %s", "r, s, u")
    + _TOLD
)


async def admit(op: AdmitCall, clock: Clock) -> Admission | None:
    """Start the call; return None if nothing was changed and the flow must decide."""
    if is_plain_question(op):
        found, _, _ = await Execute(_ANSWER, (op.key,))
        recorded = answered(op, found)
        if recorded is not None:
            return recorded
    if not is_plain_admission(op):
        return None
    values, facts = admission_values(op), admission_facts(op)
    told, _, _ = await Execute(
        _ADMIT,
        (
            op.root, op.owner, op.epoch, op.run_id, op.tenant, _now(clock), values[6], op.call_id, op.owner, op.epoch,
            facts, admission_body(op, facts), *values,
        ),
        prepare=True,
    )  # fmt: skip
    if not told:
        return None
    [(seq, at, *of_run)] = told
    return admitted(values, seq, at, of_run)


async def settle(op: SettleCall, clock: Clock) -> Settled | None:
    """Settle the call; return None if nothing was changed and the flow must decide."""
    # Another process may wait for a call of scope ledger: its flow notifies there.
    if not is_plain_settlement(op) or op.seen is None or op.seen.scope == "ledger":
        return None
    facts = settlement_facts(op)
    told, _, _ = await Execute(
        _SETTLE,
        (
            op.seen.root, op.owner, op.epoch, _now(clock), *settlement_values(op), op.retry_s, places(op), op.call_id,
            op.seen.run, op.attempt, op.to, op.owner, op.epoch, facts, body_after(op, "started", op.to, facts),
        ),
        prepare=True,
    )  # fmt: skip
    return settled(op, *told[0]) if told else None


async def begin(op: BeginCompensation, clock: Clock) -> CallRow | None:
    """Begin the compensation; return None if nothing was changed and the flow must decide."""
    if not is_plain_beginning(op) or op.seen is None:
        return None
    facts = beginning_facts(op)
    told, _, _ = await Execute(
        _BEGIN,
        (
            op.seen.root, op.owner, op.epoch, _now(clock), op.attempt, op.call_id, op.seen.run, *free_values(op),
            op.owner, op.epoch, facts, body_after(op, "succeeded", "compensating", facts),
        ),
        prepare=True,
    )  # fmt: skip
    return begun(op, told[0][1]) if told else None


async def end(op: SettleCompensation, clock: Clock) -> Settled | None:
    """Settle the compensation; return None if nothing was changed and the flow must decide."""
    if not is_plain_end(op) or op.seen is None or op.seen.scope == "ledger":
        return None
    facts = undone_facts(op)
    told, _, _ = await Execute(
        _END,
        (
            op.seen.root, op.owner, op.epoch, _now(clock), *undone_values(op), op.retry_s, op.call_id,
            op.seen.run, *going_values(op), op.to, op.owner, op.epoch, facts,
            body_after(op, "compensating", op.to, facts),
        ),
        prepare=True,
    )  # fmt: skip
    return undone(op, told[0][1]) if told else None


def _now(clock: Clock) -> float | None:
    return None if clock is None else clock()


QUICK: Final[dict[type[StoreOp[Any]], Callable[[Any, Clock], Any]]] = {
    AdmitCall: admit,
    SettleCall: settle,
    AdmitPlain: lambda op, clock: admit(op.general(), clock),
    SettlePlain: lambda op, clock: settle(op.general(), clock),
    BeginCompensation: begin,
    SettleCompensation: end,
}
