"""Write what a person orders (halts, permits, tokens, work on the ledger), and read it back from its events.

A directive belongs to no run: its events are a chain of its own, which checkpoints include like any other. What the row
says must be what its events say (``directive_after``): an audit compares them.
"""

from __future__ import annotations

import json
from typing import Any, Final

from amends.encoding.chain import storable
from amends.encoding.dataclass import changed
from amends.ledger.events import written_facts
from amends.ledger.rows import DIRECTIVES, AddEvent, DirectiveRow, EventRow
from amends.ledger.tables import Add, Change

MADE: Final = {"halted": "halt", "permitted": "permit", "token made": "token", "work ordered": "work"}
"""The first event of a directive, and what it makes."""
ENDS: Final = {"halt": "unhalted", "permit": "permit revoked", "token": "token revoked"}
"""The event by which a person ends each kind. Work has none: its order is over when it is given."""
EXPIRED: Final = "token expired"
"""The event that ends a token whose time is over, as soon as somebody uses it: a clock that is set back revives none."""
ENDED: Final = (*ENDS.values(), EXPIRED)
USED: Final = "permit used"
SAID: Final = ("wide", "agent", "tool", "words", "why", "until_at", "uses")
"""What the first event says of the row, besides its own columns."""


def is_directive(event: EventRow) -> bool:
    """Return whether this is an event of a directive."""
    return event.what in MADE or event.what in ENDED or event.what == USED


def directive_after(row: DirectiveRow | None, event: EventRow) -> DirectiveRow | None:
    """Return the directive as this event leaves it; None: the event makes no sense there."""
    facts: dict[str, Any] = json.loads(event.facts)
    if event.what in MADE:
        if row is not None or event.n != 1:
            return None
        said: dict[str, Any] = {
            "wide": 0,
            "agent": "",
            "tool": "",
            "words": "",
            "why": "",
            "until_at": None,
            "uses": 0,
        } | facts
        kind = MADE[event.what]
        return DirectiveRow(
            id=event.root, kind=kind, tenant=event.tenant, by_whom=storable(event.by_whom), made_at=event.at,
            closed_at=event.at if kind == "work" else None, seq=event.n, **{name: said[name] for name in SAID},
        )  # fmt: skip
    if row is None or row.closed_at is not None:
        return None
    if event.what in ENDED:
        return changed(row, {"closed_at": event.at, "seq": event.n})
    left = row.uses - 1
    return None if left < 0 else changed(row, {"uses": left, "closed_at": None if left else event.at, "seq": event.n})


async def make_directive(row: DirectiveRow) -> DirectiveRow:
    """Add a directive with its first event."""
    seq = await _add_first_event(row)
    row = changed(row, {"seq": seq})
    await Add(DIRECTIVES, row)
    return row


async def make_directive_once(row: DirectiveRow) -> DirectiveRow | None:
    """Add a directive with its first event; None if another transaction has added one with this id."""
    row = changed(row, {"seq": 1})
    if not await Add(DIRECTIVES, row, if_absent=True):
        return None
    seq = await _add_first_event(row)
    assert seq == 1, "a directive begins its chain"
    return row


async def _add_first_event(row: DirectiveRow) -> int:
    what = next(what for what, kind in MADE.items() if kind == row.kind)
    said = {name: getattr(row, name) for name in SAID if getattr(row, name) not in (None, "", 0)}
    return await AddEvent(**_place(row), at=row.made_at, what=what, by_whom=row.by_whom, facts=written_facts(said))


async def end_directive(row: DirectiveRow, *, at: float, by: str, what: str = "", **facts: Any) -> DirectiveRow:
    """End a directive with its last event; ``what``: another one than that of its kind."""
    what = what or ENDS[row.kind]
    seq = await AddEvent(**_place(row), at=at, what=what, by_whom=storable(by), facts=written_facts(facts))
    return await Change(DIRECTIVES, row, {"closed_at": at, "seq": seq})


async def use_permit(row: DirectiveRow, *, at: float, by: str, **facts: Any) -> DirectiveRow:
    """Use a permit once; the last use ends it."""
    left = row.uses - 1
    assert left >= 0, "a permit that stands has a use left"
    seq = await AddEvent(**_place(row), at=at, what=USED, by_whom=storable(by), facts=written_facts(facts))
    return await Change(DIRECTIVES, row, {"uses": left, "closed_at": None if left else at, "seq": seq})


def _place(row: DirectiveRow) -> dict[str, Any]:
    places = {"root": row.id, "run": row.id, "run_id": row.id, "tenant": row.tenant}
    return places | {"call": "", "frm": "", "to_state": "", "epoch": 0}
