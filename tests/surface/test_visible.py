"""What a person is shown of the ledger: on one line, whole, with nothing that deceives, and never like another text."""

from __future__ import annotations

import json
import logging
import unicodedata
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amends.errors import Error, Rejected, UsageError
from amends.visible import columns, folded, printable, quoted, visible, visible_args, visible_log, visible_value

HOSTILE = (
    "\n",
    "a\nstate     approved",
    "\r\x1b[2Kall is well",
    "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31m",
    "\x7f",
    "\x00",
    "a\tb",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\u200e\u200f\u061c",
    "pay\u200bpal",
    "a\u200d\u2060\ufeff\u00adb",
    "x\ufe0f",
    "x\U000e0041\U000e0100",
    "a\u00a0b",
    "a\u3000b",
    "a\u2028b\u2029c\x85d",
    "\ud800",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e",
    "p\u0430ypal",
    "\u0441\u043e\u0441\u043e",
    "\u2800",
    "\u3164",
    "\uffa0",
    "\u115f",
    " ",
    "  lead",
    "trail ",
    "a  b",
    "[bold]x[/bold]",
    "[link=https://evil.example]x[/link]",
    '"quoted"',
    "back\\slash",
    "\\n",
    "\\\\n",
    "",
    "\uff41\uff42",
    "\ufb01",
    "1\u0660",
    "\u09ea",
    "100\u2026",
    "\u2014",
    "\u201cx\u201d",
    "e\u0301",
    "\u212a",
    "\ue000",
    "\U0010ffff",
    "\u05e9\u05dc 100 200",
    "\u1100\u1161",
    "\u2713 approved",
)
LEGIBLE = (
    "order-1042",
    "Zo\u00eb M\u00fcller",
    "\u0141\u00f3d\u017a",
    "\u0410\u043d\u043d\u0430 \u041a\u0430\u0440\u0435\u043d\u0438\u043d\u0430",
    "\u0441 \u043d\u0430\u043c\u0438",
    "\u6771\u4eac",
    "iPhone\u7528",
    "\uc548\ub155",
    "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\u0e19\u0e49\u0e33",
    "\u0395\u03bb\u03bb\u03ac\u03b4\u03b1",
    "20 \u20ac",
    "it is much, is it not?",
    "[bold]",
)
texts = st.text() | st.lists(st.sampled_from([*HOSTILE, *LEGIBLE, "a", " ", "\\", '"'])).map("".join)


def is_honest(line: str) -> bool:
    """Whether a line has only what prints, in one place, as itself."""
    return all(
        (one.isprintable() and unicodedata.category(one)[0] not in "CZ") or one == " " for one in line
    ) and not any(unicodedata.bidirectional(one) in ("RLE", "LRE", "RLO", "LRO", "PDF", "LRI", "RLI") for one in line)


def read(shown: str) -> str:
    """The text that is shown so; whoever can read it back, can tell it from every other."""
    if not shown.startswith('"'):
        return shown
    inside = shown.removesuffix("(rtl)")[1:-1]
    out, place = [], 0
    while place < len(inside):
        one = inside[place]
        if one != "\\":
            assert one != '"', "a quote ends it"
            out.append(one)
            place += 1
            continue
        kind = inside[place + 1]
        size = {"x": 2, "u": 4, "U": 8}.get(kind, 0)
        out.append(
            chr(int(inside[place + 2 : place + 2 + size], 16))
            if size
            else {"n": "\n", "r": "\r", "t": "\t"}.get(kind, kind)
        )
        place += 2 + size
    return "".join(out)


@given(texts)
@example("")
def test_a_text_is_shown_on_one_honest_line_and_can_be_read_back(text: str) -> None:
    for shown in (visible(text), visible(text, prose=True), quoted(text)):
        assert is_honest(shown)
        assert shown == shown.strip()
        assert "  " not in shown
        assert read(shown) == text


@given(texts, texts)
def test_two_texts_that_a_reader_takes_for_one_are_shown_differently(one: str, other: str) -> None:
    if one != other:
        assert visible(one) != visible(other)
        looks = [unicodedata.normalize("NFKC", visible(text)) for text in (one, other)]
        assert looks[0] != looks[1]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_what_deceives_is_escaped_or_quoted(text: str) -> None:
    assert visible(text) != text
    assert visible(text).startswith('"')
    assert is_honest(printable(f"run {visible(text)} is held"))


@pytest.mark.parametrize("text", LEGIBLE, ids=ascii)
def test_ordinary_text_of_any_language_stays_legible(text: str) -> None:
    assert visible(text, prose=True) == text
    assert quoted(text) == f'"{text}"'


@pytest.mark.parametrize("sign", "_.-/:@+#~%")
def test_a_word_begins_with_no_sign_whatever_its_other_letters_are(sign: str) -> None:
    bare = [visible(f"{sign}{rest}").startswith(sign) for rest in ("a", "\u00c0")]
    assert bare == [sign == "_"] * 2


