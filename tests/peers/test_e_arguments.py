"""Experiment e: what a call is asked with. Keys, spellings, conflicts, and what cannot be written down."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import amends
from amends import tool
from amends.encoding.canonical import digest
from amends.errors import BadArguments, BadDeclaration, KeyConflict, NotStorable, TooLarge
from tests.peers.conftest import Ledger
from tests.world import World, runtime, until


class Colour(Enum):
    RED = 1


@dataclass
class Box:
    name: str


VALUES = {
    "decimal": Decimal("1.10"),
    "datetime": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "date": date(2026, 1, 2),
    "set": {"ann", "bob"},
    "tuple": (1, (2, 3)),
    "nul": "a\x00b",
    "above 2**53": 2**53 + 1,
    "64-bit id": 2**64 - 1,
    "negative 64-bit id": -(2**63),
    "very big": 10**100,
    "bytes": b"\x00\xff",
    "uuid": UUID(int=7),
    "enum": Colour.RED,
    "dataclass": Box("b"),
    "int keys": {1: "a", 2: "b"},
    "mixed keys": {1: "a", "1": "b", None: "c"},
    "nfd": "cafe\u0301",
    "delimiters": 'a|b":,{}[]\\',
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_what_people_pass_is_written_down_and_answered_from_the_record(value: Any, ledger: Ledger) -> None:
    """SafeAgent 2.4 e: the effect runs, then TypeError, row stuck. agent-ledger 4.4 e: 64-bit ids cannot be passed."""
    seen: list[Any] = []

    def charge_body(what: Any) -> str:
        seen.append(what)
        return "ch_1"

    if type(value).__module__ == __name__:  # under Any a class of ours would have no name in the record
        charge_body.__annotations__["what"] = type(value)
    charge = tool(charge_body)
    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        assert [charge(what=value), charge(what=value)] == ["ch_1", "ch_1"]
    with ledger(charge).run("r"):
        assert charge(what=value) == "ch_1"
    assert seen == [value]
    (call,) = rt.calls()
    assert call.state == "succeeded"


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_what_people_pass_reaches_the_compensation_of_another_worker_as_it_was(value: Any, ledger: Ledger) -> None:
    """AgentRelay 3.3: Decimal becomes text, a tuple a list, an int key a text; an object its repr."""
    seen: list[Any] = []

    def make() -> Any:
        def charge(what: Any) -> str:
            return "ch_1"

        charge.__annotations__["what"] = type(value)
        return tool(charge, compensate=lambda what: seen.append(what))

    first, second = make(), make()
    with pytest.raises(KeyboardInterrupt), ledger(first).run("r", recover="wait"):
        first(what=value)
        raise KeyboardInterrupt
    assert ledger(second).rollback("r", by="ada", why="off").state == "rolled_back"
    assert seen == [value]
    assert type(seen[0]) is type(value)


def test_what_cannot_be_written_down_is_refused_before_the_effect_and_leaves_no_row(ledger: Ledger) -> None:
    """SafeAgent 2.4 e: NaN, NUL, surrogates: effect, then stuck. AgentRelay 3.3: objects keyed by memory address."""
    seen: list[Any] = []

    @tool
    def charge(what: Any) -> None:
        seen.append(what)

    charge.compensate(lambda: None)
    rt = ledger(charge)
    with rt.run("r"):
        for value in (object(), lambda: 1, [object()], {"a": {"b": object()}}, "a\ud800b", float("nan"), float("-inf")):
            with pytest.raises(NotStorable):
                charge(what=value)
        with pytest.raises(TooLarge):
            charge(what="x" * (1 << 20))
    assert seen == []
    assert list(rt.calls()) == []


# ---- which are the same -------------------------------------------------------------------


SAME: dict[str, list[Any]] = {
    "dict order": [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    "1 and 1.0 and Decimal": [1, 1.0, Decimal("1.00")],
    "unicode forms": ["caf\u00e9", "cafe\u0301"],
    "set order": [{"a", "b", "c"}, {"c", "b", "a"}],
    "one instant": [datetime(2026, 1, 1, 12, tzinfo=UTC), datetime.fromisoformat("2026-01-01T13:00:00+01:00")],
}
OTHER: dict[str, list[Any]] = {
    "True is not 1": [1, True],
    "a decimal is not its repr": [Decimal(1), "Decimal('1')", "1"],
    "a number is not its text": [2**53, 2**53 + 1, str(2**53)],
    "null is not its text": [None, "null", "None", ""],
    "delimiters": [["a|b", "c"], ["a", "b|c"], ["a", "b", "c"], "a|b|c"],
    "what looks like our own tags": [{"$set": ["a"]}, {"a"}, {"$map": []}, {}],
    "int keys and text keys": [{1: "a"}, {"1": "a"}],
}


@pytest.mark.parametrize("values", SAME.values(), ids=SAME.keys())
def test_spellings_of_one_value_are_one_call(values: list[Any]) -> None:
    """AgentRelay 3.4 e: 1 and 1.0 are two keys, NFC and NFD two. agent-ledger 4.4 e: NFC is not NFD."""
    assert _effects(values) == 1


@pytest.mark.parametrize("values", OTHER.values(), ids=OTHER.keys())
def test_values_that_differ_are_calls_of_their_own(values: list[Any]) -> None:
    """AgentRelay 3.3: Decimal('1') equals the string "Decimal('1')"."""
    assert _effects(values) == len(values)


def _effects(values: list[Any]) -> int:
    seen: list[Any] = []

    @tool
    def charge(what: Any) -> None:
        seen.append(what)

    charge.compensate(lambda: None)
    with runtime(charge).run("r"):
        for value in values * 2:
            charge(what=value)
    return len(seen)


def test_positional_keyword_and_default_are_one_call(ledger: Ledger) -> None:
    """AgentRelay 3.3: positional vs keyword, different keys. exactly-once: f(1,2), f(1,b=2), f(a=1), f(1): 4 effects."""
    seen: list[Any] = []

    @tool
    def charge(a: int, b: int = 2) -> int:
        seen.append((a, b))
        return a + b

    charge.compensate(lambda: None)
    with ledger(charge).run("r") as run:
        answers = [charge(1, 2), charge(1, b=2), charge(a=1), charge(1), charge(b=2, a=1), run.call(charge, 1)]
        answers.append(run.answer("charge", '{"a": 1}').value)
        answers.append(run.answer("charge", {"b": 2, "a": 1}).value)
    assert answers == [3] * 8
    assert seen == [(1, 2)]


KEY = """
import sys
from amends import Runtime, tool
from amends.errors import NotStorable

