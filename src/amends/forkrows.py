"""What a transaction can ask about forks, besides ``rows``."""

from __future__ import annotations

import json
from typing import Final

from amends.flow import Op
from amends.record import dataclass
from amends.rows import RunRow

FORKS_MAX: Final = 10_000
"""Forks of one run, and forks of those, that are looked at."""


@dataclass(frozen=True, slots=True)
class ListForks(Op[list[RunRow]]):
    """The runs that were forked from this root, oldest first; only looked at: each is a tree of its own."""

    root: str
    limit: int = FORKS_MAX


@dataclass(frozen=True, slots=True)
class Point:
    """Where a fork left the run that it was forked from."""

    run_id: str
    call: str
    """The last call that it shares."""
    kin: str
    """The root by which the keys of the whole family are named: the one that is no fork itself."""
    phases: tuple[tuple[str, str, str], ...] = ()
    """Whose program this was, and until when: a root, the last call that is shared of it, and that call in the fork."""


def point_of(row: RunRow) -> Point | None:
    """Where this run was forked; None: it is no fork."""
    if not row.forked_at or row.uid != row.root:
        return None
    run_id, call, kin, phases = json.loads(row.forked_at)
    return Point(run_id, call, kin, tuple((root, last, mine) for root, last, mine in phases))


def written_point(point: Point) -> str:
    """The same as the ledger keeps it."""
    return json.dumps([point.run_id, point.call, point.kin, point.phases], ensure_ascii=False)


def twins_of(row: RunRow) -> tuple[str, ...]:
    """What this run was in each of the last phases of a fork, the oldest first."""
    point = point_of(row)
    if point is not None:
        return tuple(root for root, _, _ in point.phases)
    return tuple(json.loads(row.forked_at)) if row.forked_at else ()


def forked_key(key: str, fork: str) -> str:
    """The key in this fork of a request that has ``key`` in its kin, or in another fork of that."""
    head, colon, rest = key.partition(":")
    return f"{head.partition('@')[0]}@{fork}{colon}{rest}"
