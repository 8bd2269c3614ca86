"""Encrypt arguments and results before they reach the ledger, and decrypt them afterwards."""

from __future__ import annotations

import hmac
import json
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, TypeVar

from amends.encoding.chain import proof
from amends.encoding.dataclass import changed
from amends.encoding.redaction import with_secrets
from amends.encoding.secret import MARK, MASK, SEALED
from amends.errors import BadConfig, LedgerCorrupt, LedgerSealed, LedgerUnavailable
from amends.ledger.operations import (
    AdmitCall,
    BeginRollback,
    CloseRun,
    DecideCommit,
    DropCall,
    EditApproval,
    FindTrees,
    ForkRun,
    ListRuns,
    NoteEvidence,
    NoteProbe,
    NoteReport,
    OpenChild,
    OpenRun,
    ReadCall,
    ReadChains,
    ReadRecord,
    ReadRun,
    ResolveCall,
    RetryCall,
    RewriteTexts,
    SearchCalls,
    SettleCall,
    SettleCompensation,
    StartCall,
    StoreOp,
)
from amends.ledger.rows import ERASED, GONE, PLAIN, ApprovalRow, CallRow, EventRow, RunRow
from amends.ledger.store import Store

KEY_BYTES_MIN: Final = 32
KEYS_MAX: Final = 100
NONCE_BYTES: Final = 12
_SHAPE: Final = re.compile(rf"{SEALED}([0-9a-f]{{8}}):([A-Za-z0-9_-]+=*)")

_REMOVED: Final = re.compile(rf"{GONE}[0-9.e+-]+(?:{ERASED})?")
"""What gc or an erasure has left of a payload; words of people may begin so, too."""


