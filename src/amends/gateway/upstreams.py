"""The servers behind the gateway: started, listed, asked, and started again when they are lost.

A request that was sent and has no answer is a doubt. One that was never sent, because the server is known to be gone, had
certainly no effect.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Any, Final, TypeVar

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    REQUEST_TIMEOUT,
    CallToolResult,
    CreateMessageRequest,
    ElicitRequest,
    ErrorData,
    Implementation,
    ListRootsRequest,
    ListRootsResult,
    ServerCapabilities,
    TextContent,
    Tool,
)
from mcp_types.methods import validate_server_result
from pydantic import BaseModel

from amends import NoEffect, __version__
from amends.gateway.config import Config, ServerTable
from amends.gateway.questions import STATELESS, Asking
from amends.gateway.stdio import NotSent, ServerPipe, TooLong, server_pipe
from amends.idempotency import KEY_META
from amends.visible import printable, visible, visible_log

log = visible_log("amends.gateway")
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
BACKOFF_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
PAGES_MAX: Final = 100
"""How many pages of a listing are read."""
ITEMS_MAX: Final = 5_000
"""How many tools, resources or prompts of one server are taken."""
LATE_MAX: Final = 10_000
"""How many requests without an answer are remembered for each server."""
ERROR_CHARS_MAX: Final = 300
ESCAPED: Final = 6
"""How many bytes of JSON one character of an answer may be, as in \\u00e4."""
LINE_BYTES_MIN: Final = 1_000_000
"""How long a message may be that has no answer of a tool in it, such as a list of tools."""
RESULT: Final = ("content", "structuredContent", "isError", "_meta")
"""What the result of a tool has in the versions of the protocol with connections."""
TOOL_NAME: Final = re.compile(r"[!-~]{1,128}\Z")
HIDDEN: Final = "[hidden]"
LATE: Final = 10
"""For how many times its timeout a server may still be at work on a request that it did not answer."""


class Lost(ConnectionError):
    """A server was lost after a request was sent: nobody knows what it did."""


class Upstream:
    """One server: a connection that is kept, and made again after it was lost."""

    def __init__(
        self, name: str, table: ServerTable, config: Config, *, changed: Callable[[str, str], Awaitable[None]],
        only: Callable[[], Asking | None] = lambda: None,
        look: Callable[[str, Mapping[str, Tool]], Awaitable[None]] | None = None,
    ):  # fmt: skip
        self.name, self.table, self._config = name, table, config
        self._changed, self._only, self._start_s = changed, only, config.gateway.start
        self._look = look
        self.tools: dict[str, Tool] = {}
        self.capabilities: ServerCapabilities | None = None
        self.instructions = ""
        self.starts = 0
        """How often it was started."""
        self.problem = ""
        """Why it is not there."""
        self.lacks_roots = False
        """Whether it asked for roots when no client was there."""
        self._secret: frozenset[str] = frozenset()
        self._client: Client | None = None
        self._pipe: ServerPipe | None = None
        """Its process, if it was started here."""
        self._there, self._lost, self._closing = asyncio.Event(), asyncio.Event(), False
        self._failed = asyncio.Event()
        """Whether a start has failed or a connection was lost."""
        self._keeper: asyncio.Task[None] | None = None
        self._asking: list[Asking] = []
        self._uris: set[str] = set()
        """Resources whose changes somebody wants to hear of."""
        self._relisten = asyncio.Event()
        self._turn = asyncio.Lock()
        self._listing, self._is_stale = asyncio.Lock(), False
        self._late: dict[str, tuple[int, float]] = {}
        """The keys of requests without an answer in time: which start of the server has them, and until when it may."""

    # ---- Life

    def start(self) -> None:
        """Begin to keep a connection."""
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"amends-upstream-{self.name}")

    async def close(self) -> None:
        """End the connection, and the process if it was started here."""
        self._closing = True
        self._lost.set()
        if self._keeper is not None:
            await asyncio.wait({self._keeper}, timeout=10)
            if not self._keeper.done():
                self._keeper.cancel()
                await asyncio.gather(self._keeper, return_exceptions=True)

    @property
    def is_there(self) -> bool:
        """Whether it is connected."""
        return self._there.is_set()

    @property
    def is_stateless(self) -> bool:
        """Whether it speaks the protocol without connections."""
        return self._client is not None and self._client.protocol_version >= STATELESS

    async def _keep(self) -> None:
        failures = 0
        while not self._closing:
            begun = time.monotonic()
            try:
                await self._connected()
            except Exception as error:  # whatever a foreign program does, it is started again
                self.problem = self.masked(self._problem_words(error))
                log.warning("server %s: %s", self.name, self.problem)
            self._failed.set()
            self._there.clear()
            self._client = self._pipe = None
            failures = 0 if time.monotonic() - begun > BACKOFF_S[-1] else failures + 1
            if not self._closing:
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])

    async def _connected(self) -> None:
        """Connect, list the tools, and stay until the connection is lost."""
        self._lost = asyncio.Event()
        async with AsyncExitStack() as stack:
            transport = await self._transport(stack)
            client = Client(
                transport,
                client_info=Implementation(name="amends-gateway", version=__version__),
                sampling_callback=self._sampling,
                elicitation_callback=self._elicitation,
                list_roots_callback=self._roots,
                logging_callback=self._logging,
                message_handler=self._message,
                cache=None,
            )
            async with asyncio.timeout(self._start_s):
                await stack.enter_async_context(client)
            self.capabilities, self.instructions = client.server_capabilities, client.instructions or ""
            self._client = client
            async with asyncio.timeout(self._start_s):
                await self.list_tools()
            self.starts += 1
            self.problem = ""
            self._there.set()
            if self.starts > 1:
                log.warning("server %s is back", self.name)
            await self._changed(self.name, "tools")
            listening = asyncio.get_running_loop().create_task(self._listen(client))
            try:
                await self._lost.wait()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            if not self._closing:
                self.problem = "its connection was lost"
                log.warning("server %s: its connection was lost; it is started again", self.name)

    async def _transport(self, stack: AsyncExitStack) -> Any:
        if self.table.url:
            (url, hidden), (headers, more) = self._config.url_of(self.table), self._config.headers_of(self.table)
            self._secret = hidden | more
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30.0, read=self.table.timeout + 5))
            )
            return _watched(streamable_http_client(url, http_client=http), self._note_lost)
        (args, hidden), (env, more) = self._config.args_of(self.table), self._config.env_of(self.table)
        self._secret = hidden | more
        self._pipe = await stack.enter_async_context(
            server_pipe(
                [self.table.command, *args],
                env=env or None,
                cwd=self._config.folder / self.table.cwd if self.table.cwd else None,
                line_bytes_max=ESCAPED * self.table.answer_bytes_max + LINE_BYTES_MIN,
                ended=self._note_lost,
                noted=self._noted,
            )
        )
        return _streams(self._pipe)

    def _problem_words(self, error: Exception) -> str:
        """Return why a start has failed: that a process has ended says more than that its connection was closed."""
        if isinstance(error, FileNotFoundError | PermissionError) and not self.table.url and self._pipe is None:
            return f"its command {self.table.command} cannot be started: {error.strerror or error}"
        if isinstance(error, TimeoutError):
            return f"it did not answer within {self._start_s:g} s"
        code = None if self._pipe is None else self._pipe.exit_code
        if self._pipe is None or code is None or self._there.is_set():
            return _words(error)
        said = f"; it said: {printable(self._pipe.last_note)}" if self._pipe.last_note else ""
        return f"its command {self.table.command} ended with exit code {code}{said}"

    def _noted(self, line: str) -> None:
        """Show what the server writes to standard error, with its name: a reader must not take it for the gateway's own words."""
        with suppress(OSError, ValueError):  # nobody reads it any more
            sys.stderr.write(f"[{self.name}] {printable(self.masked(line))}\n")
            sys.stderr.flush()

    def _note_lost(self) -> None:
        self._there.clear()  # from now on nothing is sent
        self._lost.set()

    async def client(self) -> Client:
        """Return the connection, as soon as it is there; raise ``NoEffect`` if it does not come back."""
        if not await self.wait(self._start_s):
            why = f" ({self.problem})" if self.problem else ""
            raise NoEffect(f"the server {self.name} is not there{why}; nothing was sent")
        assert self._client is not None, "whoever is there is connected"
        return self._client

    async def started(self, seconds: float) -> bool:
        """Wait for the first start only: until it is there or has failed. Return whether it is there."""
        waits = [asyncio.ensure_future(one.wait()) for one in (self._there, self._failed)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return self.is_there

    async def wait(self, seconds: float) -> bool:
        """Wait until it is there; return whether it is."""
        if self._there.is_set():
            return True
        try:
            await asyncio.wait_for(self._there.wait(), seconds)
        except TimeoutError:
            return False
        return True

    # ---- Requests

    async def list_tools(self) -> None:
        """Read which tools it has."""
        client = self._client
        if client is None or self.capabilities is None or self.capabilities.tools is None:
            self.tools = {}
            return
        found: dict[str, Tool] = {}
        for tool in await self._paged(client.list_tools, "tools"):
            if why := _why_not(tool):
                log.warning("server %s: a tool is left out: %s", self.name, why)
            else:
                found[tool.name] = self.hidden(tool)
        if self._look is not None:
            await self._look(self.name, found)  # nobody is shown a description that was not looked at
        self.tools = found

    async def listing(self, ask: Callable[[Any], Callable[..., Awaitable[Any]]], what: str) -> list[Any]:
        """Return all items of a listing; raise ``MCPError``."""
        return [self.hidden(one) for one in await self.ask(lambda client: self._paged(ask(client), what))]

    async def _paged(self, ask: Callable[..., Awaitable[Any]], what: str) -> list[Any]:
        found: list[Any] = []
        cursor = None
        for _ in range(PAGES_MAX):
            page = await ask(cursor=cursor)
            found += getattr(page, what)
            cursor = page.next_cursor
            if cursor is None or len(found) > ITEMS_MAX:
                break
        if cursor is not None or len(found) > ITEMS_MAX:
            log.warning("server %s lists too many %s: the first %d are taken", self.name, what, ITEMS_MAX)
        return found[:ITEMS_MAX]

    async def ask(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """Return the answer to a request that is no call of a tool: in time, not too long, and without credentials.

        Raise ``MCPError`` for whatever is in its way.
        """
        try:
            client = await self.client()
            async with asyncio.timeout(self.table.timeout):
                answer = await request(client)
        except NoEffect as error:
            raise MCPError(INTERNAL_ERROR, str(error)) from None
        except TimeoutError:
            raise MCPError(REQUEST_TIMEOUT, f"the server {self.name} did not answer in time") from None
        except MCPError as error:
            raise MCPError(error.code, self.masked(error.message), None if self._secret else error.data) from None
        if not isinstance(answer, BaseModel):
            return answer
        size = len(answer.model_dump_json(by_alias=True, exclude_none=True))
        if size > self.table.answer_bytes_max:
            raise MCPError(INTERNAL_ERROR, self._too_long("the answer", size))
        return self.hidden(answer)

    async def _listen(self, client: Client) -> None:
        """Hear of changes: by subscriptions, or on a stream where the server has no other way."""
        try:
            if client.protocol_version < STATELESS:
                for uri in sorted(self._uris):
                    await client.subscribe_resource(uri)
                return
            while True:
                self._relisten.clear()
                async with client.listen(
                    tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True,
                    resource_subscriptions=sorted(self._uris),
                ) as stream:  # fmt: skip
                    await self._until_other_uris(stream)
        except Exception as error:  # one that has no such stream
            log.debug("server %s tells nothing of changes: %s", self.name, self.masked(_words(error)))

    async def _until_other_uris(self, stream: Any) -> None:
        async def drained() -> None:
            async for _ in stream:  # each one has reached _message, too
                pass
            await asyncio.sleep(BACKOFF_S[2])

        waits = [asyncio.ensure_future(self._relisten.wait()), asyncio.ensure_future(drained())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def subscribe(self, uri: str) -> None:
        """Ask to be told when a resource changes; this is asked again when the server was started again."""
        client = await self.client()
        if client.protocol_version < STATELESS:
            await client.subscribe_resource(uri)
        self._uris.add(uri)
        self._relisten.set()

    async def unsubscribe(self, uri: str) -> None:
        """Ask to be told no longer."""
        self._uris.discard(uri)
        self._relisten.set()
        client = await self.client()
        if client.protocol_version < STATELESS:
            await client.unsubscribe_resource(uri)

    async def roots_changed(self) -> None:
        """Tell that the roots of a client have changed; the server then asks for them."""
        client = self._client
        self.lacks_roots = False
        if client is not None and client.protocol_version < STATELESS:
            await client.send_roots_list_changed()

    async def call(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None = None,
        progress: Any = None,
        timeout: float | None = None,
    ) -> CallToolResult:
        """Ask it to run a tool.

        Raise ``NoEffect`` if nothing was sent, ``Lost`` or ``TimeoutError`` if nobody knows what happened, and ``MCPError``
        if it refused the request.
        """
        async with self._turn if self.table.serial else nullcontext():
            return await self._called(tool, args, meta=meta, progress=progress, timeout=timeout)

    async def _called(
        self,
        tool: str,
        args: Mapping[str, Any],
        *,
        meta: Mapping[str, Any] | None,
        progress: Any,
        timeout: float | None,
    ) -> CallToolResult:
        client = await self.client()
        pipe = None if self.is_stateless else self._pipe
        size: int | None = None
        try:
            if pipe is not None:
                result, size = await self._asked(
                    client, pipe, tool, args, meta=meta, progress=progress, timeout=timeout
                )
            else:
                result = await client.call_tool(
                    tool, dict(args), read_timeout_seconds=timeout or self.table.timeout,
                    progress_callback=None if progress is None else self._progress(progress),
                    meta=dict(meta) if meta else None,  # type: ignore[arg-type]
                )  # fmt: skip
        except NotSent:
            raise NoEffect(f"the server {self.name} is not there; nothing was sent") from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise Lost(f"the server {self.name} was lost during {tool}") from None
            if error.code == REQUEST_TIMEOUT:
                self._note_late(str((meta or {}).get(KEY_META, "")))
                raise TimeoutError(f"the server {self.name} did not answer {tool} in time") from None
            if not self.table.doubt:
                raise MCPError(error.code, self.masked(error.message)) from None
            # Its entry tells which of its errors are doubt; the others are refusals, whichever way they are told.
            self.check_doubt(tool, error.message)
            result, size = CallToolResult(content=[TextContent(text=error.message)], is_error=True), None
        return self._bounded(tool, result, message_bytes=size)

    async def _asked(
        self, client: Client, pipe: ServerPipe, tool: str, args: Mapping[str, Any], *,
        meta: Mapping[str, Any] | None, progress: Any, timeout: float | None,
    ) -> tuple[CallToolResult, int]:  # fmt: skip
        """Ask a process without the session of the SDK, whose work for each request takes longer than many a tool."""
        params: dict[str, Any] = {"name": tool, "arguments": dict(args)}
        if meta:
            params["_meta"] = dict(meta)
        said, size = await pipe.request(
            "tools/call", params, timeout_s=timeout or self.table.timeout,
            report=None if progress is None else self._progress(progress),
        )  # fmt: skip
        with suppress(KeyError):  # a version that the SDK does not know in detail
            validate_server_result("tools/call", client.protocol_version, said)
        # What later versions add to a result means nothing in this one.
        result = CallToolResult.model_validate({name: said[name] for name in RESULT if name in said}, by_name=False)
        if not result.is_error:
            await client.session.validate_tool_result(tool, result)
        return result, size

    def check_doubt(self, tool: str, error: str) -> None:
        """Raise ``Lost`` if the text of an error tells that the server itself does not know what a call did."""
        if self.table.doubt and re.search(self.table.doubt, error):
            said = self.masked(error)[:ERROR_CHARS_MAX]
            raise Lost(f"the server {self.name} does not know what {tool} did: {said}")

    def _progress(self, report: Callable[..., Awaitable[None]]) -> ProgressFnT:
        async def masked(progress: float, total: float | None = None, message: str | None = None) -> None:
            await report(progress, total, None if message is None else self.masked(message))

        return masked

    def _note_late(self, key: str) -> None:
        self._late.pop(key, None)
        self._late[key] = (self.starts, time.monotonic() + LATE * self.table.timeout)
        if len(self._late) > LATE_MAX:
            del self._late[next(iter(self._late))]

    def may_work_on(self, key: str) -> bool:
        """Return whether a request with this key had no answer in time, and the server that has it is still there."""
        start, until = self._late.get(key, (0, 0.0))
        if start != self.starts or time.monotonic() > until:
            self._late.pop(key, None)
            return False
        return True

    def _bounded(self, tool: str, result: CallToolResult, *, message_bytes: int | None) -> CallToolResult:
        if message_bytes is not None and message_bytes <= self.table.answer_bytes_max // 2:
            return self.hidden(result)  # written again it can be a little longer than it came, but not twice as long
        size = len(result.model_dump_json(by_alias=True, exclude_none=True))
        if size > self.table.answer_bytes_max:
            raise TooLong(self._too_long(f"the answer of {tool}", size))
        return self.hidden(result)

    def _too_long(self, what: str, size: int) -> str:
        most = self.table.answer_bytes_max
        return f"{what} has {size:,} characters, and at most {most:,} are taken (answer_bytes_max)"

    def hidden(self, said: M) -> M:
        """Return what the server said without the credentials that it was given."""
        if not self._secret:
            return said
        text = said.model_dump_json(by_alias=True, exclude_none=True)
        if not any(_in_json(one) in text for one in self._secret):
            return said
        for one in sorted(self._secret, key=len, reverse=True):
            text = text.replace(_in_json(one), HIDDEN)
        return type(said).model_validate_json(text)

    def masked(self, text: str) -> str:
        """Return a text without the credentials that the server was given."""
        for one in sorted(self._secret, key=len, reverse=True):
            text = text.replace(one, HIDDEN)
        return text

    # ---- What the server asks for itself

    @contextmanager
    def asked_by(self, asking: Asking | None) -> Iterator[None]:
        """Say who asks while a request lasts."""
        if asking is None:
            yield
            return
        self._asking.append(asking)
        try:
            yield
        finally:
            self._asking.remove(asking)

    def _client_of(self, *, or_only: bool = False) -> Asking | ErrorData:
        """Return the one client that a question of the server can be meant for; ``or_only``: also one that asks nothing."""
        clients = {one.client for one in self._asking}
        if len(clients) == 1:
            return self._asking[-1]
        only = self._only() if or_only and not clients else None
        if only is not None:
            return only
        why = "nobody asks at the moment" if not clients else "several clients ask at the moment"
        return ErrorData(code=INVALID_REQUEST, message=f"the gateway cannot tell whom this is for: {why}")

    async def _sampling(self, context: Any, params: Any) -> Any:
        return await self._passed(CreateMessageRequest(params=params))

    async def _elicitation(self, context: Any, params: Any) -> Any:
        said = params.model_copy(update={"message": f"[{self.name}] {params.message}"})
        return await self._passed(ElicitRequest(params=said))

    async def _roots(self, context: Any) -> Any:
        if not self._asking and self._only() is None:
            # A server asks when it is started, before any client is there. That is no failure: it has no roots yet, and
            # is told as soon as a client has some (roots_changed).
            self.lacks_roots = True
            return ListRootsResult(roots=[])
        return await self._passed(ListRootsRequest(), or_only=True)

    async def _passed(self, request: Any, *, or_only: bool = False) -> Any:
        found = self._client_of(or_only=or_only)
        if isinstance(found, ErrorData):
            return found
        if request.params is not None:  # ids and tokens of this connection mean nothing on the other one
            said = self.hidden(request.params.model_copy(update={"meta": None}))
            request = request.model_copy(update={"params": said})
        return await found.ask(request)

    async def _logging(self, params: Any) -> None:
        params = self.hidden(params)
        only = self._only() if not self._asking else None
        for one in list(self._asking) if only is None else [only]:
            try:
                await one.session.send_log_message(
                    params.level, params.data, f"{self.name}.{params.logger or 'server'}", one.request_id
                )
            except Exception as error:  # a client that is gone misses a line of a log
                log.debug("a line of the log of %s was not passed on: %s", self.name, type(error).__name__)

    async def _message(self, message: Any) -> None:
        method = str(getattr(message, "method", ""))
        if method == "notifications/tools/list_changed":
            await self._list_again()
        elif method in ("notifications/resources/list_changed", "notifications/prompts/list_changed"):
            await self._changed(self.name, method.split("/")[1])
        elif method == "notifications/resources/updated":
            await self._changed(self.name, f"resource:{message.params.uri}")

    async def _list_again(self) -> None:
        """List the tools again; a server that says so again and again is listed once more after each listing."""
        if self._is_stale:
            return
        self._is_stale = True
        async with self._listing:
            self._is_stale = False
            try:
                async with asyncio.timeout(self._start_s):
                    await self.list_tools()
            except Exception as error:  # whatever a foreign program answers, what was known of it stays
                log.warning("server %s does not list its tools: %s", self.name, self.masked(_words(error)))
                return
        await self._changed(self.name, "tools")


class _Reading:
    """A stream of messages that says when it has ended."""

    def __init__(self, inner: Any, ended: Callable[[], None]) -> None:
        self._inner, self._ended = inner, ended

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        try:
            return await self._inner.receive()
        except BaseException:
            self._ended()
            raise

    async def aclose(self) -> None:
        self._ended()
        await self._inner.aclose()

    def __aiter__(self) -> _Reading:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._inner.__anext__()
        except BaseException:
            self._ended()
            raise

    async def __aenter__(self) -> _Reading:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> bool | None:
        self._ended()
        return await self._inner.__aexit__(*exc)  # type: ignore[no-any-return]


@asynccontextmanager
async def _watched(transport: Any, ended: Callable[[], None]) -> AsyncIterator[Any]:
    """Return the transport, with a note when the server has closed it."""
    async with transport as streams:
        read, *rest = streams
        yield (_Reading(read, ended), *rest)


@asynccontextmanager
async def _streams(pipe: ServerPipe) -> AsyncIterator[Any]:
    """Return the process of a server as a transport of the SDK."""
    yield pipe.reading, pipe.writing


def _why_not(tool: Tool) -> str:
    """Return why a tool cannot be offered to clients; "" if it can."""
    if not TOOL_NAME.match(tool.name):
        return f"its name has characters that no name has, or too many of them: {visible(tool.name[:40])}"
    if not isinstance(tool.input_schema.get("properties", {}), dict):
        return f"the schema of {tool.name} is none"
    return ""


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    said = str(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def listed(upstreams: Iterable[Upstream]) -> dict[str, tuple[Upstream, Tool]]:
    """Return the tools of all servers by the names that clients see: prefixed where two servers share one."""
    held: dict[str, list[tuple[Upstream, Tool]]] = {}
    known = {upstream.name: upstream for upstream in upstreams}
    for upstream in known.values():
        for tool in upstream.tools.values():
            held.setdefault(tool.name, []).append((upstream, tool))
    found: dict[str, tuple[Upstream, Tool]] = {}
    for name, owners in held.items():
        # A server that calls its tool as another one's would be prefixed must not take that one's place.
        is_shared = len(owners) > 1 or ("__" in name and name.partition("__")[0] in known)
        for upstream, tool in owners:
            seen = f"{upstream.name}__{name}" if is_shared or upstream.table.prefix else name
            if seen in found:
                log.warning("two tools would be called %s; that of %s is left out", visible(seen), upstream.name)
                continue
            found[seen] = (upstream, tool)
    return found
