"""Listings go on after the last one that was listed, in both colours: for pages of a service or a console."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Runtime, UsageError, tool


@tool(kind="pivot", needs_approval=True)
def wire(order: str) -> None: ...


@tool(key="order", locks=lambda call: [f"order-{call.args['order']}"])
def charge(order: str) -> str:
    return order


@charge.compensate
def refund(order: str) -> None: ...


def filled(url: str) -> Runtime:
    rt = Runtime(url, tools=[wire, charge])
    for n in range(5):
        with pytest.raises(Held), rt.run(f"r{n}"):
            charge(order=str(n))
            wire(order=str(n))
    return rt


@pytest.mark.parametrize(
    "listing, place",
    [
        ("runs", lambda one: one.place),
        ("calls", lambda one: one.id),
        ("approvals", lambda one: one.id),
        ("locks", lambda one: one.name),
    ],
)
def test_two_parts_are_the_whole(tmp_path: Path, listing: str, place: Callable[[Any], str]) -> None:
    for url in ("memory:", f"sqlite:///{tmp_path}/l.db"):
        with filled(url) as rt:
            whole = list(getattr(rt, listing)())
            for cut in range(1, len(whole)):
                after = place(whole[cut - 1])
                assert [place(one) for one in getattr(rt, listing)(after=after)] == [place(one) for one in whole[cut:]]
            other = rt.as_async()
            assert isinstance(other, AsyncRuntime)
            assert other.as_async() is other

            async def rest(found: Any) -> list[Any]:
                return [one async for one in found]

            half = asyncio.run(rest(getattr(other, listing)(after=place(whole[2]))))
            assert [place(one) for one in half] == [place(one) for one in whole[3:]]


@pytest.mark.parametrize("place", ["x", "1.0", "nan/run_1", "1.0/", "inf/run_1"])
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with Runtime("memory:") as rt, pytest.raises(UsageError):
        list(rt.runs(after=place))


def test_verifying_tells_how_far_it_is() -> None:
    told: list[tuple[int, int]] = []
    with filled("memory:") as rt:
        found = rt.verify(progress=lambda runs, events: told.append((runs, events)))
        assert told
        assert told[-1][0] <= found.runs
        assert found.ok
