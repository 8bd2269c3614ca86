"""Arguments: bound, checked and described to a model from one source."""

import json
import timeit
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from amends.errors import BadArguments
from amends.model import Call, Staged
from amends.tools.declarations import declare, specs_of
from amends.tools.spec import Spec, schemas
from amends.tools.tool import tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    sku: str
    qty: int


@dataclass
class Address:
    street: str
    number: int


class Frame:
    """A type that pydantic and JSON know nothing of."""


class Opaque(Protocol):
    def read(self) -> str: ...


def charge(order_id: str, cents: int, card: str = "tok", *, note: str | None = None) -> str:
    """Charge a card.

    The money moves at once.
    """
    return order_id


def spec_of(fn: Any, **options: Any) -> Spec:
    (spec,) = specs_of([tool(fn, **{"kind": "pivot", **options})], order="strict").values()
    return spec


CHARGE = spec_of(charge, redact="card")


def problems(spec: Spec, *args: Any, **kwargs: Any) -> tuple[str, ...]:
    with pytest.raises(BadArguments) as refused:
        spec.bind(args, kwargs)
    assert refused.value.tool == spec.name
    return refused.value.problems


# ---- binding ------------------------------------------------------------------------------


@given(st.text(), st.integers(), st.integers(min_value=0, max_value=3))
def test_positional_and_keyword_spelling_bind_to_the_same(order: str, cents: int, by_position: int) -> None:
    values = {"order_id": order, "cents": cents, "card": "c"}
    args = tuple(list(values.values())[:by_position])
    kwargs = dict(list(values.items())[by_position:])
    bound = CHARGE.bind(args, kwargs)
    assert list(bound.items()) == [*values.items(), ("note", None)]


def test_defaults_are_filled_in_and_never_shared() -> None:
    def tag(order_id: str, tags: list[str] = []) -> None: ...  # noqa: B006

    spec = spec_of(tag)
    spec.bind(("1",), {})["tags"].append("x")
    assert spec.bind(("1",), {}) == {"order_id": "1", "tags": []}


def test_values_become_what_the_annotations_say() -> None:
    def many(
        a: Decimal, b: datetime, c: uuid.UUID, d: Colour, e: Item, f: Address, g: set[int], h: tuple[str, ...], i: bytes
    ) -> None: ...

    made = uuid.uuid4()
    sent = {
        "a": "1.50",
        "b": "2024-01-02T03:04:05Z",
        "c": str(made),
        "d": "red",
        "e": {"sku": "x", "qty": 2},
        "f": {"street": "s", "number": 1},
        "g": [1, 1],
        "h": ["a"],
        "i": "raw",
    }
    want = {
        "a": Decimal("1.50"),
        "b": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
        "c": made,
        "d": Colour.RED,
        "e": Item(sku="x", qty=2),
        "f": Address("s", 1),
        "g": {1},
        "h": ("a",),
        "i": b"raw",
    }
    assert spec_of(many).bind_json(json.dumps(sent)) == want
    assert spec_of(many).bind((), want) == want


def test_an_object_given_as_itself_stays_itself() -> None:
    def ship(item: Item) -> None: ...

    item = Item(sku="x", qty=1)
    assert spec_of(ship).bind((item,), {})["item"] is item


def test_unannotated_and_unresolved_arguments_take_anything() -> None:
    def loose(a, b: "Nowhere", c: Opaque) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    value = object()
    assert spec_of(loose).bind((value, value, value), {}) == {"a": value, "b": value, "c": value}


def test_a_foreign_type_is_checked_by_isinstance() -> None:
    def load(rows: Frame, count: int = 1) -> None: ...

    spec, frame = spec_of(load), Frame()
    assert spec.bind((frame,), {})["rows"] is frame
    assert problems(spec, [1]) == ("load.rows must be an instance of Frame, not [1]",)


def test_an_annotation_that_pydantic_refuses_leaves_the_others_checked() -> None:
    def odd(a: 5, b: int) -> None: ...  # type: ignore[valid-type]

    spec = spec_of(odd)
    assert spec.bind(("x", "2"), {}) == {"a": "x", "b": 2}
    assert problems(spec, "x", "y") == ('odd.b must be an integer, not "y"',)


def test_other_names_are_taken_only_by_kwargs() -> None:
    def send(to: str, **headers: int) -> None: ...

    spec = spec_of(send)
    assert spec.bind(("a",), {"x": "1"}) == {"to": "a", "x": 1}
    assert problems(spec, "a", x="one") == ('send.x must be an integer, not "one"',)
    assert spec.schema()["additionalProperties"] == {"type": "integer"}


def test_names_that_pydantic_keeps_for_itself_are_arguments_like_others() -> None:
    def f(schema: int, model_config: int, copy: str, _private: int = 1, json: str = "j") -> None: ...

    want = {"schema": 1, "model_config": 2, "copy": "c", "_private": 1, "json": "j"}
    assert spec_of(f).bind((1, 2, "c"), {}) == want
    assert sorted(spec_of(f).schema()["properties"]) == sorted(want)


