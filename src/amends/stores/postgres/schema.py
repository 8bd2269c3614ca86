"""The schema of a PostgreSQL ledger: read, create and migrate it, by one process at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import psycopg

from amends.errors import BadConfig, LedgerCorrupt, LedgerMissing
from amends.model import Schema
from amends.stores.migrations import check_usable, migrations, refuse_old, schema_of
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
RUNS: Final = "select 1 from pg_class where relname = 'amends_run' and pg_table_is_visible(oid)"


def read_schema(connection: Blocking, address: Address) -> Schema:
    """Return the schema version that the ledger has and the one that this amends has; changes nothing."""
    try:
        connection.command(Preamble(address).reading)
        found = _schema(connection)
        is_old = found.version > 0 and not connection.execute(Execute(RUNS, ()))[0]
        connection.command("commit")
    except psycopg.Error as error:
        raise explained(error, address.shown, op=None, fate=fate_of(error, committing=False)) from error
    if is_old:
        raise refuse_old(address.shown)
    return found


def establish(connection: Blocking, address: Address, *, create: bool, clock: Callable[[], float] | None) -> bool:
    """Create or migrate the ledger if needed; return whether this call created it."""
    found = read_schema(connection, address)
    if found.version == 0 and not create:
        raise LedgerMissing(
            f"no ledger at {address.shown}: the database has none, and creating one was not allowed",
            hint="check the URL and its schema=; amends db migrate, or a first start with create=True, creates it",
        )
    check_usable(found, address.shown)
    if found.version >= found.newest:
        return False
    try:
        return _migrate(connection, address, clock=clock)
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


def _migrate(connection: Blocking, address: Address, *, clock: Callable[[], float] | None) -> bool:
    """Apply all missing migrations in one transaction, under a lock that only migrations take."""
    connection.command(Preamble(address).writing)
    try:
        connection.command(f"set local lock_timeout = '{MIGRATE_WAIT_S}s'; select pg_advisory_xact_lock({LOCK})")
        if (
            address.schema
            and not connection.execute(Execute("select 1 from pg_namespace where nspname = %s", (address.schema,)))[0]
        ):
            connection.command(f"create schema {quoted(address.schema)}")
        schema = _schema(connection)  # another process may have been faster
        found, ledger = schema.version, schema.ledger or secrets.token_hex(8)
        for migration in migrations(DIALECT)[found:]:
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
