"""Waking waiters in other processes: NOTIFY inside the transaction, LISTEN in a thread.

A notification is only a hint: it may be lost, late, or for nothing. Whoever gets one reads the ledger, and reads it
again after a bounded time anyway.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from amends.ledger import operations
from amends.ledger.operations import StoreOp
from amends.ledger.plain import TurnPlain, UndonePlain
from amends.visible import visible_log

log = visible_log("amends")

CHANNEL: Final = "'amends_' || md5(current_schema())"
"""SQL: ledgers in one database differ by their schema; a channel's name has at most 63 bytes."""
ANYTHING: Final = ""
"""The topic for notifications that may have been missed."""
LISTEN_S: Final = 0.5
"""How long the thread listens before it checks whether it should stop."""
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 10.0
"""Between two attempts to connect."""

Ring = Callable[[str], None]

PERSONS: Final = (operations.DecideCall, operations.RetryCall, operations.ResolveCall)
RUNS: Final = (operations.CloseRun, operations.AbandonRun, operations.FinishRun, operations.ReleaseLease)
SETTLED: Final = (operations.SettleCall, operations.SettleCompensation)


def topics_of(op: StoreOp[Any], answer: Any) -> tuple[str, ...]:
    """Return the roots whose waiters in other processes may continue after this operation.

    None after the settlement of a call that only its own run waits for: its waiters are in the owner's process, and
    PostgreSQL commits transactions that notify one after another.
    """
    if isinstance(op, operations.DecideApproval | operations.EditApproval):
        return (answer.call.root,)
    if isinstance(op, TurnPlain | UndonePlain):
        op = op.general()
    if isinstance(op, SETTLED):
        call = answer.call
        if isinstance(op, operations.SettleCompensation) and isinstance(op.then, operations.CloseRun) and answer.then:
            return (call.root,)  # its run was closed with it
        return (call.root,) if call.scope == "ledger" or call.kind == "pivot" else ()
    if isinstance(op, (*PERSONS, *RUNS)):
        return (answer.root,)
    if isinstance(op, operations.DecideCommit | operations.BeginRollback):
        return (answer.run.root,) if answer.how not in ("unsettled", "early", "refused", "ended") else ()
    if isinstance(op, operations.ClaimRun):
        return () if answer is None else (answer.root,)
    if isinstance(op, operations.OpenRun):
        return (answer.run.root,) if answer.how == "resumed" else ()
    return ()


def notify_sql(count: int) -> str:
    """Return the statement that notifies this number of topics when the transaction commits."""
    return f"select {', '.join([f'pg_notify({CHANNEL}, %s)'] * count)}"


def notify_command(topics: Sequence[str]) -> str:
    """Return the same with literals, to be sent with the commit; empty: no topic, or one that would need quoting."""
    if not topics or not all(_is_word(topic) for topic in topics):
        return ""
    calls = [f"pg_notify({CHANNEL}, '{topic}')" for topic in topics]
    return f"select {', '.join(calls)}; "


def _is_word(topic: str) -> bool:
    return topic.isascii() and topic.replace("_", "").isalnum()


class Listening(Protocol):
    """The connection of the watching thread, outside any transaction."""

    def listen(self) -> None:
        """Listen to the ledger's notifications from now on."""
        ...

    def notices(self, wait_s: float) -> Iterable[str]:
        """Return the topics of the notifications that arrive within this time."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Watch:
    """A thread that calls ``ring`` for every notification, and with ``ANYTHING`` after each reconnect. It never raises."""

    def __init__(self, connect: Callable[[], Listening], ring: Ring) -> None:
        self._connect, self._rings = connect, [ring]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="amends-watch", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it still listens or tries to."""
        return self._thread.is_alive() and not self._over.is_set()

    def tell(self, ring: Ring) -> None:
        """Call this one too: a store may serve several runtimes."""
        if ring not in self._rings:
            self._rings.append(ring)

    def close(self) -> None:
        """Stop the thread, which closes its connection."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(LISTEN_S * 4)

    def _run(self) -> None:
        pause = PAUSE_S
        while not self._over.is_set():
            try:
                connection = self._connect()
                try:
                    connection.listen()
                    pause = PAUSE_S
                    self._listen(connection)
                finally:
                    connection.close()
            except Exception as error:
                log.info("no notifications from the ledger for now, waiters poll instead: %s", error)
            self._over.wait(random.uniform(pause / 2, pause))
            pause = min(pause * 2, PAUSE_S_MAX)

    def _listen(self, connection: Listening) -> None:
        self._ring(ANYTHING)
        while not self._over.is_set():
            for topic in connection.notices(LISTEN_S):
                self._ring(topic)

    def _ring(self, topic: str) -> None:
        for ring in self._rings:
            ring(topic)
