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
from amends.errors import Diverged, ReplayDenied, Waiting


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
