"""The plain calls of an audit, which a store reads without making rows and events of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from amends.ledger.rows import CallRow, EventRow


class FoldedCall(Protocol):
    """A plain call whose row and events a store makes only if somebody asks for them.

    It is running or has succeeded, and nothing else happened to it. Row and events are made from the same columns:
    only the hashes of its events can be wrong.
    """

    id: str
    root: str

    @property
    def run_id(self) -> str:
        """The id of its run, which is the root of its tree."""

    @property
    def tenant(self) -> str:
        """The tenant of its run."""

    @property
    def tool(self) -> str:
        """The name of its tool."""

    @property
    def is_settled(self) -> bool:
        """Whether it has succeeded."""

    @property
    def row(self) -> CallRow:
        """The call as a row."""

    def event(self, is_settlement: bool) -> EventRow:
        """Return one of its events as a row."""

    def linked(self, is_settlement: bool, prev: str, n: int) -> str:
        """Return the hash of an event that is linked as event ``n`` to the hash before it; empty if it is not.

        Empty also if its time is not in whole microseconds, which amends never writes.
        """


class FoldedEvent(Protocol):
    """An event of such a call."""

    root: str
    n: int
    is_settlement: bool
    """Whether it is the second one: the call succeeded. The first: it was admitted and started."""

    @property
    def folded(self) -> FoldedCall:
        """The call."""

    @property
    def made(self) -> EventRow:
        """The event as a row."""
