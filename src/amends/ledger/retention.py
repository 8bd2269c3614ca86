"""Remove the payloads of a run tree some time after it has ended; its identities, states and events stay.

Also here: rewriting payloads with another encryption key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from amends.ledger.events import write_event
from amends.ledger.operations import CollectGarbage, PinKey, RewriteTexts, Swept
from amends.ledger.rows import (
    AddMark,
    CallRow,
    DropSlices,
    FindCall,
    FindMark,
    FindRun,
    ListCalls,
    ListTree,
    MarkRow,
    Now,
    PageClosed,
    RunRow,
    UpdateCall,
    UpdateRun,
    removed,
)
from amends.ledger.trees import forks_on
from amends.states import STANDING, UNSETTLED

CALLS_MAX: Final = 1_000
"""A transaction of gc takes no further tree after so many calls: others wait for the ledger meanwhile."""

KEPT: Final = ("in doubt", "compensation failed", "left standing", "taken back in doubt", "open forks")
"""Why an ended tree stays whole, the most serious reason first."""


async def collect_garbage(op: CollectGarbage) -> Swept:
    """Remove the payloads of some ended trees (``CollectGarbage``). A tree is emptied in one transaction, or stays."""
    now = await Now("")
    before = now - op.older_than_s
    page = await PageClosed(before, op.tenant, op.after, op.limit)
    runs = calls = freed = 0
    kept: dict[str, int] = {}
    after: tuple[float, str] | None = None
    looked = 0
    for root in page:
        assert root.closed_at is not None, "an ended run has its closing time"
        after = (root.closed_at, root.uid)
        mine = root if op.dry_run else await FindRun(root.uid, skip=True)
        if mine is None or mine.closed_at != root.closed_at or mine.gone_at is not None:
            kept["somebody is at it"] = kept.get("somebody is at it", 0) + 1
            continue
        inside = await ListCalls(root.uid)
        forked = any(fork.closed_at is None for fork in await forks_on(root.uid))
        why = _kept_for(mine, inside) or ("open forks" if forked else "")
        if why:
            kept[why] = kept.get(why, 0) + 1
        else:
            runs, calls, freed = runs + 1, calls + len(inside), freed + await _remove(mine, inside, op.dry_run)
        looked += len(inside)
        if looked >= CALLS_MAX:
            return Swept(runs, calls, freed, tuple(sorted(kept.items())), after)
    return Swept(runs, calls, freed, tuple(sorted(kept.items())), after if len(page) == op.limit else None)


def _kept_for(root: RunRow, calls: Iterable[CallRow]) -> str:
    """Return why an ended tree stays whole: what somebody may still have to look at must stay readable."""
    whys = {_open_question(root, call) for call in calls if call.kind != "read" and not call.shared}
    return next((why for why in KEPT if why in whys), "")


def _open_question(root: RunRow, call: CallRow) -> str:
    if call.state in ("in_doubt", "compensation_in_doubt"):
        return "in doubt"
    if call.state == "compensation_failed":
        return "compensation failed"
    if call.state == "residue" or (call.state == "succeeded" and (call.late or root.state == "abandoned")):
        return "left standing"
    if call.state == "compensated" and call.comp_blind:
        return "taken back in doubt"  # late evidence makes amends compensate it again, which needs its arguments
    return "in doubt" if call.state in (STANDING | UNSETTLED) - {"succeeded"} else ""


async def _remove(root: RunRow, calls: Iterable[CallRow], dry_run: bool) -> int:
    """Remove the payloads of a tree, with one event; return how many bytes they had."""
    tree, now = await ListTree(root.uid), await Now(root.uid)
    changes: list[tuple[RunRow | CallRow, dict[str, str]]] = [
        *((run, {"input": removed(run.input, now), "output": removed(run.output, now)}) for run in tree),
        *((call, _emptied(call, now)) for call in calls),
    ]
    freed = sum(
        _bytes(getattr(row, name)) for row, texts in changes for name in texts if texts[name] != getattr(row, name)
    )
    if dry_run:
        return freed
    for row, texts in changes:
        changed_texts = {name: text for name, text in texts.items() if text != getattr(row, name)}
        if isinstance(row, RunRow):
            await UpdateRun(row, changed_texts | {"gone_at": now})
        elif changed_texts:
            await UpdateCall(row, changed_texts)
    if any(isinstance(row, CallRow) and row.cost for row, _ in changes):
        await DropSlices(root.uid)
    count = sum(isinstance(row, CallRow) for row, _ in changes)
    if root.origin:
        return freed  # its events belong to another ledger: none is added, and the existing ones stay whole
    await write_event(root, "payloads removed", at=now, by="gc", epoch=root.epoch, calls=count, bytes=freed)
    return freed


def _emptied(call: CallRow, now: float) -> dict[str, Any]:
    """Return the emptied columns of a call.

    That it was refused, by whom and why is a decision, not a payload: it stays.
    """
    texts: dict[str, Any] = {
        "args": removed(call.args, now),
        "error": call.error if call.state == "refused" else _bare(call.error),
        "comp_error": _bare(call.comp_error),
        "evidence": "",
        "learned": "",
        "loss": "",
        "locks": "",
    }
    if call.result is not None:
        texts["result"] = removed(call.result, now)
    elif call.loss:
        texts["result"] = removed("lost", now)  # it had one that could not be stored: still not None
    return texts


def _bare(error: str) -> str:
    """Return an error's name without its message, which may quote anything."""
    try:
        name, _ = json.loads(error)
    except (ValueError, TypeError):
        return ""
    return json.dumps([name, ""])


def _bytes(text: str | None) -> int:
    return len((text or "").encode("utf-8", "replace"))


# ---- Encryption keys: the pinned fingerprint, and payloads written anew


KEY: Final = "secret key"
"""The mark that holds the fingerprint."""


async def pin_key(op: PinKey) -> str:
    """Pin the fingerprint of a key (``PinKey``).

    The first one stays: another key would not recognise recorded values.
    """
    found = await FindMark(KEY)
    if found is None and op.fingerprint:
        if await AddMark(MarkRow(KEY, op.fingerprint, await Now(""))):
            return op.fingerprint
        found = await FindMark(KEY)
    return "" if found is None else found.value


async def rewrite_texts(op: RewriteTexts) -> int:
    """Replace payloads (``RewriteTexts``). No state changes, so there is nothing that an event would record."""
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
