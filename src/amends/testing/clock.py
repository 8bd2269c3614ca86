"""Virtual time: a wall clock that may jump, and a monotonic one that may not."""

from __future__ import annotations

from amends.ops import Clocks

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
