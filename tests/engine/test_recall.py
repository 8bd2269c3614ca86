"""A call that this process itself saw succeed is answered without the ledger, and never once that may be untrue."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.engine.session import CALLS_MAX, CHARS_MAX, Recall
from amends.errors import InDoubt, KeyConflict, LeaseLost, RolledBack
from amends.ledger.operations import StoreOp
from amends.ledger.plain import AdmitPlain, PlainRun, PlainTool, SettledPlain, Started
from amends.ledger.rows import CallRow
from amends.stores.memory import MemoryStore
from amends.testing import TestRuntime
from tests.host.joined import Shop, sqlite_url
from tests.world import World


class Asked(MemoryStore):
    """A ledger that says which requests it was asked about."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[str] = []

    def perform(self, op: StoreOp[Any]) -> Any:
        self.ops.append(type(op).__name__)
        return super().perform(op)

    async def perform_async(self, op: StoreOp[Any]) -> Any:
        return self.perform(op)

    def admissions(self) -> int:
        """How often it was asked what is to become of a request, since the last time."""
        count = self.ops.count("AdmitCall") + self.ops.count("AdmitPlain")
        self.ops.clear()
        return count


class Story:
    """One runtime of either colour; what is told awaits both alike."""

    def __init__(self, rt: Any, store: Asked) -> None:
        self.rt, self.store = rt, store

    @asynccontextmanager
    async def run(self, id: str = "r", **options: Any) -> AsyncIterator[Any]:
        async with entered(self.rt.run(id, **options)) as run:
            yield run


@asynccontextmanager
async def entered(block: Any) -> AsyncIterator[Any]:
    if hasattr(block, "__aenter__"):
        async with block as inner:
            yield inner
    else:
        with block as inner:
            yield inner


async def done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


