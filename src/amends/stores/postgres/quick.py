"""Plain statements on PostgreSQL: a step of a plain call is one statement, one round trip and its own transaction.

The owner of a run remembers the end of its chain (``Kept``), so that a step does not write the row of the run. It locks
the row, and is done only if the run still has this owner, this epoch and this ``touch``. Otherwise nothing is changed and
the flow decides. The server gives the time, and so it computes the hash.

Two processes must never believe that they know the end of the same chain. So what is remembered is made only by the
transaction that moved ``touch`` to its value, after its commit was confirmed; it has one user at a time; and it is dropped
when the outcome of a statement is not known. Then the flow does the next step and moves ``touch`` on, so that a statement
that is still on its way changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from hashlib import sha256
from itertools import chain, repeat
from operator import attrgetter
from struct import Struct
from typing import Any, Final

import psycopg
from psycopg.errors import DivisionByZero, UniqueViolation

from amends.encoding.canonical import quoted
from amends.encoding.chain import GENESIS, MICROS, body_of, storable
from amends.encoding.ids import RANDOM_BITS, number_of
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
from amends.ledger.plain import (
    AdmitPlain,
    Begun,
    FailedPlain,
    FailPlain,
    PlainRun,
    PlainTool,
    SettledPlain,
    SettlePlain,
    Started,
    TakenBack,
    TurnPlain,
    UndonePlain,
)
from amends.ledger.rows import RUN_COLUMNS, AddEvent, CallRow, RunRow
from amends.stores import calls as stored
from amends.stores.postgres.errors import fate_of
from amends.stores.postgres.wakeup import CHANNEL
from amends.stores.quick import (
    COMMON_COLUMNS,
    ENDED,
    NOTHING_DROPPED,
    NOTHING_LEFT,
    NOTHING_UNSETTLED,
    OPEN_ROOT,
    PLAIN_ROOT,
    UNSHARED,
    admission_body,
    answer_sql,
    answered,
    begun,
    close_event,
    commit_events,
    compensation_body,
    failed,
    failed_body,
    failed_row,
    fails_plainly,
    failure_body,
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
    more_of_failure,
    opening_event,
    question,
    rollback_events,
    rollback_goal,
    success_body,
    undo_of,
    undone,
)
from amends.stores.sql import (
    EVENT_COLUMNS,
    FOLD_WINDOW_S,
    POSTGRES,
    SKEW_S,
    Execute,
    Kept,
    Statements,
    Transaction,
)

Clock = Callable[[], float] | None

WAIT_S: Final = 1.0
"""A statement that has waited for its run for longer undoes itself: its event would be so much older than it becomes
visible, and whoever follows the events may have passed that moment. The flow takes the time when it has the run."""
_IS_LATE: Final = f"clock_timestamp() > statement_timestamp() + interval '{WAIT_S} s'"
_ELAPSED: Final = f"1 / (case when {_IS_LATE} then 0 else 1 end)"
_IN_TIME: Final = f"{{}} / (case when {_IS_LATE} then 0.0::float8 else 1.0 end)"
_NOW: Final = "coalesce(%s::float8, date_part('epoch', statement_timestamp()))"
_US: Final = f"round(greatest({_NOW}, %s::float8, (select made_at from amends_mark where name = 'time')) * 1e6::float8)"
"""The time of a step in microseconds: the later of the clock, the newest event of the run, and the ledger's mark."""
_AT: Final = "{}.us / 1e6::float8"
_HASH: Final = "sha256(convert_to(%s::text || {}.us::bigint || %s::text, 'UTF8'))"
"""The hash of an event; its values: what comes before the time (``Kept.before``) and after it."""
# ``root + 0``: a call is found by its number, never by the index of its root. The two cost the same as long as the table is
# small, and a plan is kept while it grows.
_OPEN: Final = " and ".join(f"x.{term}" for term in OPEN_ROOT.split(" and "))
_MINE: Final = "x.no = %s and x.owner = %s and x.epoch = %s and x.touch = %s"
_LOCKED: Final = f"(select x.no, {_US} as us from amends_run x where {_MINE}{{}} offset 0 for no key update) r"
"""``offset 0``: else PostgreSQL copies the time, and the read of its mark, into every condition that is about it."""
_INSERT: Final = (
    'insert into amends_call (no, root, "key", gen, n, tool, state,'
    " attempt, ident, digest, args, at, epoch, hash, more)"
)
_ADMIT: Final = (
    f"{_INSERT} select %s::bigint, r.no, %s::bytea, 1, %s::bigint, %s::bigint, 'started', 1, %s::bytea, %s::bytea,"
    f" %s::text, {_AT.format('r')}, %s::bigint, {_HASH.format('r')}, %s::text"
    f" from {_LOCKED.format(f' and {_OPEN} and (select halt from amends_ledger where no = 1) = %s')}"
    f" where r.us between %s::float8 and %s::float8{{}} returning {_IN_TIME.format('at')}"
)
_ADMIT_FIRST: Final = _ADMIT.format("")
"""In the first epoch of a run its process knows every key that it has asked for; if not, the index refuses the key."""
_ADMIT_AGAIN: Final = _ADMIT.format(
    ' and not exists (select 1 from amends_call o where o.root = r.no and o."key" = %s)'
)
_SETTLE: Final = (
    f"update amends_call c set state = 'succeeded', result = %s::text, settled_n = %s::bigint,"
    f" settled_at = {_AT.format('r')}, settled_hash = {_HASH.format('r')}{{}} from {_LOCKED.format('')}"
    " where c.no = %s and c.root + 0 = r.no and c.state = 'started' and c.attempt = 1 and c.settled_n is null"
    f" and c.more is not distinct from %s::text and r.us <= %s::float8 returning {_IN_TIME.format('c.settled_at')}"
)
_SETTLE_SEALED: Final = _SETTLE.format(", more = %s::text")
"""The same with an encrypted result, whose digest is kept as well."""
_SETTLE_PLAIN: Final = _SETTLE.format("")
_FAIL: Final = (
    "update amends_call c set state = 'failed', settled_n = %s::bigint,"
    f" settled_at = {_AT.format('r')}, settled_hash = {_HASH.format('r')}, more = %s::text from {_LOCKED.format('')}"
    " where c.no = %s and c.root + 0 = r.no and c.state = 'started' and c.attempt = 1 and c.settled_n is null"
    " and c.settled_at is null and c.result is null and c.more is not distinct from %s::text and r.us <= %s::float8"
    f" returning {_IN_TIME.format('c.settled_at')}"
)
_BEGUN: Final = "state = 'compensating', comp_n = %s::bigint, comp_at = {0}, comp_epoch = %s::bigint, comp_hash = {1}"
_CAN_BEGIN: Final = "c.state = 'succeeded' and c.settled_n = %s and c.comp_at is null"
_BACK: Final = " and x.state = 'rolling_back'"
_BEGIN: Final = (
    f"update amends_call c set {_BEGUN.format(_AT.format('r'), _HASH.format('r'))}"
    f" from {_LOCKED.format(_BACK)} where c.no = %s and c.root + 0 = r.no"
    f" and {_CAN_BEGIN} and r.us <= %s::float8 returning {_IN_TIME.format('c.comp_at')}"
)
_ENDED_CALL: Final = "state = 'compensated', undone_n = %s::bigint, undone_at = {0}, undone_hash = {1}"
_CAN_END: Final = "c.state = 'compensating' and c.comp_hash is not null and c.undone_at is null"
_END: Final = (
    f"update amends_call c set {_ENDED_CALL.format(_AT.format('r'), _HASH.format('r'))} from {_LOCKED.format('')}"
    f" where c.no = %s and c.root + 0 = r.no and {_CAN_END} and r.us <= %s::float8 returning {_IN_TIME.format('c.undone_at')}"
)
# Steps of many runs, each of another run. Whoever is missing in the answer was not done. It waits for nobody: whoever has
# locked one run would stop all. ``any`` and ``offset 0``: for each step its row is looked up; planned as a join while the
# table of calls is empty, the statement would read all of it for ever. tool: 0 for a settlement. The arrays are sent in
# binary: to read them as text, with keys and digests as hex, took the server a seventh of all its time for a batch.
_COLUMNS: Final = (
    ("run", "bigint"), ("epoch", "bigint"), ("touch", "bigint"), ("at", "float8"), ("no", "bigint"), ("n", "bigint"),
    ("tool", "bigint"), ("key", "bytea"), ("ident", "bytea"), ("digest", "bytea"), ("said", "text"), ("before", "text"),
    ("after", "text"), ("more", "text"), ("was", "text"),
)  # fmt: skip
SKEW_US: Final = int(SKEW_S * MICROS)
_MADE: Final = f"(l.no >> {RANDOM_BITS})"
"""The microseconds in which a call was made, from its number."""
_TOGETHER: Final = (
    f"with m as materialized (select {_NOW} as now, (select made_at from amends_mark where name = 'time') as mark)"
    f", l as materialized (select v.*, round(greatest(m.now, m.mark, v.at) * 1e6::float8) as us"
    f" from m, unnest({', '.join(f'%s::{kind}[]' for _, kind in _COLUMNS)}) as"
    f" v({', '.join(POSTGRES.name_of(name) for name, _ in _COLUMNS)}), lateral (select from amends_run x"  # run by run,
    f" where x.no = v.run and x.owner = %s and x.epoch = v.epoch and x.touch = v.touch"  # and not all runs of the ledger
    f" and (v.tool = 0 or {_OPEN} and (select halt from amends_ledger where no = 1) = %s) for no key update skip locked) x)"
    f", c as ({_INSERT} select l.no, l.run, l.\"key\", 1, l.n, l.tool, 'started', 1, l.ident, l.digest, l.said,"
    f" {_AT.format('l')}, l.epoch, sha256(convert_to(l.before || l.us::bigint || l.after, 'UTF8')), l.more from l"
    f" where l.tool > 0 and l.us between {_MADE} - {SKEW_US} and {_MADE} + {SKEW_US} and not exists"
    ' (select 1 from amends_call o where o.root = l.run and o."key" = l."key" offset 0) returning no, at)'
    f", u as (update amends_call c set state = 'succeeded', result = l.said, settled_n = l.n, settled_at = {_AT.format('l')},"
    " settled_hash = sha256(convert_to(l.before || l.us::bigint || l.after, 'UTF8')), more = coalesce(l.more, c.more)"
    f" from l where l.tool = 0 and l.us <= (c.at + {FOLD_WINDOW_S}) * 1e6::float8 and c.no = any (array[l.no])"
    " and c.root + 0 = l.run and c.state = 'started' and c.attempt = 1 and c.settled_n is null"
    " and c.more is not distinct from l.was returning c.no, c.settled_at)"
    " select no, at from c union all select no, settled_at from u"
)
_TOOL: Final = (
    "select no from amends_tool where name = %s and version = %s and kind = %s and scope = 'run' and declared = %s"
    " and undoable = %s and at_commit = 0"
)
_ANSWER: Final = answer_sql(Statements(POSTGRES))

