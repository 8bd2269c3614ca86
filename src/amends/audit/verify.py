"""Checking the record: each tree's chain, where its rows stand by it, and that what they say is what was written.

``TreeCheck`` is given the events of one tree, in their order, and then its rows; it asks nobody and remembers no more
than that tree. ``verify_chains`` goes through a ledger with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from amends.encoding.chain import GENESIS, Anchored, link, moment, proof, read_heads, storable
from amends.encoding.dataclass import changed, dataclass, field
from amends.encoding.secret import SEALED
from amends.host.checkpoints import read_copy
from amends.host.host import Host, View
from amends.host.listing import CALL_WORDS, PAGE, RUN_FIELDS, Pages, narrowing, parse_filter
from amends.host.runs import no_run
from amends.ledger.changes import GOAL as GOAL_FACTS
from amends.ledger.changes import LEARNED, NONE, call_bound, is_delegated, run_bound, terms_bound, words_bound
from amends.ledger.operations import (
    PLACES_MAX,
    Chains,
    FindTrees,
    ListRuns,
    Place,
    ReadChains,
    ReadCheckpoints,
    ReadHashes,
)
from amends.ledger.rows import (
    GONE,
    LOADED,
    PLAIN,
    ApprovalRow,
    CallRow,
    CheckpointRow,
    DelegationRow,
    EventRow,
    RunRow,
    person,
)
from amends.ledger.world import ReadAnchor
from amends.report import PROBLEMS_MAX, Problem, Tampering, Verified
from amends.signing import AuditKey, embedded_key, load_key
from amends.states import CALL_MOVES, NEW, RUN_MOVES

# ---- Where the rows of a tree must stand, by its events: states, attempts, places, and what was proved of


Said: TypeAlias = tuple[Tampering, str]
Load: TypeAlias = tuple[str, str, int, str]
"""A record that was loaded: its ledger, its id, how many events it has and the hash of the last."""
Unlike: TypeAlias = tuple[Tampering, str, int, int, str]
"""How a row differs and in what, with the number, place and run id of its last event."""
APPROVAL_MOVES: Final[Mapping[str, tuple[str, ...]]] = {
    NEW: ("pending",),
    "pending": ("approved", "rejected", "expired", "cancelled"),
    "approved": ("used", "rejected", "expired", "cancelled", "approved"),
}
SHARED: Final[Mapping[str, tuple[str, ...]]] = {NEW: ("succeeded", "failed", "refused", "dropped")}
"""A call that a fork has as it was: it never moved there."""
MOVES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "run": RUN_MOVES,
    "call": CALL_MOVES,
    "approval": APPROVAL_MOVES,
}


class Use(NamedTuple):
    """A decision that somebody made for somebody else: by which delegation, and its hash then."""

    delegation: str
    hash: str
    behalf: str
    event: EventRow

    def why_not(self, said: EventRow | None) -> str:
        """Return why this delegation did not let them decide; empty: it did."""
        if said is None:
            return "which nobody made"
        word = _facts(said)
        event = self.event
        if said.hash != self.hash or said.tenant != event.tenant:
            return "which said something else then"
        if (word.get("to"), word.get("by")) != (storable(person(event.by_whom)), storable(person(self.behalf))):
            return "which is of other people"
        return "" if said.at <= event.at < float(word["until"]) else "which did not hold then"


class Subject:
    """One row, as its events tell it."""

    __slots__ = (
        "attempt", "causes", "comp_attempt", "comp_error", "created_at", "facts", "first", "last", "passed",
        "settled_seq", "state", "why",
    )  # fmt: skip

    def __init__(self, event: EventRow, facts: dict[str, Any]) -> None:
        self.first = self.last = event
        self.created_at, self.state = event.at, event.to_state
        self.facts = facts
        """What was said of it last, by name."""
        self.attempt = self.comp_attempt = self.settled_seq = 0
        self.passed = False
        self.why = str(facts.get("why", "")) if event.what == "call" else ""
        self.comp_error = ""
        """Of a call: the words that its row has by now."""
        self.causes: list[str] = []
        """Of a run: why it is blocked."""


class Standing:
    """All rows of a tree, event by event."""

    def __init__(self, prove: Callable[[str, str, str], bool | None]) -> None:
        self._prove = prove
        self._subjects: dict[tuple[str, str], Subject] = {}
        self._runs: dict[str, EventRow] = {}
        self._emptied = False
        self.delegated: dict[str, EventRow] = {}
        """The delegations that were made, by their ids."""
        self.uses: list[Use] = []
        """Decisions that were made for somebody else."""
        self.loads: set[Load] = set()
        self.unproved = 0

    def moved(self, event: EventRow) -> Iterator[Said]:
        """Take in an event; what is wrong with it though it is linked."""
        what = event.what
        if what == "delegated":
            self.delegated[event.root] = event
            return
        self._runs.setdefault(event.run, event)
        if what == "call" or what == "shared":
            yield from self._moves("call", event.call, event, _facts(event))
        elif what == "run":
            yield from self._moves("run", event.run, event, _facts(event))
        elif what == "approval":
            facts = _facts(event)
            yield from self._moves("approval", str(facts.get("approval")), event, facts)
            yield from self._delegated(event, facts)
        elif what in ("goal", "output", "budgets", "rollback planned"):
            facts = _facts(event)
            self._adds("run", event.run, facts, "output", "budgets", "plan", *GOAL_FACTS)
        elif what == "retry asked":
            self._adds("call", event.call, _facts(event), "result")
            self._marked(event)
        elif what == "approval given":
            facts = _facts(event)
            self._adds("approval", str(facts.get("approval")), facts, "given")
            yield from self._delegated(event, facts)
        elif what in ("evidence", "probed"):
            self._adds("call", event.call, _facts(event), *LEARNED)
        elif what == "payloads removed":
            self._emptied = True
        elif what == "runs loaded":
            self.loads |= {(str(origin), str(id), int(n), str(hash)) for origin, id, n, hash in _facts(event)["heads"]}
        else:
            self._marked(event)

    def _marked(self, event: EventRow) -> None:
        """Take in what changes one thing of a row that does not move."""
        run, call = self._subjects.get(("run", event.run)), self._subjects.get(("call", event.call))
        if event.what == "causes" and run is not None:
            run.causes = list(_facts(event).get("causes", ()))
        elif event.what == "passed to parent" and call is not None:
            call.passed = True
        elif event.what == "retry asked" and call is not None and call.state == "backing_off":
            call.why = ""

    def _moves(self, kind: str, id: str, event: EventRow, facts: dict[str, Any]) -> Iterator[Said]:
        subject = self._subjects.get((kind, id))
        state = NEW if subject is None else subject.state
        if event.frm != state:
            yield "inserted", f"{kind} {id} was {state} then, not {event.frm}"
        elif event.to_state not in (SHARED if event.what == "shared" else MOVES[kind]).get(state, ()):
            yield "inserted", f"no {kind} goes from {state} to {event.to_state}"
        if subject is None:
            subject = self._subjects[kind, id] = Subject(event, facts)
        else:
            if kind == "call" and (event.frm == "started" if "attempt" in facts else "resolved" in facts):
                _forgotten(subject, event)
            _updated(subject, facts)
            subject.last, subject.state = event, event.to_state
        if kind == "call":
            _counted(subject, event, facts)
            _worded(subject, event, facts)
        elif kind == "run":
            subject.causes = list(facts.get("causes", ()))

    def _adds(self, kind: str, id: str, facts: dict[str, Any], *names: str) -> None:
        subject = self._subjects.get((kind, id))
        if subject is not None:
            _updated(subject, {name: facts[name] for name in names if name in facts})

    def _delegated(self, event: EventRow, facts: dict[str, Any]) -> Iterator[Said]:
        behalf, word = facts.get("behalf"), facts.get("delegation")
        if behalf is None and word is None:
            return
        if behalf is None or not isinstance(word, list) or len(word) != 2:
            yield "edited", f"{event.by_whom} decided for {behalf}, and it does not say by which delegation"
            return
        self.uses.append(Use(str(word[0]), str(word[1]), str(behalf), event))

    # ---- the rows -------------------------------------------------------------------------

    def unlike(
        self,
        runs: Iterable[RunRow],
        calls: Iterable[CallRow],
        approvals: Iterable[ApprovalRow],
        delegations: Iterable[DelegationRow] = (),
    ) -> Iterator[Unlike]:
        """What of the rows does not stand where the events left it."""
        by_uid, tools = {run.uid: run for run in runs}, dict[str, str]()
        newest = {subject.first.call: id for (kind, id), subject in self._subjects.items() if kind == "approval"}
        self._emptied = self._emptied or any(run.origin for run in by_uid.values())  # gc writes into no record
        for run in by_uid.values():
            yield from self._compared("run", run.uid, run, self._run)
        for call in calls:
            tools[call.id] = call.tool
            yield from self._compared("call", call.id, call, lambda one, subject: self._call(one, subject, by_uid))
            if call.approval != newest.get(call.id, ""):
                text = f"call {call.id}: the request for a yes is not the newest one"
                yield "row_changed", text, 0, 0, call.run_id
        for asked in approvals:
            if asked.tool != tools.get(asked.call):
                yield "row_changed", f"approval {asked.id}: the tool was changed", 0, 0, asked.run_id
            yield from self._compared(
                "approval", asked.id, asked, lambda one, subject: self._approval(one, subject, by_uid)
            )
        yield from self._delegations(delegations)
        for (kind, id), subject in self._subjects.items():
            yield "row_missing", f"{kind} {id} is not there", subject.last.n, subject.last.seq, subject.last.run_id
        for uid, event in self._runs.items():
            if uid not in by_uid and ("run", uid) not in self._subjects:
                yield "row_missing", f"run {uid} is not there", event.n, event.seq, event.run_id

    def _delegations(self, rows: Iterable[DelegationRow]) -> Iterator[Unlike]:
        there = {row.id: row for row in rows}
        for id, event in self.delegated.items():
            row = there.pop(id, None)
            if row is None:
                yield "row_missing", f"delegation {id} is not there", event.n, event.seq, event.run_id
            elif not is_delegated(row, event):
                yield "row_changed", f"delegation {id} is not what was said", event.n, event.seq, event.run_id
        for id in there:
            yield "row_forged", f"delegation {id} has no event", 0, 0, id

    def _compared(
        self, kind: str, id: str, row: Any, compare: Callable[[Any, Subject], Iterator[Said]]
    ) -> Iterator[Unlike]:
        subject = self._subjects.pop((kind, id), None)
        if subject is None:
            run_id = row.id if kind == "run" else row.run_id
            yield "row_forged", f"{kind} {id} has no event", 0, 0, run_id
            return
        last = subject.last
        if row.state != subject.state:
            text = f"{kind} {id} is {row.state}, and its last event says {subject.state}"
            yield "row_changed", text, last.n, last.seq, last.run_id
        for how, text in compare(row, subject):
            yield how, f"{kind} {id}: {text}", last.n, last.seq, last.run_id

    def _run(self, row: RunRow, subject: Subject) -> Iterator[Said]:
        first, facts = subject.first, subject.facts
        if "row" in facts and facts["row"] != run_bound(row):
            yield "row_changed", "something that never changes was changed"
        if (row.root, row.id, row.tenant, row.created_at) != (first.root, first.run_id, first.tenant, first.at):
            yield "row_changed", "the id, the tenant or the time was changed"
        if "row" in facts:
            yield from self._payload("input", row.input, facts.get("input"), row.uid)
            yield from self._payload("output", row.output, facts.get("output"), row.uid)
        goal, by, why = (str(facts.get(name, "")) for name in GOAL_FACTS)
        if (row.goal, row.goal_by) != (goal if goal != NONE else "", by):
            yield "row_changed", "the goal, or who set it, was changed"
        yield from self._words("why it has its goal", row.goal_why, why)
        if row.plan != facts.get("plan", ""):
            yield "row_changed", "the plan was changed"
        if bool(row.budgets) != ("budgets" in facts) or (row.budgets and proof(row.budgets) != facts["budgets"]):
            yield "row_changed", "the budgets were changed"
        yield from self._words("why it is blocked", row.causes, json.dumps(subject.causes, ensure_ascii=False))
        if row.state == "blocked" and row.came_from != subject.last.frm:
            yield "row_changed", "where it was when it was blocked was changed"

    def _words(self, name: str, text: str, said: str) -> Iterator[Said]:
        """Compare a text with what an event said in the open. Encrypted anew, nobody can tell here."""
        if text == said or storable(text) == storable(said):
            return
        if SEALED in text and said:
            self.unproved += 1
            return
        yield "row_changed", f"{name} was changed"

    def _call(self, row: CallRow, subject: Subject, runs: Mapping[str, RunRow]) -> Iterator[Said]:
        first, facts = subject.first, subject.facts
        run = runs.get(row.run)
        key = row.key if run is None or not run.origin else row.key.removeprefix(f"{LOADED}{row.id}:")
        if "row" in facts and facts["row"] != call_bound(row, key, row.generation):
            yield "row_changed", "something that never changes was changed"
        mine = (row.root, row.run_id, row.tenant, row.created_at, row.seq)
        if mine != (first.root, first.run_id, first.tenant, first.at, first.seq):
            yield "row_changed", "the run, the time or the place was changed"
        if run is None or (row.run != first.run and not subject.passed):
            yield "row_changed", "the run was changed"
        elif (row.agent, row.principal) != (run.agent, run.principal):
            yield "row_changed", "the agent or the principal was changed"
        counts = (row.attempt, row.comp_attempt, row.settled_seq)
        if counts != (subject.attempt, subject.comp_attempt, subject.settled_seq):
            yield "row_changed", "the attempts or the place among the settled were changed"
        if "row" in facts:
            yield from self._payload("args", row.args, facts.get("args"), row.id)
            yield from self._payload("result", row.result, facts.get("result"), row.id)
            failure = facts.get("failure")
            if failure and (row.state == "refused" or not self._emptied):
                yield from self._payload("error", row.error, failure, row.id)
            elif not failure and row.error and row.result is None:
                yield "row_changed", "an error was added"
            yield from self._worded(row, subject)

    def _worded(self, row: CallRow, subject: Subject) -> Iterator[Said]:
        """Compare what people, probes and bodies said of the call."""
        facts = subject.facts
        if subject.first.what != "shared":
            yield from self._words("why", row.why, subject.why)
        if (row.alias, row.twin, row.violation) != tuple(facts.get(one, "") for one in ("alias", "twin", "violation")):
            yield "row_changed", "what it stands for, or the rule that it broke, was changed"
        if self._emptied:
            return
        yield from self._words("the error of its compensation", row.comp_error, subject.comp_error)
        names = facts.get("locks")
        if row.locks != (json.dumps(names, ensure_ascii=False) if names else ""):
            yield "row_changed", "the names of its locks were changed"
        for name in LEARNED:
            text, proved = str(getattr(row, name)), facts.get(name)
            if SEALED in text:
                self.unproved += 1
            elif text and (proved is None or proof(text) != proved):
                yield (
                    "row_changed",
                    f"what was {'learned of it' if name == 'learned' else 'kept as evidence'} was changed",
                )
            elif not text and name == "learned" and proved is not None:
                yield "row_changed", "what was learned of it was removed"

    def _approval(self, row: ApprovalRow, subject: Subject, runs: Mapping[str, RunRow]) -> Iterator[Said]:
        first, facts = subject.first, subject.facts
        run = runs.get(row.run)
        is_record = run is not None and run.origin
        asked = changed(row, {"use_key": row.use_key.removeprefix(LOADED)}) if is_record else row
        if "terms" in facts and facts["terms"] != terms_bound(asked):
            yield "row_changed", "what was asked for was changed"
        if (row.digest, row.seq, row.call) != (facts.get("digest"), first.seq, first.call):
            yield "row_changed", "what it binds was changed"
        if (row.root, row.run_id, row.tenant) != (first.root, first.run_id, first.tenant):
            yield "row_changed", "the run was changed"
        if row.state == "used" and (row.used_at, row.used_seq) != (subject.last.at, subject.last.seq):
            yield "row_changed", "when it was used up was changed"
        if words_bound(row) != facts.get("said"):
            yield "row_changed", "who decided, when, or why was changed"
        if row.given != "[]" or "given" in facts:
            yield from self._payload("given", row.given, facts.get("given"), row.id)

    def _payload(self, name: str, text: str | None, proved: str | None, about: str) -> Iterator[Said]:
        if text is not None and text.startswith(GONE):
            if not self._emptied:
                yield "payload_changed", f"the {name} is gone, and gc did not remove it"
            return
        if proved is None or text is None or not isinstance(proved, str):
            is_proved: bool | None = proved is None and not text
        else:
            is_proved = self._prove(proved, text, about)
        self.unproved += is_proved is None
        if is_proved is False:
            yield "payload_changed", f"the {name} is not what was written"


def _updated(subject: Subject, facts: Mapping[str, Any]) -> None:
    """Take in what was said last. A goal is always said whole: what is left out of it is empty."""
    if "goal" in facts:
        for name in GOAL_FACTS:
            subject.facts.pop(name, None)
    subject.facts.update(facts)


def _worded(subject: Subject, event: EventRow, facts: dict[str, Any]) -> None:
    """Keep the words that the row has after this move."""
    to = event.to_state
    words = "why" in facts or "resolved" in facts
    if "started" in (event.frm, to) or (words and to not in ("ready", "compensated", "compensation_failed")):
        subject.why = str(facts.get("why", ""))
    if to == "compensating":
        subject.comp_error = ""
    elif event.frm == "compensating":
        subject.comp_error = str(facts.get("error", ""))


def _forgotten(subject: Subject, event: EventRow) -> None:
    """A settlement, or a word on a doubt, writes the result anew: also that there is none."""
    if event.frm == "started":
        subject.facts.pop("failure", None)
    if event.frm == "started" or event.to_state == "succeeded":
        subject.facts.pop("result", None)


def _counted(subject: Subject, event: EventRow, facts: dict[str, Any]) -> None:
    to = event.to_state
    if event.what == "shared" or to == "started":
        subject.attempt = facts.get("attempt", 1)
        subject.settled_seq = event.seq if to == "succeeded" else subject.settled_seq
    elif to == "compensating":
        subject.comp_attempt = facts.get("attempt", 0)
    elif to == "succeeded" or to == "in_doubt":
        subject.settled_seq = event.seq


def _facts(event: EventRow) -> dict[str, Any]:
    if event.facts == "{}":
        return {}
    facts = json.loads(event.facts)
    if not isinstance(facts, dict):
        raise ValueError("no facts")  # noqa: TRY004 (of the same kind as a text that is no JSON)
    return facts


# ---- Checking the record: each tree's chain, where its rows stand by it, and that what they say is what w

# ``TreeCheck`` is given the events of one tree, in their order, and then its rows; it asks nobody and remembers no more
# than that tree. ``verify_chains`` goes through a ledger with it.


Prove: TypeAlias = Callable[[str, str, str], "bool | None"]
"""Whether a proof is of this payload, of the row of this id; None: nobody here can tell."""
Heads: TypeAlias = Mapping[int, str]
"""Hashes that the events of a tree with these numbers are known to have had."""
NO_HEADS: Final[Heads] = {}
NO_SENSE: Final = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""What values raise that no amends has written: somebody has changed them, and that is said instead."""
PAGES_MAX: Final = 10**9
WALKS_MAX: Final = 3
"""So often the ledger is gone through where what was loaded does not fit: runs are loaded beside us, too."""


