"""The ledger inside the caller's own transaction: what is the same for every database, blocking or async.

Each operation is the same flow over ``Execute`` as always (``sql.as_sql``), between a savepoint and its release
instead of a BEGIN and a COMMIT. The quick statements are not used: each of them is a whole transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from amends.errors import CannotJoin
from amends.ledger.flow import Flow
from amends.ledger.operations import StoreOp
from amends.stores.sql import Execute

T = TypeVar("T")

DUPLICATES_MAX: Final = 5
"""How often somebody else may have inserted the same key first. After that it is a mistake of ours."""

LOOKS_MAX: Final = 3
LOOK_S: Final = 0.01
"""How often, and after what pause, to check whether a run is locked: others lock it for moments all the time."""

_numbers: Final = count(1)


def locked_yet(look: Callable[[], bool]) -> Iterator[bool]:
    """Yield the answer of each look, with pauses between; for ``all``, which stops at the first False."""
    for place in range(LOOKS_MAX):
        if place:
            time.sleep(LOOK_S)
        yield look()


def other_database(tool: str, shown: str) -> CannotJoin:
    """Return the error for a connection to another database than the ledger's."""
    return CannotJoin(
        f"{tool}: the connection is to another database than the ledger at {shown}",
        tool=tool,
        hint="the record can only be part of a transaction in the ledger's own database",
    )


class CallersConnection(Protocol):
    """The caller's connection to one kind of database: what differs between the databases."""

    is_async: bool
    holds: Callable[[str], bool]
    is_open_on: Callable[[Any], bool]
    """See ``amends.ledger.joined.Joined``."""

    def execute(self, op: Execute) -> Any:
        """Carry out one statement; answers an awaitable where the connection is async."""
        ...

    def verify(self, tool: str) -> Flow[None]:
        """Raise ``CannotJoin`` unless this is the ledger's database, in a transaction that can hold its rows."""
        ...

    def carry_out(self, op: StoreOp[T]) -> Flow[T]:
        """Run ``sql.as_sql``, with the settings that our statements need; then restore the caller's."""
        ...

    def is_own(self, error: BaseException) -> bool:
        """Return whether the database or its driver raised this."""
        ...

    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether somebody else has inserted the same key or run id first."""
        ...

    def explained(self, error: Exception, op: StoreOp[Any] | None) -> Exception:
        """Return the error in the caller's words."""
        ...


class JoinedLedger:
    """The ledger through the caller's connection: see ``amends.ledger.joined.Joined``."""

    def __init__(self, raw: Any, connection: CallersConnection) -> None:
        self.raw, self._connection = raw, connection
        self.is_async = connection.is_async
        self.is_open_on, self.holds = connection.is_open_on, connection.holds
        self.is_own, self.execute = connection.is_own, connection.execute

    async def begin(self, name: str, tool: str) -> None:
        """Set the savepoint of a call, and check that the ledger's rows can be written through this connection."""
        try:
            await self.savepoint(name)
            await self._connection.verify(tool)
        except Exception as error:
            if self._connection.is_own(error):
                raise self._connection.explained(error, None) from error
            raise

    async def perform(self, op: StoreOp[T]) -> T:
        """Carry out one operation, completely or not at all; it is durable when the caller commits."""
        connection = self._connection
        for attempt in range(1, DUPLICATES_MAX + 1):
            name = f"amends_op_{next(_numbers)}"
            try:
                await self.savepoint(name)
                answer = await connection.carry_out(op)
                await self.release(name)
                return answer
            except Exception as error:
                if not connection.is_own(error):
                    await self.roll_back_to(name)
                    raise
                if not connection.is_duplicate(error) or attempt == DUPLICATES_MAX:
                    raise connection.explained(error, op) from error
                await self.roll_back_to(name)
        raise AssertionError("the last attempt returns or raises")

    async def savepoint(self, name: str) -> None:
        """Set a savepoint."""
        await Execute(f"savepoint {name}", ())

    async def roll_back_to(self, name: str) -> None:
        """Undo everything since the savepoint, and remove it."""
        await Execute(f"rollback to savepoint {name}", ())
        await Execute(f"release savepoint {name}", ())

    async def release(self, name: str) -> None:
        """Keep everything since the savepoint, and remove it."""
        await Execute(f"release savepoint {name}", ())
