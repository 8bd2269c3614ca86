"""Compare two runs, call by call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any, Final

from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED, UNREADABLE
from amends.engine.reports import info_of
from amends.engine.session import Session, call_of, error_text
from amends.host.host import Host, View, run_id_of
from amends.host.runs import found
from amends.ledger.budgets import read_charge
from amends.ledger.operations import ReadRun, Tree
from amends.ledger.rows import CallRow, lost_at
from amends.report import Comparison, Difference, Pair, differences

Two = tuple[CallRow | None, CallRow | None]
CELLS_MAX: Final = 4_000_000
"""The largest product of both numbers of calls that is aligned exactly; beyond it calls are paired in order."""


def _compare(session: Session, left: Tree, right: Tree) -> Comparison:
    """Compare two trees: their calls in pairs, their outputs and their costs."""
    places = {uid: row.id.removeprefix(tree.run.id) for tree in (left, right) for uid, row in _runs(tree)}
    mine, others = ([row for row in tree.calls if row.state != "dropped"] for tree in (left, right))
    pairs = tuple(_pair(session, one, other) for one, other in _aligned(mine, others, places))
    costs = _two_costs(_sum(mine), _sum(others))
    outputs = (_value(left.run.output or None), _value(right.run.output or None))
    closed = left.run.closed_at is not None and right.run.closed_at is not None
    output = differences(*outputs, "output") if closed else ()
    return Comparison(info_of(left.run), info_of(right.run), pairs, output, costs)


def _runs(tree: Tree) -> Iterator[tuple[str, Any]]:
    for row in tree.runs:
        yield row.uid, row


def _aligned(left: list[CallRow], right: list[CallRow], places: dict[str, str]) -> Iterator[Two]:
    """Return the calls in pairs, in order: first by the same request, then by the same tool in the same run."""

    def asked(row: CallRow) -> tuple[str, ...]:
        return (places.get(row.run, ""), row.tool, row.ident, row.again)

    mine, others = [*map(asked, left)], [*map(asked, right)]
    same = 0
    while same < min(len(mine), len(others)) and mine[same] == others[same]:
        yield left[same], right[same]
        same += 1
    rest, other_rest = left[same:], right[same:]
    if len(rest) * len(other_rest) > CELLS_MAX:
        yield from _in_turn(rest, other_rest, places)
        return
    matcher = SequenceMatcher(None, mine[same:], others[same:], autojunk=False)
    for how, i, j, k, m in matcher.get_opcodes():
        if how == "equal":
            yield from zip(rest[i:j], other_rest[k:m], strict=True)
        else:
            yield from _in_turn(rest[i:j], other_rest[k:m], places)


def _in_turn(left: Sequence[CallRow], right: Sequence[CallRow], places: dict[str, str]) -> Iterator[Two]:
    """Pair different requests: each with the next one of its tool, if there is one."""
    todo = list(right)
    for row in left:
        meant = (places.get(row.run, ""), row.tool)
        found = next((n for n, one in enumerate(todo) if (places.get(one.run, ""), one.tool) == meant), None)
        if found is None:
            yield row, None
            continue
        yield from ((None, one) for one in todo[:found])
        yield row, todo[found]
        del todo[: found + 1]
    yield from ((None, one) for one in todo)


def _pair(session: Session, left: CallRow | None, right: CallRow | None) -> Pair:
    one, other = (None if row is None else call_of(row, session.spec(row.tool)) for row in (left, right))
    if left is None or right is None:
        return Pair("right" if left is None else "left", one, other)
    if (left.shared or left.id) == (right.shared or right.id):
        return Pair("shared", one, other)
    args = differences(_value(left.args), _value(right.args))
    if left.digest == right.digest and left.version == right.version:
        args = ()  # equal by their digest, even if gc has removed them on one side
    result = _outcome(left, right)
    costs = _two_costs(_sum([left]), _sum([right]), same=False)
    return Pair("changed" if args or result or costs else "same", one, other, args, result, costs)


def _outcome(left: CallRow, right: CallRow) -> tuple[Difference, ...]:
    found = list(differences(_value(left.result), _value(right.result), "result"))
    if left.state != right.state:
        found.insert(0, Difference("state", left.state, right.state))
    if error_text(left.error) != error_text(right.error):
        found.append(Difference("error", error_text(left.error), error_text(right.error)))
    return tuple(found)


def _value(text: str | None) -> Any:
    if text is None:
        return None
    if text.startswith(SEALED):
        return UNREADABLE
    return "(removed)" if lost_at(text) is not None else decode(text)


def _sum(rows: Sequence[CallRow]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for row in rows:
        for unit, text in read_charge(row.cost).totals().items() if row.cost else ():
            total[unit] = total.get(unit, Decimal(0)) + Decimal(text)
    return total


def _two_costs(
    left: dict[str, Decimal], right: dict[str, Decimal], *, same: bool = True
) -> dict[str, tuple[Decimal, Decimal]]:
    """Return the costs of both sides by unit; without ``same``, only those that differ."""
    none = Decimal(0)
    both = {unit: (left.get(unit, none), right.get(unit, none)) for unit in dict.fromkeys([*left, *right])}
    return {unit: two for unit, two in both.items() if same or two[0] != two[1]}


async def compare(host: Host, view: View, left: str, right: str) -> Comparison:
    """Compare two runs call by call: the first that differs, other arguments, other results, other costs."""
    one = found(await ReadRun(view.tenant or "", run_id_of(left)), left)
    other = found(await ReadRun(view.tenant or "", run_id_of(right)), right)
    return _compare(host.reader(), one, other)
