"""A request that nobody answers: people are reminded, others are asked, and a deadline ends in a no that nobody can revive."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from amends import Escalation, Rule, Runtime, Shift, tool
from amends.errors import ApprovalVoid, BadConfig, BadRule, Held, Rejected, RunEnded, UsageError
from amends.notify import card, payload
from amends.stores.sqlite.store import SqliteStore
from tests.people.office import COLOURS, Office

APPROVERS = {"clerk": ["carl", "cora"], "lead": ["lea"], "head": ["hal"]}
RULE = Rule(
    "wire",
    roles=("clerk",),
    remind=600,
    reminders=2,
    escalate=[Escalation(1_800, ["lead"]), Escalation(3_600, ["head"])],
    deadline=7_200,
    why="wires",
)


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def office(colour: str, hook: str | None = "def", **options: Any) -> Iterator[Office]:
    made = Office(colour, hook, **{"rules": [RULE], "approvers": APPROVERS} | options)
    try:
        yield made
    finally:
        made.close()


def at(here: Office, after_s: float) -> datetime:
    return datetime.fromtimestamp(1_700_000_000.0 + after_s, UTC)


def test_reminders_escalations_and_the_deadline_follow_the_rule(colour: str) -> None:
    with office(colour) as here, office(colour, store=here.store, clock=here.clock) as other:
        approval = here.held()
        for _ in range(80):  # two hours and more, two workers, a pass each 100 seconds
            here.clock.now += 100
            here.do("recover")
            other.do("recover")
        told = [*here.desk.told, *other.desk.told]
        assert [one.occasion for one in here.desk.told] == [
            "request", "reminder", "reminder", "escalation", "reminder", "reminder", "escalation", "reminder", "reminder",
        ]  # fmt: skip
        assert len({one.notice_id for one in told}) == len(told), "no reminder is sent twice"
        assert here.desk.told[0].notice_id == approval
        assert [one.roles for one in here.desk.told if one.occasion != "reminder"] == [
            ("clerk",), ("clerk", "lead"), ("clerk", "lead", "head"),
        ]  # fmt: skip
        ended = here.do("approval", approval)
        assert (ended.state, ended.by, ended.reason, ended.next) == (
            "rejected", "(amends)", "nobody answered within 2 h", None,
        )  # fmt: skip
        with pytest.raises(Rejected) as no:
            here.wire()
        assert no.value.by == "(amends)"
        assert no.value.for_model().startswith("No approval for wire: nobody answered within 2 h")
        what = [event.what for event in here.listed("events", "r")]
        assert (what.count("reminded"), what.count("escalated")) == (6, 2)
        assert here.do("verify").ok


def test_the_next_role_may_decide_from_its_time_on_and_nobody_else(colour: str) -> None:
    with office(colour, None) as here:
        approval = here.held()
        digest = here.do("approval", approval).digest
        for after, by in ((0, "lea"), (1_799, "lea"), (1_800, "hal"), (1_800, "mallory")):
            here.clock.now = 1_700_000_000.0 + after
            with pytest.raises(ApprovalVoid) as void:
                here.do("approve", approval, digest=digest, by=by)
            assert void.value.why == "role"
        assert here.do("approve", approval, digest=digest, by="lea").state == "approved", "without a worker"
        here.clock.now += 10_000
        here.do("recover")
        assert here.wire() == "sent 1", "a deadline does not take back a yes"


def test_a_yes_after_the_deadline_is_refused_even_if_no_worker_came_by(colour: str) -> None:
    with office(colour, None) as here:
        approval = here.held()
        digest = here.do("approval", approval).digest
        here.clock.now += 7_200
        with pytest.raises(ApprovalVoid) as void:
            here.do("approve", approval, digest=digest, by="carl")
        assert void.value.why == "unanswered"
        with pytest.raises(ApprovalVoid):
            here.do("bypass", approval, digest=digest, by="hal", why="it is urgent")
        here.clock.now -= 7_000
        with pytest.raises(ApprovalVoid):
            here.do("approve", approval, digest=digest, by="carl")
        assert here.do("verify").ok


def test_a_withdrawal_after_the_deadline_does_not_open_the_way_to_ask_again(colour: str) -> None:
    with office(colour, None) as here:
        approval = here.held()
        here.clock.now += 7_200
        for _ in range(2):
            with pytest.raises(ApprovalVoid) as void:
                here.do("withdraw", approval, by="carl", why="never mind")
            assert void.value.why == "unanswered"
        assert here.do("approval", approval).state == "rejected"
        with pytest.raises(Rejected):
            here.wire()
        assert here.do("verify").ok


def test_a_rule_may_wait_longer_than_a_day_for_a_tool_that_always_needs_approval(colour: str) -> None:
    day = 86_400
    slow = Rule("wire", roles=("clerk",), escalate=[Escalation(2 * day, ["lead"])], deadline=3 * day, expires=4 * day)
    with office(colour, None, rules=[slow]) as here:
        approval = here.held()
        here.clock.now += 2 * day
        here.do("recover")
        assert here.do("approval", approval).roles == ("clerk", "lead")
        here.clock.now += day
        here.do("recover")
        assert here.do("approval", approval).state == "rejected"


def test_a_deadline_with_too_few_approvals_says_how_many_there_were(colour: str) -> None:
    two = Rule("wire", roles=("clerk",), approvers=2, deadline=60)
    with office(colour, None, rules=[two]) as here:
        approval = here.held()
        digest = here.do("approval", approval).digest
        here.do("approve", approval, digest=digest, by="carl")
        here.clock.now += 60
        here.do("recover")
        shown = here.do("approval", approval)
        assert (shown.state, shown.reason) == ("rejected", "only 1 of 2 approved it within 1 min")
        assert here.do("verify").ok


def test_what_happens_next_is_shown(colour: str) -> None:
    with office(colour, None) as here:
        approval = here.held()
        shown = here.do("approval", approval)
        assert (shown.asked, shown.asked_at, shown.next.what) == (("carl", "cora"), at(here, 0), "remind")
        here.clock.now += 1_700
        here.do("recover")
        shown = here.do("approval", approval)
        assert (shown.next.what, shown.next.at, shown.next.roles) == ("escalate", at(here, 1_800), ("lead",))
        here.clock.now += 150
        here.do("recover")
        shown = here.do("approval", approval)
        assert (shown.asked, shown.asked_at, shown.roles) == (
            ("carl", "cora", "lea"),
            at(here, 1_850),
            ("clerk", "lead"),
        )
        (item,) = here.do("inbox")
        assert (item.roles, item.asked) == (("clerk", "lead"), ("carl", "cora", "lea"))
        assert len(here.listed("approvals", "role:lead")) == 1
        assert json.loads(json.dumps(shown.to_dict()))["next"]["what"] == "remind"


def test_a_request_without_such_a_rule_only_expires(colour: str) -> None:
    with office(colour, rules=[]) as here:
        approval = here.held()
        shown = here.do("approval", approval)
        assert (shown.next.what, shown.next.at, shown.reached) == ("expire", shown.expires_at, 0)
        here.clock.now += 86_399
        here.do("recover")
        assert here.do("approval", approval).state == "pending"


def test_a_call_that_waits_in_place_is_refused_at_the_deadline_without_a_worker() -> None:
    calls: list[int] = []

    @tool(kind="pivot")
    def pay(cents: int) -> str:
        calls.append(cents)
        return "paid"

    rule = Rule("pay", deadline=1.0)
    rt = Runtime("memory:", tools=[pay], rules=[rule], wait_approval=30.0, poll_approval=0.05)
    with rt.run("r") as run, pytest.raises(Rejected):
        run.call(pay, cents=1)
    assert calls == []


def test_a_staged_pivot_that_nobody_answers_rolls_its_run_back_and_is_not_tried_again() -> None:
    undone: list[str] = []

    @tool
    def reserve(order: str) -> str:
        return order

    @reserve.compensate
    def release(result: str) -> None:
        undone.append(result)

    @tool(kind="pivot", at="commit")
    def pay(cents: int) -> str:
        return "paid"

    office_ = Office("blocking", None)
    rt = Runtime("memory:", tools=[reserve, pay], rules=[Rule("pay", deadline=60)], store=office_.store)
    with pytest.raises(Held), rt.run("r", recover="wait"):
        reserve(order="o")
        pay(cents=1)
    office_.clock.now += 61
    rt.recover()
    assert (rt.report("r").state, undone) == ("rolled_back", ["o"])
    with pytest.raises(RunEnded) as ended, rt.run("r"):
        pass
    assert ended.value.state == "rolled_back"


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"remind": -1}, "remind=-1"),
        ({"remind": "10m"}, "remind='10m'"),
        ({"remind": 90_000}, "ended already"),
        ({"remind": 10, "reminders": 0}, "reminders=0"),
        ({"reminders": 10**9}, "reminders"),
        ({"deadline": True}, "deadline=True"),
        ({"deadline": 90_000}, "expires after"),
        ({"deadline": 86_400}, "expires after"),
        ({"roles": ["a"], "escalate": [{"after": 60, "roles": ["b"]}], "expires": 60}, "expires after"),
        ({"deadline": 0.001}, "deadline"),
        ({"escalate": [{"after": 60, "roles": ["lead"]}]}, "no roles"),
        ({"roles": ["a"], "escalate": {"after": 60, "roles": ["lead"]}}, "escalate"),
        ({"roles": ["a"], "escalate": [{"after": 60}]}, "escalate"),
        ({"roles": ["a"], "escalate": [{"after": 60, "roles": "lead"}]}, "list of roles"),
        ({"roles": ["a"], "escalate": [{"after": 60, "roles": []}]}, "list of roles"),
        ({"roles": ["a"], "escalate": [{"after": "soon", "roles": ["lead"]}]}, "soon"),
        ({"roles": ["a"], "escalate": [{"after": 60, "roles": ["b"]}, {"after": 60, "roles": ["c"]}]}, "later"),
        ({"roles": ["a"], "escalate": [{"after": 60, "roles": ["b"]}], "deadline": 60}, "deadline"),
        ({"decision": "refuse", "remind": 60}, "nobody is asked"),
        ({"escalat": []}, "unknown"),
    ],
)
def test_a_mistyped_timetable_is_refused_when_the_runtime_is_built(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRule) as bad:
        Runtime("memory:", rules=[{"tool": "pay", **wrong}])  # type: ignore[list-item]
    assert words in str(bad.value)


def test_a_later_role_that_nobody_has_is_a_warning() -> None:
    rt = Runtime(
        "memory:", rules=[Rule("wire", roles=("clerk",), escalate=[Escalation(60, ("boss",))])], approvers=APPROVERS
    )
    assert any("'boss'" in one for one in rt.warnings)


def test_nobody_can_decide_under_the_name_of_the_ledger(colour: str) -> None:
    with office(colour, None) as here:
        approval = here.held()
        for name in ("(amends)", " (AMENDS) "):
            with pytest.raises(UsageError):
                here.do("reject", approval, by=name, reason="no")


def test_notices_say_what_they_are_about_and_whom_they_ask(colour: str) -> None:
    with office(colour) as here:
        here.held()
        here.clock.now += 600
        here.do("recover")
        here.clock.now += 1_200
        here.do("recover")
        assert [payload(one)["type"] for one in here.desk.told] == [
            "approval.needed", "approval.reminder", "approval.escalated",
        ]  # fmt: skip
        assert card(here.desk.told[2])[0] == "Escalated: wire needs approval"
        assert payload(here.desk.told[2])["data"]["asked"] == ["carl", "cora", "lea"]


def test_a_request_that_is_asked_again_begins_its_timetable_anew(colour: str) -> None:
    rule = Rule("wire", roles=("clerk",), escalate=[Escalation(60, ["lead"])], expires=120)
    with office(colour, None, rules=[rule]) as here:
        approval = here.held()
        here.clock.now += 121
        here.do("recover")
        again = here.do("ask_again", approval, by="carl", why="nobody was there")
        assert (again.roles, again.next.what, again.reached) == (("clerk",), "escalate", 0)


# ---- The on-call table


def shift(role: str, person: str, first: float, last: float) -> Shift:
    begin = datetime.fromtimestamp(1_700_000_000.0, UTC)
    return Shift(role, person, begin + timedelta(hours=first), begin + timedelta(hours=last))


def test_whoever_is_on_call_is_asked(colour: str) -> None:
    table = [shift("clerk", "carl", -1, 0.4), shift("clerk", "cora", 0.4, 9), shift("lead", "lea", 5, 9)]
    with office(colour, oncall=table) as here:
        approval = here.held()
        assert here.desk.told[0].asked == ("carl",)
        here.clock.now += 1_500
        here.do("recover")
        assert here.desk.told[1].asked == ("cora",), "the shift has changed since"
        here.clock.now += 300
        here.do("recover")
        assert here.desk.told[2].asked == ("cora", "lea"), "in a gap everybody who has the role is asked"
        digest = here.do("approval", approval).digest
        assert here.do("approve", approval, digest=digest, by="carl").state == "approved", (
            "a role does not end with a shift"
        )


@pytest.mark.parametrize("asks", ["principal", "agent", "editor"])
@pytest.mark.parametrize("table", [[], [shift("clerk", "carl", -1, 9)]], ids=["no table", "on call"])
def test_whoever_asked_is_not_asked(colour: str, asks: str, table: list[Shift]) -> None:
    """They may not approve: where only they are on call, all others who have the role are asked."""
    acts = {} if asks == "editor" else {asks: " Carl "}
    with office(colour, oncall=table, **acts) as here:
        approval = here.held()
        if asks == "editor":
            assert here.do("approval", approval).asked == (("carl",) if table else ("carl", "cora"))
            approval = here.do("edit", approval, {"cents": 2}, by="CARL", why="less", roles=["clerk"]).id
        assert here.do("approval", approval).asked == ("cora",)
        assert [one.asked for one in here.desk.told][-1] == ("cora",)
        [item] = here.do("inbox")
        assert item.asked == ("cora",)
        here.clock.now += 1_800
        here.do("recover")
        assert here.desk.told[-1].asked == ("cora", "lea"), "who is asked later is asked beside them"


def test_where_nobody_else_has_the_role_nobody_is_asked_before_the_escalation(colour: str) -> None:
    approvers = APPROVERS | {"clerk": ["carl"]}
    with office(colour, approvers=approvers, oncall=[shift("clerk", "carl", -1, 9)], principal="carl") as here:
        here.held()
        assert here.desk.told[0].asked == ()
        here.clock.now += 1_800
        here.do("recover")
        assert here.desk.told[-1].asked == ("lea",)


def test_gaps_overlaps_and_people_without_the_role_are_found() -> None:
    now = datetime.now(UTC)

    def row(role: str, person: str, first: float, last: float) -> Shift:
        return Shift(role, person, now + timedelta(days=first), now + timedelta(days=last))

    table = [
        row("clerk", "carl", -1, 3), row("clerk", "cora", 2, 5), row("clerk", "carl", 6, 30),
        row("lead", "zoe", -1, 30), row("cook", "remy", -1, 30), row("clerk", "mallory", -9, -8),
    ]  # fmt: skip
    rt = Runtime("memory:", rules=[RULE], approvers=APPROVERS | {"cook": ["remy"]}, oncall=table)
    found = rt.check_oncall()
    assert [(one.kind, one.role, one.people) for one in found] == [
        ("gap", "clerk", ()),
        ("overlap", "clerk", ("carl", "cora")),
        ("no_role", "lead", ("zoe",)),
        ("unused", "cook", ()),
    ]
    assert (found[0].start, found[0].until) == (table[1].until, table[2].start)
    assert (found[1].start, found[1].until) == (table[1].start, table[0].until)
    assert [one.person for one in rt.oncall("clerk")] == ["carl"]
    assert [one.person for one in rt.oncall("clerk", at=now + timedelta(days=2.5))] == ["carl", "cora"]
    with pytest.raises(UsageError):
        rt.oncall(at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(UsageError):
        rt.check_oncall(days=0)


def test_a_csv_file_has_its_own_time_zones_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "oncall.csv"
    head = "role,person,from,until,tz\n"
    file.write_text(head + "clerk,carl,2026-03-29T00:00,2026-03-29T12:00,Europe/Berlin\n")
    rt = Runtime("memory:", oncall=str(file))
    (one,) = rt.oncall(at=datetime(2026, 3, 29, 9, 59, tzinfo=UTC))
    assert one == Shift(
        "clerk", "carl", datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 3, 29, 10, tzinfo=UTC)
    ), "the clocks change on that day"
    file.write_text(head + "clerk,cora,2026-03-29T00:00+02:00,2026-03-30,Europe/Berlin\n")
    assert [one.person for one in rt.oncall(at=datetime(2026, 3, 29, 9, 59, tzinfo=UTC))] == ["cora"]
    file.write_text("role;person\n")
    assert [one.person for one in rt.oncall(at=datetime(2026, 3, 29, 9, 59, tzinfo=UTC))] == ["cora"]
    assert next(one.kind for one in rt.check_oncall()) == "unreadable"
    file.unlink()
    assert next(one.kind for one in rt.check_oncall()) == "unreadable"


def test_a_table_that_comes_back_unchanged_is_readable_again(tmp_path: Path) -> None:
    file = tmp_path / "oncall.csv"
    file.write_text("role,person,from,until\nclerk,carl,2026-03-01T09:00Z,2999-03-01T09:00Z\n")
    rt = Runtime("memory:", oncall=str(file))
    away = file.rename(tmp_path / "away.csv")
    assert [one.kind for one in rt.check_oncall()] == ["unreadable"]
    away.rename(file)
    assert rt.check_oncall() == []


def test_shifts_that_meet_in_a_skipped_or_repeated_hour_leave_no_gap_and_no_overlap() -> None:
    for day, change, utc in (("2026-03-29", "02:30", (1, 30)), ("2026-10-25", "02:30", (0, 30))):
        meeting = f"{day}T{change}"
        shifts = [
            {"role": "clerk", "person": "carl", "from": f"{day}T00:00", "until": meeting, "tz": "Europe/Berlin"},
            {"role": "clerk", "person": "cora", "from": meeting, "until": f"{day}T12:00", "tz": "Europe/Berlin"},
        ]
        rt = Runtime("memory:", oncall=shifts)
        there = datetime.fromisoformat(day).replace(hour=utc[0], minute=utc[1], tzinfo=UTC)
        assert [one.person for one in rt.oncall(at=there)] == ["cora"]
        assert [one.person for one in rt.oncall(at=there - timedelta(seconds=1))] == ["carl"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"role": "clerk"},
        "missing.csv",
        [{"role": "clerk", "person": "carl", "from": "2026-03-01T09:00", "until": "2026-03-02T09:00"}],
        [{"role": "clerk", "person": "carl", "from": "soon", "until": "2026-03-02T09:00Z"}],
        [{"role": "clerk", "person": "", "from": "2026-03-01T09:00Z", "until": "2026-03-02T09:00Z"}],
        [{"role": "clerk", "person": "carl", "from": "2026-03-03T09:00Z", "until": "2026-03-02T09:00Z"}],
        [{"role": "clerk", "person": "carl", "until": "2026-03-02T09:00Z"}],
        [{"role": "c", "person": "carl", "from": "2026-03-01", "until": "2026-03-02", "tz": "Mars/Base"}],
        [{"role": "c", "person": "carl", "from": "2026-03-01", "until": "2026-03-02", "zone": "UTC"}],
        ["clerk"],
        7,
    ],
)  # fmt: skip
def test_a_mistyped_table_is_refused_when_the_runtime_is_built(wrong: Any) -> None:
    with pytest.raises(BadConfig) as bad:
        Runtime("memory:", oncall=wrong)
    assert bad.value.setting == "oncall"


# ---- The record


@pytest.mark.parametrize(
    "column, value",
    [
        ("timetable", ""),
        ("timetable", '[[60.0, "escalate", ["mallory"]]]'),
        ("reached", 0),
        ("reached", 5),
        ("asked_at", 1.0),
        ("asked_at", None),
        ("due_at", None),
        ("due_at", 9e9),
    ],
)
def test_whoever_changes_the_timetable_of_a_request_is_found_out(tmp_path: Path, column: str, value: Any) -> None:
    file, clock = tmp_path / "l.db", Office("blocking", None).clock
    with office("blocking", None, store=SqliteStore(str(file), clock=clock), clock=clock) as here:
        approval = here.held()
        here.clock.now += 1_800
        here.do("recover")
        assert here.do("verify").ok
        with closing(sqlite3.connect(file)) as database, database:
            database.execute(f"update amends_approval set {column} = ? where id = ?", (value, approval))
        (problem,) = {one.how for one in here.do("verify").problems}
        assert problem == "row_changed"
