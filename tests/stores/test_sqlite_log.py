"""The log of a SQLite ledger is copied into its file by a thread, before a commit has to do it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amends import Runtime, tool
from amends.stores.sqlite.connection import PAGE_BYTES, WAL_PAGES_MAX
from amends.stores.sqlite.store import COPY_FIRST, COPY_MAX, COPY_MIN, SqliteStore

FRAME_BYTES = PAGE_BYTES + 24
CALLS = 700
"""Enough that a thread begins to copy, and too few for the size at which a commit does."""
WAIT_S = 20.0


@tool(key="order")
def charge(order: str) -> str:
    """Do nothing."""
    return order


@charge.compensate
def refund(order: str) -> None:
    """Do nothing."""


def _pay(rt: Runtime, run: str, count: int) -> None:
    with rt.run(run):
        for number in range(count):
            charge(order=f"{number}")


def _wait_until(is_so: object) -> bool:
    assert callable(is_so)
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        if is_so():
            return True
        time.sleep(0.02)
    return False


def _log_bytes(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
def test_the_file_has_what_was_written_although_no_commit_had_to_copy_the_log(tmp_path: Path, synchronous: str) -> None:
    path = tmp_path / "ledger.db"
    with Runtime(f"sqlite:///{path}?synchronous={synchronous}", tools=[charge]) as rt:
        _pay(rt, "first", 1)
        before = path.stat().st_size
        _pay(rt, "second", CALLS)
        assert _log_bytes(path) < WAL_PAGES_MAX[synchronous] * FRAME_BYTES
        assert _wait_until(lambda: path.stat().st_size > before + 100 * CALLS)
        _pay(rt, "third", 10)
        assert rt.verify().ok


def test_a_long_run_does_not_make_the_log_longer_than_its_maximum(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Runtime(f"sqlite:///{path}?synchronous=NORMAL", tools=[charge]) as rt:
        for number in range(6):
            _pay(rt, f"run-{number}", CALLS)
        assert _log_bytes(path) <= (WAL_PAGES_MAX["NORMAL"] + 1000) * FRAME_BYTES
        report = rt.verify()
        assert report.ok, str(report)


def test_how_often_it_is_copied_follows_the_pages_that_an_operation_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    store = SqliteStore(path, "NORMAL")
    with Runtime(store=store, tools=[charge]) as rt:
        _pay(rt, "run", CALLS)
        assert _wait_until(lambda: store._copy_after != COPY_FIRST)
        assert COPY_MIN < store._copy_after < COPY_MAX


def test_a_ledger_whose_log_is_being_copied_can_be_closed_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    for number in range(3):
        with Runtime(f"sqlite:///{path}?synchronous=NORMAL", tools=[charge]) as rt:
            _pay(rt, f"run-{number}", CALLS // 2)
    with Runtime(f"sqlite:///{path}", tools=[charge]) as rt:
        assert rt.verify().ok
        assert len(list(rt.runs())) == 3


KILLS = 6
PROGRAM = """
import sys
from amends import Runtime, tool

@tool(key="order")
def charge(order: str) -> str:
    with open(sys.argv[2], "a") as world:
        world.write(f"sent {order}\\n")
    return order

@charge.compensate
def refund(order: str) -> None: ...

with Runtime(f"sqlite:///{sys.argv[1]}?synchronous=NORMAL", tools=[charge]) as rt, rt.run(sys.argv[3]):
    for number in range(100_000):
        if number == int(sys.argv[4]):
            print("ready", flush=True)
        charge(order=f"{sys.argv[3]}-{number}")
        with open(sys.argv[2], "a") as world:
            world.write(f"told {sys.argv[3]}-{number}\\n")
"""


def test_a_process_that_is_killed_while_the_log_is_copied_loses_nothing_that_it_was_told(tmp_path: Path) -> None:
    """It writes all the time, so that a thread copies the log every few hundredths of a second."""
    path, world = tmp_path / "ledger.db", tmp_path / "world"
    for number in range(KILLS):
        args = [sys.executable, "-c", PROGRAM, str(path), str(world), f"run-{number}", str(CALLS)]
        with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
            assert program.stdout is not None
            assert program.stdout.readline() == b"ready\n"
            time.sleep(0.011 * number)  # where it is killed is left to chance
            program.kill()
    lines = [line.split() for line in world.read_text().splitlines()]
    sent = [order for what, order in lines if what == "sent"]
    told = {order for what, order in lines if what == "told"}
    assert len(sent) == len(set(sent)), "no order was sent twice"
    assert len(told) >= KILLS * CALLS, "enough that a thread copies the log in each of them"
    with Runtime(f"sqlite:///{path}", tools=[charge]) as rt:
        found = rt.verify()
        assert found.ok, str(found)
        calls = {call.args["order"]: call.state for number in range(KILLS) for call in rt.report(f"run-{number}").calls}
    assert set(sent) <= calls.keys(), "what was sent is in the record"
    assert {calls[order] for order in told} == {"succeeded"}
    assert len(calls) - sum(state == "succeeded" for state in calls.values()) <= KILLS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_process_that_forks_while_the_log_is_copied_goes_on_and_so_does_its_child(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with Runtime(f"sqlite:///{path}?synchronous=NORMAL", tools=[charge]) as rt:
        for number in range(3):
            _pay(rt, f"run-{number}", CALLS // 3)
            child = os.fork()
            if not child:
                try:
                    with Runtime(f"sqlite:///{path}?synchronous=NORMAL", tools=[charge]) as own:
                        _pay(own, f"child-{number}", 5)
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert rt.verify().ok
        assert len(list(rt.runs())) == 6
