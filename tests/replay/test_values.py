"""The clock, dice and names of a run: written down or made from it, and so the same after a resume."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest

from amends import current_run, tool
from amends.errors import RunEnded
from amends.testing.runtime import TestRuntime
from amends.testing.simulation import Crash


def read(run: Any) -> list[Any]:
    return [run.now(), run.uuid(), run.random().random(), run.now()]


def test_a_resumed_run_reads_first_what_it_read_before() -> None:
    rt = TestRuntime()
    with contextlib.suppress(Crash), rt.run("r", recover="resume") as run:
        before = read(run)
        with run.child("c") as inner:
            before += read(inner)
        rt.crash()
    rt.clock.advance(3600)
    with rt.run("r") as run:
        again = read(run)
        with run.child("c") as inner:
            again += read(inner)
        assert again == before
        later = run.now()
        assert later > before[0]
        assert run.uuid() not in before
    with rt.run("r") as run:
        assert [*read(run), run.now()] == [*before[:4], later]
        with pytest.raises(RunEnded):
            run.now()


def test_the_clock_is_aware_and_an_event_of_the_run() -> None:
    rt = TestRuntime()
    with rt.run("r") as run:
        at = run.now()
    assert at.tzinfo is not None
    (value,) = [event for event in rt.events("r") if event.what == "value"]
    assert value.at == at


def test_two_runs_and_two_readings_differ_and_names_are_names() -> None:
    rt = TestRuntime()
    drawn: set[Any] = set()
    for id in ("a", "b"):
        with rt.run(id) as run:
            for _ in range(3):
                name = run.uuid()
                assert isinstance(name, UUID)
                assert name.version == 4
                drawn |= {name, run.random().random()}
    assert len(drawn) == 12


def test_a_body_reads_for_itself_so_that_a_replay_without_it_reads_the_same() -> None:
    @tool
    def stamp() -> str:
        run = current_run()
        return f"{run.now()} {run.uuid()}"

    @stamp.compensate
    def unstamp() -> None: ...

    rt = TestRuntime(tools=[stamp])

    def agent() -> list[Any]:
        run = current_run()
        first = [run.now(), run.uuid()]
        rt.clock.advance(5)
        return [*first, stamp(), run.now(), run.uuid()]

    with rt.run("r") as run:
        run.output = agent()
    assert rt.replay("r", agent) == run.output
