"""Steps of many runs in one statement: who sends, who is taken along, and what becomes of those that were not done."""

import asyncio
import ctypes
import linecache
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Final

import pytest

from amends.errors import LedgerUnavailable
from amends.ledger.store import OUTCOME
from amends.stores import batches as module
from amends.stores.batches import (
    BATCH_MAX,
    CROWD_MIN,
    LATE_S,
    SENDERS_MAX,
    SLOW,
    SPLIT_MIN,
    Batches,
    LoopBatches,
    Queued,
)
from tests.stores.many import wait_for

PATIENCE_S = 60


class Op(str):
    """A step that a server does."""

    __slots__ = ("repeated",)

    repeated: bool

    def __new__(cls, name: str) -> "Op":
        made = super().__new__(cls, name)
        made.repeated = False
        return made


def assert_nothing_is_left(batches: Batches) -> None:
    assert (batches._senders, batches._queue.roots, len(batches._queue.steps)) == ({}, set(), 0)


class Server:
    """What the batches are sent to: it holds the first senders back until the test lets them go."""

    def __init__(self, *, held: int = SENDERS_MAX, undone: Sequence[str] = (), breaks: bool = False) -> None:
        self.go = threading.Event()
        self.held, self.undone, self.breaks = held, undone, breaks
        self.mutex = threading.Lock()
        self.alone: list[str] = []
        self.batches: list[list[str]] = []
        self.out: list[str] = []
        """The steps that are on their way."""
        self.overlaps: list[str] = []

    def perform_alone(self, op: str) -> str:
        with self.mutex:
            self.alone.append(op)
            is_held = len(self.alone) <= self.held
        if is_held:
            assert self.go.wait(PATIENCE_S)
        return f"alone {op}"

    def together(self, ops: Sequence[str]) -> list[str | None]:
        with self.mutex:
            self.batches.append([*ops])
        if self.breaks:
            raise ValueError("the statement cannot be sent")
        return [None if op in self.undone else f"together {op}" for op in ops]


def queued(batches: Batches, count: int) -> Callable[[], bool]:
    return lambda: len(batches._queue.steps) == count


def send(pool: ThreadPoolExecutor, batches: Batches, server: Server, op: str, root: str = "") -> Future[Any]:
    return pool.submit(batches.perform, Op(op), root or f"run of {op}", server.perform_alone)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(80) as made:
        yield made


def filled(
    pool: ThreadPoolExecutor, server: Server, ops: Sequence[str], roots: Sequence[str] = ()
) -> list[Future[Any]]:
    """Let every sender be out, and queue these."""
    batches = Batches(server.together, late_s=PATIENCE_S)
    first = [send(pool, batches, server, f"first {number}") for number in range(SENDERS_MAX)]
    wait_for(lambda: len(server.alone) == SENDERS_MAX)
    rest: list[Future[Any]] = []
    for place, op in enumerate(ops):
        rest.append(send(pool, batches, server, op, roots[place] if roots else ""))
        wait_for(queued(batches, place + 1))
    server.go.set()
    answers = [future.result(PATIENCE_S) for future in first]
    assert answers == [f"alone first {number}" for number in range(SENDERS_MAX)]
    return rest


def test_who_finds_a_free_sender_sends_alone() -> None:
    server = Server(held=0)
    batches = Batches(server.together)
    assert [batches.perform(op, "run", server.perform_alone) for op in "abc"] == ["alone a", "alone b", "alone c"]
    assert server.batches == []


def test_those_who_come_while_all_senders_are_out_go_together(pool: ThreadPoolExecutor) -> None:
    server = Server()
    rest = filled(pool, server, [f"op {number}" for number in range(5)])
    answers = {future.result(PATIENCE_S) for future in rest}
    sent = [op for batch in server.batches for op in batch]
    together = {f"together {op}" for op in sent}
    alone = {f"alone {op}" for op in server.alone if op.startswith("op")}
    assert answers == together | alone
    assert len(answers) == 5
    assert max(map(len, server.batches)) >= 3, "one of the two senders may take one of them alone"


