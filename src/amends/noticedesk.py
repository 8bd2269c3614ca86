"""What the runtimes of both colours do about notices: deciding by a link, and telling of what nobody was told of."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

from amends import deciding
from amends.errors import ApprovalVoid, LinkVoid, UsageError
from amends.flow import Flow
from amends.hub import Hub, View
from amends.model import Approval
from amends.notices import tell_due
from amends.ops import ReadClocks

T = TypeVar("T")


class NoticeDesk:
    """Blocking."""

    _hub: Hub
    _view: View

    if TYPE_CHECKING:

        def _drive(self, flow: Flow[T]) -> T: ...

    def redeem(
        self, token: str, *, by: str = "", why: str = "", reason: str = "", roles: Sequence[str] = ()
    ) -> Approval:
        """Do what a signed link is for, to exactly what was shown with it; a rejection has a ``reason``."""
        return self._drive(redeem(self._hub, self._view, token, by=by, why=why, reason=reason, roles=roles))

    def _tell_due(self, limit: int) -> int:
        return self._drive(tell_all(self._hub, self._view, limit))


class AsyncNoticeDesk:
    """The same, awaited."""

    _hub: Hub
    _view: View

    if TYPE_CHECKING:

        async def _drive(self, flow: Flow[T]) -> T: ...

    async def redeem(
        self, token: str, *, by: str = "", why: str = "", reason: str = "", roles: Sequence[str] = ()
    ) -> Approval:
        """Do what a signed link is for, to exactly what was shown with it; a rejection has a ``reason``."""
        return await self._drive(redeem(self._hub, self._view, token, by=by, why=why, reason=reason, roles=roles))

    async def _tell_due(self, limit: int) -> int:
        return await self._drive(tell_all(self._hub, self._view, limit))


async def redeem(hub: Hub, view: View, token: str, *, by: str, why: str, reason: str, roles: Sequence[str]) -> Approval:
    """What the link says, said by whoever has it."""
    clocks = await ReadClocks()
    link = hub.notices.links.read(token, datetime.fromtimestamp(clocks.wall, UTC))
    if link.by and by and _named(by) != _named(link.by):
        raise LinkVoid(f"the link to {link.verb} {link.approval} was made for somebody else", why="other_person")
    who = by or link.by
    if not who.strip():
        raise UsageError("whoever uses a link says who it is (by=): this one was made for nobody in particular")
    if link.verb == "approve":
        return await deciding.decide(
            hub, view, link.approval, "approve", by=who, why=why, digest=link.digest, roles=roles
        )
    shown = await deciding.read(hub, view, link.approval)
    if shown.digest != link.digest:
        raise ApprovalVoid(
            shown.call.tool, why="changed", approval=shown, call=shown.call, deciding=True, run_id=shown.call.run_id
        )
    return await deciding.decide(hub, view, link.approval, "reject", by=who, why=reason, roles=roles)


async def tell_all(hub: Hub, view: View, limit: int) -> int:
    """Tell of what nobody was told of; how many requests that were."""
    return await tell_due(hub.notices, view.tenant or None, limit)


def _named(person: str) -> str:
    return person.strip().casefold()
