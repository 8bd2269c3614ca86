"""What people read about runs: reports, plans, doubts, reconciliations, audits, replays and comparisons.

Each prints as lines for a terminal and has ``to_dict`` for programs. The values they hold are in ``model``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from amends.encoding.canonical import canonical
from amends.encoding.dataclass import dataclass, field
from amends.errors import LedgerTampered, NotStorable, how_many
from amends.model import NOT_LOADED, Approval, Call, Lock, Missing, Residue, RunInfo, plain, plain_fields
from amends.states import CallState, RunState
from amends.visible import shortened, visible, visible_value

GLYPHS: Final = {
    "held": "…",
    "ready": "…",
    "started": "▸",
    "succeeded": "✓",
    "failed": "✗",
    "backing_off": "↻",
    "in_doubt": "?",
    "compensating": "↩",
    "compensated": "↩",
    "compensation_failed": "!",
    "compensation_in_doubt": "?",
    "refused": "⊘",
    "dropped": "–",
    "residue": "!",
}
NOTE_CHARS_MAX: Final = 76


@dataclass(frozen=True, slots=True)
class Report:
    """What a run did: calls, attempts, times, errors, compensations, and residue.

    Prints as a table in a terminal and as HTML in a notebook.
    """

    run: RunInfo
    calls: tuple[Call, ...]
    residue: tuple[Residue, ...] = ()
    doubts: tuple[Call, ...] = ()
    children: tuple[Report, ...] = ()
    ledger: str = ""
    skipped: tuple[str, ...] = field(default=())
    """Tools that this process lacks and would need to continue the run."""
    locks: tuple[Lock, ...] = ()
    """The locks that the run holds until it has ended."""
    forks: tuple[str, ...] = ()
    """The open or committed forks that depend on its effects."""
    missing: tuple[Missing, ...] = ()
    """What an agent's run, or one with ``requires=``, lacks: open failures, and required tools that have not succeeded."""
    unreached: tuple[str, ...] = ()
    """The pivots of this process, if an agent's run committed its effects without one."""

    @property
    def run_id(self) -> str:
        """The id of the run, as its caller chose it."""
        return self.run.id

    @property
    def state(self) -> RunState:
        """The state of the run when this was read."""
        return self.run.state

    @property
    def output(self) -> Any:
        """The output of the run, if it was set."""
        return self.run.output

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain JSON data."""
        return {
            "run": self.run.to_dict(),
            "calls": [call.to_dict() for call in self.calls],
            "residue": [{"call": left.call.id, "tool": left.call.tool, "why": left.why} for left in self.residue],
            "doubts": [call.id for call in self.doubts],
            "children": [child.to_dict() for child in self.children],
            "ledger": self.ledger,
            "skipped": list(self.skipped),
            "locks": [lock.to_dict() for lock in self.locks],
            "forks": list(self.forks),
            "missing": [one.to_dict() for one in self.missing],
            "unreached": list(self.unreached),
        }

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join([*_head(self), *_table(self), *_foot(self)])

    def __repr__(self) -> str:
        count = len(self.calls)
        return f"<Report of run {self.run.id!r}: {self.run.state}, {count} call{'' if count == 1 else 's'}>"

    def _repr_html_(self) -> str:
        import html  # imported here: only notebooks need its table of entities

        rows = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>" for cells in _rows(self)
        )
        foot = "<br>".join(html.escape(line.strip()) for line in _foot(self))
        return (
            f"<table><caption>run {html.escape(visible(self.run.id))}</caption>"
            "<thead><tr><th>tool</th><th>kind</th><th>state</th><th>time</th><th></th></tr></thead>"
            f"<tbody>{rows}</tbody></table><p>{foot}</p>"
        )


def _head(report: Report) -> Iterator[str]:
    run = report.run
    generation = f" (generation {run.generation})" if run.generation > 1 else ""
    ledger = f"   ledger {visible(report.ledger, prose=True)}" if report.ledger else ""
    yield f"run {visible(run.id)}{generation}{ledger}"
    if run.origin is not None:
        yield f"   (loaded from ledger {visible(run.origin)}: a read-only record)"
    if run.forked_from is not None:
        count = sum(call.shared is not None for one in _all(report) for call in one.calls)
        origin = f"{visible(run.forked_from)} at {visible(run.forked_at or '')}"
        yield f"   (a fork of {origin}: {count} call{'' if count == 1 else 's'} shared)"
    if run.gone_at is not None:
        yield f"   (arguments and results removed on {run.gone_at:%Y-%m-%d})"


def _all(report: Report) -> Iterator[Report]:
    yield report
    for child in report.children:
        yield from _all(child)


def _table(report: Report) -> Iterator[str]:
    rows = list(_rows(report))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    for tool, kind, state, took, note in rows:
        cells = f"{tool:<{widths[0]}}  {kind:<{widths[1]}}  {state:<{widths[2]}}  {took:>{widths[3]}}  {note}"
        yield "   " + cells.rstrip()


def _rows(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    for call in report.calls:
        took = "" if call.seconds is None else _took(call.seconds)
        state = f"{GLYPHS[call.state]} {'staged' if call.staged else call.state.replace('_', ' ')}"
        yield visible(call.tool), call.kind, state, took, _note(call)
    for child in report.children:
        yield f"└ {visible(child.run.id)}", "run", child.state.replace("_", " "), "", f"{len(child.calls)} calls"


def _took(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _note(call: Call) -> str:
    parts: list[str] = []
    if call.shared:
        parts.append("shared")
    elif call.attempt > 1:
        parts.append(f"{call.attempt} attempts")
    if call.generation > 1:
        parts.append(f"generation {call.generation}")
    if call.replays:
        parts.append(f"answered {call.replays}x from the record")
    if call.staged:
        parts.append("waits for a lock" if call.reason == "lock" else "starts after the pivot, or at commit")
    if call.compensation is not None and call.compensation.attempts > 1:
        parts.append(f"{call.compensation.attempts} compensation attempts")
    if call.state == "succeeded" and call.result is not None:
        parts.append(visible_value(call.result, bare=True))
    if call.loss:
        parts.append(visible(call.loss, prose=True))
    if call.compensation is not None and call.compensation.error and call.state.startswith("compensation"):
        parts.append(visible(call.compensation.error, prose=True))
    elif call.state in ("failed", "in_doubt", "backing_off") and (call.error or call.why):
        parts.append(visible(call.error or str(call.why), prose=True))
    elif call.state in ("held", "residue", "refused") and call.why:
        parts.append(visible(call.why, prose=True))
    elif call.state == "held" and call.reason in ("approval", "budget"):
        parts.append("waits for approval")
    if call.violation:
        parts.append(f"against the ordering law: {visible(call.violation, prose=True)}")
    text = "; ".join(parts)  # "…" is escaped in foreign text, so at the end it always means that the line was cut
    return shortened(text, NOTE_CHARS_MAX)


def _foot(report: Report) -> Iterator[str]:
    end = report.state.replace("_", " ")
    if report.state == "rolled_back":
        end += ", nothing left standing"
    elif report.state in ("open", "pivoted") and report.run.goal:
        end += f", on its way to {report.run.goal}"
    yield f"   = {end}"
    why = report.run.goal_why if report.run.goal == "rollback" else None
    if why and not any((call.error or "").endswith(why) for one in _all(report) for call in one.calls):
        yield f"   · reason: {visible(why, prose=True)}"  # the table has none of it yet
    for left in report.residue:
        yield f"   ! left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}"
    for one in report.missing:
        yield f"   ! missing: {visible(one.why, prose=True)}"
    if report.unreached:
        yield f"   · no pivot was reached ({', '.join(map(visible, report.unreached))})"
    for lock in report.locks:
        yield f"   · holds {visible(lock.name)} for {_took(lock.held_s)} ({visible(lock.tool)})"
    for fork in report.forks:
        yield f"   · fork {visible(fork)} depends on it"
    for cause in report.run.causes:
        yield f"   → {visible(cause, prose=True)}"
    if report.skipped:
        yield f"   → not taken over here: this process does not have {', '.join(map(visible, report.skipped))}"


# ---- Rollback plans


Doing: TypeAlias = Literal["compensate", "probe", "guard", "start", "settle", "ask"]


@dataclass(frozen=True, slots=True)
class Planned:
    """What amends would do next with a call.

    ``compensate``: compensate it. ``probe``: ask the world about it first. ``guard``: check whether somebody changed it
    since. ``start``: run its body (again). ``settle``: settle its doubt by the evidence that is there, and start nothing.
    ``ask``: ask a person.
    """

    what: Doing
    call: Call
    by: str
    """The name of the function that would run; empty if none would."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that it would get, besides the call itself."""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "what": self.what,
            "call": self.call.id,
            "tool": self.call.tool,
            "by": self.by,
            "args": plain(dict(self.args)),
            "note": self.note,
        }

    def __str__(self) -> str:
        args = ", ".join(f"{visible(name)}={visible_value(value)}" for name, value in self.args.items())
        nobody = "by the evidence" if self.what == "settle" else "a person is asked"
        done = f"{visible(self.by)}({args})" if self.by else nobody
        note = f"; {visible(self.note, prose=True)}" if self.note else ""
        return f"{self.what} {visible(self.call.tool)} ({visible(self.call.id)}): {done}{note}"


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What a rollback would do, in order. Valid until the run changes, which changes ``hash``."""

    run_id: str
    hash: str
    """Pass it to ``rt.rollback(run, plan=...)``, which raises ``StalePlan`` if the run has changed since."""
    compensations: tuple[Planned, ...] = ()
    """In the order in which they start."""
    cannot: tuple[Residue, ...] = ()
    """What would be left standing, and why."""
    doubts: tuple[Planned, ...] = ()
    """Doubts that must be settled first, and how; while a probe can settle them, nothing is compensated."""
    dropped: tuple[Call, ...] = ()
    """Accepted or held calls that would never be started."""
    running: tuple[Call, ...] = ()
    """Calls in flight: each must end first, and is compensated if it had an effect."""
    refused: str | None = None
    """Why the run cannot be rolled back at all; None: it can."""
    state: RunState = "open"
    """The state of the run when this was planned."""
    forks: tuple[str, ...] = ()
    """The open or committed forks that would lose effects on which they depend."""
    must_accept: tuple[Call, ...] = ()
    """Of a committed run: the calls without a compensation, each of which ``rt.rollback(accept=[...])`` must name."""
    answered: tuple[str, ...] = ()
    """The runs that were answered from calls of this one (``scope="ledger"``) and would rely on what is gone."""

    @property
    def unloaded(self) -> tuple[str, ...]:
        """The tools without which this was planned. A process that has them would compensate more: ``rollback`` refuses it."""
        return tuple(dict.fromkeys(left.call.tool for left in self.cannot if left.why == NOT_LOADED))

    @property
    def complete(self) -> bool:
        """Whether nothing would be left standing or in doubt, if every compensation succeeds."""
        in_doubt = [one for one in self.doubts if one.what != "settle"]
        return self.refused is None and not (self.cannot or in_doubt or self.running)

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain JSON data."""
        return {
            "run": self.run_id,
            "hash": self.hash,
            "state": self.state,
            "refused": self.refused,
            "complete": self.complete,
            "compensations": [one.to_dict() for one in self.compensations],
            "cannot": [{"call": left.call.id, "tool": left.call.tool, "why": left.why} for left in self.cannot],
            "doubts": [one.to_dict() for one in self.doubts],
            "dropped": [{"call": call.id, "tool": call.tool} for call in self.dropped],
            "running": [{"call": call.id, "tool": call.tool} for call in self.running],
            "forks": list(self.forks),
            "must_accept": [{"call": call.id, "tool": call.tool} for call in self.must_accept],
            "answered": list(self.answered),
        }

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join(_plan_lines(self))


