"""A run in its block, in both colours. It may be left in another context, thread or task than it was entered in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from amends.tool import Scope, enter_block, leave_scope

if TYPE_CHECKING:
    from amends.aiorun import AsyncRun
    from amends.run import Run

log = logging.getLogger("amends")


class Entered:
    """A run in its block: the context is set, and leaving follows the table of nine ways out."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._block = _Block(run)

    def __enter__(self) -> Run:
        self._block.enter()
        return self.run

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._block.leave():
            return
        try:
            self.run._leave(error)
        finally:
            if self._block.is_root:
                self.run._release()
            self._block.end()


class AsyncEntered:
    """A run in its block: the context is set, and leaving follows the table of nine ways out."""

    def __init__(self, run: AsyncRun) -> None:
        self.run = run
        self._block = _Block(run)

    async def __aenter__(self) -> AsyncRun:
        self._block.enter()
        return self.run

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._block.leave():
            return
        try:
            await self.run._go(error, gives_up=self._block.is_root)
        finally:
            self._block.end()


class _Block:
    """What both colours have in common: the scope of the run, and what is put around it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._scope: Scope | None = None
        self._around = run._hub.live.block(run._session.uid)
        self.is_root = not run._session.above
        """A child's lease is its root's, which goes on."""

    def enter(self) -> None:
        """Begin the scope."""
        assert self._scope is None, "a block is entered once"
        self._scope = enter_block(self._run)
        self._around.__enter__()

    def leave(self) -> bool:
        """End the scope, in any context; False: it was left before."""
        scope = self._scope
        if scope is None or scope.is_left:
            return False
        leave_scope(scope, is_over=False)
        return True

    def end(self) -> None:
        """The run has been left."""
        assert self._scope is not None, "a block ends after it was entered"
        self._scope.is_over = True
        self._around.__exit__(None, None, None)

    def __del__(self) -> None:
        # A generator of a loop that is closed is dropped without being closed. Its run must not be kept alive for ever.
        if self.leave() and self._scope is not None and self.is_root:
            self._scope.is_over = True
            self._run._hub.keeper.forget(self._run._session.lease)
            log.warning(
                "the block of run %s was dropped without being left; it is recovered by its policy when its lease ends",
                self._run.id,
            )
