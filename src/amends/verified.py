"""What a look at the whole record found: that nothing was changed, or where and how it was."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

from amends.errors import LedgerTampered
from amends.record import dataclass
from amends.visible import visible

PROBLEMS_MAX: Final = 100
"""So many are told, the first in the record; who changed a thousand events changed this one too."""
How: TypeAlias = Literal[
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
    """One thing that is not as it was written."""

    run_id: str
    root: str
    """The uid of the tree's first run."""
    n: int
    """The number of the bad event in its tree, of the row's last event, or of the one that is missing; 0: of none."""
    seq: int
    """Its place in the ledger; 0: none."""
    how: How
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"run": self.run_id, "event": self.n, "seq": self.seq, "how": self.how, "text": self.text}

    def __str__(self) -> str:
        run = visible(self.run_id or self.root or "-")
        return f"run {run}, event {self.n or '-'}: {self.how}: {visible(self.text, prose=True)}"


@dataclass(frozen=True, slots=True)
class Verified:
    """The record as it was found. Nothing was changed by looking."""

    runs: int
    events: int
    checkpoints: int = 0
    unanchored: int = 0
    """Events that are younger than the newest checkpoint: what was changed and hashed anew there does not show."""
    unproved: int = 0
    """Payloads that are encrypted with a key which is not here: nobody here can tell whether they were changed."""
    anchored: int = 0
    """The checkpoint that is known outside and that the ledger was held against; 0: there was no anchor."""
    problems: tuple[Problem, ...] = ()
    """The first in the record first, and no more than a hundred."""

    @property
    def ok(self) -> bool:
        """Whether everything is as it was written."""
        return not self.problems

    def raise_if_broken(self) -> Verified:
        """Itself; raises ``LedgerTampered`` with the first bad event where something was changed."""
        if self.problems:
            first = self.problems[0]
            raise LedgerTampered(
                f"the record was changed: {first}", run_id=first.run_id or None, event=first.n, how=first.how
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        counts = {"runs": self.runs, "events": self.events, "checkpoints": self.checkpoints}
        told = [one.to_dict() for one in self.problems]
        left = {"unanchored": self.unanchored, "unproved": self.unproved, "anchored": self.anchored}
        return {"ok": self.ok, **counts, **left, "problems": told}

    def __str__(self) -> str:
        if self.ok:
            return f"{self.events:,} events of {self.runs:,} runs are as they were written"
        return "\n".join(map(str, self.problems))
