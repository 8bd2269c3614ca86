"""What a recorded client leaves in the ledger, and that it is otherwise the client that it was."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal
from typing import Any, assert_type

import anthropic as anthropic_sdk
import httpx2
import openai as openai_sdk
import pydantic
import pytest
from anthropic import Anthropic
from openai import AzureOpenAI, OpenAI

import amends
from amends import AsyncRuntime, Runtime, UsageError, tool
from amends.errors import NoRun, RunEnded, WrongColour
from amends.llm import record
from tests.llm.conftest import CLAUDE, GPT, SAID, Ask, chat, messages, responses
from tests.llm.server import TEXT, Server, answered

SDK_ERRORS = {"messages": anthropic_sdk}


def only(rt: Runtime, run_id: str) -> amends.Call:
    [call] = rt.report(run_id).calls
    return call


def text_of(answer: Any) -> str:
    if hasattr(answer, "output_text"):
        return str(answer.output_text)
    return str(answer.choices[0].message.content if hasattr(answer, "choices") else answer.content[0].text)


# ---- what is written down -----------------------------------------------------------------


def test_a_request_is_a_read_with_request_answer_model_tokens_and_cost(rt: Runtime, ask: Ask, api: str) -> None:
    with rt.run("r"):
        answer = ask()
    assert text_of(answer) == TEXT
    call = only(rt, "r")
    model = CLAUDE if api == "messages" else GPT
    assert (call.kind, call.state) == ("read", "succeeded")
    assert call.tool == ("model:anthropic" if api == "messages" else "model:openai")
    assert (call.args["api"], call.args["model"]) == (api, model)
    assert "How many birds?" in json.dumps(call.args["request"])
    assert TEXT in json.dumps(call.result["response"])
    assert call.result["model"] == model
    assert (call.result["tokens"]["input"], call.result["tokens"]["output"]) == (1000, 200)
    assert isinstance(call.result["cost_usd"], Decimal)
    assert call.result["cost_usd"] > 0
    assert call.result["complete"] is True


def test_the_cache_of_the_provider_is_counted_as_input(rt: Runtime, openai: OpenAI, anthropic: Anthropic) -> None:
    with rt.run("r"):
        responses(record(openai))
        messages(record(anthropic))
    first, second = rt.report("r").calls
    assert first.result["tokens"] == {"input": 1000, "output": 200, "total": 1200, "cache_read": 400, "reasoning": 50}
    assert second.result["tokens"] == {
        "input": 1000, "output": 200, "total": 1200, "cache_read": 300, "cache_write": 100,
    }  # fmt: skip


def test_the_key_of_the_provider_is_nowhere_in_the_ledger(rt: Runtime, ask: Ask) -> None:
    with rt.run("r"):
        ask(extra_headers={"x-secret": "canary-2"})
    told = repr(rt.report("r").to_dict()) + repr(list(rt.events()))
    assert "canary" not in told


def test_equal_requests_are_all_sent_and_all_recorded(rt: Runtime, ask: Ask, server: Server) -> None:
    with rt.run("r"):
        ask()
        ask()
    assert [call.state for call in rt.report("r").calls] == ["succeeded", "succeeded"]
    assert len(server.asked) == 2


def test_a_request_in_the_body_of_a_tool_names_the_call_that_made_it(openai: OpenAI) -> None:
    client = record(openai)

    @tool(kind="read")
    def summarise() -> str:
        return text_of(chat(client))

    with Runtime("memory:", tools=[summarise]) as rt:
        with rt.run("r"):
            assert summarise() == TEXT
        outer, inner = rt.report("r").calls
    assert (outer.tool, inner.tool, inner.parent) == ("summarise", "model:openai", outer.id)


def test_requests_that_are_no_model_calls_pass_by(rt: Runtime, anthropic: Anthropic) -> None:
    with rt.run("r"):
        counted = record(anthropic).messages.count_tokens(model=CLAUDE, messages=SAID)
    assert counted.input_tokens == 7
    assert rt.report("r").calls == ()


def test_an_attachment_is_kept_by_its_digest(rt: Runtime, openai: OpenAI, server: Server) -> None:
    image = "data:image/png;base64," + "iVBOR" * 400_000
    content = [{"type": "image_url", "image_url": {"url": image}}]
    with rt.run("r"):
        chat(record(openai), messages=[{"role": "user", "content": content}])
    assert server.asked[0]["messages"][0]["content"] == content, "the model gets all of it"
    kept = json.dumps(only(rt, "r").args)
    assert "sha256" in kept
    assert len(kept) < 1_000


def test_a_request_that_is_too_large_for_the_ledger_is_sent_and_kept_short(
    rt: Runtime, openai: OpenAI, server: Server
) -> None:
    said = "a word " * 200_000
    with rt.run("r"):
        chat(record(openai), messages=[{"role": "user", "content": said}])
    assert server.asked[0]["messages"][0]["content"] == said
    kept = only(rt, "r").args["request"]["messages"][0]["content"]
    assert kept.startswith("a word a word")
    assert "[left out: 1400000 characters, sha256" in kept


# ---- the same client ----------------------------------------------------------------------


def test_the_client_is_of_its_type_and_the_one_given_stays_as_it_was(
    rt: Runtime, openai: OpenAI, anthropic: Anthropic
) -> None:
    assert_type(record(openai), OpenAI)
    for given in (openai, anthropic):
        client: Any = record(given)
        assert isinstance(client, type(given))
        assert type(client).__name__ == type(given).__name__
        assert (client.api_key, client.base_url) == (given.api_key, given.base_url)
        assert client._client is given._client, "connections are shared"
    assert text_of(chat(openai)) == TEXT, "outside a run, unrecorded"


def test_copies_are_recorded_too(rt: Runtime, openai: OpenAI) -> None:
    client = record(openai)
    with rt.run("r"):
        chat(client.with_options(timeout=5.0))
        chat(client.copy(max_retries=1))
        client.with_options(timeout=5.0).with_raw_response.chat.completions.create(model=GPT, messages=SAID)
    assert len(rt.report("r").calls) == 3


def test_recorded_twice_is_recorded_once_as_said_last(rt: Runtime, openai: OpenAI) -> None:
    client = record(record(openai, {GPT: (1, 1)}), {GPT: (2, 2)})
    with rt.run("r"):
        chat(client)
    assert only(rt, "r").result["cost_usd"] == Decimal("0.0024")


def test_raw_and_streamed_responses_are_as_they_were(rt: Runtime, openai: OpenAI, anthropic: Anthropic) -> None:
    with rt.run("r"):
        raw = record(openai).chat.completions.with_raw_response.create(model=GPT, messages=SAID)
        assert raw.http_response.status_code == 200
        assert text_of(raw.parse()) == TEXT
        with record(openai).responses.with_streaming_response.create(model=GPT, input="?") as streamed:
            assert b"".join(streamed.iter_bytes()).startswith(b"{")
            assert text_of(streamed.parse()) == TEXT
        other = record(anthropic).messages.with_raw_response.create(model=CLAUDE, max_tokens=9, messages=SAID)
        assert text_of(other.parse()) == TEXT
    assert [call.result["tokens"]["total"] for call in rt.report("r").calls] == [1200, 1200, 1200]


def test_parsed_answers_are_recorded(rt: Runtime, openai: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    class Birds(pydantic.BaseModel):
        birds: int

    monkeypatch.setattr("tests.llm.server.TEXT", '{"birds": 24}')
    with rt.run("r"):
        parsed = record(openai).chat.completions.parse(model=GPT, messages=SAID, response_format=Birds)
        again = record(openai).responses.parse(model=GPT, input="?", text_format=Birds)
    assert parsed.choices[0].message.parsed == again.output_parsed == Birds(birds=24)
    assert [call.result["tokens"]["total"] for call in rt.report("r").calls] == [1200, 1200]


def test_a_client_of_azure_is_recorded(rt: Runtime) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path == "/openai/deployments/gpt-4o-mini/chat/completions"
        return httpx2.Response(200, json=answered("chat.completions", {"model": GPT}))

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    azure: dict[str, Any] = {"azure_endpoint": "https://here.openai.azure.com", "api_version": "2025-01-01"}
    with AzureOpenAI(**azure, api_key="x", http_client=http) as client, rt.run("r"):
        assert text_of(chat(record(client))) == TEXT
    assert only(rt, "r").result["cost_usd"] > 0


# ---- where it may be used -----------------------------------------------------------------


def test_outside_a_run_nothing_is_sent(ask: Ask, server: Server) -> None:
    with pytest.raises(NoRun, match="nothing was sent") as refused:
        ask()
    assert 'outside="pass"' in refused.value.hint
    assert server.asked == []


def test_outside_a_run_it_passes_where_that_is_said(rt: Runtime, ask: Ask) -> None:
    assert text_of(ask(outside="pass")) == TEXT
    with rt.run("r"):
        ask(outside="pass")
    assert only(rt, "r").state == "succeeded"


def test_a_compensation_asks_no_model(openai: OpenAI, server: Server) -> None:
    client, said = record(openai), []

    @tool
    def charge() -> int:
        return 1

    @charge.compensate
    def refund() -> None:
        with pytest.raises(NoRun) as refused:
            chat(client)
        said.append(refused.value)

    with Runtime("memory:", tools=[charge]) as rt:
        with pytest.raises(ValueError), rt.run("r"):
            charge()
            raise ValueError
        assert rt.report("r").state == "rolled_back"
    assert len(said) == 1
    assert server.asked == []


async def _in_an_async_run(client: OpenAI) -> None:
    rt = AsyncRuntime("memory:")
    async with rt.run("r"):
        chat(client)


def test_a_blocking_client_in_an_async_run_is_the_wrong_colour(openai: OpenAI, server: Server) -> None:
    import asyncio

    with pytest.raises(WrongColour, match="async"):
        asyncio.run(_in_an_async_run(record(openai)))
    assert server.asked == []


def test_what_is_no_client_is_refused(openai: OpenAI) -> None:
    with pytest.raises(UsageError, match="not dict"):
        record({})
    with pytest.raises(UsageError, match="outside is 'maybe'"):
        record(openai, outside="maybe")  # type: ignore[arg-type]


def test_importing_amends_imports_none_of_it() -> None:
    code = (
        "import sys, amends; first = [m for m in sys.modules if m.startswith('amends.llm')];"
        "import amends.llm; heavy = {'openai', 'anthropic', 'genai_prices', 'httpx2'} & set(sys.modules);"
        "print(first, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


# ---- what goes wrong ----------------------------------------------------------------------


def test_an_error_of_the_provider_comes_out_as_itself(rt: Runtime, ask: Ask, api: str) -> None:
    sdk: Any = SDK_ERRORS.get(api, openai_sdk)
    with rt.run("r"):
        with pytest.raises(sdk.RateLimitError) as raised:
            ask(model="fails-429")
        assert raised.value.status_code == 429
    call = only(rt, "r")
    assert call.state == "failed"
    assert (call.error or "").startswith(f"{sdk.__name__}.RateLimitError")


def test_a_timeout_comes_out_as_itself(rt: Runtime, ask: Ask, api: str) -> None:
    sdk: Any = SDK_ERRORS.get(api, openai_sdk)
    with rt.run("r"), pytest.raises(sdk.APITimeoutError):
        ask(model="silent", options={"timeout": 0.1})
    call = only(rt, "r")
    assert (call.state, (call.error or "").partition(":")[0]) == ("failed", f"{sdk.__name__}.APITimeoutError")
    assert rt.report("r").state == "committed", "a read is never in doubt"


def test_nobody_listening_comes_out_as_itself(rt: Runtime) -> None:
    with OpenAI(api_key="x", base_url="http://127.0.0.1:9/v1", max_retries=0) as client:
        with rt.run("r"), pytest.raises(openai_sdk.APIConnectionError):
            chat(record(client))
    assert only(rt, "r").state == "failed"


def test_the_retries_of_the_sdk_are_one_call(rt: Runtime, openai: OpenAI, server: Server) -> None:
    client = record(openai).with_options(max_retries=1)
    client._calculate_retry_timeout = lambda *_, **__: 0.0  # type: ignore[method-assign]
    with rt.run("r"), pytest.raises(openai_sdk.InternalServerError):
        chat(client, model="fails-500")
    assert len(server.asked) == 2
    assert only(rt, "r").state == "failed"


def test_an_interrupted_request_is_a_failed_read(rt: Runtime, openai: OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(openai._client, "send", interrupt)
    with pytest.raises(KeyboardInterrupt), rt.run("r"):
        chat(record(openai))
    assert only(rt, "r").state == "failed"


# ---- a run that has ended -----------------------------------------------------------------


def test_an_ended_run_is_answered_from_its_record(rt: Runtime, ask: Ask, server: Server) -> None:
    with rt.run("r"):
        first = ask()
    with rt.run("r"):
        again = ask()
    assert (type(again), again.to_dict()) == (type(first), first.to_dict())
    assert len(server.asked) == 1


def test_an_ended_run_is_answered_in_the_form_that_is_asked_for(
    rt: Runtime, openai: OpenAI, anthropic: Anthropic, server: Server
) -> None:
    def program() -> list[str]:
        with rt.run("r"):
            raw = record(openai).chat.completions.with_raw_response.create(model=GPT, messages=SAID)
            with record(openai).responses.stream(model=GPT, input="?") as events:
                final = events.get_final_response()
            with record(openai).chat.completions.stream(model=GPT, messages=[*SAID, *SAID]) as chunks:
                whole = chunks.get_final_completion()
            with record(anthropic).messages.stream(model=CLAUDE, max_tokens=9, messages=SAID) as stream:
                message = stream.get_final_message()
        return [text_of(raw.parse()), text_of(final), text_of(whole), text_of(message)]

    assert program() == program() == [TEXT] * 4
    assert len(server.asked) == 4


def test_an_ended_run_asks_nothing_new(rt: Runtime, ask: Ask, server: Server) -> None:
    with rt.run("r"):
        ask()
    with rt.run("r"), pytest.raises(RunEnded):
        ask(extra_body={"another": "one"})
    assert len(server.asked) == 1
