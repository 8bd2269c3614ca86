"""Calls of a client over standard input and output, without the session of the SDK.

The session validates each message several times and passes it through several streams and tasks, which costs more than the
rest of a short call. Here a ``tools/call`` is read once and answered by the task that makes the call. Everything else goes to
the session, and so does a call in which anything is unusual: the first ones of a connection, a later round with the answer
of a user, a trace, or whatever does not fit the protocol. The session then says what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
from mcp import MCPError
from mcp.server import Server
from mcp.server.connection import allowed_log_levels
from mcp.server.runner import modern_error_data
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.jsonrpc_dispatcher import handler_exception_to_error_data
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    ClientCapabilities,
    ErrorData,
)
from mcp_types.methods import serialize_server_result, validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from opentelemetry import trace
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json, to_json

from amends.errors import log_error
from amends.gateway.stdio import Writing
from amends.visible import visible_log

log = visible_log("amends.gateway")
CALL: Final = "tools/call"
CANCEL: Final = "notifications/cancelled"
KNOWN: Final = frozenset({"name", "arguments", "_meta"})
"""What a call has in which nothing is unusual."""
TRACE: Final = "traceparent"
Handler = Callable[[Any, CallToolRequestParams], Awaitable[BaseModel]]


class DirectCalls:
    """The calls of one client that the session does not see.

    ``server``: whose session has the rest. ``handler``: makes a call. ``session``: the session of an earlier request of a
    client with a connection, over which it can be asked something; None if there was none yet.
    """

    def __init__(self, server: Server[Any], handler: Handler, *, session: Callable[[], Any]) -> None:
        self._handler, self._session, self._info = handler, session, server.server_info_stamp
        self._writing: Writing | None = None
        self._made: dict[Any, asyncio.Task[None]] = {}
        self._cancelled: set[asyncio.Task[None]] = set()
        self._is_modern: bool | None = None
        """Whether the client's first request was stateless; None: there was none yet."""
        self._is_over = False

    def write_to(self, writing: Writing) -> None:
        """Say where answers go; before, no call is taken."""
        self._writing = writing

    def take(self, line: bytes) -> bool:
        """Take a message of the client, or return False: it is for the session."""
        is_call = CALL.encode() in line
        if self._is_modern is not None and not is_call and (not self._made or CANCEL.encode() not in line):
            return False
        try:
            said = from_json(line)
        except ValueError:
            return False
        if not isinstance(said, dict) or said.get("jsonrpc") != "2.0":
            return False
        method, number, params = said.get("method"), said.get("id"), said.get("params")
        if method == CANCEL:
            return "id" not in said and self._is_cancelled(params)
        if not isinstance(method, str) or not isinstance(number, int | str) or isinstance(number, bool):
            return False
        if self._is_modern is None:  # the first request decides, and is the session's
            self._is_modern = method != "initialize" and PROTOCOL_VERSION_META_KEY in _meta(params)
            return False
        return method == CALL and isinstance(params, dict) and self._is_taken(number, params)

    def _is_taken(self, number: int | str, params: dict[str, Any]) -> bool:
        if (
            self._writing is None
            or self._is_over
            or coerce_request_id(number) in self._made
            or not params.keys() <= KNOWN
        ):
            return False
        ctx = self._context(number, params)
        if ctx is None:
            return False
        try:
            validate_client_request(CALL, ctx.protocol_version, params)
            asked = CallToolRequestParams.model_validate(params, by_name=False)
        except (ValueError, KeyError):
            return False
        task = asyncio.get_running_loop().create_task(self._answer(ctx, asked), name=f"amends-call-{number}")
        self._made[coerce_request_id(number)] = task
        task.add_done_callback(lambda _: self._forget(number))
        return True

    def _forget(self, number: int | str) -> None:
        self._cancelled.discard(self._made.pop(coerce_request_id(number)))

    def _context(self, number: int | str, params: dict[str, Any]) -> Context | None:
        """Return who asks; None if the session must tell."""
        meta = _meta(params)
        if TRACE in meta or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return None  # the session writes a span
        assert self._writing is not None, "calls are taken when there is a place for answers"
        version = meta.get(PROTOCOL_VERSION_META_KEY)
        if self._is_modern:
            if version not in MODERN_PROTOCOL_VERSIONS or not isinstance(meta.get(CLIENT_CAPABILITIES_META_KEY), dict):
                return None
            return Context(number, version, meta, Stateless(self._writing, version, meta))
        session = None if version is not None else self._session()
        if session is None or session.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return None
        return Context(number, session.protocol_version, meta, Connected(self._writing, session, meta))

    def _is_cancelled(self, params: Any) -> bool:
        number = params.get("requestId") if isinstance(params, dict) else None
        task = self._made.get(coerce_request_id(number)) if isinstance(number, int | str) else None
        if task is None:
            return False
        self._cancelled.add(task)
        task.cancel()
        return True

    async def _answer(self, ctx: Context, params: CallToolRequestParams) -> None:
        """Make a call and write its answer; one that the client has cancelled gets none."""
        task, error = asyncio.current_task(), None
        assert task is not None, "it runs as a task"
        line = b""
        try:
            result = await self._handler(ctx, params)
            line = self._line(ctx, result=self._shaped(ctx.protocol_version, result))
        except asyncio.CancelledError:  # the client has cancelled it, or the connection ends
            error = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
        except Exception as problem:
            error = _error_data(ctx.protocol_version, problem)
        finally:
            ctx.session.is_over = True
        if task in self._cancelled:
            return
        if error is not None:
            line = self._line(ctx, error=error.model_dump(mode="json", exclude_none=True))
        await ctx.session.write(line)

    def _shaped(self, version: str, result: BaseModel) -> dict[str, Any]:
        """Return a result as this version of the protocol writes it."""
        said = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            shaped = serialize_server_result(CALL, version, said)
        except ValidationError:
            log.warning("a result does not fit version %s of the protocol", version)
            raise MCPError(INTERNAL_ERROR, "the result does not fit the protocol") from None
        if version in MODERN_PROTOCOL_VERSIONS:
            shaped.setdefault("resultType", "complete")
            shaped["_meta"] = {SERVER_INFO_META_KEY: self._info, **(shaped.get("_meta") or {})}
        return shaped

    @staticmethod
    def _line(ctx: Context, **outcome: Any) -> bytes:
        return to_json({"jsonrpc": "2.0", "id": ctx.request_id, **outcome}, inf_nan_mode="null")

    def stop(self) -> None:
        """Cancel all calls: the client has closed the connection. The ledger says what is known of them."""
        self._is_over = True
        for task in self._made.values():
            task.cancel()

    async def close(self) -> None:
        """Wait until all calls are over."""
        if not self._is_over:
            self.stop()
        await asyncio.gather(*self._made.values(), return_exceptions=True)


