"""A server that speaks the wire formats of OpenAI and Anthropic, on this machine, for the SDKs to talk to.

What it answers is told by the model's name: ``gpt-4o-mini``, ``claude-sonnet-4-5`` and unknown names are answered,
``fails-N`` is answered with status N, ``silent`` is not answered, ``breaks`` stops in the middle of a stream.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WORDS = ("Four", " and", " twenty", " black", "birds")
TEXT = "".join(WORDS)
USAGE_CHAT = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
USAGE_RESPONSES = {
    "input_tokens": 1000,
    "input_tokens_details": {"cached_tokens": 400},
    "output_tokens": 200,
    "output_tokens_details": {"reasoning_tokens": 50},
    "total_tokens": 1200,
}
USAGE_MESSAGES = {
    "input_tokens": 600,
    "cache_read_input_tokens": 300,
    "cache_creation_input_tokens": 100,
    "output_tokens": 200,
}


class Server(ThreadingHTTPServer):
    """Keeps what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.over = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are what many tests are about."""

    @property
    def openai(self) -> dict[str, Any]:
        return {"api_key": "sk-test-canary", "base_url": f"http://127.0.0.1:{self.server_port}/v1", "max_retries": 0}

    @property
    def anthropic(self) -> dict[str, Any]:
        return {"api_key": "sk-test-canary", "base_url": f"http://127.0.0.1:{self.server_port}", "max_retries": 0}


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append({"path": self.path, **body})
        model = body.get("model", "")
        if model == "silent":
            self.server.over.wait(30)
            return None
        if model.startswith("fails-"):
            status = int(model.removeprefix("fails-"))
            return self._send(status, {"type": "error", "error": {"type": "x", "message": f"refused {status}"}})
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            return self._send(200, {"input_tokens": 7})
        whole, events = ANSWERS[path.removeprefix("/v1")](body)
        if body.get("stream"):
            self._stream(events, breaks=model == "breaks", waits=model == "waits")
        else:
            self._send(200, whole)
        return None

    def _send(self, status: int, data: dict[str, Any]) -> None:
        content = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, events: list[tuple[str, Any]], *, breaks: bool, waits: bool) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, (name, data) in enumerate(events):
            if breaks and number == len(events) // 2:
                self.wfile.write(b"5\r\nda")  # a chunk that is never whole
                self.wfile.flush()
                self.close_connection = True
                return
            if waits and number == len(events) // 2:
                self.server.over.wait(30)
            text = data if isinstance(data, str) else json.dumps(data)
            piece = f"{f'event: {name}' + chr(10) if name else ''}data: {text}\n\n".encode()
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def _chat(body: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": body["model"]}
    message: dict[str, Any] = {"role": "assistant", "content": TEXT}
    if body.get("tools"):
        call = {"id": "call_1", "type": "function", "function": {"name": "charge", "arguments": '{"cents": 5}'}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    finish = body.get("_finish", "tool_calls" if body.get("tools") else "stop")
    whole = {**head, "object": "chat.completion", "usage": USAGE_CHAT}
    whole["choices"] = [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in WORDS)]
    if body.get("tools"):
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "charge", "arguments": ""}}
        more = [{"index": 0, "function": {"arguments": piece}} for piece in ('{"cents"', ": 5}")]
        deltas = [{"role": "assistant", "tool_calls": [first]}, *({"tool_calls": [one]} for one in more)]
    chunk = {**head, "object": "chat.completion.chunk"}
    events: list[tuple[str, Any]] = [
        ("", {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas
    ]
    events.append(("", {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(("", {**chunk, "choices": [], "usage": USAGE_CHAT}))
    return whole, [*events, ("", "[DONE]")]


def _responses(body: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    part = {"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
    whole = {
        "id": "resp_1", "object": "response", "created_at": 1_700_000_000, "model": body["model"], "output": [item],
        "status": "completed", "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": USAGE_RESPONSES, "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
        "temperature": 1.0, "top_p": 1.0,
    }  # fmt: skip
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    at = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    kinds: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **at, "delta": word, "logprobs": []} for word in WORDS),
        {"type": "response.output_text.done", **at, "text": TEXT, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [(one["type"], {"sequence_number": number, **one}) for number, one in enumerate(kinds)]


def _messages(body: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"]}
    ended = {"stop_reason": "tool_use" if body.get("tools") else "end_turn", "stop_sequence": None}
    content: list[dict[str, Any]] = [{"type": "text", "text": TEXT, "citations": None}]
    if body.get("tools"):
        content.append({"type": "tool_use", "id": "toolu_1", "name": "charge", "input": {"cents": 5}})
    whole = {**head, **ended, "content": content, "usage": USAGE_MESSAGES}
    start = {**head, "content": [], "stop_reason": None, "stop_sequence": None}
    start["usage"] = {**USAGE_MESSAGES, "output_tokens": 1}
    kinds: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": w}} for w in WORDS),
        {"type": "content_block_stop", "index": 0},
    ]
    if body.get("tools"):
        pieces = [{"type": "input_json_delta", "partial_json": piece} for piece in ('{"cents"', ": 5}")]
        kinds.append({"type": "content_block_start", "index": 1, "content_block": {**content[1], "input": {}}})
        kinds += [{"type": "content_block_delta", "index": 1, "delta": piece} for piece in pieces]
        kinds.append({"type": "content_block_stop", "index": 1})
    kinds.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 200}})
    kinds.append({"type": "message_stop"})
    return whole, [(one["type"], one) for one in kinds]


ANSWERS = {"/chat/completions": _chat, "/responses": _responses, "/messages": _messages}