def _plan_lines(plan: RollbackPlan) -> Iterator[str]:
    yield f"rollback of run {visible(plan.run_id)}   plan {plan.hash}"
    if plan.refused is not None:
        yield f"   = refused: {visible(plan.refused, prose=True)}"
        return
    for call in plan.running:
        yield f"   ▸ in flight: {visible(call.tool)} ({visible(call.id)}) must end first"
    for one in plan.doubts:
        yield f"   ? {one}"
    for number, one in enumerate(plan.compensations, 1):
        yield f"   {number}. {one}"
    for call in plan.dropped:
        yield f"   – dropped: {visible(call.tool)} ({visible(call.id)})"
    for left in plan.cannot:
        yield f"   ! left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}"
    for fork in plan.forks:
        yield f"   ! fork {visible(fork)} depends on what would be rolled back"
    for run in plan.answered:
        yield f"   ! run {visible(run)} was answered from it and relies on what would be rolled back"
    if plan.must_accept:
        yield f"   = accept what stays: {', '.join(visible(call.id) for call in plan.must_accept)}"
    if plan.complete:
        yield "   = nothing would be left standing"


# ---- Previews of answers to a doubt


_CONTINUED_BY: Final = {
    "owner": "the process that owns the run continues it",
    "worker": "a worker that has its tools continues; they are not loaded here, so what it calls cannot be shown",
    "program": "its program continues when it opens the run again",
    "agent": "its agent continues with this answer, and decides itself what it calls next",
}
"""Who continues a run after an answer, if not this process; what they do next is not known here."""


