"""A real server process, and clients that behave badly."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from amends import AsyncRuntime, Runtime
from amends.cli.serve import _tell
from amends.serve import Limits, app
from amends.serve.server import address, bind, serve
from amends.stores.sqlite.store import SqliteStore
from tests.serve.shop import SECRET, access, as_, served

APP = """
from amends import Runtime, tool

@tool(key="order")
def charge(order: str, cents: int) -> str:
    with open({book!r}, "a") as book:
        book.write(f"{{order}} {{cents}}\\n")
    return f"ch_{{order}}"

@charge.compensate
def refund(order: str) -> None:
    with open({book!r}, "a") as book:
        book.write(f"{{order}} refunded\\n")

def shopper(run):
    return run.answer("charge", {{"order": run.id, "cents": 5}}).value

async def courier(run):
    return (await run.answer("charge", {{"order": run.id, "cents": 7}})).value

rt = Runtime({url!r}, tools=[charge], agents={{"shopper": shopper, "courier": courier}}, lease=2.0)
"""


@contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    command = [sys.executable, "-m", "amends", "serve", "app.py:rt", "--port", "0", "--json", *options]
    env = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            assert line, started.stderr.read() if started.stderr else ""
            yield started, json.loads(line)
        finally:
            started.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP.format(book=str(tmp_path / "book"), url=f"sqlite:///{tmp_path}/l.db"))
    (tmp_path / "book").touch()
    return tmp_path


def token(folder: Path) -> str:
    with Runtime(f"sqlite:///{folder}/l.db") as rt:
        made = rt.create_token("bot", scopes="agent", agent="shopper", by="me", why="test")
    assert made.text
    return made.text


@pytest.mark.rest
def test_a_real_server_serves_bears_bad_clients_and_stops_cleanly(folder: Path) -> None:
    bot = {"Authorization": f"Bearer {token(folder)}"}
    with process(folder) as (server, said), httpx.Client(base_url=said["url"], headers=bot) as client:
        assert said["pid"] == server.pid
        place = (httpx.URL(said["url"]).host, httpx.URL(said["url"]).port)
        half = socket.create_connection(place)
        half.sendall(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n")
        head = "".join(f"{name}: {value}\r\n" for name, value in bot.items())
        cut = socket.create_connection(place)
        cut.sendall(f"POST /v1/runs HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 100\r\n\r\n{{".encode())
        cut.close()
        assert client.post("/v1/runs", json={"id": "r"}).status_code == 201
        large = client.post("/v1/runs", content=(b" " * (1 << 20) for _ in range(100)))
        assert large.status_code == 413
        call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
        assert client.post("/v1/runs/r/calls", json=call).json()["status"] == "done"
        assert client.post("/v1/runs/r/commit").json()["run"]["state"] == "committed"
        [run] = client.get("/v1/runs").json()["items"]
        assert run["id"] == "r"
        half.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert (folder / "book").read_text() == "1 5\n"


def test_a_real_server_starts_and_replays_agents_of_both_colours(folder: Path) -> None:
    with Runtime(f"sqlite:///{folder}/l.db") as rt:
        made = rt.create_token("olga", scopes="operator", by="me", why="test")
    with process(folder) as (_, said), httpx.Client(base_url=said["url"], timeout=30) as client:
        client.headers["Authorization"] = f"Bearer {made.text}"
        for agent in ("shopper", "courier"):
            run = f"of-{agent}"
            started = client.post(f"/v1/agents/{agent}/start", json={"id": run, "wait": 20})
            assert started.status_code == 200, started.text
            assert client.get(f"/v1/runs/{run}").json()["output"] == f"ch_{run}"
            begun = client.post(f"/v1/agents/{agent}/replay", json={"runs": [run]})
            until = time.monotonic() + 20
            while (work := client.get(begun.headers["location"]).json())["state"] == "running":
                assert time.monotonic() < until
            [found] = work["result"]["replayed"]
            assert (found["how"], found["calls"]) == ("same", 1), found
    assert (folder / "book").read_text() == "of-shopper 5\nof-courier 7\n"


@pytest.mark.rest
def test_a_run_goes_on_through_the_next_server_after_kill_9(folder: Path) -> None:
    bot = {"Authorization": f"Bearer {token(folder)}"}
    call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
    with process(folder) as (server, said), httpx.Client(base_url=said["url"], headers=bot) as client:
        client.post("/v1/runs", json={"id": "r"})
        assert client.post("/v1/runs/r/calls", json=call).json()["status"] == "done"
        server.kill()
        server.wait(20)
    with process(folder) as (_, said), httpx.Client(base_url=said["url"], headers=bot) as client:
        again = client.post("/v1/runs/r/calls", json=call)
        assert (again.json()["status"], again.headers["idempotent-replayed"]) == ("replayed", "true")
        assert client.post("/v1/runs/r/commit").json()["run"]["state"] == "committed"
    assert (folder / "book").read_text() == "1 5\n"


@pytest.mark.rest
@pytest.mark.parametrize(
    "options, words",
    [
        (["--port", "PORT"], "nothing can be served on 127.0.0.1"),
        (["--host", "0.0.0.0"], "nobody has a token yet"),
        (["--app", "other.py:rt"], "two runtimes"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(folder: Path, options: list[str], words: str) -> None:
    from amends import Runtime

    with Runtime(f"sqlite:///{folder}/l.db"):
        pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = [str(taken.getsockname()[1]) if one == "PORT" else one for one in options]
        command = [sys.executable, "-m", "amends", "serve", "app.py:rt", "--port", "0", *given]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr.replace("\n", " ")


@pytest.mark.rest
def test_a_missing_ledger_is_named(folder: Path) -> None:
    command = [sys.executable, "-m", "amends", "serve", "app.py:rt", "--port", "0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "no ledger at" in done.stderr


def test_a_real_server_bears_bad_clients_and_stops_when_it_is_told_to() -> None:
    """The limit on the head of a request is the server's own: uvicorn has none."""

    async def main() -> None:
        listening = bind("127.0.0.1", 0)
        limits = Limits(head_s_max=0.3, body_bytes_max=1 << 16)
        rt = AsyncRuntime("memory:")
        service = app(rt, access=access, secrets=SECRET, limits=limits, worker=False)
        going = asyncio.create_task(serve(service, listening))
        place = httpx.URL(address(listening))
        reader, writer = await asyncio.open_connection(place.host, place.port)
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
            async with httpx.AsyncClient(base_url=place, headers=as_("agent")) as client:
                assert (await client.post("/v1/runs", json={"id": "a/b"})).status_code == 201

                async def endless() -> AsyncIterator[bytes]:
                    for _ in range(1_600):
                        yield b" " * (1 << 16)

                assert (await client.post("/v1/runs", content=endless())).status_code == 413
                assert (await client.post("/v1/runs/a%2Fb/commit")).json()["run"]["state"] == "committed"
                assert len((await client.get("/v1/runs")).json()["items"]) == 1
                follows = {"Accept": "text/event-stream"}
                async with client.stream("GET", "/v1/events?run=a%2Fb", headers=follows) as stream:
                    async for line in stream.aiter_lines():
                        if line.startswith("id: "):
                            break
                    assert service.streams == 1
            async with asyncio.timeout(10):
                while service.streams:  # the client went away
                    await asyncio.sleep(0.01)
            assert (await asyncio.wait_for(reader.read(), 10)).startswith(b"HTTP/1.1 408")
            assert await _told_of_a_head_without_end(place) == (431, "HeadTooLarge")
        finally:
            writer.close()
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(going, 20)
            await rt.close()

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is before


