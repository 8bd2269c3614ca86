"""What a newcomer types wrong: the error names the command or the option that was meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import assert_refused, here
from tests.cli.conftest import Play

URL = "sqlite:///shop.db"


def test_where_the_ledger_is_may_be_said_before_the_command(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    for args in (
        ("--url", URL, "runs", "list"),
        (f"--url={URL}", "runs", "list"),
        ("runs", "--url", URL, "list"),
        ("runs", "list", "--url", URL),
        ("--app", "app:rt", "runs", "list"),
        ("runs", "--app", "app:rt", "list"),
        ("--app", "app:rt", "runs", "--tenant", "", "list"),
        ("--url", URL, "runs", "show", "order-1"),
        ("--app", "app:rt", "rollback", "order-1", "--plan"),
    ):
        done = here(*args, cwd=shop)
        assert (done.returncode, "order-1" in done.stdout) == (0, True), (args, done.stderr)


def test_json_may_be_said_before_the_command(shop: Path, play: Play) -> None:
    play("pay", "order-1")
    done = here("--json", "runs", "--url", URL, "list", cwd=shop)
    assert json.loads(done.stdout)["id"] == "order-1"
    done = here("--json", "runs", "show", "order-1", "--url", URL, cwd=shop)
    assert json.loads(done.stdout)["id"] == "order-1"


MEANT = [
    (("runs", "rollback", "s1"), "amends rollback"),
    (("runs", "undo", "s1"), "amends rollback"),
    (("log",), "amends runs show"),
    (("logs",), "amends audit events"),
    (("status",), "amends runs list"),
    (("list",), "amends runs list"),
    (("show", "s1"), "amends runs show"),
    (("resolve", "x"), "amends doubts resolve"),
    (("approve", "x"), "amends approvals approve"),
    (("doubts", "accept", "x"), "amends calls accept"),
    (("runs", "lst"), "amends runs list"),
    (("rolback", "s1"), "amends rollback"),
    (("run", "list"), "amends runs"),
    (("migrate",), "amends db migrate"),
    (("help",), "amends --help"),
    (("runs", "help"), "amends runs --help"),
    (("version",), "amends --version"),
    (("ui",), "amends serve"),
    (("config", "get", "url"), "amends config show"),
]


@pytest.mark.parametrize("args, meant", MEANT)
def test_a_wrong_command_is_answered_with_the_right_one(tmp_path: Path, args: tuple[str, ...], meant: str) -> None:
    done = here(*args, cwd=tmp_path)
    assert_refused(done, "no command")
    _, asks, told = done.stderr.split("\n")[0].partition("did you mean ")
    assert asks, done.stderr
    assert meant in told.rstrip("?").split(", "), done.stderr


def test_what_resembles_nothing_gets_no_guess(tmp_path: Path) -> None:
    done = here("xyzzy", cwd=tmp_path)
    assert_refused(done, "no command 'xyzzy'", "amends --help")
    assert "did you mean" not in done.stderr


@pytest.mark.parametrize(
    "args, meant",
    [
        (("runs", "list", "--ledger", "t.db"), "--url"),
        (("--ledger", "t.db", "runs", "list"), "--url"),
        (("runs", "--db", "t.db", "list"), "--url"),
        (("rollback", "s1", "--dry-run"), "--plan"),
        (("gc", "--plan"), "--dry-run"),
        (("rollback", "s1", "--force"), "--yes"),
        (("rollback", "s1", "--reason", "x"), "--why"),
        (("runs", "list", "--jsn"), "--json"),
        (("runs", "list", "-n", "3"), "--limit"),
        (("runs", "list", "--state", "open"), "state:open"),
        (("-v",), "--version"),
    ],
)
def test_a_wrong_option_is_answered_with_the_right_one(tmp_path: Path, args: tuple[str, ...], meant: str) -> None:
    done = here(*args, cwd=tmp_path)
    assert_refused(done, "no option", f"did you mean {meant}")


def test_an_option_of_a_command_before_it_says_where_it_belongs(tmp_path: Path) -> None:
    assert_refused(here("--limit", "3", "runs", "list", cwd=tmp_path), "no option --limit", "after the command")
    assert_refused(here("runs", "--limit", "3", "list", cwd=tmp_path), "no option --limit", "after the command")


def test_a_group_without_a_command_names_its_commands(tmp_path: Path) -> None:
    assert_refused(here("doubts", cwd=tmp_path), "list, show, probe, resolve")
    assert_refused(here("--url", URL, "doubts", cwd=tmp_path), "list, show, probe, resolve")


def test_what_is_missing_is_named_with_everything_that_the_command_needs(tmp_path: Path) -> None:
    whole = "amends doubts resolve CALL happened|absent|unknown --why ..."
    assert_refused(here("doubts", "resolve", cwd=tmp_path), f"CALL is missing: {whole}")
    assert_refused(here("doubts", "resolve", "c", "absent", cwd=tmp_path), f"--why is missing: {whole}")
    assert_refused(here("gc", cwd=tmp_path), "--older-than is missing: amends gc --older-than ...")


def test_an_option_without_its_value_names_the_help_of_its_command(tmp_path: Path) -> None:
    assert_refused(here("rollback", "s1", "--why", cwd=tmp_path), "--why", "hint: amends rollback --help")
    assert_refused(here("runs", "list", "--tenant", cwd=tmp_path), "--tenant", "hint: amends runs list --help")


def test_a_wrong_value_is_told_in_plain_words(tmp_path: Path) -> None:
    assert_refused(here("runs", "list", "--limit", "x", cwd=tmp_path), "'--limit': it must be a whole number")
    assert_refused(
        here("runs", "list", "--limit", "0", cwd=tmp_path), "'--limit': it must be greater than or equal to 1"
    )


def test_an_approval_without_a_terminal_says_at_once_all_that_it_needs(tmp_path: Path) -> None:
    for given in ((), ("--yes",), ("--digest", "0" * 12)):
        done = here("approvals", "approve", "apr_7", *given, cwd=tmp_path)
        assert_refused(done, "amends approvals show apr_7", "--digest DIGEST --yes")


def test_options_without_a_command_are_told_so(tmp_path: Path) -> None:
    assert_refused(here("--url", URL, cwd=tmp_path), "command", "amends --help")
