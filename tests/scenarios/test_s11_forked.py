"""S11, its fork: the dose changes, the lab order stays as it was done, and the doctor is asked anew. On every store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import RunBlocked, Runtime, tool
from amends.errors import CannotFork, Held
from tests.scenarios.stores import STORES, fresh


class Clinic:
    """Labs, prescriptions, and everything that was asked of them."""

    def __init__(self, url: str, **options: Any) -> None:
        self.log: list[str] = []

        @tool(key="patient")
        def order_lab(patient: str, test: str) -> str:
            self.log.append(f"order_lab {test}")
            return f"lab-{patient}"

        @order_lab.compensate
        def cancel_lab(result: str) -> None:
            self.log.append(f"cancel {result}")

        @tool(kind="read")
        def read_lab(order: str) -> int:
            self.log.append(f"read {order}")
            return len(self.log)

        @tool(kind="pivot", key="patient", needs_approval=lambda call: True)
        def prescribe(patient: str, dose: int) -> str:
            self.log.append(f"prescribe {dose}")
            return f"rx-{dose}"

        self.order_lab, self.read_lab, self.prescribe = order_lab, read_lab, prescribe
        self.rt = Runtime(url, tools=[order_lab, read_lab, prescribe], **options)

    def visit(self, id: str, dose: int, *, by: str = "dr-ada") -> list[object]:
        """The agent's code: the same for the original and for its fork."""
        for _ in range(2):
            try:
                with self.rt.run(id, recover="wait"):
                    lab = self.order_lab(patient="p7", test="crp")
                    value = self.read_lab(order=lab)
                    return [lab, value, self.prescribe(patient="p7", dose=dose)]
            except Held as held:
                self.rt.approve(held.approval.id, digest=held.approval.digest, by=by)
        raise AssertionError("what was approved is done")


@pytest.fixture(params=("memory", *STORES))
def clinic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clinic]:
    url = "memory:" if request.param == "memory" else fresh(request.param, tmp_path, request)
    made = Clinic(url, wait=5.0)
    yield made
    made.rt.close()


def test_a_fork_keeps_the_lab_order_and_needs_a_new_approval(clinic: Clinic) -> None:
    rt = clinic.rt
    first = clinic.visit("visit", 10)
    calls = rt.report("visit").calls
    done = list(clinic.log)
    fork = rt.fork("visit", at=calls[1].id)
    before = rt.report("visit").to_dict()
    second = clinic.visit(fork, 20)
    assert second[:2] == [first[0], calls[1].result]
    assert clinic.log == [*done, "prescribe 20"]
    asked = list(rt.approvals("state:used"))
    assert len(asked) == 2
    assert len({one.call.id for one in asked}) == 2
    compared = rt.compare("visit", fork)
    assert compared.first is not None
    assert [str(one) for one in compared.first.args] == ["dose: 10 | 20"]
    assert {pair.how for pair in compared.pairs[:2]} == {"shared"}
    assert rt.report("visit").to_dict() == before, "the original is not touched"


def test_the_original_stands_under_its_fork_until_a_person_says_otherwise(clinic: Clinic) -> None:
    rt = clinic.rt
    run = rt.open("visit", recover="wait")
    run.call(clinic.order_lab, patient="p7", test="crp")
    (call,) = rt.report("visit").calls
    fork = rt.fork("visit", at=call.id, id="again")
    with pytest.raises(RunBlocked, match="fork again is open"):
        run.rollback("the agent gave up")
    assert clinic.log == ["order_lab crp"]
    with pytest.raises(CannotFork):
        rt.fork("visit", at=call.id, id="third")
    assert rt.rollback("visit", by="dr-ada", why="wrong patient").state == "rolled_back"
    assert clinic.log == ["order_lab crp", "cancel lab-p7"]
    assert rt.rollback(fork, by="dr-ada", why="nothing left of it").state == "rolled_back"
    assert clinic.log == ["order_lab crp", "cancel lab-p7"]


def test_a_lab_order_of_another_kind_is_no_part_of_what_is_shared(clinic: Clinic) -> None:
    """Asked for otherwise it is told as a conflict: it is never done a second time under the same identity."""
    rt = clinic.rt
    clinic.visit("visit", 10)
    fork = rt.fork("visit", at=rt.report("visit").calls[0].id)
    done = list(clinic.log)
    with pytest.raises(Exception, match="other arguments"), rt.run(fork):
        clinic.order_lab(patient="p7", test="blood count")
    assert clinic.log == done
