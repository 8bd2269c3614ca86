"""What one runtime hides and encrypts: its patterns and keys, the store through them, and texts of runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from amends.canonical import Stored, canonical, decode, digest, encode, shape_of_given
from amends.check import check_recoverable
from amends.engine.session import Session
from amends.errors import BadConfig, NotStorable
from amends.ledger import Store
from amends.record import dataclass
from amends.rows import RunRow, lost_at
from amends.secret import MARK, SEALED, UNREADABLE, Hidden, hidden_by
from amends.settings import Setting
from amends.spec import Spec
from amends.veil import NO_SECRETS, Known, Veil

if TYPE_CHECKING:
    from amends.sealing import Sealing


class Hiding:
    """The veil of a runtime and, where it encrypts, the sealing of its ledger."""

    def __init__(self, store: Store, settings: dict[str, Setting]) -> None:
        self._store = store
        self._key: str = settings["secret_key"].value or ""
        self._hides = False
        self.sealing: Sealing | None = None
        self.kept: Store = store
        """The ledger as drivers see it: the store itself where nothing is encrypted."""
        self.veil = Veil(_patterns(settings["redact"]))
        if keys := settings["encrypt"].value:
            self._encrypt(keys)
        for name, shown in (("secret_key", "(set)"), ("encrypt", self._key_ids())):
            if settings[name].value:  # settings are printed: of a key is said that there is one, and which
                settings[name] = Setting(shown, settings[name].origin)

    def _key_ids(self) -> str:
        return "" if self.sealing is None else ", ".join(self.sealing.vault.ids)

    def _encrypt(self, keys: tuple[str, ...]) -> None:
        from amends.sealing import SealedStore, Sealing  # here: few encrypt
        from amends.vault import Vault

        self.sealing = Sealing(Vault(keys))
        self.kept = SealedStore(self._store, self.sealing)
        self.veil.vault = self.sealing.vault

    def check(self, specs: Iterable[Spec]) -> None:
        """Raise what is wrong with what these tools hide; looks at no file."""
        for spec in specs:
            self._hides = self._hides or bool(spec.redact)
            if self.sealing is None:
                check_recoverable(spec)
        if self._hides or self.veil.is_wide:
            from amends.keys import check_key  # here: what makes keys takes longer to import than all of hiding

            self._hides = True
            check_key(self._store, self._key)

    @property
    def hides(self) -> bool:
        """Whether something is hidden, so that a key is needed."""
        return self._hides

    def ready(self) -> None:
        """The key is there, if something is hidden; the ledger must be open."""
        if self._hides and not self.veil.key:
            from amends.keys import secret_key

            self.veil.key = secret_key(self._store, self._key)


def _patterns(setting: Setting) -> Hidden:
    try:
        return hidden_by(setting.value or ())
    except ValueError as error:
        raise BadConfig(f"redact: {error}", setting="redact", origin=setting.origin) from error


# ---- what a run is given, and gives back --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """An input as it is written down."""

    text: str = ""
    digest: str = ""
    shown: Any = None
    known: Known = NO_SECRETS


def input_said(veil: Veil, tenant: str, value: object) -> Said:
    """A run's input, with what the runtime hides in it hidden."""
    if value is None:
        return Said()
    shown, known = veil.hide(value, (tenant, "input"), path="input") if veil.is_wide else (value, NO_SECRETS)
    return Said(encode(shown, path="input"), digest("input", canonical(shown, path="input")), shown, known)


def named_by(said: Said) -> str:
    """What names a child run that has no name: its input, with the classes of what is in it."""
    try:
        meaning = canonical(said.shown, path="input", shape=shape_of_given(said.shown))
    except NotStorable:  # as plain data, as it is written down
        return said.digest
    return digest("input", meaning)


def given_to(session: Session, row: RunRow) -> Any:
    """A run's input as its program gets it: the values where they are at hand or were kept, else a ``Secret`` each."""
    if not row.input or lost_at(row.input) is not None:
        return None
    if row.input.startswith(SEALED):
        return UNREADABLE
    text = session.veil.revealed(row.input)
    return session.given if MARK in text and session.given is not None else decode(text)


def output_said(session: Session, value: object) -> str:
    """A run's output as it is written down: without what this run has hidden."""
    text = encode(value, path="output")
    if not session.known and not session.veil.is_wide:
        return text
    return session.veil.kept(Stored(text, None), session.known, (session.tenant, "output")).text or text


def output_seen(session: Session, text: str, value: object) -> Any:
    """A run's output as every later reader gets it: plain data, and nobody's live object.

    Where something is hidden the program keeps what it has: the text may lack it.
    """
    return value if session.known or session.veil.is_wide else decode(text)


def output_of(session: Session, row: RunRow) -> Any:
    """A run's output as its program gets it."""
    if row.output.startswith(SEALED):
        return UNREADABLE
    return None if not row.output or lost_at(row.output) is not None else decode(session.veil.revealed(row.output))