@dataclass(frozen=True, slots=True)
class Next:
    """What would follow from one answer to a doubt, if everything after it succeeds."""

    call_state: CallState
    """The state of the call in doubt after the steps in ``does``."""
    run_state: RunState
    does: tuple[Planned, ...] = ()
    """In order; assumes that probes of other doubts say nothing, and that every body and compensation succeeds."""
    who: Literal["here", "owner", "worker", "program", "agent"] = "here"
    """Who continues: this process at once, the owner of the run, a worker that has the tools, its program when it opens the
    run again, or its agent."""
    causes: tuple[str, ...] = ()
    """What would still block the end of the run."""
    refused: str | None = None
    """Why the answer would not be accepted; None: it would."""
    note: str = ""
    """What the answer should have with it: the result, if the compensation of the call needs it."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "call_state": self.call_state,
            "run_state": self.run_state,
            "does": [one.to_dict() for one in self.does],
            "who": self.who,
            "causes": list(self.causes),
            "refused": self.refused,
            "note": self.note,
        }

    def __str__(self) -> str:
        if self.refused is not None:
            return f"not possible: {visible(self.refused, prose=True)}"
        steps = [str(one) for one in self.does]
        if self.who != "here":
            steps.append(_CONTINUED_BY[self.who])
        does = "; then ".join(steps) or "nothing else is called"
        return f"{does}; the call is {self.call_state}, the run {self.run_state}{self._blocked_by()}"

    def _blocked_by(self) -> str:
        if not self.causes:
            return ""
        others = how_many(self.causes) - 1
        more = f" (and {others} more)" if others else ""
        return f" until a person decides: {visible(self.causes[0], prose=True)}{more}"


@dataclass(frozen=True, slots=True)
class Preview:
    """What the run would do next for each of the three answers to a doubt."""

    call: Call
    happened: Next
    absent: Next
    unknown: Next

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        answers = {"happened": self.happened, "absent": self.absent, "unknown": self.unknown}
        return {"call": self.call.id, "tool": self.call.tool, **{k: one.to_dict() for k, one in answers.items()}}

    def __str__(self) -> str:
        answers = {"Happened": self.happened, "Absent": self.absent, "Unknown": self.unknown}
        return "\n".join(
            [f"{visible(self.call.tool)} ({visible(self.call.id)}) is {self.call.state}"]
            + [f"   {k}: {v}" for k, v in answers.items()]
        )


# ---- Doubts


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence about a doubt, and its time."""

    at: datetime
    by: str
    """``probe``: amends asked; ``person``: somebody asked; ``late`` or ``fenced``: the body returned after all."""
    attempt: int
    """The attempt of the call or of its compensation that it is about."""
    answer: str
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class Doubt(Call):
    """A call that is in doubt, or whose compensation is."""

    about: Literal["call", "compensation"] = "call"
    """What is in doubt; ``key`` and ``attempt`` are those of the call or the compensation accordingly."""
    sent: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the body, or of the compensation."""
    sent_at: datetime | None = None
    lost_at: datetime | None = None
    """When waiting for the answer ended, or its owner was found dead."""
    probe: str | None = None
    """The function that ``rt.probe`` calls; None: there is none here, and a person must look."""
    next_probe_at: datetime | None = None
    evidence: tuple[Evidence, ...] = ()
    """What was learned since it was sent, oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        learned = [
            {"at": one.at, "by": one.by, "attempt": one.attempt, "answer": one.answer, "why": one.why}
            for one in self.evidence
        ]
        facts = {
            "call": self.id,
            "run": self.run_id,
            "tool": self.tool,
            "kind": self.kind,
            "state": self.state,
            "about": self.about,
            "key": self.key,
            "attempt": self.attempt,
            "sent": dict(self.sent),
            "sent_at": self.sent_at,
            "lost_at": self.lost_at,
            "why": self.why,
            "error": self.error,
            "probe": self.probe,
            "next_probe_at": self.next_probe_at,
            "evidence": learned,
        }
        found: dict[str, Any] = plain(facts)
        return found


