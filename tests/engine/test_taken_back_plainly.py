"""A run whose calls were all plain is taken back by few steps that read nothing; whatever is unusual goes the general way."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Call, RunBlocked, Runtime, current_call, tool
from amends.errors import LedgerUnavailable
from amends.ledger.operations import BeginCompensation, BeginRollback, CloseRun, SettleCompensation
from amends.ledger.plain import Begun, TakenBack, TurnPlain, UndonePlain
from amends.model import Retry
from amends.stores.sqlite.store import SqliteStore

GENERAL = (BeginRollback, BeginCompensation, SettleCompensation, CloseRun)


class Told(SqliteStore):
    """Remembers what it was asked for in the runs after the first, and loses answers."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "NORMAL")
        self.asked: list[tuple[Any, Any]] = []
        self.lost: Counter[type] = Counter()

    def perform(self, op: Any) -> Any:
        answer = super().perform(op)
        self.asked.append((op, answer))
        if self.lost[type(op)]:
            self.lost[type(op)] -= 1
            raise LedgerUnavailable("the answer was lost")
        return answer

    def kinds(self) -> list[str]:
        return [type(op).__name__ for op, _ in self.asked if isinstance(op, (TurnPlain, UndonePlain, *GENERAL))]


class Shop:
    """A tool whose calls are plain, in a ledger that knows it; what was done and undone."""

    def __init__(self, path: Path, *, twin: dict[str, Any] | None = None) -> None:
        self.log: list[str] = []
        self.broken: list[BaseException] = []
        self.store = Told(path / "ledger.db")

        @tool
        def pay(order: str) -> dict[str, str]:
            self.log.append(order)
            return {"id": order}

        @pay.compensate(**(twin or {}))
        def refund(result: dict[str, str]) -> None:
            if self.broken and (error := self.broken.pop(0)) is not None:
                raise error
            self.log.append(f"-{result['id']}")

        @tool(kind="read")
        def look(order: str) -> str:
            return order

        self.pay, self.look = pay, look
        self.rt = Runtime(store=self.store, tools=[pay, look], checkpoint="off")
        with self.rt.run("first"):
            pay("first")
            look("first")
        self.log.clear()
        self.store.asked.clear()

    def fail(self, *orders: str) -> KeyError:
        with pytest.raises(KeyError) as caught, self.rt.run("r"):
            for order in orders:
                self.pay(order)
            raise KeyError
        return caught.value

    def states(self) -> dict[str, str]:
        return {call.args["order"]: call.state for call in self.rt.report("r").calls}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def test_one_step_begins_it_and_one_ends_each_compensation(shop: Shop) -> None:
    error = shop.fail("a", "b", "c")
    assert shop.log == ["a", "b", "c", "-c", "-b", "-a"]
    assert shop.store.kinds() == ["TurnPlain", *["UndonePlain"] * 3]
    assert [type(answer) for op, answer in shop.store.asked if isinstance(op, TurnPlain | UndonePlain)] == [
        Begun, Begun, Begun, TakenBack,
    ]  # fmt: skip
    assert error.__notes__ == ["amends: run r rolled back, 3 calls compensated"]
    assert shop.states() == dict.fromkeys("abc", "compensated")
    assert shop.rt.report("r").state == "rolled_back"
    assert shop.rt.verify().ok


def test_each_begins_durably_before_its_body_runs(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    @tool
    def one(text: str) -> str:
        return text

    @one.compensate
    def undo(result: str) -> None:
        seen.append({call.args["text"]: call.state for call in rt.calls() if call.run_id == "r"})

    rt = Runtime(store=(store := Told(tmp_path / "ledger.db")), tools=[one], checkpoint="off")
    with rt.run("first"):
        one("first")
    with pytest.raises(KeyError), rt.run("r"):
        one("a")
        one("b")
        raise KeyError
    assert "TurnPlain" in store.kinds()
    assert seen == [{"a": "succeeded", "b": "compensating"}, {"a": "compensating", "b": "compensated"}]


@pytest.mark.parametrize("lost", [TurnPlain, UndonePlain])
@pytest.mark.parametrize("orders", ["a", "ab"])
def test_a_lost_answer_leaves_no_doubt(shop: Shop, lost: type, orders: str) -> None:
    shop.store.lost[lost] = 1
    shop.fail(*orders)
    assert shop.log == [*orders, *(f"-{order}" for order in reversed(orders))]
    assert shop.states() == dict.fromkeys(orders, "compensated")
    assert shop.rt.report("r").state == "rolled_back"
    assert shop.rt.verify().ok


def test_a_compensation_that_fails_is_tried_again(tmp_path: Path) -> None:
    shop = Shop(tmp_path, twin={"retry": Retry(3, delay=0.001)})
    shop.broken = [ValueError("not now")]
    shop.fail("a", "b", "c")
    assert shop.log == ["a", "b", "c", "-c", "-b", "-a"]
    assert shop.states() == dict.fromkeys("abc", "compensated")
    assert shop.rt.verify().ok


def test_what_cannot_be_taken_back_blocks_the_run(tmp_path: Path) -> None:
    shop = Shop(tmp_path, twin={"retry": 1})
    shop.broken = [None, ValueError("no")]  # type: ignore[list-item]
    with pytest.raises(RunBlocked), shop.rt.run("r"):
        for order in "abc":
            shop.pay(order)
        raise KeyError
    assert shop.log == ["a", "b", "c", "-c", "-a"]
    assert shop.states() == {"a": "compensated", "b": "compensation_failed", "c": "compensated"}
    assert shop.rt.verify().ok


def test_an_interrupt_in_a_compensation_leaves_it_in_doubt(shop: Shop) -> None:
    shop.broken = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt), shop.rt.run("r"):
        shop.pay("a")
        shop.pay("b")
        raise KeyError
    assert shop.states() == {"a": "succeeded", "b": "compensation_in_doubt"}
    assert shop.rt.verify().ok


