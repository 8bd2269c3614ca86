"""What an operator should know is one record each on the logger ``amends``, with fields."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Retry, RunBlocked, Runtime, tool
from amends.errors import LeaseLost
from amends.stores.memory import MemoryStore
from tests.world import World, die, twin_of

SECRET = "4242424242424242"


@pytest.fixture(autouse=True)
def records(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="amends")
    return caplog


def told(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    found = [one for one in caplog.records if getattr(one, "event", None) == event]
    assert {one.name for one in found} <= {"amends"}
    assert not any(SECRET in f"{one.getMessage()}{vars(one)}" for one in caplog.records), "no argument, no message"
    return found


def shop(failing: type[Exception] | None = None) -> list[Any]:
    @tool(key="order")
    def charge(order: str, card: str = SECRET) -> str:
        return order

    @charge.compensate(retry=Retry(2, on=ValueError, delay=0.0))
    def refund(order: str) -> None:
        if failing is not None:
            raise failing(SECRET)

    @tool(kind="pivot")
    def ship(order: str, card: str = SECRET) -> str:
        raise TimeoutError(SECRET)

    @tool(kind="pivot", needs_approval=True)
    def wire(order: str, card: str = SECRET) -> str:
        return order

    return [charge, ship, wire]


def test_a_rollback_is_one_record_with_the_type_of_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    charge, *_ = tools = shop()
    with Runtime("memory:", tools=tools) as rt, pytest.raises(KeyError), rt.run("order-1", agent="clerk"):
        charge(order="1")
        raise KeyError(SECRET)
    [one] = told(caplog, "rollback")
    assert (one.levelname, one.run, one.state, one.agent) == ("INFO", "order-1", "rolled_back", "clerk")
    assert (one.error_type, one.by) == ("KeyError", "self")
    assert "order-1" in one.getMessage()


def test_a_run_that_is_blocked_because_it_is_incomplete_is_one_record(caplog: pytest.LogCaptureFixture) -> None:
    @tool(kind="pivot")
    def pay() -> None: ...

    tools = [*shop(), pay]
    with Runtime("memory:", tools=tools) as rt, pytest.raises(RunBlocked), rt.run("order-1", requires=["charge"]):
        pay()
    [one] = told(caplog, "blocked")
    assert (one.levelname, one.run, one.state) == ("ERROR", "order-1", "blocked")


def test_a_timeout_and_the_doubt_after_it_are_one_record_each(caplog: pytest.LogCaptureFixture) -> None:
    _, ship, _ = tools = shop()
    with Runtime("memory:", tools=tools) as rt, pytest.raises(RunBlocked), rt.run("order-1"):
        ship(order="1")
    [late], [doubt] = told(caplog, "timeout"), told(caplog, "doubt")
    for one in (late, doubt):
        assert (one.levelname, one.run, one.tool, one.state, one.attempt) == (
            "WARNING",
            "order-1",
            "ship",
            "in_doubt",
            1,
        )
        assert one.error_type == "TimeoutError"
        assert one.call.startswith("call_")
    [blocked] = told(caplog, "blocked")
    assert (blocked.levelname, blocked.run) == ("ERROR", "order-1")


def test_a_staged_call_that_cannot_be_started_is_told_each_time(caplog: pytest.LogCaptureFixture) -> None:
    """Its program has left the run: nobody else would learn why it does not go on."""

    @tool(kind="retriable", idempotent=True)
    def rename(sku: str, card: str = SECRET) -> str:
        return sku

    @rename.before
    def look() -> str:
        raise ValueError(SECRET)

    with Runtime("memory:", tools=[rename]) as rt, rt.run("r"):
        rename(sku="7")
    [record] = told(caplog, "not_started")
    assert (record.levelname, record.run, record.tool, record.error_type) == ("WARNING", "r", "rename", "ValueError")
    assert "what is there before it could not be read" in record.getMessage()


def test_a_compensation_that_fails_is_a_warning_and_one_that_gave_up_an_error(caplog: pytest.LogCaptureFixture) -> None:
    charge, *_ = tools = shop(failing=ValueError)
    with Runtime("memory:", tools=tools) as rt, pytest.raises(RunBlocked), rt.run("order-1"):
        charge(order="1")
        raise KeyError("no stock")
    first, last = told(caplog, "compensation_failed")
    assert [(one.levelname, one.gave_up, one.attempt) for one in (first, last)] == [
        ("WARNING", False, 1),
        ("ERROR", True, 2),
    ]
    assert (last.tool, last.run, last.error_type) == ("charge", "order-1", "ValueError")
    assert told(caplog, "rollback") == []


def test_an_approval_is_logged_when_it_is_asked_for_and_not_when_the_run_comes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    *_, wire = tools = shop()
    with Runtime("memory:", tools=tools) as rt:
        for _ in range(2):
            with pytest.raises(Held), rt.run("order-1"):
                wire(order="1")
        [asked] = told(caplog, "approval_asked")
        [approval] = rt.approvals()
    assert (asked.levelname, asked.run, asked.tool, asked.approval) == ("INFO", "order-1", "wire", approval.id)
    assert asked.expires_at == approval.expires_at.isoformat()


def test_a_lost_lease_is_one_record(caplog: pytest.LogCaptureFixture) -> None:
    world, store = World(), MemoryStore()
    pay = world.compensatable("pay")
    run = twin_of(store, pay).open("order-1", recover="wait")
    run.call(pay)
    die(run)
    twin_of(store, pay).recover()
    for _ in range(2):
        with pytest.raises(LeaseLost):
            run.call(pay, "another")
    [lost] = told(caplog, "lease_lost")
    assert (lost.levelname, lost.root, lost.epoch) == ("WARNING", run._session.root, 1)
    [taken] = told(caplog, "taken_over")
    assert (taken.levelname, taken.run) == ("INFO", "order-1")


def test_an_event_loop_logs_the_same(caplog: pytest.LogCaptureFixture) -> None:
    charge, _, wire = tools = shop()

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=tools) as rt:
            with pytest.raises(KeyError):
                async with rt.run("order-1") as run:
                    await run.call(charge, order="1")
                    raise KeyError("no stock")
            with pytest.raises(Held):
                async with rt.run("order-2") as run:
                    await run.call(wire, order="2")

    asyncio.run(main())
    assert [one.run for one in told(caplog, "rollback")] == ["order-1"]
    assert [one.run for one in told(caplog, "approval_asked")] == ["order-2"]
