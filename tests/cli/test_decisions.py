"""Decisions of a person about doubts, runs and rollbacks, at a terminal and with ``--json``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import PATIENCE_S, assert_refused, environment, here, run
from tests.cli.conftest import Play
from tests.cli.terminal import at_terminal
from tests.forked import run_python

SETTINGS = 'url = "sqlite:///shop.db"\napp = "app:rt"\nby = "ada"\n'


@pytest.fixture
def doubt(shop: Path, play: Play) -> str:
    """Return the id of a call in doubt, which blocks its run."""
    (shop / "amends.toml").write_text(SETTINGS, encoding="utf-8")
    play("blind", "order-1", dies="order-1")
    assert run("recover", cwd=shop).returncode == 3
    (line,) = run("doubts", "list", "--json", cwd=shop).stdout.splitlines()
    return str(json.loads(line)["call"])


def said(*args: str, cwd: Path, code: int = 0) -> Any:
    """Return the one JSON object that a command printed."""
    done = run(*args, "--json", cwd=cwd)
    assert done.returncode == code, done.stderr
    (line,) = done.stdout.splitlines()
    return json.loads(line)


def test_a_doubt_is_shown_asked_about_and_resolved_at_a_terminal(shop: Path, doubt: str) -> None:
    listed = at_terminal("doubts", "list", cwd=shop)
    assert listed.code == 0
    assert doubt in listed.text
    assert all(len(line) <= 80 for line in listed.lines if doubt in line)
    shown = at_terminal("doubts", "show", doubt, cwd=shop, width=120)
    assert "absent    starts nothing; the call is failed, the run rolled_back" in shown.text
    asked = at_terminal("doubts", "probe", doubt[:-2], cwd=shop)
    assert (asked.code, "no probe" in asked.text) == (11, True)
    no = at_terminal("doubts", "resolve", doubt, "absent", "--why", "looked", cwd=shop, answers=[("[y/N]", "n\n")])
    assert (no.code, "nothing was done" in no.text) == (1, True)
    assert "ada says that it did not happen" in no.text
    yes = at_terminal("doubts", "resolve", doubt, "absent", "--why", "looked", cwd=shop, answers=[("[y/N]", "y\n")])
    assert (yes.code, "= rolled back" in yes.text) == (0, True)
    events = [event for event in said("calls", "show", doubt, cwd=shop)["events"] if event["by"] == "ada"]
    assert [(event["to"], event["facts"]["why"]) for event in events] == [("failed", "looked")]


def test_a_doubt_is_resolved_by_a_program_with_its_result(shop: Path, doubt: str) -> None:
    assert said("doubts", "probe", doubt, cwd=shop, code=11)["answer"] == "unknown"
    shown = said("doubts", "show", doubt, cwd=shop)
    assert (shown["sent"], shown["answers"]["absent"]["run_state"]) == ({"order": "order-1"}, "rolled_back")
    done = said("doubts", "resolve", doubt, "happened", "--result", "ch_7", "--why", "seen", "--yes", cwd=shop)
    assert done["run"]["state"] == "rolled_back"
    assert "refunded ch_7" in (shop / "paid.txt").read_text(encoding="utf-8")


def test_without_the_tools_the_word_is_recorded_and_a_worker_goes_on(shop: Path, doubt: str) -> None:
    (shop / "amends.toml").write_text('url = "sqlite:///shop.db"\n', encoding="utf-8")
    done = run("doubts", "resolve", doubt, "happened", "--result", "ch_7", "--why", "seen", "--yes", cwd=shop)
    assert "a worker that has the tools" in done.stderr
    assert run("recover", "app:rt", cwd=shop).returncode == 0
    assert said("runs", "show", "order-1", cwd=shop)["run"]["state"] == "rolled_back"


def test_a_probe_that_knows_says_so_and_decides_nothing(shop: Path, play: Play) -> None:
    (shop / "amends.toml").write_text(SETTINGS, encoding="utf-8")
    play("pay", "order-1")
    call = said("runs", "show", "order-1", cwd=shop)["calls"][0]["id"]
    for app in ("app:rt", "app:art"):
        found = said("doubts", "probe", call, "--app", app, cwd=shop)
        assert (found["answer"], found["result"]) == ("happened", "ch_order-1")
    seen = at_terminal("doubts", "probe", call, cwd=shop)
    assert f"amends doubts resolve {call} happened" in seen.text.replace("\n", "")


WRONG: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("doubts", "probe", "call_nope"), ("no call", "call_nope")),
    (("doubts", "probe", "CALL", "--app", "app:nope"), ("nope",)),
    (("doubts", "show", "call_nope"), ("call_nope",)),
    (("doubts", "show", "CALL", "--app", "nope:rt"), ("nope",)),
    (("doubts", "show"), ("CALL",)),
    (("calls", "accept", "CALL", "--why", "x"), ("--yes",)),
    (("calls", "accept", "CALL", "--yes"), ("--why",)),
    (("calls", "accept", "call_nope", "--why", "x", "--yes"), ("call_nope",)),
    (("doubts", "probe", "CALL", "--url", "sqlite:///shop.db"), ("needs your tools", "--app")),
    (("doubts", "resolve", "CALL", "maybe", "--why", "x", "--yes"), ("maybe", "happened, absent, unknown")),
    (("doubts", "resolve", "CALL", "absent", "--result", "1", "--why", "x", "--yes"), ("--result",)),
    (("doubts", "resolve", "CALL", "absent", "--yes"), ("--why",)),
    (("doubts", "resolve", "CALL", "absent", "--why", "", "--yes"), ("why",)),
    (("doubts", "resolve", "CALL", "absent", "--why", "x"), ("terminal", "--yes")),
    (("doubts", "resolve", "call_nope", "absent", "--why", "x", "--yes"), ("call_nope",)),
    (("doubts", "list", "status:happy"), ("happy",)),
    (("doubts", "list", "--limit", "0"), ("limit",)),
    (("doubts", "list", "--app", "app:rt", "--url", "sqlite:///other.db"), ("other.db",)),
    (("calls", "show", "call_nope"), ("call_nope",)),
    (("calls", "show"), ("CALL",)),
    (("calls", "show", "CALL", "--url", "nonsense"), ("nonsense",)),
    (("calls", "retry", "CALL", "--why", "x", "--app", "app:rt", "--url", "sqlite:///other.db"), ("app:rt", "--url")),
    (("calls", "retry", "CALL", "--why", "x"), ("in_doubt",)),
    (("calls", "retry", "CALL"), ("--why",)),
    (("calls", "decide", "CALL", "maybe", "--why", "x"), ("run, replay, refuse",)),
    (("calls", "decide", "CALL", "run", "--why", "x"), ("in_doubt",)),
    (("calls", "decide", "call_nope", "run", "--why", "x"), ("call_nope",)),
    (("runs", "abandon", "nope", "--why", "x", "--yes"), ("nope",)),
    (("runs", "abandon", "order-1", "--yes"), ("--why",)),
    (("runs", "abandon", "order-1", "--why", "x"), ("--yes",)),
    (("runs", "finish", "order-1", "--why", "x", "--yes"), ("order-1",)),
    (("runs", "finish", "nope", "--why", "x", "--yes"), ("nope",)),
    (("runs", "finish", "order-1", "--why", "x"), ("--yes",)),
    (("rollback", "nope", "--plan"), ("nope",)),
    (("rollback", "order-1"), ("--plan", "--apply")),
    (("rollback", "order-1", "--plan", "--apply", "abc"), ("use one",)),
    (("rollback", "order-1", "--apply", "abc", "--yes"), ("--why",)),
]


def test_what_makes_no_sense_is_said_and_changes_nothing(shop: Path, doubt: str) -> None:
    before = said("runs", "show", "order-1", cwd=shop)
    for args, words in WRONG:
        assert_refused(here(*(doubt if arg == "CALL" else arg for arg in args), cwd=shop), *words)
    assert said("runs", "show", "order-1", cwd=shop) == before


def test_what_may_stay_is_accepted_call_by_call(shop: Path, doubt: str) -> None:
    done = said("calls", "accept", doubt, "--why", "it is theirs now", "--yes", cwd=shop, code=3)
    assert [one["state"] for one in done["calls"]] == ["residue"]
    seen = at_terminal("calls", "show", doubt, cwd=shop)
    assert (seen.code, "it is theirs now" in seen.text) == (0, True)


def test_a_run_is_closed_over_what_stands(shop: Path, doubt: str) -> None:
    seen = at_terminal("runs", "abandon", "order", "--why", "too old", cwd=shop, answers=[("[y/N]", "yes\n")])
    assert seen.code == 0
    assert "left standing" in seen.text
    assert said("runs", "show", "order-1", cwd=shop)["run"]["state"] == "abandoned"


# ---- rollback


@pytest.fixture
def open_run(shop: Path) -> str:
    """Return a run that has paid and waits for a person."""
    (shop / "amends.toml").write_text(SETTINGS, encoding="utf-8")
    code = "from app import *; run = rt.open('order-9', recover='wait'); run.call(pay, order='9'); os._exit(0)"
    run_python(["-c", code], cwd=shop, env=environment(), timeout=PATIENCE_S).check_returncode()
    return "order-9"


def test_a_rollback_is_shown_and_then_done_exactly_so(shop: Path, open_run: str) -> None:
    plan = said("rollback", open_run, "--plan", cwd=shop)
    (one,) = plan["compensations"]
    assert (one["tool"], one["by"], one["args"], plan["complete"]) == ("pay", "refund", {"result": "ch_9"}, True)
    assert_refused(
        run("rollback", open_run, "--apply", "0" * 32, "--why", "x", "--yes", cwd=shop), "has changed since", code=14
    )
    assert_refused(run("rollback", open_run, "--apply", plan["hash"], "--why", "x", cwd=shop), "--yes")
    assert "refunded" not in (shop / "paid.txt").read_text(encoding="utf-8")
    done = said("rollback", open_run, "--apply", plan["hash"], "--why", "wrong address", "--yes", cwd=shop)
    assert done["run"]["state"] == "rolled_back"
    assert "refunded ch_9" in (shop / "paid.txt").read_text(encoding="utf-8")


def test_a_rollback_at_a_terminal_shows_its_plan_and_asks(shop: Path, open_run: str) -> None:
    shown = at_terminal("rollback", "order", "--plan", cwd=shop, width=120)
    assert (shown.code, 'refund(result="ch_9")' in shown.text) == (0, True), shown.text
    no = at_terminal("rollback", open_run, "--why", "x", cwd=shop, answers=[("Roll run order-9 back?", "\n")])
    assert (no.code, "nothing was done" in no.text) == (1, True)
    yes = at_terminal("rollback", open_run, "--why", "x", cwd=shop, answers=[("Roll run order-9 back?", "y\n")])
    assert (yes.code, "nothing left standing" in yes.text) == (0, True)


def test_a_run_that_cannot_be_taken_back_says_so_by_its_exit_code(shop: Path, play: Play, doubt: str) -> None:
    play("pay", "order-2")
    plan = said("rollback", "order-2", "--plan", cwd=shop)  # committed: a person can take it back
    assert (plan["refused"], plan["state"], plan["must_accept"]) == (None, "committed", [])
    done = said("rollback", "order-2", "--apply", plan["hash"], "--why", "cancelled", "--yes", cwd=shop)
    assert done["run"]["state"] == "rolled_back"
    assert said("rollback", "order-2", "--plan", cwd=shop, code=15)["refused"]
    assert said("rollback", "order-1", "--plan", cwd=shop, code=11)["doubts"]


# ---- watch


def test_a_run_is_watched_until_it_can_go_no_further(shop: Path, play: Play, doubt: str) -> None:
    play("pay", "order-2")
    done = run("runs", "watch", "order-2", "--json", cwd=shop)
    moves = [(event["what"], event["to"]) for event in map(json.loads, done.stdout.splitlines())]
    assert (done.returncode, moves[0], moves[-1]) == (0, ("run", "open"), ("run", "committed"))
    assert run("runs", "watch", "order-1", cwd=shop).returncode == 11
    run("doubts", "resolve", doubt, "absent", "--why", "looked", "--yes", cwd=shop)
    seen = at_terminal("runs", "watch", "order-1", cwd=shop)
    assert seen.code == 10
    assert "in doubt → failed   by ada   looked" in seen.text
    assert seen.lines[-1] == "= rolled back"


def test_a_whole_ledger_is_watched_from_now_on(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    command = [
        sys.executable,
        "-m",
        "amends",
        "runs",
        "watch",
        "--json",
        "--every",
        "0.05",
        "--url",
        "sqlite:///shop.db",
    ]
    with subprocess.Popen(
        command, cwd=shop, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdout is not None
        assert watcher.stderr is not None
        assert "watching" in watcher.stderr.readline()
        # It first looks for the newest event; until then, it may or may not show order-2.
        for number in range(2, 50):
            play("pay", f"order-{number}")
            os.set_blocking(watcher.stdout.fileno(), False)
            line = watcher.stdout.readline()
            if line:
                break
        assert json.loads(line)["run"] != "order-1"
        watcher.send_signal(2)
        assert watcher.wait(30) == 0


@pytest.mark.parametrize("args", [("nope",), ("--every", "0"), ("--every", "soon"), ("order-1", "order-2")])
def test_a_watch_that_makes_no_sense_is_refused(shop: Path, play: Play, args: tuple[str, ...]) -> None:
    play("pay", "order-1")
    assert_refused(run("runs", "watch", *args, "--url", "sqlite:///shop.db", cwd=shop))
