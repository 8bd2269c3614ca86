"""How the answers of MariaDB are read: whole from the buffer, or packet by packet by the driver."""

import io
from typing import Any

import pymysql
import pytest

from amends.stores.mysql import connection


def packets(first: int, *contents: bytes) -> bytes:
    return b"".join(
        len(one).to_bytes(3, "little") + bytes([(first + at) % 256]) + one for at, one in enumerate(contents)
    )


COLUMN = b"\x03def\x00\x00\x00\x02n_\x00\x0c\x3f\x00\x14\x00\x00\x00\x08\x81\x00\x00\x00\x00"
END = b"\xfe\x00\x00\x0a\x00"
ROW = b"\x0212\x101794844189354927"
DONE = b"\x00\x00\x00\x02\x00\x00\x00"


class Slowly(io.RawIOBase):
    """A socket whose data come in pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        piece = self.pieces.pop(0) if self.pieces else b""
        into[: len(piece)] = piece
        return len(piece)


def raw_of(*pieces: bytes, first: int = 1) -> Any:
    raw: Any = pymysql.Connection.__new__(pymysql.Connection)  # its constructor takes long
    raw.encoding, raw._result = "utf8", None
    raw._rfile, raw._next_seq_id = io.BufferedReader(Slowly(*pieces)), first
    raw._read_timeout = raw._current_timeout = None
    raw._sock = None
    return raw


@pytest.mark.parametrize("first", [1, 250, 253])
def test_an_answer_is_the_same_however_it_arrives(first: int) -> None:
    whole = packets(first, b"\x02", COLUMN, COLUMN, END, ROW, END, DONE)
    for at in range(len(whole)):
        raw = raw_of(*filter(None, (whole[:at], whole[at:])), first=first)
        assert connection._read_two_numbers(raw) == (12, 1794844189354927)
        assert (raw._next_seq_id, raw._rfile.read()) == ((first + 7) % 256, b"")


def written(number: int) -> bytes:
    """A number as the protocol writes it."""
    for first, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if 250 < number < 256**size:
            return bytes([first]) + number.to_bytes(size, "little")
    return bytes([number])


@pytest.mark.parametrize("number", [0, 1, 250, 251, 65_535, 65_536, 1 << 24, 1_794_844_189_354_927])
def test_what_statements_without_rows_say_is_the_same_however_it_arrives(number: int) -> None:
    said = b"\x00\x01" + written(number) + b"\x02\x00\x00\x00"
    whole = packets(1, DONE, said, b"\x00" + written(number) + said[2:], DONE)
    for at in range(1, len(whole)):
        answers = connection.Answers(raw_of(), 4)
        assert not answers.add(whole[:at])
        assert answers.add(whole[at:])
        assert answers.said == [(0, 0), (1, number), (number, number), (0, 0)]


def test_an_error_among_such_answers_and_the_end_of_the_line_are_raised() -> None:
    answers = connection.Answers(raw_of(), 3)
    assert not answers.add(packets(1, DONE))
    with pytest.raises(pymysql.MySQLError, match="gone") as found:
        answers.add(packets(2, b"\xff\x84\x04#08S01gone"))
    assert found.value.args[0] == 1156
    with pytest.raises(pymysql.OperationalError, match="lost connection"):
        connection.Answers(raw_of(), 1).add(b"")
    with pytest.raises(AssertionError, match="no rows"):
        connection.Answers(raw_of(), 1).add(packets(1, b"\x02", COLUMN))


@pytest.mark.parametrize("place", range(1, 7))
def test_an_error_in_the_middle_of_an_answer_is_raised(place: int) -> None:
    contents = [b"\x02", COLUMN, COLUMN, END, ROW, END, DONE]
    contents[place:] = [b"\xff\x84\x04#08S01gone"]
    with pytest.raises(pymysql.MySQLError, match="gone"):
        connection._read_two_numbers(raw_of(packets(1, *contents)))


def test_packets_out_of_order_are_no_answer() -> None:
    whole = packets(1, b"\x02", COLUMN, COLUMN, END) + packets(6, ROW, END, DONE)
    with pytest.raises(pymysql.MySQLError):
        connection._read_two_numbers(raw_of(whole))
