"""``record(client)``: a copy of an SDK client whose requests to models are recorded as calls of the current run."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, TypeVar, get_args

from amends import UsageError
from amends.llm import requests
from amends.llm.prices import Price, Prices
from amends.llm.requests import Entry, ModelRequest, Outside, failed_outcome, model_request, run_for
from amends.llm.streams import (
    AsyncLater,
    Later,
    events_of,
    is_stream,
    watch,
    watch_async,
    watched,
    watched_async,
)
from amends.llm.wire import api_of, model_in_path
from amends.visible import visible_log

log = visible_log("amends")

C = TypeVar("C")

PROVIDERS: Final = {
    ("openai", "SyncAPIClient"): ("openai", False),
    ("openai", "AsyncAPIClient"): ("openai", True),
    ("anthropic", "SyncAPIClient"): ("anthropic", False),
    ("anthropic", "AsyncAPIClient"): ("anthropic", True),
    ("google.genai.client", "Client"): ("google", None),
    ("google.genai.client", "AsyncClient"): ("google", True),
    ("ollama", "Client"): ("ollama", False),
    ("ollama", "AsyncClient"): ("ollama", True),
}
"""The provider by package and class of the client, and whether the client is async; None if it has both colours."""
NO_PRICE: Final[Mapping[str, Price]] = {"*": (0, 0)}
"""A model of Ollama runs on the caller's own machine: it costs nothing per token, unless the caller says so."""


def record(client: C, prices: Mapping[str, Price] | None = None, *, outside: Outside = "raise") -> C:
    """Return a copy of the client that records its requests to models in the current run.

    For ``OpenAI`` and ``Anthropic`` (chat completions, responses, messages), ``google.genai.Client`` (``models`` and
    ``chats``, also of its ``aio``) and ``ollama.Client`` (``chat`` and ``generate``), their async clients and their
    subclasses, streamed or not. Each request is a call of kind ``read`` of the tool ``model:openai``,
    ``model:anthropic``, ``model:google`` or ``model:ollama``, with request, response, model, tokens and cost. The
    given client does not change; both share its connections.

    ``prices`` are US dollars per million tokens, by model (``*`` is a wildcard); they come before those of
    genai-prices. A model of Ollama without a price costs nothing. ``outside`` tells whether a request outside a run
    raises ``NoRun`` or passes unrecorded.
    """
    kind = kind_of(client)
    if outside not in get_args(Outside):
        raise UsageError(f"outside is {outside!r}; it is one of {', '.join(get_args(Outside))}")
    if kind.provider == "ollama":
        prices = {**NO_PRICE, **(prices or {})}
    recorder = _Recorder(kind.provider, Prices(prices, provider=kind.provider, url=_url_of(client)), outside)
    made: Any
    if kind.provider == "google":
        made = _google(client, recorder)
    elif kind.provider == "ollama":
        made = copy.copy(client)
        made.__class__ = (_ollama_async_class if kind.is_async else _ollama_class)(_plain_class(client), recorder)
    else:
        made = client.copy()  # type: ignore[attr-defined]
        made.__class__ = (_async_class if kind.is_async else _blocking_class)(_plain_class(client), recorder)
    result: C = made
    return result


def _url_of(client: Any) -> str:
    if hasattr(client, "base_url"):
        return str(client.base_url)
    api = getattr(client, "_api_client", None)
    return str(api._http_options.base_url) if api is not None else str(client._client.base_url)


def _plain_class(client: object) -> type[Any]:
    found: type[Any] = getattr(type(client), "__amends_plain__", type(client))
    return found


@dataclass(frozen=True, slots=True)
class Kind:
    """What the class of a client tells about it."""

    provider: str
    is_async: bool | None
    """None: it has both colours, and ``aio`` is the async one."""
    is_recorded: bool


