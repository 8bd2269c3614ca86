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
LEDGER = ("--url", "sqlite:///shop.db")


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
    assert "absent    nothing else is called; the call is failed, the run rolled_back" in shown.text
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


@pytest.fixture
def left(shop: Path) -> str:
    """Return the id of a call in doubt in the run ``s1``, which only its program continues."""
    (shop / "amends.toml").write_text('by = "ada"\n', encoding="utf-8")
    code = "import app\nwith app.rt.run('s1', recover='wait'): app.pay(order='0'); app.pay_blindly(order='s1')"
    run_python(["-c", code], cwd=shop, env=environment(DIE="s1"), timeout=PATIENCE_S)
    orphaned = run("runs", "show", "s1", *LEDGER, cwd=shop)
    assert "= open, orphaned for " in orphaned.stdout
    assert run("recover", "app:rt", cwd=shop).returncode == 3
    (line,) = run("doubts", "list", "--json", *LEDGER, cwd=shop).stdout.splitlines()
    return str(json.loads(line)["call"])


@pytest.mark.parametrize("known", [LEDGER, ("--app", "app:rt")], ids=["ledger", "app"])
def test_a_run_that_waits_for_its_program_says_so_before_and_after_the_answer(
    shop: Path, left: str, known: tuple[str, ...]
) -> None:
    shown = run("doubts", "show", left, *known, cwd=shop)
    assert shown.stdout.count("its program continues") == 3
    assert "worker" not in shown.stdout
    answer = ("doubts", "resolve", left, "happened", "--result", "ch_7", "--why", "seen", "--yes")
    done = run(*answer, *known, cwd=shop)
    assert "= open, waits for its program" in done.stdout
    assert "its program continues it: open run s1 again (LangChain: invoke(None, config))" in done.stderr
    assert "worker" not in done.stderr
    assert "= open, waits for its program" in run("runs", "show", "s1", *known, cwd=shop).stdout
    assert "waits for its program" in run("runs", "list", *known, cwd=shop).stdout
    seen = run("inbox", "--check", *known, cwd=shop)
    assert (seen.returncode, seen.stdout) == (0, ""), "nobody has to decide anything"
    assert "waits for its program: s1" in seen.stderr
    assert said("runs", "show", "s1", *known, cwd=shop)["run"]["now"]["waits_for"] == "its program"


def test_a_result_is_checked_where_the_tools_are_and_else_said_to_be_unchecked(shop: Path, doubt: str) -> None:
    wrong = ("doubts", "resolve", doubt, "happened", "--result", '{"id": "ch_7"}', "--why", "seen", "--yes")
    assert_refused(run(*wrong, cwd=shop), "this is not a result of pay_blindly", "the tool returns str")
    assert said("calls", "show", doubt, cwd=shop)["state"] == "in_doubt"
    done = run(*wrong, *LEDGER, cwd=shop)
    assert "pay_blindly is not loaded here: this result is recorded, and not checked" in done.stderr
    assert "amends worker APP:RT --url sqlite:///shop.db" in done.stderr
    assert run("recover", cwd=shop).returncode == 0


def test_a_compensation_that_needs_the_result_is_named_before_the_answer(shop: Path, doubt: str) -> None:
    note = "its compensation needs the result: give it, or the run cannot be rolled back by itself (--result JSON"
    assert note in run("doubts", "show", doubt, cwd=shop).stdout
    answer = ("doubts", "resolve", doubt, "happened", "--why", "seen")
    asked = at_terminal(*answer, cwd=shop, width=400, answers=[("[y/N]", "n\n")])
    assert note in asked.text
    given = at_terminal(*answer, "--result", "ch_7", cwd=shop, width=400, answers=[("[y/N]", "n\n")])
    assert note not in given.text
    done = run(*answer, "--yes", cwd=shop)
    assert (done.returncode, note in done.stderr) == (3, True)
    late = ("calls", "retry", doubt, "--why", "found it", "--result")
    assert_refused(run(*late, "[1]", cwd=shop), "the tool returns str")
    assert run(*late, "ch_7", cwd=shop).returncode == 0
    assert "refunded ch_7" in (shop / "paid.txt").read_text(encoding="utf-8")


