"""Quick statements: the plain case of admission, settlement and compensation, which nearly every call is.

A quick statement has its whole condition in SQL: it either does exactly what the flow in ``ledger/`` would have done,
or it changes nothing and the flow decides. So the decisions stay in one place, and the conformance suite compares both
ways. Each store writes the statements in its own SQL; what they share is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from amends.encoding.canonical import quoted
from amends.encoding.chain import body_of, proof
from amends.ledger.changes import call_columns_digest
from amends.ledger.operations import Admission, AdmitCall, BeginCompensation, SettleCall, SettleCompensation, Settled
from amends.ledger.rows import CALL_COLUMNS, CallRow
from amends.states import NEW
from amends.stores.sql import CALLS, Dialect

# ---- Admission

OPEN_ROOT: Final = "state = 'open' and goal = '' and pivot = '' and deadline_at is null and forked_from = ''"
"""The condition of a run that admits a compensatable call or a read without further checks."""

FROM_OP: Final = (
    "id", "run", "root", "tool", "version", "kind", "key", "ident", "digest", "args", "scope",
    "declared", "again", "call_ref", "parent", "grp", "undoable", "created_epoch", "asked_epoch",
)  # fmt: skip
"""The columns of a new call that come from its request."""

SAME: Final = {"generation": 1, "state": "started", "attempt": 1}
"""The columns that have the same value in every plain admission."""

WHEN: Final = ("created_at", "first_at", "started_at")
"""The columns that hold the time of the admission."""

_OF_OP: Final = attrgetter(
    "call_id", "run", "root", "tool", "version", "kind", "key", "ident", "digest", "args", "scope",
)  # fmt: skip
_TEXTS: Final = attrgetter("again", "call_ref", "parent", "grp")

_DEFAULTS: Final = {name: field.default for name, field in CallRow.__dataclass_fields__.items() if name in CALL_COLUMNS}
_BLANK: Final = tuple(SAME.get(name, _DEFAULTS[name]) for name in CALL_COLUMNS)
_AT: Final = {name: place for place, name in enumerate(CALL_COLUMNS)}
_OP_PLACES: Final = tuple(_AT[name] for name in FROM_OP)
_WHEN_PLACES: Final = tuple(_AT[name] for name in WHEN)
_RUN_PLACES: Final = tuple(_AT[name] for name in ("run_id", "tenant", "agent", "principal"))
_SEQ: Final = _AT["seq"]


def is_plain_admission(op: AdmitCall) -> bool:
    """Return whether nothing in the request, only rows of the ledger, can keep the call from starting."""
    return (
        (op.kind == "compensatable" or op.kind == "read")
        and op.run == op.root
        and op.scope == "run"
        and not op.repeated
        and not op.again
        and not op.at_commit
        and not op.locks.names
        and not op.costs.costs
        and op.need is None
        and not op.accepts
        and (op.epoch == 1 or op.declared or op.kind == "read")
    )


def admission_values(op: AdmitCall) -> tuple[Any, ...]:
    """Return the values of ``FROM_OP``. A read gets a key of its own: reads are never deduplicated."""
    values = _OF_OP(op)
    if op.kind == "read":
        values = (*values[:6], f"{op.key}:{op.call_id}", *values[7:])
    return (*values, int(op.declared), *_TEXTS(op), int(op.undoable), op.epoch, op.epoch)


def admitted(values: tuple[Any, ...], seq: int, at: float, of_run: Sequence[str]) -> Admission:
    """Return the answer to a plain admission, without reading the row back.

    ``values`` are those of ``admission_values``; ``of_run`` is the run's id, tenant, agent and principal.
    """
    row = list(_BLANK)
    for place, value in zip(_OP_PLACES, values, strict=True):
        row[place] = value
    for place in _WHEN_PLACES:
        row[place] = at
    for place, text in zip(_RUN_PLACES, of_run, strict=True):
        row[place] = text
    row[_SEQ] = seq
    return Admission("start", CALLS.make(*row))


def admission_facts(op: AdmitCall) -> str:
    """Return the facts of the event of a plain admission."""
    key = f"{op.key}:{op.call_id}" if op.kind == "read" else op.key
    return f'{{"tool": {quoted(op.tool)}, "args": "{op.proof or proof(op.args)}", "row": "{call_columns_digest(op, key, 1)}"}}'


def admission_body(op: AdmitCall, facts: str) -> str:
    """Return the body of that event's hash; the statement checks that the run has this id and tenant."""
    return body_of(
        op.root, op.run, op.run_id, op.tenant, op.call_id, "call", NEW, "started", op.owner, op.epoch, facts
    )  # fmt: skip


