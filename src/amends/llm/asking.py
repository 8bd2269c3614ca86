"""One request to a model: what is written down before it is sent, and what after the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
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
