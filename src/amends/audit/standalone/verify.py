"""Check a bundle: the record of runs of AI agents, exported from a ledger of amends.

    python BUNDLE                            print what is in it, and whether anything in it was changed
    python BUNDLE --key ed25519-pub:...      check as well that this key signed it

It needs nothing but Python. It proves that every event is linked to the one before it by its hash, that the rows of
runs, calls and approvals are as their events left them, and that arguments and results are those that the events prove.
A change of any of these makes it necessary to rewrite everything after it, and then the last hash is not the one that the
signed checkpoint names. Without a checkpoint, or without knowing the key that must have signed it, a whole bundle may be
forged. This program may have been changed as well: take it from a bundle that you trust, and run: python verify.py BUNDLE
"""

from __future__ import annotations

import argparse
import hmac
import json
import sys
import zipfile
import zlib
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Iterator, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from amends.audit.standalone.ed25519 import is_signed
from amends.audit.standalone.rules import (
    ERASURE,
    GONE,
    SEALED,
    Bundle,
    Problem,
    Row,
    check_trees,
    digest,
    in_ascii,
    micros,
)

# ---- Checkpoints and signatures


OF_CHECKPOINT = ("ledger", "heads", "prev", "key")
"""What the hash of a checkpoint covers, after its number and its time."""


def check_checkpoints(bundle: Bundle, keys: Sequence[str] = ()) -> Iterator[Problem]:
    """Yield every problem of the checkpoints, and of the trees that they name; ``keys``: who must have signed."""
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
                yield Problem("rewritten" if there else "cut", text if there else f"{text}, which is missing", about)
    for tree in bundle.manifest["trees"] if keys else ():
        if tree["root"] not in vouched:
            text = f"no checkpoint that is signed with {' or '.join(map(name_of, keys))} covers it"
            yield Problem("bad_signature", text, {"root": tree["root"], "run_id": tree["run"]})


def uncovered(bundle: Bundle) -> int:
    """Count the events of a bundle that none of its checkpoints covers."""
    newest: dict[str, int] = {}
    for row in bundle.rows["checkpoints"]:
        for root, n, _ in json.loads(row["heads"]):
            newest[root] = max(n, newest.get(root, 0))
    return sum(event["n"] > newest.get(event["root"], 0) for event in bundle.rows["events"])


def erasures(bundle: Bundle) -> Iterator[str]:
    """Yield a line for each erasure that the bundle names: of which run, by whom, and why."""
    for event in bundle.rows["events"]:
        if event["what"] == ERASURE:
            facts = json.loads(event["facts"])
            yield f"run {event['run_id']} was erased by {event['by_whom']}: {facts.get('why', '')}"


def _checked(row: Row, keys: Sequence[str]) -> Problem | None:
    name = f"checkpoint {row['n']}"
    said = digest("amends checkpoint", row["n"], micros(row["at"]), *(row[part] for part in OF_CHECKPOINT))
    if said != row["hash"] or row["at"] != micros(row["at"]) / 1e6:
        return Problem("edited", f"{name} does not match its hash")
    key = next((key for key in keys if name_of(key) == row["key"]), None)
    if key is None and keys:
        return Problem(
            "bad_signature", f"{name} is signed with {row['key'] or 'no key'}, which is not one of the given keys"
        )
    if row["key"] and not has_signed(key or row["key"], row["hash"], row["signature"]):
        return Problem("bad_signature", f"the signature of {name} is not of {row['key']}")
    return None


def name_of(key: str) -> str:
    """Return the name that a checkpoint has for this key; raise ``ValueError`` if it is not a key."""
    kind, _, rest = key.partition(":")
    if kind == "hmac":
        return f"hmac-id:{hmac.digest(rest.encode(), b'amends audit key', 'sha256').hex()[:16]}"
    if kind != "ed25519-pub":
        raise ValueError(f"a key begins with ed25519-pub: or hmac:, not with {kind[:20]}")
    raw = _raw(rest)
    if len(raw) != 32:
        raise ValueError("after ed25519-pub: a key has 32 bytes in base64")
    return f"{kind}:{b64encode(raw).decode('ascii')}"


def has_signed(key: str, hash: str, signature: str) -> bool:
    """Return whether this is the key's signature of that hash.

    The mere name of a key (``hmac-id:``) cannot be checked: any signature passes.
    """
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


# ---- Reading a bundle


