"""HTTP clients inside a tool: the key of the call travels with its requests, and the answers are read as the draft says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from amends import Call, Happened, InDoubt, NoEffect, RunBlocked, Runtime, current_call, tool
from amends.adapters.aiohttp import IdempotencyMiddleware
from amends.adapters.httpx import IdempotencyTransport
from amends.adapters.requests import IdempotencyAdapter
from amends.idempotency import KeyReused, StillRunning, meaning
from tests.adapters.destination import Destination, serving

Post = Callable[..., Any]


@pytest.fixture(scope="module")
def shared() -> Iterator[Destination]:
    with serving() as destination:
        yield destination


@pytest.fixture
def destination(shared: Destination) -> Destination:
    shared.seen.clear()
    shared.charges.clear()
    shared.next.clear()
    return shared


class Refused(Exception):
    """What these tools raise for a clear no, whatever the client."""


def _of_httpx(package: Any, url: str, method: str, options: Any, headers: Any, content: Any) -> Any:
    inner = package.HTTPTransport(verify=False)
    with package.Client(transport=IdempotencyTransport(inner, **options)) as client:
        response = client.request(method, url, content=content, headers=headers)
        return response.status_code, response.json() if response.content else None


def _of_httpx_async(package: Any, url: str, method: str, options: Any, headers: Any, content: Any) -> Any:
    async def main() -> Any:
        inner = package.AsyncHTTPTransport(verify=False)
        async with package.AsyncClient(transport=IdempotencyTransport(inner, **options)) as client:
            response = await client.request(method, url, content=content, headers=headers)
            return response.status_code, response.json() if response.content else None

    return asyncio.run(main())


def _of_requests(url: str, method: str, options: Any, headers: Any, content: Any) -> Any:
    with requests.Session() as session:
        session.mount("http://", IdempotencyAdapter(**options))
        response = session.request(method, url, data=content, headers=headers)
        return response.status_code, response.json() if response.content else None


def _of_aiohttp(url: str, method: str, options: Any, headers: Any, content: Any) -> Any:
    @asynccontextmanager
    async def session() -> AsyncIterator[aiohttp.ClientSession]:
        async with aiohttp.ClientSession(middlewares=[IdempotencyMiddleware(**options)]) as made:
            yield made

    async def main() -> Any:
        async with session() as made, made.request(method, url, data=content, headers=headers) as response:
            return response.status, await response.json(content_type=None) if await response.read() else None

    return asyncio.run(main())


CLIENTS: dict[str, Callable[..., Any]] = {
    "httpx": lambda *args: _of_httpx(httpx, *args),
    "httpx-async": lambda *args: _of_httpx_async(httpx, *args),
    "httpx2": lambda *args: _of_httpx(httpx2, *args),
    "httpx2-async": lambda *args: _of_httpx_async(httpx2, *args),
    "requests": _of_requests,
    "aiohttp": _of_aiohttp,
}


@pytest.fixture(params=CLIENTS)
def post(request: pytest.FixtureRequest, destination: Destination) -> Post:
    """Sends one request with a client of this kind; gives its answer, raises ``Refused`` with its status."""
    send = CLIENTS[request.param]

    def sending(content: Any = b"4200", *, method: str = "POST", headers: Any = None, **options: Any) -> Any:
        status, data = send(destination.url + "/charges", method, {"wait": 0.3, **options}, headers or {}, content)
        if status >= 400:
            raise Refused(status)
        return data

    return sending


def charging(body: Callable[[], Any], **options: Any) -> tuple[Runtime, Any]:
    @tool(key="order", **options)
    def charge(order: str) -> Any:
        return body()

    charge.compensate(lambda: None)
    return Runtime("memory:", tools=[charge], wait=0.1), charge


def call_of(rt: Runtime) -> Call:
    [call] = rt.calls()
    return call


# ---- the key ------------------------------------------------------------------------------


def test_a_request_of_a_body_carries_the_key_of_its_call(post: Post, destination: Destination) -> None:
    rt, charge = charging(post)
    with rt.run():
        assert charge(order="7") == {"id": "ch_1"}
    assert destination.seen == [("POST", call_of(rt).key)]


def test_a_compensation_sends_its_own_key(post: Post, destination: Destination) -> None:
    keys: list[str] = []

    @tool(key="order")
    def charge(order: str) -> Any:
        keys.append(current_call().key)
        return post()

    @charge.compensate
    def refund() -> None:
        keys.append(current_call().key)
        post(b"refund")

    with Runtime("memory:", tools=[charge]) as rt, pytest.raises(RuntimeError), rt.run():
        charge(order="7")
        raise RuntimeError
    assert [key for _, key in destination.seen] == keys
    assert len(set(keys)) == 2


def test_a_header_that_is_there_stays(post: Post, destination: Destination) -> None:
    rt, charge = charging(lambda: post(headers={"Idempotency-Key": "mine"}))
    with rt.run():
        charge(order="7")
    assert destination.seen == [("POST", "mine")]


def test_the_header_may_have_another_name(post: Post, destination: Destination) -> None:
    rt, charge = charging(lambda: post(header="X-Key"))
    with rt.run(), pytest.raises(NoEffect):
        charge(order="7")
    assert destination.seen == [("POST", call_of(rt).key)]


def test_reading_and_requests_outside_a_body_carry_none(post: Post, destination: Destination) -> None:
    rt, charge = charging(lambda: post(None, method="GET"))
    with rt.run():
        charge(order="7")
        with pytest.raises(Refused, match="400"):
            post()
    assert destination.seen == [("GET", None), ("POST", None)]


def test_a_probe_sends_no_key(post: Post, destination: Destination) -> None:
    @tool(key="order")
    def charge(order: str) -> Any:
        raise TimeoutError("lost")

    @charge.probe(settle=0.0)
    def find() -> Any:
        with pytest.raises(Refused, match="400"):
            post(b"search")
        return Happened("ch_7")

    charge.compensate(lambda: None)
    with Runtime("memory:", tools=[charge]) as rt, rt.run():
        assert charge(order="7") == "ch_7"
    assert destination.seen == [("POST", None)]


def test_a_guard_sends_no_key(post: Post, destination: Destination) -> None:
    @tool(key="order")
    def charge(order: str) -> Any:
        return post()

    @charge.guard
    def unchanged() -> bool:
        with pytest.raises(Refused, match="400"):
            post(b"search")
        return True

    charge.compensate(lambda: None)
    with Runtime("memory:", tools=[charge]) as rt, pytest.raises(RuntimeError), rt.run():
        charge(order="7")
        raise RuntimeError
    assert [key is None for _, key in destination.seen] == [False, True]


def test_a_lost_answer_of_an_idempotent_tool_is_one_effect(post: Post, destination: Destination) -> None:
    destination.next = ["lost"]
    rt, charge = charging(post, idempotent=True)
    with rt.run():
        assert charge(order="7") == {"id": "ch_1"}
    assert len(destination.charges) == 1
    assert len({key for _, key in destination.seen}) == 1


# ---- what the answers say -----------------------------------------------------------------


def test_a_request_that_is_still_at_work_is_waited_for(post: Post, destination: Destination) -> None:
    destination.next = ["running", (409, None), ""]
    rt, charge = charging(lambda: post(wait=20.0))
    with rt.run():
        assert charge(order="7") == {"id": "ch_1"}
    assert len(destination.seen) == 3


def test_a_request_that_stays_at_work_is_a_doubt(post: Post, destination: Destination) -> None:
    destination.next = ["running"] * 50
    rt, charge = charging(post)
    with pytest.raises(RunBlocked), rt.run():
        with pytest.raises((InDoubt, StillRunning)):
            charge(order="7")
    assert call_of(rt).state == "in_doubt"
    assert "still working" in (call_of(rt).error or "")


def test_a_key_that_came_with_another_payload_is_a_doubt(post: Post, destination: Destination) -> None:
    payloads = iter([b"4200", b"4900"])
    rt, charge = charging(lambda: (post(next(payloads)), post(next(payloads))))
    with pytest.raises(RunBlocked), rt.run():
        with pytest.raises((InDoubt, KeyReused)):
            charge(order="7")
    assert call_of(rt).state == "in_doubt", "the first one was charged"
    assert "another payload" in (call_of(rt).error or "")


def test_a_key_that_got_lost_on_the_way_is_certainly_no_effect(post: Post, destination: Destination) -> None:
    destination.next = [(400, {"title": "Idempotency-Key is missing"})]
    rt, charge = charging(post)
    with rt.run(), pytest.raises(NoEffect):
        charge(order="7")
    assert call_of(rt).state == "failed"


@pytest.mark.parametrize("status", [400, 409, 422, 404])
def test_other_refusals_are_the_tools_own_affair(post: Post, destination: Destination, status: int) -> None:
    destination.next = [(status, {"title": "There is such an order already"})]
    rt, charge = charging(post)
    with rt.run(), pytest.raises(Refused, match=str(status)):
        charge(order="7")
    assert call_of(rt).state == "failed"


def test_what_an_answer_means() -> None:
    told = '{"type": "https://developer.example.com/idempotency"}'
    assert [meaning(status, told) for status in (400, 409, 422, 500)] == ["missing", "running", "reused", ""]
    assert [meaning(status, "") for status in (400, 409, 422)] == ["", "running", "reused"]
    assert [meaning(status, "out of stock") for status in (400, 409, 422)] == ["", "", ""]


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"type": "idempotency_error", "message": "Keys for idempotent requests can only be used with the "
                   "same parameters they were first used with."}},
        {"errors": [{"code": "IDEMPOTENCY_KEY_REUSED", "detail": "Different request parameters used for the same key"}]},
    ],
    ids=["stripe", "square"],
)  # fmt: skip
def test_a_key_that_came_before_is_a_doubt_with_a_400_too(destination: Destination, said: Any) -> None:
    destination.next = ["", (400, said)]

    def body() -> Any:
        with requests.Session() as session:
            session.mount("http://", IdempotencyAdapter())
            for path in ("/customers", "/charges"):
                session.post(destination.url + path, data=path).raise_for_status()

    rt, charge = charging(body)
    with pytest.raises(RunBlocked), rt.run():
        with pytest.raises((InDoubt, KeyReused)):
            charge(order="7")
    assert call_of(rt).state == "in_doubt", "the first one was done"


@pytest.mark.parametrize("library", ["httpx", "requests"])
def test_a_request_that_is_sent_by_two_calls_has_the_key_of_each(destination: Destination, library: str) -> None:
    client: Any
    if library == "httpx":
        client = httpx.Client(transport=IdempotencyTransport(httpx.HTTPTransport(verify=False)))
        prepared: Any = client.build_request("POST", destination.url, content=b"1")
    else:
        client = requests.Session()
        client.mount("http://", IdempotencyAdapter())
        prepared = requests.Request("POST", destination.url, data=b"1").prepare()
    rt, charge = charging(lambda: client.send(prepared).json())
    with client, rt.run():
        assert [charge(order="7"), charge(order="8")] == [{"id": "ch_1"}, {"id": "ch_2"}]


def test_the_answer_to_a_redirected_request_is_read_too(destination: Destination) -> None:
    def provider(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/charges":
            return httpx.Response(307, headers={"location": "/v2/charges"})
        return httpx.Response(422, json={"title": f"Idempotency-Key {request.headers['idempotency-key']} is used"})

    def body() -> Any:
        transport = IdempotencyTransport(httpx.MockTransport(provider))
        with httpx.Client(transport=transport, follow_redirects=True) as client:
            client.post("http://there/charges", content=b"1").raise_for_status()

    rt, charge = charging(body)
    with pytest.raises(RunBlocked), rt.run():
        with pytest.raises((InDoubt, KeyReused)):
            charge(order="7")
    assert call_of(rt).state == "in_doubt"


def test_a_body_that_cannot_be_sent_twice_is_not(destination: Destination) -> None:
    destination.next = ["running", "running"]

    def body() -> Any:
        with httpx.Client(transport=IdempotencyTransport(httpx.HTTPTransport(verify=False))) as client:
            return client.post(destination.url, content=iter([b"4200"]), headers={"content-length": "4"}).json()

    rt, charge = charging(body)
    with pytest.raises(RunBlocked), rt.run():
        charge(order="7")
    assert len(destination.seen) == 1
    assert call_of(rt).state == "in_doubt"


def test_without_an_inner_transport_it_is_the_packages_own(destination: Destination) -> None:
    def body() -> Any:
        with httpx2.Client(transport=IdempotencyTransport()) as client:
            return client.post(destination.url, content=b"1").json()

    rt, charge = charging(body)
    with rt.run():
        assert charge(order="7") == {"id": "ch_1"}
