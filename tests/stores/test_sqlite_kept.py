"""What the owner of a run remembers of its chain: never more than the file says, whoever else has written meanwhile."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime
from amends.encoding.chain import proof
from amends.errors import LeaseLost, LedgerUnavailable
from amends.ledger import operations as ops
from amends.ledger.plain import SettledPlain, SettlePlain, Started
from amends.ledger.rows import RunRow
from amends.stores.migrations import migrations, sql_of
from amends.stores.sqlite.connection import WAL_BYTES, fill_log
from amends.stores.sqlite.group_commit import Pending
from amends.stores.sqlite.store import FILE_CHECK_S, SqliteStore
from amends.testing.conformance.ledger import LEASE_S, Clock, Ledger, audit

Make = Callable[[], Ledger]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


@pytest.fixture
def make(path: Path) -> Iterator[Make]:
    """Handles on one file, as several processes have them; they share a clock."""
    clock, made = Clock(), list[SqliteStore]()

    def one() -> Ledger:
        made.append(SqliteStore(path, "NORMAL", clock))
        return Ledger(made[-1], clock=clock, made=1000 * len(made))

    yield one
    for store in made:
        store.close()


def warm(ledger: Ledger) -> RunRow:
    """Open a run in which plain statements are done: the tool is known, and the end of the chain is."""
    run = ledger.run()
    ledger(SettlePlain(ledger.start_plain(run, args="[0]"), '"ok"'))
    return run


def replace(path: Path, how: str, *, waits: bool = True) -> None:
    """Remove the file, or put a copy of it into its place; return when every store would notice, if it ``waits``."""
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("vacuum into ?", (str(copy),))
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
    if how == "restored":
        copy.rename(path)
    if waits:
        wait_for_file_check()


def wait_for_file_check() -> None:
    """Return when every store looks at its file again before the next plain call."""
    end = time.monotonic() + FILE_CHECK_S
    while time.monotonic() <= end:
        pass


def folded(path: Path) -> int:
    with closing(sqlite3.connect(path)) as raw:
        found: int = raw.execute("select count(hash) + count(settled_hash) from amends_call").fetchone()[0]
    return found


MEANWHILE: dict[str, Callable[[RunRow, Started], ops.StoreOp[Any]]] = {
    "a person's rollback": lambda run, _: ops.BeginRollback(run.uid, "ann", "no", True),
    "evidence": lambda _, started: ops.NoteEvidence(
        started.row.id, 1, happened=True, result='"late"', error="", boot="boot", mono=9.0, source="late"
    ),
    "a child": lambda run, _: ops.OpenChild("uid of the child", "child", run.uid, 1, "a", "", ""),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_decision_of_another_process_between_two_plain_steps_is_seen(make: Make, path: Path, what: str) -> None:
    """The settlement continues the chain after it, by the flow or by a plain statement that has read the chain again."""
    mine, other = make(), make()
    run = warm(mine)
    started = mine.raw(mine.plain_op(run, args="[1]"))
    assert isinstance(started, Started), "it was a plain statement"
    other(MEANWHILE[what](run, started))
    answer = mine(SettlePlain(started, '"ok"'))
    assert answer.call.state == "succeeded" or answer.fenced
    numbers = [event.n for event in mine.events()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert mine.everything() == other.everything()
    audit(mine)


def test_after_another_process_has_written_the_next_admission_is_plain_again(make: Make, path: Path) -> None:
    mine, other = make(), make()
    run = warm(mine)
    before = folded(path)
    other(ops.BeginRollback(other.run("another").uid, "ann", "no", True))  # another tree: nothing to notice
    assert isinstance(mine.raw(mine.plain_op(run, args="[1]")), Started)
    assert folded(path) == before + 1
    audit(mine)


def test_a_run_that_was_taken_over_admits_and_settles_nothing_of_its_old_owner(make: Make) -> None:
    mine, other = make(), make()
    run = warm(mine)
    plain_run = mine.plain_op(run).run
    started = mine.start_plain(run, args="[1]")
    assert plain_run.kept is None or plain_run.kept.touch >= 0
    other.clock.now += LEASE_S + 1
    assert other.claim(run) is not None
    before = other.everything()
    with pytest.raises(LeaseLost):
        mine(mine.plain_op(run, args="[2]"))
    assert other.everything() == before
    assert mine(SettlePlain(started, '"ok"')).fenced
    audit(other)


class Failing:
    """A cursor whose next commit fails."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: str, *params: Any) -> Any:
        if sql == "commit":
            raise sqlite3.OperationalError("disk I/O error")
        return self._cursor.execute(sql, *params)


