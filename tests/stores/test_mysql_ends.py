"""The remembered ends of chains on MariaDB: nobody continues a chain from an end that is not its own, or not the last."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from amends.encoding.ids import new_number
from amends.ledger import operations as ops
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettledPlain, SettlePlain, Started
from amends.ledger.rows import RunRow
from amends.ledger.store import OUTCOME
from amends.stores.mysql import connection, quick
from amends.stores.mysql.store import MysqlStore
from amends.stores.sql import Kept
from amends.testing.conformance.ledger import Ledger, audit
from tests.servers.databases import connect, execute

TOOL = PlainTool("charge", "1", "compensatable", 0, 1)


class Ends:
    """A ledger with a run, and its plain calls."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = MysqlStore(url)
        self.ledger = Ledger(self.store)
        self.run = self.ledger.run()
        self.keys = 0
        self.ledger(self.admission())  # by the flow: the ledger knows the tool from now on

    def admission(self, run: RunRow | None = None) -> AdmitPlain:
        self.keys += 1
        of = self.run if run is None else run
        plain = PlainRun(of.uid, of.id, of.tenant, of.agent, of.principal, "a", 1)
        return AdmitPlain(plain, TOOL, new_number(), bytes([self.keys] * 32), b"2" * 32, b"3" * 32, "{}")

    @property
    def kept(self) -> Kept | None:
        return self.store._plain.ends._kept.get(self.run.uid)

    def touch(self) -> int:
        return int(execute(self.url, [f"select touch from amends_run where uid = '{self.run.uid}'"])[0][0])


@pytest.fixture
def ends(mysql_url: str) -> Iterator[Ends]:
    made = Ends(mysql_url)
    with closing(made.store):
        yield made
        audit(made.ledger)


def test_an_end_that_is_taken_is_nobody_elses(ends: Ends) -> None:
    plain = ends.store._plain
    ends.store.perform(ends.admission())  # the store knows the tool from now on
    op = ends.admission()
    step = plain.move(op)
    assert step is not None
    assert plain.move(ends.admission()) is None
    touch = ends.touch()
    assert isinstance(ends.store.perform(ends.admission()), Started)  # the end is looked for again, by who moves touch
    assert ends.touch() == touch + 1
    with closing(ends.store._connect()) as other:
        assert plain._done_alone(step, other) is None  # it is too late for the first one
    assert len([call for call in ends.ledger.calls() if call.id == op.call_id]) == 0


def test_an_end_of_before_is_not_remembered_over_a_newer_one(ends: Ends) -> None:
    remembered = ends.store._plain.ends
    known = ends.kept
    assert known is not None
    older = Kept(known.no, 1, known.head, known.at, known.touch - 1, known.owner, known.epoch)
    remembered.give(ends.run.uid, older)
    assert ends.kept is known


def test_a_flow_uses_the_end_and_leaves_the_new_one(ends: Ends) -> None:
    started = ends.store.perform(ends.admission())
    assert isinstance(started, Started)
    before = ends.kept
    assert before is not None
    ends.ledger(ops.NoteEvidence(started.row.id, 1, True, '"late"', "", "boot", 9.0, "late"))
    after = ends.kept
    assert after is not None
    assert (after.n, after.touch) == (started.n + 1, ends.touch())
    assert isinstance(ends.store.perform(ends.admission()), Started)


def test_a_flow_that_fails_gives_the_end_back(ends: Ends) -> None:
    before = ends.kept
    assert before is not None
    with pytest.raises(Exception, match=r".+"):
        ends.ledger(ops.SettleCall("call_ffffffffffffffff", "a", 1, 1, "succeeded", result="1"))
    assert ends.kept is before
    assert isinstance(ends.store.perform(ends.admission()), Started)


def test_a_key_that_there_is_costs_neither_the_end_nor_the_connection(ends: Ends) -> None:
    op = ends.admission()
    assert isinstance(ends.store.perform(op), Started)
    before, idle = ends.kept, list(ends.store._pool._idle)
    again = ends.admission()
    again.key = op.key
    assert ends.store._alone(again) is None
    assert (ends.kept, ends.store._pool._idle) == (before, idle)


def test_an_end_is_forgotten_with_its_run(ends: Ends) -> None:
    ends.store.perform(SettlePlain(ends.store.perform(ends.admission()), "1"))  # type: ignore[arg-type]
    ends.ledger(ops.BeginRollback(ends.run.uid, "a", "no", False, owner="a", epoch=1))
    assert ends.kept is not None
    assert not ends.kept.admits
    assert ends.store._plain.move(ends.admission()) is None
    taken_over = ends.ledger.run("another")
    assert taken_over.uid in ends.store._plain.ends._kept
    plain = PlainRun(taken_over.uid, taken_over.id, taken_over.tenant, taken_over.agent, taken_over.principal, "a", 1)
    ends.store.perform(ops.DecideCommit(taken_over.uid, "a", 1, plain=plain))
    assert taken_over.uid not in ends.store._plain.ends._kept


def test_a_child_process_remembers_nothing_of_its_parents_runs(ends: Ends) -> None:
    assert ends.kept is not None
    ends.store.after_fork_in_child()
    assert ends.kept is None


