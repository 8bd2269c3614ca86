"""One connection to a MariaDB or MySQL server, with the session that a ledger needs."""

from __future__ import annotations

import contextlib
import math
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from amends.errors import LedgerUnavailable
from amends.stores.mysql import errors
from amends.stores.mysql.url import Address
from amends.stores.sql import Execute, Result

T = TypeVar("T")

ROW_WAIT_S_MAX: Final = 5.0
"""How long the server itself waits for a row lock before we check the deadline."""
SILENCE_S: Final = 30.0
"""How much longer than a row lock a statement may take before the server counts as gone."""

QUERY: Final = 3
"""The command of the protocol that sends a statement as text."""
EOF: Final = 0xFE
ERROR: Final = 0xFF
"""The first bytes of packets that say this."""
EOF_BYTES_MAX: Final = 9
"""A packet of so many bytes or more that begins like the end of rows is a row."""
NULL: Final = 0xFB
LENGTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""The first byte of a value of a row: it is null, or its length is written in so many bytes; else it is the length."""

# READ COMMITTED: the gap locks of the default level would deadlock inserts. A strict mode: nothing is truncated or
# guessed.
SESSION: Final = (
    "set session transaction isolation level read committed; "
    "set session autocommit = 1, sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
    "innodb_lock_wait_timeout = {row_wait_s}, lock_wait_timeout = {row_wait_s}, group_concat_max_len = 1048576"
)


@dataclass(slots=True)
class Connection:
    """A connection with its one cursor: its statements come one at a time."""

    raw: Any
    cursor: Any
    packet_max: int
    first: tuple[str, ...] = ()
    """Statements that are sent in one packet with the next one: BEGIN costs no round trip of its own."""
    is_open: bool = False
    """Whether a transaction is open, as far as we know."""
    committing: bool = False
    at_once: bool = False
    """Whether the last step contained its own commit."""
    last: Execute | None = None

    def begin(self, first: tuple[str, ...]) -> None:
        """Open a transaction together with its first statement; with (), each statement is its own transaction."""
        self.first, self.committing, self.at_once, self.last = first, False, False, None

    def execute(self, op: Execute) -> Result:
        """Carry out one statement of a flow."""
        first, cursor = self.first, self.cursor
        text = self._text(op, first)
        if first:
            self.first, self.is_open = (), True
        cursor.execute(text)
        for _ in first:
            cursor.nextset()
        return cursor.fetchall(), cursor.rowcount, cursor.lastrowid or 0

    def call_procedure(self, text: str, root: str) -> tuple[int, int] | None:
        """Call a procedure that is a whole transaction on this run; return the two numbers of its answer, if it has one.

        An error that the server reports came before the commit; a lost connection leaves that unknown.
        """
        self.last = Execute("select from amends_run", (root,))
        return self._ask_at_once(text, _read_two_numbers)

    def begin_together(self, questions: Sequence[str]) -> list[str]:
        """Begin a transaction and ask for one text each, in one packet; return the texts, empty for none."""
        self.last, self.is_open, self.committing = None, True, False
        text = "; ".join(("begin", *questions))
        self._check_size(text)
        self.raw._execute_command(QUERY, text)
        _read_ok(self.raw)
        return [_read_text(self.raw) for _ in questions]

    def commit_together(self, statements: Sequence[str]) -> None:
        """Carry out statements in the transaction that is open, and commit it, in one packet."""

        def answers(raw: Any) -> None:
            for _ in (*statements, "commit"):
                _read_ok(raw)

        self._ask_at_once("; ".join((*statements, "commit")), answers)

    def call_and_read(
        self, text: str, selects: Sequence[str], root: str
    ) -> tuple[tuple[int, int] | None, list[list[tuple[Any, ...]]]]:
        """Call a procedure on this run and read what it left, in one transaction that is sent in one packet."""
        self.last = Execute("select from amends_run", (root,))

        def answers(raw: Any) -> tuple[tuple[int, int] | None, list[list[tuple[Any, ...]]]]:
            _read_ok(raw)
            said, found = _read_two_numbers(raw), []
            for _ in selects:
                raw._read_query_result()
                found.append(list(raw._result.rows))
            raw._result = None  # it says that more follows, which is read here
            _read_ok(raw)
            return said, found

        return self._ask_at_once("; ".join(("begin", text, *selects, "commit")), answers)

    def _ask_at_once(self, text: str, read: Callable[[Any], T]) -> T:
        """Send a whole transaction, and read its answer packet by packet.

        The driver would read what the columns are called, and make a result of each packet: that takes as long as all else.
        """
        self._check_size(text)
        self.is_open = self.at_once = self.committing = True
        try:
            self.raw._execute_command(QUERY, text)
            answer = read(self.raw)
        except Exception as error:
            self.committing = errors.code_of(error) in errors.LOST
            raise
        self.is_open = self.at_once = self.committing = False
        return answer

    def quoted(self, text: str) -> str:
        """Return a text as a literal."""
        # Here where that is safe: the driver checks the type, the converters and the server's state for each.
        return f"'{text}'" if _is_plain(text) else str(self.raw.escape(text))

    def _text(self, op: Execute, first: tuple[str, ...]) -> str:
        escape, self.last = self.raw.escape, op
        literals = [self.quoted(value) if type(value) is str else escape(value) for value in op.params]
        text = "; ".join((*first, op.sql % tuple(literals)))
        self._check_size(text)
        return text

    def _check_size(self, text: str) -> None:
        if len(text) * 4 > self.packet_max and len(text.encode()) >= self.packet_max:
            raise LedgerUnavailable(
                f"a statement of {len(text):,} characters is larger than the ledger's server accepts; nothing was written",
                hint="raise max_allowed_packet in the server's settings",
            )

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction; return its rows."""
        self.cursor.execute(sql)
        return list(self.cursor.fetchall())

    def command(self, sql: str) -> None:
        """Commit or roll back, if a transaction is open."""
        if self.is_open:
            self.committing = sql == "commit"
            self.cursor.execute(sql)
            self.is_open = self.committing = False

    @property
    def closed(self) -> bool:
        """Whether it cannot be used any more."""
        return not self.raw.open

    def close(self) -> None:
        """Disconnect; the server rolls back an open transaction."""
        with contextlib.suppress(Exception):
            self.raw.close()


