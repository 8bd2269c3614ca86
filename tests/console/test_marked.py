"""What a page shows of a value: everything, nothing twice alike, and what could deceive stands out."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amends import Secret
from amends.serve.console.marked import (
    KINDS,
    TEXT_CHARS_MAX,
    field_of,
    marked,
    marked_args,
    marked_pair,
    marked_value,
    notes,
    segments,
    short_args,
    text_of,
    value_of,
)
from amends.visible import visible, visible_value

CHARACTERS = "ab \n\t\\\"'<>&0аеο\u202e\u202c\u200b\u200d\ufeff\x00\x1b\x7f\u00a0\u0301א٣éß漢ー\ud800\U000e0041"
DECEIVING = st.text(st.sampled_from(CHARACTERS), max_size=12)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | DECEIVING,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(DECEIVING, below, max_size=4),
    max_leaves=12,
)


def joined(line: Any) -> str:
    return "".join(one["text"] for one in line)


@given(DECEIVING)
def test_segments_put_together_are_the_visible_text(text: str) -> None:
    assert joined(marked(text)) == visible(text)
    assert joined(marked(text, prose=True)) == visible(text, prose=True)
    for one in marked(text):
        assert one["kind"] == "plain" or (one["kind"] in KINDS and one["name"])


@given(DECEIVING, DECEIVING)
def test_two_different_texts_never_look_the_same(one: str, other: str) -> None:
    assert (joined(marked(one)) == joined(marked(other))) == (one == other)


@given(VALUES)
def test_a_value_is_shown_whole_and_only_its_layout_is_added(value: Any) -> None:
    shown = text_of(marked_value(value)["lines"])
    assert shown.replace("\n", "").replace(" ", "") == visible_value(value).replace(" ", "")


@pytest.mark.parametrize(
    "text, kind, name",
    [
        ("pay \u202eada", "bidi", "RIGHT-TO-LEFT OVERRIDE (U+202E)"),
        ("ada\u200b", "zero_width", "ZERO WIDTH SPACE (U+200B)"),
        ("p\u0430ypal", "lookalike", "CYRILLIC SMALL LETTER A (U+0430)"),
        ("\x1b[2J", "control", "ESCAPE (U+001B)"),
        ("a\x00", "control", "NULL (U+0000)"),
        ("\ud800", "control", "U+D800"),
        ("ada ", "space", "SPACE (U+0020)"),
        ("a\u00a0b", "space", "NO-BREAK SPACE (U+00A0)"),
        ("a\nb", "newline", "NEW LINE (U+000A)"),
        ("a\u0301", "zero_width", "COMBINING ACUTE ACCENT (U+0301)"),
        ("\U000e0041", "zero_width", "TAG LATIN CAPITAL LETTER A (U+E0041)"),
    ],
)
def test_each_kind_of_deceit_has_its_mark_and_its_name(text: str, kind: str, name: str) -> None:
    [found] = [one for one in marked(text) if one["kind"] != "plain"]
    assert (found["kind"], found["name"]) == (kind, name)


def test_a_backslash_that_was_typed_is_no_mark() -> None:
    assert marked("\\u202e") == [{"text": '"\\\\u202e"', "kind": "plain"}]
    assert [one["kind"] for one in segments('"\\\\\\u202e"')] == ["plain", "bidi", "plain"]


def test_notes_count_each_character_and_begin_with_the_warnings() -> None:
    found = notes([*marked_value("a \tb\u200b")["lines"], *marked_value("\u200b")["lines"]])
    assert [(one["kind"], one["times"], one["is_warning"]) for one in found] == [
        ("zero_width", 2, True),
        ("space", 1, False),
    ]


def test_lines_of_a_text_are_lines_of_the_page_and_each_end_is_seen() -> None:
    found = marked_value("Dear Ada,\n\ndigest: 0")
    assert text_of(found["lines"]) == '"Dear Ada,\\n\n\\n\ndigest: 0"'
    assert found["notes"] == []


def test_a_long_text_is_counted_and_hashed_where_it_is_cut() -> None:
    one, other = "a" * 1_000_000, "a" * 500_000 + "b" + "a" * 499_999
    found, others = marked_value(one), marked_value(other)
    assert found["is_cut"]
    assert len(text_of(found["lines"])) < TEXT_CHARS_MAX
    assert "998,400 more characters" in text_of(found["lines"])
    assert text_of(found["lines"]) != text_of(others["lines"])
    assert text_of(marked_value(other, whole=True)["lines"]) == visible_value(other)


def test_many_lines_are_counted_too_and_shown_when_asked_for() -> None:
    value = [{"name": f"customer number {one}", "street": "Long Street 1", "city": "Long Town"} for one in range(2_000)]
    found = marked_value(value)
    assert found["is_cut"]
    assert len(found["lines"]) == 301
    whole = marked_value(value, whole=True)
    assert not whole["is_cut"]
    assert text_of(whole["lines"]) == visible_value(value)


def test_a_value_that_is_nested_deep_is_shown() -> None:
    value: Any = "the end"
    for _ in range(198):
        value = [value]
    assert "the end" in text_of(marked_value(value)["lines"])
    assert text_of(marked_value({"a": value})["lines"]).count("[") == 198


def test_values_that_json_lacks_are_named() -> None:
    value = {"a": Decimal("4.20"), "at": datetime(2026, 1, 1, tzinfo=UTC), "n": math.nan, "t": (1,), "s": {3}}
    assert 'Decimal("4.20")' in text_of(marked_value(value)["lines"])
    found = marked_args(value)
    assert [item["type"] for item in found["items"]] == ["Decimal", "datetime", "number", "list", "list"]


def test_what_is_hidden_is_said_to_be_hidden() -> None:
    secret = Secret("abc123def")
    [line] = marked_value(secret)["lines"]
    assert [one["kind"] for one in line if one["text"].strip()] == ["secret"]
    assert marked_args({"card": secret})["items"][0]["type"] == "hidden"


def test_arguments_in_a_list_take_one_short_line() -> None:
    found = short_args({"to": "p\u0430ypal", "body": "x" * 1_000_000, "cc": "ada", "bcc": "eve"})
    assert len(joined(found)) < 400
    assert [one["kind"] for one in found if one["kind"] != "plain"] == ["lookalike", "truncated"]
    assert joined(short_args({"order": "1042", "cents": 4200})) == 'order="1042"  cents=4200'


def test_what_differs_in_long_texts_is_shown_with_what_is_around_it() -> None:
    was, now = "a" * 5_000 + "100 EUR" + "b" * 5_000, "a" * 5_000 + "900 EUR" + "b" * 5_000
    left, right = marked_pair(was, now)
    assert "100 EUR" in text_of(left["lines"])
    assert "900 EUR" in text_of(right["lines"])
    assert len(text_of(right["lines"])) < 200
    assert "characters that are the same" in text_of(right["lines"])


@given(st.text("ab \n\u202e", max_size=150), st.text("ab \n\u202e", max_size=150))
def test_a_pair_that_differs_never_looks_the_same(was: str, now: str) -> None:
    left, right = marked_pair(was, now)
    assert (left["lines"] == right["lines"]) == (was == now)


@given(VALUES)
def test_a_form_that_nobody_changed_gives_the_value_itself(value: Any) -> None:
    field = field_of("a", value)
    assert value_of(field, field["text"].replace("\n", "\r\n"), value) is value


def test_a_form_keeps_the_types() -> None:
    assert value_of(field_of("cents", 4200), "4000", 4200) == 4000
    assert value_of(field_of("order", "1042"), "1043", "1042") == "1043"
    assert value_of(field_of("urgent", True), "false", True) is False
    assert value_of(field_of("to", ["a"]), '["a", "b"]', ["a"]) == ["a", "b"]
    assert value_of(field_of("body", "a\nb"), "a\r\nc", "a\nb") == "a\nc"
    assert field_of("to", "p\u0430ypal")["text"] == '"p\\u0430ypal"'
    assert value_of(field_of("cost", Decimal("4.20")), "4.0", Decimal("4.20")) == Decimal("4.0")
    assert field_of("card", Secret("abc"))["as"] == "hidden"
    assert field_of("customer", {"card": Secret("abc")})["as"] == "fixed"
    for wrong in ("NaN", "4000 EUR", ""):
        with pytest.raises(ValueError, match=r"JSON|Expecting|Extra data"):
            value_of(field_of("cents", 4200), wrong, 4200)
