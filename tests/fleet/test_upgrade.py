"""Rolling upgrades: two versions of amends and of the tools over one ledger, killed, then compared with the world."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.fleet.copies import NEXT, SOURCE, command, next_version
from tests.fleet.rolling import Fleet

REST = partial(pytest.param, marks=pytest.mark.rest)


@pytest.mark.slow
@pytest.mark.parametrize("orders, kills", [(30, 5), pytest.param(200, 40, marks=pytest.mark.rest)])
def test_a_rolling_upgrade_under_load_loses_and_repeats_nothing(
    tmp_path: Path, postgres_url: str, orders: int, kills: int
) -> None:
    newer = next_version(tmp_path / "next")
    fleet = Fleet(tmp_path, postgres_url, newer, orders=orders, kills=kills, seed=21)
    end = fleet.play(seconds=60 + 3 * orders)
    print(
        f"{end.orders} orders, states {dict(end.states)}, kills {dict(end.kills)}, effects by tools {dict(end.by_tools)}: "
        f"{len(end.duplicated)} duplicated, {len(end.lost)} lost, {len(end.stuck)} stuck"
    )
    assert (end.duplicated, end.lost, end.stuck, end.errors) == ([], [], [], "")
    assert end.kills.total() >= kills
    assert end.states["committed"] == orders - end.states["rolled_back"]
    assert set(end.by_tools) == {"1", "2"}
    assert "ACCESS EXCLUSIVE" in end.plan
    assert "programs may go on" in end.plan


@pytest.mark.parametrize("kind", ["sqlite", REST("postgresql"), REST("mysql")])
def test_the_next_version_migrates_and_this_one_goes_on_until_a_person_contracts(
    tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """Two real copies of the package, as programs: what each says about one ledger."""
    urls = {"postgresql": "postgres_url", "mysql": "mysql_url"}
    url = f"sqlite:///{tmp_path / 'shop.db'}" if kind == "sqlite" else request.getfixturevalue(urls[kind])
    old, new = SOURCE.parent, next_version(tmp_path / "next", contract=True)

    def said(source: Path, *verb: str) -> tuple[int, dict[str, object]]:
        done = command(source, *verb, "--url", url, "--json", cwd=tmp_path)
        return done.returncode, json.loads(done.stdout.splitlines()[0]) if done.stdout else {"error": done.stderr}

    code, made = said(old, "db", "migrate")
    version = made["version"]
    assert isinstance(version, int)
    code, planned = said(new, "db", "migrate", "--plan")
    assert (code, planned["version"], planned["is_contract"]) == (1, version + 1, False)
    assert [one["sql"] for one in planned["statements"]] == list(NEXT[kind])  # type: ignore[index, attr-defined]
    assert said(new, "runs", "list")[0] == 0  # any program of the next version expands, and does not contract
    assert said(old, "db", "status") == (0, {**made, "version": version + 1})
    assert said(old, "runs", "list")[0] == 0
    code, contracted = said(new, "db", "migrate")
    assert (code, contracted["version"], contracted["needs"]) == (0, version + 2, version + 2)
    code, refused = said(old, "runs", "list")
    assert code == 21, refused
    assert f"needs an amends that knows version {version + 2}" in str(refused)
