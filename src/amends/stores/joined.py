"""A ledger through the caller's own connection: what is the same for every database and both colours.

Each operation is the flow that it always is (``sql.transaction``), between a savepoint and its release instead of a
BEGIN and a COMMIT. The quick statements are not used: they are whole transactions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from amends.ledger.dispatch import intent
from amends.ledger.flow import Flow, run_flow
from amends.ledger.operations import StoreOp
from amends.stores.sql import Execute, Statements, Transaction, as_sql

T = TypeVar("T")

DUPLICATES_MAX: Final = 5
"""How often somebody else may have been faster with the same key. Then it is a mistake of ours."""

LOOKS_MAX: Final = 3
LOOK_S: Final = 0.01
"""How often, and after what pause, is looked whether a run is locked: others lock it for moments all the time."""

_numbers: Final = count(1)


def locked_yet(look: Callable[[], bool]) -> Iterator[bool]:
    """Each look's answer, with pauses between; for ``all``, which ends with the first that finds it free."""
    for place in range(LOOKS_MAX):
        if place:
            time.sleep(LOOK_S)
        yield look()


class Manner(Protocol):
    """What differs between the databases."""

    statements: Statements
    clock: Callable[[], float] | None
    is_async: bool
    holds: Callable[[str], bool]

    @staticmethod
    def is_open_on(raw: Any, /) -> bool:
        """Whether this connection is in a transaction now; from any thread."""
        ...

    def execute(self, op: Execute) -> Any:
        """One statement on the caller's connection; an awaitable where that is async."""
        ...

    def verify(self, tool: str) -> Flow[None]:
        """Raise ``CannotJoin`` unless this is the ledger's database, and its rows can be kept as they must."""
        ...

    def enter(self) -> Flow[Any]:
        """Give the connection the settings that our statements need; what they were."""
        ...

    def leave(self, was: Any, op: StoreOp[Any], answer: Any) -> Flow[None]:
        """Give the connection its own settings back; ring whoever waits for this, when it is committed."""
        ...

    def is_own(self, error: BaseException) -> bool:
        """Whether the database or its driver raised this."""
        ...

    def is_duplicate(self, error: BaseException) -> bool:
        """Whether a key or run id has been taken since we looked."""
        ...

    def explained(self, error: Exception, op: StoreOp[Any] | None) -> Exception:
        """The error in the caller's words."""
        ...


class JoinedLedger:
    """See ``amends.ledger.joined.Joined``."""

    def __init__(self, raw: Any, manner: Manner) -> None:
        self.raw, self._manner = raw, manner
        self.is_async = manner.is_async
        self.is_open_on: Callable[[Any], bool] = type(manner).is_open_on  # of the class: it must not keep ours alive
        self.holds, self.is_own = manner.holds, manner.is_own

    async def board(self, name: str, tool: str) -> None:
        """A savepoint for a call; raises ``CannotJoin`` unless the ledger's rows can be kept through this connection."""
        try:
            await self.mark(name)
            await self._manner.verify(tool)
        except Exception as error:
            if self._manner.is_own(error):
                raise self._manner.explained(error, None) from error
            raise

    async def answer(self, op: StoreOp[T]) -> T:
        """Carry out one operation, wholly or not at all; durable when the caller commits."""
        for tried in range(1, DUPLICATES_MAX + 1):
            name = f"amends_op_{next(_numbers)}"
            try:
                return await self._once(op, name)
            except Exception as error:
                if not self._manner.is_own(error):
                    await self.back(name)
                    raise
                if not self._manner.is_duplicate(error) or tried == DUPLICATES_MAX:
                    raise self._manner.explained(error, op) from error
                await self.back(name)
        raise AssertionError("the last try returns or raises")

    async def mark(self, name: str) -> None:
        """A savepoint."""
        await Execute(f"savepoint {name}", ())

    async def back(self, name: str) -> None:
        """Undo everything since the savepoint, and forget it."""
        await Execute(f"rollback to savepoint {name}", ())
        await Execute(f"release savepoint {name}", ())

    async def forget(self, name: str) -> None:
        """Keep everything since the savepoint."""
        await Execute(f"release savepoint {name}", ())

    def run(self, flow: Flow[T]) -> T:
        """Drive one of these flows, blocking."""
        return run_flow(flow, self._manner.execute)

    async def run_async(self, flow: Flow[T]) -> T:
        """Drive one of these flows, awaited."""
        try:
            request: Any = flow.send(None)
            while True:
                try:
                    answer = await self._manner.execute(request)
                except Exception as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(answer)
        except StopIteration as stop:
            value: T = stop.value
            return value
        finally:
            flow.close()

    async def _once(self, op: StoreOp[T], name: str) -> T:
        await self.mark(name)
        was = await self._manner.enter()
        answer: T = await as_sql(intent(op), Transaction(self._manner.statements, self._manner.clock))
        await self._manner.leave(was, op, answer)
        await self.forget(name)
        return answer
