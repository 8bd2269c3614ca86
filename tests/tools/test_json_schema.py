"""A model's arguments, read by the schema or the function of a tool that lives elsewhere; and schemas to keep to."""

from __future__ import annotations

import asyncio
import itertools
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from amends import AsyncRuntime, Runtime, ToolCall, UsageError, declare, tool
from amends.tools.json_schema import fill, strict, take


class Address(BaseModel):
    street: str
    country: str = "DE"


class Speed(Enum):
    SLOW = "slow"


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["n"],
    "properties": {
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "yes": {"type": "boolean"},
        "word": {"type": ["string", "integer"]},
        "mode": {"type": "string", "default": "fast"},
        "to": {"anyOf": [{"$ref": "#/$defs/to"}, {"type": "null"}], "default": None},
        "many": {"type": "array", "items": {"$ref": "#/$defs/to"}},
    },
    "$defs": {"to": {"type": "object", "properties": {"street": {"type": "string"}, "no": {"type": "integer", "default": 1}}}},
}  # fmt: skip


@pytest.mark.parametrize(
    "sent, meant",
    [
        ({"n": "5"}, {"n": 5}),
        ({"n": 5.0}, {"n": 5}),
        ({"n": 5, "x": "1.5"}, {"n": 5, "x": 1.5}),
        ({"n": 5, "x": "nan"}, {"n": 5, "x": "nan"}),
        ({"n": "five"}, {"n": "five"}),
        ({"n": 5, "yes": "TRUE"}, {"n": 5, "yes": True}),
        ({"n": 5, "word": "7"}, {"n": 5, "word": "7"}),
        ({"n": 5, "x": None}, {"n": 5}),
        ({"n": None}, {"n": None}),
        ({"n": 5, "mode": None}, {"n": 5, "mode": None}),
        ({"n": 5, "to": {"street": "a"}}, {"n": 5, "to": {"street": "a", "no": 1}}),
        ({"n": 5, "many": [{"no": "2"}]}, {"n": 5, "many": [{"no": 2}]}),
        ({"n": 5, "other": "kept"}, {"n": 5, "other": "kept"}),
    ],
)
def test_a_schema_fills_what_was_left_out_and_changes_nothing_else(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    assert fill(SCHEMA, sent) == {"mode": "fast", "to": None, **meant}


def test_what_a_closed_schema_does_not_have_is_left_out() -> None:
    closed = {**SCHEMA, "additionalProperties": False}
    assert fill(closed, {"n": 1, "colour": "red"}) == {"n": 1, "mode": "fast", "to": None}


@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.text(max_size=5), st.integers(), st.floats(allow_nan=False)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["type", "properties", "default", "items", "anyOf", "required", "$ref", "n"]), inner, max_size=4
            ),
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_no_schema_breaks_it_and_it_says_the_same_twice(schema: Any) -> None:
    shown = schema if isinstance(schema, dict) else {"properties": {"n": schema}}
    sent = {"n": "5", "deep": [{"n": 1}]}
    try:
        once = fill(shown, sent)
    except (TypeError, AttributeError) as error:
        raise AssertionError(f"{shown} broke it") from error
    assert fill(shown, once) == once
    assert sent == {"n": "5", "deep": [{"n": 1}]}


