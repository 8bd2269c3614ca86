"""Remove the payloads of a run tree some time after it has ended; its identities, states and events stay.

Also here: rewriting payloads with another encryption key.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from amends.encoding.dataclass import dataclass
from amends.ledger.events import write_event
from amends.ledger.operations import CollectGarbage, PinKey, RewriteTexts, Swept
from amends.ledger.queries import (
    calls_of_trees,
    drop_slices,
    find_roots,
    list_forks,
    page_closed,
    runs_of_trees,
)
from amends.ledger.rows import CALLS, MARKS, RUNS, CallRow, MarkRow, Now, RunRow, removed
from amends.ledger.tables import Add, Change, ChangeMany, Changes, Find
from amends.ledger.trees import forks_on
from amends.states import STANDING, UNSETTLED

TREES_MAX: Final = 8
"""The most trees that are read at once: each may be large."""
CALLS_MAX: Final = 1_000
"""A transaction of gc takes no further tree after so many calls: others wait for the ledger meanwhile."""

KEPT: Final = ("in doubt", "compensation failed", "left standing", "taken back in doubt", "open forks")
"""Why an ended tree stays whole, the most serious reason first."""


async def collect_garbage(op: CollectGarbage) -> Swept:
    """Remove the payloads of some ended trees (``CollectGarbage``). A tree is emptied in one transaction, or stays."""
    now = await Now("")
    before = now - op.older_than_s
    page = await page_closed(before, op.tenant, op.after, op.limit)
    runs = calls = freed = 0
    kept: dict[str, int] = {}
    after: tuple[float, str] | None = None
    looked = 0
    for start in range(0, len(page), TREES_MAX):
        some = page[start : start + TREES_MAX]
        trees = await _read_trees(tuple(root.uid for root in some), peek=op.dry_run)
        emptied: list[tuple[CallRow, Changes]] = []
        for root in some:
            assert root.closed_at is not None, "an ended run has its closing time"
            after = (root.closed_at, root.uid)
            tree = trees.get(root.uid)
            if tree is None or tree.root.closed_at != root.closed_at or tree.root.gone_at is not None:
                kept["somebody is at it"] = kept.get("somebody is at it", 0) + 1
                continue
            forked = tree.is_forked and any(fork.closed_at is None for fork in await forks_on(root.uid))
            why = open_question(tree.root, tree.calls) or ("open forks" if forked else "")
            if why:
                kept[why] = kept.get(why, 0) + 1
            else:
                removing = await _removed(tree, now, op.dry_run)
                emptied += removing.calls
                runs, calls, freed = runs + 1, calls + len(tree.calls), freed + removing.freed
            looked += len(tree.calls)
            if looked >= CALLS_MAX:
                break
        if emptied and not op.dry_run:
            await ChangeMany(CALLS, tuple(emptied))
        if looked >= CALLS_MAX:
            return Swept(runs, calls, freed, tuple(sorted(kept.items())), after)
    return Swept(runs, calls, freed, tuple(sorted(kept.items())), after if len(page) == op.limit else None)


@dataclass(frozen=True, slots=True)
class WholeTree:
    """A tree with its calls, in their order; ``is_forked``: another run was forked from its root."""

    root: RunRow
    runs: tuple[RunRow, ...]
    calls: tuple[CallRow, ...]
    is_forked: bool


async def _read_trees(uids: tuple[str, ...], *, peek: bool) -> dict[str, WholeTree]:
    """Return these trees, without those that another transaction has locked; the others are locked now.

    ``peek``: return all of them and lock none.
    """
    roots = await find_roots(uids, peek=peek)
    mine = tuple(root.uid for root in roots)
    if not mine:
        return {}
    runs, calls = await runs_of_trees(mine), await calls_of_trees(mine)
    forked = {fork.forked_from for fork in await list_forks(*mine)}
    return {
        root.uid: WholeTree(
            root,
            tuple(run for run in runs if run.root == root.uid),
            tuple(call for call in calls if call.root == root.uid),
            root.uid in forked,
        )
        for root in roots
    }


def open_question(root: RunRow, calls: Iterable[CallRow]) -> str:
    """Return why an ended tree stays whole: what somebody may still have to look at must stay readable."""
    whys = {_question_of(root, call) for call in calls if call.kind != "read" and not call.shared}
    return next((why for why in KEPT if why in whys), "")


def _question_of(root: RunRow, call: CallRow) -> str:
    if call.state in ("in_doubt", "compensation_in_doubt"):
        return "in doubt"
    if call.state == "compensation_failed":
        return "compensation failed"
    if call.state == "residue" or (call.state == "succeeded" and (call.late or root.state == "abandoned")):
        return "left standing"
    if call.state == "compensated" and call.comp_blind:
        return "taken back in doubt"  # late evidence makes amends compensate it again, which needs its arguments
    return "in doubt" if call.state in (STANDING | UNSETTLED) - {"succeeded"} else ""


@dataclass(frozen=True, slots=True)
class Removing:
    """The calls of a tree whose payloads are still to be removed, and how many bytes all its payloads had."""

    calls: list[tuple[CallRow, Changes]]
    freed: int


async def _removed(tree: WholeTree, now: float, dry_run: bool) -> Removing:
    """Remove the payloads of the runs of a tree, with one event; return what its calls lose."""
    root, now = tree.root, await Now(tree.root.uid, now)
    runs = [
        (run, _new(run, {name: removed(getattr(run, name), now) for name in ("input", "output")})) for run in tree.runs
    ]
    calls = [(call, _new(call, emptied_call(call, now))) for call in tree.calls]
    freed = sum(_bytes(getattr(row, name)) for row, texts in (*runs, *calls) for name in texts)
    emptied: list[tuple[CallRow, Changes]] = [(call, texts) for call, texts in calls if texts]
    if dry_run:
        return Removing(emptied, freed)
    for run, texts in runs:
        await Change(RUNS, run, texts | {"gone_at": now})
    if any(call.cost for call in tree.calls):
        await drop_slices(root.uid)
    if not root.origin:  # else its events belong to another ledger: none is added, and the existing ones stay whole
        count = len(tree.calls)
        await write_event(root, "payloads removed", at=now, by="gc", epoch=root.epoch, calls=count, bytes=freed)
    return Removing(emptied, freed)


def _new(row: RunRow | CallRow, texts: dict[str, Any]) -> dict[str, Any]:
    """Return the texts that differ from those of the row."""
    return {name: text for name, text in texts.items() if text != getattr(row, name)}


def emptied_call(call: CallRow, now: float, *, erased: bool = False) -> dict[str, Any]:
    """Return the emptied columns of a call.

    That it was refused, by whom and why is a decision, not a payload: it stays.
    """
    texts: dict[str, Any] = {
        "args": removed(call.args, now, erased=erased),
        "error": call.error if call.state == "refused" else bare_error(call.error),
        "comp_error": bare_error(call.comp_error),
        "evidence": "",
        "learned": "",
        "loss": "",
        "locks": "",
    }
    if call.before is not None:
        texts["before"] = removed(call.before, now, erased=erased)
    if call.result is not None:
        texts["result"] = removed(call.result, now, erased=erased)
    elif call.loss:
        texts["result"] = removed("lost", now, erased=erased)  # it had one that could not be stored: still not None
    return texts


def bare_error(error: str) -> str:
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
    found = await Find(MARKS, KEY)
    if found is None and op.fingerprint:
        if await Add(MARKS, MarkRow(KEY, op.fingerprint, await Now("")), if_absent=True):
            return op.fingerprint
        found = await Find(MARKS, KEY)
    return "" if found is None else found.value


async def rewrite_texts(op: RewriteTexts) -> int:
    """Replace payloads (``RewriteTexts``). No state changes, so there is nothing that an event would record."""
    row = await (Find(CALLS, op.row) if op.is_call else Find(RUNS, op.row))
    assert row is not None, "calls and runs are never deleted"
    fresh = {name: text for name, text in op.now.items() if getattr(row, name) == op.was[name]}
    # Written before, and the answer was lost: they count as they did then.
    written = [name for name, text in op.now.items() if op.repeated and getattr(row, name) == text]
    if fresh and isinstance(row, CallRow):
        await Change(CALLS, row, fresh)
    elif fresh and isinstance(row, RunRow):
        await Change(RUNS, row, fresh)
    return len({*fresh, *written})
