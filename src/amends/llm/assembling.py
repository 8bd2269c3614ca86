"""A streamed answer, put together again: what the ledger keeps of it, and how much of it came."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol

from amends.llm.wire import Api

_WHOLE: Final = frozenset({"id", "index", "type", "role", "object", "model", "finish_reason", "refusal_reason"})
"""Texts of a delta that are sent whole; all others are appended."""
_FINAL: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_PIECES: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class Assembler(Protocol):
    """Sees the events of one stream."""

    response: dict[str, Any] | None
    """The answer so far, in the form of one that was not streamed."""
    characters: int
    """How much of it has come."""

    def see(self, event: Mapping[str, Any]) -> None:
        """Take one event in."""


def assembler(api: Api) -> Assembler:
    """The one for this wire format."""
    if api == "chat.completions":
        return _Chat()
    return _Responses() if api == "responses" else _Messages()


class _Chat:
    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.characters = 0

    def see(self, event: Mapping[str, Any]) -> None:
        if self.response is None:
            self.response = {"object": "chat.completion", "choices": []}
        for name in ("id", "created", "model", "service_tier", "system_fingerprint", "usage"):
            if event.get(name) is not None:
                self.response[name] = event[name]
        for part in event.get("choices") or ():
            choice = _indexed(self.response["choices"], part.get("index", 0))
            delta = part.get("delta") or {}
            _append(choice.setdefault("message", {}), delta)
            self.characters += _length(delta)
            if part.get("finish_reason") is not None:
                choice["finish_reason"] = part["finish_reason"]


class _Responses:
    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.characters = 0

    def see(self, event: Mapping[str, Any]) -> None:
        kind = str(event.get("type", ""))
        if isinstance(event.get("response"), Mapping) and (kind in _FINAL or self.response is None):
            self.response = dict(event["response"])
        elif isinstance(event.get("delta"), str):
            self.characters += len(event["delta"])
            if kind == "response.output_text.delta" and self.response is not None:
                self.response["output_text"] = self.response.get("output_text", "") + event["delta"]
        elif kind == "response.output_item.done" and self.response is not None:
            self.response["output"] = [*(self.response.get("output") or ()), event.get("item")]


class _Messages:
    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.characters = 0

    def see(self, event: Mapping[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self.response = dict(event.get("message") or {})
                self.response["content"] = list(self.response.get("content") or ())
            case "content_block_start" if self.response is not None:
                self.response["content"].append(dict(event.get("content_block") or {}))
            case "content_block_delta" if self.response is not None and self.response["content"]:
                self._grow(self.response["content"], int(event.get("index", 0)), event.get("delta") or {})
            case "content_block_stop" if self.response is not None:
                _close_block(self.response["content"], int(event.get("index", 0)))
            case "message_delta" if self.response is not None:
                self.response |= {k: v for k, v in (event.get("delta") or {}).items() if v is not None}
                said = {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
                self.response["usage"] = {**(self.response.get("usage") or {}), **said}

    def _grow(self, blocks: list[dict[str, Any]], index: int, delta: Mapping[str, Any]) -> None:
        block = blocks[min(index, len(blocks) - 1)]
        name = _PIECES.get(str(delta.get("type")))
        if name is not None:
            piece = str(delta.get(name, ""))
            block[name] = block.get(name, "") + piece
            self.characters += len(piece)
        elif isinstance(delta.get("citation"), Mapping):
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]


def _close_block(blocks: list[dict[str, Any]], index: int) -> None:
    """A tool's input has come in pieces of JSON; whole, it is kept as the SDK gives it."""
    block = blocks[index] if index < len(blocks) else {}
    pieces = block.pop("partial_json", None)
    if pieces:
        try:
            block["input"] = json.loads(pieces)
        except ValueError:
            block["partial_json"] = pieces


def _indexed(entries: list[dict[str, Any]], index: int) -> dict[str, Any]:
    found = next((entry for entry in entries if entry.get("index") == index), None)
    if found is None:
        found = {"index": index}
        entries.append(found)
    return found


def _append(whole: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if value is None:
            whole.setdefault(name, None)
        elif isinstance(value, str) and name not in _WHOLE:
            whole[name] = (whole.get(name) or "") + value
        elif isinstance(value, Mapping):
            whole[name] = whole.get(name) or {}
            _append(whole[name], value)
        elif isinstance(value, list) and all(isinstance(one, Mapping) and "index" in one for one in value):
            whole[name] = whole.get(name) or []
            for one in value:
                _append(_indexed(whole[name], one["index"]), one)
        else:
            whole[name] = value


def _length(delta: object) -> int:
    if isinstance(delta, str):
        return len(delta)
    if isinstance(delta, Mapping):
        return sum(_length(value) for name, value in delta.items() if name not in _WHOLE)
    return sum(map(_length, delta)) if isinstance(delta, list) else 0