def plainly(proved: str, text: str, _about: str) -> bool | None:
    """What can be proved without a key: also that a text should be encrypted, by a proof that was made with a key."""
    if text.startswith(SEALED):
        return None
    if ":" in proved:
        return None if text in PLAIN else False
    return proof(text) == proved


class TreeCheck:
    """One tree: first its events, then ``ended`` with its rows."""

    def __init__(self, root: str, prove: Prove = plainly, heads: Heads = NO_HEADS) -> None:
        self.root, self._heads = root, heads
        self.events, self.young, self.tenant = 0, 0, ""
        self._standing = Standing(prove)
        self._n, self._prev, self._seq, self._run_id = 0, GENESIS, 0, ""
        self._broken: EventRow | None = None
        self.problems: list[Problem] = []

    def event(self, event: EventRow) -> None:
        """Look at the next event. After the first that is not linked nothing can be said of those that follow."""
        self.events += 1
        if self._broken is not None:
            if not self.problems:
                self._tell(self._broken, *self._how_broken(self._broken, event))
            return
        self._run_id, self.tenant = self._run_id or event.run_id, self.tenant or event.tenant
        n = self._n + 1
        if event.n != n or event.seq <= self._seq or event.hash != _linked(self._prev, n, event):
            self._broken = event
            return
        self._n, self._prev, self._seq = n, event.hash, event.seq
        if event.at != moment(event.at):
            self._tell(event, "edited", "its time is no whole microsecond")
        if self._heads.get(n, event.hash) != event.hash:
            self._tell(event, "rewritten", "a checkpoint names another one in its place")
        try:
            said = list(self._standing.moved(event))
        except NO_SENSE:
            said = [("edited", "what it says makes no sense")]
        for how, text in said:
            self._tell(event, how, text)

    def ended(
        self,
        runs: Iterable[RunRow],
        calls: Iterable[CallRow],
        approvals: Iterable[ApprovalRow],
        delegations: Iterable[DelegationRow] = (),
    ) -> list[Problem]:
        """Everything that is wrong with the tree, the first bad event first."""
        if self._broken is not None:
            if not self.problems:
                self._tell(self._broken, *self._how_broken(self._broken, None))
            return self.problems
        beyond = min((n for n in self._heads if n > self._n), default=0)
        if beyond:
            text = f"it ends at event {self._n}, and a checkpoint names event {beyond}"
            self.problems.append(Problem(self._run_id, self.root, self._n + 1, self._seq, "cut", text))
            return self.problems
        for how, text, n, seq, run_id in self._standing.unlike(runs, calls, approvals, delegations):
            self.problems.append(Problem(run_id or self._run_id, self.root, n, seq, how, text))
        return self.problems

    @property
    def unproved(self) -> int:
        """Payloads of which nobody here can tell whether they are what was written."""
        return self._standing.unproved

    @property
    def loads(self) -> set[Load]:
        """The records that its events say were loaded."""
        return self._standing.loads

    @property
    def delegated(self) -> dict[str, EventRow]:
        """The delegations that its events made."""
        return self._standing.delegated

    @property
    def uses(self) -> list[Use]:
        """The decisions in it that were made by a delegation."""
        return self._standing.uses

    def as_load(self, root: RunRow) -> Load:
        """What the event of its loading must have said, where it is a record."""
        return (root.origin, root.id, self._n, self._prev)

    def _tell(self, event: EventRow, how: Tampering, text: str) -> None:
        n = self._n + 1 if how == "deleted" else event.n
        self.problems.append(Problem(event.run_id, self.root, n, event.seq, how, text))

    def _how_broken(self, event: EventRow, after: EventRow | None) -> tuple[Tampering, str]:
        """What was done to the first event that does not hang on the one before it, by what follows it."""
        n, prev = self._n + 1, self._prev
        if event.n > n:
            return (
                "deleted",
                f"event {n} is not there" if event.n == n + 1 else f"events {n} to {event.n - 1} are not there",
            )
        if event.n == n and event.hash == _linked(prev, n, event):
            return "swapped", "it stands before its forerunner in the ledger"
        if after is not None and after.hash == _linked(prev, n, after):
            if event.hash == _linked(after.hash, n + 1, event):
                return "swapped", f"it was event {n + 1}"
            return "inserted", "the event after it hangs on the one before it"
        if after is not None and after.hash == _linked(event.hash, n + 2, after):
            return "deleted", f"event {n} is not there, and those after it were numbered anew"
        return "edited", "it does not say what its hash is of"


