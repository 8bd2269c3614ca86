"""Where a tool may be called from, whom a run acts for, and who sees what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from amends import Absent, Happened, RunBlocked, UsageError, current_call, current_run, tool
from amends.errors import InDoubt, NoRun, UnknownTool
from tests.world import ONCE, World, die, runtime, together


def test_a_tool_outside_a_run_raises_and_runs_nothing() -> None:
    world = World()
    pay = world.compensatable("pay")
    with pytest.raises(NoRun) as no:
        pay()
    assert no.value.tool == "pay"
    assert world.log == []
    assert pay.fn(x="7") == "pay:7"


def test_a_plain_thread_and_a_pool_have_lost_the_run() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r"):
        (lost,) = together([pay])
        assert isinstance(lost, NoRun)
        with ThreadPoolExecutor(1) as pool:
            assert isinstance(pool.submit(pay).exception(), NoRun)
    assert world.log == []


def test_submit_and_bind_carry_the_run_into_threads() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r") as run:
        assert run.submit(pay, x="1").result(2) == "pay:1"
        assert together([run.bind(lambda: pay(x="2"))]) == ["pay:2"]
        with ThreadPoolExecutor(2) as pool:
            assert pool.submit(run.bind(pay), x="3").result(2) == "pay:3"
    assert sorted(world.log) == ["pay:1", "pay:2", "pay:3"]


def test_an_error_in_a_submitted_function_is_the_futures() -> None:
    rt = runtime()
    with rt.run("r") as run:
        future = run.submit(lambda: 1 / 0)
    assert isinstance(future.exception(), ZeroDivisionError)
    assert run.state == "committed"


def test_a_tool_called_in_a_compensation_or_probe_raises_and_runs_nothing() -> None:
    world = World()
    other = world.compensatable("other")
    caught: list[BaseException] = []

    @tool
    def pay() -> None:
        raise TimeoutError

    @pay.probe
    def look():
        try:
            other()
        except NoRun as error:
            caught.append(error)
        return Happened(None)

    @pay.compensate
    def refund() -> None:
        try:
            current_run()
        except NoRun as error:
            caught.append(error)
        try:
            other()
        except NoRun as error:
            caught.append(error)

    with pytest.raises(KeyError), runtime(pay, other).run("r"):
        pay()
        raise KeyError
    assert len(caught) == 3
    assert world.log == []


def test_current_call_and_current_run_say_where_one_is() -> None:
    seen: list[object] = []

    @tool
    def pay(n: int) -> None:
        call = current_call()
        seen.append((current_run().id, call.run_id, call.tool, call.args, call.attempt, call.phase, call.state))

    pay.compensate(lambda: None)
    with pytest.raises(NoRun):
        current_run()
    with runtime(pay).run("r") as run:
        assert current_run() is run
        with pytest.raises(NoRun):
            current_call()
        pay(n=3)
    assert seen == [("r", "r", "pay", {"n": 3}, 1, "execute", "started")]


def test_a_body_cannot_end_its_own_run() -> None:
    @tool
    def pay() -> None:
        current_run().rollback("no")

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with rt.run("r"), pytest.raises(UsageError):
        pay()
    assert rt.report("r").state == "committed"


def test_a_tool_that_the_runtime_does_not_know_is_refused() -> None:
    world = World()
    pay, other = world.compensatable("pay"), world.compensatable("other")
    with runtime(pay).run("r"), pytest.raises(UnknownTool) as unknown:
        other()
    assert unknown.value.known == ("pay",)


def test_tools_can_be_added_later() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime()
    rt.add(pay)
    with rt.run("r"):
        assert pay() == "pay:1"


def test_a_report_says_for_whom_the_run_acted() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay, agent="clerk")
    mine = rt.scoped(tenant="acme", principal="user:7")
    with mine.run("r", input={"a": 1}, tags=["urgent", "eu"]) as run:
        assert run.tenant == "acme"
        run.output = [1, 2]
        pay()
    info = mine.report("r").run
    assert (info.tenant, info.agent, info.principal) == ("acme", "clerk", "user:7")
    assert (info.input, info.output, info.tags) == ({"a": 1}, [1, 2], ("urgent", "eu"))
    (call,) = mine.calls()
    assert (call.tenant, call.agent, call.principal) == ("acme", "clerk", "user:7")


def test_tenants_do_not_see_or_touch_each_other() -> None:
    world = World()
    pay = world.compensatable("pay")
    world.script["pay"] = [(TimeoutError(),), (TimeoutError(),)]
    rt = runtime(pay)
    a, b = rt.scoped(tenant="a"), rt.scoped(tenant="b")
    for view in (a, b):
        with pytest.raises(RunBlocked), view.run("same-id"), pytest.raises(InDoubt):
            pay()
    (doubt,) = a.doubts()
    assert [run.id for run in b.runs()] == ["same-id"]
    assert len(list(b.calls())) == 1
    assert {event.run_id for event in b.events()} == {"same-id"}
    assert list(rt.runs()) == []
    with pytest.raises(UsageError):
        rt.report("same-id")
    for verb in (
        lambda: b.call(doubt.id),
        lambda: b.probe(doubt.id),
        lambda: b.resolve(doubt.id, Absent(), by="eve", why="mine"),
        lambda: b.retry(doubt.id, by="eve", why="mine"),
        lambda: b.decide(doubt.id, "run", by="eve", why="mine"),
    ):
        with pytest.raises(UsageError):
            verb()
    assert a.report("same-id").state == "blocked"


def test_recovery_of_one_tenant_leaves_the_others_alone() -> None:
    world = World()
    pay = world.compensatable("pay", twin={"retry": ONCE})
    rt = runtime(pay)
    for tenant in ("a", "b"):
        run = rt.scoped(tenant=tenant).open("r")
        run.call(pay)
        die(run)
    assert [report.run.tenant for report in rt.scoped(tenant="a").recover()] == ["a"]
    assert rt.scoped(tenant="b").report("r").state == "open"


def test_a_run_held_by_hand_starts_nothing_inside_a_probe_or_compensation() -> None:
    world = World()
    other = world.compensatable("other")
    caught: list[object] = []

    @tool
    def pay() -> None:
        raise TimeoutError

    @pay.probe
    def look():
        with pytest.raises(NoRun):
            run.call(other)
        caught.append(run.answer("other", {}).error)
        return Happened(None)

    pay.compensate(lambda: None)
    rt = runtime(pay, other)
    run = rt.open("r")
    run.call(pay)
    run.commit()
    assert [type(error) for error in caught] == [NoRun]
    assert world.log == []


def test_open_inside_a_run_raises_too() -> None:
    rt = runtime()
    with rt.run("r"), pytest.raises(UsageError):
        rt.open("s")
    assert [run.id for run in rt.runs()] == ["r"]
