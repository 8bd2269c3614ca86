"""What a traceback shows: the hint of an error, and at most four frames of amends itself."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import amends
from amends import AsyncRuntime, Runtime, errors, tool
from amends.errors import (
    OWN_FRAMES_MAX,
    BadArguments,
    BadDeclaration,
    Error,
    Held,
    OutOfOrder,
    RolledBack,
    RunBlocked,
    UsageError,
)
from amends.run import OpenRun

OURS = str(Path(amends.__file__).parent)


class Broken(Exception):
    pass


def fails() -> None:
    raise Broken("the card was declined")


@tool
def pay(x: int) -> int:
    fails()
    return x


@pay.compensate
def refund(x: int) -> None: ...


@tool
def trip(x: int) -> int:
    return pay(x)


trip.compensate(lambda: None)


@tool
def tour(x: int) -> int:
    return trip(x)


tour.compensate(lambda: None)


@tool(kind="pivot")
def wire(x: int) -> int:
    return x


@tool(kind="pivot", needs_approval=True)
def asked(x: int) -> int:
    return x


@tool
def stays(x: int) -> int:
    return x


@stays.compensate
def cannot(x: int) -> None:
    raise Broken("it stays")


@tool
async def apay(x: int) -> int:
    await asyncio.sleep(0)
    fails()
    return x


@apay.compensate
async def arefund(x: int) -> None: ...


@tool
async def atrip(x: int) -> int:
    return await apay(x)


@atrip.compensate
async def auntrip(x: int) -> None: ...


TOOLS = [pay, trip, tour, wire, asked, stays, apay, atrip]


def own_frames(error: BaseException) -> list[str]:
    return [f"{one.filename}:{one.name}" for one in traceback.extract_tb(error.__traceback__) if OURS in one.filename]


def _in_run(act: Callable[[Any], object]) -> Callable[[Runtime], object]:
    def do(rt: Runtime) -> object:
        with rt.run("r") as run:
            return act(run)

    return do


def _blocked(run: Any) -> None:
    stays(1)
    fails()


def _in_child(run: Any) -> None:
    with run.child("c"):
        pay(1)


def _ended_child(rt: Runtime) -> None:
    run = rt.open("r")
    run.commit()
    with run.child("c"):
        pass


CASES: dict[str, tuple[type[BaseException], Callable[[Runtime], object]]] = {
    "a failing tool": (Broken, _in_run(lambda run: pay(1))),
    "a nested call": (Broken, _in_run(lambda run: trip(1))),
    "three levels": (Broken, _in_run(lambda run: tour(1))),
    "run.call": (Broken, _in_run(lambda run: run.call(pay, 1))),
    "run.call of an async tool": (Broken, _in_run(lambda run: run.call(apay, 1))),
    "a thread": (Broken, _in_run(lambda run: run.submit(pay, 1).result())),
    "a child": (Broken, _in_run(_in_child)),
    "an ended run's child": (UsageError, _ended_child),
    "run.once": (Broken, _in_run(lambda run: run.once("k", fails))),
    "rt.once": (Broken, lambda rt: rt.once("k", fails)),
    "run.begin": (UsageError, _in_run(lambda run: run.begin("nothing", {}))),
    "out of order": (OutOfOrder, _in_run(lambda run: (wire(1), wire(2)))),
    "bad arguments": (BadArguments, _in_run(lambda run: pay("one"))),  # type: ignore[arg-type]
    "held": (Held, _in_run(lambda run: asked(1))),
    "rolled back": (RolledBack, _in_run(lambda run: run.rollback("no"))),
    "blocked": (RunBlocked, _in_run(_blocked)),
    "no such run": (UsageError, lambda rt: rt.report("nope")),
    "a filter": (UsageError, lambda rt: list(rt.calls("nope:1"))),
    "events": (UsageError, lambda rt: list(rt.events("nope"))),
    "a person's verb": (UsageError, lambda rt: rt.approve("nope", digest="1", by="anna")),
    "a declaration": (BadDeclaration, lambda rt: rt.add(tool(lambda x: x))),
    "a runtime": (BadDeclaration, lambda rt: Runtime("memory:", tools=[tool(lambda x: x)])),
    "a replay": (UsageError, lambda rt: rt.replay("nope", fails)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_traceback_has_at_most_four_frames_of_amends(case: str) -> None:
    kind, act = CASES[case]
    rt = Runtime("memory:", tools=TOOLS)
    with pytest.raises(kind) as found:
        act(rt)
    _check(found.value)


def _check(error: BaseException) -> None:
    one: BaseException | None = error
    while one is not None:
        assert len(own_frames(one)) <= OWN_FRAMES_MAX == 4
        one = one.__cause__ or one.__context__
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(error.__traceback__)]
    if type(error) is Broken:
        assert frames[-1] == (__file__, "fails"), "the line that raised is the last one"
    else:
        assert OURS in frames[-1][0]
    assert (__file__, "_check") not in frames


@pytest.mark.parametrize(
    "act",
    [
        lambda rt, run: apay(1),
        lambda rt, run: atrip(1),
        lambda rt, run: run.call(pay, 1),
        lambda rt, run: run.call(apay, 1),
        lambda rt, run: run.once("k", fails),
        lambda rt, run: run.submit(apay, 1),
        lambda rt, run: run.rollback("no"),
        lambda rt, run: rt.report("nope"),
        lambda rt, run: run.call(wire, "one"),
        lambda rt, run: run.call(asked, 1),
    ],
)
def test_in_async_runs_too(act: Callable[[Any, Any], Any]) -> None:
    async def main() -> None:
        async with AsyncRuntime("memory:", tools=TOOLS) as rt, rt.run("r") as run:
            await act(rt, run)

    with pytest.raises((Error, Broken)) as found:
        asyncio.run(main())
    _check(found.value)


def test_a_tool_that_is_written_in_c_is_trimmed_too() -> None:
    rt = Runtime("memory:")
    with pytest.raises(ValueError, match="invalid literal") as found, rt.run() as run:
        run.once("k", int, "one")
    assert len(own_frames(found.value)) <= OWN_FRAMES_MAX


def test_a_bug_of_amends_shows_all_of_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> None:
        raise AssertionError("a bug")

    broken.__code__ = broken.__code__.replace(co_filename=f"{OURS}/run.py")
    monkeypatch.setattr(OpenRun, "_check_usable", broken)
    with pytest.raises(AssertionError) as found, Runtime("memory:", tools=TOOLS).run() as run:
        run.call(trip.with_options(again="x"), 1)
    assert len(own_frames(found.value)) > OWN_FRAMES_MAX


def test_at_debug_nothing_is_removed(caplog: pytest.LogCaptureFixture) -> None:
    rt = Runtime("memory:", tools=TOOLS)
    with caplog.at_level(logging.DEBUG, "amends"), pytest.raises(Broken) as found, rt.run():
        trip(1)
    assert len(own_frames(found.value)) > OWN_FRAMES_MAX


def test_an_exception_that_is_raised_again_keeps_the_lines_of_its_callers() -> None:
    kept: list[Broken] = []

    def twice() -> None:
        with Runtime("memory:", tools=TOOLS).run():
            try:
                trip(1)
            except Broken as error:
                kept.append(error)
        raise kept[0]

    with pytest.raises(Broken) as found:
        twice()
    names = [one.name for one in traceback.extract_tb(found.value.__traceback__)]
    assert [name for name in names if name in ("twice", "trip", "pay", "fails")] == [
        "twice",
        "twice",
        "trip",
        "pay",
        "fails",
    ]


# ---- Hints


def test_a_traceback_shows_the_hint() -> None:
    with pytest.raises(errors.NoRun) as found:
        pay(1)
    text = "".join(traceback.format_exception(found.value))
    assert "amends.errors.NoRun: pay was called outside a run\nhint: open one with" in text
    assert text.count("hint:") == 1


def test_a_hint_that_changes_is_shown_once_and_before_other_notes() -> None:
    error = errors.UsageError("no", hint="first")
    error.add_note("amends: run r rolled back")
    error.hint = "second\nline"
    assert error.hint == "second\\nline"
    assert error.__notes__ == ["hint: second\\nline", "amends: run r rolled back"]
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (twin.hint, twin.__notes__) == (error.hint, error.__notes__)


def test_notes_are_no_facts() -> None:
    error = errors.WrongColour("no", tool="pay", hint="await it")
    error.add_note("amends: run r rolled back")
    assert error.to_dict() == {"code": "wrong_colour", "message": "no", "hint": "await it", "tool": "pay"}


def test_every_error_says_where_it_is_imported_from() -> None:
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Error)]
    assert len(found) > 50
    for one in found:
        assert one.__module__ == "amends.errors"
        assert getattr(sys.modules["amends.errors"], one.__qualname__) is one


def _raised_through(names: str) -> BaseException:
    """Return an error whose frames are ours (o), wrappers of ours (t) or a program's (p), outermost first."""
    inner: Callable[[], object] = fails
    for letter in reversed(names):
        where = "program.py" if letter == "p" else f"{OURS}/x.py"
        name = "_trimmed" if letter == "t" else "step"
        space: dict[str, Any] = {"inner": inner}
        exec(compile(f"def {name}(): inner()", where, "exec"), space)
        inner = space[name]
    try:
        inner()
    except Broken as error:
        return error
    raise AssertionError("it raises")


@pytest.mark.parametrize(
    "names, kept",
    [
        ("ooooooo", "o...ooo"), ("pooooooo", "po...ooo"), ("oooooop", "o..ooop"), ("ppooooopp", "ppo.ooopp"), ("oooo", "oooo"),
        ("poop", "poop"), ("ooopooo", "o.opo.o"), ("tooooo", ".o.ooo"), ("otootoo", "o..o.oo"),
    ],
)  # fmt: skip
def test_the_first_and_the_last_frames_of_amends_stay_and_those_of_the_program_all(names: str, kept: str) -> None:
    error = _raised_through(names)
    before: list[Any] = []
    trace = error.__traceback__
    while trace is not None:
        before.append(trace)
        trace = trace.tb_next
    ours = before[1 : len(names) + 1]  # the first is this test's, and fails() is the last
    links = [one.tb_next for one in before]
    errors.trim(error)
    expected = [before[0], *(one for one, letter in zip(ours, kept, strict=True) if letter != "."), before[-1]]
    found = list(traceback.walk_tb(error.__traceback__))
    assert found == [(one.tb_frame, one.tb_lineno) for one in expected]
    assert [one.tb_next for one in before] == links, "who holds the old traceback sees all of it"
