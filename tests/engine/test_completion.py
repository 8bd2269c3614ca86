"""Two outcomes: a run is complete, or it is taken back; past its pivot it is blocked until it is finished."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Report, RolledBack, RunBlocked, Runtime, ToolCall, UsageError, Waiting, tool
from amends.errors import NOT_FINISHED

SECRET_KEY = "c2VjcmV0LWtleS1mb3ItdGVzdHMtb25seS0zMi1ieXRlcw"


class Trip:
    """A world of bookings; ``full``: cities without a room."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.full = {"Rome"}

    def tools(self) -> list[Any]:
        @tool
        def flight(to: str) -> str:
            self.done.append(f"flight {to}")
            return f"F-{to}"

        @flight.compensate
        def cancel_flight(to: str) -> None:
            self.done.append(f"cancel flight {to}")

        @tool
        def hotel(city: str) -> str:
            if city in self.full:
                raise ValueError("no rooms")
            self.done.append(f"hotel {city}")
            return f"H-{city}"

        @hotel.compensate
        def cancel_hotel(city: str) -> None:
            self.done.append(f"cancel hotel {city}")

        @tool(key="seat")
        def seat(seat: str, cents: int) -> str:
            if cents < 100:
                raise ValueError("too cheap")
            self.done.append(f"seat {seat}")
            return seat

        @seat.compensate
        def free(seat: str) -> None:
            self.done.append(f"free {seat}")

        @tool(on_failure="continue")
        def tip(cents: int) -> str:
            raise ValueError("nobody takes it")

        @tip.compensate
        def untip(cents: int) -> None: ...

        @tool(kind="read")
        def weather(city: str) -> str:
            raise ValueError("the sky is closed")

        @tool(kind="pivot")
        def pay(cents: int) -> str:
            if cents < 0:
                raise ValueError("declined")
            self.done.append(f"pay {cents}")
            return "paid"

        @tool(kind="retriable", idempotent=True)
        def mail(to: str) -> str:
            self.done.append(f"mail {to}")
            return "sent"

        @tool
        def package(city: str, other: str) -> str:
            try:
                return str(hotel(city=city))
            except ValueError:
                return str(hotel(city=other))

        @package.compensate
        def unpack(result: str) -> None: ...

        return [flight, hotel, seat, tip, weather, pay, mail, package]


@pytest.fixture
def trip() -> Trip:
    return Trip()


@pytest.fixture
def rt(trip: Trip, tmp_path: Path) -> Iterator[Runtime]:
    with Runtime(f"sqlite:///{tmp_path / 'trip.db'}", tools=trip.tools()) as rt:
        yield rt
        rt.verify().raise_if_broken()


def taken_back(rt: Runtime, program: Callable[[Any], object], id: str = "r", **options: Any) -> Report:
    """The report of a run that was not complete: it must be rolled back, and raise."""
    with pytest.raises(RolledBack) as raised, rt.run(id, **options) as run:
        program(run)
    assert raised.value.report.state == "rolled_back"
    found: Report = rt.report(id)
    assert found.state == "rolled_back"
    return found


def asks(*calls: tuple[str, dict[str, Any]]) -> Callable[[Any], None]:
    """A program that lets a model ask for these calls, and does not care what came of them."""

    def program(run: Any) -> None:
        for name, args in calls:
            run.answer(name, args)

    return program


FLIGHT = ("flight", {"to": "Rome"})
NO_ROOM = ("hotel", {"city": "Rome"})
ROOM = ("hotel", {"city": "Pisa"})
PAY = ("pay", {"cents": 5})


# ---- what a run requires ------------------------------------------------------------------


def test_a_run_that_is_left_without_what_it_requires_is_taken_back(rt: Runtime, trip: Trip) -> None:
    report = taken_back(rt, asks(FLIGHT), requires=["hotel"])
    assert trip.done == ["flight Rome", "cancel flight Rome"]
    assert [(one.tool, one.why, one.call) for one in report.missing] == [("hotel", "hotel has not succeeded", None)]
    assert "! missing: hotel has not succeeded" in str(report)
    assert report.to_dict()["missing"] == [{"tool": "hotel", "why": "hotel has not succeeded", "call": None}]


def test_a_run_that_has_what_it_requires_commits(rt: Runtime, trip: Trip) -> None:
    with rt.run("r", requires=["hotel", "flight"]) as run:
        asks(FLIGHT, NO_ROOM, ROOM)(run)
    assert rt.report("r").state == "committed"
    assert rt.report("r").missing == ()
    assert trip.done == ["flight Rome", "hotel Pisa"]


