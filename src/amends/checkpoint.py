"""A checkpoint: the ledger's own chain over the newest hash of each run tree that changed, and what is kept of it outside.

The chain of one tree says that nothing in the middle was changed; that its end was cut off, that all of it was written
anew, or that the whole ledger was put back, only somebody who knows a later hash can say. That is what a checkpoint is
for: it names those hashes, the checkpoint before it, and is signed and told to somebody outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from amends.chain import micros
from amends.plain import digest
from amends.record import dataclass

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
