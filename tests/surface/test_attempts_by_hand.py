"""Calls that are not a tool's body: attempts by hand, and undeclared code done once."""

from __future__ import annotations

import asyncio
from decimal import Decimal

import pytest

from amends import AsyncRuntime, Attempt, Budget, RolledBack, Run, RunBlocked, UsageError
from amends.errors import BadArguments, BadCost, BudgetExceeded, KeyConflict, OutOfOrder, ToolFailed
from tests.world import World, runtime, states


def test_an_attempt_by_hand_succeeds_and_is_answered_from_the_record() -> None:
    world = World()
    pay = world.compensatable("pay", key="x")
    rt = runtime(pay)
    with rt.run("r") as run:
        attempt = run.begin("pay", {"x": "7"})
        assert not attempt.replayed
        assert len(attempt.call.key) == 64
        attempt.succeed("by hand")
        again = run.begin("pay", {"x": "7"})
        assert (again.replayed, again.result) == (True, "by hand")
        assert pay(x="7") == "by hand"
    assert world.log == []


def test_an_attempt_by_hand_is_compensated() -> None:
    world = World()
    pay = world.compensatable("pay")
    with pytest.raises(KeyError), runtime(pay).run("r") as run:
        run.begin("pay", {"x": "7"}).succeed("pay:7")
        raise KeyError
    assert world.log == ["undo pay:7"]


def test_an_attempt_that_failed_certainly_had_no_effect() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r") as run:
        run.begin("pay", {}).fail("declined")
        run.begin("pay", {}).fail(TimeoutError("but nothing was sent"))
        assert pay() == "pay:1"
    assert [call.state for call in rt.report("r").calls] == ["failed", "failed", "succeeded"]


def test_silence_is_doubt() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.begin("pay", {})
    assert states(rt, "r") == {"pay": "in_doubt"}
    with pytest.raises(RunBlocked), rt.run("s") as run:
        with run.begin("pay", {}):
            pass
    assert states(rt, "s") == {"pay": "in_doubt"}


def test_an_exception_inside_an_attempt_says_what_it_says() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r") as run:
        with pytest.raises(ValueError), run.begin("pay", {}):
            raise ValueError("declined")
    assert states(rt, "r") == {"pay": "failed"}
    with pytest.raises(RunBlocked), rt.run("s") as run:
        with pytest.raises(TimeoutError), run.begin("pay", {}):
            raise TimeoutError
    assert states(rt, "s") == {"pay": "in_doubt"}


def test_an_attempt_ends_once() -> None:
    world = World()
    pay = world.compensatable("pay")
    with runtime(pay).run("r") as run:
        attempt = run.begin("pay", {})
        attempt.succeed(1)
        with pytest.raises(UsageError):
            attempt.fail("no")


def test_leaving_a_run_asks_its_open_attempts_to_end_themselves() -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)

    def leave(run: Run, id: str) -> Attempt:
        attempt = run.begin("pay", {"x": id})
        attempt.at_leave = lambda: attempt.succeed(f"known of {id}")
        return attempt

    with rt.run("committed") as run:
        leave(run, "1")
        with run.child("inner") as inner:
            leave(inner, "2")
        leave(run, "3").fail("ended before: nobody asks it")
    found = [*rt.report("committed").calls, *rt.report("committed/inner").calls]
    assert [call.result for call in found] == ["known of 1", None, "known of 2"]
    with pytest.raises(KeyError), rt.run("raised") as run:
        leave(run, "1")
        raise KeyError
    with pytest.raises(RolledBack), rt.run("asked") as run:
        leave(run, "1")
        run.rollback("enough")
    assert states(rt, "raised") == states(rt, "asked") == {"pay": "compensated"}


def test_an_attempt_that_cannot_end_itself_is_doubt_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with pytest.raises(RunBlocked), rt.run("r") as run:
        run.begin("pay", {}).at_leave = lambda: 1 / 0
    assert states(rt, "r") == {"pay": "in_doubt"}
    assert "was not ended before its run was left" in caplog.text


def test_leaving_an_async_run_asks_its_open_attempts_too() -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:") as rt:
            async with rt.run("r") as run:
                attempt = await run.begin("look", {}, kind="read")
                attempt.at_leave = lambda: attempt.succeed("known")
            [call] = (await rt.report("r")).calls
            assert call.result == "known"

    asyncio.run(main())


def test_an_attempt_reserves_its_cost_and_settles_what_was_spent() -> None:
    rt = runtime(budgets=[Budget(10)])
    with rt.run("r") as run:
        first = run.begin("look", {"x": 1}, kind="read", cost=6)
        with pytest.raises(BudgetExceeded) as refused:
            run.begin("look", {"x": 2}, kind="read", cost={"usd": 6})
        assert (refused.value.spent, refused.value.reserved) == (Decimal(0), Decimal(6))
        first.spent(1)
        first.spent(1.5)
        first.succeed()
        failed = run.begin("look", {"x": 3}, kind="read", cost=6)
        failed.spent(2)
        failed.fail("and yet it was paid for")
        with pytest.raises(BudgetExceeded) as refused:
            run.begin("look", {"x": 4}, kind="read", cost=6)
    assert (refused.value.spent, refused.value.reserved) == (Decimal("4.5"), Decimal(0))


