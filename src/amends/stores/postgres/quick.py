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

from amends.encoding.chain import GENESIS
from amends.encoding.ids import made_at, number_of
from amends.ledger.opening import new_run
from amends.ledger.operations import (
    Admission,
    AdmitCall,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    DecideCommit,
    Decision,
    Opened,
    OpenRun,
    Rollback,
    SettleCall,
    SettleCompensation,
    Settled,
    StoreOp,
    Tree,
)
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettledPlain, SettlePlain, Started
from amends.ledger.rows import RUN_COLUMNS, AddEvent, CallRow, RunRow
from amends.stores import calls as stored
from amends.stores.postgres.wakeup import CHANNEL
from amends.stores.quick import (
    ENDED,
    NOTHING_DROPPED,
    NOTHING_LEFT,
    NOTHING_UNSETTLED,
    OPEN_ROOT,
    PLAIN_ROOT,
    UNSHARED,
    Undo,
    admission_body,
    answer_sql,
    answered,
    begun,
    close_event,
    commit_events,
    compensation_body,
    failed,
    failed_row,
    failure_event,
    is_plain,
    is_plain_beginning,
    is_plain_close,
    is_plain_commit,
    is_plain_end,
    is_plain_failure,
    is_plain_question,
    is_plain_rollback,
    key_of,
    more_of,
    opening_event,
    question,
    rollback_events,
    rollback_goal,
    success_body,
    undo_of,
    undone,
)
from amends.stores.sql import EVENT_COLUMNS, FOLD_WINDOW_S, POSTGRES, RUN_VALUES, SKEW_S, Execute, Statements, Tail

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
_ELAPSED: Final = f"1 / (case when clock_timestamp() > statement_timestamp() + interval '{WAIT_S} s' then 0 else 1 end)"
"""The same for a step: its time is that of its beginning, which is the same wherever the statement asks for it."""
_STEP: Final = (
    f"with r as (update amends_run x set n = x.n + 1, at = {_AT} / 1e6::float8, head = sha256(convert_to("
    f"encode(x.head, 'hex') || ':' || (x.n + 1) || ':' || {_AT}::bigint || ':' || %s::text, 'UTF8'))"
    " from (select greatest(coalesce(%s::float8, extract(epoch from statement_timestamp())::float8), made_at) as now"
    " from amends_mark where name = 'time') m"
    " where x.uid = %s and x.owner = %s and x.epoch = %s{} returning x.no, x.n, x.at, x.head)"
)
_WRITTEN: Final = f" returning 1) select r.n, r.at, 1 / (select count(*) from u), {_ELAPSED} from r"
"""Ends a step that has changed its call; if it has not, the run must not have another event."""
_OPEN: Final = " and ".join(f"x.{term}" for term in OPEN_ROOT.split(" and "))
_ADMIT: Final = (
    _STEP.format(
        f" and {_OPEN} and greatest(m.now, x.at) between %s and %s and (select halt from amends_ledger) = %s"
        ' and not exists (select 1 from amends_call o where o.root = x.no and o."key" = %s)'
    )
    + ' insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash, more)'
    " select %s::bigint, r.no, %s::bytea, 1, r.n, %s::bigint, 'started', 1, %s::bytea, %s::bytea, %s::text, r.at,"
    f" %s::bigint, r.head, %s::text from r returning n, at, {_ELAPSED}"
)
_SETTLE: Final = (
    _STEP.format(" and greatest(m.now, x.at) <= %s")
    + ", u as (update amends_call c set state = 'succeeded', result = %s::text, settled_n = r.n, settled_at = r.at,"
    " settled_hash = r.head{} from r where c.no = %s and c.root = r.no and c.state = 'started' and c.attempt = 1"
    f" and c.settled_n is null and c.more is not distinct from %s::text{_WRITTEN}"
)
_SETTLE_SEALED: Final = _SETTLE.format(", more = %s::text")
"""The same with an encrypted result, whose digest is kept as well."""
_SETTLE_PLAIN: Final = _SETTLE.format("")
_BEGIN: Final = (
    _STEP.format(" and x.state = 'rolling_back' and x.touch = %s and greatest(m.now, x.at) <= %s")
    + ", u as (update amends_call c set state = 'compensating', comp_n = r.n, comp_at = r.at, comp_epoch = %s::bigint,"
    " comp_hash = r.head from r where c.no = %s and c.root = r.no and c.state = 'succeeded' and c.settled_n = %s"
    f" and c.comp_at is null{_WRITTEN}"
)
_END: Final = (
    _STEP.format(" and x.touch = %s and greatest(m.now, x.at) <= %s")
    + ", u as (update amends_call c set state = 'compensated', undone_n = r.n, undone_at = r.at, undone_hash = r.head"
    " from r where c.no = %s and c.root = r.no and c.state = 'compensating' and c.comp_hash is not null"
    f" and c.undone_at is null{_WRITTEN}"
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

# ---- Runs, and what writes event rows
#
# Such a step reads the run as the statement began, computes its events from that, and changes the row only if nobody
# has continued the chain since: then the other tables are as they were, too. Whoever waited for the run changes nothing.

_EVENT_COLUMNS: Final = ", ".join(map(POSTGRES.name_of, EVENT_COLUMNS))
_TYPES: Final = {"int": "bigint", "float": "float8", "float | None": "float8"}
_LATER: Final = {"created_at": "h_at", "lease_until": "h_at + %s::float8", "wake_at": "h_at + %s::float8"}
"""The columns of a new run that depend on the time."""
_KNOWN: Final = (
    f"select x.no as h_no, x.n as h_n, x.touch as h_touch, x.head as h_0, {_AT} as h_us"
    " from amends_run x, m where x.uid = %s"
)
"""The run as the statement found it."""


def _events(count: int, of: str, call: str = "''") -> str:
    """Return the insert of the events of a step; ``of``: the row of its run."""
    values = ", ".join([f"({k}, %s::text, %s::text, %s::text, %s::text, {of}.h_{k})" for k in range(1, count + 1)])
    return (
        f", e as (insert into amends_event ({_EVENT_COLUMNS}) select {of}.uid, {of}.h_n + v.k, {of}.at, {of}.uid, {of}.id,"
        f" {of}.tenant, {call}, v.what, v.frm, v.to_state, %s::text, %s::bigint, v.facts, v.hash"
        f" from {of}, lateral (values {values}) v(k, what, frm, to_state, facts, hash))"
    )


def _hashes(first: str, count: int) -> str:
    """Return the hashes of the events of a step, each from the one before; ``first``: what it begins with."""
    text = f", h0 as materialized ({first})"
    for k in range(1, count + 1):
        said = f"encode(h_{k - 1}, 'hex') || ':' || (h_n + {k}) || ':' || h_us::bigint || ':' || %s::text"
        text += f", h{k} as materialized (select *, sha256(convert_to({said}, 'UTF8')) as h_{k} from h{k - 1})"
    return text


def _moving(count: int, sets: str, guard: str, *, columns: str = "", calls: str = "") -> str:
    """Return the statement that changes a run by so many events, and notifies those who wait for it."""
    own = ", ".join(f"x.{name}" for name in RUN_COLUMNS)
    hashes = ", ".join(f"h_{k}" for k in range(1, count + 1))
    return (
        _NOW
        + _hashes(_KNOWN, count)
        + f", r as (update amends_run x set {sets}, n = h_n + {count}, at = h_us / 1e6::float8, head = h_{count},"
        f" touch = x.touch + 1 from h{count} where x.no = h_no and x.n = h_n and x.touch = h_touch and x.owner = %s"
        f" and x.epoch = %s and {guard.replace('amends_run.', 'x.')}"
        f" returning {own}, x.no, x.touch, x.at, h_n, {hashes})"
        + _events(count, "r")
        + f" select {', '.join(f'r.{name}' for name in RUN_COLUMNS)}, r.touch, r.at, {_IN_TIME},"
        f" pg_notify({CHANNEL}, r.uid){columns} from m, r{calls}"
    )


_OPEN_RUN: Final = (
    _NOW
    + _hashes(f"select 0 as h_n, decode('{GENESIS}', 'hex') as h_0, round(m.now * 1e6::float8) as h_us from m", 1)
    + f", i as (insert into amends_run ({', '.join(RUN_COLUMNS)}, owners, n, head, at, touch, unsealed) select "
    + ", ".join(
        _LATER.get(name, f"%s::{_TYPES.get(str(RunRow.__dataclass_fields__[name].type), 'text')}")
        for name in RUN_COLUMNS
    )
    + ", %s::text, 1, h_1, h_at, 1, 1 from (select *, h_us / 1e6::float8 as h_at from h1) h where not exists"
    " (select 1 from amends_run where tenant = %s and id = %s) on conflict do nothing returning uid, id, tenant, at)"
    ", r as (select i.*, h_n, h_1 from i, h1)" + _events(1, "r") + f" select r.at, {_IN_TIME} from m, r"
)
_FAIL: Final = (
    _NOW
    + _hashes(_KNOWN, 1)
    + ", r as (update amends_run x set n = h_n + 1, at = h_us / 1e6::float8, head = h_1, touch = x.touch + 1 from h1"
    " where x.no = h_no and x.n = h_n and x.touch = h_touch and x.owner = %s and x.epoch = %s and exists (select 1"
    " from amends_call o where o.no = %s and o.root = x.no and o.state = 'started' and o.attempt = 1"
    " and o.settled_n is null and o.settled_at is null and o.result is null and o.more is not distinct from %s::text)"
    " returning x.no, x.uid, x.id, x.tenant, x.at, h_n, h_1)"
    ", u as (update amends_call c set state = 'failed', settled_at = r.at, more = %s::text from r where c.no = %s"
    " and c.root = r.no and c.state = 'started' and c.attempt = 1 and c.settled_n is null"
    " and c.more is not distinct from %s::text returning 1)"
    + _events(1, "r", "%s::text")
    + f" select r.at, 1 / (select count(*) from u), {_IN_TIME} from m, r"
)  # fmt: skip
_CALLS: Final = ", ".join(f"{one[:2]}{POSTGRES.name_of(one[2:])}" for one in stored.READ)
_TURN: Final = _moving(
    2,
    "state = 'rolling_back', goal = %s, goal_by = %s, goal_why = %s",
    f"{OPEN_ROOT} and {PLAIN_ROOT} and {UNSHARED} and {NOTHING_DROPPED}",
    columns=f", {_CALLS}",
    calls=" left join (amends_call c join amends_tool t on t.no = c.tool) on c.root = r.no order by c.n",
)
_CLOSE: Final = _moving(
    1,
    f"state = 'rolled_back', closed_at = h_us / 1e6::float8, {ENDED}",
    f"x.state = 'rolling_back' and {PLAIN_ROOT} and {NOTHING_LEFT}",
)
_COMMIT: Final = _moving(
    2,
    "state = 'committed', goal = 'commit', goal_by = 'self', output = coalesce(%s::text, output),"
    f" closed_at = h_us / 1e6::float8, {ENDED}",
    f"{OPEN_ROOT} and goal_why = '' and completion = '' and {PLAIN_ROOT} and {NOTHING_UNSETTLED}",
)
_WIDTH: Final = len(RUN_COLUMNS)


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
            if tail is not None:
                self._keep(answer, tail.touch + int(tail.is_longer))
        elif isinstance(op, CloseRun):
            self._undo.pop(answer.root, None)

    def _keep(self, answer: Rollback, touch: int) -> None:
        undo = undo_of(answer, touch)
        if undo is not None:
            if len(self._undo) >= UNDO_MAX:
                self._undo.clear()
            self._undo[answer.run.root] = undo

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
        tool = op.tool
        if tool not in self.tools:
            found, _, _ = await Execute(_TOOL, (tool.name, tool.version, tool.kind, tool.declared, tool.undoable))
            if not found:
                return None
            self.tools[tool] = found[0][0]
        started: Started | None = done(op, await _stepped(_ADMIT, self._admission(op, self.tools[tool])))
        return started

    def _admission(self, op: AdmitPlain, tool: int) -> tuple[Any, ...]:
        key, made, run = key_of(op), made_at(op.number), op.run
        return (
            admission_body(op), self._now(), run.root, run.owner, run.epoch, made - SKEW_S, made + SKEW_S, self.halt,
            key, op.number, key, tool, op.ident, op.digest, op.args, run.epoch, more_of(op),
        )  # fmt: skip

    def statement(self, op: AdmitPlain | SettlePlain) -> tuple[str, tuple[Any, ...]] | None:
        """Return the statement of a step and its values; None: it is not for one statement alone."""
        if isinstance(op, SettlePlain):
            return None if op.repeated else (_SETTLE_SEALED if op.proof else _SETTLE_PLAIN, self._settlement(op))
        tool = self.tools.get(op.tool)
        return None if tool is None or not is_plain(op) else (_ADMIT, self._admission(op, tool))

    async def settle(self, op: SettlePlain) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        if op.repeated:
            return None
        found = await _stepped(_SETTLE_SEALED if op.proof else _SETTLE_PLAIN, self._settlement(op))
        settled: SettledPlain | None = done(op, found)
        return settled

    def _settlement(self, op: SettlePlain) -> tuple[Any, ...]:
        started, first = op.started, op.started.op
        run = first.run
        was = more_of(first)  # another text: something was learned of the call meanwhile
        sealed = (more_of(first, op.proof),) if op.proof else ()
        return (
            success_body(op), self._now(), run.root, run.owner, run.epoch, started.at + FOLD_WINDOW_S, op.result, *sealed,
            first.number, was,
        )  # fmt: skip

    async def fail(self, op: SettleCall) -> Settled | None:
        """Settle a plain call as failed; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        if seen is None or not is_plain_failure(op, seen):
            return None
        root = stored.RootFacts(0, seen.root, seen.run_id, seen.tenant, seen.agent, seen.principal)
        learned, before, after = failed(op, seen, root)
        number, event = number_of(seen.id), failure_event(op, seen, 0.0)
        found = await _stepped(
            _FAIL,
            (
                self._now(), seen.root, event.body, op.owner, op.epoch, number, before, after, number, before, seen.id,
                op.owner, op.epoch, *_said(event),
            ),
        )  # fmt: skip
        return Settled(failed_row(seen, learned, found[0][0])) if found else None

    async def open(self, op: OpenRun) -> Opened | None:
        """Open a run that there was not; return None if nothing was changed and the flow must decide."""
        if op.deadline_s is not None or op.token:
            return None  # its first event proves it, and only the server knows the time; or it names a token
        row = new_run(op, 1, 0.0)
        event = opening_event(op, row, 0.0)
        values = [
            op.lease_s if name in ("lease_until", "wake_at") else value
            for name, value in zip(RUN_COLUMNS, RUN_VALUES(row), strict=True)
            if name != "created_at"
        ]
        found = await _stepped(
            _OPEN_RUN,
            (
                self._now(), event.body, *values, stored.written_owners({1: op.owner}), op.tenant, op.id, op.owner, 1,
                *_said(event),
            ),
        )  # fmt: skip
        return Opened("fresh", new_run(op, 1, found[0][0]), found[0][0]) if found else None

    async def turn(self, op: BeginRollback) -> Rollback | None:
        """Begin the rollback of a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_rollback(op):
            return None
        found = await self._moved(_TURN, op, op.plain, rollback_events(op, op.plain, 0.0), *rollback_goal(op).values())
        if not found:
            return None
        run, (touch, at) = RunRow(*found[0][:_WIDTH]), found[0][_WIDTH : _WIDTH + 2]
        calls = tuple([stored.join(values[_WIDTH + 4 :])[0] for values in found if values[_WIDTH + 4] is not None])
        answer = Rollback("rolling", run, Tree(run, (run,), calls, at))
        self._keep(answer, touch)
        return answer

    async def close(self, op: CloseRun) -> RunRow | None:
        """Close a plain run whose calls are compensated; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_close(op):
            return None
        found = await self._moved(_CLOSE, op, op.plain, (close_event(op, op.plain, 0.0),))
        if not found:
            return None
        self._undo.pop(op.run, None)
        return RunRow(*found[0][:_WIDTH])

    async def commit(self, op: DecideCommit) -> Decision | None:
        """Commit a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_commit(op):
            return None
        found = await self._moved(_COMMIT, op, op.plain, commit_events(op, op.plain, 0.0), op.output)
        return Decision("committed", RunRow(*found[0][:_WIDTH])) if found else None

    async def _moved(
        self,
        sql: str,
        op: BeginRollback | CloseRun | DecideCommit,
        run: PlainRun,
        events: Sequence[AddEvent],
        *sets: Any,
    ) -> list[tuple[Any, ...]]:
        bodies, said = [event.body for event in events], [one for event in events for one in _said(event)]
        by, epoch = events[0].by_whom, run.epoch
        return await _stepped(sql, (self._now(), run.root, *bodies, *sets, op.owner, op.epoch, by, epoch, *said))

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
                compensation_body(op, "succeeded", "compensating"), self._now(), seen.root, op.owner, op.epoch, undo.touch,
                seen.created_at + FOLD_WINDOW_S, op.epoch, number, seen.settled_seq,
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
                compensation_body(op, "compensating", "compensated"), self._now(), seen.root, op.owner, op.epoch,
                undo.touch, seen.created_at + FOLD_WINDOW_S, number,
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


def _said(event: AddEvent) -> tuple[str, str, str, str]:
    """Return the values of an event that its statement does not have already."""
    return event.what, event.frm, event.to_state, event.facts


async def _stepped(sql: str, params: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the answer of a statement that is its own transaction; nothing if it undid itself."""
    try:
        found, _, _ = await Execute(sql, params, prepare=True)
    except DivisionByZero:
        return []
    return found


def done(op: AdmitPlain | SettlePlain, found: Sequence[tuple[Any, ...]]) -> Any:
    """Return the answer of a step from the rows of its statement; None: nothing was changed and the flow must decide."""
    if not found:
        return None
    n, at = found[0][:2]
    return (
        Started(op, n, at) if isinstance(op, AdmitPlain) else SettledPlain(op.started, n, at, op.result, proof=op.proof)
    )


UNDO_MAX: Final = 10_000

QUICK: Final[dict[type[StoreOp[Any]], Callable[[Plain, Any], Any]]] = {
    AdmitCall: Plain.answer,
    AdmitPlain: Plain.admit,
    SettlePlain: Plain.settle,
    SettleCall: Plain.fail,
    OpenRun: Plain.open,
    BeginRollback: Plain.turn,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end,
    CloseRun: Plain.close,
    DecideCommit: Plain.commit,
}
