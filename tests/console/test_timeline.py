"""The timeline of a run: how a call spent its time, to scale, as plain numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from amends import Call, Event, Report, RunInfo
from amends.model import Compensation
from amends.serve.console import timeline
from amends.serve.console.timeline import Line, Mark, Row, Span, Window

BEGAN = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(s: float) -> datetime:
    return BEGAN + timedelta(seconds=s)


def event(
    s: float, frm: str, to: str, call: str | None = "c", run: str = "r", what: str = "call", **facts: Any
) -> Event:
    return Event(seq=1, at=at(s), run_id=run, call_id=call, what=what, frm=frm, to=to, by="me", facts=facts)


def call(id: str = "c", tool: str = "pay", **given: Any) -> Call:
    facts: dict[str, Any] = {"run_id": "r", "tool": tool, "version": "1", "args": {}, "id": id}
    facts |= {"requested_at": at(0), "started_at": at(0), "settled_at": at(1), "state": "succeeded"}
    return Call(**facts | given)


def row(*spans: Span, of: Call | None = None) -> Row:
    return Row(Line(RunInfo("r", "open"), 0, of or call()), spans)


def test_every_attempt_every_wait_and_the_compensation_are_spans_of_their_own() -> None:
    events = [
        event(0, "(new)", "held", reason="approval"),
        event(5, "held", "ready"),
        event(6, "ready", "started"),
        event(7, "started", "backing_off"),
        event(9, "backing_off", "started"),
        event(10, "started", "succeeded"),
        event(20, "succeeded", "compensating"),
        event(22, "compensating", "compensated"),
    ]
    assert timeline.spans_of(call(), events, BEGAN)[0].what == "work", "some events are missing: the record is right"
    spans = timeline.spans_of(call(state="compensated"), events, BEGAN)
    assert [(one.what, one.begin, one.end, one.attempt, one.then) for one in spans] == [
        ("person", 0, 5, 0, "ready"),
        ("queue", 5, 6, 0, "started"),
        ("work", 6, 7, 1, "backing_off"),
        ("retry", 7, 9, 0, "started"),
        ("work", 9, 10, 2, "succeeded"),
        ("undo", 20, 22, 1, "compensated"),
    ]


@pytest.mark.parametrize(
    "reason, what",
    [("approval", "person"), ("budget", "person"), ("conflict", "person"), ("duplicate", "person"),
     ("order", "queue"), ("lock", "queue"), ("before", "queue")],
)  # fmt: skip
def test_who_waits_for_a_person_is_told_from_who_waits_for_its_turn(reason: str, what: str) -> None:
    [span] = timeline.spans_of(call(state="held"), [event(0, "(new)", "held", reason=reason)], BEGAN)
    assert (span.what, span.end) == (what, None)


def test_without_its_events_a_call_is_drawn_by_its_record() -> None:
    undone = Compensation("k", 2, started_at=at(8), settled_at=at(9))
    spans = timeline.spans_of(call(state="compensated", compensation=undone), [], BEGAN)
    assert [(one.what, one.begin, one.end, one.attempt) for one in spans] == [("work", 0, 1, 1), ("undo", 8, 9, 2)]
    lost = timeline.spans_of(call(state="in_doubt"), [], BEGAN)
    assert [(one.what, one.end) for one in lost] == [("work", 1), ("doubt", None)]
    assert timeline.spans_of(call(state="refused", started_at=None), [], BEGAN) == ()


def test_the_scale_is_exact_while_work_can_be_seen() -> None:
    spans = [Span("work", 0, 10), Span("person", 10, 40), Span("work", 40, 50)]
    scale = timeline.scale_of(spans, 0, 50)
    assert not scale.gaps
    assert [scale.x(t) for t in (0, 10, 25, 50, 99, -3)] == [0, 20, 50, 100, 100, 0]


def test_a_wait_beside_which_work_would_vanish_is_cut_and_marked() -> None:
    spans = [Span("work", 0, 1), Span("person", 1, 3601), Span("work", 3601, 3602)]
    scale = timeline.scale_of(spans, 0, 3602)
    [gap] = scale.gaps
    assert gap.x1 - gap.x0 == pytest.approx(timeline.GAP)
    assert gap.t0 > 1
    assert gap.t1 < 3601
    assert scale.x(1) - scale.x(0) > 15
    assert scale.x(3602) == 100
    places = [scale.x(t) for t in (0, 0.5, 1, 2, 1000, 3600, 3601, 3602)]
    assert places == sorted(places)
    assert not timeline.scale_of(spans, 0, 3602, whole=True).gaps


@pytest.mark.parametrize("spans", [[], [Span("person", 0, 1e6)], [Span("work", 5, 5)], [Span("work", 0, None)]])
def test_odd_runs_have_a_scale(spans: list[Span]) -> None:
    for begin, end in ((0.0, 0.0), (0.0, 1e6), (3.0, 2.0)):
        scale = timeline.scale_of(spans, begin, end)
        assert all(0 <= scale.x(t) <= 100 for t in (-1, 0, 1, 5, 1e9))
        assert len(timeline.ticks_of(scale)) < 40


def test_bars_lie_inside_the_drawing_and_are_never_invisible() -> None:
    rows = [
        row(Span("work", 0, 1e-6, 1, "succeeded")),
        row(Span("work", 3599.9999, 3600, 1, "failed"), Span("doubt", 3600, None)),
    ]
    drawn = timeline.drawing(rows, [], now=3600, window=Window(), is_over=False)
    bars = [bar for one in drawn["rows"] for bar in one["bars"]]
    assert all(bar["width"] >= timeline.BAR_MIN and 0 <= bar["x"] <= 100 - bar["width"] + 1e-6 for bar in bars)
    assert [bar["is_failed"] for bar in bars] == [False, True, False]
    assert bars[-1]["is_open"]
    assert drawn["height"] == timeline.HEAD + 2 * timeline.ROW
    assert drawn["now"] == 100


def test_a_call_is_joined_with_its_compensation() -> None:
    drawn = timeline.drawing(
        [row(Span("work", 0, 1, 1, "succeeded"), Span("undo", 9, 10, 1, "compensated"))], [], now=10, window=Window(),
        is_over=True,
    )  # fmt: skip
    [one] = drawn["rows"]
    [join] = one["joins"]
    assert (join["x1"], join["x2"], join["to"]) == (10, 90, "undo")
    assert [bar["what"] for bar in one["bars"]] == ["work", "undo"]
    assert [one["what"] for one in drawn["legend"]] == ["work", "undo"]


def test_the_legend_names_what_is_drawn_and_nothing_else() -> None:
    spans = (
        Span("work", 0, 1, 1, "backing_off"),
        Span("retry", 1, 1, 0, "started"),
        Span("work", 1, 2, 2, "succeeded"),
    )
    drawn = timeline.drawing([row(*spans)], [], now=2, window=Window(), is_over=True)
    assert [bar["what"] for bar in drawn["rows"][0]["bars"]] == ["work", "work"], "a wait of no length is not drawn"
    assert [one["word"] for one in drawn["legend"]] == ["Working", "Failed attempt"]


def test_the_pivot_and_the_rollback_are_marks_of_the_root_alone() -> None:
    events = [
        event(1, "open", "pivoted", call=None, what="run"),
        event(2, "open", "rolling_back", call=None, what="run", run="r/child"),
        event(3, "pivoted", "committed", call=None, what="run"),
        event(3, "", "commit", call=None, what="goal"),
    ]
    assert [(one.kind, one.at) for one in timeline.marks_of("r", events, BEGAN)] == [("pivot", 1), ("end", 3)]


def test_labels_of_marks_never_lie_over_each_other() -> None:
    marks = [Mark("rollback", 50 + number / 10, f"Mark {number}") for number in range(9)]
    drawn = timeline.drawing([row(Span("work", 0, 100))], marks, now=100, window=Window(), is_over=True)
    assert len(drawn["marks"]) == 9
    assert sum(bool(one["label"]) for one in drawn["marks"]) == 1
    assert all(one["title"] for one in drawn["marks"])


def test_children_are_groups_between_the_calls_around_them() -> None:
    run = RunInfo("r", "committed", opened_at=BEGAN, closed_at=at(9))
    child = RunInfo("r/c", "committed", parent="r", opened_at=at(2), closed_at=at(4))
    inner = Report(child, (call("c2", requested_at=at(3)),))
    report = Report(run, (call("c1", requested_at=at(1)), call("c3", requested_at=at(5))), children=(inner,))
    lines = list(timeline.lines_of(report))
    assert [(one.depth, one.call.id if one.call else one.run.id) for one in lines] == [
        (0, "c1"), (0, "r/c"), (1, "c2"), (0, "c3"),
    ]  # fmt: skip
    assert [one.within(4.5, 8, origin=BEGAN, now=at(9)) for one in lines] == [False, False, False, True]


def test_a_long_run_has_an_overview_of_bounded_size() -> None:
    asked = [(number / 100, "failed" if number == 500 else "succeeded") for number in range(10_000)]
    columns = timeline.overview_of(asked, end=100).to_dict()
    assert len(columns) == timeline.BUCKETS
    assert sum(one["count"] for one in columns) == 10_000
    assert sum(one["is_bad"] for one in columns) == 1
    assert columns[0]["first"] == 0
    assert timeline.overview_of([], end=1).to_dict() == []


@pytest.mark.parametrize(
    "s, said",
    [(0.004, "4.0 ms"), (0.34, "340 ms"), (0.9999, "1.0 s"), (1.25, "1.2 s"), (59.6, "60 s"), (61, "1 min 1 s"),
     (120, "2 min"), (3725, "1 h 2 min"), (90_000, "1 d 1 h"), (-61, "-1 min 1 s")],
)  # fmt: skip
def test_times_are_said_as_people_say_them(s: float, said: str) -> None:
    assert timeline.lasted(s) == said


@pytest.mark.parametrize("least", [1e-7, 0.0003, 0.013, 0.4, 1, 1.1, 59, 61, 5_000, 1e6, 1e8])
def test_marks_of_a_scale_are_round(least: float) -> None:
    step = timeline.interval_of(least)
    assert least * (1 - 1e-6) <= step <= max(least * 10, 1e-5)
