"""How the events of a run tree hang together: each names its number, its moment, what it says, and the one before it.

A tree has one owner and one lock, so its events have one order, and a chain of hashes over that order says that none
of them was changed, left out, put in or moved. What an event says is hashed where it is made; a database only puts
texts together and hashes them, so that nothing arbitrary is ever spelled by two programs in two ways.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from amends.encoding.canonical import digest
from amends.encoding.dataclass import dataclass

GENESIS: Final = "0" * 64
"""What the first event of a tree has in the place of the one before it."""
MICROS: Final = 1e6
TEXTS_MAX: Final = 1024
"""Beginnings of events that are kept: runs that a process is at work on, and ways to move."""


def micros(at: float) -> int:
    """A moment in whole microseconds, halves to the even one: as every database of ours rounds."""
    return round(at * MICROS)


def moment(at: float) -> float:
    """The time that an event has: whole microseconds, so that no bit of it can change without its hash."""
    return round(at * MICROS) / MICROS


def body_of(
    root: str,
    run: str,
    run_id: str,
    tenant: str,
    call: str,
    what: str,
    frm: str,
    to_state: str,
    by_whom: str,
    epoch: int,
    facts: str,
) -> str:
    """The digest of what an event says. Not of its place in the ledger: a run that is loaded elsewhere gets another."""
    # One text for all parts, as ``digest`` writes them; what many events of a run have in common is written once.
    whose, moved = _whose(root, run, run_id, tenant), _moved(what, frm, to_state, by_whom, epoch)
    text = f"{whose}str{len(call)}:{call}{moved}str{len(facts)}:{facts}"
    if text.isascii() and "\x00" not in text:
        return sha256(text.encode("ascii")).hexdigest()
    parts = (root, run, run_id, tenant, call, what, frm, to_state, by_whom, str(epoch), facts)
    return digest(*map(storable, parts))


@lru_cache(maxsize=TEXTS_MAX)
def _whose(root: str, run: str, run_id: str, tenant: str) -> str:
    return f"str{len(root)}:{root}str{len(run)}:{run}str{len(run_id)}:{run_id}str{len(tenant)}:{tenant}"


@lru_cache(maxsize=TEXTS_MAX)
def _moved(what: str, frm: str, to_state: str, by_whom: str, epoch: int) -> str:
    moved = f"str{len(what)}:{what}str{len(frm)}:{frm}str{len(to_state)}:{to_state}"
    return f"{moved}str{len(by_whom)}:{by_whom}str{len(str(epoch))}:{epoch}"


def link(prev: str, n: int, at: float, body: str) -> str:
    """The hash of the event number ``n`` of a tree, after the one whose hash is ``prev``."""
    return sha256(f"{prev}:{n}:{round(at * MICROS)}:{body}".encode("utf-8", "surrogatepass")).hexdigest()


def storable(text: str) -> str:
    """The text without what not every database can hold: NUL is shown as ␀, half a character as ?.

    Hashed like this, an event has the same hash in every ledger.
    """
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def proof(text: str) -> str:
    """What an event says of a payload that stands in a row: its digest, by which a change of it shows."""
    if "\x00" not in text:
        try:
            return sha256(text.encode("utf-8")).hexdigest()
        except UnicodeEncodeError:
            pass
    return sha256(storable(text).encode("utf-8")).hexdigest()


def bound(*parts: str | int | float | None) -> str:
    """What an event says of the columns of a row that never change again: one digest of all of them."""
    text = ascii(parts)
    if "\\" in text:
        text = ascii(tuple(storable(part) if isinstance(part, str) else part for part in parts))
    return sha256(text.encode("ascii")).hexdigest()


# ---- A checkpoint: the ledger's own chain over the newest hash of each run tree that changed, and what is

# The chain of one tree says that nothing in the middle was changed; that its end was cut off, that all of it was written
# anew, or that the whole ledger was put back, only somebody who knows a later hash can say. That is what a checkpoint is
# for: it names those hashes, the checkpoint before it, and is signed and told to somebody outside.


HEADS_MAX: Final = 10_000
"""So many events, and so at most so many trees, are behind one checkpoint; what is more is behind the next one."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One link of the ledger's own chain. Whoever keeps ``n`` and ``hash`` elsewhere can prove what the ledger said."""

    ledger: str
    """The ledger that it is of: the name that ``amends db status`` shows."""
    n: int
    at: datetime
    heads: int
    """How many run trees had changed since the one before."""
    prev: str
    hash: str
    key: str = ""
    """The key that signed it, as others may know it; empty: it is not signed."""
    signature: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "ledger": self.ledger,
            "n": self.n,
            "at": self.at.isoformat(),
            "heads": self.heads,
            "prev": self.prev,
            "hash": self.hash,
            "key": self.key,
            "signature": self.signature,
        }


@dataclass(frozen=True, slots=True)
class Anchored:
    """What an anchor keeps of a checkpoint."""

    ledger: str
    n: int
    at: float
    hash: str
    key: str = ""
    signature: str = ""


def written_heads(heads: Iterable[tuple[str, int, str]]) -> str:
    """Tree, number and hash of the newest events, as they are stored and hashed."""
    return json.dumps(list(heads), separators=(",", ":"))


def read_heads(text: str) -> list[tuple[str, int, str]]:
    """The same, read back. Raises ``ValueError`` when that is not what it is."""
    try:
        return [(str(root), int(n), str(hash)) for root, n, hash in json.loads(text)]
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no list of heads: {error}") from error


def checkpoint_hash(
    *, n: int, at: float, ledger: str, high: int, gaps: str, heads: str, prev: str, key: str
) -> str:  # fmt: skip
    """The hash of a checkpoint: over everything that it says but its signature, which is of this."""
    return digest("amends checkpoint", n, micros(at), ledger, high, gaps, heads, prev, key)


def to_sign(hash: str) -> bytes:
    """What is signed of a checkpoint with this hash: nothing else that anybody signs begins so."""
    return f"amends checkpoint {hash}".encode("ascii", "replace")


def anchored_from(said: Mapping[str, Any]) -> Anchored:
    """What an anchor has written down, read back. Raises ``ValueError``, ``LookupError``, ``TypeError`` or their kin."""
    at = said["at"]
    if int(said["n"]) < 1:
        raise ValueError(f"there is no checkpoint {said['n']}")
    return Anchored(
        str(said["ledger"]),
        int(said["n"]),
        datetime.fromisoformat(at).timestamp() if isinstance(at, str) else float(at),
        str(said["hash"]),
        str(said.get("key", "")),
        str(said.get("signature", "")),
    )
