"""The client against the application in process, mounted under a path, and against a real server process."""

import asyncio
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from amends import RolledBack, RunBlocked, Runtime
from amends.client import AsyncClient, Client
from amends.serve import app
from tests.client.shop import Both
from tests.serve.shop import SECRET, World, access, tools_of
from tests.serve.test_server import folder, process, token  # noqa: F401 (folder is a fixture)


def test_the_application_in_process_needs_no_socket() -> None:
    world = World()
    with Runtime("memory:", tools=tools_of(world)) as rt:
        service = Starlette(routes=[Mount("/amends", app=app(rt, access=access, secrets=SECRET))])
        with TestClient(service) as http:
            client = Client("http://testserver/amends", token="agent", http=http)
            with client.run("r") as run:
                assert run.call("charge", order="1", cents=5) == "ch_1"
            client.close()
            assert client.report("r").state == "committed"  # what was given to the client stays open


def test_the_application_in_process_on_a_loop() -> None:
    async def main(rt: Runtime) -> str:
        transport = httpx.ASGITransport(app=app(rt, access=access, secrets=SECRET, worker=False))
        async with httpx.AsyncClient(transport=transport) as http:
            async with AsyncClient("http://service", token="agent", http=http) as client:
                async with client.run("r") as run:
                    assert await run.call("charge", order="1", cents=5) == "ch_1"
                return (await client.report("r")).state

    with Runtime("memory:", tools=tools_of(World())) as rt:
        assert asyncio.run(main(rt)) == "committed"


def test_an_exception_after_the_pivot_is_raised_and_the_run_is_blocked(
    shop: tuple[str, World], both: Both, name: str
) -> None:
    client = both.client(shop[0], "agent")
    with pytest.raises(ValueError, match="late") as late:
        with both.block(client.run(name)) as run:
            attempt = both.do(run.begin("ship", {"n": name}, kind="pivot"))
            both.do(attempt.succeed("s"))
            raise ValueError("late")
    assert late.value.__notes__ == [f"amends: run {name} has pivoted and was interrupted; open it again or finish it"]
    assert (run.state, both.do(client.info(name)).state) == ("blocked", "blocked")
    assert both.do(both.client(shop[0]).finish(name, why="it is complete")).state == "committed"


def test_a_rollback_that_cannot_be_finished_is_raised_from_the_exception(
    shop: tuple[str, World], both: Both, name: str
) -> None:
    client = both.client(shop[0], "agent")
    with pytest.raises(RunBlocked) as blocked:
        with both.block(client.run(name, wait=0.1)) as run:
            attempt = both.do(run.begin("ship", {"n": name}, kind="pivot"))
            both.do(attempt.doubt("the line was cut"))
            raise ValueError("late")
    assert isinstance(blocked.value.__cause__, ValueError)


def test_a_cancelled_block_is_still_rolled_back(shop: tuple[str, World], name: str) -> None:
    async def main() -> str:
        async with AsyncClient(shop[0], token="agent") as client:
            began = asyncio.Event()

            async def work() -> None:
                async with client.run(name) as run:
                    await run.call("charge", order=name, cents=1)
                    began.set()
                    await asyncio.sleep(60)

            going = asyncio.create_task(work())
            await began.wait()
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            return (await client.report(name)).state

    assert asyncio.run(main()) == "rolled_back"


# ---- Real processes

WORKER = """
import sys, time
from amends import tool, current_call, Happened, Absent
from amends.client import Client

BOOK = {book!r}

@tool(key="n")
def ship(n: int) -> str:
    with open(BOOK, "a") as book:
        book.write(f"shipped {{n}} {{current_call().key}}\\n")
    if n == 2:
        print("sent", flush=True)
        time.sleep(60)
    return f"s_{{n}}"

@ship.compensate
def back(n: int, result: str) -> None:
    with open(BOOK, "a") as book:
        book.write(f"back {{n}} {{result}}\\n")

@ship.probe
def look(n: int):
    return Happened(f"s_{{n}}") if f"shipped {{n}} " in open(BOOK).read() else Absent()

worker = Client({url!r}, token=sys.argv[1]).worker([ship], lease=1.0, wait=1.0)
print("ready", flush=True)
worker.run()
"""


def scoped(place: Path, scope: str) -> str:
    with Runtime(f"sqlite:///{place}/l.db") as rt:
        made = rt.create_token(scope, scopes=scope, by="me", why="test")
    assert made.text
    return made.text


@pytest.mark.rest
def test_a_worker_process_that_is_killed_leaves_a_doubt_and_the_next_one_settles_it(folder: Path) -> None:  # noqa: F811
    bot, work = token(folder), scoped(folder, "worker")
    with process(folder) as (_, said), Client(said["url"], token=bot, patience=30.0) as client:
        (folder / "w.py").write_text(WORKER.format(book=str(folder / "book"), url=said["url"]))

        def started() -> subprocess.Popen[str]:
            made = subprocess.Popen([sys.executable, "w.py", work], cwd=folder, stdout=subprocess.PIPE, text=True)
            assert made.stdout is not None
            assert made.stdout.readline() == "ready\n"
            return made

        first = started()
        second: subprocess.Popen[str] | None = None
        try:
            run = client.open("r", recover="wait", client_lease=60)
            assert run.call("ship", n=1) == "s_1"
            asked = Both(is_async=False)
            with ThreadPoolExecutor(1) as pool:
                going = pool.submit(lambda: asked.client(said["url"], bot, patience=60.0).open("r").call("ship", n=2))
                assert first.stdout is not None
                assert first.stdout.readline() == "sent\n"
                first.kill()
                first.wait(20)
                second = started()
                assert going.result(60) == "s_2"  # its probe found it: nobody shipped it again
            asked.close()
            with pytest.raises(RolledBack) as back:
                run.rollback("not wanted")
            assert back.value.report.state == "rolled_back"
        finally:
            for one in (first, second):
                if one is not None:
                    one.kill()
                    one.wait(20)
                    assert one.stdout is not None
                    one.stdout.close()
    words = [line.split()[:2] for line in (folder / "book").read_text().splitlines()]
    assert words == [["shipped", "1"], ["shipped", "2"], ["back", "2"], ["back", "1"]]


@pytest.mark.rest
def test_a_block_goes_on_through_the_next_server_after_kill_9(folder: Path) -> None:  # noqa: F811
    bot = token(folder)
    port = 20_000 + os.getpid() % 20_000
    with process(folder, "--port", str(port)) as (server, said):
        client = Client(said["url"], token=bot, patience=30.0)
        block = client.run("r", client_lease=20)
        run = block.__enter__()
        assert run.call("charge", order="1", cents=5) == "ch_1"
        server.send_signal(signal.SIGKILL)
        server.wait(20)
    with process(folder, "--port", str(port)):
        assert run.call("charge", order="1", cents=5) == "ch_1"
        assert run.call("charge", order="2", cents=6) == "ch_2"
        block.__exit__(None, None, None)
        assert (run.state, client.report("r").state) == ("committed", "committed")
        client.close()
    assert (folder / "book").read_text() == "1 5\n2 6\n"
