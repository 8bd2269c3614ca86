"""Tokens of the service: create, list, revoke and check them.

Each public function is a verb of the runtime (see ``amends.host.verbs``). The text of a token is
``amt_<id>_<secret><checksum>``: a scanner for secrets finds it by its form, and a typing mistake is noticed without
the ledger. The ledger has the SHA-256 of the secret; the secret has 256 random bits, so nothing slower is needed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, get_args

from amends.engine.session import moment
from amends.errors import LedgerError, LinkVoid, NotFound, Unauthorized, UsageError, close_to
from amends.host.host import Host, View
from amends.host.runs import found
from amends.host.token_cache import forget_token
from amends.ledger.operations import EndToken, ListTokens, MakeToken, NoteDriver, ReadRun, ReadToken
from amends.ledger.rows import DirectiveRow
from amends.ledger.world import ReadClocks
from amends.model import Token, TokenKind, TokenScope
from amends.people.expiry import end_of
from amends.people.runs import check_reason, own_run

SCOPES: Final[tuple[TokenScope, ...]] = get_args(TokenScope)
ALONE: Final = ("agent", "worker")
"""Scopes of machines: a token that has one has no other. An agent that could also approve would approve its own calls."""
PREFIX: Final = "amt_"
ID: Final = "tok_"
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = 43
CHECKSUM_CHARS: Final = 6
TEXT: Final = re.compile(rf"amt_([0-9A-Za-z]{{4,64}})_([0-9A-Za-z]{{{SECRET_CHARS}}})([0-9A-Za-z]{{{CHECKSUM_CHARS}}})")
"""The form of a token; for scanners of secrets too."""
DIGITS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
EXPIRES_S: Final = 90 * 86_400.0
NAME_CHARS_MAX: Final = 200
_UNKNOWN: Final = "this token is not valid here"


async def create_token(
    host: Host,
    view: View,
    name: str,
    *,
    scopes: Iterable[str] | str,
    by: str,
    why: str,
    principal: str = "",
    tenant: str | None = None,
    agent: str = "",
    expires: datetime | timedelta | float | str = EXPIRES_S,
    kind: TokenKind = "token",
    once: str = "",
    once_until: datetime | None = None,
) -> Token:
    """Create a token for the service. Only this answer has its ``text``: the ledger keeps a digest.

    ``name``: what people call it. ``scopes``: ``viewer``, ``approver`` or ``operator``, or ``agent`` or ``worker``
    alone. ``principal``: for whom it acts, under which its decisions and runs are recorded; its name if left out. Give
    all tokens of one person the same: nobody can approve what they asked for themselves. ``tenant``: the only one it is
    for; an operator's without one is for all. ``agent``: the name of the agent, for the scope ``agent``. ``expires``: a
    time, or how long from now: a timedelta, seconds, or a string like "12h". ``once``: of all tokens that are created
    with the same text here, only the first is; the others raise ``LinkVoid``. ``once_until``: so does one after this
    time, by the ledger's clock, which nobody sets back.
    """
    check_reason(by, why)
    named = _text(name, "name")
    mine = _scopes(scopes)
    speaks = _agent(agent, mine)
    acts = _text(principal, "principal") if principal else named
    if kind not in get_args(TokenKind):
        raise UsageError(f"the kind of a token is one of {', '.join(get_args(TokenKind))}, not {kind!r}")
    place = _place(view, tenant, mine)
    until = await end_of(expires, "a token must expire")
    secret = _base62(secrets.token_bytes(SECRET_BYTES), SECRET_CHARS)
    id = _once_id(once) if once else host.new_id("tok")
    if once_until is not None:
        _, now = await ReadToken(id)
        if now >= once_until.timestamp():
            raise LinkVoid("the link has expired", why="expired")
    said = {"name": named, "principal": acts, "scopes": list(mine), "digest": _digest(secret), "kind": kind}
    row = await MakeToken(id, place, speaks, json.dumps(said, ensure_ascii=False), by, why, until)
    if row is None:
        raise LinkVoid("the link was used before: it is valid once", why="used")
    assert json.loads(row.words)["digest"] == said["digest"], "whoever is given a token has the secret of it"
    return token_of(row, text=_written(id, secret))


async def tokens(_host: Host, view: View, *, kind: TokenKind | Literal["all"] = "token") -> list[Token]:
    """Return the tokens that are valid now, oldest first, without their texts; ``kind``: also logins, or only those."""
    if kind not in ("all", *get_args(TokenKind)):
        raise UsageError(f"kind= is all, or one of {', '.join(get_args(TokenKind))}, not {kind!r}")
    rows, _ = await ListTokens(view.tenant or None)
    return [one for row in rows if kind in ("all", (one := token_of(row)).kind)]


async def revoke_token(_host: Host, view: View, token_id: str, *, by: str, why: str) -> Token:
    """End a token: at once in this process, elsewhere within the setting ``token_cache``.

    ``token_id``: its id, or the text of a token that somebody found.
    """
    check_reason(by, why)
    given: Any = token_id
    if not isinstance(given, str) or not given:
        raise UsageError("a token is revoked by its id: rt.tokens() lists them")
    whole = TEXT.fullmatch(given)
    id = given if whole is None else f"{ID}{whole[1]}"
    row = await EndToken(id, view.tenant or None, by, why)
    forget_token(id)
    if row is None:
        shown = "" if given.startswith(PREFIX) else f" {id!r}"
        raise NotFound(f"there is no token{shown} in this ledger", hint="rt.tokens() lists them")
    return token_of(row)


async def check_token(host: Host, view: View, text: str) -> Token:
    """Return the token that this text is, if it is valid now; raise ``Unauthorized``. No message shows the text.

    What the ledger said is remembered for the setting ``token_cache``.
    """
    given: Any = text
    parts = TEXT.fullmatch(given) if isinstance(given, str) else None
    if parts is None or not hmac.compare_digest(_checksum(parts[1], parts[2]), parts[3]):
        raise Unauthorized(
            "that is not a token: a part is missing or was changed", why="malformed",
            hint="send the whole text that amends tokens create printed: amt_...",
        )  # fmt: skip
    id, digest = f"{ID}{parts[1]}", _digest(parts[2])
    clocks = await ReadClocks()
    seen = host.token_cache.get(id, clocks.mono)
    if seen is not None:
        _check_digest(seen.digest, digest)
        return _seen_by(view, seen.token)
    begun = host.token_cache.begin()
    row, now = await ReadToken(id)
    _check_digest("" if row is None else str(json.loads(row.words)["digest"]), digest)
    assert row is not None, "nothing has the digest of nothing"
    if row.closed_at is not None:
        raise _ended(row)
    left = (row.until_at or 0.0) - now
    if left <= 0:
        with suppress(LedgerError):  # it is refused, even where that cannot be written down
            await EndToken(id, None, "clock", "expired", expired=True)
        raise _ended(row)
    token = token_of(row)
    host.token_cache.keep(token, digest, _digest(given), begun=begun, mono=clocks.mono, left=left)
    return _seen_by(view, token)


def recall_token(host: Host, view: View, text: str, *, mono: float) -> Token | None:
    """Return what ``check_token`` answered about this text, if that is still remembered; None: ask it.

    For whoever is asked with the same token again and again: it reads nothing. Revoked, a token is not remembered.
    """
    parts = TEXT.fullmatch(text)
    seen = None if parts is None else host.token_cache.get(f"{ID}{parts[1]}", mono)
    if parts is None or seen is None or not hmac.compare_digest(seen.whole, _digest(text)):
        return None
    return _seen_by(view, seen.token)


async def note_driver(host: Host, view: View, run_id: str, *, by: str) -> bool:
    """Record that an open run is driven by the token of this view from now on; return False if it has ended.

    The opening of a run names the token by which it was opened. Whoever serves others calls this when a request about the
    run comes by another one.
    """
    if not view.token:
        raise UsageError("there is no token to record", hint="rt.scoped(token=...).note_driver(run_id, by=...)")
    tree = own_run(found(await ReadRun(view.tenant or "", run_id), run_id))
    return await NoteDriver(tree.run.root, _text(by, "by"), host.new_id("nonce"))


def token_of(row: DirectiveRow, *, text: str | None = None) -> Token:
    """Return a token as users see it."""
    words: dict[str, Any] = json.loads(row.words)
    at, expires_at = moment(row.made_at), moment(row.until_at)
    assert at is not None, "a token was made at some time"
    assert expires_at is not None, "a token has an end"
    return Token(
        id=row.id, name=words["name"], principal=words["principal"], scopes=tuple(words["scopes"]),
        tenant=None if row.wide else row.tenant, agent=row.agent, kind=words["kind"], by=row.by_whom, why=row.why, at=at,
        expires_at=expires_at, ended_at=moment(row.closed_at), text=text,
    )  # fmt: skip


# ---- What was asked for


def _text(value: Any, name: str) -> str:
    if not (isinstance(value, str) and value.strip() and len(value) <= NAME_CHARS_MAX):
        raise UsageError(f"{name}= is a name of 1 to {NAME_CHARS_MAX} characters")
    if TEXT.search(value):
        raise UsageError(f"{name}= contains a token, and would be recorded")
    return value.strip()


def _scopes(given: Any) -> tuple[TokenScope, ...]:
    wanted = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else []
    for one in wanted:
        if one not in SCOPES:
            close = close_to(str(one), SCOPES)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise UsageError(f"{one!r} is not a scope: it is one of {', '.join(SCOPES)}{meant}")
    if not wanted:
        raise UsageError(f"a token needs a scope (scopes=): {', '.join(SCOPES)}")
    mine = tuple(one for one in SCOPES if one in wanted)
    alone = [one for one in ALONE if one in mine]
    if alone and len(mine) > 1:
        raise UsageError(
            f"a token with the scope {alone[0]} has no other scope: what a machine asks for, a person decides",
            hint="create a token for each",
        )
    return mine


def _agent(agent: Any, scopes: tuple[TokenScope, ...]) -> str:
    if "agent" not in scopes:
        if agent:
            raise UsageError("agent= is for tokens with the scope agent")
        return ""
    if not agent:
        raise UsageError(
            "a token with the scope agent needs the agent's name: it reads only the runs of that agent",
            hint="agent='shopper', or --agent shopper at the command line",
        )
    return _text(agent, "agent")


def _place(view: View, tenant: Any, scopes: tuple[TokenScope, ...]) -> str | None:
    """Return the tenant of a token; None: every tenant."""
    if tenant is not None and (not isinstance(tenant, str) or (tenant and not tenant.strip())):
        raise UsageError("tenant= is a name")
    whose = view.within(tenant)
    return whose or (None if "operator" in scopes else "")


# ---- What was shown


def _check_digest(known: str, given: str) -> None:
    """Raise ``Unauthorized`` unless this is the secret of that token. An unknown token (empty) is told like a wrong one."""
    if not hmac.compare_digest(known or "0" * len(given), given):
        raise Unauthorized(
            _UNKNOWN, why="unknown", hint="is it the right ledger? amends tokens list shows those that are"
        )


def _ended(row: DirectiveRow) -> Unauthorized:
    revoked = row.closed_at is not None and row.closed_at < (row.until_at or 0.0)
    hint = "create another one: amends tokens create"
    if revoked:
        return Unauthorized(f"token {row.id} was revoked", why="revoked", hint=hint)
    return Unauthorized(f"token {row.id} has expired", why="expired", hint=hint)


def _seen_by(view: View, token: Token) -> Token:
    """Return the token as it counts in this view; one of another tenant is unknown there."""
    if not view.tenant or token.tenant == view.tenant:
        return token
    if token.tenant is not None:
        raise Unauthorized(_UNKNOWN, why="unknown")
    return replace(token, tenant=view.tenant)


# ---- The text


def _written(id: str, secret: str) -> str:
    short = id.removeprefix(ID)
    return f"{PREFIX}{short}_{secret}{_checksum(short, secret)}"


def _checksum(short: str, secret: str) -> str:
    return _base62(zlib.crc32(f"{PREFIX}{short}_{secret}".encode()).to_bytes(4, "big"), CHECKSUM_CHARS)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _once_id(once: str) -> str:
    return f"{ID}{hashlib.sha256(once.encode()).hexdigest()[:32]}"


def _base62(raw: bytes, width: int) -> str:
    number, text = int.from_bytes(raw, "big"), ""
    while number:
        number, digit = divmod(number, 62)
        text = DIGITS[digit] + text
    return text.rjust(width, "0")
