"""One connection to a MariaDB or MySQL server, with the session that a ledger needs."""

from __future__ import annotations

import contextlib
import importlib
import math
import select
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from amends.errors import LedgerUnavailable
from amends.stores.mysql import errors
from amends.stores.mysql.url import Address
from amends.stores.sql import Execute, Result
from amends.stores.waiting import AnswerWait

T = TypeVar("T")

ROW_WAIT_S_MAX: Final = 5.0
"""How long the server itself waits for a row lock before we check the deadline."""
SILENCE_S: Final = 30.0
"""How much longer than a row lock a statement may take before the server counts as gone."""

QUERY: Final = 3
PREPARE: Final = 0x16
EXECUTE: Final = 0x17
"""The commands of the protocol that send a statement as text, prepare one, and carry out a prepared one."""
TYPES: Final = {"q": b"\x08\0", "b": b"\xfc\0", "t": b"\xfd\0"}
"""How the protocol calls the kinds of values."""
EOF: Final = 0xFE
ERROR: Final = 0xFF
"""The first bytes of packets that say this."""
EOF_BYTES_MAX: Final = 9
"""A packet of so many bytes or more that begins like the end of rows is a row."""
LENGTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""The first byte of a number: it is written in so many bytes; else it is the number."""
PACKET_MAX: Final = 0xFFFFFF
RECEIVED_MAX: Final = 1 << 16
SERVER_GONE: Final = 2006
SERVER_LOST: Final = 2013
"""The driver's numbers for a connection that is lost before and after something was sent."""

# READ COMMITTED: the gap locks of the default level would deadlock inserts. A strict mode: nothing is truncated or
# guessed.
SESSION: Final = (
    "set session transaction isolation level read committed; "
    "set session autocommit = 1, sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00', "
    "innodb_lock_wait_timeout = {row_wait_s}, lock_wait_timeout = {row_wait_s}, group_concat_max_len = 1048576"
)


class Prepared:
    """A statement that the server reads once for each connection, and then only its values.

    ``kinds``: what its parameters are, a letter for each: a number (q), bytes (b) or a text (t).
    """

    __slots__ = ("kinds", "text", "types")

    def __init__(self, text: str, kinds: str) -> None:
        assert text.count("?") == len(kinds), f"each parameter has a kind: {text}"
        self.text, self.kinds = text, kinds
        self.types = b"\1" + b"".join(TYPES[kind] for kind in kinds)
        """Comes after the bits that say which values are null."""