@pytest.fixture(params=["blocking", "async"])
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Plays a story in one colour; the blocking one never waits for a loop."""

    def play(story: Callable[[Story], Coroutine[Any, Any, None]], *tools: Any, **options: Any) -> None:
        store = Asked()
        given: dict[str, Any] = {"store": store, "tools": tools, "wait": 0.2} | options
        if request.param == "async":

            async def outer() -> None:
                async with AsyncRuntime(**given) as rt:
                    await story(Story(rt, store))

            return asyncio.run(outer())
        with Runtime(**given) as rt, pytest.raises(StopIteration):
            story(Story(rt, store)).send(None)
        return None

    return play


def test_what_this_process_saw_succeed_is_answered_without_the_ledger(tell: Any) -> None:
    world = World()
    reserve = world.compensatable("reserve", key="x")

    async def story(one: Story) -> None:
        async with one.run() as run:
            first = await done(run.call(reserve, x="1"))
            assert one.store.admissions() == 1
            for _ in range(3):
                assert await done(run.call(reserve, x="1")) == first
            assert one.store.ops == []
            async with entered(run.child("part")) as part:
                one.store.ops.clear()
                assert await done(part.call(reserve, x="1")) == first
                assert one.store.ops == []
        report = await done(one.rt.report("r"))
        assert [call.replays for call in report.calls] == [4]

    tell(story, reserve)
    assert world.log == ["reserve:1"]


def test_other_arguments_a_repeat_on_purpose_and_a_read_are_asked_about(tell: Any) -> None:
    world = World()
    reserve = world.compensatable("reserve", key="x")
    seen: list[int] = []

    @tool(kind="read")
    def look() -> int:
        seen.append(1)
        return len(seen)

    async def story(one: Story) -> None:
        async with one.run() as run:
            await done(run.call(reserve, x="1"))
            with pytest.raises(KeyConflict):
                await done(run.call(reserve, x="1", n=2))
            again = reserve.with_options(again="a second box")
            for _ in range(2):
                await done(run.call(again, x="1"))
            one.store.ops.clear()
            await done(run.call(again, x="1"))
            assert one.store.admissions() == 1
            assert [await done(run.call(look)) for _ in range(2)] == [1, 2]

    tell(story, reserve, look)
    assert world.log == ["reserve:1", "reserve:1"]


def test_what_a_child_took_back_is_done_anew(tell: Any) -> None:
    world = World()
    reserve, book = world.compensatable("reserve"), world.compensatable("book")

    async def story(one: Story) -> None:
        async with one.run() as run:
            await done(run.call(book))
            with suppress(ValueError):
                async with entered(run.child("part")) as part:
                    await done(part.call(reserve))
                    await done(part.call(reserve))
                    raise ValueError("the child")
            assert world.standing == ["book:1"]
            await done(run.call(reserve))
            one.store.ops.clear()
            await done(run.call(book))
            assert one.store.admissions() == 1, "after a way back the ledger is asked about everything"
        assert sorted((call.tool, call.generation, call.state) for call in one.store.calls.values()) == [
            ("book", 1, "succeeded"),
            ("reserve", 1, "compensated"),
            ("reserve", 2, "succeeded"),
        ]

    tell(story, reserve, book)
    assert world.standing == ["book:1", "reserve:1"]


def test_a_thread_that_saw_its_call_succeed_too_late_is_not_heard() -> None:
    recall = Recall()
    recall.close()
    recall.keep(_row("k"))
    assert recall.of("k", "i") is None


def test_a_run_that_is_rolled_back_or_committed_remembers_nothing(tell: Any) -> None:
    world = World()
    reserve = world.compensatable("reserve")

    async def story(one: Story) -> None:
        run = await done(one.rt.open("back"))
        await done(run.call(reserve))
        with pytest.raises(RolledBack):
            await done(run.rollback("why not"))
        assert (run._session.recall.closed, run._session.recall.rows) == (True, {})
        run = await done(one.rt.open("done"))
        await done(run.call(reserve))
        await done(run.commit())
        assert (run._session.recall.closed, run._session.recall.rows) == (True, {})
        one.store.ops.clear()
        assert await done(run.call(reserve)) == "reserve:1"
        assert one.store.admissions() == 1, "a committed run answers from its record"

    tell(story, reserve)
    assert world.standing == ["reserve:1"]


def test_a_run_that_was_given_back_remembers_nothing(tell: Any) -> None:
    """Held for a person: from then on another process may have it, and take it back."""
    world = World()
    reserve = world.compensatable("reserve")
    wire = world.compensatable("wire", key="x", on_conflict="hold")

    async def story(one: Story) -> None:
        from amends.errors import Held

        kept: list[Any] = []
        with pytest.raises(Held):
            async with one.run() as run:
                kept.append(run)
                await done(run.call(reserve))
                await done(run.call(wire, x="1", n=1))
                await done(run.call(wire, x="1", n=2))
        assert kept[0]._session.recall.closed
        one.store.ops.clear()
        with pytest.raises(LeaseLost):
            await done(kept[0].call(reserve))
        assert one.store.admissions() == 1

    tell(story, reserve, wire)


def test_a_lease_that_may_have_run_out_is_no_reason_to_answer() -> None:
    world = World()
    reserve = world.compensatable("reserve")
    rt = TestRuntime(tools=[reserve], lease=30.0)
    run = rt.open("r")
    run.call(reserve)
    driver = rt._test_driver
    driver.trace.clear()
    run.call(reserve)
    assert driver.trace == []
    rt._host.heartbeat.forget(run._session.lease)  # its heart stops
    rt.clock.advance(27.5)  # within the margin: certainly ours no more
    run.call(reserve)
    assert driver.trace == ["AdmitCall"]


def test_a_lease_that_was_lost_is_no_reason_to_answer(tell: Any) -> None:
    world = World()
    reserve = world.compensatable("reserve")

    async def story(one: Story) -> None:
        run = await done(one.rt.open("r"))
        await done(run.call(reserve))
        await done(one.rt.abandon("r", by="ada", why="enough"))
        one.rt._host.heartbeat.renew(one.rt._host.heartbeat.kept())  # it learns so
        assert run._session.lease.lost
        one.store.ops.clear()
        with pytest.raises(InDoubt):  # the record's own word: it was left standing
            await done(run.call(reserve))
        assert one.store.admissions() == 1

    tell(story, reserve)


def test_a_person_who_wants_it_rolled_back_changes_no_answer_until_it_is(tell: Any) -> None:
    world = World()
    reserve = world.compensatable("reserve")

    async def story(one: Story) -> None:
        with pytest.raises(RolledBack):
            async with one.run() as run:
                first = await done(run.call(reserve))
                await done(one.rt.rollback("r", by="ada", why="wrong customer"))
                assert await done(run.call(reserve)) == first
        assert world.standing == []

    tell(story, reserve)


def test_a_failed_call_is_never_answered_from_memory(tell: Any) -> None:
    world = World()
    reserve = world.compensatable("reserve")
    world.script["reserve"] = [ValueError("no")]

    async def story(one: Story) -> None:
        async with one.run() as run:
            with pytest.raises(ValueError, match="no"):
                await done(run.call(reserve))
            assert await done(run.call(reserve)) == "reserve:1"

    tell(story, reserve)


def test_every_answer_is_a_value_of_its_own(tell: Any) -> None:
    @tool
    def rooms() -> list[str]:
        return ["12"]

    rooms.compensate(lambda: None)

    async def story(one: Story) -> None:
        async with one.run() as run:
            first = await done(run.call(rooms))
            first.append("13")
            (await done(run.call(rooms))).append("14")
            assert await done(run.call(rooms)) == ["12"]

    tell(story, rooms)


def test_a_ridden_call_is_remembered_by_nobody(tmp_path: Path) -> None:
    """The caller may still roll back: then it never was, and the next request is the first."""
    with closing(Shop("sqlite", sqlite_url(tmp_path))) as shop:
        tools = shop.tools()
        place = tools["place"]
        with Runtime(url=shop.url, tools=list(tools.values())) as rt:
            shop.make(rt)
            with rt.run("r") as run:
                conn = shop.begin()
                place.with_options(connection=conn)("1")
                assert run._session.recall.rows == {}
                conn.rollback()
                conn.close()
                conn = shop.begin()
                assert place.with_options(connection=conn)("1") == "order 1"
                conn.commit()
        assert shop.orders() == ["1"]


def test_memory_is_bounded_in_calls_and_in_size() -> None:
    recall = Recall()
    for number in range(CALLS_MAX * 2 + 1):
        recall.keep(_row(f"k{number}"))
        assert len(recall.rows) <= CALLS_MAX
    assert recall.of(f"k{CALLS_MAX * 2}", "i") is not None
    recall.keep(_row("large", result="x" * (CHARS_MAX + 1)))
    assert recall.of("large", "i") is None


def test_plain_calls_come_back_as_they_were_kept() -> None:
    run, other = (PlainRun(uid, "r", "t", "agent", "ann", "owner", 1) for uid in ("u", "v"))
    tools = [PlainTool(name, "1", "compensatable", 0, 1) for name in ("reserve", "pay", "ship")]
    recall, kept = Recall(), []
    for number in reversed(range(30)):
        one = bytes([number]) * 32
        op = AdmitPlain(run, tools[number % 3], number, one, one, one, f"[{number}]", "ref" * (number % 2), proof="p")
        kept.append(SettledPlain(Started(op, 2 * number, 1.0), 2 * number + 1, 2.0, f'"{number}"', proof="q"))
        recall.keep_plain(kept[-1])
    for settled in kept:
        op = settled.started.op
        found = recall.of_plain(op.key, op.ident)
        assert found is not None
        assert found.started.op == op
        assert found.started.op.tool is op.tool
        assert found.row == settled.row
        assert found.proof == settled.proof
        assert recall.of_plain(op.key, b"other arguments") is None
        assert recall.of_plain(op.key, op.ident) is found, "what was asked for once is not made again"
        assert recall.of(op.key.hex(), op.ident.hex()) == settled.row
    assert [one.n for one in recall.settled()] == sorted(one.n for one in kept)
    strange = AdmitPlain(other, tools[0], 99, b"x" * 32, b"y" * 32, b"z" * 32, "[]")
    recall.keep_plain(SettledPlain(Started(strange, 1, 1.0), 2, 2.0, "1"))
    assert recall.of_plain(strange.key, strange.ident) is None, "a cache is of one tree"
    recall.close()
    assert recall.settled() == []


def _row(key: str, result: str = '"ok"') -> CallRow:
    return CallRow(
        id=f"call_{key}", seq=1, run="u", root="u", run_id="r", tenant="", tool="reserve", version="1",
        kind="compensatable", key=key, generation=1, ident="i", digest="d", args="{}", state="succeeded",
        created_at=0.0, created_epoch=1, asked_epoch=1, result=result,
    )  # fmt: skip
