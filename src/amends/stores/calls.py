"""How a call is stored: a few hot columns, its ordinary events folded into them, and everything else as JSON.

The ledger's flows see a ``CallRow`` and ``EventRow``s. Here they are taken apart and put together again. An ordinary
call has four events: admitted, settled, compensation begun, compensated; one that fails has two. A plain statement writes
each of them into the row of the call (number, time and hash, set once), so that it is one write and not two. The content
of such an event is made again from the columns; a change of one of them changes the hash that it must have, which an audit
finds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from math import isfinite
from operator import attrgetter, itemgetter
from typing import Any, Final

from amends.encoding.canonical import quoted
from amends.encoding.chain import proof
from amends.encoding.dataclass import changed, dataclass
from amends.encoding.ids import call_id, number_of
from amends.ledger.events import call_columns_digest, written_facts
from amends.ledger.rows import CallRow, EventRow
from amends.states import NEW

# ---- Digests and keys as bytes

DIGEST: Final = 32
READ_KEY: Final = 40
"""The key of a read: the digest of its request, and the number of its call."""
_OTHER: Final = b"~"
_PADDED: Final = b"^"
"""As ``_OTHER``, of a text that would be as long as a digest or a key, and has one byte more for that reason."""


def pack(text: str) -> bytes:
    """Return a digest or key as bytes; a text that is neither is kept as it is, behind a mark."""
    if len(text) == 2 * DIGEST:
        try:
            raw = bytes.fromhex(text)
        except ValueError:
            raw = b""
        if len(raw) == DIGEST and raw.hex() == text:
            return raw
    elif len(text) > 2 * DIGEST and text[2 * DIGEST] == ":":
        raw, number = pack(text[: 2 * DIGEST]), number_of(text[2 * DIGEST + 1 :])
        if len(raw) == DIGEST and number is not None:
            return raw + number.to_bytes(8, "big")
    other = text.encode("utf-8", "surrogatepass")
    return _PADDED + other + b"\0" if len(other) + 1 in (DIGEST, READ_KEY) else _OTHER + other


def unpack(raw: bytes) -> str:
    """Return what ``pack`` was given."""
    raw = bytes(raw)
    if len(raw) == DIGEST:
        return raw.hex()
    if len(raw) == READ_KEY:
        return f"{raw[:DIGEST].hex()}:{call_id(int.from_bytes(raw[DIGEST:], 'big'))}"
    if raw.startswith(_PADDED):
        raw = _OTHER + raw[1:-1]
    if raw.startswith(_OTHER):
        try:
            return raw[1:].decode("utf-8", "surrogatepass")
        except ValueError:  # amends never wrote it
            pass
    return f"bytes {raw.hex()}"


# ---- A call taken apart

TOOL: Final = ("tool", "version", "kind", "scope", "declared", "undoable", "at_commit")
"""The fields of a call that are the same in every call of a tool's version: they are a row of their own."""

COLUMNS: Final = (
    "no", "root", "key", "gen", "n", "tool", "state", "attempt", "ident", "digest", "args", "at", "epoch", "hash",
    "result", "settled_n", "settled_at", "settled_hash", "comp_n", "comp_at", "comp_epoch", "comp_hash",
    "undone_n", "undone_at", "undone_hash", "more",
)  # fmt: skip

READ: Final = (
    "c.no", "r.uid", "r.id", "r.tenant", "r.agent", "r.principal",
    "t.name", "t.version", "t.kind", "t.scope", "t.declared", "t.undoable", "t.at_commit",
    "c.key", "c.gen", "c.n", "c.state", "c.attempt", "c.ident", "c.digest", "c.args", "c.at", "c.epoch",
    "c.result", "c.settled_n", "c.settled_at", "c.comp_at", "c.undone_at", "c.more",
    "c.hash", "c.settled_hash", "c.comp_n", "c.comp_epoch", "c.comp_hash", "c.undone_n", "c.undone_hash",
)  # fmt: skip
"""What is selected to put a call together: of the call ``c``, its root run ``r`` and its tool ``t``."""

