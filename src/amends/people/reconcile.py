"""Compare the ledger with the world, for one tool: by a listing of effects, by probes, or by both. Changes nothing.

The ledger is read before and after the listing. Only what it said both times is compared with the world, so a call that
runs meanwhile is not an orphan.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final, Literal, TypeAlias

from amends.encoding.canonical import canonical
from amends.encoding.dataclass import dataclass, field
from amends.encoding.redaction import Redactor
from amends.encoding.secret import Secret
from amends.engine.doubts import ask_probe
from amends.engine.keys import call_key, provider_key
from amends.engine.session import Session, call_of, decode_args, hidden_effect
from amends.errors import BadArguments, NotStorable, ToolError, UsageError
from amends.host.host import Host, View
from amends.host.runs import declared_as
from amends.ledger.leases import Lease
from amends.ledger.operations import SearchCalls
from amends.ledger.rows import CallRow
from amends.ledger.world import Invoke, ReadClocks
from amends.model import Absent, Call, Happened, Request, Unknown
from amends.report import Mismatch, Reconciliation
from amends.tools.spec import ProbeSpec, Spec

PAGE: Final = 500
CALLS_MAX: Final = 200_000
EFFECTS_MAX: Final = 200_000
GUESSES_MAX: Final = 20_000_000
LIST_TIMEOUT_S: Final = 600.0
Standing: TypeAlias = Literal["stands", "gone", "maybe"]
GONE: Final = frozenset({"failed", "backing_off", "compensated", "refused", "dropped", "held", "ready"})
DOUBTFUL: Final = frozenset({"in_doubt", "compensation_in_doubt"})


async def reconcile(host: Host, view: View, tool: str | object, *, limit: int = 10_000) -> Reconciliation:
    """Compare the ledger with the destination of one tool, by its listing and its probe: find effects that only one has.

    Changes nothing. ``limit``: how many calls to probe, newest first.
    """
    spec = host.named(tool if isinstance(tool, str) else declared_as(tool)[0].name)
    if spec.kind == "read":
        raise UsageError(f"{spec.name} is a read: it has no effects to compare")
    if spec.list_effects is None and spec.probe is None:
        raise UsageError(
            f"{spec.name} has neither list_effects nor a probe: there is nothing to compare the ledger with",
            hint="declare one with @tool.list_effects or @tool.probe",
        )
    given: Any = limit
    if not isinstance(given, int) or given < 0:
        raise UsageError(f"limit is {limit!r}; it must be a number of calls, 0 or more")
    before = await _calls(spec.name)
    effects = None if spec.list_effects is None else await _listed(spec, view.tenant or "")
    after = await _calls(spec.name)
    now = (await ReadClocks()).wall
    book = _Book(spec, view.tenant or "", now, _both(before, after), after, host.redactor, _grouped(spec, after))
    reader = replace(host.reader(), lease=Lease("", "", -1, host.lease_s, float("inf")))
    if effects is not None:
        _compare(book, effects)
    await _ask(book, reader, listed=effects is not None, limit=limit)
    return book.told(None if effects is None else len(effects))


async def _calls(tool: str) -> list[CallRow]:
    """Return every call of the tool, of all tenants: an effect of another tenant is not an orphan."""
    found: list[CallRow] = []
    before: str | None = None
    while True:
        page = await SearchCalls(None, (), before, PAGE, tool)
        # Leave out calls loaded from another ledger, and calls that a fork shares: their effects are another run's.
        found += [row for row in page if not row.is_loaded and not row.shared]
        if len(page) < PAGE:
            return found
        if len(found) >= CALLS_MAX:
            raise UsageError(f"{tool} has more than {CALLS_MAX} calls in this ledger: too many to compare at once")
        before = page[-1].id


def _created(row: CallRow) -> tuple[float, str, int]:
    """Return the order of creation across runs: by time, and inside a run tree by number."""
    return row.created_at, row.root, row.seq


def _both(before: list[CallRow], after: list[CallRow]) -> dict[str, Standing]:
    """Return what the ledger said of each call both times it was read; ``maybe`` if that changed or is not known."""
    earlier = {row.id: _standing(row) for row in before}
    return {row.id: now if earlier.get(row.id) == (now := _standing(row)) else "maybe" for row in after}


def _standing(row: CallRow) -> Standing:
    if row.state == "succeeded":
        return "stands"
    return "gone" if row.state in GONE else "maybe"


# ---- Reading the listing


async def _listed(spec: Spec, tenant: str) -> list[Any]:
    listing = spec.list_effects
    assert listing is not None, "the caller has checked that the tool has a listing"
    takes = inspect.signature(listing).parameters
    kwargs = {"tenant": tenant or None} if "tenant" in takes else {}
    is_async = inspect.iscoroutinefunction(listing) or inspect.isasyncgenfunction(listing)
    about = Call(run_id="", tool=spec.name, version=spec.version, args={}, phase="probe")
    ended = await Invoke(
        fn=_whole_async(listing) if is_async else _whole(listing),
        kwargs=kwargs,
        is_async=is_async,
        timeout=LIST_TIMEOUT_S,
        call=about,
        lease=None,
        phase="probe",
    )
    if ended.in_flight:
        raise ToolError(f"list_effects of {spec.name} did not end within {LIST_TIMEOUT_S:.0f} s")
    if ended.error is not None:
        raise ended.error
    if not isinstance(ended.value, list):
        raise UsageError(
            f"list_effects of {spec.name} returned {ended.value}; it must return keys (strings) or dicts of arguments"
        )
    if len(ended.value) > EFFECTS_MAX:
        raise UsageError(f"list_effects of {spec.name} returned more than {EFFECTS_MAX} effects: too many at once")
    return ended.value


def _whole(listing: Callable[..., Any]) -> Callable[..., Any]:
    """Read the listing to its end inside the body, where user code may run: a generator's body is user code."""

    def listed(**kwargs: Any) -> Any:
        found = listing(**kwargs)
        return list(islice(found, EFFECTS_MAX + 1)) if _is_listing(found) else type(found).__name__

    return listed