class Vault:
    """Encryption keys by their id. The first one encrypts; all of them decrypt."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or len(keys) > KEYS_MAX:
            raise _bad_encryption_key(f"encrypt takes 1 to {KEYS_MAX} keys, the newest first, not {len(keys)}")
        found = [_key_of(key) for key in keys]
        self.ids: tuple[str, ...] = tuple(id for id, _ in found)
        make = _cipher()
        self._ciphers: dict[str, Any] = {id: make(key) for id, key in found}
        self._proving = {id: sha256(b"amends proof" + key).digest() for id, key in found}
        self._newest = self._ciphers[self.ids[0]]

    def seal(self, text: str, about: str) -> str:
        """Return the text encrypted for one row (``about``); return one that was encrypted for it as it is.

        Words of a person or a model may look like an encrypted text: stored so, nobody could read their row.
        """
        if is_sealed(text) and self._opens(text, about):
            return text
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._newest.encrypt(nonce, text.encode("utf-8", "surrogatepass"), about.encode())
        return f"{SEALED}{self.ids[0]}:{urlsafe_b64encode(nonce + sealed).decode('ascii')}"

    def _opens(self, text: str, about: str) -> bool:
        try:
            self.open(text, about)
        except (LedgerSealed, LedgerCorrupt):
            return False
        return True

    def open(self, text: str, about: str) -> str:
        """Return the text decrypted; return a plain text as it is. Raise ``LedgerSealed`` without its key."""
        found = _SHAPE.fullmatch(text) if text.startswith(SEALED) else None
        if found is None:
            return text
        cipher = self._ciphers.get(found[1])
        if cipher is None:
            raise LedgerSealed(
                f"a stored value is encrypted with key {found[1]}; this runtime has {', '.join(self.ids)}"
            )
        try:
            raw = urlsafe_b64decode(found[2])
            plain: bytes = cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], about.encode())
        except Exception as error:  # the library does not say more
            raise LedgerCorrupt(
                f"a stored value cannot be decrypted with key {found[1]}: it was changed, or copied from another row",
                hint="restore the ledger from a backup",
            ) from error
        return plain.decode("utf-8", "surrogatepass")

    def proof(self, text: str) -> str:
        """Return what an event records of a payload: without the key, nobody can check a guess against it."""
        return self._proof(self.ids[0], text)

    def proves(self, proved: str, text: str) -> bool | None:
        """Return whether this is the proof of this text; None if its key is missing."""
        id = proved.partition(":")[0]
        return proved == self._proof(id, text) if id in self._proving else None

    def _proof(self, id: str, text: str) -> str:
        return f"{id}:{hmac.digest(self._proving[id], text.encode('utf-8', 'surrogatepass'), 'sha256').hex()}"

    def is_newest(self, text: str) -> bool:
        """Return whether the text is encrypted with the newest key."""
        return text.startswith(f"{SEALED}{self.ids[0]}:")


def is_sealed(text: str) -> bool:
    """Return whether this is an encrypted text."""
    return text.startswith(SEALED) and _SHAPE.fullmatch(text) is not None


def _key_of(given: str) -> tuple[str, bytes]:
    try:
        raw = urlsafe_b64decode(given.strip().replace("+", "-").replace("/", "_") + "==")
    except ValueError:
        raw = b""
    if len(raw) < KEY_BYTES_MIN:
        raise _bad_encryption_key(f"each key of encrypt must be {KEY_BYTES_MIN} random bytes as base64")
    key = sha256(b"amends encrypt" + raw).digest()
    return sha256(b"amends key id" + key).hexdigest()[:8], key


def _cipher() -> Any:
    try:
        return import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
    except ImportError as error:
        raise _bad_encryption_key(
            "encrypt needs the package cryptography", hint="pip install 'amends[crypto]'"
        ) from error


def _bad_encryption_key(
    problem: str, *, hint: str = 'make one: python -c "import secrets; print(secrets.token_urlsafe(32))"'
) -> BadConfig:
    return BadConfig(problem, setting="encrypt", hint=hint)


T = TypeVar("T")
SEALED_FIELDS: Final[dict[type[StoreOp[Any]], tuple[str, tuple[str, ...]]]] = {
    AdmitCall: ("call_id", ("args",)),
    OpenRun: ("uid", ("input",)),
    OpenChild: ("uid", ("input",)),
    StartCall: ("call_id", ("before",)),
    DropCall: ("call_id", ("error",)),
    SettleCall: ("call_id", ("result", "error")),
    SettleCompensation: ("call_id", ("error",)),
    NoteEvidence: ("call_id", ("result", "error")),
    NoteReport: ("call_id", ("result", "error")),
    ResolveCall: ("call_id", ("result",)),
    RetryCall: ("call_id", ("result",)),
    DecideCommit: ("run", ("output",)),
    NoteProbe: ("call_id", ("why",)),
    BeginRollback: ("", ("why",)),
    EditApproval: ("call_id", ("told",)),
}
"""Per operation: the attribute with the id of its row, and its attributes that are encrypted for that row only."""
UNOPENED: Final[tuple[type[StoreOp[Any]], ...]] = (ReadRecord, ReadChains, FindTrees)
"""Operations whose answers stay encrypted: an export or an audit needs no key."""
PROVED_FIELDS: Final[dict[type[StoreOp[Any]], tuple[str, ...]]] = {
    AdmitCall: ("args",),
    OpenRun: ("input",),
    OpenChild: ("input",),
    StartCall: ("before",),
    DropCall: ("error",),
    SettleCall: ("result", "error"),
    NoteEvidence: ("result",),
    NoteReport: ("result",),
    ResolveCall: ("result",),
    RetryCall: ("result",),
    DecideCommit: ("output",),
}
"""Per operation: the attributes whose text an event proves; it proves the first one that is set."""
CALL_TEXTS: Final = ("args", "result", "error", "comp_error", "evidence", "learned", "before")
RUN_TEXTS: Final = ("input", "output", "goal_why", "causes")
PARTIAL_TEXTS: Final = ("evidence", "learned", "causes")
"""Columns with JSON of our own, in which only user data is encrypted."""
UNBOUND_TEXTS: Final = ("goal_why", "causes")
"""Columns that may be copied from one run to another, so they are not encrypted for one row."""


class Sealing:
    """Encrypts payloads on their way into the ledger and decrypts them on their way out."""

    CALLS: Final = CALL_TEXTS
    RUNS: Final = RUN_TEXTS

    def __init__(self, vault: Vault) -> None:
        self.vault = vault

    def seal(self, op: StoreOp[Any]) -> None:
        """Encrypt the payloads of an operation, in place and once: a repeated operation must be the same."""
        if isinstance(op, CloseRun):
            op.causes = tuple(self.vault.seal(cause, "") for cause in op.causes)
        if isinstance(op, DecideCommit) and op.incomplete:
            op.incomplete, op.cause = self.vault.seal(op.incomplete, ""), self.vault.seal(op.cause, "")
        if isinstance(op, EditApproval):
            self.seal(op.instead)
        if isinstance(op, ForkRun):
            self._seal_fork(op)
        row, names = SEALED_FIELDS.get(type(op), ("", ()))
        if not op.proof:
            op.proof = self._proof(op, PROVED_FIELDS.get(type(op), ()))
        about = getattr(op, row) if row else ""
        for name in names:
            text = getattr(op, name)
            if text is not None:
                setattr(op, name, self.sealed(text, about))

    def _proof(self, op: StoreOp[Any], names: tuple[str, ...]) -> str:
        """Return the proof of the operation's payload, computed before it is encrypted."""
        said = next((text for name in names if (text := getattr(op, name))), "")
        return self.vault.proof(without_keys(said)) if said and not is_sealed(said) else ""

    def proves(self, proved: str, text: str, about: str) -> bool | None:
        """Return whether an event's proof fits this payload of row ``about``; None if its key is missing."""
        try:
            text = self.vault.open(text, about)
        except LedgerSealed:
            return None
        except LedgerCorrupt:
            return False
        if ":" not in proved:  # written before the ledger was encrypted
            return proved in (proof(text), proof(without_keys(text)))
        return self.vault.proves(proved, without_keys(text))

    def sealed(self, text: str, about: str) -> str:
        """Return one payload encrypted; constants such as ``null``, and what gc has left, stay plain."""
        return text if text in PLAIN or _REMOVED.fullmatch(text) else self.vault.seal(text, about)

    def _seal_fork(self, op: ForkRun) -> None:
        if not op.proofs:
            rows = [(row.uid, row, RUN_TEXTS[:2]) for row in op.runs]
            every: list[tuple[str, Any, tuple[str, ...]]] = [
                *rows,
                *((c.row.id, c.row, CALL_TEXTS[:3]) for c in op.calls),
            ]
            said = ((f"{id}.{name}", getattr(row, name)) for id, row, names in every for name in names)
            op.proofs = {
                name: self.vault.proof(without_keys(text)) for name, text in said if text and not is_sealed(text)
            }
        op.runs = tuple(self._sealed_row(row, RUN_TEXTS, row.uid) for row in op.runs)
        op.calls = tuple(replace(one, row=self._sealed_row(one.row, CALL_TEXTS, one.row.id)) for one in op.calls)

    def _sealed_row(self, row: Any, names: tuple[str, ...], about: str) -> Any:
        """Return a whole row with each payload encrypted for it; the columns in ``PARTIAL_TEXTS`` are empty in such a row."""
        texts = ((name, getattr(row, name)) for name in names if name not in PARTIAL_TEXTS)
        return changed(
            row, {name: self.sealed(text, "" if name in UNBOUND_TEXTS else about) for name, text in texts if text}
        )

    def opened(self, answer: T) -> T:
        """Return the answer of an operation with every row in it decrypted."""
        made: Any = self._opened(answer)
        return made  # type: ignore[no-any-return]

    def _opened(self, answer: Any) -> Any:
        if isinstance(answer, CallRow):
            return self._refusal(self._row(answer, CALL_TEXTS, answer.id))
        if isinstance(answer, RunRow):
            return self._row(answer, RUN_TEXTS, answer.uid)
        if isinstance(answer, EventRow):
            return self._event(answer)
        if isinstance(answer, ApprovalRow):
            reason = self._inside_words(answer.reason, answer.call)
            return changed(answer, {"reason": reason}) if reason != answer.reason else answer
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
            return row  # loaded from a ledger with other keys: it stays encrypted, and is shown as unreadable
        return changed(row, news) if news else row

    def _refusal(self, row: CallRow) -> CallRow:
        """Return a refused call whose reason quotes the arguments to ask for instead, with these decrypted."""
        if row.state != "refused" or SEALED not in row.why:
            return row
        error = row.error
        if error.startswith("["):  # else it was loaded, and is encrypted with a key that is missing here
            by, reason = json.loads(error)
            error = json.dumps([by, self._inside_words(reason, row.id)], ensure_ascii=False)
        return changed(row, {"error": error, "why": self._inside_words(row.why, row.id)})

    def _inside_words(self, text: str, about: str) -> str:
        """Return words of ours with the payload that they quote decrypted; it was encrypted for the row ``about``."""
        return _SHAPE.sub(lambda found: self._words(found[0], about), text) if SEALED in text else text

    def readable(self, name: str, text: str, about: str) -> str:
        """Return the text of one column, decrypted."""
        if name in UNBOUND_TEXTS:
            return _changed_texts(text, name, self._words) if name in PARTIAL_TEXTS else self._words(text)
        if name in PARTIAL_TEXTS:
            return _changed_texts(text, name, lambda part: self.vault.open(part, about))
        return self.vault.open(text, about)

    def _words(self, text: str, about: str = "") -> str:
        """Return words for people, decrypted. Not every verb encrypts them, and words may look encrypted: no error here."""
        try:
            return self.vault.open(text, about)
        except LedgerSealed:
            return f"({MASK} encrypted)"
        except LedgerCorrupt:
            return text

    def resealed(self, name: str, text: str, about: str) -> str:
        """Return the text of one column, encrypted with the newest key; unchanged if it is already, or is empty."""
        place = "" if name in UNBOUND_TEXTS else about

        def renewed(part: str) -> str:
            if self.vault.is_newest(part) or part in PLAIN or _REMOVED.fullmatch(part):
                return part
            try:
                plain = self.vault.open(part, place)
            except (LedgerSealed, LedgerCorrupt):
                if name not in UNBOUND_TEXTS:
                    raise
                return part  # words that only look encrypted, or are hidden for good
            return self.vault.seal(self._inside(plain), place)

        if not text or text in PLAIN:
            return text
        return _changed_texts(text, name, renewed) if name in PARTIAL_TEXTS else renewed(text)

    def _inside(self, text: str) -> str:
        """Return a payload with the redacted values in it encrypted with the newest key as well."""
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
        if is_sealed(fact):  # if its key is missing: an event is never rewritten
            return self._words(fact, row.call)
        return self._inside_words(fact, row.call) if row.call else fact


