"""Compare a request for approval with what was done before: a reviewer should look at what is new or unusual.

It reads a bounded number of rows, whatever the size of the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from statistics import median
from typing import Any, Final

from amends.encoding.secret import is_unreadable
from amends.engine.approvals import approval_of
from amends.engine.session import call_of
from amends.errors import ApprovalNotFound
from amends.host.host import Host, View
from amends.ledger.operations import ReadApproval, ReadRun, SearchApprovals, SearchCalls
from amends.ledger.rows import ApprovalRow, CallRow, RequestWithCall
from amends.model import Approval
from amends.report import Precedents, Usual

PAGE: Final = 200
CALLS_MAX: Final = 1_000
"""Earlier calls that are read, of any tool."""
REQUESTS_MAX: Final = 100
"""Earlier requests that are read, of any tool, if this agent was never approved this one."""
SAMPLES_MIN: Final = 5
"""With fewer earlier calls nobody can say what is usual."""
NUMBERS_MAX: Final = 50
"""Numbers among the arguments that are compared."""
DEPTH_MAX: Final = 4


async def precedents(host: Host, view: View, approval_id: str) -> Precedents:
    """Return what a request can be compared with: the last approved call of its tool, and what is usual for its numbers."""
    found = await ReadApproval(approval_id)
    if found is None or found.approval.tenant != (view.tenant or ""):
        raise ApprovalNotFound(approval_id)
    row, call = found.approval, found.call
    before = await _approved_before(row)
    edited = await _edited_from(row, call.root)
    rows = await _calls_before(call)
    like = [one for one in rows if one.tool == call.tool and one.attempt]
    is_first = (before is None or before.approval.use_key != row.use_key) and all(
        one.agent != row.agent for one in like
    )
    return Precedents(
        approval_id=row.id,
        before=_shown(host, before),
        edited=_shown(host, edited),
        first_use=is_first,
        seen=len(rows),
        is_all=len(rows) < CALLS_MAX,
        times=len(like),
        usual=tuple(_usual(host, call, like)),
    )


def _shown(host: Host, found: RequestWithCall | None) -> Approval | None:
    return (
        None if found is None else approval_of(found.approval, found.call, host.specs.get(found.call.tool), found.now)
    )


async def _edited_from(row: ApprovalRow, root: str) -> RequestWithCall | None:
    """Return the request that was rejected in the transaction that made this one, by whoever edited it."""
    tree = await ReadRun(row.tenant, uid=root) if row.editors else None
    for one in () if tree is None else tree.approvals:
        is_it = (one.state, one.tool, one.by_whom, one.decided_at) == (
            "rejected", row.tool, row.edited_by[-1], row.requested_at,
        )  # fmt: skip
        call = next((call for call in tree.calls if call.id == one.call), None) if is_it and tree is not None else None
        if call is not None and tree is not None:
            return RequestWithCall(one, call, tree.now)
    return None


async def _approved_before(row: ApprovalRow) -> RequestWithCall | None:
    """Return the last request for this tool that was used: of this agent, else of any other."""
    for use, most in ((row.use_key, 2), ("", REQUESTS_MAX)):
        for one in await SearchApprovals(row.tenant, ("used",), None, most, use):
            if one.approval.tool == row.tool and one.approval.id != row.id:
                return one
    return None


async def _calls_before(call: CallRow) -> list[CallRow]:
    rows: list[CallRow] = []
    while len(rows) < CALLS_MAX:
        page = await SearchCalls(call.tenant, (), rows[-1].id if rows else call.id, PAGE)
        rows += page
        if len(page) < PAGE:
            break
    return rows


def _usual(host: Host, call: CallRow, like: list[CallRow]) -> Iterator[Usual]:
    if len(like) < SAMPLES_MIN:
        return
    spec = host.specs.get(call.tool)
    samples: dict[str, list[Decimal]] = {}
    for row in like:
        for path, number in _numbers(call_of(row, spec).args):
            samples.setdefault(path, []).append(number)
    for path, number in _numbers(call_of(call, spec).args):
        known = samples.get(path, [])
        if len(known) >= SAMPLES_MIN:
            yield Usual(path, number, median(known), max(known), len(known))


def _numbers(args: Mapping[Any, Any]) -> list[tuple[str, Decimal]]:
    if is_unreadable(args):
        return []
    found: list[tuple[str, Decimal]] = []
    for name, value in args.items():
        for one in _numbers_in(value, str(name), 1):
            if len(found) == NUMBERS_MAX:
                return found
            found.append(one)
    return found


def _numbers_in(value: Any, path: str, depth: int) -> Iterator[tuple[str, Decimal]]:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        number = Decimal(str(value)) if isinstance(value, float) else Decimal(value)
        if number.is_finite():
            yield path, number
    elif isinstance(value, Mapping) and depth < DEPTH_MAX:
        for name, item in value.items():
            yield from _numbers_in(item, f"{path}.{name}", depth + 1)
    elif isinstance(value, list | tuple) and depth < DEPTH_MAX:
        for place, item in enumerate(value):
            yield from _numbers_in(item, f"{path}[{place}]", depth + 1)
