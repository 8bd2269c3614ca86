"""The simulator as users have it: it passes good tools and finds each kind of bad one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from amends import Absent, Happened, Held, Probed, Rule, Run, current_call, tool
from amends.errors import OutOfOrder
from amends.testing import Crash, check_tool, runtime, simulate


@dataclass
class FakeBank:
    charges: dict[str, int] = field(default_factory=dict)
    refunds: list[str] = field(default_factory=list)


bank = FakeBank()


@pytest.fixture(autouse=True)
def empty_bank() -> None:
    bank.charges.clear()
    bank.refunds.clear()


@tool(key=("order_id",))
def charge(order_id: str, cents: int) -> str:
    bank.charges[current_call().key] = cents
    return current_call().key


@charge.compensate
def refund(result: str) -> None:
    bank.charges.pop(result, None)


@charge.probe
def find_charge(order_id: str) -> Probed[str]:
    key = current_call().key
    return Happened(key) if key in bank.charges else Absent()


@tool(kind="pivot", after=("charge",))
def wire(order_id: str) -> str:
    return "w"


def charges() -> dict[str, int]:
    return dict(bank.charges)


def test_a_stutter_is_answered_from_the_record() -> None:
    with runtime(tools=[charge]).run() as run:
        assert charge(order_id="1", cents=5) == charge(order_id="1", cents=5)
        assert len(run.report().calls) == 1


def test_refund_restores_what_charge_changed() -> None:
    check_tool(charge, args={"order_id": "1", "cents": 5}, state=charges).raise_if_broken()


def pay(run: Run) -> None:
    charge(order_id="1", cents=5)
    wire(order_id="1")


def test_no_crash_charges_twice() -> None:
    verdict = simulate(pay, tools=[charge, wire], state=charges, crashes=2)
    verdict.raise_if_broken()
    assert verdict.schedules > 100


def test_a_world_that_is_reset_is_compared_after_commits_too() -> None:
    verdict = simulate(pay, tools=[charge, wire], state=lambda: sorted(bank.charges.values()), fresh=bank.charges.clear)
    verdict.raise_if_broken()


def test_wire_first_is_refused() -> None:
    with pytest.raises(OutOfOrder) as refused, runtime(tools=[charge, wire]).run():
        wire(order_id="1")
    assert refused.value.missing == ("charge",)


def test_a_compensation_that_forgets_something_is_found() -> None:
    @tool
    def leaky(n: int) -> str:
        bank.charges[current_call().key] = n
        bank.refunds.append("leak")
        return current_call().key

    @leaky.compensate
    def undo(result: str) -> None:
        bank.charges.pop(result, None)

    verdict = check_tool(leaky, args={"n": 1}, state=lambda: (dict(bank.charges), list(bank.refunds)))
    assert {"world_restored", "compensation_restores"} <= {violation.checker for violation in verdict.violations}
    with pytest.raises(AssertionError, match="violations in"):
        verdict.raise_if_broken()


def test_a_tool_that_lies_about_its_idempotence_is_found() -> None:
    @tool(kind="pivot", idempotent=True)
    def lying(n: int) -> str:
        bank.refunds.append("again")
        return "x"

    verdict = check_tool(lying, args={"n": 1}, state=lambda: len(bank.refunds))
    assert "idempotent" in {violation.checker for violation in verdict.violations}


def test_a_probe_that_looks_in_the_wrong_place_is_found() -> None:
    @tool
    def book(n: int) -> str:
        bank.charges[current_call().key] = n
        return current_call().key

    @book.compensate
    def cancel(result: str) -> None:
        bank.charges.pop(result, None)

    @book.probe
    def wrong(n: int) -> Probed[str]:
        return Absent()

    verdict = check_tool(book, args={"n": 1}, state=charges)
    named = {violation.checker for violation in verdict.violations}
    assert "probe_finds_it" in named
    assert "world_restored" in named, "a lost answer, believed absent, stands after the rollback"


def test_a_read_that_writes_is_found() -> None:
    @tool(kind="read")
    def peek(n: int) -> int:
        bank.refunds.append("mark")
        return n

    verdict = check_tool(peek, args={"n": 1}, state=lambda: list(bank.refunds))
    assert "read_changes_nothing" in {violation.checker for violation in verdict.violations}


def test_a_crashed_process_is_recovered_by_the_next_one() -> None:
    rt = runtime(tools=[charge, wire])
    with pytest.raises(Crash), rt.run("order-1"):
        charge(order_id="1", cents=5)
        rt.crash()
    assert rt.report("order-1").state == "open", "a dead process cleans nothing up"
    assert [report.state for report in rt.recover()] == ["rolled_back"]
    assert bank.charges == {}


def test_leases_run_out_in_virtual_time_and_living_runs_keep_theirs() -> None:
    rt = runtime(tools=[charge, wire], lease=30.0)
    with rt.run("order-1"):
        charge(order_id="1", cents=5)
        rt.clock.advance(3_600.0)
        assert rt.recover() == [], "its owner lives"
        wire(order_id="1")
    assert rt.report("order-1").state == "committed"


def test_a_test_runtime_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMENDS_URL", "sqlite:////nowhere/at/all.db")
    monkeypatch.setenv("AMENDS_LEASE", "nonsense")
    assert runtime().settings["url"].value == "memory:"


def test_everybody_who_is_asked_has_said_yes() -> None:
    @tool(kind="pivot", needs_approval=True)
    def wire(cents: int) -> str:
        return f"w{cents}"

    rt = runtime(tools=[wire], rules=[Rule("wire", approvers=3, roles=("finance",))], principal="agent")
    with pytest.raises(Held), rt.run("r"):
        wire(1)
    assert [one.state for one in rt.approve_all()] == ["approved"]
    assert rt.approve_all() == []
    with rt.run("r"):
        assert wire(1) == "w1"