# ---- Runs, and what writes event rows
#
# Such a statement writes the row of the run, and moves its ``touch`` on.

_EVENT_COLUMNS: Final = ", ".join(map(POSTGRES.name_of, EVENT_COLUMNS))
_TYPES: Final = {"int": "bigint", "float": "float8", "float | None": "float8"}
_OPENED: Final = attrgetter(
    *[name for name in RUN_COLUMNS if name not in COMMON_COLUMNS and name not in ("created_at", "deadline_at")]
)
_LATER: Final = {"created_at": "h_at", "lease_until": "h_at + %s::float8", "wake_at": "h_at + %s::float8"}
"""The columns of a new run that depend on the time."""


def _opened(name: str) -> str:
    """Return a column of a new run: what all new runs have in common is written out, which takes less than to send it."""
    if name in COMMON_COLUMNS or name == "deadline_at":
        return COMMON_COLUMNS.get(name, "null")
    return _LATER.get(name, f"%s::{_TYPES.get(str(RunRow.__dataclass_fields__[name].type), 'text')}")


def _hashes(count: int) -> str:
    """Return the time of a statement and the hashes of its events, each from the one before.

    Its values: those of ``_US``, then for each event what comes before the time, without the hash except in the first
    one, and what comes after it.
    """
    text = f"with h0 as materialized (select {_US} as us)"
    for k in range(1, count + 1):
        said = "" if k == 1 else f"encode(h_{k - 1}, 'hex') || "
        text += (
            f", h{k} as materialized (select *, sha256(convert_to({said}%s::text || us::bigint || %s::text, 'UTF8'))"
            f" as h_{k} from h{k - 1})"
        )
    return text


