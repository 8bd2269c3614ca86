"""Who decided, for whom, why, and what a run aims at: changed in the rows, ``verify`` says so, on every database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Held, Runtime, Unknown, tool
from amends.errors import ApprovalVoid, Rejected
from tests.audit.forger import Forger

KINDS = ("sqlite", "postgresql", pytest.param("mysql", marks=pytest.mark.rest))


@tool(key="order")
def charge(order: str) -> str:
    raise TimeoutError("lost")


@charge.compensate
def refund(result: str) -> None: ...


@charge.probe(settle=0)
def find_charge(order: str) -> Unknown:
    return Unknown("the provider does not answer")


@tool(kind="pivot", needs_approval=True)
def wire(to: str) -> str:
    return to


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue({"postgresql": "postgres_url", "mysql": "mysql_url"}[request.param]))


@pytest.fixture
def rt(url: str) -> Iterator[Runtime]:
    with Runtime(url, tools=[charge, wire], principal="bot", checkpoint="off", wait=0.05) as made:
        yield made


def asked(rt: Runtime, run_id: str) -> Any:
    with pytest.raises(Held), rt.run(run_id):
        wire(to="bank")
    return next(one for one in rt.approvals() if one.call.run_id == run_id)


def found(rt: Runtime, *run_ids: str) -> list[str]:
    return [problem.how for problem in rt.verify(*run_ids).problems]


# ---- delegations --------------------------------------------------------------------------


def approved_for_anna(rt: Runtime) -> None:
    rt.delegate(by="Anna", to="bob", until=3600, why="lunch")
    one = asked(rt, "r")
    rt.approve(one.id, digest=one.digest, by="bob", behalf="anna")
    with rt.run("r"):
        wire(to="bank")


def test_a_delegation_is_an_event_and_the_decision_names_it(rt: Runtime) -> None:
    approved_for_anna(rt)
    [said] = [event for event in rt.events() if event.what == "delegated"]
    assert (said.by, said.facts["by"], said.facts["to"], said.facts["why"]) == ("Anna", "anna", "bob", "lunch")
    [yes] = [event for event in rt.events() if event.what == "approval" and event.to == "approved"]
    assert (yes.facts["behalf"], yes.facts["delegation"][0]) == ("anna", said.run_id)
    assert found(rt) == [] == found(rt, "r")


def test_a_delegation_that_was_forged_decides_nothing_and_is_found(rt: Runtime, url: str) -> None:
    one = asked(rt, "r")
    forger = Forger(url)
    forged = {
        "id": "dlg_forged", "tenant": "", "by_whom": "anna", "to_whom": "eve", "until_at": 9e9, "why": "", "made_at": 1.0,
        "seq": 0,
    }  # fmt: skip
    forger.insert("delegations", forged)
    with pytest.raises(ApprovalVoid):
        rt.approve(one.id, digest=one.digest, by="eve", behalf="anna")
    assert found(rt) == ["row_forged"]
    forger.delete("delegations", [forged])
    assert found(rt) == []


@pytest.mark.parametrize("column, value", [("to_whom", "eve"), ("by_whom", "carol"), ("until_at", 9e9), ("why", "x")])
def test_a_delegation_that_was_changed_is_found(rt: Runtime, url: str, column: str, value: Any) -> None:
    approved_for_anna(rt)
    forger = Forger(url)
    [row] = forger.rows("delegations")
    forger.change("delegations", row, **{column: value})
    assert found(rt) == ["row_changed"]
    assert "row_changed" in found(rt, "r")


def test_a_delegation_that_was_deleted_is_found_with_its_event_too(rt: Runtime, url: str) -> None:
    approved_for_anna(rt)
    forger = Forger(url)
    [row] = forger.rows("delegations")
    forger.delete("delegations", [row])
    assert found(rt) == ["row_missing"]
    forger.delete("events", [event for event in forger.rows("events") if event["root"] == row["id"]])
    assert found(rt) == ["row_forged"] == found(rt, "r")
    assert "which does not exist" in rt.verify().problems[0].text


def test_a_delegation_that_was_made_up_with_right_hashes_and_removed_is_found(rt: Runtime, url: str) -> None:
    """What once started a wire that ``verify`` called whole."""
    approved_for_anna(rt)
    forger = Forger(url)
    [row] = forger.rows("delegations")
    for table, key in (("delegations", "id"), ("events", "root")):
        forger.delete(table, [one for one in forger.rows(table) if one[key] == row["id"]])
    # Another one in its place, rightly hashed, does not have the hash that the decision names.
    rt.delegate(by="anna", to="bob", until=3600, why="made up")
    [other] = forger.rows("delegations")
    for event in forger.rows("events"):
        if event["root"] == other["id"]:
            forger.change("events", event, root=row["id"], run=row["id"], run_id=row["id"])
    forger.change("delegations", other, id=row["id"])
    forger.hash_anew(row["id"], 1)
    assert found(rt) == ["row_forged"]


def test_a_delegation_that_has_ended_or_has_not_begun_decides_nothing(rt: Runtime) -> None:
    one = asked(rt, "r")
    rt.delegate(by="anna", to="bob", until=0.00001, why="a blink")
    with pytest.raises(ApprovalVoid):
        rt.approve(one.id, digest=one.digest, by="bob", behalf="anna")
    assert found(rt) == []


# ---- words --------------------------------------------------------------------------------


def words(rt: Runtime) -> None:
    no = asked(rt, "rejected")
    rt.reject(no.id, by="anna", reason="too much")
    with pytest.raises(Rejected), rt.run("rejected"):
        wire(to="bank")
    never = asked(rt, "withdrawn")
    rt.withdraw(never.id, by="anna", why="never mind")
    with pytest.raises(RuntimeError), rt.run("doubt"):
        try:
            charge(order="1")
        except Exception as error:
            raise RuntimeError("stop") from error


REJECTED: list[tuple[str, str, Any]] = [
    ("approvals", "by_whom", "bob"),
    ("approvals", "reason", "he was rude"),
    ("approvals", "decided_at", 5.0),
    ("calls", "error", json.dumps(["bob", "too much"])),
    ("calls", "error", json.dumps(["anna", "he was rude"])),
    ("calls", "why", "he was rude"),
    ("calls", "alias", "call_other"),
    ("runs", "goal_why", "bob rejected it"),
    ("runs", "goal_by", "deadline"),
]


@pytest.mark.parametrize("table, column, value", REJECTED)
def test_who_rejected_a_call_and_why_cannot_be_rewritten(
    rt: Runtime, url: str, table: str, column: str, value: Any
) -> None:
    words(rt)
    assert found(rt) == []
    forger = Forger(url)
    rows = forger.rows(table)
    row = next(one for one in rows if "rejected" in (one.get("run_id"), one.get("id"), one["state"]))
    forger.change(table, row, **{column: value})
    assert set(found(rt)) <= {"row_changed", "payload_changed"}
    assert found(rt)


DOUBT: list[tuple[str, str, Any]] = [
    ("calls", "why", "cancelled"),
    ("calls", "learned", "[]"),
    ("calls", "learned", ""),
    ("calls", "evidence", json.dumps({"attempt": 1, "happened": False, "certain": True, "result": None, "error": ""})),
    ("calls", "comp_error", '["X", "y"]'),
    ("runs", "causes", '["all is well"]'),
    ("runs", "goal", "commit"),
    ("runs", "plan", "p"),
    ("runs", "budgets", "[]"),
]


@pytest.mark.parametrize("table, column, value", DOUBT)
def test_what_was_learned_of_a_doubt_and_what_a_run_aims_at_cannot_be_rewritten(
    rt: Runtime, url: str, table: str, column: str, value: Any
) -> None:
    words(rt)
    forger = Forger(url)
    row = next(one for one in forger.rows(table) if "doubt" in (one.get("run_id"), one.get("id")))
    forger.change(table, row, **{column: value})
    assert found(rt) == ["row_changed"]


def test_a_withdrawal_names_who_and_why(rt: Runtime, url: str) -> None:
    words(rt)
    forger = Forger(url)
    row = next(one for one in forger.rows("calls") if one["run_id"] == "withdrawn")
    forger.change("calls", row, why="somebody else's words")
    assert found(rt) == ["row_changed"]


def test_an_edit_names_its_editor(rt: Runtime, url: str) -> None:
    one = asked(rt, "edited")
    rt.edit(one.id, {"to": "eve"}, by="eve", why="rather me")
    assert found(rt) == []
    forger = Forger(url)
    row = next(one for one in forger.rows("approvals") if one["editors"])
    forger.change("approvals", row, editors="")
    assert found(rt) == ["row_changed"]
