"""Reserving: what calls will cost is taken from every budget it comes out of, in the transaction that starts them.

A shared budget has slices. A run takes from its own, and only where that has not enough are all of them locked, in
the order of their names, and what is left is dealt out anew. So the sum never passes the cap, and runs seldom meet.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from amends.budget import amount_in, text_of
from amends.budgetrows import AddSlice, FindSlice, Overrun, SliceRow, UpdateSlice, Want
from amends.plain import digest
from amends.rows import RunRow
from amends.store.charging import free, slice_names

_PERIODS: Final = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
_GRAVEST: Final = ("rollback", "refuse", "hold")


@dataclass(slots=True)
class _Counter:
    """One budget, whose it is, in this period; what is wanted of it, and its slices as they were found."""

    want: Want
    period: str
    names: list[str]
    home: str
    need: int = 0
    bound: int = 0
    """How much of it must fit under the cap: a person may have let a call pass."""
    rows: dict[str, SliceRow] = field(default_factory=dict)

    @property
    def reserved(self) -> int:
        return sum(amount_in(row.reserved) for row in self.rows.values())

    @property
    def spent(self) -> int:
        return sum(amount_in(row.spent) for row in self.rows.values())

    @property
    def is_narrow(self) -> bool:
        """Whether only the run's own slice is looked at."""
        return len(self.rows) < len(self.names)


@dataclass(frozen=True, slots=True)
class Taken:
    """What was reserved, (slice, unit, amount) for every want; or why nothing was."""

    parts: tuple[tuple[str, str, int], ...] = ()
    over: Overrun | None = None
    again: bool = False
    """The run's own slice has not enough: ask again, wide."""


async def reserve(wants: Sequence[Want], root: RunRow, *, now: float, wide: bool, forced: bool = False) -> Taken:
    """All of it is reserved, or nothing and the answer says which budget has not enough."""
    homes: list[str] = []
    counters: dict[str, _Counter] = {}
    overs: list[Overrun] = []
    for want in wants:
        is_bound = not want.passes and not forced
        if want.per == "call":
            overs += [Overrun(want, 0, 0, want.amount)] if is_bound and want.amount > want.cap else []
            homes.append("")
            continue
        counter = _counter(want, root, now)
        counter = counters.setdefault(counter.home, counter)
        if want.cap < counter.want.cap:
            counter.want = want  # what was staged under another cap: the lower one is both
        counter.need += want.amount
        counter.bound += want.amount if is_bound else 0
        homes.append(counter.home)
    looked_at = {name: one for one in counters.values() for name in (one.names if wide else [one.home])}
    for name in sorted(looked_at):  # in one order: others take them as well
        counter = looked_at[name]
        row = await _found(name, counter, root, wide=wide)
        if row is None:
            return Taken(again=True)
        counter.rows[name] = row
    lacking = [one for one in counters.values() if _lacks(one)]
    if any(one.is_narrow for one in lacking):
        return Taken(again=True)
    overs += [Overrun(one.want, one.spent, one.reserved, one.bound, one.period) for one in lacking]
    if overs:
        gravest, *others = sorted(overs, key=lambda over: _GRAVEST.index(over.want.then))
        return Taken(over=replace(gravest, also=tuple(others)))
    for counter in counters.values():
        await _take(counter)
    return Taken(tuple((name, want.unit, want.amount) for name, want in zip(homes, wants, strict=True) if name))


def period_of(every: str, now: float) -> str:
    """The hour, day or month of this moment; empty: it has no period."""
    return time.strftime(_PERIODS[every], time.gmtime(now)) if every else ""


def _counter(want: Want, root: RunRow, now: float) -> _Counter:
    tenant = "" if want.per == "ledger" else root.tenant
    period = period_of(want.every, now)
    # Not the cap: who raises it goes on from what was spent under the old one.
    ident = digest("budget", tenant, want.unit, want.per, want.every, want.tool, want.then, want.who, period)
    names = [ident] if want.per == "run" else slice_names(f"{ident}/")
    return _Counter(want, period, names, names[zlib.crc32(root.uid.encode()) % len(names)])


async def _found(name: str, counter: _Counter, root: RunRow, *, wide: bool) -> SliceRow | None:
    """The slice, nobody else's from now on; made where there is none, by whoever looks at all of them."""
    row = await FindSlice(name)
    if row is not None or (not wide and len(counter.names) > 1):
        return row
    first = name == counter.names[0]
    want = counter.want
    who = root.id if want.per == "run" else want.who
    words = {"per": want.per, "every": want.every, "tool": want.tool, "then": want.then, "who": who}
    new = SliceRow(
        name=name,
        tenant="" if want.per == "ledger" else root.tenant,
        root=root.uid if want.per == "run" else "",
        words=json.dumps(words, ensure_ascii=False),
        unit=want.unit,
        cap=text_of(want.cap),
        allot=text_of(want.cap if first else 0),
        reserved="0",
        spent="0",
        period=counter.period,
    )
    return new if await AddSlice(new) else await FindSlice(name)


def _lacks(counter: _Counter) -> bool:
    """Whether what was looked at has less than is needed; a slice cut from another cap says nothing."""
    if counter.is_narrow:
        home = counter.rows[counter.home]
        return free(home) < counter.need or amount_in(home.cap) != counter.want.cap
    return counter.bound > 0 and counter.spent + counter.reserved + counter.bound > counter.want.cap


async def _take(counter: _Counter) -> None:
    if not counter.need:
        return
    if not counter.is_narrow:
        await _deal(counter)
    home = counter.rows[counter.home]
    reserved = amount_in(home.reserved) + counter.need
    counter.rows[counter.home] = await UpdateSlice(home, {"reserved": text_of(reserved)})


async def _deal(counter: _Counter) -> None:
    """The cap is dealt out anew: to each slice what it has used and an equal part of the rest, in whole requests.

    Is it passed already, every slice lacks all that is lacking: what one of them gives back is nobody's to take.
    """
    cap, need = counter.want.cap, counter.need
    left = cap - counter.spent - counter.reserved - need
    part = left // need // len(counter.rows) * need if left > 0 else left
    rest = left - part * (len(counter.rows) - 1) if left > 0 else left
    for name, row in counter.rows.items():
        used = amount_in(row.reserved) + amount_in(row.spent)
        allot = used + (rest + need if name == counter.home else part)
        changes = {"cap": text_of(cap), "allot": text_of(allot)}
        if any(getattr(row, column) != text for column, text in changes.items()):
            counter.rows[name] = await UpdateSlice(row, changes)
