"""Plain steps on MariaDB and MySQL: a step of a plain call is one statement, and its own transaction.

Nothing is read first. The owner of a run remembers the end of its chain (``Kept``), and a step is done only if the run
still has this epoch and this ``touch``: then nobody else has written an event since, and the run has this owner and
all else that an event would have changed. Otherwise it changes nothing, and the flow in ``ledger/`` decides. The server
has prepared these statements: to read them takes it longer than to carry them out. What writes several rows is a
procedure of the schema (``migrations/mysql``).

Whoever continues a chain must be the only one that does. So there is at most one ``Kept`` for a run and its ``touch``: it
is made by a transaction that moves ``touch``, and a step takes it away (``Ends``) until its outcome is known. One that is
lost is not made again from what the ledger says: a statement that was given up may still be on its way.

The microseconds of an event come back as the insert id of the statement, so that the answer is a single packet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import Any, Final

from amends.encoding.canonical import quoted as json_quoted
from amends.encoding.chain import GENESIS, MICROS, body_of
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
from amends.stores.calls import RootFacts, attempt_facts, join, written_owners
from amends.stores.mysql import errors
from amends.stores.mysql.connection import Connection, Prepared, sized
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
from amends.stores.sql import FOLD_WINDOW_S, MYSQL, SKEW_S, Execute, Kept, Statements, Transaction

Clock = Callable[[], float] | None
Quoted = Callable[[str], str]
Said = tuple[int, int]
"""How many rows a statement wrote, and its insert id."""

KEPT_MAX: Final = 100_000
STEP_MAX: Final = 1 << 21
"""The characters of arguments or a result that are sent in one packet; with longer ones, the flow decides."""
TOGETHER_MAX: Final = 1 << 19
"""The characters of one batch, which must fit into a packet of the server; what is longer is sent alone."""
WAIT_S: Final = 1.0
"""A batch that has been on its way for longer is undone: its events would be so much older than they become visible, and
whoever follows the events may have passed that moment."""
WAIT_US: Final = int(WAIT_S * MICROS)
SKEW_US: Final = int(SKEW_S * MICROS)
WINDOW_US: Final = int(FOLD_WINDOW_S * MICROS)
_TOOL: Final = (
    "select no from amends_tool where name = %s and version = %s and kind = %s and scope = 'run' and declared = %s"
    " and undoable = %s and at_commit = 0"
)
_STATEMENTS: Final = Statements(MYSQL)
_ANSWER: Final = answer_sql(_STATEMENTS)
_RUN: Final = f"select {', '.join(map(MYSQL.name_of, RUN_COLUMNS))} from amends_run where uid = %s"
_CALLS: Final = _STATEMENTS.calls.of_root
# The server's clock in microseconds: when a statement has what it waited for, and when it began.
_CLOCK: Final = "cast(unix_timestamp(sysdate(6)) * 1000000 as signed)"
_BEGUN: Final = "cast(unix_timestamp(now(6)) * 1000000 as signed)"
_MARK: Final = "(select cast(round(made_at * 1e6) as signed) from amends_mark where name = 'time')"
_COLUMNS: Final = "(no, root, `key`, gen, n, tool, state, attempt, ident, digest, args, at, epoch, hash, more)"
_FIRST_ATTEMPT: Final = attempt_facts(1)
_TOUCH: Final = "update amends_run set touch = touch + 1 where uid = %s and root = uid and owner = %s and epoch = %s"
_END: Final = f"select no, n, head, at, touch, {OPEN_ROOT}, id, tenant, agent, principal from amends_run where uid = %s"


def _alone(now: str) -> tuple[Prepared, Prepared, Prepared, Prepared]:
    """Return the statements of an admission, a settlement, one whose result is encrypted and has a digest, and a failure.

    The condition with the time comes last, and sets the insert id that the columns are made from.
    """
    hash = "settled_hash=unhex(sha2(concat(?,last_insert_id(),?),256))"
    is_running = "no = ? and root = ? and state = 'started' and attempt = 1 and settled_n is null"
    is_mine = (
        "more <=> ? and exists (select 1 from amends_run where no = ?"
        f" and epoch = ? and touch = ? lock in share mode) and last_insert_id(greatest(?,{now},{_MARK})) <= ?"
    )
    settle = (
        "update amends_call set state='succeeded',settled_n=?,settled_at=last_insert_id()/1e6,result=?,"
        f"{hash}{{}} where {is_running} and {is_mine}"
    )
    fail = (
        f"update amends_call set state='failed',settled_n=?,settled_at=last_insert_id()/1e6,{hash},more=?"
        f" where {is_running} and settled_at is null and result is null and {is_mine}"
    )
    return (
        Prepared(
            "insert into amends_call (no, root, n, tool, epoch, `key`, ident, digest, args, hash, more, at, state, gen,"
            " attempt) select ?,?,?,?,?,?,?,?,?,unhex(sha2(concat(?,last_insert_id(),?),256)),?,last_insert_id()/1e6,"
            "'started',1,1 from amends_ledger l straight_join amends_run r where l.no = 1 and l.halt = ? and r.no = ?"
            f" and r.epoch = ? and r.touch = ? and last_insert_id(greatest(?,{now},{_MARK})) between ? and ?"
            " lock in share mode",
            "qqqqqbbbttttqqqqqqq",
        ),
        Prepared(settle.format(""), "qtttqqtqqqqq"),
        Prepared(settle.format(",more=?"), "qttttqqtqqqqq"),
        Prepared(fail, "qtttqqtqqqqq"),
    )


_ALONE: Final = _alone(_CLOCK)
_AT: Final = _alone("0")
"""The same with the time of a clock, for tests: it is given as that of the event before."""
# Which values are null, a bit for each: what the hot columns do not say of a call, after and before.
_MORE_SAID, _MORE_NULL = bytes(3), bytes((0, 1 << 3, 0))
_WAS_SAID, _WAS_NULL = (bytes(2), bytes(2)), (bytes((1 << 6, 0)), bytes((1 << 7, 0)))
_FAILED_MORE, _FAILED_WAS = 1 << 3, 1 << 6
_ONE: Final = Struct("<q").pack
_TWO: Final = Struct("<2q").pack
_FIVE: Final = Struct("<5q").pack
_SEVEN: Final = Struct("<7q").pack
# A batch: its rows are a table of values, whose columns these are. All its events have the moment in which it began.
_ADMITTED: Final = "root,epoch,touch,no,k,n,tool,ident,digest,args,low,high,head,body,more"
_SETTLED: Final = "root,epoch,touch,no,n,result,low,high,head,body,more,was"
_OWNED: Final = (
    "v straight_join amends_run r on r.no = v.root where r.epoch = v.epoch and r.touch = v.touch"
    f" and {{now}} between v.low and v.high and {_MARK} <= {{now}}"
)
_HASH: Final = "unhex(sha2(concat(v.head,{now},v.body),256))"
_ADD_CALLS: Final = (
    f"insert into amends_call {_COLUMNS} with v({_ADMITTED}) as (values {{rows}}) select v.no,r.no,v.k,1,v.n,v.tool,"
    f"'started',1,v.ident,v.digest,v.args,last_insert_id({{now}})/1e6,v.epoch,{_HASH},v.more from {_OWNED}"
    " and (select halt from amends_ledger where no = 1) = {halt}"
    " and not exists (select 1 from amends_call c where c.root = v.root and c.`key` = v.k) for update skip locked"
)
_SETTLE_CALLS: Final = (
    f"update (with v({_SETTLED}) as (values {{rows}}) select v.* from {_OWNED} for update skip locked) v"
    " straight_join amends_call c on c.no = v.no set c.state = 'succeeded', c.result = v.result, c.settled_n = v.n,"
    f" c.settled_at = last_insert_id({{now}})/1e6, c.settled_hash = {_HASH}{{more}}"
    " where c.root = v.root and c.state = 'started' and c.attempt = 1 and c.settled_n is null and {was}"
)
_MORE: Final = ", c.more = coalesce(convert(v.more using utf8mb4), c.more)"
_WAS: Final = "c.more <=> convert(v.was using utf8mb4) collate utf8mb4_bin"
_LATE: Final = "set @amends_late = if({} - {} > {}, exp(1000), 0)"
"""An error, and with it the end of the transaction, if its last step began too long ago."""
_HASHES: Final = "select hash, settled_hash from amends_call where no in ({})"


class Ends:
    """The ends of chains that this process may continue, by root."""

    def __init__(self) -> None:
        self._kept: dict[str, Kept] = {}
        self._sessions = 0
        """How often a connection was lost; what was taken before that is not given back."""

    def forget_all(self) -> None:
        """Forget all ends: a connection was lost, and the server may have been restored from a backup meanwhile."""
        self._sessions += 1
        self._kept = {}

    def knows(self, run: PlainRun) -> bool:
        """Return whether the end of the chain of this run can be taken."""
        return run.root in self._kept

    def take(self, root: str, owner: str, epoch: int) -> Kept | None:
        """Take away the end of the chain of this run: nobody else can continue it until it is given back."""
        kept = self.pop(root)
        return kept if kept is not None and kept.owner == owner and kept.epoch == epoch else None

    def pop(self, root: str) -> Kept | None:
        """Do the same, whoever the owner is."""
        kept = self._kept.pop(root, None)
        if kept is not None:
            kept.session = self._sessions
        return kept

    def give(self, root: str, kept: Kept) -> None:
        """Remember the end of a chain, unless a newer one is known."""
        if kept.session is not None and kept.session != self._sessions:
            return
        known = self._kept.get(root)
        if known is None or known.touch <= kept.touch:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[root] = kept


class Taken:
    """The ends of chains that one transaction has taken, because it reads or writes their runs."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._kept: dict[str, Kept] = {}

    def get(self, root: str, /) -> Kept | None:
        """Take the end of this chain, if it is known."""
        if root not in self._kept:
            kept = self._ends.pop(root)
            if kept is not None:
                self._kept[root] = kept
        return self._kept.get(root)

    def give_back(self) -> None:
        """Give all of them back: nothing was changed."""
        for root, kept in self._kept.items():
            self._ends.give(root, kept)

    def remember(self, op: StoreOp[Any], answer: Any, tx: Transaction) -> None:
        """Remember the new ends of the chains, after the commit."""
        for root, tail in tx.tails.items():
            kept, run = self._kept.pop(root, None), tx.runs.get(root)
            owner, epoch = (tail.owner, tail.epoch) if run is None else (run.owner, run.epoch)
            if not tail.is_longer:
                if kept is not None:
                    self._ends.give(root, kept)
            elif owner and tail.no > 0 and (kept is not None or getattr(op, "owner", "") == owner):
                admits = _admits(run) if run is not None else kept is not None and kept.admits
                new = Kept(tail.no, tail.n, tail.head, tail.at, tail.touch + 1, owner, epoch, admits=admits)
                new.undo = undo_of(answer, new.touch) if isinstance(op, BeginRollback) else None
                self._ends.give(root, new)
        self.give_back()  # those whose chains were not looked at