def test_a_batch_that_was_not_committed_is_not_remembered(make: Make, path: Path) -> None:
    """The plain steps in it had continued the chain in memory: what comes next begins where the file is."""
    ledger = make()
    store: Any = ledger.store
    run = warm(ledger)
    started = ledger.start_plain(run, args="[1]")
    before = ledger.everything()
    writer = store._writer
    writer.cursor = Failing(writer.cursor)
    with pytest.raises(LedgerUnavailable):
        ledger(ledger.admit_op(run, "through the flow"))
    store._writer = store._writer or writer
    assert ledger.everything() == before
    store._drop_writer()
    assert ledger(SettlePlain(started, '"ok"')).call.state == "succeeded"
    assert isinstance(ledger.raw(ledger.plain_op(run, args="[2]")), Started)
    audit(ledger)


@pytest.mark.parametrize("how", ["plain", "batched"])
@pytest.mark.parametrize("what", ["commit", "close"])
def test_the_end_of_a_run_whose_commit_fails_is_not_remembered(make: Make, what: str, how: str) -> None:
    """Whoever has the run may keep the end of its chain for longer than the store does."""
    ledger = make()
    store: Any = ledger.store
    opened = ledger.run()
    run = ledger.plain_op(opened).run
    end: ops.StoreOp[Any] = ops.DecideCommit(opened.uid, "a", 1, plain=run)
    if what == "close":
        ledger(ops.BeginRollback(opened.uid, "a", "why", False, owner="a", epoch=1, plain=run))
        end = ops.CloseRun(opened.uid, "a", 1, "rolled_back", plain=run)
    before = ledger.everything()
    store._writer.cursor = Failing(store._writer.cursor)
    if how == "batched":
        store._flush([Pending(end)], True)
    else:
        with pytest.raises(LedgerUnavailable):
            ledger(end)
    assert ledger.everything() == before
    assert run.kept is not None
    assert run.kept.touch < 0, "it is read again"
    ledger(end)
    audit(ledger)


def test_a_plain_step_inside_a_batch_that_fails_is_not_remembered(make: Make) -> None:
    ledger = make()
    store: Any = ledger.store
    run = warm(ledger)
    op = ledger.plain_op(run, args="[1]")
    before = ledger.everything()
    writer = store._writer
    writer.cursor = Failing(writer.cursor)
    store._alone_before, store._commits._alone = store._commits._alone, lambda op: None  # as when others are queued
    with pytest.raises(LedgerUnavailable):
        ledger(op)
    assert ledger.everything() == before
    op.repeated = True
    assert ledger(op).verdict == "start"
    store._commits._alone = store._alone_before
    assert isinstance(ledger.raw(ledger.plain_op(run, args="[2]")), Started)
    audit(ledger)


def test_the_number_of_a_tool_whose_batch_was_not_committed_is_not_remembered(make: Make, path: Path) -> None:
    """Otherwise the number is given to the next new tool, and the call is recorded as a call of that one."""
    ledger = make()
    store: Any = ledger.store
    run = ledger.run()
    first, second = ledger.plain_op(run, "wire", args="[0]"), ledger.plain_op(run, "wire", args="[1]")
    second.run, second.tool = first.run, first.tool
    batch = [Pending(first), Pending(second)]  # the flow of the first adds the tool, the second finds it
    writer = store._writer
    writer.cursor = Failing(writer.cursor)
    store._flush(batch, True)
    assert [type(one.error) for one in batch] == [LedgerUnavailable] * 2
    ledger.start(run, "refund")
    third = ledger.plain_op(run, "wire", args="[2]")
    third.run, third.tool = first.run, first.tool
    ledger(third)
    with closing(sqlite3.connect(path)) as raw:
        found = raw.execute("select t.name from amends_call c join amends_tool t on t.no = c.tool order by c.n")
        assert [name for (name,) in found] == ["refund", "wire"]
    audit(ledger)


@pytest.mark.parametrize("batched", [False, True])
def test_a_reader_does_not_see_what_is_not_committed_yet(make: Make, batched: bool) -> None:
    ledger = make()
    store: Any = ledger.store
    run = warm(ledger)
    newest = ledger(ops.ReadNewestEvent(None, run.root))
    op = ledger.plain_op(run, args="[1]")
    store._writer.cursor.execute("begin immediate")
    pending = Pending(op)
    if batched:  # through the flow, which remembers the end of the chain after it
        pending.op = ledger.admit_op(run, "charge", args="[1]")
    assert store._carry_out(pending, store._writer)
    assert ledger(ops.ReadNewestEvent(None, run.root)) == newest
    store._writer.cursor.execute("rollback")
    store._forget()
    audit(ledger)


