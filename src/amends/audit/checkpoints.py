"""The runtime's own verb about checkpoints, in both colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amends.drivers.context import refuse_reaching
from amends.encoding.chain import Checkpoint
from amends.host.host import Host


class CheckpointDesk:
    """Blocking."""

    _host: Host

    def checkpoint(self) -> Checkpoint | None:
        """Put everything that is in the ledger now behind a checkpoint; the newest one. None: nothing ever happened."""
        refuse_reaching("rt.checkpoint()")
        self._host.ready()
        return self._host.checkpointer.write()


class AsyncCheckpointDesk:
    """The same, awaited."""

    _host: Host

    if TYPE_CHECKING:

        async def _ready(self, run_id: str | None = None) -> None: ...

    async def checkpoint(self) -> Checkpoint | None:
        """Put everything that is in the ledger now behind a checkpoint; the newest one. None: nothing ever happened."""
        import asyncio  # here: who blocks need not load it

        refuse_reaching("rt.checkpoint()")
        await self._ready()
        return await asyncio.to_thread(self._host.checkpointer.write)
