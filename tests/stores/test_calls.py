"""A call taken apart into columns, and put together again, is the same call."""

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amends.encoding.dataclass import changed
from amends.encoding.ids import call_id, number_of
from amends.ledger.rows import CallRow
from amends.stores.calls import (
    DIGEST,
    NOT_FOLDED,
    READ,
    READ_KEY,
    Folded,
    RootFacts,
    events_of,
    hot,
    join,
    more,
    pack,
    read_owners,
    unpack,
    written_more,
    written_owners,
)

ANY = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF, exclude_categories=()), max_size=60)
"""With NUL and lone surrogates."""
HEX = st.binary(min_size=DIGEST, max_size=DIGEST).map(bytes.hex)
NUMBERS = st.integers(0, 2**63 - 1)
KEYS = st.one_of(HEX, st.builds(lambda digest, number: f"{digest}:{call_id(number)}", HEX, NUMBERS), ANY)
TIMES = st.floats(0, 4e9, allow_nan=False).map(lambda at: round(at, 6))
OF_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": ANY, "int": st.integers(0, 2**40), "float": TIMES, "float | None": st.none() | TIMES, "str | None": st.none() | ANY,
}  # fmt: skip
SPECIAL = {"id": st.one_of(NUMBERS.map(call_id), ANY), "key": KEYS, "ident": KEYS, "digest": KEYS}
ROOT = RootFacts(7, "uid of root", "id of root", "its tenant", "its agent", "its principal")
USUAL: dict[str, Any] = {
    "run": ROOT.uid, "root": ROOT.uid, "run_id": ROOT.id, "tenant": ROOT.tenant, "agent": ROOT.agent,
    "principal": ROOT.principal,
}  # fmt: skip


@st.composite
def call_rows(draw: st.DrawFn) -> CallRow:
    """Rows with any values, some of which are those that an ordinary call has."""
    values = {field.name: draw(SPECIAL.get(field.name, OF_TYPE[str(field.type)])) for field in fields(CallRow)}
    usual = {name: value for name, value in USUAL.items() if draw(st.booleans())}
    plain = [field for field in fields(CallRow) if isinstance(field.default, str | int | float | None)]
    usual |= {field.name: field.default for field in plain if draw(st.booleans())}
    return CallRow(**values | usual | {"root": ROOT.uid})


def columns_of(row: CallRow, folded: Folded = NOT_FOLDED, no: int = 5) -> list[Any]:
    """Return the values of ``READ`` as a database would return them."""
    values = hot(row)
    if values["no"] is None:
        values["no"] = no
    text = more(row, values, ROOT, folded)
    hashes = ("hash", "settled_hash", "comp_hash", "undone_hash")
    of_call = values | {name: getattr(folded, name) or None for name in (*hashes, "comp_n", "comp_epoch", "undone_n")}
    if folded.settled_n:
        of_call["settled_n"] = folded.settled_n
    of = {
        "c": of_call | {"more": text},
        "r": {"uid": ROOT.uid, "id": ROOT.id, "tenant": ROOT.tenant, "agent": ROOT.agent, "principal": ROOT.principal},
        "t": {"name": row.tool} | {name: getattr(row, name) for name in (
            "version", "kind", "scope", "declared", "undoable", "at_commit")},
    }  # fmt: skip
    return [of[name[0]][name[2:]] for name in READ]


@settings(max_examples=300, deadline=None)
@given(call_rows())
def test_a_call_comes_back_from_its_columns(row: CallRow) -> None:
    back, folded = join(columns_of(row))
    assert back == row
    assert folded is NOT_FOLDED


@settings(max_examples=100, deadline=None)
@given(call_rows(), st.sets(st.sampled_from(["hash", "settled_hash", "comp_hash", "undone_hash"])), HEX | st.just(""))
def test_folded_events_come_back_from_their_columns(row: CallRow, which: set[str], digest: str) -> None:
    hashes: dict[str, Any] = {name: bytes([len(name)]) * DIGEST for name in which}
    begun, undone = "comp_hash" in which, "undone_hash" in which
    numbers: dict[str, Any] = {"comp_n": 3 * begun, "comp_epoch": 2 * (begun or undone), "undone_n": 4 * undone}
    given = Folded(**hashes, **numbers, args_proof=digest)
    back, folded = join(columns_of(row, given))
    assert back == row
    if which:
        assert folded == given
        assert {event.hash for event in events_of(back, folded, {})} == {getattr(given, name).hex() for name in which}
    else:
        assert (folded.args_proof, folded.hash) == (digest, b"")


