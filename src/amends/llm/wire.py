"""The wire formats: usage and reservations, what is recorded of a request, and conversations with tools."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeAlias

from amends import Answer, ToolCall, UsageError

Api: TypeAlias = Literal["chat.completions", "responses", "messages", "generate_content", "chat", "generate"]
"""The wire formats, named after the methods of the SDKs: two of OpenAI, one of Anthropic, one of Gemini, two of Ollama."""

PATHS: Final[dict[tuple[str, str], Api]] = {
    ("openai", "/chat/completions"): "chat.completions",
    ("openai", "/responses"): "responses",
    ("anthropic", "/v1/messages"): "messages",
    ("google", ":generateContent"): "generate_content",
    ("google", ":streamGenerateContent"): "generate_content",
    ("ollama", "/api/chat"): "chat",
    ("ollama", "/api/generate"): "generate",
}
"""The requests that are recorded, by provider and path. Others (files, batches, counting tokens) are not.

A path of Gemini has the name of the model, and ends with the name of the method.
"""

BYTES_PER_TOKEN: Final = 3
"""For reservations: English has four bytes per token, JSON and code three, other scripts fewer."""
ATTACHMENT_TOKENS: Final = 2_000
"""Reserved for an image or a file in the request."""
OUTPUT_TOKENS: Final = 4_096
"""Reserved for the response if the request has no limit."""
ATTACHMENT_CHARS_MIN: Final = 4_096
RECORD_BYTES_MAX: Final = 900_000
"""Below the ledger's own limit of one mebibyte, above which the request would be refused, or the response lost."""
DEPTH_MAX: Final = 80
"""Below the ledger's own limit of a hundred levels."""
TEXT_CHARS_MAX: Final = 2_000
"""How much of each text is kept of a request or response that is too large to record whole."""
COUNT_MAX: Final = 10**12
"""A server that reports more tokens is faulty; the response is paid for anyway, and is recorded."""
_ENCODED: Final = re.compile(r"[A-Za-z0-9+/=_-]{1024}")


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that a request used. ``input`` includes those read from and written to the provider's cache."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    """Part of ``output``."""
    estimated: bool = False

    @property
    def total(self) -> int:
        """Return what counts against a budget in tokens."""
        return self.input + self.output

    def to_dict(self) -> dict[str, int]:
        """Return what the ledger records; zeros are left out, except input and output."""
        more = {"cache_read": self.cache_read, "cache_write": self.cache_write, "reasoning": self.reasoning}
        always = {"input": self.input, "output": self.output, "total": self.total}
        return always | {name: count for name, count in more.items() if count}


def api_of(provider: str, method: str, url: str) -> Api | None:
    """Return the wire format of this request, or None if such requests are not recorded."""
    path = url.partition("?")[0]
    if provider == "google":
        path = "".join(path.rpartition(":")[1:])
    return PATHS.get((provider, path)) if method.lower() == "post" else None


def model_in_path(path: str) -> str:
    """Return the model that a path of Gemini names, as prices and programs name it."""
    whole = path.partition("?")[0].rpartition(":")[0]
    _, found, name = whole.rpartition("models/")
    return name if found else whole  # a tuned model has only its whole name


def answering_model(api: Api, response: Mapping[str, Any] | None) -> str:
    """Return the model that a response names, or an empty text."""
    found = None if response is None else response.get("modelVersion" if api == "generate_content" else "model")
    return str(found or "")


# ---- Usage and reservations


def tokens_of(api: Api, response: Mapping[str, Any] | None) -> Tokens | None:
    """Return the usage that a response reports, or None."""
    if api in ("generate_content", "chat", "generate"):
        return _gemini_tokens(response) if api == "generate_content" else _ollama_tokens(response)
    usage = None if response is None else response.get("usage")
    if not isinstance(usage, Mapping):
        return None
    if api == "chat.completions":
        counted = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        details = _part(usage, "prompt_tokens_details"), _part(usage, "completion_tokens_details")
        read = _count(details[0], "cached_tokens")
    elif api == "responses":
        counted = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        details = _part(usage, "input_tokens_details"), _part(usage, "output_tokens_details")
        read = _count(details[0], "cached_tokens")
    else:
        counted = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        details = usage, _part(usage, "output_tokens_details")
        read = _count(usage, "cache_read_input_tokens")
    if counted == (None, None):
        return None
    written = _count(details[0], "cache_creation_input_tokens" if api == "messages" else "cache_write_tokens")
    beside = (read or 0) + (written or 0) if api == "messages" else 0  # this format does not count them in input_tokens
    return Tokens(
        input=(counted[0] or 0) + beside,
        output=counted[1] or 0,
        cache_read=read or 0,
        cache_write=written or 0,
        reasoning=_count(details[1], "reasoning_tokens") or _count(details[1], "thinking_tokens") or 0,
    )


