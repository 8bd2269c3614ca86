"""The row operations on budgets in dicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from amends.budgetrows import AddSlice, DropSlices, FindSlice, PageSlices, SliceRow, UpdateSlice
from amends.record import changed


class _Memory(Protocol):
    slices: dict[str, SliceRow]
    _undo: list[Callable[[], object]]


def _find(store: _Memory, op: FindSlice) -> SliceRow | None:
    return store.slices.get(op.name)


def _add(store: _Memory, op: AddSlice) -> bool:
    if op.row.name in store.slices:
        return False
    store.slices[op.row.name] = op.row
    store._undo.append(partial(store.slices.pop, op.row.name))
    return True


def _update(store: _Memory, op: UpdateSlice) -> SliceRow:
    old = store.slices[op.row.name]
    assert old == op.row, "a slice is changed from what was read"
    new = store.slices[old.name] = changed(old, op.changes)
    store._undo.append(partial(store.slices.__setitem__, old.name, old))
    return new


def _drop(store: _Memory, op: DropSlices) -> int:
    names = [name for name, row in store.slices.items() if row.root == op.root]
    for name in names:
        store._undo.append(partial(store.slices.__setitem__, name, store.slices.pop(name)))
    return len(names)


def _page(store: _Memory, op: PageSlices) -> list[SliceRow]:
    found = [row for row in store.slices.values() if row.tenant == op.tenant and row.name > op.after]
    return sorted(found, key=lambda row: row.name)[: op.limit]


BUDGET_ROWS: Final[dict[type[Any], Callable[[Any, Any], Any]]] = {
    FindSlice: _find,
    AddSlice: _add,
    UpdateSlice: _update,
    DropSlices: _drop,
    PageSlices: _page,
}
