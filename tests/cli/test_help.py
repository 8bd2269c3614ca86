import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from amends import __version__
from tests.cli.command import environment, here, run

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "cli.md"
ALSO_VERBS = ("gateway",)
"""Groups that do something by themselves."""
GROUPS = (
    "runs",
    "calls",
    "approvals",
    "permits",
    "oncall",
    "tokens",
    "doubts",
    "rules",
    "audit",
    "config",
    "db",
    "gateway",
)
HELP_CPU_S_MAX = 0.25


def verbs(text: str) -> list[str]:
    """Return the commands that a help text lists."""
    listed = text.partition("Commands:")[2]
    return re.findall(r"^  ([a-z]+)  ", listed, re.MULTILINE)


def all_verbs(cwd: Path) -> set[str]:
    top = verbs(here("--help", cwd=cwd).stdout)
    below = {f"{group} {verb}" for group in GROUPS for verb in verbs(here(group, "--help", cwd=cwd).stdout)}
    return {verb for verb in top if verb not in GROUPS or verb in ALSO_VERBS} | below


def test_the_page_has_every_verb_with_every_option_and_no_other(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    documented = dict(re.findall(r"^## `amends ([a-z ]+?)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(documented) == all_verbs(tmp_path)
    for verb, section in documented.items():
        shown = here(*verb.split(), "--help", cwd=tmp_path).stdout
        options = set(re.findall(r"--[a-z]+", shown)) - {"--help"}
        assert set(re.findall(r"^\| `(--[a-z]+)", section, re.MULTILINE)) | _pairs(section) == options, verb


def _pairs(section: str) -> set[str]:
    """Return the second of ``--this / --that``."""
    return set(re.findall(r"^\| `--[a-z]+` / `(--[a-z]+)", section, re.MULTILINE))


def test_no_verb_shows_the_help_and_the_version_is_said(tmp_path: Path) -> None:
    bare = run(cwd=tmp_path)
    assert (bare.returncode, bare.stdout) == (0, run("--help", cwd=tmp_path).stdout)
    assert run("--version", cwd=tmp_path).stdout == f"amends {__version__}\n"


def test_help_costs_little(tmp_path: Path) -> None:
    """Measure with byte code, as an installed program has it; CPU time, because the machine may be busy."""
    env = environment(PYTHONPYCACHEPREFIX=str(tmp_path))
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "amends", "--help"]
    costs = [_cpu_s(command, env) for _ in range(4)][1:]
    empty = min(_cpu_s([sys.executable, "-c", "import asyncio, json, logging, typer"], env) for _ in range(4))
    # On a slow machine everything is slow: compare with the imports that are not ours.
    assert min(costs) <= max(HELP_CPU_S_MAX, empty * 4), (costs, empty)


def test_neither_rich_nor_a_database_is_loaded_for_help(tmp_path: Path) -> None:
    code = "import sys; from amends.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert loaded.isdisjoint({"rich", "rich.console", "sqlite3", "pydantic", "amends.runtime", "amends.worker"})


def test_a_reader_that_leaves_early_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        command = [sys.executable, "-m", "amends", "--help"]
        done = subprocess.run(command, env=environment(), stdout=gone, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")


def test_colour_is_for_terminals_and_never_against_no_color(tmp_path: Path) -> None:
    assert "\x1b[" in _on_a_terminal(tmp_path, TERM="xterm-256color")
    assert "\x1b[" not in _on_a_terminal(tmp_path, TERM="xterm-256color", NO_COLOR="1")
    assert "\x1b[" not in run("runs", "list", cwd=tmp_path).stderr


def _on_a_terminal(folder: Path, **extra: str) -> str:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "amends", "runs", "list"]
    subprocess.run(command, cwd=folder, env=environment(**extra), stdout=theirs, stderr=theirs, check=False)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    return said


def _cpu_s(command: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
