"""The inbox: everything in the ledger that waits for a person, in one list."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any, Final, get_args, get_type_hints

from amends.engine.approvals import approval_of
from amends.engine.doubts import probe_failure
from amends.engine.session import call_of, moment
from amends.errors import UsageError, listed_in, more_in, some
from amends.host.filters import INBOX_FIELDS, Filter, parse_filter
from amends.host.host import Host, View
from amends.host.listing import PAGE
from amends.ledger.operations import (
    ListRuns,
    ReadApproval,
    ReadEvents,
    SearchApprovals,
    SearchCalls,
    StoreOp,
    WaitingRuns,
)
from amends.ledger.rows import OPEN, CallRow, RequestWithCall, RunRow
from amends.ledger.world import ReadClocks
from amends.people.doubts import DOUBTFUL, doubt_of
from amends.report import InboxItem

WHATS: Final[tuple[str, ...]] = get_args(get_type_hints(InboxItem)["what"])
UNFINISHED: Final = ("open", "pivoted", "rolling_back")
INBOX_MAX: Final = 10_000
"""Items of one kind that are read; what is beyond it is listed once others were decided."""
EVENT_PAGES_MAX: Final = 50
"""Pages of events that are searched for the moment when a run was blocked."""


async def inbox(host: Host, view: View, filter: str = "", *, newest: int | None = None) -> list[InboxItem]:
    """Return everything that waits for a person: soonest to expire first, then oldest.

    ``newest``: look for blocked and suspended runs among so many of the newest runs only, so that a large ledger costs no
    more than a small one; None: among all.
    """
    wanted = _parsed(filter)
    tenant = view.tenant or ""
    requests = await _requests(tenant)
    if newest is not None and newest < 1:
        raise UsageError(f"newest={newest} is not a number from 1")
    near = None if newest is None else [run for run in await WaitingRuns(tenant, newest) if not run.origin]
    blocked = await _runs(tenant, ("blocked",)) if near is None else [run for run in near if run.state == "blocked"]
    living = {one.approval.id for one in requests if one.approval.lives(one.now)}
    items = [_asked(host, one) for one in requests if one.approval.state_at(one.now) == "pending"]
    held, doubtful = await _calls(tenant, ("held", "ready")), await _calls(tenant, DOUBTFUL)
    items += await _held(host, held, living)
    items += _doubts(host, doubtful, {run.uid for run in blocked})
    named = {item.id for item in items} | {item.call.id for item in items if item.call is not None}
    for run in blocked:
        causes = [cause for cause in json.loads(run.causes) if not any(name in cause for name in named)]
        # The text that counts the other causes says nothing by itself: the doubts among them are listed as well.
        if any(not more_in(cause) for cause in causes) or not json.loads(run.causes):
            items.append(await _blocked(run, causes))
    # A run with another reason to wait is not listed as suspended, too; a staged call is no such reason.
    waiting = {row.root for row in (*held, *doubtful) if row.reason != "order"} | {
        one.approval.root for one in requests
    }
    items += [
        _suspended(run)
        for run in (await _runs(tenant, UNFINISHED) if near is None else near)
        if run.state in UNFINISHED
        and run.suspended
        and not run.owner
        and run.uid == run.root
        and run.uid not in waiting
    ]
    now = (await ReadClocks()).wall
    return sorted((item for item in items if _takes(wanted, item, now)), key=_order)


def _order(item: InboxItem) -> tuple[bool, datetime, datetime, str]:
    return (item.expires_at is None, item.expires_at or item.since, item.since, item.id)


# ---- What waits


def _asked(host: Host, found: RequestWithCall) -> InboxItem:
    asked = approval_of(found.approval, found.call, host.specs.get(found.call.tool), found.now)
    asked = host.with_asked(asked, found.now)
    return InboxItem(
        "approval",
        asked.id,
        found.approval.run_id,
        asked.requested_at,
        asked.expires_at,
        why=asked.rule,
        verbs=("approve", "reject"),
        roles=asked.roles,
        asked=asked.asked,
        call=asked.call,
        tenant=asked.call.tenant,
        agent=asked.call.agent,
        principal=asked.call.principal,
    )


async def _held(host: Host, rows: list[CallRow], living: Collection[str]) -> list[InboxItem]:
    """Return the calls that a person decides without a request, and those whose request nobody decided in time."""
    items: list[InboxItem] = []
    for row in rows:
        if row.attempt or row.approval in living:
            continue
        if row.approval:
            found = await ReadApproval(row.approval)
            if found is not None and found.approval.state_at(found.now) == "expired":
                since, verbs = moment(found.approval.expires_at), ("ask_again", "withdraw")
                why = "nobody decided in time"
                items.append(_about(host, row, "expired", verbs, since=since, why=why, id=row.approval))
        elif row.state == "held" and not row.is_staged:
            why = row.why or f"held: {row.reason}"
            items.append(_about(host, row, "decision", ("decide",), since=moment(row.created_at), why=why))
    return items


def _doubts(host: Host, rows: list[CallRow], stuck: Collection[str]) -> list[InboxItem]:
    """Return the doubts that amends cannot settle alone: of a blocked run, or of a tool that nobody can ask."""
    items: list[InboxItem] = []
    for row in rows:
        spec = host.specs.get(row.tool)
        doubt = doubt_of(row, spec)
        is_retried = spec is not None and bool(spec.idempotent) and doubt.about == "call"
        is_stuck = row.root in stuck or row.run in stuck
        if is_stuck or not (row.probe_at is not None or doubt.probe is not None or is_retried):
            since = doubt.lost_at or doubt.sent_at or moment(row.created_at)
            why = "its compensation may have happened" if doubt.about == "compensation" else "it may have happened"
            why += f", and its probe keeps failing ({failing})" if (failing := probe_failure(row)) else ""
            items.append(_about(host, row, "doubt", ("probe", "resolve"), since=since, why=why))
    return items


async def _blocked(run: RunRow, causes: list[str]) -> InboxItem:
    whole = "; ".join(causes)
    verbs = tuple(verb for verb in ("finish", "retry", "rollback", "accept", "abandon") if f"rt.{verb}(" in whole)
    why = "; ".join(some(causes, where=listed_in(run.id)))
    return _run_item(run, "blocked", await _blocked_at(run), why=why, verbs=verbs or ("abandon",))


async def _blocked_at(run: RunRow) -> float:
    """Return when the run was blocked last; when it was opened if its events do not tell."""
    at, after = run.created_at, 0
    for _ in range(EVENT_PAGES_MAX):
        page = await ReadEvents(None, run.root, after, PAGE)
        at = max([at, *(event.at for event in page if event.to_state == "blocked" and event.run == run.uid)])
        if len(page) < PAGE:
            break
        after = page[-1].n
    return at


def _suspended(run: RunRow) -> InboxItem:
    why = "its program suspended it, and can open it again"
    return _run_item(run, "suspended", run.created_at, why=why, verbs=("open", "rollback"), until=run.wake_at)


def _run_item(
    run: RunRow, what: Any, since: float, *, why: str, verbs: tuple[str, ...], until: float | None = None
) -> InboxItem:
    waits = moment(since)
    assert waits is not None, "it waits since some time"
    return InboxItem(
        what,
        run.id,
        run.id,
        waits,
        moment(until),
        why=why,
        verbs=verbs,
        tenant=run.tenant or None,
        agent=run.agent or None,
        principal=run.principal or None,
    )


def _about(
    host: Host, row: CallRow, what: Any, verbs: tuple[str, ...], *, since: datetime | None, why: str, id: str = ""
) -> InboxItem:
    assert since is not None, "it waits since some time"
    return InboxItem(
        what,
        id or row.id,
        row.run_id,
        since,
        why=why,
        verbs=verbs,
        call=call_of(row, host.specs.get(row.tool)),
        tenant=row.tenant or None,
        agent=row.agent or None,
        principal=row.principal or None,
    )


# ---- Reading and filtering


async def _requests(tenant: str) -> list[RequestWithCall]:
    found = await _all(lambda last: SearchApprovals(tenant, OPEN, None if last is None else last.approval.id, PAGE))
    return [one for one in found if not one.call.is_loaded]


async def _calls(tenant: str, states: tuple[str, ...]) -> list[CallRow]:
    found = await _all(lambda last: SearchCalls(tenant, states, None if last is None else last.id, PAGE))
    return [one for one in found if not one.is_loaded]


async def _runs(tenant: str, states: tuple[str, ...]) -> list[RunRow]:
    def after(last: RunRow | None) -> StoreOp[list[RunRow]]:
        return ListRuns(tenant, states, None if last is None else (last.created_at, last.uid), PAGE)

    return [one for one in await _all(after) if not one.origin]


async def _all(page: Callable[[Any], StoreOp[list[Any]]]) -> list[Any]:
    """Read page after page; ``page`` gets the last row that was read, None at first."""
    found: list[Any] = []
    for _ in range(INBOX_MAX // PAGE):
        rows = await page(found[-1] if found else None)
        found += rows
        if len(rows) < PAGE:
            break
    return found


def _parsed(filter: str) -> Filter:
    wanted = parse_filter(filter, INBOX_FIELDS)
    said = [value for one in wanted.words.get("what", ()) for value in one.values]
    for value in said:
        if "*" not in value and value not in WHATS:
            raise UsageError(f"nothing in the inbox is {value!r}", hint=f"what is one of {', '.join(WHATS)}")
    return wanted


def _takes(wanted: Filter, item: InboxItem, now: float) -> bool:
    return wanted.takes(
        {
            "what": item.what,
            "run": item.run_id,
            "agent": item.agent,
            "principal": item.principal,
            "age": now - item.since.timestamp(),
            "tool": None if item.call is None else item.call.tool,
            "call": None if item.call is None else item.call.id,
            "role": item.roles,
        }
    )
