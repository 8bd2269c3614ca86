"""The ledger in MariaDB or MySQL through the caller's own PyMySQL connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from amends.errors import CannotJoin
from amends.ledger.dispatch import intent
from amends.ledger.operations import StoreOp
from amends.stores.joined import JoinedLedger, other_database
from amends.stores.mysql import errors
from amends.stores.sql import MYSQL, Execute, Result, Statements, Transaction, as_sql

T = TypeVar("T")

IN_TRANSACTION: Final = 1
"""A flag of the server's status, which comes with every answer."""
FOUND_ROWS: Final = 2
"""The client's flag for counting the rows that matched, not those that really changed."""
NEEDED: Final = "READ-COMMITTED"
"""The isolation level that the ledger's flows are tested with. The servers' default, REPEATABLE READ, reads an old state."""
ASKED: Final = ("tx_isolation", "transaction_isolation", "sql_mode")
"""The names of the variables; no server has all of them."""
LOOK: Final = "select 1 from amends_run where uid = %s for update skip locked"

# The session's time zone is the caller's: a local time would be ambiguous when summer time ends.
STATEMENTS: Final = Statements(
    replace(MYSQL, clock="timestampdiff(microsecond, '1970-01-01 00:00:00', utc_timestamp(6)) / 1e6")
)


def joined(
    raw: object,
    driver: Any,
    ledger: Callable[[], str],
    holds: Callable[[str], bool],
    *,
    shown: str,
    clock: Callable[[], float] | None,
    tool: str,
) -> JoinedLedger:
    """Return the ledger through this connection; raises ``CannotJoin`` if it cannot be used.

    ``driver`` is PyMySQL, ``ledger`` returns the ledger's own name, ``holds`` is asked whether a run is locked, and
    ``shown`` is the ledger's URL without its password.
    """
    if not isinstance(raw, driver.connections.Connection):
        raise CannotJoin(
            f"{tool}: this ledger is in MariaDB or MySQL, and connection= is a "
            f"{type(raw).__module__}.{type(raw).__qualname__}",
            tool=tool,
            hint="pass a connection of PyMySQL, in a blocking run; a toolkit's own object usually has it in it",
        )
    given: Any = raw
    if not _is_open(given):
        raise CannotJoin(
            f"{tool}: the connection is {'in no transaction' if given.open else 'closed'}",
            tool=tool,
            hint="begin it first: connection.begin()",
        )
    if not str(given.charset).startswith("utf8mb4"):
        raise CannotJoin(
            f"{tool}: the connection writes {given.charset}, which cannot hold every text",
            tool=tool,
            hint='connect with charset="utf8mb4"',
        )
    return JoinedLedger(given, _CallersConnection(given, driver, ledger(), holds, shown=shown, clock=clock))


class _CallersConnection:
    """See ``amends.stores.joined.CallersConnection``."""

    is_async = False

    def __init__(
        self,
        raw: Any,
        driver: Any,
        ledger: str,
        holds: Callable[[str], bool],
        *,
        shown: str,
        clock: Callable[[], float] | None,
    ) -> None:
        self._raw, self._driver, self._ledger, self._shown, self._clock = raw, driver, ledger, shown, clock
        self._text_type = driver.constants.FIELD_TYPE.VAR_STRING  # bytes that are no text have other types
        self._cursor = raw.cursor(driver.cursors.Cursor)  # the caller's own may not return tuples
        self.holds = holds
        self.is_open_on: Callable[[Any], bool] = _is_open

    def execute(self, op: Execute) -> Result:
        """Carry out one statement on the caller's connection."""
        rows, matched, made = self._ask(op.sql, op.params)
        if matched == 0 and op.sql.startswith("update ") and not self._raw.client_flag & FOUND_ROWS:
            matched = self._matched(op)
        return rows, matched, made

    def _ask(self, sql: str, params: Any) -> Result:
        cursor, escape = self._cursor, self._raw.escape
        cursor.execute(sql % tuple([escape(value) for value in params]) if params else sql)
        rows = [tuple(row) for row in cursor.fetchall()]
        texts = [place for place, column in enumerate(cursor.description or ()) if column[1] == self._text_type]
        if texts and rows:
            rows = [_decoded(row, texts) for row in rows]
        return rows, cursor.rowcount, cursor.lastrowid or 0

    def _matched(self, op: Execute) -> int:
        """Count the rows that an update matched and did not change."""
        head, _, condition = op.sql.partition(" where ")
        found, _, _ = self._ask(f"select 1 from {head.split()[1]} where {condition} for update", op.params[-2:])
        return len(found)

    async def verify(self, tool: str) -> None:
        """Raise ``CannotJoin`` unless this is the ledger's database, with the isolation and mode that it needs."""
        if await self._name() != self._ledger:
            raise other_database(tool, self._shown)
        names = ", ".join(f"'{name}'" for name in ASKED)
        found, _, _ = await Execute(f"show variables where variable_name in ({names})", ())
        values: dict[str, str] = dict(found)
        isolation = values.get("transaction_isolation") or values.get("tx_isolation")
        if isolation != NEEDED:
            raise CannotJoin(
                f"{tool}: the connection's transactions are {isolation}; the ledger's rows need {NEEDED}",
                tool=tool,
                hint='connection.query("set session transaction isolation level read committed"), before it begins',
            )
        if "STRICT_" not in values.get("sql_mode", ""):
            raise CannotJoin(
                f"{tool}: the connection's sql_mode lets the server cut texts and guess values",
                tool=tool,
                hint="add STRICT_TRANS_TABLES to its sql_mode",
            )

    async def _name(self) -> str:
        try:
            [(name,)], _, _ = await Execute("select max(ledger) from amends_schema", ())
        except Exception as error:
            if errors.code_of(error) not in NOT_HERE:
                raise
            return ""
        return name or ""

    async def carry_out(self, op: StoreOp[T]) -> T:
        """Carry out one operation."""
        return await as_sql(intent(op), Transaction(STATEMENTS, self._clock))

    def is_own(self, error: BaseException) -> bool:
        """Return whether the database or its driver raised this."""
        return isinstance(error, self._driver.MySQLError)

    def is_duplicate(self, error: BaseException) -> bool:
        """Return whether somebody else has inserted the same key or run id first."""
        return errors.code_of(error) == errors.DUPLICATE

    def explained(self, error: Exception, op: StoreOp[Any] | None) -> Exception:
        """Return the error in the caller's words."""
        if errors.code_of(error) in errors.RULES:
            return AssertionError(f"{type(op).__name__} breaks a rule of the schema: {errors.said_by(error)}")
        return errors.explained(error, self._shown)


NOT_HERE: Final = frozenset({errors.NO_TABLE, 1046, 1109, 1142})
"""No such table, no database chosen, the server's own schema, or no privilege: it is not the ledger's database."""


def _decoded(row: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
    values = list(row)
    for place in places:
        if isinstance(values[place], bytes):
            values[place] = values[place].decode()
    return tuple(values)


def _is_open(raw: Any) -> bool:
    return bool(raw.open and raw.server_status & IN_TRANSACTION)
