"""Rarer decisions of a person about stuck runs, at a terminal and with ``--json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from amends import InDoubt, RunBlocked, Runtime, tool
from amends.errors import NAMED_MAX
from tests.cli.command import PATIENCE_S, environment, run
from tests.cli.terminal import at_terminal
from tests.forked import run_python

PROGRAM = """
import sys
from pathlib import Path
from amends import Error, Runtime, tool

@tool(key="order")
def pay(order: str) -> str:
    return f"ch_{order}"

@pay.compensate(retry=1)
def refund(result: str) -> None:
    if not Path("open").exists():
        raise RuntimeError("the bank is closed")

@tool(key="order", on_conflict="hold")
def order_cake(order: str, candles: int) -> str:
    return f"cake_{candles}"

@order_cake.compensate
def cancel_cake(result: str) -> None: ...

@tool(kind="pivot")
def ship(order: str) -> str:
    return f"p_{order}"

rt = Runtime(tools=[pay, order_cake, ship])

if __name__ == "__main__":
    for name in ("1", "2"):
        try:
            with rt.run(f"closed-{name}"):
                pay(order=name)
                raise ValueError("wrong order")
        except (Error, ValueError): pass
        try:
            with rt.run(f"party-{name}", recover="wait"):
                order_cake(order=name, candles=7)
                order_cake(order=name, candles=8)
        except Error: pass
        try:
            with rt.run(f"shipped-{name}"):
                ship(order=name)
                raise ValueError("dropped it")
        except (Error, ValueError): pass
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "amends.toml").write_text('app = "app.py:rt"\nby = "ada"\n', encoding="utf-8")
    run_python(["app.py"], cwd=tmp_path, env=environment(), timeout=PATIENCE_S).check_returncode()
    return tmp_path


def said(*args: str, cwd: Path, code: int = 0) -> Any:
    done = run(*args, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def call_of(stuck: Path, run_id: str, state: str) -> str:
    calls = said("runs", "show", run_id, cwd=stuck)["calls"]
    return str(next(call["id"] for call in calls if call["state"] == state))


def test_a_compensation_that_gave_up_is_tried_again(stuck: Path) -> None:
    first, second = (call_of(stuck, f"closed-{name}", "compensation_failed") for name in "12")
    assert said("calls", "retry", first, "--why", "it is Monday", cwd=stuck, code=3)["run"]["state"] == "blocked"
    (stuck / "open").touch()
    assert said("calls", "retry", first, "--why", "it is Tuesday", cwd=stuck)["run"]["state"] == "rolled_back"
    no = at_terminal("calls", "retry", second, "--why", "x", cwd=stuck, answers=[("starts it again. Sure?", "n\n")])
    assert (no.code, "the bank is closed" in no.text) == (1, True), "the question shows the call and why it failed"
    seen = at_terminal("calls", "retry", second, "--why", "it is Tuesday", "-y", cwd=stuck)
    assert (seen.code, "= rolled back" in seen.text) == (0, True)


def test_a_held_call_is_decided(stuck: Path) -> None:
    first, second = (call_of(stuck, f"party-{name}", "held") for name in "12")
    done = said("calls", "decide", first, "run", "--why", "two cakes", cwd=stuck)
    assert [call["state"] for call in done["calls"] if call["id"] == first] == ["ready"]
    seen = at_terminal("calls", "decide", second, "refuse", "--why", "one cake is enough", cwd=stuck)
    assert (seen.code, "⊘ refused" in seen.text) == (0, True)


def test_an_interrupted_run_is_finished_by_a_person(stuck: Path) -> None:
    assert said("runs", "show", "shipped-1", cwd=stuck)["run"]["state"] == "blocked"
    done = said("runs", "finish", "shipped-1", "--why", "all there", "--yes", cwd=stuck)
    assert done["run"]["state"] == "committed"
    seen = at_terminal("runs", "finish", "shipped-2", "--why", "all there", cwd=stuck, answers=[("[y/N]", "y\n")])
    assert (seen.code, "= committed" in seen.text) == (0, True)


def test_what_stands_is_accepted_at_a_terminal_and_the_run_abandoned_by_json(stuck: Path) -> None:
    first = call_of(stuck, "closed-1", "compensation_failed")
    no = at_terminal("calls", "accept", first, "--why", "theirs", cwd=stuck, answers=[("accepts that it stays", "n\n")])
    assert (no.code, "nothing was done" in no.text) == (1, True)
    yes = at_terminal(
        "calls", "accept", first, "--why", "theirs", cwd=stuck, answers=[("accepts that it stays", "y\n")]
    )
    assert (yes.code, "! residue" in yes.text) == (3, True)
    done = said("runs", "abandon", "closed-1", "--why", "theirs", "--yes", cwd=stuck)
    assert (done["run"]["state"], done["residue"][0]["call"]) == ("abandoned", first)


def test_a_held_call_is_shown_whole_before_it_may_run(stuck: Path) -> None:
    first, second = (call_of(stuck, f"party-{name}", "held") for name in "12")
    no = at_terminal(
        "call", "decide", first, "run", "--why", "two cakes", cwd=stuck,
        answers=[("ada lets exactly this run. Sure?", "n\n")],
    )  # fmt: skip
    assert (no.code, "   candles = 8" in no.lines, call_of(stuck, "party-1", "held")) == (1, True, first)
    seen = at_terminal("calls", "decide", second, "refuse", "--why", "one is enough", cwd=stuck)
    assert (seen.code, "   candles = 8" in seen.lines, "Sure?" in seen.text) == (0, True, False)
    done = at_terminal("calls", "decide", first, "run", "--why", "two cakes", "--yes", cwd=stuck)
    assert (done.code, "Sure?" in done.text) == (0, False)


def test_a_rollback_of_a_run_with_many_doubts_names_a_few_and_the_command_that_lists_all(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"

    @tool
    def book(n: int) -> str:
        raise TimeoutError("the answer was lost")

    @book.compensate
    def unbook(n: int) -> None: ...

    with Runtime(url, tools=[book]) as rt:
        with pytest.raises(RunBlocked), rt.run("order-1") as shopping:
            for n in range(30):
                with pytest.raises(InDoubt):
                    shopping.call(book, n=n)
    shown = run("runs", "show", "order-1", "--url", url, cwd=tmp_path)
    assert "and 10 more: amends runs show order-1 lists them all" in shown.stdout
    done = run("rollback", "order-1", "--yes", "--by", "ada", "--why", "wrong order", "--url", url, cwd=tmp_path)
    assert done.stderr.count("answer it first: amends doubts resolve call_") == NAMED_MAX
    assert f"and {30 - NAMED_MAX} more: amends doubts list --url {url} lists them all" in done.stderr
