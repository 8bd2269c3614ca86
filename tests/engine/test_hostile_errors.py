"""Errors that misbehave when they are looked at: their run is left in order all the same, and they come out as themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from amends import Absent, AsyncRuntime, InDoubt, NoEffect, Retry, Runtime, Unknown, tool
from amends.errors import BadCost, Held, RunBlocked
from tests.world import until


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I do not speak")

    __repr__ = __str__


class Worse(BaseException):
    pass


class MuteWorse(Exception):
    def __str__(self) -> str:
        raise Worse


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 (this is what is tried)


class NoArgs(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no args")


class NoNotes(Exception):
    __notes__ = "not a list"  # type: ignore[assignment]


class NoNote(Exception):
    def add_note(self, note: str) -> None:
        raise RuntimeError("no notes")


class NoClass(Exception):
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class NoCause(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no cause")

    @property
    def __context__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no context")


class NoAttributes(Exception):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class NoSet(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("nothing is set here")


@dataclass(frozen=True)
class Frozen(Exception):
    code: str = "E1"


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("no instance")


class OfNameless(Exception, metaclass=Nameless):
    pass


class Unequal(Exception):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")


class OddText(str):
    __slots__ = ()

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("not to be cut")

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("not to be written")


class OddWords(Exception):
    def __str__(self) -> str:
        return OddText("odd")


HOSTILE: list[Callable[[], Exception]] = [
    Mute,
    MuteWorse,
    NoText,
    NoArgs,
    NoNotes,
    NoNote,
    NoClass,
    NoCause,
    NoAttributes,
    NoSet,
    Frozen,
    OfNameless,
    Unequal,
    OddWords,
    lambda: ValueError("a lone surrogate \ud800 here"),
    lambda: ValueError("a NUL \x00 here"),
    lambda: ValueError("\udcff\x00\x1b[2J" * 10),
    lambda: ValueError("x" * 5_000_000),
    lambda: ValueError(object(), {"a": Mute()}),
    lambda: ExceptionGroup("g \ud800", [Mute()]),
]
names = [
    f"{n}-{getattr(make, '__qualname__', '?') if make is not OfNameless else 'OfNameless'}"
    for n, make in enumerate(HOSTILE)
]


@pytest.fixture(params=["memory", "sqlite"])
def url(request: Any, tmp_path: Any) -> str:
    return "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/ledger.db"


def shop(log: list[str], make: Callable[[], Exception]) -> tuple[Any, Any]:
    @tool(name="reserve")
    def reserve() -> None:
        log.append("reserve")

    @tool(name="pay")
    def pay() -> None:
        raise make()

    reserve.compensate(lambda: log.append("release"))
    pay.compensate(lambda: log.append("refund"))
    return reserve, pay


def raised_by(work: Callable[[], Any]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_an_error_of_a_tool_takes_its_run_back_and_comes_out_as_itself(make: Callable[[], Exception], url: str) -> None:
    log: list[str] = []
    made: list[Exception] = []
    reserve, pay = shop(log, lambda: made.append(make()) or made[-1])  # type: ignore[func-returns-value]
    rt = Runtime(url, tools=[reserve, pay])

    def program() -> None:
        with rt.run("r"):
            reserve()
            pay()

    error = raised_by(program)
    assert error is made[0]
    assert log == ["reserve", "release"]
    report = rt.report("r")
    assert report.state == "rolled_back"
    assert str(report)
    report.to_json() if hasattr(report, "to_json") else None
    for event in rt.events():
        str(event).encode()
    rt.close()


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_an_error_of_the_block_takes_its_run_back(make: Callable[[], Exception], url: str) -> None:
    log: list[str] = []
    reserve, pay = shop(log, make)
    rt = Runtime(url, tools=[reserve, pay])
    thrown = make()

    def program() -> None:
        with rt.run("r"):
            reserve()
            raise thrown

    assert raised_by(program) is thrown
    assert log == ["reserve", "release"]
    assert rt.report("r").state == "rolled_back"
    rt.close()


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_in_an_async_run_too(make: Callable[[], Exception]) -> None:
    log: list[str] = []
    thrown = make()

    @tool(name="reserve")
    async def reserve() -> None:
        log.append("reserve")

    @tool(name="pay")
    async def pay() -> None:
        raise thrown

    reserve.compensate(lambda: log.append("release"))
    pay.compensate(lambda: log.append("refund"))

    async def program() -> None:
        rt = AsyncRuntime("memory:", tools=[reserve, pay])
        caught: BaseException | None = None
        try:
            async with rt.run("r"):
                await reserve()
                await pay()
        except BaseException as error:
            caught = error
        assert caught is thrown
        assert (await rt.report("r")).state == "rolled_back"
        await rt.close()

    asyncio.run(program())
    assert log == ["reserve", "release"]


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_a_model_is_told_and_the_text_can_be_sent(make: Callable[[], Exception]) -> None:
    reserve, pay = shop([], make)
    rt = Runtime("memory:", tools=[reserve, pay])
    with rt.run("r") as run:
        answer = run.answer("pay", {})
    assert answer.status == "failed"
    answer.text.encode()


@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_an_error_of_a_compensation_leaves_its_run_blocked_and_named(
    make: Callable[[], Exception], attempts: int
) -> None:
    @tool(name="pay")
    def pay() -> None: ...

    @pay.compensate(retry=Retry(attempts=attempts, delay=0.001))
    def refund() -> None:
        raise make()

    rt = Runtime("memory:", tools=[pay])

    def program() -> None:
        with rt.run("r"):
            pay()
            raise KeyError

    assert isinstance(raised_by(program), RunBlocked)
    assert rt.report("r").calls[0].state == "compensation_failed"
    rt.close()


PLAN = [{"tool": "reserve", "args": {}}, {"tool": "pay", "args": {}}]


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_a_model_s_answer_a_plan_and_a_replay_can_be_read_too(make: Callable[[], Exception]) -> None:
    log: list[str] = []
    reserve, _ = shop(log, make)

    @tool(name="pay", on_failure="continue")
    def pay() -> None:
        raise make()

    pay.compensate(lambda: None)
    rt = Runtime("memory:", tools=[reserve, pay])

    def program() -> None:
        with rt.run("r") as run:
            run.execute(PLAN)
            raise make()

    def again() -> None:
        with rt.replaying("r") as run:
            run.execute(PLAN)
            raise make()

    with rt.run("s") as run:
        assert not run.answer("pay", {}).waits
    assert type(raised_by(program)) is type(make())
    assert rt.report("r").state == "rolled_back"
    if type(make()) not in (NoSet, Frozen):  # Python's own context managers set the traceback of what passes them
        assert type(raised_by(again)) is type(make())
    assert log == ["reserve", "release"]
    rt.close()


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_an_error_of_a_probe_is_unknown(make: Callable[[], Exception]) -> None:
    @tool(name="pay", retry=Retry(attempts=1, delay=0.001))
    def pay() -> None:
        raise TimeoutError

    pay.compensate(retry=Retry(attempts=1))(lambda: None)
    answers: list[Any] = [make, Absent]

    @pay.probe(settle=0)
    def find() -> Any:
        answer = answers.pop(0)
        if answer is make:
            raise make()
        return Absent()

    rt = Runtime("memory:", tools=[pay])
    with rt.run("r"), pytest.raises((TimeoutError, InDoubt)):
        answers.extend([Absent] * 9)
        pay()
    rt.close()


def test_what_a_probe_says_may_be_anything() -> None:
    @tool(name="pay")
    def pay() -> None:
        raise TimeoutError

    pay.compensate(lambda: None)
    pay.probe(settle=0)(lambda: Unknown("\ud800\x00"))
    rt = Runtime("memory:", tools=[pay], wait=0.1)
    with pytest.raises(BaseException), rt.run("r"):  # noqa: B017 (still in doubt: whatever says so)
        pay()
    for doubt in rt.doubts() if hasattr(rt, "doubts") else ():
        str(doubt).encode()


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_rules_and_costs_that_raise(make: Callable[[], Exception]) -> None:
    def raises(_: Any) -> Any:
        raise make()

    @tool(name="asks", needs_approval=raises)
    def asks() -> None: ...

    @tool(name="costs", cost=raises)
    def costs() -> None: ...

    asks.compensate(lambda: None)
    costs.compensate(lambda: None)
    rt = Runtime("memory:", tools=[asks, costs])
    with rt.run("c"), pytest.raises(BadCost):
        costs()
    with pytest.raises(Held), rt.run("a"):
        asks()
    assert next(rt.approvals()).rule.encode()
    rt.close()


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_a_hook_that_raises_changes_nothing(make: Callable[[], Exception]) -> None:
    heard: list[Any] = []

    def hook(approval: Any) -> None:
        heard.append(approval)
        raise make()

    @tool(name="asks", needs_approval=True)
    def asks() -> None: ...

    asks.compensate(lambda: None)
    rt = Runtime("memory:", tools=[asks], on_approval_needed=hook)
    with pytest.raises(Held), rt.run("a"):
        asks()
    until(lambda: bool(heard))


@pytest.mark.parametrize("make", HOSTILE, ids=names)
def test_the_word_of_an_attempt_and_of_a_child(make: Callable[[], Exception]) -> None:
    log: list[str] = []
    reserve, pay = shop(log, make)
    rt = Runtime("memory:", tools=[reserve, pay])
    with rt.run("r") as run:
        run.begin("pay", {}).fail(make())
    assert rt.report("r").calls[0].state == "failed"
    thrown = make()

    def by_hand() -> None:
        with rt.run("h") as run, run.begin("pay", {}):
            raise thrown

    assert raised_by(by_hand) is thrown
    assert rt.report("h").state == "rolled_back"

    def child() -> None:
        with rt.run("c") as run, run.child("inner"):
            reserve()
            raise thrown

    error = raised_by(child)
    assert error is thrown or make in (NoSet, Frozen), "contextlib cannot pass on what takes no traceback"
    assert rt.report("c").state == "rolled_back"
    assert log == ["reserve", "release"]
    rt.close()


def test_no_effect_and_a_rollback_in_strange_words(url: str) -> None:
    @tool(name="pay")
    def pay() -> None:
        raise NoEffect("\ud800\x00")

    pay.compensate(lambda: None)
    rt = Runtime(url, tools=[pay])
    with rt.run("r"), pytest.raises(NoEffect):
        pay()

    def program() -> None:
        with rt.run("s") as run:
            run.rollback("because \ud800\x00")

    assert type(raised_by(program)).__name__ == "RolledBack"
    rt.close()


def test_an_error_that_is_too_long_to_keep_says_that_it_was_cut() -> None:
    @tool(kind="pivot")
    def pay() -> str:
        raise NoEffect("x" * 3_000)

    rt = Runtime("memory:", tools=[pay])
    with pytest.raises(NoEffect), rt.run("r"):
        pay()
    (call,) = rt.report("r").calls
    assert call.error is not None
    assert call.error.endswith("xxx [... the rest is not kept]")
    assert len(call.error) < 2_100


@pytest.mark.parametrize("server", ["postgres_url", "mysql_url"])
def test_strange_words_on_servers(server: str, request: Any) -> None:
    """PostgreSQL takes no NUL, and neither of them half a surrogate pair."""
    where = request.getfixturevalue(server)
    for make in (Mute, lambda: ValueError("\ud800 and \x00"), lambda: ValueError("x" * 1_000_000)):
        log: list[str] = []
        thrown = make()

        def raises(thrown: Exception = thrown) -> Exception:
            return thrown

        reserve, pay = shop(log, raises)
        rt = Runtime(where, tools=[reserve, pay])

        def program(rt: Any = rt, reserve: Any = reserve, pay: Any = pay) -> None:
            with rt.run():
                reserve()
                pay()

        assert raised_by(program) is thrown
        assert log == ["reserve", "release"]
        rt.close()
