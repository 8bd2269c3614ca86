"""A process that lacks the tools of a run leaves it, whole, to one that has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amends import RunBlocked, Runtime, declare, tool
from amends.stores.memory import MemoryStore
from tests.world import World, die


def test_a_worker_finds_its_runs_behind_many_that_it_has_no_tools_for() -> None:
    @tool
    def theirs(n: int) -> int:
        return n

    @theirs.compensate
    def untheirs(n: int) -> None: ...

    @tool
    def ours(n: int) -> int:
        return n

    @ours.compensate
    def unours(n: int) -> None: ...

    store = MemoryStore()
    both = Runtime(tools=[theirs, ours], store=store)
    for n in range(5):
        both.open(f"theirs-{n}").call(theirs, n=n)
    both.open("ours").call(ours, n=1)
    for uid, row in list(store.runs.items()):
        store.runs[uid] = replace(row, owner="", lease_until=0.0, wake_at=1.0)
    worker = Runtime(tools=[ours], store=store)
    worker.recover(limit=3)
    assert worker.report("ours").state == "rolled_back"


def test_a_person_without_the_tools_leaves_the_rollback_to_a_worker_that_has_them() -> None:
    gone: list[int] = []

    @tool
    def reserve(n: int) -> int:
        return n

    @reserve.compensate
    def release(n: int) -> None:
        gone.append(n)

    store = MemoryStore()
    agent = Runtime(tools=[reserve], store=store)
    agent.open("r", recover="wait").call(reserve, n=1)
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = replace(row, owner="", lease_until=0.0, wake_at=None)
    Runtime(store=store).rollback("r", by="anna", why="stop")
    Runtime(tools=[reserve], store=store).recover()
    assert gone == [1]
    assert agent.report("r").state == "rolled_back"


@tool
def reserve(n: int) -> str:
    return f"r{n}"


@reserve.compensate
def release(result: str) -> None: ...


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


def _pair(world: World) -> tuple[Any, Any]:
    return world.compensatable("first"), world.compensatable("second")


def _crashed(store: MemoryStore, *tools: Any) -> None:
    run = Runtime(store=store, tools=tools).open("r")
    for one in tools:
        run.call(one, x="1")
    die(run)


@pytest.mark.parametrize("how", ["unknown", "a pivot now"])
def test_what_came_before_a_call_that_cannot_be_taken_back_here_is_named_and_waits(how: str) -> None:
    """It was tried a thousand times, and ended in an assertion; a worker's whole round with it."""
    world, store = World(), MemoryStore()
    first, second = _pair(world)
    _crashed(store, first, second)
    tools = [first] if how == "unknown" else [first, world.pivot("second")]
    fewer = Runtime(store=store, tools=tools, wait=0.2)
    with pytest.raises(RunBlocked), fewer.run("r"):
        raise ValueError
    report = fewer.report("r")
    assert report.state == "blocked"
    assert [left.call.tool for left in report.residue] == ["first", "second"]
    assert all("rt.rollback('r'" in cause for cause in report.run.causes)
    assert world.standing == ["first:1", "second:1"], "never out of order"
    fewer.close()
    whole = Runtime(store=store, tools=[first, second])
    assert whole.rollback("r", by="ann", why="the old deploy is back").state == "rolled_back"
    assert world.log[-2:] == ["undo second:1", "undo first:1"]
