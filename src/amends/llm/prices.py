"""What a request costs: by the caller's own table, else by genai-prices, else unknown, with a warning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias

from amends import UsageError
from amends.llm.wire import Tokens
from amends.visible import visible_log

log = visible_log("amends")

Number: TypeAlias = float | Decimal
Price: TypeAlias = tuple[Number, Number] | Mapping[str, Number]
"""US dollars per million tokens: (input, output), or by name: input, output, cache_read, cache_write."""

MILLION: Final = Decimal(1_000_000)
_NAMES: Final = ("input", "output", "cache_read", "cache_write")
_FLAVORS: Final = {"chat.completion": "chat", "response": "responses"}
"""How genai-prices names the wire formats of OpenAI, by the field ``object`` of the response; Anthropic has one format."""
_WARNED_MAX: Final = 1_000
WHY_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, or the reason why the cost is not known."""

    usd: Decimal | None
    why: str = ""


class Prices:
    """The prices of one recorded client."""

    def __init__(self, own: Mapping[str, Price] | None, *, provider: str, url: str) -> None:
        self._own = {model: _checked(model, price) for model, price in (own or {}).items()}
        self._provider, self._url = provider, url
        self._warned: set[str] = set()

    def of(self, models: Iterable[str], tokens: Tokens | None, *, response: Mapping[str, Any] | None = None) -> Cost:
        """Return what these tokens cost with the first of these models that has a price.

        ``response`` is the response that reported them; it may report more that costs, such as searches and audio.
        """
        if tokens is None:
            return Cost(None, "the response reports no usage")
        names = [name for name in dict.fromkeys(models) if name]
        for name in names:
            price = self._own_price(name)
            if price is not None:
                return Cost(_by_table(price, tokens))
        why = "the request names no model"
        for name in names:
            try:
                found = self._by_genai(name, tokens, response)
            except Exception as error:  # the response is paid for: the caller gets it even if a price table fails
                found = Cost(None, f"genai-prices failed on {name} ({type(error).__name__}: {error})"[:WHY_CHARS_MAX])
            if found.usd is not None:
                return found
            why = found.why
        if "*" in self._own:
            return Cost(_by_table(self._own["*"], tokens))
        self._warn(names[0] if names else "", why)
        return Cost(None, why)

    def _own_price(self, model: str) -> Mapping[str, Decimal] | None:
        if model in self._own:
            return self._own[model]
        matching = (price for pattern, price in self._own.items() if pattern != "*" and fnmatchcase(model, pattern))
        return next(matching, None)

    def _by_genai(self, model: str, tokens: Tokens, response: Mapping[str, Any] | None) -> Cost:
        try:
            import genai_prices
        except ImportError:
            return Cost(None, "genai-prices is not installed (pip install 'amends[llm]') and prices= does not have it")
        counted = {"input_tokens": tokens.input, "output_tokens": tokens.output}
        counted |= {"cache_read_tokens": tokens.cache_read} if tokens.cache_read else {}
        counted |= {"cache_write_tokens": tokens.cache_write} if tokens.cache_write else {}
        usage, context = genai_prices.Usage(**counted), _context(response)
        with suppress(LookupError, ValueError):  # no known provider has this URL: a proxy of the SDK's own provider
            by_url = genai_prices.calc_price(usage, model, provider_api_url=self._url, price_context=context)
            if by_url.provider.id != self._provider:
                return Cost(by_url.total_price)
        with suppress(LookupError, ValueError):
            if response is not None:
                reported = {"model": model, "usage": response.get("usage")}
                if self._provider == "google":
                    reported = {"modelVersion": model, "usageMetadata": response.get("usageMetadata")}
                flavor = _FLAVORS.get(str(response.get("object", "")), "default")
                whole = genai_prices.extract_usage(reported, provider_id=self._provider, api_flavor=flavor)
                return Cost(whole.calc_price(price_context=context).total_price)
        with suppress(LookupError, ValueError):
            found = genai_prices.calc_price(usage, model, provider_id=self._provider, price_context=context)
            return Cost(found.total_price)
        return Cost(None, f"neither prices= nor genai-prices has a price for {model}")

    def _warn(self, model: str, why: str) -> None:
        if model in self._warned or len(self._warned) >= _WARNED_MAX:
            return
        self._warned.add(model)
        log.warning("the cost of requests to %s is not known: %s; budgets in usd do not count them", model or "?", why)


def _context(response: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the service tier, on which a price can depend."""
    if response is None:
        return None
    usage = response.get("usage")
    tier = response.get("service_tier") or (usage.get("service_tier") if isinstance(usage, Mapping) else None)
    return {"service_tier": tier} if isinstance(tier, str) else None


def _by_table(price: Mapping[str, Decimal], tokens: Tokens) -> Decimal:
    fresh = max(
        0, tokens.input - tokens.cache_read - tokens.cache_write
    )  # some proxies report more cached tokens than input tokens
    parts = (
        fresh * price["input"],
        tokens.cache_read * price.get("cache_read", price["input"]),
        tokens.cache_write * price.get("cache_write", price["input"]),
        tokens.output * price["output"],
    )
    return sum(parts, Decimal(0)) / MILLION


def _checked(model: str, price: Price) -> Mapping[str, Decimal]:
    named = price if isinstance(price, Mapping) else dict(zip(_NAMES, price, strict=False))
    wrong = f"the price of {model} is {price!r}"
    cure = (
        "give (input, output) in US dollars per million tokens, or a mapping that may have cache_read and cache_write"
    )
    if not isinstance(price, Mapping) and len(price) != 2:
        raise UsageError(wrong, hint=cure)
    if {"input", "output"} - named.keys() or named.keys() - set(_NAMES):
        raise UsageError(wrong, hint=cure)
    try:
        made = {name: Decimal(str(value)) for name, value in named.items()}
    except InvalidOperation:
        raise UsageError(wrong, hint=cure) from None
    if not all(value.is_finite() and value >= 0 for value in made.values()):
        raise UsageError(wrong, hint=cure)
    return made
