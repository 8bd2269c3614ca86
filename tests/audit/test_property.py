"""A thousand tamperings at random, each in a fresh copy of a small ledger: all of them are found."""

from __future__ import annotations

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends import Held, RolledBack, Runtime, Verified, tool
from amends.audit import verify
from amends.host.anchor import Mark
from amends.host.host import View
from amends.ledger.dispatch import intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import StoreOp
from amends.ledger.rows import CheckpointRow
from amends.ledger.world import ReadAnchor
from amends.signing import new_key
from amends.stores.sql import SQLITE, Statements, Transaction, as_sql
from tests.audit.forger import KEYS, OPEN, Forger, Row

pytestmark = pytest.mark.rest  # seconds of random cases

TAMPERINGS = 1_000
SEED = int(os.environ.get("AMENDS_TEST_TAMPER_SEED", "12"))
STATEMENTS = Statements(SQLITE)

RUNS = ("id", "tenant", "generation", "root", "policy", "order_mode", "agent", "principal", "input_digest", "tags",
        "deadline_at", "created_at", "state", "input", "output")  # fmt: skip
CALLS = ("run", "root", "run_id", "tenant", "tool", "version", "kind", "key", "generation", "ident", "digest", "args",
         "state", "created_at", "scope", "declared", "again", "call_ref", "parent", "grp", "at_commit", "undoable",
         "attempt", "result", "settled_seq", "agent", "principal", "comp_attempt", "accepts",
         "shared", "approval")  # fmt: skip
APPROVALS = ("call", "run", "root", "run_id", "tenant", "version", "principal", "agent", "digest", "nonce", "state",
             "needed", "roles", "reasons", "rule", "policy", "given", "requested_at", "expires_at", "residue",
             "follows", "tool")  # fmt: skip
EVENTS = ("at", "root", "run", "run_id", "tenant", "call", "what", "frm", "to_state", "by_whom", "epoch", "facts", "n",
          "hash")  # fmt: skip
CHECKPOINTS = ("at", "ledger", "heads", "prev", "hash", "key", "signature")
BOUND = {"runs": RUNS, "calls": CALLS, "approvals": APPROVALS, "events": EVENTS, "checkpoints": CHECKPOINTS}
"""What is proved of a row. The rest changes without an event: leases, wake-up times, how often was probed."""
STATES = {
    "runs": ("open", "committed", "rolled_back", "abandoned"),
    "calls": ("succeeded", "failed", "held", "compensated", "residue"),
    "approvals": ("pending", "approved", "used", "rejected"),
}


@tool
def reserve(item: str) -> str:
    return f"r-{item}"


@reserve.compensate
def free(result: str) -> None:
    """Nothing is left of it."""


@tool(kind="pivot", needs_approval=True)
def wire(cents: int) -> str:
    return f"w{cents}"


class Here(Forger):
    """A forger in a copy of the ledger that is nowhere but in memory."""

    def __init__(self, data: bytes) -> None:
        OPEN.append(self)
        self.kind = "sqlite"
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.deserialize(data)


