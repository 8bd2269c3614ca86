"""Tables: each row request by itself, in one transaction that is then rolled back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import Any, Final

from amends.ledger import dispatch, queries
from amends.ledger.flow import Flow
from amends.ledger.operations import StoreOp
from amends.ledger.rows import APPROVALS, LOCKS, MARKS, RUNS, WAITS, LockRow, MarkRow, Now, WaitRow
from amends.ledger.tables import Add, Change, Find, List, Remove, Row, Table, Term
from amends.testing.conformance.ledger import Ledger
from amends.testing.conformance.prove import Skipped, check

NAMES: Final = ("a", "b", "c", "d", "e")


class Undo(Exception):
    """Roll everything back."""


@dataclass
class Ask(StoreOp[None]):
    """Perform a flow over rows."""

    flow: Callable[[Ledger], Flow[None]]
    ledger: Ledger
    is_begun: bool = False


async def _asked(op: Ask) -> None:
    op.is_begun = True
    await op.flow(op.ledger)
    raise Undo


@contextmanager
def _known() -> Iterator[None]:
    dispatch.INTENTS[Ask] = _asked
    try:
        yield
    finally:
        del dispatch.INTENTS[Ask]


def check_rows(flow: Callable[[Ledger], Flow[None]]) -> Callable[[Ledger], None]:
    """Register a check that is a flow over rows (a decorator)."""

    @wraps(flow)
    def prove(ledger: Ledger) -> None:
        op = Ask(flow, ledger)
        before = ledger.everything(), ledger.approvals()
        with _known():
            try:
                ledger(op)
            except Undo:
                pass
            except Exception:
                if op.is_begun:
                    raise
                raise Skipped("this store performs operations without the shared flows") from None
        assert (ledger.everything(), ledger.approvals()) == before, "a transaction that failed left something behind"

    return check(prove)


def _made(table: Table[Row], **given: Any) -> Row:
    """Return a row with these values; the others are empty."""
    empty = {"str": "", "int": 0, "float": 0.0}
    usual = {one.name: empty[str(one.type)] for one in fields(table.make) if one.default is MISSING}
    return table.make(**usual | given)


async def _waits() -> None:
    for at, name in enumerate(NAMES):
        await Add(WAITS, _made(WAITS, root="r", tenant="t", name=name, since=float(at)))


@check_rows
async def a_row_is_found_by_its_whole_key(_ledger: Ledger) -> None:
    row = LockRow("t", "a", "r", "i", "c", "tool", 1.5)
    await Add(LOCKS, row)
    assert await Find(LOCKS, ("t", "a")) == row
    assert await Find(LOCKS, ("t", "b")) is None
    assert await Find(LOCKS, ("u", "a")) is None


@check_rows
async def every_comparison_holds_for_the_right_rows(_ledger: Ledger) -> None:
    await _waits()
    terms: dict[Term, str] = {
        ("since", "=", 2.0): "c", ("since", "<>", 2.0): "abde", ("since", "<", 2.0): "ab", ("since", "<=", 2.0): "abc",
        ("since", ">", 2.0): "de", ("since", ">=", 2.0): "cde", ("name", "in", ()): "", ("name", "in", ("b",)): "b",
        ("name", "in", ("e", "x", "a")): "ae", ("name", "in", NAMES): "abcde", ("tool", "=", ""): "abcde",
        ("tool", "<>", ""): "",
    }  # fmt: skip
    for term, names in terms.items():
        found = await List(WAITS, (("root", "=", "r"), term), ("name",))
        assert [row.name for row in found] == list(names), term
    both = await List(WAITS, (("root", "=", "r"), ("since", ">", 0.0), ("since", "<", 3.0)), ("name",))
    assert [row.name for row in both] == ["b", "c"]


@check_rows
async def pages_follow_each_other_in_the_order(_ledger: Ledger) -> None:
    await _waits()
    for order, names in ((("name",), "abcde"), (("-name",), "edcba"), (("-since", "-name"), "edcba")):
        seen: list[WaitRow] = []
        after = None
        while page := await List(WAITS, (("root", "=", "r"),), order, 2, after):
            seen += page
            after = tuple(getattr(page[-1], column.lstrip("-")) for column in order)
        assert [row.name for row in seen] == list(names), order


@check_rows
async def a_column_without_a_value_is_only_equal_to_none(_ledger: Ledger) -> None:
    for uid, wake_at in (("u", None), ("v", 5.0), ("w", 9.0)):
        await Add(RUNS, _made(RUNS, uid=uid, id=uid, tenant="t", generation=1, root=uid, state="open", wake_at=wake_at))

    async def uids(*terms: Term) -> list[str]:
        return [row.uid for row in await List(RUNS, (("tenant", "=", "t"), *terms), ("uid",))]

    assert await uids(("wake_at", "=", None)) == ["u"]
    assert await uids(("wake_at", "<>", None)) == ["v", "w"]
    assert await uids(("wake_at", "<=", 7.0)) == ["v"]
    assert [row.uid for row in await queries.list_due(9.0, "t", 9)] == ["v", "w"]
    assert [row.uid for row in await queries.list_due(9.0, "t", 1)] == ["v"]


@check_rows
async def a_page_begins_behind_a_row_that_no_longer_fits(_ledger: Ledger) -> None:
    asked = [_made(APPROVALS, id=f"p{n}", root="r", tenant="t", state="pending") for n in range(5)]
    for row in asked:
        await Add(APPROVALS, row)
    newest = await queries.page_approvals("t", ("pending",), None, 2)
    assert [row.id for row in newest] == ["p4", "p3"]
    await Change(APPROVALS, newest[-1], {"state": "approved"})
    rest = await queries.page_approvals("t", ("pending", "no state"), newest[-1].id, 9)
    assert [row.id for row in rest] == ["p2", "p1", "p0"]
    assert await queries.page_approvals("t", ("no state",), None, 9) == []


@check_rows
async def a_row_changes_only_from_the_state_that_was_read(_ledger: Ledger) -> None:
    row = _made(APPROVALS, id="p", root="r", tenant="t", state="pending")
    await Add(APPROVALS, row)
    used = await Change(APPROVALS, row, {"state": "approved", "reason": "fine", "used_seq": 7})
    assert (used.state, used.reason, used.used_seq, used.tenant) == ("approved", "fine", 7, "t")
    try:
        await Change(APPROVALS, row, {"state": "rejected"})
    except Exception:
        assert await Find(APPROVALS, "p") == used
    else:
        raise AssertionError("a row was changed from a state in which it no longer is")


@check_rows
async def the_first_row_of_a_key_stays(_ledger: Ledger) -> None:
    assert await Add(MARKS, MarkRow("m", "first", 1.0), if_absent=True)
    assert not await Add(MARKS, MarkRow("m", "second", 2.0), if_absent=True)
    assert await Find(MARKS, "m") == MarkRow("m", "first", 1.0)


@check_rows
async def rows_are_removed_and_counted(_ledger: Ledger) -> None:
    await _waits()
    assert await Remove(WAITS, (("root", "=", "r"), ("name", "in", ("a", "b", "x")))) == 2
    assert await Remove(WAITS, (("root", "=", "other"),)) == 0
    assert [row.name for row in await queries.waits_of("r")] == ["c", "d", "e"]
    assert await Remove(WAITS, (("root", "=", "r"),)) == 3


@check_rows
async def ledger_time_is_never_behind_its_mark(ledger: Ledger) -> None:
    now = ledger.clock()
    assert (await Now(""), await Now(None)) == (now, now)
    await queries.move_time(now + 5.0)
    assert (await Now(""), await Now(None)) == (now + 5.0, now)
    await queries.move_time(now + 3.0)
    assert await Now("") == now + 5.0
