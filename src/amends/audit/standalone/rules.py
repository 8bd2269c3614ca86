"""The rules that the rows of a bundle must obey. Packed into ``verify.py`` of a bundle, so: standard library only.

``amends.audit.verify`` checks the same rules on a ledger, page by page. A test compares their tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

Row = dict[str, Any]
Moves = Mapping[str, tuple[str, ...]]
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
APPROVAL_MOVES: Moves = {
    NEW: ("pending",),
    "pending": ("approved", "rejected", "expired", "cancelled"),
    "approved": ("used", "rejected", "expired", "cancelled", "approved"),
}
SHARED: Moves = {NEW: ("succeeded", "failed", "refused", "dropped")}
"""A shared call: the fork has it in its final state, and it never changes there."""
WORDS = ("by_whom", "reason", "decided_at")
"""Columns of a request: who decided it, why, and when."""
GOAL = ("goal", "goal_by", "goal_why")
NONE = "none"
"""The goal in an event after which a run has none."""
LEARNED = ("learned", "evidence")
MOVES = {"run": RUN_MOVES, "call": CALL_MOVES, "approval": APPROVAL_MOVES}
KINDS = (("run", "runs", "uid"), ("call", "calls", "id"), ("approval", "approvals", "id"))
"""The kinds of rows, the files that hold them, and the column that identifies a row."""
GONE, SEALED = "gone:", "sealed:"
ERASURE, ERASED_ROW = "erased", "row erased"
"""The events of an erasure: who erased the texts of the tree and why; what is left of the columns of a row."""
PLAIN = ("", "null", "{}", "[]")
"""Empty payloads: they are never encrypted."""
BOUND = {
    "run": "uid id tenant generation root parent policy order_mode agent principal input_digest tags deadline_at"
    " forked_from forked_at",
    "call": (
        "tool version kind key generation ident digest scope declared again call_ref parent grp at_commit undoable accepts"
        " shared"
    ),
    "approval": (
        "call run version principal agent nonce needed roles reasons rule policy requested_at expires_at use_key residue"
        " follows editors timetable"
    ),
}
"""For each kind of row, the columns that never change, in the order in which its first event hashed them."""
TOLD = {"run": "id", "tenant": "tenant", "origin": "origin", "state": "state", "generation": "generation"}
"""What the manifest has of a tree, with the column of its root run that it must equal."""
SAID = ("root", "run", "run_id", "tenant", "call", "what", "frm", "to_state", "by_whom", "epoch", "facts")


class Bundle:
    """The contents of a bundle: its manifest, and the rows of each part."""

    def __init__(self, manifest: Row, rows: dict[str, list[Row]]) -> None:
        self.manifest, self.rows = manifest, rows


class Problem:
    """A change that was found: in which tree, at which event, and how."""

    def __init__(self, how: str, text: str, event: Row | None = None, *, root: str = "", n: int = 0) -> None:
        said = event or {}
        self.how, self.text, self.root, self.run_id = how, text, said.get("root", root), said.get("run_id", "")
        self.n = n or said.get("n", 0)

    def __repr__(self) -> str:
        return in_ascii(f"run {self.run_id or self.root or '-'}, event {self.n or '-'}: {self.how}: {self.text}")


def in_ascii(line: object) -> str:
    """Escape everything that is not plain ASCII: a bundle may be made to deceive the person who checks it.

    ``amends.visible`` does this elsewhere; this program needs nothing but Python.
    """
    return json.dumps(str(line))[1:-1].replace('\\"', '"').replace("\x7f", "\\u007f")


# ---- The hash chain


def digest(*parts: str | int) -> str:
    """Return the SHA-256 of strings and integers, each with its type and length."""
    data = [(type(part).__name__, str(part).encode("utf-8", "surrogatepass")) for part in parts]
    return sha256(b"".join(f"{kind}{len(text)}:".encode() + text for kind, text in data)).hexdigest()


def storable(text: str) -> str:
    """Return a text as every database can store it, and as it is hashed."""
    return text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode("utf-8")


def micros(at: float) -> int:
    """Return a time in whole microseconds."""
    return round(at * 1e6)


def said_body(event: Row) -> str:
    """Return the digest of what an event says now."""
    return digest(*(storable(str(event[name])) for name in SAID))


def erased_body(event: Row) -> str:
    """Return the digest of what an erased event said; empty: it is not erased. The event ``erased`` must prove it."""
    facts, start = event["facts"], '{"erased": "'
    body = facts[len(start) : len(start) + 64] if facts.startswith(start) else ""
    is_digest = len(body) == 64 and body.isalnum() and body.isascii()
    return body if is_digest and facts[len(start) + 64 :].startswith('"') else ""


def link(prev: str, n: int, event: Row) -> str:
    """Return the hash that this event must have as number ``n``, after the event with the hash ``prev``."""
    body = erased_body(event) or said_body(event)
    return sha256(f"{prev}:{n}:{micros(event['at'])}:{body}".encode("utf-8", "surrogatepass")).hexdigest()


def proof(text: str) -> str:
    """Return the hash by which an event proves a payload."""
    return sha256(storable(text).encode("utf-8")).hexdigest()


def bound(row: Row, kind: str) -> str:
    """Return the hash by which the first event of a row proves the columns that never change."""
    parts = tuple(storable(one) if isinstance(one := row[name], str) else one for name in BOUND[kind].split())
    return sha256(ascii(parts).encode("ascii")).hexdigest()


# ---- Checking trees


def check_trees(bundle: Bundle) -> list[Problem]:
    """Return every contradiction in the trees of a bundle."""
    found: list[Problem] = []
    rows = bundle.rows
    trees = {run["uid"]: run for run in rows["runs"] if run["uid"] == run["root"]}
    of = {part: _by(rows[part], "root") for part in ("runs", "calls", "events", "approvals")}
    for part, some in of.items():
        gone = some.keys() - trees.keys()
        found += [Problem("row_forged", f"there are {part} of a tree that is missing", root=root) for root in gone]
    told = {tree["root"]: tree for tree in bundle.manifest["trees"]}
    gone = told.keys() - trees.keys()
    found += [Problem("row_missing", "the manifest names a tree that is missing", root=root) for root in gone]
    for root in trees:
        mine = {part: some.get(root, []) for part, some in of.items()}
        found += Tree(mine, is_ours=trees[root]["origin"] == bundle.manifest["ledger"]).problems(told.get(root))
    return found


def _by(rows: list[Row], name: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row[name], []).append(row)
    return found


class Subject:
    """One row as its events describe it; ``facts``: the newest fact of each name."""

    def __init__(self, event: Row, facts: Row) -> None:
        self.first, self.last, self.facts = event, event, facts
        self.state = event["to_state"]
        self.counts = {"attempt": 0, "comp_attempt": 0, "settled_seq": 0}
        self.passed = False
        self.remote_s = 0.0
        self.why = str(facts.get("why", "")) if event["what"] == "call" else ""
        self.comp_error = ""
        self.causes: list[str] = []

    def add(self, facts: Row) -> None:
        """Take in the newest facts. An event with a goal names all of it: what it leaves out is empty."""
        if "goal" in facts:
            for name in GOAL:
                self.facts.pop(name, None)
        self.facts.update(facts)

    def say(self, event: Row, facts: Row) -> None:
        """Keep the reason and the error that the row of a call has after this transition."""
        frm, to = event["frm"], event["to_state"]
        words = "why" in facts or "resolved" in facts
        if "started" in (frm, to) or (words and to not in ("ready", "compensated", "compensation_failed")):
            self.why = str(facts.get("why", ""))
        if to == "compensating":
            self.comp_error = ""
        elif frm == "compensating":
            self.comp_error = str(facts.get("error", ""))


class Tree:
    """The events of one tree in their order, then its rows."""

    def __init__(self, rows: dict[str, list[Row]], *, is_ours: bool) -> None:
        self._rows, self._events = rows, sorted(rows["events"], key=lambda event: event["n"])
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._runs: dict[str, Row] = {}
        self._emptied = not is_ours  # gc of another ledger writes no event here
        self._found: list[Problem] = []
        self._left, self._left_said, self._last_left = sha256(), "", 0
        """The digest of the erased events, the newest one that an event of erasure names, and the last erased event."""

    def problems(self, told: Row | None) -> list[Problem]:
        """Return what was changed. After the first event that is not linked, nothing more can be checked."""
        if not self._is_linked():
            return self._found
        end: Row = self._events[-1] if self._events else {"n": 0, "hash": ""}
        if told is None:
            return [Problem("row_forged", "the manifest does not name this tree", end)]
        root = next(run for run in self._rows["runs"] if run["uid"] == run["root"])
        if any(told[name] != root[column] for name, column in TOLD.items()):
            return [Problem("row_changed", "the manifest says something else of this run", end)]
        if (end["n"], end["hash"]) != (told["events"], told["head"]):
            return [Problem("cut", f"it ends at event {end['n']}, and had {told['events']}", end, n=end["n"] + 1)]
        if self._last_left and self._left.hexdigest() != self._left_said:
            text = "events of it were erased, or changed after that, and no event says so"
            self._found.append(Problem("edited", text, end, n=self._last_left))
        self._check_asked()
        for kind, part, name in KINDS:
            for row in self._rows[part]:
                self._found += self._compared(kind, row[name], row)
        for (kind, id), subject in self._subjects.items():
            self._found.append(Problem("row_missing", f"{kind} {id} is missing", subject.last))
        known = {run["uid"] for run in self._rows["runs"]}
        for uid, event in self._runs.items():
            if uid not in known and ("run", uid) not in self._subjects:
                self._found.append(Problem("row_missing", f"run {uid} is missing", event))
        return self._found

    def _check_asked(self) -> None:
        """Check that a call names its newest request, and a request the tool of its call."""
        newest = {one.first["call"]: id for (kind, id), one in self._subjects.items() if kind == "approval"}
        tools = {call["id"]: call["tool"] for call in self._rows["calls"]}
        for call in self._rows["calls"]:
            if call["approval"] != newest.get(call["id"], ""):
                text = f"call {call['id']}: its approval is not the newest one"
                self._found.append(Problem("row_changed", text, {"root": call["root"], "run_id": call["run_id"]}))
        for asked in self._rows["approvals"]:
            if asked["tool"] != tools.get(asked["call"]):
                text = f"approval {asked['id']}: the tool was changed"
                self._found.append(Problem("row_changed", text, {"root": asked["root"], "run_id": asked["run_id"]}))

    def _is_linked(self) -> bool:
        prev = GENESIS
        for n, event in enumerate(self._events, 1):
            if event["n"] != n or event["hash"] != link(prev, n, event):
                if not self._found:
                    how, text = self._how_broken(n, prev, event)
                    self._found.append(Problem(how, text, event, n=n if how == "deleted" else event["n"]))
                return False
            prev = event["hash"]
            if event["at"] != micros(event["at"]) / 1e6:
                self._found.append(Problem("edited", "its time is not in whole microseconds", event))
            self._note_erased(event)
            self._found += self._moved(event, json.loads(event["facts"]))
        return True

    def _note_erased(self, event: Row) -> None:
        """Count an erased event, and take in what the event of an erasure says of those before it."""
        if body := erased_body(event):
            self._left.update(f"{event['n']}:{body}:{said_body(event)}\n".encode())
            self._last_left = event["n"]
        elif event["what"] == ERASURE:
            self._left_said = str(json.loads(event["facts"]).get("left", ""))

    def _how_broken(self, n: int, prev: str, event: Row) -> tuple[str, str]:
        after = self._events[n] if n < len(self._events) else None
        if event["n"] > n:
            return "deleted", f"event {n} is missing"
        if after is not None and after["hash"] == link(prev, n, after):
            if event["hash"] == link(after["hash"], n + 1, event):
                return "swapped", f"it was event {n + 1}"
            return "inserted", "the event after it is linked to the one before it"
        if after is not None and after["hash"] == link(event["hash"], n + 2, after):
            return "deleted", f"event {n} is missing, and the events after it were renumbered"
        return "edited", "its content does not match its hash"

    # ---- What events say about rows

    def _moved(self, event: Row, facts: Row) -> Iterator[Problem]:
        self._runs.setdefault(event["run"], event)
        what, asked = event["what"], str(facts.get("approval"))
        subject = {"run": event["run"], "call": event["call"], "shared": event["call"], "approval": asked}.get(what)
        if subject is not None:
            yield from self._moves("call" if what == "shared" else what, subject, event, facts)
            if what == "approval":
                yield from self._delegated(event, facts)
        elif what in ("goal", "output", "budgets", "completion", "rollback planned"):
            self._adds(("run", event["run"]), facts, "output", "budgets", "completion", "plan", *GOAL)
        elif what == "causes" and ("run", event["run"]) in self._subjects:
            self._subjects["run", event["run"]].causes = list(facts.get("causes", ()))
        elif what == "approval given":
            self._adds(("approval", asked), facts, "given")
            yield from self._delegated(event, facts)
        elif what in ("reminded", "escalated", "overdue"):
            at = {"asked_at": event["at"]} if what == "escalated" else {}
            self._adds(("approval", asked), {**facts, **at}, "entry", "asked_at")
        elif what in ("evidence", "probed"):
            self._adds(("call", event["call"]), facts, *LEARNED)
        elif what == "retry asked" and ("call", event["call"]) in self._subjects:
            self._adds(("call", event["call"]), facts, "result")
            tried = self._subjects["call", event["call"]]
            tried.why = "" if tried.state == "backing_off" else tried.why
        elif what in ("payloads removed", ERASURE):
            self._emptied = True
        elif what == ERASED_ROW:
            if "approval" in facts:
                self._adds(("approval", asked), facts, "terms", "said", "given")
            elif event["call"]:
                self._adds(("call", event["call"]), facts, "row", "failure")
            else:
                self._adds(("run", event["run"]), facts, "row", "completion")
        elif what == "passed to parent" and ("call", event["call"]) in self._subjects:
            self._subjects["call", event["call"]].passed = True

    def _delegated(self, event: Row, facts: Row) -> Iterator[Problem]:
        """Check that a decision on behalf of another person names a delegation.

        The delegation is in no bundle: only the ledger can prove it.
        """
        behalf, word = facts.get("behalf"), facts.get("delegation")
        named = isinstance(word, list) and len(word) == 2
        if (behalf is not None or word is not None) and not (behalf is not None and named):
            text = f"{event['by_whom']} decided for {behalf}, and names no delegation"
            yield Problem("edited", text, event)

    def _moves(self, kind: str, id: str, event: Row, facts: Row) -> Iterator[Problem]:
        subject, to = self._subjects.get((kind, id)), event["to_state"]
        state = NEW if subject is None else subject.state
        if event["frm"] != state:
            yield Problem("inserted", f"{kind} {id} was {state} then, not {event['frm']}", event)
        elif to not in (SHARED if event["what"] == "shared" else MOVES[kind]).get(state, ()):
            yield Problem("inserted", f"no {kind} goes from {state} to {to}", event)
        if subject is None:
            subject = self._subjects[kind, id] = Subject(event, facts)
        else:
            is_settled = event["frm"] == "started" if "attempt" in facts else "resolved" in facts
            if kind == "call" and is_settled:  # a settlement replaces the result, possibly by none
                forgets = (
                    ("failure", "result") if event["frm"] == "started" else ("result",) if to == "succeeded" else ()
                )
                for name in forgets:
                    subject.facts.pop(name, None)
            subject.add(facts)
            subject.last, subject.state = event, to
        if kind == "call":
            subject.say(event, facts)
        elif kind == "run":
            subject.causes = list(facts.get("causes", ()))
        if kind == "call" and to in ("started", "compensating"):
            subject.remote_s = facts.get("remote", 0.0)
        if kind == "call" and (to == "started" or event["what"] == "shared"):
            subject.counts["attempt"] = facts.get("attempt", 1)
            if to == "succeeded":
                subject.counts["settled_seq"] = event["n"]
        elif kind == "call" and to == "compensating":
            subject.counts["comp_attempt"] = facts.get("attempt", 0)
        elif kind == "call" and to in ("succeeded", "in_doubt"):
            subject.counts["settled_seq"] = event["n"]

    def _adds(self, subject: tuple[str, str], facts: Row, *names: str) -> None:
        if subject in self._subjects:
            self._subjects[subject].add({name: facts[name] for name in names if name in facts})

    # ---- Comparing the rows

    def _compared(self, kind: str, id: str, row: Row) -> Iterator[Problem]:
        subject = self._subjects.pop((kind, id), None)
        if subject is None:
            about = {"root": row["root"], "run_id": row["id"] if kind == "run" else row["run_id"]}
            yield Problem("row_forged", f"{kind} {id} has no event", about)
            return
        if row["state"] != subject.state:
            text = f"{kind} {id} is {row['state']}, and its last event says {subject.state}"
            yield Problem("row_changed", text, subject.last)
        compare = {"run": self._run, "call": self._call, "approval": self._approval}[kind]
        for how, text in compare(row, subject):
            yield Problem(how, f"{kind} {id}: {text}", subject.last)

    def _run(self, row: Row, subject: Subject) -> Iterator[tuple[str, str]]:
        first, facts = subject.first, subject.facts
        if "row" in facts and facts["row"] != bound(row, "run"):
            yield "row_changed", "a column that never changes was changed"
        mine = row["root"], row["id"], row["tenant"], row["created_at"]
        if mine != (first["root"], first["run_id"], first["tenant"], first["at"]):
            yield "row_changed", "the id, the tenant or the time was changed"
        for name in ("input", "output") if "row" in facts else ():
            yield from self._payload(name, row[name], facts.get(name))
        goal, by, why = (str(facts.get(name, "")) for name in GOAL)
        if (row["goal"], row["goal_by"]) != ("" if goal == NONE else goal, by):
            yield "row_changed", "the goal, or who set it, was changed"
        yield from _words("why it has its goal", row["goal_why"], why)
        if row["plan"] != facts.get("plan", ""):
            yield "row_changed", "the plan was changed"
        budgets = row["budgets"]
        if bool(budgets) != ("budgets" in facts) or (budgets and proof(budgets) != facts["budgets"]):
            yield "row_changed", "the budgets were changed"
        completion = row.get("completion")
        if (proof(completion) if completion else None) != facts.get("completion"):
            yield "row_changed", "when it is complete was changed"
        yield from _words("why it is blocked", row["causes"], json.dumps(subject.causes, ensure_ascii=False))
        if row["state"] == "blocked" and row["came_from"] != subject.last["frm"]:
            yield "row_changed", "its state before it was blocked was changed"

    def _call(self, row: Row, subject: Subject) -> Iterator[tuple[str, str]]:
        first, facts = subject.first, subject.facts
        if "row" in facts and facts["row"] != bound(row, "call"):
            yield "row_changed", "a column that never changes was changed"
        mine = row["root"], row["run_id"], row["tenant"], row["created_at"], row["seq"]
        if mine != (first["root"], first["run_id"], first["tenant"], first["at"], first["n"]):
            yield "row_changed", "the run, the time or the number was changed"
        run = next((run for run in self._rows["runs"] if run["uid"] == row["run"]), None)
        if run is None or (row["run"] != first["run"] and not subject.passed):
            yield "row_changed", "the run was changed"
        elif (row["agent"], row["principal"]) != (run["agent"], run["principal"]):
            yield "row_changed", "the agent or the principal was changed"
        if {name: row[name] for name in subject.counts} != subject.counts:
            yield "row_changed", "the attempts or the order of settlement were changed"
        if row.get("remote_s", 0.0) != subject.remote_s:
            yield "row_changed", "its work lease was changed"
        for name in ("args", "result", "before") if "row" in facts else ():
            yield from self._payload(name, row.get(name), facts.get(name))
        if "row" not in facts:
            return
        if facts.get("failure") and (row["state"] == "refused" or not self._emptied):
            yield from self._payload("error", row["error"], facts["failure"])
        elif not facts.get("failure") and row["error"] and row["result"] is None:
            yield "row_changed", "an error was added"
        yield from self._worded(row, subject)

    def _worded(self, row: Row, subject: Subject) -> Iterator[tuple[str, str]]:
        facts = subject.facts
        if subject.first["what"] != "shared":
            yield from _words("why", row["why"], subject.why)
        if any(row[name] != facts.get(name, "") for name in ("alias", "twin", "violation")):
            yield "row_changed", "what it stands for, or the rule that it broke, was changed"
        if self._emptied:
            return
        yield from _words("the error of its compensation", row["comp_error"], subject.comp_error)
        names = facts.get("locks")
        if row["locks"] != (json.dumps(names, ensure_ascii=False) if names else ""):
            yield "row_changed", "the names of its locks were changed"
        for name in LEARNED:
            text, proved = row.get(name, ""), facts.get(name)
            if SEALED not in text and text and (proved is None or proof(text) != proved):
                what = "learned of it" if name == "learned" else "kept as evidence"
                yield "row_changed", f"what was {what} was changed"
            elif not text and name == "learned" and proved is not None:
                yield "row_changed", "what was learned of it was removed"

    def _approval(self, row: Row, subject: Subject) -> Iterator[tuple[str, str]]:
        first, facts = subject.first, subject.facts
        if "terms" in facts and facts["terms"] != bound(row, "approval"):
            yield "row_changed", "the terms of the request were changed"
        if (row["digest"], row["seq"], row["call"]) != (facts.get("digest"), first["n"], first["call"]):
            yield "row_changed", "the call that it binds was changed"
        if (row["root"], row["run_id"], row["tenant"]) != (first["root"], first["run_id"], first["tenant"]):
            yield "row_changed", "the run was changed"
        last = subject.last
        if row["state"] == "used" and (row["used_at"], row["used_seq"]) != (last["at"], last["n"]):
            yield "row_changed", "the time of its use was changed"
        said = tuple(storable(one) if isinstance(one := row[name], str) else one for name in WORDS)
        words = None if said == ("", "", None) else sha256(ascii(said).encode("ascii")).hexdigest()
        if words != facts.get("said"):
            yield "row_changed", "who decided, when, or why was changed"
        if (row["reached"], row["asked_at"]) != (facts.get("entry", 0), facts.get("asked_at")):
            yield "row_changed", "whom it was escalated to, or when, was changed"
        # Whoever loads a record of another ledger follows no timetable: then nothing is due.
        if row["due_at"] is not None and row["due_at"] != due_at(row):
            yield "row_changed", "when something happens if nobody answers was changed"
        if row["given"] != "[]" or "given" in facts:
            yield from self._payload("given", row["given"], facts.get("given"))

    def _payload(self, name: str, text: str | None, proved: str | None) -> Iterator[tuple[str, str]]:
        if text is not None and text.startswith(GONE):
            if not self._emptied:
                yield "payload_changed", f"the {name} is gone, and neither gc nor an erasure removed it"
        elif proved is None or text is None:
            if text or proved is not None:
                yield "payload_changed", f"the {name} is not what was written"
        elif not text.startswith(SEALED) and (text not in PLAIN if ":" in proved else proof(text) != proved):
            yield "payload_changed", f"the {name} is not what was written"


def _words(name: str, text: str, said: str) -> Iterator[tuple[str, str]]:
    """Compare a text with what an event says in plain text; a text that was encrypted since cannot be compared."""
    if storable(text) != storable(said) and not (SEALED in text and said):
        yield "row_changed", f"{name} was changed"


def due_at(row: Row) -> float | None:
    """Return when the next entry of the timetable of a request is due; None: there is none, or it is decided."""
    entries = json.loads(row["timetable"]) if row["timetable"] else []
    if row["state"] != "pending" or not row["reached"] < len(entries):
        return None
    found: float = row["requested_at"] + entries[row["reached"]][0]
    return found
