"""Define what a store can do with rows inside one transaction: find one, list some, add, change and remove.

The decisions in the other modules of ``ledger/`` are flows over these operations, and over the few special ones in
``rows.py``. They are written once and run on dicts in memory, on SQL through a blocking connection, and on SQL through
an async one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from amends.encoding.dataclass import dataclass
from amends.ledger.flow import Op


class Dataclass(Protocol):
    """What every row is; None is not."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Row = TypeVar("Row", bound=Dataclass)
Changes: TypeAlias = Mapping[str, Any]
Term: TypeAlias = tuple[str, Literal["=", "<>", "<", "<=", ">", ">=", "in"], Any]
"""A condition: a column, a comparison, and a value. ``=`` and ``<>`` may have None; nothing else holds for a column that
is None. ``in`` has a tuple of values."""
Where: TypeAlias = tuple[Term, ...]
"""Conditions that must all hold."""

ADDED: Final = "no"
"""In an order: the order in which the rows were added."""


class Table(Generic[Row]):
    """The rows of one kind, and the columns of their key.

    ``by``: other columns by which rows are found; like those of the key, they never change.
    """

    __slots__ = ("by", "columns", "key", "key_of", "locks", "make", "name", "states", "values")

    def __init__(
        self,
        name: str,
        make: type[Row],
        *key: str,
        by: tuple[str, ...] = (),
        locks: Literal["", "row", "tree"] = "",
        states: tuple[str, ...] = (),
    ) -> None:
        self.name, self.make, self.key, self.by, self.locks, self.states = name, make, key, by, locks, states
        self.columns = tuple(field.name for field in fields(make))
        self.values: Callable[[Row], tuple[Any, ...]] = attrgetter(*self.columns)
        self.key_of: Callable[[Row], Any] = attrgetter(*key)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Find(Op["Row | None"]):
    """Return the row with this key: one value, or a tuple if the key has several columns.

    If the database has locks, the row stays locked until the transaction ends (``Table.locks`` is ``row``), or the root
    of its tree does (``tree``).
    """

    table: Table[Row]
    key: Any
    skip: bool = False
    """Return None instead of waiting if another transaction has locked the row: a claimer takes the next one."""
    peek: bool = False
    """Only read a row of another tree, without a lock: two trees that read each other must not wait for each other."""


@dataclass(frozen=True, slots=True)
class List(Op[list[Row]]):
    """Return the rows for which all terms hold, in this order."""

    table: Table[Row]
    where: Where
    order: tuple[str, ...]
    """Columns, or ``ADDED``; with a ``-`` before it, the highest or newest first."""
    limit: int | None = None
    after: tuple[Any, ...] | None = None
    """Only rows behind this place in the order: the values of its columns, or the key of the row for ``ADDED``."""
    index: str = ""
    """The name of the index that serves it; a store that finds a good one by itself ignores it."""
    lock: Literal["", "wait", "skip"] = ""
    """Lock the rows, as ``Find`` does; ``skip``: leave out those that another transaction has locked."""


@dataclass(frozen=True, slots=True)
class Add(Op[bool], Generic[Row]):
    """Add a row, whose key must be new.

    ``if_absent``: if the key is taken, another transaction was faster. Then return False, and change nothing.
    """

    table: Table[Row]
    row: Row
    if_absent: bool = False


@dataclass(frozen=True, slots=True)
class Change(Op[Row]):
    """Change columns of a row that is still in the state that was read, and return it.

    A change of ``state`` is guarded by the table of transitions.
    """

    table: Table[Row]
    row: Row
    changes: Changes


@dataclass(frozen=True, slots=True)
class ChangeMany(Op[None], Generic[Row]):
    """Change columns of many rows, none of which gets another state; else as ``Change``."""

    table: Table[Row]
    changes: tuple[tuple[Row, Changes], ...]


@dataclass(frozen=True, slots=True)
class Remove(Op[int], Generic[Row]):
    """Remove the rows for which all terms hold; return how many there were."""

    table: Table[Row]
    where: Where


def equal(**columns: Any) -> Where:
    """Return the terms that these columns have these values, or one of these; None or an empty tuple: any value."""
    return tuple(
        [
            (name, "in" if type(value) is tuple else "=", value)
            for name, value in columns.items()
            if value is not None and value != ()
        ]
    )