_ELSEWHERE: Final = frozenset(
    {
        "id", "seq", "root", *TOOL, "key", "generation", "state", "attempt", "ident", "digest", "args", "created_at",
        "created_epoch", "result", "settled_at", "settled_seq", "comp_at", "comp_settled_at",
    }
)  # fmt: skip
_FIELDS: Final = CallRow.__dataclass_fields__
_MORE: Final = tuple(name for name in _FIELDS if name not in _ELSEWHERE)
_values_of: Final = attrgetter(*_MORE)
_usual_of: Final = itemgetter(*_MORE)
_DEFAULTS: Final[dict[str, Any]] = {
    name: None if _FIELDS[name].default is MISSING else _FIELDS[name].default for name in _MORE
}
"""The fields that are kept in ``more`` unless they have these values; ``_derived`` has the others."""
_PLACES: Final = {name: place for place, name in enumerate(_MORE)}
_TYPES: Final = {
    "str": (str,), "int": (int,), "float": (float, int), "float | None": (float, int, type(None)),
    "str | None": (str, type(None)),
}  # fmt: skip
PROOFS: Final = ("args_proof", "result_proof", "error_proof")
"""Also in ``more``: the digest of a payload that was encrypted or removed, which the folded event proves."""
_MAY_BE: Final = {name: _TYPES[str(_FIELDS[name].type)] for name in _MORE} | dict.fromkeys(("id", *PROOFS), (str,))
UNREADABLE: Final = "unreadable"
"""The state and the key of a call whose ``more`` was changed to something that amends never writes."""


@dataclass(frozen=True, slots=True)
class RootFacts:
    """What the calls of a tree take from its root."""

    no: int
    uid: str
    id: str
    tenant: str
    agent: str
    principal: str


@dataclass(frozen=True, slots=True)
class Folded:
    """The folded events of a call: their numbers and hashes; an empty hash: the event is a row, or did not happen."""

    hash: bytes = b""
    settled_hash: bytes = b""
    comp_n: int = 0
    comp_epoch: int = 0
    comp_hash: bytes = b""
    undone_n: int = 0
    undone_hash: bytes = b""
    args_proof: str = ""
    result_proof: str = ""
    error_proof: str = ""
    settled_n: int = 0
    """The number of a failure. That of a success is its place in the order of settling, which the row of the call has."""


def _derived(values: Mapping[str, Any], root: RootFacts) -> dict[str, Any]:
    """Return the values that fields in ``more`` have if it does not name them, for these hot columns."""
    started = values["at"] if values["attempt"] else None
    return _DEFAULTS | {
        "run": root.uid,
        "run_id": root.id,
        "tenant": root.tenant,
        "agent": root.agent,
        "principal": root.principal,
        "asked_epoch": values["epoch"],
        "first_at": started,
        "started_at": started,
        "comp_attempt": 0 if values["comp_at"] is None else 1,
    }


def hot(row: CallRow) -> dict[str, Any]:
    """Return the hot columns of a call, without its root, its tool and its folded events."""
    number = number_of(row.id)
    return {
        "no": number,
        "key": pack(row.key),
        "gen": row.generation,
        "n": row.seq,
        "state": row.state,
        "attempt": row.attempt,
        "ident": pack(row.ident),
        "digest": pack(row.digest),
        "args": row.args,
        "at": row.created_at,
        "epoch": row.created_epoch,
        "result": row.result,
        "settled_n": row.settled_seq or None,
        "settled_at": row.settled_at,
        "comp_at": row.comp_at,
        "undone_at": row.comp_settled_at,
    }


def more(row: CallRow, values: Mapping[str, Any], root: RootFacts, folded: Folded | None = None) -> str | None:
    """Return what the hot columns ``values`` do not say, as JSON; None: they say everything."""
    kept = unsaid(row, values, root)
    if values["no"] is None or number_of(row.id) is None:
        kept["id"] = row.id
    if folded is not None:
        kept |= {name: value for name in PROOFS if (value := getattr(folded, name))}
    return written_more(kept)


def unsaid(row: CallRow, values: Mapping[str, Any], root: RootFacts) -> dict[str, Any]:
    """Return the fields that the hot columns ``values`` do not say, in the order of the fields."""
    said, usual = _values_of(row), _usual_of(_derived(values, root))
    if said == usual:
        return {}
    return {name: value for name, value, normal in zip(_MORE, said, usual, strict=True) if value != normal}


