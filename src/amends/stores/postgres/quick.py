"""Plain statements on PostgreSQL: a step of a plain call is one statement, one round trip and its own transaction.

The update of the run's row is lock, guard, clock and chain in one: it waits for whoever has locked the run, reads the row
that it waited for, and continues its chain. What feeds on it writes the call. If either finds nothing to do, nothing is
changed and the flow decides. The chain must not grow without its event: a statement that continued the chain and then
found its call changed divides by zero, which undoes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from psycopg.errors import DivisionByZero

from amends.encoding.ids import made_at, number_of
from amends.ledger.operations import (
    Admission,
    AdmitCall,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    SettleCompensation,
    Settled,
    StoreOp,
)
from amends.ledger.plain import AdmitPlain, PlainTool, SettledPlain, SettlePlain, Started
from amends.ledger.rows import CallRow
from amends.stores.quick import (
    OPEN_ROOT,
    Undo,
    admission_body,
    answer_sql,
    answered,
    begun,
    compensation_body,
    is_plain,
    is_plain_beginning,
    is_plain_end,
    is_plain_question,
    key_of,
    more_of,
    question,
    success_body,
    undo_of,
    undone,
)
from amends.stores.sql import FOLD_WINDOW_S, POSTGRES, SKEW_S, Execute, Statements, Tail

Clock = Callable[[], float] | None

_NOW: Final = (
    "with m as materialized (select g.given, greatest(coalesce(g.given, extract(epoch from clock_timestamp())::float8),"
    " (select made_at from amends_mark where name = 'time')) as now from (select %s::float8 as given) g)"
)
WAIT_S: Final = 1.0
"""A statement that has waited for its run for longer undoes itself: its event would be so much older than it becomes
visible, and whoever follows the events may have passed that moment. The flow takes the time when it has the run."""
_IN_TIME: Final = (
    "1 / (case when m.given is null and extract(epoch from clock_timestamp())::float8 >"
    f" m.now + {WAIT_S} then 0 else 1 end)"
)
_AT: Final = "round(greatest(m.now, x.at) * 1e6::float8)"
_STEP: Final = (
    f", r as (update amends_run x set n = x.n + 1, at = {_AT} / 1e6::float8, head = sha256(convert_to("
    f"encode(x.head, 'hex') || ':' || (x.n + 1) || ':' || {_AT}::bigint || ':' || %s::text, 'UTF8'))"
    " from m where x.uid = %s and x.owner = %s and x.epoch = %s{} returning x.no, x.n, x.at, x.head)"
)
_OPEN: Final = " and ".join(f"x.{term}" for term in OPEN_ROOT.split(" and "))
_ADMIT: Final = (
    _NOW
    + _STEP.format(
        f" and {_OPEN} and greatest(m.now, x.at) between %s and %s and (select halt from amends_ledger) = %s"
        ' and not exists (select 1 from amends_call o where o.root = x.no and o."key" = %s)'
    )
    + ', c as (insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash,'
    " more) select %s::bigint, r.no, %s::bytea, 1, r.n, %s::bigint, 'started', 1, %s::bytea, %s::bytea, %s::text, r.at,"
    f" %s::bigint, r.head, %s::text from r) select r.n, r.at, {_IN_TIME} from r, m"
)
_SETTLE: Final = (
    _NOW
    + _STEP.format(
        " and greatest(m.now, x.at) <= %s and exists (select 1 from amends_call o where o.no = %s and o.root = x.no"
        " and o.state = 'started' and o.attempt = 1 and o.settled_n is null and o.more is not distinct from %s::text)"
    )
    + ", u as (update amends_call c set state = 'succeeded', result = %s::text, settled_n = r.n, settled_at = r.at,"
    " settled_hash = r.head{} from r where c.no = %s and c.root = r.no and c.state = 'started' and c.attempt = 1"
    " and c.settled_n is null and c.more is not distinct from %s::text returning 1)"
    f" select r.n, r.at, 1 / (select count(*) from u), {_IN_TIME} from r, m"
)
_SETTLE_SEALED: Final = _SETTLE.format(", more = %s::text")
"""The same with an encrypted result, whose digest is kept as well."""
_SETTLE_PLAIN: Final = _SETTLE.format("")
_BEGIN: Final = (
    _NOW
    + _STEP.format(
        " and x.state = 'rolling_back' and x.touch = %s and greatest(m.now, x.at) <= %s and exists (select 1 from amends_call o"
        " where o.no = %s and o.root = x.no and o.state = 'succeeded' and o.settled_n = %s and o.comp_at is null)"
    )
    + ", u as (update amends_call c set state = 'compensating', comp_n = r.n, comp_at = r.at, comp_epoch = %s::bigint,"
    " comp_hash = r.head from r where c.no = %s and c.root = r.no and c.state = 'succeeded' and c.comp_at is null"
    f" returning 1) select r.n, r.at, 1 / (select count(*) from u), {_IN_TIME} from r, m"
)
_END: Final = (
    _NOW
    + _STEP.format(
        " and x.touch = %s and greatest(m.now, x.at) <= %s and exists (select 1 from amends_call o where o.no = %s"
        " and o.root = x.no and o.state = 'compensating' and o.comp_hash is not null and o.undone_at is null)"
    )
    + ", u as (update amends_call c set state = 'compensated', undone_n = r.n, undone_at = r.at, undone_hash = r.head"
    " from r where c.no = %s and c.root = r.no and c.state = 'compensating' and c.undone_at is null returning 1)"
    f" select r.n, r.at, 1 / (select count(*) from u), {_IN_TIME} from r, m"
)
# One step of each of many runs. Whoever is missing in the answer was not done. A chain that has grown without its event
# divides by zero, as above, which undoes all of them. It waits for nobody: whoever has locked one run would stop all.
_TOGETHER: Final = (
    _NOW
    + ", j as materialized (select * from json_to_recordset(%s::json) as j(i bigint, uid text, owner text, epoch bigint,"
    ' body text, no bigint, lo float8, hi float8, "key" text, tool bigint, ident text, digest text, args text,'
    " result text, more text, was text))"
    ", l as materialized (select j.i as place, x.no as free from amends_run x join j on x.uid = j.uid"
    " for update of x skip locked)"
    f", r as (update amends_run x set n = x.n + 1, at = {_AT} / 1e6::float8, head = sha256(convert_to("
    f"encode(x.head, 'hex') || ':' || (x.n + 1) || ':' || {_AT}::bigint || ':' || j.body, 'UTF8'))"
    " from m, j, l where l.place = j.i and x.no = l.free and x.owner = j.owner and x.epoch = j.epoch"
    " and greatest(m.now, x.at) <= j.hi"
    f" and case when j.tool is null then exists (select 1 from amends_call o where o.no = j.no and o.root = x.no"
    " and o.state = 'started' and o.attempt = 1 and o.settled_n is null and o.more is not distinct from j.was)"
    f" else {_OPEN} and greatest(m.now, x.at) >= j.lo and (select halt from amends_ledger) = %s and not exists (select 1"
    ' from amends_call o where o.root = x.no and o."key" = decode(j."key", \'hex\')) end'
    ' returning x.no, x.n, x.at, x.head, j.i, j.no as call, j.epoch, j."key", j.tool, j.ident, j.digest, j.args, j.result,'
    " j.more, j.was)"  # all of j, since the planner would compare each row of r with each of j
    ', c as (insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash,'
    " more) select r.call, r.no, decode(r.\"key\", 'hex'), 1, r.n, r.tool, 'started', 1, decode(r.ident, 'hex'),"
    " decode(r.digest, 'hex'), r.args, r.at, r.epoch, r.head, r.more from r where r.tool is not null)"
    ", u as (update amends_call c set state = 'succeeded', result = r.result, settled_n = r.n, settled_at = r.at,"
    " settled_hash = r.head, more = coalesce(r.more, c.more) from r where r.tool is null"
    " and c.no = r.call and c.root = r.no and c.state = 'started' and c.attempt = 1 and c.settled_n is null"
    " and c.more is not distinct from r.was returning 1)"
    " select r.i, r.n, r.at, 1 / (case when (select count(*) from u) = (select count(*) from r where r.tool is null)"
    " then 1 else 0 end) from r"
)
_TOOL: Final = (
    "select no from amends_tool where name = %s and version = %s and kind = %s and scope = 'run' and declared = %s"
    " and undoable = %s and at_commit = 0"
)
_ANSWER: Final = answer_sql(Statements(POSTGRES))


class Plain:
    """The plain statements of one store, and the numbers of the tools that it has seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tools: dict[PlainTool, int] = {}
        self.halt = 0
        self._undo: dict[str, Undo] = {}
        """By root: the calls that are left to compensate."""

    def remember(self, op: StoreOp[Any], answer: Any, tails: Mapping[str, Tail]) -> None:
        """Remember the order of a rollback that a flow has begun; if its commit fails, the run has another ``touch``."""
        if isinstance(op, BeginRollback):
            tail = tails.get(answer.run.root)
            undo = None if tail is None else undo_of(answer, tail.touch + int(tail.is_longer))
            if undo is not None:
                if len(self._undo) >= UNDO_MAX:
                    self._undo.clear()
                self._undo[answer.run.root] = undo
        elif isinstance(op, CloseRun):
            self._undo.pop(answer.root, None)

    def _now(self) -> float | None:
        return None if self._clock is None else self._clock()

    async def answer(self, op: AdmitCall) -> Admission | None:
        """Return the answer that is already in the record; None: the flow decides."""
        if not is_plain_question(op):
            return None
        found, _, _ = await Execute(_ANSWER, question(op))
        return answered(op, found)

    async def admit(self, op: AdmitPlain) -> Started | None:
        """Start the call; return None if nothing was changed and the flow must decide."""
        if not is_plain(op):
            return None
        run, number = op.run, self.tools.get(op.tool)
        if number is None:
            tool = op.tool
            found, _, _ = await Execute(_TOOL, (tool.name, tool.version, tool.kind, tool.declared, tool.undoable))
            if not found:
                return None
            number = self.tools[tool] = found[0][0]
        key, made = key_of(op), made_at(op.number)
        found = await _stepped(
            _ADMIT,
            (
                self._now(), admission_body(op), run.root, run.owner, run.epoch, made - SKEW_S, made + SKEW_S, self.halt,
                key, op.number, key, number, op.ident, op.digest, op.args, run.epoch, more_of(op),
            ),
        )  # fmt: skip
        return Started(op, found[0][0], found[0][1]) if found else None

    async def settle(self, op: SettlePlain) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        if op.repeated:
            return None
        started, first = op.started, op.started.op
        run = first.run
        was = more_of(first)  # another text: something was learned of the call meanwhile
        sealed = (more_of(first, op.proof),) if op.proof else ()
        found = await _stepped(
            _SETTLE_SEALED if op.proof else _SETTLE_PLAIN,
            (
                self._now(), success_body(op), run.root, run.owner, run.epoch, started.at + FOLD_WINDOW_S, first.number,
                was, op.result, *sealed, first.number, was,
            ),
        )  # fmt: skip
        return SettledPlain(started, found[0][0], found[0][1], op.result, proof=op.proof) if found else None

    async def begin(self, op: BeginCompensation) -> CallRow | None:
        """Begin the compensation; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        undo = None if seen is None else self._undo.get(seen.root)
        if seen is None or undo is None or not is_plain_beginning(op, undo):
            return None
        number = number_of(op.call_id)
        found = await _stepped(
            _BEGIN,
            (
                self._now(), compensation_body(op, "succeeded", "compensating"), seen.root, op.owner, op.epoch, undo.touch,
                seen.created_at + FOLD_WINDOW_S, number, seen.settled_seq, op.epoch, number,
            ),
        )  # fmt: skip
        if not found:
            self._undo.pop(seen.root, None)
            return None
        return begun(op, found[0][1], undo)

    async def end(self, op: SettleCompensation) -> Settled | None:
        """Settle the compensation; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        undo = None if seen is None else self._undo.get(seen.root)
        if seen is None or undo is None or not is_plain_end(op, undo):
            return None
        number = number_of(op.call_id)
        found = await _stepped(
            _END,
            (
                self._now(), compensation_body(op, "compensating", "compensated"), seen.root, op.owner, op.epoch,
                undo.touch, seen.created_at + FOLD_WINDOW_S, number, number,
            ),
        )  # fmt: skip
        if not found:
            self._undo.pop(seen.root, None)
            return None
        undo.going = ""
        undo.left.pop()
        return undone(op, found[0][1])

    async def together(self, ops: Sequence[AdmitPlain | SettlePlain]) -> list[Started | SettledPlain | None]:
        """Carry out steps of several runs by one statement; None for each that was not done: its caller does it alone."""
        asked = [self._asked(place, op) for place, op in enumerate(ops)]
        text = json.dumps([one for one in asked if one is not None], ensure_ascii=False)
        found = await _stepped(_TOGETHER, (self._now(), text, self.halt))
        answers: list[Started | SettledPlain | None] = [None] * len(ops)
        for place, n, at, *_ in found:
            op = ops[place]
            answers[place] = (
                Started(op, n, at)
                if isinstance(op, AdmitPlain)
                else SettledPlain(op.started, n, at, op.result, proof=op.proof)
            )
        return answers

    def _asked(self, place: int, op: AdmitPlain | SettlePlain) -> dict[str, Any] | None:
        """Return one step for the statement; None: it cannot be part of a batch."""
        if isinstance(op, SettlePlain):
            first = op.started.op
            run = first.run
            return {
                "i": place, "uid": run.root, "owner": run.owner, "epoch": run.epoch, "body": success_body(op),
                "no": first.number, "hi": op.started.at + FOLD_WINDOW_S, "result": op.result,
                "more": more_of(first, op.proof) if op.proof else None, "was": more_of(first),
            }  # fmt: skip
        tool, made, run = self.tools.get(op.tool), made_at(op.number), op.run
        if tool is None or not is_plain(op):
            return None
        return {
            "i": place, "uid": run.root, "owner": run.owner, "epoch": run.epoch, "body": admission_body(op),
            "no": op.number, "lo": made - SKEW_S, "hi": made + SKEW_S, "key": key_of(op).hex(), "tool": tool,
            "ident": op.ident.hex(), "digest": op.digest.hex(), "args": op.args, "more": more_of(op),
        }  # fmt: skip


async def _stepped(sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the answer of a statement that is its own transaction; nothing if it undid itself."""
    try:
        found, _, _ = await Execute(sql, params, prepare=True)
    except DivisionByZero:
        return []
    return found


UNDO_MAX: Final = 10_000

QUICK: Final[dict[type[StoreOp[Any]], Callable[[Plain, Any], Any]]] = {
    AdmitCall: Plain.answer,
    AdmitPlain: Plain.admit,
    SettlePlain: Plain.settle,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end,
}