@settings(max_examples=100, deadline=None)
@given(call_rows(), st.integers(0, 2**40), HEX | st.just(""))
def test_a_folded_failure_comes_back_from_its_columns(row: CallRow, n: int, digest: str) -> None:
    """Its number is not the place of the call in the order of settling, which a call that failed does not have."""
    failed = changed(row, {"state": "failed", "settled_seq": 0})
    given = Folded(settled_hash=b"1" * DIGEST, error_proof=digest, settled_n=n)
    back, folded = join(columns_of(failed, given))
    assert (back, folded) == (failed, given)
    [event] = events_of(back, folded, {})
    assert (event.to_state, event.n, event.hash) == ("failed", n, (b"1" * DIGEST).hex())
    doubted = changed(failed, {"settled_seq": 7})  # it was in doubt first: that event is a row, and so is its failure
    assert join(columns_of(doubted)) == (doubted, NOT_FOLDED)


def test_more_is_a_json_text_that_every_database_can_keep() -> None:
    values: dict[str, Any] = {field.name: {"str": "x"}.get(str(field.type), 1) for field in fields(CallRow)}
    odd = CallRow(**values | {"error": "nul \x00, half \ud800, \N{SNOWMAN}", "id": "from elsewhere"})
    text = more(odd, hot(odd), ROOT)
    assert text is not None
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["error"] == odd.error


def test_an_ordinary_call_needs_no_more() -> None:
    row = CallRow(
        id=call_id(9), seq=2, tool="charge", version="1", kind="compensatable", key="a" * 64, generation=1,
        ident="b" * 64, digest="c" * 64, args="{}", state="started", created_at=5.0, created_epoch=1, asked_epoch=1,
        attempt=1, first_at=5.0, started_at=5.0, **USUAL,
    )  # fmt: skip
    assert more(row, hot(row), ROOT) is None


# ---- digests and keys ---------------------------------------------------------------------


@settings(max_examples=500, deadline=None)
@given(KEYS)
def test_a_text_comes_back_as_it_was_packed(text: str) -> None:
    assert unpack(pack(text)) == text


LENGTHS = (DIGEST, READ_KEY)
AWKWARD = [
    "", "\0", "~", "^", "A" * 64, "g" * 64, "a" * 63, "a" * 65, "a" * 64 + ":", "a" * 64 + ":call_1", "bytes 00",
    "a" * 64 + ":" + call_id(0), "a" * 64 + ":" + call_id(2**63 - 1), "a" * 64 + ":call_8000000000000000",
    *(letter * (length + near) + end for length in LENGTHS for near in (-3, -2, -1, 0, 1) for letter in "x~^"
      for end in ("", "\0", "\0\0")),
]  # fmt: skip


@pytest.mark.parametrize("text", AWKWARD, ids=repr)
def test_awkward_texts_come_back(text: str) -> None:
    assert unpack(pack(text)) == text
    assert unpack(memoryview(pack(text))) == text  # type: ignore[arg-type]  # as some drivers return it


def test_two_texts_are_never_packed_alike() -> None:
    assert len({pack(text) for text in AWKWARD}) == len(set(AWKWARD))


def test_a_digest_and_the_key_of_a_read_are_short() -> None:
    assert len(pack("ab" * 32)) == DIGEST
    assert len(pack("ab" * 32 + ":" + call_id(77))) == READ_KEY
    assert number_of(unpack(pack("ab" * 32 + ":" + call_id(77))).partition(":")[2]) == 77


def test_bytes_that_nobody_packed_are_shown_and_raise_nothing() -> None:
    """An audit must be able to read a row that was edited."""
    assert unpack(b"\xff\xfe") == "bytes fffe"
    assert unpack(b"") == "bytes "


def test_owners_come_back() -> None:
    assert read_owners(written_owners({1: "a", 22: "b \N{SNOWMAN}"})) == {1: "a", 22: "b \N{SNOWMAN}"}
    assert (written_owners({}), read_owners("")) == ("", {})


@given(
    st.dictionaries(
        st.sampled_from(["error", "quiet_mono", "probes", "put"]),
        ANY | NUMBERS | st.floats() | st.none() | st.booleans(),
    )
)
def test_what_the_hot_columns_do_not_say_is_written_as_json_does(kept: dict[str, Any]) -> None:
    assert written_more(kept) == (json.dumps(kept, separators=(",", ":")) if kept else None)