def _events(count: int, of: str) -> str:
    """Return the insert of the events of a step; ``of``: the row of its run, with the hashes."""
    values = ", ".join(
        [f"(%s::bigint, %s::text, %s::text, %s::text, %s::text, {of}.h_{k})" for k in range(1, count + 1)]
    )
    return (
        f", e as (insert into amends_event ({_EVENT_COLUMNS}) select {of}.uid, v.n, {of}.at, {of}.uid, {of}.id,"
        f" {of}.tenant, '', v.what, v.frm, v.to_state, %s::text, %s::bigint, v.facts, v.hash"
        f" from {of}, lateral (values {values}) v(n, what, frm, to_state, facts, hash))"
    )


def _looked_up(guard: str) -> str:
    """Return a condition whose subqueries are carried out for the one run; ``offset 0`` keeps the server from making joins of them.

    A join that is planned while the tables are small reads all runs, and goes on doing so.
    """
    first, *parts = guard.split("exists (")
    for part in parts:
        depth = 1
        for place, char in enumerate(part):
            depth += (char == "(") - (char == ")")
            if depth == 0:
                first += f"exists ({part[:place]} offset 0{part[place:]}"
                break
    return first


def _move(hashes: int, events: int, sets: str, guard: str, *, own: str = "") -> str:
    """Return the beginning of a statement that changes a run by so many events, which are the first of its hashes."""
    guard = _looked_up(guard.replace("amends_run.", "x."))
    names = ", ".join(f"h_{k}" for k in range(1, hashes + 1))
    return (
        _hashes(hashes)
        + f", r as (update amends_run x set {sets}, n = %s::bigint, at = us / 1e6::float8, head = h_{events},"
        f" touch = x.touch + 1 from h{hashes} where {_MINE} and {guard}"
        f" returning {own}x.no, x.uid, x.id, x.tenant, x.agent, x.principal, x.at, {names})"
    )


def _moving(count: int, sets: str, guard: str, *, columns: str = "", calls: str = "") -> str:
    """Return the statement that changes a run by so many events, and notifies those who wait for it."""
    own = "".join(f"x.{name} as own_{name}, " for name in RUN_COLUMNS)
    return (
        _move(count, count, sets, guard, own=own)
        + _events(count, "r")
        + f" select {', '.join(f'r.own_{name}' for name in RUN_COLUMNS)}, r.at, {_ELAPSED},"
        f" pg_notify({CHANNEL}, r.uid){columns} from r{calls}"
    )


_OPEN_RUN: Final = (
    _hashes(1)
    + f", r as (insert into amends_run ({', '.join(RUN_COLUMNS)}, owners, n, head, at, touch, unsealed) select "
    + ", ".join([_opened(name) for name in RUN_COLUMNS])
    + ", %s::text, 1, h_1, h_at, 1, 1 from (select *, us / 1e6::float8 as h_at from h1) h where not exists"
    " (select 1 from amends_run where tenant = %s and id = %s) on conflict do nothing"
    " returning no, uid, id, tenant, at, head as h_1)" + _events(1, "r") + f" select r.at, {_ELAPSED}, r.no from r"
)
_IN_ROWS: Final = {"c.": "(k.c).", "t.": "(k.t).", "r.": "r."}
_CALLS: Final = ", ".join(f"{_IN_ROWS[one[:2]]}{POSTGRES.name_of(one[2:])}" for one in stored.READ)
_TURN: Final = _moving(
    2,
    "state = 'rolling_back', goal = %s, goal_by = %s, goal_why = %s",
    f"{OPEN_ROOT} and {PLAIN_ROOT} and {UNSHARED} and {NOTHING_DROPPED}",
    columns=f", {_CALLS}",
    calls=" left join lateral (select c, t from amends_call c join amends_tool t on t.no = c.tool where c.root = r.no offset 0) k"
    " on true order by (k.c).n",
)
_CLOSED: Final = f"state = 'rolled_back', closed_at = us / 1e6::float8, {ENDED}"
_CLOSE: Final = _moving(1, _CLOSED, f"x.state = 'rolling_back' and {PLAIN_ROOT} and {NOTHING_LEFT}")
_COMMIT: Final = _moving(
    2,
    "state = 'committed', goal = 'commit', goal_by = 'self', output = coalesce(%s::text, output),"
    f" closed_at = us / 1e6::float8, {ENDED}",
    f"{OPEN_ROOT} and goal_why = '' and completion = '' and {PLAIN_ROOT} and {NOTHING_UNSETTLED}",
)
_WIDTH: Final = len(RUN_COLUMNS)

# ---- A whole rollback
#
# Nobody is notified of its beginning: nothing in the run is on its way, so that nobody waits for one of its calls.