# ---- The inbox


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One thing that waits for a person."""

    what: Literal["approval", "expired", "doubt", "decision", "blocked", "suspended"]
    """A pending request; one that nobody decided in time; a doubt; a held call; a blocked run; a suspended run."""
    id: str
    """The id to decide with: of the request, the call or the run."""
    run_id: str
    since: datetime
    """Since when it waits."""
    expires_at: datetime | None = None
    why: str = ""
    """Why it waits, in words."""
    verbs: tuple[str, ...] = ()
    """The methods of the runtime that decide it."""
    roles: tuple[str, ...] = ()
    """The roles that may decide it; empty: anybody except the requester."""
    asked: tuple[str, ...] = ()
    """Who is asked now: the people on call for these roles, or all who have them."""
    call: Call | None = None
    """The call that it is about; None: it is about the run."""
    tenant: str | None = None
    agent: str | None = None
    principal: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        call = self.call
        facts = {
            "id": self.id,
            "what": self.what,
            "run": self.run_id,
            "call": None if call is None else call.id,
            "tool": None if call is None else call.tool,
            "args": None if call is None else dict(call.args),
            "state": None if call is None else call.state,
            "since": self.since,
            "expires_at": self.expires_at,
            "why": self.why,
            "verbs": list(self.verbs),
            "roles": list(self.roles),
            "asked": list(self.asked),
            "tenant": self.tenant,
            "agent": self.agent,
            "principal": self.principal,
        }
        found: dict[str, Any] = plain(facts)
        return found


# ---- The overview of runs


@dataclass(frozen=True, slots=True)
class RunLine:
    """One run in an overview, with the sums over its calls and those of its child runs."""

    run: RunInfo
    calls: int = 0
    doubts: int = 0
    """How many of them have an outcome that nobody knows."""
    repeats: int = 0
    """How many requests were answered from the record: calls that were not made twice."""
    costs: Mapping[str, Decimal] = field(default_factory=dict)
    """What they have cost, by unit: spent, or reserved for calls in progress."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self) | {"run": self.run.to_dict()}


