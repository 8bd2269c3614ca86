"""The database that many checks share is empty before each of them."""

from contextlib import closing

import pytest

from tests.servers.databases import execute
from tests.stores.emptied import Emptied


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_everything_goes_but_what_says_which_migrations_are_in(request: pytest.FixtureRequest, kind: str) -> None:
    url: str = request.getfixturevalue(f"{kind}_url")
    with closing(Emptied(url)) as database:
        database.empty()  # before there is any table
        made = [f"create table {name} (number integer primary key)" for name in ("amends_schema", "runs")]
        ledger = "create table amends_ledger (no integer primary key, halt integer)"
        calls = "create table calls (number integer primary key, run integer references runs (number))"
        rows = [f"insert into {name} values ({value})" for name, value in (("amends_schema", 1), ("runs", 1))]
        marks = "create table amends_mark (name varchar(9) primary key, value varchar(9), made_at integer)"
        execute(url, [*made, ledger, calls, marks, *rows, "insert into calls values (1, 1)"])
        execute(url, ["insert into amends_ledger values (1, 2)"])
        for _ in range(2):
            database.empty()
            counts = [execute(url, [f"select count(*) from {name}"]) for name in ("amends_schema", "runs", "calls")]
            assert counts == [[(1,)], [(0,)], [(0,)]]
            assert execute(url, ["select name, made_at from amends_mark"]) == [("time", 0)]
            assert execute(url, ["select no, halt from amends_ledger"]) == [(1, 0)]  # kept, and nothing is halted
            changed = ["update amends_mark set made_at = 9", "update amends_ledger set halt = 1"]
            execute(url, ["insert into runs values (2)", *changed])
