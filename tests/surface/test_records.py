"""Records as JSON data, and what a debugger and a notebook show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import amends
from amends import (
    Absent,
    AsyncRuntime,
    Happened,
    Held,
    RolledBack,
    Runtime,
    Unknown,
    errors,
    tool,
)
from amends.errors import (
    AgentNotFound,
    ApprovalNotFound,
    BadDeclaration,
    CallNotFound,
    NotFound,
    RunNotFound,
    UsageError,
)
from amends.llm import ScriptedModel, run_agent


@tool
def pay(x: int) -> int:
    return x


@pay.compensate
def refund(x: int) -> None: ...


@tool(kind="pivot", needs_approval=True)
def wire(x: int) -> int:
    return x


@tool(kind="retriable", idempotent=True)
def mail(x: int) -> int:
    return x


TOOLS = [pay, wire, mail]

# ---- What does not exist

RUN_VERBS: list[Callable[[Any], Any]] = [
    lambda rt: rt.report("nope"),
    lambda rt: rt.export("nope"),
    lambda rt: rt.verify("nope"),
    lambda rt: rt.replay("nope", int),
    lambda rt: rt.fork("nope", at="call"),
    lambda rt: rt.compare("nope", "nope"),
    lambda rt: rt.plan_rollback("nope"),
    lambda rt: rt.abandon("nope", by="anna", why="test"),
    lambda rt: rt.finish("nope", by="anna", why="test"),
    lambda rt: rt.newest_event("nope"),
    lambda rt: list(rt.events("nope")),
]
CALL_VERBS: list[Callable[[Any], Any]] = [
    lambda rt: rt.call("nope"),
    lambda rt: rt.probe("nope"),
    lambda rt: rt.preview("nope"),
    lambda rt: rt.resolve("nope", Absent(), by="anna", why="test"),
    lambda rt: rt.accept("nope", by="anna", why="test"),
    lambda rt: rt.decide("nope", "run", by="anna", why="test"),
    lambda rt: rt.retry("nope", by="anna", why="test"),
]
APPROVAL_VERBS: list[Callable[[Any], Any]] = [
    lambda rt: rt.approval("nope"),
    lambda rt: rt.approve("nope", digest="1", by="anna"),
    lambda rt: rt.reject("nope", by="anna", reason="no"),
    lambda rt: rt.withdraw("nope", by="anna", why="no"),
]


@pytest.mark.parametrize("verb", RUN_VERBS)
def test_a_run_that_is_not_there(verb: Callable[[Any], Any]) -> None:
    rt = Runtime("memory:", tools=TOOLS)
    for one in (rt, rt.scoped(tenant="other")):
        with rt.run("nope2"):
            pass
        with pytest.raises(RunNotFound) as found:
            verb(one)
        assert found.value.run_id == "nope"
        assert isinstance(found.value, NotFound)
        assert isinstance(found.value, UsageError)


@pytest.mark.parametrize("verb", CALL_VERBS)
def test_a_call_that_is_not_there(verb: Callable[[Any], Any]) -> None:
    with pytest.raises(CallNotFound) as found:
        verb(Runtime("memory:"))
    assert found.value.call_id == "nope"


@pytest.mark.parametrize("verb", APPROVAL_VERBS)
def test_an_approval_that_is_not_there(verb: Callable[[Any], Any]) -> None:
    with pytest.raises(ApprovalNotFound) as found:
        verb(Runtime("memory:"))
    assert found.value.approval_id == "nope"


def test_what_another_tenant_has_is_not_there() -> None:
    rt = Runtime("memory:", tools=TOOLS, tenant="acme")
    with rt.run("r"):
        pay(1)
    [call] = rt.calls()
    other = rt.scoped(tenant="acme")
    assert other.call(call.id).id == call.id
    stranger = Runtime(store=rt._host.store, tenant="other")
    with pytest.raises(CallNotFound):
        stranger.call(call.id)
    with pytest.raises(RunNotFound):
        stranger.report("r")


def test_an_agent_that_is_not_there() -> None:
    rt = Runtime("memory:", agents={"booking": lambda run: None})
    with pytest.raises(AgentNotFound) as found:
        rt.start("bookings")
    assert (found.value.agent, found.value.known) == ("bookings", ("booking",))
    assert "booking" in found.value.hint

    async def main() -> None:
        async with AsyncRuntime("memory:") as other:
            with pytest.raises(RunNotFound):
                await other.report("nope")
            with pytest.raises(AgentNotFound):
                await other.start("nope")

    asyncio.run(main())


# ---- to_dict


def _records(tmp_path: Path) -> list[Any]:
    rt = Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=TOOLS)
    found: list[Any] = []
    with rt.run("r") as run:
        pay(1)
        found.append(run.answer("pay", {"x": 2}))
        found.append(run.answer("pay", {"x": "two"}))
        found.append(run.answer("nothing", {}))
        found.append(mail(3))
    with pytest.raises(Held) as held, rt.run("held"):
        wire(4)
    found += [held.value.call, held.value.approval, rt.report("r"), rt.report("r").run, rt.schema()]
    approval = next(iter(rt.approvals()))
    found += [rt.approve(approval.id, digest=approval.digest, by="anna"), rt.gc(older_than=0.0, dry_run=True)]
    found += [next(iter(rt.events("r"))), next(iter(rt.calls())), rt.plan_rollback("held"), rt.check([])]
    found += [
        Absent(),
        Unknown("why"),
        Happened(1),
        Happened(),
        held.value,
        rt.verify(),
        rt.test_rules("pay", {"x": 1}),
    ]
    model = ScriptedModel(("pay", {"x": 9}), "done")
    found.append(run_agent(rt, "pay", client=model, model="script", id="agent"))
    return found


def test_every_record_is_json_data(tmp_path: Path) -> None:
    for record in _records(tmp_path):
        told = record.to_dict()
        assert json.loads(json.dumps(told)) == told, type(record)


def test_every_type_that_is_handed_out_has_to_dict() -> None:
    declared = {"Tool", "Declaration", "Retry", "Rule", "Escalation", "Cost", "Secret", "Feed", "Budget"}
    live = {"Run", "AsyncRun", "Runtime", "AsyncRuntime", "Attempt", "AsyncAttempt"}
    for name in set(amends.__all__) - declared - live:
        one = getattr(amends, name)
        if isinstance(one, type):
            assert callable(getattr(one, "to_dict", None)) or issubclass(one, (amends.NoEffect, amends.WorkLost)), name


def test_a_call_is_told_with_all_of_its_facts() -> None:
    rt = Runtime("memory:", tools=TOOLS)
    with rt.run("r"):
        pay(1)
    [call] = rt.calls()
    told = call.to_dict()
    assert (told["id"], told["tool"], told["args"], told["result"]) == (call.id, "pay", {"x": 1}, 1)
    assert told["requested_at"] == call.requested_at.isoformat()  # type: ignore[union-attr]
    assert rt.report("r").to_dict()["calls"] == [told]


def test_odd_values_become_texts() -> None:
    @tool(kind="read")
    def look(amount: Decimal, at: dict[int, str]) -> set[int]:
        return {1}

    rt = Runtime("memory:", tools=[look])
    with rt.run():
        look(Decimal("4.20"), {1: "a"})
    [call] = rt.calls()
    assert call.to_dict()["args"] == {"amount": "4.20", "at": {"$map": [[1, "a"]]}}
    assert call.to_dict()["result"] == [1]


def test_a_lost_result_is_none_in_it() -> None:
    rt = Runtime("memory:", tools=[pay])
    with rt.run("r"):
        pay(1)
    [call] = rt.calls()
    lost = amends.model.without_result(call, errors.ResultLost("pay", why="gone"))
    assert lost.to_dict()["result"] is None
    assert "pay" in repr(lost)


# ---- What is shown


def test_reprs_say_what_it_is_and_read_nothing() -> None:
    rt = Runtime("memory:", tools=TOOLS, tenant="acme")
    assert repr(rt) == "<Runtime 'memory:', 3 tools, tenant 'acme'>"
    assert repr(rt.run("r")).startswith("<a run of <Runtime")
    with rt.run("r") as run:
        pay(1)
        rt._host.store.perform, kept = None, rt._host.store.perform  # type: ignore[method-assign, assignment]
        try:
            assert repr(run) == "<Run 'r'>"
        finally:
            rt._host.store.perform = kept  # type: ignore[method-assign]
        with run.begin("pay", {"x": 5}) as attempt:
            assert repr(attempt) == "<Attempt of 'pay', open>"
            attempt.succeed(5)
        assert repr(attempt) == "<Attempt of 'pay', ended>"
    assert repr(run) == "<Run 'r', ended or left>"
    assert repr(rt.report("r")) == "<Report of run 'r': committed, 2 calls>"
    call = next(call for call in rt.calls() if call.args == {"x": 1})
    assert repr(call) == f"Call(id={call.id!r}, tool='pay', args={{'x': 1}}, state='succeeded', run_id='r')"

    async def main() -> None:
        async with AsyncRuntime("memory:") as other, other.run("r") as opened:
            assert repr(other) == "<AsyncRuntime 'memory:', 0 tools>"
            assert repr(opened) == "<AsyncRun 'r'>"

    asyncio.run(main())


def test_a_long_argument_does_not_fill_the_screen() -> None:
    call = amends.Call("r", "pay", "1", {"x": "a" * 10_000})
    assert len(repr(call)) < 400


def test_a_notebook_shows_the_report_of_a_rollback_and_no_traceback() -> None:
    rt = Runtime("memory:", tools=TOOLS)
    run = rt.open("r")
    run.call(pay, 1)
    with pytest.raises(RolledBack) as found:
        run.rollback("only looking")
    shown = "\n".join(found.value._render_traceback_())  # what IPython asks an exception for
    assert "only looking" in shown
    assert "compensated" in shown
    assert "Traceback" not in shown
    with pytest.raises(Held) as held, rt.run("h"):
        wire(1)
    assert held.value.hint in "\n".join(held.value._render_traceback_())


def test_a_cell_that_is_run_again_says_what_to_do() -> None:
    def cell() -> Any:
        @tool
        def create_ticket(title: str) -> str:
            return title

        create_ticket.compensate(lambda: None)
        return create_ticket

    first = cell()
    rt = Runtime("memory:", tools=[first])
    again = cell()
    run = rt.open("r")
    for act in (lambda: run.call(again, "x"), lambda: rt.add(again), lambda: Runtime("memory:", tools=[first, again])):
        with pytest.raises(BadDeclaration) as found:
            act()
        assert "declared again" in str(found.value)
        assert "run the cell with Runtime(...) again" in found.value.hint
    rt = Runtime("memory:", tools=[again])
    assert rt.open("s").call(again, "x") == "x"