@dataclass(slots=True)
class Move:
    """A plain step whose end of a chain was taken, and what is needed to understand its answer."""

    op: AdmitPlain | SettlePlain
    run: PlainRun
    kept: Kept
    n: int
    """The number of its event."""
    low: int
    """The microseconds of the event before."""
    body: str
    tool: int

    @property
    def number(self) -> int:
        """The number of the call."""
        return self.op.number if isinstance(self.op, AdmitPlain) else self.op.started.op.number

    def hash(self, micros: int) -> str:
        """Return the hash of its event."""
        return sha256(f"{self.kept.head}:{self.n}:{micros}:{self.body}".encode("ascii")).hexdigest()


@dataclass(slots=True)
class Batch:
    """Steps that are sent together, by their places, and then their answers."""

    answers: list[Started | SettledPlain | None]
    steps: dict[int, Move] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    """The statements of the transaction: the admissions, the settlements, and a last one that writes nothing."""
    admitted: int = 0
    settled: int = 0

    @property
    def text(self) -> str:
        """The transaction, as one packet has it."""
        return f"begin; {'; '.join(self.texts)}; commit"

    @property
    def counts(self) -> list[tuple[type[Any], int]]:
        """How many steps each of its statements does, by their kind."""
        return [(kind, count) for kind, count in ((AdmitPlain, self.admitted), (SettlePlain, self.settled)) if count]


