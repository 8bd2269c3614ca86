"""The operations of a plain call: admit it, settle it as succeeded, and take it back with all others of its run.

Nearly every call is plain: a compensatable call or a read in a root run, without approval, lock, budget, repeat or group.
For such a call these operations carry little, and their answers make a row only if somebody asks for one. ``general``
returns the equal operation of ``operations``: a store that has no plain path performs that, and so does every store
for whatever is not plain after all. The answer then is that of the general operation, and the engine goes on with it.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final

from amends.encoding.canonical import head, quoted
from amends.encoding.chain import GENESIS, body_of, move_text, proof, run_text
from amends.encoding.dataclass import changed, dataclass
from amends.encoding.ids import call_id
from amends.ledger.events import spelled
from amends.ledger.operations import (
    Admission,
    AdmitCall,
    BeginCompensation,
    BeginRollback,
    CloseRun,
    Rollback,
    SettleCall,
    SettleCompensation,
    Settled,
    StoreOp,
)
from amends.ledger.rows import CallRow
from amends.states import NEW

_ROW: Final = '", "row": "'
_END: Final = '"}'
_SUCCESS: Final = "success"
"""No state of a call: a plain success, whose facts begin always alike."""


class PlainRun:
    """The root run of a session, as its plain calls name it."""

    __slots__ = (
        "_first", "_moves", "agent", "epoch", "fails", "head", "kept", "owner", "principal", "root", "run_id",
        "takes_back", "tenant",
    )  # fmt: skip

    def __init__(self, root: str, run_id: str, tenant: str, agent: str, principal: str, owner: str, epoch: int) -> None:
        self.root, self.run_id, self.tenant = root, run_id, tenant
        self.agent, self.principal = agent, principal
        self.owner, self.epoch = owner, epoch
        self.kept: Any = None
        """What a store remembers of this run, such as its number and the end of its chain."""
        self.takes_back = False
        """Whether the store of this run has a short way for ``TurnPlain`` and ``UndonePlain``: only then are they asked."""
        self.fails = False
        """The same for ``FailPlain``."""
        self.head = head("call", tenant, root)
        """What the texts whose digests are the keys of its calls begin with; ``PlainTool.part`` comes next."""
        self._first: str | None = None
        """What the texts of all events of its calls begin with, up to the digits of the call; empty: some of it must be written as
        ``body_of`` does."""
        self._moves: dict[str | PlainTool, str] = {}
        """What they go on with, by the new state, up to the length of the facts; of admissions, by the tool, and of plain
        successes up to the first digest in the facts."""

    def body(self, number: int, frm: str, to: str, facts: str) -> str:
        """Return ``body_of`` an event of a call of this run."""
        first = self._begun()
        if first and facts.isascii() and "\x00" not in facts:
            moved = self._moves.get(to)
            if moved is None:
                moved = self._moves[to] = self._moved(frm, to)
            return sha256(f"{first}{number:016x}{moved}{len(facts)}:{facts}".encode("ascii")).hexdigest()
        return body_of(
            self.root,
            self.root,
            self.run_id,
            self.tenant,
            call_id(number),
            "call",
            frm,
            to,
            self.owner,
            self.epoch,
            facts,
        )

    def admission_body(self, op: AdmitPlain) -> str:
        """Return ``body`` of the event of an admission, with the facts of ``admission_facts``."""
        tool, number = op.tool, op.number
        moved = self._moves.get(tool)
        if moved is None:
            facts = f'{{"tool": {tool.quoted}, "args": "'
            moved = self._moves[tool] = self._with_digests(NEW, "started", facts, len(_ROW) + 2 * len(GENESIS))
        first = self._first
        if not (first and moved) or op.call_ref or op.proof or tool.kind == "read":
            return self.body(number, NEW, "started", admission_facts(op, op.row_key))
        columns = (
            f"({tool.columns_first}, '{op.key.hex()}', 1, '{op.ident.hex()}', '{op.digest.hex()}', {tool.columns_rest})"
        )
        row = sha256(columns.encode("ascii")).hexdigest()
        return sha256(f'{first}{number:016x}{moved}{proof(op.args)}{_ROW}{row}"}}'.encode("ascii")).hexdigest()

    def success_body(self, op: SettlePlain) -> str:
        """Return ``body`` of the event of a success, with the facts of ``settlement_facts``."""
        number, moved = op.started.op.number, self._moves.get(_SUCCESS)
        if moved is None:
            moved = self._with_digests("started", "succeeded", '{"attempt": 1, "result": "', len(GENESIS))
            self._moves[_SUCCESS] = moved
        first = self._first
        if not first or op.proof:
            return self.body(number, "started", "succeeded", settlement_facts(op.result, op.proof))
        return sha256(f'{first}{number:016x}{moved}{proof(op.result)}"}}'.encode("ascii")).hexdigest()

    def _begun(self) -> str:
        first = self._first
        if first is None:
            first = f"{run_text(self.root, self.root, self.run_id, self.tenant)}str{len(call_id(0))}:call_"
            if not (first + self.owner).isascii() or "\x00" in first + self.owner:
                first = ""
            self._first = first
        return first

    def _moved(self, frm: str, to: str) -> str:
        return f"{move_text('call', frm, to, self.owner, self.epoch)}str"

    def _with_digests(self, frm: str, to: str, facts: str, rest: int) -> str:
        """Return the same with the beginning of the facts, which have so many characters more and ``"}``; empty: not ASCII."""
        self._begun()
        text = f"{self._moved(frm, to)}{len(facts) + rest + len(_END)}:{facts}"
        return text if text.isascii() and "\x00" not in text else ""

    def __repr__(self) -> str:
        return f"PlainRun({self.root!r}, {self.run_id!r}, owner={self.owner!r}, epoch={self.epoch})"


