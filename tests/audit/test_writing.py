"""When checkpoints are written: soon, at the end, at once where that is asked for, and never in anybody's way."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Checkpoint, Runtime, tool
from amends.encoding.chain import HEADS_MAX, read_heads
from amends.errors import BadConfig, LedgerBehind, LedgerUnavailable, UsageError
from amends.host.anchor import Anchor
from amends.ledger.operations import DraftCheckpoint, ReadCheckpoints, ReadRun, WriteCheckpoint
from amends.ledger.rows import CheckpointRow, MarkSealed
from amends.signing import load_key, new_key
from amends.stores.memory import MemoryStore
from amends.stores.sqlite.store import SqliteStore
from amends.testing import runtime
from amends.worker import work

WAIT_S = 30.0


@tool
def note(text: str) -> str:
    return text


@note.compensate
def forget(result: str) -> None:
    """Nothing is left of it."""


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def rows(rt: Any) -> list[Any]:
    found: list[Any] = rt._host.store.perform(ReadCheckpoints(0))
    return found


def done(rt: Runtime, id: str) -> None:
    with rt.run(id):
        note("x")


# ---- when -----------------------------------------------------------------------------------


def test_nothing_is_written_while_a_run_goes_on_and_closing_writes_it(tmp_path: Path) -> None:
    told: list[Checkpoint] = []
    rt = Runtime(url(tmp_path), tools=[note], on_checkpoint=told.append, checkpoint=3_600)
    done(rt, "r")
    done(rt, "s")
    assert rows(rt) == []
    rt.close()
    [one] = told
    assert (one.n, one.heads, one.key) == (1, 2, "")
    assert Anchor(tmp_path / "ledger.db.anchor").read().checkpoint.hash == one.hash  # type: ignore[union-attr]
    rt.close()
    assert len(told) == 1, "nothing happened since"


def test_a_thread_writes_it_within_the_time_that_is_set(tmp_path: Path) -> None:
    written = threading.Event()
    rt = Runtime(url(tmp_path), tools=[note], on_checkpoint=lambda _: written.set(), checkpoint=0.01)
    done(rt, "r")
    assert written.wait(WAIT_S)
    written.clear()
    done(rt, "s")
    assert written.wait(WAIT_S)
    rt.close()
    assert rt._host.checkpointer._thread is None


def test_with_0_a_run_is_left_when_its_checkpoint_is_written(tmp_path: Path) -> None:
    rt = Runtime(url(tmp_path), tools=[note], checkpoint=0)
    for n in (1, 2, 3):
        done(rt, f"r{n}")
        assert [row.n for row in rows(rt)][-1] == n
        assert Anchor(tmp_path / "ledger.db.anchor").read().checkpoint.n == n  # type: ignore[union-attr]
    with pytest.raises(ZeroDivisionError), rt.run("fails"):
        note("x")
        raise ZeroDivisionError
    assert len(rows(rt)) == 4, "taken back is an end as well"
    rt.close()


def test_with_0_the_same_is_true_on_an_event_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncRuntime(url(tmp_path), tools=[note], checkpoint=0) as rt:
            async with rt.run("r") as run:
                await run.call(note, text="x")
            assert len(rows(rt)) == 1
            opened = await rt.open("s")
            await opened.commit()
            assert len(rows(rt)) == 2
            newest = await rt.checkpoint()
            assert newest is not None
            assert newest.n == 2

    asyncio.run(main())


def test_off_is_off_until_it_is_asked_for(tmp_path: Path) -> None:
    rt = Runtime(url(tmp_path), tools=[note], checkpoint="off")
    done(rt, "r")
    rt.close()
    assert not (tmp_path / "ledger.db.anchor").exists()
    rt = Runtime(url(tmp_path), tools=[note], checkpoint="off")
    rt._host.ready()
    assert rows(rt) == []
    newest = rt.checkpoint()
    assert newest is not None
    assert (newest.n, newest.heads) == (1, 1)
    rt.close()


def test_a_ledger_in_memory_has_none_unless_somebody_wants_them() -> None:
    rt = Runtime("memory:", tools=[note])
    done(rt, "r")
    rt.close()
    assert rows(rt) == []
    told: list[Checkpoint] = []
    rt = Runtime("memory:", tools=[note], on_checkpoint=told.append)
    assert rt.checkpoint() is None
    done(rt, "r")
    rt.close()
    assert [one.n for one in told] == [1]


def test_virtual_time_has_no_thread() -> None:
    rt = runtime(tools=[note], checkpoint=0.001)
    done(rt, "r")
    assert rt._host.checkpointer._thread is None
    assert rt.checkpoint() is not None
    assert rows(rt)[0].at <= rt.clock.wall


def test_a_worker_puts_what_others_left_behind_a_checkpoint(tmp_path: Path) -> None:
    rt = Runtime(url(tmp_path), tools=[note], checkpoint="off")
    done(rt, "r")
    rt.close()
    worker = Runtime(url(tmp_path), tools=[note])
    work(worker, once=True)
    with Runtime(url(tmp_path)) as rt:
        assert [row.n for row in rows(rt)] == [1]


PROGRAM = """
import sys
from amends import Runtime, tool

