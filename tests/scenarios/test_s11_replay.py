"""S11: a recorded run against changed code. What differs is shown with both sides; nothing happens meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import Runtime, current_run, tool
from amends.errors import Diverged, ReplayDenied
from amends.run import Run
from tests.scenarios.stores import STORES, fresh


class Hospital:
    """A lab and a pharmacy that only a network reaches."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.ordered: list[str] = []

    def call(self, what: str) -> str:
        """One request to the outside, which is refused wherever there is none."""
        self.asked.append(what)
        with socket.socket() as line:
            line.setblocking(False)
            line.connect_ex(("127.0.0.1", 9))
        self.ordered.append(what)
        return f"{what} #{len(self.ordered)}"


@pytest.fixture(params=["memory", *STORES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory:" if request.param == "memory" else fresh(request.param, tmp_path, request)


@pytest.fixture
def hospital() -> Hospital:
    return Hospital()


@pytest.fixture
def rt(url: str, hospital: Hospital) -> Iterator[Runtime]:
    @tool
    def order_lab(patient: str, test: str) -> str:
        return hospital.call(f"{test} for {patient}")

    @order_lab.compensate
    def cancel_lab(patient: str) -> None:
        hospital.call(f"cancel for {patient}")

    @tool(kind="read")
    def results(patient: str) -> str:
        return hospital.call(f"results of {patient}")

    @tool(kind="pivot", needs_approval=True)
    def prescribe(patient: str, drug: str, dose: int) -> str:
        return hospital.call(f"{dose} mg {drug} for {patient}")

    with Runtime(url, tools=[order_lab, results, prescribe]) as made:
        made.tools = {one.name: one for one in (order_lab, results, prescribe)}  # type: ignore[attr-defined]
        yield made


def agent(rt: Any, *, dose: int = 10, order: str = "lrp") -> dict[str, Any]:
    """Order, look, prescribe; what the change of code or prompt makes of it is said by its arguments."""
    run: Run = current_run()
    told: dict[str, Any] = {"at": run.now(), "id": str(run.uuid())}
    acts: dict[str, Callable[[], str]] = {
        "l": lambda: str(rt.tools["order_lab"](patient="p7", test="blood")),
        "r": lambda: str(rt.tools["results"](patient="p7")),
        "p": lambda: str(rt.tools["prescribe"](patient="p7", drug="x", dose=dose)),
    }
    for number, act in enumerate(order):
        told[f"{number}{act}"] = acts[act]()
    return told


@pytest.fixture
def recorded(rt: Any, hospital: Hospital) -> dict[str, Any]:
    """A visit that waited for a doctor's yes, and was resumed with it."""
    return visited(rt, hospital, "visit")


def visited(rt: Any, hospital: Hospital, name: str, **options: Any) -> dict[str, Any]:
    from amends import Held

    with pytest.raises(Held), rt.run(name, agent="nurse", **options):
        agent(rt)
    (asked,) = rt.approvals()
    rt.approve(asked.id, digest=asked.digest, by="dr. ann")
    with rt.run(name, agent="nurse", **options) as run:
        run.output = agent(rt)
    output: dict[str, Any] = run.output
    hospital.asked.clear()
    return output


def test_the_unchanged_agent_replays_to_the_same_output(rt: Any, hospital: Hospital, recorded: dict[str, Any]) -> None:
    events = list(rt.events())
    assert rt.replay("visit", agent, rt) == recorded
    assert hospital.asked == []
    assert list(rt.events()) == events


def test_another_dose_stops_it_with_both_sides_and_a_diff(rt: Any, hospital: Hospital, recorded: Any) -> None:
    with pytest.raises(Diverged) as found:
        rt.replay("visit", agent, rt, dose=20)
    diverged = found.value
    assert (diverged.how, diverged.diff) == ("arguments", {"dose": (10, 20)})
    assert diverged.call.args == {"patient": "p7", "drug": "x", "dose": 10}
    assert diverged.given == {"patient": "p7", "drug": "x", "dose": 20}
    assert '"dose":10' in str(diverged)
    assert '"dose":20' in str(diverged)
    assert hospital.asked == []


@pytest.mark.parametrize("order, how", [("lr", "missing"), ("lrrp", "extra"), ("lrpr", "extra"), ("lrpl", "")])
def test_missing_extra_and_reordered_calls_are_each_detected(
    rt: Any, hospital: Hospital, recorded: Any, order: str, how: str
) -> None:
    if not how:  # the same request again is answered from the record, live too
        assert rt.replay("visit", agent, rt, order=order)["3l"] == recorded["0l"]
        return
    with pytest.raises(Diverged) as found:
        rt.replay("visit", agent, rt, order=order)
    assert found.value.how in (how, "past_end" if order == "lrpr" else how)
    assert hospital.asked == []


def test_a_read_in_another_place_is_detected_if_it_ran_again(rt: Any, hospital: Hospital) -> None:
    """What was answered from the record has no place in it: the resumed visit could have asked for it later, too."""
    known = visited(rt, hospital, "visit")
    assert rt.replay("visit", agent, rt, order="lpr")["2r"] == known["1r"]
    visited(rt, hospital, "again", reads="again")
    with pytest.raises(Diverged) as found:
        rt.replay("again", agent, rt, order="lpr")
    assert found.value.how == "order"
    assert hospital.asked == []


def test_reads_past_the_divergence_are_not_served(rt: Any, hospital: Hospital, recorded: Any) -> None:
    told: list[str] = []

    def stubborn() -> None:
        for act in (lambda: agent(rt, dose=20), lambda: rt.tools["results"](patient="p7")):
            try:
                told.append(str(act()))
            except Exception as error:
                told.append(type(error).__name__)

    with pytest.raises(Diverged):
        rt.replay("visit", stubborn)
    assert told == ["Diverged", "Diverged"]
    assert hospital.asked == []


def test_a_body_called_around_its_tool_reaches_nobody(rt: Any, hospital: Hospital, recorded: Any) -> None:
    with pytest.raises(ReplayDenied):
        rt.replay("visit", lambda: rt.tools["order_lab"].fn(patient="p7", test="blood"))
    assert len(hospital.asked) == 1
    assert hospital.asked[0] not in hospital.ordered[4:], "it began, and reached nobody"


def test_the_exported_run_replays_as_well(rt: Any, hospital: Hospital, recorded: dict[str, Any]) -> None:
    bundle = rt.export("visit")
    assert rt.replay(bundle, agent, rt) == recorded
    with pytest.raises(Diverged):
        rt.replay(bundle, agent, rt, dose=20)
    assert hospital.asked == []
