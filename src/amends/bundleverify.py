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
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from amends.ed25519 import is_signed

Row = dict[str, Any]
Moves = Mapping[str, tuple[str, ...]]
FORMAT, VERSION = "amends bundle", 1
PARTS = ("runs", "calls", "events", "approvals", "checkpoints")
FILES = ("manifest.json", *(f"{part}.jsonl" for part in PARTS), "verify.py", "__main__.py")
UNPACKED_MAX = 1 << 29
"""Bytes that a bundle may have when it is unpacked: a small file can say that it is endless."""
PROBLEMS_MAX = 100
GENESIS = "0" * 64
NEW = "(new)"
BROKEN, UNREADABLE = 20, 2
CALL_MOVES: Moves = {
    NEW: ("held", "started"),
    "held": ("ready", "refused", "dropped"),
    "ready": ("started", "held", "refused", "dropped"),
    "started": ("succeeded", "failed", "backing_off", "in_doubt"),
    "backing_off": ("started", "failed"),
    "in_doubt": ("started", "backing_off", "succeeded", "failed", "compensating", "residue"),
    "succeeded": ("compensating", "residue"),
    "compensating": ("compensated", "compensation_failed", "compensation_in_doubt"),
    "compensation_in_doubt": ("compensating", "compensated", "compensation_failed"),
    "compensation_failed": ("compensating", "compensated", "residue"),
    "failed": ("succeeded",),
    "compensated": ("succeeded",),
    "refused": (),
    "dropped": (),
    "residue": (),
}
RUN_MOVES: Moves = {
    NEW: ("open",),
    "open": ("pivoted", "committed", "rolling_back", "blocked", "abandoned"),
    "pivoted": ("committed", "blocked", "abandoned"),
    "rolling_back": ("rolled_back", "blocked", "abandoned"),
    "blocked": ("open", "pivoted", "rolling_back", "abandoned"),
    "committed": ("rolling_back",),
    "rolled_back": ("rolling_back",),
    "abandoned": (),
}
SAID = ("root", "run", "run_id", "tenant", "call", "what", "frm", "to_state", "by_whom", "epoch", "facts")


class Unreadable(Exception):
    """It is no bundle, or a broken one."""


class Bundle:
    """What is in one: its manifest, and the rows of each part."""

    def __init__(self, manifest: Row, rows: dict[str, list[Row]]) -> None:
        self.manifest, self.rows = manifest, rows


class Problem:
    """Something that was changed: in which tree, at which of its events, and how."""

    def __init__(self, how: str, text: str, root: str = "", run_id: str = "", n: int = 0) -> None:
        self.how, self.text, self.root, self.run_id, self.n = how, text, root, run_id, n

    def __repr__(self) -> str:
        return f"run {self.run_id or self.root or '-'}, event {self.n or '-'}: {self.how}: {self.text}"


# ---- reading ------------------------------------------------------------------------------


def read(data: bytes) -> Bundle:
    """The bundle that these bytes are. Raises ``Unreadable``; whatever they say, it takes no more than its limit."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as packed:
            texts = _unpacked(packed)
        return _parsed(texts)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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


# ---- the chain ----------------------------------------------------------------------------


def digest(*parts: str | int) -> str:
    """SHA-256 over texts and whole numbers, each with its type and length."""
    data = [(type(part).__name__, str(part).encode("utf-8", "surrogatepass")) for part in parts]
    return sha256(b"".join(f"{kind}{len(text)}:".encode() + text for kind, text in data)).hexdigest()


def storable(text: str) -> str:
    """As every database can hold it, and as it is hashed."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def micros(at: float) -> int:
    """A moment in whole microseconds."""
    return round(at * 1e6)


def link(prev: str, event: Row) -> str:
    """What the hash of this event must be, after the one with that hash."""
    body = digest(*(storable(str(event[name])) for name in SAID))
    return sha256(f"{prev}:{event['n']}:{micros(event['at'])}:{body}".encode("utf-8", "surrogatepass")).hexdigest()


# ---- checking -----------------------------------------------------------------------------


