"""An agent that is called as a tool is a child run: it waits with its parent, and has its own pivot."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amends import (
    AsyncRuntime,
    Held,
    Refused,
    RolledBack,
    Rule,
    RunBlocked,
    Runtime,
    ToolCall,
    UsageError,
    current_run,
    declare,
    tool,
)
from amends.errors import BadDeclaration, Busy, Halted, OutOfOrder
from tests.forked import run_python


class Bank:
    """A bank whose effects are in a list, and an agent that works there as it is told."""

    def __init__(self, work: Callable[[Bank, str], str] | None = None) -> None:
        self.effects: list[str] = []
        self.begun: list[str] = []
        self.work = work or (lambda bank, request: bank.wire(request))

        @tool(key="order")
        def charge(order: str) -> str:
            self.effects.append(f"charge {order}")
            return f"ch_{order}"

        @charge.compensate
        def refund(result: str) -> None:
            self.effects.append(f"refund {result}")

        @tool(kind="pivot", key="iban", needs_approval=lambda call: call.args["iban"].startswith("big"))
        def wire(iban: str) -> str:
            self.effects.append(f"wire {iban}")
            return f"wire_{iban}"

        @tool(kind="agent")
        def ask_payments(request: str) -> str:
            self.begun.append(request)
            return self.work(self, request)

        self.charge, self.wire, self.ask_payments = charge, wire, ask_payments
        self.tools = [charge, wire, ask_payments]

    def runtime(self, url: str = "memory:", **options: Any) -> Runtime:
        return Runtime(url, tools=self.tools, **options)


def approve_all(rt: Runtime) -> int:
    asked = list(rt.approvals())
    for one in asked:
        rt.approve(one.id, digest=one.digest, by="anna")
    return len(asked)


def test_an_approval_inside_suspends_it_with_its_parent_and_is_asked_for_once() -> None:
    bank = Bank(lambda bank, request: bank.charge("1") + " " + bank.wire(request))
    rt = bank.runtime()

    def supervise() -> str:
        with rt.run("r") as run:
            run.output = bank.ask_payments("big-1")
            return str(run.output)

    with pytest.raises(Held) as held:
        supervise()
    assert held.value.call.tool == "wire"
    report = rt.report("r")
    assert [report.state, report.children[0].state] == ["open", "open"]
    with pytest.raises(Held):
        supervise()  # nobody has decided
    assert approve_all(rt) == 1
    assert bank.effects == ["charge 1"]
    assert supervise() == "ch_1 wire_big-1"
    assert bank.effects == ["charge 1", "wire big-1"]
    report = rt.report("r")
    assert [report.state, report.children[0].state] == ["committed", "committed"]
    assert report.calls == ()
    assert report.children[0].run.input == {"request": "big-1"}
    assert report.children[0].run.output == "ch_1 wire_big-1"
    assert not list(rt.approvals())


def test_each_agent_has_its_own_pivot_and_so_has_the_one_who_asks() -> None:
    bank = Bank()
    rt = bank.runtime()
    with rt.run("r"):
        bank.charge("1")
        assert bank.ask_payments("a") == "wire_a"
        assert bank.ask_payments("b") == "wire_b"
        bank.wire("c")
    assert bank.effects == ["charge 1", "wire a", "wire b", "wire c"]
    assert rt.report("r").state == "committed"


def test_a_pivot_waits_for_an_agent_that_is_not_done() -> None:
    bank = Bank()
    rt = bank.runtime()
    with pytest.raises(Held), rt.run("r"):
        with pytest.raises(Held):
            bank.ask_payments("big-1")
        with pytest.raises(OutOfOrder) as early:
            bank.wire("c")
        assert any("ask_payments" in one for one in early.value.unsettled)
        bank.ask_payments("big-1")


def test_the_same_request_is_answered_from_the_record() -> None:
    bank = Bank()
    rt = bank.runtime()
    with rt.run("r") as run:
        first = run.answer("ask_payments", {"request": "a"})
        again = run.answer("ask_payments", {"request": "a"}, tool_call_id="other")
    assert (first.status, first.value) == ("done", "wire_a")
    assert (again.status, again.value) == ("replayed", "wire_a")
    assert again.text == 'Already done in this task; the same result: "wire_a"'
    assert bank.begun == ["a"]
    with rt.run("r") as run:
        assert run.answer("ask_payments", {"request": "a"}).status == "replayed"


def test_an_agent_that_fails_is_taken_back_and_the_one_who_asked_goes_on() -> None:
    def fails(bank: Bank, request: str) -> str:
        bank.charge(request)
        if len(bank.begun) == 1:
            raise LookupError("no such customer")
        return "ok"

    bank = Bank(fails)
    rt = bank.runtime()
    with rt.run("r") as run:
        failed = run.answer("ask_payments", {"request": "a"})
        assert (failed.status, type(failed.error)) == ("failed", LookupError)
        assert bank.effects == ["charge a", "refund ch_a"]
        assert bank.ask_payments("a") == "ok"
    assert bank.effects == ["charge a", "refund ch_a", "charge a"]
    assert [child.state for child in rt.report("r").children] == ["rolled_back", "committed"]


def test_the_one_who_asked_takes_it_back_and_its_pivot_is_residue() -> None:
    bank = Bank(lambda bank, request: bank.charge(request))
    rt = bank.runtime()
    with pytest.raises(KeyError), rt.run("r"):
        bank.ask_payments("a")
        raise KeyError
    assert bank.effects == ["charge a", "refund ch_a"]
    wires = Bank()
    rt = wires.runtime()
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        wires.ask_payments("a")
        raise KeyError
    assert [left.call.tool for left in blocked.value.residue] == ["wire"]


def test_an_agent_may_ask_another_one() -> None:
    bank = Bank()

    @tool(kind="agent")
    def ask_head(request: str) -> str:
        return f"head: {bank.ask_payments(request)}"

    rt = Runtime("memory:", tools=[*bank.tools, ask_head])
    with pytest.raises(Held), rt.run("r"):
        ask_head("big-1")
    approve_all(rt)
    with rt.run("r"):
        assert ask_head("big-1") == "head: wire_big-1"
    assert bank.effects == ["wire big-1"]
    [child] = rt.report("r").children
    assert [inner.state for inner in child.children] == ["committed"]


def test_an_agent_that_swallows_the_wait_has_not_ended() -> None:
    def swallows(bank: Bank, request: str) -> str:
        answer = current_run().answer("wire", {"iban": request})
        return f"it is {answer.status}"

    bank = Bank(swallows)
    rt = bank.runtime()
    with pytest.raises(Held), rt.run("r"):
        bank.ask_payments("big-1")
    assert approve_all(rt) == 1
    with rt.run("r"):
        assert bank.ask_payments("big-1") == "it is done"
    assert bank.effects == ["wire big-1"]


def test_two_threads_with_the_same_request_begin_it_once() -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(bank: Bank, request: str) -> str:
        inside.set()
        assert go.wait(10)
        return bank.wire(request)

    bank = Bank(slow)
    rt = bank.runtime()
    with rt.run("r") as run:
        first = run.submit(run.answer, "ask_payments", {"request": "a"})
        assert inside.wait(10)
        second = run.submit(run.answer, "ask_payments", {"request": "a"})
        go.set()
        assert {first.result().status, second.result().status} == {"done", "replayed"}
    assert (bank.begun, bank.effects) == (["a"], ["wire a"])


def test_who_cannot_wait_for_the_same_request_is_told() -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(bank: Bank, request: str) -> str:
        inside.set()
        assert go.wait(10)
        return "ok"

    bank = Bank(slow)
    rt = bank.runtime()
    with rt.run("r", wait=0.05) as run:
        first = run.submit(run.answer, "ask_payments", {"request": "a"})
        assert inside.wait(10)
        try:
            second = run.answer("ask_payments", {"request": "a"})
        finally:
            go.set()
        assert isinstance(second.error, Busy)
        assert second.status == "held"
        assert first.result().status == "done"


def test_the_end_of_the_run_waits_for_an_agent_in_another_thread() -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(bank: Bank, request: str) -> str:
        inside.set()
        assert go.wait(10)
        return bank.wire(request)

    bank = Bank(slow)
    rt = bank.runtime()

    def ask() -> None:
        bank.ask_payments("a")

    with rt.run("r") as run:
        thread = threading.Thread(target=run.bind(ask))
        thread.start()
        assert inside.wait(10)
        threading.Timer(0.1, go.set).start()
    thread.join()
    assert rt.report("r").children[0].state == "committed"
    assert bank.effects == ["wire a"]


# ---- rules, halts, and what an agent is not


def test_a_rule_about_the_agent_asks_before_it_begins_and_only_once() -> None:
    bank = Bank(lambda bank, request: bank.charge("1") + bank.wire(request))
    rt = bank.runtime(rules=[Rule("ask_payments")])

    def supervise() -> None:
        with rt.run("r"):
            bank.ask_payments("big-1")

    with pytest.raises(Held) as held:
        supervise()
    assert held.value.call.tool == "ask_payments"
    assert bank.begun == []
    with pytest.raises(Held):
        supervise()
    assert approve_all(rt) == 1
    with pytest.raises(Held) as held:
        supervise()
    assert held.value.call.tool == "wire"
    assert approve_all(rt) == 1
    supervise()
    assert bank.effects == ["charge 1", "wire big-1"]
    assert rt.report("r").state == "committed"


def test_a_rule_may_refuse_it_and_a_halt_too() -> None:
    bank = Bank()
    rt = bank.runtime(rules=[Rule("ask_payments", args={"request": "evil"}, decision="refuse")])
    with rt.run("r"), pytest.raises(Refused):
        bank.ask_payments("evil")
    rt.halt(by="anna", why="stop", tool="ask_payments")
    with rt.run("r2"), pytest.raises(Halted):
        bank.ask_payments("a")
    assert bank.begun == []


def test_its_approval_can_be_asked_for_ahead() -> None:
    bank = Bank()
    rt = bank.runtime(rules=[Rule("ask_payments")])
    with pytest.raises(Held), rt.run("r") as run:
        asked = run.approval_for("ask_payments", {"request": "a"})
        assert asked is not None
        assert asked.call.tool == "ask_payments"
        bank.ask_payments("a")
    approve_all(rt)
    with rt.run("r") as run:
        assert run.approval_for("ask_payments", {"request": "a"}) is None
        bank.ask_payments("a")
        assert run.approval_for("ask_payments", {"request": "a"}) is None
    assert bank.effects == ["wire a"]


def test_an_agent_without_rules_needs_no_approval() -> None:
    bank = Bank()
    with bank.runtime().run("r") as run:
        assert run.approval_for("ask_payments", {"request": "a"}) is None
        assert run.approval_for("ask_other", {"x": 1}, agent=True) is None


@pytest.mark.parametrize(
    "option",
    [
        {"compensate": lambda: None}, {"timeout": 5.0}, {"retry": 3}, {"idempotent": True}, {"cost": {"usd": 1}},
        {"scope": "ledger"}, {"after": ["charge"]}, {"redact": ["request"]}, {"locks": lambda call: ["x"]},
    ],
)  # fmt: skip
def test_what_is_said_about_one_call_cannot_be_said_of_an_agent(option: dict[str, Any]) -> None:
    with pytest.raises(BadDeclaration, match="is an agent"):
        Runtime("memory:", tools=[declare("ask", kind="agent", **option)])


def test_it_is_no_call_of_a_plan_and_none_by_hand() -> None:
    bank = Bank()
    rt = bank.runtime()
    check = rt.check([{"tool": "ask_payments", "args": {"request": "a"}}])
    assert "is an agent" in str(check.problems[0])
    with rt.run("r") as run, pytest.raises(UsageError, match="is an agent"):
        run.begin("ask_payments", {"request": "a"})
    assert bank.begun == []


def test_its_key_may_be_declared_and_what_carries_no_intent_ignored() -> None:
    begun: list[str] = []

    @tool(kind="agent", key="order", ignore=["tone"])
    def ask(order: str, tone: str) -> str:
        begun.append(tone)
        return order

    rt = Runtime("memory:", tools=[ask])
    with rt.run("r"):
        assert [ask("1", "kind"), ask("1", "angry")] == ["1", "1"]
        assert ask.with_options(again="a second time")("1", "kind") == "1"
    assert begun == ["kind", "kind"]


def test_what_the_run_requires_is_not_asked_of_its_agents() -> None:
    bank = Bank(lambda bank, request: bank.charge(request))
    rt = bank.runtime()
    with rt.run("r", requires=["wire"]):
        bank.ask_payments("a")
        bank.wire("b")
    assert rt.report("r").state == "committed"
    with pytest.raises(RolledBack), rt.run("r2", requires=["wire"]):
        bank.ask_payments("z")


def test_an_agent_that_ends_over_an_open_failure_is_taken_back() -> None:
    @tool(kind="pivot")
    def ship(order: str) -> str:
        raise ValueError("no address")

    def work(bank: Bank, request: str) -> str:
        bank.charge(request)
        current_run().answer("ship", {"order": request})
        return f"told: {current_run().before_end()}"

    bank = Bank(work)
    rt = Runtime("memory:", tools=[*bank.tools, ship])
    with rt.run("r", on_open_failure="rollback") as run:
        answer = run.answer("ask_payments", {"request": "a"})
        assert answer.status == "failed"
        assert isinstance(answer.error, RolledBack)
        assert bank.effects == ["charge a", "refund ch_a"]
        run.on_open_failure = "commit"
    assert rt.report("r").state == "committed"


def test_one_turn_lets_agents_work_first_and_a_pivot_wait_for_them() -> None:
    bank = Bank()
    rt = bank.runtime()
    with rt.run("r") as run:
        answers = run.answer_all(
            [
                ToolCall("wire", {"iban": "c"}),
                ToolCall("ask_payments", {"request": "a"}),
                ToolCall("charge", {"order": "1"}),
            ]
        )
        assert [answer.status for answer in answers] == ["done", "done", "done"]
    assert bank.effects == ["wire a", "charge 1", "wire c"]
    with pytest.raises(Held), rt.run("r2") as run:
        answers = run.answer_all([ToolCall("wire", {"iban": "c"}), ToolCall("ask_payments", {"request": "big-1"})])
        assert [answer.status for answer in answers] == ["refused", "held"]
        assert answers[1].error is not None
        raise answers[1].error


def test_a_tool_that_nobody_declared_is_an_agent_if_its_adapter_says_so() -> None:
    bank = Bank()
    rt = Runtime("memory:", tools=[bank.charge, bank.wire])

    def work(request: str) -> str:
        return bank.wire(request)

    def supervise() -> Any:
        with rt.run("r") as run:
            answer = run.answer("ask", {"request": "big-1"}, handler=work, agent=True)
            if answer.waits and answer.error is not None:
                raise answer.error
            return answer

    with pytest.raises(Held):
        supervise()
    assert approve_all(rt) == 1
    assert supervise().value == "wire_big-1"
    assert bank.effects == ["wire big-1"]


def test_the_record_is_replayed() -> None:
    bank = Bank(lambda bank, request: bank.charge("1") + " " + bank.wire(request))
    rt = bank.runtime(rules=[Rule("ask_payments")])

    def supervise() -> str:
        with rt.run("r"):
            return bank.ask_payments("big-1") + bank.ask_payments("big-1")

    for _ in range(2):
        with pytest.raises(Held):
            supervise()
        approve_all(rt)
    result = supervise()
    effects = list(bank.effects)
    assert rt.replay("r", supervise) == result
    assert bank.effects == effects


def test_the_record_of_a_request_that_was_allowed_ahead_is_replayed() -> None:
    bank = Bank()
    rt = bank.runtime(rules=[Rule("ask_payments")])

    def supervise() -> str:
        with rt.run("r"):
            return bank.ask_payments("a")

    with pytest.raises(Held):
        supervise()
    approve_all(rt)
    assert supervise() == "wire_a"
    assert rt.replay("r", supervise) == "wire_a"
    assert bank.effects == ["wire a"]


# ---- async


def test_on_an_event_loop_it_suspends_with_its_parent_too() -> None:
    effects: list[str] = []

    @tool(kind="pivot", needs_approval=lambda call: call.args["iban"].startswith("big"))
    async def wire(iban: str) -> str:
        effects.append(iban)
        return f"wire_{iban}"

    @tool(kind="agent")
    async def ask(request: str) -> str:
        await asyncio.sleep(0)
        return await wire(request)

    @tool(kind="agent")
    def ask_blocking(request: str) -> str:
        return f"{current_run().id}"

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[wire, ask, ask_blocking])

        async def supervise() -> list[Any]:
            async with rt.run("r") as run:
                answers = await asyncio.gather(
                    run.answer("ask", {"request": "a"}),
                    run.answer("ask", {"request": "a"}),
                    run.answer("ask", {"request": "big-1"}),
                    run.call(ask_blocking, "x"),
                )
                for answer in answers[:3]:
                    if answer.error is not None:
                        raise answer.error
                return [answer.value for answer in answers[:3]] + [answers[3]]

        with pytest.raises(Held):
            await supervise()
        [asked] = [one async for one in rt.approvals()]
        await rt.approve(asked.id, digest=asked.digest, by="anna")
        values = await supervise()
        assert values[:3] == ["wire_a", "wire_a", "wire_big-1"]
        assert values[3].startswith("r/ask_blocking:")
        assert sorted(effects) == ["a", "big-1"]
        assert (await rt.report("r")).state == "committed"

    asyncio.run(main())


def test_a_cancelled_agent_leaves_no_doubt_unsaid() -> None:
    started: list[str] = []

    @tool(key="n")
    async def slow(n: int) -> int:
        started.append("slow")
        await asyncio.sleep(10)
        return n

    @slow.compensate
    async def undo(n: int) -> None: ...

    @tool(kind="agent")
    async def ask(request: str) -> int:
        return await slow(1)

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[slow, ask])
        with pytest.raises(RunBlocked):  # an ordinary error: the run rolls back, and finds the doubt
            async with rt.run("r") as run, asyncio.timeout(0.2):
                await run.answer("ask", {"request": "a"})
        [child] = (await rt.report("r")).children
        assert [call.state for call in child.calls] == ["in_doubt"]

    asyncio.run(main())


# ---- a death


KILLED = """
import os, signal, sys
from pathlib import Path
from amends import Runtime, Held, tool, Happened, Absent

