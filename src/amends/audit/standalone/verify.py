"""Checks a bundle: the record of runs of AI agents, taken out of the ledger of amends that it was kept in.

    python BUNDLE                            says what is in it, and whether anything in it was changed
    python BUNDLE --key ed25519-pub:...      and whether whoever has this key has signed for it

Needs nothing but Python. What it proves: every event hangs on the one before it by its hash, the rows of runs, calls and
approvals stand where their events left them, and what was given and returned is what the events say. Whoever changes one
of these must write everything after it anew, and then its hash is not the one that the signed checkpoint names. Without a
checkpoint, or without knowing the key that must have signed it, a whole bundle may have been made up. This very program may
have been changed as well: take it from a bundle that you trust, and run it as: python verify.py BUNDLE
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
from amends.audit.standalone.rules import GONE, SEALED, Bundle, Problem, Row, check_trees, digest, in_ascii, micros

# ---- Who vouches for a bundle: the checkpoints in it, and whose signatures they have. Put into ``verify.p


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


# ---- Checks a bundle: the record of runs of AI agents, taken out of the ledger of amends that it was kept

# python BUNDLE                            says what is in it, and whether anything in it was changed
#     python BUNDLE --key ed25519-pub:...      and whether whoever has this key has signed for it
#
# Needs nothing but Python. What it proves: every event hangs on the one before it by its hash, the rows of runs, calls and
# approvals stand where their events left them, and what was given and returned is what the events say. Whoever changes one
# of these must write everything after it anew, and then its hash is not the one that the signed checkpoint names. Without a
# checkpoint, or without knowing the key that must have signed it, a whole bundle may have been made up. This very program may
# have been changed as well: take it from a bundle that you trust, and run it as: python verify.py BUNDLE


FORMAT, VERSION = "amends bundle", 1
PARTS = ("runs", "calls", "events", "approvals", "checkpoints")
FILES = ("manifest.json", *(f"{part}.jsonl" for part in PARTS), "verify.py", "__main__.py")
SPOKEN = (("runs", "input"), ("runs", "output"), ("calls", "args"), ("calls", "result"))
UNPACKED_MAX = 1 << 28
"""Bytes that a bundle may have when it is unpacked: a small file can say that it is endless."""
BROKEN, UNREADABLE = 20, 2
PROBLEMS_MAX = 100


class Unreadable(Exception):
    """It is no bundle, or a broken one."""


# ---- reading ------------------------------------------------------------------------------


def read(data: bytes) -> Bundle:
    """The bundle that these bytes are. Raises ``Unreadable``; whatever they say, it takes no more than its limit."""
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
        raise Unreadable(f"it has not exactly the files {', '.join(FILES)}")
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
        raise Unreadable("it is no bundle of amends")
    if manifest["version"] != VERSION:
        raise Unreadable(f"it is a bundle of version {manifest['version']}, and this knows version {VERSION}")
    for name, known in manifest["files"].items():
        if sha256(texts[name]).hexdigest() != known:
            raise Unreadable(f"{name} is not what the manifest says: it was damaged, or changed by hand")
    rows = {part: [_json(line) for line in texts[f"{part}.jsonl"].splitlines()] for part in PARTS}
    if not all(isinstance(row, dict) for some in rows.values() for row in some):
        raise Unreadable("a line is no row")
    return Bundle(manifest, rows)


def _json(text: bytes) -> Any:
    return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)


def _once(pairs: list[tuple[str, Any]]) -> Row:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("something is said twice")
    return made


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def check(bundle: Bundle, keys: Sequence[str] = ()) -> list[Problem]:
    """Everything in it that does not hang together, the first bad event first; ``keys``: who must have signed."""
    found = [*check_trees(bundle), *check_checkpoints(bundle, keys)]
    return sorted(found, key=lambda one: (one.seq == 0, one.seq, one.root, one.n))[:PROBLEMS_MAX]


# ---- the command --------------------------------------------------------------------------


def main(words: Sequence[str]) -> int:
    """Say what is in a bundle and whether it is whole; 0, or 20 where it is not, or 2 where it cannot be read."""
    parser = argparse.ArgumentParser(prog="python BUNDLE", description="Checks a bundle of amends.")
    parser.add_argument("bundle", help="the file")
    parser.add_argument("--key", action="append", default=[], help="who must have signed: ed25519-pub:..., or hmac:...")
    said = parser.parse_args(words)
    try:
        bundle = read(Path(said.bundle).read_bytes())
        problems, left = check(bundle, said.key), behind(bundle)
    except (Unreadable, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        print(in_ascii(f"{said.bundle} cannot be read as a bundle: {error}"), file=sys.stderr)
        return UNREADABLE
    for tree in bundle.manifest["trees"]:
        print(in_ascii(f"run {tree['run']} of ledger {tree['origin']}: {tree['state']}, {tree['events']} events"))
    signers = sorted({row["key"] or "nobody" for row in bundle.rows["checkpoints"]})
    print(in_ascii(f"checkpoints: {len(bundle.rows['checkpoints'])}, signed by {', '.join(signers) or 'nobody'}"))
    if left:
        print(f"events that no checkpoint stands behind: {left}")
    for text, how in ((SEALED, "encrypted, and not proved without their key"), (GONE, "removed")):
        count = sum(str(row[name]).startswith(text) for part, name in SPOKEN for row in bundle.rows[part])
        if count:
            print(f"payloads that are {how}: {count}")
    for problem in problems:
        print(problem)
    print("BROKEN" if problems else "whole")
    return BROKEN if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
