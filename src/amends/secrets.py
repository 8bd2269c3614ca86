"""Sign what a client carries and brings back: cookies, one-time links, claims.

Several secrets may be known at once: the first one signs, all of them verify. So a new one can come into use, and an old one
go, while nobody is logged out. All servers of one ledger share them. What was signed for one purpose is worth nothing for
another.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from amends import AsyncRuntime, Runtime
from amends.errors import BadConfig, UsageError

CHARS_MIN: Final = 32
TEXT_CHARS_MAX: Final = 8_192
FILE_BYTES_MAX: Final = 16_384
UNTIL: Final = "$until"
"""The field of a signed text that has its end."""
HINT: Final = "make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class BadSignature(ValueError):
    """A text was not signed here for this purpose, or its time is over (``why``: forged, expired)."""

    def __init__(self, why: str) -> None:
        super().__init__("it was not made here, or it was changed" if why == "forged" else "its time is over")
        self.why = why


class Secrets:
    """Secrets that sign and verify; the first one signs."""

    def __init__(self, known: str | Sequence[Any], *, clock: Callable[[], float] = time.time) -> None:
        texts = known.split() if isinstance(known, str) else list(known)
        if not texts or any(not isinstance(one, str) or len(one) < CHARS_MIN for one in texts):
            raise BadConfig(
                f"a secret of the service has at least {CHARS_MIN} characters",
                setting="secret",
                origin="secret",
                hint=HINT,
            )
        self._known = tuple(one.encode() for one in texts)
        self._keys: dict[str, tuple[bytes, ...]] = {}
        """For each purpose the keys that are made of the secrets."""
        self._clock = clock

    def __repr__(self) -> str:
        return f"<{len(self._known)} secrets>"

    def of_tenant(self, name: str) -> Secrets:
        """Return secrets that are made of these and sign for one tenant: no other tenant's accept what they signed."""
        made = Secrets.__new__(Secrets)
        named = f"amends.serve tenant {name}".encode()
        made._known = tuple(hmac.digest(one, named, hashlib.sha256) for one in self._known)
        made._keys, made._clock = {}, self._clock
        return made

    def sign(self, purpose: str, fields: Mapping[str, Any], *, lives_s: float | None = None) -> str:
        """Return a text with these fields that only ``read`` with the same purpose accepts, for so many seconds.

        The fields are signed, not encrypted.
        """
        if UNTIL in fields:
            raise UsageError(f"{UNTIL} is not a field: say lives_s=")
        said = dict(fields) if lives_s is None else {**fields, UNTIL: self._clock() + lives_s}
        body = _text(json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode())
        return f"{body}.{_text(_mark(self._keys_for(purpose)[0], body))}"

    def time(self) -> float:
        """Return the time by which signed texts end, in seconds since 1970."""
        return self._clock()

    def read(self, purpose: str, text: str) -> dict[str, Any]:
        """Return the fields of a text that one of the secrets signed for this purpose; raise ``BadSignature``."""
        given: Any = text
        if not isinstance(given, str) or not given.isascii() or len(given) > TEXT_CHARS_MAX:
            raise BadSignature("forged")
        body, _, mark = text.partition(".")
        # Compare texts: base64 can spell one mark in two ways, and only one of them was made here.
        made = [hmac.compare_digest(mark, _text(_mark(one, body))) for one in self._keys_for(purpose)]
        if not any(made):
            raise BadSignature("forged")
        fields: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        until = fields.pop(UNTIL, None)
        if until is not None and self._clock() >= until:
            raise BadSignature("expired")
        return fields

    def _keys_for(self, purpose: str) -> tuple[bytes, ...]:
        if purpose not in self._keys:
            named = f"amends.serve {purpose}".encode()
            self._keys[purpose] = tuple(hmac.digest(one, named, hashlib.sha256) for one in self._known)
        return self._keys[purpose]


def secrets_of(rt: Runtime | AsyncRuntime, *, host: str = "127.0.0.1", home: Path | None = None) -> Secrets:
    """Return the secrets of the settings: ``secret``, else the file ``secret_file``.

    On loopback (``host``) a file that is not there is created, readable by its owner alone; without ``secret_file`` it
    is in the user's own folder for state (``home``), not beside the ledger.
    """
    said = rt.settings["secret"]
    if said.value is not None:
        return _named(said.value.reveal(), said.origin)
    setting = rt.settings["secret_file"]
    path = _placed(setting) if setting.value else _state(home) / "secret"
    found = _read(path)
    if found is None and is_loopback(host):
        found = _create(path)
    if found is None:
        raise BadConfig(
            f"the service on {host} needs a secret that all its servers share"
            + (f": there is no {path}" * bool(setting.value)),
            setting="secret",
            origin=setting.origin,
            hint=f"set AMENDS_SECRET, or secret_file to a file with one; {HINT}",
        )
    return _named(found, str(path))


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach a server that is bound to this address."""
    if host.lower() == "localhost" or host.startswith("/"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False  # another name: whoever reaches it is not known here


async def check_bind(rt: AsyncRuntime, host: str, *, has_access: bool = False) -> None:
    """Raise ``BadConfig`` before a server is reachable from other machines that nobody could rightly use.

    ``has_access``: the program brings its own ``access=``. Without it, there must be a valid token in the ledger, or a
    login in the settings.
    """
    if is_loopback(host) or has_access or rt.settings["login"].value or await rt.tokens():
        return
    raise BadConfig(
        f"the service is not started on {host}: there is no token and no login, so nobody could use it rightly",
        setting="login",
        origin="default",
        hint="create a token first (amends tokens create), configure a login, or bind to 127.0.0.1",
    )


# ---- Files


def _placed(setting: Any) -> Path:
    """Return the path of the setting ``secret_file``, relative to the file that sets it."""
    said = setting.origin in ("argument", "AMENDS_SECRET_FILE")
    return (Path.cwd() if said else Path(setting.origin).parent) / str(setting.value)


def _state(home: Path | None) -> Path:
    if home is not None:
        return home
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state") / "amends"


def _read(path: Path) -> str | None:
    """Return the secrets in a file; None: there is none. One that others can read or write is refused."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, f"cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode) or len(text) > FILE_BYTES_MAX:
        raise _unusable(path, "is not a file with secrets")
    if hasattr(os, "geteuid") and (status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o077):
        raise _unusable(path, "belongs to another user, or others may read it", hint=f"chmod 600 {path}")
    try:
        return text.decode("ascii")
    except UnicodeDecodeError:
        raise _unusable(path, "is not a file with secrets") from None


def _create(path: Path) -> str:
    """Create the file, or read what another server was faster to create: a reader never sees half of it."""
    made = secrets.token_urlsafe(32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{made}\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)
        finally:
            part.unlink(missing_ok=True)
    except FileExistsError:
        found = _read(path)
        assert found is not None, "it was there a moment ago"
        return found
    except OSError as error:
        raise _unusable(
            path, f"cannot be created: {error.strerror}", hint="set AMENDS_SECRET, or secret_file"
        ) from None
    return made


def _named(text: str, origin: str) -> Secrets:
    try:
        return Secrets(text)
    except BadConfig as bad:
        raise BadConfig(f"{bad} ({origin})", setting="secret", origin=origin, hint=bad.hint) from None


def _unusable(path: Path, why: str, *, hint: str | None = None) -> BadConfig:
    return BadConfig(f"{path} {why}", setting="secret_file", origin=str(path), hint=hint)


# ---- Signatures


def _mark(key: bytes, body: str) -> bytes:
    return hmac.digest(key, body.encode(), "sha256")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
