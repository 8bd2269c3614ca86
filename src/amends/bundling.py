"""Taking runs out of a ledger and loading them into another one: flows for both colours."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from amends.bundle import pack
from amends.bundle import unpack as unpack
from amends.bundleops import FindTrees, LoadRecords, ReadRecord, Record
from amends.checkpoint import read_heads
from amends.checkpointops import ReadCheckpoints
from amends.checkpointrows import CheckpointRow
from amends.errors import UsageError
from amends.hub import Hub, View
from amends.ops import ReadClocks
from amends.people import no_run
from amends.plain import digest
from amends.record import dataclass
from amends.rows import LOADED
from amends.store.migrations import Migrating

CHECKPOINTS_PAGE: Final = 20
CHECKPOINT_PAGES_MAX: Final = 5_000
"""So far back a run's checkpoint is looked for."""
MEMORY: Final = "memory"
"""The name of a ledger that has none."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken out of a ledger, and when."""

    records: list[Record]
    checkpoints: list[CheckpointRow]
    now: float


async def taken_out(view: View, run_ids: tuple[str, ...], ledger: str) -> Taken:
    """Every generation of these runs with the whole trees that they are in, and the checkpoints behind them."""
    if not run_ids:
        raise UsageError("say which runs are to be exported")
    roots: dict[str, None] = {}
    for run_id in run_ids:
        found = await FindTrees(view.tenant or "", run_id)
        if not found:
            raise no_run(run_id)
        roots |= dict.fromkeys(root.uid for root in found)
    records: list[Record] = []
    for root in roots:
        record = await ReadRecord(root)
        assert record is not None, "no run is ever deleted"
        records.append(_as_there(record, ledger))
    return Taken(records, await _behind(records), (await ReadClocks()).wall)


async def _behind(records: list[Record]) -> list[CheckpointRow]:
    """Of each tree the newest checkpoint that names it, oldest first. Looked for from the end, since most are there."""
    wanted = {record.root.uid for record in records}
    found: list[CheckpointRow] = []
    newest = await ReadCheckpoints(-1, 1)
    last = newest[0].n if newest else 0
    for _ in range(CHECKPOINT_PAGES_MAX):
        if not wanted or last < 1:
            break
        page = await ReadCheckpoints(max(0, last - CHECKPOINTS_PAGE), CHECKPOINTS_PAGE)
        for row in sorted(page, key=lambda row: -row.n):
            named = wanted & _named(row) if row.n <= last else set()
            if named:
                found.append(row)
                wanted -= named
        last -= CHECKPOINTS_PAGE
    return sorted(found, key=lambda row: row.n)


def _named(row: CheckpointRow) -> set[str]:
    try:
        return {root for root, _, _ in read_heads(row.heads)}
    except ValueError:  # somebody has changed it, and amends audit verify says so
        return set()


def packed(taken: Taken, ledger: str) -> bytes:
    """The bundle of what was taken out."""
    from amends import __version__

    return pack(taken.records, ledger=ledger, version=__version__, checkpoints=taken.checkpoints, now=taken.now)


async def put_in(hub: Hub, view: View, records: list[Record]) -> list[str]:
    """The ids of these runs, which are records here from now on."""
    for record in records:
        if view.tenant and record.root.tenant != view.tenant:
            raise UsageError(
                f"run {record.root.id} is of tenant {record.root.tenant!r}, and this runtime acts for {view.tenant!r}",
                hint="load it with a runtime that has no tenant",
            )
    heads = sorted(f"{record.root.uid} {record.events[-1].hash}" for record in records)
    tenants = {record.root.tenant for record in records}
    await LoadRecords(
        uid=hub.new_id("run"),
        id=f"load:{digest(*heads)[:16]}",
        tenant=tenants.pop() if len(tenants) == 1 else "",
        owner=hub.owner,
        records=tuple(records),
    )
    return list(dict.fromkeys(record.root.id for record in records))


def ledger_of(hub: Hub) -> str:
    """The name of this ledger, as others may know it."""
    store = hub.store
    return (store.schema().ledger if isinstance(store, Migrating) else "") or MEMORY


def _as_there(record: Record, ledger: str) -> Record:
    """As it was where it came from: whose it is, and under which keys."""
    origin = record.root.origin
    if not origin:
        return replace(record, runs=tuple(replace(run, origin=ledger) for run in record.runs))
    return replace(
        record,
        calls=tuple(replace(call, key=call.key.removeprefix(f"{LOADED}{call.id}:")) for call in record.calls),
        approvals=tuple(replace(one, use_key=one.use_key.removeprefix(LOADED)) for one in record.approvals),
    )