class Case:
    """A ledger of three days, what is kept of it elsewhere, and the days before."""

    def __init__(self, folder: Path) -> None:
        self.key = new_key("ed25519")
        self.folder, self.days = folder, list[bytes]()
        self.rt = rt = Runtime(
            f"sqlite:///{folder / 'ledger.db'}?synchronous=normal", tools=[reserve, wire], principal="bot", agent="agent",
            audit_key=self.key.secret, checkpoint="off", anchor=str(folder / "elsewhere"),
        )  # fmt: skip
        with rt.run("one", input={"order": 1}, tags=["a"]) as run:
            reserve("pen")
            run.output = "done"
        self._night()
        with pytest.raises(RolledBack), rt.run("two") as run:
            reserve("ink")
            run.rollback("not needed")
        self._paid(rt)
        self._night()
        with pytest.raises(Held), rt.run("four"):
            wire(cents=9)
        with rt.run("five") as run, run.child("inner"):
            reserve("cap")
        self._night()
        assert rt._host.anchor is not None
        mark = rt._host.anchor.read()
        assert mark is not None
        self.mark: Mark = mark

    def _paid(self, rt: Runtime) -> None:
        with pytest.raises(Held), rt.run("three"):
            wire(cents=5)
        [asked] = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="anna")
        with rt.run("three"):
            assert wire(cents=5) == "w5"

    def _night(self) -> None:
        assert self.rt.checkpoint() is not None
        with closing(sqlite3.connect(self.folder / "ledger.db")) as file, closing(sqlite3.connect(":memory:")) as copy:
            file.backup(copy)
            data = bytearray(copy.serialize())
            data[18:20] = b"\x01\x01"  # without a log beside it, which a copy in memory cannot have
            self.days.append(bytes(data))

    def verify(self, forger: Here) -> Verified:
        def perform(op: Any) -> Any:
            if isinstance(op, ReadAnchor):
                return self.mark
            assert isinstance(op, StoreOp)
            return run_flow(as_sql(intent(op), Transaction(STATEMENTS, time.time)), lambda one: _said(forger, one))

        return run_flow(verify.verify(self.rt._host, View(None, None, None)), perform)


def _said(forger: Here, one: Any) -> tuple[list[Any], int, int]:
    cursor = forger._connection.execute(one.sql, one.params)
    return cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0


# ---- what somebody may do -----------------------------------------------------------------------


def other(luck: random.Random, table: str, column: str, value: Any) -> Any:
    """Another value for it, a small change as often as a large one."""
    if column == "state":
        return luck.choice([state for state in STATES[table] if state != value])
    if isinstance(value, int) or (value is not None and isinstance(value, float)):
        return value + luck.choice((1, -1, 7))
    if value is None:
        return 1.0 if column == "deadline_at" else '"made up"'
    if not value:
        return luck.choice(("x", "[]", "apr_1"))
    at = luck.randrange(len(value))
    changed = luck.choice([letter for letter in 'abc019" ' if letter != value[at]])
    return luck.choice((value[:at] + changed + value[at + 1 :], value[:at] + value[at + 1 :], value + "x"))


def edit(luck: random.Random, forger: Here, case: Case) -> str:
    table = luck.choice(tuple(BOUND))
    row, column = luck.choice(forger.rows(table)), luck.choice(BOUND[table])
    forger.change(table, row, **{column: other(luck, table, column, row[column])})
    return f"{table}.{column}"


def delete(luck: random.Random, forger: Here, case: Case) -> str:
    table = luck.choice(tuple(BOUND))
    row = luck.choice(forger.rows(table))
    forger.delete(table, [row])
    return table


def forge(luck: random.Random, forger: Here, case: Case) -> str:
    table = luck.choice(("events", "calls", "runs", "approvals", "checkpoints"))
    rows = forger.rows(table)
    row, new = luck.choice(rows), 10_000
    changes: Row = {KEYS[table]: new if table in ("events", "checkpoints") else "made_up"}
    match table:
        case "events":
            changes["n"] = max(one["n"] for one in rows if one["root"] == row["root"]) + 1
        case "calls":
            changes |= {"seq": new, "key": "made up"}
        case "approvals":
            changes |= {"seq": new, "state": "approved"}
        case "runs":
            changes |= {"generation": 7}
        case _:
            changes["n"] = rows[-1]["n"] + 1
            made = CheckpointRow(**{**row, **changes, "prev": rows[-1]["hash"]})
            changes |= {"prev": made.prev, "hash": made.true_hash}
    forger.insert(table, {**row, **changes})
    return table


def swap(luck: random.Random, forger: Here, case: Case) -> str:
    one, two = luck.sample(forger.rows("events"), 2)
    same = ("place", "n", "root") if one["root"] != two["root"] else ("place", "n")
    for row, said in ((one, two), (two, one)):
        forger.change("events", row, **{name: said[name] for name in said if name not in same})
    return "events"