def _linked(prev: str, n: int, event: EventRow) -> str:
    """What the hash of this event must be; empty where its moment is none, which no event of ours has."""
    try:
        return link(prev, n, event.at, event.body)
    except NO_SENSE:
        return ""


# ---- a whole ledger -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Audit:
    """What is looked at and with what: whose trees, what proves a payload, and which heads of a tree are known."""

    tenant: str | None = None
    prove: Prove = plainly
    heads_of: Callable[[str], Heads] = lambda _root: NO_HEADS
    behind: Mapping[str, int] = field(default_factory=dict)
    """Of each tree the newest event that a checkpoint names. Not a place in the ledger: a server leaves places free."""


class Found:
    """What a walk through trees has found so far."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._tree: TreeCheck | None = None
        self.runs = self.events = self.young = self.unproved = 0
        self.problems: list[Problem] = []
        self._loads: set[Load] = set()
        self._delegated: dict[str, EventRow] = {}
        self._uses: list[Use] = []
        self._records: dict[Load, str] = {}

    def page(self, page: Chains) -> None:
        """Take in some trees; one that goes on stays open."""
        runs, calls = _by_root(page.runs), _by_root(page.calls)
        approvals, delegations = _by_root(page.approvals), _by_root(page.delegations)
        of_root = _by_root(page.events)
        going_on = None if page.next is None or not page.next.within else page.next.within
        roots = {*of_root, *runs, *calls, *approvals, *delegations}
        for root in sorted(roots | ({self._tree.root} if self._tree is not None and not going_on else set())):
            tree = self._tree if self._tree is not None and self._tree.root == root else self._begun(root)
            named = self._audit.behind.get(root, 0)
            for event in of_root.get(root, ()):
                tree.young += event.n > named
                tree.event(event)
            if root == going_on:
                self._tree = tree
                continue
            self._tree = None if tree is self._tree else self._tree
            rows = (runs.get(root, []), calls.get(root, []), approvals.get(root, []), delegations.get(root, []))
            self._ended(tree, *rows)

    def _begun(self, root: str) -> TreeCheck:
        return TreeCheck(root, self._audit.prove, self._audit.heads_of(root))

    def _ended(
        self,
        tree: TreeCheck,
        runs: list[RunRow],
        calls: list[CallRow],
        approvals: list[ApprovalRow],
        delegations: list[DelegationRow],
    ) -> None:
        origins = {row.origin for row in runs}
        if origins <= {""}:
            self._loads |= tree.loads
            self._delegated |= tree.delegated
            self._uses += tree.uses
        whose = (
            {run.tenant for run in runs}
            | {one.tenant for one in delegations}
            | ({tree.tenant} if tree.events else set())
        )
        if self._audit.tenant is not None and self._audit.tenant not in whose:
            return
        self.runs += len(runs)
        self.events += tree.events
        self.young += tree.young
        self.problems += tree.ended(runs, calls, approvals, delegations)
        self.unproved += tree.unproved
        self._records |= {tree.as_load(row): tree.root for row in runs if row.uid == tree.root and row.origin}
        if len(origins) > 1:
            text = f"its runs are said to be of several ledgers: {', '.join(map(repr, sorted(origins)))}"
            self.problems.append(Problem(runs[0].id, tree.root, 0, 0, "row_changed", text))
        if len(self.problems) > PROBLEMS_MAX:
            self.problems = sorted(self.problems, key=_place)[:PROBLEMS_MAX]

    @property
    def strays(self) -> set[Load]:
        """Records that nobody loaded, and what was loaded and is no record."""
        return self._loads ^ self._records.keys() if self._audit.tenant is None else self._records.keys() - self._loads

    def all_seen(self) -> None:
        """That was the whole ledger: what is a record is what was loaded, and nothing else."""
        for load in self._records.keys() - self._loads:
            text = f"it is said to be of ledger {load[0]}, and no event tells that it was loaded"
            self.problems.append(Problem(load[1], self._records[load], 0, 0, "row_changed", text))
        if self._audit.tenant is None:
            for origin, run_id, n, _ in self._loads - self._records.keys():
                text = f"it was loaded from ledger {origin} with {n} events, and is not here as that"
                self.problems.append(Problem(run_id, "", 0, 0, "row_changed", text))

    @property
    def unseen(self) -> set[str]:
        """The delegations that decisions name and that were not looked at."""
        return {use.delegation for use in self._uses} - self._delegated.keys()

    def check_uses(self) -> None:
        """Every decision for somebody else was made by a delegation that held then."""
        for use in self._uses:
            try:
                why_not = use.why_not(self._delegated.get(use.delegation))
            except NO_SENSE:
                why_not = "which makes no sense"
            event = use.event
            if why_not and self._audit.tenant in (None, event.tenant):
                text = f"{event.by_whom} decided for {use.behalf} by delegation {use.delegation}, {why_not}"
                self.problems.append(Problem(event.run_id, event.root, event.n, event.seq, "row_forged", text))

    def verified(self) -> Verified:
        """All of it."""
        problems = tuple(sorted(self.problems, key=_place)[:PROBLEMS_MAX])
        return Verified(self.runs, self.events, unanchored=self.young, unproved=self.unproved, problems=problems)


def _by_root(rows: Iterable[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row.root, []).append(row)
    return found


def _place(problem: Problem) -> tuple[bool, int, str, int]:
    return (problem.seq == 0, problem.seq, problem.root, problem.n)


async def verify_chains(audit: Audit) -> Found:
    """Every tree of the ledger, page by page; what is remembered is of one page, or of one tree where that is longer."""
    found = await _walked(audit)
    for _ in range(WALKS_MAX - 1):
        if not found.strays:
            break
        found = await _walked(audit)  # somebody may have loaded something before where we were, and told of it after
    await verify_delegations(found)
    found.all_seen()
    return found


async def verify_delegations(found: Found) -> None:
    """Look at the delegations that decisions name, those too that were made while we looked; then compare."""
    for id in sorted(found.unseen):
        await verify_tree(found, id)
    found.check_uses()


async def _walked(audit: Audit) -> Found:
    found = Found(audit)
    found.page(await ReadChains(Place(), alone=True))  # rows of no tree: none of ours are, and none follow them
    place: Place | None = Place()
    for _ in range(PAGES_MAX):
        page = await ReadChains(place or Place())
        found.page(page)
        place = page.next
        if place is None:
            return found
    raise AssertionError("a ledger has fewer pages than that")


async def verify_tree(found: Found, root: str) -> None:
    """One tree more."""
    place: Place | None = Place(within=root)
    while place is not None:
        page = await ReadChains(place, alone=True)
        found.page(page)
        place = page.next


# ---- The ledger held against what others know of it: its own chain, who signed that, and the anchor outsi

# Where the chain of one tree is whole in itself, this is what tells a tree whose end was cut off, or that was written
# anew, from one that was always so, and yesterday's ledger from today's.


CHECKPOINTS_PAGE: Final = 20
"""Checkpoints are read by so many: each may name thousands of trees."""


@dataclass(slots=True)
class Heard:
    """What the checkpoints and the anchor say."""

    checkpoints: int = 0
    newest: CheckpointRow | None = None
    """The end of the ledger's own chain, as it is there."""
    problems: list[Problem] = field(default_factory=list)
    anchored: int = 0
    """The checkpoint that is known outside; 0: none is."""
    vouched: int = 0
    """The newest checkpoint that a key which is trusted here has signed."""
    named: set[str] = field(default_factory=set)
    behind: dict[str, int] = field(default_factory=dict)
    """Of each tree the newest event that a checkpoint names."""

    def say(self, how: Tampering, text: str, *, root: str = "", n: int = 0) -> None:
        """One problem; of one tree only the first, and of all only so many."""
        if len(self.problems) < PROBLEMS_MAX and (not root or root not in self.named):
            self.named.add(root)
            self.problems.append(Problem("", root, n, 0, how, text))