FAILURES = {
    "plain": {},
    "with words": {"error": '["ValueError", "n\\u00f6"]', "why": "permanent", "boot": "boot", "mono": 3.5},
}


@pytest.mark.parametrize("said", FAILURES.values(), ids=FAILURES)
def test_a_plain_failure_is_what_the_flow_would_have_written(make: Make, tmp_path: Path, said: dict[str, Any]) -> None:
    """Twice the same, once with the store's memory and once without it, so that the flow decides: nothing differs."""
    other = Ledger(SqliteStore(tmp_path / "other.db", "NORMAL", Clock()), made=1000)
    ends = []
    with closing(other.store):
        for ledger in (make(), other):
            store: Any = ledger.store
            run = warm(ledger)
            started = ledger.start_plain(run, args="[1]", call_ref="ref").row
            if ledger is other:
                store._kept.clear()
            before = ledger.events(run)
            failure = ops.SettleCall(started.id, run.owner, run.epoch, 1, "failed", seen=started, **said)
            done = store._plain.fail(store._writer.cursor, failure)
            assert (done is None) == (ledger is other)
            settled = ledger(failure) if done is None else done
            assert len(ledger.events(run)) == len(before) + 1
            ledger(SettlePlain(ledger.start_plain(run, args="[2]"), '"ok"'))
            audit(ledger)
            ends.append((settled, ledger.everything()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("what", ["another owner", "an event", "a row that was changed"])
def test_a_plain_failure_changes_nothing_if_anything_else_changed(make: Make, path: Path, what: str) -> None:
    ledger = make()
    store: Any = ledger.store
    run = warm(ledger)
    started = ledger.start_plain(run, args="[1]")
    failure = ops.SettleCall(started.row.id, run.owner, run.epoch, 1, "failed", seen=started.row)
    if what == "another owner":
        failure.epoch += 1
    elif what == "an event":
        make()(MEANWHILE["evidence"](run, started))
    else:
        with closing(sqlite3.connect(path)) as raw, raw:
            raw.execute("update amends_call set more = '{\"replays\":1}' where settled_n is null")
    before = ledger.everything()
    assert store._plain.fail(store._writer.cursor, failure) is None
    assert ledger.everything() == before


@pytest.mark.parametrize("how", ["removed", "restored"])
@pytest.mark.parametrize("what", ["open", "roll back", "commit"])
def test_a_run_is_neither_opened_nor_ended_in_a_file_that_was_just_replaced(
    make: Make, path: Path, monkeypatch: pytest.MonkeyPatch, what: str, how: str
) -> None:
    monkeypatch.setattr("amends.stores.sqlite.store.FILE_CHECK_S", 3600.0)
    ledger = make()
    run = warm(ledger)
    plain = ledger.plain_op(run).run
    replace(path, how, waits=False)
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        match what:
            case "open":
                ledger.run("another")
            case "roll back":
                ledger(ops.BeginRollback(run.uid, "a", "why", False, owner="a", epoch=1, plain=plain))
            case _:
                ledger(ops.DecideCommit(run.uid, "a", 1, plain=plain))


@pytest.mark.parametrize("how", ["removed", "restored"])
def test_no_body_runs_by_a_record_in_a_file_that_was_replaced(make: Make, path: Path, how: str) -> None:
    ledger = make()
    run = warm(ledger)
    ledger.start_plain(run, args="[1]")  # by a plain statement, which remembers everything it needs
    replace(path, how)
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        ledger.raw(ledger.plain_op(run, args="[2]"))


def test_a_ledger_that_is_restored_in_place_below_a_worker_fails_its_audit(
    make: Make, path: Path, tmp_path: Path
) -> None:
    """It is forbidden (see "Backup and restore") and cannot be refused: the path and the file stay the same."""
    ledger = make()
    run = warm(ledger)
    with closing(sqlite3.connect(path)) as raw, closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        raw.backup(copy)
        ledger(SettlePlain(ledger.start_plain(run, args="[1]"), '"ok"'))
        copy.backup(raw)
    ledger.start_plain(run, args="[2]")
    with Runtime(f"sqlite:///{path}") as runtime:
        assert "events 4 to 5 are missing" in str(runtime.verify())


@pytest.mark.parametrize("how", ["removed", "restored"])
def test_no_compensation_runs_by_a_record_in_a_file_that_was_replaced(make: Make, path: Path, how: str) -> None:
    ledger = make()
    run = ledger.run()
    for number in range(2):
        ledger(SettlePlain(ledger.start_plain(run, args=f"[{number}]"), '"ok"'))
    rollback = ledger(ops.BeginRollback(run.uid, run.owner, "it failed", False, owner=run.owner, epoch=run.epoch))
    assert rollback.tree is not None
    row = max(rollback.tree.calls, key=lambda call: call.settled_seq or 0)
    replace(path, how)
    with pytest.raises(LedgerUnavailable, match="removed or replaced"):
        ledger(ops.BeginCompensation(row.id, run.owner, run.epoch, 1, seen=row))


def test_a_step_that_meets_a_locked_file_is_plain_all_the_same(make: Make, path: Path) -> None:
    """Nothing was done, so nothing is forgotten: the step waits and is folded like any other."""
    ledger = make()
    run = warm(ledger)
    started = ledger.start_plain(run, args="[1]")
    before = folded(path)
    store: Any = ledger.store
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        begin = store._begin

        def freed(*given: Any) -> None:
            other.execute("rollback")
            begin(*given)

        store._begin = freed
        settled = ledger.raw(SettlePlain(started, '"ok"'))
    assert isinstance(settled, SettledPlain)
    assert folded(path) == before + 1
    audit(ledger)


# ---- the log and the schema ---------------------------------------------------------------


def test_the_log_of_a_new_ledger_has_its_full_size_and_the_file_has_not(make: Make, path: Path) -> None:
    ledger = make()
    assert ledger.store.open(create=True) is True
    log = path.with_name(f"{path.name}-wal")
    assert log.stat().st_size >= WAL_BYTES
    warm(ledger)
    assert log.stat().st_size < 2 * WAL_BYTES
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute("select name from sqlite_master where name like '%fill%'").fetchall() == []
        [(pages,)] = raw.execute("pragma page_count").fetchall()
        assert pages < 200, "filling the log has not filled the file"
        assert raw.execute("pragma integrity_check").fetchall() == [("ok",)]
    audit(ledger)


def test_a_log_that_cannot_be_filled_is_no_error(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as raw:
        raw.execute("pragma journal_mode = wal")
        raw.execute("create table kept (it)")
        [cache] = raw.execute("pragma cache_size").fetchone()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("begin immediate")
            fill_log(raw, path)
            other.execute("rollback")
        assert raw.execute("select * from kept").fetchall() == []
        assert raw.execute("pragma cache_size").fetchone() == (cache,)
        assert not raw.in_transaction


def test_who_creates_the_tables_by_hand_gets_the_same_ledger(make: Make, path: Path, tmp_path: Path) -> None:
    """``amends db sql`` prints all of it: a first start then has nothing to create."""
    by_hand = tmp_path / "by_hand.db"
    with closing(sqlite3.connect(by_hand)) as raw:
        raw.executescript(sql_of("sqlite"))
        made = set(raw.execute("select name, sql from sqlite_master").fetchall())
    make().store.open(create=True)
    with closing(sqlite3.connect(path)) as raw:
        assert made == set(raw.execute("select name, sql from sqlite_master").fetchall())
        tables = ("amends_ledger", "amends_mark")
        usual = [raw.execute(f"select * from {table}").fetchall() for table in tables]
    with closing(sqlite3.connect(by_hand)) as raw:
        assert [raw.execute(f"select * from {table}").fetchall() for table in tables] == usual
    with closing(SqliteStore(by_hand, "NORMAL")) as store:
        assert store.open(create=False) is False
        schema = store.schema()
        assert (schema.version, schema.pending) == (len(migrations("sqlite")), ())
        assert len(schema.ledger) == 16
        audit(Ledger(store))
        assert Ledger(store).do(Ledger(store).run()).state == "succeeded"


def test_two_ledgers_that_were_made_by_hand_have_two_names(tmp_path: Path) -> None:
    names = set()
    for file in ("one.db", "two.db"):
        with closing(sqlite3.connect(tmp_path / file)) as raw:
            raw.executescript(sql_of("sqlite"))
        with closing(SqliteStore(tmp_path / file)) as store:
            names.add(store.schema().ledger)
    assert len(names) == 2


def test_what_was_learned_meanwhile_is_kept_when_an_encrypted_result_is_settled(make: Make) -> None:
    """Its digest is written into the same column as the evidence."""
    ledger = make()
    run = warm(ledger)
    started = ledger.start_plain(run, args="[1]")
    evidence = ops.NoteEvidence(started.row.id, 1, True, '"late"', "", "boot", 9.0, "late")
    learned = ledger(evidence).evidence
    assert learned
    ledger(SettlePlain(started, "sealed", proof=proof('"ok"')))
    settled = ledger.look(started.row)
    assert (settled.state, settled.result, settled.evidence) == ("succeeded", "sealed", learned)
