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


@pytest.mark.parametrize("size", [0, 1, 250, 251, 5000, 70_000])
def test_a_text_of_any_length(size: int) -> None:
    length = (
        bytes([size])
        if size < 251
        else b"\xfc" + size.to_bytes(2, "little")
        if size < 65536
        else b"\xfd" + size.to_bytes(3, "little")
    )
    whole = packets(1, b"\x01", COLUMN, END, length + b"x" * size, END)
    pieces = [whole[at : at + 8192] for at in range(0, len(whole), 8192)]
    assert connection._read_text(raw_of(*pieces)) == "x" * size
    assert connection._read_text(raw_of(packets(1, b"\x01", COLUMN, END, b"\xfb", END))) == ""


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