folder = Path(sys.argv[1])

def effect(text):
    with (folder / "effects").open("a") as file:
        file.write(text + "\\n")
        file.flush()
        os.fsync(file.fileno())
    if (folder / f"die-{text.split()[0]}").exists():
        (folder / f"die-{text.split()[0]}").unlink()
        os.kill(os.getpid(), signal.SIGKILL)

def happened(text):
    return (folder / "effects").exists() and text in (folder / "effects").read_text().splitlines()

@tool(key="order")
def charge(order: str) -> str:
    effect(f"charge {order}")
    return f"ch_{order}"

@charge.compensate
def refund(order: str) -> None:
    effect(f"refund {order}")

@charge.probe
def find(order: str):
    return Happened(f"ch_{order}") if happened(f"charge {order}") else Absent()

@tool(kind="pivot", key="iban", needs_approval=True)
def wire(iban: str) -> str:
    effect(f"wire {iban}")
    return f"wire_{iban}"

@wire.probe
def find_wire(iban: str):
    return Happened(f"wire_{iban}") if happened(f"wire {iban}") else Absent()

@tool(kind="agent")
def ask(request: str) -> str:
    return charge("1") + wire(request)

rt = Runtime(f"sqlite:///{folder}/ledger.db", tools=[charge, wire, ask], lease=1)
if "approve" in sys.argv:
    for one in rt.approvals():
        rt.approve(one.id, digest=one.digest, by="anna")
