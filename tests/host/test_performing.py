"""``rt.declarations`` and ``rt.perform``: what a worker tells a service, and how it performs what it is given."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, NoEffect, Runtime, Unknown, current_call, tool
from amends.errors import BadDeclaration, UsageError


@tool(key="n", retry=4, idempotent="24h", version="7")
def send(n: int, note: str = "") -> Any:
    """Send it."""
    if n == 0:
        return object()
    if n == 1:
        return (current_call().key, current_call().attempt, current_call().run_id)
    raise NoEffect("never")


@send.compensate(absent_ok=True, idempotent=True, wins=True, retry=2)
def unsend(n: int) -> None:
    assert current_call().phase == "compensate"


@tool(kind="pivot", timeout=0.05)
def slow(n: int) -> int:
    time.sleep(0.3)
    return n


@slow.probe
async def look(n: int) -> Any:
    answers: list[Any] = [Absent(), Absent, Unknown("later"), "nonsense"]
    if n == 4:
        raise ValueError("it broke")
    return answers[n]


@pytest.fixture(params=[Runtime, AsyncRuntime])
def perform(request: pytest.FixtureRequest) -> Any:
    """Perform in either colour."""
    rt = request.param("memory:", tools=[send, slow])

    def done(*args: Any, **given: Any) -> Any:
        made = rt.perform(*args, **{"key": "k", **given})
        return asyncio.run(made) if request.param is AsyncRuntime else made

    return done


def test_a_tool_is_described_by_its_schema_and_its_options() -> None:
    sent, slow_ = Runtime("memory:", tools=[send, slow]).declarations(lease=9.0)
    assert sent["parameters"]["required"] == ["n"]
    assert {name: sent[name] for name in ("name", "kind", "description", "version", "idempotent", "key", "attempts")} == {
        "name": "send", "kind": "compensatable", "description": "Send it.", "version": "7", "idempotent": "24h",
        "key": ["n"], "attempts": 4,
    }  # fmt: skip
    options = {"needs_result": False, "idempotent": True, "absent_ok": True, "wins": True, "attempts": 2}
    assert sent["compensate"] == options
    assert (slow_["probe"], slow_["lease"], slow_["settle"], "compensate" in slow_) == (True, 9.0, 0.05, False)
    assert [one["name"] for one in Runtime("memory:", tools=[send, slow]).declarations("slow")] == ["slow"]


def test_a_body_has_its_call_and_its_result_is_plain_data(perform: Any) -> None:
    made = perform("send", {"n": 1}, key="key-1", attempt=3, run_id="r1")
    assert (made.how, made.result) == ("succeed", ["key-1", 3, "r1"])
    assert perform("send", {"n": 2}).how == "no_effect"
    assert perform("send", {"n": 1, "colour": "red"}).how == "no_effect"
    assert perform("send", {"n": 1}, phase="compensate").how == "succeed"
    assert perform("send", {"n": 1}, phase="probe").error == "send has no probe here"


def test_a_result_that_cannot_be_sent_is_done_all_the_same(perform: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = perform("send", {"n": 0})
    assert (made.how, made.result) == ("succeed", None)
    assert "reported as done without a result" in caplog.text


def test_a_body_that_outlives_its_timeout_is_in_doubt(perform: Any) -> None:
    assert perform("slow", {"n": 1}).how == "doubt"


@pytest.mark.parametrize("n, answer", [(0, "absent"), (1, "absent"), (2, "unknown"), (3, "unknown"), (4, "unknown")])
def test_a_probe_that_gives_no_answer_does_not_know(perform: Any, n: int, answer: str) -> None:
    assert perform("slow", {"n": n}, phase="probe").result["answer"] == answer


def test_what_is_not_here_is_named(perform: Any) -> None:
    with pytest.raises(UsageError, match="no tool 'nothing'"):
        perform("nothing", {})
    guarded = tool(lambda n: n, name="guarded", kind="pivot", redact=["n"])
    with pytest.raises(BadDeclaration, match="redact"):
        Runtime("memory:", tools=[guarded]).declarations()