def _whole_async(listing: Callable[..., Any]) -> Callable[..., Any]:
    async def listed(**kwargs: Any) -> Any:
        found = listing(**kwargs)
        if not inspect.isasyncgen(found):
            found = await found
            return list(islice(found, EFFECTS_MAX + 1)) if _is_listing(found) else type(found).__name__
        effects: list[Any] = []
        async for effect in found:
            effects.append(effect)
            if len(effects) > EFFECTS_MAX:
                break
        return effects

    return listed


def _is_listing(found: Any) -> bool:
    return isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping)


# ---- Both sides, and what was found


@dataclass(slots=True)
class _Book:
    """Both sides, and what was found so far. Only calls of the tenant that asks (``mine``) are reported."""

    spec: Spec
    tenant: str
    now: float
    said: Mapping[str, Standing]
    rows: list[CallRow]
    redactor: Redactor
    groups: Mapping[str, list[CallRow]]
    """Calls by their identity, newest first."""
    missing: list[tuple[CallRow, str]] = field(default_factory=list)
    unrecorded: list[tuple[CallRow | None, Any, str]] = field(default_factory=list)
    doubts: list[tuple[CallRow, Any, str]] = field(default_factory=list)
    unclear: list[tuple[CallRow, str]] = field(default_factory=list)
    asked: int = 0
    unasked: int = 0

    def mine(self) -> list[CallRow]:
        return [row for row in self.rows if row.tenant == self.tenant]

    def told(self, listed: int | None) -> Reconciliation:
        def of(row: CallRow | None, effect: Any, why: str) -> Mismatch:
            return Mismatch(None if row is None else call_of(row, self.spec), effect, why)

        return Reconciliation(
            tool=self.spec.name,
            compared=len(self.mine()),
            listed=listed,
            asked=self.asked,
            missing=tuple(of(row, None, why) for row, why in self.missing),
            unrecorded=tuple(of(row, effect, why) for row, effect, why in self.unrecorded),
            doubts=tuple(of(row, effect, why) for row, effect, why in self.doubts),
            unclear=tuple(of(row, None, why) for row, why in self.unclear),
            unasked=self.unasked,
        )


def _identity(spec: Spec, args: Mapping[str, Any]) -> str:
    """Return what identifies an effect: the tool's declared identity, else all its arguments."""
    identity = spec.identity(Request(run_id="", tool=spec.name, version=spec.version, args=args))
    if identity is None and not any(isinstance(value, Secret) for value in args.values()):
        names = tuple(args) if spec.signature is None else spec.signature.names
        identity = spec.bind((), {name: args[name] for name in names if name in args})
    named = dict(args) if identity is None else identity
    try:
        return canonical(named, path="identity", shape=spec.anywhere if callable(spec.key) else spec.shape)
    except NotStorable:  # a listing may describe an effect in plain data
        return canonical(named, path="identity")


