"""What a request costs: the caller's own table first, then genai-prices; else nobody knows, and that is said."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from amends import UsageError
from amends.llm.wire import Tokens

log = logging.getLogger("amends")

Number: TypeAlias = float | Decimal
Price: TypeAlias = tuple[Number, Number] | Mapping[str, Number]
"""US dollars for a million tokens: (input, output), or by name: input, output, cache_read, cache_write."""

MILLION: Final = Decimal(1_000_000)
_NAMES: Final = ("input", "output", "cache_read", "cache_write")
_SAID_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, or why nobody can say how many."""

    usd: Decimal | None
    why: str = ""


class Prices:
    """The prices of one recorded client."""

    def __init__(self, own: Mapping[str, Price] | None, *, provider: str, url: str) -> None:
        self._own = {model: _checked(model, price) for model, price in (own or {}).items()}
        self._provider, self._url = provider, url
        self._said: set[str] = set()

    def of(self, models: Iterable[str], tokens: Tokens | None, *, tier: str | None = None) -> Cost:
        """What these tokens cost with the first of these models that has a price."""
        if tokens is None:
            return Cost(None, "the answer reports no usage")
        names = [name for name in dict.fromkeys(models) if name]
        for name in names:
            price = self._own_price(name)
            if price is not None:
                return Cost(_by_table(price, tokens))
        why = "the request names no model"
        for name in names:
            found = self._by_genai(name, tokens, tier)
            if found.usd is not None:
                return found
            why = found.why
        if "*" in self._own:
            return Cost(_by_table(self._own["*"], tokens))
        self._say(names[0] if names else "", why)
        return Cost(None, why)

    def _own_price(self, model: str) -> Mapping[str, Decimal] | None:
        if model in self._own:
            return self._own[model]
        matching = (price for pattern, price in self._own.items() if pattern != "*" and fnmatchcase(model, pattern))
        return next(matching, None)

    def _by_genai(self, model: str, tokens: Tokens, tier: str | None) -> Cost:
        try:
            import genai_prices
        except ImportError:
            return Cost(None, "genai-prices is not installed (pip install 'amends[llm]') and prices= does not have it")
        counted = {"input_tokens": tokens.input, "output_tokens": tokens.output}
        counted |= {"cache_read_tokens": tokens.cache_read} if tokens.cache_read else {}
        counted |= {"cache_write_tokens": tokens.cache_write} if tokens.cache_write else {}
        usage = genai_prices.Usage(**counted)
        context = {"service_tier": tier} if tier else None
        # A server of another provider, or a proxy that nobody knows: then it is the SDK's own provider.
        places: list[dict[str, Any]] = [{"provider_api_url": self._url}, {"provider_id": self._provider}]
        why = ""
        for place in places:
            try:
                found = genai_prices.calc_price(usage, model, price_context=context, **place)
            except Exception as error:  # the answer is paid for: whatever a table of prices does, it is handed over
                why = str(error) if not isinstance(error, LookupError) else ""
                continue
            return Cost(found.total_price)
        return Cost(None, f"neither prices= nor genai-prices has a price for {model}" + (f" ({why})" if why else ""))

    def _say(self, model: str, why: str) -> None:
        if model in self._said or len(self._said) >= _SAID_MAX:
            return
        self._said.add(model)
        log.warning("the cost of requests to %s is not known: %s; budgets in usd do not see them", model or "?", why)


def _by_table(price: Mapping[str, Decimal], tokens: Tokens) -> Decimal:
    fresh = tokens.input - tokens.cache_read - tokens.cache_write
    parts = (
        fresh * price["input"],
        tokens.cache_read * price.get("cache_read", price["input"]),
        tokens.cache_write * price.get("cache_write", price["input"]),
        tokens.output * price["output"],
    )
    return sum(parts, Decimal(0)) / MILLION


def _checked(model: str, price: Price) -> Mapping[str, Decimal]:
    named = price if isinstance(price, Mapping) else dict(zip(_NAMES, price, strict=False))
    said = f"the price of {model} is {price!r}"
    cure = "(input, output) in US dollars for a million tokens, or a mapping with cache_read and cache_write too"
    if not isinstance(price, Mapping) and len(price) != 2:
        raise UsageError(said, hint=cure)
    if {"input", "output"} - named.keys() or named.keys() - set(_NAMES):
        raise UsageError(said, hint=cure)
    try:
        made = {name: Decimal(str(value)) for name, value in named.items()}
    except InvalidOperation:
        raise UsageError(said, hint=cure) from None
    if not all(value.is_finite() and value >= 0 for value in made.values()):
        raise UsageError(said, hint=cure)
    return made
