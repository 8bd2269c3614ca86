"""The plain case of admitting and settling, which nearly every call is, with as few statements as it takes.

A quick statement says its whole condition in SQL: it either does exactly what the flow of ``admission`` or
``settlement`` would have done, or it changes nothing and the flow decides. So the decisions stay in one place, and
the conformance suite compares both ways. Each store says the statements in its own manner; what they share is here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final

from amends.ledger import Admission, AdmitCall, SettleCall, Settled
from amends.rows import CALL_COLUMNS, CallRow
from amends.store.sql import CALLS

# ---- admitting ----------------------------------------------------------------------------

OPEN_ROOT: Final = "state = 'open' and goal = '' and pivot = '' and deadline_at is null"
"""Where a run takes a call that can be compensated, or a read, without a further question."""

FROM_OP: Final = (
    "id", "run", "root", "tool", "version", "kind", "key", "ident", "digest", "args", "scope",
    "declared", "again", "call_ref", "parent", "grp", "undoable", "created_epoch", "asked_epoch",
)  # fmt: skip
"""The columns of a new call that its request brings."""

SAME: Final = {"generation": 1, "state": "started", "attempt": 1}
"""The columns that are the same in every plain admission."""

WHEN: Final = ("created_at", "first_at", "started_at")
"""The columns that hold the moment of the admission."""

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
    """Whether only rows of the ledger, and no rule about this request, can make it anything but a start."""
    return (
        (op.kind == "compensatable" or op.kind == "read")
        and op.run == op.root
        and op.scope == "run"
        and not op.repeated
        and not op.again
        and not op.at_commit
        and not op.locks.names
        and (op.epoch == 1 or op.declared or op.kind == "read")
    )


def admission_values(op: AdmitCall) -> tuple[Any, ...]:
    """The values of ``FROM_OP``. A read's key is its own: reads are never deduplicated."""
    values = _OF_OP(op)
    if op.kind == "read":
        values = (*values[:6], f"{op.key}:{op.call_id}", *values[7:])
    return (*values, int(op.declared), *_TEXTS(op), int(op.undoable), op.epoch, op.epoch)


def admitted(values: tuple[Any, ...], seq: int, at: float, of_run: Sequence[str]) -> Admission:
    """The answer to a plain admission, without reading the row back; ``of_run``: id, tenant, agent, principal."""
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
    """What the event of a plain admission says."""
    return json.dumps({"tool": op.tool}, ensure_ascii=False)


# ---- settling -----------------------------------------------------------------------------

SETTLED: Final = ("state", "result", "loss", "error", "why", "quiet_boot", "quiet_mono")
"""The columns that a settlement brings, beside the moment, the place and when to try again."""


def is_plain_settlement(op: SettleCall) -> bool:
    """Whether settling changes this call and nothing else, if the ledger still has it as its caller saw it."""
    return op.seen is not None and op.seen.kind != "pivot" and not op.repeated and not op.doom


def settlement_values(op: SettleCall) -> tuple[Any, ...]:
    """The values of ``SETTLED``."""
    return (op.to, op.result, op.loss, op.error, op.why, op.boot, op.mono)


def places(op: SettleCall) -> bool:
    """Whether the call gets its place among the settled: it has, or may have, an effect."""
    return op.to == "succeeded" or op.to == "in_doubt"


def settled(op: SettleCall, seq: int, at: float) -> Settled:
    """The answer to a plain settlement, without reading the row back."""
    assert op.seen is not None, "a plain settlement knows what it settles"
    changes: dict[str, Any] = dict(zip(SETTLED, settlement_values(op), strict=True))
    changes["settled_at"] = at
    changes["retry_at"] = None if op.retry_s is None else at + op.retry_s
    if places(op):
        changes["settled_seq"] = seq
    return Settled(CALLS.changed(op.seen, changes))


def settlement_facts(op: SettleCall) -> str:
    """What the event of a plain settlement says."""
    kept = {"attempt": op.attempt, "why": op.why} if op.why else {"attempt": op.attempt}
    return json.dumps(kept, ensure_ascii=False)