async def hear(
    keys: Sequence[AuditKey] = (),
    anchor: Anchored | None = None,
    *,
    roots: frozenset[str] | None = None,
    demanded: bool = False,
) -> Heard:
    """Every checkpoint, from the first; only these trees, where some are named. Reads only, in constant memory.

    ``demanded``: somebody said that one of these keys must have signed, so there must be something that is signed.
    """
    heard = Heard(anchored=0 if anchor is None else anchor.n)
    by_name = {key.name: key for key in keys}
    after = 0
    while page := await ReadCheckpoints(after, CHECKPOINTS_PAGE):
        for row in page:
            _check_link(heard, row)
            _check_signature(heard, row, by_name)
            if anchor is not None and row.n == anchor.n:
                _check_anchored(heard, row, anchor)
            await _check_heads(heard, row, roots)
            heard.checkpoints, heard.newest = heard.checkpoints + 1, row
        after = max(after + 1, page[-1].n)
    if demanded and heard.newest is None:
        heard.say("bad_signature", f"there is no checkpoint: nothing is signed with {_named(keys)}", n=1)
    _check_vouched(heard, keys)
    _check_end(heard, anchor, by_name)
    return heard


def _check_link(heard: Heard, row: CheckpointRow) -> None:
    last = heard.newest
    wanted = 1 if last is None else last.n + 1
    if row.n != wanted:
        heard.say("deleted", f"checkpoint {wanted} is missing: the next one is {row.n}", n=wanted)
    elif row.prev != (GENESIS if last is None else last.hash):
        heard.say("rewritten", f"checkpoint {row.n} does not follow the one before it", n=row.n)
    if not _is_as_hashed(row):
        heard.say("edited", f"checkpoint {row.n} does not say what its hash is of", n=row.n)
    if last is not None and row.ledger != last.ledger:
        heard.say("inserted", f"checkpoint {row.n} is of another ledger: {row.ledger}, not {last.ledger}", n=row.n)


