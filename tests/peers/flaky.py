"""A ledger in a file whose answers can be lost on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amends.errors import LedgerUnavailable
from amends.stores.sqlite.store import SqliteStore

BEAT = "RenewLeases"


class Flaky(SqliteStore):
    """Refuses the operations of these names; ``left`` says how often, ``refused`` how often it did."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "ledger.db")
        self.left: dict[str, int] = {}
        self.is_gone = False
        self.refused = 0

    def perform(self, op: Any) -> Any:
        """Carry it out, unless it is lost."""
        self._lose(op)
        return super().perform(op)

    async def perform_async(self, op: Any) -> Any:
        """The same from an event loop."""
        self._lose(op)
        return await super().perform_async(op)

    def _lose(self, op: Any) -> None:
        name = type(op).__name__
        if self.is_gone or self.left.get(name, 0) > 0:
            self.left[name] = self.left.get(name, 0) - 1
            self.refused += 1
            raise LedgerUnavailable("nobody home")
