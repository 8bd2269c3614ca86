"""What this process itself saw succeed in the tree that it owns: answered again without asking the ledger.

Why that is the ledger's answer too. A call that has succeeded leaves that state in two ways only (``states``). It is
compensated: by the owner of its tree, in this epoch, and so by a flow of this very process, which closes the memory
before it begins; or by another owner, who has the tree only after it was given back, which closes the memory first, or
after our lease has run out, which is looked at last, on our own clock and with its margin, as before a body. Or a
person abandons the run: then the effect stands, the answer is still true, and nothing starts on it any more, because
the epoch has changed; the next renewal of the lease says so here. What else others may do meanwhile does not touch such
a call: a goal to roll back waits for the owner, a word on a doubt or on a held call is about another state, late
evidence about one that succeeded is no news, and gc takes nothing of a tree whose root is open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from amends.flow import Flow
from amends.record import dataclass, field
from amends.rows import CallRow

CALLS_MAX: Final = 1_000
"""Calls that one tree remembers; at one more it begins anew."""
CHARS_MAX: Final = 8_192
"""Arguments and result of a call that is remembered, together: a tree remembers eight million characters at most."""


@dataclass(slots=True)
class Recall:
    """Succeeded calls by their keys; one for a run and all that are inside it. Once closed it stays empty.

    Closed for good rather than emptied: a thread that saw its call succeed just before is then late in any case.
    """

    rows: dict[str, CallRow] = field(default_factory=dict)
    closed: bool = False
    record: Callable[[Any, Any], Flow[Any]] | None = None
    """In a replay: answers every request from the record of a run that was; None: this run is live."""

    def keep(self, row: CallRow) -> None:
        """Remember a call that this process has settled as succeeded."""
        assert row.state == "succeeded", "only what has happened is answered again"
        if self.closed or row.kind == "read" or len(row.args) + len(row.result or "") > CHARS_MAX:
            return
        if len(self.rows) >= CALLS_MAX:
            self.rows = {}
        self.rows[row.key] = row

    def of(self, key: str, ident: str) -> CallRow | None:
        """The call of this key, if it is remembered and was asked for with these arguments."""
        row = None if self.closed else self.rows.get(key)
        return None if row is None or row.ident != ident else row

    def close(self) -> None:
        """Forget everything, and whatever comes: what has succeeded here may be taken back from now on."""
        self.closed = True
        self.rows = {}


@dataclass(slots=True)
class Readings:
    """What programs and bodies of one tree have read of the clock, dice and new names."""

    counters: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    recorded: Mapping[tuple[str, str], Sequence[float]] | None = None
    """What the clock said before a resume, by run and by the call in whose body it was read; None: not looked up."""