@tool(kind="pivot")
def note(text: str) -> str:
    return text

rt = Runtime(sys.argv[1], tools=[note])
with rt.run("r"):
    note("x")
"""


def test_a_program_that_never_closes_leaves_its_checkpoint_when_it_ends(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM, encoding="ascii")
    src = str(Path(__file__).resolve().parents[2] / "src")
    subprocess.run(
        [sys.executable, str(script), url(tmp_path)], env={**os.environ, "PYTHONPATH": src}, check=True, timeout=WAIT_S
    )
    rt = Runtime(url(tmp_path))
    assert [len(read_heads(row.heads)) for row in rt._host.store.perform(ReadCheckpoints(0))] == [1]
    rt.close()


def test_a_forked_child_writes_its_own(tmp_path: Path) -> None:
    rt = Runtime(url(tmp_path), tools=[note], checkpoint=3_600)
    done(rt, "parent")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = Runtime(url(tmp_path), tools=[note], checkpoint=3_600)
            mine._host.checkpointer = rt._host.checkpointer
            done(mine, "child")
            mine._host.checkpointer.close()
            code = 0 if rows(mine) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    rt.close()
    with Runtime(url(tmp_path)) as rt:
        assert [row.n for row in rows(rt)] == [1], "the child's covers both"


# ---- what goes wrong ------------------------------------------------------------------------


def test_a_hook_that_fails_is_logged_and_the_next_one_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    told: list[int] = []

    def hook(checkpoint: Checkpoint) -> None:
        told.append(checkpoint.n)
        if checkpoint.n == 1:
            raise OSError("the other side is down")

    rt = Runtime(url(tmp_path), tools=[note], on_checkpoint=hook, checkpoint=0)
    done(rt, "r")
    done(rt, "s")
    rt.close()
    assert told == [1, 2]
    assert "on_checkpoint failed for checkpoint 1" in caplog.text


def test_an_async_hook_is_refused_where_the_runtime_is_built() -> None:
    async def hook(_: Checkpoint) -> None: ...

    with pytest.raises(UsageError, match="a thread calls it"):
        Runtime("memory:", on_checkpoint=hook)


def test_an_anchor_that_cannot_be_written_is_said_once_and_costs_no_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "no such folder" / "anchor"
    rt = Runtime(url(tmp_path), tools=[note], anchor=str(gone), checkpoint=0.01)
    done(rt, "r")
    thread = rt._host.checkpointer._thread
    assert thread is not None
    rt._host.checkpointer.beat()
    done(rt, "s")
    rt.close()
    said = [one for one in caplog.messages if "cannot be written to its anchor" in one]
    assert len(said) == 1
    with Runtime(url(tmp_path)) as rt:
        assert rows(rt), "in the ledger they are"


def test_with_0_a_checkpoint_that_cannot_be_written_is_an_error_that_says_what_became_of_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "no such folder" / "anchor"
    rt = Runtime(url(tmp_path), tools=[note], anchor=str(gone), checkpoint=0)
    with pytest.raises(LedgerUnavailable, match="run r has ended, but its checkpoint could not be written"):
        done(rt, "r")
    assert rt.report("r").state == "committed"
    with pytest.raises(ZeroDivisionError), rt.run("s"):
        raise ZeroDivisionError
    assert "run s has ended, but its checkpoint could not be written" in caplog.text
    rt.close()


@pytest.mark.parametrize("value", [-1, "soon", "nan"])
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(BadConfig, match="number of seconds, at least 0, or off"):
        Runtime("memory:", checkpoint=value)


# ---- keys ----------------------------------------------------------------------------------


def test_another_key_signs_at_once_and_vouches_for_all_before(tmp_path: Path) -> None:
    one, two = new_key("ed25519"), new_key("hmac")
    rt = Runtime(url(tmp_path), tools=[note], audit_key=one.secret, checkpoint=0)
    done(rt, "r")
    rt.close()
    rt = Runtime(url(tmp_path), tools=[note], audit_key=two.secret)
    newest = rt.checkpoint()
    assert newest is not None
    assert (newest.n, newest.heads, newest.key) == (2, 0, two.public)
    assert load_key(two.secret).has_signed(newest.hash, newest.signature)
    again = rt.checkpoint()
    assert again == newest, "once is enough"
    assert json.loads(json.dumps(newest.to_dict()))["n"] == 2
    rt.close()


def test_a_key_file_is_read_when_the_ledger_is_opened(tmp_path: Path) -> None:
    rt = Runtime(url(tmp_path), tools=[note], audit_key=str(tmp_path / "audit.key"))
    with pytest.raises(BadConfig, match="neither a key nor a readable file"):
        done(rt, "r")
    (tmp_path / "audit.key").write_text(new_key("ed25519").secret, encoding="ascii")
    (tmp_path / "audit.key").chmod(0o600)
    done(rt, "r")
    rt.close()


# ---- a ledger that was put back ---------------------------------------------------------------


def test_a_ledger_behind_its_checkpoint_starts_nothing_until_a_person_looked(tmp_path: Path) -> None:
    rt = Runtime(url(tmp_path), tools=[note], checkpoint=0)
    done(rt, "r")
    rt.close()
    copy = {path: path.read_bytes() for path in tmp_path.glob("ledger.db*") if "anchor" not in path.name}
    rt = Runtime(url(tmp_path), tools=[note], checkpoint=0)
    done(rt, "s")
    rt.close()
    for path in tmp_path.glob("ledger.db*"):
        if "anchor" not in path.name:
            path.unlink()
    for path, data in copy.items():
        path.write_bytes(data)
    rt = Runtime(url(tmp_path), tools=[note], checkpoint=0)
    with pytest.raises(LedgerBehind, match="does not have checkpoint 2") as behind:
        done(rt, "s")
    assert (behind.value.known, behind.value.found) == ("2", "1")
    rt.reconcile_restore(by="anna", why="the disk broke; I looked")
    done(rt, "s")
    assert [row.n for row in rows(rt)] == [1, 2]
    rt.close()


def test_an_anchor_is_not_moved_to_a_chain_that_it_does_not_know(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Runtime(url(tmp_path / "..") + "1", tools=[note], anchor=str(tmp_path / "anchor"), checkpoint="off")
    done(first, "r")
    known = first.checkpoint()
    other = Runtime(url(tmp_path / "..") + "2", tools=[note], anchor=str(tmp_path / "anchor"), checkpoint="off")
    with pytest.raises(LedgerBehind, match=r"another ledger|it has none"):
        done(other, "r")
    assert other.checkpoint() is None
    with caplog.at_level(logging.WARNING):
        first._host.store.perform(WriteCheckpoint(_forged(first)))
    mark = Anchor(tmp_path / "anchor").read()
    assert mark is not None
    assert mark.checkpoint is not None
    assert known is not None
    assert mark.checkpoint.hash == known.hash
    for one in (first, other):
        one.close()


def _forged(rt: Runtime) -> Any:
    done(rt, "more")
    row = rt._host.store.perform(DraftCheckpoint("x", ""))
    assert row is not None
    return row


# ---- what a server commits late, and what another transaction holds -----------------------------


def test_what_is_committed_after_a_draft_is_behind_the_next_checkpoint() -> None:
    store = MemoryStore()
    rt = Runtime(store=store, tools=[note])
    done(rt, "early")
    draft = store.perform(DraftCheckpoint("x", ""))
    assert draft is not None
    done(rt, "late")
    assert store.perform(WriteCheckpoint(draft))
    rt.checkpoint()
    tree = store.perform(ReadRun("", "late"))
    assert tree is not None
    late = [event for event in store.events if event.run_id == "late"]
    assert read_heads(store.checkpoints[-1].heads) == [(tree.run.root, late[-1].n, late[-1].hash)]
    assert (rt.verify().ok, rt.verify().unanchored) == (True, 0)


def test_a_chain_that_could_not_be_marked_is_named_once_more_and_not_for_ever() -> None:
    class Locked(MemoryStore):
        """Another transaction holds every run: none is marked as covered."""

        def _row(self, op: Any) -> Any:
            return None if isinstance(op, MarkSealed) else super()._row(op)

    store = Locked()
    rt = Runtime(store=store, tools=[note])
    done(rt, "r")
    first = rt.checkpoint()
    assert first is not None
    assert len(store.checkpoints) == 1
    assert rt.checkpoint() != first
    assert [row.heads for row in store.checkpoints] == [store.checkpoints[0].heads] * 2
    assert (rt.verify().ok, rt.verify().unanchored) == (True, 0)


def test_a_busy_ledger_gets_one_checkpoint_at_a_time() -> None:
    class Busy(MemoryStore):
        """Somebody makes a call between any two steps of a checkpoint."""

        def perform(self, op: Any) -> Any:
            answer = super().perform(op)
            if isinstance(op, DraftCheckpoint | WriteCheckpoint) and is_busy:
                run.call(note, f"{len(self.events)}")
            return answer

    is_busy = True
    store = Busy()
    rt = Runtime(store=store, tools=[note])
    run = rt.open("busy")
    run.call(note, "first")
    rt.checkpoint()
    assert len(store.checkpoints) == 1, "what has happened since is for the next one"
    rt.checkpoint()
    assert len(store.checkpoints) == 2
    is_busy = False
    run.commit()
    rt.checkpoint()
    assert (rt.verify().ok, rt.verify().unanchored) == (True, 0)


def test_more_trees_than_one_checkpoint_names_get_as_many_as_they_need() -> None:
    store = MemoryStore()
    rt = Runtime(store=store, tools=[note])
    for number in range(HEADS_MAX + 1):
        rt.open(f"r{number}").commit()
    rt.checkpoint()
    assert [len(read_heads(row.heads)) for row in store.checkpoints] == [HEADS_MAX, 1]
    assert (rt.verify().ok, rt.verify().unanchored) == (True, 0)


def test_of_all_the_checkpoints_that_a_backlog_takes_only_one_is_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[int] = []

    class Counting(SqliteStore):
        """Counts the rows of this ledger's checkpoints in memory, each time that one more is drafted."""

        def perform(self, op: Any) -> Any:
            if isinstance(op, DraftCheckpoint):
                found = [one for one in gc.get_objects() if type(one) is CheckpointRow and one.ledger == name]
                alive.append(len(found))
            return super().perform(op)

    store = Counting(tmp_path / "ledger.db", "NORMAL")
    told: list[Checkpoint] = []
    with Runtime(store=store, tools=[note], on_checkpoint=told.append, checkpoint=3_600) as rt:
        for number in range(3 * HEADS_MAX + 1):
            rt.open(f"r{number}").commit()
        name = store.schema().ledger
        newest = rt.checkpoint()
        assert alive == [0, 1, 1, 1]
        assert [one.heads for one in told] == [HEADS_MAX, HEADS_MAX, HEADS_MAX, 1]
        assert told[-1] == newest


