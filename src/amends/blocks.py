"""A run in its block, in both colours: the context is set, and leaving follows the table of nine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from amends.tool import current_caller

if TYPE_CHECKING:
    from amends.aiorun import AsyncRun
    from amends.run import Run


class Entered:
    """A run in its block: the context is set, and leaving follows the table of nine."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._token: Any = None
        self._around = run._hub.live.block(run._session.uid)

    def __enter__(self) -> Run:
        self._token = current_caller.set(self.run)
        self._around.__enter__()
        return self.run

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        current_caller.reset(self._token)
        try:
            self.run._leave(error)
        finally:
            self.run._release()
            self._around.__exit__(None, None, None)


class AsyncEntered:
    """A run in its block: the context is set, and leaving follows the table of nine."""

    def __init__(self, run: AsyncRun) -> None:
        self.run = run
        self._token: Any = None
        self._around = run._hub.live.block(run._session.uid)

    async def __aenter__(self) -> AsyncRun:
        self._token = current_caller.set(self.run)
        self._around.__enter__()
        return self.run

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        current_caller.reset(self._token)
        try:
            await self.run._go(error)
        finally:
            self._around.__exit__(None, None, None)
            await self.run._given_up()
