"""Every attempt's body gets exactly what was written down, never the caller's live objects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from amends import Absent, AsyncRuntime, Budget, Happened, Held, Retry, Runtime, current_call, tool
from tests.world import FAST, runtime


@dataclass
class Order:
    cents: int
    lines: list[int] = field(default_factory=list)


class Sheet(BaseModel):
    cents: int
    lines: list[int] = []


def change(value: Any) -> None:
    """What another thread may do to an object that it shares."""
    if isinstance(value, dict):
        value["cents"] = 99_999
    elif isinstance(value, list):
        value.append(99_999)
    elif isinstance(value, bytearray):
        value.extend(b"more")
    elif isinstance(value, set):
        value.add(99_999)
    else:
        value.cents = 99_999
        value.lines.append(99_999)


KINDS: list[tuple[Any, Callable[[], Any]]] = [
    (None, lambda: {"cents": 100}),
    (None, lambda: [1, [2]]),
    (None, lambda: bytearray(b"x")),
    (None, lambda: {1, 2}),
    (Any, lambda: {"cents": 100}),
    (dict[str, Any], lambda: {"cents": 100, "a": [1]}),
    (bytearray, lambda: bytearray(b"x")),
    (Order, lambda: Order(100, [1])),
    (Sheet, lambda: Sheet(cents=100, lines=[1])),
    (list[Any], lambda: [1]),
    (Order | Sheet, lambda: Sheet(cents=100, lines=[1])),
]


def made_of(annotation: Any, body: Callable[[Any], Any], *, returns: Any = Any, **options: Any) -> Any:
    def act(what: Any) -> Any:
        return body(what)

    act.__annotations__.pop("what")
    act.__annotations__["return"] = returns
    if annotation is not None:
        act.__annotations__["what"] = annotation
    return tool(act, **options)


@pytest.mark.parametrize("annotation, make", KINDS)
def test_what_changes_while_a_person_decides_changes_nothing(annotation: Any, make: Callable[[], Any]) -> None:
    seen: list[Any] = []
    live = make()

    def decide(request: Any) -> bool:
        change(request.args["what"])  # a rule cannot change it either
        return True

    act = made_of(annotation, seen.append, kind="pivot", needs_approval=decide)
    rt = runtime(act, wait_approval=5)
    done = threading.Event()

    def person() -> None:
        while not (waiting := list(rt.approvals())):
            done.wait(0.01)
        change(live)
        assert waiting[0].call.args == {"what": make()}
        rt.approve(waiting[0].id, by="anna", digest=waiting[0].digest)

    other = threading.Thread(target=person)
    other.start()
    with rt.run("r"):
        act(live)
    other.join()
    assert seen == [make()]
    (call,) = rt.calls()
    assert call.args == {"what": make()}


@pytest.mark.parametrize("annotation, make", KINDS)
def test_each_attempt_gets_its_own_copy(annotation: Any, make: Callable[[], Any]) -> None:
    seen: list[Any] = []
    taken: list[Any] = []

    def body(what: Any) -> Any:
        seen.append(repr(what))
        assert repr(current_call().args["what"]) == repr(make())
        change(what)
        change(current_call().args["what"])
        if len(seen) < 3:
            raise RuntimeError
        return what

    def undo(what: Any, call: Any) -> None:
        taken.append((repr(what), repr(call.args["what"])))
        change(what)
        if len(taken) < 2:
            raise RuntimeError

    act = made_of(annotation, body, retry=FAST)
    act.compensate(undo, retry=FAST)
    live = make()
    with pytest.raises(KeyError), runtime(act).run("r"):
        act(live)
        raise KeyError
    assert seen == [repr(make())] * 3
    assert taken == [(repr(make()), repr(make()))] * 2
    assert live == make(), "the caller's object is the caller's"


def test_an_idempotent_repeat_gets_what_was_written_down() -> None:
    seen: list[Any] = []

    def body(what: Any) -> None:
        seen.append(list(what))
        what.clear()
        if len(seen) == 1:
            raise TimeoutError

    act = made_of(None, body, kind="pivot", idempotent=True, retry=Retry(attempts=3, delay=0.001))
    with runtime(act).run("r"):
        act([1, 2])
    assert seen == [[1, 2], [1, 2]]


def test_what_changes_while_a_lock_is_waited_for_changes_nothing() -> None:
    seen: list[Any] = []
    live = {"cents": 100}

    @tool(locks=lambda call: ["till"])
    def pay(what) -> None:
        seen.append(what)

    pay.compensate(lambda: None)
    rt = runtime(pay, wait=10)
    inside, go = threading.Event(), threading.Event()

    def first() -> None:
        with rt.run("a"):
            pay({"cents": 1})
            inside.set()
            go.wait(10)

    def second() -> None:
        with rt.run("b"):
            pay(live)

    threads = [threading.Thread(target=first)]
    threads[0].start()
    inside.wait(10)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    while not any(run.id == "b" for run in rt.runs()):
        go.wait(0.01)

    def later() -> None:
        change(live)
        go.set()

    threading.Timer(0.2, later).start()
    for one in threads:
        one.join()
    assert seen == [{"cents": 1}, {"cents": 100}]


def test_no_function_of_a_declaration_can_change_what_runs() -> None:
    seen: list[Any] = []

    def spoil(answer: Any) -> Callable[[Any], Any]:
        def rule(request: Any) -> Any:
            request.args["what"].append(9)
            return answer

        return rule

    @tool(key=spoil("k"), cost=spoil(1), locks=spoil(["a"]), needs_approval=spoil(False))
    def pay(what: list[int]) -> None:
        seen.append(what)

    @pay.probe
    def look(what: list[int], call: Any) -> Any:
        seen.append(what)
        what.append(8)
        return Absent()

    pay.compensate(lambda: None)
    rt = runtime(pay)
    with rt.run("r"):
        pay([1])
    assert seen == [[1]]
    (call,) = rt.calls()
    assert call.args == {"what": [1]}


def test_results_are_nobody_s_live_object() -> None:
    mine: list[Any] = []
    taken: list[Any] = []

    @tool
    def make(n: int) -> Order:
        mine.append(Order(n, [n]))
        return mine[-1]

    @make.compensate
    def undo(result: Order) -> None:
        taken.append(repr(result))

    with pytest.raises(KeyError), runtime(make).run("r"):
        first = make(1)
        change(first)
        change(mine[0])
        assert make(1) == Order(1, [1])
        raise KeyError
    assert taken == [repr(Order(1, [1]))]


def test_a_probe_s_word_is_copied() -> None:
    found = Order(5, [1])

    @tool(kind="pivot", settle=0)
    def wire() -> Order:
        raise TimeoutError

    @wire.probe
    def look() -> Any:
        return Happened(found)

    with runtime(wire).run("r"):
        first = wire()
        change(found)
        assert first == wire() == Order(5, [1])


WORD = SecretStr("w")


def test_hidden_values_reach_the_body_as_they_were_given(tmp_path: Any) -> None:
    seen: list[Any] = []

    @tool(redact=["card", "order.lines"], retry=FAST)
    def pay(card: Any, order: Order | Sheet, word: SecretStr = WORD) -> None:
        seen.append((repr(card), repr(order), type(order)))
        change(card)
        change(order)
        if len(seen) < 2:
            raise RuntimeError

    pay.compensate(lambda: None)
    with Runtime(f"sqlite:///{tmp_path}/l.db", tools=[pay], secret_key="k" * 32, redact=["word"]) as rt:
        with rt.run("r"):
            card = {"cents": 1}
            pay(card, Sheet(cents=5, lines=[1]))
            pay(card, Sheet(cents=5, lines=[1]))
            pay(card, Order(5, [1]))
        assert card == {"cents": 1}
    sheet, order = (repr(one) for one in (Sheet(cents=5, lines=[1]), Order(5, [1])))
    assert seen == [(repr(card), sheet, Sheet)] * 2 + [(repr(card), order, Order)]


def test_once_and_handlers_get_copies() -> None:
    seen: list[Any] = []

    def send(what: list[int], order: Order) -> None:
        seen.append((repr(what), repr(order)))
        change(what)
        change(order)

    live, order = [1], Order(1)
    with runtime().run("r") as run:
        run.once("k", send, live, order=order)
    assert (live, order, seen) == ([1], Order(1), [("[1]", repr(Order(1)))])
    plain = {"cents": 1, "lines": []}
    with runtime().run("r") as run:
        run.once("k", lambda what, order: seen.append((what, order)), live, order=plain)
    assert seen.pop() == (live, plain)

    given: dict[str, Any] = {"what": [1]}

    @tool(kind="pivot")
    def act(what: Any) -> None: ...

    def handler(what: Any) -> None:
        seen.append(what)
        what.append(2)

    with runtime(act).run("r") as run:
        run.answer("act", given, handler=handler)
    assert (given, seen[1:]) == ({"what": [1]}, [[1, 2]])


def test_both_colours_give_copies() -> None:
    seen: list[Any] = []

    @tool(retry=FAST)
    async def act(what: Any, order: Order) -> None:
        seen.append((repr(what), repr(order)))
        change(what)
        change(order)
        if len(seen) < 2:
            raise RuntimeError

    act.compensate(lambda: None)

    async def main() -> None:
        async with AsyncRuntime("memory:", tools=[act]) as rt, rt.run("r"):
            await act([1], Order(1, [1]))

    asyncio.run(main())
    assert seen == [("[1]", repr(Order(1, [1])))] * 2


def test_a_call_in_the_caller_s_transaction_gets_a_copy(tmp_path: Any) -> None:
    import sqlite3

    seen: list[Any] = []

    @tool
    def act(what: Any) -> None:
        seen.append(list(what))
        what.clear()

    act.compensate(lambda: None)
    path = tmp_path / "l.db"
    live = [1]
    with Runtime(f"sqlite:///{path}", tools=[act]) as rt, rt.run("r"):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        act.with_options(connection=connection)(live)
        connection.execute("COMMIT")
        connection.close()
    assert (seen, live) == ([[1]], [1])


def test_a_held_call_starts_later_with_what_was_approved() -> None:
    seen: list[Any] = []
    act = made_of(None, seen.append, kind="pivot", needs_approval=True)
    live = {"cents": 100}
    rt = runtime(act)
    with pytest.raises(Held) as held, rt.run("r"):
        act(live)
    change(live)
    rt.approve(held.value.approval.id, by="anna", digest=held.value.approval.digest)
    with rt.run("r"):
        act({"cents": 100})
    assert seen == [{"cents": 100}]


# ---- fields of a model that nobody set --------------------------------------------------------------------------------


class Patch(BaseModel):
    name: str | None = None
    email: str | None = None


class OtherPatch(BaseModel):
    name: str | None = None
    email: str | None = None


class Several(BaseModel, extra="allow"):
    patches: list[Patch | OtherPatch] = []
    note: str = ""


def fields_set(value: Any) -> Any:
    """What a tool would change that changes only what was set."""
    return value.model_dump(exclude_unset=True)


@pytest.mark.parametrize(
    "annotation, value",
    [
        (Patch, Patch(name="x")),
        (Patch, Patch()),
        (Patch, Patch(name=None, email=None)),
        (Patch | OtherPatch, OtherPatch(email=None)),
        (Several, Several.model_validate({"patches": [Patch(name="x"), OtherPatch()], "$unset": [["note"], {}]})),
    ],
    ids=repr,
)
def test_a_field_that_nobody_set_is_unset_in_every_body(annotation: Any, value: Any, tmp_path: Any) -> None:
    seen: list[Any] = []

    def body(what: Any) -> Any:
        seen.append(fields_set(what))
        return what

    update = made_of(annotation, body, name="update", returns=annotation)

    @update.compensate
    def undo(what: Any, result: Any) -> None:
        seen.extend([fields_set(what), fields_set(result)])

    later = made_of(annotation, body, name="later", kind="pivot", needs_approval=True)
    url = f"sqlite:///{tmp_path}/l.db"
    with pytest.raises(KeyError), Runtime(url, tools=[update, later]).run("r") as run:
        run.call(update, value)
        raise KeyError
    with pytest.raises(Held) as waits, Runtime(url, tools=[update, later]).run("h"):
        later(value)
    other = Runtime(url, tools=[update, later])
    other.approve(waits.value.approval.id, by="anna", digest=waits.value.approval.digest)
    with other.run("h"):
        later(value)
    assert seen == [fields_set(value)] * 4


def test_a_model_s_json_sets_only_the_fields_that_it_names() -> None:
    seen: list[Any] = []
    update = made_of(Patch, lambda what: seen.append(fields_set(what)), kind="pivot")
    rt = runtime(update)
    with rt.run("r") as run:
        run.answer("act", {"what": {"name": "x"}})
        run.answer("act", {"what": {"name": "x", "email": None}})  # equal values are one call
    assert seen == [{"name": "x"}]
    (call,) = Runtime(store=rt._host.store).calls()  # a stranger is shown the values
    assert call.args == {"what": {"name": "x", "email": None}}


@pytest.mark.parametrize("option", ["needs_approval", "key", "cost", "locks"])
def test_a_function_of_a_request_changes_nothing_of_it(option: str) -> None:
    answers = {"needs_approval": False, "key": "k", "cost": 1, "locks": ["a"]}

    def changing(request: Any) -> Any:
        request.args["cents"] = 99_999
        return answers[option]

    ran: list[int] = []

    @tool(kind="pivot", **{option: changing})  # type: ignore[call-overload, untyped-decorator]
    def pay(cents: int) -> None:
        ran.append(cents)

    rt = Runtime("memory:", tools=[pay], budgets=[Budget(100)])
    with rt.run("r"):
        pay(100)
    assert (ran, [dict(call.args) for call in rt.report("r").calls]) == ([100], [{"cents": 100}])


def test_a_body_that_changes_the_arguments_of_its_call_is_retried_with_what_was_written_down() -> None:
    ran: list[int] = []

    @tool(kind="pivot", retry=Retry(attempts=2, delay=0.001))
    def pay(cents: int) -> None:
        ran.append(cents)
        current_call().args["cents"] = 99_999  # type: ignore[index]
        if len(ran) == 1:
            raise ValueError("once more")

    with Runtime("memory:", tools=[pay]).run():
        pay(100)
    assert ran == [100, 100]
