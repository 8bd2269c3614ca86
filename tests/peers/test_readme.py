"""The table of failures and the tests are the same list."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent


def test_every_row_names_a_test_that_exists_or_a_reason_and_every_test_has_a_row() -> None:
    rows = [line for line in (FOLDER / "README.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row not in ("| failure | test |", "| --- | --- |")]
    reasons = re.compile(r"\| (not a behaviour|(`(test_\w+|tests/[\w/]+\.py)`(, )?)+) \|$")
    assert [row for row in rows if not reasons.search(row)] == []
    named = set(re.findall(r"`(test_\w+)`", "\n".join(rows)))
    files = [path for path in FOLDER.glob("test_*.py") if path.name != "test_readme.py"]
    there = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
    assert named == there
    elsewhere = re.findall(r"`(tests/[\w/]+\.py)`", "\n".join(rows))
    assert [path for path in elsewhere if not (FOLDER.parents[1] / path).exists()] == []
