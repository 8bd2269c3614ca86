"""What a ledger itself needs now and then: its schema brought up to date, and what is no longer needed removed."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

from amends.errors import UsageError
from amends.filter import seconds_in
from amends.hub import Hub, View
from amends.ledger import CollectGarbage
from amends.model import Collected
from amends.store.migrations import Migrating

BATCH_RUNS: Final = 50
"""Trees that one transaction looks at: whoever waits for the ledger waits no longer than that."""
RUNS_MAX: Final = 10**9


def migrating(hub: Hub) -> Migrating:
    """The store, if its ledger has a schema."""
    store = hub.store
    if not isinstance(store, Migrating):
        raise UsageError(
            f"the ledger {store.url} has no schema: there is nothing to migrate",
            hint="a ledger in memory is gone with its process; say which ledger is meant with url",
        )
    return store


def seconds_of(age: float | str | timedelta) -> float:
    """How old something must be: a timedelta, seconds, or a text like "30d", "12h", "2w"."""
    found = seconds_in(age) if isinstance(age, str) else None
    if found is not None:
        return found
    plain = age.total_seconds() if isinstance(age, timedelta) else age
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 <= plain < float("inf"):
        raise UsageError(f'older_than is {age!r}; it is a timedelta, seconds, or a text like "30d", "12h", "2w"')
    return float(plain)


async def collect(
    view: View, older_than: float | str | timedelta, *, dry_run: bool, tenant: str | None, limit: int | None
) -> Collected:
    """Batch after batch until nothing is left to remove, or ``limit`` trees have lost their payloads."""
    age_s, whose = seconds_of(older_than), view.within(tenant)
    most = RUNS_MAX if limit is None else limit
    if most < 1:
        raise UsageError(f"limit is {limit!r}; it is how many runs may be collected, 1 or more")
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
