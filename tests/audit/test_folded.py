"""Every column of every stored row is edited and emptied, rows are deleted, folded events swapped, tails cut.

The ledger has plain calls, compensated ones, a child, calls that were asked for, tried again or doubted, a key of the
whole ledger, a loaded run and a delegation, on SQLite, PostgreSQL and MariaDB. Each tampering happens in a transaction that is
rolled back after ``verify`` has read it. A tampering that the database itself refuses is none.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from amends import Held, NoEffect, Problem, Retry, Runtime, tool
from amends.audit import verify
from amends.encoding.ids import call_id
from amends.errors import RunBlocked
from amends.host.host import View
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import Chains, ReadChains, StoreOp
from amends.ledger.rows import CallRow, EventRow
from amends.ledger.world import ReadAnchor
from amends.stores import audited
from amends.stores import calls as stored
from amends.stores.mysql.connection import connect
from amends.stores.mysql.schema import PACKET_BYTES_MIN
from amends.stores.mysql.store import driver
from amends.stores.mysql.url import read_address
from amends.stores.sql import MYSQL, POSTGRES, SQLITE, Statements, Transaction, as_sql
from tests.audit.forger import Forger, Row
from tests.stores.harness import REST

TRIES = dict[str, int]()


@tool(retry=Retry(attempts=3, delay=0.001))
def book(what: str) -> str:
    TRIES[what] = TRIES.get(what, 0) + 1
    if what == "flaky" and TRIES[what] == 1:
        raise ConnectionRefusedError("busy")
    if what == "bad":
        raise ValueError("no room")
    return f"booked {what}"


@book.compensate
def cancel(what: str) -> None: ...


@tool
def pay(what: str) -> str:
    if what == "too much":
        raise ValueError("no money")
    if what == "never":
        raise NoEffect("refused", final=True)
    return f"paid {what}"


@pay.compensate
def pay_back(what: str) -> None: ...


@tool(kind="pivot", retry=Retry(attempts=1))
def lose(what: str) -> str:
    raise TimeoutError("no answer")


@tool(kind="pivot", scope="ledger", key="to", needs_approval=True)
def wire(to: str) -> str:
    return f"wired to {to}"


TOOLS = (book, pay, lose, wire)


def made(url: str, elsewhere: Path) -> Runtime:
    """A ledger with one of everything."""
    TRIES.clear()
    with Runtime(f"sqlite:///{elsewhere}", tools=TOOLS, checkpoint="off") as there:
        with there.run("loaded"):
            book("train")
        bundle = there.export("loaded")
    rt = Runtime(url, tools=TOOLS, principal="bot", agent="agent", checkpoint="off", wait=0, wait_approval=0)
    with rt.run("plain", input={"n": 1}) as run:
        book("one")
        book("two")
        run.answer("book", {"what": "referred"}, tool_call_id="ref-1")
        with run.child("inner"):
            book("three")
        run.output = "done"
    with contextlib.suppress(ValueError), rt.run("taken back"):
        book("four")
        book("five")
        for what in ("never", "once", "too much", "nothing"):
            with contextlib.suppress(ValueError, NoEffect):
                pay(what)
        book("bad")
    with rt.run("tried again"):
        book("flaky")
    with contextlib.suppress(RunBlocked), rt.run("doubt"):
        book("six")
        lose("it")
    rt.delegate(by="Anna", to="bob", until=3600, why="lunch")
    rt.halt(by="Anna", why="fire")
    rt.unhalt(by="Anna", why="it is out")
    rt.halt(by="Anna", why="not this one", tool="other", agent="nobody")
    with pytest.raises(Held), rt.run("asked"):
        wire(to="bank")
    [asked] = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="bob", behalf="anna")
    with rt.run("asked"):
        wire(to="bank")
    rt.load(bundle)
    return rt


def unfolded(page: Chains) -> Chains:
    """The same page with a row for every call and every event."""
    events = tuple(event if isinstance(event, EventRow) else event.made for event in page.events)
    calls = tuple(call if isinstance(call, CallRow) else call.row for call in page.calls)
    return replace(page, events=events, calls=calls)


class Case:
    """The ledger, and a connection whose transaction ``verify`` reads."""

    def __init__(self, url: str, folder: Path) -> None:
        self.rt = made(url, folder / "there.db")
        self.forger = Forger(url)
        self.kind = self.forger.kind
        if self.kind == "sqlite":
            self.statements = Statements(SQLITE)
        elif self.kind == "mysql":
            self.forger._connection.close()
            self.forger._connection = connect(driver(), read_address(url), packet_max=PACKET_BYTES_MIN).raw
            self.forger.execute("set session sql_mode = concat(@@sql_mode, ',ANSI_QUOTES')")
            self.statements = Statements(replace(MYSQL, lock="", skip=""))
        else:
            self.statements = Statements(POSTGRES)

    def problems(self) -> tuple[Problem, ...]:
        def perform(op: Any) -> Any:
            assert isinstance(op, StoreOp), op
            return run_flow(as_sql(intent(op), Transaction(self.statements, time.time)), self._said)

        def perform_unfolded(op: Any) -> Any:
            return unfolded(perform(op)) if isinstance(op, ReadChains) else perform(op)

        found, slowly = self._found(perform), self._found(perform_unfolded)
        assert found == slowly, "plain calls are checked from their columns exactly as from their rows and events"
        return found

    def _found(self, perform: Callable[[Any], Any]) -> tuple[Problem, ...]:
        flow = verify.verify(self.rt._host, View(None, None, None))
        return run_flow(flow, lambda op: None if isinstance(op, ReadAnchor) else perform(op)).problems

    def _said(self, one: Any) -> tuple[list[Any], int, int]:
        cursor = self.forger._connection.cursor()
        cursor.execute(one.sql, one.params)
        return (list(cursor.fetchall()) if cursor.description else []), cursor.rowcount, 0

    def after(self, *deeds: tuple[str, tuple[Any, ...]]) -> tuple[Problem, ...] | None:
        """What is found after these statements; None: the database refuses them, or they change nothing."""
        self.forger.execute("begin")
        try:
            for sql, params in deeds:
                self.forger.execute(sql, params)
        except Exception as error:  # of any driver
            if not isinstance(error, sqlite3.Error) and type(error).__module__ not in ("psycopg.errors", "pymysql.err"):
                raise
            return None
        else:
            return self.problems()
        finally:
            self.forger.execute("rollback")

    def name_a_call(self) -> None:
        """A call keeps its id and gets another number, as if the id had been made elsewhere."""
        [key] = self.rows("amends_ledger_key")
        [row] = [row for row in self.rows("amends_call") if row["no"] == key["call"]]
        id = call_id(row["no"])
        more = json.dumps({**json.loads(row["more"]), "id": id}, separators=(",", ":"))
        self.forger.execute("update amends_call set no = ?, more = ? where no = ?", (row["no"] + 1, more, row["no"]))
        self.forger.execute('update amends_ledger_key set "call" = ?', (row["no"] + 1,))
        self.forger.execute('insert into amends_call_name (id, "call") values (?, ?)', (id, row["no"] + 1))

    def rows(self, table: str) -> list[Row]:
        columns, found = self.forger.stored(table)
        return [dict(zip(columns, row, strict=True)) for row in found]


@pytest.fixture(params=["sqlite", "postgresql", pytest.param("mysql", marks=REST)])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if request.param != "sqlite":
        url = str(request.getfixturevalue("mysql_url" if request.param == "mysql" else "postgres_url"))
    made = Case(url, tmp_path)
    yield made
    made.rt.close()


KEYS = {
    "amends_run": ("no",),
    "amends_call": ("no",),
    "amends_event": ("root", "n"),
    "amends_tool": ("no",),
    "amends_ledger_key": ("key", "gen"),
    "amends_call_name": ("id",),
    "amends_approval": ("no",),
    "amends_delegation": ("id",),
    "amends_directive": ("id",),
}
NOT_PROVED: dict[str, set[str]] = {
    # Leases, wake-up times, what is counted, and what only says where to look; they change without an event.
    "amends_run": {
        "came_from", "owner", "opener", "epoch", "lease_s", "lease_until", "wake_at", "suspended", "history",
        "interrupted", "pivot", "staged_pivot", "locked", "charged", "closed_at", "gone_at", "lease_boot", "lease_mono",
        "silent_boot", "silent_mono", "silent_at", "wanted", "owners", "touch", "sealed", "no",
    },
    "amends_call": {"epoch", "settled_at", "comp_at", "undone_at"},
    "amends_approval": {"told_at", "tell_at", "tells", "teller", "no", "use_key"},
    "amends_delegation": {"sealed"},
    "amends_directive": {"sealed"},
    "amends_tool": set(),
    "amends_event": set(),
    "amends_ledger_key": set(),
    "amends_call_name": set(),
}  # fmt: skip
"""Columns that an audit does not prove. Those of a call are proved where its event is folded."""
GENERATED: dict[str, dict[str, set[str]]] = {
    "sqlite": {},
    "postgresql": {"amends_directive": {"unsealed"}},
    "mysql": {"amends_call": {"attention"}, "amends_run": {"unsealed", "ended_at"}, "amends_directive": {"unsealed"}},
}
"""Columns that the database itself keeps; MariaDB accepts a null for them, and changes nothing."""
MORE = {
    "asked_epoch", "asked_by", "reason", "cost", "loss", "late", "first_at", "started_at", "retry_at", "tries_from", "quiet_boot",
    "quiet_mono", "quiet_left", "probes", "probe_at", "replays", "comp_from", "comp_gave_up", "comp_blind",
    "comp_retry_at", "comp_boot", "comp_mono", "args_proof", "result_proof", "error_proof",
}  # fmt: skip
"""What is not proved of ``more``: when it was tried, and what only the next attempt uses."""


def others(value: Any) -> list[Any]:
    """Other values for it; None last."""
    if isinstance(value, memoryview):
        value = bytes(value)
    if isinstance(value, bytes):
        return [bytes([value[0] ^ 1]) + value[1:], value[:-1] + bytes([value[-1] ^ 1]), b"", None]
    if isinstance(value, str):
        return [f"{value}x", "", None] if value else ["x", None]
    if value is None:
        return [1, "x", b"x" * 32]
    return [value + 1, -1, None]


def folds(row: Row, column: str) -> bool:
    """Whether this time or epoch of a call is part of an event that is folded into it."""
    hashes = {"epoch": "hash", "settled_at": "settled_hash", "comp_at": "comp_hash", "undone_at": "undone_hash"}
    return row[hashes[column]] is not None


def is_proved(table: str, row: Row, column: str) -> bool:
    if table == "amends_call" and column in NOT_PROVED[table]:
        return folds(row, column)
    return column not in NOT_PROVED[table]


def name_of(table: str, row: Row, column: str) -> str:
    return f"{table}.{column} of {[row[name] for name in KEYS[table]]}"


@pytest.mark.parametrize("part", ["share", pytest.param("all", marks=REST)])
@pytest.mark.parametrize("table", list(KEYS))
def test_every_column_of_every_row(case: Case, table: str, part: str) -> None:
    if table == "amends_call_name":
        case.name_a_call()
    assert case.problems() == ()
    missed, tried, found_somewhere = list[str](), 0, set[str]()
    rows = case.rows(table)
    assert rows, table
    if part == "share":
        # To save time: what is compared is the same for all databases, only the statements differ, and they find any row
        # of a table in the same way.
        share = {"amends_event": 7, "amends_run": 4, "amends_call": 4}.get(table, 1)
        rows = rows[:: share if case.kind != "sqlite" else (share + 1) // 2]
    for row in rows:
        keys = KEYS[table]
        where = " and ".join(f'"{name}" = ?' for name in keys)
        key = tuple(row[name] for name in keys)
        for column in row:
            if column in GENERATED[case.kind].get(table, ()):
                continue
            for value in others(row[column]):
                found = case.after((f'update {table} set "{column}" = ? where {where}', (value, *key)))
                if found is None:
                    continue
                tried += 1
                if found:
                    found_somewhere.add(column)
                elif is_proved(table, row, column) and not is_same(row, column, value):
                    missed.append(f"{name_of(table, row, column)}: {row[column]!r} -> {value!r}")
        if case.after((f"delete from {table} where {where}", key)) == ():
            missed.append(f"{table} {key} deleted")
    assert not missed, "\n".join(missed[:20])
    assert tried > 2 * len(rows)
    never = {column for column in NOT_PROVED[table] if column in found_somewhere}
    partly = {
        "came_from", "epoch", "settled_at", "comp_at", "undone_at", "owners", "no", "owner", "use_key", "sealed", "closed_at",
    }  # fmt: skip
    assert never <= partly, f"{never} are proved: take them from the list"


def is_same(row: Row, column: str, value: Any) -> bool:
    """Whether it says the same as before, or only what is not proved is gone.

    An event that is not folded has neither a number nor a hash.
    """
    if column == "more" and value is None:
        return set(json.loads(row["more"])) <= MORE
    return not row[column] and not value and column.endswith(("hash", "_n", "comp_epoch"))


def test_everything_in_more(case: Case) -> None:
    """Each value in it, one that is added, one too many, and what is no JSON."""
    missed = list[str]()
    rows = case.rows("amends_call")
    for row in rows:
        said = json.loads(row["more"]) if row["more"] else {}
        texts = ["", "{", "[]", "1", '{"key":"x"}', '{"made up":1}', '{"again":[]}', '{"agent":1}', '{"id":"call_x"}']
        texts += [json.dumps({**said, "agent": "eve"}), json.dumps({**said, "again": "x"})]
        for name in said:
            if name in MORE:
                continue
            texts += [json.dumps({**said, name: value}) for value in others(said[name]) if not isinstance(value, bytes)]
            texts.append(json.dumps({one: said[one] for one in said if one != name}))
        for text in texts:
            if case.after(("update amends_call set more = ? where no = ?", (text, row["no"]))) == ():
                missed.append(f"{row['state']}: {row['more']} -> {text}")
    assert any(row["more"] for row in rows)
    assert not missed, "\n".join(missed[:20])


FOLDS = (
    ("n", "at", "hash"), ("settled_n", "settled_at", "settled_hash"), ("comp_n", "comp_at", "comp_hash"),
    ("undone_n", "undone_at", "undone_hash"),
)  # fmt: skip


def test_folded_events_swapped_between_calls_and_emptied(case: Case) -> None:
    rows, missed = case.rows("amends_call"), list[str]()
    states = {row["state"] for row in rows if row["hash"] is not None and row["settled_hash"] is not None}
    assert states >= {"succeeded", "compensated", "failed"}, "some are folded"
    assert any(row["hash"] is None for row in rows), "some are not"
    for fold in FOLDS:
        having = [row for row in rows if row[fold[2]] is not None]
        assert having, fold
        sets = ", ".join(f'"{name}" = ?' for name in fold)
        for one in having:
            empty = ((f'update amends_call set "{fold[2]}" = null where no = ?', (one["no"],)),)
            if case.after(*empty) == ():
                missed.append(f"{fold} of {one['no']} emptied")
            for two in having:
                if one["no"] < two["no"]:
                    swap = [(f"update amends_call set {sets} where no = ?", (*(b[name] for name in fold), a["no"]))
                            for a, b in ((one, two), (two, one))]  # fmt: skip
                    if not case.after(*swap):
                        missed.append(f"{fold} of {one['no']} and {two['no']} swapped")
    for one in rows:  # two folded events of one call
        if one["settled_hash"] is not None:
            swapped = (one["settled_n"], one["settled_at"], one["settled_hash"], one["n"], one["at"], one["hash"])
            columns = ", ".join(f'"{name}" = ?' for fold in FOLDS[:2] for name in fold)
            if not case.after((f"update amends_call set {columns} where no = ?", (*swapped, one["no"]))):
                missed.append(f"the events of {one['no']} swapped")
    assert not missed, "\n".join(missed[:20])


def test_an_event_that_follows_is_never_lost_with_the_end_of_a_call(case: Case) -> None:
    """The end of a call with its state: what comes after it in the tree has lost its link."""
    missed = list[str]()
    newest: dict[Any, int] = {}
    for event in case.forger.rows("events"):
        newest[event["root"]] = max(event["n"], newest.get(event["root"], 0))
    roots = {row["no"]: row["uid"] for row in case.rows("amends_run")}
    for row in case.rows("amends_call"):
        cuts = {
            "settled_n": "state = 'started', result = null, settled_n = null, settled_at = null, settled_hash = null",
            "comp_n": "state = 'succeeded', comp_n = null, comp_at = null, comp_epoch = null, comp_hash = null",
            "undone_n": "state = 'compensating', undone_n = null, undone_at = null, undone_hash = null",
        }
        for number, sets in cuts.items():
            if row[number] is None or row[number] >= newest[roots[row["root"]]]:
                continue
            if not case.after((f"update amends_call set {sets} where no = ?", (row["no"],))):
                missed.append(f"{number} of {row['no']}")
    assert not missed, "\n".join(missed)


def test_the_end_of_a_tree(case: Case) -> None:
    """Its last rows, one more each time: the row of the run names the last of them."""
    missed = list[str]()
    for run in case.rows("amends_run"):
        if run["uid"] != run["root"]:
            continue
        events = [row for row in case.rows("amends_event") if row["root"] == run["root"]]
        for first in range(len(events)):
            sql = "delete from amends_event where root = ? and n >= ?"
            if not case.after((sql, (run["root"], sorted(row["n"] for row in events)[first]))):
                missed.append(f"{run['id']} from {first}")
    assert not missed, "\n".join(missed)


def test_numbers_of_two_rows_swapped(case: Case) -> None:
    """Of two runs, two tools, and the runs and tools of two calls."""
    missed = list[str]()
    for table in ("amends_run", "amends_tool"):
        rows = case.rows(table)
        used = {row["root" if table == "amends_run" else "tool"] for row in case.rows("amends_call")}
        for one, two in pairwise(rows):
            if not {one["no"], two["no"]} & used:
                continue
            update = f"update {table} set no = ? where no = ?"
            swap = [(update, (-7, one["no"])), (update, (one["no"], two["no"])), (update, (two["no"], -7))]
            if case.after(*swap) == ():
                missed.append(f"{table} {one['no']} and {two['no']}")
    calls = case.rows("amends_call")
    for column in ("root", "tool", "key", "args", "result", "ident", "digest", "state"):
        for one, two in pairwise(calls):
            if one[column] == two[column]:
                continue
            update = f'update amends_call set "{column}" = ? where no = ?'
            if case.after((update, (two[column], one["no"])), (update, (one[column], two["no"]))) == ():
                missed.append(f"{column} of {one['no']} and {two['no']}")
    assert not missed, "\n".join(missed[:20])


def test_rows_that_nobody_wrote(case: Case) -> None:
    """A key of the ledger, a name or a call for which there is nothing."""
    [key] = case.rows("amends_ledger_key")
    number = case.rows("amends_call")[0]["no"]
    assert case.after(('insert into amends_ledger_key ("key", gen, "call") values (?, 1, ?)', (b"k" * 32, number)))
    assert case.after(('insert into amends_ledger_key ("key", gen, "call") values (?, 1, 77)', (b"k" * 32,)))
    assert case.after(('insert into amends_call_name (id, "call") values (?, ?)', ("made up", key["call"])))
    assert case.after(('insert into amends_call_name (id, "call") values (?, 77)', ("made up",)))
    columns = ", ".join(f'"{name}"' for name in stored.COLUMNS if name not in ("no", "key"))
    copied = f'insert into amends_call (no, "key", {columns}) select 5, ?, {columns} from amends_call where no = ?'
    assert case.after((copied, (b"k" * 32, number)))


def test_a_tree_that_claims_to_be_covered(case: Case) -> None:
    """No later checkpoint would name its events: the claim is told, and so is that of a delegation."""
    case.rt.checkpoint()
    assert case.problems() == ()
    with case.rt.run("later"):
        book("seven")
    [later] = [row for row in case.rows("amends_run") if row["id"] == "later"]
    assert (later["sealed"], case.problems()) == (0, ())
    also = ", unsealed = null" if case.kind != "mysql" else ""
    [found] = case.after((f"update amends_run set sealed = n{also} where uid = ?", (later["uid"],))) or ()
    assert (found.run_id, found.how) == ("later", "row_changed")
    assert "checkpoints cover its events up to" in found.text
    assert found.text.endswith("they cover those up to 0")
    [plain] = [row for row in case.rows("amends_run") if row["id"] == "plain"]
    also = ", unsealed = 1" if case.kind != "mysql" else ""
    [found] = case.after((f"update amends_run set sealed = sealed + 1{also} where uid = ?", (plain["uid"],))) or ()
    assert found.text.endswith(f"they cover those up to {plain['sealed']}")
    sql = f"update amends_run set sealed = 0{also} where parent = ''"
    assert case.after((sql, ())) == (), "then the next checkpoint covers them again"
    told = case.after(("delete from amends_checkpoint", ())) or ()
    assert {one.run_id for one in told} >= {"plain", "taken back", "doubt"}


def test_plain_calls_are_audited_without_making_rows_and_events_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=TOOLS, checkpoint="off") as rt:
        with rt.run("plain"):
            for number in range(20):
                book(str(number))
        with contextlib.suppress(ValueError), rt.run("taken back"):
            book("one")
            book("bad")
        joined: list[Sequence[Any]] = []

        def join(values: Sequence[Any]) -> Any:
            joined.append(values)
            return stored.join(values)

        monkeypatch.setattr(audited, "join", join)
        assert rt.verify().ok
    # The first call of a version of a tool is not plain: it brings the row of the version.
    assert [values[2] for values in joined].count("plain") == 1
