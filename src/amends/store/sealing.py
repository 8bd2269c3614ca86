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
    if op.is_call:
        call = await FindCall(op.row)
        assert call is not None, "calls are never deleted"
        fresh = _unchanged(call, op)
        if fresh:
            await UpdateCall(call, fresh)
        return len(fresh) + _done_before(call, op)
    run = await FindRun(op.row)
    assert run is not None, "runs are never deleted"
    fresh = _unchanged(run, op)
    if fresh:
        await UpdateRun(run, fresh)
    return len(fresh) + _done_before(run, op)


def _unchanged(row: CallRow | RunRow, op: RewriteTexts) -> dict[str, str]:
    return {name: text for name, text in op.now.items() if getattr(row, name) == op.was[name]}


def _done_before(row: CallRow | RunRow, op: RewriteTexts) -> int:
    """How many were written the first time, if this was asked before and the answer lost."""
    return sum(getattr(row, name) == text for name, text in op.now.items()) if op.repeated else 0
