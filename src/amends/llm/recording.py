"""``record(client)``: the same client, whose requests to models are calls of the current run."""

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
from amends.llm.requests import Asked, Entry, Outside, asked_for, failed_outcome, run_for
from amends.llm.streams import events_of, is_stream, watch, watch_async
from amends.llm.wire import api_of
from amends.visible import visible_log

# ---- Answers from the record: a run that has ended asks its model nothing, and is told what it was told


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


# ---- ``record(client)``: the same client, whose requests to models are calls of the current run


log = visible_log("amends")

C = TypeVar("C")

PROVIDERS: Final = ("openai", "anthropic")
"""The SDKs, by the name of their package."""


def record(client: C, prices: Mapping[str, Price] | None = None, *, outside: Outside = "raise") -> C:
    """The same client, whose requests to models are written down in the run they are made in.

    For ``OpenAI``, ``AsyncOpenAI``, ``Anthropic``, ``AsyncAnthropic`` and their subclasses: chat completions,
    responses and messages, streamed or not. Each is a call of kind ``read`` of the tool ``model:openai`` or
    ``model:anthropic``, with request, answer, model, tokens and cost. The client given stays as it is; both share
    its connections. ``prices``: US dollars for a million tokens, by model (``*`` is a wildcard), before those of
    genai-prices. ``outside``: a request outside a run raises ``NoRun``, or passes unrecorded.
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


# ---- which client -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a client by its class."""

    provider: str
    is_async: bool
    is_recorded: bool


def kind_of(client: object) -> Kind:
    """Of which SDK and colour a client is; raises where it is of none."""
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
    """What one ``record`` was told."""

    provider: str
    prices: Prices
    outside: Outside

    def asked(self, options: Any) -> Asked | None:
        api = api_of(self.provider, str(options.method), str(options.url))
        if api is None:
            return None
        body = options.json_data
        if isinstance(body, Mapping) and isinstance(options.extra_json, Mapping):
            body = {**body, **options.extra_json}
        return asked_for(f"model:{self.provider}", api, body, self.prices)


def _subclass(plain: type[Any], request: Callable[..., Any]) -> type[Any]:
    """A class of the same name, so that copies (``with_options``) are recorded too and ``isinstance`` holds."""
    names = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(plain.__name__, (plain,), {**names, "request": request, "__amends_plain__": plain})


# ---- blocking -----------------------------------------------------------------------------


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


# ---- awaited ------------------------------------------------------------------------------


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


# ---- both ---------------------------------------------------------------------------------


def _with_usage(asked: Asked, options: Any, *, stream: bool) -> tuple[Any, bool]:
    """The request, asking for its usage; and whether the caller did not, and is not to see the answer to that."""
    body = options.json_data
    if not stream or asked.api != "chat.completions" or not isinstance(body, Mapping) or "stream_options" in body:
        return options, False
    changed = options.model_copy()
    changed.json_data = {**body, "stream_options": {"include_usage": True}}
    return changed, True


def _is_raw(answer: object) -> bool:
    """``with_raw_response`` and ``with_streaming_response``: what was read or made once is kept there for the caller."""
    return hasattr(answer, "parse") and hasattr(answer, "http_response")


def _plain(answer: Any) -> object:
    """What is recorded of an answer. Never raises: the answer is paid for, and the caller is to have it."""
    try:
        if hasattr(answer, "to_dict"):
            return answer.to_dict(mode="json", warnings=False)
        if hasattr(answer, "status_code"):  # the HTTP response itself
            return answer.json()
    except Exception:
        log.exception("an answer of a model could not be recorded")
        return None
    return answer
