"""A connection of an event loop stays registered between its statements, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import psycopg
import pytest

from amends.stores.postgres.connection import Arrivals, AsyncConnection, connect_async
from amends.stores.postgres.url import read_url
from tests.servers.databases import execute

ECHO = "select %s::text"
LOCKED = "select 'it came' from pg_advisory_xact_lock(%s::text::bigint)"
END = "select pg_terminate_backend(%s)"
TURNS_MAX = 100_000
LARGE = 3_000_000
DESCRIPTORS = Path("/proc/self/fd")

Link = AsyncConnection


class Loop(asyncio.SelectorEventLoop):
    """A loop that knows for which descriptors it waits."""

    def __init__(self) -> None:
        self.readers: set[Any] = set()
        self.registered = 0
        super().__init__()

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        super().add_reader(fd, callback, *args)
        self.readers.add(fd)
        self.registered += 1

    def remove_reader(self, fd: Any) -> bool:
        self.readers.discard(fd)
        return super().remove_reader(fd)


def play(url: str, what: Callable[[Loop, Link], Awaitable[None]]) -> None:
    async def main() -> None:
        link = await connect_async(read_url(url), opened=False)
        await what(loop, link)
        link.close()

    loop = Loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(TURNS_MAX):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def test_the_statements_of_a_connection_need_one_registration(postgres_url: str) -> None:
    async def steps(loop: Loop, link: Link) -> None:
        await link.first_value(ECHO, [b"prepared"], [])
        before = loop.registered
        for number in range(20):
            assert await link.first_value(ECHO, [b"%d" % number], []) == b"%d" % number
        assert loop.registered <= before + 1

    play(postgres_url, steps)


def test_other_statements_of_the_connection_come_in_between(postgres_url: str) -> None:
    async def steps(_: Loop, link: Link) -> None:
        for number in range(5):
            assert await link.first_value(ECHO, [b"%d" % number], []) == b"%d" % number
            assert (await (await link.cursor.execute("select 1")).fetchall()) == [(1,)]

    play(postgres_url, steps)


def test_a_large_answer_comes_whole(postgres_url: str) -> None:
    async def steps(_: Loop, link: Link) -> None:
        sql = "select repeat('x', %s::text::int)"
        for size in (1, LARGE):
            found = await link.first_value(sql, [b"%d" % size], [])
            assert found is not None
            assert len(found) == size

    play(postgres_url, steps)


def locked(url: str) -> psycopg.Connection[Any]:
    holder = psycopg.connect(url, autocommit=True)
    holder.execute("select pg_advisory_lock(7)")
    return holder


def test_who_is_cancelled_while_waiting_still_gets_the_answer(postgres_url: str) -> None:
    async def steps(loop: Loop, link: Link) -> None:
        await link.first_value(LOCKED, [b"8"], [])
        with locked(postgres_url) as holder:
            stops: list[asyncio.CancelledError] = []
            waiting = loop.create_task(link.first_value(LOCKED, [b"7"], stops))
            for count in (1, 2):
                await until(lambda: link.arrivals is not None and link.arrivals._come is not None)
                waiting.cancel()
                await until(lambda count=count: len(stops) == count)  # type: ignore[misc]
            holder.execute("select pg_advisory_unlock(7)")
            assert await waiting == b"it came"

    play(postgres_url, steps)


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_connection_that_ends_while_somebody_waits_says_so(postgres_url: str, is_cancelled: bool) -> None:
    async def steps(loop: Loop, link: Link) -> None:
        await link.first_value(LOCKED, [b"8"], [])
        with locked(postgres_url) as holder:
            waiting = loop.create_task(link.first_value(LOCKED, [b"7"], []))
            await until(lambda: link.arrivals is not None and link.arrivals._come is not None)
            holder.execute(END, (link.raw.info.backend_pid,))
            if is_cancelled:
                waiting.cancel()
            with pytest.raises(psycopg.OperationalError):
                await waiting
        assert link.closed

    play(postgres_url, steps)


def test_a_connection_that_ends_while_nobody_waits_is_not_watched_any_more(postgres_url: str) -> None:
    async def steps(loop: Loop, link: Link) -> None:
        for _ in range(2):
            await link.first_value(ECHO, [b"1"], [])
        assert loop.readers
        execute(postgres_url, [END.replace("%s", str(link.raw.info.backend_pid))])
        await until(lambda: not loop.readers)
        with pytest.raises(psycopg.OperationalError):
            await link.first_value(ECHO, [b"1"], [])

    play(postgres_url, steps)


def test_a_connection_that_was_closed_has_nothing_to_register(postgres_url: str) -> None:
    async def steps(loop: Loop, link: Link) -> None:
        link.close()
        with pytest.raises(psycopg.OperationalError):
            Arrivals(loop, link.raw.pgconn)
        gc.collect()  # what it leaves behind raises nothing, either
        assert not loop.readers

    play(postgres_url, steps)


async def in_its_loop(link: Link) -> None:
    link.close()


async def by_a_thread(link: Link) -> None:
    thread = threading.Thread(target=link.close)
    thread.start()
    thread.join()
    await asyncio.sleep(0)


async def later(_: Link) -> None:
    """The loop is closed first."""


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="counts the descriptors of the process")
@pytest.mark.parametrize("closing", [in_its_loop, by_a_thread, later])
def test_no_descriptor_is_left_open(postgres_url: str, closing: Callable[[Link], Coroutine[Any, Any, None]]) -> None:
    async def main() -> Link:
        link = await connect_async(read_url(postgres_url), opened=False)
        for _ in range(3):
            await link.first_value(ECHO, [b"1"], [])
        await closing(link)
        again = await connect_async(read_url(postgres_url), opened=False)  # with the descriptor that became free
        for _ in range(3):
            assert await again.first_value(ECHO, [b"2"], []) == b"2"
        again.close()
        return link

    gc.collect()
    before = len([*DESCRIPTORS.iterdir()])
    loop = asyncio.SelectorEventLoop()
    link = loop.run_until_complete(main())
    loop.close()
    link.close()
    del link, loop
    gc.collect()
    assert len([*DESCRIPTORS.iterdir()]) == before
