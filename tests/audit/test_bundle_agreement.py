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
    """One thing, in one row of the ledger as it is stored: events that are rows, and those that are folded in calls."""
    raw = sqlite3.connect(file)
    raw.execute("pragma ignore_check_constraints = on")
    table = luck.choice(["amends_event", "amends_event", "amends_call", "amends_call", "amends_run", "amends_approval"])
    raw.row_factory = sqlite3.Row
    rows = [dict(row) for row in raw.execute(f"select * from {table}")]
    row = luck.choice(rows)
    keys = ("root", "n") if table == "amends_event" else ("no",)
    where, key = " and ".join(f"{name} = ?" for name in keys), tuple(row[name] for name in keys)
    many = table in ("amends_event", "amends_call")
    way = luck.choice(["edit", "edit", "edit", "delete", "swap"] if many else ["edit"])
    if way == "delete":
        raw.execute(f"delete from {table} where {where}", key)
    elif way == "swap":
        _swap(raw, table, where, keys, row, luck.choice(rows))
    else:
        name = luck.choice([name for name in row if name not in NEVER and (table, name) not in OF_THE_STORE])
        raw.execute(f'update or ignore {table} set "{name}" = ? where {where}', (other(luck, row[name]), *key))
    raw.commit()
    raw.close()


OF_THE_STORE = {
    ("amends_run", "touch"), ("amends_run", "at"), ("amends_run", "head"), ("amends_run", "sealed"),
    ("amends_call", "tool"),
}  # fmt: skip
"""What a store keeps beside the rows of a run; a bundle does not have it."""
NEVER = ("uid", "id", "no", "root", "tenant", "n")
"""Changed, these make a row of another tree, or one that is not read at all: it is not exported, and so missing."""


def _swap(raw: Any, table: str, where: str, keys: tuple[str, ...], one: Any, two: Any) -> None:
    """The content of two events, or the folded events of two calls."""
    if table == "amends_event":
        names = [name for name in one if name not in ("n", "root", "hash")]
    else:
        names = [name for name in one if name.endswith(("_n", "_at", "hash"))]
    for row, values in ((one, two), (two, one)):
        sets = ", ".join(f'"{name}" = ?' for name in names)
        of = tuple(row[name] for name in keys)
        raw.execute(f"update {table} set {sets} where {where}", (*(values[name] for name in names), *of))


def other(luck: random.Random, was: Any) -> Any:
    if isinstance(was, str):
        place = luck.randrange(len(was) + 1)
        return was[:place] + luck.choice("xyz") + was[place + luck.randrange(2) :]
    if isinstance(was, bytes):
        place = luck.randrange(len(was))
        return was[:place] + bytes([was[place] ^ 1]) + was[place + 1 :]
    return luck.choice([1, 7.5]) if was is None else was + luck.choice([1, -1, 7])