def test_a_batch_has_one_step_of_each_run(pool: ThreadPoolExecutor) -> None:
    server = Server()
    rest = filled(pool, server, ["a1", "b1", "a2", "b2", "a3"], ["a", "b", "a", "b", "a"])
    for future in rest:
        assert future.result(PATIENCE_S)
    for batch in server.batches:
        assert len({op[0] for op in batch}) == len(batch)
    done = [op for batch in server.batches for op in batch] + [op for op in server.alone if not op.startswith("first")]
    assert sorted(done) == ["a1", "a2", "a3", "b1", "b2"], "each is done once"


def test_a_batch_has_an_end(pool: ThreadPoolExecutor) -> None:
    server = Server()
    rest = filled(pool, server, [f"op {number}" for number in range(BATCH_MAX + 6)])
    assert len({future.result(PATIENCE_S) for future in rest}) == BATCH_MAX + 6
    assert max(map(len, server.batches)) <= BATCH_MAX


def test_a_step_that_was_not_done_is_done_alone(pool: ThreadPoolExecutor) -> None:
    server = Server(undone=["op 1", "op 3"])
    answers = [future.result(PATIENCE_S) for future in filled(pool, server, [f"op {number}" for number in range(5)])]
    assert (answers[1], answers[3]) == ("alone op 1", "alone op 3")


def test_every_step_of_a_batch_that_failed_is_done_alone(pool: ThreadPoolExecutor) -> None:
    """Whoever sent it, too: the fault may be another's, who meets it again when it is alone."""
    server = Server(breaks=True)
    answers = [future.result(PATIENCE_S) for future in filled(pool, server, [f"op {number}" for number in range(5)])]
    assert answers == [f"alone op {number}" for number in range(5)]
    assert server.batches != []


def test_a_step_that_fails_alone_fails_its_caller_and_frees_its_sender(pool: ThreadPoolExecutor) -> None:
    def breaks(op: str) -> str:
        raise ValueError(op)

    batches = Batches(lambda ops: [None] * len(ops))
    for number in range(2 * SENDERS_MAX):
        with pytest.raises(ValueError, match=str(number)):
            batches.perform(str(number), "run", breaks)
    assert (batches._senders, batches._queue.roots) == ({}, set())


def test_many_threads_leave_nothing_behind(pool: ThreadPoolExecutor) -> None:
    server = Server(held=0)
    batches = Batches(server.together)
    asked = [(f"{root} {number}", root) for number in range(40) for root in "abcdefgh"]
    answers = [send(pool, batches, server, op, root) for op, root in asked]
    assert {future.result(PATIENCE_S).partition(" ")[2] for future in answers} == {op for op, _ in asked}
    assert_nothing_is_left(batches)


def test_callers_that_wait_for_their_runs_do_not_stop_the_others(pool: ThreadPoolExecutor) -> None:
    """Every sender waits for a run that somebody has locked, and one more step of such a run is queued."""
    server = Server()
    batches = Batches(server.together)
    locked = [send(pool, batches, server, f"locked {number}", f"run {number}") for number in range(SENDERS_MAX)]
    wait_for(lambda: len(server.alone) == SENDERS_MAX)
    locked.append(send(pool, batches, server, "locked too", "run 0"))
    wait_for(queued(batches, 1))
    for number in range(5):
        others = [send(pool, batches, server, f"{run} {number}", run) for run in "abcd"]
        assert len({future.result(PATIENCE_S) for future in others}) == 4
    begun = time.monotonic()
    for number in range(100):
        batches.perform(Op(f"free {number}"), "free", server.perform_alone)
    assert time.monotonic() - begun < 100 * LATE_S, "once they are known to be late, nobody waits any more"
    assert not any(future.done() for future in locked)
    server.go.set()
    assert len({future.result(PATIENCE_S) for future in locked}) == SENDERS_MAX + 1
    assert_nothing_is_left(batches)