def with_changes(kept: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``unsaid`` after a change of fields that no hot column says."""
    new = {**kept, **changes}
    return {name: new[name] for name in sorted(new, key=_PLACES.__getitem__) if new[name] != _DEFAULTS[name]}


def written_more(kept: Mapping[str, Any]) -> str | None:
    """Return fields as ``more`` has them; most are texts and numbers, and are written without an encoder."""
    if not kept:
        return None
    texts = []
    for name, value in kept.items():
        kind = type(value)
        if kind is str:
            texts.append(f'"{name}":{encode_basestring_ascii(value)}')
        elif kind is int or (kind is float and isfinite(value)):
            texts.append(f'"{name}":{value!r}')
        else:
            return _write_more(kept)
    return f"{{{','.join(texts)}}}"


_write_more: Final = json.JSONEncoder(separators=(",", ":")).encode


def read_more(text: str) -> dict[str, Any] | None:
    """Return what ``more`` says; None: amends never wrote it."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or not all(type(said[name]) in _MAY_BE.get(name, ()) for name in said):
        return None
    return said


def join(values: Sequence[Any]) -> tuple[CallRow, Folded]:
    """Return the call of these values of ``READ``, and its folded events."""
    (
        no, uid, id, tenant, agent, principal, tool, version, kind, scope, declared, undoable, at_commit,
        key, gen, n, state, attempt, ident, digest, args, at, epoch, result, settled_n, settled_at, comp_at, undone_at,
        text, hash, settled_hash, comp_n, comp_epoch, comp_hash, undone_n, undone_hash,
    ) = values  # fmt: skip
    started = at if attempt else None
    args_proof = result_proof = error_proof = ""
    failed_n = 0
    if state == "failed" and settled_hash is not None:
        failed_n, settled_n = settled_n or 0, None
    if text is None:
        # In the order of the fields: naming 67 of them costs more than making the row.
        row = CallRow(
            call_id(no), n, uid, uid, id, tenant, tool, version, kind, unpack(key), gen, unpack(ident), unpack(digest), args,
            state, at, epoch, epoch, scope, declared, "", "", "", "", "", "", "", at_commit, undoable, "", "", "", attempt,
            result, "", "", "", "", "", 0, started, started, settled_at, settled_n or 0, None, 0, "", None, None, 0, None,
            agent, principal, 0, 0 if comp_at is None else 1, 0, "", 0, 0, comp_at, undone_at,
        )  # fmt: skip
    else:
        said = read_more(text)
        if said is None:
            said, state, key = {}, UNREADABLE, pack(UNREADABLE)
        args_proof, result_proof, error_proof = [said.pop(name, "") for name in PROOFS]
        fields: dict[str, Any] = {
            "id": call_id(no), "run": uid, "run_id": id, "tenant": tenant, "agent": agent, "principal": principal,
            "asked_epoch": epoch, "first_at": started, "started_at": started, "comp_attempt": 0 if comp_at is None else 1,
        }  # fmt: skip
        row = CallRow(
            seq=n, root=uid, tool=tool, version=version, kind=kind, scope=scope, declared=declared, undoable=undoable,
            at_commit=at_commit, key=unpack(key), generation=gen, ident=unpack(ident), digest=unpack(digest), args=args,
            state=state, created_at=at, created_epoch=epoch, attempt=attempt, result=result, settled_at=settled_at,
            settled_seq=settled_n or 0, comp_at=comp_at, comp_settled_at=undone_at, **(fields | said),
        )  # fmt: skip
    if (
        hash is None and settled_hash is None and comp_hash is None and undone_hash is None
        and comp_n is None and comp_epoch is None and undone_n is None
    ):  # fmt: skip
        if not args_proof and not result_proof and not error_proof:
            return row, NOT_FOLDED
        return row, Folded(args_proof=args_proof, result_proof=result_proof, error_proof=error_proof)
    return row, Folded(
        bytes(hash or b""), bytes(settled_hash or b""), comp_n or 0, comp_epoch or 0, bytes(comp_hash or b""),
        undone_n or 0, bytes(undone_hash or b""), args_proof, result_proof, error_proof, failed_n,
    )  # fmt: skip


NOT_FOLDED: Final = Folded()


# ---- Folded events


def admission_facts(row: CallRow, args_proof: str = "") -> str:
    """Return the facts of the event of a plain admission."""
    args = args_proof or proof(row.args)
    return f'{{"tool": {quoted(row.tool)}, "args": "{args}", "row": "{call_columns_digest(row, row.key, row.generation)}"}}'


def success_facts(attempt: int, result_proof: str) -> str:
    """Return the facts of the event of a plain success."""
    return f'{{"attempt": {attempt}, "result": "{result_proof}"}}'


def failure_facts(attempt: int, why: str, error_proof: str) -> str:
    """Return the facts of the event of a plain failure; ``error_proof``: empty if there is no error."""
    return written_facts({"why": why, "attempt": attempt, "failure": error_proof})


def attempt_facts(attempt: int) -> str:
    """Return the facts of the events of a plain compensation."""
    return f'{{"attempt": {attempt}}}'


def events_of(row: CallRow, folded: Folded, owners: Mapping[int, str]) -> Iterator[EventRow]:
    """Yield the folded events of a call; ``owners``: who owned the tree in which epoch.

    Of an event that is not folded neither number nor hash is set: one without the other is yielded as an event that
    fits no chain.
    """
    if folded.hash:
        facts = admission_facts(row, folded.args_proof)
        yield _event(row, row.created_at, NEW, "started", row.created_epoch, owners, facts, row.seq, folded.hash)
    if folded.settled_hash:
        if row.state == "failed":
            error = folded.error_proof or (proof(row.error) if row.error else "")
            to, n, facts = "failed", folded.settled_n, failure_facts(row.attempt, row.why, error)
        else:
            result = folded.result_proof or proof(row.result or "")
            to, n, facts = "succeeded", row.settled_seq, success_facts(row.attempt, result)
        at = row.settled_at or 0.0
        yield _event(row, at, "started", to, row.created_epoch, owners, facts, n, folded.settled_hash)
    facts = attempt_facts(row.comp_attempt)
    if folded.comp_hash or folded.comp_n or (folded.comp_epoch and not folded.undone_hash):
        yield _event(
            row, row.comp_at or 0.0, "succeeded", "compensating", folded.comp_epoch, owners, facts, folded.comp_n,
            folded.comp_hash,
        )  # fmt: skip
    if folded.undone_hash or folded.undone_n:
        yield _event(
            row, row.comp_settled_at or 0.0, "compensating", "compensated", folded.comp_epoch, owners, facts,
            folded.undone_n, folded.undone_hash,
        )  # fmt: skip


def _event(
    row: CallRow, at: float, frm: str, to: str, epoch: int, owners: Mapping[int, str], facts: str, n: int, hash: bytes
) -> EventRow:
    return EventRow(
        at=at, root=row.root, run=row.run, run_id=row.run_id, tenant=row.tenant, call=row.id, what="call", frm=frm,
        to_state=to, by_whom=owners.get(epoch, ""), epoch=epoch, facts=facts, n=n, hash=hash.hex(),
    )  # fmt: skip


COVERED: Final = (
    ("settled_hash", ("attempt", "settled_at", "settled_seq")),
    ("comp_hash", ("comp_attempt", "comp_at")),
    ("undone_hash", ("comp_attempt", "comp_settled_at")),
)
"""The columns that a folded event was made from: before one of them changes, the event becomes a row."""


def covered(row: CallRow) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the columns that the folded events of this call were made from, by hash.

    Of payloads the event has digests, which are kept in ``PROOFS``: a text that is not there has none.
    """
    if row.state != "failed":
        return COVERED
    (name, columns), *others = COVERED
    return (name, (*columns, "state", "why", *(() if row.error else ("error",)))), *others


def only(folded: Folded, name: str) -> Folded:
    """Return one of these folded events, named by its hash."""
    others = {other: b"" for other in ("hash", "settled_hash", "comp_hash", "undone_hash") if other != name}
    return changed(folded, others)


def read_owners(text: str) -> dict[int, str]:
    """Return who owned a tree in which epoch."""
    return dict(_owners(text)) if text else {}


@lru_cache(maxsize=256)
def _owners(text: str) -> tuple[tuple[int, str], ...]:
    try:
        return tuple((int(epoch), str(owner)) for epoch, owner in json.loads(text).items())
    except (ValueError, AttributeError, RecursionError):  # amends never wrote it: the events of the owners show that
        return ()


def written_owners(owners: Mapping[int, str]) -> str:
    """Return them as they are stored."""
    said = ",".join([f'"{epoch}":{encode_basestring_ascii(owner)}' for epoch, owner in owners.items()])
    return f"{{{said}}}" if said else ""