class PlainTool:
    """A tool, as its plain calls name it: one object per tool and runtime, compared by identity."""

    __slots__ = (
        "advise", "columns_first", "columns_rest", "declared", "kind", "name", "on_conflict", "part", "quoted",
        "result_kinds", "undoable", "version",
    )  # fmt: skip

    def __init__(
        self, name: str, version: str, kind: str, declared: int, undoable: int, *, on_conflict: str = "raise",
        advise: bool = False,
    ) -> None:  # fmt: skip
        assert kind in ("compensatable", "read"), f"a {kind} call is not plain"
        self.name, self.version, self.kind = name, version, kind
        self.declared, self.undoable = declared, undoable
        self.on_conflict, self.advise = on_conflict, advise
        self.part = head(name)
        """The name as a part of a digest."""
        self.quoted = quoted(name)
        """The name as JSON, for the facts of an event."""
        self.result_kinds: Any = {}
        """The types of results that need no validation (``Kinds`` in ``engine/compiled.py``)."""
        self.columns_first = spelled(name, version, kind)
        self.columns_rest = spelled("run", declared, "", "", "", "", 0, undoable, "", "")
        """The beginning and the end of the text of ``call_columns_digest``; the end for a call without a ``call_ref``."""

    def columns_digest(self, key: str, ident: str, digest: str, call_ref: str) -> str:
        """Return ``call_columns_digest`` of a first generation; ``key`` is the key of the row."""
        rest = self.columns_rest
        if call_ref:
            rest = spelled("run", self.declared, "", call_ref, "", "", 0, self.undoable, "", "")
        text = f"({self.columns_first}, '{key}', 1, '{ident}', '{digest}', {rest})"
        return sha256(text.encode("ascii")).hexdigest()

    def __repr__(self) -> str:
        return f"PlainTool({self.name!r}, {self.version!r}, {self.kind!r})"


