"""A model that says exactly what it was told to say: for tests and examples, without a key."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, Self, TypeAlias

from amends import UsageError
from amends.llm.streams import Event, events_of
from amends.llm.wire import BYTES_PER_TOKEN, Api, heard_in

Wanted: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""
Stop: TypeAlias = Literal["", "length", "refusal"]
Plain: TypeAlias = "str | Sequence[object] | Reply"
"""One turn: a text, `(tool, arguments)`, a list of both, side by side, or a `Reply`; checked when it is said."""
Turn: TypeAlias = "Plain | Callable[[Heard], Plain]"
ASKED_MAX: Final = 10_000
"""Requests that a script remembers; older ones are forgotten."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a scripted model has in front of it when it is asked."""

    turn: int
    """How often it has spoken in this conversation before."""
    results: tuple[str, ...]
    """What it was told of its calls so far, in order."""
    request: Mapping[str, Any]
    """The body of the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn in full: what is said, what is asked for, and what made the model stop."""

    text: str = ""
    calls: Sequence[Wanted] = ()
    stop: Stop = ""
    """Empty: it was done. Cut off at the limit of its answer, or refused by the provider."""


class ScriptedModel:
    """A model that asks for exactly these calls, as ``client=`` of ``run_agent`` or behind a ``ModelServer``.

    Each turn is a text, ``(tool, arguments)``, a list of these, or a function that gets what was ``Heard`` and gives
    one. Which turn it is, is read from the conversation: a program that was killed and resumes goes on where it was.
    ``repeat``: the last turn is said again for ever, instead of failing at the end of the script.
    """

    def __init__(self, *turns: Turn, repeat: bool = False) -> None:
        if not turns:
            raise UsageError("a scripted model needs a turn", hint='ScriptedModel(("charge", {"cents": 5}), "done")')
        self.turns = turns
        self.asked: list[Mapping[str, Any]] = []
        """The bodies of the requests, in order."""
        self._repeat = repeat
        self._lock = threading.Lock()

    def reply(self, api: Api, request: Mapping[str, Any]) -> Reply:
        """What it says to this request, in whatever wire format that is."""
        with self._lock:
            self.asked.append(request)
            del self.asked[:-ASKED_MAX]
        number, results = heard_in(api, request)
        if number >= len(self.turns) and not self._repeat:
            raise UsageError(
                f"the script has {len(self.turns)} turns, and one more was asked for",
                hint="let its last turn be a text, which ends the conversation, or say repeat=True",
            )
        turn = self.turns[min(number, len(self.turns) - 1)]
        return _read(turn(Heard(number, results, request)) if callable(turn) else turn)


def _read(turn: Plain) -> Reply:
    if isinstance(turn, Reply):
        return turn
    parts: Sequence[Any] = [turn] if isinstance(turn, str) or _is_call(turn) else turn
    texts, calls = [], []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif _is_call(part):
            calls.append((part[0], part[1]))
        else:
            raise UsageError(f"a turn of a script is a text, (tool, arguments) or a list of these, not {part!r}")
    return Reply("".join(texts), tuple(calls))


def _is_call(part: object) -> bool:
    match part:
        case (str(), Mapping()) if isinstance(part, tuple):
            return True
    return False


# ---- A scripted turn as each of the three wire formats says it


CREATED_AT: Final = 1_700_000_000
"""The same in every answer: a script says the same things on every day."""


