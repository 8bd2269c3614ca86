"""What the errors of MariaDB and MySQL mean: by number, because their texts are translated and changed."""

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
"""The transaction was rolled back, or can be, and may be repeated at once: also a snapshot that has become too old."""
LOST: Final = frozenset({0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2055, 3169, 4031})
"""The connection is gone, and with it its transaction, unless COMMIT had been sent."""
THERE: Final = frozenset({1050, 1060, 1061, 1826, 3822})
"""A table, column, index or constraint is there already: a start that died had come this far."""
RULES: Final = frozenset({1048, DUPLICATE, 1264, 1265, 1364, 1366, 1406, 3819, 4025})
"""A row that the schema refuses: a mistake of ours."""

FULL: Final = frozenset({3, 1021, 1026, 1114})
READ_ONLY: Final = frozenset({1036, 1290, 1792, 1836, 3100})
FORBIDDEN: Final = frozenset({1044, 1142, 1143, 1227, 1370})
CROWDED: Final = frozenset({1040, 1203, 1226})
NOT_THERE: Final = frozenset({2002, 2003, 2005, 2026})


def code_of(error: BaseException) -> int:
    """The server's or the driver's number: 0 on a connection that is closed, -1 when there is none."""
    first = error.args[0] if error.args else -1
    return first if isinstance(first, int) else -1


def said_by(error: BaseException) -> str:
    """The server's own words."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


def explained(error: BaseException, where: str) -> LedgerError:
    """The error in the caller's words."""
    code = code_of(error)
    said = f"{said_by(error)} ({code})" if code > 0 else said_by(error) or type(error).__name__
    if code == 1049:
        return LedgerMissing(
            f"no ledger at {where}: the server has no such database",
            hint="check its name; make it with CREATE DATABASE, the tables are made by the first start",
        )
    message, hint = _words(code, said)
    return LedgerUnavailable(f"the ledger at {where} {message}", hint=hint)


def _words(code: int, said: str) -> tuple[str, str]:
    if code in LOST:
        return f"broke off the connection: {said}", "look into the server's log; the next operation connects again"
    if code in NOT_THERE:
        return f"cannot be reached: {said}", "check host, port and socket in the URL, and with TLS its ssl_ options"
    if code in (1045, 1698):
        return f"did not let us in: {said}", "check user and password in the URL; quote signs in them (@ is %40)"
    if code in FORBIDDEN:
        return (
            f"refused the user: {said}",
            "grant select, insert, update on the database, delete on locks and waits; create, alter, index to who migrates",
        )
    if code in CROWDED:
        return (
            f"has no connection left: {said}",
            "all processes' pool_max together must stay below the server's max_connections",
        )
    if code in READ_ONLY:
        return (
            f"is read only, nothing was written: {said}",
            "the URL must name the primary server, not a replica; or it was set read_only by hand",
        )
    if code in FULL or re.search(r"errno: (28|135)\b", said):
        return f"has no space left, nothing of this was written: {said}", "make room on the server's disk"
    if code in (1054, NO_TABLE):
        return (
            f"lacks a part of its tables: {said}",
            "stop all workers; restore what was dropped or replaced under them",
        )
    if code in AGAIN:
        return f"is kept locked by another transaction: {said}", "look for a long one: SHOW PROCESSLIST"
    if code == 1153:
        return f"refused a packet as too large: {said}", "raise max_allowed_packet in the server's settings"
    if code == 1665:
        return f"keeps a log that our isolation cannot be written to: {said}", "set binlog_format=ROW on the server"
    return f"does not answer: {said}", "look into the server's log"


def unreachable(error: OSError, where: str) -> LedgerUnavailable:
    """Nobody answers at that address."""
    return LedgerUnavailable(
        f"the ledger at {where} cannot be reached: {error}",
        hint="check host, port or socket in the URL, and that the server runs",
    )


def unknown_end(error: BaseException, where: str) -> LedgerUnavailable:
    """COMMIT was sent and its answer did not come."""
    return LedgerUnavailable(
        f"the ledger at {where} was lost while it committed, and nobody knows whether it did: {said_by(error)}",
        hint="asked again, the same operation finds out",
    )


def kept_locked(where: str, what: str, *, op: str, wait_s: float, deadlock: bool) -> LedgerUnavailable:
    """Others kept a row, or got into a deadlock with us, for longer than we wait."""
    how = "met deadlocks over" if deadlock else "waited for"
    return LedgerUnavailable(
        f"{op} {how} {what} in the ledger at {where} for more than {wait_s:g} s; nothing was written",
        hint="look for a long transaction: SHOW PROCESSLIST, and information_schema.innodb_trx",
    )


def row_of(op: Execute | None) -> str:
    """What a statement was after: the table, and the key where it has one."""
    if op is None:
        return "a row"
    table = re.search(r"(?:from|update|into) (\w+)", op.sql)
    name = table[1] if table else "a table"
    at = {"u": -2}.get(op.sql[0], 0)  # an update ends with its key and the state it expects
    if not op.params or op.sql.startswith("insert"):
        return f"a row of {name}"
    return f"the row {op.params[at]!r} of {name}"
