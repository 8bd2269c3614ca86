"""What the program in a bundle says of a record is what ``rt.verify`` says of the ledger that it was taken from."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest

from amends import Runtime
from amends.audit.standalone import verify
from tests.audit.trips import RUNS, runtime, travel


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("origin") / "l.db"
    with runtime(f"sqlite:///{file}", checkpoint="off") as rt:
        travel(rt)
    return file


def said(rt: Runtime) -> list[tuple[str, str, int]]:
    return [(one.how, one.run_id, one.n) for one in rt.verify().problems]


def bundled(rt: Runtime) -> list[tuple[str, str, int]]:
    return [(one.how, one.run_id, one.n) for one in verify.check(verify.read(rt.export(*RUNS)))]


def test_of_what_is_whole_both_say_nothing(whole: Path, tmp_path: Path) -> None:
    with runtime(f"sqlite:///{whole}") as rt:
        assert said(rt) == bundled(rt) == []
        made = rt.export(*RUNS)
    with runtime(f"sqlite:///{tmp_path}/other.db") as other:
        other.load(made)
        assert other.verify().ok, str(other.verify())
        assert said(other) == bundled(other) == []
        other.gc(older_than=0)
        assert said(other) == bundled(other) == []


@pytest.mark.parametrize("seed", range(2))
def test_of_what_was_changed_both_say_the_same(whole: Path, tmp_path: Path, seed: int) -> None:
    luck, told = random.Random(seed), 0
    for number in range(30):
        file = tmp_path / f"{number}.db"
        copyfile(whole, file)
        tamper(luck, file)
        with runtime(f"sqlite:///{file}", checkpoint="off", create=False) as rt:
            ours = said(rt)
            assert bundled(rt) == ours, number
            told += bool(ours)
        file.unlink()
    assert told > 10


def tamper(luck: random.Random, file: Path) -> None:
    """One thing, in one row of the ledger."""
    raw = sqlite3.connect(file)
    raw.execute("pragma ignore_check_constraints = on")
    table = luck.choice(["events", "events", "calls", "runs", "approvals"])
    raw.row_factory = sqlite3.Row
    rows = [dict(row) for row in raw.execute(f"select rowid as r, * from {table}")]
    row = luck.choice(rows)
    way = luck.choice(["edit", "edit", "edit", "delete", "swap"] if table in ("events", "calls") else ["edit"])
    if way == "delete":
        raw.execute(f"delete from {table} where rowid = ?", (row["r"],))
    elif way == "swap" and table == "events":
        _swap(raw, row, luck.choice(rows))
    else:
        name = luck.choice([name for name in row if name not in NEVER])
        raw.execute(f'update or ignore {table} set "{name}" = ? where rowid = ?', (other(luck, row[name]), row["r"]))
    raw.commit()
    raw.close()


NEVER = ("r", "uid", "id", "root", "tenant", "place", "n")
"""Changed, these make a row of another tree, or one that is not read at all: it is not exported, and so missing."""


def _swap(raw: Any, one: Any, two: Any) -> None:
    names = [name for name in one if name not in ("r", "place", "n", "root", "hash")]
    for row, values in ((one, two), (two, one)):
        sets = ", ".join(f'"{name}" = ?' for name in names)
        raw.execute(f"update events set {sets} where rowid = ?", (*(values[name] for name in names), row["r"]))


def other(luck: random.Random, was: Any) -> Any:
    if isinstance(was, str):
        place = luck.randrange(len(was) + 1)
        return was[:place] + luck.choice("xyz") + was[place + luck.randrange(2) :]
    return luck.choice([1, 7.5]) if was is None else was + luck.choice([1, -1, 7])