def _is_as_hashed(row: CheckpointRow) -> bool:
    try:
        return row.hash == row.true_hash and row.at == moment(row.at)
    except (ValueError, OverflowError):  # a moment that is none
        return False


def _check_signature(heard: Heard, row: CheckpointRow, trusted: dict[str, AuditKey]) -> None:
    key = trusted.get(row.key) or embedded_key(row.key)
    if row.key and not row.signature:
        heard.say("bad_signature", f"the signature of checkpoint {row.n} is gone; it was made with {row.key}", n=row.n)
    elif key is not None and not key.has_signed(row.hash, row.signature):
        heard.say("bad_signature", f"the signature of checkpoint {row.n} is not one of {row.key}", n=row.n)
    elif row.signature and not row.key:
        heard.say("bad_signature", f"checkpoint {row.n} has a signature of no key", n=row.n)
    elif row.key in trusted:
        heard.vouched = row.n


def _check_vouched(heard: Heard, keys: Sequence[AuditKey]) -> None:
    """A key vouches for what it signed and for all before. Anybody could have written what comes after."""
    newest = heard.newest
    if not keys or newest is None or heard.vouched == newest.n:
        return
    if any(one.how == "bad_signature" for one in heard.problems):
        return  # said already, of the very first
    who = f"is signed with {newest.key}" if newest.key else "is not signed"
    since = f"after checkpoint {heard.vouched} nothing is" if heard.vouched else "nothing is"
    heard.say(
        "bad_signature",
        f"checkpoint {newest.n} {who}: {since} signed with {_named(keys)}",
        n=heard.vouched + 1,
    )


