"""Ids of calls: no two of one process are the same, and they follow the clock."""

from __future__ import annotations

import os
import threading
import time

import pytest

from amends.encoding import ids
from amends.encoding.ids import RANDOM_BITS, call_id, made_at, new_number, number_of


def test_the_numbers_of_all_threads_are_different() -> None:
    drawn: list[list[int]] = []

    def draw() -> None:
        drawn.append([new_number() for _ in range(20_000)])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({number for some in drawn for number in some}) == 80_000
    assert all(some == sorted(some) for some in drawn)


def test_numbers_rise_in_one_microsecond_and_after_a_small_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    numbers = [new_number() for _ in range(5_000)]
    now -= 500_000_000
    numbers.append(new_number())
    assert numbers == sorted(set(numbers))


def test_numbers_follow_a_clock_that_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    new_number()
    now = time.time_ns() - 3_600_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now)
    number = new_number()
    assert made_at(number) == now // 1000 / 1e6
    assert number_of(call_id(number)) == number
    assert number < (now // 1000 + 1) << RANDOM_BITS
    ids._last = 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_another_thread_draws_a_number_does_not_stop_the_child() -> None:
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with ids._drawing:
            held.set()
            over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    child = os.fork()
    if child == 0:
        drawing = threading.Thread(target=lambda: os._exit(0 if new_number() else 1), daemon=True)
        drawing.start()
        drawing.join(5)
        os._exit(2)
    over.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