def check(bundle: Bundle, keys: Sequence[str] = ()) -> list[Problem]:
    """Everything in it that does not hang together, the first bad event of each tree first."""
    found: list[Problem] = []
    rows = bundle.rows
    trees = {run["uid"]: run for run in rows["runs"] if run["uid"] == run["root"]}
    of = {part: _by(rows[part], "root") for part in ("runs", "calls", "events", "approvals")}
    for part, some in of.items():
        gone = some.keys() - trees.keys()
        found += [Problem("row_forged", f"there are {part} of a tree that is not there", root) for root in gone]
    told = {tree["root"]: tree for tree in bundle.manifest["trees"]}
    gone = told.keys() - trees.keys()
    found += [Problem("row_missing", "the manifest names a tree that is not there", root) for root in gone]
    for root, run in trees.items():
        mine = {part: some.get(root, []) for part, some in of.items()}
        found += [_named(one, root, run["id"]) for one in _check_tree(mine, told.get(root))]
    hashes = {(event["root"], event["n"]): event["hash"] for event in rows["events"]}
    found += _check_checkpoints(rows["checkpoints"], hashes, set(trees), keys)
    return found[:PROBLEMS_MAX]


def behind(bundle: Bundle) -> int:
    """How many of its events no checkpoint in it stands behind."""
    newest: dict[str, int] = {}
    for row in bundle.rows["checkpoints"]:
        for root, n, _ in json.loads(row["heads"]):
            newest[root] = max(n, newest.get(root, 0))
    return sum(event["n"] > newest.get(event["root"], 0) for event in bundle.rows["events"])