def test_a_tool_itself_and_one_name_alone_can_be_required(rt: Runtime, trip: Trip) -> None:
    hotel = trip.tools()[1]
    for id, requires in (("a", hotel), ("b", "hotel"), ("c", [hotel]), ("d", {"hotel"})):
        taken_back(rt, asks(FLIGHT), id, requires=requires)


@pytest.mark.parametrize(
    "call",
    [
        {"tool": "hotel", "args": {"city": "Pisa"}},
        ("hotel", {"city": "Pisa"}),
        ToolCall("hotel", {"city": "Pisa"}),
        ToolCall("hotel", '{"city": "Pisa"}'),
    ],
    ids=["plan", "pair", "call", "json"],
)
def test_a_call_can_be_required_with_its_arguments(rt: Runtime, trip: Trip, call: Any) -> None:
    trip.full = set()
    report = taken_back(rt, asks(NO_ROOM), requires=[call])
    assert [one.why for one in report.missing] == ["hotel(city=Pisa) has not succeeded"]
    with rt.run("again", requires=[call]) as run:
        asks(NO_ROOM, ROOM)(run)
    assert rt.report("again").state == "committed"


def test_a_function_of_the_report_can_say_when_it_is_complete(rt: Runtime, trip: Trip) -> None:
    def two_flights(report: Report) -> bool:
        return sum(call.tool == "flight" and call.state == "succeeded" for call in report.calls) == 2

    report = taken_back(rt, asks(FLIGHT), requires=two_flights)
    assert "two_flights is not met" in report.missing[0].why
    with rt.run("two", requires=["flight", two_flights]) as run:
        asks(FLIGHT, ("flight", {"to": "Pisa"}))(run)
    assert rt.report("two").state == "committed"


@pytest.mark.parametrize("wrong", [lambda _: None, lambda _: "yes", lambda _: 1 / 0], ids=["None", "text", "raises"])
def test_a_function_that_says_no_clear_yes_lets_nothing_pass(rt: Runtime, trip: Trip, wrong: Any) -> None:
    taken_back(rt, asks(FLIGHT), requires=wrong)
    assert trip.done == ["flight Rome", "cancel flight Rome"]


def test_what_cannot_be_required_is_refused_before_anything_is_opened(rt: Runtime) -> None:
    async def later(report: Report) -> bool:
        return True

    wrongs: tuple[Any, ...] = (
        ["hotle"], [later], later, [("hotel", {"town": "x"})], [("hotel", 5)], 7, [7], [{"name": "hotel"}], [None],
        [("hotel", {"city": object()})], ["hotel"] * 101,
    )  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(UsageError), rt.run("never", requires=wrong):
            pytest.fail("it was opened")
    with pytest.raises(UsageError), rt.run("never", on_open_failure="ignore"):  # type: ignore[arg-type]
        pytest.fail("it was opened")
    assert list(rt.runs()) == []


def test_a_staged_call_counts_as_done_and_is_dropped_if_something_else_is_missing(rt: Runtime, trip: Trip) -> None:
    with rt.run("r", requires=["mail"]) as run:
        asks(FLIGHT, ("mail", {"to": "ada"}))(run)
    assert trip.done == ["flight Rome", "mail ada"]
    report = taken_back(rt, asks(("mail", {"to": "bob"})), "two", requires=["mail", "hotel"])
    assert [one.tool for one in report.missing] == ["hotel"]
    assert "mail bob" not in trip.done


def test_an_exception_rolls_back_as_ever_and_comes_out_as_itself(rt: Runtime) -> None:
    with pytest.raises(KeyError), rt.run("r", requires=["hotel"]):
        raise KeyError("mine")
    assert rt.report("r").state == "rolled_back"


def test_what_a_child_did_counts_unless_it_was_taken_back(rt: Runtime, trip: Trip) -> None:
    with rt.run("r", requires=["hotel"]) as run, run.child("inner") as inner:
        asks(ROOM)(inner)
    assert rt.report("r").state == "committed"

    def undone(run: Any) -> None:
        with pytest.raises(KeyError), run.child("inner") as inner:
            asks(ROOM)(inner)
            raise KeyError("no")

    taken_back(rt, undone, "two", requires=["hotel"])


