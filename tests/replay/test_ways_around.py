"""No way around the record is open: other contexts, older threads, other ends, verbs beside the runs."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, current_run
from amends.errors import Diverged, ReplayDenied, UsageError
from tests.replay.test_replay import Clinic, clinic

__all__ = ["clinic"]


def one(clinic: Clinic) -> Any:
    return clinic.order_lab(patient="p")


@pytest.mark.parametrize("way", ["an empty context", "a pool that is older", "a pool of another context"])
def test_a_run_beside_the_one_that_is_replayed_is_not_opened(clinic: Clinic, way: str) -> None:
    clinic.record(lambda: one(clinic))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        ways: dict[str, Callable[[Callable[[], object]], object]] = {
            "an empty context": lambda act: contextvars.Context().run(act),
            "a pool that is older": lambda act: pool.submit(act).result(),
            "a pool of another context": lambda act: contextvars.Context().run(lambda: pool.submit(act).result()),
        }

        def beside() -> None:
            with clinic.rt.run("beside"):
                clinic.order_lab(patient="q")

        def agent() -> None:
            one(clinic)
            try:
                ways[way](beside)
            except ReplayDenied:
                return

        with pytest.raises(ReplayDenied):
            clinic.rt.replay("visit", agent)
        assert clinic.started == []
        pool.submit(beside).result()  # after it the pool is anybody's
    assert [run.id for run in clinic.rt.runs()] == ["beside", "visit"]


def test_a_call_that_waits_in_an_older_pool_may_be_asked_for_late(clinic: Clinic) -> None:
    go = threading.Event()

    def ask() -> Any:
        go.wait(10)
        return one(clinic)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def agent(*, live: bool = False) -> Any:
            asked = pool.submit(current_run().bind(ask))
            if live:
                go.set()
                asked.result()
            else:
                threading.Timer(0.05, go.set).start()
            return clinic.weigh(patient="p"), asked.result()

        told = clinic.record(lambda: agent(live=True))
        go.clear()
        assert list(clinic.rt.replay("visit", agent)) == list(told)


def test_no_checkpoint_is_written_and_no_schema_changed_from_inside(clinic: Clinic, tmp_path: Path) -> None:
    clinic.record(lambda: one(clinic))
    clinic.rt.checkpoint()
    for verb in (clinic.rt.checkpoint, clinic.rt.migrate, clinic.rt.schema, clinic.rt.reencrypt):
        with pytest.raises(ReplayDenied):
            clinic.rt.replay("visit", verb)
    other = AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=clinic.tools)

    def awaited(verb: Callable[[], Coroutine[Any, Any, object]]) -> None:
        asyncio.run(verb())

    for wait in (other.checkpoint, other.migrate, other.reencrypt):
        with pytest.raises(ReplayDenied):
            clinic.rt.replay("visit", awaited, wait)


def test_a_program_that_exits_over_a_divergence_has_diverged(clinic: Clinic) -> None:
    def agent() -> None:
        try:
            clinic.order_lab(patient="q")
        except Diverged:
            sys.exit(0)

    clinic.record(lambda: one(clinic))
    with pytest.raises(Diverged):
        clinic.rt.replay("visit", agent)
    assert [each.how for each in clinic.rt.replay_each(["visit"], agent)] == ["arguments"]
    assert [each.how for each in clinic.rt.replay_each(["visit"], lambda: (one(clinic), sys.exit(0)))] == ["raised"]


def test_another_end_is_a_divergence(clinic: Clinic) -> None:
    def fails() -> None:
        one(clinic)
        raise KeyError("mine")

    def back() -> None:
        one(clinic)
        current_run().rollback("no")

    with pytest.raises(KeyError):
        clinic.record(fails, "fails")
    clinic.record(lambda: one(clinic))
    clinic.started.clear()
    for run, agent in (("fails", lambda: one(clinic)), ("visit", back)):
        with pytest.raises(Diverged) as found:
            clinic.rt.replay(run, agent)
        assert found.value.how == "end"

    def opens() -> None:
        try:
            with clinic.rt.run("fails"):
                fails()
        except KeyError:
            pass

    clinic.rt.replay("fails", opens)
    assert clinic.started == []


def test_a_run_is_opened_by_the_colour_that_replays_it(clinic: Clinic, tmp_path: Path) -> None:
    clinic.record(lambda: one(clinic))
    other = AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=clinic.tools)

    async def awaited() -> None:
        async with other.run("visit"):
            pass

    async def blocking() -> None:
        with clinic.rt.run("visit"):
            pass

    with pytest.raises(UsageError, match="opened with AsyncRuntime"):
        clinic.rt.replay("visit", lambda: asyncio.run(awaited()))

    async def replayed() -> None:
        async with other:
            await other.replay("visit", blocking)

    with pytest.raises(UsageError, match=r"opened with Runtime\.run"):
        asyncio.run(replayed())


def test_beside_a_blocking_replay_on_a_loop_other_tasks_go_on(clinic: Clinic) -> None:
    clinic.record(lambda: one(clinic))
    beside = AsyncRuntime("memory:")

    async def live() -> object:
        async with beside.run("x") as run:
            return await run.once("k", lambda: 1)

    async def both() -> object:
        other = asyncio.create_task(live())  # made before: it has nothing of the replay
        with clinic.rt.replaying("visit"):
            one(clinic)
            return await other

    assert asyncio.run(both()) == 1


def test_another_end_of_a_child_is_a_divergence_though_its_error_is_swallowed(clinic: Clinic) -> None:
    def agent(*, fails: bool) -> None:
        with contextlib.suppress(KeyError), current_run().child("c"):
            one(clinic)
            if fails:
                raise KeyError("mine")
        clinic.weigh(patient="p")

    for then in (True, False):
        clinic.record(partial(agent, fails=then), f"fails {then}")
        clinic.rt.replay(f"fails {then}", agent, fails=then)
        with pytest.raises(Diverged) as found:
            clinic.rt.replay(f"fails {then}", agent, fails=not then)
        assert found.value.how == "end"
    assert clinic.started == []


def test_a_run_that_its_program_opens_and_leaves_by_an_error_has_not_committed(clinic: Clinic) -> None:
    def agent() -> None:
        with contextlib.suppress(KeyError), clinic.rt.run("visit"):
            one(clinic)
            raise KeyError("mine")

    clinic.record(lambda: one(clinic))
    with pytest.raises(Diverged) as found:
        clinic.rt.replay("visit", agent)
    assert found.value.how == "end"
