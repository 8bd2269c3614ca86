"""Every verb over a loaded record answers, or refuses with an error of amends; nothing of it changes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, Happened, Runtime, Unknown, tool
from amends.errors import Error, Held, RunIsRecord

UNTIL = 3600.0


def _tools(log: list[str]) -> list[Any]:
    @tool(key="order")
    def charge(order: str = "1") -> str:
        log.append("charge")
        return "ch"

    @charge.compensate(retry=1)
    def refund(result: str) -> None:
        log.append("refund")
        raise ValueError("closed")

    @tool
    def lose() -> str:
        log.append("lose")
        raise TimeoutError("no answer")

    lose.compensate(lambda: log.append("unlose"))

    @tool
    def stick() -> str:
        return "s"

    @stick.compensate(retry=1)
    def unstick() -> None:
        raise TimeoutError("no answer")

    @tool(needs_approval=True)
    def ask() -> str:
        log.append("ask")
        return "asked"

    ask.compensate(lambda: None)

    @tool(kind="retriable", idempotent=True)
    def mail() -> str:
        log.append("mail")
        return "m"

    return [charge, lose, stick, ask, mail]


def _exported() -> bytes:
    log: list[str] = []
    tools = _tools(log)
    charge, lose, stick, ask, mail = tools
    rt = Runtime("memory:", tools=tools)
    programs: dict[str, list[Any]] = {"doubt": [charge, lose], "stuck": [stick], "held": [charge, ask], "done": [mail]}
    for id, calls in programs.items():
        try:
            with rt.run(id) as run:
                for one in calls:
                    run.call(one)
                if id == "stuck":
                    raise KeyError
        except (Error, KeyError):
            pass
    open_run = rt.open("open")
    open_run.call(charge)
    with pytest.raises(Held):
        open_run.call(ask)
    return rt.export("doubt", "stuck", "held", "done", "open")


def verbs(rt: Any, run: Any, call: Any, approval: str) -> dict[str, Callable[[], Any]]:
    said = {"by": "ada", "why": "because"}
    found: dict[str, Callable[[], Any]] = {
        "report": lambda: rt.report(run.id),
        "events": lambda: rt.events(run.id),
        "plan_rollback": lambda: rt.plan_rollback(run.id),
        "rollback": lambda: rt.rollback(run.id, **said),
        "rollback planned": lambda: rt.rollback(run.id, plan="x", **said),
        "abandon": lambda: rt.abandon(run.id, **said),
        "finish": lambda: rt.finish(run.id, **said),
        "open": lambda: rt.open(run.id),
        "compare": lambda: rt.compare(run.id, run.id),
        "export": lambda: rt.export(run.id),
        "call": lambda: rt.call(call.id),
        "probe": lambda: rt.probe(call.id),
        "happened": lambda: rt.resolve(call.id, Happened("x"), **said),
        "absent": lambda: rt.resolve(call.id, Absent(), **said),
        "unknown": lambda: rt.resolve(call.id, Unknown(), **said),
        "preview": lambda: rt.preview(call.id),
        "accept": lambda: rt.accept(call.id, **said),
        "retry": lambda: rt.retry(call.id, **said),
        "retry result": lambda: rt.retry(call.id, result="x", **said),
        "decide run": lambda: rt.decide(call.id, "run", **said),
        "decide replay": lambda: rt.decide(call.id, "replay", **said),
        "decide refuse": lambda: rt.decide(call.id, "refuse", **said),
        "fork": lambda: rt.fork(run.id, at=call.id),
        "reconcile": lambda: rt.reconcile(call.tool),
        "doubts": lambda: rt.doubts(),
        "locks": lambda: rt.locks(),
        "costs": lambda: rt.costs(),
        "gc": lambda: rt.gc(older_than=0),
        "recover": lambda: rt.recover(),
        "delegate": lambda: rt.delegate(by="ada", to="bob", until=UNTIL, why="away"),
        "approvals": lambda: rt.approvals(""),
    }
    if approval:
        found |= {
            "approval": lambda: rt.approval(approval),
            "approve": lambda: rt.approve(approval, digest="x", by="ada"),
            "reject": lambda: rt.reject(approval, by="ada", reason="no"),
            "withdraw": lambda: rt.withdraw(approval, **said),
            "bypass": lambda: rt.bypass(approval, digest="x", **said),
            "ask again": lambda: rt.ask_again(approval, **said),
            "edit": lambda: rt.edit(approval, {}, **said),
        }
    return found


CHANGES = (
    "rollback",
    "abandon",
    "finish",
    "accept",
    "retry",
    "happened",
    "absent",
    "unknown",
    "plan_rollback",
    "preview",
)


def _loaded(rt: Runtime) -> list[tuple[Any, Any, str]]:
    approvals = {one.call.id: one.id for one in rt.approvals("") if one.call.id}
    return [
        (report, call, approvals.get(call.id, ""))
        for id in ("doubt", "stuck", "held", "done", "open")
        for report in [rt.report(id).run]
        for call in rt.report(id).calls
    ]


def test_every_verb_over_a_loaded_record_is_answered_or_refused() -> None:
    log: list[str] = []
    rt = Runtime("memory:", tools=_tools(log))
    rt.load(_exported())
    log.clear()
    unsaid: list[str] = []
    before = {one.id: one.state for one in rt.runs("")}
    for run, call, approval in _loaded(rt):
        for name, verb in verbs(rt, run, call, approval).items():
            try:
                done = verb()
                if inspect.isgenerator(done):
                    list(done)
            except Error as no:
                unsaid += [] if no.hint else [name]
                continue
            except Exception as error:
                pytest.fail(f"{name} over {run.id} ({run.state}), {call.tool} ({call.state}): {error!r}")
            assert name not in CHANGES or name in ("preview", "plan_rollback"), (name, run.id)
    assert log == unsaid == []
    assert {one.id: one.state for one in rt.runs("") if one.id in before} == before
    assert rt.verify().ok


@pytest.mark.parametrize("id", ["doubt", "stuck", "held", "open", "done"])
def test_a_loaded_record_has_no_plan(id: str) -> None:
    rt = Runtime("memory:", tools=_tools([]))
    rt.load(_exported())
    with pytest.raises(RunIsRecord):
        rt.plan_rollback(id)
    with pytest.raises(RunIsRecord):
        rt.rollback(id, by="ada", why="because")


def test_the_same_for_an_async_runtime() -> None:
    bundle = _exported()

    async def program() -> None:
        log: list[str] = []
        async with AsyncRuntime("memory:", tools=_tools(log)) as rt:
            await rt.load(bundle)
            log.clear()
            unsaid: list[str] = []
            approvals = {one.call.id: one.id async for one in rt.approvals("")}
            for id in ("doubt", "stuck", "held", "done", "open"):
                report = await rt.report(id)
                for call in report.calls:
                    for name, verb in verbs(rt, report.run, call, approvals.get(call.id, "")).items():
                        try:
                            done = verb()
                            if inspect.isawaitable(done):
                                await done
                            else:
                                _ = [one async for one in done]
                        except Error as no:
                            unsaid += [] if no.hint else [name]
            assert log == unsaid == []

    asyncio.run(program())