# ---- after the pivot ----------------------------------------------------------------------


def test_after_the_pivot_it_is_blocked_and_can_be_finished_by_whoever_opens_it_again(rt: Runtime, trip: Trip) -> None:
    with pytest.raises(RunBlocked) as raised, rt.run("r", requires=["mail"]) as run:
        asks(FLIGHT, PAY)(run)
    assert [one.tool for one in raised.value.missing] == ["mail"]
    assert "not finished: mail has not succeeded" in raised.value.for_model()
    report = rt.report("r")
    assert (report.state, report.run.goal, trip.done) == ("blocked", None, ["flight Rome", "pay 5"])
    assert report.run.causes[0].startswith("incomplete: mail has not succeeded: open run 'r' again")
    with rt.run("r") as run:
        asks(("mail", {"to": "ada"}))(run)
    assert rt.report("r").state == "committed"
    assert trip.done[-1] == "mail ada"


def test_after_the_pivot_a_person_can_close_it_as_it_is(rt: Runtime) -> None:
    with pytest.raises(RunBlocked), rt.run("r", requires=["mail"]) as run:
        asks(FLIGHT, PAY)(run)
    report = rt.finish("r", by="ann", why="the customer phoned")
    assert report.state == "committed"
    assert [one.tool for one in report.missing] == ["mail"], "what is missing stays named"


def test_after_the_pivot_the_staged_calls_still_run(rt: Runtime, trip: Trip) -> None:
    with pytest.raises(RunBlocked), rt.run("r", requires=["hotel"]) as run:
        asks(FLIGHT, ("mail", {"to": "ada"}), PAY)(run)
    assert trip.done == ["flight Rome", "pay 5", "mail ada"]


# ---- child runs ---------------------------------------------------------------------------


def test_a_child_is_not_judged_by_what_its_root_requires(rt: Runtime, trip: Trip) -> None:
    with rt.run("r", requires=["hotel"]) as run:
        with run.child("c"):
            asks(FLIGHT)(run)
        assert run.once("call", lambda: "done") == "done"
        asks(("hotel", {"city": "Oslo"}))(run)
    assert rt.report("r").state == "committed"
    assert [child.state for child in rt.report("r").children] == ["committed", "committed"]


def test_a_root_that_lacks_something_after_its_children_is_judged_at_its_own_end(rt: Runtime, trip: Trip) -> None:
    with pytest.raises(RolledBack) as raised, rt.run("r", requires=["hotel"]) as run, run.child("c"):
        asks(FLIGHT)(run)
    assert [one.tool for one in raised.value.report.missing] == ["hotel"]
    assert trip.done == ["flight Rome", "cancel flight Rome"]


def test_an_agent_that_is_incomplete_after_its_pivot_blocks_its_parent_until_it_is_finished(tmp_path: Path) -> None:
    @tool(kind="pivot")
    def wire(to: str) -> str:
        return to

    @tool
    def reserve(name: str) -> str:
        raise ValueError("no")

    @reserve.compensate
    def release(result: str) -> None: ...

    @tool(kind="agent")
    def clerk(task: str) -> str:
        with contextlib.suppress(ValueError):
            reserve("a")
        wire("ada")
        return "done"

    with Runtime(f"sqlite:///{tmp_path / 'agents.db'}", tools=[wire, reserve, clerk]) as rt:
        with pytest.raises(RunBlocked, match="incomplete: reserve failed"), rt.run("r"):
            with pytest.raises(RunBlocked, match="incomplete: reserve failed"):
                clerk(task="pay")
        report = rt.report("r")
        assert (report.state, [child.state for child in report.children]) == ("blocked", ["blocked"])
        assert report.run.causes == report.children[0].run.causes
        assert sum(1 for _ in rt.events("r")) < 40
        assert rt.finish(report.children[0].run_id, by="ann", why="nobody misses it").state == "committed"
        assert [run.state for run in rt.recover()] == ["committed"]
        assert rt.verify().ok


# ---- open failures ------------------------------------------------------------------------


def test_by_default_a_tool_error_is_not_a_failure_of_the_run(rt: Runtime) -> None:
    with rt.run("r") as run:
        asks(FLIGHT, NO_ROOM)(run)
    assert rt.report("r").state == "committed"
    assert rt.report("r").missing == ()


