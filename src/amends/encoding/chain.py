"""The hash chain of the events of a run tree, and the checkpoints over all trees of a ledger.

A tree has one owner and one lock, so its events have one order. A hash chain over that order proves that no event was
changed, removed, inserted or moved: each hash covers the number, the time and the body of an event, and the hash
before it. Python hashes the body of an event; a database only concatenates texts and hashes them, so that two programs
never spell the same value in two ways.
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
"""The previous hash of the first event of a tree."""
MICROS: Final = 1e6
TEXTS_MAX: Final = 1024
"""How many beginnings of event texts are cached: active runs, and kinds of moves."""


def micros(at: float) -> int:
    """Return a time in whole microseconds, rounded half to even as every database here does."""
    return round(at * MICROS)


def moment(at: float) -> float:
    """Return the time of an event: whole microseconds, so that no bit of it can change without its hash."""
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
    """Return the digest of what an event says, without its place in the ledger, which changes when a run is loaded."""
    # One text for all parts, as ``digest`` writes them; the parts that many events of a run share are cached.
    whose, moved = run_text(root, run, run_id, tenant), move_text(what, frm, to_state, by_whom, epoch)
    text = f"{whose}str{len(call)}:{call}{moved}str{len(facts)}:{facts}"
    if text.isascii() and "\x00" not in text:
        return sha256(text.encode("ascii")).hexdigest()
    parts = (root, run, run_id, tenant, call, what, frm, to_state, by_whom, str(epoch), facts)
    return digest(*map(storable, parts))


@lru_cache(maxsize=TEXTS_MAX)
def run_text(root: str, run: str, run_id: str, tenant: str) -> str:
    """Return the beginning of the text of ``body_of``: of which run an event is."""
    return f"str{len(root)}:{root}str{len(run)}:{run}str{len(run_id)}:{run_id}str{len(tenant)}:{tenant}"


@lru_cache(maxsize=TEXTS_MAX)
def move_text(what: str, frm: str, to_state: str, by_whom: str, epoch: int) -> str:
    """Return the middle of that text, after the call: what happened, and who did it."""
    moved = f"str{len(what)}:{what}str{len(frm)}:{frm}str{len(to_state)}:{to_state}"
    return f"{moved}str{len(by_whom)}:{by_whom}str{len(str(epoch))}:{epoch}"


def link(prev: str, n: int, at: float, body: str) -> str:
    """Return the hash of event number ``n`` of a tree; ``prev`` is the hash of the event before it."""
    return sha256(f"{prev}:{n}:{round(at * MICROS)}:{body}".encode("utf-8", "surrogatepass")).hexdigest()


def storable(text: str) -> str:
    """Return the text without what some databases cannot hold: NUL becomes ␀, a lone surrogate becomes ?.

    So an event has the same hash in every ledger.
    """
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def proof(text: str) -> str:
    """Return the digest by which an event proves a payload that is stored in a row."""
    if "\x00" not in text:
        try:
            return sha256(text.encode("utf-8")).hexdigest()
        except UnicodeEncodeError:
            pass
    return sha256(storable(text).encode("utf-8")).hexdigest()


def bound(*parts: str | int | float | None) -> str:
    """Return the digest by which an event proves the columns of a row that never change again."""
    text = ascii(parts)
    if "\\" in text:
        text = ascii(tuple(storable(part) if isinstance(part, str) else part for part in parts))
    return sha256(text.encode("ascii")).hexdigest()


# ---- Places in a feed of many trees


PLACE_DIGITS: Final = 18
"""The most digits of a number in a place: every database can hold it."""


def feed_place(at: float, root: str = "", n: int = 0) -> str:
    """Return a place in the order of a feed: by moment, run tree and number. Without a tree: before all of the moment."""
    return f"{max(0, micros(at))}.{root}.{n}"


def read_place(text: str) -> tuple[float, str, int]:
    """Return moment, tree and number of a place; empty: before everything. Raise ``ValueError`` if it is none."""
    if not text:
        return 0.0, "", 0
    at, _, rest = text.partition(".")
    root, dot, n = rest.rpartition(".")
    digits = at.isdecimal() and n.isdecimal() and text.isascii() and max(len(at), len(n)) <= PLACE_DIGITS
    if not dot or not digits:
        raise ValueError(f"{text[:80]!r} is not a place of an event")
    return int(at) / MICROS, root, int(n)


# ---- Checkpoints

# The chain of one tree proves that nothing in the middle was changed. It cannot prove that its end was not cut off, that
# it was not rewritten as a whole, or that the ledger was not restored to an older state: that takes somebody who knows a
# later hash. A checkpoint therefore names the newest hash of each changed tree and the checkpoint before it, is signed,
# and is sent to an anchor outside.


HEADS_MAX: Final = 250
"""At most so many trees are covered by one checkpoint; the rest by the next one. More of them take more memory at once."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One link of the ledger's own chain. Whoever keeps ``n`` and ``hash`` elsewhere can prove what the ledger said."""

    ledger: str
    """The name of its ledger, as ``amends db status`` shows it."""
    n: int
    at: datetime
    heads: int
    """How many run trees had changed since the checkpoint before."""
    prev: str
    hash: str
    key: str = ""
    """The public name of the key that signed it; empty: it is not signed."""
    signature: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the checkpoint as plain JSON data."""
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
    """Return tree, number and hash of the newest events as the text that is stored and hashed."""
    return json.dumps(list(heads), separators=(",", ":"))


def read_heads(text: str) -> list[tuple[str, int, str]]:
    """Read what ``written_heads`` wrote; raise ``ValueError`` for anything else."""
    try:
        return [(str(root), int(n), str(hash)) for root, n, hash in json.loads(text)]
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not a list of heads: {error}") from error


def checkpoint_hash(
    *, n: int, at: float, ledger: str, heads: str, prev: str, key: str
) -> str:  # fmt: skip
    """Return the hash of a checkpoint, over everything except its signature, which signs this hash."""
    return digest("amends checkpoint", n, micros(at), ledger, heads, prev, key)


def to_sign(hash: str) -> bytes:
    """Return the bytes to sign for a checkpoint with this hash; the prefix separates them from any other signature."""
    return f"amends checkpoint {hash}".encode("ascii", "replace")


def anchored_from(said: Mapping[str, Any]) -> Anchored:
    """Read what an anchor stored; raise ``ValueError``, ``LookupError``, ``TypeError`` or a subclass of them."""
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
