"""One request to a model: what is written down before it is sent, and what after the answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import TracebackType
from typing import Any, Literal, TypeAlias

from amends import current_run
from amends.errors import NoRun, WrongColour
from amends.llm.prices import Prices
from amends.llm.wire import Api, Tokens, received_tokens, reserved_tokens, tokens_of, written

Outside: TypeAlias = Literal["raise", "pass"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that is about to be sent."""

    tool: str
    api: Api
    model: str
    args: Mapping[str, Any]
    reserved: Tokens
    prices: Prices

    @property
    def costs(self) -> dict[str, Decimal]:
        """What is reserved for it, by unit; without a price only tokens are."""
        usd = self.prices.of([self.model], self.reserved).usd
        return {"tokens": Decimal(self.reserved.total)} | ({} if usd is None else {"usd": usd})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer is to the ledger: the call's result, and what was spent."""

    result: dict[str, Any]
    spent: Mapping[str, Decimal]


def asked_for(tool: str, api: Api, body: object, prices: Prices) -> Asked:
    """The request as it is written down: its body, never its headers, which hold the API key."""
    whole = written(body if isinstance(body, Mapping) else {})
    given: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    model = str(given.get("model") or "")
    return Asked(
        tool=tool,
        api=api,
        model=model,
        args={"api": api, "model": model, "request": whole.data},
        reserved=reserved_tokens(given, size=whole.size, attachments=whole.attachments),
        prices=prices,
    )


def run_for(asked: Asked, outside: Outside, *, is_async: bool) -> Any:
    """The run that the request is made in; None where it is to pass unrecorded."""
    try:
        run = current_run()
    except NoRun:
        if outside == "pass":
            return None
        raise NoRun(
            f"{asked.tool}: {asked.model or 'a model'} was asked outside a run; nothing was sent",
            tool=asked.tool,
            hint='open a run around it; record(client, outside="pass") lets such requests pass unrecorded',
        ) from None
    if run.is_async and not is_async:
        raise WrongColour(
            f"{asked.tool}: this client blocks, and run {run.id} is async; nothing was sent",
            tool=asked.tool,
            hint="record the async client of the same SDK, and await it",
        )
    return run


# ---- what came back -----------------------------------------------------------------------


def outcome(asked: Asked, response: object, *, complete: bool = True, characters: int = 0) -> Outcome:
    """The answer as it is written down. ``complete``: it was received to its end."""
    plain = response if isinstance(response, Mapping) else None
    tokens = tokens_of(asked.api, plain)
    if not complete:
        tokens = received_tokens(asked.reserved, tokens, characters)
    told = plain.get("model") if plain is not None else None
    cost = asked.prices.of([str(told or ""), asked.model], tokens, response=plain if complete else None)
    result = {
        "model": str(told or asked.model),
        "response": written(response).data,
        "tokens": None if tokens is None else tokens.to_dict(),
        "cost_usd": cost.usd,
        "complete": complete,
    }
    notes = [cost.why] if cost.why else []
    notes += ["the answer was not received to its end: tokens are estimated"] if not complete else []
    return Outcome(result | ({"notes": notes} if notes else {}), _spent(tokens, cost.usd))


def _spent(tokens: Tokens | None, usd: Decimal | None) -> Mapping[str, Decimal]:
    """What was spent, by unit. A unit that nobody can tell keeps what was reserved for it."""
    if tokens is None:
        return {}
    return {"tokens": Decimal(tokens.total)} | ({} if usd is None else {"usd": usd})


# ---- Attempts of model requests in both colours: begun with what they may cost, ended with what they did

# The only place that knows how a call is started by hand and how its costs are told.


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
