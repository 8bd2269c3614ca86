"""``once`` and ``tell_once``: undeclared code that runs once, tells whether it ran, and asks the rules."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Held, Rule, Runtime
from amends.errors import RuleRefused

sent: list[str] = []


def send(to: str) -> str:
    sent.append(to)
    return f"sent:{to}"


async def send_later(to: str) -> str:
    sent.append(to)
    return f"sent:{to}"


def fail() -> None:
    raise ValueError("no")


@pytest.fixture(autouse=True)
def _nothing_sent() -> None:
    sent.clear()


def test_it_tells_whether_the_code_was_executed_or_answered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    told = []
    for _ in range(3):
        with Runtime(url) as rt:
            told += [rt.tell_once("mail", send, "anna"), rt.tell_once("mail", send, "anna")]
            assert rt.once("mail", send, "anna") == "sent:anna"
    assert [one.executed for one in told] == [True, False, False, False, False, False]
    assert [one.replayed for one in told] == [not one.executed for one in told]
    assert {one.value for one in told} == {"sent:anna"}
    assert len({one.call.id for one in told}) == 1
    assert told[0].call.state == "succeeded"
    assert told[1].to_dict()["replayed"] is True
    assert sent == ["anna"]


def test_so_it_does_in_a_run_in_both_colours() -> None:
    rt = Runtime("memory:")
    with rt.run("r") as run:
        assert [run.tell_once("k", send, "bob").executed for _ in range(2)] == [True, False]
        assert run.tell_once("l", send_later, "carl").value == "sent:carl"

    async def main() -> list[bool]:
        async with AsyncRuntime("memory:") as other:
            told = [await other.tell_once("k", send_later, "dora"), await other.tell_once("k", send_later, "dora")]
            async with other.run("r") as inner:
                told += [await inner.tell_once("k", send, "emil"), await inner.tell_once("k", send, "emil")]
            return [one.executed for one in told]

    assert asyncio.run(main()) == [True, False, True, False]
    assert sent == ["bob", "carl", "dora", "emil"]


def test_code_that_failed_is_executed_again() -> None:
    rt = Runtime("memory:")
    with pytest.raises(ValueError, match="no"):
        rt.tell_once("k", fail)
    assert rt.tell_once("k", send, "anna").executed


def test_a_replay_tells_what_was_told_then() -> None:
    rt = Runtime("memory:")

    def agent() -> list[bool]:
        with rt.run("r") as run:
            return [run.tell_once("k", send, "anna").executed for _ in range(2)]

    assert agent() == [True, False]
    assert rt.replay("r", agent) == [True, False]
    assert sent == ["anna"]


# ---- Rules


@pytest.mark.parametrize("pattern", ["once:send", "once:*", "*"])
def test_a_rule_can_refuse_it(pattern: str) -> None:
    rt = Runtime("memory:", rules=[Rule(pattern, decision="refuse", why="not at night")])
    with pytest.raises(RuleRefused, match="not at night"):
        rt.once("k", send, "anna")
    with pytest.raises(RuleRefused), rt.run("r") as run:
        run.once("k", send, "anna")
    assert sent == []


def test_a_rule_sees_its_arguments() -> None:
    rt = Runtime("memory:", rules=[Rule("once:send", args={"to": "mallory"}, decision="refuse")])
    assert rt.once("a", send, "anna") == "sent:anna"
    with pytest.raises(RuleRefused):
        rt.once("m", send, "mallory")
    assert sent == ["anna"]


def test_a_rule_can_ask_a_person_and_the_same_key_goes_on_after_the_decision() -> None:
    rt = Runtime("memory:", rules=[Rule("once:send", decision="approve")], principal="bot")
    for _ in range(2):
        with pytest.raises(Held):
            rt.once("k", send, "anna")
    [asked] = rt.approvals()
    assert asked.call.tool == "once:send"
    rt.approve(asked.id, digest=asked.digest, by="anna")
    assert rt.tell_once("k", send, "anna").executed
    assert not rt.tell_once("k", send, "anna").executed
    assert sent == ["anna"]


def test_in_a_run_it_waits_for_the_person_too() -> None:
    rt = Runtime("memory:", rules=[Rule("once:send", decision="approve")])
    with pytest.raises(Held), rt.run("r") as run:
        run.once("k", send, "anna")
    [asked] = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="anna")
    with rt.run("r") as run:
        assert run.once("k", send, "anna") == "sent:anna"
    assert rt.report("r").state == "committed"
    assert sent == ["anna"]


def test_without_a_rule_it_needs_nobody() -> None:
    rules: list[Any] = [Rule("wire", decision="refuse"), Rule(undeclared=True, decision="refuse")]
    rt = Runtime("memory:", rules=rules)
    assert rt.once("k", send, "anna") == "sent:anna"
    with rt.run("r") as run:
        assert run.once("k", send, "bob") == "sent:bob"
    assert rt.test_rules("once:send", {"to": "anna"}).decision == "run"


def test_what_a_model_calls_by_such_a_name_is_undeclared() -> None:
    rt = Runtime("memory:", rules=[Rule("once:*", decision="allow")])
    with pytest.raises(Held), rt.run("r") as run:
        answer = run.answer("once:send", {"to": "anna"}, handler=send)
        assert answer.error is not None
        raise answer.error
    assert sent == []
