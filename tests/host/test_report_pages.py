"""One page of a long run: ``rt.report(after=, limit=)`` reads only so many calls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, UsageError, tool


@tool(key="n")
def put(n: int) -> int:
    return n


@put.compensate
def drop(n: int) -> None: ...


@pytest.mark.parametrize("where", ["memory:", "sqlite"])
def test_pages_follow_each_other_in_the_order_of_the_requests(where: str, tmp_path: Path) -> None:
    with Runtime(where if where == "memory:" else f"sqlite:///{tmp_path}/l.db", tools=[put]) as rt:
        with rt.run("r") as run:
            for n in range(7):
                put(n=n)
            with run.child("c") as child:
                for n in (20, 21):
                    child.call(put, n=n)
            for n in range(7, 10):
                put(n=n)
        seen: list[Any] = []
        after = ""
        for _ in range(9):
            page = rt.report("r", after=after, limit=4)
            calls = [*page.calls, *page.children[0].calls]
            assert len(calls) <= 4
            if not calls:
                break
            seen += calls
            after = max(calls, key=lambda one: (one.requested_at, one.id)).id
        assert {one.id for one in seen} == {one.id for one in (*rt.report("r").calls, *rt.report("r/c").calls)}
        assert len(seen) == 12
        assert [one.args["n"] for one in rt.report("r/c", limit=1).calls] == [20], "of a child only its own calls count"
        assert rt.report("r", after="call_nobody", limit=3).calls == ()
        with rt.run("other"):
            put(n=99)
        assert rt.report("other", after=seen[0].id, limit=3).calls == (), (
            "a call of another run is no place in this one"
        )


def test_what_is_left_standing_is_told_of_the_calls_of_the_page() -> None:
    with Runtime("memory:", tools=[put]) as rt:
        run = rt.open("r", recover="wait")
        for n in range(4):
            run.call(put, n=n)
        run.release()
        rt.abandon("r", by="ann", why="enough")
        assert len(rt.report("r").residue) == 4
        page = rt.report("r", limit=2)
        assert [left.call.id for left in page.residue] == [one.id for one in page.calls]


@pytest.mark.parametrize("given", [{"limit": 0}, {"limit": -1}, {"limit": True}, {"limit": "3"}, {"after": "call_1"}])
def test_a_page_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with Runtime("memory:", tools=[put]) as rt:
        with rt.run("r"):
            put(n=1)
        with pytest.raises(UsageError):
            rt.report("r", **given)


def test_the_async_colour_has_pages_too() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[put]) as rt:
            async with rt.run("r") as run:
                for n in range(3):
                    await run.call(put, n=n)
            assert len((await rt.report("r", limit=2)).calls) == 2

    asyncio.run(main())
