"""The line breaks while a transaction commits: what nobody can know is said, and found out by asking again."""

import asyncio
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from amends.encoding.ids import new_number
from amends.errors import LedgerUnavailable
from amends.ledger import operations as ops
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettlePlain, Started
from amends.stores.mysql.connection import EXECUTE
from amends.stores.mysql.store import MysqlStore
from amends.testing.conformance.ledger import Ledger, audit
from tests.stores.many import wait_for


def _commits(data: bytes) -> bool:
    """Whether this is the end of a transaction, or a plain step, which is a whole one and a prepared statement."""
    return data.endswith(b"commit") or b"call amends_" in data or data[4:5] == bytes([EXECUTE])


class Relay:
    """Stands between store and server, and cuts the line at a COMMIT: before it arrives, or before its answer does.

    A plain step is one prepared statement, or a procedure that commits.
    """

    def __init__(self, folder: Path, upstream: str) -> None:
        self.path = str(folder / "relay")
        self.upstream = upstream
        self.cut = ""
        self.cuts = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self.upstream)
            for source, target, is_request in ((near, far, True), (far, near, False)):
                thread = threading.Thread(target=self._carry, args=(source, target, is_request), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, source: socket.socket, target: socket.socket, is_request: bool) -> None:
        with source:
            while True:
                try:
                    data = source.recv(1 << 16)
                except OSError:
                    data = b""
                if data and is_request and self.cut and _commits(data):
                    how, self.cut = self.cut, ""
                    self.cuts += 1
                    if how == "answer":
                        source.shutdown(socket.SHUT_RDWR)  # what the server says reaches nobody
                        target.sendall(data)
                        return  # the other direction ends when the server has done it
                    data = b""
                try:
                    if data:
                        target.sendall(data)
                        continue
                    target.shutdown(socket.SHUT_RDWR)
                    source.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                return


@pytest.mark.parametrize("cut, kept", [("request", 0), ("answer", 1)])
def test_an_answer_to_commit_that_is_lost_is_said_and_found_again(
    mysql_url: str, tmp_path: Path, cut: str, kept: int
) -> None:
    sockets = parse_qs(urlsplit(mysql_url).query).get("unix_socket")
    if not sockets:
        pytest.skip("the given server is not reached by a socket")
    relay = Relay(tmp_path, sockets[0])
    store = MysqlStore(mysql_url.replace(sockets[0], relay.path), pool_max=1)
    ledger, beside = Ledger(store), Ledger(MysqlStore(mysql_url))
    run = ledger.run()
    op = ledger.admit_op(run, again="said")  # no plain one: that finds out by itself, see below
    relay.cut = cut
    with pytest.raises(LedgerUnavailable, match="nobody knows whether it did") as lost:
        store.perform(op)
    assert lost.value.hint
    assert relay.cuts == 1
    wait_for(lambda: len(beside.calls()) == kept)
    op.repeated = True
    answer = store.perform(op)
    assert answer.call is not None
    assert (answer.verdict, answer.call.id) == ("start", op.call_id)
    assert len(ledger.calls()) == 1
    audit(ledger)
    store.close()
    beside.store.close()
    relay.close()


@pytest.mark.parametrize("cut", ["request", "answer"])
def test_a_plain_call_whose_answer_is_lost_is_asked_for_again_and_started_once(
    mysql_url: str, tmp_path: Path, cut: str
) -> None:
    sockets = parse_qs(urlsplit(mysql_url).query).get("unix_socket")
    if not sockets:
        pytest.skip("the given server is not reached by a socket")
    relay = Relay(tmp_path, sockets[0])
    ledger = Ledger(MysqlStore(mysql_url.replace(sockets[0], relay.path), pool_max=1))
    run = ledger.run()
    plain = PlainRun(run.uid, run.id, run.tenant, run.agent, run.principal, "a", run.epoch)
    tool = PlainTool("charge", "1", "compensatable", 0, 1)
    first = AdmitPlain(plain, tool, new_number(), b"1" * 32, b"2" * 32, b"3" * 32, "{}")
    assert ledger(first).verdict == "start"  # the flow: the ledger does not know the tool yet
    op = AdmitPlain(plain, tool, new_number(), b"4" * 32, b"5" * 32, b"6" * 32, "{}")
    relay.cut = cut
    call = ledger(op).call  # by the flow, which finds out
    assert (relay.cuts, call.id, call.attempt) == (1, op.call_id, 1)
    ledger(SettlePlain(Started(op, call.seq, call.created_at), "1"))  # so that the end of the chain is known again
    op = AdmitPlain(plain, tool, new_number(), b"7" * 32, b"8" * 32, b"9" * 32, "{}")
    other = ledger(op).call
    relay.cut = cut
    ledger(SettlePlain(Started(op, other.seq, other.created_at), "1"))
    assert relay.cuts == 2
    for done in (call, other):
        assert ledger.look(done).state == "succeeded"
        assert [event.to_state for event in ledger.events(run) if event.call == done.id] == ["started", "succeeded"]
    audit(ledger)
    ledger.store.close()
    relay.close()


def test_an_event_loop_goes_on_while_the_server_does_not_answer() -> None:
    """Whoever opens the ledger waits in a thread, and the next operation of the loop waits in another."""
    silent = socket.create_server(("127.0.0.1", 0))
    store = MysqlStore(f"mysql://root@127.0.0.1:{silent.getsockname()[1]}/ledger?lock_wait_s=1&connect_s=3")

    async def play() -> float:
        reads = [asyncio.create_task(store.perform_async(ops.ReadRun("", uid="run"))) for _ in range(2)]
        longest, began = 0.0, time.monotonic()
        while time.monotonic() - began < 1.0:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)
        silent.close()  # now the connection is reset, and the next one refused
        for found in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(found, LedgerUnavailable)
        return longest

    with closing(silent), closing(store):
        assert asyncio.run(play()) < 0.8
