"""Every error says what to do."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from typing import Any

import pytest

from amends import Runtime, errors, tool
from amends.errors import Error, OutOfOrder, Rejected


def _classes(base: type[Error] = Error) -> list[type[Error]]:
    return [base, *(one for sub in base.__subclasses__() for one in _classes(sub))]


PUBLIC = sorted({one for one in _classes() if one.__module__.startswith("amends.")}, key=lambda one: one.__name__)
FACTS: dict[str, Any] = {
    "gone_at": datetime.now(UTC), "since": datetime.now(UTC), "path": "args.x", "size": 2, "limit": 1, "waited": 1.0,
    "held_s": 1.0, "retry_after": 1.0, "why": "expired", "law": "pivot_twice", "event": 1, "known": 1, "found": 0,
    "how": "changed", "frm": "a", "to": "b", "call": None, "report": None, "passing": True, "status": 500,
}  # fmt: skip


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda one: one.__name__)
def test_every_error_has_a_hint_however_little_is_said(cls: type[Error]) -> None:
    given: dict[str, Any] = {}
    for name, one in inspect.signature(cls).parameters.items():
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            given[name] = FACTS.get(name, "x")
    try:
        made = cls(**given)
    except (AttributeError, TypeError, KeyError) as error:
        pytest.skip(f"needs more than its signature says: {error}")
    assert made.hint
    assert cls.default_hint


def test_an_empty_hint_is_none() -> None:
    assert errors.UsageError("x", hint="").hint
    assert errors.RunBlocked("x", run_id="r").hint


@pytest.mark.parametrize(
    "facts, word",
    [
        ({"law": "pivot_early", "missing": ["charge"]}, "charge"),
        ({"law": "pivot_early", "unsettled": ["charge"]}, "charge"),
        ({"law": "pivot_twice", "pivot": "wire"}, "run.child"),
        ({"law": "pivot_in_flight", "pivot": "wire"}, "wire"),
        ({"law": "after_pivot", "pivot": "wire", "allowed": ["mail"]}, "run.child"),
    ],
)
def test_what_breaks_the_law_says_what_to_call(facts: dict[str, Any], word: str) -> None:
    assert word in OutOfOrder("send", **facts).hint


def test_a_rejection_says_whom_to_talk_to() -> None:
    assert "ada" in Rejected("send", by="ada", reason="no").hint


def test_refusals_of_a_real_run_have_hints() -> None:
    @tool(kind="pivot", after=["book"])
    def wire() -> str:
        return "w"

    @tool
    def book() -> str:
        return "b"

    book.compensate(lambda: None)
    rt = Runtime("memory:", tools=[wire, book])
    met: list[Error] = []
    with rt.run("r") as run:
        for ask in (wire, book, wire, book.with_options(again="more"), wire.with_options(again="more")):
            try:
                run.call(ask)
            except Error as no:
                met.append(no)
    assert len(met) == 3
    assert all(no.hint for no in met)
