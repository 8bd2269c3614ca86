"""What servers tell clients without being asked: lists and resources that change, lines of a log.

A client of an older protocol hears of a change over its connection. A stateless one hears it on a stream for which it has
asked (``subscriptions/listen``). A change of one resource reaches those that have subscribed to it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types import SubscriptionsListenRequestParams, SubscriptionsListenResult

from amends.gateway.questions import STATELESS
from amends.gateway.upstreams import Upstream
from amends.visible import visible_log

log = visible_log("amends.gateway")
CLIENTS_MAX: Final = 4_096
"""How many connections are remembered; of more, the oldest hear nothing."""
PIPES: Final = "stdio"
"""The name of the one connection over standard input and output."""
RESOURCE: Final = "resource:"
EVENTS: Final[Mapping[str, Callable[[], ServerEvent]]] = {
    "tools": ToolsListChanged,
    "prompts": PromptsListChanged,
    "resources": ResourcesListChanged,
}


class Listeners:
    """The clients that hear of changes. ``owner``: which server has a resource."""

    def __init__(self, owner: Callable[[str], Awaitable[Upstream]]) -> None:
        self._owner = owner
        self._sessions: dict[str, Any] = {}
        """The latest session of each connection; a session is one request, and leads to its connection."""
        self._subscribed: dict[str, set[str]] = {}
        """Who has subscribed to a resource."""
        self._bus = InMemorySubscriptionBus()
        self._stream = ListenHandler(self._bus)
        self._later: set[asyncio.Task[None]] = set()

    def seen(self, connection: str, session: Any) -> None:
        """Note a connection, at each of its requests."""
        if session.protocol_version >= STATELESS:
            return
        self._sessions.pop(connection, None)
        self._sessions[connection] = session
        if len(self._sessions) > CLIENTS_MAX:
            self._gone(next(iter(self._sessions)))

    @property
    def only(self) -> tuple[str, Any] | None:
        """The one connection that there is, if there is only one."""
        return next(iter(self._sessions.items())) if len(self._sessions) == 1 else None

    def piped(self) -> Any:
        """Return the latest session of the client over standard input and output; None if it has no connection."""
        return self._sessions.get(PIPES)

    async def tell(self, what: str) -> None:
        """Tell those who want to know: "tools", "prompts", "resources", or "resource:URI"."""
        uri = what.removeprefix(RESOURCE) if what.startswith(RESOURCE) else None
        await self._bus.publish(EVENTS[what]() if uri is None else ResourceUpdated(uri))
        for connection, session in list(self._sessions.items()):
            if uri is not None and connection not in self._subscribed.get(uri, ()):
                continue
            try:
                if uri is not None:
                    await session.send_resource_updated(uri)
                elif what == "tools":
                    await session.send_tool_list_changed()
                elif what == "prompts":
                    await session.send_prompt_list_changed()
                else:
                    await session.send_resource_list_changed()
            except Exception as error:  # a client that is gone
                self._gone(connection)
                log.debug("a client was not told of a change: %s", type(error).__name__)

    def _gone(self, connection: str) -> None:
        """Forget a connection, and what it has subscribed to."""
        self._sessions.pop(connection, None)
        uris = [uri for uri, those in self._subscribed.items() if connection in those]
        if uris:
            self._leave_later(connection, uris)

    # ---- Resources

    async def subscribe(self, who: str, uri: str) -> None:
        """Tell this client from now on when a resource changes."""
        upstream = await self._owner(uri)
        first = uri not in self._subscribed
        self._subscribed.setdefault(uri, set()).add(who)
        if not first:
            return
        try:
            await upstream.subscribe(uri)
        except BaseException:
            self._subscribed.pop(uri, None)
            raise

    async def unsubscribe(self, who: str, uri: str) -> None:
        """Tell this client no longer."""
        those = self._subscribed.get(uri, set())
        those.discard(who)
        if uri in self._subscribed and not those:
            del self._subscribed[uri]
            await (await self._owner(uri)).unsubscribe(uri)

    async def listen(self, ctx: Any, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        """Serve the stream of a stateless client."""
        who, uris = f"stream:{uuid.uuid4().hex}", list(params.notifications.resource_subscriptions or ())
        try:
            for uri in uris:
                await self.subscribe(who, uri)
            return await self._stream(ctx, params)
        finally:
            self._leave_later(who, uris)

    def _leave_later(self, who: str, uris: list[str]) -> None:
        leaving = asyncio.get_running_loop().create_task(self._leave(who, uris))
        self._later.add(leaving)
        leaving.add_done_callback(self._later.discard)

    async def _leave(self, who: str, uris: list[str]) -> None:
        for uri in uris:
            try:
                await self.unsubscribe(who, uri)
            except Exception as error:  # the server is gone, or forgets it anyway
                log.debug("a subscription was not ended: %s", type(error).__name__)

    def close(self) -> None:
        """End the streams."""
        self._stream.close()
