"""Streamed responses: each event is recorded on its way to the caller, and the call is settled when the stream ends.

A stream ends when it was read to its end, when reading fails, when it is closed, or when it is garbage-collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from amends.llm.requests import Entry, Outcome, fail, fail_async, outcome, succeed, succeed_async
from amends.llm.wire import Api
from amends.visible import visible_log

log = visible_log("amends")

SWEEP_S_MAX: Final = 5.0
"""How long closing a run waits for the settlement of a stream that was garbage-collected."""


def is_stream(answer: object) -> bool:
    """Return whether this is a stream of one of the SDKs."""
    return any(
        cls.__name__ in ("Stream", "AsyncStream") and cls.__module__.partition(".")[0] in ("openai", "anthropic")
        for cls in type(answer).__mro__
    )


Read: TypeAlias = Callable[[Any], object]
"""Makes plain data of an event of an SDK."""


def _to_dict(event: Any) -> object:
    return event.to_dict(mode="json", warnings=False) if hasattr(event, "to_dict") else event


class _Received:
    """What was received of one stream so far."""

    def __init__(self, entry: Entry, *, hide_usage: bool = False, read: Read | None = None) -> None:
        self.entry = entry
        self._whole = assembler(entry.asked.api)
        self._hide_usage = hide_usage
        self._read = read or _to_dict

    def see(self, event: Any) -> bool:
        """Add an event; return whether the caller gets it. Never raise: the caller paid for the event."""
        try:
            plain = self._read(event)
            if not isinstance(plain, Mapping):
                return True
            self._whole.see(plain)
            return not (self._hide_usage and plain.get("usage") and not plain.get("choices"))
        except Exception:
            log.exception("%s: an event of a stream could not be recorded", self.entry.asked.tool)
            return True

    def settlement(self, *, complete: bool) -> dict[str, Any]:
        """Return the arguments that settle the call."""
        return {"response": self._whole.response, "complete": complete, "characters": self._whole.characters}

    def known(self) -> Outcome | None:
        """Return what was spent before reading failed; None if a stream that is sent when it is read gave nothing."""
        if self._read is not _to_dict and self._whole.response is None:
            return None
        return outcome(self.entry.asked, **self.settlement(complete=False))


# ---- Blocking streams


def watch(stream: Any, entry: Entry, *, hide_usage: bool) -> None:
    """Make this stream settle the call when it ends.

    ``hide_usage`` hides the event that has only the usage, for a caller who did not ask for it.
    """
    seen = _Received(entry, hide_usage=hide_usage)
    watched = _Watched(stream._iterator, seen)
    stream._iterator = watched
    entry.attempt.at_leave = partial(_left, seen)  # must not refer to the stream, which could then not be collected
    _start_sweeper()
    # Weak references: a stream that nobody holds must be collected at once, and its connection with it.
    response, watching = weakref.ref(stream.response), weakref.ref(watched)

    def close() -> None:
        found, still = response(), watching()
        if found is not None:
            type(found).close(found)
        if still is not None:
            still.closed()

    stream.response.close = close


def watched(events: Any, entry: Entry, read: Read) -> _Watched:
    """Return an iterator over these events that settles the call when it ends; for an SDK whose streams are iterators."""
    seen = _Received(entry, read=read)
    entry.attempt.at_leave = partial(_left, seen)
    _start_sweeper()
    return _Watched(events, seen)


class Later:
    """A stream that is requested when it is first read, as the SDK of Ollama does it."""

    def __init__(self, start: Callable[[], Any]) -> None:
        self._start = start
        self._events: Any = None

    def __iter__(self) -> Later:
        return self

    def __next__(self) -> Any:
        if self._events is None:
            self._events = self._start()
        return next(self._events)

    def close(self) -> None:
        """End the stream, and settle its call; nothing more is requested or received."""
        begun, self._events = self._events, iter(())
        if begun is not None:
            begun.close()


class _Watched:
    """The iterator of a stream."""

    def __init__(self, events: Any, seen: _Received) -> None:
        self._events, self._seen = events, seen
        self._pulling = False

    def __iter__(self) -> _Watched:
        return self

    def __next__(self) -> Any:
        while True:
            event = self._pull()
            if self._seen.see(event):
                return event

    def _pull(self) -> Any:
        self._pulling = True  # the SDK closes the response itself in here: a normal end, not an early close
        try:
            return next(self._events)
        except StopIteration:
            succeed(self._seen.entry, **self._seen.settlement(complete=True))
            raise
        except BaseException as error:
            fail(self._seen.entry, error, self._seen.known())
            raise
        finally:
            self._pulling = False

    def close(self) -> None:
        try:
            self._events.close()
        finally:
            self.closed()

    def closed(self) -> None:
        if not self._pulling:
            succeed(self._seen.entry, **self._seen.settlement(complete=False))

    def __del__(self) -> None:
        if not self._seen.entry.is_taken:
            _dropped.put(self._seen)


# A finalizer can run anywhere, perhaps while the ledger's own lock is held. So it only puts the stream into a queue
# (SimpleQueue.put is safe in a finalizer), and this thread settles the call.
_dropped: Final[queue.SimpleQueue[_Received]] = queue.SimpleQueue()
_starting: Final = threading.Lock()
_sweeper: threading.Thread | None = None


def _start_sweeper() -> None:
    global _sweeper
    with _starting:
        if _sweeper is None or not _sweeper.is_alive():  # a fork does not copy threads
            _sweeper = threading.Thread(target=_sweep, name="amends-streams", daemon=True)
            _sweeper.start()


def _sweep() -> None:
    while True:
        seen = _dropped.get()
        try:
            succeed(seen.entry, **seen.settlement(complete=False))
        except Exception as error:
            _log_late(seen.entry, error)


def _left(seen: _Received) -> None:
    """Settle the call when its run is closed: nothing more will be received."""
    succeed(seen.entry, **seen.settlement(complete=False))
    seen.entry.over.wait(SWEEP_S_MAX)  # another thread may be settling it


def _log_late(entry: Entry, error: Exception) -> None:
    log.warning(
        "%s: a stream that was not closed could not be settled (%s); close your streams", entry.asked.tool, error
    )


# ---- Async streams


def watch_async(stream: Any, entry: Entry, *, hide_usage: bool) -> None:
    """Do the same as ``watch`` for an async stream."""
    seen = _Received(entry, hide_usage=hide_usage)
    watched = _AsyncWatched(stream._iterator, seen)
    stream._iterator = watched
    entry.attempt.at_leave = partial(_left_async if entry.run.is_async else _left, seen)
    response, watching = weakref.ref(stream.response), weakref.ref(watched)

    async def aclose() -> None:
        found, still = response(), watching()
        if found is not None:
            await type(found).aclose(found)
        if still is not None:
            await still.closed()

    stream.response.aclose = aclose


def watched_async(events: Any, entry: Entry, read: Read) -> _AsyncWatched:
    """Do the same as ``watched`` for an async stream."""
    seen = _Received(entry, read=read)
    entry.attempt.at_leave = partial(_left_async if entry.run.is_async else _left, seen)
    return _AsyncWatched(events, seen)


class AsyncLater:
    """Do the same as ``Later`` on an event loop."""

    def __init__(self, start: Callable[[], Awaitable[Any]]) -> None:
        self._start = start
        self._events: Any = None
        self._ended = False

    def __aiter__(self) -> AsyncLater:
        return self

    async def __anext__(self) -> Any:
        if self._ended:
            raise StopAsyncIteration
        if self._events is None:
            self._events = await self._start()
        return await anext(self._events)

    async def aclose(self) -> None:
        """End the stream, and settle its call; nothing more is requested or received."""
        begun, self._events, self._ended = self._events, None, True
        if begun is not None:
            await begun.aclose()


class _AsyncWatched:
    """The iterator of an async stream."""

    def __init__(self, events: Any, seen: _Received) -> None:
        self._events, self._seen = events, seen
        self._pulling = False
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> _AsyncWatched:
        return self

    async def __anext__(self) -> Any:
        while True:
            event = await self._pull()
            if self._seen.see(event):
                return event

    async def _pull(self) -> Any:
        self._pulling = True
        try:
            return await anext(self._events)
        except StopAsyncIteration:
            await succeed_async(self._seen.entry, **self._seen.settlement(complete=True))
            raise
        except BaseException as error:
            await fail_async(self._seen.entry, error, self._seen.known())
            raise
        finally:
            self._pulling = False

    async def aclose(self) -> None:
        try:
            await self._events.aclose()
        finally:
            await self.closed()

    async def closed(self) -> None:
        if not self._pulling:
            await succeed_async(self._seen.entry, **self._seen.settlement(complete=False))

    def __del__(self) -> None:
        if not self._seen.entry.is_taken and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: closing the run has settled it
                self._loop.call_soon_threadsafe(_settle_soon, self._seen)


async def _left_async(seen: _Received) -> None:
    await succeed_async(seen.entry, **seen.settlement(complete=False))


_settling: Final[set[asyncio.Future[None]]] = set()
"""Held here, because an event loop holds only weak references to its tasks."""


def _settle_soon(seen: _Received) -> None:
    run = seen.entry.run
    settled = run.submit(_settle, seen) if run.is_async else asyncio.ensure_future(_settle(seen))
    _settling.add(settled)
    settled.add_done_callback(_settling.discard)


async def _settle(seen: _Received) -> None:
    try:
        await succeed_async(seen.entry, **seen.settlement(complete=False))
    except Exception as error:
        _log_late(seen.entry, error)


# ---- A response assembled from the events of its stream


_WHOLE: Final = frozenset({"id", "index", "type", "role", "object", "model", "finish_reason", "refusal_reason"})
"""Texts of a delta that replace the earlier value; all others are appended."""
_FINAL: Final = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")
_PIECES: Final = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class Assembler(Protocol):
    """Puts the response together from the events of its stream."""

    response: dict[str, Any] | None
    """The response so far, in the form of one that was not streamed."""
    characters: int
    """How much text was received."""

    def see(self, event: Mapping[str, Any]) -> None:
        """Add one event."""


def assembler(api: Api) -> Assembler:
    """Return a new assembler for this wire format."""
    match api:
        case "chat.completions":
            return _Chat()
        case "responses":
            return _Responses()
        case "messages":
            return _Messages()
        case "generate_content":
            return _Gemini()
        case "chat" | "generate":
            return _Ollama()


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
                usage = {k: v for k, v in (event.get("usage") or {}).items() if v is not None}
                self.response["usage"] = {**(self.response.get("usage") or {}), **usage}

    def _grow(self, blocks: list[dict[str, Any]], index: int, delta: Mapping[str, Any]) -> None:
        block = blocks[min(index, len(blocks) - 1)]
        name = _PIECES.get(str(delta.get("type")))
        if name is not None:
            piece = str(delta.get(name, ""))
            block[name] = block.get(name, "") + piece
            self.characters += len(piece)
        elif isinstance(delta.get("citation"), Mapping):
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]


class _Gemini:
    """Each event is a response with more parts."""

    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.characters = 0

    def see(self, event: Mapping[str, Any]) -> None:
        whole = self.response = self.response if self.response is not None else {}
        whole |= {name: value for name, value in event.items() if name != "candidates" and value is not None}
        for one in event.get("candidates") or ():
            candidate = _indexed(whole.setdefault("candidates", []), one.get("index") or 0)
            candidate |= {name: value for name, value in one.items() if name != "content" and value is not None}
            content = one.get("content") or {}
            grown = candidate.setdefault("content", {"role": content.get("role") or "model", "parts": []})
            for part in content.get("parts") or ():
                self.characters += _length(part)
                last = grown["parts"][-1] if grown["parts"] else {}
                if _is_only_text(last) and _is_only_text(part) and last.get("thought") == part.get("thought"):
                    grown["parts"][-1] = {**last, "text": last["text"] + part["text"]}
                else:
                    grown["parts"].append(dict(part))


def _is_only_text(part: Mapping[str, Any]) -> bool:
    """Return whether this is a text that can be joined to another one: it has no signature and no other data."""
    return isinstance(part.get("text"), str) and not part.keys() - {"text", "thought"}


class _Ollama:
    """Each event has the next piece of the texts, or whole calls; the last one has the rest."""

    def __init__(self) -> None:
        self.response: dict[str, Any] | None = None
        self.characters = 0

    def see(self, event: Mapping[str, Any]) -> None:
        whole = self.response = self.response if self.response is not None else {}
        self._grow(whole, event, texts=("response", "thinking"), lists=("logprobs",))
        if isinstance(event.get("message"), Mapping):
            message = whole.setdefault("message", {})
            self._grow(message, event["message"], texts=("content", "thinking"), lists=("tool_calls", "images"))

    def _grow(self, whole: dict[str, Any], piece: Mapping[str, Any], *, texts: Any, lists: Any) -> None:
        for name, value in piece.items():
            if name in texts and isinstance(value, str):
                whole[name] = whole.get(name, "") + value
                self.characters += len(value)
            elif name in lists and isinstance(value, list):
                whole[name] = [*whole.get(name, ()), *value]
                self.characters += _length(value)
            elif name != "message" and value is not None:
                whole[name] = value


def _close_block(blocks: list[dict[str, Any]], index: int) -> None:
    """Parse a tool's input, which came in pieces of JSON, so that it is recorded as the SDK returns it."""
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