def cut(luck: random.Random, forger: Here, case: Case) -> str:
    """The end of the ledger, or of one tree, with or without the rows that tell of it."""
    events = forger.rows("events")
    if luck.random() < 0.5:
        root = luck.choice(events)["root"]
        events = [row for row in events if row["root"] == root]
    gone = events[-luck.randint(1, len(events)) :]
    forger.delete("events", gone)
    if luck.random() < 0.5:
        for table in ("calls", "approvals"):
            cut_off = {(row["root"], row["n"]) for row in gone}
            forger.delete(table, [row for row in forger.rows(table) if (row["root"], row["seq"]) in cut_off])
    return "tail"


def erase(luck: random.Random, forger: Here, case: Case) -> str:
    """A whole tree, without a trace."""
    root = luck.choice(forger.rows("runs"))["root"]
    for table in ("events", "calls", "approvals", "runs"):
        forger.delete(table, [row for row in forger.rows(table) if row["root"] == root])
    return "tree"


def rewrite(luck: random.Random, forger: Here, case: Case) -> str:
    """An event that says something else, with right hashes from there on; perhaps the checkpoints as well."""
    row = luck.choice(forger.rows("events"))
    forger.change("events", row, by_whom="somebody else", at=row["at"] + 1.0)
    forger.hash_anew(row["root"], row["n"])
    if luck.random() < 0.5:
        hashes = {(one["root"], one["n"]): one["hash"] for one in forger.rows("events")}
        _checkpoints_anew(forger, hashes, keep=luck.random() < 0.5)
    return "chain"


def _checkpoints_anew(forger: Here, hashes: dict[tuple[str, int], str], *, keep: bool) -> None:
    from amends.encoding.chain import read_heads, written_heads

    prev = "0" * 64
    for row in forger.rows("checkpoints"):
        heads = written_heads((root, n, hashes[root, n]) for root, n, _ in read_heads(row["heads"]))
        signed = {"key": row["key"], "signature": row["signature"]} if keep else {"key": "", "signature": ""}
        made = CheckpointRow(**{**row, "heads": heads, "prev": prev, **signed})
        forger.change("checkpoints", row, heads=heads, prev=prev, hash=made.true_hash, **signed)
        prev = made.true_hash


def lose_checkpoints(luck: random.Random, forger: Here, case: Case) -> str:
    rows = forger.rows("checkpoints")
    forger.delete("checkpoints", rows[-luck.randint(1, len(rows)) :])
    return "checkpoints"


def put_back(luck: random.Random, forger: Here, case: Case) -> str:
    """The file of an earlier day; what nobody would miss of it is newer."""
    forger._connection.deserialize(luck.choice(case.days[:-1]))
    return "file"


WAYS: tuple[Callable[[random.Random, Here, Case], str], ...] = (
    *(edit,) * 6, delete, delete, forge, forge, swap, cut, cut, erase, rewrite, rewrite, lose_checkpoints, put_back,
)  # fmt: skip


def test_a_thousand_tamperings_are_found(tmp_path: Path) -> None:
    case = Case(tmp_path)
    whole = case.verify(Here(case.days[-1]))
    assert whole.ok, str(whole)
    assert (whole.checkpoints, whole.unanchored) == (3, 0)
    luck, seen, missed = random.Random(SEED), Counter[str](), list[str]()
    while seen.total() < TAMPERINGS:
        forger = Here(case.days[-1])
        before = {table: forger.rows(table) for table in BOUND}
        way = luck.choice(WAYS)
        try:
            what = way(luck, forger, case)
        except sqlite3.IntegrityError:
            forger.close()
            continue  # the database itself says no, and nothing was changed: not one of the thousand
        seen[f"{way.__name__} {what}"] += 1
        after = {table: forger.rows(table) for table in BOUND}
        assert after != before, f"{way.__name__} {what} changed nothing"
        if case.verify(forger).ok:
            differs = [(a, b) for table in BOUND for a, b in zip(before[table], after[table], strict=False) if a != b]
            missed.append(f"{way.__name__} {what}: {differs[:1]}")
        forger.close()
    case.rt.close()
    assert not missed, "\n".join(missed[:5])
    assert len(seen) > 60, "many different things were done"