def test_an_open_failure_takes_the_run_back_where_that_was_said(rt: Runtime, trip: Trip) -> None:
    report = taken_back(rt, asks(FLIGHT, NO_ROOM), on_open_failure="rollback")
    assert trip.done == ["flight Rome", "cancel flight Rome"]
    [missing] = report.missing
    assert (missing.tool, missing.why) == ("hotel", "hotel failed: ValueError: no rooms")
    assert missing.call is not None
    assert missing.call.args == {"city": "Rome"}


def test_with_commit_it_is_committed_and_the_report_names_what_is_missing(rt: Runtime) -> None:
    with rt.run("r", on_open_failure="commit") as run:
        asks(FLIGHT, NO_ROOM)(run)
    report = rt.report("r")
    assert (report.state, [one.tool for one in report.missing]) == ("committed", ["hotel"])
    assert "no pivot was reached (pay)" in str(report)


@pytest.mark.parametrize(
    "calls, open_",
    [
        ([NO_ROOM, ROOM], []),  # no key is declared: any later success of the tool is as good
        ([ROOM, NO_ROOM], ["hotel"]),  # an earlier success makes nothing good
        ([("seat", {"seat": "1A", "cents": 5}), ("seat", {"seat": "1B", "cents": 500})], ["seat"]),  # another key
        ([("seat", {"seat": "1A", "cents": 5}), ("seat", {"seat": "1A", "cents": 500})], []),  # the same key
        ([("weather", {"city": "Rome"})], []),  # a read has no effect
        ([("tip", {"cents": 5})], []),  # it was declared that its failure does not matter
        ([("package", {"city": "Rome", "other": "Pisa"})], []),  # the body around it helped itself
        ([("package", {"city": "Rome", "other": "Rome"})], ["package"]),
        ([("nothing", {}), ("hotel", {"town": "x"}), ("hotel", {"city": 5})], []),  # refused: never a call
        ([("pay", {"cents": -1})], ["pay"]),
        ([("pay", {"cents": -1}), PAY], []),
    ],
)
def test_what_is_open(rt: Runtime, calls: Any, open_: list[str]) -> None:
    if open_:
        report = taken_back(rt, asks(FLIGHT, *calls), on_open_failure="rollback")
        assert [one.tool for one in report.missing] == open_
    else:
        with rt.run("r", on_open_failure="rollback") as run:
            asks(FLIGHT, *calls)(run)
        assert rt.report("r").state == "committed"


def test_of_parallel_calls_none_makes_good_another_one(rt: Runtime) -> None:
    def program(run: Any) -> None:
        run.answer_all([ToolCall(*NO_ROOM), ToolCall(*ROOM), ToolCall("hotel", {"city": "Bari"})])

    report = taken_back(rt, program, on_open_failure="rollback")
    assert [one.tool for one in report.missing] == ["hotel"]


def test_a_failure_inside_a_child_is_open_too(rt: Runtime) -> None:
    def program(run: Any) -> None:
        with run.child("inner") as inner:
            asks(NO_ROOM)(inner)

    taken_back(rt, program, on_open_failure="rollback")


def test_after_the_pivot_an_open_failure_blocks(rt: Runtime, trip: Trip) -> None:
    with pytest.raises(RunBlocked) as raised, rt.run("r", on_open_failure="rollback") as run:
        asks(FLIGHT, NO_ROOM, PAY)(run)
    assert [one.tool for one in raised.value.missing] == ["hotel"]
    assert rt.report("r").run.causes[0].startswith("incomplete: hotel failed: ValueError: no rooms")


# ---- the model is told once ---------------------------------------------------------------


def test_a_model_that_is_about_to_stop_is_told_once(rt: Runtime) -> None:
    def program(run: Any) -> None:
        asks(FLIGHT, NO_ROOM)(run)
        text = run.before_end()
        assert text.startswith(f"{NOT_FINISHED} hotel failed: ValueError: no rooms. If you stop now, everything")
        assert run.before_end() == ""

    taken_back(rt, program)


def test_the_word_of_the_program_holds(rt: Runtime) -> None:
    with rt.run("r", on_open_failure="commit") as run:
        asks(FLIGHT, NO_ROOM)(run)
        assert run.before_end() == ""
        assert run.on_open_failure == "commit"
    assert rt.report("r").state == "committed"


def test_past_the_pivot_the_text_promises_no_way_back(rt: Runtime) -> None:
    with pytest.raises(RunBlocked), rt.run("r", requires="mail") as run:
        asks(FLIGHT, PAY)(run)
        assert "nothing is taken back: if you stop now, a person is asked" in run.before_end()