# ---- The events of a stream, made from a whole response


Event: TypeAlias = tuple[str, dict[str, Any]]
Split: TypeAlias = Callable[[str], list[str]]
EVENTS_MAX: Final = 1_000_000


def _whole(text: str) -> list[str]:
    return [text]


def events_of(api: Api, response: Mapping[str, Any], *, split: Split = _whole, usage: bool = False) -> Iterator[Event]:
    """Return the events of a stream that would add up to this response.

    ``split`` cuts a text into the pieces that are sent. ``usage`` adds the last chunk of a chat, which has the usage; the
    other formats always have it.
    """
    match api:
        case "chat.completions":
            return _chat(response, split, usage)
        case "responses":
            return _responses(response, split)
        case "messages":
            return _messages(response, split)
        case "generate_content":
            return _gemini(response, split)
        case "chat" | "generate":
            return _ollama(response, split)


def _chat(response: Mapping[str, Any], split: Split, usage: bool) -> Iterator[Event]:
    head = {k: v for k, v in response.items() if k not in ("choices", "usage")} | {"object": "chat.completion.chunk"}
    for place, choice in enumerate(response.get("choices") or ()):
        index = choice.get("index", place)
        for delta in _deltas(choice.get("message") or {}, split):
            yield "", {**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}
        yield "", {**head, "choices": [{"index": index, "delta": {}, "finish_reason": choice.get("finish_reason")}]}
    if usage:
        yield "", {**head, "choices": [], "usage": response.get("usage")}


