"""Decision links: signed, expiring, and valid for one approval exactly as it was shown.

A token carries the digest of what was shown, so it can approve nothing else. Anyone who has it can use it: give it to
people, never to the agent that asked.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal, Protocol, TypeAlias, get_args

from amends.encoding.dataclass import dataclass
from amends.errors import BadConfig, LinkVoid, UsageError

Verb: TypeAlias = Literal["approve", "reject"]
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)

PREFIX: Final = "aml1."
"""The version of the token format; it also separates these signatures from others made with the same secret."""
TOKEN_CHARS_MAX: Final = 4_096
SECRET_CHARS_MIN: Final = 16


class Shown(Protocol):
    """What a link is made from, such as an ``Approval``."""

    @property
    def id(self) -> str:
        """The id of the approval."""
        ...

    @property
    def digest(self) -> str:
        """The digest of what was shown."""
        ...

    @property
    def expires_at(self) -> datetime:
        """When it can no longer be decided."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """What a verified token says."""

    approval: str
    digest: str
    verb: Verb
    by: str
    """The person it was made for; empty: the holder names themselves."""
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Links:
    """What a runtime makes links with; without a secret there are no links."""

    secret: str = ""
    url: str = ""

    def of(self, approval: Shown) -> Mapping[str, str]:
        """Return a link for each verb, or nothing without a secret."""
        return links_for(approval, secret=self.secret, url=self.url) if self.secret else {}

    def check(self) -> None:
        """Raise ``BadConfig`` if no link could be made, before one is needed."""
        if self.secret:
            secrets_of(self.secret)
        if self.url and not self.url.startswith(("https://", "http://")):
            raise BadConfig(f"link_url is {self.url!r}, which is not an https:// or http:// URL", setting="link_url")

    def read(self, token: str, now: datetime) -> Link:
        """Return what a valid token says; raise ``LinkVoid`` otherwise."""
        if not self.secret:
            raise BadConfig(
                "there is no secret to verify links with",
                setting="link_secret",
                hint="give the runtime the secret that signed them: link_secret=, or AMENDS_LINK_SECRET",
            )
        return verify(token, secret=self.secret, now=now)


def sign(
    approval: Shown, verb: Verb, *, secret: str | Sequence[str], expires_at: datetime | None = None, by: str = ""
) -> str:
    """Return a token with which ``by`` can approve or reject, until ``expires_at`` or the end of the approval.

    The first of several secrets signs.
    """
    if verb not in VERBS:
        raise UsageError(f"the verb of a link is {' or '.join(VERBS)}, not {verb!r}")
    until = approval.expires_at if expires_at is None else min(expires_at, approval.expires_at)
    said = json.dumps([approval.id, approval.digest, verb, by, int(until.timestamp())], separators=(",", ":"))
    text = PREFIX + _text(said.encode())
    return f"{text}.{_text(_mark(text, secrets_of(secret)[0]))}"


def verify(token: str, *, secret: str | Sequence[str], now: datetime | None = None) -> Link:
    """Return what the token says; raise ``LinkVoid`` if none of these secrets signed it, or it has expired."""
    if not isinstance(token, str):
        raise LinkVoid("the link was not made here, or it was changed", why="forged")
    text, _, mark = token.strip().rpartition(".")
    is_token = text.startswith(PREFIX) and token.isascii() and len(token) <= TOKEN_CHARS_MAX
    if not is_token or not _is_marked(text, mark, secrets_of(secret)):
        raise LinkVoid("the link was not made here, or it was changed", why="forged")
    approval, digest, verb, by, until = json.loads(_bytes(text.removeprefix(PREFIX)))
    expires_at = datetime.fromtimestamp(until, UTC)
    if (datetime.now(UTC) if now is None else now) >= expires_at:
        raise LinkVoid(f"the link to {verb} {approval} expired at {expires_at:%Y-%m-%d %H:%M} UTC", why="expired")
    return Link(approval, digest, verb, by, expires_at)


def links_for(approval: Shown, *, secret: str | Sequence[str], url: str = "") -> Mapping[str, str]:
    """Return a link for each verb; without the URL of the page that accepts them, the bare tokens."""
    return {verb: placed(sign(approval, verb, secret=secret), url) for verb in VERBS}


def placed(token: str, url: str) -> str:
    """Return the URL with the token in place of ``{token}``, or added as the parameter ``token``."""
    if not url or "{token}" in url:
        return url.replace("{token}", token) or token
    return f"{url}{'&' if '?' in url else '?'}token={token}"


def secrets_of(secret: str | Sequence[str]) -> list[str]:
    """Return the secrets, the signing one first; raise ``BadConfig``. Spaces separate several, for rotation."""
    known = secret.split() if isinstance(secret, str) else list(secret)
    if not known or any(len(one) < SECRET_CHARS_MIN for one in known):
        raise BadConfig(
            f"the secret for links must have at least {SECRET_CHARS_MIN} characters",
            setting="link_secret",
            hint="make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return known


def _is_marked(text: str, mark: str, secrets: Sequence[str]) -> bool:
    # Compare as text: base64 can spell one mark in two ways, and only one of them was made here.
    return any(hmac.compare_digest(mark, _text(_mark(text, one))) for one in secrets)


def _mark(text: str, secret: str) -> bytes:
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    import base64  # imported here: few programs make links

    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    import base64

    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
