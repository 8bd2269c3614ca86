"""``run.submit`` and calls that are still running when a block is left."""

from __future__ import annotations

import asyncio

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import Busy


def test_a_submit_that_cannot_start_does_not_keep_the_block_waiting_for_ever() -> None:
    async def main() -> str:
        async with AsyncRuntime("memory:") as rt:
            with pytest.raises(TypeError):
                async with rt.run("r") as run:
                    run.submit(int)  # type: ignore[arg-type]
            return (await rt.report("r")).state

    assert asyncio.run(asyncio.wait_for(main(), 5)) == "rolled_back"


def test_a_submit_to_a_block_that_is_left_does_not_count_as_live() -> None:
    rt = Runtime("memory:")
    with rt.run("r") as run:
        run.submit(int).result()
    with pytest.raises(RuntimeError):
        run.submit(int)
    assert rt._host.live.count(run._session.uid) == 0


def test_a_block_that_waits_lets_its_other_calls_land_first() -> None:
    began = asyncio.Event()

    @tool
    async def slow(n: int) -> int:
        began.set()
        await asyncio.sleep(0.2)
        return n

    @slow.compensate
    async def unslow(n: int) -> None: ...

    async def main() -> list[str]:
        async with AsyncRuntime("memory:", tools=[slow]) as rt:
            with pytest.raises(Busy):
                async with rt.run("r") as run:
                    task = asyncio.ensure_future(run.call(slow, n=1))
                    await began.wait()
                    raise Busy("not yet", owner="x", retry_after=1.0)
            states: list[str] = [call.state for call in (await rt.report("r")).calls]
            await asyncio.gather(task, return_exceptions=True)
            return states

    assert asyncio.run(main()) == ["succeeded"]
