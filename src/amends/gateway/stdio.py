"""Messages over standard input and output, to the client of the gateway and to the servers that it starts.

The SDK's own streams pass each message through several tasks and threads, which costs more than all the rest of a short
call. These read and write on the event loop, and are otherwise the same to the SDK: a stream of messages to read, and one
to write. A server of the protocol with connections is also asked directly (``ServerPipe.request``); all else that it says
goes to the session of the SDK.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import anyio
from mcp import MCPError
from mcp.client.stdio import get_default_environment
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, jsonrpc_message_adapter
from opentelemetry import propagate, trace
from pydantic_core import from_json

from amends.visible import visible_log

log = visible_log("amends.gateway")
Report = Callable[[float, float | None, str | None], Awaitable[None]]
UNREAD_MAX: Final = 256
"""How many messages wait to be read before no more are taken from the other side."""
FIRST_ID: Final = 1 << 30
"""Ids of direct requests begin here; the session of the SDK counts from 1."""
END_S: Final = 2.0
"""How long a server has to end after its input was closed, and then after SIGTERM."""
FLUSH_S: Final = 5.0
"""How long the last messages to a client may take."""
LAST_WORDS_S: Final = 0.5
"""How long a server that has closed its input may go on answering."""
NOTE_BYTES_MAX: Final = 16_384
"""A longer line of a server's standard error is shown in parts."""
POLL_S: Final = 0.01
HEARD_TURNS: Final = 10
"""How many turns of the event loop the session has to pass on a message that it has taken."""
HEARD_TURNS_MAX: Final = 1_000
"""How many turns it has to take what has arrived."""


class TooLong(ConnectionError):
    """What a server says is longer than it may be. What it did is not known here."""


class NotSent(ConnectionError):
    """A request was not sent, because nobody reads it any more."""