def _grouped(spec: Spec, rows: list[CallRow]) -> dict[str, list[CallRow]]:
    groups: dict[str, list[CallRow]] = defaultdict(list)
    for row in rows:
        groups[_identity_of(spec, row)].append(row)
    return groups


def _identity_of(spec: Spec, row: CallRow) -> str:
    """Return what identifies the effect of a call; its own key, which equals no other, if gc removed its arguments."""
    if row.lost_at is not None:
        return row.key
    try:
        return _identity(spec, decode_args(row, spec))
    except BadArguments:
        return row.key  # recorded by another version of the tool, which has other parameters


def _named(book: _Book, effect: Any) -> str:
    spec = book.spec
    if not isinstance(effect, Mapping):
        raise UsageError(
            f"list_effects of {spec.name} returned a {type(effect).__name__}; an effect is the key that the body got "
            "(current_call().key), or a dict of the arguments that identify it"
        )
    shown = hidden_effect(book.redactor, book.tenant, spec, effect)
    try:
        return _identity(spec, shown)
    except (BadArguments, NotStorable, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"list_effects of {spec.name} returned {shown!r}, which identifies no call: {error}"
        ) from error


# ---- Comparing with a listing


def _compare(book: _Book, effects: list[Any]) -> None:
    by_key = {provider_key(row): row for row in book.rows}
    keyed: dict[str, list[Any]] = defaultdict(list)
    named: dict[str, list[Any]] = defaultdict(list)
    for effect in effects:
        if isinstance(effect, str):
            row = by_key.get(effect)
            if row is None:
                book.unrecorded.append((None, effect, "no call has this key"))
            else:
                keyed[row.id].append(effect)
        else:
            named[_named(book, effect)].append(effect)
    groups = _found_again(book, named)
    for identity in dict.fromkeys([*groups, *named]):
        rows = groups.get(identity, [])
        exact = [(row, effect) for row in rows for effect in keyed.get(row.id, [])]
        _compare_group(book, rows, exact, named.get(identity, []))


def _found_again(book: _Book, named: Mapping[str, list[Any]]) -> dict[str, list[CallRow]]:
    """Return the calls by identity, with those whose arguments gc removed.

    Their key is left: a listed identity that hashes to the same key is theirs.
    """
    groups = {identity: list(rows) for identity, rows in book.groups.items()}
    bare = [row for row in book.rows if row.lost_at is not None]
    if len(bare) * len(named) > GUESSES_MAX:
        raise UsageError(
            f"the arguments of {len(bare)} calls of {book.spec.name} were removed: too many to find again by arguments",
            hint="let list_effects return the keys that the bodies got",
        )
    for row in bare:
        scope = "ledger" if row.scope == "ledger" else row.root
        known = next(
            (name for name in named if call_key(row.tenant, scope, row.tool, name, row.again) == row.key), None
        )
        if known is not None:
            groups[row.key].remove(row)
            groups.setdefault(known, []).append(row)
    return groups


def _compare_group(book: _Book, rows: list[CallRow], exact: list[tuple[CallRow, Any]], loose: list[Any]) -> None:
    """Compare the calls of one identity with its effects: by key where the listing has keys, else one for one."""
    there: set[str] = set()
    for row, effect in exact:
        if row.id in there or book.said[row.id] == "gone":
            why = "it is listed twice" if row.id in there else f"the ledger says that it is {row.state}"
            _note_unrecorded(book, row, effect, why)
        there.add(row.id)
    unmatched = [row for row in rows if row.id not in there]
    # Effects go to standing calls first, oldest first, then to calls that may stand; only what is left has no call.
    takers = [row for row in unmatched if book.said[row.id] != "gone"]
    takers.sort(key=lambda row: (book.said[row.id] != "stands", _created(row)))
    gone = [row for row in unmatched if book.said[row.id] == "gone" and row.attempt]
    for effect in loose:
        if takers:
            there.add(takers.pop(0).id)
        elif gone:
            row = gone.pop(0)
            _note_unrecorded(book, row, effect, f"the ledger says that it is {row.state}")
        else:
            book.unrecorded.append((None, effect, "more of it than the ledger has calls" if rows else "no call has it"))
    alone = len([row for row in rows if book.said[row.id] == "stands"]) == 1
    for row in rows:
        if row.tenant != book.tenant:
            continue
        if book.said[row.id] == "stands" and row.id not in there:
            book.missing.append((row, "it is not listed" if alone else "one of this identity is not listed"))
        elif row.state in DOUBTFUL and book.said[row.id] == "maybe":
            book.doubts.append((row, None, "it is listed" if row.id in there else "it is not listed"))


