"""A runtime, in both colours, and a worker, over a MariaDB ledger: with processes that are killed."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.errors import TooLarge
from amends.stores.mysql.store import TENANT_BYTES_MAX
from amends.worker import work
from tests.cli.command import environment
from tests.scenarios.processes import wait_until
from tests.world import die

done: list[str] = []


@tool(key="order")
def pay(order: str) -> str:
    done.append(f"paid {order}")
    return f"ch_{order}"


@pay.compensate
def refund(result: str) -> None:
    done.append(f"refunded {result}")


@tool(key="order")
async def pay_later(order: str) -> str:
    done.append(f"paid {order}")
    return f"ch_{order}"


@pay_later.compensate
async def refund_later(result: str) -> None:
    done.append(f"refunded {result}")


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


def test_a_run_commits_and_answers_from_its_record(mysql_url: str) -> None:
    with Runtime(mysql_url, tools=[pay]) as rt:
        for _ in range(2):
            with rt.run("order-1"):
                assert pay(order="1") == "ch_1"
        with pytest.raises(ZeroDivisionError), rt.run("order-2"):
            pay(order="2")
            raise ZeroDivisionError
        assert [(run.id, run.state) for run in rt.runs()] == [("order-2", "rolled_back"), ("order-1", "committed")]
    assert done == ["paid 1", "paid 2", "refunded ch_2"]


def test_an_async_run_commits_and_rolls_back(mysql_url: str) -> None:
    async def main() -> None:
        async with AsyncRuntime(mysql_url, tools=[pay_later]) as rt:
            for _ in range(2):
                async with rt.run("order-1"):
                    assert await pay_later(order="1") == "ch_1"
            with pytest.raises(ZeroDivisionError):
                async with rt.run("order-2"):
                    await pay_later(order="2")
                    raise ZeroDivisionError
            assert (await rt.report("order-2")).state == "rolled_back"

            async def one(number: int) -> None:
                async with rt.run(f"many-{number}"):
                    await pay_later(order=f"many {number}")

            await asyncio.gather(*(one(number) for number in range(24)))

    asyncio.run(main())
    assert done[:3] == ["paid 1", "paid 2", "refunded ch_2"]
    assert sorted(done[3:]) == sorted(f"paid many {number}" for number in range(24))


def test_many_threads_with_runs_of_their_own(mysql_url: str) -> None:
    with Runtime(mysql_url, tools=[pay]) as rt:

        def one(number: int) -> None:
            with rt.run(f"order-{number}"):
                pay(order=str(number))

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(48)))
        assert {run.state for run in rt.runs()} == {"committed"}
    assert sorted(done) == sorted(f"paid {number}" for number in range(48))


def test_a_tenant_that_is_too_long_runs_nothing(mysql_url: str) -> None:
    with Runtime(mysql_url, tools=[pay], tenant="t" * (TENANT_BYTES_MAX + 1)) as rt:
        with pytest.raises(TooLarge), rt.run("order-1"):
            pay(order="1")
    assert done == []


@pytest.mark.parametrize("make", [Runtime, AsyncRuntime])
def test_a_worker_takes_over_what_was_left(mysql_url: str, make: type[Runtime]) -> None:
    with closing(Runtime(mysql_url, tools=[pay])) as left:
        run = left.open("order-1")
        run.call(pay, order="1")
        die(run)
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(make(mysql_url, tools=[pay]),), kwargs={"every": 0.01, "stop": stop})
    thread.start()
    with Runtime(mysql_url) as rt:
        wait_until(lambda: rt.report("order-1").state == "rolled_back")
    stop.set()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert done == ["paid 1", "refunded ch_1"]


PROGRAM = """
    import os, signal
    from amends import Absent, Happened, Runtime, tool

    def say(word):
        with open("said.txt", "a", encoding="utf-8") as file:
            file.write(word + "\\n")

    @tool(key="order")
    def pay(order: str) -> str:
        say(f"paid {order}")
        if os.environ.get("DIE"):
            os.kill(os.getpid(), signal.SIGKILL)
        return f"ch_{order}"

    @pay.compensate
    def refund(result: str) -> None:
        say(f"refunded {result}")

    @pay.probe
    def find(order: str):
        with open("said.txt", encoding="utf-8") as file:
            return Happened(f"ch_{order}") if f"paid {order}" in file.read() else Absent()

    rt = Runtime(os.environ["LEDGER"], tools=[pay], lease=5)

    if __name__ == "__main__":
        with rt.run("order-1"):
            pay(order="1")
"""


def test_the_worker_of_the_command_line_takes_back_what_a_killed_process_left(mysql_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    given = environment(LEDGER=mysql_url)
    given["PYTHONPATH"] += f"{os.pathsep}{tmp_path}"
    killed = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, env=given | {"DIE": "1"}, check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    command = [sys.executable, "-m", "amends", "worker", "shop:rt"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=given, stderr=subprocess.PIPE, text=True)
    try:
        with Runtime(mysql_url) as rt:
            wait_until(lambda: rt.report("order-1").state == "rolled_back")
    finally:
        worker.send_signal(signal.SIGTERM)
        _, told = worker.communicate(timeout=60)
    assert worker.returncode == 0, told
    assert (tmp_path / "said.txt").read_text(encoding="utf-8") == "paid 1\nrefunded ch_1\n"
