"""A doubt as a person needs it: what was sent, when it was lost, how to ask, and what was learned since."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from amends.model import Call
from amends.record import dataclass, field
from amends.report import plain


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was learned of a doubt, and when."""

    at: datetime
    by: str
    """``probe``: amends asked; ``person``: somebody asked; ``late`` or ``fenced``: a body returned after all."""
    attempt: int
    """The attempt, of the call or of its compensation, that it is about."""
    answer: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Doubt(Call):
    """A call of which nobody here can say what became of it, or of its compensation."""

    about: Literal["call", "compensation"] = "call"
    """``key`` and ``attempt`` are those of what is in doubt."""
    sent: Mapping[str, Any] = field(default_factory=dict)
    """What the body, or the compensation, was given."""
    sent_at: datetime | None = None
    lost_at: datetime | None = None
    """When its answer was given up, or its owner was found dead."""
    probe: str | None = None
    """The function that ``rt.probe`` asks; None: there is none here, and a person must look."""
    next_probe_at: datetime | None = None
    evidence: tuple[Evidence, ...] = ()
    """What was learned since it was sent, oldest first."""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
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
