"""``run.approval_for``: asking for a person's yes before the call is made. It starts nothing, and asks once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import amends
from amends import AsyncRuntime, Rule, Runtime, declare, tool

SENT: list[int] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    SENT.clear()


@tool(kind="pivot", key="n", needs_approval=lambda call: call.args["cents"] > 100)
def wire(n: int, cents: int) -> str:
    SENT.append(n)
    return f"w{n}"


@tool(kind="read", needs_approval=True)
def look(n: int) -> int:
    SENT.append(n)
    return n


def made(asked: amends.Approval | None) -> amends.Approval:
    assert asked is not None
    return asked


def test_what_needs_nobody_is_none() -> None:
    rt = Runtime("memory:", tools=[wire])
    with rt.run("r") as run:
        assert run.approval_for("wire", {"n": 1, "cents": 5}) is None
        assert SENT == []
        assert run.report().calls == ()


def test_the_request_is_made_once_and_the_call_waits_for_it() -> None:
    told: list[str] = []
    rt = Runtime("memory:", tools=[wire], on_approval_needed=lambda asked: told.append(asked.id))
    with pytest.raises(amends.Held), rt.run("r") as run:
        first = made(run.approval_for("wire", {"n": 1, "cents": 500}, tool_call_id="call_1"))
        again = made(run.approval_for("wire", '{"n": 1, "cents": 500}'))
        answer = run.answer("wire", {"n": 1, "cents": 500})
        assert first.id == again.id
        assert answer.status == "held"
        assert [call.tool_call_id for call in run.report().calls] == ["call_1"]
    assert told == [first.id]
    assert SENT == []


def test_decided_it_waits_for_nobody_and_starts_nothing_by_itself() -> None:
    rt = Runtime("memory:", tools=[wire])
    args = {"n": 1, "cents": 500}
    with pytest.raises(amends.Waiting, match="later"), rt.run("r") as run:
        asked = made(run.approval_for("wire", args))
        raise amends.Waiting("later")  # left cleanly, the run would go on by itself once it is approved
    rt.approve(asked.id, digest=asked.digest, by="ann")
    with rt.run("r") as run:
        assert run.approval_for("wire", args) is None
        assert SENT == []
        assert run.answer("wire", args).value == "w1"
        assert run.approval_for("wire", args) is None
    assert SENT == [1]


def test_a_no_is_the_calls_to_tell() -> None:
    rt = Runtime("memory:", tools=[wire])
    with pytest.raises(amends.Held), rt.run("r") as run:
        asked = made(run.approval_for("wire", {"n": 1, "cents": 500}))
    rt.reject(asked.id, by="ann", reason="wrong payee")
    with rt.run("r") as run:
        assert run.approval_for("wire", {"n": 1, "cents": 500}) is None
        assert "wrong payee" in run.answer("wire", {"n": 1, "cents": 500}).text


def test_other_arguments_under_the_key_are_asked_about_anew_by_the_call_alone() -> None:
    rt = Runtime("memory:", tools=[wire])
    with pytest.raises(amends.Held), rt.run("r") as run:
        first = made(run.approval_for("wire", {"n": 1, "cents": 500}))
        other = run.approval_for("wire", {"n": 1, "cents": 900})
        assert other is None or other.id != first.id
    assert SENT == []


def test_a_tool_that_nobody_declared_is_asked_about_in_a_run_of_its_own() -> None:
    rt = Runtime("memory:", tools=[])
    with pytest.raises(amends.Held), rt.run("r") as run:
        asked = made(run.approval_for("stamp", {"text": "x"}))
        assert [call.state for child in run.report().children for call in child.calls] == ["held"]
    rt.approve(asked.id, digest=asked.digest, by="ann")
    with rt.run("r") as run:
        assert run.approval_for("stamp", {"text": "x"}) is None
        assert run.answer("stamp", {"text": "x"}, handler=lambda text: f"stamped {text}").value == "stamped x"


def test_an_undeclared_tool_that_a_rule_allows_waits_for_nobody_and_is_done_after() -> None:
    rt = Runtime("memory:", rules=[Rule(tool="stamp", decision="allow", undeclared=True)])
    with rt.run("r") as run:
        assert run.approval_for("stamp", {"text": "x"}) is None
        assert run.answer("stamp", {"text": "x"}, handler=lambda text: f"stamped {text}").value == "stamped x"


def test_a_read_that_needs_a_yes_is_asked_about_too() -> None:
    rt = Runtime("memory:", tools=[look])
    with pytest.raises(amends.Held), rt.run("r") as run:
        first, again = made(run.approval_for("look", {"n": 1})), made(run.approval_for("look", {"n": 1}))
        assert first.id == again.id
    assert SENT == []


def test_an_order_that_is_refused_is_not_asked_about() -> None:
    @tool(kind="pivot", after=["reserve"], needs_approval=True)
    def late(n: int) -> None: ...

    rt = Runtime("memory:", tools=[declare("reserve", compensate=lambda result: None), late])
    with rt.run("r") as run:
        assert run.approval_for("late", {"n": 1}) is None
        assert "Call reserve first" in run.answer("late", {"n": 1}).text


def test_arguments_that_are_none_raise_before_anything_is_asked() -> None:
    rt = Runtime("memory:", tools=[wire])
    with rt.run("r") as run:
        with pytest.raises(amends.Refused):
            run.approval_for("wire", {"n": "x"})
        assert run.report().calls == ()


def test_it_is_the_same_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        declared = [declare("wire", kind="pivot", needs_approval=True)]
        async with AsyncRuntime(f"sqlite:///{tmp_path}/l.db", tools=declared) as rt:
            with pytest.raises(amends.Held):
                async with rt.run("r") as run:
                    asked = made(await run.approval_for("wire", {"n": 1}))
                    assert await run.approval_for("stamp", {"n": 1}) is not None
            await rt.approve(asked.id, digest=asked.digest, by="ann")
            with pytest.raises(amends.Held):
                async with rt.run("r") as run:
                    assert await run.approval_for("wire", {"n": 1}) is None

    asyncio.run(main())


def test_a_run_is_not_committed_over_an_approved_call_that_only_its_caller_can_make(tmp_path: Path) -> None:
    declared = [declare("wire", kind="pivot", needs_approval=True)]
    rt = Runtime(f"sqlite:///{tmp_path}/l.db", tools=declared)
    with pytest.raises(amends.Held), rt.run("r") as run:
        asked = made(run.approval_for("wire", {"n": 1}))
    rt.approve(asked.id, digest=asked.digest, by="ann")
    with pytest.raises(amends.Held), rt.run("r"):
        pass  # this time nobody asks for it
    with rt.run("r") as run:
        assert run.answer("wire", {"n": 1}, handler=lambda n: f"w{n}").value == "w1"
    assert rt.report("r").state == "committed"
    rt.close()


@pytest.mark.parametrize("colour", ["blocking", "async"])
def test_what_is_done_while_a_run_is_opened_again_knows_its_run(tmp_path: Path, colour: str) -> None:
    @tool(kind="pivot", needs_approval=True)
    def pay(n: int) -> str:
        return str(amends.current_run().id)

    url = f"sqlite:///{tmp_path}/l.db"
    with Runtime(url, tools=[pay]) as rt:
        with pytest.raises(amends.Held), rt.run("r"):
            pay(n=1)  # left cleanly: it is done as soon as it is approved
        [asked] = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="ann")

    async def opened() -> None:
        async with AsyncRuntime(url, tools=[pay]) as art, art.run("r"):
            pass

    if colour == "async":
        asyncio.run(opened())
    with Runtime(url, tools=[pay]) as rt:
        with rt.run("r"):
            pass
        assert [(call.state, call.result) for call in rt.report("r").calls] == [("succeeded", "r")]
