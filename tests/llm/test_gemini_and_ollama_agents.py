"""What is particular to the loop with Gemini and Ollama; what all formats share is in ``test_agent``."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import httpx2
import ollama
import pydantic
import pytest
from google import genai

from amends import AsyncRuntime, Runtime, UsageError, tool
from amends.llm import Finished, ModelServer, ScriptedModel, record, run_agent, run_agent_async
from amends.llm.streams import assembler, events_of
from amends.llm.wire import api_of, dialect, heard_in, model_in_path, reserved_tokens, tokens_of, written
from tests.llm.server import answered

SIGNATURE = base64.urlsafe_b64encode(b"\xff\xfethought").decode()
DONE: list[str] = []


@tool(kind="read")
def balance(account: str) -> int:
    """Balance of an account."""
    return len(account)


@tool
def reserve(sku: str) -> str:
    """Reserve something."""
    DONE.append(sku)
    return f"r_{sku}"


@reserve.compensate
def release(result: str) -> None:
    DONE.remove(result.removeprefix("r_"))


@tool(kind="pivot", needs_approval=True)
def ship(sku: str) -> str:
    """Hand it to the courier."""
    DONE.append(f"shipped {sku}")
    return sku


@pytest.fixture
def rt() -> Iterator[Runtime]:
    DONE.clear()
    with Runtime("memory:", tools=[balance, reserve, ship]) as rt:
        yield rt


def candidate(*parts: Any, finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    ended = {"finishReason": finish} if finish else {}
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **ended, **more}]}


def call(name: str, args: dict[str, Any], id: str | None = None, **more: Any) -> dict[str, Any]:
    return {"functionCall": ({"id": id} if id else {}) | {"name": name, "args": args}, **more}


class Gemini:
    """A client of Gemini with these answers, and the bodies of its requests."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answers = iter(answers)
        http = httpx2.Client(transport=httpx2.MockTransport(self._answer))
        options: Any = {"httpx_client": http, "base_url": "http://127.0.0.1:9"}
        self.client = genai.Client(api_key="x", enterprise=False, http_options=options)

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(json.loads(request.content))
        answer = next(self._answers)
        if "streamGenerateContent" not in request.url.path:
            return httpx2.Response(200, json=answer)
        events = "".join(f"data: {json.dumps(event)}\n\n" for _, event in events_of("generate_content", answer))
        return httpx2.Response(200, text=events, headers={"content-type": "text/event-stream"})

    def run(self, rt: Runtime, **more: Any) -> Finished:
        return run_agent(rt, "Go.", client=self.client, model="gemini-3.8-flash", **more)


def results_in(request: dict[str, Any]) -> list[Any]:
    return [part["functionResponse"] for part in request["contents"][-1]["parts"]]


# ---- Gemini -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_ids_and_signatures_go_back_as_they_came(rt: Runtime, stream: bool) -> None:
    thought = {"text": "Hm.", "thought": True}
    said = [
        thought,
        call("balance", {"account": "abc"}, "id-1", thoughtSignature=SIGNATURE),
        call("balance", {"account": "x"}),
    ]
    model = Gemini(candidate(*said), candidate({"text": "Three."}))
    pieces: list[str] = []
    done = model.run(rt, **({"on_text": pieces.append} if stream else {}))
    assert (done.outcome, done.text, pieces) == ("done", "Three.", ["Three."] if stream else [])
    first, second = results_in(model.asked[1])
    assert first == {"id": "id-1", "name": "balance", "response": {"output": "3"}}
    assert second == {"name": "balance", "response": {"output": "1"}}, "it had no id"
    assert model.asked[1]["contents"][1] == {"role": "model", "parts": said}
    assert [one.tool_call_id for one in done.report.calls if one.tool == "balance"] == ["id-1", "call_1_2"]


def test_an_error_is_told_as_an_error(rt: Runtime) -> None:
    model = Gemini(candidate(call("balance", {"acount": "x"})), candidate({"text": "Sorry."}))
    assert model.run(rt).outcome == "done"
    [told] = results_in(model.asked[1])
    assert "account" in told["response"]["error"]


def test_two_equal_calls_in_one_turn_are_one_effect(rt: Runtime) -> None:
    model = Gemini(candidate(*[call("reserve", {"sku": "box"})] * 2), candidate({"text": "Done."}))
    assert model.run(rt).outcome == "done"
    assert DONE == ["box"]
    assert len(results_in(model.asked[1])) == 2, "each call has its result"


