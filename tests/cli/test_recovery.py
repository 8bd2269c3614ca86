import json
import signal
from pathlib import Path

import pytest

from tests.cli.command import PATIENCE_S, assert_refused, environment, here, run
from tests.cli.conftest import Play
from tests.forked import Child, run_python
from tests.scenarios.processes import wait_until


@pytest.mark.parametrize("rt", ["app:rt", "app:art", "./app.py:rt", "app:Shop.rt"])
def test_one_look_takes_back_what_a_killed_process_left(shop: Path, play: Play, rt: str) -> None:
    play("pay", "order-1", dies="order-1")
    done = run("worker", rt, "--once", cwd=shop)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "run order-1 is rolled_back" in done.stderr
    assert _said(shop) == ["paid order-1", "refunded ch_order-1"]


def test_recover_shows_what_it_did_and_the_second_time_does_nothing(shop: Path, play: Play) -> None:
    play("pay", "order-1", dies="order-1")
    first = run("recover", "app:rt", cwd=shop)
    assert (first.returncode, "↩ compensated" in first.stdout) == (0, True)
    again = run("recover", "app:rt", "--json", cwd=shop)
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing to recover" in again.stderr


def test_recover_says_by_its_exit_code_that_a_run_is_blocked(shop: Path, play: Play) -> None:
    play("blind", "order-1", dies="order-1")
    done = run("recover", "app:rt", "--json", cwd=shop)
    report = json.loads(done.stdout)
    assert (done.returncode, report["run"]["state"]) == (3, "blocked")
    assert "amends doubts resolve call_" in report["run"]["causes"][0]
    assert "rt." not in report["run"]["causes"][0]


@pytest.mark.parametrize("verb", [("recover",), ("worker", "--once")])
@pytest.mark.parametrize("rt", ["app:rt", "app:art"])
def test_it_says_so_as_long_as_any_run_is_blocked(shop: Path, play: Play, verb: tuple[str, ...], rt: str) -> None:
    play("blind", "order-1", dies="order-1")
    assert run(verb[0], rt, *verb[1:], cwd=shop).returncode == 3
    for _ in range(2):
        again = run(verb[0], rt, *verb[1:], "--json", cwd=shop)
        assert (again.returncode, again.stdout) == (3, "")
        assert "a run is blocked and needs a person: order-1" in again.stderr
    ended = run(
        "runs", "abandon", "order-1", "--url", "sqlite:///shop.db", "--by", "ada", "--why", "seen", "--yes", cwd=shop
    )
    assert ended.returncode == 0, ended.stderr
    assert run(verb[0], rt, *verb[1:], cwd=shop).returncode == 0


def test_a_blocked_run_of_any_tenant_counts(shop: Path) -> None:
    program = "import app\nwith app.rt.scoped(tenant='acme').run('order-1'): app.pay_blindly(order='order-1')"
    run_python(["-c", program], cwd=shop, env=environment(DIE="order-1"), timeout=PATIENCE_S)
    assert [run("recover", "app:rt", cwd=shop).returncode for _ in range(2)] == [3, 3]


def test_a_worker_sets_the_level_of_its_own_logger_only(shop: Path, play: Play) -> None:
    (shop / "chatty.py").write_text(
        "import logging\nfrom app import pay, rt\n"
        "find = rt._abandoned\n"
        "def look(limit):\n"
        "    logging.getLogger('httpx').info('a request')\n"
        "    logging.getLogger('httpx').warning('a warning')\n"
        "    return find(limit)\n"
        "rt._abandoned = look\n",
        encoding="utf-8",
    )
    play("pay", "order-1", dies="order-1")
    said = run("worker", "chatty:rt", "--once", cwd=shop).stderr
    assert "run order-1 is rolled_back" in said
    assert ("a warning" in said, "a request" in said) == (True, False)