def without_keys(text: str) -> str:
    """Return a payload without the parts that depend on the key: of a redacted value only its commitment."""
    if MARK not in text:
        return text
    return with_secrets(text, lambda packed: {"$secret": packed if isinstance(packed, str) else packed[0]})


def _changed_texts(text: str, name: str, change: Callable[[str], str]) -> str:
    """Return our own JSON with its user data changed by ``change``; the same text if nothing changes."""
    kept: Any = json.loads(text)
    if name == "causes":
        news: Any = [change(cause) for cause in kept]
    elif name == "learned":
        news = [[*facts, change(why)] for *facts, why in kept]
    else:
        news = {key: change(one) if key in ("result", "error") and one else one for key, one in kept.items()}
    return text if news == kept else json.dumps(news, ensure_ascii=False)


class SealedStore:
    """A store with encrypted payloads; drivers perform their operations on it."""

    def __init__(self, store: Store, sealing: Sealing) -> None:
        self.url = store.url
        self._store, self._sealing = store, sealing

    def open(self, *, create: bool) -> bool:
        """See ``Store``."""
        return self._store.open(create=create)

    def perform(self, op: StoreOp[T]) -> T:
        """See ``Store``."""
        if type(op) in UNOPENED:
            return self._store.perform(op)
        self._sealing.seal(op)
        return self._sealing.opened(self._store.perform(op))

    async def perform_async(self, op: StoreOp[T]) -> T:
        """See ``Store``."""
        if type(op) in UNOPENED:
            return await self._store.perform_async(op)
        self._sealing.seal(op)
        return self._sealing.opened(await self._store.perform_async(op))

    def close(self) -> None:
        """See ``Store``."""
        self._store.close()


