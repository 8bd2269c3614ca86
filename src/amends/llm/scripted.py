"""Scripted models for tests and examples: ``ScriptedModel``, and ``ModelServer``, which serves one over HTTP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, Self, TypeAlias

from amends import UsageError
from amends.errors import NOT_FINISHED
from amends.llm.streams import Event, events_of
from amends.llm.wire import BYTES_PER_TOKEN, Api, heard_in

CallRequest: TypeAlias = tuple[str, Mapping[str, Any]]
"""A tool and its arguments."""
Stop: TypeAlias = Literal["", "length", "refusal"]
Plain: TypeAlias = "str | Sequence[object] | Reply"
"""One turn: a text, `(tool, arguments)`, a list of these, or a `Reply`; checked when it is used."""
Turn: TypeAlias = "Plain | Callable[[Heard], Plain]"
ASKED_MAX: Final = 10_000
"""How many requests a script keeps; older ones are dropped."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a scripted model knows when it is asked for a turn."""

    turn: int
    """How many turns it has had in this conversation."""
    results: tuple[str, ...]
    """The results of its calls so far, in order."""
    request: Mapping[str, Any]
    """The body of the request."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One turn in full: the text, the tool calls, and why the model stopped."""

    text: str = ""
    calls: Sequence[CallRequest] = ()
    stop: Stop = ""
    """Empty: it was done. ``length``: cut off at the token limit. ``refusal``: refused by the provider."""


class ScriptedModel:
    """A model that makes exactly these calls, as ``client=`` of ``run_agent`` or behind a ``ModelServer``.

    Each turn is a text, ``(tool, arguments)``, a list of these, or a function that takes a ``Heard`` and returns one.
    The conversation tells which turn is next, so a program that was killed and resumes gets the right one. With
    ``repeat``, the last turn is repeated for ever instead of failing at the end of the script. A model that is told what
    is missing, and has nothing more to say, says its last words again.
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
        """Return the turn for this request."""
        with self._lock:
            self.asked.append(request)
            del self.asked[:-ASKED_MAX]
        number, results = heard_in(api, request)
        if number >= len(self.turns) and not (self._repeat or _is_told(request)):
            raise UsageError(
                f"the script has {len(self.turns)} turns, and one more was requested",
                hint="end the script with a text, which ends the conversation, or use repeat=True",
            )
        turn = self.turns[min(number, len(self.turns) - 1)]
        return _read(turn(Heard(number, results, request)) if callable(turn) else turn)


def _is_told(request: Mapping[str, Any]) -> bool:
    """Return whether the last message of the conversation tells the model what is missing."""
    said = next((found for name in ("messages", "input", "contents") if (found := request.get(name))), ())
    return isinstance(said, list | tuple) and bool(said) and NOT_FINISHED in json.dumps(said[-1], default=str)


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


# ---- A turn as a response, in each wire format


CREATED_AT: Final = 1_700_000_000
"""The same in every response, so that a script gives the same responses on every day."""


def response_of(
    api: Api, reply: Reply, request: Mapping[str, Any], *, number: int, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the response to this request; ``number`` is the turn of the conversation, counted from one.

    ``usage`` replaces the usage that the sizes suggest.
    """
    tokens = (len(json.dumps(request, default=str)) // BYTES_PER_TOKEN, len(repr(reply)) // BYTES_PER_TOKEN)
    model = str(request.get("model") or "scripted")
    match api:
        case "chat.completions":
            return _chat(reply, model, number, usage or _chat_usage(*tokens))
        case "responses":
            return _responses(reply, model, number, usage or _responses_usage(*tokens))
        case "messages":
            return _messages(reply, model, number, usage or {"input_tokens": tokens[0], "output_tokens": tokens[1]})
        case "generate_content":
            return _gemini(reply, model, number, usage or _gemini_usage(*tokens))
        case "chat" | "generate":
            return _ollama(api, reply, model, usage or {"prompt_eval_count": tokens[0], "eval_count": tokens[1]})


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


def _chat_usage(input: int, output: int) -> dict[str, Any]:
    return {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output}


def _responses(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.text or not reply.calls:
        part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [part]})
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


