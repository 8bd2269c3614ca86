"""The ledger in MariaDB or MySQL through a PyMySQL connection of the caller's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from amends.errors import CannotJoin
from amends.ledger.operations import StoreOp
from amends.stores.joined import JoinedLedger
from amends.stores.mysql import errors
from amends.stores.sql import MYSQL, Execute, Result, Statements

IN_TRANSACTION: Final = 1
"""The server's own flag, which comes with every answer."""
FOUND_ROWS: Final = 2
"""The client's wish to be told how many rows were met, not how many really changed."""
NEEDED: Final = "READ-COMMITTED"
"""The isolation that the ledger's flows are proved with. The servers' own, REPEATABLE READ, looks at an old state."""
ASKED: Final = ("tx_isolation", "transaction_isolation", "sql_mode")
"""How the servers call them; not all have all."""
LOOK: Final = "select 1 from runs where uid = %s for update skip locked"

# The session's time zone is the caller's: the hour that is there twice must not be asked for.
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
    """See ``amends.ledger.joined.Joining``. ``ledger``: the ledger's own name."""
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
    return JoinedLedger(given, _Manner(given, driver, ledger(), holds, shown=shown, clock=clock))


class _Manner:
    """See ``amends.stores.joined.Manner``."""

    is_async = False
    statements = STATEMENTS

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
        self._raw, self._driver, self._ledger, self._shown, self.clock = raw, driver, ledger, shown, clock
        self._cursor = raw.cursor(driver.cursors.Cursor)  # the caller's own may make other things of rows
        self.holds = holds

    def execute(self, op: Execute) -> Result:
        """One statement on the caller's connection."""
        rows, met, made = self._ask(op.sql, op.params)
        if met == 0 and op.sql.startswith("update ") and not self._raw.client_flag & FOUND_ROWS:
            met = self._met(op)
        return rows, met, made

    def _ask(self, sql: str, params: Any) -> Result:
        cursor, escape = self._cursor, self._raw.escape
        cursor.execute(sql % tuple([escape(value) for value in params]) if params else sql)
        rows = [tuple([one.decode() if isinstance(one, bytes) else one for one in row]) for row in cursor.fetchall()]
        return rows, cursor.rowcount, cursor.lastrowid or 0

    def _met(self, op: Execute) -> int:
        """How many rows an update met that has changed none: they are still there to be counted."""
        head, _, condition = op.sql.partition(" where ")
        found, _, _ = self._ask(f"select 1 from {head.split()[1]} where {condition} for update", op.params[-2:])
        return len(found)

    async def verify(self, tool: str) -> None:
        """See ``Manner``."""
        if await self._name() != self._ledger:
            raise CannotJoin(
                f"{tool}: the connection is to another database than the ledger at {self._shown}",
                tool=tool,
                hint="the record can only be part of a transaction in the ledger's own database",
            )
        names = ", ".join(f"'{name}'" for name in ASKED)
        said, _, _ = await Execute(f"show variables where variable_name in ({names})", ())
        values: dict[str, str] = dict(said)
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

    async def enter(self) -> None:
        """See ``Manner``."""

    async def leave(self, was: Any, op: StoreOp[Any], answer: Any) -> None:
        """See ``Manner``."""

    @staticmethod
    def is_open_on(raw: Any, /) -> bool:
        """Whether this connection is in a transaction now."""
        return _is_open(raw)

    def is_own(self, error: BaseException) -> bool:
        """Whether the database or its driver raised this."""
        return isinstance(error, self._driver.MySQLError)

    def is_duplicate(self, error: BaseException) -> bool:
        """Whether a key or run id has been taken since we looked."""
        return errors.code_of(error) == errors.DUPLICATE

    def explained(self, error: Exception, op: StoreOp[Any] | None) -> Exception:
        """The error in the caller's words."""
        if errors.code_of(error) in errors.RULES:
            return AssertionError(f"{type(op).__name__} breaks a rule of the schema: {errors.said_by(error)}")
        return errors.explained(error, self._shown)


NOT_HERE: Final = frozenset({errors.NO_TABLE, 1046, 1109, 1142})
"""No such table, no database chosen, not in the server's own, not for this user: it is not the ledger's database."""


def _is_open(raw: Any) -> bool:
    return bool(raw.open and raw.server_status & IN_TRANSACTION)