_ONLY_THESE: Final = (
    "(select count(*) filter (where c.state <> 'succeeded' or t.kind <> 'read') from amends_call c join amends_tool t"
    " on t.no = c.tool where c.root = x.no and c.state not in ('failed', 'refused', 'dropped')) = %s"
    " and exists (select 1 from amends_call c where c.no = %s and c.root + 0 = x.no"
    f" and {_CAN_BEGIN})"
)
"""The condition that so many calls of the run have an effect, and nothing else in it is to be settled or taken back; and that
the last one of them is as it was settled."""
_TURN_PLAIN: Final = (
    _move(
        3,
        2,
        "state = 'rolling_back', goal = 'rollback', goal_by = 'self', goal_why = %s",
        f"us <= %s::float8 and {OPEN_ROOT} and {PLAIN_ROOT} and {UNSHARED} and {_ONLY_THESE}",
    )
    + f", u as (update amends_call c set {_BEGUN.format('r.at', 'r.h_3')} from r where c.no = %s returning 1)"
    + _events(2, "r")
    + f" select r.at, 1 / (select count(*) from u), {_ELAPSED} from r"
)
_NEXT: Final = (
    _hashes(2)
    + f", r as materialized (select x.no, h_1, h_2, us from amends_run x, h2 where {_MINE} and x.state = 'rolling_back'"
    " and us <= %s::float8 for no key update of x)"
    f", a as (update amends_call c set {_ENDED_CALL.format(_AT.format('r'), 'r.h_1')} from r where c.no = %s"
    f" and c.root + 0 = r.no and {_CAN_END} returning 1)"
    f", b as (update amends_call c set {_BEGUN.format(_AT.format('r'), 'r.h_2')} from r where c.no = %s"
    f" and c.root + 0 = r.no and {_CAN_BEGIN} returning 1)"
    f" select {_AT.format('r')}, 1 / (select count(*) from a), 1 / (select count(*) from b), {_ELAPSED} from r"
)
_LAST: Final = (
    _move(
        2,
        2,
        _CLOSED,
        "x.state = 'rolling_back' and us <= %s::float8",
    )
    + f", a as (update amends_call c set {_ENDED_CALL.format('r.at', 'r.h_1')} from r where c.no = %s"
    f" and c.root + 0 = r.no and {_CAN_END} returning 1)"
    + _events(1, "r").replace("r.h_1)", "r.h_2)")
    + f" select r.at, 1 / (select count(*) from a), {_ELAPSED}, pg_notify({CHANNEL}, r.uid) from r"
)
"""With the same ``touch`` nobody has changed anything since ``_TURN_PLAIN``: it does not look at the other calls."""
_FIRST_ATTEMPT: Final = stored.attempt_facts(1)
_int8: Final = Struct("!q").pack
_float8: Final = Struct("!d").pack
_of_float8: Final = Struct("!d").unpack
"""How PostgreSQL writes a bigint and a double precision in binary; text and bytea are the bytes themselves."""
_HEAD: Final = Struct("!5i").pack
_size: Final = Struct("!i").pack
_NULL: Final = _size(-1)
_OIDS: Final = {"bigint": 20, "float8": 701, "bytea": 17, "text": 25}


