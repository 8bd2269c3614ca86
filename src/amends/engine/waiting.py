"""Waiting for somebody else's run: watched, polled in growing pauses, and never for ever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from amends.ops import Await, ReadClocks, Watch

POLL_S_MIN: Final = 0.005
POLL_S_MAX: Final = 0.25


@dataclass(slots=True)
class Wait:
    """One wait, from the first refusal on."""

    limit_s: float
    """How long at most, in all."""
    since: float = 0.0
    waited: float = 0.0
    pause: float = POLL_S_MIN
    watcher: Any = None
    root: str = ""

    async def again(self, root: str) -> bool:
        """Let time pass until this tree may have changed; False when the limit is reached."""
        clocks = await ReadClocks()
        self.since = self.since or clocks.mono
        self.waited = clocks.mono - self.since
        if self.waited >= self.limit_s:
            return False
        if self.root != root:
            # It may have changed just before it was watched: look once more.
            self.root, self.watcher = root, await Watch(root)
            return True
        await Await(self.watcher, min(self.pause, self.limit_s - self.waited))
        self.pause = min(self.pause * 2, POLL_S_MAX)
        return True
