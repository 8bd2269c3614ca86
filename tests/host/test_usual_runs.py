"""Runs about which nothing is said take a shorter way, which must equal the general one."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, UsageError
from amends.encoding.dataclass import changed
from amends.host.host import USUAL_OPTIONS, Host, View
from amends.ledger.events import written_facts
from amends.ledger.opening import OPENED, new_run, opening_facts, opening_text
from amends.ledger.operations import OpenRun
from amends.ledger.rows import RUN_COLUMNS


@pytest.mark.parametrize("verb", [Runtime.run, Runtime.open, AsyncRuntime.run, AsyncRuntime.open])
def test_the_usual_options_are_the_defaults_of_every_verb_that_opens_a_run(verb: Callable[..., object]) -> None:
    said = inspect.signature(verb).parameters
    assert {name: one.default for name, one in said.items() if name not in ("self", "id", "input")} == USUAL_OPTIONS


def host_of(rt: Runtime) -> Host:
    return rt._host


@pytest.mark.parametrize(
    "said",
    [
        {}, {"tags": ["a"]}, {"recover": "resume"}, {"interrupted": "commit"}, {"wait": 1.0}, {"wait_approval": 2.0},
        {"deadline": 3.0}, {"if_rolled_back": "raise"}, {"history": True}, {"reads": "again"}, {"client_lease": 4.0},
        {"agent": "a"}, {"principal": "p"}, {"on_open_failure": "rollback"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_said_about_one_run_is_not_taken_for_the_next(said: dict[str, Any]) -> None:
    rt = Runtime("memory:", tools=[], agent="mine")
    host, options = host_of(rt), {**USUAL_OPTIONS, **said}
    alone = host_of(Runtime("memory:", tools=[], agent="mine")).opening(rt._view, "r", None, options)
    host.opening(rt._view, "first", None, USUAL_OPTIONS)  # remembered
    usual = host.opening(rt._view, "second", None, USUAL_OPTIONS)
    assert changed(usual, {"id": "first"}) == host.opening(rt._view, "first", None, USUAL_OPTIONS)
    made = host.opening(rt._view, "r", None, options)
    assert changed(made, {"anchor": None, "owner": ""}) == changed(alone, {"anchor": None, "owner": ""})
    assert (made == changed(usual, {"id": "r"})) == (not said)


def test_another_view_another_process_and_an_input_are_not_the_usual_run() -> None:
    rt = Runtime("memory:", tools=[])
    host = host_of(rt)
    host.opening(rt._view, "first", None, USUAL_OPTIONS)
    assert host.opening(View("t", "a", "p"), "r", None, USUAL_OPTIONS).tenant == "t"
    host.opening(rt._view, "first", None, USUAL_OPTIONS)
    assert host.opening(rt._view, "r", {"x": 1}, USUAL_OPTIONS).input
    host.be("somebody else")
    assert host.opening(rt._view, "r", None, USUAL_OPTIONS).owner == "somebody else"
    host.new_id = lambda prefix: f"{prefix}-of-a-test"
    assert host.opening(rt._view, None, None, USUAL_OPTIONS).id == "run-of-a-test"
    with pytest.raises(UsageError):
        host.opening(rt._view, "", None, USUAL_OPTIONS)


@pytest.mark.parametrize("said", [{}, {"input": '{"x":1}'}, {"budgets": "[]"}, {"completion": "c"}], ids=str)
def test_the_first_event_of_a_run_says_the_same_on_both_ways(said: dict[str, str]) -> None:
    op = OpenRun("u", "r\N{SNOWMAN}\x00", "t", "o", "n", 30.0, said.get("input", ""), "", "boot", 1.0)
    op.budgets, op.completion = said.get("budgets", ""), said.get("completion", "")
    row = new_run(op, 2, 1.0)
    assert opening_text(op, row) == written_facts(opening_facts(op, row))


def test_new_runs_differ_only_in_what_their_opening_says() -> None:
    bare = OpenRun("", "", "", "", "", 0.0, "", "", "", 0.0)
    full = OpenRun("", "", "", "", "", 0.0, "", "", "", 0.0)
    for one in fields(OpenRun):
        value = getattr(full, one.name)
        setattr(full, one.name, not value if isinstance(value, bool) else "x" if isinstance(value, str) else 9.0)
    plain, said = new_run(bare, 1, 1.0), new_run(full, 1, 2.0)
    assert {name for name in RUN_COLUMNS if getattr(plain, name) != getattr(said, name)} == set(OPENED)


def test_the_memory_of_a_tree_is_shared_and_ends_with_its_last_session() -> None:
    host = host_of(Runtime("memory:", tools=[]))
    one, two = host.reader(root="r"), host.reader(root="r")
    assert one.memory is two.memory
    assert host.reader(root="other").memory is not one.memory
    kept = one.memory
    del one, two
    assert host.reader(root="r").memory is kept
    del kept
    gc.collect()
    assert not host._memories
