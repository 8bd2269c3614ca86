"""Plans: checked as a whole, run group by group, taken back group by group."""

from __future__ import annotations

import asyncio
import threading

import pytest

from amends import AsyncRuntime, tool
from amends.errors import BadArguments, OutOfOrder, UnknownTool
from tests.world import World, runtime, states


def _step(name: str, **args: object) -> dict[str, object]:
    return {"tool": name, "args": args}


def test_a_plan_runs_in_its_order_and_gives_an_answer_for_each_call() -> None:
    world = World()
    a, b, mail = world.compensatable("a"), world.compensatable("b"), world.retriable()
    rt = runtime(a, b, mail)
    with rt.run("r") as run:
        answers = run.execute([_step("a"), _step("b", x="2"), _step("mail"), _step("a")])
    assert [answer.status for answer in answers] == ["done", "done", "staged", "replayed"]
    assert [answer.value for answer in answers[:2]] == ["a:1", "b:2"]
    assert world.log == ["a:1", "b:2", "mail:1"]


def test_an_inner_list_runs_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=30)
    seen: list[str] = []

    @tool
    def meet(x: str) -> str:
        barrier.wait()
        seen.append(x)
        return x

    meet.compensate(lambda: None)
    rt = runtime(meet)
    with rt.run("r") as run:
        answers = run.execute([[_step("meet", x=x) for x in "abc"]])
    assert [answer.value for answer in answers] == ["a", "b", "c"]
    assert sorted(seen) == ["a", "b", "c"]


def test_an_inner_list_runs_side_by_side_in_an_async_run() -> None:
    async def main() -> None:
        arrived: list[str] = []
        everyone = asyncio.Event()

        @tool
        async def meet(x: str) -> str:
            arrived.append(x)
            if len(arrived) == 3:
                everyone.set()
            await asyncio.wait_for(everyone.wait(), 30)
            return x

        @meet.compensate
        async def undo(x: str) -> None:
            arrived.append(f"undo {x}")

        rt = AsyncRuntime("memory:", tools=[meet])
        with pytest.raises(KeyError):
            async with rt.run("r") as run:
                answers = await run.execute([[_step("meet", x=x) for x in "abc"]])
                assert [answer.value for answer in answers] == ["a", "b", "c"]
                raise KeyError
        assert sorted(arrived[3:]) == ["undo a", "undo b", "undo c"]
        await rt.close()

    asyncio.run(main())


def test_results_of_earlier_calls_can_be_referred_to() -> None:
    seen: list[object] = []

    @tool
    def book(room: str) -> dict[str, object]:
        return {"id": f"b-{room}", "guests": [{"name": "anna"}]}

    @tool
    def invoice(booking: str, lines: list[str], who: str = "") -> None:
        seen.append((booking, lines, who))

    book.compensate(lambda: None)
    invoice.compensate(lambda: None)
    rt = runtime(book, invoice)
    with rt.run("r") as run:
        run.execute(
            [
                {"id": "first", **_step("book", room="7")},
                _step("book", room="8"),
                _step(
                    "invoice",
                    booking={"$result": 1, "path": "id"},
                    lines=[{"$result": "first", "path": "id"}, "x"],
                    who={"$result": 0, "path": "guests.0.name"},
                ),
            ]
        )
    assert seen == [("b-8", ["b-7", "x"], "anna")]


def test_a_path_that_does_not_exist_is_refused_not_a_crash() -> None:
    world = World()

    @tool
    def book() -> dict[str, str]:
        return {"id": "b"}

    book.compensate(lambda: None)
    a = world.compensatable("a")
    rt = runtime(book, a)
    with rt.run("r") as run, pytest.raises(BadArguments):
        run.execute([_step("book"), _step("a", x={"$result": 0, "path": "nope"})])
    assert world.log == []


