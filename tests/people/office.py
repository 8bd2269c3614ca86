"""A runtime of either colour whose wires need approval, a hook that records its notices, and a clock for the ledger."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from amends import Approval, AsyncRuntime, Held, Runtime, tool
from amends.stores.memory import MemoryStore

COLOURS = ("blocking", "async")
HOOKS = ("def", "async def")


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """The notices in order; ``script`` says what goes wrong, call by call."""

    def __init__(self) -> None:
        self.told: list[Approval] = []
        self.script: list[BaseException | None] = []
        self.before: Callable[[Approval], object] = lambda approval: None

    def hear(self, approval: Approval) -> None:
        self.told.append(approval)
        self.before(approval)
        self._end()

    def _end(self) -> None:
        turn = self.script.pop(0) if self.script else None
        if turn is not None:
            raise turn

    async def hear_async(self, approval: Approval) -> None:
        await asyncio.sleep(0)
        self.told.append(approval)
        waits = self.before(approval)
        if inspect.isawaitable(waits):
            await waits
        self._end()

    @property
    def ids(self) -> list[str]:
        return [approval.id for approval in self.told]


@tool(name="wire", kind="pivot", needs_approval=True, idempotent=True)
def wire(cents: int) -> str:
    return f"sent {cents}"


@tool(name="wire", kind="pivot", needs_approval=True, idempotent=True)
async def awire(cents: int) -> str:
    return f"sent {cents}"


class Office:
    """One runtime on one ledger; ``colour`` is its colour, ``hook`` that of its hook."""

    def __init__(
        self, colour: str, hook: str | None = "def", *, store: Any = None, clock: Clock | None = None, **options: Any
    ) -> None:
        self.colour, self.desk = colour, Desk()
        self.clock = clock or Clock()
        self.store = store or MemoryStore(clock=self.clock)
        hooks: dict[str | None, Any] = {"def": self.desk.hear, "async def": self.desk.hear_async, None: None}
        kind: Any = Runtime if colour == "blocking" else AsyncRuntime
        self.tool: Any = wire if colour == "blocking" else awire
        given = {"wait": 0.2} | options
        self.rt = kind("memory:", tools=[self.tool], store=self.store, on_approval_needed=hooks[hook], **given)
        self.loop = asyncio.Runner() if colour == "async" else None
        self.others: list[Office] = []

    def beside(self, hook: str | None = "def", **options: Any) -> Office:
        """Return another process on the same ledger."""
        made = Office(self.colour, hook, store=self.store, clock=self.clock, **options)
        self.others.append(made)
        return made

    def do(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Call a verb of the runtime."""
        answer: Any = getattr(self.rt, verb)(*args, **kwargs)
        return answer if self.loop is None else self.loop.run(answer)

    def listed(self, verb: str, *args: Any) -> list[Any]:
        """Return the items of a listing."""
        found = getattr(self.rt, verb)(*args)
        if self.loop is None:
            return list(found)

        async def collect() -> list[Any]:
            return [one async for one in found]

        return self.loop.run(collect())

    def wire(self, run_id: str = "r", cents: int = 1) -> Any:
        """Open the run and ask for a wire."""
        if self.loop is None:
            with self.rt.run(run_id, recover="wait"):
                return self.tool(cents=cents)

        async def main() -> Any:
            async with self.rt.run(run_id, recover="wait"):
                return await self.tool(cents=cents)

        return self.loop.run(main())

    def held(self, run_id: str = "r", cents: int = 1) -> str:
        """Ask for a wire that is held; return the id of the approval."""
        with pytest.raises(Held) as waits:
            self.wire(run_id, cents)
        assert waits.value.reason == "approval"
        return str(waits.value.approval.id)

    def close(self) -> None:
        for other in self.others:
            other.close()
        self.do("close")
        if self.loop is not None:
            self.loop.close()
