"""What hiding and encryption need of the ledger: the fingerprint of a key, and payloads written anew."""

from __future__ import annotations

from typing import Final

from amends.markrows import AddMark, FindMark, MarkRow
from amends.rows import CallRow, FindCall, FindRun, Now, RunRow, UpdateCall, UpdateRun
from amends.sealops import PinKey, RewriteTexts

KEY: Final = "secret key"
"""The mark that holds the fingerprint."""


async def pin_key(op: PinKey) -> str:
    """See ``PinKey``. Who is first is right: from then on another key would not recognise what was done."""
    found = await FindMark(KEY)
    if found is None and op.fingerprint:
        if await AddMark(MarkRow(KEY, op.fingerprint, await Now())):
            return op.fingerprint
        found = await FindMark(KEY)
    return "" if found is None else found.value


async def rewrite_texts(op: RewriteTexts) -> int:
    """See ``RewriteTexts``. No state changes, and so nothing happened that an event could tell."""
    row = await (FindCall(op.row) if op.is_call else FindRun(op.row))
    assert row is not None, "calls and runs are never deleted"
    fresh = {name: text for name, text in op.now.items() if getattr(row, name) == op.was[name]}
    # Written before, and the answer was lost: they count as they did then.
    written = [name for name, text in op.now.items() if op.repeated and getattr(row, name) == text]
    if fresh and isinstance(row, CallRow):
        await UpdateCall(row, fresh)
    elif fresh and isinstance(row, RunRow):
        await UpdateRun(row, fresh)
    return len({*fresh, *written})
