"""The row operations on events as SQL, for every database and both colours: each is written at its chain's end.

A server links the event itself: its statement reads the end of the chain after the tree was locked, and no further
round trip is needed. Where there is no server, what is read and what is written are both here.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, Protocol

from amends import eventrows
from amends.chain import GENESIS, link, micros, moment
from amends.eventrows import EVENT_COLUMNS, EventRow
from amends.flow import Flow
from amends.store.dialect import Dialect
from amends.store.statement import Execute

EVENT_VALUES: Final = attrgetter(*EVENT_COLUMNS[1:-2])


class EventStatements:
    """The texts of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._pages: dict[tuple[bool, bool], str] = {}
        mark, columns = dialect.mark, EVENT_COLUMNS[1:]
        into = f"insert into events ({', '.join(map(dialect.name_of, columns))})"
        self.tail = f"select n, hash from events where root = {mark} order by n desc limit 1"
        self.links_itself = bool(dialect.linked)
        if self.links_itself:
            types = {"at": dialect.as_float, "epoch": dialect.as_int}
            values = ", ".join(types.get(name, "{}").format(mark) for name in columns[:-2])
            n = "coalesce(t.n, 0) + 1"
            hashed = dialect.linked.format(
                f"coalesce(t.hash, '{GENESIS}')", n, dialect.as_int.format(mark), dialect.as_text.format(mark)
            )
            said = f" select {values}, {n}, {hashed} from (select 1 as one) o left join ({self.tail}) t on 1 = 1"
            self.insert = f"{into}{said}{dialect.new_id}"
        else:
            self.insert = f"{into} values ({', '.join([mark] * len(columns))}){dialect.new_id}"

    def page(self, of_root: bool, of_tenant: bool) -> str:
        """Events above a place, of one tree or of all. In a tree the place is looked up: its index has numbers."""
        text = self._pages.get((of_root, of_tenant))
        if text is None:
            terms = ["seq > ?"]
            if of_root:
                terms += ["root = ?", "n > coalesce((select p.n from events p where p.seq = ? and p.root = ?), 0)"]
            if of_tenant:
                terms.append("tenant = ?")
            columns = ", ".join(map(self._dialect.name_of, EVENT_COLUMNS))
            text = (
                f"select {columns} from events where {' and '.join(terms)} order by {'n' if of_root else 'seq'} limit ?"
            )
            text = self._pages[of_root, of_tenant] = text.replace("?", self._dialect.mark)
        return text


class _Statements(Protocol):
    @property
    def events(self) -> EventStatements: ...


class _Desk(Protocol):
    @property
    def statements(self) -> _Statements: ...


async def _add_event(desk: _Desk, op: eventrows.AddEvent) -> int:
    assert op.at == moment(op.at), "an event's time is whole microseconds"
    statements = desk.statements.events
    if statements.links_itself:
        told, _, seq = await Execute(statements.insert, (*EVENT_VALUES(op), micros(op.at), op.body, op.root))
    else:
        found, _, _ = await Execute(statements.tail, (op.root,))
        last, prev = found[0] if found else (0, GENESIS)
        chained = (last + 1, link(prev, last + 1, op.at, op.body))
        told, _, seq = await Execute(statements.insert, (*EVENT_VALUES(op), *chained))
    return told[0][0] if told else seq


async def _page_events(desk: _Desk, op: eventrows.PageEvents) -> list[EventRow]:
    params: tuple[Any, ...] = (op.after,)
    if op.root is not None:
        params = (op.after, op.root, op.after, op.root)
    if op.tenant is not None:
        params = (*params, op.tenant)
    sql = desk.statements.events.page(op.root is not None, op.tenant is not None)
    found, _, _ = await Execute(sql, (*params, op.limit))
    return [EventRow(*row) for row in found]


EVENT_ROWS: Final[dict[type[Any], Callable[[Any, Any], Flow[Any]]]] = {
    eventrows.AddEvent: _add_event,
    eventrows.PageEvents: _page_events,
}
