"""The runtime's verbs about approvals, in both colours: each drives one flow of ``deciding``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from amends import deciding
from amends.flow import Flow
from amends.hub import Hub, View
from amends.listing import Pages
from amends.model import Approval

T = TypeVar("T")


class ApprovalDesk:
    """Blocking."""

    _hub: Hub
    _view: View

    if TYPE_CHECKING:

        def _drive(self, flow: Flow[T]) -> T: ...
        def _pages(self, pages: Pages[T]) -> Iterator[T]: ...

    def approvals(self, filter: str = "state:pending") -> Iterator[Approval]:
        """Requests for a person's yes, newest first."""
        return self._pages(deciding.pages(self._hub, self._view, filter))

    def approval(self, approval_id: str) -> Approval:
        """One request, by its id."""
        return self._drive(deciding.read(self._hub, self._view, approval_id))

    def approve(
        self,
        approval_id: str,
        *,
        digest: str,
        by: str,
        why: str = "",
        roles: Sequence[str] = (),
        behalf: str | None = None,
    ) -> Approval:
        """Say yes to exactly what ``digest`` was shown of; ``behalf``: for who delegated it."""
        return self._drive(
            deciding.decide(
                self._hub, self._view, approval_id, "approve", by=by, why=why, digest=digest, behalf=behalf, roles=roles
            )
        )

    def reject(self, approval_id: str, *, by: str, reason: str, roles: Sequence[str] = ()) -> Approval:
        """Say no; the reason reaches the model."""
        return self._drive(
            deciding.decide(self._hub, self._view, approval_id, "reject", by=by, why=reason, roles=roles)
        )

    def withdraw(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Nobody need decide any more: the call is dropped and may be asked for anew."""
        return self._drive(deciding.decide(self._hub, self._view, approval_id, "withdraw", by=by, why=why))

    def bypass(self, approval_id: str, *, digest: str, by: str, why: str) -> Approval:
        """Say yes over roles and numbers, on the record; never to one's own request."""
        return self._drive(deciding.decide(self._hub, self._view, approval_id, "bypass", by=by, why=why, digest=digest))

    def ask_again(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Ask anew for a call whose request expired."""
        return self._drive(deciding.ask_again(self._hub, self._view, approval_id, by=by, why=why))

    def edit(
        self, approval_id: str, args: Mapping[str, Any], *, by: str, why: str, roles: Sequence[str] = ()
    ) -> Approval:
        """Refuse a request and make one for these arguments instead, which is then decided like any other."""
        return self._drive(deciding.edit(self._hub, self._view, approval_id, args, by=by, why=why, roles=roles))

    def delegate(self, *, by: str, to: str, until: datetime | timedelta | float, why: str) -> None:
        """Let somebody decide for somebody else, for a while (``approve(..., behalf=)``)."""
        self._drive(deciding.delegate(self._hub, self._view, by=by, to=to, until=until, why=why))

    def reconcile_restore(self, *, by: str, why: str) -> int:
        """Let a ledger that was restored from a copy start things again; how many of its approvals are void now."""
        return self._drive(deciding.reconcile_restore(self._hub, self._view, by=by, why=why))


class AsyncApprovalDesk:
    """The same, awaited."""

    _hub: Hub
    _view: View

    if TYPE_CHECKING:

        async def _drive(self, flow: Flow[T]) -> T: ...
        def _pages(self, pages: Pages[T]) -> AsyncIterator[T]: ...

    def approvals(self, filter: str = "state:pending") -> AsyncIterator[Approval]:
        """Requests for a person's yes, newest first."""
        return self._pages(deciding.pages(self._hub, self._view, filter))

    async def approval(self, approval_id: str) -> Approval:
        """One request, by its id."""
        return await self._drive(deciding.read(self._hub, self._view, approval_id))

    async def approve(
        self,
        approval_id: str,
        *,
        digest: str,
        by: str,
        why: str = "",
        roles: Sequence[str] = (),
        behalf: str | None = None,
    ) -> Approval:
        """Say yes to exactly what ``digest`` was shown of; ``behalf``: for who delegated it."""
        return await self._drive(
            deciding.decide(
                self._hub, self._view, approval_id, "approve", by=by, why=why, digest=digest, behalf=behalf, roles=roles
            )
        )

    async def reject(self, approval_id: str, *, by: str, reason: str, roles: Sequence[str] = ()) -> Approval:
        """Say no; the reason reaches the model."""
        return await self._drive(
            deciding.decide(self._hub, self._view, approval_id, "reject", by=by, why=reason, roles=roles)
        )

    async def withdraw(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Nobody need decide any more: the call is dropped and may be asked for anew."""
        return await self._drive(deciding.decide(self._hub, self._view, approval_id, "withdraw", by=by, why=why))

    async def bypass(self, approval_id: str, *, digest: str, by: str, why: str) -> Approval:
        """Say yes over roles and numbers, on the record; never to one's own request."""
        return await self._drive(
            deciding.decide(self._hub, self._view, approval_id, "bypass", by=by, why=why, digest=digest)
        )

    async def ask_again(self, approval_id: str, *, by: str, why: str) -> Approval:
        """Ask anew for a call whose request expired."""
        return await self._drive(deciding.ask_again(self._hub, self._view, approval_id, by=by, why=why))

    async def edit(
        self, approval_id: str, args: Mapping[str, Any], *, by: str, why: str, roles: Sequence[str] = ()
    ) -> Approval:
        """Refuse a request and make one for these arguments instead, which is then decided like any other."""
        return await self._drive(deciding.edit(self._hub, self._view, approval_id, args, by=by, why=why, roles=roles))

    async def delegate(self, *, by: str, to: str, until: datetime | timedelta | float, why: str) -> None:
        """Let somebody decide for somebody else, for a while (``approve(..., behalf=)``)."""
        await self._drive(deciding.delegate(self._hub, self._view, by=by, to=to, until=until, why=why))

    async def reconcile_restore(self, *, by: str, why: str) -> int:
        """Let a ledger that was restored from a copy start things again; how many of its approvals are void now."""
        return await self._drive(deciding.reconcile_restore(self._hub, self._view, by=by, why=why))
