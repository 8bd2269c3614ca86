"""Serve the application with uvicorn: bind, limit connections, and stop without losing what is under way."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from types import FrameType
from typing import Any, Final, TypeVar

import uvicorn

from amends.errors import UsageError
from amends.serve.limits import Limits
from amends.serve.login import keep_out_of_logs
from amends.serve.service import Service

T = TypeVar("T")
BACKLOG: Final = 2_048
STOP_S_MAX: Final = 20.0
"""How long requests under way may take after the server was told to stop."""
LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b"
)
LATE_BODY: Final = (
    b'{"type":"urn:amends:error:TooSlow","title":"The request did not arrive in time; nothing was started.",'
    b'"status":408,"detail":"the head of the request did not arrive in time (head_s_max)","code":"TooSlow",'
    b'"hint":"send the whole request at once"}'
)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; raise ``UsageError`` if that is not possible."""
    listening = None
    try:
        [(family, kind, protocol, _, place), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        # The protocol is said: asyncio turns Nagle's algorithm off only for sockets that say that they are TCP, and with
        # it each answer would wait 40 ms.
        listening = socket.socket(family, kind, protocol)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(BACKLOG)
        return listening
    except (OSError, OverflowError) as error:
        if listening is not None:
            listening.close()
        why = getattr(error, "strerror", None) or str(error)
        hint = "is another server running there? Choose another one: --port 0 takes any that is free"
        raise UsageError(f"nothing can be served on {host}:{port}: {why}", hint=hint) from error


def address(listening: socket.socket) -> str:
    """Return the address of a socket as a browser writes it."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` on a new event loop: that of uvloop where it is installed, which is faster."""
    with asyncio.Runner(loop_factory=uvicorn.Config(app="", loop="auto").get_loop_factory()) as runner:
        return runner.run(main)


async def serve(service: Service, listening: socket.socket) -> None:
    """Serve until SIGTERM or SIGINT; then finish what is under way and let all runs go to their clients."""
    config = uvicorn.Config(
        service, log_config=None, access_log=False, lifespan="on", ws="none", server_header=False, backlog=BACKLOG,
        limit_concurrency=service.limits.connections_max, timeout_keep_alive=75, timeout_graceful_shutdown=int(STOP_S_MAX),
    )  # fmt: skip
    config.load()
    keep_out_of_logs()
    config.http_protocol_class = patient(config.http_protocol_class, service.limits)
    await Server(config, service).serve(sockets=[listening])


class Server(uvicorn.Server):
    """A server that tells its application first that it stops: streams end then, and nothing waits for them."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal stops at once. The signal is not raised again: stopping is what was asked for."""
        self.force_exit = self.should_exit
        self.should_exit = self._service.is_closing = True


def patient(protocol: Any, limits: Limits) -> Any:
    """Return the protocol with a limit on the time that the head of a request may take: uvicorn has none."""

    class Patient(protocol):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Begin to count when a head begins, and stop when it is complete."""
            cycle = getattr(self, "cycle", None)
            if cycle is not None and not cycle.response_complete:
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(limits.head_s_max, self._end)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _end(self) -> None:
            self._late = None
            if not self.transport.is_closing():
                self.transport.write(LATE % (len(LATE_BODY), LATE_BODY))
                self.transport.close()

    return Patient
