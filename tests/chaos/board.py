"""What the processes share besides the ledger and the world: a page of memory that outlives each of them."""

from __future__ import annotations

import mmap
import struct
from typing import Final

HEAD: Final = 64
_SHIFT: Final = struct.Struct("d")


class Board:
    """One byte per run for how often it was delivered, one for whether its caller saw its end; and the clock's shift."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self._page = mmap.mmap(-1, HEAD + 2 * runs)

    @property
    def shift_s(self) -> float:
        """How far the wall clock of every process is off."""
        seconds: float = _SHIFT.unpack_from(self._page, 0)[0]
        return seconds

    @shift_s.setter
    def shift_s(self, seconds: float) -> None:
        _SHIFT.pack_into(self._page, 0, seconds)

    def deliver(self, number: int) -> int:
        """Count one more delivery; which one it is."""
        at = HEAD + number
        self._page[at] = min(self._page[at] + 1, 255)
        return self._page[at]

    def deliveries(self, number: int) -> int:
        """How often somebody opened it."""
        return self._page[HEAD + number]

    def end(self, number: int) -> None:
        """Its caller saw its end."""
        self._page[HEAD + self.runs + number] = 1

    def has_ended(self, number: int) -> bool:
        """Whether a caller saw its end."""
        return bool(self._page[HEAD + self.runs + number])

    def begun(self) -> int:
        """How many runs were delivered at least once."""
        return self.runs - self._page[HEAD : HEAD + self.runs].count(0)