def _by(rows: list[Row], name: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


def _named(problem: Problem, root: str, run_id: str) -> Problem:
    problem.root, problem.run_id = root, run_id
    return problem


def _check_tree(tree: dict[str, list[Row]], told: Row | None) -> list[Problem]:
    events = sorted(tree["events"], key=lambda event: event["n"])
    broken = _check_chain(events)
    if broken is not None:
        return [broken]  # after it nothing can be said of what comes from whom
    if told is None:
        return [Problem("row_forged", "the manifest does not name this tree")]
    if (len(events), events[-1]["hash"] if events else "") != (told["events"], told["head"]):
        return [Problem("cut", f"it ends at event {len(events)}; it had {told['events']}", n=len(events) + 1)]
    return [*_check_moves(tree, events), *_check_payloads(tree, events)]


def _check_chain(events: list[Row]) -> Problem | None:
    prev = GENESIS
    for place, event in enumerate(events, 1):
        if event["n"] != place:
            how, what = ("inserted", "is there twice") if event["n"] < place else ("deleted", "is missing")
            n = min(event["n"], place)
            return Problem(how, f"event {n} {what}", n=n)
        if event["at"] != micros(event["at"]) / 1e6:
            return Problem("edited", "its time is no whole microsecond", n=place)
        if link(prev, event) != event["hash"]:
            return Problem("edited", "it does not say what its hash is of", n=place)
        prev = event["hash"]
    return None


def _check_moves(tree: dict[str, list[Row]], events: list[Row]) -> Iterator[Problem]:
    """Each row stands where its events left it, each event is about a row, and each move is one that there is."""
    stands: dict[tuple[str, str], str] = {}
    last: dict[tuple[str, str], int] = {}
    for event in events:
        subject, moves = _subject(event)
        if subject is None:
            continue
        if moves is not None and event["to_state"] not in moves.get(event["frm"], ()):
            yield Problem("inserted", f"nothing goes from {event['frm']} to {event['to_state']}", n=event["n"])
        elif event["frm"] != stands.get(subject, NEW):
            text = f"{subject[1]} was {stands.get(subject, NEW)}, not {event['frm']}"
            yield Problem("inserted", text, n=event["n"])
        stands[subject], last[subject] = event["to_state"], event["n"]
    rows = {(kind, row[name]): row for kind, part, name in KINDS for row in tree[part]}
    for subject, state in stands.items():
        row = rows.get(subject)
        if row is None:
            yield Problem("row_missing", f"{subject[0]} {subject[1]} is not there", n=last[subject])
        elif row["state"] != state:
            text = f"{subject[0]} {subject[1]} is {row['state']}, and its last event says {state}"
            yield Problem("row_changed", text, n=last[subject])
    for subject in rows.keys() - stands.keys():
        yield Problem("row_forged", f"{subject[0]} {subject[1]} has no event")


KINDS = (("run", "runs", "uid"), ("call", "calls", "id"), ("approval", "approvals", "id"))


def _subject(event: Row) -> tuple[tuple[str, str] | None, Moves | None]:
    """Which row an event moves, and the table of its moves; None: it moves none."""
    what = event["what"]
    if what == "run":
        return ("run", event["run"]), RUN_MOVES
    if what == "call":
        return ("call", event["call"]), CALL_MOVES
    if what == "approval":
        return ("approval", json.loads(event["facts"])["approval"]), None
    return None, None


def _check_payloads(tree: dict[str, list[Row]], events: list[Row]) -> list[Problem]:
    return []


# ---- checkpoints --------------------------------------------------------------------------


def _check_checkpoints(
    rows: list[Row], hashes: dict[tuple[str, int], str], roots: set[str], keys: Sequence[str]
) -> Iterator[Problem]:
    vouched = not keys
    for row in rows:
        said = (
            row["n"],
            micros(row["at"]),
            row["ledger"],
            row["high"],
            row["gaps"],
            row["heads"],
            row["prev"],
            row["key"],
        )
        if digest("amends checkpoint", *said) != row["hash"]:
            yield Problem("edited", f"checkpoint {row['n']} does not say what its hash is of")
            continue
        by = next((key for key in keys if name_of(key) == row["key"]), row["key"])
        if row["key"] and not has_signed(by, row["hash"], row["signature"]):
            yield Problem("bad_signature", f"the signature of checkpoint {row['n']} is not one of {row['key']}")
        vouched = vouched or by in keys
        for root, n, known in json.loads(row["heads"]):
            if root not in roots or hashes.get((root, n)) == known:
                continue
            if (root, n) in hashes:
                yield Problem("rewritten", f"checkpoint {row['n']} names another event {n}", root, n=n)
            else:
                yield Problem("cut", f"checkpoint {row['n']} names event {n}, which is not there", root, n=n)
    if not vouched:
        yield Problem("bad_signature", f"no checkpoint in it is signed with {' or '.join(map(name_of, keys))}")


def name_of(key: str) -> str:
    """How a checkpoint names the key that signed it."""
    kind, _, rest = key.partition(":")
    if kind == "hmac":
        return f"hmac-id:{hmac.digest(rest.encode(), b'amends audit key', 'sha256').hex()[:16]}"
    return key


def has_signed(key: str, hash: str, signature: str) -> bool:
    """Whether this is the key's signature of that hash; a key that only has a name here proves nothing, and says yes."""
    kind, _, rest = key.partition(":")
    words = f"amends checkpoint {hash}".encode("ascii", "replace")
    try:
        raw = b64decode(signature, validate=True)
        if kind == "hmac":
            return hmac.compare_digest(hmac.digest(rest.encode(), words, "sha256"), raw)
        return bool(signature) if kind == "hmac-id" else is_signed(b64decode(rest, validate=True), words, raw)
    except ValueError:
        return False


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
    except (Unreadable, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{said.bundle} cannot be read as a bundle: {error}", file=sys.stderr)
        return UNREADABLE
    for tree in bundle.manifest["trees"]:
        print(f"run {tree['run']} of ledger {tree['origin']}: {tree['state']}, {tree['events']} events")
    signers = sorted({row["key"] or "nobody" for row in bundle.rows["checkpoints"]})
    print(f"checkpoints: {len(bundle.rows['checkpoints'])}, signed by {', '.join(signers) or 'nobody'}")
    if left:
        print(f"events that no checkpoint stands behind: {left}")
    for problem in problems:
        print(problem)
    print("BROKEN" if problems else "whole")
    return BROKEN if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
