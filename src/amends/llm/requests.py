"""One request to a model as a call of a run: recorded with its reservation before it is sent, settled with its cost."""

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
from amends.llm.wire import Api, Tokens, answering_model, received_tokens, reserved_tokens, tokens_of, written

Outside: TypeAlias = Literal["raise", "pass"]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that is about to be sent, as the ledger records it."""

    tool: str
    api: Api
    model: str
    args: Mapping[str, Any]
    reserved: Tokens
    prices: Prices

    @property
    def costs(self) -> dict[str, Decimal]:
        """Return what to reserve, by unit; only tokens if the price is not known."""
        usd = self.prices.of([self.model], self.reserved).usd
        return {"tokens": Decimal(self.reserved.total)} | ({} if usd is None else {"usd": usd})


@dataclass(frozen=True, slots=True)
class Outcome:
    """A response as the ledger records it: the result of the call, and what was spent."""

    result: dict[str, Any]
    spent: Mapping[str, Decimal]


def model_request(tool: str, api: Api, body: object, prices: Prices, *, model: str = "") -> ModelRequest:
    """Return the request as it is recorded: its body, never its headers, which have the API key.

    ``model``: its name, if the body does not have it.
    """
    whole = written(body if isinstance(body, Mapping) else {})
    given: Mapping[str, Any] = body if isinstance(body, Mapping) else {}
    model = model or str(given.get("model") or "")
    return ModelRequest(
        tool=tool,
        api=api,
        model=model,
        args={"api": api, "model": model, "request": whole.data},
        reserved=reserved_tokens(given, size=whole.size, attachments=whole.attachments),
        prices=prices,
    )


def run_for(asked: ModelRequest, outside: Outside, *, is_async: bool) -> Any:
    """Return the current run, or None if the request may pass unrecorded; raise if there is none, or of the wrong colour."""
    try:
        run = current_run()
    except NoRun:
        if outside == "pass":
            return None
        raise NoRun(
            f"{asked.tool}: {asked.model or 'a model'} was requested outside a run; nothing was sent",
            tool=asked.tool,
            hint='open a run around it, or let such requests pass unrecorded: record(client, outside="pass")',
        ) from None
    if run.is_async and not is_async:
        raise WrongColour(
            f"{asked.tool}: this client blocks, and run {run.id} is async; nothing was sent",
            tool=asked.tool,
            hint="record the async client of the same SDK, and await it",
        )
    return run


# ---- The outcome of a response


def outcome(asked: ModelRequest, response: object, *, complete: bool = True, characters: int = 0) -> Outcome:
    """Return the response as it is recorded.

    ``complete`` tells whether it was received to its end; if not, ``characters`` is how much was received.
    """
    plain = response if isinstance(response, Mapping) else None
    tokens = tokens_of(asked.api, plain)
    if not complete:
        tokens = received_tokens(asked.reserved, tokens, characters)
    answering = answering_model(asked.api, plain)
    cost = asked.prices.of([answering, asked.model], tokens, response=plain if complete else None)
    result = {
        "model": answering or asked.model,
        "response": written(response).data,
        "tokens": None if tokens is None else tokens.to_dict(),
        "cost_usd": cost.usd,
        "complete": complete,
    }
    notes = [cost.why] if cost.why else []
    notes += ["the response was not received to its end: tokens are estimated"] if not complete else []
    return Outcome(result | ({"notes": notes} if notes else {}), _spent(tokens, cost.usd))


def _spent(tokens: Tokens | None, usd: Decimal | None) -> Mapping[str, Decimal]:
    """Return what was spent, by unit. For a unit that is left out, the ledger keeps the reserved amount."""
    if tokens is None:
        return {}
    return {"tokens": Decimal(tokens.total)} | ({} if usd is None else {"usd": usd})


# ---- The attempt in the ledger, blocking and async


class Entry:
    """One request in the ledger, from start to settlement. Whoever ends it first settles it; later attempts do nothing."""

    def __init__(self, run: Any, asked: ModelRequest, attempt: Any) -> None:
        self.run, self.asked, self.attempt = run, asked, attempt
        self._once = threading.Lock()
        self.over = threading.Event()
        """Set when the settlement is durable, or has failed."""

    def take(self) -> bool:
        """Return whether the caller is the one to settle it, and must then set ``over``.

        It never waits, because a finalizer may call it.
        """
        return self._once.acquire(blocking=False)

    @property
    def is_taken(self) -> bool:
        """Return whether it is settled, or about to be."""
        return self._once.locked()

    @property
    def replayed(self) -> bool:
        """Return whether the record has the response, so that nothing is sent."""
        return bool(self.attempt.replayed)


def begin(run: Any, asked: ModelRequest) -> Entry:
    """Start the call; raise if the ledger or a budget refuses it, before anything is sent."""
    return Entry(run, asked, run.begin(asked.tool, asked.args, kind="read", cost=asked.costs))


def succeed(entry: Entry, response: object, *, complete: bool = True, characters: int = 0) -> None:
    """Settle the call as succeeded. The caller gets the response only after this is durable."""
    if entry.take():
        try:
            done = outcome(entry.asked, response, complete=complete, characters=characters)
            _report_spent(entry, done)
            entry.attempt.succeed(done.result)
        finally:
            entry.over.set()


def fail(entry: Entry, error: BaseException, known: Outcome | None = None) -> None:
    """Settle the call as failed with this error, which the caller then raises. ``known`` is what it cost, if known."""
    if entry.take():
        try:
            _report_spent(entry, known)
            entry.attempt.__exit__(*_raised(error))
        finally:
            entry.over.set()


async def begin_async(run: Any, asked: ModelRequest) -> Entry:
    """Do the same on an event loop. The run may be a blocking one: an async tool, or a loop inside the run's block."""
    if run.is_async:
        return Entry(run, asked, await run.begin(asked.tool, asked.args, kind="read", cost=asked.costs))
    return await asyncio.to_thread(begin, run, asked)


async def succeed_async(entry: Entry, response: object, *, complete: bool = True, characters: int = 0) -> None:
    """Do the same as ``succeed`` on an event loop."""
    if not entry.run.is_async:
        await asyncio.to_thread(succeed, entry, response, complete=complete, characters=characters)
    elif entry.take():
        done = outcome(entry.asked, response, complete=complete, characters=characters)
        _report_spent(entry, done)
        await entry.attempt.succeed(done.result)


async def fail_async(entry: Entry, error: BaseException, known: Outcome | None = None) -> None:
    """Do the same as ``fail`` on an event loop."""
    if not entry.run.is_async:
        await asyncio.to_thread(fail, entry, error, known)
    elif entry.take():
        _report_spent(entry, known)
        await entry.attempt.__aexit__(*_raised(error))


def _report_spent(entry: Entry, known: Outcome | None) -> None:
    """Report what was spent. For a unit that is not reported, the ledger charges the reserved amount."""
    for unit, amount in (known.spent if known is not None else {}).items():
        entry.attempt.spent(amount, unit)


def _raised(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return type(error), error, error.__traceback__


def failed_outcome(asked: ModelRequest, error: BaseException) -> Outcome | None:
    """Return what a failed request is known to have cost: some errors of the SDKs carry the response."""
    completion: Any = getattr(error, "completion", None)
    if completion is None or not hasattr(completion, "to_dict"):
        return None
    plain = completion.to_dict(mode="json", warnings=False)
    return outcome(asked, plain if isinstance(plain, Mapping) else None)
