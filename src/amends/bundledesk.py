"""Exporting runs and loading those of other ledgers, in both colours. Each verb only drives its flow."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from amends.flow import Flow
    from amends.hub import Hub, View
    from amends.people import T


class BundleDesk:
    """What a blocking runtime does with bundles."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        def _drive(self, flow: Flow[T]) -> T: ...

    def export(self, *run_ids: str) -> bytes:
        """All that the ledger says of these runs, in one file that anybody can check: ``python FILE``."""
        from amends import bundling  # here: few export, and it knows zips

        self._hub.ready()
        ledger = bundling.ledger_of(self._hub)
        return bundling.packed(self._drive(bundling.taken_out(self._view, run_ids, ledger)), ledger)

    def load(self, bundle: bytes) -> list[str]:
        """The runs of a bundle are in this ledger, as records that nothing here works with; their ids."""
        from amends import bundling

        return self._drive(bundling.put_in(self._hub, self._view, bundling.unpack(bundle)))


class AsyncBundleDesk:
    """The same, awaited."""

    if TYPE_CHECKING:
        _hub: Hub
        _view: View

        async def _drive(self, flow: Flow[T]) -> T: ...

        async def _ready(self, run_id: str | None = None) -> None: ...

    async def export(self, *run_ids: str) -> bytes:
        """All that the ledger says of these runs, in one file that anybody can check: ``python FILE``."""
        import asyncio

        from amends import bundling

        await self._ready()
        ledger = await asyncio.to_thread(bundling.ledger_of, self._hub)
        taken = await self._drive(bundling.taken_out(self._view, run_ids, ledger))
        return await asyncio.to_thread(bundling.packed, taken, ledger)

    async def load(self, bundle: bytes) -> list[str]:
        """The runs of a bundle are in this ledger, as records that nothing here works with; their ids."""
        import asyncio

        from amends import bundling

        records = await asyncio.to_thread(bundling.unpack, bundle)
        return await self._drive(bundling.put_in(self._hub, self._view, records))
