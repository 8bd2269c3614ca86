"""Budgets see models: tokens and money are reserved before a request is sent, and settled to what it used."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import openai as openai_sdk
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from amends import AsyncRuntime, Budget, Runtime
from amends.errors import BudgetExceeded
from amends.llm import record
from tests.llm.conftest import GPT, SAID, Ask, chat, messages, responses
from tests.llm.server import Server

PRICES = {"*": (1, 1), GPT: (1, 1)}
"""A token is a millionth of a dollar."""


def runtime(cap: Any, unit: str = "tokens", **more: Any) -> Runtime:
    return Runtime("memory:", budgets=[Budget(cap, unit=unit, **more)])


@pytest.fixture
def client(openai: OpenAI) -> OpenAI:
    return record(openai, PRICES)


def spent(refused: pytest.ExceptionInfo[BudgetExceeded]) -> tuple[Decimal, Decimal]:
    return refused.value.spent, refused.value.reserved


def test_a_request_that_may_use_more_than_is_left_is_not_sent(ask: Ask, api: str, server: Server) -> None:
    limit = {"chat.completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[api]
    with runtime(1000) as rt, rt.run("r"):
        with pytest.raises(BudgetExceeded) as refused:
            ask(**{limit: 990})
    assert server.asked == []
    assert refused.value.asked > 990
    assert refused.value.tool.startswith("model:")


def test_what_is_reserved_is_settled_to_what_was_used(client: OpenAI) -> None:
    with runtime(6_000) as rt, rt.run("r"):
        chat(client, max_tokens=4_000)  # reserves over 4,000, uses 1,200
        responses(client, max_output_tokens=4_000)
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=4_000)
    assert spent(refused) == (Decimal(2_400), Decimal(0))


def test_money_is_reserved_and_settled_too(client: OpenAI) -> None:
    with runtime(Decimal("0.006"), "usd") as rt, rt.run("r"):
        chat(client, max_tokens=4_000)
        chat(client, max_tokens=4_000)
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=4_000)
    assert spent(refused) == (Decimal("0.0024"), Decimal(0))


def test_what_is_used_beyond_the_reservation_counts(client: OpenAI) -> None:
    with runtime(1_000) as rt, rt.run("r"):
        chat(client, max_tokens=10)
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=10)
    assert spent(refused) == (Decimal(1_200), Decimal(0))


def test_a_refused_request_gives_its_reservation_back_and_a_lost_one_does_not(client: OpenAI) -> None:
    with runtime(10_000) as rt, rt.run("r"):
        with pytest.raises(openai_sdk.RateLimitError):
            chat(client, model="fails-429", max_tokens=4_000)
        with pytest.raises(openai_sdk.APITimeoutError):
            chat(client.with_options(timeout=0.1), model="silent", max_tokens=4_000)
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=8_000)
    assert 4_000 < refused.value.spent < 4_100, "nobody knows whether the lost one was worked on"


def test_a_stream_keeps_its_reservation_until_it_ends(client: OpenAI) -> None:
    with runtime(6_000) as rt, rt.run("r"):
        with chat(client, max_tokens=4_000, stream=True) as stream:
            with pytest.raises(BudgetExceeded) as refused:
                chat(client, max_tokens=4_000)
            assert refused.value.reserved > 4_000
            assert len(list(stream)) > 5
        chat(client, max_tokens=4_000)
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=4_000)
    assert spent(refused) == (Decimal(2_400), Decimal(0))


def test_a_stream_that_is_broken_off_settles_what_is_known(anthropic: Any) -> None:
    client = record(anthropic)
    with runtime(6_000) as rt, rt.run("r"):
        with messages(client, max_tokens=4_000, stream=True) as stream:
            next(stream)
        with pytest.raises(BudgetExceeded) as refused:
            messages(client, max_tokens=6_000)
    assert spent(refused) == (Decimal(1_001), Decimal(0)), "the first event says 1,000 and 1"


def test_a_stream_that_fails_midway_settles_what_is_known(client: OpenAI) -> None:
    with runtime(6_000) as rt, rt.run("r"):
        with pytest.raises(openai_sdk.APIConnectionError):
            list(chat(client, model="breaks", max_tokens=4_000, stream=True))
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=6_000)
    assert 0 < refused.value.spent < 200


def test_an_answer_that_the_sdk_refuses_to_parse_was_paid_for(client: OpenAI) -> None:
    class Birds(pydantic.BaseModel):
        birds: int

    with runtime(6_000) as rt, rt.run("r"):
        with pytest.raises(openai_sdk.LengthFinishReasonError):
            client.chat.completions.parse(
                model=GPT, messages=SAID, response_format=Birds, max_tokens=10, extra_body={"_finish": "length"}
            )
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, max_tokens=6_000)
        assert rt.report("r").calls[0].state == "failed"
    assert spent(refused) == (Decimal(1_200), Decimal(0))


def test_a_request_without_a_price_is_seen_by_budgets_in_tokens_only(openai: OpenAI) -> None:
    client = record(openai)
    budgets = [Budget(Decimal("0.000001")), Budget(2_000, unit="tokens")]
    with Runtime("memory:", budgets=budgets) as rt, rt.run("r"):
        chat(client, model="nobodys-model", max_tokens=100)
        with pytest.raises(BudgetExceeded) as refused:
            chat(client, model="nobodys-model", max_tokens=1_000)
        assert refused.value.budget.unit == "tokens"


def test_a_budget_of_one_provider_leaves_the_others_alone(client: OpenAI, anthropic: Any) -> None:
    with runtime(100, tool="model:openai") as rt, rt.run("r"):
        messages(record(anthropic))
        with pytest.raises(BudgetExceeded):
            chat(client)


def test_async_clients_reserve_and_settle_too(server: Server) -> None:
    async def main() -> BudgetExceeded:
        async with AsyncOpenAI(**server.openai) as given:
            client = record(given, PRICES)
            async with AsyncRuntime("memory:", budgets=[Budget(6_000, unit="tokens")]) as rt, rt.run("r"):
                await chat(client, max_tokens=4_000)  # type: ignore[arg-type]
                async with await chat(client, max_tokens=4_000, stream=True) as stream:  # type: ignore[arg-type]
                    assert len([chunk async for chunk in stream]) > 5
                with pytest.raises(BudgetExceeded) as refused:
                    await chat(client, max_tokens=4_000)  # type: ignore[arg-type]
                return refused.value

    refused = asyncio.run(main())
    assert (refused.spent, refused.reserved) == (Decimal(2_400), Decimal(0))


def test_requests_that_race_never_reserve_more_than_there_is(client: OpenAI, server: Server) -> None:
    with runtime(3_000) as rt, rt.run("r") as run:
        racing = [run.submit(chat, client, max_tokens=1_000) for _ in range(8)]
        errors = [one.exception() for one in racing]
    assert {type(error) for error in errors if error is not None} == {BudgetExceeded}
    assert len(server.asked) == errors.count(None) <= 2
