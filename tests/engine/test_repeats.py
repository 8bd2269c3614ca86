"""``again_because`` is honoured only where the runtime offers it: one order is charged once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from amends import AsyncRuntime, Rule, Runtime, ToolCall, UsageError, declare, tool
from amends.errors import BadArguments, BadDeclaration, KeyConflict

AGAIN = {"order": "7", "again_because": "a second box"}


def _shop(**options: Any) -> tuple[Any, list[str]]:
    sent: list[str] = []

    @tool(key="order", **options)
    def charge(order: str, cents: int = 100) -> str:
        sent.append(order)
        return f"ch-{len(sent)}"

    charge.compensate(lambda: None)
    return charge, sent


def test_a_model_that_was_not_offered_it_charges_once() -> None:
    charge, sent = _shop()
    rt = Runtime("memory:", tools=[charge])
    assert "again_because" not in str(rt.schemas())
    with rt.run() as run:
        assert run.answer("charge", {"order": "7"}).status == "done"
        for why in ("a second box", "a third box"):
            no = run.answer("charge", {"order": "7", "again_because": why})
            assert (no.status, type(no.error)) == ("refused", BadArguments)
            assert no.text.startswith('Not run: charge has no argument "again_because"')
        [no] = run.answer_all([ToolCall("charge", AGAIN)])
        assert isinstance(no.error, BadArguments)
        with pytest.raises(BadArguments):
            run.approval_for("charge", AGAIN)
        assert run.answer("charge", {"order": "7", "again_because": None}).status == "replayed"
        assert run.answer("charge", '{"order": "7", "again_because": ""}').status == "replayed"
        assert run.answer("charge", {"order": "7", "cents": 5}).text.endswith("stop and tell the user.")
    assert sent == ["7"]


def test_the_same_awaited() -> None:
    charge, sent = _shop()

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[charge]) as rt, rt.run() as run:
            assert (await run.answer("charge", {"order": "7"})).status == "done"
            assert isinstance((await run.answer("charge", AGAIN)).error, BadArguments)
            [no] = await run.answer_all([ToolCall("charge", AGAIN)])
            assert isinstance(no.error, BadArguments)

    asyncio.run(main())
    assert sent == ["7"]


def test_a_runtime_that_says_so_offers_and_honours_it() -> None:
    charge, sent = _shop()
    rt = Runtime("memory:", tools=[charge], repeats=True)
    [shown] = rt.schemas("anthropic")
    assert "again_because" in shown["input_schema"]["properties"]
    assert "again_because" not in str(rt.schemas(repeats=False))
    with rt.run() as run:
        run.answer("charge", {"order": "7"})
        conflict = run.answer("charge", {"order": "7", "cents": 5})
        assert isinstance(conflict.error, KeyConflict)
        assert 'call again with "again_because"' in conflict.text
        assert run.answer("charge", AGAIN).status == "done"
        assert run.answer("charge", {"order": "7", "again_because": 5}).status == "refused"
    assert sent == ["7", "7"]


def test_a_tool_that_says_no_is_never_repeated_by_a_model() -> None:
    charge, sent = _shop(repeats=False)
    rt = Runtime("memory:", tools=[charge], repeats=True)
    assert "again_because" not in str(rt.schemas())
    assert not rt.may_repeat("charge")
    with rt.run() as run:
        run.answer("charge", {"order": "7"})
        assert isinstance(run.answer("charge", AGAIN).error, BadArguments)
        assert sent == ["7"]
        assert charge.with_options(again="the programmer says so")(order="7") == "ch-2"


def test_what_would_not_be_honoured_cannot_be_offered() -> None:
    charge, _ = _shop()
    with pytest.raises(UsageError, match="honour"):
        Runtime("memory:", tools=[charge]).schemas(repeats=True)
    with pytest.raises(BadDeclaration):
        Runtime("memory:", tools=[_shop(repeats="no")[0]])


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_REPEATS", "true")
    charge, _ = _shop()
    assert Runtime("memory:", tools=[charge]).may_repeat("charge")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_tool_that_takes_any_name_is_not_asked_for_anew_by_it(elsewhere: bool) -> None:
    sent: list[Any] = []

    @tool(kind="pivot")
    def loose(**more: Any) -> str:
        sent.append(more)
        return "sent"

    def body(**more: Any) -> str:
        sent.append(more)
        return "sent"

    tools = (
        [declare("loose", kind="compensatable", compensate="undo"), declare("undo", kind="read")]
        if elsewhere
        else [loose]
    )
    rt = Runtime("memory:", tools=tools, order="advise")
    with rt.run() as run:
        for _ in range(2):
            run.answer("loose", {"order": "7"}, handler=body)
            assert run.answer("loose", AGAIN, handler=body).status == "refused"
        with pytest.raises(BadArguments, match="again_because"):
            run.execute([{"tool": "loose", "args": AGAIN}])
    assert sent == [{"order": "7"}]


def test_an_undeclared_tool_is_not_repeated_either() -> None:
    sent: list[str] = []
    rules = [Rule(undeclared=True, decision="allow")]
    for repeats, statuses in ((False, ["done", "refused"]), (True, ["done", "done"])):
        rt = Runtime("memory:", rules=rules, repeats=repeats)
        with rt.run() as run:
            asked = [{"order": "7"}, AGAIN]
            assert [
                run.answer("pay", args, handler=lambda order: sent.append(order)).status for args in asked
            ] == statuses
    assert sent == ["7"] * 3


@pytest.mark.parametrize("blank", ["", " ", "  ", "\n\t", None])
def test_a_blank_reason_is_none(blank: str | None) -> None:
    charge, sent = _shop()
    rt = Runtime("memory:", tools=[charge], repeats=True, rules=[Rule(undeclared=True, decision="allow")])
    with rt.run() as run:
        run.answer("charge", {"order": "7"})
        assert run.answer("charge", {"order": "7", "again_because": blank}).status == "replayed"
        assert run.answer("charge", {"order": "7"}, again=blank).status == "replayed"
        for args in ({}, {"again_because": blank}):
            run.answer("foreign", args, handler=lambda: sent.append("foreign"))
    assert sent == ["7", "foreign"]
