"""``call.replays`` counts the answers from the record, and ``rt.calls("key:...")`` finds a call by its key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from amends import AsyncRuntime, Held, RolledBack, Runtime, tool


@tool(key="order")
def charge(order: str) -> str:
    return f"ch_{order}"


@charge.compensate
def refund(result: str) -> None: ...


@tool(kind="pivot", needs_approval=True)
def wire(order: str) -> str:
    return f"w_{order}"


def hello() -> str:
    return "hello"


def _counts(rt: Runtime) -> dict[str, int]:
    return {call.tool: call.replays for call in rt.calls()}


def test_answers_in_one_run_are_counted_when_it_commits() -> None:
    rt = Runtime("memory:", tools=[charge])
    with rt.run("r") as run:
        for _ in range(3):
            charge(order="1")
        run.answer("charge", {"order": "1"})
    assert _counts(rt) == {"charge": 3}


def test_they_are_added_up_over_resumed_and_reopened_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    for total in (1, 3, 5):  # the first time it runs, then it is answered twice each time
        with Runtime(url, tools=[charge]) as rt, rt.run("r"):
            charge(order="1")
            charge(order="1")
        with Runtime(url, tools=[charge]) as rt:
            assert _counts(rt) == {"charge": total}


def test_a_run_that_waits_keeps_its_count() -> None:
    rt = Runtime("memory:", tools=[charge, wire])
    for _ in range(3):
        with pytest.raises(Held), rt.run("r"):
            charge(order="1")
            wire(order="1")
    assert _counts(rt)["charge"] == 2


def test_once_counts() -> None:
    rt = Runtime("memory:")
    for _ in range(4):
        rt.once("k", hello)
    assert _counts(rt) == {"once:hello": 3}
    with rt.run("r") as run:
        for _ in range(3):
            run.once("k", hello)
    assert sorted(call.replays for call in rt.calls()) == [2, 3]


@pytest.mark.parametrize("by_hand", [False, True])
def test_after_a_rollback_it_is_still_known(by_hand: bool) -> None:
    rt = Runtime("memory:", tools=[charge])
    with pytest.raises((RolledBack, ZeroDivisionError)), rt.run("r") as run:
        for _ in range(3):
            charge(order="1")
        with run.child("c"):
            charge(order="1")
        if by_hand:
            run.rollback("no")
        raise ZeroDivisionError
    [call] = rt.calls()
    assert (call.state, call.replays) == ("compensated", 3)


def test_a_child_that_failed_counts_too() -> None:
    rt = Runtime("memory:", tools=[charge])
    with rt.run("r") as run:
        charge(order="1")
        with pytest.raises(ZeroDivisionError), run.child("c"):
            charge(order="1")
            raise ZeroDivisionError
    assert _counts(rt) == {"charge": 1}


def test_so_it_is_on_an_event_loop() -> None:
    async def main() -> list[int]:
        async with AsyncRuntime("memory:", tools=[charge]) as rt:
            for _ in range(2):
                async with rt.run("r") as run:
                    await run.call(charge, order="1")
                    await run.call(charge, order="1")
                await rt.once("k", hello)
            return sorted([call.replays async for call in rt.calls()])

    assert asyncio.run(main()) == [1, 3]


def test_a_ledger_that_takes_no_count_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    from amends.ledger.operations import CountReplays

    rt = Runtime("memory:")
    rt.once("k", hello)
    perform = rt._host.store.perform

    def broken(op: object) -> object:
        if isinstance(op, CountReplays):
            raise OSError("read-only")
        return perform(op)  # type: ignore[arg-type]

    monkeypatch.setattr(rt._host.store, "perform", broken)
    assert rt.once("k", hello) == "hello"


def test_a_replay_of_a_run_counts_nothing() -> None:
    rt = Runtime("memory:", tools=[charge])

    def agent() -> str:
        with rt.run("r"):
            charge(order="1")
            return charge(order="1")

    assert agent() == rt.replay("r", agent) == "ch_1"
    assert _counts(rt) == {"charge": 1}


# ---- Found by its key


def test_a_call_is_found_by_the_key_that_its_destination_got() -> None:
    rt = Runtime("memory:", tools=[charge])
    with pytest.raises(ZeroDivisionError), rt.run("r"):
        charge(order="1")
        charge(order="2")
        raise ZeroDivisionError
    with rt.run("r"):
        charge(order="1")
    calls = list(rt.calls())
    assert len({call.key for call in calls}) == 3
    for call in calls:
        assert [found.id for found in rt.calls("key:" + call.key)] == [call.id]
        assert [found.id for found in rt.calls(f"key:{call.key[:20]}*")] == [call.id]
        if call.compensation is not None:
            assert [found.id for found in rt.calls("key:" + call.compensation.key)] == [call.id]
    assert list(rt.calls("key:nothing")) == []
    assert {run.id for run in rt.runs(f"key:{calls[0].key}")} == {"r"}


def test_so_is_what_was_done_once() -> None:
    rt = Runtime("memory:")
    told = rt.tell_once("k", hello)
    assert [call.id for call in rt.calls("key:" + told.call.key)] == [told.call.id]
