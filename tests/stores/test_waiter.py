"""What a task awaits until its operation is over: tasks are continued as by a future, cancelled as by a future."""

import asyncio
import contextvars
import io
import itertools
import sys
from types import FrameType
from typing import Any

import anyio
import pytest

from amends.stores.waiter import Waiter, wake_all

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="")


def waiter() -> Waiter:
    made = Waiter()
    made.loop = asyncio.get_running_loop()
    return made


async def until_over(one: Waiter, heard: list[str]) -> str:
    """Await as the stores do: a cancellation is noted, and raised when the waiter is over."""
    cancelled: asyncio.CancelledError | None = None
    while not one.is_over:
        try:
            await one
        except asyncio.CancelledError as error:
            cancelled = error
            heard.append("cancelled")
    if cancelled is not None:
        raise cancelled
    heard.append(place.get())
    return "over"


def end(waiters: list[Waiter]) -> None:
    for one in waiters:
        one.is_over = True
    wake_all(waiters)


class Again(asyncio.SelectorEventLoop):
    """A loop that one of its callbacks can run again, as nest_asyncio and dialogs of notebooks do."""

    def run_inside(self, task: "asyncio.Task[Any]") -> None:
        """Run the loop until the task is done; called by a task of this loop."""
        outer = asyncio.current_task(self)
        assert outer is not None
        asyncio.tasks._leave_task(self, outer)
        turns_left = 1000
        while not task.done() and turns_left:
            turns_left -= 1
            self.call_soon(int)  # so that it does not wait for its files
            self._run_once()  # type: ignore[attr-defined]
        asyncio.tasks._enter_task(self, outer)
        assert task.done(), "the loop does not continue the task"


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_tasks_continue_in_order_and_in_their_own_contexts() -> None:
    async def program() -> list[str]:
        heard: list[str] = []
        waiters, tasks = [waiter() for _ in range(3)], []
        for number, one in enumerate(waiters):
            place.set(f"task {number}")  # which the task copies
            tasks.append(asyncio.create_task(until_over(one, heard)))
        place.set("main")
        await turns()
        asyncio.get_running_loop().call_soon(end, waiters)
        assert await asyncio.gather(*tasks) == ["over"] * 3
        return heard

    assert asyncio.run(program()) == ["task 0", "task 1", "task 2"]


@pytest.mark.parametrize("order", ["cancelled first", "ended first", "cancelled twice"])
def test_a_cancellation_is_raised_once_the_waiter_is_over(order: str) -> None:
    async def program() -> list[str]:
        heard: list[str] = []
        one = waiter()
        task = asyncio.create_task(until_over(one, heard))
        await turns()
        loop = asyncio.get_running_loop()
        if order == "ended first":
            loop.call_soon(end, [one])
            task.cancel()  # scheduled after the end, asked for before it
        else:
            task.cancel()
            await turns()
            assert not task.done(), "a cancelled task waits for its operation"
            if order == "cancelled twice":
                task.cancel()
                await turns()
            loop.call_soon(end, [one])
        with pytest.raises(asyncio.CancelledError):
            await task
        await turns()
        return heard

    assert asyncio.run(program()) == ["cancelled"] * (2 if order == "cancelled twice" else 1)


def test_a_cancellation_before_the_first_wait_is_raised_there() -> None:
    async def program() -> list[str]:
        heard: list[str] = []
        one = waiter()

        async def late() -> str:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()  # while it runs: the next await raises it
            return await until_over(one, heard)

        task = asyncio.create_task(late())
        await turns()
        assert not task.done()
        asyncio.get_running_loop().call_soon(end, [one])
        with pytest.raises(asyncio.CancelledError):
            await task
        return heard

    assert asyncio.run(program()) == ["cancelled"]


@pytest.mark.parametrize("said", [(), ("shutting down",), (None,)])
def test_a_cancellation_keeps_its_message(said: tuple[str | None, ...]) -> None:
    """By the message a library that cancels knows whether the cancellation is its own."""

    async def program() -> tuple[object, ...]:
        one, heard = waiter(), list[str]()
        task = asyncio.create_task(until_over(one, heard))
        await turns()
        task.cancel(*said)
        await turns()
        asyncio.get_running_loop().call_soon(end, [one])
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        return raised.value.args

    assert asyncio.run(program()) == (() if said == (None,) else said)


