"""Plain statements on SQLite: a step of a plain call is one statement, which is its own transaction when it is alone.

Nothing is read first. The owner of a run remembers the end of its chain (``Kept``), and the statement is done only if
the run still has this owner, this epoch and this ``touch``: then nobody else has written an event since. Otherwise it
changes nothing, and the flow in ``ledger/`` decides.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from amends.encoding.chain import MICROS
from amends.encoding.ids import RANDOM_BITS, number_of
from amends.ledger.operations import BeginCompensation, SettleCall, SettleCompensation, Settled
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettledPlain, SettlePlain, Started
from amends.ledger.rows import AddEvent, CallRow
from amends.stores.calls import RootFacts, hot, more
from amends.stores.quick import (
    OPEN_ROOT,
    Undo,
    admission_body,
    begun,
    compensation_body,
    failed,
    failure_facts,
    is_plain,
    is_plain_beginning,
    is_plain_end,
    is_plain_failure,
    key_of,
    more_of,
    success_body,
    undone,
)
from amends.stores.sql import FOLD_WINDOW_S, SKEW_S, EventStatements, Kept, event_values

_OWNED: Final = "no = ? and owner = ? and epoch = ? and touch = ?"
_HALT: Final = "(select halt from amends_ledger) = ?"
ADMIT: Final = (
    'insert into amends_call (no, root, "key", gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash, more)'
    " select ?, ?, ?, 1, ?, ?, 'started', 1, ?, ?, ?, ?, ?, ?, ? from amends_run"
    f" where {_OWNED} and {OPEN_ROOT} and {_HALT}"
)
_SETTLE: Final = (
    "update amends_call set state = 'succeeded', result = ?, settled_n = ?, settled_at = ?, settled_hash = ?{}"
    " where no = ? and root = ? and state = 'started' and attempt = 1 and settled_n is null and more is ?"
    f" and exists (select 1 from amends_run where {_OWNED})"
)
SETTLE_SEALED: Final = _SETTLE.format(", more = ?")
"""The same with an encrypted result, whose digest is kept as well."""
SETTLE: Final = _SETTLE.format("")
LOAD: Final = (
    "select no, n, head, at, touch, owner, epoch, id, tenant, agent, principal, sealed from amends_run"
    " where uid = ? and root = uid"
)
BEGIN: Final = (
    "update amends_call set state = 'compensating', comp_n = ?, comp_at = ?, comp_epoch = ?, comp_hash = ?"
    " where no = ? and root = ? and state = 'succeeded' and settled_n = ? and comp_at is null"
    f" and exists (select 1 from amends_run where {_OWNED} and state = 'rolling_back')"
)
FAIL: Final = (
    "update amends_call set state = 'failed', settled_at = ?, more = ?"
    " where no = ? and root = ? and state = 'started' and attempt = 1 and settled_n is null and settled_at is null"
    f" and result is null and more is ? and exists (select 1 from amends_run where {_OWNED})"
)
TOUCH: Final = "update amends_run set n = ?, head = ?, at = ?, touch = touch + 1 where no = ?"
END: Final = (
    "update amends_call set state = 'compensated', undone_n = ?, undone_at = ?, undone_hash = ?"
    " where no = ? and root = ? and state = 'compensating' and comp_at = ? and comp_hash is not null and undone_at is null"
    f" and exists (select 1 from amends_run where {_OWNED})"
)


class Plain:
    """The plain statements of one store: what it remembers of its runs and tools."""

    def __init__(self, clock: Callable[[], float], kept: dict[str, Kept], statements: EventStatements) -> None:
        self._clock, self._kept = clock, kept
        self._folded_tail, self._insert_event = statements.folded_tail, statements.insert
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
        run.kept = kept
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
        if kept is None or number is None or not is_plain(op):
            return None
        n, at, micros = self._next(kept)
        if abs(micros - (op.number >> RANDOM_BITS)) > SKEW_US:
            return None
        hash = sha256(f"{kept.head}:{n}:{micros}:{admission_body(op)}".encode("ascii"))
        try:
            cursor.execute(
                ADMIT,
                (
                    op.number, kept.no, key_of(op), n, number, op.ident, op.digest, op.args, at, run.epoch, hash.digest(),
                    more_of(op), kept.no, run.owner, run.epoch, kept.touch, self.halt,
                ),
            )  # fmt: skip
        except sqlite3.IntegrityError:
            return None
        if cursor.rowcount != 1:
            kept.touch = -1
            return None
        kept.n, kept.head, kept.at = n, hash.hexdigest(), at
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
        hash = sha256(f"{kept.head}:{n}:{micros}:{success_body(op)}".encode("ascii"))
        guard = (first.number, kept.no, more_of(first), kept.no, run.owner, run.epoch, kept.touch)
        if op.proof:
            cursor.execute(SETTLE_SEALED, (op.result, n, at, hash.digest(), more_of(first, op.proof), *guard))
        else:
            cursor.execute(SETTLE, (op.result, n, at, hash.digest(), *guard))
        if cursor.rowcount != 1:
            kept.touch = -1
            return None
        kept.n, kept.head, kept.at = n, hash.hexdigest(), at
        return SettledPlain(started, n, at, op.result, proof=op.proof)

    def fail(self, cursor: sqlite3.Cursor, op: SettleCall) -> Settled | None:
        """Settle a plain call as failed, inside a transaction; return None if nothing was changed and the flow must decide.

        Its event is a row. Nothing is read: the first statement has the whole condition.
        """
        seen = op.seen
        kept = None if seen is None else self._kept.get(seen.root)
        if seen is None or kept is None or kept.touch < 0 or not is_plain_failure(op, seen):
            return None
        n, at, micros = self._next(kept)
        new = failed(op, seen, at)
        root = RootFacts(kept.no, seen.root, seen.run_id, seen.tenant, seen.agent, seen.principal)
        event = AddEvent(
            at, seen.root, seen.run, seen.run_id, seen.tenant, seen.id, "call", "started", "failed", op.owner, op.epoch,
            failure_facts(op),
        )  # fmt: skip
        cursor.execute(
            FAIL,
            (
                at, more(new, hot(new), root), number_of(seen.id), kept.no, more(seen, hot(seen), root), kept.no, op.owner,
                op.epoch, kept.touch,
            ),
        )  # fmt: skip
        if cursor.rowcount != 1:
            return None
        hash = sha256(f"{kept.head}:{n}:{micros}:{event.body}".encode("ascii"))
        cursor.execute(self._insert_event, event_values(event, n, hash.digest()))
        cursor.execute(TOUCH, (n, hash.digest(), at, kept.no))
        kept.n, kept.head, kept.at, kept.touch, kept.undo = n, hash.hexdigest(), at, kept.touch + 1, None
        return Settled(new)

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
                n, at, op.epoch, hash.digest(), number_of(op.call_id), kept.no, op.seen.settled_seq, kept.no, op.owner,
                op.epoch, kept.touch,
            ),
        )  # fmt: skip
        if cursor.rowcount != 1:
            kept.undo = None
            return None
        kept.n, kept.head, kept.at = n, hash.hexdigest(), at
        return begun(op, at, undo)

    def end(self, cursor: sqlite3.Cursor, op: SettleCompensation) -> Settled | None:
        """Settle the compensation; return None if nothing was changed and the flow must decide."""
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
                n, at, hash.digest(), number_of(op.call_id), kept.no, op.seen.comp_at, kept.no, op.owner, op.epoch,
                kept.touch,
            ),
        )  # fmt: skip
        if cursor.rowcount != 1:
            kept.undo = None
            return None
        kept.n, kept.head, kept.at = n, hash.hexdigest(), at
        undo.going = ""
        undo.left.pop()
        return undone(op, at)


SKEW_US: Final = int(SKEW_S * 1e6)
FIND_TOOL: Final = (
    "select no from amends_tool where name = ? and version = ? and kind = ? and scope = 'run' and declared = ?"
    " and undoable = ? and at_commit = 0"
)
