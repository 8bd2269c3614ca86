"""What follows a compensation is recorded together with it: the next one begins, or the run is closed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Runtime, tool
from amends.engine import outcomes
from amends.engine.outcomes import _verdict_by_class
from amends.errors import LedgerUnavailable, class_name
from amends.ledger.operations import BeginCompensation, CloseRun, SettleCompensation
from amends.stores.memory import MemoryStore
from amends.stores.postgres.wakeup import topics_of
from amends.stores.sqlite.store import SqliteStore
from tests.world import World, states


class Told:
    """Remembers what the ledger was asked for."""

    asked: list[Any]
    lost: str = ""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.asked = []

    def perform(self, op: Any) -> Any:
        answer = super().perform(op)  # type: ignore[misc]
        self.asked.append((op, answer))
        if type(op).__name__ == self.lost and not op.repeated:
            raise LedgerUnavailable("the answer was lost")
        return answer

    def named(self, kind: type) -> list[Any]:
        return [op for op, _ in self.asked if type(op) is kind]


class InMemory(Told, MemoryStore):
    pass


class InFile(Told, SqliteStore):
    pass


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return InMemory() if request.param == "memory" else InFile(tmp_path / "ledger.db")


def _fails(rt: Runtime, *tools: Any) -> None:
    with pytest.raises(KeyError), rt.run("r"):
        for one in tools:
            one()
        raise KeyError


def test_a_rollback_asks_for_one_step_a_compensation_and_one_more(store: Any) -> None:
    world = World()
    tools = [world.compensatable(name) for name in "abc"]
    _fails(Runtime(store=store, tools=tools), *tools)
    assert world.log[3:] == ["undo c:1", "undo b:1", "undo a:1"]
    assert len(store.named(BeginCompensation)) == 1, "only the first is begun by itself"
    assert [type(op.then).__name__ for op in store.named(SettleCompensation)] == [
        "BeginCompensation", "BeginCompensation", "CloseRun",
    ]  # fmt: skip
    assert not store.named(CloseRun)


def test_each_begins_durably_before_its_body_runs(store: Any) -> None:
    seen: list[dict[str, str]] = []

    @tool
    def one(text: str) -> str:
        return text

    @one.compensate
    def undo(result: str) -> None:
        seen.append({call.args["text"]: call.state for call in rt.calls()})

    rt = Runtime(store=store, tools=[one])
    with pytest.raises(KeyError), rt.run("r"):
        one("a")
        one("b")
        raise KeyError
    assert seen == [{"a": "succeeded", "b": "compensating"}, {"a": "compensating", "b": "compensated"}]
    assert rt.report("r").state == "rolled_back"


@pytest.mark.parametrize("last", [False, True])
def test_a_lost_answer_leaves_no_doubt(store: Any, last: bool) -> None:
    world = World()
    tools = [world.compensatable(name) for name in ("a" if last else "ab")]
    store.lost = "SettleCompensation"
    rt = Runtime(store=store, tools=tools)
    _fails(rt, *tools)
    assert states(rt, "r") == dict.fromkeys("a" if last else "ab", "compensated")
    assert world.log == (["a:1", "undo a:1"] if last else ["a:1", "b:1", "undo b:1", "undo a:1"])
    assert rt.report("r").state == "rolled_back"
    assert rt.verify().ok


def test_a_run_that_is_closed_so_is_told_like_any(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    a = world.compensatable("a")
    with caplog.at_level(logging.INFO, logger="amends"):
        _fails(Runtime(store=store, tools=[a]), a)
    assert [record.getMessage() for record in caplog.records if getattr(record, "event", "") == "rollback"]
    closing = next(pair for pair in store.asked if isinstance(pair[0], SettleCompensation))
    assert topics_of(*closing) == (closing[1].call.root,), "other processes may wait for its end"


def test_what_stands_keeps_the_run_from_being_closed_with_the_last(store: Any) -> None:
    world = World()
    a, b = world.compensatable("a"), world.compensatable("b")
    world.script["undo b"] = [ValueError("no")] * 9
    rt = Runtime(store=store, tools=[a, b])
    with pytest.raises(Exception, match="blocked"), rt.run("r"):
        a()
        b()
        raise KeyError
    assert states(rt, "r")["a"] == "compensated"
    assert rt.report("r").state == "blocked"


def test_the_same_awaited() -> None:
    done: list[str] = []

    @tool
    async def one(text: str) -> str:
        return text

    @one.compensate
    async def undo(result: str) -> None:
        done.append(result)

    async def main() -> None:
        async with AsyncRuntime(store=ledger, tools=[one]) as rt:
            with pytest.raises(KeyError):
                async with rt.run("r"):
                    await one("a")
                    await one("b")
                    raise KeyError

    ledger = InMemory()
    asyncio.run(main())
    assert done == ["b", "a"]
    assert not ledger.named(CloseRun)
    assert len(ledger.named(BeginCompensation)) == 1


@pytest.mark.parametrize("kind", sorted(outcomes._ORDINARY, key=str))
def test_an_error_that_is_judged_at_once_is_judged_as_by_the_tables(kind: type[Exception]) -> None:
    names = {class_name(cls) for cls in kind.__mro__}
    assert names.isdisjoint({*outcomes.NEVER_SENT, *outcomes.MAYBE_SENT, *outcomes.BY_CONTENT})
    assert _verdict_by_class(kind("x")) == "ordinary"
    told = kind("x")
    told.status_code = 503  # type: ignore[attr-defined]
    assert _verdict_by_class(told) == "doubt", "an attribute counts, whatever the class"
