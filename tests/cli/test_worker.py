import asyncio
import functools
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Retry, Runtime, testing, tool
from amends.errors import LedgerCorrupt, LedgerMissing, LedgerUnavailable, UsageError, WrongColour
from amends.worker import IDLE_S_MAX, Pace, Worker, work
from tests.scenarios.processes import wait_until
from tests.world import die

Make = Callable[..., Any]


@tool
def pay(order: str) -> str:
    return order


@pay.compensate
def refund(result: str) -> None:
    pass


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def leave_open(url: str, id: str) -> None:
    """Make a run whose process is alive and whose lease has expired, because nobody renewed it."""
    rt = Runtime(url, tools=[pay])
    run = rt.open(id)
    run.call(pay, order=id)
    die(run)
    rt.close()


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_worker_in_a_thread_recovers_until_its_event_is_set(url: str, make: Make) -> None:
    leave_open(url, "order-1")
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(make(url, tools=[pay]),), kwargs={"every": 0.01, "stop": stop})
    thread.start()
    with Runtime(url) as rt:
        wait_until(lambda: rt.report("order-1").state == "rolled_back")
        leave_open(url, "order-2")
        wait_until(lambda: rt.report("order-2").state == "rolled_back")
    stop.set()
    thread.join(timeout=60)
    assert not thread.is_alive()


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_run_whose_tools_are_missing_is_told_once(url: str, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    leave_open(url, "order-1")
    caplog.set_level(logging.INFO, "amends.worker")
    with Runtime(url) as rt:
        wait_until(lambda: _is_due(rt))
    work(make(url), every=0.001, stop=After(looks=40))
    told = [record for record in caplog.records if record.name == "amends.worker"]
    warnings = [record.getMessage() for record in told if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "order-1" in warnings[0]
    assert "pay" in warnings[0]


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_ledger_that_does_not_answer_is_asked_again(
    url: str, make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(url, "order-1")
    rt = make(url, tools=[pay])
    opened, refusals = rt._host.store.open, [LedgerUnavailable("the disk is away")] * 2

    def reopen(*, create: bool) -> bool:
        if refusals:
            raise refusals.pop()
        return bool(opened(create=create))

    monkeypatch.setattr(rt._host.store, "open", reopen)
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(rt,), kwargs={"every": 0.01, "stop": stop})
    thread.start()
    with Runtime(url) as reader:
        wait_until(lambda: reader.report("order-1").state == "rolled_back")
    stop.set()
    thread.join(timeout=60)
    assert sum("the disk is away" in record.getMessage() for record in caplog.records) == 2


def test_one_look_tells_of_a_ledger_that_does_not_answer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rt = Runtime(url, tools=[pay])

    def refuse(*, create: bool) -> bool:
        raise LedgerUnavailable("the disk is away")

    monkeypatch.setattr(rt._host.store, "open", refuse)
    with pytest.raises(LedgerUnavailable):
        work(rt, once=True)


def test_a_worker_makes_no_ledger(url: str) -> None:
    with pytest.raises(LedgerMissing):
        work(Runtime(url, tools=[pay]), once=True)
    with pytest.raises(UsageError):
        Worker(Runtime("memory:", tools=[pay]))
    with pytest.raises(UsageError):
        Worker(Runtime(url, tools=[pay]), every=0)


def test_an_idle_worker_looks_less_and_less_often_and_a_busy_one_at_once_again() -> None:
    pace = Pace(1.0)
    assert [pace.after(busy=False) for _ in range(5)] == [1.0, 2.0, 4.0, IDLE_S_MAX, IDLE_S_MAX]
    assert pace.after(busy=True) == 1.0
    assert [pace.unavailable() for _ in range(6)] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


class After:
    """Stops a worker after it was checked this many times."""

    def __init__(self, *, looks: int) -> None:
        self.left = looks

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def _is_due(rt: Runtime) -> bool:
    return bool(rt.recover())


# ---- A worker that starts before its ledger


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_worker_waits_for_a_ledger_that_does_not_exist_yet(
    url: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(make(url, tools=[pay]),), kwargs={"every": 0.01, "stop": stop})
    thread.start()
    wait_until(lambda: "waiting until it is there" in caplog.text)
    leave_open(url, "order-1")
    with Runtime(url) as rt:
        wait_until(lambda: rt.report("order-1").state == "rolled_back")
    stop.set()
    thread.join(timeout=60)
    assert caplog.text.count("waiting until it is there") == 1


# ---- In the process of an application: with rt.worker()


def test_a_program_recovers_its_own_runs_and_those_of_others(url: str) -> None:
    rt = Runtime(url, tools=[pay])
    with rt.worker(every=0.01):
        leave_open(url, "order-1")
        with rt.run("order-2"):
            pay(order="2")
        wait_until(lambda: rt.report("order-1").state == "rolled_back")
    assert not [thread for thread in threading.enumerate() if thread.name == "amends-worker"]
    assert rt.report("order-2").state == "committed"  # the runtime is still open
    rt.close()


def test_an_async_program_recovers_its_own_runs_and_those_of_others(url: str) -> None:
    async def main() -> list[str]:
        async with AsyncRuntime(url, tools=[pay]) as rt:
            async with rt.worker(every=0.01) as worker:
                assert worker.rt is rt
                await asyncio.to_thread(leave_open, url, "order-1")
                async with rt.run("order-2") as run:
                    await run.call(pay, order="2")
                for _ in range(3_000):
                    if (await rt.report("order-1")).state == "rolled_back":
                        break
                    await asyncio.sleep(0.01)
            return [(await rt.report(id)).state for id in ("order-1", "order-2")]

    assert asyncio.run(main()) == ["rolled_back", "committed"]


def test_a_ledger_in_memory_has_a_worker_in_its_own_process() -> None:
    failures = [ValueError("down")]

    @tool(kind="retriable", idempotent=True, retry=Retry(attempts=5, delay=0.01, jitter=0.0))
    def mail(to: str) -> None:
        if failures:
            raise failures.pop()

    with Runtime("memory:", tools=[mail]) as rt, rt.worker(every=0.01):
        with rt.run("r") as run:
            mail(to="ada")
        assert run.state in ("pivoted", "committed")
        wait_until(lambda: rt.report("r").state == "committed")


def test_leaving_the_block_finishes_the_run_at_hand(url: str) -> None:
    began, may_end = threading.Event(), threading.Event()

    @tool(name="pay")
    def slow(order: str) -> str:
        return order

    @slow.compensate
    def undo(result: str) -> None:
        began.set()
        assert may_end.wait(30)

    leave_open(url, "order-1")
    with Runtime(url, tools=[slow]) as rt:
        with rt.worker(every=0.01):
            assert began.wait(30)
            threading.Timer(0.1, may_end.set).start()
        assert rt.report("order-1").state == "rolled_back"


def test_a_block_of_a_worker_is_entered_once_and_not_inside_a_run(url: str) -> None:
    with Runtime(url, tools=[pay]) as rt:
        block = rt.worker()
        with block, pytest.raises(UsageError, match="entered twice"), block:
            pass
        with rt.run("r"), pytest.raises(UsageError, match="inside run r"):
            rt.worker()
        for odd in ({"every": 0}, {"limit": 0}):
            with pytest.raises(UsageError, match="a worker needs"):
                rt.worker(**odd)


def test_a_worker_in_a_program_outlives_what_happens_to_the_ledger(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rt = Runtime(url, tools=[pay])
    leave_open(url, "order-1")
    found, errors = rt._abandoned, [LedgerCorrupt("a page is damaged"), ValueError("a bug"), LedgerUnavailable("away")]

    def broken(limit: int) -> Any:
        if errors:
            raise errors.pop()
        return found(limit)

    monkeypatch.setattr(rt, "_abandoned", broken)
    with rt, rt.worker(every=0.01):
        wait_until(lambda: rt.report("order-1").state == "rolled_back")
    assert "nothing can be recovered, trying again in 0 s: ValueError: a bug" in caplog.text


# ---- Agents of both colours


@tool(key="order")
async def ship(order: str) -> str:
    return order


@ship.compensate
async def call_back(result: str) -> None:
    pass


def blocking_agent(run: Any) -> str:
    if not run.resumed:
        raise KeyboardInterrupt
    return f"{pay(order='1')} {run.call(ship, order='1')}"


async def async_agent(run: Any) -> str:
    if not run.resumed:
        raise KeyboardInterrupt
    return f"{await run.call(pay, order='1')} {await ship(order='1')}"


class Callable_:
    async def __call__(self, run: Any) -> str:
        return await async_agent(run)


AGENTS: dict[str, Any] = {
    "blocking": blocking_agent,
    "async": async_agent,
    "partial": functools.partial(async_agent),
    "object": Callable_(),
    "lambda": lambda run: async_agent(run),
}


def interrupted_by(url: str, name: str) -> None:
    """Start the agent in its own colour and interrupt it at once."""
    if name == "blocking":
        with Runtime(url, tools=[pay, ship], agents=AGENTS, lease=0.05) as rt, pytest.raises(KeyboardInterrupt):
            rt.start(name, id=name)
        return

    async def main() -> None:
        async with AsyncRuntime(url, tools=[pay, ship], agents=AGENTS, lease=0.05) as rt:
            await rt.start(name, id=name)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
@pytest.mark.parametrize("name", AGENTS)
def test_a_worker_resumes_agents_of_both_colours(url: str, make: Make, name: str) -> None:
    interrupted_by(url, name)
    stop = threading.Event()
    worker = make(url, tools=[pay, ship], agents=AGENTS)
    thread = threading.Thread(target=work, args=(worker,), kwargs={"every": 0.01, "stop": stop})
    thread.start()
    with Runtime(url) as rt:
        wait_until(lambda: rt.report(name).state != "open")
        report = rt.report(name)
    stop.set()
    thread.join(timeout=60)
    assert (report.state, report.output) == ("committed", "1 1")


def test_an_async_agent_is_not_started_by_a_blocking_runtime(url: str) -> None:
    with Runtime(url, tools=[pay, ship], agents=AGENTS) as rt:
        with pytest.raises(WrongColour, match="agent async is async"):
            rt.start("async", id="r")
        assert list(rt.runs()) == []


def test_a_blocking_recovery_inside_an_event_loop_resumes_an_async_agent(url: str) -> None:
    interrupted_by(url, "async")

    async def cell() -> list[str]:
        with Runtime(url, tools=[pay, ship], agents=AGENTS) as rt:
            for _ in range(3_000):
                if found := rt.recover():
                    return [report.state for report in found]
                await asyncio.sleep(0.01)
        return []

    assert asyncio.run(cell()) == ["committed"]


def test_a_runtime_for_tests_has_no_worker() -> None:
    with pytest.raises(UsageError, match=r"clock of its own"):
        testing.runtime(tools=[pay]).worker()
