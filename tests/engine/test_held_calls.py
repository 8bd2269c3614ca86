"""Held calls that a person decides: before and after the pivot, and after a crash."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from amends import Happened, Runtime, tool
from amends.errors import Held, UsageError
from amends.stores.memory import MemoryStore
from amends.testing import Crash, runtime


def resumed(store: MemoryStore, *tools: Any) -> Runtime:
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = replace(store.runs[row.uid], owner="", lease_until=0.0)
    return Runtime(tools=tools, store=store, repeats=True)


def test_a_run_that_still_waits_for_a_person_is_not_taken_back_when_another_doubt_is_resolved() -> None:
    @tool
    def reserve(n: int) -> int:
        if n == 3:
            raise TimeoutError("no answer")
        return n

    @reserve.compensate
    def release(n: int) -> None: ...

    store = MemoryStore()
    Runtime(tools=[reserve], store=store).open("r").call(reserve, n=1)
    rt = resumed(store, reserve)
    with pytest.raises(Held), rt.run("r") as run:
        doubt = run.answer("reserve", {"n": 3, "again_because": "another one"})
        assert (doubt.status, run.answer("reserve", {"n": 2}).status) == ("in_doubt", "held")
    assert doubt.call is not None
    assert rt.resolve(doubt.call.id, Happened(3), by="anna", why="looked").state == "open"
    assert rt.recover() == []
    assert [call.state for call in rt.report("r").calls] == ["succeeded", "succeeded", "held"]


def test_a_decided_retriable_still_waits_for_the_pivot() -> None:
    sent: list[int] = []

    @tool(kind="retriable", idempotent=True)
    def mail(n: int) -> None:
        sent.append(n)

    store = MemoryStore()
    Runtime(tools=[mail], store=store).open("r").call(mail, n=1)
    rt = resumed(store, mail)
    with pytest.raises(Held) as held, rt.run("r"):
        mail(n=2)
    rt.decide(held.value.call.id, "run", by="anna", why="another one")
    with pytest.raises(KeyError), rt.run("r"):
        mail(n=2)
        assert sent == [], "it is sent before the run has decided anything"
        raise KeyError
    assert sent == []


def test_a_decided_call_is_not_done_after_the_pivot() -> None:
    done: list[str] = []

    @tool
    def reserve(n: int) -> int:
        done.append(f"reserve {n}")
        return n

    @reserve.compensate
    def release(n: int) -> None: ...

    @tool(kind="pivot")
    def wire(n: int) -> None:
        done.append(f"wire {n}")

    store = MemoryStore()
    first = Runtime(tools=[reserve, wire], store=store).open("r", recover="wait")
    first.call(reserve, n=1)
    first.call(wire, n=1)
    rt = resumed(store, reserve, wire)
    with rt.run("r") as run:
        for name in ("reserve", "wire"):
            held = run.answer(name, {"n": 2})
            assert held.call is not None
            assert held.status == "held"
            with pytest.raises(UsageError, match="has pivoted"):
                rt.decide(held.call.id, "run", by="anna", why="another one")
            rt.decide(held.call.id, "refuse", by="anna", why="too late")
            assert run.answer(name, {"n": 2}).status == "refused"
    assert done == ["reserve 1", "wire 1"]
    assert run.state == "committed"


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
