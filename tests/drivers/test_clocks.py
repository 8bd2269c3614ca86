"""Clocks that are set while people and processes rely on them: real processes on SQLite, and virtual time."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from amends import Held, Runtime, tool
from amends.errors import ApprovalVoid, Busy
from amends.testing.runtime import TestRuntime

LEASE_S = 3.0

OTHER = """
import sys, time
from amends import Runtime, tool
from amends.errors import Busy
from amends.stores.sqlite.store import SqliteStore
import amends.drivers.process as process

jump = float(sys.argv[2])
process.clocks.__globals__["time"] = type("Clock", (), {
    "time": staticmethod(lambda: time.time() + jump), "monotonic": time.monotonic, "time_ns": time.time_ns,
    "clock_gettime": time.clock_gettime, "CLOCK_BOOTTIME": time.CLOCK_BOOTTIME,
})
made = SqliteStore.__init__
def set_forward(self, path, *args, **options):
    made(self, path, *args, **{**options, "clock": lambda: time.time() + jump})
SqliteStore.__init__ = set_forward

@tool(key="order")
def pay(order: str) -> str:
    with open(sys.argv[1] + ".paid", "a") as file:
        file.write("other\\n")
    return order

@pay.compensate
def back(result: str) -> None: ...

rt = Runtime(f"sqlite:///{sys.argv[1]}", tools=[pay], lease=3.0, wait=0.2, checkpoint="off")
for _ in range(2):
    try:
        with rt.run("order-1"):
            pay(order="1")
        print("taken")
    except Busy:
        print("busy")
    rt.recover()
rt.close()
"""


@pytest.mark.parametrize("jump", [3_600.0, 86_400.0 * 400])
def test_a_process_whose_clock_is_ahead_takes_no_run_from_a_living_owner(tmp_path: Path, jump: float) -> None:
    ledger, program = tmp_path / "ledger.db", tmp_path / "other.py"
    program.write_text(textwrap.dedent(OTHER), encoding="utf-8")
    paid = Path(f"{ledger}.paid")

    @tool(key="order")
    def pay(order: str) -> str:
        # While this body runs, another process of this host looks at the run with a clock that was set forward.
        said = subprocess.run(
            [sys.executable, str(program), str(ledger), str(jump)], capture_output=True, text=True, check=True
        ).stdout.split("\n")
        assert said[:2] == ["busy", "busy"], said
        with paid.open("a", encoding="utf-8") as file:
            file.write("owner\n")
        return order

    @pay.compensate
    def back(result: str) -> None: ...

    with Runtime(f"sqlite:///{ledger}", tools=[pay], lease=LEASE_S, checkpoint="off") as rt:
        with rt.run("order-1"):
            pay(order="1")
        assert rt.report("order-1").state == "committed"
        assert "taken over" not in [event.what for event in rt.events()]
    assert paid.read_text(encoding="utf-8") == "owner\n"


def test_what_a_dead_owner_left_is_taken_over_although_the_clock_was_set_back(tmp_path: Path) -> None:
    """Its process is not proved dead here: only its lease, on the monotonic clock, and silence say so."""
    from amends.drivers.process import boot_id, mono
    from amends.ledger.operations import OpenRun
    from amends.stores.sqlite.store import SqliteStore

    past = SqliteStore(tmp_path / "ledger.db")
    past.open(create=True)
    past.perform(OpenRun("run_1", "order-1", "", "elsewhere|x|y|1|0", "opn", 0.2, "", "", boot_id(), mono()))
    past.close()
    back = SqliteStore(tmp_path / "ledger.db", clock=lambda: time.time() - 3_600.0)
    rt = Runtime("memory:", wait=60.0, checkpoint="off")
    rt._host.store = rt._driver.store = back
    with rt.run("order-1"):
        pass
    rt.close()


@tool(kind="pivot", needs_approval=True)
def wire(cents: int) -> str:
    return f"sent {cents}"


def test_what_has_expired_stays_expired_when_the_clock_is_set_back() -> None:
    rt = TestRuntime(tools=[wire])
    beside = rt.open("beside", recover="wait")
    with pytest.raises(Held), rt.run("r"):
        wire(cents=1)
    [asked] = rt.approvals()
    rt.clock.advance(86_400 * 2)  # nothing happens but heartbeats of the run beside it
    rt.clock.jump(-86_400 * 2)
    with pytest.raises(ApprovalVoid) as void:
        rt.approve(asked.id, digest=asked.digest, by="anna")
    assert void.value.why == "expired"
    beside.commit()


def test_a_clock_that_is_set_forward_gives_nobody_a_run_in_virtual_time() -> None:
    rt = TestRuntime(tools=[wire])
    other = TestRuntime(tools=[wire], store=rt._memory, clock=rt.clock, wait=1.0)
    run = rt.open("r")
    rt.clock.jump(3_600)
    with pytest.raises(Busy), other.run("r"):
        pass
    assert list(other.recover()) == []
    rt.clock.advance(120)
    with pytest.raises(Busy), other.run("r"):
        pass
    run.commit()
    assert rt.report("r").state == "committed"


@pytest.mark.parametrize("worker", [False, True])
def test_what_died_on_another_host_is_taken_over_although_the_clock_was_set_back(
    tmp_path: Path, *, worker: bool
) -> None:
    """Ledger time stands still until the clock has caught up: it must not be what the silence is measured with."""
    from amends.ledger.operations import OpenRun
    from amends.stores.sqlite.store import SqliteStore

    past = SqliteStore(tmp_path / "ledger.db")
    past.open(create=True)
    past.perform(OpenRun("run_1", "order-1", "", "elsewhere|x|y|1|0", "opn", 0.2, "", "", "another boot", 1e9))
    past.close()
    back = SqliteStore(tmp_path / "ledger.db", clock=lambda: time.time() - 3_600.0)
    rt = Runtime("memory:", wait=60.0, checkpoint="off")
    rt._host.store = rt._driver.store = back
    until = time.monotonic() + 60.0
    if worker:
        while rt.report("order-1").state == "open" and time.monotonic() < until:
            list(rt.recover())
        assert rt.report("order-1").state == "rolled_back"
    else:
        with rt.run("order-1"):
            pass
    rt.close()
