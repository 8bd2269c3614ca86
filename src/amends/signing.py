"""Keys that sign checkpoints and verify their signatures.

With Ed25519 (extra ``crypto``) anyone who has the public key can verify, and only the ledger's own processes can sign.
With HMAC (standard library) everyone who can verify can also sign. Ed25519 uses the package ``cryptography``; without
it, signatures can still be verified, slowly, by the code of the standalone verifier. That code never signs: it is not
constant-time, and would leak the private key.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from amends.audit.standalone.ed25519 import is_signed
from amends.encoding.chain import to_sign
from amends.encoding.dataclass import dataclass
from amends.errors import BadConfig

ED25519, HMAC, PUBLIC, HMAC_NAME = "ed25519", "hmac", "ed25519-pub", "hmac-id"
KINDS: Final = (ED25519, HMAC, PUBLIC)
KEY_BYTES: Final = 32
HMAC_CHARS_MIN: Final = 32
FILE_BYTES_MAX: Final = 4_096
MAKE: Final = "make one: amends audit keygen -o audit.key"
CRYPTO: Final = "pip install 'amends[crypto]', or use a key that begins with hmac: (amends audit keygen --hmac)"

Kind = Literal["ed25519", "hmac"]


@dataclass(frozen=True, slots=True)
class AuditKey:
    """A key and the name under which checkpoints record it. A public key can only verify."""

    name: str
    signs: Callable[[bytes], bytes] | None
    checks: Callable[[bytes, bytes], bool]

    def sign(self, hash: str) -> str:
        """Sign a checkpoint with this hash."""
        assert self.signs is not None, "only a secret key signs"
        return b64encode(self.signs(to_sign(hash))).decode("ascii")

    def has_signed(self, hash: str, signature: str) -> bool:
        """Return whether this key made this signature of a checkpoint with that hash."""
        try:
            raw = _raw(signature)
        except ValueError:
            return False
        return b64encode(raw).decode("ascii") == signature and self.checks(to_sign(hash), raw)


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key: the secret half, and the public name."""

    secret: str
    public: str


def check_key(text: str) -> None:
    """Raise ``BadConfig`` if this cannot be a key; read no file."""
    if text.startswith(f"{PUBLIC}:"):
        raise _bad("audit_key is a public key, which signs nothing", hint="give the secret key; verify takes this one")
    if _kind(text):
        _parsed(text)


def load_key(text: str) -> AuditKey:
    """Return the key in this text, or in the file of this name."""
    said = text.strip()
    return _parsed(said if _kind(said) else _from_file(Path(said)))


def new_key(kind: Kind) -> NewKey:
    """Make a new random key."""
    if kind == HMAC:
        secret = f"{HMAC}:{secrets.token_urlsafe(KEY_BYTES)}"
    else:
        secret = f"{ED25519}:{b64encode(secrets.token_bytes(KEY_BYTES)).decode('ascii')}"
    return NewKey(secret, _parsed(secret).name)


def embedded_key(name: str) -> AuditKey | None:
    """Return the public key that a checkpoint names, or None.

    It proves only that the checkpoint was not changed by accident: a forger would name a key of their own.
    """
    if not name.startswith(f"{PUBLIC}:"):
        return None
    try:
        return _parsed(name)
    except BadConfig:  # not a key
        return None


def _kind(text: str) -> str:
    kind = text.partition(":")[0]
    return kind if kind in KINDS and ":" in text else ""


def _parsed(text: str) -> AuditKey:
    kind, _, rest = text.partition(":")
    if kind == HMAC:
        return _hmac(rest)
    try:
        raw = _raw(rest)
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise _bad(f"after {kind}: a key has {KEY_BYTES} bytes as base64", hint=MAKE)
    return _public(raw) if kind == PUBLIC else _ed25519(raw)


def _hmac(text: str) -> AuditKey:
    if len(text) < HMAC_CHARS_MIN:
        raise _bad(f"after hmac: a key has at least {HMAC_CHARS_MIN} characters", hint=MAKE)
    key = text.encode("utf-8", "surrogatepass")

    def sign(words: bytes) -> bytes:
        return hmac.digest(key, words, "sha256")

    name = f"{HMAC_NAME}:{sign(b'amends audit key').hex()[:16]}"
    return AuditKey(name, sign, lambda words, signature: hmac.compare_digest(sign(words), signature))


def _ed25519(raw: bytes) -> AuditKey:
    private = _library().Ed25519PrivateKey.from_private_bytes(raw)
    shown = _public(private.public_key().public_bytes_raw())
    return AuditKey(shown.name, private.sign, shown.checks)


def _public(raw: bytes) -> AuditKey:
    try:
        public = _library().Ed25519PublicKey.from_public_bytes(raw)
    except BadConfig:  # verification without the package is slower, but safe: it uses no secret
        public = None

    def checks(words: bytes, signature: bytes) -> bool:
        if public is None:
            return is_signed(raw, words, signature)
        try:
            public.verify(signature, words)
        except Exception:  # InvalidSignature, of a package that may be missing
            return False
        return True

    return AuditKey(f"{PUBLIC}:{b64encode(raw).decode('ascii')}", None, checks)


def _library() -> Any:
    try:
        return import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
    except ImportError as error:
        raise _bad("a key that begins with ed25519 needs the package cryptography", hint=CRYPTO) from error


def _raw(text: str) -> bytes:
    bare = text.strip().replace("+", "-").replace("/", "_").rstrip("=")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))


def _from_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        with path.open("r", encoding="utf-8") as file:
            lines = [line.strip() for line in file.read(FILE_BYTES_MAX).splitlines()]
    except (OSError, ValueError) as error:
        raise _bad(
            f"audit_key is neither a key nor a readable file: {error}",
            hint=f"a key begins with {ED25519}: or {HMAC}:; {MAKE}",
        ) from error
    said = [line for line in lines if line and not line.startswith("#")]
    if len(said) != 1 or not _kind(said[0]):
        raise _bad(f"{path} does not hold exactly one key", hint=MAKE)
    is_secret = not said[0].startswith(f"{PUBLIC}:")
    if is_secret and os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise _bad(f"{path} can be read by other users", hint=f"chmod 600 {path}")
    return said[0]


def _bad(problem: str, *, hint: str) -> BadConfig:
    return BadConfig(problem, setting="audit_key", hint=hint)
