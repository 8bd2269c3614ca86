"""The record by time, tool, agent, principal and state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, UsageError, tool
from amends.host import listing
from amends.ledger.operations import ReadEvents, StoreOp
from amends.testing import runtime


@tool
def charge(order: str) -> str:
    if order == "bad":
        raise ValueError("no")
    return f"ch_{order}"


@charge.compensate
def refund(result: str) -> None: ...


@tool(kind="read")
def look(what: str) -> str:
    return what


@pytest.fixture
def rt() -> Iterator[Any]:
    with runtime(tools=[charge, look]) as rt:
        for order, agent, principal in (("1", "clerk", "ann"), ("2", "clerk", "ben"), ("bad", "boss", "ann")):
            try:
                with rt.run(f"order-{order}", agent=agent, principal=principal):
                    look("stock")
                    charge("first")
                    charge(order)
            except ValueError:
                pass
            rt.clock.advance(3600)
        yield rt


def told(rt: Any, filter: str) -> list[tuple[str, str]]:
    return [(event.run_id.removeprefix("order-"), event.to) for event in rt.events(filter=filter)]


@pytest.mark.parametrize(
    "filter, expected",
    [
        ("tool:charge state:succeeded", "1 1 2 2 bad"),
        ("tool:charge state:succeeded agent:clerk principal:ben", "2 2"),
        ("state:compensated,rolled_back", "bad bad"),
        ("kind:read status:succeeded principal:ann", "1 bad"),
        ("what:run state:committed", "1 2"),
        ("state:rolled_back agent:boss", "bad"),
        ("run:order-2 what:run", "2 2"),
        ("tool:nothing", ""),
        ("age:<90m what:run state:open", "bad"),
        ("age:>90m what:run state:open", "1 2"),
        ("age:>150m age:<200m what:run state:open", "1"),
        ("at:>=9999-01-01", ""),
        ("at:<1970-01-01", ""),
        ("at:>=1970-01-01T00:00+00:00 what:run state:open", "1 2 bad"),
    ],
)
def test_events_are_found_by_what_they_are_about(rt: Any, filter: str, expected: str) -> None:
    assert [run for run, _ in told(rt, filter)] == expected.split()


def test_every_second_of_time_can_be_asked_for(rt: Any) -> None:
    events = list(rt.events())
    for event in events[:: len(events) // 4]:
        moment = event.at.astimezone(UTC).isoformat()
        assert [one.seq for one in rt.events(filter=f"at:>={moment}")] == [e.seq for e in events if e.at >= event.at]
        assert [one.seq for one in rt.events(filter=f"at:<{moment}")] == [e.seq for e in events if e.at < event.at]
        assert [one.seq for one in rt.events(filter=f"at:<={moment} at:>={moment}")] == [
            e.seq for e in events if e.at == event.at
        ]


def test_of_one_run_and_after_a_place_still_hold(rt: Any) -> None:
    whole = list(rt.events("order-2"))
    assert {event.run_id for event in whole} == {"order-2"}
    assert list(rt.events("order-2", after=whole[3].seq)) == whole[4:]
    assert [event.to for event in rt.events("order-2", filter="tool:look")] == ["started", "succeeded"]


class Counted:
    """A store that says how often it was asked for events."""

    def __init__(self, store: Any) -> None:
        self._store, self.url, self.read = store, store.url, 0

    def open(self, *, create: bool) -> bool:
        return bool(self._store.open(create=create))

    def close(self) -> None:
        self._store.close()

    def perform(self, op: StoreOp[Any]) -> Any:
        self.read += isinstance(op, ReadEvents)
        return self._store.perform(op)

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        return self.perform(op)


def test_what_is_older_than_asked_for_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    from amends.stores.memory import MemoryStore

    monkeypatch.setattr(listing, "PAGE", 5)
    now = [1_000_000.0]
    store = Counted(MemoryStore(lambda: now[0]))
    with Runtime(store=store, tools=[look]) as rt:
        for number in range(200):
            with rt.run(f"r{number}"):
                look(str(number))
            now[0] += 3600
        since = datetime.fromtimestamp(now[0] - 3 * 3600 - 1, UTC).isoformat()
        store.read = 0
        found = [event.run_id for event in rt.events(filter=f"at:>={since} what:run state:open")]
        assert found == ["r197", "r198", "r199"]
        assert store.read < 40, "found by halving"
        until = datetime.fromtimestamp(1_000_000.0 + 3600 * 2, UTC).isoformat()
        store.read = 0
        assert [e.run_id for e in rt.events(filter=f"at:<{until} what:run state:open")] == ["r0", "r1"]
        assert store.read < 40, "ended where time ends"


def test_the_other_colour_takes_the_same_filter() -> None:
    async def main() -> list[str]:
        async with AsyncRuntime("memory:", tools=[look]) as rt:
            async with rt.run("r") as run:
                await run.call(look, "x")
            return [event.to async for event in rt.events(filter="tool:look")]

    assert asyncio.run(main()) == ["started", "succeeded"]


@pytest.mark.parametrize(
    "filter, says",
    [
        ("state:nonsense", "there is no state"),
        ("at:2026-01-01", "compares nothing"),
        ("at:>yesterday", "not a date"),
        ("args.x:1", "is invalid"),
        ("tag:x", "is invalid"),
    ],
)
def test_a_filter_that_means_nothing_says_what_would(rt: Any, filter: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        rt.events(filter=filter)
