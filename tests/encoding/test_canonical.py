"""What is written down: one text per meaning, every type back as it was, and never an exception for a result."""

from __future__ import annotations

import inspect
import io
import json
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from random import Random
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple
from unicodedata import normalize
from unittest.mock import MagicMock
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, HttpUrl, RootModel, field_validator
from typing_extensions import TypedDict

from amends.encoding import canonical as subject
from amends.encoding.canonical import (
    PAYLOAD_BYTES_MAX,
    canonical,
    digest,
    encode,
    flat_copy,
    parse,
    plain_copy,
    plain_texts,
)
from amends.encoding.payloads import Stored, decode, load_result, round_trip, store_result
from amends.errors import LedgerCorrupt, NotStorable, TooLarge


class Colour(Enum):
    RED = "red"
    BOTH = (1, 2)


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Receipt:
    id: str
    total: Decimal = Decimal("1.50")
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class LongReceipt(Receipt):
    note: str = ""


@dataclass
class Line:
    price: Any


class Order(BaseModel, strict=True):
    order_id: str = Field(alias="orderId")
    lines: list[Line] = []
    level: Level = Level.LOW


class Open(BaseModel, extra="allow"):
    a: int


class Tags(RootModel[list[str]]):
    pass


class Twice(BaseModel):
    n: int
    grow = field_validator("n")(lambda n: n * 2)


class Point(NamedTuple):
    x: int
    y: int


class Row(TypedDict):
    when: datetime


ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
BERLIN = NOON.astimezone(ZoneInfo("Europe/Berlin"))
EAST = timezone(timedelta(hours=2))
DAY = date(2024, 5, 1)

# ---- one text for one meaning -------------------------------------------------------------


def alone(*values: Any) -> list[list[Any]]:
    return [[value] for value in values]


# Each list is one meaning in several spellings; no two lists mean the same.
SCALARS: list[list[Any]] = [
    [50, 50.0, Decimal("50.00"), Decimal("5E+1")],
    [0, -0.0, Decimal("-0E+900")],
    [1, 1.0, Decimal("1.0"), Level.LOW],
    [0.1, Decimal("0.1"), Decimal("0.10")],
    [2**53, 2.0**53],
    [2**60, 2.0**60],
    [10**32, Decimal("1E+32")],
    [10**32 - 1, Decimal(10**32 - 1)],
    [-(10**5000), Decimal("-1E+5000")],
    ["caf\u00e9", "cafe\u0301"],
    ["red", Colour.RED],
    ["https://a.b/c", HttpUrl("https://a.b/c")],
    [b"1", bytearray(b"1"), memoryview(b"1")],
    [NOON, BERLIN],
    [time(12, tzinfo=UTC), time(14, tzinfo=EAST)],
    [timedelta(days=1), timedelta(hours=24)],
    [Path("a/b"), PurePosixPath("a/b"), Path("a//b")],
    *alone(True, False, None, "", "1", "true", "null", "None", "Decimal('1')", 2**53 + 1, 10**5000 + 1),
    *alone(Decimal("0.1000000000000000055511151231257827"), Decimal("1E+999999999"), Decimal("1E-99"), b""),
    *alone(NOON.replace(tzinfo=None), NOON + timedelta(microseconds=1), time(12), DAY, str(DAY), 'a","b'),
    *alone(datetime.min.replace(tzinfo=EAST), ID, str(ID), "a/b", "a\0", "a\\u0000", "MQ==", "$map"),
]
HOLDERS: list[list[Any]] = [
    [{"caf\u00e9": 1, "b": 2}, {"b": 2, "cafe\u0301": 1}, OrderedDict({"b": 2, "caf\u00e9": 1})],
    [[1, 2], (1, 2), Point(1, 2), Colour.BOTH],
    [{1, 2}, frozenset({2, 1})],
    [{"\u00e9"}, {"\u00e9", "e\u0301"}],
    [{1: 0}, {Level.LOW: 0}],
    [{(1, 2): 0}, {Colour.BOTH: 0}],
    [Receipt("r"), {"id": "r", "total": 1.5, "colour": "red"}],
    [Order(orderId="o", lines=[Line(2)]), {"order_id": "o", "lines": [{"price": 2}], "level": 1}],
    [Open.model_validate({"a": 1, "b": 2}), {"a": 1, "b": 2}, MappingProxyType({"b": 2, "a": 1})],
    [Tags(["x"]), ["x"]],
    *alone([], {}, set(), {"1": 0}, {True: 0}, {None: 0}, {ID: 0}, {str(ID): 0}, {DAY: 0}, {"[1,2]": 0}),
    *alone({"$number": "1e-1"}, {"$set": [1, 2]}, {"$bytes": "MQ=="}, {"$datetime": "1714566600000000"}),
    *alone({"$map": [[1, 0]]}, {"$map": [["$map", 1]]}, {"$map": 1}, {"$": 1}, {"$x": 1, "y": 2}),
    *alone({1: "a", "1": "b"}, {1: "b", "1": "a"}, {"$set": 1, "$map": 2}, [[]], [[], []], [[1], 2]),
]


