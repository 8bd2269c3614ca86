"""A server on this machine that speaks the wire formats of OpenAI and Anthropic, so that the real SDKs talk to it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from amends import UsageError
from amends.llm.events import Event, events_of
from amends.llm.hearing import heard_in
from amends.llm.replying import response_of
from amends.llm.scripted import ScriptedModel
from amends.llm.wire import Api

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
