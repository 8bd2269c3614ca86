"""A run that asked models, replayed: the models are not asked, and say the same."""

from __future__ import annotations

from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest

from amends import Runtime
from amends.errors import Diverged
from tests.llm.conftest import Ask
from tests.llm.server import Server


def test_what_a_model_said_it_says_again_without_being_asked(rt: Runtime, ask: Ask, server: Server) -> None:
    def agent() -> Any:
        return ask().to_dict()

    with rt.run("r") as run:
        run.output = agent()
    asked = len(server.asked)
    assert rt.replay("r", agent) == run.output
    assert len(server.asked) == asked


def test_a_stream_is_streamed_again(rt: Runtime, ask: Ask, server: Server) -> None:
    def agent() -> int:
        return sum(1 for _ in ask(stream=True))

    with rt.run("r"):
        assert agent() > 0
    asked = len(server.asked)
    assert rt.replay("r", agent) > 0
    assert len(server.asked) == asked


def test_another_request_is_a_divergence(rt: Runtime, ask: Ask) -> None:
    with rt.run("r"):
        ask()
    with pytest.raises(Diverged) as found:
        rt.replay("r", lambda: ask(model="another"))
    assert found.value.how == "arguments"
    assert "another" in str(found.value)


def test_an_error_of_the_sdk_is_caught_as_what_it_is(rt: Runtime, ask: Ask, api: str, server: Server) -> None:
    sdk: Any = anthropic_sdk if api == "messages" else openai_sdk

    def agent() -> str:
        try:
            ask(model="fails-429")
        except sdk.RateLimitError as error:
            return str(error)
        return ""

    with rt.run("r"):
        live = agent()
    assert live
    asked = len(server.asked)
    assert rt.replay("r", agent) == live
    assert len(server.asked) == asked
