"""Maintenance of a ledger: migrate its schema, remove old payloads, encrypt with a new key."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

from amends.encoding.chain import Checkpoint
from amends.errors import UsageError
from amends.host.filters import seconds_in
from amends.host.host import Host, View
from amends.ledger.operations import CollectGarbage
from amends.model import Collected, PlannedMigration, Schema
from amends.stores.migrations import Estimating, Migrating, plan_of, sql_of, tables_of

BATCH_RUNS: Final = 50
"""How many trees one transaction handles, so that others do not wait long for the ledger."""
RUNS_MAX: Final = 10**9


def schema(host: Host, _view: View) -> Schema:
    """Return the schema version of the ledger and the one that this amends knows; create and change nothing."""
    return _migrating(host).schema()


def migrate(host: Host, _view: View) -> Schema:
    """Bring the schema of the ledger up to date, creating the ledger if there is none; return what it has then."""
    return _migrating(host).migrate()


def plan_migration(host: Host, _view: View) -> tuple[PlannedMigration, ...]:
    """Return what ``migrate`` would do: SQL, locks and about how many rows; create and change nothing."""
    store = _migrating(host)
    schema = store.schema()
    rows: dict[str, int] = {}
    if schema.version and isinstance(store, Estimating):
        rows = store.estimate_rows(tables_of(store.dialect, schema.version))
    return plan_of(store.dialect, schema, rows)


def schema_sql(host: Host, _view: View) -> str:
    """Return the SQL that creates the tables of the ledger, for this kind of database; create and change nothing."""
    return sql_of(_migrating(host).dialect)


def _migrating(host: Host) -> Migrating:
    store = host.store
    if not isinstance(store, Migrating):
        raise UsageError(
            f"the ledger {store.url} has no schema: there is nothing to migrate",
            hint="a ledger in memory ends with its process; set url to the ledger that you mean",
        )
    return store


def seconds_of(age: float | str | timedelta) -> float:
    """Return an age in seconds, from a timedelta, seconds, or a string like "30d", "12h", "2w"."""
    found = seconds_in(age) if isinstance(age, str) else None
    if found is not None:
        return found
    plain = age.total_seconds() if isinstance(age, timedelta) else age
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 <= plain < float("inf"):
        raise UsageError(f'older_than is {age!r}; it is a timedelta, seconds, or a string like "30d", "12h", "2w"')
    return float(plain)


async def gc(
    _host: Host,
    view: View,
    *,
    older_than: float | str | timedelta,
    dry_run: bool = False,
    tenant: str | None = None,
    limit: int | None = None,
) -> Collected:
    """Remove arguments, results and errors of trees that ended long enough ago; identities and events stay.

    Works in batches until nothing is left to remove, or until ``limit`` trees have lost their payloads.
    """
    age_s, whose = seconds_of(older_than), view.within(tenant)
    most = RUNS_MAX if limit is None else limit
    if most < 1:
        raise UsageError(f"limit is {limit!r}; it is the largest number of runs to collect, 1 or more")
    runs = calls = freed = 0
    kept: Counter[str] = Counter()
    after: tuple[float, str] | None = None
    while runs < most:
        swept = await CollectGarbage(age_s, whose, after, min(BATCH_RUNS, most - runs), dry_run)
        runs, calls, freed = runs + swept.runs, calls + swept.calls, freed + swept.freed
        kept.update(dict(swept.kept))
        if swept.after is None:
            break
        assert after is None or swept.after > after, "every batch begins after the last one"
        after = swept.after
    return Collected(runs, calls, freed, dict(kept), dry_run)


def checkpoint(host: Host, _view: View) -> Checkpoint | None:
    """Write a checkpoint over everything in the ledger and return the newest one; None if nothing ever happened."""
    host.ready()
    return host.checkpointer.write()


def reencrypt(host: Host, _view: View) -> int:
    """Encrypt every argument, result, input, output and error with the newest key; return how many rows changed.

    Works row by row beside live runs. Events are never rewritten: what they quote stays encrypted with the key of its
    day. So does a run that was loaded from another ledger: its keys are that ledger's.
    """
    sealing = host.hiding.sealing
    if sealing is None:
        raise UsageError(
            "this runtime has no keys to encrypt with",
            hint="set Runtime(encrypt=...) or AMENDS_ENCRYPT to the new key, followed by the keys that the ledger has",
        )
    from amends.host.encryption import encrypt_anew  # here: few programs encrypt

    host.ready()
    return encrypt_anew(host.store, sealing)
