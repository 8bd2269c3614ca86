"""``amends audit export``, ``import`` and ``events``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.trips import changed, runtime, travel
from tests.cli.command import assert_refused, here, run

URL = ("--url", "sqlite:///l.db")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    with runtime(f"sqlite:///{folder}/l.db") as rt:
        travel(rt)
    return folder


def test_a_run_is_exported_checked_and_loaded_elsewhere(ledger: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    done = run("audit", "export", "committed", "hel", "-o", str(file), "--json", *URL, cwd=ledger)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "id": str(file),
        "file": str(file),
        "runs": ["committed", "held"],
        "bytes": file.stat().st_size,
    }
    checked = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "whole")
    said = ("--by", "ann", "--why", "the auditor asked")
    loaded = run("audit", "import", str(file), *said, "--json", "--url", "sqlite:///new.db", cwd=tmp_path)
    assert json.loads(loaded.stdout)["runs"] == ["committed", "held"]
    told = here("audit", "events", 'what:"runs loaded"', "--url", "sqlite:///new.db", cwd=tmp_path)
    [event] = [json.loads(line) for line in told.stdout.splitlines()]
    assert (event["by"], event["facts"]["why"]) == ("ann", "the auditor asked")
    again = here("audit", "import", str(file), "--url", "sqlite:///new.db", cwd=tmp_path)
    assert (again.returncode, "they are read-only records here" in again.stderr) == (0, True)
    shown = here("runs", "show", "committed", "--json", "--url", "sqlite:///new.db", cwd=tmp_path)
    assert json.loads(shown.stdout)["run"]["state"] == "committed"


def test_a_file_that_is_there_is_not_written_over_unless_asked(ledger: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    file.write_text("precious")
    assert_refused(here("audit", "export", "held", "-o", str(file), *URL, cwd=ledger), "already exists", "--force")
    assert file.read_text() == "precious"
    assert here("audit", "export", "held", "-o", str(file), "--force", *URL, cwd=ledger).returncode == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.zip"], "nothing half written stays"
    assert_refused(
        here("audit", "export", "held", "-o", str(tmp_path / "no" / "b"), *URL, cwd=ledger), "cannot be written"
    )
    assert_refused(here("audit", "export", "nobody", "-o", str(tmp_path / "c"), *URL, cwd=ledger), "nobody")


def test_what_was_changed_or_is_no_bundle_is_refused(ledger: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.zip"
    assert here("audit", "export", "held", "-o", str(file), *URL, cwd=ledger).returncode == 0
    file.write_bytes(changed(file.read_bytes(), "events", lambda rows: rows[1].update(by_whom="mallory")))
    into = ("--url", "sqlite:///new.db")
    assert_refused(here("audit", "import", str(file), *into, cwd=tmp_path), "edited", code=20)
    file.write_bytes(b"hello")
    assert_refused(here("audit", "import", str(file), *into, cwd=tmp_path), "not a readable bundle")
    assert_refused(here("audit", "import", "missing", *into, cwd=tmp_path), "cannot be read")


def test_events_are_lines_of_json_that_a_filter_chooses(ledger: Path) -> None:
    done = here("audit", "events", "tool:book", "principal:ann", "state:succeeded", *URL, cwd=ledger)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(event["run"], event["to"]) for event in told] == [
        ("committed", "succeeded"),
        ("committed/inside", "succeeded"),
        ("held", "succeeded"),
    ]
    rest = run(
        "audit", "events", "--run", "committed", "--after", str(told[0]["seq"]), "--limit", "2", *URL, cwd=ledger
    )
    assert [json.loads(line)["seq"] for line in rest.stdout.splitlines()] == [told[0]["seq"] + 1, told[0]["seq"] + 2]
    assert_refused(here("audit", "events", "state:nonsense", *URL, cwd=ledger), "there is no state")