@pytest.mark.parametrize(
    "answer, why",
    [
        ({"promptFeedback": {"blockReason": "SAFETY"}}, "refused the request (SAFETY)"),
        (candidate(finish="MALFORMED_FUNCTION_CALL"), "could not read"),
        (candidate({"text": "I"}, finish="MAX_TOKENS"), "limit of tokens"),
        (candidate({"text": "I"}, finish="LANGUAGE"), "cut (LANGUAGE)"),
        (candidate({"text": "I"}, finish=None), "broke off"),
        ({"candidates": []}, "broke off"),
        (candidate({"functionCall": {"name": "reserve", "willContinue": True}}), "in pieces"),
    ],
)
def test_an_answer_that_is_not_whole_takes_the_run_back(rt: Runtime, answer: Any, why: str) -> None:
    done = Gemini(candidate(call("reserve", {"sku": "box"})), answer).run(rt)
    assert (done.outcome, done.state) == ("stopped", "rolled_back")
    assert why in done.why
    assert DONE == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_answer_in_several_responses_is_one_turn_also_after_a_resume(rt: Runtime, stream: bool) -> None:
    token = base64.urlsafe_b64encode(b"more").decode()
    model = Gemini(
        candidate(call("reserve", {"sku": "box"}), finish="CONTINUATION", continuationToken=token),
        candidate(call("ship", {"sku": "box"})),
    )
    more: dict[str, Any] = {"id": "o-7"} | ({"on_text": print} if stream else {})
    [held] = model.run(rt, **more).waiting
    assert [request.get("continuationToken") for request in model.asked] == [None, token]
    assert DONE == ["box"]
    rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
    other = Gemini(candidate({"text": "Both."}))
    done = other.run(rt, **more)
    assert (done.outcome, done.text, done.turns) == ("done", "Both.", 2)
    assert [len(one["parts"]) for one in other.asked[0]["contents"]] == [1, 2, 2]
    assert [one["response"] for one in results_in(other.asked[0])] == [{"output": '"r_box"'}, {"output": '"box"'}]
    assert DONE == ["box", "shipped box"]


def test_an_answer_whose_beginning_is_not_on_record_is_not_taken_for_a_whole_one(rt: Runtime) -> None:
    token = base64.urlsafe_b64encode(b"more").decode()
    model = Gemini(candidate(call("ship", {"sku": "box"})))
    [held] = model.run(rt, id="o-7", options={"continuation_token": token}).waiting
    rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
    other = Gemini(candidate(call("ship", {"sku": "box"})), candidate({"text": "Done."}))
    assert other.run(rt, id="o-7").outcome == "done"
    assert len(other.asked[0]["contents"]) == 1, "the conversation starts again"
    assert DONE == ["shipped box"], "and no effect is repeated"


def test_options_are_fields_of_the_config(rt: Runtime) -> None:
    model = Gemini(candidate({"text": "Hi."}))
    model.run(rt, system="Be kind.", may_roll_back=True, options={"temperature": 0.5})
    [request] = model.asked
    assert request["generationConfig"] == {"temperature": 0.5}
    names = [one["name"] for one in request["tools"][0]["functionDeclarations"]]
    assert names == ["balance", "reserve", "ship", "request_rollback"]
    assert request["systemInstruction"]["parts"] == [{"text": "Be kind."}]


def test_a_message_that_gemini_does_not_take_is_refused_before_a_run_is_opened(rt: Runtime) -> None:
    model = Gemini()
    with pytest.raises(UsageError, match="'parts'"):
        run_agent(rt, [{"role": "user", "content": "Go."}], client=model.client, model="m", id="o-7")
    assert list(rt.runs()) == []


def test_a_conversation_may_be_given_in_either_case(rt: Runtime) -> None:
    model = Gemini(candidate({"text": "Hi."}))
    asked = {"role": "model", "parts": [{"function_call": {"name": "balance", "args": {}}}]}
    told = {"role": "user", "parts": [{"function_response": {"name": "balance", "response": {"output": "1"}}}]}
    prompt = [{"role": "user", "parts": [{"text": "Go."}]}, asked, told]
    assert run_agent(rt, prompt, client=model.client, model="m").text == "Hi."
    assert model.asked[0]["contents"][1]["parts"][0]["functionCall"]["name"] == "balance"


# ---- Ollama -------------------------------------------------------------------------------


class Parcel(pydantic.BaseModel):
    street: str
    grams: int | None = None


@tool(kind="read")
def weigh(parcel: Parcel) -> int:
    """Weigh a parcel."""
    return parcel.grams or 0


def test_the_schema_of_a_nested_argument_reaches_the_model() -> None:
    model = ScriptedModel(("weigh", {"parcel": {"street": "x", "grams": 7}}), "Seven.")
    with (
        Runtime("memory:", tools=[weigh]) as rt,
        ModelServer(model) as server,
        ollama.Client(**server.ollama) as client,
    ):
        done = run_agent(rt, "Go.", client=client, model="llama3.2")
        assert next(one for one in done.report.calls if one.tool == "weigh").result == 7
        [schema] = rt.schemas("ollama")
    assert model.asked[0]["tools"] == [schema], "the SDK alone would leave the street out"
    assert "street" in json.dumps(schema)


