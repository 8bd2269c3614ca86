"""Waking those who wait in other processes: NOTIFY inside the transaction, LISTEN in a thread of its own.

A bell, never the truth: a notice may be lost, come late, or come for nothing. Who is rung looks at the ledger, and
looks again after a bounded time anyway.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from amends.ledger import operations
from amends.ledger.operations import StoreOp
from amends.visible import visible_log

log = visible_log("amends")

CHANNEL: Final = "'amends_' || md5(current_schema())"
"""SQL: ledgers in one database are kept apart by their schema; a channel's name has at most 63 bytes."""
ANYTHING: Final = ""
"""The topic that is rung when notices may have been missed."""
LISTEN_S: Final = 0.5
"""How long the thread listens before it looks whether it shall end."""
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 10.0
"""Between two attempts to connect."""

Ring = Callable[[str], None]

PERSONS: Final = (operations.DecideCall, operations.RetryCall, operations.ResolveCall)
RUNS: Final = (operations.CloseRun, operations.AbandonRun, operations.FinishRun, operations.LetGo)
SETTLED: Final = (operations.SettleCall, operations.SettleCompensation)


def topics_of(op: StoreOp[Any], answer: Any) -> tuple[str, ...]:
    """The roots whose waiters in other processes may go on after this operation.

    Not after the settling of a call that only its own run waits for: its waiters live in the owner's process, and
    transactions that notify are committed one after another.
    """
    if isinstance(op, operations.DecideApproval | operations.EditApproval):
        return (answer.call.root,)
    if isinstance(op, SETTLED):
        call = answer.call
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
    """The statement that rings so many topics when the transaction is committed."""
    return f"select {', '.join([f'pg_notify({CHANNEL}, %s)'] * count)}"


def notify_command(topics: Sequence[str]) -> str:
    """The same in words, to be said together with the commit; empty: none, or a topic that would have to be quoted."""
    if not topics or not all(_is_word(topic) for topic in topics):
        return ""
    rings = [f"pg_notify({CHANNEL}, '{topic}')" for topic in topics]
    return f"select {', '.join(rings)}; "


def _is_word(topic: str) -> bool:
    return topic.isascii() and topic.replace("_", "").isalnum()


class Listening(Protocol):
    """A connection of its own, outside any transaction."""

    def listen(self) -> None:
        """From now on the ledger's notices are kept for us."""
        ...

    def notices(self, wait_s: float) -> Iterable[str]:
        """The topics of the notices that come in this time."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...


class Watch:
    """A thread that rings for every notice, and for anything after each reconnect. Nothing is ever raised from it."""

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
        """Ring this one too: a store may serve several runtimes."""
        if ring not in self._rings:
            self._rings.append(ring)

    def close(self) -> None:
        """End the thread; its connection ends with it."""
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
                log.info("no notices from the ledger for now, waiters look for themselves: %s", error)
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
