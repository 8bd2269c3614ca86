"""The redaction of one process: which values are hidden, with which key, and what of a run's input and output is recorded."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import weakref
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amends.encoding.annotations import shape_of_given
from amends.encoding.canonical import canonical, digest, encode
from amends.encoding.dataclass import dataclass
from amends.encoding.lazy_import import import_on_use
from amends.encoding.payloads import Stored, decode
from amends.encoding.redaction import NO_SECRETS, Known, Redactor
from amends.encoding.secret import MARK, SEALED, UNREADABLE, RedactionRules, redaction_rules
from amends.engine.session import Session
from amends.errors import BadConfig, NotStorable
from amends.host.settings import Setting
from amends.ledger.operations import PinKey
from amends.ledger.rows import RunRow, lost_at
from amends.ledger.store import Store
from amends.tools.checks import check_recoverable
from amends.tools.spec import Spec

if TYPE_CHECKING:
    from amends.host import encryption
else:
    import_on_use(globals(), encryption="amends.host.encryption")


class Hiding:
    """The redaction of a runtime and, if it has encryption keys, the encryption of its ledger."""

    def __init__(self, store: Store, settings: dict[str, Setting]) -> None:
        self._store = store
        self._key: str = settings["secret_key"].value or ""
        self._hides = False
        self.sealing: encryption.Sealing | None = None
        self.kept: Store = store
        """The ledger as drivers see it; the store itself if nothing is encrypted."""
        self.redactor = Redactor(_patterns(settings["redact"]))
        if keys := settings["encrypt"].value:
            self._encrypt(keys)
        for name, shown in (("secret_key", "(set)"), ("encrypt", self._key_ids())):
            if settings[name].value:  # settings are printed: of a key they show only that it is set, or its id
                settings[name] = Setting(shown, settings[name].origin)

    def _key_ids(self) -> str:
        return "" if self.sealing is None else ", ".join(self.sealing.vault.ids)

    def _encrypt(self, keys: tuple[str, ...]) -> None:
        self.sealing = encryption.Sealing(encryption.Vault(keys))
        self.kept = encryption.SealedStore(self._store, self.sealing)
        self.redactor.vault = self.sealing.vault

    def check(self, specs: Iterable[Spec]) -> None:
        """Check what these tools redact, without reading a file; raise ``BadConfig`` or ``BadDeclaration``."""
        for spec in specs:
            self._hides = self._hides or bool(spec.redact)
            if self.sealing is None:
                check_recoverable(spec)
        if self._hides or self.redactor.is_wide:
            self._hides = True
            check_key(self._store, self._key)

    @property
    def hides(self) -> bool:
        """Whether something is redacted, so that a key is needed."""
        return self._hides

    def ready(self) -> None:
        """Load the key if something is redacted; the ledger must be open."""
        if self._hides and not self.redactor.key:
            self.redactor.key = secret_key(self._store, self._key)


def _patterns(setting: Setting) -> RedactionRules:
    try:
        return redaction_rules(setting.value or ())
    except ValueError as error:
        raise BadConfig(f"redact: {error}", setting="redact", origin=setting.origin) from error


@dataclass(frozen=True, slots=True)
class Said:
    """An input as it is recorded: its text, its digest, the redacted value, and the secrets that were in it."""

    text: str = ""
    digest: str = ""
    shown: Any = None
    known: Known = NO_SECRETS


def recorded_input(redactor: Redactor, tenant: str, value: object) -> Said:
    """Return a run's input as it is recorded, redacted by the runtime's patterns."""
    if value is None:
        return Said()
    shown, known = redactor.hide(value, (tenant, "input"), path="input") if redactor.is_wide else (value, NO_SECRETS)
    return Said(encode(shown, path="input"), digest("input", canonical(shown, path="input")), shown, known)


def named_by(said: Said) -> str:
    """Return the digest that names a child run without a name: of its input, including the classes of the values."""
    try:
        meaning = canonical(said.shown, path="input", shape=shape_of_given(said.shown))
    except NotStorable:  # then by its plain data, as it is recorded
        return said.digest
    return digest("input", meaning)


def input_for_program(session: Session, row: RunRow) -> Any:
    """Return a run's input as its program gets it; a redacted value is a ``Secret`` unless it is known here."""
    if not row.input or lost_at(row.input) is not None:
        return None
    if row.input.startswith(SEALED):
        return UNREADABLE
    text = session.redactor.revealed(row.input)
    return session.given if MARK in text and session.given is not None else decode(text)