async def _told_of_a_head_without_end(place: httpx.URL) -> tuple[int, str]:
    """Send headers until the server says no; return its status and code."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    sent, limit = 0, Limits().head_bytes_max
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n")
    answer = asyncio.ensure_future(reader.readuntil(b"}"))
    while not answer.done():
        line = b"X-%d: %b\r\n" % (sent, b"b" * 1_000)
        sent += len(line)
        assert sent < 100 * limit, "the server takes as much as a client sends"
        writer.write(line)
        await writer.drain()
        await asyncio.sleep(0)
    writer.close()
    head, _, body = (await answer).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["code"]


@pytest.mark.rest
@pytest.mark.parametrize("missing", ["uvicorn", "starlette"])
def test_a_missing_extra_is_named(folder: Path, missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from amends.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "serve", "app.py:rt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert missing in done.stderr
    assert "amends[serve]" in done.stderr


@pytest.mark.rest
def test_the_service_on_postgresql(postgres_url: str) -> None:
    with served(postgres_url, colour=AsyncRuntime) as (client, _, world):
        bot = as_("agent")
        call = {"tool": "charge", "args": {"order": "1", "cents": 5}}
        assert client.post("/v1/runs", json={"id": "r"}, headers=bot).status_code == 201
        assert client.post("/v1/runs/r/calls", json=call, headers=bot).json()["status"] == "done"
        other = {"tool": "charge", "args": {"order": "2", "cents": 5}}
        claim = client.post("/v1/runs/r/claims", json=other, headers=bot).json()
        said = {"token": claim["token"], "result": "ch_2"}
        assert client.post(f"/v1/claims/{claim['call']}/succeed", json=said, headers=bot).json()["state"] == "succeeded"
        page = client.get("/v1/calls", params={"limit": 1}, headers=bot).json()
        rest = client.get("/v1/calls", params={"limit": 1, "after": page["next"]}, headers=bot).json()
        assert [one["args"]["order"] for one in page["items"] + rest["items"]] == ["2", "1"]
        assert client.get("/v1/calls", params={"after": "nonsense"}, headers=bot).status_code == 200
        assert (
            client.post("/v1/runs/r/rollback", json={"why": "x"}, headers=bot).json()["run"]["state"] == "rolled_back"
        )
        assert world.charges == {}


def test_the_first_line_names_the_ledger_that_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Runtime("sqlite:///other.db", store=SqliteStore(tmp_path / "real.db")) as rt:
        _tell(rt.as_async(), "http://127.0.0.1:1", "", as_json=True)
        told = json.loads(capsys.readouterr().out)["ledger"]
        with rt.run("r"):
            pass
        assert told == rt.report("r").ledger
    assert told.endswith("/real.db")
