"""One operation of the ledger on PostgreSQL, in both colours: connections, tries and commits as requests of a flow.

What was rolled back certainly is tried again here; what may have been committed is left to the driver, which
repeats it with its nonce.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from amends.encoding.chain import storable
from amends.ledger.dispatch import READS, intent
from amends.ledger.flow import Op
from amends.ledger.operations import ListRuns, ReadCall, ReadEvents, SearchCalls, StoreOp
from amends.stores.postgres import errors
from amends.stores.postgres.quick import QUICK
from amends.stores.postgres.url import Place
from amends.stores.postgres.wakeup import notify_said, notify_sql, topics_of
from amends.stores.sql import POSTGRES, Execute, Statements, Transaction, as_sql

T = TypeVar("T")

TRIES_MAX: Final = 6
"""How often an operation that the server has certainly undone is begun again."""
PAUSE_S: Final = 0.01
"""Before the second try; doubled for each further one, with jitter: who collided must not come back together."""

WRITING: Final = Statements(POSTGRES)
READING: Final = Statements(replace(POSTGRES, lock="", skip=""))
"""A transaction that only reads may not lock, and need not: it looks at one snapshot."""
ALONE: Final = (ReadCall, ListRuns, SearchCalls, ReadEvents)
"""Reads of one statement, which is its own snapshot."""


@dataclass(frozen=True, slots=True)
class Take(Op[None]):
    """Get a connection."""


@dataclass(frozen=True, slots=True)
class Say(Op[str]):
    """Statements without parameters and without rows; what the server says it did."""

    sql: str


@dataclass(frozen=True, slots=True)
class Give(Op[None]):
    """Put the connection back, or throw it away (and, ``others``: those that lie idle with it)."""

    keep: bool
    others: bool = False


@dataclass(frozen=True, slots=True)
class Pause(Op[None]):
    """Let some time pass."""

    seconds: float


class Preamble:
    """How transactions begin; behind a pooler they bring their settings along, because no session is ours."""

    def __init__(self, place: Place) -> None:
        own = f"; {settings_of(place, 'set local')}" if place.pooler == "transaction" else ""
        self.writing = f"begin isolation level read committed{own}"
        self.reading = f"begin isolation level repeatable read read only{own}"
        self.needed = bool(own)
        """Whether a statement cannot do without."""


def settings_of(place: Place, verb: str) -> str:
    """The settings that we need, as statements; ``verb``: for the session or for one transaction."""
    wait_ms = max(1, round(place.lock_wait_s * 1000))
    said = [
        f"{verb} lock_timeout = {wait_ms}",
        # A process that was stopped in the middle of a transaction must not keep its run from everybody for ever.
        f"{verb} idle_in_transaction_session_timeout = {max(1000, wait_ms)}",
    ]
    if place.schema:
        said.append(f"{verb} search_path = {quoted(place.schema)}")
    return "; ".join(said)


def quoted(name: str) -> str:
    """A name, safe from the reserved words and from whoever chose it."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


async def answered(op: StoreOp[T], preamble: Preamble, clock: Callable[[], float] | None, *, shown: str) -> T:
    """Carry out one operation; durable when this returns.

    Raises ``LedgerUnavailable`` when it did not happen, or when nobody can know.
    """
    pause = PAUSE_S
    fresh = False
    for tried in range(1, TRIES_MAX + 1):
        await Take()
        stage = Stage()
        try:
            answer = await _once(op, preamble, clock, stage)
        except Exception as error:
            fate = errors.fate_of(error, committing=stage.committing)
            await _put_away(fate)
            if fate == "own":
                raise
            if not fresh and (fate == "lost" or (fate == "unknown" and stage.quick)):
                # The server was restarted, perhaps while the connection lay idle: the next one is new.
                fresh, op.repeated = True, op.repeated or fate == "unknown"
                continue
            if fate != "again" or tried == TRIES_MAX:
                raise errors.explained(error, shown, op=op, fate=fate, tries=tried) from error
            await Pause(random.uniform(pause / 2, pause))
            pause *= 2
        else:
            await Give(keep=True)
            return answer
    raise AssertionError("the last try returns or raises")


@dataclass(slots=True)
class Stage:
    """How far a transaction has come."""

    committing: bool = False
    quick: bool = False
    """In one statement: it may have been committed as soon as it was sent, and repeated it gives its first answer."""


async def _once(op: StoreOp[T], preamble: Preamble, clock: Callable[[], float] | None, stage: Stage) -> T:
    if type(op) in READS:
        return await _read(op, preamble, clock)
    quick = None if preamble.needed else QUICK.get(type(op))
    if quick is not None:
        stage.committing = stage.quick = True
        done: T | None = await quick(op, clock)
        if done is not None:
            return done
        stage.committing = stage.quick = False
    await Say(preamble.writing)
    answer: T = await as_sql(intent(op), Transaction(WRITING, clock))
    topics = topics_of(op, answer)
    ring = notify_said(topics)
    if topics and not ring:
        await Execute(notify_sql(len(topics)), topics)
    stage.committing = True
    said = await Say(f"{ring}commit")
    assert said == "COMMIT", f"a commit was answered with {said}"
    return answer


async def _read(op: StoreOp[T], preamble: Preamble, clock: Callable[[], float] | None) -> T:
    if isinstance(op, ALONE) and not preamble.needed:
        alone: T = await as_sql(intent(op), Transaction(READING, clock))
        return alone
    await Say(preamble.reading)
    answer: T = await as_sql(intent(op), Transaction(READING, clock))
    await Say("commit")
    return answer


async def _put_away(fate: errors.Fate) -> None:
    """After an error: the connection is kept where the server only undid the transaction.

    Where it was lost, those that lie idle are most likely lost too.
    """
    keep = fate in ("own", "again", "undone")
    if keep:
        try:
            await Say("rollback")
        except Exception:
            keep = False
    await Give(keep=keep, others=fate in ("lost", "unknown"))


def clean(params: Any) -> tuple[Any, ...]:
    """The parameters without what PostgreSQL's text cannot hold: NUL is shown as ␀, half a character as ?.

    Only free texts come here with such a thing: identities that have one are refused before anything is begun.
    """
    return tuple(storable(one) if isinstance(one, str) else one for one in params)
