"""Which requests are the same: replays, conflicts, deliberate repeats, scopes, generations."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from amends import AsyncRuntime, current_call, tool
from amends.errors import Busy, GenerationsSpent, KeyConflict
from tests.world import World, runtime, together, until


def test_the_same_request_is_answered_from_the_record_and_counted() -> None:
    world = World()
    reserve = world.compensatable()
    rt = runtime(reserve)
    with rt.run("r"):
        assert [reserve(), reserve(x="1"), reserve("1", 0)] == ["reserve:1"] * 3
    assert world.log == ["reserve:1"]
    (call,) = rt.calls()
    assert call.replays == 2


def test_other_arguments_are_another_call_where_no_key_is_declared() -> None:
    world = World()
    reserve = world.compensatable()
    with runtime(reserve).run("r"):
        reserve(x="1", n=1)
        reserve(x="1", n=2)
    assert world.log == ["reserve:1", "reserve:1"]


def test_the_same_key_with_other_arguments_is_a_conflict_that_shows_both() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    rt = runtime(pay)
    with rt.run("r"):
        pay(x="1042", n=4200)
        with pytest.raises(KeyConflict) as conflict:
            pay(x="1042", n=4900)
    assert conflict.value.tool == "pay"
    assert conflict.value.diff == {"n": (4200, 4900)}
    assert conflict.value.given == {"x": "1042", "n": 4900}
    assert conflict.value.call.args == {"x": "1042", "n": 4200}
    assert conflict.value.call.result == "pay:1042"
    assert world.log == ["pay:1042"]


def test_a_deliberate_repeat_is_said_and_replayed_by_its_own_word() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    rt = runtime(pay)
    with rt.run("r"):
        pay()
        pay.with_options(again="second box")()
        pay.with_options(again="second box")()
    assert world.log == ["pay:1", "pay:1"]
    assert sorted(call.again or "" for call in rt.calls()) == ["", "second box"]


def test_ignored_arguments_are_neither_key_nor_conflict() -> None:
    seen: list[str] = []

    @tool(ignore=["reason"])
    def refund(order: str, reason: str) -> str:
        seen.append(reason)
        return order

    refund.compensate(lambda: None)
    with runtime(refund).run("r"):
        refund(order="1", reason="late")
        assert refund(order="1", reason="very late") == "1"
        refund(order="2", reason="late")
    assert seen == ["late", "late"]


def test_ignore_rest_leaves_only_the_key() -> None:
    seen: list[str] = []

    @tool(key="order", ignore="rest")
    def refund(order: str, reason: str = "", ref: int = 0) -> str:
        seen.append(order)
        return order

    refund.compensate(lambda: None)
    with runtime(refund).run("r"):
        refund(order="1", reason="a", ref=1)
        refund(order="1", reason="b", ref=2)
    assert seen == ["1"]


def test_a_key_function_sees_the_request() -> None:
    seen: list[str] = []

    @tool(key=lambda call: (call.run_id, call.tool, call.args["to"].lower()), ignore=["to"])
    def mail(to: str) -> None:
        seen.append(to)

    mail.compensate(lambda: None)
    with runtime(mail).run("r"):
        mail(to="A@x")
        mail(to="a@X")
        mail(to="b@x")
    assert seen == ["A@x", "b@x"]


def test_spelling_does_not_change_the_key() -> None:
    from decimal import Decimal

    seen: list[object] = []

    @tool
    def pay(facts: dict[str, object]) -> None:
        seen.append(facts)

    pay.compensate(lambda: None)
    with runtime(pay).run("r"):
        pay(facts={"a": 1, "b": "caf\u00e9"})
        pay(facts={"b": "cafe\u0301", "a": 1.0})
        pay(facts={"b": "caf\u00e9", "a": Decimal("1.00")})
    assert len(seen) == 1


def test_a_failed_call_frees_its_key_for_a_next_generation_with_another_provider_key() -> None:
    keys: list[str] = []

    @tool(key="x")
    def pay(x: str, n: int = 0) -> int:
        keys.append(current_call().key)
        if len(keys) < 3:
            raise ValueError("declined")
        return n

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with rt.run("r"):
        for n in (1, 2):
            with pytest.raises(ValueError):
                pay(x="a", n=n)
        assert pay(x="a", n=3) == 3
    assert len(set(keys)) == 3
    assert [call.generation for call in rt.report("r").calls] == [1, 2, 3]


def test_generations_have_a_limit() -> None:
    starts = []

    @tool
    def pay() -> None:
        starts.append(1)
        raise ValueError("never")

    pay.compensate(lambda: None)
    with runtime(pay).run("r"):
        for _ in range(100):
            with pytest.raises(ValueError):
                pay()
        with pytest.raises(GenerationsSpent) as spent:
            pay()
    assert spent.value.limit == 100
    assert len(starts) == 100


def test_fifty_threads_asking_for_the_same_call_have_one_effect_and_one_result() -> None:
    starts: list[int] = []

    @tool
    def pay() -> dict[str, int]:
        starts.append(1)
        time.sleep(0.03)
        return {"id": 7}

    pay.compensate(lambda: None)
    with runtime(pay, wait=60).run("r") as run:
        answers = together([run.bind(pay)] * 50)
    assert answers == [{"id": 7}] * 50
    assert len({id(answer) for answer in answers}) == 50
    assert len(starts) == 1


def test_fifty_tasks_asking_for_the_same_call_have_one_effect_and_one_result() -> None:
    starts: list[int] = []

    @tool
    async def pay() -> dict[str, int]:
        starts.append(1)
        await asyncio.sleep(0.03)
        return {"id": 7}

    pay.compensate(lambda: None)

    async def main() -> None:
        rt = AsyncRuntime("memory:", tools=[pay], wait=60)
        async with rt.run("r"):
            answers = await asyncio.gather(*(pay() for _ in range(50)))
        assert answers == [{"id": 7}] * 50
        await rt.close()

    asyncio.run(main())
    assert len(starts) == 1


def test_a_twin_that_runs_longer_than_wait_is_busy_and_nothing_starts_twice() -> None:
    world = World()
    pay = world.compensatable("pay")
    gate = threading.Event()
    world.script["pay"] = [gate]
    rt = runtime(pay, wait=0.02)
    with rt.run("r") as run:
        first = run.submit(pay)
        until(lambda: bool(list(rt.calls("status:started"))))
        with pytest.raises(Busy):
            pay()
        gate.set()
        assert first.result(30) == "pay:1"
    assert world.log == ["pay:1"]


def test_a_twin_whose_first_start_fails_starts_once_more_as_the_next_generation() -> None:
    world = World()
    pay = world.compensatable("pay")
    gate = threading.Event()

    @tool(name="slow")
    def slow() -> str:
        if not gate.is_set():
            gate.set()
            time.sleep(0.03)
            raise ValueError("declined")
        return world.happen("slow:1")

    slow.compensate(lambda: None)
    with runtime(slow, pay).run("r") as run:
        first = run.submit(slow)
        gate.wait()
        assert slow() == "slow:1"
        assert isinstance(first.exception(30), ValueError)


def test_reads_are_never_deduplicated() -> None:
    world = World()
    look = world.read()
    rt = runtime(look)
    with rt.run("r"):
        assert [look(), look()] == [1, 2]
    assert len(list(rt.calls())) == 2


def test_a_call_inside_a_body_knows_its_parent() -> None:
    world = World()
    inner = world.compensatable("inner")

    @tool
    def outer() -> str:
        return inner()

    outer.compensate(lambda: None)
    rt = runtime(outer, inner)
    with rt.run("r"):
        outer()
    calls = {call.tool: call for call in rt.calls()}
    assert calls["inner"].parent == calls["outer"].id
    assert calls["outer"].parent is None


# ---- once across all runs -----------------------------------------------------------------


def test_scope_ledger_is_answered_in_another_run_once_the_first_has_committed() -> None:
    world = World()
    pay = world.compensatable("pay", key="x", scope="ledger")
    rt = runtime(pay)
    with rt.run("a"):
        pay()
    with rt.run("b"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]


def test_scope_ledger_waits_for_an_open_run_then_is_busy_and_names_it() -> None:
    world = World()
    pay = world.compensatable("pay", key="x", scope="ledger")
    rt = runtime(pay, wait=0.02)
    first = rt.open("a")
    first.call(pay)
    with pytest.raises(Busy) as busy, rt.run("b"):
        pay()
    assert busy.value.owner == "a"
    assert "run a" in str(busy.value)
    first.commit()
    with rt.run("b"):
        assert pay() == "pay:1"
    assert world.log == ["pay:1"]


def test_scope_ledger_runs_again_with_another_provider_key_once_the_first_was_taken_back() -> None:
    keys: list[str] = []

    @tool(key="x", scope="ledger")
    def pay(x: str) -> str:
        keys.append(current_call().key)
        return x

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with pytest.raises(KeyError), rt.run("a"):
        pay(x="1")
        raise KeyError
    with rt.run("b"):
        pay(x="1")
    assert len(set(keys)) == 2


def test_scope_ledger_conflicts_across_runs_too() -> None:
    world = World()
    pay = world.compensatable("pay", key="x", scope="ledger")
    rt = runtime(pay)
    with rt.run("a"):
        pay(n=1)
    with rt.run("b"), pytest.raises(KeyConflict):
        pay(n=2)


def test_scope_ledger_is_answered_once_the_other_run_has_pivoted() -> None:
    world = World()
    pay, wire = world.compensatable("pay", scope="ledger"), world.pivot()
    rt = runtime(pay, wire, wait=0.02)
    first = rt.open("a")
    first.call(pay)
    first.call(wire)
    with rt.run("b"):
        assert pay() == "pay:1"
    first.commit()


def test_scope_ledger_keeps_tenants_apart() -> None:
    world = World()
    pay = world.compensatable("pay", scope="ledger")
    rt = runtime(pay)
    for tenant in ("a", "b"):
        with rt.scoped(tenant=tenant).run("r"):
            pay()
    assert world.log == ["pay:1", "pay:1"]
