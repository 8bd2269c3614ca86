"""A bundle: one file with all that a ledger says of some run trees, and the program that checks it.

A zip of rows as JSON lines. What was redacted or encrypted in the ledger is so in the bundle.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from io import BytesIO
from typing import Any, Final, TypeVar

from amends.audit.standalone import verify
from amends.encoding.canonical import digest
from amends.encoding.chain import read_heads
from amends.encoding.dataclass import dataclass
from amends.engine.answers import event_of, info_of
from amends.engine.approvals import approval_of
from amends.engine.session import call_of
from amends.errors import BadBundle, LedgerTampered, UsageError
from amends.host.host import Host, View
from amends.host.runs import no_run
from amends.ledger.changes import read_charge
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
"""The types that columns have, as they are declared."""
NUMBER: Final = 1 << 63
"""No number in a ledger is as large, neither whole nor broken."""
OURS: Final = re.compile(r"^from amends\.audit\.standalone\.(?P<name>\w+) import (?:\([^)]*\)|.*)\n", re.MULTILINE)
FUTURE: Final = "from __future__ import annotations\n"
MAIN: Final = "import sys\n\nimport verify\n\nsys.exit(verify.main([sys.path[0], *sys.argv[1:]]))\n"


def pack(records: Iterable[Record], *, ledger: str, version: str, checkpoints: Iterable[Any] = (), now: float) -> bytes:
    """The bundle of these trees."""
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
        raise BadBundle(f"it would have more than {verify.UNPACKED_MAX:,} bytes", hint="export fewer runs at once")
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
    """``verify.py``: our own module with what it imports of ours put in its place, so that it needs nothing."""
    return _whole("verify", set())


def _whole(name: str, done: set[str]) -> str:
    def inside(found: re.Match[str]) -> str:
        if found["name"] in done:
            return ""
        done.add(found["name"])
        return _whole(found["name"], done).partition(FUTURE)[2].strip() + "\n"

    return OURS.sub(inside, files("amends.audit.standalone").joinpath(f"{name}.py").read_text(encoding="utf-8"))


def unpack(data: bytes) -> list[Record]:
    """The trees in a bundle. Raises ``BadBundle`` where it cannot be read, ``LedgerTampered`` where it was changed."""
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
        raise BadBundle("there is no run in it")
    trees = [
        Record(
            tuple(sorted((run for run in runs if run.root == root), key=lambda run: run.uid != root)),
            tuple(call for call in calls if call.root == root),
            tuple(sorted((event for event in events if event.root == root), key=lambda event: event.n)),
            tuple(one for one in asked if one.root == root),
        )
        for root in roots
    ]
    _check_places(events, calls, asked)
    for tree in trees:
        _check_inside(tree)
        _check_shown(tree)
    return trees


def _rows(rows: list[dict[str, Any]], kind: type[T]) -> list[T]:
    known = {field.name: (TYPES[str(field.type)], field.default is not MISSING) for field in fields(kind)}  # type: ignore[arg-type]
    for row in rows:
        for name in row.keys() - known.keys():
            raise BadBundle(f"it says {name!r}, which this amends does not know", hint="upgrade amends")
        for name, (types, may_miss) in known.items():
            value = row.get(name, None if may_miss else MISSING)
            is_typed = name not in row or (isinstance(value, types) and not isinstance(value, bool))
            if value is MISSING or not is_typed or (isinstance(value, int | float) and not -NUMBER < value < NUMBER):
                raise BadBundle(f"{name} is {str(row.get(name))[:40]!r}")
    return [kind(**row) for row in rows]


def _check_places(events: list[EventRow], calls: list[CallRow], asked: list[ApprovalRow]) -> None:
    """Every place that a row names is that of an event here: they are all given new ones together."""
    places = {event.seq: event for event in events}
    named = [place for call in calls for place in (call.seq, call.settled_seq)]
    named += [place for one in asked for place in (one.seq, one.used_seq)]
    if len(places) != len(events) or any(place and place not in places for place in named):
        raise BadBundle("its rows name places that no event of it has")
    if any(not call.seq or places[call.seq].call != call.id for call in calls) or not all(one.seq for one in asked):
        raise BadBundle("a row does not name the place of its first event")


def _check_inside(tree: Record) -> None:
    """Everything in a tree is of it, and no one else's."""
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
        raise BadBundle(f"what is in it of run {tree.root.id} is not all of that run")


def _check_shown(tree: Record) -> None:
    """Everything in it can be shown: whoever made it up must not make a listing fail for what else is in a ledger."""
    try:
        for run in tree.runs:
            info_of(run)
            json.loads(run.budgets or "[]")
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
    except Exception as error:  # of whatever kind: the rows are a stranger's
        raise BadBundle(f"a row of run {tree.root.id} cannot be shown: {type(error).__name__}: {error}") from error


# ---- Taking runs out of a ledger and loading them into another one: flows for both colours


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
    return pack(taken.records, ledger=ledger, version=version("amends"), checkpoints=taken.checkpoints, now=taken.now)


async def put_in(host: Host, view: View, records: list[Record]) -> list[str]:
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
        uid=host.new_id("run"),
        id=f"load:{digest(*heads)[:16]}",
        tenant=tenants.pop() if len(tenants) == 1 else "",
        owner=host.owner,
        records=tuple(records),
    )
    return list(dict.fromkeys(record.root.id for record in records))


def ledger_of(host: Host) -> str:
    """The name of this ledger, as others may know it."""
    store = host.store
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