def _responses_usage(input: int, output: int) -> dict[str, Any]:
    return {
        "input_tokens": input, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input + output,
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


def _gemini(reply: Reply, model: str, number: int, usage: Mapping[str, Any]) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": reply.text}] if reply.text or not reply.calls else []
    parts += [{"functionCall": {"name": tool, "args": json.loads(_json(args))}} for tool, args in reply.calls]
    finish = {"length": "MAX_TOKENS", "refusal": "SAFETY"}.get(reply.stop, "STOP")
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": finish, "index": 0}
    return {
        "candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": f"response_{number}",
    }  # fmt: skip


def _gemini_usage(input: int, output: int) -> dict[str, Any]:
    return {"promptTokenCount": input, "candidatesTokenCount": output, "totalTokenCount": input + output}


def _ollama(api: Api, reply: Reply, model: str, usage: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.calls:
        calls = [{"name": tool, "arguments": json.loads(_json(args))} for tool, args in reply.calls]
        message["tool_calls"] = [{"function": call} for call in calls]
    return {
        "model": model, "created_at": "2023-11-14T22:13:20Z",
        **({"message": message} if api == "chat" else {"response": reply.text}),
        "done": True, "done_reason": reply.stop or "stop", **usage,
    }  # fmt: skip


# ---- ModelServer


PATHS: Final[dict[str, Api]] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/api/chat": "chat",
    "/api/generate": "generate",
}
_GEMINI_PATH: Final = re.compile(r"/v1(?:beta)?/models/([^/:]+):(generateContent|streamGenerateContent)")
"""The path of a request to Gemini: it has the model, and tells whether the response is streamed."""
_LINES: Final = ("chat", "generate")
"""The formats whose streams are lines of JSON."""
_OLLAMA_PATHS: Final = tuple(path for path, api in PATHS.items() if api in _LINES)
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
PATIENCE_S: Final = 30.0
"""How long the model named ``silent`` keeps a request open."""
_PIECE: Final = re.compile(r"\s*\S+|\s+")


class ModelServer:
    """An HTTP server for a scripted model; it runs while its ``with`` block does.

    ``OpenAI(**server.openai)``, ``Anthropic(**server.anthropic)``, ``genai.Client(**server.gemini)`` and
    ``ollama.Client(**server.ollama)`` connect to it, streamed or not. Some model names cause faults: ``fails-429`` gets
    that status, ``silent`` gets no response, ``breaks`` breaks the connection in the middle of a stream, and ``waits``
    pauses there. ``usage`` is what responses report, by wire format; by default, what their sizes suggest.
    """

    def __init__(self, model: ScriptedModel, *, usage: Mapping[Api, Mapping[str, Any]] | None = None) -> None:
        self.model = model
        self.asked: list[dict[str, Any]] = []
        """The requests in order: their bodies, with the ``path``."""
        self._usage = dict(usage or {})
        self._http: _Http | None = None
        self._thread: threading.Thread | None = None
        self.over = threading.Event()
        """Set when the server stops, so that requests it keeps waiting end too."""

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        if self._http is None:
            raise UsageError("the server is not running", hint="with ModelServer(...) as server:")
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def openai(self) -> dict[str, Any]:
        """Return the arguments for ``OpenAI`` and ``AsyncOpenAI``."""
        return {"api_key": "no-key-needed", "base_url": f"{self.url}/v1", "max_retries": 0}

    @property
    def anthropic(self) -> dict[str, Any]:
        """Return the arguments for ``Anthropic`` and ``AsyncAnthropic``."""
        return {"api_key": "no-key-needed", "base_url": self.url, "max_retries": 0}

    @property
    def gemini(self) -> dict[str, Any]:
        """Return the arguments for ``google.genai.Client``."""
        return {"api_key": "no-key-needed", "enterprise": False, "http_options": {"base_url": self.url}}

    @property
    def ollama(self) -> dict[str, Any]:
        """Return the arguments for ``ollama.Client`` and ``ollama.AsyncClient``."""
        return {"host": self.url}

    def __enter__(self) -> Self:
        self.over.clear()
        self._http = _Http(self)
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, name="amends-model", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._http is not None, "__enter__ came first"
        assert self._thread is not None, "__enter__ started it"
        self.over.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
        self._http = None

    def answer(self, api: Api, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response to this request."""
        number, _ = heard_in(api, request)
        reply = self.model.reply(api, request)
        return response_of(api, reply, request, number=number + 1, usage=self._usage.get(api))


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: ModelServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.owner = owner

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: in some tests the client hangs up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""

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
        api, stream = PATHS.get(path), bool(body.get("stream", path in _OLLAMA_PATHS))
        if (found := _GEMINI_PATH.fullmatch(path)) is not None:
            api, model, stream = "generate_content", found[1], found[2] == "streamGenerateContent"
            body = {"model": model, **body}
        if model == "silent":
            owner.over.wait(PATIENCE_S)
        elif model.startswith("fails-"):
            self._fail(int(model.removeprefix("fails-")), f"refused {model.removeprefix('fails-')}")
        elif path.endswith("/count_tokens"):
            self._send(200, {"input_tokens": 7})
        elif api is None:
            self._fail(404, f"there is nothing at {path}")
        else:
            self._answer(api, body, model, stream=stream)

    def _answer(self, api: Api, body: Mapping[str, Any], model: str, *, stream: bool) -> None:
        try:
            response = self.server.owner.answer(api, body)
        except UsageError as error:  # a mistake in the script is reported to the client
            self._fail(400, str(error))
            return
        except Exception as error:  # a turn that raises: the model is down
            self._fail(500, str(error))
            return
        if stream:
            self._stream(api, list(_events(api, response, body)), model)
        else:
            self._send(200, response)

    def _fail(self, status: int, why: str) -> None:
        error: object = {"type": "scripted", "message": why}
        if self.path in _OLLAMA_PATHS:
            error = why
        elif _GEMINI_PATH.match(self.path):
            error = {"code": status, "message": why, "status": "SCRIPTED"}
        self._send(status, {"type": "error", "error": error})

    def _send(self, status: int, data: Mapping[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, api: Api, events: list[Event], model: str) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson" if api in _LINES else "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, (name, data) in enumerate(events):
            if number == len(events) // 2 and model == "breaks":
                self.wfile.write(b"5\r\nda")  # an incomplete chunk
                self.wfile.flush()
                self.close_connection = True
                return
            if number == len(events) // 2 and model == "waits":
                self.server.owner.over.wait(PATIENCE_S)
            head = f"event: {name}\n" if name else ""
            self._chunk(f"{json.dumps(data)}\n" if api in _LINES else f"{head}data: {json.dumps(data)}\n\n")
        if api == "chat.completions":
            self._chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, text: str) -> None:
        piece = text.encode()
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()


def _events(api: Api, response: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[Event]:
    """Return the events of a stream, one word at a time; a chat has its usage at the end only if the request asks for it."""
    tells = api != "chat.completions" or bool((body.get("stream_options") or {}).get("include_usage"))
    return events_of(api, response, split=lambda text: _PIECE.findall(text) or [text], usage=tells)