class Lines:
    """Bytes that arrive in pieces, cut into lines; raise ``TooLong`` for one that is too long."""

    def __init__(self, bytes_max: int | None) -> None:
        self._bytes_max, self._open, self._open_bytes = bytes_max, list[bytes](), 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete now, without their ends."""
        if b"\n" not in data:
            self._keep(data)
            return []
        *lines, rest = data.split(b"\n")
        if self._open:
            lines[0] = b"".join((*self._open, lines[0]))
        self._open, self._open_bytes = [], 0
        if self._bytes_max is not None and any(len(line) > self._bytes_max for line in lines):
            self._refuse()
        self._keep(rest)
        return lines

    def _keep(self, data: bytes) -> None:
        if data:
            self._open.append(data)
            self._open_bytes += len(data)
        if self._bytes_max is not None and self._open_bytes > self._bytes_max:
            self._refuse()

    def _refuse(self) -> None:
        raise TooLong(f"a line has more than {self._bytes_max:,} bytes")


class Reading:
    """The messages that have arrived: a stream as the SDK reads it. ``hold``: told when to stop and go on reading."""

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._items: deque[SessionMessage | Exception] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_over, self._is_held, self._hold = False, False, hold

    def put(self, item: SessionMessage | Exception) -> None:
        """Add a message."""
        if self._is_over:
            return
        self._items.append(item)
        if len(self._items) >= UNREAD_MAX and not self._is_held:
            self._is_held = True
            self._hold(True)
        self._wake()

    def end(self) -> None:
        """Say that nothing more comes."""
        self._is_over = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_empty(self) -> bool:
        """Whether all that has arrived was taken."""
        return not self._items

    async def __anext__(self) -> SessionMessage | Exception:
        while not self._items:
            if self._is_over:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._items.popleft()
        if self._is_held and not self._items:
            self._is_held = False
            self._hold(False)
        return item

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message; raise ``anyio.EndOfStream``."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    def __aiter__(self) -> Reading:
        return self

    async def aclose(self) -> None:
        """Take nothing more."""
        self._items.clear()
        self.end()

    async def __aenter__(self) -> Reading:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class Writing:
    """Where messages are written: a stream as the SDK writes it, over a pipe of the event loop."""

    def __init__(self) -> None:
        self.pipe: asyncio.WriteTransport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self.is_over = False

    def pause(self) -> None:
        """Let no more be written until ``go_on``."""
        self._may_write.clear()

    def go_on(self) -> None:
        """Let it be written again."""
        self._may_write.set()

    def end(self) -> None:
        """Note that nobody reads any more."""
        self.is_over = True
        self._may_write.set()

    async def ready(self) -> None:
        """Wait until the other side has read enough; raise ``anyio.BrokenResourceError`` if it reads no more."""
        if not self._may_write.is_set():
            await self._may_write.wait()
        if self.is_over or self.pipe is None or self.pipe.is_closing():
            raise anyio.BrokenResourceError

    def put(self, line: bytes) -> None:
        """Write a line now; one for which nobody waits any more is dropped."""
        if not self.is_over and self.pipe is not None and not self.pipe.is_closing():
            self.pipe.write(line + b"\n")

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message."""
        await self.ready()
        self.put(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async def aclose(self) -> None:
        """Write nothing more."""
        self.is_over = True

    async def __aenter__(self) -> Writing:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


class SharedWriting:
    """Where the session of the SDK writes, if it is not the only one: the pipe stays open when the session ends."""

    def __init__(self, writing: Writing) -> None:
        self._writing, self._is_closed = writing, False

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message."""
        if self._is_closed:
            raise anyio.ClosedResourceError
        await self._writing.send(item)

    async def aclose(self) -> None:
        """Write nothing more."""
        self._is_closed = True

    async def __aenter__(self) -> SharedWriting:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def message_in(line: bytes) -> SessionMessage | Exception:
    """Return the message in a line, or why there is none: the session decides what to do with it."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as problem:
        return problem


# ---- The client


class Taking(Protocol):
    """Takes messages of the client before the session does."""

    def write_to(self, writing: Writing) -> None:
        """Say where answers go."""

    def take(self, line: bytes) -> bool:
        """Take a message, or return False: it is for the session."""

    def stop(self) -> None:
        """Stop: the client sends nothing more."""


@asynccontextmanager
async def client_streams(direct: Taking) -> AsyncIterator[tuple[Any, Any]]:
    """Return the streams of the client of this process; ``direct`` takes some of its messages before.

    Meanwhile input is empty and output goes to the error output, so that nothing but messages reaches the client. Files and
    terminals are left to the SDK: the loop cannot wait for them, or would change them for others.
    """
    if not _are_pipes():
        async with stdio_server() as (read, write):
            yield read, write
        return
    loop = asyncio.get_running_loop()
    taken = [os.dup(0), os.dup(1)]
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.dup2(2, 1)
    os.close(empty)
    end = _ClientEnd(direct)
    try:
        end.read, _ = await loop.connect_read_pipe(lambda: _ClientInput(end), os.fdopen(os.dup(taken[0]), "rb", 0))
        end.writing.pipe, _ = await loop.connect_write_pipe(
            lambda: _ClientOutput(end), os.fdopen(os.dup(taken[1]), "wb", 0)
        )
        direct.write_to(end.writing)
        yield end.reading, SharedWriting(end.writing)
        end.writing.pipe.close()  # after what is still to be written
        try:
            await asyncio.wait_for(end.written.wait(), FLUSH_S)
        except TimeoutError:
            log.warning("the client did not take its last answers within %g s; they are lost", FLUSH_S)
    finally:
        for fd, one in enumerate(taken):
            os.set_blocking(one, True)
            os.dup2(one, fd)
            os.close(one)
        if end.read is not None:
            end.read.close()
        if end.writing.pipe is not None and not end.written.is_set():
            end.writing.pipe.abort()


def _are_pipes() -> bool:
    """Return whether the client is at the other end of two pipes or sockets that nothing else here uses."""
    try:
        kinds = [os.fstat(fd) for fd in (0, 1)]
        errors = os.fstat(2)
    except OSError:
        return False
    return all(
        (stat.S_ISFIFO(one.st_mode) or stat.S_ISSOCK(one.st_mode)) and not os.path.samestat(one, errors)
        for one in kinds
    )


class _ClientEnd:
    def __init__(self, direct: Taking) -> None:
        self.direct = direct
        self.read: asyncio.ReadTransport | None = None
        self.reading, self.writing, self.written = Reading(self._hold), Writing(), asyncio.Event()

    def _hold(self, is_held: bool) -> None:
        if self.read is not None and not self.read.is_closing():
            self.read.pause_reading() if is_held else self.read.resume_reading()


class _ClientInput(asyncio.Protocol):
    def __init__(self, end: _ClientEnd) -> None:
        self._end, self._lines = end, Lines(None)

    def data_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if not self._end.direct.take(line):
                self._end.reading.put(message_in(line))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.direct.stop()
        self._end.reading.end()


class _ClientOutput(asyncio.BaseProtocol):
    def __init__(self, end: _ClientEnd) -> None:
        self._end = end

    def pause_writing(self) -> None:
        self._end.writing.pause()

    def resume_writing(self) -> None:
        self._end.writing.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            log.warning("the client has gone without waiting for an answer")
        self._end.writing.end()
        self._end.written.set()
        self._end.reading.end()


# ---- A server


@dataclass(slots=True)
class _Request:
    answer: asyncio.Future[tuple[Mapping[str, Any], int]]
    report: Report | None


class ServerPipe(asyncio.SubprocessProtocol):
    """The process of a server, with its messages. ``ended`` is called once, as soon as it says nothing more.

    ``noted``: called with each line that it writes to standard error.
    """

    def __init__(
        self, *, line_bytes_max: int, ended: Callable[[], None], noted: Callable[[str], None] | None = None
    ) -> None:
        self._lines, self._ended = Lines(line_bytes_max), ended
        self._noted, self._note = noted, b""
        """The beginning of a line of standard error that has not ended yet."""
        self._is_quiet = noted is None
        self.reading, self.writing = Reading(self._hold), Writing()
        self._process: asyncio.SubprocessTransport | None = None
        self._requests: dict[int, _Request] = {}
        self._next_id = FIRST_ID
        self._passed = 0
        """How many messages the session got."""
        self._reports: set[asyncio.Task[None]] = set()
        self._is_over = False
        self.last_note = ""
        """The last line of standard error that is not empty: it often says why a server has ended."""

    # ---- What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport), "the loop has started a process"
        self._process = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._take_note(data)
            return
        try:
            for line in self._lines.feed(data):
                self._take(line)
        except TooLong as problem:
            log.warning("a server is cut off: %s", problem)
            self._end()
            output = self._pipe(fd)
            if output is not None:
                output.close()

    def _take_note(self, data: bytes) -> None:
        *lines, self._note = (self._note + data).split(b"\n")
        if len(self._note) > NOTE_BYTES_MAX:
            lines, self._note = [*lines, self._note], b""
        for line in lines:
            words = line.rstrip(b"\r").decode(errors="replace")
            self.last_note = words.strip() or self.last_note
            if self._noted is not None:
                self._noted(words)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 2:  # it may close its standard error, and go on
            if self._note:
                self._take_note(b"\n")
            self._is_quiet = True
            return
        self.writing.end()
        if fd == 1:
            self._end()
        else:  # what it has answered before is still read
            asyncio.get_running_loop().call_later(LAST_WORDS_S, self._end)

    def process_exited(self) -> None:
        pass  # what it has written before is still read

    def pause_writing(self) -> None:
        self.writing.pause()

    def resume_writing(self) -> None:
        self.writing.go_on()

    def _end(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        self._ended()
        self.writing.end()
        self.reading.end()
        for one in self._requests.values():
            if not one.answer.done():
                one.answer.set_exception(_closed())

    def _pipe(self, fd: int) -> Any:
        return None if self._process is None else self._process.get_pipe_transport(fd)

    def _hold(self, is_held: bool) -> None:
        pipe = self._pipe(1)
        if pipe is not None and not pipe.is_closing():
            pipe.pause_reading() if is_held else pipe.resume_reading()

    def _take(self, line: bytes) -> None:
        """Give an answer or a progress to whoever waits for it, and everything else to the session."""
        if not self._requests or not self._is_taken(line):
            self._passed += 1
            self.reading.put(message_in(line))

    def _is_taken(self, line: bytes) -> bool:
        try:
            said = from_json(line)
        except ValueError:
            return False
        if not isinstance(said, dict) or said.get("jsonrpc") != "2.0":
            return False
        if "method" not in said:
            asked = self._asked(said.get("id"))
            if asked is None or not (isinstance(said.get("result"), dict) or _is_error(said.get("error"))):
                return False
            if not asked.answer.done():
                asked.answer.set_result((said, len(line)))
            return True
        return said["method"] == "notifications/progress" and self._is_reported(said.get("params"))

    def _asked(self, name: Any) -> _Request | None:
        if isinstance(name, str) and name.isdecimal() and len(name) < len(str(FIRST_ID)) + 3:
            name = int(name)  # some servers answer with the id as a text
        return self._requests.get(name) if isinstance(name, int) and not isinstance(name, bool) else None

    def _is_reported(self, params: Any) -> bool:
        asked = self._asked(params.get("progressToken")) if isinstance(params, dict) else None
        if asked is None:
            return False
        progress, total, message = (params.get(name) for name in ("progress", "total", "message"))
        if asked.report is not None and _is_number(progress):
            made = self._reported(
                asked.report,
                float(progress),
                float(total) if _is_number(total) else None,
                message if isinstance(message, str) else None,
            )
            task = asyncio.get_running_loop().create_task(made)
            self._reports.add(task)
            task.add_done_callback(self._reports.discard)
        return True

    @staticmethod
    async def _reported(report: Report, progress: float, total: float | None, message: str | None) -> None:
        try:
            await report(progress, total, message)
        except Exception as error:  # a client that is gone misses how far its call was
            log.debug("a progress was not passed on: %s", type(error).__name__)

    # ---- Asking directly

    async def request(
        self, method: str, params: dict[str, Any], *, timeout_s: float, report: Report | None
    ) -> tuple[Mapping[str, Any], int]:
        """Return the result of a request, and how many bytes its message has.

        Raise ``MCPError``: what the server answers, ``REQUEST_TIMEOUT`` or ``CONNECTION_CLOSED``. A server is told if
        nobody waits for its answer any more. Raise ``NotSent`` if it reads nothing any more.
        """
        number = self._next_id
        self._next_id += 1
        meta = dict(params.get("_meta") or {})
        if report is not None:
            meta["progressToken"] = number
        if trace.get_current_span().get_span_context().is_valid:
            propagate.inject(meta)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
        if not meta:
            del message["params"]["_meta"]  # type: ignore[attr-defined]
        line = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        passed = self._passed
        asked = self._requests[number] = _Request(asyncio.get_running_loop().create_future(), report)
        is_sent = False
        try:
            async with asyncio.timeout(timeout_s):
                await self.writing.ready()
                self.writing.put(line)
                is_sent = True
                said, size = await asked.answer
        except anyio.BrokenResourceError:
            raise NotSent("the server reads nothing any more") from None
        except TimeoutError:
            if is_sent:
                self._give_up(number, f"timed out after {timeout_s}s")
            raise MCPError(REQUEST_TIMEOUT, f"Request {method!r} timed out") from None
        except asyncio.CancelledError:
            if is_sent:
                self._give_up(number, "caller cancelled")
            raise
        finally:
            del self._requests[number]
            if asked.answer.done() and not asked.answer.cancelled():
                asked.answer.exception()
        if self._passed != passed:
            await self._heard()
        if "result" not in said:
            error = said["error"]
            raise MCPError(error["code"], error["message"], error.get("data"))
        return said["result"], size

    async def _heard(self) -> None:
        """Let the session hear what came before an answer, such as a line of a log: it goes to whoever has a call at work."""
        for _ in range(HEARD_TURNS_MAX):
            if self.reading.is_empty:
                break
            await asyncio.sleep(0)
        for _ in range(HEARD_TURNS):
            await asyncio.sleep(0)

    def _give_up(self, number: int, reason: str) -> None:
        params = {"requestId": number, "reason": reason}
        self.writing.put(json.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}).encode())

    # ---- Its end

    @property
    def exit_code(self) -> int | None:
        """With what its process has ended; None: it has not."""
        return None if self._process is None else self._process.get_returncode()

    async def close(self) -> None:
        """Close its input, wait for its end, and end it with all that it has started if it does not."""
        process = self._process
        assert process is not None, "it was started"
        self._end()
        self._hold(False)  # a server that waits to write does not read that its input is closed
        entry = self._pipe(0)
        if entry is not None:
            entry.close()
        if not await _within(END_S, lambda: process.get_returncode() is not None):
            group = process.get_pid()  # its process has a session of its own
            with suppress(ProcessLookupError, PermissionError):
                _end_group(process, "SIGTERM")
            if not await _within(END_S, lambda: not _is_alive(process)):
                with suppress(ProcessLookupError, PermissionError):
                    _end_group(process, "SIGKILL")
                if not await _within(END_S, lambda: process.get_returncode() is not None):
                    log.warning("process %d of a server cannot be ended", group)
        await _within(LAST_WORDS_S, lambda: self._is_quiet)  # what it wrote last says why it ended
        process.close()


