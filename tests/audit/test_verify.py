"""``rt.verify``: what was done to events, rows and payloads is found, and named by the first bad event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Runtime, Verified, tool
from amends.encoding.canonical import digest
from amends.encoding.chain import GENESIS, body_of, bound, link, micros, moment, proof, storable
from amends.encoding.ids import call_id
from amends.errors import LedgerTampered, UsageError
from amends.ledger.plain import PlainRun
from tests.audit.forger import Forger, Row

Deed = Callable[[Forger, list[Row]], None]


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
    return Runtime(f"sqlite:///{path}", tools=[charge, wire], checkpoint="off", principal="bot", **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with two runs that were committed, one that was taken back and one that waits for a yes."""
    made = tmp_path / "ledger.db"
    rt = runtime(made)
    for number in (1, 2):
        with rt.run(f"order-{number}", input={"n": number}) as run:
            charge(order=str(number), cents=100)
            charge(order=f"{number}b", cents=200)
            run.output = {"paid": number}
    with pytest.raises(ValueError), rt.run("back"):
        charge(order="3", cents=300)
        raise ValueError("no")
    with pytest.raises(Held), rt.run("asked") as run:
        run.answer("wire", {"to": "bank"})
    rt.close()
    return made


def verify(path: Path, *run_ids: str, filter: str = "", **options: Any) -> Verified:
    rt = runtime(path, **options)
    try:
        return rt.verify(*run_ids, filter=filter)
    finally:
        rt.close()


def test_a_record_that_nobody_touched_is_whole(path: Path) -> None:
    found = verify(path)
    assert found.ok
    assert found.raise_if_broken() is found
    assert (found.runs, found.problems) == (4, ())
    assert found.events == len(Forger(f"sqlite:///{path}").rows("events"))
    assert found.to_dict()["ok"] is True
    assert "are unchanged" in str(found)


def test_some_runs_are_verified_by_name_or_by_filter(path: Path) -> None:
    one, two = verify(path, "order-1"), verify(path, filter="run:order-*")
    assert (one.runs, two.runs, one.ok, two.ok) == (1, 2, True, True)
    assert two.events == 2 * one.events
    with pytest.raises(UsageError, match="no run 'nowhere'"):
        verify(path, "nowhere")


def test_the_async_runtime_says_the_same(path: Path) -> None:
    async def both() -> tuple[Verified, Verified]:
        rt = AsyncRuntime(f"sqlite:///{path}", tools=[charge, wire], checkpoint="off")
        try:
            return await rt.verify(), await rt.verify("order-1")
        finally:
            await rt.close()

    assert asyncio.run(both()) == (verify(path), verify(path, "order-1"))


def edit(forger: Forger, events: list[Row]) -> None:
    forger.change("events", events[2], by_whom="somebody else")


def edit_time(forger: Forger, events: list[Row]) -> None:
    forger.change("events", events[2], at=events[2]["at"] + 1e-6)


def delete(forger: Forger, events: list[Row]) -> None:
    forger.delete("events", [events[2]])


def delete_and_close_up(forger: Forger, events: list[Row]) -> None:
    forger.delete("events", [events[2]])
    for event in events[3:]:
        forger.change("events", event, n=event["n"] - 1)


def insert(forger: Forger, events: list[Row]) -> None:
    for event in reversed(events[2:]):
        forger.change("events", event, n=event["n"] + 1)
    forger.insert("events", {**events[2], "what": "told", "place": events[2]["place"] + 500})


def swap(forger: Forger, events: list[Row]) -> None:
    forger.change("events", events[2], n=-1)
    forger.change("events", events[3], n=events[2]["n"])
    forger.change("events", {**events[2], "n": -1}, n=events[3]["n"])