def _note_unrecorded(book: _Book, row: CallRow, effect: Any, why: str) -> None:
    if row.tenant == book.tenant:
        book.unrecorded.append((row, effect, why))


# ---- Comparing with probes


async def _ask(book: _Book, reader: Session, *, listed: bool, limit: int) -> None:
    """Probe the calls that the listing lacks; without a listing, every call for which an answer is conclusive."""
    spec = book.spec
    if spec.probe is None:
        return
    if listed:
        suspects, book.missing = book.missing, []
        for row, why in suspects:
            await _ask_standing(book, reader, spec.probe, row, why)
        return
    todo = [row for row in book.mine() if _is_conclusive(book, row)]
    book.unasked = max(0, len(todo) - limit)
    for row in todo[:limit]:
        if book.said[row.id] == "stands":
            await _ask_standing(book, reader, spec.probe, row, "its probe does not find it")
        elif row.state in DOUBTFUL:
            await _ask_doubt(book, reader, row)
        else:
            await _ask_gone(book, reader, spec.probe, row)


def _is_conclusive(book: _Book, row: CallRow) -> bool:
    """Return whether a probe's answer about this call can only be about this call."""
    if row.lost_at is not None or not row.attempt:
        return False
    if book.said[row.id] == "stands" or row.state in DOUBTFUL:
        return True
    compensation = book.spec.compensate
    if row.state == "compensated":
        return (
            compensation is not None and compensation.probe is not None
        )  # its own probe would only say that it once happened
    if book.said[row.id] != "gone":
        return False
    # A probe looks for the identity of the effect: if another call of that identity may stand, it would find that one.
    same = [other for other in book.groups[_identity_of(book.spec, row)] if other.id != row.id]
    newer = [other for other in same if _created(other) > _created(row) and other.attempt]
    return not newer and all(book.said[other.id] == "gone" and other.state != "compensated" for other in same)


async def _ask_standing(book: _Book, reader: Session, probe: ProbeSpec, row: CallRow, why: str) -> None:
    if row.lost_at is not None:
        book.missing.append((row, why))  # without arguments it cannot be probed: the listing alone decides
        return
    answer = await ask_probe(reader, book.spec, probe, row)
    book.asked += 1
    if isinstance(answer, Unknown):
        book.unclear.append((row, answer.why or "its probe does not know"))
    elif isinstance(answer, Absent):
        fresh = row.settled_at is not None and row.settled_at + book.spec.settle > book.now
        if fresh:
            book.unclear.append((row, "too early: its settle delay is not over"))
        else:
            book.missing.append((row, why))


async def _ask_doubt(book: _Book, reader: Session, row: CallRow) -> None:
    compensation = book.spec.compensate
    undoing = row.state == "compensation_in_doubt"
    probe = (None if compensation is None else compensation.probe) if undoing else book.spec.probe
    if probe is None:
        book.doubts.append((row, None, "its compensation has no probe"))
        return
    answer = await ask_probe(reader, book.spec, probe, row)
    book.asked += 1
    words = {Happened: "the world has it", Absent: "the world does not have it"}
    book.doubts.append((row, None, words.get(type(answer), getattr(answer, "why", "") or "its probe does not know")))


async def _ask_gone(book: _Book, reader: Session, probe: ProbeSpec, row: CallRow) -> None:
    compensation = book.spec.compensate
    undone = row.state == "compensated"
    if undone:
        assert compensation is not None, "a compensated call has a compensation"
        assert compensation.probe is not None, "a call without a probe is not asked about"
        probe = compensation.probe
    answer = await ask_probe(reader, book.spec, probe, row)
    book.asked += 1
    if isinstance(answer, Unknown):
        book.unclear.append((row, answer.why or "its probe does not know"))
    elif undone and isinstance(answer, Absent):
        book.unrecorded.append((row, None, "its compensation is not there"))
    elif not undone and isinstance(answer, Happened):
        book.unrecorded.append((row, None, f"its probe finds it, and the ledger says that it is {row.state}"))
