"""Where the rows of a tree must stand, by its events: states, attempts, places, and what was proved of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from amends.approvalrows import ApprovalRow, DelegationRow, person
from amends.chain import proof, storable
from amends.proofs import GOAL as GOAL_FACTS
from amends.proofs import LEARNED, NONE, call_bound, is_delegated, run_bound, terms_bound, words_bound
from amends.record import changed
from amends.rows import GONE, LOADED, CallRow, EventRow, RunRow
from amends.secret import SEALED
from amends.states import CALL_MOVES, NEW, RUN_MOVES
from amends.verified import How

Said: TypeAlias = tuple[How, str]
Load: TypeAlias = tuple[str, str, int, str]
"""A record that was loaded: its ledger, its id, how many events it has and the hash of the last."""
Unlike: TypeAlias = tuple[How, str, int, int, str]
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
