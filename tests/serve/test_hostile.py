"""A real server process, honest clients, and clients that send too slowly, too much, the wrong thing or the wrong order."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.test_server import folder, process, token

__all__ = ["folder"]  # a fixture
pytestmark = pytest.mark.rest
SLOW = 60
"""Connections that drip; each would hold a server that waits for one at a time."""
HEAD_S_MAX = 15.0


@pytest.fixture
def server(folder: Path) -> Iterator[tuple[httpx.Client, tuple[str, int], str]]:
    text = token(folder)
    with process(folder) as (_, said):
        place = httpx.URL(said["url"])
        with httpx.Client(base_url=said["url"], headers={"Authorization": f"Bearer {text}"}, timeout=60) as client:
            yield client, (place.host, int(place.port or 0)), text


def charged(folder: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in (folder / "book").read_text().splitlines())


def drip(place: tuple[str, int], first: bytes, part: bytes, ended: list[bytes], stop: threading.Event) -> None:
    """Send a request so slowly that it never ends, until the server hangs up."""
    with socket.create_connection(place) as line:
        line.settimeout(0.5)
        line.sendall(first)
        until = time.monotonic() + HEAD_S_MAX * 3
        while time.monotonic() < until and not stop.is_set():
            try:
                line.sendall(part)
                if (got := line.recv(4096)) or got == b"":
                    ended.append(got)
                    return
            except TimeoutError:
                continue
            except OSError:
                ended.append(b"")
                return


def test_honest_clients_are_served_while_others_drip(
    server: tuple[httpx.Client, tuple[str, int], str], folder: Path
) -> None:
    client, place, text = server
    heads: list[bytes] = []
    bodies: list[bytes] = []
    stop = threading.Event()
    head = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\n"
    full = head + f"Authorization: Bearer {text}\r\nContent-Type: application/json\r\n".encode()
    full += b"Content-Length: 100000\r\n\r\n"
    slow = [threading.Thread(target=drip, args=(place, head, b"X-A: b\r\n", heads, stop)) for _ in range(SLOW)]
    slow += [threading.Thread(target=drip, args=(place, full, b" ", bodies, stop)) for _ in range(SLOW)]
    for one in slow:
        one.start()
    try:
        for number in range(20):
            assert client.post("/v1/runs", json={"id": f"r{number}"}).status_code == 201
            call = {"tool": "charge", "args": {"order": str(number), "cents": 5}}
            assert client.post(f"/v1/runs/r{number}/calls", json=call).json()["status"] == "done"
            assert client.post(f"/v1/runs/r{number}/commit").json()["run"]["state"] == "committed"
        for one in slow:
            one.join(HEAD_S_MAX * 3)
    finally:
        stop.set()
    assert len(heads) == len(bodies) == SLOW  # nobody holds a connection for ever
    assert {got[:12] for got in heads} <= {b"HTTP/1.1 408", b""}
    assert {got[:12] for got in bodies} <= {b"HTTP/1.1 408", b""}
    assert any(heads) and any(bodies)  # noqa: PT018 (some were told why)
    assert charged(folder) == Counter(str(number) for number in range(20))
    assert len(client.get("/v1/runs", params={"limit": 200}).json()["items"]) == 20


WRONG: list[tuple[str, bytes, str]] = [
    (path, body, "application/json")
    for path in ("/v1/runs", "/v1/runs/r/calls", "/v1/runs/r/claims", "/v1/runs/r/commit", "/v1/runs/r/rollback")
    for body in (
        b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe", b'{"id": NaN}', b'{"unknown": 1}', b'{"id": 1, "tool": 1, "why": 1}',
        b'{"tool": "charge", "args": []}', b'{"tool": "charge", "args": {"order": ["1"], "cents": "many"}, "lease": true}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000, b'{"id": "' + b"x" * 600 + b'"}', b'{"why": ""}', b'{"client_lease": -1}',
    )
] + [("/v1/runs", b'{"id": "other"}', "text/plain"), ("/v1/runs", b"id=other", "application/x-www-form-urlencoded")]  # fmt: skip


def test_wrong_bodies_are_4xx_and_change_nothing(
    server: tuple[httpx.Client, tuple[str, int], str], folder: Path
) -> None:
    client, place, text = server
    assert client.post("/v1/runs", json={"id": "r"}).status_code == 201
    before = client.get("/v1/runs/r/report").json()
    wrong = []
    for path, body, kind in WRONG:
        found = client.post(path, content=body, headers={"Content-Type": kind})
        is_refused = found.json().get("status") == "refused"  # the arguments of a tool: told to the model, 200
        if not (400 <= found.status_code < 500 or is_refused):
            wrong.append(f"{path} {body[:60]!r}: {found.status_code} {found.text[:100]}")
    assert wrong == []
    auth = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {text}\r\nContent-Type: application/json\r\n"
    for more, status in (
        ("Content-Length: 104857600\r\n\r\n{", b"HTTP/1.1 413"),
        ("Content-Length: -5\r\n\r\n{}", b"HTTP/1.1 400"),
        ("Content-Length: x\r\n\r\n{}", b"HTTP/1.1 400"),
        ("Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 400"),
    ):
        with socket.create_connection(place, timeout=30) as line:
            line.sendall((auth + more).encode())
            assert line.recv(4096)[:12] == status, more
    for cut in (1, 20):  # half a body, and nobody there any more
        with socket.create_connection(place) as line:
            line.sendall((auth + 'Content-Length: 100\r\n\r\n{"id": "half-' + "x" * cut).encode())
    chunks = client.post("/v1/runs", content=(b" " * (1 << 20) for _ in range(100)))
    assert chunks.status_code == 413
    assert client.get("/v1/runs/r/report").json()["calls"] == before["calls"] == []
    assert [one["id"] for one in client.get("/v1/runs").json()["items"]] == ["r"]
    assert charged(folder) == Counter()


def test_replays_out_of_order_are_answered_from_the_record(
    server: tuple[httpx.Client, tuple[str, int], str], folder: Path
) -> None:
    client, _, _ = server

    def post(path: str, **body: Any) -> httpx.Response:
        return client.post(path, json=body)

    early = post("/v1/runs/r/calls", tool="charge", args={"order": "1", "cents": 5})
    assert early.status_code == 404  # before the run
    assert post("/v1/runs", id="r").status_code == 201
    claims = [
        post("/v1/runs/r/claims", tool="charge", args={"order": order, "cents": 5}).json() for order in ("a", "b", "c")
    ]
    for one in reversed(claims):  # the last first, each twice, and then otherwise
        at = f"/v1/claims/{one['call']}"
        for _ in range(2):
            assert post(f"{at}/succeed", token=one["token"], result=one["key"]).json()["state"] == "succeeded"
        for verb, body in (("succeed", {"result": "other"}), ("fail", {"error": "no"}), ("renew", {})):
            assert post(f"{at}/{verb}", token=one["token"], **body).status_code == 409
    mixed = post(f"/v1/claims/{claims[0]['call']}/succeed", token=claims[1]["token"], result="x")
    assert mixed.status_code == 404

    def same(_: int) -> int:
        return post("/v1/runs/r/calls", tool="charge", args={"order": "1", "cents": 5}).status_code

    with ThreadPoolExecutor(16) as pool:  # all at once
        assert set(pool.map(same, range(64))) <= {200, 409}
    assert post("/v1/runs", id="r", input="other").status_code == 422
    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(lambda _: post("/v1/runs/r/commit").status_code, range(8)))
    assert set(ends) <= {200, 409}
    assert 200 in ends
    late = post("/v1/runs/r/calls", tool="charge", args={"order": "2", "cents": 5})
    assert (late.status_code, late.json()["code"]) == (409, "RunEnded")
    assert post("/v1/runs/r/rollback", why="too late").status_code == 409
    again = post(f"/v1/claims/{claims[0]['call']}/succeed", token=claims[0]["token"], result=claims[0]["key"])
    assert (again.status_code, again.json()["state"]) == (200, "succeeded")
    opened = post("/v1/runs", id="r")
    assert (opened.status_code, opened.json()["over"]) == (200, True)
    report = client.get("/v1/runs/r/report").json()
    assert report["run"]["state"] == "committed"
    assert Counter(call["state"] for call in report["calls"]) == {"succeeded": 4}
    assert charged(folder) == Counter(["1"])
    assert json.dumps(report)
