import json
from pathlib import Path

from tests.cli.command import assert_refused, run
from tests.cli.conftest import Play

URL = ("--url", "sqlite:///shop.db")


def _call(shop: Path, of: str) -> str:
    report = json.loads(run("runs", "show", of, *URL, "--json", cwd=shop).stdout)
    return str(report["calls"][0]["id"])


def test_a_run_is_forked_at_a_call_without_tools_and_shown_with_what_it_shares(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    call = _call(shop, "order-1")
    made = run("fork", "order-1", "--at", call, "--id", "again", *URL, cwd=shop)
    assert made.returncode == 0, made.stderr
    assert f"(a fork of order-1 at {call}: 1 call shared)" in made.stdout
    assert "amends compare order-1 again" in made.stderr
    assert "fork again depends on it" in run("runs", "show", "order-1", *URL, cwd=shop).stdout
    other = json.loads(run("fork", "order", "--at", call[:-2], *URL, "--json", cwd=shop).stdout)
    assert (other["run"]["forked_from"], other["run"]["forked_at"]) == ("order-1", call)
    assert other["calls"][0]["shared"] == call
    assert (shop / "paid.txt").read_text(encoding="utf-8") == "paid order-1\n"


def test_a_fork_that_cannot_be_made_says_why_and_what_to_do(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2")
    call = _call(shop, "order-1")
    assert_refused(
        run("fork", "order-1", "--at", "nobody", *URL, cwd=shop), "has no call 'nobody'", "runs show order-1"
    )
    assert_refused(run("fork", "order-1", "--at", "", *URL, cwd=shop), "has no call ''")
    assert_refused(run("fork", "nobody", "--at", call, *URL, cwd=shop), "no run 'nobody'")
    assert_refused(run("fork", "order-2", "--at", call, *URL, cwd=shop), "has no call")
    assert_refused(run("fork", "order-1", "--at", call, "--id", "order-2", *URL, cwd=shop), "exists already")
    said = run("fork", "order-1", "--at", call, "--id", "order-2", *URL, "--json", cwd=shop)
    assert json.loads(said.stderr)["error"]["code"] == "run_conflict"


def test_two_runs_are_compared_and_the_exit_code_says_whether_they_are_alike(shop: Path, play: Play) -> None:
    play("pay", "order-1", "order-2")
    alike = run("compare", "order-1", "order-1", *URL, cwd=shop)
    assert (alike.returncode, alike.stderr) == (0, "")
    assert "every call alike" in alike.stdout
    differ = run("compare", "order-1", "order-2", *URL, cwd=shop)
    assert differ.returncode == 18
    assert "≠ pay  order: order-1 | order-2" in differ.stdout
    told = json.loads(run("compare", "order-1", "order-2", *URL, "--json", cwd=shop).stdout)
    assert (told["alike"], told["first"]["args"][0]["path"]) == (False, "order")
    assert_refused(run("compare", "order-1", "nobody", *URL, cwd=shop), "no run 'nobody'")
