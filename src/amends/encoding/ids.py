"""Ids of calls: a number that sorts by time, and its text.

A store uses the number as the primary key of a call, so that an id costs neither a column nor an index.
"""

from __future__ import annotations

import os
import time
from typing import Final

PREFIX: Final = "call_"
DIGITS: Final = 16
RANDOM_BITS: Final = 12
EPOCH_US: Final = 1_577_836_800_000_000
"""2020-01-01: with 51 bits of microseconds and 12 random bits a number stays below 2**63 until the year 2091."""
_DIGITS_OF_HEX: Final = frozenset("0123456789abcdef")


def new_number() -> int:
    """Return a new number; those of one host sort by time, and two of one microsecond rarely collide."""
    return ((time.time_ns() // 1000 - EPOCH_US) << RANDOM_BITS) | int.from_bytes(os.urandom(2), "big") >> 4


def call_id(number: int) -> str:
    """Return the text of a number."""
    return f"call_{number:016x}"


def number_of(id: str) -> int | None:
    """Return the number of an id; None: it is no id that ``call_id`` writes (a test or another ledger made it)."""
    if len(id) != len(PREFIX) + DIGITS or not id.startswith(PREFIX):
        return None
    digits = id[len(PREFIX) :]
    if not _DIGITS_OF_HEX.issuperset(digits) or digits[0] >= "8":
        return None
    return int(digits, 16)
