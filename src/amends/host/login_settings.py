"""Check the setting ``login``: how people log in at their company's provider (OpenID Connect), and what that allows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from amends.errors import BadConfig, close_to

DEFAULTS: Final[dict[str, Any]] = {
    "issuer": "",
    "client_id": "",
    "client_auth": "basic",
    "redirect_url": "",
    "name": "email",
    "groups": "groups",
    "scopes": {},
    "everyone": "",
    "tenant": "",
    "tenant_claim": "",
    "request": ("openid", "profile", "email"),
    "algorithms": ("RS256", "ES256", "EdDSA", "PS256"),
    "session": 28_800.0,
}
SCOPES: Final = ("viewer", "approver", "operator")
"""What a login may allow: agents and workers have tokens."""
ALGORITHMS: Final = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519",
)  # fmt: skip
"""Signatures by a key that only the provider has. ``none`` and those by a shared secret are not among them."""
LOCAL: Final = ("localhost", "127.0.0.1", "::1", "[::1]")
SESSION_S_MAX: Final = 30 * 86_400.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def checked_login(value: Any, origin: str) -> Mapping[str, Any]:
    """Return the setting with its defaults, or an empty mapping; raise ``BadConfig``."""
    if not isinstance(value, Mapping):
        raise _bad("login is a table, not " + type(value).__name__, origin)
    if not value:
        return {}
    for name in value:
        if name in ("client_secret", "secret"):
            raise _bad(
                f"login has no {name!r} here: settings are printed",
                origin,
                hint="set login_secret, or AMENDS_LOGIN_SECRET",
            )
        if name not in DEFAULTS:
            close = close_to(str(name), DEFAULTS)
            raise _bad(f"{name!r} is not a part of login" + (f"; did you mean {close[0]!r}?" if close else ""), origin)
    said: dict[str, Any] = {**DEFAULTS, **value}
    _check_texts(said, origin)
    if said["client_auth"] not in ("basic", "post"):
        raise _bad("client_auth of login is basic or post", origin)
    said["scopes"] = _scopes(said["scopes"], origin)
    if said["everyone"] and said["everyone"] not in SCOPES:
        raise _bad(f"everyone of login is one of {', '.join(SCOPES)}, not {said['everyone']!r}", origin)
    if not said["scopes"] and not said["everyone"]:
        raise _bad("login lets nobody in: say which group has which scope (scopes), or everyone", origin)
    if said["tenant"] and said["tenant_claim"]:
        raise _bad("login has a tenant for all, or the claim that names it (tenant_claim), not both", origin)
    said["request"] = _texts("request", said["request"], origin)
    if "openid" not in said["request"]:
        raise _bad("request of login includes openid", origin)
    said["algorithms"] = _texts("algorithms", said["algorithms"], origin)
    if wrong := [one for one in said["algorithms"] if one not in ALGORITHMS] or (not said["algorithms"] and ["none"]):
        raise _bad(f"{wrong[0]!r} is not accepted for login; algorithms are of {', '.join(ALGORITHMS)}", origin)
    said["session"] = _seconds(said["session"], origin)
    return said


def _check_texts(said: Mapping[str, Any], origin: str) -> None:
    for name in ("issuer", "client_id", "redirect_url", "name", "groups", "everyone", "tenant", "tenant_claim"):
        if not isinstance(said[name], str):
            raise _bad(f"{name} of login is a text", origin)
    for name in ("issuer", "client_id", "redirect_url", "name"):
        if not said[name].strip():
            raise _bad(f"login needs {name}", origin)
    _check_url("issuer", said["issuer"], origin)
    _check_url("redirect_url", said["redirect_url"], origin)


def _check_url(name: str, url: str, origin: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise _bad(f"{name} of login is not a URL", origin) from None
    local = parts.scheme == "http" and host in LOCAL
    if (parts.scheme != "https" and not local) or not host or parts.query or parts.fragment or "@" in parts.netloc:
        raise _bad(f"{name} of login is an https:// URL without a query; http:// only on this machine", origin)


def _scopes(value: Any, origin: str) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(group, str) and group for group in value):
        raise _bad('scopes of login is a table of groups: {"finance": "approver"}', origin)
    for group, scope in value.items():
        if scope not in SCOPES:
            raise _bad(f"the scope of group {group!r} is one of {', '.join(SCOPES)}, not {scope!r}", origin)
    return dict(value)


def _texts(name: str, value: Any, origin: str) -> tuple[str, ...]:
    texts = value.split() if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise _bad(f"{name} of login is a list of texts", origin)
    return tuple(texts)


def _seconds(value: Any, origin: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value.strip()) if isinstance(value, str) else None
    seconds = float(found[1]) * _UNITS[found[2]] if found else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= SESSION_S_MAX:
        raise _bad("session of login is a time like 8h, at most 30d", origin)
    return float(seconds)


def _bad(message: str, origin: str, *, hint: str | None = None) -> BadConfig:
    return BadConfig(f"{message} ({origin})", setting="login", origin=origin, hint=hint)