class Context:
    """What a handler is told of a request, as the SDK's own context tells it."""

    __slots__ = ("meta", "protocol_version", "request", "request_id", "session")

    def __init__(self, number: int | str, version: str, meta: Mapping[str, Any], session: Channel) -> None:
        self.request_id, self.protocol_version, self.session, self.request = number, version, session, None
        self.meta = {**meta, "progress_token": meta.get("progressToken")} if "progressToken" in meta else meta


class Channel:
    """How the client of one request is told and asked something while its call lasts, as by a session of the SDK."""

    def __init__(self, writing: Writing, version: str, meta: Mapping[str, Any]) -> None:
        self.protocol_version = version
        self.is_over = False
        self._writing, self._meta = writing, meta

    async def write(self, line: bytes) -> None:
        """Write a line; a client that is gone misses it."""
        try:
            await self._writing.ready()
        except anyio.BrokenResourceError:
            log.debug("an answer was dropped: the client is gone")
            return
        self._writing.put(line)

    async def report_progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Tell how far the call is, if the client has asked for it."""
        token = self._meta.get("progressToken")
        if token is None:
            return
        said = {"progressToken": token, "progress": progress, "total": total, "message": message}
        await self._notify("notifications/progress", {name: value for name, value in said.items() if value is not None})

    async def _notify(self, method: str, params: Mapping[str, Any]) -> None:
        if not self.is_over:
            await self.write(to_json({"jsonrpc": "2.0", "method": method, "params": params}, inf_nan_mode="null"))


class Stateless(Channel):
    """The channel of a stateless client: it is told something, and asked only by the answer to its request."""

    @property
    def client_capabilities(self) -> ClientCapabilities | None:
        """What the client can, as its request says."""
        try:
            return ClientCapabilities.model_validate(self._meta[CLIENT_CAPABILITIES_META_KEY], by_name=False)
        except ValueError:
            return None

    async def send_log_message(self, level: Any, data: Any, logger: str | None = None, related: Any = None) -> None:
        """Pass on a line of a log, if this request has asked for lines of its level."""
        if level in allowed_log_levels(self.protocol_version, self._meta):
            said = {"level": level, "data": data, "logger": logger}
            await self._notify("notifications/message", {name: one for name, one in said.items() if one is not None})


class Connected(Channel):
    """The channel of a client with a connection: the session of an earlier request leads to it.

    That session knows its own request as answered, so nothing is said to belong to it. Over pipes that makes no difference.
    """

    def __init__(self, writing: Writing, session: Any, meta: Mapping[str, Any]) -> None:
        super().__init__(writing, session.protocol_version, meta)
        self._session = session

    @property
    def client_capabilities(self) -> ClientCapabilities | None:
        """What the client can, as it has said when it connected."""
        found: ClientCapabilities | None = self._session.client_capabilities
        return found

    async def send_request(self, request: Any, result_type: Any, metadata: Any = None) -> Any:
        """Ask the client something; raise ``MCPError``."""
        return await self._session.send_request(request, result_type)

    async def elicit_form(self, message: str, requested_schema: Any, related: Any = None) -> Any:
        """Ask the client's user something; raise ``MCPError``."""
        return await self._session.elicit_form(message, requested_schema)

    async def send_log_message(self, level: Any, data: Any, logger: str | None = None, related: Any = None) -> None:
        """Pass on a line of a log."""
        if not self.is_over:
            await self._session.send_log_message(level, data, logger)


def _meta(params: Any) -> Mapping[str, Any]:
    found = params.get("_meta") if isinstance(params, dict) else None
    return found if isinstance(found, dict) else {}


def _error_data(version: str, problem: Exception) -> ErrorData:
    """Return what the session would answer to a call that raises this."""
    if version in MODERN_PROTOCOL_VERSIONS:
        return modern_error_data(problem)
    known = handler_exception_to_error_data(problem)
    if known is None:
        log_error(log, logging.ERROR, "a call has failed", problem)
        return ErrorData(code=0, message=str(problem))
    return known
