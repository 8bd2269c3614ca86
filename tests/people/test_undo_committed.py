"""A committed run is taken back by a person's plan: what has no compensation must be accepted, and is named."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Retry, Runtime, UsageError, tool
from amends.errors import RunEnded, StalePlan
from amends.ledger.operations import BeginRollback

DONE: list[str] = []
BROKEN: list[str] = []


@tool(key="what")
def book(what: str) -> str:
    DONE.append(what)
    return f"booked {what}"


@book.compensate(retry=Retry(attempts=1))
def cancel(result: str, what: str) -> None:
    if what in BROKEN:
        raise ValueError("the desk is closed")
    DONE.append(f"no {what}")


@tool(kind="pivot")
def pay(cents: int) -> None:
    DONE.append(f"paid {cents}")


@tool(kind="retriable", idempotent=True)
def mail(to: str) -> None:
    DONE.append(f"mail {to}")


@tool(scope="ledger", key="name")
def found(name: str) -> str:
    DONE.append(f"founded {name}")
    return name


@found.compensate
def dissolve(name: str) -> None:
    DONE.append(f"dissolved {name}")


TOOLS = (book, pay, mail, found)


@pytest.fixture(params=["memory:", "sqlite"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    DONE.clear()
    BROKEN.clear()
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, tools=TOOLS, wait=0) as made:
        yield made


def ordered(rt: Runtime, *, pays: bool = False, mails: bool = False) -> None:
    with rt.run("order"):
        book("flight")
        book("hotel")
        if pays:
            pay(5)
        if mails:
            mail("ann")
    DONE.clear()


def test_a_committed_run_is_taken_back_by_its_plan(rt: Runtime) -> None:
    ordered(rt)
    plan = rt.plan_rollback("order")
    assert (plan.state, plan.refused, plan.must_accept, plan.answered) == ("committed", None, (), ())
    assert plan.complete
    assert [one.call.args["what"] for one in plan.compensations] == ["hotel", "flight"]
    report = rt.rollback("order", plan=plan, by="ann", why="the customer cancels")
    assert report.state == "rolled_back"
    assert DONE == ["no hotel", "no flight"]
    assert rt.verify().ok
    with pytest.raises(RunEnded):
        rt.rollback("order", plan=plan.hash, by="ann", why="again")


def test_only_a_plan_takes_it_back(rt: Runtime) -> None:
    ordered(rt)
    with pytest.raises(RunEnded) as no:
        rt.rollback("order", by="ann", why="the customer cancels")
    assert "plan_rollback" in no.value.hint
    assert rt.report("order").state == "committed"
    with pytest.raises(StalePlan):
        rt.rollback("order", plan="0" * 32, by="ann", why="x")
    assert DONE == []


def test_what_has_no_compensation_must_be_accepted(rt: Runtime) -> None:
    ordered(rt, pays=True, mails=True)
    plan = rt.plan_rollback("order")
    ids = [call.id for call in plan.must_accept]
    assert [call.tool for call in plan.must_accept] == ["pay", "mail"]
    assert not plan.complete
    for accept in ([], ids[:1], [*ids, "call_nothing"], [*ids, plan.compensations[0].call.id]):
        with pytest.raises(UsageError):
            rt.rollback("order", plan=plan, by="ann", why="x", accept=accept)
    with pytest.raises(UsageError):
        rt.rollback("order", plan=plan, by="ann", why="x", accept=ids[0])
    assert DONE == []
    assert rt.report("order").state == "committed"
    report = rt.rollback("order", plan=plan.hash, by="ann", why="cancelled", accept=ids)
    assert report.state == "abandoned"
    assert DONE == ["no hotel", "no flight"]
    assert sorted(left.call.tool for left in report.residue) == ["mail", "pay"]
    assert {left.why for left in report.residue} == {"accepted: cancelled"}
    assert rt.verify().ok


def test_an_open_run_accepts_nothing(rt: Runtime) -> None:
    with pytest.raises(UsageError):
        rt.rollback("order", by="ann", why="x", accept=["call_1"])


def test_the_plan_names_the_runs_that_were_answered(rt: Runtime) -> None:
    with rt.run("first"):
        found("acme")
    plan = rt.plan_rollback("first")
    for name in ("second", "third", "second"):
        with rt.run(name):
            assert found("acme") == "acme"
    newer = rt.plan_rollback("first")
    assert newer.answered == ("second", "third")
    assert "second" in str(newer)
    with pytest.raises(StalePlan):
        rt.rollback("first", plan=plan, by="ann", why="x")
    assert rt.rollback("first", plan=newer, by="ann", why="x").state == "rolled_back"
    assert DONE == ["founded acme", "dissolved acme"]
    with rt.run("fourth"):
        found("acme")
    assert DONE[2:] == ["founded acme"], "the key is free again"
    assert rt.verify().ok


def test_a_failing_compensation_blocks_it_and_a_retry_finishes_it(rt: Runtime) -> None:
    ordered(rt, pays=True)
    BROKEN.append("hotel")
    plan = rt.plan_rollback("order")
    report = rt.rollback("order", plan=plan, by="ann", why="x", accept=[plan.must_accept[0].id])
    assert report.state == "blocked"
    BROKEN.clear()
    [call] = [call for call in report.calls if call.state == "compensation_failed"]
    assert rt.retry(call.id, by="ann", why="open again").state == "abandoned"
    assert DONE == ["no flight", "no hotel"]


def test_children_are_taken_back_and_their_pivots_are_accepted(rt: Runtime) -> None:
    with rt.run("order") as run:
        book("flight")
        with run.child("plain"):
            book("hotel")
        with run.child("paid"):
            pay(7)
    DONE.clear()
    plan = rt.plan_rollback("order")
    assert [call.tool for call in plan.must_accept] == ["pay"]
    report = rt.rollback("order", plan=plan, by="ann", why="x", accept=[plan.must_accept[0].id])
    assert report.state == "abandoned"
    assert DONE == ["no hotel", "no flight"]


def test_a_run_that_a_person_took_back_is_not_opened_again(rt: Runtime) -> None:
    ordered(rt)
    rt.rollback("order", plan=rt.plan_rollback("order"), by="ann", why="x")
    with pytest.raises(RunEnded), rt.run("order"):
        book("flight")


def test_a_halt_does_not_keep_it(rt: Runtime) -> None:
    ordered(rt)
    rt.halt(by="ann", why="stop")
    assert rt.rollback("order", plan=rt.plan_rollback("order"), by="ann", why="x").state == "rolled_back"


def test_a_run_that_is_erased_after_its_plan_is_not_taken_back() -> None:
    """Nothing in it has changed but that it was erased: its calls have neither arguments nor results."""

    @tool
    def ring() -> None:
        DONE.append("ring")

    @ring.compensate
    def still() -> None:
        DONE.append("still")

    rt = Runtime("memory:", tools=[ring])
    with rt.run("r", tags=["customer=alice"]):
        ring()
    DONE.clear()
    plan, store = rt.plan_rollback("r"), rt._host.store
    perform: Any = store.perform

    def slowly(op: Any) -> Any:
        if isinstance(op, BeginRollback):
            store.perform = perform  # type: ignore[method-assign]
            # Between the look at the run and the transaction that begins the rollback.
            assert rt.erase(tags="customer=alice", by="ann", why="request 4711").runs
        return perform(op)

    store.perform = slowly  # type: ignore[method-assign]
    with pytest.raises(RunEnded, match="was removed"):
        rt.rollback("r", plan=plan, by="ben", why="alice is unhappy")
    assert (rt.report("r").state, DONE) == ("committed", [])


def test_a_run_whose_data_is_gone_says_so(rt: Runtime) -> None:
    ordered(rt)
    rt.gc(older_than=0)
    assert "removed" in (rt.plan_rollback("order").refused or "")
    with pytest.raises((RunEnded, StalePlan)):
        rt.rollback("order", plan=rt.plan_rollback("order"), by="ann", why="x")


def test_an_async_runtime_takes_it_back_in_the_same_way(tmp_path: Path) -> None:
    DONE.clear()

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'a.db'}", tools=TOOLS) as rt:
            async with rt.run("order") as run:
                await run.call(book, what="flight")
            plan = await rt.plan_rollback("order")
            assert (await rt.rollback("order", plan=plan, by="ann", why="x")).state == "rolled_back"

    asyncio.run(main())
    assert DONE == ["flight", "no flight"]