def test_threads_of_one_run_make_one_chain(ends: Ends) -> None:
    asked = [ends.admission() for _ in range(40)]
    errors: list[Exception] = []

    def work(some: list[AdmitPlain]) -> None:
        try:
            for op in some:
                started: Any = ends.store.perform(op)
                if type(started) is Started:
                    ends.store.perform(SettlePlain(started, "1"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(asked[at::8],)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert {call.id for call in ends.ledger.calls()} >= {op.call_id for op in asked}


# ---- On an event loop


def in_thread(store: MysqlStore) -> list[Any]:
    """Note what the store hands to a thread."""
    seen: list[Any] = []
    submitted = store._submitted

    def noted(work: Any, given: Any) -> Any:
        seen.append(given)
        return submitted(work, given)

    store._submitted = noted  # type: ignore[method-assign]
    return seen


def test_a_plain_call_on_a_loop_needs_no_thread_once_its_statements_are_prepared(ends: Ends) -> None:
    store = ends.store

    async def call() -> tuple[Any, Any]:
        started = await store.perform_async(ends.admission())
        assert isinstance(started, Started)
        return started, await store.perform_async(SettlePlain(started, '"é"'))

    async def calls() -> None:
        await call()
        seen = in_thread(store)
        for _ in range(3):
            started, settled = await call()
            assert isinstance(settled, SettledPlain)
            assert ends.ledger.look(started.row).result == '"é"'
        assert not seen

    asyncio.run(calls())


def test_many_tasks_of_many_runs_share_transactions_on_the_loop(ends: Ends) -> None:
    store = ends.store
    runs = [ends.ledger.run(f"run {number}") for number in range(20)]

    async def one(run: RunRow) -> Any:
        started = await store.perform_async(ends.admission(run))
        return await store.perform_async(SettlePlain(started, "1"))  # type: ignore[arg-type]

    async def all_of_them() -> list[Any]:
        await one(ends.run)
        return await asyncio.gather(*[one(run) for run in runs])

    assert {type(answer) for answer in asyncio.run(all_of_them())} == {SettledPlain}


def test_a_cancelled_step_on_a_loop_ends_first(ends: Ends) -> None:
    store = ends.store

    async def calls() -> None:
        started: Any = await store.perform_async(ends.admission())
        await store.perform_async(SettlePlain(started, "1"))
        op = ends.admission()
        task = asyncio.ensure_future(store.perform_async(op))
        await asyncio.sleep(0)  # it is sent
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        answer = getattr(cancelled.value, OUTCOME)()
        assert isinstance(answer, Started)
        assert ends.ledger.look(answer.row).state == "started"

    asyncio.run(calls())


def test_a_step_that_is_not_plain_is_decided_by_its_flow_on_a_loop_too(ends: Ends) -> None:
    store = ends.store

    async def calls() -> None:
        started: Any = await store.perform_async(ends.admission())
        execute(ends.url, [f"update amends_run set touch = touch + 1 where uid = '{ends.run.uid}'"])
        settled: Any = await store.perform_async(SettlePlain(started, "1"))
        assert settled.call.state == "succeeded"
        op = ends.admission()
        again: Any = await store.perform_async(op)
        assert again.row.state == "started" if type(again) is Started else again.verdict == "start"

    asyncio.run(calls())


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_line_that_breaks_under_a_loop_is_found_out(
    ends: Ends, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement was done, and its answer is lost: by an end of the line, or by silence."""
    store = ends.store

    async def calls() -> None:
        started: Any = await store.perform_async(ends.admission())
        await store.perform_async(SettlePlain(started, "1"))
        [idle] = store._pool._idle
        if is_gone:
            monkeypatch.setattr(connection.Answers, "add", lambda answers, data: add(answers, b""))
        else:
            monkeypatch.setattr(connection.Answers, "add", lambda answers, data: False)
            idle.raw._read_timeout = 0.2
        op = ends.admission()
        task = asyncio.ensure_future(store.perform_async(op))
        await asyncio.sleep(0.5)
        monkeypatch.setattr(connection.Answers, "add", add)
        answer: Any = await task
        assert op.repeated
        assert (answer.verdict, answer.call.id, answer.call.attempt) == ("start", op.call_id, 1)
        assert idle not in store._pool._idle

    add = connection.Answers.add
    asyncio.run(calls())


def test_a_loop_that_cannot_wait_for_a_socket_uses_a_thread(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_reader(*_: Any) -> None:
        raise NotImplementedError

    async def calls() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", add_reader)
        for _ in range(3):
            started: Any = await ends.store.perform_async(ends.admission())
            assert isinstance(started, Started)

    with asyncio.Runner() as runner:
        runner.get_loop()
        runner.run(calls())
        monkeypatch.undo()


# ---- Batches of which only some steps are done


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_the_steps_that_a_batch_has_done_are_found_and_the_others_are_done_alone(ends: Ends, colour: str) -> None:
    runs = [ends.ledger.run(f"run {number}") for number in range(6)]
    started = ends.store._together([ends.admission(run) for run in runs])
    if not all(started):  # the store did not know the tool yet
        started = [ends.store.perform(ends.admission(run)) for run in runs]
    execute(ends.url, [f"update amends_run set touch = touch + 1 where uid in ('{runs[1].uid}', '{runs[4].uid}')"])
    asked = [SettlePlain(one, "1") for one in started]
    if colour == "blocking":
        answers = ends.store._together(asked)
    else:
        answers = asyncio.run(ends.store._together_async(asked))  # type: ignore[arg-type]
    assert [type(answer) is SettledPlain for answer in answers] == [True, False, True, True, False, True]
    assert not any(op.repeated for op in asked)
    for op, answer in zip(asked, answers, strict=True):
        if answer is None:
            ends.store.perform(op)
        assert ends.ledger.look(op.started.row).state == "succeeded"


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_a_batch_whose_outcome_cannot_be_looked_up_is_repeated_and_done_once(
    ends: Ends, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [ends.ledger.run(f"run {number}") for number in range(4)]
    started = [ends.store.perform(ends.admission(run)) for run in runs]
    started = [ends.store.perform(ends.admission(run)) for run in runs]
    execute(ends.url, [f"update amends_run set touch = touch + 1 where uid = '{runs[1].uid}'"])
    asked = [SettlePlain(one, "1") for one in started]  # type: ignore[arg-type]
    monkeypatch.setattr(quick, "_HASHES", "select nonsense from nowhere where no in ({})")
    if colour == "blocking":
        answers = ends.store._together(asked)
    else:
        answers = asyncio.run(ends.store._together_async(asked))  # type: ignore[arg-type]
    monkeypatch.undo()
    assert list(answers) == [None] * 4
    assert all(op.repeated for op in asked)
    for op in asked:
        ends.store.perform(op)
        told = [event.to_state for event in ends.ledger.events() if event.call == op.started.op.call_id]
        assert told == ["started", "succeeded"]


def test_after_a_restored_backup_no_chain_goes_on_from_an_end_that_the_ledger_no_longer_has(ends: Ends) -> None:
    run = ends.ledger.run("another")
    for of in (ends.run, run):
        ends.store.perform(ends.admission(of))
    kept = _tables(ends.url)
    for table in kept:
        execute(ends.url, [f"create table kept_{table} as select * from {table}"])
    for of in (ends.run, run):
        ends.store.perform(ends.admission(of))
    _restore(ends.url, kept)
    for of in (ends.run, run):
        ends.store.perform(ends.admission(of))  # the first of them meets a connection that is lost
    for of in (ends.run, run):
        numbers = [event.n for event in ends.ledger.events(of)]
        assert numbers == list(range(1, len(numbers) + 1))


def _tables(url: str) -> list[str]:
    return [row[0] for row in execute(url, ["show tables"]) if row[0].startswith("amends_")]


def _restore(url: str, tables: list[str]) -> None:
    """Put back what was kept, and end all connections, as a failover to an older copy does."""
    generated = (
        "select column_name from information_schema.columns where table_schema = database() and table_name = '{}'"
    )
    with closing(connect(url)) as raw:
        cursor = raw.cursor()
        cursor.execute("set foreign_key_checks = 0")
        for table in tables:
            cursor.execute(f"{generated.format(table)} and extra not like '%GENERATED%'")
            columns = ", ".join(f"`{name}`" for (name,) in cursor.fetchall())
            cursor.execute(f"delete from {table}")
            cursor.execute(f"insert into {table} ({columns}) select {columns} from kept_{table}")
        raw.commit()
        cursor.execute("select id from information_schema.processlist where db = database() and id <> connection_id()")
        for (number,) in cursor.fetchall():
            cursor.execute(f"kill {number}")


def test_a_loop_that_is_closed_while_a_step_is_on_its_way_keeps_no_connection(mysql_url: str) -> None:
    with closing(MysqlStore(mysql_url, pool_max=2, lock_wait_s=2)) as store:
        ends = Ends.__new__(Ends)
        ends.url, ends.store, ends.ledger, ends.keys = mysql_url, store, Ledger(store), 0
        ends.run = ends.ledger.run()
        for _ in range(3):
            store.perform(ends.admission())
        for _ in range(2):
            asyncio.run(_steps(store, ends, 2))
            with closing(connect(mysql_url)) as raw:
                cursor = raw.cursor()
                cursor.execute("begin")
                cursor.execute(f"select 1 from amends_run where uid = '{ends.run.uid}' for update")
                _abandon(store, ends.admission())
                raw.rollback()
        assert isinstance(store.perform(ends.admission()), Started)
        audit(ends.ledger)


async def _steps(store: MysqlStore, ends: Ends, count: int) -> None:
    for _ in range(count):
        await store.perform_async(ends.admission())


def _abandon(store: MysqlStore, op: AdmitPlain) -> None:
    """Begin a step on an event loop that is closed before the server has answered."""
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        task = asyncio.create_task(store.perform_async(op))
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio would complain, rightly
        await asyncio.sleep(0.3)

    loop.run_until_complete(begin())
    loop.close()
    del loop
    gc.collect()