def _named(keys: Sequence[AuditKey]) -> str:
    return " or ".join(key.name for key in keys)


async def _check_heads(heard: Heard, row: CheckpointRow, roots: frozenset[str] | None) -> None:
    try:
        heads = read_heads(row.heads)
    except ValueError:
        heard.say("edited", f"the heads of checkpoint {row.n} cannot be read", n=row.n)
        return
    wanted = [head for head in heads if roots is None or head[0] in roots]
    for start in range(0, len(wanted), PLACES_MAX):
        some = wanted[start : start + PLACES_MAX]
        found = {(root, n): hash for root, n, hash in await ReadHashes(tuple((root, n) for root, n, _ in some))}
        for root, n, hash in some:
            heard.behind[root] = max(n, heard.behind.get(root, 0))
            if found.get((root, n)) == hash or root in heard.named:
                continue
            if (root, n) in found:
                text = f"event {n} is not the one that checkpoint {row.n} names: the chain was written anew from there"
                heard.say("rewritten", f"{text} or from an earlier event", root=root, n=n)
            else:
                end = await _end_of(root, n)
                text = f"its chain ends at event {end}" if end else "it is gone"
                heard.say("cut", f"{text}; checkpoint {row.n} names event {n}", root=root, n=end + 1)


async def with_witness(found: Verified, heard: Heard, tenant: str | None = None) -> Verified:
    """Both together. Where the end of a tree was cut off its rows differ, too: that comes after it."""
    told: list[Problem] = []
    for one in heard.problems:
        run_id, whose = await _run_of(one.root) if one.root else ("", None)
        if tenant is None or whose is None or whose == tenant:
            told.append(changed(one, {"run_id": run_id}))
    after = [one for one in found.problems if one.root in heard.named and one.how.startswith("row_")]
    before = [one for one in found.problems if one not in after]
    problems = (*before, *told, *after)[:PROBLEMS_MAX]
    counts = {"checkpoints": heard.checkpoints, "anchored": heard.anchored}
    return changed(found, {**counts, "problems": problems})