def test_what_an_attempt_cannot_cost_is_refused() -> None:
    with runtime().run("r") as run:
        with pytest.raises(BadCost):
            run.begin("look", {}, kind="read", cost=-1)
        attempt = run.begin("look", {}, kind="read")
        with pytest.raises(UsageError, match=r"spent\(\) of look"):
            attempt.spent(-1)
        attempt.succeed()


def test_an_undeclared_tool_by_hand_must_say_what_it_is() -> None:
    rt = runtime()
    with rt.run("r") as run:
        with pytest.raises(UsageError):
            run.begin("curl", {"url": "x"})
        attempt = run.begin("curl", {"url": "x"}, kind="pivot", key="url")
        attempt.succeed({"ok": True})
        assert run.state == "pivoted"
        with pytest.raises(KeyConflict):
            run.begin("curl", {"url": "x", "body": "y"}, kind="pivot", key="url")
        with pytest.raises(OutOfOrder):
            run.begin("curl", {"url": "z"}, kind="pivot", key="url")
    assert run.state == "committed"


def test_what_is_staged_cannot_be_done_by_hand() -> None:
    world = World()
    mail = world.retriable()
    with runtime(mail).run("r") as run, pytest.raises(UsageError):
        run.begin("mail", {})


def test_once_in_a_run_is_a_child_with_its_own_pivot() -> None:
    log: list[str] = []

    def send(to: str, *, subject: str = "hi") -> dict[str, str]:
        log.append(to)
        return {"to": to}

    world = World()
    pay = world.compensatable("pay")
    rt = runtime(pay)
    with rt.run("r") as run:
        for _ in range(2):
            assert run.once("mail", send, "anna") == {"to": "anna"}
        with pytest.raises(KeyConflict):
            run.once("mail", send, "bob")
        assert run.state == "open"
        pay()
    assert log == ["anna"]
    report = rt.report("r")
    assert report.state == "committed"
    assert [child.run.id for child in report.children] == ["r/once:mail"]


def test_once_that_fails_may_be_tried_again() -> None:
    turns = [ValueError("no"), None]

    def send() -> str:
        turn = turns.pop(0)
        if turn is not None:
            raise turn
        return "sent"

    with runtime().run("r") as run:
        with pytest.raises(ValueError):
            run.once("mail", send)
        assert run.once("mail", send) == "sent"


def test_once_is_residue_when_the_run_goes_back() -> None:
    rt = runtime()
    with pytest.raises(RunBlocked) as blocked, rt.run("r") as run:
        run.once("mail", lambda: "sent")
        raise KeyError
    assert len(blocked.value.residue) == 1


def test_once_in_the_ledger_has_one_effect_and_answers_from_the_record_after() -> None:
    log: list[object] = []

    def send(payload: dict[str, str]) -> str:
        log.append(payload)
        return "msg-1"

    rt = runtime()
    for _ in range(2):
        assert rt.once("email:C123", send, {"to": "c@x"}) == "msg-1"
    assert len(log) == 1
    with pytest.raises(KeyConflict):
        rt.once("email:C123", send, {"to": "d@x"})
    with pytest.raises(BadArguments):
        rt.once("other", send)
    assert rt.report("once:email:C123").state == "committed"


def test_once_in_the_ledger_with_typed_results_and_failures() -> None:
    from decimal import Decimal

    rt = runtime()

    def price() -> Decimal:
        return Decimal("1.10")

    assert [rt.once("p", price), rt.once("p", price)] == [Decimal("1.10")] * 2

    def broken() -> None:
        raise ValueError("no")

    for _ in range(2):  # it failed, so its run went back, and it may be tried again
        with pytest.raises((ValueError, ToolFailed)):
            rt.once("b", broken)


def test_once_from_two_threads_has_one_effect() -> None:
    import time

    from tests.world import together

    log: list[int] = []

    def slow() -> int:
        log.append(1)
        time.sleep(0.03)
        return 7

    rt = runtime()
    assert together([lambda: rt.once("k", slow)] * 8) == [7] * 8
    assert log == [1]


def test_once_works_async_and_with_async_functions() -> None:
    log: list[str] = []

    async def send(to: str) -> str:
        await asyncio.sleep(0)
        log.append(to)
        return to

    async def main() -> None:
        rt = AsyncRuntime("memory:")
        for _ in range(2):
            assert await rt.once("k", send, "anna") == "anna"
        with pytest.raises(KeyConflict):
            await rt.once("k", send, "bob")
        await rt.close()

    asyncio.run(main())
    assert log == ["anna"]
    rt = runtime()
    assert rt.once("k", send, "carl") == "carl"
    rt.close()
