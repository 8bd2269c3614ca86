"""A ledger whose payloads are encrypted: sealed on the way in, opened on the way out, by whoever has the keys.

Keys, states, times, tools, ids, tags, lock names and a person's words stay as they are: the ledger works with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from amends.approvalops import EditApproval
from amends.auditops import ReadChains
from amends.bundleops import ReadRecord
from amends.chain import proof
from amends.errors import LedgerCorrupt, LedgerSealed
from amends.forkops import ForkRun
from amends.ledger import (
    AdmitCall,
    BeginRollback,
    CloseRun,
    DecideCommit,
    NoteEvidence,
    NoteProbe,
    OpenChild,
    OpenRun,
    ResolveCall,
    RetryCall,
    SettleCall,
    SettleCompensation,
    Store,
    StoreOp,
)
from amends.record import changed
from amends.rows import PLAIN, CallRow, EventRow, RunRow, lost_at
from amends.secret import MARK, MASK, SEALED
from amends.vault import Vault, is_sealed
from amends.veil import with_secrets

T = TypeVar("T")

SAID: Final[dict[type[StoreOp[Any]], tuple[str, tuple[str, ...]]]] = {
    AdmitCall: ("call_id", ("args",)),
    OpenRun: ("uid", ("input",)),
    OpenChild: ("uid", ("input",)),
    SettleCall: ("call_id", ("result", "error")),
    SettleCompensation: ("call_id", ("error",)),
    NoteEvidence: ("call_id", ("result", "error")),
    ResolveCall: ("call_id", ("result",)),
    RetryCall: ("call_id", ("result",)),
    DecideCommit: ("run", ("output",)),
    NoteProbe: ("call_id", ("why",)),
    BeginRollback: ("", ("why",)),
}
"""What an operation says that is nobody else's, and the row that it is said of: it does not open in another one."""
RAW: Final[tuple[type[StoreOp[Any]], ...]] = (ReadRecord, ReadChains)
"""What is answered as it is written."""
PROVED: Final[dict[type[StoreOp[Any]], tuple[str, ...]]] = {
    AdmitCall: ("args",),
    OpenRun: ("input",),
    OpenChild: ("input",),
    SettleCall: ("result", "error"),
    NoteEvidence: ("result",),
    ResolveCall: ("result",),
    RetryCall: ("result",),
    DecideCommit: ("output",),
}
"""What of it an event proves: the first of these that it has."""
CALL_TEXTS: Final = ("args", "result", "error", "comp_error", "evidence", "learned")
RUN_TEXTS: Final = ("input", "output", "goal_why", "causes")
PARTS: Final = ("evidence", "learned", "causes")
"""Columns that are JSON of our own, in which only what somebody else said is sealed."""
ANYONES: Final = ("goal_why", "causes")
"""Columns that may be copied from one run to another, and so are sealed for no row in particular."""


