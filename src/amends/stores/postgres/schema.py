"""The schema of a PostgreSQL ledger: looked at, made, and brought up to date by one starter at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

import psycopg

from amends.errors import BadConfig, LedgerCorrupt, LedgerMissing
from amends.model import Schema
from amends.stores.migrations import check_usable, migrations, schema_of
from amends.stores.postgres.connection import Link
from amends.stores.postgres.errors import explained, fate_of
from amends.stores.postgres.transaction import Preamble, quoted
from amends.stores.postgres.url import Place
from amends.stores.sql import Execute
from amends.visible import visible_log

log = visible_log("amends")

LOCK: Final = 0x616D656E6473
"""The advisory lock of whoever migrates: the word amends, in bytes."""
MIGRATE_WAIT_S: Final = 120
"""How long a starter waits for another one that migrates."""
DIALECT: Final = "postgresql"


def read_schema(link: Link, place: Place) -> Schema:
    """What the ledger has and what this amends would have; makes and changes nothing."""
    try:
        link.command(Preamble(place).reading)
        found = _schema(link)
        link.command("commit")
        return found
    except psycopg.Error as error:
        raise explained(error, place.shown, op=None, fate=fate_of(error, committing=False)) from error


def establish(link: Link, place: Place, *, create: bool, clock: Callable[[], float] | None) -> bool:
    """The ledger is there and up to date; whether this call made it."""
    found = read_schema(link, place)
    if found.version == 0 and not create:
        raise LedgerMissing(
            f"no ledger at {place.shown}: the database has none, and none may be created",
            hint="check the URL and its schema=; amends db migrate, or a first start with create=True, makes it",
        )
    check_usable(found, place.shown)
    if found.version >= found.newest:
        return False
    try:
        return _migrate(link, place, clock=clock)
    except psycopg.errors.InsufficientPrivilege as error:
        raise BadConfig(
            f"this role may not make or migrate the ledger at {place.shown}: {error.diag.message_primary}",
            setting="url",
            hint="run amends db migrate with a role that may create tables there, or grant create on the schema",
        ) from error
    except psycopg.errors.DuplicateTable as error:
        raise LedgerCorrupt(
            f"{place.shown} has tables of something else: {error.diag.message_primary}; nothing was changed",
            hint="give the ledger a schema of its own: ?schema=amends",
        ) from error
    except psycopg.Error as error:
        raise explained(error, place.shown, op=None, fate=fate_of(error, committing=False)) from error


def _schema(link: Link) -> Schema:
    # Not to_regclass: it answers from the session's cache, which does not hear of others before the next transaction.
    sql = "select 1 from pg_class where relname = 'amends_schema' and pg_table_is_visible(oid)"
    if not link.execute(Execute(sql, ()))[0]:
        return schema_of(DIALECT, 0, 0, "")
    sql = "select coalesce(max(version), 0), coalesce(max(needs), 0), coalesce(max(ledger), '') from amends_schema"
    [(version, needs, ledger)], _, _ = link.execute(Execute(sql, ()))
    return schema_of(DIALECT, version, needs, ledger)


def _migrate(link: Link, place: Place, *, clock: Callable[[], float] | None) -> bool:
    """One transaction for all that is missing, under a lock that only those who migrate take."""
    link.command(Preamble(place).writing)
    try:
        link.command(f"set local lock_timeout = '{MIGRATE_WAIT_S}s'; select pg_advisory_xact_lock({LOCK})")
        if (
            place.schema
            and not link.execute(Execute("select 1 from pg_namespace where nspname = %s", (place.schema,)))[0]
        ):
            link.command(f"create schema {quoted(place.schema)}")
        schema = _schema(link)  # somebody may have been faster
        found, ledger = schema.version, schema.ledger or secrets.token_hex(8)
        for migration in migrations(DIALECT)[found:]:
            if found:
                log.info(
                    "migrating the ledger at %s to version %d (%s)", place.shown, migration.version, migration.name
                )
            for statement in migration.statements:
                link.command(statement)
            at = "extract(epoch from clock_timestamp())" if clock is None else repr(clock())
            link.execute(
                Execute(
                    f"insert into amends_schema values (%s, %s, {at}, %s)", (migration.version, migration.needs, ledger)
                )
            )
        link.command("commit")
    except BaseException:
        if not link.closed:
            link.command("rollback")
        raise
    return found == 0