IN_PROCESS = """
import sys, time
from app import {rt} as rt, pay
{more}
"""
BLOCKING = """
with rt.worker(every=0.05):
    print("ready", flush=True)
    time.sleep(60)
"""
ASYNC = """
import asyncio
async def main():
    async with rt.worker(every=0.05):
        print("ready", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("rt, more", [("rt", BLOCKING), ("art", ASYNC)])
def test_sigterm_lets_a_worker_in_a_program_finish_the_run_at_hand(shop: Path, play: Play, rt: str, more: str) -> None:
    (shop / "program.py").write_text(IN_PROCESS.format(rt=rt, more=more), encoding="utf-8")
    play("pay", "order-1", dies="order-1")
    with Child(["program.py"], cwd=shop, env=environment(SLOW="0.5")) as program:
        wait_until(lambda: "refunding" in _said(shop))
        program.terminate()
        _, err = program.communicate(timeout=30)
    assert (program.returncode, "Traceback" in err) == (128 + signal.SIGTERM, False), err
    assert _said(shop)[-1] == "refunded ch_order-1"


@pytest.mark.parametrize("rt, more", [("rt", BLOCKING), ("art", ASYNC)])
def test_a_second_sigterm_ends_a_program_with_a_worker_at_once(shop: Path, play: Play, rt: str, more: str) -> None:
    (shop / "program.py").write_text(IN_PROCESS.format(rt=rt, more=more), encoding="utf-8")
    play("pay", "order-1", dies="order-1")
    with Child(["program.py"], cwd=shop, env=environment(SLOW="30")) as program:
        wait_until(lambda: "refunding" in _said(shop))
        program.terminate()
        wait_until(lambda: _told_again(program), timeout_s=10)
        program.communicate()
    assert program.returncode == -signal.SIGTERM


def test_a_program_that_handles_sigterm_keeps_its_handler(shop: Path, play: Play) -> None:
    more = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))\n" + BLOCKING.replace(
        "time.sleep(60)", "open('ready', 'w').close(); time.sleep(1)"
    )
    (shop / "program.py").write_text(IN_PROCESS.format(rt="rt", more=more), encoding="utf-8")
    play("pay", "order-1")
    with Child(["program.py"], cwd=shop, env=environment()) as program:
        wait_until(lambda: (shop / "ready").exists())
        program.terminate()
        out, err = program.communicate(timeout=30)
    assert (program.returncode, out) == (0, "ready\nmine\n"), err


def test_a_run_whose_tools_are_missing_is_left_alone_and_told(shop: Path, play: Play) -> None:
    play("pay", "order-1", dies="order-1")
    done = run("worker", "app:poor", "--once", cwd=shop)
    assert done.returncode == 0
    assert "order-1" in done.stderr
    assert "does not have pay" in done.stderr
    assert _said(shop) == ["paid order-1"]


def test_a_run_that_only_its_agent_can_go_on_with_is_left_to_a_process_that_has_it(shop: Path) -> None:
    start = "import app; app.rt.start('agent', id='order-1')"
    run_python(["-c", start], cwd=shop, env=environment(DIE="order-1"), timeout=PATIENCE_S)
    without = run("worker", "app:art", "--once", cwd=shop)
    assert "does not have agent agent" in without.stderr
    with_it = run("worker", "app:rt", "--once", cwd=shop)
    assert "run order-1 is committed" in with_it.stderr
    assert _said(shop) == ["paid order-1"]


@pytest.mark.parametrize("rt", ["app:rt", "app:art"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_finds_a_dead_owner_and_stops_when_it_is_told(
    shop: Path, play: Play, rt: str, number: signal.Signals
) -> None:
    play("pay", "order-0")
    with _worker(shop, rt) as worker:
        play("pay", "order-1", dies="order-1")
        wait_until(lambda: "refunded ch_order-1" in _said(shop))
        worker.send_signal(number)
        _, err = worker.communicate(timeout=30)
    assert (worker.returncode, "Traceback" in err) == (0, False), err
    assert "worker stopped" in err


def test_a_worker_finishes_the_run_at_hand_and_a_second_signal_ends_it_at_once(shop: Path, play: Play) -> None:
    play("pay", "order-1", dies="order-1")
    with _worker(shop, "app:rt", SLOW="0.5") as worker:
        wait_until(lambda: "refunding" in _said(shop))
        worker.terminate()
        _, err = worker.communicate(timeout=30)
    assert worker.returncode == 0, err
    assert _said(shop)[-1] == "refunded ch_order-1"

    play("pay", "order-2", dies="order-2")
    with _worker(shop, "app:rt", SLOW="30") as worker:
        wait_until(lambda: _said(shop)[-1] == "refunding")
        worker.terminate()
        wait_until(lambda: _told_again(worker), timeout_s=10)
        worker.communicate()
    assert worker.returncode == -signal.SIGTERM


def test_a_worker_makes_no_ledger_and_says_so(shop: Path) -> None:
    assert_refused(run("worker", "app:rt", "--once", cwd=shop), "no ledger at")
    assert_refused(run("recover", "app:rt", cwd=shop), "no ledger at")
    assert_refused(run("worker", "app:memory", "--once", cwd=shop), "memory:")
    assert list(shop.glob("*.db*")) == []


@pytest.mark.parametrize("verb", ["worker", "recover"])
@pytest.mark.parametrize(
    "place, word",
    [
        ("app", "MODULE:NAME"),
        (":rt", "MODULE:NAME"),
        ("app:", "MODULE:NAME"),
        ("nosuch:rt", "nosuch"),
        ("nosuch.py:rt", "nosuch.py"),
        ("app:nosuch", "these runtimes: rt"),
        ("app:pay", "not a Runtime"),
        ("app:Shop", "not a Runtime"),
        ("broken:rt", "ZeroDivisionError"),
        ("hungry:rt", "no_such_module"),
        ("crooked:rt", "SyntaxError"),
        ("quitter:rt", "SystemExit"),
        ("a..b:rt", "no module"),
    ],
)
def test_a_runtime_that_cannot_be_loaded_is_explained(shop: Path, verb: str, place: str, word: str) -> None:
    (shop / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (shop / "hungry.py").write_text("import no_such_module\n", encoding="utf-8")
    (shop / "crooked.py").write_text("def (\n", encoding="utf-8")
    (shop / "quitter.py").write_text("raise SystemExit('no')\n", encoding="utf-8")
    assert_refused(here(verb, place, cwd=shop), word)


@pytest.mark.parametrize("args", [("--every", "0"), ("--every", "soon"), ("--once", "--nonsense")])
def test_a_worker_refuses_options_that_make_no_sense(shop: Path, args: tuple[str, ...]) -> None:
    assert_refused(here("worker", "app:rt", *args, cwd=shop))


def _worker(shop: Path, rt: str, **extra: str) -> Child:
    return Child(["-m", "amends", "worker", rt, "--every", "0.05"], cwd=shop, env=environment(**extra))


def _told_again(worker: Child) -> bool:
    worker.terminate()
    return worker.poll() is not None


def _said(shop: Path) -> list[str]:
    return (shop / "paid.txt").read_text(encoding="utf-8").splitlines()
