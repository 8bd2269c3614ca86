"""Serve the gateway to clients: over standard input and output, or over HTTP with the tokens of the ledger."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from amends import AsyncRuntime
from amends.errors import Unauthorized, UsageError
from amends.gateway.config import Config
from amends.gateway.direct import DirectCalls
from amends.gateway.gateway import WHO, Gateway
from amends.gateway.stdio import client_streams
from amends.secrets import check_bind, is_loopback, secrets_of
from amends.visible import visible_log

log = visible_log("amends.gateway")
PATH: Final = "/mcp"
BACKLOG: Final = 2048
"""How many connections may wait to be accepted."""
STOP_S: Final = 5
"""After so many seconds, requests that are still under way are cut off when the server is stopped."""
SCOPES: Final = frozenset({"agent", "operator"})
"""Tokens with one of these scopes may connect."""


def run(config: Config, rt: AsyncRuntime, *, http: bool, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until the client, SIGTERM or Ctrl-C ends it. ``tell`` is called with the address of a server over HTTP."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_run(config, rt, http=http, host=host, port=port, tell=tell))


async def _run(
    config: Config, rt: AsyncRuntime, *, http: bool, host: str, port: int, tell: Callable[[str], None]
) -> None:
    serving = asyncio.current_task()
    assert serving is not None, "asyncio.run makes one"
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGTERM, serving.cancel)
    except NotImplementedError:  # Windows: its event loop watches no signals
        signal.signal(signal.SIGTERM, lambda *_: loop.call_soon_threadsafe(serving.cancel))
    try:
        await rt.schema()  # the ledger must answer before a client is let in
        gateway = Gateway(config, rt, secrets=secrets_of(rt, host=host))
        if http:
            await _serve_http(gateway, host=host, port=port, tell=tell)
        else:
            await serve_stdio(gateway)
    except asyncio.CancelledError:
        serving.uncancel()
    finally:
        await rt.close()


async def _serve_http(gateway: Gateway, *, host: str, port: int, tell: Callable[[str], None]) -> None:
    try:
        import uvicorn
    except ModuleNotFoundError as missing:
        raise UsageError("amends gateway --http needs uvicorn", hint="pip install 'amends[serve]'") from missing
    await check_bind(gateway.rt, host)
    needs_token = not is_loopback(host) or bool(await gateway.rt.tokens())
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen(BACKLOG)  # from the moment that its address is told, a client is let in
        async with gateway:
            await gateway.runs.take_over()
            app = http_app(gateway, host=host, needs_token=needs_token)
            settings = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=STOP_S)
            tell(f"http://{host}:{listening.getsockname()[1]}{PATH}")
            with _signals_end_only_the_server():
                await uvicorn.Server(settings).serve(sockets=[listening])


@contextmanager
def _signals_end_only_the_server() -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the server of uvicorn, which raises them again afterwards, and nothing else.

    Otherwise they would cancel the task in which the runs of the clients are ended.
    """
    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


async def serve_stdio(gateway: Gateway) -> None:
    """Serve one client until it closes the connection."""
    async with gateway:
        server = gateway.server()
        direct = DirectCalls(server, gateway.make_call, session=gateway.listeners.piped)
        try:
            async with client_streams(direct) as (read, write):
                try:
                    await server.run(read, write, server.create_initialization_options(gateway.notifications))
                finally:
                    await direct.close()
        except* BrokenPipeError:
            log.warning("the client has gone without waiting for an answer")


def http_app(gateway: Gateway, *, host: str, needs_token: bool) -> Any:
    """Return the ASGI application at ``/mcp``; the gateway must have been started."""
    app = gateway.server().streamable_http_app(streamable_http_path=PATH, host=host)
    return Guard(app, gateway.rt, needs_token=needs_token)


class Guard:
    """Lets in whoever has a token of the ledger for agents. Without tokens, only a server on loopback is open."""

    def __init__(self, app: Any, rt: AsyncRuntime, *, needs_token: bool) -> None:
        self._app, self._rt, self._needs_token = app, rt, needs_token

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Answer one connection (ASGI)."""
        if scope["type"] == "http":
            try:
                scope[WHO] = await self._who(scope)
            except Unauthorized as error:
                await _refuse(send, 401, str(error))
                return
            token = scope[WHO]
            if token is not None and not SCOPES.intersection(token.scopes):
                await _refuse(send, 403, "this token is for something else: the gateway needs the scope agent")
                return
        await self._app(scope, receive, send)

    async def _who(self, scope: Any) -> Any:
        said = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        if said is None:
            self._needs_token = self._needs_token or bool(await self._rt.tokens())
            if self._needs_token:
                raise Unauthorized("a token is needed: Authorization: Bearer TOKEN", why="missing")
            return None
        scheme, _, text = said.decode("latin-1").strip().partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthorized("the header Authorization is not of the form: Bearer TOKEN", why="malformed")
        token = self._rt.recall_token(text.strip()) or await self._rt.check_token(text.strip())
        if token.kind != "token":  # it belongs into the cookie of a browser, whose requests other sites cannot forge
            raise Unauthorized("this token is that of a login, and counts in its cookie only", why="unknown")
        return token


async def _refuse(send: Callable[[Any], Awaitable[None]], status: int, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b'Bearer realm="amends"'))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
