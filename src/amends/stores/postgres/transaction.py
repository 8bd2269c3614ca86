"""One transaction on PostgreSQL: how it begins and commits, which errors are retried, and how often."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.encoding.chain import storable
from amends.ledger.dispatch import READS, intent
from amends.ledger.operations import ReadCall, StoreOp
from amends.stores.postgres import errors
from amends.stores.postgres.quick import QUICK, Plain
from amends.stores.postgres.url import Address
from amends.stores.postgres.wakeup import notify_command, notify_sql, topics_of
from amends.stores.retry import Command, Fate
from amends.stores.sql import POSTGRES, Execute, Statements, Transaction, as_sql

T = TypeVar("T")

ATTEMPTS_MAX: Final = 6
"""The attempts at an operation that the server has certainly rolled back."""
PAUSE_S: Final = 0.01
"""Before the second attempt; doubled for each further one, with jitter: transactions that met must not meet again."""

WRITING: Final = Statements(POSTGRES)
READING: Final = Statements(replace(POSTGRES, lock="", skip=""))
"""A transaction that only reads may not lock, and need not: it reads one snapshot."""
PLANNED_ONCE: Final = {
    "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
}  # fmt: skip
"""A plain statement finds every row by its number: one plan serves all values, and as long as the ledger lives. Left to
itself, the server compares that plan with plans for the values, by costs that it estimated when the tables were empty, and may
then plan a statement anew each time, which takes longer than to carry it out. Or it reads a table from its beginning to
its end, which is cheapest while the table has few rows, and goes on with that plan when it has a million."""
PLANNED_AGAIN: Final = "set local plan_cache_mode = auto; " + "; ".join(
    f"set local {name} to default" for name in PLANNED_ONCE if name.startswith("enable_")
)
"""The general statements have values that matter, such as a rare state, which has an index of its own."""


class Preamble:
    """The statements that begin a transaction.

    Behind a pooler they include our settings, because no session is ours.
    """

    def __init__(self, address: Address) -> None:
        self.needed = address.pooler == "transaction"
        """Whether even a single statement needs it."""
        own = settings_of(address, "set local") if self.needed else PLANNED_AGAIN
        self.writing = f"begin isolation level read committed; {own}"
        self.reading = f"begin isolation level repeatable read read only; {own}"


def settings_of(address: Address, verb: str) -> str:
    """Return the settings that we need, as statements; ``verb``: for the session or for one transaction."""
    wait_ms = max(1, round(address.lock_wait_s * 1000))
    settings = [
        f"{verb} lock_timeout = {wait_ms}",
        # A process that was stopped in the middle of a transaction must not lock its run for ever.
        f"{verb} idle_in_transaction_session_timeout = {max(1000, wait_ms)}",
    ]
    if address.schema:
        settings.append(f"{verb} search_path = {quoted(address.schema)}")
    if verb == "set":
        settings += [f"set {name} = {value}" for name, value in PLANNED_ONCE.items()]
        settings.append("set jit = off")  # no statement of ours runs long enough to be worth compiling
    return "; ".join(settings)


def quoted(name: str) -> str:
    """Return a name, quoted against reserved words and against injection."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


class Attempts:
    """The attempts at one operation: see ``amends.stores.retry``. ``shown``: the ledger's URL without its password."""

    attempts_max = ATTEMPTS_MAX
    kept: frozenset[Fate] = frozenset({"own", "again", "undone"})

    def __init__(
        self, op: StoreOp[Any], preamble: Preamble, clock: Callable[[], float] | None, plain: Plain, *, shown: str,
        quick: bool = True,
    ) -> None:  # fmt: skip
        self.op, self._preamble, self._clock, self._plain, self._shown = op, preamble, clock, plain, shown
        self._may_be_quick = quick and not preamble.needed
        self._backoff_s = PAUSE_S
        self._reconnected = False
        self._committing = False
        self._quick = False
        """One statement is the whole transaction: it may be committed as soon as it was sent, and repeated it gives
        its first answer."""

    async def attempt(self) -> Any:
        """Carry out the operation by one quick statement if that is enough, else by its flow."""
        self._committing = self._quick = False
        op, preamble, clock = self.op, self._preamble, self._clock
        if type(op) in READS:
            return await _read(op, preamble, clock)
        quick = QUICK.get(type(op)) if self._may_be_quick else None
        if quick is not None:
            self._committing = self._quick = True
            done = await quick(self._plain, op)
            if done is not None:
                return done
            self._committing = self._quick = False
        await Command(preamble.writing)
        tx = Transaction(WRITING, clock, self._plain)
        answer = await as_sql(intent(op), tx)
        topics = topics_of(op, answer)
        notify = notify_command(topics)
        if topics and not notify:
            await Execute(notify_sql(len(topics)), topics)
        self._committing = True
        done = await Command(f"{notify}commit")
        assert done == "COMMIT", f"a commit was answered with {done}"
        self._plain.remember(op, answer, tx)
        return answer

    def fate_of(self, error: Exception) -> Fate:
        """Return what became of the transaction of the last attempt."""
        return errors.fate_of(error, committing=self._committing)

    def pause_s(self, error: Exception, fate: Fate, attempt: int) -> float | None:
        """Retry once on a new connection, and repeatedly after a conflict with another transaction."""
        if fate in ("lost", "unknown"):
            self._plain.forget_all()
        if not self._reconnected and (fate == "lost" or (fate == "unknown" and self._quick)):
            # The server was restarted, perhaps while the connection was idle.
            self._reconnected = True
            return 0.0
        if fate != "again":
            return None
        backoff_s, self._backoff_s = self._backoff_s, self._backoff_s * 2
        return random.uniform(backoff_s / 2, backoff_s)

    def explained(self, error: Exception, fate: Fate, attempt: int) -> Exception:
        """Return the error in the caller's words."""
        return errors.explained(error, self._shown, op=self.op, fate=fate, tries=attempt)


async def _read(op: StoreOp[T], preamble: Preamble, clock: Callable[[], float] | None) -> T:
    if isinstance(op, ReadCall) and not preamble.needed:  # one statement, which finds its row by a number
        alone: T = await as_sql(intent(op), Transaction(READING, clock))
        return alone
    await Command(preamble.reading)
    answer: T = await as_sql(intent(op), Transaction(READING, clock))
    await Command("commit")
    return answer


def clean(params: Any) -> tuple[Any, ...]:
    """Replace what PostgreSQL's text cannot hold: NUL by ␀, a lone surrogate by ?.

    Only free text can have such a character here: an identity that has one is refused before anything begins.
    """
    return tuple(storable(one) if isinstance(one, str) else one for one in params)