def test_field_limits_are_kept() -> None:
    def pay(
        cents: Annotated[int, Field(gt=0, description="In cents.")], times: int = Field(default=2, le=3)
    ) -> None: ...

    spec = spec_of(pay)
    assert spec.bind((1,), {}) == {"cents": 1, "times": 2}
    assert problems(spec, 0, 4) == (
        "pay.cents must be greater than 0, not 0",
        "pay.times must be less than or equal to 3, not 4",
    )
    assert spec.schema()["properties"]["cents"] == {
        "type": "integer",
        "exclusiveMinimum": 0,
        "description": "In cents.",
    }


# ---- what is wrong, in words --------------------------------------------------------------


@pytest.mark.parametrize(
    "args, want",
    [
        ({"order_id": "1", "cents": "42 EUR"}, 'charge.cents must be an integer, not "42 EUR"'),
        ({"order_id": "1", "cents": 1.5}, "charge.cents must be an integer, not 1.5"),
        ({"order_id": "1", "cents": True}, "charge.cents must be an integer, not true"),
        ({"order_id": "1", "cents": None}, "charge.cents must be an integer, not null"),
        ({"order_id": 7, "cents": 1}, "charge.order_id must be a string, not 7"),
        ({"order_id": "1", "cents": 1, "note": 3}, "charge.note must be a string, not 3"),
        ({"order_id": "1"}, "charge.cents is missing"),
        ({"order_id": "1", "cents": 1, "crad": "x"}, 'charge has no argument "crad"; did you mean "card"?'),
        ({"order_id": "1", "cents": 1, "zzz": "x"}, 'charge has no argument "zzz"'),
    ],
)
def test_a_problem_names_the_place_what_was_wanted_and_what_came(args: dict[str, Any], want: str) -> None:
    assert problems(CHARGE, **args) == (want,)


def test_a_number_in_a_string_is_still_a_number() -> None:
    assert CHARGE.bind((), {"order_id": "1", "cents": "42"})["cents"] == 42


@pytest.mark.parametrize(
    "hint",
    [int, float, Decimal, int | None, list[int], dict[str, float], Sequence[Decimal], Annotated[int, Field(gt=0)]],
)
def test_true_is_no_number_anywhere(hint: Any) -> None:
    def f(value): ...

    f.__annotations__["value"] = hint
    spec = spec_of(f)
    for value in (True, [True], {"a": True}):
        with pytest.raises(BadArguments):
            spec.bind((value,), {})


def test_true_is_true_where_that_is_asked_for() -> None:
    def f(a: bool, b: int | bool) -> None: ...

    assert spec_of(f).bind((True, False), {}) == {"a": True, "b": False}


def test_a_deep_problem_names_its_path_without_the_branches_of_a_union() -> None:
    def ship(items: list[Item], to: Address | None, how: Literal["air", "sea"], n: int | list[int] = 1) -> None: ...

    found = problems(
        spec_of(ship), items=[{"sku": "x", "qty": "y"}, {"sku": "z"}], to={"street": "s"}, how="rail", n={"a": 1}
    )
    assert set(found) == {
        'ship.items.0.qty must be an integer, not "y"',
        "ship.items.1.qty is missing",
        "ship.to.number is missing",
        "ship.how must be 'air' or 'sea', not \"rail\"",
        'ship.n must be an integer or a list, not {"a":1}',
    }


def test_a_validators_own_words_are_passed_on() -> None:
    class Iban(BaseModel):
        value: str

        @field_validator("value")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError(f"wrong country in {value}")

    def wire(iban: Iban) -> None: ...

    assert problems(spec_of(wire), {"value": "XX1"}) == ("wire.iban.value is not valid: wrong country in XX1",)
    assert problems(spec_of(wire, redact="iban"), {"value": "XX1"}) == ("wire.iban.value is not valid",)


def test_too_many_and_doubled_arguments_are_named() -> None:
    assert problems(CHARGE, "1", 2, "c", "d") == ("charge takes 3 arguments by position, not 4",)
    assert problems(CHARGE, "1", 2, cents=3) == ("charge.cents is given twice",)


def test_long_values_are_cut_and_many_problems_too() -> None:
    (told,) = problems(CHARGE, "1", "x" * 5000)
    assert len(told) < 300

    def many(values: list[int]) -> None: ...

    assert len(problems(spec_of(many), ["x"] * 500)) == 10


def test_a_redacted_value_is_in_no_problem_and_no_context() -> None:
    with pytest.raises(BadArguments) as refused:
        CHARGE.bind_json({"order_id": "1", "cents": 1, "card": 4242})
    assert refused.value.problems == ("charge.card must be a string, not •••",)
    assert refused.value.__context__ is None
    with pytest.raises(BadArguments) as refused:
        CHARGE.bind_json('{"card": "4242')
    assert "4242" not in str(refused.value)
    assert refused.value.__context__ is None


