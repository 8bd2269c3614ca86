"""The pipes of the gateway: lines, a server that is asked directly, and the client of a process."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, REQUEST_TIMEOUT

from amends.gateway.stdio import FIRST_ID, Lines, NotSent, Reading, ServerPipe, TooLong, server_pipe
from tests.adapters.loops import on_a_loop
from tests.gateway.desk import Desk

SERVER = [sys.executable, str(Path(__file__).with_name("plain_server.py"))]
LINE_BYTES_MAX = 10_000


@asynccontextmanager
async def piped(ended: list[str] | None = None) -> AsyncIterator[ServerPipe]:
    seen = [] if ended is None else ended
    async with server_pipe(
        SERVER, env=None, cwd=None, line_bytes_max=LINE_BYTES_MAX, ended=lambda: seen.append("ended")
    ) as pipe:
        yield pipe


async def ask(pipe: ServerPipe, method: str, timeout_s: float = 20, report: Any = None, **params: Any) -> Any:
    said, _ = await pipe.request(method, params, timeout_s=timeout_s, report=report)
    return said


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
def test_lines_are_the_same_however_the_bytes_arrive(piece: int) -> None:
    text = 'one\n\n{"a":"ä"}\nlast'.encode()
    lines = Lines(100)
    found = [line for at in range(0, len(text), piece) for line in lines.feed(text[at : at + piece])]
    assert found == [b"one", b"", '{"a":"ä"}'.encode()]


def test_a_line_may_have_so_many_bytes_and_no_more() -> None:
    assert Lines(4).feed(b"1234\n1234") == [b"1234"]
    for pieces in ([b"12345"], [b"12345\n"], [b"123", b"45"], [b"1\n12345"], [b"123", b"45\n"]):
        lines = Lines(4)
        with pytest.raises(TooLong):
            for piece in pieces:
                lines.feed(piece)


@on_a_loop
async def test_an_answer_an_error_and_an_id_that_became_a_text_reach_whoever_asked() -> None:
    async with piped() as pipe:
        said = await asyncio.gather(*(ask(pipe, "echo", number=number) for number in range(50)))
        assert [one["params"]["number"] for one in said] == list(range(50))
        assert await ask(pipe, "as_text", word="ä\n") == {"params": {"word": "ä\n"}}
        with pytest.raises(MCPError) as refused:
            await ask(pipe, "refuse")
        assert (refused.value.code, refused.value.error.data) == (INVALID_PARAMS, 7)


@on_a_loop
async def test_progress_is_reported_and_a_reporter_that_fails_harms_nobody() -> None:
    heard: list[Any] = []

    async def report(*said: Any) -> None:
        heard.append(said)
        raise RuntimeError("the client is gone")

    async with piped() as pipe:
        assert await ask(pipe, "progress", report=report) == {}
        while not heard:
            await asyncio.sleep(0)
    assert heard == [(1.0, 2.0, None)]


@on_a_loop
async def test_what_was_said_before_an_answer_is_heard_before_it() -> None:
    """A line of a log goes to whoever has a call at work, so it must be passed on before the call is over."""
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    async def session(pipe: ServerPipe) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for message in pipe.reading:
                tasks.create_task(hear(message))

    async with piped() as pipe:
        reading = asyncio.ensure_future(session(pipe))
        for number in range(20):
            await ask(pipe, "log")
            assert len(heard) == number + 1
    await reading


@on_a_loop
async def test_what_is_no_answer_is_left_to_the_session_and_the_call_waits_on() -> None:
    async with piped() as pipe:
        assert await ask(pipe, "nonsense") == {"after": "nonsense"}
        left = [await pipe.reading.receive() for _ in range(3)]
        assert all(isinstance(one, Exception) for one in left)


@on_a_loop
async def test_a_server_is_told_of_a_request_for_which_nobody_waits_any_more() -> None:
    async with piped() as pipe:
        with pytest.raises(MCPError) as late:
            await ask(pipe, "silent", timeout_s=0.05)
        assert late.value.code == REQUEST_TIMEOUT
        waiting = asyncio.ensure_future(ask(pipe, "silent"))
        await ask(pipe, "echo")  # sent after the other one
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        told = [await pipe.reading.receive() for _ in range(2)]
    assert [one.message.params["cancelled"] for one in told] == [FIRST_ID, FIRST_ID + 2]  # type: ignore[union-attr, index]


@on_a_loop
async def test_a_server_that_dies_leaves_a_doubt_and_is_asked_nothing_more() -> None:
    ended: list[str] = []
    async with piped(ended) as pipe:
        waiting = asyncio.ensure_future(ask(pipe, "silent"))
        await ask(pipe, "echo")
        for asked in (ask(pipe, "die"), waiting):
            with pytest.raises(MCPError) as lost:
                await asked
            assert lost.value.code == CONNECTION_CLOSED
        with pytest.raises(NotSent):
            await ask(pipe, "echo")
        with pytest.raises(StopAsyncIteration):
            await pipe.reading.__anext__()
    assert ended == ["ended"]


@on_a_loop
async def test_the_last_answer_of_a_server_that_ends_is_read() -> None:
    for _ in range(5):
        async with piped() as pipe:
            assert await ask(pipe, "last_words") == {"last": True}


@on_a_loop
async def test_a_line_that_is_too_long_ends_the_connection() -> None:
    ended: list[str] = []
    async with piped(ended) as pipe:
        with pytest.raises(MCPError) as lost:
            await ask(pipe, "long", bytes=LINE_BYTES_MAX + 1)
        assert lost.value.code == CONNECTION_CLOSED
    assert ended == ["ended"]


@on_a_loop
async def test_reading_is_held_while_nobody_takes_what_has_arrived() -> None:
    held: list[bool] = []
    reading = Reading(held.append)
    for _ in range(300):
        reading.put(ValueError())
    assert held == [True]
    for _ in range(300):
        await reading.receive()
    assert held == [True, False]


@pytest.mark.parametrize("is_file", [False, True])
@on_a_loop
async def test_the_gateway_answers_over_pipes_and_over_files(tmp_path: Path, *, is_file: bool) -> None:
    """A shell may redirect both from and to files, which an event loop cannot wait for."""
    desk = Desk(tmp_path)
    desk.add("one", [sys.executable, "-m", "tests.gateway.lying_server", "honest"], env={"PYTHONPATH": "src:."})
    started = desk.parameters()
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}) + "\n"
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(asked)
    with source.open() as entry, target.open("w") as output:
        process = await asyncio.create_subprocess_exec(
            started.command, *started.args, env=started.env, stderr=asyncio.subprocess.DEVNULL,
            stdin=entry if is_file else asyncio.subprocess.PIPE,
            stdout=output if is_file else asyncio.subprocess.PIPE,
        )  # fmt: skip
        if is_file:
            assert await asyncio.wait_for(process.wait(), 60) == 0
            lines = target.read_text().splitlines()
        else:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(asked.encode())
            lines = [(await asyncio.wait_for(process.stdout.readline(), 60)).decode()]
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), 60) == 0
    assert [json.loads(line)["id"] for line in lines] == [1]


@on_a_loop
async def test_a_process_that_does_not_end_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    mark = tmp_path / "pids"
    script = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(mark)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    async with server_pipe(
        [sys.executable, "-c", script], env=None, cwd=None, line_bytes_max=LINE_BYTES_MAX, ended=lambda: None
    ) as pipe:
        assert isinstance(await asyncio.wait_for(pipe.reading.receive(), 30), Exception)
    process, _child = map(int, mark.read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@on_a_loop
async def test_without_process_groups_the_process_itself_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no process groups."""
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr("amends.gateway.stdio.END_S", 0.5)
    script = (
        "import signal, os, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        'print(\'{"jsonrpc": "2.0", "method": "notifications/pid", "params": {"pid": %d}}\' % os.getpid(), flush=True)\n'
        "time.sleep(600)\n"
    )
    async with server_pipe(
        [sys.executable, "-c", script], env=None, cwd=None, line_bytes_max=LINE_BYTES_MAX, ended=lambda: None
    ) as pipe:
        await asyncio.wait_for(pipe.reading.receive(), 30)
        assert pipe._process is not None
        process = pipe._process.get_pid()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
