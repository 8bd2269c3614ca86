"""Streams: the caller sees what the provider sent, and the call is settled when the stream ends, however it does."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic import Anthropic
from openai import OpenAI

import amends
from amends import Runtime, tool
from amends.llm import record
from tests.llm.conftest import CLAUDE, GPT, SAID, Ask, chat, messages
from tests.llm.server import TEXT, USAGE_CHAT, Server

TOOLS: list[Any] = [{"type": "function", "function": {"name": "charge", "parameters": {"type": "object"}}}]


def only(rt: Runtime, run_id: str = "r") -> amends.Call:
    [call] = rt.report(run_id).calls
    return call


def settled(rt: Runtime, run_id: str = "r") -> amends.Call:
    """The call once it is settled: by another thread, soon."""
    until = time.monotonic() + 10
    while (call := only(rt, run_id)).state == "started":
        assert time.monotonic() < until, "nobody settled the call"
        threading.Event().wait(0.005)
    return call


def test_a_stream_that_is_read_to_its_end_is_recorded_as_its_answer(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r") as run:
        stream = ask(stream=True)
        assert run.report().calls[0].state == "started"
        events = [event.to_dict() for event in stream]
        call = run.report().calls[0]
    assert (call.state, call.result["complete"]) == ("succeeded", True)
    assert TEXT in json.dumps(call.result["response"])
    assert (call.result["tokens"]["input"], call.result["tokens"]["output"]) == (1000, 200)
    assert call.result["cost_usd"] > 0
    assert len(events) > 5


def test_a_streamed_answer_is_kept_in_the_form_of_one_that_was_not(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r"):
        ask()
        list(ask(stream=True))
    whole, streamed = (call.result["response"] for call in rt.report("r").calls)
    for found in (whole, streamed):
        found.pop("citations", None)
        for part in (*found.get("choices", ()), *found.get("content", ())):
            part.pop("logprobs", None)
            part.pop("citations", None)
    assert streamed == whole


def test_tool_calls_in_a_stream_are_put_together(rt: Runtime, openai: OpenAI, anthropic: Anthropic) -> None:
    with rt.run("r"):
        list(chat(record(openai), stream=True, tools=TOOLS))
        list(messages(record(anthropic), stream=True, tools=[{"name": "charge", "input_schema": {"type": "object"}}]))
    first, second = rt.report("r").calls
    [call] = first.result["response"]["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "charge", "arguments": '{"cents": 5}'}
    assert second.result["response"]["content"][1]["input"] == {"cents": 5}


def test_the_caller_of_a_chat_sees_no_usage_that_he_did_not_ask_for(
    rt: Runtime, openai: OpenAI, server: Server
) -> None:
    with rt.run("r"):
        plain = [chunk.to_dict() for chunk in chat(openai, stream=True)]
        seen = [chunk.to_dict() for chunk in chat(record(openai), stream=True)]
    assert seen == plain, "not one chunk more"
    assert server.asked[1]["stream_options"] == {"include_usage": True}
    assert only(rt).result["tokens"]["total"] == 1200


def test_the_caller_of_a_chat_who_asks_for_usage_sees_it(rt: Runtime, openai: OpenAI) -> None:
    with rt.run("r"):
        seen = list(chat(record(openai), stream=True, stream_options={"include_usage": True}))
    assert seen[-1].usage is not None
    assert seen[-1].usage.to_dict() == USAGE_CHAT


def test_a_chat_whose_caller_wants_no_usage_has_none(rt: Runtime, openai: OpenAI) -> None:
    with rt.run("r"):
        list(chat(record(openai), stream=True, stream_options={"include_usage": False}))
    result = only(rt).result
    assert (result["tokens"], result["cost_usd"]) == (None, None)
    assert result["notes"] == ["the response reports no usage"]


def test_the_sdks_own_stream_helpers_are_recorded(rt: Runtime, openai: OpenAI, anthropic: Anthropic) -> None:
    with rt.run("r"):
        with record(anthropic).messages.stream(model=CLAUDE, max_tokens=9, messages=SAID) as stream:
            assert "".join(stream.text_stream) == TEXT
        with record(openai).chat.completions.stream(model=GPT, messages=SAID) as events:
            assert events.get_final_completion().choices[0].message.content == TEXT
        with record(openai).responses.stream(model=GPT, input="?") as more:
            assert more.get_final_response().output_text == TEXT
        raw = record(openai).chat.completions.with_raw_response.create(model=GPT, messages=SAID, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in raw.parse()) == TEXT
    told = [(call.state, call.result["complete"], call.result["tokens"]["total"]) for call in rt.report("r").calls]
    assert told == [("succeeded", True, 1200)] * 4


# ---- broken off ---------------------------------------------------------------------------


def check_broken_off(call: amends.Call, api: str) -> None:
    assert call.state == "succeeded"
    assert call.result["complete"] is False
    assert "estimated" in call.result["notes"][-1]
    tokens = call.result["tokens"]
    assert tokens["output"] < 200
    if api == "messages":
        assert tokens["input"] == 1000, "the provider has said so in the first event"
    else:
        assert 0 < tokens["input"] < 300, "as it was reserved"
    assert call.result["cost_usd"] > 0


def read_some(stream: Any) -> None:
    for _, event in zip(range(5), stream, strict=False):
        assert event is not None


def test_a_stream_that_is_closed_midway_settles_what_is_known(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r") as run:
        stream = ask(stream=True, model="waits")
        next(iter(stream))
        stream.close()
        assert run.report().calls[0].state == "succeeded", "when close() returns"
    assert only(rt).result["cost_usd"] is None, "nobody knows that model"


def test_a_block_around_a_stream_that_ends_early_settles_what_is_known(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r") as run:
        with ask(stream=True) as stream:
            read_some(stream)
        check_broken_off(run.report().calls[0], api)


def test_the_helpers_blocks_settle_what_is_known(rt: Runtime, openai: OpenAI, anthropic: Anthropic) -> None:
    with rt.run("r") as run:
        with record(anthropic).messages.stream(model=CLAUDE, max_tokens=9, messages=SAID) as stream:
            read_some(stream)
        with record(openai).chat.completions.stream(model=GPT, messages=SAID) as events:
            read_some(events)
        with record(openai).responses.stream(model=GPT, input="?") as more:
            read_some(more)
        for call, api in zip(run.report().calls, ("messages", "chat.completions", "responses"), strict=True):
            check_broken_off(call, api)


def test_a_stream_that_nobody_has_any_more_settles_what_is_known(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r"):
        stream = ask(stream=True)
        read_some(stream)
        del stream
        gc.collect()  # an error's traceback, or a debugger, may have it in a cycle
        check_broken_off(settled(rt), api)


def test_a_stream_that_is_open_when_the_run_is_left_settles_what_is_known(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r"):
        stream = ask(stream=True)
        read_some(stream)
    check_broken_off(only(rt), api)
    assert rt.report("r").state == "committed"
    assert list(stream), "the caller may read on; the run has ended without it"


def test_a_stream_that_is_open_when_the_run_is_taken_back_settles_what_is_known(
    rt: Runtime, ask: Ask, api: str
) -> None:
    with pytest.raises(amends.RolledBack), rt.run("r") as run:
        stream = ask(stream=True)
        read_some(stream)
        run.rollback("enough")
    check_broken_off(only(rt), api)


def test_many_dropped_streams_at_the_end_of_a_run_are_all_settled(tmp_path: Path, openai: OpenAI) -> None:
    client = record(openai)
    rt = Runtime(f"sqlite:///{tmp_path}/ledger.db")

    def some() -> None:
        for _ in chat(client, stream=True):
            break

    with rt:
        with rt.run("r") as run:
            for one in [run.submit(some) for _ in range(10)]:
                one.result()
            for _ in range(10):
                some()
        assert [call.state for call in rt.report("r").calls] == ["succeeded"] * 20


def test_a_stream_that_is_still_read_keeps_the_pivot_waiting(openai: OpenAI) -> None:
    @tool(kind="pivot")
    def ship() -> str:
        return "shipped"

    with Runtime("memory:", tools=[ship]) as rt, rt.run("r"):
        stream = chat(record(openai), stream=True)
        read_some(stream)
        with pytest.raises(amends.Refused, match="model:openai"):
            ship()
        stream.close()
        assert ship() == "shipped"


# ---- broken -------------------------------------------------------------------------------


def test_an_error_in_the_middle_of_a_stream_comes_out_as_itself(rt: Runtime, ask: Ask, api: str) -> None:
    expected: tuple[type[Exception], ...] = (openai_sdk.APIConnectionError,)
    if api == "messages":
        import httpx2

        expected = (anthropic_sdk.APIConnectionError, httpx2.RemoteProtocolError)
    with rt.run("r"), pytest.raises(expected):
        list(ask(stream=True, model="breaks"))
    call = only(rt)
    assert call.state == "failed"
    assert "Error" in (call.error or "")


def test_an_interrupt_in_the_middle_of_a_stream_fails_the_read(rt: Runtime, openai: OpenAI) -> None:
    def interrupted(events: Iterator[Any]) -> Iterator[Any]:
        yield next(events)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), rt.run("r"):
        stream = chat(record(openai), stream=True)
        watched: Any = stream._iterator
        watched._events = interrupted(watched._events)  # as if it came while the next event was awaited
        list(stream)
    assert only(rt).state == "failed"


def test_an_event_that_cannot_be_recorded_still_reaches_the_caller(
    rt: Runtime, openai: OpenAI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("amends.llm.streams._Chat.see", lambda *_: 1 / 0)
    with rt.run("r"):
        assert len(list(chat(record(openai), stream=True))) > 5
    assert only(rt).state == "succeeded"
    assert "could not be recorded" in caplog.text
