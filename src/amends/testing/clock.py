"""Virtual time: a wall clock that may jump, and a monotonic one that may not."""

from __future__ import annotations

from amends.encoding.chain import Anchored
from amends.host.anchor import Mark, moved_to
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
        """Set the wall clock; no time passes."""
        self.wall += seconds

    def read(self, host: str = "host") -> Clocks:
        """Return what the clocks of that host show."""
        return Clocks(self.wall, self.mono, f"boot-{host}")


# ---- An anchor in memory


class Remembered:
    """An ``Anchor`` without a file, which follows the same rule and survives every simulated process."""

    def __init__(self) -> None:
        self.path = "the anchor"
        self.mark: Mark | None = None
        self.sessions, self.held_at, self.asked_at = 0, -1, -1

    @property
    def is_held(self) -> bool:
        """Whether the ledger was seen to have the checkpoint."""
        return self.held_at == self.sessions

    @property
    def is_compared(self) -> bool:
        """Whether the ledger was compared with the anchor."""
        return self.asked_at == self.sessions

    def read(self) -> Mark | None:
        """Return the mark, or None if there is none yet."""
        return self.mark

    def keep_checkpoint(self, newest: Anchored) -> bool:
        """Move the mark to this checkpoint if it is newer; return False if it belongs to another ledger."""
        moved = moved_to(self.mark, newest)
        self.mark = self.mark if moved is None else moved
        return moved is not None
