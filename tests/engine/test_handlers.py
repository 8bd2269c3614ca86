"""A tool that is declared by name has its body with each request: an interrupted idempotent call is started again with it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import amends
from amends import testing
from amends.testing import Crash, TestRuntime


def runtime(**options: Any) -> TestRuntime:
    """A runtime with one tool that is declared by name."""
    return testing.runtime(tools=[amends.declare("charge", kind="pivot", key="order", **options)])


def die_in(rt: TestRuntime, done: list[str], **args: Any) -> None:
    """Have the effect, and die before it is recorded."""

    def charge(**given: Any) -> str:
        done.append(amends.current_call().key)
        rt.crash()
        raise AssertionError("a crash raises")

    with contextlib.suppress(Crash), rt.run("r", recover="wait") as run:
        run.answer("charge", args or {"order": "1"}, handler=charge)


def ask(rt: TestRuntime, done: list[str], **args: Any) -> amends.Answer:
    """Ask for the same call again, in a new process."""

    def charge(**given: Any) -> str:
        done.append(amends.current_call().key)
        return "ch_1"

    with rt.run("r", recover="wait") as run:
        answer = run.answer("charge", args or {"order": "1"}, handler=charge)
        if answer.status not in ("done", "replayed"):
            raise amends.Waiting("leave it as it is")
        return answer


@pytest.mark.parametrize("idempotent", [True, "24h"])
def test_an_interrupted_idempotent_call_is_started_again_with_the_body_of_its_request(idempotent: Any) -> None:
    rt, done = runtime(idempotent=idempotent), list[str]()
    die_in(rt, done)
    answer = ask(rt, done)
    assert (answer.value, rt.report("r").state) == ("ch_1", "committed")
    assert (len(done), len(set(done))) == (2, 1), "a second start, under the key that the destination knows"
    assert [call.attempt for call in rt.report("r").calls] == [2]


def test_one_that_is_not_idempotent_is_not_started_again() -> None:
    rt, done = runtime(), list[str]()
    die_in(rt, done)
    with pytest.raises(amends.Waiting):
        ask(rt, done)
    assert len(done) == 1
    assert [call.state for call in rt.report("r").calls] == ["in_doubt"]


def test_after_its_window_it_is_a_persons_to_settle() -> None:
    rt, done = runtime(idempotent="24h"), list[str]()
    die_in(rt, done)
    rt.clock.advance(25 * 3600)
    with pytest.raises(amends.Waiting):
        ask(rt, done)
    assert len(done) == 1


def test_a_setter_waits_for_its_settle_delay_first() -> None:
    rt, done = runtime(idempotent="put", settle=60.0, locks=lambda call: ["it"]), list[str]()
    die_in(rt, done)
    with pytest.raises(amends.Waiting):
        ask(rt, done)
    assert len(done) == 1, "a lost setting may still land, and would overwrite the second one"
    rt.clock.advance(61)
    assert ask(rt, done).value == "ch_1"
    assert len(done) == 2


def test_it_gets_the_recorded_arguments_although_the_request_has_other_words() -> None:
    rt = testing.runtime(tools=[amends.declare("charge", kind="pivot", key="order", ignore=["note"], idempotent=True)])
    seen: list[dict[str, Any]] = []
    die_in(rt, [], order="1", note="first words")
    with rt.run("r", recover="wait") as run:
        run.answer("charge", {"order": "1", "note": "other words"}, handler=lambda **given: seen.append(given))
    assert seen == [{"order": "1", "note": "first words"}]


def test_a_tool_of_amends_that_a_framework_runs_is_started_again_through_the_framework() -> None:
    done: list[str] = []

    @amends.tool(kind="pivot", key="order", ignore=["note"], idempotent=True)
    def charge(order: str, note: str = "") -> str:
        done.append(note)
        if len(done) == 1:
            rt.crash()
        return "ch_1"

    rt = testing.runtime(tools=[charge])
    with contextlib.suppress(Crash), rt.run("r", recover="wait") as run:
        run.answer("charge", {"order": "1", "note": "first"}, handler=lambda **given: charge(**given))
    through: list[str] = []

    def framework(**given: Any) -> str:
        through.append("framework")
        return charge(**given)

    with rt.run("r", recover="wait") as run:
        answer = run.answer("charge", {"order": "1", "note": "second"}, handler=framework)
    assert (answer.value, done, through) == ("ch_1", ["first", "first"], ["framework"])


def test_a_request_by_hand_has_no_body_and_starts_nothing_again() -> None:
    rt, done = runtime(idempotent=True), list[str]()
    die_in(rt, done)
    with pytest.raises(amends.RunBlocked), rt.run("r", recover="wait") as run:
        run.begin("charge", {"order": "1"})
    assert len(done) == 1


def test_a_worker_without_the_body_leaves_the_run_to_its_program() -> None:
    rt, done = runtime(idempotent=True), list[str]()
    die_in(rt, done)
    rt.clock.advance(3600)
    rt.recover()
    assert rt.report("r").state == "open", "its program opens it, and has the body"
    assert ask(rt, done).value == "ch_1"
    assert rt.report("r").state == "committed"


def test_the_calls_of_a_turn_are_started_again_too() -> None:
    rt, done = runtime(idempotent=True), list[str]()
    die_in(rt, done)

    def charge(**given: Any) -> str:
        done.append("again")
        return "ch_1"

    with rt.run("r", recover="wait") as run:
        [answer] = run.answer_all([amends.ToolCall("charge", {"order": "1"}, "id", handler=charge)])
    assert answer.value == "ch_1"
    assert done[1:] == ["again"]
