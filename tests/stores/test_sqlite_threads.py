"""One file, many threads: nobody is answered before the flush, and an interrupt harms nobody else."""

import signal
import sqlite3
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends.errors import LeaseLost, LedgerUnavailable
from amends.ledger import operations as ops
from amends.ledger.rows import RunRow
from amends.stores.sqlite import group_commit, store
from amends.stores.sqlite.group_commit import BATCH_MAX
from amends.stores.sqlite.store import SqliteStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.stores.many import CALLERS, Gate, ask_together, commits, in_line, numbered, stored, wait_for


def test_those_who_come_together_share_one_flush(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), CALLERS)
    before = commits(shared.path)
    is_stored = stored(shared.path)
    gate.once(in_line(shared, CALLERS - 1))
    with ThreadPoolExecutor(CALLERS) as pool:
        seen = list(pool.map(lambda op: (shared.perform(op).verdict, is_stored(op.call_id)), requests))
    assert seen == [("start", True)] * CALLERS, "whoever was answered is seen by everybody"
    assert commits(shared.path) - before == 1


def test_a_batch_has_a_limit(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), BATCH_MAX + 10)
    before = commits(shared.path)
    with ThreadPoolExecutor(len(requests)) as pool:
        asked = ask_together(shared, gate, pool, requests)
        assert {future.result().verdict for future in asked} == {"start"}
    assert commits(shared.path) - before == 2


