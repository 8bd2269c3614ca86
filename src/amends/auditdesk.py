"""Whether the record is as it was written, in both colours. Each verb only drives its flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amends.flow import Flow
    from amends.hub import Hub, View
    from amends.people import T
    from amends.verified import Verified


class AuditDesk:
    """What a blocking runtime tells of its record."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        def _drive(self, flow: Flow[T]) -> T: ...

    def verify(
        self, *run_ids: str, filter: str = "", anchor: str | None = None, keys: Sequence[str] = ()
    ) -> Verified:  # fmt: skip
        """Whether the record is as it was written: all of it, or these runs and those of the filter. Changes nothing.

        ``anchor``: the file of a checkpoint that was kept elsewhere; ``keys``: who must have signed. Else those of the settings.
        """
        from amends import auditing  # here: few verify

        return self._drive(auditing.verify(self._hub, self._view, run_ids, filter, anchor=anchor, keys=keys))


class AsyncAuditDesk:
    """The same, awaited."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        async def _drive(self, flow: Flow[T]) -> T: ...

    async def verify(
        self, *run_ids: str, filter: str = "", anchor: str | None = None, keys: Sequence[str] = ()
    ) -> Verified:  # fmt: skip
        """Whether the record is as it was written: all of it, or these runs and those of the filter. Changes nothing.

        ``anchor``: the file of a checkpoint that was kept elsewhere; ``keys``: who must have signed. Else those of the settings.
        """
        from amends import auditing

        return await self._drive(auditing.verify(self._hub, self._view, run_ids, filter, anchor=anchor, keys=keys))
