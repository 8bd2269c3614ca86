"""Plain steps on MariaDB and MySQL: a step of a plain call is one call of a procedure, and its own transaction.

The procedures are part of the schema (``migrations/mysql``). They lock the run, continue its chain and write the call, or
they change nothing, answer nothing, and the flow decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from amends.encoding.chain import MICROS
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
from amends.stores.mysql.connection import Connection
from amends.stores.quick import (
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
from amends.stores.sql import FOLD_WINDOW_S, MYSQL, SKEW_S, Execute, Statements, Tail

Clock = Callable[[], float] | None

UNDO_MAX: Final = 10_000
TOGETHER_MAX: Final = 1 << 19
"""The characters of one batch, which must fit into a packet of the server; what is longer is sent alone."""
_TOOL: Final = (
    "select no from amends_tool where name = %s and version = %s and kind = %s and scope = 'run' and declared = %s"
    " and undoable = %s and at_commit = 0"
)
_ANSWER: Final = answer_sql(Statements(MYSQL))


class Plain:
    """The plain steps of one store, and the numbers of the tools that it has seen."""

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

    def _now(self) -> str:
        return "null" if self._clock is None else _double(self._clock())

    def answer(self, op: AdmitCall, connection: Connection) -> Admission | None:
        """Return the answer that is already in the record; None: the flow decides."""
        if not is_plain_question(op):
            return None
        connection.begin(())
        found, _, _ = connection.execute(Execute(_ANSWER, question(op)))
        return answered(op, found)

    def admit(self, op: AdmitPlain, connection: Connection) -> Started | None:
        """Start the call; return None if nothing was changed and the flow must decide."""
        if not is_plain(op):
            return None
        tool = op.tool
        if tool not in self.tools:
            connection.begin(())
            found, _, _ = connection.execute(
                Execute(_TOOL, (tool.name, tool.version, tool.kind, tool.declared, tool.undoable))
            )
            if not found:
                return None
            self.tools[tool] = found[0][0]
        said = connection.call_procedure(self._admission(op, connection, alone=1), op.run.root)
        return None if said is None else Started(op, said[0], said[1] / MICROS)

    def settle(self, op: SettlePlain, connection: Connection) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        if op.repeated:
            return None
        said = connection.call_procedure(self._settlement(op, connection, alone=1), op.started.op.run.root)
        return None if said is None else SettledPlain(op.started, said[0], said[1] / MICROS, op.result, proof=op.proof)

    def together(
        self, ops: Sequence[AdmitPlain | SettlePlain], connection: Connection
    ) -> list[Started | SettledPlain | None]:
        """Carry out steps of several runs in one transaction; None for each that was not done: its caller does it alone."""
        answers: list[Started | SettledPlain | None] = [None] * len(ops)
        calls: dict[int, str] = {}
        size = 0
        for place, op in enumerate(ops):
            if isinstance(op, SettlePlain):
                text = self._settlement(op, connection, alone=0)
            elif is_plain(op) and op.tool in self.tools:
                text = self._admission(op, connection, alone=0)
            else:
                continue
            if size + len(text) <= TOGETHER_MAX:
                calls[place] = text
                size += len(text)
        said = connection.call_together(list(calls.values())) if calls else []
        for place, found in zip(calls, said, strict=True):
            if found is not None:
                op, n, at = ops[place], found[0], found[1] / MICROS
                answers[place] = (
                    Started(op, n, at)
                    if isinstance(op, AdmitPlain)
                    else SettledPlain(op.started, n, at, op.result, proof=op.proof)
                )
        return answers

    def _admission(self, op: AdmitPlain, connection: Connection, *, alone: int) -> str:
        run, made, quoted = op.run, made_at(op.number), connection.quoted
        return (
            f"call amends_admit_1({quoted(run.root)},{quoted(run.owner)},{run.epoch},{self._now()},"
            f"'{admission_body(op)}',{_double(made - SKEW_S)},{_double(made + SKEW_S)},{self.halt},{op.number},"
            f"x'{key_of(op).hex()}',{self.tools[op.tool]},x'{op.ident.hex()}',x'{op.digest.hex()}',{quoted(op.args)},"
            f"{_or_null(more_of(op), quoted)},{alone})"
        )

    def _settlement(self, op: SettlePlain, connection: Connection, *, alone: int) -> str:
        first, quoted = op.started.op, connection.quoted
        run = first.run
        more = more_of(first, op.proof) if op.proof else None
        return (
            f"call amends_settle_1({quoted(run.root)},{quoted(run.owner)},{run.epoch},{self._now()},"
            f"'{success_body(op)}',{_double(op.started.at + FOLD_WINDOW_S)},{first.number},{quoted(op.result)},"
            f"{_or_null(more, quoted)},{_or_null(more_of(first), quoted)},{alone})"
        )

    def begin(self, op: BeginCompensation, connection: Connection) -> CallRow | None:
        """Begin the compensation; return None if nothing was changed and the flow must decide."""
        seen, quoted = op.seen, connection.quoted
        undo = None if seen is None else self._undo.get(seen.root)
        if seen is None or undo is None or not is_plain_beginning(op, undo):
            return None
        said = connection.call_procedure(
            f"call amends_begin_1({quoted(seen.root)},{quoted(op.owner)},{op.epoch},{self._now()},"
            f"'{compensation_body(op, 'succeeded', 'compensating')}',{_double(seen.created_at + FOLD_WINDOW_S)},"
            f"{number_of(op.call_id)},{undo.touch},{seen.settled_seq})",
            seen.root,
        )
        if said is None:
            self._undo.pop(seen.root, None)
            return None
        return begun(op, said[1] / MICROS, undo)

    def end(self, op: SettleCompensation, connection: Connection) -> Settled | None:
        """Settle the compensation; return None if nothing was changed and the flow must decide."""
        seen, quoted = op.seen, connection.quoted
        undo = None if seen is None else self._undo.get(seen.root)
        if seen is None or undo is None or not is_plain_end(op, undo):
            return None
        said = connection.call_procedure(
            f"call amends_end_1({quoted(seen.root)},{quoted(op.owner)},{op.epoch},{self._now()},"
            f"'{compensation_body(op, 'compensating', 'compensated')}',{_double(seen.created_at + FOLD_WINDOW_S)},"
            f"{number_of(op.call_id)},{undo.touch})",
            seen.root,
        )
        if said is None:
            self._undo.pop(seen.root, None)
            return None
        undo.going = ""
        undo.left.pop()
        return undone(op, said[1] / MICROS)


def _or_null(text: str | None, quoted: Callable[[str], str]) -> str:
    return "null" if text is None else quoted(text)


def _double(value: float) -> str:
    """Return a literal that the servers read as a double, and not as a decimal."""
    text = repr(value)
    return text if "e" in text else f"{text}e0"


QUICK: Final[dict[type[StoreOp[Any]], Callable[[Plain, Any, Connection], Any]]] = {
    AdmitCall: Plain.answer,
    AdmitPlain: Plain.admit,
    SettlePlain: Plain.settle,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end,
}
