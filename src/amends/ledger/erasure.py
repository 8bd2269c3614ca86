"""Erase what is recorded about people in one ended tree; the chain of its events stays provable.

Every text that a person, a model or a tool wrote goes: payloads, reasons, errors, tags, the principal. Ids, states, times,
numbers and digests stay. An event that loses texts keeps the digest of what it said (``erased_body``), by which the chain
is linked. The last event of the erasure, ``erased``, has a digest over every erased event as it was and as it is now:
whoever changes one of them afterwards, or claims that another one was erased, is found by an audit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from amends.encoding.chain import proof, storable
from amends.encoding.dataclass import changed, dataclass
from amends.ledger.events import (
    call_columns_digest,
    decision_digest,
    request_columns_digest,
    run_columns_digest,
    write_event,
    written_facts,
)
from amends.ledger.operations import EndScrub, ErasedTree, EraseTree, ReadScrub
from amends.ledger.queries import approvals_of, drop_slices, list_calls, list_tree, page_events
from amends.ledger.retention import bare_error, emptied_call, open_question
from amends.ledger.rows import (
    APPROVALS,
    CALLS,
    ERASED,
    EVENTS,
    GONE,
    MARKS,
    RUNS,
    ApprovalRow,
    CallRow,
    EventRow,
    MarkRow,
    Now,
    RunRow,
    erased_body,
    person,
    removed,
)
from amends.ledger.tables import Add, Change, ChangeMany, Changes, Find, Remove, equal
from amends.ledger.trees import forks_on

ERASURE: Final = "erased"
"""The event that ends an erasure: who, why, by which order, and the digest of what it left of the events."""
ROW: Final = "row erased"
"""The event that has the digests of a row whose columns lost texts."""
EVENTS_PAGE: Final = 1_000
PAGES_MAX: Final = 10**6
SCRUB: Final = "scrub"
"""The mark of an erasure after which the file of the ledger is still to be rewritten: the id of the newest order."""

OPEN_TREE: Final = "it has not ended"
OPEN_FORKS: Final = "a fork of it has not ended"
LOADED_TREE: Final = "it was loaded from another ledger"
"""Why a tree cannot be erased."""

KEPT_FACTS: Final = frozenset(
    """
    accepts alias amount answer answered approval args asked before behalf budgets cap compensation completion costs
    decision delegation digest editors erased every evidence failure follows fork forked_at forked_from forks given goal
    goal_by halt heads held_by ident input known law learned nonce of order output parent pattern per period permit pivot
    plan proof reason request reserved result roles row shared spent terms then token tool twin unit violation who
    """.split()  # noqa: SIM905 (a list of words reads better as words)
)
"""The facts of events that stay: ids, digests, names of tools and of people who decided, amounts. Numbers stay too."""


async def erase_tree(op: EraseTree) -> ErasedTree | None:
    """Erase the texts of an ended tree (``EraseTree``)."""
    root = await Find(RUNS, op.root, peek=op.dry_run)
    if root is None:
        return None
    if op.repeated and not op.dry_run and (first := await _first_answer(op, root)) is not None:
        return first
    runs, calls, asked = await list_tree(root.uid), await list_calls(root.uid), await approvals_of(root.uid)
    answer = ErasedTree(root.uid, root.id, root.state, len(runs), len(calls), len(asked))
    if kept := await _kept_for(op, root, calls):
        return changed(answer, {"kept": kept})
    now = await Now(root.uid)
    people = frozenset(person(run.principal) for run in runs if run.principal)
    lost = _Lost(
        [(run, _changes(run, _run_texts(run, now))) for run in runs],
        [(call, _changes(call, _call_texts(call, now, people))) for call in calls],
        [(one, _changes(one, _approval_texts(one, people))) for one in asked],
    )
    events = await _events_after(root.uid, people)
    fresh = [(old, new) for old, new in events if old != new]
    if root.is_erased and not fresh and not any(news for _, news in (*lost.runs, *lost.calls, *lost.approvals)):
        return changed(answer, {"done_before": True})
    freed = lost.freed + sum(max(0, _bytes(old.facts) - _bytes(new.facts)) for old, new in fresh)
    answer = changed(answer, {"events": len(fresh), "freed": freed})
    if not op.dry_run:
        await _erase_rows(op, root, lost, now)
        for old, new in fresh:
            await Change(EVENTS, old, _changes(old, {"facts": new.facts, "by_whom": new.by_whom}))
        await _write_erasure(op, root, answer, now, left=_left_of(new for _, new in events))
    return answer


@dataclass(frozen=True, slots=True)
class _Lost:
    """The rows of a tree, each with what changes in it."""

    runs: list[tuple[RunRow, Changes]]
    calls: list[tuple[CallRow, Changes]]
    approvals: list[tuple[ApprovalRow, Changes]]

    @property
    def freed(self) -> int:
        """How many bytes of text the rows lose."""
        rows = (*self.runs, *self.calls, *self.approvals)
        return sum(_bytes(text) for row, news in rows for name in news if isinstance(text := getattr(row, name), str))


async def _erase_rows(op: EraseTree, root: RunRow, lost: _Lost, now: float) -> None:
    """Change the rows; where an event proves columns that lost texts, write another one that proves what is left."""
    said: dict[str, Any] = {"at": now, "by": storable(op.by), "epoch": root.epoch, "order": op.order}
    by_uid: dict[str, RunRow] = {}
    for run, news in lost.runs:
        new = by_uid[run.uid] = await Change(RUNS, run, {**news, "gone_at": run.gone_at or now})
        if {"principal", "tags", "completion"} & news.keys():
            completion = proof(new.completion) if new.completion else None
            await write_event(new, ROW, **said, row=run_columns_digest(new), completion=completion)
    await ChangeMany(CALLS, tuple((call, news) for call, news in lost.calls if news))
    for call, news in lost.calls:
        refused = call.state == "refused" and "error" in news
        if "again" in news or refused:
            after = changed(call, news)
            columns = call_columns_digest(after, after.key, after.generation)
            failure = proof(after.error) if refused else None
            await write_event(by_uid[call.run], ROW, **said, call=call.id, row=columns, failure=failure)
    for asked, news in lost.approvals:
        if news:
            row = await Change(APPROVALS, asked, news)
            given = proof(row.given) if row.given != "[]" else None
            words: dict[str, Any] = {"terms": request_columns_digest(row), "said": decision_digest(row), "given": given}
            await write_event(by_uid[asked.run], ROW, **said, call=asked.call, approval=asked.id, **words)
    if any(call.cost for call, _ in lost.calls):
        await drop_slices(root.uid)


async def _write_erasure(op: EraseTree, root: RunRow, answer: ErasedTree, now: float, *, left: str) -> None:
    counts: dict[str, Any] = {
        "runs": answer.runs,
        "calls": answer.calls,
        "approvals": answer.approvals,
        "events": answer.events,
    }
    await write_event(
        root, ERASURE, at=now, by=storable(op.by), epoch=root.epoch, why=storable(op.why), order=op.order, **counts,
        bytes=answer.freed, left=left,
    )  # fmt: skip
    if op.scrubs:
        await _note_scrub(op.order, now)


async def _kept_for(op: EraseTree, root: RunRow, calls: Iterable[CallRow]) -> str:
    """Return why this tree cannot be erased now; empty: it can."""
    if root.uid != root.root or root.closed_at is None or root.owner:
        return OPEN_TREE
    if root.origin:
        return LOADED_TREE
    if any(fork.closed_at is None for fork in await forks_on(root.uid)):
        return OPEN_FORKS
    return "" if op.residue or root.is_erased else open_question(root, calls)


async def _first_answer(op: EraseTree, root: RunRow) -> ErasedTree | None:
    """Return what this order did to the tree, if it was here before and its answer was lost; None: it was not."""
    for event in await _read_events(root.uid):
        facts = json.loads(event.facts) if event.what == ERASURE else {}
        if facts.get("order") == op.order:
            counts = {name: facts.get(name, 0) for name in ("runs", "calls", "approvals", "events")}
            return ErasedTree(root.uid, root.id, root.state, **counts, freed=facts.get("bytes", 0))
    return None


# ---- What rows lose


def _changes(row: Any, texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts that differ from those of the row."""
    return {name: text for name, text in texts.items() if text != getattr(row, name)}


