"""Plain steps on MariaDB and MySQL: a step of a plain call is one call of a procedure, and its own transaction.

The procedures are part of the schema (``migrations/mysql``). They lock the run, continue its chain and write the call, or
they change nothing, answer nothing, and the flow decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from time import monotonic
from typing import Any, Final

from amends.encoding.chain import MICROS
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
from amends.ledger.plain import AdmitPlain, PlainTool, SettledPlain, SettlePlain, Started
from amends.ledger.rows import RUN_COLUMNS, AddEvent, CallRow, RunRow
from amends.stores.calls import RootFacts, join, written_owners
from amends.stores.mysql.connection import Connection
from amends.stores.quick import (
    OPEN_ROOT,
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
from amends.stores.sql import FOLD_WINDOW_S, MYSQL, SKEW_S, Execute, Statements, Tail

Clock = Callable[[], float] | None

UNDO_MAX: Final = 10_000
TOGETHER_MAX: Final = 1 << 19
"""The characters of one batch, which must fit into a packet of the server; what is longer is sent alone."""
WAIT_S: Final = 1.0
"""A batch that has been on its way for longer is undone: its events would be so much older than they become visible, and
whoever follows the events may have passed that moment."""
_TOOL: Final = (
    "select no from amends_tool where name = %s and version = %s and kind = %s and scope = 'run' and declared = %s"
    " and undoable = %s and at_commit = 0"
)
_STATEMENTS: Final = Statements(MYSQL)
_ANSWER: Final = answer_sql(_STATEMENTS)
_RUN: Final = f"select {', '.join(map(MYSQL.name_of, RUN_COLUMNS))}, touch from amends_run where uid = %s"
_CALLS: Final = _STATEMENTS.calls.of_root
# The statements of a batch. A list of rows is a derived table, which both servers understand.
_ENDS: Final = (
    "select group_concat(v.place, ',', x.no, ',', x.n, ',', coalesce(lower(hex(x.head)), repeat('0', 64)), ',',"
    " cast(round(x.at * 1e6) as signed) separator ';')"
    " from ({}) v straight_join amends_run x force index (amends_run_uid) on x.uid = v.uid"
    " where x.owner = v.owner and x.epoch = v.epoch and (v.k is null or"
    f" {' and '.join(f'x.{term}' for term in OPEN_ROOT.split(' and '))}"
    " and (select count(*) from amends_call c where c.root = x.no and c.`key` = v.k) = 0) for update skip locked"
)
_TIME: Final = (
    "select concat_ws(',', cast(round((unix_timestamp(sysdate(6)) + 0e0) * 1e6) as signed),"
    " cast(round((select made_at from amends_mark where name = 'time') * 1e6) as signed),"
    " (select halt from amends_ledger where no = 1))"
)
_SETTLING: Final = (
    "select group_concat(no, ':', root separator ',') from amends_call"
    " where ({}) and state = 'started' and attempt = 1 and settled_n is null for update skip locked"
)
_ADD_CALLS: Final = (
    "insert into amends_call (no, root, `key`, gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash, more)"
    " values {}"
)
_SETTLE_CALLS: Final = (
    "update ({}) v straight_join amends_call c on c.no = v.no set c.state = 'succeeded', c.result = v.result,"
    " c.settled_n = v.n, c.settled_at = v.at, c.settled_hash = v.h, c.more = coalesce(v.more, c.more)"
)
_MOVE_ENDS: Final = "update ({}) v straight_join amends_run x on x.no = v.no set x.n = v.n, x.at = v.at, x.head = v.h"


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
        said = connection.call_procedure(self._admission(op, connection), op.run.root)
        return None if said is None else Started(op, said[0], said[1] / MICROS)

    def settle(self, op: SettlePlain, connection: Connection) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        if op.repeated:
            return None
        said = connection.call_procedure(self._settlement(op, connection), op.started.op.run.root)
        return None if said is None else SettledPlain(op.started, said[0], said[1] / MICROS, op.result, proof=op.proof)

    def together(
        self, ops: Sequence[AdmitPlain | SettlePlain], connection: Connection
    ) -> list[Started | SettledPlain | None]:
        """Carry out steps of several runs in one transaction; None for each that was not done: its caller does it alone.

        Two packets: the first locks the runs, waiting for nobody, and asks for the ends of their chains; the second
        writes all steps with one statement for each table. So a step costs a row of each, and no procedure.
        """
        answers: list[Started | SettledPlain | None] = [None] * len(ops)
        asked = self._batch(ops)
        if not asked:
            return answers
        begun_at = monotonic()
        found, said, unsettled = connection.begin_together(self._questions(asked, connection))
        clock, mark, halt = (int(text) for text in said.split(","))
        now = max(clock if self._clock is None else round(self._clock() * MICROS), mark)
        startable, open_calls = halt == self.halt, set(unsettled.split(","))
        admitted: list[str] = []
        settled: list[str] = []
        ends: list[str] = []
        for text in found.split(";") if found else ():
            place, run, last, head, newest = text.split(",")
            op, n, micros = asked[int(place)], int(last) + 1, max(now, int(newest))
            at = micros / MICROS
            if isinstance(op, AdmitPlain):
                if not startable or abs(at - made_at(op.number)) > SKEW_S:
                    continue
                hash = sha256(f"{head}:{n}:{micros}:{admission_body(op)}".encode("ascii")).hexdigest()
                admitted.append(self._row_of(op, connection, f"{run}", n=n, at=at, hash=hash))
                answers[int(place)] = Started(op, n, at)
            else:
                first = op.started.op
                if f"{first.number}:{run}" not in open_calls or at > op.started.at + FOLD_WINDOW_S:
                    continue
                hash = sha256(f"{head}:{n}:{micros}:{success_body(op)}".encode("ascii")).hexdigest()
                more = _or_null(more_of(first, op.proof) if op.proof else None, connection.quoted)
                settled.append(f"{first.number},{n},{_double(at)},x'{hash}',{connection.quoted(op.result)},{more}")
                answers[int(place)] = SettledPlain(op.started, n, at, op.result, proof=op.proof)
            ends.append(f"{run},{n},{_double(at)},x'{hash}'")
        if not ends or monotonic() - begun_at > WAIT_S:
            connection.command("rollback")
            return [None] * len(ops)
        statements = [_ADD_CALLS.format(",".join(admitted))] if admitted else []
        if settled:
            statements.append(_SETTLE_CALLS.format(_derived(("no", "n", "at", "h", "result", "more"), settled)))
        connection.commit_together([*statements, _MOVE_ENDS.format(_derived(("no", "n", "at", "h"), ends))])
        return answers

    def _batch(self, ops: Sequence[AdmitPlain | SettlePlain]) -> dict[int, AdmitPlain | SettlePlain]:
        """Return the steps that can be part of a batch, by their places."""
        batch: dict[int, AdmitPlain | SettlePlain] = {}
        size = 0
        for place, op in enumerate(ops):
            if isinstance(op, SettlePlain):
                length = len(op.result)
            elif is_plain(op) and op.tool in self.tools:
                length = len(op.args)
            else:
                continue
            if size + length <= TOGETHER_MAX:
                batch[place] = op
                size += length
        return batch

    def _questions(self, asked: Mapping[int, AdmitPlain | SettlePlain], connection: Connection) -> list[str]:
        """Return what to ask before a batch: the ends of the chains, the time and halt, and the calls that can be settled."""
        quoted = connection.quoted
        runs: list[str] = []
        calls: list[str] = []
        others: list[str] = []
        for place, op in asked.items():
            if isinstance(op, AdmitPlain):
                run, key = op.run, f"x'{key_of(op).hex()}'"
            else:
                first = op.started.op
                run, key, was = first.run, "null", more_of(first)
                if was is None:
                    calls.append(str(first.number))
                else:
                    others.append(f"no = {first.number} and more = {quoted(was)}")
            runs.append(f"{place},_binary{quoted(run.root)},_binary{quoted(run.owner)},{run.epoch},{key}")
        if calls:
            others.append(f"no in ({','.join(calls)}) and more is null")
        settling = _SETTLING.format(" or ".join(others) or "false")
        return [_ENDS.format(_derived(("place", "uid", "owner", "epoch", "k"), runs)), _TIME, settling]

    def _row_of(self, op: AdmitPlain, connection: Connection, run: str, *, n: int, at: float, hash: str) -> str:
        """Return the row of a call that starts."""
        quoted = connection.quoted
        return (
            f"({op.number},{run},x'{key_of(op).hex()}',1,{n},{self.tools[op.tool]},'started',1,x'{op.ident.hex()}',"
            f"x'{op.digest.hex()}',{quoted(op.args)},{_double(at)},{op.run.epoch},x'{hash}',"
            f"{_or_null(more_of(op), quoted)})"
        )

    def _admission(self, op: AdmitPlain, connection: Connection) -> str:
        run, made, quoted = op.run, made_at(op.number), connection.quoted
        return (
            f"call amends_admit_1({quoted(run.root)},{quoted(run.owner)},{run.epoch},{self._now()},"
            f"'{admission_body(op)}',{_double(made - SKEW_S)},{_double(made + SKEW_S)},{self.halt},{op.number},"
            f"x'{key_of(op).hex()}',{self.tools[op.tool]},x'{op.ident.hex()}',x'{op.digest.hex()}',{quoted(op.args)},"
            f"{_or_null(more_of(op), quoted)})"
        )

    def _settlement(self, op: SettlePlain, connection: Connection) -> str:
        first, quoted = op.started.op, connection.quoted
        run = first.run
        more = more_of(first, op.proof) if op.proof else None
        return (
            f"call amends_settle_1({quoted(run.root)},{quoted(run.owner)},{run.epoch},{self._now()},"
            f"'{success_body(op)}',{_double(op.started.at + FOLD_WINDOW_S)},{first.number},{quoted(op.result)},"
            f"{_or_null(more, quoted)},{_or_null(more_of(first), quoted)})"
        )

    def fail(self, op: SettleCall, connection: Connection) -> Settled | None:
        """Settle a plain call as failed; return None if nothing was changed and the flow must decide."""
        seen, quoted = op.seen, connection.quoted
        if seen is None or not is_plain_failure(op, seen):
            return None
        root = RootFacts(0, seen.root, seen.run_id, seen.tenant, seen.agent, seen.principal)
        learned, before, after = failed(op, seen, root)
        event = failure_event(op, seen, 0.0)
        said = connection.call_procedure(
            f"call amends_fail_1({quoted(seen.root)},{quoted(op.owner)},{op.epoch},{self._now()},'{event.body}',"
            f"{number_of(seen.id)},{quoted(seen.id)},{quoted(event.facts)},{_or_null(after, quoted)},"
            f"{_or_null(before, quoted)})",
            seen.root,
        )
        return None if said is None else Settled(failed_row(seen, learned, said[1] / MICROS))

    def open(self, op: OpenRun, connection: Connection) -> Opened | None:
        """Open a run that there was not; return None if nothing was changed and the flow must decide."""
        if op.deadline_s is not None or op.token:
            return None  # its first event proves it, and only the server knows the time; or it names a token
        row, quoted = new_run(op, 1, 0.0), connection.quoted
        event = opening_event(op, row, 0.0)
        texts = (
            event.facts,
            op.policy,
            op.order_mode,
            op.agent,
            op.principal,
            op.input,
            op.input_digest,
            op.tags,
            op.owner,
        )
        said = connection.call_procedure(
            f"call amends_open_1({quoted(op.uid)},{quoted(op.id)},{quoted(op.tenant)},{self._now()},'{event.body}',"
            f"{','.join(map(quoted, texts))},{quoted(op.opener)},{_double(op.lease_s)},{quoted(op.budgets)},"
            f"{quoted(op.completion)},{quoted(op.boot)},{_double(row.lease_mono or 0.0)},{quoted(written_owners({1: op.owner}))})",
            op.uid,
        )
        if said is None:
            return None
        at = said[1] / MICROS
        return Opened("fresh", new_run(op, 1, at), at)

    def turn(self, op: BeginRollback, connection: Connection) -> Rollback | None:
        """Begin the rollback of a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_rollback(op):
            return None
        goal, event = rollback_events(op, op.plain, 0.0)
        found = self._moved(op, connection, event, goal=goal, aim=tuple(rollback_goal(op).values()), calls=True)
        if found is None:
            return None
        run, touch, at, called = found
        answer = Rollback("rolling", run, Tree(run, (run,), tuple([join(values)[0] for values in called]), at))
        self._keep(answer, touch)
        return answer

    def close(self, op: CloseRun, connection: Connection) -> RunRow | None:
        """Close a plain run whose calls are compensated; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_close(op):
            return None
        found = self._moved(op, connection, close_event(op, op.plain, 0.0))
        if found is None:
            return None
        self._undo.pop(op.run, None)
        return found[0]

    def commit(self, op: DecideCommit, connection: Connection) -> Decision | None:
        """Commit a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_commit(op):
            return None
        goal, event = commit_events(op, op.plain, 0.0)
        found = self._moved(op, connection, event, goal=goal, aim=("commit", "self", None), output=op.output)
        return None if found is None else Decision("committed", found[0])

    def _moved(
        self, op: BeginRollback | CloseRun | DecideCommit, connection: Connection, event: AddEvent, *,
        goal: AddEvent | None = None, aim: tuple[str | None, ...] = (None, None, None), output: str | None = None,
        calls: bool = False,
    ) -> tuple[RunRow, int, float, list[tuple[Any, ...]]] | None:  # fmt: skip
        """Change the row of the run and write the events; return the run, its touch, the time and its calls."""
        quoted = connection.quoted
        said_of_goal = "null,null" if goal is None else f"'{goal.body}',{quoted(goal.facts)}"
        uid = quoted(op.run)
        said, found = connection.call_and_read(
            f"call amends_move_1({uid},{quoted(op.owner)},{op.epoch},{self._now()},{quoted(event.by_whom)},"
            f"{','.join(_or_null(one, quoted) for one in aim)},{said_of_goal},'{event.frm}','{event.to_state}',"
            f"'{event.body}',{quoted(event.facts)},{_or_null(output, quoted)})",
            [_RUN % uid, _CALLS % uid] if calls else [_RUN % uid],
            op.run,
        )
        if said is None:
            return None
        *values, touch = found[0][0]
        return RunRow(*values), touch, said[1] / MICROS, found[1] if calls else []

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


def _derived(names: Sequence[str], rows: Sequence[str]) -> str:
    """Return rows of literals as the text of a derived table with these columns."""
    named = ",".join(f"null as {name}" for name in names)
    return f"select {named} from dual where false union all select {' union all select '.join(rows)}"


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
    SettleCall: Plain.fail,
    OpenRun: Plain.open,
    BeginRollback: Plain.turn,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end,
    CloseRun: Plain.close,
    DecideCommit: Plain.commit,
}