def body_after(op: SettleCall | BeginCompensation | SettleCompensation, frm: str, to: str, facts: str) -> str:
    """Return the body of the hash of an event about a call that the caller knows: a call never changes its run."""
    seen = op.seen
    assert seen is not None, "a plain change knows its call"
    return body_of(
        seen.root, seen.run, seen.run_id, seen.tenant, seen.id, "call", frm, to, op.owner, op.epoch, facts
    )  # fmt: skip


# ---- Answers from the record


def answer_sql(dialect: Dialect) -> str:
    """Return the select of the newest generation of a key, with the owner and the epoch of its tree; locks nothing."""
    columns = ", ".join(f"c.{dialect.name_of(name)}" for name in CALL_COLUMNS)
    return (
        f"select o.owner, o.epoch, {columns} from calls c join runs o on o.uid = c.root"
        f" where c.{dialect.name_of('key')} = {dialect.mark} order by c.generation desc limit 1"
    )


def is_plain_question(op: AdmitCall) -> bool:
    """Return whether the record may answer the request as it is."""
    return op.expected and op.kind != "read"


def answered(op: AdmitCall, found: Sequence[tuple[Any, ...]]) -> Admission | None:
    """Return the answer from the record: a call of this tree that has succeeded. None: the flow decides."""
    if not found:
        return None
    owner, epoch, *values = found[0]
    row = CALLS.make(*values)
    mine = owner == op.owner and epoch == op.epoch and row.root == op.root and row.asked_epoch >= epoch
    same = row.state == "succeeded" and row.ident == op.ident and not row.alias
    return Admission("replay", row) if mine and same else None


# ---- Settlement

SETTLED: Final = ("state", "result", "loss", "error", "why", "quiet_boot", "quiet_mono")
"""The columns that a settlement sets, besides its time, its place and the time of the retry."""


def is_plain_settlement(op: SettleCall) -> bool:
    """Return whether the settlement changes this call only, if its row is still as the caller read it."""
    seen = op.seen
    if seen is None or seen.kind == "pivot" or op.repeated or op.doom or seen.cost or op.spent:
        return False
    return seen.state == "started" and seen.attempt == op.attempt  # the row of another attempt has other times


def settlement_values(op: SettleCall) -> tuple[Any, ...]:
    """Return the values of ``SETTLED``; only what did not succeed needs the moment after which nothing was sent."""
    quiet = ("", None) if op.to == "succeeded" else (op.boot, op.mono)
    return (op.to, op.result, op.loss, op.error, op.why, *quiet)


def places(op: SettleCall) -> bool:
    """Return whether the call gets a place in the order of settlements: it has, or may have, an effect."""
    return op.to == "succeeded" or op.to == "in_doubt"


def settled(op: SettleCall, seq: int, at: float) -> Settled:
    """Return the answer to a plain settlement, without reading the row back."""
    assert op.seen is not None, "a plain settlement knows its call"
    changes: dict[str, Any] = dict(zip(SETTLED, settlement_values(op), strict=True))
    changes["settled_at"] = at
    changes["retry_at"] = None if op.retry_s is None else at + op.retry_s
    if places(op):
        changes["settled_seq"] = seq
    return Settled(CALLS.changed(op.seen, changes))


def settlement_facts(op: SettleCall) -> str:
    """Return the facts of the event of a plain settlement."""
    why = f', "why": {quoted(op.why)}' if op.why else ""
    if op.result is not None:
        return f'{{"attempt": {op.attempt}{why}, "result": "{op.proof or proof(op.result)}"}}'
    failure = f', "failure": "{op.proof or proof(op.error)}"' if op.error else ""
    return f'{{"attempt": {op.attempt}{why}{failure}}}'


# ---- Compensation

