"""Forking and comparing, in both colours. Each only drives its flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

# What a verb needs it loads itself: few programs fork, and all of them import this.
if TYPE_CHECKING:
    from amends.compared import Comparison
    from amends.flow import Flow
    from amends.hub import Hub, View
    from amends.listing import T


class ForkDesk:
    """What a blocking runtime lets somebody try again from a point of a past run, and see side by side."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        def _drive(self, flow: Flow[T]) -> T: ...

    def fork(self, run_id: str, *, at: str, id: str | None = None) -> str:
        """A new run that has what this one did, up to and with call ``at``, as already done; its id.

        Open it with ``rt.run``: what is shared is answered from the record, everything after it is live, and asks for
        approvals and budgets of its own. The fork never takes back what it shares.
        """
        from amends import forking

        return self._drive(forking.fork(self._hub, self._view, run_id, at=at, id=id))

    def compare(self, left: str, right: str) -> Comparison:
        """Two runs, call by call: the first that differs, other arguments, other results, other costs."""
        from amends import forking

        return self._drive(forking.compare(self._hub, self._view, left, right))


class AsyncForkDesk:
    """The same for an async runtime, awaited."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        async def _drive(self, flow: Flow[T]) -> T: ...

    async def fork(self, run_id: str, *, at: str, id: str | None = None) -> str:
        """A new run that has what this one did, up to and with call ``at``, as already done; its id.

        Open it with ``rt.run``: what is shared is answered from the record, everything after it is live, and asks for
        approvals and budgets of its own. The fork never takes back what it shares.
        """
        from amends import forking

        return await self._drive(forking.fork(self._hub, self._view, run_id, at=at, id=id))

    async def compare(self, left: str, right: str) -> Comparison:
        """Two runs, call by call: the first that differs, other arguments, other results, other costs."""
        from amends import forking

        return await self._drive(forking.compare(self._hub, self._view, left, right))
