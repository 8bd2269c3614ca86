"""The notebook in ``examples/`` runs in a real kernel and prints what it shows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

from tests.cli.command import environment

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "first_saga.ipynb"
CELL_S_MAX = 60
# In a process of its own: the client of a kernel leaves a loop and sockets behind.
PLAY = f"""
import json, sys
import nbformat
from nbclient import NotebookClient

book = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(book, timeout={CELL_S_MAX}, resources={{"metadata": {{"path": sys.argv[2]}}}}).execute()
print(json.dumps([cell for cell in book.cells if cell.cell_type == "code"]))
"""


def printed(cells: list[dict[str, Any]]) -> list[str]:
    return ["".join("".join(out["text"]) for out in cell["outputs"] if out.get("name") == "stdout") for cell in cells]


def test_the_notebook_prints_what_it_shows(tmp_path: Path) -> None:
    shown = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    nbformat.validate(shown)
    done = subprocess.run(
        [sys.executable, "-c", PLAY, str(NOTEBOOK), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=180, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = printed([cell for cell in shown["cells"] if cell["cell_type"] == "code"])
    assert printed(json.loads(done.stdout.splitlines()[-1])) == expected
    assert sum(map(bool, expected)) >= 5


def test_the_notebook_shows_nothing_of_the_machine_that_ran_it() -> None:
    shown = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    outputs = [out for cell in shown["cells"] for out in cell.get("outputs", [])]
    assert {out["name"] for out in outputs} == {"stdout"}