try:
    with rt.run("r", recover="resume") as run:
        run.output = ask("a")
        if "die-before-end" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
except Held:
    sys.exit(3)
"""


@pytest.mark.parametrize("where", ["charge", "wire", "end"])
def test_killed_in_an_agent_each_effect_is_done_once(tmp_path: Path, where: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(KILLED, encoding="utf-8")

    def go(*words: str) -> int:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "src")])}
        return run_python([str(program), str(tmp_path), *words], cwd=tmp_path, env=environ, timeout=60).returncode

    if where != "end":
        (tmp_path / f"die-{where}").touch()
    codes = [go()]
    if where == "charge":
        assert codes == [-signal.SIGKILL]
        codes.append(go())
    assert codes[-1] == 3
    codes.append(go("approve", *(["die-before-end"] if where == "end" else [])))
    if where != "charge":
        assert codes[-1] == -signal.SIGKILL
        codes.append(go())
    assert codes[-1] == 0, codes
    assert (tmp_path / "effects").read_text().splitlines() == ["charge 1", "wire a"]


# ---- a stop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("recover", ["wait", "rollback"])
def test_an_agent_that_is_interrupted_is_left_to_the_one_who_asked(tmp_path: Path, recover: Any) -> None:
    def work(bank: Bank, request: str) -> str:
        bank.charge("A1")
        if len(bank.begun) == 1:
            raise KeyboardInterrupt
        return bank.charge("A2")

    bank = Bank(work)
    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[bank.charge, bank.wire, bank.ask_payments]) as rt:
        with pytest.raises(KeyboardInterrupt), rt.run("r", recover=recover):
            bank.ask_payments("x")
        report = rt.report("r")
        if recover == "rollback":
            assert [report.state, report.children[0].state] == ["rolled_back", "rolled_back"]
            assert bank.effects == ["charge A1", "refund ch_A1"]
            return
        assert [report.state, report.children[0].state] == ["open", "open"]
        assert bank.effects == ["charge A1"]
        with rt.run("r", recover=recover):
            assert bank.ask_payments("x") == "ch_A2"
        report = rt.report("r")
        assert [report.state, *(child.state for child in report.children)] == ["committed", "committed"]
    assert bank.effects == ["charge A1", "charge A2"]


def test_an_agent_that_is_cancelled_and_not_asked_again_is_taken_back(tmp_path: Path) -> None:
    effects: list[str] = []

    @tool
    async def charge(order: str) -> str:
        effects.append(f"charge {order}")
        return order

    @charge.compensate
    async def refund(result: str) -> None:
        effects.append(f"refund {result}")

    @tool(kind="agent")
    async def ask(request: str) -> None:
        await charge("A1")
        await asyncio.Event().wait()

    async def main() -> list[str]:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[charge, ask]) as rt:
            async with rt.run("r"):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(ask("x"), 0.5)
                assert effects == ["charge A1"], "it may be asked again"
            report = await rt.report("r")
            return [report.state, *(child.state for child in report.children)]

    assert asyncio.run(main()) == ["committed", "rolled_back"]
    assert effects == ["charge A1", "refund A1"]
