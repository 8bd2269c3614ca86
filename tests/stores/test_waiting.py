"""How a connection waits for the answers of its server: asleep or awake, whichever is faster."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from amends.stores import waiting
from amends.stores.waiting import AWAKE_S_MAX, FIRST_ASLEEP, TRY_EVERY, AnswerWait

LOOK_S = 2e-6
"""How long it takes to ask the socket once."""


@dataclass
class Server:
    """A server whose time is counted by hand."""

    answer_s: float = 0.0002
    late_s: float = 0.00004
    """How late a process that sleeps is woken."""
    slower_s: float = 0.0
    """How much later the server answers while somebody waits awake on its core."""
    now: float = 0.0
    answers_at: float = 0.0
    looked: int = 0

    def __post_init__(self) -> None:
        self.wait = AnswerWait(self.is_readable, lambda: self.now)
        self.wait.may_be_awake = True

    def is_readable(self) -> bool:
        self.now += LOOK_S
        if not self.looked:
            self.answers_at += self.slower_s
        self.looked += 1
        return self.now >= self.answers_at

    def statement(self) -> tuple[bool, float]:
        """Return whether it was waited for awake, and how long so."""
        began, self.looked = self.now, 0
        self.answers_at = began + self.answer_s
        self.wait.begin()
        awake_s = self.now - began
        if self.now < self.answers_at:
            self.now = self.answers_at + self.late_s
        self.wait.end()
        return self.looked > 0, awake_s

    def share_awake(self, count: int = 1_000) -> float:
        return sum(self.statement()[0] for _ in range(count)) / count


def test_a_short_program_never_waits_awake() -> None:
    server = Server()
    assert not any(server.statement()[0] for _ in range(FIRST_ASLEEP))
    assert server.statement()[0]


def test_the_faster_way_is_taken_and_the_other_one_tried_now_and_then() -> None:
    server = Server()
    server.share_awake(FIRST_ASLEEP)
    assert server.share_awake() == pytest.approx(1 - 1 / TRY_EVERY, abs=0.02)
    server = Server(slower_s=0.0003)
    server.share_awake(FIRST_ASLEEP)
    assert server.share_awake() == pytest.approx(1 / TRY_EVERY, abs=0.02)


def test_a_machine_that_becomes_busy_is_noticed_and_so_is_its_end() -> None:
    server = Server()
    server.share_awake()
    server.slower_s = 0.0004
    server.share_awake(300)
    assert server.share_awake() < 0.1
    server.slower_s = 0.0
    server.share_awake(2_000)
    assert server.share_awake() > 0.9


def test_nobody_waits_awake_for_long_or_for_a_server_that_is_far_away() -> None:
    server = Server()
    server.share_awake(FIRST_ASLEEP)
    server.answer_s = 0.2  # a lock, or a flush of a disk that is busy
    for _ in range(100):
        assert server.statement()[1] <= AWAKE_S_MAX + 2 * LOOK_S
    assert server.share_awake() == 0
    assert Server(answer_s=2 * AWAKE_S_MAX).share_awake() == 0


def test_one_statement_that_waits_for_a_disk_changes_no_habit() -> None:
    server = Server()
    server.share_awake()
    server.answer_s = 1.0
    server.statement()
    server.answer_s = 0.0002
    assert server.share_awake(200) > 0.8


def test_on_a_single_core_nobody_waits_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "cores", lambda: 1)
    server = Server()
    wait = server.wait = AnswerWait(server.is_readable, lambda: server.now)
    assert not wait.may_be_awake
    assert server.share_awake() == 0
