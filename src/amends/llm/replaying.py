"""Answers from the record: a run that has ended asks its model nothing, and is told what it was told."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeAlias

from amends import UsageError
from amends.llm.asking import Asked
from amends.llm.wire import Api

Event: TypeAlias = tuple[str, dict[str, Any]]


def recorded(client: Any, asked: Asked, result: Any, *, options: Any, kwargs: Mapping[str, Any]) -> Any:
    """The recorded answer, as the SDK would have given it: a model, a stream, or one of its raw forms.

    Built by the SDK's own reading of a response, since only that knows what the caller asked for. Awaited by an
    async client.
    """
    response = result.get("response") if isinstance(result, Mapping) else None
    if not isinstance(response, Mapping):
        raise UsageError(
            f"{asked.tool}: the run has ended, and its record does not hold the answer to this request",
            hint="open a new run to ask again",
        )
    options = options.model_copy()
    cast_to = client._maybe_override_cast_to(kwargs["cast_to"], options)
    request = client._build_request(options)
    if kwargs["stream"]:
        content, kind = _sse(asked, response), "text/event-stream"
    else:
        content, kind = json.dumps(response).encode(), "application/json"
    http = import_module(type(request).__module__.partition(".")[0])  # whichever the SDK stands on
    answer = http.Response(200, headers={"content-type": kind}, content=content, request=request)
    return client._process_response(**{**kwargs, "cast_to": cast_to}, options=options, response=answer)


def _sse(asked: Asked, response: Mapping[str, Any]) -> bytes:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events_of(asked.api, response)]
    if asked.api == "chat.completions":
        lines = [line.partition("\n")[2] for line in lines] + ["data: [DONE]\n\n"]
    return "".join(lines).encode()


def events_of(api: Api, response: Mapping[str, Any]) -> Iterator[Event]:
    """The events of a stream that puts together this answer, each part in one piece."""
    match api:
        case "chat.completions":
            return _chat(response)
        case "responses":
            return _responses(response)
        case "messages":
            return _messages(response)


def _chat(response: Mapping[str, Any]) -> Iterator[Event]:
    head = {k: v for k, v in response.items() if k not in ("choices", "usage")} | {"object": "chat.completion.chunk"}
    choices: list[dict[str, Any]] = []
    for place, choice in enumerate(response.get("choices") or ()):
        delta = dict(choice.get("message") or {})
        if delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **one} for i, one in enumerate(delta["tool_calls"])]
        index = choice.get("index", place)
        choices.append({"index": index, "delta": delta, "finish_reason": choice.get("finish_reason")})
    yield "", {**head, "choices": choices}


def _messages(response: Mapping[str, Any]) -> Iterator[Event]:
    last = ("stop_reason", "stop_sequence")
    usage = dict(response.get("usage") or {})
    start = {**response, **dict.fromkeys(last), "content": []}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(response.get("content") or ()):
        at = {"index": index}
        empty, deltas = _block(block)
        yield "content_block_start", {"type": "content_block_start", **at, "content_block": empty}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", **at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", **at}
    delta = {name: response.get(name) for name in last}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _block(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what it grows by."""
    match block.get("type"):
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block.get("text", "")}]
        case "tool_use" | "server_tool_use":
            pieces = json.dumps(block.get("input") or {})
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": pieces}]
        case "thinking":
            grown = [
                {"type": "thinking_delta", "thinking": block.get("thinking", "")},
                {"type": "signature_delta", "signature": block.get("signature", "")},
            ]
            return {**block, "thinking": "", "signature": ""}, grown
        case _:
            return dict(block), []


def _responses(response: Mapping[str, Any]) -> Iterator[Event]:
    numbers = iter(range(1_000_000))

    def event(kind: str, **data: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(numbers), **data}

    begun = {k: v for k, v in response.items() if k != "usage"} | {"status": "in_progress", "output": []}
    yield event("response.created", response=begun)
    for place, item in enumerate(response.get("output") or ()):
        at = {"output_index": place}
        yield event("response.output_item.added", **at, item=_begun(item))
        at |= {"item_id": item.get("id", "")}
        if item.get("type") == "function_call":
            arguments = item.get("arguments", "")
            yield event("response.function_call_arguments.delta", **at, delta=arguments)
            yield event("response.function_call_arguments.done", **at, arguments=arguments, name=item.get("name", ""))
        for index, part in enumerate(item.get("content") or () if item.get("type") == "message" else ()):
            here = {**at, "content_index": index}
            yield event("response.content_part.added", **here, part={**part, "text": ""} if "text" in part else part)
            if part.get("type") == "output_text":
                yield event("response.output_text.delta", **here, delta=part.get("text", ""), logprobs=[])
                yield event("response.output_text.done", **here, text=part.get("text", ""), logprobs=[])
            yield event("response.content_part.done", **here, part=part)
        yield event("response.output_item.done", output_index=place, item=item)
    status = response.get("status")
    kind = status if status in ("completed", "incomplete", "failed") else "completed"
    yield event(f"response.{kind}", response=dict(response))


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    begun = dict(item)
    begun |= {"content": []} if item.get("type") == "message" else {}
    begun |= {"arguments": ""} if item.get("type") == "function_call" else {}
    return begun
