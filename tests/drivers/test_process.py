"""What a process knows of itself and of others: which are dead, how long the host slept, and that a fork is another one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime, tool
from amends.drivers import process
from amends.drivers.blocking import Driver, Live
from amends.errors import LeaseLost, LedgerError, UsageError
from amends.ledger.leases import Lease
from amends.stores.memory import MemoryStore


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``hidepid`` the processes of other users have no place under /proc."""
    real = Path.read_text

    def hidden(self: Path, *args: Any, **kwargs: Any) -> str:
        if str(self) == "/proc/1/stat":
            raise FileNotFoundError(str(self))
        return real(self, *args, **kwargs)

    def not_yours(pid: int, number: int) -> None:
        raise PermissionError(pid)

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(os, "kill", not_yours)
    host = process.owner_name().rsplit("|", 2)[0]
    assert not process.is_dead(f"{host}|1|5")


LEASE_S = 30.0


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has a clock that counts sleep")
def test_a_lease_runs_out_while_the_host_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that was closed for an hour wakes up: another host has gone on with its run meanwhile."""
    asleep = [0.0]
    real = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: real(clock) + asleep[0])
    driver = Driver(MemoryStore(), Live(), LEASE_S)
    lease = Lease("u", "w", 1, LEASE_S, process.clocks().mono + LEASE_S)
    lease.check(driver.mono())
    asleep[0] = 3_600.0
    with pytest.raises(LeaseLost):
        lease.check(driver.mono())


def test_a_forked_child_is_not_the_owner_of_its_parents_run(tmp_path: Path) -> None:
    told = tmp_path / "told"

    @tool
    def reserve(n: int) -> int:
        with told.open("a") as file:
            file.write(f"reserve {n}\n")
        return n

    @reserve.compensate
    def release(n: int) -> None:
        with told.open("a") as file:
            file.write(f"release {n}\n")

    with Runtime(f"sqlite:///{tmp_path}/a.db", tools=[reserve]) as rt, rt.run("r") as run:
        reserve(n=1)
        pid = os.fork()
        if pid == 0:
            try:
                try:
                    reserve(n=2)
                except (UsageError, LedgerError) as error:
                    told.open("a").write(f"{type(error).__name__}\n")
                try:
                    run.commit()
                except (UsageError, LedgerError) as error:
                    told.open("a").write(f"{type(error).__name__}\n")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert run.state == "open"
        assert told.read_text() == "reserve 1\nNoRun\nNoRun\n"
