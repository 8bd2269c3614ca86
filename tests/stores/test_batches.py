"""Steps of many runs in one statement: who sends, who is taken along, and what becomes of those that were not done."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from amends.ledger.store import OUTCOME
from amends.stores.batches import BATCH_MAX, SENDERS_MAX, Batches, LoopBatches
from tests.stores.many import wait_for

PATIENCE_S = 60


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
    return pool.submit(batches.perform, op, root or f"run of {op}", server.perform_alone)


@pytest.fixture
def pool() -> Any:
    with ThreadPoolExecutor(80) as made:
        yield made


def filled(
    pool: ThreadPoolExecutor, server: Server, ops: Sequence[str], roots: Sequence[str] = ()
) -> list[Future[Any]]:
    """Let every sender be out, and queue these."""
    batches = Batches(server.together)
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
    assert (batches._queue.out, batches._queue.roots) == (0, set())


def test_many_threads_leave_nothing_behind(pool: ThreadPoolExecutor) -> None:
    server = Server(held=0)
    batches = Batches(server.together)
    asked = [(f"{root} {number}", root) for number in range(40) for root in "abcdefgh"]
    answers = [send(pool, batches, server, op, root) for op, root in asked]
    assert {future.result(PATIENCE_S).partition(" ")[2] for future in answers} == {op for op, _ in asked}
    assert (batches._queue.out, batches._queue.roots, len(batches._queue.steps)) == (0, set(), 0)


# ---- on an event loop ---------------------------------------------------------------------


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
        assert (batches._queue.out, batches._queue.roots, len(batches._queue.steps)) == (0, set(), 0)
        assert unhandled == []

    asyncio.run(main())


def test_the_steps_of_one_turn_of_a_loop_go_together() -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        server.go.set()
        answers = await asyncio.gather(
            *(batches.perform(f"op {n}", f"run {n}", server.perform_alone) for n in range(5))
        )
        assert answers == [f"together op {n}" for n in range(5)]
        assert len(server.batches) == 1
        assert await batches.perform("one", "run", server.perform_alone) == "alone one"

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
            *(batches.perform(f"op {n}", f"run {n}", server.perform_alone) for n in range(3))
        )
        alone = range(3) if breaks else (1,)
        assert answers == [f"{'alone' if n in alone else 'together'} op {n}" for n in range(3)]

    on_loop(play, undone=["op 1"], breaks=breaks)


@pytest.mark.parametrize("undone", [(), ("op 1",)])
def test_a_cancellation_is_raised_when_the_step_is_over_and_has_its_answer(undone: tuple[str, ...]) -> None:
    async def play(server: LoopServer, batches: LoopBatches) -> None:
        tasks = [asyncio.create_task(batches.perform(f"op {n}", f"run {n}", server.perform_alone)) for n in range(3)]
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
