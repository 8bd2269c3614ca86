"""The emergency stop: nothing starts while a halt stands, and what must be taken back still is."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amends import AsyncRuntime, Halt, Held, NoEffect, Refused, Retry, RolledBack, Runtime, UsageError, tool
from amends.errors import Halted

DONE: list[str] = []
MISHAPS: list[Callable[[], object]] = []


@tool(key="what")
def book(what: str) -> str:
    DONE.append(what)
    return f"booked {what}"


@book.compensate
def cancel(what: str) -> None:
    DONE.append(f"no {what}")


@tool
async def book_async(what: str) -> str:
    DONE.append(what)
    return what


@book_async.compensate
async def cancel_async(what: str) -> None:
    DONE.append(f"no {what}")


@tool(kind="read")
def look(what: str) -> str:
    DONE.append(f"looked at {what}")
    return what


@tool(kind="retriable", idempotent=True)
def mail(to: str) -> None:
    DONE.append(f"mail {to}")


@tool(kind="pivot", at="commit")
def pay(cents: int) -> None:
    DONE.append(f"paid {cents}")


@tool(kind="pivot", needs_approval=True)
def wire(cents: int) -> None:
    DONE.append(f"wired {cents}")


@tool(retry=Retry(attempts=3, delay=0.0))
def flaky() -> None:
    DONE.append("try")
    MISHAPS.pop()()
    raise NoEffect("not now")


@flaky.compensate
def nothing() -> None: ...


TOOLS = (book, look, mail, pay, wire, flaky)


@pytest.fixture(params=["memory:", "sqlite"])
def rt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    DONE.clear()
    url = request.param if request.param == "memory:" else f"sqlite:///{tmp_path / 'ledger.db'}"
    with Runtime(url, tools=TOOLS, agent="clerk", wait=0, wait_approval=0) as made:
        yield made


def test_nothing_starts_after_a_halt_and_the_error_names_it(rt: Runtime) -> None:
    with pytest.raises(Halted) as caught, rt.run("order"):
        book("one")
        made = rt.halt(by="ann", why="it books nonsense")
        book("two")
    no = caught.value
    assert isinstance(no, Refused)
    assert (no.tool, no.by, no.why, no.halt_id) == ("book", "ann", "it books nonsense", made.id)
    assert (no.extent, no.since, no.run_id) == ("the whole ledger", made.at, "order")
    assert "ann" in str(no)
    assert "it books nonsense" in no.for_model()
    assert DONE == ["one", "no one"], "what must be taken back still is"
    assert rt.report("order").state == "rolled_back"
    assert rt.verify().ok


@pytest.mark.parametrize("ask", [lambda: look("x"), lambda: mail("a"), lambda: pay(5), lambda: wire(5)])
def test_no_kind_of_call_is_admitted(rt: Runtime, ask: Any) -> None:
    rt.halt(by="ann", why="stop")
    with pytest.raises(Halted), rt.run("order"):
        ask()
    assert DONE == []
    assert list(rt.approvals()) == []
    assert rt.report("order").calls == ()


def test_repeats_are_answered_from_the_record(rt: Runtime) -> None:
    with rt.run("order"):
        book("one")
        rt.halt(by="ann", why="stop")
        assert book("one") == "booked one"
    assert rt.report("order").state == "committed"
    assert DONE == ["one"]


def test_the_work_goes_on_when_the_halt_is_lifted(rt: Runtime) -> None:
    rt.halt(by="ann", why="stop")
    [lifted] = rt.unhalt(by="ben", why="found it")
    assert isinstance(lifted, Halt)
    assert lifted.lifted_at is not None
    assert rt.halts() == []
    with rt.run("order"):
        book("one")
    assert DONE == ["one"]


@pytest.mark.parametrize(
    "name, value, other", [("tool", "book", "look"), ("agent", "clerk", "boss"), ("tenant", "", "a")]
)
def test_a_part_of_the_ledger_is_halted(rt: Runtime, name: str, value: str, other: str) -> None:
    rt.halt(by="ann", why="stop", **{name: other})
    with rt.run("first"):
        book("one")
    rt.halt(by="ann", why="stop", **{name: value})
    with pytest.raises(Halted), rt.run("second"):
        book("two")
    with pytest.raises(UsageError, match="no such halt"):
        rt.unhalt(by="ann", why="go")
    rt.unhalt(by="ann", why="go", **{name: value})
    with rt.run("second"):
        book("two")
    assert DONE == ["one", "two"]


def test_a_view_of_a_tenant_halts_only_that_tenant_and_sees_only_its_halts(rt: Runtime) -> None:
    mine, other = rt.scoped(tenant="acme"), rt.scoped(tenant="umbrella")
    made = mine.halt(by="ann", why="stop")
    assert (made.tenant, made.extent) == ("acme", "tenant acme")
    assert other.halts() == []
    assert mine.halts() == [made]
    with pytest.raises(UsageError):
        mine.halt(by="ann", why="stop", tenant="umbrella")
    with other.run("order"):
        book("one")
    with pytest.raises(Halted), mine.run("order"):
        book("two")
    wide = rt.halt(by="ann", why="all")
    assert other.halts() == [wide]
    with pytest.raises(UsageError):
        other.unhalt(by="ann", why="go")


def test_a_child_run_and_a_body_of_a_halted_agent_start_nothing(rt: Runtime) -> None:
    rt.halt(by="ann", why="stop", agent="clerk")
    with pytest.raises(Halted), rt.run("order") as run, run.child("inner"):
        book("one")
    assert DONE == []


def test_staged_calls_wait_until_the_halt_is_lifted(rt: Runtime) -> None:
    with pytest.raises(Halted), rt.run("order"):
        book("one")
        mail("a")
        rt.halt(by="ann", why="stop", tool="mail")
    assert DONE == ["one"]
    assert rt.report("order").state == "open"
    rt.unhalt(by="ann", why="go", tool="mail")
    with rt.run("order"):
        book("one")
    assert DONE == ["one", "mail a"]
    assert rt.report("order").state == "committed"


def test_a_pivot_at_commit_does_not_start(rt: Runtime) -> None:
    with pytest.raises(Halted), rt.run("order"):
        pay(5)
        rt.halt(by="ann", why="stop")
    assert DONE == []
    rt.unhalt(by="ann", why="go")
    with rt.run("order"):
        pay(5)
    assert DONE == ["paid 5"]


def test_an_approved_call_does_not_start(rt: Runtime) -> None:
    with pytest.raises(Held), rt.run("order"):
        wire(5)
    [asked] = rt.approvals()
    rt.halt(by="ann", why="stop")
    rt.approve(asked.id, digest=asked.digest, by="ann")
    with pytest.raises(Halted), rt.run("order", recover="wait"):
        wire(5)
    assert DONE == []


def test_a_retry_does_not_start(rt: Runtime) -> None:
    MISHAPS.append(lambda: rt.halt(by="ann", why="stop"))
    with pytest.raises(Halted), rt.run("order"):
        flaky()
    assert DONE == ["try"]


@pytest.mark.parametrize(
    "given",
    [
        {"by": "", "why": "x"},
        {"by": "a", "why": ""},
        {"by": "a", "why": "x", "tool": " "},
        {"by": "a", "why": "x", "agent": ""},
        {"by": "a", "why": "x", "tool": 5},
    ],
)
def test_a_halt_without_a_person_a_reason_or_a_name_is_refused(rt: Runtime, given: Any) -> None:
    with pytest.raises(UsageError):
        rt.halt(**given)
    assert rt.halts() == []


def test_a_model_is_told(rt: Runtime) -> None:
    rt.halt(by="ann", why="stop", tool="book")
    with rt.run("order") as run:
        answer = run.answer("book", {"what": "one"})
    assert answer.status == "refused"
    assert "stop" in answer.text
    assert DONE == []


def test_a_replay_tells_it_again(rt: Runtime) -> None:
    def agent() -> str:
        try:
            return book("one")
        except Halted as no:
            return f"{no.by}: {no.why}"

    rt.halt(by="ann", why="stop")
    with rt.run("order"):
        said = agent()
    rt.unhalt(by="ann", why="go")
    assert rt.replay("order", agent) == said == "ann: stop"
    assert DONE == []


def test_the_feed_has_the_halt_and_its_end(rt: Runtime) -> None:
    rt.halt(by="ann", why="stop", tool="book")
    rt.unhalt(by="ben", why="go", tool="book")
    found = [(event.what, event.by, event.facts.get("why")) for event in rt.events()]
    assert found == [("halted", "ann", "stop"), ("unhalted", "ben", "go")]


def test_an_async_runtime_is_halted_in_the_same_way(tmp_path: Path) -> None:
    DONE.clear()

    async def main() -> None:
        async with AsyncRuntime(f"sqlite:///{tmp_path / 'a.db'}", tools=[book_async]) as rt:
            with pytest.raises(Halted):
                async with rt.run("order"):
                    await book_async("one")
                    await rt.halt(by="ann", why="stop")
                    await book_async("two")
            assert [halt.by for halt in await rt.halts()] == ["ann"]
            await rt.unhalt(by="ann", why="go")
            async with rt.run("order"):
                await book_async("two")

    asyncio.run(main())
    assert DONE == ["one", "no one", "two"]


def test_a_run_that_is_rolled_back_by_hand_during_a_halt_is_taken_back(rt: Runtime) -> None:
    with pytest.raises(RolledBack), rt.run("order") as run:
        book("one")
        rt.halt(by="ann", why="stop")
        run.rollback("halted")
    assert DONE == ["one", "no one"]