def test_a_staged_call_is_no_argument() -> None:
    call = Call("r", "send_mail", "1", {})
    staged: Staged[str] = Staged(call, lambda: call)
    want = "charge.order_id is a staged call: it has no result yet"
    assert problems(CHARGE, staged, 1) == (want,)
    elsewhere = specs_of([declare("charge", kind="pivot")], order="strict")["charge"]
    assert problems(elsewhere, order_id=staged) == (want,)


# ---- from a model -------------------------------------------------------------------------


def test_text_and_mapping_bind_alike() -> None:
    args = {"order_id": "1", "cents": 2}
    assert CHARGE.bind_json(args) == CHARGE.bind_json(json.dumps(args)) == CHARGE.bind((), args)


@pytest.mark.parametrize("text", ["{", "[1]", "1", '"x"', "null", '{"cents": NaN}', "[" * 100_000])
def test_text_that_is_no_json_object_is_the_models_fault(text: str) -> None:
    with pytest.raises(BadArguments) as refused:
        CHARGE.bind_json(text)
    assert "charge" in refused.value.problems[0]


def test_no_text_is_no_arguments() -> None:
    def ping() -> None: ...

    assert spec_of(ping).bind_json("") == spec_of(ping).bind_json("{}") == {}


# ---- schemas ------------------------------------------------------------------------------

PARAMETERS = {
    "type": "object",
    "properties": {
        "order_id": {"type": "string"},
        "cents": {"type": "integer"},
        "card": {"type": "string", "default": "tok"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["order_id", "cents"],
    "additionalProperties": False,
}
TEXT = "Charge a card.\n\nThe money moves at once."


@pytest.mark.parametrize(
    "style, want",
    [
        ("openai", {"type": "function", "function": {"name": "charge", "description": TEXT, "parameters": PARAMETERS}}),
        (
            "responses",
            {"type": "function", "name": "charge", "description": TEXT, "parameters": PARAMETERS, "strict": False},
        ),
        ("anthropic", {"name": "charge", "description": TEXT, "input_schema": PARAMETERS}),
        (
            "mcp",
            {
                "name": "charge",
                "description": TEXT,
                "inputSchema": PARAMETERS,
                "annotations": {"readOnlyHint": False, "idempotentHint": False},
            },
        ),
    ],
)
def test_each_style_says_the_same_in_its_own_shape(style: Any, want: dict[str, Any]) -> None:
    assert schemas([CHARGE], style) == [want]


def test_an_unknown_style_is_refused() -> None:
    with pytest.raises(ValueError, match="anthropic"):
        schemas([CHARGE], "other")  # type: ignore[arg-type]


def test_a_tool_carries_its_schema_and_it_is_json() -> None:
    made = tool(charge, kind="pivot")
    assert made.schema == PARAMETERS
    assert json.loads(json.dumps(dict(made.schema))) == PARAMETERS
    assert (len(made.schema), repr(made.schema)) == (4, repr(dict(made.schema)))


def test_a_schema_may_be_changed_by_who_got_it() -> None:
    CHARGE.schema()["properties"].clear()
    assert CHARGE.schema() == PARAMETERS


def test_a_repeat_can_be_asked_for_except_of_a_read() -> None:
    made = CHARGE.schema(repeats=True)
    assert made["properties"]["again_because"]["type"] == "string"
    assert "again_because" not in made["required"]
    assert "again_because" not in spec_of(charge, kind="read").schema(repeats=True)["properties"]
    (told,) = schemas([CHARGE], "anthropic", repeats=True)
    assert "again_because" in told["input_schema"]["properties"]


def test_nested_types_and_foreign_types_are_described() -> None:
    def ship(item: Item, colour: Colour, rows: Frame, factory: Any = object) -> None: ...

    made = spec_of(ship).schema()
    assert made["properties"]["item"] == {"$ref": "#/$defs/Item"}
    assert made["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert made["properties"]["rows"] == made["properties"]["factory"] == {}
    json.dumps(made)


def test_what_lives_elsewhere_is_described_there() -> None:
    specs = specs_of([declare("search", kind="read"), tool(charge, kind="pivot")], order="strict")
    assert [told["name"] for told in schemas(specs.values(), "anthropic")] == ["charge"]


def test_binding_costs_microseconds() -> None:
    """The limit is ten on an idle machine; ten times that still tells a rebuilt model from a kept one."""
    args = {"order_id": "1", "cents": 2, "card": "c"}
    CHARGE.bind((), args)
    assert min(timeit.repeat(lambda: CHARGE.bind((), args), number=1000, repeat=5)) / 1000 < 100e-6
