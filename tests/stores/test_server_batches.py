"""Steps of many runs in one transaction of a server: done as if each were alone, or not at all."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from amends.encoding.ids import new_number, number_at
from amends.ledger import operations as ops
from amends.ledger.plain import AdmitPlain, SettledPlain, SettlePlain, Started
from amends.ledger.rows import IdTaken, RunRow
from amends.ledger.store import OUTCOME
from amends.stores.mysql.store import MysqlStore
from amends.stores.postgres.quick import WAIT_S
from amends.stores.postgres.store import PostgresStore
from amends.stores.sql import SKEW_S
from amends.testing.conformance.ledger import Clock, Ledger, audit
from tests.servers.databases import connect, execute

RUNS = 6


class Wall(Clock):
    """The clock of this machine, which is the server's."""

    now = property(lambda self: time.time(), lambda self, value: None)  # type: ignore[assignment]


STORES: dict[str, Any] = {"postgres_url": PostgresStore, "mysql_url": MysqlStore}


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest) -> tuple[Any, str]:
    """The store of a server, and the URL of an empty database."""
    return STORES[request.param], request.getfixturevalue(request.param)


@pytest.fixture
def ledger(server: tuple[Any, str]) -> Iterator[Ledger]:
    clock = Clock()
    make, url = server
    with closing(make(url, clock=clock)) as store:
        store.open(create=True)
        made = Ledger(store, clock=clock)
        yield made
        audit(made)


@pytest.fixture
def runs(ledger: Ledger) -> list[RunRow]:
    """Open runs; the tool is known."""
    opened = [ledger.run(f"run {number}") for number in range(RUNS)]
    ledger.start_plain(opened[0], args="[0]")
    ledger.start_plain(opened[0], args="[00]")
    return opened


def together(ledger: Ledger, asked: list[Any]) -> list[Any]:
    store: Any = ledger.store
    for op in asked:  # a batch knows only tools that were seen
        store._plain.tools.update({op.tool: 1} if not isinstance(op, SettlePlain) else {})
    return list(store._together(asked))


def test_a_batch_does_the_steps_of_many_runs(ledger: Ledger, runs: list[RunRow]) -> None:
    started = together(ledger, [ledger.plain_op(run, args="[1]", call_ref="r\N{SNOWMAN}") for run in runs])
    assert [type(one) for one in started] == [Started] * RUNS
    assert [ledger.look(one.row) for one in started] == [one.row for one in started]
    mixed: list[Any] = [SettlePlain(one, '"\N{SNOWMAN} \\u0000"') for one in started[:3]]
    mixed += [ledger.plain_op(run, args="[2]") for run in runs[3:]]
    answers = together(ledger, mixed)
    assert [type(one) for one in answers] == [SettledPlain] * 3 + [Started] * 3
    assert [ledger.look(one.row) for one in answers] == [one.row for one in answers]


