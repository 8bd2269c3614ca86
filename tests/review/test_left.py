"""Findings of the review that were mended after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amends import RunBlocked, Runtime, declare, tool
from amends.errors import Held
from amends.ledger.operations import NoteEvidence
from amends.stores.memory import MemoryStore
from amends.testing import Crash, runtime


@tool
def reserve(n: int) -> str:
    return f"r{n}"


@reserve.compensate
def release(result: str) -> None: ...


def test_a_run_that_died_between_being_held_and_saying_so_waits_for_its_person() -> None:
    rt = runtime(tools=[reserve])
    with pytest.raises(Crash), rt.run("r"):
        reserve(n=1)
        rt.crash()
    with pytest.raises(Crash), rt.run("r") as run:
        with pytest.raises(Held):
            run.call(reserve, n=2)
        rt.crash()
    (report,) = rt.recover()
    assert report.state == "open", "it waits only for a person: no policy takes it back"
    assert rt.recover() == []
    held = next(call for call in report.calls if call.state == "held")
    rt.decide(held.id, "replay", by="anna", why="the same")
    with rt.run("r") as run:
        assert reserve(n=1) == "r1"
        assert reserve(n=2) == "r1"
    assert run.state == "committed"


def test_late_evidence_in_a_child_of_a_closed_run_is_named_and_wakes_nobody() -> None:
    store = MemoryStore()

    @tool
    def odd(n: int) -> str:
        raise RuntimeError("it says that nothing happened")

    odd.compensate(lambda: None)
    rt = Runtime(tools=[odd, reserve], store=store)
    with rt.run("r") as run:
        reserve(n=1)
        with pytest.raises(RuntimeError), run.child("inner"):
            odd(n=1)
    call = next(row for row in store.calls.values() if row.tool == "odd")
    store.perform(NoteEvidence(call.id, 1, True, '"x"', "", "boot", 1.0, source="late"))
    report = rt.report("r")
    assert (report.state, report.children[0].state) == ("committed", "rolled_back")
    assert [left.call.tool for left in report.residue] == ["odd"]
    assert rt.recover() == []


def test_a_pivot_at_commit_without_a_body_here_blocks_with_a_cause_instead_of_a_doubt() -> None:
    store = MemoryStore()
    sent: list[int] = []

    def handler(n: int) -> str:
        sent.append(n)
        return "sent"

    tools = [reserve, declare("wire", kind="pivot", at="commit")]
    first = Runtime(tools=tools, store=store)
    first.open("r", recover="wait").answer("wire", {"n": 1}, handler=handler)
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = replace(row, owner="", lease_until=0.0, goal="commit", wake_at=0.0)
    (report,) = Runtime(tools=tools, store=store).recover()
    assert report.state == "blocked"
    assert "has no body in this process" in report.run.causes[0]
    assert sent == []
    other = Runtime(tools=tools, store=store)
    with pytest.raises(RunBlocked), other.run("r"):
        pass
    assert other.rollback("r", by="anna", why="its handler is gone").state == "rolled_back"