@dataclass(frozen=True, slots=True)
class Overview:
    """One page of runs, newest first, and how many runs are in each state. Its cost does not grow with the ledger."""

    runs: tuple[RunLine, ...]
    next: str | None
    """Where the next page begins (``after=``); None: there is none."""
    looked_at: int
    """How many runs were looked at for this page."""
    is_cut: bool
    """Whether the search ended early because too many runs were looked at; it goes on from ``next``."""
    counts: Mapping[str, int]
    """How many of the newest runs are in each state, whatever the filter."""
    counted: int
    """How many runs were counted."""
    counted_all: bool
    """Whether these are all runs; else there are older ones, and each count is a lower bound."""
    summed_all: bool = True
    """Whether all calls of these runs are in their sums; else each sum is a lower bound, because there are too many."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self) | {"runs": [line.to_dict() for line in self.runs]}


# ---- What a request for approval is compared with


@dataclass(frozen=True, slots=True)
class Usual:
    """A number among the arguments of a request, and what it was in earlier calls of the same tool."""

    path: str
    """Which argument, or part of one: ``cents``, ``lines[0].price``."""
    value: Decimal
    median: Decimal
    most: Decimal
    """The largest one."""
    times: int
    """How many earlier calls had it."""

    @property
    def factor(self) -> float | None:
        """How many times the median it is; None if the median is zero."""
        return float(self.value / self.median) if self.median else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self) | {"factor": self.factor}


@dataclass(frozen=True, slots=True)
class Precedents:
    """What a request for approval can be compared with: the last approved call, and recent calls, of the same tool."""

    approval_id: str
    before: Approval | None = None
    """The last request for this tool that was approved and used; that of the same agent, if there is one."""
    edited: Approval | None = None
    """The request that somebody edited into this one; None: nobody did."""
    first_use: bool = False
    """Whether none of the calls and requests that were read is a use of this tool by this agent."""
    seen: int = 0
    """How many earlier calls were read, of any tool; never more than a thousand."""
    is_all: bool = True
    """Whether they are all that the ledger has."""
    times: int = 0
    """How many of them are calls of this tool."""
    usual: tuple[Usual, ...] = ()
    """The numbers among the arguments for which there are enough earlier calls."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


# ---- What happened lately


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Recent(Generic[T_co]):
    """The matches that a search found, newest first, before it reached its limit."""

    items: tuple[T_co, ...]
    next: str | None
    """Where the search goes on (``after=``); None: it has reached the end."""
    looked: int
    """How many were read."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        items: list[Any] = list(self.items)
        return {"items": [one.to_dict() for one in items], "next": self.next, "looked": self.looked}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How one tool did among the newest calls of a ledger."""

    tool: str
    calls: int
    failed: int
    """How many failed, or have a compensation that did."""
    in_doubt: int
    """How many are in doubt now."""
    doubted: int
    """How many are in doubt, or were as far as a probe or a late report tells."""
    undone: int
    """How many were compensated, or are being."""
    retried: int
    """How many were started more than once."""
    answered: int
    """How often one of them was answered from the record instead of being made again."""
    seconds_median: float | None
    seconds_95: float | None
    """How long all but the slowest twentieth took at most; None: none has ended."""
    seconds_max: float | None
    last_at: datetime
    versions: Mapping[str, int]
    """How many calls were of which version."""
    kinds: tuple[str, ...]
    declared: bool
    """Whether this runtime knows the tool."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """One declared tool: what amends knows of it."""

    name: str
    kind: str
    version: str
    description: str
    key: tuple[str, ...] | None
    """The arguments that identify a call; None: all of them, or a function says."""
    key_by_function: bool
    ignored: tuple[str, ...]
    """The arguments that carry no intent."""
    scope: str
    idempotent: bool
    window: float | None
    """Seconds for which the destination deduplicates; None: for ever, if it is idempotent."""
    compensation: str | None
    """The name of the function or tool that compensates it."""
    compensation_idempotent: bool
    probe: str | None
    guarded: bool
    """Whether a function of it looks before it is compensated."""
    approval: str
    """``always``, ``depends`` (a function says), or ``never`` (rules may still ask)."""
    rules: tuple[str, ...]
    """The names of the rules that may decide about its calls, in their order."""
    costs: Mapping[str, Decimal] | None
    """What a call costs, by unit; None: nothing is declared."""
    cost_by_function: bool
    attempts: int
    timeout: float | None
    settle: float
    remote: float
    """The work lease of whoever performs it outside this process, in seconds; 0: this process does."""
    has_body: bool
    parameters: Mapping[str, Any]
    """The JSON schema of its arguments."""
    where: str
    """Where it was declared."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)


