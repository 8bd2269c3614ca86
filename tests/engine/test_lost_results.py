"""Results that nobody has: never None, never an effect that stands under ``rolled_back``."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

import pytest

from amends import (
    AsyncRuntime,
    Happened,
    RolledBack,
    RunBlocked,
    Runtime,
    Staged,
    UsageError,
    current_call,
    declare,
    tool,
)
from amends.audit.standalone import verify
from amends.encoding.dataclass import changed
from amends.errors import Error, InDoubt, ResultLost
from amends.ledger.flow import finish
from amends.stores.memory import MemoryStore
from tests.world import FAST

BIG = "x" * (1 << 21)


class Bank:
    """Bookings by number; a compensation that is given anything but a booking leaves them all standing."""

    def __init__(self) -> None:
        self.standing: list[str] = []
        self.given: list[object] = []

    def book(self, name: str) -> str:
        self.standing.append(name)
        return name

    def cancel(self, result: object) -> None:
        self.given.append(result)
        name = getattr(result, "name", result)
        if name in self.standing:
            self.standing.remove(name)


class Ticket:
    """A result that cannot be written down."""

    def __init__(self, name: str) -> None:
        self.name, self.lock = name, threading.Lock()


def booking(bank: Bank, *, big: bool = False, **options: Any) -> Any:
    @tool(name="book", **options)
    def book(name: str = "a") -> Any:
        bank.book(name)
        return f"{name}{BIG}" if big else Ticket(name)

    @book.compensate(retry=FAST)
    def cancel(result: Any) -> None:
        bank.cancel(result.removesuffix(BIG) if isinstance(result, str) else result)

    return book


def crashed(store: MemoryStore, *tools: Any, id: str = "r", **options: Any) -> None:
    """Do each tool in a run whose process then dies."""
    rt = Runtime(store=store, tools=list(tools), **options)
    run = rt.open(id)
    for one in tools:
        run.call(one)
    finish(run._release())
    rt.close()


def recovered(store: MemoryStore, *tools: Any, id: str = "r", **options: Any) -> tuple[Runtime, Any]:
    rt = Runtime(store=store, tools=list(tools), **options)
    for uid, run in list(store.runs.items()):
        store.runs[uid] = changed(run, {"owner": "", "lease_until": 0.0})
    rt.rollback(id, by="ada", why="enough")
    rt.recover()
    return rt, rt.report(id)


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("how", ["raise", "rollback"])
def test_in_the_same_process_a_compensation_gets_the_live_result(big: bool, how: str) -> None:
    bank = Bank()
    book = booking(bank, big=big)
    rt = Runtime("memory:", tools=[book])
    with pytest.raises((KeyError, RolledBack)), rt.run("r") as run:
        book()
        if how == "rollback":
            run.rollback("enough")
        raise KeyError
    assert bank.standing == []
    assert bank.given != [None]
    assert rt.report("r").state == "rolled_back"


def test_a_parent_takes_a_committed_child_back_with_the_live_result() -> None:
    bank = Bank()
    book = booking(bank)
    rt = Runtime("memory:", tools=[book])
    with pytest.raises(KeyError), rt.run("r") as run:
        with run.child("inner"):
            book()
        raise KeyError
    assert bank.standing == []


async def _async_live(bank: Bank, book: Any) -> None:
    async with AsyncRuntime("memory:", tools=[book]) as rt:
        with pytest.raises(KeyError):
            async with rt.run("r") as run:
                await run.call(book)
                with pytest.raises(ResultLost):
                    await run.call(book)
                raise KeyError
        assert (await rt.report("r")).state == "rolled_back"


def test_in_the_same_async_process_too() -> None:
    bank = Bank()
    asyncio.run(_async_live(bank, booking(bank)))
    assert bank.standing == []


@pytest.mark.parametrize("big", [False, True])
def test_in_another_process_it_is_not_started_and_waits_for_a_person(big: bool) -> None:
    bank, store = Bank(), MemoryStore()
    book = booking(bank, big=big)
    crashed(store, book)
    _, report = recovered(store, book)
    assert bank.given == []
    assert bank.standing == ["a"]
    assert report.state == "blocked"
    (left,) = report.residue
    assert left.call.tool == "book"
    (cause,) = report.run.causes
    for word in (left.call.id, "result", "rt.retry(", "rt.resolve(", "rt.accept("):
        assert word in cause
    assert report.calls[0].state == "compensation_failed"


def _lost(returned: Any = None) -> tuple[Bank, MemoryStore, Any]:
    bank, store = Bank(), MemoryStore()
    book = booking(bank)
    crashed(store, book)
    return bank, store, book


def test_a_person_gives_the_result_and_it_is_taken_back() -> None:
    bank, store, book = _lost()
    rt, report = recovered(store, book)
    call = report.calls[0]
    assert rt.retry(call.id, result="a", by="ada", why="it is on the list").state == "rolled_back"
    assert bank.standing == []
    assert rt.verify().ok
    bundle = verify.read(rt.export(report.run.id))
    assert list(verify.check(bundle)) == [], "who has only the bundle can prove the result too"


def test_a_person_takes_it_back_by_hand_or_lets_it_stand() -> None:
    _, store, book = _lost()
    rt, report = recovered(store, book)
    assert rt.resolve(report.calls[0].id, Happened(None), by="ada", why="cancelled by phone").state == "rolled_back"
    _, store, book = _lost()
    rt, report = recovered(store, book)
    after = rt.accept(report.calls[0].id, by="ada", why="they may keep it")
    assert (after.state, after.residue[0].call.tool) == ("blocked", "book")


def test_a_retry_without_the_result_starts_nothing() -> None:
    bank, store, book = _lost()
    rt, report = recovered(store, book)
    assert rt.retry(report.calls[0].id, by="ada", why="again").state == "blocked"
    assert bank.given == []


def test_a_result_that_cannot_be_kept_is_refused_when_a_person_gives_it() -> None:
    _, store, book = _lost()
    rt, report = recovered(store, book)
    with pytest.raises(UsageError):
        rt.retry(report.calls[0].id, result=Ticket("a"), by="ada", why="here")


def test_a_recorded_result_is_not_replaced_by_a_person() -> None:
    bank, store = Bank(), MemoryStore()

    @tool
    def book() -> str:
        return bank.book("a")

    @book.compensate(retry=1)
    def cancel(result: str) -> None:
        raise ValueError("closed today")

    rt = Runtime(store=store, tools=[book])
    with pytest.raises(RunBlocked), rt.run("r"):
        book()
        raise KeyError
    with pytest.raises(UsageError):
        rt.retry(rt.report("r").calls[0].id, result="b", by="ada", why="that one")


def test_what_was_done_before_it_is_still_taken_back() -> None:
    bank, store = Bank(), MemoryStore()
    plain = tool(lambda: bank.book("first"), name="first", compensate=lambda result: bank.cancel(result))
    book = booking(bank)
    crashed(store, plain, book)
    _, report = recovered(store, plain, book)
    assert bank.standing == ["a"]
    assert [call.state for call in report.calls] == ["compensated", "compensation_failed"]


# ---- in doubt -----------------------------------------------------------------------------


def _doubtful(bank: Bank, undo: Any, **options: Any) -> Any:
    @tool(**options)
    def book() -> str:
        bank.book("a")
        raise TimeoutError("no answer")

    book.compensate(absent_ok=True, retry=FAST)(undo)
    return book


def _rolled(book: Any) -> tuple[Runtime, Any]:
    rt = Runtime("memory:", tools=[book])
    with pytest.raises((InDoubt, RunBlocked)), rt.run("r"):
        book()
    return rt, rt.report("r")


@pytest.mark.parametrize("options", [{"absent_ok": True}, {"wins": True}])
def test_a_compensation_that_needs_the_result_does_not_run_in_doubt(options: dict[str, Any]) -> None:
    bank = Bank()

    @tool
    def book() -> str:
        bank.book("a")
        raise TimeoutError("no answer")

    @book.compensate(retry=FAST, **options)
    def cancel(result: str) -> None:
        bank.cancel(result)

    rt, report = _rolled(book)
    assert bank.given == []
    assert report.state == "blocked"
    assert "rt.resolve(" in report.run.causes[0]
    (doubt,) = rt.doubts()
    assert rt.resolve(doubt.id, Happened("a"), by="ada", why="it is there").state == "rolled_back"
    assert bank.standing == []


def test_with_a_default_it_runs_in_doubt_and_gets_the_default() -> None:
    bank = Bank()

    def cancel(result: str = "any") -> None:
        bank.given.append(result)

    assert _rolled(_doubtful(bank, cancel))[1].state == "rolled_back"
    assert bank.given == ["any"]


def test_annotated_as_optional_where_the_tools_result_is_not_it_gets_none() -> None:
    bank = Bank()

    def cancel(result: str | None) -> None:
        bank.given.append(result)

    assert _rolled(_doubtful(bank, cancel))[1].state == "rolled_back"
    assert bank.given == [None]


def test_an_optional_annotation_does_not_give_none_for_a_call_that_has_happened() -> None:
    bank, store = Bank(), MemoryStore()

    @tool
    def book() -> Ticket:
        bank.book("a")
        return Ticket("a")

    @book.compensate(absent_ok=True, retry=FAST)
    def cancel(result: Ticket | None) -> None:
        bank.cancel(result)

    crashed(store, book)
    _, report = recovered(store, book)
    assert (report.state, bank.given, bank.standing) == ("blocked", [], ["a"])


def test_an_optional_annotation_says_nothing_where_the_tools_result_may_be_none_too() -> None:
    bank = Bank()

    @tool
    def book() -> str | None:
        bank.book("a")
        raise TimeoutError("no answer")

    @book.compensate(absent_ok=True, retry=FAST)
    def cancel(result: str | None) -> None:
        bank.given.append(result)

    assert _rolled(book)[1].state == "blocked"
    assert bank.given == []


def test_an_idempotent_call_is_started_again_to_learn_the_result_that_its_compensation_needs() -> None:
    bank = Bank()
    starts: list[int] = []

    @tool(idempotent=True)
    def book() -> str:
        starts.append(1)
        if len(starts) == 1:
            bank.book("a")
        if len(starts) < 3:
            raise TimeoutError("no answer")
        return "a"

    @book.compensate(absent_ok=True, retry=FAST)
    def cancel(result: str) -> None:
        bank.cancel(result)

    rt = Runtime("memory:", tools=[book])
    with pytest.raises(KeyError), rt.run("r"):
        book()
        raise KeyError
    assert (bank.standing, rt.report("r").state) == ([], "rolled_back")


@pytest.mark.parametrize("late", [False, True])
def test_the_result_of_a_call_that_nobody_has_raises_through_the_call_too(late: bool) -> None:
    bank = Bank()
    seen: list[object] = []

    def cancel(call: Any) -> None:
        try:
            seen.append((current_call() if late else call).result)
        except Error as error:
            seen.extend((type(error).__name__, bool(error.hint), bool(repr(call))))
            raise

    _, report = _rolled(_doubtful(bank, cancel))
    assert seen == ["ResultLost", True, True]  # once: another attempt would end the same way
    assert report.state == "blocked"
    assert report.calls[0].state == "compensation_failed"


# ---- told without a result ----------------------------------------------------------------


@pytest.mark.parametrize("said", [Happened(None), Happened()])
def test_a_probe_that_does_not_say_the_result_gives_none_to_nobody(said: Happened[Any]) -> None:
    bank = Bank()

    @tool
    def book() -> str:
        bank.book("a")
        raise TimeoutError("no answer")

    @book.compensate(retry=FAST)
    def cancel(result: str) -> None:
        bank.cancel(result)

    @book.probe
    def find() -> Any:
        return said

    rt = Runtime("memory:", tools=[book])
    with pytest.raises(RunBlocked) as blocked, rt.run("r") as run:
        with pytest.raises(ResultLost):
            book()
        answer = run.answer("book", {})
        assert isinstance(answer.error, ResultLost)
        assert "Already done" in answer.text
        raise KeyError
    assert "book" in blocked.value.causes[0]
    assert bank.given == []
    call = rt.report("r").calls[0]
    assert (call.state, call.loss is not None) == ("compensation_failed", True)


@pytest.mark.parametrize("said", [Happened(None), Happened()])
def test_a_person_who_does_not_say_the_result_gives_none_to_nobody(said: Happened[Any]) -> None:
    bank = Bank()

    @tool
    def book() -> str:
        bank.book("a")
        raise TimeoutError("no answer")

    @book.compensate(retry=FAST)
    def cancel(result: str) -> None:
        bank.cancel(result)

    rt, _ = _rolled(book)
    (doubt,) = rt.doubts()
    report = rt.resolve(doubt.id, said, by="ada", why="it is there")
    assert (report.state, bank.given) == ("blocked", [])
    assert rt.retry(doubt.id, result="a", by="ada", why="found it").state == "rolled_back"
    assert bank.standing == []


def test_none_is_a_result_where_the_tool_gives_none() -> None:
    given: list[object] = []

    @tool
    def book() -> None:
        raise TimeoutError("no answer")

    @book.compensate
    def cancel(result: None) -> None:
        given.append(result)

    @book.probe
    def find() -> Any:
        return Happened(None)

    rt = Runtime("memory:", tools=[book])
    with pytest.raises(KeyError), rt.run("r"):
        assert book() is None
        raise KeyError
    assert given == [None]


# ---- asked again --------------------------------------------------------------------------


def test_asked_again_a_lost_result_is_a_typed_loss() -> None:
    bank = Bank()
    book = booking(bank)
    rt = Runtime("memory:", tools=[book])
    with rt.run("r") as run:
        assert isinstance(book(), Ticket)
        for _ in range(2):
            with pytest.raises(ResultLost) as lost:
                book()
            assert lost.value.hint
            assert lost.value.call.loss
        answer = run.answer("book", {})
        assert (answer.status, answer.is_error) == ("refused", True)
        plan = [{"tool": "book", "args": {}, "id": "b"}, {"tool": "book", "args": {"name": {"$result": "b"}}}]
        with pytest.raises(ResultLost):
            run.execute(plan)
    with rt.run("r"), pytest.raises(ResultLost):
        book()
    assert bank.standing == ["a"]


def test_another_run_is_answered_with_a_typed_loss_too() -> None:
    bank = Bank()
    book = booking(bank, scope="ledger")
    rt = Runtime("memory:", tools=[book])
    with rt.run("one"):
        book()
    with rt.run("two"), pytest.raises(ResultLost):
        book()
    assert bank.standing == ["a"]


def test_a_staged_call_whose_result_was_lost_says_so() -> None:
    @tool(kind="retriable", idempotent=True)
    def mail() -> Any:
        return Ticket("a")

    rt = Runtime("memory:", tools=[mail])
    with rt.run("r"):
        staged: Staged[Any] = mail()
    assert staged.done
    with pytest.raises(ResultLost):
        _ = staged.result


def test_a_pivot_at_commit_that_nobody_knows_the_result_of_has_happened() -> None:
    sent: list[str] = []

    @tool(kind="pivot", at="commit")
    def wire() -> str:
        sent.append("wire")
        raise TimeoutError("no answer")

    @wire.probe
    def find() -> Any:
        return Happened()

    rt = Runtime("memory:", tools=[wire])
    with rt.run("r"):
        wire()
    assert (rt.report("r").state, sent) == ("committed", ["wire"])


def test_a_replay_meets_the_loss_as_such() -> None:
    bank = Bank()
    book = booking(bank)
    rt = Runtime("memory:", tools=[book])
    with rt.run("r"):
        book()
    met: list[object] = []

    def program() -> None:
        try:
            met.append(book())
        except ResultLost as lost:
            met.append(type(lost))

    rt.replay("r", program)
    assert (met, bank.standing) == ([ResultLost], ["a"])


def test_a_fork_is_answered_with_the_loss() -> None:
    bank = Bank()
    book = booking(bank)
    rt = Runtime("memory:", tools=[book])
    with rt.run("r"):
        book()
    call = rt.report("r").calls[0]
    fork = rt.fork("r", at=call.id, id="f")
    assert fork
    with rt.run("f"), pytest.raises(ResultLost):
        book()
    assert bank.standing == ["a"]


# ---- what else may be missing -------------------------------------------------------------


@dataclass
class Receipt:
    id: str
    cents: int


@dataclass
class Moved:
    number: int
    currency: str


def test_a_result_that_can_no_longer_be_read_as_its_class_is_given_to_no_compensation() -> None:
    bank, store = Bank(), MemoryStore()

    def made(kind: type) -> Any:
        def book() -> Any:
            bank.book("a")
            return Receipt("a", 5)

        book.__annotations__["return"] = kind
        return tool(book, compensate=lambda result: bank.given.append(result))

    crashed(store, made(Receipt))
    _, report = recovered(store, made(Moved))
    assert (report.state, bank.given) == ("blocked", [])
    assert "Moved" in report.run.causes[0]


def test_a_compensation_that_needs_an_argument_which_the_record_does_not_have_is_not_started() -> None:
    bank, store = Bank(), MemoryStore()

    @tool(name="book")
    def before(name: str = "a") -> str:
        return bank.book(name)

    before.compensate(lambda name: bank.cancel(name))
    crashed(store, before)

    @tool(name="book")
    def after(name: str, room: int) -> str:
        return name

    @after.compensate
    def cancel(room: int) -> None:
        bank.given.append(room)

    _, report = recovered(store, after)
    assert (report.state, bank.given) == ("blocked", [])
    assert "room" in report.run.causes[0]


def test_a_guard_that_needs_the_lost_result_keeps_its_compensation_from_being_started() -> None:
    bank, store = Bank(), MemoryStore()

    @tool
    def book() -> Any:
        bank.book("a")
        return Ticket("a")

    @book.compensate
    def cancel() -> None:
        bank.standing.clear()

    @book.guard
    def same(result: Any) -> bool:
        bank.given.append(result)
        return True

    crashed(store, book)
    _, report = recovered(store, book)
    assert (report.state, bank.given, bank.standing) == ("blocked", [], ["a"])


@pytest.mark.parametrize("dies", [False, True])
def test_a_masked_result_is_given_to_the_compensation_of_this_process_only(dies: bool) -> None:
    bank, store = Bank(), MemoryStore()

    @tool(redact="card")
    def book(card: str = "4242-4242-4242") -> dict[str, str]:
        bank.book("a")
        return {"id": "a", "card": card}

    @book.compensate(retry=FAST)
    def cancel(result: dict[str, str]) -> None:
        bank.given.append(result["card"])
        bank.cancel(result["id"])

    if not dies:
        rt = Runtime(store=store, tools=[book], secret_key="k" * 32)
        with pytest.raises(KeyError), rt.run("r"):
            book()
            raise KeyError
        assert (bank.given[0], bank.standing) == ("4242-4242-4242", [])
        return
    crashed(store, book, secret_key="k" * 32)
    _, report = recovered(store, book, secret_key="k" * 32)
    assert (report.state, bank.given) == ("blocked", [])


@pytest.mark.parametrize("path, state", [("$result.id", "blocked"), ("$args.name", "rolled_back")])
def test_a_table_that_names_the_result_needs_it_and_one_that_does_not_does_not(path: str, state: str) -> None:
    given: list[object] = []
    back = {"tool": "cancel", "args": {"id": path}, "absent_ok": True}
    rt = Runtime("memory:", tools=[declare("book", compensate=back), declare("cancel", kind="pivot")])

    def book(name: str) -> Any:
        raise TimeoutError("no answer")

    rt.reach({"book": book, "cancel": lambda id: given.append(id)})
    with pytest.raises((InDoubt, RunBlocked, KeyError)), rt.run("r") as run:
        run.answer("book", {"name": "a"})
        raise KeyError
    assert rt.report("r").state == state
    assert given == ([] if state == "blocked" else ["a"])


def test_a_plan_and_a_preview_say_what_would_not_be_started() -> None:
    _, store, book = _lost()
    rt = Runtime(store=store, tools=[book])
    plan = rt.plan_rollback("r")
    assert plan.compensations == ()
    assert [left.call.tool for left in plan.cannot] == ["book"]
    bank = Bank()

    @tool(name="book")
    def doubtful() -> str:
        bank.book("a")
        raise TimeoutError("no answer")

    @doubtful.compensate(absent_ok=True)
    def cancel(result: str) -> None: ...

    rt, _ = _rolled(doubtful)
    (doubt,) = rt.doubts()
    seen = rt.preview(doubt.id)
    assert [one.what for one in seen.happened.does] == ["compensate"]
    assert seen.happened.run_state == "rolled_back"
    assert seen.absent.run_state == "rolled_back"
