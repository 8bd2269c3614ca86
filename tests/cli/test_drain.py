"""A worker of a fleet: several runs at once, drained by SIGTERM, handed over when time is up, and its endpoint."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.drivers import process
from amends.errors import LedgerTooNew, UsageError
from amends.health import Endpoint, parse_address
from amends.stores import migrations as package
from amends.worker import Worker, work
from tests.cli.command import environment
from tests.forked import Child
from tests.scenarios.processes import wait_until
from tests.world import die

Make = Callable[..., Any]
PATIENCE_S = 60
REST = partial(pytest.param, marks=pytest.mark.rest)
STUCK = """
import os, sys, threading, time
from amends import AsyncRuntime, Runtime, tool
from amends.worker import work

@tool
def pay(order: str) -> str:
    return order

@pay.compensate
def refund(result: str) -> None:
    print(f"refunding {result}", flush=True)
    if os.environ.get("SLOW"):
        time.sleep(float(os.environ["SLOW"]))
    with open("refunded.txt", "a") as file:
        file.write(result + "\\n")

{make}
work(rt, every=0.02, concurrency=int(os.environ["AT_ONCE"]), drain=float(os.environ["DRAIN"]))
"""
MAKES = {
    "blocking": 'rt = Runtime("sqlite:///shop.db", tools=[pay])',
    "async": 'rt = AsyncRuntime("sqlite:///shop.db", tools=[pay])',
    "silent": 'sys.stdout = None\nrt = Runtime("sqlite:///shop.db", tools=[pay])',
}


@tool
def pay(order: str) -> str:
    return order


@pay.compensate
def refund(result: str) -> None:
    pass


def leave_open(url: str, *ids: str) -> None:
    """Make runs whose process is alive and whose leases have expired."""
    for id in ids:
        rt = Runtime(url, tools=[pay])
        run = rt.open(id)
        run.call(pay, order=id)
        die(run)
        rt.close()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'shop.db'}"


def program(folder: Path, colour: str, **extra: str) -> Child:
    (folder / "program.py").write_text(STUCK.replace("{make}", MAKES[colour]), encoding="utf-8")
    return Child(["program.py"], cwd=folder, env=environment(**extra))


def refunded(folder: Path) -> list[str]:
    found = folder / "refunded.txt"
    return sorted(found.read_text(encoding="utf-8").split()) if found.exists() else []


# ---- Several runs at once


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_worker_recovers_as_many_runs_at_once_as_it_may(url: str, make: Make) -> None:
    at_once, gate = threading.Barrier(3), threading.Event()

    @tool(name="pay")
    def slow(order: str) -> str:
        return order

    @slow.compensate(timeout=PATIENCE_S)
    def undo(result: str) -> None:
        at_once.wait(PATIENCE_S)  # passes only if three are here together
        assert gate.wait(PATIENCE_S)

    leave_open(url, "1", "2", "3", "4", "5", "6")
    stop, worker = threading.Event(), None
    worker = Worker(make(url, tools=[slow]), every=0.01, concurrency=3, stop=stop)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: len(worker.running) == 3)
    assert worker.is_alive
    gate.set()
    with Runtime(url) as rt:
        wait_until(lambda: all(rt.report(id).state == "rolled_back" for id in "123456"))
    stop.set()
    thread.join(PATIENCE_S)
    assert (thread.is_alive(), worker.running) == (False, {})


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_one_pass_with_several_at_once_reports_every_run(url: str, make: Make) -> None:
    leave_open(url, "1", "2", "3")
    reports: list[Any] = []

    def pass_() -> bool:
        reports.extend(work(make(url, tools=[pay]), once=True, concurrency=2))
        return len(reports) == 3

    wait_until(pass_)
    assert {(report.run_id, report.state) for report in reports} == {(id, "rolled_back") for id in "123"}


@pytest.mark.parametrize("odd", [0, -1, 257, 1.5, "2"])
def test_a_number_of_runs_at_once_that_makes_no_sense_is_refused(url: str, odd: Any) -> None:
    with pytest.raises(UsageError, match="concurrency is"):
        Worker(Runtime(url), concurrency=odd)


@pytest.mark.parametrize("odd", [-1.0, float("inf"), float("nan")])
def test_a_grace_period_that_makes_no_sense_is_refused(url: str, odd: float) -> None:
    with pytest.raises(UsageError, match="drain is"):
        work(Runtime(url), drain=odd)


# ---- Drained


@pytest.mark.parametrize("colour, at_once", [("async", "3"), REST("blocking", "1"), REST("blocking", "3")])
def test_a_drained_worker_finishes_its_runs_and_claims_no_other(
    tmp_path: Path, url: str, colour: str, at_once: str
) -> None:
    leave_open(url, "1", "2", "3", "4", "5")
    with program(tmp_path, colour, AT_ONCE=at_once, DRAIN="30", SLOW="0.5") as worker:
        with Runtime(url) as rt:
            wait_until(lambda: sum(rt.report(id).state == "rolling_back" for id in "12345") == int(at_once))
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0, err
    with Runtime(url) as rt:
        ended = [id for id in "12345" if rt.report(id).state == "rolled_back"]
        assert all(rt.report(id).state == "open" for id in "12345" if id not in ended)
    assert len(ended) == int(at_once)
    assert refunded(tmp_path) == ended


@pytest.mark.parametrize("colour, at_once", [("blocking", "2"), REST("blocking", "1"), REST("async", "2")])
def test_what_is_not_finished_in_time_is_taken_over_at_once_from_another_host(
    tmp_path: Path, url: str, colour: str, at_once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(number) for number in range(int(at_once))]
    leave_open(url, *ids)
    with program(tmp_path, colour, AT_ONCE=at_once, DRAIN="0.2", SLOW="600") as worker:
        with Runtime(url) as rt:
            wait_until(lambda: all(rt.report(id).state == "rolling_back" for id in ids))
        worker.send_signal(signal.SIGTERM)
        _, err = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 128 + signal.SIGTERM, err
    assert f"other workers take over {at_once} runs now" in err
    # As a worker on another machine sees it: it cannot know that the process is dead, and its clock is not comparable.
    monkeypatch.setattr(process, "_host", lambda: "another machine")
    monkeypatch.setattr(process, "boot_id", lambda: "another boot")
    began = process.mono()
    states: dict[str, str] = {}

    def look() -> bool:
        with Runtime(url, tools=[pay]) as rt:
            rt.recover()
            states.update((id, rt.report(id).state) for id in ids)
        return "rolling_back" not in states.values()

    wait_until(look)
    assert process.mono() - began < 15, "the lease of 30 s was not waited for"
    # The compensation was under way: it is in doubt, and was not started again without asking.
    assert set(states.values()) == {"blocked"}
    assert refunded(tmp_path) == []


def test_a_worker_whose_output_nobody_reads_ends_when_its_time_is_up(tmp_path: Path, url: str) -> None:
    leave_open(url, "1")
    with program(tmp_path, "silent", AT_ONCE="1", DRAIN="0.1", SLOW="600") as worker:
        with Runtime(url) as rt:
            wait_until(lambda: rt.report("1").state == "rolling_back")
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 128 + signal.SIGTERM


def test_a_drain_without_runs_ends_at_once(tmp_path: Path, url: str) -> None:
    leave_open(url, "1")
    with program(tmp_path, "blocking", AT_ONCE="4", DRAIN="600") as worker:
        with Runtime(url) as rt:
            wait_until(lambda: rt.report("1").state == "rolled_back")
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0


# ---- A ledger that a newer amends has changed meanwhile


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_worker_ends_when_a_migration_needs_a_newer_amends(
    url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amends.worker.SCHEMA_S", 0.0)
    leave_open(url, "1")
    worker, ends = Worker(make(url, tools=[pay]), every=0.01), []

    def run() -> None:
        try:
            worker.run()
        except LedgerTooNew as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: worker.passes["ok"] > 0)
    import sqlite3

    known = package.migrations("sqlite")[-1].version
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.execute(
            "insert into amends_schema select ?, ?, applied_at, ledger from amends_schema", (known + 1, known + 1)
        )
    database.close()
    thread.join(PATIENCE_S)
    [error] = ends
    assert f"needs an amends that knows version {known + 1}" in str(error)


# ---- The endpoint


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_the_endpoint_says_how_a_worker_is(url: str, make: Make) -> None:
    stop = threading.Event()
    worker = Worker(make(url, tools=[pay]), every=0.01, stop=stop, concurrency=2)
    with Endpoint(worker, "0") as endpoint:
        here = endpoint.address
        assert here.startswith("http://127.0.0.1:")
        assert get(here, "/health")[0] == 200
        assert get(here, "/ready")[0] == 503
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: worker.latest == "unavailable")  # there is no ledger yet
        assert (get(here, "/ready")[0], get(here, "/health")[0]) == (503, 200)
        leave_open(url, "order-1")
        with Runtime(url) as rt:
            wait_until(lambda: rt.report("order-1").state == "rolled_back")
        wait_until(lambda: get(here, "/ready")[0] == 200)
        code, text = get(here, "/metrics")
        assert code == 200
        values = {
            line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[:1] != "#"
        }
        assert values['amends_runs_total{amends_state="rolled_back"}'] == 1
        assert (
            values[
                'amends_compensation_duration_seconds_count{amends_tool="pay",amends_kind="compensatable",amends_state="compensated"}'
            ]
            == 1
        )
        assert values['amends_worker_passes_total{amends_outcome="ok"}'] >= 1
        assert values['amends_worker_passes_total{amends_outcome="unavailable"}'] >= 1
        assert values["amends_worker_concurrency"] == 2
        assert values['amends_ledger_runs{amends_state="blocked"}'] == 0
        assert values["amends_ledger_schema"] == package.migrations("sqlite")[-1].version
        assert values["amends_ledger_migrations"] == 0
        assert get(here, "/nonsense")[0] == 404
        stop.set()
        assert json.loads(get(here, "/ready")[1])["status"] == "draining"
        thread.join(PATIENCE_S)
    with pytest.raises(OSError):
        get(here, "/health")


def test_a_worker_that_hangs_is_not_healthy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(Runtime(url), every=0.01)
    with Endpoint(worker, "127.0.0.1:0") as endpoint:
        assert get(endpoint.address, "/health")[0] == 200
        monkeypatch.setattr("amends.worker.STALLED_S", 0.0)
        assert get(endpoint.address, "/health")[0] == 503
        worker.running["u"] = "a long run"
        assert get(endpoint.address, "/health")[0] == 200


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_worker_that_sleeps_for_long_between_two_passes_is_healthy(
    url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_open(url, "1")
    monkeypatch.setattr("amends.worker.STALLED_S", 0.8)
    stop = threading.Event()
    worker = Worker(make(url, tools=[pay]), every=3600, stop=stop)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_until(lambda: worker.passes["ok"] == 1)
    until = process.mono() + 1.5
    wait_until(lambda: process.mono() > until or not worker.is_alive)
    assert worker.is_alive
    stop.set()
    thread.join(PATIENCE_S)
    assert worker.passes["ok"] == 1


def test_gauges_of_a_ledger_that_does_not_answer_are_missing_and_not_zero(url: str) -> None:
    with Endpoint(Worker(Runtime(url)), "0") as endpoint:
        _, text = get(endpoint.address, "/metrics")
    assert "amends_worker_running 0" in text
    assert not re.search(r"^amends_ledger_\w+ ", text, re.MULTILINE)


@pytest.mark.parametrize("odd", ["soon", "-1", "65536", "127.0.0.1:", "a:b", "١٢"])
def test_an_address_that_makes_no_sense_is_refused(odd: str) -> None:
    with pytest.raises(UsageError, match="listen is"):
        parse_address(odd)


def test_addresses_are_loopback_unless_they_say_otherwise() -> None:
    assert parse_address("9464") == ("127.0.0.1", 9464)
    assert parse_address("0.0.0.0:9464") == ("0.0.0.0", 9464)
    assert parse_address("[::1]:0") == ("::1", 0)


def test_a_port_that_is_taken_is_told(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with (
            pytest.raises(UsageError, match="cannot listen"),
            Endpoint(Worker(Runtime(url)), str(taken.getsockname()[1])),
        ):
            pass


def test_a_slow_client_does_not_keep_others_waiting(url: str) -> None:
    with Endpoint(Worker(Runtime(url)), "0") as endpoint:
        port = int(endpoint.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            assert get(endpoint.address, "/health")[0] == 200
