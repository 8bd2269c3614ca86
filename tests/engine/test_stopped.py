"""A flow that closes or recovers a run is stopped in a living process: doubt at once, and a run that others can take."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends import AsyncRuntime, Happened, Runtime, tool
from amends.stores.memory import MemoryStore
from tests.world import FAST

STOPS = [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError]


class Shop:
    """A tool whose compensation or guard stops the program the first time."""

    def __init__(self, stop: type[BaseException], where: str, *, is_async: bool = False, **twin: Any) -> None:
        self.log: list[str] = []
        self.stop, self.where = stop, where

        def undo() -> None:
            self.at("undo")

        async def undo_async() -> None:
            self.at("undo")

        @tool
        def pay() -> str:
            self.log.append("pay")
            return "p"

        options: dict[str, Any] = {"retry": FAST, "idempotent": True} | twin
        pay.compensate(undo_async if is_async else undo, **options)
        if where == "guard":
            pay.guard(lambda: self.at("guard"))
        self.pay = pay

    def at(self, where: str) -> bool:
        self.log.append(where)
        if where == self.where and self.log.count(where) == 1:
            raise self.stop
        return True


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("where", ["undo", "guard"])
@pytest.mark.parametrize("how", ["raise", "rollback", "child"])
def test_a_stop_inside_a_compensation_leaves_doubt_and_a_free_run(stop: Any, where: str, how: str) -> None:
    shop = Shop(stop, where)
    rt = Runtime("memory:", tools=[shop.pay])
    with pytest.raises(stop), rt.run("r") as run:
        if how == "child":
            with run.child("c"):
                run.call(shop.pay)
                raise KeyError
        run.call(shop.pay)
        if how == "rollback":
            run.rollback("enough")
        raise KeyError
    states = {call.state for call in _calls(rt.report("r"))}
    assert "compensating" not in states
    assert "started" not in states
    rt.recover()
    assert rt.report("r").state == "rolled_back"
    assert rt.verify().ok


def _calls(report: Any) -> list[Any]:
    return [*report.calls, *(call for child in report.children for call in _calls(child))]


def test_a_compensation_that_is_not_idempotent_waits_for_a_person_at_once() -> None:
    shop = Shop(KeyboardInterrupt, "undo", idempotent=False)
    rt = Runtime("memory:", tools=[shop.pay])
    with pytest.raises(KeyboardInterrupt), rt.run("r") as run:
        run.call(shop.pay)
        raise KeyError
    assert rt.report("r").calls[0].state == "compensation_in_doubt"
    rt.recover()
    report = rt.report("r")
    assert report.state == "blocked"
    assert shop.log == ["pay", "undo"]
    assert rt.resolve(report.calls[0].id, Happened(None), by="ada", why="it is gone").state == "rolled_back"


def test_a_guard_that_was_stopped_means_that_nothing_was_sent() -> None:
    shop = Shop(KeyboardInterrupt, "guard", idempotent=False)
    rt = Runtime("memory:", tools=[shop.pay])
    with pytest.raises(KeyboardInterrupt), rt.run("r") as run:
        run.call(shop.pay)
        raise KeyError
    rt.recover()
    assert rt.report("r").state == "rolled_back"
    assert shop.log == ["pay", "guard", "guard", "undo"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_a_stop_while_recovering_leaves_the_run_to_the_next(stop: Any) -> None:
    shop = Shop(stop, "undo")
    rt = Runtime("memory:", tools=[shop.pay], lease=5)
    run = rt.open("r")
    run.call(shop.pay)
    run._host.heartbeat.forget(run._session.lease)
    store = rt._host.store
    assert isinstance(store, MemoryStore)
    from amends.encoding.dataclass import changed

    for uid, row in list(store.runs.items()):
        store.runs[uid] = changed(row, {"owner": "", "lease_until": 0.0})
    with pytest.raises(stop):
        rt.rollback("r", by="ada", why="enough")
    assert rt.report("r").calls[0].state == "compensation_in_doubt"
    rt.recover()
    assert rt.report("r").state == "rolled_back"


def test_a_stop_inside_a_staged_body_at_commit() -> None:
    sent: list[str] = []

    @tool(kind="retriable", idempotent=True)
    def mail() -> str:
        sent.append("mail")
        if len(sent) == 1:
            raise KeyboardInterrupt
        return "m"

    rt = Runtime("memory:", tools=[mail])
    with pytest.raises(KeyboardInterrupt), rt.run("r"):
        mail()
    assert rt.report("r").calls[0].state == "in_doubt"
    rt.recover()
    assert (rt.report("r").state, len(sent)) == ("committed", 2)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", ["raise", "rollback"])
def test_the_same_in_an_async_runtime(stop: Any, is_async: bool, how: str) -> None:
    if stop is GeneratorExit and is_async:
        pytest.skip("Python itself ends a coroutine with it")
    shop = Shop(stop, "undo", is_async=is_async)
    rt = AsyncRuntime("memory:", tools=[shop.pay])

    async def program() -> None:
        async with rt.run("r") as run:
            await run.call(shop.pay)
            if how == "rollback":
                await run.rollback("enough")
            raise KeyError

    async def after() -> tuple[str, str]:
        before = (await rt.report("r")).calls[0].state
        await rt.recover()
        return before, (await rt.report("r")).state

    with pytest.raises(stop):
        asyncio.run(program())
    assert asyncio.run(after()) == ("compensation_in_doubt", "rolled_back")


def test_a_cancelled_recovery_leaves_the_run_to_the_next() -> None:
    log: list[str] = []

    @tool
    async def pay() -> str:
        return "p"

    @pay.compensate(idempotent=True)
    async def undo() -> None:
        log.append("undo")
        if len(log) == 1:
            await asyncio.sleep(60)

    async def program() -> None:
        async with AsyncRuntime("memory:", tools=[pay]) as rt:
            run = await rt.open("r")
            await run.call(pay)
            from amends.errors import Held

            await run.leave(Held("later", call=None, reason="approval"))
            going = asyncio.ensure_future(rt.rollback("r", by="ada", why="enough"))
            while not log:
                await asyncio.sleep(0.01)
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            assert (await rt.report("r")).calls[0].state == "compensation_in_doubt"
            await rt.recover()
            assert (await rt.report("r")).state == "rolled_back"

    asyncio.run(program())
