"""The lease of a run tree: the last check before a body runs."""

from __future__ import annotations

from amends.encoding.dataclass import dataclass
from amends.errors import LeaseLost
from amends.ledger.joined import JoinedTransactions


@dataclass(slots=True)
class Lease:
    """A run tree that this process owns, and until when on its own monotonic clock."""

    root: str
    owner: str
    epoch: int
    lease_s: float
    until: float
    lost: bool = False
    goal: str = ""
    """The goal that a person set meanwhile, learned when the lease was renewed."""
    joined: JoinedTransactions | None = None
    """The caller's own transactions that calls of this tree have joined; None until the first."""

    def check(self, mono: float) -> None:
        """Raise ``LeaseLost`` unless this process certainly still owns the tree.

        The margin covers the time between this check and the first byte of a request.
        """
        if not self.is_ours(mono):
            raise LeaseLost(
                "this process no longer owns the run; nothing was started",
                hint="another worker continues it; open the run again to see its state",
            )

    def is_ours(self, mono: float) -> bool:
        """Return whether this process certainly owns the tree at this moment."""
        return not self.lost and mono < self.until - self.margin

    @property
    def margin(self) -> float:
        """The safety margin between two clocks, and between check and send: a tenth of the lease."""
        return self.lease_s / 10