@asynccontextmanager
async def server_pipe(
    command: Sequence[str], *, env: Mapping[str, str] | None, cwd: Path | None, line_bytes_max: int,
    ended: Callable[[], None], noted: Callable[[str], None] | None = None,
) -> AsyncIterator[ServerPipe]:  # fmt: skip
    """Start a server, and end it afterwards. Raise ``OSError`` if it cannot be started.

    ``noted``: called with each line of its standard error; None: it writes to that of this process.
    """
    _, pipe = await asyncio.get_running_loop().subprocess_exec(
        lambda: ServerPipe(line_bytes_max=line_bytes_max, ended=ended, noted=noted), *command,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sys.stderr if noted is None else subprocess.PIPE,
        env={**get_default_environment(), **(env or {})}, cwd=cwd, start_new_session=True,
    )  # fmt: skip
    pipe.writing.pipe = pipe._pipe(0)
    try:
        yield pipe
    finally:
        with anyio.CancelScope(shield=True):
            await pipe.close()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _closed() -> MCPError:
    return MCPError(CONNECTION_CLOSED, "Connection closed")


def _is_error(said: Any) -> bool:
    return isinstance(said, dict) and isinstance(said.get("code"), int) and isinstance(said.get("message"), str)


async def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    until = asyncio.get_running_loop().time() + seconds
    while not holds():
        if asyncio.get_running_loop().time() >= until:
            return False
        await asyncio.sleep(POLL_S)
    return True


def _end_group(process: asyncio.SubprocessTransport, name: str) -> None:
    """Signal a server with all that it has started; without process groups (Windows), the server alone."""
    if hasattr(os, "killpg"):
        os.killpg(process.get_pid(), getattr(signal, name))
    elif name == "SIGTERM":
        process.terminate()
    else:
        process.kill()


def _is_alive(process: asyncio.SubprocessTransport) -> bool:
    if not hasattr(os, "killpg"):
        return process.get_returncode() is None
    try:
        os.killpg(process.get_pid(), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
