"""The pool of connections, without a server: who comes first is served first, and nothing is lost on the way."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from amends.errors import LedgerUnavailable
from amends.stores.pool import LoopPool, Pool


class Line:
    """A connection that is only counted."""

    made: int = 0

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def pool_of(size: int, *, connect: Callable[[], Line] = Line, wait_s: float = 5.0) -> Pool[Line]:
    return Pool(connect, size=size, wait_s=wait_s, shown="here")


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not happen")


def has_line(pool: Pool[Line], count: int) -> bool:
    return len(pool._waiters) == count


def test_threads_are_served_in_the_order_of_coming() -> None:
    pool = pool_of(1)
    first = pool.take()
    served: list[int] = []

    def come(number: int) -> None:
        mine = pool.take()
        served.append(number)
        pool.give(mine, keep=True)

    threads = []
    for number in range(5):
        threads.append(threading.Thread(target=come, args=(number,)))
        threads[-1].start()
        until(partial(has_line, pool, number + 1))
    pool.give(first, keep=True)
    for thread in threads:
        thread.join()
    assert served == [0, 1, 2, 3, 4]
    assert pool.take() is first


def test_a_broken_connection_is_replaced_by_whoever_is_next() -> None:
    pool = pool_of(1)
    broken = pool.take()
    got: list[Line] = []
    waiting = threading.Thread(target=lambda: got.append(pool.take()))
    waiting.start()
    until(lambda: len(pool._waiters) == 1)
    pool.give(broken, keep=False)
    waiting.join()
    assert broken.closed
    assert got[0] is not broken
    assert pool._count == 1


def test_who_cannot_connect_lets_the_next_one_try() -> None:
    answers: list[Line | Exception] = [Line(), OSError("no"), Line()]

    def connect() -> Line:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pool = pool_of(1, connect=connect)
    first = pool.take()
    pool.give(first, keep=False)
    with pytest.raises(OSError, match="no"):
        pool.take()
    assert pool.take() is not first
    assert pool._count == 1


def test_who_waits_too_long_is_told_and_leaves_the_line() -> None:
    pool = pool_of(1, wait_s=0.01)
    held = pool.take()
    with pytest.raises(LedgerUnavailable):
        pool.take()
    pool.give(held, keep=True)
    assert pool.take() is held


def test_closing_tells_those_who_wait_and_ends_what_comes_back() -> None:
    pool = pool_of(1)
    held = pool.take()
    told: list[BaseException] = []

    def come() -> None:
        try:
            pool.take()
        except LedgerUnavailable as error:
            told.append(error)

    waiting = threading.Thread(target=come)
    waiting.start()
    until(lambda: len(pool._waiters) == 1)
    pool.close()
    waiting.join()
    assert "closed" in str(told[0])
    assert not held.closed, "somebody is using it"
    pool.give(held, keep=True)
    assert held.closed
    assert pool._count == 0


def test_a_loop_serves_in_the_order_of_coming_and_outlives_cancellations() -> None:
    async def connect() -> Line:
        await asyncio.sleep(0)
        return Line()

    async def play() -> None:
        pool: LoopPool[Line] = LoopPool(connect, size=1, wait_s=5.0, shown="here")
        first = await pool.take()
        served: list[int] = []

        async def come(number: int) -> None:
            mine = await pool.take()
            served.append(number)
            await asyncio.sleep(0)
            pool.give(mine, keep=True)

        waiting = [asyncio.create_task(come(number)) for number in range(5)]
        await asyncio.sleep(0)
        waiting[1].cancel()  # while it waits
        pool.give(first, keep=True)
        waiting[0].cancel()  # when its turn has come and it does not know yet
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True, True, False, False, False]
        assert served == [2, 3, 4]
        assert await pool.take() is first
        pool.close(loop_is_closed=False)
        assert not first.closed
        pool.give(first, keep=True)
        assert first.closed

    asyncio.run(play())


def test_who_waits_on_a_loop_when_the_ledger_closes_is_told_and_connects_no_more() -> None:
    made: list[Line] = []

    async def connect() -> Line:
        made.append(Line())
        return made[-1]

    async def play() -> None:
        pool: LoopPool[Line] = LoopPool(connect, size=1, wait_s=5.0, shown="here")
        held = await pool.take()
        waiting = [asyncio.create_task(pool.take()) for _ in range(3)]
        await asyncio.sleep(0)
        pool.close(loop_is_closed=False)
        pool.give(held, keep=True)
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, LedgerUnavailable) and "closed" in str(end) for end in ends)
        assert (len(made), held.closed, pool._count) == (1, True, 0)

    asyncio.run(play())