def test_an_interrupted_sender_leaves_steps_that_look_whether_they_were_done(pool: ThreadPoolExecutor) -> None:
    server = Server()
    sent: list[Any] = []

    def together(ops: Sequence[Any]) -> list[Any]:
        sent.extend(ops)
        raise KeyboardInterrupt  # it is committed, and its answer is on its way

    server.together = together  # type: ignore[method-assign]
    ended = [future.exception(PATIENCE_S) for future in filled(pool, server, [f"op {number}" for number in range(5)])]
    assert {type(error) for error in ended} == {KeyboardInterrupt, type(None)}
    assert len(sent) > 2
    assert all(op.repeated for op in sent)
    others = {op for op in sent if not isinstance(ended[int(op[-1])], KeyboardInterrupt)}
    assert others <= set(server.alone), "each is done by its own caller"


HELD: Final = ("try:", "finally:", "with self._mutex")
"""Lines that do nothing, and the end of a block that has a lock: Python takes no interrupt there."""


def interrupt_at(moment: int) -> Callable[..., Any]:
    """Return a trace function that interrupts the thread at this line, counted, of the module."""
    left = moment

    def lines(frame: Any, event: str, _arg: Any) -> Any:
        nonlocal left
        if event == "line" and linecache.getline(module.__file__, frame.f_lineno).strip().startswith(HELD) is False:
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return lines

    return lambda frame, _event, _arg: lines if frame.f_code.co_filename == module.__file__ else None


def interrupted(moment: int, work: Callable[[], Any]) -> bool:
    """Do the work in this thread, interrupted at this line; return whether it came to that."""
    before = sys.gettrace()
    sys.settrace(interrupt_at(moment))
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_an_interrupt_at_any_line_loses_no_sender() -> None:
    moment = 1
    server = Server(held=0)
    batches = Batches(server.together)
    while interrupted(moment, lambda: batches.perform(Op("one"), "run", server.perform_alone)):
        assert_nothing_is_left(batches)
        moment += 1
        assert moment < 1000
    assert moment > 10


def test_an_interrupt_at_any_line_of_a_queued_caller_loses_nothing(pool: ThreadPoolExecutor) -> None:
    """Whether it waits, has just become a sender, or has taken another caller along."""

    def play(moment: int) -> tuple[bool, bool]:
        server = Server(held=0)
        batches = Batches(server.together, late_s=0.5)
        out = [Queued(Op(name), name) for name in ("first", "second")]
        for step in out:
            batches._begin(step)
        is_gone = threading.Event()

        def let_go() -> Future[Any]:
            wait_for(lambda: bool(batches._queue.steps) or is_gone.is_set())
            other = send(pool, batches, server, "other")
            wait_for(lambda: len(batches._queue.steps) == 2 or is_gone.is_set())
            batches._end(out[0])
            return other

        going = pool.submit(let_go)
        is_interrupted = interrupted(moment, lambda: batches.perform(Op("one"), "one", server.perform_alone))
        is_gone.set()
        other = going.result(PATIENCE_S)
        batches._end(out[1])
        assert other.result(PATIENCE_S) in ("alone other", "together other")
        assert_nothing_is_left(batches)
        return is_interrupted, bool(server.batches)

    ends = [play(1)]
    while ends[-1][0]:
        ends.append(play(len(ends) + 1))
        assert len(ends) < 1000
    assert sum(was_sent for _, was_sent in ends) > 3


