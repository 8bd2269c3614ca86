"""Events as they happen: over broken connections too, none left out and none twice."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from amends.errors import Forbidden
from tests.client.shop import Both
from tests.serve.shop import World

Shop = tuple[str, World]


class Cut:
    """Lets the first stream break after some lines, as a proxy does."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.opened: list[str | None] = []

    def lines(self, response: Any) -> Any:
        self.opened.append(response.request.headers.get("last-event-id"))
        if len(self.opened) > 1:
            return response.iter_lines()
        return self._cut(response.iter_lines())

    def _cut(self, lines: Any) -> Any:
        for number, line in enumerate(lines):
            if number == self.after:
                raise httpx.ReadError("cut")
            yield line


def followed(both: Both, found: Any, count: int) -> list[Any]:
    """Return the first events of a stream, then close it."""

    async def on_loop() -> list[Any]:
        seen = []
        async for one in found:
            seen.append(one)
            if len(seen) == count:
                break
        await found.aclose()
        return seen

    if both.is_async:
        return both.do(asyncio.wait_for(on_loop(), 20))  # type: ignore[no-any-return]
    seen = []
    for one in found:
        seen.append(one)
        if len(seen) == count:
            break
    found.close()
    return seen


def test_a_run_is_followed_from_its_beginning_and_from_a_place(shop: Shop, both: Both, name: str) -> None:
    client = both.client(shop[0], "agent")
    with both.block(client.run(name)) as run:
        both.do(run.call("charge", order=name, cents=1))
    listed = both.list(client.events(name))
    assert followed(both, client.follow(name), len(listed)) == listed
    assert followed(both, client.follow(name, after=listed[0].place), 1) == [listed[1]]


@pytest.mark.rest
def test_an_event_that_happens_later_arrives(shop: Shop, both: Both, name: str) -> None:
    client, other = both.client(shop[0], "agent"), Both(is_async=False)
    run = other.client(shop[0], "agent").open(name)
    before = both.list(client.events(name))
    later = threading.Timer(0.1, run.commit)
    later.start()
    try:
        seen = followed(both, client.follow(name, after=before[-1].place), 1)
    finally:
        later.join()
        other.close()
    assert seen[0].seq == before[-1].seq + 1


def test_a_stream_that_breaks_goes_on_where_it_broke(shop: Shop, name: str) -> None:
    cut, both = Cut(after=8), Both(is_async=False)
    client = both.client(shop[0], "agent")
    with client.run(name) as run:
        run.call("charge", order=name, cents=1)
        run.call("stock", item="abc")
    listed = list(client.events(name))
    send = client._driver.http.send

    def sent(request: httpx.Request, **options: Any) -> Any:
        answer = send(request, **options)
        lines = cut.lines(answer) if options.get("stream") else None
        if lines is not None:
            answer.iter_lines = lambda: lines
        return answer

    client._driver.http.send = sent
    assert followed(both, client.follow(name), len(listed)) == listed
    assert cut.opened[0] is None
    assert cut.opened[1] in [one.place for one in listed]
    both.close()


def test_what_may_not_be_read_is_an_error_not_a_silent_stream(shop: Shop, both: Both) -> None:
    with pytest.raises(Forbidden):
        followed(both, both.client(shop[0], "agent").follow(), 1)
