"""What a stranger finds in a fresh clone: the files, the commands, the promises of the packaging."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import amends

ROOT = Path(__file__).resolve().parents[2]

# Spelled so that this file does not match itself.
LOCAL_PATH = re.compile(r"(?<![\w.-])/(?:work|root)(?:/|\b(?=[\"'`\s]))|\.\./shared\b")
PACKAGE_HOST = re.compile(
    r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|/simple[/]|/artifactor[y]/|(?:index|registry)[-_]url",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "AGENTS.md",
        "Makefile",
        "SECURITY.md",
        "CODE_OF_CONDUCT.md",
    ],
)
def test_the_files_everybody_looks_for_are_there(name: str) -> None:
    assert read(name).strip()


def test_the_licence_is_apache_2(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in read("LICENSE")
    assert "END OF TERMS AND CONDITIONS" in read("LICENSE")


def test_the_readme_names_the_two_commands() -> None:
    readme = read("README.md")
    assert "make demo" in readme
    assert "make test" in readme


def test_the_readme_shows_a_run_and_an_approval_in_both_colours() -> None:
    shown = re.findall(r"/main/docs/assets/console/([\w-]+\.png)", read("README.md"))
    assert set(shown) == {f"{page}-{colour}.png" for page in ("run", "approval") for colour in ("light", "dark")}
    assert [name for name in shown if not (ROOT / "docs" / "assets" / "console" / name).exists()] == []


def test_the_changelog_has_a_place_for_what_comes_next() -> None:
    assert re.search(r"^## \[?Unreleased\]?", read("CHANGELOG.md"), re.MULTILINE)


@pytest.mark.parametrize("shelf", ["tutorial", "how-to", "reference", "explanation"])
def test_the_docs_have_their_four_shelves(shelf: str) -> None:
    assert read(f"docs/{shelf}/index.md").startswith("# ")
    assert f"{shelf}/index.md" in read("docs/index.md")


def test_every_make_verb_is_explained() -> None:
    makefile = read("Makefile")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    explained = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
    assert explained == set(phony[1].split())


def test_ci_runs_what_the_readme_says() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    commands = {line.strip() for line in run.read_text(encoding="utf-8").splitlines()}
    assert {"make check", "make test", "set -euo pipefail"} <= commands


# ---- packaging ----------------------------------------------------------------------------


def test_the_wheel_carries_its_types(pyproject: dict[str, Any]) -> None:
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel == {"packages": ["src/amends"]}, "with include or exclude, show that py.typed is still in the wheel"
    assert (ROOT / "src" / "amends" / "py.typed").is_file()


def test_the_supported_pythons_are_said_once(pyproject: dict[str, Any]) -> None:
    classifiers = "\n".join(pyproject["project"]["classifiers"])
    minors = [int(minor) for minor in re.findall(r"Python :: 3\.(\d+)$", classifiers, re.MULTILINE)]
    floor = re.match(r">=3\.(\d+)", pyproject["project"]["requires-python"])
    assert floor is not None
    assert minors == list(range(int(floor[1]), int(floor[1]) + len(minors)))
    assert pyproject["tool"]["ruff"]["target-version"] == f"py3{floor[1]}"
    assert pyproject["tool"]["mypy"]["python_version"] == f"3.{floor[1]}"


def test_types_are_checked_strictly(pyproject: dict[str, Any]) -> None:
    mypy = pyproject["tool"]["mypy"]
    assert mypy["strict"] is True
    assert "unused-awaitable" in mypy["enable_error_code"]
    absent = [one for one in mypy["overrides"] if one.keys() == {"module", "ignore_missing_imports"}]
    recipes = [
        "agno.*",
        "autogen_agentchat.*",
        "autogen_core.*",
        "autogen_ext.*",
        "crewai.*",
        "google.*",
        "langchain_mcp_adapters.*",
        "temporalio.openai_agents.*",
    ]
    assert [one["module"] for one in absent] == [recipes], "what make check has not installed, and nothing else"
    loosened = [one["module"] for one in mypy["overrides"] if one not in absent]
    assert loosened == ["tests.*"], "src/amends has no exceptions"


def test_a_warning_is_an_error(pyproject: dict[str, Any]) -> None:
    assert pyproject["tool"]["pytest"]["ini_options"]["filterwarnings"][0] == "error"


def test_the_tests_see_this_tree() -> None:
    """A copied .venv still points to the tree that it was made in."""
    import amends

    assert Path(amends.__file__ or "").is_relative_to(ROOT / "src")


# ---- nothing of one machine ---------------------------------------------------------------


def test_no_file_names_somebodys_machine() -> None:
    problems = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in files_of_the_project()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        for found in [LOCAL_PATH.search(line) or PACKAGE_HOST.search(line)]
        if found
    ]
    assert problems == []


def files_of_the_project() -> list[Path]:
    """What is, or would be, committed."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listing = [git, "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    assert ROOT / "pyproject.toml" in paths
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("text", ["open('{}work/main/x')", "sqlite:///{}root/a.db", "at {}root "])
def test_a_local_path_is_seen(text: str) -> None:
    assert LOCAL_PATH.search(text.format("/"))


@pytest.mark.parametrize("text", ["docs/work/page.md", "https://example.com/root/x", "/workers/1", "a/root"])
def test_other_paths_are_not_taken_for_local_ones(text: str) -> None:
    assert not LOCAL_PATH.search(text)


def test_every_public_name_is_where_the_package_says_and_is_loaded_only_when_asked_for() -> None:
    assert set(amends.__all__) == {*amends._MODULE_OF, "Declaration", "Tool", "declare", "tool"}
    for name in amends.__all__:
        assert getattr(amends, name).__class__.__name__ != "module", name
    assert set(amends.__all__) <= set(dir(amends))
    code = "import amends, sys; print([name for name in sys.modules if name.startswith('amends.engine')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
