"""A conversation with tools, in each of the three wire formats: how it is asked, what was said, what is told back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from amends import Answer, ToolCall
from amends.llm.wire import Api

Message: TypeAlias = dict[str, Any]
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What the user says: a text, or messages in the words of the API."""
Style: TypeAlias = Literal["openai", "responses", "anthropic"]
ANSWER_TOKENS: Final = 4_096
"""What an answer of Anthropic's models may have where nobody says more: there the request must say it."""


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of a model, read."""

    text: str
    calls: tuple[ToolCall, ...]
    messages: tuple[Message, ...]
    """What it adds to the conversation."""
    cut: str = ""
    """Why it stopped before its end; empty: it did not."""
    goes_on: bool = False
    """The provider has only paused: the same conversation is to be sent again."""


class Dialect(Protocol):
    """One wire format."""

    style: Style

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        """The conversation before the model has said anything."""

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        """The body of a request."""

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        """What such a body holds of the conversation."""

    def said(self, response: Mapping[str, Any]) -> Said:
        """What an answer says."""

    def told(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        """The outcomes of its calls, for the model."""

    def delta(self, event: Mapping[str, Any]) -> str:
        """The text that an event of a stream adds."""


def dialect(api: Api) -> Dialect:
    """The one for this wire format."""
    return _DIALECTS[api]


def _given(prompt: Prompt) -> list[Message]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]


class _Chat:
    style: Style = "openai"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        return ([{"role": "system", "content": system}] if system else []) + _given(prompt)

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        return {"model": model, "messages": list(messages)} | ({"tools": list(tools)} if tools else {})

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("messages") or ()

    def said(self, response: Mapping[str, Any]) -> Said:
        choice: Mapping[str, Any] = next(iter(response.get("choices") or ()), {})
        message = choice.get("message") or {}
        asked = [one for one in message.get("tool_calls") or () if isinstance(one.get("function"), Mapping)]
        calls, kept = [], []
        for place, one in enumerate(asked):
            id, function = one.get("id") or f"call_{response.get('id', '')}_{place}", one["function"]
            arguments = function.get("arguments") or "{}"
            calls.append(ToolCall(str(function.get("name", "")), arguments, id))
            kept.append({"id": id, "type": "function", "function": {"name": calls[-1].tool, "arguments": arguments}})
        content = message.get("content")
        added: Message = {"role": "assistant", "content": content} | ({"tool_calls": kept} if kept else {})
        cuts = {"length": "its answer was cut at the limit of tokens", "content_filter": "the provider refused it"}
        cut = _cut(choice.get("finish_reason"), cuts, ends=_CHAT_ENDS)
        if message.get("refusal"):
            cut = f"the model refused: {message['refusal']}"
        return Said(_text(content), tuple(calls), (added,), cut)

    def told(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        return [{"role": "tool", "tool_call_id": call.tool_call_id, "content": answer.text} for call, answer in results]

    def delta(self, event: Mapping[str, Any]) -> str:
        choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
        return str((choice.get("delta") or {}).get("content") or "")


_CHAT_ENDS: Final = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
"""OpenAI's, and those of servers that speak its format. Any other reason (error, abort, …) is not the model's."""


class _Responses:
    style: Style = "responses"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        return _given(prompt)

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        more = ({"instructions": system} if system else {}) | ({"tools": list(tools)} if tools else {})
        return {"model": model, "input": list(messages), **more}

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("input") or ()

    def said(self, response: Mapping[str, Any]) -> Said:
        output = [item for item in response.get("output") or () if isinstance(item, Mapping)]
        kept = [{k: v for k, v in item.items() if v is not None and k not in _ANSWER_ONLY} for item in output]
        calls = [
            ToolCall(str(item.get("name", "")), item.get("arguments") or "{}", str(item.get("call_id", "")))
            for item in output
            if item.get("type") == "function_call"
        ]
        parts = [part for item in output if item.get("type") == "message" for part in item.get("content") or ()]
        cut = ""
        if response.get("status") == "incomplete":
            why = (response.get("incomplete_details") or {}).get("reason")
            cut = f"its answer was cut ({why})"
        elif response.get("status") in ("failed", "cancelled"):
            cut = f"the provider failed: {(response.get('error') or {}).get('message', 'no reason given')}"
        elif response.get("status") != "completed" and (response.get("status") or not output):
            cut = _cut(None, {}, ends=frozenset())
        refusal = next((part.get("refusal") for part in parts if part.get("type") == "refusal"), None)
        text = "".join(str(part.get("text", "")) for part in parts if part.get("type") == "output_text")
        return Said(text, tuple(calls), tuple(kept), cut or (f"the model refused: {refusal}" if refusal else ""))

    def told(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        kind = "function_call_output"
        return [{"type": kind, "call_id": call.tool_call_id, "output": answer.text} for call, answer in results]

    def delta(self, event: Mapping[str, Any]) -> str:
        return str(event.get("delta") or "") if event.get("type") == "response.output_text.delta" else ""


_ANSWER_ONLY: Final = frozenset({"created_by", "parsed_arguments"})
"""What an item of an answer has and an item of a request must not have."""


class _Messages:
    style: Style = "anthropic"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        return _given(prompt)

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        more = ({"system": system} if system else {}) | ({"tools": list(tools)} if tools else {})
        return {"model": model, "max_tokens": ANSWER_TOKENS, "messages": list(messages), **more}

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("messages") or ()

    def said(self, response: Mapping[str, Any]) -> Said:
        content = [block for block in response.get("content") or () if isinstance(block, Mapping)]
        kept = [{k: v for k, v in block.items() if v is not None and k != "partial_json"} for block in content]
        calls = [  # pieces that make no JSON are told to the model as such: without them it reads as a call of nothing
            ToolCall(
                str(block.get("name", "")),
                block.get("partial_json") or block.get("input") or {},
                str(block.get("id", "")),
            )
            for block in content
            if block.get("type") == "tool_use"
        ]
        stop = response.get("stop_reason")
        cuts = {
            "max_tokens": "its answer was cut at the limit of tokens",
            "model_context_window_exceeded": "the conversation is longer than the model reads",
            "refusal": "the model refused",
        }
        added = ({"role": "assistant", "content": kept},) if kept else ()
        cut = _cut(stop, cuts, ends=_MESSAGES_ENDS)
        return Said(_text(content), tuple(calls), added, cut, goes_on=stop == "pause_turn")

    def told(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.tool_call_id, "content": answer.text}
            | ({"is_error": True} if answer.is_error else {})
            for call, answer in results
        ]
        return [{"role": "user", "content": blocks}] if blocks else []

    def delta(self, event: Mapping[str, Any]) -> str:
        delta = event.get("delta") or {}
        is_text = event.get("type") == "content_block_delta" and delta.get("type") == "text_delta"
        return str(delta.get("text") or "") if is_text else ""


_MESSAGES_ENDS: Final = frozenset({"end_turn", "tool_use", "stop_sequence", "pause_turn"})
_DIALECTS: Final[dict[Api, Dialect]] = {
    "chat.completions": _Chat(),
    "responses": _Responses(),
    "messages": _Messages(),
}


def _cut(reason: object, known: Mapping[str, str], *, ends: frozenset[str]) -> str:
    """Why an answer is not whole; one that gives no reason for its end has lost it on the way."""
    if reason is None:
        return "its answer broke off"
    return "" if str(reason) in ends else known.get(str(reason), f"its answer was cut ({reason})")


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") in ("text", "output_text"))
