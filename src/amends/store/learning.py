"""What was learned of a doubt while it lasted: kept on the call itself, bounded; the events have all of it."""

from __future__ import annotations

import json
from typing import Any, Final

from amends.phrases import cut
from amends.rows import CallRow
from amends.secret import SEALED

LEARNED_MAX: Final = 20
"""So many of the newest answers are kept with the call."""
WORDS_MAX: Final = 500


def learned(call: CallRow, *, at: float, by: str, attempt: int, answer: str, why: str) -> str:
    """The call's answers with this one, newest last."""
    kept: list[Any] = json.loads(call.learned) if call.learned else []
    kept.append([at, by, attempt, answer, _cut(why)])
    return json.dumps(kept[-LEARNED_MAX:], ensure_ascii=False)


def knows(call: CallRow, *, by: str, attempt: int, answer: str, why: str) -> bool:
    """Whether this very answer is kept already: who repeats it after a lost answer is not told twice."""
    kept: list[Any] = json.loads(call.learned) if call.learned else []
    return any(one[1:] == [by, attempt, answer, _cut(why)] for one in kept)


def _cut(why: str) -> str:
    """As much as is kept; an encrypted text is all or nothing."""
    return why if why.startswith(SEALED) else cut(why, WORDS_MAX)


def told(error: str) -> str:
    """A stored error in words."""
    return ": ".join(part for part in json.loads(error) if part) if error.startswith("[") else error
