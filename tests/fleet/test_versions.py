"""Two versions of the tools on one ledger: what a process with one version does with a call of the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amends import Absent, Happened, Runtime, tool
from amends.errors import ApprovalVoid, KeyConflict, Waiting
from tests.world import die

SAID: list[str] = []


def tools(version: str, **options: Any) -> Any:
    """The tool ``pay`` in one version; the second one has an argument more, with a default."""
    if version == "1":

        @tool(name="pay", key="order", version="1", **options)
        def first(order: str, cents: int) -> str:
            SAID.append(f"paid {order} by 1")
            return f"ch_{order}"

        @first.compensate
        def refund(order: str, cents: int) -> None:
            SAID.append(f"refunded {order} by 1")

        return first

    @tool(name="pay", key="order", version="2", **options)
    def second(order: str, cents: int, currency: str = "EUR") -> str:
        SAID.append(f"paid {order} by 2 in {currency}")
        return f"ch_{order}"

    @second.compensate
    def refund_second(order: str, currency: str) -> None:
        SAID.append(f"refunded {order} by 2 in {currency}")

    return second


@pytest.fixture
def url(tmp_path: Path) -> str:
    SAID.clear()
    return f"sqlite:///{tmp_path / 'shop.db'}"


def leave(url: str, version: str, **args: Any) -> None:
    """Make a run with one call of this version, and die."""
    rt = Runtime(url, tools=[pay := tools(version)])
    run = rt.open("r")
    run.call(pay, order="1", cents=5, **args)
    die(run)
    rt.close()


def recovered(url: str, *given: Any) -> Any:
    with Runtime(url, tools=list(given)) as rt:
        for _ in range(500):
            rt.recover()
            report = rt.report("r")
            if report.state not in ("open", "rolling_back"):
                return report
    raise AssertionError(report.state)


def test_an_old_worker_takes_back_a_new_call_by_its_own_compensation_and_the_recorded_arguments(url: str) -> None:
    leave(url, "2", currency="USD")
    report = recovered(url, tools("1"))
    assert report.state == "rolled_back"
    assert report.calls[0].version == "2"
    assert SAID == ["paid 1 by 2 in USD", "refunded 1 by 1"]


def test_a_new_worker_takes_back_an_old_call_and_fills_in_the_new_default(url: str) -> None:
    leave(url, "1")
    report = recovered(url, tools("2"))
    assert report.state == "rolled_back"
    assert report.calls[0].version == "1"
    assert SAID == ["paid 1 by 1", "refunded 1 by 2 in EUR"]


def test_an_argument_that_the_record_does_not_have_blocks_the_run_and_names_itself(url: str) -> None:
    @tool(name="pay", key="order", version="2")
    def pay(order: str, cents: int, account: str) -> str:
        return order

    @pay.compensate
    def refund(order: str, account: str) -> None:
        SAID.append("refunded")

    leave(url, "1")
    report = recovered(url, pay)
    assert report.state == "blocked"
    assert "account" in " ".join((*report.run.causes, *(left.why for left in report.residue), str(report.calls[0])))
    assert SAID == ["paid 1 by 1"]


def alike(version: str, **options: Any) -> Any:
    """The tool ``pay`` with the same arguments in every version."""

    @tool(name="pay", key="order", version=version, **options)
    def pay(order: str, cents: int) -> str:
        SAID.append(f"paid {order} by {version}")
        return f"ch_{order}"

    @pay.compensate
    def refund(order: str) -> None:
        SAID.append(f"refunded {order} by {version}")

    @pay.probe(settle=0.01)
    def find(order: str) -> Happened[str] | Absent:
        SAID.append(f"probed by {version}")
        return Happened(f"ch_{order}")

    return pay


def test_the_same_request_of_another_version_is_answered_from_the_record(url: str) -> None:
    leave(url, "1")
    with Runtime(url, tools=[pay := alike("2")]) as rt, rt.run("r", wait=5.0):
        assert pay(order="1", cents=5) == "ch_1"
    assert SAID == ["paid 1 by 1"]


def test_a_new_argument_is_a_conflict_that_names_both_versions_unless_it_is_ignored(url: str) -> None:
    leave(url, "1")
    with Runtime(url, tools=[pay := tools("2")]) as rt, pytest.raises(KeyConflict) as conflict:
        with rt.run("r", wait=5.0):
            pay(order="1", cents=5)
    assert "version 1 had other arguments than its version 2" in str(conflict.value)
    assert SAID == ["paid 1 by 1", "refunded 1 by 2 in EUR"]


def test_a_new_argument_that_is_ignored_is_no_conflict(url: str) -> None:
    leave(url, "1")
    with Runtime(url, tools=[pay := tools("2", ignore=["currency"])]) as rt, rt.run("r", wait=5.0):
        assert pay(order="1", cents=5) == "ch_1"
    assert SAID == ["paid 1 by 1"]


def test_an_approval_of_one_version_starts_nothing_in_another(url: str) -> None:
    with Runtime(url, tools=[first := alike("1", needs_approval=True)]) as rt, pytest.raises(Waiting):
        with rt.run("r"):
            first(order="1", cents=5)
    with Runtime(url, tools=[second := alike("2", needs_approval=True)]) as rt:
        [asked] = rt.approvals()
        rt.approve(asked.id, by="ada", digest=asked.digest)
        with pytest.raises((Waiting, ApprovalVoid)):
            with rt.run("r"):
                second(order="1", cents=5)
    assert SAID == []


def test_a_probe_of_another_version_settles_the_doubt(url: str) -> None:
    rt = Runtime(url, tools=[alike("2")])
    run = rt.open("r")
    run.begin("pay", {"order": "1", "cents": 5})
    die(run)
    rt.close()
    assert recovered(url, alike("1")).state == "rolled_back"
    assert SAID == ["probed by 1", "refunded 1 by 1"]
