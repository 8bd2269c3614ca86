"""What PostgreSQL's errors mean for the transaction and for the connection, and how they are explained to people."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg

from amends.errors import BadConfig, Error, LedgerCorrupt, LedgerMissing, LedgerUnavailable
from amends.ledger.operations import StoreOp
from amends.stores.retry import Fate

AGAIN: Final = frozenset({"40001", "40P01", "23505"})
"""Serialization failure, deadlock, and a key or run id that somebody else has inserted first."""
GONE: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""The server ends the session: shutdown, crash, start-up, or a session that was idle for too long."""

NOTHING: Final = "nothing of this was written"
OPEN_TRANSACTIONS: Final = (
    "look for an open transaction: select pid, state, xact_start, query from pg_stat_activity where state like "
    "'idle in transaction%'"
)


def fate_of(error: Exception, *, committing: bool) -> Fate:
    """Return what became of the transaction in which this was raised."""
    if not isinstance(error, psycopg.Error):
        return "own"
    code = error.sqlstate or ""
    if code in AGAIN:
        return "again"
    if code in GONE or code.startswith("08") or (not code and not isinstance(error, psycopg.DataError)):
        return "unknown" if committing else "lost"
    return "undone"


def explained(error: Exception, shown: str, *, op: StoreOp[Any] | None, fate: Fate, tries: int = 1) -> Exception:
    """Return the error in the caller's words.

    ``shown`` is the ledger's URL without its password, and ``op`` the operation; None: a migration.
    """
    code = getattr(error, "sqlstate", None) or ""
    what = _message(error)
    if fate == "unknown":
        return LedgerUnavailable(
            f"the connection to the ledger at {shown} was lost between a commit and its answer: it is unknown whether "
            f"{_name(op)} was written ({what})",
            hint="the same operation, repeated, finds out; amends does that while the lease is valid",
        )
    if fate == "lost":
        return LedgerUnavailable(
            f"the ledger at {shown} closed the connection; {NOTHING} ({what})",
            hint="see the server's log: it was restarted, failed over, or ended this session",
        )
    if fate == "again" and code == "23505":
        return AssertionError(f"{_name(op)} breaks a rule of the schema, {tries} times: {what}")
    if fate == "again":
        return LedgerUnavailable(
            f"the ledger at {shown} rolled back {_name(op)} {tries} times because of other transactions; {NOTHING} ({what})",
            hint="something else locks rows of the ledger; " + OPEN_TRANSACTIONS,
        )
    return _undone(code, what, shown, op)


def _undone(code: str, what: str, shown: str, op: StoreOp[Any] | None) -> Exception:
    match code:
        case "55P03":
            return LedgerUnavailable(
                f"{_subject(op)} is locked by another transaction in the ledger at {shown}, which did not end in time; "
                f"{NOTHING}",
                hint=OPEN_TRANSACTIONS,
            )
        case "57014":
            return LedgerUnavailable(
                f"the ledger at {shown} cancelled {_name(op)}; {NOTHING} ({what})",
                hint="somebody cancelled it, or statement_timeout of this role or database is too short",
            )
        case "25006" | "0A000" if code == "25006" or "recovery" in what:
            return LedgerUnavailable(
                f"the ledger at {shown} is read-only; {NOTHING}",
                hint="it is a replica, or default_transaction_read_only is on: name the primary, or all hosts with "
                "target_session_attrs=read-write",
            )
        case "53100":
            return LedgerUnavailable(
                f"no space is left for the ledger at {shown}; {NOTHING}", hint="make room on the server's disk"
            )
        case "42P01" | "3F000":
            return LedgerMissing(
                f"no ledger at {shown}: its tables do not exist ({what})",
                hint="check the database and the option schema=; was it dropped or restored while amends was running?",
            )
        case "42501":
            return LedgerUnavailable(
                f"this role may not use the ledger at {shown}: {what}",
                hint="it needs usage of the schema and select, insert and update on amends_schema, runs, calls, events",
            )
        case "XX001" | "XX002":
            return LedgerCorrupt(
                f"the ledger at {shown} is damaged: {what}", hint="stop all workers and restore the newest backup"
            )
        case _ if code.startswith(("53", "58", "XX")):
            return LedgerUnavailable(
                f"the server of the ledger at {shown} has a problem; {NOTHING} ({what})", hint="see its log"
            )
        case _ if code.startswith(("22", "23", "42")):
            return AssertionError(f"{_name(op)} breaks a rule of the schema: {code} {what}")
    return LedgerUnavailable(f"the ledger at {shown} refused {_name(op)}; {NOTHING} ({code} {what})")


