"""Links by which a person decides: signed, expiring, and about one approval exactly as it was shown.

A token carries the digest of what was shown, so it can allow nothing else. Whoever has it can use it: it is handed to
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
"""Names the form of the token, and keeps its signature apart from that of anything else under the same secret."""
TOKEN_CHARS_MAX: Final = 4_096
SECRET_CHARS_MIN: Final = 16


class Shown(Protocol):
    """What a link is made of: an ``Approval`` has it."""

    @property
    def id(self) -> str:
        """The approval."""
        ...

    @property
    def digest(self) -> str:
        """What was shown of it."""
        ...

    @property
    def expires_at(self) -> datetime:
        """When nobody can decide it any more."""
        ...


@dataclass(frozen=True, slots=True)
class Link:
    """What a verified token says."""

    approval: str
    digest: str
    verb: Verb
    by: str
    """Whom it was made for; empty: whoever has it says who it is."""
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Links:
    """What a runtime makes links with: no secret, no links."""

    secret: str = ""
    url: str = ""

    def of(self, approval: Shown) -> Mapping[str, str]:
        """A link for each verb, where there is a secret to sign them with."""
        return links_for(approval, secret=self.secret, url=self.url) if self.secret else {}

    def check(self) -> None:
        """Raise ``BadConfig`` where no link could be made, before one is needed."""
        if self.secret:
            secrets_of(self.secret)
        if self.url and not self.url.startswith(("https://", "http://")):
            raise BadConfig(f"link_url is {self.url!r}, which is no https:// or http:// URL", setting="link_url")

    def read(self, token: str, now: datetime) -> Link:
        """What a token says, if it is one of ours."""
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
    """A token by which ``by`` can do this to the approval, until then and never longer than the approval lives.

    Of several secrets the first one signs.
    """
    if verb not in VERBS:
        raise UsageError(f"a link is to {' or to '.join(VERBS)}, not to {verb!r}")
    until = approval.expires_at if expires_at is None else min(expires_at, approval.expires_at)
    said = json.dumps([approval.id, approval.digest, verb, by, int(until.timestamp())], separators=(",", ":"))
    text = PREFIX + _text(said.encode())
    return f"{text}.{_text(_mark(text, secrets_of(secret)[0]))}"


def verify(token: str, *, secret: str | Sequence[str], now: datetime | None = None) -> Link:
    """What the token says, if one of these secrets signed it and it has not run out; ``LinkVoid`` otherwise."""
    if not isinstance(token, str):
        raise LinkVoid("the link is not one that was made here, or it was changed", why="forged")
    text, _, mark = token.strip().rpartition(".")
    is_token = text.startswith(PREFIX) and token.isascii() and len(token) <= TOKEN_CHARS_MAX
    if not is_token or not _is_marked(text, mark, secrets_of(secret)):
        raise LinkVoid("the link is not one that was made here, or it was changed", why="forged")
    approval, digest, verb, by, until = json.loads(_bytes(text.removeprefix(PREFIX)))
    expires_at = datetime.fromtimestamp(until, UTC)
    if (datetime.now(UTC) if now is None else now) >= expires_at:
        raise LinkVoid(f"the link to {verb} {approval} ran out at {expires_at:%Y-%m-%d %H:%M} UTC", why="expired")
    return Link(approval, digest, verb, by, expires_at)


def links_for(approval: Shown, *, secret: str | Sequence[str], url: str = "") -> Mapping[str, str]:
    """A link for each verb; without the URL of the page that takes them, the bare tokens."""
    return {verb: placed(sign(approval, verb, secret=secret), url) for verb in VERBS}


def placed(token: str, url: str) -> str:
    """The token in the URL of a page: where that says ``{token}``, else as its parameter of that name."""
    if not url or "{token}" in url:
        return url.replace("{token}", token) or token
    return f"{url}{'&' if '?' in url else '?'}token={token}"


def secrets_of(secret: str | Sequence[str]) -> list[str]:
    """The secrets, first the one that signs. In one text they are set apart by spaces: so a setting can be rotated."""
    known = secret.split() if isinstance(secret, str) else list(secret)
    if not known or any(len(one) < SECRET_CHARS_MIN for one in known):
        raise BadConfig(
            f"the secret for links must have at least {SECRET_CHARS_MIN} characters",
            setting="link_secret",
            hint="make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
        )
    return known


def _is_marked(text: str, mark: str, secrets: Sequence[str]) -> bool:
    # Compared as text: two spellings of one mark are two tokens, and only one of them was made here.
    return any(hmac.compare_digest(mark, _text(_mark(text, one))) for one in secrets)


def _mark(text: str, secret: str) -> bytes:
    return hmac.new(secret.encode(), text.encode(), hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    import base64  # few make links

    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    import base64

    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
