"""Answers from the record: a run that has ended asks its model nothing, and is told what it was told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from amends import UsageError
from amends.llm.asking import Asked
from amends.llm.events import events_of


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
