"""The clock as a program reads it through its run."""

from __future__ import annotations

import json
from typing import Final

from amends.rows import Now, PageEvents, RunRow
from amends.states import RUN_FINAL
from amends.store.change import find_run, held, note
from amends.valueops import VALUE, NoteValue

EVENTS_PAGE: Final = 500
PAGES_MAX: Final = 100_000
"""Pages of one tree's record that are looked through for what was read before an answer was lost."""


async def note_value(op: NoteValue) -> float | None:
    """See ``NoteValue``."""
    root = await find_run(op.root)
    run = root if op.run == op.root else await find_run(op.run)
    if op.repeated:
        before = await _read_before(op, run)
        if before is not None:
            return before
    if root.state in RUN_FINAL or run.state in RUN_FINAL:
        return None
    held(root, op.owner, op.epoch)
    now = await Now()
    await note(run, VALUE, at=now, by=op.owner, epoch=op.epoch, call=op.call, nonce=op.nonce)
    return now


async def _read_before(op: NoteValue, run: RunRow) -> float | None:
    after = 0
    for _ in range(PAGES_MAX):
        page = await PageEvents(run.root, None, after, EVENTS_PAGE)
        for event in page:
            if event.what == VALUE and event.run == run.uid and json.loads(event.facts).get("nonce") == op.nonce:
                return event.at
        if len(page) < EVENTS_PAGE:
            return None
        after = page[-1].seq
    return None
