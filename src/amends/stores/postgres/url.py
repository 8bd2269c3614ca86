"""What a PostgreSQL URL says: to libpq, and to us. A password never leaves this page except towards libpq."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

from amends.errors import BadConfig

POOL_MAX: Final = 10
"""Connections per process and event loop: PostgreSQL's default limit of 100 is for ten processes."""
LOCK_WAIT_S: Final = 10.0
"""How long another transaction may keep a run locked, or all connections be in use, before an operation gives up."""
POOL_LIMIT: Final = 1_000
NAME_BYTES_MAX: Final = 63
"""PostgreSQL cuts a longer name without a word."""

Pooler = Literal["session", "transaction"]
OPTIONS: Final = "schema=NAME, pool_max=N, lock_wait_s=SECONDS, pooler=session, pooler=transaction"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ledger is and how it is to be used."""

    conninfo: str
    """For libpq, with the password: never shown."""
    shown: str
    """For people, without it."""
    schema: str = ""
    """The first of the search path; empty: the server's own default."""
    pool_max: int = POOL_MAX
    lock_wait_s: float = LOCK_WAIT_S
    pooler: Pooler = "session"

    def __repr__(self) -> str:
        return f"Place({self.shown!r})"


def read_url(url: str) -> Place:
    """The place that this URL names. Raises ``BadConfig``, which shows neither the URL nor any value of it."""
    found = re.fullmatch(r"postgres(?:ql)?(?:\+\w+)?://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?", url, re.IGNORECASE)
    if found is None:
        raise _bad("this is no PostgreSQL URL", hint="use postgresql://user@host:5432/database")
    authority, path, query = found[1], found[2] or "", found[3] or ""
    _check_signs(authority, path)
    pairs = parse_qsl(query, keep_blank_values=True)
    own = {name: value for name, value in pairs if name in ("schema", "pool_max", "lock_wait_s", "pooler")}
    rest = [(name, value) for name, value in pairs if name not in own]
    schema = own.get("schema", "")
    if len(schema.encode()) > NAME_BYTES_MAX or "\x00" in schema or ("schema" in own and not schema):
        raise _bad(f"schema= is a name of 1 to {NAME_BYTES_MAX} bytes", hint="as in ?schema=amends")
    tail = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return Place(
        conninfo=f"postgresql://{authority}{path}{tail}",
        shown=_shown(authority, path, dict(rest), schema),
        schema=schema,
        pool_max=int(_number(own, "pool_max", POOL_MAX, low=1, high=POOL_LIMIT)),
        lock_wait_s=_number(own, "lock_wait_s", LOCK_WAIT_S, low=0.001, high=3600.0),
        pooler=_pooler(own.get("pooler", "session")),
    )


def _check_signs(authority: str, path: str) -> None:
    """Signs of a password that were not encoded end it too early: its rest would be taken for a host and be shown."""
    login, _, hosts = authority.rpartition("@")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    if "@" in login or "@" in path or not all(port.isdecimal() for port in ports if port):
        raise _bad(
            "this PostgreSQL URL cannot be read",
            hint="in user, password and database percent-encode @ as %40, / as %2F, : as %3A, ? as %3F and # as %23",
        )


def _shown(authority: str, path: str, rest: dict[str, str], schema: str) -> str:
    """Built from what is known to be harmless, rather than by cutting out what is known to be secret."""
    login, _, hosts = authority.rpartition("@")
    user = login.partition(":")[0] or quote(rest.get("user", ""), safe="")
    user = f"{user}@" if user else ""
    place = hosts or rest.get("host", "")
    database = unquote(path.lstrip("/")) or rest.get("dbname", "")
    return f"postgresql://{user}{place}/{database}" + (f"?schema={quote(schema, safe='')}" if schema else "")


def _number(own: dict[str, str], name: str, default: float, *, low: float, high: float) -> float:
    if name not in own:
        return default
    try:
        number = float(own[name])
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise _bad(f"{name}={own[name]} is no number from {low:g} to {high:g}", hint=f"options are: {OPTIONS}")
    return number


def _pooler(value: str) -> Pooler:
    if value == "session":
        return "session"
    if value == "transaction":
        return "transaction"
    raise _bad(f"pooler={value} is neither session nor transaction", hint="transaction is for PgBouncer and the like")


def _bad(message: str, *, hint: str) -> BadConfig:
    return BadConfig(message, setting="url", hint=hint)