FORMAT, VERSION = "amends bundle", 1
PARTS = ("runs", "calls", "events", "approvals", "checkpoints")
FILES = ("manifest.json", *(f"{part}.jsonl" for part in PARTS), "verify.py", "__main__.py")
PAYLOADS = (("runs", "input"), ("runs", "output"), ("calls", "args"), ("calls", "result"))
UNPACKED_MAX = 1 << 28
"""Bytes that an unpacked bundle may have: a small zip file can unpack to any size."""
BROKEN, UNREADABLE = 20, 2
PROBLEMS_MAX = 100


class Unreadable(Exception):
    """It is not a bundle, or a damaged one."""


def read(data: bytes) -> Bundle:
    """Read a bundle; raise ``Unreadable`` if it is none. Never unpacks more than ``UNPACKED_MAX`` bytes."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as packed:
            texts = _unpacked(packed)
        return _parsed(texts)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Unreadable(f"its contents make no sense: {error}") from error


def _unpacked(packed: zipfile.ZipFile) -> dict[str, bytes]:
    entries = packed.infolist()
    names = [entry.filename for entry in entries]
    if len(set(names)) != len(names) or set(names) != set(FILES):
        raise Unreadable(f"it does not have exactly the files {', '.join(FILES)}")
    if sum(entry.file_size for entry in entries) > UNPACKED_MAX:
        raise Unreadable(f"unpacked it would be larger than {UNPACKED_MAX:,} bytes")
    texts = {}
    for entry in entries:
        with packed.open(entry) as file:
            data = file.read(entry.file_size + 1)
        if len(data) != entry.file_size:
            raise Unreadable(f"{entry.filename} is not as long as it says")
        texts[entry.filename] = data
    return texts


def _parsed(texts: dict[str, bytes]) -> Bundle:
    manifest = _json(texts["manifest.json"])
    if manifest["format"] != FORMAT:
        raise Unreadable("it is not a bundle of amends")
    if manifest["version"] != VERSION:
        raise Unreadable(f"it is a bundle of version {manifest['version']}, and this program knows version {VERSION}")
    for name, known in manifest["files"].items():
        if sha256(texts[name]).hexdigest() != known:
            raise Unreadable(f"{name} is not what the manifest says: it was damaged, or changed by hand")
    rows = {part: [_json(line) for line in texts[f"{part}.jsonl"].splitlines()] for part in PARTS}
    if not all(isinstance(row, dict) for some in rows.values() for row in some):
        raise Unreadable("a line is not a row")
    return Bundle(manifest, rows)


def _json(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)


def _once(pairs: list[tuple[str, Any]]) -> Row:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name appears twice")
    return made


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def check(bundle: Bundle, keys: Sequence[str] = ()) -> list[Problem]:
    """Return every problem of a bundle, that of the first bad event first; ``keys``: who must have signed."""
    found = [*check_trees(bundle), *check_checkpoints(bundle, keys)]
    return sorted(found, key=lambda one: (one.n == 0, one.root, one.n))[:PROBLEMS_MAX]


# ---- The command


def main(words: Sequence[str]) -> int:
    """Print what is in a bundle and whether it is whole; return 0, 20 if it is not, or 2 if it cannot be read."""
    parser = argparse.ArgumentParser(prog="python BUNDLE", description="Check a bundle of amends.")
    parser.add_argument("bundle", help="the file")
    parser.add_argument("--key", action="append", default=[], help="who must have signed: ed25519-pub:..., or hmac:...")
    said = parser.parse_args(words)
    try:
        bundle = read(Path(said.bundle).read_bytes())
        problems, left = check(bundle, said.key), uncovered(bundle)
    except (Unreadable, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        print(in_ascii(f"{said.bundle} cannot be read as a bundle: {error}"), file=sys.stderr)
        return UNREADABLE
    for tree in bundle.manifest["trees"]:
        print(in_ascii(f"run {tree['run']} of ledger {tree['origin']}: {tree['state']}, {tree['events']} events"))
    signers = sorted({row["key"] or "nobody" for row in bundle.rows["checkpoints"]})
    print(in_ascii(f"checkpoints: {len(bundle.rows['checkpoints'])}, signed by {', '.join(signers) or 'nobody'}"))
    if left:
        print(f"events that no checkpoint covers: {left}")
    for text, how in ((SEALED, "encrypted, and not checked without their key"), (GONE, "removed")):
        count = sum(str(row[name]).startswith(text) for part, name in PAYLOADS for row in bundle.rows[part])
        if count:
            print(f"payloads that are {how}: {count}")
    for line in erasures(bundle):
        print(in_ascii(line))
    for problem in problems:
        print(problem)
    print("BROKEN" if problems else "whole")
    return BROKEN if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