class Started:
    """The answer to a plain admission: the call has started."""

    __slots__ = ("_row", "at", "n", "op")

    def __init__(self, op: AdmitPlain, n: int, at: float) -> None:
        self.op, self.n, self.at = op, n, at
        self._row: CallRow | None = None

    @property
    def row(self) -> CallRow:
        """The row of the call as the admission has written it."""
        row = self._row
        if row is None:
            row = self._row = self._made("started", None, None, 0)
        return row

    def settled_row(self, settled: SettledPlain) -> CallRow:
        """Return the row as this settlement leaves it, without the row before, unless that was made."""
        if self._row is None:
            return self._made("succeeded", settled.result, settled.at, settled.n)
        return settled.after(self._row)

    def _made(self, state: str, result: str | None, settled_at: float | None, settled_seq: int) -> CallRow:
        op = self.op
        run, tool, at = op.run, op.tool, self.at
        return CallRow(
            id=call_id(op.number), seq=self.n, run=run.root, root=run.root, run_id=run.run_id, tenant=run.tenant,
            tool=tool.name, version=tool.version, kind=tool.kind, key=op.row_key, generation=1, ident=op.ident.hex(),
            digest=op.digest.hex(), args=op.args, state=state, created_at=at, created_epoch=run.epoch,
            asked_epoch=run.epoch, declared=tool.declared, call_ref=op.call_ref, undoable=tool.undoable, attempt=1,
            result=result, first_at=at, started_at=at, settled_at=settled_at, settled_seq=settled_seq, agent=run.agent,
            principal=run.principal,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"Started({self.op!r}, {self.n}, {self.at})"


@dataclass(slots=True)
class AdmitPlain(StoreOp[Started | Admission]):
    """Start this call if nothing in the ledger is in its way; else do what ``AdmitCall`` does."""

    run: PlainRun
    tool: PlainTool
    number: int
    """The number of the call's id."""
    key: bytes
    ident: bytes
    digest: bytes
    args: str
    call_ref: str = ""

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return call_id(self.number)

    @property
    def row_key(self) -> str:
        """The key of the row: a read has one of its own, since reads are never deduplicated."""
        key = self.key.hex()
        return f"{key}:{call_id(self.number)}" if self.tool.kind == "read" else key

    def general(self) -> AdmitCall:
        """Return the equal general operation."""
        run, tool = self.run, self.tool
        return AdmitCall(
            call_id=call_id(self.number), run=run.root, root=run.root, owner=run.owner, epoch=run.epoch, tool=tool.name,
            version=tool.version, kind=tool.kind, key=self.key.hex(), ident=self.ident.hex(), digest=self.digest.hex(),
            args=self.args, declared=bool(tool.declared), call_ref=self.call_ref, undoable=bool(tool.undoable),
            on_conflict=tool.on_conflict, advise=tool.advise, run_id=run.run_id, tenant=run.tenant,
            repeated=self.repeated, proof=self.proof,
        )  # fmt: skip


class SettledPlain:
    """The answer to a plain settlement: the call has succeeded."""

    __slots__ = ("_row", "at", "n", "proof", "result", "started")

    def __init__(self, started: Started, n: int, at: float, result: str, *, proof: str = "") -> None:
        self.started, self.n, self.at, self.result = started, n, at, result
        self.proof = proof
        """The proof of the result, if the operation brought it."""
        self._row: CallRow | None = None

    @property
    def row(self) -> CallRow:
        """The row of the call as the settlement has left it."""
        row = self._row
        if row is None:
            row = self._row = self.started.settled_row(self)
        return row

    def after(self, row: CallRow) -> CallRow:
        """Return this row of the call, which has changed in something else meanwhile, as settled."""
        changes = {"state": "succeeded", "result": self.result, "settled_at": self.at, "settled_seq": self.n}
        return changed(row, changes)

    @property
    def call(self) -> CallRow:
        """The same; the answer to a general settlement names it so."""
        return self.row

    def __repr__(self) -> str:
        return f"SettledPlain({self.started!r}, {self.n}, {self.at})"


@dataclass(slots=True)
class SettlePlain(StoreOp[SettledPlain | Settled]):
    """Settle this call as succeeded with this result if it is as it was started; else do what ``SettleCall`` does."""

    started: Started
    result: str

    def general(self) -> SettleCall:
        """Return the equal general operation."""
        op = self.started.op
        return SettleCall(
            call_id(op.number), op.run.owner, op.run.epoch, 1, "succeeded", result=self.result, seen=self.started.row,
            repeated=self.repeated, proof=self.proof,
        )  # fmt: skip


class FailedPlain:
    """The answer to a plain failure: the call has failed."""

    __slots__ = ("_row", "at", "op")

    def __init__(self, op: FailPlain, at: float) -> None:
        self.op, self.at = op, at
        self._row: CallRow | None = None

    @property
    def call(self) -> CallRow:
        """The row of the call as the failure has left it."""
        row = self._row
        if row is None:
            op = self.op
            said = {"error": op.error, "quiet_boot": op.boot, "quiet_mono": op.mono, "settled_at": self.at}
            row = self._row = changed(op.started.row, {"state": "failed", **said})
        return row

    def __repr__(self) -> str:
        return f"FailedPlain({self.op!r}, {self.at})"


@dataclass(slots=True)
class FailPlain(StoreOp[FailedPlain | Settled]):
    """Settle this call as failed for good if it is as it was started; else do what ``SettleCall`` does."""

    started: Started
    error: str
    boot: str
    mono: float

    def general(self) -> SettleCall:
        """Return the equal general operation."""
        op = self.started.op
        return SettleCall(
            call_id(op.number), op.run.owner, op.run.epoch, 1, "failed", error=self.error, seen=self.started.row,
            boot=self.boot, mono=self.mono, repeated=self.repeated, proof=self.proof,
        )  # fmt: skip


class Begun:
    """A compensation that has begun: of a call that this process saw succeed."""

    __slots__ = ("_row", "at", "settled")

    def __init__(self, settled: SettledPlain, at: float) -> None:
        self.settled, self.at = settled, at
        self._row: CallRow | None = None

    @property
    def row(self) -> CallRow:
        """The row of the call as the beginning of its compensation has left it."""
        row = self._row
        if row is None:
            row = self._row = changed(
                self.settled.row, {"state": "compensating", "comp_attempt": 1, "comp_at": self.at, "quiet_left": None}
            )
        return row

    @property
    def root(self) -> str:
        """The root of the tree that has changed."""
        return self.settled.started.op.run.root

    def __repr__(self) -> str:
        return f"Begun({self.settled!r}, {self.at})"


@dataclass(slots=True)
class TurnPlain(StoreOp[Begun | Rollback]):
    """Begin the rollback of this run, and the compensation of the last of ``left``, if they are all that has an effect in it.

    Else do what ``BeginRollback`` does.
    """

    run: PlainRun
    by: str
    why: str
    left: tuple[SettledPlain, ...]
    """Every call of the run with an effect, in the order of settling; each has a compensation in this process."""

    @property
    def root(self) -> str:
        """The root of the tree."""
        return self.run.root

    @property
    def epoch(self) -> int:
        """The epoch of the owner."""
        return self.run.epoch

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.run_id

    def general(self) -> BeginRollback:
        """Return the equal general operation, without the compensation."""
        run = self.run
        return BeginRollback(
            run.root, self.by, self.why, person=False, owner=run.owner, epoch=run.epoch, plain=run,
            repeated=self.repeated,
        )  # fmt: skip


class TakenBack:
    """The answer to the end of the last compensation of a plain run: the run is rolled back."""

    __slots__ = ("run",)

    def __init__(self, run: PlainRun) -> None:
        self.run = run


@dataclass(slots=True)
class UndonePlain(StoreOp[Begun | TakenBack | Settled]):
    """Settle this compensation as done, and begin that of ``then`` or, if that is None, close the run.

    If anything is unusual, do what ``SettleCompensation`` does.
    """

    begun: Begun
    then: SettledPlain | None
    why: str
    """Why the run is rolled back."""

    @property
    def run(self) -> PlainRun:
        """The run."""
        return self.begun.settled.started.op.run

    def general(self) -> SettleCompensation:
        """Return the equal general operation."""
        run, row = self.run, self.begun.row
        following: BeginCompensation | CloseRun
        if self.then is None:
            following = CloseRun(run.root, run.owner, run.epoch, "rolled_back", plain=run)
        else:
            following = BeginCompensation(self.then.row.id, run.owner, run.epoch, 1, seen=self.then.row)
        return SettleCompensation(
            row.id, run.owner, run.epoch, 1, "compensated", seen=row, then=following, repeated=self.repeated
        )


def admission_facts(op: AdmitPlain, key: str) -> str:
    """Return the facts of the event of a plain admission; ``key`` is ``op.row_key``."""
    row = op.tool.columns_digest(key, op.ident.hex(), op.digest.hex(), op.call_ref)
    return f'{{"tool": {op.tool.quoted}, "args": "{op.proof or proof(op.args)}", "row": "{row}"}}'


def settlement_facts(result: str, proved: str = "") -> str:
    """Return the facts of the event of a plain settlement; ``proved``: the proof of the result, if it is known."""
    return f'{{"attempt": 1, "result": "{proved or proof(result)}"}}'
