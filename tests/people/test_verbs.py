"""What a person may say from outside, and that each word needs a name and a reason."""

from __future__ import annotations

import pytest

from amends import Absent, Happened, RunBlocked, Unknown, UsageError
from amends.errors import InDoubt, LedgerError
from tests.world import World, runtime, states


def _blocked(world: World, tool, rt, turn, *, swallow: bool = True):
    world.script[tool.name] = [turn]
    with pytest.raises(RunBlocked), rt.run("r"):
        if swallow:
            with pytest.raises(InDoubt):
                tool()
        else:
            tool()
    (doubt,) = rt.doubts()
    return doubt


@pytest.mark.parametrize("by, why", [("", "why"), ("anna", "")])
def test_a_persons_word_needs_a_name_and_a_reason(by, why) -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    doubt = _blocked(world, pay, rt, TimeoutError())
    for verb in (
        lambda: rt.resolve(doubt.id, Absent(), by=by, why=why),
        lambda: rt.retry(doubt.id, by=by, why=why),
        lambda: rt.decide(doubt.id, "run", by=by, why=why),
        lambda: rt.rollback("r", by=by, why=why),
        lambda: rt.abandon("r", by=by, why=why),
        lambda: rt.finish("r", by=by, why=why),
    ):
        with pytest.raises(UsageError):
            verb()
    assert rt.report("r").state == "blocked"


def test_happened_lets_the_run_commit_with_that_result() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    doubt = _blocked(world, pay, rt, (TimeoutError(),))
    assert rt.resolve(doubt.id, Happened("ch_1"), by="anna", why="seen").state == "committed"
    assert rt.call(doubt.id).result == "ch_1"


def test_absent_lets_the_run_commit_without_it() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    doubt = _blocked(world, pay, rt, TimeoutError())
    assert rt.resolve(doubt.id, Absent(), by="anna", why="not there").state == "committed"
    assert states(rt, "r") == {"pay": "failed"}


def test_unknown_leaves_it_as_residue_that_is_named() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    doubt = _blocked(world, pay, rt, TimeoutError())
    report = rt.resolve(doubt.id, Unknown(), by="anna", why="the bank does not say")
    assert report.state == "committed"
    assert [(left.call.tool, left.why) for left in report.residue] == [("pay", "the bank does not say")]


def test_what_is_no_answer_is_refused() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    doubt = _blocked(world, pay, rt, TimeoutError())
    with pytest.raises(UsageError):
        rt.resolve(doubt.id, True, by="anna", why="?")  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        rt.resolve("call_nope", Absent(), by="anna", why="?")
    with pytest.raises(UsageError):
        rt.decide(doubt.id, "maybe", by="anna", why="?")  # type: ignore[arg-type]


def test_there_is_nothing_to_resolve_decide_or_retry_about_a_settled_call() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r"):
        pay()
    (call,) = rt.calls()
    for verb in (
        lambda: rt.resolve(call.id, Absent(), by="anna", why="?"),
        lambda: rt.retry(call.id, by="anna", why="?"),
        lambda: rt.decide(call.id, "run", by="anna", why="?"),
        lambda: rt.abandon("r", by="anna", why="?"),
    ):
        with pytest.raises((LedgerError, UsageError)):
            verb()
    assert rt.report("r").state == "committed"


def test_a_probe_on_request_decides_nothing() -> None:
    world = World()
    pay = world.probed(world.compensatable("pay"))
    rt = runtime(pay)
    with rt.run("r"):
        pay()
    (call,) = rt.calls()
    world.standing.clear()
    assert rt.probe(call.id) == Absent()
    assert states(rt, "r") == {"pay": "succeeded"}
    other = world.compensatable("other")
    rt.add(other)
    with rt.run("s"):
        other()
    (call,) = rt.calls("tool:other")
    assert isinstance(rt.probe(call.id), Unknown)


def test_a_blocked_run_can_be_taken_back_by_a_person() -> None:
    world = World()
    hold, pay = world.compensatable("hold"), world.compensatable("pay")
    world.script["pay"] = [TimeoutError()]
    rt = runtime(hold, pay)
    with pytest.raises(RunBlocked), rt.run("r"):
        hold()
        with pytest.raises(InDoubt):
            pay()
    report = rt.rollback("r", by="anna", why="give up")
    assert report.state == "blocked"  # the doubt is still a person's matter
    assert world.standing == []
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Absent(), by="anna", why="not there").state == "rolled_back"


def test_abandon_names_what_stands_and_is_refused_while_a_call_runs() -> None:
    world = World()
    a, pay = world.compensatable("a"), world.compensatable("pay")
    rt = runtime(a, pay)
    world.script["pay"] = [TimeoutError()]
    with pytest.raises(RunBlocked), rt.run("r"):
        a()
        with pytest.raises(InDoubt):
            pay()
    report = rt.abandon("r", by="anna", why="leave it")
    assert sorted(left.call.tool for left in report.residue) == ["a", "pay"]
    world.script["a"] = [0.05]
    with rt.run("s") as run:
        run.submit(a, x="2")
        while not list(rt.calls("status:started")):
            pass
        with pytest.raises((LedgerError, UsageError)):
            rt.abandon("s", by="anna", why="leave it")


def test_every_word_of_a_person_is_in_the_record() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    doubt = _blocked(world, pay, rt, TimeoutError())
    rt.resolve(doubt.id, Absent(), by="anna", why="looked at the bank")
    said = [event for event in rt.events("r") if event.by == "anna"]
    assert said
    assert any(event.facts.get("why") == "looked at the bank" for event in said)