def test_steps_that_are_not_plain_are_left_and_the_others_are_done(ledger: Ledger, runs: list[RunRow]) -> None:
    started = together(ledger, [ledger.plain_op(run, args="[1]") for run in runs])
    ledger(ops.NoteEvidence(started[0].row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    ledger(ops.BeginRollback(runs[2].uid, "ann", "no", True))
    asked: list[Any] = [
        SettlePlain(started[0], '"ok"'),  # something was learned
        ledger.plain_op(runs[1], args="[1]"),  # the key exists
        ledger.plain_op(runs[2], args="[2]"),  # the run goes back
        ledger.plain_op(runs[3], args="[2]", epoch=7),  # another epoch
        SettlePlain(started[4], '"ok"'),
        ledger.plain_op(runs[5], args="[2]"),
    ]
    before = ledger.events()
    answers = together(ledger, asked)
    assert [type(one) for one in answers] == [type(None)] * 4 + [SettledPlain, Started]
    assert len(ledger.events()) == len(before) + 2


@pytest.mark.parametrize("args", ['"\ud800"', '"\x00"'])
def test_a_text_that_cannot_be_sent_is_the_trouble_of_its_own_caller(
    ledger: Ledger, runs: list[RunRow], args: str
) -> None:
    asked = [ledger.plain_op(run, args="[1]") for run in runs]
    asked[2].args = args

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(ledger.store.perform_async, asked), return_exceptions=True)

    together(ledger, asked[:1])
    answers = asyncio.run(all_at_once())
    assert not any(isinstance(one, BaseException) for place, one in enumerate(answers) if place != 2), answers
    assert len(ledger.calls()) in (RUNS + 1, RUNS + 2)


@pytest.mark.parametrize("colour", ["threads", "loop"])
def test_an_id_that_is_taken_fails_no_other_step_of_its_batch(ledger: Ledger, runs: list[RunRow], colour: str) -> None:
    [taken] = together(ledger, [ledger.plain_op(runs[0], args="[9]")])

    def ask(args: str) -> list[AdmitPlain]:
        made = [ledger.plain_op(run, args=args) for run in runs]
        made[2].number = taken.op.number
        return made

    assert together(ledger, ask("[1]")) == [None] * RUNS, "one transaction does all of them or none"
    asked = ask("[2]")

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(*map(ledger.store.perform_async, asked), return_exceptions=True)

    def alone(op: Any) -> Any:
        try:
            return ledger.store.perform(op)
        except AssertionError as error:
            return error

    if colour == "loop":
        answers = asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(RUNS) as threads:
            answers = list(threads.map(alone, asked))
    assert [type(one) for one in answers] == [IdTaken if place == 2 else Started for place in range(RUNS)]
    assert not asked[2].repeated, "it is known that nothing was written"
    asked[2].number = ledger.new_number()
    assert isinstance(ledger.store.perform(asked[2]), Started)


@pytest.mark.parametrize("colour", ["threads", "loop"])
def test_many_callers_come_together(ledger: Ledger, runs: list[RunRow], server: tuple[Any, str], colour: str) -> None:
    store: Any = ledger.store
    sizes: list[int] = []
    batched = store._plain.together

    def counted(asked: Any, *given: Any) -> Any:
        sizes.append(len(asked))
        return batched(asked, *given)

    store._plain.together = counted
    asked = [[ledger.plain_op(run, args=f"[{number}]") for number in range(10, 20)] for run in runs]

    def live(mine: list[Any]) -> None:
        for op in mine:
            store.perform(SettlePlain(store.perform(op), '"ok"'))

    async def live_async(mine: list[Any]) -> None:
        for op in mine:
            await store.perform_async(SettlePlain(await store.perform_async(op), '"ok"'))

    async def all_at_once() -> None:
        await asyncio.gather(*map(live_async, asked))

    if colour == "loop":
        asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(RUNS) as pool:
            assert list(pool.map(live, asked)) == [None] * RUNS
    assert max(sizes) > 1
    assert execute(server[1], ["select count(*) from amends_call where state = 'succeeded'"]) == [(10 * RUNS,)]


@contextmanager
def locked(url: str, run: RunRow) -> Iterator[None]:
    """Keep a run locked, as a joined transaction does."""
    with closing(connect(url)) as connection:
        cursor = connection.cursor()
        cursor.execute("begin")
        cursor.execute("select 1 from amends_run where uid = %s for update", (run.uid,))
        yield
        cursor.execute("rollback")


def test_a_batch_waits_for_nobody(ledger: Ledger, runs: list[RunRow], server: tuple[Any, str]) -> None:
    asked: list[Any] = [ledger.plain_op(run, args="[1]") for run in runs]
    with locked(server[1], runs[2]):
        begun = time.monotonic()
        started = together(ledger, asked)
        assert [type(one) for one in started] == [Started] * 2 + [type(None)] + [Started] * 3
        settled = together(ledger, [SettlePlain(one, '"ok"') for one in started if one is not None])
        assert time.monotonic() - begun < 4.0
    assert [type(one) for one in settled] == [SettledPlain] * 5
    assert isinstance(ledger.store.perform(asked[2]), Started)


def test_runs_that_are_locked_do_not_stop_the_others(
    ledger: Ledger, runs: list[RunRow], server: tuple[Any, str]
) -> None:
    """Two callers wait for locked runs, each alone; all others go on."""
    for run in runs:
        ledger(ledger.plain_op(run, args="[1]"))
    asked = {run.id: [ledger.plain_op(run, args=f"[{n}]") for n in range(10, 15)] for run in runs}

    def live(mine: list[Any]) -> list[Any]:
        return [ledger.store.perform(op) for op in mine]

    with ThreadPoolExecutor(RUNS) as pool:
        with locked(server[1], runs[0]), locked(server[1], runs[1]):
            waiting = [pool.submit(live, asked[run.id]) for run in runs[:2]]
            going = [pool.submit(live, asked[run.id]) for run in runs[2:]]
            begun = time.monotonic()
            assert [type(one) for future in going for one in future.result(60)] == [Started] * 20
            assert time.monotonic() - begun < 4.0
            assert not any(future.done() for future in waiting)
        assert [type(one) for future in waiting for one in future.result(60)] == [Started] * 10


@pytest.mark.parametrize("settles", [False, True])
def test_steps_of_a_batch_whose_task_was_cancelled_give_their_first_answers(
    ledger: Ledger, runs: list[RunRow], settles: bool
) -> None:
    """The batch is committed, and its answer on its way, when somebody cancels all tasks of the loop."""
    store: Any = ledger.store
    asked: list[Any] = [ledger.plain_op(run, args="[1]") for run in runs]
    if settles:
        asked = [SettlePlain(one, '"ok"') for one in together(ledger, asked)]
    else:
        store._plain.tools.update({op.tool: 1 for op in asked})

    async def main() -> list[Any]:
        batches = store._loops_batches.here() if isinstance(store, PostgresStore) else store._loops.here()
        real, is_done = batches._together, asyncio.Event()
        batches._ready = RUNS  # as in a crowd: else the first would go at once

        async def slow(ops: Any) -> Any:
            answers = await real(ops)
            assert None not in answers
            is_done.set()
            await asyncio.sleep(60)
            return answers

        batches._together = slow
        tasks = [asyncio.create_task(store.perform_async(op)) for op in asked]
        await asyncio.wait_for(is_done.wait(), 60)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait(tasks, timeout=60)
        ends = []
        for task in tasks:
            with pytest.raises(asyncio.CancelledError) as cancelled:
                await task
            ends.append(getattr(cancelled.value, OUTCOME)())
        return ends

    before = len(ledger.events())
    ends = asyncio.run(main())
    assert all(op.repeated for op in asked)
    if settles:
        assert [(one.fenced, one.call.state) for one in ends] == [(False, "succeeded")] * RUNS
    else:
        assert [(one.verdict, one.call.id) for one in ends] == [("start", op.call_id) for op in asked]
    assert len(ledger.events()) == before + RUNS


@pytest.mark.parametrize("ends", [False, True])
def test_a_lone_step_that_is_cancelled_is_done_first(
    ledger: Ledger, runs: list[RunRow], server: tuple[Any, str], ends: bool
) -> None:
    """It waits for its run when its task is cancelled, twice; then its session ends, or not."""
    store: Any = ledger.store
    op = ledger.plain_op(runs[1], args="[1]")
    store._plain.tools.update({op.tool: 1})

    async def main() -> Any:
        for number in range(5):  # from now on its statement is prepared
            assert isinstance(await store.perform_async(ledger.plain_op(runs[0], args=f"[{number + 1}]")), Started)
        with locked(server[1], runs[1]):
            task = asyncio.create_task(store.perform_async(op))
            for _ in range(2):
                await asyncio.sleep(0.1)
                assert not task.done()
                task.cancel()
            await asyncio.sleep(0.1)
            assert not task.done()
            if ends:
                end_sessions(server[1])
        await asyncio.wait({task}, timeout=60)
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        return getattr(cancelled.value, OUTCOME)()

    answer = asyncio.run(main())
    call = answer.row if isinstance(answer, Started) else answer.call
    assert (call.id, call.state) == (op.call_id, "started")
    assert ends or not op.repeated


def end_sessions(url: str) -> None:
    """End what others of this database are waiting for."""
    with closing(connect(url)) as connection:
        cursor = connection.cursor()
        if url.startswith("postgresql"):
            cursor.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and wait_event_type = 'Lock'"
            )
            return
        cursor.execute(
            "select id from information_schema.processlist where db = database() and info like 'call amends%'"
        )
        for (number,) in cursor.fetchall():
            cursor.execute(f"kill {number}")


