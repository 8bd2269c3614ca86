"""The same on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amends import AsyncRun, AsyncRuntime, current_run, tool
from amends.errors import Diverged, Held, InDoubt, ReplayDenied, RunBlocked, Waiting


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Clinic:
    """An order and a reading, and which of their bodies ran."""

    def __init__(self, path: Path) -> None:
        self.started: list[str] = []
        started = self.started

        @tool
        async def order(n: int) -> str:
            started.append(f"order {n}")
            await asyncio.sleep(0)
            return f"order {n} #{len(started)}"

        @order.compensate
        async def cancel() -> None:
            started.append("cancel")

        @tool(kind="read")
        async def look(n: int) -> int:
            started.append(f"look {n}")
            return len(started)

        self.order, self.look = order, look
        self.rt = AsyncRuntime(f"sqlite:///{path / 'ledger.db'}", tools=[order, look])

    async def record(self, agent: Any) -> Any:
        """Run it live."""
        async with self.rt.run("r") as run:
            run.output = await agent()
        self.started.clear()
        return run.output


@on_a_loop
async def test_an_async_program_is_told_again_what_it_was_told(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)

    async def agent(n: int = 1) -> list[Any]:
        run: AsyncRun = current_run()
        async with run.child("inner") as inner:
            first = await clinic.order(n)
            at = await inner.now()
        told = await run.answer("look", {"n": 2})
        group = await run.execute([[{"tool": "look", "args": {"n": n}} for n in range(3)]])
        return [first, at, told.text, [one.text for one in group], await run.now(), run.uuid(), run.random().random()]

    output = await clinic.record(agent)
    assert await clinic.rt.replay("r", agent) == output
    assert clinic.started == []
    with pytest.raises(Diverged) as found:
        await clinic.rt.replay("r", agent, 7)
    assert found.value.diff == {"n": (1, 7)}
    await clinic.rt.close()


@on_a_loop
async def test_a_program_that_opens_its_run_itself_is_given_the_record(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)

    async def agent() -> Any:
        async with clinic.rt.run("r") as run:
            assert not run.awaits_opening
            run.output = [await clinic.order(1), await run.now()]
        return [run.output, (await clinic.rt.report("r")).state]

    live = await agent()
    clinic.started.clear()
    assert await clinic.rt.replay("r", agent) == live
    assert live[1] == "committed"
    assert clinic.started == []
    await clinic.rt.close()


@on_a_loop
async def test_a_run_that_goes_on_with_each_request_is_given_again(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)

    async def request(n: int, *, ends: bool = False) -> list[Any]:
        told: list[Any] = []
        with contextlib.suppress(Waiting):
            async with clinic.rt.run("r", history=True) as run:
                answer = await run.answer("order", {"n": n})
                told += [answer.status, answer.text]
                if not ends:
                    raise Waiting("the run goes on with the next request", run_id="r")
        return told

    async def client() -> list[Any]:
        told = [await request(1), await request(1), await request(2), await request(3, ends=True)]
        return [*told, (await clinic.rt.report("r")).state]

    live = await client()
    assert ([one[0] for one in live[:4]], live[4]) == (["done", "replayed", "done", "done"], "committed")
    clinic.started.clear()
    assert await clinic.rt.replay("r", client) == live
    assert clinic.started == []
    with pytest.raises(Diverged) as found:
        await clinic.rt.replay("r", request, 1)
    assert found.value.how == "missing"
    await clinic.rt.close()


@pytest.mark.parametrize("seed", range(8))
@on_a_loop
async def test_parallel_calls_replay_whatever_order_they_finish_in(tmp_path: Path, seed: int) -> None:
    clinic, chance = Clinic(tmp_path), Random(seed)

    async def lane(number: int) -> list[Any]:
        told: list[Any] = []
        for turn in range(3):
            await asyncio.sleep(chance.random() * 0.003)
            told += [await clinic.order(number * 10 + turn), await clinic.look(number)]
        return told

    async def agent() -> list[Any]:
        return list(await asyncio.gather(*(lane(number) for number in range(4))))

    output = await clinic.record(agent)
    for _ in range(3):
        assert await clinic.rt.replay("r", agent) == output
    await clinic.rt.close()


@on_a_loop
async def test_nothing_leaves_the_process_and_nobody_else_is_stopped(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)
    await clinic.record(lambda: clinic.order(1))
    inside, done = asyncio.Event(), asyncio.Event()

    async def agent() -> None:
        await clinic.order(1)
        inside.set()
        await done.wait()
        with socket.socket() as made:
            made.connect(("127.0.0.1", 9))

    async def bystander() -> str:
        await inside.wait()
        try:
            with socket.socket() as made:
                made.connect(("127.0.0.1", 9))
        except OSError as error:
            return type(error).__name__
        finally:
            done.set()
        return "connected"

    beside = asyncio.create_task(bystander())
    with pytest.raises(ReplayDenied):
        await clinic.rt.replay("r", agent)
    assert await beside == "ConnectionRefusedError"
    await clinic.rt.close()


class Refused(Exception):
    """The program's own error."""


@on_a_loop
async def test_an_async_program_is_told_again_how_its_children_were_opened_and_left(tmp_path: Path) -> None:
    started: list[str] = []

    @tool(kind="pivot")
    async def wire(n: int) -> str:
        started.append("wire")
        return f"wire {n}"

    @tool(kind="retriable", idempotent=True)
    async def mail(n: int) -> str:
        started.append("mail")
        return f"mail {n}"

    @tool
    async def lose(n: int) -> str:
        started.append("lose")
        raise TimeoutError("no answer")

    @lose.compensate
    async def find_it() -> None:
        started.append("find it")

    @tool(needs_approval=True)
    async def pay(n: int) -> str:
        started.append("pay")
        return f"pay {n}"

    @pay.compensate
    async def refund() -> None:
        started.append("refund")

    tools = [wire, mail, lose, pay]
    rt = AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=tools)
    told: list[Any] = []

    async def agent() -> None:
        run: AsyncRun = current_run()
        told.clear()
        for _ in range(2):  # blocked when it is left, and when it is opened again
            try:
                async with run.child("doubtful"):
                    with contextlib.suppress(InDoubt):
                        await lose(1)
            except RunBlocked as blocked:
                told.append(str(blocked))
        with contextlib.suppress(Refused):
            async with run.child("interrupted") as inner:
                told.append(await wire(1))
                raise Refused
        async with run.child("interrupted") as inner:
            letter = await mail(1)
            told.append((letter.done, inner.state))
        told.append((letter.done, run.state))
        told.append(await pay(1))

    with pytest.raises(Held):
        async with rt.run("r", recover="wait"):
            await agent()
    [asked] = [one async for one in rt.approvals()]
    await rt.bypass(asked.id, digest=asked.digest, by="ann", why="a test")
    with pytest.raises(RunBlocked):
        async with rt.run("r", recover="wait"):
            await agent()
    live, before = list(told), list(started)
    with pytest.raises(RunBlocked):
        await rt.replay("r", reopened, rt, agent)
    assert told == live
    assert started == before
    await rt.close()


async def reopened(rt: AsyncRuntime, agent: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """The program as it ran: it opens its run itself."""
    async with rt.run("r", recover="wait"):
        await agent()
