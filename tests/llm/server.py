"""The public server of a scripted model, as these tests want it: one text, one call where there are tools."""

from __future__ import annotations

from typing import Any

from amends.llm import Heard, ModelServer, Reply, ScriptedModel
from amends.llm.scripted import response_of

Server = ModelServer
TEXT = "Four and twenty blackbirds"
USAGE_CHAT = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
USAGE: Any = {
    "chat.completions": USAGE_CHAT,
    "responses": {
        "input_tokens": 1000,
        "input_tokens_details": {"cached_tokens": 400},
        "output_tokens": 200,
        "output_tokens_details": {"reasoning_tokens": 50},
        "total_tokens": 1200,
    },
    "messages": {
        "input_tokens": 600,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 100,
        "output_tokens": 200,
    },
}


def said(heard: Heard) -> Any:
    if heard.request.get("_finish") == "length":
        return Reply(TEXT, stop="length")
    call = ("charge", {"cents": 5})
    if not heard.request.get("tools"):
        return TEXT
    return [TEXT, call] if "max_tokens" in heard.request else call


def model() -> ScriptedModel:
    return ScriptedModel(said, repeat=True)


def serving() -> ModelServer:
    return ModelServer(model(), usage=USAGE)


def answered(api: Any, request: dict[str, Any]) -> dict[str, Any]:
    """What the server says to this request."""
    return response_of(api, model().reply(api, request), request, number=1, usage=USAGE.get(api))