def test_reads_and_failures_beside_it_change_nothing(shop: Shop) -> None:
    with pytest.raises(KeyError), shop.rt.run("r"):
        shop.pay("a")
        shop.look("x")
        with pytest.raises(Exception, match="order"):
            shop.pay(7)  # type: ignore[arg-type]
        shop.pay("b")
        raise KeyError
    assert shop.store.kinds() == ["TurnPlain", "UndonePlain", "UndonePlain"]
    assert shop.log == ["a", "b", "-b", "-a"]


def test_what_is_unusual_goes_the_general_way(shop: Shop) -> None:
    with pytest.raises(KeyError), shop.rt.run("r") as run:
        shop.pay("a")
        with run.child("inside"):
            shop.pay("b")
        shop.pay("c")
        raise KeyError
    assert shop.log == ["a", "b", "c", "-c", "-b", "-a"]
    assert "SettleCompensation" in shop.store.kinds()
    assert shop.rt.report("r").state == "rolled_back"


def test_a_call_that_was_not_plain_is_taken_back_too(shop: Shop) -> None:
    with pytest.raises(KeyError), shop.rt.run("r"):
        shop.pay("a")
        shop.pay.with_options(again="the customer asked twice")("a")
        shop.pay("c")
        raise KeyError
    assert shop.log == ["a", "a", "c", "-c", "-a", "-a"]
    assert shop.store.kinds()[0] == "BeginRollback"


def test_more_calls_than_are_remembered_are_taken_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("amends.engine.session.CALLS_MAX", 2)
    shop.fail("a", "b", "c")
    assert shop.log == ["a", "b", "c", "-c", "-b", "-a"]
    assert shop.store.kinds()[0] == "TurnPlain", "the ledger knows that these are not all"
    assert shop.states() == dict.fromkeys("abc", "compensated")


def test_threads_are_taken_back_in_the_order_of_settling(shop: Shop) -> None:
    with pytest.raises(KeyError), shop.rt.run("r") as run:
        threads = [threading.Thread(target=run.bind(shop.pay), args=(str(n),)) for n in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        raise KeyError
    assert "TurnPlain" in shop.store.kinds()
    settled = [event.call_id for event in shop.rt.events("r") if event.to == "succeeded"]
    begun = [event.call_id for event in shop.rt.events("r") if event.to == "compensating"]
    assert begun == settled[::-1]


def test_a_compensation_gets_what_it_asks_for(tmp_path: Path) -> None:
    got: list[Any] = []

    @tool
    def one(text: str) -> str:
        return text

    @one.compensate
    def undo(text: str, result: str, call: Call) -> None:
        got.append((text, result, call.args, current_call().phase))

    @tool
    def two(text: str) -> str:
        return text

    @two.compensate
    def undo_two() -> None:
        got.append((current_call().tool, current_call().phase, current_call().args))

    rt = Runtime(store=(store := Told(tmp_path / "ledger.db")), tools=[one, two], checkpoint="off")
    with rt.run("first"):
        one("first")
        two("first")
    with pytest.raises(KeyError), rt.run("r"):
        one("a")
        two("b")
        raise KeyError
    assert "TurnPlain" in store.kinds()
    assert got == [("two", "compensate", {"text": "b"}), ("a", "a", {"text": "a"}, "compensate")]


def test_a_run_that_is_closed_so_is_told_like_any(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="amends"):
        shop.fail("a")
    told = [record for record in caplog.records if getattr(record, "event", "") == "rollback"]
    assert [(one.getMessage(), one.run, one.by, one.error_type) for one in told] == [  # type: ignore[attr-defined]
        ("run r was rolled back after KeyError", "r", "self", "KeyError")
    ]


def test_the_same_awaited(tmp_path: Path) -> None:
    done: list[str] = []

    @tool
    async def one(text: str) -> str:
        return text

    @one.compensate
    async def undo(result: str) -> None:
        done.append(result)

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path}/ledger.db", tools=[one]) as rt:
            async with rt.run("first"):
                await one("first")
            with pytest.raises(KeyError) as caught:
                async with rt.run("r"):
                    await one("a")
                    await one("b")
                    raise KeyError
            assert caught.value.__notes__ == ["amends: run r rolled back, 2 calls compensated"]
            assert (await rt.report("r")).state == "rolled_back"
            assert (await rt.verify()).ok

    asyncio.run(main())
    assert done == ["b", "a"]
