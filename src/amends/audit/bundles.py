"""Bundles: one file with all that a ledger has of some run trees, and the program that checks it.

A bundle is a zip of rows as JSON lines. What is redacted or encrypted in the ledger is so in the bundle.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from io import BytesIO
from typing import Any, Final, TypeVar

from amends.audit.standalone import verify
from amends.encoding.canonical import digest
from amends.encoding.chain import read_heads
from amends.encoding.dataclass import dataclass
from amends.engine.approvals import approval_of
from amends.engine.reports import event_of, info_of
from amends.engine.session import call_of
from amends.errors import BadBundle, LedgerTampered, RunNotFound, UsageError
from amends.host.host import Host, View
from amends.ledger.budgets import read_charge
from amends.ledger.operations import FindTrees, LoadRecords, ReadCheckpoints, ReadRecord, Record
from amends.ledger.rows import LOADED, ApprovalRow, CallRow, CheckpointRow, EventRow, RunRow
from amends.ledger.world import ReadClocks
from amends.stores.migrations import Migrating

T = TypeVar("T")
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "float | None": (float, int, type(None)),
    "str | None": (str, type(None)),
}
"""The types of columns, by their annotation."""
NUMBER: Final = 1 << 63
"""Every number in a ledger, integer or float, is smaller than this."""
OURS: Final = re.compile(r"^from amends\.audit\.standalone\.(?P<name>\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
FUTURE: Final = "from __future__ import annotations\n"
MAIN: Final = "import sys\n\nimport verify\n\nsys.exit(verify.main([sys.path[0], *sys.argv[1:]]))\n"


def pack(records: Iterable[Record], *, ledger: str, version: str, checkpoints: Iterable[Any] = (), now: float) -> bytes:
    """Return the bundle of these trees."""
    trees = list(records)
    parts: dict[str, list[Any]] = {
        "runs": [run for one in trees for run in one.runs],
        "calls": [call for one in trees for call in one.calls],
        "events": [event for one in trees for event in one.events],
        "approvals": [asked for one in trees for asked in one.approvals],
        "checkpoints": list(checkpoints),
    }
    texts = {f"{part}.jsonl": "".join(f"{json.dumps(asdict(row))}\n" for row in rows) for part, rows in parts.items()}
    texts |= {"verify.py": program(), "__main__.py": MAIN}
    data = {name: text.encode("utf-8") for name, text in texts.items()}
    manifest = {
        "format": verify.FORMAT,
        "version": verify.VERSION,
        "amends": version,
        "ledger": ledger,
        "made_at": datetime.fromtimestamp(now, UTC).isoformat(),
        "trees": [_tree(one) for one in trees],
        "files": {name: sha256(text).hexdigest() for name, text in data.items()},
    }
    data["manifest.json"] = json.dumps(manifest, indent=1).encode("utf-8")
    if sum(map(len, data.values())) > verify.UNPACKED_MAX:
        raise BadBundle(f"it would be larger than {verify.UNPACKED_MAX:,} bytes", hint="export fewer runs at once")
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in verify.FILES:
            packed.writestr(zipfile.ZipInfo(name), data[name], zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _tree(record: Record) -> dict[str, Any]:
    root = record.root
    n, head = (record.events[-1].n, record.events[-1].hash) if record.events else (0, "")
    facts = {"root": root.uid, "run": root.id, "tenant": root.tenant, "origin": root.origin, "state": root.state}
    return facts | {"generation": root.generation, "events": n, "head": head}


@cache
def program() -> str:
    """Return ``verify.py`` of a bundle: the standalone verifier with its own imports inlined, so that it needs nothing."""
    return _whole("verify", set())


def _whole(name: str, done: set[str]) -> str:
    def inside(found: re.Match[str]) -> str:
        if found["name"] in done:
            return ""
        done.add(found["name"])
        return _whole(found["name"], done).partition(FUTURE)[2].strip() + "\n"

    return OURS.sub(inside, files("amends.audit.standalone").joinpath(f"{name}.py").read_text(encoding="utf-8"))


def unpack(data: bytes) -> list[Record]:
    """Return the trees of a bundle; raise ``BadBundle`` if it cannot be read, ``LedgerTampered`` if it was changed."""
    try:
        found = verify.read(data)
        problems = verify.check(found)
    except verify.Unreadable as error:
        raise BadBundle(str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise BadBundle(f"its rows make no sense: {error}") from error
    if problems:
        first = problems[0]
        raise LedgerTampered(f"the bundle was changed: {first!r}", run_id=first.run_id or None)
    rows = found.rows
    runs, calls = _rows(rows["runs"], RunRow), _rows(rows["calls"], CallRow)
    events, asked = _rows(rows["events"], EventRow), _rows(rows["approvals"], ApprovalRow)
    roots = [run.uid for run in runs if run.uid == run.root]
    if not roots:
        raise BadBundle("it has no run")
    trees = [
        Record(
            tuple(sorted((run for run in runs if run.root == root), key=lambda run: run.uid != root)),
            tuple(call for call in calls if call.root == root),
            tuple(sorted((event for event in events if event.root == root), key=lambda event: event.n)),
            tuple(one for one in asked if one.root == root),
        )
        for root in roots
    ]
    for tree in trees:
        _check_numbers(tree)
        _check_inside(tree)
        _check_shown(tree)
    return trees


def _rows(rows: list[dict[str, Any]], kind: type[T]) -> list[T]:
    known = {field.name: (TYPES[str(field.type)], field.default is not MISSING) for field in fields(kind)}  # type: ignore[arg-type]
    for row in rows:
        for name in row.keys() - known.keys():
            raise BadBundle(
                f"it has a column {name!r}, which this version of amends does not know", hint="upgrade amends"
            )
        for name, (types, may_miss) in known.items():
            value = row.get(name, None if may_miss else MISSING)
            is_typed = name not in row or (isinstance(value, types) and not isinstance(value, bool))
            if value is MISSING or not is_typed or (isinstance(value, int | float) and not -NUMBER < value < NUMBER):
                raise BadBundle(f"{name} is {str(row.get(name))[:40]!r}")
    return [kind(**row) for row in rows]


def _check_numbers(tree: Record) -> None:
    """Check that every number in a row is that of an event of its tree."""
    events = {event.n: event for event in tree.events}
    named = [n for call in tree.calls for n in (call.seq, call.settled_seq)]
    named += [n for one in tree.approvals for n in (one.seq, one.used_seq)]
    if len(events) != len(tree.events) or any(n and n not in events for n in named):
        raise BadBundle("its rows name numbers that none of its events has")
    if any(not call.seq or events[call.seq].call != call.id for call in tree.calls):
        raise BadBundle("a call does not name the number of its first event")
    if not all(one.seq for one in tree.approvals):
        raise BadBundle("a request does not name the number of its first event")


def _check_inside(tree: Record) -> None:
    """Check that all rows of a tree belong to it, and to one tenant."""
    runs, calls = {run.uid for run in tree.runs}, {call.id for call in tree.calls}
    tenants = {row.tenant for some in (tree.runs, tree.calls, tree.events, tree.approvals) for row in some}
    inside = [
        all(run.parent in runs or run is tree.root for run in tree.runs),
        not tree.root.parent,
        all(call.run in runs for call in tree.calls),
        all(event.run in runs and (not event.call or event.call in calls) for event in tree.events),
        all(one.run in runs and one.call in calls for one in tree.approvals),
        len(tenants) == 1,
        bool(tree.root.origin),
    ]
    if not all(inside):
        raise BadBundle(f"not all of its rows for run {tree.root.id} belong to that run")


def _check_shown(tree: Record) -> None:
    """Check that every row can be shown: a forged bundle must not make the listings of a ledger fail."""
    try:
        for run in tree.runs:
            info_of(run)
            json.loads(run.budgets or "[]")
            json.loads(run.completion or "{}")
        by_id = {call.id: call for call in tree.calls}
        for call in tree.calls:
            call_of(call, None)
            if call.cost:
                read_charge(call.cost)
            for text in (call.learned, call.evidence, call.locks):
                json.loads(text or "[]")
        for event in tree.events:
            event_of(event)
        for asked in tree.approvals:
            approval_of(asked, by_id[asked.call], None, asked.requested_at)
    except Exception as error:  # of any type: the rows come from outside
        raise BadBundle(f"a row of run {tree.root.id} cannot be shown: {type(error).__name__}: {error}") from error


# ---- Exporting from a ledger, and loading into one


CHECKPOINTS_PAGE: Final = 20
CHECKPOINT_PAGES_MAX: Final = 5_000
"""How far back to look for the checkpoint of a run."""
MEMORY: Final = "memory"
"""Stands for the name of a ledger that has none."""


@dataclass(frozen=True, slots=True)
class Export:
    """The records for one export, and the time of reading them."""

    records: list[Record]
    checkpoints: list[CheckpointRow]
    now: float


async def read_export(view: View, run_ids: tuple[str, ...], ledger: str) -> Export:
    """Read every generation of these runs with their whole trees, and the checkpoints that cover them."""
    if not run_ids:
        raise UsageError("name the runs to export")
    roots: dict[str, None] = {}
    for run_id in run_ids:
        found = await FindTrees(view.tenant or "", run_id)
        if not found:
            raise RunNotFound(run_id)
        roots |= dict.fromkeys(root.uid for root in found)
    records: list[Record] = []
    for root in roots:
        record = await ReadRecord(root)
        assert record is not None, "no run is ever deleted"
        records.append(_as_there(record, ledger))
    return Export(records, await _covering(records), (await ReadClocks()).wall)


async def _covering(records: list[Record]) -> list[CheckpointRow]:
    """Return the newest checkpoint that names each tree, oldest first; search from the end, where most of them are."""
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
    except ValueError:  # it was changed, which ``amends audit verify`` reports
        return set()


def pack_export(export: Export, ledger: str) -> bytes:
    """Return the bundle of an export."""
    return pack(
        export.records,
        ledger=ledger,
        version=sys.modules["amends"].__version__,
        checkpoints=export.checkpoints,
        now=export.now,
    )


async def load_records(
    host: Host, view: View, records: list[Record], *, tenant: str | None = None, by: str = "", why: str = ""
) -> list[str]:
    """Load these runs as records, and return their ids. ``tenant``: the only one that they may be of."""
    texts: tuple[Any, ...] = (by, why)
    if not all(isinstance(text, str) for text in texts):
        raise UsageError("by= is the name of a person, and why= is the reason: both are texts")
    whose = view.only(tenant)
    for record in records:
        if whose is not None and record.root.tenant != whose:
            raise UsageError(
                f"run {record.root.id} is of tenant {record.root.tenant!r}, and this runtime acts for {whose!r}",
                hint="load it with a runtime that has no tenant",
            )
    heads = sorted(f"{record.root.uid} {record.events[-1].hash}" for record in records)
    tenants = {record.root.tenant for record in records}
    await LoadRecords(
        uid=host.new_id("run"),
        id=f"load:{digest(*heads)[:16]}",
        tenant=tenants.pop() if len(tenants) == 1 else "",
        owner=host.owner,
        records=tuple(records),
        by=by,
        why=why,
    )
    return list(dict.fromkeys(record.root.id for record in records))


def ledger_of(host: Host) -> str:
    """Return the name of this ledger."""
    store = host.store
    return (store.schema().ledger if isinstance(store, Migrating) else "") or MEMORY


def _as_there(record: Record, ledger: str) -> Record:
    """Return the record as its own ledger has it: with the name of that ledger, and without the prefixes of loading."""
    origin = record.root.origin
    if not origin:
        return replace(record, runs=tuple(replace(run, origin=ledger) for run in record.runs))
    return replace(
        record,
        calls=tuple(replace(call, key=call.key.removeprefix(f"{LOADED}{call.id}:")) for call in record.calls),
        approvals=tuple(replace(one, use_key=one.use_key.removeprefix(LOADED)) for one in record.approvals),
    )