def test_thoughts_and_results_go_back_without_ids(rt: Runtime) -> None:
    asked: list[Any] = []
    calls = [{"id": "call_x", "function": {"name": "balance", "arguments": {"account": one}}} for one in ("abc", "x")]
    answers = iter(
        [
            {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": calls},
            {"role": "assistant", "content": "Ok."},
        ]
    )

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        return httpx.Response(200, json={"model": "m", "message": next(answers), "done": True})

    with ollama.Client(transport=httpx.MockTransport(answer)) as client:
        done = run_agent(rt, "Go.", client=client, model="qwen3", options={"think": True, "keep_alive": "1m"})
    assert (done.outcome, done.text) == ("done", "Ok."), "a server that gives no reason for its end is done"
    _, said, first, second = asked[1]["messages"]
    assert (said["thinking"], len(said["tool_calls"])) == ("Hm.", 2)
    assert [first, second] == [
        {"role": "tool", "content": "3", "tool_name": "balance"},
        {"role": "tool", "content": "1", "tool_name": "balance"},
    ]
    assert (asked[0]["think"], asked[0]["keep_alive"]) == (True, "1m")
    assert [one.tool_call_id for one in done.report.calls if one.tool == "balance"] == ["call_1_1", "call_1_2"]


def test_a_local_model_needs_no_price_for_a_budget_in_dollars(rt: Runtime, caplog: pytest.LogCaptureFixture) -> None:
    with ModelServer(ScriptedModel("Hi.")) as server, ollama.Client(**server.ollama) as client:
        done = run_agent(rt, "Go.", client=client, model="some-model-of-mine", id="one")
    [asked] = done.report.calls
    assert (asked.result["cost_usd"], caplog.text) == (0, "")


# ---- scripts ------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["generate_content", "chat"])
def test_a_script_speaks_the_format_that_is_asked_for_also_after_a_resume(rt: Runtime, api: Any) -> None:
    pieces: list[str] = []
    script = ScriptedModel(("reserve", {"sku": "box"}), ("ship", {"sku": "box"}), lambda heard: heard.results[-1])
    given: Any = {
        "client": script,
        "model": "m",
        "api": api,
        "id": "o-7",
        "system": "Be kind.",
        "on_text": pieces.append,
    }
    [held] = run_agent(rt, "Go.", **given).waiting
    rt.approve(held.approval.id, digest=held.approval.digest, by="ada")
    done = run_agent(rt, "Go.", **given)
    assert (done.outcome, done.text, done.turns, len(script.asked)) == ("done", '"box"', 3, 3)
    assert ("parts" in done.messages[0]) == (api == "generate_content")
    assert "".join(pieces) == '"box"'


# ---- colours and names --------------------------------------------------------------------


def test_a_client_of_the_wrong_colour_is_refused_before_a_run_is_opened(rt: Runtime) -> None:
    for client in (Gemini().client.aio, ollama.AsyncClient()):
        with pytest.raises(UsageError, match="is for run_agent_async"):
            run_agent(rt, "Go.", client=client, model="m")

    async def main() -> None:
        async with AsyncRuntime("memory:") as other:
            with pytest.raises(UsageError, match="is for run_agent"):
                await run_agent_async(other, "Go.", client=ollama.Client(), model="m")

    asyncio.run(main())
    assert list(rt.runs()) == []


def test_the_api_of_another_provider_is_refused(rt: Runtime) -> None:
    with pytest.raises(UsageError, match="google does not have the API 'chat'; it has generate_content"):
        Gemini().run(rt, api="chat")
    with pytest.raises(UsageError, match="ollama does not have the API 'responses'; it has chat"):
        run_agent(rt, "Go.", client=ollama.Client(), model="m", api="responses")
    with pytest.raises(UsageError, match="'generate' has no tools"):
        run_agent(rt, "Go.", client=ollama.Client(), model="m", api="generate")


def test_a_client_that_is_recorded_with_prices_keeps_them(rt: Runtime) -> None:
    model = Gemini({**candidate({"text": "Hi."}), "usageMetadata": {"promptTokenCount": 1_000_000}})
    client = record(model.client, {"*": (2, 2), "gemini*": (3, 3)})
    done = run_agent(rt, "Go.", client=client, model="gemini-3.8-flash")
    assert done.report.calls[0].result["cost_usd"] == 3


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")
def test_the_async_half_of_a_recorded_client_keeps_its_prices() -> None:
    async def main() -> Finished:
        async with AsyncRuntime("memory:") as rt, record(genai.Client(**server.gemini), {"*": (0, 0)}).aio as client:
            return await run_agent_async(rt, "Go.", client=client, model="nobodys-model")

    with ModelServer(ScriptedModel("Hi.")) as server:
        done = asyncio.run(main())
    assert done.report.calls[0].result["cost_usd"] == 0


def test_another_api_is_not_resumed() -> None:
    with Runtime("memory:", tools=[balance]) as other, ModelServer(ScriptedModel("Hi.")) as server:
        with ollama.Client(**server.ollama) as client:
            run_agent(other, "Go.", client=client, model="m", id="o-8")
        with pytest.raises(UsageError, match="was started with the API chat"):
            run_agent(other, "Go.", client=Gemini().client, model="m", id="o-8")


# ---- the formats --------------------------------------------------------------------------


FORMATS = ["generate_content", "chat", "generate"]


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "pieces"])
@pytest.mark.parametrize("tools", [[], [{"name": "charge"}]], ids=["text", "tools"])
@pytest.mark.parametrize("api", FORMATS)
def test_the_events_of_an_answer_make_that_answer(api: Any, tools: list[Any], pieces: bool) -> None:
    whole = answered(api, {"model": "m", "tools": tools})
    made = assembler(api)
    events = [event for _, event in events_of(api, whole, split=list if pieces else lambda text: [text])]
    for count, event in enumerate(events):
        if api != "generate":
            assert dialect(api).turn(made.response or {}).cut, f"{count} of {len(events)} events"
        made.see(event)
    assert made.response == whole
    assert api == "generate" or not dialect(api).turn(whole).cut
    assert made.characters > 0 or (api == "generate" and bool(tools))