# ---- other processes ----------------------------------------------------------------------


def test_a_worker_that_commits_the_run_judges_it_by_the_record(tmp_path: Path) -> None:
    done: list[str] = []

    def tools() -> list[Any]:
        @tool
        def flight() -> str:
            return "F"

        @flight.compensate
        def cancel() -> None:
            done.append("cancel")

        @tool(needs_approval=True)
        def hotel() -> str:
            raise ValueError("no rooms")

        @hotel.compensate
        def unbook() -> None: ...

        return [flight, hotel]

    url = f"sqlite:///{tmp_path / 'l.db'}"
    with Runtime(url, tools=tools()) as rt:
        with pytest.raises(Exception, match="waits for a person"), rt.run("r", on_open_failure="rollback") as run:
            run.answer("flight", {})
            run.answer("hotel", {})
        [asked] = rt.approvals()
        rt.approve(asked.id, digest=asked.digest, by="ann")
    with Runtime(url, tools=tools()) as worker:
        worker.recover()
        report = worker.report("r")
    assert (report.state, done) == ("rolled_back", ["cancel"])
    assert [one.tool for one in report.missing] == ["hotel"]


def test_a_worker_without_the_programs_check_asks_for_the_program(tmp_path: Path) -> None:
    def tools() -> list[Any]:
        @tool(needs_approval=True)
        def hotel() -> str:
            return "H"

        @hotel.compensate
        def unbook() -> None: ...

        return [hotel]

    url = f"sqlite:///{tmp_path / 'l.db'}"
    asked: list[str] = []

    def fine(report: Report) -> bool:
        asked.append(report.run_id)
        return True

    with Runtime(url, tools=tools()) as rt:
        with pytest.raises(Exception, match="waits for a person"), rt.run("r", requires=fine) as run:
            run.answer("hotel", {})
        [one] = rt.approvals()
        rt.approve(one.id, digest=one.digest, by="ann")
    with Runtime(url, tools=tools()) as worker:
        worker.recover()
        report = worker.report("r")
        assert (report.state, asked) == ("blocked", [])
        assert "only the program that opened it can say" in report.run.causes[0]
        with worker.run("r", requires=fine):
            pass
        assert (worker.report("r").state, asked) == ("committed", ["r"])


def test_after_the_pivot_a_worker_without_the_programs_check_names_verbs_that_go_forward(tmp_path: Path) -> None:
    url, trip = f"sqlite:///{tmp_path / 'l.db'}", Trip()
    with Runtime(url, tools=trip.tools(), interrupted="commit", lease=0.05) as rt:
        with pytest.raises(Waiting), rt.run("r", requires=lambda report: True) as run:
            run.answer("pay", {"cents": 1})
            raise Waiting("later")
    time.sleep(0.1)  # a run that its program left is left alone for one lease
    with Runtime(url, tools=trip.tools()) as worker:
        worker.recover()
        report = worker.report("r")
        assert report.state == "blocked"
        assert "rt.finish('r'" in report.run.causes[0]
        assert "rt.rollback" not in report.run.causes[0]
        assert worker.finish("r", by="ann", why="it is met").state == "committed"


def test_what_a_child_had_taken_back_before_is_named_in_the_report(rt: Runtime) -> None:
    with pytest.raises(RolledBack) as no, rt.run("r", requires=["flight", "hotel"]) as run:
        run.answer("flight", {"to": "Oslo"})
        with pytest.raises(KeyError), run.child() as child:
            child.answer("hotel", {"city": "Oslo"})
            raise KeyError("no breakfast")
    for report in (no.value.report, rt.report("r")):
        assert [(one.tool, one.why) for one in report.missing] == [("hotel", "hotel has not succeeded")]


def test_what_can_be_read_only_once_cannot_be_required(rt: Runtime) -> None:
    with pytest.raises(UsageError, match="read only once"), rt.run("r", requires=(one for one in ["hotel"])):
        pass
    assert list(rt.runs()) == []


def test_a_fork_requires_what_its_source_does(rt: Runtime) -> None:
    with rt.run("r", requires="hotel") as run:
        asks(FLIGHT, ROOM)(run)
    first = rt.report("r").calls[0]
    fork = rt.fork("r", at=first.id)
    with pytest.raises(RolledBack), rt.run(fork):
        pass