def recorded_output(session: Session, value: object) -> str:
    """Return a run's output as it is recorded: without the values that this run redacts."""
    text = encode(value, path="output")
    if not session.known and not session.redactor.is_wide:
        return text
    return session.redactor.kept(Stored(text, None), session.known, (session.tenant, "output")).text or text


def readable_output(session: Session, text: str, value: object) -> Any:
    """Return a run's output as every later reader gets it: plain data, not the program's own object.

    If something is redacted, the program keeps its value, because the recorded text may lack parts of it.
    """
    return value if session.known or session.redactor.is_wide else decode(text)


def output_of(session: Session, row: RunRow) -> Any:
    """Return a run's recorded output as its program gets it."""
    if row.output.startswith(SEALED):
        return UNREADABLE
    return None if not row.output or lost_at(row.output) is not None else decode(session.redactor.revealed(row.output))


KEY_CHARS_MIN: Final = 32
MAKE: Final = 'make one: python -c "import secrets; print(secrets.token_urlsafe(32))"; keep it as you keep passwords'
_memory: Final[weakref.WeakKeyDictionary[Store, bytes]] = weakref.WeakKeyDictionary()
"""Keys of ledgers in memory: they end with the process, as the ledger does."""


def check_key(store: Store, given: str) -> None:
    """Raise ``BadConfig`` if there can be no key for this ledger; read no file."""
    if given and len(given) < KEY_CHARS_MIN:
        raise _bad_secret_key(f"secret_key has {len(given)} characters; it needs at least {KEY_CHARS_MIN}", hint=MAKE)
    if not given and store.url != "memory:" and _file_of(store) is None:
        raise _bad_secret_key(
            "something is redacted, but there is no secret_key: the commitments to redacted values need it",
            hint=f"set AMENDS_SECRET_KEY, to the same value in every process that uses this ledger; {MAKE}",
        )


def secret_key(store: Store, given: str) -> bytes:
    """Return the key of this ledger, which must be open: the given one, or from the file beside it, which is created.

    Raise ``BadConfig`` if it is not the key that the ledger's commitments were made with.
    """
    pinned = store.perform(PinKey(""))
    file = _file_of(store)
    if given:
        key, origin = _derived(given), "secret_key"
    elif file is not None:
        key, origin = _derived(_from_file(file, create=not pinned)), str(file)
    else:
        key, origin = _memory.setdefault(store, secrets.token_bytes(32)), "memory"
    fingerprint = hmac.digest(key, b"amends fingerprint", "sha256").hex()[:16]
    pinned = pinned or store.perform(PinKey(fingerprint))
    if pinned != fingerprint:
        raise _bad_secret_key(
            f"the key from {origin} is not the one that this ledger's redacted values were recorded with; with it the "
            "same request would not be recognised and would be done twice",
            hint="use the earlier key: from AMENDS_SECRET_KEY, or from the .key file that was beside the ledger",
        )
    return key


def _derived(text: str) -> bytes:
    return sha256(b"amends secret key" + text.strip().encode()).digest()


def _file_of(store: Store) -> Path | None:
    path = getattr(store, "path", None)
    return path.with_name(f"{path.name}.key") if isinstance(path, Path) else None


def _from_file(file: Path, *, create: bool) -> str:
    try:
        return _read(file)
    except FileNotFoundError:
        if not create:
            raise _bad_secret_key(
                f"the key of this ledger is missing: there is no {file}",
                hint="restore it from the place that the ledger was copied or restored from, or set AMENDS_SECRET_KEY",
            ) from None
    _make(file)
    return _read(file)


def _read(file: Path) -> str:
    mode = file.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _bad_secret_key(f"{file} can be read by users other than its owner", hint=f"chmod 600 {file}")
    return file.read_text(encoding="ascii")


def _make(file: Path) -> None:
    """Create the key file atomically; if another process creates it at the same time, use that one."""
    draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as out:
            out.write(f"{secrets.token_urlsafe(32)}\n")
            out.flush()
            os.fsync(out.fileno())
        try:
            os.link(draft, file)
        except FileExistsError:
            return
    finally:
        draft.unlink()
    if os.name == "posix":
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _bad_secret_key(problem: str, *, hint: str) -> BadConfig:
    return BadConfig(problem, setting="secret_key", hint=hint)
