"""The schema of a MariaDB or MySQL ledger: which server is new enough, reading, creating and migrating it.

These servers commit before and after every statement that changes a table. So each statement of a migration can be
repeated, the version is recorded last, and a lock of the server lets one process migrate at a time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection
from typing import Any, Final

from amends.errors import LedgerCorrupt, LedgerMissing, LedgerUnavailable
from amends.model import Schema
from amends.stores.migrations import applicable, check_shape, check_usable, migrations, schema_of
from amends.stores.mysql.errors import NO_TABLE, THERE, code_of
from amends.stores.sql import MYSQL
from amends.visible import visible_log

log = visible_log("amends")

MARIADB_MIN: Final = (10, 6, 0)
"""For SKIP LOCKED."""
MYSQL_MIN: Final = (8, 0, 19)
"""For SKIP LOCKED, defaults of text columns, enforced CHECK constraints, and tables of values."""
PACKET_BYTES_MIN: Final = 4 << 20
"""Arguments of 1 MB may be twice as long as a literal, and share a statement with others."""

Ask = Callable[[str], list[tuple[Any, ...]]]
"""Runs one statement outside a transaction; returns its rows."""


def check_server(ask: Ask, where: str) -> int:
    """Return how large a statement may be. Raises if this server cannot hold a ledger."""
    [(version, packet)] = ask("select version(), @@max_allowed_packet")
    numbers = tuple(int(one) for one in re.findall(r"\d+", version.removeprefix("5.5.5-"))[:3])
    is_maria = "mariadb" in version.lower()
    least = MARIADB_MIN if is_maria else MYSQL_MIN
    if numbers < least:
        raise LedgerUnavailable(
            f"the server of the ledger at {where} is {version}, which is too old",
            hint=f"use {'MariaDB' if is_maria else 'MySQL'} {'.'.join(map(str, least))} or newer",
        )
    if packet < PACKET_BYTES_MIN:
        raise LedgerUnavailable(
            f"the server of the ledger at {where} accepts statements of {packet:,} bytes only",
            hint=f"set max_allowed_packet to {PACKET_BYTES_MIN >> 20}M or more in the server's settings",
        )
    return int(packet)


def read_schema(ask: Ask, where: str) -> Schema:
    """Return the schema version of the database; changes nothing. Raises ``LedgerTooOld`` for one of 0.1.0.dev0."""
    try:
        [(version, needs, ledger)] = ask("select max(version), max(needs), max(ledger) from amends_schema")
    except Exception as error:
        if code_of(error) != NO_TABLE:
            raise
        return schema_of(MYSQL.name, 0, 0, "")
    found = schema_of(MYSQL.name, version or 0, needs or 0, ledger or "")
    if found.version:
        columns: dict[str, set[str]] = {}
        for table, column in ask(COLUMNS):
            columns.setdefault(_text(table), set()).add(_text(column))
        check_shape(found, MYSQL.name, columns, where)
    return found


COLUMNS: Final = (
    "select table_name, column_name from information_schema.columns "
    "where table_schema = database() and table_name like 'amends\\_%'"
)


def estimate_rows(ask: Ask, tables: Collection[str]) -> dict[str, int]:
    """Return about how many rows the server believes these tables to have; one that does not exist is left out."""
    rows = ask("select table_name, table_rows from information_schema.tables where table_schema = database()")
    return {_text(table): int(count) for table, count in rows if _text(table) in tables and count is not None}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def check_ledger(ask: Ask, where: str, *, create: bool) -> bool:
    """Return whether a migration is pending. Raises if this amends may not use or create the ledger."""
    found = read_schema(ask, where)
    if found.version == 0 and not create:
        raise LedgerMissing(
            f"no ledger at {where}: the database has none, and creating one was not allowed",
            hint="check the URL; amends db migrate, or a first start with create=True, creates the ledger",
        )
    check_usable(found, where)
    # If none is, neither the lock nor the privilege to change tables is needed.
    return bool(applicable(migrations(MYSQL.name), found.version, contract=False))


def migrate(ask: Ask, where: str, *, wait_s: float, contract: bool = False) -> bool:
    """Migrate the schema; return whether this call created the ledger. Closing the connection releases the lock.

    ``contract``: a person asked for all migrations.
    """
    _lock(ask, where, wait_s)
    return _migrate(ask, where, contract=contract)


def _lock(ask: Ask, where: str, wait_s: float) -> None:
    [(got,)] = ask(f"select get_lock(concat('amends ', left(database(), 50)), {max(1, round(wait_s))})")
    if got != 1:
        raise LedgerUnavailable(
            f"another process has been migrating the ledger at {where} for more than {wait_s:g} s",
            hint="wait for that migration; SHOW PROCESSLIST shows it",
        )


def _migrate(ask: Ask, where: str, *, contract: bool) -> bool:
    found = read_schema(ask, where)  # another process may have been faster
    if found.version == 0:
        _check_free(ask, where)
    ledger = found.ledger or secrets.token_hex(8)
    for migration in applicable(migrations(MYSQL.name), found.version, contract=contract):
        if found.version:
            log.info("migrating the ledger at %s to version %d (%s)", where, migration.version, migration.name)
        for statement in migration.statements:
            # The marks around the body of a procedure are for whoever splits the file.
            _repeatable(ask, statement.replace("$$", ""))
        ask(
            "insert into amends_schema (version, needs, applied_at, ledger) values "
            f"({migration.version}, {migration.needs}, {MYSQL.clock}, '{ledger}')"
        )
    return found.version == 0


def _check_free(ask: Ask, where: str) -> None:
    """Refuse tables of these names that are not ours: ``amends_schema`` is always created first."""
    names = {
        _text(name)
        for (name,) in ask(
            "select table_name from information_schema.tables where table_schema = database() "
            "and table_name in ('amends_schema', 'amends_run', 'amends_call', 'amends_event')"
        )
    }
    if names and "amends_schema" not in names:
        raise LedgerCorrupt(
            f"the database at {where} has tables of another program: {', '.join(sorted(names))}; they were not touched",
            hint="give the ledger a database of its own",
        )


def _repeatable(ask: Ask, statement: str) -> None:
    try:
        ask(statement)
    except Exception as error:
        if code_of(error) not in THERE:
            raise