def test_an_interrupt_at_any_line_of_who_was_taken_along_stops_nobody_behind_it(pool: ThreadPoolExecutor) -> None:
    """Those of a batch are woken one by one, and each wakes the next: also if it was interrupted."""

    def play(moment: int) -> bool:
        server = Server(held=0)
        batches = Batches(server.together, late_s=0.5)
        out = [Queued(Op(name), name) for name in ("first", "second")]
        for step in out:
            batches._begin(step)
        sender = send(pool, batches, server, "sender")
        wait_for(queued(batches, 1))
        is_gone = threading.Event()

        def let_go() -> list[Future[Any]]:
            wait_for(lambda: len(batches._queue.steps) == 2 or is_gone.is_set())
            behind = [send(pool, batches, server, name) for name in ("next", "last")]
            wait_for(lambda: len(batches._queue.steps) == 4 or is_gone.is_set())
            batches._end(out[0])
            return behind

        going = pool.submit(let_go)
        is_interrupted = interrupted(moment, lambda: batches.perform(Op("one"), "one", server.perform_alone))
        is_gone.set()
        behind = going.result(PATIENCE_S)
        batches._end(out[1])
        for future in (sender, *behind):
            assert future.result(PATIENCE_S).split()[0] in ("alone", "together")
        assert_nothing_is_left(batches)
        return is_interrupted

    moment = 1
    while play(moment):
        moment += 1
        assert moment < 1000
    assert moment > 10


def test_a_run_whose_caller_was_interrupted_in_a_batch_takes_its_next_step(pool: ThreadPoolExecutor) -> None:
    is_out, go, caller = threading.Event(), threading.Event(), list[int]()

    def together(ops: Sequence[str]) -> list[str]:
        is_out.set()
        assert go.wait(PATIENCE_S)
        return [f"together {op}" for op in ops]

    def perform(op: str) -> Any:
        caller.append(threading.get_ident())
        return batches.perform(Op(op), "its run", lambda op: f"alone {op}")

    batches, server = Batches(together, late_s=0.05), Server(held=0)
    first = begun(batches, SENDERS_MAX)
    sender = send(pool, batches, server, "sender")
    wait_for(queued(batches, 1))
    taken = pool.submit(perform, "taken")
    wait_for(queued(batches, 2))
    batches._end(first[0])
    assert is_out.wait(PATIENCE_S)
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    assert raise_in(ctypes.c_ulong(caller[0]), ctypes.py_object(KeyboardInterrupt)) == 1
    with pytest.raises(KeyboardInterrupt):
        taken.result(PATIENCE_S)
    go.set()
    assert sender.result(PATIENCE_S) == "together sender"
    for step in first[1:]:
        batches._end(step)
    assert_nothing_is_left(batches)
    assert pool.submit(perform, "next").result(PATIENCE_S) == "alone next"


# ---- on an event loop ---------------------------------------------------------------------


def begun(batches: Batches, count: int) -> list[Queued]:
    """Begin steps of so many runs, as their callers do."""
    steps = [Queued(Op(f"op {number}"), f"run {number}") for number in range(count)]
    for step in steps:
        batches._begin(step)
    return steps


def test_after_a_batch_of_many_there_is_one_sender() -> None:
    batches = Batches(lambda ops: ops)
    assert sum(step.sends for step in begun(batches, 5)) == SENDERS_MAX
    crowd = Batches(lambda ops: ops)
    crowd._size = CROWD_MIN
    assert [step.sends for step in begun(crowd, 5)] == [True, False, False, False, False]


def test_a_sender_takes_half_of_a_crowd_along() -> None:
    batches = Batches(lambda ops: ops)
    steps = begun(batches, SENDERS_MAX + 40)
    batches._end(steps[0])
    sender = steps[SENDERS_MAX]
    assert sender.sends
    batches._take_others(sender)
    assert 18 <= len(sender.others) <= 22, "the others are the next batch, which is filled while this one is out"
    assert len(batches._queue.steps) == 39 - len(sender.others)


def test_a_slow_batch_keeps_its_place_longer_than_who_waits_for_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    batches = Batches(lambda ops: ops)
    alone, second, third, *_ = begun(batches, SENDERS_MAX + 6)
    batches._end(second)
    batches._take_others(third)
    assert third.others
    now[0] += 2 * LATE_S
    batches._pass_by_the_late()
    assert alone not in batches._senders
    assert third in batches._senders
    now[0] += SLOW * LATE_S
    batches._pass_by_the_late()
    assert third not in batches._senders


