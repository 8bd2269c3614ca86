"""The row operations on checkpoints in dicts."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any, Final, Protocol

from amends.checkpointrows import (
    AddCheckpoint,
    CheckpointRow,
    HashesAt,
    Head,
    NewestCheckpoint,
    PageCheckpoints,
    PageHeads,
)
from amends.rows import EventRow


class _Memory(Protocol):
    events: list[EventRow]
    checkpoints: list[CheckpointRow]
    _undo: list[Callable[[], object]]


def _newest(store: _Memory, _op: NewestCheckpoint) -> CheckpointRow | None:
    return store.checkpoints[-1] if store.checkpoints else None


def _page(store: _Memory, op: PageCheckpoints) -> list[CheckpointRow]:
    return [row for row in store.checkpoints if row.n > op.after][: op.limit]


def _add(store: _Memory, op: AddCheckpoint) -> bool:
    if any(row.n == op.row.n for row in store.checkpoints):
        return False
    store.checkpoints.append(op.row)
    store._undo.append(store.checkpoints.pop)
    return True


def _heads(store: _Memory, op: PageHeads) -> list[Head]:
    start = bisect.bisect_right(store.events, op.after, key=lambda event: event.seq)
    found = store.events[start : start + op.limit]
    return [Head(one.seq, one.root, one.n, one.hash) for one in found if op.upto is None or one.seq <= op.upto]


def _hashes(store: _Memory, op: HashesAt) -> list[tuple[str, int, str]]:
    wanted = frozenset(op.places)
    return [(one.root, one.n, one.hash) for one in store.events if (one.root, one.n) in wanted]


CHECKPOINT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    NewestCheckpoint: _newest,
    PageCheckpoints: _page,
    AddCheckpoint: _add,
    PageHeads: _heads,
    HashesAt: _hashes,
}
