"""The surface as type checkers see it: one file in which nothing may be wrong, one in which each marked line must be."""

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "tests" / "typing"
SECONDS_MAX = 300

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_nothing_is_wrong_where_nothing_should_be(checker: str) -> None:
    assert errors(checker, "must_pass.py") == {}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_every_marked_line_is_an_error_and_no_other(checker: str) -> None:
    found = errors(checker, "must_fail.py")
    lines = (FILES / "must_fail.py").read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if re.search(r"# E\b", line)}
    assert marked
    assert {number: lines[number - 1] for number in marked - found.keys()} == {}, "passed, and must not"
    assert {number: found[number] for number in found.keys() - marked} == {}, "failed, and must not"


@pytest.mark.parametrize(
    "line, meant, chars_max",
    [
        ("tool(mail, idempotnt=True)  # E a misspelt option", "idempotent", 9_500),
        ('Runtime("memory:", leese=3.0)  # E a misspelt setting', "lease", 400),
        ('AsyncRuntime("memory:", leese=3.0)  # E a misspelt setting', "lease", 400),
    ],
)
def test_a_misspelt_option_is_told_briefly_with_the_one_that_was_meant(line: str, meant: str, chars_max: int) -> None:
    lines = (FILES / "must_fail.py").read_text(encoding="utf-8").splitlines()
    begin = f"{FILES / 'must_fail.py'}:{lines.index(line) + 1}: "
    printed = [told for told in _mypy_prints().splitlines() if told.startswith((begin, begin.removeprefix(f"{ROOT}/")))]
    assert f'did you mean "{meant}"?' in printed[0]
    assert sum(map(len, printed)) < chars_max


def errors(checker: str, name: str) -> dict[int, str]:
    """The errors of one file by line."""
    found = _mypy() if checker == "mypy" else _pyright()
    return {line: message for file, line, message in found if file == name}


@cache
def _mypy_prints() -> str:
    # Without the project's settings, as a user has it; without a cache, since test processes run side by side.
    options = ["--strict", "--config-file=", f"--cache-dir={os.devnull}", "--no-pretty", "--no-error-summary"]
    return _run("mypy", *options, *map(str, sorted(FILES.glob("*.py"))))


def _mypy() -> list[tuple[str, int, str]]:
    matches = re.finditer(r"^(?P<file>[^:\n]+):(?P<line>\d+): error: (?P<text>.*)$", _mypy_prints(), re.MULTILINE)
    return [(Path(m["file"]).name, int(m["line"]), m["text"]) for m in matches]


@cache
def _pyright() -> list[tuple[str, int, str]]:
    # pyright[nodejs] brings its own node; both files say `# pyright: strict`.
    printed = _run("pyright", "--outputjson", "--pythonpath", sys.executable, *map(str, sorted(FILES.glob("*.py"))))
    told = json.loads(printed)["generalDiagnostics"]
    wrong = [d for d in told if d["severity"] == "error"]
    return [(Path(d["file"]).name, d["range"]["start"]["line"] + 1, d["message"]) for d in wrong]


def _run(module: str, *options: str) -> str:
    # src is given too: both checkers then find the package even where it is not installed.
    env = {**os.environ, "MYPYPATH": str(ROOT / "src"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", module, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=env,
        timeout=SECONDS_MAX,
    )
    assert done.returncode in (0, 1), f"{module} did not work:\n{done.stdout}\n{done.stderr}"
    return done.stdout
