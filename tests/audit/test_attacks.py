"""What a stranger tried who can write the database and has no key; each was once missed, or made ``verify`` fail."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Runtime, Verified, tool
from amends.errors import LedgerTampered, LedgerUnavailable, UsageError
from amends.signing import new_key
from tests.audit.forger import Forger, Row


@tool(key="order")
def charge(order: str, cents: int) -> str:
    return f"ch_{order}"


@charge.compensate
def refund(result: str) -> None:
    """Nothing is left of it."""


@tool(kind="pivot", needs_approval=True)
def wire(to: str) -> str:
    return to


def runtime(path: Path, **options: Any) -> Runtime:
    return Runtime(f"sqlite:///{path}", tools=[charge, wire], principal="bot", **{"checkpoint": "off", **options})


def verify(path: Path, *run_ids: str, keys: tuple[str, ...] = (), **options: Any) -> Verified:
    rt = runtime(path, **options)
    try:
        return rt.verify(*run_ids, keys=keys)
    finally:
        rt.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run that was committed, and one that waits for a yes."""
    made = tmp_path / "ledger.db"
    rt = runtime(made)
    with rt.run("order-1", input={"n": 1}):
        charge(order="1", cents=100)
    with pytest.raises(Held), rt.run("asked"):
        wire(to="bank")
    rt.close()
    return made


@pytest.fixture
def forger(path: Path) -> Forger:
    return Forger(f"sqlite:///{path}")


def only(rows: list[Row], **wanted: Any) -> Row:
    [row] = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return row


@pytest.mark.parametrize("table", ["runs", "calls", "approvals", "events"])
def test_rows_that_are_of_no_tree_are_found(path: Path, forger: Forger, table: str) -> None:
    row = forger.rows(table)[0]
    forged: dict[str, Row] = {
        "runs": {"uid": "made_up", "id": "made up"},
        "calls": {"id": "made_up", "seq": 10_000, "key": "made up"},
        "approvals": {"id": "made_up", "seq": 10_000, "state": "approved"},
        "events": {"place": 10_000},
    }
    forger.insert(table, {**row, **forged[table], "root": ""})
    assert not verify(path).ok


def test_a_call_that_is_no_record_is_not_kept_apart_as_one(path: Path, forger: Forger) -> None:
    """Its key would be free, and the same request would be made once more."""
    call = only(forger.rows("calls"), run_id="order-1")
    forger.change("calls", call, key=f"loaded:{call['id']}:{call['key']}")
    assert [one.how for one in verify(path).problems] == ["row_changed"]


def test_a_run_that_nobody_loaded_is_no_record(path: Path, forger: Forger) -> None:
    """As one it could lose what was said in it, as if gc of its ledger had removed it."""
    forger.change("runs", only(forger.rows("runs"), id="order-1"), origin="ldg_other")
    forger.change("calls", only(forger.rows("calls"), run_id="order-1"), args="gone:1.0")
    found = verify(path)
    assert [(one.run_id, one.how) for one in found.problems] == [("order-1", "row_changed")], str(found)


def test_a_record_stays_one(path: Path, tmp_path: Path) -> None:
    there, rt = tmp_path / "other.db", runtime(path)
    bundle = rt.export("order-1")
    rt.close()
    rt = runtime(there)
    rt.load(bundle)
    again = rt.export("order-1")
    rt.close()
    assert verify(there).ok
    forger = Forger(f"sqlite:///{there}")
    call = only(forger.rows("calls"))
    forger.change("runs", only(forger.rows("runs"), id="order-1"), origin="")
    forger.change("calls", call, key=call["key"].removeprefix(f"loaded:{call['id']}:"))
    assert [(one.run_id, one.how) for one in verify(there).problems] == [("order-1", "row_changed")]
    third = runtime(tmp_path / "third.db")
    assert third.load(again) == ["order-1"]
    assert third.verify().ok, "also one that comes by way of another ledger"
    third.close()


@pytest.mark.parametrize(
    "column, value", [("tool", "charge"), ("by_whom", "eve"), ("decided_at", 1.0), ("used_at", 1.0), ("used_seq", 1)]
)
def test_who_said_yes_to_what_and_when_it_was_used_is_what_was_written(path: Path, column: str, value: Any) -> None:
    rt = runtime(path)
    [asked] = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="anna")
    with rt.run("asked"):
        wire(to="bank")
    assert rt.verify().ok
    forger = Forger(f"sqlite:///{path}")
    forger.change("approvals", forger.rows("approvals")[0], **{column: value})
    assert [(one.run_id, one.how) for one in rt.verify().problems] == [("asked", "row_changed")]
    with pytest.raises(LedgerTampered):
        runtime(path.with_name("other.db")).load(rt.export("asked"))
    rt.close()


def test_a_call_does_not_lose_its_request(path: Path, forger: Forger) -> None:
    forger.change("calls", only(forger.rows("calls"), run_id="asked"), approval="")
    assert [(one.run_id, one.how) for one in verify(path).problems] == [("asked", "row_changed")]