@pytest.mark.parametrize(
    "deed, how",
    [
        (edit, "edited"),
        (edit_time, "edited"),
        (delete, "deleted"),
        (delete_and_close_up, "deleted"),
        (insert, "inserted"),
        (swap, "swapped"),
    ],
)
def test_what_was_done_to_an_event_is_named_with_the_first_bad_one(path: Path, deed: Deed, how: str) -> None:
    forger = Forger(f"sqlite:///{path}")
    deed(forger, [row for row in forger.rows("events") if row["run_id"] == "order-1"])
    found = verify(path)
    first = found.problems[0]
    assert (first.run_id, first.n, first.how) == ("order-1", 3, how), str(found)
    assert len(found.problems) == 1, "what comes after it is not told again"
    with pytest.raises(LedgerTampered) as raised:
        found.raise_if_broken()
    assert (raised.value.event, raised.value.how, raised.value.run_id) == (3, how, "order-1")


ROWS: list[tuple[str, str, Any, str]] = [
    ("calls", "state", "failed", "row_changed"),
    ("calls", "tool", "refund", "row_changed"),
    ("calls", "key", "another", "row_changed"),
    ("calls", "kind", "read", "row_changed"),
    ("calls", "principal", "eve", "row_changed"),
    ("calls", "attempt", 7, "row_changed"),
    ("calls", "shared", "call_of_another", "row_changed"),
    ("calls", "args", '{"order":"1","cents":1}', "payload_changed"),
    ("calls", "result", '"ch_2"', "payload_changed"),
    ("calls", "result", None, "payload_changed"),
    ("calls", "args", "gone:1.0", "payload_changed"),
    ("runs", "state", "rolled_back", "row_changed"),
    ("runs", "agent", "eve", "row_changed"),
    ("runs", "tags", '["vip"]', "row_changed"),
    ("runs", "created_at", 1.0, "row_changed"),
    ("runs", "input", '{"n":3}', "payload_changed"),
    ("runs", "output", '{"paid":9}', "payload_changed"),
]


@pytest.mark.parametrize("table, column, value, how", ROWS)
def test_a_row_stands_where_its_events_left_it_and_says_what_they_proved(
    path: Path, table: str, column: str, value: Any, how: str
) -> None:
    forger = Forger(f"sqlite:///{path}")
    id = "id" if table == "runs" else "run_id"
    row = next(row for row in forger.rows(table) if row[id] == "order-1")
    forger.change(table, row, **{column: value})
    found = verify(path)
    assert how in {one.how for one in found.problems}, str(found)
    assert {one.run_id for one in found.problems} == {"order-1"}


@pytest.mark.parametrize("column", ["given", "needed", "expires_at", "digest", "state", "principal"])
def test_a_request_is_what_was_asked_for_and_who_said_yes(path: Path, column: str) -> None:
    forger = Forger(f"sqlite:///{path}")
    [row] = forger.rows("approvals")
    yes = json.dumps([{"by": "eve"}])
    value = {"given": yes, "needed": 0, "expires_at": 9e9, "digest": "0", "state": "approved", "principal": "x"}[column]
    forger.change("approvals", row, **{column: value})
    assert {one.run_id for one in verify(path).problems} == {"asked"}


def test_rows_without_events_and_events_without_rows_are_found(path: Path) -> None:
    forger = Forger(f"sqlite:///{path}")
    [call] = [row for row in forger.rows("calls") if row["run_id"] == "back"]
    forger.delete("calls", [call])
    assert [(one.how, one.run_id) for one in verify(path).problems] == [("row_missing", "back")]
    forger.insert("calls", call, {**call, "id": "forged", "key": "forged", "seq": 10_000})
    assert [(one.how, one.run_id) for one in verify(path).problems] == [("row_forged", "back")]


def test_a_tree_without_any_event_is_found(path: Path) -> None:
    forger = Forger(f"sqlite:///{path}")
    forger.delete("events", [row for row in forger.rows("events") if row["run_id"] == "order-2"])
    assert {one.how for one in verify(path).problems} == {"row_forged"}


def test_gc_and_its_event_are_no_problem(path: Path) -> None:
    rt = runtime(path)
    assert rt.gc(older_than=0.0).runs >= 2
    assert rt.verify().ok
    rt.close()


