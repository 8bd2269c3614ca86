"""One transaction on MariaDB or MySQL: how it begins and commits, which errors are retried, and how often."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from amends.ledger import operations
from amends.ledger.dispatch import READS, intent
from amends.ledger.flow import run_flow
from amends.ledger.operations import StoreOp
from amends.stores.mysql import errors
from amends.stores.mysql.connection import Connection
from amends.stores.mysql.quick import QUICK, Plain, Taken
from amends.stores.mysql.url import Address
from amends.stores.retry import Fate, Use
from amends.stores.sql import MYSQL, Execute, Statements, Transaction, as_sql

ATTEMPTS_MAX: Final = 50
"""The attempts after deadlocks and the like, if ``lock_wait_s`` is not over before."""
LOST_MAX: Final = 3
"""The attempts on other connections because one was lost before the commit was sent."""
DUPLICATES_MAX: Final = 5
"""How often somebody else may have inserted the same key first. After that it is a mistake of ours."""
PAUSE_S: Final = 0.002
PAUSES_MAX: Final = 25
"""Before the second attempt at most ``PAUSE_S``, with jitter; that much more for each further one, up to this many."""

WRITING: Final = Statements(MYSQL)
READING: Final = Statements(replace(MYSQL, lock="", skip=""))
"""A read of a snapshot locks nothing and waits for nobody."""
BEGIN: Final = ("begin",)
SNAPSHOT: Final = (
    "set transaction isolation level repeatable read",
    "start transaction with consistent snapshot, read only",
)
ALONE: Final = frozenset(
    {
        operations.ReadCall, operations.ListRuns, operations.ListUnfinished, operations.SearchCalls, operations.ListLocks,
        operations.ListBudgets, operations.ReadSlices, operations.ReadApproval, operations.SearchApprovals,
        operations.DueNotices, operations.DueRequests, operations.ReadCheckpoints,
    }
)  # fmt: skip
"""Reads of one statement, which is a snapshot of its own. A read of events is none: one may move from a call to a row."""


class Attempts:
    """The attempts at one operation: see ``amends.stores.retry``."""

    attempts_max = ATTEMPTS_MAX
    kept: frozenset[Fate] = frozenset({"own", "again"})

    def __init__(
        self, op: StoreOp[Any], driver: Any, clock: Callable[[], float] | None, plain: Plain, address: Address, *,
        quick: bool = True,
    ) -> None:  # fmt: skip
        self.op, self._driver, self._clock, self._plain, self._address = op, driver, clock, plain, address
        self._may_be_quick = quick
        self._until = time.monotonic() + address.lock_wait_s
        self._lost = self._duplicates = 0
        self._is_committing = self._is_step = False
        """Of the last attempt; a step: repeated, it finds out whether the first was committed."""
        self._last: Execute | None = None

    async def attempt(self) -> Any:
        """Carry out the operation, by one plain step if that is enough, else by its flow."""
        return await Use(self._attempt)

    def _attempt(self, connection: Connection) -> Any:
        try:
            return self._on(connection)
        finally:
            # Read here: once it was given back, the connection serves others.
            self._is_committing, self._is_step = connection.committing, connection.at_once
            self._last = connection.last

    def _on(self, connection: Connection) -> Any:
        op = self.op
        quick = QUICK.get(type(op)) if self._may_be_quick else None
        answer = None if quick is None else quick(self._plain, op, connection)
        return self._by_flow(op, connection) if answer is None else answer

    def _by_flow(self, op: StoreOp[Any], connection: Connection) -> Any:
        kind = type(op)
        reads = kind in READS
        connection.begin(BEGIN if not reads else () if kind in ALONE else SNAPSHOT)
        if reads:
            answer = run_flow(as_sql(intent(op), Transaction(READING, self._clock)), connection.execute)
            connection.command("rollback")
            return answer
        taken = Taken(self._plain.ends)
        tx = Transaction(WRITING, self._clock, taken)
        try:
            answer = run_flow(as_sql(intent(op), tx), connection.execute)
            connection.command("commit")
        except Exception:
            if not connection.committing:
                taken.give_back()
            raise
        taken.remember(op, answer, tx)
        return answer

    def fate_of(self, error: Exception) -> Fate:
        """Return what became of the transaction of the last attempt."""
        if not isinstance(error, self._driver.MySQLError):
            return "own"
        code = errors.code_of(error)
        if self._is_committing and code != errors.DEADLOCK:
            return "unknown"
        if code in errors.AGAIN or code == errors.DUPLICATE:
            return "again"  # a lock that was waited for too long undid only the statement: a rollback follows
        return "lost" if code in errors.LOST else "undone"

    def pause_s(self, error: Exception, fate: Fate, attempt: int) -> float | None:
        """Retry a few times on other connections, and until ``lock_wait_s`` is over after conflicts."""
        self._plain.lost(error)
        if fate == "lost" or (fate == "unknown" and self._is_step):
            self._lost += 1
            may = self._lost < LOST_MAX
        elif fate != "again":
            may = False
        elif errors.code_of(error) == errors.DUPLICATE:
            self._duplicates += 1
            may = self._duplicates < DUPLICATES_MAX
        else:
            may = time.monotonic() < self._until
        # Jitter: transactions that met must not meet again.
        return random.uniform(0.0, PAUSE_S * min(attempt, PAUSES_MAX)) if may else None

    def explained(self, error: Exception, fate: Fate, attempt: int) -> Exception:
        """Return the error in the caller's words."""
        address, code, name = self._address, errors.code_of(error), type(self.op).__name__
        if fate == "unknown":
            return errors.unknown_end(error, address.shown)
        if code in errors.AGAIN:
            return errors.kept_locked(
                address.shown,
                errors.row_of(self._last),
                op=name,
                wait_s=address.lock_wait_s,
                deadlock=code == errors.DEADLOCK,
            )
        if code in errors.RULES:
            return AssertionError(f"{name} breaks a rule of the schema: {errors.said_by(error)}")
        return errors.explained(error, address.shown)