def test_one_that_fails_takes_nobody_along(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    run = ledger.run()
    requests = numbered(ledger, run, 9)
    for request in requests[3:5]:
        request.epoch = 7
    requests[7].args = "\ud800"
    with ThreadPoolExecutor(len(requests)) as pool:
        errors = [type(future.exception()) for future in ask_together(shared, gate, pool, requests)]
    assert [error for error in errors if error is not type(None)] == [LeaseLost, LeaseLost, UnicodeEncodeError]
    assert {call.id for call in ledger.calls()} == {
        request.call_id for request, error in zip(requests, errors, strict=True) if error is type(None)
    }


def test_one_that_comes_first_and_fails_leaves_the_lead_to_the_next(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    run = ledger.run()
    requests = numbered(ledger, run, 5)
    requests[0].args = "\ud800"
    with ThreadPoolExecutor(5) as pool:
        failing, *others = ask_together(shared, gate, pool, requests)
        assert [future.result().verdict for future in others] == ["start"] * 4
        assert isinstance(failing.exception(), UnicodeEncodeError)


class Refusing:
    """SQLite's cursor, until the disk fails under it."""

    def __init__(self, cursor: sqlite3.Cursor, at: str) -> None:
        self._cursor, self._at = cursor, at

    def execute(self, sql: str, params: Any = ()) -> Any:
        if sql == self._at:
            raise sqlite3.OperationalError("disk I/O error")
        return self._cursor.execute(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.mark.parametrize("at", ["commit", "savepoint op"])
def test_when_the_flush_fails_everybody_in_it_is_told(shared: SqliteStore, gate: Gate, at: str) -> None:
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), 9)
    before = ledger.everything()
    assert shared._writer is not None
    shared._writer.cursor = Refusing(shared._writer.cursor, at)  # type: ignore[assignment]
    with ThreadPoolExecutor(9) as pool:
        errors = {type(future.exception()) for future in ask_together(shared, gate, pool, requests)}
    assert errors == {LedgerUnavailable}
    assert ledger.everything() == before
    for request in requests:  # through a new connection; each says that it comes again
        request.repeated = True
        assert shared.perform(request).verdict == "start"


def test_what_stops_the_first_is_told_to_all_in_line_at_once(
    shared: SqliteStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one after another, each after its own wait for the lock."""
    ledger = Ledger(shared)
    requests = numbered(ledger, ledger.run(), 9)
    waits: list[float] = []

    def no_lock(path: object, wait_s: float, act: object) -> None:
        in_line(shared, 8)()
        waits.append(wait_s)
        raise LedgerUnavailable("locked")

    monkeypatch.setattr(store, "patiently", no_lock)
    holder = sqlite3.connect(shared.path, isolation_level=None)
    holder.execute("begin immediate")
    assert shared._writer is not None
    shared._writer.raw.execute("pragma busy_timeout = 0")
    with ThreadPoolExecutor(9) as pool:
        asked = [pool.submit(shared.perform, request) for request in requests]
        assert {type(future.exception()) for future in asked} == {LedgerUnavailable}
    assert len(waits) == 1
    monkeypatch.undo()
    holder.close()
    assert ledger.calls() == []


def test_a_disk_that_fails_before_anything_began_is_told_and_forgotten(shared: SqliteStore) -> None:
    ledger = Ledger(shared)
    run = ledger.run()
    assert shared._writer is not None
    shared._writer.cursor = Refusing(shared._writer.cursor, "begin immediate")  # type: ignore[assignment]
    with pytest.raises(LedgerUnavailable):
        ledger.admit(run)
    assert ledger.admit(run).verdict == "start"


def test_threads_that_hammer_are_all_answered(shared: SqliteStore) -> None:
    ledger = Ledger(shared)
    runs = [ledger.run(f"run {number}") for number in range(8)]

    def hammer(run: RunRow) -> int:
        mine = Ledger(shared, made=1000 * (1 + runs.index(run)))
        for number in range(25):
            mine.do(run, f"tool {number}")
            assert mine.admit(run, f"tool {number}").verdict == "replay"
        return len(mine(ops.ReadRun("", uid=run.uid)).calls)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(hammer, runs)) == [25] * 8


# ---- interrupts ---------------------------------------------------------------------------


def test_an_interrupt_in_the_middle_writes_nothing_and_the_next_goes_on(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    run = ledger.run()
    first, *others = numbered(ledger, run, 4)

    def interrupt() -> None:
        in_line(shared, 3)()
        raise KeyboardInterrupt

    gate.once(interrupt)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Any] = []

        def when_led() -> None:
            wait_for(lambda: shared._commits._leader is not None)
            waiting.extend(pool.submit(shared.perform, request) for request in others)

        starter = threading.Thread(target=when_led)
        starter.start()
        with pytest.raises(KeyboardInterrupt):
            shared.perform(first)
        starter.join()
        assert [future.result().verdict for future in waiting] == ["start"] * 3
    assert first.call_id not in {call.id for call in ledger.calls()}
    assert ledger.admit(run, "ship").verdict == "start"


def test_an_interrupt_while_leading_others_tells_them(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    first, *others = numbered(ledger, ledger.run(), 4)

    def later() -> None:
        in_line(shared, 3)()
        gate.once(interrupt)

    def interrupt() -> None:
        raise KeyboardInterrupt

    gate.once(later)
    with ThreadPoolExecutor(3) as pool:
        waiting: list[Any] = []

        def when_led() -> None:
            wait_for(lambda: shared._commits._leader is not None)
            waiting.extend(pool.submit(shared.perform, request) for request in others)

        starter = threading.Thread(target=when_led)
        starter.start()
        with pytest.raises(KeyboardInterrupt):
            shared.perform(first)
        starter.join()
        assert [type(future.exception()) for future in waiting] == [LedgerUnavailable] * 3
    assert ledger.calls() == []


@pytest.mark.skipif(sys.platform == "win32", reason="no signals between threads")
def test_who_is_interrupted_in_line_leaves_it(shared: SqliteStore, gate: Gate) -> None:
    ledger = Ledger(shared)
    first, mine = numbered(ledger, ledger.run(), 2)
    main = threading.get_ident()

    def interrupt_the_other() -> None:
        in_line(shared, 1)()
        signal.pthread_kill(main, signal.SIGINT)
        wait_for(lambda: not shared._commits.queue)

    gate.once(interrupt_the_other)
    with ThreadPoolExecutor(1) as pool:
        leading = pool.submit(shared.perform, first)
        wait_for(lambda: shared._commits._leader is not None)
        with pytest.raises(KeyboardInterrupt):
            shared.perform(mine)
        assert leading.result().verdict == "start"
    assert [call.id for call in ledger.calls()] == [first.call_id]


POINTS_MAX = 400
"""Calls and returns inside of ``GroupCommit`` while one operation is performed: far fewer."""


class Interrupt:
    """Raise a KeyboardInterrupt at one of the places where CPython handles signals: calls, and returns of C functions."""

    def __init__(self, point: int) -> None:
        self.left = point

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename == group_commit.__file__:
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.parametrize("role", ["leads", "leaves the lead to another", "waits"])
def test_an_interrupt_at_any_point_loses_neither_the_lead_nor_an_operation(role: str) -> None:
    """Each point of one ``perform`` in turn: whoever else is there is answered, and so is who comes next."""
    with ThreadPoolExecutor(1) as pool:
        for point in range(1, POINTS_MAX):
            if not is_interrupted(pool, role, point):
                assert point > 3, "the interrupts came inside"
                return
    raise AssertionError("every point was passed")


def is_interrupted(pool: ThreadPoolExecutor, role: str, point: int) -> bool:
    """Perform an operation that is interrupted there, and others; return whether it has so many points."""
    interrupt, returned = Interrupt(point), threading.Event()
    other = threading.Thread(target=lambda: queue.perform(other_op), daemon=True)
    late = threading.Thread(target=lambda: queue.perform(late_op), daemon=True)
    mine, other_op, late_op = (ops.ReadRun(name) for name in ("mine", "other", "late"))

    def alone(op: ops.StoreOp[Any]) -> None:
        if op is mine and role == "leaves the lead to another":
            other.start()
            wait_for(lambda: bool(queue.queue))
            queue.join = lambda batch: None  # type: ignore[method-assign]
        if op is other_op and role == "waits":
            wait_for(lambda: bool(queue.queue) or returned.is_set())

    def flush(batch: list[group_commit.Pending], _: bool) -> None:
        for one in batch:
            one.answer = one.op

    queue = group_commit.GroupCommit(flush, alone, lambda: pool, lambda _: False)
    if role == "waits":
        other.start()
        wait_for(lambda: queue._leader is not None)
    sys.setprofile(interrupt)
    try:
        assert queue.perform(mine) is mine
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        returned.set()
    if other.ident is not None:
        other.join(20.0)
        assert not other.is_alive(), f"interrupted at point {point}, the other waits for ever"
    late.start()
    late.join(20.0)
    assert not late.is_alive(), f"interrupted at point {point}, nobody leads"
    assert (queue._leader, list(queue.queue)) == (None, [])
    return interrupt.left <= 0


@pytest.mark.parametrize("place", ["first", "last"])
def test_an_interrupt_in_a_crowd_that_is_woken_one_by_one_stops_nobody_else(place: str) -> None:
    """Each point of the wait of one of them in turn: the others are answered, and the lead is passed on."""
    with ThreadPoolExecutor(1) as pool:
        for point in range(1, POINTS_MAX):
            if not is_interrupted_in_crowd(pool, place, point):
                assert point > 3, "the interrupts came inside"
                return
    raise AssertionError("every point was passed")


def is_interrupted_in_crowd(pool: ThreadPoolExecutor, place: str, point: int) -> bool:
    """Perform an operation in a crowd and interrupt it there; return whether it has so many points."""
    interrupt, returned, crowd = Interrupt(point), threading.Event(), 2 * group_commit.CROWD_MIN
    first_op, mine, late_op = (ops.ReadRun(name) for name in ("first", "mine", "late"))
    answered: list[Any] = []

    def ask(op: ops.StoreOp[Any]) -> threading.Thread:
        made = threading.Thread(target=lambda: answered.append(queue.perform(op)), daemon=True)
        made.start()
        return made

    def alone(op: ops.StoreOp[Any]) -> None:
        if op is first_op:
            wait_for(lambda: len(queue.queue) > crowd or (returned.is_set() and len(queue.queue) >= crowd))

    def flush(batch: list[group_commit.Pending], _: bool) -> None:
        queue.join(batch)
        for one in batch:
            one.answer = one.op

    queue = group_commit.GroupCommit(flush, alone, lambda: pool, lambda _: False)
    threads = [ask(first_op)]
    wait_for(lambda: queue._leader is not None)

    def others() -> None:
        threads.extend(ask(ops.ReadRun(str(number))) for number in range(crowd))

    def others_behind_mine() -> None:
        wait_for(lambda: bool(queue.queue) or returned.is_set())
        others()

    if place == "last":
        others()
        wait_for(lambda: len(queue.queue) == crowd)
        starting = None
    else:
        starting = threading.Thread(target=others_behind_mine)
        starting.start()
    sys.setprofile(interrupt)
    try:
        assert queue.perform(mine) is mine
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(None)
        returned.set()
    if starting is not None:
        starting.join(20.0)
    threads.append(ask(late_op))
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive(), f"interrupted at point {point}, another waits for ever"
    assert len(answered) == crowd + 2
    assert (queue._leader, list(queue.queue)) == (None, [])
    return interrupt.left <= 0


def test_a_settlement_that_breaks_in_the_middle_of_a_flush_leaves_the_others_and_no_event(tmp_path: Path) -> None:
    gate = Gate()
    with closing(SqliteStore(tmp_path / "ledger.db", "NORMAL", gate)) as store, ThreadPoolExecutor(8) as pool:
        ledger = Ledger(store)
        run = ledger.run()
        calls = [ledger.start(run, f"tool {number}") for number in range(5)]
        settlements = [ledger.settle_op(call) for call in calls]
        for place in (2, 4):  # what cannot be stored: found out after the event was written
            settlements[place].result, settlements[place].proof = object(), "proof"  # type: ignore[assignment]
        asked = ask_together(store, gate, pool, settlements)
        ends = [future.exception() for future in asked]
        assert [type(end) for end in ends] == [type(None), type(None), AssertionError, type(None), AssertionError]
        states = [ledger.look(call).state for call in calls]
        assert states == ["succeeded", "succeeded", "started", "succeeded", "started"]
        audit(ledger)
