"""What is read from the wire: a stream made of an answer is put together to that answer again."""

from __future__ import annotations

from typing import Any

import pytest

from amends.llm.prices import Prices
from amends.llm.streams import assembler, events_of
from amends.llm.wire import (
    ATTACHMENT_TOKENS,
    BYTES_PER_TOKEN,
    OUTPUT_TOKENS,
    Tokens,
    api_of,
    dialect,
    received_tokens,
    reserved_tokens,
    tokens_of,
    written,
)
from tests.llm.server import answered


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("tools", [[], [{"name": "charge"}]], ids=["text", "tools"])
def test_the_events_of_an_answer_make_that_answer(api: Any, tools: list[Any], pieces: bool) -> None:
    whole = answered(api, {"model": "m", "tools": tools})
    for choice in whole.get("choices", ()):
        for number, call in enumerate(choice["message"].get("tool_calls", ())):
            call["index"] = number
    made = assembler(api)
    for _, event in events_of(api, whole, split=list if pieces else lambda text: [text]):
        made.see(event)
    expected = {key: value for key, value in whole.items() if key != "usage" or api != "chat.completions"}
    assert made.response == expected
    assert made.characters > 0


def test_thinking_and_citations_are_put_together() -> None:
    thinking = {"type": "thinking", "thinking": "let me see", "signature": "sig"}
    answer = {"id": "m", "content": [thinking], "usage": {"output_tokens": 3}, "stop_reason": None}
    made = assembler("messages")
    for _, event in events_of("messages", {**answer, "stop_sequence": None}):
        made.see(event)
    assert made.response is not None
    assert made.response["content"] == [thinking]
    made.see({"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 1})
    made.see({"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta", "citation": {"c": 1}}})
    assert made.response["content"][1]["citations"] == [{"c": 1}]


@pytest.mark.parametrize("event", [{}, {"type": "ping"}, {"type": "content_block_delta"}, {"choices": None}])
def test_events_that_nobody_knows_change_nothing(api: Any, event: dict[str, Any]) -> None:
    made = assembler(api)
    made.see(event)
    assert made.characters == 0


@pytest.mark.parametrize("tools", [[], [{"name": "charge"}]], ids=["text", "tools"])
def test_an_answer_whose_stream_ended_too_early_is_cut_wherever_it_ended(api: Any, tools: list[Any]) -> None:
    whole = answered(api, {"model": "m", "tools": tools})
    assert dialect(api).turn(whole).cut == ""
    events = [event for _, event in events_of(api, whole)]
    last = next(place for place, event in enumerate(events) if _ends(event))
    for count in range(last + 1):
        made = assembler(api)
        for event in events[:count]:
            made.see(event)
        assert dialect(api).turn(made.response or {}).cut, f"{count} of {len(events)} events"


def _ends(event: Any) -> bool:
    ends = event.get("type") in ("message_delta", "response.completed")
    return ends or any(choice["finish_reason"] for choice in event.get("choices") or ())


@pytest.mark.parametrize("reason", ["error", "abort", "insufficient_system_resource", None])
def test_an_end_that_nobody_knows_is_not_the_models(reason: Any) -> None:
    choice = {"message": {"role": "assistant", "content": "I will"}, "finish_reason": reason}
    assert dialect("chat.completions").turn({"choices": [choice]}).cut
    assert dialect("messages").turn({"content": [], "stop_reason": reason}).cut
    assert dialect("chat.completions").turn({"choices": []}).cut


def test_arguments_that_are_no_json_are_not_no_arguments() -> None:
    made = assembler("messages")
    block = {"type": "tool_use", "id": "t1", "name": "wipe", "input": {}}
    made.see({"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}})
    made.see({"type": "content_block_start", "index": 0, "content_block": block})
    piece = {"type": "input_json_delta", "partial_json": '{"folder": "/tmp'}
    made.see({"type": "content_block_delta", "index": 0, "delta": piece})
    made.see({"type": "content_block_stop", "index": 0})
    made.see({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}})
    said = dialect("messages").turn(made.response or {})
    assert [call.args for call in said.calls] == ['{"folder": "/tmp']
    assert said.messages[0]["content"] == [block], "and as the API takes it back"


def test_only_requests_to_models_are_recorded() -> None:
    assert api_of("openai", "post", "/chat/completions") == "chat.completions"
    assert api_of("anthropic", "POST", "/v1/messages?beta=true") == "messages"
    assert api_of("openai", "get", "/chat/completions") is None
    assert api_of("openai", "post", "/embeddings") is None
    assert api_of("anthropic", "post", "/v1/messages/batches") is None


def test_usage_that_is_not_there_is_none(api: Any) -> None:
    assert tokens_of(api, None) is None
    assert tokens_of(api, {}) is None
    assert tokens_of(api, {"usage": None}) is None
    assert tokens_of(api, {"usage": {"input_tokens": None, "prompt_tokens": "x"}}) is None


def test_what_is_reserved_is_at_least_what_can_be_seen() -> None:
    reserved = reserved_tokens({"max_tokens": 50, "n": 3}, size=3000, attachments=2)
    assert reserved == Tokens(3000 // BYTES_PER_TOKEN + 2 * ATTACHMENT_TOKENS, 150, estimated=True)
    assert reserved_tokens({}, size=1, attachments=0).output == OUTPUT_TOKENS
    assert reserved_tokens({"max_output_tokens": 7}, size=1, attachments=0).output == 7


def test_what_was_received_counts_where_nothing_was_reported() -> None:
    reserved = Tokens(100, 1000, estimated=True)
    assert received_tokens(reserved, None, 30).to_dict() == {"input": 100, "output": 10, "total": 110}
    assert received_tokens(reserved, Tokens(80, 50), 30).output == 50


def test_what_is_written_down_is_plain_and_bounded() -> None:
    class Model:
        def to_dict(self, **_: Any) -> dict[str, Any]:
            return {"a": (1, 2.5, None, True)}

    assert written({"m": Model()}).data == {"m": {"a": [1, 2.5, None, True]}}
    many = written({"texts": ["word " * 300] * 2_000})
    assert many.size > 2_000_000
    assert set(many.data) == {"left out", "sha256"}
    assert written({"file": "QUJD" * 5_000}).attachments == 1
    nested: Any = "end"
    for _ in range(200):
        nested = [nested]
    assert "nested deeper" in str(written(nested).data)
    assert written("half of \ud83d").data == "half of ?"
    assert written({"prose": "plain words " * 1_000}).attachments == 0


@pytest.mark.parametrize("count", [float("inf"), 10**40, 1e300])
def test_a_count_that_cannot_be_is_a_count_all_the_same(count: Any) -> None:
    tokens = tokens_of("chat.completions", {"usage": {"prompt_tokens": count, "completion_tokens": 1}})
    assert tokens is not None
    assert tokens.total == 10**12 + 1


def test_more_that_was_cached_than_was_sent_gives_nothing_back() -> None:
    prices = Prices({"*": {"input": 10, "output": 0, "cache_read": 1}}, provider="openai", url="http://localhost")
    assert prices.of(["m"], Tokens(input=1, output=0, cache_read=1_000_000)).usd == 1
