"""Virtual time: a wall clock that may jump, and a monotonic one that may not."""

from __future__ import annotations

from amends.encoding.chain import Anchored
from amends.host.checkpoints import Mark, moved_to
from amends.ledger.world import Clocks

START: float = 1_700_000_000.0


class Clock:
    """Time as a simulated host sees it. Nothing here waits."""

    def __init__(self) -> None:
        self.wall = START
        self.mono = 1_000.0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, "time does not run backwards; jump() sets the wall clock"
        self.wall += seconds
        self.mono += seconds

    def jump(self, seconds: float) -> None:
        """Somebody set the wall clock; nothing has passed."""
        self.wall += seconds

    def read(self, host: str = "host") -> Clocks:
        """What the clocks of that host say."""
        return Clocks(self.wall, self.mono, f"boot-{host}")


# ---- An anchor outside a simulated ledger: what its file would hold, by the same rule


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