def kind_of(client: object) -> Kind:
    """Return the SDK of a client, and whether it is async; raise ``UsageError`` if it is of no known SDK."""
    for cls in type(client).__mro__:
        for module in (cls.__module__, cls.__module__.partition(".")[0]):
            if (module, cls.__name__) in PROVIDERS:
                provider, is_async = PROVIDERS[module, cls.__name__]
                return Kind(provider, is_async, hasattr(type(client), "__amends_plain__"))
    raise UsageError(
        f"this takes a client of the SDK of OpenAI, Anthropic, Gemini or Ollama, not {type(client).__name__}",
        hint="pass OpenAI(), Anthropic(), genai.Client(), ollama.Client(), or an async client of these SDKs",
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


def _subclass(plain: type[Any], **changed: Callable[..., Any]) -> type[Any]:
    """Return a subclass of the same name, so that copies (``with_options``) are recorded too and ``isinstance`` works."""
    names = {name: getattr(plain, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(plain.__name__, (plain,), {**names, **changed, "__amends_plain__": plain})


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

    return _subclass(plain, request=request)


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

    return _subclass(plain, request=request)


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
    return _read_safely(_read, answer)


def _read(answer: Any) -> object:
    if hasattr(answer, "to_dict"):
        return answer.to_dict(mode="json", warnings=False)
    if hasattr(answer, "status_code"):  # the HTTP response itself
        return answer.json()
    return answer


def _read_safely(read: Callable[[Any], object], answer: Any) -> object:
    """Return what is recorded of a response. Never raise: the response is paid for, and the caller must get it."""
    try:
        return read(answer)
    except Exception:
        log.exception("a response of a model could not be recorded")
        return None


# ---- Responses from the record


def recorded(client: Any, asked: ModelRequest, result: Any, *, options: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return the recorded response as the SDK would have returned it: an object, a stream, or a raw response.

    The SDK's own parsing of an HTTP response builds it, because only that knows which form the caller asked for. With
    an async client, await the result.
    """
    response = response_in(asked, result)
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


def response_in(asked: ModelRequest, result: Any) -> Mapping[str, Any]:
    """Return the response that the record has; raise ``UsageError`` if it does not have it."""
    response = result.get("response") if isinstance(result, Mapping) else None
    if not isinstance(response, Mapping):
        raise UsageError(
            f"{asked.tool}: the run has ended, and its record does not have the response to this request",
            hint="open a new run to ask again",
        )
    return response


def _sse(asked: ModelRequest, response: Mapping[str, Any]) -> bytes:
    lines = [f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events_of(asked.api, response)]
    if asked.api == "chat.completions":
        lines = [line.partition("\n")[2] for line in lines] + ["data: [DONE]\n\n"]
    return "".join(lines).encode()


# ---- Gemini


def _google(client: Any, recorder: _Recorder) -> Any:
    """Return a copy of the client whose parts share one recorded client of the API."""
    api = copy.copy(client._api_client)
    api.__class__ = _google_class(_plain_class(client._api_client), recorder)
    api.__amends_given__ = client  # the SDK closes the connections, which we share, when nobody holds the given client
    return _with_api(client, api)


def _with_api(given: Any, api: Any) -> Any:
    """Return a copy of a client, or of a part of it, that uses this client of the API; so do all its parts."""
    made = copy.copy(given)
    for name, part in vars(given).items():
        if part is given._api_client:
            setattr(made, name, api)
        elif getattr(part, "_api_client", None) is given._api_client:
            setattr(made, name, _with_api(part, api))
    if hasattr(type(made), "__del__"):
        made.__class__ = _subclass(_plain_class(made), __del__=_keep)
    return made


def _keep(self: Any) -> None:
    """Close nothing: the given client still uses the connections."""


def _google_asked(api: Any, recorder: _Recorder, call: tuple[str, str, Any, Any]) -> ModelRequest | None:
    method, path, body, http_options = call
    wire = api_of(recorder.provider, method, path)
    if wire is None:
        return None
    whole = api._build_request(method, path, dict(body), http_options).data  # with the fields of extra_body
    return model_request(f"model:{recorder.provider}", wire, whole, recorder.prices, model=model_in_path(path))


def _google_class(plain: type[Any], recorder: _Recorder) -> type[Any]:
    return _subclass(plain, **_google_blocking(plain, recorder), **_google_async(plain, recorder), __del__=_keep)


def _google_blocking(plain: type[Any], recorder: _Recorder) -> dict[str, Callable[..., Any]]:
    def request(self: Any, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
        call = (http_method, path, request_dict, http_options)
        asked = _google_asked(self, recorder, call)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=False)
        if asked is None or run is None:
            return plain.request(self, *call)
        entry = requests.begin(run, asked)
        if entry.replayed:
            return _google_answer(response_in(asked, entry.attempt.result))
        try:
            answer = plain.request(self, *call)
        except BaseException as error:
            requests.fail(entry, error)
            raise
        requests.succeed(entry, _read_safely(_google_read, answer))
        return answer

    def request_streamed(self: Any, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
        call = (http_method, path, request_dict, http_options)
        asked = _google_asked(self, recorder, call)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=False)
        if asked is None or run is None:
            return plain.request_streamed(self, *call)
        entry = requests.begin(run, asked)
        if entry.replayed:
            found = response_in(asked, entry.attempt.result)
            return iter([_google_answer(event) for _, event in events_of(asked.api, found)])
        return watched(plain.request_streamed(self, *call), entry, _google_read)

    return {"request": request, "request_streamed": request_streamed}


def _google_async(plain: type[Any], recorder: _Recorder) -> dict[str, Callable[..., Any]]:
    async def async_request(self: Any, http_method: str, path: str, request_dict: Any, http_options: Any = None) -> Any:
        call = (http_method, path, request_dict, http_options)
        asked = _google_asked(self, recorder, call)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=True)
        if asked is None or run is None:
            return await plain.async_request(self, *call)
        entry = await requests.begin_async(run, asked)
        if entry.replayed:
            return _google_answer(response_in(asked, entry.attempt.result))
        try:
            answer = await plain.async_request(self, *call)
        except BaseException as error:
            await requests.fail_async(entry, error)
            raise
        await requests.succeed_async(entry, _read_safely(_google_read, answer))
        return answer

    async def async_request_streamed(
        self: Any, http_method: str, path: str, request_dict: Any, http_options: Any = None
    ) -> Any:
        call = (http_method, path, request_dict, http_options)
        asked = _google_asked(self, recorder, call)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=True)
        if asked is None or run is None:
            return await plain.async_request_streamed(self, *call)
        entry = await requests.begin_async(run, asked)
        if entry.replayed:
            found = response_in(asked, entry.attempt.result)
            return _async_iter([_google_answer(event) for _, event in events_of(asked.api, found)])
        try:
            events = await plain.async_request_streamed(self, *call)
        except BaseException as error:
            await requests.fail_async(entry, error)
            raise
        return watched_async(events, entry, _google_read)

    return {"async_request": async_request, "async_request_streamed": async_request_streamed}


def _google_read(answer: Any) -> object:
    return json.loads(answer.body) if answer.body else {}


def _google_answer(response: Mapping[str, Any]) -> Any:
    return import_module("google.genai.types").HttpResponse(headers={}, body=json.dumps(response))


async def _async_iter(events: Sequence[Any]) -> AsyncIterator[Any]:
    for event in events:
        yield event


# ---- Ollama


def with_tools(client: C, tools: Sequence[Any]) -> C:
    """Return a copy of a recorded client of Ollama that offers these tools in every chat.

    The SDK's own model of a tool drops what is nested in its arguments.
    """
    made: Any = copy.copy(client)
    made._amends_tools = list(tools)
    result: C = made
    return result


def _ollama_asked(client: Any, recorder: _Recorder, args: tuple[Any, ...], more: dict[str, Any]) -> ModelRequest | None:
    method, path = args if len(args) == 2 else ("", "")
    api = api_of(recorder.provider, method, path)
    if api is None:
        return None
    if api == "chat" and hasattr(client, "_amends_tools"):
        more["json"] = {**more["json"], "tools": client._amends_tools}
    return model_request(f"model:{recorder.provider}", api, more.get("json"), recorder.prices)


def _ollama_class(plain: type[Any], recorder: _Recorder) -> type[Any]:
    def _request(self: Any, cls: Any, *args: Any, stream: bool = False, **more: Any) -> Any:
        asked = _ollama_asked(self, recorder, args, more)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=False)
        if asked is None or run is None:
            return plain._request(self, cls, *args, stream=stream, **more)
        known: ModelRequest = asked

        def start() -> Any:
            entry = requests.begin(run, known)
            if entry.replayed:
                return (event for event in _ollama_events(cls, known, entry.attempt.result))
            return watched(plain._request(self, cls, *args, stream=True, **more), entry, _ollama_read)

        if stream:
            return Later(start)
        entry = requests.begin(run, asked)
        if entry.replayed:
            return cls(**response_in(asked, entry.attempt.result))
        try:
            answer = plain._request(self, cls, *args, **more)
        except BaseException as error:
            requests.fail(entry, error)
            raise
        requests.succeed(entry, _read_safely(_ollama_read, answer))
        return answer

    return _subclass(plain, _request=_request)


def _ollama_async_class(plain: type[Any], recorder: _Recorder) -> type[Any]:
    async def _request(self: Any, cls: Any, *args: Any, stream: bool = False, **more: Any) -> Any:
        asked = _ollama_asked(self, recorder, args, more)
        run = None if asked is None else run_for(asked, recorder.outside, is_async=True)
        if asked is None or run is None:
            return await plain._request(self, cls, *args, stream=stream, **more)
        known: ModelRequest = asked

        async def start() -> Any:
            entry = await requests.begin_async(run, known)
            if entry.replayed:
                return _async_iter(_ollama_events(cls, known, entry.attempt.result))
            return watched_async(await plain._request(self, cls, *args, stream=True, **more), entry, _ollama_read)

        if stream:
            return AsyncLater(start)
        entry = await requests.begin_async(run, asked)
        if entry.replayed:
            return cls(**response_in(asked, entry.attempt.result))
        try:
            answer = await plain._request(self, cls, *args, **more)
        except BaseException as error:
            await requests.fail_async(entry, error)
            raise
        await requests.succeed_async(entry, _read_safely(_ollama_read, answer))
        return answer

    return _subclass(plain, _request=_request)


def _ollama_read(answer: Any) -> object:
    return answer.model_dump(mode="json", exclude_none=True)


def _ollama_events(cls: Any, asked: ModelRequest, result: Any) -> list[Any]:
    return [cls(**event) for _, event in events_of(asked.api, response_in(asked, result))]
