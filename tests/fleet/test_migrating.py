"""A migration is applied while programs and workers of the previous version go on; ``make test-upgrade`` has a million calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.copies import next_version
from tests.fleet.migrating import STORES, migrate_under_load

CALLS = 4_000


@pytest.mark.rest
@pytest.mark.slow
@pytest.mark.parametrize("store", STORES)
def test_a_ledger_is_migrated_while_the_previous_version_works_on_it(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    names = {"postgres": "postgres_url", "mariadb": "mysql_url"}
    place = request.getfixturevalue(names[store]) if store in names else str(tmp_path / "ledger.db")
    found = migrate_under_load(store, place, next_version(tmp_path / "next"), CALLS, cwd=tmp_path)
    assert found.abandoned > 0
    assert "programs may go on" in found.plan