@pytest.mark.parametrize("column, value", [("state", "rolled_back"), ("run", "order-2"), ("origin", "another")])
def test_the_manifest_of_a_bundle_tells_what_its_rows_do(path: Path, column: str, value: str) -> None:
    rt = runtime(path)
    with zipfile.ZipFile(BytesIO(rt.export("order-1"))) as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    rt.close()
    manifest = json.loads(files["manifest.json"])
    manifest["trees"][0][column] = value
    files["manifest.json"] = json.dumps(manifest).encode()
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    with pytest.raises(LedgerTampered, match="manifest"):
        runtime(path.with_name("other.db")).load(out.getvalue())


@pytest.mark.parametrize(
    "table, column, how",
    [
        ("amends_event", "by_whom", "edited"),
        ("amends_call", "args", "payload_changed"),
        ("amends_run", "agent", "row_changed"),
        ("amends_checkpoint", "heads", "edited"),
    ],
)
def test_a_byte_that_is_no_text_is_named_like_any_other(path: Path, table: str, column: str, how: str) -> None:
    rt = runtime(path)
    rt.checkpoint()
    rt.close()
    with closing(sqlite3.connect(path)) as file, file:
        file.execute(f"update {table} set {column} = cast(x'ff' || {column} as text)")
    found = verify(path)
    assert found.problems[0].how == how, str(found)


def test_a_moment_that_is_none_is_an_edited_one(path: Path, forger: Forger) -> None:
    forger.change("events", forger.rows("events")[1], at=float("inf"))
    assert [(one.n, one.how) for one in verify(path).problems] == [(2, "edited")]


@pytest.mark.parametrize("facts", ["nonsense", "[]", "1", '{"row":1,"args":2}', "[" * 100_000])
def test_facts_that_make_no_sense_are_told_though_they_are_hashed(path: Path, forger: Forger, facts: str) -> None:
    event = [row for row in forger.rows("events") if row["run_id"] == "order-1"][1]
    forger.change("events", event, facts=facts)
    forger.hash_anew(event["root"], event["n"])
    assert verify(path).problems[0].run_id == "order-1"


@pytest.mark.parametrize("column, value", [("at", float("inf")), ("heads", "[[1,1e999,2]]"), ("heads", "[" * 100_000)])
def test_a_checkpoint_that_makes_no_sense_is_told(path: Path, forger: Forger, column: str, value: Any) -> None:
    rt = runtime(path)
    rt.checkpoint()
    rt.close()
    forger.change("checkpoints", forger.rows("checkpoints")[0], **{column: value})
    assert verify(path).problems[0].how == "edited"


@pytest.mark.parametrize("text", ["[" * 5_000, '{"at":1e999,"approval":""}', "CHECKPOINT 1e999", "CHECKPOINT 0"])
def test_an_anchor_that_makes_no_sense_is_said_to_be_none(path: Path, text: str) -> None:
    n = text.removeprefix("CHECKPOINT ")
    if n != text:
        text = f'{{"at":0,"approval":"","checkpoint":{{"ledger":"x","n":{n},"at":1.0,"hash":"h"}}}}'
    anchor = path.with_name(f"{path.name}.anchor")
    anchor.write_text(text)
    with pytest.raises(LedgerUnavailable, match="cannot be read"):
        verify(path)
    copy = path.with_name("copy")
    anchor.rename(copy)
    rt = runtime(path)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        rt.verify(anchor=str(copy))
    rt.close()


def test_an_event_with_an_earlier_moment_is_behind_no_checkpoint(path: Path, forger: Forger) -> None:
    """Only a checkpoint that names an event stands behind it, whatever its moment is."""
    rt = runtime(path)
    rt.checkpoint()
    assert (rt.verify().ok, rt.verify().unanchored) == (True, 0)
    last = [row for row in forger.rows("events") if row["run_id"] == "order-1"][-1]
    forger.insert("events", {**last, "at": last["at"] - 1, "n": last["n"] + 1, "what": "told", "hash": "-"})
    forger.hash_anew(last["root"], last["n"] + 1)
    assert rt.verify().unanchored == 1
    rt.close()


def test_what_is_encrypted_with_a_key_that_nobody_has_is_counted_as_not_proved(path: Path, forger: Forger) -> None:
    assert verify(path).unproved == 0
    forger.change("calls", only(forger.rows("calls"), run_id="order-1"), args="sealed:AAAAAAAA:" + "A" * 64)
    assert verify(path).unproved == 1
    assert verify(path, encrypt=["B" * 43]).unproved + len(verify(path, encrypt=["B" * 43]).problems) == 1


def test_a_key_that_is_demanded_must_have_signed_something(path: Path, forger: Forger) -> None:
    """Whoever deletes every checkpoint, and the anchor, leaves nothing that is signed."""
    key = new_key("hmac").secret
    rt = runtime(path, audit_key=key)
    rt.checkpoint()
    rt.close()
    assert verify(path, keys=(key,)).anchored == 1
    forger.delete("checkpoints", forger.rows("checkpoints"))
    path.with_name(f"{path.name}.anchor").unlink()
    found = verify(path, keys=(key,))
    # The rows of both runs still say that checkpoints covered them.
    assert [one.how for one in found.problems] == ["row_changed", "row_changed", "bad_signature"]
    assert verify(path).anchored == 0
