"""Serve the application with uvicorn: bind, limit connections, and stop without losing what is under way."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine
from http import HTTPStatus
from types import FrameType
from typing import Any, Final, TypeVar

import uvicorn

from amends.errors import Error, UsageError
from amends.serve.exchange import encoded
from amends.serve.limits import Limits
from amends.serve.login import keep_out_of_logs
from amends.serve.problems import MEDIA_TYPE, HeadTooLarge, TooSlow, problem_of, status_of
from amends.serve.service import Service

T = TypeVar("T")
BACKLOG: Final = 2_048
LINGER_S: Final = 0.5
"""For how long what a refused client still sends is thrown away. If the connection is closed at once, it does not get to read
why."""
STOP_S_MAX: Final = 20.0
"""How long requests under way may take after the server was told to stop."""


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
        elif hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # on Windows another program could take the same port otherwise
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
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
    with asyncio.Runner(loop_factory=uvicorn.Config(app="", loop="auto", log_config=None).get_loop_factory()) as runner:
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


def refusal(error: Error) -> bytes:
    """Return the whole answer to a request whose head is not complete: the application never sees it."""
    body, status = encoded(problem_of(error)), HTTPStatus(status_of(error))
    head = f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
    return head.encode("ascii") + b"connection: close\r\n\r\n" + body


def patient(protocol: Any, limits: Limits) -> Any:
    """Return the protocol with limits on the size and the time of the head of a request: uvicorn has none."""
    late = refusal(TooSlow("the head of the request did not arrive in time (head_s_max)"))
    large = refusal(
        HeadTooLarge(f"the head of the request has more than {limits.head_bytes_max:,} bytes (head_bytes_max)")
    )

    class Patient(protocol):  # type: ignore[misc]
        _late: asyncio.TimerHandle | None = None
        _head_bytes = 0
        """Of a head that is not complete."""
        _is_refused = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            if self._is_refused:
                return  # its client still sends
            super().data_received(data)
            self._head_bytes = self._head_bytes + len(data) if self._is_in_head else 0
            if self._head_bytes > limits.head_bytes_max:
                self._end(large)
            else:
                self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Begin to count when a head begins, and stop when it is complete."""
            if not self._is_in_head:
                self._forget()
            elif self._late is None:
                self._late = self.loop.call_later(limits.head_s_max, self._end, late)

        @property
        def _is_in_head(self) -> bool:
            cycle = getattr(self, "cycle", None)
            return cycle is None or bool(cycle.response_complete)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _end(self, answer: bytes) -> None:
            self._forget()
            if not self.transport.is_closing():
                self._is_refused = True
                self.transport.write(answer)
                self._late = self.loop.call_later(LINGER_S, self.transport.close)

    return Patient
