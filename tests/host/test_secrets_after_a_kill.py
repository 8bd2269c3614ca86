"""After a kill: a worker does not have what was hidden, and what becomes of each call without it is said clearly."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amends import Absent, Happened, Retry, Runtime, Unknown, testing, tool
from amends.errors import Held, InDoubt, RunBlocked
from amends.stores.memory import MemoryStore
from amends.worker import work
from tests.cli.command import environment
from tests.world import die, states, twin_of, wake

CARD = "4242-4242-4242-4242"

PROGRAM = """
import os, signal, sys
from amends import Absent, Happened, Runtime, tool

def say(word):
    with open("world.txt", "a") as out:
        out.write(word + "\\n")

@tool(redact="card")
def charge(order: str, card: str) -> str:
    say(f"charged {order}")
    if order == os.environ.get("DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"ch_{order}"

@charge.compensate
def refund(order: str) -> None:
    say(f"refunded {order}")

@charge.probe
def find(order: str):
    return Happened(f"ch_{order}") if f"charged {order}\\n" in open("world.txt").read() else Absent()

rt = Runtime("sqlite:///l.db", tools=[charge])
if __name__ == "__main__":
    with rt.run("r"):
        charge(order="1", card=sys.argv[1])
        charge(order="2", card=sys.argv[1])
"""


@pytest.mark.parametrize("order", ["1", "2"])
def test_a_killed_process_is_taken_back_by_one_that_never_had_the_value(tmp_path: Path, order: str) -> None:
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    play = [sys.executable, "app.py", CARD]
    done = subprocess.run(play, cwd=tmp_path, env=environment(DIE=order), capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    recover = [sys.executable, "-m", "amends", "recover", "app:rt"]
    done = subprocess.run(recover, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert "rolled back, nothing left standing" in done.stdout, done.stdout + done.stderr
    world = (tmp_path / "world.txt").read_text(encoding="utf-8").split("\n")
    assert sorted(world[:-1]) == sorted(
        [f"{word} {n}" for n in range(1, int(order) + 1) for word in ("charged", "refunded")]
    )
    kept = b"".join(file.read_bytes() for file in tmp_path.glob("l.db*"))
    assert CARD.encode() not in kept
    assert CARD not in done.stdout + done.stderr


def test_a_doubt_that_only_another_start_could_settle_is_a_persons_matter() -> None:
    @tool(kind="pivot", redact="card", idempotent=True, retry=Retry(attempts=1))
    def wire(card: str) -> str:
        raise TimeoutError("lost")

    store = MemoryStore()
    run = twin_of(store, wire).open("r", recover="wait")
    with pytest.raises(InDoubt):
        run.call(wire, card=CARD)
    die(run)
    [report] = twin_of(store, wire).recover()
    assert report.state == "blocked"
    assert "rt.resolve" in report.run.causes[0]


def test_its_own_program_has_the_value_and_goes_on() -> None:
    """The way out that needs nobody: whoever opens the run again asks again, and brings the value."""
    starts: list[str] = []

    @tool(redact="card", idempotent=True)
    def charge(card: str) -> str:
        starts.append(card)
        if len(starts) == 1:
            rt.crash()
        return "ch"

    charge.compensate(lambda result: None)
    rt = testing.runtime(tools=[charge], wait=0.2)
    with pytest.raises(testing.Crash):
        rt.open("r", recover="wait").call(charge, card=CARD)
    with rt.run("r"):
        assert charge(card=CARD) == "ch"
    assert starts == [CARD, CARD]
    assert rt.report("r").state == "committed"


def test_a_pivot_that_never_happened_is_not_started_by_a_commit_that_lacks_its_value() -> None:
    says: list[Any] = [Unknown()]

    @tool(kind="pivot", redact="card", retry=Retry(attempts=5, delay=0.001))
    def wire(card: str) -> str:
        raise TimeoutError("lost")

    @wire.probe
    def find() -> Any:
        return says[-1]

    store = MemoryStore()
    rt = twin_of(store, wire, wait=0.2)  # the doubt lasts longer than anybody waits
    run = rt.open("r")
    with pytest.raises(InDoubt):
        run.call(wire, card=CARD)
    with pytest.raises(RunBlocked):
        run.commit()
    says.append(Absent())
    del run
    worker = twin_of(store, wire, wait=0.2)
    wake(store)
    assert worker.recover()
    report = worker.report("r")
    assert report.state == "rolled_back", "nothing happened, and nobody here can make it happen"
    assert "its card is redacted" in store.runs[next(iter(store.runs))].goal_why


def test_a_held_call_that_a_person_lets_go_waits_for_its_caller() -> None:
    done: list[str] = []

    @tool(redact="card")
    def charge(order: str, card: str) -> str:
        done.append(card)
        return "ch"

    charge.compensate(lambda result: None)
    store = MemoryStore()
    rt = twin_of(store, charge)
    run = rt.open("r", recover="wait")
    run.call(charge, order="1", card=CARD)
    die(run)
    again = twin_of(store, charge).open("r", recover="wait")
    with pytest.raises(Held) as held:
        again.call(charge, order="one", card=CARD)
    with pytest.raises(Held):
        again.commit()
    worker = twin_of(store, charge)
    worker.decide(held.value.call.id, "run", by="anna", why="another one")
    for _ in range(3):
        worker.recover()
    assert done == [CARD], "nobody here has the value"
    assert [call.state for call in worker.report("r").calls] == ["succeeded", "ready"]
    with twin_of(store, charge).run("r"):
        assert charge(order="one", card=CARD) == "ch"
    assert done == [CARD, CARD]
    assert states(worker, "r") == {"charge": "succeeded"}


def test_every_crash_point_of_a_program_with_a_hidden_argument() -> None:
    standing: list[str] = []

    @tool(key="order", redact="card")
    def charge(order: str, card: str) -> str:
        assert card == CARD
        standing.append(order)
        return order

    @charge.compensate(absent_ok=True)
    def refund(order: str) -> None:
        if order in standing:
            standing.remove(order)

    @charge.probe
    def find(order: str) -> Any:
        return Happened(order) if order in standing else Absent()

    @tool(kind="pivot", redact="card")
    def wire(card: str) -> str:
        standing.append("wire")
        return "w"

    @wire.probe
    def sent() -> Any:
        return Happened("w") if "wire" in standing else Absent()

    def scenario(run: Any) -> None:
        charge(order="1", card=CARD)
        charge(order="2", card=CARD)
        wire(card=CARD)

    verdict = testing.simulate(
        scenario, tools=[charge, wire], state=lambda: sorted(standing), fresh=standing.clear, seeds=40
    )
    verdict.raise_if_broken()
    assert verdict.schedules > 50


def test_a_worker_that_cannot_recover_a_run_logs_how_without_what_is_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(redact="card")
    def charge(card: str) -> str:
        return "ch"

    charge.compensate(lambda result: None)
    rt = Runtime(f"sqlite:///{tmp_path}/l.db", tools=[charge], redact=["re:cnry-[0-9]+"], wait=0.1)
    run = rt.open("r")
    run.call(charge, card=CARD)
    die(run)

    def broken(found: Any, **_: Any) -> Any:
        raise RuntimeError("it broke over cnry-123")

    rt._recover_one = broken  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        work(rt, once=True)
    assert "could not be recovered here" in caplog.text
    assert "it broke over •••" in caplog.text
    assert "cnry-123" not in caplog.text + repr([record.exc_info for record in caplog.records])