def test_right_to_left_letters_change_the_order_of_nothing_else() -> None:
    assert visible("\u05e9\u05dc\u05d5\u05dd").isascii() is False
    assert visible("\u05e9\u05dc\u05d5\u05dd").endswith('"(rtl)'), "a Latin letter after it keeps the rest in place"
    assert visible("\u05e9\u05dc 100 200").isascii(), "beside digits they are spelled out"
    assert visible("\u05e9\u05dc a").isascii()


@given(texts)
def test_printable_is_honest_and_done_twice_changes_nothing_more(text: str) -> None:
    once = printable(text)
    assert printable(once) == once
    assert not any(unicodedata.category(one)[0] == "C" for one in once)
    assert "\n" not in once
    assert "\n".join(printable(line) for line in text.split("\n")) == printable(text, lines=True)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(texts | st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(values)
def test_a_value_is_shown_whole_on_one_honest_line(value: Any) -> None:
    shown = visible_value(value)
    assert is_honest(shown)


def same(one: Any, other: Any) -> bool:
    """Equal, and of equal types throughout."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) and repr(one) == repr(other)


@given(values, values)
def test_two_values_are_never_shown_alike(one: Any, other: Any) -> None:
    assert same(one, other) == (visible_value(one) == visible_value(other))


class Colour(Enum):
    RED = "red"


@dataclass
class Customer:
    id: int


@dataclass
class Employee:
    id: int


PAIRS: list[tuple[Any, Any]] = [
    ("100", 100),
    (1, True),
    (1, 1.0),
    ({1: "a"}, {"1": "a"}),
    ({(1, 2): 3}, {"(1, 2)": 3}),
    ([1, 2], (1, 2)),
    ({1, 2}, [1, 2]),
    (None, "null"),
    (Decimal("1.0"), "1.0"),
    (Decimal("1.0"), Decimal("1.00")),
    (b"x", "x"),
    (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
    (Colour.RED, "red"),
    (Customer(7), Employee(7)),
    (Customer(7), {"id": 7}),
    ("a, b", ["a", "b"]),
    ('Decimal("1.0")', Decimal("1.0")),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (10**5000, 10**5000 + 1),
    ({"\u00e9": 1}, {"e\u0301": 1}),
]


@pytest.mark.parametrize("one, other", PAIRS, ids=range(len(PAIRS)))
def test_what_differs_in_type_or_spelling_is_shown_so(one: Any, other: Any) -> None:
    assert visible_value(one) != visible_value(other)
    assert is_honest(visible_value(one))
    assert visible_value(one, bare=True) != visible_value(other, bare=True)


def test_plain_data_is_shown_as_json() -> None:
    value = {"order": "1043", "cents": 250000, "tags": ["a", None, True, 1.5]}
    assert visible_value(value) == json.dumps(value, separators=(",", ":"))
    assert visible_value(OrderedDict(a=1)) == 'OrderedDict{"a":1}'


def test_an_argument_imitates_no_other_line() -> None:
    lines = visible_args(
        {"cents": 1, "approved by": "anna", "x\n   cents": 9, "note": "ok\n   cents = 9", "cent\u0455": 1}
    )
    assert lines[:2] == ["cents = 1", '"approved by" = "anna"']
    assert lines[4] == '"cent\\u0455" = 1'
    assert sum(line.lstrip().startswith("cents") for line in lines) == 1


@given(texts, st.integers(min_value=16, max_value=200))
def test_a_folded_line_begins_every_row_with_our_mark_and_loses_nothing(text: str, width: int) -> None:
    line = visible(text)
    first, *rest = folded(line, width)
    assert all(row.startswith("     ┊ ") for row in rest)
    assert first + "".join(row.removeprefix("     ┊ ") for row in rest) == line
    assert all(sum(map(columns, row)) <= width for row in (first, *rest))


def test_an_error_is_one_line_whoever_wrote_its_parts() -> None:
    no = Rejected("pay\nhint: run this", by="ada\x1b[2J", reason="no\nerror[x]: y")
    assert is_honest(str(no))
    assert no.reason == "no\nerror[x]: y", "facts stay exact"
    assert str(Rejected("pay", by="ada", reason="too much")) == "ada rejected pay: too much"
    for error in (Error("a\u202eb"), UsageError("a\nb", hint="c\x1bd")):
        assert is_honest(str(error))
        assert is_honest(error.hint)


def test_a_log_line_is_one_line_and_a_traceback_begins_none(caplog: pytest.LogCaptureFixture) -> None:
    log = visible_log("amends.shown")
    with caplog.at_level(logging.INFO):
        log.info("run %s of %d", "r\nINFO run s is committed\x1b[0m", 7)
        try:
            raise ValueError("boom\nINFO all is well\x1b[2J")
        except ValueError:
            log.exception("%s failed", "it")
    first, second = caplog.records
    assert first.getMessage() == "run r\\nINFO run s is committed\\x1b[0m of 7"
    text = logging.Formatter("%(levelname)s %(message)s").format(second)
    assert "\x1b" not in text
    assert [line for line in text.split("\n") if line.startswith("INFO")] == []
    assert visible_log("amends.shown") is log
    assert len(log.filters) == 1
