"""The events of a stream that tells an answer: for answers from the record, and for the server of a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from amends.llm.wire import Api

Event: TypeAlias = tuple[str, dict[str, Any]]
Split: TypeAlias = Callable[[str], list[str]]
EVENTS_MAX: Final = 1_000_000


def _whole(text: str) -> list[str]:
    return [text]


def events_of(api: Api, response: Mapping[str, Any], *, split: Split = _whole, usage: bool = False) -> Iterator[Event]:
    """The events of a stream that puts together this answer; texts come in the pieces that ``split`` makes of them.

    ``usage``: a chat tells it in a chunk of its own, if it is asked to; the others always do.
    """
    match api:
        case "chat.completions":
            return _chat(response, split, usage)
        case "responses":
            return _responses(response, split)
        case "messages":
            return _messages(response, split)


def _chat(response: Mapping[str, Any], split: Split, usage: bool) -> Iterator[Event]:
    head = {k: v for k, v in response.items() if k not in ("choices", "usage")} | {"object": "chat.completion.chunk"}
    for place, choice in enumerate(response.get("choices") or ()):
        index = choice.get("index", place)
        for delta in _deltas(choice.get("message") or {}, split):
            yield "", {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        yield "", {**head, "choices": [{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}]}
    if usage:
        yield "", {**head, "choices": [], "usage": response.get("usage")}


def _deltas(message: Mapping[str, Any], split: Split) -> Iterator[dict[str, Any]]:
    """A message of a chat, as it grows."""
    content, calls = message.get("content"), message.get("tool_calls")
    first = {k: v for k, v in message.items() if k not in ("content", "tool_calls")}
    yield first | ({"content": "" if isinstance(content, str) else content} if "content" in message else {})
    for piece in split(content) if isinstance(content, str) and content else ():
        yield {"content": piece}
    for index, call in enumerate(calls or ()):
        function = call.get("function")
        if not isinstance(function, Mapping):
            yield {"tool_calls": [{"index": index, **call}]}
            continue
        yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
        for piece in split(str(function.get("arguments", ""))):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _messages(response: Mapping[str, Any], split: Split) -> Iterator[Event]:
    last = ("stop_reason", "stop_sequence")
    usage = dict(response.get("usage") or {})
    begun = usage | ({"output_tokens": 1} if usage.get("output_tokens") else {})
    start = {**response, **dict.fromkeys(last), "content": [], "usage": begun}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(response.get("content") or ()):
        at = {"index": index}
        empty, deltas = _block(block, split)
        yield "content_block_start", {"type": "content_block_start", **at, "content_block": empty}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", **at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", **at}
    delta = {name: response.get(name) for name in last}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _block(block: Mapping[str, Any], split: Split) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what it grows by."""
    match block.get("type"):
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": one} for one in split(block.get("text", ""))]
        case "tool_use" | "server_tool_use":
            pieces = split(json.dumps(block.get("input") or {}))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": one} for one in pieces]
        case "thinking":
            grown = [
                {"type": "thinking_delta", "thinking": block.get("thinking", "")},
                {"type": "signature_delta", "signature": block.get("signature", "")},
            ]
            return {**block, "thinking": "", "signature": ""}, grown
        case _:
            return dict(block), []


def _responses(response: Mapping[str, Any], split: Split) -> Iterator[Event]:
    numbers = iter(range(EVENTS_MAX))

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
            for piece in split(arguments):
                yield event("response.function_call_arguments.delta", **at, delta=piece)
            yield event("response.function_call_arguments.done", **at, arguments=arguments, name=item.get("name", ""))
        for index, part in enumerate(item.get("content") or () if item.get("type") == "message" else ()):
            here = {**at, "content_index": index}
            yield event("response.content_part.added", **here, part={**part, "text": ""} if "text" in part else part)
            if part.get("type") == "output_text":
                for piece in split(part.get("text", "")):
                    yield event("response.output_text.delta", **here, delta=piece, logprobs=[])
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