def _deltas(message: Mapping[str, Any], split: Split) -> Iterator[dict[str, Any]]:
    """Return the deltas of a chat message."""
    content, calls = message.get("content"), message.get("tool_calls")
    first = {k: v for k, v in message.items() if k not in ("content", "tool_calls")}
    yield first | ({"content": "" if isinstance(content, str) else content} if "content" in message else {})
    for piece in split(content) if isinstance(content, str) and content else ():
        yield {"content": piece}
    for index, call in enumerate(calls or ()):
        function = call.get("function")
        if not isinstance(function, Mapping):
            yield {"tool_calls": [{"index": index, **call}]}
            continue
        yield {"tool_calls": [{"index": index, **call, "function": {**function, "arguments": ""}}]}
        for piece in split(str(function.get("arguments", ""))):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _messages(response: Mapping[str, Any], split: Split) -> Iterator[Event]:
    last = ("stop_reason", "stop_sequence")
    usage = dict(response.get("usage") or {})
    begun = usage | ({"output_tokens": 1} if usage.get("output_tokens") else {})
    start = {**response, **dict.fromkeys(last), "content": [], "usage": begun}
    yield "message_start", {"type": "message_start", "message": start}
    for index, block in enumerate(response.get("content") or ()):
        at = {"index": index}
        empty, deltas = _block(block, split)
        yield "content_block_start", {"type": "content_block_start", **at, "content_block": empty}
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", **at, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", **at}
    delta = {name: response.get(name) for name in last}
    yield "message_delta", {"type": "message_delta", "delta": delta, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def _block(block: Mapping[str, Any], split: Split) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a content block as it starts, and its deltas."""
    match block.get("type"):
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": one} for one in split(block.get("text", ""))]
        case "tool_use" | "server_tool_use":
            pieces = split(json.dumps(block.get("input") or {}))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": one} for one in pieces]
        case "thinking":
            grown = [
                {"type": "thinking_delta", "thinking": block.get("thinking", "")},
                {"type": "signature_delta", "signature": block.get("signature", "")},
            ]
            return {**block, "thinking": "", "signature": ""}, grown
        case _:
            return dict(block), []


def _responses(response: Mapping[str, Any], split: Split) -> Iterator[Event]:
    numbers = iter(range(EVENTS_MAX))

    def event(kind: str, **data: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(numbers), **data}

    begun = {k: v for k, v in response.items() if k != "usage"} | {"status": "in_progress", "output": []}
    yield event("response.created", response=begun)
    for place, item in enumerate(response.get("output") or ()):
        at = {"output_index": place}
        yield event("response.output_item.added", **at, item=_begun(item))
        at |= {"item_id": item.get("id", "")}
        if item.get("type") == "function_call":
            arguments = item.get("arguments", "")
            for piece in split(arguments):
                yield event("response.function_call_arguments.delta", **at, delta=piece)
            yield event("response.function_call_arguments.done", **at, arguments=arguments, name=item.get("name", ""))
        for index, part in enumerate(item.get("content") or () if item.get("type") == "message" else ()):
            here = {**at, "content_index": index}
            yield event("response.content_part.added", **here, part={**part, "text": ""} if "text" in part else part)
            if part.get("type") == "output_text":
                for piece in split(part.get("text", "")):
                    yield event("response.output_text.delta", **here, delta=piece, logprobs=[])
                yield event("response.output_text.done", **here, text=part.get("text", ""), logprobs=[])
            yield event("response.content_part.done", **here, part=part)
        yield event("response.output_item.done", output_index=place, item=item)
    status = response.get("status")
    kind = status if status in ("completed", "incomplete", "failed") else "completed"
    yield event(f"response.{kind}", response=dict(response))


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    begun = dict(item)
    begun |= {"content": []} if item.get("type") == "message" else {}
    begun |= {"arguments": ""} if item.get("type") == "function_call" else {}
    return begun


def _gemini(response: Mapping[str, Any], split: Split) -> Iterator[Event]:
    last = ("usageMetadata", "promptFeedback")
    head = {k: v for k, v in response.items() if k not in ("candidates", *last)}
    ends = []
    for candidate in response.get("candidates") or ():
        content = candidate.get("content") or {}
        at = {"index": candidate["index"]} if "index" in candidate else {}
        for part in content.get("parts") or ():
            pieces = [{**part, "text": one} for one in split(part["text"])] if _is_only_text(part) else [part]
            for piece in pieces:
                yield "", {**head, "candidates": [{"content": {**content, "parts": [piece]}, **at}]}
        ends.append({k: v for k, v in candidate.items() if k != "content"})
    more = {"candidates": ends} if "candidates" in response else {}
    yield "", {**head, **more, **{name: response[name] for name in last if name in response}}


def _ollama(response: Mapping[str, Any], split: Split) -> Iterator[Event]:
    head = {name: response[name] for name in ("model", "created_at") if name in response} | {"done": False}
    said = response.get("message")
    for name in ("thinking", "response"):
        for piece in split(response[name]) if isinstance(response.get(name), str) else ():
            yield "", {**head, name: piece}
    ended = {k: v for k, v in response.items() if k not in ("message", "thinking")}
    ended |= {"response": ""} if "response" in response else {}
    if isinstance(said, Mapping):
        begun = {"role": said.get("role") or "assistant"}
        for name in ("thinking", "content"):
            for piece in split(said[name]) if isinstance(said.get(name), str) and said[name] else ():
                yield "", {**head, "message": {**begun, "content": "", name: piece}}
        rest = {k: v for k, v in said.items() if k not in ("thinking", "content")}
        if rest.keys() - {"role"}:
            yield "", {**head, "message": {**begun, "content": "", **rest}}
        ended["message"] = {**begun, "content": ""}
    yield "", ended