class Sealing:
    """What goes into the ledger sealed, and what comes out of it opened."""

    CALLS: Final = CALL_TEXTS
    RUNS: Final = RUN_TEXTS

    def __init__(self, vault: Vault) -> None:
        self.vault = vault

    def seal(self, op: StoreOp[Any]) -> None:
        """Seal what the operation says, in place and once: asked again it must say the same."""
        if isinstance(op, CloseRun):
            op.causes = tuple(self.vault.seal(cause, "") for cause in op.causes)
        if isinstance(op, EditApproval):
            self.seal(op.instead)
        if isinstance(op, ForkRun):
            self._seal_fork(op)
        row, names = SAID.get(type(op), ("", ()))
        if not op.proof:
            op.proof = self._proof(op, PROVED.get(type(op), ()))
        about = getattr(op, row) if row else ""
        for name in names:
            text = getattr(op, name)
            if text is not None:
                setattr(op, name, self.sealed(text, about))

    def _proof(self, op: StoreOp[Any], names: tuple[str, ...]) -> str:
        """Of what the operation says, before nobody can read it any more."""
        said = next((text for name in names if (text := getattr(op, name))), "")
        return self.vault.proof(_settled(said)) if said and not is_sealed(said) else ""

    def proves(self, proved: str, text: str, about: str) -> bool | None:
        """Whether an event's proof is of this payload, of the row of this id; None: nobody can tell without its key."""
        try:
            text = self.vault.open(text, about)
        except LedgerSealed:
            return None
        except LedgerCorrupt:
            return False
        if ":" not in proved:  # written before the ledger was encrypted
            return proved in (proof(text), proof(_settled(text)))
        return self.vault.proves(proved, _settled(text))

    def sealed(self, text: str, about: str) -> str:
        """One payload; what says nothing of anybody, and what gc has left, stays as it is."""
        return text if text in PLAIN or lost_at(text) is not None else self.vault.seal(text, about)

    def _seal_fork(self, op: ForkRun) -> None:
        if not op.proofs:
            rows = [(row.uid, row, RUN_TEXTS[:2]) for row in op.runs]
            every: list[tuple[str, Any, tuple[str, ...]]] = [
                *rows,
                *((c.row.id, c.row, CALL_TEXTS[:3]) for c in op.calls),
            ]
            said = ((f"{id}.{name}", getattr(row, name)) for id, row, names in every for name in names)
            op.proofs = {name: self.vault.proof(_settled(text)) for name, text in said if text and not is_sealed(text)}
        op.runs = tuple(self._sealed_row(row, RUN_TEXTS, row.uid) for row in op.runs)
        op.calls = tuple(replace(one, row=self._sealed_row(one.row, CALL_TEXTS, one.row.id)) for one in op.calls)

    def _sealed_row(self, row: Any, names: tuple[str, ...], about: str) -> Any:
        """A row that comes whole, with each of its payloads sealed for it; those of our own JSON are empty in it."""
        texts = ((name, getattr(row, name)) for name in names if name not in PARTS)
        return changed(row, {name: self.sealed(text, "" if name in ANYONES else about) for name, text in texts if text})

    def opened(self, answer: T) -> T:
        """The answer with every row in it readable."""
        made: Any = self._opened(answer)
        return made  # type: ignore[no-any-return]

    def _opened(self, answer: Any) -> Any:
        if isinstance(answer, CallRow):
            return self._row(answer, CALL_TEXTS, answer.id)
        if isinstance(answer, RunRow):
            return self._row(answer, RUN_TEXTS, answer.uid)
        if isinstance(answer, EventRow):
            return self._event(answer)
        if isinstance(answer, list):
            return [self._opened(one) for one in answer]
        if isinstance(answer, tuple):
            return tuple([self._opened(one) for one in answer])
        if is_dataclass(answer) and not isinstance(answer, type):
            news = {one.name: self._opened(getattr(answer, one.name)) for one in fields(answer)}
            differs = {name: value for name, value in news.items() if value is not getattr(answer, name)}
            return changed(answer, differs) if differs else answer
        return answer

    def _row(self, row: Any, names: tuple[str, ...], about: str) -> Any:
        texts = ((name, getattr(row, name)) for name in names)
        is_loaded = bool(row.origin) if isinstance(row, RunRow) else row.is_loaded
        try:
            news = {name: self.readable(name, text, about) for name, text in texts if text and SEALED in text}
        except LedgerSealed:
            if not is_loaded:
                raise
            return row  # with the keys of another ledger: what cannot be read stays as it is, and is shown so
        return changed(row, news) if news else row

    def readable(self, name: str, text: str, about: str) -> str:
        """One column's text, opened."""
        if name in PARTS:
            return _each(text, name, lambda part: self.vault.open(part, "" if name in ANYONES else about))
        return self.vault.open(text, "" if name in ANYONES else about)

    def resealed(self, name: str, text: str, about: str) -> str:
        """One column's text, sealed with the newest key; the same text where it is already, or says nothing."""
        place = "" if name in ANYONES else about

        def renewed(part: str) -> str:
            fresh = self.vault.is_newest(part) or part in PLAIN or lost_at(part) is not None
            return part if fresh else self.vault.seal(self._inside(self.vault.open(part, place)), place)

        if not text or text in PLAIN:
            return text
        return _each(text, name, renewed) if name in PARTS else renewed(text)

    def _inside(self, text: str) -> str:
        """A payload with the hidden values in it sealed with the newest key as well."""
        if MARK not in text:
            return text

        def renewed(packed: Any) -> Any:
            if isinstance(packed, str):
                return {"$secret": packed}
            commitment, sealed = packed
            return {"$secret": [commitment, self.vault.seal(self.vault.open(sealed, commitment), commitment)]}

        return with_secrets(text, renewed)

    def _event(self, row: EventRow) -> EventRow:
        if SEALED not in row.facts:
            return row
        facts: Mapping[str, Any] = json.loads(row.facts)
        return changed(row, {"facts": json.dumps({name: self._fact(one, row) for name, one in facts.items()})})

    def _fact(self, fact: Any, row: EventRow) -> Any:
        if isinstance(fact, list):
            return [self._fact(one, row) for one in fact]
        if not isinstance(fact, str):
            return fact
        try:
            return self.vault.open(fact, row.call)
        except LedgerSealed:  # of a key that is gone: an event is never written again
            return f"({MASK} encrypted)"


def _settled(text: str) -> str:
    """A payload without what another key spells in another way: of a hidden value only what stands for it."""
    if MARK not in text:
        return text
    return with_secrets(text, lambda packed: {"$secret": packed if isinstance(packed, str) else packed[0]})


def _each(text: str, name: str, change: Callable[[str], str]) -> str:
    """The same JSON with what others said in it changed; the same text where nothing is."""
    kept: Any = json.loads(text)
    if name == "causes":
        news: Any = [change(cause) for cause in kept]
    elif name == "learned":
        news = [[*facts, change(why)] for *facts, why in kept]
    else:
        news = {key: change(one) if key in ("result", "error") and one else one for key, one in kept.items()}
    return text if news == kept else json.dumps(news, ensure_ascii=False)


class SealedStore:
    """A store through a ``Sealing``: what drivers perform their operations on."""

    def __init__(self, store: Store, sealing: Sealing) -> None:
        self.url = store.url
        self._store, self._sealing = store, sealing

    def open(self, *, create: bool) -> bool:
        """See ``Store``."""
        return self._store.open(create=create)

    def perform(self, op: StoreOp[T]) -> T:
        """See ``Store``."""
        if type(op) in RAW:
            return self._store.perform(op)
        self._sealing.seal(op)
        return self._sealing.opened(self._store.perform(op))

    async def perform_async(self, op: StoreOp[T]) -> T:
        """See ``Store``."""
        if type(op) in RAW:
            return await self._store.perform_async(op)
        self._sealing.seal(op)
        return self._sealing.opened(await self._store.perform_async(op))

    def close(self) -> None:
        """See ``Store``."""
        self._store.close()
