"""Every operation happens wholly or not at all, and once, however often it is asked for."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from amends.flow import Flow
from amends.store import intents
from amends.store.memory import MemoryStore
from tests.store.ledger import Clock, Ledger
from tests.store.scenarios import SCENARIOS, Scenario


class Broken(Exception):
    """The row that could not be written."""


def breaking(intent: Callable[[Any], Flow[Any]], after: int) -> Callable[[Any], Flow[Any]]:
    """The same flow, with a failure in place of the row operation number ``after``."""

    async def broken(op: Any) -> Any:
        inner, count, answer = intent(op), 0, None
        try:
            while True:
                row_op = inner.send(answer)
                if count == after:
                    raise Broken
                count += 1
                answer = await row_op
        except StopIteration as stop:
            return stop.value
        finally:
            inner.close()

    return broken


# These carry nothing that tells a repetition from a second request. Repeated they go one further: in the recorded
# generations, in the count of probes. No body starts, no state changes.
ONE_FURTHER = ("admit_recorded_failure", "probe")


@pytest.fixture(params=SCENARIOS.values(), ids=list(SCENARIOS))
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return request.param


def in_memory() -> Ledger:
    clock = Clock()
    return Ledger(MemoryStore(clock), clock=clock)


def test_every_operation_that_changes_something_has_a_scenario() -> None:
    tried = {type(scenario(in_memory())) for scenario in SCENARIOS.values()}
    assert tried == set(intents.INTENTS) - intents.READS


def test_an_operation_that_fails_in_the_middle_leaves_nothing_behind(
    ledger: Ledger, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = scenario(ledger)
    true = intents.INTENTS[type(op)]
    asked = {field.name: getattr(op, field.name) for field in fields(op)}
    before = ledger.everything()
    for after in range(100):
        monkeypatch.setitem(intents.INTENTS, type(op), breaking(true, after))
        try:
            ledger(op)
            break
        except Broken:
            assert ledger.everything() == before
            assert {field.name: getattr(op, field.name) for field in fields(op)} == asked, "the request was changed"
    assert after > 1, "the scenario has something to break"


def test_a_repeated_operation_gives_the_first_answer(ledger: Ledger, scenario: Scenario) -> None:
    op = scenario(ledger)
    first = ledger(op)
    after = ledger.everything()
    op.repeated = True
    second = ledger(op)
    if scenario.__name__ in ONE_FURTHER:
        assert type(second) is type(first)
        assert states(ledger) == {row.id: row.state for row in after[1]}
    else:
        assert second == first
        assert ledger.everything() == after


def states(ledger: Ledger) -> dict[str, str]:
    return {call.id: call.state for call in ledger.calls()}


def test_repeating_what_never_happened_makes_it_happen(ledger: Ledger, scenario: Scenario) -> None:
    """The first request was lost on its way: nobody can tell, so it comes marked as repeated."""
    twin = in_memory()
    expected = twin(scenario(twin))
    op = scenario(ledger)
    op.repeated = True
    assert ledger(op) == expected
    assert ledger.everything() == twin.everything()
