"""Recorded clients of Gemini and Ollama: what they leave in the ledger, and that they are otherwise what they were."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, assert_type

import httpx
import httpx2
import ollama
import pydantic
import pytest
from google import genai
from google.genai import errors, types

from amends import AsyncRuntime, Budget, Call, Runtime, UsageError, tool
from amends.errors import BudgetExceeded, NoRun, RunEnded, WrongColour
from amends.llm import ModelServer, ScriptedModel, record
from amends.llm.prices import Prices
from amends.llm.recording import response_in
from amends.llm.requests import model_request
from tests.llm.server import TEXT, model

# The SDK of Gemini does it in its async client, where aiohttp is installed.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
GEMINI, LLAMA = "gemini-2.5-flash", "llama3.2"
USAGE: Any = {
    "generate_content": {
        "promptTokenCount": 900,
        "toolUsePromptTokenCount": 100,
        "cachedContentTokenCount": 400,
        "candidatesTokenCount": 150,
        "thoughtsTokenCount": 50,
        "totalTokenCount": 1200,
    },
    "chat": {"prompt_eval_count": 1000, "eval_count": 200},
    "generate": {"prompt_eval_count": 1000, "eval_count": 200},
}
APIS = {"generate_content": GEMINI, "chat": LLAMA, "generate": LLAMA}
SAID = "How many birds?"


@pytest.fixture(scope="module")
def shared() -> Iterator[ModelServer]:
    with ModelServer(model(), usage=USAGE) as server:
        yield server


@pytest.fixture
def server(shared: ModelServer) -> ModelServer:
    shared.asked.clear()
    return shared


@pytest.fixture
def gemini(server: ModelServer) -> Iterator[genai.Client]:
    with gemini_of(server) as client:
        yield client


@pytest.fixture
def llama(server: ModelServer) -> Iterator[ollama.Client]:
    with ollama.Client(**server.ollama, headers={"authorization": "Bearer canary"}) as client:
        yield client


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def gemini_of(server: ModelServer, **more: Any) -> genai.Client:
    http: Any = {**server.gemini["http_options"], **more}
    return genai.Client(api_key="canary", enterprise=False, http_options=http)


def arguments(api: str, **more: Any) -> dict[str, Any]:
    said: dict[str, Any] = {"contents": SAID} if api == "generate_content" else {"prompt": SAID}
    said = {"messages": [{"role": "user", "content": SAID}]} if api == "chat" else said
    return {"model": APIS[api], **said, **more}


def ask(client: Any, api: str, *, stream: bool = False, **more: Any) -> Any:
    given = arguments(api, **more)
    if api == "generate_content":
        return (client.models.generate_content_stream if stream else client.models.generate_content)(**given)
    return getattr(client, api)(**given, **({"stream": True} if stream else {}))


@pytest.fixture
def client(api: str, gemini: genai.Client, llama: ollama.Client) -> Any:
    return record(gemini if api == "generate_content" else llama)


def text_of(answer: Any) -> str:
    if isinstance(answer, types.GenerateContentResponse):
        return answer.text or ""
    return str(answer.message.content if isinstance(answer, ollama.ChatResponse) else answer.response)


def only(rt: Runtime, run_id: str = "r") -> Call:
    [call] = rt.report(run_id).calls
    return call


def spent(rt: Runtime) -> Decimal:
    return sum((line.spent for line in rt.costs(by="run") if line.unit == "tokens"), Decimal(0))


# ---- what is written down -----------------------------------------------------------------


def test_a_request_is_a_read_with_request_answer_model_tokens_and_cost(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        assert text_of(ask(client, api)) == TEXT
    call = only(rt)
    is_google = api == "generate_content"
    assert (call.kind, call.state) == ("read", "succeeded")
    assert call.tool == ("model:google" if is_google else "model:ollama")
    assert (call.args["api"], call.args["model"], call.result["model"]) == (api, APIS[api], APIS[api])
    assert SAID in json.dumps(call.args["request"])
    assert TEXT in json.dumps(call.result["response"])
    assert call.result["complete"] is True
    tokens = {"input": 1000, "output": 200, "total": 1200}
    assert call.result["tokens"] == tokens | ({"cache_read": 400, "reasoning": 50} if is_google else {})
    assert (call.result["cost_usd"] > 0) if is_google else (call.result["cost_usd"] == 0)


def test_the_key_of_the_provider_is_nowhere_in_the_ledger(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        ask(client, api)
    assert "canary" not in repr(rt.report("r").to_dict()) + repr(list(rt.events()))


def test_own_prices_come_first(rt: Runtime, gemini: genai.Client, llama: ollama.Client) -> None:
    with rt.run("r"):
        ask(record(gemini, {GEMINI: (1, 1)}), "generate_content")
        ask(record(llama, {"llama*": (2, 2)}), "chat")
        ask(record(llama, {"*": (3, 3)}), "chat")
    costs = [call.result["cost_usd"] for call in rt.report("r").calls]
    assert costs == [Decimal("0.0012"), Decimal("0.0024"), Decimal("0.0036")]


def test_a_budget_refuses_before_anything_is_sent(client: Any, api: str, server: ModelServer) -> None:
    limits: dict[str, Any] = {
        "generate_content": {"config": {"max_output_tokens": 50_000}},
        "chat": {"options": {"num_predict": 50_000}},
        "generate": {"options": {"num_predict": 50_000}},
    }
    with Runtime("memory:", budgets=[Budget(40_000, unit="tokens")]) as rt, rt.run("r"):
        ask(client, api)
        with pytest.raises(BudgetExceeded) as refused:
            ask(client, api, **limits[api])
    assert (refused.value.spent, refused.value.reserved) == (Decimal(1_200), Decimal(0))
    assert len(server.asked) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_refusal_costs_nothing_and_a_lost_answer_its_reservation(client: Any, api: str, stream: bool) -> None:
    with Runtime("memory:") as rt, rt.run("r"):
        with pytest.raises((errors.APIError, ollama.ResponseError)):
            list(ask(client, api, model="fails-429", stream=stream))
        assert spent(rt) == 0
        with pytest.raises((errors.APIError, ollama.ResponseError)):
            list(ask(client, api, model="fails-503", stream=stream))
        assert spent(rt) > 4_096


def test_a_request_in_the_body_of_a_tool_names_the_call_that_made_it(client: Any, api: str) -> None:
    @tool(kind="read")
    def summarise() -> str:
        return text_of(ask(client, api))

    with Runtime("memory:", tools=[summarise]) as rt:
        with rt.run("r"):
            assert summarise() == TEXT
        outer, inner = rt.report("r").calls
    assert (outer.tool, inner.parent) == ("summarise", outer.id)


def test_fields_that_the_sdk_adds_to_the_body_are_recorded(rt: Runtime, gemini: genai.Client) -> None:
    more = {"http_options": {"extra_body": {"labels": {"team": "birds"}}}}
    with rt.run("r"):
        ask(record(gemini), "generate_content", config=more)
    assert only(rt).args["request"]["labels"] == {"team": "birds"}


def test_the_model_is_named_as_its_price_is_however_the_program_names_it(rt: Runtime, gemini: genai.Client) -> None:
    with rt.run("r"):
        ask(record(gemini), "generate_content", model=f"models/{GEMINI}")
    assert only(rt).args["model"] == GEMINI


def test_a_chat_of_gemini_is_recorded(rt: Runtime, gemini: genai.Client) -> None:
    chat = record(gemini).chats.create(model=GEMINI)
    with rt.run("r"):
        assert chat.send_message(SAID).text == TEXT
        assert "".join(piece.text or "" for piece in chat.send_message_stream("and now?")) == TEXT
    _, second = rt.report("r").calls
    assert len(second.args["request"]["contents"]) == 3
    assert second.result["complete"] is True


def test_a_client_of_the_enterprise_platform_is_recorded(rt: Runtime) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        assert request.url.path.endswith(f"/publishers/google/models/{GEMINI}:generateContent")
        said = {"content": {"role": "model", "parts": [{"text": TEXT}]}, "finishReason": "STOP"}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 5}
        return httpx2.Response(200, json={"candidates": [said], "usageMetadata": usage, "modelVersion": GEMINI})

    http: Any = {"httpx_client": httpx2.Client(transport=httpx2.MockTransport(answer))}
    with genai.Client(enterprise=True, api_key="canary", http_options=http) as client, rt.run("r"):
        assert text_of(ask(record(client), "generate_content")) == TEXT
    assert only(rt).args["model"] == GEMINI
    assert only(rt).result["cost_usd"] > 0


def test_functions_that_the_sdk_calls_are_calls_if_they_are_tools() -> None:
    done: list[int] = []

    @tool(kind="read")
    def charge(cents: int) -> int:
        """Charge."""
        done.append(cents)
        return cents

    def charging(cents: int) -> int:
        """Charge."""
        return charge(cents)

    script = ScriptedModel(("charging", {"cents": 5}), "Done.")
    with ModelServer(script) as server, gemini_of(server) as client, Runtime("memory:", tools=[charge]) as rt:
        with rt.run("r"):
            assert ask(record(client), "generate_content", config={"tools": [charging]}).text == "Done."
        assert [call.tool for call in rt.report("r").calls] == ["model:google", "charge", "model:google"]
    assert done == [5]


def test_other_requests_pass_by(rt: Runtime, llama: ollama.Client) -> None:
    with rt.run("r"), pytest.raises(ollama.ResponseError):  # the server has no embeddings
        record(llama).embed(model=LLAMA, input="x")
    assert rt.report("r").calls == ()


# ---- the same client ----------------------------------------------------------------------


def test_the_client_is_of_its_type_and_the_one_given_stays_as_it_was(
    gemini: genai.Client, llama: ollama.Client
) -> None:
    assert_type(record(gemini), genai.Client)
    for given in (gemini, gemini.aio, llama):
        made: Any = record(given)
        assert isinstance(made, type(given))
        assert type(made).__name__ == type(given).__name__
    assert record(llama)._client is llama._client, "connections are shared"
    assert text_of(ask(gemini, "generate_content")) == TEXT, "outside a run, unrecorded"
    assert text_of(ask(llama, "chat")) == TEXT


def test_connections_outlive_the_client_that_nobody_holds(rt: Runtime, server: ModelServer) -> None:
    client = record(gemini_of(server))
    gc.collect()
    with rt.run("r"):
        assert text_of(ask(client, "generate_content")) == TEXT
    client.close()


def test_a_recorded_client_that_nobody_holds_closes_nothing(rt: Runtime, gemini: genai.Client) -> None:
    made = record(gemini)
    del made
    gc.collect()
    assert text_of(ask(gemini, "generate_content")) == TEXT


def test_recorded_twice_is_recorded_once_as_said_last(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        ask(record(record(client, {"*": (1, 1)}), {APIS[api]: (2, 2)}), api)
    assert only(rt).result["cost_usd"] == Decimal("0.0024")


def test_parsed_answers_are_as_they_were(rt: Runtime, gemini: genai.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    class Birds(pydantic.BaseModel):
        birds: int

    monkeypatch.setattr("tests.llm.server.TEXT", '{"birds": 24}')
    config = {"response_mime_type": "application/json", "response_schema": Birds}
    with rt.run("r"):
        assert ask(record(gemini), "generate_content", config=config).parsed == Birds(birds=24)
    with rt.run("r"):
        assert ask(record(gemini), "generate_content", config=config).parsed == Birds(birds=24), "from the record"


# ---- where it may be used -----------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_outside_a_run_nothing_is_sent(client: Any, api: str, server: ModelServer, stream: bool) -> None:
    with pytest.raises(NoRun, match="nothing was sent"):
        found = ask(client, api, stream=stream)
        list(found)
    assert server.asked == []
    passing = record(client, outside="pass")
    if stream:
        assert "".join(map(text_of, ask(passing, api, stream=True))) == TEXT
    else:
        assert text_of(ask(passing, api)) == TEXT


def test_a_blocking_client_in_an_async_run_is_the_wrong_colour(client: Any, api: str, server: ModelServer) -> None:
    async def program() -> None:
        async with AsyncRuntime("memory:") as rt, rt.run("r"):
            ask(client, api)

    with pytest.raises(WrongColour):
        asyncio.run(program())
    assert server.asked == []


def test_what_is_no_client_is_refused(gemini: genai.Client) -> None:
    with pytest.raises(UsageError, match="Gemini or Ollama, not Models"):
        record(gemini.models)


def test_importing_amends_imports_none_of_it() -> None:
    code = (
        "import sys, amends, amends.llm; from amends.llm import ModelServer, ScriptedModel;"
        "print(sorted({'google', 'google.genai', 'ollama', 'httpx', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- what goes wrong ----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_error_of_the_provider_comes_out_as_itself(rt: Runtime, client: Any, api: str, stream: bool) -> None:
    error: Any = errors.ClientError if api == "generate_content" else ollama.ResponseError
    with rt.run("r"):
        with pytest.raises(error, match="refused 429") as raised:
            list(ask(client, api, model="fails-429", stream=stream))
    assert (raised.value.code if api == "generate_content" else raised.value.status_code) == 429
    call = only(rt)
    assert call.state == "failed"
    assert error.__name__ in (call.error or "")


def test_a_timeout_comes_out_as_itself(rt: Runtime, server: ModelServer) -> None:
    with gemini_of(server, timeout=100) as slow, ollama.Client(**server.ollama, timeout=0.1) as other:
        with rt.run("r"):
            with pytest.raises(httpx2.TimeoutException):
                ask(record(slow), "generate_content", model="silent")
            with pytest.raises(httpx.TimeoutException):
                ask(record(other), "chat", model="silent")
    assert [call.state for call in rt.report("r").calls] == ["failed", "failed"]
    assert rt.report("r").state == "committed", "a read is never in doubt"


def test_nobody_listening_comes_out_as_itself(rt: Runtime) -> None:
    with rt.run("r"), ollama.Client(host="http://127.0.0.1:9") as nobody, pytest.raises(ConnectionError):
        ask(record(nobody), "chat")
    assert only(rt).state == "failed"


def test_a_stream_that_breaks_is_failed_with_what_was_received(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        with pytest.raises((httpx.HTTPError, httpx2.HTTPError)):
            list(ask(client, api, model="breaks", stream=True))
    assert only(rt).state == "failed"
    assert 0 < spent(rt) < 200


# ---- streams ------------------------------------------------------------------------------


def test_a_stream_is_recorded_as_the_response_that_it_adds_up_to(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        pieces = [text_of(piece) for piece in ask(client, api, stream=True)]
        whole = ask(client, api)
    assert len(pieces) > 2
    assert "".join(pieces) == text_of(whole) == TEXT
    streamed, plain = rt.report("r").calls
    assert streamed.result == plain.result


def test_a_stream_that_is_closed_early_is_not_complete(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        stream = ask(client, api, stream=True)
        next(iter(stream))
        stream.close()
        assert list(stream) == []
    call = only(rt)
    assert (call.state, call.result["complete"]) == ("succeeded", False)
    assert 0 < call.result["tokens"]["output"] < 200


def test_a_stream_that_nobody_holds_is_settled(rt: Runtime, client: Any, api: str) -> None:
    with rt.run("r"):
        next(iter(ask(client, api, stream=True)))
        gc.collect()
    assert (only(rt).state, only(rt).result["complete"]) == ("succeeded", False)


def test_a_stream_that_nobody_reads_was_never_asked_for(
    rt: Runtime, client: Any, api: str, server: ModelServer
) -> None:
    with rt.run("r"):
        unread = ask(client, api, stream=True)
        unread.close()
        assert list(unread) == []
    assert rt.report("r").calls == ()
    assert server.asked == []


# ---- a run that has ended -----------------------------------------------------------------


def test_an_ended_run_is_answered_from_its_record(rt: Runtime, client: Any, api: str, server: ModelServer) -> None:
    def program() -> tuple[Any, str]:
        with rt.run("r"):
            whole = ask(client, api)
            return whole.model_dump(exclude={"sdk_http_response"}), "".join(
                map(text_of, ask(client, api, model="gemma3", stream=True))
            )

    assert program() == program()
    assert len(server.asked) == 2
    with rt.run("r"), pytest.raises(RunEnded):
        ask(client, api, model="another")
    assert len(server.asked) == 2


def test_a_program_is_replayed_without_its_model(rt: Runtime, client: Any, api: str, server: ModelServer) -> None:
    def program() -> str:
        with rt.run("r"):
            return text_of(ask(client, api)) + "".join(map(text_of, ask(client, api, stream=True)))

    assert program() == rt.replay("r", program) == TEXT * 2
    assert len(server.asked) == 2


def test_a_response_that_is_not_on_record_is_not_made_up(api: str) -> None:
    asked = model_request("model:x", api, {}, Prices(None, provider="x", url=""))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="record does not have"):
        response_in(asked, {"response": None})


# ---- on an event loop ---------------------------------------------------------------------


def in_a_loop(server: ModelServer, api: str, program: Callable[[Any], Any]) -> None:
    """Run a program with an async client of this API."""

    async def running() -> None:
        if api == "generate_content":
            async with gemini_of(server).aio as client:
                await program(record(client))
        else:
            async with ollama.AsyncClient(**server.ollama) as other:
                await program(record(other))

    asyncio.run(running())


def test_async_requests_and_streams_are_recorded_and_replayed(server: ModelServer, api: str) -> None:
    async def program(client: Any) -> None:
        async with AsyncRuntime("memory:") as rt:
            for _ in range(2):
                async with rt.run("r"):
                    assert text_of(await ask(client, api)) == TEXT
                    pieces = [text_of(piece) async for piece in await ask(client, api, stream=True, model="gemma3")]
                assert "".join(pieces) == TEXT
            whole, streamed = (await rt.report("r")).calls
        assert whole.result["tokens"] == streamed.result["tokens"]
        assert (whole.state, streamed.state, streamed.result["complete"]) == ("succeeded", "succeeded", True)

    in_a_loop(server, api, program)
    assert len(server.asked) == 2


def test_async_errors_come_out_as_themselves(server: ModelServer, api: str) -> None:
    error: Any = errors.ClientError if api == "generate_content" else ollama.ResponseError

    async def program(client: Any) -> None:
        async with AsyncRuntime("memory:") as rt:
            async with rt.run("r"):
                with pytest.raises(error, match="refused 429"):
                    await ask(client, api, model="fails-429")
                with pytest.raises(error, match="refused 429"):
                    _ = [piece async for piece in await ask(client, api, model="fails-429", stream=True)]
            assert [call.state for call in (await rt.report("r")).calls] == ["failed", "failed"]
        with pytest.raises(NoRun):
            _ = [piece async for piece in await ask(client, api, stream=True)]

    in_a_loop(server, api, program)


def test_an_async_stream_that_is_left_early_is_not_complete(server: ModelServer, api: str) -> None:
    async def program(client: Any) -> None:
        async with AsyncRuntime("memory:") as rt:
            async with rt.run("r"):
                stream = await ask(client, api, stream=True)
                await anext(aiter(stream))
                await stream.aclose()
            [call] = (await rt.report("r")).calls
            assert (call.state, call.result["complete"]) == ("succeeded", False)

    in_a_loop(server, api, program)


def test_a_cancelled_request_is_a_failed_read(server: ModelServer, api: str) -> None:
    async def program(client: Any) -> None:
        async with AsyncRuntime("memory:") as rt:
            async with rt.run("r"):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await ask(client, api, model="silent")
            [call] = (await rt.report("r")).calls
            assert call.state == "failed"

    in_a_loop(server, api, program)


def test_an_async_client_in_a_blocking_run_is_recorded(rt: Runtime, server: ModelServer, api: str) -> None:
    async def program(client: Any) -> None:
        with rt.run("r"):
            assert text_of(await ask(client, api)) == TEXT
            assert "".join([text_of(one) async for one in await ask(client, api, stream=True)]) == TEXT

    in_a_loop(server, api, program)
    assert [call.state for call in rt.report("r").calls] == ["succeeded", "succeeded"]


def test_both_colours_of_a_client_of_gemini_are_recorded(gemini: genai.Client) -> None:
    client = record(gemini)

    async def program() -> None:
        async with AsyncRuntime("memory:") as rt, client.aio:
            async with rt.run("r"):
                assert text_of(await ask(client.aio, "generate_content")) == TEXT
            assert len((await rt.report("r")).calls) == 1

    asyncio.run(program())