# ---- Connecting

# libpq gives no code for a refused connection, only the server's message.
REFUSALS: Final = (
    (r"password authentication failed|no password supplied|authentication failed|no pg_hba\.conf entry", "login"),
    (r'role ".*" does not exist|is not permitted to log in', "login"),
    (r'database ".*" does not exist|no such database', "database"),
    (r"permission denied for database|does not have CONNECT privilege", "login"),
    (r"too many (?:clients|connections)|remaining connection slots|no more connections allowed", "full"),
    (r"starting up|shutting down|in recovery mode|not yet accepting connections", "starting"),
    (r"session is read-only|not in hot standby|session is not read-only|server is in hot standby", "replica"),
    (r"invalid connection option|invalid URI|unsupported startup parameter|invalid .* value", "url"),
)


def why_not_connected(error: Exception, shown: str, *, opened: bool) -> Error:
    """Return why there is no connection.

    ``opened``: there was one before, so the URL is right and the error may be temporary.
    """
    what = _message(error)
    kind = next((kind for pattern, kind in REFUSALS if re.search(pattern, what)), "")
    if kind in ("login", "database", "url") and opened:
        return LedgerUnavailable(
            f"the ledger at {shown} refuses new connections now; {NOTHING} ({what})",
            hint="was a password changed, or the database dropped or renamed, while amends was running?",
        )
    match kind:
        case "login":
            return BadConfig(
                f"the server refuses the login for {shown}: {what}",
                setting="url",
                hint="check user and password; a password may also come from PGPASSWORD or ~/.pgpass",
            )
        case "database":
            return LedgerMissing(
                f"no ledger at {shown}: {what}", hint="check the name; amends creates its tables, not the database"
            )
        case "url":
            return BadConfig(
                f"the server or libpq does not accept the options for {shown}: {what}",
                setting="url",
                hint="behind PgBouncer, leave out options that it does not know, or list them in its ignore_startup_parameters",
            )
        case "full":
            return LedgerUnavailable(
                f"the server of {shown} has no connection left; {NOTHING} ({what})",
                hint="lower pool_max (times processes), raise max_connections, or put a pooler in between",
            )
        case "replica":
            return LedgerUnavailable(
                f"no host of {shown} accepts writes; {NOTHING} ({what})", hint="wait for the failover"
            )
        case _:
            return LedgerUnavailable(
                f"the server of {shown} does not answer; {NOTHING} ({what})",
                hint="check that it is running, and the host and port",
            )


def _message(error: Exception) -> str:
    """Return the server's message on one line; libpq's messages contain no password."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((primary or str(error) or type(error).__name__).split())


def _name(op: StoreOp[Any] | None) -> str:
    return "the migration" if op is None else type(op).__name__


def _subject(op: StoreOp[Any] | None) -> str:
    """Return the run that an operation is about, by the field that names it."""
    for field, word in (
        ("run_id", "run"),
        ("id", "run"),
        ("run", "run"),
        ("root", "run"),
        ("call_id", "the run of call"),
    ):
        value = getattr(op, field, "")
        if isinstance(value, str) and value:
            return f"{word} {value}"
    return "the ledger" if op is None else f"a run that {type(op).__name__} needs"