def _gemini_tokens(response: Mapping[str, Any] | None) -> Tokens | None:
    usage = _part(response or {}, "usageMetadata")
    names = ("promptTokenCount", "toolUsePromptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    prompt, of_tools, answer, thoughts = (_count(usage, name) for name in names)
    if prompt is None and answer is None:
        return None
    return Tokens(
        input=(prompt or 0) + (of_tools or 0),
        output=(answer or 0) + (thoughts or 0),  # this format does not count the thoughts in the answer
        cache_read=_count(usage, "cachedContentTokenCount") or 0,
        reasoning=thoughts or 0,
    )


def _ollama_tokens(response: Mapping[str, Any] | None) -> Tokens | None:
    prompt, answer = (_count(response or {}, name) for name in ("prompt_eval_count", "eval_count"))
    if prompt is None and answer is None:
        return None
    return Tokens(input=prompt or 0, output=answer or 0)  # a prompt that the server has cached is left out


def _part(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = usage.get(name)
    return found if isinstance(found, Mapping) else {}


def _count(usage: Mapping[str, Any], name: str) -> int | None:
    found = usage.get(name)
    if not isinstance(found, int | float) or isinstance(found, bool) or not found >= 0:
        return None
    return int(min(found, COUNT_MAX))


def reserved_tokens(request: Mapping[str, Any], *, size: int, attachments: int) -> Tokens:
    """Estimate what a request may use at most, before it is sent."""
    given = {**request, **_part(request, "generationConfig"), **_part(request, "options")}
    limits = (given.get(name) for name in _LIMITS)
    limit = next((found for found in limits if isinstance(found, int) and found >= 0), OUTPUT_TOKENS)
    answers = given.get("n") or given.get("candidateCount")
    return Tokens(
        input=-(-size // BYTES_PER_TOKEN) + attachments * ATTACHMENT_TOKENS,
        output=limit * (answers if isinstance(answers, int) else 1),
        estimated=True,
    )


_LIMITS: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "num_predict")
"""How the formats name the limit of an answer. A negative one of Ollama means that there is none."""


def received_tokens(reserved: Tokens, known: Tokens | None, characters: int) -> Tokens:
    """Estimate what an incomplete response has used, from the usage that was reported and the text that was received."""
    output = -(-characters // BYTES_PER_TOKEN)
    if known is None:
        return Tokens(input=reserved.input, output=output, estimated=True)
    return Tokens(known.input, max(known.output, output), known.cache_read, known.cache_write, estimated=True)


# ---- What is recorded of a request or a response


@dataclass(frozen=True, slots=True)
class Written:
    """A request or a response as the ledger records it."""

    data: Any
    size: int
    """Its size in bytes before texts were cut, without attachments."""
    attachments: int


def written(data: object) -> Written:
    """Return plain data for the ledger: attachments replaced by their digest, and long texts cut if all is too large."""
    cut = _Cut(ATTACHMENT_CHARS_MIN, only_encoded=True)
    kept = cut.plain(data)
    size = _size(kept)
    if size > RECORD_BYTES_MAX:
        kept = _Cut(TEXT_CHARS_MAX, only_encoded=False).plain(kept)
        if _size(kept) > RECORD_BYTES_MAX:
            kept = {"left out": f"{size} bytes", "sha256": hashlib.sha256(_json(data).encode()).hexdigest()}
    return Written(kept, size, cut.count)


def _size(data: object) -> int:
    return len(_json(data).encode("utf-8", "replace"))


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


class _Cut:
    """Turns data of an SDK into plain data, and cuts texts that are too long."""

    def __init__(self, chars_max: int, *, only_encoded: bool) -> None:
        self._chars_max, self._only_encoded = chars_max, only_encoded
        self.count = 0

    def plain(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, Enum):
            value = value.value
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(value)
        if depth > DEPTH_MAX:
            return f"[left out: nested deeper than {DEPTH_MAX} levels]"
        if isinstance(value, Mapping):
            return {str(name): self.plain(one, depth + 1) for name, one in value.items() if not _is_omitted(one)}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.plain(one, depth + 1) for one in value]
        if hasattr(value, "to_dict"):
            return self.plain(value.to_dict(mode="json", warnings=False), depth + 1)
        if hasattr(value, "model_dump"):
            return self.plain(value.model_dump(mode="json", exclude_unset=True, warnings=False), depth + 1)
        return self._text(str(value))

    def _text(self, text: str) -> str:
        if not text.isascii():
            text = text.encode("utf-8", "replace").decode()  # lone surrogates, which models and users do send
        if len(text) < self._chars_max or (self._only_encoded and not _is_encoded(text)):
            return text
        self.count += 1
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        head = "" if self._only_encoded else text[: self._chars_max // 2]
        return f"{head}[left out: {len(text)} characters, sha256 {digest}]"


def _is_omitted(value: object) -> bool:
    """Return whether this is the mark of an SDK for an argument that was not given."""
    return type(value).__name__ in ("NotGiven", "Omit")


def _is_encoded(text: str) -> bool:
    return text.startswith("data:") or _ENCODED.match(text) is not None


# ---- A conversation with tools, in each wire format


Message: TypeAlias = dict[str, Any]
Prompt: TypeAlias = str | Sequence[Mapping[str, Any]]
"""What the user says: a text, or messages in the format of the API."""
Style: TypeAlias = Literal["openai", "responses", "anthropic", "gemini", "ollama"]
ANSWER_TOKENS: Final = 4_096
"""The default limit of a response from Anthropic, whose API requires one in every request."""


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """One parsed turn of a model."""

    text: str
    calls: tuple[ToolCall, ...]
    messages: tuple[Message, ...]
    """The messages that it adds to the conversation."""
    cut: str = ""
    """Why it stopped early; empty if it did not."""
    goes_on: bool = False
    """The provider has only paused: send the same conversation again."""


class Dialect(Protocol):
    """One wire format."""

    style: Style

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        """Return the conversation before the first turn of the model."""

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        """Return the body of a request; for Gemini and Ollama, the arguments of the SDK's method."""

    def with_options(self, request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        """Add the caller's own fields to a request, which come before ours."""

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        """Return the messages of a request's body."""

    def turn(self, response: Mapping[str, Any]) -> ModelTurn:
        """Parse a response."""

    def results(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        """Return the messages that give the model the outcomes of its calls."""

    def delta(self, event: Mapping[str, Any]) -> str:
        """Return the text that an event of a stream adds."""

    def said(self, message: Mapping[str, Any]) -> str:
        """Return the text of a user's message, or an empty text if it is not one."""


def dialect(api: Api) -> Dialect:
    """Return the dialect of this wire format; ``generate`` has none, because it has no tools."""
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

    def turn(self, response: Mapping[str, Any]) -> ModelTurn:
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
        return ModelTurn(_text(content), tuple(calls), (added,), cut)

    def results(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        return [{"role": "tool", "tool_call_id": call.tool_call_id, "content": answer.text} for call, answer in results]

    def delta(self, event: Mapping[str, Any]) -> str:
        choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
        return str((choice.get("delta") or {}).get("content") or "")

    def with_options(self, request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, **options}

    def said(self, message: Mapping[str, Any]) -> str:
        return _said(message)


_CHAT_ENDS: Final = frozenset({"stop", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence", "end_turn"})
"""The normal ends of OpenAI, and of servers with its format. Any other reason (error, abort, …) is not the model's."""


class _Responses:
    style: Style = "responses"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        return _given(prompt)

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        more = ({"instructions": system} if system else {}) | ({"tools": list(tools)} if tools else {})
        return {"model": model, "input": list(messages), **more}

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("input") or ()

    def turn(self, response: Mapping[str, Any]) -> ModelTurn:
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
        return ModelTurn(text, tuple(calls), tuple(kept), cut or (f"the model refused: {refusal}" if refusal else ""))

    def results(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        kind = "function_call_output"
        return [{"type": kind, "call_id": call.tool_call_id, "output": answer.text} for call, answer in results]

    def delta(self, event: Mapping[str, Any]) -> str:
        return str(event.get("delta") or "") if event.get("type") == "response.output_text.delta" else ""

    def with_options(self, request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, **options}

    def said(self, message: Mapping[str, Any]) -> str:
        return _said(message)


_ANSWER_ONLY: Final = frozenset({"created_by", "parsed_arguments"})
"""Fields that an item of a response has and an item of a request must not have."""


class _Messages:
    style: Style = "anthropic"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        return _given(prompt)

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        more = ({"system": system} if system else {}) | ({"tools": list(tools)} if tools else {})
        return {"model": model, "max_tokens": ANSWER_TOKENS, "messages": list(messages), **more}

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("messages") or ()

    def turn(self, response: Mapping[str, Any]) -> ModelTurn:
        content = [block for block in response.get("content") or () if isinstance(block, Mapping)]
        kept = [{k: v for k, v in block.items() if v is not None and k != "partial_json"} for block in content]
        calls = [  # input that is not valid JSON is passed on, so that the model is told; {} would look like a valid call
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
        return ModelTurn(_text(content), tuple(calls), added, cut, goes_on=stop == "pause_turn")

    def results(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
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

    def with_options(self, request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, **options}

    def said(self, message: Mapping[str, Any]) -> str:
        return _said(message)


_MESSAGES_ENDS: Final = frozenset({"end_turn", "tool_use", "stop_sequence", "pause_turn"})


class _Gemini:
    """Contents as they are on the wire, in camel case; the SDK takes them so too. A call may have no id."""

    style: Style = "gemini"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        if isinstance(prompt, str):
            return [{"role": "user", "parts": [{"text": prompt}]}]
        messages = _given(prompt)
        wrong = next((one for one in messages if "parts" not in one), None)
        if wrong is not None:
            raise UsageError(
                f"a message for Gemini has 'parts', and this one has {', '.join(sorted(wrong)) or 'nothing'}",
                hint='write it as {"role": "user", "parts": [{"text": "..."}]}',
            )
        return messages

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        config: dict[str, Any] = {"automatic_function_calling": {"disable": True}}
        config |= {"system_instruction": system} if system else {}
        config |= {"tools": [{"function_declarations": list(tools)}]} if tools else {}
        return {"model": model, "contents": list(messages), "config": config}

    def with_options(self, request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, "config": {**request["config"], **options}}

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("contents") or ()

    def turn(self, response: Mapping[str, Any]) -> ModelTurn:
        candidate: Mapping[str, Any] = next(iter(response.get("candidates") or ()), {})
        parts = [
            {k: v for k, v in part.items() if v is not None}
            for part in _maps((candidate.get("content") or {}).get("parts"))
        ]
        asked = [part["functionCall"] for part in parts if isinstance(part.get("functionCall"), Mapping)]
        calls = [ToolCall(str(one.get("name", "")), one.get("args") or {}, one.get("id") or None) for one in asked]
        cut = _cut(candidate.get("finishReason"), _GEMINI_CUTS, ends=_GEMINI_ENDS)
        if blocked := (response.get("promptFeedback") or {}).get("blockReason"):
            cut = f"the provider refused the request ({blocked})"
        elif any(one.get("partialArgs") or one.get("willContinue") for one in asked):
            cut = "the arguments of its calls came in pieces, which is not supported"
        added = ({"role": "model", "parts": parts},) if parts else ()
        return ModelTurn(_gemini_text(parts), tuple(calls), added, cut)

    def results(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        parts = []
        for call, answer in results:
            told = {"name": call.tool, "response": {"error" if answer.is_error else "output": answer.text}}
            parts.append({"functionResponse": ({"id": call.tool_call_id} if call.tool_call_id else {}) | told})
        return [{"role": "user", "parts": parts}] if parts else []

    def delta(self, event: Mapping[str, Any]) -> str:
        candidate: Mapping[str, Any] = next(iter(event.get("candidates") or ()), {})
        return _gemini_text(_maps((candidate.get("content") or {}).get("parts")))

    def said(self, message: Mapping[str, Any]) -> str:
        return _gemini_text(_maps(message.get("parts"))) if message.get("role") == "user" else ""


_GEMINI_ENDS: Final = frozenset({"STOP"})
_GEMINI_CUTS: Final = {
    "MAX_TOKENS": "its answer was cut at the limit of tokens",
    "MALFORMED_FUNCTION_CALL": "it made a call that the provider could not read",
    "SAFETY": "the provider refused it",
    "PROHIBITED_CONTENT": "the provider refused it",
}


def _gemini_text(parts: Iterable[Mapping[str, Any]]) -> str:
    return "".join(str(part.get("text") or "") for part in parts if not part.get("thought"))


class _Ollama:
    """A chat whose calls have no ids: their results are told apart by their order and the name of the tool."""

    style: Style = "ollama"

    def opening(self, system: str, prompt: Prompt) -> list[Message]:
        return ([{"role": "system", "content": system}] if system else []) + _given(prompt)

    def request(self, model: str, messages: Sequence[Message], *, system: str, tools: Sequence[Any]) -> dict[str, Any]:
        return {"model": model, "messages": list(messages)} | ({"tools": list(tools)} if tools else {})

    def with_options(self, request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
        return {**request, **options}

    def conversation(self, request: Mapping[str, Any]) -> Sequence[Any]:
        return request.get("messages") or ()

    def turn(self, response: Mapping[str, Any]) -> ModelTurn:
        message = response.get("message") or {}
        asked = [
            one["function"] for one in _maps(message.get("tool_calls")) if isinstance(one.get("function"), Mapping)
        ]
        calls = [ToolCall(str(one.get("name", "")), one.get("arguments") or {}) for one in asked]
        kept = {k: v for k, v in message.items() if v is not None}
        # Old servers give no reason.
        reason = response.get("done_reason") or ("stop" if response.get("done") else None)
        cut = _cut(reason, {"length": "its answer was cut at the limit of tokens"}, ends=_OLLAMA_ENDS)
        return ModelTurn(str(message.get("content") or ""), tuple(calls), ({"role": "assistant", **kept},), cut)

    def results(self, results: Iterable[tuple[ToolCall, Answer]]) -> list[Message]:
        return [{"role": "tool", "tool_name": call.tool, "content": answer.text} for call, answer in results]

    def delta(self, event: Mapping[str, Any]) -> str:
        return str((event.get("message") or {}).get("content") or "")

    def said(self, message: Mapping[str, Any]) -> str:
        return _said(message)


_OLLAMA_ENDS: Final = frozenset({"stop"})
_DIALECTS: Final[dict[Api, Dialect]] = {
    "chat.completions": _Chat(),
    "responses": _Responses(),
    "messages": _Messages(),
    "generate_content": _Gemini(),
    "chat": _Ollama(),
}


def _cut(reason: object, known: Mapping[str, str], *, ends: frozenset[str]) -> str:
    """Return why a response is not complete, or ""; a response without a reason for its end was cut off on the way."""
    if reason is None:
        return "its answer broke off"
    return "" if str(reason) in ends else known.get(str(reason), f"its answer was cut ({reason})")


def _said(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if message.get("role") == "user" and isinstance(content, str) else ""


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if part.get("type") in ("text", "output_text"))


# ---- The conversation so far, read from a request; for scripted models


_NUMBERED: Final = re.compile(r"_(\d+)\Z")
_OF_MODEL: Final = frozenset({"function_call", "reasoning"})


def heard_in(api: Api, request: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """Return how many turns the model has had, and the results of its calls.

    A conversation that the provider stores is named by the id of its last response; the ids of a scripted model are
    numbered, so the id tells the turn.
    """
    if api == "generate":
        return 0, ()
    if api == "generate_content":
        contents = _maps(request.get("contents"))
        parts = [part for one in contents if one.get("role") != "model" for part in _maps(one.get("parts"))]
        told = [_mapping(_mapping(part.get("functionResponse")).get("response")) for part in parts]
        results = [str(one.get("output", one.get("error"))) for one in told if one]
        return sum(one.get("role") == "model" for one in contents), tuple(results)
    if api in ("chat.completions", "chat"):
        messages = _maps(request.get("messages"))
        results = [_result_text(one.get("content")) for one in messages if one.get("role") == "tool"]
        return sum(one.get("role") == "assistant" for one in messages), tuple(results)
    if api == "responses":
        items = _maps(request.get("input"))
        results = [_result_text(one.get("output")) for one in items if one.get("type") == "function_call_output"]
        return _number(request.get("previous_response_id")) + _count_turns(items), tuple(results)
    messages = _maps(request.get("messages"))
    blocks = [block for one in messages if one.get("role") == "user" for block in _maps(one.get("content"))]
    results = [_result_text(block.get("content")) for block in blocks if block.get("type") == "tool_result"]
    thread = request.get("thread")
    before = _number(thread.get("previous_message_id")) if isinstance(thread, Mapping) else 0
    return before + sum(one.get("role") == "assistant" for one in messages), tuple(results)


def _count_turns(items: Iterable[Mapping[str, Any]]) -> int:
    """Count the turns of the model: items in a row are one turn."""
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


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _result_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return "".join(str(one.get("text", "")) for one in _maps(value))