def test_a_forged_move_that_is_hashed_as_it_should_be_does_not_follow_from_the_one_before(path: Path) -> None:
    forger = Forger(f"sqlite:///{path}")
    last = [row for row in forger.rows("events") if row["run_id"] == "order-1"][-1]
    made = {**last, "place": 10_000, "n": last["n"] + 1, "frm": "open", "to_state": "abandoned"}
    names = ("root", "run", "run_id", "tenant", "call", "what", "frm", "to_state", "by_whom", "epoch", "facts")
    made["hash"] = link(last["hash"], made["n"], made["at"], body_of(*(made[name] for name in names)))
    forger.insert("events", made)
    found = verify(path)
    assert ("inserted", last["n"] + 1) in {(one.how, one.n) for one in found.problems}, str(found)


def test_a_tenant_sees_only_its_own_problems(tmp_path: Path) -> None:
    made = tmp_path / "ledger.db"
    for tenant in ("one", "two"):
        rt = runtime(made, tenant=tenant)
        with rt.run("order"):
            charge(order=tenant, cents=1)
        rt.close()
    forger = Forger(f"sqlite:///{made}")
    forger.change("events", forger.rows("events")[0], by_whom="eve")
    assert verify(made, tenant="two").ok
    assert not verify(made, tenant="one").ok
    assert verify(made).runs == 2


def test_a_ledger_that_encrypts_proves_its_payloads_with_its_keys_and_after_they_were_renewed(tmp_path: Path) -> None:
    made, old, new = tmp_path / "ledger.db", "A" * 43, "B" * 43
    rt = runtime(made, encrypt=[old])
    with rt.run("order", input={"card": "4111"}) as run:
        charge(order="1", cents=1)
        run.output = "paid"
    assert rt.verify().ok
    rt.close()
    forger = Forger(f"sqlite:///{made}")
    assert not any(proof('"paid"') in row["facts"] for row in forger.rows("events")), "what is guessed is not found"
    rt = runtime(made, encrypt=[new, old])
    assert rt.reencrypt() > 0
    assert rt.verify().ok
    rt.close()
    assert verify(made, encrypt=[new]).ok, "without the key of then a payload is not proved, and not denied"
    assert verify(made).ok
    [run_row] = forger.rows("runs")
    forger.change("runs", run_row, output='"unpaid"')
    assert [one.how for one in verify(made).problems] == ["payload_changed"], "also to who has no key: it was encrypted"
    forger.change("runs", run_row, output=run_row["input"])
    assert [one.how for one in verify(made, encrypt=[new, old]).problems] == ["payload_changed"]


def test_the_words_of_the_chain() -> None:
    assert moment(0.1 + 0.2) == 0.3
    assert (micros(2.5e-6), micros(3.5e-6)) == (2, 4)
    said = ("r", "r", "ö\x00", "", "c", "call", "(new)", "started", "w", 1, "{}")
    assert body_of(*said) == digest(*(storable(str(part)) for part in said))
    assert body_of(*said) == body_of(*(storable(part) if isinstance(part, str) else part for part in said))  # type: ignore[arg-type]
    assert link(GENESIS, 1, 2.0, "b") != link(GENESIS, 2, 2.0, "b")
    assert bound("a", 1) != bound("a", "1")
    assert bound("\x00") == bound("␀")


@pytest.mark.parametrize("run_id", ["r", "r\N{SNOWMAN}", "r\x00"])
def test_the_body_of_a_plain_step_is_that_of_its_event(run_id: str) -> None:
    run = PlainRun("run_1", run_id, "tenant", "", "", "owner", 2)
    for number in (1, 2**62):
        for frm, to in (("new", "started"), ("started", "succeeded")):
            for facts in ("{}", '{"tool": "\N{SNOWMAN}"}'):
                said = ("run_1", "run_1", run_id, "tenant", call_id(number), "call", frm, to, "owner", 2, facts)
                assert run.body(number, frm, to, facts) == body_of(*said)
