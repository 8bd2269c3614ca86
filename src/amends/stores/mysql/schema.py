"""The tables of a MariaDB or MySQL ledger: which server will do, what it has, and bringing it up to date.

These servers commit before and after every statement that changes a table. So each statement of a migration can be
repeated, the version is written down last, and a lock of the server keeps two starters apart.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any, Final

from amends.errors import LedgerCorrupt, LedgerMissing, LedgerUnavailable
from amends.model import Schema
from amends.stores.migrations import check_usable, migrations, schema_of
from amends.stores.mysql.errors import NO_TABLE, THERE, code_of
from amends.stores.sql import MYSQL
from amends.visible import visible_log

log = visible_log("amends")

MARIADB_MIN: Final = (10, 6, 0)
"""SKIP LOCKED."""
MYSQL_MIN: Final = (8, 0, 16)
"""SKIP LOCKED, defaults of texts, and checks that are checked."""
PACKET_BYTES_MIN: Final = 4 << 20
"""Arguments of 1 MB may be twice that as a literal, and stand with others in one statement."""

Ask = Callable[[str], list[tuple[Any, ...]]]
"""One statement outside of a transaction: its rows."""


def check_server(ask: Ask, where: str) -> int:
    """How large a statement may be. Raises when this server cannot keep a ledger."""
    [(said, packet)] = ask("select version(), @@max_allowed_packet")
    numbers = tuple(int(one) for one in re.findall(r"\d+", said.removeprefix("5.5.5-"))[:3])
    is_maria = "mariadb" in said.lower()
    least = MARIADB_MIN if is_maria else MYSQL_MIN
    if numbers < least:
        raise LedgerUnavailable(
            f"the server of the ledger at {where} is {said}, which is too old",
            hint=f"use {'MariaDB' if is_maria else 'MySQL'} {'.'.join(map(str, least))} or newer",
        )
    if packet < PACKET_BYTES_MIN:
        raise LedgerUnavailable(
            f"the server of the ledger at {where} takes statements of {packet:,} bytes only",
            hint=f"set max_allowed_packet to {PACKET_BYTES_MIN >> 20}M or more in the server's settings",
        )
    return int(packet)


def read_schema(ask: Ask) -> Schema:
    """What the database holds; nothing is made and nothing is changed."""
    try:
        [(version, needs, ledger)] = ask("select max(version), max(needs), max(ledger) from amends_schema")
    except Exception as error:
        if code_of(error) != NO_TABLE:
            raise
        return schema_of(MYSQL.name, 0, 0, "")
    return schema_of(MYSQL.name, version or 0, needs or 0, ledger or "")


def check_ledger(ask: Ask, where: str, *, create: bool) -> bool:
    """Whether something has to be migrated. Raises when this amends may not use, or not make, the ledger."""
    found = read_schema(ask)
    if found.version == 0 and not create:
        raise LedgerMissing(
            f"no ledger at {where}: the database holds none, and none may be created",
            hint="check the URL; amends db migrate, or a first start with create=True, makes the ledger",
        )
    check_usable(found, where)
    return bool(found.pending)  # where nothing has: without the lock, and without the right to change tables


def migrate(ask: Ask, where: str, *, wait_s: float) -> bool:
    """Bring the schema up to date; whether this call made the ledger. The lock goes when the connection is closed."""
    _lock(ask, where, wait_s)
    return _migrate(ask, where)


def _lock(ask: Ask, where: str, wait_s: float) -> None:
    [(got,)] = ask(f"select get_lock(concat('amends ', left(database(), 50)), {max(1, round(wait_s))})")
    if got != 1:
        raise LedgerUnavailable(
            f"somebody else has been changing the tables of the ledger at {where} for more than {wait_s:g} s",
            hint="wait for that migration; SHOW PROCESSLIST shows it",
        )


def _migrate(ask: Ask, where: str) -> bool:
    found = read_schema(ask)  # somebody may have been faster
    if found.version == 0:
        _check_free(ask, where)
    ledger = found.ledger or secrets.token_hex(8)
    for migration in migrations(MYSQL.name)[found.version :]:
        if found.version:
            log.info("migrating the ledger at %s to version %d (%s)", where, migration.version, migration.name)
        for statement in migration.statements:
            _repeatable(ask, statement)
        ask(
            "insert into amends_schema (version, needs, applied_at, ledger) values "
            f"({migration.version}, {migration.needs}, {MYSQL.clock}, '{ledger}')"
        )
    return found.version == 0


def _check_free(ask: Ask, where: str) -> None:
    """Tables of these names without ours are somebody else's: ours is made first."""
    names = {
        name.decode() if isinstance(name, bytes) else name
        for (name,) in ask(
            "select table_name from information_schema.tables where table_schema = database() "
            "and table_name in ('amends_schema', 'runs', 'calls', 'events')"
        )
    }
    if names and "amends_schema" not in names:
        raise LedgerCorrupt(
            f"the database at {where} has other tables called {', '.join(sorted(names))}; they were not touched",
            hint="give the ledger a database of its own",
        )


def _repeatable(ask: Ask, statement: str) -> None:
    try:
        ask(statement)
    except Exception as error:
        if code_of(error) not in THERE:
            raise
