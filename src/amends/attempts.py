"""Calls that are started by hand, in both colours: ``run.begin`` gives one."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Self

from amends import people
from amends.budget import Number, billionths, unit_of
from amends.engine import leaving
from amends.engine.call import Done
from amends.engine.session import Ask, call_of
from amends.errors import LedgerError, UsageError
from amends.model import Call
from amends.ops import Ended
from amends.phrases import is_a, log_error
from amends.visible import visible, visible_log

log = visible_log("amends")


class Attempt:
    """A call started by hand. As a context manager it is safe: leaving without a word is doubt."""

    at_leave: Callable[[], object] | None = None
    """Called when the run is left while this is open: to end it with what is known by then. What it raises is logged."""

    def __init__(self, run: Any, ask: Ask, done: Done) -> None:
        self._run, self._ask, self._row = run, ask, done.row
        self.replayed = done.replayed
        self._value = done.value
        self._open = not done.replayed
        self._spent: dict[str, int] = {}
        self._around = sys.exception()
        """What the caller was handling when it began: no part of what then goes wrong."""
        if self._open:
            run._attempts.add(self)

    @property
    def call(self) -> Call:
        """The call in the ledger; its key is the provider's idempotency key."""
        return call_of(self._row, self._ask.spec)

    @property
    def result(self) -> Any:
        """The recorded result, when it was answered from the record."""
        return self._value

    def spent(self, amount: Number, unit: str = "usd") -> None:
        """This attempt has really cost this much; said more than once, it adds up. Said before it ends."""
        _add(self._spent, self._row.tool, amount, unit)

    def succeed(self, result: object = None) -> None:
        """It happened, with this result."""
        self._end(Ended(result))

    def fail(self, error: BaseException | str) -> None:
        """It certainly had no effect."""
        self._end(Ended(error=people.certain(error)))

    def _end(self, ended: Ended) -> None:
        if not self._open:
            raise UsageError(f"the attempt of {self._row.tool} has already ended")
        self._run._refuse_waiting()
        self._row = self._run._flow(
            leaving.end_by_hand(self._run._session, self._ask, self._row, ended, said=self._spent)
        )
        self._value, self._open = ended.value, False
        self._run._attempts.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._open:
            return
        self._open = False
        self._run._attempts.discard(self)
        session = self._run._session
        if is_a(error, Exception):
            self._row = self._run._flow(
                leaving.end_by_hand(
                    session, self._ask, self._row, Ended(error=error, around=self._around), said=self._spent
                )
            )
        else:
            self._row = self._run._flow(leaving.doubt_by_hand(session, self._ask, self._row, said=self._spent))


class AsyncAttempt:
    """A call started by hand. As a context manager it is safe: leaving without a word is doubt."""

    at_leave: Callable[[], Coroutine[Any, Any, object]] | None = None
    """Called when the run is left while this is open: to end it with what is known by then. What it raises is logged."""

    def __init__(self, run: Any, ask: Ask, done: Done) -> None:
        self._run, self._ask, self._row = run, ask, done.row
        self.replayed = done.replayed
        self._value = done.value
        self._open = not done.replayed
        self._spent: dict[str, int] = {}
        self._around = sys.exception()
        """What the caller was handling when it began: no part of what then goes wrong."""
        if self._open:
            run._attempts.add(self)

    @property
    def call(self) -> Call:
        """The call in the ledger; its key is the provider's idempotency key."""
        return call_of(self._row, self._ask.spec)

    @property
    def result(self) -> Any:
        """The recorded result, when it was answered from the record."""
        return self._value

    def spent(self, amount: Number, unit: str = "usd") -> None:
        """This attempt has really cost this much; said more than once, it adds up. Said before it ends."""
        _add(self._spent, self._row.tool, amount, unit)

    async def succeed(self, result: object = None) -> None:
        """It happened, with this result."""
        await self._end(Ended(result))

    async def fail(self, error: BaseException | str) -> None:
        """It certainly had no effect."""
        await self._end(Ended(error=people.certain(error)))

    async def _end(self, ended: Ended) -> None:
        if not self._open:
            raise UsageError(f"the attempt of {self._row.tool} has already ended")
        await self._run._refuse_waiting()
        self._row = await self._run._flow(
            leaving.end_by_hand(self._run._session, self._ask, self._row, ended, said=self._spent)
        )
        self._value, self._open = ended.value, False
        self._run._attempts.discard(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._open:
            return
        self._open = False
        self._run._attempts.discard(self)
        session = self._run._session
        if is_a(error, Exception):
            self._row = await self._run._flow(
                leaving.end_by_hand(
                    session, self._ask, self._row, Ended(error=error, around=self._around), said=self._spent
                )
            )
        else:
            self._row = await self._run._flow(leaving.doubt_by_hand(session, self._ask, self._row, said=self._spent))


def _add(spent: dict[str, int], tool: str, amount: Number, unit: str) -> None:
    try:
        unit = unit_of(unit)
        spent[unit] = spent.get(unit, 0) + billionths(amount)
    except ValueError as error:
        raise UsageError(f"spent() of {tool}: {error}") from error


def end_open(run: Any, error: BaseException | None = None) -> None:
    """Before a run is left: attempts that know how end themselves. The rest is doubt, or a read that failed."""
    if not _is_to_be_ended(run, error):
        return
    if error is None or is_a(error, Exception):
        run._flow(leaving.let_others_end(run._session))
    for attempt in list(run._attempts):
        try:
            if attempt.at_leave is not None:
                attempt.at_leave()
        except Exception as broken:
            log_error(log, logging.ERROR, f"{visible(attempt.call.tool)} was not ended before its run was left", broken)


async def end_open_async(run: Any, error: BaseException | None = None) -> None:
    """The same, awaited."""
    if not _is_to_be_ended(run, error):
        return
    if error is None or is_a(error, Exception):
        await run._flow(leaving.let_others_end(run._session))
    for attempt in list(run._attempts):
        try:
            if attempt.at_leave is not None:
                await attempt.at_leave()
        except Exception as broken:
            log_error(log, logging.ERROR, f"{visible(attempt.call.tool)} was not ended before its run was left", broken)


def _is_to_be_ended(run: Any, error: BaseException | None) -> bool:
    """Not over a broken ledger: it would only be asked in vain, for as long as a lease is."""
    attempts = list(run._attempts)  # a copy: other threads may begin and end theirs meanwhile
    return not is_a(error, LedgerError) and any(attempt.at_leave is not None for attempt in attempts)
