"""What a request costs: the own table, genai-prices, and the word that nobody knows."""

from __future__ import annotations

import logging
import sys
from decimal import Decimal
from typing import Any

import genai_prices
import pytest
from openai import OpenAI

from amends import Runtime, UsageError
from amends.llm import record
from amends.llm.prices import Prices
from amends.llm.wire import Tokens
from tests.llm.conftest import CLAUDE, GPT, chat

USED = Tokens(1000, 200, cache_read=300, cache_write=100)


def prices(own: Any = None, *, provider: str = "openai", url: str = "http://127.0.0.1/v1") -> Prices:
    return Prices(own, provider=provider, url=url)


def test_the_own_table_is_in_dollars_for_a_million_tokens() -> None:
    assert prices({GPT: (1, "2")}).of([GPT], USED).usd == Decimal("0.0014")
    named = {"input": 1, "output": 2, "cache_read": Decimal("0.1"), "cache_write": 1.25}
    assert prices({GPT: named}).of([GPT], USED).usd == Decimal("0.001155")


def test_the_own_table_wins_and_may_have_wildcards() -> None:
    table = prices({"gpt-*": (1, 1), GPT: (2, 2)})
    assert table.of([GPT], USED).usd == Decimal("0.0024")
    assert table.of(["gpt-4o"], USED).usd == Decimal("0.0012")


def test_a_lone_star_is_for_models_that_have_no_price_elsewhere() -> None:
    table = prices({"*": (100, 100)})
    assert table.of(["nobodys-model"], USED).usd == Decimal("0.12")
    assert (table.of([GPT], USED).usd or 0) < Decimal("0.01")


def test_genai_prices_has_the_rest() -> None:
    usage = genai_prices.Usage(input_tokens=1000, output_tokens=200, cache_read_tokens=300, cache_write_tokens=100)
    expected = genai_prices.calc_price(usage, CLAUDE, provider_id="anthropic").total_price
    assert expected > 0
    assert prices(provider="anthropic").of([CLAUDE], USED).usd == expected
    assert prices(provider="anthropic", url="https://api.anthropic.com").of([CLAUDE], USED).usd == expected


def test_what_costs_beside_tokens_is_counted_where_it_is_reported() -> None:
    usage = {"input_tokens": 600, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 100}
    usage |= {"output_tokens": 200}
    table = prices(provider="anthropic", url="https://api.anthropic.com")
    plain = table.of([CLAUDE], USED, response={"usage": usage}).usd
    searched = table.of(
        [CLAUDE], USED, response={"usage": {**usage, "server_tool_use": {"web_search_requests": 3}}}
    ).usd
    assert plain == table.of([CLAUDE], USED).usd
    assert searched is not None
    assert plain is not None
    assert searched > plain


def test_the_tier_that_answered_is_priced() -> None:
    answer = {"object": "chat.completion", "usage": {"prompt_tokens": 1000, "completion_tokens": 200}}
    used, url = Tokens(1000, 200), "https://api.openai.com/v1/"
    normal = prices(url=url).of(["gpt-4.1"], used, response={**answer, "service_tier": "default"}).usd
    faster = prices(url=url).of(["gpt-4.1"], used, response={**answer, "service_tier": "priority"}).usd
    assert normal is not None
    assert faster is not None
    assert faster > normal


def test_a_server_of_another_provider_has_its_own_prices() -> None:
    here = prices(url="https://api.deepseek.com/v1").of(["deepseek-chat"], Tokens(1000, 200))
    assert here.usd is not None
    assert prices(url="https://api.openai.com/v1/").of(["deepseek-chat"], Tokens(1000, 200)).usd is None


def test_a_table_that_fails_costs_nobody_his_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(genai_prices, "calc_price", lambda *_, **__: 1 / 0)
    cost = prices().of([GPT], USED)
    assert cost.usd is None
    assert "ZeroDivisionError" in cost.why


def test_the_model_that_answered_is_priced_before_the_one_asked_for() -> None:
    table = prices({"alias": (1, 1), "real": (2, 2)})
    assert table.of(["real", "alias"], USED).usd == Decimal("0.0024")
    assert table.of(["unknown-snapshot", "alias"], USED).usd == Decimal("0.0012")


def test_without_a_price_the_cost_is_none_and_that_is_said(
    rt: Runtime, openai: OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "amends"), rt.run("r"):
        chat(record(openai), model="nobodys-model")
    result = rt.report("r").calls[0].result
    assert result["cost_usd"] is None
    assert result["tokens"]["total"] == 1200
    assert "nobodys-model" in result["notes"][0]
    assert len([one for one in caplog.records if "is not known" in one.message]) == 1


def test_without_genai_prices_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    cost = prices().of([GPT], USED)
    assert cost.usd is None
    assert "amends[llm]" in cost.why
    assert prices({GPT: (1, 1)}).of([GPT], USED).usd is not None


def test_without_usage_the_cost_is_none() -> None:
    assert prices().of([GPT], None).usd is None


@pytest.mark.parametrize(
    "price", [(1,), (1, 2, 3), (-1, 2), ("x", 2), {"input": 1}, {"input": 1, "output": 2, "x": 3}, (float("nan"), 1)]
)
def test_a_price_that_makes_no_sense_is_refused(openai: OpenAI, price: Any) -> None:
    with pytest.raises(UsageError, match="the price of m is"):
        record(openai, {"m": price})
