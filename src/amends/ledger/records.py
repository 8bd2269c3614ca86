"""Read the records of run trees for a bundle, and load those of other ledgers, which nothing ever changes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from amends.encoding.chain import storable
from amends.errors import BadBundle, LedgerTampered, RunTaken
from amends.ledger.events import run_columns_digest, write_event
from amends.ledger.operations import EVENTS_MAX, FindTrees, HasLoaded, LoadRecords, ReadRecord, Record
from amends.ledger.queries import approvals_of, generations_of, list_calls, list_tree, page_events
from amends.ledger.rows import (
    APPROVALS,
    CALLS,
    LOADED,
    MARKS,
    RUNS,
    AddEvent,
    ApprovalRow,
    CallRow,
    EventRow,
    MarkRow,
    Now,
    RunRow,
)
from amends.ledger.tables import Add, Find

MARK: Final = "loaded"
PAGE: Final = 500
T = TypeVar("T", RunRow, CallRow, ApprovalRow)


async def find_trees(op: FindTrees) -> list[RunRow]:
    """List the roots of every generation of a run (``FindTrees``)."""
    found: dict[str, RunRow] = {}
    for run in await generations_of(op.tenant, op.id):
        root = run if run.uid == run.root else await Find(RUNS, run.root)
        assert root is not None, "a child has a root"
        found.setdefault(root.uid, root)
    return list(found.values())


async def read_record(op: ReadRecord) -> Record | None:
    """Read one whole tree (``ReadRecord``). Its root is locked first, so that the tree does not change meanwhile."""
    if await Find(RUNS, op.root) is None:
        return None
    events: list[EventRow] = []
    while page := await page_events(op.root, None, events[-1].n if events else 0, PAGE):
        events += page
        if len(events) > EVENTS_MAX:
            raise BadBundle(f"run tree {op.root} has more than {EVENTS_MAX:,} events")
    runs, calls, approvals = await list_tree(op.root), await list_calls(op.root), await approvals_of(op.root)
    return Record(tuple(runs), tuple(calls), tuple(events), tuple(approvals))


async def has_loaded(_op: HasLoaded) -> bool:
    """Return whether runs of other ledgers were ever loaded (``HasLoaded``)."""
    return await Find(MARKS, MARK) is not None


async def load_records(op: LoadRecords) -> list[str]:
    """Load trees of other ledgers (``LoadRecords``)."""
    coming_in = sorted(op.records, key=lambda one: one.root.uid)
    if op.repeated and await Find(RUNS, op.uid, peek=True) is not None:
        heads = await _loaded_heads(op.uid)
        return [one.root.uid for one in coming_in if one.events[-1].hash in heads]
    coming = {run.uid for record in coming_in for run in record.runs}
    fresh = [one for one in coming_in if not await _is_here(one) and await _is_free(one, coming)]
    if not fresh:
        return []
    now = await Now("")
    await Add(MARKS, MarkRow(MARK, "", now), if_absent=True)
    # Runs first, in one order: whoever loads the same trees at the same time waits here, and then finds them.
    for record in fresh:
        for run in record.runs:
            await Add(RUNS, _without_owner(run))
    await _add_events(fresh)
    for record in fresh:
        for call in record.calls:
            await Add(CALLS, _with_loaded_key(call))
        for asked in record.approvals:
            await Add(APPROVALS, _without_notice(asked))
    await _record_load(op, fresh, now)
    return [record.root.uid for record in fresh]


async def _is_here(record: Record) -> bool:
    """Return whether the ledger has this very tree, at least as far as the bundle has it."""
    mine = await Find(RUNS, record.root.uid, peek=True)
    if mine is None:
        return False
    chain = {event.n: event.hash for event in record.events}
    newest = 0
    while page := await page_events(mine.root, None, newest, PAGE):
        newest = page[-1].n
        if any(chain.get(event.n, event.hash) != event.hash for event in page):
            raise RunTaken(
                f"run {record.root.id} is already in this ledger and differs from the bundle", run_id=record.root.id
            )
        if newest >= len(chain):
            return True
    raise RunTaken(
        f"run {record.root.id} is already in this ledger, in its state of {len(chain) - newest} events earlier",
        run_id=record.root.id,
    )


async def _is_free(record: Record, coming: set[str]) -> bool:
    """Return whether this tree may be added; False if another process has loaded it meanwhile. Else raise ``RunTaken``.

    On a server every statement sees what others have committed by then. What is taken now may be this very tree, loaded
    by a faster process: completely, since that is one transaction.
    """
    taken = await _taken(record, coming)
    if taken is None:
        return True
    if await _is_here(record):
        return False
    raise taken


async def _taken(record: Record, coming: set[str]) -> RunTaken | None:
    for run in record.runs:
        if await Find(RUNS, run.uid, peek=True) is not None:
            return RunTaken(f"the uid {run.uid} of run {run.id} is another run's here", run_id=run.id)
        for other in await generations_of(run.tenant, run.id):
            if other.uid not in coming and (other.origin != run.origin or other.generation == run.generation):
                whose = f"loaded from {other.origin}" if other.origin else "of this ledger"
                return RunTaken(f"the id {run.id} is taken by a run {whose}", run_id=run.id)
    for call in record.calls:
        if await Find(CALLS, call.id) is not None:
            return RunTaken(f"call {call.id} of run {call.run_id} is another run's here", run_id=call.run_id)
    for asked in record.approvals:
        if await Find(APPROVALS, asked.id) is not None:
            return RunTaken(f"approval {asked.id} of run {asked.run_id} is another run's here", run_id=asked.run_id)
    return None


async def _add_events(records: Iterable[Record]) -> None:
    """Write the chains again, which must give the same numbers and hashes."""
    for record in records:
        for event in record.events:
            columns = {field.name: getattr(event, field.name) for field in fields(AddEvent)}
            await AddEvent(**{name: _storable(value) for name, value in columns.items()})
        last = record.events[-1]
        page = await page_events(last.root, None, last.n - 1, 2)
        if [(event.n, event.hash) for event in page] != [(last.n, last.hash)]:
            raise LedgerTampered(f"the events of run {record.root.id} do not form one chain", run_id=record.root.id)


def _without_owner(run: RunRow) -> RunRow:
    """Return the run without an owner: no worker wakes for it, and nobody waits for an owner."""
    return replace(
        _cleaned(run), owner="", opener="", lease_s=0.0, lease_until=0.0, wake_at=None, suspended=0, locked=0, charged=0,
        lease_boot="", lease_mono=None, silent_boot="", silent_mono=None, silent_at=None, wanted="",
    )  # fmt: skip


def _with_loaded_key(call: CallRow) -> CallRow:
    """Return the call under a key that no request here has."""
    return replace(_cleaned(call), key=f"{LOADED}{call.id}:{call.key}")


def _without_notice(asked: ApprovalRow) -> ApprovalRow:
    """Return the request without a pending notice, and so that it does not count as a first use here."""
    use = f"{LOADED}{asked.use_key}" if asked.use_key else ""
    return replace(_cleaned(asked), tell_at=None, teller="", due_at=None, use_key=use)


async def _record_load(op: LoadRecords, records: list[Record], now: float) -> None:
    heads = [[record.root.origin, record.root.id, record.events[-1].n, record.events[-1].hash] for record in records]
    run = RunRow(
        uid=op.uid, id=op.id, tenant=op.tenant, generation=1, root=op.uid, parent="", state="open", created_at=now,
        epoch=1,
    )  # fmt: skip
    await Add(RUNS, replace(run, state="committed", closed_at=now))
    await write_event(
        run, "run", at=now, by=op.owner, epoch=1, frm="(new)", to="open", generation=1, row=run_columns_digest(run)
    )
    said: dict[str, Any] = {"heads": heads} | ({"why": storable(op.why)} if op.why else {})
    await write_event(run, "runs loaded", at=now, by=storable(op.by) or op.owner, epoch=1, **said)
    await write_event(run, "run", at=now, by=op.owner, epoch=1, frm="open", to="committed")


async def _loaded_heads(uid: str) -> set[str]:
    """Return the newest hashes of the trees that this load has added."""
    loads = [event for event in await page_events(uid, None, 0, PAGE) if event.what == "runs loaded"]
    return {head[-1] for event in loads for head in json.loads(event.facts)["heads"]}


def _cleaned(row: T) -> T:
    """Return the row with texts that every database can hold."""
    return replace(row, **{field.name: _storable(getattr(row, field.name)) for field in fields(row)})


def _storable(value: Any) -> Any:
    return storable(value) if isinstance(value, str) and not value.isprintable() else value
