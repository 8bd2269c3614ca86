"""What a request to a model shows of the conversation so far: how often the model has spoken, what it was told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from amends.llm.wire import Api

_NUMBERED: Final = re.compile(r"_(\d+)\Z")
_OF_MODEL: Final = frozenset({"function_call", "reasoning"})


def heard_in(api: Api, request: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How many turns of the model it builds on, and what the model was told of its calls.

    A conversation that the provider keeps is named by its last answer: the answers of a scripted model are numbered.
    """
    if api == "chat.completions":
        messages = _maps(request.get("messages"))
        told = [_text(one.get("content")) for one in messages if one.get("role") == "tool"]
        return sum(one.get("role") == "assistant" for one in messages), tuple(told)
    if api == "responses":
        items = _maps(request.get("input"))
        told = [_text(one.get("output")) for one in items if one.get("type") == "function_call_output"]
        return _number(request.get("previous_response_id")) + _spoken(items), tuple(told)
    messages = _maps(request.get("messages"))
    blocks = [block for one in messages if one.get("role") == "user" for block in _maps(one.get("content"))]
    told = [_text(block.get("content")) for block in blocks if block.get("type") == "tool_result"]
    thread = request.get("thread")
    before = _number(thread.get("previous_message_id")) if isinstance(thread, Mapping) else 0
    return before + sum(one.get("role") == "assistant" for one in messages), tuple(told)


def _spoken(items: Iterable[Mapping[str, Any]]) -> int:
    """Turns of the model: what it says at once comes in a row."""
    count, speaking = 0, False
    for item in items:
        is_models = item.get("type") in _OF_MODEL or item.get("role") == "assistant"
        count += is_models and not speaking
        speaking = is_models
    return count


def _number(id: object) -> int:
    found = _NUMBERED.search(str(id or ""))
    return int(found[1]) if found else 0


def _maps(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list | tuple) else []


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "".join(str(one.get("text", "")) for one in _maps(value))
