"""A fork has what it shares as already done, and none of it as its own; the original does not go from under it."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal

import pytest

from amends import AsyncRuntime, Budget, Comparison, Report, RunBlocked, Runtime, Staged, UsageError, tool
from amends.errors import BudgetExceeded, CannotFork, Held, InDoubt, RolledBack, RunConflict, RunEnded, ToolFailed
from tests.world import World, runtime, states


def _ids(report: Report, tool: str) -> list[str]:
    return [call.id for call in report.calls if call.tool == tool]


def _forked(rt: Runtime, run: str, tool: str, n: int = -1, **options: str) -> str:
    return rt.fork(run, at=_ids(rt.report(run), tool)[n], **options)


def test_what_is_shared_is_answered_and_what_comes_after_is_live() -> None:
    world = World()
    a, b, look = world.compensatable("a"), world.compensatable("b"), world.read("look")
    rt = runtime(a, b, look)
    with rt.run("r"):
        first = (look(), a("1"), look())
        b("1")
    done = list(world.log)
    fork = _forked(rt, "r", "look")
    assert world.log == done
    with rt.run(fork):
        assert (look(), a("1"), look()) == first
        assert world.log == done
        b("2")
    assert len(world.log) == len(done) + 1
    assert rt.report(fork).run.forked_from == "r"
    assert [call.shared is not None for call in rt.report(fork).calls] == [True, True, True, False]


def test_reads_after_something_live_are_not_answered_from_the_old_record() -> None:
    world = World()
    a, b, look = world.compensatable("a"), world.compensatable("b"), world.read("look")
    rt = runtime(a, b, look)
    with rt.run("r"):
        a("1")
        look()
    seen = len(world.log)
    with rt.run(_forked(rt, "r", "look")):
        a("1")
        b("9")
        look()
    assert len(world.log) == seen + 2


def test_a_failure_that_is_shared_is_the_answer_and_the_next_request_is_the_forks_own() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    world.script["a"] = [ValueError("no")]
    with rt.run("r"):
        with pytest.raises(ValueError, match="no"):
            a("1")
        a("1")
        b("1")
    fork = _forked(rt, "r", "a", 0)
    with rt.run(fork):
        with pytest.raises(ToolFailed, match="no"):
            a("1")
        a("1")
    assert [(call.state, call.shared is not None) for call in rt.report(fork).calls] == [
        ("failed", True),
        ("succeeded", False),
    ]


def test_a_fork_that_fails_takes_back_its_own_and_nothing_else() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    with rt.run("r"):
        a("1")
    fork = _forked(rt, "r", "a")
    with pytest.raises(ZeroDivisionError), rt.run(fork):
        a("1")
        b("1")
        1 / 0  # noqa: B018
    assert states(rt, fork) == {"a": "succeeded", "b": "compensated"}
    report = rt.report(fork)
    assert (report.state, report.residue) == ("rolled_back", ())
    assert states(rt, "r") == {"a": "succeeded"}
    with pytest.raises(RunEnded, match="rolled back"), rt.run(fork):
        pass


def test_an_abandoned_fork_leaves_nothing_of_what_it_shares_as_residue() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with rt.run("r"):
        a("1")
    fork = _forked(rt, "r", "a")
    assert rt.abandon(fork, by="ann", why="not needed").residue == ()
    assert states(rt, fork) == {"a": "succeeded"}


def _committed(rt: Runtime, id: str) -> None:
    """In a thread of its own: a run is not opened inside another one."""

    def play() -> None:
        with rt.run(id):
            pass

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()


# ---- the original -------------------------------------------------------------------------


def test_the_originals_own_failure_under_a_fork_blocks_it_and_names_the_fork_and_the_verb() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        a("1")
        _forked(rt, "r", "a", id="f")
        b("1")
        raise ZeroDivisionError
    (cause,) = blocked.value.causes
    assert "fork f is open" in cause
    assert "rt.rollback('r', by=..., why=...)" in cause
    assert rt.report("r").run.causes == (cause,)
    assert rt.report("r").forks == ("f",)
    assert world.log == ["a:1", "b:1"]
    assert rt.recover() == []
    assert rt.plan_rollback("r").forks == ("f",)
    assert rt.rollback("r", by="ann", why="all the same").state == "rolled_back"
    assert world.log == ["a:1", "b:1", "undo b:1", "undo a:1"]
    with pytest.raises(RolledBack, match="run r, whose calls it shares, was rolled back"), rt.run("f"):
        a("1")
    assert rt.report("f").state == "rolled_back"


def test_a_live_call_in_a_fork_whose_original_was_taken_back_is_refused_and_its_own_are_taken_back() -> None:
    world = World()
    a, b, c = (world.compensatable(name) for name in "abc")
    rt = runtime(a, b, c)
    run = rt.open("r", recover="wait")
    run.call(a, x="1")
    fork = rt.open(_forked(rt, "r", "a", id="f"))
    fork.call(b, x="1")
    rt.rollback("r", by="ann", why="wrong")
    with pytest.raises(RolledBack):
        run.commit()
    with pytest.raises(RunEnded):
        fork.call(c, x="1")
    with pytest.raises(RolledBack):
        fork.commit()
    assert states(rt, "f") == {"a": "succeeded", "b": "compensated"}


def test_the_original_goes_back_by_itself_when_the_last_fork_has() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with pytest.raises(RunBlocked), rt.run("r"):
        a("1")
        for id in ("f", "g"):
            _forked(rt, "r", "a", id=id)
        raise ZeroDivisionError
    rt.rollback("f", by="ann", why="no")
    assert rt.report("r").state == "blocked"
    rt.rollback("g", by="ann", why="no")
    (report,) = rt.recover()
    assert (report.run_id, report.state) == ("r", "rolled_back")
    assert world.log == ["a:1", "undo a:1"]


def test_a_committed_fork_keeps_what_it_stands_on() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with pytest.raises(RunBlocked) as blocked, rt.run("r"):
        a("1")
        _forked(rt, "r", "a", id="f")
        _committed(rt, "f")
        raise ZeroDivisionError
    assert "fork f has committed" in blocked.value.causes[0]
    assert rt.abandon("r", by="ann", why="the fork has it").state == "abandoned"
    assert world.log == ["a:1"]


def test_a_child_that_a_fork_stands_on_is_not_taken_back_by_its_parent() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        with run.child("c"):
            a("1")
        (child,) = rt.report("r").children
        rt.fork("r", at=child.calls[0].id, id="f")
        b("1")
        raise ZeroDivisionError
    assert world.log == ["a:1", "b:1"]
    with rt.run("f") as fork:
        with fork.child("c"):
            a("1")
        b("2")
    assert world.log == ["a:1", "b:1", "b:2"]
    assert rt.report("f").children[0].calls[0].shared == child.calls[0].id


def test_an_open_child_that_failed_under_a_fork_blocks_the_commit_with_its_cause() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    with pytest.raises(RunBlocked) as blocked, rt.run("r") as run:
        with pytest.raises(RunBlocked), run.child("c"):
            a("1")
            (child,) = rt.report("r").children
            rt.fork("r", at=child.calls[0].id, id="f")
            raise ZeroDivisionError
        b("1")
    assert "fork f is open" in blocked.value.causes[0]
    rt.rollback("f", by="ann", why="no")
    (report,) = [one for one in rt.recover() if one.run_id == "r"]
    assert report.state == "committed"
    assert world.log == ["a:1", "b:1", "undo a:1"]


# ---- where and by whom --------------------------------------------------------------------


def test_a_doubt_a_held_call_and_one_under_way_refuse_the_fork_by_name() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    rt = runtime(a, b)
    world.script["b"] = [TimeoutError()]
    with pytest.raises(RunBlocked), rt.run("r"):
        a("1")
        with pytest.raises(InDoubt):
            b("1")
    (doubt,) = rt.doubts()
    with pytest.raises(CannotFork, match=r"b \(.*in doubt\) is not settled") as no:
        rt.fork("r", at=doubt.id)
    assert (no.value.why, [call.id for call in no.value.calls]) == ("unsettled", [doubt.id])
    assert len(list(rt.runs())) == 1
    fork = _forked(rt, "r", "a")
    with rt.run(fork):
        a("1")
        b("1")
    assert states(rt, fork) == {"a": "succeeded", "b": "succeeded"}


def test_what_cannot_be_meant_is_refused_with_what_to_do() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with rt.run("r") as run:
        a("1")
        with run.child("c"):
            a("2")
    with rt.run("other"):
        a("1")
    (call,) = _ids(rt.report("r"), "a")
    with pytest.raises(UsageError, match="no run 'nobody'"):
        rt.fork("nobody", at=call)
    with pytest.raises(UsageError, match="has no call 'x'"):
        rt.fork("r", at="x")
    with pytest.raises(UsageError, match="has no call"):
        rt.fork("other", at=call)
    with pytest.raises(UsageError, match="is a child: fork its root"):
        rt.fork("r/c", at=call)
    with pytest.raises(UsageError, match="id of the last call"):
        rt.fork("r", at="")
    with pytest.raises(RunConflict, match="exists already"):
        rt.fork("r", at=call, id="other")
    assert rt.fork("r", at=call, id="f") == rt.fork("r", at=call, id="f") == "f"
    with pytest.raises(ZeroDivisionError), rt.run("gone"):
        a("1")
        raise ZeroDivisionError
    with pytest.raises(CannotFork, match="was rolled back") as no:
        _forked(rt, "gone", "a")
    assert no.value.why == "taken_back"


def test_a_fork_is_of_the_same_tenant_and_principal() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    ours = rt.scoped(tenant="acme", principal="ann")
    with ours.run("r"):
        a("1")
    (call,) = _ids(ours.report("r"), "a")
    with pytest.raises(UsageError, match="no run 'r'"):
        rt.fork("r", at=call)
    with pytest.raises(RunConflict, match="belongs to ann"):
        rt.scoped(tenant="acme", principal="bob").fork("r", at=call)
    fork = rt.scoped(tenant="acme").fork("r", at=call)
    info = ours.report(fork).run
    assert (info.tenant, info.principal) == ("acme", "ann")
    assert next(event.by for event in ours.events("r") if event.what == "forked")


def test_a_fork_asks_for_approvals_anew() -> None:
    ran: list[int] = []

    @tool(needs_approval=lambda call: True, key="n")
    def pay(n: int) -> int:
        ran.append(n)
        return n

    @pay.compensate
    def unpay(n: int) -> None:
        ran.append(-n)

    rt = runtime(pay)
    for n in (1, 2):
        with pytest.raises(Held) as held, rt.run("r", recover="wait"):
            pay(1)
            pay(n)
        rt.approve(held.value.approval.id, digest=held.value.approval.digest, by="boss")
    with rt.run("r"):
        pay(1)
        pay(2)
    assert ran == [1, 2]
    fork = _forked(rt, "r", "pay", 0)
    with pytest.raises(Held), rt.run(fork):
        assert pay(1) == 1
        pay(2)
    assert ran == [1, 2]


def test_a_fork_is_not_charged_for_what_it_shares() -> None:
    @tool(key="n", cost=lambda call: {"usd": 6})
    def pay(n: int) -> int:
        return n

    @pay.compensate
    def unpay(n: int) -> None: ...

    rt = Runtime("memory:", tools=[pay], budgets=[Budget(10, per="run"), Budget(13, per="tenant")])
    with rt.run("r"):
        pay(1)
    fork = _forked(rt, "r", "pay")
    with rt.run(fork):
        pay(1)
        pay(2)
    compared = rt.compare("r", fork)
    assert dict(compared.costs) == {"usd": (Decimal(6), Decimal(6))}
    assert [pair.how for pair in compared.pairs] == ["shared", "right"]
    with pytest.raises(BudgetExceeded), rt.run("third"):
        pay(3)


def test_a_pivot_that_is_shared_has_passed_and_what_was_only_staged_is_not_shared() -> None:
    world = World()
    a, mail, p = world.compensatable("a"), world.retriable("mail"), world.pivot("p")
    rt = runtime(a, mail, p)
    run = rt.open("r", recover="wait")
    run.call(a, x="1")
    assert isinstance(run.call(mail, x="1"), Staged)
    before = _forked(rt, "r", "a", id="before")
    run.call(p, x="1")
    run.call(a, x="1")
    after = _forked(rt, "r", "p", id="after")
    assert (rt.report(before).state, rt.report(after).state) == ("open", "pivoted")
    run.commit()
    with rt.run(before):
        a("1")
        assert isinstance(mail("1"), Staged)
    assert world.log == ["a:1", "p:1", "mail:1", "mail:1"]
    with pytest.raises(Exception, match="pivot"), rt.run(after):
        a("1")
        p("1")
        a("2")
    assert world.log == ["a:1", "p:1", "mail:1", "mail:1"]


def test_once_and_begin_are_shared_without_their_code() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    ran: list[str] = []
    with rt.run("r") as run:
        a("1")
        run.once("k", ran.append, "x")
    done = rt.report("r")
    last = [*done.calls, *(call for child in done.children for call in child.calls)][-1]
    fork = rt.fork("r", at=last.id)
    with rt.run(fork) as run:
        a("1")
        run.once("k", ran.append, "x")
    assert ran == ["x"]


def test_the_clock_dice_and_names_of_what_is_shared_are_the_originals_and_then_the_forks_own() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)

    def drawn(run) -> tuple[object, ...]:
        return (run.now(), run.uuid(), run.random().random())

    def program(run, last: str) -> list[tuple[object, ...]]:
        seen = [drawn(run)]
        a("1")
        with run.child("c") as child:
            seen.append(drawn(child))
            a("2")
        seen.append(drawn(run))
        a("3")
        seen.append(drawn(run))
        a(last)
        return seen

    with rt.run("r") as run:
        original = program(run, "4")
    fork = _forked(rt, "r", "a")
    at = _ids(rt.report("r"), "a")[1]
    fork = rt.fork("r", at=at)
    with rt.run(fork) as run:
        seen = program(run, "5")
    assert seen[:3] == original[:3]
    assert not set(seen[3]) & set(original[3])
    calls = rt.report(fork).calls
    second = rt.fork(fork, at=next(call.id for call in calls if call.args["x"] == "5"))
    with rt.run(second) as run:
        assert program(run, "5") == seen
        assert not set(drawn(run)) & {one for some in (*seen, *original) for one in some}


def test_a_fork_of_a_fork_shares_both_and_protects_both() -> None:
    world = World()
    a, b, c = (world.compensatable(name) for name in "abc")
    rt = runtime(a, b, c)
    run = rt.open("r", recover="wait")
    run.call(a, x="1")
    _forked(rt, "r", "a", id="f")
    fork = rt.open("f", recover="wait")
    fork.call(a, x="1")
    fork.call(b, x="1")
    _forked(rt, "f", "b", id="g")
    with rt.run("g"):
        a("1")
        b("1")
        c("1")
    assert world.log == ["a:1", "b:1", "c:1"]
    with pytest.raises(RunBlocked, match="fork g has committed"):
        fork.rollback("no")
    with pytest.raises(RunBlocked):
        run.rollback("no")
    assert set(rt.report("r").forks) == {"f", "g"}
    assert world.log == ["a:1", "b:1", "c:1"]


def test_both_colours_fork_and_compare() -> None:
    world = World()
    a = world.compensatable("a")
    rt = runtime(a)
    with rt.run("r"):
        a("1")

    async def main() -> Comparison:
        art = AsyncRuntime(tools=[a], store=rt._host.store)
        fork = await art.fork("r", at=_ids(await art.report("r"), "a")[0], id="f")
        async with art.run(fork) as run:
            await run.call(a, x="1")
            await run.call(a, x="2")
        return await art.compare("r", "f")

    compared = asyncio.run(main())
    assert compared.to_dict() == rt.compare("r", "f").to_dict()
    assert world.log == ["a:1", "a:2"]


# ---- comparing ----------------------------------------------------------------------------


def test_two_runs_that_did_the_same_are_alike_and_the_first_difference_is_named() -> None:
    @tool(key="order")
    def pay(order: str, items: list[dict[str, int]]) -> dict[str, object]:
        return {"id": f"ch-{order}", "sum": sum(one["cents"] for one in items)}

    @pay.compensate
    def unpay(order: str) -> None: ...

    world = World()
    look = world.read("look")
    rt = runtime(pay, look)

    def play(id: str, cents: int, *, looks: int = 1) -> None:
        with rt.run(id) as run:
            for _ in range(looks):
                look()
            pay("1", [{"cents": 1}, {"cents": cents}])
            run.output = {"paid": cents}

    play("one", 5)
    play("two", 5)
    world.script["look"] = ["look", "look"]
    assert rt.compare("one", "one").alike
    compared = rt.compare("one", "two")
    assert compared.first is None or compared.first.tool == "look"
    play("three", 7, looks=2)
    compared = rt.compare("two", "three")
    assert [(pair.how, pair.tool) for pair in compared.pairs][-1] == ("changed", "pay")
    (arg,) = compared.pairs[-1].args
    assert (arg.path, arg.left, arg.right) == ("items[1].cents", 5, 7)
    assert [str(one) for one in compared.pairs[-1].result] == ["result.sum: 6 | 8"]
    assert [str(one) for one in compared.output] == ["output.paid: 5 | 7"]
    assert any(pair.how == "right" for pair in compared.pairs)
    assert "first different call" in str(compared)
    assert compared.to_dict()["first"] == compared.first.to_dict()  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="no run 'nobody'"):
        rt.compare("one", "nobody")