# ---- Reconciliation with the world


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One disagreement between the ledger and the world."""

    call: Call | None
    """The call that it is about; None: the ledger has none."""
    effect: Any
    """The effect as the listing gave it; None if a probe was asked."""
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        call = self.call
        about = {} if call is None else {"call": call.id, "run": call.run_id, "state": call.state}
        return {**about, "effect": plain(self.effect), "why": self.why}

    def __str__(self) -> str:
        what = (
            "nothing in the ledger"
            if self.call is None
            else f"{visible(self.call.id)} in run {visible(self.call.run_id)}"
        )
        seen = "" if self.effect is None else f" ({visible_value(self.effect)})"
        return f"{what}{seen}: {visible(self.why, prose=True)}"


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The ledger compared with the world for one tool. The comparison changes nothing."""

    tool: str
    compared: int
    """How many calls of the ledger were compared."""
    listed: int | None
    """How many effects ``list_effects`` returned; None: the tool has no listing."""
    asked: int
    """How often a probe was called."""
    missing: tuple[Mismatch, ...] = ()
    """Effects that stand according to the ledger, but not in the world."""
    unrecorded: tuple[Mismatch, ...] = ()
    """Effects in the world that the ledger does not have, or has as not standing."""
    doubts: tuple[Mismatch, ...] = ()
    """Calls in doubt, with what the world says about them now: ``rt.resolve`` settles them."""
    unclear: tuple[Mismatch, ...] = ()
    """Calls without a clear answer: in flight, too early, or the probe does not know."""
    unasked: int = 0
    """How many calls were left out because of ``limit``."""

    @property
    def orphans(self) -> tuple[Mismatch, ...]:
        """What only the ledger has, then what only the world has."""
        return self.missing + self.unrecorded

    @property
    def agrees(self) -> bool:
        """Whether there is no orphan on either side."""
        return not self.orphans

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        parts = {
            "missing": self.missing,
            "unrecorded": self.unrecorded,
            "doubts": self.doubts,
            "unclear": self.unclear,
        }
        told = {name: [one.to_dict() for one in found] for name, found in parts.items()}
        head = {"tool": self.tool, "agrees": self.agrees, "compared": self.compared, "listed": self.listed}
        return {**head, "asked": self.asked, "unasked": self.unasked, **told}

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join(_reconciliation_lines(self))


def _reconciliation_lines(found: Reconciliation) -> Iterator[str]:
    listed = "" if found.listed is None else f", {found.listed} effects listed"
    yield f"{visible(found.tool)}: {found.compared} calls compared{listed}, {found.asked} probes asked"
    for title, part in (
        ("only in the ledger", found.missing),
        ("only in the world", found.unrecorded),
        ("in doubt", found.doubts),
        ("unclear", found.unclear),
    ):
        yield from (f"   {title}: {one}" for one in part)
    if found.unasked:
        yield f"   not asked about: {found.unasked} older calls"
    if found.agrees:
        yield "   = the ledger and the world agree"


# ---- Verification of the record


