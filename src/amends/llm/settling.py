"""Attempts of model requests in both colours: begun with what they may cost, ended with what they did.

The only place that knows how a call is started by hand and how its costs are told.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from amends.llm.asking import Asked, Outcome, outcome


class Entry:
    """One request in the ledger, from its start to its end. It ends once, whoever comes first."""

    def __init__(self, run: Any, asked: Asked, attempt: Any) -> None:
        self.run, self.asked, self.attempt = run, asked, attempt
        self._once = threading.Lock()
        self.over = threading.Event()
        """Set when it is durable, or could not be made so."""

    def take(self) -> bool:
        """Whether the caller is the one that ends it; then it sets ``over``. Never waits: a finalizer may ask."""
        return self._once.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        """Whether somebody has ended it, or is about to."""
        return self._once.locked()

    @property
    def replayed(self) -> bool:
        """Whether the record answers, and nothing is sent."""
        return bool(self.attempt.replayed)


# ---- blocking -----------------------------------------------------------------------------


def begin(run: Any, asked: Asked) -> Entry:
    """Start the call; raises what the ledger and the budgets have against it, before anything is sent."""
    return Entry(run, asked, run.begin(asked.tool, asked.args, kind="read", cost=asked.costs))


def succeed(entry: Entry, response: object, *, complete: bool = True, characters: int = 0) -> None:
    """It was answered; told to the caller only after this is durable."""
    if entry.take():
        try:
            done = outcome(entry.asked, response, complete=complete, characters=characters)
            _tell(entry, done)
            entry.attempt.succeed(done.result)
        finally:
            entry.over.set()


def fail(entry: Entry, error: BaseException, known: Outcome | None = None) -> None:
    """It failed with this error, which the caller raises again as it is."""
    if entry.take():
        try:
            _tell(entry, known)
            entry.attempt.__exit__(*_raised(error))
        finally:
            entry.over.set()


# ---- awaited ------------------------------------------------------------------------------


async def begin_async(run: Any, asked: Asked) -> Entry:
    """The same. In a blocking run too: an async tool's body, or an event loop inside its block."""
    if run.is_async:
        return Entry(run, asked, await run.begin(asked.tool, asked.args, kind="read", cost=asked.costs))
    return await asyncio.to_thread(begin, run, asked)


async def succeed_async(entry: Entry, response: object, *, complete: bool = True, characters: int = 0) -> None:
    """The same, awaited."""
    if not entry.run.is_async:
        await asyncio.to_thread(succeed, entry, response, complete=complete, characters=characters)
    elif entry.take():
        done = outcome(entry.asked, response, complete=complete, characters=characters)
        _tell(entry, done)
        await entry.attempt.succeed(done.result)


async def fail_async(entry: Entry, error: BaseException, known: Outcome | None = None) -> None:
    """The same, awaited."""
    if not entry.run.is_async:
        await asyncio.to_thread(fail, entry, error, known)
    elif entry.take():
        _tell(entry, known)
        await entry.attempt.__aexit__(*_raised(error))


def _tell(entry: Entry, known: Outcome | None) -> None:
    """What was spent. Of a unit that is not named here, the ledger takes what was reserved."""
    for unit, amount in (known.spent if known is not None else {}).items():
        entry.attempt.spent(amount, unit)


def _raised(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return type(error), error, error.__traceback__


def failed_outcome(asked: Asked, error: BaseException) -> Outcome | None:
    """What is known to be spent although it failed: some errors of the SDKs carry the answer that they are about."""
    completion: Any = getattr(error, "completion", None)
    if completion is None or not hasattr(completion, "to_dict"):
        return None
    plain = completion.to_dict(mode="json", warnings=False)
    return outcome(asked, plain if isinstance(plain, Mapping) else None)
