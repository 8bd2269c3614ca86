import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import LedgerMissing, LedgerUnavailable, UsageError
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
