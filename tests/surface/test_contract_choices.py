"""Decisions where the contract could be read in two ways, each held in place by a test."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest

from amends import Absent, InDoubt, Probed, RunBlocked, Runtime, Unknown, UsageError, tool
from amends.errors import Held, OutOfOrder
from amends.stores.memory import MemoryStore


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
    store.runs[row.uid] = _let_go(row)  # type: ignore[assignment]
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


def _resumed(store: MemoryStore) -> Runtime:
    """A run that was resumed and met a reworded request, which is held; its block has ended cleanly since."""
    Runtime(tools=[reserve], store=store).open("r").call(reserve, n=1)
    row = next(iter(store.runs.values()))
    store.runs[row.uid] = _let_go(row)  # type: ignore[assignment]
    return Runtime(tools=[reserve], store=store, repeats=True)


def test_a_call_that_was_held_when_its_block_ended_is_done_once_a_person_lets_it() -> None:
    rt = _resumed(MemoryStore())
    with pytest.raises(Held) as held, rt.run("r") as run:
        assert run.answer("reserve", {"n": 2}).status == "held"
    assert held.value.twin.args == {"n": 1}, "both are shown"
    rt.decide(held.value.call.id, "run", by="anna", why="it is another one")
    with rt.run("r") as run:
        pass
    assert run.state == "committed"
    assert [(call.args["n"], call.state) for call in rt.report("r").calls] == [(1, "succeeded"), (2, "succeeded")]


def test_a_model_that_says_why_it_repeats_needs_no_person() -> None:
    rt = _resumed(MemoryStore())
    with rt.run("r") as run:
        assert run.answer("reserve", {"n": 2}).status == "held"
        assert run.answer("reserve", {"n": 2, "again_because": "the customer has two"}).status == "done"
    assert run.state == "committed"


def test_a_verb_that_does_not_fit_is_the_callers_mistake() -> None:
    rt = Runtime("memory:", tools=[reserve])
    with rt.run("r") as run:
        reserve(n=1)
    call = run.report().calls[0]
    with pytest.raises(UsageError, match="is succeeded"):
        rt.resolve(call.id, Absent(), by="anna", why="looked")
    with pytest.raises(UsageError, match="committed"):
        rt.abandon("r", by="anna", why="no")


def test_a_lost_pivot_that_had_no_effect_is_done_before_what_is_staged_behind_it() -> None:
    order: list[str] = []

    @tool(kind="pivot")
    def ship(n: int) -> str:
        order.append("ship")
        if len(order) == 1:
            raise TimeoutError("no answer")
        return "parcel"

    answers = iter([Unknown()] * 8 + [Absent()] * 9)

    @ship.probe
    def find() -> Probed[str]:
        return next(answers)

    @tool(kind="retriable", idempotent=True)
    def mail(n: int) -> None:
        order.append("mail")

    rt = Runtime("memory:", tools=[ship, mail], wait=0.0)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        mail(n=1)
        assert run.answer("ship", {"n": 1}).status == "in_doubt"
    for _ in range(600):
        if rt.report("r").state == "committed":
            break
        time.sleep(0.05)
        rt.recover()
    assert order == ["ship", "ship", "mail"]


def test_an_agent_that_died_after_its_pivot_is_resumed_and_goes_forward() -> None:
    from amends import Run
    from amends.testing import Crash, runtime

    done: list[str] = []

    @tool(kind="pivot")
    def merge(n: int) -> str:
        done.append("merge")
        return "merged"

    @tool(kind="retriable", idempotent=True)
    def close_ticket(n: int) -> None:
        done.append("close")

    def agent(run: Run) -> str:
        run.call(merge, n=1)
        if not run.resumed:
            rt.crash()
        run.call(close_ticket, n=1)
        return "done"

    rt = runtime(tools=[merge, close_ticket], agents={"merger": agent})
    with pytest.raises(Crash):
        rt.start("merger", id="pr-7")
    assert [report.state for report in rt.recover()] == ["committed"]
    assert done == ["merge", "close"]


def test_a_pivot_that_failed_and_has_happened_after_all_moves_its_run() -> None:
    from amends.ledger.operations import NoteEvidence

    @tool(kind="pivot")
    def send(n: int) -> str:
        raise RuntimeError("it says that nothing happened")

    store = MemoryStore()
    rt = Runtime(tools=[reserve, send], store=store)
    with rt.run("r") as run:
        assert run.answer("send", {"n": 1}).status == "failed"
        call = run.report().calls[0]
        store.perform(NoteEvidence(call.id, 1, True, '"sent"', "", "boot", 1.0, source="late"))
        assert run.report().state == "pivoted"
        with pytest.raises(OutOfOrder) as refused:
            reserve(n=1)
        assert refused.value.law == "after_pivot"
    assert run.state == "committed"
