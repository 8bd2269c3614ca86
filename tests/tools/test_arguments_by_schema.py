"""A request that cannot fit the JSON schema of its tool is found before it is recorded, and one that may fit never is."""

from __future__ import annotations

from typing import Any

import pytest

from amends.tools.json_schema import PROBLEMS_MAX, problems_of

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
ONE = {"type": "object", "properties": {"path": TEXT, "size": NUMBER}, "required": ["path"]}
NESTED = {
    "type": "object",
    "properties": {"edits": {"type": "array", "items": {"$ref": "#/$defs/Edit"}}},
    "required": ["edits"],
    "$defs": {"Edit": {"type": "object", "properties": {"old": TEXT}, "required": ["old"]}},
}


@pytest.mark.parametrize(
    "schema, args, says",
    [
        (ONE, {}, ["t.path is missing"]),
        (ONE, {"path": 7}, ["t.path must be a string, not 7"]),
        (ONE, {"path": "a", "size": "big"}, ['t.size must be an integer, not "big"']),
        (ONE, {"path": None}, ["t.path must be a string, not null"]),
        (ONE, {"path": "a", "size": True}, ["t.size must be an integer, not true"]),
        (NESTED, {"edits": [{"old": "a"}, {}]}, ["t.edits[1].old is missing"]),
        (NESTED, {"edits": {"old": "a"}}, ['t.edits must be an array, not {"old":"a"}']),
        ({"properties": {"c": {"enum": ["red", "blue"]}}}, {"c": "green"}, ['t.c must be one of ["red","blue"], not "green"']),
        ({"properties": {"c": {"anyOf": [TEXT, NUMBER]}}}, {"c": []}, ["t.c does not fit any of its forms: []"]),
        ({"properties": {}, "additionalProperties": False}, {"x": 1}, ["t has no argument x"]),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_named(schema: dict[str, Any], args: dict[str, Any], says: list[str]) -> None:
    assert problems_of("t", schema, args) == says


@pytest.mark.parametrize(
    "schema, args",
    [
        (ONE, {"path": "a"}),
        (ONE, {"path": "a", "size": 3.0}),
        (ONE, {"path": "a", "size": None}),
        (ONE, {"path": "a", "other": [1]}),
        (NESTED, {"edits": []}),
        ({"properties": {"c": {"type": ["string", "null"]}}, "required": ["c"]}, {"c": None}),
        ({"properties": {"c": {"type": "string", "nullable": True}}, "required": ["c"]}, {"c": None}),
        ({"properties": {"c": {"anyOf": [TEXT, {"type": "null"}]}}, "required": ["c"]}, {"c": None}),
        ({"properties": {"c": {"type": "file"}}}, {"c": 7}),
        ({"properties": {"c": {"$ref": "https://example.com/schema"}}}, {"c": 7}),
        ({"properties": {"c": {"type": "string", "pattern": "(a+)+$"}}}, {"c": "a" * 50 + "b"}),
        ({"properties": "none"}, {"c": 7}),
        ({"type": 7, "required": 8}, {"c": 7}),
        ({}, {"c": 7}),
    ],
)
def test_what_may_fit_is_left_to_the_server(schema: dict[str, Any], args: dict[str, Any]) -> None:
    assert problems_of("t", schema, args) == []


def test_a_schema_that_leads_back_to_itself_ends() -> None:
    assert problems_of("t", {"$ref": "#"}, {"c": 7}) == []
    tree: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"next": deep}
    assert problems_of("t", tree, deep) == []


def test_few_problems_are_named() -> None:
    names = [f"a{number}" for number in range(100)]
    assert len(problems_of("t", {"required": names}, {})) == PROBLEMS_MAX


def test_forms_within_forms_are_given_up_after_a_while() -> None:
    form: dict[str, Any] = {"anyOf": [{"$ref": "#/$defs/form"}] * 3, "type": "string", "enum": ["x"]}
    kept = {"anyOf": [{"anyOf": [{"$ref": "#/$defs/form"}] * 3, "properties": {"a": form}, "required": ["a", "b"]}] * 3}
    schema = {"$defs": {"form": kept}, "properties": {"c": {"$ref": "#/$defs/form"}}}
    assert problems_of("t", schema, {"c": {"a": 7}}) == []