class Plain:
    """The plain statements of one store, the numbers of the tools that it has seen, and the ends of its chains."""

    def __init__(self, clock: Clock, lost: Callable[[], object] = lambda: None) -> None:
        self._clock, self._lost = clock, lost
        self.tools: dict[PlainTool, int] = {}
        self.halt = 0
        self._kept: dict[str, Kept] = {}
        """By root."""

    # ---- What is remembered

    def get(self, root: str) -> Kept | None:
        """Return the end of a chain for a flow that has locked the run, if no step of it is on its way."""
        kept = self._kept.get(root)
        return None if kept is None or kept.use.locked() else kept

    def remember(self, op: StoreOp[Any], answer: Any, tx: Transaction) -> None:
        """Remember the ends of the chains that a flow has continued, after its commit."""
        for root, tail in tx.tails.items():
            if not tail.is_longer or tail.no <= 0:
                continue
            run, known = tx.runs.get(root), self._kept.get(root)
            owner, epoch = (tail.owner, tail.epoch) if run is None else (run.owner, run.epoch)
            if not owner:
                self._forget(root)
            elif known is not None or _owner_of(op) == owner:
                kept = Kept(tail.no, tail.n, tail.head, tail.at, tail.touch + 1, owner, epoch)
                if isinstance(op, BeginRollback | TurnPlain):
                    kept.undo = undo_of(answer, kept.touch)
                self._keep(root, kept)

    def forget_all(self) -> None:
        """Forget the ends of all chains: after a lost connection, for the server may have been restored from a backup."""
        self._lost()
        kept, self._kept = self._kept, {}
        for one in kept.values():
            one.forget()

    def _forget(self, root: str) -> None:
        kept = self._kept.pop(root, None)
        if kept is not None:
            kept.forget()

    def _keep(self, root: str, kept: Kept) -> None:
        """Remember a new end instead of the one before, which a step on its way may still change: that one is dead."""
        old = self._kept.get(root)
        if old is not None:
            if old.touch > kept.touch:
                return
            old.forget()
        elif len(self._kept) >= KEPT_MAX:
            self.forget_all()
        self._kept[root] = kept

    def _take(self, run: PlainRun) -> Kept | None:
        """Return the end of the chain of this run for one step; None: it is not known, or another step has it."""
        kept: Kept | None = run.kept
        if kept is None or kept.touch < 0:
            kept = run.kept = self._of_root(run.root, run.owner, run.epoch)
            run.takes_back = run.fails = True
        return kept if kept is not None and kept.use.acquire(False) else None

    def _of_root(self, root: str, owner: str, epoch: int) -> Kept | None:
        kept = self._kept.get(root)
        is_ours = kept is not None and kept.touch >= 0 and kept.owner == owner and kept.epoch == epoch
        return kept if is_ours else None

    def _take_of(self, root: str, owner: str, epoch: int) -> Kept | None:
        """Do the same by the root."""
        kept = self._of_root(root, owner, epoch)
        return kept if kept is not None and kept.use.acquire(False) else None

    def _now(self) -> float | None:
        return None if self._clock is None else self._clock()

    async def _stepped(self, kept: Kept, sql: str, params: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return the answer of a statement that is its own transaction; nothing, and the chain is let go, if not done."""
        try:
            found, _, _ = await Execute(sql, params, prepare=True)
        except UNDONE:
            found = []
        except BaseException as error:
            let_go(kept, is_known=is_certain(error))
            raise
        if not found:
            kept.use.release()
        return found

    # ---- Plain calls

    async def answer(self, op: AdmitCall) -> Admission | None:
        """Return the answer that is already in the record; None: the flow decides."""
        if not is_plain_question(op):
            return None
        found, _, _ = await Execute(_ANSWER, question(op))
        return answered(op, found)

    async def admit(self, op: AdmitPlain) -> Started | None:
        """Start the call; return None if nothing was changed and the flow must decide."""
        tool = op.tool
        if tool not in self.tools and is_plain(op):
            found, _, _ = await Execute(_TOOL, (tool.name, tool.version, tool.kind, tool.declared, tool.undoable))
            if not found:
                return None
            self.tools[tool] = found[0][0]
        started: Started | None = await self._alone(op)
        return started

    async def settle(self, op: SettlePlain) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        settled: SettledPlain | None = await self._alone(op)
        return settled

    async def _alone(self, op: AdmitPlain | SettlePlain) -> Any:
        step = self.advance(op)
        if step is None:
            return None
        found = await self._stepped(step.kept, step.sql, Written(self.values(step)))
        return self.done(step, found[0][0]) if found else None

    def answered(self, step: Advance, at: bytes | None) -> Started | SettledPlain | None:
        """Return the answer of a step whose statement was carried out, and let go of the chain; None: it was not done."""
        if at is not None:
            return self.done(step, _of_float8(at)[0])
        step.kept.use.release()
        return None

    def advance(self, op: AdmitPlain | SettlePlain) -> Advance | None:
        """Return the statement of a step, for which the chain is taken; None: the flow decides.

        Whoever has it calls ``done`` or ``let_go``.
        """
        return self._settlement(op) if type(op) is SettlePlain else self._admission(op)  # type: ignore[arg-type]

    def _admission(self, op: AdmitPlain) -> Advance | None:
        run = op.run
        tool = self.tools.get(op.tool)
        kept = self._take(run) if tool is not None and is_plain(op) else None
        return (
            None
            if kept is None
            else Advance(op, kept, admission_body(op), _ADMIT_FIRST if run.epoch == 1 else _ADMIT_AGAIN)
        )

    def _settlement(self, op: SettlePlain) -> Advance | None:
        kept = None if op.repeated else self._take(op.started.op.run)
        return (
            None if kept is None else Advance(op, kept, success_body(op), _SETTLE_SEALED if op.proof else _SETTLE_PLAIN)
        )

    def values(self, step: Advance) -> list[bytes | None]:
        """Return the values of the statement of a step, as they are sent."""
        op, kept = step.op, step.kept
        now = None if self._clock is None else _float8(self._clock())
        n = kept.n + 1
        mine = kept.mine
        if mine is None:
            mine = kept.mine = (_int8(kept.no), kept.owner.encode(), _int8(kept.epoch), _int8(kept.touch))
        no, owner, epoch, touch = mine
        before, after = f"{kept.head}:{n}:".encode(), b":" + step.body.encode()
        if type(op) is AdmitPlain:
            made, key, number = op.number >> RANDOM_BITS, key_of(op), _int8(op.number)
            values = [
                number, key, _int8(n), _int8(self.tools[op.tool]), op.ident, op.digest, _text(op.args), epoch, before, after,
                _text(more_of(op)), now, _float8(kept.at), no, owner, epoch, touch, _int8(self.halt), _float8(made - SKEW_US),
                _float8(made + SKEW_US),
            ]  # fmt: skip
            if step.sql is _ADMIT_AGAIN:
                values.append(key)
            return values
        started, first = op.started, op.started.op  # type: ignore[union-attr]
        hi = _float8((started.at + FOLD_WINDOW_S) * MICROS)
        head: list[bytes | None] = [_text(op.result), _int8(n), before, after]  # type: ignore[union-attr]
        if op.proof:
            head.append(_text(more_of(first, op.proof)))
        return [*head, now, _float8(kept.at), no, owner, epoch, touch, _int8(first.number), _text(more_of(first)), hi]

    def done(self, step: Advance, at: float) -> Started | SettledPlain:
        """Return the answer of a step that was done, and let go of the chain."""
        op, kept = step.op, step.kept
        n = kept.n + 1
        go_on(kept, step.body, at)
        if type(op) is AdmitPlain:
            return Started(op, n, at)
        return SettledPlain(op.started, n, at, op.result, proof=op.proof)  # type: ignore[union-attr]

    def together(self, ops: Sequence[AdmitPlain | SettlePlain]) -> Together | None:
        """Return the statement of several steps, for which their chains are taken; None: none of them can be done."""
        owner, tools, take = "", self.tools, self._take
        taken: dict[int, tuple[int, AdmitPlain | SettlePlain, Kept, str]] = {}
        rows: list[tuple[Any, ...]] = []
        for place, op in enumerate(ops):
            if type(op) is AdmitPlain:
                first = op
                kept = take(op.run) if op.tool in tools and is_plain(op) else None
            else:
                first = op.started.op  # type: ignore[union-attr]
                kept = None if op.repeated else take(first.run)
            if kept is None:
                continue
            if not owner:
                owner = kept.owner
            elif kept.owner != owner:
                kept.use.release()
                continue
            body, row = self._admitting(op, kept) if first is op else self._settling(op, kept)  # type: ignore[arg-type]
            taken[first.number] = place, op, kept, body
            rows.append(row)
        if not rows:
            return None
        arrays = [write(column) for write, column in zip(_ARRAYS, zip(*rows, strict=True), strict=True)]
        now = self._now()
        values = [None if now is None else _float8(now), *arrays, owner.encode(), _int8(self.halt)]
        return Together(taken, len(ops), values)

    def _admitting(self, op: AdmitPlain, kept: Kept) -> tuple[str, tuple[Any, ...]]:
        """Return the body of the hash of an admission, and what a batch has to know of it, as elements of arrays."""
        body, n, epoch = op.run.admission_body(op), kept.n + 1, kept.epoch
        more = _text(more_of(op)) if op.call_ref or op.proof else None
        return body, (
            kept.no, epoch, kept.touch, kept.at, op.number, n, self.tools[op.tool], key_of(op), op.ident, op.digest,
            _text(op.args), f"{kept.head}:{n}:".encode(), f":{body}".encode(), more, None,
        )  # fmt: skip

    def _settling(self, op: SettlePlain, kept: Kept) -> tuple[str, tuple[Any, ...]]:
        """Return the same of a settlement."""
        first = op.started.op
        body, n = first.run.success_body(op), kept.n + 1
        was = _text(more_of(first)) if first.call_ref or first.proof else None
        more = _text(more_of(first, op.proof)) if op.proof else None
        return body, (
            kept.no, kept.epoch, kept.touch, kept.at, first.number, n, 0, None, None, None, _text(op.result),
            f"{kept.head}:{n}:".encode(), f":{body}".encode(), more, was,
        )  # fmt: skip

    def all_done(self, together: Together, found: Sequence[tuple[Any, ...]]) -> list[Started | SettledPlain | None]:
        """Return the answers of a batch; None for each that was not done: its caller does it alone."""
        answers: list[Started | SettledPlain | None] = [None] * together.count
        taken = together.taken
        for number, at in found:
            place, op, kept, body = taken.pop(number)
            n = kept.n + 1
            go_on(kept, body, at)
            if type(op) is AdmitPlain:
                answers[place] = Started(op, n, at)
            else:
                answers[place] = SettledPlain(op.started, n, at, op.result, proof=op.proof)  # type: ignore[union-attr]
        if taken:
            together.let_go(is_known=True)
        return answers

    async def fail(self, op: SettleCall) -> Settled | None:
        """Settle a plain call as failed; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        if seen is None or not is_plain_failure(op, seen):
            return None
        kept = self._take_of(seen.root, op.owner, op.epoch)
        if kept is None:
            return None
        root = stored.RootFacts(0, seen.root, seen.run_id, seen.tenant, seen.agent, seen.principal)
        learned, before, after = failed(op, seen, root)
        at = await self._fail(kept, failed_body(op, seen), seen.created_at, number_of(seen.id), after, before)
        return None if at is None else Settled(failed_row(seen, learned, at))

    async def fail_plainly(self, op: FailPlain) -> FailedPlain | None:
        """Do what ``fail`` does for a call that this process has started, without rows."""
        started = op.started
        first = started.op
        kept = self._take(first.run) if fails_plainly(op) else None
        if kept is None:
            return None
        at = await self._fail(kept, failure_body(op), started.at, first.number, more_of_failure(op), more_of(first))
        return None if at is None else FailedPlain(op, at)

    async def _fail(
        self, kept: Kept, body: str, since: float, number: int | None, more: str | None, was: str | None
    ) -> float | None:
        """Settle a call as failed, for which the chain is taken; return when. None: nothing was changed.

        ``body``: of its event. ``since``: when the call was admitted. ``more``, ``was``: what its hot columns do not say,
        after and before.
        """
        n, hi = kept.n + 1, (since + FOLD_WINDOW_S) * MICROS
        found = await self._stepped(
            kept,
            _FAIL,
            (
                n, f"{kept.head}:{n}:", f":{body}", more, self._now(), kept.at, *_mine(kept), number, was, hi,
            ),
        )  # fmt: skip
        if not found:
            return None
        at: float = found[0][0]
        go_on(kept, body, at)
        return at

    # ---- Plain runs

    async def open(self, op: OpenRun) -> Opened | None:
        """Open a run that there was not; return None if nothing was changed and the flow must decide."""
        if op.deadline_s is not None or op.token:
            return None  # its first event proves it, and only the server knows the time; or it names a token
        row = new_run(op, 1, 0.0)
        event = opening_event(op, row, 0.0)
        values = _OPENED(row)  # ``lease_until`` and ``wake_at`` as if it were opened at 0: the server adds the time
        kept = Kept(0, 0, GENESIS, 0.0, 0, op.owner, 1)
        kept.use.acquire()
        found = await self._stepped(
            kept,
            _OPEN_RUN,
            (
                *self._linked(kept, [event.body]), *values, stored.written_owners({1: op.owner}), op.tenant, op.id, op.owner,
                1, 1, *_said(event),
            ),
        )  # fmt: skip
        if not found:
            return None
        at, _, kept.no = found[0]
        self._keep(op.uid, kept)
        self._moved_on(kept, [event.body], at)
        return Opened("fresh", new_run(op, 1, at), at)

    async def turn(self, op: BeginRollback) -> Rollback | None:
        """Begin the rollback of a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_rollback(op):
            return None
        moved = await self._moved(_TURN, op, op.plain, rollback_events(op, op.plain, 0.0), *rollback_goal(op).values())
        if moved is None:
            return None
        kept, found = moved
        run, at = RunRow(*found[0][:_WIDTH]), found[0][_WIDTH]
        calls = tuple([stored.join(values[_WIDTH + 3 :])[0] for values in found if values[_WIDTH + 3] is not None])
        answer = Rollback("rolling", run, Tree(run, (run,), calls, at))
        kept.undo = undo_of(answer, kept.touch)
        kept.use.release()
        return answer

    async def close(self, op: CloseRun) -> RunRow | None:
        """Close a plain run whose calls are compensated; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_close(op):
            return None
        moved = await self._moved(_CLOSE, op, op.plain, (close_event(op, op.plain, 0.0),))
        if moved is None:
            return None
        self._forget(op.run)
        return RunRow(*moved[1][0][:_WIDTH])

    async def commit(self, op: DecideCommit) -> Decision | None:
        """Commit a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_commit(op):
            return None
        moved = await self._moved(_COMMIT, op, op.plain, commit_events(op, op.plain, 0.0), op.output)
        if moved is None:
            return None
        self._forget(op.plain.root)
        return Decision("committed", RunRow(*moved[1][0][:_WIDTH]))

    async def _moved(
        self,
        sql: str,
        op: BeginRollback | CloseRun | DecideCommit,
        run: PlainRun,
        events: Sequence[AddEvent],
        *sets: Any,
    ) -> tuple[Kept, list[tuple[Any, ...]]] | None:
        """Change the row of the run and write the events; the chain is still taken then."""
        kept = self._take(run) if (op.owner, op.epoch) == (run.owner, run.epoch) else None
        if kept is None:
            return None
        bodies = [event.body for event in events]
        said = [one for n, event in enumerate(events, kept.n + 1) for one in (n, *_said(event))]
        last = kept.n + len(events)
        values = (*self._linked(kept, bodies), *sets, last, *_mine(kept), events[0].by_whom, run.epoch, *said)
        found = await self._stepped(kept, sql, values)
        if not found:
            return None
        self._linked_on(kept, bodies, found[0][_WIDTH])
        _touched(kept)
        return kept, found

    def _linked(self, kept: Kept, bodies: Sequence[str]) -> tuple[Any, ...]:
        """Return the values of ``_hashes``."""
        n = kept.n
        texts = [f"{kept.head}:{n + 1}:", f":{bodies[0]}"]
        for k, body in enumerate(bodies[1:], 2):
            texts += [f":{n + k}:", f":{body}"]
        return self._now(), kept.at, *texts

    def _linked_on(self, kept: Kept, bodies: Sequence[str], at: float) -> None:
        micros = round(at * MICROS)
        for body in bodies:
            kept.n += 1
            kept.head = sha256(f"{kept.head}:{kept.n}:{micros}:{body}".encode("ascii")).hexdigest()
        kept.at, kept.undo, kept.left = at, None, None

    def _moved_on(self, kept: Kept, bodies: Sequence[str], at: float) -> None:
        """Remember the end of the chain after a statement that has moved ``touch`` on, and let go of it."""
        self._linked_on(kept, bodies, at)
        _touched(kept)
        kept.use.release()

    # ---- Plain compensations

    async def begin(self, op: BeginCompensation) -> CallRow | None:
        """Begin the compensation; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        kept = None if seen is None else self._take_undo(seen.root, op.owner, op.epoch)
        if seen is None or kept is None:
            return None
        if not is_plain_beginning(op, kept.undo):
            kept.use.release()
            return None
        body, n, number = compensation_body(op, "succeeded", "compensating"), kept.n + 1, number_of(op.call_id)
        found = await self._stepped(
            kept,
            _BEGIN,
            (
                n, op.epoch, f"{kept.head}:{n}:", f":{body}", self._now(), kept.at, *_mine(kept), number, seen.settled_seq,
                (seen.created_at + FOLD_WINDOW_S) * MICROS,
            ),
        )  # fmt: skip
        if not found:
            return None
        at = found[0][0]
        row = begun(op, at, kept.undo)
        go_on(kept, body, at)
        return row

    async def end(self, op: SettleCompensation) -> Settled | None:
        """Settle the compensation; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        kept = None if seen is None else self._take_undo(seen.root, op.owner, op.epoch)
        if seen is None or kept is None:
            return None
        undo = kept.undo
        if not is_plain_end(op, undo):
            kept.use.release()
            return None
        body, n, number = compensation_body(op, "compensating", "compensated"), kept.n + 1, number_of(op.call_id)
        found = await self._stepped(
            kept,
            _END,
            (
                n, f"{kept.head}:{n}:", f":{body}", self._now(), kept.at, *_mine(kept), number,
                (seen.created_at + FOLD_WINDOW_S) * MICROS,
            ),
        )  # fmt: skip
        if not found:
            return None
        undo.going = ""
        undo.left.pop()
        go_on(kept, body, found[0][0])
        return undone(op, found[0][0])

    def _take_undo(self, root: str, owner: str, epoch: int) -> Kept | None:
        kept = self._take_of(root, owner, epoch)
        if kept is None or (kept.undo is not None and kept.undo.touch == kept.touch):
            return kept
        kept.use.release()
        return None

    # ---- A whole rollback

    async def turn_back(self, op: TurnPlain) -> Begun | None:
        """Begin the rollback and its first compensation; return None if nothing was changed and the flow must decide."""
        run, last = op.run, op.left[-1]
        kept = None if op.repeated or op.token or not op.why else self._take(run)
        if kept is None:
            return None
        first, why, by, epoch = last.started, quoted(op.why), op.by, run.epoch
        number, hi = first.op.number, (first.at + FOLD_WINDOW_S) * MICROS
        aim = f'"goal": "rollback", "goal_by": "self", "goal_why": {why}}}'
        goal, turn = f'{{"why": {why}, {aim}', f"{{{aim}"
        bodies = (
            _run_body(run, "goal", "", "rollback", by, goal),
            _run_body(run, "run", "open", "rolling_back", by, turn),
            run.body(number, "succeeded", "compensating", _FIRST_ATTEMPT),
        )
        n = kept.n
        found = await self._stepped(
            kept,
            _TURN_PLAIN,
            (
                *self._linked(kept, bodies), op.why, n + 2, *_mine(kept), hi, len(op.left), number, last.n, n + 3, epoch,
                number, by, epoch, n + 1, "goal", "", "rollback", goal, n + 2, "run", "open", "rolling_back", turn,
            ),
        )  # fmt: skip
        if not found:
            return None
        at = found[0][0]
        self._linked_on(kept, bodies, at)
        _touched(kept)
        kept.left = kept.touch, [one.started.op.number for one in op.left]
        kept.use.release()
        return Begun(last, at)

    async def undone(self, op: UndonePlain) -> Begun | TakenBack | None:
        """Settle a compensation of such a rollback, and begin the next one or close the run.

        Return None if nothing was changed and the flow must decide.
        """
        started = op.begun.settled.started
        run, number, then = started.op.run, started.op.number, op.then
        kept = None if op.repeated or op.token else self._take(run)
        if kept is None:
            return None
        left = None if kept.left is None or kept.left[0] != kept.touch else kept.left[1]
        following = None if then is None else then.started.op.number
        if not left or left[-1] != number or (left[-2] if len(left) > 1 else None) != following:
            kept.use.release()
            return None
        body, n = run.body(number, "compensating", "compensated", _FIRST_ATTEMPT), kept.n
        hi = (min(started.at, started.at if then is None else then.started.at) + FOLD_WINDOW_S) * MICROS
        if then is None:
            bodies = (body, _run_body(run, "run", "rolling_back", "rolled_back", run.owner, "{}"))
            values: tuple[Any, ...] = (
                n + 2, *_mine(kept), hi, n + 1, number, run.owner, run.epoch, n + 2, "run", "rolling_back",
                "rolled_back", "{}",
            )  # fmt: skip
        else:
            bodies = (body, run.body(following or 0, "succeeded", "compensating", _FIRST_ATTEMPT))
            values = (*_mine(kept), hi, n + 1, number, n + 2, run.epoch, following, then.n)
        found = await self._stepped(kept, _LAST if then is None else _NEXT, (*self._linked(kept, bodies), *values))
        if not found:
            return None
        if then is None:
            self._forget(run.root)
            return TakenBack(run)
        at, touch = found[0][0], kept.touch
        self._linked_on(kept, bodies, at)
        left.pop()
        kept.left = touch, left
        kept.use.release()
        return Begun(then, at)


class Written(list[bytes | None]):
    """Values of a statement that are already as they are sent, in binary."""


class Advance:
    """One event that is on its way into its chain: its statement, and the end of the chain that it goes on from."""

    __slots__ = ("body", "kept", "op", "sql")

    def __init__(self, op: AdmitPlain | SettlePlain, kept: Kept, body: str, sql: str) -> None:
        self.op, self.kept, self.body, self.sql = op, kept, body, sql


class Together:
    """Several steps that are on their way in one statement."""

    __slots__ = ("count", "params", "taken")
    sql = _TOGETHER

    def __init__(
        self, taken: dict[int, tuple[int, AdmitPlain | SettlePlain, Kept, str]], count: int, params: list[bytes | None]
    ) -> None:
        self.taken, self.count, self.params = taken, count, params

    def let_go(self, *, is_known: bool) -> None:
        """Let go of the chains of all steps that are still on their way; ``is_known``: those were not done."""
        for _, _, kept, _ in self.taken.values():
            let_go(kept, is_known=is_known)
        self.taken = {}


def let_go(kept: Kept, *, is_known: bool) -> None:
    """Let go of a chain that was not continued, or of which it is not known whether it was: then its end is forgotten."""
    if not is_known:
        kept.forget()
    kept.use.release()


def is_certain(error: BaseException) -> bool:
    """Return whether the statement that failed so has certainly changed nothing."""
    return isinstance(error, UNDONE) or (
        isinstance(error, psycopg.Error) and fate_of(error, committing=True) != "unknown"
    )


def go_on(kept: Kept, body: str, at: float) -> None:
    """Remember the end of a chain after one more event, and let go of it."""
    n = kept.n + 1
    kept.head = sha256(f"{kept.head}:{n}:{round(at * MICROS)}:{body}".encode("ascii")).hexdigest()
    kept.n, kept.at = n, at
    kept.use.release()


def _touched(kept: Kept) -> None:
    """Note that a statement has moved ``touch`` on; what was forgotten meanwhile stays so."""
    if kept.touch >= 0:
        kept.touch, kept.mine = kept.touch + 1, None


def _mine(kept: Kept) -> tuple[int, str, int, int]:
    """Return the values of ``_MINE``."""
    return kept.no, kept.owner, kept.epoch, kept.touch


def _text(text: str | None) -> bytes | None:
    """Return a text as it is sent, without what PostgreSQL's text cannot hold."""
    if text is None:
        return None
    try:
        sent = text.encode()
    except UnicodeEncodeError:
        sent = storable(text).encode()
    return sent if b"\0" not in sent else storable(text).encode()


def _numbers(kind: str, column: Sequence[Any]) -> bytes | None:
    """Return an array of bigint or double precision as PostgreSQL writes it in binary."""
    count = len(column)
    each = "iq" if kind == "bigint" else "id"
    if column.count(column[0]) == count:  # as many are: epochs, tools, numbers of runs that go side by side
        return _head(_OIDS[kind], count, 0) + _packing(each, 1)(8, column[0]) * count
    return _head(_OIDS[kind], count, 0) + _packing(each, count)(*chain.from_iterable(zip(repeat(8), column)))


def _strings(kind: str, column: Sequence[Any]) -> bytes | None:
    """Return an array of text or bytea; None if each of its elements is null, which is the same here."""
    count, nulls = len(column), None in column
    if nulls:
        if column.count(None) == count:
            return None
        elements = [_NULL if value is None else _size(len(value)) + value for value in column]
    elif len(set(map(len, column))) == 1:  # as those of digests
        size = _size(len(column[0]))
        return _head(_OIDS[kind], count, 0) + size + size.join(column)
    else:
        elements = [part for value in column for part in (_size(len(value)), value)]
    return _head(_OIDS[kind], count, nulls) + b"".join(elements)


_ARRAYS: Final = tuple([partial(_numbers if kind in ("bigint", "float8") else _strings, kind) for _, kind in _COLUMNS])
"""How the columns of a batch are written."""


def _head(oid: int, count: int, nulls: int) -> bytes:
    """Return how an array of one dimension begins, whose first element is number 1."""
    return _HEAD(1, nulls, oid, count, 1)


@lru_cache(maxsize=256)
def _packing(each: str, count: int) -> Callable[..., bytes]:
    return Struct("!" + each * count).pack


def _run_body(run: PlainRun, what: str, frm: str, to: str, by: str, facts: str) -> str:
    return body_of(run.root, run.root, run.run_id, run.tenant, "", what, frm, to, by, run.epoch, facts)


def _said(event: AddEvent) -> tuple[str, str, str, str]:
    """Return the values of an event that its statement does not have already."""
    return event.what, event.frm, event.to_state, event.facts


def _owner_of(op: StoreOp[Any]) -> str:
    """Return the owner in whose name this operation is done."""
    run: PlainRun | None = None
    if isinstance(op, AdmitPlain):
        run = op.run
    elif isinstance(op, SettlePlain | FailPlain):
        run = op.started.op.run
    owner: str = getattr(op, "owner", "") if run is None else run.owner
    return owner or ""


KEPT_MAX: Final = 10_000
UNDONE: Final = (DivisionByZero, UniqueViolation)
"""How a plain statement fails that has undone itself."""

QUICK: Final[dict[type[StoreOp[Any]], Callable[[Plain, Any], Any]]] = {
    AdmitCall: Plain.answer,
    AdmitPlain: Plain.admit,
    SettlePlain: Plain.settle,
    SettleCall: Plain.fail,
    FailPlain: Plain.fail_plainly,
    OpenRun: Plain.open,
    BeginRollback: Plain.turn,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end,
    CloseRun: Plain.close,
    DecideCommit: Plain.commit,
    TurnPlain: Plain.turn_back,
    UndonePlain: Plain.undone,
}
