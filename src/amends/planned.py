"""What a person is shown before a word is said: a rollback as it would go, and what each answer to a doubt brings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from amends.model import Call, Residue
from amends.record import dataclass, field
from amends.report import plain
from amends.states import CallState, RunState
from amends.visible import visible, visible_value

Doing: TypeAlias = Literal["compensate", "probe", "guard", "start", "ask"]


@dataclass(frozen=True, slots=True)
class Planned:
    """One thing that amends would do next with a call.

    ``compensate``: take it back. ``probe``: ask the world about it first. ``guard``: see whether somebody changed it
    since. ``start``: run its body (again). ``ask``: nothing alone, a person is asked.
    """

    what: Doing
    call: Call
    by: str
    """The name of the function that would run; empty where a person is asked."""
    args: Mapping[str, Any] = field(default_factory=dict)
    """What it would be given, besides the call itself."""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
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
        done = f"{visible(self.by)}({args})" if self.by else "a person is asked"
        note = f"; {visible(self.note, prose=True)}" if self.note else ""
        return f"{self.what} {visible(self.call.tool)} ({visible(self.call.id)}): {done}{note}"


@dataclass(frozen=True, slots=True)
class RollbackPlan:
    """What a rollback would do, in order. Valid for as long as ``hash`` is: until the run moves."""

    run_id: str
    hash: str
    """Hand it to ``rt.rollback(run, plan=...)``: refused with ``StalePlan`` once the ledger has moved."""
    compensations: tuple[Planned, ...] = ()
    """In the order in which they start."""
    cannot: tuple[Residue, ...] = ()
    """What would be left standing, and why."""
    doubts: tuple[Planned, ...] = ()
    """What must be found out first, and how; nothing is taken back while that needs no person."""
    dropped: tuple[Call, ...] = ()
    """Accepted or held, and then never started."""
    running: tuple[Call, ...] = ()
    """In flight at its owner: each lands first, and is taken back if it had an effect."""
    refused: str | None = None
    """Why the run cannot be rolled back at all; None: it can."""
    state: RunState = "open"
    """The run's state when this was planned."""
    forks: tuple[str, ...] = ()
    """The forks, open or committed, that would lose what they stand on."""

    @property
    def complete(self) -> bool:
        """Whether nothing would be left standing or in doubt, if every compensation succeeds."""
        return self.refused is None and not (self.cannot or self.doubts or self.running)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data: the same facts as the text, and all of them."""
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
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _lines(plan: RollbackPlan) -> Iterator[str]:
    yield f"rollback of run {visible(plan.run_id)}   plan {plan.hash}"
    if plan.refused is not None:
        yield f"   = refused: {visible(plan.refused, prose=True)}"
        return
    for call in plan.running:
        yield f"   ▸ in flight: {visible(call.tool)} ({visible(call.id)}) lands first"
    for one in plan.doubts:
        yield f"   ? {one}"
    for number, one in enumerate(plan.compensations, 1):
        yield f"   {number}. {one}"
    for call in plan.dropped:
        yield f"   – dropped: {visible(call.tool)} ({visible(call.id)})"
    for left in plan.cannot:
        yield f"   ! left standing: {visible(left.call.tool)} ({visible(left.call.id)}): {visible(left.why, prose=True)}"
    for fork in plan.forks:
        yield f"   ! fork {visible(fork)} stands on what would be taken back"
    if plan.complete:
        yield "   = nothing would be left standing"


# ---- beforehand ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Next:
    """What one answer to a doubt would make of its call and its run, if everything that follows goes well."""

    call_state: CallState
    """Of the call that the answer is about, when amends has done what it does next."""
    run_state: RunState
    does: tuple[Planned, ...] = ()
    """In order; another doubt's probe is taken to say nothing, every body and compensation to succeed."""
    who: Literal["here", "owner", "worker", "agent"] = "here"
    """Who goes on: this process at once, the run's owner, a worker that has the tools, or its agent."""
    causes: tuple[str, ...] = ()
    """What would still keep the run from its end."""
    refused: str | None = None
    """Why the answer would not be taken; None: it would."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "call_state": self.call_state,
            "run_state": self.run_state,
            "does": [one.to_dict() for one in self.does],
            "who": self.who,
            "causes": list(self.causes),
            "refused": self.refused,
        }

    def __str__(self) -> str:
        if self.refused is not None:
            return f"not possible: {visible(self.refused, prose=True)}"
        does = "; then ".join(str(one) for one in self.does) or "starts nothing"
        who = {"owner": "its owner goes on: ", "worker": "a worker goes on: ", "agent": "its agent goes on: "}
        return f"{who.get(self.who, '')}{does}; the call is {self.call_state}, the run {self.run_state}"


@dataclass(frozen=True, slots=True)
class Preview:
    """What the run would do next for each of the three answers to a doubt."""

    call: Call
    happened: Next
    absent: Next
    unknown: Next

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        answers = {"happened": self.happened, "absent": self.absent, "unknown": self.unknown}
        return {"call": self.call.id, "tool": self.call.tool, **{k: one.to_dict() for k, one in answers.items()}}

    def __str__(self) -> str:
        answers = {"Happened": self.happened, "Absent": self.absent, "Unknown": self.unknown}
        return "\n".join(
            [f"{visible(self.call.tool)} ({visible(self.call.id)}) is {self.call.state}"]
            + [f"   {k}: {v}" for k, v in answers.items()]
        )