_LATER: Final = "o.settled_seq > c.settled_seq and (c.grp = '' or o.grp <> c.grp)"
FREE_TO_GO: Final = (
    "c.state = 'succeeded' and c.shared = '' and c.comp_attempt = {0} and c.settled_seq = {0}"
    " and c.evidence = {0} and c.replays = {0}"
    " and not exists (select 1 from runs k where k.root = c.root and k.uid <> c.root)"
    " and not exists (select 1 from calls o where o.root = c.root and o.id <> c.id and o.kind <> 'read'"
    " and (o.state = 'started'"
    f" or (o.state = 'compensating' and {_LATER})"
    f" or (o.state = 'succeeded' and o.undoable = 1 and {_LATER})))"
)
"""The condition under which call ``c`` of a run without children is the next to compensate: it is as it was read, and no
other call ``o`` is started or was settled later. ``{0}``: the values of ``free_values``."""

BEGUN: Final = {
    "comp_settled_at": None, "comp_retry_at": None, "comp_error": "", "comp_boot": "", "comp_mono": None,
    "quiet_left": None,
}  # fmt: skip
"""The columns that the start of a compensation sets, besides the state, the attempt and the time."""
BEGUN_SQL: Final = "".join(f", {name} = {'null' if value is None else repr(value)}" for name, value in BEGUN.items())


def is_plain_beginning(op: BeginCompensation) -> bool:
    """Return whether only the order of compensations can keep this one from beginning."""
    seen = op.seen
    plain = seen is not None and seen.state == "succeeded" and seen.run == seen.root and seen.lost_at is None
    return plain and not op.repeated and not op.from_doubt


def free_values(op: BeginCompensation) -> tuple[Any, ...]:
    """Return the values that the call must still have."""
    assert op.seen is not None, "a plain compensation knows its call"
    return (op.attempt - 1, op.seen.settled_seq, op.seen.evidence, op.seen.replays)


def begun(op: BeginCompensation, at: float) -> CallRow:
    """Return the answer to a plain beginning."""
    assert op.seen is not None, "a plain compensation knows its call"
    return CALLS.changed(op.seen, {"state": "compensating", "comp_attempt": op.attempt, "comp_at": at, **BEGUN})


def beginning_facts(op: BeginCompensation) -> str:
    """Return the facts of the event of a plain beginning."""
    return f'{{"attempt": {op.attempt}}}'


UNDONE: Final = ("state", "comp_error", "comp_gave_up", "comp_boot", "comp_mono")
"""The columns that the end of a compensation sets, besides its time and the time of the retry."""


def is_plain_end(op: SettleCompensation) -> bool:
    """Return whether the end of a compensation changes its call only."""
    seen = op.seen
    if seen is None or op.repeated or seen.cost:
        return False
    return seen.state == "compensating" and seen.comp_attempt == op.attempt


STILL_GOING: Final = "c.state = 'compensating' and c.comp_attempt = {0} and c.evidence = {0} and c.replays = {0}"
"""The condition under which the compensation that ends is the one that began. ``{0}``: the values of ``going_values``."""


def going_values(op: SettleCompensation) -> tuple[Any, ...]:
    """Return the values that the call must still have."""
    assert op.seen is not None, "a plain compensation knows its call"
    return (op.attempt, op.seen.evidence, op.seen.replays)


def undone_values(op: SettleCompensation) -> tuple[Any, ...]:
    """Return the values of ``UNDONE``."""
    return (op.to, op.error, int(op.gave_up), op.boot, op.mono)


def undone(op: SettleCompensation, at: float) -> Settled:
    """Return the answer to a plain end of a compensation."""
    assert op.seen is not None, "a plain compensation knows its call"
    changes: dict[str, Any] = dict(zip(UNDONE, undone_values(op), strict=True))
    retry_at = None if op.retry_s is None else at + op.retry_s
    return Settled(CALLS.changed(op.seen, {**changes, "comp_settled_at": at, "comp_retry_at": retry_at}))


def undone_facts(op: SettleCompensation) -> str:
    """Return the facts of the event of a plain end."""
    return f'{{"attempt": {op.attempt}, "error": {quoted(op.error)}}}' if op.error else f'{{"attempt": {op.attempt}}}'