def test_what_cannot_be_joined_is_kept_apart() -> None:
    parts = [
        {"text": "Let me ", "thought": True},
        {"text": "Four "},
        {"text": "birds", "thoughtSignature": SIGNATURE},
        {"text": "."},
        {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
    ]
    made = assembler("generate_content")
    for part in parts:
        made.see(candidate(part, finish=None))
    made.see({"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 1}})
    assert made.response is not None
    assert made.response["candidates"][0]["content"]["parts"] == parts
    assert dialect("generate_content").turn(made.response).text == "Four birds."


@pytest.mark.parametrize("api", FORMATS)
@pytest.mark.parametrize("event", [{}, {"candidates": None}, {"message": None}, {"candidates": [{}]}])
def test_events_that_nobody_knows_change_nothing(api: Any, event: dict[str, Any]) -> None:
    made = assembler(api)
    made.see(event)
    assert made.characters == 0


@pytest.mark.parametrize("api", FORMATS)
def test_usage_that_is_not_there_is_none(api: Any) -> None:
    assert tokens_of(api, None) is None
    assert tokens_of(api, {}) is None
    assert tokens_of(api, {"usageMetadata": None, "eval_count": "x"}) is None


def test_only_requests_to_models_are_recorded() -> None:
    assert api_of("google", "post", "models/gemini-3.8-flash:streamGenerateContent?alt=sse") == "generate_content"
    assert api_of("google", "post", "models/gemini-3.8-flash:countTokens") is None
    assert api_of("google", "post", "cachedContents") is None
    assert api_of("ollama", "POST", "/api/generate") == "generate"
    assert api_of("ollama", "POST", "/api/embed") is None
    assert model_in_path("publishers/google/models/gemini-3.8-flash:generateContent") == "gemini-3.8-flash"
    assert model_in_path("tunedModels/123:generateContent") == "tunedModels/123"


def test_the_limits_of_the_formats_are_reserved() -> None:
    config = {"generationConfig": {"maxOutputTokens": 70, "candidateCount": 2}}
    assert reserved_tokens(config, size=1, attachments=0).output == 140
    assert reserved_tokens({"options": {"num_predict": 70}}, size=1, attachments=0).output == 70
    assert reserved_tokens({"options": {"num_predict": -1}}, size=1, attachments=0).output == 4_096


def test_results_are_heard_in_every_format() -> None:
    told = {"functionResponse": {"name": "a", "response": {"error": "no"}}}
    contents = [
        {"role": "user", "parts": [{"text": "Go."}]},
        {"role": "model", "parts": []},
        {"role": "user", "parts": [told]},
    ]
    assert heard_in("generate_content", {"contents": contents}) == (1, ("no",))
    messages = [{"role": "assistant", "content": ""}, {"role": "tool", "tool_name": "a", "content": "3"}]
    assert heard_in("chat", {"messages": messages}) == (1, ("3",))
    assert heard_in("generate", {"prompt": "Go."}) == (0, ())


def test_a_word_of_an_sdk_is_written_down_as_its_value() -> None:
    assert type(written({"type": genai.types.Type.STRING}).data["type"]) is str
