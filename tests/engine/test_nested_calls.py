"""Calls inside the body of a call: what passes through it, what waits in it, and what becomes of the outer one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from amends import (
    Absent,
    AsyncRuntime,
    Happened,
    Held,
    InDoubt,
    Refused,
    RunBlocked,
    Runtime,
    UsageError,
    current_run,
    tool,
)
from amends.errors import Busy, LeaseLost, LedgerUnavailable, OutOfOrder, Rejected, RolledBack
from amends.stores.memory import MemoryStore
from tests.world import die, runtime, states, twin_of, until

PAUSES = "belongs in a child run or an agent"


class Shop:
    """An outer tool whose body has an effect, then does what a test says; an inner tool that a test declares."""

    def __init__(self, *, inner: dict[str, Any] | None = None, is_async: Any = False, **outer: Any) -> None:
        self.log: list[str] = []
        self.then: Callable[[], Any] = lambda: self.inner(1)
        self.is_async = is_async
        log = self.log

        if is_async:

            @tool(name="inner", **(inner or {}))
            async def inner_body(n: int) -> str:
                log.append(f"inner {n}")
                return f"inner {n}"

            @tool(name="outer", **outer)
            async def outer_body(n: int = 0) -> str:
                log.append("outer")
                return str(await self.then())
        else:

            @tool(name="inner", **(inner or {}))
            def inner_body(n: int) -> str:  # type: ignore[misc]
                log.append(f"inner {n}")
                return f"inner {n}"

            @tool(name="outer", **outer)
            def outer_body(n: int = 0) -> str:  # type: ignore[misc]
                log.append("outer")
                return str(self.then())

        self.inner: Any = inner_body
        self.outer: Any = outer_body
        if (inner or {}).get("kind", "compensatable") == "compensatable":
            self.inner.compensate(lambda n: log.append(f"undo inner {n}"))
        if outer.get("kind", "compensatable") == "compensatable":
            self.outer.compensate(lambda: log.append("undo outer"))

    def runtime(self, **options: Any) -> Runtime:
        return Runtime("memory:", tools=[self.inner, self.outer], **options)


def decide(rt: Any, how: str = "approve", after: float = 0.1) -> threading.Thread:
    """Somebody who decides, from another thread."""

    def person() -> None:
        time.sleep(after)
        until(lambda: bool(list(rt.approvals())))
        one = next(rt.approvals())
        if how == "approve":
            rt.approve(one.id, digest=one.digest, by="anna", why="yes")
        else:
            rt.reject(one.id, by="anna", reason="no")

    thread = threading.Thread(target=person)
    thread.start()
    return thread


# ---- words of amends that pass through a body ---------------------------------------------


def words() -> list[Exception]:
    return [
        Held("held", call=None, reason="approval"),
        Busy("busy", owner="x", retry_after=1.0),
        InDoubt("doubt", call=None, why="timeout"),
        RunBlocked("blocked", run_id="x"),
        LeaseLost("lost"),
        LedgerUnavailable("gone"),
        ExceptionGroup("g", [ValueError(), Held("held", call=None, reason="approval")]),
    ]


@pytest.mark.parametrize("at", range(7))
def test_words_of_amends_through_a_body_are_doubt_of_the_outer_call(at: int) -> None:
    shop = Shop()

    def then() -> None:
        raise words()[at]

    shop.then = then
    rt = shop.runtime()
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt) as caught:
            shop.outer()
        assert PAUSES in str(caught.value)
        raise KeyError
    assert states(rt, "r") == {"outer": "in_doubt"}
    assert shop.log == ["outer"]


@pytest.mark.parametrize("how", ["cause", "context"])
def test_words_of_amends_under_another_error_are_doubt_too(how: str) -> None:
    shop = Shop()

    def then() -> None:
        try:
            raise words()[0]
        except Held as held:
            if how == "cause":
                raise RuntimeError("wrapped") from held
            raise RuntimeError("wrapped")  # noqa: B904 (this is what is tried)

    shop.then = then
    rt = shop.runtime()
    with pytest.raises(RunBlocked), rt.run("r"):
        shop.outer()
    assert states(rt, "r") == {"outer": "in_doubt"}


@pytest.mark.parametrize("error", [OutOfOrder("x", law="pivot_early", missing=["y"]), UsageError("wrong")])
def test_a_refusal_is_an_ordinary_error_unless_a_call_inside_had_its_effect(error: Exception) -> None:
    shop = Shop()

    def then() -> None:
        raise error

    shop.then = then
    rt = shop.runtime()
    with rt.run("r"), pytest.raises(type(error)):
        shop.outer()
    assert states(rt, "r") == {"outer": "failed"}

    def after_an_effect() -> None:
        shop.inner(1)
        raise error

    shop.then = after_an_effect
    with pytest.raises(RunBlocked), rt.run("s"):
        with pytest.raises(InDoubt):
            shop.outer()
        raise KeyError
    assert states(rt, "s") == {"inner": "compensated", "outer": "in_doubt"}


def test_an_effect_answered_from_the_record_counts_and_a_read_or_a_failure_does_not() -> None:
    shop = Shop()

    def then() -> None:
        shop.inner(1)
        raise UsageError("wrong")

    shop.then = then
    rt = shop.runtime()
    with pytest.raises(RunBlocked), rt.run("r"):
        shop.inner(1)
        with pytest.raises(InDoubt):
            shop.outer()
        raise KeyError

    reads = Shop(inner={"kind": "read"})

    def look() -> None:
        reads.inner(1)
        raise UsageError("wrong")

    reads.then = look
    rt = reads.runtime()
    with rt.run("r"), pytest.raises(UsageError):
        reads.outer()
    assert states(rt, "r")["outer"] == "failed"


@pytest.mark.parametrize("between", ["read", "failed"])
def test_an_effect_deeper_inside_counts_too(between: str) -> None:
    shop = Shop()

    @tool(kind="read" if between == "read" else "compensatable")
    def middle() -> None:
        shop.inner(1)
        if between == "failed":
            raise ValueError

    if between == "failed":
        middle.compensate(lambda: None)

    def then() -> None:
        with suppress(ValueError):
            middle()
        raise OutOfOrder("x", law="pivot_early", missing=["y"])

    shop.then = then
    rt = Runtime("memory:", tools=[shop.inner, shop.outer, middle])
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt):
            shop.outer()
        raise KeyError
    assert states(rt, "r")["outer"] == "in_doubt"


def test_a_body_that_catches_what_its_call_says_goes_on() -> None:
    shop = Shop(inner={"needs_approval": True})

    def then() -> str:
        try:
            shop.inner(1)
        except Held:
            return "without"
        return "with"

    shop.then = then
    rt = shop.runtime(wait_approval=0.05)
    with pytest.raises(Held), rt.run("r"):
        assert shop.outer() == "without"
    assert states(rt, "r") == {"inner": "held", "outer": "succeeded"}


def test_a_body_that_asks_for_itself_is_told_so_at_once() -> None:
    shop = Shop()
    shop.then = lambda: shop.outer()
    rt = shop.runtime()
    began = time.monotonic()
    with rt.run("r"), pytest.raises(UsageError, match="wait for itself"):
        shop.outer()
    assert time.monotonic() - began < 25
    assert states(rt, "r") == {"outer": "failed"}


def test_a_child_taken_back_inside_a_body_is_an_ordinary_error_of_it() -> None:
    shop = Shop()

    def then() -> None:
        with current_run().child("c") as child:
            child.rollback("not wanted")

    shop.then = then
    rt = shop.runtime()
    with rt.run("r"), pytest.raises(RolledBack):
        shop.outer()
    assert states(rt, "r") == {"outer": "failed"}


# ---- people -------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_call_inside_a_body_waits_in_place_for_its_person(timeout: float | None) -> None:
    shop = Shop(inner={"needs_approval": True}, **({} if timeout is None else {"timeout": timeout}))
    rt = shop.runtime()
    with rt.run("r") as run:
        person = decide(rt)
        assert shop.outer() == "inner 1"
        assert run.state == "open"
        person.join()
    assert shop.log == ["outer", "inner 1"]
    assert states(rt, "r") == {"inner": "succeeded", "outer": "succeeded"}
    assert not [event for event in rt.events() if event.what in ("taken over", "let go", "suspended")]


def test_a_call_inside_a_body_waits_in_place_in_an_async_run() -> None:
    shop = Shop(inner={"needs_approval": True}, is_async=True)

    async def program() -> None:
        rt = AsyncRuntime("memory:", tools=[shop.inner, shop.outer])

        async def person() -> None:
            while not (asked := [one async for one in rt.approvals()]):
                await asyncio.sleep(0.01)
            await rt.approve(asked[0].id, digest=asked[0].digest, by="anna", why="yes")

        async with rt.run("r"):
            somebody = asyncio.create_task(person())
            assert await shop.outer() == "inner 1"
            await somebody
        assert (await rt.report("r")).state == "committed"

    asyncio.run(program())
    assert shop.log == ["outer", "inner 1"]


def test_a_persons_no_inside_a_body_is_an_ordinary_error_of_it() -> None:
    shop = Shop(inner={"needs_approval": True})
    rt = shop.runtime()
    with rt.run("r"):
        person = decide(rt, "reject")
        with pytest.raises(Rejected):
            shop.outer()
        person.join()
    assert states(rt, "r") == {"inner": "refused", "outer": "failed"}


@pytest.mark.parametrize("limit", ["timeout", "wait_approval", "run"])
def test_past_its_patience_the_outer_call_is_in_doubt_and_says_what_to_do(limit: str) -> None:
    shop = Shop(inner={"needs_approval": True}, **({"timeout": 0.3} if limit == "timeout" else {}))
    rt = shop.runtime(**({"wait_approval": 0.2} if limit == "wait_approval" else {}))
    options: dict[str, Any] = {"wait_approval": 0.2} if limit == "run" else {}
    with pytest.raises(RunBlocked), rt.run("r", **options):
        with pytest.raises(InDoubt) as caught:
            shop.outer()
        assert PAUSES in str(caught.value)
        raise KeyError
    assert states(rt, "r") == {"inner": "dropped", "outer": "in_doubt"}
    assert shop.log == ["outer"]


@pytest.mark.parametrize("limit", ["timeout", "wait_approval"])
def test_past_its_patience_in_an_async_run(limit: str) -> None:
    shop = Shop(inner={"needs_approval": True}, is_async=True, **({"timeout": 0.3} if limit == "timeout" else {}))

    async def program() -> None:
        options: dict[str, Any] = {"wait_approval": 0.2} if limit == "wait_approval" else {}
        rt = AsyncRuntime("memory:", tools=[shop.inner, shop.outer], **options)
        with pytest.raises(RunBlocked):
            async with rt.run("r"):
                with pytest.raises(InDoubt) as caught:
                    await shop.outer()
                assert PAUSES in str(caught.value)
                raise KeyError
        assert {call.tool: call.state for call in (await rt.report("r")).calls} == {
            "inner": "dropped", "outer": "in_doubt",
        }  # fmt: skip

    asyncio.run(program())


def test_a_rollback_that_a_person_asks_for_ends_the_wait() -> None:
    shop = Shop(inner={"needs_approval": True})
    rt = shop.runtime()

    def person() -> None:
        until(lambda: bool(list(rt.approvals())))
        rt.rollback("r", by="anna", why="enough")

    thread = threading.Thread(target=person)
    with pytest.raises((RolledBack, Refused, UsageError)), rt.run("r"):
        thread.start()
        shop.outer()
    thread.join()
    assert rt.report("r").state == "rolled_back"


def test_a_child_left_inside_a_body_over_a_held_call_keeps_the_lease_of_the_tree() -> None:
    shop = Shop(inner={"needs_approval": True})

    def then() -> str:
        with suppress(Held), current_run().child("c") as child, suppress(Held):
            child.call(shop.inner, 1)
        assert rt.report("r").run.owner is not None, "the body still runs under the lease"
        return "done"

    shop.then = then
    rt = shop.runtime(wait_approval=0.05)
    with pytest.raises(Held), rt.run("r"):
        assert shop.outer() == "done"
    assert states(rt, "r")["outer"] == "succeeded"


def test_a_request_that_runs_out_inside_a_body_is_asked_anew_and_waited_for() -> None:
    from amends import Rule

    shop = Shop()
    rt = shop.runtime(rules=[Rule("inner", expires=1.0)])

    def person() -> None:
        until(lambda: bool(list(rt.approvals())))
        first = next(rt.approvals()).id
        until(lambda: any(one.id != first for one in rt.approvals()))
        one = next(one for one in rt.approvals() if one.id != first)
        rt.approve(one.id, digest=one.digest, by="anna", why="yes")

    thread = threading.Thread(target=person)
    with rt.run("r"):
        thread.start()
        assert shop.outer() == "inner 1"
    thread.join()


# ---- locks and twins ----------------------------------------------------------------------


def test_a_call_inside_a_body_waits_for_the_lock_of_another_run() -> None:
    shop = Shop(inner={"locks": lambda call: ["x"]})
    rt = shop.runtime()
    taken, go = threading.Event(), threading.Event()

    def other() -> None:
        with rt.run("other"):
            shop.inner(2)
            taken.set()
            go.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(60)
    with rt.run("r"):
        threading.Timer(0.2, go.set).start()
        assert shop.outer() == "inner 1"
    thread.join()
    assert states(rt, "r") == {"inner": "succeeded", "outer": "succeeded"}


def test_a_lock_that_is_not_freed_leaves_the_outer_call_in_doubt() -> None:
    shop = Shop(inner={"locks": lambda call: ["x"]})
    rt = shop.runtime(wait=0.2)
    taken, go = threading.Event(), threading.Event()

    def other() -> None:
        with rt.run("other"):
            shop.inner(2)
            taken.set()
            go.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(60)
    with pytest.raises(RunBlocked), rt.run("r"):
        with pytest.raises(InDoubt) as caught:
            shop.outer()
        assert PAUSES in str(caught.value)
        raise KeyError
    go.set()
    thread.join()
    assert states(rt, "r") == {"outer": "in_doubt"}


def test_an_approved_call_inside_a_body_waits_for_its_lock_only_as_long_as_the_body_has() -> None:
    shop = Shop(inner={"locks": lambda call: ["x"], "needs_approval": lambda call: call.args["n"] == 1}, timeout=1)
    rt = shop.runtime()
    taken, go = threading.Event(), threading.Event()

    def other() -> None:
        with rt.run("other"):
            shop.inner(2)
            taken.set()
            go.wait(20)

    thread = threading.Thread(target=other)
    thread.start()
    assert taken.wait(60)
    with pytest.raises(RunBlocked), rt.run("r"):
        person = decide(rt, after=0)
        with pytest.raises(InDoubt) as caught:
            shop.outer()
        assert PAUSES in str(caught.value)
        person.join()
        raise KeyError
    go.set()
    thread.join()
    assert states(rt, "r") == {"outer": "in_doubt", "inner": "dropped"}
    assert shop.log == ["inner 2", "outer"]


# ---- the outer call again -----------------------------------------------------------------


def test_an_idempotent_outer_call_is_repeated_and_its_calls_are_answered_from_the_record() -> None:
    shop = Shop(idempotent=True)
    lost = [True]

    def then() -> str:
        value = shop.inner(1)
        if lost:
            lost.clear()
            raise LedgerUnavailable("gone")
        return str(value)

    shop.then = then
    rt = shop.runtime()
    with rt.run("r"):
        assert shop.outer() == "inner 1"
    assert shop.log == ["outer", "inner 1", "outer"]


def test_an_outer_call_that_a_probe_calls_absent_is_started_again() -> None:
    shop = Shop()
    seen: list[str] = []
    shop.outer.probe(settle=0)(lambda: Happened("there") if seen else Absent())
    lost = [True]

    def then() -> str:
        value = shop.inner(1)
        if lost:
            lost.clear()
            raise Busy("busy", owner="x", retry_after=1)
        return str(value)

    shop.then = then
    rt = shop.runtime()
    with rt.run("r"):
        assert shop.outer() == "inner 1"
    assert shop.log == ["outer", "inner 1", "outer"]


def test_work_handed_to_a_thread_of_the_run_belongs_to_the_body() -> None:
    shop = Shop(inner={"needs_approval": True})
    shop.then = lambda: current_run().submit(shop.inner, 1).result()
    rt = shop.runtime()
    with rt.run("r"):
        person = decide(rt)
        assert shop.outer() == "inner 1"
        person.join()
    assert states(rt, "r") == {"inner": "succeeded", "outer": "succeeded"}


def test_a_thread_that_outlives_the_body_does_not_hold_up_the_run() -> None:
    shop = Shop(inner={"needs_approval": True})
    left: list[Any] = []

    def then() -> str:
        left.append(current_run().submit(shop.inner, 1))
        until(lambda: bool(list(rt.approvals())))
        return "done"

    shop.then = then
    rt = shop.runtime()
    with pytest.raises(Held), rt.run("r"):
        assert shop.outer() == "done"
    with pytest.raises(Held):
        left[0].result(timeout=10)
    assert states(rt, "r") == {"outer": "succeeded", "inner": "held"}


def test_a_task_that_outlives_the_body_does_not_hold_up_the_run() -> None:
    async def main() -> None:
        shop = Shop(inner={"needs_approval": True}, is_async=True)
        left: list[Any] = []

        async def then() -> str:
            left.append(asyncio.create_task(shop.inner(1)))
            while not [one async for one in rt.approvals()]:
                await asyncio.sleep(0.01)
            return "done"

        shop.then = then
        rt = AsyncRuntime("memory:", tools=[shop.inner, shop.outer])
        with pytest.raises(Held):
            async with rt.run("r"):
                assert await shop.outer() == "done"
                with pytest.raises(Held):
                    await asyncio.wait_for(left[0], 10)
        report = await rt.report("r")
        assert {call.tool: call.state for call in report.calls} == {"outer": "succeeded", "inner": "held"}

    asyncio.run(main())


def test_a_recovered_body_that_uses_the_yes_of_its_call_leaves_nothing_to_wait_for() -> None:
    shop = Shop(inner={"needs_approval": True}, idempotent=True)
    store = MemoryStore()

    def then() -> str:
        try:
            return str(shop.inner(1))
        except Held:
            raise KeyboardInterrupt from None  # the process dies while its call waits

    shop.then = then
    run = runtime(shop.inner, shop.outer, store=store, wait_approval=0).open("r")
    with pytest.raises(KeyboardInterrupt):
        run.call(shop.outer)
    worker = twin_of(store, shop.inner, shop.outer)
    one = next(worker.approvals())
    worker.approve(one.id, digest=one.digest, by="anna", why="yes")
    die(run)
    (report,) = worker.recover()
    assert report.state == "rolled_back"
    assert shop.log == ["outer", "outer", "inner 1", "undo outer", "undo inner 1"]
    assert worker.recover() == []
