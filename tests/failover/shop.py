"""A shop whose sagas end at the bank, and a pair of PostgreSQL servers under its ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from amends import Absent, Call, Happened, Runtime, current_call, tool
from amends.errors import InDoubt, LedgerError, RolledBack, RunBlocked, Waiting
from tests.failover.bank import Bank
from tests.servers.databases import execute
from tests.servers.fixtures import unavailable
from tests.servers.found import Unavailable
from tests.servers.postgres import PostgresServer

LEASE_S: Final = 2.0
SETTLE_S: Final = 0.2
"""The bank does what it does at once."""
PATIENCE_S: Final = 90
FINAL: Final = ("committed", "rolled_back")


class Pair:
    """A primary and its standby. ``mode``: ``synchronous_commit``; empty: the standby is asynchronous."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.primary = PostgresServer(tcp=True).start()
        self.standby = self.primary
        try:
            self.name = self.primary.create_database().rpartition("/")[2]
            self.add_standby()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """The database on both hosts; the standby comes first, which is the harder order."""
        hosts = f"127.0.0.1:{self.standby.port},127.0.0.1:{self.primary.port}"
        return f"postgresql://postgres@{hosts}/{self.name}?target_session_attrs=read-write"

    def add_standby(self) -> None:
        """The primary has a standby that has everything, and waits for it from now on if this is synchronous."""
        self.standby = PostgresServer.standby_of(self.primary).start()
        self.wait_for(self.primary, "select count(*) = 1 from pg_stat_replication where state = 'streaming'")
        if self.mode:
            commands = [
                "alter system set synchronous_standby_names = '*'",
                f"alter system set synchronous_commit = '{self.mode}'",
                "select pg_reload_conf()",
            ]
            execute(self.primary.url(), commands)
            self.wait_for(self.primary, "select bool_or(sync_state = 'sync') from pg_stat_replication")

    def cut_off(self) -> None:
        """The standby receives nothing any more: it is as old as now."""
        self.catch_up()
        execute(self.standby.url(), ["alter system set primary_conninfo = ''", "select pg_reload_conf()"])
        self.wait_for(self.primary, "select count(*) = 0 from pg_stat_replication")

    def catch_up(self) -> None:
        """The standby has everything."""
        [(lsn,)] = execute(self.primary.url(), ["select pg_current_wal_lsn()"])
        self.wait_for(self.standby, f"select pg_last_wal_replay_lsn() >= '{lsn}'")

    def fail_over(self) -> None:
        """The primary is dead, and its standby is the primary; there is no standby."""
        self.primary.kill()
        self.standby.promote()
        self.primary, old = self.standby, self.primary
        self.standby = old

    def replace(self) -> None:
        """The dead server is gone, and a new standby is a copy of the primary."""
        self.standby.close()
        self.add_standby()

    def close(self) -> None:
        self.primary.close()
        self.standby.close()

    @staticmethod
    def wait_for(server: PostgresServer, question: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while execute(server.url(), [question]) != [(True,)]:
            assert time.monotonic() < until, f"never true: {question}"
            time.sleep(0.02)


@contextmanager
def pair(mode: str) -> Iterator[Pair]:
    try:
        made = Pair(mode)
    except Unavailable as refusal:
        unavailable(refusal)
    try:
        yield made
    finally:
        made.close()


class Shop:
    """Tools whose effects are at the bank. ``at(n, act)``: ``act`` when the bank is asked for the nth time."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self._lock = threading.Lock()
        self._count, self._at = 0, 0
        self._act: Callable[[], None] = lambda: None
        self._after = False
        self.tools = {one.name: one for one in self._made()}

    def at(self, n: int, act: Callable[[], None], *, after: bool) -> None:
        """Act at the nth request from now on, before the bank has it or after it has answered."""
        with self._lock:
            self._count, self._at, self._act, self._after = 0, n, act, after

    def ask(self, what: str, key: str) -> str:
        with self._lock:
            self._count += 1
            is_it = self._count == self._at
        if is_it and not self._after:
            self._act()
        answer = self.bank.do(what, key)
        if is_it and self._after:
            self._act()
        return answer

    def _made(self) -> list[Any]:
        def found(call: Call) -> Any:
            return Happened(f"{call.tool}-{call.key[:8]}") if self.bank.has(call.tool, call.key) else Absent()

        def taken_back(call: Call) -> Any:
            return Happened() if self.bank.has(f"undo {call.tool}", call.key) else Absent()

        def make(name: str, **options: Any) -> Any:
            @tool(name=name, key="order", **options)
            def body(order: str) -> str:
                return self.ask(name, current_call().key)

            @body.list_effects
            def listed() -> list[str]:
                book = self.bank.book()
                return [key for (what, key), _ in book.items() if what == name and not book[f"undo {name}", key]]

            body.probe(settle=SETTLE_S)(found)
            if options.get("kind", "compensatable") == "compensatable":

                @body.compensate(probe=taken_back)
                def undo(call: Call) -> None:
                    self.ask(f"undo {name}", call.key)

            return body

        reserve, charge = make("reserve"), make("charge")
        return [reserve, charge, make("wire", kind="pivot"), make("mail", kind="retriable")]

    def runtime(self, url: str, **options: Any) -> Runtime:
        return Runtime(url, tools=list(self.tools.values()), **{"lease": LEASE_S, "wait": LEASE_S * 3} | options)


class Changed(Exception):
    """The customer has changed their mind."""


def saga(shop: Shop, rt: Runtime, run_id: str, *, fails: bool = False) -> None:
    """Buy something; every run that fails is to be taken back."""
    with rt.run(run_id, interrupted="commit") as run:
        run.call(shop.tools["reserve"], order=run_id)
        run.call(shop.tools["charge"], order=run_id)
        if fails:
            raise Changed
        run.call(shop.tools["wire"], order=run_id)
        run.call(shop.tools["mail"], order=run_id)


def load(shop: Shop, rt: Runtime, names: list[str], *, threads: int) -> list[BaseException]:
    """Every saga was tried once, by so many threads; every third fails. Return what else went wrong in them."""
    left, lock, wrong = list(enumerate(names)), threading.Lock(), list[BaseException]()

    def work() -> None:
        while True:
            with lock:
                if not left:
                    return
                place, name = left.pop(0)
            try:
                saga(shop, rt, name, fails=place % 3 == 2)
            except Changed:
                continue
            except (LedgerError, Waiting, InDoubt, RunBlocked, RolledBack) as error:
                wrong.append(error)  # it was cut off

    working = [threading.Thread(target=work, daemon=True) for _ in range(threads)]
    for one in working:
        one.start()
    for one in working:
        one.join(PATIENCE_S)
        assert not one.is_alive(), "a saga did not end"
    return wrong


def recover(rt: Runtime) -> None:
    """A worker has ended every run."""
    until = time.monotonic() + PATIENCE_S
    while open_runs := [run for run in rt.runs() if run.state not in FINAL]:
        assert time.monotonic() < until, [(run.id, run.state) for run in open_runs]
        rt.recover()
        time.sleep(0.1)


def compare(rt: Runtime, bank: Bank) -> dict[str, int]:
    """Compare every call in the ledger with the bank's book, key by key."""
    book, told = bank.book(), dict.fromkeys(("runs", "calls", "duplicated", "lost", "unknown"), 0)
    known = set[str]()
    for run in rt.runs():
        told["runs"] += 1
        for call in rt.report(run.id).calls:
            told["calls"] += 1
            known.add(call.key)
            done, undone = book[(call.tool, call.key)], book[(f"undo {call.tool}", call.key)]
            wanted = {"succeeded": (1, 0), "compensated": (1, 1)}.get(call.state, (0, 0))
            told["duplicated"] += max(0, done - wanted[0]) + max(0, undone - wanted[1])
            told["lost"] += max(0, wanted[0] - done) + max(0, wanted[1] - undone)
    told["unknown"] = sum(1 for _, key in book if key not in known)
    return told
