"""``amends oncall``: who is asked now, gaps and overlaps, without a ledger; ``amends doctor`` warns of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.command import here


@pytest.fixture
def office(tmp_path: Path) -> Path:
    now = datetime.now(UTC)

    def row(role: str, person: str, first: float, last: float) -> str:
        return f"{role},{person},{(now + timedelta(days=first)).isoformat()},{(now + timedelta(days=last)).isoformat()}"

    rows = [row("clerk", "carl", -1, 3), row("clerk", "cora", 2, 90), row("lead", "zoe", -1, 90)]
    (tmp_path / "oncall.csv").write_text("\n".join(["role,person,from,until", *rows]) + "\n")
    (tmp_path / "amends.toml").write_text(
        'oncall = "oncall.csv"\n[approvers]\nclerk = ["carl", "cora"]\nlead = ["lea"]\n'
    )
    return tmp_path


def test_who_is_asked_now_is_shown(office: Path) -> None:
    shown = here("oncall", "show", cwd=office)
    assert (shown.returncode, "carl" in shown.stdout, "cora" in shown.stdout) == (0, True, False)
    [lead] = map(json.loads, here("oncall", "show", "lead", "--json", cwd=office).stdout.splitlines())
    assert lead["person"] == "zoe"
    assert "nobody is on call for cook" in here("oncall", "show", "cook", cwd=office).stderr


def test_problems_end_the_check_with_one(office: Path) -> None:
    checked = here("oncall", "check", "--json", cwd=office)
    found = [json.loads(line) for line in checked.stdout.splitlines()]
    assert (checked.returncode, [one["kind"] for one in found]) == (1, ["overlap", "no_role"])
    warned = here("doctor", cwd=office).stdout
    assert warned.count("\noncall") == 2


@pytest.mark.parametrize(
    "words", [("show", "--at", "soon"), ("show", "--at", "2026-01-01"), ("check", "--days", "0")], ids=" ".join
)
def test_a_wrong_option_is_told(office: Path, words: tuple[str, ...]) -> None:
    refused = here("oncall", *words, cwd=office)
    assert (refused.returncode, "error[usage_error]" in refused.stderr) == (2, True)


def test_a_table_that_cannot_be_read_is_told(office: Path) -> None:
    (office / "oncall.csv").write_text("role,person\nclerk,carl\n")
    assert "error[bad_config]" in here("oncall", "show", cwd=office).stderr
