"""S8 with a person at the desk, on every ledger: an order whose answer is lost, and an exchange that does not say."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from amends import (
    Absent,
    AsyncRuntime,
    Happened,
    InDoubt,
    Probed,
    RunBlocked,
    Runtime,
    Unknown,
    UsageError,
    current_call,
    tool,
)
from amends.errors import RunEnded, StalePlan
from amends.stores.memory import MemoryStore


class Exchange:
    """Orders by client id, and an index that may be behind."""

    def __init__(self) -> None:
        self.orders: dict[str, str] = {}
        self.sent: list[str] = []
        self.held: list[str] = []
        self.says: Probed[str] | None = Unknown("the index is behind")
        self.loses = True

        @tool(key="ticket")
        def hold_funds(ticket: str) -> str:
            self.held.append(ticket)
            return f"H-{ticket}"

        @hold_funds.compensate
        def release(ticket: str) -> None:
            self.held.remove(ticket)

        @tool(kind="pivot", key="ticket")
        def place_order(ticket: str, shares: int) -> str:
            client = current_call().key
            self.sent.append(client)
            if self.loses:
                raise TimeoutError("no answer from the exchange")
            self.orders.setdefault(client, f"O-{ticket}")
            return self.orders[client]

        @place_order.probe
        def find_order(ticket: str, call: Any) -> Probed[str]:
            if self.says is not None:
                return self.says
            found = self.orders.get(call.key)
            return Absent() if found is None else Happened(found)

        @place_order.list_effects
        def all_orders() -> list[str]:
            return list(self.orders)

        self.tools = [hold_funds, place_order]
        self.hold_funds, self.place_order = hold_funds, place_order

    def land(self) -> str:
        """What was sent first is filled after all; the same again is the same order."""
        return self.orders.setdefault(self.sent[0], "O-8")


@pytest.fixture(params=["memory", "sqlite", "postgresql", "mysql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What a runtime over a new ledger of this kind is built with; twice: another process's."""
    match request.param:
        case "memory":
            yield {"store": MemoryStore()}
        case "sqlite":
            yield {"url": f"sqlite:///{tmp_path / 'ledger.db'}"}
        case "postgresql":
            yield {"url": request.getfixturevalue("postgres_url")}
        case _:
            yield {"url": request.getfixturevalue("mysql_url")}


def _lost(ledger: dict[str, Any], exchange: Exchange, *, fails: bool = False) -> dict[str, Any]:
    """The process of the model: it is told of a doubt, and ends."""
    told: dict[str, Any] = {}
    with Runtime(**ledger, tools=exchange.tools, wait=0.0) as rt:
        with suppress(RunBlocked, KeyError), rt.run("trade-8", recover="wait") as run:
            run.call(exchange.hold_funds, ticket="8")
            answer = run.answer("place_order", {"ticket": "8", "shares": 100})
            told = {"status": answer.status, "text": answer.text}
            if fails:
                raise KeyError
    return told