def test_a_schema_that_refers_to_itself_ends() -> None:
    loops = {"type": "object", "properties": {"n": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert fill(loops, {"n": "5"}) == {"n": "5"}


def test_a_function_says_how_it_takes_its_arguments() -> None:
    numbers = itertools.count()

    def parcel(
        to: Address, grams: int = 1, worth: Decimal = Decimal(5), speed: Speed = Speed.SLOW,
        ref: int = Field(default_factory=lambda: next(numbers)),
    ) -> None: ...  # fmt: skip

    assert take("parcel", parcel, {"to": {"street": "a"}, "grams": "2"}) == {
        "to": {"street": "a", "country": "DE"}, "grams": 2, "worth": Decimal(5), "speed": "slow",
    }  # fmt: skip
    assert take("any", lambda **args: args, {"grams": "2"}) == {"grams": "2"}
    assert take("any", print, {"grams": "2"}) == {"grams": "2"}


@pytest.mark.parametrize("again", [{"n": "1"}, {"n": 1, "mode": "fast"}])
@pytest.mark.parametrize("kind", ["declared", "undeclared"])
def test_other_words_make_no_other_call(again: dict[str, Any], kind: str) -> None:
    done: list[tuple[int, str]] = []

    def ping(n: int, mode: str = "fast") -> None:
        done.append((n, mode))

    with Runtime("memory:", tools=[declare("ping", kind="pivot")] if kind == "declared" else []) as rt:
        with rt.run("r", recover="wait") as run:
            first = run.answer("ping", {"n": 1}, handler=ping)
            if kind == "undeclared":
                asked = next(iter(rt.approvals()))
                rt.approve(asked.id, digest=asked.digest, by="ann")
                first = run.answer("ping", {"n": 1}, handler=ping)
            assert first.status == "done"
            assert run.answer("ping", again, handler=ping).status == "replayed"
            [turn] = run.answer_all([ToolCall("ping", again, handler=ping)])
            assert turn.status == "replayed"
    assert done == [(1, "fast")]


def test_the_schema_says_it_for_a_handler_that_takes_any_name() -> None:
    done: list[dict[str, Any]] = []

    async def main() -> None:
        async def ping(**args: Any) -> None:
            done.append(args)

        async with AsyncRuntime("memory:", tools=[declare("ping", kind="pivot", needs_approval=True)]) as rt:
            async with rt.run("r") as run:
                asked = await run.approval_for("ping", {"n": "1"}, schema=SCHEMA)
                assert asked is not None
                await rt.approve(asked.id, digest=asked.digest, by="ann")
                answer = await run.answer("ping", {"n": 1, "mode": "fast"}, handler=ping, schema=SCHEMA)
                assert answer.status == "done"

    asyncio.run(main())
    assert done == [{"n": 1, "mode": "fast", "to": None}]


# ---- strict


def test_a_strict_schema_names_every_argument_and_tells_its_default() -> None:
    @tool(kind="pivot")
    def parcel(to: Address, grams: int = 100, note: str | None = None) -> None:
        """Send a parcel."""

    rt = Runtime("memory:", tools=[parcel], repeats=True)
    [made] = rt.schemas(strict=True)
    function = made["function"]
    assert function["strict"] is True
    shown = function["parameters"]
    assert set(shown["required"]) == {"to", "grams", "note", "again_because"}
    assert shown["additionalProperties"] is False
    assert shown["properties"]["grams"]["description"] == "Default: 100."
    assert shown["properties"]["again_because"]["type"] == ["string", "null"]
    inner = shown["$defs"]["Address"]
    assert (inner["required"], inner["additionalProperties"]) == (["street", "country"], False)
    assert '"default"' not in str(shown)
    assert rt.schemas("responses", strict=True)[0]["strict"] is True
    assert rt.schemas("anthropic", strict=True)[0]["strict"] is True
    assert "strict" not in rt.schemas("anthropic")[0]
    assert rt.schemas("responses")[0]["strict"] is False


def test_what_no_strict_schema_can_describe_is_refused_by_name() -> None:
    @tool(kind="pivot")
    def post(data: dict[str, int]) -> None: ...

    @tool(kind="pivot")
    def anything(**rest: int) -> None: ...

    with pytest.raises(UsageError, match=r"post\.data takes any names"):
        Runtime("memory:", tools=[post]).schemas(strict=True)
    with pytest.raises(UsageError, match="anything takes any names"):
        Runtime("memory:", tools=[anything]).schemas(strict=True)
    with pytest.raises(UsageError, match="no strict schemas"):
        Runtime("memory:", tools=[]).schemas("mcp", strict=True)


def test_a_strict_schema_is_a_copy() -> None:
    before = str(SCHEMA)
    strict("any", SCHEMA)
    assert str(SCHEMA) == before
