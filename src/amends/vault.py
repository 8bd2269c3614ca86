"""Encryption at rest: texts sealed with the newest of some keys, and opened with whichever sealed them."""

from __future__ import annotations

import hmac
import os
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib import import_module
from typing import Any, Final

from amends.errors import BadConfig, LedgerCorrupt, LedgerSealed
from amends.secret import SEALED

KEY_BYTES_MIN: Final = 32
KEYS_MAX: Final = 100
NONCE_BYTES: Final = 12
_SHAPE: Final = re.compile(rf"{SEALED}([0-9a-f]{{8}}):([A-Za-z0-9_-]+=*)")


class Vault:
    """Keys by their id. The first one seals; all of them open."""

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or len(keys) > KEYS_MAX:
            raise _bad(f"encrypt needs 1 to {KEYS_MAX} keys, the newest first, not {len(keys)}")
        found = [_key_of(key) for key in keys]
        self.ids: tuple[str, ...] = tuple(id for id, _ in found)
        make = _cipher()
        self._ciphers: dict[str, Any] = {id: make(key) for id, key in found}
        self._proving = {id: sha256(b"amends proof" + key).digest() for id, key in found}
        self._newest = self._ciphers[self.ids[0]]

    def seal(self, text: str, about: str) -> str:
        """The text, encrypted for one place; what is sealed already, as it is."""
        if is_sealed(text):
            return text
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._newest.encrypt(nonce, text.encode("utf-8", "surrogatepass"), about.encode())
        return f"{SEALED}{self.ids[0]}:{urlsafe_b64encode(nonce + sealed).decode('ascii')}"

    def open(self, text: str, about: str) -> str:
        """The text again; one that was never sealed, as it is. Raises ``LedgerSealed`` without its key."""
        found = _SHAPE.fullmatch(text) if text.startswith(SEALED) else None
        if found is None:
            return text
        cipher = self._ciphers.get(found[1])
        if cipher is None:
            raise LedgerSealed(f"a stored value is encrypted with key {found[1]}; here are {', '.join(self.ids)}")
        raw = urlsafe_b64decode(found[2])
        try:
            plain: bytes = cipher.decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], about.encode())
        except Exception as error:  # of the library, which says no more than that
            raise LedgerCorrupt(
                f"a stored value does not open with key {found[1]}: it was changed, or stands in another's place",
                hint="restore the ledger from a backup",
            ) from error
        return plain.decode("utf-8", "surrogatepass")

    def proof(self, text: str) -> str:
        """What an event says of a payload: of no use to whoever has no key and guesses at it."""
        return self._proof(self.ids[0], text)

    def proves(self, proved: str, text: str) -> bool | None:
        """Whether this is the proof of this text; None: its key is gone."""
        id = proved.partition(":")[0]
        return proved == self._proof(id, text) if id in self._proving else None

    def _proof(self, id: str, text: str) -> str:
        return f"{id}:{hmac.digest(self._proving[id], text.encode('utf-8', 'surrogatepass'), 'sha256').hex()}"

    def is_newest(self, text: str) -> bool:
        """Whether it is sealed with the key that seals now."""
        return text.startswith(f"{SEALED}{self.ids[0]}:")


def is_sealed(text: str) -> bool:
    """Whether this is an encrypted text."""
    return text.startswith(SEALED) and _SHAPE.fullmatch(text) is not None


def _key_of(given: str) -> tuple[str, bytes]:
    try:
        raw = urlsafe_b64decode(given.strip().replace("+", "-").replace("/", "_") + "==")
    except ValueError:
        raw = b""
    if len(raw) < KEY_BYTES_MIN:
        raise _bad(f"a key of encrypt is {KEY_BYTES_MIN} random bytes as base64")
    key = sha256(b"amends encrypt" + raw).digest()
    return sha256(b"amends key id" + key).hexdigest()[:8], key


def _cipher() -> Any:
    try:
        return import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM
    except ImportError as error:
        raise _bad("encrypt needs the package cryptography", hint="pip install 'amends[crypto]'") from error


def _bad(
    problem: str, *, hint: str = 'make one: python -c "import secrets; print(secrets.token_urlsafe(32))"'
) -> BadConfig:
    return BadConfig(problem, setting="encrypt", hint=hint)