class Thing: ...

@tool(scope="ledger")
def send(to: set[str], facts: dict) -> None: ...
send.compensate(lambda: None)
with Runtime("memory:", tools=[send]) as rt, rt.run("r"):
    send(to={"ann", "bob", "eve", "joe", "kim"}, facts={"a": frozenset({"x", "y", "z"}), "b": 1})
    print([(call.key, call.digest) for call in rt.calls()])
    try:
        send(to=set(), facts={"a": Thing()})
    except NotStorable:
        print("refused")
"""


def test_a_set_has_one_key_in_every_process(tmp_path: Path) -> None:
    """AgentRelay 3.3: same set in 6 processes, 4 different keys."""
    path = str(Path(amends.__file__).parent.parent)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", KEY],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1", "2", "3")
    ]
    said = {one.communicate(timeout=60)[0] for one in started}
    assert len(said) == 1
    assert said.pop().endswith("refused\n")


def test_the_parts_of_a_key_cannot_run_into_each_other() -> None:
    """agent-ledger 4.3: joined with |: ("tenantA|x", "t") and ("tenantA", "x|t") give the same key."""
    parts = [("a|x", "t"), ("a", "x|t"), ("a", "x", "t"), ("ax", "t"), ("", "a|x|t"), ("a|x|t",), ("a|x|t", None)]
    assert len({digest(*one) for one in parts}) == len(parts)


# ---- the same key, other arguments --------------------------------------------------------


def _keyed(world: World, **options: Any) -> Any:
    return world.compensatable("charge", key="x", **options)


PATHS = {
    "direct": lambda run, charge, n: charge(x="7", n=n),
    "run.call": lambda run, charge, n: run.call(charge, x="7", n=n),
    "begin": lambda run, charge, n: run.begin("charge", {"x": "7", "n": n}),
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_the_same_key_with_other_arguments_is_a_conflict_on_every_path(path: Any, ledger: Ledger) -> None:
    """SafeAgent 2.4 e: pay 999999 under the id of pay 10: ok True, echoed as if paid. agent-ledger: first result."""
    world = World()
    charge = _keyed(world)
    rt = ledger(charge)
    with rt.run("r") as run:
        charge(x="7", n=10)
        with pytest.raises(KeyConflict) as conflict:
            path(run, charge, 999_999)
    assert conflict.value.diff == {"n": (10, 999_999)}
    assert world.log == ["charge:7"]
    (call,) = rt.calls()
    assert call.args == {"x": "7", "n": 10}


def test_a_model_or_a_plan_that_asks_with_other_arguments_is_told_both(ledger: Ledger) -> None:
    """idemkit, exactly-once: the first result, unless a fingerprint is given. idempotent-tools: no check."""
    world = World()
    charge = _keyed(world)
    with ledger(charge).run("r") as run:
        assert run.answer("charge", {"x": "7", "n": 10}).status == "done"
        answer = run.answer("charge", {"x": "7", "n": 999_999})
        assert (answer.status, type(answer.error)) == ("refused", KeyConflict)
        assert "10" in answer.text
        assert "999999" in answer.text
        with pytest.raises(KeyConflict):
            run.execute([{"tool": "charge", "args": {"x": "7", "n": 999_999}}])
    assert world.log == ["charge:7"]


def test_a_conflict_is_found_across_runs_processes_and_restarts(ledger: Ledger) -> None:
    """SafeAgent 2.4 e: "the payload is in no check on any path"."""
    world = World()
    charge = _keyed(world, scope="ledger")
    with ledger(charge).run("r"):
        charge(x="7", n=10)
    with ledger(charge).run("s"), pytest.raises(KeyConflict):
        charge(x="7", n=11)
    with ledger(charge).run("r"), pytest.raises(KeyConflict):
        charge(x="7", n=12)
    assert world.log == ["charge:7"]


def test_a_conflict_with_a_call_that_still_runs_is_found_too(ledger: Ledger) -> None:
    """AgentRelay 3.2: waits for a pending twin by its key alone."""
    gate, seen = threading.Event(), []

    @tool(key="order")
    def charge(order: str, cents: int) -> int:
        seen.append(cents)
        gate.wait(20)
        return cents

    charge.compensate(lambda: None)
    with ledger(charge, wait=10).run("r") as run:
        first = run.submit(charge, order="7", cents=10)
        until(lambda: seen == [10], seconds=10)
        with pytest.raises(KeyConflict):
            charge(order="7", cents=11)
        gate.set()
        assert first.result(20) == 10
    assert seen == [10]


def test_one_id_for_two_tools_is_two_calls(ledger: Ledger) -> None:
    """SafeAgent 2.4 e: another action name under the same id is accepted as done."""
    world = World()
    charge, mail = _keyed(world), world.compensatable("mail", key="x")
    with ledger(charge, mail).run("r"):
        assert [charge(x="7"), mail(x="7")] == ["charge:7", "mail:7"]


def test_a_key_field_that_does_not_exist_is_found_when_the_runtime_is_built(ledger: Ledger) -> None:
    """peers 6.14, agent-ledger: an unknown field is rejected there too, when the call is made."""
    world = World()
    with pytest.raises(BadDeclaration):
        ledger(world.compensatable("charge", key="ordr"))


def test_wrong_argument_names_and_types_are_found_before_anything_runs(ledger: Ledger) -> None:
    """saga-agent 1.4 e: found only when the step runs. SafeAgent 2.3: execute_failed:TypeError, and that is final."""
    world = World()
    charge = world.compensatable("charge")
    rt = ledger(charge)
    with rt.run("r") as run:
        for wrong in ({"y": 1}, {"n": "many"}, {"x": "1", "n": 1, "z": 2}):
            with pytest.raises(BadArguments):
                charge(**wrong)
            assert run.answer("charge", wrong).status == "refused"
        assert charge(x="1", n=2) == "charge:1"
    assert world.log == ["charge:1"]
    assert len(list(rt.calls())) == 1