def connect(driver: Any, address: Address, *, packet_max: int, silence_s: float = SILENCE_S) -> Connection:
    """Connect. Raises the driver's errors, and ``LedgerUnavailable`` if nobody answers.

    ``silence_s``: how much longer than a row lock a statement may take.
    """
    flags, types = driver.constants.CLIENT, driver.constants.FIELD_TYPE
    row_wait_s = max(1, math.ceil(min(ROW_WAIT_S_MAX, address.lock_wait_s)))
    raw = driver.Connection(
        **address.arguments(),
        defer_connect=True,
        charset="utf8mb4",
        autocommit=None,  # SESSION sets it
        # Count the rows that matched, not those that changed; and send BEGIN in one packet with what follows it. No
        # text of a caller is ever part of a statement except as a literal.
        client_flag=flags.FOUND_ROWS | flags.MULTI_STATEMENTS,
        conv={
            **driver.converters.encoders,
            types.DOUBLE: float,
            types.LONGLONG: int,
            types.LONG: int,
            types.VAR_STRING: _text,
        },
        read_timeout=row_wait_s + silence_s,
        write_timeout=SILENCE_S,
        init_command=SESSION.format(row_wait_s=row_wait_s),
        program_name="amends",
    )
    # We open the socket: the driver would leave one open that nobody answered. It takes a given socket for insecure,
    # and then some servers' passwords need a key.
    raw._secure = bool(address.unix_socket)
    try:
        raw.connect(_open_socket(address))
    except RuntimeError as error:  # the password may only be sent encrypted, and there is neither TLS nor a Unix socket
        raise LedgerUnavailable(
            f"the ledger at {address.shown} needs a password that cannot be sent without encryption: {error}",
            hint="connect with TLS (ssl_ca in the URL), or pip install 'PyMySQL[rsa]'",
        ) from error
    return Connection(raw, raw.cursor(), packet_max)


def _open_socket(address: Address) -> socket.socket:
    try:
        if not address.unix_socket:
            opened = socket.create_connection((address.host, address.port), address.connect_s)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return opened
        opened = socket.socket(socket.AF_UNIX)
        try:
            opened.settimeout(address.connect_s)
            opened.connect(address.unix_socket)
        except BaseException:
            opened.close()
            raise
    except OSError as error:
        raise errors.unreachable(error, address.shown) from error
    return opened


def _read_two_numbers(raw: Any) -> tuple[int, int] | None:
    """Read the answer of a procedure: one row, or none."""
    packet = raw._read_packet()
    if packet.is_ok_packet():
        return None
    row = _read_ahead(raw, (None, None, EOF, None, EOF), 3)  # two columns, their end, the row, its end
    if row is None:
        while not packet.is_eof_packet():  # the columns
            packet = raw._read_packet()
        row = raw._read_packet().get_all_data()
        assert raw._read_packet().is_eof_packet(), "a step answers with one row"
    _read_ok(raw)  # the end of the procedure
    middle = 1 + row[0]  # each number has its length before it
    return int(row[1:middle]), int(row[middle + 1 :])


def _read_text(raw: Any) -> str:
    """Read the answer of a question for one text."""
    packet = raw._read_packet()
    row = _read_ahead(raw, (None, EOF, None, EOF), 2)
    if row is None:
        while not packet.is_eof_packet():  # the column
            packet = raw._read_packet()
        row = raw._read_packet().get_all_data()
        assert raw._read_packet().is_eof_packet(), "such a question has one answer"
    return "" if row[0] == NULL else row[1 + LENGTHS.get(row[0], 0) :].decode("ascii")


def _read_ahead(raw: Any, kinds: Sequence[int | None], place: int) -> bytes | None:
    """Return the content of one of the next packets, if all of them have come and begin as they should.

    Else nothing is read, and the driver reads them one by one: it makes an object of each, which takes much longer.
    """
    try:
        seen = raw._rfile.peek()
    except OSError:  # the driver meets it again, and explains it
        return None
    end, number, found = 0, raw._next_seq_id, b""
    size = len(seen)
    for at, kind in enumerate(kinds):
        begin = end + 4
        if begin >= size:
            return None
        end = begin + (seen[begin - 4] | seen[begin - 3] << 8 | seen[begin - 2] << 16)
        first = seen[begin]
        is_end = first == EOF and end - begin < EOF_BYTES_MAX
        if end > size or seen[begin - 1] != number or is_end != (kind == EOF) or first == ERROR:
            return None
        number = (number + 1) & 255
        if at == place:
            found = seen[begin:end]
    raw._rfile.read(end)
    raw._next_seq_id = number
    return found


def _read_ok(raw: Any) -> None:
    """Read the answer of a statement without rows."""
    assert raw._read_packet().is_ok_packet(), "such a statement has no rows"


def _is_plain(text: str) -> bool:
    """Return whether nothing in it needs escaping, in any mode of a server with a UTF-8 connection."""
    return "'" not in text and "\\" not in text and text.isprintable()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