def test_a_compensation_in_doubt_has_no_result_to_give(shop: Path, doubt: str) -> None:
    dies = "app.say = lambda word: os._exit(0) if word.startswith('refunded') else None"
    settle = f"app.rt.resolve({doubt!r}, app.Happened('ch_7'), by='ada', why='seen')"
    run_python(["-c", f"import app, os; {dies}; {settle}"], cwd=shop, env=environment(), timeout=PATIENCE_S)
    run("recover", cwd=shop)
    assert said("calls", "show", doubt, cwd=shop)["state"] == "compensation_in_doubt"
    answer = ("doubts", "resolve", doubt, "happened", "--why", "seen", "--yes")
    assert_refused(run(*answer, "--result", "ch_7", cwd=shop), "has no result", "leave out --result")
    shown = run("doubts", "show", doubt, cwd=shop).stdout
    assert "accepted (your reason)" in shown
    assert "needs the result" not in shown


def test_without_the_tools_the_word_is_recorded_and_a_worker_goes_on(shop: Path, doubt: str) -> None:
    (shop / "amends.toml").write_text('url = "sqlite:///shop.db"\n', encoding="utf-8")
    done = run("doubts", "resolve", doubt, "happened", "--result", "ch_7", "--why", "seen", "--yes", cwd=shop)
    assert "a worker that has the tools" in done.stderr
    assert run("recover", "app:rt", cwd=shop).returncode == 0
    assert said("runs", "show", "order-1", cwd=shop)["run"]["state"] == "rolled_back"


def test_without_the_tools_a_preview_says_so_and_how_to_see_more(shop: Path, doubt: str) -> None:
    (shop / "amends.toml").write_text('url = "sqlite:///shop.db"\n', encoding="utf-8")
    seen = run("doubts", "show", doubt, cwd=shop)
    assert "a worker that has its tools continues; they are not loaded here" in seen.stdout
    assert f"amends doubts show {doubt} --app APP:RT" in seen.stderr
    plan = run("rollback", "order-1", "--plan", cwd=shop)
    assert f"amends doubts resolve {doubt} happened|absent|unknown --why ..." in plan.stdout
    assert "rt." not in plan.stdout
    with_tools = run("doubts", "show", doubt, "--app", "app:rt", cwd=shop)
    assert "not loaded" not in with_tools.stderr
    assert f"to decide: amends doubts resolve {doubt} happened|absent|unknown [--result JSON]" in with_tools.stderr
    assert with_tools.stderr.rstrip().endswith("--why ... --app app:rt")


def test_a_run_is_shown_without_the_tools_and_it_says_what_that_means(shop: Path, open_run: str) -> None:
    dies = "app.say = lambda word: os._exit(0) if word.startswith('refunded') else None"
    code = f"import app, os; {dies}\nwith app.rt.run('r'): app.pay(order='1'); app.pay(order='2'); raise ValueError"
    run_python(["-c", code], cwd=shop, env=environment(), timeout=PATIENCE_S).check_returncode()
    seen = run("runs", "show", "r", cwd=shop)
    assert "it has not been compensated, and its tool is not loaded here" in seen.stdout
    assert "not loaded here: pay. Without its code, amends shows what is recorded" in seen.stderr
    assert "amends runs show r --app APP:RT" in seen.stderr
    with_tools = run("runs", "show", "r", "--app", "app:rt", cwd=shop)
    assert "it has not been compensated yet" in with_tools.stdout
    assert "not loaded" not in with_tools.stdout + with_tools.stderr


def test_a_rollback_for_a_worker_names_the_doubt_that_stops_it(shop: Path, doubt: str) -> None:
    done = run("rollback", "order-1", "--yes", "--why", "x", "--url", "sqlite:///shop.db", cwd=shop)
    assert f"amends doubts resolve {doubt} happened|absent|unknown --why ..." in done.stderr.splitlines()[-1]