def _run_texts(run: RunRow, now: float) -> dict[str, Any]:
    """Return what is left of the texts of a run. The input of a root always says that the tree was erased."""
    is_marked = run.uid != run.root or run.is_erased
    return {
        "input": removed(run.input, now, erased=True) if is_marked else f"{GONE}{now!r}{ERASED}",
        "output": removed(run.output, now, erased=True),
        "goal_why": "",
        "causes": "[]",
        "principal": "",
        "tags": "[]",
        "completion": "{}" if run.completion else "",  # it may name arguments; what is left of it says nothing
    }


def _call_texts(call: CallRow, now: float, people: frozenset[str]) -> dict[str, Any]:
    """Return what is left of the texts of a call: what gc leaves, without the words of people."""
    error = bare_error(call.error)
    if error and call.state == "refused" and person(str(json.loads(error)[0])) in people:
        error = json.dumps(["", ""])  # the error of a refusal begins with who refused
    return emptied_call(call, now, erased=True) | {"error": error, "why": "", "again": "", "principal": ""}


def _approval_texts(row: ApprovalRow, people: frozenset[str]) -> dict[str, Any]:
    """Return what is left of a request: who decided or edited it stays, unless it is one of these people; why goes."""
    editors = _without(people, row.edited_by)
    given = [
        {**one, "why": "", "by": "" if person(str(one.get("by", ""))) in people else one.get("by", "")}
        for one in row.yeses
    ]
    return {
        "principal": "",
        "rule": "",
        "reason": "",
        "given": json.dumps(given, ensure_ascii=False) if given != row.yeses else row.given,
        "by_whom": "" if person(row.by_whom) in people else row.by_whom,
        "editors": row.editors if editors == list(row.edited_by) else json.dumps(editors, ensure_ascii=False),
    }