# ---- Encrypting what is stored with the newest key

PAGE: Final = 200
TRIES_MAX: Final = 10
"""How often to read a row again that changes at the same time."""


def encrypt_anew(store: Store, sealing: Sealing) -> int:
    """Encrypt the payloads of every row with the newest key, row by row; return how many rows changed."""
    count = 0
    place: tuple[float, str] | None = None
    while runs := store.perform(ListRuns(None, (), place, PAGE)):
        place = (runs[-1].created_at, runs[-1].uid)
        count += sum(_rewritten(store, sealing, run) for run in runs if not run.origin)
    before: str | None = None
    while calls := store.perform(SearchCalls(None, (), before, PAGE)):
        before = calls[-1].id
        count += sum(_rewritten(store, sealing, call) for call in calls if not call.is_loaded)
    return count


def _rewritten(store: Store, sealing: Sealing, row: RunRow | CallRow) -> int:
    """Encrypt one row with the newest key; return 1 if it had to be written. Try again if it changed meanwhile."""
    is_call = isinstance(row, CallRow)
    about = row.id if isinstance(row, CallRow) else row.uid
    names = sealing.CALLS if is_call else sealing.RUNS
    for _ in range(TRIES_MAX):
        was = {name: text for name in names if (text := getattr(row, name))}
        now = {name: sealing.resealed(name, text, about) for name, text in was.items()}
        news = {name: text for name, text in now.items() if text != was[name]}
        if not news:
            return 0
        op = RewriteTexts(about, is_call, {name: was[name] for name in news}, news)
        if store.perform(op) == len(news):
            return 1
        fresh: Any = store.perform(ReadCall(about)) if is_call else _run(store, about)
        assert fresh is not None, "no row is ever deleted"
        row = fresh
    raise LedgerUnavailable(f"{about} changes faster than it can be encrypted; nothing was lost", hint="run it again")


def _run(store: Store, uid: str) -> RunRow | None:
    tree = store.perform(ReadRun("", uid=uid))
    return None if tree is None else tree.run