def test_a_plan_without_the_tools_names_the_option_that_loads_them(shop: Path, open_run: str) -> None:
    seen = run("rollback", open_run, "--plan", "--url", "sqlite:///shop.db", cwd=shop)
    assert "its tool is not loaded here" in seen.stdout
    assert f"amends rollback {open_run} --plan --app APP:RT" in seen.stderr
    assert "to do exactly this" not in seen.stderr, "a process with the tools would do something else"
    hash = said("rollback", open_run, "--plan", "--url", "sqlite:///shop.db", cwd=shop, code=15)["hash"]
    applied = run("rollback", open_run, "--apply", hash, "--why", "x", "--url", "sqlite:///shop.db", cwd=shop)
    assert_refused(applied, "without the code of pay")
    assert said("runs", "show", open_run, cwd=shop)["run"]["state"] == "open"


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
    (("rollback", "order-1"), ("--plan", "--apply HASH", "--yes")),
    (("rollback", "order-1", "--why", "x"), ("--plan", "--apply HASH", "--yes")),
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


def test_accepting_says_which_command_closes_the_run(shop: Path, doubt: str) -> None:
    done = run("calls", "accept", doubt, "--why", "it is theirs now", "--yes", cwd=shop)
    assert (done.returncode, "= blocked" in done.stdout) == (3, True)
    assert "accept it with" not in done.stdout, "it has just been accepted"
    assert "recorded; nothing else blocks the run. To close it: amends runs abandon order-1 --why ..." in done.stderr
    assert "not loaded" not in run("runs", "show", "order-1", cwd=shop).stderr, "there is nothing left to compensate"
    closed = run("runs", "abandon", "order-1", "--why", "it is theirs now", "--yes", cwd=shop)
    assert (closed.returncode, "= abandoned" in closed.stdout) == (0, True)


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
    for wrong in ("zzz", plan["hash"][:8]):
        assert_refused(run("rollback", open_run, "--apply", wrong, "--why", "x", cwd=shop), "first 12 characters")
    assert "refunded" not in (shop / "paid.txt").read_text(encoding="utf-8")
    done = said("rollback", open_run, "--apply", plan["hash"][:12], "--why", "wrong address", cwd=shop)
    assert done["run"]["state"] == "rolled_back"
    assert "refunded ch_9" in (shop / "paid.txt").read_text(encoding="utf-8")


def test_a_plan_names_the_whole_command_that_does_it(shop: Path, open_run: str) -> None:
    options = ("--app", "app:rt")
    shown = run("rollback", open_run, "--plan", *options, cwd=shop).stderr
    line = shown.partition("to do exactly this: amends ")[2].splitlines()[0]
    assert line.endswith("--why ... --app app:rt")
    done = run(*line.replace("...", "wrong").split(), cwd=shop)
    assert (done.returncode, "= rolled back" in done.stdout) == (0, True), done.stderr


def test_yes_takes_the_plan_of_this_moment_and_prints_it(shop: Path, open_run: str) -> None:
    done = run("rollback", open_run, "--yes", "--why", "wrong address", cwd=shop)
    assert (done.returncode, "= rolled back" in done.stdout) == (0, True), done.stderr
    assert 'refund(result="ch_9")' in done.stderr


def test_yes_accepts_no_loss(shop: Path, tmp_path: Path) -> None:
    code = (
        "from amends import *; rt = Runtime('sqlite:///mail.db')\nwith rt.run('m') as run: run.once('mail', lambda: 1)"
    )
    run_python(["-c", code], cwd=shop, env=environment(), timeout=PATIENCE_S).check_returncode()
    done = run("rollback", "m", "--yes", "--why", "x", "--url", "sqlite:///mail.db", cwd=shop)
    assert (done.returncode, "--accept call_" in done.stderr) == (2, True), done.stderr


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