@pytest.mark.parametrize("fails", [False, True])
def test_a_person_who_saw_the_fill_settles_it_and_there_is_one_order(ledger: dict[str, Any], fails: bool) -> None:
    exchange = Exchange()
    told = _lost(ledger, exchange, fails=fails)
    assert told["status"] == "in_doubt"
    assert "Do not call it again" in told["text"]
    exchange.land()
    with Runtime(**ledger, tools=exchange.tools, wait=0.0) as rt:
        (doubt,) = rt.doubts()
        assert (dict(doubt.sent), doubt.key) == ({"ticket": "8", "shares": 100}, exchange.sent[0])
        assert (doubt.probe, doubt.about) == ("find_order", "call")
        assert doubt.lost_at is not None
        assert {one.answer for one in doubt.evidence} == {"unknown"}
        assert rt.probe(doubt.id) == Unknown("the index is behind")
        assert [doubt.tool for doubt in rt.doubts()] == ["place_order"], "a question decides nothing"
        exchange.says = None
        assert rt.probe(doubt.id) == Happened("O-8")
        exchange.says = Unknown("the index is behind")
        (doubt,) = rt.doubts()
        assert [(one.by, one.answer) for one in doubt.evidence][-2:] == [("person", "unknown"), ("person", "happened")]
        before = rt.preview(doubt.id)
        assert before.happened.run_state == rt.resolve(doubt.id, Happened("O-8"), by="anna", why="saw it").state
        assert rt.call(doubt.id).state == before.happened.call_state == "succeeded"
        with pytest.raises(UsageError):
            rt.resolve(doubt.id, Absent(), by="bob", why="did not see it")
        assert "failed" not in {event.to for event in rt.events("trade-8")}
        assert rt.reconcile("place_order").agrees
        with pytest.raises((RunEnded, UsageError)):
            rt.rollback("trade-8", by="bob", why="too late")
    assert (len(exchange.sent), list(exchange.orders.values()), exchange.held) == (1, ["O-8"], ["8"])
    exchange.land()  # the same fill is told once more
    assert list(exchange.orders.values()) == ["O-8"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_person_who_knows_that_it_never_arrived_has_it_taken_back_by_a_plan(
    ledger: dict[str, Any], fails: bool
) -> None:
    exchange = Exchange()
    _lost(ledger, exchange, fails=fails)
    with Runtime(**ledger, tools=exchange.tools, wait=0.0) as rt:
        (doubt,) = rt.doubts()
        stale = rt.plan_rollback("trade-8")
        assert [(one.what, one.call.tool) for one in stale.doubts] == [("probe", "place_order")]
        assert [one.by for one in stale.compensations] == ["release"]
        expected = rt.preview(doubt.id).absent
        report = rt.resolve(doubt.id, Absent(), by="anna", why="the exchange's support looked")
        assert (report.state, rt.call(doubt.id).state) == (expected.run_state, "failed")
        if report.state not in ("rolled_back", "committed"):
            with pytest.raises(StalePlan):
                rt.rollback("trade-8", plan=stale.hash, by="anna", why="as planned")
            assert exchange.held == ["8"], "a stale plan takes nothing back"
            plan = rt.plan_rollback("trade-8")
            assert plan.complete
            report = rt.rollback("trade-8", plan=plan.hash, by="anna", why="as planned")
            assert report.state == "rolled_back"
            assert exchange.held == []
        assert (len(exchange.sent), exchange.orders) == (1, {})
        assert rt.reconcile("place_order").agrees


def test_what_nobody_will_know_is_accepted_named_and_left(ledger: dict[str, Any]) -> None:
    exchange = Exchange()
    _lost(ledger, exchange, fails=True)
    with Runtime(**ledger, tools=exchange.tools, wait=0.0) as rt:
        (doubt,) = rt.doubts()
        rt.accept(doubt.id, by="anna", why="the exchange closed down")
        report = rt.abandon("trade-8", by="anna", why="nothing to be done")
        assert report.state == "abandoned"
        assert ("place_order", "the exchange closed down") in {(one.call.tool, one.why) for one in report.residue}
        assert list(rt.doubts()) == []
    assert len(exchange.sent) == 1


def test_the_async_colour_does_the_same(ledger: dict[str, Any]) -> None:
    exchange = Exchange()

    async def main() -> None:
        async with AsyncRuntime(**ledger, tools=exchange.tools, wait=0.0) as rt:
            with suppress(RunBlocked, KeyError):
                async with rt.run("trade-8", recover="wait") as run:
                    await run.call(exchange.hold_funds, ticket="8")
                    with pytest.raises(InDoubt):
                        await run.call(exchange.place_order, ticket="8", shares=100)
                    raise KeyError
            exchange.land()
            (doubt,) = [one async for one in rt.doubts()]
            assert await rt.probe(doubt.id) == Unknown("the index is behind")
            preview = await rt.preview(doubt.id)
            report = await rt.resolve(doubt.id, Happened("O-8"), by="anna", why="saw it")
            assert report.state == preview.happened.run_state
            assert (await rt.reconcile("place_order")).agrees
            plan = await rt.plan_rollback("trade-8")
            assert plan.refused is not None

    asyncio.run(main())
    assert (len(exchange.sent), list(exchange.orders.values())) == (1, ["O-8"])
