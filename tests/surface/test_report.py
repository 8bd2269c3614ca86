"""Reading: reports as a table, HTML and JSON; filters; events."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from amends import RunBlocked, UsageError, tool
from amends.states import CALL_MOVES, RUN_MOVES
from amends.stores.memory import MemoryStore
from tests.world import ONCE, World, runtime


def _story(rt, world: World, *tools) -> None:
    a, b, mail, wire = tools
    with rt.run("good", tags=["eu"], agent="clerk", principal="user:1"):
        a()
        a()
        mail()
        wire()
    world.script["undo b"] = [ValueError("<no way>")]
    with pytest.raises(RunBlocked), rt.run("bad", agent="robot"):
        a()
        b()
        raise KeyError
    world.script["a"] = [ValueError("declined")]
    with rt.run("third"), pytest.raises(ValueError):
        a()


@pytest.fixture
def told():
    world, store = World(), MemoryStore()
    tools = (
        world.compensatable("a"),
        world.compensatable("b", twin={"retry": ONCE}),
        world.retriable(),
        world.pivot(),
    )
    rt = runtime(*tools, store=store)
    _story(rt, world, *tools)
    return rt, store


def test_a_report_is_a_table_for_people(told) -> None:
    rt, _ = told
    text = str(rt.report("good"))
    assert text.splitlines()[0].startswith("run good")
    for word in (
        "a ",
        "compensatable",
        "✓ succeeded",
        "mail",
        "retriable",
        "wire",
        "pivot",
        "= committed",
        "1x from the record",
    ):
        assert word in text
    text = str(rt.report("bad"))
    assert "! left standing: b" in text
    assert "rt.retry(" in text
    assert "= blocked" in text


def test_a_report_is_html_in_a_notebook_and_escapes_what_tools_said(told) -> None:
    rt, _ = told
    html = rt.report("bad")._repr_html_()
    assert html.startswith("<table>")
    assert "&lt;no way&gt;" in html
    assert "<no way>" not in html


def test_a_report_is_plain_json_data(told) -> None:
    rt, _ = told
    for run in rt.runs():
        report = rt.report(run.id)
        assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    found = rt.report("bad").to_dict()
    assert found["run"]["state"] == "blocked"
    assert [left["tool"] for left in found["residue"]] == ["b"]


def test_a_report_of_any_values_is_plain_json_data() -> None:
    @tool
    def make(what: Decimal, when: datetime) -> dict[str, object]:
        return {"set": {1, 2}, "bytes": b"x", "when": when}

    make.compensate(lambda: None)
    rt = runtime(make)
    with rt.run("r", input={"d": Decimal(1)}) as run:
        make(what=Decimal("1.5"), when=datetime(2026, 1, 1, tzinfo=UTC))
        run.output = (1, {2})
        child_of = run
    assert json.loads(rt.report("r").to_json())
    assert child_of.report().state == "committed"


def test_runs_are_listed_newest_first_and_filtered(told) -> None:
    rt, _ = told
    assert [run.id for run in rt.runs()] == ["third", "bad", "good"]
    assert [run.id for run in rt.runs("status:blocked")] == ["bad"]
    assert [run.id for run in rt.runs("status:committed,blocked run:*d")] == ["third", "bad", "good"]
    assert [run.id for run in rt.runs("agent:clerk")] == ["good"]
    assert [run.id for run in rt.runs("principal:user:1")] == ["good"]
    assert [run.id for run in rt.runs("tag:eu")] == ["good"]
    assert [run.id for run in rt.runs("tag:us")] == []


def test_calls_are_listed_newest_first_and_filtered(told) -> None:
    rt, _ = told
    assert [call.run_id for call in rt.calls("tool:a")] == ["third", "bad", "good"]
    assert [call.tool for call in rt.calls("status:compensation_failed")] == ["b"]
    assert [call.tool for call in rt.calls("kind:pivot,retriable run:good")] == ["wire", "mail"]
    assert [call.tool for call in rt.calls("tool:m*")] == ["mail"]
    assert rt.call(next(rt.calls("tool:wire")).id).tool == "wire"


@pytest.mark.parametrize("bad", ["colour:red", "status:happy", "committed", "status:"])
def test_a_filter_that_is_not_understood_says_what_is(told, bad) -> None:
    rt, _ = told
    with pytest.raises(UsageError) as error:
        list(rt.runs(bad))
    assert error.value.hint


def test_many_runs_and_calls_come_page_by_page_without_a_gap() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with rt.run("r"):
        for n in range(450):
            a(x=str(n))
    assert [call.args["x"] for call in rt.calls()] == [str(n) for n in reversed(range(450))]
    assert len(list(rt.events())) >= 900
    for n in range(205):
        with rt.run(f"s{n}"):
            pass
    assert len(list(rt.runs())) == 206


def test_events_are_in_ledger_order_and_can_be_read_from_a_place_on(told) -> None:
    rt, _ = told
    events = list(rt.events())
    assert [event.at for event in events] == sorted(event.at for event in events)
    middle = len(events) // 2
    assert list(rt.events(after=events[middle].place)) == events[middle + 1 :]
    assert rt.newest_event() == events[-1]
    bad = list(rt.events("bad"))
    assert {event.run_id for event in bad} == {"bad"}
    assert [event.seq for event in bad] == list(range(1, len(bad) + 1))
    assert rt.newest_event("bad") == bad[-1]
    assert list(rt.events("bad", after=bad[2].seq)) == list(rt.events("bad", after=bad[2].place)) == bad[3:]
    other = next(event for event in events if event.run_id != "bad")
    for run_id, after in (("bad", other.place), (None, 3), (None, "nonsense"), ("bad", "1.2")):
        with pytest.raises(UsageError):
            list(rt.events(run_id, after=after))
    with pytest.raises(UsageError):
        list(rt.events("nope"))


def test_every_transition_has_exactly_one_event_and_the_events_tell_the_states(told) -> None:
    _, store = told
    calls: dict[str, str] = {}
    runs: dict[str, str] = {}
    for event in store.events:
        if event.what == "call":
            assert calls.get(event.call, "(new)") == event.frm
            assert event.to_state in CALL_MOVES[event.frm]
            calls[event.call] = event.to_state
        elif event.what == "run":
            assert runs.get(event.run, "(new)") == event.frm
            assert event.to_state in RUN_MOVES[event.frm]
            runs[event.run] = event.to_state
    assert calls == {row.id: row.state for row in store.calls.values()}
    assert runs == {row.uid: row.state for row in store.runs.values()}


def test_a_run_that_is_not_there_is_said_not_to_be() -> None:
    with pytest.raises(UsageError):
        runtime().report("nope")
