"""One file, while other threads of the process fork."""

import os
from pathlib import Path

import pytest

from tests.stores.many import child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")

START = """
    import asyncio, os, sys, threading, time
    from pathlib import Path
    from amends.stores.sqlite.store import SqliteStore
    from amends.testing.conformance.ledger import Clock, Ledger, audit

    gate = [lambda: None]
    def clock():
        gate[0]()
        return Clock.now
    def wait_for(condition):
        until = time.monotonic() + 10.0
        while not condition() and time.monotonic() < until:
            time.sleep(0.001)
    def fork():
        before = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if store._writer is None else 1)
        status = os.waitpid(pid, 0)[1]
        print("forked" if time.monotonic() - before < 15 else "late", os.waitstatus_to_exitcode(status))

    store = SqliteStore(Path(sys.argv[1]), "FULL", clock)
    store.open(create=True)
    ledger = Ledger(store)
    runs = [ledger.run(f"run {number}") for number in range(3)]
    ledger.start_plain(runs[0], args="[0]")
    store._threads().submit(int).result()  # from now on concurrent.futures has its own functions around forks
"""

QUEUED = """
    def until_a_loop_waits_behind_the_fork():
        gate[0] = lambda: None
        wait_for(lambda: store._commits._held and store._commits.queue)
    async def play():
        gate[0] = until_a_loop_waits_behind_the_fork
        threads = [threading.Thread(target=store.perform, args=(ledger.plain_op(runs[0], args="[1]"),))]
        threads[0].start()
        wait_for(lambda: store._commits._leader is not None)
        threads.append(threading.Thread(target=fork))
        threads[1].start()
        answer = await asyncio.wait_for(store.perform_async(ledger.plain_op(runs[1], args="[1]")), 20)
        print(type(answer).__name__)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    asyncio.run(play())
    audit(ledger)
    store.close()
"""

COPIED = """
    def until_the_fork_waits():
        gate[0] = lambda: None
        store._uncopied = store._copy_after  # after this operation a thread is asked to copy the log
        wait_for(lambda: store._commits._held)
    gate[0] = until_the_fork_waits
    threads = [threading.Thread(target=store.perform, args=(ledger.plain_op(runs[0], args="[1]"),))]
    threads[0].start()
    wait_for(lambda: store._commits._leader is not None)
    threads.append(threading.Thread(target=fork))
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    audit(ledger)
    store.close()
"""

AT_ONCE = """
    inside, most = [0], [0]
    before, after = store.before_fork, store.after_fork_in_parent
    def before_fork():
        before()
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)  # for the other thread to come here
    def after_fork_in_parent():
        inside[0] -= 1
        after()
    store.before_fork, store.after_fork_in_parent = before_fork, after_fork_in_parent
    stop = threading.Event()
    def write(run):
        number = 1
        while not stop.is_set():
            number += 1
            store.perform(ledger.plain_op(run, args=f"[{number}]"))
    writers = [threading.Thread(target=write, args=(run,)) for run in runs[1:]]
    ready = threading.Barrier(2)
    def forks():
        for _ in range(4):
            ready.wait(20)
            fork()
    forkers = [threading.Thread(target=forks) for _ in range(2)]
    for thread in (*writers, *forkers):
        thread.start()
    for thread in forkers:
        thread.join(60)
    stop.set()
    for thread in writers:
        thread.join(60)
    print("at most", most[0])
    audit(ledger)
    store.close()
"""

INTERRUPTED = """
    from amends.stores.sqlite import store as module
    turn, left = module._FORKS._turn, [KeyboardInterrupt]
    class Interrupted:
        def acquire(self):
            turn.acquire()
            if left:
                raise left.pop()
        def release(self):
            turn.release()
    module._FORKS._turn = Interrupted()
    assert os.fork() or os._exit(0) is None
    os.wait()
    other = threading.Thread(target=fork)  # another thread: the lock knows its own
    other.start()
    other.join(20)
    assert not other.is_alive()
    store.perform(ledger.plain_op(runs[0], args="[1]"))
    audit(ledger)
    store.close()
"""


def test_a_fork_hands_the_lead_to_an_operation_of_a_loop_and_does_not_wait_for_itself(tmp_path: Path) -> None:
    assert sorted(child(START + QUEUED, tmp_path / "ledger.db").split("\n")) == ["", "Started", "forked 0"]


def test_a_fork_does_not_wait_for_a_writer_that_asks_a_thread_to_copy_the_log(tmp_path: Path) -> None:
    assert child(START + COPIED, tmp_path / "ledger.db") == "forked 0\n"


def test_two_threads_fork_one_after_the_other(tmp_path: Path) -> None:
    lines = child(START + AT_ONCE, tmp_path / "ledger.db").splitlines()
    assert lines == ["forked 0"] * 8 + ["at most 1"]


def test_an_interrupt_as_a_fork_takes_its_turn_keeps_no_later_fork_waiting(tmp_path: Path) -> None:
    assert child(START + INTERRUPTED, tmp_path / "ledger.db") == "forked 0\n"
