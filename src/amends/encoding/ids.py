"""Ids of calls: a number that sorts by time, and its text.

A store uses the number as the primary key of a call, so that an id costs neither a column nor an index.
"""

from __future__ import annotations

import os
import random
import threading
import time
from functools import lru_cache
from typing import Final

PREFIX: Final = "call_"
DIGITS: Final = 16
RANDOM_BITS: Final = 11
"""Below the microseconds since 1970, which have 52 bits until the year 2112: a number stays below 2**63."""
_DIGITS_OF_HEX: Final = frozenset("0123456789abcdef")


def new_number() -> int:
    """Return a new number. Those of one host sort by time, and those of one process are all different.

    Two processes that meet in one microsecond rarely collide; the ledger notices it, and another number is drawn.
    """
    global _last
    number = (time.time_ns() // 1000 << RANDOM_BITS) | random.getrandbits(RANDOM_BITS)
    with _drawing:
        if _last - _SET_BACK < number <= _last:
            number = _last + 1
        _last = number
    return number


_last = 0
_SET_BACK: Final = 1_000_000 << RANDOM_BITS
"""A clock that goes back by more than a second was set: the numbers follow it, since stores compare them with theirs."""
_drawing = threading.RLock()  # a signal handler may call a tool


def _after_fork_in_child() -> None:
    global _drawing
    _drawing = threading.RLock()  # another thread of the parent may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def number_at(at: float, low: int = 0) -> int:
    """Return the number of a call that is made at this time; ``low`` keeps those of one microsecond apart."""
    return (max(0, int(at * 1e6)) << RANDOM_BITS) + low


def made_at(number: int) -> float:
    """Return the time that is in a number."""
    return (number >> RANDOM_BITS) / 1e6


def call_id(number: int) -> str:
    """Return the text of a number."""
    return f"call_{number:016x}"


@lru_cache(maxsize=1024)
def number_of(id: str) -> int | None:
    """Return the number of an id; None: it is no id that ``call_id`` writes (a test or another ledger made it)."""
    if len(id) != len(PREFIX) + DIGITS or not id.startswith(PREFIX):
        return None
    digits = id[len(PREFIX) :]
    if not _DIGITS_OF_HEX.issuperset(digits) or digits[0] >= "8":
        return None
    return int(digits, 16)