@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"k": [v]}, lambda v: (v, {2: v})])
def test_texts_are_one_per_meaning(wrap: Callable[[object], object]) -> None:
    texts = [{canonical(wrap(value)) for value in group} for group in SCALARS + HOLDERS]
    assert [found for found in texts if len(found) != 1] == []
    assert [text for text, owners in Counter(text for found in texts for text in found).items() if owners > 1] == []


# A meaning is a list of SCALARS by its number, or a tuple, a set or a mapping of meanings; it has many spellings.
LINES = st.integers(0, len(SCALARS) - 1)
MEANINGS = st.recursive(
    LINES,
    lambda inner: (
        st.tuples(st.just("list"), st.lists(inner, max_size=3).map(tuple))
        | st.tuples(st.just("set"), st.frozensets(LINES, max_size=3))
        | st.tuples(st.just("dict"), st.dictionaries(LINES, inner, max_size=3).map(lambda d: frozenset(d.items())))
    ),
    max_leaves=6,
)


def spelled(meaning: Any, luck: Random, *, as_key: bool = False) -> Any:
    if isinstance(meaning, int):
        return luck.choice([one for one in SCALARS[meaning] if not as_key or isinstance(one, Hashable)])
    kind, inner = meaning
    parts = luck.sample(sorted(inner, key=repr), len(inner)) if kind != "list" else inner
    if kind == "list":
        return luck.choice([list, tuple])(spelled(part, luck) for part in parts)
    if kind == "set":
        found = luck.choice([set, frozenset])(spelled(part, luck, as_key=True) for part in parts)
    else:
        found = {spelled(key, luck, as_key=True): spelled(part, luck) for key, part in parts}
    assume(len(found) == len(inner))  # Python takes True and 1 for one key
    return found


@settings(max_examples=400, deadline=None)
@given(MEANINGS, st.randoms(use_true_random=False))
def test_no_spelling_changes_the_text(meaning: object, luck: Random) -> None:
    assert canonical(spelled(meaning, luck)) == canonical(spelled(meaning, luck))


@settings(max_examples=400, deadline=None)
@given(MEANINGS, MEANINGS, st.randoms(use_true_random=False))
def test_texts_are_equal_only_when_meanings_are(one: object, other: object, luck: Random) -> None:
    assert (canonical(spelled(one, luck)) == canonical(spelled(other, luck))) == (one == other)


NUMBERS = (
    st.integers(-30, 30) | st.integers() | st.decimals(-30, 30, places=2) | st.floats(-3, 3).map(lambda f: round(f, 1))
)


@settings(max_examples=400, deadline=None)
@given(NUMBERS, NUMBERS)
def test_numbers_share_a_text_exactly_when_they_are_equal(one: Any, other: Any) -> None:
    exact = [Fraction(repr(n) if isinstance(n, float) else n) for n in (one, other)]
    assert (canonical(one) == canonical(other)) == (exact[0] == exact[1])


