"""Where the key that commitments are made with comes from; it is never in the ledger.

What is there is a fingerprint of it: with another key the same request would not be recognised, and be done twice.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
import weakref
from hashlib import sha256
from pathlib import Path
from typing import Final

from amends.errors import BadConfig
from amends.ledger import Store
from amends.sealops import PinKey

CHARS_MIN: Final = 32
MAKE: Final = 'make one: python -c "import secrets; print(secrets.token_urlsafe(32))"; keep it as you keep passwords'

_memory: Final[weakref.WeakKeyDictionary[Store, bytes]] = weakref.WeakKeyDictionary()
"""A ledger in memory is gone with its process, and so may its key be."""


def check_key(store: Store, given: str) -> None:
    """Raise ``BadConfig`` when no key can be had for this ledger; looks at no file."""
    if given and len(given) < CHARS_MIN:
        raise _bad(f"secret_key has {len(given)} characters, and needs {CHARS_MIN}", hint=MAKE)
    if not given and store.url != "memory:" and _file_of(store) is None:
        raise _bad(
            "something is redacted, and there is no secret_key: what stands for a hidden value is made with it",
            hint=f"set AMENDS_SECRET_KEY, the same in every process that uses this ledger; {MAKE}",
        )


def secret_key(store: Store, given: str) -> bytes:
    """The key of this ledger, which must be open: given, from the file beside it, or made there.

    Raises ``BadConfig`` when it is not the one that the ledger's commitments were made with.
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
        raise _bad(
            f"the key from {origin} is not the one that this ledger's hidden values were written with; with it the same "
            "request would not be recognised, and be done twice",
            hint="use the key of before: from AMENDS_SECRET_KEY, or the .key file that was beside the ledger",
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
            raise _bad(
                f"the key of this ledger is gone: there is no {file}",
                hint="restore it from where the ledger was copied or backed up from, or set AMENDS_SECRET_KEY",
            ) from None
    _make(file)
    return _read(file)


def _read(file: Path) -> str:
    mode = file.stat().st_mode
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _bad(f"{file} may be read by others than its owner", hint=f"chmod 600 {file}")
    return file.read_text(encoding="ascii")


def _make(file: Path) -> None:
    """The key is there, whole or not at all, whoever else makes it at the same time."""
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


def _bad(problem: str, *, hint: str) -> BadConfig:
    return BadConfig(problem, setting="secret_key", hint=hint)
