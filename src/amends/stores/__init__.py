"""Stores: where a ledger is kept. ``store_for`` finds the one that a URL names."""

from __future__ import annotations

from typing import Final, Literal

from amends.errors import BadConfig
from amends.ledger.paths import split_path
from amends.ledger.store import Store

FORMS: Final = "memory:, sqlite:///relative.db, sqlite:////absolute.db, postgresql://user@host/database, mysql://user@host/database"


def store_for(url: str) -> Store:
    """Return the store that this URL names, not yet opened. Raises ``BadConfig`` for a URL that cannot be used.

    A store's module is imported only when its store is asked for.
    """
    scheme, colon, rest = url.partition(":")
    scheme = scheme.partition("+")[0].lower()
    # The URL of a database server may contain a password: only its scheme is ever shown.
    if not colon or len(scheme) == 1:  # one letter: a drive of Windows
        raise _bad(f"{url!r} is not a URL", hint=f"a file is written as sqlite:///{url}")
    if scheme == "memory":
        return _memory(rest)
    if scheme == "sqlite":
        return _sqlite(rest)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    if scheme in ("mysql", "mariadb"):
        return _mysql(url)
    raise _bad(f"there is no ledger for {scheme}:", hint=f"use one of {FORMS}")


def _memory(rest: str) -> Store:
    from amends.stores.memory import MemoryStore

    if rest.strip("/"):
        raise _bad("memory: has no name and no options", hint="every runtime has its own memory")
    return MemoryStore()


def _postgres(url: str) -> Store:
    from amends.stores.postgres.store import PostgresStore

    return PostgresStore(url)


def _sqlite(rest: str) -> Store:
    from amends.stores.sqlite.store import SqliteStore

    place, query = split_path(rest)
    path = place.removeprefix("///")
    if not place.startswith("///") or path in ("", "/") or path.endswith(("/", "\\")):
        raise _bad(f"sqlite:{rest} names no file", hint="use sqlite:///relative.db or sqlite:////absolute.db")
    if path == ":memory:":
        raise _bad("sqlite:///:memory: cannot be a ledger: every connection would have its own", hint="use memory:")
    from urllib.parse import parse_qsl  # here, because few URLs of files have options

    options = dict(parse_qsl(query, keep_blank_values=True))
    synchronous = _synchronous(options.pop("synchronous", "full"))
    if options:
        raise _bad(f"sqlite: has no option {', '.join(sorted(options))}", hint="it has: synchronous=full, =normal")
    return SqliteStore(path, synchronous)


def _mysql(url: str) -> Store:
    from amends.stores.mysql.store import MysqlStore

    return MysqlStore(url)


def _synchronous(value: str) -> Literal["FULL", "NORMAL"]:
    match value.lower():
        case "full":
            return "FULL"
        case "normal":
            return "NORMAL"
        case _:
            raise _bad(
                f"synchronous={value} could lose committed records",
                hint="full survives a power failure, normal the death of the process",
            )


def _bad(message: str, *, hint: str) -> BadConfig:
    return BadConfig(message, setting="url", hint=hint)
