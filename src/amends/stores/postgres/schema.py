"""The schema of a PostgreSQL ledger: read, create and migrate it, by one process at a time."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection
from typing import Final

import psycopg

from amends.errors import BadConfig, LedgerCorrupt, LedgerMissing
from amends.model import Schema
from amends.stores.migrations import applicable, check_shape, check_usable, migrations, schema_of
from amends.stores.postgres.connection import Blocking
from amends.stores.postgres.errors import explained, fate_of
from amends.stores.postgres.transaction import Preamble, quoted
from amends.stores.postgres.url import Address
from amends.stores.sql import Execute
from amends.visible import visible_log

log = visible_log("amends")

LOCK: Final = 0x616D656E6473
"""The key of the advisory lock for migrations: the word amends, in bytes."""
MIGRATE_WAIT_S: Final = 120
"""How long a process waits for another one that migrates."""
DIALECT: Final = "postgresql"
LOCK_TRY_S: Final = 2
"""How long a migration waits for the lock of a table: whoever comes after it waits for the same lock behind it."""
LOCK_PAUSE_S: Final = 1.0
COLUMNS: Final = (
    "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid "
    "where c.relkind = 'r' and c.relname ~ '^amends_' and pg_table_is_visible(c.oid) "
    "and a.attnum > 0 and not a.attisdropped"
)


def read_schema(connection: Blocking, address: Address) -> Schema:
    """Return the schema version that the ledger has and the one that this amends has; changes nothing."""
    try:
        connection.command(Preamble(address).reading)
        found = _schema(connection)
        rows = connection.execute(Execute(COLUMNS, ()))[0] if found.version else []
        connection.command("commit")
    except psycopg.Error as error:
        raise explained(error, address.shown, op=None, fate=fate_of(error, committing=False)) from error
    columns: dict[str, set[str]] = {}
    for table, column in rows:
        columns.setdefault(table, set()).add(column)
    check_shape(found, DIALECT, columns, address.shown)
    return found


def estimate_rows(connection: Blocking, address: Address, tables: Collection[str]) -> dict[str, int]:
    """Return about how many rows these tables had when the server last looked; one that does not exist is left out."""
    sql = (
        "select relname, cast(reltuples as bigint) from pg_class "
        "where relkind = 'r' and reltuples >= 0 and relname = any(%s) and pg_table_is_visible(oid)"
    )
    try:
        connection.command(Preamble(address).reading)
        rows = connection.execute(Execute(sql, (sorted(tables),)))[0]
        connection.command("commit")
    except psycopg.Error as error:
        raise explained(error, address.shown, op=None, fate=fate_of(error, committing=False)) from error
    return dict(rows)


def establish(
    connection: Blocking,
    address: Address,
    *,
    create: bool,
    clock: Callable[[], float] | None,
    contract: bool = False,
) -> bool:
    """Create or migrate the ledger if needed; return whether this call created it.

    ``contract``: a person asked for all migrations.
    """
    found = read_schema(connection, address)
    if found.version == 0 and not create:
        raise LedgerMissing(
            f"no ledger at {address.shown}: the database has none, and creating one was not allowed",
            hint="check the URL and its schema=; amends db migrate, or a first start with create=True, creates it",
        )
    check_usable(found, address.shown)
    if not applicable(migrations(DIALECT), found.version, contract=contract):
        return False
    try:
        return _migrate_patiently(connection, address, clock=clock, contract=contract)
    except psycopg.errors.InsufficientPrivilege as error:
        raise BadConfig(
            f"this role may not create or migrate the ledger at {address.shown}: {error.diag.message_primary}",
            setting="url",
            hint="run amends db migrate with a role that may create tables there, or grant create on the schema",
        ) from error
    except psycopg.errors.DuplicateTable as error:
        raise LedgerCorrupt(
            f"{address.shown} has tables of another program: {error.diag.message_primary}; nothing was changed",
            hint="give the ledger a schema of its own: ?schema=amends",
        ) from error
    except psycopg.Error as error:
        raise explained(error, address.shown, op=None, fate=fate_of(error, committing=False)) from error


def _schema(connection: Blocking) -> Schema:
    # Not to_regclass: it answers from the session's cache, which learns of others' changes only in the next transaction.
    sql = "select 1 from pg_class where relname = 'amends_schema' and pg_table_is_visible(oid)"
    if not connection.execute(Execute(sql, ()))[0]:
        return schema_of(DIALECT, 0, 0, "")
    sql = "select coalesce(max(version), 0), coalesce(max(needs), 0), coalesce(max(ledger), '') from amends_schema"
    [(version, needs, ledger)], _, _ = connection.execute(Execute(sql, ()))
    return schema_of(DIALECT, version, needs, ledger)


def _migrate_patiently(
    connection: Blocking, address: Address, *, clock: Callable[[], float] | None, contract: bool
) -> bool:
    """Apply the migrations as soon as the tables can be locked, without holding up others for long."""
    until = time.monotonic() + MIGRATE_WAIT_S
    while True:
        try:
            return _migrate(connection, address, clock=clock, contract=contract)
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() >= until:
                raise
        log.info("the ledger at %s is in use; its migration is tried again", address.shown)
        time.sleep(LOCK_PAUSE_S)


def _migrate(connection: Blocking, address: Address, *, clock: Callable[[], float] | None, contract: bool) -> bool:
    """Apply all missing migrations in one transaction, under a lock that only migrations take."""
    connection.command(Preamble(address).writing)
    try:
        connection.command(f"set local lock_timeout = '{MIGRATE_WAIT_S}s'; select pg_advisory_xact_lock({LOCK})")
        if (
            address.schema
            and not connection.execute(Execute("select 1 from pg_namespace where nspname = %s", (address.schema,)))[0]
        ):
            connection.command(f"create schema {quoted(address.schema)}")
        connection.command(f"set local lock_timeout = '{LOCK_TRY_S}s'")
        schema = _schema(connection)  # another process may have been faster
        found, ledger = schema.version, schema.ledger or secrets.token_hex(8)
        for migration in applicable(migrations(DIALECT), found, contract=contract):
            if found:
                log.info(
                    "migrating the ledger at %s to version %d (%s)", address.shown, migration.version, migration.name
                )
            for statement in migration.statements:
                connection.command(statement)
            at = "extract(epoch from clock_timestamp())" if clock is None else repr(clock())
            connection.execute(
                Execute(
                    f"insert into amends_schema values (%s, %s, {at}, %s)", (migration.version, migration.needs, ledger)
                )
            )
        connection.command("commit")
    except BaseException:
        if not connection.closed:
            connection.command("rollback")
        raise
    return found == 0
