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
import json
import sys
import zipfile
import zlib
from collections.abc import Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from amends.bundlerules import GONE, SEALED, Bundle, Problem, Row, check_trees, in_ascii
from amends.bundlevouch import behind, check_checkpoints

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
