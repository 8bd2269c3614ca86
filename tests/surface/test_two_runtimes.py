"""Two runtimes in one program: a call belongs to the runtime of its run."""

from __future__ import annotations

import asyncio

import pytest

import amends
from amends.errors import Diverged, NoRun, UnknownTool, UsageError

DONE: list[str] = []


@amends.tool(key="n")
def a(n: int) -> str:
    DONE.append(f"a {n}")
    return f"a{n}"


@a.compensate
def undo_a(n: int) -> None:
    DONE.append(f"undo a {n}")


@amends.tool(key="n")
def b(n: int) -> str:
    DONE.append(f"b {n}")
    return f"b{n}"


@b.compensate
def undo_b(n: int) -> None:
    DONE.append(f"undo b {n}")


@pytest.fixture(autouse=True)
def _clean() -> None:
    DONE.clear()


def test_a_run_of_another_runtime_is_opened_in_its_own() -> None:
    with amends.Runtime("memory:", tools=[a]) as first, amends.Runtime("memory:", tools=[b]) as second:
        with first.run("r1") as outer:
            with second.run("r2") as inner:
                assert amends.current_run() is inner
                b(1)
            assert amends.current_run() is outer
            a(1)
        assert [call.tool for call in first.report("r1").calls] == ["a"]
        assert [call.tool for call in second.report("r2").calls] == ["b"]
    assert DONE == ["b 1", "a 1"]


def test_each_is_taken_back_alone() -> None:
    with amends.Runtime("memory:", tools=[a]) as first, amends.Runtime("memory:", tools=[b]) as second:
        with pytest.raises(ZeroDivisionError), first.run("r1"):
            a(1)
            with second.run("r2"):
                b(1)
            raise ZeroDivisionError
        assert second.report("r2").state == "committed"
        with first.run("r3"):
            a(3)
            with pytest.raises(ZeroDivisionError), second.run("r4"):
                b(4)
                raise ZeroDivisionError
        assert (first.report("r3").state, second.report("r4").state) == ("committed", "rolled_back")
    assert DONE == ["a 1", "b 1", "undo a 1", "a 3", "b 4", "undo b 4"]


def test_a_tool_of_another_runtime_does_not_land_in_this_ones_run() -> None:
    with (
        amends.Runtime("memory:", tools=[a]) as first,
        amends.Runtime("memory:", tools=[b]),
        pytest.raises(UnknownTool),
        first.run("r1"),
    ):
        b(1)
    assert DONE == []


def test_inside_a_body_of_the_first_the_second_has_calls_of_its_own() -> None:
    with amends.Runtime("memory:", tools=[b]) as second:

        @amends.tool(kind="pivot")
        def outer() -> str:
            with second.run("r2"):
                b(1)
                with pytest.raises(NoRun):
                    amends.current_call()
            assert amends.current_call().tool == "outer"
            return "done"

        with amends.Runtime("memory:", tools=[outer]) as first, first.run("r1"):
            outer()
        [call] = second.report("r2").calls
        assert (call.tool, call.parent) == ("b", None)


def test_a_run_of_the_first_inside_one_of_the_second_inside_it_is_refused() -> None:
    with amends.Runtime("memory:", tools=[a]) as first, amends.Runtime("memory:", tools=[b]) as second:
        with first.run("r1"), second.run("r2"), pytest.raises(UsageError, match="inside run r1"), first.run("r3"):
            raise AssertionError("it is not opened")
        assert [run.id for run in first.runs()] == ["r1"]


def test_nothing_of_the_second_starts_in_a_compensation_of_the_first() -> None:
    refused: list[BaseException] = []
    with amends.Runtime("memory:", tools=[b]) as second:

        @amends.tool
        def c() -> None: ...

        @c.compensate
        def undo_c() -> None:
            try:
                with second.run("r2"):
                    b(1)
            except UsageError as error:
                refused.append(error)

        with amends.Runtime("memory:", tools=[c]) as first:
            with pytest.raises(ZeroDivisionError), first.run("r1"):
                c()
                raise ZeroDivisionError
    assert len(refused) == 1
    assert DONE == []


def test_nor_in_a_replay() -> None:
    with amends.Runtime("memory:", tools=[a]) as first, amends.Runtime("memory:", tools=[b]) as second:
        with first.run("r1"):
            a(1)
        with pytest.raises(Diverged), first.replaying("r1"), second.run("r2"):
            raise AssertionError("it is not opened")


def test_current_run_says_whose_it_is() -> None:
    with amends.Runtime("memory:", tools=[a]) as first, amends.Runtime("memory:", tools=[b]) as second:
        with first.run("r1") as run:
            assert amends.current_run(first) is run
            with pytest.raises(NoRun, match="another one"):
                amends.current_run(second)
        with pytest.raises(NoRun):
            amends.current_run(first)


def test_an_async_runtime_inside_a_blocking_one_and_the_reverse() -> None:
    async def asynchronously(second: amends.AsyncRuntime, first: amends.Runtime | None = None) -> None:
        async with second, second.run("r2") as run:
            await run.call(b, 1)
            if first is not None:
                with first.run("r3"):
                    a(3)

    with amends.Runtime("memory:", tools=[a]) as first:
        with first.run("r1"):
            a(1)
            asyncio.run(asynchronously(amends.AsyncRuntime("memory:", tools=[b])))
        asyncio.run(asynchronously(amends.AsyncRuntime("memory:", tools=[b]), first))
    assert DONE == ["a 1", "b 1", "b 1", "a 3"]
