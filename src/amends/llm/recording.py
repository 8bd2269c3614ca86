"""``record(client)``: a copy of an SDK client whose requests to models are recorded as calls of the current run."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar, get_args

from amends import UsageError
from amends.llm import requests
from amends.llm.prices import Price, Prices
from amends.llm.requests import Entry, ModelRequest, Outside, failed_outcome, model_request, run_for
from amends.llm.streams import events_of, is_stream, watch, watch_async
from amends.llm.wire import api_of
from amends.visible import visible_log

log = visible_log("amends")

C = TypeVar("C")

PROVIDERS: Final = ("openai", "anthropic")
"""The SDKs, by the name of their package."""


def record(client: C, prices: Mapping[str, Price] | None = None, *, outside: Outside = "raise") -> C:
    """Return a copy of the client that records its requests to models in the current run.

    For ``OpenAI``, ``AsyncOpenAI``, ``Anthropic``, ``AsyncAnthropic`` and their subclasses: chat completions,
    responses and messages, streamed or not. Each request is a call of kind ``read`` of the tool ``model:openai`` or
    ``model:anthropic``, with request, response, model, tokens and cost. The given client does not change; both share
    its connections.

    ``prices`` are US dollars per million tokens, by model (``*`` is a wildcard); they come before those of
    genai-prices. ``outside`` tells whether a request outside a run raises ``NoRun`` or passes unrecorded.
    """
    kind = kind_of(client)
    if outside not in get_args(Outside):
        raise UsageError(f"outside is {outside!r}; it is one of {', '.join(get_args(Outside))}")
    plain: Any = getattr(type(client), "__amends_plain__", type(client))
    given: Any = client
    made: Any = given.copy()
    recorder = _Recorder(kind.provider, Prices(prices, provider=kind.provider, url=str(given.base_url)), outside)
    made.__class__ = (_async_class if kind.is_async else _blocking_class)(plain, recorder)
    result: C = made
    return result


@dataclass(frozen=True, slots=True)
class Kind:
    """What the class of a client tells about it."""

    provider: str
    is_async: bool
    is_recorded: bool


def kind_of(client: object) -> Kind:
    """Return the SDK of a client, and whether it is async; raise ``UsageError`` if it is of no known SDK."""
    for cls in type(client).__mro__:
        provider = cls.__module__.partition(".")[0]
        if provider in PROVIDERS and cls.__name__ in ("SyncAPIClient", "AsyncAPIClient"):
            return Kind(provider, cls.__name__ == "AsyncAPIClient", hasattr(type(client), "__amends_plain__"))
    raise UsageError(
        f"record() takes a client of the OpenAI or the Anthropic SDK, not {type(client).__name__}",
        hint="pass OpenAI(), AsyncOpenAI(), Anthropic() or AsyncAnthropic()",
    )


@dataclass(frozen=True, slots=True)
class _Recorder:
    """The arguments of one ``record``."""

    provider: str
    prices: Prices
    outside: Outside

    def asked(self, options: Any) -> ModelRequest | None:
        api = api_of(self.provider, str(options.method), str(options.url))
        if api is None:
            return None
        body = options.json_data
        if isinstance(body, Mapping) and isinstance(options.extra_json, Mapping):
            body = {**body, **options.extra_json}
        return model_request(f"model:{self.provider}", api, body, self.prices)


def _subclass(plain: type[Any], request: Callable[..., Any]) -> type[Any]:
    """Return a subclass of the same name, so that copies (``with_options``) are recorded too and ``isinstance`` works."""
    names = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(plain.__name__, (plain,), {**names, "request": request, "__amends_plain__": plain})


def _blocking_class(plain: type[Any], recorder: _Recorder) -> type[Any]:
    def request(
        self: Any, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any
    ) -> Any:
        def send(prepared: Any) -> Any:
            return plain.request(self, cast_to, prepared, stream=stream, stream_cls=stream_cls, **more)

        options = self._copy_and_prepare(options) if hasattr(self, "_copy_and_prepare") else options
        asked = recorder.asked(options)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=False)
        if asked is None or run is None:
            return send(options)
        entry = requests.begin(run, asked)
        if entry.replayed:
            kwargs = {"cast_to": cast_to, "stream": stream, "stream_cls": stream_cls}
            return recorded(self, asked, entry.attempt.result, options=options, kwargs=kwargs)
        prepared, hides = _with_usage(asked, options, stream=stream)
        return _answered(entry, lambda: send(prepared), stream=stream, hide_usage=hides)

    return _subclass(plain, request)


def _answered(entry: Entry, send: Callable[[], Any], *, stream: bool, hide_usage: bool) -> Any:
    try:
        answer = found = send()
        if _is_raw(answer):
            found = answer.parse() if stream else answer.http_response
            _ = stream or found.read()
    except BaseException as error:
        requests.fail(entry, error, failed_outcome(entry.asked, error))
        raise
    if is_stream(found):
        watch(found, entry, hide_usage=hide_usage)
    else:
        requests.succeed(entry, _plain(found))
    return answer


def _async_class(plain: type[Any], recorder: _Recorder) -> type[Any]:
    async def request(
        self: Any, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None, **more: Any
    ) -> Any:
        async def send(prepared: Any) -> Any:
            return await plain.request(self, cast_to, prepared, stream=stream, stream_cls=stream_cls, **more)

        options = await self._copy_and_prepare(options) if hasattr(self, "_copy_and_prepare") else options
        asked = recorder.asked(options)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=True)
        if asked is None or run is None:
            return await send(options)
        entry = await requests.begin_async(run, asked)
        if entry.replayed:
            kwargs = {"cast_to": cast_to, "stream": stream, "stream_cls": stream_cls}
            return await recorded(self, asked, entry.attempt.result, options=options, kwargs=kwargs)
        prepared, hides = _with_usage(asked, options, stream=stream)
        return await _answered_async(entry, lambda: send(prepared), stream=stream, hide_usage=hides)

    return _subclass(plain, request)


async def _answered_async(entry: Entry, send: Callable[[], Any], *, stream: bool, hide_usage: bool) -> Any:
    try:
        answer = found = await send()
        if _is_raw(answer):
            found = answer.parse() if stream else answer.http_response
            found = await found if inspect.isawaitable(found) else found
            _ = stream or await found.aread()
    except BaseException as error:
        await requests.fail_async(entry, error, failed_outcome(entry.asked, error))
        raise
    if is_stream(found):
        watch_async(found, entry, hide_usage=hide_usage)
    else:
        await requests.succeed_async(entry, _plain(found))
    return answer


def _with_usage(asked: ModelRequest, options: Any, *, stream: bool) -> tuple[Any, bool]:
    """Return the request with its usage asked for, and whether to hide the usage event from a caller who did not ask."""
    body = options.json_data
    if not stream or asked.api != "chat.completions" or not isinstance(body, Mapping) or "stream_options" in body:
        return options, False
    changed = options.model_copy()
    changed.json_data = {**body, "stream_options": {"include_usage": True}}
    return changed, True


def _is_raw(answer: object) -> bool:
    """Return whether this is a response of ``with_raw_response`` or ``with_streaming_response``.

    Such a response caches what was read or parsed, so that the caller can still get it.
    """
    return hasattr(answer, "parse") and hasattr(answer, "http_response")


def _plain(answer: Any) -> object:
    """Return what is recorded of a response. Never raise: the response is paid for, and the caller must get it."""
    try:
        if hasattr(answer, "to_dict"):
            return answer.to_dict(mode="json", warnings=False)
        if hasattr(answer, "status_code"):  # the HTTP response itself
            return answer.json()
    except Exception:
        log.exception("a response of a model could not be recorded")
        return None
    return answer


# ---- Responses from the record


def recorded(client: Any, asked: ModelRequest, result: Any, *, options: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the recorded response as the SDK would have returned it: an object, a stream, or a raw response.

    The SDK's own parsing of an HTTP response builds it, because only that knows which form the caller asked for. With
    an async client, await the result.
    """
    response = result.get("response") if isinstance(result, Mapping) else None
    if not isinstance(response, Mapping):
        raise UsageError(
            f"{asked.tool}: the run has ended, and its record does not have the response to this request",
            hint="open a new run to ask again",
        )
    options = options.model_copy()
    cast_to = client._maybe_override_cast_to(kwargs["cast_to"], options)
    request = client._build_request(options)
    if kwargs["stream"]:
        content, kind = _sse(asked, response), "text/event-stream"
    else:
        content, kind = json.dumps(response).encode(), "application/json"
    http = import_module(type(request).__module__.partition(".")[0])  # the HTTP library of the SDK
    answer = http.Response(200, headers={"content-type": kind}, content=content, request=request)
    return client._process_response(**{**kwargs, "cast_to": cast_to}, options=options, response=answer)


def _sse(asked: ModelRequest, response: Mapping[str, Any]) -> bytes:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events_of(asked.api, response)]
    if asked.api == "chat.completions":
        lines = [line.partition("\n")[2] for line in lines] + ["data: [DONE]\n\n"]
    return "".join(lines).encode()