def test_an_event_is_not_much_older_than_its_run_was_locked(server: tuple[Any, str]) -> None:
    """Whoever follows the events may have passed the moment at which the step began to wait."""
    make, url = server
    with closing(make(url)) as store:
        store.open(create=True)
        ledger = Ledger(store, clock=Wall())
        run = ledger.run()

        def admission(args: str) -> AdmitPlain:
            op = ledger.plain_op(run, args=args)
            op.number = new_number()
            return op

        ledger(admission("[0]"))
        settled = SettlePlain(store.perform(admission("[1]")), '"ok"')
        assert isinstance(settled.started, Started), "the next steps are plain"
        for op in (admission("[2]"), settled):
            with ThreadPoolExecutor(1) as pool:
                with locked(url, run):
                    waiting = pool.submit(store.perform, op)
                    time.sleep(2 * WAIT_S + 1.0)
                    until = time.time()
                waiting.result(60)
            assert max(event.at for event in ledger.events(run)) >= until - WAIT_S
        audit(ledger)


def test_a_run_whose_time_is_far_from_that_of_the_number_is_left_to_the_flow(
    ledger: Ledger, runs: list[RunRow]
) -> None:
    """An event is found through the number of its call: the times of both must be near each other."""
    store: Any = ledger.store
    ledger.clock.now += SKEW_S / 2
    started = together(ledger, [ledger.plain_op(run, args="[1]") for run in runs[:2]])
    assert [type(one) for one in started] == [Started] * 2
    ledger.clock.now -= SKEW_S + 1
    late = [ledger.plain_op(run, args="[2]") for run in runs[:2]]
    for place, op in enumerate(late):
        op.number = number_at(ledger.clock.now, place)
    assert store._alone(late[0]) is None
    assert together(ledger, late) == [None] * 2
    ledger.clock.now += SKEW_S