async def _run_of(root: str) -> tuple[str, str | None]:
    """The id of a tree's first run and its tenant; nobody's, where nothing is left of it."""
    page = await ReadChains(Place(within=root), alone=True, limit=1)
    return (page.events[0].run_id, page.events[0].tenant) if page.events else ("", None)


async def _end_of(root: str, below: int) -> int:
    """The newest event of a tree whose event ``below`` is not there; its chain has no gaps, or that was told."""
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        if await ReadHashes(((root, middle),)):
            low = middle
        else:
            high = middle
    return low


def _check_anchored(heard: Heard, row: CheckpointRow, anchor: Anchored) -> None:
    if (row.hash, row.ledger) != (anchor.hash, anchor.ledger):
        other = f" of ledger {anchor.ledger}" if row.ledger != anchor.ledger else ""
        heard.say(
            "rewritten", f"checkpoint {row.n} is not the one that the anchor knows{other}: it was written anew", n=row.n
        )


def _check_end(heard: Heard, anchor: Anchored | None, trusted: dict[str, AuditKey]) -> None:
    if anchor is None:
        return
    key = trusted.get(anchor.key) or embedded_key(anchor.key)
    if key is not None and not key.has_signed(anchor.hash, anchor.signature):
        heard.say("bad_signature", f"what the anchor knows was not signed by {anchor.key}", n=anchor.n)
    end = 0 if heard.newest is None else heard.newest.n
    if anchor.n > end:
        heard.say(
            "put_back",
            f"the ledger ends at checkpoint {end}, and the anchor knows {anchor.n}: it was put back to an earlier state,"
            " or its end was cut off",
            n=end + 1,
        )