@settings(max_examples=200, deadline=None)
@given(st.text(), st.text("e\u0301\u00e9", max_size=3), st.text("e\u0301\u00e9", max_size=3))
def test_unicode_forms_share_a_text_and_nothing_else_does(text: str, one: str, other: str) -> None:
    assert canonical(normalize("NFD", text)) == canonical(text) == canonical(normalize("NFC", text))
    assert (canonical(one) == canonical(other)) == (normalize("NFC", one) == normalize("NFC", other))


def test_a_set_has_one_key_whatever_the_hash_seed() -> None:
    program = (
        "from amends.encoding.canonical import canonical, digest, encode\n"
        "value = {'tags': {'a', 'b', 'c', 'd', b'e', ('f', 1), frozenset('xyz')}}\n"
        "print(digest(canonical(value), encode(value, path='args')))"
    )
    source = str(Path(subject.__file__).parents[1])
    env = [{**os.environ, "PYTHONPATH": source, "PYTHONHASHSEED": str(seed)} for seed in range(6)]
    run = [subprocess.Popen([sys.executable, "-c", program], env=e, stdout=subprocess.PIPE, text=True) for e in env]
    assert len({child.communicate(timeout=60)[0] for child in run}) == 1
    assert not any(child.returncode for child in run)


# ---- digest, diff, size -------------------------------------------------------------------

PARTS = st.one_of(
    st.sampled_from([None, "", "None", 1, "1", b"1", b"", "str1:a"]), st.text(), st.binary(), st.integers()
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, max_size=4), st.lists(PARTS, max_size=4))
def test_different_parts_never_share_a_digest(one: list[Any], other: list[Any]) -> None:
    is_same = [(type(part), part) for part in one] == [(type(part), part) for part in other]
    assert (digest(*one) == digest(*other)) == is_same


