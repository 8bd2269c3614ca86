"""Replaying: what the record has is told again, and the first thing that it has not ends the replay."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amends import Held, Runtime, Staged, current_run, tool
from amends.errors import Diverged, ReplayDenied, ToolFailed, UsageError, Waiting
from amends.host import requests
from amends.run import Run


class Declined(Exception):
    """A tool's own error."""


class Clinic:
    """A lab order, a prescription, a reading, a letter; and which of their bodies ran."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.started: list[str] = []
        self.path = path
        started = self.started

        @tool(version=options.pop("version", "1"), ignore=("note",))
        def order_lab(patient: str, test: str = "blood", note: str = "") -> dict[str, str]:
            started.append("order_lab")
            if test == "none":
                raise Declined("no such test")
            return {"id": f"lab-{len(started)}"}

        @order_lab.compensate
        def cancel_lab() -> None:
            started.append("cancel_lab")

        @tool(kind="pivot")
        def prescribe(patient: str, dose: int) -> str:
            started.append("prescribe")
            return f"rx-{len(started)}"

        @tool(kind="read")
        def weigh(patient: str) -> float:
            started.append("weigh")
            return 70.0 + len(started)

        @tool(kind="retriable", idempotent=True)
        def write(to: str) -> str:
            started.append("write")
            return f"letter to {to}"

        @tool
        def stamp(at: object) -> str:
            started.append("stamp")
            return "stamped"

        @stamp.compensate
        def unstamp() -> None:
            started.append("unstamp")

        self.order_lab, self.prescribe, self.weigh, self.write, self.stamp = order_lab, prescribe, weigh, write, stamp
        self.tools = [order_lab, prescribe, weigh, write, stamp]
        self.rt = Runtime(f"sqlite:///{path / 'ledger.db'}", tools=self.tools, **options)

    def visit(self, dose: int = 10) -> list[Any]:
        """The agent."""
        run: Run = current_run()
        lab = self.order_lab(patient="p")
        weights = [self.weigh(patient="p"), self.weigh(patient="p")]
        rx = self.prescribe(patient="p", dose=dose)
        return [lab, weights, rx, run.now(), run.uuid(), run.random().random()]

    def record(self, agent: Callable[[], Any], id: str = "visit", **options: Any) -> Any:
        """Run it live."""
        with self.rt.run(id, **options) as run:
            run.output = agent()
        self.started.clear()
        return run.output


@pytest.fixture
def clinic(tmp_path: Path) -> Iterator[Clinic]:
    made = Clinic(tmp_path)
    yield made
    made.rt.close()


def diverges(clinic: Clinic, agent: Callable[[], Any], how: str, **options: Any) -> Diverged:
    with pytest.raises(Diverged) as found, clinic.rt.replaying("visit", **options):
        agent()
    assert clinic.started == []
    assert found.value.how == how
    return found.value


# ---- the same -----------------------------------------------------------------------------


def test_a_replay_gives_what_the_run_gave_and_starts_no_body(clinic: Clinic) -> None:
    output = clinic.record(clinic.visit)
    assert clinic.rt.replay("visit", clinic.visit) == output
    assert clinic.rt.replay("visit", clinic.visit, dose=10) == output
    assert clinic.started == []


def test_a_replay_leaves_every_byte_of_the_ledger_as_it_was(clinic: Clinic, tmp_path: Path) -> None:
    clinic.record(clinic.visit)
    clinic.rt.close()
    ledger = tmp_path / "ledger.db"
    before = hashlib.sha256(ledger.read_bytes()).hexdigest()
    again = Clinic(tmp_path)
    again.rt.replay("visit", again.visit)
    diverges(again, lambda: again.visit(20), "arguments")
    again.rt.close()
    assert hashlib.sha256(ledger.read_bytes()).hexdigest() == before


def test_a_replay_from_a_bundle_needs_no_ledger(clinic: Clinic, tmp_path: Path) -> None:
    output = clinic.record(clinic.visit)
    bundle = clinic.rt.export("visit")
    elsewhere = Runtime(f"sqlite:///{tmp_path / 'none.db'}", tools=clinic.tools)
    assert elsewhere.replay(bundle, clinic.visit) == output
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(Diverged):
        elsewhere.replay(bundle, clinic.visit, 20)


def test_a_loaded_run_replays_where_it_was_loaded(clinic: Clinic, tmp_path: Path) -> None:
    output = clinic.record(clinic.visit)
    with Runtime(f"sqlite:///{tmp_path / 'other.db'}", tools=clinic.tools) as other:
        assert other.load(clinic.rt.export("visit")) == ["visit"]
        assert other.replay("visit", clinic.visit) == output


def test_errors_come_back_as_their_types(clinic: Clinic) -> None:
    def agent() -> str:
        try:
            clinic.order_lab(patient="p", test="none")
        except Declined as error:
            return str(error)
        return "done"

    assert clinic.record(agent) == "no such test"
    assert clinic.rt.replay("visit", agent) == "no such test"


def test_an_error_whose_type_is_not_at_hand_is_tool_failed(clinic: Clinic) -> None:
    class Hidden(Exception):
        """In no module."""

    @tool(kind="read")
    def fail() -> None:
        raise Hidden("what it said")

    clinic.rt.add(fail)

    def agent() -> list[str]:
        try:
            fail()
        except (Hidden, ToolFailed) as error:
            return [type(error).__name__, getattr(error, "message", str(error))]
        return []

    assert clinic.record(agent) == ["Hidden", "what it said"]
    assert clinic.rt.replay("visit", agent) == ["ToolFailed", "what it said"]


def test_what_the_program_raised_it_raises_again(clinic: Clinic) -> None:
    def agent() -> None:
        clinic.order_lab(patient="p")
        raise KeyError("mine")

    with pytest.raises(KeyError):
        clinic.record(agent)
    clinic.started.clear()
    with pytest.raises(KeyError, match="mine"):
        clinic.rt.replay("visit", agent)
    assert clinic.started == []


def test_a_program_that_opens_its_run_itself_is_given_the_record(clinic: Clinic) -> None:
    def agent(order: str) -> Any:
        with clinic.rt.run("visit", input=order) as run:
            run.output = clinic.visit()
        return run.output

    live = agent("x")
    clinic.started.clear()
    assert clinic.rt.replay("visit", agent, "x") == live
    with pytest.raises(Diverged) as other:
        clinic.rt.replay("visit", agent, "y")
    assert (other.value.how, other.value.diff) == ("input", {"input": ("x", "y")})


def test_what_is_staged_is_staged_again_and_done_when_the_run_had_ended(clinic: Clinic) -> None:
    letters: list[Staged[str]] = []

    def agent() -> list[Any]:
        letter = clinic.write(to="p")
        before = letter.done
        clinic.prescribe(patient="p", dose=1)
        letters.append(letter)
        return [before, isinstance(letter, Staged)]

    assert clinic.record(agent) == [False, True]
    assert clinic.rt.replay("visit", agent) == [False, True]
    with clinic.rt.replaying("visit") as run:
        agent()
        run.commit()
        assert letters[-1].result == "letter to p"


def test_a_run_that_waits_for_a_person_is_held_again(tmp_path: Path) -> None:
    clinic = Clinic(tmp_path)

    @tool(needs_approval=True)
    def operate(patient: str) -> str:
        clinic.started.append("operate")
        return "done"

    @operate.compensate
    def undo() -> None: ...

    clinic.rt.add(operate)

    def agent() -> Any:
        clinic.order_lab(patient="p")
        return operate(patient="p")

    with pytest.raises(Held), clinic.rt.run("visit"):
        agent()
    clinic.started.clear()
    with pytest.raises(Held) as held:
        clinic.rt.replay("visit", agent)
    assert held.value.approval.state == "pending"
    (asked,) = clinic.rt.approvals()
    clinic.rt.approve(asked.id, digest=asked.digest, by="ann")
    assert clinic.record(agent) == "done"
    assert clinic.rt.replay("visit", agent) == "done"
    assert clinic.started == []
    clinic.rt.close()


# ---- divergences --------------------------------------------------------------------------


def test_other_arguments_are_shown_beside_those_of_the_record(clinic: Clinic) -> None:
    clinic.record(clinic.visit)
    found = diverges(clinic, lambda: clinic.visit(20), "arguments")
    assert found.diff == {"dose": (10, 20)}
    assert found.given == {"patient": "p", "dose": 20}
    assert found.call.args == {"patient": "p", "dose": 10}
    assert '{"dose":10,"patient":"p"}' in str(found)
    assert '{"dose":20,"patient":"p"}' in str(found)


def test_each_way_to_leave_the_record_is_named(clinic: Clinic) -> None:
    clinic.record(clinic.visit)

    def other_tool() -> None:
        clinic.order_lab(patient="p")
        clinic.stamp(at=1)

    def reordered() -> None:
        clinic.weigh(patient="p")

    def early_end() -> None:
        clinic.order_lab(patient="p")
        clinic.weigh(patient="p")

    def once_more() -> None:
        clinic.order_lab(patient="p")
        for _ in range(3):
            clinic.weigh(patient="p")

    def past_the_end() -> None:
        clinic.visit()
        clinic.weigh(patient="p")

    diverges(clinic, other_tool, "tool")
    diverges(clinic, reordered, "order")
    assert "and 1 more" in str(diverges(clinic, early_end, "missing"))
    diverges(clinic, once_more, "extra")
    diverges(clinic, past_the_end, "past_end")
    diverges(clinic, lambda: [clinic.visit(), current_run().now()], "past_end")


def test_a_divergence_that_the_program_swallows_still_ends_the_replay(clinic: Clinic) -> None:
    clinic.record(clinic.visit)
    told: list[str] = []

    def agent() -> str:
        for dose in (20, 10):
            try:
                clinic.prescribe(patient="p", dose=dose)
            except Exception as error:
                told.append(type(error).__name__)
        try:
            told.append(str(clinic.weigh(patient="p")))  # what is past the divergence is not served
        except Exception as error:
            told.append(type(error).__name__)
        return "fine"

    with pytest.raises(Diverged):
        clinic.rt.replay("visit", agent)
    assert told == ["Diverged"] * 3


def test_a_model_is_not_told_of_a_divergence(clinic: Clinic) -> None:
    clinic.record(lambda: current_run().answer("weigh", {"patient": "p"}).text)
    with pytest.raises(Diverged):
        clinic.rt.replay("visit", lambda: current_run().answer("weigh", {"patient": "q"}).text)


def test_a_clock_a_die_and_an_id_of_the_programs_own_are_pointed_at(clinic: Clinic) -> None:
    clock = iter([datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)])
    clinic.record(lambda: clinic.stamp(at=next(clock)), "clock")
    clinic.record(lambda: clinic.stamp(at=str(uuid.uuid4())), "id")
    clinic.record(lambda: clinic.stamp(at=0.25), "die")
    for run, agent, spelled in (
        ("clock", lambda: clinic.stamp(at=next(clock)), "run.now()"),
        ("id", lambda: clinic.stamp(at=str(uuid.uuid4())), "run.uuid()"),
        ("die", lambda: clinic.stamp(at=0.75), "run.random()"),
    ):
        with pytest.raises(Diverged) as found:
            clinic.rt.replay(run, agent)
        assert spelled in found.value.hint


def test_not_strict_another_version_and_another_wording_of_what_means_nothing_pass(tmp_path: Path) -> None:
    old = Clinic(tmp_path)
    old.record(lambda: old.order_lab(patient="p", note="one"))
    old.rt.close()
    new = Clinic(tmp_path, version="2")
    found = diverges(new, lambda: new.order_lab(patient="p", note="one"), "version")
    assert "version 1" in str(found)
    with new.rt.replaying("visit", strict=False):
        assert new.order_lab(patient="p", note="two") == {"id": "lab-1"}
    new.rt.close()
    same = Clinic(tmp_path)
    assert diverges(same, lambda: same.order_lab(patient="p", note="two"), "arguments").diff == {"note": ("one", "two")}
    same.rt.close()


def test_until_a_call_the_block_ends_where_more_is_asked_for(clinic: Clinic) -> None:
    clinic.record(clinic.visit)
    calls = clinic.rt.report("visit").calls
    reached: list[str] = []
    with clinic.rt.replaying("visit", until=calls[1].id):
        clinic.order_lab(patient="p")
        reached.append(str(clinic.weigh(patient="p")))
        clinic.weigh(patient="p")
        reached.append("too far")
    assert reached == ["72.0"]
    with pytest.raises(UsageError, match="no call"), clinic.rt.replaying("visit", until="call_x"):
        pass
    with pytest.raises(Diverged), clinic.rt.replaying("visit", until=calls[3].id):
        clinic.order_lab(patient="p")


# ---- nothing leaves -----------------------------------------------------------------------


def connect() -> None:
    with socket.socket() as made:
        made.connect(("127.0.0.1", 9))


@pytest.mark.parametrize(
    "reach",
    [
        connect,
        lambda: socket.getaddrinfo("localhost", 80),
        lambda: subprocess.run(["true"], check=False),
        lambda: _in_thread(connect),
    ],
    ids=["socket", "name", "process", "thread"],
)
def test_code_that_goes_around_its_tools_is_stopped(clinic: Clinic, reach: Callable[[], object]) -> None:
    def agent() -> None:
        clinic.order_lab(patient="p")
        try:
            reach()
        except Exception:
            return

    clinic.record(lambda: clinic.order_lab(patient="p"))
    with pytest.raises(ReplayDenied):
        clinic.rt.replay("visit", agent)
    with socket.socket() as mine, pytest.raises(OSError, match="refused"):
        mine.connect(("127.0.0.1", 9))  # outside a replay everything is as before


def _in_thread(act: Callable[[], object]) -> None:
    def refused() -> None:
        with pytest.raises(ReplayDenied):
            act()

    thread = threading.Thread(target=refused)
    thread.start()
    thread.join()


def test_inside_a_replay_the_ledger_is_neither_asked_nor_told(clinic: Clinic) -> None:
    clinic.record(clinic.visit)
    with pytest.raises(ReplayDenied):
        clinic.rt.replay("visit", lambda: list(clinic.rt.runs()))
    other = Runtime("memory:", tools=[clinic.weigh])
    with pytest.raises((ReplayDenied, UsageError)):
        clinic.rt.replay("visit", lambda: other.run("x").__enter__())


# ---- side by side -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_parallel_calls_replay_whatever_order_they_finish_in(tmp_path: Path, seed: int) -> None:
    clinic = Clinic(tmp_path)
    chance, plan = Random(seed), Random(seed * 31)
    width, depth = plan.randrange(2, 5), plan.randrange(1, 4)

    def lane(number: int) -> list[Any]:
        told: list[Any] = []
        for turn in range(depth):
            threading.Event().wait(chance.random() * 0.004)
            told.append(clinic.order_lab(patient=f"{number}-{turn % 2}"))
            told.append(clinic.weigh(patient=f"{number}"))
        return told

    def agent() -> list[Any]:
        run: Run = current_run()
        first = clinic.weigh(patient="all")
        lanes = [run.submit(lane, number) for number in range(width)]
        return [first, *(one.result() for one in lanes), clinic.weigh(patient="all")]

    output = clinic.record(agent)
    for _ in range(3):
        assert clinic.rt.replay("visit", agent) == output
    assert clinic.started == []
    clinic.rt.close()


def test_a_group_of_a_plan_replays_in_any_order(clinic: Clinic) -> None:
    group = [{"tool": "weigh", "args": {"patient": str(n)}} for n in range(4)]

    def agent() -> list[str]:
        return [one.text for one in current_run().execute([group, {"tool": "order_lab", "args": {"patient": "p"}}])]

    assert clinic.record(agent) == clinic.rt.replay("visit", agent)


def test_a_run_that_is_let_go_and_opened_again_by_its_program_is_given_again(clinic: Clinic) -> None:
    def request(patient: str, *, ends: bool = False) -> list[Any]:
        run = clinic.rt.open("r", history=True)
        answer = run.answer("order_lab", {"patient": patient})
        run.leave(None if ends else Waiting("the run goes on with the next request", run_id="r"))
        return [answer.status, answer.text]

    def client() -> list[Any]:
        told = [request("p1"), request("p1"), request("p2", ends=True)]
        return [*told, clinic.rt.report("r").state]

    live = client()
    assert ([one[0] for one in live[:3]], live[3]) == (["done", "replayed", "done"], "committed")
    clinic.started.clear()
    assert clinic.rt.replay("r", client) == live
    assert clinic.started == []


def test_plain_calls_are_answered_from_the_record_without_making_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool
    def note(line: int) -> dict[str, int]:
        return {"line": line}

    @note.compensate
    def erase(line: int) -> None: ...

    def program(lines: int) -> list[dict[str, int]]:
        return [note(line) for line in range(lines)]

    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[note]) as rt:
        with rt.run("plain"):
            live = program(5)
        made: list[str] = []

        def direct_ask(*args: Any) -> Any:
            made.append(args[2].name)
            return requests.direct_ask(*args)

        monkeypatch.setattr("amends.replay.run.direct_ask", direct_ask)
        told: list[dict[str, int]] = []
        rt.replay("plain", lambda: told.extend(program(5)))
        assert (told, made) == (live, [])
        with pytest.raises(Diverged):
            rt.replay("plain", program, 6)
        assert made == ["note"], "what the record does not have is a request, which ends the replay"
        with pytest.raises(Diverged):
            rt.replay("plain", program, 4)


def test_a_report_in_a_replay_has_the_calls_that_bodies_made(tmp_path: Path) -> None:
    @tool(kind="read")
    def look() -> int:
        return 7

    @tool(kind="pivot")
    def act() -> int:
        return look() + 1

    def program() -> list[str]:
        act()
        return [call.tool for call in current_run().report().calls]

    with Runtime(f"sqlite:///{tmp_path / 'ledger.db'}", tools=[look, act]) as rt:
        with rt.run("r"):
            told = program()
        assert told == ["act", "look"]
        assert rt.replay("r", program) == told
