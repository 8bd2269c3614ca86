"""Who vouches for a bundle: the checkpoints in it, and whose signatures they have. Put into ``verify.py``, too."""

from __future__ import annotations

import hmac
import json
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterator, Sequence

from amends.bundlerules import Bundle, Problem, Row, digest, micros
from amends.ed25519 import is_signed

OF_CHECKPOINT = ("ledger", "high", "gaps", "heads", "prev", "key")
"""What the hash of a checkpoint is of, after its number and its time."""


def check_checkpoints(bundle: Bundle, keys: Sequence[str] = ()) -> Iterator[Problem]:
    """What is wrong with its checkpoints, or with its trees by them; ``keys``: who must have signed."""
    hashes = {(event["root"], event["n"]): event["hash"] for event in bundle.rows["events"]}
    ids = {run["uid"]: run["id"] for run in bundle.rows["runs"]}
    vouched: set[str] = set()
    for row in bundle.rows["checkpoints"]:
        problem = _checked(row, keys)
        if problem is not None:
            yield problem
            continue
        for root, n, known in json.loads(row["heads"]):
            vouched.add(root)
            if root in ids and hashes.get((root, n)) != known:
                there = (root, n) in hashes
                text = f"checkpoint {row['n']} names {'another' if there else 'its'} event {n}"
                about = {"root": root, "run_id": ids[root], "n": n}
                yield Problem("rewritten" if there else "cut", text if there else f"{text}, which is not there", about)
    for tree in bundle.manifest["trees"] if keys else ():
        if tree["root"] not in vouched:
            text = f"no checkpoint that is signed with {' or '.join(map(name_of, keys))} stands behind it"
            yield Problem("bad_signature", text, {"root": tree["root"], "run_id": tree["run"]})


def behind(bundle: Bundle) -> int:
    """How many of its events no checkpoint in it stands behind."""
    newest: dict[str, int] = {}
    for row in bundle.rows["checkpoints"]:
        for root, n, _ in json.loads(row["heads"]):
            newest[root] = max(n, newest.get(root, 0))
    return sum(event["n"] > newest.get(event["root"], 0) for event in bundle.rows["events"])


def _checked(row: Row, keys: Sequence[str]) -> Problem | None:
    name = f"checkpoint {row['n']}"
    said = digest("amends checkpoint", row["n"], micros(row["at"]), *(row[part] for part in OF_CHECKPOINT))
    if said != row["hash"] or row["at"] != micros(row["at"]) / 1e6:
        return Problem("edited", f"{name} does not say what its hash is of")
    key = next((key for key in keys if name_of(key) == row["key"]), None)
    if key is None and keys:
        return Problem("bad_signature", f"{name} is signed with {row['key'] or 'no key'}, which nobody vouches for")
    if row["key"] and not has_signed(key or row["key"], row["hash"], row["signature"]):
        return Problem("bad_signature", f"the signature of {name} is not one of {row['key']}")
    return None


def name_of(key: str) -> str:
    """How a checkpoint names the key that signed it. Raises ``ValueError`` where it is none."""
    kind, _, rest = key.partition(":")
    if kind == "hmac":
        return f"hmac-id:{hmac.digest(rest.encode(), b'amends audit key', 'sha256').hex()[:16]}"
    if kind != "ed25519-pub":
        raise ValueError(f"a key begins with ed25519-pub: or hmac:, not with {kind[:20]}")
    raw = _raw(rest)
    if len(raw) != 32:
        raise ValueError("a key that begins with ed25519-pub: goes on with 32 bytes as base64")
    return f"{kind}:{b64encode(raw).decode('ascii')}"


def has_signed(key: str, hash: str, signature: str) -> bool:
    """Whether this is the key's signature of that hash. One that only has a name here proves nothing, and says yes."""
    kind, _, rest = key.partition(":")
    words = f"amends checkpoint {hash}".encode("ascii", "replace")
    try:
        raw = _raw(signature)
        if b64encode(raw).decode("ascii") != signature:
            return False
        if kind == "hmac":
            return hmac.compare_digest(hmac.digest(rest.encode(), words, "sha256"), raw)
        return bool(signature) if kind == "hmac-id" else is_signed(_raw(rest), words, raw)
    except ValueError:
        return False


def _raw(text: str) -> bytes:
    bare = text.strip().replace("+", "-").replace("/", "_").rstrip("=")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