# ---- Checking the record of a ledger, or of the runs that a filter names


NOTHING: Final[Mapping[str, int]] = {}


async def verify(
    host: Host, view: View, *run_ids: str, filter: str = "", anchor: str | None = None, keys: Sequence[str] = ()
) -> Verified:
    """Verify that the record is as it was written: all of it, or these runs and those of the filter. Changes nothing.

    ``anchor``: the file of a checkpoint that was kept elsewhere; ``keys``: who must have signed. By default those of
    the settings.
    """
    trusted = [load_key(key) for key in keys] or [key for key in (host.checkpointer.key,) if key is not None]
    known = await _known(host, anchor)
    if not run_ids and not filter.strip():
        heard = await hear(trusted, known, demanded=bool(keys))
        found = await verify_chains(audit_of(host, view, heard.behind))
        return await with_witness(found.verified(), heard, view.tenant or None)
    roots = await _trees_of(view, run_ids)
    if filter.strip():
        roots |= await _filtered(audit_of(host, view), filter)
    heard = await hear(trusted, known, roots=frozenset(roots), demanded=bool(keys))
    found = Found(audit_of(host, view, heard.behind))
    for root in roots:
        await verify_tree(found, root)
    await verify_delegations(found)
    return await with_witness(found.verified(), heard, view.tenant or None)


def audit_of(host: Host, view: View, behind: Mapping[str, int] = NOTHING) -> Audit:
    """How this runtime looks at a ledger: what is encrypted is proved where it has the keys."""
    sealing = host.hiding.sealing
    return Audit(view.tenant or None, plainly if sealing is None else sealing.proves, behind=behind)


async def _known(host: Host, copy: str | None) -> Anchored | None:
    """The checkpoint that is known outside. Read before the ledger is: it may only have grown since."""
    if copy is not None:
        return read_copy(Path(copy))
    mark = None if host.anchor is None else await ReadAnchor(host.anchor)
    known: Anchored | None = None if mark is None else mark.checkpoint
    return known


async def _trees_of(view: View, run_ids: Sequence[str]) -> dict[str, None]:
    roots: dict[str, None] = {}
    for run_id in run_ids:
        found = await FindTrees(view.tenant or "", run_id)
        if not found:
            raise no_run(run_id)
        roots |= dict.fromkeys(root.uid for root in found)
    return roots


async def _filtered(audit: Audit, text: str) -> dict[str, None]:
    wanted = parse_filter(text, RUN_FIELDS)

    def then(row: RunRow) -> ListRuns:
        return ListRuns(audit.tenant, wanted.states, (row.created_at, row.uid), PAGE)

    first = ListRuns(audit.tenant, wanted.states, None, PAGE)
    pages = Pages(first, then, wanted.takes_run, lambda row: str(row.root), narrow=narrowing(wanted, *CALL_WORDS))
    roots: dict[str, None] = {}
    while (page := pages.read()) is not None:
        roots |= dict.fromkeys(await page)
    return roots
