"""Erase what is recorded about one person. ``erase`` is a verb of the runtime (see ``amends.host.verbs``)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from unicodedata import normalize

from amends.encoding.dataclass import dataclass
from amends.encoding.payloads import decode
from amends.encoding.secret import SEALED
from amends.errors import CannotErase, SubjectNotFound, UsageError
from amends.host.filters import texts_at
from amends.host.host import Host, View
from amends.ledger.operations import (
    EndScrub,
    ErasedTree,
    EraseTree,
    ListHalts,
    ListPermits,
    ListRuns,
    ListTokens,
    OrderWork,
    ReadScrub,
    SearchCalls,
)
from amends.ledger.rows import CallRow, RunRow, lost_at
from amends.ledger.store import Scrubbing
from amends.ledger.world import Scrub
from amends.model import ErasedRun, Erasure
from amends.people.runs import check_reason

PAGE: Final = 500
"""Rows per page of the search."""
NAME_CHARS_MIN: Final = 3
"""A shorter value is not looked for in ids and reasons: it would be found everywhere."""
_NO_FIELDS: Final[Mapping[str, object]] = {}


async def erase(
    host: Host,
    view: View,
    *,
    by: str,
    why: str,
    tags: str | Sequence[str] = (),
    principal: str = "",
    fields: Mapping[str, object] = _NO_FIELDS,
    runs: str | Sequence[str] = (),
    dry_run: bool = False,
    partial: bool = False,
    residue: bool = False,
    tenant: str | None = None,
) -> Erasure:
    """Erase everything recorded about one person; ``verify`` still proves the rest, and names what was erased.

    A run is about the person if it has one of these ``tags`` or this ``principal``, if a call in it has an argument with one of
    these values (``fields``: ``{"to": "a@b.example"}``, ``{"customer.id": 7}``), or if its id is one of ``runs``. It is erased
    with all runs of its tree and with its forks: arguments, results, reasons, errors, tags, principal.

    ``dry_run``: erase nothing, and return what would be erased and what cannot be. If a run cannot be erased (it has not
    ended, it left something standing), ``CannotErase`` is raised before anything is erased; ``partial``: erase the others.
    ``residue``: also erase runs that have ended and left something standing or in doubt. Repeated after it was
    interrupted, it goes on.
    """
    check_reason(by, why)
    subject = _Subject.given(tags, principal, fields, runs)
    subject.refuse_in(why)
    whose = view.within(tenant) or ""
    if not dry_run:
        await _finish_scrub(host)  # of an erasure that was interrupted
    roots, ids = await _find_roots(whose, subject)
    found = [tree for root in roots if (tree := await EraseTree(root, by, why, "", residue, True)) is not None]
    todo = [tree for tree in found if not tree.kept and not tree.done_before]
    kept = [tree for tree in found if tree.kept]
    if not todo and not kept:
        raise SubjectNotFound("no run of this ledger is about this person, or all of them were erased before")
    stays = await _stays(whose, subject, [id for tree in found for id in ids.get(tree.root, ())])
    if dry_run:
        return _told(todo, kept, stays, dry_run=True)
    if kept and not partial:
        raise _refused(kept, ())
    if not todo:
        return _told((), kept, stays)
    words = json.dumps({"what": "erase", "by": subject.words, "runs": len(todo)}, ensure_ascii=False)
    order = (await OrderWork(host.new_id("wrk"), whose, words, by, why)).id
    scrubs = isinstance(host.store, Scrubbing)
    done = [await EraseTree(tree.root, by, why, order, residue, scrubs=scrubs) for tree in todo]
    await _finish_scrub(host)
    erased = [tree for tree in done if tree is not None and not tree.kept]
    late = [tree for tree in done if tree is not None and tree.kept]  # somebody was faster: it was opened again
    if late and not partial:
        raise _refused(late, erased)
    return _told(erased, kept + late, stays, order=order)


async def _finish_scrub(host: Host) -> None:
    """Rewrite the file of the ledger if an erasure needs it, its own or an interrupted one."""
    if isinstance(host.store, Scrubbing) and (order := await ReadScrub()):
        await Scrub(host.store)
        await EndScrub(order)


def _told(
    erased: Iterable[ErasedTree],
    kept: Iterable[ErasedTree],
    stays: tuple[str, ...],
    *,
    order: str = "",
    dry_run: bool = False,
) -> Erasure:
    runs, left = tuple(map(_run_of, erased)), tuple(map(_run_of, kept))
    return Erasure(runs, left, stays, order, dry_run)


def _run_of(tree: ErasedTree) -> ErasedRun:
    counts = (tree.runs, tree.calls, tree.approvals, tree.events, tree.freed)
    return ErasedRun(tree.run_id, tree.state, *counts, why=tree.kept)


def _refused(kept: Sequence[ErasedTree], erased: Sequence[ErasedTree]) -> CannotErase:
    named = "; ".join(f"run {tree.run_id} ({tree.state}): {tree.kept}" for tree in kept[:5])
    more = f"; and {len(kept) - 5} more" if len(kept) > 5 else ""
    return CannotErase(
        f"cannot be erased: {named}{more}",
        kept=[_run_of(tree) for tree in kept],
        erased=[_run_of(tree) for tree in erased],
    )


# ---- Who it is


@dataclass(frozen=True, slots=True)
class _Subject:
    """By what the runs about one person are recognised."""

    tags: tuple[str, ...]
    principal: str
    fields: tuple[tuple[str, str], ...]
    runs: tuple[str, ...]

    @classmethod
    def given(cls, tags: Any, principal: Any, fields: Any, runs: Any) -> _Subject:
        """Return the subject; raise ``UsageError`` if it is not one."""
        if not isinstance(principal, str):
            raise UsageError(f"principal= is a text, not {principal!r}")
        if not isinstance(fields, Mapping) or not all(isinstance(path, str) and path.strip() for path in fields):
            raise UsageError('fields= maps the path of an argument to its value: {"to": "a@b.example"}')
        found = {path: _text(path, value) for path, value in fields.items()}
        made = cls(_texts("tags", tags), principal, tuple(found.items()), _texts("runs", runs))
        if not (made.tags or made.principal or made.fields or made.runs):
            raise UsageError(
                "say whose data is to be erased",
                hint="tags=, principal=, fields= or runs=; several of them are added up",
            )
        return made

    @property
    def words(self) -> list[str]:
        """How the person was chosen, without saying who it is: it is kept."""
        kinds = (("tag", self.tags), ("principal", self.principal), ("run", self.runs))
        return [name for name, given in kinds if given] + [f"field {path}" for path, _ in self.fields]

    @property
    def names(self) -> tuple[str, ...]:
        """The values that identify the person."""
        values = [part for tag in self.tags for part in (tag, *_after_mark(tag))]
        values += [self.principal, *(value for _, value in self.fields)]
        return tuple(dict.fromkeys(one for one in values if len(one) >= NAME_CHARS_MIN))

    def refuse_in(self, why: str) -> None:
        """Raise ``UsageError`` if the reason names the person: it is kept for ever."""
        if self.is_named_in(why):
            raise UsageError(
                "the reason names the person, and it stays in the record", hint="name the request: 'request 4711'"
            )

    def is_named_in(self, *texts: str) -> bool:
        """Return whether one of these texts contains a value that identifies the person."""
        return any(name.casefold() in text.casefold() for text in texts for name in self.names)

    def is_run(self, row: RunRow) -> bool:
        """Return whether this run is about the person, as far as its row tells."""
        if (self.principal and row.principal == self.principal) or row.id in self.runs:
            return True
        return any(tag in self.tags for tag in json.loads(row.tags)) or self._is_in(row.input)

    def is_call(self, row: CallRow) -> bool:
        """Return whether this call has one of the values as its argument."""
        return self._is_in(row.args)

    def _is_in(self, text: str) -> bool:
        if not self.fields or not text or lost_at(text) is not None or text.startswith(SEALED):
            return False
        values = decode(text)
        return any(value in texts_at(values, path) for path, value in self.fields)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    many = (given,) if isinstance(given, str) else given
    if not isinstance(many, Sequence) or not all(isinstance(one, str) and one.strip() for one in many):
        raise UsageError(f"{name}= is a text or a list of texts, none of them empty")
    return tuple(many)


def _text(path: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if value is None or not text.strip() or not isinstance(value, str | int | float):
        raise UsageError(f"fields={{{path!r}: ...}} needs a text or a number, not {value!r}")
    return normalize("NFC", text)


def _after_mark(tag: str) -> tuple[str, ...]:
    """Return the value of a tag like ``customer=alice`` or ``customer:alice``."""
    return tuple(value for mark in "=:" if (value := tag.partition(mark)[2]))


# ---- Where it is


async def _find_roots(tenant: str, subject: _Subject) -> tuple[list[str], dict[str, list[str]]]:
    """Return the trees that are about the person, oldest first, each followed by its forks: those have copies.

    The second answer has the run ids that name the person, by tree: they stay.
    """
    roots: dict[str, None] = {}
    ids: dict[str, list[str]] = {}
    forks: dict[str, list[str]] = {}
    place: tuple[float, str] | None = None
    while page := await ListRuns(tenant, (), place, PAGE):
        place = (page[-1].created_at, page[-1].uid)
        for row in page:
            if row.forked_from and row.uid == row.root:
                forks.setdefault(row.forked_from, []).append(row.uid)
            if subject.is_run(row):
                roots[row.root] = None
            if subject.is_named_in(row.id):
                ids.setdefault(row.root, []).append(row.id)
    before: str | None = None
    while subject.fields and (calls := await SearchCalls(tenant, (), before, PAGE)):
        before = calls[-1].id
        roots |= dict.fromkeys(row.root for row in calls if subject.is_call(row))
    found: dict[str, None] = {}
    todo = sorted(roots)
    while todo:
        root = todo.pop(0)
        if root not in found:
            found[root] = None
            todo = [*forks.get(root, ()), *todo]
    return list(found), ids


async def _stays(tenant: str, subject: _Subject, ids: Iterable[str]) -> tuple[str, ...]:
    """Return what still names the person afterwards, in words: an erasure does not change it."""
    names_it = subject.is_named_in
    said = [f"the id of run {id}" for id in sorted(set(ids))]
    permits, _ = await ListPermits(tenant)
    said += [f"permit {one.id}: revoke it" for one in permits if names_it(one.words, one.why)]
    said += [f"halt {one.id}" for one in await ListHalts() if one.tenant == tenant and names_it(one.why)]
    tokens, _ = await ListTokens(tenant or None)
    mine = [one for one in tokens if one.tenant == tenant]
    said += [f"token {one.id}: revoke it" for one in mine if names_it(one.words, one.why)]
    return tuple(said)