@pytest.mark.parametrize(
    "plan, error",
    [
        ([_step("a"), _step("nope")], UnknownTool),
        ([_step("a"), _step("a", n="many")], BadArguments),
        ([_step("a"), [_step("a", x="2"), _step("a", wrong=1)]], BadArguments),
        ([_step("a"), "a"], BadArguments),
        ([_step("a"), {"tool": "a", "arguments": {}}], BadArguments),
        ([_step("a", x={"$result": 1}), _step("a")], BadArguments),
        ([_step("mail"), _step("a", x={"$result": 0})], BadArguments),
        ("a", BadArguments),
        ([_step("a", x=str(n)) for n in range(1001)], BadArguments),
    ],
)
def test_anything_wrong_anywhere_runs_nothing(plan, error) -> None:
    world = World()
    a, mail = world.compensatable("a"), world.retriable()
    rt = runtime(a, mail)
    with rt.run("r") as run, pytest.raises(error):
        run.execute(plan)
    assert world.log == []
    assert list(rt.calls()) == []


def test_a_failing_member_lets_its_siblings_land_then_all_are_taken_back() -> None:
    world = World()
    first, bad, slow, never = (world.compensatable(name) for name in ("first", "bad", "slow", "never"))
    world.script["bad"] = [ValueError("no")]
    world.script["slow"] = [0.03]
    rt = runtime(first, bad, slow, never)
    with pytest.raises(ValueError, match="no"), rt.run("r") as run:
        run.execute([_step("first"), [_step("bad"), _step("slow")], _step("never")])
    assert world.log == ["first:1", "slow:1", "undo slow:1", "undo first:1"]


def test_members_of_a_group_are_taken_back_side_by_side_and_groups_backwards() -> None:
    log: list[str] = []
    barrier = threading.Barrier(2, timeout=30)

    def make(name: str, *, meets: bool):
        @tool(name=name)
        def body() -> None:
            log.append(name)

        @body.compensate
        def undo() -> None:
            if meets:
                barrier.wait()
            log.append(f"undo {name}")

        return body

    tools = [make("a", meets=False), make("b", meets=True), make("c", meets=True), make("d", meets=False)]
    rt = runtime(*tools)
    with pytest.raises(KeyError), rt.run("r") as run:
        run.execute([_step("a"), [_step("b"), _step("c")], _step("d")])
        raise KeyError
    assert log[4] == "undo d"
    assert sorted(log[5:7]) == ["undo b", "undo c"]
    assert log[7] == "undo a"


def test_groups_of_two_plans_in_one_run_are_not_mixed_up() -> None:
    world = World()
    tools = [world.compensatable(name) for name in "abcd"]
    rt = runtime(*tools)
    with pytest.raises(KeyError), rt.run("r") as run:
        run.execute([[_step("a"), _step("b")]])
        run.execute([[_step("c"), _step("d")]])
        raise KeyError
    assert sorted(world.log[4:6]) == ["undo c:1", "undo d:1"]
    assert sorted(world.log[6:8]) == ["undo a:1", "undo b:1"]


def test_on_failure_continue_lets_the_plan_go_on() -> None:
    world = World()
    a, note, b = world.compensatable("a"), world.compensatable("note", on_failure="continue"), world.compensatable("b")
    world.script["note"] = [ValueError("no push")]
    rt = runtime(a, note, b)
    with rt.run("r") as run:
        answers = run.execute([_step("a"), _step("note"), _step("b")])
    assert [answer.status for answer in answers] == ["done", "failed", "done"]
    assert states(rt, "r") == {"a": "succeeded", "note": "failed", "b": "succeeded"}


def test_a_reference_to_a_call_that_failed_and_was_passed_over_is_refused_not_a_crash() -> None:
    world = World()
    note, b = world.compensatable("note", on_failure="continue"), world.compensatable("b")
    world.script["note"] = [ValueError("no push")]
    rt = runtime(note, b)
    with rt.run("r") as run, pytest.raises(BadArguments):
        run.execute([_step("note"), _step("b", x={"$result": 0})])
    assert world.log == []


def test_the_law_holds_in_plans_too() -> None:
    world = World()
    a, wire = world.compensatable("a"), world.pivot(after=["a"])
    rt = runtime(a, wire)
    with rt.run("r") as run, pytest.raises(OutOfOrder):
        run.execute([_step("wire"), _step("a")])
    assert world.log == []