def response_of(
    api: Api, reply: Reply, request: Mapping[str, Any], *, number: int, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The answer to this request; ``number``: which turn of the conversation it is, counted from one."""
    tokens = (len(json.dumps(request, default=str)) // BYTES_PER_TOKEN, len(repr(reply)) // BYTES_PER_TOKEN)
    model = str(request.get("model") or "scripted")
    match api:
        case "chat.completions":
            return _chat(reply, model, number, usage or _chat_usage(*tokens))
        case "responses":
            return _responses(reply, model, number, usage or _responses_usage(*tokens))
        case "messages":
            return _messages(reply, model, number, usage or {"input_tokens": tokens[0], "output_tokens": tokens[1]})


def _ids(number: int, reply: Reply, prefix: str) -> list[str]:
    return [f"{prefix}_{number}_{place}" for place in range(1, len(reply.calls) + 1)]


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _chat(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": id, "type": "function", "function": {"name": tool, "arguments": _json(args)}}
            for id, (tool, args) in zip(_ids(number, reply, "call"), reply.calls, strict=True)
        ]
    finish = {"length": "length", "refusal": "content_filter"}.get(reply.stop, "tool_calls" if reply.calls else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {
        "id": f"chatcmpl_{number}", "object": "chat.completion", "created": CREATED_AT, "model": model,
        "choices": [choice], "usage": usage,
    }  # fmt: skip


def _chat_usage(given: int, said: int) -> dict[str, Any]:
    return {"prompt_tokens": given, "completion_tokens": said, "total_tokens": given + said}


def _responses(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        said = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**said, "content": [part]})
    for id, (tool, args) in zip(_ids(number, reply, "call"), reply.calls, strict=True):
        asked = {"id": f"fc_{id}", "type": "function_call", "call_id": id, "status": "completed"}
        output.append({**asked, "name": tool, "arguments": _json(args)})
    cut = {"length": "max_output_tokens", "refusal": "content_filter"}.get(reply.stop)
    return {
        "id": f"resp_{number}", "object": "response", "created_at": CREATED_AT, "model": model, "output": output,
        "status": "incomplete" if cut else "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": usage, "error": None, "incomplete_details": {"reason": cut} if cut else None, "instructions": None,
        "metadata": {}, "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip


def _responses_usage(given: int, said: int) -> dict[str, Any]:
    return {
        "input_tokens": given, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": given + said,
    }  # fmt: skip


def _messages(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        content.append({"type": "text", "text": reply.text, "citations": None})
    for id, (tool, args) in zip(_ids(number, reply, "toolu"), reply.calls, strict=True):
        content.append({"type": "tool_use", "id": id, "name": tool, "input": json.loads(_json(args))})
    stop = {"length": "max_tokens", "refusal": "refusal"}.get(reply.stop, "tool_use" if reply.calls else "end_turn")
    return {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": stop, "stop_sequence": None, "usage": usage,
    }  # fmt: skip


# ---- A server on this machine that speaks the wire formats of OpenAI and Anthropic, so that the real SDKs


PATHS: Final[dict[str, Api]] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
PATIENCE_S: Final = 30.0
"""How long a model that is told to be silent says nothing."""
_PIECE: Final = re.compile(r"\s*\S+|\s+")


class ModelServer:
    """A scripted model behind HTTP, for as long as the ``with`` block lasts.

    ``OpenAI(**server.openai)`` and ``Anthropic(**server.anthropic)`` talk to it: chat completions, responses and
    messages, streamed or not. The name of the model asks for faults: ``fails-429`` is answered with that status,
    ``silent`` is not answered, ``breaks`` breaks off in the middle of a stream, ``waits`` stops there.
    ``usage``: what the answers report as used, by wire format; without it, what their sizes suggest.
    """

    def __init__(self, model: ScriptedModel, *, usage: Mapping[Api, Mapping[str, Any]] | None = None) -> None:
        self.model = model
        self.asked: list[dict[str, Any]] = []
        """The requests in order: their bodies, with the ``path``."""
        self._usage = dict(usage or {})
        self._http: _Http | None = None
        self._thread: threading.Thread | None = None
        self.over = threading.Event()
        """Set when the server ends, and whoever it keeps waiting with it."""

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._http is None:
            raise UsageError("the server is not running", hint="with ModelServer(...) as server:")
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def openai(self) -> dict[str, Any]:
        """What ``OpenAI`` and ``AsyncOpenAI`` are made with."""
        return {"api_key": "no-key-needed", "base_url": f"{self.url}/v1", "max_retries": 0}

    @property
    def anthropic(self) -> dict[str, Any]:
        """What ``Anthropic`` and ``AsyncAnthropic`` are made with."""
        return {"api_key": "no-key-needed", "base_url": self.url, "max_retries": 0}

    def __enter__(self) -> Self:
        self.over.clear()
        self._http = _Http(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, name="amends-model", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._http is not None, "it is left after it was entered"
        assert self._thread is not None, "and it was started then"
        self.over.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._http = None

    def answer(self, api: Api, request: Mapping[str, Any]) -> dict[str, Any]:
        """What is said to this request."""
        number, _ = heard_in(api, request)
        reply = self.model.reply(api, request)
        return response_of(api, reply, request, number=number + 1, usage=self._usage.get(api))


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: ModelServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up: that is what some tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""

    def do_POST(self) -> None:
        owner = self.server.owner
        size = int(self.headers.get("content-length") or 0)
        if size > BODY_BYTES_MAX:
            self.close_connection = True
            self._fail(413, "the request is too large")
            return
        body = json.loads(self.rfile.read(size) or b"{}")
        owner.asked.append({"path": self.path, **body})
        path, model = self.path.partition("?")[0], str(body.get("model", ""))
        if model == "silent":
            owner.over.wait(PATIENCE_S)
        elif model.startswith("fails-"):
            self._fail(int(model.removeprefix("fails-")), f"refused {model.removeprefix('fails-')}")
        elif path.endswith("/count_tokens"):
            self._send(200, {"input_tokens": 7})
        elif path not in PATHS:
            self._fail(404, f"nobody answers at {path}")
        else:
            self._answer(PATHS[path], body, model)

    def _answer(self, api: Api, body: Mapping[str, Any], model: str) -> None:
        try:
            response = self.server.owner.answer(api, body)
        except UsageError as error:  # a mistake in the script is told to whoever asked
            self._fail(400, str(error))
            return
        except Exception as error:  # a turn that raises: the model is down
            self._fail(500, str(error))
            return
        if body.get("stream"):
            self._stream(api, list(_events(api, response, body)), model)
        else:
            self._send(200, response)

    def _fail(self, status: int, why: str) -> None:
        self._send(status, {"type": "error", "error": {"type": "scripted", "message": why}})

    def _send(self, status: int, data: Mapping[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, api: Api, events: list[Event], model: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, (name, data) in enumerate(events):
            if number == len(events) // 2 and model == "breaks":
                self.wfile.write(b"5\r\nda")  # a chunk that is never whole
                self.wfile.flush()
                self.close_connection = True
                return
            if number == len(events) // 2 and model == "waits":
                self.server.owner.over.wait(PATIENCE_S)
            self._chunk(f"event: {name}\n" if name else "", json.dumps(data))
        if api == "chat.completions":
            self._chunk("", "[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, head: str, text: str) -> None:
        piece = f"{head}data: {text}\n\n".encode()
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()


def _events(api: Api, response: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[Event]:
    """A model speaks in words; a chat tells its usage at the end only when it is asked to."""
    tells = api != "chat.completions" or bool((body.get("stream_options") or {}).get("include_usage"))
    return events_of(api, response, split=lambda text: _PIECE.findall(text) or [text], usage=tells)