def test_a_sender_waits_a_moment_for_a_crowd_that_comes_back(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(held=0)
    batches = Batches(server.together, late_s=PATIENCE_S)
    batches._size = CROWD_MIN
    back: list[Future[Any]] = []

    def lingers(_: float) -> None:
        back.append(send(pool, batches, server, "other"))
        wait_for(queued(batches, 1))

    monkeypatch.setattr(module, "sleep", lingers)
    assert batches.perform(Op("one"), "run", server.perform_alone) == "together one"
    assert back[0].result(PATIENCE_S) == "together other"
    assert server.batches == [["one", "other"]]
    assert batches.perform(Op("two"), "run", server.perform_alone) == "alone two"
    assert len(back) == 1, "there is no crowd any more"
    assert_nothing_is_left(batches)


def test_an_interrupt_of_a_sender_that_waits_for_a_crowd_loses_nobody(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(moment: int) -> bool:
        server = Server(held=0)
        batches = Batches(server.together, late_s=0.5)
        batches._size = CROWD_MIN
        back: list[Future[Any]] = []

        def lingers(_: float) -> None:
            if not back:
                back.append(send(pool, batches, server, "other"))
                wait_for(queued(batches, 1))

        monkeypatch.setattr(module, "sleep", lingers)
        came = interrupted(moment, lambda: batches.perform(Op("one"), "run", server.perform_alone))
        for other in back:
            assert other.result(PATIENCE_S) in ("together other", "alone other")
        assert_nothing_is_left(batches)
        return came

    moment = 1
    while play(moment):
        moment += 1
        assert moment < 1000
    assert moment > 20


class LoopServer:
    """The same, awaited."""

    def __init__(self, *, undone: Sequence[str] = (), breaks: bool = False) -> None:
        self.go = asyncio.Event()
        self.undone, self.breaks = undone, breaks
        self.alone: list[str] = []
        self.batches: list[list[str]] = []
        self.most = self.out = 0

    async def perform_alone(self, op: str) -> str:
        self.alone.append(op)
        await asyncio.sleep(0)
        return f"alone {op}"

    async def together(self, ops: Sequence[str]) -> list[str | None]:
        self.batches.append([*ops])
        self.out += 1
        self.most = max(self.most, self.out)
        await self.go.wait()
        self.out -= 1
        if self.breaks:
            raise ValueError("the statement cannot be sent")
        return [None if op in self.undone else f"together {op}" for op in ops]


def on_loop(play: Callable[[LoopServer, LoopBatches], Any], **given: Any) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        unhandled: list[Any] = []
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        server = LoopServer(**given)
        batches = LoopBatches(loop, server.together)
        await asyncio.wait_for(play(server, batches), PATIENCE_S)
        await asyncio.sleep(0)
        assert (batches._out, batches._queue.roots, len(batches._queue.steps)) == ({}, set(), 0)
        assert unhandled == []

    asyncio.run(main())


def test_the_steps_of_one_turn_of_a_loop_go_together() -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        server.go.set()
        answers = await asyncio.gather(
            *(batches.perform(Op(f"op {n}"), f"run {n}", server.perform_alone) for n in range(5))
        )
        assert answers == [f"together op {n}" for n in range(5)]
        assert len(server.batches) == 1
        assert await batches.perform("one", "run", server.perform_alone) == "alone one"

    on_loop(play)


def test_on_a_loop_a_lone_step_goes_at_once_and_a_crowd_gathers() -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        async def one() -> str:
            await server.go.wait()
            return "first"

        assert batches.may_go("run 0")
        first = asyncio.create_task(batches.alone("run 0", one()))
        await asyncio.sleep(0)
        assert not batches.may_go("run 1"), "else a crowd that begins would never gather"
        asked = [batches.perform(Op(f"op {n}"), f"run {n}", server.perform_alone) for n in range(4)]
        others = [asyncio.create_task(one) for one in asked]
        while not server.batches:
            await asyncio.sleep(0)
        assert server.batches == [["op 1", "op 2", "op 3"]], "the run of the first has a step on its way"
        server.go.set()
        assert await first == "first"
        assert await asyncio.gather(*others) == ["alone op 0", *(f"together op {n}" for n in range(1, 4))]
        assert batches.may_go("run 0"), "the last turn had one step"
        await asyncio.gather(*(batches.perform(Op(f"op {n}"), f"run {n}", server.perform_alone) for n in range(4)))
        assert not batches.may_go("run 0")
        assert await batches.perform(Op("last"), "run 0", server.perform_alone) == "alone last"
        assert batches.may_go("run 0")

    on_loop(play)


def test_many_steps_of_one_turn_of_a_loop_are_two_batches() -> None:
    """While the server does one, the loop goes on with the callers of the other."""

    async def play(server: LoopServer, batches: LoopBatches) -> None:
        asked = [batches.perform(Op(f"op {n}"), f"run {n}", server.perform_alone) for n in range(SPLIT_MIN)]
        tasks = [asyncio.create_task(one) for one in asked]
        while server.out < 2:
            await asyncio.sleep(0)
        assert [len(batch) for batch in server.batches] == [SPLIT_MIN // 2] * 2
        server.go.set()
        assert await asyncio.gather(*tasks) == [f"together op {n}" for n in range(SPLIT_MIN)]

    on_loop(play)


def test_on_a_loop_too_a_batch_has_one_step_of_each_run_and_an_end() -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        asked = [(f"{root} {n}", f"run {root}") for n in range(3) for root in range(BATCH_MAX + 5)]
        tasks = [asyncio.create_task(batches.perform(op, root, server.perform_alone)) for op, root in asked]
        for _ in range(5):
            await asyncio.sleep(0)
        assert server.most == SENDERS_MAX
        server.go.set()
        answers = await asyncio.gather(*tasks)
        assert [answer.partition(" ")[2] for answer in answers] == [op for op, _ in asked]
        for batch in server.batches:
            assert len({op.partition(" ")[0] for op in batch}) == len(batch) <= BATCH_MAX
        order = [op for batch in server.batches for op in batch]
        for root in range(BATCH_MAX + 5):
            mine = [op for op in order if op.startswith(f"{root} ")]
            assert mine == sorted(mine), "the steps of a run stay in their order"

    on_loop(play)


@pytest.mark.parametrize("breaks", [False, True])
def test_on_a_loop_too_what_was_not_done_is_done_alone(breaks: bool) -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        server.go.set()
        answers = await asyncio.gather(
            *(batches.perform(Op(f"op {n}"), f"run {n}", server.perform_alone) for n in range(3))
        )
        alone = range(3) if breaks else (1,)
        assert answers == [f"{'alone' if n in alone else 'together'} op {n}" for n in range(3)]

    on_loop(play, undone=["op 1"], breaks=breaks)


@pytest.mark.parametrize("undone", [(), ("op 1",)])
def test_a_cancellation_is_raised_when_the_step_is_over_and_has_its_answer(undone: tuple[str, ...]) -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        tasks = [
            asyncio.create_task(batches.perform(Op(f"op {n}"), f"run {n}", server.perform_alone)) for n in range(3)
        ]
        for _ in range(3):
            await asyncio.sleep(0)
            tasks[1].cancel()
        await asyncio.sleep(0)
        assert not tasks[1].done()
        server.go.set()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await tasks[1]
        outcome = getattr(cancelled.value, OUTCOME)
        assert outcome() == ("alone op 1" if undone else "together op 1")
        assert list(await asyncio.gather(tasks[0], tasks[2])) == ["together op 0", "together op 2"]

    on_loop(play, undone=undone)


CANCELLED: Final[dict[int, tuple[int, list[bool], list[str]]]] = {
    1: (0, [False] * 3, ["together"] * 3),  # the callers have begun, their turn of the loop is not over
    2: (0, [False] * 3, ["alone"] * 3),  # the task of the batch was made, and never begins
    3: (1, [True] * 3, ["alone"] * 3),  # the batch was sent: perhaps it is done
}


@pytest.mark.parametrize("turns", CANCELLED)
def test_who_cancels_all_tasks_of_the_loop_stops_nobody_for_ever(turns: int) -> None:
    """As a handler of a signal does it: even the task of a batch is cancelled."""

    async def play(server: LoopServer, batches: LoopBatches) -> None:
        ops = [Op(f"op {n}") for n in range(3)]
        before = asyncio.all_tasks()
        tasks = [asyncio.create_task(batches.perform(op, f"run {op}", server.perform_alone)) for op in ops]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before:
            task.cancel()
        sent = len(server.batches)
        await asyncio.sleep(0)
        server.go.set()
        done, _ = await asyncio.wait(tasks, timeout=PATIENCE_S)
        assert len(done) == 3
        ends = []
        for task in tasks:
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            ends.append(getattr(cancelled.value, OUTCOME)().partition(" ")[0])
        assert (sent, [op.repeated for op in ops], ends) == CANCELLED[turns]

    on_loop(play)


def test_a_cancellation_is_not_lost_when_the_step_fails_alone() -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        async def breaks(op: str) -> str:
            raise LedgerUnavailable(op)

        task = asyncio.create_task(batches.perform(Op("one"), "run", breaks))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        with pytest.raises(LedgerUnavailable, match="one"):
            getattr(cancelled.value, OUTCOME)()

    on_loop(play)


@pytest.mark.parametrize("begun", ["crowd", "lone"])
def test_an_interrupt_at_any_line_on_a_loop_loses_no_step(begun: str) -> None:
    """Whoever is cancelled then is told, as ``asyncio.run`` does it; others go on, and no step is done twice."""
    moment = 1
    while is_interrupted_on_loop(begun, moment):
        moment += 1
        assert moment < 1000
    assert moment > 20


def is_interrupted_on_loop(begun: str, moment: int) -> bool:
    """Perform steps on a loop that is interrupted there; return whether it has so many lines."""
    done, tasks, loop = list[str](), list[asyncio.Task[Any]](), asyncio.new_event_loop()

    async def together(sent: Sequence[Any]) -> list[str]:
        await asyncio.sleep(0)
        done.extend(sent)
        return [f"together {op}" for op in sent]

    async def alone(op: Any) -> str:
        if not op.repeated:
            done.append(op)
        return f"alone {op}"

    async def lone(op: Op) -> str:
        if batches.may_go("run lone"):
            with closing(alone(op)) as step:  # an interrupt may come before it is awaited
                return await batches.alone("run lone", step)
        answer: str = await batches.perform(op, "run lone", alone)
        return answer

    async def ask() -> None:
        if begun == "lone":
            tasks.append(asyncio.create_task(lone(Op("lone"))))
        tasks.extend(asyncio.create_task(batches.perform(Op(f"op {n}"), f"run {n}", alone)) for n in range(3))
        await asyncio.wait(tasks)

    async def after() -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            _, waiting = await asyncio.wait(tasks, timeout=PATIENCE_S)
            assert not waiting, f"interrupted at line {moment}, a step waits for ever"
        for root in ("lone", "0", "1", "2"):  # also those runs that had a step on its way
            await asyncio.wait_for(batches.perform(Op(f"late {root}"), f"run {root}", alone), PATIENCE_S)
        await asyncio.sleep(0)
        assert (batches._out, batches._queue.roots, len(batches._queue.steps)) == ({}, set(), 0)

    batches = LoopBatches(loop, together)
    loop.set_exception_handler(lambda *_: None)  # nobody asks the tasks that were interrupted
    with closing(loop):
        is_interrupted = interrupted(moment, lambda: loop.run_until_complete(ask()))
        loop.run_until_complete(after())
    assert len(set(done)) == len(done), f"interrupted at line {moment}, a step was done twice"
    return is_interrupted