class Plain:
    """The plain steps of one store, and what it remembers of its runs and tools."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.tools: dict[PlainTool, int] = {}
        self.halt = 0
        self.ends = Ends()

    def forget(self) -> None:
        """Forget every run and tool: another process continues the chains, or the tables are others."""
        self.ends = Ends()
        self.tools = {}

    def _now(self, otherwise: str) -> str:
        """Return the time as microseconds: that of the clock, or of the server."""
        return otherwise if self._clock is None else str(round(self._clock() * MICROS))

    def answer(self, op: AdmitCall, connection: Connection) -> Admission | None:
        """Return the answer that is already in the record; None: the flow decides."""
        if not is_plain_question(op):
            return None
        connection.begin(())
        found, _, _ = connection.execute(Execute(_ANSWER, question(op)))
        return answered(op, found)

    # ---- A plain call

    def admit(self, op: AdmitPlain, connection: Connection) -> Started | None:
        """Start the call; return None if nothing was changed and the flow must decide."""
        if not is_plain(op) or (op.tool not in self.tools and not self._find_tool(op.tool, connection)):
            return None
        answer: Started | None = self._alone(op, op.run, connection)
        return answer

    def settle(self, op: SettlePlain, connection: Connection) -> SettledPlain | None:
        """Settle the call; return None if nothing was changed and the flow must decide."""
        answer: SettledPlain | None = self._alone(op, op.started.op.run, connection)
        return answer

    def _alone(self, op: AdmitPlain | SettlePlain, run: PlainRun, connection: Connection) -> Any:
        if not self.ends.knows(run) and (op.repeated or not self._find_end(run, connection)):
            return None
        step = self.move(op)
        return None if step is None else self._done_alone(step, connection)

    def _find_tool(self, tool: PlainTool, connection: Connection) -> bool:
        connection.begin(())
        found, _, _ = connection.execute(
            Execute(_TOOL, (tool.name, tool.version, tool.kind, tool.declared, tool.undoable))
        )
        if found:
            self.tools[tool] = found[0][0]
        return bool(found)

    def _find_end(self, run: PlainRun, connection: Connection) -> bool:
        """Look for the end of the chain; return whether it is known now.

        This moves ``touch``: a statement that knows the old one, and may still be on its way, is then not done any more.
        """
        connection.begin(("begin",))
        _, matched, _ = connection.execute(Execute(_TOUCH, (run.root, run.owner, run.epoch)))
        if matched != 1:
            connection.command("rollback")
            return False
        [(no, n, head, at, touch, admits, *facts)], _, _ = connection.execute(Execute(_END, (run.root,)))
        later, _, _ = connection.execute(Execute(_STATEMENTS.events.folded_tail, (no, n) * 4))
        connection.command("commit")
        if later:
            n, at, head = later[0]
        if facts != [run.run_id, run.tenant, run.agent, run.principal]:
            return False
        head = GENESIS if head is None else bytes(head).hex()
        self.ends.give(run.root, Kept(no, n, head, at, touch, run.owner, run.epoch, admits=bool(admits)))
        return True

    def move(self, op: AdmitPlain | SettlePlain) -> Move | None:
        """Take the end of the chain for this step; None: it is not known, or the step is not plain."""
        return self._admission(op) if isinstance(op, AdmitPlain) else self._settlement(op)

    def _admission(self, op: AdmitPlain) -> Move | None:
        run, tool = op.run, self.tools.get(op.tool, 0)
        if not tool or not is_plain(op) or len(op.args) > STEP_MAX:
            return None
        kept = self.ends.take(run.root, run.owner, run.epoch)
        if kept is None:
            return None
        run.takes_back = run.fails = True
        low = round(kept.at * MICROS)
        if not kept.admits or abs(low - (op.number >> RANDOM_BITS)) > SKEW_US:
            self.ends.give(run.root, kept)
            return None
        return Move(op, run, kept, kept.n + 1, low, admission_body(op), tool)

    def _settlement(self, op: SettlePlain) -> Move | None:
        run = op.started.op.run
        if op.repeated or len(op.result) > STEP_MAX:
            return None
        kept = self.ends.take(run.root, run.owner, run.epoch)
        if kept is None:
            return None
        low = round(kept.at * MICROS)
        if low > round(op.started.at * MICROS) + WINDOW_US:
            self.ends.give(run.root, kept)
            return None
        return Move(op, run, kept, kept.n + 1, low, success_body(op), 0)

    def statement(self, step: Move) -> tuple[Prepared, bytes]:
        """Return the statement that does this step alone, and its values."""
        op, kept, n, low = step.op, step.kept, step.n, step.low
        admit, settle, settle_sealed, _ = _ALONE
        if self._clock is not None:
            admit, settle, settle_sealed, _ = _AT
            low = max(low, round(self._clock() * MICROS))
        head, body = sized(f"{kept.head}:{n}:".encode("ascii")), sized(f":{step.body}".encode("ascii"))
        if isinstance(op, AdmitPlain):
            made = op.number >> RANDOM_BITS
            more = more_of(op) if op.call_ref or op.proof else None
            return admit, b"".join((
                _MORE_SAID if more is not None else _MORE_NULL, admit.types, _FIVE(op.number, kept.no, n, step.tool, kept.epoch),
                sized(key_of(op)), sized(op.ident), sized(op.digest), sized(op.args.encode()), head, body,
                b"" if more is None else sized(more.encode()),
                _SEVEN(self.halt, kept.no, kept.epoch, kept.touch, low, made - SKEW_US, made + SKEW_US),
            ))  # fmt: skip
        first = op.started.op
        was = more_of(first) if first.call_ref or first.proof else None
        more = more_of(first, op.proof) if op.proof else None
        settle = settle if more is None else settle_sealed
        nulls = (_WAS_NULL if was is None else _WAS_SAID)[more is not None]
        return settle, b"".join((
            nulls, settle.types, _ONE(n), sized(op.result.encode()), head, body,
            b"" if more is None else sized(more.encode()), _TWO(first.number, kept.no),
            b"" if was is None else sized(was.encode()),
            _FIVE(kept.no, kept.epoch, kept.touch, low, round(op.started.at * MICROS) + WINDOW_US),
        ))  # fmt: skip

    def _done_alone(self, step: Move, connection: Connection) -> Any:
        try:
            said = connection.carry_out(*self.statement(step), step.run.root)
        except Exception as error:
            self.failed((step,), error)
            raise
        return self.done(step, said)

    def done(self, step: Move, said: Said | None) -> Started | SettledPlain | None:
        """Return the answer to a step that was sent alone; None: it has changed nothing, and the flow decides.

        ``said``: how many rows it wrote, and the microseconds; None: the ledger has the key already.
        """
        if said is None:
            self.ends.give(step.run.root, step.kept)
            return None
        # None was written: most likely somebody else has written an event, and the end of the chain is another one.
        return self._continued(step, said[1]) if said[0] == 1 else None

    def failed(self, steps: Sequence[Move], error: BaseException) -> None:
        """Note that steps failed: what the server itself says was not done."""
        if _is_refused(error):
            self.untouched(steps)
        self.lost(error)

    def lost(self, error: BaseException) -> None:
        """Forget the ends of all chains if this error ended a session."""
        if errors.code_of(error) in errors.LOST:
            self.ends.forget_all()

    def untouched(self, steps: Sequence[Move]) -> None:
        """Give the ends of their chains back: nothing of these steps was done."""
        for step in steps:
            self.ends.give(step.run.root, step.kept)

    def _continued(self, step: Move, micros: int) -> Started | SettledPlain:
        op, kept, n, at = step.op, step.kept, step.n, micros / MICROS
        kept.head = step.hash(micros)
        kept.n, kept.at = n, at
        self.ends.give(step.run.root, kept)
        if isinstance(op, AdmitPlain):
            return Started(op, n, at)
        return SettledPlain(op.started, n, at, op.result, proof=op.proof)

    # ---- Plain calls of many runs

    def together(
        self, ops: Sequence[AdmitPlain | SettlePlain], connection: Connection
    ) -> list[Started | SettledPlain | None]:
        """Carry out steps of several runs in one transaction; None for each that was not done: its caller does it alone."""
        batch = self.batch(ops, connection)
        if not batch.steps:
            return batch.answers
        try:
            said = connection.ask_together(batch.text, len(batch.texts) + 2)[1:-1]
        except Exception as error:
            self.failed(list(batch.steps.values()), error)
            raise
        return self.all_done(batch, said) or self.some_done(batch, said, connection)

    def batch(self, ops: Sequence[AdmitPlain | SettlePlain], connection: Connection) -> Batch:
        """Return steps that can be sent together: one transaction, in one packet, with one statement for each kind of step.

        It waits for no run that somebody else has locked. All its events have the moment in which it began.
        """
        batch, quoted = Batch([None] * len(ops)), connection.quoted
        size, is_special = 0, False
        admitted: list[str] = []
        settled: list[str] = []
        for place, op in enumerate(ops):
            size += len(op.args) if isinstance(op, AdmitPlain) else len(op.result)
            step = self.move(op) if size <= TOGETHER_MAX else None
            if step is None:
                continue
            batch.steps[place] = step
            if isinstance(op, AdmitPlain):
                admitted.append(_admitted_row(step, op, quoted))
            else:
                settled.append(_settled_row(step, op, quoted))
                is_special = is_special or bool(op.proof or op.started.op.call_ref or op.started.op.proof)
        now = self._now(_BEGUN)
        batch.admitted, batch.settled = len(admitted), len(settled)
        if admitted:
            batch.texts.append(_ADD_CALLS.format(rows=_rows(admitted, connection), now=now, halt=self.halt))
        if settled:
            more, was = (_MORE, _WAS) if is_special else ("", "c.more is null")
            batch.texts.append(_SETTLE_CALLS.format(rows=_rows(settled, connection), now=now, more=more, was=was))
        batch.texts.append(_LATE.format(self._now(_CLOCK), "last_insert_id()" if self._clock is None else now, WAIT_US))
        return batch

    def all_done(self, batch: Batch, said: Sequence[Said]) -> list[Started | SettledPlain | None] | None:
        """Return the answers of a batch of which every step was done; None: some were not."""
        micros = {kind: one for (kind, _), one in zip(batch.counts, said, strict=False)}
        if any(micros[kind][0] != count for kind, count in batch.counts):
            return None
        for place, step in batch.steps.items():
            batch.answers[place] = self._continued(step, micros[type(step.op)][1])
        return batch.answers

    def some_done(
        self, batch: Batch, said: Sequence[Said], connection: Connection
    ) -> list[Started | SettledPlain | None]:
        """Return the answers of a batch of which some steps were not done; the hashes of the ledger say which."""
        micros = {kind: one for (kind, _), one in zip(batch.counts, said, strict=False)}
        numbers = ",".join([str(step.number) for step in batch.steps.values()])
        for step in batch.steps.values():
            step.op.repeated = True  # until this is known: it may have been done
        connection.begin(())
        found, _, _ = connection.execute(Execute(_HASHES.format(numbers), ()))
        hashes = {bytes(hash).hex() for row in found for hash in row if hash is not None}
        for place, step in batch.steps.items():
            step.op.repeated = False
            if step.hash(micros[type(step.op)][1]) in hashes:
                batch.answers[place] = self._continued(step, micros[type(step.op)][1])
        return batch.answers

    # ---- A plain failure; opening a run

    def fail(self, op: SettleCall, connection: Connection) -> Settled | None:
        """Settle a plain call as failed; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        if seen is None or not is_plain_failure(op, seen):
            return None
        kept = self.ends.take(seen.root, op.owner, op.epoch)
        if kept is None:
            return None
        root = RootFacts(kept.no, seen.root, seen.run_id, seen.tenant, seen.agent, seen.principal)
        learned, before, after = failed(op, seen, root)
        number = number_of(seen.id) or 0
        at = self._fail(connection, seen.root, kept, failed_body(op, seen), seen.created_at, number, after, before)
        return None if at is None else Settled(failed_row(seen, learned, at))

    def fail_plainly(self, op: FailPlain, connection: Connection) -> FailedPlain | None:
        """Do what ``fail`` does for a call that this process has started, without rows."""
        started = op.started
        first = started.op
        run = first.run
        kept = self.ends.take(run.root, run.owner, run.epoch) if fails_plainly(op) else None
        if kept is None:
            return None
        at = self._fail(
            connection, run.root, kept, failure_body(op), started.at, first.number, more_of_failure(op), more_of(first)
        )
        return None if at is None else FailedPlain(op, at)

    def _fail(
        self, connection: Connection, root: str, kept: Kept, body: str, since: float, number: int, more: str | None,
        was: str | None,
    ) -> float | None:  # fmt: skip
        """Settle a call as failed, for which the end of the chain was taken; return when. None: nothing was changed.

        ``body``: of its event. ``since``: when the call was admitted. ``more``, ``was``: what its hot columns do not say,
        after and before.
        """
        if more is not None and len(more) > STEP_MAX:
            self.ends.give(root, kept)
            return None
        *_, fail = _ALONE if self._clock is None else _AT
        n, low = kept.n + 1, round(kept.at * MICROS)
        if self._clock is not None:
            low = max(low, round(self._clock() * MICROS))
        nulls = (_FAILED_MORE if more is None else 0) | (_FAILED_WAS if was is None else 0)
        values = b"".join((
            bytes((nulls, 0)), fail.types, _ONE(n), sized(f"{kept.head}:{n}:".encode("ascii")), sized(f":{body}".encode("ascii")),
            b"" if more is None else sized(more.encode()), _TWO(number, kept.no),
            b"" if was is None else sized(was.encode()),
            _FIVE(kept.no, kept.epoch, kept.touch, low, round(since * MICROS) + WINDOW_US),
        ))  # fmt: skip
        with self._given_back(root, kept):
            said = connection.carry_out(fail, values, root)
        if said is None or said[0] != 1:
            return None
        _extend(kept, said[1], body)
        self.ends.give(root, kept)
        return kept.at

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
            f"call amends_open_1({quoted(op.uid)},{quoted(op.id)},{quoted(op.tenant)},{self._now('null')},'{event.body}',"
            f"{','.join(map(quoted, texts))},{quoted(op.opener)},{_double(op.lease_s)},{quoted(op.budgets)},"
            f"{quoted(op.completion)},{quoted(op.boot)},{_double(row.lease_mono or 0.0)},{quoted(written_owners({1: op.owner}))})",
            op.uid,
        )
        if said is None:
            return None
        kept = Kept(said[0], 0, GENESIS, 0.0, 0, op.owner, 1)
        _extend(kept, said[1], event.body, touch=1)
        self.ends.give(op.uid, kept)
        return Opened("fresh", new_run(op, 1, kept.at), kept.at)

    def _call(self, connection: Connection, name: str, root: str, kept: Kept, more: str) -> tuple[int, int] | None:
        """Call a procedure that continues the chain; the end of it was taken. Return the two numbers of its answer."""
        with self._given_back(root, kept):
            said = connection.call_procedure(f"call {name}({self._guard(kept, connection.quoted)},{more})", root)
        assert said is None or said[0] > 0, "a procedure answers with the number of its event"
        return said

    @contextmanager
    def _given_back(self, root: str, kept: Kept) -> Iterator[None]:
        """Give the end of the chain back if the server refuses what is sent inside the block."""
        try:
            yield
        except Exception as error:
            if _is_refused(error):
                self.ends.give(root, kept)
            raise

    def _guard(self, kept: Kept, quoted: Quoted) -> str:
        return (
            f"{kept.no},{quoted(kept.owner)},{kept.epoch},{kept.touch},{kept.n + 1},'{kept.head}',"
            f"{round(kept.at * MICROS)},{self._now('null')}"
        )

    # ---- Beginning a rollback, closing and committing a run

    def turn(self, op: BeginRollback, connection: Connection) -> Rollback | None:
        """Begin the rollback of a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_rollback(op):
            return None
        goal, event = rollback_events(op, op.plain, 0.0)
        found = self._moved(
            op, op.plain, connection, event, goal=goal, aim=tuple(rollback_goal(op).values()), calls=True
        )
        if found is None:
            return None
        run, kept, called = found
        answer = Rollback("rolling", run, Tree(run, (run,), tuple([join(values)[0] for values in called]), kept.at))
        kept.admits, kept.undo = False, undo_of(answer, kept.touch)
        self.ends.give(run.root, kept)
        return answer

    def close(self, op: CloseRun, connection: Connection) -> RunRow | None:
        """Close a plain run whose calls are compensated; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_close(op):
            return None
        found = self._moved(op, op.plain, connection, close_event(op, op.plain, 0.0))
        return None if found is None else found[0]

    def commit(self, op: DecideCommit, connection: Connection) -> Decision | None:
        """Commit a plain run; return None if nothing was changed and the flow must decide."""
        if op.plain is None or not is_plain_commit(op):
            return None
        goal, event = commit_events(op, op.plain, 0.0)
        found = self._moved(op, op.plain, connection, event, goal=goal, aim=("commit", "self", None), output=op.output)
        return None if found is None else Decision("committed", found[0])

    def _moved(
        self, op: BeginRollback | CloseRun | DecideCommit, run: PlainRun, connection: Connection, event: AddEvent, *,
        goal: AddEvent | None = None, aim: tuple[str | None, ...] = (None, None, None), output: str | None = None,
        calls: bool = False,
    ) -> tuple[RunRow, Kept, list[tuple[Any, ...]]] | None:  # fmt: skip
        """Change the row of the run and write the events; return the run, the end of its chain and its calls.

        The end of the chain was taken, and is left to the caller: a run that is closed has none.
        """
        kept = self.ends.take(op.run, op.owner, run.epoch) if op.epoch == run.epoch else None
        if kept is None:
            return None
        quoted = connection.quoted
        said_of_goal = "null,null" if goal is None else f"'{goal.body}',{quoted(goal.facts)}"
        uid = quoted(op.run)
        text = (
            f"call amends_move_1({self._guard(kept, quoted)},{quoted(event.by_whom)},"
            f"{','.join(_or_null(one, quoted) for one in aim)},{said_of_goal},'{event.frm}','{event.to_state}',"
            f"'{event.body}',{quoted(event.facts)},{_or_null(output, quoted)})"
        )
        selects = [_RUN % uid, _CALLS % uid] if calls else [_RUN % uid]
        with self._given_back(op.run, kept):
            said, found = connection.call_and_read(text, selects, op.run)
        if said is None:
            return None
        _extend(kept, said[1], *([] if goal is None else [goal.body]), event.body, touch=1)
        return RunRow(*found[0][0]), kept, found[1] if calls else []

    # ---- Compensations

    def begin(self, op: BeginCompensation, connection: Connection) -> CallRow | None:
        """Begin the compensation; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        kept = None if seen is None else self.ends.take(seen.root, op.owner, op.epoch)
        if seen is None or kept is None:
            return None
        undo: Undo | None = kept.undo
        if undo is None or undo.touch != kept.touch or not is_plain_beginning(op, undo):
            self.ends.give(seen.root, kept)
            return None
        body = compensation_body(op, "succeeded", "compensating")
        said = self._call(
            connection, "amends_begin_1", seen.root, kept,
            f"'{body}',{round(seen.created_at * MICROS) + WINDOW_US},{number_of(op.call_id)},{seen.settled_seq}",
        )  # fmt: skip
        if said is None:
            return None
        _extend(kept, said[1], body)
        answer = begun(op, kept.at, undo)
        self.ends.give(seen.root, kept)
        return answer

    def end(self, op: SettleCompensation, connection: Connection) -> Settled | None:
        """Settle the compensation; return None if nothing was changed and the flow must decide."""
        seen = op.seen
        kept = None if seen is None else self.ends.take(seen.root, op.owner, op.epoch)
        if seen is None or kept is None:
            return None
        undo: Undo | None = kept.undo
        if undo is None or undo.touch != kept.touch or not is_plain_end(op, undo):
            self.ends.give(seen.root, kept)
            return None
        body = compensation_body(op, "compensating", "compensated")
        said = self._call(
            connection, "amends_end_1", seen.root, kept,
            f"'{body}',{round(seen.created_at * MICROS) + WINDOW_US},{number_of(op.call_id)}",
        )  # fmt: skip
        if said is None:
            return None
        undo.going = ""
        undo.left.pop()
        _extend(kept, said[1], body)
        self.ends.give(seen.root, kept)
        return undone(op, kept.at)

    # ---- A whole rollback

    def turn_back(self, op: TurnPlain, connection: Connection) -> Begun | None:
        """Begin the rollback and its first compensation; return None if nothing was changed and the flow must decide."""
        run, left, quoted = op.run, op.left, connection.quoted
        kept = None if op.repeated or op.token or not op.why else self.ends.take(run.root, run.owner, run.epoch)
        if kept is None:
            return None
        last = left[-1]
        first = last.started
        why = json_quoted(op.why)
        aim = f'"goal": "rollback", "goal_by": "self", "goal_why": {why}}}'
        goal_facts, facts = f'{{"why": {why}, {aim}', f"{{{aim}"
        goal = _run_body(run, "goal", "", "rollback", op.by, goal_facts)
        turn = _run_body(run, "run", "open", "rolling_back", op.by, facts)
        body = run.body(first.op.number, "succeeded", "compensating", _FIRST_ATTEMPT)
        said = self._call(
            connection, "amends_turn_1", run.root, kept,
            f"{quoted(op.by)},{quoted(op.why)},'{goal}',{quoted(goal_facts)},'{turn}',{quoted(facts)},{first.op.number},{last.n},"
            f"{len(left)},{round(first.at * MICROS) + WINDOW_US},'{body}'",
        )  # fmt: skip
        if said is None:
            return None
        kept.admits = False
        _extend(kept, said[1], goal, turn, body, touch=1)
        kept.left = (kept.touch, [one.started.op.number for one in left])
        self.ends.give(run.root, kept)
        return Begun(last, kept.at)

    def undo(self, op: UndonePlain, connection: Connection) -> Begun | TakenBack | None:
        """Settle a compensation of such a rollback, and begin the next one or close the run.

        Return None if nothing was changed and the flow must decide.
        """
        started, then = op.begun.settled.started, op.then
        run, number = started.op.run, started.op.number
        kept = None if op.repeated or op.token else self.ends.take(run.root, run.owner, run.epoch)
        if kept is None:
            return None
        numbers = kept.left[1] if kept.left is not None and kept.left[0] == kept.touch else []
        expected = [number] if then is None else [then.started.op.number, number]
        if numbers[-2:] != expected:
            self.ends.give(run.root, kept)
            return None
        body = run.body(number, "compensating", "compensated", _FIRST_ATTEMPT)
        high = started.at
        if then is None:
            following, after = "null,null", _run_body(run, "run", "rolling_back", "rolled_back", run.owner, "{}")
        else:
            following, high = f"{then.started.op.number},{then.n}", min(high, then.started.at)
            after = run.body(then.started.op.number, "succeeded", "compensating", _FIRST_ATTEMPT)
        said = self._call(
            connection, "amends_undo_1", run.root, kept,
            f"'{body}',{number},{round(high * MICROS) + WINDOW_US},{following},'{after}'",
        )  # fmt: skip
        if said is None:
            return None
        _extend(kept, said[1], body, after)
        if then is None:
            return TakenBack(run)
        numbers.pop()
        self.ends.give(run.root, kept)
        return Begun(then, kept.at)


def _is_refused(error: BaseException) -> bool:
    """Return whether the server itself reports the error: then it has changed nothing."""
    return errors.code_of(error) > 0 and errors.code_of(error) not in errors.LOST


def _extend(kept: Kept, micros: int, *bodies: str, touch: int = 0) -> None:
    """Note events of one moment at the end of a chain. ``touch``: by how much they have moved that."""
    for body in bodies:
        kept.n += 1
        kept.head = sha256(f"{kept.head}:{kept.n}:{micros}:{body}".encode("ascii")).hexdigest()
    kept.at = micros / MICROS
    if touch:
        kept.touch += touch
        kept.undo = kept.left = None


def _admits(run: RunRow) -> bool:
    """Return whether ``OPEN_ROOT`` holds."""
    is_open = run.state == "open" and not run.goal and not run.pivot
    return is_open and run.deadline_at is None and not run.forked_from


def _rows(rows: Sequence[str], connection: Connection) -> str:
    """Return the rows of a table of values, as this server writes them."""
    return f"{connection.row}{f',{connection.row}'.join(rows)}"


def _admitted_row(step: Move, op: AdmitPlain, quoted: Quoted) -> str:
    """Return the row of a call that starts in a batch, in the order of ``_ADMITTED``."""
    kept, made = step.kept, op.number >> RANDOM_BITS
    more = _or_null(more_of(op), quoted) if op.call_ref or op.proof else "null"
    return (
        f"({kept.no},{kept.epoch},{kept.touch},{op.number},x'{key_of(op).hex()}',{step.n},{step.tool},"
        f"x'{op.ident.hex()}',x'{op.digest.hex()}',{quoted(op.args)},{max(step.low, made - SKEW_US)},{made + SKEW_US},"
        f"'{kept.head}:{step.n}:',':{step.body}',{more})"
    )


def _settled_row(step: Move, op: SettlePlain, quoted: Quoted) -> str:
    """Return the row of a call that succeeds in a batch, in the order of ``_SETTLED``."""
    kept, first = step.kept, op.started.op
    more = was = "null"
    if op.proof:
        more = _or_null(more_of(first, op.proof), quoted)
    if first.call_ref or first.proof:
        was = _or_null(more_of(first), quoted)
    return (
        f"({kept.no},{kept.epoch},{kept.touch},{first.number},{step.n},{quoted(op.result)},{step.low},"
        f"{round(op.started.at * MICROS) + WINDOW_US},'{kept.head}:{step.n}:',':{step.body}',{more},{was})"
    )


def _run_body(run: PlainRun, what: str, frm: str, to: str, by: str, facts: str) -> str:
    """Return the body of the hash of an event of a run."""
    return body_of(run.root, run.root, run.run_id, run.tenant, "", what, frm, to, by, run.epoch, facts)


def _or_null(text: str | None, quoted: Quoted) -> str:
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
    FailPlain: Plain.fail_plainly,
    OpenRun: Plain.open,
    BeginRollback: Plain.turn,
    BeginCompensation: Plain.begin,
    SettleCompensation: Plain.end,
    CloseRun: Plain.close,
    DecideCommit: Plain.commit,
    TurnPlain: Plain.turn_back,
    UndonePlain: Plain.undo,
}