@pytest.mark.parametrize("number", range(3))
def test_an_interrupt_as_a_task_is_about_to_be_continued_loses_no_task(number: int) -> None:
    """Python runs the handlers of signals as it enters a function; here an exception is raised there."""
    heard: list[str] = []
    loop = asyncio.new_event_loop()

    async def begin() -> tuple[list[Waiter], list[asyncio.Task[str]]]:
        waiters = [waiter() for _ in range(3)]
        tasks = [asyncio.create_task(until_over(one, heard)) for one in waiters]
        await turns()
        return waiters, tasks

    def end_interrupted() -> None:
        entered = itertools.count()

        def trace(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code is Waiter.wake.__code__ and next(entered) == number:
                sys.settrace(None)
                raise KeyboardInterrupt

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            end(waiters)
        finally:
            sys.settrace(before)

    try:
        waiters, tasks = loop.run_until_complete(begin())
        loop.call_soon(end_interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks), 10)) == ["over"] * 3
    finally:
        loop.close()


def test_an_interrupt_in_one_task_leaves_the_others_to_the_loop() -> None:
    heard: list[str] = []

    async def interrupted(one: Waiter) -> None:
        await until_over(one, heard)
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()

    async def begin() -> tuple[list[Waiter], list[asyncio.Task[str] | asyncio.Task[None]]]:
        waiters = [waiter() for _ in range(3)]
        tasks: list[asyncio.Task[str] | asyncio.Task[None]] = [
            asyncio.create_task(interrupted(waiters[0])),
            *(asyncio.create_task(until_over(one, heard)) for one in waiters[1:]),
        ]
        await turns()
        return waiters, tasks

    try:
        waiters, tasks = loop.run_until_complete(begin())
        loop.call_soon(end, waiters)
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert heard == [""]
        loop.run_until_complete(asyncio.gather(*tasks[1:]))
        with pytest.raises(KeyboardInterrupt):
            tasks[0].result()
    finally:
        loop.close()
    assert heard == ["", "", ""]


def test_a_wait_outside_of_its_loop_is_refused_by_the_task() -> None:
    async def elsewhere(one: Waiter) -> None:
        await one

    async def make() -> Waiter:
        return waiter()

    one = asyncio.run(make())
    with pytest.raises(RuntimeError, match="different loop"):
        asyncio.run(elsewhere(one))


def test_whether_it_is_done_is_answered_as_by_a_future() -> None:
    """anyio and the OpenAI Agents SDK ask what a task waits for."""

    async def program() -> None:
        one, loop = waiter(), asyncio.get_running_loop()
        task: Any = asyncio.create_task(until_over(one, []))
        await turns()
        assert task._fut_waiter is one
        try:
            assert (one.done(), one.cancelled()) == (False, False)
            assert "wait_for=" in repr(task)
            task.print_stack(file=io.StringIO())
            task.cancel()
            assert (one.done(), one.cancelled()) == (True, True), "the task is about to be told"
            await turns()
            assert (one.done(), one.cancelled()) == (False, False), "it was told, and waits again"
        finally:
            loop.call_soon(end, [one])
            await asyncio.wait([task])
        assert task.cancelled()
        assert (one.done(), one.cancelled()) == (True, False)

    asyncio.run(program(), debug=True)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_anyio_finds_a_task_that_waits_for_the_ledger_blocked(is_cancelled: bool) -> None:
    async def program() -> None:
        one = waiter()
        task = asyncio.create_task(until_over(one, []))
        await turns()
        if is_cancelled:
            task.cancel()
        try:
            with anyio.fail_after(10):
                await anyio.wait_all_tasks_blocked()
            assert not task.done()
        finally:
            asyncio.get_running_loop().call_soon(end, [one])
            await asyncio.wait([task])

    asyncio.run(program())


@pytest.mark.parametrize("count", [2, 4])
def test_a_task_that_runs_its_loop_again_finds_the_others_continued(count: int) -> None:
    heard: list[str] = []
    loop = Again()

    async def nested(one: Waiter, others: list[asyncio.Task[str]]) -> str:
        await until_over(one, heard)
        loop.run_inside(others[-1])
        return "nested"

    async def program() -> list[str]:
        waiters, others = [waiter() for _ in range(count)], list[asyncio.Task[str]]()
        first = asyncio.create_task(nested(waiters[0], others))
        others.extend(asyncio.create_task(until_over(one, heard)) for one in waiters[1:])
        await turns()
        loop.call_soon(end, waiters)
        return await asyncio.wait_for(asyncio.gather(first, *others), 10)

    try:
        assert loop.run_until_complete(program()) == ["nested", *["over"] * (count - 1)]
    finally:
        loop.close()
    assert len(heard) == count, "each was continued once"