def test_it_is_recorded_replayed_and_exported(rt: Runtime, tmp_path: Path) -> None:
    def program(run: Any) -> str:
        asks(FLIGHT, NO_ROOM)(run)
        return str(run.before_end())

    with pytest.raises(RolledBack), rt.run("r", requires=["hotel"]) as run:
        program(run)
    told: list[str] = []

    def again() -> None:
        with rt.run("r", requires=["hotel"]) as run:
            told.append(program(run))

    with pytest.raises(RolledBack):
        rt.replay("r", again)
    assert told[0].startswith(NOT_FINISHED)
    bundle = rt.export("r")
    with Runtime(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.load(bundle)
        assert [one.tool for one in other.report("r").missing] == ["hotel"]


def test_tampering_with_what_is_required_is_found(trip: Trip, tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "t.db"
    with Runtime(f"sqlite:///{path}", tools=trip.tools()) as rt, rt.run("r", requires="flight") as run:
        asks(FLIGHT)(run)
    with sqlite3.connect(path) as db:
        db.execute("update amends_run set completion = ?", (json.dumps({"on_open_failure": "commit"}),))
    db.close()
    with Runtime(f"sqlite:///{path}") as rt:
        assert [problem.how for problem in rt.verify().problems] == ["row_changed"]


def test_in_an_encrypted_ledger_reasons_are_encrypted_and_values_are_not_required(trip: Trip, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = tmp_path / "e.db"
    with Runtime(f"sqlite:///{path}", tools=trip.tools(), encrypt=SECRET_KEY) as rt:
        with pytest.raises(UsageError), rt.run("never", requires=[ROOM]):
            pytest.fail("it was opened")
        with pytest.raises(RolledBack), rt.run("r", on_open_failure="rollback") as run:
            asks(FLIGHT, NO_ROOM)(run)
        assert rt.report("r").missing[0].why == "hotel failed: ValueError: no rooms"
        assert rt.verify().ok
    assert b"no rooms" not in path.read_bytes()


def test_a_registered_agent_can_be_started_with_what_it_requires(trip: Trip) -> None:
    with Runtime("memory:", tools=trip.tools(), agents={"a": lambda run: asks(FLIGHT)(run)}) as rt:
        with pytest.raises(RolledBack):
            rt.start("a", id="r", requires=["hotel"])
        assert rt.report("r").state == "rolled_back"


def test_a_committed_run_is_not_judged_again(rt: Runtime) -> None:
    with rt.run("r") as run:
        asks(FLIGHT)(run)
    with rt.run("r", requires=["hotel"]):
        pass
    assert rt.report("r").state == "committed"


# ---- on an event loop ---------------------------------------------------------------------


def test_the_same_on_an_event_loop(tmp_path: Path) -> None:
    done: list[str] = []

    @tool
    async def flight(to: str) -> str:
        done.append(f"flight {to}")
        return to

    @flight.compensate
    async def cancel(to: str) -> None:
        done.append(f"cancel {to}")

    @tool
    async def hotel(city: str) -> str:
        raise ValueError("no rooms")

    @hotel.compensate
    async def unbook(city: str) -> None: ...

    @tool(kind="pivot")
    async def pay(cents: int) -> str:
        return "paid"

    async def main() -> None:
        rt = AsyncRuntime(f"sqlite:///{tmp_path / 'a.db'}", tools=[flight, hotel, pay])
        with pytest.raises(RolledBack):
            async with rt.run("r", requires=["hotel"]) as run:
                await run.answer(*FLIGHT)
        with pytest.raises(RolledBack):
            async with rt.run("s") as run:
                await run.answer(*FLIGHT)
                await run.answer(*NO_ROOM)
                assert (await run.before_end()).startswith(NOT_FINISHED)
        with pytest.raises(RunBlocked):
            async with rt.run("t", requires=lambda report: False) as run:
                await run.answer(*FLIGHT)
                await run.answer(*PAY)
        assert [(await rt.report(id)).state for id in "rst"] == ["rolled_back", "rolled_back", "blocked"]
        run = await rt.open("u", on_open_failure="rollback")
        await run.answer(*NO_ROOM)
        with pytest.raises(RolledBack):
            await run.commit()
        await rt.close()

    asyncio.run(main())
    assert done == ["flight Rome", "cancel Rome", "flight Rome", "cancel Rome", "flight Rome"]