def test_a_plan_of_async_tools_runs_in_a_blocking_run() -> None:
    log: list[str] = []

    @tool
    async def ship(x: str) -> str:
        await asyncio.sleep(0)
        log.append(x)
        return x

    @ship.compensate
    async def cancel(x: str) -> None:
        log.append(f"undo {x}")

    rt = runtime(ship)
    with pytest.raises(KeyError), rt.run("r") as run:
        run.execute([[_step("ship", x="a"), _step("ship", x="b")]])
        raise KeyError
    assert sorted(log) == ["a", "b", "undo a", "undo b"]
    rt.close()


def test_the_same_call_twice_in_one_group_has_one_effect() -> None:
    world = World()
    a = world.compensatable("a")
    world.script["a"] = [0.02]
    rt = runtime(a, wait=30)
    with rt.run("r") as run:
        answers = run.execute([[_step("a"), _step("a")]])
    assert world.log == ["a:1"]
    assert sorted(answer.status for answer in answers) == ["done", "replayed"]


# ---- checking beforehand ------------------------------------------------------------------


def test_check_finds_every_violation_and_proposes_a_lawful_order() -> None:
    world = World()
    a, b, mail = world.compensatable("a"), world.compensatable("b"), world.retriable()
    wire, other = world.pivot("wire", after=["a"]), world.pivot("other")
    rt = runtime(a, b, mail, wire, other)
    check = rt.check([_step("wire"), _step("mail"), _step("a"), _step("b")])
    assert [problem.law for problem in check] == ["pivot_early", "after_pivot", "after_pivot"]
    assert check.lawful_order == [_step("a"), _step("b"), _step("wire"), _step("mail")]
    assert not rt.check(check.lawful_order)
    twice = rt.check([_step("a"), _step("wire"), _step("other")])
    assert [problem.law for problem in twice] == ["pivot_twice"]
    assert twice.lawful_order is None
    assert world.log == []


def test_check_finds_bad_names_and_arguments_too() -> None:
    world = World()
    rt = runtime(world.compensatable("a"))
    check = rt.check([_step("b"), _step("a", n="x"), _step("a", x={"$result": 9})])
    assert [problem.code for problem in check] == ["unknown_tool", "bad_arguments", "bad_arguments"]
    assert check.lawful_order is None


def test_a_pivot_beside_a_compensatable_in_one_group_is_a_violation() -> None:
    world = World()
    rt = runtime(world.compensatable("a"), world.pivot())
    assert [problem.law for problem in rt.check([[_step("a"), _step("wire")]])] == ["pivot_early"]


def test_a_lawful_plan_has_no_violations_and_a_lawful_order_keeps_references() -> None:
    world = World()
    rt = runtime(world.compensatable("a"), world.compensatable("b"), world.pivot(), world.retriable())
    lawful = [[_step("a"), _step("b")], _step("wire"), _step("mail")]
    assert not rt.check(lawful)
    check = rt.check([_step("mail"), _step("wire"), {"id": "one", **_step("a")}, _step("b", x={"$result": "one"})])
    assert check.lawful_order is not None
    with rt.run("r") as run:
        run.execute(check.lawful_order)
    assert world.log == ["a:1", "b:a:1", "wire:1", "mail:1"]


def test_a_lawful_order_keeps_references_by_number() -> None:
    world = World()
    rt = runtime(world.compensatable("a"), world.compensatable("b"), world.pivot())
    check = rt.check([_step("wire"), _step("a"), _step("b", x={"$result": 1})])
    assert check.lawful_order is not None
    with rt.run("r") as run:
        run.execute(check.lawful_order)
    assert world.log == ["a:1", "b:a:1", "wire:1"]


def test_groups_wait_for_each_other() -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    world.script["a"] = [0.03]
    rt = runtime(a, b)
    with rt.run("r") as run:
        run.execute([[_step("a"), _step("a", x="2")], _step("b")])
    assert world.log[-1] == "b:1"
