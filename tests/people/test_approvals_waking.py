"""Who waits is woken; who died, or went home, is gone on with: by a worker, or by coming back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from amends import Held, Run, Runtime, tool
from amends.testing.runtime import TestRuntime
from amends.worker import work
from tests.people.conftest import Shop, yes
from tests.scenarios.stores import STORES, fresh


def test_an_agent_is_resumed_by_a_worker_when_somebody_has_said_yes(shop: Shop) -> None:
    lives: list[bool] = []

    def agent(run: Run) -> str:
        lives.append(run.resumed)
        run.answer("reserve", {"item": "x"})
        answer = run.answer("charge", {"order": "1"})
        if answer.error is not None:
            raise answer.error
        return str(answer.value)

    rt = shop.runtime(asks={"charge": True}, agents={"planner": agent})
    with pytest.raises(Held):
        rt.start("planner", id="r")
    assert rt.recover() == []
    yes(rt)
    [report] = rt.recover()
    assert (report.state, lives) == ("committed", [False, True])
    assert shop.sent == ["reserve x", "charge 1 100"]


def test_a_process_that_died_before_it_could_suspend_is_waited_for_all_the_same(shop: Shop) -> None:
    rt = shop.runtime(asks={"charge": True})
    run = rt.open("r")
    run.answer("reserve", {"item": "x"})
    assert run.answer("charge", {"order": "1"}).status == "held"
    rt.crash()
    shop.clock.advance(120)
    [report] = rt.recover()
    assert (report.state, shop.undone) == ("open", [])
    assert rt.recover() == []
    yes(rt)
    with rt.run("r") as again:
        assert again.answer("charge", {"order": "1"}).status == "done"
    assert again.state == "committed"


def test_what_is_in_doubt_is_settled_while_somebody_is_asked(shop: Shop) -> None:
    found: list[int] = []

    @tool(probe=lambda n: found.append(n) or __import__("amends").Absent())  # type: ignore[arg-type, func-returns-value]
    def lost(n: int) -> None:
        raise TimeoutError

    @lost.compensate
    def back(n: int) -> None: ...

    rt = TestRuntime(tools=[lost, *shop.tools(charge=True)], store=shop.store, clock=shop.clock)
    run = rt.open("r")
    assert run.answer("charge", {"order": "1"}).status == "held"
    run.answer("lost", {"n": 1})
    rt.crash()
    shop.clock.advance(120)
    rt.recover()
    assert rt.report("r").state == "open"
    assert next(iter(rt.approvals())).state == "pending"


@pytest.mark.parametrize("kind", STORES)
def test_who_waits_in_place_is_woken_by_another_runtime(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = fresh(kind, tmp_path, request)
    sent: list[int] = []

    @tool(kind="pivot", needs_approval=True)
    def wire(n: int) -> int:
        sent.append(n)
        return n

    rt, desk = Runtime(url, tools=[wire]), Runtime(url, tools=[wire])
    answers: list[str] = []

    def caller() -> None:
        with rt.run("r", wait_approval=60.0) as run:
            answers.append(run.answer("wire", {"n": 1}).status)

    waiting = threading.Thread(target=caller)
    desk.schema()
    waiting.start()
    pause = threading.Event()
    while not (asked := list(desk.approvals())):
        pause.wait(0.02)
    desk.approve(asked[0].id, digest=asked[0].digest, by="anna")
    waiting.join(30)
    assert (answers, sent) == (["done"], [1])
    rt.close()
    desk.close()


def test_a_worker_goes_on_with_a_run_whose_block_had_ended(tmp_path: Path) -> None:
    sent: list[int] = []

    @tool(kind="pivot", at="commit", needs_approval=True)
    def wire(n: int) -> int:
        sent.append(n)
        return n

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    rt = Runtime(url, tools=[wire])
    with pytest.raises(Held), rt.run("r"):
        wire(n=1)
    [waits] = rt.approvals()
    rt.approve(waits.id, digest=waits.digest, by="anna")
    [report] = work(Runtime(url, tools=[wire]), once=True)
    assert (report.state, sent) == ("committed", [1])
    rt.close()
