"""What must be true of the rows of a bundle, and of any record of ours. Put into ``verify.py``: standard library only."""

from __future__ import annotations

import hmac
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from amends.ed25519 import is_signed

Row = dict[str, Any]
Moves = Mapping[str, tuple[str, ...]]
PROBLEMS_MAX = 100
GENESIS = "0" * 64
NEW = "(new)"
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
GONE, SEALED = "gone:", "sealed:"
PROVED = {
    "run": (("row", "row", False), ("input", "input", True), ("output", "output", True)),
    "call": (("row", "row", False), ("args", "args", False), ("result", "result", True), ("error", "failure", False)),
    "approval": (("row", "terms", False), ("digest", "digest", False), ("given", "given", False)),
}
"""Of each kind of row: its columns that events prove, the fact that does, and whether it may have none."""
BOUND = {
    "run": "uid id tenant generation root parent policy order_mode agent principal input_digest tags deadline_at",
    "call": (
        "tool version kind key generation ident digest scope declared again call_ref parent grp at_commit undoable accepts"
    ),
    "approval": (
        "call run version principal agent nonce needed roles reasons rule policy requested_at expires_at use_key residue"
        " follows"
    ),
}
"""Of each kind of row: the columns that never change, in the order in which its first event has hashed them."""
SAID = ("root", "run", "run_id", "tenant", "call", "what", "frm", "to_state", "by_whom", "epoch", "facts")


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
    return sorted([*_check_moves(tree, events), *_check_payloads(tree, events)], key=lambda problem: problem.n)


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


def _check_payloads(tree: dict[str, list[Row]], events: list[Row]) -> Iterator[Problem]:
    """What rows hold is what their events have proved: payloads, and what was decided once and for all."""
    proved: dict[tuple[str, str, str], tuple[str | None, int]] = {}
    for event in events:
        facts = json.loads(event["facts"])
        subject, _ = _subject(event)
        if event["what"] in ("goal", "output"):
            subject = ("run", event["run"])
        for column, name, may_be_none in PROVED.get("" if subject is None else subject[0], ()):
            begins = event["frm"] == NEW and may_be_none
            answers = event["to_state"] == "succeeded" and "resolved" in facts
            settles = column == "result" and (event["frm"] == "started" or answers)
            if subject is not None and (name in facts or begins or settles):
                proved[subject[0], subject[1], column] = facts.get(name), event["n"]
    is_gone = any(run["gone_at"] is not None for run in tree["runs"])
    for kind, part, key in KINDS:
        for row in tree[part]:
            for column, _, _ in PROVED[kind]:
                if is_gone and column == "error":
                    continue  # gc has left the name of an error, and nothing of its message
                said, n = proved.get((kind, row[key], column), (None, 0))
                if n and not _is_proved(said, row, kind, column):
                    how, what = (
                        ("row_changed", "what it is") if column == "row" else ("payload_changed", f"its {column}")
                    )
                    yield Problem(how, f"{what} is not what event {n} says of {kind} {row[key]}", n=n)


def _is_proved(said: str | None, row: Row, kind: str, column: str) -> bool:
    if column == "row":
        parts = [row[name] for name in BOUND[kind].split()]
        return (
            said == sha256(ascii(tuple(storable(p) if isinstance(p, str) else p for p in parts)).encode()).hexdigest()
        )
    text = row[column]
    if column == "digest":
        return bool(said == text)
    if text and text.startswith((GONE, SEALED)):
        return True  # removed by gc, or of an encrypted ledger: nobody can tell without its key
    if not said or text is None:
        return not said and not text
    return ":" in said or said == sha256(storable(text).encode("utf-8")).hexdigest()


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
