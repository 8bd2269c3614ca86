"""A model's arguments that cannot be recorded are a refusal that it can correct; a program's are the program's fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, ToolCall, tool
from amends.errors import BadArguments, NotStorable
from amends.testing import runtime

did: list[Any] = []


@tool
def pay(amount: float) -> float:
    did.append(amount)
    return amount


@pay.compensate
def refund(amount: float) -> None: ...


@tool
def note(data: Any) -> int:
    did.append(data)
    return 1


note.compensate(lambda: None)


@tool
def keep(data: dict[str, Any]) -> int:
    did.append(data)
    return 1


keep.compensate(lambda: None)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    did.clear()


def _nested(levels: int, of: type = list) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value] if of is list else {"a": value}
    return value


CASES: dict[str, tuple[str, Mapping[str, Any] | str]] = {
    "1e999": ("pay", '{"amount": 1e999}'),
    "-1e999": ("pay", '{"amount": -1e999}'),
    "NaN": ("pay", '{"amount": NaN}'),
    "an SDK's inf": ("pay", {"amount": float("inf")}),
    "a text of it": ("pay", {"amount": "1e999"}),
    "inside": ("keep", '{"data": {"a": [1, {"b": 1e999}]}}'),
    "in Any": ("note", '{"data": [Infinity]}'),
    "deep": ("note", {"data": _nested(300)}),
    "deep objects": ("keep", {"data": _nested(300, dict)}),
    "very deep": ("note", {"data": _nested(50_000)}),
    "deep JSON": ("note", '{"data": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "long": ("note", {"data": "x" * 2_000_000}),
    "long JSON": ("note", json.dumps({"data": "x" * 2_000_000})),
    "many": ("note", {"data": [0] * 2_000_000}),
    "digits": ("note", '{"data": ' + "9" * 5_000 + "}"),
    "half a character": ("note", '{"data": "\\ud800"}'),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused_and_the_model_can_correct_it(case: str) -> None:
    name, args = CASES[case]
    with Runtime("memory:", tools=[pay, note, keep]).run() as run:
        for answer in (
            run.answer(name, args),
            *run.answer_all([ToolCall(name, args), ToolCall("pay", {"amount": 2})])[:1],
        ):
            assert answer.status == "refused"
            assert isinstance(answer.error, BadArguments)
            assert answer.text.startswith(f"Not run: {name}")
            assert answer.text.endswith("Call it again with corrected arguments.")
            assert len(answer.text) < 500
        assert run.answer("pay", {"amount": 1.5}).status == "done"
    assert did == [2, 1.5]


@pytest.mark.parametrize("case", ["1e999", "deep", "long"])
def test_so_it_is_for_undeclared_tools_async_runs_and_plans(case: str) -> None:
    name, args = CASES[case]

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[pay, note, keep]) as rt, rt.run() as run:
            assert isinstance((await run.answer(name, args)).error, BadArguments)
            answer = await run.answer("foreign", args, handler=did.append)
            assert isinstance(answer.error, BadArguments)

    asyncio.run(main())
    plan = [{"tool": name, "args": json.loads(args) if isinstance(args, str) else args}]
    rt = Runtime("memory:", tools=[pay, note, keep])
    if case != "long":
        assert [type(one) for one in rt.check(plan)] == [BadArguments]
    with rt.run() as run, pytest.raises(BadArguments):
        run.execute(plan)
    assert did == []


def test_what_only_a_program_can_send_stays_its_fault() -> None:
    with Runtime("memory:", tools=[note]).run() as run:
        answer = run.answer("note", {"data": object()})
        assert isinstance(answer.error, NotStorable)
        assert "the program around you" in answer.text
        with pytest.raises(NotStorable):
            note(float("inf"))
    assert did == []


def test_a_model_goes_on_after_it() -> None:
    rt = runtime(tools=[pay])
    with rt.run("r") as run:
        assert run.answer("pay", '{"amount": 1e999}').is_error
        assert run.answer("pay", '{"amount": 9}').text == "9.0"
    assert rt.report("r").state == "committed"


class Unshowable:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@pytest.mark.parametrize("value", [10**5_000, Unshowable(), [Unshowable()], _nested(50_000)], ids=range(4))
def test_a_result_that_cannot_be_shown_was_done(value: Any) -> None:
    @tool
    def made() -> Any:
        did.append("made")
        return value

    made.compensate(lambda: None)
    rt = Runtime("memory:", tools=[made])
    with rt.run("r") as run:
        answer = run.answer("made", {})
        assert answer.status == "done"
        assert not answer.is_error
    assert did == ["made"]
    assert [call.state for call in rt.calls()] == ["succeeded"]
