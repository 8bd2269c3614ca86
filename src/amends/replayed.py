"""What became of replaying one recorded run against the code of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amends.record import dataclass, field


@dataclass(frozen=True, slots=True)
class Replayed:
    """One run, replayed. ``how``: same; or what a ``Diverged`` says; output, denied, raised, unreadable."""

    run_id: str
    source: str
    """Where its record came from: the ledger, or the name of a file."""
    how: str
    calls: int = 0
    """How many of its calls were asked for."""
    of: int = 0
    """How many were to be."""
    why: str = ""
    hint: str = ""
    call_id: str | None = None
    """The recorded call beside which something else was asked for."""
    diff: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Whether the code does what it did then."""
        return self.how == "same"

    def to_dict(self) -> dict[str, Any]:
        """The same as plain JSON data."""
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