@settings(max_examples=200, deadline=None)
@given(st.text("a|:1", min_size=2, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_moving_the_border_between_parts_changes_the_digest(text: str, one: int, other: int) -> None:
    pairs = [(text[:cut], text[cut:]) for cut in (one, other)]
    assert (digest(*pairs[0]) == digest(*pairs[1])) == (pairs[0] == pairs[1])
    for glue in ("", "|", "str", "str|", "str:", f"str{len(text)}:"):
        assert digest(text, text) != digest(text + glue + text)


def test_a_digest_tells_types_apart() -> None:
    parts: list[Any] = [None, "", "None", "1", 1, True, b"1", b"", "True", "\ud800"]
    assert len({digest(part) for part in parts} | {digest(), digest("", "")}) == len(parts) + 2


def test_diff_names_the_arguments_that_mean_something_else() -> None:
    recorded = {"a": 1, "b": "caf\u00e9", "c": [1], "gone": None}
    given = {"new": 2, "c": [2], "b": "cafe\u0301", "a": 1.0}
    assert subject.diff(recorded, given) == {"c": ([1], [2]), "gone": (None, None), "new": (None, 2)}


def test_sizes_are_counted_in_bytes() -> None:
    subject.check_size("\u00e9" * 5, path="args", limit=10)
    with pytest.raises(TooLarge) as caught:
        subject.check_size("\u00e9" * 5, path="args", limit=9)
    assert (caught.value.path, caught.value.size, caught.value.limit) == ("args", 10, 9)


# ---- what is refused ----------------------------------------------------------------------


def nested(depth: int, *, width: int = 1) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value] * width
    return value


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


def fail(*_: object) -> Any:
    raise RuntimeError


class Hostile(BaseModel):
    __repr__ = __str__ = __iter__ = __eq__ = __hash__ = fail
    model_dump = fail  # type: ignore[assignment]


class Unreadable(dict):
    __repr__ = __iter__ = __len__ = keys = items = fail


class Clock(datetime):
    """Knows more than a datetime, as pandas' Timestamp does."""

    __ne__ = lambda self, other: self is not other  # noqa: E731


REFUSED: list[tuple[object, str]] = [
    ({"items": [0, 1, 2, {"price": float("nan")}]}, "args.items[3].price"),
    ({"a b": float("-inf")}, "args['a b']"),
    ({1: Decimal("sNaN")}, "args[1]"),
    ({"a": "\ud800"}, "args.a"),
    ({"caf\u00e9": 1, "cafe\u0301": 2}, "args.cafe\u0301"),
    ({Colour.RED: 1, "red": 2}, "args.red"),
    ({"s": {object}}, "args.s{}"),
    (Line(object()), "args.price"),
    ({"n": 1 << 300_000}, "args.n"),
    (nested(60, width=2), "args"),
    (["x" * 1_000_000] * 1000, "args"),
]
NO_DATA = [object(), threading.Lock(), io.StringIO(), iter(()), 1j, len, Receipt, MagicMock(spec=dict), Clock(1, 1, 1)]


@pytest.mark.parametrize("value,path", REFUSED, ids=[path for _, path in REFUSED])
def test_a_refusal_names_the_place(value: object, path: str) -> None:
    with pytest.raises(NotStorable) as caught:
        canonical(value)
    assert caught.value.path == path
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize("value", NO_DATA, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("write", [canonical, encode])
def test_what_is_no_data_is_refused_with_type_and_cure(write: Callable[..., str], value: object) -> None:
    with pytest.raises(NotStorable) as caught:
        write({"rows": value}, path="args")
    assert caught.value.path == "args.rows"
    assert type(value).__name__ in str(caught.value)
    assert "pass an id or plain data" in caught.value.hint


@pytest.mark.parametrize("write", [canonical, encode])
def test_cycles_and_depth_are_refused(write: Callable[..., str]) -> None:
    assert write(nested(99), path="args") == "[" * 100 + "]" * 100
    for value in (nested(101), nested(50_000), endless(), {"m": MappingProxyType(endless())}):
        with pytest.raises(NotStorable, match="deeper than 100"):
            write(value, path="args")


# ---- stored and read back -----------------------------------------------------------------


def alike(one: Any, other: Any) -> bool:
    """Equal, of the same types, all the way down; NaN is like NaN, 1.10 is not like 1.1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return alike(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, set | frozenset):
        return len(one) == len(other) and all(any(alike(a, b) for b in other) for a in one)
    return str(one) == str(other) if isinstance(one, float | Decimal) else bool(one == other)


TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(["$map", "\ud83d\ude00", "\\ud83d", "a\udc80\u00e9\\"])
MOMENTS = st.dates() | st.times() | st.timedeltas() | st.datetimes() | st.datetimes(timezones=st.just(EAST))
ODD = st.sampled_from(
    [2**53, -(2**53), 1 << 9000, Path("a/\udc80"), PurePosixPath("a"), PureWindowsPath("c:/x"), BERLIN]
)
HASHED = st.none() | st.booleans() | st.integers() | TEXTS | st.binary(max_size=5) | st.uuids() | MOMENTS | ODD
KEYS = st.recursive(HASHED, lambda v: st.lists(v, max_size=2).map(tuple) | st.frozensets(v, max_size=2), max_leaves=3)


def holding(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists, sets = st.lists(inner, max_size=3), st.sets(KEYS, max_size=3)
    return lists | lists.map(tuple) | sets | sets.map(frozenset) | st.dictionaries(KEYS, inner, max_size=3)


@settings(max_examples=500, deadline=None)
@given(st.recursive(HASHED | st.floats() | st.decimals() | st.just(bytearray(b"x")), holding, max_leaves=6))
def test_a_stored_value_comes_back_the_same(value: object) -> None:
    text = encode(value, path="result")
    text.encode("utf-8")
    assert alike(decode(text), value)
    assert encode(decode(text), path="result") == text
    assert alike(round_trip(value)[0], value)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.text(max_size=9) | st.booleans() | st.none(),
        lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("$a", max_size=2).map("a".__add__), v, max_size=3),
    )
)
def test_plain_json_is_stored_as_plain_json(value: object) -> None:
    assert json.loads(encode(value, path="result")) == value


def test_the_stored_text_can_be_read_by_people() -> None:
    assert encode("x", path="result") == '"x"'
    assert encode({"n": 1, "f": 1.5, "\u00e9": [None, True]}, path="result") == '{"n":1,"f":1.5,"\u00e9":[null,true]}'
    assert (
        encode({"at": DAY, "id": 2**63}, path="") == '{"at":{"$date":"2024-05-01"},"id":{"$int":"9223372036854775808"}}'
    )


@pytest.mark.parametrize("text", ["", "{", '{"$new":1}', '{"$uuid":"x"}', '{"$decimal":"x"}', '{"$map":[[[],1]]}'])
def test_a_damaged_text_is_said_to_be_one(text: str) -> None:
    with pytest.raises(LedgerCorrupt):
        decode(text)


# ---- results ------------------------------------------------------------------------------

KEPT: list[tuple[object, object]] = [
    (1, int),
    (float("inf"), Any),
    (Receipt("r", colour=Colour.BOTH), Receipt),
    ([Receipt("r")], list[Receipt]),
    ({Receipt("r"), Receipt("s")}, set[Receipt]),
    ({Colour.RED: {Level.LOW}}, dict[Colour, set[Level]]),
    (Order(orderId="o", lines=[Line(2.0)]), Order),
    (Order(orderId="o"), Annotated[Order, Field(description="has no hash")]),
    (Open.model_validate({"a": 1, "b": NOON}), Open | None),
    (Tags(["x"]), Tags),
    (Point(1, 2), Point),
    ((1, "a"), tuple[int, str]),
    (Counter("aab"), Counter[str]),
    (HttpUrl("https://a.b/c"), HttpUrl),
    ({"when": NOON}, Row),
    (["a"], Iterable[str]),
    ("later", "Unresolved"),
    (5, str),
    (LongReceipt("r", note="n"), Receipt),  # a subclass keeps its class and its fields
    ([LongReceipt("r", note="n"), Receipt("s")], list[Receipt]),
]
CONVERTED: list[tuple[object, object, object]] = [
    ({"id": "r"}, Receipt, Receipt("r")),
    ([1, 2], tuple[int, ...], (1, 2)),
    (1, float, 1.0),
    ("red", Colour, Colour.RED),
    ({"orderId": "o"}, Order, Order(orderId="o")),
]
LOST: list[tuple[object, object, str]] = [
    (Receipt("r"), Any, "came back as dict, was Receipt"),
    ([Receipt("r")], list, "result[0] came back as dict, was Receipt"),
    (Colour.RED, inspect.Signature.empty, "came back as str, was Colour"),
    (Receipt("r"), int, "came back as dict, was Receipt"),
    (Receipt("r"), threading.Lock, "came back as dict, was Receipt"),
    (Point(1, 2), tuple, "came back as tuple, was Point"),
    (Twice(n=1), Twice, "Twice came back changed"),
    ({Colour.RED, Level.LOW}, set[Colour | int], "came back as int, was Level"),
]


@pytest.mark.parametrize("value,annotation,expected", [(value, kind, value) for value, kind in KEPT] + CONVERTED)
def test_first_call_and_replays_give_what_the_annotation_says(value: Any, annotation: object, expected: Any) -> None:
    first, stored = round_trip(value, annotation)
    assert stored == store_result(value, annotation)
    assert stored.loss is None
    for seen in (first, load_result(stored.text, annotation)):
        assert seen == expected
        assert type(seen) is type(expected)


@pytest.mark.parametrize("value,annotation,loss", LOST)
def test_a_type_that_is_lost_is_said_and_lost_for_all(value: object, annotation: object, loss: str) -> None:
    first, stored = round_trip(value, annotation)
    again = load_result(stored.text, annotation)
    assert loss in str(stored.loss)
    assert (type(first), first) == (type(again), again)


@pytest.mark.parametrize(
    "value", [nested(50_000), endless(), nested(60, width=2), Unreadable(a=1), {Receipt(""): 1}, *NO_DATA]
)
def test_a_result_that_cannot_be_written_down_is_a_loss_and_no_error(value: object) -> None:
    seen, stored = round_trip(value, Receipt)
    assert seen is value
    assert stored.text is None
    assert str(stored.loss).startswith("result")
    assert load_result(stored.text, Receipt) is None


def test_hostile_methods_are_never_asked() -> None:
    assert store_result(Hostile(), Hostile) == Stored("{}", None)
    assert store_result({"k": Hostile()}).text == '{"k":{}}'


def test_losses_name_type_and_size() -> None:
    assert store_result(io.StringIO()) == Stored(None, "result of type StringIO cannot be stored")
    assert store_result("x" * 2_999_998) == Stored(None, "result of 3,000,000 bytes is larger than 1,048,576")
    assert store_result("x" * (PAYLOAD_BYTES_MAX - 2)).loss is None


def test_what_is_stored_shares_nothing_with_the_caller() -> None:
    value = {"items": [1]}
    seen, stored = round_trip(value)
    value["items"].append(2)
    assert seen == {"items": [1]} == load_result(stored.text)


# ---- the quick way, and the rules -----------------------------------------------------------

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["$x", "e\u0301", "\ud800", 0.1]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["$x", "a", 'a"', "a!", "a b"]), inner),
    max_leaves=12,
)


def by_the_rules(value: object) -> tuple[str, str] | None:
    try:
        return encode(value, path="args"), canonical(value)
    except NotStorable:
        return None


@given(PLAIN)
@settings(max_examples=400)
def test_the_quick_way_writes_what_the_rules_write(value: object) -> None:
    texts = plain_texts(value)
    assert texts is None or texts == by_the_rules(value)
    copied = plain_copy(value)
    if copied is not None:
        text, twin = copied
        assert text == encode(value, path="result")
        assert repr(twin) == repr(decode(text)) == repr(value)


SINGLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)


@given(st.dictionaries(st.text(max_size=4), SINGLE, max_size=3), st.none() | st.sets(st.sampled_from((str, int, bool))))
@settings(max_examples=400)
def test_a_flat_dict_is_copied_as_any_plain_data_is(value: dict[str, object], kinds: set[type] | None) -> None:
    copied = flat_copy(value, kinds)
    if copied is not None:
        assert repr(copied) == repr(plain_copy(value))
        assert copied[1] is not value
        assert kinds is None or {type(item) for item in value.values()} <= kinds


@given(st.dictionaries(st.sampled_from(["a", "b"]), st.booleans() | st.integers(0, 9), min_size=1))
def test_a_flat_dict_of_the_types_is_copied(value: dict[str, object]) -> None:
    assert flat_copy(value, {bool, int}) is not None


@given(st.floats())
def test_the_quick_way_names_a_number_as_the_rules_do(value: float) -> None:
    texts = plain_texts(value)
    assert texts is None or texts == by_the_rules(value)


@pytest.mark.parametrize(
    "value",
    [
        {"$x": 1},
        (1,),
        {1: 2},
        2**53,
        1e300,
        float("nan"),
        Level.LOW,
        "\ud800",
        "x" * 70_000,
        ["x" * 100] * 1_000,
        {"a": [[[[[[[[[]]]]]]]]]},
        Decimal(1),
        {"a": b""},
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_not_plain_is_left_to_the_rules(value: object) -> None:
    assert plain_texts(value) is None
    assert plain_copy(value) is None or value == 1e300
    assert not isinstance(value, dict) or flat_copy(value, None) is None


def test_a_copy_is_nobody_elses() -> None:
    value = {"a": [1, {"b": []}]}
    text, twin = plain_copy(value) or ("", None)
    assert twin == value
    twin["a"][1]["b"].append(1)
    assert value == {"a": [1, {"b": []}]}
    assert text == encode(value, path="result")


@pytest.mark.parametrize("text", ['{"a": [1, 2.5, null, true]}', ' {"a": 1}', '{"a": 1} \n', "7", '"x"'])
def test_a_stored_text_is_read_with_blanks_around_it_or_without(text: str) -> None:
    assert parse(text) == json.loads(text)


@pytest.mark.parametrize("text", ["", " ", "{", '{"a": 1}}', "1 2", "nul", "[1,]"])
def test_a_text_that_is_no_json_is_refused_as_json_refuses_it(text: str) -> None:
    with pytest.raises(ValueError) as ours:
        parse(text)
    with pytest.raises(ValueError) as theirs:
        json.loads(text)
    assert str(ours.value) == str(theirs.value)
