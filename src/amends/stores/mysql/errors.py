"""What the errors of MariaDB and MySQL mean: by number, because their messages are translated and change."""

from __future__ import annotations

import re
from typing import Final

from amends.errors import LedgerError, LedgerMissing, LedgerUnavailable
from amends.stores.sql import Execute

DUPLICATE: Final = 1062
DEADLOCK: Final = 1213
LOCK_TIMEOUT: Final = 1205
NO_TABLE: Final = 1146

AGAIN: Final = frozenset({DEADLOCK, LOCK_TIMEOUT, 1020, 1412})
"""The transaction was rolled back, or can be, and may be retried at once. Includes a snapshot that became too old."""
LOST: Final = frozenset({0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2055, 3169, 4031})
"""The connection is lost, and with it its transaction, unless COMMIT was sent."""
THERE: Final = frozenset({1050, 1060, 1061, 1304, 1826, 3822})
"""A table, column, index, procedure or constraint exists already: a process that died had come this far."""
RULES: Final = frozenset({1048, DUPLICATE, 1264, 1265, 1364, 1366, 1406, 3819, 4025})
"""A row that the schema refuses: a mistake of ours."""

FULL: Final = frozenset({3, 1021, 1026, 1114})
READ_ONLY: Final = frozenset({1036, 1290, 1792, 1836, 3100})
FORBIDDEN: Final = frozenset({1044, 1142, 1143, 1227, 1370})
CROWDED: Final = frozenset({1040, 1203, 1226})
NOT_THERE: Final = frozenset({2002, 2003, 2005, 2026})


GRANTS: Final = (
    "grant select, insert, update, execute on the database, and delete on amends_lock, amends_wait and amends_budget; "
    "for migrations also create, alter, index, create routine"
)


def code_of(error: BaseException) -> int:
    """Return the server's or the driver's number: 0 on a closed connection, -1 if there is none."""
    first = error.args[0] if error.args else -1
    return first if isinstance(first, int) else -1


def said_by(error: BaseException) -> str:
    """Return the server's message."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def explained(error: BaseException, where: str) -> LedgerError:
    """Return the error in the caller's words."""
    code = code_of(error)
    text = f"{said_by(error)} ({code})" if code > 0 else said_by(error) or type(error).__name__
    if code == 1049:
        return LedgerMissing(
            f"no ledger at {where}: the server has no such database",
            hint="check its name; create it with CREATE DATABASE, the first start creates the tables",
        )
    message, hint = _explanation(code, text)
    return LedgerUnavailable(f"the ledger at {where} {message}", hint=hint)


def _explanation(code: int, text: str) -> tuple[str, str]:
    if code in LOST:
        return f"closed the connection: {text}", "see the server's log; the next operation connects again"
    if code in NOT_THERE:
        return f"cannot be reached: {text}", "check host, port and socket in the URL, and with TLS its ssl_ options"
    if code in (1045, 1698):
        return f"refused the login: {text}", "check user and password in the URL; percent-encode them (@ is %40)"
    if code in FORBIDDEN:
        return (
            f"refused the user: {text}",
            GRANTS,
        )
    if code in CROWDED:
        return (
            f"has no connection left: {text}",
            "all processes' pool_max together must stay below the server's max_connections",
        )
    if code in READ_ONLY:
        return (
            f"is read only, nothing was written: {text}",
            "name the primary server in the URL, not a replica; or unset read_only there",
        )
    if code in FULL or re.search(r"errno: (28|135)\b", text):
        return f"has no space left, nothing of this was written: {text}", "make room on the server's disk"
    if code in (1054, 1305, NO_TABLE):
        return (
            f"lacks a part of its tables: {text}",
            "stop all workers; restore what was dropped or replaced while they ran",
        )
    if code in AGAIN:
        return f"is locked by another transaction: {text}", "look for a long one: SHOW PROCESSLIST"
    if code == 1153:
        return f"refused a packet as too large: {text}", "raise max_allowed_packet in the server's settings"
    if code == 1665:
        return (
            f"has a binary log that cannot be used with our isolation level: {text}",
            "set binlog_format=ROW on the server",
        )
    return f"does not answer: {text}", "see the server's log"


def unreachable(error: OSError, where: str) -> LedgerUnavailable:
    """Return the error for an address where nobody answers."""
    return LedgerUnavailable(
        f"the ledger at {where} cannot be reached: {error}",
        hint="check host, port or socket in the URL, and that the server runs",
    )


def unknown_end(error: BaseException, where: str) -> LedgerUnavailable:
    """Return the error for a COMMIT without an answer."""
    return LedgerUnavailable(
        f"the ledger at {where} was lost during a commit, and nobody knows whether it did: {said_by(error)}",
        hint="the same operation, repeated, finds out",
    )


def kept_locked(where: str, what: str, *, op: str, wait_s: float, deadlock: bool) -> LedgerUnavailable:
    """Return the error for a row that stayed locked, or for repeated deadlocks.

    ``what`` is the row, ``op`` the operation's name, and ``wait_s`` how long was waited.
    """
    how = "met deadlocks over" if deadlock else "waited for"
    return LedgerUnavailable(
        f"{op} {how} {what} in the ledger at {where} for more than {wait_s:g} s; nothing was written",
        hint="look for a long transaction: SHOW PROCESSLIST, and information_schema.innodb_trx",
    )


def row_of(op: Execute | None) -> str:
    """Return the row that a statement wants: the table, and the key where it has one."""
    if op is None:
        return "a row"
    table = re.search(r"(?:from|update|into) (\w+)", op.sql)
    name = table[1] if table else "a table"
    at = {"u": -2}.get(op.sql[0], 0)  # an update ends with its key and the state it expects
    if not op.params or op.sql.startswith("insert"):
        return f"a row of {name}"
    return f"the row {op.params[at]!r} of {name}"
