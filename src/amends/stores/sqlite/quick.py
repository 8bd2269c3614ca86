"""Plain statements on SQLite: a step of a plain call is one statement, which is its own transaction when it is alone.

Nothing is read first. The owner of a run remembers the end of its chain (``Kept``), and the statement is done only if
the run still has this owner, this epoch and this ``touch``: then nobody else has written an event since. Otherwise it
changes nothing, and the flow in ``ledger/`` decides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from operator import attrgetter
from typing import Any, Final

from amends.encoding.canonical import quoted
from amends.encoding.chain import GENESIS, MICROS, body_of
from amends.encoding.dataclass import changed
from amends.encoding.ids import RANDOM_BITS, number_of
from amends.ledger.opening import new_run, opening_text
from amends.ledger.operations import (
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
from amends.states import NEW
from amends.stores.calls import RootFacts, attempt_facts, join, written_owners
from amends.stores.quick import (
    COMMON_COLUMNS,
    ENDED,
    NOTHING_DROPPED,
    NOTHING_LEFT,
    NOTHING_UNSETTLED,
    OPEN_ROOT,
    PLAIN_ROOT,
    UNSHARED,
    Undo,
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
    is_plain_rollback,
    key_of,
    more_of,
    more_of_failure,
    rollback_events,
    rollback_goal,
    undo_of,
    undone,
)
from amends.stores.sql import FOLD_WINDOW_S, SKEW_S, Kept, Statements, event_values

_OWNED: Final = "no = ? and owner = ? and epoch = ? and touch = ?"
_HALT: Final = "(select halt from amends_ledger) = ?"
ADMIT: Final = (
    'insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash, more)'
    " select ?, ?, ?, 1, ?, ?, 'started', 1, ?, ?, ?, ?, ?, ?, null from amends_run"
    f" where {_OWNED} and {OPEN_ROOT} and {_HALT}"
)
"""Here and below ``null`` is written out, and bytes are handed over as a ``bytearray``: whatever is no number, text or
``bytearray`` goes through the adapters of ``sqlite3``, which takes longer than to bind it."""
ADMIT_MORE: Final = ADMIT.replace(", null from", ", ? from")
"""The same for a call about which the hot columns do not say everything."""
_HOT: Final = 11
"""How many values come before that."""
_SETTLE: Final = (
    "update amends_call set state = 'succeeded', result = ?, settled_n = ?, settled_at = ?, settled_hash = ?{}"
    " where no = ? and root = ? and state = 'started' and attempt = 1 and settled_n is null and more is {}"
    f" and exists (select 1 from amends_run where {_OWNED})"
)
SETTLE_SEALED: Final = _SETTLE.format(", more = ?", "?")
"""The same with an encrypted result, whose digest is kept as well."""
SETTLE: Final = _SETTLE.format("", "null")
SETTLE_MORE: Final = _SETTLE.format("", "?")
LOAD: Final = (
    "select no, n, head, at, touch, owner, epoch, id, tenant, agent, principal, sealed from amends_run"
    " where uid = ? and root = uid"
)
BEGIN: Final = (
    "update amends_call set state = 'compensating', comp_n = ?, comp_at = ?, comp_epoch = ?, comp_hash = ?"
    " where no = ? and root = ? and state = 'succeeded' and settled_n = ? and comp_at is null"
    f" and exists (select 1 from amends_run where {_OWNED} and state = 'rolling_back')"
)
_FAIL: Final = (
    "update amends_call set state = 'failed', settled_n = ?, settled_at = ?, settled_hash = ?, more = ?"
    " where no = ? and root = ? and state = 'started' and attempt = 1 and settled_n is null and settled_at is null"
    f" and result is null and more is {{}} and exists (select 1 from amends_run where {_OWNED})"
)
FAIL: Final = _FAIL.format("null")
FAIL_MORE: Final = _FAIL.format("?")
_TOUCHED: Final = "n = ?, head = ?, at = ?, touch = touch + 1"
END: Final = (
    "update amends_call set state = 'compensated', undone_n = ?, undone_at = ?, undone_hash = ?"
    " where no = ? and root = ? and state = 'compensating' and comp_at = ? and comp_hash is not null and undone_at is null"
    f" and exists (select 1 from amends_run where {_OWNED})"
)
_IN_TIME: Final = "coalesce((select made_at from amends_mark where name = 'time'), 0.0) <= ?"
_COLUMNS: Final = ", ".join(RUN_COLUMNS)
TURN: Final = (
    f"update amends_run set state = 'rolling_back', goal = ?, goal_by = ?, goal_why = ?, {_TOUCHED}"
    f" where {_OWNED} and {OPEN_ROOT} and {PLAIN_ROOT} and {UNSHARED} and {NOTHING_DROPPED} and {_IN_TIME}"
    f" returning {_COLUMNS}"
)
ONLY_THESE: Final = (
    "(select total(case c.state when 'succeeded' then t.kind <> 'read' when 'failed' then 0 when 'refused' then 0"
    " when 'dropped' then 0 else 1e9 end) from amends_call c join amends_tool t on t.no = c.tool"
    " where c.root = amends_run.no) = ?"
)
"""The condition that so many calls of the run have an effect, and nothing else in it is to be settled or taken back."""
TURN_PLAIN: Final = (
    f"update amends_run set state = 'rolling_back', goal = 'rollback', goal_by = 'self', goal_why = ?, {_TOUCHED}"
    f" where {_OWNED} and {OPEN_ROOT} and {PLAIN_ROOT} and {UNSHARED} and {ONLY_THESE} and {_IN_TIME}"
    " and exists (select 1 from amends_call c where c.no = ? and c.root = amends_run.no and c.state = 'succeeded'"
    " and c.settled_n = ? and c.comp_at is null)"
)
FIRST: Final = (
    "update amends_call set state = 'compensating', comp_n = ?, comp_at = ?, comp_epoch = ?, comp_hash = ? where no = ?"
)
"""The first compensation, whose condition ``TURN_PLAIN`` has."""
CLOSE_LAST: Final = (
    f"update amends_run set state = 'rolled_back', closed_at = ?, {ENDED}, {_TOUCHED}"
    f" where {_OWNED} and state = 'rolling_back' and {_IN_TIME}"
)
"""The end of a rollback that ``TURN_PLAIN`` began. With the same ``touch`` nobody has changed anything else since: no statement
has to look at the calls."""
CLOSE: Final = f"{CLOSE_LAST} and {PLAIN_ROOT} and {NOTHING_LEFT} returning {_COLUMNS}"
OPEN: Final = (
    f"insert into amends_run ({_COLUMNS}, owners, n, head, at, touch, unsealed)"
    f" select {', '.join([COMMON_COLUMNS.get(name, '?') for name in RUN_COLUMNS])}, ?, 1, ?, ?, 1, 1"
    f" where not exists (select 1 from amends_run where tenant = ? and id = ?) and {_IN_TIME}"
)
"""What all new runs have in common is written out, which takes less than to bind it."""
COMMIT: Final = (
    "update amends_run set state = 'committed', goal = 'commit', goal_by = 'self', output = coalesce(?, output),"
    f" closed_at = ?, {ENDED}, {_TOUCHED} where {_OWNED} and {OPEN_ROOT} and goal_why = '' and completion = '' and {PLAIN_ROOT}"
    f" and {NOTHING_UNSETTLED} and {_IN_TIME} returning {_COLUMNS}"
)


class Plain:
    """The plain statements of one store: what it remembers of its runs and tools."""

    def __init__(self, clock: Callable[[], float], kept: dict[str, Kept], statements: Statements) -> None:
        self._clock, self._kept = clock, kept
        self._folded_tail, self._insert_event = statements.events.folded_tail, statements.events.insert
        insert, _, values = self._insert_event.partition(" values ")
        self._insert_events = f"{insert} values {values}, {values}"
        self._calls = statements.calls.of_root
        self.tools: dict[PlainTool, int] = {}
        self.halt = 0
        self.seen = 0.0
        """The latest time that the mark of the ledger's time was seen to have."""

    def _kept_of(self, cursor: sqlite3.Cursor, run: PlainRun) -> Kept | None:
        """Return what is remembered of this run; None: it is not this owner's."""
        kept: Kept | None = run.kept
        if kept is None:
            kept = self._kept.get(run.root)
        if kept is None or kept.touch < 0:
            kept = self._load(cursor, run)
        run.kept, run.takes_back = kept, kept is not None
        run.fails = run.takes_back
        return kept

    def _load(self, cursor: sqlite3.Cursor, run: PlainRun) -> Kept | None:
        found = cursor.execute(LOAD, (run.root,)).fetchone()
        if found is None:
            return None
        no, n, head, at, touch, owner, epoch, *facts, _ = found
        if (owner, epoch) != (run.owner, run.epoch) or facts != [run.run_id, run.tenant, run.agent, run.principal]:
            return None
        kept = Kept(no, n, head.hex(), at, touch, owner, epoch)
        later = cursor.execute(self._folded_tail, (no, n) * 4).fetchone()
        if later is not None:
            kept.n, kept.at, kept.head = later[0], later[1], later[2].hex()
        self._kept[run.root] = kept
        return kept

    def forget(self, root: str) -> None:
        """Forget the end of the chain of a run that nobody owns any more.

        A handle of the run may keep it beyond a commit that fails, and then knows that it must be read again.
        """
        kept = self._kept.pop(root, None)
        if kept is not None:
            kept.forget()

    def tool(self, cursor: sqlite3.Cursor, tool: PlainTool) -> int | None:
        """Return the number of a version of a tool; None: the ledger does not have it yet, and the flow adds it."""
        found = cursor.execute(FIND_TOOL, (tool.name, tool.version, tool.kind, tool.declared, tool.undoable)).fetchone()
        if found is None:
            return None
        self.tools[tool] = found[0]
        return self.tools[tool]

    def _next(self, kept: Kept) -> tuple[int, float, int]:
        """Return number, time and microseconds of the next event of a run."""
        at = self._clock()
        if at < kept.at:
            at = kept.at
        if at < self.seen:
            at = self.seen
        micros = round(at * MICROS)
        return kept.n + 1, micros / MICROS, micros

    def admit(self, cursor: sqlite3.Cursor, op: AdmitPlain) -> Started | None:
        """Start the call; return None if nothing was changed and the flow must decide."""
        run, tool = op.run, op.tool
        kept = run.kept
        if kept is None or kept.touch < 0:
            kept = self._kept_of(cursor, run)
        number = self.tools.get(tool) or self.tool(cursor, tool)
        if kept is None or number is None or ((op.repeated or run.epoch != 1) and not is_plain(op)):
            return None
        n, at, micros = self._next(kept)
        if not -SKEW_US <= micros - (op.number >> RANDOM_BITS) <= SKEW_US:
            return None
        hash = sha256(f"{kept.head}:{n}:{micros}:{run.admission_body(op)}".encode("ascii")).digest()
        no, epoch = kept.no, run.epoch
        values: tuple[Any, ...] = (
            op.number, no, bytearray(key_of(op) if tool.kind == "read" else op.key), n, number, bytearray(op.ident),
            bytearray(op.digest), op.args, at, epoch, bytearray(hash), no, run.owner, epoch, kept.touch, self.halt,
        )  # fmt: skip
        sql = ADMIT
        if op.call_ref or op.proof:
            sql, values = ADMIT_MORE, (*values[:_HOT], more_of(op), *values[_HOT:])
        try:
            cursor.execute(sql, values)
        except sqlite3.IntegrityError:
            return None
        if cursor.rowcount != 1:
            kept.touch = -1
            return None
        kept.n, kept.head, kept.at = n, hash.hex(), at
        return Started(op, n, at)

    def settle(self, cursor: sqlite3.Cursor, op: SettlePlain) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        started = op.started
        first = started.op
        run = first.run
        kept: Kept | None = run.kept
        if kept is None or kept.touch < 0 or op.repeated:
            return None
        n, at, micros = self._next(kept)
        if at - started.at > FOLD_WINDOW_S:
            return None
        hash = sha256(f"{kept.head}:{n}:{micros}:{run.success_body(op)}".encode("ascii")).digest()
        no, more = kept.no, more_of(first) if first.call_ref or first.proof else None
        if op.proof:
            guard = (first.number, no, more, no, run.owner, run.epoch, kept.touch)
            cursor.execute(SETTLE_SEALED, (op.result, n, at, hash, more_of(first, op.proof), *guard))
        elif more is None:
            cursor.execute(
                SETTLE,
                (op.result, n, at, bytearray(hash), first.number, no, no, run.owner, run.epoch, kept.touch),
            )
        else:
            guard = (first.number, no, more, no, run.owner, run.epoch, kept.touch)
            cursor.execute(SETTLE_MORE, (op.result, n, at, hash, *guard))
        if cursor.rowcount != 1:
            kept.touch = -1
            return None
        kept.n, kept.head, kept.at = n, hash.hex(), at
        return SettledPlain(started, n, at, op.result, proof=op.proof)

    def fail(self, cursor: sqlite3.Cursor, op: SettleCall) -> Settled | None:
        """Settle a plain call as failed; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        kept = None if seen is None else self._kept.get(seen.root)
        if seen is None or kept is None or kept.touch < 0 or not is_plain_failure(op, seen):
            return None
        root = RootFacts(kept.no, seen.root, seen.run_id, seen.tenant, seen.agent, seen.principal)
        learned, before, after = failed(op, seen, root)
        at = self._fail(
            cursor, kept, failed_body(op, seen), seen.created_at, number_of(seen.id), after, before, op.owner, op.epoch
        )
        return None if at is None else Settled(failed_row(seen, learned, at))

    def fail_plainly(self, cursor: sqlite3.Cursor, op: FailPlain) -> FailedPlain | None:
        """Do what ``fail`` does for a call that this process has started, without rows."""
        started = op.started
        first = started.op
        run = first.run
        kept: Kept | None = run.kept
        if kept is None or kept.touch < 0 or not fails_plainly(op):
            return None
        at = self._fail(
            cursor, kept, failure_body(op), started.at, first.number, more_of_failure(op), more_of(first), run.owner,
            run.epoch,
        )  # fmt: skip
        return None if at is None else FailedPlain(op, at)

    def _fail(
        self, cursor: sqlite3.Cursor, kept: Kept, body: str, since: float, number: int | None, more: str | None,
        was: str | None, owner: str, epoch: int,
    ) -> float | None:  # fmt: skip
        """Settle a call as failed; return when. None: nothing was changed.

        ``body``: of its event. ``since``: when the call was admitted. ``more``, ``was``: what its hot columns do not say,
        after and before.
        """
        n, at, micros = self._next(kept)
        if at - since > FOLD_WINDOW_S:
            return None
        hash = _link(kept.head, n, micros, body)
        no = kept.no
        guard = (no, owner, epoch, kept.touch)
        if was is None:
            cursor.execute(FAIL, (n, at, bytearray(hash), more, number, no, *guard))
        else:
            cursor.execute(FAIL_MORE, (n, at, bytearray(hash), more, number, no, was, *guard))
        if cursor.rowcount != 1:
            kept.touch = -1
            return None
        kept.n, kept.head, kept.at = n, hash.hex(), at
        return at

    def open(self, cursor: sqlite3.Cursor, op: OpenRun) -> Opened | None:
        """Open a run that there was not; return None if nothing was changed and the flow must decide."""
        if op.token:
            return None  # its event says so
        owner, root = op.owner, op.uid
        kept = Kept(0, 0, GENESIS, 0.0, 0, owner, 1)
        _, at, micros = self._next(kept)
        row = new_run(op, 1, at)
        whose = (root, op.id, op.tenant)
        event, head = _event(whose, GENESIS, 1, at, micros, "run", NEW, "open", owner, 1, opening_text(op, row))
        cursor.execute(OPEN, (*_OPENED(row), _first_owner(owner), event[-1], at, op.tenant, op.id, at))
        if cursor.rowcount != 1:
            return None
        kept.no = cursor.lastrowid or 0
        cursor.execute(self._insert_event, event)
        kept.n, kept.head, kept.at, kept.touch = 1, head, at, 1
        self._kept[root] = kept
        return Opened("fresh", row, at)

    def turn(self, cursor: sqlite3.Cursor, op: BeginRollback) -> Rollback | None:
        """Begin the rollback of a plain run; return None if nothing was changed and the flow must decide."""
        kept = None if op.plain is None else self._kept_of(cursor, op.plain)
        if op.plain is None or kept is None or not is_plain_rollback(op):
            return None
        _, at, _ = self._next(kept)
        values = self._linked(kept, rollback_events(op, op.plain, at))
        run = self._moved(cursor, TURN, kept, values, op, tuple(rollback_goal(op).values()))
        if run is None:
            return None
        calls = tuple([join(found)[0] for found in cursor.execute(self._calls, (run.uid,))])
        answer = Rollback("rolling", run, Tree(run, (run,), calls, at))
        kept.undo = undo_of(answer, kept.touch)
        return answer

    def close(self, cursor: sqlite3.Cursor, op: CloseRun) -> RunRow | None:
        """Close a plain run whose calls are compensated; return None if nothing was changed and the flow must decide."""
        kept = None if op.plain is None else self._kept_of(cursor, op.plain)
        if op.plain is None or kept is None or not is_plain_close(op):
            return None
        _, at, _ = self._next(kept)
        values = self._linked(kept, (close_event(op, op.plain, at),))
        run = self._moved(cursor, CLOSE, kept, values, op, (at,))
        if run is not None:
            self.forget(run.uid)
        return run

    def commit(self, cursor: sqlite3.Cursor, op: DecideCommit) -> Decision | None:
        """Commit a plain run; return None if nothing was changed and the flow must decide."""
        kept = None if op.plain is None else self._kept_of(cursor, op.plain)
        if op.plain is None or kept is None or not is_plain_commit(op):
            return None
        _, at, _ = self._next(kept)
        values = self._linked(kept, commit_events(op, op.plain, at))
        run = self._moved(cursor, COMMIT, kept, values, op, (op.output, at))
        if run is None:
            return None
        self.forget(run.uid)
        return Decision("committed", run)

    def _linked(self, kept: Kept, events: Sequence[AddEvent]) -> list[tuple[Any, ...]]:
        """Return the rows of events of one moment that continue the chain."""
        rows, n, head = [], kept.n, kept.head
        for event in events:
            n += 1
            hash = sha256(f"{head}:{n}:{round(event.at * MICROS)}:{event.body}".encode("ascii"))
            rows.append(event_values(event, n, bytearray(hash.digest())))
            head = hash.hexdigest()
        return rows

    def _moved(
        self, cursor: sqlite3.Cursor, sql: str, kept: Kept, events: list[tuple[Any, ...]],
        op: BeginRollback | CloseRun | DecideCommit, sets: tuple[Any, ...],
    ) -> RunRow | None:  # fmt: skip
        """Change the row of the run and write the events; return None if the row is not as it must be."""
        n, at, hash = events[-1][1], events[-1][2], events[-1][-1]
        found = cursor.execute(sql, (*sets, n, hash, at, kept.no, op.owner, op.epoch, kept.touch, at)).fetchall()
        if not found:
            kept.touch = -1
            return None
        self._continue(cursor, kept, events)
        return RunRow(*found[0])

    def _continue(self, cursor: sqlite3.Cursor, kept: Kept, events: list[tuple[Any, ...]]) -> None:
        """Write the events, and remember the new end of the chain."""
        last = events[-1]
        if len(events) == 2:
            cursor.execute(self._insert_events, (*events[0], *last))
        else:
            for values in events:
                cursor.execute(self._insert_event, values)
        kept.n, kept.head, kept.at, kept.touch = last[1], last[-1].hex(), last[2], kept.touch + 1
        kept.undo = kept.left = None

    def begin(self, cursor: sqlite3.Cursor, op: BeginCompensation) -> CallRow | None:
        """Begin the compensation; return None if nothing was changed and the flow must decide."""
        kept = None if op.seen is None else self._kept.get(op.seen.root)
        undo: Undo | None = None if kept is None else kept.undo
        if kept is None or undo is None or op.seen is None or kept.touch != undo.touch:
            return None
        n, at, micros = self._next(kept)
        if not is_plain_beginning(op, undo) or at - op.seen.created_at > FOLD_WINDOW_S:
            return None
        body = compensation_body(op, "succeeded", "compensating")
        hash = sha256(f"{kept.head}:{n}:{micros}:{body}".encode("ascii"))
        cursor.execute(
            BEGIN,
            (
                n, at, op.epoch, bytearray(hash.digest()), number_of(op.call_id), kept.no, op.seen.settled_seq, kept.no, op.owner,
                op.epoch, kept.touch,
            ),
        )  # fmt: skip
        if cursor.rowcount != 1:
            kept.undo = None
            return None
        kept.n, kept.head, kept.at = n, hash.hexdigest(), at
        return begun(op, at, undo)

    def end_alone(self, cursor: sqlite3.Cursor, op: SettleCompensation) -> Settled | None:
        """Do what ``end`` does, if that is one statement."""
        return self.end(cursor, op) if op.then is None else None

    def end(self, cursor: sqlite3.Cursor, op: SettleCompensation) -> Settled | None:
        """Settle the compensation, and do what follows it; return None if nothing was changed and the flow must decide."""
        kept = None if op.seen is None else self._kept.get(op.seen.root)
        undo: Undo | None = None if kept is None else kept.undo
        if kept is None or undo is None or op.seen is None or kept.touch != undo.touch:
            return None
        n, at, micros = self._next(kept)
        if not is_plain_end(op, undo) or at - op.seen.created_at > FOLD_WINDOW_S:
            return None
        body = compensation_body(op, "compensating", "compensated")
        hash = sha256(f"{kept.head}:{n}:{micros}:{body}".encode("ascii"))
        cursor.execute(
            END,
            (
                n, at, bytearray(hash.digest()), number_of(op.call_id), kept.no, op.seen.comp_at, kept.no, op.owner, op.epoch,
                kept.touch,
            ),
        )  # fmt: skip
        if cursor.rowcount != 1:
            kept.undo = None
            return None
        kept.n, kept.head, kept.at = n, hash.hexdigest(), at
        undo.going = ""
        undo.left.pop()
        then = op.then
        if then is None:
            return undone(op, at)
        return undone(op, at, self.begin(cursor, then) if type(then) is BeginCompensation else self.close(cursor, then))  # type: ignore[arg-type]

    # ---- A whole rollback

    def turn_back(self, cursor: sqlite3.Cursor, op: TurnPlain) -> Begun | None:
        """Begin the rollback and its first compensation; return None if nothing was changed and the flow must decide."""
        run, left = op.run, op.left
        kept: Kept | None = run.kept
        if kept is None or kept.touch < 0:
            kept = self._kept_of(cursor, run)
        if kept is None or op.repeated or op.token or not op.why:
            return None
        n, at, micros = self._next(kept)
        last = left[-1]
        first = last.started
        if at - first.at > FOLD_WINDOW_S:
            return None
        number, no, epoch, touch = first.op.number, kept.no, run.epoch, kept.touch
        why, by, whose = quoted(op.why), op.by, (run.root, run.run_id, run.tenant)
        aim = f'"goal": "rollback", "goal_by": "self", "goal_why": {why}}}'
        said = f'{{"why": {why}, {aim}'
        goal, head = _event(whose, kept.head, n, at, micros, "goal", "", "rollback", by, epoch, said)
        turn, head = _event(whose, head, n + 1, at, micros, "run", "open", "rolling_back", by, epoch, f"{{{aim}")
        cursor.execute(
            TURN_PLAIN,
            (op.why, n + 1, turn[-1], at, no, run.owner, epoch, touch, len(left), at, number, last.n),
        )
        if cursor.rowcount != 1:
            kept.touch = -1
            return None
        cursor.execute(self._insert_events, (*goal, *turn))
        hash = _link(head, n + 2, micros, run.body(number, "succeeded", "compensating", _FIRST_ATTEMPT))
        cursor.execute(FIRST, (n + 2, at, epoch, bytearray(hash), number))
        kept.n, kept.head, kept.at, kept.touch = n + 2, hash.hex(), at, touch + 1
        kept.undo, kept.left = None, (kept.touch, [one.started.op.number for one in left])
        return Begun(last, at)

    def undone(self, cursor: sqlite3.Cursor, op: UndonePlain) -> Begun | TakenBack | Settled | None:
        """Settle a compensation of such a rollback, and begin the next one or close the run.

        Return None if nothing was changed and the flow must decide.
        """
        begun, then = op.begun, op.then
        started = begun.settled.started
        run, number = started.op.run, started.op.number
        kept: Kept | None = run.kept
        left = None if kept is None or kept.left is None or kept.left[0] != kept.touch else kept.left[1]
        if kept is None or not left or left[-1] != number or op.repeated or op.token:
            return None
        n, at, micros = self._next(kept)
        if at - started.at > FOLD_WINDOW_S:
            return None
        hash = _link(kept.head, n, micros, run.body(number, "compensating", "compensated", _FIRST_ATTEMPT))
        no, owner, epoch, touch = kept.no, run.owner, run.epoch, kept.touch
        cursor.execute(END, (n, at, bytearray(hash), number, no, begun.at, no, owner, epoch, touch))
        if cursor.rowcount != 1:
            kept.left = None
            return None
        head = kept.head = hash.hex()
        kept.n, kept.at = n, at
        left.pop()
        if then is None:
            if not left and self._close_run(cursor, kept, run, micros):
                return TakenBack(run)
        elif left and left[-1] == then.started.op.number and at - then.started.at <= FOLD_WINDOW_S:
            number = left[-1]
            hash = _link(head, n + 1, micros, run.body(number, "succeeded", "compensating", _FIRST_ATTEMPT))
            cursor.execute(BEGIN, (n + 1, at, epoch, bytearray(hash), number, no, then.n, no, owner, epoch, touch))
            if cursor.rowcount == 1:
                kept.n, kept.head = n + 1, hash.hex()
                return Begun(then, at)
        kept.left = None
        return Settled(changed(begun.row, {"state": "compensated", "comp_settled_at": at}))

    def _close_run(self, cursor: sqlite3.Cursor, kept: Kept, run: PlainRun, micros: int) -> bool:
        """Close a run whose last compensation was settled in this transaction; return whether that was done."""
        n, at, owner, epoch, root = kept.n + 1, kept.at, run.owner, run.epoch, run.root
        whose, states = (root, run.run_id, run.tenant), ("run", "rolling_back", "rolled_back")
        closed, _ = _event(whose, kept.head, n, at, micros, *states, owner, epoch, "{}")
        cursor.execute(CLOSE_LAST, (at, n, closed[-1], at, kept.no, owner, epoch, kept.touch, at))
        if cursor.rowcount != 1:
            return False
        cursor.execute(self._insert_event, closed)
        self.forget(root)
        kept.left = None
        return True


def _event(
    whose: tuple[str, str, str], head: str, n: int, at: float, micros: int, what: str, frm: str, to: str, by: str, epoch: int,
    facts: str,
) -> tuple[tuple[Any, ...], str]:  # fmt: skip
    """Return the row of an event of a root run, and the hash with which the chain goes on.

    ``whose``: uid, id and tenant of the run. ``head``: the hash before.
    """
    root, run_id, tenant = whose
    body = body_of(root, root, run_id, tenant, "", what, frm, to, by, epoch, facts)
    hash = _link(head, n, micros, body)
    return (root, n, at, root, run_id, tenant, "", what, frm, to, by, epoch, facts, bytearray(hash)), hash.hex()


def _link(head: str, n: int, micros: int, body: str) -> bytes:
    """Return the hash of an event, as ``amends.encoding.chain.link`` writes it; asking it for both spellings takes longer.

    The two operations of a plain call write this out: a call of a function takes a fiftieth of their time.
    """
    return sha256(f"{head}:{n}:{micros}:{body}".encode("ascii")).digest()


_OPENED: Final = attrgetter(*[name for name in RUN_COLUMNS if name not in COMMON_COLUMNS])


@lru_cache(maxsize=64)
def _first_owner(owner: str) -> str:
    """Return the owners of a run that this owner has opened, as they are stored; a process opens all its runs as one owner."""
    return written_owners({1: owner})


_FIRST_ATTEMPT: Final = attempt_facts(1)
SKEW_US: Final = int(SKEW_S * 1e6)
FIND_TOOL: Final = (
    "select no from amends_tool where name = ? and version = ? and kind = ? and scope = 'run' and declared = ?"
    " and undoable = ? and at_commit = 0"
)
