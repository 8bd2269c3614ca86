"""Decisions where the contract could be read in two ways, each held in place by a test."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from amends import InDoubt, Runtime, UsageError, tool
from amends.errors import Held, OutOfOrder
from amends.store.memory import MemoryStore


@tool
def reserve(n: int) -> str:
    return f"r{n}"


@reserve.compensate
def release(result: str) -> None: ...


SENT: list[int] = []


@tool(kind="pivot", at="commit", after=("reserve",))
def wire(n: int) -> str:
    SENT.append(n)
    return f"w{n}"


def test_a_pivot_at_commit_may_be_asked_for_before_what_it_comes_after() -> None:
    SENT.clear()
    rt = Runtime("memory:", tools=[reserve, wire])
    with rt.run("payout") as run:
        staged = wire(n=1)
        reserve(n=1)
        assert SENT == []
    assert (run.state, staged.result, SENT) == ("committed", "w1", [1])


def test_a_pivot_at_commit_without_what_it_comes_after_takes_the_run_back() -> None:
    SENT.clear()
    rt = Runtime("memory:", tools=[reserve, wire])
    with pytest.raises(OutOfOrder) as early, rt.run("payout"):
        wire(n=1)
    assert early.value.missing == ("reserve",)
    assert SENT == []
    assert rt.report("payout").state == "rolled_back"


def test_a_view_of_one_tenant_cannot_act_for_another() -> None:
    acme = Runtime("memory:", tools=[reserve]).scoped(tenant="acme")
    with pytest.raises(UsageError, match="cannot act for"):
        acme.scoped(tenant="globex")
    with pytest.raises(UsageError, match="cannot act for"), acme.run("x", tenant="globex"):
        pass


def test_a_decided_run_waits_one_lease_for_its_caller() -> None:
    store = MemoryStore()
    first = Runtime(tools=[reserve], store=store)
    first.open("r", recover="rollback").call(reserve, n=1)
    reborn = Runtime(tools=[reserve], store=store, lease=60.0)
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = _let_go(row)
    with pytest.raises(Held) as held, reborn.run("r"):
        reserve(n=2)
    reborn.decide(held.value.call.id, "run", by="anna", why="it is another one")
    assert reborn.recover() == [], "the policy must not take back what a person has just let go on"
    with reborn.run("r") as run:
        assert reserve(n=2) == "r2"
    assert run.state == "committed"


def _let_go(row: object) -> object:
    from dataclasses import replace

    return replace(row, owner="", lease_until=0.0)  # type: ignore[type-var]


def test_an_interrupt_stops_an_async_tool_of_a_blocking_run() -> None:
    ended = threading.Event()

    @tool
    async def slow(n: int) -> int:
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return n

    @slow.compensate
    async def unslow(n: int) -> None: ...

    rt = Runtime("memory:", tools=[slow])
    run = rt.open("r")
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run.call(slow, n=1)
    assert ended.is_set(), "it is not left running unseen"
    assert time.monotonic() - begun < 20
    with pytest.raises(InDoubt):
        run.call(slow, n=1)
    rt.close()