PROBLEMS_MAX: Final = 100
"""How many problems are reported, the first in the record first."""
Tampering: TypeAlias = Literal[
    "edited",
    "deleted",
    "inserted",
    "swapped",
    "rewritten",
    "cut",
    "put_back",
    "row_changed",
    "row_forged",
    "row_missing",
    "payload_changed",
    "bad_signature",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One place where the record was changed after it was written."""

    run_id: str
    root: str
    """The uid of the root run of the tree."""
    n: int
    """The number in its tree of the bad event, the row's last event, or the missing event; 0: none."""
    how: Tampering
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {"run": self.run_id, "event": self.n, "how": self.how, "text": self.text}

    def __str__(self) -> str:
        run = visible(self.run_id or self.root or "-")
        return f"run {run}, event {self.n or '-'}: {self.how}: {visible(self.text, prose=True)}"


ERASED_MAX: Final = 1_000
"""The most erasures that a verification names."""


@dataclass(frozen=True, slots=True)
class Erased:
    """An erasure that the record names: of which run with its children, by whom and why. Its texts are gone on purpose."""

    run_id: str
    at: datetime
    by: str
    why: str
    order: str
    """The id of the order of work: one order may erase many runs."""
    token: str = ""
    """The id of the token by which it was asked for over the network; empty: it was not."""
    runs: int = 0
    """How many runs its tree has."""
    calls: int = 0
    approvals: int = 0
    events: int = 0
    """How many events lost texts. They are still in the chain."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return plain_fields(self)

    def __str__(self) -> str:
        said = f"run {self.run_id} was erased on {self.at:%Y-%m-%d %H:%M} UTC by {self.by}: {self.why}"
        return f"{said} (order {self.order})"


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of verifying the record."""

    runs: int
    events: int
    checkpoints: int = 0
    unanchored: int = 0
    """Events after the newest checkpoint: a change there that was rehashed cannot be detected."""
    unproved: int = 0
    """Payloads encrypted with a key that is missing here: a change of them cannot be detected here."""
    anchored: int = 0
    """The checkpoint known outside with which the ledger was compared; 0: there was no anchor."""
    problems: tuple[Problem, ...] = ()
    """At most a hundred, the first in the record first."""
    erasures: int = 0
    """How many erasures the record names."""
    erased: tuple[Erased, ...] = ()
    """They, the oldest first; at most a thousand. An erasure is no problem: what it left is proved like the rest."""

    @property
    def ok(self) -> bool:
        """Whether nothing was changed."""
        return not self.problems

    def raise_if_broken(self) -> Verified:
        """Return this result, or raise ``LedgerTampered`` with the first bad event if something was changed."""
        if self.problems:
            first = self.problems[0]
            raise LedgerTampered(
                f"the record was changed: {first}", run_id=first.run_id or None, event=first.n, how=first.how
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        counts = {"runs": self.runs, "events": self.events, "checkpoints": self.checkpoints}
        told = [one.to_dict() for one in self.problems]
        left = {"unanchored": self.unanchored, "unproved": self.unproved, "anchored": self.anchored}
        erased = {"erasures": self.erasures, "erased": [one.to_dict() for one in self.erased]}
        return {"ok": self.ok, **counts, **left, **erased, "problems": told}

    def __str__(self) -> str:
        if self.ok:
            whole = f"{self.events:,} events of {self.runs:,} runs are unchanged"
            return "\n".join((f"{whole}; {self.erasures:,} erased", *map(str, self.erased))) if self.erased else whole
        return "\n".join(map(str, self.problems))


# ---- Replays


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying one recorded run against the code of today.

    ``how``: same; or the ``how`` of a ``Diverged``; output, denied, raised, unreadable.
    """

    run_id: str
    source: str
    """Where its record came from: the ledger, or the name of a file."""
    how: str
    calls: int = 0
    """How many of its calls the code asked for."""
    of: int = 0
    """How many calls the record has."""
    why: str = ""
    hint: str = ""
    call_id: str | None = None
    """The recorded call in whose place the code asked for something else."""
    diff: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether the code did the same as the record."""
        return self.how == "same"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "run_id": self.run_id,
            "source": self.source,
            "same": self.same,
            "how": self.how,
            "calls": self.calls,
            "of": self.of,
            "why": self.why or None,
            "hint": self.hint or None,
            "call_id": self.call_id,
            "diff": {name: [str(was), str(now)] for name, (was, now) in self.diff.items()},
        }


# ---- Comparison of two runs


DIFFERENCES_MAX: Final = 50
"""How many differences of one call are listed."""
LINE_CHARS_MAX: Final = 100
ABSENT: Final = "(absent)"
Alignment: TypeAlias = Literal["same", "shared", "changed", "left", "right"]
_MARKS: Final[Mapping[str, str]] = {"same": "=", "shared": "=", "changed": "≠", "left": "-", "right": "+"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One place of an argument, a result or an output in which two runs differ."""

    path: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{visible(self.path)}: {_told(self.left)} | {_told(self.right)}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A call of the left run and the corresponding call of the right run."""

    how: Alignment
    """``shared``: one call of which a fork only has the record; ``left``, ``right``: the call is only there."""
    left: Call | None = None
    right: Call | None = None
    args: tuple[Difference, ...] = ()
    result: tuple[Difference, ...] = ()
    """Where its result, its error or its state differs."""
    costs: Mapping[str, tuple[Decimal, Decimal]] = field(default_factory=dict)

    @property
    def alike(self) -> bool:
        """Whether both asked for the same and got the same result."""
        return self.how in ("same", "shared")

    @property
    def tool(self) -> str:
        """The tool of both, or of the one that is there."""
        call = self.left or self.right
        assert call is not None, "a pair has at least one call"
        return call.tool

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return {
            "how": self.how,
            "tool": self.tool,
            "left": None if self.left is None else self.left.id,
            "right": None if self.right is None else self.right.id,
            "args": [_plain_difference(one) for one in self.args],
            "result": [_plain_difference(one) for one in self.result],
            "costs": {unit: [str(left), str(right)] for unit, (left, right) in self.costs.items()},
        }

    def __str__(self) -> str:
        costs = [f"{visible(unit)}: {left} | {right}" for unit, (left, right) in self.costs.items()]
        words = [*map(str, self.args), *map(str, self.result), *costs]
        if self.how == "shared":
            words = ["shared"]
        elif self.how in ("left", "right"):
            words = [f"only {self.how}"]
        return f"{visible(self.tool)}   {'; '.join(words)}".rstrip()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared call by call, in the order of the calls."""

    left: RunInfo
    right: RunInfo
    pairs: tuple[Pair, ...]
    output: tuple[Difference, ...] = ()
    costs: Mapping[str, tuple[Decimal, Decimal]] = field(default_factory=dict)
    """What each run itself cost, by unit; calls that a fork shares count for the original only."""

    @property
    def first(self) -> Pair | None:
        """The first call that differs, or None."""
        return next((pair for pair in self.pairs if not pair.alike), None)

    @property
    def alike(self) -> bool:
        """Whether both made the same calls, got the same results and have the same output."""
        return self.first is None and not self.output

    @property
    def shared(self) -> tuple[Pair, ...]:
        """The calls that the runs share because one of them is a fork."""
        return tuple(pair for pair in self.pairs if pair.how == "shared")

    def to_dict(self) -> dict[str, Any]:
        """Return all facts as plain JSON data."""
        first = self.first
        return {
            "left": {"run": self.left.id, "state": self.left.state},
            "right": {"run": self.right.id, "state": self.right.state},
            "alike": self.alike,
            "first": None if first is None else first.to_dict(),
            "pairs": [pair.to_dict() for pair in self.pairs],
            "output": [_plain_difference(one) for one in self.output],
            "costs": {unit: [str(left), str(right)] for unit, (left, right) in self.costs.items()},
        }

    def to_json(self) -> str:
        """Return ``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join(_cut(line) for line in self._lines())

    def _lines(self) -> Iterator[str]:
        left, right = (f"{visible(run.id)} ({run.state.replace('_', ' ')})" for run in (self.left, self.right))
        yield f"left   {left}"
        yield f"right  {right}"
        width = max((len(visible(pair.tool)) for pair in self.pairs), default=0)
        for pair in self.pairs:
            tool, _, words = str(pair).partition("   ")
            yield f"   {_MARKS[pair.how]} {tool:<{width}}  {words}".rstrip()
        first = self.first
        if first is None:
            yield "   every call alike"
        else:
            ids = " | ".join("-" if call is None else visible(call.id) for call in (first.left, first.right))
            yield f"   first different call: {visible(first.tool)} ({ids})"
        yield from (f"   output {one}" for one in self.output)
        yield from (f"   cost {visible(unit)}: {left} | {right}" for unit, (left, right) in self.costs.items())


def differences(left: Any, right: Any, path: str = "") -> tuple[Difference, ...]:
    """Return every place in which two values differ in meaning, down to single leaves."""
    found: list[Difference] = []
    for one in _differences(left, right, path):
        found.append(one)
        if len(found) == DIFFERENCES_MAX:
            break
    return tuple(found)


def _differences(left: Any, right: Any, path: str) -> Iterator[Difference]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in dict.fromkeys([*left, *right]):
            below = f"{path}.{name}" if path else str(name)
            yield from _differences(left.get(name, ABSENT), right.get(name, ABSENT), below)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for place, (one, other) in enumerate(zip(left, right, strict=True)):
            yield from _differences(one, other, f"{path}[{place}]")
    elif not _same(left, right):
        yield Difference(path or "it", left, right)


def _same(left: Any, right: Any) -> bool:
    try:
        return canonical(left) == canonical(right)
    except NotStorable:
        return bool(left == right)


def _plain_difference(one: Difference) -> dict[str, Any]:
    return {"path": one.path, "left": plain(one.left), "right": plain(one.right)}


def _told(value: Any) -> str:
    return str(value) if value is ABSENT else visible_value(value, bare=True)


def _cut(line: str) -> str:
    return shortened(line, LINE_CHARS_MAX)
