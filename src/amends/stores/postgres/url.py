"""The URL of a PostgreSQL ledger: the part for libpq, and our own options. The password goes to libpq only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

from amends.errors import BadConfig

POOL_MAX: Final = 10
"""Connections per process and event loop: PostgreSQL's default limit of 100 is enough for ten processes."""
LOCK_WAIT_S: Final = 10.0
"""How long an operation waits for a locked run or for a free connection before it gives up."""
POOL_LIMIT: Final = 1_000
NAME_BYTES_MAX: Final = 63
"""PostgreSQL silently truncates a longer name."""

Pooler = Literal["session", "transaction"]
OPTIONS: Final = "schema=NAME, pool_max=N, lock_wait_s=SECONDS, pooler=session, pooler=transaction"


@dataclass(frozen=True, slots=True)
class Address:
    """Where the ledger is, and our options."""

    conninfo: str
    """For libpq, with the password: never shown."""
    shown: str
    """For people, without the password."""
    schema: str = ""
    """The first schema of the search path; empty: the server's default."""
    pool_max: int = POOL_MAX
    lock_wait_s: float = LOCK_WAIT_S
    pooler: Pooler = "session"

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"


def read_url(url: str) -> Address:
    """Parse the URL. Raises ``BadConfig``, which shows neither the URL nor any value of it."""
    found = re.fullmatch(r"postgres(?:ql)?(?:\+\w+)?://([^/?#]*)(/[^?#]*)?(?:\?([^#]*))?", url, re.IGNORECASE)
    if found is None:
        raise _bad("this is not a PostgreSQL URL", hint="use postgresql://user@host:5432/database")
    authority, path, query = found[1], found[2] or "", found[3] or ""
    _check_signs(authority, path)
    pairs = parse_qsl(query, keep_blank_values=True)
    own = {name: value for name, value in pairs if name in ("schema", "pool_max", "lock_wait_s", "pooler")}
    rest = [(name, value) for name, value in pairs if name not in own]
    schema = own.get("schema", "")
    if "schema" in own:
        check_schema(schema)
    tail = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return Address(
        conninfo=f"postgresql://{authority}{path}{tail}",
        shown=_shown(authority, path, dict(rest), schema),
        schema=schema,
        pool_max=int(_number(own, "pool_max", POOL_MAX, low=1, high=POOL_LIMIT)),
        lock_wait_s=_number(own, "lock_wait_s", LOCK_WAIT_S, low=0.001, high=3600.0),
        pooler=_pooler(own.get("pooler", "session")),
    )


def check_schema(name: str) -> None:
    """Raise ``BadConfig`` unless this can be the name of a schema."""
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\x00" in name:
        raise _bad(f"schema= is a name of 1 to {NAME_BYTES_MAX} bytes", hint="as in ?schema=amends")


def _check_signs(authority: str, path: str) -> None:
    """Refuse characters that were not percent-encoded: the rest of a password would be read as a host, and shown."""
    login, _, hosts = authority.rpartition("@")
    ports = [host.rpartition("]")[2].partition(":")[2] for host in hosts.split(",")]
    if "@" in login or "@" in path or not all(port.isdecimal() for port in ports if port):
        raise _bad(
            "this PostgreSQL URL cannot be read",
            hint="in user, password and database percent-encode @ as %40, / as %2F, : as %3A, ? as %3F and # as %23",
        )


def _shown(authority: str, path: str, rest: dict[str, str], schema: str) -> str:
    """Build the URL for people from harmless parts, rather than by removing the secret ones."""
    login, _, hosts = authority.rpartition("@")
    user = login.partition(":")[0] or quote(rest.get("user", ""), safe="")
    user = f"{user}@" if user else ""
    address = hosts or rest.get("host", "")
    database = unquote(path.lstrip("/")) or rest.get("dbname", "")
    return f"postgresql://{user}{address}/{database}" + (f"?schema={quote(schema, safe='')}" if schema else "")


def _number(own: dict[str, str], name: str, default: float, *, low: float, high: float) -> float:
    if name not in own:
        return default
    try:
        number = float(own[name])
    except ValueError:
        number = float("nan")
    if not low <= number <= high:
        raise _bad(f"{name}={own[name]} is not a number from {low:g} to {high:g}", hint=f"options are: {OPTIONS}")
    return number


def _pooler(value: str) -> Pooler:
    if value == "session":
        return "session"
    if value == "transaction":
        return "transaction"
    raise _bad(f"pooler={value} is neither session nor transaction", hint="transaction is for PgBouncer and the like")


def _bad(message: str, *, hint: str) -> BadConfig:
    return BadConfig(message, setting="url", hint=hint)
