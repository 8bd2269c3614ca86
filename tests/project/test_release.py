"""``make release`` on a copy of the project: what it changes, builds and tags, and what it refuses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import environment

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "scripts/release.py", "src/amends")
AUTHOR = {f"GIT_{who}_{what}": "tester@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
RELEASE_S_MAX = 300


def git(tree: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=tree, env=environment(**AUTHOR), check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with what a release needs of the project."""
    if shutil.which("git") is None:
        pytest.skip("git is not here")
    place = tmp_path / "tree"
    for name in KEPT:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, place / name)
    readme = place / "README.md"  # as whoever makes the first release must correct it
    readme.write_text(
        readme.read_text(encoding="utf-8").replace("There is no release yet", "It is out"), encoding="utf-8"
    )
    git(place, "init", "--quiet", "--initial-branch=main")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "-m", "All of it")
    return place


def release(tree: Path, *given: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/release.py", *given],
        cwd=tree, env=environment(**AUTHOR), check=False, capture_output=True, text=True, timeout=RELEASE_S_MAX,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.rest
def test_a_release_is_built_tried_committed_and_tagged(tree: Path, tmp_path: Path) -> None:
    done = release(tree, "0.1.0", "--no-tests", "--dist", str(tmp_path / "dist"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "dist").iterdir()) == [
        "amends-0.1.0-py3-none-any.whl",
        "amends-0.1.0.tar.gz",
    ]
    assert git(tree, "tag").split() == ["v0.1.0"]
    assert git(tree, "status", "--porcelain") == ""
    assert 'version = "0.1.0"' in (tree / "pyproject.toml").read_text(encoding="utf-8")
    assert "## [0.1.0] - 2" in (tree / "CHANGELOG.md").read_text(encoding="utf-8")
    again = release(tree, "0.1.0", "--no-tests")
    assert again.returncode == 1
    assert git(tree, "tag").split() == ["v0.1.0"]


def test_a_plan_changes_nothing_and_says_what_to_correct_first(tree: Path) -> None:
    deny_it(tree)
    done = release(tree, "0.1.0", "--plan")
    assert done.returncode == 0, done.stderr
    assert "v0.1.0" in done.stdout
    assert "correct README.md first" in done.stdout
    assert (git(tree, "status", "--porcelain"), git(tree, "tag")) == ("", "")


def deny_it(tree: Path) -> None:
    with (tree / "README.md").open("a", encoding="utf-8") as page:
        page.write("There is no release yet.\n")
    git(tree, "commit", "--quiet", "--all", "-m", "Not yet")


def spoil_tree(tree: Path) -> None:
    (tree / "LICENSE").write_text("mine", encoding="utf-8")


def leave_main(tree: Path) -> None:
    git(tree, "switch", "--quiet", "--create", "idea")


def take_tag(tree: Path) -> None:
    git(tree, "tag", "v0.1.0")


def say_nothing(tree: Path) -> None:
    log = tree / "CHANGELOG.md"
    log.write_text("# Changelog\n\n## [Unreleased]\n", encoding="utf-8")
    git(tree, "commit", "--quiet", "--all", "-m", "Nothing to say")


@pytest.mark.parametrize(
    "version, spoil, word",
    [
        ("0.1.0", spoil_tree, "not committed"),
        ("0.1.0", leave_main, "main"),
        ("0.1.0", take_tag, "exists"),
        ("0.1.0", say_nothing, "CHANGELOG.md"),
        ("0.1.0", deny_it, "README.md would be published"),
        ("0.0.9", lambda tree: None, "not newer"),
        ("next", lambda tree: None, "no version"),
        ("", lambda tree: None, "no version"),
    ],
)
def test_what_is_not_ready_is_refused_and_left_as_it_was(
    tree: Path, version: str, spoil: Callable[[Path], None], word: str
) -> None:
    spoil(tree)
    before = (git(tree, "status", "--porcelain"), git(tree, "log", "--oneline"), git(tree, "tag"))
    done = release(tree, version, "--no-tests")
    assert (done.returncode, word in done.stderr) == (1, True), done.stderr
    assert (git(tree, "status", "--porcelain"), git(tree, "log", "--oneline"), git(tree, "tag")) == before


@pytest.mark.parametrize(
    "schema, names",
    [
        ("vendor.github-workflows", [".github/workflows/ci.yml"]),
        ("vendor.github-issue-forms", [".github/ISSUE_TEMPLATE/bug.yml", ".github/ISSUE_TEMPLATE/idea.yml"]),
        ("vendor.github-issue-config", [".github/ISSUE_TEMPLATE/config.yml"]),
    ],
)
def test_the_files_for_the_forge_have_their_schema(schema: str, names: list[str]) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *names]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