def test_a_mark_that_was_moved_ahead_hides_nothing() -> None:
    store = MemoryStore()
    rt = Runtime(store=store, tools=[note])
    done(rt, "r")
    store.sealed |= dict.fromkeys(store.runs, 1_000)
    assert rt.checkpoint() is not None
    assert rt.verify().unanchored == 0


# ---- not in the way ---------------------------------------------------------------------------


class Asked(MemoryStore):
    """Remembers what it was asked, and by whom."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []

    def perform(self, op: Any) -> Any:
        self.asked.append((threading.current_thread().name, type(op).__name__))
        return super().perform(op)


def test_a_run_asks_its_ledger_for_nothing_more(tmp_path: Path) -> None:
    asked = []
    for checkpoint in ("off", 3_600):
        store = Asked()
        rt = Runtime(store=store, tools=[note], checkpoint=checkpoint, anchor=str(tmp_path / f"{checkpoint}"))
        done(rt, "first")
        rt.checkpoint()
        store.asked.clear()
        done(rt, "second")
        done(rt, "third")
        asked.append([name for _, name in store.asked if name != "ReadCheckpoints"])
        assert [name for _, name in store.asked].count("ReadCheckpoints") == 1, "once in a process: was it put back?"
        rt.close()
    without, beside = asked
    assert beside == without
    assert {"OpenRun", "AdmitPlain", "SettlePlain", "DecideCommit"} <= set(beside)
    assert not {"DraftCheckpoint", "WriteCheckpoint"} & set(beside)


# ---- killed, and many at once -----------------------------------------------------------------


@pytest.mark.parametrize("dies", ["before", "after"])
def test_killed_around_the_anchor_the_next_process_catches_up(tmp_path: Path, dies: str) -> None:
    rt = Runtime(url(tmp_path), tools=[note], checkpoint=0)
    done(rt, "first")
    rt.close()
    pid = os.fork()
    if pid == 0:
        keep = Anchor.keep_checkpoint

        def dying(self: Anchor, newest: Any) -> bool:
            if dies == "after":
                keep(self, newest)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("dead by now")

        Anchor.keep_checkpoint = dying  # type: ignore[method-assign]
        done(Runtime(url(tmp_path), tools=[note], checkpoint=0), "second")
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    anchor = Anchor(tmp_path / "ledger.db.anchor")
    assert anchor.read().checkpoint.n == (1 if dies == "before" else 2)  # type: ignore[union-attr]
    with Runtime(url(tmp_path), tools=[note], checkpoint="off") as rt:
        done(rt, "third")  # an anchor that lags is not one that knows more
        assert [row.n for row in rows(rt)] == [1, 2]
        assert rt.verify().ok
        newest = rt.checkpoint()
        assert newest is not None
        assert anchor.read().checkpoint.hash == newest.hash  # type: ignore[union-attr]
        assert rt.verify().unanchored == 0


def test_processes_that_write_at_once_make_one_chain(tmp_path: Path) -> None:
    Runtime(url(tmp_path)).migrate()
    children = []
    for number in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                rt = Runtime(url(tmp_path), tools=[note], checkpoint=0)
                for run in range(5):
                    done(rt, f"{number}-{run}")
                rt.close()
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    with Runtime(url(tmp_path)) as rt:
        found = rt.verify()
        assert found.ok, str(found)
        assert (found.runs, found.unanchored) == (15, 0)
        mark = Anchor(tmp_path / "ledger.db.anchor").read()
        assert mark is not None
        assert mark.checkpoint == rows(rt)[-1].anchored