@dataclass(slots=True)
class Connection:
    """A connection with its one cursor: its statements come one at a time."""

    raw: Any
    cursor: Any
    packet_max: int
    row: str = ""
    """What a row of a table of values begins with."""
    first: tuple[str, ...] = ()
    """Statements that are sent in one packet with the next one: BEGIN costs no round trip of its own."""
    is_open: bool = False
    """Whether a transaction is open, as far as we know."""
    committing: bool = False
    at_once: bool = False
    """Whether the last step contained its own commit."""
    last: Execute | None = None
    prepared: dict[Prepared, bytes] = field(default_factory=dict)
    """How the packet begins that carries out a statement, for each that the server has prepared for this connection."""
    wait: AnswerWait = field(init=False)

    def __post_init__(self) -> None:
        self.wait = AnswerWait(_is_readable(self.raw._sock))

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

    def carry_out(self, statement: Prepared, values: bytes, root: str) -> tuple[int, int] | None:
        """Carry out a statement that is a whole transaction on this run; return how many rows it wrote, and its insert id.

        None: it would have inserted a key that there is. The connection can be used on, and nothing was changed.
        """
        self.last = Execute("select from amends_run", (root,))
        if statement not in self.prepared:
            self._prepare(statement)
        packet = self.packet(statement, values)
        self.begin_at_once(packet)
        try:
            self._send(packet)
            self.wait.begin()
            answer = self._received()
            self.wait.end()
            # One packet that says OK: its size, its number, and 0; what is anything else, ``Answers`` understands.
            if len(answer) > 4 and not answer[4] and answer[0] + 4 == len(answer) and not answer[1] | answer[2]:
                rows, next_ = _number(answer, 5)
                said = rows, _number(answer, next_)[0]
            else:
                said = self._said(answer)
        except Exception as error:
            self.end_at_once(error)
            if isinstance(error, self.raw.IntegrityError) and self.goes_on_after(error):
                return None
            raise
        self.is_open = self.at_once = self.committing = False
        return said

    def _said(self, data: bytes) -> tuple[int, int]:
        """Return the one answer that begins with these bytes."""
        found = Answers(self.raw, 1)
        while not found.add(data):
            data = self._received()
        return found.said[0]

    def packet(self, statement: Prepared, values: bytes) -> bytes:
        """Return the packet that carries out a statement that was prepared here."""
        head = self.prepared[statement]
        return b"%b\0%b%b" % ((len(head) + len(values)).to_bytes(3, "little"), head, values)

    def _prepare(self, statement: Prepared) -> None:
        self.committing = self.at_once = False
        self.raw._execute_command(PREPARE, statement.text)
        answer = self.raw._read_packet().get_all_data()
        for _ in range(len(statement.kinds) + 1):  # what the server says of the parameters, and the end of it
            self.raw._read_packet()
        self.prepared[statement] = b"%c%b\0\1\0\0\0" % (EXECUTE, answer[1:5])

    def goes_on_after(self, error: Exception) -> bool:
        """Return whether a step has only met a key that there is: it has changed nothing, and its connection can be used."""
        if errors.code_of(error) != errors.DUPLICATE:
            return False
        self.is_open = self.at_once = False
        return True

    def ask_together(self, data: bytes | str, count: int) -> list[tuple[int, int]]:
        """Send a packet, or a text, that commits; read so many answers."""

        def answers(_: Any) -> list[tuple[int, int]]:
            found = Answers(self.raw, count)
            while not found.add(self._received()):
                pass
            return found.said

        return self._ask_at_once(data, answers, is_batch=True)

    def _received(self) -> bytes:
        """Return what has come from the server, waiting for it."""
        try:
            return self.raw._sock.recv(RECEIVED_MAX)  # type: ignore[no-any-return]
        except OSError as error:
            raise self.raw.OperationalError(
                SERVER_LOST, f"lost connection to the server during a step: {error}"
            ) from error

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

    def _ask_at_once(self, data: bytes | str, read: Callable[[Any], T], *, is_batch: bool = False) -> T:
        """Send a whole transaction, and read its answer packet by packet.

        The driver would read what the columns are called, and make a result of each packet: that takes as long as all else.
        """
        self.begin_at_once(data)
        try:
            self._send(data)
            if is_batch:
                answer = read(self.raw)
            else:
                self.wait.begin()
                answer = read(self.raw)
                self.wait.end()
        except Exception as error:
            self.end_at_once(error)
            raise
        self.end_at_once(None)
        return answer

    def begin_at_once(self, data: bytes | str) -> None:
        """Note that a whole transaction is sent. Raises if it is too large."""
        self._check_size(data)
        self.is_open = self.at_once = self.committing = True

    def end_at_once(self, error: Exception | None) -> None:
        """Note that it has ended; an error that the server itself reports came before the commit."""
        if error is None:
            self.is_open = self.at_once = self.committing = False
        else:
            self.committing = errors.code_of(error) in errors.LOST

    def _send(self, data: bytes | str) -> None:
        """Send a packet or a statement. Here, where it fits into one packet: the driver looks at much else first."""
        packet, sock = packet_of(data) if isinstance(data, str) else data, self.raw._sock
        if packet is None or sock is None:
            self.raw._execute_command(QUERY, data)
            return
        try:
            sock.sendall(packet)
        except OSError as error:
            raise self.raw.OperationalError(SERVER_GONE, f"the server has gone away: {error}") from error
        self.raw._next_seq_id = 1

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

    def _check_size(self, text: bytes | str) -> None:
        size = len(text)
        if size * 4 > self.packet_max and len(text.encode() if isinstance(text, str) else text) >= self.packet_max:
            raise LedgerUnavailable(
                f"a statement of {size:,} characters is larger than the ledger's server accepts; nothing was written",
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
    return Connection(raw, raw.cursor(), packet_max, row="" if "mariadb" in raw.get_server_info().lower() else "row")


def _open_socket(address: Address) -> socket.socket:
    try:
        if not address.unix_socket:
            opened = socket.create_connection((address.host, address.port), address.connect_s)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return opened
        if not hasattr(socket, "AF_UNIX"):
            raise OSError("this system has no Unix sockets: name a host and a port")
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


def _is_readable(sock: socket.socket) -> Callable[[], Any]:
    """Return the question whether something has come on this connection."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: select.select([sock], [], [], 0)[0]
    asked = select.poll()
    asked.register(sock, select.POLLIN)
    return partial(asked.poll, 0)


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


def packet_of(text: str) -> bytes | None:
    """Return the packet that sends a statement; None: it takes several."""
    data = text.encode("utf-8", "surrogateescape")
    size = len(data) + 1
    return None if size >= PACKET_MAX else b"%b\0\3%b" % (size.to_bytes(3, "little"), data)


def sized(data: bytes) -> bytes:
    """Return bytes with their length before them."""
    size = len(data)
    if size < 251:
        return b"%c%b" % (size, data)
    return b"%b%b" % (
        b"\xfc" + size.to_bytes(2, "little") if size < 65_536 else b"\xfd" + size.to_bytes(3, "little"),
        data,
    )


class Answers:
    """The answers to statements without rows, as they come in."""

    def __init__(self, raw: Any, count: int) -> None:
        self._raw, self._count = raw, count
        self._data = b""
        self.said: list[tuple[int, int]] = []
        """How many rows each statement wrote, and its insert id."""

    def add(self, data: bytes) -> bool:
        """Read what has come; return whether these are all. Raises what the server says, and if it has gone."""
        raw = self._raw
        if not data:
            raw._force_close()
            raise raw.OperationalError(SERVER_LOST, "lost connection to the server during a step")
        data = self._data = self._data + data
        begin, size = 0, len(data)
        while size - begin > 4:
            end = begin + 4 + (data[begin] | data[begin + 1] << 8 | data[begin + 2] << 16)
            if end > size:
                break
            if data[begin + 4]:  # no OK, so an error
                kind = importlib.import_module(type(raw).__module__).MysqlPacket
                kind(data[begin + 4 : end], raw.encoding).check_error()
                raise AssertionError("such a statement has no rows")
            rows, next_ = _number(data, begin + 5)
            self.said.append((rows, _number(data, next_)[0]))
            begin = end
        self._data = data[begin:]
        return len(self.said) == self._count


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that is written here, and where the next one begins."""
    first = data[at]
    size = LENGTHS.get(first, 0)
    return (first, at + 1) if not size else (int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size)


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
