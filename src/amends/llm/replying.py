"""A scripted turn as each of the three wire formats says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from amends.llm.scripted import Reply
from amends.llm.wire import BYTES_PER_TOKEN, Api

CREATED_AT: Final = 1_700_000_000
"""The same in every answer: a script says the same things on every day."""


def response_of(
    api: Api, reply: Reply, request: Mapping[str, Any], *, number: int, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer to this request; ``number``: which turn of the conversation it is, counted from one."""
    tokens = (len(json.dumps(request, default=str)) // BYTES_PER_TOKEN, len(repr(reply)) // BYTES_PER_TOKEN)
    model = str(request.get("model") or "scripted")
    match api:
        case "chat.completions":
            return _chat(reply, model, number, usage or _chat_usage(*tokens))
        case "responses":
            return _responses(reply, model, number, usage or _responses_usage(*tokens))
        case "messages":
            return _messages(reply, model, number, usage or {"input_tokens": tokens[0], "output_tokens": tokens[1]})


def _ids(number: int, reply: Reply, prefix: str) -> list[str]:
    return [f"{prefix}_{number}_{place}" for place in range(1, len(reply.calls) + 1)]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _chat(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": tool, "arguments": _json(args)}}
            for id, (tool, args) in zip(_ids(number, reply, "call"), reply.calls, strict=True)
        ]
    finish = {"length": "length", "refusal": "content_filter"}.get(reply.stop, "tool_calls" if reply.calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": f"chatcmpl_{number}", "object": "chat.completion", "created": CREATED_AT, "model": model,
        "choices": [choice], "usage": usage,
    }  # fmt: skip


def _chat_usage(given: int, said: int) -> dict[str, Any]:
    return {"prompt_tokens": given, "completion_tokens": said, "total_tokens": given + said}


def _responses(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**said, "content": [part]})
    for id, (tool, args) in zip(_ids(number, reply, "call"), reply.calls, strict=True):
        asked = {"id": f"fc_{id}", "type": "function_call", "call_id": id, "status": "completed"}
        output.append({**asked, "name": tool, "arguments": _json(args)})
    cut = {"length": "max_output_tokens", "refusal": "content_filter"}.get(reply.stop)
    return {
        "id": f"resp_{number}", "object": "response", "created_at": CREATED_AT, "model": model, "output": output,
        "status": "incomplete" if cut else "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": usage, "error": None, "incomplete_details": {"reason": cut} if cut else None, "instructions": None,
        "metadata": {}, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip


def _responses_usage(given: int, said: int) -> dict[str, Any]:
    return {
        "input_tokens": given, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": given + said,
    }  # fmt: skip


def _messages(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        content.append({"type": "text", "text": reply.text, "citations": None})
    for id, (tool, args) in zip(_ids(number, reply, "toolu"), reply.calls, strict=True):
        content.append({"type": "tool_use", "id": id, "name": tool, "input": json.loads(_json(args))})
    stop = {"length": "max_tokens", "refusal": "refusal"}.get(reply.stop, "tool_use" if reply.calls else "end_turn")
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": stop, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