def _without(people: frozenset[str], names: Iterable[Any]) -> list[str]:
    """Return the names, an empty one in the place of each of these people."""
    return ["" if person(str(one)) in people else str(one) for one in names]


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


# ---- What events lose


async def _read_events(root: str) -> list[EventRow]:
    found: list[EventRow] = []
    for _ in range(PAGES_MAX):
        page = await page_events(root, None, found[-1].n if found else 0, EVENTS_PAGE)
        found += page
        if len(page) < EVENTS_PAGE:
            return found
    raise AssertionError("a tree has fewer pages of events than PAGES_MAX")


async def _events_after(root: str, people: frozenset[str]) -> list[tuple[EventRow, EventRow]]:
    """Return every event that is erased already, or is to be: as it is stored, and as it is afterwards."""
    found = []
    for event in await _read_events(root):
        new = event if erased_body(event.facts) else _without_texts(event, people)
        if erased_body(new.facts):
            found.append((event, new))
    return found


def _without_texts(event: EventRow, people: frozenset[str]) -> EventRow:
    """Return the event without what people wrote; the same event if there is nothing to take away."""
    if event.what in (ERASURE, ROW) or (event.facts == "{}" and not people):
        return event
    facts: dict[str, Any] = json.loads(event.facts)
    kept = {name: value for name, value in facts.items() if _stays(name, value)}
    if kept.get("editors") and (left_editors := _without(people, kept["editors"])) != list(kept["editors"]):
        kept["editors"] = left_editors
    # A decision for somebody else is proved by the delegation, which names both people.
    hides = bool(event.by_whom) and person(event.by_whom) in people and "delegation" not in facts
    if kept == facts and not hides:
        return event
    left = {"facts": written_facts({"erased": event.body, **kept})}
    return changed(event, left | ({"by_whom": ""} if hides else {}))


def _stays(name: str, value: Any) -> bool:
    if value is None or isinstance(value, int | float):
        return True
    return name in KEPT_FACTS or (name == "said" and isinstance(value, str))  # the digest of a decision


def left_line(event: EventRow) -> bytes:
    """Return what the digest of an erasure says of an erased event: its number, what it said, and what it says now."""
    return f"{event.n}:{event.body}:{event.left_body}\n".encode()


def _left_of(events: Iterable[EventRow]) -> str:
    made = sha256()
    for event in events:
        made.update(left_line(event))
    return made.hexdigest()


# ---- Rewriting the file


async def _note_scrub(order: str, now: float) -> None:
    known = await Find(MARKS, SCRUB)
    if known is not None:
        await Change(MARKS, known, {"value": order})
    else:
        await Add(MARKS, MarkRow(SCRUB, order, now), if_absent=True)


async def read_scrub(_op: ReadScrub) -> str:
    """Read which order still needs the file rewritten (``ReadScrub``)."""
    known = await Find(MARKS, SCRUB)
    return "" if known is None else known.value


async def end_scrub(op: EndScrub) -> bool:
    """Note that the file was rewritten (``EndScrub``)."""
    await Remove(MARKS, equal(name=SCRUB, value=op.order))
    return await Find(MARKS, SCRUB) is None
