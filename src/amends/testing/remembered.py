"""An anchor outside a simulated ledger: what its file would hold, by the same rule."""

from __future__ import annotations

from amends.anchor import Mark, moved_to
from amends.checkpoint import Anchored


class Remembered:
    """As ``anchor.Anchor``, without a disk; what it holds survives every process."""

    def __init__(self) -> None:
        self.path = "the anchor"
        self.mark: Mark | None = None
        self.is_held = False

    def read(self) -> Mark | None:
        """The mark; None: there is none yet."""
        return self.mark

    def keep_checkpoint(self, newest: Anchored) -> bool:
        """The mark's checkpoint is at least this one; false: it is another ledger's."""
        moved = moved_to(self.mark, newest)
        self.mark = self.mark if moved is None else moved
        return moved is not None
