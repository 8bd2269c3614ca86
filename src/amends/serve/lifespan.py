"""The lifespan protocol of ASGI: an application starts before its first request and ends after its last one."""

from __future__ import annotations

from typing import Protocol

from starlette.types import Receive, Send


class Application(Protocol):
    """What is started and ended with its server."""

    async def start(self) -> None:
        """Start it; an error keeps the server from starting, and the server shows it."""

    async def close(self) -> None:
        """End it."""


async def live(application: Application, receive: Receive, send: Send) -> None:
    """Start the application and end it, each when the server says so."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                await application.start()
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await application.close()
            await send({"type": "lifespan.shutdown.complete"})
            return
